"""Divide texts into folds for cross-validation. Texts that repeat one another, come from one document, or stand beside
each other in a file whose neighbours are alike, are held out together: a model that has seen one of them knows the others."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from spacy.attrs import IS_PUNCT, IS_SPACE, LOWER
from spacy.tokens import Doc

from .errors import counted
from .pipeline.corpora import origin_of
from .types import Ints

_RUN = 8  # words in a row that two texts hardly share by chance
_DRAWS = 99  # permutations: a statistic beyond all of them is significant at 1 %
_MOST_TEXTS = 5_000  # of which neighbours are compared
_LAGS = (1, 2, 4, 8, 16, 32, 64)  # distances of neighbours, in texts
_COMMON = 0.05  # words in more than this share of the texts tell nothing about neighbours
_FILE = re.compile(r", (line|text|document|item|row)s? \d.*$")  # behind the name of the file, in the place of a text


class Folds(NamedTuple):
    """Texts divided into folds."""

    fold_of: Ints  # [N] the fold that holds out each text
    group_of: Ints  # [N] texts of a group are held out together
    reason: str  # what made groups, in words; empty if each text is a group


def draw_folds(docs: Sequence[Doc], folds: int, seed: int = 0) -> Folds:
    """Draw folds of about as many texts each.

    docs (Sequence[Doc]): The annotated texts, in the order of the files.
    folds (int): Number of folds.
    seed (int): Random seed.
    """
    n = len(docs)
    most = n // folds  # texts of a group, so that every fold gets some
    joined = _Groups(n)
    reasons = []
    of_files = _file_groups(docs)
    if _are_many(of_files, folds, most):
        joined.join(of_files.values())
        reasons.append(f"texts of each of {counted(len(of_files), 'document')}")
    else:
        size = min(_reach_of_neighbours(docs, seed), n // (2 * folds))
        if size > 1:
            joined.join(range(begin, min(begin + size, n)) for begin in range(0, n, size))
            reasons.append(f"{size} neighbours each (they share more rare words than by chance, p = 0.01)")
    group_of = joined.numbers()
    repeated = [texts for texts in _repeats(docs).values() if len(texts) > 1]
    joined.join(repeated)
    joined_of = joined.numbers()
    # Where repeated words link most texts to each other, such as forms, no division could respect them
    if repeated and np.bincount(joined_of).max() <= most:
        group_of = joined_of
        n_repeated = len(set(chain.from_iterable(repeated)))
        reasons.append(f"{counted(n_repeated, 'text')} that {_RUN} words in a row, or all words, repeat")
    return Folds(_dealt(group_of, folds, seed), group_of, "; ".join(reasons))


def _dealt(group_of: Ints, folds: int, seed: int) -> Ints:
    """Deal groups to folds at random, the largest first, each to the fold with the fewest texts: int64[N]."""
    sizes = np.bincount(group_of)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    filled = np.zeros(folds, dtype=np.int64)
    fold_of_group = np.empty(len(sizes), dtype=np.int64)
    for group in order:
        fold = int(filled.argmin())
        fold_of_group[group] = fold
        filled[fold] += sizes[group]
    return fold_of_group[group_of]


class _Groups:
    """Disjoint sets of N texts (union-find, Tarjan 1975)."""

    def __init__(self, n: int):
        self._parent = list(range(n))

    def _root(self, text: int) -> int:
        parent = self._parent
        while parent[text] != text:
            parent[text] = parent[parent[text]]  # halves the path for the next search
            text = parent[text]
        return text

    def join(self, sets: Iterable[Iterable[int]]) -> None:
        """Put the texts of each set into one group."""
        for members in sets:
            first, *others = map(self._root, members)
            for other in others:
                self._parent[self._root(other)] = self._root(first)

    def numbers(self) -> Ints:
        """The number of each text's group: int64[N]."""
        roots = [self._root(text) for text in range(len(self._parent))]
        return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def _file_groups(docs: Sequence[Doc]) -> dict[Hashable, list[int]]:
    """The texts of each group that the annotation names (`doc._.crf_group`), or else of each file."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for n, doc in enumerate(docs):
        name = doc._.crf_group if doc.has_extension("crf_group") else None
        if name is None:
            name = _FILE.sub("", str(origin_of(doc).get("place", "")))
        groups[name].append(n)
    return groups


def _are_many(groups: dict[Hashable, list[int]], folds: int, most: int) -> bool:
    """Whether groups are enough to be divided into folds: two files of a corpus are not documents of it."""
    sizes = [len(members) for members in groups.values()]
    return len(groups) >= 2 * folds and max(sizes) <= most and max(sizes) > 1


def _repeats(docs: Sequence[Doc]) -> dict[Hashable, list[int]]:
    """The texts that contain each run of `_RUN` words, and the texts with the same words, in lower case and with 0 for digits;
    runs of many texts, such as headings, do not count."""
    texts_of_run: dict[Hashable, list[int]] = defaultdict(list)
    texts_of_words: dict[Hashable, list[int]] = defaultdict(list)
    for n, doc in enumerate(docs):
        columns = doc.to_array([LOWER, IS_PUNCT, IS_SPACE]).reshape(-1, 3)
        words = columns[(columns[:, 1:] == 0).all(axis=1), 0]
        for run in {words[begin : begin + _RUN].tobytes() for begin in range(len(words) - _RUN + 1)}:
            texts_of_run[run].append(n)
        texts_of_words["".join(re.sub(r"\d", "0", doc.text.lower()).split())].append(n)
    most = max(2, round(_COMMON * len(docs)))
    few = {run: texts for run, texts in texts_of_run.items() if len(texts) <= most}
    return {**texts_of_words, **few}


def _reach_of_neighbours(docs: Sequence[Doc], seed: int) -> int:
    """The distance, in texts, from which on neighbours are no more alike than texts in a random order; 1 if even the next text
    is not. Texts are alike at a distance if more pairs (text, word) have the word in the text that far behind too than in any of
    `_DRAWS` random orders.
    """
    words, places = _rare_words(docs[:_MOST_TEXTS])
    n = min(len(docs), _MOST_TEXTS)
    # At larger distances too few pairs of texts are left to compare
    lags = [lag for lag in _LAGS if lag <= n // 8]
    observed = _shared(words, places, n, lags)
    generator = np.random.default_rng(seed)
    most_by_chance = np.zeros(len(lags), dtype=np.int64)
    for _ in range(_DRAWS if len(words) and lags else 0):
        by_chance = _shared(words, generator.permutation(n)[places], n, lags)
        most_by_chance = np.maximum(most_by_chance, by_chance)
    reach = 1
    for lag, count, most in zip(lags, observed, most_by_chance):
        if count <= most:
            break
        reach = 2 * lag  # the next distance in `_LAGS`
    return reach


def _rare_words(docs: Sequence[Doc]) -> tuple[Ints, Ints]:
    """Words that at least two and few texts have: int64[P] number of the word, int64[P] number of the text."""
    words_of = [{token.lower for token in doc if token.is_alpha} for doc in docs]
    n_texts = Counter(word for words in words_of for word in words)
    most = max(3, round(_COMMON * len(docs)))
    number = {word: n for n, word in enumerate(n_texts) if 2 <= n_texts[word] <= most}
    pairs = []
    for n, words in enumerate(words_of):
        pairs += [(number[word], n) for word in words if word in number]
    found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _shared(words: Ints, places: Ints, n: int, lags: Sequence[int]) -> Ints:
    """For each lag, how many pairs (word, place) have the pair (word, place + lag): int64[lags]."""
    width = n + max(lags, default=0)  # places of different words are further apart than any lag
    keys = words * width + places
    return np.array([np.isin(keys + lag, keys).sum() for lag in lags], dtype=np.int64)
