"""Scores of a few states of each token of a batch, the same ones in many passes.

Where a structure leaves most states out it asks for the scores of three or four of some hundreds, again and again until it looks
for better ones. Which weights these meet is listed once; a pass then reads these weights and nothing else.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import ranges
from ..inference.structure import Places
from ..kernels.partial_scores import add_uses, list_uses, scatter_uses
from ..types import Floats, TokenFeatures
from .fixed_tokens import FixedTokens
from .table import Part, Table

_USES = 24  # of a score, for which there is room at first
_MOST_WHOLE = 0.5  # above this share of tokens whose states are all asked for, nothing is listed


class Uses(NamedTuple):
    """Which weights are added to which scores."""

    places: NDArray[np.integer]  # [U] token · C + column
    weights: NDArray[np.integer]  # [U]


class Weighing(NamedTuple):
    """Weights, or their gradient, a part of which may be in slots."""

    weights: Floats  # [W]
    slots: Floats


class ChosenScores(NamedTuple):
    """What a batch of T tokens gives of its scores, which have C columns."""

    known: NDArray[np.int64]  # [N] places whose uses are listed, rising
    uses: Uses
    whole: NDArray[np.int64]  # [M] tokens of which all columns are asked for
    references: NDArray[np.integer]  # [templates, M] features of these, as `Table.add_references` takes them
    listed: TokenFeatures  # further ones, as `Table.add_placed` takes them

    @classmethod
    def of(
        cls,
        tokens: FixedTokens,
        number: int,
        asked: Places,
        before: "Optional[ChosenScores]" = None,
    ) -> "Optional[ChosenScores]":
        """tokens (FixedTokens): Of a corpus, of which this is the batch with a number.

        asked (Places): What is asked for; of a token without any, everything.
        before (ChosenScores): What was asked for of the same batch: mostly the same.
        RETURNS (ChosenScores): None where that is most of all.
        """
        block, states = tokens.blocks[number], tokens.table
        n_columns, items = states.n_columns, block.items
        n_tokens = int(block.starts[-1])
        is_whole = np.bincount(asked.tokens, minlength=n_tokens) == 0
        [whole] = np.nonzero(is_whole)
        if items.values is not None or len(whole) > _MOST_WHOLE * n_tokens:
            return None
        known, uses = _still_asked(before, is_whole, n_columns)
        new = np.setdiff1d(asked.tokens * n_columns + asked.states, known, assume_unique=True)
        references = [rows.seen(of_tokens, block.starts) for rows, of_tokens in zip(tokens.kinds, block.kinds)]
        references = np.vstack([*references, block.rest])
        uses = _join(uses, _list_uses(references, items, states, new))
        begin, end = items.starts[whole], items.starts[whole + 1]
        of_whole = TokenFeatures(items.rows[ranges(begin, end)], None, np.append(0, np.cumsum(end - begin)))
        return cls(np.union1d(known, new), uses, whole, np.ascontiguousarray(references[:, whole]), of_whole)

    def score(self, states: Table, given: Weighing, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those that are asked for."""
        add_uses(*self.uses, given.weights, scores.reshape(-1))
        if len(self.whole):
            of_whole = np.zeros((len(self.whole), scores.shape[1]))
            states.add_references(self.references, given.slots, of_whole)
            states.add_placed(self.listed, given.slots, of_whole)
            scores[self.whole] = of_whole

    def scatter(self, states: Table, d_scores: Floats, gradient: Weighing, *, part: Part) -> None:
        """Adds the gradient; where nothing was asked for the derivative is 0."""
        scatter_uses(*self.uses, d_scores.reshape(-1), *part, gradient.weights)
        if len(self.whole):
            d_whole = d_scores[self.whole]
            states.scatter_references(self.references, d_whole, gradient.slots, part=part)
            states.scatter_placed(self.listed, d_whole, gradient.slots, gradient.weights, part=part)


def _still_asked(
    before: Optional[ChosenScores], is_whole: NDArray[np.bool_], n_columns: int
) -> tuple[NDArray[np.int64], Optional[Uses]]:
    """What is listed already, but for tokens of which now everything is asked for."""
    if before is None:
        return np.zeros(0, dtype=np.int64), None
    if not is_whole[before.known // n_columns].any():
        return before.known, before.uses
    stays = ~is_whole[before.uses.places // n_columns]
    return before.known[~is_whole[before.known // n_columns]], Uses(*(array[stays] for array in before.uses))


def _list_uses(references: NDArray[np.integer], items: TokenFeatures, states: Table, places: NDArray[np.int64]) -> Uses:
    """The weights that are added at some places, in rising order."""
    tokens, columns = places // states.n_columns, places % states.n_columns
    starts = np.append(0, np.cumsum(np.bincount(tokens, minlength=references.shape[1])))
    narrow = references.shape[1] * states.n_columns <= np.iinfo(np.int32).max
    listed = items.rows.astype(references.dtype), items.starts
    asked = states.n_columns, starts, columns
    size = _USES * len(places)
    while True:
        uses = Uses(np.empty(size, dtype=np.int32 if narrow else np.int64), np.empty(size, dtype=references.dtype))
        found = list_uses(references, listed, states.slot_columns, states.weight_of_slot, asked, tuple(uses))
        if found <= size:
            return Uses(*(array[:found].copy() for array in uses))
        size = found


def _join(uses: Optional[Uses], more: Uses) -> Uses:
    return more if uses is None else Uses(*map(np.concatenate, zip(uses, more)))
