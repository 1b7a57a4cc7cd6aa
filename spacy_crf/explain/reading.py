"""What a model reads in a Doc: the weights that its scores are sums of, with names."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from .. import arrays
from ..features.doc_batch import TOKEN, DocBatch, UnitRows
from ..features.extractor import IndexBuilder
from ..features.feature_index import FeatureIndex, HashedIndex, VectorIndex
from ..models.architecture import TokenTerms
from ..models.emissions import Emissions
from ..models.neural_segments import EncodedSegments
from ..models.pool import PoolRole, tell_members
from ..models.sparse import SparseFeatures, SparseRole
from ..types import Floats, SpanList, TokenFeatures
from .explanation import Row

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe

ENCODER = "tok2vec"
NOTHING = 1e-13  # of the largest contribution: what is no row
_OFFSET = re.compile(r"\[(-?\d+)\]")
_SEGMENT = re.compile(r"seg\.([a-z]+)")


class Feature(NamedTuple):
    name: str
    template: str
    offset: Optional[int]

    @classmethod
    def of(cls, index: Any, row: int) -> "Feature":
        """A row of an index, whichever it is."""
        names, of_rows = templates_of(index, np.array([row]))
        template = names[int(of_rows[0])]
        return cls(index.name(row), template, offset_of(template))


def templates_of(index: Any, rows: NDArray[np.integer]) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the templates of an index, and which one each row has (int64[N])."""
    if isinstance(index, FeatureIndex):
        return index.spelled.templates, index.spelled.template_of[rows].astype(np.int64)
    if isinstance(index, VectorIndex):
        return [f"vector[{offset}]" for offset in index.offsets], rows // index.width
    return ["hashed rows"], np.zeros(len(rows), dtype=np.int64)


def offset_of(template: str) -> Optional[int]:
    """The offset of a template that reads at a single one."""
    offsets = set(_OFFSET.findall(template))
    return int(offsets.pop()) if len(offsets) == 1 else None


def read_by(template: str) -> tuple[list[int], list[int], bool]:
    """Which tokens a template reads: offsets from the first token that it is about, offsets from the last, and whether all."""
    begin, end, inside = [], [], False
    for part in template.split("|"):
        match, offset = _SEGMENT.match(part), offset_of(part)
        if match is None:
            begin += [] if offset is None else [offset]
        elif match[1] in ("first", "before"):
            begin.append((offset or 0) - (match[1] == "before"))
        elif match[1] in ("last", "after"):
            end.append((offset or 0) + (match[1] == "after"))
        else:
            inside |= match[1] != "length"
    return begin, end, inside


class Terms(NamedTuple):
    """The N weights whose sums are one of the arrays that a layer gives: each is found at a place (a token, or a span that is
    listed), and added, times its value, to a column (a state, or a pair of them) of the row of that place."""

    of: str  # the array
    place: NDArray[np.int64]  # [N]
    row: NDArray[np.int64]  # [N] the place, but where a row is about several tokens, such as a text
    column: NDArray[np.int64]  # [N]
    value: Floats  # [N]
    weight: Floats  # [N]
    feature: NDArray[np.int64]  # [N] its number, for `name`
    name: Callable[[int], Feature]
    tokens: tuple[NDArray[np.int64], NDArray[np.int64]]  # first token of each place, and the one behind the last
    shape: tuple[int, ...]  # of the array

    def sum(self) -> Floats:
        size = int(np.prod(self.shape[1:]))
        cells = self.row * size + self.column
        return np.bincount(cells, self.value * self.weight, minlength=self.shape[0] * size).reshape(self.shape)

    def uses(self, derivative: Floats) -> Floats:
        """How often each is used: float64[N].

        derivative: Of the array.
        """
        return derivative.reshape(self.shape[0], -1)[self.row, self.column]

    def read(self, token: int) -> NDArray[np.bool_]:
        """Which features read a token: bool[N]."""
        begin, end = (ends[self.place] for ends in self.tokens)
        _, first, number = np.unique(self.feature, return_index=True, return_inverse=True)
        reads = np.zeros(len(self.place), dtype=bool)
        templates = [self.name(int(row)).template for row in self.feature[first]]
        for template in set(templates):
            of_template = np.array([one == template for one in templates])[number]
            from_begin, from_end, inside = read_by(template)
            reads |= of_template & (
                np.isin(token - begin, from_begin)
                | np.isin(token - end + 1, from_end)
                | (inside & (token >= begin) & (token < end))
            )
        return reads

    def only(self, chosen: NDArray) -> "Terms":
        """Some of them."""
        return self._replace(**{name: getattr(self, name)[chosen] for name in self._fields[1:7]})


class Layer(NamedTuple):
    """What a layer gives, and the terms of its arrays."""

    output: Any
    terms: list[Terms]
    summed: Optional[Callable[[dict[str, Floats]], Any]]  # what it gives for other sums; None for an encoder

    def erased(self, token: int) -> Any:
        """What features give that don't read a token."""
        sums: dict[str, Floats] = {}
        for terms in self.terms:
            left = terms.only(~terms.read(token)).sum()
            sums[terms.of] = sums[terms.of] + left if terms.of in sums else left
        return self.summed(sums)


def read_sparse(layer: Model, docs: DocBatch) -> Layer:
    """What features say, exact: prediction sums up in single precision."""
    features: SparseFeatures = layer.attrs["role"].features(layer)
    units = None if features.unit is None else UnitRows.of(features.unit, docs.sequence_starts(), docs.bounds)
    features = features if units is None else features.of_unit(TOKEN)  # which says where each feature is
    found, names = features.look_up(docs), {}
    if any(isinstance(table.index, HashedIndex) for table in features.tables.values()):
        found, names = _named(features, docs, found)  # but for vectors, which are not hashed
    size, terms, sums = int(found.starts[-1]), [], {}
    n_rows = None if units is None else len(units.tokens) - 1
    for kind, of_kind in found.features.items():
        table, of = features.kinds[kind]
        weights = layer.get_param(table)
        tokens = _tokens_of(found.listed if of == "spans" else None, size)
        shape = (n_rows or len(tokens[0]), *features.shape(table))
        expanded = _expand(features, table, weights, of_kind, names.get(table), (of, tokens, shape))
        if units is not None:
            expanded = expanded._replace(row=np.repeat(np.arange(n_rows), np.diff(units.tokens))[expanded.place])
        index = features.tables[table].index
        terms.append(_of_vectors(expanded, index) if isinstance(index, VectorIndex) else expanded)
        sums[of] = sums.get(of, 0.0) + terms[-1].sum()
    found = found if units is None else found._replace(starts=units.texts)
    return Layer(_output(features, found, sums), terms, partial(_output, features, found))


def _output(features: SparseFeatures, found: Any, sums: dict[str, Floats]) -> Any:
    return features.output(sums, found.starts, found.listed)


def _tokens_of(listed: Optional[SpanList], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if listed is None:
        return np.arange(size), np.arange(1, size + 1)
    begin = np.repeat(np.arange(size), np.diff(listed.starts))
    return begin, begin + listed.lengths


def _expand(
    features: SparseFeatures,
    table_name: str,
    weights: NDArray,
    found: TokenFeatures,
    own: Optional[FeatureIndex],
    where: tuple,
) -> Terms:
    """The weights of features, which may be numbered by an index of their own."""
    table, index = features.tables[table_name], own
    rows = found.rows.astype(np.int64)
    weight_rows = rows if own is None else table.index.rows(own.keys).astype(np.int64)[rows]
    begin, end = table.pair_starts[weight_rows], table.pair_starts[weight_rows + 1]
    pairs, counts = arrays.ranges(begin, end), end - begin
    place = np.repeat(np.repeat(np.arange(len(found.starts) - 1), np.diff(found.starts)), counts)
    values = np.ones(len(rows)) if found.values is None else found.values.astype(np.float64)
    index = table.index if own is None else own
    return Terms(
        where[0],
        place,
        place,
        table.pair_columns[pairs].astype(np.int64),
        np.repeat(values, counts),
        weights[pairs].astype(np.float64),
        np.repeat(rows, counts),
        lambda row: Feature.of(index, row),
        *where[1:],
    )


def _of_vectors(terms: Terms, index: VectorIndex) -> Terms:
    """Vectors as one feature each: its weight is the vector times those of its numbers."""
    n_offsets, size = len(index.offsets), int(np.prod(terms.shape[1:]))
    cells = (terms.place * n_offsets + terms.feature // index.width) * size + terms.column
    used, first, where = np.unique(cells, return_index=True, return_inverse=True)
    place, column = used // size, used % size
    return terms._replace(
        place=place // n_offsets,
        row=terms.row[first],
        column=column,
        value=np.ones(len(used)),
        weight=np.bincount(where, terms.value * terms.weight, minlength=len(used)),
        feature=place % n_offsets,
        name=lambda n: Feature(f"vector[{index.offsets[n]}]", f"vector[{index.offsets[n]}]", index.offsets[n]),
    )


def _named(features: SparseFeatures, docs: DocBatch, found: Any) -> tuple[Any, dict[str, FeatureIndex]]:
    """Features that share rows by their hashes, under the names that they have in the text."""
    compiled = features.compile()  # its own: names are kept, and tables of words made anew
    compiled.reader.keep_names(True)
    columns, own, named = compiled.reader.read(docs), {}, {}
    for kind, templates in compiled.templates.items():
        builder = IndexBuilder(templates, FeatureIndex.empty())
        named[kind] = builder.add(columns)
        own[features.kinds[kind].table] = builder.freeze(np.ones(len(builder), dtype=bool), docs[0].vocab)
    return found._replace(features={**found.features, **named}), own


def read_encoder(layer: Model, docs: DocBatch) -> Layer:
    """What an encoder says has no parts: it is the end of the explanation."""
    output = layer.predict(docs)
    if isinstance(output, Emissions):
        return Layer(output, [_whole("scores", output.scores, None)], None)
    assert isinstance(output, EncodedSegments)
    spans = output.spans
    of_spans = [_whole(name, getattr(spans, name), None) for name in ("begins", "ends")]
    terms = [_whole("scores", output.emissions.scores, None), *of_spans, _whole("spans", spans.spans, spans)]
    return Layer(output, terms, None)


def _whole(of: str, scores: Floats, spans: Any) -> Terms:
    place, column = (index.ravel() for index in np.indices(scores.shape))
    tokens = _tokens_of(None if spans is None else spans.listed, len(scores) if spans is None else len(spans.begins))
    ones, feature = np.ones(scores.size), Feature(ENCODER, ENCODER, None)
    nothing = np.zeros(scores.size, dtype=np.int64)
    return Terms(of, place, place, column, ones, scores.ravel(), nothing, lambda row: feature, tokens, scores.shape)


def _read_terms(told: TokenTerms, emissions: Emissions) -> Layer:
    """Present the scores that tokens receive from elsewhere as a layer of the model."""
    (names, tokens, scores), (size, starts) = told, (emissions.scores.shape, emissions.starts)
    some, column = np.nonzero(scores)
    ones, every = np.ones(len(some)), np.arange(size[0])
    terms = Terms(
        "scores",
        tokens[some],
        tokens[some],
        column,
        ones,
        scores[some, column],
        some,
        lambda row: Feature(names[row], "tie[0]", 0),
        (every, every + 1),
        size,
    )

    def output(sums: dict[str, Floats]) -> Emissions:
        return Emissions(sums["scores"], None, starts)

    return Layer(output({"scores": terms.sum()}), [terms], output)


class Steps(NamedTuple):
    """Transitions that labellings take, one by one."""

    token: NDArray[np.int64]  # [N] they lead to
    before: NDArray[np.int64]  # [N] the states
    after: NDArray[np.int64]  # [N]
    use: Floats  # [N]


class Member:
    """A model of a structure, which may be one of a pool.

    share (float): What it counts for.
    """

    def __init__(self, model: Model, share: float, docs: DocBatch):
        self.share = share
        self._architecture = model.attrs["role"].explained
        self._model = model
        layers = [layer for layer in model.layers if layer.attrs["role"].has_weights]
        self._layers = [
            read_sparse(layer, docs) if isinstance(layer.attrs["role"], SparseRole) else read_encoder(layer, docs)
            for layer in layers
        ]
        told = model.attrs["role"].token_terms(model, tuple(layer.output for layer in self._layers), docs)
        if told is not None:
            self._layers.append(_read_terms(told, self._layers[0].output))
        self._outputs = tuple(layer.output for layer in self._layers)
        self._terms = [[one._replace(weight=share * one.weight) for one in layer.terms] for layer in self._layers]
        self.weights = {name: model.get_param(name).astype(np.float64) for name in self._architecture.params}
        self.scores = self._join(self._outputs)

    def _join(self, outputs: tuple) -> Any:
        return self._architecture.join(outputs, self._architecture.potentials(self._model, self.weights))

    def erased(self, token: int, docs: Optional[DocBatch]) -> Any:
        """The scores without a word.

        docs (DocBatch): The Doc with an unknown word in its place, for an encoder.
        """
        pairs = zip(self._layers, self._model.layers)
        return self._join(
            tuple(read.erased(token) if read.summed is not None else layer.predict(docs) for read, layer in pairs)
        )

    def parts(self, derivative: Any) -> Iterator[tuple[Terms, Floats]]:
        """The terms of all layers, and the derivative with respect to the array of each."""
        for of_layer, part in zip(self._terms, self._architecture.part(derivative, self._outputs)):
            for terms in of_layer:
                yield terms, _array(part, terms.of)


def members_of(model: Model) -> list[tuple[Model, float]]:
    """The models of a structure that a component's model is made of, and what each counts for."""
    if not isinstance(model.attrs["role"], PoolRole):
        return [(model, 1.0)]
    tell_members(model)
    return list(zip(model.layers, model.get_param("shares").astype(np.float64).tolist()))


class Reading:
    """The scores of one Doc, in double precision, and what they are sums of.

    pipe (CRFPipe): The component.
    docs (DocBatch): Of a single Doc.
    """

    def __init__(self, pipe: "CRFPipe", docs: DocBatch):
        self._tags = pipe.decoding.state_names()
        self._model, members = pipe.model, members_of(pipe.model)
        self._members = [Member(model, share, docs) for model, share in members]
        self._architecture = members[0][0].attrs["role"].explained
        self.scores = self._total([member.scores for member in self._members])
        # What all tokens share: the weights of the members, each as often as it counts
        self.shared = {
            name: sum(member.share * member.weights[name] for member in self._members)
            for name in self._architecture.params
        }

    def _total(self, of_members: list[Any]) -> Any:
        if len(of_members) == 1:
            return of_members[0]
        return self._architecture.weighted_sum(of_members, np.array([member.share for member in self._members]))

    def erased(self, token: int, docs: Optional[DocBatch]) -> Any:
        """The scores without a word: without the features that read it. An encoder reads an unknown word instead.

        docs (DocBatch): The Doc with that.
        """
        return self._total([member.erased(token, docs) for member in self._members])

    def parts(self, derivative: Any) -> Iterator[tuple[Terms, Floats]]:
        """The terms of all layers, and the derivative with respect to the array of each.

        derivative: With respect to the scores.
        """
        for member in self._members:
            yield from member.parts(derivative)

    def rows(self, derivative: Any, steps: Optional[Steps] = None) -> list[Row]:
        """What each weight adds to a sum of scores.

        derivative: How often each score is used.
        steps (Steps): Transitions, where each is to have a row of its own.
        """
        found: list[Row] = []
        for terms, of_array in self.parts(derivative):
            uses = terms.uses(of_array)
            sizes = np.abs(uses * terms.value * terms.weight)
            [some] = np.nonzero(
                sizes > NOTHING * sizes.max(initial=0.0)
            )  # far from the span there are many, of next to nothing
            found += self._rows(terms.only(some), uses[some])
        return found + self._shared_rows(derivative, steps)

    def _rows(self, terms: Terms, uses: Floats) -> list[Row]:
        features = {row: terms.name(row) for row in np.unique(terms.feature).tolist()}
        tags = {column: self.tags_of(column, terms.shape) for column in np.unique(terms.column).tolist()}
        first, behind = (ends[terms.place].tolist() for ends in terms.tokens)
        columns = (terms.feature, terms.column, terms.value, terms.weight, uses, terms.value * terms.weight * uses)
        return [
            Row(*features[row], token, end, tags[column], value, weight, use, contribution)
            for token, end, row, column, value, weight, use, contribution in zip(
                first, behind, *(array.tolist() for array in columns)
            )
        ]

    def tags_of(self, column: int, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The tags of a column of an array of this shape."""
        return self._names_of(None, (column,) if len(shape) == 2 else divmod(column, shape[2]))

    def _names_of(self, parameter: Optional[str], states: tuple) -> tuple[str, ...]:
        """The names of states of features (None), or of a parameter."""
        return tuple(self._tags[n] for n in self._architecture.named_states(self._model, parameter, states))

    def _shared_rows(self, derivative: Any, steps: Optional[Steps]) -> list[Row]:
        uses, rows = self._architecture.derivatives(derivative), []
        if steps is not None:
            weights = self.shared["transitions"]
            for token, before, after, use in zip(*(column.tolist() for column in steps)):
                tags = self._tags[before], self._tags[after]
                rows.append(_shared("transitions", tags, float(weights[before, after]), use, token))
        for name, of_name in uses.items():
            weights = self.shared[name]
            for index in np.argwhere((of_name != 0.0) & (weights != 0.0)).tolist():
                if name == "transitions" and steps is not None:
                    continue
                place = tuple(index)
                names = (self._tags[index[1]],) if name == "lengths" else self._names_of(name, place)
                row = _shared(name, names, float(weights[place]), float(of_name[place]))
                rows.append(row if name != "lengths" else row._replace(feature=f"length={index[0] + 1}"))
        return [row for row in rows if row.contribution]


def _array(part: Any, name: str) -> Floats:
    """An array of what a layer gives, or of the derivative with respect to it."""
    if isinstance(part, EncodedSegments):
        part = part.emissions if name == "scores" else part.spans
    return getattr(part, name)


def _shared(name: str, tags: tuple[str, ...], weight: float, use: float, token: Optional[int] = None) -> Row:
    """Of a weight that all tokens share."""
    feature, end = name.removesuffix("s"), None if token is None else token + 1
    return Row(feature, name, None, token, end, tags, 1.0, weight, use, weight * use)
