"""A corpus of semi-Markov chains laid out for optimizers that learn from one sequence after the other."""

import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..inference.semi_markov import add_spans
from ..losses.clamped import ClampedLoss
from ..types import GOES_ON, ChainCorpus, Floats, SegmentClamp, SegmentUses, SlotUses, TokenFeatures
from .emissions import AnnotatedDocs
from .segments import PLACES
from .semi_markov import SemiMarkovWeights
from .sequences import count_slots, find_slots, join_starts, join_uses


class _Batch(NamedTuple):
    """A batch of Docs with their features looked up."""

    starts: NDArray[np.int64]  # [B + 1]
    weights: Floats  # [B]
    clamp: SegmentClamp
    listed_starts: NDArray[np.int64]  # [T + 1]
    listed_lengths: NDArray[np.int32]  # [N]
    uses: dict[str, SlotUses]  # states, pairs, the places, and repeats
    excluded: NDArray[np.bool_]  # [N, S]


class SegmentSequencesObjective(SemiMarkovWeights):
    """What an online optimizer asks for: the corpus with its features looked up, and where each weight is.

    model (Model): A SemiMarkov on SparseEmissions.
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
        # Each kind of features with the first of its slots: those of states, of pairs of states, and of the places of segments
        self._rows = {"states": self._features.states, "pairs": self._features.transitions}
        self._rows.update((place, self._segment_features.rows[place]) for place in PLACES)
        sizes = [len(rows.layout.columns) for rows in self._rows.values()]
        self._first_slot = dict(zip(self._rows, np.append(0, np.cumsum(sizes)).tolist()))
        self._chain_start = sum(sizes)
        self.corpus = self._lay_out([*map(self._look_up, corpus)])
        check = zlib.crc32(repr(loss).encode("utf8"))
        laid_out, segments = self.corpus, self.corpus.segments
        arrays = [laid_out.starts, laid_out.gold, laid_out.weights, laid_out.clamp, segments.path, segments.may_begin]
        arrays += [segments.must_begin, segments.listed_starts, segments.listed_lengths, segments.excluded]
        for uses in (laid_out.states, segments.features):
            arrays += [uses.slots, uses.bounds]
        for array in arrays:
            check = zlib.crc32(np.ascontiguousarray(array), check)
        self.signature = (*self.layout, check)

    def describe(self, sequence: int) -> str:
        if self.describe_token is None:
            return f"sequence {sequence}"
        return self.describe_token(int(self.corpus.starts[sequence]))

    def _uses(self, kind: str, features: Optional[TokenFeatures], n: int) -> SlotUses:
        rows = self._rows[kind]
        return find_slots(features, rows.layout, rows.n_columns, self._first_slot[kind], n)

    def _look_up(self, batch: AnnotatedDocs) -> _Batch:
        prepared, of_segments = self._features.prepare(batch.docs), self._segment_features.prepare(batch.docs)
        n_tokens, wrong = len(batch.allowed.states), batch.excluded
        # Spans that are excluded are listed for that alone, most of them without a feature
        listed, own, numbers = add_spans(of_segments.listed, wrong.start, wrong.end, n_tokens)
        n_spans = len(listed.lengths)
        excluded = np.zeros((n_spans, self._features.n_tags), dtype=bool)
        excluded[numbers, 1 + wrong.label] = True
        uses = {
            "states": self._uses("states", prepared.states, n_tokens),
            "pairs": self._uses("pairs", prepared.transitions, n_tokens),
            "spans": self._uses("spans", _spread(of_segments.spans, own, n_spans), n_spans),
            "repeats": self._uses("tokens", _spread(of_segments.repeats, own, n_spans), n_spans),
        }
        for place in PLACES[:3]:
            uses[place] = self._uses(place, getattr(of_segments, place), n_tokens)
        weights = np.ones(len(batch.starts) - 1) if batch.weights is None else batch.weights
        return _Batch(batch.starts, weights, batch.allowed, *listed, uses, excluded)

    def _lay_out(self, batches: list[_Batch]) -> ChainCorpus:
        size, longest = self._lengths.shape[1], len(self._lengths)
        starts = join_starts([batch.starts for batch in batches])
        clamp = SegmentClamp(*(np.concatenate(arrays) for arrays in zip(*(batch.clamp for batch in batches))))
        uses = {kind: join_uses([batch.uses[kind] for batch in batches]) for kind in batches[0].uses}
        listed_starts = join_starts([batch.listed_starts for batch in batches])
        listed_lengths = np.concatenate([batch.listed_lengths for batch in batches])
        excluded = np.concatenate([batch.excluded for batch in batches])
        gold, path, is_known = _annotated_path(clamp, starts)
        chain_start = self._chain_start
        length_start = chain_start + self._observed.size
        n_slots = length_start + self._lengths.size
        of_kinds = [self._first_slot[kind] + rows.layout.slot_of_pair for kind, rows in self._rows.items()]
        of_chain = chain_start + np.flatnonzero(self._observed.ravel())
        slot_of_weight = np.concatenate(
            [*of_kinds, of_chain, length_start + np.flatnonzero(self._lengths.ravel())]
        )  # fmt: skip
        learned = np.zeros(n_slots, dtype=bool)
        learned[slot_of_weight] = True
        possible = np.arange(1, longest + 1)[:, None] <= self._model.attrs["longest"]
        has_pairs = bool(self._features.feature_set.transitions)
        touched = sum(count_slots(uses[kind], size) for kind in ("states", "begins", "ends", "tokens"))
        touched = touched + sum(count_slots(uses[kind], size) for kind in ("spans", "repeats"))[listed_starts]
        if has_pairs:
            touched = touched + count_slots(uses["pairs"], size * size)
        segments = SegmentUses(
            longest=longest,
            path=path,
            may_begin=clamp.may_begin,
            must_begin=clamp.must_begin,
            features=join_uses([uses[kind] for kind in ("tokens", "begins", "ends", "spans", "repeats")]),
            listed_starts=listed_starts,
            listed_lengths=listed_lengths,
            length_start=length_start,
            excluded=excluded if excluded.any() else excluded[:0],
        )
        return ChainCorpus(
            n_states=size,
            starts=starts,
            weights=np.concatenate([batch.weights for batch in batches]),
            gold=gold,
            is_known=is_known,
            clamp=np.zeros((0, size), dtype=bool) if is_known.all() else clamp.states,
            states=uses["states"],
            pairs=uses["pairs"] if has_pairs else None,
            chain_start=chain_start,
            learned=learned,
            slot_of_weight=slot_of_weight,
            forbidden=length_start + np.flatnonzero(~possible.ravel()),
            most_slots=int(np.diff(touched[starts]).max(initial=0)) + self._observed.size + self._lengths.size,
            segments=segments,
        )


def _spread(features: TokenFeatures, at: NDArray[np.int64], n: int) -> TokenFeatures:
    """Features of spans as those of n spans, among which they have these numbers."""
    counts = np.zeros(n, dtype=np.int64)
    counts[at] = np.diff(features.starts)
    return features._replace(starts=np.append(0, np.cumsum(counts)))


def _annotated_path(
    clamp: SegmentClamp, starts: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """RETURNS (int32[T], int32[T], bool[B]): The state that the annotation names at each token, -1 where it allows several; the
    path of segments; and in which sequences it leaves no other."""
    n_tokens = len(clamp.states)
    single = clamp.states.sum(axis=1) == 1
    gold = np.where(single, clamp.states.argmax(axis=1), -1).astype(np.int32)
    opens = np.zeros(n_tokens, dtype=bool)
    opens[starts[:-1][starts[:-1] < starts[1:]]] = True
    begins = clamp.must_begin | opens
    same = np.append(False, gold[1:] == gold[:-1])
    certain = single & (begins | (~clamp.may_begin & same))
    path = np.where(begins, gold, GOES_ON).astype(np.int32)
    return gold, path, np.diff(np.append(0, np.cumsum(~certain))[starts]) == 0
