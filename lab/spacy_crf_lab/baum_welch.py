"""Baum-Welch: the parameters of hidden Markov models from texts whose states are unknown, or partly known.

    p(y, x) = prod_t go(y_(t-1)) q(y_t | y_(t-1)) prod_j e_j(x_(t, j) | y_t) · end(y_T)                (order 1)

where go = 1 - end, and the sources j are one source of words, or several annotators, each of which may say nothing. With order 2,
q depends on two states. Each iteration computes the expected number of each event, given the present parameters and what
annotation allows, and takes these numbers plus `smoothing` as new counts (Baum, Petrie, Soules & Weiss 1970; Dempster, Laird &
Rubin 1977), so the likelihood of all that is observed, times the prior that smoothing stands for, never falls.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from spacy_crf.inference.higher_order import HigherOrder
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.pruned_lattice import HigherOrderScores, Orders, tags_of_keys
from spacy_crf.schemes import TransitionMask
from spacy_crf.types import ChainScores, Clamp, Floats, Ints

from .counting import Counts, may_follow, shares


class Observed(NamedTuple):
    """Sequences of T tokens, as J sources see them."""

    codes: Ints  # [J, T] what each source says at each token, -1 for nothing
    allowed: Clamp  # [T, S] states that are possible
    starts: Ints  # [B + 1]
    weights: Floats  # [B]


class Estimates(NamedTuple):
    """Expected numbers of events."""

    steps: Counts
    codes: Sequence[Floats]  # [V, S] of each source: how often it said what in which state
    log_likelihood: float = -np.inf  # of the parameters that these numbers were computed with


class Parameters(NamedTuple):
    """Logarithms of probabilities, -inf for what is impossible."""

    transitions: Floats  # [S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    grams: Floats  # [G]
    codes: Sequence[Floats]  # [V, S] of each source: p(code | state)


class Priors(NamedTuple):
    """Numbers that are added to the expected ones."""

    steps: float  # to each transition that is possible
    codes: Sequence[Union[float, Floats]]  # to what each source says: one number, or float64[V, S]


_LARGE = float(np.finfo(np.float64).max)


def maximize(estimates: Estimates, allowed: TransitionMask, prior: Priors) -> Parameters:
    """The parameters of the largest posterior probability, given expected numbers of events."""
    counts = estimates.steps
    follow = may_follow(allowed)
    size = len(counts.steps) - 1
    with np.errstate(divide="ignore"):
        # Row 0: numbers of ends after each state; row 1: numbers of transitions: [2, S]
        ends = np.stack([counts.steps[:-1, -1], counts.steps[:-1, :-1].sum(axis=1)]) + prior.steps
        ends *= np.stack([allowed.last, allowed.transitions.any(axis=1)])
        last, go = np.log(shares(ends, ends.sum(axis=0)))
        # q(v | u): the last row is the start
        steps = np.where(follow, counts.steps[:, :-1] + prior.steps, 0.0)
        steps = np.log(shares(steps, steps.sum(axis=1, keepdims=True)))
        # e_j(code | state): each column sums to 1
        codes = [n + more for n, more in zip(estimates.codes, prior.codes)]
        codes = [np.log(shares(n, n.sum(axis=0))) for n in codes]
        # q(v | w, u), of the triples that are kept: [G] each
        w, u, v = tags_of_keys(counts.keys, size)[:, 1:].T
        grams = np.where(follow[u, v], counts.grams + prior.steps, 0.0)
        contexts = w * size + u
        of_contexts: Any = np.bincount(contexts, grams, minlength=(size + 1) * size)
        grams = np.log(shares(grams, of_contexts[contexts]))
    # Beside the logarithm for the pair, a triple has what it adds, so that a chain of order 1 can prune pairs
    grams = np.where(grams > -np.inf, grams - np.maximum(steps[u, v], -_LARGE), -np.inf)
    return Parameters(go[:, np.newaxis] + steps[:-1], steps[-1], last, grams, codes)


def scores_of(parameters: Parameters, observed: Observed, orders: Orders) -> Any:
    """The logarithms as scores of a chain of order 1 or 2, whose log partition is the log-likelihood."""
    emissions = np.zeros(observed.allowed.shape)
    for codes, table in zip(observed.codes, parameters.codes):
        # log p(codes | state) = sum_j log e_j(code_j | state), over the sources that say something
        said = codes >= 0
        emissions[said] += table[codes[said]]
    scores = ChainScores(emissions, *parameters[:3], observed.starts)
    if orders.order == 1:
        return scores
    return HigherOrderScores(*scores[:4], grams=parameters.grams, orders=orders, starts=observed.starts)


def expect(
    parameters: Parameters,
    texts: Sequence[Observed],
    orders: Orders,
    take: Callable[[int, Floats], None] = lambda text, of_states: None,
) -> Estimates:
    """Expected numbers of events in all texts.

    take (Callable[[int, Floats], None]): Receives the number of each text, and the probabilities of its states: float64[T, S].
    """
    size = orders.size
    structure = LinearChain() if orders.order == 1 else HigherOrder()
    numbers: Any  # of the type that the scores have
    counts = Counts.none(size, orders.keys)
    log_likelihood = 0.0
    said = [np.zeros(table.shape) for table in parameters.codes]
    for text, observed in enumerate(texts):
        scores = scores_of(parameters, observed, orders)
        log_z, numbers = structure.expectations(scores, clamp=observed.allowed, weights=observed.weights)
        possible = log_z > -np.inf
        log_likelihood += float(log_z[possible] @ observed.weights[possible])
        # The derivatives of the log-likelihood by log probabilities are the expected numbers of events
        counts.steps[:size, :size] += numbers.transitions
        counts.steps[size, :size] += numbers.first
        counts.steps[:size, size] += numbers.last
        if len(counts.keys):
            counts.grams[:] += numbers.grams
        for codes, table in zip(observed.codes, said):
            np.add.at(table, codes[codes >= 0], numbers.emissions[codes >= 0])
        take(text, numbers.emissions)
    return Estimates(counts, said, log_likelihood)


def baum_welch(
    texts: Sequence[Observed],
    estimates: Estimates,
    allowed: TransitionMask,
    prior: Priors,
    orders: Orders,
    iterations: int,
    say: Callable[[int, float], None] = lambda iteration, log_likelihood: None,
) -> Estimates:
    """Run some iterations.

    estimates (Estimates): Numbers of events to begin with. orders (Orders): The order, and the triples of order 2.
    say (Callable[[int, float], None]): Called with the number of each iteration, and the log-likelihood before it.
    """
    for iteration in range(1, iterations + 1):
        estimates = expect(maximize(estimates, allowed, prior), texts, orders)
        say(iteration, estimates.log_likelihood)
    return estimates
