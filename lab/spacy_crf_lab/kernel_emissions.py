"""Emissions by kernels: the score of a token is a weighted sum of how much it is like the tokens of a basis, which are a part of
the training data.

    scores[t, y] = sum_m K(x_t, b_m) A[m, y] + bias[y]

The kernel K compares the features of two tokens. (<x, x'> + 1)² gives every pair of features a weight without listing the pairs.
With a chain this is a kernel CRF (Lafferty, Zhu & Liu 2004), with `MaxEnt` kernel logistic regression.

Training sees whitened features, the Nyström method (Williams & Seeger 2001): from K(b, b) = V L Vᵀ follow the features
Φ = K(x, b) V / √L with ΦΦᵀ = K on the basis, and A = V / √L U has the norm |U|² = Aᵀ K(b, b) A. So `l2` of an optimizer, which
knows nothing of kernels, is the squared norm of the function.
"""

from collections.abc import Callable, Iterable
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Linear, Model, NumpyOps, zero_init

from spacy_crf import checks
from spacy_crf.errors import announcements
from spacy_crf.explain.reading import LayerTerms, read_layer, read_whole
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.features.extractor import CompiledTemplates, FeatureSet
from spacy_crf.features.feature_index import by_token
from spacy_crf.features.templates import Template, parse_templates
from spacy_crf.features.token_columns import TokenColumns
from spacy_crf.kernels.hashing import NO_FEATURE
from spacy_crf.models.corpus import DenseCorpus, DensePass, corpus_by
from spacy_crf.models.emissions import CompiledFeatures, Emissions, check_counted
from spacy_crf.models.neural import EncoderNode
from spacy_crf.models.node import Batches, Sizes, Traits, check_equal, no_backprop, remove_params
from spacy_crf.models.sparse import ClusteredWords, SparseFeatures
from spacy_crf.types import Floats, Ints, Settings

from .errors import Errors
from .kernel_basis import KERNELS, OWNER, Basis, HashedTokens, Kernel, read_trees
from .kernel_choice import AnnotatedTokens, import_vectors, weighted

_DECAY = 0.4  # of subtrees (Collins & Duffy 2001)
_MOST = 12_000  # tokens of a basis: its matrix, its eigenvectors and room for them take 3.5 GB


class KernelFeatures(SparseFeatures):
    """Templates, the lists that they read, and the basis. No single feature has a weight."""

    def __init__(
        self,
        feature_set: FeatureSet,
        kernels: tuple[Kernel, ...],
        templates: tuple[list[Template], ...],
        **lists: Any,
    ):
        super().__init__(feature_set, **lists)
        self.kernels = kernels
        self._templates = templates
        self.basis: Optional[Basis] = None

    def __repr__(self) -> str:
        names = " + ".join(kernel.name for kernel in self.kernels)
        return f"{type(self).__name__}({names}, {0 if self.basis is None else len(self.basis):,} tokens)"

    def _compile(self) -> CompiledFeatures:
        reader = self.feature_set.reader(self.gazetteers, self.clusters, self.vectors)
        return CompiledFeatures(
            reader, {str(n): CompiledTemplates(some, reader) for n, some in enumerate(self._templates)}
        )

    def read(self, docs: list[Doc]) -> HashedTokens:
        """The features of all tokens for each kernel."""
        columns = self.compiled.reader.read(docs)
        return HashedTokens.abreast(
            [
                read_trees(docs, kernel.degree) if kernel.name == "subtree" else self._features(templates, columns)
                for kernel, templates in zip(self.kernels, self.compiled.templates.values())
            ]
        )

    def _features(self, templates: CompiledTemplates, columns: TokenColumns) -> HashedTokens:
        found = templates.hash(columns)
        tokens, template = np.nonzero(found.hashes != NO_FEATURE)
        hashes = found.hashes[tokens, template]
        values = np.ones(len(tokens), np.float32)
        n_tokens = len(found.hashes)
        if templates.item_templates or len(np.unique(templates.seeds)) < len(templates.seeds):
            # A token may have a feature more than once
            tokens = np.concatenate([tokens, found.item_tokens])
            hashes = np.append(hashes, found.item_hashes)
            values = np.append(values, found.item_values)
            order = np.lexsort((hashes, tokens))
            tokens = tokens[order]
            hashes = hashes[order]
            values = values[order]
            # Equal features of a token are neighbours now: their values are added up
            is_new = np.append(True, (np.diff(tokens) != 0) | (hashes[1:] != hashes[:-1]))[: len(tokens)]
            values = np.add.reduceat(values, np.flatnonzero(is_new)) if len(values) else values
            tokens = tokens[is_new]
            hashes = hashes[is_new]
        return HashedTokens(*by_token(tokens, hashes, values, n_tokens))  # pyright: ignore[reportArgumentType]

    @property
    def known(self) -> Basis:
        """The basis of an initialized layer."""
        basis: Any = self.basis
        return basis

    def scores(self, docs: list[Doc], weights: NDArray[np.float32]) -> Floats:
        """Scores of all tokens (float64[T, S]) by the weights of the features of the basis (float32[S, D])."""
        # The weights of the latest prediction, its basis, and the weights of the values of the kernel
        kept: Any = self._scorer
        if kept is None or kept[0] is not weights or kept[1] is not self.basis:
            whitener = self.known.whitener
            # A = V / √L U, so the scores take one product with the kernel
            own = weights.T.astype(np.float64)
            self._scorer = kept = weights, self.basis, own if whitener is None else whitener @ own
        return kept[1].times(self.read(docs), kept[2])

    def pack(self, tables: dict[str, object]) -> dict[str, object]:
        """The basis, as a file holds it."""
        basis = self.basis
        if basis is None:
            return {"basis": None}
        of_kernels = [[kernel.gamma, kernel.weight] for kernel in basis.kernels]
        return {
            "basis": [*basis.tokens[:3], of_kernels if len(of_kernels) > 1 else basis.kernels[0].gamma, basis.whitener]
        }

    def load(self, data: Settings) -> dict[str, object]:
        """Take over what `pack` returned. RETURNS (dict): No tables."""
        self._forget()
        self.basis = None
        if data["basis"] is not None:
            *tokens, of_kernels, whitener = data["basis"]
            # Files with one kernel hold its gamma alone
            of_kernels = of_kernels if isinstance(of_kernels, list) else [[of_kernels, 1.0]]
            check_equal("the number of kernels", len(of_kernels), len(self.kernels))
            hashes, values, starts = tokens
            fits = len(starts) and (len(starts) - 1) % len(self.kernels) == 0
            fits = fits and starts[0] == 0 and starts[-1] == len(hashes) == len(values)
            check_equal("the basis", bool(fits and (np.diff(starts) >= 0).all()), True)
            known = HashedTokens(hashes, values, starts, len(self.kernels))
            check_equal("rows of the whitening", known.n if whitener is None else len(whitener), known.n)
            numbers = zip(self.kernels, of_kernels)
            kernels = tuple(kernel._replace(gamma=gamma, weight=weight) for kernel, (gamma, weight) in numbers)
            self.basis = Basis(kernels, known, whitener)
        return {}


class KernelNode(EncoderNode):
    """Node of a linear layer on whitened features, which do not learn."""

    traits = Traits(learned=("kernel",), meaning=("compares",), is_online=False)

    def __init__(self) -> None:
        super().__init__(learns=False)

    def forget(self, model: Model) -> None:
        """Remove the weights and the basis."""
        before = model.attrs["kernel"]
        EncoderNode.forget(self, model)
        model.attrs["kernel"] = before.with_tables({}, basis=None)

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Leave the width of the linear layer open: the saved basis determines it."""
        output: Any = model.get_ref("output")
        remove_params(output)  # thinc changes no dimension of a layer that has parameters
        output.set_dim("nI", None, force=True)
        super().expect(model, n_states, saved)

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for a loaded basis that does not fit the weights."""
        kernel: KernelFeatures = model.attrs["kernel"]
        kernel.check_lists()
        check_equal("the width of the basis", model.get_ref("output").get_dim("nI"), kernel.known.width)
        super().check(model, n_states)


class KernelCorpus:
    """The features of the tokens of a corpus, see `corpus.SparseCorpus`. Those of the kernel are computed when an optimizer asks
    for scores."""

    names = DenseCorpus.names

    def __init__(self, layer: Model):
        self.layer = layer
        self.kernel: KernelFeatures = layer.attrs["kernel"]
        self.tokens: list[HashedTokens] = []  # of each batch
        self.starts: list[Ints] = []
        self._basis = self.kernel.known
        self._vectors: Optional[DenseCorpus] = None

    def add(self, docs: DocBatch) -> None:
        """Read the features of a batch."""
        self.tokens.append(self.kernel.read(docs))
        self.starts.append(docs.sequence_starts())

    def finish(self) -> None:
        """There is nothing to do."""

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that identify the corpus and the basis."""
        for tokens in (*self.tokens, self._basis.tokens):
            yield from tokens[:3]
        yield from self.starts

    @property
    def least_value(self) -> float:
        """The least value of a whitened feature."""
        return self._computed().least_value

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> DensePass:
        """One pass over the corpus. RAISES (ValueError): CRF622 if the basis has changed since the corpus was read."""
        return self._computed().at(weights, threads=threads, into=into)

    def _computed(self) -> DenseCorpus:
        if self.kernel.basis is not self._basis:
            raise ValueError(Errors.CRF622.format(owner=OWNER))
        # K(x, b) for all tokens takes most of the time: once for all passes
        if self._vectors is None:
            self._vectors = DenseCorpus(self.layer)
            for tokens, starts in zip(self.tokens, self.starts):
                self._vectors.append(self._basis.features(tokens), starts)
            self._vectors.finish()
        return self._vectors


@corpus_by.register
def _(node: KernelNode, layer: Model) -> KernelCorpus:
    return KernelCorpus(layer)


@read_layer.register
def _(node: KernelNode, layer: Model, docs: DocBatch) -> LayerTerms:
    return read_whole(layer, docs, "kernel")


def KernelEmissions(
    features: FeatureSet,
    kernel: str = "poly",
    degree: int = 2,
    offset: float = 1.0,
    gamma: Optional[float] = None,
    basis: int = 2000,
    select: str = "random",
    seed: int = 0,
    kernels: Optional[dict[str, Settings]] = None,
    norm: float = 2.0,
) -> Model[list[Doc], Emissions]:
    """Scores by a kernel that compares tokens with those of a basis, which is a part of the training data.

    features (FeatureSet): The templates of the features that are compared, none of transitions, vectors or outer.
    kernel (str): "linear", the product of the features; "poly", (product + offset)^degree; "rbf",
        exp(-gamma · squared distance); "cosine", the product of features of length 1; or "subtree", which compares the
        dependency trees below the tokens, and no features.
    degree (int): At most 9: for "poly", how many features are combined; for "subtree", how many levels the trees have.
    offset (float): Of "poly": the larger, the more single features count beside their combinations.
    gamma (float): Of "rbf", by default the inverse of the mean squared length of the basis; of "subtree", the factor of each
        node that two trees share, by default 0.4.
    basis (int): Number of tokens in the basis, at most 12,000. Memory and time grow with it, training with its square.
    select (str): "random" for some tokens with different features; "greedy" for those that lower the loss most, "import vectors";
        or "all" for all of these, however many `basis` says.
    seed (int): Seed of the random choice.
    kernels (Dict[str, Dict]): Several kernels in place of one, whose sum has learned weights. Each may have `kernel`, `degree`,
        `offset` and `gamma`, by default those above, and `templates`, those of `features` that it reads, by default all.
    norm (float): Of the weights of the kernels, at least 1: the smaller, the more they differ.
    RAISES (ValueError): CRF020; CRF367 for Docs without the parse that "subtree" compares; when training begins CRF620 for a
        kernel whose matrix is not positive, CRF621 for too large a basis.
    """
    check_counted(OWNER, features)
    alone = {"kernel": kernel, "degree": degree, "offset": offset, "gamma": gamma}
    named = checks.table(OWNER, "kernels", kernels, "settings of a kernel", lambda given: isinstance(given, dict))
    read = [_compared(f"kernels.{name}.", {**alone, **given}, features) for name, given in named.items()]
    compared, templates = zip(*(read or [_compared("", alone, features)]))
    meaning = [[name, *one[:4], *map(str, some)] for name, (one, some) in zip(named, read)] or [*compared[0][:4]]
    output = Linear(init_W=zero_init)
    return Model(
        "kernel_emissions",
        _forward,
        init=_init,
        layers=[output],
        refs={"output": output},
        attrs={
            "node": KernelNode(),
            "kernel": KernelFeatures(features, compared, templates),
            "compares": meaning,
            "basis": checks.count(OWNER, "basis", basis, most=_MOST),
            "select": checks.one_of(OWNER, "select", select, ("random", "greedy", "all")),
            "seed": checks.count(OWNER, "seed", seed, least=0, most=checks.ANY),
            "norm": checks.number(OWNER, "norm", norm, least=1.0),
        },
        ops=NumpyOps(),
    )


def _compared(place: str, given: Settings, features: FeatureSet) -> tuple[Kernel, list[Template]]:
    """A kernel from its settings, and the templates that it reads. RAISES (ValueError): CRF020."""
    for key in given:
        checks.one_of(OWNER, f"{place}setting", key, ("kernel", "degree", "offset", "gamma", "templates"))
    name = checks.one_of(OWNER, f"{place}kernel", given["kernel"], KERNELS)
    gamma = given["gamma"]
    kernel = Kernel(
        name,
        checks.count(OWNER, f"{place}degree", given["degree"], most=9),
        checks.number(OWNER, f"{place}offset", given["offset"], least=-checks.MOST),
        None if gamma is None else checks.positive(OWNER, f"{place}gamma", gamma),
    )
    templates = parse_templates(checks.listed(OWNER, f"{place}templates", given.get("templates"), "templates"))
    if name == "subtree":
        checks.expect(not templates, OWNER, f"{place}templates", given.get("templates"), "empty: it compares trees")
        return kernel._replace(gamma=_DECAY if gamma is None else kernel.gamma), []
    for template in templates:
        known = template in features.counted
        checks.expect(known, OWNER, f"{place}templates", str(template), "one of the templates of `features`")
    return kernel, templates or features.counted


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Emissions, Callable]:
    kernel: KernelFeatures = model.attrs["kernel"]
    output = model.get_ref("output")
    batch = DocBatch.of(docs)
    if not is_train:
        weights: Any = output.get_param("W")
        bias: Any = output.get_param("b")
        return Emissions(kernel.scores(batch, weights) + bias, None, batch.sequence_starts()), no_backprop
    # Training changes the weights that the kept scorer was made from
    kernel.clear_scores()
    found, backprop_output = output(kernel.known.features(kernel.read(batch)), True)

    def backprop(d_emissions: Emissions) -> list[Doc]:
        backprop_output(d_emissions.scores.astype(np.float32))
        return []

    return Emissions(found.astype(np.float64), None, batch.sequence_starts()), backprop


def _init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Choose the basis. A basis that is there stays, and grows by states alone."""
    if X is None or Y is None:
        return
    node = model.attrs["node"]
    sizes = Sizes(*Y)
    output = model.get_ref("output")
    node.resize(model, sizes.n_states)
    kernel: KernelFeatures = model.attrs["kernel"]
    annotated = AnnotatedTokens.read(kernel.read, X(), sizes.n_states)
    if kernel.basis is not None and len(kernel.basis):
        return
    some = annotated.tokens
    n_all = annotated.tokens.n
    n = model.attrs["basis"]
    kernels = kernel.kernels
    generator = np.random.default_rng(model.attrs["seed"])
    # The weights of the kernels are learned on a part of the tokens, and fixed from then on
    if len(kernels) > 1 and n_all:
        kernels = weighted(kernels, annotated.drawn(generator), model.attrs["norm"], generator)
    if model.attrs["select"] == "all":
        if n_all > _MOST:
            raise ValueError(
                Errors.CRF621.format(
                    owner=OWNER, n=f"{n_all:,}", gigabytes=f"{3 * 8 * n_all**2 / 1e9:,.1f}", most=f"{_MOST:,}"
                )
            )
    elif n_all > n:
        if model.attrs["select"] == "greedy":
            annotated = annotated.drawn(generator)
            some = annotated.tokens.some(np.sort(import_vectors(kernels, annotated, n, generator)))
        else:
            some = some.some(np.sort(generator.choice(n_all, n, replace=False)))
    basis = Basis(kernels, some).whiten()
    clustered = ClusteredWords(*kernel.compiled.reader.table.clustered)
    model.attrs["kernel"] = kernel.with_tables({}, basis=basis, clustered=clustered)
    announcements.info(
        "%s: %d of %d different tokens are the basis, with %d whitened features", OWNER, len(basis), n_all, basis.width
    )
    # A column for each eigenvalue of K(b, b) that is not 0
    remove_params(output)
    output.set_dim("nI", basis.width, force=True)
    output.initialize()
