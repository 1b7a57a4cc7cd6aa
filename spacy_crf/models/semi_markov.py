"""The semi-Markov chain: scores of tokens, of whole segments and of their lengths, and transitions between segments.

The model's output is ``SegmentScores``. State 0 is ``O``, whose segments have one token; state 1 + l is label l.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model

from .. import checks
from ..errors import Errors
from ..inference.semi_markov import SemiMarkov as SemiMarkovInference
from ..inference.threads import default_threads, run_chunks
from ..losses.clamped import ClampedLoss
from ..types import Floats, SegmentClamp, SegmentScores
from .corpus import ChainSums, CorpusEmissions
from .emissions import AnnotatedDocs, Corpus, Emissions, SparseFeatures, check_emissions, resize_emissions
from .kept import Kept, check_array, check_equal, check_weights
from .linear_chain import check_met, counted, resized_observed
from .objective import LATER, Evidence, places_of_observed
from .parameters import StructureModel, enlarged, set_moved
from .segments import (
    PLACES,
    PreparedSegments,
    SegmentFeatures,
    SpanScores,
    SparseSegments,
    resize_segments,
    score_segments,
)
from .sparse_rows import Part, parts_for

_PARAMS = ("transitions", "first", "last", "lengths")
_MOST_TOKENS = 1 << 16  # of a segment: every length has a row in tables
LongestSegment = Union[None, int, float, dict[str, int]]


def SemiMarkov(
    emissions: Model[list[Doc], Emissions],
    segments: Optional[Model[list[Doc], SpanScores]] = None,
    longest_segment: LongestSegment = None,
    possible_transitions: bool = False,
) -> Model[list[Doc], SegmentScores]:
    """A first-order semi-Markov chain (Sarawagi & Cohen 2004).

    emissions (Model): Scores of labels at tokens, summed over each segment: SparseEmissions or Tok2VecEmissions.
    segments (Model): Scores of segments; SparseSegments with the preset's templates if None.
    longest_segment (Union[int, float, dict]): Tokens of the longest segment: one number for all labels, or one for each;
        a fraction is a quantile of the lengths in the training data, and None their largest.
    possible_transitions (bool): Give every pair of labels a weight, not only those seen in training. The others stay
        possible, with a weight of zero.
    RAISES (ValueError): CRF125 for a longest segment that can't be.
    """
    check_emissions("SemiMarkov", emissions)
    segments = SparseSegments() if segments is None else segments
    is_sparse = isinstance(segments, Model) and "segment_features" in segments.attrs
    checks.expect(
        is_sparse, "SemiMarkov", "segments", segments, "a model of segments, such as spacy_crf.SparseSegments.v1"
    )
    return StructureModel(
        "semi_markov",
        _forward,
        init=_init,
        layers=[emissions, segments],
        refs={"emissions": emissions, "segments": segments},
        params=dict.fromkeys(_PARAMS),
        attrs={
            "possible_transitions": checks.flag("SemiMarkov", "possible_transitions", possible_transitions),
            "structure": SemiMarkovInference(),
            "gives": SegmentScores,
            "longest_segment": _check_longest(longest_segment),
            "allowed": None,  # for the component: any segment may follow any other
            "longest": None,  # int32[S] tokens of the longest segment of each state, set by the component
            "met": [0, 0],  # tokens and sequences that training met
            "observed": None,  # uint8[S + 2, S]: which transitions, firsts and lasts have a weight
            "kept": Kept(("longest", "observed", "met"), ("longest_segment",), _check),
            "resize": resize_semi_markov,
        },
    )


def _check_longest(value: LongestSegment) -> LongestSegment:
    def possible(number) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= _MOST_TOKENS

    if isinstance(value, dict):
        valid = all(map(possible, value.values()))
    elif isinstance(value, float):
        valid = 0 < value <= 1
    else:
        valid = value is None or possible(value)
    if not valid:
        raise ValueError(Errors.CRF125.format(value=value, most=_MOST_TOKENS))
    return value


def longest_of(setting: LongestSegment, labels: list[str], lengths: dict[str, list[int]]) -> NDArray[np.int32]:
    """Tokens of the longest segment of each state.

    setting: What the config says, lengths (dict): of the annotated segments of each label.
    RETURNS (int32[S]): 1 for ``O``; labels without a setting and without annotation may be as long as the longest of the others.
    RAISES (ValueError): CRF126 for a setting of a label that is not there.
    """
    if isinstance(setting, int):
        return np.array([1] + [setting] * len(labels), dtype=np.int32)
    quantile = setting if isinstance(setting, float) else 1.0
    given = setting if isinstance(setting, dict) else {}
    for label in given:
        if label not in labels:
            raise ValueError(Errors.CRF126.format(label=label, known=", ".join(labels)))
    measured = {
        label: int(np.ceil(np.quantile(found, quantile, method="inverted_cdf")))
        for label, found in lengths.items()
        if found
    }
    measured.update(given)
    rest = max(measured.values(), default=1)
    return np.array([1] + [measured.get(label, rest) for label in labels], dtype=np.int32)


def segment_scores(
    model: Model, emissions: Emissions, spans: SpanScores, transitions, first, last, lengths
) -> SegmentScores:
    """Potentials from the parts of the model, in float64, with -inf beyond the longest segments."""
    longest: NDArray[np.int32] = model.attrs["longest"]
    possible = np.arange(1, len(lengths) + 1)[:, None] <= longest
    if emissions.transitions is not None:
        transitions = emissions.transitions + transitions
    return SegmentScores(
        emissions.scores + spans.tokens,
        spans.begins,
        spans.ends,
        np.where(possible, lengths, -np.inf),
        spans.spans,
        np.asarray(transitions),
        np.asarray(first),
        np.asarray(last),
        spans.listed,
        emissions.starts,
    )


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[SegmentScores, Callable]:
    emissions, backprop_emissions = model.get_ref("emissions")(docs, is_train)
    spans, backprop_spans = model.get_ref("segments")(docs, is_train)
    shared = (model.get_param(name).astype(np.float64) for name in _PARAMS)
    scores = segment_scores(model, emissions, spans, *shared)

    def backprop(d_scores: SegmentScores) -> list[Doc]:
        d_transitions, per_position = d_scores.transitions, None
        if d_transitions.ndim == 3:
            d_transitions, per_position = d_transitions.sum(axis=0), d_transitions
        observed = model.attrs["observed"]
        has_length = has_lengths(model)
        for name, gradient, mask in zip(
            _PARAMS,
            (d_transitions, d_scores.first, d_scores.last, d_scores.lengths),
            (observed[:-2], observed[-2], observed[-1], has_length),
        ):
            model.inc_grad(name, np.where(mask, gradient, 0.0).astype(np.float32))
        backprop_spans(SpanScores(d_scores.begins, d_scores.ends, d_scores.tokens, d_scores.spans, d_scores.listed))
        return backprop_emissions(Emissions(d_scores.tokens, per_position, d_scores.starts))

    return scores, backprop


def has_lengths(model: Model) -> NDArray[np.bool_]:
    """Which lengths have a weight: bool[K, S]. All that are possible, but for ``O``, if a template asks for them."""
    longest: NDArray[np.int32] = model.attrs["longest"]
    possible = np.arange(1, longest.max() + 1)[:, None] <= longest
    possible[:, 0] = False
    features: SegmentFeatures = model.get_ref("segments").attrs["segment_features"]
    return possible & features.feature_set.has_length


def _init(model: Model, X: Optional[Corpus] = None, Y: Optional[tuple[Vocab, int]] = None) -> None:
    emissions, segments = model.get_ref("emissions"), model.get_ref("segments")
    if X is None or Y is None:
        emissions.initialize()
        return
    vocab, n_states = Y

    def of_states():
        for annotated in X():
            yield annotated._replace(allowed=annotated.allowed.states)

    met = list(model.attrs["met"])
    emissions.initialize(X=counted(of_states, met), Y=Y)
    model.attrs["met"] = met
    segments.initialize(X=X, Y=(vocab, n_states, int(model.attrs["longest"].max())))
    resize_semi_markov(model, n_states)
    observed = model.attrs["observed"].astype(bool)
    if model.attrs["possible_transitions"]:
        observed[:] = True
    else:
        for batch in X():
            observed |= _observed(batch.allowed, batch.starts)
    model.attrs["observed"] = observed.astype(np.uint8)


def _observed(clamp: SegmentClamp, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Transitions, firsts and lasts of tokens whose annotation leaves one state: bool[S + 2, S]."""
    n_states = clamp.states.shape[1]
    observed = np.zeros((n_states + 2, n_states), dtype=bool)
    state = np.where(clamp.states.sum(axis=1) == 1, clamp.states.argmax(axis=1), -1)
    begin, end = starts[:-1][starts[:-1] < starts[1:]], starts[1:][starts[:-1] < starts[1:]]
    for row, tokens in ((-2, begin), (-1, end - 1)):
        observed[row, state[tokens][state[tokens] >= 0]] = True
    step = clamp.must_begin.copy()
    step[begin] = False
    [at] = np.nonzero(step)
    at = at[(state[at] >= 0) & (state[at - 1] >= 0)]
    observed[state[at - 1], state[at]] = True
    return observed


def _check(model: Model, n_states: int) -> None:
    longest = model.attrs["longest"]
    check_array("longest", longest, (n_states,), np.int32)
    check_equal("longest", bool((longest >= 1).all() and (longest <= _MOST_TOKENS).all()), True)
    check_equal("longest segment", model.get_ref("segments").attrs["segment_features"].longest, int(longest.max()))
    shapes = {"transitions": (n_states, n_states), "lengths": (int(longest.max()), n_states)}
    check_weights(model, {name: shapes.get(name, (n_states,)) for name in _PARAMS})
    check_array("observed", model.attrs["observed"], (n_states + 2, n_states), np.uint8)
    check_met(model.attrs["met"])


def resize_semi_markov(model: Model, n_states: int) -> None:
    """Makes room for new states behind those that are there, and for longer segments; the new weights are zero. A new label may
    be as long as the longest of the others."""
    resize_emissions(model.get_ref("emissions"), n_states)
    resize_segments(model.get_ref("segments"), n_states)
    before = model.get_param("first").shape[0] if model.has_param("first") else 0
    longest: NDArray[np.int32] = model.attrs["longest"]
    if len(longest) < n_states:
        added = np.full(n_states - len(longest), longest.max(), dtype=np.int32)
        longest = model.attrs["longest"] = np.concatenate([longest, added])
    shapes = {"transitions": (n_states, n_states), "lengths": (int(longest.max()), n_states)}
    for name in _PARAMS:
        shape = shapes.get(name, (n_states,))
        if before:
            set_moved(model, name, partial(enlarged, shape=shape))
        else:
            model.set_param(name, np.zeros(shape, dtype=np.float32))
    if before != n_states:
        possible = np.ones((n_states + 2, n_states), dtype=bool)
        model.attrs["observed"] = resized_observed(model.attrs["observed"], before, possible)


class _Block(NamedTuple):
    segments: PreparedSegments
    clamp: SegmentClamp
    weights: Optional[Floats]  # [B] of the sequences
    structure: Any  # what answers the loss, None for the semi-Markov chain alone


class SemiMarkovWeights:
    """All weights of a sparse semi-Markov chain as one vector: emissions, transition templates, segment features by place,
    transitions, firsts, lasts and lengths; weights that were not seen in training are not part of it.

    model (Model): A SemiMarkov on SparseEmissions.
    """

    def __init__(self, model: Model):
        self._model = model
        self._emissions, self._segments = model.get_ref("emissions"), model.get_ref("segments")
        self._features: SparseFeatures = self._emissions.attrs["features"]
        self._segment_features: SegmentFeatures = self._segments.attrs["segment_features"]
        self._observed = model.attrs["observed"].astype(bool)
        self._lengths = has_lengths(model)
        sizes = [self._features.states.n_weights, self._features.transitions.n_weights]
        sizes += [self._segment_features.rows[place].n_weights for place in PLACES]
        self._bounds = np.cumsum([*sizes, int(self._observed.sum())])

    @property
    def model_features(self) -> SparseFeatures:
        """The features that the objective was made for."""
        return self._features

    @property
    def layout(self) -> tuple[int, ...]:
        """Equal for vectors that mean the same weights."""
        check = zlib.crc32(np.ascontiguousarray(self._observed), self._features.check)
        check = zlib.crc32(np.ascontiguousarray(self._lengths), check)
        for rows in self._segment_features.rows.values():
            for array in (rows.index.keys, rows.pair_starts, rows.pair_columns):
                check = zlib.crc32(np.ascontiguousarray(array), check)
        return (int(self._bounds[-1]), int(self._lengths.sum()), check)

    def frame(self) -> "SemiMarkovWeights":
        """Where each weight is, without the corpus."""
        return SemiMarkovWeights(self._model)

    def places(self, before: "SemiMarkovWeights") -> NDArray[np.int64]:
        """Where each weight is that the model had before it learned more labels or features: int64[n before]."""
        old, new = before._features, self._features
        states = np.arange(old.n_tags)
        pairs = (states[:, np.newaxis] * new.n_tags + states).ravel()
        parts = [new.states.places(old.states), new.transitions.places(old.transitions, pairs)]
        parts += [
            rows.places(before._segment_features.rows[name]) for name, rows in self._segment_features.rows.items()
        ]
        parts.append(places_of_observed(before._observed, self._observed))
        number = np.cumsum(self._lengths).reshape(self._lengths.shape) - 1
        parts.append(number[: before._lengths.shape[0], : before._lengths.shape[1]][before._lengths])
        starts = np.append(0, self._bounds)
        return np.concatenate([start + part for start, part in zip(starts, parts)])

    def evidence(self) -> Evidence:
        """What training has met so far."""
        tables = {
            "states": self._features.states,
            "transitions": self._features.transitions,
            **self._segment_features.rows,
        }
        counts = {name: rows.counts for name, rows in tables.items()}
        return Evidence.known(counts, self._model.attrs["met"], self._features.n_tags)

    def evidence_of(self, docs: list[Doc]) -> Evidence:
        """What there is to meet in texts."""
        prepared, segments = self._features.prepare(docs), self._segment_features.prepare(docs)
        found = [("states", prepared.states, self._features.states)]
        found.append(("transitions", prepared.transitions, self._features.transitions))
        found += [(place, getattr(segments, place), self._segment_features.rows[place]) for place in PLACES]
        counts = {
            name: np.bincount(features.rows, minlength=len(rows.index)) if features is not None else rows.counts[:0]
            for name, features, rows in found
        }
        return Evidence(counts, int(prepared.starts[-1]), len(prepared.starts) - 1, self._features.n_tags)

    def met(self, evidence: Evidence) -> Floats:
        """How often what each weight belongs to was met: float64[n]."""
        later = np.arange(self._features.n_tags) >= evidence.n_tags
        parts = [evidence.of_rows("states", self._features.states, later)]
        of_pairs = np.logical_or.outer(later, later).ravel()
        parts.append(evidence.of_rows("transitions", self._features.transitions, of_pairs))
        parts += [evidence.of_rows(place, self._segment_features.rows[place], later) for place in PLACES]
        of_lengths = np.where(later, LATER, 1.0) * np.full(self._lengths.shape, evidence.tokens)
        return np.concatenate([*parts, evidence.of_chain(self._observed), of_lengths[self._lengths]])

    def weights(self) -> Floats:
        chain = np.vstack([self._model.get_param(name) for name in ("transitions", "first", "last")])
        parts = [self._emissions.get_param("states"), self._emissions.get_param("transitions")]
        parts += [self._segments.get_param(place) for place in PLACES]
        parts += [chain[self._observed], self._model.get_param("lengths")[self._lengths]]
        return np.concatenate(parts).astype(np.float64)

    def parameters(self, weights: Floats) -> dict[tuple[int, str], NDArray[np.float32]]:
        """The weights as thinc knows them: by the id of their model and their name."""
        states, transitions, *places, observed, lengths = np.split(weights.astype(np.float32), self._bounds)
        chain, dense = np.zeros(self._observed.shape, np.float32), np.zeros(self._lengths.shape, np.float32)
        chain[self._observed] = observed
        dense[self._lengths] = lengths
        found = {(self._emissions.id, "states"): states.copy(), (self._emissions.id, "transitions"): transitions.copy()}
        for place, value in zip(PLACES, places):
            found[self._segments.id, place] = value.copy()
        for name, value in zip(_PARAMS, (chain[:-2], chain[-2], chain[-1], dense)):
            found[self._model.id, name] = value.copy()
        return found

    def assign(self, weights: Floats) -> None:
        nodes = {node.id: node for node in (self._model, self._emissions, self._segments)}
        for (model_id, name), value in self.parameters(weights).items():
            nodes[model_id].set_param(name, value)


class SemiMarkovObjective(SemiMarkovWeights):
    """Loss of a corpus as a function of its weights.

    model (Model): A SemiMarkov on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self._loss = loss
        self._structure = SemiMarkovInference(threads=default_threads())
        self._blocks: list[_Block] = []
        self._corpus = CorpusEmissions(self._features, map(self._prepare, corpus))
        self.signature = self._sign()
        self.n_impossible = 0

    def _prepare(self, batch: AnnotatedDocs) -> list[Doc]:
        """Keeps what is known of a batch but for its Docs."""
        segments = self._segment_features.prepare(batch.docs)
        self._blocks.append(_Block(segments, batch.allowed, batch.weights, batch.structure))
        return batch.docs

    def _sign(self) -> Hashable:
        """Says what function this is: the data, the layout and the loss."""
        check = zlib.crc32(repr(self._loss).encode("utf8"))
        arrays = self._corpus.fingerprint()
        for block in self._blocks:
            arrays += [*block.clamp, block.weights, *block.segments.listed]
            arrays += [array for place in PLACES for array in getattr(block.segments, place)]
            if block.structure is not None:
                check = zlib.crc32(block.structure.signature, check)
        for array in arrays:
            if array is not None:
                check = zlib.crc32(np.ascontiguousarray(array), check)
        return (int(self._bounds[-1]), int(self._lengths.sum()), check)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        states, transitions, *places, observed, known_lengths = np.split(weights, self._bounds)
        segment_features, threads = self._segment_features, self._structure.threads
        rows = segment_features.rows
        slots = segment_features.slots(dict(zip(PLACES, places)))
        chain, lengths = np.zeros(self._observed.shape), np.zeros(self._lengths.shape)
        chain[self._observed] = observed
        lengths[self._lengths] = known_lengths
        sums, d_lengths = ChainSums(chain.shape), np.zeros(lengths.shape)
        d_places = {place: np.zeros(len(of_place)) for place, of_place in zip(PLACES, places)}
        emissions = self._corpus.at(states, transitions, threads=threads)
        shared = (chain[:-2], chain[-2], chain[-1], lengths)

        def differentiate(number: int):
            block = self._blocks[number]
            spans = score_segments(segment_features, block.segments, slots)
            scores = segment_scores(self._model, emissions.score(number), spans, *shared)
            return self._loss(block.structure or self._structure, scores, block.clamp, weights=block.weights)

        def scatter(numbers: range, derivatives: list[SegmentScores], part: Part) -> None:
            for number, d_scores in zip(numbers, derivatives):
                segments = self._blocks[number].segments
                for place in PLACES:
                    of_place = getattr(segments, place)
                    rows[place].scatter(of_place, getattr(d_scores, place), d_places[place], part=part)
                rows["tokens"].scatter(segments.repeats, d_scores.spans, d_places["tokens"], part=part)

        for numbers in self._corpus.groups():
            derivatives = []
            for losses, d_scores, impossible in run_chunks(differentiate, numbers, threads):
                sums.add(losses, d_scores, impossible)
                d_lengths += d_scores.lengths
                derivatives.append(d_scores)
            emissions.collect(numbers, [d.tokens for d in derivatives], [d.transitions for d in derivatives])
            run_chunks(partial(scatter, numbers, derivatives), parts_for(threads), threads)
        self.n_impossible = sums.n_impossible
        parts = [*emissions.gradient(), *d_places.values(), sums.d_chain[self._observed], d_lengths[self._lengths]]
        return sums.value, np.concatenate(parts)
