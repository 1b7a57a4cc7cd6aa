"""Brown clustering: merge the two classes of words whose merge loses the least mutual information of neighbouring words.

With the counts n_ij of class i followed by class j, and their sums l_i over j and r_j over i, the mutual information of
neighbours, times the number of pairs N, is

    sum_ij f(n_ij) - sum_i f(l_i) - sum_j f(r_j) + f(N),   f(n) = n log n

(Brown et al. 1992, "Class-Based n-gram Models of Natural Language", section 3). The loss of a merge is a sum over the neighbours
that both classes share, since f(x) + f(y) - f(x + y) is 0 if x or y is 0. So it takes little work to update the table of losses
when a class gets a rare word, as most words are.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel


class Bigrams(NamedTuple):
    """How often words follow each other. Words are numbered by rank; word v has the entries ``starts[v]:starts[v + 1]`` of the
    list of next words, and likewise of the list of previous words."""

    next_starts: NDArray[np.int64]  # [V + 1]
    next_words: NDArray[np.int32]  # [P] words that follow word v
    next_counts: NDArray[np.int32]  # [P] how often
    previous_starts: NDArray[np.int64]  # [V + 1]
    previous_words: NDArray[np.int32]  # [P] words that word v follows
    previous_counts: NDArray[np.int32]  # [P] how often


class Window(NamedTuple):
    """Classes of words in M slots, some of them free, and the words of each class."""

    after: NDArray[np.int32]  # [M, M] after[k, i]: how often class k follows class i
    before: NDArray[np.int32]  # [M, M] before[k, i]: how often class k precedes class i
    first: NDArray[np.int64]  # [M] pairs that begin with the class
    second: NDArray[np.int64]  # [M] pairs that end with the class
    losses: Floats  # [M, M] losses[i, j], j < i: of merging the two, times the number of pairs; inf for free slots
    is_used: NDArray[np.bool_]  # [M]
    parent: NDArray[np.int32]  # [V] another word of the word's class; one word of each class is its own parent
    slot: NDArray[np.int32]  # [V] slot of the class, for words that are their own parent


@helper
def _f(n, logs):
    """n log n; logs (float64[N]) contains the values for small n."""
    return logs[n] if n < len(logs) else n * math.log(n)


@helper
def _g(x, y, logs):
    """f(x) + f(y) - f(x + y)"""
    if x == 0 or y == 0:
        return 0.0
    return _f(x, logs) + _f(y, logs) - _f(x + y, logs)


@helper
def _own(i, j, window, logs):
    """The terms of a loss besides its sum over all classes: those of the row and column sums of i and j, and a correction,
    since the four counts among i and j become one, but the sum treats them as counts with other classes."""
    ii = window.after[i, i]
    ij = window.after[j, i]
    ji = window.after[i, j]
    jj = window.after[j, j]
    loss = _f(ii, logs) + _f(ij, logs) + _f(ji, logs) + _f(jj, logs) - _f(ii + ij + ji + jj, logs)
    loss -= _g(ii, ji, logs) + _g(ij, jj, logs) + _g(ii, ij, logs) + _g(ji, jj, logs)
    loss -= _g(window.first[i], window.first[j], logs) + _g(window.second[i], window.second[j], logs)
    return loss


@helper
def _slot_of(word, window):
    """The slot of a word's class, found by following the parents (union-find with path halving)."""
    while window.parent[word] != word:
        # Halve the path, so that later searches are short
        window.parent[word] = window.parent[window.parent[word]]
        word = window.parent[word]
    return window.slot[word]


@helper
def _add_counts(word, new, bigrams, window):
    """Add the counts of a new word in a slot of its own, beside the words that have classes already."""
    for n in range(bigrams.next_starts[word], bigrams.next_starts[word + 1]):
        other = bigrams.next_words[n]
        count = bigrams.next_counts[n]
        if other <= word:
            k = new if other == word else _slot_of(other, window)
            window.after[k, new] += count
            window.before[new, k] += count
            window.first[new] += count
            window.second[k] += count
    for n in range(bigrams.previous_starts[word], bigrams.previous_starts[word + 1]):
        other = bigrams.previous_words[n]
        count = bigrams.previous_counts[n]
        if other < word:
            k = _slot_of(other, window)
            window.before[k, new] += count
            window.after[new, k] += count
            window.first[k] += count
            window.second[new] += count


@helper
def _add_context(new, row, window, logs):
    """Update the losses of all pairs of classes for a new class beside them: class m precedes or follows it row[m] times."""
    for i in range(len(row)):
        if row[i] > 0 and i != new:
            for j in range(i):
                if row[j] > 0 and j != new:
                    window.losses[i, j] += _g(row[i], row[j], logs)


@helper
def _change_sums(new, old, sums, window, logs):
    """Update the losses of pairs with a class whose sum (int64[M]) has changed."""
    for i in range(len(sums)):
        # A pair with two changed sums is updated once, from its larger member
        if sums[i] != old[i] and i != new:
            for j in range(len(sums)):
                if window.is_used[j] and j != i and (sums[j] == old[j] or j > i):
                    change = _g(old[i], old[j], logs) - _g(sums[i], sums[j], logs)
                    window.losses[max(i, j), min(i, j)] += change


@helper
def _place(word, new, bigrams, window, logs):
    """Make a class of one word in a free slot, and compute its losses."""
    old_first = window.first.copy()
    old_second = window.second.copy()
    _add_counts(word, new, bigrams, window)
    window.slot[word] = new
    _change_sums(new, old_first, window.first, window, logs)
    _change_sums(new, old_second, window.second, window, logs)
    # losses[j] = sum_k g(n(new, k), n(j, k)) over both sides, then `_own`
    losses = np.zeros(len(window.first))
    for beside in (window.after, window.before):
        _add_context(new, beside[new], window, logs)
        for k in range(len(losses)):
            if beside[k, new] > 0:
                for j in range(len(losses)):
                    losses[j] += _g(beside[k, new], beside[k, j], logs)
    for j in range(len(losses)):
        if window.is_used[j]:
            window.losses[max(new, j), min(new, j)] = losses[j] + _own(new, j, window, logs)
    window.is_used[new] = True


@helper
def _cheapest(window):
    """The slots of the two classes whose merge loses least; of equal losses the first pair."""
    best = np.inf
    one = -1
    other = -1
    for i in range(len(window.losses)):
        if window.is_used[i]:
            for j in range(i):
                if window.losses[i, j] < best:
                    best = window.losses[i, j]
                    one = i
                    other = j
    # The rarer class is merged into the other one: the work is that of its neighbours
    if window.first[one] + window.second[one] < window.first[other] + window.second[other]:
        one, other = other, one
    return one, other


@helper
def _merge_contexts(a, b, beside, window, logs):
    """Merge rows a and b of `beside`, and update the losses of the pairs of classes that have a or b beside them."""
    for i in range(len(beside)):
        if beside[b, i] > 0 and i != b:
            x = beside[a, i]
            y = beside[b, i]
            for j in range(len(beside)):
                u = beside[a, j]
                v = beside[b, j]
                if u + v > 0 and j != b and (j > i or (j < i and v == 0)):
                    # Counts x, u of class a and y, v of class b beside classes i and j become x + y and u + v
                    change = _g(x + y, u + v, logs) - _g(x, u, logs) - _g(y, v, logs)
                    window.losses[max(i, j), min(i, j)] += change
    for i in range(len(beside)):
        beside[a, i] += beside[b, i]
        beside[b, i] = 0


@helper
def _merge_items(a, b, beside, window, logs):
    """Add column b of `beside` to column a, and update the losses of the pairs of a with other classes."""
    for k in range(len(beside)):
        x = beside[k, a]
        y = beside[k, b]
        if y > 0:
            for j in range(len(beside)):
                z = beside[k, j]
                if z > 0 and j != a and j != b:
                    window.losses[max(a, j), min(a, j)] += _g(x + y, z, logs) - _g(x, z, logs)
            beside[k, a] = x + y
            beside[k, b] = 0


@helper
def _merge(a, b, window, logs):
    """Merge the class in slot b into the class in slot a."""
    for j in range(len(window.first)):
        if window.is_used[j] and j != a and j != b:
            # The other terms are added again when counts are those of the merged class
            window.losses[max(a, j), min(a, j)] -= _own(a, j, window, logs)
    for beside in (window.after, window.before):
        _merge_contexts(a, b, beside, window, logs)
    for beside in (window.after, window.before):
        _merge_items(a, b, beside, window, logs)
    window.first[a] += window.first[b]
    window.second[a] += window.second[b]
    window.first[b] = 0
    window.second[b] = 0
    window.is_used[b] = False
    for j in range(len(window.first)):
        window.losses[max(b, j), min(b, j)] = np.inf
        if window.is_used[j] and j != a:
            window.losses[max(a, j), min(a, j)] += _own(a, j, window, logs)


@kernel(seconds=20)
def place_words(begin, end, bigrams, window, logs):
    """Put the words ``begin`` to ``end`` - 1 into classes, one after the other: each word becomes a class in the free slot, then
    the merge that loses least frees a slot again."""
    word_in = np.full(len(window.first), -1, dtype=np.int32)  # by slot: the word of the class that is its own parent
    # Words that are in classes already
    for word in range(begin):
        if window.parent[word] == word:
            word_in[window.slot[word]] = word
    for word in range(begin, end):
        free = 0
        while window.is_used[free]:
            free += 1
        window.parent[word] = word
        _place(word, free, bigrams, window, logs)
        word_in[free] = word
        if window.is_used.all():
            a, b = _cheapest(window)
            _merge(a, b, window, logs)
            window.parent[word_in[b]] = word_in[a]


@kernel(seconds=20)
def join_classes(window, logs):
    """Merge classes until a single class is left.

    RETURNS (int32[C - 1, 2]): The two slots of each merge; the merged class is in the first one.
    """
    merges = np.empty((window.is_used.sum() - 1, 2), dtype=np.int32)
    for n in range(len(merges)):
        a, b = _cheapest(window)
        _merge(a, b, window, logs)
        merges[n, 0] = a
        merges[n, 1] = b
    return merges


@kernel
def slots_of(window):
    """The slot of each word: int32[V]."""
    slots = np.empty(len(window.parent), dtype=np.int32)
    for word in range(len(slots)):
        slots[word] = _slot_of(word, window)
    return slots
