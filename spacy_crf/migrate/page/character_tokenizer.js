// Cuts texts into tokens as the trained tokenizer of spacy_crf does, by a chain over the units that may begin a word.
import { SPACE, everyIs, pointsOf } from "./characters.js";
import { EXPORT_AGAIN, LEAST_NUMBER, LiteError, listed, numbers, texts } from "./content.js";
import { FIRST_HASH, Hashes, mixed } from "./hashing.js";

// Kinds of code points; WORD is a letter, mark or digit
const SPACE_KIND = 0;
const WORD_KIND = 1;
const OTHER_KIND = 2;
// The grapheme clusters of Unicode Standard Annex 29 in the letters of break properties, see docs/lite_format.md
const CLUSTER = new RegExp(
  "sn|[snq]" +
    "|(?:p*(?:rr?|y(?:[wix]*zy)*|l+(?:[vo]v*t*|ct*)?|[vo]v*t*|ct*|t+|[ij](?:[xz]*k)?|[^snqp])|p+)" +
    "(?:[mwxz]|i(?:[xz]*k)?)*",
  "g",
);
// What stands before a run of characters: another run, white space with no line end, one, or more; or the beginning of the text
const TOUCHES = 1;
const SPACE_BEFORE = 2;
const PARAGRAPH_BEFORE = 4;
const LONGEST_SHAPE = 6; // changes of class in the shape of a run
const RULE_START = 1 << 16; // added to the class of a character where a token of a language's rules begins
const MOST_CODES = 2 ** 31;

/** Rows of numbers as one array, and their width. */
function table(rows, what) {
  const width = listed(rows, what).length ? listed(rows[0], what).length : 0;
  return { width, values: rows.map((row) => numbers(row, what, { length: width, least: LEAST_NUMBER })) };
}

/** Cuts a text by a trained chain over the units that may begin a word: grapheme clusters, or runs of letters. */
export class CharacterTokenizer {
  /** compile: Function that compiles a pattern of the export; rules: The tokenizer of the language's rules, or null. */
  constructor(content, compile, rules) {
    const { starts, breaks, kinds, classes } = content.code_points;
    this.runStarts = numbers(starts, "code_points", { least: 0, whole: true });
    const ofRuns = { length: starts.length, least: 0, below: MOST_CODES, whole: true };
    this.kinds = numbers(kinds, "kinds", ofRuns);
    this.classes = numbers(classes, "classes", ofRuns);
    this.breaks = Array.from(breaks);
    this.tags = table(content.tags, "tags").values; // [C][S]
    this.transitions = table(content.transitions, "transitions").values; // [S][S]
    this.nTags = this.transitions.length;
    const sizes = [content.longest_ngram, content.window];
    [this.longestNgram, this.window] = numbers(sizes, "window", { least: 1, below: 100, whole: true });
    this.keys = new Hashes(texts(content.keys, "keys"));
    const { values, width } = table(content.weights, "weights"); // [R][C]
    this.weights = values;
    this.rows = numbers(content.rows, "rows", { length: content.keys.length, least: 0, below: values.length + 1, whole: true });
    this.beginnings = new Hashes(texts(content.lexicon.keys, "lexicon"));
    this.lengths = numbers(content.lexicon.lengths, "lexicon", { length: content.lexicon.keys.length, least: 0 });
    this.lexiconWeights = table(content.lexicon.weights, "lexicon").values; // [3 * longest][C]
    this.width = this.tags.length; // C
    const hasTags = this.nTags > 1 && [...this.tags, ...this.transitions].every((row) => row.length === this.nTags);
    const hasColumns = values.length === 0 || width === this.width;
    if (!hasTags || !hasColumns) throw new LiteError(`its tokenizer is damaged. ${EXPORT_AGAIN}`);
    this.hasSentences = this.nTags > 2;
    this.joinsWords = content.joins_words === true;
    this.hasBlanks = content.has_blanks === true;
    const patterns = content.patterns_js;
    const sources = new Set(patterns.user_words.map(({ source }) => source));
    this.alwaysSplit = patterns.always_split.map(compile);
    // Words of users may also begin and end where they stand
    this.neverSplit = [...patterns.never_split, ...patterns.user_words].map((pattern) => {
      return { pattern: compile(pattern), isUsers: sources.has(pattern.source) };
    });
    this.cutsLetters = this.alwaysSplit.length > 0 || patterns.user_words.length > 0;
    this.rulesOfLanguage = rules;
  }

  /** The tokens of a text, {text, start}; and whether a sentence begins with each, if the tokenizer finds sentences. */
  cut(text) {
    const points = pointsOf(text);
    const runs = points.map((point) => this.runOf(point));
    const characters = {
      points,
      kinds: runs.map((run) => this.kinds[run]),
      classes: runs.map((run) => this.classes[run]),
      codeUnits: codeUnitsOf(points),
    };
    const units = this.findUnits(runs.map((run) => this.breaks[run]).join(""), characters.kinds);
    if (!units.length) {
      const tokens = text ? [{ text, start: 0 }] : [];
      return { tokens, sentences: this.hasSentences ? tokens.map(() => true) : null };
    }
    const sums = this.sums(text, characters);
    const possible = this.possible(text, units, characters.codeUnits);
    const emissions = units.map(({ start }, n) => {
      const scores = possible[n].map((is) => (is ? 0 : -Infinity));
      sums[start].forEach((sum, column) => this.tags[column].forEach((weight, tag) => (scores[tag] += sum * weight)));
      return scores;
    });
    return this.words(text, units, bestPath(emissions, this.transitions), characters.codeUnits);
  }

  /** The run of code points that has a code point. */
  runOf(point) {
    let begin = 0;
    let end = this.runStarts.length;
    while (begin < end) {
      const middle = (begin + end) >>> 1;
      if (this.runStarts[middle] <= point) begin = middle + 1;
      else end = middle;
    }
    return begin - 1;
  }

  /** The units of a text: {start, end} in characters; `isBehindBlank`; `continuesWord`, a run of letters, marks and digits. */
  findUnits(breaks, kinds) {
    const units = [];
    let before = SPACE_KIND;
    for (const { 0: cluster, index: start } of breaks.matchAll(CLUSTER)) {
      const end = start + cluster.length;
      // White space with a mark has to stay visible
      const isMarked = kinds[start] === SPACE_KIND && end > start + 1 && kinds[start + 1] !== SPACE_KIND;
      const kind = isMarked ? OTHER_KIND : kinds[start];
      const continuesWord = kind === WORD_KIND && before === WORD_KIND;
      const isJoined = this.joinsWords && !this.cutsLetters && continuesWord;
      if (kind !== SPACE_KIND && !isJoined) units.push({ start, end, isBehindBlank: before === SPACE_KIND, continuesWord });
      else if (kind !== SPACE_KIND) units.at(-1).end = end;
      before = kind;
    }
    return units;
  }

  /** Sums of the weights of features at each character: [N][C]. */
  sums(text, { points, kinds, classes, codeUnits }) {
    const { starts, runs, shapes } = findRuns(points, kinds, classes);
    const everyPlace = points.map((_, place) => place);
    const items = [{ places: everyPlace, codes: points.map(asCode) }];
    const shapesOfRuns = [{ places: starts, codes: runs }, { places: starts, codes: shapes }];
    const classesAndRules = [...classes];
    if (this.rulesOfLanguage) {
      const pointAt = new Map(codeUnits.map((unit, place) => [unit, place]));
      const tokens = this.rulesOfLanguage.cut(text).tokens.map(({ text: word, start }) => {
        return { start: pointAt.get(start), end: pointAt.get(start + word.length) };
      });
      const visible = tokens.filter(({ start }) => kinds[start] !== SPACE_KIND);
      for (const { start } of visible) classesAndRules[start] += RULE_START;
      const codes = visible.map(({ start, end }) => points.slice(start, end).map(asCode).reduce(mixed, FIRST_HASH));
      shapesOfRuns.push({ places: visible.map(({ start }) => start), codes });
    }
    items.push({ places: everyPlace, codes: classesAndRules.map(asCode) }, ...shapesOfRuns);
    const sums = this.lexiconSums(points.map(asCode));
    items.forEach(({ places, codes }, number) => {
      const added = this.ngramSums(codes, [(number + 1) << 8, 0]);
      places.forEach((place, n) => addTo(sums[place], added[n]));
    });
    return sums;
  }

  /** Sums of the weights of n-grams of items (`codes`) at the boundary before each item: [M][C]. */
  ngramSums(codes, seed) {
    // With places before and behind the text
    const sums = Array.from({ length: codes.length + 2 * this.window }, () => new Float64Array(this.width));
    const hashes = codes.map(() => seed);
    for (let n = 1; n <= Math.min(this.longestNgram, codes.length); n++) {
      for (let first = 0; first + n <= codes.length; first++) {
        hashes[first] = mixed(hashes[first], codes[first + n - 1]);
        const [high, low] = hashes[first];
        const feature = this.keys.find([high, high || low ? low : 1]);
        if (feature < 0) continue;
        // The rows of a feature are those of the boundaries that have it in their windows, from left to right
        for (let k = 0; k <= 2 * this.window - n; k++) {
          const weights = this.weights[this.rows[feature] + k];
          if (weights) addTo(sums[first + n + k], weights);
        }
      }
    }
    return sums.slice(this.window, this.window + codes.length);
  }

  /** Sums of the weights of places where words of the lexicon begin, have ended and go on, by their length: [N][C]. */
  lexiconSums(codes) {
    const longest = Math.floor(this.lexiconWeights.length / 3);
    const marks = Array.from({ length: codes.length + 1 }, () => new Uint8Array(3 * longest));
    for (let start = 0; start < codes.length; start++) {
      let hash = FIRST_HASH;
      for (let end = start + 1; end <= codes.length; end++) {
        // A beginning of words, one character longer each time
        hash = mixed(hash, codes[end - 1]);
        const row = this.beginnings.find(hash);
        if (row < 0) break;
        if (!this.lengths[row]) continue;
        const column = Math.min(end - start, longest) - 1;
        marks[start][column] = 1;
        marks[end][longest + column] = 1;
        for (let inside = start + 1; inside < end; inside++) marks[inside][2 * longest + column] = 1;
      }
    }
    return codes.map((_, place) => {
      const sums = new Float64Array(this.width);
      marks[place].forEach((mark, column) => mark && addTo(sums, this.lexiconWeights[column]));
      return sums;
    });
  }

  /** The tags that white space and rules leave to the units of a text: [U][S]. */
  possible(text, units, codeUnits) {
    const goesOn = this.nTags - 1; // the tag of units that continue a word
    const possible = units.map(({ isBehindBlank, continuesWord }, n) => {
      const tags = Array(this.nTags).fill(!n || !(this.joinsWords && continuesWord));
      tags[goesOn] = this.hasBlanks || !isBehindBlank;
      return n ? tags : tags.map((_, tag) => tag === 0);
    });
    const starts = units.map(({ start }) => codeUnits[start]);
    // The first unit that begins at a place or behind it
    const unitFrom = (place) => {
      const unit = starts.findIndex((start) => start >= place);
      return unit < 0 ? units.length : unit;
    };
    const letBegin = (begin, end) => {
      for (const place of [begin, end]) {
        const unit = unitFrom(place);
        if (unit === 0 || unit === units.length) continue;
        if (everyIs(text.slice(place, starts[unit]), SPACE)) possible[unit] = possible[unit].map((_, tag) => tag !== goesOn);
      }
    };
    for (const pattern of this.alwaysSplit) {
      for (const { begin, end } of pattern(text)) letBegin(begin, end);
    }
    for (const { pattern, isUsers } of this.neverSplit) {
      for (const { begin, end } of pattern(text)) {
        const behind = unitFrom(end);
        for (let unit = Math.max(1, unitFrom(begin + 1)); unit < behind; unit++) {
          possible[unit] = possible[unit].map((_, tag) => tag === goesOn);
        }
        if (isUsers) letBegin(begin, end);
      }
    }
    return possible;
  }

  /** The tokens of a text whose units have the tags of a path. */
  words(text, units, path, codeUnits) {
    const words = [];
    units.forEach(({ start, end }, n) => {
      if (path[n] < this.nTags - 1) words.push({ start: codeUnits[start], end: codeUnits[end] });
      else words.at(-1).end = codeUnits[end];
    });
    const tokens = [];
    let behind = 0; // the word before
    for (const { start, end } of [...words, { start: text.length, end: text.length }]) {
      // A space behind a word belongs to it, other white space is a token
      const blankStart = behind > 0 && text[behind] === " " ? behind + 1 : behind;
      if (blankStart < start) tokens.push({ text: text.slice(blankStart, start), start: blankStart });
      if (start === end) continue;
      tokens.push({ text: text.slice(start, end), start });
      behind = end;
    }
    if (!this.hasSentences) return { tokens, sentences: null };
    // White space at the beginning belongs to the first sentence
    const sentenceStarts = new Set([0]);
    units.forEach(({ start }, n) => n && path[n] === 0 && sentenceStarts.add(codeUnits[start]));
    return { tokens, sentences: tokens.map(({ start }) => sentenceStarts.has(start)) };
  }
}

const asCode = (number) => [0, number];

function addTo(sums, values) {
  for (let n = 0; n < sums.length; n++) sums[n] += values[n];
}

/** The code unit where each character begins, and the end of the text. */
function codeUnitsOf(points) {
  const codeUnits = [0];
  for (const point of points) codeUnits.push(codeUnits.at(-1) + (point > 0xffff ? 2 : 1));
  return codeUnits;
}

/** The tags with the highest total score; of equal ones the lower tags, from the end. */
function bestPath([first, ...others], transitions) {
  let scores = first;
  const origins = [];
  for (const row of others) {
    const from = row.map((_, tag) => {
      let best = 0;
      for (let other = 1; other < scores.length; other++) {
        if (scores[other] + transitions[other][tag] > scores[best] + transitions[best][tag]) best = other;
      }
      return best;
    });
    origins.push(from);
    scores = row.map((score, tag) => scores[from[tag]] + transitions[from[tag]][tag] + score);
  }
  const path = [scores.indexOf(Math.max(...scores))];
  for (const from of origins.reverse()) path.unshift(from[path[0]]);
  return path;
}

/**
 * Find runs of letters, marks and digits, and runs of one other character: where they begin (`starts`), the hashes of their
 * characters (`runs`), and of their changes of class with what stands before (`shapes`).
 */
function findRuns(points, kinds, classes) {
  const starts = [];
  const runs = [];
  const shapes = [];
  let endBefore = 0; // of the visible run before
  for (let start = 0, end = 0; start < points.length; start = end) {
    end = start + 1;
    const isOfRun = (n) => kinds[n] === kinds[n - 1] && (kinds[n] === WORD_KIND || points[n] === points[n - 1]);
    while (end < points.length && isOfRun(end)) end += 1;
    if (kinds[start] === SPACE_KIND) continue;
    const nLines = points.slice(endBefore, start).filter((point) => point === 10).length;
    let gap = Math.min(SPACE_BEFORE + nLines, PARAGRAPH_BEFORE);
    if (start === endBefore) gap = TOUCHES;
    if (!starts.length) gap = PARAGRAPH_BEFORE;
    const classesOfRun = classes.slice(start, end);
    const changes = classesOfRun.filter((value, n) => value !== (n ? classesOfRun[n - 1] : 0)).slice(0, LONGEST_SHAPE);
    const shape = [gap, ...changes, Math.min(end - start, 2)].map(asCode).reduce(mixed, FIRST_HASH);
    starts.push(start);
    runs.push(points.slice(start, end).map(asCode).reduce(mixed, FIRST_HASH));
    shapes.push(shape);
    endBefore = end;
  }
  return { starts, runs, shapes };
}
