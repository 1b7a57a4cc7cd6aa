"""The linear chain: emissions plus transitions between neighbouring tags.

The model's output is ``ChainScores``: the potentials of a batch, with -inf where the tag scheme forbids a transition.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model

from .. import checks
from ..inference.linear_chain import LinearChain as LinearChainInference
from ..schemes import TransitionMask
from ..types import ChainScores, Clamp, Floats
from .emissions import AnnotatedDocs, Corpus, Emissions, check_emissions, pairs_allowed, resize_emissions
from .kept import Kept, check_array, check_equal, check_weights
from .parameters import StructureModel, enlarged, set_moved

_PARAMS = ("transitions", "first", "last")


def LinearChain(
    emissions: Model[list[Doc], Emissions], possible_transitions: bool = False
) -> Model[list[Doc], ChainScores]:
    """A first-order linear chain (Lafferty, McCallum & Pereira 2001).

    emissions (Model): Scores of tags at tokens, from SparseEmissions or Tok2VecEmissions.
    possible_transitions (bool): Give every pair of tags that the scheme allows a weight, not only those seen in training.
        The others stay possible, with a weight of zero.
    """
    check_emissions("LinearChain", emissions)
    return StructureModel(
        "linear_chain",
        _forward,
        init=_init,
        layers=[emissions],
        refs={"emissions": emissions},
        params=dict.fromkeys(_PARAMS),
        attrs={
            "possible_transitions": checks.flag("LinearChain", "possible_transitions", possible_transitions),
            "structure": LinearChainInference(),
            "gives": ChainScores,
            "resize": resize_chain,
            "potentials": Potentials(),
            "allowed": None,  # TransitionMask, set by the component
            "met": [0, 0],  # tokens and sequences that training met
            "observed": None,  # uint8[S + 2, S]: which transitions, firsts and lasts have a weight
            "kept": Kept(("observed", "met"), (), _check),
        },
    )


def set_allowed(model: Model, mask: TransitionMask) -> None:
    """Tells the chain what the tag scheme allows; not saved, since the scheme says it."""
    model.attrs["allowed"] = mask


class Potentials:
    """Those of transitions, firsts and lasts: the same from batch to batch, so that predicting need not make them again."""

    def __init__(self) -> None:
        self._latest: Optional[tuple] = None  # replaced as a whole: threads may be reading

    def of(self, weights: list[NDArray], allowed: TransitionMask) -> tuple[Floats, Floats, Floats]:
        """In float64, with -inf where the scheme forbids; nobody writes to them. Optimizers change weights in place, so they
        are compared."""
        latest = self._latest
        if latest is None or latest[0] is not allowed or not all(map(np.array_equal, latest[1], weights)):
            potentials = tuple(np.where(mask, w, -np.inf).astype(np.float64) for mask, w in zip(allowed, weights))
            latest = self._latest = (allowed, [w.copy() for w in weights], potentials)
        return latest[2]


def chain_scores(model: Model, emissions: Emissions, transitions, first, last) -> ChainScores:
    """Potentials from emissions and the chain's weights, in float64, with -inf where the scheme forbids."""
    allowed: TransitionMask = model.attrs["allowed"]
    transitions = np.where(allowed.transitions, transitions, -np.inf)
    first = np.where(allowed.first, first, -np.inf)
    last = np.where(allowed.last, last, -np.inf)
    return _with_emissions(emissions, transitions, first, last)


def _with_emissions(emissions: Emissions, transitions: Floats, first: Floats, last: Floats) -> ChainScores:
    if emissions.transitions is not None:
        transitions = emissions.transitions + transitions
    return ChainScores(emissions.scores, transitions, first, last, emissions.starts)


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[ChainScores, Callable]:
    emissions, backprop_emissions = model.layers[0](docs, is_train)
    weights = [model.get_param(name) for name in _PARAMS]
    if is_train:
        scores = chain_scores(model, emissions, *(array.astype(np.float64) for array in weights))
    else:
        scores = _with_emissions(emissions, *model.attrs["potentials"].of(weights, model.attrs["allowed"]))

    def backprop(d_scores: ChainScores) -> list[Doc]:
        d_transitions, per_position = d_scores.transitions, None
        if d_transitions.ndim == 3:
            d_transitions, per_position = d_transitions.sum(axis=0), d_transitions
        observed = model.attrs["observed"]
        for name, gradient, mask in zip(
            _PARAMS, (d_transitions, d_scores.first, d_scores.last), (observed[:-2], observed[-2], observed[-1])
        ):
            model.inc_grad(name, np.where(mask, gradient, 0.0).astype(np.float32))
        return backprop_emissions(Emissions(d_scores.emissions, per_position, d_scores.starts))

    return scores, backprop


def _init(model: Model, X: Optional[Corpus] = None, Y: Optional[tuple[Vocab, int]] = None) -> None:
    if X is None or Y is None:
        model.layers[0].initialize()
        return
    n_tags = Y[1]
    met = list(model.attrs["met"])
    model.layers[0].initialize(X=counted(X, met), Y=Y)
    model.attrs["met"] = met
    resize_chain(model, n_tags)
    observed = model.attrs["observed"].astype(bool)
    allowed: TransitionMask = model.attrs["allowed"]
    possible = np.vstack([allowed.transitions, allowed.first, allowed.last])
    if model.attrs["possible_transitions"]:
        observed |= possible
    else:
        for batch in X():
            observed |= _observed(batch.allowed, batch.starts)
    model.attrs["observed"] = (observed & possible).astype(np.uint8)


def counted(corpus: Corpus, met: list[int]) -> Corpus:
    """The corpus, whose tokens and sequences are added to ``met`` as it is read for the first time."""
    unread = [True]

    def read() -> Iterable[AnnotatedDocs]:
        counts, unread[:] = bool(unread), []
        for batch in corpus():
            if counts:
                met[0] += int(batch.starts[-1])
                met[1] += len(batch.starts) - 1
            yield batch

    return read


def _observed(clamp: Clamp, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Transitions, firsts and lasts of tokens whose annotation leaves one tag: bool[S + 2, S]."""
    n_tags = clamp.shape[1]
    observed = np.zeros((n_tags + 2, n_tags), dtype=bool)
    tags = np.where(clamp.sum(axis=1) == 1, clamp.argmax(axis=1), -1)
    begin, end = starts[:-1][starts[:-1] < starts[1:]], starts[1:][starts[:-1] < starts[1:]]
    for row, tokens in ((-2, begin), (-1, end - 1)):
        observed[row, tags[tokens][tags[tokens] >= 0]] = True
    pairs, _ = pairs_allowed(clamp, starts)
    observed[pairs // n_tags, pairs % n_tags] = True
    return observed


def _check(model: Model, n_tags: int) -> None:
    check_weights(model, {"transitions": (n_tags, n_tags), "first": (n_tags,), "last": (n_tags,)})
    check_array("observed", model.attrs["observed"], (n_tags + 2, n_tags), np.uint8)
    check_met(model.attrs["met"])


def check_met(met: Any) -> None:
    """RAISES (ValueError): CRF509."""
    is_count = isinstance(met, list) and [*map(type, met)] == [int, int] and min(met) >= 0
    check_equal("what training met", is_count, True)


def resize_chain(model: Model, n_tags: int) -> None:
    """Makes room for new tags behind those that are there; their weights are zero, and every possible pair with them has one."""
    before = model.get_param("first").shape[0] if model.has_param("first") else 0
    resize_emissions(model.layers[0], n_tags)
    if before == n_tags:
        return
    for name in _PARAMS:
        shape = (n_tags, n_tags) if name == "transitions" else (n_tags,)
        if before:
            set_moved(model, name, partial(enlarged, shape=shape))
        else:
            model.set_param(name, np.zeros(shape, dtype=np.float32))
    allowed: TransitionMask = model.attrs["allowed"]
    possible = np.vstack([allowed.transitions, allowed.first, allowed.last])
    model.attrs["observed"] = resized_observed(model.attrs["observed"], before, possible)


def resized_observed(
    observed: Optional[NDArray[np.uint8]], before: int, possible: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Which transitions, firsts and lasts have a weight: those that had one, and all that a new tag makes possible."""
    if not before:
        return np.zeros(possible.shape, dtype=np.uint8)
    resized = possible.astype(np.uint8)
    resized[:before, :before] = observed[:before]
    resized[-2:, :before] = observed[-2:]
    return resized
