"""Base of all annotations, which define where components read and write labels; and the report of unusable gold annotation."""

import copy
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span, Token
from spacy.training import Example
from spacy.vocab import Vocab

from ... import checks
from ...errors import Errors, Warnings
from ...features.doc_batch import DocBatch
from ...inference.structure import SpanStates
from ...schemes import MISSING, NO_SEGMENTS, NO_STEPS, Segments, TransitionMask
from ...types import Clamp

if TYPE_CHECKING:
    from ...losses.soft import SoftLabelling

logger = logging.getLogger("spacy.spacy_crf")
Starts = NDArray[np.int64]
Tags = NDArray[np.int32]
OfAnnotation = TypeVar("OfAnnotation", bound="Annotation")


class GoldReport:
    """Collects gold annotation that cannot be used, in order to report it once."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}
        self._is_logged = False

    def add(self, problem: str, place: str) -> None:
        self._counts[problem] = self._counts.get(problem, 0) + 1
        if self._counts[problem] <= 3:
            self._places.setdefault(problem, []).append(place)

    def add_span(self, span: Span, key: str, problem: str) -> None:
        """Add a problem with a span in ``doc.spans[key]``."""
        self.add(f"spans in doc.spans['{key}'] {problem}", place_of(span))

    def log_once(self, name: str) -> None:
        """Log the problems of the first of several passes over a corpus."""
        if not self._is_logged:
            self.log(name)
            self._is_logged = True

    def log(self, name: str) -> None:
        for problem, count in self._counts.items():
            places = "; ".join(self._places[problem])
            logger.warning(Warnings.CRFW405.format(name=name, count=count, problem=problem, places=places))


def place_of(span: Span) -> str:
    """Name of a span in a report."""
    return f"'{span.text}' ({span.label_}) in '{span.doc.text[:40]}'"


class Supervision(NamedTuple):
    """What the annotation of a batch of Docs says about its labelling. Alternatives and wrong spans change the first two arrays
    in place."""

    # Labellings that are allowed; `Annotation.gold` gives them in the tags in which annotation is read, see `Scheme.spell`
    clamp: Any
    unset: NDArray[np.bool_]  # [T] tokens without annotation
    wrong: Segments = NO_SEGMENTS  # spans that no labelling may have and the clamp does not exclude
    steps: NDArray[np.int64] = NO_STEPS  # steps between tags that no labelling may take, see `Scheme.spell`
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
        alternatives, incorrect = map(pipe.cfg.get, KEYS)
        return cls(alternatives, incorrect, pipe.loss.spans_key)


class PresetAnnotation(NamedTuple):
    """Known labels of the T tokens of some Docs. Functions fill in the arrays, in place."""

    iob: NDArray[np.int64]  # [T] spaCy's codes of settled tokens, MISSING for the others
    label: NDArray[np.int64]  # [T] labels of the settled spans
    present: NDArray[np.uint64]  # [T] hash of the present annotation, 0 for none
    taken: NDArray[np.bool_]  # [T] tokens that nothing later can change
    blocked: NDArray[np.bool_]  # [T, L] labels that a token may not get

    @classmethod
    def nothing(cls, n_tokens: int, n_labels: int) -> "PresetAnnotation":
        iob = np.full(n_tokens, MISSING)
        label = np.zeros(n_tokens, dtype=np.int64)
        present = np.zeros(n_tokens, dtype=np.uint64)
        taken = np.zeros(n_tokens, dtype=bool)
        return cls(iob, label, present, taken, np.zeros((n_tokens, n_labels), dtype=bool))


class Mention(NamedTuple):
    """A labelled span or token of a text."""

    start: int  # in characters
    end: int
    label: str
    probability: Optional[float] = None  # given by the component

    @property
    def place(self) -> tuple[int, int, str]:
        """Start, end and label: equal for an annotated mention and the same mention found."""
        return self[:3]


class Annotation:
    """Defines where a component reads and writes labels, and how tags spell them. An annotation is bound to labels and immutable.
    Whole texts have neither tags of spans nor present annotation.
    """

    writes: tuple[str, ...] = ()  # token attributes
    found: str  # name of the labelled things, in messages
    spans_are_tokens: bool  # whether each token of a span is a span of its own
    scores_prefix: str  # prefix of the names of scores
    needs_neighbours = False  # whether the tags of a span depend on the span before
    may_have_no_labels = False  # whether a component can begin without labels
    space_edges = True  # whether spans may begin and end with white space
    outside = frozenset([""])  # values of gold annotation that name no label
    elsewhere: frozenset[str] = frozenset()  # labels that belong to other chains of a set, see `Spans`
    # of a chain of a set, see `Spans`
    level = 0
    n_levels = 1

    name: str  # name of the component
    vocab: Vocab
    labels: tuple[str, ...] = ()
    written_labels: Sequence[Any] = ()  # `label_at` for each label, unless tokens have several labels
    _index: dict[int, int]  # position of each label, by its hash

    def bind(self: OfAnnotation, name: str, vocab: Vocab, labels: Iterable[str]) -> OfAnnotation:
        """RETURNS (Annotation): A copy for a component with these labels."""
        bound = copy.copy(self)
        bound.name = name
        bound.vocab = vocab
        bound.labels = tuple(labels)
        bound._index = {vocab.strings.add(label): n for n, label in enumerate(bound.labels)}
        bound._tabulate()
        return bound

    def _tabulate(self) -> None:
        """Compute the tables that prediction looks up."""

    def introduce(self, vocab: Vocab) -> None:
        """Add the labels to the vocabulary of Docs: of another pipeline, or one that lost labels at the end of a memory zone."""
        strings: Any = vocab.strings  # whose stub lacks the argument
        for label in self.labels:
            strings.add(label, allow_transient=False)

    def spelled(self, value: Any, docs: Iterable[Doc]) -> str:
        """The text of a hash that was read from one of the Docs, whose vocabularies may differ from the component's."""
        vocabs = dict.fromkeys([self.vocab, *(doc.vocab for doc in docs)])
        return next(vocab.strings[value] for vocab in vocabs if value in vocab.strings)

    def label_indices(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of labels from their hashes: int64[N], -1 for 0 and for unknown hashes."""
        distinct, inverse = np.unique(hashes, return_inverse=True)
        known = np.array([self._index.get(int(value), -1) for value in distinct], dtype=np.int64)
        return known[inverse] if len(distinct) else np.zeros(0, dtype=np.int64)

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
        return TransitionMask(np.ones((size, size), dtype=bool), *np.ones((2, size), dtype=bool))

    def span_states(self) -> SpanStates:
        """How tags spell spans."""
        return SpanStates.even(np.zeros((len(self.labels), len(self.labels)), dtype=bool), len(self.labels))

    def spell(self, allowed: Any, starts: Starts) -> tuple[Any, NDArray[np.int64]]:
        """The component's tags that annotation allows, and the steps that it forbids, see `Scheme.spell`."""
        return allowed, NO_STEPS

    # ----------------------------------------------- tags of spans

    def path(self, segments: Segments, starts: Starts) -> Tags:
        """Tags of the labelling with exactly these spans: int32[T], -1 where a token needs a span but has none."""
        raise NotImplementedError

    def span_tags(self, label: str, length: int) -> Optional[NDArray[np.int64]]:
        """Tags of a span ("" and "O" for none) in which annotation is read: int64[length]; None for an unknown label."""
        raise NotImplementedError

    def tells_alone(self, length: int) -> bool:
        """Whether each tag of a span of this length fully describes its token, without its neighbours."""
        raise NotImplementedError

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        """Tags that continue the span of this tag directly after it: bool[S]."""
        raise NotImplementedError

    # ----------------------------------------------- the annotation of reference Docs

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """Labels of a Doc's gold annotation."""
        raise NotImplementedError

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """The gold annotation, at the tokens of the predicted Docs."""
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
        """Write the present annotation into `settled`, in place."""
        raise NotImplementedError

    def clamp(self, settled: PresetAnnotation, starts: Starts) -> Clamp:
        """Clamp of the labellings that contain all settled spans, in the tags in which annotation is read."""
        raise NotImplementedError

    def refused_beside(
        self, settled: PresetAnnotation, starts: Starts, begin: int, end: int, label: int
    ) -> Optional[str]:
        """Why no labelling has these tokens as a span together with the settled ones; None if some labelling has."""
        raise NotImplementedError

    def write(self, docs: list[Doc], prediction: Any) -> Segments:
        """Write the predicted entities beside the present ones. RETURNS (Segments): The present entities."""
        raise NotImplementedError

    def label_at(self, token: Token) -> Any:
        """RETURNS (Any): The label that a token, or the span that begins with it, has in its Doc."""
        raise NotImplementedError

    def check_label(self, label: Any) -> None:
        """RAISES (ValueError): CRF020 for a value that cannot be a label."""
        is_text = isinstance(label, str) and label and label == label.encode("utf8", "ignore").decode("utf8")
        must = "a string that is not empty and can be saved as UTF-8"
        checks.expect(is_text, f"Component '{self.name}'", "a label", label, must)

    def no_labels(self, name: str, docs: Iterable[Doc]) -> str:
        """The message that training data (reference Docs) has no labels for the component of this name."""
        return Errors.CRF403.format(name=name)

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The labelled spans or tokens of a Doc."""
        raise NotImplementedError

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """Mentions in the reference, and mentions in the predicted Doc where the reference is annotated."""
        raise NotImplementedError

    def decisions(self, example: Example) -> list[tuple[float, bool]]:
        """The probability of each labelled span or token of the predicted Doc, and whether it is right; without those whose
        probability, or whose annotation in the reference, is missing."""
        gold, found = self.mentions(example)
        places = {mention.place for mention in gold}
        return [(mention.probability, mention.place in places) for mention in found if mention.probability is not None]

    def look_for_lost(self, parts: Any, docs: Any, scores: Any, preset: NDArray[np.uint64]) -> None:
        """Warn if another component of this package has annotated tokens where this one would find something else."""

    @property
    def assigns(self) -> list[str]:
        """Attributes that the annotation writes, as `nlp.analyze_pipes` names them."""
        return [f"token.{name}" for name in self.writes]


def probability_of(found: "Span | Token") -> Optional[float]:
    """The probability that a component with ``confidence`` gave a span, or the label of a token."""
    return found._.crf_prob


def same_words(doc: Doc, other: Doc) -> bool:
    return len(doc) == len(other) and bool((doc.to_array(ORTH) == other.to_array(ORTH)).all())


def on_levels(spans: Iterable[Span]) -> list[tuple[Span, int]]:
    """The spans of a Doc, each once, on the first level where it overlaps none that is longer, or as long and before it."""
    taken: list[set[int]] = []
    placed: dict[tuple[int, int, int], tuple[Span, int]] = {}
    for span in sorted(spans, key=lambda span: (-len(span), span.start, span.label_)):
        place = (span.start, span.end, span.label)
        tokens = range(span.start, span.end)
        if place in placed:
            continue
        level = next((n for n, used in enumerate(taken) if used.isdisjoint(tokens)), len(taken))
        if level == len(taken):
            taken.append(set())
        taken[level].update(tokens)
        placed[place] = span, level
    return [*placed.values()]
