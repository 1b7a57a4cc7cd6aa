"""Starts of sentences as annotation, in ``token.is_sent_start``."""

import zlib
from collections.abc import Iterable
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import SENT_START
from spacy.tokens import Doc, Span, Token
from spacy.training import Example

from ... import checks
from ...arrays import ranges
from ...errors import Errors
from ...features.doc_batch import DocBatch, read_attributes
from ...inference.structure import SpanStates
from ...schemes import BEGIN, NO_SEGMENTS, OUTSIDE, Segments, TransitionMask
from ...types import Bools, Clamp, Ints
from ..scorers import IS_SENT_START, attribute_getter
from .entities import Annotation, GoldReport, Prediction, PresetAnnotation, Starts, Supervision, Tags, probability_of
from .entities import same_words as have_same_words
from .trimming import Mention

START = "S"  # the label of tokens that begin a sentence, as spaCy's senter calls it
NO_START = "O"
# spaCy's values of SENT_START; 0 is for tokens of which nothing is known
_IS_START = 1
_IS_NO_START = -1


class SentenceStarts(Annotation):
    """Tokens that begin a sentence have the tag "S", the others "O". The first token of a Doc always begins a sentence.

    overwrite (bool): Whether present values are replaced; otherwise they are kept, and the other tokens are decoded around them.
    """

    writes = ("sent_start",)
    assigns = ("token.is_sent_start",)
    noun = "a known sentence start"
    spans_are_tokens = True
    scores_prefix = "sents"
    outside = frozenset(["", NO_START])

    def __init__(self, *, overwrite: bool):
        self.overwrite = overwrite

    def _tabulate(self) -> None:
        self.written_labels = [{IS_SENT_START: "True"}] * len(self.labels)

    def check_label(self, label: str) -> None:
        """RAISES (ValueError): CRF020 for another label than "S"."""
        checks.expect(label == START, f"Component '{self.name}'", "a label", label, f"'{START}', a sentence start")

    def no_labels(self, name: str, docs: Iterable[Doc]) -> str:
        """The message for training data in which no token is known to be inside of a sentence; see `Annotation.no_labels`."""
        return Errors.CRF414.format(name=name)

    # ------------------------------------------------------------------------------------------------------ as tags

    def tags(self) -> list[str]:
        """The tags: "O", and the label."""
        return [NO_START, *self.labels]

    def mask(self) -> TransitionMask:
        """All tags may follow each other; the first token of a Doc begins a sentence."""
        size = len(self.tags())
        any_tag = np.ones(size, dtype=bool)
        only_start = np.arange(size) == size - 1
        return TransitionMask(np.ones((size, size), dtype=bool), first=only_start, last=any_tag)

    def span_states(self) -> SpanStates:
        """How tags encode spans: each "S" is a span of one token."""
        size = len(self.tags())
        return SpanStates.even(np.zeros((size, size), dtype=bool), len(self.labels), offset=1)

    def path(self, segments: Segments, starts: Starts) -> Tags:
        """Tags of the labelling with exactly these sentence starts: int32[T]."""
        tags = np.zeros(int(starts[-1]), dtype=np.int32)
        tags[ranges(segments.start, segments.end)] = 1
        return tags

    def span_tags(self, label: str, length: int) -> Optional[Ints]:
        """The tag of a label, once for each token of a span (int64[length]); None for an unknown label."""
        if label not in self.labels and label not in self.outside:
            return None
        return np.full(length, int(label in self.labels))

    def needs_no_neighbours(self, length: int) -> bool:
        """True: a tag describes its token alone."""
        return True

    def continuing_tags(self, tag: int) -> Bools:
        """No tag continues a span, since each span is a single token: bool[S], all False."""
        return np.zeros(len(self.tags()), dtype=bool)

    # ---------------------------------------------------------------------------------------------------- in training

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """RETURNS (List[str]): The label, if some token of a reference Doc is known to begin no sentence; otherwise nothing. A
        model that knows only tokens that begin sentences would find them everywhere."""
        return [START] if (_known_starts(doc) == _IS_NO_START).any() else []

    def is_gold(self, span: Span) -> bool:
        """Whether a sentence of the gold annotation begins at the first token of a span."""
        return bool(span[0].is_sent_start)

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the sentence starts of the reference Docs, see `Annotation.gold`.

        RETURNS (Supervision): With a clamp bool[T, 2]: the annotated tag; both tags where annotation is missing.
        """
        none = np.zeros(0, dtype=np.int64)
        known = np.concatenate([none, *(_aligned_starts(example, report) for example in examples)])  # [T]
        bounds = DocBatch(example.predicted for example in examples).bounds
        # A reference may be the middle of a text, but a Doc begins with a sentence
        known[bounds[:-1][np.diff(bounds) > 0]] = _IS_START
        return Supervision(_clamp(known), known == 0)

    def fingerprint(self, docs: list[Doc]) -> int:
        """A checksum of the sentence starts of Docs."""
        return zlib.crc32(read_attributes(docs, [SENT_START]).data)

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """A mention for each token that begins a sentence; the first one of a Doc with annotation always does."""
        is_start = _known_starts(doc) == _IS_START
        is_start[:1] = doc.has_annotation(SENT_START)
        return self._mentions(doc, is_start)

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): Annotated sentence starts, and those found where the reference is
        annotated; both at the tokens of the predicted Doc, and without its first token, which is always right."""
        predicted = example.predicted
        gold = _aligned_starts(example, GoldReport())
        gold[:1] = 0
        found = (_known_starts(predicted) == _IS_START) & (gold != 0)
        return self._mentions(predicted, gold == _IS_START), self._mentions(predicted, found)

    def _mentions(self, doc: Doc, is_start: Bools) -> list[Mention]:
        """Mentions of the tokens of a Doc that begin a sentence (`is_start`, bool[T])."""
        tokens = [doc[i] for i in np.flatnonzero(is_start).tolist()]
        return [Mention(token.idx, token.idx + len(token), START, probability_of(token)) for token in tokens]

    # -------------------------------------------------------------------------------------------------- in prediction

    def preset(self, docs: DocBatch) -> Optional[NDArray[np.uint64]]:
        """Values of SENT_START that prediction keeps (uint64[T], 0 for none); None if there are none, or with `overwrite`."""
        if self.overwrite or not any(doc.has_annotation(SENT_START) for doc in docs if len(doc)):
            return None
        values = docs.sent_start.copy()
        values[docs.sequence_starts()[:-1]] = 0  # spaCy marks the first token of each Doc
        return values

    def settle(self, settled: PresetAnnotation, preset: NDArray[np.uint64], starts: Starts) -> None:
        """Write the present values into `settled`, in place; `preset` is the result of `preset`."""
        known = preset.astype(np.int64)
        settled.iob[known == _IS_START] = BEGIN
        settled.iob[known == _IS_NO_START] = OUTSIDE
        settled.present[known == _IS_START] = self.vocab.strings[START]
        settled.present[known == _IS_NO_START] = self.vocab.strings.add(NO_START)
        settled.taken[:] = known != 0

    def clamp(self, settled: PresetAnnotation, starts: Starts) -> Clamp:
        """The clamp (bool[T, 2]) that allows the tag of each settled token, and both tags elsewhere. The first token of a Doc
        begins a sentence in any case, so this method takes its blocked label out of `settled`."""
        settled.blocked[starts[:-1][np.diff(starts) > 0]] = False
        known = np.zeros(len(settled.iob), dtype=np.int64)
        known[settled.iob == BEGIN] = _IS_START
        known[settled.iob == OUTSIDE] = _IS_NO_START
        return _clamp(known)

    def conflict_with(
        self, settled: PresetAnnotation, starts: Starts, begin: int, end: int, label: int
    ) -> Optional[str]:
        """None: labels of tokens never contradict each other."""
        return None

    def write(self, docs: list[Doc], prediction: Prediction) -> Segments:
        """Write the predicted sentence starts beside the present ones. RETURNS (Segments): The present ones."""
        values = np.where(prediction.tags > 0, _IS_START, _IS_NO_START)  # [T]
        values[prediction.tags < 0] = 0  # no tag is left for the token
        present = NO_SEGMENTS
        preset = prediction.preset
        if preset is not None:
            known = preset.astype(np.int64)
            values = np.where(known != 0, known, values)
            tokens = np.flatnonzero(known == _IS_START)
            present = Segments(tokens, tokens + 1, np.zeros_like(tokens))
        begin = 0
        for doc, end in zip(docs, prediction.doc_starts[1:].tolist()):
            if begin < end:
                doc.from_array([SENT_START], values[begin:end].astype(np.uint64))  # pyright: ignore[reportArgumentType]
            begin = end
        return present

    def label_at(self, token: Token) -> dict[str, str]:
        """RETURNS (Dict[str, str]): The attribute with its value."""
        return {IS_SENT_START: attribute_getter(IS_SENT_START)(token)}


def _known_starts(doc: Doc) -> Ints:
    """The annotation of the tokens of a Doc: int64[T], 1 if a token begins a sentence, -1 if it begins none, 0 if unknown."""
    return read_attributes([doc], [SENT_START])[:, 0].astype(np.int64)


def _clamp(known: Ints) -> Clamp:
    """The tags that are possible for tokens (bool[T, 2]), by what is known of them (int64[T], see `_known_starts`)."""
    return np.stack([known != _IS_START, known != _IS_NO_START], axis=1)


def _aligned_starts(example: Example, report: GoldReport) -> Ints:
    """The annotation of the reference at the tokens of the predicted Doc: int64[T], see `_known_starts`."""
    gold = _known_starts(example.reference)
    predicted = example.predicted
    if have_same_words(predicted, example.reference):
        return gold
    aligned = np.zeros(len(predicted), dtype=np.int64)
    gold_tokens_of = example.alignment.x2y
    tokens_of_gold = example.alignment.y2x
    for i, token in enumerate(predicted):
        gold_tokens = gold_tokens_of[i]
        if len(gold_tokens):
            # A sentence begins at the first of the tokens into which the predicted Doc cuts a gold token
            first = int(gold_tokens[0])
            # The rest of a token whose beginning is known begins no sentence; what is unknown stays unknown
            aligned[i] = gold[first] if tokens_of_gold[first][0] == i else -abs(gold[first])
        elif token.is_space:
            aligned[i] = _IS_NO_START
        inside = gold_tokens[1:]
        if (gold[inside] == _IS_START).any() and not token.is_space:
            report.add(
                "sentences begin inside of tokens, and are not learned", f"'{token.text}' of '{predicted.text[:40]}'"
            )
    starts_with_space = [token.i for token in example.reference if token.is_space and gold[token.i] == _IS_START]
    for space in starts_with_space:
        # Where no predicted token begins with this white space, the sentence begins with the next gold token that has one
        for gold_token in range(space, len(gold)):
            tokens = tokens_of_gold[gold_token]
            if len(tokens) and gold_tokens_of[int(tokens[0])][0] == gold_token:
                aligned[int(tokens[0])] = _IS_START
                break
    return aligned
