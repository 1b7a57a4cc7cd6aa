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
from .sparse_rows import SparseRows


class _Annotation(NamedTuple):
    clamp: PackedBits  # [T, S]
    weights: Optional[Floats]  # [B] of the sequences
    structure: Any  # of the batch, None for the linear chain alone


# What a weight of a label that came later counts of what training met before: it was not asked for then. Counted in full, fifty
# addresses were learned to F 0.58 in place of 0.80 where a model of news kept what it knew.
LATER = 0.01


class Evidence(NamedTuple):
    """How often training met what weights belong to."""

    counts: dict[str, NDArray[np.int64]]  # [F] of the features, by table
    tokens: int
    sequences: int
    n_tags: int  # that there were

    @classmethod
    def known(cls, counts: dict[str, NDArray[np.int64]], met: list[int], n_tags: int) -> "Evidence":
        """met (list[int]): Tokens and sequences; zeros where a model was saved by a version that did not count."""
        tokens = max(met[0], int(counts["states"].max(initial=0)))
        return cls(counts, tokens, met[1] or tokens // 15, n_tags)

    def plus(self, other: "Evidence") -> "Evidence":
        """With what came later."""
        counts = {
            name: later + np.pad(self.counts[name], (0, len(later) - len(self.counts[name])))
            for name, later in other.counts.items()
        }
        return Evidence(counts, self.tokens + other.tokens, self.sequences + other.sequences, other.n_tags)

    def of_rows(self, name: str, rows: SparseRows, later: NDArray[np.bool_]) -> Floats:
        """How often the feature of each weight was met; new features come behind those that there were.

        later (bool[C]): Columns of tags that came later.
        RETURNS (float64[W])
        """
        counts = np.zeros(len(rows.index))
        known = self.counts[name]
        counts[: len(known)] = known
        return counts[rows.rows_of_pairs()] * np.where(later, LATER, 1.0)[rows.pair_columns]

    def of_chain(self, observed: NDArray[np.bool_]) -> Floats:
        """How often transitions, firsts and lasts could have been met.

        observed (bool[S + 2, S]): Which of them have a weight.
        """
        met = np.full(observed.shape, float(self.tokens))
        met[-2:] = self.sequences
        met[self.n_tags : -2] *= LATER
        met[: self.n_tags, self.n_tags :] *= LATER
        met[-2:, self.n_tags :] *= LATER
        return met[observed]


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

    def evidence(self) -> Evidence:
        """What training has met so far."""
        tables = {"states": self._features.states, "transitions": self._features.transitions}
        counts = {name: rows.counts for name, rows in tables.items()}
        return Evidence.known(counts, self._model.attrs["met"], self._features.n_tags)

    def evidence_of(self, docs: list[Doc]) -> Evidence:
        """What there is to meet in texts."""
        prepared = self._features.prepare(docs)
        counts = {
            name: np.bincount(features.rows, minlength=len(rows.index)) if features is not None else rows.counts[:0]
            for name, features, rows in (
                ("states", prepared.states, self._features.states),
                ("transitions", prepared.transitions, self._features.transitions),
            )
        }
        return Evidence(counts, int(prepared.starts[-1]), len(prepared.starts) - 1, self._features.n_tags)

    def met(self, evidence: Evidence) -> Floats:
        """How often what each weight belongs to was met: float64[n]."""
        later = np.arange(self._features.n_tags) >= evidence.n_tags
        return np.concatenate(
            [
                evidence.of_rows("states", self._features.states, later),
                evidence.of_rows("transitions", self._features.transitions, np.logical_or.outer(later, later).ravel()),
                evidence.of_chain(self._observed),
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
