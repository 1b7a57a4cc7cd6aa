"""Clusters of words by exchange: words that have the same neighbours, and if it is asked for similar letters, are in one class
(Clark 2003, "Combining Distributional and Morphological Information for Part of Speech Induction").

The most frequent words begin as classes of their own, all others together in one. Then each word moves to the class that raises
the log-likelihood most, again and again, until few words move. Clark's model of letters is a hidden Markov model for each class;
this one has pairs of letters, estimated anew before each pass.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..features.clusters import WordClusters
from ..kernels.clark import Classes, Letters, exchange_words
from .brown import CountedText

PASSES = 20
_SETTLED = 0.001  # share of the words: if fewer words move, the work ends
_LETTERS = 64  # number of letters that are told apart: the most frequent ones, all others as one, and the ends of words
_LOGS = 1 << 16  # numbers whose n log n is looked up


def cluster(
    text: CountedText,
    n: int,
    source: str,
    *,
    letters: float = 0.0,
    on_pass: Callable[[int], None] = lambda passes: None,
) -> WordClusters:
    """Cluster words by exchange. Nothing is drawn: the same texts give the same clusters.

    n (int): Number of clusters; some may end without words. source (str): Where the words come from, for messages.
    letters (float): Weight of the letters of a word beside its neighbours; 0 to leave them out of account.
    RAISES (ValueError): CRF948 if there are fewer words than clusters.
    """
    n_words = len(text.words)
    if n > n_words:
        raise ValueError(Errors.CRF948.format(what=f"{n} clusters", source=source, reason=f"it has {n_words} words"))
    # Words are sorted by frequency: the n - 1 most frequent ones begin alone
    classes = classes_of(text, np.minimum(np.arange(n_words), n - 1), n)
    small = np.arange(_LOGS, dtype=np.float64)
    logs = small * np.log(np.maximum(small, 1.0))
    starts, pairs = letter_pairs(text.words)
    for passes in range(PASSES):
        scores = letter_scores(starts, pairs, classes) if letters else np.zeros((0, n))
        # One pass over all words; each move changes the counts that the next word meets
        moved = exchange_words(text.bigrams, classes, Letters(starts, pairs, scores), letters, logs)
        on_pass(passes + 1)
        if moved <= _SETTLED * n_words:
            break
    return WordClusters.of_words(
        ((word, f"c{c}") for word, c in zip(text.words, classes.of_word.tolist())), text.digits
    )


def classes_of(text: CountedText, class_of_word: NDArray[np.int64], n: int) -> Classes:
    """Put words into n classes, and count the pairs of classes."""
    bigrams = text.bigrams
    left = np.repeat(class_of_word, np.diff(bigrams.next_starts))
    right = class_of_word[bigrams.next_words]
    pairs = np.zeros((n, n), dtype=np.int64)
    np.add.at(pairs, (left, right), bigrams.next_counts)
    return Classes(class_of_word.astype(np.int32), pairs, pairs.sum(axis=1), pairs.sum(axis=0))


def letter_pairs(words: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The pairs of neighbouring letters of each word. Both ends of a word count as letters.

    RETURNS (int64[V + 1], int32[N]): The first pair of each word, and the pairs: first letter · _LETTERS + second letter.
    """
    characters, counts = np.unique(np.array(list("".join(words)) or [""]), return_counts=True)
    frequent = characters[np.argsort(-counts, kind="stable")][: _LETTERS - 2].tolist()
    # 0: the ends of a word, 1: all rarer letters
    number_of = {character: number for number, character in enumerate(frequent, start=2)}
    pairs = []
    starts = [0]
    for word in words:
        numbers = [number_of.get(character, 1) for character in word]
        pairs += [first * _LETTERS + second for first, second in pairwise([0, *numbers, 0])]
        starts.append(len(pairs))
    return np.array(starts, dtype=np.int64), np.array(pairs, dtype=np.int32)


def letter_scores(starts: NDArray[np.int64], pairs: NDArray[np.int32], classes: Classes) -> NDArray[np.float64]:
    """Log-probabilities of a letter behind another one in each class, with one added to each count: float64[P, C]."""
    # p(b | a, class) = (count(a b in class) + 1) / (count(a in class) + _LETTERS)
    counts = np.ones((_LETTERS * _LETTERS, len(classes.first)))
    np.add.at(counts, (pairs, np.repeat(classes.of_word, np.diff(starts))), 1.0)
    counts = counts.reshape(_LETTERS, _LETTERS, -1)
    return np.log(counts / counts.sum(axis=1, keepdims=True)).reshape(_LETTERS * _LETTERS, -1)
