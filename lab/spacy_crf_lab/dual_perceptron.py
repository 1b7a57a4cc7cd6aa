"""The perceptron in its dual form, for kernels: it counts by how much each token of the training data was taken for which tag.

    scores[t, y] = sum_j A[j, y] K(x_t, x_j)

After a wrong labelling, A[j, gold] rises by 1 and A[j, predicted] falls by 1 at each token j where both differ, and the
transitions change likewise. With a linear kernel this is the perceptron of Collins (2002), labelling for labelling: the weights
of a feature are A times its values at the tokens. (Collins & Duffy 2002; Altun, Hofmann & Johnson 2003.)
"""

import copy
import logging
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from thinc.api import Model

from spacy_crf import checks
from spacy_crf.arrays import of_file
from spacy_crf.errors import cant_train
from spacy_crf.losses.clamped import LabelledLoss, MaxMargin, Perceptron
from spacy_crf.models.emissions import Emissions
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.node import remove_params
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.structure import StructureNode
from spacy_crf.models.weights import checksum
from spacy_crf.optimizers.objective import CRFOptimizer, setting
from spacy_crf.types import Clamp, Floats, Ints

from .errors import Warnings
from .kernel_basis import Basis, HashedTokens
from .kernel_emissions import KernelCorpus
from .maxent import MaxEntNode

logger = logging.getLogger("spacy.spacy_crf")
_CHAINS = (ChainNode, MaxEntNode)
_MATRIX = 5000  # tokens whose kernel with each other is computed once, which takes 200 MB


class Sequences(NamedTuple):
    """A corpus as the optimizer walks through it."""

    model: Model
    loss: LabelledLoss
    layer: KernelCorpus
    tokens: HashedTokens  # D tokens with different features
    number: Ints  # [T] of each token of the corpus
    starts: Ints  # [B + 1]
    clamp: Clamp  # [T, S]
    weights: Floats  # [B] factors of the sequences

    @property
    def node(self) -> StructureNode:
        """The node of the model."""
        return self.model.attrs["node"]

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the counters of tokens, and of the shared scores by name."""
        sizes = {name: mask.shape for name, mask in self.node.weighed(self.model).items()}
        return {**sizes, "counters": (len(self.tokens.starts) - 1, self.clamp.shape[1])}

    @property
    def signature(self) -> int:
        """Equal for the same corpus."""
        return checksum([*self.tokens[:3], self.number, self.starts, self.clamp, self.weights])


@dataclass
class DualRun:
    """State of the training of one component."""

    signature: int
    values: dict[str, Floats]  # "counters", [D, S], and the shared scores by name
    drifts: dict[str, Floats]  # the sum of all moves, each times the time of the move
    count: int = 0  # sequences seen
    iteration: int = 0  # epochs
    stop_reason: Optional[str] = None  # it never ends

    def to_msg(self) -> list[object]:
        """The run as a file holds it."""
        return [self.signature, self.values, self.drifts, self.count, self.iteration]


@dataclass(kw_only=True, eq=False, repr=False)
class DualPerceptron(CRFOptimizer):
    """The perceptron for `spacy_crf_lab.KernelEmissions.v1`, in a linear chain or `MaxEnt`, with the losses Perceptron and
    MaxMargin. The tokens of wrong labellings become the basis of the kernel, which is exact: nothing is projected.

    use_averages (bool): Whether `optimizer.averages` holds the averages of the counters, before the first sequence and after each
        one, which `spacy train` evaluates and saves.
    budget (int): Most tokens in the basis: beyond it, the token with the smallest counters is dropped (Crammer, Kandola & Singer
        2004). 0 for any number.
    epochs_per_step (int): Passes over the corpus in one step, at most 1,000.
    seed (int): Seed of the order of the sequences.
    """

    losses: ClassVar = (Perceptron, MaxMargin)

    use_averages: bool = setting(True, checks.flag, fixed=True)
    budget: int = setting(0, checks.count, fixed=True, least=0)
    epochs_per_step: int = setting(1, checks.count, most=1000)
    seed: int = setting(0, checks.count, fixed=True, least=0, most=checks.ANY)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.averages = {} if self.use_averages else None

    def step(self, objective: CorpusObjective, *, key: str) -> float:
        """RAISES (ValueError): CRF347 for models without a kernel, or with rules in training; CRF020 for too small a budget."""
        sequences = self._sequences(objective, key)
        run = self._run_of(sequences, key)
        losses = 0.0
        basis = Basis(sequences.layer.kernel.known.kernels, sequences.tokens)
        matrix = basis.matrix() if len(basis) <= _MATRIX else None
        for _ in range(self.epochs_per_step):
            losses = 0.0
            n_sequences = len(sequences.starts) - 1
            for place in np.random.default_rng((self.seed, run.iteration)).permutation(n_sequences).tolist():
                losses += self._learn(run, sequences, basis, matrix, place)
            run.iteration += 1
        self._write(run, sequences)
        return losses

    def _sequences(self, objective: CorpusObjective, key: str) -> Sequences:
        fitting = "LBFGS or Adam.v1"
        parts: Any = getattr(objective, "parts", (None, None, []))
        model, loss, layers = parts
        if len(layers) != 1 or not isinstance(layers[0], KernelCorpus) or type(model.attrs["node"]) not in _CHAINS:
            raise cant_train(
                self,
                what=f"the model of '{key}'",
                reason="it learns chains of KernelEmissions, and begins anew where training goes on",
                fitting=fitting,
            )
        clamps, weights, others = zip(*map(objective.annotation, range(objective.n_batches)))
        if any(other is not None for other in others):
            raise cant_train(self, f"the rules or soft labels of '{key}'", "it ignores them", fitting)
        checks.expect(
            not 0 < self.budget < objective.n_states,
            type(self).__name__,
            "budget",
            self.budget,
            f"0, or at least the number of tags of '{key}', {objective.n_states}",
        )
        [layer] = layers
        tokens = HashedTokens.joined(layer.tokens)
        lengths = [*map(np.diff, layer.starts)]
        _, first, number = np.unique(tokens.fingerprints, return_index=True, return_inverse=True)
        factors = [np.ones(len(some)) if given is None else given for some, given in zip(lengths, weights)]
        starts = np.append(0, np.cumsum(np.concatenate(lengths)))
        annotation = np.concatenate(clamps), np.concatenate(factors)
        return Sequences(model, loss, layer, tokens.some(first), number, starts, *annotation)

    def _run_of(self, sequences: Sequences, key: str) -> DualRun:
        run = self._runs.get(key)
        signature = sequences.signature
        if run is None or run.signature != signature:
            if run is not None:
                logger.warning(Warnings.CRFW620.format(name=key))
            values = {name: np.zeros(size) for name, size in sequences.sizes.items()}
            run = self._runs[key] = DualRun(signature, values, copy.deepcopy(values))
        self._expect_sizes(run, sequences)
        return run

    def _expect_sizes(self, run: DualRun, sequences: Sequences) -> None:
        for arrays in (run.values, run.drifts):
            self.expect_alike("counters", {name: array.shape for name, array in arrays.items()}, sequences.sizes)

    def _learn(self, run: DualRun, sequences: Sequences, basis: Basis, matrix: Optional[Floats], place: int) -> float:
        """Learn from one sequence. RETURNS (float): Its loss."""
        tokens = slice(sequences.starts[place], sequences.starts[place + 1])
        number = sequences.number[tokens]
        counters = run.values["counters"]
        node = sequences.node
        # Tokens that were never taken for a wrong tag add nothing to scores
        [used] = np.nonzero(counters.any(axis=1))
        if matrix is None:
            scores = basis.times(sequences.tokens.some(number), counters)
        else:
            scores = matrix[np.ix_(number, used)] @ counters[used]
        output = Emissions(scores, None, np.array([0, len(number)]))
        found = node.join((output,), node.potentials(sequences.model, run.values))
        told = {"weights": sequences.weights[place : place + 1]}
        run.count += 1
        losses, d_scores, _ = sequences.loss(node.in_training, found, sequences.clamp[tokens], **told)
        masks = node.weighed(sequences.model)
        [d_output], d_shared = node.part(d_scores, (output,))
        for name, derivative in d_shared.items():
            move = np.where(masks[name], -derivative, 0.0)
            run.values[name] += move
            # mean over time = value - drift / (count + 1)
            run.drifts[name] += run.count * move
        np.subtract.at(counters, number, d_output.scores)
        np.subtract.at(run.drifts["counters"], number, run.count * d_output.scores)
        # The tokens with the smallest counters change scores least
        if self.budget and d_output.scores.any():
            sizes = np.abs(counters).sum(axis=1)
            excess = np.count_nonzero(sizes) - self.budget
            if excess > 0:
                dropped = np.argsort(np.where(sizes > 0.0, sizes, np.inf), kind="stable")[:excess]
                for values in (counters, run.drifts["counters"]):
                    values[dropped] = 0.0
        return float(losses.sum())

    def _write(self, run: DualRun, sequences: Sequences) -> None:
        """Make the counted tokens the basis, and write the counters or their averages to the model."""
        model = sequences.model
        layer = sequences.layer
        used: Any = run.values["counters"].any(axis=1) | run.drifts["counters"].any(axis=1)
        # A basis has at least one token
        used[:1] |= not used.any()
        layer.kernel.basis = Basis(layer.kernel.known.kernels, sequences.tokens.some(np.flatnonzero(used)))
        averages = {name: value - run.drifts[name] / (run.count + 1) for name, value in run.values.items()}
        output: Any = layer.layer.get_ref("output")
        places = {name: (model, name) for name in run.values} | {"counters": (output, "W")}
        remove_params(output)  # thinc changes no dimension of a layer that has parameters
        output.set_dim("nI", int(used.sum()), force=True)
        output.set_param("b", np.zeros(len(averages["counters"][0]), dtype=np.float32))
        for name, (node, param) in places.items():
            arrays: list = [
                np.ascontiguousarray(values[name][used].T if name == "counters" else values[name], dtype=np.float32)
                for values in (run.values, averages)
            ]
            if self.averages is not None:
                self.averages[node.id, param] = arrays[1]
            node.set_param(param, arrays[self.averages is not None and self.assigns_averages])

    def resume(self, objective: CorpusObjective, data: bytes, *, key: str) -> int:
        """Continue a saved run with the same corpus. RETURNS (int): The epochs that it has taken."""
        run: DualRun = self.saved_run(data, key)
        sequences = self._sequences(objective, key)
        self._expect_sizes(run, sequences)
        self._write(run, sequences)
        self._runs[key] = run
        return run.iteration

    def run_from_msg(self, msg: Any) -> DualRun:
        """The run of `run_to_msg`."""
        signature, values, drifts, count, iteration = msg
        hash(signature)  # an array has none
        checks.count("a run", "count", count, least=0, most=checks.ANY)
        checks.count("a run", "iteration", iteration, least=0, most=checks.ANY)
        return DualRun(signature, _of_file(values), _of_file(drifts), count, iteration)


def _of_file(arrays: dict[str, Any]) -> dict[str, Floats]:
    """The arrays of a run, by name."""
    return {name: of_file(name, array, np.float64, (None,) * np.ndim(array)) for name, array in arrays.items()}
