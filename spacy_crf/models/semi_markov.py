"""The semi-Markov chain: scores of tokens, of whole segments and of their lengths, and transitions between segments.

The model's output is ``SegmentScores``. State 0 is ``O``, whose segments have one token; state 1 + l is label l.
"""

from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from .. import checks
from ..arrays import per_position
from ..checks import ByLabel
from ..inference.semi_markov import SemiMarkov as SemiMarkovInference
from ..inference.semi_markov import begins_of, with_listed
from ..types import SegmentScores, Settings
from .emissions import Emissions, total
from .linear_chain import put_together, scored_tokens
from .node import check_array, check_equal, gives
from .segments import EncodedSegments, SegmentEncoderNode, SpanScores, part_of_spans, total_of_spans
from .structure import SharedScores, StructureNode

_MOST_TOKENS = 1 << 16  # of a segment: every length has a row in tables
LongestSegment = Union[None, int, float, ByLabel]


class SegmentsNode(StructureNode):
    """Node of a semi-Markov chain: any segment may follow any other. The attribute "longest" (int32[S]) says how many tokens a
    segment of each state may have.
    """

    gives = SegmentScores
    traits = StructureNode.traits._replace(
        labelled="segments",
        learned=(*StructureNode.traits.learned, "longest"),
        meaning=("longest_segment",),
        params=(*StructureNode.traits.params, "lengths"),
    )
    structure = SemiMarkovInference()

    def join(self, outputs: tuple, shared: SharedScores) -> SegmentScores:
        """The potentials of segments, from the `outputs` of layers, whose scores are added, and the `shared` scores."""
        scores, token_transitions, starts = total(_each(outputs, Emissions))
        spans = total_of_spans(_each(outputs, SpanScores), scores)
        transitions = shared["transitions"] if token_transitions is None else token_transitions + shared["transitions"]
        return SegmentScores(
            tokens=scores + spans.tokens,
            begins=spans.begins,
            ends=spans.ends,
            lengths=shared["lengths"],
            spans=spans.spans,
            transitions=transitions,
            first=shared["first"],
            last=shared["last"],
            listed=spans.listed,
            starts=starts,
        )

    def part(self, d_scores: SegmentScores, outputs: tuple) -> tuple[tuple, SharedScores]:
        """Derivatives with respect to the `outputs` of layers, and with respect to the shared scores, from `d_scores`."""
        token_transitions = d_scores.transitions if per_position(d_scores) else None
        emissions = Emissions(d_scores.tokens, token_transitions, np.asarray(d_scores.starts))
        spans = SpanScores(d_scores.begins, d_scores.ends, d_scores.tokens, d_scores.spans, d_scores.listed)

        def derivative_of(output: NamedTuple) -> Any:
            if isinstance(output, Emissions):
                return emissions
            if isinstance(output, SpanScores):
                return part_of_spans(spans, output.listed)
            # An encoder's output has both
            return EncodedSegments(*map(derivative_of, output))

        return tuple(map(derivative_of, outputs)), self.shared_part(d_scores)

    def with_entries_of(self, scores: SegmentScores, other: SegmentScores) -> SegmentScores:
        """The scores with all spans that `other` lists."""
        if other.listed is None:
            return scores
        begin = begins_of(other.listed)
        with_spans, _, _ = with_listed(scores, begin, begin + other.listed.lengths)
        return with_spans

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of `model` for `n_states` states, with a row for each length of segments."""
        return {**super().shapes(model, n_states), "lengths": (self.longest(model), n_states)}

    def potentials_key(self, model: Model) -> NDArray[np.int32]:
        """The array of the longest segments of `model`, which `resize` replaces."""
        return model.attrs["longest"]

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: a state has lengths up to its longest segment."""
        # [K, S] which lengths each state may have
        longest = model.attrs["longest"]
        lengths = np.arange(1, self.longest(model) + 1)[:, np.newaxis] <= longest
        return {**dict.fromkeys(StructureNode.traits.params, np.True_), "lengths": lengths}

    def weighed(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model` that have a weight; lengths of segments other than ``O`` have one if a
        template reads lengths.
        """
        lengths = self.possible(model)["lengths"].copy()
        if model.has_ref("segments"):
            lengths &= model.get_ref("segments").attrs["segment_features"].feature_set.has_length
        lengths[:, 0] = False
        return {**super().weighed(model), "lengths": lengths}

    def longest(self, model: Model) -> int:
        """How many tokens a segment of any state of `model` may have."""
        return int(model.attrs["longest"].max())

    def resize(self, model: Model, n_states: int) -> None:
        """Add states; segments of new labels may be as long as the longest of other labels.

        model (Model): The model.
        n_states (int): The new number of states.
        """
        longest = model.attrs["longest"]
        added = np.full(max(0, n_states - len(longest)), longest.max(), dtype=np.int32)
        if len(added):
            model.attrs["longest"] = np.concatenate([longest, added])
        super().resize(model, n_states)

    def check(self, model: Model, n_states: int) -> None:
        """Check the longest segments of `model` for `n_states` states. RAISES (ValueError): CRF509."""
        longest = model.attrs["longest"]
        check_array("longest", longest, (n_states,), np.int32)
        check_equal("longest", bool((longest >= 1).all() and (longest <= _MOST_TOKENS).all()), True)
        if model.has_ref("segments"):
            found = model.get_ref("segments").attrs["segment_features"].longest
            check_equal("longest segment", found, int(longest.max()))
        super().check(model, n_states)


def _each(outputs: tuple, kind: type) -> list:
    """The outputs of all layers that are of class `kind`; an encoder's output has both kinds."""
    parts = []
    for output in outputs:
        parts += output if isinstance(output, EncodedSegments) else [output]
    return [part for part in parts if isinstance(part, kind)]


def SemiMarkov(
    emissions: Optional[Model[list[Doc], Emissions]] = None,
    segments: Optional[Model[list[Doc], SpanScores]] = None,
    tok2vec: Optional[Model[list[Doc], list[Floats2d]]] = None,
    hidden_width: int = 0,
    dropout: float = 0.0,
    longest_segment: LongestSegment = None,
    possible_transitions: bool = False,
    joint: Optional[Settings] = None,
) -> Model[list[Doc], SegmentScores]:
    """A first-order semi-Markov chain (Sarawagi & Cohen 2004) whose segment scores are the sum of the scores of its parts.

    emissions (Model): Sums of weights of features of tokens, from SparseEmissions or HashedEmissions.
    segments (Model): Sums of weights of features of segments, from SparseSegments.
    tok2vec (Model): An encoder, or a listener to one before the component: scores of the tokens of a segment, of its first and
        its last, and the mean of all.
    hidden_width (int), dropout (float), joint (dict): See `LinearChain`.
    longest_segment (Union[int, float, dict]): Tokens of the longest segment: one number for all labels, or one for each label; a
        fraction is a quantile of the lengths in the training data, None is their maximum.
    possible_transitions (bool): Whether every pair of labels gets a weight, not only pairs seen in training. Other pairs stay
        possible, with a weight of zero.
    RAISES (ValueError): CRF020 for an impossible longest segment.
    """
    owner = "SemiMarkov"
    layers, joint_settings = scored_tokens(owner, emissions, tok2vec, hidden_width, dropout, joint, SegmentEncoderNode)
    if segments is not None:
        checks.expect(
            gives(segments) is SpanScores,
            owner,
            "segments",
            segments,
            "a model of segments, such as spacy_crf.SparseSegments.v1; or nothing",
        )
        layers["segments"] = segments
        if tok2vec is not None:
            segments.attrs["lr_scale"] = joint_settings.sparse_rate
    settings = {"possible_transitions": checks.flag(owner, "possible_transitions", possible_transitions)}
    settings |= {"longest_segment": _check_longest(longest_segment), "longest": None}
    return put_together("semi_markov", SegmentsNode, layers, joint_settings, **settings)


def _check_longest(value: LongestSegment) -> LongestSegment:
    """Check the setting `longest_segment`. RETURNS: The setting, as a dict if it is by label. RAISES (ValueError): CRF020."""

    def possible(number) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= _MOST_TOKENS

    if isinstance(value, (dict, list)):
        value = checks.by_label("spacy_crf.SemiMarkov", "longest_segment", value, "numbers of tokens")
        valid = all(map(possible, value.values()))
    elif isinstance(value, float):
        valid = 0 < value <= 1
    else:
        valid = value is None or possible(value)
    must = f"null (the longest annotated segment of each label), a number of tokens from 1 to {_MOST_TOKENS}, a quantile of the "
    must += "annotated lengths such as 0.99, or a table from labels to numbers of tokens"
    checks.expect(valid, "spacy_crf.SemiMarkov", "longest_segment", value, must)
    return value


def longest_of(setting: LongestSegment, labels: list[str], lengths: dict[str, list[int]]) -> NDArray[np.int32]:
    """How many tokens a segment of each state may have.

    setting (LongestSegment): The setting of the config.
    labels (list[str]): The labels.
    lengths (dict[str, list[int]]): The lengths of the annotated segments of each label.
    RETURNS (int32[S]): 1 for ``O``; labels without setting and annotation get the maximum of the others.
    RAISES (ValueError): CRF846 for a setting of an unknown label.
    """
    if isinstance(setting, int):
        return np.array([1] + [setting] * len(labels), dtype=np.int32)
    quantile = setting if isinstance(setting, float) else 1.0
    by_label = setting if isinstance(setting, dict) else {}
    checks.labels("longest_segment", by_label, labels)
    longest = {}
    for label, annotated in lengths.items():
        if annotated:
            # One of the lengths that occur, not a value between two of them
            longest[label] = int(np.ceil(np.quantile(annotated, quantile, method="inverted_cdf")))
    longest.update(by_label)
    default = max(longest.values(), default=1)
    return np.array([1] + [longest.get(label, default) for label in labels], dtype=np.int32)
