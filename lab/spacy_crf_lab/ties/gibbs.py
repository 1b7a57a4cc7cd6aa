"""Gibbs sampling (Geman & Geman 1984; Finkel, Grenager & Manning 2005) with sequences as blocks: a walk through the labellings of
tied sequences redraws one whole sequence at a time, given the labels at the other ends of its ties.

Marginals are counted along the walk, a cooling walk searches the best labelling (simulated annealing), and weighted independent
draws estimate the log partition (importance sampling). All results are exact only in the limit: if strong ties make two joint
labellings likely, a walk stays at one of them for long.

One seed gives one walk: the walk of a component does not depend on other components in the batch.
"""

from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np

from spacy_crf import arrays, checks
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import States
from spacy_crf.kernels.linear_chain import ChainArrays
from spacy_crf.optimizers.objective import setting
from spacy_crf.types import ChainScores, Floats, Seed

from ..kernels import gibbs as kernels
from .belief_propagation import BeliefPropagation
from .method import MAXIMUM, SAMPLE, WALK, Expected, Inference
from .scores import Problem, potentials

_HOTTEST_TO_COLDEST = 50.0  # ratio of the last to the first exponent of probabilities in annealing
_FITTINGS = 50  # largest number of steps to fit chains
_FITTED = 1e-3
_WALKS = 4  # number of walks with different starts, which must agree
_UNLIKE = 4.0  # a walk that differs from all walks by more standard errors has not converged
_PROPOSAL = BeliefPropagation(iterations=10)


class Walk(NamedTuple):
    """A walk through the labellings of a single component."""

    problem: Problem
    chains: ChainArrays
    neighbours: kernels.Neighbours
    states: States  # the present labelling, updated in place

    @classmethod
    def of(cls, problem: Problem, states: States) -> "Walk":
        """Start a walk. states (int32[T]): A possible labelling."""
        return cls(problem, potentials(problem.chains), problem.neighbours[0], np.array(states, dtype=np.int32))

    def go(self, powers: Floats, random: np.random.Generator, *, given_ties: bool = True) -> States:
        """Continue the walk. RETURNS (int32[N, T]): The labelling after each round.

        powers (float64[N]): Exponents of the probabilities, one for each round.
        given_ties (bool): Whether to draw sequences given their ties; otherwise draws ignore ties, and the ties decide whether a
            draw is accepted.
        """
        drawn = np.empty((len(powers), len(self.states)), dtype=np.int32)
        uniforms = random.random((len(powers), len(self.states) + len(self.chains.starts) - 1))
        kernels.walk(self.chains, self.neighbours, powers, given_ties, uniforms, self.states, drawn)
        return drawn


@dataclass(eq=False)
class Gibbs(Inference):
    """Inference by block Gibbs sampling. The loss `spacy_crf_lab.SampledLikelihood.v1` trains with such walks.

    samples (int): Number of labellings to count, over four walks, or to weigh.
    burn_in (int): Number of rounds through all sequences that each walk discards first.
    thinning (int): Number of rounds between two labellings, if samples are requested.
    annealing (int): Number of cooling rounds in the search for the best labelling; 0 only improves the labelling of the chains.
    step (str): "gibbs" draws a sequence given its ties; "metropolis" draws it without ties, in a fraction of the time, and the
        ties decide whether the draw is accepted, which suits weak ties.
    seed (int): Random seed for marginals and best labellings.
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
        """Estimate log partitions by weighted draws from chains that include the messages of belief propagation:

        log Z = log Z(chains) + log mean(exp(score(draw) - score of the chains(draw)))
        """
        log_z = np.full(len(problem.firsts), -np.inf)
        for c, (part, _) in enumerate(problem.parts()):
            chains = _PROPOSAL.as_chains(part)
            of_chains = LinearChain().log_partition(chains).sum()
            begin = LinearChain().viterbi(chains).states
            if of_chains == -np.inf:
                continue
            # Draws come from chains that include messages, and are weighed by what the ties add to them
            free = part.with_ties(np.zeros(0, dtype=np.int64))._replace(chains=chains)
            drawn = Walk.of(free, begin).go(np.ones(self.samples), np.random.default_rng([self.seed, 1]))
            weights = (part.score(drawn) - free.score(drawn))[:, 0]
            log_z[c] = of_chains + np.logaddexp.reduce(weights) - np.log(self.samples)
        return log_z

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        """Log partitions by importance sampling, and derivatives counted along walks."""
        return self._counted(problem, weights)._replace(log_z=self.log_partition(problem))

    def marginals(self, problem: Problem) -> Floats:
        """Frequencies of states along walks: float64[T, S]."""
        return self._counted(problem, np.ones(len(problem.firsts))).chains.emissions

    def _counted(self, problem: Problem, weights: Floats) -> Expected:
        """Estimate the derivatives only; other draws estimate the log partitions."""
        d_chains = arrays.zeros(problem.chains)
        d_tables = np.zeros(problem.tables.shape)
        for c, (part, tokens) in enumerate(problem.parts()):
            drawn = self._drawn(part)
            if drawn is not None and weights[c]:
                of_part, of_tables = part.uses(drawn, weights[c] / len(drawn))
                arrays.add(d_chains, of_part, tokens)
                d_tables += of_tables
        return Expected(np.full(len(problem.firsts), np.nan), d_chains, d_tables)

    def best(self, problem: Problem) -> States:
        """Find the labelling without ties, and the best labelling of a cooling walk from there (simulated annealing)."""
        apart = LinearChain().viterbi(problem.chains).states
        seen = apart.copy()
        # p^power: the walk gets colder
        powers = 1.0 / np.linspace(1.0, 1.0 / _HOTTEST_TO_COLDEST, self.annealing)
        for part, tokens in problem.parts():
            begin = apart[tokens]
            if (begin >= 0).all():
                walk = Walk.of(part, begin)
                random = np.random.default_rng([self.seed, 2])
                walked = np.concatenate([[begin], walk.go(powers, random, given_ties=self.step == "gibbs")])
                seen[tokens] = walked[part.score(walked)[:, 0].argmax()]
        return np.stack([apart, seen])

    def draw(self, problem: Problem, n: int, seed: Seed) -> States:
        """n labellings (int32[n, T]), each some rounds of one walk after the last."""
        states = np.tile(LinearChain().viterbi(problem.chains).states, (n, 1))
        for c, (part, tokens) in enumerate(problem.parts()):
            if not n or (states[0, tokens] < 0).any():
                states[:, tokens] = -1
                continue
            walk = Walk.of(part, states[0, tokens])
            random = np.random.default_rng([*np.atleast_1d(seed), 1 + c])
            self._go(walk, self.burn_in, random)
            for number in range(n):
                states[number, tokens] = self._go(walk, self.thinning, random)[-1]
        return states

    def walk_on(self, problem: Problem, states: States, times: int, random: np.random.Generator) -> States:
        """Labellings (int32[n, T]) some rounds after the given ones."""
        states = np.array(states, dtype=np.int32)
        for part, tokens in problem.parts():
            walk = Walk.of(part, states[0, tokens])
            for number in np.flatnonzero((states[:, tokens] >= 0).all(axis=1)).tolist():
                walk.states[:] = states[number, tokens]
                states[number, tokens] = self._go(walk, times, random)[-1]
        return states

    def as_chains(self, problem: Problem) -> ChainScores:
        """Fit chains with additional scores of labels, so that each label's probability at a tied token equals its frequency in
        the samples."""
        chains = problem.chains
        emissions = problem.chains.emissions.copy()
        tied = np.unique([problem.source, problem.target])
        of_chains = problem.by_label(LinearChain().marginals(chains)[tied])
        often = of_chains.copy()  # a pseudo-sample from the chains, so that no label becomes impossible
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
                # Iterative proportional fitting
                step = np.where(often > 0.0, np.log(often / of_chains), 0.0)
            emissions[tied] += np.where(np.isfinite(step), step, 0.0)[:, problem.label_of]
            of_chains = problem.by_label(LinearChain().marginals(chains._replace(emissions=emissions))[tied])
            if abs(of_chains - often).max(initial=0.0) < _FITTED:
                break
        return chains._replace(emissions=emissions)

    def _go(self, walk: Walk, times: int, random: np.random.Generator) -> States:
        return walk.go(np.ones(times), random, given_ties=self.step == "gibbs")

    def _drawn(self, part: Problem) -> Optional[States]:
        """Draw the labellings of a component to count (int32[N, T]); None if no labelling is possible."""
        begin = LinearChain().viterbi(part.chains).states
        if (begin < 0).any():
            return None
        random = np.random.default_rng(self.seed)
        walks = []
        # Walks from different starts agree only if they have forgotten these
        begins = [begin, *LinearChain().sample(part.chains, _WALKS - 1, seed=[self.seed, 3])]
        for number, states in enumerate(begins):
            walk = Walk.of(part, states)
            times = (self.samples + number) // _WALKS
            self._go(walk, self.burn_in, random)
            walks.append(self._go(walk, times, random))
        self.n_asked += 1
        self.n_unconverged += _are_unlike(part, walks)
        return np.concatenate(walks)


def _are_unlike(part: Problem, walks: list[States]) -> bool:
    """Whether the labels of tied tokens in one walk differ from those in all walks by more than chance explains."""
    tied = np.unique([part.source, part.target])
    if min(map(len, walks)) < 2:
        return False
    labels = np.arange(part.n_labels)
    often = np.stack([(part.label_of[drawn[:, tied]][:, :, np.newaxis] == labels).mean(axis=0) for drawn in walks])
    return bool(abs(often - often.mean(axis=0)).max() > _UNLIKE / np.sqrt(sum(map(len, walks))))
