"""Lists of phrases for whole spans: whether a span is one of them, and how similar it is to the nearest.

Exact matches are found by the hash of their words. To find the nearest phrase, a span is compared with all phrases of a short
list, but in a long list only with the phrases that share most of the span's rarest character n-grams. That is fast, but often
misses the nearest (with the 3,279 parts of addresses of usaddress, the best Jaccard similarity is right for four spans of five).
"""

from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.strings import get_string_id

from ..arrays import ranges
from ..kernels.segment_features import Postings, best_jaccard, find_candidates, hash_whole, index_grams, jaccard
from ..types import Floats
from .feature_index import HashTable

MANY = 1 << 15  # phrases
PROBES = 8  # n-grams looked up per span
MOST_POSTINGS = 512  # phrases with one n-gram; more frequent n-grams are ignored
CANDIDATES = 8  # phrases of a long list that each span is compared with
LEAST_JARO_WINKLER = 0.75  # smaller similarities count as 0
PAIRS_AT_ONCE = 1 << 20  # pairs of a span and a phrase in one scan


class Phrases(NamedTuple):
    """N phrases: their words one after the other, their texts, and their labels."""

    words: NDArray[np.uint64]  # [W]
    starts: NDArray[np.int64]  # [N + 1]
    texts: list[str]  # [N]
    label_of: NDArray[np.int32]  # [N]
    n_labels: int


class SpelledSpans(NamedTuple):
    """Spans of tokens in the spelling of phrases."""

    words: NDArray[np.uint64]  # [P] words of tokens
    begin: NDArray[np.int64]  # [M]
    length: NDArray[np.int32]  # [M]
    texts: list[str]  # [M] words, joined by blanks


# Similarities of spans to phrases: span int64[P], label int[P], Jaccard similarity of the sets of words float[P], and
# Jaro-Winkler similarity of the texts float[P], 0 below LEAST_JARO_WINKLER
Similarities = tuple[NDArray[np.int64], NDArray[np.signedinteger], Floats, Floats]


class PhraseIndex:
    """Phrases under an optional label.

    entries: Words and label of each phrase.
    spell: Spelling of words for comparison.
    scan: Whether `near` compares a span with all phrases.
    """

    def __init__(
        self,
        entries: Iterable[tuple[tuple[str, ...], str]],
        spell: Callable[[str], str] = str.lower,
        *,
        scan: bool = True,
    ):
        texts: list[str] = []
        place: dict[str, int] = {}
        hash_of: dict[str, int] = {}
        hashes = array("Q")
        widths = array("l")
        labels = array("i")
        for words, label in entries:
            if not words:
                continue
            spelled = [spell(word) for word in words]
            for word in spelled:
                if word not in hash_of:
                    # Some words are spaCy's symbols
                    hash_of[word] = get_string_id(word)
                hashes.append(hash_of[word])
            widths.append(len(spelled))
            labels.append(place.setdefault(label, len(place)))
            texts.append(" ".join(spelled))
        self.labels = list(place)
        starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        label_of = np.array(labels, dtype=np.int32)
        self._phrases = Phrases(np.array(hashes, dtype=np.uint64), starts, texts, label_of, len(place))
        keys = hash_whole(self._phrases.words, starts[:-1], np.diff(starts).astype(np.int32))
        distinct, row = np.unique(keys, return_inverse=True)
        self._table = HashTable(distinct)
        row, label = np.unique(np.stack([row, label_of]), axis=1)
        self._key_starts = np.searchsorted(row, np.arange(len(distinct) + 1))
        self._key_labels = label.astype(np.int32)
        self._search: Callable[[SpelledSpans], Similarities] = (_Scan if scan else _Candidates)(self._phrases)

    def exact(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Spans that are phrases.

        keys (uint64[N]): Hashes of the spelled words of spans.
        RETURNS (int64[M], int32[M]): The spans, each once for each label of its phrase, and these labels.
        """
        rows = self._table.rows(keys)
        [found] = np.nonzero(rows >= 0)
        first = self._key_starts[rows[found]]
        behind = self._key_starts[rows[found] + 1]
        return np.repeat(found, behind - first), self._key_labels[ranges(first, behind)]

    def near(self, spans: SpelledSpans) -> Similarities:
        """Similarities of spans to the nearest phrases, with the labels of these phrases."""
        if not self._phrases.texts or not spans.texts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        return self._search(spans)


class _Scan:
    """Compares spans with all phrases. Only labels of the nearest phrases count: with the best phrase of every label, usaddress
    loses 0.7 F1 (six resamples, cora_refs the same)."""

    def __init__(self, phrases: Phrases):
        distinct, row = np.unique(phrases.words, return_inverse=True)
        self._words = HashTable(distinct)
        phrase = np.repeat(np.arange(len(phrases.texts)), np.diff(phrases.starts))
        row, phrase = np.unique(np.stack([row, phrase]), axis=1)
        self._postings = Postings(
            starts=np.searchsorted(row, np.arange(len(distinct) + 1)),
            texts=phrase.astype(np.int64),
            sizes=np.bincount(phrase, minlength=len(phrases.texts)).astype(np.int64),
            label_of=phrases.label_of,
        )
        order = np.argsort(phrases.label_of, kind="stable")
        # Sorted by label
        self._texts = [phrases.texts[n] for n in order.tolist()]
        self._label_starts = np.searchsorted(phrases.label_of[order], np.arange(phrases.n_labels))

    def __call__(self, spans: SpelledSpans) -> Similarities:
        rows = self._words.rows(spans.words)
        at_once = max(1, PAIRS_AT_ONCE // len(self._texts))
        found = [self._near(spans, rows, slice(n, n + at_once)) for n in range(0, len(spans.texts), at_once)]
        span, label, shared, alike = map(np.concatenate, zip(*found))
        return span, label, shared, alike

    def _near(self, spans: SpelledSpans, rows: NDArray[np.int32], some: slice) -> Similarities:
        from rapidfuzz.distance import JaroWinkler
        from rapidfuzz.process import cdist

        pairs = cdist(
            spans.texts[some],
            self._texts,
            scorer=JaroWinkler.normalized_similarity,
            score_cutoff=LEAST_JARO_WINKLER,
            dtype=np.float32,
        )
        # Phrases are sorted by label: the largest similarity to a phrase of each label
        alike = np.maximum.reduceat(pairs, self._label_starts, axis=1)  # [N, L]
        shared = np.zeros_like(alike)
        best_jaccard(spans.words, rows, spans.begin[some], spans.length[some], self._postings, shared)
        for similarity in (shared, alike):
            similarity[similarity < similarity.max(axis=1, keepdims=True)] = 0.0
        span, label = np.nonzero((shared > 0) | (alike > 0))
        return span + some.start, label, shared[span, label], alike[span, label]


class _Candidates:
    """Compares spans with the phrases that share most of the rarest character n-grams, and takes the best for each label."""

    def __init__(self, phrases: Phrases):
        self._phrases = phrases
        # Among many phrases only long n-grams are rare
        self._n = 3 if len(phrases.texts) < MANY else 5
        self._grams: tuple = ()

    def __call__(self, spans: SpelledSpans) -> Similarities:
        from rapidfuzz.distance import JaroWinkler
        from rapidfuzz.process import cpdist

        phrases = self._phrases
        if not self._grams:
            # About eight n-grams for each phrase, in a table of at most four million
            n_buckets = 1 << max(10, min(22, (8 * len(phrases.texts)).bit_length()))
            self._grams = index_grams(*_characters(phrases.texts), self._n, n_buckets)
        candidates = np.empty((len(spans.texts), CANDIDATES), dtype=np.int32)
        find_candidates(*_characters(spans.texts), self._n, *self._grams, PROBES, MOST_POSTINGS, candidates)
        # Each span with each of its candidates: the distances are computed pair by pair
        span, rank = np.nonzero(candidates >= 0)
        phrase = candidates[span, rank]
        shared = np.empty(len(span))
        jaccard(spans.words, spans.begin[span], spans.length[span], phrases.words, phrases.starts, phrase, shared)
        texts = [spans.texts[s] for s in span.tolist()]
        others = [phrases.texts[p] for p in phrase.tolist()]
        alike = cpdist(
            texts, others, scorer=JaroWinkler.normalized_similarity, score_cutoff=LEAST_JARO_WINKLER, dtype=np.float64
        )
        group, of_pair = np.unique(span * phrases.n_labels + phrases.label_of[phrase], return_inverse=True)
        best = np.zeros((2, len(group)))
        np.maximum.at(best[0], of_pair, shared)
        np.maximum.at(best[1], of_pair, alike)
        return group // phrases.n_labels, (group % phrases.n_labels).astype(np.int32), best[0], best[1]


def _characters(texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of texts with a blank on either side, laid end to end: uint32[C], int64[N + 1]."""
    widths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) + 2
    joined = "".join(f" {text} " for text in texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).copy()
    return characters, np.append(0, np.cumsum(widths)).astype(np.int64)
