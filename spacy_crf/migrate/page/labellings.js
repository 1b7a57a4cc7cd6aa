// Scores of all labellings of a text: the best one, and the probabilities of spans.
import { LEAST_NUMBER, listed, numbers } from "./content.js";

/** log(exp(a) + exp(b)). */
function addLogs(a, b) {
  if (a === b) return a + Math.LN2;
  return Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));
}

function largest(values) {
  let top = -Infinity;
  for (const value of values) if (value > top) top = value;
  return top;
}

/** The sums of the scores in two arrays. */
function added(a, b) {
  const sums = new Float64Array(a.length);
  for (let n = 0; n < a.length; n++) sums[n] = a[n] + b[n];
  return sums;
}

/** log of the sum of exp(values); minus infinity if all are. */
export function logSum(values) {
  const top = largest(values);
  if (top === -Infinity) return top;
  let sum = 0;
  for (const value of values) sum += Math.exp(value - top);
  return Math.log(sum) + top;
}

/** The states of labellings, of which several may belong to one tag where rules have a memory. */
export class States {
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
    // The states of each label
    this.statesOf = Array.from({ length: Math.max(-1, ...labelOf) + 1 }, () => []);
    this.labelOf.forEach((label, state) => label >= 0 && this.statesOf[label].push(state));
    this.arcs = Array.from(source, (from, n) => ({ from, to: target[n], score: scores[n] }));
    this.continues = (from, to) => continues(this.tagOf[from], this.tagOf[to]);
    this.choice = null;
    this.asks = null;
    if (content.choice !== undefined) {
      const nLabels = this.statesOf.length;
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
    this.every = [...states.tagOf.keys()]; // the states
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

  /** log sum_i exp(scores[i] + step[i, j]) over the steps into each state j; with `isBack` over the steps out of it. Only for the
   * `wanted` states; minus infinity for the others. */
  logSums(scores, pairs, isBack = false, wanted = this.every) {
    const side = isBack ? this.outOf : this.into;
    const { starts, others, exps } = side;
    const top = Math.max(largest(scores), LEAST_NUMBER);
    const shifted = new Float64Array(this.size);
    for (let state = 0; state < this.size; state++) shifted[state] = Math.exp(scores[state] - top);
    const steps = this.scoresAt(side, pairs);
    const sums = new Float64Array(this.size).fill(-Infinity);
    for (const state of wanted) {
      const begin = starts[state];
      const end = starts[state + 1];
      let sum = 0;
      if (!pairs) for (let n = begin; n < end; n++) sum += shifted[others[n]] * exps[n];
      // Features weigh pairs, no state is reached, or the numbers are too small
      if (sum === 0) sums[state] = logSumOfSteps(scores, steps, others, begin, end);
      else sums[state] = Math.log(sum) + top + this.shift;
    }
    return sums;
  }
}

/** log of the sum of exp(score of the other state + score of the step) over the steps from `begin` up to `end`. */
function logSumOfSteps(scores, steps, others, begin, end) {
  let top = -Infinity;
  for (let n = begin; n < end; n++) top = Math.max(top, scores[others[n]] + steps[n]);
  if (top === -Infinity) return top;
  let sum = 0;
  for (let n = begin; n < end; n++) sum += Math.exp(scores[others[n]] + steps[n] - top);
  return Math.log(sum) + top;
}

/** Labellings of a text by segments: O, one token long, and spans, by the scores of length and tag [T, K, C]. */
export class Segments {
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
    const final = added(ends[nTokens - 1], this.states.last);
    const score = largest(final);
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
      const sums = added(before[t], this.scoresOf(t, 0));
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
      const sums = added(behind[t], this.scoresOf(t, 0));
      for (let k = 1; k < longest && t + k < nTokens; k++) {
        const scores = this.scoresOf(t, k);
        for (let s = 0; s < size; s++) sums[s] = addLogs(sums[s], behind[t + k][s] + scores[s]);
      }
      begins[t] = sums;
    }
    const logZ = nTokens ? logSum(added(begins[0], first)) : 0;
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
    const nLabels = this.states.statesOf.length;
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
      const probs = new Float64Array(this.states.statesOf.length);
      this.addProbabilities(span.begin, span.end - span.begin - 1, probs);
      return { ...span, prob: Math.min(probs[span.label], 1) };
    });
  }
}

/** Labellings by segments of one token, whose spans are runs of tags. */
export class Chain extends Segments {
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
    const nLabels = this.states.statesOf.length;
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
    const { first, last, labelOf, stepsOfSpans, statesOf } = this.states;
    const wanted = statesOf[label];
    const { inside, around } = stepsOfSpans;
    // Log sums of what comes before the span, and, as it is extended by a token at a time, of it with that
    const opening = begin ? around.logSums(ends[begin - 1], this.pairsAt(begin), false, wanted) : first;
    const emissions = this.scoresOf(begin, 0);
    let scores = opening.map((score, s) => (labelOf[s] === label ? score + emissions[s] : -Infinity));
    const spans = [];
    for (let t = begin; t < end; t++) {
      const isLast = t + 1 === this.nTokens;
      const closing = isLast ? last : around.logSums(begins[t + 1], this.pairsAt(t + 1), true, wanted);
      const prob = Math.exp(logSum(added(scores, closing)) - logZ);
      const isWanted = least === undefined ? t + 1 === end : prob >= least;
      if (isWanted) spans.push({ begin, end: t + 1, label, prob: Math.min(prob, 1) });
      if (t + 1 === end) break;
      // A longer span is at most as probable as all continuations of this one
      const all = Math.exp(logSum(added(scores, behind[t])) - logZ);
      if (least !== undefined && all - prob < least) break;
      scores = added(inside.logSums(scores, this.pairsAt(t + 1), false, wanted), this.scoresOf(t + 1, 0));
    }
    return spans;
  }
}
