// Cuts texts into tokens, as spaCy's rule tokenizer does from the patterns and exceptions of an export.
import { CharacterTokenizer } from "./character_tokenizer.js";
import { SPACE, hasFlag } from "./characters.js";
import { EXPORT_AGAIN, LiteError, listed, texts } from "./content.js";

const MOST_CACHED = 10000; // chunks whose tokens are kept, as in spaCy

/** Make the tokenizer of an export. Its method `cut` gives the `tokens` of a text, and `sentences`: whether one begins with each. */
export function makeTokenizer(content) {
  if (content.kind === "rules") return new RuleTokenizer(content);
  if (content.kind === "characters") {
    const rules = content.language_rules === null ? null : new RuleTokenizer(content.language_rules);
    return new CharacterTokenizer(content, finder, rules);
  }
  throw new LiteError(`this lite.js does not know tokenizers of the kind '${content.kind}'. Take a newer one.`);
}

/** Make a function that finds the matches {begin, end} of a pattern in a text. */
function finder(pattern) {
  checkPattern(pattern.untranslated, pattern);
  const expression = compiled(pattern, "g");
  return (text) => {
    const matches = Array.from(text.matchAll(expression), ({ 0: match, index }) => ({ begin: index, end: index + match.length }));
    return matches.filter(({ begin }) => !isInsidePair(text, begin));
  };
}

function checkPattern(name, pattern) {
  if (!pattern?.untranslated) return;
  throw new LiteError(`JavaScript has nothing like its pattern '${name}': ${pattern.why}. Take Python.`);
}

/** Cuts a text at white space, and the chunks between by patterns and exceptions. Tokens are {text, start}. */
class RuleTokenizer {
  constructor(content) {
    const patterns = content.patterns_js;
    for (const [name, pattern] of Object.entries(patterns)) checkPattern(name, pattern);
    this.prefix = compiled(patterns.prefix, "");
    this.suffix = compiled(patterns.suffix, "");
    this.infix = compiled(patterns.infix, "g");
    this.tokenMatch = compiled(patterns.token_match, "y");
    this.urlMatch = compiled(patterns.url_match, "y");
    this.exceptions = new Map();
    // A tree of the exceptions that are searched for in the tokens of a text, by the tokens that patterns make of them
    this.phrases = { next: new Map(), isEnd: false };
    this.cache = new Map();
    for (const [text, words] of listed(content.exceptions, "exceptions")) {
      this.addException(text, texts(words, "an exception"), content.faster_heuristics === false);
    }
  }

  /** Cut a text into these words from now on. */
  addException(text, words, isAlwaysSearched) {
    const isWhole = text && !words.includes("") && words.join("") === text;
    if (!isWhole) throw new LiteError(`an exception has other words: ${words}. ${EXPORT_AGAIN}`);
    // The chunks of the last exception stay cached as patterns cut them, even if they contain exceptions: so it is in spaCy
    this.cache.clear();
    this.exceptions.set(text, words);
    const hasInfix = this.infix !== null && text.search(this.infix) >= 0;
    const isSearched = matchLength(this.prefix, text) || matchLength(this.suffix, text) || hasInfix || text.includes(" ");
    if (!isSearched && !isAlwaysSearched) return;
    let node = this.phrases;
    for (const token of this.cutAtSpaces(text, new Map())) {
      if (!node.next.has(token.text)) node.next.set(token.text, { next: new Map(), isEnd: false });
      node = node.next.get(token.text);
    }
    node.isEnd = true;
  }

  /** The tokens of a text. White space is a token too, but for a single space, or the first one of several, behind a token. */
  cut(text) {
    const tokens = this.cutAtSpaces(text, this.exceptions);
    const cut = [];
    let behind = 0; // the first token behind the phrase before
    for (const { begin, end } of this.findPhrases(tokens)) {
      const { start } = tokens[begin];
      const last = tokens[end - 1];
      // With other white space between its tokens the phrase is no exception, and stays as it is
      const words = this.exceptions.get(text.slice(start, last.start + last.text.length));
      if (words === undefined) continue;
      cut.push(...tokens.slice(behind, begin), ...placed(words, start));
      behind = end;
    }
    return { tokens: [...cut, ...tokens.slice(behind)], sentences: null };
  }

  /** Cut a text at white space, and the chunks between by patterns and by `exceptions`. */
  cutAtSpaces(text, exceptions) {
    const tokens = [];
    for (const chunk of chunksOf(text)) {
      let known = exceptions.get(chunk.text) ?? this.cache.get(chunk.text);
      if (known === undefined) {
        known = this.cutChunk(chunk.text, exceptions);
        if (this.cache.size < MOST_CACHED) this.cache.set(chunk.text, known);
      }
      for (const token of placed(known, chunk.start)) tokens.push(token);
    }
    return tokens;
  }

  /** Cut prefixes and suffixes off a chunk until `exceptions` or a pattern know the rest, and cut the rest. */
  cutChunk(chunk, exceptions) {
    const prefixes = [];
    const suffixes = []; // the last one first
    let rest = chunk;
    let size = 0; // of the rest before the last cut
    while (rest && rest.length !== size && !exceptions.has(rest) && !matches(this.tokenMatch, rest)) {
      size = rest.length;
      let prefixEnd = matchLength(this.prefix, rest);
      let suffixStart = size - matchLength(this.suffix, rest.slice(prefixEnd));
      if (exceptions.has(rest.slice(prefixEnd))) suffixStart = size;
      else if (exceptions.has(rest.slice(0, suffixStart))) prefixEnd = 0;
      if (prefixEnd) prefixes.push(rest.slice(0, prefixEnd));
      if (suffixStart < size) suffixes.push(rest.slice(suffixStart));
      rest = rest.slice(prefixEnd, suffixStart);
    }
    return [...prefixes, ...this.cutRest(rest, exceptions), ...suffixes.reverse()];
  }

  /** Cut what remains of a chunk without its prefixes and suffixes, if `exceptions` have it, or at infixes. */
  cutRest(rest, exceptions) {
    if (!rest) return [];
    const known = exceptions.get(rest) ?? this.cache.get(rest);
    if (known !== undefined) return known;
    if (!this.infix || matches(this.tokenMatch, rest) || matches(this.urlMatch, rest)) return [rest];
    const words = [];
    let behind = 0; // where the infix before ends
    for (const { 0: infix, index } of rest.matchAll(this.infix)) {
      // An infix stands between two words; engines also find empty matches inside of surrogate pairs
      if (index === 0 || isInsidePair(rest, index)) continue;
      words.push(rest.slice(behind, index), infix);
      behind = index + infix.length;
    }
    words.push(rest.slice(behind));
    return words.filter((word) => word !== "");
  }

  /** The tokens {begin, end} that exceptions may replace, in order. No two overlap: the longest count, of equals the first. */
  findPhrases(tokens) {
    const phrases = [];
    for (let begin = 0; begin < tokens.length; begin++) {
      let node = this.phrases.next.get(tokens[begin].text);
      for (let end = begin + 1; node; end++) {
        if (node.isEnd) phrases.push({ begin, end });
        node = node.next.get(tokens[end]?.text);
      }
    }
    phrases.sort((a, b) => b.end - b.begin - (a.end - a.begin) || a.begin - b.begin);
    const taken = new Set();
    const chosen = [];
    for (const { begin, end } of phrases) {
      if (!taken.has(begin) && !taken.has(end - 1)) chosen.push({ begin, end });
      for (let n = begin; n < end; n++) taken.add(n);
    }
    return chosen.sort((a, b) => a.begin - b.begin);
  }
}

/** Runs of white space and of other characters, as {text, start}; without a space that belongs to the token before. */
function chunksOf(text) {
  const chunks = [];
  let start = 0;
  for (let end = 1; end <= text.length; end++) {
    // White space is in the first plane: code units are enough to see where it begins and ends
    const isSpace = hasFlag(text.charCodeAt(end - 1), SPACE);
    if (end < text.length && hasFlag(text.charCodeAt(end), SPACE) === isSpace) continue;
    if (start && isSpace && text[start] === " ") start += 1;
    if (start < end) chunks.push({ text: text.slice(start, end), start });
    start = end;
  }
  return chunks;
}

/** Whether a place in a text is between the two code units of one character. */
function isInsidePair(text, index) {
  return /[\udc00-\udfff]/.test(text[index] ?? "") && /[\ud800-\udbff]/.test(text[index - 1] ?? "");
}

/** Neighbouring words as tokens, the first of which begins at `start`. */
function placed(words, start) {
  return words.map((text) => {
    const token = { text, start };
    start += text.length;
    return token;
  });
}

/** Compile a pattern {source, flags}, if there is one. */
function compiled(pattern, flags) {
  return pattern ? new RegExp(pattern.source, pattern.flags + flags) : null;
}

/** Whether a pattern, if there is one, matches at the beginning of a text. */
function matches(pattern, text) {
  if (!pattern) return false;
  pattern.lastIndex = 0;
  return pattern.test(text);
}

/** The length of the first match of a pattern in a text; 0 if there is no match or no pattern. */
function matchLength(pattern, text) {
  return pattern?.exec(text)?.[0].length ?? 0;
}
