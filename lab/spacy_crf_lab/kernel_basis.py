"""Kernels, and the basis of tokens with which they compare others."""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import DEP, HEAD, POS
from spacy.tokens import Doc

from spacy_crf.features.doc_batch import read_attributes
from spacy_crf.features.feature_index import HashTable
from spacy_crf.types import Floats, Ints

from .errors import Errors
from .kernels.products import add_products
from .kernels.subtrees import add_subtrees, list_subtrees, subtree_squares
from .ties.templates import has_heads

KERNELS = ("linear", "poly", "rbf", "cosine", "subtree")
OWNER = "KernelEmissions"
_BLOCK = 1024  # tokens whose products are in memory together
_EPS = 1e-6  # smaller eigenvalues, relative to the largest one, are noise of single precision


class HashedTokens(NamedTuple):
    """Features of T tokens for each of J kernels, as compressed sparse rows, with hashes in place of rows of an index. For the
    kernel of subtrees they are the tree below the token, see `kernels.subtrees`.
    """

    hashes: NDArray[np.uint64]  # [N]
    values: NDArray[np.float32]  # [N]
    starts: Ints  # [T * J + 1] the rows of a token follow one another
    n_kernels: int = 1

    @property
    def n(self) -> int:
        """Number of tokens."""
        return (len(self.starts) - 1) // self.n_kernels

    def of(self, number: int) -> "HashedTokens":
        """The features of the tokens for one kernel."""
        return self if self.n_kernels == 1 else self._rows(np.arange(number, len(self.starts) - 1, self.n_kernels))

    @property
    def squares(self) -> Floats:
        """Squared length of each token's features: float64[T]."""
        sums = np.append(0.0, np.cumsum(self.values.astype(np.float64) ** 2))
        return sums[self.starts[1:]] - sums[self.starts[:-1]]

    @property
    def fingerprints(self) -> NDArray[np.uint64]:
        """Equal for tokens that show the same in the same order: uint64[T]."""
        places = np.arange(len(self.hashes)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        # Products of odd numbers lose nothing modulo 2^64
        each = (
            self.hashes * (2 * self.values.view(np.uint32).astype(np.uint64) + 1) * (2 * places.astype(np.uint64) + 1)
        )
        sums = np.append(np.zeros(1, dtype=np.uint64), np.cumsum(each))[self.starts[:: self.n_kernels]]
        return sums[1:] - sums[:-1]

    def some(self, tokens: Ints) -> "HashedTokens":
        """Some of the tokens, by number."""
        rows = np.asarray(tokens)[:, np.newaxis] * self.n_kernels + np.arange(self.n_kernels)
        return self._rows(rows.ravel())._replace(n_kernels=self.n_kernels)

    def _rows(self, rows: Ints) -> "HashedTokens":
        counts = np.diff(self.starts)[rows]
        starts = np.append(0, np.cumsum(counts))
        places = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], counts)
        return HashedTokens(self.hashes[places], self.values[places], starts)

    @classmethod
    def joined(cls, parts: list["HashedTokens"]) -> "HashedTokens":
        """The tokens of several batches."""
        none = cls(np.zeros(0, np.uint64), np.zeros(0, np.float32), np.zeros(1, np.int64))
        hashes, values, starts, n_kernels = zip(none, *parts)
        lengths = np.concatenate([np.diff(of_part) for of_part in starts])
        return cls(np.concatenate(hashes), np.concatenate(values), np.append(0, np.cumsum(lengths)), n_kernels[-1])

    @classmethod
    def abreast(cls, of_kernels: list["HashedTokens"]) -> "HashedTokens":
        """Features of the same tokens for each of several kernels, in one."""
        if len(of_kernels) == 1:
            return of_kernels[0]
        rows = np.arange(len(of_kernels) * of_kernels[0].n).reshape(len(of_kernels), -1).T.ravel()
        return cls.joined(of_kernels)._rows(rows)._replace(n_kernels=len(of_kernels))


def read_trees(docs: list[Doc], n_levels: int) -> HashedTokens:
    """The dependency trees below all tokens. RAISES (ValueError): CRF367 for a Doc without heads or parts of speech."""
    for doc in docs:
        for what, has in (("heads of a parser", has_heads(doc)), ("parts of speech", doc.has_annotation("POS"))):
            if len(doc) and not has and (len(doc) > 1 or what == "parts of speech"):
                raise ValueError(
                    Errors.CRF367.format(
                        owner=OWNER, what=what, text=doc.text[:40], reason="the kernel 'subtree' compares them"
                    )
                )
    columns = read_attributes(docs, [HEAD, POS, DEP])
    heads = np.arange(len(columns)) + columns[:, 0].astype(np.int64)
    return HashedTokens(*list_subtrees(heads, columns[:, 1].copy(), columns[:, 2].copy(), n_levels))


class Kernel(NamedTuple):
    """A function of two tokens, of the product of what they show and of their squared lengths."""

    name: str
    degree: int  # for subtrees, levels of the tree
    offset: float
    gamma: Optional[float]  # of subtrees, the factor of a node; None for 1 / the mean squared length of the basis
    weight: float = 1.0  # in the sum of several kernels

    def squares(self, tokens: HashedTokens) -> Floats:
        """Products of tokens with themselves: float64[T]."""
        return subtree_squares(*tokens[:3], self.gamma) if self.name == "subtree" else tokens.squares

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
            # |x - b|² = |x|² - 2 x·b + |b|²
            products *= -2.0
            products += squares
            products += basis
            np.maximum(products, 0.0, out=products)  # rounding
            np.exp(np.multiply(products, -scale, out=products), out=products)
        elif self.name in ("cosine", "subtree"):
            lengths = np.sqrt(squares) * np.sqrt(basis)
            np.divide(products, lengths, out=products, where=lengths > 0.0)
        if self.weight != 1.0:
            products *= self.weight
        return products


class BasisOfKernel:
    """M tokens that one kernel compares with others."""

    def __init__(self, kernel: Kernel, tokens: HashedTokens):
        self._tokens = tokens
        self.squares = kernel.squares(tokens)
        keys, row = np.unique(tokens.hashes, return_inverse=True)
        self._table = HashTable(keys)
        order = np.argsort(row, kind="stable")
        of_values = np.repeat(np.arange(tokens.n, dtype=np.int32), np.diff(tokens.starts))
        # The tokens of the basis by feature, so that a token meets only those with a feature in common
        posting_starts = np.append(0, np.cumsum(np.bincount(row, minlength=len(keys)))).astype(np.int64)
        self._postings = posting_starts, of_values[order], order if kernel.name == "subtree" else tokens.values[order]
        mean = float(self.squares.mean()) if tokens.n else 0.0
        gamma = kernel.gamma if kernel.gamma is not None else 1.0 / mean if mean else 1.0
        self.kernel = kernel._replace(gamma=gamma)

    def values(self, tokens: HashedTokens) -> Callable[[int, int], Floats]:
        """RETURNS (Callable): From the numbers of the first and the last of some of the tokens to float64[N, M]."""
        rows = self._table.rows(tokens.hashes)
        squares = self.kernel.squares(tokens)

        def of_block(begin: int, end: int) -> Floats:
            products = np.zeros((end - begin, self._tokens.n))
            if self.kernel.name == "subtree":
                add_subtrees(rows, tokens[:3], begin, self._tokens[:3], self._postings, self.kernel.gamma, products)
            else:
                add_products(rows, tokens.values, tokens.starts, begin, *self._postings, products)
            return self.kernel.of(products, squares[begin:end, np.newaxis], self.squares)

        return of_block


class Basis:
    """M tokens that others are compared with, by the sum of some kernels.

    kernels (tuple[Kernel, ...]): Each compares two tokens.
    tokens (HashedTokens): What the basis shows to each kernel.
    whitener (float32[M, D]): From values of the kernel to features; None where these values are the features.
    """

    def __init__(
        self, kernels: tuple[Kernel, ...], tokens: HashedTokens, whitener: Optional[NDArray[np.float32]] = None
    ):
        self.tokens = tokens
        self.whitener = whitener
        self._of_kernels = [BasisOfKernel(kernel, tokens.of(number)) for number, kernel in enumerate(kernels)]
        self.kernels = tuple(of.kernel for of in self._of_kernels)

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
        functions = [of.values(tokens.of(number)) for number, of in enumerate(self._of_kernels)]
        for begin in range(0, tokens.n, _BLOCK):
            end = min(begin + _BLOCK, tokens.n)
            yield slice(begin, end), reduce(np.add, (function(begin, end) for function in functions))

    def times(self, tokens: HashedTokens, matrix: NDArray) -> Floats:
        """The kernel of tokens and basis times a matrix (float[M, D]): float64[T, D]."""
        found = np.empty((tokens.n, matrix.shape[1]))
        for block, values in self.blocks(tokens):
            np.matmul(values, matrix, out=found[block])
        return found

    def diagonal(self) -> Floats:
        """The kernel of each token of the basis with itself: float64[M]."""
        every = ((of.kernel, of.squares) for of in self._of_kernels)
        return reduce(np.add, (kernel.of(squares.copy(), squares, squares) for kernel, squares in every))

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
        # K = V L Vᵀ; K(x, b) V / √L are features whose products are K on the basis
        eigenvalues, vectors = np.linalg.eigh(self.matrix())
        least = _EPS * max(eigenvalues[-1], 0.0)
        if eigenvalues[0] < -least or not np.isfinite(eigenvalues).all():
            found = {"least": f"{eigenvalues[0]:.3g}", "most": f"{eigenvalues[-1]:.3g}"}
            raise ValueError(
                Errors.CRF620.format(owner=OWNER, kernel="+".join(kernel.name for kernel in self.kernels), **found)
            )
        kept = eigenvalues > least
        self.whitener = (vectors[:, kept] / np.sqrt(eigenvalues[kept])).astype(np.float32)
        return self
