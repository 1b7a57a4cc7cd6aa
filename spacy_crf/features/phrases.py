"""Lists of phrases for whole spans: is this span one of them, and how near is it to the nearest?

Neither question scans the list. Phrases are found by the hash of their words; near ones are looked for among those that
share the rarest n-grams of characters with the span, and compared with them alone.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.strings import get_string_id

from ..kernels.segment_features import find_candidates, hash_whole, index_grams, jaccard
from ..types import Floats
from .feature_index import HashTable

MANY = 1 << 15  # phrases
PROBES = 8  # n-grams looked up per span
MOST_POSTINGS = 512  # phrases behind one n-gram; more frequent ones say little
CANDIDATES = 8  # phrases compared with each span
LEAST_JARO_WINKLER = 0.75  # below, two strings have nothing to do with each other


class Similarities(NamedTuple):
    """Best similarities of queries to the phrases of each label that has a candidate."""

    query: NDArray[np.int64]  # [M]
    label: NDArray[np.int32]  # [M]
    jaccard: Floats  # [M] of the sets of words
    jaro_winkler: Floats  # [M] of the texts, 0 below LEAST_JARO_WINKLER


class PhraseIndex:
    """Phrases under an optional label.

    entries: Words and label of each phrase.
    spell: How words are spelled where they are compared.
    """

    def __init__(self, entries: Iterable[tuple[tuple[str, ...], str]], spell: Callable[[str], str] = str.lower):
        self._texts: list[str] = []
        place: dict[str, int] = {}
        hash_of: dict[str, int] = {}
        hashes, widths, labels = array("Q"), array("l"), array("i")
        for words, label in entries:
            if not words:
                continue
            spelled = [spell(word) for word in words]
            for word in spelled:
                if word not in hash_of:
                    hash_of[word] = get_string_id(word)  # some words are symbols of spaCy
                hashes.append(hash_of[word])
            widths.append(len(spelled))
            labels.append(place.setdefault(label, len(place)))
            self._texts.append(" ".join(spelled))
        self.labels = list(place)
        self._words = np.array(hashes, dtype=np.uint64)
        self._label_of = np.array(labels, dtype=np.int32)
        widths = np.array(widths, dtype=np.int64)
        self._word_starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        keys = hash_whole(self._words, self._word_starts[:-1], widths.astype(np.int32))
        distinct, row = np.unique(keys, return_inverse=True)
        self._table = HashTable(distinct)
        pairs = np.unique(np.stack([row, self._label_of]), axis=1)
        self._key_starts = np.append(0, np.cumsum(np.bincount(pairs[0], minlength=len(distinct)))).astype(np.int64)
        self._key_labels = pairs[1].astype(np.int32)
        # rare n-grams choose the candidates: of many phrases only long ones are rare
        self._n = 3 if len(self) < MANY else 5
        self._grams: tuple = ()

    def __len__(self) -> int:
        return len(self._label_of)

    def exact(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Which spans are phrases.

        keys (uint64[N]): Hashes of the spelled words of spans.
        RETURNS (int64[M], int32[M]): The spans, and the label of a phrase with these words, once for each label.
        """
        rows = self._table.rows(keys)
        [found] = np.nonzero(rows >= 0)
        counts = np.diff(self._key_starts)[rows[found]]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(found, counts), self._key_labels[
            np.repeat(self._key_starts[:-1][rows[found]], counts) + within
        ]

    def near(self, texts: list[str], words: NDArray[np.uint64], begin: NDArray, length: NDArray) -> Similarities:
        """How near spans are to the phrases of each label.

        texts (List[str]): The spans as phrases are spelled, words joined by blanks.
        words (uint64[W]): Hashes of the spelled words; span n is ``words[begin[n]:begin[n] + length[n]]``.
        """
        from rapidfuzz.distance import JaroWinkler
        from rapidfuzz.process import cpdist

        candidates = np.full((len(texts), CANDIDATES), -1, dtype=np.int32)
        if len(self) and texts:
            if not self._grams:
                self._grams = index_grams(*_characters(self._texts), self._n, _n_buckets(len(self)))
            find_candidates(*_characters(texts), self._n, *self._grams, PROBES, MOST_POSTINGS, candidates)
        query, rank = np.nonzero(candidates >= 0)
        phrase = candidates[query, rank]
        if not len(query):
            return Similarities(query, phrase, np.zeros(0), np.zeros(0))
        shared = np.empty(len(query))
        jaccard(words, begin[query], length[query], self._words, self._word_starts, phrase, shared)
        alike = cpdist(
            [texts[q] for q in query.tolist()],
            [self._texts[p] for p in phrase.tolist()],
            scorer=JaroWinkler.normalized_similarity,
            score_cutoff=LEAST_JARO_WINKLER,
            dtype=np.float64,
        )
        group, of_pair = np.unique(query * len(self.labels) + self._label_of[phrase], return_inverse=True)
        best = np.zeros((2, len(group)))
        np.maximum.at(best[0], of_pair, shared)
        np.maximum.at(best[1], of_pair, alike)
        return Similarities(group // len(self.labels), (group % len(self.labels)).astype(np.int32), *best)


def _n_buckets(n_phrases: int) -> int:
    return 1 << max(10, min(22, (8 * n_phrases).bit_length()))


def _characters(texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of texts with a blank on either side, laid end to end: uint32[C], int64[N + 1]."""
    widths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) + 2
    joined = "".join(f" {text} " for text in texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).copy()
    return characters, np.append(0, np.cumsum(widths)).astype(np.int64)
