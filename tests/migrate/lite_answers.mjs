// Answers of lite.js for test_lite_js.py: reads {task: argument} from the standard input, and writes {task: answer}.
import { readFileSync } from "node:fs";
import { hashText, lower, makeGetters, makeParser } from "../../spacy_crf/migrate/page/lite.js";

const TASKS = {
  // What components find in texts, which are lists of words or of rows
  words: ({ content, texts }) => {
    const parse = makeParser(content);
    return texts.map((rows) => parse.words(rows));
  },
  // The values of all attributes of words
  attributes: ({ content, words }) => {
    const getters = [...makeGetters(content)];
    return Object.fromEntries(getters.map(([name, get]) => [name, words.map(get)]));
  },
  hashes: (words) => words.map(hashText),
  // The characters whose lower case is not the given one, by code points
  lower: (expected) => expected.flatMap((text, point) => (lower(String.fromCodePoint(point)) === text ? [] : [point])),
};

const asked = JSON.parse(readFileSync(0, "utf8"));
const answers = Object.entries(asked).map(([task, argument]) => [task, TASKS[task](argument)]);
console.log(JSON.stringify(Object.fromEntries(answers)));
