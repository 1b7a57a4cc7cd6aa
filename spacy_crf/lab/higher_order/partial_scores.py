"""Scores of a few states of each token of a batch, the same states in many passes.

Until pruned lattices are rebuilt, all passes need the scores of the same three or four states of some hundreds. The weights for
these scores are listed once, and each pass reads only these weights.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ...arrays import ranges
from ...models.fixed_tokens import FixedTokens
from ...models.table import GradientPart, Table
from ...types import Floats, TokenFeatures
from ..kernels.partial_scores import add_uses, list_uses, scatter_uses

_USES = 24  # uses of a score for which room is allocated first
_MOST_WHOLE = 0.5  # with a larger share of tokens that need all states, no uses are listed


class ChosenScores(NamedTuple):
    """The scores of a batch of T tokens with C columns that many passes need."""

    known: NDArray[np.int64]  # [N] places with listed uses, rising
    uses: tuple[NDArray[np.integer], NDArray[np.integer]]  # [U] place (token · C + column), and weight to add there
    whole: NDArray[np.int64]  # [M] tokens that need all columns
    references: NDArray[np.integer]  # [templates, M] features of these tokens, for `Table.add_references`
    listed: TokenFeatures  # further features of these tokens, for `Table.add_placed`

    def score(self, states: Table, weights: Floats, slots: Floats, scores: Floats) -> None:
        """Add the chosen scores to ``scores`` (float64[T, C]). weights (float64[W]), slots: The weights by number and by slot."""
        add_uses(*self.uses, weights, scores.reshape(-1))
        if len(self.whole):
            of_whole = np.zeros((len(self.whole), scores.shape[1]))
            states.add_references(self.references, slots, of_whole)
            states.add_placed(self.listed, slots, of_whole)
            scores[self.whole] = of_whole

    def scatter(
        self, states: Table, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart
    ) -> None:
        """Add the gradients of slots and of weights; derivatives of scores that were not chosen are 0."""
        scatter_uses(*self.uses, d_scores.reshape(-1), *part, gradient)
        if len(self.whole):
            d_whole = d_scores[self.whole]
            states.scatter_references(self.references, d_whole, d_slots, part=part)
            states.scatter_placed(self.listed, d_whole, d_slots, gradient, part=part)


class ScorePlaces(NamedTuple):
    """Places of some scores of a batch of tokens. A token without entries needs all of its scores."""

    tokens: NDArray[np.int64]  # [N] rising
    states: NDArray[np.int64]  # [N]

    def choose(self, tokens: FixedTokens, number: int, before: Optional[ChosenScores] = None) -> Optional[ChosenScores]:
        """List the weights for these scores of a batch.

        tokens (FixedTokens): Features of the corpus. number (int): Number of the batch.
        before (ChosenScores): The previous choice for the batch, which is mostly the same.
        RETURNS (ChosenScores): None if most scores are needed.
        """
        block, table = tokens.blocks[number], tokens.table
        n_columns, items, n_tokens = table.n_columns, block.items, int(block.starts[-1])
        is_whole = np.bincount(self.tokens, minlength=n_tokens) == 0
        [whole] = np.nonzero(is_whole)
        if items.values is not None or len(whole) > _MOST_WHOLE * n_tokens:
            return None
        known, uses = np.zeros(0, dtype=np.int64), None
        if before is not None:  # keep its uses, except at tokens that now need all scores
            known, uses = before.known, before.uses
            if is_whole[known // n_columns].any():
                stays = ~is_whole[uses[0] // n_columns]
                known, uses = known[~is_whole[known // n_columns]], (uses[0][stays], uses[1][stays])
        new = np.setdiff1d(self.tokens * n_columns + self.states, known, assume_unique=True)
        references = [windows.seen(of_tokens, block.starts) for windows, of_tokens in zip(tokens.windows, block.kinds)]
        references = np.vstack([*references, block.rest])
        more = _list_uses(references, items, table, new)
        uses = more if uses is None else tuple(map(np.concatenate, zip(uses, more)))
        begin, end = items.starts[whole], items.starts[whole + 1]
        of_whole = TokenFeatures(items.rows[ranges(begin, end)], None, np.append(0, np.cumsum(end - begin)))
        references = np.ascontiguousarray(references[:, whole])
        return ChosenScores(np.union1d(known, new), uses, whole, references, of_whole)


def _list_uses(
    references: NDArray[np.integer], items: TokenFeatures, states: Table, places: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """List the uses of weights at some places (int64[N], rising)."""
    tokens, columns = places // states.n_columns, places % states.n_columns
    starts = np.append(0, np.cumsum(np.bincount(tokens, minlength=references.shape[1])))
    narrow = references.shape[1] * states.n_columns <= np.iinfo(np.int32).max
    listed = items.rows.astype(references.dtype), items.starts
    asked = states.n_columns, starts, columns
    size = _USES * len(places)
    while True:
        uses = np.empty(size, dtype=np.int32 if narrow else np.int64), np.empty(size, dtype=references.dtype)
        found = list_uses(references, listed, states.slot_columns, states.weight_of_slot, asked, uses)
        if found <= size:
            return uses[0][:found].copy(), uses[1][:found].copy()
        size = found
