"""Kernels, and the basis of tokens with which they compare others."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..features.feature_index import HashTable
from ..types import Floats, Ints
from .kernels.products import add_products

KERNELS = ("linear", "poly", "rbf", "cosine")
OWNER = "KernelEmissions"
_BLOCK = 1024  # tokens whose products are in memory together
_EPS = 1e-6  # smaller eigenvalues, relative to the largest one, are noise of single precision


class HashedTokens(NamedTuple):
    """Features of T tokens as compressed sparse rows, with hashes in place of rows of an index."""

    hashes: NDArray[np.uint64]  # [N]
    values: NDArray[np.float32]  # [N]
    starts: Ints  # [T + 1]

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.starts) - 1

    @property
    def squares(self) -> Floats:
        """Squared length of each token's features: float64[T]."""
        sums = np.append(0.0, np.cumsum(self.values.astype(np.float64) ** 2))
        return sums[self.starts[1:]] - sums[self.starts[:-1]]

    @property
    def fingerprints(self) -> NDArray[np.uint64]:
        """Equal for tokens with the same features: uint64[T]."""
        each = self.hashes * (2 * self.values.view(np.uint32).astype(np.uint64) + 1)
        sums = np.append(np.zeros(1, dtype=np.uint64), np.cumsum(each))
        return sums[self.starts[1:]] - sums[self.starts[:-1]]

    def some(self, tokens: Ints) -> "HashedTokens":
        """Some of the tokens, by number."""
        counts = np.diff(self.starts)[tokens]
        starts = np.append(0, np.cumsum(counts))
        places = np.arange(starts[-1]) + np.repeat(self.starts[tokens] - starts[:-1], counts)
        return HashedTokens(self.hashes[places], self.values[places], starts)

    @classmethod
    def joined(cls, parts: list["HashedTokens"]) -> "HashedTokens":
        """The tokens of several batches."""
        none = cls(np.zeros(0, np.uint64), np.zeros(0, np.float32), np.zeros(1, np.int64))
        hashes, values, starts = zip(none, *parts)
        lengths = np.concatenate([np.diff(of_part) for of_part in starts])
        return cls(np.concatenate(hashes), np.concatenate(values), np.append(0, np.cumsum(lengths)))


class Kernel(NamedTuple):
    """A function of the features of two tokens, which depends on their product and on their squared lengths."""

    name: str
    degree: int
    offset: float
    gamma: Optional[float]  # None for the inverse of the mean squared length in the basis

    def of(self, products: Floats, squares: Floats, basis: Floats) -> Floats:
        """The values of the kernel, written over the products.

        products (float64[N, M]): Of N tokens with M. squares (float64[N, 1]), basis (float64[M]): Their squared lengths.
        """
        if self.name == "poly":
            products += self.offset
            first = products.copy() if self.degree > 2 else products
            for _ in range(self.degree - 1):
                products *= first
        elif self.name == "rbf":
            scale: Any = self.gamma
            products *= -2.0
            products += squares
            products += basis
            np.maximum(products, 0.0, out=products)  # rounding
            np.exp(np.multiply(products, -scale, out=products), out=products)
        elif self.name == "cosine":
            lengths = np.sqrt(squares) * np.sqrt(basis)
            np.divide(products, lengths, out=products, where=lengths > 0.0)
        return products


class Basis:
    """M tokens that others are compared with.

    kernel (Kernel): Compares two tokens.
    tokens (HashedTokens): The features of the basis.
    whitener (float32[M, D]): From values of the kernel to features; None where these values are the features.
    """

    def __init__(self, kernel: Kernel, tokens: HashedTokens, whitener: Optional[NDArray[np.float32]] = None):
        self.tokens, self._squares = tokens, tokens.squares
        keys, row = np.unique(tokens.hashes, return_inverse=True)
        self._table = HashTable(keys)
        order = np.argsort(row, kind="stable")
        of_values = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(tokens.starts))
        posting_starts = np.append(0, np.cumsum(np.bincount(row, minlength=len(keys)))).astype(np.int64)
        self._postings = posting_starts, of_values[order], tokens.values[order]
        mean = float(self._squares.mean()) if len(self) else 0.0
        gamma = kernel.gamma if kernel.gamma is not None else 1.0 / mean if mean else 1.0
        self.kernel = kernel._replace(gamma=gamma)
        self.whitener = whitener

    def __len__(self) -> int:
        return self.tokens.n

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self) if self.whitener is None else self.whitener.shape[1]

    def features(self, tokens: HashedTokens) -> NDArray[np.float32]:
        """The features of tokens: float32[T, D]."""
        if self.whitener is not None:
            return self.times(tokens, self.whitener).astype(np.float32)
        found = np.empty((tokens.n, len(self)), dtype=np.float32)
        for block, values in self.blocks(tokens):
            found[block] = values
        return found

    def blocks(self, tokens: HashedTokens) -> Iterator[tuple[slice, Floats]]:
        """The kernel of tokens and basis, block by block: the tokens of a block, and float64[N, M]."""
        rows, squares = self._table.rows(tokens.hashes), tokens.squares
        for begin in range(0, len(squares), _BLOCK):
            block = slice(begin, min(begin + _BLOCK, len(squares)))
            products = np.zeros((block.stop - begin, len(self)))
            add_products(rows, tokens.values, tokens.starts, begin, *self._postings, products)
            yield block, self.kernel.of(products, squares[block, np.newaxis], self._squares)

    def times(self, tokens: HashedTokens, matrix: NDArray) -> Floats:
        """The kernel of tokens and basis times a matrix (float[M, D]): float64[T, D]."""
        found = np.empty((tokens.n, matrix.shape[1]))
        for block, values in self.blocks(tokens):
            np.matmul(values, matrix, out=found[block])
        return found

    def diagonal(self) -> Floats:
        """The kernel of each token of the basis with itself: float64[M]."""
        return self.kernel.of(self._squares.copy(), self._squares, self._squares)

    def matrix(self) -> Floats:
        """The kernel of the basis with itself: float64[M, M]."""
        matrix = np.empty((len(self), len(self)))
        for block, values in self.blocks(self.tokens):
            matrix[block] = values
        return matrix

    def whiten(self) -> "Basis":
        """Set the whitener to V / √L, without eigenvalues that are zero but for rounding.

        RAISES (ValueError): CRF620 if the matrix of the kernel is not positive.
        """
        if not len(self):
            self.whitener = np.zeros((0, 0), dtype=np.float32)
            return self
        eigenvalues, vectors = np.linalg.eigh(self.matrix())
        least = _EPS * max(eigenvalues[-1], 0.0)
        if eigenvalues[0] < -least or not np.isfinite(eigenvalues).all():
            found = {"least": f"{eigenvalues[0]:.3g}", "most": f"{eigenvalues[-1]:.3g}"}
            raise ValueError(Errors.CRF620.format(owner=OWNER, kernel=self.kernel.name, **found))
        kept = eigenvalues > least
        self.whitener = (vectors[:, kept] / np.sqrt(eigenvalues[kept])).astype(np.float32)
        return self
