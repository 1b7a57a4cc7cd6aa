// Reads the features of texts, and sums their weights.
import {
  ALPHA, CURRENCY, DECIMAL, DIGIT, LOWER, PUNCT, SPACE, TITLE, UPPER, everyIs, firstOf, hasCase, hasFlag, isAll, isAscii, isTitle,
  lower, pointsOf, withoutLast,
} from "./characters.js";
import { EXPORT_AGAIN, LEAST_NUMBER, LiteError, listed, numbers, texts } from "./content.js";
import { hashText } from "./hashing.js";

// Between the values of a feature; before and behind a word in its n-grams; the value of an attribute that a token does not have
const JOINT = "\x7f";
const BEFORE = "\ue000";
const BEHIND = "\ue001";
const UNMARKED = "\uffff";
const ABSENT = "\0\0";
const FARTHEST = 1000; // tokens between a token and those that its features read
const MOST_BYTES = 1 << 26; // of the scores of words that are kept
const MOST_JOINED = 10000; // values of one template at one place

/** spaCy's shape: "Xxxx-dd", with at most four equal characters in a row. */
function shape(word) {
  const points = pointsOf(word);
  if (points.length >= 100) return "LONG"; // as in spaCy
  let shaped = "";
  let before = null;
  let run = 0;
  for (const point of points) {
    let kind = String.fromCodePoint(point);
    if (hasFlag(point, ALPHA)) kind = hasFlag(point, UPPER) ? "X" : "x";
    else if (hasFlag(point, DIGIT)) kind = "d";
    run = kind === before ? run + 1 : 1;
    before = kind;
    if (run <= 4) shaped += kind;
  }
  return shaped;
}

/** A text in which no character stands twice in a row. */
const withoutRepeats = (text) => Array.from(text).filter((char, n, all) => char !== all[n - 1]).join("");

/** A text in which all decimal digits are written 0. */
function foldDigits(text) {
  return Array.from(text, (char) => (hasFlag(char.codePointAt(0), DECIMAL) ? "0" : char)).join("");
}

/** Runs of characters of the word with its marks, each once: at most 12, half from its beginning and half from its end. */
function ngrams(word, size) {
  const unmarked = lower(word).replace(/[\ue000\ue001]/g, UNMARKED); // no character of the word is like a mark
  const marked = Array.from(BEFORE + unmarked + BEHIND);
  const runs = [];
  for (let n = 0; n + size <= marked.length; n++) runs.push(marked.slice(n, n + size).join(""));
  return [...new Set(runs.length <= 12 ? runs : [...runs.slice(0, 6), ...runs.slice(-6)])];
}

const BRACKETS = new Set("()[]{}<>");
const QUOTES = new Set([..."\"'`«»‘’‚‛“”„‟‹›❮❯", "''", "``"]);
const LEFT_PUNCT = new Set([..."([{<\"'«‘‚‛“„‟‹❮", "``"]);
const RIGHT_PUNCT = new Set([...")]}>\"'»’”›❯", "''"]);
const EMAIL = /^[a-zA-Z0-9_.+-]+@[a-zA-Z0-9-]+\.[a-zA-Z0-9-.]+/;

const FLAG_GETTERS = new Map([
  ["is_alpha", (word) => isAll(word, ALPHA)],
  ["is_ascii", isAscii],
  ["is_digit", (word) => isAll(word, DIGIT)],
  ["is_lower", (word) => hasCase(word, LOWER, UPPER | TITLE)],
  ["is_space", (word) => isAll(word, SPACE)],
  ["is_title", isTitle],
  ["is_upper", (word) => hasCase(word, UPPER, LOWER | TITLE)],
  ["is_punct", (word) => everyIs(word, PUNCT)],
  ["is_currency", (word) => everyIs(word, CURRENCY)],
  ["is_bracket", (word) => BRACKETS.has(word)],
  ["is_quote", (word) => QUOTES.has(word)],
  ["is_left_punct", (word) => LEFT_PUNCT.has(word)],
  ["is_right_punct", (word) => RIGHT_PUNCT.has(word)],
  ["like_email", (word) => EMAIL.test(word)],
  ["has_hyphen", (word) => word.includes("-")],
  ["has_digit", (word) => pointsOf(word).some((point) => hasFlag(point, DIGIT))],
]);

const STRING_GETTERS = new Map([
  ["bias", () => "1"],
  ["orth", (word) => word],
  ["lower", lower],
  ["shape", shape],
  ["prefix", (word) => firstOf(word, 1)],
  ["suffix", (word) => Array.from(word).slice(-3).join("")],
  ["length", (word) => String(Array.from(word).length)],
  ["capitals", (word) => String(pointsOf(word).filter((point) => hasFlag(point, UPPER)).length)],
  ["folded", (word) => foldDigits(lower(word))],
  ["short_shape", (word) => withoutRepeats(shape(word))],
]);
for (let n = 1; n <= 10; n++) {
  const part = (word, begin, end) => {
    const chars = Array.from(word);
    return chars.length >= n ? chars.slice(begin, end).join("") : ABSENT;
  };
  if (n <= 5) STRING_GETTERS.set(`prefix${n}`, (word) => part(word, 0, n));
  STRING_GETTERS.set(`suffix${n}`, (word) => part(word, -n));
}
const NGRAM_GETTERS = new Map([2, 3, 4, 5].map((n) => [`ngrams${n}`, (word) => ngrams(word, n)]));

/** spaCy's `like_num`, with the numerals and the endings of ordinals of a language. */
function likeNumber(word, words, endings) {
  const digits = word.replace(/^[+\-±~]/u, "").replace(/[,.]/g, "");
  const bar = digits.indexOf("/");
  const parts = bar < 0 ? [digits] : [digits.slice(0, bar), digits.slice(bar + 1)];
  const lowered = lower(digits);
  if (parts.every((part) => isAll(part, DIGIT)) || words.has(lowered)) return true;
  return endings.some((ending) => lowered.endsWith(ending)) && isAll(withoutLast(lowered, 2), DIGIT);
}

/** Tags of a single token, and letters of the first, other and last tokens of a longer span. */
export const SPELLINGS = { IO: "IIII", BIO: "BBII", IOB1: "IIII", BILUO: "UBIL" };

/** The tags of a span of `length` tokens; letters alone for the label "". */
export function spell(scheme, label, length) {
  const [single, first, inside, last] = SPELLINGS[scheme];
  const letters = length === 1 ? [single] : [first, ...Array(length - 2).fill(inside), last];
  return letters.map((letter) => (label ? `${letter}-${label}` : letter));
}

/** A list of phrases: the position of tokens in the longest phrase that covers them, and the labels of spans. */
class Phrases {
  constructor(content) {
    this.spell = STRING_GETTERS.get(content.attribute);
    if (!this.spell) throw new LiteError(`a gazetteer compares '${content.attribute}', which lite.js does not know. ${EXPORT_AGAIN}`);
    // A tree of words: `next` by word, and the `labels` of the phrase that ends here
    this.root = { next: new Map(), labels: [] };
    for (const [words, label] of listed(content.entries, "a gazetteer")) {
      let node = this.root;
      for (const word of texts(words, "a phrase").map(this.spell)) {
        if (!node.next.has(word)) node.next.set(word, { next: new Map(), labels: [] });
        node = node.next.get(word);
      }
      node.labels.push(label);
    }
  }

  /** The phrases in a text: {begin, end, labels} of each. */
  matches(words) {
    const spelled = words.map(this.spell);
    const found = [];
    for (let begin = 0; begin < spelled.length; begin++) {
      let node = this.root.next.get(spelled[begin]);
      for (let end = begin + 1; node; end++) {
        if (node.labels.length) found.push({ begin, end, labels: node.labels });
        node = node.next.get(spelled[end]);
      }
    }
    return found;
  }

  /** "B", "I", "L" or "U" and the label for each token. Of overlapping phrases the longest counts, of equals the first. */
  positions(words) {
    const values = Array(words.length).fill(ABSENT);
    const matches = this.matches(words).sort((a, b) => b.end - b.begin - (a.end - a.begin) || a.begin - b.begin);
    for (const { begin, end, labels } of matches) {
      // A longer match that overlaps covers the first or the last token
      if (values[begin] !== ABSENT || values[end - 1] !== ABSENT) continue;
      spell("BILUO", labels[0], end - begin).forEach((value, n) => (values[begin + n] = value));
    }
    return values;
  }

  /** The labels of a phrase at each span: [first token][number of tokens]. */
  labelsOfSpans(words) {
    const labels = words.map(() => []);
    for (const match of this.matches(words)) {
      labels[match.begin][match.end - match.begin] = match.labels.map((label) => label || "yes");
    }
    return labels;
  }
}

/** Weights of features: row f has `weights` from `starts[f]` to `starts[f + 1]`, each for a column. */
class Table {
  constructor(content, width) {
    this.width = width;
    this.templates = [];
    let nRows = 0;
    for (const { name, parts, keys, once } of listed(content.templates, "a table of templates")) {
      const rows = new Map(texts(keys, `the template '${name}'`).map((key, n) => [key, nRows + n]));
      const namedParts = listed(parts, `the template '${name}'`).map(namedPart);
      this.templates.push({ name: String(name), parts: namedParts, rows, once: once === true });
      nRows += keys.length;
    }
    const counts = numbers(content.counts, "counts", { length: nRows, least: 0, whole: true });
    this.starts = new Float64Array(nRows + 1);
    counts.forEach((count, row) => (this.starts[row + 1] = this.starts[row] + count));
    const length = this.starts[nRows];
    this.columns = numbers(content.columns, "columns", { length, least: 0, below: width, whole: true });
    const [scale] = numbers([content.scale ?? 1], "scale", { least: LEAST_NUMBER });
    this.weights = numbers(content.weights, "weights", { length, least: LEAST_NUMBER }).map((weight) => weight * scale);
  }

  /** Add the weights of a feature to the sums that begin at `start`. */
  add(row, sums, start) {
    const end = this.starts[row + 1];
    for (let n = this.starts[row]; n < end; n++) sums[start + this.columns[n]] += this.weights[n];
  }
}

/** A part of a template: [attribute, offset], in front of which those of spans have their kind. */
function namedPart(part) {
  const [kind, attribute, offset] = part.length > 2 ? part : ["", ...part];
  return { kind, attribute, offset };
}

/** All ways to take a value of each list, joined. */
function joined(lists) {
  let keys = [""];
  lists.forEach((values, n) => {
    if (keys.length * values.length > MOST_JOINED) throw new LiteError(`a template joins too many values. ${EXPORT_AGAIN}`);
    keys = keys.flatMap((key) => values.map((value) => (n ? key + JOINT + value : value)));
  });
  return keys;
}

const asList = (value) => (Array.isArray(value) ? value : [value]);

/** Reads texts, and sums the weights of their features by table; sums of single words are kept by word. */
export class Features {
  constructor(content, nTags) {
    this.columns = texts(content.columns, "columns");
    this.wordColumn = this.columns.indexOf("orth");
    if (this.wordColumn < 0) throw new LiteError(`it has no column of words. ${EXPORT_AGAIN}`);
    this.phrases = new Map(Object.entries(content.gazetteers).map(([name, phrases]) => [name, new Phrases(phrases)]));
    this.getters = makeGetters(content);
    const ofTexts = new Set([...this.columns, ...[...this.phrases.keys()].map((name) => `in:${name}`)]);
    ofTexts.delete("orth");
    this.reach = 0; // distance of the farthest token that a template reads
    this.tables = new Map();
    let nSums = 0;
    for (const [name, tableContent] of Object.entries(content.tables)) {
      const table = new Table(tableContent, name === "transitions" ? nTags ** 2 : nTags);
      for (const template of table.templates) this.checkTemplate(template, ofTexts);
      // Templates that read one word have sums that are kept by word and offset; the others are read at each token
      const isOfWord = ({ parts }) => {
        const readsText = parts.some(({ attribute }) => ofTexts.has(attribute));
        return !readsText && new Set(parts.map(({ offset }) => offset)).size === 1;
      };
      const ofWords = ["transitions", "spans"].includes(name) ? [] : table.templates.filter(isOfWord);
      const others = table.templates.filter((template) => !ofWords.includes(template));
      for (const { parts, name: templateName } of name === "spans" ? [] : others) {
        const readsNgrams = parts.some(({ attribute }) => NGRAM_GETTERS.has(attribute));
        if (readsNgrams) throw new LiteError(`the template '${templateName}' joins n-grams. ${EXPORT_AGAIN}`);
      }
      const offsets = [...new Set(ofWords.map(({ parts }) => parts[0].offset))].sort((a, b) => a - b);
      nSums += offsets.length * table.width;
      this.tables.set(name, { table, ofWords, others, offsets });
    }
    this.mostWords = Math.max(1000, MOST_BYTES / Math.max(8, 8 * nSums));
    this.outside = this.makePadding(content.padding);
    this.start();
  }

  /** Check what a template reads, and let `reach` be far enough. `ofTexts`: Attributes that are not known from the word alone. */
  checkTemplate({ name, parts }, ofTexts) {
    const distances = parts.map(({ offset }) => (Number.isInteger(offset) ? Math.abs(offset) : Infinity));
    if (!parts.length || Math.max(...distances) > FARTHEST) {
      throw new LiteError(`the template '${name}' reads tokens that are too far away. Copy the file again.`);
    }
    this.reach = Math.max(this.reach, ...distances);
    const isKnown = (attribute) => attribute === "" || this.getters.has(attribute) || ofTexts.has(attribute);
    const unknown = parts.find(({ attribute }) => !isKnown(attribute));
    if (unknown === undefined) return;
    throw new LiteError(`the template '${name}' reads '${unknown.attribute}', which lite.js does not know. Take a newer one.`);
  }

  /** The words of the positions outside a text: those before it, the nearest first, then those behind it. Each is the value of all
   * attributes there. */
  makePadding(padding) {
    if (!padding) return Array(2 * this.reach).fill(ABSENT);
    const values = [];
    for (const [side, mark] of [["before", "BOS"], ["behind", "EOS"]]) {
      const given = padding === true ? [] : texts(padding[side], "padding").slice(0, this.reach);
      for (let n = 0; n < this.reach; n++) values.push(given[n] ?? `<${mark}${n + 1}>`);
    }
    return values;
  }

  /** Forget all words. */
  start() {
    this.words = new Map();
    const outside = this.outside.map((value) => this.makeWord(() => value));
    this.before = outside.slice(0, this.reach).reverse();
    this.behind = outside.slice(this.reach);
  }

  /** What is kept of a word: its values by attribute, and its sums by table and offset. */
  makeWord(read) {
    const word = { read, values: new Map(), sums: new Map() };
    for (const [name, { table, ofWords, offsets }] of this.tables) {
      const sums = new Float64Array(offsets.length * table.width);
      for (const { parts, rows } of ofWords) {
        const start = offsets.indexOf(parts[0].offset) * table.width;
        const values = parts.map(({ attribute }) => asList(this.valueOf(word, attribute)));
        for (const key of joined(values)) {
          if (rows.has(key)) table.add(rows.get(key), sums, start);
        }
      }
      word.sums.set(name, sums);
    }
    return word;
  }

  /** The value of an attribute of a word; a list for n-grams. */
  valueOf(word, attribute) {
    let value = word.values.get(attribute);
    if (value === undefined) {
      value = word.read(attribute);
      word.values.set(attribute, value);
    }
    return value;
  }

  /** The words of a text, which is a list of words or of rows of columns. */
  wordsOf(rows) {
    if (!Array.isArray(rows)) throw new LiteError("A text is a list of words, or of rows. Split it into words first.");
    const isOfWords = this.columns.length === 1 && rows.every((row) => typeof row === "string");
    if (isOfWords) return rows;
    return rows.map((row, n) => {
      const isRow = Array.isArray(row) && row.length >= this.columns.length;
      const got = Array.isArray(row) ? `${row.length} columns` : "a word";
      if (!isRow) throw new LiteError(`Row ${n + 1} is ${got}, and the model reads the columns ${this.columns.join(", ")}.`);
      return row[this.wordColumn];
    });
  }

  /** Read a text. Its positions are those of its tokens with `reach` ones before and behind them. */
  read(rows) {
    const words = this.wordsOf(rows);
    if (this.words.size > this.mostWords) this.start();
    const known = words.map((word) => {
      let kept = this.words.get(word);
      if (!kept) {
        kept = this.makeWord((attribute) => this.getters.get(attribute)(word));
        this.words.set(word, kept);
      }
      return kept;
    });
    return { rows, words, positions: [...this.before, ...known, ...this.behind], values: new Map() };
  }

  /** The values of an attribute at all positions of a text. */
  valuesAt(text, attribute) {
    if (text.values.has(attribute)) return text.values.get(attribute);
    const place = this.columns.indexOf(attribute);
    let values;
    if (this.phrases.has(attribute.slice(3)) && attribute.startsWith("in:")) {
      values = this.inside(this.phrases.get(attribute.slice(3)).positions(text.words));
    } else if (place >= 0 && attribute !== "orth") {
      values = this.inside(text.rows.map((row) => row[place]));
    } else {
      values = text.positions.map((word) => this.valueOf(word, attribute));
    }
    text.values.set(attribute, values);
    return values;
  }

  /** Values of tokens with those of the positions before and behind the text. */
  inside(values) {
    return [...this.outside.slice(0, this.reach).reverse(), ...values, ...this.outside.slice(this.reach)];
  }

  /** The row of a template's feature at each token, undefined for unknown features. */
  rowsOf(template, text) {
    const lists = template.parts.map(({ attribute }) => this.valuesAt(text, attribute));
    return text.words.map((_, t) => {
      const values = template.parts.map(({ offset }, part) => lists[part][this.reach + t + offset]);
      return template.rows.get(values.join(JOINT));
    });
  }

  /** Sums of the weights of one table: [T, C]. */
  scores(name, text) {
    const { table, others, offsets } = this.tables.get(name);
    const { width } = table;
    const scores = new Float64Array(text.words.length * width);
    for (const template of others) {
      this.rowsOf(template, text).forEach((row, t) => {
        if (row !== undefined) table.add(row, scores, t * width);
      });
    }
    offsets.forEach((offset, place) => {
      text.words.forEach((_, t) => {
        const sums = text.positions[this.reach + t + offset].sums.get(name);
        for (let column = 0; column < width; column++) scores[t * width + column] += sums[place * width + column];
      });
    });
    return scores;
  }

  /** Add the weights of the features of whole spans to the scores of segments [T, K, C]. */
  addSpans(text, scores, longest) {
    const spans = this.tables.get("spans");
    const nTokens = text.words.length;
    if (spans) {
      const { table } = spans;
      const totals = new Float64Array(scores.length);
      for (const { parts, rows } of table.templates) {
        const readers = parts.map((part) => this.spanReader(part, text));
        for (let begin = 0; begin < nTokens; begin++) {
          for (let k = 0; k < longest && begin + k < nTokens; k++) {
            const start = (begin * longest + k) * table.width;
            for (const key of joined(readers.map((read) => read(begin, begin + k + 1)))) {
              if (rows.has(key)) table.add(rows.get(key), totals, start);
            }
          }
        }
      }
      totals.forEach((total, n) => (scores[n] += total));
    }
    const tokens = this.tables.get("tokens");
    if (!tokens) return;
    const { table } = tokens;
    for (const template of tokens.ofWords.filter(({ once }) => once)) {
      const latest = new Map(); // the last token with a feature so far
      this.rowsOf(template, text).forEach((row, t) => {
        if (row === undefined) return;
        // Segments with both tokens have counted the feature twice
        const weights = new Float64Array(table.width);
        table.add(row, weights, 0);
        for (let begin = Math.max(0, t - longest + 1); begin <= (latest.get(row) ?? -1); begin++) {
          for (let k = t - begin; k < longest; k++) {
            weights.forEach((weight, tag) => (scores[(begin * longest + k) * table.width + tag] -= weight));
          }
        }
        latest.set(row, t);
      });
    }
  }

  /** A function that gives the values of a part of a template at a span of tokens. */
  spanReader({ kind, attribute, offset }, text) {
    if (kind === "length") return (begin, end) => [String(end - begin)];
    if (kind === "in") {
      const labels = this.phrases.get(attribute.slice(3)).labelsOfSpans(text.words);
      return (begin, end) => labels[begin][end - begin] ?? [];
    }
    const values = this.valuesAt(text, attribute);
    const { reach } = this;
    if (kind === "whole") return (begin, end) => [values.slice(reach + begin, reach + end).join(" ")];
    if (kind === "first") return (begin) => asList(values[reach + begin + offset]);
    return (_, end) => asList(values[reach + end - 1 + offset]);
  }
}

/** Functions that read attributes from a word, by the name of the attribute. */
export function makeGetters(content) {
  const stopWords = new Set(texts(content.stop_words, "stop_words"));
  const numberWords = new Set(texts(content.number_words, "number_words"));
  const numberEndings = texts(content.number_endings, "number_endings");
  const flags = new Map(FLAG_GETTERS);
  flags.set("like_num", (word) => likeNumber(word, numberWords, numberEndings));
  flags.set("is_stop", (word) => stopWords.has(lower(word)));
  const getters = new Map([...STRING_GETTERS, ...NGRAM_GETTERS]);
  for (const [name, flag] of flags) {
    getters.set(name, (word) => (flag(word) ? "1" : "0"));
    getters.set(`if:${name}`, (word) => (flag(word) ? "1" : ABSENT));
  }
  for (const [name, { words, numbers: ofWords, paths, digits }] of Object.entries(content.clusters)) {
    const below = texts(paths, "paths").length;
    const places = numbers(ofWords, "numbers of clusters", { length: words.length, least: 0, below, whole: true });
    const pathOf = new Map(texts(words, "words of clusters").map((word, n) => [word, paths[places[n]]]));
    const path = (word) => {
      const folded = digits ? foldDigits(word) : word;
      return pathOf.get(hashText(folded)) ?? pathOf.get(hashText(lower(folded)));
    };
    for (const width of [undefined, 4, 6, 8, 10, 20]) {
      const attribute = `cluster${width ?? ""}${name ? `:${name}` : ""}`;
      getters.set(attribute, (word) => firstOf(path(word) ?? ABSENT, width));
    }
  }
  return getters;
}
