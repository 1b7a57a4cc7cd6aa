// Answers of lite.js for test_lite_js.py: reads {task: argument} from the standard input, and writes {task: answer}.
import { readFileSync } from "node:fs";
import { lower } from "../../spacy_crf/migrate/page/characters.js";
import { makeGetters } from "../../spacy_crf/migrate/page/features.js";
import { hashText } from "../../spacy_crf/migrate/page/hashing.js";
import { LiteError, makeParser } from "../../spacy_crf/migrate/page/lite.js";

const VALUES = [null, true, -1, 0, 1, 2 ** 40, 0.5, "", "x", "__proto__", [], {}, [[]], ["x"], [1e308, 1e308], -1e308];

/** Change, remove or repeat one value of an export; the seed says which. Gives its place. */
function damage(content, seed) {
  let state = seed * 2654435761;
  const draw = (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  let inner = content;
  const place = [];
  for (;;) {
    const keys = Object.keys(inner);
    const key = keys[draw(keys.length)];
    place.push(key);
    const value = inner[key];
    const isLeaf = typeof value !== "object" || value === null || Object.keys(value).length === 0;
    if (isLeaf || draw(5) === 0) {
      const kind = draw(4);
      if (kind === 0) delete inner[key];
      else if (kind === 1 && Array.isArray(value)) value.push(...value);
      else inner[key] = VALUES[draw(VALUES.length)];
      return place.join("/");
    }
    inner = value;
  }
}

const TASKS = {
  // What components find in lists of words or of rows, and in texts
  words: ({ content, texts }) => {
    const parse = makeParser(content);
    return texts.map((rows) => parse.words(rows));
  },
  texts: ({ content, texts, options }) => {
    const parse = makeParser(content);
    return texts.map((text) => parse(text, options));
  },
  // What happens to exports that are damaged at a place each: how many are refused, how many answer, and all other errors
  damaged: ({ content, texts, n }) => {
    const outcomes = { refused: 0, answered: 0, raw: [] };
    for (let seed = 1; seed <= n; seed++) {
      const damaged = structuredClone(content);
      const place = damage(damaged, seed);
      try {
        const parse = makeParser(damaged);
        for (const text of texts) parse(text);
        outcomes.answered += 1;
      } catch (error) {
        if (error instanceof LiteError && error.message.length > 30) outcomes.refused += 1;
        else outcomes.raw.push(`${place}: ${error.stack}`);
      }
    }
    return outcomes;
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
