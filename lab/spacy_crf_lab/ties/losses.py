"""Losses of chains with ties: local losses, in which ties add scores to a token given the annotation of their other ends, and the
likelihood of each sentence given the other sentences, which trains ties without a sum over the graph of a Doc."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays
from spacy_crf.errors import cant_train
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.schemes import NO_SEGMENTS
from spacy_crf.types import ChainScores, Clamp, Floats

from ..local_losses import BesagPseudoLikelihood, LocalLoss, Piecewise, token_factors
from .blocks import tell_wide
from .junction_tree import JunctionTree
from .scores import TiedScores, TiedWork, sequences_of

if TYPE_CHECKING:
    from .structure import TiedChains


class ConditionedChains(NamedTuple):
    """Chains with the scores that ties add, given the labels that the annotation leaves to the other ends. Where it leaves
    several labels, or none, ties add nothing."""

    scores: TiedScores
    tables: Floats  # [K, L, L]
    by_target: NDArray[np.int64]  # [N] the ties whose targets have labels, so that they score their sources
    by_source: NDArray[np.int64]  # [M]
    gold: NDArray[np.int64]  # [T] label of each token, -1 for none

    @classmethod
    def of(cls, scores: TiedScores, clamp: Clamp) -> "ConditionedChains":
        """Read the labels that the annotation (bool[T, S]) leaves."""
        allowed = _labels(clamp, np.asarray(scores.label_of), scores.tables.shape[1])
        gold = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
        by_target = np.flatnonzero(gold[scores.ties.target] >= 0)
        by_source = np.flatnonzero(gold[scores.ties.source] >= 0)
        return cls(scores, scores.ties.sums(scores.tables), by_target, by_source, gold)

    @property
    def chains(self) -> ChainScores:
        """The chains, with the scores of ties to known labels added to their emissions."""
        scores = self.scores
        ties = self.scores.ties
        label_of = np.asarray(self.scores.label_of)
        emissions = np.array(scores.emissions, dtype=np.float64)
        for some, ends, others, tables in self._sides(self.tables):
            # emissions[u, j] += table[j, label of v], for each tie of u to a v whose label is known
            np.add.at(emissions, ends[some], tables[ties.kind[some], self.gold[others[some]]][:, label_of])
        return scores.chains._replace(emissions=emissions)

    def _sides(self, tables: Floats) -> tuple[tuple[NDArray, ...], ...]:
        """For both directions: the ties that say something, the ends that hear it, the other ends, and the tables by the label of
        the other end."""
        ties = self.scores.ties
        return (
            (self.by_target, ties.source, ties.target, tables.swapaxes(1, 2)),
            (self.by_source, ties.target, ties.source, tables),
        )

    def derivative(self, d_chains: ChainScores) -> TiedScores:
        """The derivative with respect to all scores, from the one with respect to the chains."""
        scores = self.scores
        ties = self.scores.ties
        label_of = np.asarray(self.scores.label_of)
        by_label = d_chains.emissions @ (label_of[:, np.newaxis] == np.arange(self.tables.shape[1]))
        d_kinds = np.zeros(self.tables.shape)
        for some, ends, others, tables in self._sides(d_kinds):
            np.add.at(tables, (ties.kind[some], self.gold[others[some]]), by_label[ends[some]])
        d_scores = scores._replace(**arrays.named(d_chains), tables=np.zeros(np.shape(scores.tables)))
        ties.by_feature(d_kinds, d_scores.tables)
        return d_scores


def tie_pieces(scores: TiedScores, clamp: Clamp, factors: Floats) -> tuple[Floats, Floats]:
    """Piecewise terms of ties: for each tie, the log sum over all pairs of labels minus the log sum over the pairs that the
    annotation allows.

    factors (float64[T]): Of tokens; a tie has the mean of those of its ends.
    RETURNS (float64[E], float64[F, L, L]): The terms, and the derivative of their sum.
    """
    ties = scores.ties
    tables = scores.ties.sums(scores.tables)
    allowed = _labels(clamp, np.asarray(scores.label_of), scores.tables.shape[1])
    # [E, L, L]
    pairs = allowed[ties.source][:, :, np.newaxis] & allowed[ties.target][:, np.newaxis]
    of_ties = tables[ties.kind]
    d_kinds = np.zeros(tables.shape)
    weights = (factors[ties.source] + factors[ties.target]) / 2.0 * pairs.any(axis=(1, 2))
    free, d_free = _log_sum(of_ties)
    clamped, d_clamped = _log_sum(np.where(pairs, of_ties, -np.inf))
    np.add.at(d_kinds, ties.kind, weights[:, np.newaxis, np.newaxis] * (d_free - d_clamped))
    derivative = np.zeros(np.shape(scores.tables))
    ties.by_feature(d_kinds, derivative)
    return weights * (free - np.where(weights > 0.0, clamped, free)), derivative


def _labels(clamp: Clamp, label_of: NDArray[np.int64], n_labels: int) -> NDArray[np.bool_]:
    return clamp @ (label_of[:, np.newaxis] == np.arange(n_labels))


def _log_sum(tables: Floats) -> tuple[Floats, Floats]:
    """Log sums of tables (float64[E, L, L]), and the derivatives: 0 where nothing is possible."""
    largest = tables.max(axis=(1, 2), initial=-np.inf, keepdims=True)
    exps = np.exp(tables - np.where(largest > -np.inf, largest, 0.0))
    sums = exps.sum(axis=(1, 2), keepdims=True)
    with np.errstate(divide="ignore"):
        return (np.log(sums) + largest)[:, 0, 0], exps / np.where(sums > 0.0, sums, 1.0)


def besag(
    loss: LocalLoss, structure: "TiedChains", scores: TiedScores, clamp: Clamp, weights: Optional[Floats]
) -> tuple[Floats, TiedScores, NDArray[np.bool_]]:
    """`BesagPseudoLikelihood` of chains with ties."""
    structure.prepare(scores)  # for its checks
    conditioned = ConditionedChains.of(scores, clamp)
    losses, d_chains, impossible = loss(structure.chain, conditioned.chains, clamp, weights=weights)
    return losses, conditioned.derivative(d_chains), impossible


def piecewise(
    loss: LocalLoss, structure: "TiedChains", scores: TiedScores, clamp: Clamp, weights: Optional[Floats]
) -> tuple[Floats, TiedScores, NDArray[np.bool_]]:
    """`Piecewise` of chains with ties."""
    structure.prepare(scores)  # for its checks
    losses, d_chains, impossible = loss(structure.chain, scores.chains, clamp, weights=weights)
    starts = np.asarray(scores.starts)
    of_sequences = np.ones(len(losses)) if weights is None else np.asarray(weights, dtype=np.float64)
    annotation = loss.annotation(clamp, NO_SEGMENTS, of_sequences)
    of_ties, d_tables = tie_pieces(scores, clamp, token_factors(annotation, impossible, starts))
    losses = losses + np.bincount(sequences_of(starts, scores.ties)[0], of_ties, minlength=len(losses))
    return losses, scores._replace(**arrays.named(d_chains), tables=d_tables), impossible


def own_terms(loss: LocalLoss) -> Callable:
    """RAISES (ValueError): CRF347 for losses that don't know ties."""
    for kind, terms in ((BesagPseudoLikelihood, besag), (Piecewise, piecewise)):
        if isinstance(loss, kind):
            return terms
    raise cant_train(
        loss,
        what="ties between tokens",
        reason="it would sum up a graph for each token",
        fitting="SentenceLikelihood or BesagPseudoLikelihood",
    )


# Of sentences with ties inside them. Larger tables than those of 27 states and two open ties would take hundreds of times as long
# as a chain
SENTENCES = JunctionTree(max_table=20_000)


class SentenceLikelihood(LogLikelihood):
    """Negative log probability of each sentence given the annotation of the others (Besag 1975, with sentences as blocks). It is
    exact: the annotation determines the scores that ties to other sentences add to a token, and a junction tree sums over
    sentences with ties inside. Ties from tokens with open annotation add nothing. Without ties, the loss is `LogLikelihood`.

        - sum over sentences of log p(sentence | labels at the other ends of its ties)

    In sentences too wide for a junction tree (logged once), ties inside the sentence also use the annotation of their other ends.

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; none by default.
    """

    def __call__(
        self, structure: "TiedChains", scores: TiedScores, clamp: Clamp, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, TiedScores, NDArray[np.bool_]]:
        if not isinstance(scores, TiedScores):
            return super().__call__(structure, scores, clamp, weights=weights)
        structure.prepare(scores)  # for its checks
        ties = scores.ties
        inside = _summed_over(scores)
        conditioned = ConditionedChains.of(scores._replace(ties=ties.some(~inside)), clamp)
        if not inside.any():
            losses, d_chains, impossible = super().__call__(structure.chain, conditioned.chains, clamp, weights=weights)
            return losses, conditioned.derivative(d_chains), impossible
        # Ties between sentences have become emissions; those inside remain
        joined = scores._replace(emissions=conditioned.chains.emissions, ties=ties.some(inside))
        losses, d_joined, impossible = super().__call__(type(structure)(SENTENCES), joined, clamp, weights=weights)
        derivative = conditioned.derivative(d_joined.chains)
        return losses, derivative._replace(tables=derivative.tables + d_joined.tables, ties=ties), impossible


def _summed_over(scores: TiedScores) -> NDArray[np.bool_]:
    """The ties inside sentences that are not too wide: bool[E]."""
    ties = scores.ties
    sequences = sequences_of(np.asarray(scores.starts), ties)
    inside = np.equal(*sequences)
    if inside.any():
        work = TiedWork(scores._replace(ties=ties.some(inside)))
        tied: Any = work.tied
        fits = SENTENCES.sums_up(tied, np.ones(len(tied.firsts), dtype=bool))
        tell_wide(tied.of_ties, fits, "SentenceLikelihood")
        inside &= ~np.isin(sequences[0], work.tied_sequences[~fits])  # those that are too wide
    return inside
