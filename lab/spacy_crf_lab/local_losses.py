"""Losses with local terms, and the log-likelihood with samples in place of sums.

A local term depends on a single token or segment, or on one with its neighbours. In a linear chain, the term of a token depends
on its tag. In a chain of segments, it depends on the path at the token: the state of the segment that begins there, or the
continuation of a segment. For segments of one token both agree. The terms are sums over segments, which in a chain are single
tokens; the structure provides the segments, their scores and their probabilities.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays, checks
from spacy_crf.arrays import Scores, ends, per_position
from spacy_crf.errors import cant_train
from spacy_crf.inference.semi_markov import begins_of, every_span
from spacy_crf.inference.structure import States, Structure, Work
from spacy_crf.losses.clamped import LabelledLoss
from spacy_crf.losses.soft import NO_STATE, Runs, per_sequence, run_sequences
from spacy_crf.schemes import NO_SEGMENTS, Segments
from spacy_crf.types import GOES_ON, Clamp, Floats, SegmentClamp, SegmentScores, SpanList

from .kernels.local_terms import cover_probability, marginal_gradient

_OPEN = -1  # element of a path where the annotation leaves several possibilities
# Largest number of table elements of a batch that are in memory at once
_LARGEST_TABLE = 1 << 22


class AnnotatedBatch(NamedTuple):
    """Annotation of B sequences, and its weights."""

    clamp: SegmentClamp  # labellings that the annotation allows
    wrong: Segments  # labelled segments that are forbidden nevertheless
    factors: Floats  # [T] factor of each token's term
    weights: Floats  # [B] weight of each sequence


def lengths_of(work: Work) -> Floats:
    """Scores of segment lengths from 1 to K tokens: float64[K, S], -inf where a length is impossible. (In a chain each token is a
    segment.)
    """
    return getattr(work.scores, "lengths", np.zeros((1, work.n_states)))


def segment_marginals(structure: Structure, work: Work, every: SpanList) -> tuple[Floats, Floats]:
    """Probabilities of all segments (float64[N, S]), and of the transitions into a segment that begins at each token
    (float64[T, S, S]).
    """
    # Listed spans have their own expectations, and so do steps if transitions depend on the token
    steps = np.array(np.broadcast_to(work.transitions, (work.n_tokens, work.n_states, work.n_states)), order="C")
    scores = work.scores._replace(transitions=steps)
    has_segments = isinstance(scores, SegmentScores)
    if has_segments:
        of_spans = np.zeros((len(every.lengths), work.n_states))
        starts, lengths = scores.listed or every
        of_spans[np.repeat(every.starts[:-1], np.diff(starts)) + lengths - 1] = scores.spans
        scores = scores._replace(spans=of_spans, listed=every)
    _, expected = structure.expectations(type(work)(scores, work.clamp, scores))
    return expected.spans if has_segments else expected.emissions, expected.transitions


def marginals(structure: Structure, work: Work, annotation: AnnotatedBatch):
    """Compute the terms of `PseudoLikelihood`."""
    starts = work.starts
    n_tokens = work.n_tokens
    listed = every_span(starts, len(lengths_of(work)))
    begin = begins_of(listed)
    pieces, steps = segment_marginals(structure, work, listed)
    allowed = _allowed(listed, starts, annotation)
    probability = np.zeros(n_tokens)
    cover_probability(pieces, allowed, listed.starts, probability)
    impossible = any_token(probability <= 0.0, starts)
    # A segment that may not begin at a token has the term of the token before
    opens, _ = ends(starts, n_tokens)
    factors = token_factors(annotation, impossible, starts) * (annotation.clamp.may_begin | opens)
    safe = np.where(probability > 0.0, probability, 1.0)
    terms = -factors * np.log(np.minimum(safe, 1.0))
    # The derivative of log p(the piece at token t is in A) is the expectation of 1[in A] / p over labellings, less 1: an allowed
    # piece is rewarded with 1 / p for each of its tokens that has a term.
    d_pieces = np.zeros_like(pieces)
    d_steps = np.zeros_like(steps)
    marginal_gradient(pieces, steps, allowed, factors / safe, listed.starts, starts, d_pieces, d_steps)
    d_scores = structure.segments_derivative(work, begin, begin + listed.lengths, d_pieces)
    d_transitions = d_steps if per_position(work.scores) else d_steps.sum(axis=0)
    return per_sequence(terms, starts), d_scores._replace(transitions=d_transitions), impossible


def conditionals(structure: Structure, work: Work, annotation: AnnotatedBatch):
    """Compute the terms of `BesagPseudoLikelihood`."""
    scores = work.scores
    starts = work.starts
    size = work.n_states
    path = _named_path(annotation.clamp, starts, lengths_of(work))
    t, a, c, first, last = _named_neighbours(path, starts)
    # A segment of state j begins at t, between segments of the states i and k; or the segment of state i continues.
    #
    #     a       t       c                a               c
    #     i ––––– j ––––– k –––      or    i ––––––––––––– k –––
    i = path[a]
    k = np.where(last, 0, np.append(path, 0)[c])
    c_inside = np.where(last, 0, c)
    by_token = per_position(scores)
    row = np.arange(len(t))
    into = scores.transitions[t, i] if by_token else scores.transitions[i]
    into = np.where(first[:, np.newaxis], scores.first, into)
    out = scores.transitions[c_inside, :, k] if by_token else scores.transitions[:, k].T
    out = np.where(last[:, np.newaxis], scores.last, out)
    begin = np.concatenate([a, a, t])
    end = np.concatenate([np.maximum(t, a + 1), c, c])
    # [M, S] scores of a -> t, of a -> c, and of t -> c as one segment
    left, merged, right = np.split(structure.score_segments(work, begin, end), 3)
    logits = np.empty((len(t), size + 1))
    logits[:, :size] = np.where(first, 0.0, left[row, i])[:, np.newaxis] + into + right + out
    logits[:, size] = np.where(first, -np.inf, merged[row, i] + out[row, i])
    gold = np.where(path[t] == GOES_ON, size, path[t])
    # Each of these tokens chooses one of several options
    terms = np.zeros(len(path))
    no_option = np.zeros(len(path), dtype=bool)
    reached = logits[row, gold]
    # -log p(gold | neighbours) = log sum exp(logits) - logits[gold]
    log_z = log_sum(logits)
    no_option[t] = reached == -np.inf
    impossible = any_token(no_option, starts)
    factors = token_factors(annotation, impossible, starts)[t]
    counted = factors > 0
    terms[t[counted]] = factors[counted] * (log_z[counted] - reached[counted])
    d_logits = np.zeros(logits.shape)
    d_logits[counted] = np.exp(logits[counted] - log_z[counted, np.newaxis])
    d_logits[row, gold] -= 1.0
    d_logits *= factors[:, np.newaxis]
    d_right = d_logits[:, :size]
    d_left = np.zeros((len(t), size))
    d_merged = np.zeros((len(t), size))
    # The segment in front ends at t in every option but the last
    d_left[row, i] = np.where(first, 0.0, d_right.sum(axis=1))
    d_merged[row, i] = d_logits[:, size]
    d_scores = structure.segments_derivative(work, begin, end, np.concatenate([d_left, d_merged, d_right]))
    d_out = d_right + d_merged
    if by_token:
        np.add.at(d_scores.transitions, (t[~first], i[~first]), d_right[~first])
        np.add.at(d_scores.transitions.transpose(0, 2, 1), (c[~last], k[~last]), d_out[~last])
    else:
        np.add.at(d_scores.transitions, i[~first], d_right[~first])
        np.add.at(d_scores.transitions.T, k[~last], d_out[~last])
    return per_sequence(terms, starts), d_scores, impossible


def blocks(size: int, structure: Structure, work: Work, annotation: AnnotatedBatch):
    """Compute the terms of `BesagPseudoLikelihood` for blocks of `size` tokens. RAISES (ValueError): CRF347 for segments."""
    if isinstance(work.scores, SegmentScores):
        raise no_chain(BesagPseudoLikelihood(block=size), "segments")
    starts = work.starts
    states = annotation.clamp.states
    n_tokens = work.n_tokens
    gold = np.where(states.sum(axis=1) == 1, states.argmax(axis=1), _OPEN)
    opens, closes = ends(starts, n_tokens)
    sequence = np.repeat(np.arange(work.n_sequences), np.diff(starts))
    begin = np.flatnonzero((np.arange(n_tokens) - starts[sequence]) % size == 0)
    end = np.minimum(begin + size, starts[sequence[begin] + 1])
    # The tokens of a block, and its neighbours
    first = begin - ~opens[begin]
    last = end + ~closes[end - 1]
    n_open = np.append(0, np.cumsum(gold == _OPEN))
    named = n_open[last] == n_open[first]
    begin = begin[named]
    end = end[named]
    before = np.where(opens[begin], NO_STATE, gold[begin - 1])
    after = np.where(closes[end - 1], NO_STATE, np.append(gold, NO_STATE)[end])
    sums = np.append(0.0, np.cumsum(annotation.factors))  # [T + 1]
    factors = (sums[end] - sums[begin]) / (end - begin)
    runs = Runs(begin, end, before, after, factors)
    # A block's term: log sum over its labellings, less the one over those that the annotation allows
    free = run_sequences(structure, work, np.ones_like(states), runs)
    named_only = run_sequences(structure, work, states, runs)
    impossible = named_only.expected == -np.inf
    weights = np.where(impossible, 0.0, annotation.weights)
    d_free = arrays.zeros(work.scores)
    d_scores = arrays.zeros(work.scores)
    free.subtract(structure, work, weights, d_free)
    arrays.subtract(d_scores, d_free)
    named_only.subtract(structure, work, weights, d_scores)
    terms = np.subtract(free.expected, named_only.expected, out=np.zeros(len(weights)), where=~impossible)
    return weights * terms, d_scores, impossible


def piecewise(structure: Structure, work: Work, annotation: AnnotatedBatch):
    """Compute the terms of `Piecewise`."""
    scores = work.scores
    starts = work.starts
    states = annotation.clamp.states
    listed = every_span(starts, len(lengths_of(work)))
    begin = begins_of(listed)
    end = begin + listed.lengths
    of_spans = structure.score_segments(work, begin, end)
    allowed = _allowed(listed, starts, annotation)
    some = np.flatnonzero(allowed.any(axis=1))
    before, before_allowed, derive_before = _sum_before(scores, states)
    log_z, shares = _sum_pieces(scores, begin, end, of_spans, before)
    of_some = np.where(allowed[some], of_spans[some], -np.inf)
    clamped_log_z, clamped_shares = _sum_pieces(scores, begin[some], end[some], of_some, before_allowed)
    # term(t) = log sum over the pieces at t - log sum over those allowed
    impossible = any_token(clamped_log_z == -np.inf, starts)
    factors = token_factors(annotation, impossible, starts)
    counted = factors > 0.0
    terms = np.zeros(len(factors))
    terms[counted] = factors[counted] * (log_z[counted] - clamped_log_z[counted])
    d_pieces = factors[end - 1, np.newaxis] * shares
    d_clamped = factors[end[some] - 1, np.newaxis] * clamped_shares
    d_before = _by_first_token(d_pieces, begin, len(states))
    d_transitions = derive_before(d_before, _by_first_token(d_clamped, begin[some], len(states)))
    d_pieces[some] -= d_clamped
    d_scores = structure.segments_derivative(work, begin, end, d_pieces)
    return per_sequence(terms, starts), d_scores._replace(transitions=d_transitions), impossible


def _allowed(listed: SpanList, starts: NDArray[np.int64], annotation: AnnotatedBatch) -> NDArray[np.bool_]:
    """Which segments the annotation allows: bool[N, S]."""
    clamp = annotation.clamp
    opens, _ = ends(starts, len(clamp.states))
    may = np.append(clamp.may_begin | opens, True)
    begins = begins_of(listed)
    ends_of = begins + listed.lengths
    # Number of forbidden tokens up to each token
    forbidden = np.cumsum(np.vstack([np.zeros_like(clamp.states[:1]), ~clamp.states]), axis=0, dtype=np.int32)
    must = np.append(0, np.cumsum(clamp.must_begin))
    fits = may[begins] & may[ends_of] & (must[ends_of] == must[begins + 1])
    allowed = (forbidden[ends_of] == forbidden[begins]) & fits[:, np.newaxis]
    begin, end, label = annotation.wrong
    short = end - begin <= np.diff(listed.starts)[begin]
    allowed[(listed.starts[begin] + end - begin - 1)[short], 1 + label[short]] = False
    return allowed


def _named_path(clamp: SegmentClamp, starts: NDArray[np.int64], lengths: Floats) -> NDArray[np.int64]:
    """The annotated path: for each token the state of the segment that begins there, GOES_ON, or _OPEN."""
    opens, _ = ends(starts, len(clamp.states))
    begins = clamp.states & (clamp.may_begin | opens)[:, np.newaxis]
    goes_on = np.zeros(len(clamp.states), dtype=bool)
    longer = (lengths[1:] > -np.inf).any(axis=0)
    goes_on[1:] = (clamp.states[1:] & clamp.states[:-1] & longer).any(axis=1)
    goes_on &= ~(clamp.must_begin | opens)
    named = begins.sum(axis=1) + goes_on == 1
    return np.where(named, np.where(goes_on, GOES_ON, begins.argmax(axis=1)), _OPEN)


def _named_neighbours(path: NDArray[np.int64], starts: NDArray[np.int64]):
    """Find the tokens that have a term, since the path names everything that the term depends on.

    RETURNS (int64[M], int64[M], int64[M], bool[M], bool[M]): t; the first token of the segment in front, or t if it is the first
        of its sequence; the first token of the next segment, or the end of the sequence; whether t is first; whether the sequence
        ends.
    """
    n_tokens = len(path)
    opens = ends(starts, n_tokens)[0]
    place = np.arange(n_tokens)
    goes_on = path == GOES_ON
    # The last token before, and the next one behind, at which a segment begins
    before = np.append(-1, np.maximum.accumulate(np.where(goes_on, -1, place)))[:-1]
    behind = np.append(np.minimum.accumulate(np.where(goes_on, n_tokens, place)[::-1])[::-1], n_tokens)[1:]
    named = np.append(path != _OPEN, True)
    is_end = np.append(opens, True)
    [t] = np.nonzero(named[:-1] & (opens | named[before]) & (is_end[behind] | named[behind]))
    return t, np.where(opens[t], t, before[t]), behind[t], opens[t], is_end[behind[t]]


def _sum_before(scores: Scores, states: NDArray[np.bool_]) -> tuple[Floats, Floats, Callable[[Floats, Floats], Floats]]:
    """Sum over the states before each segment.

    states (bool[T, S]): States that the annotation allows. A state whose share of the sum is e^-700 counts as forbidden.
    RETURNS (float64[T, S], float64[T, S], Callable): Log sums over all states that may precede a segment, or `first`, by the
        segment's first token and state; those over allowed states; and the function that makes the derivative with respect to
        the transitions of that through the first sums, less that through the second.
    """
    opens = ends(scores.starts, len(states))[0][:, np.newaxis]
    transitions = np.asarray(scores.transitions).reshape(-1, *np.shape(scores.transitions)[-2:])
    sums = log_sum(transitions)
    shares = np.exp(transitions - np.where(sums > -np.inf, sums, 0.0)[:, np.newaxis])  # [1 or T, S before, S]
    before = np.vstack([np.zeros_like(states[:1]), states[:-1]]).astype(np.float64)
    # [T, S] exp(sum over allowed states before) / exp(sum over all)
    share = np.where(opens, 1.0, np.matmul(before[:, np.newaxis], shares)[:, 0])  # of the allowed states together

    def derive(d_all: Floats, d_allowed: Floats) -> Floats:
        d_all = d_all * ~opens
        d_allowed = d_allowed * ~opens / np.where(share > 0.0, share, 1.0)
        if per_position(scores):
            return shares * (d_all[:, np.newaxis] - before[:, :, np.newaxis] * d_allowed[:, np.newaxis])
        return shares[0] * (d_all.sum(axis=0) - before.T @ d_allowed)

    everything = np.where(opens, scores.first, sums)
    with np.errstate(divide="ignore"):
        return everything, everything + np.log(share), derive


def _sum_pieces(
    scores: Scores, begin: NDArray[np.int64], end: NDArray[np.int64], of_spans: Floats, into: Floats
) -> tuple[Floats, Floats]:
    """Sum over some segments.

    begin, end (int64[N]), of_spans (float64[N, S]): Segments and their scores, -inf for segments left out.
    into (float64[T, S]): Sums over the states before a segment, by its first token and state.
    RETURNS (float64[T], float64[N, S]): For each token, the log-sum over the segments that end there and the case that none does;
        the share of each segment in that sum.
    """
    n_tokens = len(into)
    final = end - 1
    _, closes = ends(scores.starts, n_tokens)
    shares = of_spans + into[begin]
    shares[closes[final]] += scores.last
    best = shares.max(axis=1)
    largest = np.full(n_tokens, -np.inf)
    farthest = np.full(n_tokens, -1)
    np.maximum.at(largest, final, best)
    np.maximum.at(farthest, begin, np.where(best > -np.inf, final, -1))
    # Tokens that some segment covers beyond: there the piece "no segment ends here" scores 0
    goes_on = np.maximum.accumulate(farthest) > np.arange(n_tokens)
    largest[goes_on] = np.maximum(largest[goes_on], 0.0)
    shift = np.where(largest > -np.inf, largest, 0.0)
    shares -= shift[final, np.newaxis]
    np.exp(shares, out=shares)
    total = goes_on * np.exp(-shift)
    np.add.at(total, final, shares.sum(axis=1))
    shares /= np.where(total > 0.0, total, 1.0)[final, np.newaxis]
    with np.errstate(divide="ignore"):
        return shift + np.log(total), shares


def _by_first_token(values: Floats, begin: NDArray[np.int64], n_tokens: int) -> Floats:
    """Sum the values of the segments that begin at each token: float64[T, S]."""
    total = np.zeros((n_tokens, values.shape[1]))
    first = np.flatnonzero(np.append(True, begin[1:] > begin[:-1])[: len(begin)])
    if len(first):
        total[begin[first]] = np.add.reduceat(values, first, axis=0)
    return total


def token_factors(annotation: AnnotatedBatch, impossible: NDArray[np.bool_], starts: NDArray[np.int64]) -> Floats:
    """Factors of the tokens' terms (float64[T]), times the weights of their sequences; 0 in impossible sequences (bool[B])."""
    sequence = np.repeat(np.arange(len(impossible)), np.diff(starts))
    return np.where(impossible[sequence], 0.0, annotation.factors * annotation.weights[sequence])


def any_token(flags: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which sequences have a token with a flag (bool[T]): bool[B]."""
    return np.diff(np.append(0, np.cumsum(flags))[starts]) > 0


def log_sum(rows: Floats) -> Floats:
    """Log-sums over the second axis."""
    largest = rows.max(axis=1, initial=-np.inf)
    shift = np.where(largest > -np.inf, largest, 0.0)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(rows - shift[:, np.newaxis]).sum(axis=1))


# -------------------------------------------------------------------------------------------------------- the losses


@dataclass(frozen=True)
class LocalLoss(LabelledLoss):
    """Base of the losses in this file."""

    label_weights: Any = None
    # Returns losses (float64[B]), their derivative, and which sequences have a term that no labelling satisfies (bool[B])
    terms: ClassVar[Callable]

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Clamp, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, NDArray[np.bool_]]:
        """Compute the loss, see `ClampedLoss.__call__`. A sequence is impossible if no labelling satisfies one of its terms."""
        free: Structure[Scores] = getattr(structure, "without_rules", structure)
        own_terms = getattr(free, "own_terms", None)  # of ties
        if own_terms is not None:
            return own_terms(self)(self, structure, scores, clamp, weights)
        work = free.prepare(scores)
        weights = work.check_weights(weights)
        whole = self.annotation(clamp, getattr(structure, "wrong", NO_SEGMENTS), weights)
        losses = np.zeros(len(weights))
        impossible = np.zeros(len(weights), dtype=bool)
        d_scores = arrays.zeros(work.scores)
        row_size = work.n_states * max(work.n_states, len(lengths_of(work)))
        for chunk in work.chunks(max(1, _LARGEST_TABLE // row_size)):
            of_part, d_part, impossible[chunk.sequences] = self.terms(free, work.cut(chunk), _cut(whole, *chunk))
            losses[chunk.sequences] = of_part
            arrays.add(d_scores, d_part, chunk.tokens)
        return losses, free.narrow(work, d_scores), impossible

    def annotation(self, clamp: Any, wrong: Segments, weights: Floats) -> AnnotatedBatch:
        """The annotation in the form that the terms compare with the scores. clamp: What the annotation allows."""
        if not isinstance(clamp, SegmentClamp):  # the segments of a chain are single tokens
            every = np.ones(len(clamp), dtype=bool)
            clamp = SegmentClamp(np.asarray(clamp, dtype=bool), every, every)
        states = clamp.states
        gold = np.where(states.sum(axis=1) == 1, states.argmax(axis=1), -1)
        factors = np.where(gold >= 0, self.state_weights(states.shape[1])[gold], 1.0)
        return AnnotatedBatch(clamp, wrong, factors, weights)


class PseudoLikelihood(LocalLoss):
    """Sum of the negative log marginals of each token's annotation (Kakade, Teh & Roweis 2002, eq. 3). This loss optimizes the
    number of right tokens instead of right sequences.

        - sum_t log p(tag of t is allowed)

    For segments it optimizes the number of right segments: the marginal is the probability of exactly the annotated segment, as
    `span_probabilities` computes it, or, for partial annotation, of all allowed segments together.

        - sum_t log p(the segment that covers t is allowed)

    Tokens where no segment may begin share the term of the token before, so an entity counts once, whatever its length.

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    terms = staticmethod(marginals)


@dataclass(frozen=True)
class BesagPseudoLikelihood(LocalLoss):
    """Probability of each token's tag given the tags of its neighbours (Besag 1975), without sums over labellings. A token has no
    term if the annotation leaves its own tag or a neighbour's tag open.

        - sum_t log p(tag of t | tag of t - 1, tag of t + 1)

    For segments the terms depend on the path, which has at each token the state of the segment that begins there, or a
    continuation:

        - sum_t log p(path at t | path at all other tokens)

    So the segment from t to the beginning of the next one may have any state, or continue the segment before it.

    Where tokens are tied, the condition includes the labels at the other ends of the ties; open ends are left out.

    A composite likelihood (Lindsay 1988) of a chain cuts each sequence into blocks of some tokens. Each block has a term, a sum
    over its labellings, unless the annotation leaves open a tag of the block or beside it:

        - sum_b log p(tags of block b | tags beside it)

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels; a block takes the mean of its tokens.
    block (int): Tokens of a block. Blocks as long as the sequences give the log-likelihood.
    """

    block: int = 1

    names_states = True  # tokens with open annotation have no term

    def __post_init__(self):
        super().__post_init__()
        checks.count("BesagPseudoLikelihood", "block", self.block, most=1 << 20)

    @property
    def terms(self) -> Callable:
        """The function that computes the terms: of single tokens, or of blocks."""
        return conditionals if self.block == 1 else partial(blocks, self.block)


def no_chain(loss: LabelledLoss, what: str) -> ValueError:
    """The error CRF347 for blocks where there is no chain of tokens, but what this text names."""
    return cant_train(loss, what, "its blocks are those of a chain of tokens", "block = 1, or LogLikelihood")


class Piecewise(LocalLoss):
    """Each token with its predecessor is a model of its own, a piece (Sutton & McCallum 2005, eq. 5). The score of a piece is the
    transition plus the emission. The loss compares the log-sum over all pairs of states with the log-sum over the annotated
    pairs; it is an upper bound of the negative log-likelihood.

        sum_t (log sum_ij exp(piece(t, i, j)) - log sum_{ij allowed} exp(piece(t, i, j)))

    For segments a piece is a segment of state j and any length that ends with t, with the state i before it. Where a segment may
    continue behind t, "no segment ends with t" is one more piece, with a score of 0. The loss is an upper bound again: every
    labelling chooses one piece at each token.

    Where tokens are tied, each tie is one more piece: a table of the pairs of labels at its ends.

    label_weights (Dict[str, float]): Factors of the pieces of tokens with these labels; a tie takes the mean of its ends.
    """

    terms = staticmethod(piecewise)


def _cut(whole: AnnotatedBatch, sequences: slice, tokens: slice) -> AnnotatedBatch:
    """Cut out the annotation of some sequences and their tokens."""
    inside = (whole.wrong.start >= tokens.start) & (whole.wrong.start < tokens.stop)
    start, end, label = whole.wrong
    wrong = Segments(start[inside] - tokens.start, end[inside] - tokens.start, label[inside])
    clamp = arrays.cut_clamp(whole.clamp, tokens)
    return AnnotatedBatch(clamp, wrong, whole.factors[tokens], whole.weights[sequences])


# ----------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class SampledLikelihood(LabelledLoss):
    """Stochastic maximum likelihood (Younes 1989; Tieleman 2008): the derivative of `LogLikelihood`, with the mean of samples in
    place of sums over all labellings.

        mean uses of each score in the samples - uses in the annotation

    Chains draw exact samples, so the derivative is unbiased. Where tokens are tied, samples are walks of
    `spacy_crf_lab.Gibbs.v1`. A walk continues from its last labelling (persistent) or begins anew; walks that begin at the
    annotation are contrastive divergence (Hinton 2002). The reported value is that of `BesagPseudoLikelihood`, since the
    likelihood is unknown. The derivative is noisy: use an optimizer of thinc.

    samples (int): Number of labellings drawn for each text.
    steps (int): How often a walk redraws each sentence for a sample. With few steps, labels that strong ties hold together rarely
        change.
    persistent (bool): Whether walks continue from their last labellings.
    start (str): Where walks begin: "chain" for a labelling drawn without ties, or "gold" for the annotation.
    seed (int): Seed of all random numbers.
    """

    samples: int = 10
    steps: int = 5
    persistent: bool = True
    start: str = "chain"
    seed: int = 0
    # State of the sampler: random numbers, and the labellings from which walks continue
    random: np.random.Generator = field(init=False, repr=False, compare=False)
    kept: dict[bytes, States] = field(init=False, repr=False, compare=False, default_factory=dict)

    smooth = False  # a line search can't compare sampled values
    names_states = True

    def __post_init__(self):
        owner = type(self).__name__
        checks.count(owner, "samples", self.samples)
        checks.count(owner, "steps", self.steps)
        checks.flag(owner, "persistent", self.persistent)
        checks.one_of(owner, "start", self.start, ("chain", "gold"))
        checks.count(owner, "seed", self.seed, least=0, most=checks.ANY)
        object.__setattr__(self, "random", np.random.default_rng(self.seed))

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Clamp, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, NDArray[np.bool_]]:
        """Compute the loss, see `ClampedLoss.__call__`."""
        losses, _, impossible = BesagPseudoLikelihood().bind(self.states)(structure, scores, clamp, weights=weights)
        work = structure.prepare(scores, annotated=clamp)
        gold = structure.only_path(clamp)
        if gold is None:
            allowed = self._draw(structure, work.clamped(clamp), None, clamp)
        else:
            allowed = gold[np.newaxis]
        impossible = impossible | (structure.path_score(work, allowed[0]) == -np.inf)
        weights = np.where(impossible, 0.0, work.check_weights(weights))
        drawn = self._draw(structure, work, None if gold is None else allowed, clamp)
        derivative = arrays.zeros(work.original)
        for labellings, factor in ((drawn, 1.0), (allowed, -1.0)):
            for states in labellings:
                share = factor * weights / len(labellings)
                structure.path_expectations(work, states, weights=share, out=derivative)
        return np.where(impossible, 0.0, losses), derivative, impossible

    def _draw(self, structure: Any, work: Work[Scores], gold: Optional[States], clamp: Optional[Clamp]) -> States:
        """Draw labellings (int32[N, T]). gold (int32[1, T]): The annotated labelling if it is known."""
        seed = int(self.random.integers(1 << 31))
        begin = gold if self.start == "gold" else None
        if not hasattr(structure, "walk_samples"):  # which draws labellings, and need not walk from one to another
            return structure.sample(work, self.samples, seed=seed)
        return structure.walk_samples(work, self.samples, seed=seed, loss=self, begin=begin, annotation=clamp)
