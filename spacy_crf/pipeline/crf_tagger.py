"""One label per token: tags, parts of speech, morphology, or a custom extension."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDS, ORTH
from spacy.parts_of_speech import IDS as POS_IDS
from spacy.tokens import Doc, Span
from spacy.tokens.underscore import Underscore
from spacy.training import Example

from .. import checks
from ..errors import Errors
from ..features.doc_batch import read_attributes
from ..inference.structure import SpanStates
from ..schemes import BEGIN, MISSING, NO_SEGMENTS, Segments, TransitionMask
from ..types import Clamp
from .chain_pipe import ChainPipe
from .crf_pipe import GoldReport, Prediction
from .scorers import attribute_getter, score_tags
from .supervision import Gold

if TYPE_CHECKING:
    from .settled import Settled

BUILT_IN = ("tag", "pos", "morph")


class CRFTagger(ChainPipe):
    """Gives every token one label (factory ``crf_tagger``).

    attribute (str): Where the label is written: ``tag``, ``pos``, ``morph``, or the name of a Token extension.
    overwrite (bool): Whether values that are there already are replaced; otherwise the others are decoded around them.
    neg_prefix (str): What gold values begin with that say which label is wrong, such as "!NN"; "" for none.
    """

    meaning = ("attribute",)

    def __init__(
        self,
        vocab,
        model,
        name="crf_tagger",
        *,
        attribute: str = "tag",
        overwrite: bool = False,
        neg_prefix: str = "!",
        **settings,
    ):
        owner = f"Component '{name}'"
        checks.text(owner, "attribute", attribute)
        checks.flag(owner, "overwrite", overwrite)
        checks.expect(isinstance(neg_prefix, str), owner, "neg_prefix", neg_prefix, 'text, "" for none')
        if attribute not in BUILT_IN and attribute not in Underscore.token_extensions:
            known = ", ".join(sorted(Underscore.token_extensions)) or "none"
            raise ValueError(Errors.CRF406.format(name=name, attribute=attribute, known=known))
        self._attribute_id = IDS[attribute.upper()] if attribute in BUILT_IN else None
        self._get = attribute_getter(attribute)
        self.writes = (attribute,) if attribute in BUILT_IN else ()
        self.neg_prefix = neg_prefix
        super().__init__(vocab, model, name, attribute=attribute, overwrite=overwrite, **settings)

    def assigns(self) -> list[str]:
        return [*([] if self.writes else [f"token._.{self.cfg['attribute']}"]), *super().assigns()]

    def tags(self) -> list[str]:
        return list(self.labels)

    def span_tags(self, label: str, length: int) -> Optional[NDArray[np.int64]]:
        return np.full(length, self.labels.index(label)) if label in self.labels else None

    def tells_alone(self, length: int) -> bool:
        return True

    def transition_mask(self) -> TransitionMask:
        size = len(self.labels)
        return TransitionMask(np.ones((size, size), dtype=bool), np.ones(size, dtype=bool), np.ones(size, dtype=bool))

    def check_label(self, label) -> None:
        super().check_label(label)
        if self.cfg["attribute"] == "pos" and label not in POS_IDS:
            raise ValueError(Errors.CRF407.format(name=self.name, label=label, known=", ".join(filter(None, POS_IDS))))
        if self.cfg["attribute"] == "morph":
            try:
                spelled = self.vocab.strings[self.vocab.morphology.add(label)]
            except ValueError:
                spelled = None
            if spelled != label:
                raise ValueError(
                    Errors.CRF450.format(name=self.name, label=label, spelled=spelled or "Case=Nom|Number=Sing")
                )

    def score(self, examples: Iterable[Example], **kwargs) -> dict:
        if self.scorer is score_tags:
            kwargs["attribute"] = self.cfg["attribute"]
        return super().score(examples, **kwargs)

    def span_states(self) -> SpanStates:
        return SpanStates(np.zeros((len(self.labels), len(self.labels)), dtype=bool), 0, 1)

    def segments_tags(self, segments: Segments, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        tags = np.full(int(starts[-1]), -1, dtype=np.int32)
        for begin, end, label in zip(*segments):
            tags[begin:end] = label
        return tags

    scores_prefix = "tags"
    found = "a label"
    spans_are_tokens = True

    def judged(self, example: Example) -> Iterator[tuple[Optional[float], bool]]:
        gold = self._aligned_values(example, GoldReport())
        found = self._values([example.predicted])
        for token, is_gold, is_found in zip(example.predicted, gold, found):
            if is_gold and is_found:
                yield example.predicted[token.i : token.i + 1]._.crf_prob, bool(is_gold == is_found)

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        return {value for value in map(self._get, doc) if value and not self._negated(value)}

    def _negated(self, value: str) -> str:
        """The label that a value says is wrong ("!NN": any but NN), "" if it says another thing."""
        prefix = self.neg_prefix
        is_label = not prefix or not value.startswith(prefix) or value in self.labels
        return "" if is_label else value[len(prefix) :]

    def is_gold(self, span: Span) -> bool:
        return any(self._get(token) == span.label_ for token in span)

    def gold(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Gold:
        values = [self._aligned_values(example, report) for example in examples]
        values = np.concatenate(values) if values else np.zeros(0, dtype=np.uint64)
        label = self.label_indices(values)
        allowed = (label < 0)[:, np.newaxis] | (label[:, np.newaxis] == np.arange(len(self.labels)))
        for value in np.unique(values[label < 0]).tolist():
            wrong = self._negated(self.vocab.strings[value])
            if wrong in self.labels and len(self.labels) > 1:
                allowed[values == value, self.labels.index(wrong)] = False
            elif wrong:
                report.add("negated labels are not of the component, or all that it has", f"'{self.neg_prefix}{wrong}'")
        return Gold(allowed, label < 0)

    def read_preset(self, docs: list[Doc]) -> Optional[NDArray[np.uint64]]:
        if self.cfg["overwrite"]:
            return None
        values = self._values(docs)
        return values if values.any() else None

    def settle_preset(self, settled: "Settled", preset: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        label = self.label_indices(preset)
        settled.iob[label >= 0] = BEGIN  # what a value of another kind stands for is not known
        settled.label[:] = label
        settled.present[:] = preset
        settled.taken[:] = preset != 0

    def settled_clamp(self, settled: "Settled", starts: NDArray[np.int64]) -> Clamp:
        known = (settled.iob != MISSING)[:, np.newaxis]
        return ~known | (settled.label[:, np.newaxis] == np.arange(len(self.labels)))

    def _values(self, docs: list[Doc]) -> NDArray[np.uint64]:
        """Hashes of the values that are set, 0 elsewhere: uint64[T]."""
        if self._attribute_id is not None and self.cfg["attribute"] != "morph":
            return read_attributes(docs, [self._attribute_id])[:, 0]
        add = self.vocab.strings.add
        texts = (self._get(token) for doc in docs for token in doc)
        return np.array([add(text) if text else 0 for text in texts], dtype=np.uint64)

    def _aligned_values(self, example: Example, report: GoldReport) -> NDArray[np.uint64]:
        """Gold values at the tokens of the predicted Doc: uint64[T], 0 where they are missing."""
        predicted, reference = example.predicted, example.reference
        if len(predicted) == len(reference) and (predicted.to_array(ORTH) == reference.to_array(ORTH)).all():
            return self._values([reference])
        values = self._values([reference])
        aligned = np.zeros(len(predicted), dtype=np.uint64)
        alignment = example.alignment.x2y
        for i in range(len(predicted)):
            of_token = {int(values[j]) for j in alignment[i]}
            if len(of_token) == 1:
                aligned[i] = of_token.pop()
            elif len(of_token) > 1:
                place = f"token {i} ('{predicted[i].text}') of '{predicted.text[:40]}'"
                report.add("tokens align with gold tokens of several labels, and count as missing", place)
        return aligned

    def set_annotations(self, docs: Iterable[Doc], prediction: Prediction) -> None:
        """Write the labels, beside the values that are there unless ``overwrite`` is set.

        docs (Iterable[Doc]): The Docs that were predicted.
        prediction (Prediction): What `predict` gave.
        """
        hashes = np.array([self.vocab.strings[label] for label in self.labels], dtype=np.uint64)
        values = hashes[prediction.tags] if len(hashes) else np.zeros(0, dtype=np.uint64)
        values[prediction.tags < 0] = 0  # below min_prob
        present = NO_SEGMENTS
        if prediction.preset is not None:
            values = np.where(prediction.preset != 0, prediction.preset, values)
            tokens = np.flatnonzero(prediction.preset)
            present = Segments(tokens, tokens + 1, tokens)
        for doc, begin, end in zip(docs, prediction.doc_starts.tolist(), prediction.doc_starts[1:].tolist()):
            if begin < end and self._attribute_id is not None:
                doc.from_array([self._attribute_id], values[begin:end].reshape(-1, 1))
            elif begin < end:
                kept = None if prediction.preset is None else prediction.preset[begin:end]
                self._set_extension(doc, values[begin:end], kept)
        if prediction.probabilities is not None:
            self.write_probabilities(docs, prediction, present)

    def _set_extension(self, doc: Doc, values: NDArray[np.uint64], kept: Optional[NDArray[np.uint64]]) -> None:
        """What is there stays what it is, which need not be text; without a label nothing is written."""
        name, strings = self.cfg["attribute"], self.vocab.strings
        changed = values if kept is None else np.where(kept != 0, 0, values)
        for token, value in zip(doc, changed.tolist()):
            if value or self.cfg["overwrite"]:
                token._.set(name, strings[value])
