"""From Docs to features: compile templates for columns, hash the features of tokens, and look the hashes up in an index."""

import copy
import json
import math
from collections.abc import Container, Iterator, Mapping
from itertools import chain, product
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.tokens.underscore import Underscore
from spacy.vocab import Vocab

from .. import checks
from ..arrays import ranges
from ..errors import Errors
from ..kernels.hashing import NO_FEATURE, ColumnsRead, hash_features, mix_all
from ..types import TemplateRows, TokenFeatures
from .clusters import WIDTHS, Clusters, is_of_clusters, table_read
from .doc_batch import OUTER, STAGE_ATTRIBUTES
from .feature_index import CountingTable, FeatureCounter, FeatureIndex, by_token
from .gazetteers import Gazetteer
from .items import Functions, Source, extension_items, is_item
from .lexemes import NGRAMS, Padding, columns_of
from .templates import Template, TemplatePart, is_text, parse_templates, require_named
from .token_columns import PLAIN_ATTRIBUTES, TOKEN_ATTRIBUTES, ColumnReader, TokenColumns, known_attributes
from .word_vectors import VECTOR, WordVectors

_OWNER = "spacy_crf.features.v1"
OF_TOKENS = f"{OUTER} is for templates of tokens, whose weights belong to single tags"
# For messages
FUNCTIONS = "registered functions, as [....functions.NAME] @misc = ... gives them"


class AttributesRead:
    """Base of sets of templates: answers questions about the attributes that the templates read."""

    def attributes(self) -> list[str]:
        """The attributes that the templates read, each once."""
        raise NotImplementedError

    @property
    def cluster_tables(self) -> list[str]:
        """Names of the tables of clusters that the templates read, "" for the one without a name."""
        return list(dict.fromkeys(table_read(name) for name in self.attributes() if is_of_clusters(name)))

    @property
    def token_attributes(self) -> list[str]:
        """Attributes of tokens that the templates read and that earlier components may write."""
        return [attribute for attribute in self.attributes() if attribute in TOKEN_ATTRIBUTES]

    @property
    def extensions(self) -> list[str]:
        """Names of the custom extensions of tokens that the templates read."""
        return [attribute[4:] for attribute in self.attributes() if attribute.startswith("ext:")]

    @property
    def reads_stage(self) -> bool:
        """Whether the templates read the labels of a first stage."""
        return not set(STAGE_ATTRIBUTES).isdisjoint(self.attributes())

    @property
    def reads_outer(self) -> bool:
        """Whether the templates read the outermost of the spans that nest."""
        return OUTER in self.attributes()


class FeatureSet(AttributesRead):
    """Features that a config names (``spacy_crf.features.v1``).

    templates: Templates of features of tags.
    transitions: Templates of features of pairs of tags.
    padding: True if positions outside a sequence have values of their own, False if templates that read these positions have no
        value, or texts for these positions, {"before": […], "behind": […]}, the nearest first.
    functions: Registered functions by the name that templates use: from a Doc to items per token (``fn:NAME[0]``), from a word to
        items (``word:NAME[0]``), or from a word to one text (``text:NAME[0]``).
    RAISES (ValueError): CRF101 to CRF121 or CRF895 for a template that can't be used; CRF020 for other settings.
    """

    def __init__(
        self,
        templates: list[str],
        transitions: Optional[list[str]] = None,
        padding: Padding = True,
        functions: Optional[dict[str, Source]] = None,
    ):
        self.functions = Functions(checks.table(_OWNER, "functions", functions, FUNCTIONS, callable))
        self.padding = _checked_padding(padding)
        self.templates = parse_templates(checks.listed(_OWNER, "templates", templates, "templates"))
        self.transitions = parse_templates(checks.listed(_OWNER, "transitions", transitions, "templates"))
        if not self.templates:
            raise ValueError(Errors.CRF107)
        # With texts for positions, templates may read no farther than the texts reach
        before = math.inf
        behind = math.inf
        if isinstance(self.padding, dict):
            before = len(self.padding["before"])
            behind = len(self.padding["behind"])
        for template in filter(reads_outer, self.transitions):
            raise ValueError(Errors.CRF121.format(template=template, reason=OF_TOKENS))
        for template in self.templates + self.transitions:
            # Templates of tags, but not of pairs, may read vectors
            if not is_vector(template) or template in self.transitions:
                for attribute, _ in template.parts:
                    check_attribute(attribute, template, self.functions)
            items = [attribute for attribute, _ in template.parts if is_item(attribute) or attribute in NGRAMS]
            if len(items) > 1:
                raise ValueError(
                    Errors.CRF121.format(
                        template=template,
                        reason=f"only one part can have several values or a number, and {', '.join(items)} can",
                    )
                )
            if any(part.offset < -before or part.offset > behind for part in template.parts):
                raise ValueError(Errors.CRF895.format(template=template, before=before, behind=behind))

    def as_text(self) -> list[str]:
        """The settings as lines of text. The rows of a saved index keep their meaning as long as these lines stay equal."""
        padding = "padding" if self.padding else "no padding"
        if isinstance(self.padding, dict):
            padding = f"padding {json.dumps(self.padding, sort_keys=True)}"
        return [padding, *map(str, self.templates), *(f"transition {template}" for template in self.transitions)]

    @property
    def gazetteers(self) -> list[str]:
        """Names of the gazetteers that the templates read."""
        return [attribute[3:] for attribute in self.attributes() if attribute.startswith("in:")]

    @property
    def vector_offsets(self) -> list[int]:
        """Offsets of the templates that read vectors of words."""
        return [template.parts[0].offset for template in self.templates if is_vector(template)]

    @property
    def counted(self) -> list[Template]:
        """The templates of tags that read neither vectors nor the outermost spans. Training counts their features."""
        return [template for template in self.templates if not (is_vector(template) or reads_outer(template))]

    @property
    def inner(self) -> list[Template]:
        """The templates that read the outermost spans. Their features belong to the tags of inner spans."""
        return [*filter(reads_outer, self.templates)]

    def with_stage(self, templates: list[str]) -> "FeatureSet":
        """A copy with these templates added, each once. RAISES (ValueError): CRF101 or CRF102."""
        changed = copy.copy(self)
        changed.templates = list(dict.fromkeys([*self.templates, *parse_templates(templates)]))
        return changed

    def without_stage(self) -> "FeatureSet":
        """A copy without the templates that read the labels of a first stage. RAISES (ValueError): CRF107 if none is left."""
        changed = copy.copy(self)
        stage = {*STAGE_ATTRIBUTES}
        changed.templates = [t for t in self.templates if stage.isdisjoint(t.attributes)]
        changed.transitions = [t for t in self.transitions if stage.isdisjoint(t.attributes)]
        if not changed.templates:
            raise ValueError(Errors.CRF107)
        return changed

    def attributes(self) -> list[str]:
        """The attributes that the templates read, each once."""
        parts = list(chain.from_iterable(template.parts for template in self.templates + self.transitions))
        return list(dict.fromkeys([part.attribute for part in parts]))

    def reader(
        self,
        gazetteers: dict[str, Gazetteer],
        clusters: Optional[dict[str, Clusters]] = None,
        vectors: Optional[WordVectors] = None,
    ) -> ColumnReader:
        """A reader of the columns that the templates read.

        RAISES (ValueError): CRF106 for a missing gazetteer, CRF940 for missing clusters, CRF941 for the first bits of clusters
            that are no tree, CRF800 for missing vectors.
        """
        attributes = self.attributes()
        clusters = clusters or {}
        for template in self.templates + self.transitions:
            for attribute, _ in template.parts:
                if is_of_clusters(attribute):
                    _check_clusters(template, attribute, clusters)
                if attribute == VECTOR and vectors is None:
                    raise ValueError(Errors.CRF800.format(template=template))
                if attribute.startswith("in:"):
                    require_named(template, attribute[3:], "in", gazetteers)
        gazetteers_read = {}
        item_sources = {}
        word_functions = {}
        for attribute in attributes:
            kind, _, name = attribute.partition(":")
            if kind == "in":
                gazetteers_read[attribute] = gazetteers[name]
            elif kind == "fn":
                item_sources[attribute] = self.functions[name]
            elif kind == "ext":
                item_sources[attribute] = extension_items(name)
            elif kind in ("word", "text"):
                word_functions[attribute] = self.functions[name]
        parts = chain.from_iterable(template.parts for template in self.templates + self.transitions)
        return ColumnReader(
            attributes,
            self.token_attributes,
            gazetteers_read,
            item_sources,
            word_functions=word_functions,
            clusters={name: clusters[name] for name in self.cluster_tables},
            vectors=vectors if self.vector_offsets else None,
            reach=max(abs(part.offset) for part in parts),
            padding=self.padding,
        )


def check_attribute(attribute: str, template: NamedTuple, functions: Mapping) -> None:
    """Refuse an attribute that a template can't join with others.

    RAISES (ValueError): CRF106 for an unknown attribute, extension or function; CRF121 for `vector`, which has several values.
    """
    kind, _, name = attribute.rpartition(":")
    if attribute == VECTOR:
        reason = "vector stands alone, as in 'vector[-1..1]', among the templates of tokens; "
        reason += 'clusters = "vectors" gives clusters, which can be joined'
        raise ValueError(Errors.CRF121.format(template=template, reason=reason))
    if kind in ("ext", "fn", "word", "text"):
        require_named(template, name, kind, sorted(Underscore.token_extensions if kind == "ext" else functions))
    is_misspelt_cluster = kind.startswith("cluster") and kind not in WIDTHS  # such as cluster5
    is_named_by_us = kind in ("", "if", "doc", "stage") or is_misspelt_cluster
    if is_named_by_us and attribute not in PLAIN_ATTRIBUTES:
        raise ValueError(
            Errors.CRF106.format(
                template=template,
                what="attribute",
                name=attribute,
                advice="Take one that spacy_crf knows",
                there="Attributes",
                known=known_attributes(attribute),
            )
        )


def _check_clusters(template: Template, attribute: str, clusters: Mapping[str, Clusters]) -> None:
    """Check that `clusters` has the table that an attribute such as ``cluster6:own`` reads.

    RAISES (ValueError): CRF940 without this table, CRF941 if the attribute reads the first bits of clusters that are no tree.
    """
    kind = attribute.partition(":")[0]
    table = table_read(attribute)
    if table not in clusters:
        possible = [f"{kind}:{name}" if name else kind for name in clusters]
        block = "[initialize.components.NAME"
        raise ValueError(
            Errors.CRF940.format(
                template=template,
                attribute=attribute,
                known=f"there are {', '.join(possible)} alone" if possible else "there are none",
                setting=f"{block}.words.tables] {table}" if table else f"{block}] clusters",
            )
        )
    if WIDTHS[kind] is not None and not clusters[table].is_tree:
        raise ValueError(
            Errors.CRF941.format(template=template, attribute=kind, plain=attribute.replace(kind, "cluster"))
        )


def _checked_padding(padding: Padding) -> Padding:
    """The setting `padding` of `FeatureSet`, with copies of its lists. RAISES (ValueError): CRF020 for any other value."""
    is_valid = isinstance(padding, bool)
    if isinstance(padding, Mapping):
        has_lists = padding.keys() == {"before", "behind"} and all(
            isinstance(texts, list) for texts in padding.values()
        )
        is_valid = has_lists and all(map(is_text, chain.from_iterable(padding.values())))
    must = 'true, false, or two lists of texts, "before" and "behind"'
    checks.expect(is_valid, _OWNER, "padding", padding, must)
    return padding if isinstance(padding, bool) else {side: list(texts) for side, texts in padding.items()}


def is_vector(template: Template) -> bool:
    """Whether a template reads the vector of a word."""
    return template.attributes == [VECTOR]


def reads_outer(template: Template) -> bool:
    """Whether a template reads the outermost of the spans that nest."""
    return OUTER in template.attributes


def _one_valued(template: Template) -> Iterator[Template]:
    """Split a template whose attributes have several columns, such as the n-grams of a word, into one template for each
    combination of columns. All are spelled like the template, so equal values of different columns are the same feature."""
    offsets = [part.offset for part in template.parts]
    for columns in product(*map(columns_of, template.attributes)):
        yield template._replace(parts=tuple(map(TemplatePart, columns, offsets)))


class HashedFeatures(NamedTuple):
    """Hashed features of T tokens: those of M plain templates as a matrix, those of item templates as a list of N items."""

    hashes: NDArray[np.uint64]  # [T, M]
    item_hashes: NDArray[np.uint64]  # [N]
    item_values: NDArray[np.float32]  # [N]
    item_tokens: NDArray[np.int64]  # [N]
    item_templates: NDArray[np.int32]  # [N] position of each item's template among the item templates
    item_sources: NDArray[np.int64]  # [N] number of the item in its source


class CompiledTemplates:
    """Templates with the columns of a reader in place of names of attributes. A plain template has one value at each token; an
    item template reads an attribute that may have any number of values."""

    def __init__(self, templates: list[Template], reader: ColumnReader):
        plain = [t for t in templates if not any(map(is_item, t.attributes))]
        # A template of n-grams becomes a template for each column of n-grams
        self.templates = list(chain.from_iterable(map(_one_valued, plain)))
        self.item_templates = [t for t in templates if any(map(is_item, t.attributes))]
        self.reader = reader
        attributes = [
            *reader.lexeme_attributes,
            *reader.token_attributes,
            *reader.document_attributes,
            *reader.gazetteers,
        ]
        self._column = {attribute: column for column, attribute in enumerate(attributes)}
        self.seeds = np.array([template_seed(template) for template in self.templates], dtype=np.uint64)
        widths = [len(template.parts) for template in self.templates]
        # Template m has the parts part_starts[m] to part_starts[m + 1] - 1
        self.part_starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        parts = list(chain.from_iterable(template.parts for template in self.templates))
        self.part_columns = self.column_numbers([part.attribute for part in parts])
        self.part_offsets = np.array([part.offset for part in parts], dtype=np.int64)
        # Only the columns that these templates read are gathered: `_part_inputs` numbers the parts' columns among them
        self._columns_read, self._part_inputs = np.unique(self.part_columns, return_inverse=True)

    def parts_of(self, template: int) -> NDArray[np.int64]:
        """Numbers of the parts of one template: int64[N]."""
        return np.arange(self.part_starts[template], self.part_starts[template + 1])

    @property
    def widths(self) -> NDArray[np.int64]:
        """Number of positions from the first to the last one that each template reads, both included: int64[M]."""
        return np.array([template.width for template in self.templates], dtype=np.int64)

    @property
    def reads_one_lexeme(self) -> NDArray[np.bool_]:
        """Whether each template reads only attributes of one lexeme: bool[M]."""
        lexeme_attributes = {*self.reader.lexeme_attributes}
        reads_lexemes = [lexeme_attributes.issuperset(template.attributes) for template in self.templates]
        return (self.widths == 1) & np.array(reads_lexemes, dtype=bool)

    def only(self, chosen: NDArray[np.bool_], *, items: bool = True) -> "CompiledTemplates":
        """A copy with the chosen plain templates (bool[M]), and with or without the item templates."""
        templates = [template for template, is_chosen in zip(self.templates, chosen) if is_chosen]
        return CompiledTemplates(templates + (self.item_templates if items else []), self.reader)

    def among(self, names: Container[str]) -> "CompiledTemplates":
        """The templates that are spelled as one of the `names`."""
        templates = [*self.templates, *self.item_templates]
        chosen = [template for template in templates if str(template) in names]
        return self if len(chosen) == len(templates) else CompiledTemplates(chosen, self.reader)

    def hash_positions(self, columns: TokenColumns) -> NDArray[np.uint64]:
        """Hashes of the plain templates at all positions: uint64[M, P]."""
        read = ColumnsRead(columns.lexemes, columns.table.columns, columns.values, self._columns_read)
        return hash_features(
            read, self.reader.reach, self.seeds, self.part_starts, self._part_inputs, self.part_offsets
        )

    def hash_items(self, columns: TokenColumns) -> HashedFeatures:
        """Hashes of the item templates at all tokens."""
        no_plain = np.zeros((len(columns.positions), 0), dtype=np.uint64)
        by_template = [self._hash_items(n, columns) for n in range(len(self.item_templates))]
        return HashedFeatures(no_plain, *map(np.concatenate, zip(_NO_ITEMS, *by_template)))

    def hash(self, columns: TokenColumns) -> HashedFeatures:
        """Hashes of all templates at all tokens."""
        plain = self.hash_positions(columns)[:, columns.positions]
        return self.hash_items(columns)._replace(hashes=np.ascontiguousarray(plain.T))

    def _hash_items(self, number: int, columns: TokenColumns) -> tuple[NDArray, ...]:
        """The features of the item template `number`, in the order of the fields `item_…` of `HashedFeatures`."""
        template = self.item_templates[number]
        [item_part] = [part for part in template.parts if is_item(part.attribute)]
        items = columns.items[item_part.attribute]
        # The token at the offset; positions outside of the sequence have no items
        lengths = np.diff(columns.starts)
        sequence_starts = np.repeat(columns.starts[:-1], lengths)  # [T]
        sequence_ends = np.repeat(columns.starts[1:], lengths)  # [T]
        tokens_read = np.arange(columns.starts[-1]) + item_part.offset  # [T]
        is_inside = (sequence_starts <= tokens_read) & (tokens_read < sequence_ends)
        tokens_read[~is_inside] = 0
        # Token t reads the items first[t] to behind[t] - 1
        first = items.starts[tokens_read]
        behind = np.where(is_inside, items.starts[tokens_read + 1], first)
        tokens = np.repeat(np.arange(len(first)), behind - first)  # [N]
        sources = ranges(first, behind)  # [N]
        hashes = np.full(len(tokens), template_seed(template), dtype=np.uint64)
        for part in template.parts:
            values = items.hashes[sources] if part is item_part else self.part_values(columns, part, tokens)
            mix_all(hashes, values)
        # An item without a value for another part, such as padding, is no feature
        exists = hashes != NO_FEATURE
        templates = np.full(int(exists.sum()), number, dtype=np.int32)
        return hashes[exists], items.values[sources][exists], tokens[exists], templates, sources[exists]

    def part_values(self, columns: TokenColumns, part: TemplatePart, tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The values at N tokens of a part whose attribute has no items: uint64[N]."""
        # Around each sequence there are positions with padding, so no offset leads into another sequence
        position = columns.positions[tokens] + part.offset
        column = self._column[part.attribute]
        n_lexeme_columns = len(self.reader.lexeme_attributes)
        if column < n_lexeme_columns:
            return columns.table.columns[columns.lexemes[position], column]
        return columns.values[position, column - n_lexeme_columns]

    def column_numbers(self, attributes: list[str]) -> NDArray[np.int64]:
        """Column numbers of attributes without items: int64[N]."""
        return np.array([self._column[attribute] for attribute in attributes], dtype=np.int64)

    def rows_of_values(
        self, values: NDArray[np.uint64], part_columns: NDArray[np.int64], index: FeatureIndex
    ) -> TemplateRows:
        """Rows of the known features of N windows.

        values (uint64[N, C]): The values that each window has in C columns, one for each token and attribute in it.
        part_columns (int64[P]): The column that each part reads.
        RETURNS (int32[M, N])
        """
        # The columns stand for the offsets
        no_offsets = np.zeros_like(self.part_offsets)
        chosen, part_inputs = np.unique(part_columns, return_inverse=True)
        read = ColumnsRead(_NO_LEXEMES, _NO_COLUMNS, np.ascontiguousarray(values), chosen)
        return _rows(hash_features(read, 0, self.seeds, self.part_starts, part_inputs, no_offsets), index)

    def rows_by_template(self, columns: TokenColumns, index: FeatureIndex) -> tuple[TemplateRows, TokenFeatures]:
        """Known features of all tokens: rows by plain template (int32[M, T]), and the items."""
        plain = self.hash_positions(columns)[:, columns.positions]
        return _rows(plain, index), self.look_up(self.hash_items(columns), index)

    def rows(self, columns: TokenColumns, index: FeatureIndex) -> TokenFeatures:
        """Known features of all tokens."""
        return self.look_up(self.hash(columns), index)

    def look_up(self, features: HashedFeatures, index: "FeatureIndex | CountingTable") -> TokenFeatures:
        """The features that an index has a row for, token by token."""
        plain_rows = _rows(features.hashes, index)  # [T, M], -1 for features that were not met in training
        is_known = plain_rows >= 0
        counts = is_known.sum(axis=1)
        plain_rows = plain_rows[is_known]
        if not self.item_templates:
            return TokenFeatures(plain_rows, None, np.append(0, np.cumsum(counts)))
        item_rows = index.rows(features.item_hashes)
        is_known_item = item_rows >= 0
        # Plain features first, then items: `by_token` keeps that order at each token
        n_tokens = len(counts)
        tokens = np.concatenate([np.repeat(np.arange(n_tokens), counts), features.item_tokens[is_known_item]])
        values = np.concatenate([np.ones(len(plain_rows), dtype=np.float32), features.item_values[is_known_item]])
        return by_token(tokens, np.concatenate([plain_rows, item_rows[is_known_item]]), values, n_tokens)


def _rows(hashes: NDArray[np.uint64], index: "FeatureIndex | CountingTable") -> NDArray[np.int32]:
    """The row of each hash of a matrix, -1 for hashes that the index does not know."""
    return index.rows(hashes.ravel()).reshape(hashes.shape)


_NO_LEXEMES = np.zeros(0, dtype=np.int32)
_NO_COLUMNS = np.zeros((0, 0), dtype=np.uint64)
_NO_ITEMS = tuple(np.zeros(0, dtype) for dtype in (np.uint64, np.float32, np.int64, np.int32, np.int64))


def template_seed(template: Union[Template, str]) -> np.uint64:
    """Hash of a template, with which the hashes of all its features begin."""
    return np.uint64(hash_string(str(template)))


class IndexBuilder(FeatureCounter):
    """Counts the features of tokens batch by batch, and makes an index of the features to keep."""

    def __init__(self, compiled: CompiledTemplates, known: FeatureIndex):
        self._compiled = compiled
        self._templates = compiled.templates + compiled.item_templates
        names = list(map(str, self._templates))
        super().__init__(list(dict.fromkeys(names)), known)
        # Several templates may have one name, see `_one_valued`
        self._name_of = np.array([self._names.index(name) for name in names], dtype=np.int32)
        # For each new feature: its template, and the values of its parts, with zeros behind the last part
        self._template_of: list[NDArray[np.int32]] = []  # [N]
        self._values: list[NDArray[np.uint64]] = []  # [N, most parts]
        self._most_parts = max((len(template.parts) for template in self._templates), default=1)

    def add(self, columns: TokenColumns) -> TokenFeatures:
        """Count the features of a batch.

        RETURNS (TokenFeatures): The rows of the features among all features met so far.
        """
        features = self._compiled.hash(columns)
        # Where new features are in the matrix [T, M] of plain features, read row by row, and among the items
        new_plain = self.table.add(features.hashes.ravel())
        n_plain = max(1, features.hashes.shape[1])  # templates
        plain_templates = (new_plain % n_plain).astype(np.int32)
        self._remember(columns, plain_templates, tokens=new_plain // n_plain, sources=new_plain)
        new_items = self.table.add(features.item_hashes)
        item_templates = features.item_templates[new_items] + np.int32(len(self._compiled.templates))
        self._remember(
            columns,
            item_templates,
            tokens=features.item_tokens[new_items],
            sources=features.item_sources[new_items],
        )
        return self._compiled.look_up(features, self.table)

    def _remember(
        self, columns: TokenColumns, templates: NDArray[np.int32], tokens: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> None:
        """Keep the values of N new features, from which `freeze` makes their names.

        templates (int32[N]): Positions in `_templates`.
        tokens (int64[N]): Where the features were read.
        sources (int64[N]): The features' items in `columns`; not used for plain templates.
        """
        values = np.zeros((len(templates), self._most_parts), dtype=np.uint64)
        for number in np.unique(templates):
            [rows] = np.nonzero(templates == number)
            for n, part in enumerate(self._templates[number].parts):
                if is_item(part.attribute):
                    values[rows, n] = columns.items[part.attribute].hashes[sources[rows]]
                else:
                    values[rows, n] = self._compiled.part_values(columns, part, tokens[rows])
        self._template_of.append(templates)
        self._values.append(values)

    def freeze(self, keep: NDArray[np.bool_], vocab: Vocab) -> FeatureIndex:
        """Make the index of the features to keep, in the order of their first occurrence. After that the builder is of no use.

        keep (bool[N]): Which features to keep: the known ones first, then the new ones.
        """
        keep_new = keep[len(self.known) :]
        template_of = np.concatenate([np.zeros(0, dtype=np.int32), *self._template_of])[keep_new]
        values = np.concatenate([np.zeros((0, self._most_parts), dtype=np.uint64), *self._values])
        # The list takes as much memory as the array that was made of it
        self._values.clear()
        values = values if keep_new.all() else values[keep_new]
        text_numbers = np.zeros(values.shape, dtype=np.int32)
        widths = np.zeros(len(values), dtype=np.int64)
        number_of: dict[str, int] = {}  # by text
        for number in np.unique(template_of):
            [rows] = np.nonzero(template_of == number)
            parts = self._templates[number].parts
            widths[rows] = len(parts)
            for n, part in enumerate(parts):
                # Many features share a value, whose text is made once
                distinct, inverse = np.unique(values[rows, n], return_inverse=True)
                texts = self._compiled.reader.texts_of(part.attribute, distinct, vocab)
                numbers = np.array([number_of.setdefault(text, len(number_of)) for text in texts])
                text_numbers[rows, n] = numbers[inverse]
        has_part = np.arange(self._most_parts) < widths[:, None]
        return self._index(keep, self._name_of[template_of], widths, text_numbers[has_part], list(number_of))
