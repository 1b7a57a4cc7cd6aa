// Checks the content of an export.

export const LEAST_NUMBER = -Number.MAX_VALUE;

/** An export or rows that the parser can't read; the message says what to do. */
export class LiteError extends Error {
  name = "LiteError";
}

export const EXPORT_AGAIN = "Export the model again.";

/** Check a list of the export. */
export function listed(value, what) {
  if (!Array.isArray(value)) throw new LiteError(`${what} is no list. ${EXPORT_AGAIN}`);
  return value;
}

/** Check a list of texts of the export. */
export function texts(value, what) {
  const isOfTexts = listed(value, what).every((text) => typeof text === "string");
  if (!isOfTexts) throw new LiteError(`${what} has more than texts. ${EXPORT_AGAIN}`);
  return value;
}

/**
 * Check a list of numbers of the export, in which null is minus infinity.
 *
 * settings: `length` that it must have; `least` number, without which numbers may be minus infinity; `below`, what all numbers
 *   are less than; `whole`, whether they are whole numbers.
 */
export function numbers(value, what, { length, least = -Infinity, below = Infinity, whole = false } = {}) {
  const checked = Float64Array.from(listed(value, what), (number) => {
    const float = number === null ? -Infinity : number;
    const isRight = typeof float === "number" && float >= least && float < below && !(whole && !Number.isInteger(float));
    if (!isRight) throw new LiteError(`${what} has the number ${String(number).slice(0, 30)}. ${EXPORT_AGAIN}`);
    return float;
  });
  if (length !== undefined && checked.length !== length) {
    throw new LiteError(`${what} has ${checked.length} numbers instead of ${length}. Copy the file again.`);
  }
  return checked;
}
