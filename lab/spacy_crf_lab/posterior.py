"""Probabilities averaged over weights that are drawn from their posterior, for the setting `decoder` of components."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from spacy_crf import checks
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.inference.structure import Structure
from spacy_crf.models.node import check_array, check_equal
from spacy_crf.models.sparse import SparseFeatures, SparseNode
from spacy_crf.models.structure import SharedScores, StructureNode
from spacy_crf.models.weights import Weights, checksum
from spacy_crf.pipeline import add_certainty
from spacy_crf.pipeline.annotation.spans import Spans
from spacy_crf.pipeline.annotation.tags import TagSet
from spacy_crf.pipeline.decoding import Decoder, Decoding, States
from spacy_crf.pipeline.distribution import Distribution
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.pipeline.probabilities import Batch
from spacy_crf.schemes import Segments
from spacy_crf.types import Floats, Ints, Settings

from .errors import Errors
from .kernels.draws import add_scores_of_draws
from .uses import TINY

_NO_VALUES = np.zeros(0, dtype=np.float32)
_SEED = 0  # the same texts have the same probabilities, in whatever order and process


def save_posterior(model: Model, precision: Floats) -> None:
    """Keep the precisions of the weights (float64[n]), in the order of `Weights`, with the model."""
    precisions = precision.astype(np.float32)
    beside = model.attrs["beside"] or {}
    model.attrs["beside"] = {**beside, "posterior": {"of": _mark(Weights(model)), "precision": precisions}}


def _mark(weights: Weights) -> list[int]:
    """Numbers that change with the features, the labels and the weights of a model."""
    return [*weights.layout, checksum([weights.weights().astype(np.float32)])]


def posterior_of(model: Model) -> Optional[Settings]:
    """RETURNS (dict): The variances that `save_posterior` stored with a model; None for a model without variances."""
    return (model.attrs.get("beside") or {}).get("posterior")


def precision_of(model: Model, name: str) -> Floats:
    """Precisions of the weights of the component of this name, in the order of `Weights`: float64[n].

    RAISES (ValueError): CRF644 if the model has none, or got other weights since.
    """
    posterior = posterior_of(model)
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
    nodes: list = [layer.attrs.get("node") for layer in model.layers]
    if not all(isinstance(node, SparseNode) for node in nodes):
        return "it has weights that belong to no sparse features, as those of an encoder, a kernel, ties or a pool"
    if type(model.attrs["node"]).in_prediction is not StructureNode.in_prediction:
        return "prediction reads other scores than training, as in MEMMs and output codes"
    if any(node.features(layer).unit is not None for node, layer in zip(nodes, model.layers)):
        return "it labels texts"
    return None


def draw_weights(pipes: Iterable[Any]) -> None:
    """From now on, average the probabilities of these components over 20 draws, unless they draw weights already, and set
    ``crf_prob_sd``. RAISES (ValueError): CRF644, CRF645 for components without variances."""
    for pipe in pipes:
        decoder = pipe.decoder if isinstance(getattr(pipe, "decoder", None), Draws) else Draws()
        decoder.searched(pipe.decoding)
        precision_of(pipe.model, pipe.name)
        pipe.cfg["confidence"] = True
        pipe.decoder = decoder


def uncertainty_by_variance(pipes: list[CRFPipe]) -> Callable[[Doc], float]:
    """The order `variance` of `python -m spacy crf annotate`: texts on whose tags drawn weights disagree most."""
    draw_weights(pipes)
    return lambda doc: sum(disagreement(pipe, doc) for pipe in pipes)


def disagreement(pipe: Any, doc: Doc) -> float:
    """Mutual information of a tag and the weights, averaged over tokens (Houlsby et al. 2011, eq. 2): the mean divergence of the
    distributions by drawn weights from their mean."""
    every = np.array([distribution.marginals() for distribution in pipe.distribution(doc).drawn])  # [D, T, S]
    shares = np.maximum(every, TINY)
    # mean_d KL(p_d | mean p)
    return float((every * np.log(shares / shares.mean(axis=0))).sum(axis=-1).mean())


class Slots(NamedTuple):
    """The weights of a table by slot, see `models.table.SlotLayout`."""

    starts: Ints  # [F + 1]
    columns: NDArray[np.int32]  # [M]
    weights: NDArray[np.float32]  # [M, D] by each of D draws


class DrawnWeights(NamedTuple):
    """D weight vectors drawn from the posterior of a model."""

    scorers: list[object]  # of the layers, which are others as soon as the weights are
    precision: NDArray[np.float32]
    layers: list[dict[str, "Slots"]]  # for each layer by table
    shared: list[SharedScores]  # the shared potentials by each draw


_DRAWN: WeakKeyDictionary[Model, DrawnWeights] = WeakKeyDictionary()


def drawn_weights(model: Model, name: str, n: int) -> DrawnWeights:
    """Draw n weight vectors; they are kept until the model changes. RAISES (ValueError): CRF644, CRF645."""
    problem = check_layers(model)
    if problem is not None:
        raise ValueError(Errors.CRF645.format(name=name, problem=problem))
    nodes = [(layer, layer.attrs["node"].features(layer)) for layer in model.layers]
    scorers = []
    for layer, features in nodes:
        weights_of = {name: layer.get_param(name) for name in features.tables}
        scorers.append(features.scorer(weights_of))
    known = _DRAWN.get(model)
    posterior = posterior_of(model) or {}
    if known is not None and len(known.shared) == n and known.precision is posterior.get("precision"):
        is_same = all(one is other for one, other in zip(known.scorers, scorers))
        if is_same:
            return known
    # q(w) = N(m, 1 / p)
    deviations = 1.0 / np.sqrt(precision_of(model, name))
    weights = Weights(model)
    random = np.random.default_rng(_SEED)
    node = model.attrs["node"]
    shared = []
    tables = list(chain.from_iterable(features.tables.items() for _, features in nodes))
    drawn = {part: np.empty((len(table.zero_slots()), n), dtype=np.float32) for part, table in tables}
    mean = weights.weights()
    # One draw at a time: all of them in double precision would take D · n numbers
    for d in range(n):
        of_layers, own = weights.split(mean + deviations * random.standard_normal(len(mean)))
        for part, table in tables:
            drawn[part][:, d] = table.slots(of_layers[part])
        shared.append(node.potentials(model, own))
    slots = {name: Slots(table.layout.starts, table.layout.columns, drawn[name]) for name, table in tables}
    layers = [{name: slots[name] for name in features.tables} for _, features in nodes]
    found = _DRAWN[model] = DrawnWeights(scorers, posterior["precision"], layers, shared)
    return found


def _outputs_of(features: SparseFeatures, docs: DocBatch, drawn: dict[str, Slots], n_draws: int) -> list:
    """Outputs of a layer by each draw."""
    found = features.look_up(docs)
    scores = {}
    for kind, (rows, values, starts) in found.features.items():
        name, of = features.kinds[kind]
        if of not in scores:
            scores[of] = np.zeros((n_draws, len(starts) - 1, *features.shape(name)))
        values = _NO_VALUES if values is None else values
        wide = scores[of].reshape(*scores[of].shape[:2], features.tables[name].n_columns)
        add_scores_of_draws(rows, values, starts, *drawn[name], wide)
    outputs = []
    for d in range(n_draws):
        scores_of_draw = {kind: array[d] for kind, array in scores.items()}
        outputs.append(features.output(scores_of_draw, found.starts, found.listed))
    return outputs


_SCORES: WeakKeyDictionary[Batch, list] = WeakKeyDictionary()  # of the Docs of a batch, by each draw


@dataclass(frozen=True)
class Draws(Decoder):
    """Averages probabilities over weight vectors that are drawn around the weights that `spacy_crf_lab.LaplacePropagation.v1`
    trained, by their variances. The trained weights determine the most probable labellings, and which rules a Doc keeps.
    `crf_prob_sd` of spans or tokens is the standard deviation of `crf_prob`.

    n (int): Number of weight vectors.
    """

    n: int = 20

    def __post_init__(self) -> None:
        checks.count("Draws", "n", self.n)

    def searched(self, decoding: Decoding) -> Structure:
        """RAISES (ValueError): CRF645 if the weights of a component cannot be drawn."""
        problem = check_layers(decoding.model)
        if problem is None and isinstance(decoding.annotation, (Spans, TagSet)):
            problem = "it has several chains; for several attributes, take a component for each"
        if problem is not None:
            raise ValueError(Errors.CRF645.format(name=decoding.annotation.name, problem=problem))
        return decoding.structure

    def distribution(self, batch: Batch, d: Optional[int]) -> "AveragedDistribution":
        """The mean of the distributions by each draw, of Doc d of a batch or of all Docs."""
        drawn = [batch.by(scores, d) for scores in self._scores(batch)]
        return AveragedDistribution(batch.by(batch.scores, d), drawn)

    def _scores(self, batch: Batch) -> list:
        """The scores of the tokens that take part, by each draw."""
        known = _SCORES.get(batch)
        if known is not None:
            return known
        model = batch.parts.model
        drawn = drawn_weights(model, batch.parts.name, self.n)
        nodes = [layer.attrs["node"].features(layer) for layer in model.layers]
        outputs = [
            _outputs_of(features, batch.question.asked, slots, self.n) for features, slots in zip(nodes, drawn.layers)
        ]
        found = []
        for shared, *of_draw in zip(drawn.shared, *outputs):
            found.append(batch.question.restricted(model.attrs["node"].join(tuple(of_draw), shared)))
        _SCORES[batch] = found
        return found


add_certainty("crf_prob_sd", 0.0, Draws)  # the standard deviation of `crf_prob` between drawn weights


@dataclass(frozen=True)
class AveragedDistribution:
    """The mean of the distributions of drawn weights, with the methods of `Distribution`."""

    main: Distribution  # of the trained weights
    drawn: list[Distribution]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Bounds of the sequences, see `Distribution`."""
        return self.main.starts

    @property
    def joined(self) -> Any:
        """The scores by the trained weights, see `Distribution`."""
        return self.main.joined

    def _replace(self, **changes: object) -> "AveragedDistribution":
        """The distribution with other fields of each `Distribution`."""
        return AveragedDistribution(
            self.main._replace(**changes), [distribution._replace(**changes) for distribution in self.drawn]
        )

    def marginals(self) -> Floats:
        """Mean probability of each state at each token: float64[T, S]."""
        return np.mean([distribution.marginals() for distribution in self.drawn], axis=0)

    def worth(self) -> dict[str, Floats]:
        """Mean expected use of each score, by its name."""
        every = [list(distribution.worth().values()) for distribution in self.drawn]
        means = [np.mean(uses, axis=0) for uses in zip(*every)]
        return dict(zip(self.drawn[0].worth(), means))

    def certainties(self, segments: Segments) -> dict[str, Floats]:
        """Mean and standard deviation of the probabilities of spans (float64[N] each)."""
        every = np.array([distribution.span_probabilities(segments) for distribution in self.drawn])
        return {"crf_prob": every.mean(axis=0), "crf_prob_sd": every.std(axis=0)}

    def span_probabilities(self, segments: Segments) -> Floats:
        """Mean probabilities of spans: float64[N]."""
        return self.certainties(segments)["crf_prob"]

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        """All spans with at least a certain mean probability: some draw gives each of them at least that probability."""
        found = [np.stack(distribution.likely_spans(min_prob)[0], axis=1) for distribution in self.drawn]
        spans = Segments(*np.unique(np.concatenate(found), axis=0).T)
        probabilities = self.span_probabilities(spans)
        likely = probabilities >= min_prob
        return Segments(*(column[likely] for column in spans)), probabilities[likely]

    def log_probability(self, tags: States) -> float:
        """Log of the mean probability of a labelling (int32[T])."""
        every = [distribution.log_probability(tags) for distribution in self.drawn]
        return float(np.logaddexp.reduce(every) - np.log(len(every)))

    def n_best(self, n: int) -> list[tuple[float, States]]:
        """The n best labellings by the trained weights, with their mean probabilities."""
        found = [(np.exp(self.log_probability(tags)), tags) for _, tags in self.main.n_best(n)]
        return sorted(((float(p), tags) for p, tags in found), key=lambda each: -each[0])

    def sample(self, n: int, seed: int) -> States:
        """Labellings of the distributions of the draws in turn."""
        # Rounded up: the first n of them are kept
        each = -(-n // len(self.drawn))
        drawn = [distribution.sample(each, seed + d) for d, distribution in enumerate(self.drawn)]
        return np.stack(drawn, axis=1).reshape(each * len(drawn), -1)[:n]
