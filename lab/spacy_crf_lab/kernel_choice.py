"""Import vectors, the tokens that kernels compare others with (Zhu & Hastie 2005; Lafferty, Zhu & Liu 2004), and the weights of
several kernels (Kloft et al. 2011), chosen before training.

The model that chooses them has tokens that do not depend on each other (multinomial kernel logistic regression), unlike the chain
that is trained later. So the choice needs no optimizer of its own: all train with what is chosen.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from spacy_crf.arrays import states_of
from spacy_crf.errors import announcements
from spacy_crf.models.node import AnnotatedDocs
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import Bools, Floats, Ints

from .errors import Warnings
from .kernel_basis import OWNER, Basis, HashedTokens, Kernel

logger = logging.getLogger("spacy.spacy_crf")
Kernels = tuple[Kernel, ...]

_MOST = 20_000  # different tokens that are learned from
_POOL = 2000  # random candidates of each batch of import vectors
# Batches of 10 were as good as batches of 50 and took three times as long. Without the projection within a batch its tokens are
# alike: 200 tokens of mit_restaurant had an F1 of 45.3 in place of 49.1.
_BATCH = 50
_L2 = 0.02  # relative to the mean of K(x, x)
_ITERATIONS = 10  # of L-BFGS, before each batch
# Of weights of kernels, which have converged if none changes by more
_BASIS_OF_SUM = 500
_ITERATIONS_OF_SUM = 30
_ROUNDS = 30
_CHANGE = 0.01
_EPS = 1e-5  # eigenvalues that are rounding, relative to the largest K(x, x)


class AnnotatedTokens(NamedTuple):
    """The annotated tokens of a corpus."""

    tokens: HashedTokens  # D tokens with different features, in the order of the corpus
    number: Ints  # [T] of each token among these
    allowed: Bools  # [T, S] states that the annotation allows
    factors: Floats  # [T] weights of the sequences

    @classmethod
    def read(
        cls, read: Callable[[list[Doc]], HashedTokens], batches: Iterable[AnnotatedDocs], n_states: int
    ) -> "AnnotatedTokens":
        """Read the tokens with annotation."""
        parts = []
        allowed = [np.zeros((0, n_states), dtype=np.bool_)]
        factors = [np.zeros(0)]
        for batch in batches:
            states = states_of(batch.allowed)
            lengths = np.diff(batch.starts)
            told = ~batch.unset | (states.sum(axis=1) == 1)
            parts.append(read(batch.docs).some(np.flatnonzero(told)))
            allowed.append(states[told])
            factors.append(np.repeat(np.ones(len(lengths)) if batch.weights is None else batch.weights, lengths)[told])
        tokens = HashedTokens.joined(parts)
        _, first, number = np.unique(tokens.fingerprints, return_index=True, return_inverse=True)
        order = np.argsort(first)
        told = np.concatenate(allowed)
        weights = np.concatenate(factors)
        return cls(tokens.some(first[order]), np.argsort(order)[number], told, weights)

    def drawn(self, generator: np.random.Generator) -> "AnnotatedTokens":
        """At most 20,000 different tokens, each of them once for each annotation that it has."""
        n = self.tokens.n
        chosen = np.arange(n) if n <= _MOST else np.sort(generator.choice(n, _MOST, replace=False))
        # A row for each token: its number, and its allowed states as bits
        rows = np.column_stack([self.number, np.packbits(self.allowed, axis=1)])[np.isin(self.number, chosen)]
        rows, same = np.unique(rows, axis=0, return_inverse=True)
        allowed = np.unpackbits(rows[:, 1:].astype(np.uint8), axis=1, count=self.allowed.shape[1]).astype(np.bool_)
        factors: Any = np.bincount(same.ravel(), self.factors[np.isin(self.number, chosen)], len(rows))
        return AnnotatedTokens(self.tokens.some(chosen), np.searchsorted(chosen, rows[:, 0]), allowed, factors)


class LocalModel:
    """Objective of multinomial logistic regression on the features of tokens, for optimizers. Features may be added."""

    def __init__(self, annotated: AnnotatedTokens):
        self._annotated = annotated
        self.features = np.ones((annotated.tokens.n, 1), dtype=np.float32)  # [D, F] of which the first is the bias
        self.values = np.zeros((1, annotated.allowed.shape[1]))  # [F, S] the weights

    @property
    def signature(self) -> int:
        """Changes as features are added."""
        return len(self.values)

    def weights(self) -> Floats:
        """The weights, laid end to end: float64[F · S]."""
        return self.values.flatten()

    def assign(self, weights: Floats) -> None:
        """Set the weights (float64[F · S])."""
        self.values = weights.reshape(self.values.shape).copy()

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Loss at weights (float64[F · S]), and its gradient."""
        loss, residuals = self._compare(weights.reshape(self.values.shape))
        return loss, -(self.features.T @ residuals).ravel()

    def learn(self, l2: float, n_iterations: int) -> None:
        """Run some iterations of L-BFGS."""
        LBFGS(l2=l2, iterations_per_step=n_iterations, tolerance=0.0, delta=0.0).step(self, key=OWNER)

    @property
    def residuals(self) -> Floats:
        """Gold minus marginal, the negative derivative of the loss by the scores, summed over equal tokens: float64[D, S]."""
        return self._compare(self.values)[1]

    def _compare(self, values: Floats) -> tuple[float, Floats]:
        _, number, allowed, factors = self._annotated
        scores = (self.features @ values)[number]
        scores -= scores.max(axis=1, keepdims=True)
        every = np.exp(scores)
        gold = np.where(allowed, every, 0.0)
        sums = every.sum(axis=1, keepdims=True), np.maximum(gold.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        # [D, S] equal tokens add up
        residuals = np.zeros((len(self.features), values.shape[1]))
        np.add.at(residuals, number, (gold / sums[1] - every / sums[0]) * factors[:, np.newaxis])
        return float(factors @ np.log(sums[0] / sums[1])[:, 0]), residuals

    def add(self, added: NDArray) -> None:
        """Add features (float[D, F]). The scores stay."""
        self.features = np.hstack([self.features, added.astype(np.float32)])
        self.values = np.vstack([self.values, np.zeros((added.shape[1], self.values.shape[1]))])


def import_vectors(kernels: Kernels, annotated: AnnotatedTokens, n: int, generator: np.random.Generator) -> Ints:
    """The numbers of n tokens (int64[n]), by what they do for the model that has learned with those chosen before.

    With the residuals r of the model, the loss falls fastest along the function G = Σ_t r_t K(x_t, .). The token x of the largest
    |G(x)|² / K(x, x) joins, whose function K(., x) has the largest share of G; then G loses this share, for the next token. The
    model learns before each batch, beginning with its weights of before.
    """
    tokens = annotated.tokens
    model = LocalModel(annotated)
    every = Basis(kernels, tokens)
    # kernels with the gamma of all tokens
    kernels = every.kernels
    l2 = _L2 * float(np.abs(every.diagonal()).mean())
    left = np.arange(tokens.n)
    chosen = np.zeros(0, dtype=np.int64)
    while len(chosen) < n:
        model.learn(l2, _ITERATIONS)
        pool = np.sort(generator.choice(left, min(_POOL, len(left)), replace=False))
        basis = Basis(kernels, tokens.some(pool))
        residuals = model.residuals
        slopes: Any = sum(values.T @ residuals[block] for block, values in basis.blocks(tokens))  # [N, S]
        gram = basis.matrix()
        is_left = np.ones(len(pool), dtype=np.bool_)
        lengths = np.where(gram.diagonal() > 0.0, gram.diagonal(), np.inf)
        for _ in range(min(_BATCH, n - len(chosen), len(pool))):
            best = int(np.argmax(np.where(is_left, (slopes**2).sum(axis=1) / lengths, -1.0)))
            is_left[best] = False
            # G loses the part along K(., best)
            slopes -= np.outer(gram[:, best] / lengths[best], slopes[best])
        added = pool[~is_left]
        left = np.setdiff1d(left, added)
        chosen = np.append(chosen, added)
        # Features that the kernel with the added tokens has beyond those that are there
        of_added = Basis(kernels, tokens.some(added))
        there = model.features[:, 1:]
        rest = of_added.features(tokens) - there @ there[added].T
        eigenvalues, vectors = np.linalg.eigh(rest[added].astype(np.float64))
        kept = eigenvalues > _EPS * of_added.diagonal().max()
        model.add(rest @ (vectors[:, kept] / np.sqrt(eigenvalues[kept])))
    return chosen


def weighted(kernels: Kernels, annotated: AnnotatedTokens, norm: float, generator: np.random.Generator) -> Kernels:
    """The kernels, each divided by its mean of K(x, x), with learned weights d whose norm (Σ d^norm)^(1 / norm) is 1.

    A model of K = Σ d_j K_j learns the weights A of tokens, which make |w_j|² = d_j² tr(Aᵀ K_j A) the squared norm of the part of
    kernel j; then d_j ∝ |w_j|^(2 / (norm + 1)), and so on in turn (Kloft et al. 2011).
    """
    tokens = annotated.tokens
    some = tokens.some(np.sort(generator.choice(tokens.n, min(_BASIS_OF_SUM, tokens.n), replace=False)))
    alone = [Basis((kernel,), tokens.of(number)) for number, kernel in enumerate(kernels)]
    scaled = [of.kernels[0]._replace(weight=1.0 / (float(np.abs(of.diagonal()).mean()) or 1.0)) for of in alone]
    grams = [Basis((kernel,), some.of(number)).matrix() for number, kernel in enumerate(scaled)]
    shares = np.full(len(kernels), len(kernels) ** (-1.0 / norm))
    change = np.inf
    counters = np.zeros((some.n, annotated.allowed.shape[1]))
    for _ in range(_ROUNDS):
        kernels = tuple(k._replace(weight=k.weight * share) for k, share in zip(scaled, shares.tolist()))
        if change < _CHANGE:
            break
        basis = Basis(kernels, some).whiten()
        model = LocalModel(annotated)
        model.add(basis.features(tokens))
        model.values[1:] = basis.features(some).T @ counters
        model.learn(_L2, _ITERATIONS_OF_SUM)
        whitener: Any = basis.whitener
        counters = whitener @ model.values[1:]
        lengths = np.sqrt([max(0.0, float((counters * (gram @ counters)).sum())) for gram in grams]) * shares
        # d_j ∝ |w_j|^(2 / (norm + 1))
        wanted = lengths ** (2.0 / (norm + 1.0))
        total = (wanted**norm).sum() ** (1.0 / norm)
        change = np.abs(wanted / total - shares).max() if total else 0.0
        shares = wanted / total if total else shares
    else:
        logger.warning(Warnings.CRFW621.format(owner=OWNER, change=f"{change:.2g}", n=_ROUNDS))
    named = ", ".join(f"{kernel.name} {share:.2f}" for kernel, share in zip(kernels, shares.tolist()))
    announcements.info("%s: weights of the kernels: %s", OWNER, named)
    return kernels
