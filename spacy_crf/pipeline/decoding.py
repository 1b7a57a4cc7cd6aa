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
        """The distribution over the labellings of some Docs.

        batch (Batch): The Docs, see `probabilities.Batch`.
        d (Optional[int]): The place of a single Doc; None for all of them.
        RETURNS (Distribution): Or an object with its methods.
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
    batches: Any = None  # the class of its batches in place of `probabilities.Batch`; None for that
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

    def _take_states(self, tag_of: Ints) -> None:
        """Set what depends on the tag of each state, in order: int64[S]."""
        annotation = self.annotation
        self.tag_of = tag_of
        n_tags = len(annotation.tag_labels())
        # The first state of each tag stands for the tag where a labelling gives tags alone
        self._first = np.searchsorted(self.tag_of, np.arange(n_tags))
        self._are_tags = len(self.tag_of) == n_tags  # whether each tag has one state
        # The break between sequences is an additional state and tag
        self.tags_and_break = np.append(self.tag_of, n_tags)
        self.tag_spans: SpanStates = annotation.span_states()  # how tags encode spans
        self.spans = self.tag_spans
        if not self._are_tags:
            self.spans = self.tag_spans.over(self.tag_of)  # pyright: ignore[reportArgumentType]  any whole numbers
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
        over = self._over_bridges  # cached, while these two change
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
        if continues is None:
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
        """The clamp that allows exactly the labelling of a path.

        structure (Structure): Whose labelling it is.
        work (Work): Prepared scores of the structure.
        path (int32[T]): The states; states of one tag are one labelling.
        RETURNS (Clamp): In the class that the structure takes.
        """
        if self._are_tags:
            return structure.only(work, path)
        tag_of = self.tags_and_break[: work.n_tags]
        return np.where(path >= 0, tag_of[path], -1)[:, np.newaxis] == tag_of

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

        tags (int32[T]): Its tags.
        starts (int64[B + 1]): Where the sequences start.
        """
        opening = np.zeros(len(tags), dtype=bool)
        opening[starts[starts < len(tags)]] = True
        return segments_of(tags, self.tag_spans, opening)

    def encode_clamp(self, clamp: Any, starts: Ints) -> tuple[Any, Ints]:
        """The model's states that annotation allows, and the steps that it forbids, see `Scheme.encode_clamp`.

        clamp (Clamp): The tags that annotation allows: bool[T, S'], or a `SegmentClamp` of segments.
        starts (int64[B + 1]): Where the sequences start.
        RETURNS (Clamp, int64[N, 3]): bool[T, S], or a `SegmentClamp`; and the steps.
        """
        # States of one tag are allowed together
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

    def decode(
        self, rules: "RuleSet", documents: "Documents", doc_starts: Ints, kept: "Optional[KeptRules]" = None
    ) -> "Decoded":
        """The best labellings that keep the rules, as tags. For the arguments see `constraints.decoding.decode`."""
        from ..constraints.decoding import decode

        decoded = decode(rules, documents, doc_starts, kept)
        return decoded._replace(tags=self.tags(decoded.tags))

    def tags(self, path: States) -> States:
        """The tags (int32[T]) of a path of states (int32[T]); negative entries stay."""
        return path if self._are_tags else np.where(path >= 0, self.tag_of[path], path).astype(np.int32)

    def path(self, tags: States, starts: Ints) -> States:
        """A path of states (int32[T]) for tags of sequences that start at `starts`, with the first state of each tag."""
        return tags if self._are_tags else np.where(tags >= 0, self._first[tags], tags).astype(np.int32)

    def worth(self, expected: Scores) -> dict[str, Floats]:
        """Expected number of right tags for each part of a labelling.

        expected (Scores): The expected use of each score, such as the probability of each state (float64[T, S]).
        RETURNS (Dict[str, Floats]): By names of arrays of scores; `Decoding.expected` adds up these values.
        """
        # Rounding may leave probabilities slightly below 0 or above 1
        of_states = np.clip(expected[0], 0.0, 1.0)
        worth = of_states if self._are_tags else self.by_tag(of_states)[:, self.tag_of]
        return {expected._fields[0]: worth}

    def by_tag(self, probabilities: Floats) -> Floats:
        """Probabilities of tags (float64[T, tags]): the sums of the `probabilities` of their states (float64[T, S])."""
        return np.minimum(np.add.reduceat(probabilities, self._first, axis=1), 1.0)

    def expected(self, scores: Scores, worth: dict[str, Floats]) -> Scores:
        """Scores whose best labelling has the largest expected number of right tags: the result of `worth`, and 0 elsewhere. What
        `scores` forbid (-inf) stays forbidden."""
        # Scores of 0 leave all allowed labellings equal, and -inf forbids as before
        found = {name: np.where(array > -np.inf, 0.0, -np.inf) for name, array in arrays.named(scores).items()}
        for name, array in worth.items():
            found[name] += array
        return scores._replace(**found)

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
        """Add what the reference Docs say besides the annotation itself: the alternatives and the incorrect spans.

        gold (Supervision): The annotation in tags, which is changed in place.
        examples (List[Example]): The texts, whose sequences start at `starts` (int64[B + 1]).
        keys (Keys): Keys of ``doc.spans``.
        report (GoldReport): Gets the spans that cannot be used.
        RETURNS (Supervision): In the states of the model.
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
        """How tags encode each of some spans, wherever they are.

        spans (Segments): Label -1 stands for none.
        RETURNS (EncodedSpans): A piece for each token.
        RAISES (ValueError): CRF828 if the tags of a span depend on the span before.
        """
        from .supervision import EncodedSpans

        if self.annotation.needs_neighbours:
            raise ValueError(Errors.CRF828.format(name=self.annotation.name))
        # The spans as if they were sequences of their own, laid end to end
        starts = np.append(0, np.cumsum(spans.end - spans.start))
        named = Segments(starts[:-1], starts[1:], spans.label)
        states = self.annotation.path(named.only(spans.label >= 0), starts)
        return EncodedSpans(states.astype(np.int64), np.ones(len(states), dtype=np.int64), starts)

    def check_docs(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): For `docs` without annotation that the model needs."""


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


class Warner:
    """Base of what warns in the name of a component."""

    name: str  # of the component
    warned: set[str]  # the warnings that are given once and have been given

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
    """The parts by which a component predicts and learns."""

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

    parts: Parts  # that decode the scores
    docs: DocBatch
    scores: PathScores
    clamp: Optional[ChainClamp]
    asked: DocBatch  # the Docs as a whole
    restricted: Callable[[PathScores], PathScores]  # the same part of other scores of the Docs
    starts: Ints  # [B + 1] where the sequences started before tokens were left out
    settled: Optional[Bools] = None  # [T] tokens whose label is known
    kept: Optional[Ints] = None  # tokens that take part, None for all

    def tags(self, tags: States) -> States:
        """Tags of all tokens (int32[T]) from `tags` of the tokens that take part; -1 for the others."""
        return tags if self.kept is None else spread(tags, self.kept, int(self.starts[-1]), -1)


def without_edges(
    parts: Parts, docs: DocBatch, scores: PathScores, settled: Optional[Bools] = None
) -> tuple[Parts, PathScores]:
    """Exclude the labellings of Docs that have white space at an edge of a span. The parts and the scores stay the same for Docs
    without white space, and for components whose spans may have it there.

    parts (Parts): Of the component.
    docs (DocBatch): The Docs, with the scores of the model (PathScores).
    settled (bool[T]): Tokens whose label is known, and stays.
    RETURNS (Parts, PathScores): The parts that decode the scores, and the scores.
    """
    if parts.annotation.space_edges or not docs.is_space.any():
        return parts, scores
    blank = docs.is_space if settled is None else docs.is_space & ~settled
    decoding = parts.decoding.over_bridges()
    scores = parts.decoding.bridges.widened(scores, blank)  # pyright: ignore[reportArgumentType]  of chains or segments
    if decoding is parts.decoding:
        return parts, scores
    rules = None if parts.rules is None else parts.rules.over(decoding)
    return replace(parts, decoding=decoding, rules=rules), scores
