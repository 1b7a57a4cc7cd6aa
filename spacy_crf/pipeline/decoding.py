"""How a component decodes the scores of a structure.

Labellings are tags in all arguments and results; for segments these are BIO tags.
"""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from ..inference.linear_chain import segments_of
from ..inference.structure import ScoresOrWork, SpanStates, Structure, Work
from ..losses.clamped import LabelledLoss
from ..models.structure import StructureNode
from ..schemes import NO_SEGMENTS, Segments, TransitionMask
from ..types import Bools, ChainClamp, ChainScores, Floats, Ints, PathScores, Settings
from .annotation.entities import Annotation, GoldReport, Keys, Supervision

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded, Documents, KeptRules
    from ..constraints.rule_set import RuleSet
    from ..constraints.settings import Constraints
    from .rule_matching import RuleMatcher
    from .supervision import EncodedSpans

logger = logging.getLogger("spacy.spacy_crf")
States = NDArray[np.int32]


class Decoder:
    """The setting `decoder`: finds labellings and their probabilities in place of the exact answers of the model's structure.
    Another package registers a subclass under `misc`.
    """

    def searched(self, decoding: "Decoding") -> Structure:
        """The structure that finds best labellings (`viterbi`, `n_best`) in place of that of the model, for the same scores.

        decoding (Decoding): The decoding of a component, with its model and annotation.
        RAISES (ValueError): If the decoder does not fit the model.
        """
        return decoding.structure

    def distribution(self, batch: Any, d: Optional[int]) -> Any:
        """The distribution over the labellings of some Docs.

        batch (Batch): The Docs with their scores, a `probabilities.Batch`.
        d (Optional[int]): The index of a single Doc in the batch; None for all Docs.
        RETURNS (Distribution): A `Distribution`, or an object with its methods.
        """
        return batch.by(batch.scores, d)


class Decoding:
    """Decoding of linear chains whose states each belong to one tag; clamps are bool[T, S]. `SegmentDecoding` overrides it for
    segments.

    model (Model): The model that computes the scores.
    annotation (Annotation): The labels, and their tags.
    """

    always_joins = True  # whether the sequences of a Doc are joined even if no rule ties them together
    longest: Optional[States] = None  # tokens of the longest segment of each state: int32[S]
    batches: Any = None  # the class that replaces `probabilities.Batch`; None for the usual one
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
        """From now on, search by a decoder that fits the model; None for the exact search of the structure."""
        self.searched = self.structure if decoder is None else decoder.searched(self)
        self.decoder = decoder

    def _take_states(self, tag_of: Ints) -> None:
        """Set the attributes that depend on the states. `tag_of`: the tag of each state, in rising order (int64[S])."""
        self.tag_of = tag_of
        n_tags = len(self.annotation.tag_labels())
        # `path` turns a tag into the first of its states
        self._first = np.searchsorted(self.tag_of, np.arange(n_tags))
        self._are_tags = len(self.tag_of) == n_tags  # whether each tag has a single state
        # The break between sequences is an additional state and tag
        self.tags_and_break = np.append(self.tag_of, n_tags)
        self.tag_spans: SpanStates = self.annotation.span_states()  # how tags encode spans
        self.spans = self.tag_spans
        if not self._are_tags:
            self.spans = self.tag_spans.over(self.tag_of)  # pyright: ignore[reportArgumentType]  any whole numbers
        self.label_of_states = self.spans.label_of[:-1]  # int64[S] -1 for none
        self.n_states = len(self.label_of_states)
        # Weights may belong to more than states: the names of these parts, and the label of each state and part (int64[N], -1 for
        # none)
        self.further_names: list[str] = []
        self.label_of_names = self.label_of_states
        self.outside = self.tag_spans.offset - 1  # tag of tokens that lost their span; -1 if they get no tag

    # ------------------------------------------------------------------------------------------------- white space

    @cached_property
    def bridges(self) -> Bridges:
        """The additional states for Docs with white space, whose spans may not begin or end with it."""
        bridges = Bridges.of(self.mask(), self.spans)
        node: StructureNode = self.model.attrs["node"]
        return bridges if node.gives is ChainScores else bridges.masked()

    @cached_property
    def _over_bridges(self) -> "Decoding":
        decoding = copy.copy(self)
        decoding._take_states(self.tag_of[self.bridges.tag_of])
        return decoding

    def over_bridges(self) -> "Decoding":
        """The decoding of scores to which `bridges` have added states; the decoding itself if they have added none."""
        if self.bridges.graph is None:
            return self
        decoding = self._over_bridges
        # The cached decoding follows `use`
        decoding.searched = self.searched
        decoding.decoder = self.decoder
        return decoding

    # ------------------------------------------------------------------------------------------------------ states

    @property
    def state_labels(self) -> list[str]:
        """The label of each state, "O" for none."""
        labels = self.annotation.tag_labels()
        return [labels[tag] for tag in self.tag_of]

    @property
    def spans_may_touch(self) -> bool:
        """Whether a span may begin where another span of the same label ends. With IO tags the two would be one span."""
        # The answer for tags holds for their states too
        continues, first = self.tag_spans
        if continues is None:  # each span is a segment
            return True
        have_several_tags = np.diff(first) > 1  # [L]
        continue_themselves = np.diag(continues)[first[0] :]
        return bool(have_several_tags.any() or not continue_themselves.any())

    def mask(self) -> TransitionMask:
        """Transitions between states that the scheme allows."""
        transitions, first, last = self.annotation.mask()
        tag_of = self.tag_of
        return TransitionMask(transitions[np.ix_(tag_of, tag_of)], first[tag_of], last[tag_of])

    def only(self, structure: Structure, work: Work, path: States) -> Any:
        """The clamp that allows exactly one labelling: all paths of states with its tags.

        structure (Structure): The structure of the scores.
        work (Work): Prepared scores of the structure.
        path (int32[T]): One of these paths; -1 where no state is allowed.
        RETURNS (Clamp): The clamp, of the class that the structure takes.
        """
        if self._are_tags:
            return structure.only(work, path)
        tag_of = self.tags_and_break[: work.n_tags]  # [S], with the break if the scores have one
        tags = np.where(path >= 0, tag_of[path], -1)  # [T]
        return tags[:, np.newaxis] == tag_of

    # -------------------------------------------------------------------------------------------------- prediction

    def best_tags(self, scores: ScoresOrWork, clamp: Optional[ChainClamp]) -> States:
        """Tags of the most probable labelling under a clamp: int32[T]."""
        return self.tags(self.searched.viterbi(scores, clamp=clamp).states)

    def best_with_probabilities(self, scores: PathScores, clamp: Optional[ChainClamp]) -> tuple[States, Floats]:
        """RETURNS (int32[T], float64[N]): Tags of the most probable labelling under a clamp, and the probability of each of its
        spans."""
        # Prepared once for both questions
        work = self.structure.prepare(scores, clamp)
        tags = self.best_tags(work, None)
        segments = self.segments(tags, scores.starts)
        return tags, self.structure.span_probabilities(work, self.spans, segments)

    def segments(self, tags: States, starts: Ints) -> Segments:
        """The spans of a labelling.

        tags (int32[T]): The tags of the labelling.
        starts (int64[B + 1]): Where the sequences start.
        """
        opens = np.zeros(len(tags), dtype=bool)
        opens[starts[starts < len(tags)]] = True
        return segments_of(tags, self.tag_spans, opens)

    def encode_clamp(self, clamp: Any, starts: Ints) -> tuple[Any, Ints]:
        """The model's states that annotation allows, and the steps that it forbids.

        clamp (Clamp): The tags that annotation allows: bool[T, S'], or a `SegmentClamp` of segments.
        starts (int64[B + 1]): Where the sequences start.
        RETURNS (Clamp, int64[N, 3]): The states: bool[T, S], or a `SegmentClamp`; and the steps, each a token, a label, and
            whether the step into the token continues a span.
        """
        # States of one tag are allowed together
        tag_clamp, steps = self.annotation.encode_clamp(clamp, starts)
        return np.ascontiguousarray(tag_clamp[:, self.tag_of]), steps

    # ------------------------------------------------------------------------------------------------------- rules

    @property
    def special_search(self) -> Optional[Structure]:
        """The structure with which a decoder replaces the structure of the model in searches; None if it replaces none."""
        return None if self.searched is self.structure else self.searched

    def compile_rules(self, constraints: "Constraints") -> "RuleSet":
        """Compile rules for the present labels."""
        from ..constraints.automaton import SpanTags
        from ..constraints.rule_set import RuleSet

        tags = SpanTags(list(self.annotation.labels), self.label_of_states, self.spans.continues)
        return RuleSet(constraints, tags, self.mask(), self.special_search)

    def decode(
        self, rules: "RuleSet", documents: "Documents", doc_starts: Ints, kept: "Optional[KeptRules]" = None
    ) -> "Decoded":
        """The best labellings that keep the rules, as tags. The arguments are those of `constraints.decoding.decode`."""
        from ..constraints.decoding import decode

        decoded = decode(rules, documents, doc_starts, kept)
        return decoded._replace(tags=self.tags(decoded.tags))

    def tags(self, path: States) -> States:
        """The tags (int32[T]) of a path of states (int32[T]). Negative entries, which are no states, stay."""
        return path if self._are_tags else np.where(path >= 0, self.tag_of[path], path).astype(np.int32)

    def path(self, tags: States, starts: Ints) -> States:
        """A path of states (int32[T]) for tags of sequences that start at `starts`, with the first state of each tag."""
        return tags if self._are_tags else np.where(tags >= 0, self._first[tags], tags).astype(np.int32)

    def worth(self, expected: Scores) -> dict[str, Floats]:
        """For each state at each token, the probability that its tag is right there: a labelling with the state has so many more
        right tags on average.

        expected (Scores): The expected use of each score, such as the probability of each state (float64[T, S]).
        RETURNS (Dict[str, Floats]): These values by the name of the array of scores, for `Decoding.expected`.
        """
        # Rounding may leave probabilities slightly below 0 or above 1
        probabilities = np.clip(expected[0], 0.0, 1.0)
        if not self._are_tags:  # a state is worth as much as the other states of its tag
            probabilities = self.by_tag(probabilities)[:, self.tag_of]
        return {expected._fields[0]: probabilities}

    def by_tag(self, probabilities: Floats) -> Floats:
        """Probabilities of tags (float64[T, tags]): the sums of the `probabilities` of their states (float64[T, S])."""
        return np.minimum(np.add.reduceat(probabilities, self._first, axis=1), 1.0)

    def expected(self, scores: Scores, worth: dict[str, Floats]) -> Scores:
        """Scores whose best labelling has the largest expected number of right tags: the result of `worth`, and 0 elsewhere.
        Labellings that `scores` forbid (-inf) stay forbidden."""
        new_scores = {name: np.where(array > -np.inf, 0.0, -np.inf) for name, array in arrays.named(scores).items()}
        for name, array in worth.items():
            new_scores[name] += array
        return scores._replace(**new_scores)

    # ---------------------------------------------------------------------------------------------------- training

    def starts(self, docs: list[Doc]) -> Ints:
        """Bounds of the rows of scores of each sequence of `docs`: int64[B + 1]. RAISES (ValueError): As `check_docs`."""
        self.check_docs(docs)
        return self.model.attrs["node"].starts(DocBatch.of(docs))

    def bounds(self, docs: list[Doc]) -> Ints:
        """Bounds of the rows of scores of each Doc of a batch: int64[D + 1]."""
        return DocBatch.of(docs).bounds

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: Ints, keys: Keys, report: GoldReport
    ) -> Supervision:
        """Add the alternatives and the incorrect spans of the reference Docs to the annotation.

        gold (Supervision): The annotation in tags, which is changed in place.
        examples (List[Example]): The texts, whose sequences start at `starts` (int64[B + 1]).
        keys (Keys): Keys of ``doc.spans``.
        report (GoldReport): Gets the spans that cannot be used.
        RETURNS (Supervision): The supervision, in the states of the model.
        """
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
        """The states that encode each span by itself, without its neighbours.

        spans (Segments): The spans, which may overlap; label -1 stands for no label.
        RETURNS (EncodedSpans): The states, a piece for each token.
        RAISES (ValueError): CRF828 if the tags of a span depend on the span before.
        """
        from .supervision import EncodedSpans

        if self.annotation.needs_neighbours:
            raise ValueError(Errors.CRF828.format(name=self.annotation.name))
        # Move the spans so that each is a sequence of its own, laid end to end
        starts = np.append(0, np.cumsum(spans.end - spans.start))
        moved = Segments(starts[:-1], starts[1:], spans.label)
        states = self.annotation.path(moved.only(spans.label >= 0), starts)
        return EncodedSpans(states.astype(np.int64), np.ones(len(states), dtype=np.int64), starts)

    def check_docs(self, docs: list[Doc]) -> None:
        """Check that Docs have the annotation that the model needs. RAISES (ValueError): If they lack it."""


class Rules(NamedTuple):
    """Rules compiled for the present labels."""

    all: "RuleSet"
    matcher: "RuleMatcher"
    make: "Callable[[Decoding], Rules]"  # compiles the rules for the states of another decoding
    made: "dict[Decoding, Rules]"  # the results of `make` so far

    def over(self, decoding: Decoding) -> "Rules":
        """The rules compiled for the states of another decoding."""
        if decoding not in self.made:
            self.made[decoding] = self.make(decoding)
        return self.made[decoding]


class Warner:
    """Base of objects that warn in the name of a component."""

    name: str  # of the component
    warned: set[str]  # messages that `warn_once` has logged

    def warn(self, message: str, **values: object) -> None:
        """Log a warning with the name of the component and other `values` in its `message`."""
        logger.warning(message.format(name=self.name, **values))

    def warn_once(self, message: str, **values: object) -> None:
        """Log a warning that the component gives once in its life, see `warn`."""
        if message not in self.warned:
            self.warned.add(message)
            self.warn(message, **values)


@dataclass
class Parts(Warner):
    """The parts of a component by which it predicts and learns."""

    name: str
    model: Model
    annotation: Annotation
    decoding: Decoding
    loss: LabelledLoss
    rules: Optional[Rules]
    settings: Settings
    warned: set[str]


class Question(NamedTuple):
    """The part of some Docs that prediction still has to label."""

    parts: Parts  # the parts that decode `scores`
    docs: DocBatch  # the Docs, without tokens that are left out
    scores: PathScores
    clamp: Optional[ChainClamp]  # the states that the annotation of the Docs leaves; None for all
    asked: DocBatch  # the Docs with all tokens
    restricted: Callable[[PathScores], PathScores]  # cuts the same part out of other scores of the Docs
    starts: Ints  # [B + 1] where the sequences started before tokens were left out
    settled: Optional[Bools] = None  # [T] tokens whose label is known
    kept: Optional[Ints] = None  # tokens that are not left out; None for all

    def tags(self, tags: States) -> States:
        """Tags of all tokens (int32[T]) from the `tags` of the tokens that are kept; -1 for tokens that are left out."""
        return tags if self.kept is None else spread(tags, self.kept, int(self.starts[-1]), -1)


WithoutEdges = Callable[[Parts, DocBatch, PathScores, Optional[Bools]], tuple[Parts, PathScores]]  # see `without_edges`


def without_edges(
    parts: Parts, docs: DocBatch, scores: PathScores, settled: Optional[Bools] = None
) -> tuple[Parts, PathScores]:
    """Exclude the labellings of Docs in which a span begins or ends with white space. Nothing changes for Docs without white
    space, and for components that allow such spans.

    parts (Parts): The parts of the component.
    docs (DocBatch): The Docs, with the scores of the model (PathScores).
    settled (bool[T]): Tokens whose label is known, and stays.
    RETURNS (Parts, PathScores): The parts that decode the new scores, and these scores, which may have more states.
    """
    if parts.annotation.space_edges or not np.count_nonzero(docs.is_space):
        return parts, scores
    blank = docs.is_space if settled is None else docs.is_space & ~settled
    decoding = parts.decoding.over_bridges()
    scores = parts.decoding.bridges.widened(scores, blank)  # pyright: ignore[reportArgumentType]  of chains or segments
    if decoding is parts.decoding:
        return parts, scores
    rules = None if parts.rules is None else parts.rules.over(decoding)
    return replace(parts, decoding=decoding, rules=rules), scores
