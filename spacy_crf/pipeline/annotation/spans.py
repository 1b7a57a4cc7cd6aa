"""Spans that may overlap as annotation: read from ``doc.spans[key]``, and written to it."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example
from spacy.vocab import Vocab

from ... import checks
from ...errors import Errors
from ...features.doc_batch import DocBatch, Labelling
from ...schemes import BEGIN, INSIDE, MISSING, OUTSIDE, Scheme, Segments, TransitionMask
from ..supervision import without_blanks
from .entities import Annotation, Entities, GoldReport, PresetAnnotation, Starts, Supervision, same_words
from .trimming import Mention, mentions_of

Groups = Union[str, Sequence[Sequence[str]]]


class Slot(NamedTuple):
    """A label on one of its levels. Each slot has its own tags."""

    label: str
    level: int  # 0 for the outermost

    def __str__(self) -> str:
        return f"{self.label}/{self.level + 1}" if self.level else self.label


class Spans(Entities):
    """Spans in ``doc.spans[key]``. Labels of one group share a chain, in which spans do not overlap. A group may have several
    levels, each a chain: spans inside others of their group are on the next level.

    scheme (Scheme): The tag scheme of the spans.
    key (str): Key of doc.spans.
    groups (Groups): Labels that share a chain; every other label has its own. "label" or "auto": each has its own.
    levels (Mapping[str, int]): Number of levels of labels that have several; equal for the labels of a group.
    """

    writes = ()
    assigns = ("doc.spans",)
    noun = "a span"
    outside = frozenset([""])
    slots: list[Slot]  # the labels, each on each of its levels

    def __init__(self, scheme: Scheme, key: str, groups: Groups = "label", levels: Optional[Mapping[str, int]] = None):
        super().__init__(scheme)
        self.key = key
        self.scores_prefix = f"spans_{key}"
        self._groups = () if isinstance(groups, str) else groups
        self._levels = levels or {}

    def bind(self, name: str, vocab: Vocab, labels: Iterable[str]) -> "Spans":
        """Copy the annotation for a component: its labels in place of `labels` are slots, see `Annotation.bind`."""
        slots = [Slot(label, level) for label in labels for level in range(self._levels.get(label, 1))]
        bound = super().bind(name, vocab, map(str, slots))
        bound.slots = slots
        return bound

    @property
    def chains(self) -> list[list[Slot]]:
        """The slots of each chain; one chain without slots if there are no labels."""
        group_of = {}
        for n, labels in enumerate(self._groups):
            group_of.update(dict.fromkeys(labels, n))
        chains: dict[tuple[object, int], list[Slot]] = {}  # by group and level; a label of no group is its own group
        for slot in self.slots:
            group = group_of.get(slot.label, slot.label)
            chains.setdefault((group, slot.level), []).append(slot)
        return [*chains.values()] or [[]]

    def of_chain(self, slots: Sequence[Slot]) -> "Spans":
        """The annotation of a single chain, whose labels are the `slots`, all on one level."""
        labels = [slot.label for slot in slots]
        annotation = Spans(self.scheme, self.key, [labels])
        annotation.elsewhere = frozenset(slot.label for slot in self.slots).difference(labels)
        if slots:
            annotation.level = slots[0].level
            annotation.n_levels = self._levels.get(labels[0], 1)
        return annotation

    def tag_labels(self) -> list[str]:
        """The label of each tag, on whatever level; "O" for none."""
        label_of = {str(slot): slot.label for slot in self.slots}
        return [label_of.get(label, label) for label in super().tag_labels()]

    def mask(self) -> TransitionMask:
        """The tag sequences that the scheme allows and that have spans of a single chain."""
        transitions, first, last = super().mask()
        chain_of_slot = {}
        for n, slots in enumerate(self.chains):
            chain_of_slot.update(dict.fromkeys(slots, n))
        # [S] -1 for "O", which belongs to all chains; the last entry of `label_of` belongs to no tag
        slot_of_tag = self.span_states().label_of[:-1]
        chain = np.array([-1 if n < 0 else chain_of_slot[self.slots[n]] for n in slot_of_tag.tolist()])  # [S]
        together = (chain[:, np.newaxis] == chain) | (chain[:, np.newaxis] < 0) | (chain < 0)
        return TransitionMask(transitions & together, first, last)

    # ---------------------------------------------------------------------------------------------------- in training

    def gold_spans(self, doc: Doc) -> Union[SpanGroup, tuple[Span, ...]]:
        """The spans of a reference Doc in ``doc.spans[key]``."""
        return doc.spans.get(self.key, ())

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """RETURNS (Dict[str, None]): The labels of the spans of a Doc, without labels of other chains of the set."""
        return dict.fromkeys(span.label_ for span in self.gold_spans(doc) if span.label_ not in self.elsewhere)

    def no_labels(self, name: str, docs: Iterable[Doc]) -> str:
        """The message that reference `docs` have no spans for the component `name`, with the keys that they have."""
        keys = sorted(set().union(*(doc.spans for doc in docs)))
        return Errors.CRF404.format(name=name, key=self.key, known=", ".join(map(repr, keys)) or "none")

    def is_gold(self, span: Span) -> bool:
        """Whether a span is in ``doc.spans[key]`` of its Doc, with the same label."""
        place = span.start, span.end, span.label
        return any((gold.start, gold.end, gold.label) == place for gold in self.gold_spans(span.doc))

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the spans of the chain, on its level, from the reference Docs, see `Annotation.gold`. Texts without
        ``doc.spans[key]`` count as not annotated, spans that begin in one sentence and end in another as missing."""
        bounds = DocBatch(example.predicted for example in examples).bounds
        n_tokens = int(bounds[-1])
        iob = np.full(n_tokens, OUTSIDE)
        label = np.zeros(n_tokens, dtype=np.int64)
        report = report if self.level == 0 else GoldReport()  # all levels meet the same spans
        for example, begin, end in zip(examples, bounds.tolist(), bounds[1:].tolist()):
            if self.key not in example.reference.spans:
                iob[begin:end] = MISSING
                continue
            doc_iob = iob[begin:end]  # a view
            spans = []
            sentence_starts = starts[(starts > begin) & (starts < end)] - begin  # in tokens of the Doc
            for span in self._aligned(example, report, doc_iob):
                if ((sentence_starts > span.start) & (sentence_starts < span.end)).any():
                    report.add_span(span, self.key, "cross the start of a sentence, and count as missing")
                    doc_iob[span.start : span.end] = MISSING
                else:
                    spans.append(span)
            for span, level in with_levels(spans):
                if level >= self.n_levels:
                    report.add_span(span, self.key, _NOT_HELD)
                elif level == self.level:
                    doc_iob[span.start : span.end] = INSIDE
                    doc_iob[span.start] = BEGIN
                    label[begin + span.start : begin + span.end] = self.labels.index(span.label_)
        return Supervision(self.scheme.clamp(iob, label, starts, len(self.labels)), iob == MISSING)

    def outermost(self, examples: list[Example]) -> Labelling:
        """The gold spans on the outermost level of each group, in the tokens of the predicted Docs."""
        shift = 0  # first token of a Doc in the batch
        rows = []
        groups = [slots for slots in self.chains if slots and slots[0].level == 0]
        for example in examples:
            lost = np.zeros(len(example.predicted))  # where spans can't be aligned, which `gold` reports
            spans = self._aligned(example, GoldReport(), lost)
            for slots in groups:
                labels = [slot.label for slot in slots]
                for span, level in with_levels(span for span in spans if span.label_ in labels):
                    if level == 0:
                        rows.append((shift + span.start, shift + span.end, self.labels.index(span.label_)))
            shift += len(example.predicted)
        return self.labelling(Segments.of_rows(rows))

    def labelling(self, spans: Segments) -> Labelling:
        """The labelling that templates read, from spans whose labels are numbers of slots."""
        hashes = np.array([self.vocab.strings[slot.label] for slot in self.slots], dtype=np.uint64)
        return Labelling(spans, hashes)

    def _aligned(self, example: Example, report: GoldReport, iob: NDArray) -> list[Span]:
        """The gold spans of the chain as spans of the predicted Doc.

        report (GoldReport): Gets the spans that cannot be used.
        iob (int64[T]): The codes of the tokens of the Doc; MISSING is set for spans that do not align.
        """
        same = same_words(example.predicted, example.reference)
        aligned_spans = []
        for span in self.gold_spans(example.reference):
            if span.label_ in self.elsewhere:
                continue
            if span.label_ not in self.labels:
                report.add_span(span, self.key, "have a label the component does not know, and count as outside")
            elif same and len(span):
                aligned_spans.append(span)
            elif len(span):
                # One after the other, since a span may align where others do not
                aligned = example.get_aligned_spans_y2x([span], allow_overlap=True)
                aligned_spans += aligned
                if not aligned:
                    report.add_span(span, self.key, "do not align with the tokens, and count as missing")
                    lost = example.predicted.char_span(span.start_char, span.end_char, alignment_mode="expand")
                    if lost is not None:
                        iob[lost.start : lost.end] = MISSING
        trimmed = (without_blanks(span, self, self.key, report) for span in aligned_spans)
        return [span for span in trimmed if span is not None]

    def spans_of_chain(self, spans: Iterable[Span]) -> list[Span]:
        """The given spans that have a label of this chain and are on its level."""
        leveled = with_levels(span for span in spans if span.label_ in self.labels)
        return [span for span, level in leveled if level == self.level]

    def fingerprint(self, docs: list[Doc]) -> int:
        """A checksum of the spans of Docs, which differs for a Doc without ``doc.spans[key]`` and a Doc with no span in it."""
        groups: list[Optional[list[tuple[int, int, int]]]] = []
        for doc in docs:
            places = [(span.start, span.end, span.label) for span in self.gold_spans(doc)]
            groups.append(places if self.key in doc.spans else None)
        return zlib.crc32(repr(groups).encode("utf8"))

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The spans of a Doc, with their scores as probabilities if they have any."""
        group = self.gold_spans(doc)
        scores: Optional[Sequence[float]] = group.attrs.get("scores") if isinstance(group, SpanGroup) else None
        probabilities = [None] * len(group) if scores is None else map(float, scores)
        return mentions_of(group, probabilities, space_edges=self.space_edges)

    def is_annotated(self, doc: Doc) -> bool:
        """Whether a reference Doc has ``doc.spans[key]``, be it empty."""
        return self.key in doc.spans

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): The gold spans and the spans found; neither for a text without
        annotation."""
        if not self.is_annotated(example.reference):
            return [], []
        return self.mentions_in(example.reference), self.mentions_in(example.predicted)

    # -------------------------------------------------------------------------------------------------- in prediction

    def preset(self, docs: DocBatch) -> None:
        """RETURNS (None): Docs keep no spans. Spans that are there already are replaced, as by spaCy's spancat."""


_NOT_HELD = (
    "overlap others of their chain, and are left out (nested = true gives chains a further level, groups = 'label' one chain to "
    "each label)"
)


def levels_of(docs: Iterable[Doc], annotation: Spans) -> dict[str, int]:
    """The number of levels that each label needs for the nested spans of texts.

    docs (Iterable[Doc]): The reference Docs, read once.
    annotation (Spans): Their annotation, with a single level.
    RETURNS (Dict[str, int]): The numbers by label, without labels that need a single level.
    """
    n_levels: Counter[str] = Counter()
    chains = annotation.chains
    for doc in docs:
        for slots in chains:
            labels = [slot.label for slot in slots]
            leveled = with_levels(span for span in annotation.gold_spans(doc) if span.label_ in labels)
            deepest = max((level for _, level in leveled), default=0)
            for label in labels:  # the labels of a group have the same number of levels
                n_levels[label] = max(n_levels[label], 1 + deepest)
    return {label: n for label, n in n_levels.items() if n > 1}


def check_groups(owner: str, groups: Groups) -> Groups:
    """Check the setting `groups` of a component (`owner` in messages).

    RETURNS (Groups): The setting, with groups as lists.
    RAISES (ValueError): CRF020 for a setting that is neither a word nor lists of labels, or has a label twice.
    """
    if isinstance(groups, str):
        return checks.one_of(owner, "groups", groups, ("label", "auto"))
    must = '"label", "auto", or a list of lists of labels'
    are_lists = isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups)
    checks.expect(are_lists, owner, "groups", groups, must)
    labels = list(chain.from_iterable(groups))
    checks.expect(all(isinstance(label, str) and label for label in labels), owner, "groups", groups, must)
    twice = [label for label in dict.fromkeys(labels) if labels.count(label) > 1]
    checks.expect(not twice, owner, "groups", groups, f"without a label in two places, as {', '.join(twice)} is")
    return [list(group) for group in groups]


def groups_of(docs: Iterable[Doc], annotation: Spans) -> list[list[str]]:
    """Choose groups of labels whose spans do not overlap in the given texts, except with spans of the same label. A greedy search
    keeps the number of groups small: it places the labels that overlap with most others first.

    docs (Iterable[Doc]): The reference Docs, read once.
    annotation (Spans): Their annotation.
    """
    labels = [slot.label for slot in annotation.slots]
    overlaps: dict[str, set[str]] = {label: set() for label in labels}  # by label, the labels that overlap with it
    for doc in docs:
        open_spans: list[Span] = []
        spans = (span for span in annotation.gold_spans(doc) if span.label_ in overlaps)
        for span in sorted(spans, key=lambda span: (span.start, span.end)):
            # Spans are sorted by their begin, so only spans that have not ended can overlap this span
            open_spans = [earlier for earlier in open_spans if earlier.end > span.start]
            for earlier in open_spans:
                overlaps[earlier.label_].add(span.label_)
                overlaps[span.label_].add(earlier.label_)
            open_spans.append(span)
    groups: list[list[str]] = []
    # The first group without an overlapping label takes a label
    for label in sorted(labels, key=lambda label: -len(overlaps[label] - {label})):
        for group in groups:
            if overlaps[label].isdisjoint(group):
                group.append(label)
                break
        else:
            groups.append([label])
    return [sorted(group, key=labels.index) for group in groups]


def with_levels(spans: Iterable[Span]) -> list[tuple[Span, int]]:
    """Give each span of a Doc a level, the longest spans first: the outermost level on which it overlaps no span so far. Of equal
    spans only one is returned."""
    tokens_of_levels: list[set[int]] = []
    leveled: dict[tuple[int, int, int], tuple[Span, int]] = {}
    for span in sorted(spans, key=lambda span: (-len(span), span.start, span.label_)):
        key = (span.start, span.end, span.label)
        if key in leveled:
            continue
        tokens = range(span.start, span.end)
        n_levels = len(tokens_of_levels)
        level = next((n for n, used in enumerate(tokens_of_levels) if used.isdisjoint(tokens)), n_levels)
        if level == n_levels:
            tokens_of_levels.append(set())
        tokens_of_levels[level].update(tokens)
        leveled[key] = span, level
    return [*leveled.values()]


def forced_on_level(
    annotation: Annotation, settled: PresetAnnotation, starts: Starts, forced: list[Span], shift: int
) -> list[Span]:
    """The forced spans of a Doc that belong to one chain of a group: the spans that would be on its level in training. Spans for
    which no level is left are added to the outermost chain, at the end, where they are refused with a warning.

    annotation (Annotation): The annotation of the chain, with its level.
    settled (PresetAnnotation): Earlier annotation, which forced spans must not contradict.
    starts (int64[B + 1]): Where the sequences start.
    forced (List[Span]): The spans that the Doc asks for; earlier ones come first.
    shift (int): First token of the Doc in the batch.
    """

    def is_possible(span: Span) -> bool:
        begin = shift + span.start
        end = shift + span.end
        if begin == end or span.label_ not in annotation.labels:
            return False
        label = annotation.labels.index(span.label_)
        is_blocked = settled.blocked[begin:end, label].any()
        return not is_blocked and annotation.conflict_with(settled, starts, begin, end, label) is None

    def fit(spans: list[Span]) -> bool:
        """Whether there are enough levels for the spans."""
        return all(level < annotation.n_levels for _, level in with_levels(spans))

    possible = [span for span in forced if is_possible(span)]
    accepted = possible
    if not fit(possible):
        accepted = []
        for span in possible:
            if fit([*accepted, span]):
                accepted.append(span)
    on_level = [span for span, level in with_levels(accepted) if level == annotation.level]
    if annotation.level > 0:
        return on_level
    keys = {(span.start, span.end, span.label) for span in accepted}
    refused = [span for span in forced if (span.start, span.end, span.label) not in keys]
    return [*on_level, *refused]
