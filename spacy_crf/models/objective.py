"""The training objective of a sparse linear chain over a fixed corpus, for optimizers that evaluate it many times."""

import zlib
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from ..inference.linear_chain import LinearChain
from ..inference.threads import default_threads, run_chunks
from ..losses.clamped import ClampedLoss
from ..types import Floats
from .corpus import ChainSums, CorpusEmissions, PackedBits
from .corpus import block_tokens as block_tokens  # for components
from .emissions import AnnotatedDocs, SparseFeatures
from .linear_chain import chain_scores


class _Annotation(NamedTuple):
    clamp: PackedBits  # [T, S]
    weights: Optional[Floats]  # [B] of the sequences
    structure: Any  # of the batch, None for the linear chain alone


class ChainWeights:
    """All weights of a sparse linear chain as one vector: emissions, transition templates, transitions, firsts, lasts;
    weights that were not seen in training are not part of it.

    model (Model): A LinearChain on SparseEmissions.
    """

    def __init__(self, model: Model):
        self._model = model
        self._emissions = model.get_ref("emissions")
        self._features: SparseFeatures = self._emissions.attrs["features"]
        self._observed = model.attrs["observed"].astype(bool)
        self._bounds = np.cumsum([0, self._features.states.n_weights, self._features.transitions.n_weights])

    @property
    def model_features(self) -> SparseFeatures:
        """The features that the objective was made for."""
        return self._features

    @property
    def layout(self) -> tuple[int, ...]:
        """Equal for vectors that mean the same weights."""
        check = zlib.crc32(np.ascontiguousarray(self._observed), self._features.check)
        return (int(self._bounds[-1]), int(self._observed.sum()), check)

    def frame(self) -> "ChainWeights":
        """Where each weight is, without the corpus."""
        return ChainWeights(self._model)

    def places(self, before: "ChainWeights") -> NDArray[np.int64]:
        """Where each weight is that the model had before it learned more labels or features: int64[n before]."""
        old, new = before._features, self._features
        tags = np.arange(old.n_tags)
        pairs = (tags[:, np.newaxis] * new.n_tags + tags).ravel()
        return np.concatenate(
            [
                new.states.places(old.states),
                self._bounds[1] + new.transitions.places(old.transitions, pairs),
                self._bounds[2] + places_of_observed(before._observed, self._observed),
            ]
        )

    def weights(self) -> Floats:
        chain = np.vstack([self._model.get_param(name) for name in ("transitions", "first", "last")])
        parts = [self._emissions.get_param("states"), self._emissions.get_param("transitions"), chain[self._observed]]
        return np.concatenate(parts).astype(np.float64)

    def parameters(self, weights: Floats) -> dict[tuple[int, str], NDArray[np.float32]]:
        """The weights as thinc knows them: by the id of their model and their name."""
        states, transitions, chain = np.split(weights.astype(np.float32), self._bounds[1:])
        dense = np.zeros(self._observed.shape, dtype=np.float32)
        dense[self._observed] = chain
        return {
            (self._emissions.id, "states"): states.copy(),
            (self._emissions.id, "transitions"): transitions.copy(),
            (self._model.id, "transitions"): dense[:-2].copy(),
            (self._model.id, "first"): dense[-2].copy(),
            (self._model.id, "last"): dense[-1].copy(),
        }

    def assign(self, weights: Floats) -> None:
        for (model_id, name), value in self.parameters(weights).items():
            model = self._model if model_id == self._model.id else self._emissions
            model.set_param(name, value)


def places_of_observed(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where the weights of transitions, firsts and lasts are after tags were added: int64[those of before]."""
    number = np.cumsum(after).reshape(after.shape) - 1
    size = before.shape[1]
    return np.concatenate([number[:size, :size][before[:-2]], number[-2:, :size][before[-2:]]])


class LinearChainObjective(ChainWeights):
    """Loss of a corpus as a function of its weights.

    model (Model): A LinearChain on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self._loss = loss
        self._structure = LinearChain(threads=default_threads())
        self._annotation: list[_Annotation] = []
        self._corpus = CorpusEmissions(self._features, map(self._annotate, corpus))
        self.signature = self._sign()
        self.n_impossible = 0

    def _annotate(self, batch: AnnotatedDocs) -> list[Doc]:
        """Keeps what is known of a batch but for its Docs."""
        self._annotation.append(_Annotation(PackedBits.of(batch.allowed), batch.weights, batch.structure))
        return batch.docs

    def _sign(self) -> Hashable:
        """Says what function this is: the data, the layout and the loss."""
        check = zlib.crc32(repr(self._loss).encode("utf8"))
        for block in self._annotation:
            if block.structure is not None:
                check = zlib.crc32(block.structure.signature, check)
        arrays = self._corpus.fingerprint()
        for block in self._annotation:
            arrays += [block.clamp.octets, block.weights]
        for array in arrays:
            if array is not None:
                check = zlib.crc32(np.ascontiguousarray(array), check)
        return (int(self._bounds[-1]), int(self._observed.sum()), check)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        states, transitions, observed = np.split(weights, self._bounds[1:])
        chain = np.zeros(self._observed.shape)
        chain[self._observed] = observed
        threads, sums = self._structure.threads, ChainSums(chain.shape)
        emissions = self._corpus.at(states, transitions, threads=threads)

        def differentiate(number: int):
            clamp, sequence_weights, structure = self._annotation[number]
            scores = chain_scores(self._model, emissions.score(number), chain[:-2], chain[-2], chain[-1])
            return self._loss(structure or self._structure, scores, clamp.unpacked(), weights=sequence_weights)

        for numbers in self._corpus.groups():
            derivatives = []
            for losses, d_scores, impossible in run_chunks(differentiate, numbers, threads):
                sums.add(losses, d_scores, impossible)
                derivatives.append(d_scores)
            emissions.collect(numbers, [d.emissions for d in derivatives], [d.transitions for d in derivatives])
        self.n_impossible = sums.n_impossible
        return sums.value, np.concatenate([*emissions.gradient(), sums.d_chain[self._observed]])
