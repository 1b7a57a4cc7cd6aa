// What Python says of characters: their flags and their lower case.
import { COMBINATIONS, LOWER_RUNS, RUNS } from "./unicode.js";

export const [ALPHA, DIGIT, DECIMAL, UPPER, LOWER, TITLE, SPACE, PUNCT, CURRENCY, IGNORABLE, CASED] = Array.from(
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

export const hasFlag = (point, flag) => (FLAGS_OF[point] & flag) !== 0;
export const isAscii = (text) => /^[\x00-\x7f]*$/.test(text);
export const pointsOf = (text) => Array.from(text, (char) => char.codePointAt(0));
export const everyIs = (text, flag) => pointsOf(text).every((point) => hasFlag(point, flag));
/** Python's isalpha, isdigit, isspace: whether a text that is not empty has such characters alone. */
export const isAll = (text, flag) => text !== "" && everyIs(text, flag);

/** The first characters of a text, or without a number the whole text. */
export const firstOf = (text, n) => (n === undefined ? text : Array.from(text).slice(0, n).join(""));
/** Without its last n characters. */
export const withoutLast = (text, n) => Array.from(text).slice(0, -n).join("");

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
export function hasCase(text, flag, others) {
  const points = pointsOf(text);
  return points.some((point) => hasFlag(point, flag)) && !points.some((point) => hasFlag(point, others));
}

/** Python's str.istitle. */
export function isTitle(text) {
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
