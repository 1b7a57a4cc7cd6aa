"""How regression trees grow: the tokens of each feature, and the splits that lower a loss most, see `kernels.boosting`."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.inference.threads import run_chunks
from spacy_crf.types import Bools, Floats, Ints, TemplateRows, TokenFeatures

from .kernels.boosting import add_up, find_splits, split
from .trees import Forest

_CUTS = 32  # most cuts of a feature with values
_ROUNDING = 1e-9  # relative gains that are none
# Leaves whose best split gains less than this share of the largest gain wait for the next search. If none waits, 64 leaves need 7
# searches instead of 16, but the loss falls more slowly: on CoNLL-2000 to 72 in place of 44 thousand in 8 rounds.
_WORTH = 0.1
_MOST = 4.0  # largest Newton step of a score, as in LogitBoost (Friedman, Hastie & Tibshirani 2000)


class Postings(NamedTuple):
    """The tokens of each feature of a corpus, by falling value, and where these lists can be cut: see `kernels.boosting`."""

    tokens: NDArray[np.int32]  # [N]
    ends: Ints  # [C]
    cut_starts: Ints  # [F + 1]
    thresholds: NDArray[np.float32]  # [C]

    @classmethod
    def of(cls, batches: Sequence[tuple[TemplateRows, TokenFeatures]], n_features: int) -> "Postings":
        """The lists for a corpus, whose batches have features by template, and others."""
        tokens = []
        rows = []
        values = []
        n_tokens = 0
        for by_template, items in batches:
            template, token = np.nonzero(by_template >= 0)
            of_items = np.ones(len(items.rows), np.float32) if items.values is None else items.values
            every = np.arange(len(items.starts) - 1)
            tokens += [n_tokens + token, n_tokens + np.repeat(every, np.diff(items.starts))]
            rows += [by_template[template, token], items.rows]
            values += [np.ones(len(token), np.float32), of_items]
            n_tokens += len(every)
        row = np.concatenate([np.zeros(0, np.int32), *rows])
        token = np.concatenate([np.zeros(0, np.int64), *tokens])
        value = np.concatenate([np.zeros(0, np.float32), *values])
        order = np.lexsort((token, row))
        row = row[order]
        token = token[order]
        value = value[order]
        is_new = np.append(True, (np.diff(row) != 0) | (np.diff(token) != 0))[: len(row)]
        if not is_new.all():  # of a feature that a token has more than once, the highest value passes all thresholds
            value = np.maximum.reduceat(value, np.flatnonzero(is_new))
            row = row[is_new]
            token = token[is_new]
        if (value != 1.0).any():
            order = np.lexsort((token, -value, row))
            row = row[order]
            token = token[order]
            value = value[order]
        # A list can be cut behind the last token of each value
        last = np.append((np.diff(row) != 0) | (np.diff(value) != 0), True)[: len(row)]
        ends = np.flatnonzero(last) + 1
        cuts = np.bincount(row[ends - 1], minlength=n_features)
        for feature in np.flatnonzero(cuts > _CUTS):
            own = np.flatnonzero(row[ends - 1] == feature)
            begin = ends[own[0] - 1] if own[0] else 0
            size = ends[own[-1]]
            # Quantiles: about as many tokens between any two cuts
            wanted = begin + np.ceil((size - begin) * np.arange(1, _CUTS + 1) / _CUTS)
            chosen = np.unique(np.searchsorted(ends[own], wanted))
            ends = np.delete(ends, np.delete(own, chosen))
        of_cut = row[ends - 1]
        low = value[ends - 1]
        thresholds = np.full(len(ends), -np.inf, dtype=np.float32)
        goes_on = np.flatnonzero(np.diff(of_cut) == 0)
        behind = value[ends[goes_on]]
        # The middle of two values, as long as rounding leaves it between them
        between = behind + (low[goes_on] - behind) / 2
        thresholds[goes_on] = np.where(between < low[goes_on], between, behind)
        cut_starts = np.append(0, np.cumsum(np.bincount(of_cut, minlength=n_features))).astype(np.int64)
        return cls(token.astype(np.int32), ends.astype(np.int64), cut_starts, thresholds)

    def tokens_of(self, cut: int) -> NDArray[np.int32]:
        """The tokens whose value is above the threshold of a cut."""
        first = self.cut_starts[self.feature_of(cut)]
        return self.tokens[self.ends[first - 1] if first else 0 : self.ends[cut]]

    def feature_of(self, cut: int) -> int:
        """The feature to which a cut belongs."""
        return int(np.searchsorted(self.cut_starts, cut, side="right")) - 1

    def parts(self, n: int) -> list[Ints]:
        """Runs of features with about as many tokens each: int64[2]."""
        before = np.append(0, self.ends)[self.cut_starts]
        bounds = np.searchsorted(before, np.linspace(0, before[-1], n + 1)[1:-1])
        bounds = np.concatenate([[0], bounds, [len(before) - 1]])
        return [np.array(part) for part in pairwise(bounds.tolist())]


class Growth(NamedTuple):
    """Settings of growing trees."""

    leaves: int
    shrinkage: float
    l2: float
    min_gain: float


def newton_step(gradient: Floats, curvature: Floats, settings: Growth) -> Floats:
    """The step along each axis that lowers the loss, from its negative first and its second derivatives."""
    step = gradient / (np.maximum(curvature, 0.0) + settings.l2)
    return settings.shrinkage * np.clip(step, -_MOST, _MOST)


def grow(
    postings: Postings, derivatives: NDArray[np.float32], counts: Bools, settings: Growth, threads: int
) -> tuple[Forest, NDArray[np.int32]]:
    """Grow a tree whose leaves have the Newton steps of their tokens. Short enough steps lower the loss, as all tokens determine
    them, also those that do not count for the splits.

    A split gains, summed over the states,  g²/(h + l2) + g'²/(h' + l2) - (g + g')²/(h + h' + l2)

    derivatives (float32[T, 2S]): Negative first derivatives of the loss by the scores of each token, and second ones.
    counts (bool[T]): Tokens that count for the splits.
    RETURNS (Forest, int32[T]): The tree, and the leaf of each token.
    """
    n_tokens, width = derivatives.shape
    most = settings.leaves
    size = width // 2
    leaf_of = np.zeros(n_tokens, dtype=np.int32)
    sums = np.zeros((most, width))
    add_up(np.where(counts, leaf_of, np.int32(-1)), derivatives, sums)
    asked: dict[int, tuple[int, int, int]] = {}  # by node: the cut, and the nodes for "no" and "yes"
    # the node of each leaf; leaves whose best splits are to be found
    node_of = [0]
    new = [0]
    # of the best splits
    cuts = np.full(most, -1)
    gains = np.zeros(most)
    while new and len(node_of) < most:
        search = partial(_best_cuts, postings, derivatives, np.where(counts, leaf_of, -1), new, sums, settings.l2)
        for found, of_found in run_chunks(search, postings.parts(threads), threads):
            better = of_found > gains[new]
            cuts[new] = np.where(better, found, cuts[new])
            gains[new] = np.where(better, of_found, gains[new])
        [worth] = np.nonzero(gains > max(settings.min_gain, _WORTH * gains.max()))
        worth = worth[np.argsort(-gains[worth], kind="stable")][: most - len(node_of)]
        new = []
        for leaf in worth.tolist():
            cut = int(cuts[leaf])
            added = len(node_of)
            no = 2 * len(asked) + 1
            split(postings.tokens_of(cut), leaf, added, leaf_of, counts, derivatives, sums[added])
            # What is left for the answer "no"
            sums[leaf] -= sums[added]
            asked[node_of[leaf]] = cut, no, no + 1
            node_of[leaf] = no
            node_of.append(no + 1)
            gains[leaf] = 0.0
            new += [leaf, added]
    sums = np.zeros((len(node_of), width))
    add_up(leaf_of, derivatives, sums)
    values = newton_step(sums[:, :size], sums[:, size:], settings).astype(np.float32)
    tree, leaves = _in_order(postings, asked, node_of, values)
    place = np.empty(len(leaves), dtype=np.int32)
    place[leaves] = np.arange(len(leaves))
    return tree, place[leaf_of]


def _in_order(
    postings: Postings, asked: dict[int, tuple[int, int, int]], node_of: list[int], values: NDArray[np.float32]
) -> tuple[Forest, list[int]]:
    """The tree with its nodes in order, and the numbers that its leaves had."""
    leaf_of = {node: leaf for leaf, node in enumerate(node_of)}
    leaves = []
    feature = []
    threshold = []
    yes = []

    def append(node: int) -> None:
        place = len(yes)
        cut, of_no, of_yes = asked.get(node, (-1, -1, -1))
        feature.append(-1 if cut < 0 else postings.feature_of(cut))
        threshold.append(-np.inf if cut < 0 else postings.thresholds[cut])
        yes.append(-1)
        if cut < 0:
            leaves.append(leaf_of[node])
            return
        append(of_no)
        yes[place] = len(yes)
        append(of_yes)

    append(0)
    asked_for = np.array(feature, np.int32), np.array(threshold, np.float32), np.array(yes, np.int32)
    return Forest._make([np.zeros(1, np.int32), *asked_for, values[leaves]]), leaves


def _best_cuts(
    postings: Postings,
    derivatives: NDArray[np.float32],
    leaf_of: NDArray[np.int32],
    leaves: list[int],
    sums: Floats,
    l2: float,
    features: Ints,
) -> tuple[Ints, Floats]:
    """The best cut of each of some leaves among those of a run of features, and what it gains: 0 if no cut gains anything."""
    place = np.full(len(sums) + 1, -1, dtype=np.int32)  # the last entry is for tokens that do not count
    place[leaves] = np.arange(len(leaves))
    totals = sums[leaves]
    size = sums.shape[1] // 2
    # g² / (h + l2), summed over the states
    unsplit = (totals[:, :size] ** 2 / (np.maximum(totals[:, size:], 0.0) + l2)).sum(axis=1)
    best = np.full(len(leaves), -1)
    found = (1.0 + _ROUNDING) * unsplit
    lists = postings.tokens, postings.ends, postings.cut_starts
    find_splits(features, *lists, place[leaf_of], derivatives, totals, l2, best, found, np.zeros_like(totals))
    return best, found - (1.0 + _ROUNDING) * unsplit
