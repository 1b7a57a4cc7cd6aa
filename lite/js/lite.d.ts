/** A part of a text: characters from `start` up to, not including, `end`. */
export interface Part {
  start: number;
  end: number;
}

/** A token, with the attributes that components gave it, such as `tag`. */
export interface Token extends Part {
  text: string;
  [attribute: string]: string | number;
}

/** A labelled part, with its exact probability and the component that found it. */
export interface Span extends Part {
  text: string;
  label: string;
  prob: number;
  component: string;
}

export interface Parsed {
  text: string;
  tokens: Token[];
  /** None if no component finds sentences. */
  sentences: Part[];
  /** Spans that do not overlap, in order. */
  entities: Span[];
  /** Spans that may overlap, by key. */
  spans: Record<string, Span[]>;
  /** The texts of all entities, by label. */
  fields: Record<string, string[]>;
  /** The probability of each label of the text, the most probable first; but objects list labels that are whole numbers first. */
  cats: Record<string, number>;
}

export interface Options {
  /** Places are those of JavaScript's strings; otherwise characters (code points), as in Python. */
  utf16?: boolean;
}

export interface Parser {
  (text: string, options?: Options): Parsed;
  /** Parse words, or rows of `columns`. Their text is the words with blanks between them. */
  words(rows: string[] | string[][], options?: Options): Parsed;
  /** The columns that rows must have; "orth" is the word. */
  columns: string[];
}

/** An export or rows that the parser can't read; the message says what to do. */
export class LiteError extends Error {}

/** Load an export: the address of a JSON file (which may be gzipped); or its text, its bytes, or the object in it. */
export function load(source: string | URL | ArrayBuffer | Uint8Array | object): Promise<Parser>;

/** Make the parser of the object in an export. */
export function makeParser(content: object): Parser;
