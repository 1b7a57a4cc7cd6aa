"""Error-correcting output codes for sequences (Cohn, Smith & Osborne 2005): each tag has a row of bits, and a binary chain learns
each bit, so that a pass over S tags costs C · 2 · 2 for C bits in place of S · S.

Training sums over the labellings of each chain by itself (`bit_chains`). Prediction has the product of all chains, whose score is
that of a chain of tags again:

    emissions[t, y] = sum_c SCALE · sign(code[y, c]) · units[t, c]
    transitions[y, z] = sum_c transitions[c, code[y, c], code[z, c]]

In a cascade (Hao & Fern 2007) chain c also reads the bits that chains before it have at the tokens beside: in training those of
the annotation, in prediction the expected ones. (With the best bits in place of expected ones, tokens that tell nothing mislead
the chains behind. From the bits at the token itself, a chain would learn in training all that the code says about its own bit.)
"""

from collections.abc import Sequence
from itertools import product
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import checks
from spacy_crf.errors import announcements, cant_train
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.emissions import Emissions, check_emissions
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.node import AnnotatedDocs, Batches, check_array, check_equal
from spacy_crf.models.structure import (
    Explained,
    SharedScores,
    TokenTerms,
    build,
    exact_weights,
)
from spacy_crf.pipeline.annotation.entities import Annotation
from spacy_crf.pipeline.decoding import Decoding
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import ChainScores, Floats, Ints
from spacy_crf.whole_files import unpacked

from .bit_chains import BitChains, BitScores, beside, by_neighbour, relative
from .code_matrix import KINDS, Code, Coder, Codes, distances
from .errors import Errors
from .kernels import output_codes as kernels
from .mixed_chain import MixedChain


class CodesDecoding(Decoding):
    """Decodes as a chain."""

    def __init__(self, model: Model, annotation: Annotation):
        super().__init__(model, annotation)
        model.attrs["node"].name_tags(model, annotation.tags(), annotation.tag_labels())


_BITS = BitChains()


class CodesNode(ChainNode):
    """Node of output codes. Attributes: "matrix", the code, and "bit_names"."""

    decoding = CodesDecoding
    traits = ChainNode.traits._replace(
        learned=("met", "matrix", "bit_names"),
        meaning=("codes", "bits", "seed", "cascade"),
        is_online=False,
        no_shares_of_texts="texts teach it the bits of tags one by one. The other kinds of explanations know them",
    )

    def __init__(self, coder: Coder, decode: str, cascade: bool):
        super().__init__()
        self.coder = coder
        self.decode = decode
        if cascade:
            self.traits = self.traits._replace(params=(*self.traits.params, "cascade"))
        if decode != "product":
            reason = (
                f"with decode = '{decode}' the scores of tags are distances of bits, and no sums of weights. Set "
                "decode = 'product' in the block of the model, which reads the same weights"
            )
            self.traits = self.traits._replace(unexplained=reason)
        self._asked: tuple = ()  # the tags, their labels, and the code of the first tags if it was learned
        self._code: Optional[Code] = None  # the code of the tags, once it is needed
        self._learned: list[str] = []  # the tags of the learned code
        self._product: Optional[tuple] = None  # see `_product_of`; threads may be reading it

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for a loss that is no sum over bits."""
        loss = pipe.loss
        if type(loss) is not LogLikelihood or loss.cost or loss.label_weights:
            what = f"the bits of '{pipe.name}'"
            reason = "chains of bits know no tags and no costs of tags"
            raise cant_train(loss, what, reason, "LogLikelihood without cost and label_weights")

    @property
    def in_training(self) -> BitChains:
        """The chains of single bits."""
        return _BITS

    def training_batch(self, model: Model, batch: AnnotatedDocs, name: str) -> AnnotatedDocs:
        """The batch. RAISES (ValueError): CRF638 for rules and excluded spans."""
        if batch.structure is not None:
            raise ValueError(Errors.CRF638)
        return batch

    # -------------------------------------------------------------------------------------------------------- the code

    def name_tags(self, model: Model, tags: Sequence[str], labels: Sequence[str]) -> None:
        """Set the tags for which there has to be a code."""
        matrix: NDArray[np.uint8] = model.attrs["matrix"]
        goes_on = model.attrs["matrix"] is not None and [*tags[: len(self._learned)]] == self._learned
        names: list[str] = model.attrs["bit_names"]
        self._asked = (list(tags), list(labels), Code(matrix, names) if goes_on else None)
        self._code = None

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Take the code of a model that will be loaded, which determines the columns."""
        super().expect(model, n_states, saved)
        matrix = unpacked(saved["matrix"])
        names = unpacked(saved["bit_names"])
        self._code = None if matrix is None else Code(matrix, names)

    @property
    def code(self) -> Code:
        """The code of all tags."""
        if self._code is None:
            self._code = self.coder.code(*self._asked)
        return self._code

    def _name_parts(self) -> None:
        """Name the bits, their values, and the neighbours that a cascade reads."""
        self._learned = self._asked[0]
        self.part_names = [*[f"bit {name}" for name in self.code.names], "0", "1", "before", "behind"]

    def columns(self, n_states: int) -> int:
        """Number of bits, C."""
        return self.code.matrix.shape[1]

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """Features of annotated tokens have weights for all bits (`possible_states`), so a single one has to be counted."""
        allowed = np.zeros((len(batch.unset), self.columns(0)), dtype=bool)
        allowed[:, 0] = ~batch.unset
        return batch._replace(allowed=allowed)

    def n_states(self, model: Model) -> Optional[int]:
        """Number of tags with a code; None before initialization."""
        return len(model.attrs["matrix"]) if model.has_param("first") else None

    def resize(self, model: Model, n_states: int) -> None:
        """Make or continue the code for new tags."""
        is_new = model.attrs["matrix"] is None
        super().resize(model, n_states)
        model.attrs["matrix"], model.attrs["bit_names"] = self.code
        self._name_parts()
        if is_new:
            # A tag is not compared with itself
            apart = distances(self.code.matrix) + self.columns(0) * np.eye(n_states)
            announcements.info(
                "Output codes: %d bits for %d tags, which differ in at least %d bits",
                self.columns(0),
                n_states,
                int(apart.min()),
            )

    def forget(self, model: Model) -> None:
        """Remove the weights and the code."""
        super().forget(model)
        self._learned = []
        self.name_tags(model, *self._asked[:2])

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Do nothing, since all scores have weights."""

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters: a binary chain for each bit, and what a cascade adds."""
        n_bits = self.columns(n_states)
        shapes = {"transitions": (n_bits, 2, 2), "first": (n_bits, 2), "last": (n_bits, 2)}
        return {**shapes, "cascade": (2, n_bits, n_bits)} if "cascade" in self.traits.params else shapes

    def possible(self, model: Model) -> SharedScores:
        """Every value of a bit is possible."""
        return dict.fromkeys(self.traits.params, np.True_)

    def weighed(self, model: Model) -> SharedScores:
        """Every score is a weight; in a cascade a bit reads only the bits before it."""
        masks = {name: np.ones(shape, dtype=bool) for name, shape in self.shapes(model, model.get_dim("nO")).items()}
        if "cascade" in masks:
            # [2, C, C] bit c reads the bits before it
            masks["cascade"][:] = np.tri(self.columns(0), k=-1, dtype=bool)
        return masks

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for a loaded code that does not fit the tags."""
        super().check(model, n_states)
        n_bits = self.columns(n_states)
        check_array("the code", model.attrs["matrix"], (n_states, n_bits), np.uint8)
        check_equal("the largest bit of the code", int(model.attrs["matrix"].max(initial=0)) <= 1, True)
        names = model.attrs["bit_names"]
        check_equal("names of bits", [*map(type, names)] if isinstance(names, list) else names, [str] * n_bits)
        self._name_parts()

    # ---------------------------------------------------------------------------------------------------------- scores

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """Numbers of the names of bits, values and neighbours, which follow the tags' names."""
        # Numbers of bits follow those of the tags and of the start of a sequence
        n_bits = self.columns(0)
        first = model.get_dim("nO") + 1
        if parameter == "cascade":
            return first + places[2], first + n_bits + 2 + places[0], first + places[1]
        return first + places[0], *(first + n_bits + values for values in places[1:])

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores and the code."""
        return {**super().potentials(model, weights), "codes": model.attrs["matrix"]}

    def _product_of(self, model: Model, scores: BitScores) -> SharedScores:
        """The transitions, firsts and lasts of tags, the same object as long as those of bits are unchanged."""
        latest = self._product
        if latest is None or latest[0] is not scores.transitions:
            allowed = model.attrs["allowed"]._asdict()
            of_tags = self._of_tags(scores.codes, scores._asdict())
            limited = {name: np.where(allowed[name], array, -np.inf) for name, array in of_tags.items()}
            latest = self._product = scores.transitions, limited
        return latest[1]

    def _of_tags(self, codes: NDArray[np.uint8], shared: SharedScores) -> SharedScores:
        """The transitions, firsts and lasts of tags in the product of the chains."""
        has = [(codes == value).astype(np.float64) for value in (0, 1)]
        steps = np.zeros((len(codes), len(codes)))
        first = np.zeros(len(codes))
        last = np.zeros(len(codes))
        # transitions[y, z] = sum_c transitions[c, code[y, c], code[z, c]]
        for value in (0, 1) if self.decode == "product" else ():
            first += has[value] @ shared["first"][:, value]
            last += has[value] @ shared["last"][:, value]
            for behind in (0, 1):
                steps += has[value] * shared["transitions"][:, value, behind] @ has[behind].T
        return {"transitions": steps, "first": first, "last": last}

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> BitScores:
        """The potentials of binary chains."""
        [(units, _, starts)] = outputs
        given = {"cascade": np.zeros((0, 0, 0)), **shared}
        return BitScores(units=units, starts=starts, **given)

    def in_prediction(self, model: Model, scores: BitScores) -> ChainScores:
        """The chain of tags."""
        units = self._read_neighbours(scores)[0]
        signs = 2.0 * scores.codes - 1.0
        if self.decode == "product":
            emissions = kernels.SCALE * units @ signs.T
        elif self.decode == "hamming":  # minus the number of wrong bits: a pair of signs agrees or does not
            bits = np.zeros(units.shape, dtype=np.int8)
            kernels.best(units, *scores[1:4], scores.starts, bits)
            emissions = ((2.0 * bits - 1.0) @ signs.T - signs.shape[1]) / 2.0
        else:  # minus sum_c |p(bit c) - code[y, c]|
            _, found = self.in_training.expectations(scores._replace(units=units))
            emissions = (found.units / kernels.SCALE @ signs.T - signs.shape[1]) / 2.0
        return ChainScores(emissions, **self._product_of(model, scores), starts=scores.starts)

    def _read_neighbours(self, scores: BitScores) -> tuple[Floats, Floats]:
        """The units with what a cascade adds, and the expected signs of its bits: float64[T, C] each."""
        units = np.array(scores.units, dtype=np.float64)
        signs = np.zeros(units.shape)
        if len(scores.cascade):
            kernels.cascade(units, *relative(scores), scores.cascade, scores.starts, signs)
        return units, signs

    def part(self, d_scores: BitScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Derivatives by the units and by the shared scores."""
        d_shared = {name: getattr(d_scores, name) for name in self.traits.params}
        return (Emissions(d_scores.units, None, d_scores.starts),), d_shared

    # ---------------------------------------------------------------------------------------------------- explanations

    def explained(self, model: Model) -> Explained:
        """The chain of tags, whose transitions are sums over the bits. A cascade adds a layer of what bits read beside them."""
        codes: NDArray[np.uint8] = model.attrs["matrix"]
        mix = kernels.SCALE * (2.0 * codes.T - 1.0)

        def names(columns: Ints) -> Ints:
            return self.named_states(model, None, (columns,))[0]

        def neighbours(output: Emissions) -> Emissions:
            units = self._read_neighbours(self._in_double(model, output))[0]
            return output._replace(scores=units - output.scores)

        reads_neighbours = "cascade" in self.traits.params
        mixes = [mix, mix] if reads_neighbours else [mix]
        chain = MixedChain(mixes, names, neighbours if reads_neighbours else None)
        weights = self._of_tags(codes, exact_weights(model))
        return Explained(chain, weights, mixes, self._token_terms)

    def _token_terms(self, model: Model, outputs: tuple[Emissions, ...], docs: DocBatch) -> Optional[TokenTerms]:
        """The bits beside each token that a cascade reads: each has a term for each bit."""
        if "cascade" not in self.traits.params:
            return None
        scores = self._in_double(model, outputs[0])
        read = beside(scores, self._read_neighbours(scores)[1])
        names = [f"bit {name} {side}" for side, name in product(("before", "behind"), self.code.names)]
        terms = (read[:, :, np.newaxis] * by_neighbour(scores.cascade)).reshape(-1, read.shape[1] // 2)
        return TokenTerms(names * len(read), np.repeat(np.arange(len(read)), len(names)), terms, "cascade")

    def _in_double(self, model: Model, output: Emissions) -> BitScores:
        return self.join((output,), self.potentials(model, exact_weights(model)))


def OutputCodes(
    emissions: Model[list[Doc], Emissions],
    codes: Codes = "random",
    bits: int = 40,
    decode: str = "product",
    cascade: bool = False,
    seed: int = 0,
) -> Model[list[Doc], ChainScores]:
    """Error-correcting output codes (Cohn, Smith & Osborne 2005), for many labels: tags have rows of bits, each of which a binary
    chain learns by itself.

    emissions (Model): From SparseEmissions, HashedEmissions or Tok2VecEmissions; with templates of single tokens' states only.
    codes (Union[str, Callable]): "random" for the best of 1,000 random codes, "bounded" for the shortest one that keeps a bound
        of the errors, "one_vs_rest" for a bit for each tag, "parts" for a bit for the boundary of tags and each part of their
        labels between the signs |; or a function from the list of tags to their bits.
    bits (int): Number of bits of random codes, and the most of bounded ones. Fewer tags have fewer different bits.
    decode (str): "product" for the product of all chains; "marginals" for the row that is nearest to the probabilities of the
        bits of a token, "hamming" for the row that is nearest to the best bits. With the last two, transitions between tags
        score 0, and probabilities are not those of a model.
    cascade (bool): Whether each chain reads the bits that the chains before it have at the tokens beside.
    seed (int): Random seed of random codes.
    """
    owner = "OutputCodes"
    check_emissions(owner, emissions)
    checks.expect(
        callable(codes) or codes in KINDS,
        owner,
        "codes",
        codes,
        f"one of {', '.join(KINDS)}, or a function from the tags to their bits",
    )
    if "possible_states" in emissions.attrs:
        emissions.attrs["possible_states"] = True
    if "features" in emissions.attrs:
        features = emissions.attrs["features"].feature_set
        templates = [*map(str, features.transitions + features.inner)]
        checks.expect(not templates, owner, "templates", templates, "templates of single tags, without outer")
    bits = checks.count(owner, "bits", bits, most=1 << 12)
    seed = checks.count(owner, "seed", seed, least=0, most=checks.ANY)
    decode = checks.one_of(owner, "decode", decode, ("product", "marginals", "hamming"))
    cascade = checks.flag(owner, "cascade", cascade)
    node = CodesNode(Coder(codes, bits, seed), decode, cascade)
    kind = codes if isinstance(codes, str) else "function"
    settings = {"codes": kind, "bits": bits, "seed": seed, "cascade": cascade, "matrix": None, "bit_names": None}
    return build("output_codes", node, {"emissions": emissions}, **settings)
