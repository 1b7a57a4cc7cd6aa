"""Brown clusters of the words of raw texts: a cluster contains words with similar neighbours (Brown et al. 1992).

The algorithm adds the words in the order of their frequency, each as a new cluster. When there are more than n clusters, it
merges the two clusters whose merge loses least mutual information of neighbours (Liang 2005, section 2.4). Finally it merges
the n clusters into one; the tree of these merges gives the paths.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.strings import StringStore
from spacy.tokens import Doc

from ..errors import Errors
from ..features.clusters import WordClusters, with_zeros
from ..features.feature_index import CountingTable
from ..whole_files import FileFormat, seal, unpacked, unpacking, unseal
from .kernels.brown import Bigrams, Window, join_classes, place_words, slots_of

_LOGS = 1 << 16  # size of the table of n log n
_STEP = 64  # words between two calls of `on_step`
CHECKPOINT = FileFormat("a checkpoint", b"spacy_crf brown\n", 1)


class CountedText(NamedTuple):
    """The frequent words of texts, and the counts of their bigrams."""

    words: list[str]  # [V] the most frequent first
    bigrams: Bigrams
    digits: bool = False  # whether 0 replaces every digit


class WordCounter:
    """Collects the words of texts."""

    def __init__(self, strings: StringStore):
        self.n_words = 0
        self._strings = strings
        self._table = CountingTable()
        self._tokens: list[NDArray[np.int32]] = []  # numbers of the words of each text, then -1

    def add(self, doc: Doc) -> None:
        keys: Any = doc.to_array(ORTH)  # uint64, not the floats of its stub
        self._table.add(keys)
        self._tokens.append(np.append(self._table.rows(keys), np.int32(-1)))
        self.n_words += len(keys)

    def text(self, min_count: int, *, lower: bool = False, digits: bool = False) -> CountedText:
        """Return the words that occur at least `min_count` times; words that differ only in case (`lower`) or in digits count as
        one word. White space is skipped; a rarer word separates its neighbours."""
        spelled, place = [], {}
        for key in self._table.keys.tolist():
            word = self._strings[key]
            word = word.lower() if lower else word
            word = with_zeros(word) if digits else word
            spelled.append(-2 if word.isspace() else place.setdefault(word, len(place)))
        tokens = np.array([*spelled, -1], dtype=np.int32)[np.concatenate([np.zeros(0, np.int32), *self._tokens])]
        tokens = tokens[tokens != -2]
        counts = np.bincount(tokens[tokens >= 0], minlength=len(place))
        words = list(place)
        order = [n for n in sorted(range(len(words)), key=lambda n: (-counts[n], words[n])) if counts[n] >= min_count]
        rank = np.full(len(words) + 1, -1, dtype=np.int64)  # the last entry serves the ends of texts
        rank[order] = np.arange(len(order))
        return CountedText([words[n] for n in order], _bigrams(rank[tokens], len(order)), digits)


def _bigrams(tokens: NDArray[np.int64], n_words: int) -> Bigrams:
    """Count pairs of neighbours. tokens (int64[T]): Ranks of the words, -1 for rare words and ends of texts."""
    left, right = tokens[:-1], tokens[1:]
    beside = (left >= 0) & (right >= 0)
    pairs, counts = np.unique(left[beside] * max(1, n_words) + right[beside], return_counts=True)
    left, right = np.divmod(pairs, max(1, n_words))
    by_right = np.argsort(right, kind="stable")
    bounds = np.arange(n_words + 1)
    return Bigrams(
        np.searchsorted(left, bounds),
        right.astype(np.int32),
        counts.astype(np.int32),
        np.searchsorted(right[by_right], bounds),
        left[by_right].astype(np.int32),
        counts[by_right].astype(np.int32),
    )


class Brown:
    """A Brown clustering that can be stopped, saved and continued.

    n (int): Number of clusters. source (str): Name of the source of the words, for messages.
    RAISES (ValueError): CRF948 if there are fewer words than clusters.
    """

    def __init__(self, text: CountedText, n: int, source: str):
        if n > len(text.words):
            reason = f"it has {len(text.words)} words"
            raise ValueError(Errors.CRF948.format(what=f"{n} clusters", source=source, reason=reason))
        self.text = text
        self.n = n
        self.done = 0  # number of words that are in clusters
        size, n_words = n + 1, len(text.words)
        self._window = Window(
            np.zeros((size, size), dtype=np.int32),
            np.zeros((size, size), dtype=np.int32),
            np.zeros(size, dtype=np.int64),
            np.zeros(size, dtype=np.int64),
            np.full((size, size), np.inf),
            np.zeros(size, dtype=np.bool_),
            np.zeros(n_words, dtype=np.int32),
            np.zeros(n_words, dtype=np.int32),
        )
        small = np.arange(_LOGS, dtype=np.float64)
        self._logs = small * np.log(np.maximum(small, 1.0))

    def run(self, on_step: Callable[["Brown"], None] = lambda brown: None) -> WordClusters:
        """Cluster the words that are in no cluster yet.

        on_step (Callable[[Brown], None]): Called after every few words; it may save the state, to continue later.
        RETURNS (WordClusters): All words with their paths.
        """
        n_words = len(self.text.words)
        while self.done < n_words:
            end = min(self.done + _STEP, n_words)
            place_words(self.done, end, self.text.bigrams, self._window, self._logs)
            self.done = end
            on_step(self)
        slots = slots_of(self._window)
        path_of = self._paths()
        words = ((word, path_of[slot]) for word, slot in zip(self.text.words, slots.tolist()))
        return WordClusters.of_words(words, self.text.digits)

    def _paths(self) -> dict[int, str]:
        """Compute the path of the class in each slot. The last merge decides the first bit."""
        window = Window(*(array.copy() for array in self._window))
        merges = join_classes(window, self._logs)
        paths = {int(window.is_used.argmax()): ""}
        for kept, merged in merges[::-1].tolist():
            path = paths[kept]
            paths[kept], paths[merged] = f"{path}0", f"{path}1"
        return paths

    def to_bytes(self, what: str) -> bytes:
        """Serialize the state. what (str): Description of the texts and settings, which `from_bytes` compares."""
        arrays = {name: _packed(array) for name, array in (*_named(self._window), *_named(self.text.bigrams))}
        content = {"what": what, "n": self.n, "done": self.done, "arrays": arrays}
        content |= {"words": self.text.words, "digits": self.text.digits}
        return seal(CHECKPOINT, srsly.msgpack_dumps(content))

    @classmethod
    def from_bytes(cls, data: bytes, what: str, source: str) -> "Brown | None":
        """Load a state that `to_bytes` saved.

        RETURNS (Brown): None if the state belongs to other texts or settings.
        RAISES (ValueError): CRF501, CRF502 or CRF508 for a damaged file.
        """
        with unpacking(data):
            content = unpacked(unseal(CHECKPOINT, data, source))
        if content["what"] != what:
            return None
        arrays = {name: _unpacked(*packed) for name, packed in content["arrays"].items()}
        bigrams = Bigrams(*(arrays[name] for name in Bigrams._fields))
        brown = cls(CountedText(content["words"], bigrams, content["digits"]), content["n"], source)
        brown._window = Window(*(arrays[name] for name in Window._fields))
        brown.done = content["done"]
        return brown


def _named(arrays: NamedTuple) -> Iterable[tuple[str, NDArray]]:
    return arrays._asdict().items()


def _packed(array: NDArray) -> tuple[str, list[int], bytes]:
    return array.dtype.str, list(array.shape), array.tobytes()


def _unpacked(dtype: str, shape: list[int], octets: bytes) -> NDArray[Any]:
    return np.frombuffer(octets, dtype=dtype).reshape(shape).copy()
