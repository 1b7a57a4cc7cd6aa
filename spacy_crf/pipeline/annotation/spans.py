"""Spans that may overlap as annotation: read from ``doc.spans[key]``, and written to it."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union

import numpy as np
from spacy.tokens import Doc, Span
from spacy.training import Example

from ... import checks
from ...errors import Errors
from ...features.doc_batch import DocBatch
from ...schemes import BEGIN, INSIDE, MISSING, OUTSIDE, Scheme, TransitionMask
from .annotation import GoldReport, Mention, Starts, Supervision, same_words
from .entities import Entities

Groups = Union[str, Sequence[Sequence[str]]]
NO_SPANS: tuple[Span, ...] = ()


class Spans(Entities):
    """Spans in ``doc.spans[key]``. Labels of one group share a chain, in which spans do not overlap.

    scheme (Scheme): The tag scheme of the spans.
    key (str): Key of doc.spans.
    groups (Union[str, list[list[str]]]): Labels that share a chain; every other label has its own. "label": each has its own.
    elsewhere (Iterable[str]): Labels that the component knows beside those of this annotation.
    """

    writes = ()
    found = "a span"
    outside = frozenset([""])

    def __init__(self, scheme: Scheme, key: str, groups: Groups = "label", elsewhere: Iterable[str] = ()):
        super().__init__(scheme)
        self.key, self.elsewhere = key, frozenset(elsewhere)
        self.scores_prefix = f"spans_{key}"
        self._groups = () if isinstance(groups, str) else groups

    @property
    def assigns(self) -> list[str]:
        return ["doc.spans"]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The labels of each chain; one chain without labels if there are none."""
        groups = [tuple(label for label in self.labels if label in group) for group in self._groups]
        grouped = {label for group in groups for label in group}
        return [*filter(None, groups), *((label,) for label in self.labels if label not in grouped)] or [()]

    def of_chain(self, labels: Sequence[str]) -> "Spans":
        """The annotation of the chain of some labels."""
        return Spans(self.scheme, self.key, [labels], {*self.labels, *self.elsewhere}.difference(labels))

    def mask(self) -> TransitionMask:
        """Spans of different chains are never part of one labelling."""
        transitions, first, last = super().mask()
        group_of = {label: n for n, group in enumerate(self.groups) for label in group}
        label_of = self.span_states().label_of[:-1]
        group = np.array([-1 if n < 0 else group_of[self.labels[n]] for n in label_of.tolist()])
        together = (group[:, np.newaxis] == group) | (group[:, np.newaxis] < 0) | (group < 0)
        return TransitionMask(transitions & together, first, last)

    # ---------------------------------------------------------------------------------------------------- in training

    def gold_spans(self, doc: Doc) -> Iterable[Span]:
        return doc.spans.get(self.key, NO_SPANS)

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        return dict.fromkeys(span.label_ for span in self.gold_spans(doc) if span.label_ not in self.elsewhere)

    def no_labels(self, name: str, docs: Iterable[Doc]) -> str:
        keys = sorted({key for doc in docs for key in doc.spans})
        known = ", ".join(map(repr, keys)) or "none"
        return Errors.CRF404.format(name=name, key=self.key, known=known)

    def is_gold(self, span: Span) -> bool:
        place = span.start, span.end, span.label
        return any((one.start, one.end, one.label) == place for one in self.gold_spans(span.doc))

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        bounds = DocBatch(example.predicted for example in examples).bounds
        iob, label = np.full(int(bounds[-1]), OUTSIDE), np.zeros(int(bounds[-1]), dtype=np.int64)
        for example, begin, end in zip(examples, bounds.tolist(), bounds[1:].tolist()):
            if self.key not in example.reference.spans:
                iob[begin:end] = MISSING
                continue
            opening, placed = starts[(starts > begin) & (starts < end)] - begin, set()
            of_doc, label_of_doc = iob[begin:end], label[begin:end]
            for span in self._aligned(example, report, of_doc):
                tokens, place = slice(span.start, span.end), (span.start, span.end, span.label)
                if ((opening > span.start) & (opening < span.end)).any():
                    report.add_span(span, self.key, "cross the start of a sentence, and count as missing")
                    of_doc[tokens][of_doc[tokens] == OUTSIDE] = MISSING
                elif not np.isin(of_doc[tokens], (BEGIN, INSIDE)).any():
                    of_doc[tokens], label_of_doc[tokens] = INSIDE, self.labels.index(span.label_)
                    of_doc[span.start] = BEGIN
                    placed.add(place)
                elif place not in placed:
                    report.add_span(span, self.key, _OVERLAP)
        return Supervision(self.scheme.clamp(iob, label, starts, len(self.labels)), iob == MISSING)

    def _aligned(self, example: Example, report: GoldReport, iob: Any) -> list[Span]:
        """The gold spans of the chain as spans of the predicted Doc, the longest first. Those that do not align are marked as
        MISSING in `iob`."""
        spans = [span for span in self.gold_spans(example.reference) if span.label_ not in self.elsewhere]
        known = [span for span in spans if span.label_ in self.labels and len(span)]
        for span in spans:
            if span.label_ not in self.labels:
                report.add_span(span, self.key, "have a label the component does not know, and count as outside")
        if not same_words(example.predicted, example.reference):
            found = [(span, example.get_aligned_spans_y2x([span], allow_overlap=True)) for span in known]
            for span, aligned in found:
                if not aligned:
                    report.add_span(span, self.key, "do not align with the tokens, and count as missing")
                    lost = example.predicted.char_span(span.start_char, span.end_char, alignment_mode="expand")
                    if lost is not None:
                        iob[lost.start : lost.end] = MISSING
            known = [span for _, aligned in found for span in aligned]
        return sorted(known, key=lambda span: (-len(span), span.start))

    def fingerprint(self, docs: list[Doc]) -> int:
        groups = [
            [(span.start, span.end, span.label) for span in doc.spans[self.key]] if self.key in doc.spans else None
            for doc in docs
        ]
        return zlib.crc32(repr(groups).encode("utf8"))

    def mentions_in(self, doc: Doc) -> list[Mention]:
        group = self.gold_spans(doc)
        scores: Optional[Sequence[float]] = group.attrs.get("scores") if len(group) else None
        probabilities = [None] * len(group) if scores is None else map(float, scores)
        return [Mention(span.start_char, span.end_char, span.label_, p) for span, p in zip(group, probabilities)]

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        if self.key not in example.reference.spans:
            return [], []
        return self.mentions_in(example.reference), self.mentions_in(example.predicted)

    # -------------------------------------------------------------------------------------------------- in prediction

    def preset(self, docs: DocBatch) -> None:
        """Spans that are there already are replaced, as by spaCy's spancat."""


_OVERLAP = (
    "overlap others of their chain, and are left out (groups = 'label' keeps overlapping spans of different labels)"
)


def check_groups(owner: str, groups: Any) -> Groups:
    """RAISES (ValueError): CRF020 for a setting that is neither a word nor lists of labels, or has a label twice."""
    if isinstance(groups, str):
        return checks.one_of(owner, "groups", groups, ("label", "auto"))
    must = '"label", "auto", or a list of lists of labels'
    fits = isinstance(groups, (list, tuple)) and all(
        isinstance(group, (list, tuple)) and all(isinstance(label, str) and label for label in group)
        for group in groups
    )
    checks.expect(fits, owner, "groups", groups, must)
    every = [label for group in groups for label in group]
    twice = [label for label in dict.fromkeys(every) if every.count(label) > 1]
    checks.expect(not twice, owner, "groups", groups, f"without a label in two places, as {', '.join(twice)} is")
    return [list(group) for group in groups]


def groups_of(docs: Iterable[Doc], annotation: Spans) -> list[list[str]]:
    """The fewest groups that a greedy search finds, so that no spans of one group overlap in the given texts, except spans of one
    label. Labels that overlap with most others are placed first."""
    labels = annotation.labels
    overlaps: dict[str, set[str]] = {label: set() for label in labels}
    for doc in docs:
        open_spans: list[Span] = []
        spans = (span for span in annotation.gold_spans(doc) if span.label_ in overlaps)
        for span in sorted(spans, key=lambda span: (span.start, span.end)):
            open_spans = [one for one in open_spans if one.end > span.start]
            for one in open_spans:
                overlaps[one.label_].add(span.label_)
                overlaps[span.label_].add(one.label_)
            open_spans.append(span)
    groups: list[list[str]] = []
    for label in sorted(labels, key=lambda label: -len(overlaps[label] - {label})):
        for group in groups:
            if overlaps[label].isdisjoint(group):
                group.append(label)
                break
        else:
            groups.append([label])
    return [sorted(group, key=labels.index) for group in groups]
