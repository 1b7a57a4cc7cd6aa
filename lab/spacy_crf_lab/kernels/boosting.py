"""Regression trees over the features of tokens: their scores, and the search for the splits that lower a loss most.

A node asks whether a token has a feature with a value above a threshold. A token without the feature has the value -inf, which is
above no threshold, so the threshold -inf asks whether the feature is there.

For the search the tokens of each feature are listed from the highest value to the lowest. Each cut of such a list is a possible
split: the tokens up to there have a value above a threshold.
"""

import numpy as np

from spacy_crf.kernels import helper, kernel


@helper
def _pass(row, value, asked_starts, asked, states):
    """Remove the leaves that a token cannot reach because of one of its features."""
    trees, thresholds, masks = asked
    if row >= 0:
        for n in range(asked_starts[row], asked_starts[row + 1]):
            if value > thresholds[n]:
                states[trees[n]] &= masks[n]


@kernel
def find_leaves(rows, items, item_values, item_starts, asked_starts, asked, first_leaf, leaves):
    """The leaf that each token reaches in each tree, by "QuickScorer" (Lucchese et al. 2015): a tree has a bit for each of its
    leaves, those for "no" before those for "yes", and a node whose answer is "yes" removes the bits of its leaves for "no". The
    lowest bit that stays is that of the leaf. So only nodes that ask for features of the token take time.

    rows (int32[M, T], -1 for none): Feature of each template. items (int32[N], too), item_values (float32[N], or empty: all 1),
        item_starts (int64[T + 1]): Further features of the tokens.
    asked_starts (int64[F + 1]): Nodes that ask for each feature. asked (int32[N], float32[N], uint64[N]): Tree, threshold and
        mask of these nodes. first_leaf (int32[B]): Number of the first leaf of each tree. leaves (int32[T, B])
    """
    every = ~np.uint64(0)
    states = np.empty(len(first_leaf), dtype=np.uint64)
    lowest = np.empty(len(first_leaf), dtype=np.float64)
    exponents = lowest.view(np.uint64)
    for t in range(len(leaves)):
        states[:] = every
        for m in range(len(rows)):
            _pass(rows[m, t], np.float32(1.0), asked_starts, asked, states)
        for n in range(item_starts[t], item_starts[t + 1]):
            _pass(items[n], item_values[n] if len(item_values) > 0 else np.float32(1.0), asked_starts, asked, states)
        for b in range(len(states)):
            # x & -x has the lowest bit of x alone; as a float64 it is 2^bit, whose exponent field is bit + 1023
            lowest[b] = np.float64(states[b] & (~states[b] + np.uint64(1)))
        for b in range(len(states)):
            leaves[t, b] = first_leaf[b] + np.int32(exponents[b] >> np.uint64(52)) - np.int32(1023)


@kernel
def add_leaves(leaves, values, scores):
    """scores[t] += sum over the trees of the values of the leaf that token t reaches.

    leaves (int32[T, B]), values (float32[L, S]), scores (float64[T, S])
    """
    for t in range(len(scores)):
        target = scores[t]
        for b in range(leaves.shape[1]):
            source = values[leaves[t, b]]
            for k in range(len(target)):
                target[k] += source[k]


@helper
def _gain(sums, total, l2):
    """sum_k g²/(h + l2) of both sides of a split, from the sums of one side and of both: [2S], first g, then h."""
    size = len(sums) // 2
    found = 0.0
    for k in range(size):
        g = sums[k]
        h = sums[size + k]
        other_g = total[k] - g
        other_h = max(total[size + k] - h, 0.0)
        found += g * g / (h + l2) + other_g * other_g / (other_h + l2)
    return found


@kernel
def find_splits(features, tokens, ends, cut_starts, place, derivatives, totals, l2, best, gains, sums):
    """The best cut for each of O nodes, among the cuts of some features.

    features (int64[2]): The first feature, and the one behind the last. tokens (int32[N]): By feature, see above.
    ends (int64[C]): End of each cut in tokens. cut_starts (int64[F + 1]): Cuts of each feature.
    place (int32[T]): Number of the node of each token, -1 for tokens that do not count.
    derivatives (float32[T, 2S]): Negative first derivatives of the loss by the scores of a token, and second ones.
    totals (float64[O, 2S]): Their sums over the tokens of each node.
    best (int64[O]), gains (float64[O]): The best cut and its sum; unchanged if no cut has a larger one.
    sums (float64[O, 2S]): All 0, before and afterwards.
    """
    width = derivatives.shape[1]
    met = np.empty(len(totals), dtype=np.int32)
    is_met = np.zeros(len(totals), dtype=np.bool_)
    for f in range(features[0], features[1]):
        n_met = 0
        # sums[o] runs over the tokens of node o up to each cut, so each token is added once per feature
        at = ends[cut_starts[f] - 1] if cut_starts[f] > 0 else 0
        for cut in range(cut_starts[f], cut_starts[f + 1]):
            for n in range(at, ends[cut]):
                t = np.int64(tokens[n])
                o = place[t]
                if o >= 0:
                    if not is_met[o]:
                        is_met[o] = True
                        met[n_met] = o
                        n_met += 1
                    target = sums[o]
                    source = derivatives[t]
                    for k in range(width):
                        target[k] += source[k]
            at = ends[cut]
            # Only nodes with tokens of this feature can be split by it
            for n in range(n_met):
                o = met[n]
                gain = _gain(sums[o], totals[o], l2)
                if gain > gains[o]:
                    gains[o] = gain
                    best[o] = cut
        for n in range(n_met):
            # Clear what was used alone: features are rare, and nodes may be many
            is_met[met[n]] = False
            sums[met[n]] = 0.0


@kernel
def add_up(leaf_of, derivatives, sums):
    """Sums of the derivatives of the tokens in each leaf.

    leaf_of (int32[T]): -1 for tokens that do not count. derivatives (float32[T, 2S]), sums (float64[L, 2S])
    """
    for t in range(len(leaf_of)):
        if leaf_of[t] >= 0:
            target = sums[leaf_of[t]]
            source = derivatives[t]
            for k in range(len(source)):
                target[k] += source[k]


@kernel
def split(tokens, leaf, new, leaf_of, counts, derivatives, sums):
    """Move those of the tokens (int32[N]) that are in a leaf to a new one, and add up their derivatives.

    leaf_of (int32[T]), counts (bool[T]): Leaf of each token, and whether its derivatives count. sums (float64[2S])
    """
    for n in range(len(tokens)):
        t = np.int64(tokens[n])
        if leaf_of[t] == leaf:
            leaf_of[t] = new
            if counts[t]:
                source = derivatives[t]
                for k in range(len(sums)):
                    sums[k] += source[k]
