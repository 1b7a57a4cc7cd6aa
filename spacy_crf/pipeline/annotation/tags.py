"""One label per token as annotation: tags, parts of speech, morphology, or a custom extension."""

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDS
from spacy.parts_of_speech import IDS as POS_IDS
from spacy.tokens import Doc, Span, Token
from spacy.training import Example
from spacy.vocab import Vocab

from ... import checks
from ...features.doc_batch import read_attributes
from ...schemes import BEGIN, MISSING, NO_SEGMENTS, Segments, TransitionMask
from ...types import Clamp
from ..scorers import POS_AND_MORPH, attribute_getter, pos_and_feats
from .entities import (
    Annotation,
    GoldReport,
    Prediction,
    PresetAnnotation,
    Starts,
    Supervision,
    Tags,
    probability_of,
    same_words,
)
from .trimming import Mention

BUILT_IN = ("tag", "pos", "morph", POS_AND_MORPH)


class TokenTags(Annotation):
    """One label for every token; the tags are the labels.

    attribute (str): Attribute that holds the labels: ``tag``, ``pos``, ``morph``, ``pos+morph`` for both together, with labels
        such as "Number=Sing|POS=NOUN" (as in spaCy's morphologizer), or the name of a Token extension.
    overwrite (bool): Whether present values are replaced; otherwise they are kept, and the other tokens are decoded around them.
    neg_prefix (str): Prefix of gold values that name a wrong label, such as "!NN"; "" for none.
    prefix (str): What labels have in front of the value of the attribute, see `TagSet`.
    """

    noun = "a label"
    spans_are_tokens = True
    scores_prefix = "tags"

    def __init__(self, attribute: str, *, overwrite: bool, neg_prefix: str, prefix: str = ""):
        self.attribute = attribute
        self.prefix = prefix
        self.overwrite = overwrite
        self.neg_prefix = neg_prefix
        self.writes = tuple(attribute.split("+")) if attribute in BUILT_IN else ()
        self.assigns = [f"token.{name}" for name in self.writes] or [f"token._.{attribute}"]
        self._ids = [IDS[name.upper()] for name in self.writes]
        self._get = attribute_getter(attribute)

    def _tabulate(self) -> None:
        """Set the tables of the labels by which `write` and `gold` go."""
        values = [label.removeprefix(self.prefix) for label in self.labels]
        self.written_labels = [{self.attribute: value} for value in values]
        self._index = {self.vocab.strings.add(value): n for n, value in enumerate(values)}
        self._hashes = np.array([self.vocab.strings[label] for label in self.labels], dtype=np.uint64)
        # [L, attributes] What `write` sets at a token with each label; only "pos+morph" is two attributes
        self._written: NDArray[np.uint64] = np.array([*self._index], dtype=np.uint64)[:, np.newaxis]
        if self.attribute == POS_AND_MORPH:
            rows = [self._parts(value) for value in values]
            self._written = np.array(rows, dtype=np.uint64).reshape(len(rows), 2)

    def add_labels_to(self, vocab: Vocab) -> None:
        """Add the labels, and the values that they name, to the vocabulary of Docs, see `Annotation.add_labels_to`."""
        super().add_labels_to(vocab)
        for label in self.labels:
            value = label.removeprefix(self.prefix)
            vocab.strings.add(value, allow_transient=False)  # pyright: ignore[reportCallIssue]  not in its stub
            if "morph" in self.writes:
                vocab.morphology.add(pos_and_feats(value)[1] if self.attribute == POS_AND_MORPH else value)

    def _parts(self, value: str) -> tuple[int, int]:
        """The part of speech and the morphology that a value names, as a Doc stores them."""
        pos, feats = pos_and_feats(value)
        return POS_IDS[pos], self.vocab.morphology.add(feats)

    def check_label(self, label: str) -> None:
        """RAISES (ValueError): CRF020 for a value that cannot be a label of the attribute."""
        super().check_label(label)
        value = label.removeprefix(self.prefix)
        owner = f"Component '{self.name}'"
        pos = value if self.attribute == "pos" else ""
        if self.attribute == POS_AND_MORPH:
            pos = pos_and_feats(value)[0]
        checks.expect(
            pos in POS_IDS,
            owner,
            "a label",
            label,
            f"a part of speech that token.pos can hold: {', '.join(filter(None, POS_IDS))}",
        )
        if "morph" in self.writes:
            try:
                normal = self.vocab.strings[self.vocab.morphology.add(value)]
            except ValueError:
                normal = None
            checks.expect(
                normal == value,
                owner,
                "a label",
                label,
                f"a morphology as token.morph spells it, such as '{normal or 'Case=Nom|Number=Sing'}'",
            )

    # ------------------------------------------------------------------------------------------------------ as tags

    def path(self, segments: Segments, starts: Starts) -> Tags:
        """Tags of the labelling with exactly these spans (int32[T]): the label of the span of each token, -1 without one."""
        tags = np.full(int(starts[-1]), -1, dtype=np.int32)
        for begin, end, label in zip(*segments):
            tags[begin:end] = label
        return tags

    # ---------------------------------------------------------------------------------------------------- in training

    def span_tags(self, label: str, length: int) -> Optional[NDArray[np.int64]]:
        """The tag of a label, once for each token of a span (int64[length]); None for an unknown label."""
        return np.full(length, self.labels.index(label)) if label in self.labels else None

    def needs_no_neighbours(self, length: int) -> bool:
        """True: a tag describes its token alone."""
        return True

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        """No tag continues a span, since each token is a span of its own: bool[S], all False."""
        return np.zeros(len(self.labels), dtype=bool)

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """RETURNS (Set[str]): The labels of the tokens of a reference Doc, without negated ones."""
        # `_values` adds the texts of extensions and of morphology to the component's own vocabulary
        is_own = not self._ids or "morph" in self.writes
        strings = self.vocab.strings if is_own else doc.vocab.strings
        values = [str(strings[value]) for value in set(self._values([doc]).tolist()) if value]
        return {self.prefix + value for value in values if not self._negated(value)}

    def _negated(self, value: str) -> str:
        """The label that a value marks as wrong ("!NN" means any label but NN), "" for other values."""
        prefix = self.neg_prefix
        is_label = not prefix or not value.startswith(prefix) or self.prefix + value in self.labels
        return "" if is_label else self.prefix + value[len(prefix) :]

    def is_gold(self, span: Span) -> bool:
        """Whether the gold annotation has the label of this span at one of its tokens."""
        return any(self.prefix + self._get(token) == span.label_ for token in span)

    def spans_of_chain(self, spans: Iterable[Span]) -> list[Span]:
        """The given spans that have a label of this chain."""
        return [span for span in spans if span.label_ in self.labels]

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the attribute of the reference Docs, see `Annotation.gold`.

        RETURNS (Supervision): With a clamp bool[T, L]: the annotated label; all labels where annotation is missing; all but the
            label that a negated value names.
        """
        none = np.zeros(0, dtype=np.uint64)
        values = np.concatenate([none, *(self._aligned_values(example, report) for example in examples)])  # uint64[T]
        label = self.label_indices(values)  # int64[T]
        allowed = (label < 0)[:, np.newaxis] | (label[:, np.newaxis] == np.arange(len(self.labels)))  # [T, L]
        for value in np.unique(values[label < 0]).tolist():
            wrong = self._negated(self.text_of(value, (example.reference for example in examples)))
            if wrong in self.labels and len(self.labels) > 1:
                allowed[values == value, self.labels.index(wrong)] = False
            elif wrong:
                report.add("negated labels are not of the component, or all that it has", f"'{self.neg_prefix}{wrong}'")
        return Supervision(allowed, label < 0)

    def fingerprint(self, docs: list[Doc]) -> int:
        """A checksum of the attribute in Docs."""
        return zlib.crc32((read_attributes(docs, self._ids) if self._ids else self._values(docs)).data)

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """A mention for each token of a Doc that has a label."""
        return self._mentions(doc, self._values([doc]), doc)

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): Annotated tokens, and tokens found where the reference is annotated."""
        gold = self._aligned_values(example, GoldReport())
        found = np.where(gold != 0, self._values([example.predicted]), 0)
        doc = example.predicted
        return self._mentions(doc, gold, example.reference), self._mentions(doc, found, doc)

    def _mentions(self, doc: Doc, values: NDArray[np.uint64], source: Doc) -> list[Mention]:
        """Mentions for the tokens whose value is not 0; `source` is the Doc from which the values were read."""
        names = {value: self.prefix + self.text_of(value, [source]) for value in set(values.tolist())}
        return [
            Mention(token.idx, token.idx + len(token), names[value], None if self.prefix else probability_of(token))
            for token, value in zip(doc, values.tolist())
            if value
        ]

    # -------------------------------------------------------------------------------------------------- in prediction

    def preset(self, docs: list[Doc]) -> Optional[NDArray[np.uint64]]:
        """Hashes of the values that prediction keeps (uint64[T], 0 for none); None if no token has one, or with `overwrite`."""
        # For short texts, asking takes a third of the time of reading
        if self.overwrite or (self._ids and not any(len(doc) and doc.has_annotation(self._ids[0]) for doc in docs)):
            return None
        values = self._values(docs)
        return values if values.any() else None

    def settle(self, settled: PresetAnnotation, preset: NDArray[np.uint64], starts: Starts) -> None:
        """Write the present labels into `settled`, in place; `preset` is the result of `preset`."""
        label = self.label_indices(preset)  # int64[T]
        settled.iob[label >= 0] = BEGIN  # the label for a value of another kind is unknown
        settled.label[:] = label
        settled.present[:] = preset
        settled.present[label >= 0] = self._hashes[label[label >= 0]]
        settled.taken[:] = preset != 0

    def clamp(self, settled: PresetAnnotation, starts: Starts) -> Clamp:
        """The clamp (bool[T, L]) that allows the label of each settled token, and all labels elsewhere."""
        # [T, 1] against [1, L]
        known = (settled.iob != MISSING)[:, np.newaxis]
        return ~known | (settled.label[:, np.newaxis] == np.arange(len(self.labels)))

    def conflict_with(
        self, settled: PresetAnnotation, starts: Starts, begin: int, end: int, label: int
    ) -> Optional[str]:
        """None: labels of tokens never contradict each other."""
        return None

    def write(self, docs: list[Doc], prediction: Prediction) -> Segments:
        """Write the predicted labels beside the present ones. RETURNS (Segments): The present labels, each token a segment."""
        width = self._written.shape[1]
        values = self._written[prediction.tags] if self.labels else np.zeros((0, width), dtype=np.uint64)
        values[prediction.tags < 0] = 0  # below min_prob
        # Present values stay as they are: also those that this component could not have found
        preset = prediction.preset
        present = NO_SEGMENTS
        if preset is not None:
            tokens = np.flatnonzero(preset)
            present = Segments(tokens, tokens + 1, tokens)
            if width == 1:
                values[tokens, 0] = preset[tokens]
            else:
                values[tokens] = read_attributes(list(docs), self._ids)[tokens]
        begin = 0
        for doc, end in zip(docs, prediction.doc_starts[1:].tolist()):
            if begin < end and self._ids:
                doc.from_array(self._ids, values[begin:end])  # pyright: ignore[reportArgumentType]  takes uint64 too
            elif begin < end:
                self._set_extension(doc, values[begin:end, 0], None if preset is None else preset[begin:end])
            begin = end
        return present

    def label_at(self, token: Token) -> dict[str, str]:
        """RETURNS (Dict[str, str]): The attribute with the value that a token has."""
        return {self.attribute: self._get(token)}

    def _set_extension(self, doc: Doc, values: NDArray[np.uint64], kept: Optional[NDArray[np.uint64]]) -> None:
        """Write labels to an extension. Present values, which need not be text, stay; tokens without a label get no value."""
        # Zero stands for no change
        changed = values if kept is None else np.where(kept != 0, 0, values)
        for token, value in zip(doc, changed.tolist()):
            if value or self.overwrite:
                token._.set(self.attribute, self.vocab.strings[value])

    def _values(self, docs: list[Doc]) -> NDArray[np.uint64]:
        """Hashes of the values that are set, 0 elsewhere: uint64[T]."""
        if self._ids and "morph" not in self.writes:
            return read_attributes(docs, self._ids)[:, 0]
        add = self.vocab.strings.add
        texts = map(self._get, chain.from_iterable(docs))
        return np.array([add(text) if text else 0 for text in texts], dtype=np.uint64)

    def _aligned_values(self, example: Example, report: GoldReport) -> NDArray[np.uint64]:
        """Gold values at the tokens of the predicted Doc: uint64[T], 0 where annotation is missing."""
        predicted = example.predicted
        values = self._values([example.reference])
        if same_words(predicted, example.reference):
            return values
        aligned = np.zeros(len(predicted), dtype=np.uint64)
        alignment = example.alignment.x2y
        # A token that is a part of several gold tokens has their label if they agree
        for i in range(len(predicted)):
            gold_values = {int(values[j]) for j in alignment[i]}
            if len(gold_values) == 1:
                aligned[i] = gold_values.pop()
            elif len(gold_values) > 1:
                place = f"token {i} ('{predicted[i].text}') of '{predicted.text[:40]}'"
                report.add("tokens align with gold tokens of several labels, and count as missing", place)
        return aligned


class TagSet(Annotation):
    """Labels of several attributes for every token. A label has the name of its attribute in front, such as "tag:NN"; the labels
    of an attribute are a chain.

    attributes (Sequence[str]), overwrite (bool), neg_prefix (str): See `TokenTags`.
    """

    noun = TokenTags.noun
    spans_are_tokens = True
    scores_prefix = TokenTags.scores_prefix

    def __init__(self, attributes: Sequence[str], *, overwrite: bool, neg_prefix: str):
        self.parts = [
            TokenTags(attribute, prefix=f"{attribute}:", overwrite=overwrite, neg_prefix=neg_prefix)
            for attribute in attributes
        ]
        self.writes = tuple(chain.from_iterable(part.writes for part in self.parts))
        self.assigns = list(chain.from_iterable(part.assigns for part in self.parts))

    def _tabulate(self) -> None:
        self.parts = [part.bind(self.name, self.vocab, self._labels_of(part)) for part in self.parts]
        for part in self.parts:
            part.elsewhere = frozenset(self.labels).difference(part.labels)

    def _labels_of(self, part: TokenTags) -> list[str]:
        return [label for label in self.labels if label.startswith(part.prefix)]

    @property
    def chains(self) -> list[tuple[str, ...]]:
        """The labels of each chain."""
        return [part.labels for part in self.parts]

    def add_labels_to(self, vocab: Vocab) -> None:
        """Add the labels of all attributes to the vocabulary of Docs."""
        for part in self.parts:
            part.add_labels_to(vocab)

    def label_at(self, token: Token) -> dict[str, str]:
        """RETURNS (Dict[str, str]): The value of each attribute that a token has."""
        return {name: value for part in self.parts for name, value in part.label_at(token).items()}

    def mask(self) -> TransitionMask:
        """Labels of different attributes are never in one labelling."""
        transitions, first, last = super().mask()
        # Arrays of objects, since those of texts have as many letters for each label as the longest one
        prefixes = np.array([label.partition(":")[0] for label in self.labels], dtype=object)
        return TransitionMask(transitions & (prefixes[:, np.newaxis] == prefixes), first, last)

    def check_label(self, label: str) -> None:
        """RAISES (ValueError): CRF020 for a value that cannot be a label, or without an attribute of the set in front."""
        super().check_label(label)
        parts = [part for part in self.parts if label.startswith(part.prefix) and label != part.prefix]
        names = ", ".join(f"'{part.prefix}…'" for part in self.parts)
        checks.expect(
            bool(parts),
            f"Component '{self.name}'",
            "a label",
            label,
            f"an attribute with a colon in front of a value: {names}",
        )
        parts[0].check_label(label)

    # ---------------------------------------------------------------------------------------------------- in training

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """RETURNS (Set[str]): The labels of all attributes in a reference Doc."""
        return set().union(*(part.gold_labels(doc) for part in self.parts))

    def is_gold(self, span: Span) -> bool:
        """Whether the gold annotation has the label of this span at one of its tokens."""
        return any(part.is_gold(span) for part in self.parts)

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the attributes of the reference Docs, see `Annotation.gold`.

        RETURNS (Supervision): With a clamp bool[T, L] of the labels of all attributes.
        """
        supervisions = [part.gold(examples, starts, report) for part in self.parts]
        clamp = np.zeros((int(starts[-1]), len(self.labels)), dtype=bool)
        for part, supervision in zip(self.parts, supervisions):
            columns = [self.labels.index(label) for label in part.labels]
            clamp[:, columns] = supervision.clamp
        return Supervision(clamp, np.logical_or.reduce([supervision.unset for supervision in supervisions]))

    def fingerprint(self, docs: list[Doc]) -> int:
        """A checksum of all attributes in Docs."""
        return zlib.crc32(repr([part.fingerprint(docs) for part in self.parts]).encode("utf8"))

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """A mention for each attribute of each token that has a label."""
        return list(chain.from_iterable(part.mentions_in(doc) for part in self.parts))

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """A mention for each label. None has a probability: ``crf_prob`` is that of all labels of a token."""
        gold, found = zip(*(part.mentions(example) for part in self.parts))
        return [*chain(*gold)], [*chain(*found)]

    def decisions(self, example: Example) -> list[tuple[float, bool]]:
        """The probability of the labels of each token, and whether all of them are right; without tokens whose annotation is
        missing for some attribute."""
        are_right: dict[int, list[bool]] = {}  # by the first character of a token, for each attribute that is annotated
        for part in self.parts:
            gold, found = part.mentions(example)
            places = {mention.place for mention in gold}
            for mention in found:
                are_right.setdefault(mention.start, []).append(mention.place in places)
        decisions = []
        for token in example.predicted:
            probability = probability_of(token)
            of_attributes = are_right.get(token.idx, [])
            if probability is not None and len(of_attributes) == len(self.parts):
                decisions.append((probability, all(of_attributes)))
        return decisions
