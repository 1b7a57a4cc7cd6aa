"""How a component decodes the scores of a structure.

Labellings are tags in all arguments and results; for segments these are BIO tags.
"""

import copy
import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model

from .. import arrays
from ..arrays import Scores, spread
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..inference.bridges import Bridges
from ..inference.spans import segments_of
from ..inference.structure import SpanStates, Structure
from ..losses.clamped import LabelledLoss
from ..models.structure import StructureNode
from ..schemes import NO_SEGMENTS, Segments, TransitionMask
from ..types import Bools, ChainScores, Floats, Settings
from .annotation.entities import Annotation, GoldReport, Keys, Supervision

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded, Documents
    from ..constraints.rule_set import RuleSet
    from ..constraints.settings import Constraints
    from .rule_matching import RuleMatcher
    from .supervision import EncodedSpans

logger = logging.getLogger("spacy.spacy_crf")
States = NDArray[np.int32]


class Decoder:
    """How a component finds labellings and their probabilities where the exact answers of its structure are not what is wanted:
    the setting `decoder`. Another package registers a subclass under `misc`.
    """

    def searched(self, decoding: "Decoding") -> Structure:
        """The structure that finds best labellings (`viterbi`, `n_best`) in place of that of the model, for the same scores.

        decoding (Decoding): Of a component, with its model and annotation.
        RAISES (ValueError): If the decoder does not fit the model.
        """
        return decoding.structure

    def distribution(self, batch: Any, d: Optional[int]) -> Any:
        """The distribution over the labellings of Doc `d` of a batch, or of all its Docs (None), with the methods of
        `Distribution`."""
        return batch.by(batch.scores, d)


class Decoding:
    """Decoding of linear chains whose states each belong to one tag; clamps are bool[T, S]. `SegmentDecoding` overrides it for
    segments.

    model (Model): The model that computes the scores.
    annotation (Annotation): The labels, and their tags.
    """

    always_joins = True  # whether the sequences of a Doc are joined even if no rule ties them together
    longest: Optional[NDArray[np.int32]] = None  # tokens of the longest segment of each state: int32[S]
    unexplained: Optional[str] = None  # why weights do not explain a labelling; None if they do
    batches: Any = None  # the `probabilities.Batch` for this decoding; None for the usual one
    token_attributes: tuple[str, ...] = ()  # that the model needs beside those that templates read
    walks_around_wrong = False  # whether online optimizers can exclude wrong spans

    def __init__(self, model: Model, annotation: Annotation):
        self.model = model
        self.annotation = annotation
        node: StructureNode = model.attrs["node"]
        self.labelled = node.traits.labelled  # what has labels: "tokens", "segments" or "texts"
        self.structure: Structure = node.structure
        self.decoder: Optional[Decoder] = None
        self.searched: Structure = self.structure  # the structure that finds best labellings
        self.explained: Structure = self.structure  # the structure for explanations
        self._take_states(node.tag_of(model, annotation.tag_labels()))

    def use(self, decoder: Optional[Decoder]) -> None:
        """Decode by a decoder, which has to fit, from now on; None for the exact answers of the structure."""
        self.searched = self.structure if decoder is None else decoder.searched(self)
        self.decoder = decoder

    def _take_states(self, tag_of: Any) -> None:
        """Set what depends on the tag of each state, in order: int64[S]."""
        annotation = self.annotation
        self.tag_of: Any = tag_of
        n_tags = len(annotation.tag_labels())
        self._first = np.searchsorted(self.tag_of, np.arange(n_tags))  # first state of each tag: stands for the tag
        self._are_tags = len(self.tag_of) == n_tags  # whether each tag has one state
        # The break between sequences is an additional state and tag
        self.tags_and_break = np.append(self.tag_of, n_tags)
        self.tag_spans: SpanStates = annotation.span_states()  # how tags encode spans
        self.spans = self.tag_spans if self._are_tags else self.tag_spans.over(self.tag_of)
        self.label_of_states = self.spans.label_of[:-1]  # int64[S] -1 for none
        self.n_states = len(self.label_of_states)
        # Names of things beside states that weights belong to, and the label of each name of both: int64[N], -1 for none
        self.further_names: list[str] = []
        self.label_of_names = self.label_of_states
        self.outside = self.tag_spans.offset - 1  # tag of tokens that lost their span; -1 if they get no tag

    # ------------------------------------------------------------------------------------------------- white space

    @cached_property
    def bridges(self) -> Bridges:
        """The states of Docs with white space, whose spans may not begin or end with it."""
        found = Bridges.of(self.mask(), self.spans)
        node: StructureNode = self.model.attrs["node"]
        return found if node.gives is ChainScores else found.masked()

    @cached_property
    def _over_bridges(self) -> "Decoding":
        over = copy.copy(self)
        over._take_states(self.tag_of[self.bridges.tag_of])
        return over

    def over_bridges(self) -> "Decoding":
        """The decoding of scores that `bridges` have widened; the decoding itself if no state has a copy."""
        if self.bridges.graph is None:
            return self
        over = self._over_bridges
        over.searched = self.searched
        over.decoder = self.decoder
        return over

    # ------------------------------------------------------------------------------------------------------ states

    @property
    def state_labels(self) -> list[str]:
        """The label of each state, "O" for none."""
        labels = self.annotation.tag_labels()
        return [labels[tag] for tag in self.tag_of]

    @property
    def spans_may_touch(self) -> bool:
        """Whether a span may begin where another one of its label ends: each is a segment, or a tag does not continue itself."""
        # By tags, since their states say nothing more about it
        continues, first = self.tag_spans
        return bool(continues is None or (np.diff(first) > 1).any() or not np.diag(continues)[first[0] :].any())

    def mask(self) -> TransitionMask:
        """Transitions between states that the scheme allows."""
        transitions, first, last = self.annotation.mask()
        tag_of = self.tag_of
        return TransitionMask(transitions[np.ix_(tag_of, tag_of)], first[tag_of], last[tag_of])

    def only(self, structure: Structure, work: Any, path: States) -> Any:
        """The clamp that allows exactly the labelling of a path of states."""
        if self._are_tags:
            return structure.only(work, path)
        tag_of = self.tags_and_break[: work.n_tags]
        return np.where(path >= 0, tag_of[path], -1)[:, np.newaxis] == tag_of

    # -------------------------------------------------------------------------------------------------- prediction

    def best_tags(self, scores: Any, clamp: Any) -> States:
        """Tags of the most probable labelling: int32[T]."""
        return self.tags(self.searched.viterbi(scores, clamp=clamp).states)

    def best_with_probabilities(self, scores: Any, clamp: Any) -> tuple[States, Floats]:
        """Tags of the most probable labelling (int32[T]), and the probability of each of its spans (float64[N])."""
        work = self.structure.prepare(scores, clamp)
        tags = self.best_tags(work, None)
        segments = self.segments(tags, scores.starts)
        return tags, self.structure.span_probabilities(work, self.spans, segments)

    def segments(self, tags: States, starts: NDArray[np.int64]) -> Segments:
        """The spans of a labelling."""
        opening = np.zeros(len(tags), dtype=bool)
        opening[starts[:-1][starts[:-1] < len(tags)]] = True
        return segments_of(tags, self.tag_spans, opening)

    def encode_clamp(self, clamp: Any, starts: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
        """The model's states that annotation allows, and the steps that it forbids, see `Scheme.encode_clamp`."""
        of_tags, steps = self.annotation.encode_clamp(clamp, starts)
        return np.ascontiguousarray(of_tags[:, self.tag_of]), steps

    # ------------------------------------------------------------------------------------------------------- rules

    @property
    def special_search(self) -> Optional[Structure]:
        """The structure by which a decoder finds best labellings; None for the structure of the model."""
        return None if self.searched is self.structure else self.searched

    def compile_rules(self, constraints: "Constraints") -> "RuleSet":
        """Compile rules for the present labels."""
        from ..constraints.automaton import SpanTags
        from ..constraints.rule_set import RuleSet

        tags = SpanTags(list(self.annotation.labels), self.label_of_states, self.spans.continues)
        return RuleSet(constraints, tags, self.mask(), self.special_search)

    def decode(self, rules, documents: "Documents", doc_starts: NDArray[np.int64], kept=None) -> "Decoded":
        """Tags of the best labellings that keep the rules, see `constraints.decoding.decode`."""
        from ..constraints.decoding import decode

        decoded = decode(rules, documents, doc_starts, kept)
        return decoded._replace(tags=self.tags(decoded.tags))

    def tags(self, path: States) -> States:
        """The tags of a path of states."""
        return path if self._are_tags else np.where(path >= 0, self.tag_of[path], path).astype(np.int32)

    def path(self, tags: States, starts: NDArray[np.int64]) -> States:
        """A path of states for tags, with the first state of each tag."""
        return tags if self._are_tags else np.where(tags >= 0, self._first[tags], tags).astype(np.int32)

    def worth(self, expected: Scores) -> dict[str, Floats]:
        """Expected number of right tags for each part of a labelling, by the expected use of each score."""
        of_states = np.clip(expected[0], 0.0, 1.0)
        worth = of_states if self._are_tags else self.by_tag(of_states)[:, self.tag_of]
        return {expected._fields[0]: worth}

    def by_tag(self, probabilities: Floats) -> Floats:
        """Probabilities of tags (float64[T, tags]) from probabilities of states (float64[T, S])."""
        return np.minimum(np.add.reduceat(probabilities, self._first, axis=1), 1.0)

    def expected(self, scores: Scores, worth: dict[str, Floats]) -> Scores:
        """Scores whose best labelling has the largest expected number of right tags."""
        found = {name: np.where(array > -np.inf, 0.0, -np.inf) for name, array in arrays.named(scores).items()}
        return scores._replace(**{**found, **{name: found[name] + array for name, array in worth.items()}})

    # ---------------------------------------------------------------------------------------------------- training

    def starts(self, docs: list[Doc]) -> NDArray[np.int64]:
        """Bounds of the rows of scores of each sequence: int64[B + 1]. RAISES (ValueError): As `check_docs`."""
        self.check_docs(docs)
        return self.model.attrs["node"].starts(DocBatch.of(docs))

    def bounds(self, docs: list[Doc]) -> NDArray[np.int64]:
        """Bounds of the rows of scores of each Doc: int64[D + 1]."""
        return DocBatch.of(docs).bounds

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: NDArray[np.int64], keys: Keys, report: GoldReport
    ) -> Supervision:
        """Supervision by the annotation in tags (`gold`), the alternatives and the incorrect spans."""
        wrong = NO_SEGMENTS
        if keys.alternatives or keys.incorrect:
            from . import supervision
        if keys.alternatives:
            supervision.allow_alternatives(gold, self.annotation, examples, keys.alternatives, report)
        if keys.incorrect:
            wrong = supervision.forbid_incorrect(gold, self.annotation, examples, keys.incorrect, report, starts)
        clamp, steps = self.encode_clamp(gold.clamp, starts)
        return Supervision(clamp, gold.unset, wrong, steps)

    def encode_spans(self, spans: Segments) -> "EncodedSpans":
        """How tags encode spans (label -1: none). RAISES (ValueError): CRF828 if that depends on the span before."""
        from .supervision import EncodedSpans

        length = spans.end - spans.start
        starts = np.append(0, np.cumsum(length))
        named = Segments(starts[:-1], starts[1:], spans.label)
        found = spans.label >= 0
        if self.annotation.needs_neighbours:
            raise ValueError(Errors.CRF828.format(name=self.annotation.name))
        states = self.annotation.path(Segments(*(column[found] for column in named)), starts)
        return EncodedSpans(states.astype(np.int64), np.ones(len(states), dtype=np.int64), starts)

    def check_docs(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): For Docs without annotation that the model needs."""


class Rules(NamedTuple):
    """Rules compiled for the present labels."""

    all: "RuleSet"
    matcher: "RuleMatcher"
    # The same rules for other states of the same tags: makes them, and what it has made
    make: "Callable[[Decoding], Rules]"
    made: "dict[Decoding, Rules]"

    def over(self, decoding: Decoding) -> "Rules":
        """The rules compiled for the states of another decoding."""
        if decoding not in self.made:
            self.made[decoding] = self.make(decoding)
        return self.made[decoding]


class Parts(NamedTuple):
    """The parts by which a component predicts and learns."""

    name: str
    model: Model
    annotation: Annotation
    decoding: Decoding
    loss: LabelledLoss
    rules: Optional[Rules]
    settings: Settings
    warned: set[str]  # the warnings that are given once and have been given

    @property
    def labels(self) -> tuple[str, ...]:
        return self.annotation.labels

    def warn(self, message: str, **values: object) -> None:
        logger.warning(message.format(name=self.name, **values))

    def warn_once(self, message: str, **values: object) -> None:
        if message not in self.warned:
            self.warned.add(message)
            self.warn(message, **values)


class Question(NamedTuple):
    """The part of some Docs that prediction still has to label."""

    parts: Parts  # that decode the scores
    docs: DocBatch
    scores: Any
    clamp: Any
    asked: DocBatch  # the Docs as a whole
    restricted: Callable[[Any], Any]  # the same part of other scores of the Docs
    starts: NDArray[np.int64]  # where the sequences started before tokens were left out
    settled: Optional[NDArray[np.bool_]] = None  # [T] tokens whose label is known
    kept: Optional[NDArray[np.int64]] = None  # tokens that take part, None for all

    def tags(self, tags: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tags of all tokens (int32[T]) from tags of the tokens that take part; -1 for the others."""
        return tags if self.kept is None else spread(tags, self.kept, int(self.starts[-1]), -1)


def without_edges(parts: Parts, docs: DocBatch, scores: Any, settled: Optional[Bools] = None) -> tuple[Parts, Any]:
    """Exclude the labellings of Docs that have white space at an edge of a span. The parts and the scores stay the same for Docs
    without white space, and for components whose spans may have it there.

    settled (bool[T]): Tokens whose label is known, and stays.
    RETURNS (Parts, Any): The parts that decode the scores, and the scores.
    """
    if parts.annotation.space_edges or not docs.is_space.any():
        return parts, scores
    blank = docs.is_space if settled is None else docs.is_space & ~settled
    decoding = parts.decoding.over_bridges()
    scores = parts.decoding.bridges.widened(scores, blank)
    if decoding is parts.decoding:
        return parts, scores
    return parts._replace(decoding=decoding, rules=None if parts.rules is None else parts.rules.over(decoding)), scores
