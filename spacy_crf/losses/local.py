"""Losses whose terms are local: single tokens or segments, or these and their neighbours.

What a token's term is about in a linear chain is its tag. In a chain of segments it is what the path says of the token: which
state's segment begins there, or that one goes on. With segments of one token both are the same.
"""

import itertools
from typing import Any, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.segment_graph import cut_segments
from ..inference.structure import Scores
from ..schemes import NO_SEGMENTS, Segments
from ..types import ChainScores, Clamp, Floats, SegmentClamp
from . import chain_terms, segment_terms
from .clamped import LabelledLoss
from .terms import Annotation

# Numbers in a table of a batch that are in memory at once
_LARGEST_TABLE = 1 << 22
_BY_TOKEN = ("emissions", "tokens", "begins", "ends")


class LocalLoss(LabelledLoss):
    """Base of the losses in this file: called like a `ClampedLoss`."""

    # What a class adds: functions of a structure, its scores and an Annotation, which answer as `__call__` does
    of_chain: ClassVar[Any]
    of_segments: ClassVar[Any]

    def __call__(
        self, structure, scores: Scores, clamp: Clamp, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, NDArray[np.bool_]]:
        """Loss of each sequence and the derivative of their sum.

        structure (Structure): Answers the questions about the scores.
        scores (Scores): Potentials of B sequences.
        clamp (bool[T, S] or SegmentClamp): What the annotation allows.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], Scores, bool[B]): Weighted losses; the derivative with respect to every score; which sequences have
            a term that no labelling satisfies: their loss and derivative are 0.
        """
        states = clamp.states if isinstance(clamp, SegmentClamp) else clamp
        starts = np.array([0, len(states)]) if scores.starts is None else scores.starts
        weights = np.ones(len(starts) - 1) if weights is None else np.asarray(weights, dtype=np.float64)
        gold = np.where(states.sum(axis=1) == 1, states.argmax(axis=1), -1)
        factors = np.where(gold >= 0, self.state_weights(states.shape[1])[gold], 1.0)
        whole = Annotation(clamp, getattr(structure, "wrong", NO_SEGMENTS), factors, weights)
        terms = self.of_chain if isinstance(scores, ChainScores) else self.of_segments
        losses, impossible = np.zeros(len(weights)), np.zeros(len(weights), dtype=bool)
        d_scores = scores._replace(**{name: np.zeros(np.shape(getattr(scores, name))) for name in _arrays(scores)})
        for part in _parts(starts, _row_size(scores)):
            tokens = slice(int(starts[part.start]), int(starts[part.stop]))
            of_part, annotation = _cut(scores._replace(starts=starts), whole, part, tokens)
            losses[part], d_part, impossible[part] = terms(structure, of_part, annotation)
            _add(d_scores, d_part, tokens)
        return losses, d_scores, impossible


class PseudoLikelihood(LocalLoss):
    """Sum of the negative log marginals of each token's annotation (Kakade, Teh & Roweis 2002, eq. 3): trains for the number
    of right tokens instead of right sequences.

        - sum_t log p(tag of t is allowed)

    For segments it trains for the number of right segments: the marginal is that of precisely the annotated segment, as
    `span_probabilities` gives it, or where annotation is partial of all together that it allows.

        - sum_t log p(the segment that covers t is allowed)

    Tokens where no segment may begin share the term of the token before, so an entity counts once, whatever its length.

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    of_chain = staticmethod(chain_terms.marginals)
    of_segments = staticmethod(segment_terms.marginals)


class BesagPseudoLikelihood(LocalLoss):
    """Each token's tag given the tags of its neighbours (Besag 1975): no sums over labellings at all. Tokens whose own or whose
    neighbours' tag the annotation leaves open have no term.

        - sum_t log p(tag of t | tag of t - 1, tag of t + 1)

    For segments the same of the path, which says of each token which state's segment begins there, or that one goes on:

        - sum_t log p(path at t | path at all other tokens)

    So the segment from t to where the next one begins may have any state, or belong to the segment before it.

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    excludes_segments = False  # what is open has no term
    of_chain = staticmethod(chain_terms.conditionals)
    of_segments = staticmethod(segment_terms.conditionals)


class Piecewise(LocalLoss):
    """Each token with its predecessor is a model of its own (Sutton & McCallum 2005, eq. 5): the score of a piece is the
    transition plus the emission, and what all pairs of states reach is compared with what the annotated ones reach. An upper
    bound of the negative log-likelihood.

        sum_t (log sum_ij exp(piece(t, i, j)) - log sum_{ij allowed} exp(piece(t, i, j)))

    For segments a piece is a segment that ends with t, of state j and any length, with the state i before it; where a segment
    may go on behind t, that none ends is one more, with a score of 0. It is an upper bound again: every labelling chooses one of
    them at each token.

    label_weights (Dict[str, float]): Factors of the pieces of tokens with these labels.
    """

    of_chain = staticmethod(chain_terms.pieces)
    of_segments = staticmethod(segment_terms.pieces)


def _arrays(scores: Scores) -> list[str]:
    return [name for name in scores._fields if name not in ("listed", "starts")]


def _row_size(scores: Scores) -> int:
    """Numbers that the largest table about a token has: of pairs of states, or of segments that begin there."""
    size = len(scores.first)
    return size * size if isinstance(scores, ChainScores) else size * max(size, len(scores.lengths))


def _parts(starts: NDArray[np.int64], row_size: int) -> list[slice]:
    """Runs of sequences whose tables fit into memory together."""
    blocks = starts[:-1] // max(1, _LARGEST_TABLE // row_size)
    cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
    return [slice(begin, end) for begin, end in itertools.pairwise(cuts) if begin < end]


def _cut(scores: Scores, whole: Annotation, part: slice, tokens: slice) -> tuple[Scores, Annotation]:
    """Some sequences, which are these tokens, with what is known of them."""
    starts = scores.starts[part.start : part.stop + 1] - tokens.start
    if isinstance(scores, ChainScores):
        per_position = np.ndim(scores.transitions) == 3
        transitions = scores.transitions[tokens] if per_position else scores.transitions
        of_part = scores._replace(emissions=scores.emissions[tokens], transitions=transitions)
        clamp = whole.clamp[tokens]
    else:
        of_part, clamp = cut_segments(scores, whole.clamp, tokens)
    inside = (whole.wrong.start >= tokens.start) & (whole.wrong.start < tokens.stop)
    begin, end, label = (column[inside] for column in whole.wrong)
    wrong = Segments(begin - tokens.start, end - tokens.start, label)
    return of_part._replace(starts=starts), Annotation(clamp, wrong, whole.factors[tokens], whole.weights[part])


def _add(d_scores: Scores, d_part: Scores, tokens: slice) -> None:
    """Adds the derivative of some sequences, which are these tokens, to that of all."""
    for name in _arrays(d_scores):
        total, of_part = getattr(d_scores, name), getattr(d_part, name)
        if name in _BY_TOKEN or total.ndim == 3:
            total[tokens] = of_part
        elif name == "spans":
            if d_scores.listed is not None:
                total[int(d_scores.listed.starts[tokens.start]) : int(d_scores.listed.starts[tokens.stop])] = of_part
        else:
            total[:] += of_part
