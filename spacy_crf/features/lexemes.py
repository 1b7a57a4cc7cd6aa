"""Attributes of lexemes do not depend on the context of a word: they are read once per word, and kept in a bounded table."""

import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDS
from spacy.strings import get_string_id, hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.symbols import NAMES
from spacy.tokens import Doc
from spacy.vocab import Vocab

from ..arrays import grown
from ..errors import Errors, function_failed, shown
from ..kernels.hashing import ABSENT, hash_affixes, hash_ngrams
from .clusters import DIGIT, WIDTHS, Clusters, is_of_clusters, table_read, with_zeros
from .feature_index import HashTable
from .items import WordItems, WordSource, hash_item, is_item
from .word_vectors import WordVectors

_FLAGS = [
    *("is_alpha", "is_ascii", "is_digit", "is_lower", "is_punct", "is_space", "is_title", "is_upper", "is_stop"),
    *("is_bracket", "is_quote", "is_left_punct", "is_right_punct", "is_currency", "like_url", "like_num", "like_email"),
]

# String attributes of lexemes, read as hashes
_FIELDS = ["orth", "lower", "shape", "prefix", "suffix"]

# Number of characters, negative at the end of a word; shorter words have no such affix
_AFFIXES = {**{f"prefix{n}": n for n in range(1, 6)}, **{f"suffix{n}": -n for n in range(1, 11)}}

# Lengths of character n-grams of the word in lower case. A word has several n-grams, each in its own column
NGRAMS = {f"ngrams{n}": n for n in range(2, 6)}
_MOST_NGRAMS = 12


def columns_of(attribute: str) -> list[str]:
    """The columns of an attribute: several if a word can have several values, under names that templates cannot have."""
    return [f"{attribute} {n}" for n in range(_MOST_NGRAMS)] if attribute in NGRAMS else [attribute]


def is_of_lexeme(attribute: str) -> bool:
    """Whether the table has columns of an attribute."""
    return attribute in LEXEME_ATTRIBUTES or is_of_clusters(attribute) or attribute.startswith("text:")


@lru_cache(maxsize=1 << 16)
def _short_shape(shape: str) -> str:
    """The shape with each run of equal characters written once: ``McDonald-9`` is ``XxXx-d``."""
    return "".join(kind for kind, _ in groupby(shape))


# Numbers computed from a word
_COMPUTED: dict[str, Callable[[str], int]] = {
    "length": len,
    "capitals": lambda text: sum(map(str.isupper, text)),
    "has_hyphen": lambda text: int("-" in text),
    "has_digit": lambda text: int(any(map(str.isdigit, text))),
}

# Strings computed from other strings
_DERIVED = ["folded", "short_shape"]

# Flags that have no value where they are false, so that templates make no feature at such words; by name
_IF = {f"if:{name}": name for name in (*_FLAGS, "has_hyphen", "has_digit")}

_READ = attrgetter("flags", *_FIELDS)

LEXEME_ATTRIBUTES = ["bias", *_FIELDS, *_FLAGS, *_AFFIXES, *NGRAMS, *_COMPUTED, *_DERIVED, *WIDTHS, *_IF]

# Whether positions outside a sequence have values; or their texts "before" and "behind" it, the nearest first
Padding = Union[bool, dict[str, list[str]]]


class LexemeTable:
    """Columns of lexeme attributes by lexeme number, filled as lexemes are met.

    The first ``2 * reach`` numbers stand for the positions outside a sequence. The table only grows; when it is full, its owner
    starts a new one, while batches that were read keep the old one. Other threads may read while it grows.

    attributes (List[str]): The columns.
    reach (int), padding (Padding): Number of positions that are read before and behind a sequence, and their values.
    names (Dict[int, str]): Receives the text of each value, or None.
    clusters (Dict[str, Clusters]): Clusters that some attributes read, by the name in the attribute.
    vectors (WordVectors): Vectors, kept beside the columns.
    kept (List[str]): Attributes to keep; values of other attributes, and vectors, are available until `drop_rows` drops them, see
        `rows`. None to keep all.
    functions (Dict[str, Callable]): Functions from a word to items, or to a text, by the name of their source.
    """

    def __init__(
        self,
        attributes: list[str],
        reach: int,
        padding: Padding,
        names: Optional[dict[int, str]] = None,
        clusters: Optional[dict[str, Clusters]] = None,
        vectors: Optional[WordVectors] = None,
        kept: Optional[list[str]] = None,
        functions: Optional[dict[str, WordSource]] = None,
    ):
        self.attributes = attributes
        functions = functions or {}
        self.items = {name: WordItems(name, functions[name], 2 * reach, names) for name in functions if is_item(name)}
        self._texts = [(n, name, functions[name]) for n, name in enumerate(attributes) if name in functions]
        self.names = names
        self._lock = threading.Lock()
        outside = np.repeat(padding_values(reach, padding, names)[:, None], len(attributes), axis=1)
        self._word_vectors = vectors
        # Positions outside a sequence have vectors of zeros
        width = 0 if vectors is None else vectors.width
        further = [column for column, name in enumerate(attributes) if " " in name and not name.endswith(" 0")]
        outside[:, further] = ABSENT  # such positions have a single value
        # Number of the first word whose row was not read yet, rows [N, C] and vectors [N, D] of such words; None if all is kept
        self._fresh = None if kept is None else (0, outside, np.zeros((len(outside), width), dtype=np.float32))
        places = {name: column for column, name in enumerate(attributes)}
        self._kept = slice(None) if kept is None else np.array([places[name] for name in kept], dtype=np.int64)
        self.size = self._n_padding = 2 * reach  # number of lexemes so far
        room = max(1024, 4 * reach)
        self.columns = np.empty((room, len(attributes if kept is None else kept)), dtype=np.uint64)  # [V, C1]
        self.columns[: 2 * reach] = outside[:, self._kept]
        self.vectors = np.zeros((room, width if kept is None else 0), dtype=np.float32)  # [V, D]
        # No word has these keys; they take the numbers of the padding positions.
        self._index = HashTable(ABSENT - np.arange(2 * reach, dtype=np.uint64))
        self._fields = [(places[name], name) for name in _FIELDS if name in places]
        named = [*places.items(), *((_IF[name], column) for name, column in places.items() if name in _IF)]
        self._only_if = [column for name, column in places.items() if name in _IF]
        self._flags = [(column, np.uint64(IDS[name.upper()])) for name, column in named if name in _FLAGS]
        self._affixes = [(places[name], length) for name, length in _AFFIXES.items() if name in places]
        self._ngrams = [(places[columns_of(name)[0]], n) for name, n in NGRAMS.items() if columns_of(name)[0] in places]
        self._computed = [(column, _COMPUTED[name]) for name, column in named if name in _COMPUTED]
        self._derived = [(places[name], name) for name in _DERIVED if name in places]
        # Each table, and the columns that read it, with the values of its clusters
        self._clustered: dict[str, tuple[Clusters, list[tuple[int, NDArray[np.uint64]]]]] = {}
        for name, column in places.items():
            if is_of_clusters(name):
                table = (clusters or {})[table_read(name)]
                _, columns = self._clustered.setdefault(table_read(name), (table, []))
                columns.append((column, table.values[name.partition(":")[0]]))

    @property
    def words(self) -> NDArray[np.float32]:
        """The vectors of all words: float32[N, D]."""
        return self.vectors[self._n_padding : self.size]

    def rows(self, new: slice) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """All attributes of the words that were not forgotten yet, and their vectors: uint64[N, C], float32[N, D]."""
        with self._lock:
            if self._fresh is None:
                return self.columns[new], self.vectors[new]
            first, rows, vectors = self._fresh
            fresh = slice(new.start - first, new.stop - first)
            return rows[fresh], vectors[fresh]

    def drop_rows(self, upto: int) -> None:
        """Drop the rows of words before a number, except the kept attributes."""
        with self._lock:
            if self._fresh is not None and upto > self._fresh[0]:
                first, rows, vectors = self._fresh
                self._fresh = (upto, rows[upto - first :].copy(), vectors[upto - first :].copy())

    @property
    def clustered(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """All words, and whether each is in a cluster of each table: uint64[N], bool[N, K]."""
        if not self._clustered:
            return np.zeros(0, dtype=np.uint64), np.zeros((0, 0), dtype=np.bool_)
        columns = [columns[0][0] for _, columns in self._clustered.values()]
        return self._index.keys[self._n_padding :], self.columns[self._n_padding : self.size, columns] != ABSENT

    def numbers(self, orths: NDArray[np.uint64], docs: list[Doc]) -> NDArray[np.int32]:
        """Numbers of lexemes; adds new lexemes with their attributes.

        orths (uint64[T]): Hashes of the words of the Docs. The Docs' vocabs have the attributes.
        RETURNS (int32[T])
        """
        # Without the lock: most batches have no new word
        found, n_missing = self._index.look_up(orths)
        if n_missing:
            with self._lock:
                missing = orths[found < 0]
                # In the order of occurrence
                new = list(dict.fromkeys(missing[self._index.rows(missing) < 0].tolist()))
                vocabs = list(dict.fromkeys(doc.vocab for doc in docs))
                # A word is read from the first vocab that has it
                for vocab in vocabs[:-1]:
                    self._read([orth for orth in new if orth in vocab.strings], vocab)
                    new = [orth for orth in new if orth not in vocab.strings]
                self._read(new, vocabs[-1])
            found = self._index.rows(orths)
        return found

    def _read(self, orths: list[int], vocab: Vocab) -> None:
        """Add words, with a few calls of Python per word: one call per attribute took a tenth of a pipeline's time."""
        if not orths:
            return
        lexemes = list(map(vocab.__getitem__, orths))
        texts = [lexeme.orth_ for lexeme in lexemes]
        made = [items.make(texts) for items in self.items.values()]
        # The bias is 1
        rows = np.ones((len(orths), len(self.attributes)), dtype=np.uint64)
        # One call per word reads all fields
        flags, *fields = np.array(list(map(_READ, lexemes)), dtype=np.uint64).T
        values = dict(zip(_FIELDS, fields))
        for column, name in self._fields:
            rows[:, column] = values[name]
            if self.names is not None:
                found = values[name].tolist()
                self.names.update(zip(found, map(vocab.strings.__getitem__, found)))
        for column, bit in self._flags:
            rows[:, column] = flags >> bit & np.uint64(1)
        for column, compute in self._computed:
            rows[:, column] = list(map(compute, texts))
        for column in self._only_if:
            rows[rows[:, column] == 0, column] = ABSENT
        for table, columns in self._clustered.values():
            numbers = table.of(texts, values["orth"], values["lower"])
            for column, of_cluster in columns:
                # Unknown words, -1, get the last entry
                rows[:, column] = of_cluster[numbers]
        words = [lexeme.lower_ for lexeme in lexemes] if self._derived or self._ngrams else []
        for column, name in self._derived:
            if name == "folded":
                rows[:, column] = self._folded(words, values["lower"])
            else:  # the short shape: many words have the same shape
                distinct, which = np.unique(values["shape"], return_inverse=True)
                hashes = [self._hash(_short_shape(vocab.strings[shape])) for shape in distinct.tolist()]
                rows[:, column] = np.array(hashes, dtype=np.uint64)[which]
        for first, size in self._ngrams:
            hashes, begins = hash_ngrams(*_points(words), size, _MOST_NGRAMS)
            rows[:, first : first + _MOST_NGRAMS] = hashes
            if self.names is not None:
                for word, of_word, firsts in zip(words, hashes.tolist(), begins.tolist()):
                    self.names.update((value, f"^{word}$"[n : n + size]) for value, n in zip(of_word, firsts))
        if self._affixes:
            columns, lengths = zip(*self._affixes)
            hashes = rows[:, columns] = hash_affixes(*_points(texts), np.array(lengths))
            if self.names is not None:
                for length, of_length in zip(lengths, hashes.T.tolist()):
                    affix = slice(length) if length > 0 else slice(length, None)
                    self.names.update(zip(of_length, map(itemgetter(affix), texts)))
        for column, name, function in self._texts:
            rows[:, column] = [self._text_value(name, word, function) for word in texts]
        vectors = None if self._word_vectors is None else self._word_vectors.of(lexemes)
        # Rows are written before the index knows the words, so that other threads never read half of one
        size = self.size + len(rows)
        if size > len(self.columns):
            self.columns, self.vectors = (grown(array, self.size, size) for array in (self.columns, self.vectors))
        self.columns[self.size : size] = rows[:, self._kept]
        if self._fresh is not None:
            of_words = np.zeros((len(rows), 0), dtype=np.float32) if vectors is None else vectors
            first, others, of_others = self._fresh
            self._fresh = (first, np.concatenate([others, rows]), np.concatenate([of_others, of_words]))
        elif vectors is not None:
            self.vectors[self.size : size] = vectors
        for items, of_source in zip(self.items.values(), made):
            items.add(of_source)
        self.size = size
        self._index.insert(np.array(orths, dtype=np.uint64))

    def _folded(self, words: list[str], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Hashes of the words with all digits replaced by 0, from the hashes of the words: few words have digits."""
        ends = np.cumsum(list(map(len, words)), dtype=np.int64)
        digits = [match.start() for match in DIGIT.finditer("".join(words))]
        # Smaller hashes are spaCy's symbols, which are no hashes
        changes = hashes < len(NAMES)
        changes[np.searchsorted(ends, digits, side="right")] = True
        if self.names is not None:  # where each is needed
            changes[:] = True
        folded = hashes.copy()
        folded[changes] = [self._hash(with_zeros(words[n])) for n in np.flatnonzero(changes).tolist()]
        return folded

    def _text_value(self, name: str, word: str, function: WordSource) -> Union[int, np.uint64]:
        """The value of the text that a function makes of a word. RAISES (ValueError): CRF899 for anything but a text or None,
        CRF987 if the function fails."""
        try:
            made = function(word)
        except Exception as error:  # whatever users' functions raise
            raise function_failed(name, f"the word {shown(word)}", error) from error
        if made is None:
            return ABSENT
        if not isinstance(made, str):
            raise ValueError(
                Errors.CRF899.format(where=f"The feature function '{name}', for the word '{word}'", value=shown(made))
            )
        hashed = hash_item(name, made, get_string_id)
        if self.names is not None:
            self.names[hashed] = made
        return hashed

    def _hash(self, text: str) -> int:
        hashed = hash_string(text)
        if self.names is not None:
            self.names[hashed] = text
        return hashed


def _points(texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Characters of words, end to end, and where each word ends."""
    ends = np.cumsum(list(map(len, texts)), dtype=np.int64)
    return np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32), ends


def padding_values(reach: int, padding: Padding, names: Optional[dict[int, str]] = None) -> NDArray[np.uint64]:
    """Values of the positions outside a sequence: a different one for each distance, or ABSENT without padding.

    RETURNS (uint64[2 * reach])
    """
    if not padding:
        return np.full(2 * reach, ABSENT, dtype=np.uint64)
    texts = []
    for side, name in (("before", "BOS"), ("behind", "EOS")):
        given = padding[side][:reach] if isinstance(padding, dict) else []
        # No template reads farther than the texts reach
        texts += [*given, *(f"<{name}{distance + 1}>" for distance in range(len(given), reach))]
    # The hashes of words with this spelling
    hashes = [get_string_id(text) for text in texts]
    if names is not None:
        names.update(zip(hashes, texts))
    return np.array(hashes, dtype=np.uint64)
