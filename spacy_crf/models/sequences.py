"""A corpus of linear chains laid out for optimizers that learn from one sequence after the other."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..losses.clamped import ClampedLoss
from ..types import ChainCorpus, SlotUses, TokenFeatures
from .emissions import AnnotatedDocs
from .objective import ChainWeights
from .sparse_rows import SlotLayout

_NO_VALUES = np.zeros(0, dtype=np.float32)


class SequencesObjective(ChainWeights):
    """What an online optimizer asks for: the corpus with its features looked up, and where each weight is.

    model (Model): A LinearChain on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    """

    # Where a model goes on from what it has learned, see `optimizers.anchor.Anchor`
    anchor: Any = None
    # Names the sequence that begins at a token, for humans
    describe_token: Optional[Callable[[int], str]] = None

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self.loss = loss
        states, pairs = self._features.states, self._features.transitions
        # Layout, columns and first slot of the features of states, and of pairs of states
        self._slots = (
            (states.layout, states.n_columns, 0),
            (pairs.layout, pairs.n_columns, len(states.layout.columns)),
        )
        self.corpus = self._lay_out(list(map(self._look_up, corpus)))
        check = zlib.crc32(repr(loss).encode("utf8"))
        laid_out = self.corpus
        uses = laid_out.states
        for array in (uses.slots, uses.bounds, laid_out.starts, laid_out.gold, laid_out.weights, laid_out.clamp):
            check = zlib.crc32(np.ascontiguousarray(array), check)
        self.signature = (*self.layout, check)

    def describe(self, sequence: int) -> str:
        if self.describe_token is None:
            return f"sequence {sequence}"
        return self.describe_token(int(self.corpus.starts[sequence]))

    def _look_up(self, batch: AnnotatedDocs):
        prepared = self._features.prepare(batch.docs)
        known = batch.allowed.sum(axis=1) == 1
        gold = np.where(known, batch.allowed.argmax(axis=1), -1).astype(np.int32)
        weights = np.ones(len(batch.starts) - 1) if batch.weights is None else batch.weights
        uses = [
            find_slots(token_features, *of_rows, len(gold))
            for token_features, of_rows in zip((prepared.states, prepared.transitions), self._slots)
        ]
        return prepared.starts, *uses, gold, batch.allowed if not known.all() else None, weights

    def _lay_out(self, batches: list) -> ChainCorpus:
        n_tags = self._features.n_tags
        empty = np.zeros(0, dtype=np.int64), *[find_slots(None, *of_rows, 0) for of_rows in self._slots]
        starts, states, pairs, golds, clamps, weights = zip(
            (*empty, np.zeros(0, dtype=np.int32), None, np.zeros(0)), *batches
        )
        starts, gold = join_starts(starts), np.concatenate(golds)
        clamp = np.zeros((0, n_tags), dtype=bool)
        if any(allowed is not None for allowed in clamps):
            clamp = np.zeros((len(gold), n_tags), dtype=bool)
            clamp[np.flatnonzero(gold >= 0), gold[gold >= 0]] = True
            at = 0
            for of_batch, allowed in zip(golds, clamps):
                if allowed is not None:
                    clamp[at : at + len(of_batch)] = allowed
                at += len(of_batch)
        unknown = np.append(0, np.cumsum(gold < 0))
        (of_states, _, _), (of_pairs, _, pair_start) = self._slots
        chain_start = pair_start + len(of_pairs.columns)
        n_slots = chain_start + self._observed.size
        slot_of_weight = np.concatenate(
            [
                of_states.slot_of_pair,
                pair_start + of_pairs.slot_of_pair,
                chain_start + np.flatnonzero(self._observed.ravel()),
            ]
        )
        learned = np.zeros(n_slots, dtype=bool)
        learned[slot_of_weight] = True
        allowed = self._model.attrs["allowed"]
        possible = np.vstack([allowed.transitions, allowed.first, allowed.last])
        states = join_uses(states)
        pairs = join_uses(pairs) if self._features.feature_set.transitions else None
        touched = count_slots(states, n_tags)
        if pairs is not None:
            touched += count_slots(pairs, n_tags * n_tags)
        return ChainCorpus(
            n_states=n_tags,
            starts=starts,
            weights=np.concatenate(weights),
            gold=gold,
            is_known=np.diff(unknown[starts]) == 0,
            clamp=clamp,
            states=states,
            pairs=pairs,
            chain_start=chain_start,
            learned=learned,
            slot_of_weight=slot_of_weight,
            forbidden=chain_start + np.flatnonzero(~possible.ravel()),
            most_slots=int(np.diff(touched[starts]).max(initial=0)) + self._observed.size,
        )


def find_slots(
    features: Optional[TokenFeatures], layout: SlotLayout, n_columns: int, start: int, n_tokens: int
) -> SlotUses:
    """What each token's features use of a vector of slots, where they have those from number ``start`` on."""
    if features is None:
        features = TokenFeatures(np.zeros(0, dtype=np.int32), None, np.zeros(n_tokens + 1, dtype=np.int64))
    # The features of each token, those whose row is whole first
    widths = np.diff(layout.starts)[features.rows]
    is_whole = widths == n_columns
    tokens = np.repeat(np.arange(n_tokens), np.diff(features.starts))
    order = np.argsort(2 * tokens + ~is_whole, kind="stable")
    n_slots = np.where(is_whole, 1, widths)[order]
    after = np.append(0, np.cumsum(n_slots))
    first_slots = layout.starts[features.rows[order]]
    slots = np.arange(after[-1]) + np.repeat(first_slots - after[:-1], n_slots)
    n_whole = np.append(0, np.cumsum(is_whole))[features.starts]
    bounds = np.empty(2 * n_tokens + 1, dtype=np.int64)
    bounds[0::2] = after[features.starts]
    bounds[1::2] = bounds[:-1:2] + np.diff(n_whole)
    return SlotUses(
        slots=(start + slots).astype(np.int32 if start + len(layout.columns) <= np.iinfo(np.int32).max else np.int64),
        columns=layout.columns[slots],
        values=_NO_VALUES if features.values is None else np.repeat(features.values[order], n_slots),
        bounds=bounds,
    )


def join_uses(parts: Sequence[SlotUses]) -> SlotUses:
    slots, columns, values, bounds = zip(*parts)
    if any(map(len, values)):
        ones = [np.ones(len(of_part), dtype=np.float32) for of_part in slots]
        values = [of_part if len(of_part) else one for of_part, one in zip(values, ones)]
    return SlotUses(np.concatenate(slots), np.concatenate(columns), np.concatenate(values), join_starts(bounds))


def count_slots(uses: SlotUses, n_columns: int) -> NDArray[np.int64]:
    """How many slots the tokens before each token use: int64[T + 1]."""
    sizes = np.diff(uses.bounds)
    sizes[0::2] *= n_columns
    return np.append(0, np.cumsum(sizes))[0::2]


def join_starts(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    lengths = [np.diff(part) for part in parts]
    return np.append(0, np.cumsum(np.concatenate(lengths))).astype(np.int64)
