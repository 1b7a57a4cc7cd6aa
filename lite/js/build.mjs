// Copies the modules of lite.js, which the plugin's pages share, to build/, and joins them into one script for <script src>.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const SOURCE = new URL("../../spacy_crf/migrate/page/", import.meta.url);
const TARGET = new URL("build/", import.meta.url);
// Each behind those that it imports
const MODULES = ["unicode", "characters", "content", "hashing", "features", "labellings"];
MODULES.push("component", "character_tokenizer", "tokenizer", "lite");

mkdirSync(TARGET, { recursive: true });
const sources = MODULES.map((name) => {
  const file = new URL(`${name}.js`, SOURCE);
  copyFileSync(file, new URL(`${name}.js`, TARGET));
  return readFileSync(file, "utf8")
    .replace(/^import \{[^}]*\} from .*\n/gm, "")
    .replace(/^export \{[^}]*\};\n/gm, "")
    .replace(/^export /gm, "");
});
const script = `var spacyCrfLite = (() => {\n${sources.join("\n")}\nreturn { LiteError, load, makeParser };\n})();\n`;
writeFileSync(new URL("lite.global.js", TARGET), script);
console.log(fileURLToPath(TARGET));
