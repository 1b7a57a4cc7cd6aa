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
    """Expected number of tokens, or segments, with each state."""

    begin: Ints  # [N]
    end: Ints  # [N]
    state: Ints  # [N]
    weight: Floats  # [N]


class SoftTransitions(NamedTuple):
    """Expected number of transitions between two segments."""

    token: Ints  # [N] where the second one begins
    before: Ints  # [N] states
    after: Ints  # [N]
    weight: Floats  # [N]


class Runs(NamedTuple):
    """Runs of tokens without soft labels, each listed once for each pair of states that may stand beside it."""

    begin: Ints  # [N]
    end: Ints  # [N]
    before: Ints  # [N] state of the piece before, NO_STATE where the sequence begins
    after: Ints  # [N] state of the piece behind, NO_STATE where it ends
    weight: Floats  # [N]
    # [S, S] whether a state continues the span of the state before; None if pieces are whole spans
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
        """See `LabelledLoss.of_annotation`: `LogLikelihood`."""
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
        """As `ClampedLoss.__call__`, with a `SoftLabelling`. Sequences whose soft labels are impossible count as impossible."""
        if soft is None:
            return self.of_annotation(structure, scores, clamp, weights=weights)
        work = structure.prepare(scores)
        weights = work.check_weights(weights) * np.where(soft.has_soft, self.weight, 1.0)
        between = run_sequences(structure, work, clamp, soft.runs)
        reached = _expected_scores(structure, work, soft) + between.reached
        impossible = reached == -np.inf
        weights = np.where(impossible, 0.0, weights)
        log_z, d_scores = structure.expectations(work, weights=weights)
        _subtract_expected(structure, work, soft, weights, d_scores)
        between.subtract(structure, work, weights, d_scores)
        losses = np.zeros(len(weights))
        np.subtract(log_z, reached, out=losses, where=~impossible)
        return weights * without_rounding(losses, log_z, "exact" in structure.answers), d_scores, impossible


def per_sequence(terms: Floats, starts: Ints) -> Floats:
    """Sums of the terms of tokens (float64[T]) by sequence, from starts (int64[B + 1]): float64[B]."""
    return np.diff(np.append(0.0, np.cumsum(terms))[starts])


# -------------------------------------------------------------------------------------------------- expected scores


def _expected_scores(structure: Structure, work: Work, soft: SoftLabelling) -> Floats:
    """Expected score of the segments with soft labels and of the transitions between them: float64[B]."""
    begin, end, state, weight = soft.pieces
    steps = soft.steps
    scores = work.scores
    opens, closes = arrays.ends(work.starts, work.n_tokens)
    of_pieces = structure.score_segments(work, begin, end)[np.arange(len(begin)), state]
    of_pieces += np.where(opens[begin], scores.first[state], 0.0)
    of_pieces += np.where(closes[end - 1], scores.last[state], 0.0)
    of_steps = work.transitions[_rows(work, steps.token), steps.before, steps.after]
    total = np.zeros(work.n_tokens)
    for token, terms in ((begin, weight * of_pieces), (steps.token, steps.weight * of_steps)):
        total += np.bincount(token, terms, minlength=work.n_tokens)
    never = total == -np.inf
    sums = per_sequence(np.where(never, 0.0, total), work.starts)
    return np.where(per_sequence(never.astype(float), work.starts) > 0, -np.inf, sums)


def _subtract_expected(
    structure: Structure, work: Work, soft: SoftLabelling, weights: Floats, d_scores: Scores
) -> None:
    """Subtract the derivative of the expected scores, times the weights of the sequences (float64[B])."""
    of_token = np.repeat(weights, np.diff(work.starts))
    begin, end, state, weight = soft.pieces
    steps = soft.steps
    of_pieces = np.zeros((len(begin), work.n_states))
    of_pieces[np.arange(len(begin)), state] = weight * of_token[begin]
    expected = structure.segments_derivative(work, begin, end, of_pieces)
    place = (_rows(work, steps.token) * work.n_states + steps.before) * work.n_states + steps.after
    of_steps = np.bincount(place, steps.weight * of_token[steps.token], minlength=expected.transitions.size)
    expected.transitions.ravel()[:] = of_steps
    arrays.subtract(d_scores, structure.narrow(work, expected))


def _rows(work: Work, token: Ints) -> Ints:
    """Rows of the transitions into these tokens."""
    return token if work.per_position else np.zeros_like(token)


# ------------------------------------------------------------------------------ runs of tokens without soft labels


class _RunSequences(NamedTuple):
    """Runs as sequences of their own."""

    runs: Runs
    work: Optional[Work]  # None without runs
    tokens: Ints  # [t] their tokens in the batch
    sequence: Ints  # [N] sequence of each run
    reached: Floats  # [B] expected log sums

    def subtract(self, structure: Structure, work: Work, weights: Floats, d_scores: Scores) -> None:
        """Subtract the runs' part from the derivative of the loss."""
        if self.work is None:
            return
        begin, end, before, after, weight, _ = self.runs
        _, expected = structure.expectations(self.work, weights=weight * weights[self.sequence])
        entered, left = _ends(expected)
        opening, closing = self.work.ends()
        d_first = entered[opening]
        d_last = left[closing]
        total = arrays.zeros(work.scores)
        arrays.add_repeated(total, expected, self.tokens)
        total.first[:] = d_first[before == NO_STATE].sum(axis=0)
        total.last[:] = d_last[after == NO_STATE].sum(axis=0)
        d_transitions = total.transitions.reshape(work.transitions.shape)
        inner = before != NO_STATE
        outer = after != NO_STATE
        np.add.at(d_transitions, (_rows(work, begin[inner]), before[inner]), d_first[inner])
        by_target = d_transitions.swapaxes(1, 2)
        np.add.at(by_target, (_rows(work, end[outer]), after[outer]), d_last[outer])
        arrays.subtract(d_scores, structure.narrow(work, total))


def run_sequences(structure: Structure, work: Work, clamp: Any, runs: Runs) -> _RunSequences:
    """Runs of tokens without soft labels as sequences of their own. The scores of the steps to the states beside a run replace
    `first` and `last`.

    structure (Structure), work (Work): Of the batch.
    clamp: What the annotation allows.
    runs (Runs): The runs.
    RETURNS (_RunSequences)
    """
    begin, end, before, after, weight, goes_on = runs
    if not len(begin):
        none = np.zeros(0, dtype=np.int64)
        return _RunSequences(runs, None, none, none, np.zeros(work.n_sequences))
    tokens = arrays.ranges(begin, end)
    starts = np.append(0, np.cumsum(end - begin))
    inner = before != NO_STATE
    outer = after != NO_STATE
    opening = starts[:-1]
    closing = starts[1:] - 1
    clamp = arrays.cut_clamp(clamp, tokens)
    if goes_on is not None:  # exclude states that would extend the spans beside a run
        _leave_out(clamp, opening[inner], goes_on[before[inner]])
        _leave_out(clamp, closing[outer], goes_on[:, after[outer]].T)
    scores = arrays.cut(work.scores, tokens, starts)
    # The states beside a run replace `first` and `last`
    first = np.tile(work.scores.first, (len(begin), 1))
    last = np.tile(work.scores.last, (len(begin), 1))
    first[inner] = work.transitions[_rows(work, begin[inner]), before[inner]]
    last[outer] = work.transitions[_rows(work, end[outer]), :, after[outer]]
    entered, left = _ends(scores)
    entered[opening] += first
    left[closing] += last
    none = np.zeros(work.n_states)
    scores = scores._replace(first=none, last=none)
    part = type(work)(scores, clamp, scores)
    sequence = np.searchsorted(work.starts, begin, side="right") - 1
    log_z = structure.log_partition(part)
    finite = np.where(log_z > -np.inf, weight * log_z, 0.0)
    reached = np.bincount(sequence, finite, minlength=work.n_sequences).astype(np.float64, copy=False)
    reached[sequence[log_z == -np.inf]] = -np.inf
    return _RunSequences(runs, part, tokens, sequence, reached)


def _leave_out(clamp: Clamp, at: Ints, states: Bools) -> None:
    """Remove states (bool[N, S]) from the clamp of some tokens (int64[N]), in place, unless no state would remain: to IO, two
    spans of one label that touch are one.
    """
    others = clamp[at] & ~states
    clamp[at] = np.where(others.any(axis=1, keepdims=True), others, clamp[at])


def _ends(scores: Scores) -> tuple[Floats, Floats]:
    """Scores of a state at the first and at the last token of its segment: float64[T, S] each."""
    return getattr(scores, "begins", scores[0]), getattr(scores, "ends", scores[0])
