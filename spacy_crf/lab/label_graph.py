"""Texts with several labels that attract or repel each other: an Ising model over the labels of a text.

    score(y) = sum_j y_j (first_j + w_j · f(x)) + sum_((j, k) in edges) pairs_jk y_j y_k        y_j = 1: the text has label j

This is a conditional random field whose variables are the labels of one text (Ghamrawi & McCallum 2005, "Collective multi-label
classification"); without edges it is a logistic regression for each label. All texts have the same graph, so labels are
eliminated in one order for all of them: sums are exact if the tables are small enough. This file has the scores, the structure
that sums over them, the decoding of a component, and the model; `label_cliques` finds the edges.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from .. import arrays, checks
from ..errors import Errors, Warnings, announcements
from ..explain.weights import Block, Feature
from ..features.doc_batch import TEXT, DocBatch
from ..inference.structure import Structure
from ..losses.clamped import CLAMPED_LOSSES, ClampedLoss, LogLikelihood, SoftmaxMargin
from ..models.architecture import Architecture, SharedScores, build
from ..models.emissions import Emissions
from ..models.node import Batches, check_array, check_equal, check_weights
from ..models.texts import OfTexts, Reasons, check_text_emissions, scores_of_tokens
from ..pipeline.crf_textcat import TextDecoding
from ..types import Bools, Floats, Ints, Path
from .kernels import label_graph as kernels
from .kernels.junction_tree import order as elimination_order
from .label_cliques import Annotated, LabelClique
from .ties.method import LOG_PARTITION, MAXIMUM, Inference
from .ties.scores import TiedScores, Ties
from .ties.structure import TiedChains

MOST_ENTRIES = 1 << 20  # of a table: of 20 labels that all depend on each other


class LabelScores(NamedTuple):
    """Potentials of B texts with L labels, and E pairs of labels."""

    labels: Floats  # [B, 2 L] of present labels, then of absent ones
    pairs: Floats  # [E] added where both labels are present
    edges: NDArray[np.int64]  # [E, 2] the labels of each pair
    implies: Bools  # [E] pairs whose first label is never present without the second
    starts: NDArray[np.int64]  # [B + 1]

    AXES = {"labels": ("text", "state"), "pairs": ("pair",)}  # noqa: RUF012  nobody writes to it


class LabelWork(NamedTuple):
    """Checked scores, with a clamp."""

    scores: LabelScores
    clamp: Optional[Bools]  # bool[B, 2 L]

    @property
    def n_sequences(self) -> int:
        return len(self.scores.labels)

    @property
    def own(self) -> Floats:
        """Scores of present and absent labels, -inf where the clamp forbids: float64[B, 2 L]."""
        return self.scores.labels if self.clamp is None else np.where(self.clamp, self.scores.labels, -np.inf)


class Places(NamedTuple):
    """Elimination of the labels of a graph, and the entries of tables that belong to its pairs."""

    plan: kernels.Plan
    entries: Ints  # [M] entries with both labels of a pair
    pair_of: Ints  # [M] that pair
    broken: Ints  # entries whose label lacks a label that it implies

    def tables(self, pairs: Floats) -> Floats:
        """The scores of the entries of all tables: float64[N]."""
        found = np.bincount(self.entries, pairs[self.pair_of], minlength=int(self.plan.starts[-1])).astype(np.float64)
        found[self.broken] = -np.inf
        return found


@lru_cache(maxsize=64)
def _places(edges: bytes, implies: bytes, n_labels: int) -> Places:
    """RAISES (ValueError): CRF481 for a graph with too large tables."""
    pairs, sizes = np.frombuffer(edges, dtype=np.int64).reshape(-1, 2), np.full(n_labels, 2)
    order, largest = elimination_order(pairs[:, 0].copy(), pairs[:, 1].copy(), sizes, MOST_ENTRIES)
    if largest > MOST_ENTRIES:
        raise ValueError(Errors.CRF481.format(edges=len(pairs), labels=n_labels, most=MOST_ENTRIES))
    # The labels of each table: its own one, and the later ones, the next one of them first
    rests = [order.rest[begin:end][::-1] for begin, end in zip(order.starts[:-1], order.starts[1:])]
    tables = [[int(v), *rest.tolist()] for v, rest in zip(order.variables, rests)]
    starts = np.append(0, np.cumsum([1 << len(table) for table in tables])).astype(np.int64)
    numbers = [np.arange(1 << len(table)) for table in tables]
    parents = np.array([order.place[table[1]] if len(table) > 1 else -1 for table in tables], dtype=np.int64)
    into = []
    for table, parent in zip(tables, parents):
        entries = np.zeros(len(numbers[parent]) if parent >= 0 else 0, dtype=np.int64)
        for n, label in enumerate(table[1:]):
            entries |= (numbers[parent] >> tables[parent].index(label) & 1) << n
        into.append(entries)
    into_starts = np.append(0, np.cumsum([*map(len, into)]))[:-1].astype(np.int64)
    plan = kernels.Plan(order.variables, starts, parents, np.concatenate(into).astype(np.int32), into_starts)
    entries, broken = [], [np.zeros(0, dtype=np.int64)]
    for (source, target), is_implied in zip(pairs.tolist(), np.frombuffer(implies, dtype=bool)):
        k = min(order.place[source], order.place[target])
        has, has_other = (numbers[k] >> tables[k].index(label) & 1 for label in (source, target))
        entries.append(starts[k] + np.flatnonzero(has & has_other))
        if is_implied:
            broken.append(starts[k] + np.flatnonzero(has > has_other))
    pair_of = np.repeat(np.arange(len(entries)), [*map(len, entries)])
    return Places(plan, np.concatenate([*entries, broken[0]]), pair_of, np.concatenate(broken))


class LabelGraphs(Structure[LabelScores]):
    """Implements the methods of `Structure` for the labels of texts. Clamps are bool[B, 2 L], and paths int32[B, L]: 1 for labels
    that are present, -1 without any labelling.

    inference (Inference): Answers in place of elimination; a text is then a set of tied sequences of one token.
    """

    ambiguous = True
    answers = frozenset()

    def __init__(self, inference: Optional[Inference] = None, *, threads: int = 1):
        super().__init__(threads=threads)
        self.inference = inference
        self._tied = None if inference is None else TiedChains(inference)

    @property
    def exact(self) -> bool:
        return self.inference is None or self.inference.exact

    @property
    def signature(self) -> bytes:
        return repr(self.inference).encode("utf8")

    def with_threads(self, threads: int) -> "LabelGraphs":
        return type(self)(self.inference, threads=threads)

    def prepare(self, scores: Any, clamp: Optional[Bools] = None) -> Any:
        if isinstance(scores, LabelWork):
            return scores if clamp is None else scores._replace(clamp=clamp)
        checked = {name: arrays.contiguous(array, np.float64) for name, array in arrays.named(scores).items()}
        scores = scores._replace(**checked)
        if not all(np.isfinite(array).all() for array in checked.values()):
            arrays.refuse(scores)
        if clamp is not None:
            arrays.check_shape("clamp", clamp, scores.labels.shape, "two bools per text and label: present, absent")
        return LabelWork(scores, clamp)

    def log_partition(self, scores: Any, *, clamp: Optional[Bools] = None) -> Floats:
        return self.expectations(scores, clamp=clamp)[0]

    def marginals(self, scores: Any, *, clamp: Optional[Bools] = None) -> Floats:
        """Probability of each label: float64[B, L]."""
        both = self.expectations(scores, clamp=clamp)[1].labels
        return np.clip(both[:, : both.shape[1] // 2], 0.0, 1.0)

    def expectations(
        self, scores: Any, *, clamp: Optional[Bools] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, LabelScores]:
        work = self.prepare(scores, clamp)
        weights = np.ones(work.n_sequences) if weights is None else np.asarray(weights, dtype=np.float64)
        total, log_z, n_labels = arrays.zeros(work.scores), np.zeros(work.n_sequences), _n_labels(work.scores)
        known = np.zeros(len(log_z), dtype=bool)
        if work.clamp is not None:  # fully annotated texts have one labelling, which takes no sums
            known = (work.clamp[:, :n_labels] != work.clamp[:, n_labels:]).all(axis=1)
            log_z[known] = _add_labellings(work, known, work.clamp[known, :n_labels], weights, total)
        own, of_rest = np.ascontiguousarray(work.own[~known]), weights[~known]
        if self._tied is not None:
            # A label that is neither leaves other components of its text possible, which must not count
            of_rest = np.where((own.reshape(len(own), 2, n_labels).max(axis=1) > -np.inf).all(axis=1), of_rest, 0.0)
            tied = _as_tied(own, work.scores)
            found, d_tied = self._tied.expectations(tied, weights=np.repeat(of_rest, n_labels))
            log_z[~known] = found.reshape(-1, n_labels).sum(axis=1)
            states = d_tied.emissions.reshape(-1, n_labels, 2)
            total.labels[~known] = np.concatenate([states[:, :, 1], states[:, :, 0]], axis=1)
            total.pairs[:] += d_tied.tables[:, 1, 1]
            return log_z, total
        places = places_of(work.scores)
        tables, rest, d_labels = places.tables(work.scores.pairs), np.empty(len(own)), np.empty(own.shape)
        d_tables = np.zeros(len(tables))
        kernels.expectations(own, tables, places.plan, of_rest, rest, d_labels, d_tables)
        log_z[~known], total.labels[~known] = rest, d_labels
        total.pairs[:] += np.bincount(places.pair_of, d_tables[places.entries], minlength=len(total.pairs))
        return log_z, total

    def viterbi(self, scores: Any, *, clamp: Optional[Bools] = None) -> Path:
        work = self.prepare(scores, clamp)
        own = np.ascontiguousarray(work.own)
        if self._tied is not None:
            found = self._tied.viterbi(_as_tied(own, work.scores))
            shape = (len(own), _n_labels(work.scores))
            total = found.scores.reshape(shape).sum(axis=1)
            return Path(np.where(total[:, np.newaxis] > -np.inf, found.states.reshape(shape), -1), total)
        states, best = np.empty((len(own), _n_labels(work.scores)), dtype=np.int32), np.empty(len(own))
        places = places_of(work.scores)
        kernels.best(own, places.tables(work.scores.pairs), places.plan, states, best)
        return Path(states, best)

    def viterbi_counts(
        self, scores: Any, *, clamp: Optional[Bools] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, LabelScores]:
        work = self.prepare(scores, clamp)
        states, best = self.viterbi(work)
        total, found = arrays.zeros(work.scores), best > -np.inf
        weights = np.ones(len(best)) if weights is None else np.asarray(weights, dtype=np.float64)
        _add_labellings(work, found, states[found] == 1, weights, total)
        return best, total


def places_of(scores: LabelScores) -> Places:
    return _places(scores.edges.tobytes(), scores.implies.tobytes(), _n_labels(scores))


def _n_labels(scores: LabelScores) -> int:
    return scores.labels.shape[1] // 2


def _add_labellings(work: LabelWork, texts: Bools, present: Bools, weights: Floats, total: LabelScores) -> Floats:
    """Add the weighted uses of scores by a labelling (of bool[N, L]) of each of some texts (bool[B]). RETURNS (float64[N]): Their
    scores."""
    scores, states, weights = work.scores, np.concatenate([present, ~present], axis=1), weights[texts]
    first, second = present[:, scores.edges[:, 0]], present[:, scores.edges[:, 1]]
    is_broken = (first & ~second & scores.implies).any(axis=1)
    weights, both = np.where(is_broken, 0.0, weights), (first & second).astype(np.float64)
    total.labels[texts] = weights[:, np.newaxis] * states
    total.pairs[:] += weights @ both
    found = np.where(states, scores.labels[texts], 0.0).sum(axis=1) + both @ scores.pairs
    return np.where(is_broken, -np.inf, found)


def _as_tied(own: Floats, scores: LabelScores) -> TiedScores:
    """Texts as sequences of one token with the states absent and present, one for each label, that ties connect."""
    (n_texts, size), n_edges = own.shape, len(scores.edges)
    first = size // 2 * np.arange(n_texts)[:, np.newaxis]
    source, target = ((first + ends).ravel().astype(np.int32) for ends in scores.edges.T)
    kinds = np.arange(n_edges, dtype=np.int32)
    ties = Ties(source, target, np.tile(kinds, n_texts), kinds[:, np.newaxis], np.zeros(n_edges, dtype=bool))
    emissions = np.stack([own[:, size // 2 :], own[:, : size // 2]], axis=2).reshape(-1, 2)
    tables, nothing = np.zeros((n_edges, 2, 2)), np.zeros(2)
    tables[:, 1, 1] = scores.pairs
    starts = np.arange(len(emissions) + 1)
    return TiedScores(emissions, np.zeros((2, 2)), nothing, nothing, tables, np.arange(2), ties, starts)


class OddsReasons(Reasons):
    """Scores are the log-odds of labels, which do not exclude each other."""

    def evidence(self, labels: Ints) -> Floats:
        text_of = np.repeat(np.arange(len(labels)), np.diff(self.units.texts))
        of_units = labels[text_of]
        return self.scores[text_of, of_units] - self.left_out[np.arange(len(text_of)), of_units]


class LabelDecoding(TextDecoding):
    structure: LabelGraphs

    def check_fit(self, pipe: Any) -> None:
        """RAISES (ValueError): CRF482 for a loss that the sums over labels cannot train."""
        super().check_fit(pipe)
        loss, inference = pipe.loss, self.structure.inference
        asked = LOG_PARTITION if isinstance(loss, (LogLikelihood, SoftmaxMargin)) else MAXIMUM
        reason = None
        if not isinstance(loss, ClampedLoss):
            reason = f"set {CLAMPED_LOSSES}"
        elif loss.cost or loss.label_weights:
            reason = "leave out its cost and label_weights: a label is present or absent. Thresholds weigh mistakes"
        elif inference is not None and asked not in inference.answers:
            reason = f"{inference.name} does not answer what it asks; leave inference out"
        if reason:
            raise ValueError(Errors.CRF482.format(name=pipe.name, loss=type(loss).__name__, reason=reason))

    def probabilities(self, scores: Any) -> Floats:
        found, inference = super().probabilities(scores), self.structure.inference
        if inference is not None and inference.n_unsettled and not inference.warned:
            inference.warned = True
            values = {"n": inference.n_unsettled, "asked": inference.n_asked, "inference": inference.name}
            message = Warnings.CRFW482.format(name=self.annotation.name, remedy=inference.remedy, **values)
            announcements.warning(message)
        return found


class LabelGraphRole(OfTexts, Architecture):
    """Architecture of an Ising model over the labels of a text. The attributes "edges" (int64[E, 2]) and "implies" (bool[E]) are
    its graph, which `initialize` finds."""

    gives = LabelScores
    params = of_sequences = ("first", "pairs")
    learned = ("met", "edges", "implies")
    meaning = ("cliques", "strength")
    decoding = LabelDecoding
    structure: LabelGraphs
    unit = TEXT
    several = True
    walks = False
    no_shares_of_texts = "the probabilities of its labels depend on each other"

    def __init__(self, cliques: dict[str, LabelClique], inference: Optional[Inference], strength: float):
        super().__init__()
        self._cliques, self._labels, self._strength = cliques, (), strength
        self.structure = LabelGraphs(inference)

    def check_labels(self, model: Model, labels: Any, name: str) -> None:
        self._labels, self._name = tuple(labels), name
        for clique in self._cliques.values():
            clique.check(self._labels, name)

    def spread(self, allowed: Bools) -> Bools:
        """The labels that the annotation says are present."""
        n_labels = allowed.shape[1] // 2
        return allowed[:, :n_labels] & ~allowed[:, n_labels:]

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        edges: Any = model.attrs["edges"]
        return {"first": (n_states,), "pairs": (0 if edges is None else len(edges),)}

    def possible(self, model: Model) -> SharedScores:
        return dict.fromkeys(self.params, np.True_)

    def weighed(self, model: Model) -> SharedScores:
        return {name: np.ones(shape, dtype=bool) for name, shape in self.shapes(model, model.get_dim("nO")).items()}

    def enlarge(self, model: Model, before: int, n_states: int) -> None:
        """Do nothing: new labels have no edges."""

    def observe(self, model: Model, corpus: Batches, n_states: int) -> None:
        """Find the graph by the annotation, once."""
        if model.attrs["edges"] is not None:
            return
        batches = [(batch.allowed, batch.weights) for batch in corpus()] if self._cliques else []
        known = Annotated.of(batches, self._labels, self._name)
        found: dict[frozenset[int], tuple[tuple[int, int], bool]] = {}
        for pair, implies in (one for clique in self._cliques.values() for one in clique.pairs(known)):
            if implies or frozenset(pair) not in found:
                found[frozenset(pair)] = pair, implies
        model.attrs["edges"] = np.array([pair for pair, _ in found.values()], dtype=np.int64).reshape(-1, 2)
        model.attrs["implies"] = np.array([implies for _, implies in found.values()], dtype=bool)
        weights: Any = np.zeros(len(found), dtype=np.float32)
        model.set_param("pairs", weights)
        if self.structure.inference is None:  # refuses a graph that is too wide
            _places(model.attrs["edges"].tobytes(), model.attrs["implies"].tobytes(), n_states)

    def check(self, model: Model, n_states: int) -> None:
        edges, implies = model.attrs["edges"], model.attrs["implies"]
        n_edges = len(edges) if isinstance(edges, np.ndarray) else 0
        check_array("edges", edges, (n_edges, 2), np.int64)
        check_array("implies", implies, (n_edges,), np.bool_)
        is_possible = bool((edges >= 0).all() and (edges < n_states).all() and (edges[:, 0] != edges[:, 1]).all())
        check_equal("that edges join two labels", is_possible, True)
        check_weights(model, self.shapes(model, n_states))
        check_equal("what training met", isinstance(model.attrs["met"], list), True)

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> LabelScores:
        [(scores, _, starts)] = outputs
        present = scores + shared["first"]
        labels = np.concatenate([present, np.zeros(present.shape)], axis=1)
        return LabelScores(labels, shared["pairs"], shared["edges"], shared["implies"], starts)

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        graph = {name: model.attrs[name] for name in ("edges", "implies")}
        found = super().potentials(model, weights)
        return {**found, "pairs": self._strength * found["pairs"], **graph}

    def part(self, d_scores: LabelScores, outputs: tuple[Emissions, ...]) -> tuple[Emissions, ...]:
        return (Emissions(d_scores.labels[:, : _n_labels(d_scores)], None, d_scores.starts),)

    def derivatives(self, d_scores: LabelScores) -> SharedScores:
        first = d_scores.labels[:, : _n_labels(d_scores)].sum(axis=0)
        return {"first": first, "pairs": self._strength * d_scores.pairs}

    def weight_blocks(self, model: Model, name: str) -> Any:
        if name != "pairs":
            return None
        edges, weights = model.attrs["edges"], self._strength * model.get_param(name)
        return [Block(name, weights, (*edges.T,), np.zeros(len(edges), np.int64), partial(Feature.shared, name))]

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        if parameter != "pairs":
            return places
        edges = model.attrs["edges"][places[0]]
        return edges[..., 0], edges[..., 1]

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        scores, (units, of_units) = model.predict(docs), scores_of_tokens(model, docs)
        without = np.repeat(scores.labels, np.diff(docs.bounds), axis=0)
        without[:, : of_units.shape[1]] -= of_units
        starts = np.arange(len(without) + 1)
        odds = [self._log_odds(each) for each in (scores, scores._replace(labels=without, starts=starts))]
        return OddsReasons(odds[0], units, odds[1])

    def _log_odds(self, scores: LabelScores) -> Floats:
        """Log-odds of each label of each text: float64[B, L]."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.structure.expectations(scores)[1].labels)
        return logs[:, : _n_labels(scores)] - logs[:, _n_labels(scores) :]


def LabelGraph(
    emissions: Model[list[Doc], Emissions],
    cliques: Optional[dict[str, Any]] = None,
    inference: Any = None,
    strength: float = 0.3,
) -> Model[list[Doc], LabelScores]:
    """Several labels for a text, whose probabilities depend on each other (Ghamrawi & McCallum 2005).

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    cliques (Dict[str, LabelClique]): Pairs of labels with a weight, by names that you choose: `spacy_crf.LearnedGraph.v1`,
        `spacy_crf.LabelTree.v1` or `spacy_crf.Hierarchy.v1`. Without them labels are independent.
    inference (Inference): An inference method for graphs, such as `spacy_crf.BeliefPropagation.v1`, for graphs of labels that are
        too wide for exact sums; None for exact sums.
    strength (float): Factor for the weights of pairs. Below 1, the optimizer's l2 penalizes pairs more: with 0.5, four times as
        much. Words then keep most of what they say about a label, also where its neighbours in the graph say the same.
    RAISES (ValueError): CRF020.
    """
    owner = "LabelGraph"
    check_text_emissions(owner, emissions, TEXT)
    must = "LearnedGraph.v1, LabelTree.v1 and Hierarchy.v1 of spacy_crf, by names"
    cliques = checks.table(owner, "cliques", cliques, must, lambda value: isinstance(value, LabelClique))
    must = "a way to answer questions about graphs, such as spacy_crf.BeliefPropagation.v1, or null for exact sums"
    checks.expect(inference is None or isinstance(inference, Inference), owner, "inference", inference, must)
    implied = [name for name, clique in cliques.items() if inference is not None and getattr(clique, "implied", False)]
    checks.expect(not implied, owner, "implied", ", ".join(implied), "false beside an inference: exact sums keep it")
    strength = checks.number(owner, "strength", strength, least=0.001, most=1000.0)
    settings = {"cliques": {name: repr(clique) for name, clique in cliques.items()}, "strength": strength}
    role = LabelGraphRole(cliques, inference, strength)
    return build("label_graph", role, {"emissions": emissions}, edges=None, implies=None, **settings)
