"""The tags of words from counts: by the word, by its ending, and by ever shorter endings (Brants 2000, section 2.3)."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spacy_crf.arrays import states_of
from spacy_crf.models.emissions import EmissionFeatures
from spacy_crf.models.node import Batches
from spacy_crf.models.table import Table
from spacy_crf.types import Clamp, Floats, Ints, TemplateRows, TokenFeatures

from .counting import shares

# How many occurrences of an ending the estimate by a shorter one is worth. TnT takes as many as the ending has, times the
# standard deviation of the shares of tags (Brants 2000, eq. 10): of the unknown words of UD EWT (dev) that gets 68.5 % right, of
# all words 92.1 %; this gets 71.9 % and 92.6 % right, and 1 to 16 occurrences do about as well.
_OF_ENDINGS = 4.0
_RARE = 10  # words that occur no more often show what unknown words look like


class Block(NamedTuple):
    """Some texts with their annotation."""

    rows: TemplateRows  # [M, T] feature of each template at each token, -1 for none; the most general template is the first
    allowed: Clamp  # [T, S]
    starts: Ints  # [B + 1]
    weights: Floats  # [B]


class Tally:
    """Counts of features with tags, and how features back off, for F features and W pairs of these with tags."""

    def __init__(self, features: EmissionFeatures):
        self.table = features.states
        self._compiled = features.compiled.templates["states"]
        self.n_pairs = np.zeros(self.table.n_weights)
        self.level = np.zeros(len(self.table.index), dtype=np.int64)
        self.parent = np.full(len(self.table.index), -1)

    def blocks(self, corpus: Batches) -> Iterator[Block]:
        """The texts of a corpus, which also show how features back off."""
        for batch in corpus():
            rows, _ = self._compiled.rows_by_template(self._compiled.reader.read(batch.docs), self.table.index)
            last = rows[0]
            for level, row in enumerate(rows[1:], 1):
                has = row >= 0
                self.level[row[has]] = level
                self.parent[row[has]] = last[has]
                last = np.where(has, row, last)
            weights = np.ones(len(batch.starts) - 1) if batch.weights is None else batch.weights
            yield Block(rows, states_of(batch.allowed), batch.starts, weights)

    def add(self, rows: TemplateRows, tags: Floats) -> None:
        """Count tokens, each with certain shares of tags (float64[T, S]). Endings and shapes of frequent words do not count."""
        rows = rows.copy()
        # Unknown words are like rare ones, so frequent words do not teach endings
        rows[1:-1, (rows[-1] >= 0) & (self.table.counts[rows[-1]] > _RARE)] = -1
        self.table.scatter(features_of(rows), tags, self.n_pairs)

    def weights(self, smoothing: float) -> Floats:
        """Weights of the pairs (float64[W]), where the estimate by the ending counts as `smoothing` occurrences of a word."""
        last = self.level.max(initial=0)
        strength = np.full(len(self.level), _OF_ENDINGS)
        strength[self.level == 0] = self.table.n_columns * smoothing
        strength[self.level == last] = smoothing
        order = [np.flatnonzero(self.level == level) for level in range(last + 1)]
        return log_ratios(self.table, self.n_pairs, Chain(self.parent, strength, order))


def features_of(rows: TemplateRows) -> TokenFeatures:
    """Features by template (int32[M, T]) as compressed sparse rows."""
    known = rows.T >= 0
    return TokenFeatures(np.ascontiguousarray(rows.T[known]), None, np.append(0, np.cumsum(known.sum(axis=1))))


class Chain(NamedTuple):
    """How each of F features backs off to a more general one."""

    parent: Ints  # [F] -1 for the most general feature, which every token has
    strength: Floats  # [F] how many occurrences the estimate by the parent is worth
    order: list[Ints]  # the features, parents before their children


def log_ratios(table: Table, n_pairs: Floats, chain: Chain) -> Floats:
    """Weights whose sum over the features of a token is log p(tag | features), up to a number that is the same for all tags.

        p(tag | f) = (n(f, tag) + strength · p(tag | parent)) / (n(f) + strength)

    so the step from the parent to the feature multiplies the probability of a tag by
    1 + n(f, tag) / (strength · p(tag | parent)), apart from a factor that all tags share. Tags that were never seen with the
    feature have the factor 1, and need no weight.

    n_pairs (float64[W]): Count of each pair of feature and tag in the table.
    RETURNS (float64[W])
    """
    rows = table.rows_of_pairs()
    size = table.n_columns
    keys = rows * size + table.pair_columns
    totals = np.bincount(rows, n_pairs, minlength=len(table.index))
    # [F] share of a feature's probabilities that comes from its parent
    kept = shares(chain.strength, totals + chain.strength)
    ratios = np.zeros(len(rows))
    probabilities = np.zeros(len(rows))

    def by_parents(features: Ints, tags: Ints) -> Floats:
        """p(tag | parent) of some features."""
        found = np.full(len(features), 1.0)
        left = np.arange(len(features))
        row = chain.parent[features]
        # Climb until the parent has been seen with the tag; each step on the way takes its share
        while len(left):
            general = row < 0
            found[left[general]] /= size
            left = left[~general]
            row = row[~general]
            place = np.minimum(np.searchsorted(keys, row * size + tags[left]), len(keys) - 1)
            has_pair = (keys[place] == row * size + tags[left]) & (n_pairs[place] > 0.0)
            found[left[has_pair]] *= probabilities[place[has_pair]]
            left = left[~has_pair]
            row = row[~has_pair]
            found[left] *= np.where(totals[row] > 0.0, kept[row], 1.0)
            row = chain.parent[row]
        return found

    for features in chain.order:
        is_here = np.zeros(len(table.index), dtype=bool)
        is_here[features] = True
        [here] = np.nonzero(is_here[rows] & (n_pairs > 0.0))
        row = rows[here]
        expected = chain.strength[row] * by_parents(row, table.pair_columns[here].astype(np.int64))
        # log(p(tag | f) / p(tag | parent)), up to the factor of all tags
        ratios[here] = np.log1p(n_pairs[here] / expected)
        probabilities[here] = (n_pairs[here] + expected) / (totals[row] + chain.strength[row])
    return ratios
