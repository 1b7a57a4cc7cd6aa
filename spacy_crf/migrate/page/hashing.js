// Hashes of 64 bits, as pairs of halves [high, low].

const exclusiveOr = ([high, low], [otherHigh, otherLow]) => [(high ^ otherHigh) >>> 0, (low ^ otherLow) >>> 0];

/** The sum without the bits above the 64th. */
function sum([high, low], [otherHigh, otherLow]) {
  const sumOfLow = low + otherLow;
  const carry = sumOfLow >= 2 ** 32 ? 1 : 0;
  return [(high + otherHigh + carry) >>> 0, sumOfLow >>> 0];
}

/** The product without the bits above the 64th. */
function product([high, low], [otherHigh, otherLow]) {
  // Numbers of 16 bits, whose products are exact
  const [a, b] = [low >>> 16, low & 0xffff];
  const [c, d] = [otherLow >>> 16, otherLow & 0xffff];
  const middle = a * d + b * c + Math.floor((b * d) / 65536);
  const productOfLow = (((middle % 65536) << 16) | ((b * d) & 0xffff)) >>> 0;
  const carry = a * c + Math.floor(middle / 65536);
  return [(carry + Math.imul(high, otherLow) + Math.imul(low, otherHigh)) >>> 0, productOfLow];
}

/** The hash, exclusive or itself without its last n bits, of which there are less than 32. */
function folded([high, low], n) {
  return [(high ^ (high >>> n)) >>> 0, (low ^ ((low >>> n) | (high << (32 - n)))) >>> 0];
}

const MURMUR_FACTOR = [0xc6a4a793, 0x5bd1e995];
/** By the 47 bits of the high half: MurmurHash shifts by more than a half. */
const foldedBy47 = ([high, low]) => [high, (low ^ (high >>> 15)) >>> 0];

/** spaCy's hash of a text, MurmurHash64A with seed 1, in hexadecimal digits. */
export function hashText(text) {
  const bytes = new TextEncoder().encode(text);
  const data = new DataView(new ArrayBuffer(Math.ceil(bytes.length / 8) * 8));
  bytes.forEach((byte, n) => data.setUint8(n, byte));
  let hash = exclusiveOr([0, 1], product([0, bytes.length], MURMUR_FACTOR));
  for (let n = 0; n < data.byteLength; n += 8) {
    let eight = [data.getUint32(n + 4, true), data.getUint32(n, true)];
    if (n + 8 <= bytes.length) eight = product(foldedBy47(product(eight, MURMUR_FACTOR)), MURMUR_FACTOR);
    hash = product(exclusiveOr(hash, eight), MURMUR_FACTOR);
  }
  return hexadecimal(foldedBy47(product(foldedBy47(hash), MURMUR_FACTOR)));
}

export const hexadecimal = (hash) => hash.map((half) => half.toString(16).padStart(8, "0")).join("");

export const FIRST_HASH = [0x9e3779b9, 0x7f4a7c15];
const SECOND_FACTOR = [0xbf58476d, 0x1ce4e5b9];
const THIRD_FACTOR = [0x94d049bb, 0x133111eb];

/** Mix a value into a hash: the finaliser of SplitMix64 (Steele, Lea & Flood 2014). */
export function mixed(hash, value) {
  let z = sum(exclusiveOr(hash, value), FIRST_HASH);
  z = product(folded(z, 30), SECOND_FACTOR);
  z = product(folded(z, 27), THIRD_FACTOR);
  return folded(z, 31);
}

/** Sorted hashes, which are given in hexadecimal digits. */
export class Hashes {
  constructor(digits) {
    this.high = Uint32Array.from(digits, (text) => parseInt(text.slice(0, -8) || "0", 16));
    this.low = Uint32Array.from(digits, (text) => parseInt(text.slice(-8), 16));
  }

  /** The place of a hash, -1 if it is unknown. */
  find([high, low]) {
    let begin = 0;
    let end = this.high.length;
    while (begin < end) {
      const middle = (begin + end) >>> 1;
      const isBefore = this.high[middle] < high || (this.high[middle] === high && this.low[middle] < low);
      if (isBefore) begin = middle + 1;
      else end = middle;
    }
    return this.high[begin] === high && this.low[begin] === low ? begin : -1;
  }
}
