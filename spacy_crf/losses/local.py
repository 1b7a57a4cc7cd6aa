"""Losses with local terms: single tokens or segments, or these with their neighbours.

In a linear chain the term of a token is about its tag. In a chain of segments the term is about the path at the token: the state
of the segment that begins there, or the continuation of a segment. For segments of one token both agree.
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
        """As `ClampedLoss.__call__`. A sequence is impossible if no labelling satisfies one of its terms."""
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
        """The annotation in the form that the terms compare with the scores.

        clamp: What the annotation allows. wrong (Segments): Spans forbidden in addition. weights (float64[B]): Factor of each
        sequence.
        RETURNS (AnnotatedBatch)
        """
        clamp = _in_pieces(clamp)
        states = clamp.states
        gold = np.where(states.sum(axis=1) == 1, states.argmax(axis=1), -1)
        factors = np.where(gold >= 0, self.state_weights(states.shape[1])[gold], 1.0)
        return AnnotatedBatch(clamp, wrong, factors, weights)


class PseudoLikelihood(LocalLoss):
    """Sum of the negative log marginals of each token's annotation (Kakade, Teh & Roweis 2002, eq. 3). This loss trains for the
    number of right tokens instead of right sequences.

        - sum_t log p(tag of t is allowed)

    For segments it trains for the number of right segments: the marginal is the probability of exactly the annotated segment, as
    `span_probabilities` gives it, or, for partial annotation, of all allowed segments together.

        - sum_t log p(the segment that covers t is allowed)

    Tokens where no segment may begin share the term of the token before, so an entity counts once, whatever its length.

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    terms = staticmethod(terms.marginals)


class BesagPseudoLikelihood(LocalLoss):
    """Probability of each token's tag given the tags of its neighbours (Besag 1975), without sums over labellings. A token has no
    term if the annotation leaves its own tag or a neighbour's tag open.

        - sum_t log p(tag of t | tag of t - 1, tag of t + 1)

    For segments the terms are about the path, which holds at each token the state of the segment that begins there, or a
    continuation:

        - sum_t log p(path at t | path at all other tokens)

    So the segment from t to the beginning of the next may have any state, or belong to the segment before it.

    Where tokens are tied, the condition includes the labels at the other ends of the ties; open ends are left out.

    label_weights (Dict[str, float]): Factors of the terms of tokens with these labels.
    """

    excludes = frozenset()  # what is open has no term
    names_states = True
    terms = staticmethod(terms.conditionals)


class Piecewise(LocalLoss):
    """Each token with its predecessor is a model of its own, a piece (Sutton & McCallum 2005, eq. 5). The score of a piece is the
    transition plus the emission. The loss compares the log-sum over all pairs of states with the log-sum over the annotated
    pairs; it is an upper bound of the negative log-likelihood.

        sum_t (log sum_ij exp(piece(t, i, j)) - log sum_{ij allowed} exp(piece(t, i, j)))

    For segments a piece is a segment of state j and any length that ends with t, with the state i before it. Where a segment may
    continue behind t, "no segment ends with t" is one more piece, with a score of 0. The loss is an upper bound again: every
    labelling chooses one piece at each token.

    Where tokens are tied, each tie is one more piece, of the pair of its labels.

    label_weights (Dict[str, float]): Factors of the pieces of tokens with these labels; a tie takes the mean of its ends.
    """

    terms = staticmethod(terms.piecewise)


def _in_pieces(clamp: Any) -> SegmentClamp:
    """The clamp as a clamp of segments; the segments of a chain are single tokens."""
    if isinstance(clamp, SegmentClamp):
        return clamp
    every = np.ones(len(clamp), dtype=bool)
    return SegmentClamp(np.asarray(clamp, dtype=bool), every, every)


def _cut(whole: AnnotatedBatch, sequences: slice, tokens: slice) -> AnnotatedBatch:
    """The annotation of some sequences, which consist of these tokens."""
    inside = (whole.wrong.start >= tokens.start) & (whole.wrong.start < tokens.stop)
    begin, end, label = (column[inside] for column in whole.wrong)
    wrong = Segments(begin - tokens.start, end - tokens.start, label)
    clamp = arrays.cut_clamp(whole.clamp, tokens)
    return AnnotatedBatch(clamp, wrong, whole.factors[tokens], whole.weights[sequences])
