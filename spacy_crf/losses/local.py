"""Losses whose terms are local: single tokens or segments, or these and their neighbours.

What a token's term is about in a linear chain is its tag. In a chain of segments it is what the path says of the token: which
state's segment begins there, or that one goes on. With segments of one token both are the same.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..arrays import Scores
from ..inference.structure import Structure
from ..schemes import Segments
from ..types import Floats, SegmentClamp
from . import terms
from .clamped import LabelledLoss
from .terms import AnnotatedBatch

# Numbers in a table of a batch that are in memory at once
_LARGEST_TABLE = 1 << 22


class LocalLoss(LabelledLoss):
    """Base of the losses in this file."""

    terms: ClassVar[Callable]  # what a class adds, see `losses.terms`

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, NDArray[np.bool_]]:
        """As `ClampedLoss`. Impossible are sequences with a term that no labelling satisfies."""
        free = structure.without_rules
        own = free.own_terms(self)
        if own is not None:
            return own(self, structure, scores, clamp, weights)
        work = free.prepare(scores)
        weights = work.check_weights(weights)
        whole = self.annotation(clamp, structure.wrong, weights)
        losses, impossible = np.zeros(len(weights)), np.zeros(len(weights), dtype=bool)
        d_scores = arrays.zeros(work.scores)
        row_size = work.n_states * max(work.n_states, len(free.lengths(work)))
        for chunk in work.chunks(max(1, _LARGEST_TABLE // row_size)):
            of_part, d_part, impossible[chunk.sequences] = type(self).terms(free, work.cut(chunk), _cut(whole, *chunk))
            losses[chunk.sequences] = of_part
            arrays.add(d_scores, d_part, chunk.tokens)
        return losses, free.narrow(work, d_scores), impossible

    def annotation(self, clamp: Any, wrong: Segments, weights: Floats) -> AnnotatedBatch:
        """What the terms compare the scores with.

        wrong (Segments): Beside what the clamp forbids. weights (float64[B]): Of the sequences.
        """
        clamp = _in_pieces(clamp)
        states = clamp.states
        gold = np.where(states.sum(axis=1) == 1, states.argmax(axis=1), -1)
        factors = np.where(gold >= 0, self.state_weights(states.shape[1])[gold], 1.0)
        return AnnotatedBatch(clamp, wrong, factors, weights)


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

    terms = staticmethod(terms.marginals)


class BesagPseudoLikelihood(LocalLoss):
    """Each token's tag given the tags of its neighbours (Besag 1975): no sums over labellings at all. Tokens whose own or whose
    neighbours' tag the annotation leaves open have no term.

        - sum_t log p(tag of t | tag of t - 1, tag of t + 1)

    For segments the same of the path, which says of each token which state's segment begins there, or that one goes on:

        - sum_t log p(path at t | path at all other tokens)

    So the segment from t to where the next one begins may have any state, or belong to the segment before it.

    Where tokens are tied, each is given the labels at the other ends of its ties too; ends that are open say nothing.

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    excludes_segments = False  # what is open has no term
    names_states = True
    terms = staticmethod(terms.conditionals)


class Piecewise(LocalLoss):
    """Each token with its predecessor is a model of its own (Sutton & McCallum 2005, eq. 5): the score of a piece is the
    transition plus the emission, and what all pairs of states reach is compared with what the annotated ones reach. An upper
    bound of the negative log-likelihood.

        sum_t (log sum_ij exp(piece(t, i, j)) - log sum_{ij allowed} exp(piece(t, i, j)))

    For segments a piece is a segment that ends with t, of state j and any length, with the state i before it; where a segment
    may go on behind t, that none ends is one more, with a score of 0. It is an upper bound again: every labelling chooses one of
    them at each token.

    Where tokens are tied, each tie is one more piece, of the pair of their labels.

    label_weights (Dict[str, float]): Factors of the pieces of tokens with these labels; of ties the mean of both ends'.
    """

    terms = staticmethod(terms.piecewise)


def _in_pieces(clamp: Any) -> SegmentClamp:
    """What is allowed, said of pieces; those of a chain are single tokens."""
    if isinstance(clamp, SegmentClamp):
        return clamp
    every = np.ones(len(clamp), dtype=bool)
    return SegmentClamp(np.asarray(clamp, dtype=bool), every, every)


def _cut(whole: AnnotatedBatch, sequences: slice, tokens: slice) -> AnnotatedBatch:
    """What is known of some sequences, which are these tokens."""
    inside = (whole.wrong.start >= tokens.start) & (whole.wrong.start < tokens.stop)
    begin, end, label = (column[inside] for column in whole.wrong)
    wrong = Segments(begin - tokens.start, end - tokens.start, label)
    clamp = arrays.cut_clamp(whole.clamp, tokens)
    return AnnotatedBatch(clamp, wrong, whole.factors[tokens], whole.weights[sequences])
