"""Losses whose terms are single tokens, or pairs of neighbours, in a linear chain."""

import itertools
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels.local import marginal_gradient
from ..types import ChainScores, Clamp, Floats
from .clamped import LabelledLoss

# Tokens whose pairs of neighbours are in memory at once, times S²
_PAIRS = 1 << 24


class LocalLoss(LabelledLoss):
    """Base of the losses in this file: called like a `ClampedLoss`."""

    def __call__(
        self, structure, scores: ChainScores, clamp: Clamp, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores, NDArray[np.bool_]]:
        """Loss of each sequence and the derivative of their sum.

        structure (LinearChain): Answers the questions about the scores.
        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States that the annotation allows.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], ChainScores, bool[B]): Weighted losses; the derivative with respect to every score; which sequences
            have a term that no state satisfies: their loss and derivative are 0.
        """
        if not isinstance(scores, ChainScores):
            raise ValueError(Errors.CRF313.format(loss=type(self).__name__))
        starts = np.array([0, len(scores.emissions)]) if scores.starts is None else scores.starts
        weights = np.ones(len(starts) - 1) if weights is None else np.asarray(weights, dtype=np.float64)
        gold = np.where(clamp.sum(axis=1) == 1, clamp.argmax(axis=1), -1)
        factors = np.where(gold >= 0, self.state_weights(clamp.shape[1])[gold], 1.0)
        losses, impossible = np.zeros(len(weights)), np.zeros(len(weights), dtype=bool)
        d_scores = ChainScores(*(np.zeros(np.shape(array)) for array in scores[:4]), scores.starts)
        for part in _parts(starts, clamp.shape[1]):
            tokens = slice(int(starts[part.start]), int(starts[part.stop]))
            cut = ChainScores(
                scores.emissions[tokens],
                scores.transitions[tokens] if np.ndim(scores.transitions) == 3 else scores.transitions,
                scores.first,
                scores.last,
                starts[part.start : part.stop + 1] - starts[part.start],
            )
            of_part, d_part, no_state = self.evaluate(structure, cut, clamp[tokens], factors[tokens], weights[part])
            losses[part], impossible[part] = of_part, no_state
            d_scores.emissions[tokens] = d_part.emissions
            if np.ndim(scores.transitions) == 3:
                d_scores.transitions[tokens] = d_part.transitions
            else:
                d_scores.transitions[:] += d_part.transitions
            d_scores.first[:] += d_part.first
            d_scores.last[:] += d_part.last
        return losses, d_scores, impossible

    def evaluate(self, structure, scores: ChainScores, clamp: Clamp, factors: Floats, weights: Floats):
        """The same for some sequences, with a factor for each token (float64[T])."""
        raise NotImplementedError


class PseudoLikelihood(LocalLoss):
    """Sum of the negative log marginals of each token's annotation (Kakade, Teh & Roweis 2002, eq. 3): trains for the number
    of right tokens instead of right sequences.

        - sum_t log p(tag of t is allowed)

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    def evaluate(self, structure, scores, clamp, factors, weights):
        edges = structure.edge_marginals(scores)
        nodes = structure.marginals(scores)
        starts = scores.starts
        probability = (nodes * clamp).sum(axis=1)
        impossible = _any_token(probability <= 0.0, starts)
        sequence = np.repeat(np.arange(len(weights)), np.diff(starts))
        factors = np.where(impossible[sequence], 0.0, factors * weights[sequence])
        safe = np.where(probability > 0.0, probability, 1.0)
        terms = -factors * np.log(np.minimum(safe, 1.0))
        # The derivative of log p(token t in A) is the expectation of 1[in A] / p over labellings, less 1: sums along the chain
        rewards = np.where(clamp, (factors / safe)[:, np.newaxis], 0.0)
        d_nodes, d_edges = np.zeros_like(nodes), np.zeros_like(edges)
        marginal_gradient(nodes, edges, np.ascontiguousarray(rewards), starts, d_nodes, d_edges)
        return _per_sequence(terms, starts), _from_marginals(scores, d_nodes, d_edges), impossible


class BesagPseudoLikelihood(LocalLoss):
    """Each token's tag given the tags of its neighbours (Besag 1975): no sums over labellings at all. Tokens whose own or whose
    neighbours' tag the annotation leaves open have no term.

        - sum_t log p(tag of t | tag of t - 1, tag of t + 1)

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    def evaluate(self, structure, scores, clamp, factors, weights):
        n_tokens, size = clamp.shape
        starts = scores.starts
        gold = np.where(clamp.sum(axis=1) == 1, clamp.argmax(axis=1), -1)
        opens, closes = _ends(starts, n_tokens)
        inner = np.flatnonzero(~opens)
        known = gold >= 0
        has_term = known.copy()
        has_term[inner] &= known[inner - 1]
        has_term[inner - 1] &= known[inner]
        per_position = np.ndim(scores.transitions) == 3
        shared = None if per_position else np.asarray(scores.transitions)
        before = np.maximum(gold[inner - 1], 0)
        after = np.maximum(gold[inner], 0)
        logits = np.array(scores.emissions, dtype=np.float64)
        logits[opens] += scores.first
        logits[closes] += scores.last
        logits[inner] += scores.transitions[inner, before] if per_position else shared[before]
        logits[inner - 1] += scores.transitions[inner, :, after] if per_position else shared[:, after].T
        rows = np.flatnonzero(has_term)
        log_z = _log_sum(logits[rows])
        reached = logits[rows, gold[rows]]
        no_state = np.zeros(n_tokens, dtype=bool)
        no_state[rows] = reached == -np.inf
        impossible = _any_token(no_state, starts)
        sequence = np.repeat(np.arange(len(weights)), np.diff(starts))
        factors = np.where(impossible[sequence], 0.0, factors * weights[sequence])
        counted = factors[rows] > 0
        rows, log_z, reached = rows[counted], log_z[counted], reached[counted]
        terms = np.zeros(n_tokens)
        terms[rows] = factors[rows] * (log_z - reached)
        d_logits = np.zeros((n_tokens, size))
        d_logits[rows] = factors[rows, np.newaxis] * np.exp(logits[rows] - log_z[:, np.newaxis])
        d_logits[rows, gold[rows]] -= factors[rows]
        d_scores = ChainScores(
            d_logits, np.zeros(np.shape(scores.transitions)), d_logits[opens].sum(0), d_logits[closes].sum(0), starts
        )
        if per_position:
            d_scores.transitions[inner, before] += d_logits[inner]
            d_scores.transitions[inner, :, after] += d_logits[inner - 1]
        else:
            np.add.at(d_scores.transitions, before, d_logits[inner])
            np.add.at(d_scores.transitions.T, after, d_logits[inner - 1])
        return _per_sequence(terms, starts), d_scores, impossible


class Piecewise(LocalLoss):
    """Each token with its predecessor is a model of its own (Sutton & McCallum 2005, eq. 5): the score of a piece is the
    transition plus the emission, and what all pairs of states reach is compared with what the annotated ones reach. An upper
    bound of the negative log-likelihood.

        sum_t (log sum_ij exp(piece(t, i, j)) - log sum_{ij allowed} exp(piece(t, i, j)))

    label_weights (Dict[str, float]): Factors of the pieces of tokens with these labels.
    """

    def evaluate(self, structure, scores, clamp, factors, weights):
        n_tokens, size = clamp.shape
        starts = scores.starts
        opens, closes = _ends(starts, n_tokens)
        # [T, S before, S]; the first token of a sequence has one predecessor, which stands in row 0
        pieces = np.array(np.broadcast_to(scores.transitions, (n_tokens, size, size)), dtype=np.float64)
        pieces[opens] = -np.inf
        pieces[opens, 0] = scores.first
        pieces += scores.emissions[:, np.newaxis]
        pieces[closes] += scores.last
        allowed = np.repeat(clamp[:, np.newaxis], size, axis=1)
        allowed[1:] &= clamp[:-1, :, np.newaxis] | opens[1:, np.newaxis, np.newaxis]
        flat = pieces.reshape(n_tokens, -1)
        clamped = np.where(allowed, pieces, -np.inf).reshape(n_tokens, -1)
        log_z, reached = _log_sum(flat), _log_sum(clamped)
        impossible = _any_token(reached == -np.inf, starts)
        sequence = np.repeat(np.arange(len(weights)), np.diff(starts))
        factors = np.where(impossible[sequence], 0.0, factors * weights[sequence])
        log_z, reached = (np.where(value > -np.inf, value, 0.0) for value in (log_z, reached))
        d_pieces = np.exp(flat - log_z[:, np.newaxis]) - np.exp(clamped - reached[:, np.newaxis])
        d_pieces = (factors[:, np.newaxis] * d_pieces).reshape(pieces.shape)
        d_nodes = d_pieces.sum(axis=1)
        d_pieces[opens] = 0.0
        d_scores = ChainScores(
            d_nodes,
            d_pieces if np.ndim(scores.transitions) == 3 else d_pieces.sum(axis=0),
            d_nodes[opens].sum(axis=0),
            d_nodes[closes].sum(axis=0),
            starts,
        )
        return _per_sequence(factors * (log_z - reached), starts), d_scores, impossible


def _parts(starts: NDArray, size: int) -> list[slice]:
    """Runs of sequences whose pairs of neighbours fit into memory together."""
    blocks = starts[:-1] // max(1, _PAIRS // size**2)
    cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
    return [slice(begin, end) for begin, end in itertools.pairwise(cuts) if begin < end]


def _ends(starts: NDArray, n_tokens: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which tokens open and which close a sequence: bool[T] each."""
    opens, closes = np.zeros((2, n_tokens), dtype=bool)
    filled = starts[:-1] < starts[1:]
    opens[starts[:-1][filled]] = True
    closes[starts[1:][filled] - 1] = True
    return opens, closes


def _per_sequence(terms: Floats, starts: NDArray) -> Floats:
    return np.diff(np.append(0.0, np.cumsum(terms))[starts])


def _any_token(flags: NDArray[np.bool_], starts: NDArray) -> NDArray[np.bool_]:
    return np.diff(np.append(0, np.cumsum(flags))[starts]) > 0


def _log_sum(rows: Floats) -> Floats:
    largest = rows.max(axis=1, initial=-np.inf)
    shift = np.where(largest > -np.inf, largest, 0.0)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(rows - shift[:, np.newaxis]).sum(axis=1))


def _from_marginals(scores: ChainScores, d_nodes: Floats, d_edges: Floats) -> ChainScores:
    opens, closes = _ends(scores.starts, len(d_nodes))
    d_transitions = d_edges if np.ndim(scores.transitions) == 3 else d_edges.sum(axis=0)
    return ChainScores(d_nodes, d_transitions, d_nodes[opens].sum(axis=0), d_nodes[closes].sum(axis=0), scores.starts)
