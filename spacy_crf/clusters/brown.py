"""Brown clusters of the words of raw texts: a cluster contains words with similar neighbours (Brown et al. 1992).

The algorithm adds the words in the order of their frequency, each as a new cluster. When there are more than n clusters, it
merges the two clusters whose merge loses least mutual information of neighbours (Liang 2005, section 2.4). Finally it merges
the n clusters into one; the tree of these merges gives the paths.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.strings import StringStore
from spacy.tokens import Doc

from ..errors import Errors
from ..features.clusters import WordClusters, with_zeros
from ..features.feature_index import CountingTable
from ..kernels.brown import Bigrams, Window, join_classes, place_words, slots_of
from ..types import Settings
from ..whole_files import FileFormat, seal, unpacked, unpacking, unseal

_LOGS = 1 << 16  # size of the table of n log n
_STEP = 64  # words between two calls of `on_step`
CHECKPOINT = FileFormat("a checkpoint", b"spacy_crf brown\n", 2)


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
        # Numbers of the words of each text, then -1
        self._tokens: list[NDArray[np.int32]] = []

    def add(self, doc: Doc) -> None:
        """Add the words of a text."""
        keys = doc.to_array(ORTH).astype(np.uint64, copy=False)
        self._table.add(keys)
        self._tokens.append(np.append(self._table.rows(keys), np.int32(-1)))
        self.n_words += len(keys)

    def text(self, min_count: int, *, lower: bool = False, digits: bool = False) -> CountedText:
        """Return the words that occur at least `min_count` times; words that differ only in case (`lower`) or in digits count as
        one word. White space is skipped; a rarer word separates its neighbours."""
        # For each row of the table the number of its word, -2 for white space; several rows may be one word
        number_of_row = []
        number_of_word = {}
        for key in self._table.keys.tolist():
            word = self._strings[key]
            word = word.lower() if lower else word
            word = with_zeros(word) if digits else word
            number_of_row.append(-2 if word.isspace() else number_of_word.setdefault(word, len(number_of_word)))
        rows = np.concatenate([np.zeros(0, np.int32), *self._tokens])
        # The last entry is for -1, the ends of texts
        tokens = np.array([*number_of_row, -1], dtype=np.int32)[rows]
        tokens = tokens[tokens != -2]
        # Sort the frequent words; rarer ones get the rank -1, as do the ends of texts
        counts = np.bincount(tokens[tokens >= 0], minlength=len(number_of_word))
        words = list(number_of_word)
        frequent = [n for n in range(len(words)) if counts[n] >= min_count]
        frequent.sort(key=lambda n: (-counts[n], words[n]))
        rank = np.full(len(words) + 1, -1, dtype=np.int64)
        rank[frequent] = np.arange(len(frequent))
        return CountedText([words[n] for n in frequent], _bigrams(rank[tokens], len(frequent)), digits)


def _bigrams(tokens: NDArray[np.int64], n_words: int) -> Bigrams:
    """Count pairs of neighbours. tokens (int64[T]): Ranks of the words, -1 for rare words and ends of texts."""
    left = tokens[:-1]
    right = tokens[1:]
    are_words = (left >= 0) & (right >= 0)
    # A pair of ranks is counted as one number, left · n_words + right
    pairs, counts = np.unique(left[are_words] * max(1, n_words) + right[are_words], return_counts=True)
    left, right = np.divmod(pairs, max(1, n_words))
    return _sorted_bigrams(left, right, counts, n_words)


def _sorted_bigrams(left: NDArray, right: NDArray, counts: NDArray, n_words: int) -> Bigrams:
    """Index the counts (int[P]) of pairs of words, `left` (int[P], sorted) and `right` (int[P]), by either word."""
    by_right = np.argsort(right, kind="stable")
    ranks = np.arange(n_words + 1)
    return Bigrams(
        next_starts=np.searchsorted(left, ranks),
        next_words=right.astype(np.int32),
        next_counts=counts.astype(np.int32),
        previous_starts=np.searchsorted(right[by_right], ranks),
        previous_words=left[by_right].astype(np.int32),
        previous_counts=counts[by_right].astype(np.int32),
    )


class Brown:
    """A Brown clustering that can be stopped, saved and continued.

    n (int): Number of clusters. source (str): Name of the source of the words, for messages.
    RAISES (ValueError): CRF948 if there are fewer words than clusters.
    """

    def __init__(self, text: CountedText, n: int, source: str):
        if n > len(text.words):
            raise ValueError(
                Errors.CRF948.format(what=f"{n} clusters", source=source, reason=f"it has {len(text.words)} words")
            )
        self.text = text
        self.n = n
        self.done = 0  # number of words that are in clusters
        size = n + 1
        n_words = len(text.words)
        self.window = Window(
            after=np.zeros((size, size), dtype=np.int32),
            before=np.zeros((size, size), dtype=np.int32),
            first=np.zeros(size, dtype=np.int64),
            second=np.zeros(size, dtype=np.int64),
            losses=np.full((size, size), np.inf),
            is_used=np.zeros(size, dtype=np.bool_),
            parent=np.zeros(n_words, dtype=np.int32),
            slot=np.zeros(n_words, dtype=np.int32),
        )
        small = np.arange(_LOGS, dtype=np.float64)
        self.logs = small * np.log(np.maximum(small, 1.0))

    def run(self, on_step: Callable[["Brown"], None] = lambda brown: None) -> WordClusters:
        """Cluster the words that are in no cluster yet.

        on_step (Callable[[Brown], None]): Called after every few words; it may save the state, to continue later.
        RETURNS (WordClusters): All words with their paths.
        """
        n_words = len(self.text.words)
        while self.done < n_words:
            end = min(self.done + _STEP, n_words)
            place_words(self.done, end, self.text.bigrams, self.window, self.logs)
            self.done = end
            on_step(self)
        slots = slots_of(self.window)
        path_of = self._paths()
        words = ((word, path_of[slot]) for word, slot in zip(self.text.words, slots.tolist()))
        return WordClusters.of_words(words, self.text.digits)

    def _paths(self) -> dict[int, str]:
        """Compute the path of the class in each slot. The last merge decides the first bit."""
        window = Window(*(array.copy() for array in self.window))
        merges = join_classes(window, self.logs)
        paths = {int(window.is_used.argmax()): ""}
        for kept, merged in merges[::-1].tolist():
            path = paths[kept]
            paths[kept] = f"{path}0"
            paths[merged] = f"{path}1"
        return paths

    def to_bytes(self, what: str) -> bytes:
        """Serialize the state. what (str): Description of the texts and settings, which `from_bytes` compares."""
        bigrams = self.text.bigrams
        slots = slots_of(self.window)[: self.done]
        saved = (bigrams.next_starts, bigrams.next_words, bigrams.next_counts, slots, self.window.losses)
        arrays = {name: _packed(array, dtype) for (name, dtype), array in zip(_SAVED.items(), saved)}
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
            content = unseal(CHECKPOINT, data, source)
            try:
                content = unpacked(content)
                if content["what"] != what:
                    return None
                arrays: dict[str, NDArray] = {}
                for name, dtype in _SAVED.items():
                    form, shape, octets = content["arrays"][name]
                    arrays[name] = _unpacked(form, shape, octets, dtype)
                return cls._restored(content, Saved(**arrays), source)
            except Exception as error:
                # Msgpack raises many kinds, and fields may be missing
                raise ValueError(Errors.CRF508.format(source=source, reason=str(error).rstrip("."))) from error

    @classmethod
    def _restored(cls, content: Settings, saved: "Saved", source: str) -> "Brown":
        """The clustering with these arrays. Kernels index by them: all other arrays are computed from them anew.

        RAISES (ValueError): For arrays that no clustering has.
        """
        words = content["words"]
        n = content["n"]
        done = content["done"]
        n_words = len(words)
        size = n + 1
        starts, right, counts, slots, losses = saved
        _expect(all(array.ndim == 1 for array in saved[:4]), "shapes")
        _expect(all(isinstance(word, str) for word in words) and isinstance(content["digits"], bool), "words")
        _expect(type(n) is int and 0 < n <= n_words, "number of clusters")
        _expect(type(done) is int and 0 <= done <= n_words, "number of words in clusters")
        _expect(len(starts) == n_words + 1 and starts[0] == 0 and bool((np.diff(starts) >= 0).all()), "starts")
        _expect(len(right) == len(counts) == starts[-1], "pairs")
        _expect(0 <= right.min(initial=0) <= right.max(initial=0) < n_words, "neighbours")
        _expect(counts.min(initial=1) > 0 and int(counts.sum(dtype=np.int64)) <= np.iinfo(np.int32).max, "counts")
        _expect(len(slots) == done and 0 <= slots.min(initial=0) <= slots.max(initial=0) < size, "slots")
        _expect(losses.shape == (size, size), "losses")
        # The arrays are whole: what follows from them is computed, not read
        left = np.repeat(np.arange(n_words), np.diff(starts))
        brown = cls(CountedText(words, _sorted_bigrams(left, right, counts, n_words), content["digits"]), n, source)
        window = brown.window
        window.is_used[slots] = True
        _expect(int(window.is_used.sum()) == min(done, n), "slots")
        rows, columns = np.tril_indices(size, -1)
        _expect(
            bool(np.isfinite(losses[rows, columns][window.is_used[rows] & window.is_used[columns]]).all()), "losses"
        )
        window.losses[:] = losses
        window.slot[:done] = slots
        # The parent of a word is the first word of its class
        _, first_words, class_of_word = np.unique(slots, return_index=True, return_inverse=True)
        window.parent[:done] = first_words[class_of_word]
        are_done = (left < done) & (right < done)
        left_slots = slots[left[are_done]]
        right_slots = slots[right[are_done]]
        # after[k, i]: how often a word of class k stands behind one of class i
        np.add.at(window.after, (right_slots, left_slots), counts[are_done])
        window.before[:] = window.after.T
        window.first[:] = window.after.sum(axis=0)
        window.second[:] = window.after.sum(axis=1)
        brown.done = done
        return brown


class Saved(NamedTuple):
    """The arrays of a checkpoint: counts of pairs of words, as in `Bigrams`, the classes of words, and the losses of merges."""

    next_starts: NDArray[np.int64]  # [V + 1]
    next_words: NDArray[np.int32]  # [P]
    next_counts: NDArray[np.int32]  # [P]
    slots: NDArray[np.int32]  # [done] of the class of each word
    losses: NDArray[np.float64]  # [M, M]


_SAVED = {"next_starts": "<i8", "next_words": "<i4", "next_counts": "<i4", "slots": "<i4", "losses": "<f8"}


def _packed(array: NDArray, dtype: str) -> tuple[str, list[int], bytes]:
    return dtype, list(array.shape), array.astype(dtype).tobytes()


def _unpacked(saved_dtype: str, shape: list[int], octets: bytes, dtype: str) -> NDArray:
    """Undo `_packed`. RAISES (ValueError): For another type than the expected `dtype`."""
    _expect(saved_dtype == dtype, "types of numbers")
    return np.frombuffer(octets, dtype=dtype).reshape(shape).copy()


def _expect(is_whole: bool, what: str) -> None:
    if not is_whole:
        raise ValueError(f"its {what} do not fit together")
