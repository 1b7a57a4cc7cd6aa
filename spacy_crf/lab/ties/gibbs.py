"""Gibbs sampling (Geman & Geman 1984; Finkel, Grenager & Manning 2005) with sequences as blocks: a walk through the labellings of
tied sequences, each of which is drawn anew as a whole, given the labels that stand at the other ends of its ties.

Marginals are counted along the walk, the best labelling is found by a cooling walk (annealing), and the log partition is
estimated by weighing independent draws (importance sampling). All of it is exact in the limit only: where ties are strong, and
what they join goes together in two ways that are both likely, a walk stays in one of them for long.

One seed, one walk: for each component the same, whatever else is asked about with it.
"""

from typing import Any, NamedTuple

import numpy as np

from ... import arrays, checks
from ...inference.linear_chain import LinearChain
from ...inference.structure import States
from ...kernels.linear_chain import ChainArrays
from ...optimizers.objective import setting
from ...types import ChainScores, Floats, Seed
from ..kernels import gibbs as kernels
from .belief_propagation import BeliefPropagation
from .blocks import best_improved, neighbours
from .method import MAXIMUM, SAMPLE, WALK, Expected, Inference, method
from .scores import Problem, log_mean, potentials

_AT_ONCE = 1 << 22  # random numbers
_HOTTEST_TO_COLDEST = 50.0  # by how much probabilities grow peaked
_FITTINGS = 50  # of chains, at most
_FITTED = 1e-3
_WALKS = 4  # from one place each, that have to agree
_UNLIKE = 4.0  # standard errors, by which one of them differs from all only where they have not settled
_PROPOSAL = BeliefPropagation(iterations=10)


class Walk(NamedTuple):
    """A walk through the labellings of a single component."""

    problem: Problem
    chains: ChainArrays
    neighbours: kernels.Neighbours
    states: States  # where it is, follows

    @classmethod
    def of(cls, problem: Problem, states: States) -> "Walk":
        """states (int32[T]): Where it begins, a possible labelling."""
        return cls(problem, potentials(problem.chains), neighbours(problem)[0], np.array(states, dtype=np.int32))

    def go(self, powers: Floats, random: np.random.Generator, *, is_told: bool = True) -> States:
        """The labellings that it comes by: int32[N, T].

        powers (float64[N]): Exponents of the probabilities, one for each round.
        is_told (bool): Whether sequences are drawn given what their ties say; otherwise as if there were none, and the ties
            decide whether draws are taken.
        """
        n_tokens, n_sequences = len(self.states), len(self.chains.starts) - 1
        drawn = np.empty((len(powers), n_tokens), dtype=np.int32)
        at_once = max(1, _AT_ONCE // (n_tokens + n_sequences))
        for begin in range(0, len(powers), at_once):
            some = np.ascontiguousarray(powers[begin : begin + at_once], dtype=np.float64)
            uniforms = random.random((len(some), n_tokens + n_sequences))
            out = drawn[begin : begin + at_once]
            kernels.walk(self.chains, self.neighbours, some, is_told, uniforms, self.states, out)
        return drawn


@method
class Gibbs(Inference):
    """See above. What trains by such walks is `spacy_crf.SampledLikelihood.v1`.

    samples (int): Labellings that are counted, of four walks together, or weighed.
    burn_in (int): How often all sequences are drawn before, in each walk.
    thinning (int): How often between two labellings, where labellings are asked for.
    annealing (int): How often, colder and colder, for the best labelling; 0 only improves the best one of the chains.
    step (str): "gibbs" draws a sequence given what its ties say, "metropolis" without, in a fraction of the time, and the ties
        decide whether the draw is taken: for weak ties.
    seed (int): Of marginals and best labellings.
    """

    samples: int = setting(200, checks.count)
    burn_in: int = setting(20, checks.count, least=0)
    thinning: int = setting(5, checks.count, most=1000)
    annealing: int = setting(50, checks.count, least=0)
    step: str = setting("gibbs", checks.one_of, allowed=("gibbs", "metropolis"))
    seed: int = setting(0, checks.count, least=0, most=checks.ANY)

    answers = frozenset([MAXIMUM, SAMPLE, WALK])
    remedy = "More samples, or a longer burn_in, help."

    def log_partition(self, problem: Problem) -> Floats:
        return self.importance(problem)[0]

    def importance(self, problem: Problem) -> tuple[Floats, Floats]:
        """Log partitions, by weighing draws from chains that know what belief propagation says:

            log Z = log Z(chains) + log mean(exp(score(draw) - score of the chains(draw)))

        RETURNS (float64[C], float64[C]): The log partitions, and the effective sample size of each (the number of equally
            weighted draws that would say as much).
        """
        log_z, effective = np.full((2, len(problem.firsts)), -np.inf)
        effective[:] = 0.0
        for c, (part, _) in enumerate(problem.parts()):
            chains = _PROPOSAL.as_chains(part)
            of_chains, begin = LinearChain().log_partition(chains).sum(), LinearChain().viterbi(chains).states
            if of_chains == -np.inf:
                continue
            free = part.with_ties(np.zeros(0, dtype=np.int64))._replace(chains=chains)
            drawn = Walk.of(free, begin).go(np.ones(self.samples), np.random.default_rng([self.seed, 1]))
            weights = (part.score(drawn) - free.score(drawn))[:, 0]
            log_z[c] = of_chains + log_mean(weights)
            effective[c] = np.exp(2.0 * log_mean(weights) - log_mean(2.0 * weights)) * self.samples
        return log_z, effective

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        log_z, _ = self.importance(problem)
        return self._counted(problem, weights)._replace(log_z=log_z)

    def marginals(self, problem: Problem) -> Floats:
        return self._counted(problem, np.ones(len(problem.firsts))).chains.emissions

    def _counted(self, problem: Problem, weights: Floats) -> Expected:
        """Derivatives alone: log partitions are estimated by other draws."""
        d_chains, d_tables = arrays.zeros(problem.chains), np.zeros(problem.tables.shape)
        for c, (part, tokens) in enumerate(problem.parts()):
            drawn = self._drawn(part)
            if drawn is not None and weights[c]:
                of_part, of_tables = part.uses(drawn, weights[c] / len(drawn))
                arrays.add(d_chains, of_part, tokens)
                d_tables += of_tables
        return Expected(np.full(len(problem.firsts), np.nan), d_chains, d_tables)

    def best(self, problem: Problem) -> States:
        states = LinearChain().viterbi(problem.chains).states
        for part, tokens in problem.parts():
            states[tokens] = self._anneal(part, states[tokens])
        return states

    def draw(self, problem: Problem, n: int, seed: Seed) -> States:
        states = np.tile(LinearChain().viterbi(problem.chains).states, (n, 1))
        for c, (part, tokens) in enumerate(problem.parts()):
            if not n or (states[0, tokens] < 0).any():
                states[:, tokens] = -1
                continue
            walk, random = Walk.of(part, states[0, tokens]), np.random.default_rng([*np.atleast_1d(seed), 1 + c])
            self._go(walk, self.burn_in, random)
            for number in range(n):
                states[number, tokens] = self._go(walk, self.thinning, random)[-1]
        return states

    def walk_on(self, problem: Problem, states: States, times: int, random: np.random.Generator) -> States:
        states = np.array(states, dtype=np.int32)
        for part, tokens in problem.parts():
            walk = Walk.of(part, states[0, tokens])
            for number in np.flatnonzero((states[:, tokens] >= 0).all(axis=1)).tolist():
                walk.states[:] = states[number, tokens]
                states[number, tokens] = self._go(walk, times, random)[-1]
        return states

    def as_chains(self, problem: Problem) -> ChainScores:
        """Chains with further scores of labels, fitted so that the probability of each label of a tied token is its frequency
        in the samples."""
        chains, emissions = problem.chains, problem.chains.emissions.copy()
        tied = np.unique([problem.source, problem.target])
        of_chains = problem.by_label(LinearChain().marginals(chains)[tied])
        often = of_chains.copy()  # one sample more, of the chains: what was not drawn is not impossible
        for part, tokens in problem.parts():
            drawn = self._drawn(part)
            if drawn is None:
                continue
            places = np.flatnonzero(np.isin(tied, tokens))
            there = problem.label_of[drawn[:, np.searchsorted(tokens, tied[places])]]
            counts = (there[:, :, np.newaxis] == np.arange(problem.n_labels)).sum(axis=0)
            often[places] = (often[places] + counts) / (1 + len(drawn))
        for _ in range(_FITTINGS):
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.where(often > 0.0, np.log(often / of_chains), 0.0)
            emissions[tied] += np.where(np.isfinite(step), step, 0.0)[:, problem.label_of]
            fitted = chains._replace(emissions=emissions)
            of_chains = problem.by_label(LinearChain().marginals(fitted)[tied])
            if abs(of_chains - often).max(initial=0.0) < _FITTED:
                break
        return chains._replace(emissions=emissions)

    def _go(self, walk: Walk, times: int, random: np.random.Generator) -> States:
        return walk.go(np.ones(times), random, is_told=self.step == "gibbs")

    def _drawn(self, part: Problem) -> Any:
        """The labellings of a component that are counted (int32[N, T]), None if there is none."""
        begin = LinearChain().viterbi(part.chains).states
        if (begin < 0).any():
            return None
        random, walks = np.random.default_rng(self.seed), []
        begins = [begin, *LinearChain().sample(part.chains, _WALKS - 1, seed=[self.seed, 3])]
        for number, states in enumerate(begins):
            walk, times = Walk.of(part, states), (self.samples + number) // _WALKS
            self._go(walk, self.burn_in, random)
            walks.append(self._go(walk, times, random))
        self.n_asked += 1
        self.n_unsettled += _are_unlike(part, walks)
        return np.concatenate(walks)

    def _anneal(self, part: Problem, begin: States) -> States:
        """Simulated annealing: improve `begin` and the best labelling of a cooling walk, and return the better result."""
        if (begin < 0).any():
            return np.full(len(begin), -1, dtype=np.int32)
        walk = Walk.of(part, begin)
        powers = 1.0 / np.linspace(1.0, 1.0 / _HOTTEST_TO_COLDEST, self.annealing)
        seen = walk.go(powers, np.random.default_rng([self.seed, 2]), is_told=self.step == "gibbs")
        seen = np.concatenate([begin[np.newaxis], seen])
        return best_improved(part, [begin, seen[int(part.score(seen)[:, 0].argmax())]])


def _are_unlike(part: Problem, walks: list[States]) -> bool:
    """Whether the labels of tied tokens in one of some walks are more unlike those in all than chance would have it."""
    tied, (shortest, n_drawn) = np.unique([part.source, part.target]), (min(map(len, walks)), sum(map(len, walks)))
    if shortest < 2:
        return False
    labels = np.arange(part.n_labels)
    often = np.stack([(part.label_of[drawn[:, tied]][:, :, np.newaxis] == labels).mean(axis=0) for drawn in walks])
    return bool(abs(often - often.mean(axis=0)).max() > _UNLIKE / np.sqrt(n_drawn))
