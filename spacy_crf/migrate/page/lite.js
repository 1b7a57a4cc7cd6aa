/**
 * Parses texts by what `spacy crf export MODEL FILE.json` wrote, with the answers of `spacy_crf.lite` in Python.
 *
 *     import { load } from "./lite.js";
 *     const parse = await load("address.json");
 *     parse("12 Elm St, Bend OR").entities;
 *
 * The format of exports is described in docs/lite_format.md. The modules have the names of those in Python. Letters in comments:
 * T tokens, S states, C columns of a table (tags, or pairs of tags), K the longest segment. An array [T, S] has the value of token t
 * and state s at t * S + s.
 */
import { PUNCT, everyIs } from "./characters.js";
import { Component } from "./component.js";
import { EXPORT_AGAIN, LiteError, listed, texts } from "./content.js";
import { makeTokenizer } from "./tokenizer.js";

export { LiteError };

const FORMAT = "spacy_crf.lite";
const VERSION = 4;
const MOST_CHARACTERS = 256e6; // of an export: a small file may unzip to any size
// Values of attributes that no component has written; "" for others
const UNSET = { ent_iob: "0", sent_start: "0", spacy: "1" };

/** Any error as a LiteError, whose message begins with `message`. */
function asLiteError(error, message) {
  if (error instanceof LiteError) return error;
  return new LiteError(`${message} (${error}). Copy it again, or export it again.`);
}

/** Call a function; any error that it throws becomes a LiteError. */
function checked(act, message) {
  try {
    return act();
  } catch (error) {
    throw asLiteError(error, message);
  }
}

/** A text with what components found in it. Places are code units until `answer` writes them. */
class Parsed {
  constructor(text, tokens, columns) {
    this.text = text;
    this.tokens = tokens; // {text, start}
    this.columns = columns; // values of each token, by attribute; "orth" is the word
    this.attributes = []; // that components have written
    this.sentenceStarts = null; // tokens; null if nothing finds sentences
    this.entities = [];
    // By key and by label, which may be any text: objects would not keep "__proto__"
    this.spans = new Map();
    this.cats = new Map();
  }

  /** The first token and the end of each sentence; of the whole text if nothing finds sentences. */
  sequences() {
    const starts = this.sentenceStarts ?? [0];
    return starts.map((begin, n) => ({ begin, end: starts[n + 1] ?? this.tokens.length }));
  }

  /** Words, or rows of several columns, of the tokens of a sequence. */
  rows(columns, { begin, end }) {
    const values = columns.map((name) => this.columns[name] ?? Array(this.tokens.length).fill(UNSET[name] ?? ""));
    if (columns.length === 1) return values[0].slice(begin, end);
    return this.tokens.slice(begin, end).map((_, t) => values.map((column) => column[begin + t]));
  }

  setSentences(isStart) {
    this.sentenceStarts = [...isStart.keys()].filter((n) => n === 0 || isStart[n]);
    this.columns.sent_start = isStart.map((starts, n) => (n === 0 || starts ? "1" : "-1"));
  }

  /** Write what a component found in each sequence: {begin, labelled}. */
  write(component, found) {
    const [kind, key] = component.writes.split(/:(.*)/s);
    if (kind === "sents") {
      const isStart = Array(this.tokens.length).fill(false);
      for (const { begin } of component.joined(found[0].labelled)) isStart[begin] = true;
      this.setSentences(isStart);
    } else if (kind === "ents" || kind === "spans") {
      const spans = found.flatMap(({ begin: shift, labelled }) => {
        return component.joined(labelled).map((span) => ({ ...span, begin: shift + span.begin, end: shift + span.end }));
      });
      const named = spans.map((span) => ({ ...span, component: component.name }));
      if (kind === "ents") this.setEntities(named);
      else this.spans.set(key, named);
    } else {
      component.labellers.forEach(({ writes }, n) => {
        this.columns[writes] = found.flatMap(({ labelled }) => labelled[n].tags);
        this.attributes.push(writes);
      });
    }
  }

  setEntities(entities) {
    this.entities = entities;
    this.columns.ent_type = Array(this.tokens.length).fill("");
    this.columns.ent_iob = Array(this.tokens.length).fill("2"); // spaCy's codes: 1 inside, 2 outside, 3 begin
    for (const { begin, end, label } of entities) {
      this.columns.ent_type.fill(label, begin, end);
      this.columns.ent_iob.fill("1", begin, end)[begin] = "3";
    }
  }

  /** All of it as plain objects. Places are characters, as in Python, or with `utf16` those of JavaScript. */
  answer(utf16) {
    const pointsBefore = utf16 ? null : countPoints(this.text);
    const place = (unit) => (pointsBefore ? pointsBefore[unit] : unit);
    const between = (first, last) => {
      const end = last.start + last.text.length;
      return { start: place(first.start), end: place(end), text: this.text.slice(first.start, end) };
    };
    const written = ({ begin, end, label, prob, component }) => {
      return { ...between(this.tokens[begin], this.tokens[end - 1]), label, prob, component };
    };
    const tokens = this.tokens.map((token, n) => {
      const values = this.attributes.map((name) => [name, this.columns[name][n]]);
      return { ...between(token, token), ...Object.fromEntries(values) };
    });
    const sentences = [];
    for (const { begin, end } of this.sentenceStarts ? this.sequences() : []) {
      const sentence = between(this.tokens[begin], this.tokens[end - 1]);
      sentences.push({ start: sentence.start, end: sentence.end });
    }
    const entities = this.entities.map(written);
    const spans = [...this.spans].map(([key, found]) => [key, found.map(written)]);
    const fields = new Map();
    for (const { label, text } of entities) fields.set(label, [...(fields.get(label) ?? []), text]);
    const byLabel = { fields: Object.fromEntries(fields), cats: Object.fromEntries(this.cats) };
    return { text: this.text, tokens, sentences, entities, spans: Object.fromEntries(spans), ...byLabel };
  }
}

/** The number of characters before each code unit of a text, and before its end; null if all have one. */
function countPoints(text) {
  if (!/[\ud800-\udbff]/.test(text)) return null;
  const counts = [];
  let count = 0;
  for (const char of text) {
    for (let unit = 0; unit < char.length; unit++) counts.push(count);
    count += 1;
  }
  return [...counts, count];
}

/** spaCy's sentencizer: a sentence ends with punctuation, behind all further punctuation. */
class Sentencizer {
  constructor(content) {
    this.name = String(content.name);
    this.kind = content.kind;
    this.ends = new Set(texts(content.punct_chars, "punct_chars"));
  }

  /** Whether a sentence begins at each word, but for the first one. */
  findStarts(words) {
    let hasEnded = false; // whether only punctuation has followed the end of a sentence
    return words.map((word) => {
      const isEnd = this.ends.has(word);
      const begins = hasEnded && !isEnd && !everyIs(word, PUNCT);
      hasEnded = isEnd || (hasEnded && !begins);
      return begins;
    });
  }
}

/**
 * Make the parser of an export: a function from a text to what the components find in it.
 *
 * parse(text, {utf16}): The answer; see docs/run.md.
 * parse.words(rows, {utf16}): The same for words, or rows of `parse.columns`. Their text is the words with blanks between them.
 */
export function makeParser(content) {
  if (content?.format !== FORMAT) {
    throw new LiteError("this is no export of spacy_crf. `spacy crf export MODEL FILE --to json` writes one.");
  }
  if (content.version !== VERSION) {
    throw new LiteError(`it has version ${content.version} of the format, and this lite.js reads version ${VERSION}. ${EXPORT_AGAIN}`);
  }
  return checked(() => parserOf(content), "it is cut off or no export");
}

function parserOf(content) {
  const columns = texts(content.columns, "columns");
  const tokenizer = content.tokenizer === null ? null : makeTokenizer(content.tokenizer);
  const components = listed(content.components, "components").map((part) => {
    return part.kind === "sentencizer" ? new Sentencizer(part) : new Component(part);
  });
  const run = (parsed, options) => {
    for (const component of components) apply(component, parsed);
    return parsed.answer(options?.utf16 ?? false);
  };
  const parse = (text, options) => {
    if (typeof text !== "string") throw new LiteError("parse takes a text. For words there is parse.words(words).");
    const names = columns.join(", ");
    if (!tokenizer) throw new LiteError(`the export holds no tokenizer. Take parse.words(rows), with the columns ${names}.`);
    return checked(() => {
      const { tokens, sentences } = tokenizer.cut(text);
      const parsed = new Parsed(text, tokens, { orth: tokens.map((token) => token.text), spacy: spaces(text, tokens) });
      if (sentences) parsed.setSentences(sentences);
      return run(parsed, options);
    }, "it is damaged");
  };
  parse.words = (rows, options) => checked(() => run(ofRows(rows, columns), options), "it is damaged");
  parse.columns = columns;
  return parse;
}

/** Whether the text has a space behind each token: "1" or "0". */
function spaces(text, tokens) {
  return tokens.map(({ start, text: word }, n) => ((tokens[n + 1]?.start ?? text.length) > start + word.length ? "1" : "0"));
}

/** Run a component on a text. */
function apply(component, parsed) {
  if (component.kind === "sentencizer") {
    parsed.setSentences(component.findStarts(parsed.columns.orth));
  } else if (component.kind === "text") {
    const sequences = parsed.sequences().map((sequence) => parsed.rows(component.columns, sequence));
    for (const [label, prob] of component.classify(sequences)) parsed.cats.set(label, prob);
  } else {
    const isWhole = component.writes === "sents";
    const sequences = isWhole ? [{ begin: 0, end: parsed.tokens.length }] : parsed.sequences();
    const found = sequences.map((sequence) => {
      return { begin: sequence.begin, labelled: component.label(parsed.rows(component.columns, sequence)) };
    });
    parsed.write(component, found);
  }
}

/** The tokens of words, or of rows of columns. */
function ofRows(rows, columns) {
  if (!Array.isArray(rows)) throw new LiteError("parse.words takes a list of words, or of rows. For a text there is parse(text).");
  const isOfWords = columns.length === 1 && rows.some((row) => typeof row === "string");
  const values = columns.map((_, place) => rows.map((row, n) => valueIn(row, place, n, columns, isOfWords)));
  const byName = Object.fromEntries(columns.map((name, place) => [name, values[place]]));
  let start = 0;
  const tokens = byName.orth.map((text) => {
    const token = { text, start };
    start += text.length + 1;
    return token;
  });
  return new Parsed(byName.orth.join(" "), tokens, byName);
}

/** The value in a column (`place`) of row n, which is the word itself if rows are words. */
function valueIn(row, place, n, columns, isOfWords) {
  if (isOfWords && typeof row === "string") return row;
  if (!isOfWords && Array.isArray(row) && columns.every((_, column) => typeof row[column] === "string")) return row[place];
  let got = typeof row === "string" ? "a word" : String(row);
  if (Array.isArray(row)) got = `${row.length} columns`;
  throw new LiteError(`Row ${n + 1} is ${got}, and the export reads the columns ${columns.join(", ")}.`);
}

/**
 * Load an export and make its parser.
 *
 * source: The address of a JSON file, gzipped or not; or its text, its bytes, or the object that it has.
 */
export async function load(source) {
  let content = source;
  const isAddress = source instanceof URL || (typeof source === "string" && !/^\s*[[{]/.test(source));
  if (isAddress) content = await bytesAt(source);
  if (content instanceof ArrayBuffer || ArrayBuffer.isView(content)) content = await unzipped(new Uint8Array(content));
  if (typeof content !== "string") return makeParser(content);
  const text = content.replace(/^\ufeff/, "");
  return makeParser(checked(() => JSON.parse(text), "it is cut off or no export"));
}

/** The bytes at an address. */
async function bytesAt(address) {
  try {
    const response = await fetch(address);
    if (response.ok) return await response.arrayBuffer();
    throw new Error(`${response.status} ${response.statusText}`);
  } catch (error) {
    throw new LiteError(`${address} can't be read (${error}). Correct the address; in Node, give the bytes: await readFile(path).`);
  }
}

/** The text of a file that may be gzipped. */
async function unzipped(bytes) {
  const isZip = bytes[0] === 0x50 && bytes[1] === 0x4b;
  if (isZip) throw new LiteError("an .npz file is for Python. Export the model by --to json.");
  const isGzipped = bytes[0] === 0x1f && bytes[1] === 0x8b;
  if (!isGzipped) return new TextDecoder().decode(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return text + decoder.decode();
      text += decoder.decode(value, { stream: true });
      const isLong = text.length > MOST_CHARACTERS;
      if (isLong) throw new LiteError(`it has more than ${MOST_CHARACTERS} characters. Export fewer weights.`);
    }
  } catch (error) {
    reader.cancel().catch(() => {});
    throw asLiteError(error, "it is cut off or no export");
  }
}
