"""Chains of hidden states below one label: sums and maxima of batches of texts.

    score(y, h) = labels[y] + sum_t units[t, h_t] + sum_t states[y, h_t] + sum_t transitions[y, h_(t-1), h_t]
                  + first[y, h_1] + last[y, h_T]

(Quattoni, Wang, Morency, Collins & Darrell 2007, with ends.) Given a label it is a linear chain, so that the B texts are Y · B
sequences of `LinearChain`; labels do not share a scale, so that none is lost in a long text whose beginning speaks against it.
"""

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..types import ChainScores, Clamp, Floats, Path
from .linear_chain import LinearChain
from .scaling import ChainWork
from .structure import States, Structure


class HiddenScores(NamedTuple):
    """Potentials of B texts of altogether U units (tokens or sentences), Y labels and H hidden states for each.

    The units have scores of H states that labels share, or of Y · H states, H of which each label has for itself.
    """

    labels: Floats  # [B, Y]
    units: Floats  # [U, H] or [U, Y * H]
    states: Floats  # [Y, H]
    transitions: Floats  # [Y, H, H]
    first: Floats  # [Y, H]
    last: Floats  # [Y, H]
    starts: NDArray[np.int64]  # [B + 1] units of the texts

    AXES = {  # noqa: RUF012  nobody writes to it
        "labels": ("text", "label"),
        "units": ("token", "column"),
        "states": ("label", "state"),
        "transitions": ("label", "state", "next state"),
        "first": ("label", "state"),
        "last": ("label", "state"),
    }


class _OfLabel(NamedTuple):
    """The texts that may have a label, as linear chains."""

    label: int
    texts: NDArray[np.bool_]  # [B]
    units: Any  # theirs: bool[U], or a slice for all
    columns: slice  # of the units
    work: ChainWork


class HiddenWork(NamedTuple):
    """Scores that were checked, with a clamp."""

    scores: HiddenScores
    clamp: Optional[Clamp]  # bool[B, Y]

    @property
    def n_labels(self) -> int:
        return self.scores.labels.shape[1]

    @property
    def n_sequences(self) -> int:
        return len(self.scores.labels)

    def of_label(self, label: int, texts: NDArray[np.bool_]) -> _OfLabel:
        """What some texts (bool[B]) score under a label."""
        scores = self.scores
        size = scores.states.shape[1]
        shared = scores.units.shape[1] == size
        columns = slice(0, size) if shared else slice(label * size, (label + 1) * size)
        units, starts, chosen = scores.units, scores.starts, slice(None)
        if not texts.all():
            lengths = np.diff(starts)
            chosen = np.repeat(texts, lengths)
            units, starts = units[chosen], np.append(0, np.cumsum(lengths[texts]))
        emissions = units[:, columns] + scores.states[label]
        chain = ChainScores(emissions, scores.transitions[label], scores.first[label], scores.last[label], starts)
        return _OfLabel(label, texts, chosen, columns, _CHAIN.prepare(chain))

    def parts(self):
        """The texts that may have each label."""
        every = np.ones(len(self.scores.labels), dtype=bool)
        for label in range(self.n_labels):
            texts = every if self.clamp is None else self.clamp[:, label]
            if texts.any():
                yield self.of_label(label, texts)


_CHAIN = LinearChain()


class HiddenChain(Structure[HiddenScores]):
    """Answers the questions of `Structure` that are about the labels of texts; clamps are bool[B, Y], and paths are labels:
    int32[B]. Sums are over hidden states as well, maxima are of a label together with its states."""

    ambiguous = True
    answers = frozenset()

    def prepare(self, scores: Any, clamp: Optional[Clamp] = None) -> HiddenWork:
        if isinstance(scores, HiddenWork):
            return scores if clamp is None else scores._replace(clamp=clamp)
        checked = {name: arrays.contiguous(array, np.float64) for name, array in arrays.named(scores).items()}
        scores = scores._replace(**checked)
        if not np.isfinite(scores.labels).all():
            arrays.refuse(scores)
        if clamp is not None:
            arrays.check_shape("clamp", clamp, scores.labels.shape, "one bool per text and label")
        return HiddenWork(scores, clamp)

    def label_scores(self, scores: Any, *, clamp: Optional[Clamp] = None) -> Floats:
        """Log of the sum over the hidden states below each label: float64[B, Y], -inf for labels that are not allowed."""
        work = self.prepare(scores, clamp)
        found = np.full(work.scores.labels.shape, -np.inf)
        for part in work.parts():
            log_z, _ = _CHAIN.forward(part.work)
            found[part.texts, part.label] = work.scores.labels[part.texts, part.label] + log_z
        return found

    def log_partition(self, scores: Any, *, clamp: Optional[Clamp] = None) -> Floats:
        return log_sum(self.label_scores(scores, clamp=clamp))

    def marginals(self, scores: Any, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each label: float64[B, Y], rows with sum 1."""
        found = self.label_scores(scores, clamp=clamp)
        return _shares(found, log_sum(found))

    def expectations(
        self, scores: Any, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, HiddenScores]:
        work = self.prepare(scores, clamp)
        found, passes = np.full(work.scores.labels.shape, -np.inf), []
        for part in work.parts():
            log_z, kept = _CHAIN.forward(part.work)
            found[part.texts, part.label] = work.scores.labels[part.texts, part.label] + log_z
            passes.append((part, kept))
        log_z, total = log_sum(found), arrays.zeros(work.scores)
        total.labels[:] = _shares(found, log_z)
        if weights is not None:
            total.labels[:] *= weights[:, np.newaxis]
        for part, kept in passes:
            d_chain = arrays.zeros(part.work.scores)
            _CHAIN.backward(part.work, kept, np.ascontiguousarray(total.labels[part.texts, part.label]), d_chain)
            _add(total, part, d_chain)
        return log_z, total

    def viterbi(self, scores: Any, *, clamp: Optional[Clamp] = None) -> Path:
        """The label of each text that has the best states below it, and what both score."""
        work = self.prepare(scores, clamp)
        best = self._best(work)
        labels = np.where(best.max(axis=1) > -np.inf, best.argmax(axis=1), -1)
        return Path(labels.astype(np.int32), best.max(axis=1))

    def viterbi_counts(
        self, scores: Any, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, HiddenScores]:
        work = self.prepare(scores, clamp)
        labels, best = self.viterbi(work)
        total, weights = arrays.zeros(work.scores), np.ones(len(labels)) if weights is None else weights
        for label in np.unique(labels[labels >= 0]).tolist():
            part = work.of_label(label, labels == label)
            d_chain = arrays.zeros(part.work.scores)
            _CHAIN.add_path(part.work, _CHAIN.best(part.work).states, weights[part.texts], d_chain)
            total.labels[part.texts, label] = weights[part.texts]
            _add(total, part, d_chain)
        return best, total

    def _best(self, work: HiddenWork) -> Floats:
        """What the best states below each label score with it: float64[B, Y]."""
        found = np.full(work.scores.labels.shape, -np.inf)
        for part in work.parts():
            found[part.texts, part.label] = work.scores.labels[part.texts, part.label] + _CHAIN.best(part.work).scores
        return found

    def states_below(self, scores: Any, labels: States) -> Floats:
        """Probability of each hidden state at each unit, where each text has the given label (int32[B]): float64[U, H]."""
        work = self.prepare(scores)
        found = np.zeros((len(work.scores.units), work.scores.states.shape[1]))
        for label in np.unique(labels).tolist():
            part = work.of_label(label, labels == label)
            found[part.units] = _CHAIN.marginals(part.work)
        return found

    def left_out(self, scores: Any) -> Floats:
        """What each label scores (see `label_scores`) in the text of each unit without the features of that unit:
        float64[U, Y]."""
        work = self.prepare(scores)
        text_of = np.repeat(np.arange(len(work.scores.starts) - 1), np.diff(work.scores.starts))
        found = self.label_scores(work)[text_of]
        for part in work.parts():
            # sum_h exp(score(h) - units[t, h_t]) = Z · sum_k p(h_t = k) · exp(-units[t, k])
            with np.errstate(divide="ignore"):
                terms = np.log(_CHAIN.marginals(part.work)) - work.scores.units[:, part.columns]
            found[:, part.label] += log_sum(terms)
        return found


def _add(total: HiddenScores, part: _OfLabel, d_chain: ChainScores) -> None:
    """Adds the derivative with respect to the scores under a label."""
    total.units[part.units, part.columns] += d_chain.emissions
    total.states[part.label] += d_chain.emissions.sum(axis=0)
    for name in ("transitions", "first", "last"):
        getattr(total, name)[part.label] += getattr(d_chain, name)


def _shares(scores: Floats, log_z: Floats) -> Floats:
    """exp(scores - log_z) of each row, 0 where nothing is allowed."""
    return np.exp(scores - np.where(log_z > -np.inf, log_z, 0.0)[:, np.newaxis])


def log_sum(rows: Floats) -> Floats:
    """float64[B]"""
    return np.logaddexp.reduce(rows, axis=1)
