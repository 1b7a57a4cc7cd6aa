"""Where components read and write labels: the base of all annotations, and entities, which are in ``doc.ents``."""

import copy
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, ENT_TYPE, ORTH
from spacy.tokens import Doc, Span, Token
from spacy.training import Example
from spacy.vocab import Vocab

from ... import checks
from ...arrays import ranges
from ...errors import Errors, Warnings
from ...features.doc_batch import DocBatch, read_attributes
from ...inference.structure import SpanStates
from ...schemes import (
    BEGIN,
    INSIDE,
    MISSING,
    NO_SEGMENTS,
    NO_STEPS,
    OUTSIDE,
    Scheme,
    Segments,
    SegmentScheme,
    TransitionMask,
)
from ...types import Bools, ChainClamp, Clamp, Floats, Ints
from .trimming import DROPPED, TRIMMED, Mention, mentions_of, place_of

if TYPE_CHECKING:
    from ...losses.soft import SoftLabelling

logger = logging.getLogger("spacy.spacy_crf")
Starts = Ints
Tags = NDArray[np.int32]
AnnotationT = TypeVar("AnnotationT", bound="Annotation")

_ENTITY = [ENT_IOB, ENT_TYPE]
_IS_PRESET = 1  # bit that INSIDE and BEGIN share

# The first Doc of the last batch of each component, and its labels: for the warning about entities that are lost to another one
LATEST: dict[str, tuple["ReferenceType[Doc]", tuple[str, ...]]] = {}


class GoldReport:
    """Collects gold annotation that cannot be used, in order to report it once."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}
        self._is_logged = False

    def add(self, problem: str, place: str) -> None:
        """Add a problem, and where it is; the first three places of a problem are reported."""
        self._counts[problem] = self._counts.get(problem, 0) + 1
        if self._counts[problem] <= 3:
            self._places.setdefault(problem, []).append(place)

    def add_span(self, span: Span, key: str, problem: str) -> None:
        """Add a problem with a span in ``doc.spans[key]``; `problem` is the rest of the sentence about such spans."""
        self.add(f"spans in doc.spans['{key}'] {problem}", place_of(span))

    def log_once(self, name: str) -> None:
        """Log the problems of the first of several passes over a corpus, for the component of this name."""
        if not self._is_logged:
            self.log(name)
            self._is_logged = True

    def log(self, name: str) -> None:
        """Warn (CRFW405) about each problem, for the component of this name."""
        for problem, count in self._counts.items():
            places = "; ".join(self._places[problem])
            logger.warning(Warnings.CRFW405.format(name=name, count=count, problem=problem, places=places))


class Supervision(NamedTuple):
    """The labellings that the annotation of a batch of Docs allows. Reading alternatives and wrong spans changes `clamp` and
    `unset` in place."""

    # Labellings that are allowed; `Annotation.gold` gives them in the tags in which annotation is read, see `Scheme.encode_clamp`
    clamp: Any
    unset: Bools  # [T] tokens without annotation
    wrong: Segments = NO_SEGMENTS  # spans that no labelling may have and the clamp does not exclude
    steps: Ints = NO_STEPS  # steps between tags that no labelling may take, see `Scheme.encode_clamp`
    # Spans that the annotation allows besides others, for models that score spans
    alternatives: Segments = NO_SEGMENTS
    soft: Optional["SoftLabelling"] = None  # soft labels of a teacher


KEYS = ("alternatives_spans_key", "incorrect_spans_key")  # settings that name groups of spans


class Keys(NamedTuple):
    """Settings that name groups of spans; None for no group."""

    alternatives: Optional[str]
    incorrect: Optional[str]
    soft: Optional[str] = None

    @classmethod
    def of(cls, pipe: Any) -> "Keys":
        """The settings of a component (LearningPipe)."""
        alternatives, incorrect = map(pipe.cfg.get, KEYS)
        return cls(alternatives, incorrect, pipe.loss.spans_key)


class PresetAnnotation(NamedTuple):
    """Known labels of the T tokens of some Docs. Functions fill in the arrays, in place."""

    iob: Ints  # [T] spaCy's codes of settled tokens, MISSING for the others
    label: Ints  # [T] labels of the settled spans
    present: NDArray[np.uint64]  # [T] hash of the present annotation, 0 for none
    taken: Bools  # [T] tokens that nothing later can change
    blocked: Bools  # [T, L] labels that a token may not get

    @classmethod
    def nothing(cls, n_tokens: int, n_labels: int) -> "PresetAnnotation":
        """No known labels, for `n_tokens` tokens and `n_labels` possible labels."""
        return cls(
            iob=np.full(n_tokens, MISSING),
            label=np.zeros(n_tokens, dtype=np.int64),
            present=np.zeros(n_tokens, dtype=np.uint64),
            taken=np.zeros(n_tokens, dtype=bool),
            blocked=np.zeros((n_tokens, n_labels), dtype=bool),
        )


class Prediction(NamedTuple):
    """Tags of the Docs of a batch, laid end to end."""

    tags: Tags  # [T]
    starts: Ints  # [B + 1] of the sequences
    doc_starts: Ints  # [D + 1]
    preset: Optional[NDArray[np.uint64]]  # result of `Annotation.preset`
    # [N] values of the spans, by the extension that holds them; None if nobody asked for them
    certainties: Optional[dict[str, Floats]] = None

    @property
    def probabilities(self) -> Optional[Floats]:
        """The probability of each span: float64[N]; None if nobody asked for them."""
        return None if self.certainties is None else self.certainties["crf_prob"]

    def of_docs(self) -> list[bytes]:
        """A value for each Doc, equal in two predictions that find the same."""
        return [self.tags[a:b].tobytes() for a, b in pairwise(self.doc_starts)]


class Annotation:
    """Defines where a component reads and writes labels, and how tags encode them. An annotation is bound to labels and
    immutable. Whole texts have neither tags of spans nor present annotation.
    """

    writes: tuple[str, ...] = ()  # token attributes
    assigns: Sequence[str] = ()  # attributes that the annotation writes, as `nlp.analyze_pipes` names them
    noun: str  # what messages call a labelled span, token or text
    spans_are_tokens = False  # whether each token is labelled by itself
    scores_prefix: str  # prefix of the names of scores
    needs_neighbours = False  # whether the tags of a span depend on the span before
    may_have_no_labels = False  # whether a component can begin without labels
    space_edges = True  # whether spans may begin and end with white space
    outside = frozenset([""])  # values of gold annotation that name no label
    elsewhere: frozenset[str] = frozenset()  # labels that belong to other chains of a set
    level = 0  # of nested spans that the annotation has, 0 for the outermost, see `Spans`
    n_levels = 1

    name: str  # name of the component
    vocab: Vocab
    labels: tuple[str, ...] = ()
    written_labels: Sequence[object] = ()  # `label_at` for each label, unless tokens have several labels
    _index: dict[int, int]  # position of each label, by its hash

    def bind(self: AnnotationT, name: str, vocab: Vocab, labels: Iterable[str]) -> AnnotationT:
        """Copy the annotation for a component with these labels.

        name (str): The component.
        vocab (Vocab): Its vocabulary, to which the labels are added.
        RETURNS (Annotation): The copy.
        """
        bound = copy.copy(self)
        bound.name = name
        bound.vocab = vocab
        bound.labels = tuple(labels)
        bound._index = {vocab.strings.add(label): n for n, label in enumerate(bound.labels)}
        bound._tabulate()
        return bound

    def _tabulate(self) -> None:
        """Compute the tables that prediction looks up."""

    def add_labels_to(self, vocab: Vocab) -> None:
        """Add the labels to the vocabulary of Docs: of another pipeline, or one that lost labels at the end of a memory zone."""
        for label in self.labels:
            vocab.strings.add(label, allow_transient=False)  # pyright: ignore[reportCallIssue]  not in its stub

    def text_of(self, value: int, docs: Iterable[Doc]) -> str:
        """The text of a hash that was read from one of the Docs, whose vocabularies may differ from the component's."""
        vocabs = dict.fromkeys([self.vocab, *(doc.vocab for doc in docs)])
        with_text = [vocab for vocab in vocabs if value in vocab.strings]  # pyright: ignore[reportOperatorIssue]  hashes too
        return str(with_text[0].strings[value])

    def label_indices(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of labels from their hashes: int64[N], -1 for 0 and for unknown hashes."""
        distinct, inverse = np.unique(hashes, return_inverse=True)
        # Batches have few different labels, so each is looked up once
        positions = np.array([self._index.get(int(value), -1) for value in distinct], dtype=np.int64)
        return positions[inverse] if len(distinct) else np.zeros(0, dtype=np.int64)

    # --------------------------------------- as tags: the labels themselves, unless an annotation overrides the methods

    def tags(self) -> list[str]:
        """Names of the tags, in the order of the scores."""
        return list(self.labels)

    def tag_labels(self) -> list[str]:
        """The label of each tag, "O" for none."""
        return self.tags()

    def mask(self) -> TransitionMask:
        """Which tag sequences are valid."""
        size = len(self.labels)
        any_tag = np.ones(size, dtype=bool)
        return TransitionMask(np.ones((size, size), dtype=bool), first=any_tag, last=any_tag)

    def span_states(self) -> SpanStates:
        """How tags encode spans."""
        return SpanStates.even(np.zeros((len(self.labels), len(self.labels)), dtype=bool), len(self.labels))

    def encode_clamp(self, allowed: Clamp, starts: Starts) -> tuple[Clamp, Ints]:
        """Translate the tags that annotation allows into tags of the component.

        allowed (bool[T, S']): The allowed tags, in the scheme in which annotation is read.
        starts (int64[B + 1]): Where the sequences start.
        RETURNS (bool[T, S], int64[N, 3]): The component's tags; and the steps that no labelling may take, see
            `Scheme.encode_clamp`.
        """
        return allowed, NO_STEPS

    # ----------------------------------------------- tags of spans

    def path(self, segments: Segments, starts: Starts) -> Tags:
        """Tags of the labelling with exactly these spans: int32[T], -1 where a token needs a span but has none."""
        raise NotImplementedError

    def span_tags(self, label: str, length: int) -> Optional[Ints]:
        """Tags of a span, in the scheme in which annotation is read: int64[length]; None for an unknown label. The labels "" and
        "O" stand for a span without a label."""
        raise NotImplementedError

    def needs_no_neighbours(self, length: int) -> bool:
        """Whether each tag of a span of this length fully describes its token, without its neighbours."""
        raise NotImplementedError

    def continuing_tags(self, tag: int) -> Bools:
        """Tags that continue the span of this tag directly after it: bool[S]."""
        raise NotImplementedError

    # ----------------------------------------------- the annotation of reference Docs

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """Labels of a Doc's gold annotation."""
        raise NotImplementedError

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the gold annotation, at the tokens of the predicted Docs.

        examples (List[Example]): The texts.
        starts (int64[B + 1]): Where the sequences of the predicted Docs start.
        report (GoldReport): Gets the annotation that cannot be used.
        RETURNS (Supervision): The labellings that the annotation allows, in the tags in which it is read.
        """
        raise NotImplementedError

    def is_gold(self, span: Span) -> bool:
        """Whether the gold annotation has this span, or, for taggers, its label at one of its tokens."""
        raise NotImplementedError

    def fingerprint(self, docs: list[Doc]) -> int:
        """A number that changes with the annotation of Docs."""
        raise NotImplementedError

    # ----------------------------------------------- present annotation, and output

    def preset(self, docs: DocBatch) -> Optional[NDArray[np.uint64]]:
        """Annotation that Docs have already and that prediction keeps, by token: uint64[T]; None if there is none."""
        raise NotImplementedError

    def settle(self, settled: PresetAnnotation, preset: NDArray[np.uint64], starts: Starts) -> None:
        """Write the present annotation, the result of `preset`, into `settled`, in place."""
        raise NotImplementedError

    def clamp(self, settled: PresetAnnotation, starts: Starts) -> ChainClamp:
        """Clamp of the labellings that contain all settled spans, in the tags in which annotation is read."""
        raise NotImplementedError

    def conflict_with(
        self, settled: PresetAnnotation, starts: Starts, begin: int, end: int, label: int
    ) -> Optional[str]:
        """The reason why no labelling can have a span in addition to the settled spans; None if a labelling can.

        begin (int), end (int): The tokens of the span, counted from the beginning of the batch.
        label (int): The number of its label.
        """
        raise NotImplementedError

    def write(self, docs: list[Doc], prediction: Prediction) -> Segments:
        """Write predicted annotation beside the present annotation. RETURNS (Segments): The present spans."""
        raise NotImplementedError

    def label_at(self, token: Token) -> object:
        """The label that a token, or the span that begins with it, has in its Doc."""
        raise NotImplementedError

    def check_label(self, label: str) -> None:
        """RAISES (ValueError): CRF020 for a value that cannot be a label."""
        is_text = isinstance(label, str) and label and label == label.encode("utf8", "ignore").decode("utf8")
        must = "a string that is not empty and can be saved as UTF-8"
        checks.expect(is_text, f"Component '{self.name}'", "a label", label, must)

    def no_labels(self, name: str, docs: Iterable[Doc]) -> str:
        """The message that the training data, reference `docs`, has no labels for the component `name`."""
        return Errors.CRF403.format(name=name, where=self.assigns[0])

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The labelled spans or tokens of a Doc."""
        raise NotImplementedError

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): Mentions in the reference, and mentions in the predicted Doc where the
        reference is annotated."""
        raise NotImplementedError

    def decisions(self, example: Example) -> list[tuple[float, bool]]:
        """The probability of each labelled span or token of the predicted Doc, and whether it is right. Spans and tokens without
        a probability, or without annotation in the reference, are left out."""
        gold, found = self.mentions(example)
        places = {mention.place for mention in gold}
        return [(mention.probability, mention.place in places) for mention in found if mention.probability is not None]


def probability_of(found: Union[Span, Token]) -> Optional[float]:
    """The probability that a component with ``confidence`` gave a span, or the label of a token."""
    return found._.crf_prob


def same_words(doc: Doc, other: Doc) -> bool:
    """Whether two Docs have the same words."""
    return len(doc) == len(other) and bool((doc.to_array(ORTH) == other.to_array(ORTH)).all())


class Entities(Annotation):
    """Named entities of a Doc. Entities that a Doc has already are kept. Entities end where a sentence is known to end.

    scheme (Scheme): The tag scheme of entities.
    space_edges (bool): Whether entities may begin and end with white space, as those of imported models may.
    """

    writes = ("ent_iob", "ent_type")
    assigns = ("doc.ents", "token.ent_iob", "token.ent_type")
    noun = "an entity"
    scores_prefix = "ents"
    may_have_no_labels = True  # a component without labels finds nothing
    outside = frozenset(["", "O"])

    def __init__(self, scheme: Scheme, *, space_edges: bool = False):
        self.scheme = scheme
        self.space_edges = space_edges
        self.needs_neighbours = scheme.name == "IOB1"

    def _tabulate(self) -> None:
        """Set the table of what is written for each tag."""
        self.written_labels = self.labels
        hashes = np.array([*map(self.vocab.strings.add, self.labels), 0], dtype=np.uint64)
        types = hashes[self.scheme.label_of_tag(len(self.labels))]  # the last hash, 0, is that of label -1
        iob = self.scheme.iob_of_tag(len(self.labels))  # as far as the tag alone determines it
        self._annotation_of_tag = np.stack([iob, types], axis=1)  # [S, 2] `ent_iob` and `ent_type`

    # ------------------------------------------------------------------------------------------------------ as tags

    def tags(self) -> list[str]:
        """Names of the tags of the scheme: "O", then those of each label."""
        return self.scheme.tags(list(self.labels))

    def tag_labels(self) -> list[str]:
        """The label of each tag, "O" for none."""
        n_tags_per_label = (len(self.tags()) - 1) // max(1, len(self.labels))
        return ["O", *(label for label, _ in product(self.labels, range(n_tags_per_label)))]

    def mask(self) -> TransitionMask:
        """The tag sequences that the scheme allows."""
        return self.scheme.transition_mask(len(self.labels))

    def span_states(self) -> SpanStates:
        """How the tags of the scheme encode spans."""
        return _span_states(self.scheme, len(self.labels))

    def path(self, segments: Segments, starts: Starts) -> Tags:
        """Tags of the labelling with exactly these entities: int32[T]."""
        n_tokens = int(starts[-1])
        iob = np.full(n_tokens, OUTSIDE)
        label = np.zeros(n_tokens, dtype=np.int64)
        tokens = ranges(segments.start, segments.end)
        iob[tokens] = INSIDE
        label[tokens] = np.repeat(segments.label, segments.end - segments.start)
        iob[segments.start] = BEGIN
        return self.scheme.encode(iob, label, starts)

    # ---------------------------------------------------------------------------------------------------- in training

    def span_tags(self, label: str, length: int) -> Optional[Ints]:
        """Tags of an entity, in the scheme in which annotation is read: int64[length]; None for an unknown label. Without a label
        ("" or "O") they are the tag O."""
        if label in self.outside:
            return np.zeros(length, dtype=np.int64)
        if label not in self.labels:
            return None
        iob = np.array([BEGIN, *[INSIDE] * (length - 1)])
        labels = np.full(length, self.labels.index(label))
        return self.scheme.reading.encode(iob, labels, np.array([0, length])).astype(np.int64)

    def needs_no_neighbours(self, length: int) -> bool:
        """Whether one tag, such as U-PER, says that its token is a whole entity."""
        return length == 1 and bool(self.scheme.closes)

    def continuing_tags(self, tag: int) -> Bools:
        """Tags that continue the entity of this tag directly after it: bool[S']."""
        return self.scheme.reading.continues(len(self.labels))[tag]

    def encode_clamp(self, allowed: Clamp, starts: Starts) -> tuple[Clamp, Ints]:
        """The tags of the scheme that annotation allows, and the steps that it forbids, see `Scheme.encode_clamp`."""
        return self.scheme.encode_clamp(allowed, starts)

    def gold_spans(self, doc: Doc) -> Iterable[Span]:
        """The entities of a reference Doc."""
        return doc.ents

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """RETURNS (List[str]): The labels of the entities of a Doc, each once. RAISES (ValueError): CRF440."""
        iob, types = read_attributes([doc], _ENTITY).T  # reading Spans took longer than all features of the Doc
        begins = (iob == BEGIN) & (types != 0)  # entities may lack a label
        labels = [doc.vocab.strings[label] for label in dict.fromkeys(types[begins].tolist())]
        for label in labels:
            self._refuse_negated(label, partial(_place_of_first, doc, label))
        return labels

    def _refuse_negated(self, label: str, place: Callable[[], str]) -> None:
        """RAISES (ValueError): CRF440 for a label such as "!PER", which spaCy's `ner` refuses too."""
        if label.startswith("!") and len(label) > 1 and label not in self.labels:
            raise ValueError(Errors.CRF440.format(name=self.name, label=label, negated=label[1:], place=place()))

    def is_gold(self, span: Span) -> bool:
        """Whether a span is an entity of its Doc, with the same label."""
        return any((ent.start, ent.end, ent.label) == (span.start, span.end, span.label) for ent in span.doc.ents)

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the entities of the reference Docs, see `Annotation.gold`. Entities that begin in one sentence and end in another
        count as missing.

        RAISES (ValueError): CRF440 for a negated label such as "!PER".
        """
        annotation = [_aligned_entities(example, report) for example in examples]
        iob, types = np.concatenate([np.zeros((0, 2), dtype=np.uint64), *annotation]).T  # uint64[T] each
        label = self.label_indices(types)
        entity = (iob == BEGIN) | (iob == INSIDE)
        unknown = entity & (label < 0)
        doc_starts = DocBatch(example.predicted for example in examples).bounds

        def place(token: int) -> str:
            n = int(np.searchsorted(doc_starts, token, side="right")) - 1
            doc = examples[n].predicted
            i = int(token - doc_starts[n])
            return f"token {i} ('{doc[i].text}') of '{doc.text[:40]}'"

        # Once for each entity; entities without a label (type 0) count as outside without a message
        for token in np.flatnonzero(unknown & (iob == BEGIN) & (types != 0)).tolist():
            unknown_label = self.text_of(int(types[token]), (example.reference for example in examples))
            self._refuse_negated(unknown_label, partial(place, token))
            report.add("gold entities have a label the component does not know, and count as outside", place(token))
        iob = np.where(unknown, OUTSIDE, iob)
        if not self.space_edges:
            iob = self._trimmed(iob, examples, place, report)
        for token in starts[:-1][starts[:-1] < len(iob)].tolist():
            if iob[token] == INSIDE:
                report.add("gold entities cross the start of a sentence, and count as missing", place(token))
                # All tokens of an entity have one opening, on both sides of the start of the sentence
                opening = _openings(iob)
                iob = np.where(opening == opening[token], MISSING, iob)
        return Supervision(self.scheme.clamp(iob, np.maximum(label, 0), starts, len(self.labels)), iob == MISSING)

    @staticmethod
    def _trimmed(iob: NDArray, examples: list[Example], place: Callable[[int], str], report: GoldReport) -> NDArray:
        """Trim white space from the edges of entities, and leave out entities of white space alone."""
        blank = DocBatch(example.predicted for example in examples).is_space
        is_entity = (iob == BEGIN) | (iob == INSIDE)
        if not (is_entity & blank).any():
            return iob
        iob = iob.copy()
        begins = np.flatnonzero(iob == BEGIN)
        for begin, end in zip(begins.tolist(), _ends(iob, begins).tolist()):
            if not (blank[begin] or blank[end - 1]):
                continue
            words = begin + np.flatnonzero(~blank[begin:end])
            report.add(f"gold entities {TRIMMED if len(words) else DROPPED}", place(begin))
            iob[begin:end] = OUTSIDE
            if len(words):
                iob[words[0] : words[-1] + 1] = INSIDE
                iob[words[0]] = BEGIN
        return iob

    def fingerprint(self, docs: list[Doc]) -> int:
        """A checksum of the entities of Docs."""
        return zlib.crc32(read_attributes(docs, _ENTITY).data)

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The entities of a Doc, with their probabilities."""
        return self._mentions(doc.ents)

    def is_annotated(self, doc: Doc) -> bool:
        """Whether a reference Doc has annotation, be it that it has no entities: a Doc without any is not scored."""
        return doc.has_annotation("ENT_IOB")

    def _mentions(self, ents: Iterable[Span]) -> list[Mention]:
        ents = list(ents)
        return mentions_of(ents, map(probability_of, ents), space_edges=self.space_edges)

    def texts_right(self, examples: Iterable[Example]) -> list[bool]:
        """Whether each annotated text is right as a whole: the predicted Doc has exactly the annotated spans, or none if none is
        annotated. Found spans count only where the text is annotated, and a text without any annotation is left out.

        examples (Iterable[Example]): Examples with predicted Docs.
        RETURNS (list[bool]): One value for each annotated text.
        """
        attributes: list[Union[int, str]] = ["orth", *self.writes]
        are_right = []
        for example in examples:
            if self.is_annotated(example.reference):
                # Most texts have equal tokens, which are compared faster than mentions; spans are no attributes of tokens
                gold_tokens = example.reference.to_array(attributes).tobytes()
                are_equal = gold_tokens == example.predicted.to_array(attributes).tobytes()
                if not (are_equal and self.writes):
                    gold, found = self.mentions(example)
                    are_equal = {mention.place for mention in gold} == {mention.place for mention in found}
                are_right.append(are_equal)
        return are_right

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): The gold entities, and the entities found at tokens whose annotation is
        not missing."""
        found = list(example.predicted.ents)
        # Aligning words takes long, and few texts need it
        if not same_words(example.predicted, example.reference) or MISSING in example.reference.to_array(ENT_IOB):
            missing = [tag in (None, "-") for tag in example.get_aligned_ner()]
            found = [ent for ent in found if not any(missing[ent.start : ent.end])]
        return self.mentions_in(example.reference), self._mentions(found)

    # -------------------------------------------------------------------------------------------------- in prediction

    def preset(self, docs: DocBatch) -> Optional[NDArray[np.uint64]]:
        """`ent_iob` and `ent_type` of the tokens (uint64[T, 2]); None if no Doc has an entity or a blocked token."""
        # For a short text, counting takes a fifth of the time of `any`
        return read_attributes(docs, _ENTITY) if np.count_nonzero(docs.ent_iob & _IS_PRESET) else None

    def settle(self, settled: PresetAnnotation, preset: NDArray[np.uint64], starts: Starts) -> None:
        """Write the present entities, the result of `preset`, into `settled`, in place."""
        iob, types = preset.T
        label = self.label_indices(types)
        settled.taken[:] = _is_preset(iob)
        # This component finds nothing in entities with labels of others, nor at blocked tokens (BEGIN without a type)
        of_component = np.where(label >= 0, iob, OUTSIDE)
        new_iob = np.where(settled.taken, of_component, MISSING)  # MISSING where this component decides
        # An entity that crosses the start of a sentence ends there, and its rest is no entity
        opening = starts[:-1][starts[:-1] < len(iob)]
        new_iob[opening] = np.where(new_iob[opening] == INSIDE, OUTSIDE, new_iob[opening])
        settled.iob[:] = _without_rests(new_iob)
        settled.label[:] = np.maximum(label, 0)
        settled.present[settled.taken] = types[settled.taken]

    def clamp(self, settled: PresetAnnotation, starts: Starts) -> ChainClamp:
        """The labellings that contain all settled entities; any labels are allowed at other tokens."""
        return self.scheme.clamp(settled.iob, settled.label, starts, len(self.labels))

    def conflict_with(
        self, settled: PresetAnnotation, starts: Starts, begin: int, end: int, label: int
    ) -> Optional[str]:
        """The reason why no labelling can have an entity in addition to the settled entities; None if a labelling can. The
        arguments are those of `Annotation.conflict_with`."""
        if ((starts > begin) & (starts < end)).any():
            return "it crosses the start of a sentence"
        # IO has one tag for a label, so neighbours of one label are one entity
        if self.scheme.name == "IO":
            is_entity = _is_preset(settled.iob)
            neighbours = []
            if begin not in starts:
                neighbours.append(begin - 1)
            if end not in starts:
                neighbours.append(end)
            if any(is_entity[token] and settled.label[token] == label for token in neighbours):
                return "the scheme IO can't tell it from its neighbour"
        return None

    def write(self, docs: list[Doc], prediction: Prediction) -> Segments:
        """Write the predicted entities beside the present ones. RETURNS (Segments): The present entities."""
        annotation = self._annotation_of_tag[prediction.tags]  # uint64[T, 2]
        present = NO_SEGMENTS
        if not self.scheme.tags_tell_iob:
            annotation[:, 0] = self.scheme.iob(prediction.tags, prediction.starts)
        if prediction.preset is not None:
            is_preset = _is_preset(prediction.preset[:, 0])
            annotation[is_preset] = prediction.preset[is_preset]
            present = entities_of(prediction.preset)
        if docs:
            # A weak reference: the component must not keep Docs alive
            LATEST[self.name] = ref(docs[0]), self.labels
        begin = 0
        for doc, end in zip(docs, prediction.doc_starts[1:].tolist()):
            if begin < end:
                doc.from_array(_ENTITY, annotation[begin:end])  # pyright: ignore[reportArgumentType]  takes uint64 too
            begin = end
        return present

    def label_at(self, token: Token) -> str:
        """The label of the entity that begins with a token."""
        return token.ent_type_


@lru_cache(maxsize=32)
def _span_states(scheme: Scheme, n_labels: int) -> SpanStates:
    if isinstance(scheme, SegmentScheme):
        return SpanStates.even(None, n_labels, offset=1)
    return SpanStates.even(scheme.continues(n_labels), n_labels, offset=1, width=len(scheme.prefixes))


def _place_of_first(doc: Doc, label: str) -> str:
    """Name of the first entity of a label, in an error."""
    first = next(ent for ent in doc.ents if ent.label_ == label)
    return f"'{first.text}' in '{doc.text[:40]}'"


def _is_preset(iob: NDArray) -> Bools:
    """Which tokens are part of an entity, or blocked: bool[T]."""
    return (iob & _IS_PRESET).astype(bool)


def entities_of(annotation: NDArray[np.uint64]) -> Segments:
    """The entities of tokens with this annotation: uint64[T, 2], `ent_iob` and `ent_type`. Labels are hashes, as int64."""
    iob, types = annotation.T
    begin = np.flatnonzero((iob == BEGIN) & (types != 0))
    return Segments(begin, _ends(iob, begin), types[begin].astype(np.int64))


def _ends(iob: NDArray, begin: Ints) -> Ints:
    """The token behind each entity (int64[N]): the next token after its `begin` that is not INSIDE."""
    not_inside = np.append(np.flatnonzero(iob != INSIDE), len(iob))
    return not_inside[np.searchsorted(not_inside, begin, side="right")]


def _aligned_entities(example: Example, report: GoldReport) -> NDArray[np.uint64]:
    """Gold ``ent_iob`` and ``ent_type`` at the tokens of the predicted Doc: uint64[T, 2]."""
    predicted = example.predicted
    reference = example.reference
    if same_words(predicted, reference):
        annotation = read_attributes([reference], _ENTITY)
        blocked = (annotation[:, 0] == BEGIN) & (annotation[:, 1] == 0)
        annotation[blocked, 0] = OUTSIDE
        return annotation
    annotation = np.zeros((len(predicted), 2), dtype=np.uint64)
    # spaCy gives BILUO tags of the predicted tokens; None or "-" where the words do not align
    tags = example.get_aligned_ner()
    for i, tag in enumerate(tags):
        if tag is None or tag == "-":
            continue
        prefix, _, label = tag.partition("-")
        annotation[i, 0] = {"B": BEGIN, "U": BEGIN, "I": INSIDE, "L": INSIDE}.get(prefix, OUTSIDE)
        annotation[i, 1] = predicted.vocab.strings.add(label) if label else 0
    n_aligned = sum(tag is not None and tag[0] in "BU" for tag in tags)
    # Finding out which entities were lost takes time, since spaCy aligns each of them again
    if n_aligned < len(reference.ents):
        aligned = {(ent.start_char, ent.end_char) for ent in example.get_aligned_spans_y2x(reference.ents)}
        for ent in reference.ents:
            if (ent.start_char, ent.end_char) not in aligned:
                place = f"'{ent.text}' ({ent.label_}) in '{reference.text[:40]}'"
                report.add("gold entities do not align with the tokens, and count as missing", place)
    return annotation


def _openings(iob: NDArray) -> Ints:
    """For each token, itself or the nearest token before it that is not INSIDE; -1 for none: int64[T]."""
    candidates = np.where(iob == INSIDE, -1, np.arange(len(iob)))
    return np.maximum.accumulate(candidates)


def _without_rests(iob: NDArray) -> NDArray:
    """Turn the rests of entities that lost their first tokens into OUTSIDE: INSIDE that does not follow BEGIN."""
    opening = _openings(iob)
    has_begin = (opening >= 0) & (iob[opening] == BEGIN)
    return np.where((iob == INSIDE) & ~has_begin, OUTSIDE, iob)
