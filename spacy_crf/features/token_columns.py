"""The columns that templates read from Docs: 64-bit values, one row per token.

Attributes of the lexeme are in a separate table (``lexemes``), which gazetteers also use. ``Doc.to_array`` reads attributes of
the token; the items of custom extensions and registered functions (``items``) are computed for each Doc.
"""

from collections.abc import Iterable
from copy import copy
from itertools import chain
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDS
from spacy.tokens import Doc
from spacy.vocab import Vocab

from ..errors import known_names
from ..kernels.hashing import place
from .clusters import Clusters
from .doc_batch import (
    DOCUMENT_ATTRIBUTES,
    OUTER,
    READS,
    STAGE_ATTRIBUTES,
    DocBatch,
    Labeller,
    read_document,
    read_outer,
    read_stage,
)
from .gazetteers import Gazetteer
from .items import ItemHashes, Items, Source, WordSource, is_item, read_items
from .lexemes import LEXEME_ATTRIBUTES, LexemeTable, Padding, columns_of, is_of_lexeme, padding_values
from .word_vectors import VECTOR, WordVectors

# Attributes of the token, by their name in spaCy; the StringStore has the strings of the first ones
STRING_ATTRIBUTES = ("norm", "tag", "pos", "morph", "dep", "lemma", "ent_type", "ent_kb_id", "ent_id", "lang")
NUMBER_ATTRIBUTES = ("ent_iob", "sent_start", "spacy", "head")
TOKEN_ATTRIBUTES = STRING_ATTRIBUTES + NUMBER_ATTRIBUTES
# Annotation that templates may read: features stay valid while it is unchanged
ANNOTATION = [IDS[name.upper()] for name in TOKEN_ATTRIBUTES]


# Attributes without an argument; others name a gazetteer, an extension or a function
PLAIN_ATTRIBUTES = {*LEXEME_ATTRIBUTES, *TOKEN_ATTRIBUTES, *DOCUMENT_ATTRIBUTES, *STAGE_ATTRIBUTES, OUTER}


def known_attributes(asked: str) -> str:
    """Everything that a template may name, for error messages."""
    names = [*sorted({*PLAIN_ATTRIBUTES, VECTOR}), "in:GAZETTEER", "cluster:TABLE", "ext:EXTENSION", "fn:FUNCTION"]
    names += ["word:FUNCTION", "text:FUNCTION"]
    return known_names(names, asked)


MOST_WORDS = 500_000  # words kept by default


class TokenColumns(NamedTuple):
    """Columns read from a batch of Docs, laid end to end and cut into sequences at known sentence starts."""

    starts: NDArray[np.int64]  # [B + 1] where the sequences start
    doc_starts: NDArray[np.int64]  # [D + 1]
    # All columns are read at P positions: at the tokens, and at some positions before and behind each sequence
    positions: NDArray[np.int64]  # [T] position of each token, see `kernels.hashing.place`
    lexemes: NDArray[np.int32]  # [P] number of each lexeme in the table
    table: "LexemeTable"
    values: NDArray[np.uint64]  # [P, C] columns of the token
    items: dict[str, Items]


class ColumnReader:
    """Reads Docs into columns.

    attributes: Names of the attributes that templates read. The columns of attributes of the lexeme come first.
    token_attributes: Names of the attributes of the token, in the order of their columns, which come next. Behind them are the
        columns of `DOCUMENT_ATTRIBUTES`, of `STAGE_ATTRIBUTES`, of `OUTER`, and of gazetteers.
    gazetteers: Gazetteers by the name of their attribute.
    item_sources: Functions from a Doc to items, by name (functions, extensions holding numbers).
    word_functions: Functions from a word to items, or to one text, by name.
    clusters: Clusters by the name that attributes of the lexeme use.
    vectors: Vectors of words.
    reach: Largest offset of any template.
    padding: Values of the positions outside a sequence.
    """

    def __init__(
        self,
        attributes: list[str],
        token_attributes: list[str],
        gazetteers: dict[str, Gazetteer],
        item_sources: dict[str, Source],
        *,
        word_functions: dict[str, WordSource],
        clusters: dict[str, Clusters],
        vectors: Optional[WordVectors],
        reach: int,
        padding: Padding,
    ):
        self.token_attributes = token_attributes
        self._of_document = [name for name in attributes if name in DOCUMENT_ATTRIBUTES]
        self._of_stage = [name for name in attributes if name in STAGE_ATTRIBUTES]
        self._of_outer = [name for name in attributes if name == OUTER]
        self.document_attributes = self._of_document + self._of_stage + self._of_outer
        # Attributes of the lexeme that other columns are made of
        self._needed = [*(READS if self._of_document else ()), *(["lower"] if self._of_stage else ())]
        self._needed += [gazetteer.attribute for gazetteer in gazetteers.values()]
        read = [a for a in dict.fromkeys([*attributes, *self._needed]) if is_of_lexeme(a)]
        # In the table, and all attributes read of a word
        self.lexeme_attributes = self._of_words = list(chain.from_iterable(map(columns_of, read)))
        self.gazetteers = gazetteers
        self.item_sources = item_sources
        self.word_functions = word_functions
        # The names of those whose items are laid out token by token
        self._word_items = [name for name in word_functions if is_item(name)]
        self.clusters = clusters
        self.vectors = vectors
        self.reach = reach
        self.padding = padding
        self._outside = padding_values(reach, padding)[:, None]
        # Words in the table, and items of each source, before it starts anew
        self.max_words = MOST_WORDS
        self._item_names = {name: ItemHashes(name) for name in item_sources}
        self.names: Optional[dict[int, str]] = None
        # Labels Docs without a labelling of their own
        self.first_stage: Optional[Labeller] = None
        self._attribute_ids = [IDS[name.upper()] for name in token_attributes]
        self._start_table()

    def keeping(self, attributes: Iterable[str]) -> "ColumnReader":
        """A reader with its own table, which keeps only some attributes of words. Others can be read while a word is new
        (`LexemeTable.rows`)."""
        reader = copy(self)
        kept = {*attributes, *self._needed}
        reader.lexeme_attributes = [name for name in self._of_words if name in kept]
        reader._word_items = [name for name in self._word_items if name in kept]
        reader._start_table()
        return reader

    def _start_table(self) -> None:
        places = {name: column for column, name in enumerate(self.lexeme_attributes)}
        self._forms = [places[name] for name in READS] if self._of_document else []
        self._lower = places["lower"] if self._of_stage else -1
        self._spelled = {g.attribute: places[g.attribute] for g in self.gazetteers.values()}
        self.table = self._new_table()

    def keep_names(self, keep: bool) -> None:
        """Begin a new table. While names are kept, reading is slower, but `texts_of` can return the text of values."""
        self.names = None
        if keep:
            self.names = {}
            for source in (*self.gazetteers.values(), *self.clusters.values()):
                self.names.update(source.value_names)
        self.table = self._new_table()

    def _new_table(self) -> LexemeTable:
        kept = None if self.lexeme_attributes is self._of_words else self.lexeme_attributes
        sources = self.clusters, self.vectors, kept, self.word_functions
        return LexemeTable(self._of_words, self.reach, self.padding, self.names, *sources)

    def texts_of(self, attribute: str, values: NDArray[np.uint64], vocab: Vocab) -> list[str]:
        """Text of the values of an attribute, if they were read while names were kept."""
        names = self.names or {}
        is_text = attribute in (*STRING_ATTRIBUTES, *STAGE_ATTRIBUTES, OUTER)
        other = vocab.strings.__getitem__ if is_text else _signed
        return [names[value] if value in names else other(value) for value in values.tolist()]

    def read(self, docs: list[Doc]) -> TokenColumns:
        """Read a batch of Docs."""
        docs = DocBatch.of(docs)
        labelling = None
        if self._of_stage or self._of_outer:
            # First of all, since it may read the same Docs by this reader
            labelling = docs.labelled_by(self.first_stage)
        attributes = docs.read(self._attribute_ids)  # [T, C]
        doc_starts = docs.bounds
        table = self.table
        if table.size > self.max_words:
            table = self.table = self._new_table()
        starts = docs.sequence_starts()
        reach = self.reach
        numbers = table.numbers(docs.words, docs)
        lexemes, positions = place(numbers, starts, reach)
        n_plain = len(self.token_attributes)
        n_columns = n_plain + len(self.document_attributes) + len(self.gazetteers)
        values = np.empty((len(lexemes), n_columns), dtype=np.uint64)
        if n_columns:
            # Padding in front, then the tokens: `rows` puts both where they are read
            tokens = np.empty((2 * reach + len(attributes), values.shape[1]), dtype=np.uint64)
            tokens[: 2 * reach] = self._outside
            tokens[2 * reach :, :n_plain] = attributes
            if self._of_document:
                forms = table.columns[numbers[:, np.newaxis], self._forms]
                found = read_document(self._of_document, forms, doc_starts, starts)
                tokens[2 * reach :, n_plain : n_plain + found.shape[1]] = found
            if labelling is not None and self._of_stage:
                lower = table.columns[numbers, self._lower]
                column = n_plain + len(self._of_document)
                found = read_stage(self._of_stage, labelling, lower, doc_starts, starts)
                tokens[2 * reach :, column : column + found.shape[1]] = found
            if labelling is not None and self._of_outer:
                column = n_plain + len(self.document_attributes) - 1
                tokens[2 * reach :, column] = read_outer(labelling, len(attributes))
            for column, gazetteer in enumerate(self.gazetteers.values(), start=n_columns - len(self.gazetteers)):
                words = table.columns[numbers, self._spelled[gazetteer.attribute]]
                tokens[2 * reach :, column] = gazetteer.find(words, doc_starts)
            rows, _ = place(np.arange(2 * reach, len(tokens), dtype=np.int32), starts, reach)
            values[:] = tokens[rows]
        items = {name: table.items[name].of(numbers) for name in self._word_items}
        for name, source in self.item_sources.items():
            known = self._item_names[name]
            # A source of ever new names would fill the memory
            if known.size > self.max_words:
                # Other threads may be reading the old object
                known = self._item_names[name] = ItemHashes(name)
            items[name] = read_items(name, source, docs, self.names, known)
        return TokenColumns(starts, doc_starts, positions, lexemes, table, values, items)


def _signed(value: int) -> str:
    return str(value - (1 << 64) if value >> 63 else value)
