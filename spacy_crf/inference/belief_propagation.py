"""Belief propagation by sweeps over chains (Sutton & McCallum 2004): exact inside each chain, messages along the ties.

Repeated until the messages stay: forward–backward on the chains, whose tied tokens have the messages as further emissions; then
messages along their ties, given what they say. After the first time only chains are asked that have been told something new,
which soon are few (residual scheduling: Elidan, McGraw & Koller 2006). Where ties and chains have no cycle the answers are exact;
elsewhere

    log Z = sum over chains of log Z(with messages) + sum over ties of share · log z(tie)

is Bethe's approximation, whose derivatives are the beliefs.
"""

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..kernels import max_product
from ..kernels import ties as kernels
from ..types import ChainScores, Floats
from . import scaling
from .blocks import best_improved, neighbours, potentials
from .linear_chain import LinearChain
from .method import LOG_PARTITION, MAXIMUM, Expected, Inference
from .reweighting import Bounded
from .structure import States
from .ties import Problem, cut_chains

_STUBBORN = 0.5  # how much messages keep of their old value that have not settled after half of the iterations
_TOGETHER = 1000  # ties whose pairs of labels are in memory
_SWEEPS = 10  # along the ties between two passes over chains, at most: they cost little
_LEAST = 0.1  # of an iteration that a pass counts, however few chains it is over


class _Places(NamedTuple):
    """The tied tokens of a problem."""

    tokens: NDArray[np.int64]  # [V]
    sequences: NDArray[np.int64]  # [V] where they are
    ends: NDArray[np.int64]  # [2, E] of the ties
    receivers: NDArray[np.int64]  # [E, 2] the sequences of these

    @classmethod
    def of(cls, problem: Problem) -> "_Places":
        tokens, ends = np.unique([problem.source, problem.target], return_inverse=True)
        ends = ends.reshape(2, -1)
        sequences = np.searchsorted(problem.chains.starts, tokens, side="right") - 1
        return cls(tokens, sequences, ends, np.ascontiguousarray(sequences[ends].T))


class _Messages(NamedTuple):
    """What passes along ties, and by what it is made."""

    places: _Places
    sent: kernels.Sent  # whose tables are over their shares
    kind_of: NDArray[np.int64]  # [K'] of these tables, which of the problem's each is
    shift: Floats  # [K'] their maxima
    told: Floats  # [E, 2, L]
    emissions: Floats  # [T, S] of the chains, with the messages that `arrive` last took there

    @classmethod
    def none(cls, problem: Problem, shares: Optional[Floats]) -> "_Messages":
        """Before anything is said. shares (float64[E]): None for messages about maxima, whose tables are no exponentials."""
        if shares is None:
            places, shares = _Places.of(problem), np.ones(len(problem.kind))
            sent = kernels.Sent(places.ends, problem.kind, problem.tables, shares)
            told = np.zeros((len(shares), 2, problem.n_labels))
            kind_of, shift = np.arange(len(problem.tables)), np.zeros(len(problem.tables))
            return cls(places, sent, kind_of, shift, told, problem.chains.emissions.copy())
        if (shares == 1.0).all():
            kind_of, kind, tables = np.arange(len(problem.tables)), problem.kind, problem.tables
        else:
            kind_of, kind = problem.kind, np.arange(len(problem.kind))
            tables = problem.tables[problem.kind] / shares[:, np.newaxis, np.newaxis]
        shift = tables.max(axis=(1, 2), initial=-np.inf)
        exponentials = np.exp(tables - shift[:, np.newaxis, np.newaxis])
        places, told = _Places.of(problem), np.zeros((len(shares), 2, problem.n_labels))
        sent = kernels.Sent(places.ends, kind, exponentials, shares)
        return cls(places, sent, kind_of, shift, told, problem.chains.emissions.copy())

    def arrive(self, problem: Problem, some: Optional[NDArray[np.int64]] = None) -> ChainScores:
        """The chains with all messages into some places (int64[N]), or into all."""
        places = self.places
        some = np.arange(len(places.tokens)) if some is None else some
        scores = problem.chains.emissions, self.emissions
        kernels.arrive(self.sent, self.told, some, places.tokens, problem.label_of, *scores)
        return problem.chains._replace(emissions=self.emissions)


class BeliefPropagation(Inference):
    """See above. Shares (Wainwright, Jaakkola & Willsky 2005) make the sum an upper bound: each tie counts as often as it is in a
    random forest that has all chains.

    iterations (int): Passes over the chains, at most: over some of them is a part of one. 0 for the chains alone.
    damping (float): From 0 to below 1: how much of its old value a message keeps. Half of it at least for messages that have not
        settled after half of the iterations.
    tolerance (float): Messages stay where none moves by more than this.
    tree_reweighted (bool): Whether the log partition is to be an upper bound, which is convex: beliefs are less certain then.
    max_product (bool): Whether predicted labellings are those that messages about maxima find, for the text as a whole: exact
        where ties and sentences have no cycle. Otherwise each sentence has its best one, as the others expect it. Trainings that
        ask for a best labelling (perceptron, max-margin) always get the former.
    """

    answers = frozenset([LOG_PARTITION, MAXIMUM])
    remedy = "More iterations help, or more damping."

    def __init__(
        self,
        iterations: int = 20,
        damping: float = 0.0,
        tolerance: float = 1e-4,
        tree_reweighted: bool = False,
        max_product: bool = False,
    ):
        owner = type(self).__name__
        self.iterations = checks.count(owner, "iterations", iterations, least=0)
        self.damping = checks.number(owner, "damping", damping, most=0.99)
        self.tolerance = checks.positive(owner, "tolerance", tolerance)
        self.tree_reweighted = checks.flag(owner, "tree_reweighted", tree_reweighted)
        self.max_product = checks.flag(owner, "max_product", max_product)

    def __repr__(self) -> str:
        settings = f"iterations={self.iterations}, damping={self.damping}, tolerance={self.tolerance}"
        flags = f"tree_reweighted={self.tree_reweighted}, max_product={self.max_product}"
        return f"{type(self).__name__}({settings}, {flags})"

    @property
    def decodes_chains(self) -> bool:
        return not self.max_product

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        if self.tree_reweighted:
            bounded = Bounded.of(problem)
            return bounded.expected(self._expectations(bounded.problem, weights, bounded.shares))
        return self._expectations(problem, weights, np.ones(len(problem.kind)))

    def _expectations(self, problem: Problem, weights: Floats, shares: Floats) -> Expected:
        messages = self._settle(problem, shares)
        chains, tokens = messages.arrive(problem), messages.places.tokens
        log_z, expected = LinearChain().expectations(chains, weights=weights[problem.component])
        if weights.all():
            factors = weights[problem.component[messages.places.sequences]]
            marginals = expected.emissions[tokens] / factors[:, np.newaxis]
        else:  # of some chains they were not asked for
            marginals = _marginals(chains, tokens)
        beliefs = _logs(problem.by_label(marginals))
        of_ties, d_tables = np.empty(len(problem.kind)), np.zeros(messages.sent.tables.shape)
        kernels.weigh(messages.sent, beliefs, messages.told, weights[problem.of_ties], of_ties, d_tables)
        of_ties = shares * (of_ties + messages.shift[messages.sent.kind])
        sums = np.bincount(problem.of_ties, of_ties, minlength=len(problem.firsts))
        of_kinds = np.zeros(problem.tables.shape)
        np.add.at(of_kinds, messages.kind_of, d_tables)
        return Expected(problem.by_component(log_z) + sums, expected, of_kinds)

    def best(self, problem: Problem) -> States:
        """By max-product, sequence by sequence: first the one that a component begins with, then those tied to it, and so on."""
        apart = LinearChain().viterbi(problem.chains).states
        if not self.iterations:
            return apart
        messages, decided = self._settle(problem, None), np.empty(len(apart), dtype=np.int32)
        chains, (ties, order) = potentials(problem.chains), neighbours(problem)
        told = np.concatenate([messages.told[:, 0], messages.told[:, 1]])[order]
        order, lost = _outwards(problem, messages.places), problem.lost(apart)
        max_product.decide(chains, ties, told, order[~lost[problem.component[order]]], decided)
        return best_improved(problem, [apart, decided])

    def as_chains(self, problem: Problem) -> ChainScores:
        shares = np.ones(len(problem.kind))
        if self.tree_reweighted:
            problem, shares, _ = Bounded.of(problem)
        return self._settle(problem, shares).arrive(problem)

    def told(self, work: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
        """What each end of each tie is told in the end.

        work (TiedWork): The scores.
        RETURNS (int64[N], int64[N], int64[N], float64[N, S]): Tokens, their partners, the kinds of the ties, and what they add to
            the emissions.
        """
        halves = work.halves
        if halves.tied is None:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none, np.zeros((0, work.n_states))
        problem, shares = halves.tied, np.ones(len(halves.tied.kind))
        if self.tree_reweighted:
            problem, shares, _ = Bounded.of(problem)
        messages = self._settle(problem, shares)
        added = [shares[:, np.newaxis] * messages.told[:, side][:, problem.label_of] for side in range(2)]
        ends = [halves.tied_tokens[end] for end in (problem.source, problem.target)]
        kinds = np.append(problem.kind, problem.kind)
        return np.append(*ends), np.append(*ends[::-1]), kinds, np.concatenate(added)

    def information(self, problem: Problem) -> Floats:
        """How much the labels at the two ends of each tie say of each other: float64[E].

        I[e] = sum_ij b[e](i, j) log(b[e](i, j) / (b[u](i) b[v](j)))
        """
        messages = self._settle(problem, np.ones(len(problem.kind)))
        every = np.arange(len(messages.places.tokens))
        beliefs = _log_marginals(problem, messages, np.ones(len(problem.chains.starts) - 1, dtype=bool), every)
        found = np.empty(len(problem.kind))
        for begin in range(0, len(found), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            ends = [beliefs[messages.sent.ends[side, some]] - messages.told[some, side] for side in range(2)]
            ends = [np.exp(end - end.max(axis=1, initial=-1e300, keepdims=True)) for end in ends]
            pairs = ends[0][:, :, np.newaxis] * messages.sent.tables[messages.sent.kind[some]] * ends[1][:, np.newaxis]
            pairs /= np.maximum(pairs.sum(axis=(1, 2), keepdims=True), kernels.LEAST)
            apart = pairs.sum(axis=2, keepdims=True) * pairs.sum(axis=1, keepdims=True)
            ratio = np.divide(pairs, apart, out=np.ones(pairs.shape), where=pairs > 0.0)
            found[some] = (pairs * np.log(ratio)).sum(axis=(1, 2))
        return found

    def _settle(self, problem: Problem, shares: Optional[Floats]) -> _Messages:
        """Messages that stay, or those after the last iteration.

        shares (float64[E]): How much of each tie counts; None for messages about maxima.
        """
        ask, sweep = (_maxima, max_product.sweep) if shares is None else (_log_marginals, kernels.sweep)
        messages, component = _Messages.none(problem, shares), problem.component
        lengths, of_ties = np.diff(problem.chains.starts), problem.of_ties
        n_tokens = problem.by_component(lengths)
        heard, beliefs = np.zeros(messages.told.shape), np.zeros((len(messages.places.tokens), problem.n_labels))
        spent, has_news = np.zeros(len(n_tokens)), np.isin(component, of_ties)
        while True:
            asked = has_news & (spent < self.iterations * n_tokens)[component]
            if not asked.any():
                break
            damping = np.where(2.0 * spent < self.iterations * n_tokens, self.damping, max(self.damping, _STUBBORN))
            spent += np.maximum(problem.by_component(lengths * asked), _LEAST * n_tokens)
            there = np.flatnonzero(asked[messages.places.sequences])
            beliefs[there] = ask(problem, messages, asked, there)
            hears = asked[messages.places.receivers]
            heard[hears] = messages.told[hears]
            some = np.flatnonzero(hears.any(axis=1))
            bounds = np.searchsorted(of_ties[some], np.arange(len(n_tokens) + 1))
            sweep(messages.sent, some, bounds, damping, _SWEEPS, self.tolerance, beliefs, messages.told)
            has_news[:] = False
            has_news[messages.places.receivers[abs(messages.told - heard).max(axis=2) > self.tolerance]] = True
        self.n_asked += len(n_tokens)
        self.n_unsettled += len(np.unique(component[has_news])) if self.iterations else 0
        return messages


def _told(
    problem: Problem, messages: _Messages, asked: NDArray[np.bool_], there: NDArray[np.int64]
) -> tuple[ChainScores, NDArray[np.int64]]:
    """Some of the chains (bool[B]) with all messages, and which of their tokens some places are (int64[N])."""
    chains, tokens = messages.arrive(problem, there), messages.places.tokens[there]
    if asked.all():
        return chains, tokens
    chains, of_chains = cut_chains(chains, asked)
    return chains, np.searchsorted(of_chains, tokens)


def _log_marginals(problem: Problem, messages: _Messages, asked: NDArray[np.bool_], there: NDArray[np.int64]) -> Floats:
    """Logarithms of the probabilities of the labels of places (int64[N]), as some chains (bool[B]) believe: float64[N, L]."""
    chains, rows = _told(problem, messages, asked, there)
    return _logs(problem.by_label(_marginals(chains, rows)))


def _maxima(problem: Problem, messages: _Messages, asked: NDArray[np.bool_], there: NDArray[np.int64]) -> Floats:
    """The scores of the best labellings where places have each label, alike."""
    chains, rows = _told(problem, messages, asked, there)
    scores = np.empty((len(rows), problem.n_labels))
    max_product.max_marginals(potentials(chains), problem.label_of, rows, scores)
    return scores


def _outwards(problem: Problem, places: _Places) -> NDArray[np.int64]:
    """The sequences so that each, but the first of its component, comes after one that it is tied to: int64[B]."""
    tied: list[list[int]] = [[] for _ in problem.component]
    for a, b in np.unique(places.receivers, axis=0).tolist():
        tied[a].append(b)
        tied[b].append(a)
    order, is_met = problem.firsts.tolist(), np.zeros(len(tied), dtype=bool)
    is_met[order] = True
    for b in order:  # which grows
        for other in tied[b]:
            if not is_met[other]:
                is_met[other] = True
                order.append(other)
    return np.array(order, dtype=np.int64)


def _marginals(chains: ChainScores, rows: NDArray[np.int64]) -> Floats:
    """Of the states of some tokens (int64[N], rising) alone: without the transitions it is a third quicker."""
    work = LinearChain().prepare(chains)
    if not work.per_position:
        marginals, log_z = scaling.marginals(work, rows)
        if not np.isnan(log_z).any():  # what the linear domain has no numbers for
            return marginals
    return LinearChain().marginals(chains)[rows]


def _logs(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(probabilities)
