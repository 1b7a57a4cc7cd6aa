"""Continuous CRFs: real numbers of tokens, sentences or texts, some of which are similar (Qin et al. 2008; Radosavljevic, Vucetic
& Obradovic 2010; Baltrušaitis, Robinson & Morency 2014).

    p(y | x) ∝ exp(-precision · sum_i (y_i - f(x_i))² - sum_(i, j similar) strength · similarity · (y_i - y_j)²)

f is a linear function of the features. (Several regressions with a precision each, as in the papers, have the same distribution
as their weighted mean with the sum of the precisions.) All this is one Gaussian: sums are exact, and where some numbers are known
the others have a Gaussian too. Numbers are measured in standard deviations of the training data from their mean.

Weights are those of sqrt(2 · precision) · f: measured in standard deviations of the errors. Then the objective with l2 is that of
ridge regression whatever the precision is; weights of f themselves would be the less penalized the better they fit, and many
features would drive the precision to infinity.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model, NumpyOps, Optimizer

from spacy_crf import checks
from spacy_crf.errors import cant_train, shown
from spacy_crf.features.doc_batch import SENT, TEXT, TOKEN, DocBatch, UnitRows
from spacy_crf.features.items import Functions
from spacy_crf.inference.structure import Structure, Work
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.corpus import corpus_by
from spacy_crf.models.emissions import Emissions
from spacy_crf.models.node import AnnotatedDocs, Batches, Node, Traits, check_equal
from spacy_crf.models.structure import Block, Feature, SharedScores, StructureNode, build
from spacy_crf.models.texts import OfTexts, check_text_emissions
from spacy_crf.pipeline.annotation.entities import GoldReport, Keys, Starts, Supervision
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Clamp, Floats, Ints, Settings

from .errors import Errors
from .kernels import gaussian_chain as kernels
from .sentences import SentenceDecoding
from .ties.documents import LinkedDocuments, group_of
from .ties.groups import RepeatedWords
from .ties.layer import TieCorpus

UNITS = {"token": TOKEN, "sent": SENT, "doc": TEXT}
SIMILAR = {"next": ("token", "sent"), "same_lemma": ("token",), "links": ("doc",)}  # with the units that have them
# Bound of the logarithms of precision and strengths, without which numbers that are always equal would make a strength infinite
_LARGEST = 14.0
_MOST = 1 << 26  # entries of the matrix of a batch: half a gigabyte


class Similar(NamedTuple):
    """Pairs of numbers that are similar, by the later one. E pairs."""

    source: Ints  # [E] the earlier number
    target: Ints  # [E]
    kind: Ints  # [E]
    similarity: Floats  # [E]


class GaussianScores(NamedTuple):
    """Terms of a Gaussian over the numbers of B sequences, N in all."""

    sums: Floats  # [N, 1] the regression, in units of its errors: sqrt(2 · precision) · f
    logs: Floats  # [1 + M] logarithms of the precision, and of the strength of each kind of similarity
    similar: Similar
    starts: Ints  # [B + 1]

    AXES = MappingProxyType({"sums": ("token", "state"), "logs": ("kind",)})


class Moments(NamedTuple):
    log_z: Floats  # [B]
    mean: Floats  # [N]
    variance: Floats  # [N] 0 for numbers that are known
    derivative: GaussianScores  # of the weighted sum of log_z


class Gaussians(Structure):
    """Answers the questions of losses about numbers. Clamps are numbers that are known: float64[N], NaN for others. The log
    partition is that of the integral over the others."""

    answers = frozenset(["exact"])

    def prepare(self, scores: Any, clamp: Optional[Clamp] = None, *, annotated: Optional[Clamp] = None) -> Work[Any]:
        """The scores as they are, with the known numbers: a Gaussian needs no other form."""
        given = scores.scores if isinstance(scores, Work) else scores
        return Work(given, clamp, given)

    def moments(
        self, scores: GaussianScores, clamp: Optional[Floats] = None, weights: Optional[Floats] = None
    ) -> Moments:
        """Log partition, means, variances and derivatives.

        RAISES (ValueError): CRF651 if numbers that are far apart in their texts are tied, so that the matrix is too large.
        """
        n = len(scores.sums)
        n_sequences = len(scores.starts) - 1
        begin = np.empty(n, np.int64)
        reach = np.empty(n, np.int64)
        at = np.zeros(n + 1, np.int64)
        source, target, kind, similarity = scores.similar
        kernels.lay_out(source, target, begin, reach, at)
        if at[-1] > _MOST:
            raise ValueError(Errors.CRF651.format(n=f"{n:,}", entries=f"{at[-1]:,}", most=f"{_MOST:,}"))
        # A sequence that is tied to another one is in one block with it and with those between them
        of_number = np.repeat(np.arange(n_sequences), np.diff(scores.starts))
        earlier = np.arange(n_sequences + 1)
        np.minimum.at(earlier, of_number[target], of_number[source])
        # A sequence heads a block if no later one is tied to a sequence in front of it
        heads = np.append(np.minimum.accumulate(earlier[::-1])[::-1][:-1] == np.arange(n_sequences), True)
        blocks = np.asarray(scores.starts, dtype=np.int64)[heads]
        wants = np.ones(n_sequences) if weights is None else np.asarray(weights, dtype=np.float64)
        known = np.zeros(n, dtype=bool) if clamp is None else ~np.isnan(clamp)
        values = np.where(known, 0.0 if clamp is None else clamp, 0.0).astype(np.float64)
        of_block = np.zeros(len(blocks) - 1)
        mean = np.empty(n)
        variance = np.empty(n)
        d_f = np.empty(n)
        precision, *strengths = np.exp(np.clip(scores.logs, -_LARGEST, _LARGEST)).tolist()
        # sums = sqrt(2 · precision) · f
        f = scores.sums[:, 0] / np.sqrt(2.0 * precision)
        d_logs = np.zeros(len(scores.logs))
        ties = (source, target, kind, similarity, begin, reach, at, blocks, wants[heads[:-1]])
        kernels.sum_up(f, known, values, precision, np.array(strengths), *ties, of_block, mean, variance, d_f, d_logs)
        # d f / d log precision = -f / 2, as the sums stay the same
        d_logs[0] -= 0.5 * d_f @ f
        d_logs[np.abs(scores.logs) > _LARGEST] = 0.0
        log_z = np.zeros(n_sequences)
        d_sums = d_f / np.sqrt(2.0 * precision)
        log_z[heads[:-1]] = of_block
        return Moments(log_z, mean, variance, scores._replace(sums=d_sums[:, np.newaxis], logs=d_logs))

    def expect(self, work: Work[Any], weights: Floats, out: GaussianScores) -> Floats:
        """Log partitions (float64[B]); `out` receives the derivative of their weighted sum."""
        found = self.moments(work.scores, work.clamp, weights)
        out.sums[:] = found.derivative.sums
        out.logs[:] = found.derivative.logs
        return found.log_z


class Similarities(TieCorpus):
    """Which numbers of a corpus are similar, batch by batch."""

    def add(self, docs: DocBatch) -> None:
        """Find the similar numbers of a batch."""
        self._ties.append(self._layer.predict(docs))


class SimilarNode(Node):
    """Node of a layer that finds similar numbers. It has no weights."""

    gives = Similar
    traits = Traits(meaning=("similar",))

    def __init__(self, functions: Functions):
        # the component sets the unit
        self.unit = "doc"
        self.functions = functions
        words: Any = RepeatedWords
        self._lemmas = words(attr="LEMMA", only="is_alpha", features=[], max_edges=10_000_000)
        self._links = LinkedDocuments(features=[])

    def resize(self, model: Model, n_states: int) -> None:
        """Numbers are similar whatever they mean."""

    def check(self, model: Model, n_states: int) -> None:
        """There is nothing that was learned."""

    def find(self, docs: DocBatch, kinds: list[str]) -> Similar:
        """The similar numbers of a batch. RAISES (ValueError): CRF650 for a function that gives no similarities."""
        rows = UnitRows.of(UNITS[self.unit], docs.sequence_starts(), docs.bounds).texts
        found = [np.zeros((0, 4))]
        for kind, name in enumerate(kinds):
            if name == "next":
                of_doc = np.repeat(np.arange(len(docs)), np.diff(rows))
                earlier = np.flatnonzero(of_doc[1:] == of_doc[:-1])
                pairs = [(earlier, earlier + 1, np.ones(len(earlier)))]
            elif name in self.functions:
                pairs = [self._told(doc, name, end - begin) for doc, begin, end in zip(docs, rows, rows[1:])]
                pairs = [(i + begin, j + begin, s) for (i, j, s), begin in zip(pairs, rows)]
            else:
                template = self._lemmas if name == "same_lemma" else self._links
                source, target = template.find(docs)
                pairs = [(source, target, np.ones(len(source)))]
            found += [np.column_stack([i, j, np.full(len(i), kind), s]) for i, j, s in pairs]
        every = np.concatenate(found)
        # By the later number, as the kernel fills its band matrix row by row
        every = every[np.argsort(every[:, 1], kind="stable")]
        source, target, kind = every[:, :3].T.astype(np.int64)
        return Similar(source.copy(), target.copy(), kind.copy(), every[:, 3].copy())

    def _told(self, doc: Doc, name: str, n: int) -> tuple[Ints, Ints, Floats]:
        """The pairs that a function finds in a Doc with n numbers, and their similarities."""
        try:
            rows = np.array([(i, j, similarity) for i, j, similarity in self.functions[name](doc)], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(Errors.CRF650.format(name=name, text=doc.text[:40], reason=error, n=n)) from error
        rows = rows.reshape(-1, 3)  # without any pair it has one axis
        ends = np.sort(rows[:, :2], axis=1)
        similarity = rows[:, 2]
        are_places = (ends % 1.0 == 0.0) & (ends >= 0.0) & (ends < n)
        wrong = ~are_places.all(axis=1) | (ends[:, 0] == ends[:, 1]) | ~((similarity >= 0.0) & (similarity < np.inf))
        if wrong.any():
            raise ValueError(
                Errors.CRF650.format(
                    name=name, text=doc.text[:40], reason=f"it gave {shown(rows[wrong][0].tolist())}", n=n
                )
            )
        return *ends.T.astype(np.int64), similarity


@corpus_by.register
def _(node: SimilarNode, layer: Model) -> Similarities:
    return Similarities(layer)


def _find(model: Model, docs: list[Doc], is_train: bool) -> tuple[Similar, Callable]:
    return model.attrs["node"].find(DocBatch.of(docs), model.attrs["similar"]), lambda d_similar: []


class NumberDecoding(SentenceDecoding):
    """Decoding of numbers. Clamps are float64[N], in the model's measure; NaN is a number that is not known."""

    def measured(self, values: Floats) -> Floats:
        """Numbers in the model's measure, which is not known before a model has met numbers."""
        scale = self.model.attrs["scale"]
        return values if scale is None else (values - self.model.attrs["center"]) / scale

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: Starts, keys: Keys, report: GoldReport
    ) -> Supervision:
        """The annotated numbers in the model's measure."""
        return gold._replace(clamp=self.measured(gold.clamp))


class GaussianNode(OfTexts, StructureNode):
    """Node of a model of numbers. "center" and "scale" are the mean and the standard deviation of the training data."""

    gives = GaussianScores
    decoding = NumberDecoding
    traits = Traits(
        labelled=None,  # numbers are no labels
        learned=("observed", "met", "center", "scale"),
        params=("first", "logs"),
        of_sequences=(),
        is_online=False,
        no_shares_of_texts="numbers have no labels that speak for them",
    )
    structure = Gaussians()

    def use(self, model: Model, unit: str, owner: str) -> None:
        """Give tokens, sentences or texts numbers. RAISES (ValueError): CRF020 for similarities that these do not have."""
        layer = model.get_ref("similar")
        emissions = model.get_ref("emissions")
        emissions.attrs["node"].features(emissions).unit = UNITS[unit]
        told = layer.attrs["node"].functions
        similar = layer.attrs["similar"]
        possible = [*(name for name, units in SIMILAR.items() if unit in units), *(() if unit == "doc" else told)]
        if similar is None:
            similar = [name for name in possible if name == "next" or name in told]
        must = f"a list of some of {', '.join(possible)}, each once, for unit = {unit!r}"
        fits = len(set(similar)) == len(similar) and {*told} <= {*similar} <= {*possible}
        checks.expect(fits, owner, "similar", similar, must)
        layer.attrs["similar"] = [*similar]
        layer.attrs["node"].unit = unit
        reads = [*(["lemma"] if "same_lemma" in similar else []), *(["sent_start"] if UNITS[unit] == SENT else [])]
        together = group_of if "links" in similar else None
        self.traits = self.traits._replace(unit=UNITS[unit], group_of=together, token_attributes=tuple(reads))

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for a loss other than the likelihood."""
        if type(pipe.loss) is not LogLikelihood or pipe.loss.cost or pipe.loss.label_weights:
            what = f"the numbers of '{pipe.name}'"
            raise cant_train(pipe.loss, what, "they have no mistakes to count", "LogLikelihood")

    def join(self, outputs: tuple, shared: SharedScores) -> GaussianScores:
        """The terms of the Gaussian, from the regression, the similar numbers and the shared scores."""
        (sums, _, starts), similar = outputs
        return GaussianScores(sums + shared["first"], _begin(shared["logs"]), similar, starts)

    def part(self, d_scores: GaussianScores, outputs: tuple) -> tuple[tuple, SharedScores]:
        """Derivatives by the regression and by the shared scores; those of similar numbers are empty."""
        d_outputs = Emissions(d_scores.sums, None, d_scores.starts), d_scores.similar
        return d_outputs, {"first": d_scores.sums.sum(axis=0), "logs": d_scores.logs}

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters: a bias, and 1 + M logarithms."""
        return {"first": (n_states,), "logs": (1 + len(model.get_ref("similar").attrs["similar"]),)}

    def weighed(self, model: Model) -> SharedScores:
        """Every parameter is a weight."""
        return {name: np.ones(model.get_param(name).shape, dtype=bool) for name in self.traits.params}

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Measure the numbers. RAISES (ValueError): CRF652 for a corpus whose numbers are all equal."""
        model.attrs["observed"] = np.zeros((n_states + 2, n_states), dtype=np.uint8)
        if not is_new:
            return
        values = np.concatenate([np.zeros(0), *(batch.allowed for batch in corpus())])
        values = values[~np.isnan(values)]
        if len(values) and not np.ptp(values) >= checks.LEAST:
            raise ValueError(Errors.CRF652.format(n=len(values), least=min(values), most=max(values)))
        model.attrs["center"] = float(values.mean()) if len(values) else 0.0
        model.attrs["scale"] = float(values.std()) if len(values) else 1.0

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for a loaded model without the mean and the deviation of numbers."""
        super().check(model, n_states)
        scale = model.attrs["scale"]
        are_numbers = checks.is_number(model.attrs["center"]) and checks.is_number(scale) and scale > 0.0
        check_equal("the center and the scale of numbers", are_numbers, True)

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The batch with the tokens of the numbers that are known."""
        docs = DocBatch.of(batch.docs)
        unset = np.repeat(batch.unset, np.diff(self.rows(docs).tokens))
        return batch._replace(allowed=np.ones((len(unset), 1), dtype=bool), unset=unset, starts=docs.sequence_starts())

    def weight_blocks(self, model: Model, name: str) -> Optional[list[Block]]:
        """The logarithms of precision and strengths by their names."""
        if name != "logs":
            return None
        names = ["log precision", *(f"log strength of {kind}" for kind in model.get_ref("similar").attrs["similar"])]
        weights: Any = model.get_param(name)
        rows = np.arange(len(weights))
        nothing = np.zeros(len(weights), dtype=np.int64)
        features = [Feature(each, "strengths", None) for each in names]
        return [Block(name, _begin(weights), (nothing,), rows, features.__getitem__)]


def _begin(logs: Floats) -> Floats:
    """Logarithms of the precision and of the strengths: weights of 0 are a variance of 1, and weak ties."""
    return logs + np.log([0.5] + [0.1] * (len(logs) - 1))


def GaussianChain(
    emissions: Model[list[Doc], Emissions],
    similar: Optional[Sequence[str]] = None,
    functions: Optional[Settings] = None,  # registered ones, which spaCy checks before it makes them
) -> Model[list[Doc], GaussianScores]:
    """Numbers by a linear regression whose errors are Gaussian, and smooth where numbers are similar. ``crf_scorer`` says whether
    tokens, sentences or texts have numbers.

    emissions (Model): The regression: sums of weights of features, from SparseEmissions or HashedEmissions. Templates such as
        ``ext:NAME[0]`` read numbers that are known already.
    similar (List[str]): Which numbers are similar: "next", neighbours in a Doc; "same_lemma", tokens with the same lemma, each
        with the next one; "links", Docs that link to each other (``doc._.crf_links``); or names of `functions`. Each kind has a
        strength, which is learned. By default "next" and all functions; for Docs none.
    functions (Dict[str, Callable[[Doc], Iterable[Tuple[int, int, float]]]]): Functions that find similar numbers of a Doc: the
        places of two tokens, or of two sentences, in the Doc, and how similar they are, at least 0.
    """
    owner = "GaussianChain"
    check_text_emissions(owner, emissions, TEXT)
    told = Functions(checks.table(owner, "functions", functions, "functions, from a Doc to pairs", callable))
    checks.expect(
        not {*told} & {*SIMILAR}, owner, "functions", [*told], f"functions by other names than {', '.join(SIMILAR)}"
    )
    names = None if similar is None else checks.listed(owner, "similar", similar, "texts")
    layer = Model("similar", _find, attrs={"node": SimilarNode(told), "similar": names}, ops=NumpyOps())
    layers = {"emissions": emissions, "similar": layer}
    return build("gaussian_chain", GaussianNode(), layers, center=None, scale=None)
