"""The weights of a model with their names: as rows, as text, and as an overview of the component."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial, singledispatch
from typing import NamedTuple, Optional, SupportsIndex, Union

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from .. import checks
from ..models.node import Node
from ..models.pool import PoolNode, share_attributes
from ..models.sparse import SparseNode
from ..models.structure import Block, Feature, StructureNode, templates_of
from ..models.texts import OfTexts
from ..pipeline.decoding import Decoding
from ..pipeline.prediction import CRFPipe
from ..types import Settings
from .explanation import aligned, weights_table

FRONT = "^"  # in n-grams of tags: the start of a sequence
_SHOWN = 20  # rows of a printed table
# Keeps a feature in one column of one line, whatever characters its words have
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_HEADS = ("weight", "for", "feature", "count")


def members_of(model: Model) -> list[tuple[Model, float]]:
    """The members of a component's model if it is a pool, else the model itself, each with its share."""
    if not isinstance(model.attrs["node"], PoolNode):
        return [(model, 1.0)]
    share_attributes(model)
    shares = np.asarray(model.get_param("shares"), dtype=np.float64)
    return list(zip(model.layers, shares.tolist()))


class WeightRow(NamedTuple):
    """A weight.

    feature (str): The feature with its values; "transition", "first", "last" or "length=N" for parameters that all tokens share.
    template (str), offset (Optional[int]): Template and offset of the feature, see `explanation.Row`.
    tags (Tuple[str, ...]): The tag that the weight belongs to, the two tags of a transition, or the tags of an n-gram; for states
        that belong to a label also the label.
    weight (float): The learned weight.
    count (Optional[int]): Number of times that training saw the feature; None if the model did not store it.
    """

    feature: str
    template: str
    offset: Optional[int]
    tags: tuple[str, ...]
    weight: float
    count: Optional[int]


class WeightRows(list[WeightRow]):
    """A list of weights, the largest first, that prints as a table."""

    def __getitem__(self, index: Union[SupportsIndex, slice]) -> "Union[WeightRow, WeightRows]":
        item = super().__getitem__(index)
        return WeightRows(item) if isinstance(item, list) else item  # a slice prints as a table, too

    def _cells(self) -> list[tuple[str, ...]]:
        """The cells of the printed rows; the last row counts the weights that are not shown."""
        cells = []
        for row in itertools.islice(self, _SHOWN):
            count = "" if row.count is None else f"{row.count:,}"
            cells.append((f"{row.weight:+.4f}", " → ".join(row.tags), row.feature, count))
        if len(self) > _SHOWN:
            cells.append(("", "", f"{len(self) - _SHOWN:,} others", ""))
        return cells

    def __repr__(self) -> str:
        return aligned([_HEADS, *self._cells()])

    def _repr_html_(self) -> str:
        return weights_table(_HEADS, self._cells())


@singledispatch
def blocks_of(node: Node, model: Model) -> Iterator[Block]:
    """Yield the weights of a model or layer that have names (an encoder's have none), by the class of its node. Those of layers
    have the columns of the layer as states."""
    yield from ()


@blocks_of.register
def _(node: SparseNode, model: Model) -> Iterator[Block]:
    features = node.features(model)
    for name, table in features.tables.items():
        rows = table.rows_of_pairs()
        columns = table.pair_columns.astype(np.int64)
        yield Block(
            name=name,
            weights=np.asarray(model.get_param(name)),
            states=tuple(divmod(columns, features.n_states)) if features.is_of_pairs(name) else (columns,),
            rows=rows,
            feature=partial(Feature.of, table.index),
            counts=table.counts,
            templates=templates_of(table.index, rows),
        )


@blocks_of.register
def _(node: StructureNode, model: Model) -> Iterator[Block]:
    for layer in model.layers:
        for block in blocks_of(layer.attrs["node"], layer):
            yield block._replace(states=node.named_states(model, None, block.states))
    for name, mask in node.weighed(model).items():
        # Some nodes make blocks of a parameter themselves
        blocks_of_parameter = node.weight_blocks(model, name)
        yield from [shared_block(model, name, mask)] if blocks_of_parameter is None else blocks_of_parameter


def shared_block(model: Model, name: str, mask: NDArray[np.bool_]) -> Block:
    """The weights of a parameter that all tokens share.

    mask (NDArray[np.bool_]): The weights that exist, such as those of allowed transitions.
    """
    axes = np.nonzero(mask)
    rows = np.zeros_like(axes[0])  # a single feature
    states = axes
    if name == "lengths":  # [length, state]: each length is a feature
        rows = axes[0]
        states = axes[1:]
    states = model.attrs["node"].named_states(model, name, states)
    weights = np.asarray(model.get_param(name))[mask]
    return Block(name, weights, states, rows, partial(Feature.shared, name))


@blocks_of.register
def _(node: PoolNode, model: Model) -> Iterator[Block]:
    """Weights of members, times their shares."""
    for member, share in members_of(model):
        for block in blocks_of(member.attrs["node"], member):
            yield block._replace(weights=share * block.weights)


def blocks(pipe: CRFPipe) -> Iterator[Block]:
    """Yield all weights of a component that have names."""
    return blocks_of(pipe.model.attrs["node"], pipe.model)


def weights(pipe: CRFPipe, label: Optional[str] = None, top: Optional[int] = None) -> list[WeightRow]:
    """List the largest weights. See `CRFPipe.weights`."""
    return WeightRows(largest(pipe, label, top, lambda block: block.weights != 0.0))


def largest(
    pipe: CRFPipe, label: Optional[str], top: Optional[int], chosen: Callable[[Block], NDArray[np.bool_]]
) -> list[WeightRow]:
    """List the largest weights that speak about a label.

    label (str): A label, a tag or a name of a state; None for all weights.
    top (int): Number of weights; None for all.
    chosen (Callable): Returns the weights of a block to choose from: bool[W].
    RAISES (ValueError): CRF846 for an unknown label; CRF402 for a component that was not trained.
    """
    if top is not None:
        top = checks.count(pipe.owner, "top", top, least=0, most=checks.ANY)
    pipe.require_ready([])
    names = names_of(pipe)
    states = _states_of(pipe, label)
    # Names behind those of the states are names of parts of states, which belong to no label
    is_wanted = np.append(states, np.full(len(names) - len(states), label is None))
    weights = []
    for block in blocks(pipe):
        indices = np.flatnonzero(block.about(is_wanted) & chosen(block))
        if top is not None and len(indices) > top:
            # Blocks may have millions of weights, of which a few are named and sorted
            indices = indices[np.argpartition(-np.abs(block.weights[indices]), top)[:top]]
        weights += [(block, int(n)) for n in indices]
    weights.sort(key=lambda weight: -abs(float(weight[0].weights[weight[1]])))
    labels = pipe.decoding.state_labels  # they name the weights of blocks that count labels
    return [_row(block, n, names if block.label_of is None else labels) for block, n in weights[:top]]


def _row(block: Block, n: int, names: list[str]) -> WeightRow:
    """The weight number n of a block. names (List[str]): Names of the states."""
    row = int(block.rows[n])
    columns = [int(numbers[n]) for numbers in block.states]  # states, or labels
    if block.label_of is not None:  # the weight belongs to a label, whose first state has the label's name
        columns = [int((block.label_of == label).argmax()) for label in columns]
    count = None if block.counts is None else int(block.counts[row]) or None
    return WeightRow(*block.feature(row), tuple(names[column] for column in columns), float(block.weights[n]), count)


def names_of(pipe: CRFPipe) -> list[str]:
    """Names of the states, of the start of a sequence, and of the parts of states that have weights of their own."""
    return [*state_names(pipe.decoding), FRONT, *pipe.model.attrs["node"].part_names]


def state_names(decoding: Decoding) -> list[str]:
    """Names of the states: tags, or "TAG/1", "TAG/2" … for a tag with several states; then `further_names` of the
    decoding."""
    tags = decoding.annotation.tags()
    tag_of = decoding.tag_of  # [S], sorted
    has_several = np.bincount(tag_of)[tag_of] > 1
    # The number of a state among the states of its tag, from 1
    number = 1 + np.arange(len(tag_of)) - np.searchsorted(tag_of, tag_of)
    columns = zip(tag_of.tolist(), number.tolist(), has_several.tolist())
    names = [f"{tags[tag]}/{n}" if several else tags[tag] for tag, n, several in columns]
    return [*names, *decoding.further_names]


def _states_of(pipe: CRFPipe, label: Optional[str]) -> NDArray[np.bool_]:
    """Find the states of a label: bool[N] over the names of `state_names`.

    label (str): A label, a tag, or one of the names; None for all states.
    RAISES (ValueError): CRF846 for any other name.
    """
    names = state_names(pipe.decoding)
    tags = pipe.tags()
    if label is None:
        return np.ones(len(names), dtype=bool)
    if label in pipe.labels:
        return pipe.decoding.label_of_names == pipe.annotation.labels.index(label)
    if label in names:
        return np.array([name == label for name in names])
    if label not in tags:
        checks.labels(pipe.owner, [label], [*pipe.labels, "O"])
    return pipe.decoding.tag_of == tags.index(label)


def dump(pipe: CRFPipe) -> str:
    """Write all weights as text. See `CRFPipe.dump`."""
    rows = ((" → ".join(row.tags), row.feature.translate(_ESCAPES), f"{row.weight:.9g}") for row in weights(pipe))
    return "".join("\t".join(row) + "\n" for row in rows)


# ---------------------------------------------------------------------------------------------------------- overview


def overview(pipe: CRFPipe, label: Optional[str] = None, top: int = 20) -> Settings:
    """Describe a trained component by plain values: labels, templates, largest weights, transitions, lists and rules.

    pipe (CRFPipe): The component.
    label (str): List the weights of this label or tag only; the weights of each label if None.
    top (int): Number of weights to list for and against each label.
    RETURNS (Dict)
    RAISES (ValueError): CRF846 for an unknown label; CRF402 for a component that was not trained.
    """
    pipe.require_ready([])
    rules: list[Settings] = []
    for chain in pipe.chains:
        compiled = chain.rules()
        if compiled is None:
            continue
        for rule, how, in_probabilities in compiled.all.enforcement():
            rules.append({**rule.table, "name": rule.name, "enforced by": how, "in probabilities": in_probabilities})
    gazetteers = {}
    clusters = {}
    for store in pipe.feature_stores:
        gazetteers.update({name: len(gazetteer.entries) for name, gazetteer in store.gazetteers.items()})
        clusters.update({name or "words": len(table) for name, table in store.clusters.items()})
    settings = {
        "component": pipe.name,
        "class": type(pipe).__name__,
        "model": pipe.model.name,
        "labels": list(pipe.labels),
        "tags": state_names(pipe.decoding),
        "weights": sum(len(block.weights) for block in blocks(pipe)),
        "templates": _templates(pipe),
        "top": {name: _for_and_against(pipe, name, top) for name in ([label] if label else _names_with_weights(pipe))},
        "transitions": _transitions(pipe),
        "gazetteers": gazetteers,
        "clusters": clusters,
        "rules": rules,
    }
    if pipe.decoding.longest is not None:
        settings["longest"] = dict(zip(pipe.tags(), pipe.decoding.longest.tolist()))
    if pipe.has_encoder:
        settings["encoder"] = pipe.model.get_ref("tok2vec").name
    return settings


def _names_with_weights(pipe: CRFPipe) -> list[str]:
    """The tags without a label, such as O, and the labels. In models whose features have weights for further states without a
    label, and not for labels, the names of these states replace the labels."""
    decoding = pipe.decoding
    tags_without_label = pipe.tags()[: decoding.tag_spans.offset]
    # `label_of_names` begins with the labels of the usual states; it is -1 for names without a label
    labels_of_further = decoding.label_of_names[decoding.n_states :].tolist()
    without_label = [name for name, label in zip(decoding.further_names, labels_of_further) if label < 0]
    return [*tags_without_label, *(without_label or pipe.labels)]


def _for_and_against(pipe: CRFPipe, label: str, top: int) -> dict[str, list[dict[str, object]]]:
    """List the largest weights of features for a label, and against it."""

    def of_single_states(block: Block) -> bool:
        return block.templates is not None and len(block.states) == 1

    positive = largest(pipe, label, top, lambda block: (block.weights > 0) & of_single_states(block))
    negative = largest(pipe, label, top, lambda block: (block.weights < 0) & of_single_states(block))
    return {"for": [row._asdict() for row in positive], "against": [row._asdict() for row in negative]}


def _templates(pipe: CRFPipe) -> list[Settings]:
    """For each template, the numbers of its features and weights, and the sum of absolute weights; the largest sum first."""
    rows = []
    for block in blocks(pipe):
        names = [block.name]
        template_of_weight = np.zeros(len(block.weights), dtype=np.int64)
        if block.templates is not None:
            names, template_of_weight = block.templates
        # A feature has a weight for each column: count its pair of template and row once
        template_of_feature, _ = np.unique(np.stack([template_of_weight, block.rows]), axis=1)
        features = np.bincount(template_of_feature, minlength=len(names)).tolist()
        weights = np.bincount(template_of_weight, minlength=len(names)).tolist()
        masses = np.bincount(template_of_weight, np.abs(block.weights), minlength=len(names)).tolist()
        for name, n_features, n_weights, mass in zip(names, features, weights, masses):
            if n_weights:
                rows.append(
                    {"template": name, "features": n_features, "weights": n_weights, "mass": mass, "of": block.name}
                )
    return sorted(rows, key=lambda row: -row["mass"])


def _transitions(pipe: CRFPipe) -> dict[str, object]:
    """Weights of the transition from each tag (row) to each tag (column), and of the first and the last tag of a sequence; None
    for transitions that never occur."""
    members = members_of(pipe.model)
    first_member, _ = members[0]
    if isinstance(first_member.attrs["node"], OfTexts):
        return {}  # a text has one label, and no transitions
    possible = first_member.attrs["node"].explained(first_member).node.possible(first_member)
    tables = {}
    for name in ("transitions", "first", "last"):
        # Of a pool, the sum of share · weights over its members
        of_members = [share * member.attrs["node"].explained(member).weights[name] for member, share in members]
        weights = np.add.reduce(of_members).astype(object)
        weights[~possible[name]] = None
        tables[name] = weights.tolist()
    return tables
