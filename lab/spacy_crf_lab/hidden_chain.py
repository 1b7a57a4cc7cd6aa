"""A hidden-state CRF for the label of a text: its tokens, or sentences, have hidden states, which form a chain below each label.

    score(y, h) = labels[y] + sum_t units[t, h_t] + sum_t states[y, h_t] + sum_t transitions[y, h_(t-1), h_t]
                  + first[y, h_1] + last[y, h_T]

(Quattoni, Wang, Morency, Collins & Darrell 2007, with scores for ends.) Given a label, the model is a linear chain, so B texts
are Y · B sequences of `LinearChain`. Each label has its own scale, so no label underflows in a long text whose beginning is
improbable under it. This file has the scores, the structure that sums over them, the decoding of a component, and the model.
"""

from collections.abc import Callable, Iterator
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from spacy_crf import arrays, checks
from spacy_crf.features.doc_batch import SENT, TOKEN, DocBatch
from spacy_crf.inference.linear_chain import LinearChain, backward_pass, forward_pass
from spacy_crf.inference.scaling import ChainWork
from spacy_crf.inference.structure import ScoresOrWork, Structure, Work
from spacy_crf.models.emissions import Emissions
from spacy_crf.models.node import AnnotatedDocs, Batches, Traits
from spacy_crf.models.structure import SharedScores, StructureNode, build
from spacy_crf.models.texts import OfTexts, Reasons, at_tokens, check_text_emissions
from spacy_crf.pipeline.annotation.entities import Annotation
from spacy_crf.types import Bools, ChainScores, Clamp, Floats, Ints, Path

from .local_losses import log_sum
from .restarts import Seeded
from .sentences import SentenceDecoding


class HiddenScores(NamedTuple):
    """Potentials of B texts with U units (tokens or sentences) in total, Y labels, and H hidden states below each label.

    A unit has H scores, which all labels share, or Y · H scores, H for each label.
    """

    labels: Floats  # [B, Y]
    units: Floats  # [U, H] or [U, Y * H]
    states: Floats  # [Y, H]
    transitions: Floats  # [Y, H, H]
    first: Floats  # [Y, H]
    last: Floats  # [Y, H]
    starts: NDArray[np.int64]  # [B + 1] units of the texts

    AXES = MappingProxyType(
        {
            "labels": ("text", "label"),
            "units": ("token", "column"),
            "states": ("label", "state"),
            "transitions": ("label", "state", "next state"),
            "first": ("label", "state"),
            "last": ("label", "state"),
        }
    )


class _OfLabel(NamedTuple):
    """The texts that may have a label, as linear chains."""

    label: int
    texts: NDArray[np.bool_]  # [B]
    units: NDArray[np.bool_]  # [U] units of these texts
    columns: slice  # columns of the units' scores
    work: ChainWork


class HiddenWork(Work[HiddenScores]):
    """Checked scores, with a clamp: bool[B, Y]."""

    def of_label(self, label: int, texts: NDArray[np.bool_]) -> _OfLabel:
        """The chains of some texts (bool[B]) below a label."""
        scores = self.scores
        size = self.scores.states.shape[1]
        lengths = np.diff(self.scores.starts)
        shared = scores.units.shape[1] == size
        # Labels share all columns, or each has H of its own
        columns = slice(0, size) if shared else slice(label * size, (label + 1) * size)
        chosen = np.repeat(texts, lengths)
        starts = np.append(0, np.cumsum(lengths[texts]))
        # score(t, h | y) = units[t, h] + states[y, h]
        emissions = scores.units[chosen, columns] + scores.states[label]
        chain = ChainScores(emissions, scores.transitions[label], scores.first[label], scores.last[label], starts)
        return _OfLabel(label, texts, chosen, columns, _CHAIN.prepare(chain))

    def parts(self) -> Iterator[_OfLabel]:
        """For each label, the chains of the texts that may have it."""
        allowed = np.ones(self.scores.labels.shape, dtype=bool) if self.clamp is None else self.clamp
        return (self.of_label(label, texts) for label, texts in enumerate(allowed.T) if texts.any())


_CHAIN = LinearChain()


class HiddenChains(Structure[HiddenScores]):
    """Implements the methods of `Structure` for labels of texts. Clamps are bool[B, Y], and paths are labels: int32[B]. Sums run
    over hidden states too; maxima are those of a label together with its states."""

    answers = frozenset(["exact"])
    work = HiddenWork

    def prepare(self, scores: Any, clamp: Optional[Bools] = None, *, annotated: Optional[Bools] = None) -> HiddenWork:
        """Check the scores. RAISES (ValueError): CRF010 to CRF012 for scores that are not usable."""
        work = scores
        if not isinstance(scores, HiddenWork):
            conforming = arrays.conform(scores)
            # The scores of units are checked as those of chains
            if not np.isfinite(conforming.labels).all():
                arrays.refuse(conforming)
            work = HiddenWork(conforming, original=scores)
        return work if clamp is None else work.clamped(clamp)

    def label_scores(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> Floats:
        """Log-sum over the hidden states below each label: float64[B, Y], -inf for labels that are not allowed."""
        return self._by_label(self.prepare(scores, clamp), _CHAIN.forward)

    def _by_label(self, work: HiddenWork, score: Callable[[ChainWork], Floats]) -> Floats:
        """Score of each label plus the score of its chain: float64[B, Y], -inf for labels that are not allowed."""
        found = np.full(work.scores.labels.shape, -np.inf)
        for part in work.parts():
            found[part.texts, part.label] = work.scores.labels[part.texts, part.label] + score(part.work)
        return found

    def forward(self, work: HiddenWork) -> Floats:
        """Log-sum over labels and hidden states: float64[B]."""
        return log_sum(self.label_scores(work))

    def marginals(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each label: float64[B, Y], rows with sum 1."""
        found = self.label_scores(scores, clamp=clamp)
        return _shares(found, log_sum(found))

    def expect(self, work: HiddenWork, weights: Floats, out: HiddenScores) -> Floats:
        """Log partitions; `out` receives p(label) times the derivative of the chain of each label."""
        found = np.full(work.scores.labels.shape, -np.inf)  # [B, Y] log-sum over the states below each label
        passes = []
        for part in work.parts():
            log_z, kept = forward_pass(part.work)
            found[part.texts, part.label] = work.scores.labels[part.texts, part.label] + log_z
            passes.append((part, kept))
        # log Z = log sum_y exp(labels[y] + log Z(chain below y))
        log_z = log_sum(found)
        # The derivative by a label's score is its probability, which weighs its chain
        out.labels[:] = _shares(found, log_z) * weights[:, np.newaxis]
        for part, kept in passes:
            d_chain = arrays.zeros(part.work.scores)
            of_label = np.ascontiguousarray(out.labels[part.texts, part.label])
            backward_pass(part.work, kept, of_label, d_chain)
            _add(out, part, d_chain)
        return log_z

    def best(self, work: HiddenWork) -> Path:
        """For each text, the label with the best-scoring states below it, and the score of both together."""
        best = self._by_label(work, lambda chains: _CHAIN.best(chains).scores)
        # Of equal labels the first one
        labels = np.where(best.max(axis=1) > -np.inf, best.argmax(axis=1), -1)
        return Path(labels.astype(np.int32), best.max(axis=1))

    def add_path(self, work: HiddenWork, labels: NDArray[np.int32], weights: Floats, out: HiddenScores) -> None:
        """Add the uses by the labels and the best states below them."""
        for label in np.unique(labels[labels >= 0]).tolist():
            part = work.of_label(label, labels == label)
            d_chain = arrays.zeros(part.work.scores)
            _CHAIN.add_path(part.work, _CHAIN.best(part.work).states, weights[part.texts], d_chain)
            out.labels[part.texts, label] += weights[part.texts]
            _add(out, part, d_chain)

    def states_below(self, scores: ScoresOrWork, labels: NDArray[np.integer]) -> Floats:
        """Probability of each hidden state at each unit, given the label of each text (int32[B]): float64[U, H]."""
        work = self.prepare(scores)
        found = np.zeros((len(work.scores.units), work.scores.states.shape[1]))
        for label in np.unique(labels).tolist():
            part = work.of_label(label, labels == label)
            found[part.units] = _CHAIN.marginals(part.work)
        return found

    def left_out(self, scores: ScoresOrWork) -> Floats:
        """For each unit, the scores of its text's labels (see `label_scores`) without the unit's features: float64[U, Y]."""
        work = self.prepare(scores)
        text_of = np.repeat(np.arange(len(work.scores.starts) - 1), np.diff(work.scores.starts))
        found = self.label_scores(work)[text_of]
        for part in work.parts():
            # sum_h exp(score(h) - units[t, h_t]) = Z · sum_k p(h_t = k) · exp(-units[t, k])
            with np.errstate(divide="ignore"):
                terms = np.log(_CHAIN.marginals(part.work)) - work.scores.units[:, part.columns]
            found[:, part.label] += log_sum(terms)
        return found


def _add(total: HiddenScores, part: _OfLabel, d_chain: ChainScores) -> None:
    """Add the derivative with respect to the scores below a label."""
    total.units[part.units, part.columns] += d_chain.emissions
    total.states[part.label] += d_chain.emissions.sum(axis=0)
    for name in ("transitions", "first", "last"):
        getattr(total, name)[part.label] += getattr(d_chain, name)


def _shares(scores: Floats, log_z: Floats) -> Floats:
    """exp(scores - log_z) for each row, 0 where no label is allowed."""
    return np.exp(scores - np.where(log_z > -np.inf, log_z, 0.0)[:, np.newaxis])


class HiddenDecoding(SentenceDecoding):
    """Decoding whose names include hidden states: "state 2", or "PLAY state 2" if each label has its own states."""

    def __init__(self, model: Model, annotation: Annotation):
        super().__init__(model, annotation)
        hidden = model.attrs["hidden"]
        owners = [""]
        label_of = [-1]
        if not model.attrs["shared"]:
            owners = [f"{label} " for label in annotation.labels]
            label_of = [*range(len(owners))]
        self.further_names = [f"{owner}state {n}" for owner, n in product(owners, range(hidden))]
        self.label_of_names = np.append(self.label_of_names, np.repeat(np.array(label_of, dtype=np.int64), hidden))


class HiddenNode(Seeded, OfTexts, StructureNode):
    """Node of the chains below the labels.

    hidden (int): H. shared (bool): Whether labels share the scores of states at units. unit (str): "token" or "sent".
    """

    gives = HiddenScores
    traits = Traits(
        labelled="texts",
        learned=("met",),
        meaning=("hidden", "shared", "unit"),
        params=("transitions", "first", "last", "states", "labels"),
        of_sequences=("first", "last", "labels"),
        is_online=False,
    )
    structure: HiddenChains = HiddenChains()
    decoding = HiddenDecoding

    def __init__(self, hidden: int, shared: bool, unit: str):
        super().__init__()
        self.hidden = hidden
        self.shared = shared
        reads = ("sent_start",) if unit == SENT else ()
        self.traits = self.traits._replace(names_states=hidden <= 1, unit=unit, token_attributes=reads)

    def named_states(
        self, model: Model, parameter: Optional[str], places: tuple[NDArray[np.int64], ...]
    ) -> tuple[NDArray[np.int64], ...]:
        """Number the named states: the Y labels first, then the hidden states (H shared ones, or Y · H)."""
        n_labels = model.get_dim("nO")
        if parameter is None:
            return tuple(place + n_labels for place in places)
        # Below label y, state h is number Y + y · H + h, or Y + h if labels share states
        label, *states = places
        first = n_labels + (0 if self.shared else self.hidden) * label
        return (label, *(first + state for state in states))

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        """The scores of labels, with and without each unit."""
        scores = model.predict(docs)
        structure = self.structure

        def states_of_units(labels: Ints) -> dict[str, Floats]:
            return {"states": structure.states_below(scores, labels)}

        label_scores = structure.label_scores(scores)
        return Reasons(label_scores, self.rows(docs), structure.left_out(scores), further=states_of_units)

    def columns(self, n_states: int) -> int:
        """Columns of the layer: H, or Y · H for states of their own."""
        return self.hidden if self.shared else self.hidden * n_states

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The batch with the columns of the labels that texts may have, at all of their tokens."""
        allowed = np.repeat(batch.allowed, self.hidden, axis=1)
        if self.shared:
            allowed = np.ones((len(batch.allowed), self.hidden), dtype=bool)
        return at_tokens(batch, allowed)

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters below Y labels."""
        of_label = (n_states, self.hidden)
        return {
            "transitions": (*of_label, self.hidden),
            "first": of_label,
            "last": of_label,
            "states": of_label,
            "labels": (n_states,),
        }

    def weighed(self, model: Model) -> SharedScores:
        """Parameters with weights. With one hidden state, only labels have them: other scores would measure text length."""
        shapes = self.shapes(model, model.get_dim("nO"))
        return {name: np.full(shapes[name], self.hidden > 1 or name == "labels") for name in self.traits.params}

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> HiddenScores:
        """The potentials of texts, from the units and the shared scores."""
        [(units, _, starts)] = outputs
        labels = np.tile(shared["labels"], (len(starts) - 1, 1))
        return HiddenScores(
            labels, units, shared["states"], shared["transitions"], shared["first"], shared["last"], starts
        )

    def part(self, d_scores: HiddenScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Derivatives by the units and by the shared scores."""
        d_shared = {name: getattr(d_scores, name) for name in self.traits.params}
        d_shared["labels"] = d_scores.labels.sum(axis=0)
        return (Emissions(d_scores.units, None, d_scores.starts),), d_shared

    def resize(self, model: Model, n_states: int) -> None:
        """Give the states of new labels different random weights."""
        before = self.n_states(model)
        super().resize(model, n_states)
        if before not in (None, n_states) and self.hidden > 1:
            random = np.random.default_rng([model.attrs["seed"], before])
            for name in self.traits.params:
                values: Any = model.get_param(name)
                values[before:] = random.normal(0.0, model.attrs["spread"], values[before:].shape)

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Give a new model random weights."""
        if is_new:
            self.spread_out(model, model.attrs["seed"])

    def spread_out(self, model: Model, seed: int) -> None:
        """Add random numbers to the weights: states that start equal would stay equal."""
        random = np.random.default_rng(seed)
        spread = model.attrs["spread"]
        for node in model.walk() if self.hidden > 1 else ():
            for name in node.param_names:
                values: Any = node.get_param(name)
                node.set_param(name, values + random.normal(0.0, spread, values.shape).astype(np.float32))


def HiddenChain(
    emissions: Model[list[Doc], Emissions],
    hidden: int = 2,
    shared: bool = False,
    unit: str = "token",
    spread: float = 0.1,
    seed: int = 0,
    restarts: int = 1,
) -> Model[list[Doc], HiddenScores]:
    """A hidden-state CRF (Quattoni et al. 2007).

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    hidden (int): Number of hidden states below each label.
    shared (bool): Whether labels share the scores that features give to hidden states, and differ only in the scores of states
        and transitions; otherwise each label has its own states.
    unit (str): Unit that has a hidden state: "token", or for long texts "sent", the sentence.
    spread (float): Standard deviation of the initial weights.
    seed (int): Random seed of the initial weights.
    restarts (int): Number of initializations to try, with the seeds from `seed` on; training continues with the best one.
    """
    owner = "HiddenChain"
    hidden = checks.count(owner, "hidden", hidden, most=1 << 10)
    shared = checks.flag(owner, "shared", shared)
    unit = checks.one_of(owner, "unit", unit, (TOKEN, SENT))
    check_text_emissions(owner, emissions, unit)
    begins = {
        "spread": checks.number(owner, "spread", spread, least=checks.LEAST, most=1000.0),
        "seed": checks.count(owner, "seed", seed, least=0, most=checks.ANY),
        "restarts": checks.count(owner, "restarts", restarts, most=1000),
    }
    settings = {"hidden": hidden, "shared": shared, "unit": unit, **begins}
    return build("hidden_chain", HiddenNode(hidden, shared, unit), {"emissions": emissions}, **settings)
