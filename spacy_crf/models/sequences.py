"""A corpus laid out for optimizers that learn from one sequence after the other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..arrays import states_of
from ..features.doc_batch import DocBatch
from ..inference.semi_markov import add_spans
from ..losses.clamped import ClampedLoss
from ..types import (
    GOES_ON,
    Bools,
    ChainCorpus,
    Floats,
    Ints,
    SegmentClamp,
    SegmentUses,
    SlotUses,
    SpanList,
    TokenFeatures,
)
from .node import AnnotatedDocs
from .sparse import VECTORS
from .table import SlotLayout
from .weights import Weights, checksum

_NO_VALUES = np.zeros(0, dtype=np.float32)
# Kinds of segment features, in the order of `SegmentUses`; kinds of span features among them
_OF_SEGMENTS = ("tokens", "begins", "ends", "spans", "repeats")
_OF_SPANS = _OF_SEGMENTS[3:]


class _Batch(NamedTuple):
    """A batch of Docs with their features looked up."""

    starts: Ints  # [B + 1]
    weights: Floats  # [B]
    clamp: Any  # of the class that the structure takes
    uses: dict[str, SlotUses]  # by kind of features
    listed: Optional[SpanList]
    excluded: Optional[Bools]  # [N, S] listed spans that are known to be wrong with a state


class SequencesObjective(Weights):
    """Objective for online optimizers: a corpus, whose batches are read once, with its features looked up, and the layout of the
    weights of a model on sparse features.
    """

    # Set if the model continues from earlier training, see `optimizers.anchor.Anchor`
    anchor: Any = None
    mixed: Any = None
    # Names the sequence that begins at a token, for humans
    describe_token: Optional[Callable[[int], str]] = None

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self.loss = loss
        # The slots of each table follow one another; the slots of shared scores come last
        self._layouts = {block.name: block.table.layout for block in self._tables}
        sizes = [len(layout.columns) for layout in self._layouts.values()]
        self._first_slot = dict(zip(self._layouts, np.append(0, np.cumsum(sizes)).tolist()))
        self._chain_start = sum(sizes)
        self.corpus = self._lay_out([self._look_up(batch) for batch in corpus])
        check = checksum([np.frombuffer(repr(loss).encode("utf8"), dtype=np.uint8)])
        self.signature = (*self.layout, checksum(_arrays(self.corpus), check))
        self.n_sequences = len(self.corpus.starts) - 1

    def describe(self, sequence: int) -> str:
        """Name of a sequence by its number, for messages."""
        if self.describe_token is None:
            return f"sequence {sequence}"
        return self.describe_token(int(self.corpus.starts[sequence]))

    def _look_up(self, batch: AnnotatedDocs) -> _Batch:
        docs = DocBatch.of(batch.docs)
        found = {}
        listed = None
        excluded = None
        for features in self.features:
            of_layer = features.look_up(docs)
            kinds = features.kinds
            for kind, of_kind in of_layer.features.items():
                found[kind] = kinds[kind].table, of_kind
            listed = of_layer.listed
        if listed is not None:
            # Excluded spans are listed too, though most of them have no feature
            wrong = batch.excluded
            listed, own, numbers = add_spans(listed, wrong.start, wrong.end, int(batch.starts[-1]))
            excluded = np.zeros((len(listed.lengths), self.n_states), dtype=bool)
            excluded[numbers, 1 + wrong.label] = True
            for kind in _OF_SPANS:
                table, of_kind = found[kind]
                found[kind] = table, _spread(of_kind, own, len(excluded))
        uses = {
            kind: find_slots(features, self._layouts[table], self._width(table), self._first_slot[table])
            for kind, (table, features) in found.items()
        }
        if VECTORS in uses:
            uses["states"] = uses_of_both(uses["states"], uses.pop(VECTORS))
        return _Batch(
            starts=batch.starts,
            weights=np.ones(len(batch.starts) - 1) if batch.weights is None else batch.weights,
            clamp=batch.allowed,
            uses=uses,
            listed=listed,
            excluded=excluded,
        )

    def _width(self, table: str) -> int:
        return self.n_states**2 if table == "transitions" else self.n_states

    def _lay_out(self, batches: list[_Batch]) -> ChainCorpus:
        starts = join_starts([batch.starts for batch in batches])
        # All batches have the same kinds of features
        uses = {}
        for kind in batches[0].uses:
            uses[kind] = join_uses([batch.uses[kind] for batch in batches])
        states = np.concatenate([states_of(batch.clamp) for batch in batches])
        single = states.sum(axis=1) == 1
        gold = np.where(single, states.argmax(axis=1), -1).astype(np.int32)
        of_spans = {kind: count_slots(uses[kind], self.n_states) for kind in _OF_SPANS if kind in uses}
        of_tokens = [kind for kind in uses if kind not in of_spans]
        touched = np.sum([count_slots(uses[kind], self._width(kind)) for kind in of_tokens], axis=0)  # [T + 1]
        segments = None
        certain = single
        if of_spans:
            segments, certain = self._segments(batches, uses, gold, starts)
            at_spans = np.sum([*of_spans.values()], axis=0)
            touched = touched + at_spans[segments.listed_starts]
        # A sequence is known if no token of it is uncertain
        is_known = np.diff(np.append(0, np.cumsum(~certain))[starts]) == 0
        # Behind the slots of tables come those of shared scores: a slot for each entry, also for entries without a weight
        possible = self.node.possible(self.model)
        forbidden = []
        places = [self._first_slot[name] + layout.slot_of_weight for name, layout in self._layouts.items()]
        n_slots = self._chain_start
        for block in self._shared:
            places.append(n_slots + np.flatnonzero(block.mask))
            forbidden.append(n_slots + np.flatnonzero(~np.broadcast_to(possible[block.name], block.mask.shape)))
            n_slots += block.mask.size
        slot_of_weight = np.concatenate(places)
        learned = np.zeros(n_slots, dtype=bool)
        learned[slot_of_weight] = True
        return ChainCorpus(
            n_states=self.n_states,
            starts=starts,
            weights=np.concatenate([batch.weights for batch in batches]),
            gold=gold,
            is_known=is_known,
            clamp=states[:0] if is_known.all() else states,
            states=uses["states"],
            pairs=uses.get("transitions"),
            chain_start=self._chain_start,
            learned=learned,
            slot_of_weight=slot_of_weight,
            forbidden=np.concatenate(forbidden),
            most_slots=int(np.diff(touched[starts]).max(initial=0)) + n_slots - self._chain_start,
            segments=segments,
        )

    def _segments(
        self, batches: list[_Batch], uses: dict[str, SlotUses], gold: NDArray[np.int32], starts: Ints
    ) -> tuple[SegmentUses, Bools]:
        """Segments of the corpus, and tokens whose annotation is certain (bool[T]): where a segment begins, and its state."""
        columns = zip(*[batch.clamp for batch in batches])
        clamp = SegmentClamp(*map(np.concatenate, columns))
        excluded = np.concatenate([batch.excluded for batch in batches if batch.excluded is not None])
        listed = [batch.listed for batch in batches if batch.listed is not None]
        # A segment begins where a sequence does
        begins = clamp.must_begin.copy()
        begins[starts[:-1][starts[:-1] < starts[1:]]] = True
        goes_on = ~clamp.may_begin & np.append(False, gold[1:] == gold[:-1])[: len(gold)]
        longest = self._shared[-1].mask
        segments = SegmentUses(
            longest=len(longest),
            path=np.where(begins, gold, GOES_ON).astype(np.int32),
            may_begin=clamp.may_begin,
            must_begin=clamp.must_begin,
            features=join_uses([uses[kind] for kind in _OF_SEGMENTS]),
            listed_starts=join_starts([spans.starts for spans in listed]),
            listed_lengths=np.concatenate([spans.lengths for spans in listed]),
            length_start=self._chain_start + sum(block.mask.size for block in self._shared[:-1]),
            excluded=excluded if excluded.any() else excluded[:0],
        )
        return segments, (gold >= 0) & (begins | goes_on)


def _arrays(corpus: ChainCorpus) -> Iterable[NDArray]:
    """Arrays that distinguish a corpus from others."""
    yield from (corpus.starts, corpus.gold, corpus.weights, corpus.clamp, corpus.states.slots, corpus.states.bounds)
    if corpus.segments is not None:
        _, path, may_begin, must_begin, features, listed_starts, listed_lengths, _, excluded = corpus.segments
        yield from (path, may_begin, must_begin, features.slots, features.bounds)
        yield from (listed_starts, listed_lengths, excluded)


def _spread(features: TokenFeatures, at: Ints, n: int) -> TokenFeatures:
    """Features of spans as features of n spans, among which the spans have the numbers `at`."""
    counts = np.zeros(n, dtype=np.int64)
    counts[at] = np.diff(features.starts)
    return features._replace(starts=np.append(0, np.cumsum(counts)))


def find_slots(features: TokenFeatures, layout: SlotLayout, n_columns: int, start: int) -> SlotUses:
    """Slots that the features of each token, or span, use.

    features (TokenFeatures): Features of T tokens.
    layout (SlotLayout): Slots of the table.
    n_columns (int): Columns of the table.
    start (int): The number of the table's first slot among all slots.
    """
    n_tokens = len(features.starts) - 1
    # The features of each token, those whose row is whole first
    widths = np.diff(layout.starts)[features.rows]
    is_whole = widths == n_columns
    tokens = np.repeat(np.arange(n_tokens), np.diff(features.starts))
    order = np.argsort(2 * tokens + ~is_whole, kind="stable")
    n_slots = np.where(is_whole, 1, widths)[order]
    after = np.append(0, np.cumsum(n_slots))
    first_slots = layout.starts[features.rows[order]]
    slots = np.arange(after[-1]) + np.repeat(first_slots - after[:-1], n_slots)
    # bounds[2 t] is the first row of token t, and bounds[2 t + 1] its first single slot
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
    """Uses of slots of several batches, one behind the other.

    parts (Sequence[SlotUses]): The uses of each batch.
    """
    # A part may have left out values that are all 1
    slots, columns, values, bounds = zip(*parts)
    if any(map(len, values)):
        ones = [np.ones(len(of_part), dtype=np.float32) for of_part in slots]
        values = [of_part if len(of_part) else one for of_part, one in zip(values, ones)]
    return SlotUses(np.concatenate(slots), np.concatenate(columns), np.concatenate(values), join_starts(bounds))


def uses_of_both(one: SlotUses, other: SlotUses) -> SlotUses:
    """Uses of the slots of two tables by the same tokens.

    one (SlotUses): Uses of the first table.
    other (SlotUses): Uses of the second table, whose features have values.
    """
    values = one.values if len(one.values) else np.ones(len(one.slots), dtype=np.float32)
    # For each token, rows of both tables, then single slots of both
    sizes = np.column_stack([np.diff(one.bounds), np.diff(other.bounds)]).ravel()
    from_other = np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)
    slots = np.empty(len(from_other), dtype=np.promote_types(one.slots.dtype, other.slots.dtype))
    joined = SlotUses(
        slots=slots,
        columns=np.empty(len(slots), np.int32),
        values=np.empty(len(slots), np.float32),
        bounds=one.bounds + other.bounds,
    )
    # bounds add up, as rows and single slots of both tables alternate in the same way
    for mask, part in ((~from_other, one._replace(values=values)), (from_other, other)):
        for target, source in zip(joined[:3], part[:3]):
            target[mask] = source
    return joined


def count_slots(uses: SlotUses, n_columns: int) -> Ints:
    """Number of slots that the tokens before each token use: int64[T + 1].

    uses (SlotUses): Uses of T tokens.
    n_columns (int): Slots of a whole row.
    """
    # Bounds alternate between rows, of which each has a slot for every column, and single slots
    sizes = np.diff(uses.bounds)
    sizes[0::2] *= n_columns
    return np.append(0, np.cumsum(sizes))[0::2]


def join_starts(parts: Sequence[Ints]) -> Ints:
    """Starts of several batches as starts of one batch: int64[n + 1].

    parts (Sequence[int64[B + 1]]): The starts of each batch.
    """
    lengths = [np.diff(part) for part in parts]
    return np.append(0, np.cumsum(np.concatenate(lengths))).astype(np.int64)
