"""Semi-Markov chains: sums, maxima, paths and samples of batches of segmented sequences.

A path has one int32 for each token: the state at the first token of a segment, GOES_ON at its other tokens, -1 if the sequence
has no path.
"""

from functools import cached_property
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..arrays import LatestResults
from ..errors import Errors
from ..kernels import checks
from ..kernels import semi_markov as kernels
from ..kernels.log_space import LogPotentials, SegmentArrays
from ..kernels.numerics import SPREAD
from ..schemes import Segments
from ..types import GOES_ON, Bools, Floats, Ints, Path, SegmentClamp, SegmentScores, SpanList
from . import log_space
from .scaling import exp_less
from .structure import LikelySpans, SpanStates, States, Structure


def add_spans(listed: Optional[SpanList], begin: Ints, end: Ints, n_tokens: int) -> tuple[SpanList, Ints, Ints]:
    """Add spans to a list.

    listed (Optional[SpanList]): The list, which may contain some of the spans already; None for no spans.
    begin (int64[N]): First token of each added span.
    end (int64[N]): The token behind each added span.
    n_tokens (int): T.
    RETURNS (SpanList, int64[M], int64[N]): The new list; in it, the numbers of the spans listed before; the numbers of
        the added spans.
    """
    old_starts, lengths = listed or _no_spans(n_tokens)
    width = 1 + max(int(lengths.max(initial=0)), int((end - begin).max(initial=0)))
    # A key for each span, in the order of the list: begin · width + length
    old_keys = np.repeat(np.arange(n_tokens), np.diff(old_starts)) * width + lengths
    added_keys = begin * width + (end - begin)
    keys = np.union1d(old_keys, added_keys).astype(np.int64)
    counts = np.bincount(keys // width, minlength=n_tokens)  # [T] spans that begin at each token
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    spans = SpanList(starts, (keys % width).astype(np.int32))
    return spans, np.searchsorted(keys, old_keys), np.searchsorted(keys, added_keys)


def _no_spans(n_tokens: int) -> SpanList:
    return SpanList(np.zeros(n_tokens + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))


def every_span(starts: Ints, longest: int) -> SpanList:
    """All spans of 1 to K tokens within sequences.

    starts (int64[B + 1]): Where the sequences start.
    longest (int): K.
    """
    end_of_sequence = np.repeat(starts[1:], np.diff(starts))  # [T]
    n_left = end_of_sequence - np.arange(len(end_of_sequence))  # [T] tokens from here to the end of the sequence
    counts = np.minimum(longest, n_left)  # [T] spans that begin at each token
    first = np.append(0, np.cumsum(counts)).astype(np.int64)
    lengths = 1 + np.arange(first[-1]) - np.repeat(first[:-1], counts)
    return SpanList(first, lengths.astype(np.int32))


def begins_of(listed: SpanList) -> Ints:
    """First token of each listed span: int64[N]."""
    return np.repeat(np.arange(len(listed.starts) - 1), np.diff(listed.starts))


def with_listed(scores: SegmentScores, begin: Ints, end: Ints) -> tuple[SegmentScores, Ints, Ints]:
    """Potentials that list further spans, with scores of 0.

    scores (SegmentScores): Potentials of B sequences.
    begin, end (int64[N]): The spans, each of 1 to K tokens within a sequence; some may be listed already.
    RETURNS (SegmentScores, int64[M], int64[N]): The potentials; in their list, the numbers of the M spans listed before; the
        numbers of the N spans.
    """
    listed, old_numbers, numbers = add_spans(scores.listed, begin, end, len(scores.tokens))
    spans = np.zeros((len(listed.lengths), np.shape(scores.tokens)[1]))
    spans[old_numbers] = scores.spans
    return scores._replace(spans=spans, listed=listed), old_numbers, numbers


class SegmentWork(log_space.LogWork[SegmentScores]):
    """Scores of chains of segments, prepared for the kernels."""

    masked = False  # whether a state is forbidden at some token; set when `log_potentials` is computed

    @cached_property
    def span_of(self) -> NDArray[np.int32]:
        """Number of the listed span that begins at each token and has each length, -1 for none: int32[T, K]."""
        listed = self.scores.listed or _no_spans(self.n_tokens)
        span_of = np.full((self.n_tokens, len(self.scores.lengths)), -1, dtype=np.int32)
        span_of[begins_of(listed), listed.lengths - 1] = np.arange(len(listed.lengths))
        return span_of

    def segment_arrays(self, scores: SegmentScores) -> SegmentArrays:
        """`scores`, or derivatives, as the kernels take them."""
        transitions = scores.transitions if self.per_position else scores.transitions[np.newaxis]
        return SegmentArrays(
            tokens=scores.tokens,
            begins=scores.begins,
            ends=scores.ends,
            lengths=scores.lengths,
            spans=scores.spans,
            transitions=transitions,
            first=scores.first,
            last=scores.last,
            span_of=self.span_of,
            starts=self.starts,
        )

    @cached_property
    def log_potentials(self) -> LogPotentials:
        """Scores of segments with the clamp applied, as the log-space recursions take them."""
        scores = self.segment_arrays(self.scores)
        clamp = self.clamp
        tokens = self.scores.tokens
        # A segment from b to e has the score opening[b, j] + closing[e - 1, j] + lengths[e - b - 1, j] + spans[n, j]. Opening and
        # closing contain running sums of the scores of tokens, whose difference is the sum over the segment
        opening = np.empty(tokens.shape)
        closing = np.empty(tokens.shape)
        reach = np.empty(tokens.shape, dtype=np.int32)
        self.masked = kernels.running_sums(scores, opening, closing) or clamp is not None
        if not self.masked:
            kernels.no_mask(self.starts, reach)
        else:
            if clamp is None:
                never = np.zeros(len(tokens), dtype=bool)
                clamp = SegmentClamp(np.ones(tokens.shape, dtype=bool), ~never, never)
            kernels.mask(tokens, *clamp, self.starts, opening, closing, reach)
        return LogPotentials(
            opening=opening,
            closing=closing,
            lengths=scores.lengths,
            spans=scores.spans,
            transitions=scores.transitions,
            first=scores.first,
            last=scores.last,
            span_of=scores.span_of,
            reach=reach,
            starts=self.starts,
        )

    @cached_property
    def exponentials(self) -> "_Exponentials":
        """Exponentials of the shared scores."""
        scores = self.scores
        if self.per_position:
            return _exponentials(self.transitions, scores.lengths, scores.first, scores.last)
        # A chunk reads them from the work on the whole batch, which computes them once
        if self.whole is not self:
            return self.whole.exponentials
        return _shared.of(_exponentials, self.transitions, scores.lengths, scores.first, scores.last)


class SemiMarkov(Structure[SegmentScores]):
    """Answers the questions of `Structure` for `SegmentScores`; clamps are `SegmentClamp`. Ties between best paths go to the
    lower last state, then to the shorter last segment, then likewise to the segments before.
    """

    chunk_tokens = 4096
    uniforms = (2,)
    work = SegmentWork

    def conform(self, scores: SegmentScores) -> SegmentScores:
        """Check `scores`, which get an empty list of spans if they list none. RAISES (ValueError): CRF016 for an
        unordered list.
        """
        checked = super().conform(scores)
        if checked.listed is None:
            return checked._replace(listed=_no_spans(len(checked.tokens)))
        first, lengths = checked.listed
        listed = SpanList(arrays.contiguous(first, np.int64), arrays.contiguous(lengths, np.int32))
        if not checks.well_listed(*listed, checked.starts, len(checked.lengths)):
            raise ValueError(Errors.CRF016.format(longest=len(checked.lengths)))
        return checked._replace(listed=listed)

    def forward(self, work: SegmentWork) -> Floats:
        """Log partitions of the chunk `work`: the log-sum over the segmentations of each sequence."""
        log_z, _, _ = self._forward(work)
        return log_z

    def expect(self, work: SegmentWork, weights: Floats, out: SegmentScores) -> Floats:
        """Both passes over `work`: `out` becomes the derivative of sum_b `weights`[b] · log_z[b]."""
        # enter[t, j] = logsum_i(left[t-1, i] + transitions[i, j])
        # left[t, j]  = closing[t, j] + logsum_k(enter[t-k, j] + opening[t-k, j] + lengths[k, j] + spans[.., j])
        # log_z       = logsum_j(left[T-1, j] + last[j])
        log_z, linear, log_passes = self._forward(work)
        derivatives = work.segment_arrays(out)
        if linear is not None:
            potentials, prefixes, linear_log_z = linear
            kernels.expectations(potentials, prefixes, weights, linear_log_z, derivatives)
            # The kernel leaves out the factor that all tokens share
            derivatives.transitions[:] *= work.exponentials.transitions
            for b in np.flatnonzero(np.isnan(linear_log_z)).tolist():
                if b not in log_passes:  # only the backward pass refused the linear domain
                    log_passes[b] = log_space.forward(work, work.chunk(b, b + 1), log_z)
        for log_pass in log_passes.values():
            log_space.backward(log_pass, log_z, weights, out)
        _sum_up(work, out)
        return log_z

    def _forward(self, work: SegmentWork) -> tuple[Floats, "Optional[_LinearPass]", dict[int, log_space.LogPass]]:
        """Forward pass: log partitions (float64[B]), the pass in the linear domain (or None), and the passes in log space by the
        number of their first sequence.
        """
        linear = _linear_forward(work)
        if linear is None:
            log_z = np.empty(work.n_sequences)
            log_pass = log_space.forward(work, work.chunk(0, work.n_sequences), log_z)
            return log_z, None, {0: log_pass}
        log_z = linear.log_z.copy()
        has_tokens = work.starts[:-1] < work.starts[1:]
        log_z[has_tokens] += work.exponentials.end_shift
        log_passes = {}
        for b in np.flatnonzero(np.isnan(log_z)).tolist():
            log_passes[b] = log_space.forward(work, work.chunk(b, b + 1), log_z)
        return log_z, linear, log_passes

    def best(self, work: SegmentWork) -> Path:
        """Best segmentation of each sequence of `work`."""
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(work.log_potentials, *path)
        return path

    def rank(self, work: SegmentWork, states: States, scores: Floats) -> int:
        """The best segmentations of the sequence `work`, in `states` (int32[n, T]), and their `scores` (float64[n])."""
        return log_space.rank(work, states, scores)

    def draw(self, work: SegmentWork, uniforms: Floats) -> States:
        """Segmentations of `work`, drawn by `uniforms` (float64[n, T, 2]): int32[n, T]."""
        return log_space.draw(work, uniforms)

    def only(self, work: SegmentWork, states: States) -> SegmentClamp:
        """The clamp that allows one segmentation of each sequence of `work`, `states` (int32[T])."""
        begins = states != GOES_ON
        first = states  # [T] first token of the segment of each token; `accumulate` refuses an empty array
        if len(states):
            first = np.maximum.accumulate(np.where(begins, np.arange(len(states)), 0))
        allowed = states[first][:, np.newaxis] == np.arange(work.n_tags)  # [T, S]
        return SegmentClamp(states=allowed, may_begin=begins, must_begin=begins)

    def only_path(self, clamp: SegmentClamp) -> Optional[States]:
        """The only segmentation that `clamp` allows: int32[T], None if it allows none or several."""
        states = np.empty(len(clamp.states), dtype=np.int32)
        allowed = [arrays.contiguous(array, np.bool_) for array in clamp]
        return states if kernels.only_path(*allowed, states) else None

    def score_path(self, work: SegmentWork, states: States) -> Floats:
        """Scores by `work` of the segmentations `states` (int32[T]): float64[B]."""
        path_scores = np.empty(work.n_sequences)
        kernels.path_score(work.segment_arrays(work.scores), states, path_scores)
        return path_scores

    def add_path(self, work: SegmentWork, states: States, weights: Floats, out: SegmentScores) -> None:
        """Add `weights` (float64[B]) to the scores in `out` that the segmentations `states` (int32[T]) of `work` use."""
        kernels.path_expectations(states, weights, work.segment_arrays(out))

    def score_segments(self, work: SegmentWork, begin: Ints, end: Ints) -> Floats:
        """Scores by `work` of segments from `begin` to `end` (int64[N] each) for each state: float64[N, S]."""
        scores = work.scores
        log_potentials = work.log_potentials
        last = end - 1
        is_possible = end - begin <= len(scores.lengths)
        # segment_scores[n, j] = opening[begin, j] + closing[end - 1, j] + lengths[end - begin - 1, j] + spans[number, j]
        segment_scores = log_potentials.opening[begin] + log_potentials.closing[last]  # [N, S]
        row = np.where(is_possible, end - begin, 1) - 1  # of `lengths`
        segment_scores += scores.lengths[row]
        number = np.where(is_possible, log_potentials.span_of[begin, row], -1)
        is_listed = number >= 0
        segment_scores[is_listed] += scores.spans[number[is_listed]]
        # No segment that ends here may begin before `reach`
        is_masked = log_potentials.reach[last] > begin[:, np.newaxis]
        segment_scores[~is_possible[:, np.newaxis] | is_masked] = -np.inf
        return segment_scores

    def segments_derivative(self, work: SegmentWork, begin: Ints, end: Ints, derivative: Floats) -> SegmentScores:
        """The derivative with respect to all scores of `work`, from the `derivative` (float64[N, S]) with respect to the
        scores of segments from `begin` to `end` (int64[N] each).
        """
        out = arrays.zeros(work.scores)
        is_possible = end - begin <= len(out.lengths)
        kernels.add_segments(begin[is_possible], end[is_possible], derivative[is_possible], work.segment_arrays(out))
        _sum_up(work, out)
        return out

    def weigh_spans(self, work: SegmentWork, spans: SpanStates, segments: Segments) -> Floats:
        """Probabilities in `work` of the spans `segments`; `spans` says which tags their labels have: float64[N]."""
        [possible] = np.nonzero(segments.end - segments.start <= len(work.scores.lengths))
        # A listed span has a score, so its probability is the derivative with respect to this score
        listing, _, numbers = with_listed(work.scores, segments.start[possible], segments.end[possible])
        # By the plain structure, whatever subclass this is, since `listing` has the scores of this work
        _, expected = SemiMarkov().expectations(SegmentWork(listing, work.clamp))
        tag_probabilities = expected.spans  # [listed spans, tags], where states are tags
        if work.tag_of is not None:
            tag_probabilities = arrays.by_tag(expected.spans, work.tag_of, work.n_tags)
        tag = spans.offset + segments.label[possible]
        probabilities = np.zeros(len(segments.start))
        probabilities[possible] = tag_probabilities[numbers, tag]
        return np.clip(probabilities, 0.0, 1.0)

    def list_spans(self, work: SegmentWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        """The spans in `work` whose probability is at least `min_prob`; `spans` says which states encode them."""
        tag_of = work.tag_of
        # Of the states of a span's tag, one has at least an equal share of the span's probability; `weigh_spans` sums them later
        most_states = 1 if tag_of is None else int(np.bincount(tag_of).max(initial=1))
        # Lower by one part in a million, so that rounding loses no span with exactly the least probability
        min_log_prob = np.log(min_prob / most_states) - 1e-6 if min_prob > 0 else -np.inf
        log_z = np.empty(work.n_sequences)
        entered, _ = log_space.prefixes(work, log_z)
        leaving, _ = log_space.suffixes(work)

        def search(out: tuple[Ints, Ints, States, Floats]) -> int:
            return kernels.list_probable(work.log_potentials, entered, leaving, log_z, min_log_prob, out)

        # The kernel counts spans that arrays have no room for
        n_spans = search(_span_columns(0))
        columns = _span_columns(n_spans)
        search(columns)
        begin, length, state, log_prob = columns
        tag = state if tag_of is None else tag_of[state]
        label = tag.astype(np.int64) - spans.offset
        has_label = label >= 0  # not O
        segments = Segments(begin[has_label], (begin + length)[has_label], label[has_label])
        if tag_of is None:
            return LikelySpans(segments, np.minimum(np.exp(log_prob[has_label]), 1.0))
        # Several states may have listed the same span
        distinct = Segments(*np.unique(np.column_stack(segments), axis=0).T)
        probabilities = self.weigh_spans(work, spans, distinct)
        is_likely = probabilities >= min_prob * (1 - 1e-6)  # a span at the threshold stays in spite of rounding
        return LikelySpans(Segments(*(column[is_likely] for column in distinct)), probabilities[is_likely])


def _span_columns(size: int) -> tuple[Ints, Ints, States, Floats]:
    """Arrays for the first tokens, lengths, states and log probabilities of `size` segments."""
    return np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size)


def _sum_up(work: SegmentWork, out: SegmentScores) -> None:
    """Compute the derivatives of tokens, first and last from the derivatives of `begins` and `ends`, in `out`."""
    # d tokens[t, j] counts the segments that cover t: all that begin up to t, less all that end before t
    kernels.cover(work.segment_arrays(out))
    # `first` counts the segments that begin a sequence, and `last` those that end one
    opening, closing = work.ends()
    out.first[:] = out.begins[opening].sum(axis=0)
    out.last[:] = out.ends[closing].sum(axis=0)


# --------------------------------------------------------------------------------- between scores and the linear domain


class _Exponentials(NamedTuple):
    """exp of the shared scores."""

    transitions: Floats  # [1 or n, S, S] less the maximum of each
    transposed: Floats  # [1 or n, S, S]
    lengths: Floats  # [K, S]
    first: Floats  # [S] less the maximum
    last: Floats  # [S] less the maximum
    shift: Floats  # [1 or n] the maxima of the transitions
    end_shift: float  # the sum of the maxima of first and last
    unbroken: Bools  # [S] whether no length is forbidden between allowed lengths
    spread: float  # largest distance between finite scores of one array
    extra: float  # largest absolute score of a length


def _exponentials(transitions: Floats, lengths: Floats, first: Floats, last: Floats) -> _Exponentials:
    """Compute the exponentials of transitions (float64[1 or n, S, S]), lengths (float64[K, S]), first and last (float64[S])."""
    exp_transitions = np.empty_like(transitions)
    exp_first = np.empty(len(first))
    exp_last = np.empty(len(last))
    shift, spread = exp_less(transitions, exp_transitions)
    first_shift, first_spread = exp_less(first, exp_first)
    last_shift, last_spread = exp_less(last, exp_last)
    exp_lengths = np.exp(np.minimum(lengths, kernels.EXTRA))  # beyond, `_linear_forward` refuses the scores
    allowed = exp_lengths > 0
    return _Exponentials(
        transitions=exp_transitions,
        transposed=np.ascontiguousarray(exp_transitions.transpose(0, 2, 1)),
        lengths=exp_lengths,
        first=exp_first,
        last=exp_last,
        shift=shift,
        end_shift=float(first_shift[0] + last_shift[0]),
        unbroken=np.all(allowed[1:] <= allowed[:-1], axis=0),
        spread=float(max(spread.max(initial=0.0), first_spread[0], last_spread[0])),
        extra=_largest(lengths),
    )


def _largest(scores: Floats) -> float:
    """The largest absolute value of the scores that are not -inf."""
    return float(np.abs(scores[scores > -np.inf]).max(initial=0.0))


_shared = LatestResults(32)


class _LinearPass(NamedTuple):
    """Forward pass in the linear domain."""

    potentials: kernels.ScaledSegmentPotentials
    prefixes: kernels.SegmentForwardRows
    log_z: Floats  # [B] log partitions less the shift of the ends, NaN for sequences that need log space


def _linear_forward(work: SegmentWork) -> Optional[_LinearPass]:
    """Forward pass in the linear domain; None if the scores do not fit the domain."""
    log_potentials = work.log_potentials
    exponentials = work.exponentials
    # The scaled recursions do not read `reach`: all segments of possible lengths must be allowed
    if work.masked or exponentials.spread > SPREAD:
        return None
    if exponentials.extra + _largest(log_potentials.spans) > kernels.EXTRA:
        return None
    potentials = kernels.ScaledSegmentPotentials(
        opening=log_potentials.opening,
        closing=log_potentials.closing,
        lengths=exponentials.lengths,
        spans=np.exp(log_potentials.spans),
        transitions=exponentials.transitions,
        transposed=exponentials.transposed,
        first=exponentials.first,
        last=exponentials.last,
        shift=exponentials.shift,
        unbroken=exponentials.unbroken,
        span_of=log_potentials.span_of,
        starts=log_potentials.starts,
    )
    shape = log_potentials.opening.shape  # [T, S]
    prefixes = kernels.SegmentForwardRows(
        enter=np.empty(shape),
        enter_scale=np.empty(work.n_tokens),
        left=np.empty(shape),
        left_scale=np.empty(work.n_tokens),
    )
    log_z = np.empty(work.n_sequences)
    kernels.forward(potentials, prefixes, log_z)
    return _LinearPass(potentials, prefixes, log_z)
