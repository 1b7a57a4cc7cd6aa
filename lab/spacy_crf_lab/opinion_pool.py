"""Logarithmic opinion pools (Smith, Cohn & Osborne 2005): experts, each trained as though alone, whose scores are summed up.

    p(y | x) ~ prod_i p_i(y | x)^w_i        score(y) = sum_i w_i · score_i(y)

The experts are chains, so the pool is a chain again. Each expert has columns of its own for its states, side by side: training
sees a set of independent chains (`inference.chain_set`), prediction their weighted sum. Experts that overfit differ in their
mistakes, so the pool needs no regularizer: for any distribution p* (Heskes 1998)

    KL(p*, p) = sum_i w_i KL(p*, p_i) - sum_i w_i KL(p, p_i)        where the w_i add up to 1

Texts that no expert sees tell the weights: a convex problem of as many numbers as there are experts.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import checks
from spacy_crf.arrays import cut, cut_clamp
from spacy_crf.errors import announcements, cant_train, quietly
from spacy_crf.explain.weights import blocks_of, shared_block
from spacy_crf.features.extractor import FeatureSet
from spacy_crf.inference.threads import default_threads, run_chunks
from spacy_crf.models.emissions import EmissionFeatures, Emissions, check_counted, check_emissions, total
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.node import AnnotatedDocs, Batches, check_weights, rearrange_param
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.pool import held_out_sequences
from spacy_crf.models.sparse import SparseNode
from spacy_crf.models.structure import Block, Explained, SharedScores, build, exact_weights
from spacy_crf.optimizers.batch import BatchOptimizer
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import ChainScores, Floats, Ints, Settings

from .conjugate_gradient import ConjugateGradient
from .errors import Errors, Warnings
from .experts import (
    OUTSIDE,
    POSITIONS,
    Experts,
    HeldOut,
    SetOfExperts,
    SharesObjective,
    at_random,
    by_position,
    shares_of,
)
from .mixed_chain import MixedChain

_OWNER = "OpinionPool"

logger = logging.getLogger("spacy.spacy_crf")


class OpinionPoolNode(ChainNode):
    """Node of a pool, whose parameters are those of all experts by columns, and the weights of the experts, "shares".

    kind (str): "random", "positions", "labels" or "named". expert_of (Sequence[int]): The expert of each layer, of named ones.
    reads (Callable): Which experts read each of some templates (bool[M, k]); None if all read all.
    """

    traits = ChainNode.traits._replace(
        meaning=("experts",),
        is_online=False,
        no_shares_of_texts="its weights also depend on texts that are held out. The other kinds of explanations know them",
    )

    def __init__(self, kind: str, n: int, learns: bool, expert_of: Sequence[int], reads: Optional[Callable]):
        super().__init__()
        self.kind = kind
        self.n = n
        self.learns = learns
        self.expert_of = expert_of
        self._reads = reads
        self.holds_out = True  # whether some texts are held out
        self.experts = Experts.of_all(0, n)

    @property
    def learns_now(self) -> bool:
        """Whether the texts that are held out tell the weights of the experts."""
        return self.learns and self.holds_out

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for a loss of soft labels, or an optimizer that learns from batches; CRF633 for experts of
        labels, if each tag has a label."""
        if self.kind == "labels" and pipe.labels and OUTSIDE not in pipe.annotation.tag_labels():
            problem = "needs tokens without a label, and there are none"
            raise ValueError(Errors.CRF633.format(name=pipe.name, problem=problem))
        if pipe.loss.spans_key is not None:
            what = f"the experts of '{pipe.name}'"
            raise cant_train(pipe.loss, what, "its soft labels are those of one chain", "LogLikelihood")
        if optimizer is not None and self.learns_now and not isinstance(optimizer, LearnsShares):
            what = f"the weights of the experts of '{pipe.name}'"
            reason = "it takes no account of the texts that are held out"
            raise cant_train(optimizer, what, reason, 'spacy_crf_lab.PoolLBFGS.v1, or set weights to "equal"')

    # ----------------------------------------------------------------------------------------------- layout

    def tag_of(self, model: Model, labels: Sequence[str]) -> NDArray[np.int64]:
        """Tag of each state; the labels determine the columns of experts."""
        by_label = self.kind == "labels"
        self.experts = Experts.of_labels(list(labels)) if by_label else Experts.of_all(len(labels), self.n)
        return super().tag_of(model, labels)

    def columns(self, n_states: int) -> int:
        """Columns of a layer: of all experts, or of one if each has layers of its own."""
        return n_states if self.kind == "named" else self.experts.size

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters, by the columns of all experts."""
        return super().shapes(model, self.experts.size)

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters: steps between columns of one expert that the tag scheme allows."""
        return self.experts.mask(model.attrs["allowed"])

    def resize(self, model: Model, n_states: int) -> None:
        """Add columns for new states, and equal weights for new experts."""
        super().resize(model, n_states)
        before: Any = model.get_param("shares") if model.has_param("shares") else np.zeros(0, dtype=np.float32)
        n = len(self.experts.columns)
        if len(before) != n:
            # Experts of labels do not repeat each other
            equal = np.full(n - len(before), 1.0 if self.kind == "labels" else 1.0 / n, dtype=np.float32)
            shares: Any = np.append(before, equal)
            model.set_param("shares", shares)

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for a loaded model without weights of its experts."""
        super().check(model, n_states)
        check_weights(model, {"shares": (len(self.experts.columns),)})

    # ----------------------------------------------------------------------------------------------- features

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The batch by the columns of experts, which share a layer."""
        return batch if self.kind == "named" else self._of_experts(batch)

    def _of_experts(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        return batch._replace(allowed=self.experts.clamp(batch.allowed))

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Leave each expert the weights of the templates that it reads."""
        super().init_weights(model, lambda: map(self._of_experts, corpus()), n_states, is_new)
        if self._reads is None:
            return
        [layer] = model.layers
        node = layer.attrs["node"]
        features: EmissionFeatures = node.features(layer)
        table = features.states
        templates = features.feature_set.templates
        reads = dict(zip(map(str, templates), self._reads(templates)))
        names = table.index.feature_names
        readers = np.array([reads[name] for name in names.templates]).reshape(-1, self.n)
        # [W] whether the expert of the weight's column reads the feature's template
        kept = readers[names.template_of[table.rows_of_pairs()], self.experts.expert_of[table.pair_columns]]
        rearrange_param(layer, "states", lambda weights: weights[kept])
        layer.attrs[node.attr] = features.with_tables({**features.tables, "states": table.thinned(kept)})

    # ----------------------------------------------------------------------------------------------- training

    def training_batch(self, model: Model, batch: AnnotatedDocs, name: str) -> AnnotatedDocs:
        """The batch as a set of chains, without the texts that are held out.

        RAISES (ValueError): CRF633 for experts of labels, with rules in training or spans that are known to be wrong.
        """
        ruled = batch.structure is not None
        if ruled and self.kind == "labels":
            raise ValueError(
                Errors.CRF633.format(
                    name=name,
                    problem="can't learn from rules (in_training = true), nor from spans that are known to be wrong",
                )
            )
        structure = batch.structure or self.in_training.with_threads(default_threads())
        share = model.attrs["holdout"] if self.learns_now else 0.0
        held_out = held_out_sequences(batch.docs, batch.starts, share)
        weights = np.ones(len(held_out)) if batch.weights is None else batch.weights
        some = HeldOut(slice(None), batch.starts, batch.allowed, np.where(held_out, weights, 0.0), structure)
        if not ruled:  # rules belong to the batch as a whole
            lengths = np.diff(batch.starts)
            tokens = np.flatnonzero(np.repeat(held_out, lengths))
            starts = np.append(0, np.cumsum(lengths[held_out])).astype(np.int64)
            some = HeldOut(tokens, starts, cut_clamp(batch.allowed, tokens), weights[held_out], structure)
        of_set = SetOfExperts(structure, self.experts, some, weights)
        return self._of_experts(batch)._replace(weights=np.where(held_out, 0.0, weights), structure=of_set)

    # ----------------------------------------------------------------------------------------------- scores

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> ChainScores:
        """The potentials of all experts, side by side."""
        if self.kind != "named":
            return super().join(outputs, shared)
        outputs_of: list[list[Emissions]] = [[] for _ in range(self.n)]
        for output, expert in zip(outputs, self.expert_of):
            outputs_of[expert].append(output)
        parts = list(map(total, outputs_of))
        emissions = np.stack([part.scores for part in parts], axis=2).reshape(len(parts[0].scores), self.experts.size)
        return super().join((Emissions(emissions, None, outputs[0].starts),), shared)

    def part(self, d_scores: ChainScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Derivatives by the outputs of the layers, and by the shared scores."""
        if self.kind != "named":
            return super().part(d_scores, outputs)
        # Column s · n + e is state s of expert e
        by_expert = d_scores.emissions.reshape(len(d_scores.emissions), self.experts.size // self.n, self.n)
        starts: Any = d_scores.starts
        of_layers = [np.ascontiguousarray(by_expert[:, :, expert]) for expert in self.expert_of]
        return tuple([Emissions(each, None, starts) for each in of_layers]), self.shared_part(d_scores)

    def in_prediction(self, model: Model, scores: ChainScores) -> ChainScores:
        """The weighted sum of the scores of the experts."""
        return self.pooled(model, scores, shares_of(model))

    def pooled(self, model: Model, scores: ChainScores, shares: Floats) -> ChainScores:
        """The scores of the pool, with weights of the experts (float64[k])."""
        of_experts = {name: getattr(scores, name) for name in self.traits.params}
        # 0 · -inf has no value: what is impossible is set below
        known = {name: np.where(array > -np.inf, array, 0.0) for name, array in of_experts.items()}
        shared = self.experts.pooled(known, shares)
        possible = model.attrs["allowed"]._asdict()
        limited = {name: np.where(possible[name], array, -np.inf) for name, array in shared.items()}
        return scores._replace(emissions=scores.emissions @ self.experts.mix(shares), **limited)

    def explained(self, model: Model) -> Explained:
        """Explanations of the weighted sum."""
        shares = shares_of(model)
        experts = self.experts
        mixes = [experts.mix(shares)]
        if self.kind == "named":
            mixes = [shares[expert] * np.eye(experts.columns.shape[1]) for expert in self.expert_of]
        chain = MixedChain(mixes, lambda columns: self.named_states(model, None, (columns,))[0])
        return Explained(chain, experts.pooled(exact_weights(model), shares), mixes)

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """The state that each column stands for."""
        if parameter is None and self.kind == "named":
            return places
        return tuple(self.experts.state_of[place] for place in places)


class LearnsShares(BatchOptimizer):
    """Base of the optimizers that also learn the weights of the experts, after steps, from the texts that are held out. When they
    would stop, the experts go on with all texts, and the weights of the experts stay."""

    def step(self, objective: Any, *, key: str) -> float:
        """Take a step of the experts, and one of their weights before the model is evaluated."""
        value = super().step(objective, key=key)
        node = getattr(objective, "node", None)
        if not isinstance(node, OpinionPoolNode) or not node.learns_now or not self.is_worth_evaluating(key):
            return value
        if not self._learn_shares(objective, key) or self.stop_reason(key) is None:
            return value
        announcements.info(
            "%s: the weights of the experts are %s; from here on the experts learn from the texts that were held out, too",
            key,
            ", ".join(f"{share:.3f}" for share in shares_of(objective.model)),
        )
        node.holds_out = False
        batches = [objective.annotation(number)[2] for number in range(objective.n_batches)]
        objective.weigh([each.weights for each in batches], "all texts")
        self.forget(key)
        return super().step(objective, key=key)

    def _learn_shares(self, objective: CorpusObjective, key: str) -> bool:
        """Learn the weights of the experts, which stay as they are. RETURNS (bool): False if no texts are held out."""
        model = objective.model
        structures = [objective.annotation(number)[2] for number in range(objective.n_batches)]
        numbers = [number for number, each in enumerate(structures) if each.held_out.weights.any()]
        if not numbers:
            if "shares" not in self._warned:
                self._warned.add("shares")
                n = sum(len(each.held_out.starts) - 1 for each in structures)
                logger.warning(Warnings.CRFW633.format(name=key, holdout=model.attrs["holdout"], n=n))
            return False
        # With the experts as they are, the loss is convex in their weights
        scores = objective.scores(objective.weights())

        def read(number: int) -> tuple[Any, HeldOut]:
            held_out = structures[number].held_out
            return cut(scores(number), held_out.tokens, held_out.starts), held_out

        problem = SharesObjective(model, run_chunks(read, numbers, default_threads()))
        with quietly():
            LBFGS(l2=0.0, iterations_per_step=50).step(problem, key=key)
        return True


@dataclass(kw_only=True, eq=False, repr=False)
class PoolLBFGS(LearnsShares, LBFGS):
    """L-BFGS for opinion pools. Between steps it learns the weights of the experts from the texts that are held out. Once it has
    reached a minimum, the experts go on with all texts. The settings are described at `spacy_crf.LBFGS.v1`.
    """


@dataclass(kw_only=True, eq=False, repr=False)
class PoolConjugateGradient(LearnsShares, ConjugateGradient):
    """Conjugate gradients for opinion pools, whose experts they weigh as `spacy_crf_lab.PoolLBFGS.v1` does. The settings not
    named here are described at `spacy_crf.LBFGS.v1`.

    preconditioner (str): See `ConjugateGradient`.
    mixed (bool): See `ConjugateGradient`.
    """


@blocks_of.register
def _(node: OpinionPoolNode, model: Model) -> Iterator[Block]:
    """Weights, times those of the experts."""
    shares = shares_of(model)
    experts = node.experts
    for number, layer in enumerate(model.layers):
        for block in blocks_of(layer.attrs["node"], layer):
            own = node.expert_of[number] if node.kind == "named" else experts.expert_of[block.states[-1]]
            states = node.named_states(model, None, block.states)
            yield block._replace(weights=shares[own] * block.weights, states=states)
    for name, mask in node.weighed(model).items():
        block = shared_block(model, name, mask)
        yield block._replace(weights=shares[experts.expert_of[np.nonzero(mask)[-1]]] * block.weights)


def OpinionPool(
    emissions: Optional[Model[list[Doc], Emissions]] = None,
    experts: Union[str, Settings] = "random",
    weights: str = "likelihood",
    holdout: float = 0.1,
    n: int = 4,
    share: float = 0.2,
    seed: int = 0,
    possible_transitions: bool = False,
) -> Model[list[Doc], ChainScores]:
    """A logarithmic opinion pool (Smith, Cohn & Osborne 2005): a weighted sum of the scores of chains that are each trained as
    though alone.

    emissions (Model): From SparseEmissions, whose features the experts share out among them. None with named experts.
    experts (Union[str, Dict[str, Model]]): "random", one expert reads all templates, and the others a random share each;
        "positions", one reads all, and the others what is before, at and behind a token; "labels", each knows one label, and
        takes others for none; or models by name, each a LinearChain.
    weights (str): "likelihood", learned from texts that are held out, by `spacy_crf_lab.PoolLBFGS.v1` or
        `spacy_crf_lab.PoolConjugateGradient.v1`; or "equal", for any optimizer.
    holdout (float): Share of the texts that are held out. When the optimizer has stopped, experts learn from these, too.
    n (int), share (float), seed (int): Number of experts, the share of the templates that the others of them read, and the seed
        of the choice, for "random".
    possible_transitions (bool): As in `spacy_crf.LinearChain.v1`.
    RAISES (ValueError): CRF020; CRF634 for an expert without templates.
    """
    kind = "named" if isinstance(experts, dict) else experts
    checks.one_of(_OWNER, "experts", kind, ("random", "positions", "labels", "named"))
    checks.expect(experts != "named", _OWNER, "experts", experts, "a table of models under their names")
    learns = checks.one_of(_OWNER, "weights", weights, ("likelihood", "equal")) == "likelihood"
    possible = checks.flag(_OWNER, "possible_transitions", possible_transitions)
    settings = {
        "n": checks.count(_OWNER, "n", n, least=2, most=100),
        "share": checks.number(_OWNER, "share", share, least=0.01, most=1.0),
        "seed": checks.count(_OWNER, "seed", seed, least=0, most=checks.ANY),
    }
    expert_of: list[int] = []
    layers: Settings
    reads: Optional[Callable] = None
    if isinstance(experts, dict):
        checks.expect(emissions is None, _OWNER, "emissions", emissions, "null: each of the named experts has its own")
        layers, expert_of = _layers_of(experts, possible)
        n = len(experts)
        known = [*experts]
    else:
        features = _shared(emissions)
        layers = {"emissions": emissions}
        known = [kind]
        if kind == "positions":
            n = len(POSITIONS)
            reads = by_position
            _check_positions(features)
        elif kind == "random":
            reads = partial(at_random, **settings)
            known = [kind, *settings.values()]
    pool = build(
        "opinion_pool",
        OpinionPoolNode(kind, n, learns, expert_of, reads),
        layers,
        possible_transitions=possible,
        holdout=checks.number(_OWNER, "holdout", holdout, least=0.01, most=0.5),
        experts=known,
    )
    pool.set_param("shares", None)
    return pool


def _shared(emissions: Any) -> FeatureSet:
    """The features of emissions. RAISES (ValueError): CRF020 for emissions whose features cannot be shared out."""
    check_emissions(_OWNER, emissions)
    checks.expect(emissions.name == "sparse_emissions", _OWNER, "emissions", emissions.name, "from SparseEmissions")
    features: FeatureSet = emissions.attrs["features"].feature_set
    check_counted(_OWNER, features, ", unless the experts are named")
    return features


def _check_positions(features: FeatureSet) -> None:
    """RAISES (ValueError): CRF634."""
    reads = by_position(features.templates).any(axis=0)
    if not reads.all():
        lacks = POSITIONS[int(reads.argmin())]
        of = {"past": "before a token", "present": "at a token alone", "future": "behind a token"}[lacks]
        raise ValueError(
            Errors.CRF634.format(owner=_OWNER, experts="positions", expert=lacks, reason=f"none reads what is {of}")
        )


def _layers_of(experts: Settings, possible: bool) -> tuple[dict[str, Model], list[int]]:
    """The layers of named experts by name, and the expert of each. RAISES (ValueError): CRF020."""
    checks.expect(len(experts) > 1, _OWNER, "experts", [*experts], "two models or more")
    layers: dict[str, Model] = {}
    expert_of = []
    for number, (name, model) in enumerate(experts.items()):
        setting = f"experts.{name}"
        node = getattr(model, "attrs", {}).get("node")
        shown = getattr(model, "name", model)
        checks.expect(type(node) is ChainNode, _OWNER, setting, shown, "a spacy_crf.LinearChain.v1, and no pool")
        same = model.attrs["possible_transitions"] == possible
        checks.expect(same, _OWNER, f"{setting}.possible_transitions", not possible, "that of the pool")
        for layer in model.layers:
            sparse = isinstance(layer.attrs["node"], SparseNode)
            templates = [*map(str, layer.attrs["features"].feature_set.transitions)] if sparse else []
            checks.expect(not templates, _OWNER, f"{setting}.features", templates, "without templates of transitions")
            # Components find the first sparse features by this name
            layers["emissions" if sparse and "emissions" not in layers else f"{name} {len(layers)}"] = layer
            expert_of.append(number)
    encoders = [layer.name for layer in layers.values() if layer.has_ref("tok2vec")]
    checks.expect(len(encoders) <= 1, _OWNER, "experts", encoders, "with one encoder at most")
    return layers, expert_of
