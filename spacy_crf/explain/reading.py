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
# The first token of each place, and the token behind the last one
Ends = tuple[NDArray[np.int64], NDArray[np.int64]]


# Parts of templates that read tokens beside the edge of a span, with the offset from the first or the last token
_EDGES = {"before": -1, "first": 0, "last": 0, "after": 1}


def read_by(template: str) -> tuple[list[int], list[int], bool]:
    """The tokens that a template reads: offsets from the first token of a place, offsets from its last token, and whether the
    template reads all tokens in between."""
    from_begin = []
    from_end = []
    inside = False
    for part in template.split("|"):
        match = _SEGMENT.match(part)
        offset = offset_of(part)
        if match is None:
            if offset is not None:  # None for parts that read no token, such as "bias"
                from_begin.append(offset)
        elif match[1] in _EDGES:
            offsets = from_begin if match[1] in ("first", "before") else from_end
            offsets.append((offset or 0) + _EDGES[match[1]])
        elif match[1] != "length":
            inside = True
    return from_begin, from_end, inside


class Terms(NamedTuple):
    """N weights whose sums are one output array of a layer. A feature occurs at a place (a token, or a listed span); its weight
    times its value is added to a column (a state, or a pair of states) of the row of that place."""

    array: str  # name of the array
    place: NDArray[np.int64]  # [N]
    row: NDArray[np.int64]  # [N] the place; if tokens share a row of the array, as those of a text do, that row
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
        """Subtract value · weight of each term from its cell of an array like that of `sum`."""
        rest = sums.reshape(self.shape[0], -1).copy()
        np.subtract.at(rest, (self.row, self.column), self.value * self.weight)
        return rest.reshape(self.shape)

    def uses(self, derivative: Floats) -> Floats:
        """Uses of each weight (float64[N]) in a sum of scores, from the derivative of that sum with respect to the array."""
        return derivative.reshape(self.shape[0], -1)[self.row, self.column]

    def readers(self) -> "Readers":
        """List the weights whose features read each token."""
        features_of_templates: dict[str, list[int]] = {}
        for feature in np.unique(self.feature).tolist():
            features_of_templates.setdefault(self.name(feature).template, []).append(feature)
        tokens = [np.zeros(0, dtype=np.int64)]
        weights = [np.zeros(0, dtype=np.int64)]
        for template, features in features_of_templates.items():
            of_template = np.flatnonzero(np.isin(self.feature, features))  # weights
            begin = self.tokens[0][self.place[of_template]]
            end = self.tokens[1][self.place[of_template]]
            from_begin, from_end, inside = read_by(template)
            tokens += [begin + offset for offset in from_begin]
            tokens += [end - 1 + offset for offset in from_end]
            weights += [of_template] * (len(from_begin) + len(from_end))
            if inside:
                tokens.append(arrays.ranges(begin, end))
                weights.append(np.repeat(of_template, end - begin))
        token = np.concatenate(tokens)
        weight = np.concatenate(weights)
        order = np.argsort(token, kind="stable")
        return Readers(token[order], weight[order])

    def select(self, weights: NDArray) -> "Terms":
        """The terms of some weights, given by a mask (bool[N]) or by their numbers."""
        return self._replace(
            place=self.place[weights],
            row=self.row[weights],
            column=self.column[weights],
            value=self.value[weights],
            weight=self.weight[weights],
            feature=self.feature[weights],
        )


class Readers(NamedTuple):
    """R pairs of a token and a weight whose feature reads the token, sorted by token. A pair may occur twice."""

    token: NDArray[np.int64]  # [R]
    weight: NDArray[np.int64]  # [R] numbers of the terms

    def weights_of(self, token: int) -> NDArray[np.int64]:
        """The weights whose features read a token."""
        first, behind = np.searchsorted(self.token, [token, token + 1])
        return np.unique(self.weight[first:behind])


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """The output of a layer, and the terms of its arrays.

    make_output (Callable): Makes an output from arrays, given by name; None if the layer computes scores that are no sums of
        terms, as an encoder does.
    """

    output: object
    terms: list[Terms]
    make_output: Optional[Callable[[dict[str, Floats]], object]]

    @cached_property
    def _readers_and_sums(self) -> list[tuple[Readers, Floats]]:
        """For each of `terms`, the readers of each token, and the array. They are needed for each word that is erased."""
        return [(terms.readers(), terms.sum()) for terms in self.terms]

    def erased(self, token: int, make_output: Callable[[dict[str, Floats]], object]) -> object:
        """Compute the output without the features that read a token.

        make_output (Callable): The attribute of this name, which the caller has found not to be None.
        """
        sums: dict[str, Floats] = {}
        for terms, (readers, whole) in zip(self.terms, self._readers_and_sums):
            erased_terms = terms.select(readers.weights_of(token))
            # Several terms may belong to one array, as those of several tables do
            sums[terms.array] = sums.get(terms.array, 0.0) + erased_terms.subtracted(whole)
        return make_output(sums)


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
    # Look up the features token by token, even if all tokens of a unit share a row: each feature has a token then
    features = features if units is None else features.of_unit(TOKEN)
    found = features.look_up(docs)
    # Hashed features share rows, so an index of this Doc's features numbers them, in place of the index of the table
    named_indices = {}
    if any(isinstance(table.index, HashedIndex) for table in features.tables.values()):
        found, named_indices = _with_names(features, docs, found)  # vectors are not hashed
    size = int(found.starts[-1])
    layer_terms = []
    sums = {}
    for kind, of_kind in found.features.items():
        name, array = features.kinds[kind]
        tokens = _tokens_of(found.listed if array == "spans" else None, size)
        table = features.tables[name]
        weights = np.asarray(layer.get_param(name))
        named_index = named_indices.get(name)
        place, feature, column, value, weight = _expand(table, weights, of_kind, named_index)
        row = place
        n_rows = len(tokens[0])
        if units is not None:  # all tokens of a unit share a row
            n_rows = len(units.tokens) - 1
            row = np.repeat(np.arange(n_rows), np.diff(units.tokens))[place]
        terms = Terms(
            array=array,
            place=place,
            row=row,
            column=column,
            value=value,
            weight=weight,
            feature=feature,
            name=partial(Feature.of, table.index if named_index is None else named_index),
            tokens=tokens,
            shape=(n_rows, *features.shape(name)),
        )
        if isinstance(table.index, VectorIndex):
            terms = _of_vectors(terms, table.index)
        layer_terms.append(terms)
        sums[array] = sums.get(array, 0.0) + terms.sum()
    starts = found.starts if units is None else units.texts

    def make_output(arrays: dict[str, Floats]) -> object:
        return features.output(arrays, starts, found.listed)

    return LayerTerms(make_output(sums), layer_terms, make_output)


def _tokens_of(listed: Optional[SpanList], size: int) -> Ends:
    """The tokens of each place. The places are the listed spans, or (None) `size` single tokens."""
    if listed is None:
        return np.arange(size), np.arange(1, size + 1)
    begin = np.repeat(np.arange(size), np.diff(listed.starts))
    return begin, begin + listed.lengths


def _expand(
    table: Table, weights: Floats, found: TokenFeatures, named_index: Optional[FeatureIndex]
) -> tuple[NDArray, ...]:
    """List place, feature, column, value and weight for all weights of the found features: five arrays [N].

    weights (float32[W]): The weights of the table.
    named_index (FeatureIndex): The index that numbers the features, if it is not the table's index.
    """
    # One entry for each feature at a place
    feature = found.rows.astype(np.int64)
    place = np.repeat(np.arange(len(found.starts) - 1), np.diff(found.starts))
    value = np.ones(len(feature)) if found.values is None else found.values.astype(np.float64)
    row = feature if named_index is None else table.index.rows(named_index.keys).astype(np.int64)[feature]
    # One entry for each weight of these features
    begin = table.pair_starts[row]
    end = table.pair_starts[row + 1]
    n_weights = end - begin
    pairs = arrays.ranges(begin, end)
    column = table.pair_columns[pairs].astype(np.int64)
    weight = weights[pairs].astype(np.float64)
    return np.repeat(place, n_weights), np.repeat(feature, n_weights), column, np.repeat(value, n_weights), weight


def _of_vectors(terms: Terms, index: VectorIndex) -> Terms:
    """Make terms with one feature for each vector, from terms with a feature for each dimension of the vectors. The weight is the
    product of the vector and the weights of its dimensions."""
    n_offsets = len(index.offsets)
    size = int(np.prod(terms.shape[1:]))
    # One cell for each place, offset and column; all dimensions of a vector are in one cell
    cells = (terms.place * n_offsets + terms.feature // index.width) * size + terms.column
    used, first, cell_of_term = np.unique(cells, return_index=True, return_inverse=True)
    vectors = used // size

    def name(number: int) -> Feature:
        offset = index.offsets[number]
        return Feature(f"vector[{offset}]", f"vector[{offset}]", offset)

    return terms._replace(
        place=vectors // n_offsets,
        row=terms.row[first],
        column=used % size,
        value=np.ones(len(used)),
        weight=np.bincount(cell_of_term, terms.value * terms.weight, minlength=len(used)),
        feature=vectors % n_offsets,
        name=name,
    )


def _with_names(
    features: SparseFeatures, docs: DocBatch, found: FoundFeatures
) -> tuple[FoundFeatures, dict[str, FeatureIndex]]:
    """Give hashed features, which share rows, the names that they have in the text.

    RETURNS (Tuple[FoundFeatures, Dict[str, FeatureIndex]]): The features, numbered by an index of each table.
    """
    # Compiled anew: the reader of prediction does not keep names
    compiled = features.compile()
    compiled.reader.keep_names(True)
    columns = compiled.reader.read(docs)
    indices = {}
    named = {}
    for kind, templates in compiled.templates.items():
        builder = IndexBuilder(templates, FeatureIndex.empty())
        named[kind] = builder.add(columns)
        indices[features.kinds[kind].table] = builder.freeze(np.ones(len(builder), dtype=bool), docs[0].vocab)
    return found._replace(features={**found.features, **named}), indices


@read_layer.register
def _(node: EncoderNode, layer: Model, docs: DocBatch) -> LayerTerms:
    return read_whole(layer, docs, ENCODER)


def read_whole(layer: Model, docs: DocBatch, source: str) -> LayerTerms:
    """Read the output of a layer whose scores have no parts, such as an encoder's. Each score becomes a term.

    source (str): Name of the feature and the template of all terms.
    """
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


def _whole(array: str, scores: Floats, source: str, tokens: Optional[Ends] = None) -> Terms:
    """Terms whose weights are the scores themselves.

    scores (float64[N, S]): The array.
    tokens (Ends): The tokens of the N places, by default single tokens.
    """
    place, column = np.indices(scores.shape)
    feature = Feature(source, source, None)
    return Terms(
        array=array,
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


def read_terms(token_terms: TokenTerms, emissions: Emissions) -> LayerTerms:
    """Turn terms that no layer computes into the terms of a layer, whose output is their sum.

    emissions (Emissions): The output of another layer; this output gets its shape and its starts.
    """
    number, column = np.nonzero(token_terms.scores)  # [N] number and state of each term that is not 0
    tokens = token_terms.tokens[number]  # [N]

    def name(row: int) -> Feature:
        return Feature(token_terms.names[row], token_terms.template, 0)

    def make_output(sums: dict[str, Floats]) -> Emissions:
        return Emissions(sums["scores"], None, emissions.starts)

    terms = Terms(
        array="scores",
        place=tokens,
        row=tokens,
        column=column,
        value=np.ones(len(number)),
        weight=token_terms.scores[number, column],
        feature=number,
        name=name,
        tokens=_tokens_of(None, len(emissions.scores)),
        shape=emissions.scores.shape,
    )
    return LayerTerms(make_output({"scores": terms.sum()}), [terms], make_output)


def _outputs_of(layers: list[LayerTerms]) -> tuple:
    return tuple(layer.output for layer in layers)


def _read_layers(model: Model, explained: Explained, docs: DocBatch) -> list[LayerTerms]:
    """Read all layers of a model as terms, and last the terms that tokens get from elsewhere than a layer."""
    layers = []
    for layer in model.layers:
        read = read_layer(layer.attrs["node"], layer, docs)
        if read is not None:
            layers.append(read)
    if explained.terms is not None:
        token_terms = explained.terms(model, _outputs_of(layers), docs)
        if token_terms is not None:
            layers.append(read_terms(token_terms, cast(Emissions, layers[0].output)))
    return layers


class Reading:
    """The scores of one Doc, and the weights whose sums they are.

    pipe (CRFPipe): The component, whose model may be a pool of several members.
    docs (DocBatch): A single Doc.
    """

    def __init__(self, pipe: CRFPipe, docs: DocBatch):
        self.docs = docs
        self._tags = names_of(pipe)
        self._model = pipe.model
        self._models = []
        self._shares = []
        self._explained: list[Explained] = []
        self._layers: list[list[LayerTerms]] = []
        for model, share in members_of(pipe.model):
            explained = model.attrs["node"].explained(model)
            self._models.append(model)
            self._shares.append(share)
            self._explained.append(explained)
            self._layers.append(_read_layers(model, explained, docs))
        self._node = self._explained[0].node
        # Weights that all tokens share, summed over the members of a pool: Σ share · weights
        self.shared: dict[str, Floats] = {}
        for name in self._node.traits.params:
            of_members = [share * member.weights[name] for share, member in zip(self._shares, self._explained)]
            self.shared[name] = np.add.reduce(of_members)
        self._outputs = [_outputs_of(layers) for layers in self._layers]
        self.scores = self._join(self._outputs)

    def _join(self, outputs: list[tuple]) -> PathScores:
        """Combine the outputs of the layers of each member into scores."""
        scores = []
        for model, explained, of_layers in zip(self._models, self._explained, outputs):
            shared = self._node.potentials(model, explained.weights)
            scores.append(self._node.join(of_layers, shared))
        return scores[0] if len(scores) == 1 else self._node.weighted_sum(scores, np.array(self._shares))

    def of_states(self, name: str, n_states: int) -> Floats:
        """The weights of a parameter for the states of labellings: float64[S], or float64[S, S] for transitions."""
        weights = self.shared[name]
        places = self._node.places_of(np.arange(n_states))
        return weights[np.ix_(*[places] * weights.ndim)]

    @property
    def reads_docs(self) -> bool:
        """Whether `erased` needs a Doc: some scores are no sums of weights of features."""
        return any(layer.make_output is None for layer in chain.from_iterable(self._layers))

    def erased(self, token: int, docs: Optional[DocBatch]) -> PathScores:
        """Compute the scores without a word: without the features that read it.

        docs (DocBatch): For layers whose scores are no sums of weights of features, the Doc with an unknown word in place of the
            word.
        """
        outputs = []
        for model, layers in zip(self._models, self._layers):
            of_layers = []
            for terms, layer in zip(layers, model.layers):
                if terms.make_output is None:
                    of_layers.append(layer.predict(docs))
                else:
                    of_layers.append(terms.erased(token, terms.make_output))
            outputs.append(tuple(of_layers))
        return self._join(outputs)

    def parts(self, derivative: PathScores) -> Iterator[tuple[Terms, Floats, Optional[Floats]]]:
        """Yield the arrays of all layers: their terms, their uses, and the factors that turn their columns into states.

        derivative (PathScores): The derivative of a sum of scores with respect to the scores, that is, their uses in the sum.
        YIELDS (Terms, Floats, Optional[float64[C, S]]): The uses are the derivative of the sum with respect to the array. Factors
            are None where columns are states.
        """
        for share, explained, layers, outputs in zip(self._shares, self._explained, self._layers, self._outputs):
            of_layers, _ = self._node.part(derivative, outputs)
            for number, (layer, of_layer) in enumerate(zip(layers, of_layers)):
                to_states = explained.mixes[number] if explained.mixes else None
                for terms in layer.terms:
                    holder = of_layer
                    if isinstance(of_layer, EncodedSegments):
                        holder = of_layer.emissions if terms.array == "scores" else of_layer.spans
                    yield terms._replace(weight=share * terms.weight), getattr(holder, terms.array), to_states

    def rows(self, derivative: PathScores, steps: Optional[list[Step]] = None) -> list[Row]:
        """Compute the contribution of each weight to a sum of scores.

        derivative (PathScores): Uses of each score in the sum.
        steps (List[Step]): Transitions that get a row each; None for a row for each weight of a transition.
        """
        rows: list[Row] = []
        for terms, uses_of_array, _ in self.parts(derivative):
            uses = terms.uses(uses_of_array)
            sizes = np.abs(uses * terms.value * terms.weight)
            # Far from a span there are many tiny contributions
            relevant = np.flatnonzero(sizes > NOTHING * sizes.max(initial=0.0))
            rows += self._feature_rows(terms.select(relevant), uses[relevant])
        return rows + self._shared_rows(derivative, steps)

    def _feature_rows(self, terms: Terms, uses: Floats) -> list[Row]:
        """A row for each term, with its uses: float64[N]."""
        # Names are made once for each feature and column, since many terms have the same
        features = {feature: terms.name(feature) for feature in np.unique(terms.feature).tolist()}
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
            rows.append(
                Row(
                    *Feature.shared("transitions"),
                    token=token,
                    end=token + 1,
                    tags=(self._tags[before], self._tags[after]),
                    value=1.0,
                    weight=weight,
                    use=use,
                    contribution=weight * use,
                )
            )
        _, uses_of_shared = self._node.part(derivative, self._outputs[0])
        for name, uses in uses_of_shared.items():
            if name == "transitions" and steps is not None:
                continue
            weights = self.shared[name]
            for index in np.argwhere((uses != 0.0) & (weights != 0.0)).tolist():
                weight = float(weights[tuple(index)])
                use = float(uses[tuple(index)])
                states = tuple(index[1:] if name == "lengths" else index)
                rows.append(
                    Row(
                        *Feature.shared(name, index[0]),
                        token=None,
                        end=None,
                        tags=self.names_of(name, states),
                        value=1.0,
                        weight=weight,
                        use=use,
                        contribution=weight * use,
                    )
                )
        return [row for row in rows if row.contribution]
