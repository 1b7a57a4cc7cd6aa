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
from spacy.lexeme import Lexeme
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

# ``if:`` and a flag: no value where the flag is false, so that templates make no feature at such words
_IF = {f"if:{name}": name for name in (*_FLAGS, "has_hyphen", "has_digit")}

_READ_FIELDS = attrgetter("flags", *_FIELDS)

LEXEME_ATTRIBUTES = ["bias", *_FIELDS, *_FLAGS, *_AFFIXES, *NGRAMS, *_COMPUTED, *_DERIVED, *WIDTHS, *_IF]

# Whether positions outside a sequence have values; or the texts of positions "before" and "behind" it, the nearest first
Padding = Union[bool, dict[str, list[str]]]


class LexemeTable:
    """Columns of lexeme attributes by lexeme number, filled as lexemes are met.

    The first ``2 * reach`` numbers stand for the positions outside a sequence. The table only grows. When it is full, its owner
    starts a new table, while batches that were read keep the old table. Other threads may read while it grows.

    attributes (List[str]): The columns that are read of a new word.
    reach (int), padding (Padding): Number of positions that are read before and behind a sequence, and their values.
    names (Dict[int, str]): Receives the text of each value. None to forget the texts.
    clusters (Dict[str, Clusters]): Tables of clusters, by the names that attributes use.
    vectors (WordVectors): Vectors of words, read beside the columns.
    kept (List[str]): Columns to keep. `rows` returns the others, and the vectors, until `drop_rows` drops them. None to keep all.
    functions (Dict[str, Callable]): Functions from a word to items, or to a text, by attribute.
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
        self._word_vectors = vectors
        column_of = {name: column for column, name in enumerate(attributes)}
        outside = np.repeat(padding_values(reach, padding, names)[:, None], len(attributes), axis=1)
        # Such positions have one n-gram of each length, in the first of its columns
        further = [column for column, name in enumerate(attributes) if " " in name and not name.endswith(" 0")]
        outside[:, further] = ABSENT
        width = 0 if vectors is None else vectors.width
        # Words that were not dropped yet: number of the first word, rows [N, C] and vectors [N, D]; None if all is kept.
        # Positions outside a sequence have vectors of zeros
        self._fresh = None if kept is None else (0, outside, np.zeros((len(outside), width), dtype=np.float32))
        self._kept = slice(None) if kept is None else np.array([column_of[name] for name in kept], dtype=np.int64)
        self.size = self._n_padding = 2 * reach  # number of lexemes so far
        room = max(1024, 4 * reach)
        self.columns = np.empty((room, len(attributes if kept is None else kept)), dtype=np.uint64)  # [V, C1]
        self.columns[: 2 * reach] = outside[:, self._kept]
        self.vectors = np.zeros((room, width if kept is None else 0), dtype=np.float32)  # [V, D]
        # No word has these keys; they take the numbers of the padding positions.
        self._index = HashTable(ABSENT - np.arange(2 * reach, dtype=np.uint64))
        # How each column is read: its number, and the field, bit, length or function that gives its values
        self._fields = [(column_of[name], name) for name in _FIELDS if name in column_of]
        self._affixes = [(column_of[name], length) for name, length in _AFFIXES.items() if name in column_of]
        self._derived = [(column_of[name], name) for name in _DERIVED if name in column_of]
        first_columns = [(columns_of(name)[0], n) for name, n in NGRAMS.items()]
        self._ngrams = [(column_of[name], n) for name, n in first_columns if name in column_of]
        # Columns of ``if:NAME`` are read as NAME; then zeros are made ABSENT
        self._only_if = [column for name, column in column_of.items() if name in _IF]
        computed = [(_IF.get(name, name), column) for name, column in column_of.items()]
        self._flags = [(column, np.uint64(IDS[name.upper()])) for name, column in computed if name in _FLAGS]
        self._computed = [(column, _COMPUTED[name]) for name, column in computed if name in _COMPUTED]
        # By name of the table: its clusters, and the columns that read it, with the value of each cluster
        self._clustered: dict[str, tuple[Clusters, list[tuple[int, NDArray[np.uint64]]]]] = {}
        for name, column in column_of.items():
            if is_of_clusters(name):
                table = (clusters or {})[table_read(name)]
                _, columns = self._clustered.setdefault(table_read(name), (table, []))
                columns.append((column, table.values[name.partition(":")[0]]))

    @property
    def words(self) -> NDArray[np.float32]:
        """The vectors of all words: float32[N, D]."""
        return self.vectors[self._n_padding : self.size]

    def rows(self, numbers: slice) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """All columns and the vectors of words with these numbers, which must not be dropped yet: uint64[N, C], float32[N, D]."""
        with self._lock:
            if self._fresh is None:
                return self.columns[numbers], self.vectors[numbers]
            first, rows, vectors = self._fresh
            fresh = slice(numbers.start - first, numbers.stop - first)
            return rows[fresh], vectors[fresh]

    def drop_rows(self, upto: int) -> None:
        """Forget all but the kept columns of the words whose numbers are less than `upto`."""
        with self._lock:
            if self._fresh is None:
                return
            first, rows, vectors = self._fresh
            if upto > first:
                self._fresh = (upto, rows[upto - first :].copy(), vectors[upto - first :].copy())

    @property
    def clustered(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The hashes of all words, and whether each word is in a cluster of each table: uint64[N], bool[N, tables]."""
        if not self._clustered:
            return np.zeros(0, dtype=np.uint64), np.zeros((0, 0), dtype=np.bool_)
        # Unknown words are absent from all columns of a table, so the first column suffices
        first_columns = [first_column for _, [(first_column, _), *_] in self._clustered.values()]
        values = self.columns[self._n_padding : self.size, first_columns]
        return self._index.keys[self._n_padding :], values != ABSENT

    def numbers(self, orths: NDArray[np.uint64], docs: list[Doc]) -> NDArray[np.int32]:
        """Look up the numbers of words. New words are added with their attributes.

        orths (uint64[T]): Hashes of the words of the Docs. The Docs' vocabs have the attributes.
        RETURNS (int32[T])
        """
        # Without the lock: most batches have no new word
        numbers, n_missing = self._index.look_up(orths)
        if n_missing:
            with self._lock:
                missing = orths[numbers < 0]
                # In the order of occurrence; another thread may have added some of the words meanwhile
                new = list(dict.fromkeys(missing[self._index.rows(missing) < 0].tolist()))
                vocabs = list(dict.fromkeys(doc.vocab for doc in docs))
                # A word is read from the first vocab that has it
                for vocab in vocabs[:-1]:
                    self._add([orth for orth in new if orth in vocab.strings], vocab)
                    new = [orth for orth in new if orth not in vocab.strings]
                self._add(new, vocabs[-1])
            numbers = self._index.rows(orths)
        return numbers

    def _add(self, orths: list[int], vocab: Vocab) -> None:
        """Read the attributes of new words from a vocab, and give the words the next numbers."""
        if not orths:
            return
        lexemes = list(map(vocab.__getitem__, orths))
        texts = [lexeme.orth_ for lexeme in lexemes]
        new_items = [items.make(texts) for items in self.items.values()]
        rows = self._read(lexemes, texts, vocab)
        vectors = np.zeros((len(rows), 0), dtype=np.float32)
        if self._word_vectors is not None:
            vectors = self._word_vectors.of(lexemes)
        # Rows are written before the index knows the words, so that other threads never read half of a row
        size = self.size + len(rows)
        if size > len(self.columns):
            self.columns = grown(self.columns, self.size, size)
            self.vectors = grown(self.vectors, self.size, size)
        self.columns[self.size : size] = rows[:, self._kept]
        if self._fresh is not None:
            first, fresh_rows, fresh_vectors = self._fresh
            self._fresh = (first, np.concatenate([fresh_rows, rows]), np.concatenate([fresh_vectors, vectors]))
        else:
            self.vectors[self.size : size] = vectors
        for items, items_of_source in zip(self.items.values(), new_items):
            items.add(items_of_source)
        self.size = size
        self._index.insert(np.array(orths, dtype=np.uint64))

    def _read(self, lexemes: list[Lexeme], texts: list[str], vocab: Vocab) -> NDArray[np.uint64]:
        """All columns of words: uint64[N, C]. Python is called a few times per word, since a call per attribute took a tenth of a
        pipeline's time."""
        # The bias is 1
        rows = np.ones((len(lexemes), len(self.attributes)), dtype=np.uint64)
        # One call per word reads all fields
        flags, *fields = np.array(list(map(_READ_FIELDS, lexemes)), dtype=np.uint64).T
        values = dict(zip(_FIELDS, fields))
        for column, name in self._fields:
            rows[:, column] = values[name]
            if self.names is not None:
                hashes = values[name].tolist()
                self.names.update(zip(hashes, map(vocab.strings.__getitem__, hashes)))
        for column, bit in self._flags:
            rows[:, column] = flags >> bit & np.uint64(1)
        for column, compute in self._computed:
            rows[:, column] = list(map(compute, texts))
        for column in self._only_if:
            rows[rows[:, column] == 0, column] = ABSENT
        for table, columns in self._clustered.values():
            clusters = table.of(texts, values["orth"], values["lower"])
            for column, value_of_cluster in columns:
                # Unknown words, -1, get the last entry
                rows[:, column] = value_of_cluster[clusters]
        words = [lexeme.lower_ for lexeme in lexemes] if self._derived or self._ngrams else []
        for column, name in self._derived:
            if name == "folded":
                rows[:, column] = self._folded(words, values["lower"])
            else:  # the short shape: many words have the same shape
                distinct, inverse = np.unique(values["shape"], return_inverse=True)
                hashes = [self._hash(_short_shape(vocab.strings[shape])) for shape in distinct.tolist()]
                rows[:, column] = np.array(hashes, dtype=np.uint64)[inverse]
        for column, size in self._ngrams:
            hashes, begins = hash_ngrams(*_points(words), size, _MOST_NGRAMS)
            rows[:, column : column + _MOST_NGRAMS] = hashes
            if self.names is not None:
                for word, word_hashes, word_begins in zip(words, hashes.tolist(), begins.tolist()):
                    ngrams = [f"^{word}$"[begin : begin + size] for begin in word_begins]
                    self.names.update(zip(word_hashes, ngrams))
        if self._affixes:
            affix_columns, lengths = zip(*self._affixes)
            hashes = rows[:, affix_columns] = hash_affixes(*_points(texts), np.array(lengths))
            if self.names is not None:
                for length, hashes_of_length in zip(lengths, hashes.T.tolist()):
                    affix = slice(length) if length > 0 else slice(length, None)
                    self.names.update(zip(hashes_of_length, map(itemgetter(affix), texts)))
        for column, name, function in self._texts:
            rows[:, column] = [self._text_value(name, word, function) for word in texts]
        return rows

    def _folded(self, words: list[str], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Hashes of the words with all digits replaced by 0. Few words have digits: the others keep their `hashes`."""
        ends = np.cumsum(list(map(len, words)), dtype=np.int64)
        digits = [match.start() for match in DIGIT.finditer("".join(words))]
        # Smaller numbers are spaCy's symbols, which are no hashes
        changes = hashes < len(NAMES)
        changes[np.searchsorted(ends, digits, side="right")] = True
        if self.names is not None:
            # `_hash` records the text of each word
            changes[:] = True
        folded = hashes.copy()
        folded[changes] = [self._hash(with_zeros(words[n])) for n in np.flatnonzero(changes).tolist()]
        return folded

    def _text_value(self, name: str, word: str, function: WordSource) -> Union[int, np.uint64]:
        """The hash of the text that a function makes of a word, ABSENT for None. RAISES (ValueError): CRF899 for anything else,
        CRF987 if the function fails."""
        try:
            text = function(word)
        except Exception as error:  # whatever users' functions raise
            raise function_failed(name, f"the word {shown(word)}", error) from error
        if text is None:
            return ABSENT
        if not isinstance(text, str):
            raise ValueError(
                Errors.CRF899.format(where=f"The feature function '{name}', for the word '{word}'", value=shown(text))
            )
        hashed = hash_item(name, text, get_string_id)
        if self.names is not None:
            self.names[hashed] = text
        return hashed

    def _hash(self, text: str) -> int:
        """Hash a text, and record it if names are kept."""
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

    names (dict): Gets the text of each value, by its hash.
    RETURNS (uint64[2 * reach])
    """
    if not padding:
        return np.full(2 * reach, ABSENT, dtype=np.uint64)
    texts = []
    for side, name in (("before", "BOS"), ("behind", "EOS")):
        chosen = padding[side][:reach] if isinstance(padding, dict) else []
        # No template reads the positions behind chosen texts
        texts += [*chosen, *(f"<{name}{distance + 1}>" for distance in range(len(chosen), reach))]
    # As for words that are spelled so
    hashes = [get_string_id(text) for text in texts]
    if names is not None:
        names.update(zip(hashes, texts))
    return np.array(hashes, dtype=np.uint64)
