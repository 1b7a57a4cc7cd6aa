"""A corpus of linear chains laid out for optimizers that learn from one sequence after the other."""

import zlib
from collections.abc import Callable, Iterable
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..losses.clamped import ClampedLoss
from ..types import ChainCorpus
from .emissions import AnnotatedDocs
from .objective import ChainWeights

_NO_VALUES = np.zeros(0, dtype=np.float32)


class SequencesObjective(ChainWeights):
    """What an online optimizer asks for: the corpus with its features looked up, and where each weight is.

    model (Model): A LinearChain on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    describe (Callable[[int], str]): Names a sequence for humans.
    """

    def __init__(
        self,
        model: Model,
        loss: ClampedLoss,
        corpus: Iterable[AnnotatedDocs],
        *,
        describe: Optional[Callable[[int], str]] = None,
    ):
        super().__init__(model)
        self.loss = loss
        self._describe = describe
        self.corpus = self._lay_out(list(map(self._look_up, corpus)))
        check = zlib.crc32(repr(loss).encode("utf8"))
        for array in (self.corpus.rows, self.corpus.starts, self.corpus.gold, self.corpus.weights, self.corpus.clamp):
            check = zlib.crc32(np.ascontiguousarray(array), check)
        self.signature = (*self.layout, check)

    def describe(self, sequence: int) -> str:
        return f"sequence {sequence}" if self._describe is None else self._describe(sequence)

    def _look_up(self, batch: AnnotatedDocs):
        prepared = self._features.prepare(batch.docs)
        known = batch.allowed.sum(axis=1) == 1
        gold = np.where(known, batch.allowed.argmax(axis=1), -1).astype(np.int32)
        weights = np.ones(len(batch.starts) - 1) if batch.weights is None else batch.weights
        return prepared, gold, batch.allowed if not known.all() else None, weights

    def _lay_out(self, batches: list) -> ChainCorpus:
        features, n_tags = self._features, self._features.n_tags
        starts = _join_starts([prepared.starts for prepared, *_ in batches])
        gold = np.concatenate([np.zeros(0, dtype=np.int32), *(gold for _, gold, *_ in batches)])
        clamp = np.zeros((0, n_tags), dtype=bool)
        if any(allowed is not None for _, _, allowed, _ in batches):
            clamp = np.zeros((len(gold), n_tags), dtype=bool)
            clamp[np.flatnonzero(gold >= 0), gold[gold >= 0]] = True
            at = 0
            for _, of_batch, allowed, _ in batches:
                if allowed is not None:
                    clamp[at : at + len(of_batch)] = allowed
                at += len(of_batch)
        unknown = np.append(0, np.cumsum(gold < 0))
        states, pairs = features.states.layout, features.transitions.layout
        pair_start = len(states.columns)
        chain_start = pair_start + len(pairs.columns)
        n_slots = chain_start + self._observed.size
        slot_of_weight = np.concatenate(
            [
                states.slot_of_pair,
                pair_start + pairs.slot_of_pair,
                chain_start + np.flatnonzero(self._observed.ravel()),
            ]
        )
        learned = np.zeros(n_slots, dtype=bool)
        learned[slot_of_weight] = True
        allowed = self._model.attrs["allowed"]
        possible = np.vstack([allowed.transitions, allowed.first, allowed.last])
        state_rows = _join_rows([prepared.states for prepared, *_ in batches])
        pair_rows = _join_rows([prepared.transitions for prepared, *_ in batches], n_tokens=len(gold))
        touched = _slots_of_tokens(state_rows, states.starts) + _slots_of_tokens(pair_rows, pairs.starts)
        per_sequence = np.diff(touched[starts])
        return ChainCorpus(
            n_states=n_tags,
            starts=starts,
            weights=np.concatenate([np.zeros(0), *(weights for *_, weights in batches)]),
            gold=gold,
            is_known=np.diff(unknown[starts]) == 0,
            clamp=clamp,
            rows=state_rows[0],
            values=state_rows[1],
            row_starts=state_rows[2],
            slot_starts=states.starts,
            slot_columns=states.columns,
            pair_rows=pair_rows[0],
            pair_values=pair_rows[1],
            pair_row_starts=pair_rows[2],
            pair_slot_starts=pair_start + pairs.starts,
            pair_slot_columns=pairs.columns,
            pair_start=pair_start,
            chain_start=chain_start,
            learned=learned,
            slot_of_weight=slot_of_weight,
            forbidden=chain_start + np.flatnonzero(~possible.ravel()),
            most_slots=int(per_sequence.max(initial=0)) + self._observed.size,
        )


def _join_starts(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    lengths = [np.diff(part) for part in parts]
    return np.append(0, np.cumsum(np.concatenate([np.zeros(0, dtype=np.int64), *lengths]))).astype(np.int64)


def _join_rows(parts: list, n_tokens: int = 0):
    """Rows, values (empty if all are 1) and starts of several TokenFeatures laid end to end; of none, so many empty rows."""
    parts = [part for part in parts if part is not None]
    if not parts:
        return np.zeros(0, dtype=np.int32), _NO_VALUES, np.zeros(n_tokens + 1, dtype=np.int64)
    values = _NO_VALUES
    if any(part.values is not None for part in parts):
        values = np.concatenate(
            [np.ones(len(p.rows), dtype=np.float32) if p.values is None else p.values for p in parts]
        )
    return np.concatenate([part.rows for part in parts]), values, _join_starts([part.starts for part in parts])


def _slots_of_tokens(rows, slot_starts) -> NDArray[np.int64]:
    """How many slots the features before each token own: int64[T + 1]."""
    return np.append(0, np.cumsum(np.diff(slot_starts)[rows[0]]))[rows[2]]
