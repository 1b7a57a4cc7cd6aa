"""Chains with ties between any tokens of a Doc: evidence for an entity in one sentence also counts in other sentences that
mention the entity.
"""

from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import checks
from spacy_crf.errors import cant_train
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.inference.structure import Structure
from spacy_crf.models.emissions import Emissions, check_emissions
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.structure import (
    Block,
    Explained,
    Feature,
    SharedScores,
    StructureModel,
    TokenTerms,
    build,
    exact_weights,
)
from spacy_crf.optimizers.batch import BatchRun, Position
from spacy_crf.optimizers.lbfgs import LBFGS, CurvaturePairs
from spacy_crf.optimizers.line_search import RayPoint
from spacy_crf.optimizers.objective import CRFOptimizer, Objective
from spacy_crf.types import Bools, Floats, Settings

from ..errors import Errors
from .belief_propagation import BeliefPropagation
from .decoding import METHODS, TiedDecoding, check_loss
from .features import NAME, share
from .layer import TiesLayer, check_templates
from .method import Inference
from .scores import TiedScores
from .structure import TiedChains

# ``cliques`` and ``inference`` have no type below: confection compares what a type says with a block that it has not called yet

MOST_WEIGHTS = 50_000_000  # of ties: 400 MB while they are trained


class FactorGraphNode(ChainNode):
    """A chain with tables of ties, one for each feature of these. "label_of" (int64[S]) is set by the component."""

    gives = TiedScores
    decoding = TiedDecoding
    structure: TiedChains
    traits = ChainNode.traits._replace(
        meaning=("chain",),
        params=(*ChainNode.traits.params, "tables"),
        is_online=False,
        no_shares_of_texts="what a tie tells a token is no sum over them. The other kinds of explanations know ties",
    )

    def __init__(self, inference: Inference, training_inference: Optional[Inference] = None, strength: float = 1.0):
        super().__init__()
        self.strength = strength
        self.structure = TiedChains(inference)
        self._in_training = self.structure if training_inference is None else TiedChains(training_inference)

    @property
    def in_training(self) -> Structure:
        """The structure with the inference for training."""
        return self._in_training

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.structure.inference!r})"

    def join(self, outputs: tuple, shared: SharedScores) -> TiedScores:
        """The potentials of chains, with the ties and their tables."""
        *emissions, ties = outputs
        chains = super().join(tuple(emissions), shared)
        return TiedScores(*chains[:4], shared["tables"], shared["label_of"], ties, chains.starts)

    def part(self, d_scores: TiedScores, outputs: tuple) -> tuple[tuple, SharedScores]:
        """Derivatives by the emissions and by the shared scores; ties have none."""
        of_chains: Any = d_scores  # which have the fields of chains
        d_outputs, d_shared = super().part(of_chains, outputs[:-1])
        return (*d_outputs, None), {**d_shared, "tables": self.strength * d_scores.tables}

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores, times `strength` for tables."""
        # table = strength · weight: l2 on the weight is l2 / strength² on the table
        found = super().potentials(model, weights)
        return {**found, "tables": self.strength * found["tables"], "label_of": model.attrs["label_of"]}

    def explained(self, model: Model) -> Explained:
        """Explanations of the chain, and what ties say."""
        return Explained(ChainNode(), exact_weights(model), terms=self.token_terms)

    def token_terms(self, model: Model, outputs: tuple, docs: DocBatch) -> TokenTerms:
        """The messages of ties into tokens, presented as features of the tokens. They come from belief propagation, which
        approximates other methods."""
        weights = {name: np.asarray(model.get_param(name), dtype=np.float64) for name in self.traits.params}
        scores = self.join((*outputs, _ties(model).predict(docs)), self.potentials(model, weights))
        inference = self.structure.inference
        # Only belief propagation has messages
        speaker = inference if isinstance(inference, BeliefPropagation) else BeliefPropagation()
        tokens, partners, kinds, messages = speaker.last_messages(self.structure.prepare(scores))
        of_rows = [f"{name}: {text}" for name, _, _, text, _ in _ties(model).attrs["known"]]
        spelled = []
        for rows in scores.ties.rows.tolist():
            spelled.append(", ".join(of_rows[row] for row in rows if row >= 0))
        names = [
            f"{spelled[kind]}: '{docs[0][other].text}' ({other})"
            for kind, other in zip(kinds.tolist(), partners.tolist())
        ]
        return TokenTerms(names, tokens, messages, "tie[0]")

    def weight_blocks(self, model: Model, name: str) -> Optional[list[Block]]:
        """The tables of the features of ties."""
        if name != "tables":
            return None
        known = _ties(model).attrs["known"]
        mask = self.weighed(model)["tables"]
        row, *labels = np.nonzero(mask)
        features = [
            Feature(f"{template}: {text}", f"{template}: {text.partition('=')[0]}", None)
            for template, _, _, text, _ in known
        ]
        templates = list(dict.fromkeys(feature.template for feature in features))
        of_rows = np.array([templates.index(feature.template) for feature in features], dtype=np.int64)
        counts = np.array([count for *_, count in known], dtype=np.int64)
        weights = self.strength * model.get_param("tables")[mask]
        named = (templates, of_rows[row])
        return [
            Block("ties", weights, tuple(labels), row, features.__getitem__, counts, named, model.attrs["label_of"])
        ]

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters. RAISES (ValueError): CRF364 if the tables are too large."""
        n_features = len(_ties(model).attrs["known"])
        n_labels = int(model.attrs["label_of"].max(initial=0)) + 1
        if n_features * n_labels**2 > MOST_WEIGHTS:
            raise ValueError(Errors.CRF364.format(features=n_features, labels=n_labels, most=MOST_WEIGHTS))
        return {**super().shapes(model, n_states), "tables": (n_features, n_labels, n_labels)}

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters: all entries of tables are possible."""
        return {**super().possible(model), "tables": np.ones((1, 1, 1), dtype=bool)}

    def weighed(self, model: Model) -> SharedScores:
        """Parameters with weights. In symmetric tables a pair of labels has one weight, whatever its order."""
        shape = self.shapes(model, model.get_dim("nO"))["tables"]
        ties = _ties(model)
        symmetric = ties.attrs["node"].symmetric(ties)[:, np.newaxis, np.newaxis]
        of_chain = super().weighed(model)
        if not model.attrs["chain"]:  # what the tag scheme forbids stays so
            of_chain = {name: np.zeros_like(mask) for name, mask in of_chain.items()}
        # The upper triangle alone, where [i, j] and [j, i] are one weight
        tables = ~symmetric | np.triu(np.ones(shape[1:], dtype=bool))
        # Associative: the diagonal alone
        tables[ties.attrs["node"].associative(ties)] = np.eye(shape[1], dtype=bool)
        return {**of_chain, "tables": tables}

    def check_fit(self, model: Model, pipe: Any, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): As `check_loss`, and as the inferences for labels; CRF347 for an optimizer that knows no bounds,
        if ties are associative."""
        check_loss(model, pipe)
        if pipe.labels:
            for structure in (self.structure, self._in_training):
                structure.inference.check_labels(pipe.name, model.attrs["allowed"])
        if isinstance(optimizer, CRFOptimizer) and not isinstance(optimizer, BoundedLBFGS) and _has_bounds(model):
            what = f"the associative ties of '{pipe.name}'"
            reason = "their weights must not be negative"
            raise cant_train(optimizer, what, reason, "spacy_crf_lab.BoundedLBFGS.v1 or Adam.v1")


class TiedModel(StructureModel):
    """A model in which the weights of associative ties are at least 0, whatever the optimizer."""

    def finish_update(self, optimizer: Optimizer) -> None:
        """Take the step of the optimizer, and from negative weights of associative ties to 0."""
        super().finish_update(optimizer)
        tables: Any = self.get_param("tables")
        bounded: Any = np.where(associative(self), np.maximum(tables, 0.0), tables)
        self.set_param("tables", bounded)


def associative(model: Model) -> Bools:
    """Which features belong to associative ties, whose weights must not be negative: bool[F, 1, 1]."""
    ties = _ties(model)
    return ties.attrs["node"].associative(ties)[:, np.newaxis, np.newaxis]


@dataclass(kw_only=True, eq=False, repr=False)
class BoundedLBFGS(LBFGS):
    """L-BFGS for factor graphs with associative ties, whose weights must not be negative. The settings are described at
    `spacy_crf.LBFGS.v1`.
    """

    def bounded(self, objective: Any, weights: Floats) -> Optional[Bools]:
        """Which weights must not be negative: bool[n]; None if all may be, or if workers evaluate the objective."""
        of_ties = isinstance(objective, CorpusObjective) and isinstance(objective.node, FactorGraphNode)
        if not of_ties or not _has_bounds(objective.model):
            return None
        of_layers, shared = objective.split(np.zeros_like(weights))
        shared["tables"] += associative(objective.model)
        return objective.join(of_layers, shared) > 0.0

    def new_memory(self) -> "BoundedPairs":
        """An empty memory, see `BatchOptimizer.new_memory`."""
        return BoundedPairs(self.memory)


class BoundedPairs:
    """Memory of L-BFGS whose searches keep bounded weights on their side of 0."""

    def __init__(self, size: int) -> None:
        self._pairs = CurvaturePairs(size)

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def prepare(self, objective: Objective, key: str) -> None:
        """See `CurvaturePairs.prepare`."""
        self._pairs.prepare(objective, key)

    def ascent(self, optimizer: BoundedLBFGS, objective: Objective, position: Position) -> Floats:
        """The gradient, 0 for bounded weights at 0 that it would make negative."""
        gradient = self._pairs.ascent(optimizer, objective, position)
        bounded = optimizer.bounded(objective, position.weights)
        if bounded is None:
            return gradient
        return np.where(bounded & (position.weights == 0.0), np.minimum(gradient, 0.0), gradient)

    def search(
        self, optimizer: BoundedLBFGS, objective: Objective, run: BatchRun, gradient: Floats
    ) -> tuple[Optional[RayPoint], int]:
        """Search along a direction, in which bounded weights do not change their sign; with l1, no weights do."""
        bounded = optimizer.bounded(objective, run.weights)
        if optimizer.l1 or bounded is None:
            return self._pairs.search(optimizer, objective, run, gradient)
        return self._pairs.search_in_orthant(optimizer, objective, run, gradient, bounded)

    def learn(self, before: Position, after: Position, step: float) -> None:
        """See `CurvaturePairs.learn`."""
        self._pairs.learn(before, after, step)

    def clear(self) -> None:
        """Forget all moves."""
        self._pairs.clear()

    def to_msg(self) -> list[object]:
        """The pairs, for `from_msg`."""
        return self._pairs.to_msg()

    def from_msg(self, msg: list, n: int) -> None:
        """Take over saved pairs of n weights."""
        self._pairs.from_msg(msg, n)


def _has_bounds(model: Model) -> bool:
    """Whether some weights must not be negative."""
    return any(template.associative for template in _ties(model).attrs["templates"].values())


def _ties(model: Model) -> Model:
    return model.get_ref("cliques")


def FactorGraph(
    emissions: Model[list[Doc], Emissions],
    cliques: Optional[Settings] = None,
    inference: Any = None,
    training_inference: Any = None,
    chain: bool = True,
    possible_transitions: bool = False,
    share_features: Union[bool, list[str]] = False,
    strength: float = 1.0,
) -> Model[list[Doc], TiedScores]:
    """A linear chain with ties between tokens of a Doc, of one sentence or of several.

    emissions (Model): Scores of tags at tokens, sparse or neural.
    cliques (Dict[str, TieTemplate]): Templates that tie tokens, such as `spacy_crf_lab.RepeatedWords.v1`, by names that you
            choose.
    inference (Inference): Inference method for tied sentences, by default `spacy_crf_lab.BeliefPropagation.v1`.
    training_inference (Inference): Inference method in training; None for the same method.
    chain (bool): Whether neighbouring tags have transition scores, as in `spacy_crf.LinearChain.v1`. Without them, only ties and
        the tag scheme connect tags.
    possible_transitions (bool): See `spacy_crf.LinearChain.v1`.
    share_features (Union[bool, List[str]]): Whether a token also has the features of its tied tokens, with separate weights:
        their shapes and neighbours, or the given templates.
    strength (float): Factor for the tables of ties. Below 1, the optimizer's l2 penalizes ties more: with 0.5, four times as
        much.
    """
    owner = "FactorGraph"
    check_emissions(owner, emissions)
    templates = check_templates(owner, cliques)
    inference = BeliefPropagation() if inference is None else inference
    must = "a way to answer questions about graphs, such as spacy_crf_lab.BeliefPropagation.v1"
    checks.expect(isinstance(inference, Inference), owner, "inference", inference, must)
    possible = training_inference is None or isinstance(training_inference, Inference)
    checks.expect(possible, owner, "training_inference", training_inference, must)
    strength = checks.number(owner, "strength", strength, least=0.001, most=1000.0)
    shared = share(owner, emissions, templates, share_features)
    # What a loaded model must agree with; settings with their defaults are left out
    further = [*([["strength", strength]] if strength != 1.0 else []), *([[NAME, *shared]] if shared else [])]
    for name, template in templates.items():
        for at, asked in (("inference", inference), ("training_inference", training_inference)):
            if template.edges == "group" and asked is not None and not asked.takes_groups:
                fitting = ", ".join(sorted(method().name for method in METHODS if method.takes_groups))
                given = {"inference": asked.name, "setting": at, "clique": name}
                raise ValueError(Errors.CRF351.format(**given, fitting=fitting))
    layers = {"emissions": emissions, "cliques": TiesLayer(templates, further)}
    attrs = {
        "possible_transitions": checks.flag(owner, "possible_transitions", possible_transitions),
        "chain": checks.flag(owner, "chain", chain),
        "label_of": np.zeros(1, dtype=np.int64),
    }
    node = FactorGraphNode(inference, training_inference, strength)
    reads = []
    for template in templates.values():
        reads += template.reads
    node.traits = node.traits._replace(token_attributes=tuple(reads))
    return build("factor_graph", node, layers, kind=TiedModel, **attrs)
