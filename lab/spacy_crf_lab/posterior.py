"""Probabilities averaged over weights that are drawn from their posterior, for the setting `average` of components."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.models.node import check_array, check_equal
from spacy_crf.models.sparse import SparseFeatures, SparseNode
from spacy_crf.models.weights import Weights, checksum
from spacy_crf.pipeline.chain_set import ChainSetPipe
from spacy_crf.pipeline.decoding import Distribution, States
from spacy_crf.pipeline.parts import Parts
from spacy_crf.pipeline.preset_annotation import restrict
from spacy_crf.pipeline.probabilities import Batch
from spacy_crf.pipeline.white_space import without_edges
from spacy_crf.schemes import Segments
from spacy_crf.types import Floats, Ints

from .errors import Errors
from .kernels.draws import add_scores_of_draws
from .uses import TINY

_NO_VALUES = np.zeros(0, dtype=np.float32)
_DRAWS = 20  # weight vectors of commands
_SEED = 0  # the same texts have the same probabilities, in whatever order and process


def save_posterior(model: Model, precision: Floats) -> None:
    """Keep the precisions of the weights (float64[n]), in the order of `Weights`, with the model."""
    precisions: Any = precision.astype(np.float32)
    model.attrs["posterior"] = {"of": _mark(Weights(model)), "precision": precisions}


def _mark(weights: Weights) -> list[int]:
    """Numbers that change with the features, the labels and the weights of a model."""
    return [*weights.layout, checksum([weights.weights().astype(np.float32)])]


def precision_of(model: Model, name: str) -> Floats:
    """Precisions of the weights of the component of this name, in the order of `Weights`: float64[n].

    RAISES (ValueError): CRF644 if the model has none, or got other weights since.
    """
    posterior = model.attrs.get("posterior")
    if posterior is None:
        raise ValueError(Errors.CRF644.format(name=name, problem="its model has none"))
    weights = Weights(model)
    if list(posterior["of"]) != _mark(weights):
        raise ValueError(Errors.CRF644.format(name=name, problem="those of its model belong to other weights"))
    precision = posterior["precision"]
    check_array("posterior", precision, (weights.layout[0],), np.float32)
    check_equal("positive precisions of weights", int((precision > 0.0).sum()), len(precision))
    return precision.astype(np.float64)


def check_layers(model: Model) -> Optional[str]:
    """Why weights of a model cannot have variances; None if they can."""
    nodes: list[Any] = [layer.attrs.get("role") for layer in model.layers]
    if not all(isinstance(node, SparseNode) for node in nodes):
        return "it has weights that belong to no sparse features, as those of an encoder, a kernel, ties or a pool"
    if model.attrs["role"].in_prediction is not None:
        return "prediction reads other scores than training, as in MEMMs and output codes"
    if any(node.features(layer).unit is not None for node, layer in zip(nodes, model.layers)):
        return "it labels texts"
    return None


def check_average(pipe: Any) -> None:
    """RAISES (ValueError): CRF645 if the weights of a component cannot be drawn."""
    problem = check_layers(pipe.model)
    if isinstance(pipe, ChainSetPipe) and problem is None:
        problem = "it has several chains; for several attributes, take a component for each"
    if problem is not None:
        raise ValueError(Errors.CRF645.format(name=pipe.name, problem=problem))


def draw_weights(pipes: Iterable[Any]) -> None:
    """From now on, average the probabilities of these components over 20 draws, unless they draw weights already, and set
    ``crf_prob_sd``. RAISES (ValueError): CRF644, CRF645 for components without variances."""
    for pipe in pipes:
        check_average(pipe)
        precision_of(pipe.model, pipe.name)
        pipe.cfg.update(confidence=True, average=pipe.cfg["average"] or _DRAWS)


def uncertainty_by_variance(pipes: list[Any]) -> Callable[[Doc], float]:
    """The order `variance` of `python -m spacy crf annotate`: texts on whose tags drawn weights disagree most."""
    draw_weights(pipes)
    return lambda doc: sum(disagreement(pipe, doc) for pipe in pipes)


def disagreement(pipe: Any, doc: Doc) -> float:
    """Mutual information of a tag and the weights, averaged over tokens (Houlsby et al. 2011, eq. 2): the mean divergence of the
    distributions by drawn weights from their mean."""
    every = np.array([distribution.marginals() for distribution in pipe.distribution(doc).drawn])  # [D, T, S]
    shares = np.maximum(every, TINY)
    return float((every * np.log(shares / shares.mean(axis=0))).sum(axis=-1).mean())


class Slots(NamedTuple):
    """The weights of a table by slot, see `models.table.SlotLayout`."""

    starts: Ints  # [F + 1]
    columns: NDArray[np.int32]  # [M]
    weights: NDArray[np.float32]  # [M, D] by each of D draws


class DrawnWeights(NamedTuple):
    """D weight vectors drawn from the posterior of a model."""

    scorers: list[Any]  # of the layers, which are others as soon as the weights are
    precision: NDArray[np.float32]
    layers: list[dict[str, "Slots"]]  # for each layer by table
    shared: list[Any]  # the shared potentials by each draw


_DRAWN: WeakKeyDictionary[Model, DrawnWeights] = WeakKeyDictionary()


def drawn_weights(model: Model, name: str, n: int) -> DrawnWeights:
    """Draw n weight vectors; they are kept until the model changes. RAISES (ValueError): CRF644, CRF645."""
    problem = check_layers(model)
    if problem is not None:
        raise ValueError(Errors.CRF645.format(name=name, problem=problem))
    nodes = [(layer, layer.attrs["role"].features(layer)) for layer in model.layers]
    scorers = [features.scorer({part: layer.get_param(part) for part in features.tables}) for layer, features in nodes]
    known, posterior = _DRAWN.get(model), model.attrs.get("posterior") or {}
    if known is not None and len(known.shared) == n and known.precision is posterior.get("precision"):
        is_same = all(one is other for one, other in zip(known.scorers, scorers))
        if is_same:
            return known
    deviations = 1.0 / np.sqrt(precision_of(model, name))
    weights, random, architecture, shared = Weights(model), np.random.default_rng(_SEED), model.attrs["role"], []
    tables = [(part, table) for _, features in nodes for part, table in features.tables.items()]
    drawn = {part: np.empty((len(table.zero_slots()), n), dtype=np.float32) for part, table in tables}
    mean = weights.weights()
    for d in range(n):
        of_layers, own = weights.split(mean + deviations * random.standard_normal(len(mean)))
        for part, table in tables:
            drawn[part][:, d] = table.slots(of_layers[part])
        shared.append(architecture.potentials(model, own))
    layers = [
        {part: Slots(table.layout.starts, table.layout.columns, drawn[part]) for part, table in features.tables.items()}
        for _, features in nodes
    ]
    found = _DRAWN[model] = DrawnWeights(scorers, posterior["precision"], layers, shared)
    return found


def _outputs_of(features: SparseFeatures, docs: DocBatch, drawn: dict[str, Slots], n_draws: int) -> list[Any]:
    """Outputs of a layer by each draw."""
    found, scores = features.look_up(docs), {}
    for kind, (rows, values, starts) in found.features.items():
        name, of = features.kinds[kind]
        if of not in scores:
            scores[of] = np.zeros((n_draws, len(starts) - 1, *features.shape(name)))
        values = _NO_VALUES if values is None else values
        wide = scores[of].reshape(*scores[of].shape[:2], features.tables[name].n_columns)
        add_scores_of_draws(rows, values, starts, *drawn[name], wide)
    return [
        features.output({of: array[d] for of, array in scores.items()}, found.starts, found.listed)
        for d in range(n_draws)
    ]


class _Silent(Parts):
    """Parts that give no warnings, which the scores of the trained weights have given already."""

    def warn(self, message: str, **values: Any) -> None:
        pass


class Draws:
    """Scores of a batch of Docs by each of the drawn weights.

    parts (Parts), docs (DocBatch): The parts of the component, and the Docs.
    preset (uint64[T]): The result of `Annotation.preset`; None to ignore present annotation.
    """

    check = staticmethod(check_average)

    def __init__(self, parts: Parts, docs: DocBatch, preset: Any):
        self._parts, self._docs, self._preset = _Silent(*parts), docs, preset

    @cached_property
    def scores(self) -> list[Any]:
        """The scores of the tokens that take part, as prediction has those of the trained weights."""
        parts, model, every = self._parts, self._parts.model, []
        architecture, drawn = model.attrs["role"], drawn_weights(model, parts.name, parts.settings["average"])
        nodes = [layer.attrs["role"].features(layer) for layer in model.layers]
        asked, n = self._docs, len(drawn.shared)
        outputs = [_outputs_of(features, asked, slots, n) for features, slots in zip(nodes, drawn.layers)]
        is_free = self._preset is None and not any(doc.spans for doc in self._docs)
        for shared, *of_draw in zip(drawn.shared, *outputs):
            scores = architecture.join(tuple(of_draw), shared)
            part = None if is_free else restrict(parts, self._docs, scores, self._preset)
            every.append(without_edges(parts, self._docs, scores)[1] if part is None else part.scores)
        return every

    def batch(self, parts: Parts, docs: DocBatch, scores: Any, clamp: Any) -> "AveragedBatch":
        """Labellings of the Docs, whose probabilities are averaged."""
        return AveragedBatch(parts, docs, scores, clamp, self)


class AveragedBatch(Batch):
    """Labellings of several Docs. The trained weights determine the most probable labellings, and which rules a Doc keeps;
    probabilities are averaged over drawn weights."""

    def __init__(self, parts: Parts, docs: DocBatch, scores: Any, clamp: Any, draws: Draws):
        super().__init__(parts, docs, scores, clamp)
        self._draws = draws
        self._latest: Any = None  # spans, and their probabilities by each draw

    def _members(self) -> Iterator[Batch]:
        """The batch by each draw, with the rules that Docs keep by the trained weights."""
        for scores in self._draws.scores:
            member = Batch(self.parts, self._docs, scores, self._clamp)
            member._relaxed = self._relaxed
            yield member

    def untied(self) -> Any:
        return AveragedDistribution(super().untied(), [member.untied() for member in self._members()])

    def distribution(self, d: int) -> Any:
        return AveragedDistribution(super().distribution(d), [member.distribution(d) for member in self._members()])

    def span_probabilities(self, segments: Segments) -> Floats:
        return self._of_draws(segments).mean(axis=0)

    def deviations(self, segments: Segments) -> Floats:
        return self._of_draws(segments).std(axis=0)

    def _of_draws(self, segments: Segments) -> Floats:
        """Probability of each span by each draw: float64[D, N]."""
        known = self._latest
        if known is None or not all(map(np.array_equal, known[0], segments)):
            known = segments, np.array([member.span_probabilities(segments) for member in self._members()])
            self._latest = known
        return known[1]


@dataclass(frozen=True)
class AveragedDistribution:
    """The mean of the distributions of drawn weights, with the methods of `Distribution`."""

    main: Distribution  # of the trained weights
    drawn: list[Distribution]

    @property
    def starts(self) -> NDArray[np.int64]:
        return self.main.starts

    @property
    def joined(self) -> Any:
        return self.main.joined

    def _replace(self, **changes: Any) -> "AveragedDistribution":
        """The distribution with other fields of each `Distribution`."""
        return AveragedDistribution(
            self.main._replace(**changes), [distribution._replace(**changes) for distribution in self.drawn]
        )

    def marginals(self) -> Floats:
        return np.mean([distribution.marginals() for distribution in self.drawn], axis=0)

    def worth(self) -> dict[str, Floats]:
        every = [distribution.worth() for distribution in self.drawn]
        return {name: np.mean([worth[name] for worth in every], axis=0) for name in every[0]}

    def span_probabilities(self, segments: Segments) -> Floats:
        return np.mean([distribution.span_probabilities(segments) for distribution in self.drawn], axis=0)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        """All spans with at least a certain mean probability: some draw gives each of them at least that probability."""
        found = [np.stack(distribution.likely_spans(min_prob)[0], axis=1) for distribution in self.drawn]
        spans = Segments(*np.unique(np.concatenate(found), axis=0).T)
        probabilities = self.span_probabilities(spans)
        likely = probabilities >= min_prob
        return Segments(*(column[likely] for column in spans)), probabilities[likely]

    def log_probability(self, tags: States) -> float:
        every = [distribution.log_probability(tags) for distribution in self.drawn]
        return float(np.logaddexp.reduce(every) - np.log(len(every)))

    def n_best(self, n: int) -> list[tuple[float, States]]:
        """The n best labellings by the trained weights, with their mean probabilities."""
        found = [(np.exp(self.log_probability(tags)), tags) for _, tags in self.main.n_best(n)]
        return sorted(((float(p), tags) for p, tags in found), key=lambda each: -each[0])

    def sample(self, n: int, seed: int) -> States:
        """Labellings of the distributions of the draws in turn."""
        each = -(-n // len(self.drawn))
        drawn = [distribution.sample(each, seed + d) for d, distribution in enumerate(self.drawn)]
        return np.stack(drawn, axis=1).reshape(each * len(drawn), -1)[:n]
