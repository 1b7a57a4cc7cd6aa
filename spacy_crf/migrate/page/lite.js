/**
 * Labels texts by what `spacy crf export MODEL FILE.json` wrote, with the answers of `spacy_crf.lite` in Python.
 *
 *     import { load } from "./lite.js";
 *     const parse = await load("address.json");
 *     parse.words(["12", "Elm", "Street"]).entities;
 *
 * The format of exports is described in docs/lite_format.md. Letters in comments: T tokens, S states, C columns of a table (tags,
 * or pairs of tags), K the longest segment. An array [T, S] has the value of token t and state s at t * S + s.
 */
import { COMBINATIONS, LOWER_RUNS, RUNS } from "./unicode.js";

const FORMAT = "spacy_crf.lite";
const VERSION = 4;
// Between the values of a feature; before and behind a word in its n-grams; the value of an attribute that a token does not have
const JOINT = "\x7f";
const BEFORE = "\ue000";
const BEHIND = "\ue001";
const ABSENT = "\0\0";
const FARTHEST = 1000; // tokens between a token and those that its features read
const MOST_BYTES = 1 << 26; // of the scores of words that are kept
const MOST_JOINED = 10000; // values of one template at one place
const LEAST_NUMBER = -Number.MAX_VALUE;

/** An export or rows that the parser can't read; the message says what to do. */
export class LiteError extends Error {
  name = "LiteError";
}

// ------------------------------------------------------------------------------------------------------ characters

const [ALPHA, DIGIT, DECIMAL, UPPER, LOWER, TITLE, SPACE, PUNCT, CURRENCY, IGNORABLE, CASED] = Array.from(
  { length: 11 },
  (_, bit) => 1 << bit,
);
const N_POINTS = 0x110000;
const SIGMA = 0x3a3;
const DOTTED_I = 0x130; // the only character whose lower case has two

const FLAGS_OF = unpackFlags();
const LOWER_OF = unpackLower();

/** The flags of all characters: [N_POINTS]. */
function unpackFlags() {
  const flags = new Uint16Array(N_POINTS);
  let point = 0;
  for (const [, letter, length] of RUNS.matchAll(/([A-Z])([0-9a-z]*)/g)) {
    const end = point + (length ? parseInt(length, 36) : 1);
    flags.fill(COMBINATIONS[letter.charCodeAt(0) - 65], point, end);
    point = end;
  }
  return flags;
}

/** The lower case of characters that have another one, by code points. */
function unpackLower() {
  const lowerOf = new Map();
  let first = 0;
  for (const run of LOWER_RUNS.split(",")) {
    const [distance, length, step, shift] = run.split(" ").map((text) => parseInt(text, 36));
    first += distance;
    for (let n = 0; n < length; n++) lowerOf.set(first + n * step, first + n * step + shift);
  }
  return lowerOf;
}

const hasFlag = (point, flag) => (FLAGS_OF[point] & flag) !== 0;
const isAscii = (text) => /^[\x00-\x7f]*$/.test(text);
const pointsOf = (text) => Array.from(text, (char) => char.codePointAt(0));
const everyIs = (text, flag) => pointsOf(text).every((point) => hasFlag(point, flag));
/** Python's isalpha, isdigit, isspace: whether a text that is not empty has such characters alone. */
const isAll = (text, flag) => text !== "" && everyIs(text, flag);

/** The first characters of a text, or without a number the whole text. */
const firstOf = (text, n) => (n === undefined ? text : Array.from(text).slice(0, n).join(""));
/** Without its last n characters. */
const withoutLast = (text, n) => Array.from(text).slice(0, -n).join("");

/** Whether a capital sigma ends a word: behind a letter, and before none. */
function endsWord(points, place) {
  let before = place - 1;
  while (before >= 0 && hasFlag(points[before], IGNORABLE)) before -= 1;
  let behind = place + 1;
  while (behind < points.length && hasFlag(points[behind], IGNORABLE)) behind += 1;
  return before >= 0 && hasFlag(points[before], CASED) && !(behind < points.length && hasFlag(points[behind], CASED));
}

/** Python's str.lower. */
export function lower(text) {
  if (isAscii(text)) return text.toLowerCase();
  const points = pointsOf(text);
  const lowered = points.map((point, place) => {
    if (point === SIGMA) return endsWord(points, place) ? "ς" : "σ";
    if (point === DOTTED_I) return "i\u0307";
    return String.fromCodePoint(LOWER_OF.get(point) ?? point);
  });
  return lowered.join("");
}

/** Python's str.isupper and str.islower: whether no letter has another case, and one has this case. */
function hasCase(text, flag, others) {
  const points = pointsOf(text);
  return points.some((point) => hasFlag(point, flag)) && !points.some((point) => hasFlag(point, others));
}

/** Python's str.istitle. */
function isTitle(text) {
  let isBehindLetter = false;
  let hasLetter = false;
  for (const point of pointsOf(text)) {
    const isCapital = hasFlag(point, UPPER | TITLE);
    const isCased = isCapital || hasFlag(point, LOWER);
    if (isCased && isCapital === isBehindLetter) return false;
    isBehindLetter = isCased;
    hasLetter ||= isCased;
  }
  return hasLetter;
}

// ------------------------------------------------------------------------------------------- attributes of words

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
  const marked = Array.from(BEFORE + lower(word) + BEHIND);
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

const HASH_FACTOR = 0xc6a4a7935bd1e995n;
const times = (a, b) => BigInt.asUintN(64, a * b);

/** spaCy's hash of a text, MurmurHash64A with seed 1, in hexadecimal digits. */
export function hashText(text) {
  const bytes = new TextEncoder().encode(text);
  const data = new DataView(new ArrayBuffer((bytes.length + 7) & ~7));
  bytes.forEach((byte, n) => data.setUint8(n, byte));
  let hash = 1n ^ times(BigInt(bytes.length), HASH_FACTOR);
  for (let n = 0; n < data.byteLength; n += 8) {
    let eight = data.getBigUint64(n, true);
    if (n + 8 <= bytes.length) {
      eight = times(eight, HASH_FACTOR);
      eight = times(eight ^ (eight >> 47n), HASH_FACTOR);
    }
    hash = times(hash ^ eight, HASH_FACTOR);
  }
  hash = times(hash ^ (hash >> 47n), HASH_FACTOR);
  return (hash ^ (hash >> 47n)).toString(16).padStart(16, "0");
}

// ------------------------------------------------------------------------------------------------ checked content

const again = "Export the model again.";

/** Check a list of the export. */
function listed(value, what) {
  if (!Array.isArray(value)) throw new LiteError(`${what} is no list. ${again}`);
  return value;
}

/** Check a list of texts of the export. */
function texts(value, what) {
  if (listed(value, what).some((text) => typeof text !== "string")) throw new LiteError(`${what} has more than texts. ${again}`);
  return value;
}

/**
 * Check a list of numbers of the export, in which null is minus infinity.
 *
 * settings: `length` that it must have; `least` number, without which numbers may be minus infinity; `below`, what all numbers
 *   are less than; `whole`, whether they are whole numbers.
 */
function numbers(value, what, { length, least = -Infinity, below = Infinity, whole = false } = {}) {
  const checked = Float64Array.from(listed(value, what), (number) => {
    const float = number === null ? -Infinity : number;
    const isRight = typeof float === "number" && float >= least && float < below && !(whole && !Number.isInteger(float));
    if (!isRight) throw new LiteError(`${what} has the number ${String(number).slice(0, 30)}. ${again}`);
    return float;
  });
  if (length !== undefined && checked.length !== length) {
    throw new LiteError(`${what} has ${checked.length} numbers instead of ${length}. Copy the file again.`);
  }
  return checked;
}

// -------------------------------------------------------------------------------------------------------- phrases

/** Tags of a single token, and letters of the first, other and last tokens of a longer span. */
const SPELLINGS = { IO: "IIII", BIO: "BBII", IOB1: "IIII", BILUO: "UBIL" };

/** The tags of a span of `length` tokens; letters alone for the label "". */
function spell(scheme, label, length) {
  const [single, first, inside, last] = SPELLINGS[scheme];
  const letters = length === 1 ? [single] : [first, ...Array(length - 2).fill(inside), last];
  return letters.map((letter) => (label ? `${letter}-${label}` : letter));
}

/** A list of phrases: the position of tokens in the longest phrase that covers them, and the labels of spans. */
class Phrases {
  constructor(content) {
    this.spell = STRING_GETTERS.get(content.attribute);
    if (!this.spell) throw new LiteError(`a gazetteer compares '${content.attribute}', which lite.js does not know. ${again}`);
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

// ------------------------------------------------------------------------------------------------------- features

/** Weights of features: row f has `weights` from `starts[f]` to `starts[f + 1]`, each for a column. */
class Table {
  constructor(content, width) {
    this.width = width;
    this.templates = [];
    let nRows = 0;
    for (const { name, parts, keys, once } of listed(content.templates, "a table of templates")) {
      const rows = new Map(texts(keys, `the template '${name}'`).map((key, n) => [key, nRows + n]));
      this.templates.push({ name: String(name), parts: listed(parts, `the template '${name}'`), rows, once: once === true });
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

/** All ways to take a value of each list, joined. */
function joined(lists) {
  let keys = [""];
  lists.forEach((values, n) => {
    if (keys.length * values.length > MOST_JOINED) throw new LiteError(`a template joins too many values. ${again}`);
    keys = keys.flatMap((key) => values.map((value) => (n ? key + JOINT + value : value)));
  });
  return keys;
}

const asList = (value) => (Array.isArray(value) ? value : [value]);

/** Reads texts, and sums the weights of their features by table; sums of single words are kept by word. */
class Features {
  constructor(content, nTags) {
    this.columns = texts(content.columns, "columns");
    this.wordColumn = this.columns.indexOf("orth");
    if (this.wordColumn < 0) throw new LiteError(`it has no column of words. ${again}`);
    this.phrases = new Map(Object.entries(content.gazetteers).map(([name, phrases]) => [name, new Phrases(phrases)]));
    this.getters = makeGetters(content);
    const ofTexts = new Set([...this.columns, ...[...this.phrases.keys()].map((name) => `in:${name}`)]);
    ofTexts.delete("orth");
    this.reach = 0; // distance of the farthest token that a template reads
    this.tables = new Map();
    let nSums = 0;
    for (const [name, tableContent] of Object.entries(content.tables)) {
      const table = new Table(tableContent, name === "transitions" ? nTags ** 2 : nTags);
      const isOfSpans = name === "spans";
      // Templates that read one word have sums that are kept by word and offset; the others are read at each token
      const ofWords = [];
      const others = [];
      for (const template of table.templates) {
        const attributes = template.parts.map((part) => part.at(-2)).filter((attribute) => attribute !== "");
        const offsets = new Set(template.parts.map((part) => part.at(-1)));
        this.checkTemplate(template, attributes, offsets, ofTexts);
        this.reach = Math.max(this.reach, ...[...offsets].map(Math.abs));
        const readsText = attributes.some((attribute) => ofTexts.has(attribute));
        const isOfWord = offsets.size === 1 && !readsText && !isOfSpans && name !== "transitions";
        if (!isOfWord && !isOfSpans && attributes.some((attribute) => NGRAM_GETTERS.has(attribute))) {
          throw new LiteError(`the template '${template.name}' joins n-grams. ${again}`);
        }
        (isOfWord ? ofWords : others).push(template);
      }
      const offsets = [...new Set(ofWords.map((template) => template.parts[0].at(-1)))].sort((a, b) => a - b);
      nSums += offsets.length * table.width;
      this.tables.set(name, { table, ofWords, others, offsets });
    }
    this.mostWords = Math.max(1000, MOST_BYTES / Math.max(8, 8 * nSums));
    this.outside = this.makePadding(content.padding);
    this.start();
  }

  checkTemplate({ name, parts }, attributes, offsets, ofTexts) {
    const areFar = [...offsets].some((offset) => !Number.isInteger(offset) || Math.abs(offset) > FARTHEST);
    if (!parts.length || areFar) throw new LiteError(`the template '${name}' reads tokens at ${[...offsets]}. Copy the file again.`);
    const unknown = attributes.find((attribute) => !this.getters.has(attribute) && !ofTexts.has(attribute));
    if (unknown === undefined) return;
    throw new LiteError(`the template '${name}' reads '${unknown}', which this lite.js does not know. Take a newer one.`);
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
        const start = offsets.indexOf(parts[0].at(-1)) * table.width;
        for (const key of joined(parts.map((part) => asList(this.valueOf(word, part.at(-2)))))) {
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
    const lists = template.parts.map(([attribute]) => this.valuesAt(text, attribute));
    return text.words.map((_, t) => {
      const values = template.parts.map(([, offset], part) => lists[part][this.reach + t + offset]);
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
  spanReader([kind, attribute, offset], text) {
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

// ----------------------------------------------------------------------------------------------------- labellings

/** log(exp(a) + exp(b)). */
function addLogs(a, b) {
  if (a === b) return a + Math.LN2;
  return Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));
}

/** log of the sum of exp(values); minus infinity if all are. */
function logSum(values) {
  const top = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (top === -Infinity) return top;
  let sum = 0;
  for (const value of values) sum += Math.exp(value - top);
  return Math.log(sum) + top;
}

/** The states of labellings, of which several may belong to one tag where rules have a memory. */
class States {
  /**
   * content: The part of the export.
   * labelOf: The label of each tag, -1 for none.
   * continues: Function that says whether a tag continues the span of the tag before it.
   */
  constructor(content, labelOf, continues) {
    this.tagOf = numbers(content.tag_of, "tag_of", { least: 0, below: labelOf.length, whole: true }); // [S]
    const length = this.tagOf.length;
    this.size = length;
    const source = numbers(content.source, "source", { least: 0, below: length, whole: true });
    const target = numbers(content.target, "target", { length: source.length, least: 0, below: length, whole: true });
    const scores = numbers(content.scores, "scores", { length: source.length });
    this.first = numbers(content.first, "first", { length });
    this.last = numbers(content.last, "last", { length });
    this.labelOf = Array.from(this.tagOf, (tag) => labelOf[tag]);
    this.arcs = Array.from(source, (from, n) => ({ from, to: target[n], score: scores[n] }));
    this.continues = (from, to) => continues(this.tagOf[from], this.tagOf[to]);
    this.choice = null;
    this.asks = null;
    if (content.choice !== undefined) {
      const nLabels = Math.max(-1, ...labelOf) + 1;
      this.choice = new States(content.choice, Array.from({ length: nLabels + 1 }, (_, n) => n - 1), () => false);
      // Whether rules may ask for spans that are less probable than `min_prob`; null without rules
      this.choice.asks = content.choice.asks ?? null;
    }
    // Whether segments that begin or end with white space, and others, may be in a state: two lists [S]
    this.may = content.may === undefined ? null : listed(content.may, "may").map((row) => numbers(row, "may", { length, least: 0 }));
    this.blank = content.blank === undefined ? null : new States(content.blank, labelOf, continues);
    if (this.blank) this.blank.choice = this.choice;
    this.steps = new Steps(this, this.arcs);
  }

  /** Steps that continue spans, and all others. */
  get stepsOfSpans() {
    const isInside = ({ from, to }) => this.continues(from, to);
    this.inside ??= new Steps(this, this.arcs.filter(isInside));
    this.around ??= new Steps(this, this.arcs.filter((arc) => !isInside(arc)));
    return { inside: this.inside, around: this.around };
  }
}

/** Steps from one state to the next. */
class Steps {
  constructor(states, arcs) {
    this.size = states.size;
    this.tagOf = states.tagOf;
    this.shift = arcs.reduce((top, { score }) => Math.max(top, score), 0);
    this.into = this.sorted(arcs, "to", "from");
    this.outOf = this.sorted(arcs, "from", "to");
  }

  /** The steps of each state, in the order of the states at their other ends. Those of state s are from starts[s] to starts[s + 1]. */
  sorted(arcs, end, other) {
    const order = [...arcs].sort((a, b) => a[end] - b[end] || a[other] - b[other]);
    const starts = new Int32Array(this.size + 1);
    for (const arc of order) starts[arc[end] + 1] += 1;
    for (let state = 0; state < this.size; state++) starts[state + 1] += starts[state];
    const scores = Float64Array.from(order, ({ score }) => score);
    return {
      starts,
      others: Int32Array.from(order, (arc) => arc[other]),
      scores,
      exps: scores.map((score) => Math.exp(score - this.shift)),
    };
  }

  /** The scores of the steps `into` or `outOf` states at a token, where features weigh pairs of tags: [C] of the token. */
  scoresAt(side, pairs) {
    if (!pairs) return side.scores;
    const nTags = Math.sqrt(pairs.length);
    const scores = Float64Array.from(side.scores);
    for (let state = 0; state < this.size; state++) {
      for (let n = side.starts[state]; n < side.starts[state + 1]; n++) {
        const tag = this.tagOf[state];
        const other = this.tagOf[side.others[n]];
        scores[n] += side === this.into ? pairs[other * nTags + tag] : pairs[tag * nTags + other];
      }
    }
    return scores;
  }

  /** The best score of coming into each state, and the state before it; of equal ones the lowest. */
  best(scores, pairs) {
    const { starts, others } = this.into;
    const steps = this.scoresAt(this.into, pairs);
    const best = new Float64Array(this.size).fill(-Infinity);
    const from = new Int32Array(this.size);
    for (let state = 0; state < this.size; state++) {
      for (let n = starts[state]; n < starts[state + 1]; n++) {
        const score = scores[others[n]] + steps[n];
        if (score > best[state]) {
          best[state] = score;
          from[state] = others[n];
        }
      }
    }
    return { best, from };
  }

  /** log sum_i exp(scores[i] + step[i, j]) over the steps into each state j; with `isBack` over the steps out of it. */
  logSums(scores, pairs, isBack = false) {
    const side = isBack ? this.outOf : this.into;
    const { starts, others, exps } = side;
    const top = scores.reduce((a, b) => Math.max(a, b), LEAST_NUMBER);
    const shifted = scores.map((score) => Math.exp(score - top));
    const steps = this.scoresAt(side, pairs);
    const sums = new Float64Array(this.size);
    for (let state = 0; state < this.size; state++) {
      let sum = 0;
      if (!pairs) for (let n = starts[state]; n < starts[state + 1]; n++) sum += shifted[others[n]] * exps[n];
      if (sum > 0) {
        sums[state] = Math.log(sum) + top + this.shift;
      } else {
        // Features weigh pairs, no state is reached, or the numbers are too small
        const ways = steps.subarray(starts[state], starts[state + 1]).map((step, n) => step + scores[others[starts[state] + n]]);
        sums[state] = logSum(ways);
      }
    }
    return sums;
  }
}

/** Labellings of a text by segments: O, one token long, and spans, by the scores of length and tag [T, K, C]. */
class Segments {
  constructor({ states, scores, nTokens, longest, nTags, pairs = null, blank = [] }) {
    this.states = states;
    this.nTokens = nTokens;
    this.longest = longest;
    this.size = states.size;
    this.pairs = pairs;
    this.scores = new Float64Array(nTokens * longest * this.size).fill(-Infinity); // [T, K, S]
    for (let t = 0; t < nTokens; t++) {
      for (let k = 0; k < longest && t + k < nTokens; k++) {
        const may = states.may && states.may[blank[t] || blank[t + k] ? 0 : 1];
        for (let state = 0; state < this.size; state++) {
          if (may && !may[state]) continue;
          this.scores[(t * longest + k) * this.size + state] = scores[(t * longest + k) * nTags + states.tagOf[state]];
        }
      }
    }
  }

  /** The scores of the segments of k + 1 tokens from token t on: [S]. */
  scoresOf(t, k) {
    return this.scores.subarray((t * this.longest + k) * this.size, (t * this.longest + k + 1) * this.size);
  }

  /** The weights of pairs of tags at a token: [C], or null. */
  pairsAt(t) {
    const width = this.pairs ? this.pairs.length / this.nTokens : 0;
    return this.pairs && this.pairs.subarray(t * width, (t + 1) * width);
  }

  /** The best labelling: its `score` and its `segments`, in order. Of equal ones the lower state, then the shorter segment. */
  best() {
    const { size, nTokens } = this;
    if (!nTokens) return { score: 0, segments: [] };
    const enters = [this.states.first];
    const ends = [];
    const from = [null];
    const lengths = [];
    for (let t = 0; t < nTokens; t++) {
      if (t) {
        const step = this.states.steps.best(ends[t - 1], this.pairsAt(t));
        enters.push(step.best);
        from.push(step.from);
      }
      ends.push(new Float64Array(size).fill(-Infinity));
      lengths.push(new Int32Array(size).fill(1));
      for (let k = 0; k < this.longest && k <= t; k++) {
        const before = enters[t - k];
        const scores = this.scoresOf(t - k, k);
        for (let state = 0; state < size; state++) {
          const score = before[state] + scores[state];
          if (score <= ends[t][state]) continue;
          ends[t][state] = score;
          lengths[t][state] = k + 1;
        }
      }
    }
    const final = ends[nTokens - 1].map((score, s) => score + this.states.last[s]);
    const score = final.reduce((a, b) => Math.max(a, b), -Infinity);
    const segments = [];
    if (score === -Infinity) return { score, segments };
    let state = final.indexOf(score);
    for (let end = nTokens; end > 0; ) {
      const begin = end - lengths[end - 1][state];
      segments.unshift({ begin, end, state });
      state = begin ? from[begin][state] : 0;
      end = begin;
    }
    return { score, segments };
  }

  /**
   * Log sums by token and state: `before` a segment that begins at a token; of all up to a segment that `ends` with it; of all from
   * a segment on that `begins` there; `behind` a segment that ends there; and `logZ` of the text.
   */
  get sums() {
    if (this.keptSums) return this.keptSums;
    const { nTokens, longest, size } = this;
    const { first, last, steps } = this.states;
    const before = [];
    const ends = [];
    for (let t = 0; t < nTokens; t++) {
      before.push(t ? steps.logSums(ends[t - 1], this.pairsAt(t)) : first);
      const sums = before[t].map((score, s) => score + this.scoresOf(t, 0)[s]);
      for (let k = 1; k < longest && k <= t; k++) {
        const scores = this.scoresOf(t - k, k);
        for (let s = 0; s < size; s++) sums[s] = addLogs(sums[s], before[t - k][s] + scores[s]);
      }
      ends.push(sums);
    }
    const begins = Array(nTokens);
    const behind = Array(nTokens);
    for (let t = nTokens - 1; t >= 0; t--) {
      behind[t] = t + 1 < nTokens ? steps.logSums(begins[t + 1], this.pairsAt(t + 1), true) : last;
      const sums = behind[t].map((score, s) => score + this.scoresOf(t, 0)[s]);
      for (let k = 1; k < longest && t + k < nTokens; k++) {
        const scores = this.scoresOf(t, k);
        for (let s = 0; s < size; s++) sums[s] = addLogs(sums[s], behind[t + k][s] + scores[s]);
      }
      begins[t] = sums;
    }
    const logZ = nTokens ? logSum(begins[0].map((score, s) => score + first[s])) : 0;
    this.keptSums = { before, ends, begins, behind, logZ };
    return this.keptSums;
  }

  /** The tags of the tokens of segments, in BIO. */
  tags(segments) {
    return segments.flatMap(({ begin, end, state }) => {
      const inside = 2 * this.states.tagOf[state]; // tags are O, B-0, I-0, B-1, I-1 …
      const tags = Array(end - begin).fill(inside);
      if (inside) tags[0] -= 1;
      return tags;
    });
  }

  /** The spans that segments make. */
  spans(segments) {
    const spans = segments.map(({ begin, end, state }) => ({ begin, end, label: this.states.labelOf[state] }));
    return spans.filter(({ label }) => label >= 0);
  }

  /** All spans whose probability is at least `least`. */
  likely(least) {
    const nLabels = Math.max(-1, ...this.states.labelOf) + 1;
    const spans = [];
    for (let begin = 0; begin < this.nTokens; begin++) {
      for (let k = 0; k < this.longest && begin + k < this.nTokens; k++) {
        const probs = new Float64Array(nLabels);
        this.addProbabilities(begin, k, probs);
        probs.forEach((prob, label) => {
          if (prob >= least) spans.push({ begin, end: begin + k + 1, label, prob: Math.min(prob, 1) });
        });
      }
    }
    return spans;
  }

  /** Add the probabilities of the spans of k + 1 tokens from `begin` on to those of their labels. */
  addProbabilities(begin, k, probs) {
    // p[t, k, label] = sum over the label's states s of exp(before[t, s] + scores[t, k, s] + behind[t + k, s] - log Z)
    const { before, behind, logZ } = this.sums;
    const scores = this.scoresOf(begin, k);
    this.states.labelOf.forEach((label, s) => {
      if (label >= 0) probs[label] += Math.exp(before[begin][s] - logZ + scores[s] + behind[begin + k][s]);
    });
  }

  /** Spans with their probabilities. */
  weighed(spans) {
    return spans.map((span) => {
      const probs = new Float64Array(Math.max(-1, ...this.states.labelOf) + 1);
      this.addProbabilities(span.begin, span.end - span.begin - 1, probs);
      return { ...span, prob: Math.min(probs[span.label], 1) };
    });
  }
}

/** Labellings by segments of one token, whose spans are runs of tags. */
class Chain extends Segments {
  tags(segments) {
    return segments.map(({ state }) => this.states.tagOf[state]);
  }

  spans(segments) {
    const spans = [];
    segments.forEach(({ state }, t) => {
      const label = this.states.labelOf[state];
      const isContinued = t > 0 && this.states.continues(segments[t - 1].state, state);
      if (label < 0) return;
      if (isContinued) spans.at(-1).end = t + 1;
      else spans.push({ begin: t, end: t + 1, label });
    });
    return spans;
  }

  likely(least) {
    const { ends, behind, logZ } = this.sums;
    const nLabels = Math.max(-1, ...this.states.labelOf) + 1;
    const spans = [];
    for (let begin = 0; begin < this.nTokens; begin++) {
      const probs = new Float64Array(nLabels);
      this.states.labelOf.forEach((label, s) => {
        if (label >= 0) probs[label] += Math.exp(ends[begin][s] + behind[begin][s] - logZ);
      });
      probs.forEach((prob, label) => {
        if (prob >= least) spans.push(...this.extended({ begin, end: this.nTokens, label }, least));
      });
    }
    return spans;
  }

  weighed(spans) {
    return spans.flatMap((span) => this.extended(span));
  }

  /** A span with its probability; with `least`, all so probable spans that begin with it and are not longer. */
  extended({ begin, end, label }, least) {
    const { ends, begins, behind, logZ } = this.sums;
    const { first, last, labelOf, stepsOfSpans } = this.states;
    const { inside, around } = stepsOfSpans;
    // Log sums of what comes before the span, and, as it is extended by a token at a time, of it with that
    const opening = begin ? around.logSums(ends[begin - 1], this.pairsAt(begin)) : first;
    const emissions = this.scoresOf(begin, 0);
    let scores = opening.map((score, s) => (labelOf[s] === label ? score + emissions[s] : -Infinity));
    const spans = [];
    this.closing ??= [];
    for (let t = begin; t < end; t++) {
      if (t + 1 < this.nTokens) this.closing[t] ??= around.logSums(begins[t + 1], this.pairsAt(t + 1), true);
      else this.closing[t] = last;
      const closing = this.closing[t];
      const prob = Math.exp(logSum(scores.map((score, s) => score + closing[s])) - logZ);
      const isWanted = least === undefined ? t + 1 === end : prob >= least;
      if (isWanted) spans.push({ begin, end: t + 1, label, prob: Math.min(prob, 1) });
      if (t + 1 === end) break;
      // A longer span is at most as probable as all continuations of this one
      const all = Math.exp(logSum(scores.map((score, s) => score + behind[t][s])) - logZ);
      if (least !== undefined && all - prob < least) break;
      const next = this.scoresOf(t + 1, 0);
      scores = inside.logSums(scores, this.pairsAt(t + 1)).map((score, s) => score + next[s]);
    }
    return spans;
  }
}

// ----------------------------------------------------------------------------------------------------- components

/** A trained component. Its texts are lists of words, or of rows of columns. */
class Component {
  constructor(content) {
    this.name = String(content.name);
    this.kind = content.kind; // "chain", "segments" or "text"
    this.writes = String(content.writes);
    this.labels = texts(content.labels, "labels");
    this.scheme = content.scheme;
    const letters = Array.from(content.letters);
    const nLabels = this.labels.length;
    this.hasSpans = this.scheme !== null;
    if (this.hasSpans && !Object.hasOwn(SPELLINGS, this.scheme)) throw new LiteError(`there is no scheme '${this.scheme}'. ${again}`);
    this.tags = this.labels;
    if (this.hasSpans) this.tags = ["O", ...this.labels.flatMap((label) => letters.map((letter) => `${letter}-${label}`))];
    let labelOf = this.tags.map((_, tag) => (this.hasSpans ? Math.floor((tag - 1) / letters.length) : tag));
    const letterOf = (tag) => (this.hasSpans ? this.tags[tag][0] : "U");
    let continues = (before, tag) =>
      labelOf[before] === labelOf[tag] && !"OLU".includes(letterOf(before)) && !"OBU".includes(letterOf(tag));
    if (this.kind === "segments") {
      // A state is O or a label, and no segment continues another one
      labelOf = Array.from({ length: nLabels + 1 }, (_, n) => n - 1);
      continues = () => false;
    }
    this.states = new States(content.states, labelOf, continues);
    this.withoutRules = content.without_rules === undefined ? null : new States(content.without_rules, labelOf, continues);
    this.nTags = labelOf.length;
    this.readers = listed(content.readers, "readers").map((reader) => new Features({ ...content, ...reader }, this.nTags));
    if (!this.readers.length) throw new LiteError("it has no features. Copy the file again.");
    this.columns = this.readers[0].columns;
    const lengths = this.kind === "segments" ? listed(content.lengths, "lengths") : [Array(this.nTags).fill(0)];
    this.lengths = lengths.map((row) => numbers(row, "lengths", { length: this.nTags })); // [K][C]
    this.least = numbers(content.min_prob ?? Array(nLabels).fill(0), "min_prob", { length: nLabels, least: 0 });
  }

  /** The probability of each label of a text, the most probable first. */
  classify(rows) {
    const [reader] = this.readers;
    const scores = reader.scores("states", reader.read(rows));
    const totals = Float64Array.from(this.states.first);
    scores.forEach((score, n) => (totals[n % this.nTags] += score));
    const total = logSum(totals);
    const probs = this.labels.map((label, n) => [label, Math.exp(totals[n] - total)]);
    return Object.fromEntries(probs.sort((a, b) => b[1] - a[1]));
  }

  /** The most probable tags of a text, and its spans {begin, end, label, prob}, in tokens. */
  label(rows) {
    return this.labelled(this.labellings(rows, this.states), rows, true);
  }

  /** The labellings of a text: `Segments`, or a `Chain`. */
  labellings(rows, states) {
    const nTags = this.nTags;
    const nTokens = rows.length;
    const longest = Math.max(1, Math.min(this.lengths.length, nTokens));
    const scores = new Float64Array(nTokens * longest * nTags);
    const none = new Float64Array(nTokens * nTags);
    const totals = { states: none, begins: none, ends: none, tokens: none };
    let pairs = null;
    let words = [];
    for (const reader of this.readers) {
      const text = reader.read(rows);
      words = text.words;
      for (const name of reader.tables.keys()) {
        if (name in totals) totals[name] = reader.scores(name, text);
        if (name === "transitions") pairs = reader.scores(name, text);
      }
      reader.addSpans(text, scores, longest);
    }
    // The scores of segments of k + 1 tokens, by their first token; `inside` is the sum over their tokens
    const inside = new Float64Array(nTokens * nTags);
    for (let k = 0; k < longest; k++) {
      for (let t = 0; t + k < nTokens; t++) {
        for (let tag = 0; tag < nTags; tag++) {
          const first = t * nTags + tag;
          const last = (t + k) * nTags + tag;
          inside[first] += totals.states[last] + totals.tokens[last];
          const segment = inside[first] + totals.begins[first] + totals.ends[last] + this.lengths[k][tag];
          scores[(t * longest + k) * nTags + tag] += segment;
        }
      }
    }
    // In texts with white space, spans may not begin or end at it
    const blank = words.map((word) => isAll(word, SPACE));
    const fitting = states.blank && blank.includes(true) ? states.blank : states;
    const Kind = this.kind === "segments" ? Segments : Chain;
    return new Kind({ states: fitting, scores, nTokens, longest, nTags, pairs, blank });
  }

  /** The labellings of a text that keep all rules; all its labellings if none does. */
  possible(rows) {
    for (const states of [this.states, this.withoutRules]) {
      const labellings = states && this.labellings(rows, states);
      if (labellings && labellings.sums.logZ > -Infinity) return labellings;
    }
    throw new LiteError(`A text has no labelling with a finite score. ${again}`);
  }

  /**
   * Tags and spans of a text.
   *
   * isBySpans: Whether to choose the spans by their probabilities, if the component does. If not, all spans of the most probable
   *   labelling stay: less would break a rule.
   */
  labelled(labellings, rows, isBySpans) {
    const outside = this.hasSpans ? "O" : "";
    const choice = isBySpans ? labellings.states.choice : null;
    const isCut = !labellings.states.choice || labellings.states.choice.asks === null;
    const best = choice ? null : labellings.best();
    const score = choice ? labellings.sums.logZ : best.score;
    if (!(score > -Infinity)) return this.labelled(this.possible(rows), rows, isBySpans); // no labelling keeps the rules
    let tags;
    let spans;
    if (choice) {
      tags = Array(rows.length).fill(outside);
      spans = this.chosen(labellings, choice);
      // No set of listed spans keeps the rules
      if (spans.some(({ prob }) => prob === 0)) return this.labelled(this.labellings(rows, this.states), rows, false);
    } else {
      tags = labellings.tags(best.segments).map((tag) => this.tags[tag]);
      spans = labellings.weighed(labellings.spans(best.segments));
    }
    const kept = [];
    for (const { begin, end, label, prob } of spans) {
      const name = this.labels[label];
      const isLikely = !isCut || prob >= this.least[label];
      let spelled = Array(end - begin).fill(isLikely ? name : outside);
      if (isLikely && this.hasSpans) {
        const isBehindSame = this.scheme === "IOB1" && (tags[Math.max(0, begin - 1)] ?? "").slice(2) === name;
        spelled = spell(isBehindSame ? "BIO" : this.scheme, name, end - begin);
      }
      if (choice || !isLikely) tags.splice(begin, end - begin, ...spelled);
      if (isLikely) kept.push({ begin, end, label: name, prob });
    }
    return { tags, spans: kept };
  }

  /** The spans, no two of which overlap, whose probabilities exceed their prices by most in total. Those that are not listed, which
   * rules have asked for, have the probability 0. */
  chosen(labellings, choice) {
    // Spans of probability 0 are never worth their price, and certain spans always are
    const prices = this.least.map((least) => Math.min(Math.max(least, 1e-3), 1 - 1e-6));
    const listedSpans = labellings.likely(choice.asks ? 1e-3 : prices.reduce((a, b) => Math.min(a, b), 1));
    const longest = listedSpans.reduce((most, { begin, end }) => Math.max(most, end - begin), 1);
    const nTags = 1 + this.labels.length;
    const { nTokens } = labellings;
    // A span that is just probable enough is taken; one that is not listed, only if no other set keeps the rules
    const worth = new Float64Array(nTokens * longest * nTags).fill(-1e6);
    const probs = new Map();
    for (let t = 0; t < nTokens; t++) {
      for (let k = 0; k < longest; k++) worth[(t * longest + k) * nTags] = k ? -Infinity : 0;
    }
    for (const { begin, end, label, prob } of listedSpans) {
      const place = (begin * longest + end - begin - 1) * nTags + 1 + label;
      probs.set(place, prob);
      if (prob > 0) worth[place] = prob - prices[label] + 1e-9;
    }
    const sets = new Segments({ states: choice, scores: worth, nTokens, longest, nTags });
    return sets.spans(sets.best().segments).map((span) => {
      const place = (span.begin * longest + span.end - span.begin - 1) * nTags + 1 + span.label;
      return { ...span, prob: probs.get(place) ?? 0 };
    });
  }
}

// --------------------------------------------------------------------------------------------------------- parser

/** Make a parser of the content of an export. Throws LiteError for content of another form. */
export function makeParser(content) {
  try {
    return parserOf(content);
  } catch (error) {
    if (error instanceof LiteError) throw error;
    throw new LiteError(`this is cut off or no export (${error}). Copy it again, or export it again.`);
  }
}

function parserOf(content) {
  if (content?.format !== FORMAT) throw new LiteError("this is no export of spacy_crf. `spacy crf export MODEL FILE --to json` writes one.");
  if (content.version !== VERSION) {
    throw new LiteError(`it has version ${content.version} of the format, and this lite.js reads version ${VERSION}. Export the model again.`);
  }
  const components = listed(content.components, "components").map((component) => {
    if (!["chain", "segments", "text"].includes(component.kind)) {
      throw new LiteError(`this lite.js does not know components of the kind '${component.kind}'. Take a newer one.`);
    }
    return new Component(component);
  });
  const parse = () => {
    throw new LiteError("this export has no tokenizer. Take parse.words(words).");
  };
  parse.components = new Map(components.map((component) => [component.name, component]));
  parse.words = (rows) => answer(components, rows);
  return parse;
}

/** What all components find in a text, which is a list of words or of rows. */
function answer(components, rows) {
  const found = { entities: [], cats: {}, tags: {} };
  for (const component of components) {
    if (component.kind === "text") {
      Object.assign(found.cats, component.classify(rows));
      continue;
    }
    const { tags, spans } = component.label(rows);
    found.entities.push(...spans);
    found.tags[component.writes] = tags;
  }
  return found;
}

/**
 * Load an export and make its parser.
 *
 * source: The address of a JSON file, gzipped or not; or its text, its bytes, or the object that it has.
 */
export async function load(source) {
  let content = source;
  if (source instanceof URL || (typeof source === "string" && !source.trimStart().startsWith("{"))) {
    const response = await fetch(source);
    if (!response.ok) throw new LiteError(`${source} can't be read: ${response.status} ${response.statusText}`);
    content = await response.arrayBuffer();
  }
  if (content instanceof ArrayBuffer || ArrayBuffer.isView(content)) content = await unzipped(new Uint8Array(content));
  if (typeof content !== "string") return makeParser(content);
  try {
    content = JSON.parse(content);
  } catch (error) {
    throw new LiteError(`this is cut off or no export (${error}). Copy it again, or export it again.`);
  }
  return makeParser(content);
}

/** The text of a file that may be gzipped. */
async function unzipped(bytes) {
  const isGzipped = bytes[0] === 0x1f && bytes[1] === 0x8b;
  if (!isGzipped) return new TextDecoder().decode(bytes);
  try {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  } catch (error) {
    throw new LiteError(`this is cut off or no export (${error}). Copy it again, or export it again.`);
  }
}
