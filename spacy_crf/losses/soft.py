"""Expected log-likelihood: a teacher gives a distribution over labellings, and the annotation is a certain labelling.

    loss = log Z - sum_z q(z) · log Z(z)

Here z is a labelling of the tokens with soft labels, q(z) its probability by the teacher, and Z(z) the sum over all labellings
that contain z and that the annotation of the other tokens allows. With soft labels for all tokens the loss is the cross-entropy
of teacher and model, log Z - sum_y q(y) · score(y); without soft labels it is the negative log-likelihood.

Scores are sums over segments (tokens, in a chain) and the transitions between them, so from q the loss needs only the expected
number of each segment and transition. For runs of tokens without soft labels, log Z(z) sums over their labellings for each pair
of states beside the run.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np

from .. import arrays, checks
from ..arrays import Scores
from ..inference.structure import Structure, Work
from ..types import SOFT_LABELS, Bools, Clamp, Floats, Ints
from .clamped import LabelledLoss, LogLikelihood, without_rounding

NO_STATE = -1  # state beside a run at the beginning or end of a sequence


class SoftSegments(NamedTuple):
    """How often the teacher expects a segment (a single token, in a chain) with a state: N pairs."""

    begin: Ints  # [N]
    end: Ints  # [N] behind the last token
    state: Ints  # [N]
    weight: Floats  # [N] the expected number


class SoftTransitions(NamedTuple):
    """How often the teacher expects a transition between two segments: N transitions."""

    token: Ints  # [N] where the second segment begins
    before: Ints  # [N] state of the first segment
    after: Ints  # [N] state of the second segment
    weight: Floats  # [N] the expected number


class Runs(NamedTuple):
    """Runs of tokens without soft labels, each listed once for each pair of states of the segments beside it."""

    begin: Ints  # [N]
    end: Ints  # [N] behind the last token
    before: Ints  # [N] state of the segment before the run, NO_STATE where the sequence begins
    after: Ints  # [N] state of the segment behind the run, NO_STATE where the sequence ends
    weight: Floats  # [N] how often the teacher expects these two states
    # [S, S] whether a state continues the span of the state before; None if segments are whole spans
    goes_on: Optional[Bools] = None


class SoftLabelling(NamedTuple):
    """Soft labels of a batch, by the teacher and the annotation."""

    pieces: SoftSegments
    steps: SoftTransitions
    runs: Runs
    has_soft: Bools  # [B] which sequences have soft labels


@dataclass(frozen=True)
class SoftLabels(LabelledLoss):
    """Expected log-likelihood under a teacher's probabilities of spans, or of the labels of tokens. They stand in
    ``doc.spans["crf_soft"]`` of the reference Docs, with the probabilities in ``attrs["scores"]``. Annotation beside them counts
    as in `LogLikelihood`, and takes precedence.

        log Z - sum_z q(z) · log Z(z)

    spans_key (str): The key of ``doc.spans``.
    weight (float): Factor of a sequence with soft labels beside one without.
    """

    spans_key: str = SOFT_LABELS
    weight: float = 1.0

    names_states = True

    def __post_init__(self):
        checks.text("SoftLabels", "spans_key", self.spans_key)
        checks.positive("SoftLabels", "weight", self.weight)

    @property
    def of_annotation(self) -> LogLikelihood:
        """The loss of batches without soft labels: `LogLikelihood`."""
        return LogLikelihood()

    def __call__(
        self,
        structure: Structure[Scores],
        scores: Scores,
        clamp: Any,
        *,
        weights: Optional[Floats] = None,
        soft: Optional[SoftLabelling] = None,
    ) -> tuple[Floats, Scores, Bools]:
        """Evaluate the loss, as `ClampedLoss.__call__`. Sequences whose soft labels are impossible count as impossible.

        soft (SoftLabelling): The soft labels of the batch; None without any.
        """
        if soft is None:
            return self.of_annotation(structure, scores, clamp, weights=weights)
        work = structure.prepare(scores)
        weights = work.check_weights(weights) * np.where(soft.has_soft, self.weight, 1.0)
        runs = run_sequences(structure, work, clamp, soft.runs)
        expected = _expected_scores(structure, work, soft) + runs.expected
        impossible = expected == -np.inf
        weights = np.where(impossible, 0.0, weights)
        # loss = log Z - expected score of the segments with soft labels - expected log sums of the runs between them
        log_z, d_scores = structure.expectations(work, weights=weights)
        _subtract_expected(structure, work, soft, weights, d_scores)
        runs.subtract(structure, work, weights, d_scores)
        losses = np.zeros(len(weights))
        np.subtract(log_z, expected, out=losses, where=~impossible)
        return weights * without_rounding(losses, log_z, "exact" in structure.answers), d_scores, impossible


def per_sequence(terms: Floats, starts: Ints) -> Floats:
    """The sum of the `terms` of tokens (float64[T]) in each sequence that begins at `starts` (int64[B + 1]): float64[B]."""
    return np.diff(np.append(0.0, np.cumsum(terms))[starts])


# -------------------------------------------------------------------------------------------------- expected scores


def _expected_scores(structure: Structure, work: Work, soft: SoftLabelling) -> Floats:
    """Expected score of the segments with soft labels and of the transitions between them: float64[B]."""
    begin, end, state, weight = soft.pieces
    steps = soft.steps
    scores = work.scores
    opens, closes = arrays.ends(work.starts, work.n_tokens)
    segment_scores = structure.score_segments(work, begin, end)[np.arange(len(begin)), state]
    segment_scores += np.where(opens[begin], scores.first[state], 0.0)
    segment_scores += np.where(closes[end - 1], scores.last[state], 0.0)
    step_scores = work.transitions[_rows(work, steps.token), steps.before, steps.after]
    total = np.zeros(work.n_tokens)  # [T] of what begins at each token
    for token, terms in ((begin, weight * segment_scores), (steps.token, steps.weight * step_scores)):
        total += np.bincount(token, terms, minlength=work.n_tokens)
    # Differences of running sums would make -inf NaN
    is_impossible = total == -np.inf
    sums = per_sequence(np.where(is_impossible, 0.0, total), work.starts)
    n_impossible = per_sequence(is_impossible.astype(float), work.starts)
    return np.where(n_impossible > 0, -np.inf, sums)


def _subtract_expected(
    structure: Structure, work: Work, soft: SoftLabelling, weights: Floats, d_scores: Scores
) -> None:
    """Subtract from `d_scores` the derivative of the expected scores, times the weights of the sequences (float64[B])."""
    token_weights = np.repeat(weights, np.diff(work.starts))  # [T]
    begin, end, state, weight = soft.pieces
    steps = soft.steps
    d_segments = np.zeros((len(begin), work.n_states))
    d_segments[np.arange(len(begin)), state] = weight * token_weights[begin]
    d_states = structure.segments_derivative(work, begin, end, d_segments)
    # Transitions may repeat: `bincount` adds up what an assignment by index would overwrite
    cells = (_rows(work, steps.token) * work.n_states + steps.before) * work.n_states + steps.after
    step_weights = steps.weight * token_weights[steps.token]
    d_states.transitions.ravel()[:] = np.bincount(cells, step_weights, minlength=d_states.transitions.size)
    # From scores of states to those that were given
    arrays.subtract(d_scores, structure.narrow(work, d_states))


def _rows(work: Work, token: Ints) -> Ints:
    """The matrices of `work.transitions` that hold the transitions into these tokens: int64[N]."""
    return token if work.per_position else np.zeros_like(token)


# ------------------------------------------------------------------------------ runs of tokens without soft labels


class _RunSequences(NamedTuple):
    """N runs as a batch of N sequences."""

    runs: Runs
    run_work: Optional[Work]  # scores of the N sequences; None without runs
    tokens: Ints  # [t] the token in the batch of each token of the N sequences
    sequence: Ints  # [N] the sequence in the batch of each run
    expected: Floats  # [B] expected log sum over the labellings of the runs of each sequence of the batch

    def subtract(self, structure: Structure, work: Work, weights: Floats, d_scores: Scores) -> None:
        """Subtract from `d_scores` the derivative of the expected log sums, times the `weights` (float64[B]) of the sequences of
        the batch `work`.
        """
        if self.run_work is None:
            return
        begin, end, before, after, weight, _ = self.runs
        _, expected = structure.expectations(self.run_work, weights=weight * weights[self.sequence])
        entered, left = _ends(expected)
        opening, closing = self.run_work.ends()
        d_first = entered[opening]  # [N, S]
        d_last = left[closing]
        total = arrays.zeros(work.scores)
        arrays.add_repeated(total, expected, self.tokens)
        # A run begins with a transition from the segment before it, or with the score of a first state; it ends likewise
        has_before = before != NO_STATE
        has_after = after != NO_STATE
        total.first[:] = d_first[~has_before].sum(axis=0)
        total.last[:] = d_last[~has_after].sum(axis=0)
        d_transitions = total.transitions.reshape(work.transitions.shape)
        np.add.at(d_transitions, (_rows(work, begin[has_before]), before[has_before]), d_first[has_before])
        d_transitions_by_target = d_transitions.swapaxes(1, 2)
        np.add.at(d_transitions_by_target, (_rows(work, end[has_after]), after[has_after]), d_last[has_after])
        arrays.subtract(d_scores, structure.narrow(work, total))


def run_sequences(structure: Structure, work: Work, clamp: Any, runs: Runs) -> _RunSequences:
    """Sum over the labellings of each run of tokens without soft labels, as a sequence whose first and last scores are those
    of the transitions from and to the states beside the run.

    structure (Structure): The structure of the batch.
    work (Work): Potentials of the batch.
    clamp: What the annotation allows.
    runs (Runs): The runs.
    RETURNS (_RunSequences): The runs as sequences, with their expected log sums.
    """
    begin, end, before, after, weight, goes_on = runs
    if not len(begin):
        none = np.zeros(0, dtype=np.int64)
        return _RunSequences(runs, run_work=None, tokens=none, sequence=none, expected=np.zeros(work.n_sequences))
    tokens = arrays.ranges(begin, end)
    starts = np.append(0, np.cumsum(end - begin))
    has_before = before != NO_STATE
    has_after = after != NO_STATE
    opening = starts[:-1]
    closing = starts[1:] - 1
    clamp = arrays.cut_clamp(clamp, tokens)
    if goes_on is not None:  # exclude states that would extend the spans beside a run
        _exclude_states(clamp, opening[has_before], goes_on[before[has_before]])
        _exclude_states(clamp, closing[has_after], goes_on[:, after[has_after]].T)
    scores = arrays.cut(work.scores, tokens, starts)
    first = np.tile(work.scores.first, (len(begin), 1))  # [N, S]
    last = np.tile(work.scores.last, (len(begin), 1))
    first[has_before] = work.transitions[_rows(work, begin[has_before]), before[has_before]]
    last[has_after] = work.transitions[_rows(work, end[has_after]), :, after[has_after]]
    # All sequences of a batch share first and last scores, but each run has its own: they are added to the scores of its tokens
    entered, left = _ends(scores)
    entered[opening] += first
    left[closing] += last
    zeros = np.zeros(work.n_states)
    scores = scores._replace(first=zeros, last=zeros)
    run_work = type(work)(scores, clamp, scores)
    sequence = np.searchsorted(work.starts, begin, side="right") - 1
    # expected[b] = sum over the runs of sequence b of weight · log Z of the run, -inf if a run has no labelling
    log_z = structure.log_partition(run_work)
    terms = np.where(log_z > -np.inf, weight * log_z, 0.0)
    expected = np.bincount(sequence, terms, minlength=work.n_sequences).astype(np.float64, copy=False)
    expected[sequence[log_z == -np.inf]] = -np.inf
    return _RunSequences(runs, run_work, tokens, sequence, expected)


def _exclude_states(clamp: Clamp, tokens: Ints, states: Bools) -> None:
    """Remove states (bool[N, S]) from the clamp of `tokens` (int64[N]), in place, unless a token would have no state left: in the
    scheme IO, two spans of one label that touch are one span.
    """
    others = clamp[tokens] & ~states
    clamp[tokens] = np.where(others.any(axis=1, keepdims=True), others, clamp[tokens])


def _ends(scores: Scores) -> tuple[Floats, Floats]:
    """The scores of a state at the first, and at the last token of its segment: float64[T, S] each, in a chain the emissions."""
    return getattr(scores, "begins", scores[0]), getattr(scores, "ends", scores[0])
