"""The scores of one Doc as sums of named weights, in double precision."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial, singledispatch
from itertools import chain
from typing import NamedTuple, Optional, cast

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from .. import arrays
from ..features.doc_batch import TOKEN, DocBatch, UnitRows
from ..features.extractor import IndexBuilder
from ..features.feature_index import FeatureIndex, HashedIndex, VectorIndex
from ..models.emissions import Emissions
from ..models.neural import EncoderNode
from ..models.node import Node
from ..models.segments import EncodedSegments
from ..models.sparse import FoundFeatures, SparseFeatures, SparseNode
from ..models.structure import Explained, Feature, TokenTerms, offset_of
from ..models.table import Table
from ..pipeline.prediction import CRFPipe
from ..types import Floats, PathScores, SpanList, TokenFeatures
from .explanation import Row
from .weights import members_of, names_of

ENCODER = "tok2vec"
NOTHING = 1e-13  # smaller contributions, relative to the largest one, have no row
_SEGMENT = re.compile(r"seg\.([a-z]+)")

# A transition: its target token, previous state, next state, and number of uses
Step = tuple[int, int, int, float]
# The first token of each place, and the token behind its last
Ends = tuple[NDArray[np.int64], NDArray[np.int64]]


def read_by(template: str) -> tuple[list[int], list[int], bool]:
    """The tokens that a template reads: offsets from the first token of a place, offsets from its last token, and whether it
    reads all tokens in between."""
    begin = []
    end = []
    inside = False
    for part in template.split("|"):
        match = _SEGMENT.match(part)
        offset = offset_of(part)
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
    """N weights whose sums are one output array of a layer. A feature occurs at a place (a token, or a listed span); its weight
    times its value is added to a column (a state, or a pair of states) of the row of that place."""

    of: str  # name of the array
    place: NDArray[np.int64]  # [N]
    row: NDArray[np.int64]  # [N] the place, or the row that several tokens share, such as a text
    column: NDArray[np.int64]  # [N]
    value: Floats  # [N]
    weight: Floats  # [N]
    feature: NDArray[np.int64]  # [N] number of the feature, for `name`
    name: Callable[[int], Feature]
    tokens: Ends
    shape: tuple[int, ...]  # of the array

    def sum(self) -> Floats:
        """The array: the sum of value · weight in each cell."""
        size = int(np.prod(self.shape[1:]))
        cells = self.row * size + self.column
        sums = np.bincount(cells, self.value * self.weight, minlength=self.shape[0] * size)
        return sums.astype(np.float64, copy=False).reshape(self.shape)

    def subtracted(self, sums: Floats) -> Floats:
        """Subtract the weights from an array of their shape."""
        rest = sums.reshape(self.shape[0], -1).copy()
        np.subtract.at(rest, (self.row, self.column), self.value * self.weight)
        return rest.reshape(self.shape)

    def uses(self, derivative: Floats) -> Floats:
        """Uses of each weight (float64[N]), from the derivative with respect to the array."""
        return derivative.reshape(self.shape[0], -1)[self.row, self.column]

    def readers(self) -> "Readers":
        """List the weights whose features read each token."""
        begin = self.tokens[0][self.place]
        end = self.tokens[1][self.place]
        features, number = np.unique(self.feature, return_inverse=True)
        of_template: dict[str, list[int]] = {}
        for n, row in enumerate(features.tolist()):
            of_template.setdefault(self.name(row).template, []).append(n)
        tokens = [np.zeros(0, dtype=np.int64)]
        weights = [np.zeros(0, dtype=np.int64)]
        for template, chosen in of_template.items():
            some = np.flatnonzero(np.isin(number, chosen))
            from_begin, from_end, inside = read_by(template)
            tokens += [begin[some] + offset for offset in from_begin]
            tokens += [end[some] - 1 + offset for offset in from_end]
            weights += [some] * (len(from_begin) + len(from_end))
            if inside:
                tokens.append(arrays.ranges(begin[some], end[some]))
                weights.append(np.repeat(some, end[some] - begin[some]))
        token = np.concatenate(tokens)
        weight = np.concatenate(weights)
        order = np.argsort(token, kind="stable")
        return Readers(token[order], weight[order])

    def only(self, chosen: NDArray) -> "Terms":
        """Some of the terms, by a mask or by their numbers."""
        return self._replace(**{name: getattr(self, name)[chosen] for name in self._fields[1:7]})


class Readers(NamedTuple):
    """Which weights have features that read which token, sorted by token. A pair may be there twice."""

    token: NDArray[np.int64]  # [R]
    weight: NDArray[np.int64]  # [R] numbers of the terms

    def of(self, token: int) -> NDArray[np.int64]:
        """The weights whose features read a token."""
        first, behind = np.searchsorted(self.token, [token, token + 1])
        return np.unique(self.weight[first:behind])


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """The output of a layer, and the terms of its arrays."""

    output: object
    terms: list[Terms]
    summed: Optional[Callable[[dict[str, Floats]], object]]  # makes an output from other sums; None for an encoder

    @cached_property
    def _known(self) -> list[tuple[Readers, Floats]]:
        """For the terms of each array, the readers of each token, and the array."""
        return [(terms.readers(), terms.sum()) for terms in self.terms]

    def erased(self, token: int, summed: Callable[[dict[str, Floats]], object]) -> object:
        """The output without the features that read a token. summed (Callable): `summed`, where it is not None."""
        sums: dict[str, Floats] = {}
        for terms, (readers, whole) in zip(self.terms, self._known):
            gone = terms.only(readers.of(token))
            sums[terms.of] = sums.get(terms.of, 0.0) + gone.subtracted(whole)
        return summed(sums)


@singledispatch
def read_layer(node: Node, layer: Model, docs: DocBatch) -> Optional[LayerTerms]:
    """Read the output of a layer as terms, by the class of its node; None for layers whose output is no score.

    docs (DocBatch): A single Doc.
    """
    return None


@read_layer.register
def _(node: SparseNode, layer: Model, docs: DocBatch) -> LayerTerms:
    """Terms of sparse features. Their sums are in double precision, while prediction sums in single precision."""
    features: SparseFeatures = node.features(layer)
    units = None if features.unit is None else UnitRows.of(features.unit, docs.sequence_starts(), docs.bounds)
    # So each feature has a token
    features = features if units is None else features.of_unit(TOKEN)
    found = features.look_up(docs)
    own = {}
    if any(isinstance(table.index, HashedIndex) for table in features.tables.values()):
        found, own = _named(features, docs, found)  # vectors are not hashed
    size = int(found.starts[-1])
    terms = []
    sums = {}
    for kind, of_kind in found.features.items():
        name, of = features.kinds[kind]
        tokens = _tokens_of(found.listed if of == "spans" else None, size)
        table = features.tables[name]
        weights = np.asarray(layer.get_param(name))
        # The index that numbers the features, where it is not that of the table
        named = own.get(name)
        place, row, column, value, weight = _expand(table, weights, of_kind, named)
        rows = place
        n_rows = len(tokens[0])
        if units is not None:  # all tokens of a unit share a row
            n_rows = len(units.tokens) - 1
            rows = np.repeat(np.arange(n_rows), np.diff(units.tokens))[place]
        one = Terms(
            of=of,
            place=place,
            row=rows,
            column=column,
            value=value,
            weight=weight,
            feature=row,
            name=partial(Feature.of, table.index if named is None else named),
            tokens=tokens,
            shape=(n_rows, *features.shape(name)),
        )
        terms.append(_of_vectors(one, table.index) if isinstance(table.index, VectorIndex) else one)
        sums[of] = sums.get(of, 0.0) + terms[-1].sum()
    starts = found.starts if units is None else units.texts

    def output(sums: dict[str, Floats]) -> object:
        return features.output(sums, starts, found.listed)

    return LayerTerms(output(sums), terms, output)


def _tokens_of(listed: Optional[SpanList], size: int) -> Ends:
    """The tokens of each place: of the listed spans, or else of `size` single tokens."""
    if listed is None:
        return np.arange(size), np.arange(1, size + 1)
    begin = np.repeat(np.arange(size), np.diff(listed.starts))
    return begin, begin + listed.lengths


def _expand(table: Table, weights: Floats, found: TokenFeatures, own: Optional[FeatureIndex]) -> tuple[NDArray, ...]:
    """List place, feature, column, value and weight for all weights of the found features.

    own (FeatureIndex): The index that numbers the features, if it is not the table's index.
    """
    rows = found.rows.astype(np.int64)
    weight_rows = rows if own is None else table.index.rows(own.keys).astype(np.int64)[rows]
    begin = table.pair_starts[weight_rows]
    end = table.pair_starts[weight_rows + 1]
    pairs = arrays.ranges(begin, end)
    counts = end - begin
    place = np.repeat(np.repeat(np.arange(len(found.starts) - 1), np.diff(found.starts)), counts)
    values = np.ones(len(rows)) if found.values is None else found.values.astype(np.float64)
    columns = table.pair_columns[pairs].astype(np.int64)
    return place, np.repeat(rows, counts), columns, np.repeat(values, counts), weights[pairs].astype(np.float64)


def _of_vectors(terms: Terms, index: VectorIndex) -> Terms:
    """Make terms with one feature for each vector; its weight is the product of the vector and the weights of its dimensions."""
    n_offsets = len(index.offsets)
    size = int(np.prod(terms.shape[1:]))
    # One cell for each place, offset and column; the dimensions of a vector share it
    cells = (terms.place * n_offsets + terms.feature // index.width) * size + terms.column
    used, first, where = np.unique(cells, return_index=True, return_inverse=True)
    place = used // size
    return terms._replace(
        place=place // n_offsets,
        row=terms.row[first],
        column=used % size,
        value=np.ones(len(used)),
        weight=np.bincount(where, terms.value * terms.weight, minlength=len(used)),
        feature=place % n_offsets,
        name=lambda n: Feature(f"vector[{index.offsets[n]}]", f"vector[{index.offsets[n]}]", index.offsets[n]),
    )


def _named(
    features: SparseFeatures, docs: DocBatch, found: FoundFeatures
) -> tuple[FoundFeatures, dict[str, FeatureIndex]]:
    """Give hashed features, which share rows, the names that they have in the text.

    RETURNS (Tuple[FoundFeatures, Dict[str, FeatureIndex]]): The features, numbered by an index of each table.
    """
    # A reader of its own: it keeps names, and makes the tables of words anew
    compiled = features.compile()
    compiled.reader.keep_names(True)
    columns = compiled.reader.read(docs)
    own = {}
    named = {}
    for kind, templates in compiled.templates.items():
        builder = IndexBuilder(templates, FeatureIndex.empty())
        named[kind] = builder.add(columns)
        own[features.kinds[kind].table] = builder.freeze(np.ones(len(builder), dtype=bool), docs[0].vocab)
    return found._replace(features={**found.features, **named}), own


@read_layer.register
def _(node: EncoderNode, layer: Model, docs: DocBatch) -> LayerTerms:
    return read_whole(layer, docs, ENCODER)


def read_whole(layer: Model, docs: DocBatch, source: str) -> LayerTerms:
    """Read the output of a layer whose scores have no parts, such as an encoder's, with one term of this name for each number."""
    output = layer.predict(docs)
    if isinstance(output, Emissions):
        return LayerTerms(output, [_whole("scores", output.scores, source)], None)
    assert isinstance(output, EncodedSegments)
    spans = output.spans
    terms = [
        _whole("scores", output.emissions.scores, source),
        _whole("begins", spans.begins, source),
        _whole("ends", spans.ends, source),
        _whole("spans", spans.spans, source, _tokens_of(spans.listed, len(spans.begins))),
    ]
    return LayerTerms(output, terms, None)


def _whole(of: str, scores: Floats, source: str, tokens: Optional[Ends] = None) -> Terms:
    """Terms whose weights are the scores themselves: float64[N, S]. tokens: Those of the N places, by default single ones."""
    place, column = np.indices(scores.shape)
    feature = Feature(source, source, None)
    return Terms(
        of=of,
        place=place.ravel(),
        row=place.ravel(),
        column=column.ravel(),
        value=np.ones(scores.size),
        weight=scores.ravel(),
        feature=np.zeros(scores.size, dtype=np.int64),
        name=lambda row: feature,
        tokens=_tokens_of(None, len(scores)) if tokens is None else tokens,
        shape=scores.shape,
    )


def read_terms(given: TokenTerms, emissions: Emissions) -> LayerTerms:
    """Present the scores that tokens receive from elsewhere as a layer of the model."""
    names, tokens, scores, template = given
    size = emissions.scores.shape
    starts = emissions.starts
    some, column = np.nonzero(scores)
    values = (np.ones(len(some)), scores[some, column])
    every = np.arange(size[0])

    def name(row: int) -> Feature:
        return Feature(names[row], template, 0)

    def output(sums: dict[str, Floats]) -> Emissions:
        return Emissions(sums["scores"], None, starts)

    terms = Terms("scores", tokens[some], tokens[some], column, *values, some, name, (every, every + 1), size)
    return LayerTerms(output({"scores": terms.sum()}), [terms], output)


def _outputs_of(layers: list[LayerTerms]) -> tuple:
    return tuple(layer.output for layer in layers)


def _read_layers(model: Model, explained: Explained, docs: DocBatch) -> list[LayerTerms]:
    """Read all layers of a model as terms, and last the scores that tokens receive from elsewhere."""
    read = [read_layer(layer.attrs["node"], layer, docs) for layer in model.layers]
    found = [layer for layer in read if layer is not None]
    given = None
    if explained.terms is not None:
        given = explained.terms(model, _outputs_of(found), docs)
    return found if given is None else [*found, read_terms(given, cast(Emissions, found[0].output))]


class Reading:
    """The scores of one Doc, and the weights whose sums they are.

    pipe (CRFPipe): The component, whose model may be a pool of several members.
    docs (DocBatch): A single Doc.
    """

    def __init__(self, pipe: CRFPipe, docs: DocBatch):
        self.docs = docs
        self._tags = names_of(pipe)
        self._model = pipe.model
        models, shares = zip(*members_of(pipe.model))
        self._models = models
        self._shares = shares
        explained: list[Explained] = [model.attrs["node"].explained(model) for model in models]
        self._node = explained[0].node
        self._weights = [each.weights for each in explained]
        self._mixes = [each.mixes for each in explained]
        self._layers = [_read_layers(model, each, docs) for model, each in zip(models, explained)]
        params = self._node.traits.params
        # Weights that all tokens share, summed over the members of a pool: Σ share · weights
        self.shared: dict[str, Floats] = {}
        for name in params:
            of_members = [share * own[name] for share, own in zip(shares, self._weights)]
            self.shared[name] = np.add.reduce(of_members)
        self._outputs = [_outputs_of(layers) for layers in self._layers]
        self.scores = self._join(self._outputs)

    def _join(self, outputs: list[tuple]) -> PathScores:
        """Combine outputs of the layers of each member into scores."""
        node = self._node
        shared = [node.potentials(model, weights) for model, weights in zip(self._models, self._weights)]
        found = [node.join(own, of_member) for own, of_member in zip(outputs, shared)]
        return found[0] if len(found) == 1 else self._node.weighted_sum(found, np.array(self._shares))

    def of_states(self, name: str, n_states: int) -> Floats:
        """The weights of a parameter for the states of labellings: float64[S, ...]."""
        weights = self.shared[name]
        places = self._node.places_of(np.arange(n_states))
        return weights[np.ix_(*[places] * weights.ndim)]

    @property
    def reads_docs(self) -> bool:
        """Whether `erased` needs a Doc: some scores are no sums of weights of features."""
        return any(layer.summed is None for layer in chain.from_iterable(self._layers))

    def erased(self, token: int, docs: Optional[DocBatch]) -> PathScores:
        """Compute the scores without a word: without the features that read it.

        docs (DocBatch): For layers whose scores are no such sums, the Doc with an unknown word in place of the word.
        """
        outputs = []
        for model, layers in zip(self._models, self._layers):
            of_layers = []
            for read, layer in zip(layers, model.layers):
                of_layers.append(layer.predict(docs) if read.summed is None else read.erased(token, read.summed))
            outputs.append(tuple(of_layers))
        return self._join(outputs)

    def parts(self, derivative: PathScores) -> Iterator[tuple[Terms, Floats, Optional[Floats]]]:
        """Yield for each array of each layer its terms, ∂/∂array of the sum whose ∂/∂scores is given, and the factors of its
        columns in the scores of states: float64[C, S], see `Explained`; None where columns are states."""
        for share, layers, outputs, mixes in zip(self._shares, self._layers, self._outputs, self._mixes):
            for number, (layer, part) in enumerate(zip(layers, self._node.part(derivative, outputs)[0])):
                for terms in layer.terms:
                    own = part
                    if isinstance(part, EncodedSegments):
                        own = part.emissions if terms.of == "scores" else part.spans
                    mix = mixes[number] if mixes else None
                    yield terms._replace(weight=share * terms.weight), getattr(own, terms.of), mix

    def rows(self, derivative: PathScores, steps: Optional[list[Step]] = None) -> list[Row]:
        """Compute the contribution of each weight to a sum of scores.

        derivative: Uses of each score in the sum.
        steps (List[Step]): Transitions that get a row each.
        """
        rows: list[Row] = []
        for terms, of_array, _ in self.parts(derivative):
            uses = terms.uses(of_array)
            sizes = np.abs(uses * terms.value * terms.weight)
            # Far from a span there are many tiny ones
            [some] = np.nonzero(sizes > NOTHING * sizes.max(initial=0.0))
            rows += self._feature_rows(terms.only(some), uses[some])
        return rows + self._shared_rows(derivative, steps)

    def _feature_rows(self, terms: Terms, uses: Floats) -> list[Row]:
        """A row for each term, with its uses: float64[N]."""
        # Names are made once for each feature and column: most terms share them
        features = {row: terms.name(row) for row in np.unique(terms.feature).tolist()}
        tags = {column: self.tags_of(column, terms.shape) for column in np.unique(terms.column).tolist()}
        begin = terms.tokens[0][terms.place]
        end = terms.tokens[1][terms.place]
        contribution = terms.value * terms.weight * uses
        columns = (begin, end, terms.feature, terms.column, terms.value, terms.weight, uses, contribution)
        rows = []
        for first, behind, feature, column, *numbers in zip(*(array.tolist() for array in columns)):
            rows.append(Row(*features[feature], first, behind, tags[column], *numbers))
        return rows

    def tags_of(self, column: int, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The tags of a column of an array of this shape."""
        return self.names_of(None, (column,) if len(shape) == 2 else divmod(column, shape[2]))

    def names_of(self, parameter: Optional[str], states: tuple) -> tuple[str, ...]:
        """The names of states of features (None), or of a parameter."""
        return tuple(self._tags[n] for n in self._node.named_states(self._model, parameter, states))

    def _shared_rows(self, derivative: PathScores, steps: Optional[list[Step]]) -> list[Row]:
        """Rows of weights that all tokens share: one for each step, or else one for each weight."""
        rows = []
        for token, before, after, use in steps or ():
            place = tuple(self._node.places_of(np.array([before, after])))
            weight = float(self.shared["transitions"][place])
            tags = (self._tags[before], self._tags[after])
            feature = Feature.shared("transitions")
            rows.append(Row(*feature, token, token + 1, tags, 1.0, weight, use, weight * use))
        for name, of_name in self._node.part(derivative, self._outputs[0])[1].items():
            if name == "transitions" and steps is not None:
                continue
            weights = self.shared[name]
            for index in np.argwhere((of_name != 0.0) & (weights != 0.0)).tolist():
                weight = float(weights[tuple(index)])
                use = float(of_name[tuple(index)])
                tags = self.names_of(name, tuple(index[1:] if name == "lengths" else index))
                feature = Feature.shared(name, index[0])
                rows.append(Row(*feature, None, None, tags, 1.0, weight, use, weight * use))
        return [row for row in rows if row.contribution]
