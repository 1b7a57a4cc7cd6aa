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

    words: NDArray[np.uint64]  # [W] hashes
    starts: NDArray[np.int64]  # [N + 1] where the words of each phrase start
    texts: list[str]  # [N] words, joined by blanks
    label_of: NDArray[np.int32]  # [N] number of the label
    n_labels: int


class SpelledSpans(NamedTuple):
    """M spans of tokens in the spelling of phrases."""

    words: NDArray[np.uint64]  # [P] hashes of the words of all tokens
    begin: NDArray[np.int64]  # [M] position of the span's first word
    length: NDArray[np.int32]  # [M]
    texts: list[str]  # [M] words, joined by blanks


# Similarities of spans to phrases: span int64[P], label int[P], Jaccard similarity of the sets of words float[P], and
# Jaro-Winkler similarity of the texts float[P], 0 below LEAST_JARO_WINKLER
Similarities = tuple[NDArray[np.int64], NDArray[np.signedinteger], Floats, Floats]


class PhraseIndex:
    """Phrases under an optional label, to look spans up in.

    entries: Words and label of each phrase.
    spell: Returns the spelling of a word by which words are compared, such as lower case.
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
        number_of: dict[str, int] = {}  # by label
        hash_of: dict[str, int] = {}  # by word
        hashes = array("Q")
        widths = array("l")
        labels = array("i")
        for words, label in entries:
            if not words:
                continue
            spelled = [spell(word) for word in words]
            for word in spelled:
                if word not in hash_of:
                    # Unlike `hash_string`, right for words that are names of spaCy's symbols
                    hash_of[word] = get_string_id(word)
                hashes.append(hash_of[word])
            widths.append(len(spelled))
            labels.append(number_of.setdefault(label, len(number_of)))
            texts.append(" ".join(spelled))
        self.labels = list(number_of)
        starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        label_of = np.array(labels, dtype=np.int32)
        self._phrases = Phrases(np.array(hashes, dtype=np.uint64), starts, texts, label_of, len(self.labels))
        keys = hash_whole(self._phrases.words, starts[:-1], np.diff(starts).astype(np.int32))
        distinct, row_of = np.unique(keys, return_inverse=True)
        self._table = HashTable(distinct)
        # Row r of the table has the labels _row_labels[_row_starts[r] : _row_starts[r + 1]], each once
        rows, row_labels = np.unique(np.stack([row_of, label_of]), axis=1)
        self._row_starts = np.searchsorted(rows, np.arange(len(distinct) + 1))
        self._row_labels = row_labels.astype(np.int32)
        search = _Scan if scan else _Candidates
        self._search: Callable[[SpelledSpans], Similarities] = search(self._phrases)

    def exact(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Find the spans that are phrases.

        keys (uint64[N]): Hashes of the spelled words of spans.
        RETURNS (int64[M], int32[M]): The spans, each once for each label of its phrase, and these labels.
        """
        rows = self._table.rows(keys)
        [spans] = np.nonzero(rows >= 0)
        first = self._row_starts[rows[spans]]
        behind = self._row_starts[rows[spans] + 1]
        return np.repeat(spans, behind - first), self._row_labels[ranges(first, behind)]

    def near(self, spans: SpelledSpans) -> Similarities:
        """Similarities of spans to the nearest phrases, with the labels of these phrases."""
        if not self._phrases.texts or not spans.texts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        return self._search(spans)


class _Scan:
    """Compares spans with all phrases. Only labels of the nearest phrases count: with the best phrase of every label, usaddress
    loses 0.7 F1 (six resamples, cora_refs the same)."""

    def __init__(self, phrases: Phrases):
        distinct, row_of = np.unique(phrases.words, return_inverse=True)
        self._words = HashTable(distinct)
        # By word: the phrases that contain it, each once
        phrase_of = np.repeat(np.arange(len(phrases.texts)), np.diff(phrases.starts))
        rows, containing = np.unique(np.stack([row_of, phrase_of]), axis=1)
        self._postings = Postings(
            starts=np.searchsorted(rows, np.arange(len(distinct) + 1)),
            texts=containing.astype(np.int64),
            sizes=np.bincount(containing, minlength=len(phrases.texts)).astype(np.int64),
            label_of=phrases.label_of,
        )
        # Sorted by label, for `_near`
        order = np.argsort(phrases.label_of, kind="stable")
        self._texts = [phrases.texts[n] for n in order.tolist()]
        self._label_starts = np.searchsorted(phrases.label_of[order], np.arange(phrases.n_labels))

    def __call__(self, spans: SpelledSpans) -> Similarities:
        rows = self._words.rows(spans.words)
        at_once = max(1, PAIRS_AT_ONCE // len(self._texts))
        blocks = [self._near(spans, rows, slice(n, n + at_once)) for n in range(0, len(spans.texts), at_once)]
        span, label, jaccard_similarity, jaro_winkler = map(np.concatenate, zip(*blocks))
        return span, label, jaccard_similarity, jaro_winkler

    def _near(self, spans: SpelledSpans, rows: NDArray[np.int32], block: slice) -> Similarities:
        """The similarities of a block of the spans to the nearest phrases. rows (int32[P]): Rows of all words in `_words`."""
        from rapidfuzz.distance import JaroWinkler
        from rapidfuzz.process import cdist

        # [N, phrases]
        pairs = cdist(
            spans.texts[block],
            self._texts,
            scorer=JaroWinkler.normalized_similarity,
            score_cutoff=LEAST_JARO_WINKLER,
            dtype=np.float32,
        )
        # Phrases are sorted by label: the largest similarity to a phrase of each label
        jaro_winkler = np.maximum.reduceat(pairs, self._label_starts, axis=1)  # [N, L]
        jaccard_similarity = np.zeros_like(jaro_winkler)
        best_jaccard(spans.words, rows, spans.begin[block], spans.length[block], self._postings, jaccard_similarity)
        # Only the labels with the largest similarity count
        for similarity in (jaccard_similarity, jaro_winkler):
            similarity[similarity < similarity.max(axis=1, keepdims=True)] = 0.0
        span, label = np.nonzero((jaccard_similarity > 0) | (jaro_winkler > 0))
        return span + block.start, label, jaccard_similarity[span, label], jaro_winkler[span, label]


class _Candidates:
    """Compares a span with a few phrases, those that share most of its rarest character n-grams, and takes the largest
    similarities for each label."""

    def __init__(self, phrases: Phrases):
        self._phrases = phrases
        # Among many phrases only long n-grams are rare
        self._n = 3 if len(phrases.texts) < MANY else 5
        self._grams: tuple = ()  # what `index_grams` returns, made at first use

    def __call__(self, spans: SpelledSpans) -> Similarities:
        from rapidfuzz.distance import JaroWinkler
        from rapidfuzz.process import cpdist

        phrases = self._phrases
        if not self._grams:
            # About eight n-grams for each phrase, in a table of at most four million
            n_buckets = 1 << max(10, min(22, (8 * len(phrases.texts)).bit_length()))
            self._grams = index_grams(*_characters(phrases.texts), self._n, n_buckets)
        candidates = np.empty((len(spans.texts), CANDIDATES), dtype=np.int32)
        characters, starts = _characters(spans.texts)
        find_candidates(characters, starts, self._n, *self._grams, PROBES, MOST_POSTINGS, candidates)
        # Pairs of a span and one of its candidates
        span, rank = np.nonzero(candidates >= 0)
        phrase = candidates[span, rank]
        similarities = np.empty(len(span))
        jaccard(spans.words, spans.begin[span], spans.length[span], phrases.words, phrases.starts, phrase, similarities)
        jaro_winkler = cpdist(
            [spans.texts[s] for s in span.tolist()],
            [phrases.texts[p] for p in phrase.tolist()],
            scorer=JaroWinkler.normalized_similarity,
            score_cutoff=LEAST_JARO_WINKLER,
            dtype=np.float64,
        )
        # The largest similarities of each span and label
        groups, group_of = np.unique(span * phrases.n_labels + phrases.label_of[phrase], return_inverse=True)
        best_jaccards = np.zeros(len(groups))
        np.maximum.at(best_jaccards, group_of, similarities)
        best_jaro_winkler = np.zeros(len(groups))
        np.maximum.at(best_jaro_winkler, group_of, jaro_winkler)
        label = (groups % phrases.n_labels).astype(np.int32)
        return groups // phrases.n_labels, label, best_jaccards, best_jaro_winkler


def _characters(texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of texts with a blank on either side, laid end to end: uint32[C], int64[N + 1]."""
    widths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) + 2
    joined = "".join(f" {text} " for text in texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).copy()
    return characters, np.append(0, np.cumsum(widths)).astype(np.int64)
