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

    starts: Ints  # [B + 1] where the sequences start
    weights: Floats  # [B] factors of the sequences
    clamp: Any  # what the annotation allows: of the class that the structure takes
    uses: dict[str, SlotUses]  # by kind of features
    listed: Optional[SpanList]  # N spans that have features, or are excluded; None in chains of tokens
    excluded: Optional[Bools]  # [N, S] the states that a listed span must not have


class SequencesObjective(Weights):
    """Objective for online optimizers (`SequenceObjective`): a corpus, whose batches are read once, with its features looked up,
    and the layout of the weights of a model on sparse features.

    model (Model): The model.
    loss (ClampedLoss): The loss.
    corpus (Iterable[AnnotatedDocs]): The batches.
    """

    anchor: Any = None  # the `Anchor` if the model continues from earlier training
    mixed: Any = None
    describe_token: Optional[Callable[[int], str]] = None  # names the sequence that begins at a token, for messages

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self.loss = loss
        # The slots of each table follow one another; the slots of shared scores come last
        self._slot_layouts = {block.name: block.table.layout for block in self._tables}
        sizes = [len(layout.columns) for layout in self._slot_layouts.values()]
        first_slots = np.cumsum(sizes) - sizes
        self._first_slot = dict(zip(self._slot_layouts, first_slots.tolist()))
        self._chain_start = sum(sizes)
        self.corpus = self._lay_out([self._look_up(batch) for batch in corpus])
        loss_checksum = checksum([np.frombuffer(repr(loss).encode("utf8"), dtype=np.uint8)])
        self.signature = (*self.layout, checksum(_arrays(self.corpus), loss_checksum))
        self.n_sequences = len(self.corpus.starts) - 1

    def describe(self, sequence: int) -> str:
        """Name of a sequence by its number, for messages."""
        if self.describe_token is None:
            return f"sequence {sequence}"
        return self.describe_token(int(self.corpus.starts[sequence]))

    def _look_up(self, batch: AnnotatedDocs) -> _Batch:
        """Look up the features of a batch, and list the slots of their weights."""
        docs = DocBatch.of(batch.docs)
        features = {}  # by kind
        tables = {}  # names of tables by kind
        listed = None  # the spans that have features; None without segments
        excluded = None  # [N, S] which of these spans the annotation excludes
        for layer_features in self.features:
            found = layer_features.look_up(docs)
            features.update(found.features)
            tables.update({kind: layer_features.kinds[kind].table for kind in found.features})
            listed = found.listed
        if listed is not None:
            # Excluded spans are listed too, though most of them have no feature. This changes the numbers of the others
            wrong = batch.excluded
            listed, old_numbers, numbers = add_spans(listed, wrong.start, wrong.end, int(batch.starts[-1]))
            excluded = np.zeros((len(listed.lengths), self.n_states), dtype=bool)
            excluded[numbers, 1 + wrong.label] = True  # state 0 has no label
            for kind in _OF_SPANS:
                features[kind] = _renumber_spans(features[kind], old_numbers, len(excluded))
        uses = {}
        for kind, table in tables.items():
            layout = self._slot_layouts[table]
            uses[kind] = find_slots(features[kind], layout, self._width(table), self._first_slot[table])
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
        """Number of columns of a table."""
        return self.n_states**2 if table == "transitions" else self.n_states

    def _lay_out(self, batches: list[_Batch]) -> ChainCorpus:
        """Join the batches in the arrays that kernels read."""
        starts = join_starts([batch.starts for batch in batches])
        # All batches have the same kinds of features
        uses = {}
        for kind in batches[0].uses:
            uses[kind] = join_uses([batch.uses[kind] for batch in batches])
        states = np.concatenate([states_of(batch.clamp) for batch in batches])
        has_one_state = states.sum(axis=1) == 1
        gold = np.where(has_one_state, states.argmax(axis=1), -1).astype(np.int32)
        # How many slots the tokens, and the listed spans, before each one use
        span_counts = {kind: count_slots(uses[kind], self.n_states) for kind in _OF_SPANS if kind in uses}
        token_counts = [count_slots(uses[kind], self._width(kind)) for kind in uses if kind not in span_counts]
        n_used = np.sum(token_counts, axis=0)  # [T + 1]
        segments = None
        is_certain = has_one_state
        if span_counts:
            segments, is_certain = self._segments(batches, uses, gold, starts)
            n_used_by_spans = np.sum([*span_counts.values()], axis=0)
            n_used = n_used + n_used_by_spans[segments.listed_starts]
        # A sequence is known if it has no uncertain token
        n_uncertain_before = np.append(0, np.cumsum(~is_certain))  # [T + 1]
        is_known = np.diff(n_uncertain_before[starts]) == 0
        # Behind the slots of tables come those of shared scores: a slot for each entry, also for entries without a weight
        possible = self.node.possible(self.model)
        forbidden = []
        slots = [self._first_slot[name] + layout.slot_of_weight for name, layout in self._slot_layouts.items()]
        n_slots = self._chain_start
        for block in self._shared:
            slots.append(n_slots + np.flatnonzero(block.mask))
            forbidden.append(n_slots + np.flatnonzero(~np.broadcast_to(possible[block.name], block.mask.shape)))
            n_slots += block.mask.size
        slot_of_weight = np.concatenate(slots)
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
            most_slots=int(np.diff(n_used[starts]).max(initial=0)) + n_slots - self._chain_start,
            segments=segments,
        )

    def _segments(
        self, batches: list[_Batch], uses: dict[str, SlotUses], gold: NDArray[np.int32], starts: Ints
    ) -> tuple[SegmentUses, Bools]:
        """Segments of the corpus, and the tokens whose annotation is certain (bool[T]): their state is known, and whether a
        segment begins there.
        """
        columns = zip(*[batch.clamp for batch in batches])
        clamp = SegmentClamp(*map(np.concatenate, columns))
        excluded = np.concatenate([batch.excluded for batch in batches if batch.excluded is not None])
        listed = [batch.listed for batch in batches if batch.listed is not None]
        # A segment begins where a sequence does
        begins = clamp.must_begin.copy()
        begins[starts[:-1][starts[:-1] < starts[1:]]] = True
        has_state_before = np.append(False, gold[1:] == gold[:-1])[: len(gold)]  # cut for a corpus without tokens
        continues = ~clamp.may_begin & has_state_before
        lengths = self._shared[-1]  # the last parameter of segments
        segments = SegmentUses(
            longest=len(lengths.mask),
            path=np.where(begins, gold, GOES_ON).astype(np.int32),
            may_begin=clamp.may_begin,
            must_begin=clamp.must_begin,
            features=join_uses([uses[kind] for kind in _OF_SEGMENTS]),
            listed_starts=join_starts([spans.starts for spans in listed]),
            listed_lengths=np.concatenate([spans.lengths for spans in listed]),
            length_start=self._chain_start + sum(block.mask.size for block in self._shared[:-1]),
            excluded=excluded if excluded.any() else excluded[:0],
        )
        return segments, (gold >= 0) & (begins | continues)


def _arrays(corpus: ChainCorpus) -> Iterable[NDArray]:
    """Arrays by whose contents two corpora differ, for checksums."""
    yield from (corpus.starts, corpus.gold, corpus.weights, corpus.clamp, corpus.states.slots, corpus.states.bounds)
    segments = corpus.segments
    if segments is not None:
        yield from (
            segments.path,
            segments.may_begin,
            segments.must_begin,
            segments.features.slots,
            segments.features.bounds,
            segments.listed_starts,
            segments.listed_lengths,
            segments.excluded,
        )


def _renumber_spans(features: TokenFeatures, numbers: Ints, n_spans: int) -> TokenFeatures:
    """Features of N spans as features of a longer list of spans, in which the N spans have these `numbers` (int64[N])."""
    counts = np.zeros(n_spans, dtype=np.int64)
    counts[numbers] = np.diff(features.starts)
    return features._replace(starts=np.append(0, np.cumsum(counts)))


def find_slots(features: TokenFeatures, layout: SlotLayout, n_columns: int, start: int) -> SlotUses:
    """List the slots of a table that the features of each token, or of each span, use.

    features (TokenFeatures): N features of T tokens.
    layout (SlotLayout): Slots of the table.
    n_columns (int): Columns of the table.
    start (int): The number of the table's first slot among all slots.
    RETURNS (SlotUses): For each token its whole rows, features with a slot for every column, of which only the first slot is
        listed; then all slots of its other features.
    """
    n_tokens = len(features.starts) - 1
    tokens = np.repeat(np.arange(n_tokens), np.diff(features.starts))  # [N] of each feature
    widths = np.diff(layout.starts)[features.rows]  # [N] slots of each feature
    is_whole = widths == n_columns
    order = np.argsort(2 * tokens + ~is_whole, kind="stable")
    n_listed = np.where(is_whole, 1, widths)[order]
    list_starts = np.append(0, np.cumsum(n_listed))  # [N + 1] where the slots of each feature are in the list
    # The slots of a feature are first_slot, first_slot + 1 …
    first_slots = layout.starts[features.rows[order]]
    slots = np.arange(list_starts[-1]) + np.repeat(first_slots - list_starts[:-1], n_listed)
    # bounds[2 t] is the first whole row of token t, and bounds[2 t + 1] its first single slot
    whole_before = np.append(0, np.cumsum(is_whole))[features.starts]  # [T + 1] whole rows of earlier tokens
    bounds = np.empty(2 * n_tokens + 1, dtype=np.int64)
    bounds[0::2] = list_starts[features.starts]
    bounds[1::2] = bounds[:-1:2] + np.diff(whole_before)
    is_narrow = start + len(layout.columns) <= np.iinfo(np.int32).max
    return SlotUses(
        slots=(start + slots).astype(np.int32 if is_narrow else np.int64),
        columns=layout.columns[slots],
        values=_NO_VALUES if features.values is None else np.repeat(features.values[order], n_listed),
        bounds=bounds,
    )


def join_uses(parts: Sequence[SlotUses]) -> SlotUses:
    """Join the uses of slots of several batches, one batch behind the other.

    parts (Sequence[SlotUses]): The uses of each batch.
    """
    slots, columns, values, bounds = zip(*parts)
    if any(map(len, values)):  # a batch whose values are all 1 has left them out
        ones = [np.ones(len(part_slots), dtype=np.float32) for part_slots in slots]
        values = [part_values if len(part_values) else ones[n] for n, part_values in enumerate(values)]
    return SlotUses(np.concatenate(slots), np.concatenate(columns), np.concatenate(values), join_starts(bounds))


def uses_of_both(first: SlotUses, second: SlotUses) -> SlotUses:
    """Join the uses of the slots of two tables by the same tokens.

    first (SlotUses): Uses of the first table.
    second (SlotUses): Uses of the second table, whose features have values.
    """
    values = first.values if len(first.values) else np.ones(len(first.slots), dtype=np.float32)
    # The slots of the first table for a token, then those of the second table for it, then the next token
    sizes = np.column_stack([np.diff(first.bounds), np.diff(second.bounds)]).ravel()
    is_of_second = np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)
    slots = np.empty(len(is_of_second), dtype=np.promote_types(first.slots.dtype, second.slots.dtype))
    joined = SlotUses(
        slots=slots,
        columns=np.empty(len(slots), np.int32),
        values=np.empty(len(slots), np.float32),
        bounds=first.bounds + second.bounds,  # a bound counts the slots before it
    )
    for is_of_table, uses in ((~is_of_second, first._replace(values=values)), (is_of_second, second)):
        joined.slots[is_of_table] = uses.slots
        joined.columns[is_of_table] = uses.columns
        joined.values[is_of_table] = uses.values
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
    """Where sequences start if several batches are laid end to end: int64[n + 1].

    parts (Sequence[int64[B + 1]]): Where the sequences of each batch start.
    """
    lengths = [np.diff(part) for part in parts]
    return np.append(0, np.cumsum(np.concatenate(lengths))).astype(np.int64)
