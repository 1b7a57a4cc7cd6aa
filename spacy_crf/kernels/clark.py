"""Exchange clustering: each word moves to the class that makes the pairs of neighbouring words and the letters of the word most
probable (Clark 2003).

With the counts N(g, h) of a word of class g before one of class h, and their sums L(g) over h and R(h) over g, a model of pairs
of classes has, but for a constant, the log-likelihood

    sum_gh f(N(g, h)) - sum_g f(L(g)) - sum_h f(R(h)),   f(n) = n log n

(Ney, Essen & Kneser 1994, eq. 14; Clark 2003, section 3).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import kernel
from .brown import Bigrams, _f


class Classes(NamedTuple):
    """The class of each word, and the number of times that classes follow each other."""

    of_word: NDArray[np.int32]  # [V]
    pairs: NDArray[np.int64]  # [C, C] pairs[g, h]: how often a word of class h follows one of class g
    first: NDArray[np.int64]  # [C] pairs that begin with the class
    second: NDArray[np.int64]  # [C] pairs that end with it


class Letters(NamedTuple):
    """The letters of words, and the probabilities of pairs of letters in each class."""

    starts: NDArray[np.int64]  # [V + 1]
    pairs: NDArray[np.int32]  # [N] numbers of the pairs of letters of each word, one after the other
    scores: Floats  # [P, C] their log-probabilities; P = 0 to leave letters out of account


@kernel
def exchange_words(bigrams: Bigrams, classes: Classes, letters: Letters, weight: float, logs: Floats) -> int:
    """Move each word once, the most frequent first, to the class with the largest log-likelihood. A word stays if no class is
    better than its own.

    weight (float): Weight of the likelihood of a word's letters; its neighbours have the weight 1.
    logs (float64[N]): n log n of small numbers.
    RETURNS (int): Number of words that moved.
    """
    of_word, pairs, first, second = classes
    n_classes = len(first)
    n_moved = 0
    before = np.zeros(n_classes, np.int64)
    after = np.zeros(n_classes, np.int64)
    beside = np.zeros(n_classes, np.int64)  # the classes beside the word
    gain = np.zeros(n_classes)
    sides = (
        (bigrams.next_starts, bigrams.next_words, bigrams.next_counts, after),
        (bigrams.previous_starts, bigrams.previous_words, bigrams.previous_counts, before),
    )
    for word in range(len(of_word)):
        own = of_word[word]
        itself = 0
        n_beside = 0
        for starts, words, counts, found in sides:
            for n in range(starts[word], starts[word + 1]):
                if words[n] == word:
                    itself = counts[n]
                    continue
                k = of_word[words[n]]
                if before[k] == 0 and after[k] == 0:
                    beside[n_beside] = k
                    n_beside += 1
                found[k] += counts[n]
        n_before = before.sum()
        n_after = after.sum()
        # Without the word, gain[c] is what the likelihood gains when it comes to class c
        _move(classes, own, -1, before, after, itself, n_before, n_after, beside[:n_beside])
        for c in range(n_classes):
            gain[c] = -(_f(first[c] + n_after + itself, logs) - _f(first[c], logs))
            gain[c] -= _f(second[c] + n_before + itself, logs) - _f(second[c], logs)
            # Neighbours in the class itself and the word beside itself are all counts of pairs[c, c]
            inner = before[c] + after[c] + itself
            if inner:
                gain[c] += _f(pairs[c, c] + inner, logs) - _f(pairs[c, c], logs)
        for n in range(n_beside):
            k = beside[n]
            for c in range(n_classes):
                if c != k:
                    if before[k]:
                        gain[c] += _f(pairs[k, c] + before[k], logs) - _f(pairs[k, c], logs)
                    if after[k]:
                        gain[c] += _f(pairs[c, k] + after[k], logs) - _f(pairs[c, k], logs)
        if len(letters.scores):
            for n in range(letters.starts[word], letters.starts[word + 1]):
                for c in range(n_classes):
                    gain[c] += weight * letters.scores[letters.pairs[n], c]
        best = own
        for c in range(n_classes):
            # More than rounding, so that equal classes do not alternate
            if gain[c] > gain[best] + 1e-9 * max(1.0, abs(gain[best])):
                best = c
        _move(classes, best, 1, before, after, itself, n_before, n_after, beside[:n_beside])
        if best != own:
            of_word[word] = best
            n_moved += 1
        for n in range(n_beside):
            before[beside[n]] = after[beside[n]] = 0
    return n_moved


@kernel
def _move(classes, to, sign, before, after, itself, n_before, n_after, beside):
    """Add the pairs of a word to the counts of the class `to`, or, with the sign -1, subtract them. The sums of other classes do
    not change: their words have the word beside them whatever its class is."""
    for k in beside:
        classes.pairs[k, to] += sign * before[k]
        classes.pairs[to, k] += sign * after[k]
    classes.pairs[to, to] += sign * itself
    classes.first[to] += sign * (n_after + itself)
    classes.second[to] += sign * (n_before + itself)
