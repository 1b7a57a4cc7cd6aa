// Labels texts by one component of an export.
import { SPACE, isAll } from "./characters.js";
import { EXPORT_AGAIN, LiteError, listed, numbers, texts } from "./content.js";
import { Features, SPELLINGS, spell } from "./features.js";
import { Chain, Segments, States, logSum } from "./labellings.js";

// Prices of spans are probabilities that are never worth listing at least, and that are always taken at most
const LEAST_PRICE = 1e-3;
const HIGHEST_PRICE = 1 - 1e-6;
const MOST_TAGS = 100000;

/** Labels texts by the scores of a chain of tags or segments. */
class Labeller {
  constructor(content, isSegments) {
    this.writes = String(content.writes);
    this.labels = texts(content.labels, "labels");
    this.scheme = content.scheme;
    this.hasSpans = this.scheme !== null;
    this.outside = this.hasSpans ? "O" : ""; // the tag of words without a label
    const isKnown = !this.hasSpans || Object.hasOwn(SPELLINGS, this.scheme);
    if (!isKnown) throw new LiteError(`there is no scheme '${this.scheme}'. ${EXPORT_AGAIN}`);
    const nLabels = this.labels.length;
    const letters = Array.from(content.letters ?? "");
    if (nLabels * letters.length > MOST_TAGS) throw new LiteError(`it has more than ${MOST_TAGS} tags. ${EXPORT_AGAIN}`);
    this.tags = this.labels;
    if (this.hasSpans) this.tags = ["O", ...this.labels.flatMap((label) => letters.map((letter) => `${letter}-${label}`))];
    // The label of each tag, -1 for O; and whether a tag continues the span of the tag before it
    let labelOf = this.tags.map((_, tag) => (this.hasSpans ? Math.floor((tag - 1) / letters.length) : tag));
    let continues = (before, tag) => {
      const isOpen = !"OLU".includes(this.tags[before][0]);
      const isInside = !"OBU".includes(this.tags[tag][0]);
      return labelOf[before] === labelOf[tag] && isOpen && isInside;
    };
    if (isSegments || !this.hasSpans) continues = () => false;
    if (isSegments) labelOf = Array.from({ length: nLabels + 1 }, (_, n) => n - 1); // a state is O or a label
    this.nTags = labelOf.length;
    this.Structure = isSegments ? Segments : Chain;
    this.states = new States(content.states, labelOf, continues);
    this.withoutRules = content.without_rules === undefined ? null : new States(content.without_rules, labelOf, continues);
    const lengths = isSegments ? listed(content.lengths, "lengths") : [Array(this.nTags).fill(0)];
    this.lengths = lengths.map((row) => numbers(row, "lengths", { length: this.nTags })); // [K][C]
    this.least = numbers(content.min_prob ?? Array(nLabels).fill(0), "min_prob", { length: nLabels, least: 0 });
  }

  /** The labellings of a text: `Segments`, or a `Chain`. */
  labellings(scores, states = this.states) {
    const { nTokens, longest, blank, pairs } = scores;
    const segments = scores.segments.map((score, n) => {
      const k = Math.floor(n / this.nTags) % longest;
      return score + (this.lengths[k]?.[n % this.nTags] ?? -Infinity);
    });
    // In texts with white space, spans may not begin or end at it
    const fitting = states.blank && blank.includes(true) ? states.blank : states;
    return new this.Structure({ states: fitting, scores: segments, nTokens, longest, nTags: this.nTags, pairs, blank });
  }

  /** The labellings of a text that keep all rules; all its labellings if none does. */
  possible(scores) {
    for (const states of [this.states, this.withoutRules]) {
      const labellings = states && this.labellings(scores, states);
      if (labellings && labellings.sums.logZ > -Infinity) return labellings;
    }
    throw new LiteError(`A text has no labelling with a finite score. ${EXPORT_AGAIN}`);
  }

  /** Tags and spans {begin, end, label, prob} of a text. */
  label(scores) {
    const labelled = this.labelBy(this.labellings(scores), scores);
    return labelled ?? this.labelBy(this.possible(scores), scores);
  }

  /** Label a text by its labellings; null if none keeps the rules. */
  labelBy(labellings, scores) {
    const { choice } = labellings.states;
    if (!choice) return this.bestPath(labellings);
    if (labellings.sums.logZ === -Infinity) return null;
    const spans = this.chosen(labellings, choice);
    // Spans of probability 0 are not listed: no set of listed spans keeps the rules
    if (spans.some(({ prob }) => prob === 0)) return this.bestPath(this.labellings(scores));
    const kept = this.named(spans.filter((span) => this.isLikely(span, choice)));
    return { tags: this.spelled(kept, labellings.nTokens), spans: kept };
  }

  /** The most probable labelling, without the spans that are less probable than `min_prob`; null if none keeps the rules. */
  bestPath(labellings) {
    const { score, segments } = labellings.best();
    if (score === -Infinity) return null;
    const tags = labellings.tags(segments).map((tag) => this.tags[tag]);
    const spans = labellings.weighed(labellings.spans(segments));
    const { choice } = labellings.states;
    for (const span of spans) {
      if (!this.isLikely(span, choice)) tags.fill(this.outside, span.begin, span.end);
    }
    return { tags, spans: this.named(spans.filter((span) => this.isLikely(span, choice))) };
  }

  /** Whether a span is as probable as `min_prob`; true if rules that ask for spans would be broken. */
  isLikely({ label, prob }, choice) {
    const asksForSpans = choice !== null && choice.asks !== null;
    return asksForSpans || prob >= this.least[label];
  }

  named(spans) {
    return spans.map((span) => ({ ...span, label: this.labels[span.label] }));
  }

  /** The spans, no two of which overlap, whose probabilities exceed their prices by most in total. Those that are not listed, which
   * rules have asked for, have the probability 0. */
  chosen(labellings, choice) {
    const prices = this.least.map((least) => Math.min(Math.max(least, LEAST_PRICE), HIGHEST_PRICE));
    const likely = labellings.likely(choice.asks ? LEAST_PRICE : prices.reduce((a, b) => Math.min(a, b), 1));
    const longest = likely.reduce((most, { begin, end }) => Math.max(most, end - begin), 1);
    const nTags = 1 + this.labels.length;
    const { nTokens } = labellings;
    const placeOf = ({ begin, end, label }) => (begin * longest + end - begin - 1) * nTags + 1 + label;
    // A span that is just probable enough is taken; one that is not listed, only if no other set keeps the rules
    const worth = new Float64Array(nTokens * longest * nTags).fill(-1e6);
    for (let segment = 0; segment < nTokens * longest; segment++) worth[segment * nTags] = segment % longest ? -Infinity : 0;
    const probs = new Map();
    for (const span of likely) {
      probs.set(placeOf(span), span.prob);
      if (span.prob > 0) worth[placeOf(span)] = span.prob - prices[span.label] + 1e-9;
    }
    const sets = new Segments({ states: choice, scores: worth, nTokens, longest, nTags });
    return sets.spans(sets.best().segments).map((span) => ({ ...span, prob: probs.get(placeOf(span)) ?? 0 }));
  }

  /** The tags of a text of so many tokens with these spans. */
  spelled(spans, nTokens) {
    const tags = Array(nTokens).fill(this.outside);
    for (const { begin, end, label } of spans) {
      // In IOB1 a span that touches one of its own label begins with B-
      const touches = this.scheme === "IOB1" && tags[Math.max(0, begin - 1)].slice(2) === label;
      const spelled = this.hasSpans ? spell(touches ? "BIO" : this.scheme, label, end - begin) : [label];
      tags.splice(begin, end - begin, ...spelled);
    }
    return tags;
  }
}

/** A component: "chain", "segments", "text", or "set" for several chains. Its texts are lists of words, or of rows of columns. */
export class Component {
  constructor(content) {
    this.name = String(content.name);
    this.kind = content.kind;
    this.writes = String(content.writes);
    this.labels = texts(content.labels, "labels");
    if (!["chain", "segments", "text", "set"].includes(this.kind)) {
      throw new LiteError(`this lite.js does not know components of the kind '${this.kind}'. Take a newer one.`);
    }
    const isSet = this.kind === "set";
    const isSegments = [this.kind, content.structure].includes("segments");
    const parts = isSet ? listed(content.chains, "chains") : [content];
    this.labellers = parts.map((part) => new Labeller(part, isSegments));
    this.nTags = this.labellers[0].nTags;
    // Places of the labellers' tags in the columns of tables; null for all
    this.tagsOfLabellers = this.labellers.map(() => null);
    if (isSet) {
      this.tagsOfLabellers = parts.map((part, n) => {
        return numbers(part.tags, "tags", { length: this.labellers[n].nTags, least: 0, whole: true });
      });
      const places = new Set(this.tagsOfLabellers.flatMap((tags) => [...tags]));
      this.nTags = places.size;
      const isWhole = Math.max(...places) === this.nTags - 1;
      if (!isWhole) throw new LiteError(`its chains leave out some of the tags. ${EXPORT_AGAIN}`);
    }
    this.maxPositive = content.max_positive ?? null;
    this.readers = listed(content.readers, "readers").map((reader) => new Features({ ...content, ...reader }, this.nTags));
    if (!this.readers.length) throw new LiteError(`it has no features. ${EXPORT_AGAIN}`);
    this.columns = this.readers[0].columns;
    this.longest = Math.max(...this.labellers.map(({ lengths }) => lengths.length));
  }

  /** The labels of a text, which is cut into sequences, with their probabilities, the most probable first: [label, prob] of each. */
  classify(sequences) {
    const [reader] = this.readers;
    const totals = Float64Array.from(this.labellers[0].states.first);
    for (const rows of sequences) {
      reader.scores("states", reader.read(rows)).forEach((score, n) => (totals[n % this.nTags] += score));
    }
    const total = logSum(totals);
    const probs = this.labels.map((label, n) => [label, Math.exp(totals[n] - total)]);
    return probs.sort((a, b) => b[1] - a[1]);
  }

  /** What each chain finds in a text: {tags, spans}, the spans in tokens. */
  label(rows) {
    const scores = this.score(rows);
    return this.labellers.map((labeller, n) => labeller.label(this.scoresOfTags(scores, this.tagsOfLabellers[n])));
  }

  /** The scores of some tags; of all without `tags`. */
  scoresOfTags(scores, tags) {
    if (!tags) return scores;
    const { nTags } = this;
    const segments = new Float64Array(scores.nTokens * scores.longest * tags.length);
    segments.forEach((_, n) => (segments[n] = scores.segments[Math.floor(n / tags.length) * nTags + tags[n % tags.length]]));
    let pairs = null;
    if (scores.pairs) {
      pairs = new Float64Array(scores.nTokens * tags.length ** 2);
      pairs.forEach((_, n) => {
        const t = Math.floor(n / tags.length ** 2);
        const before = tags[Math.floor(n / tags.length) % tags.length];
        pairs[n] = scores.pairs[(t * nTags + before) * nTags + tags[n % tags.length]];
      });
    }
    return { ...scores, segments, pairs };
  }

  /** The spans that the chains of a set find in a text, in order. Of the spans of the same tokens the most probable stay. */
  joined(labelled) {
    if (labelled.length === 1 && this.maxPositive === null) return labelled[0].spans;
    const rank = ({ label }) => this.labels.indexOf(label);
    const inOrder = labelled.flatMap(({ spans }) => spans).sort((a, b) => a.begin - b.begin || a.end - b.end || rank(a) - rank(b));
    if (this.maxPositive === null) return inOrder;
    return inOrder.filter((span) => {
      const ofTokens = inOrder.filter(({ begin, end }) => begin === span.begin && end === span.end);
      return ofTokens.sort((a, b) => b.prob - a.prob).indexOf(span) < this.maxPositive;
    });
  }

  /** Sum the weights of the features of a text: `segments` [T, K, C] by first token, length and tag; `pairs` [T, C, C]. */
  score(rows) {
    const { nTags } = this;
    const nTokens = rows.length;
    const longest = Math.max(1, Math.min(this.longest, nTokens));
    const segments = new Float64Array(nTokens * longest * nTags);
    const none = new Float64Array(nTokens * nTags);
    const totals = { states: none, begins: none, ends: none, tokens: none };
    let pairs = null;
    for (const reader of this.readers) {
      const text = reader.read(rows);
      for (const name of reader.tables.keys()) {
        if (Object.hasOwn(totals, name)) totals[name] = reader.scores(name, text);
        if (name === "transitions") pairs = reader.scores(name, text);
      }
      reader.addSpans(text, segments, longest);
    }
    // The scores of segments of k + 1 tokens, by their first token; `inside` is the sum over their tokens
    const inside = new Float64Array(nTokens * nTags);
    for (let k = 0; k < longest; k++) {
      for (let first = 0; first < (nTokens - k) * nTags; first++) {
        const last = first + k * nTags;
        inside[first] += totals.states[last] + totals.tokens[last];
        const segment = (Math.floor(first / nTags) * longest + k) * nTags + (first % nTags);
        segments[segment] += inside[first] + totals.begins[first] + totals.ends[last];
      }
    }
    const blank = this.readers[0].wordsOf(rows).map((word) => isAll(word, SPACE));
    return { segments, pairs, blank, nTokens, longest };
  }
}
