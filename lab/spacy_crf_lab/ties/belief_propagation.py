"""Belief propagation by sweeps over chains (Sutton & McCallum 2004): exact inside each chain, messages along the ties.

Two steps are repeated until the messages converge: forward–backward on the chains, with the messages added to the emissions of
tied tokens; and new messages along the ties, from the resulting marginals. After the first round, only chains with changed
messages, which soon are few, are computed again (residual scheduling: Elidan, McGraw & Koller 2006). Where ties and chains form
no cycle, the results are exact; elsewhere

    log Z = sum over chains of log Z(with messages) + sum over ties of share · log z(tie)

is Bethe's approximation, whose derivatives are the beliefs.

Tree-reweighting (Wainwright, Jaakkola & Willsky 2005) makes the sum an upper bound. The scores are the mean of the scores of
forests, each with all chains and some of the ties, and the log partition is convex, so it is at most the mean of the forests' log
partitions. The share of a tie is the fraction of forests that contain it. No forest contains a tie inside a sentence, since the
chain connects its ends already; scores of its two ends, whose sum is at least the score of the tie, replace it:

    table[i, j] <= (max_k table[i, k] + max_k table[k, j]) / 2

Maxima of scores are convex, and the log partition increases with emissions, so the bound is still convex in all scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional, TypeVar

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.inference import scaling
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import States
from spacy_crf.kernels.numerics import LANES
from spacy_crf.optimizers.objective import setting
from spacy_crf.types import ChainScores, Floats

from ..kernels import max_product
from ..kernels import ties as kernels
from .method import LOG_PARTITION, MAXIMUM, Expected, Inference
from .scores import Problem, TiedWork, cut_chains, potentials

_LATE_DAMPING = 0.5  # damping of messages that have not converged after half of the iterations
_TOGETHER = 1000  # number of ties whose pairs of labels are in memory at once
_SWEEPS = 10  # largest number of sweeps along the ties between two passes over chains: they cost little
_FORESTS = 50  # least number of forests for the shares of ties
_LEAST = 0.1  # part of an iteration for which a pass counts at least, even if it visits few chains


class _Messages:
    """Messages along the ties of a problem. Subclasses set these attributes and have two methods: `ask` computes the beliefs at
    places (int64[N]) of some chains (bool[B]) given all messages, a row for each place; `moved` returns which messages have
    changed from earlier ones (bool[E, 2]).
    """

    sent: kernels.Sent  # the ties, from which messages are computed
    incoming: Floats  # [E, 2, ...] the message into each end of each tie
    sweep: Callable  # sends messages along ties until they converge, see the kernels
    ask: Callable[..., Floats]
    moved: Callable[..., NDArray[np.bool_]]
    _are_logarithms: bool

    def __init__(self, problem: Problem):
        self.problem = problem
        self.tokens, ends = np.unique([problem.source, problem.target], return_inverse=True)  # [V] tied tokens
        self.ends = ends.reshape(2, -1)  # [2, E] places of the ends of ties in `tokens`
        self.sequences = np.searchsorted(problem.starts, self.tokens, side="right") - 1  # [V] of `tokens`
        self.receivers = np.ascontiguousarray(self.sequences[self.ends].T)  # [E, 2] sequences of the ends
        # [T, S] emissions of the chains, with the messages that `add_messages` added last
        self._emissions = problem.chains.emissions.copy()

    def add_messages(self, some: Optional[NDArray[np.int64]] = None) -> ChainScores:
        """The chains, with all messages into some places (int64[N]), or into all places, added to their emissions."""
        tokens = self.tokens
        chains = self.problem.chains
        some = np.arange(len(tokens)) if some is None else some
        scores = chains.emissions, self._emissions
        kernels.add_messages(
            self.sent, self.incoming, self._are_logarithms, some, tokens, self.problem.label_of, *scores
        )
        return chains._replace(emissions=self._emissions)

    def _chains(self, asked: NDArray[np.bool_], there: NDArray[np.int64]) -> tuple[ChainScores, NDArray[np.int64]]:
        """Some of the chains (bool[B]) with all messages, and the numbers of some places among their tokens (int64[N])."""
        chains = self.add_messages(there)
        tokens = self.tokens[there]
        if asked.all():
            return chains, tokens
        chains, of_chains = cut_chains(chains, asked)
        return chains, np.searchsorted(of_chains, tokens)


class _Sums(_Messages):
    """Messages of sum-product, see `kernels.sweep`.

    shares (float64[E]): Share of each tie, see tree-reweighting.
    """

    sweep = staticmethod(kernels.sweep)
    _are_logarithms = False

    def __init__(self, problem: Problem, shares: Floats):
        super().__init__(problem)
        if (shares == 1.0).all():
            kind_of = np.arange(len(problem.tables))
            kind = problem.kind
            tables = problem.tables
        else:
            kind_of = problem.kind
            kind = np.arange(len(problem.kind))
            tables = problem.tables[problem.kind] / shares[:, np.newaxis, np.newaxis]
        self.kind_of = kind_of  # [K'] table of the problem for each table here
        self.shift = tables.max(axis=(1, 2), initial=-np.inf)  # [K'] maxima of the tables
        size = problem.n_labels
        padded = -(-size // LANES) * LANES
        both = np.zeros((2, len(tables), padded, padded))
        np.exp(tables - self.shift[:, np.newaxis, np.newaxis], out=both[0, :, :size, :size])
        both[1] = both[0].swapaxes(1, 2)
        self.incoming = np.full((len(shares), 2, padded), kernels.LEAST)
        self.incoming[:, :, :size] = 1.0 / size
        self.sent = kernels.Sent(self.ends, kind, both, shares)

    def ask(self, asked: NDArray[np.bool_], there: NDArray[np.int64]) -> Floats:
        """Probabilities of labels: float64[N, P]."""
        return self.problem.by_label(_marginals(*self._chains(asked, there)), self.incoming.shape[2])

    def moved(self, before: Floats, tolerance: float) -> NDArray[np.bool_]:
        return np.any(abs(self.incoming - before) > tolerance * before, axis=2)

    @property
    def logarithms(self) -> Floats:
        """Logarithms of the messages, each minus the maximum of its message: float64[E, 2, L]."""
        logs = np.log(self.incoming[:, :, : self.problem.n_labels])
        return logs - logs.max(axis=2, initial=-np.inf, keepdims=True)


class _Maxima(_Messages):
    """Messages of max-product, see `max_product.sweep`: messages are logarithms, and tables are scores."""

    sweep = staticmethod(max_product.sweep)
    _are_logarithms = True

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self.sent = kernels.Sent(self.ends, problem.kind, problem.tables, np.ones(len(problem.kind)))
        self.incoming = np.zeros((len(problem.kind), 2, problem.n_labels))

    def ask(self, asked: NDArray[np.bool_], there: NDArray[np.int64]) -> Floats:
        """For each place and label, the score of the best labelling with that label there: float64[N, L]."""
        chains, rows = self._chains(asked, there)
        scores = np.empty((len(rows), self.problem.n_labels))
        max_product.max_marginals(potentials(chains), self.problem.label_of, rows, scores)
        return scores

    def moved(self, before: Floats, tolerance: float) -> NDArray[np.bool_]:
        return abs(self.incoming - before).max(axis=2) > tolerance


OfMessages = TypeVar("OfMessages", bound=_Messages)


def _between(whole: Problem) -> Problem:
    """Make a problem with ties between sentences only, whose log partition is at least that of the original problem."""
    inside = whole.inside
    emissions = whole.chains.emissions.copy()
    for tokens, axis in ((whole.source, 2), (whole.target, 1)):
        halves = whole.tables.max(axis=axis) / 2.0  # [K, L]
        np.add.at(emissions, tokens[inside], halves[whole.kind[inside]][:, whole.label_of])
    return whole.with_ties(~inside)._replace(chains=whole.chains._replace(emissions=emissions))


def _add_inside(whole: Problem, d_chains: ChainScores, d_tables: Floats) -> None:
    """Add the derivative with respect to the tables of ties inside sentences, see `_between`."""
    best_source = whole.tables.argmax(axis=1)  # [K, L] the best label of the source for each label of the target
    best_target = whole.tables.argmax(axis=2)  # [K, L]
    inside = np.flatnonzero(whole.inside)
    every = np.arange(whole.n_labels)
    of_source = whole.by_label(d_chains.emissions[whole.source[inside]]) / 2.0  # [N, L]
    of_target = whole.by_label(d_chains.emissions[whole.target[inside]]) / 2.0  # [N, L]
    for n, kind in enumerate(whole.kind[inside].tolist()):
        d_tables[kind, every, best_target[kind]] += of_source[n]
        d_tables[kind, best_source[kind], every] += of_target[n]


def _shares(problem: Problem) -> Floats:
    """For each tie, the share of random forests that contain it. At least `_FORESTS` forests are drawn, and more until every
    tie is in one."""
    shares = [np.ones(0)]
    for part, _ in problem.parts():
        random = np.random.default_rng(0)
        uses = np.zeros(len(part.kind), dtype=np.int64)
        forests = 0
        while forests < _FORESTS or (uses == 0).any():
            order = random.permutation(len(uses))
            if forests >= _FORESTS:  # prefer ties that are in no forest yet
                order = order[np.argsort(uses[order] > 0, kind="stable")]
            kernels.add_forest(*part.sequences, order, np.arange(len(part.component)), uses)
            forests += 1
        shares.append(uses / forests)
    return np.concatenate(shares)


@dataclass(eq=False)
class BeliefPropagation(Inference):
    """Inference by loopy belief propagation.

    iterations (int): Maximum number of passes over the chains; a pass over some chains counts as a part of one. 0 ignores ties.
    damping (float): Share of its old value that a message keeps, from 0 to below 1. For messages that have not converged after
        half of the iterations it is at least 0.5.
    tolerance (float): Messages have converged if no message changes by more than this.
    tree_reweighted (bool): Whether the log partition is a convex upper bound; this makes beliefs less certain.
    max_product (bool): Whether prediction uses max-product, which searches the best labelling of the whole text and is exact if
        ties and sentences form no cycle. Otherwise each sentence gets its best labelling given the beliefs about the others.
        Losses that need a best labelling (perceptron, max-margin) always use max-product.
    """

    iterations: int = setting(20, checks.count, least=0)
    damping: float = setting(0.0, checks.number, most=0.99)
    tolerance: float = setting(1e-4, checks.positive)
    tree_reweighted: bool = setting(False, checks.flag)
    max_product: bool = setting(False, checks.flag)

    answers = frozenset([LOG_PARTITION, MAXIMUM])
    remedy = "More iterations help, or more damping."

    @property
    def decodes_chains(self) -> bool:
        """Whether the best labelling is that of the chains with messages."""
        return not self.max_product

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        """Bethe's approximation of log partitions, or the upper bound, and its derivatives."""
        whole = problem
        messages = self._converged(problem)
        problem = messages.problem
        sent = messages.sent
        chains = messages.add_messages()
        log_z, expected = LinearChain().expectations(chains, weights=weights[problem.component])
        if weights.all():
            # Expectations are weighted: divide to get probabilities
            factors = weights[problem.component[messages.sequences]]
            marginals = expected.emissions[messages.tokens] / factors[:, np.newaxis]
        else:  # the beliefs of some chains are not known yet
            marginals = _marginals(chains, messages.tokens)
        of_ties = np.empty(len(problem.kind))
        d_tables = np.zeros(sent.tables.shape[1:])
        of_component = problem.of_ties
        beliefs = problem.by_label(marginals, messages.incoming.shape[2])
        kernels.weigh(sent, beliefs, messages.incoming, weights[of_component], of_ties, d_tables)
        of_ties = sent.shares * (of_ties + messages.shift[sent.kind])
        # log Z = sum over chains + sum over ties of share · log z(tie)
        sums = np.bincount(of_component, of_ties, minlength=len(problem.firsts))
        of_kinds = np.zeros(problem.tables.shape)
        n_labels = problem.n_labels
        np.add.at(of_kinds, messages.kind_of, d_tables[:, :n_labels, :n_labels])
        if self.tree_reweighted:
            _add_inside(whole, expected, of_kinds)
        return Expected(problem.by_component(log_z) + sums, expected, whole.from_pairs(of_kinds))

    def marginals(self, problem: Problem) -> Floats:
        """Beliefs about the state of each token: float64[T, S]."""
        if self.tree_reweighted:
            return super().marginals(problem)
        return LinearChain().marginals(self.as_chains(problem))

    def best(self, problem: Problem) -> States:
        """Find the best labelling by max-product: decide the first sequence of a component, then those tied to it, and so on."""
        apart = LinearChain().viterbi(problem.chains).states
        if not self.iterations:
            return apart[np.newaxis]
        messages = self._iterate(_Maxima(problem))
        decided = np.empty(len(apart), dtype=np.int32)
        chains = potentials(problem.chains)
        (ties, order) = problem.neighbours
        incoming = np.concatenate([messages.incoming[:, 0], messages.incoming[:, 1]])[order]
        order = _breadth_first(messages)
        lost = problem.lost(apart)
        max_product.decide(chains, ties, incoming, order[~lost[problem.component[order]]], decided)
        return np.stack([apart, decided])

    def as_chains(self, problem: Problem) -> ChainScores:
        """The chains with all messages added to their emissions."""
        return self._converged(problem).add_messages()

    def _converged(self, problem: Problem) -> _Sums:
        """Compute the messages until they converge."""
        problem = problem.in_pairs()
        if self.tree_reweighted:
            problem = _between(problem)
            return self._iterate(_Sums(problem, _shares(problem)))
        return self._iterate(_Sums(problem, np.ones(len(problem.kind))))

    def last_messages(self, work: TiedWork) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
        """Compute the last message into each end of each tie. RETURNS (int64[N], int64[N], int64[N], float64[N, S]): Tokens,
        their partners, the kinds of the ties, and the messages as scores to add to the emissions."""
        if work.tied is None:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none, np.zeros((0, work.n_states))
        messages = self._converged(work.tied)
        problem = messages.problem
        shares = messages.sent.shares
        scores = messages.logarithms
        added = [shares[:, np.newaxis] * scores[:, side][:, problem.label_of] for side in range(2)]
        ends = [work.tied_tokens[end] for end in (problem.source, problem.target)]
        kinds = np.append(problem.kind, problem.kind) % len(work.tied.tables)
        return np.append(*ends), np.append(*ends[::-1]), kinds, np.concatenate(added)

    def information(self, problem: Problem) -> Floats:
        """Compute the mutual information of the labels at the two ends of each tie: float64[E].

        I[e] = sum_ij b[e](i, j) log(b[e](i, j) / (b[u](i) b[v](j)))
        """
        messages = self._converged(problem)
        sent = messages.sent
        beliefs = messages.ask(np.ones(len(problem.component), dtype=bool), np.arange(len(messages.tokens)))
        found = np.empty(len(problem.kind))
        for begin in range(0, len(found), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            # Belief of an end without the message of the tie itself
            ends = beliefs[sent.ends[:, some]] / messages.incoming[some].swapaxes(0, 1)
            left, right = ends / ends.max(axis=2, initial=kernels.LEAST, keepdims=True)
            pairs = left[:, :, np.newaxis] * sent.tables[0, sent.kind[some]] * right[:, np.newaxis]
            pairs /= np.maximum(pairs.sum(axis=(1, 2), keepdims=True), kernels.LEAST)
            # The product of both ends' beliefs
            apart = pairs.sum(axis=2, keepdims=True) * pairs.sum(axis=1, keepdims=True)
            ratio = np.divide(pairs, apart, out=np.ones(pairs.shape), where=pairs > 0.0)
            found[some] = (pairs * np.log(ratio)).sum(axis=(1, 2))
        return found

    def _iterate(self, messages: OfMessages) -> OfMessages:
        """Update messages until they converge, or for the maximum number of iterations."""
        problem = messages.problem
        component = problem.component
        lengths = np.diff(problem.starts)
        of_ties = problem.of_ties
        n_tokens = problem.by_component(lengths)
        before = messages.incoming.copy()
        beliefs = np.zeros((len(messages.tokens), messages.incoming.shape[2]))
        spent = np.zeros(len(n_tokens))
        is_out_of_date = np.isin(component, of_ties)
        while True:
            asked = is_out_of_date & (spent < self.iterations * n_tokens)[component]
            if not asked.any():
                break
            # Oscillating messages need damping; converging ones are faster without
            damping = np.where(2.0 * spent < self.iterations * n_tokens, self.damping, max(self.damping, _LATE_DAMPING))
            spent += np.maximum(problem.by_component(lengths * asked), _LEAST * n_tokens)
            there = np.flatnonzero(asked[messages.sequences])
            beliefs[there] = messages.ask(asked, there)
            is_updated = asked[messages.receivers]
            before[is_updated] = messages.incoming[is_updated]
            some = np.flatnonzero(is_updated.any(axis=1))
            bounds = np.searchsorted(of_ties[some], np.arange(len(n_tokens) + 1))
            messages.sweep(messages.sent, some, bounds, damping, _SWEEPS, self.tolerance, beliefs, messages.incoming)
            # Only chains that a changed message reaches are computed again
            is_out_of_date[:] = False
            is_out_of_date[messages.receivers[messages.moved(before, self.tolerance)]] = True
        self.n_asked += len(n_tokens)
        self.n_unconverged += len(np.unique(component[is_out_of_date])) if self.iterations else 0
        return messages


def _breadth_first(messages: _Messages) -> NDArray[np.int64]:
    """An order of the sequences (int64[B]) in which each sequence, except the first of its component, comes after a sequence tied
    to it."""
    tied: list[list[int]] = [[] for _ in messages.problem.component]
    for a, b in np.unique(messages.receivers, axis=0).tolist():
        tied[a].append(b)
        tied[b].append(a)
    order = messages.problem.firsts.tolist()
    is_met = np.zeros(len(tied), dtype=bool)
    is_met[order] = True
    for b in order:  # the loop appends to this list
        for other in tied[b]:
            if not is_met[other]:
                is_met[other] = True
                order.append(other)
    return np.array(order, dtype=np.int64)


def _marginals(chains: ChainScores, rows: NDArray[np.int64]) -> Floats:
    """Marginals at some tokens (int64[N], rising). Leaving out the marginals of transitions saves a third of the time."""
    work = LinearChain().prepare(chains)
    if not work.per_position:
        marginals, log_z = scaling.marginals(work, rows)
        if not np.isnan(log_z).any():  # NaN: underflow in the linear domain
            return marginals
    return LinearChain().marginals(chains)[rows]
