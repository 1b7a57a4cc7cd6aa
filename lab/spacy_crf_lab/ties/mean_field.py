"""Mean field over chains (Saul & Jordan 1996): an approximation by independent sentences, in which each sentence depends on the
expected labels of the others.

    log Z >= sum over chains of E_q[score of the chain] + H(q) + sum over ties of E_q[score of the tie]

Here q is a chain with additional emissions: the expected scores of the ties, given the labels at their other ends. Chains that
are tied to each other are updated one after the other, so the bound never decreases. Updates treat two tied tokens of one
sentence as if they were in different sentences, but the bound includes their dependence.

Use mean field for prediction only. Training would minimise a lower bound of the log partition, and so find weights for which the
bound is far below the true value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays, checks
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import States
from spacy_crf.optimizers.objective import setting
from spacy_crf.types import ChainScores, Floats, Seed

from .method import MAXIMUM, SAMPLE, Expected, Inference
from .scores import Problem, cut_chains


@dataclass(eq=False)
class MeanField(Inference):
    """Inference by mean field.

    iterations (int): Maximum number of passes over the chains.
    tolerance (float): Chains have converged if no label's probability at a tied token changes by more than this.
    """

    iterations: int = setting(50, checks.count)
    tolerance: float = setting(1e-4, checks.positive)

    answers = frozenset([MAXIMUM, SAMPLE])
    decodes_chains = True

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        """The lower bound of log partitions, and its derivatives."""
        added = self._iterate(problem)
        chains = problem.chains._replace(emissions=problem.chains.emissions + added)
        log_z, expected = LinearChain().expectations(chains, weights=weights[problem.component])
        marginals = LinearChain().marginals(chains)
        pairs = _pairs(problem, chains, marginals)
        tables = np.zeros(problem.tables.shape)
        np.add.at(tables, problem.kind, weights[problem.of_ties][:, np.newaxis, np.newaxis] * pairs)
        of_ties = (pairs * problem.tables[problem.kind]).sum(axis=(1, 2))
        from_ties = (marginals * added).sum(axis=1)
        sums = np.bincount(problem.of_ties, of_ties, minlength=len(problem.firsts))
        # log Z(chains) counts each expected score of a tie at both of its ends, the bound once
        sums -= np.bincount(problem.of_tokens, from_ties, minlength=len(sums))
        return Expected(problem.by_component(log_z) + sums, expected, tables)

    def best(self, problem: Problem) -> States:
        """The best labelling of the chains: int32[1, T]."""
        return LinearChain().viterbi(self.as_chains(problem)).states[np.newaxis]

    def as_chains(self, problem: Problem) -> ChainScores:
        """The chains with the expected scores of ties."""
        return problem.chains._replace(emissions=problem.chains.emissions + self._iterate(problem))

    def draw(self, problem: Problem, n: int, seed: Seed) -> States:
        """Samples of the chains: int32[n, T]."""
        return LinearChain().sample(self.as_chains(problem), n, seed=seed)

    def _iterate(self, problem: Problem) -> Floats:
        """The scores that ties add to emissions once chains have settled: float64[T, S]."""
        of_labels = problem.by_label(LinearChain().marginals(problem.chains))
        rounds = _rounds(problem)
        moves = np.ones(len(problem.firsts), dtype=bool)
        for _ in range(self.iterations):
            moved = np.zeros(len(problem.firsts))
            # Sequences of one round are not tied to each other: the bound rises as if they moved one by one
            for turn in rounds:
                asked = turn & moves[problem.component]
                if not asked.any():
                    continue
                chains = problem.chains._replace(emissions=problem.chains.emissions + _messages(problem, of_labels))
                part, tokens = cut_chains(chains, asked)
                now = problem.by_label(LinearChain().marginals(part))
                step = abs(now - of_labels[tokens]).max(axis=1, initial=0.0)
                of_labels[tokens] = now
                np.maximum.at(moved, problem.of_tokens[tokens], step)
            moves &= moved > self.tolerance
            if not moves.any():
                break
        self.n_asked += len(moves)
        self.n_unconverged += int(moves.sum())
        return _messages(problem, of_labels)


def _messages(problem: Problem, of_labels: Floats) -> Floats:
    """The scores that ties add to the emissions of both their ends, as their partners expect them: float64[T, S]."""
    messages = np.zeros_like(of_labels)
    tables = problem.tables[problem.kind]
    np.add.at(messages, problem.source, np.einsum("eij,ej->ei", tables, of_labels[problem.target]))
    np.add.at(messages, problem.target, np.einsum("eij,ei->ej", tables, of_labels[problem.source]))
    return messages[:, problem.label_of]


def _rounds(problem: Problem) -> list[NDArray[np.bool_]]:
    """Sequences by rounds (bool[B] each): those of one round are not tied to each other, so they may be done at once."""
    neighbours: list[set[int]] = [set() for _ in problem.component]
    for a, b in zip(*problem.sequences.tolist()):
        if a != b:
            neighbours[a].add(b)
            neighbours[b].add(a)
    rounds = np.full(len(neighbours), -1)
    for b, others in enumerate(neighbours):
        taken = {int(rounds[other]) for other in others}
        # Greedy colouring
        rounds[b] = next(number for number in range(len(others) + 1) if number not in taken)
    return [rounds == number for number in range(int(rounds.max(initial=-1)) + 1)]


def _pairs(problem: Problem, chains: ChainScores, marginals: Floats) -> Floats:
    """Probabilities of the pairs of labels at the ends of ties: float64[E, L, L]."""
    of_labels = problem.by_label(marginals)
    pairs = of_labels[problem.source][:, :, np.newaxis] * of_labels[problem.target][:, np.newaxis]
    of_ends = problem.sequences[0]
    for e in np.flatnonzero(problem.inside).tolist():
        b = int(of_ends[e])
        u = int(problem.source[e])
        v = int(problem.target[e])
        begin = int(problem.starts[b])
        end = int(problem.starts[b + 1])
        sentence = arrays.cut(chains, np.arange(begin, end), np.array([0, end - begin]))
        log_z = LinearChain().log_partition(sentence)[0]
        for label in range(problem.n_labels):  # as the other end is where this one has each label
            clamp = np.ones(sentence.emissions.shape, dtype=bool)
            clamp[u - begin] = problem.label_of == label
            having, expected = LinearChain().expectations(sentence, clamp=clamp)
            share = np.exp(having[0] - log_z) if having[0] > -np.inf else 0.0
            pairs[e, label] = share * problem.by_label(expected.emissions[v - begin, np.newaxis])[0]
    return pairs
