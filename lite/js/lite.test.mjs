// Run by `node --test`, without packages.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import "./build.mjs";

// Behind the build
const { LiteError, load, makeParser } = await import("./build/lite.js");
const BYTES = readFileSync(new URL("example.json", import.meta.url));
const content = () => JSON.parse(BYTES);
const parse = makeParser(content());
const near = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-12, `${found} is not ${expected}`);

test("entities have exact probabilities", () => {
  // "Oslo" alone scores 1, and O 0
  const [oslo] = parse.words(["Oslo"]).entities;
  assert.deepEqual({ ...oslo, prob: 0 }, { start: 0, end: 4, text: "Oslo", label: "GPE", prob: 0, component: "crf_ner" });
  near(oslo.prob, Math.E / (1 + Math.E));
  // Of "Oslo Oslo" the best path is one span of two tokens, with exp(3) of 1 + 2 e + exp(3)
  const [both] = parse("Oslo Oslo").entities;
  assert.deepEqual([both.start, both.end], [0, 9]);
  near(both.prob, Math.exp(3) / (1 + 2 * Math.E + Math.exp(3)));
});

test("texts are cut into tokens and sentences", () => {
  const { tokens, sentences } = parse('"Oslo-Bergen" is near St. Olav! I don\'t  go.');
  const words = ['"', "Oslo", "-", "Bergen", '"', "is", "near", "St.", "Olav", "!", "I", "do", "n't", " ", "go", "."];
  assert.deepEqual(tokens.map(({ text }) => text), words);
  assert.deepEqual(sentences, [{ start: 0, end: 31 }, { start: 32, end: 44 }]);
});

test("places are characters, or with utf16 those of strings", () => {
  const text = "🙂🙂 Oslo";
  const [, inPoints] = parse(text).tokens;
  const [, inUnits] = parse(text, { utf16: true }).tokens;
  assert.deepEqual([inPoints.start, inPoints.end, inUnits.start, inUnits.end], [3, 7, 5, 9]);
  assert.equal(text.slice(inUnits.start, inUnits.end), "Oslo");
});

test("empty and blank texts have nothing", () => {
  for (const text of ["", " ", "\n\n"]) assert.deepEqual(parse(text).entities, []);
  assert.deepEqual(parse("").sentences, []);
});

test("load takes objects, texts and bytes, gzipped or not", async () => {
  for (const source of [content(), BYTES.toString(), BYTES, gzipSync(BYTES)]) {
    const loaded = await load(source);
    assert.deepEqual(loaded("Oslo"), parse("Oslo"));
  }
  const address = `data:application/json;base64,${BYTES.toString("base64")}`;
  assert.deepEqual((await load(address))("Oslo"), parse("Oslo"));
});

test("what is no export is refused", async () => {
  const cut = gzipSync(BYTES).subarray(0, 99);
  for (const source of [{}, null, "{", BYTES.subarray(0, 99), cut, { ...content(), version: 3 }, { ...content(), components: 3 }]) {
    await assert.rejects(load(source), LiteError);
  }
  await assert.rejects(load("two.json"), /in Node, give the bytes/);
  await assert.rejects(load("[1]"), LiteError);
  await assert.rejects(load(Buffer.from("PK...")), /--to json/);
  assert.deepEqual((await load(`\ufeff${BYTES}`))("Oslo", null), parse("Oslo"));
  assert.throws(() => parse.words(["Oslo", null]), /Row 2 is null/);
  assert.throws(() => parse(["Oslo"]), LiteError);
  assert.throws(() => parse.words("Oslo"), LiteError);
  assert.throws(() => parse.words([["Oslo"], "x"]), LiteError);
  const withoutTokenizer = makeParser({ ...content(), tokenizer: null });
  assert.throws(() => withoutTokenizer("Oslo"), /no tokenizer\. Take parse\.words/);
  const untranslated = content();
  untranslated.tokenizer.patterns_js.infix = { untranslated: "infix", why: "it has GROUPREF" };
  assert.throws(() => makeParser(untranslated), /'infix': it has GROUPREF/);
});

test("a small file does not fill the memory", async () => {
  const bomb = gzipSync(Buffer.alloc(260e6, " "), { level: 1 });
  assert.ok(bomb.length < 2e6);
  await assert.rejects(load(bomb), /more than 256000000 characters/);
  const manyTags = content();
  manyTags.components[1].letters = "I".repeat(1000000);
  assert.throws(() => makeParser(manyTags), /more than 100000 tags/);
});

test("the script without modules has the same names", () => {
  const script = readFileSync(new URL("build/lite.global.js", import.meta.url), "utf8");
  const lite = new Function(`${script}; return spacyCrfLite;`)();
  assert.deepEqual(lite.makeParser(content())("Oslo in Oslo"), parse("Oslo in Oslo"));
});
