"""Emissions by kernels: the score of a token is a weighted sum of how much it is like the tokens of a basis, which are a part of
the training data.

    scores[t, y] = sum_m K(x_t, b_m) A[m, y] + bias[y]

The kernel K compares the features of two tokens. (<x, x'> + 1)² gives every pair of features a weight without listing the pairs.
With a chain this is a kernel CRF (Lafferty, Zhu & Liu 2004), with `MaxEnt` kernel logistic regression.

Training sees whitened features, the Nyström method (Williams & Seeger 2001): from K(b, b) = V L Vᵀ follow the features
Φ = K(x, b) V / √L with ΦΦᵀ = K on the basis, and A = V / √L U has the norm |U|² = Aᵀ K(b, b) A. So `l2` of an optimizer, which
knows nothing of kernels, is the squared norm of the function.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Linear, Model, NumpyOps, zero_init

from .. import checks
from ..arrays import states_of
from ..errors import Errors, announcements
from ..features.doc_batch import DocBatch
from ..features.extractor import CompiledTemplates, FeatureSet
from ..features.feature_index import HashTable, by_token
from ..kernels.hashing import NO_FEATURE
from ..models.corpus import DenseCorpus, DensePass
from ..models.emissions import CompiledFeatures, Emissions
from ..models.neural import EncoderNode
from ..models.node import Batches, Sizes, check_equal, no_backprop, unset
from ..models.sparse import ClusteredWords, SparseFeatures
from ..types import Floats, Ints
from .kernels.products import add_products

KERNELS = ("linear", "poly", "rbf", "cosine")
_OWNER = "KernelEmissions"
_MOST = 12_000  # tokens of a basis: its matrix, its eigenvectors and room for them take 3.5 GB
_BLOCK = 1024  # tokens whose products are in memory together
_EPS = 1e-6  # smaller eigenvalues, relative to the largest one, are noise of single precision


class HashedTokens(NamedTuple):
    """Features of T tokens as compressed sparse rows, with hashes in place of rows of an index."""

    hashes: NDArray[np.uint64]  # [N]
    values: NDArray[np.float32]  # [N]
    starts: Ints  # [T + 1]

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

        products (float64[N, M]): Of N tokens with M. squares (float64[N]), basis (float64[M]): Their squared lengths.
        """
        if self.name == "poly":
            products += self.offset
            first = products.copy() if self.degree > 2 else products
            for _ in range(self.degree - 1):
                products *= first
        elif self.name == "rbf":
            scale: Any = self.gamma
            products *= -2.0
            products += squares[:, np.newaxis]
            products += basis
            np.maximum(products, 0.0, out=products)  # rounding
            np.exp(np.multiply(products, -scale, out=products), out=products)
        elif self.name == "cosine":
            lengths = np.sqrt(squares)[:, np.newaxis] * np.sqrt(basis)
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
        return len(self.tokens.starts) - 1

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self) if self.whitener is None else self.whitener.shape[1]

    def features(self, tokens: HashedTokens) -> NDArray[np.float32]:
        """The features of tokens: float32[T, D]."""
        if self.whitener is not None:
            return self.times(tokens, self.whitener).astype(np.float32)
        found = np.empty((len(tokens.starts) - 1, len(self)), dtype=np.float32)
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
            yield block, self.kernel.of(products, squares[block], self._squares)

    def times(self, tokens: HashedTokens, matrix: NDArray) -> Floats:
        """The kernel of tokens and basis times a matrix (float[M, D]): float64[T, D]."""
        found = np.empty((len(tokens.starts) - 1, matrix.shape[1]))
        for block, values in self.blocks(tokens):
            np.matmul(values, matrix, out=found[block])
        return found

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
            raise ValueError(Errors.CRF620.format(owner=_OWNER, kernel=self.kernel.name, **found))
        kept = eigenvalues > least
        self.whitener = (vectors[:, kept] / np.sqrt(eigenvalues[kept])).astype(np.float32)
        return self


class KernelFeatures(SparseFeatures):
    """Templates, the lists that they read, and the basis. No single feature has a weight."""

    kinds: ClassVar = {}

    def __init__(self, feature_set: Any, kernel: Kernel, **lists: Any):
        super().__init__(feature_set, **lists)
        self.kernel = kernel
        self.basis: Optional[Basis] = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kernel.name}, {0 if self.basis is None else len(self.basis):,} tokens)"

    def _compile(self) -> CompiledFeatures:
        reader = self.feature_set.reader(self.gazetteers, self.clusters, self.vectors)
        return CompiledFeatures(reader, {"states": CompiledTemplates(self.feature_set.counted, reader)})

    def widths(self, n_states: int) -> dict[str, int]:
        return {}

    def read(self, docs: list[Doc]) -> HashedTokens:
        """The features of all tokens."""
        templates = self.compiled.templates["states"]
        found = templates.hash(self.reader.read(docs))
        tokens, template = np.nonzero(found.hashes != NO_FEATURE)
        hashes, values, n_tokens = found.hashes[tokens, template], np.ones(len(tokens), np.float32), len(found.hashes)
        if templates.item_templates or len(np.unique(templates.seeds)) < len(templates.seeds):
            # A token may have a feature more than once
            tokens = np.concatenate([tokens, found.item_tokens])
            hashes, values = np.append(hashes, found.item_hashes), np.append(values, found.item_values)
            order = np.lexsort((hashes, tokens))
            tokens, hashes, values = tokens[order], hashes[order], values[order]
            is_new = np.append(True, (np.diff(tokens) != 0) | (hashes[1:] != hashes[:-1]))[: len(tokens)]
            values = np.add.reduceat(values, np.flatnonzero(is_new)) if len(values) else values
            tokens, hashes = tokens[is_new], hashes[is_new]
        return HashedTokens(*by_token(tokens, hashes, values, n_tokens))  # pyright: ignore[reportArgumentType]

    @property
    def known(self) -> Basis:
        """The basis of an initialized layer."""
        basis: Any = self.basis
        return basis

    def scores(self, docs: list[Doc], weights: NDArray[np.float32]) -> Floats:
        """Scores of all tokens (float64[T, S]) by the weights of the features of the basis (float32[S, D])."""
        kept: Any = self._scorer
        if kept is None or kept[0] is not weights or kept[1] is not self.basis:
            whitener, own = self.known.whitener, weights.T.astype(np.float64)
            kept = self._scorer = weights, self.basis, own if whitener is None else whitener @ own
        return kept[1].times(self.read(docs), kept[2])

    def spell(self, tables: dict[str, Any]) -> dict[str, Any]:
        basis = self.basis
        return {"basis": None if basis is None else [*basis.tokens, basis.kernel.gamma, basis.whitener]}

    def load(self, data: dict[str, Any]) -> dict[str, Any]:
        self._forget()
        self.basis = None
        if data["basis"] is not None:
            *tokens, gamma, whitener = data["basis"]
            starts = tokens[2]
            fits = len(starts) and starts[0] == 0 and starts[-1] == len(tokens[0]) == len(tokens[1])
            check_equal("the basis", bool(fits and (np.diff(starts) >= 0).all()), True)
            n_rows = len(starts) - 1 if whitener is None else len(whitener)
            check_equal("rows of the whitening", n_rows, len(starts) - 1)
            self.basis = Basis(self.kernel._replace(gamma=gamma), HashedTokens(*tokens), whitener)
        return {}


class KernelNode(EncoderNode):
    """Node of a linear layer on whitened features, which do not learn."""

    learned = ("kernel",)
    meaning = ("compares",)
    walks = False
    source = "kernel"

    def __init__(self) -> None:
        super().__init__(learns=False)

    def fixed(self, layer: Model) -> "KernelCorpus":
        return KernelCorpus(layer)

    def forget(self, model: Model) -> None:
        before = model.attrs["kernel"]
        EncoderNode.forget(self, model)
        model.attrs["kernel"] = before.with_tables({}, basis=None)

    def expect(self, model: Model, n_states: int) -> None:
        output: Any = model.get_ref("output")
        unset(output)  # thinc changes no dimension of a layer that has parameters
        output.set_dim("nI", None, force=True)
        super().expect(model, n_states)

    def check(self, model: Model, n_states: int) -> None:
        kernel: KernelFeatures = model.attrs["kernel"]
        kernel.check_lists()
        check_equal("the width of the basis", model.get_ref("output").get_dim("nI"), kernel.known.width)
        super().check(model, n_states)


class KernelCorpus(DenseCorpus):
    """The features of the tokens of a corpus. Those of the kernel are computed when an optimizer asks for scores."""

    def __init__(self, layer: Model):
        super().__init__(layer)
        self.kernel: KernelFeatures = layer.attrs["kernel"]
        self.tokens: list[HashedTokens] = []  # of each batch
        self._basis = self.kernel.known

    def add(self, docs: DocBatch) -> None:
        self.tokens.append(self.kernel.read(docs))
        self.starts.append(docs.sequence_starts())

    def finish(self) -> None:
        """There is nothing to do."""

    def fingerprint(self) -> Iterable[NDArray]:
        for tokens in (*self.tokens, self._basis.tokens):
            yield from tokens
        yield from self.starts

    @property
    def least_value(self) -> float:
        self._compute()
        return super().least_value

    def at(self, weights: dict[str, Floats], *, threads: int = 1) -> DensePass:
        """One pass over the corpus. RAISES (ValueError): CRF622 if the basis has changed since the corpus was read."""
        self._compute()
        return super().at(weights, threads=threads)

    def _compute(self) -> None:
        if self.kernel.basis is not self._basis:
            raise ValueError(Errors.CRF622.format(owner=_OWNER))
        if not hasattr(self, "vectors"):
            for tokens in self.tokens:
                self.write(self._basis.features(tokens))
            self.vectors = self.written()


def KernelEmissions(
    features: FeatureSet,
    kernel: str = "poly",
    degree: int = 2,
    offset: float = 1.0,
    gamma: Optional[float] = None,
    basis: int = 2000,
    select: str = "random",
    seed: int = 0,
) -> Model[list[Doc], Emissions]:
    """Scores by a kernel that compares tokens with those of a basis, which is a part of the training data.

    features (FeatureSet): The templates of the features that are compared, none of transitions, vectors or outer.
    kernel (str): "linear", the product of the features; "poly", (product + offset)^degree; "rbf",
        exp(-gamma · squared distance); or "cosine", the product of features of length 1.
    degree (int): Of "poly", at most 9: how many features are combined.
    offset (float): Of "poly": the larger, the more single features count beside their combinations.
    gamma (float): Of "rbf"; by default the inverse of the mean squared length of the basis.
    basis (int): Number of tokens in the basis, at most 12,000. Memory and time grow with it, training with its square.
    select (str): "random" for some tokens with different features, or "all" for all of these, however many `basis` says.
    seed (int): Seed of the random choice.
    RAISES (ValueError): CRF020; when training begins CRF620 for a kernel whose matrix is not positive, CRF621 for too large a
        basis.
    """
    must = "a feature set of tokens, such as spacy_crf.ner_features.v3"
    checks.expect(isinstance(features, FeatureSet), _OWNER, "features", features, must)
    others = [*map(str, features.transitions + features.inner), *(f"vector[{n}]" for n in features.vector_offsets)]
    checks.expect(not others, _OWNER, "features", others, "without templates of transitions, vectors and outer")
    compares = Kernel(
        checks.one_of(_OWNER, "kernel", kernel, KERNELS),
        checks.count(_OWNER, "degree", degree, most=9),
        checks.number(_OWNER, "offset", offset, least=-checks.MOST),
        None if gamma is None else checks.positive(_OWNER, "gamma", gamma),
    )
    output = Linear(init_W=zero_init)
    return Model(
        "kernel_emissions",
        _forward,
        init=_init,
        layers=[output],
        refs={"output": output},
        attrs={
            "role": KernelNode(),
            "kernel": KernelFeatures(features, compares),
            "compares": [*compares],
            "basis": checks.count(_OWNER, "basis", basis, most=_MOST),
            "select": checks.one_of(_OWNER, "select", select, ("random", "all")),
            "seed": checks.count(_OWNER, "seed", seed, least=0, most=checks.ANY),
        },
        ops=NumpyOps(),
    )


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Emissions, Callable]:
    kernel: KernelFeatures = model.attrs["kernel"]
    output, batch = model.get_ref("output"), DocBatch.of(docs)
    if not is_train:
        weights: Any = output.get_param("W")
        bias: Any = output.get_param("b")
        scores: Any = kernel.scores(batch, weights) + bias
        return Emissions(scores, None, batch.sequence_starts()), no_backprop
    kernel.forget_scores()
    flat: Any = kernel.known.features(kernel.read(batch))
    found, backprop_output = output(flat, True)

    def backprop(d_emissions: Emissions) -> list[Doc]:
        backprop_output(d_emissions.scores.astype(np.float32))
        return []

    return Emissions(found.astype(np.float64), None, batch.sequence_starts()), backprop


def _init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Choose the basis. A basis that is there stays, and grows by states alone."""
    if X is None or Y is None:
        return
    role, sizes, output = model.attrs["role"], Sizes(*Y), model.get_ref("output")
    role.resize(model, sizes.n_states)
    kernel: KernelFeatures = model.attrs["kernel"]
    parts = []
    for batch in X():
        silent = batch.unset & (states_of(batch.allowed).sum(axis=1) > 1)  # tokens without annotation
        parts.append(kernel.read(batch.docs).some(np.flatnonzero(~silent)))
    tokens = HashedTokens.joined(parts)
    if kernel.basis is not None and len(kernel.basis):
        return
    _, first = np.unique(tokens.fingerprints, return_index=True)
    some = tokens.some(np.sort(first))
    n_all = len(first)
    if model.attrs["select"] == "all":
        if n_all > _MOST:
            gigabytes = f"{3 * 8 * n_all**2 / 1e9:,.1f}"
            raise ValueError(Errors.CRF621.format(owner=_OWNER, n=f"{n_all:,}", gigabytes=gigabytes, most=f"{_MOST:,}"))
    elif n_all > model.attrs["basis"]:
        chosen = np.random.default_rng(model.attrs["seed"]).choice(n_all, model.attrs["basis"], replace=False)
        some = some.some(np.sort(chosen))
    basis = Basis(kernel.kernel, some).whiten()
    clustered = ClusteredWords(*kernel.reader.table.clustered)
    model.attrs["kernel"] = kernel.with_tables({}, basis=basis, clustered=clustered)
    announcements.info(
        "%s: %d of %d different tokens are the basis, with %d whitened features",
        _OWNER,
        len(basis),
        n_all,
        basis.width,
    )
    unset(output)
    output.set_dim("nI", basis.width, force=True)
    output.initialize()
