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
    Labelling,
    read_document,
    read_outer,
    read_stage,
)
from .gazetteers import Gazetteer
from .items import ItemHashes, Items, Source, WordSource, is_item, read_items
from .lexemes import LEXEME_ATTRIBUTES, LexemeTable, Padding, columns_of, is_of_lexeme, padding_values
from .word_vectors import VECTOR, WordVectors

# Attributes of the token, by their names in spaCy: first those whose values are hashes of strings, then numbers
STRING_ATTRIBUTES = ("norm", "tag", "pos", "morph", "dep", "lemma", "ent_type", "ent_kb_id", "ent_id", "lang")
NUMBER_ATTRIBUTES = ("ent_iob", "sent_start", "spacy", "head")
TOKEN_ATTRIBUTES = STRING_ATTRIBUTES + NUMBER_ATTRIBUTES
# Annotation that templates may read: features stay valid while it is unchanged
ANNOTATION = [IDS[name.upper()] for name in TOKEN_ATTRIBUTES]


# Attributes without an argument; others name a gazetteer, an extension or a function
PLAIN_ATTRIBUTES = {*LEXEME_ATTRIBUTES, *TOKEN_ATTRIBUTES, *DOCUMENT_ATTRIBUTES, *STAGE_ATTRIBUTES, OUTER}


def known_attributes(asked: str) -> str:
    """Everything that a template may name, for the message about an unknown attribute `asked`."""
    names = [*sorted({*PLAIN_ATTRIBUTES, VECTOR}), "in:GAZETTEER", "cluster:TABLE", "ext:EXTENSION", "fn:FUNCTION"]
    names += ["word:FUNCTION", "text:FUNCTION"]
    return known_names(names, asked)


MOST_WORDS = 500_000  # words kept by default


class TokenColumns(NamedTuple):
    """Columns read from a batch of D Docs with T tokens, laid end to end and cut into B sequences at known sentence starts."""

    starts: NDArray[np.int64]  # [B + 1] where the sequences start
    doc_starts: NDArray[np.int64]  # [D + 1] where the Docs start
    # All columns are read at P positions: at the tokens, and at some positions before and behind each sequence
    positions: NDArray[np.int64]  # [T] position of each token, see `kernels.hashing.place`
    lexemes: NDArray[np.int32]  # [P] number of each lexeme in the table
    table: "LexemeTable"
    values: NDArray[np.uint64]  # [P, C] columns that are not in the table
    items: dict[str, Items]  # by attribute


class ColumnReader:
    """Reads Docs into columns.

    attributes: Names of the attributes that templates read. The columns of attributes of the lexeme come first.
    token_attributes: Names of the attributes of the token, in the order of their columns, which come next. Behind them are the
        columns of `DOCUMENT_ATTRIBUTES`, of `STAGE_ATTRIBUTES`, of `OUTER`, and of gazetteers.
    gazetteers: Gazetteers by the name of their attribute.
    item_sources: Functions from a Doc to items, by name (functions, extensions holding numbers).
    word_functions: Functions from a word to items, or to one text, by name.
    clusters: Clusters by name, as in the attribute `cluster:NAME`.
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
        self._doc_attributes = [name for name in attributes if name in DOCUMENT_ATTRIBUTES]
        self._stage_attributes = [name for name in attributes if name in STAGE_ATTRIBUTES]
        self._reads_outer = OUTER in attributes
        self.document_attributes = self._doc_attributes + self._stage_attributes
        if self._reads_outer:
            self.document_attributes.append(OUTER)
        # Attributes of the lexeme from which other columns are computed
        self._needed = [*READS] if self._doc_attributes else []
        if self._stage_attributes:
            self._needed.append("lower")
        self._needed += [gazetteer.attribute for gazetteer in gazetteers.values()]
        of_lexeme = filter(is_of_lexeme, dict.fromkeys([*attributes, *self._needed]))
        # All columns that are read of a new word. The table keeps the columns `lexeme_attributes`, see `keeping`
        self._word_columns = list(chain.from_iterable(map(columns_of, of_lexeme)))
        self.lexeme_attributes = self._word_columns
        self.gazetteers = gazetteers
        self.item_sources = item_sources
        self.word_functions = word_functions
        # Names of the functions from words to items; the other functions return one text, which is a column
        self._word_items = [name for name in word_functions if is_item(name)]
        self.clusters = clusters
        self.vectors = vectors
        self.reach = reach
        self.padding = padding
        self._outside = padding_values(reach, padding)[:, None]
        # A table with more words, and a source with more items, starts anew
        self.max_words = MOST_WORDS
        self._item_hashes = {name: ItemHashes(name) for name in item_sources}
        self.names: Optional[dict[int, str]] = None  # text of each value, while names are kept
        # Labels batches of Docs that have no labelling yet
        self.first_stage: Optional[Labeller] = None
        self._attribute_ids = [IDS[name.upper()] for name in token_attributes]
        self._start_table()

    def keeping(self, attributes: Iterable[str]) -> "ColumnReader":
        """A reader with its own table, which keeps only these attributes of words, and those that other columns need. The other
        attributes can be read while a word is new (`LexemeTable.rows`)."""
        reader = copy(self)
        kept = {*attributes, *self._needed}
        reader.lexeme_attributes = [name for name in self._word_columns if name in kept]
        reader._word_items = [name for name in self._word_items if name in kept]
        reader._start_table()
        return reader

    def _start_table(self) -> None:
        """Begin an empty table, and find the columns that other columns need in it."""
        column_of = {name: column for column, name in enumerate(self.lexeme_attributes)}
        self._form_columns = [column_of[name] for name in READS] if self._doc_attributes else []
        self._lower_column = column_of["lower"] if self._stage_attributes else -1
        self._phrase_columns = {g.attribute: column_of[g.attribute] for g in self.gazetteers.values()}
        self.table = self._new_table()

    def keep_names(self, keep: bool) -> None:
        """Begin a new table, and keep names or not. While names are kept, reading is slower, but `texts_of` can return the text
        of values."""
        self.names = None
        if keep:
            self.names = {}
            for source in (*self.gazetteers.values(), *self.clusters.values()):
                self.names.update(source.value_names)
        self.table = self._new_table()

    def _new_table(self) -> LexemeTable:
        """An empty table with the settings of this reader."""
        keeps_all = self.lexeme_attributes is self._word_columns
        return LexemeTable(
            self._word_columns,
            self.reach,
            self.padding,
            self.names,
            self.clusters,
            self.vectors,
            kept=None if keeps_all else self.lexeme_attributes,
            functions=self.word_functions,
        )

    def texts_of(self, attribute: str, values: NDArray[np.uint64], vocab: Vocab) -> list[str]:
        """Text of the values of an attribute, if they were read while names were kept."""
        names = self.names or {}
        is_text = attribute in (*STRING_ATTRIBUTES, *STAGE_ATTRIBUTES, OUTER)
        text_of = vocab.strings.__getitem__ if is_text else _signed
        return [names[value] if value in names else text_of(value) for value in values.tolist()]

    def read(self, docs: list[Doc]) -> TokenColumns:
        """Read a batch of Docs."""
        docs = DocBatch.of(docs)
        labelling = None
        if self._stage_attributes or self._reads_outer:
            # The first stage may call this method for the same Docs, which may replace `self.table`: so it runs first
            labelling = docs.labelled_by(self.first_stage)
        attributes = docs.read(self._attribute_ids)  # [T, C]
        table = self.table
        if table.size > self.max_words:
            table = self.table = self._new_table()
        starts = docs.sequence_starts()
        numbers = table.numbers(docs.words, docs)
        lexemes, positions = place(numbers, starts, self.reach)
        values = self._read_values(docs, attributes, labelling, table, numbers, starts)
        items = {name: table.items[name].of(numbers) for name in self._word_items}
        for name, source in self.item_sources.items():
            hashes = self._item_hashes[name]
            # A source of ever new names would fill the memory
            if hashes.size > self.max_words:
                # Other threads may be reading the old object
                hashes = self._item_hashes[name] = ItemHashes(name)
            items[name] = read_items(name, source, docs, self.names, hashes)
        return TokenColumns(starts, docs.bounds, positions, lexemes, table, values, items)

    def _read_values(
        self,
        docs: DocBatch,
        attributes: NDArray[np.uint64],
        labelling: Optional[Labelling],
        table: LexemeTable,
        numbers: NDArray[np.int32],
        starts: NDArray[np.int64],
    ) -> NDArray[np.uint64]:
        """The columns that are not in the table, at P positions: uint64[P, C].

        attributes (uint64[T, A]): The attributes of tokens that `Doc.to_array` reads.
        labelling (Labelling): What the first stage says, for the attributes that read it.
        numbers (int32[T]): Numbers of the words in the table.
        starts (int64[B + 1]): Where the sequences start.
        """
        n_padding = 2 * self.reach
        n_columns = len(self.token_attributes) + len(self.document_attributes) + len(self.gazetteers)
        if not n_columns:
            n_sequences = len(starts) - 1
            return np.empty((len(numbers) + n_sequences * n_padding, 0), dtype=np.uint64)
        # Padding in front, then the tokens: `rows` puts both at the positions where they are read
        padded = np.empty((n_padding + len(numbers), n_columns), dtype=np.uint64)
        padded[:n_padding] = self._outside
        tokens = padded[n_padding:]
        column = len(self.token_attributes)
        tokens[:, :column] = attributes
        if self._doc_attributes:
            forms = table.columns[numbers[:, np.newaxis], self._form_columns]
            values = read_document(self._doc_attributes, forms, docs.bounds, starts)
            tokens[:, column : column + values.shape[1]] = values
            column += values.shape[1]
        if labelling is not None and self._stage_attributes:
            lower = table.columns[numbers, self._lower_column]
            values = read_stage(self._stage_attributes, labelling, lower, docs.bounds, starts)
            tokens[:, column : column + values.shape[1]] = values
            column += values.shape[1]
        if labelling is not None and self._reads_outer:
            tokens[:, column] = read_outer(labelling, len(numbers))
            column += 1
        for gazetteer in self.gazetteers.values():
            words = table.columns[numbers, self._phrase_columns[gazetteer.attribute]]
            tokens[:, column] = gazetteer.find(words, docs.bounds)
            column += 1
        rows, _ = place(np.arange(n_padding, n_padding + len(numbers), dtype=np.int32), starts, self.reach)
        return padded[rows]


def _signed(value: int) -> str:
    """A 64-bit value as a signed number."""
    return str(value - (1 << 64) if value >> 63 else value)
