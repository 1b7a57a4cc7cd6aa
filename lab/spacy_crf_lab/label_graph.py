"""Texts with several labels that attract or repel each other: an Ising model over the labels of a text.

    score(y) = sum_j y_j (first_j + w_j · f(x)) + sum_((j, k) in edges) pairs_jk y_j y_k        y_j = 1: the text has label j

This is a conditional random field whose variables are the labels of one text (Ghamrawi & McCallum 2005, "Collective multi-label
classification"); without edges it is a logistic regression for each label. `label_sums` sums over the labels, `label_cliques`
finds the edges; this file has the decoding of a component, and the model.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import checks
from spacy_crf.features.doc_batch import TEXT, DocBatch
from spacy_crf.inference.structure import ScoresOrWork
from spacy_crf.losses.clamped import LogLikelihood, SoftmaxMargin
from spacy_crf.models.emissions import Emissions
from spacy_crf.models.node import Batches, check_array, check_equal, check_weights, read_params
from spacy_crf.models.structure import Block, Feature, SharedScores, build
from spacy_crf.models.texts import LabelSetNode, Reasons, check_text_emissions, scores_of_tokens
from spacy_crf.pipeline.annotation.entities import Annotation
from spacy_crf.pipeline.crf_textcat import TextDecoding
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Bools, Floats, Ints

from .errors import Errors
from .label_cliques import Annotated, LabelClique
from .label_sums import LabelGraphs, LabelScores, places_of
from .ties.method import LOG_PARTITION, MAXIMUM, Inference


class DecodedLabels(LabelGraphs):
    """The structure by which a component predicts. Results of the inference that have not converged are told of.

    name (str): The component.
    """

    def __init__(self, inference: Inference, name: str):
        super().__init__(inference)
        self._warn = partial(inference.warn_unconverged, name)

    def marginals(self, scores: ScoresOrWork, *, clamp: Optional[Bools] = None) -> Floats:
        """Probabilities of labels, with a warning if the inference has not converged."""
        found = super().marginals(scores, clamp=clamp)
        self._warn()
        return found


class LabelDecoding(TextDecoding):
    structure: LabelGraphs

    def __init__(self, model: Model, annotation: Annotation):
        super().__init__(model, annotation)
        inference = self.structure.inference
        if inference is not None:
            self.structure = DecodedLabels(inference, annotation.name)


class LabelGraphNode(LabelSetNode):
    """Node of an Ising model over the labels of a text. The attributes "edges" (int64[E, 2]) and "implies" (bool[E]) are
    its graph, which `initialize` finds."""

    gives = LabelScores
    traits = LabelSetNode.traits._replace(
        learned=("met", "edges", "implies"),
        meaning=("cliques", "strength"),
        params=("first", "pairs"),
        of_sequences=("first", "pairs"),
        no_shares_of_texts="the probabilities of its labels depend on each other",
    )
    decoding = LabelDecoding
    structure: LabelGraphs

    def __init__(self, cliques: dict[str, LabelClique], inference: Optional[Inference], strength: float):
        super().__init__()
        self._cliques = cliques
        self._labels = ()
        self._strength = strength
        self.structure = LabelGraphs(inference)

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF482 for a loss that the inference method cannot train."""
        super().check_fit(model, pipe, optimizer)
        if pipe.labels:
            self.take_labels(pipe.annotation.tag_labels(), pipe.name)
        loss = pipe.loss
        inference = self.structure.inference
        # Likelihoods ask for sums, margins for maxima
        asked = LOG_PARTITION if isinstance(loss, (LogLikelihood, SoftmaxMargin)) else MAXIMUM
        if inference is not None and asked not in inference.answers:
            reason = f"{inference.name} does not answer what it asks; leave inference out"
            raise ValueError(Errors.CRF482.format(name=pipe.name, loss=type(loss).__name__, reason=reason))

    def take_labels(self, labels: Sequence[str], name: str) -> None:
        """Keep the labels, by which cliques find pairs. RAISES (ValueError): As `LabelClique.check`."""
        self._labels = tuple(labels)
        self._name = name
        for clique in self._cliques.values():
            clique.check(self._labels, name)

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters: a bias for each label, and a weight for each pair."""
        edges: Ints = model.attrs["edges"]
        return {"first": (n_states,), "pairs": (0 if edges is None else len(edges),)}

    def weighed(self, model: Model) -> SharedScores:
        """Every parameter is a weight."""
        return {name: np.ones(shape, dtype=bool) for name, shape in self.shapes(model, model.get_dim("nO")).items()}

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Find the graph by the annotation, once."""
        if model.attrs["edges"] is not None:
            return
        batches = [(batch.allowed, batch.weights) for batch in corpus()] if self._cliques else []
        known = Annotated.of(batches, self._labels, self._name)
        # A pair that two cliques name is one edge; an implication says more than a weight
        found: dict[frozenset[int], tuple[tuple[int, int], bool]] = {}
        for pair, implies in chain.from_iterable(clique.pairs(known) for clique in self._cliques.values()):
            if implies or frozenset(pair) not in found:
                found[frozenset(pair)] = pair, implies
        model.attrs["edges"] = np.array([pair for pair, _ in found.values()], dtype=np.int64).reshape(-1, 2)
        model.attrs["implies"] = np.array([implies for _, implies in found.values()], dtype=bool)
        weights: Any = np.zeros(len(found), dtype=np.float32)
        model.set_param("pairs", weights)
        if self.structure.inference is None:  # refuses a graph that is too wide
            places_of(model.attrs["edges"], model.attrs["implies"], n_states)

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for a loaded graph that does not fit the labels."""
        edges = model.attrs["edges"]
        n_edges = len(edges) if isinstance(edges, np.ndarray) else 0
        check_array("edges", edges, (n_edges, 2), np.int64)
        check_array("implies", model.attrs["implies"], (n_edges,), np.bool_)
        is_possible = bool((edges >= 0).all() and (edges < n_states).all() and (edges[:, 0] != edges[:, 1]).all())
        check_equal("that edges join two labels", is_possible, True)
        check_weights(model, self.shapes(model, n_states))
        check_equal("what training met", isinstance(model.attrs["met"], list), True)

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> LabelScores:
        """The potentials of texts, with the pairs and the graph."""
        labels, starts = super().join(outputs, shared)
        return LabelScores(labels, shared["pairs"], shared["edges"], shared["implies"], starts)

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores, times `strength` for pairs, and the graph."""
        found = super().potentials(model, weights)
        # score = strength · weight: l2 on the weight is l2 / strength² on the score
        found["pairs"] = self._strength * found["pairs"]
        return {**found, "edges": model.attrs["edges"], "implies": model.attrs["implies"]}

    def part(self, d_scores: Any, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Derivatives by the scores of labels and by the shared scores. d_scores (LabelScores): By all potentials."""
        d_outputs, d_shared = super().part(d_scores, outputs)
        return d_outputs, {**d_shared, "pairs": self._strength * d_scores.pairs}

    def weight_blocks(self, model: Model, name: str) -> Optional[list[Block]]:
        """The weights of pairs, by both labels."""
        if name != "pairs":
            return None
        edges = model.attrs["edges"]
        weights = self._strength * read_params(model, [name])[name]
        return [Block(name, weights, (*edges.T,), np.zeros(len(edges), np.int64), partial(Feature.shared, name))]

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """The two labels of each pair; the states of other weights are labels themselves."""
        if parameter != "pairs":
            return places
        edges = model.attrs["edges"][places[0]]
        return edges[..., 0], edges[..., 1]

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        """Log-odds of labels, with and without each token."""
        scores = model.predict(docs)
        (units, of_units) = scores_of_tokens(model, docs)
        # [T, 2 L] the scores of each token's text without the token
        without = np.repeat(scores.labels, np.diff(docs.bounds), axis=0)
        without[:, : of_units.shape[1]] -= of_units
        starts = np.arange(len(without) + 1)
        odds = [self._log_odds(each) for each in (scores, scores._replace(labels=without, starts=starts))]
        return Reasons(odds[0], units, odds[1], are_odds=True)

    def _log_odds(self, scores: LabelScores) -> Floats:
        """Log-odds of each label of each text: float64[B, L]."""
        # log P(y_j = 1) - log P(y_j = 0); the columns are first the labels, then their absence
        with np.errstate(divide="ignore"):
            logs = np.log(self.structure.expectations(scores)[1].labels)
        return logs[:, : scores.n_labels] - logs[:, scores.n_labels :]


def LabelGraph(
    emissions: Model[list[Doc], Emissions],
    cliques: Optional[dict[str, Any]] = None,
    inference: Any = None,
    strength: float = 0.3,
) -> Model[list[Doc], LabelScores]:
    """Several labels for a text, whose probabilities depend on each other (Ghamrawi & McCallum 2005).

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    cliques (Dict[str, LabelClique]): Pairs of labels with a weight, by names that you choose: `spacy_crf_lab.LearnedGraph.v1`,
        `spacy_crf_lab.LabelTree.v1` or `spacy_crf_lab.Hierarchy.v1`. Without them labels are independent.
    inference (Inference): An inference method for graphs, such as `spacy_crf_lab.BeliefPropagation.v1`, for graphs of labels
        that are too wide for exact sums; None for exact sums.
    strength (float): Factor for the weights of pairs. Below 1, the optimizer's l2 penalizes pairs more: with 0.5, four times as
        much. Words then keep most of what they say about a label, also where its neighbours in the graph say the same.
    RAISES (ValueError): CRF020.
    """
    owner = "LabelGraph"
    check_text_emissions(owner, emissions, TEXT)
    must = "LearnedGraph.v1, LabelTree.v1 and Hierarchy.v1 of spacy_crf, by names"
    cliques = checks.table(owner, "cliques", cliques, must, lambda value: isinstance(value, LabelClique))
    must = "a way to answer questions about graphs, such as spacy_crf_lab.BeliefPropagation.v1, or null for exact sums"
    checks.expect(inference is None or isinstance(inference, Inference), owner, "inference", inference, must)
    # Only exact sums leave out the labels that an implication forbids
    implied = [name for name, clique in cliques.items() if inference is not None and getattr(clique, "implied", False)]
    checks.expect(not implied, owner, "implied", ", ".join(implied), "false beside an inference: exact sums keep it")
    strength = checks.number(owner, "strength", strength, least=0.001, most=1000.0)
    settings = {"cliques": {name: repr(clique) for name, clique in cliques.items()}, "strength": strength}
    node = LabelGraphNode(cliques, inference, strength)
    return build("label_graph", node, {"emissions": emissions}, edges=None, implies=None, **settings)
