"""Best labellings by dual decomposition (Komodakis, Paragios & Tziritas 2007; Rush & Collins 2012; Martins et al. 2015).

Each chain and each tie chooses its labels alone; prices of labels, see `kernels.tie_decomposition`, make them agree. The sum of
their maxima, the dual, is an upper bound of all scores, so a labelling with this score is proved to be a best one. The rules of a
joined document are in its chain, whose states are those of a graph.
"""

import heapq
import itertools
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.constraints.budget import seconds_of_recursion
from spacy_crf.inference.structure import States
from spacy_crf.optimizers.objective import setting
from spacy_crf.types import Floats

from .best_labelling import BestLabelling
from .blocks import SENTENCES, best_improved
from .prices import Found, PriceSearch, is_apart, is_open
from .scores import Problem

_PASSES = 4  # passes over the chains in one iteration, about


@dataclass(eq=False)
class DualDecomposition(BestLabelling):
    """Inference of best labellings by dual decomposition. It begins with sweeps of coordinate descent, which are enough for most
    texts, and goes on with a method that cannot get stuck.

    method (str): "ad3" (alternating directions: few iterations, each with several passes over a chain) or "subgradient".
    iterations (int): Maximum number of iterations, sweeps included.
    exact (bool): Whether to branch on the labels of tokens until the labelling is proved to be a best one.
    time_limit (float): Maximum number of seconds for that and one component, on a usual machine. It is a measure of work: no
        clock is read, so that the result is always the same.
    """

    method: str = setting("ad3", checks.one_of, allowed=("ad3", "subgradient"))
    iterations: int = setting(50, checks.count)
    exact: bool = setting(False, checks.flag)
    time_limit: float = setting(10.0, checks.positive)

    keeps_rules = True
    advice = " More iterations help, or exact = true."

    def best(self, problem: Problem) -> States:
        """The best labelling found (int32[1, T]), by branching too if `exact`."""
        found = self.decompose(problem)
        for c in np.flatnonzero(is_open(found)).tolist():
            # Where the bound is not reached: improve the labelling, then, if `exact`, close the gap
            part, tokens = problem.only(c)
            if len(part.component) > 1 or SENTENCES.fits(part):
                states = best_improved(part, found.states[np.newaxis, tokens])
                score = part.score(states[np.newaxis])[0, 0]
                if score > found.scores[c]:
                    found.states[tokens] = states
                    found.scores[c] = score
            if self.exact and is_open(found)[c]:
                found.states[tokens], found.scores[c], found.bounds[c] = self._branch(part, found, c, tokens)
        self.count(found.scores, np.where(is_open(found), found.bounds, found.scores), 0.0)
        return np.where((found.scores > -np.inf)[problem.of_tokens], found.states, -1).astype(np.int32)[np.newaxis]

    def decompose(self, problem: Problem, prices: Optional[Floats] = None) -> Found:
        """Lower the dual until it is the score of a labelling, or for the maximum number of iterations.

        prices (float64[2 E, L]): Prices to begin with, those of a similar problem; None for none.
        """
        search = PriceSearch(problem, prices)
        for _ in range(self.iterations):
            # Sweeps alone may stop above the minimum of the dual, which is not smooth
            search.sweep()
            if search.stalled.any():
                search.negotiate() if self.method == "ad3" else search.descend()
            if not search.open.any():
                break
        return search.found

    def _branch(self, part: Problem, found: Found, c: int, tokens: NDArray[np.int64]) -> tuple[States, float, float]:
        """Search best-first for the best labelling of one component: where a tie is farthest from its maximum, a token has the
        label that it has been given, or another one.

        RETURNS (int32[T], float, float): A labelling, its score and an upper bound.
        """
        best = found.states[tokens]
        score = found.scores[c]
        bound = found.bounds[c]
        begin = self.decompose(part, found.prices[np.isin(found.parts.tokens, tokens)])
        numbers = itertools.count()
        heap: list[tuple[float, int, Problem, Found]] = [(-begin.bounds[0], next(numbers), part, begin)]
        n_tokens, n_states = part.chains.emissions.shape
        # The work of one node, in seconds of a usual machine
        of_node = self.iterations * _PASSES * seconds_of_recursion(n_tokens, n_states, 1)
        nodes = max(1, int(self.time_limit / of_node))
        while heap:
            # The highest bound of the open nodes bounds all labellings
            bound = min(bound, max(-heap[0][0], score))
            if not is_apart(score, bound) or nodes <= 0:
                break
            _, _, node, begin = heapq.heappop(heap)
            token, label = _most_apart(node, begin)
            # Two children: the token has this label, or any other
            for is_label in (True, False):
                nodes -= 1
                allowed = (node.label_of == label) == is_label
                emissions = node.chains.emissions.copy()
                emissions[token] = np.where(allowed, emissions[token], -np.inf)
                child = node._replace(chains=node.chains._replace(emissions=emissions))
                # The parent's prices are nearly right for its children
                now = self.decompose(child, begin.prices)
                if now.scores[0] > score:
                    best = now.states
                    score = now.scores[0]
                if is_apart(score, now.bounds[0]) and is_open(now)[0]:
                    heapq.heappush(heap, (-now.bounds[0], next(numbers), child, now))
        else:
            bound = score
        return best, score, bound


def _most_apart(problem: Problem, found: Found) -> tuple[int, int]:
    """The token at the end of the tie that is farthest from its maximum and has several possible labels; and its label."""
    parts = found.parts
    labels = problem.label_of[found.states]
    ends = np.stack([problem.source, problem.target])
    prices = found.prices.reshape(-1, 2, problem.n_labels)
    every = np.arange(len(problem.kind))
    # [E, L, L] score of each tie less the prices of both of its labels
    scores = problem.tables[problem.kind] - prices[:, 0, :, np.newaxis] - prices[:, 1, np.newaxis]
    possible = parts.possible.reshape(prices.shape)
    scores = np.where(possible[:, 0, :, np.newaxis] & possible[:, 1, np.newaxis], scores, -np.inf)
    # [E] what the labelling loses against the best labels of the tie
    lost = scores.max(axis=(1, 2)) - scores[every, labels[ends[0]], labels[ends[1]]]
    several = possible.sum(axis=2) > 1
    place = int(np.where(several, lost[:, np.newaxis], -np.inf).argmax())
    token = int(ends[place % 2, place // 2])
    return token, int(labels[token])
