"""Small random graphs, and all that there is to know of them by going through their labellings one by one."""

import itertools
import math

import numpy as np

from spacy_crf import arrays
from spacy_crf_lab.ties.scores import TiedScores, Ties
from tests import reference
from tests.structures import starts_of


def random_ties(lengths, rng, n_ties, *, tree=False):
    """Pairs of tokens.

    tree (bool): Whether sequences and ties have no cycle.
    """
    starts, n_tokens, found = starts_of(lengths), sum(lengths), []
    group = list(range(len(lengths)))
    for _ in range(50):
        u, v = rng.integers(0, n_tokens, size=2).tolist() if n_tokens else (0, 0)
        a, b = (group[int(np.searchsorted(starts, t, side="right")) - 1] for t in (u, v)) if n_tokens else (0, 0)
        if len(found) < n_ties and u != v and (not tree or a != b):
            found.append((u, v))
            group = [b if of == a else of for of in group]
    return found


def random_graph(lengths, size, pairs, rng, *, labels=2, features=3, spread=1.0, per_position=False, forbidden=0.0):
    """Scores with ties, some of which have several features, or one that counts both ways."""
    n_tokens = sum(lengths)
    transitions = rng.normal(size=(n_tokens, size, size) if per_position else (size, size))
    transitions[rng.random(transitions.shape) < forbidden] = -np.inf
    rows = np.stack([np.arange(features), rng.permutation(np.append(np.arange(features - 1), -1))], axis=1)
    source, target = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    return TiedScores(
        rng.normal(size=(n_tokens, size)),
        transitions,
        *rng.normal(size=(2, size)),
        rng.normal(scale=spread, size=(features, labels, labels)),
        np.append(np.arange(min(labels, size)), rng.integers(0, labels, size=max(0, size - labels))),
        Ties(
            source.copy(),
            target.copy(),
            rng.integers(0, features, size=len(source)).astype(np.int32),
            rows.astype(np.int32),
            rng.random(features) < 0.4,
        ),
        starts_of(lengths),
    )


def attracting(scores, rng, *, groups=0, largest=12, chain=False):
    """Scores whose ties only reward equal labels, and of which some are groups of three tokens and more."""
    tables = np.zeros(scores.tables.shape)
    labels = np.arange(tables.shape[1])
    tables[:, labels, labels] = rng.random(tables.shape[:2]) * 2.0
    n_tokens, ties = len(scores.emissions), scores.ties
    sizes = rng.integers(3, min(n_tokens, largest) + 1, size=groups if n_tokens > 2 else 0)
    members = [rng.permutation(n_tokens)[:size] for size in sizes]
    ties = ties._replace(
        members=np.concatenate([np.zeros(0), *members]).astype(np.int32),
        group_starts=np.append(0, np.cumsum(sizes)).astype(np.int64),
        group_kind=rng.integers(0, len(ties.rows), size=len(sizes)).astype(np.int32),
    )
    transitions = scores.transitions if chain else np.zeros(scores.transitions.shape)
    return scores._replace(tables=tables, transitions=transitions, ties=ties)


class EnumeratedGraph:
    """Every labelling (score, states, uses) of a batch as a whole."""

    def __init__(self, scores, clamp=None):
        self.scores, self.ways = scores, []
        parts = [reference.paths(scores, *ends, None) for ends in reference.sequences(scores)]
        for chosen in itertools.product(*parts):
            states = tuple(itertools.chain.from_iterable(path for _, path in chosen))
            if clamp is None or all(clamp[t, state] for t, state in enumerate(states)):
                used = list(self.tables_used(states))
                score = sum(of_chain for of_chain, _ in chosen) + sum(float(scores.tables[index]) for index in used)
                self.ways.append((score, states, used))
        self.ways.sort(key=lambda way: -way[0])
        self.log_z = reference.log_sum([score for score, *_ in self.ways])

    def tables_used(self, states):
        ties, label_of = self.scores.ties, self.scores.label_of
        for u, v, kind in zip(ties.source, ties.target, ties.kind):
            i, j = int(label_of[states[u]]), int(label_of[states[v]])
            for row in ties.rows[kind].tolist():
                if row >= 0:
                    yield row, i, j
                    if ties.symmetric[row]:
                        yield row, j, i
        for g, kind in enumerate(ties.group_kind):
            labels = {int(label_of[states[t]]) for t in ties.members[ties.group_starts[g] : ties.group_starts[g + 1]]}
            for row in ties.rows[kind].tolist() if len(labels) == 1 else ():
                if row >= 0:
                    yield from [(row, *labels, *labels)] * (1 + int(ties.symmetric[row]))

    def expectations(self):
        total = arrays.zeros(self.scores)
        for score, states, used in self.ways:
            p = math.exp(score - self.log_z)
            for begin, end in reference.sequences(self.scores):
                for name, index in reference.uses(self.scores, begin, end, states[begin:end]):
                    getattr(total, name)[index] += p
            for index in used:
                total.tables[index] += p
        return total

    @property
    def marginals(self):
        return self.expectations().emissions
