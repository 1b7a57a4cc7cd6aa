"""One label for a text whose tokens, or sentences, have hidden states: what speaks for the label, and in which order.

The model's output is ``HiddenScores``.
"""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from .. import checks
from ..features.doc_batch import DocBatch
from ..features.units import SENT, TOKEN
from ..inference.hidden_chain import HiddenChain as HiddenChainInference
from ..inference.hidden_chain import HiddenScores
from ..types import Floats
from .architecture import Architecture, Shared, build
from .emissions import Emissions
from .role import Corpus
from .texts import OfTexts, Reasons, check_text_emissions


class HiddenRole(OfTexts, Architecture):
    """The chains below the labels.

    hidden (int): H. shared (bool): Whether labels share the scores of states at units. unit (str): What has a state.
    """

    gives = HiddenScores
    params = ("transitions", "first", "last", "states", "labels")
    of_sequences = ("first", "last", "labels")
    learned = ("met",)
    meaning = ("hidden", "shared", "unit")
    structure = HiddenChainInference()
    walks = False

    def __init__(self, hidden: int, shared: bool, unit: str):
        super().__init__()
        self.hidden, self.shared, self.unit = hidden, shared, unit

    def named_states(
        self, model: Model, parameter: Optional[str], places: tuple[NDArray[np.int64], ...]
    ) -> tuple[NDArray[np.int64], ...]:
        """Names are those of the Y labels, then those of hidden states: H that labels share, or Y · H."""
        n_labels = model.get_dim("nO")
        if parameter is None:
            return tuple(place + n_labels for place in places)
        label, *states = places
        first = n_labels + (0 if self.shared else self.hidden) * label
        return (label, *(first + state for state in states))

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        scores = model.predict(docs)
        return Reasons(self.structure.label_scores(scores), self.rows(docs), self.structure.left_out(scores))

    def states_below(self, model: Model, docs: DocBatch, labels: NDArray[np.int64]) -> Floats:
        return self.structure.states_below(model.predict(docs), labels)

    def columns(self, n_states: int) -> int:
        return self.hidden if self.shared else self.hidden * n_states

    def spread(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if self.shared:
            return np.ones((len(allowed), self.hidden), dtype=bool)
        return np.repeat(allowed, self.hidden, axis=1)

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        of_label = (n_states, self.hidden)
        return {
            "transitions": (*of_label, self.hidden),
            "first": of_label,
            "last": of_label,
            "states": of_label,
            "labels": (n_states,),
        }

    def possible(self, model: Model) -> Shared:
        return dict.fromkeys(self.params, np.True_)

    def weighed(self, model: Model) -> Shared:
        """With one hidden state all but the scores of labels say how long a text is, and nothing else."""
        shapes = self.shapes(model, model.get_dim("nO"))
        return {name: np.full(shapes[name], self.hidden > 1 or name == "labels") for name in self.params}

    def join(self, outputs: tuple[Emissions, ...], shared: Shared) -> HiddenScores:
        [(units, _, starts)] = outputs
        labels = np.tile(shared["labels"], (len(starts) - 1, 1))
        return HiddenScores(labels, units, *(shared[n] for n in ("states", "transitions", "first", "last")), starts)

    def part(self, d_scores: HiddenScores, outputs: tuple[Emissions, ...]) -> tuple[Emissions, ...]:
        return (Emissions(d_scores.units, None, d_scores.starts),)

    def derivatives(self, d_scores: HiddenScores) -> Shared:
        found = {name: getattr(d_scores, name) for name in self.params}
        return {**found, "labels": d_scores.labels.sum(axis=0)}

    def enlarge(self, model: Model, before: int, n_states: int) -> None:
        """The states of new labels are to differ, too."""
        if before and self.hidden > 1:
            random = np.random.default_rng([model.attrs["seed"], before])
            for name in self.params:
                values = model.get_param(name)
                values[before:] = random.normal(0.0, model.attrs["spread"], values[before:].shape)

    def observe(self, model: Model, corpus: Corpus, n_states: int) -> None:
        """All scores have a weight."""

    def start(self, model: Model, corpus: Corpus, is_new: bool) -> None:
        if is_new:
            self.spread_out(model, model.attrs["seed"])

    def spread_out(self, model: Model, seed: int) -> None:
        """States that are alike would stay alike: chance makes a difference."""
        random, spread = np.random.default_rng(seed), model.attrs["spread"]
        for node in model.walk() if self.hidden > 1 else ():
            for name in node.param_names:
                values = node.get_param(name)
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
    hidden (int): How many hidden states there are below each label.
    shared (bool): Whether labels share the scores that features give to hidden states, and differ in how these follow each other;
        otherwise each label has states of its own.
    unit (str): What has a hidden state: "token", or for long texts "sent", the sentence.
    spread (float): Standard deviation of the weights that learning begins with.
    seed (int): Of these random numbers.
    restarts (int): Beginnings that are tried, with the seeds from `seed` on; training goes on with the best one.
    """
    owner = "HiddenChain"
    hidden, shared = checks.count(owner, "hidden", hidden, most=1 << 10), checks.flag(owner, "shared", shared)
    unit = checks.one_of(owner, "unit", unit, (TOKEN, SENT))
    check_text_emissions(owner, emissions, unit)
    begins = {
        "spread": checks.number(owner, "spread", spread, least=checks.LEAST, most=1000.0),
        "seed": checks.count(owner, "seed", seed, least=0, most=checks.ANY),
        "restarts": checks.count(owner, "restarts", restarts, most=1000),
    }
    settings: dict[str, Any] = {"hidden": hidden, "shared": shared, "unit": unit, **begins}
    return build("hidden_chain", HiddenRole(hidden, shared, unit), {"emissions": emissions}, **settings)
