"""The base of all annotations: where a component reads and writes labels, and the report of gold annotation without use."""

import copy
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vocab import Vocab

from ... import checks
from ...errors import Warnings
from ...inference.structure import SpanStates
from ...schemes import NO_SEGMENTS, NO_STEPS, Segments, TransitionMask

if TYPE_CHECKING:
    from ...losses.soft import SoftLabelling

logger = logging.getLogger("spacy.spacy_crf")
Starts = NDArray[np.int64]
Tags = NDArray[np.int32]
Bound = TypeVar("Bound", bound="Annotation")


class GoldReport:
    """Collects what of the gold annotation could not be used, to say it once."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}
        self._is_logged = False

    def add(self, problem: str, place: str) -> None:
        self._counts[problem] = self._counts.get(problem, 0) + 1
        if self._counts[problem] <= 3:
            self._places.setdefault(problem, []).append(place)

    def add_span(self, span: Span, key: str, problem: str) -> None:
        """About one in ``doc.spans[key]``."""
        self.add(f"spans in doc.spans['{key}'] {problem}", place_of(span))

    def log_once(self, name: str) -> None:
        """Log the problems of the first of several readings of a corpus."""
        if not self._is_logged:
            self.log(name)
            self._is_logged = True

    def log(self, name: str) -> None:
        for problem, count in self._counts.items():
            places = "; ".join(self._places[problem])
            logger.warning(Warnings.CRFW405.format(name=name, count=count, problem=problem, places=places))


def place_of(span: Span) -> str:
    """Names a span in a report."""
    return f"'{span.text}' ({span.label_}) in '{span.doc.text[:40]}'"


class Supervision(NamedTuple):
    """Knowledge about the labelling of a batch of Docs, from its annotation. Alternatives and wrong spans change the first two
    arrays in place."""

    # What is allowed; `Annotation.gold` gives it in the tags in which annotation is read, see `Scheme.spell`
    clamp: Any
    unset: NDArray[np.bool_]  # [T] tokens without annotation
    wrong: Segments = NO_SEGMENTS  # spans that no labelling has, beside what the clamp leaves out
    steps: NDArray[np.int64] = NO_STEPS  # steps between tags that no labelling takes, see `Scheme.spell`
    # Spans that the annotation allows beside others, where the model looks at spans
    alternatives: Segments = NO_SEGMENTS
    soft: Optional["SoftLabelling"] = None  # of a teacher


class Mention(NamedTuple):
    """Something with a label in a text."""

    start: int  # characters
    end: int
    label: str
    probability: Optional[float] = None  # that a component gave it

    @property
    def place(self) -> tuple[int, int, str]:
        """Equal for an annotated mention and the same mention found."""
        return self[:3]


class Annotation:
    """The meaning of a component's annotation: where labels are read and written, and how they are spelt as tags. It is bound to
    labels, and does not change. `Entities` says what each question is; `TokenTags` answers them too:

        path                                              how labels are spelt
        span_tags tells_alone continuing_tags             how the annotation of training is read as tags
        gold_labels gold is_gold fingerprint mentions …   what reference Docs say
        preset settle clamp refused_beside write          what Docs bring to prediction, and get from it
        look_for_lost                                     what they don't get, for what they bring
    """

    writes: tuple[str, ...] = ()  # token attributes
    found: str  # what is found, in messages
    spans_are_tokens: bool  # whether each token of a span is one by itself
    scores_prefix: str  # in the names of scores
    needs_neighbours = False  # whether the tags of a span depend on what is in front of it
    may_have_no_labels = False  # whether a component can begin without any
    outside = frozenset([""])  # what names no label in gold annotation

    name: str  # of the component
    vocab: Vocab
    labels: tuple[str, ...] = ()

    def bind(self: Bound, name: str, vocab: Vocab, labels: Iterable[str]) -> Bound:
        """RETURNS (Annotation): A copy for a component with these labels."""
        bound = copy.copy(self)
        bound.name, bound.vocab, bound.labels = name, vocab, tuple(labels)
        bound._index = {vocab.strings.add(label): n for n, label in enumerate(bound.labels)}
        bound._tabulate()
        return bound

    def _tabulate(self) -> None:
        """Makes what prediction looks up."""

    def introduce(self, vocab: Vocab) -> None:
        """Makes the labels known to the vocabulary of Docs that come from elsewhere."""
        for label in self.labels:
            vocab.strings.add(label)

    def spelled(self, value: int, docs: Iterable[Doc]) -> str:
        """The text of a hash that was read from one of the Docs, whose vocabularies need not be the component's."""
        vocabs = dict.fromkeys([self.vocab, *(doc.vocab for doc in docs)])
        return next(vocab.strings[value] for vocab in vocabs if value in vocab.strings)

    def label_indices(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of labels given by their hashes, -1 for 0 and for unknown ones."""
        distinct, inverse = np.unique(hashes, return_inverse=True)
        known = np.array([self._index.get(int(value), -1) for value in distinct], dtype=np.int64)
        return known[inverse] if len(distinct) else np.zeros(0, dtype=np.int64)

    # ------------------------------------------ as tags: the labels themselves, unless an annotation spells them otherwise

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
        """The component's tags that annotation allows, and the steps that it rules out, see `Scheme.spell`."""
        return allowed, NO_STEPS

    def check_label(self, label: Any) -> None:
        """RAISES (ValueError): CRF020 for what can't be a label."""
        is_text = isinstance(label, str) and label and label == label.encode("utf8", "ignore").decode("utf8")
        must = "a string that is not empty and can be saved as UTF-8"
        checks.expect(is_text, f"Component '{self.name}'", "a label", label, must)

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The labelled spans or tokens of a Doc."""
        raise NotImplementedError

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """The mentions of the reference, and those of the predicted Doc where the reference is annotated."""
        raise NotImplementedError

    def judged(self, example: Example) -> Iterator[tuple[Optional[float], bool]]:
        """Probability of each span found, and whether it is right; none of those whose gold annotation is missing."""
        gold, found = self.mentions(example)
        places = {mention.place for mention in gold}
        for mention in found:
            yield mention.probability, mention.place in places

    def look_for_lost(self, parts: Any, docs: Any, scores: Any, preset: NDArray[np.uint64]) -> None:
        """Warns if another component of ours has put something where this one would find something else.

        scores: What the model of the component says of the Docs.
        """

    @property
    def assigns(self) -> list[str]:
        """Attributes that the annotation writes, as `nlp.analyze_pipes` names them."""
        return [f"token.{name}" for name in self.writes]


def probability_of(span: Span) -> Optional[float]:
    """The probability that a component with ``confidence`` gave a span."""
    return span._.crf_prob


def same_words(doc: Doc, other: Doc) -> bool:
    return len(doc) == len(other) and bool((doc.to_array(ORTH) == other.to_array(ORTH)).all())
