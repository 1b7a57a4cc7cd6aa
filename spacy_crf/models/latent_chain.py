"""Hidden states: a linear chain whose states are a tag with a number that nobody annotates (Morency, Quattoni & Darrell 2007).

The output is ``ChainScores`` of all states, those of tag 0 first, then those of tag 1 and so on. A tag is what all its states say
together: annotation allows all states of a tag, so the loss sums them up and training finds out what they stand for.
"""

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from .. import checks
from ..errors import Errors, known_names
from ..types import ChainScores
from .architecture import build
from .emissions import Emissions, check_emissions
from .linear_chain import ChainRole
from .role import Corpus, check_equal

_MOST = 64  # hidden states of a tag


class LatentRole(ChainRole):
    """The attribute "started" says how many of the states have weights that differ from those of other states of their tag."""

    learned = (*ChainRole.learned, "started")
    meaning = ("hidden",)

    def tag_of(self, model: Model, labels: Sequence[str]) -> NDArray[np.int64]:
        hidden = model.attrs["hidden"]
        each = [hidden.get(label, 1) if isinstance(hidden, dict) else hidden for label in labels]
        return np.repeat(np.arange(len(labels)), np.array(each, dtype=np.int64))

    def has_hidden(self, model: Model) -> bool:
        hidden = model.attrs["hidden"]
        return max(hidden.values(), default=1) > 1 if isinstance(hidden, dict) else hidden > 1

    def check_labels(self, model: Model, labels: Sequence[str], name: str) -> None:
        """RAISES (ValueError): CRF345 if labels have hidden states that the component does not have."""
        hidden = model.attrs["hidden"]
        unknown = [label for label in hidden if label not in labels] if isinstance(hidden, dict) else []
        if unknown:
            known = known_names(dict.fromkeys(labels), *unknown)
            raise ValueError(Errors.CRF345.format(name=name, labels=", ".join(unknown), known=known))

    def observe(self, model: Model, corpus: Corpus, n_states: int) -> None:
        # The first state of each tag stands for all of them
        tag_of = model.attrs["tag_of"]
        first = np.searchsorted(tag_of, tag_of)
        stands = first == np.arange(n_states)
        super().observe(model, lambda: (batch._replace(allowed=batch.allowed & stands) for batch in corpus()), n_states)
        observed = model.attrs["observed"]
        model.attrs["observed"] = observed[np.append(first, [n_states, n_states + 1])][:, first]

    def start(self, model: Model, corpus: Corpus, is_new: bool) -> None:
        """States of one tag that begin alike stay alike, so each begins with weights of its own."""
        self.spread_out(model, model.attrs["seed"], first=model.attrs["started"] or 0)
        model.attrs["started"] = model.get_dim("nO")

    def spread_out(self, model: Model, seed: int, *, first: int = 0) -> None:
        """Adds random numbers to the weights of all states from the first one on whose tag has several."""
        tag_of, spread = model.attrs["tag_of"], model.attrs["spread"]
        states = (np.bincount(tag_of)[tag_of] > 1) & (np.arange(len(tag_of)) >= first)
        random = np.random.default_rng((seed, first))
        for layer in model.layers if states.any() else ():
            layer.attrs["role"].add_noise(layer, states, lambda shape: random.normal(0.0, spread, shape))

    def check(self, model: Model, n_states: int) -> None:
        super().check(model, n_states)
        check_equal("states with weights of their own", model.attrs["started"], n_states)


def LatentChain(
    emissions: Model[list[Doc], Emissions],
    hidden: Union[int, dict[str, int]] = 2,
    spread: float = 0.01,
    seed: int = 0,
    restarts: int = 1,
    possible_transitions: bool = False,
) -> Model[list[Doc], ChainScores]:
    """A linear chain with hidden states: each tag has several, which training tells apart (Morency, Quattoni & Darrell 2007). Its
    objective has more than one minimum; which is found depends on the seed.

    emissions (Model): From SparseEmissions, HashedEmissions or Tok2VecEmissions.
    hidden (Union[int, Dict[str, int]]): States of each tag; or by label, where "O" stands for what has none and labels that are
        not named have one. With 1 everywhere it is `spacy_crf.LinearChain.v2`.
    spread (float): Standard deviation of the weights that states begin with.
    seed (int): Of these random numbers.
    restarts (int): Beginnings that are tried, with the seeds from `seed` on; training goes on with the best one.
    possible_transitions (bool): As of `spacy_crf.LinearChain.v2`.
    """
    owner = "LatentChain"
    check_emissions(owner, emissions)
    if isinstance(hidden, dict):
        hidden = {label: _count(owner, f"hidden[{label!r}]", n) for label, n in hidden.items()}
    else:
        hidden = _count(owner, "hidden", hidden)
    restarts = checks.count(owner, "restarts", restarts, most=1000)
    linear = emissions.attrs["role"].is_linear
    if restarts > 1 and not linear:
        raise ValueError(Errors.CRF346.format(restarts=restarts, emissions=emissions.name))
    return build(
        "latent_chain",
        LatentRole(),
        {"emissions": emissions},
        possible_transitions=checks.flag(owner, "possible_transitions", possible_transitions),
        hidden=hidden,
        spread=checks.number(owner, "spread", spread, least=checks.LEAST, most=1000.0),
        seed=checks.count(owner, "seed", seed, least=0, most=checks.ANY),
        restarts=restarts,
        started=None,
    )


def _count(owner: str, name: str, n: Any) -> int:
    return checks.count(owner, name, n, most=_MOST)
