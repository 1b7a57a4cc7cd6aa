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
        found = super().__getitem__(index)
        return WeightRows(found) if isinstance(found, list) else found

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
        states = divmod(columns, features.n_states) if features.is_of_pairs(name) else (columns,)
        own = table.counts, templates_of(table.index, rows)
        yield Block(
            name, np.asarray(model.get_param(name)), tuple(states), rows, partial(Feature.of, table.index), *own
        )


@blocks_of.register
def _(node: StructureNode, model: Model) -> Iterator[Block]:
    for layer in model.layers:
        for block in blocks_of(layer.attrs["node"], layer):
            yield block._replace(states=node.named_states(model, None, block.states))
    for name, mask in node.weighed(model).items():
        own = node.weight_blocks(model, name)
        yield from [shared_block(model, name, mask)] if own is None else own


def shared_block(model: Model, name: str, mask: NDArray[np.bool_]) -> Block:
    """The weights of a parameter that all tokens share."""
    places = np.nonzero(mask)
    rows, places = (places[0], places[1:]) if name == "lengths" else (np.zeros_like(places[0]), places)
    states = model.attrs["node"].named_states(model, name, places)
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
    """List the largest weights of a label, of those in a block that `chosen` marks (bool[W])."""
    if top is not None:
        top = checks.count(pipe.owner, "top", top, least=0, most=checks.ANY)
    pipe.require_ready([])
    # [S + parts] the states of the label; parts of states belong to no label
    wanted = _states_of(pipe, label)
    names = names_of(pipe)
    wanted = np.append(wanted, np.full(len(names) - len(wanted), label is None))
    found = []
    for block in blocks(pipe):
        [some] = np.nonzero(block.about(wanted) & chosen(block))
        if top is not None and len(some) > top:
            # Blocks may have millions of weights, of which a few are named and sorted
            some = some[np.argpartition(-np.abs(block.weights[some]), top)[:top]]
        found += [(block, int(n)) for n in some]
    found.sort(key=lambda item: -abs(float(item[0].weights[item[1]])))
    labels = pipe.decoding.state_labels
    return [_row(block, n, names if block.label_of is None else labels) for block, n in found[:top]]


def _row(block: Block, n: int, tags: list[str]) -> WeightRow:
    """The weight number n of a block, with the names of its states."""
    row = int(block.rows[n])
    numbers = [int(states[n]) for states in block.states]
    # The first state of each label stands for it
    if block.label_of is not None:
        numbers = [int((block.label_of == number).argmax()) for number in numbers]
    count = None if block.counts is None else int(block.counts[row]) or None
    return WeightRow(*block.feature(row), tuple(tags[number] for number in numbers), float(block.weights[n]), count)


def names_of(pipe: CRFPipe) -> list[str]:
    """Names of the states, of the start of a sequence, and of the parts of states that have weights of their own."""
    return [*state_names(pipe.decoding), FRONT, *pipe.model.attrs["node"].part_names]


def state_names(decoding: Decoding) -> list[str]:
    """Names of the states: tags, or "TAG/1", "TAG/2" … for a tag with several states. Further names come last."""
    tags = decoding.annotation.tags()
    tag_of = decoding.tag_of
    has_several = np.bincount(tag_of)[tag_of] > 1
    # Of the state among those of its tag
    number = 1 + np.arange(len(tag_of)) - np.searchsorted(tag_of, tag_of)
    columns = zip(tag_of.tolist(), number.tolist(), has_several.tolist())
    names = [f"{tags[tag]}/{n}" if several else tags[tag] for tag, n, several in columns]
    return [*names, *decoding.further_names]


def _states_of(pipe: CRFPipe, label: Optional[str]) -> NDArray[np.bool_]:
    """The names of states, bool[N] over `state_names`, that belong to a label or a tag, or are this name; all for None.

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
    RAISES (ValueError): CRF846 for an unknown label; if the component was not trained.
    """
    pipe.require_ready([])
    stores = pipe.feature_stores
    rules: list[Settings] = []
    for chain in pipe.chains:
        of_chain = chain.rules()
        for rule, how, known in [] if of_chain is None else of_chain.all.enforcement():
            rules.append({**rule.table, "name": rule.name, "enforced by": how, "in probabilities": known})
    found = {
        "component": pipe.name,
        "class": type(pipe).__name__,
        "model": pipe.model.name,
        "labels": list(pipe.labels),
        "tags": state_names(pipe.decoding),
        "weights": sum(len(block.weights) for block in blocks(pipe)),
        "templates": _templates(pipe),
        "top": {name: _sides(pipe, name, top) for name in ([label] if label else _with_features(pipe))},
        "transitions": _transitions(pipe),
        "gazetteers": {name: len(one.entries) for store in stores for name, one in store.gazetteers.items()},
        "clusters": {name or "words": len(one) for store in stores for name, one in store.clusters.items()},
        "rules": rules,
    }
    if pipe.decoding.longest is not None:
        found["longest"] = dict(zip(pipe.tags(), pipe.decoding.longest.tolist()))
    if pipe.has_encoder:
        found["encoder"] = pipe.model.get_ref("tok2vec").name
    return found


def _with_features(pipe: CRFPipe) -> list[str]:
    """The tags without a label, and the labels, or what has weights of features in place of these."""
    decoding = pipe.decoding
    labels_of_further = decoding.label_of_names[decoding.n_states :]
    instead = [name for name, label in zip(decoding.further_names, labels_of_further.tolist()) if label < 0]
    return [*pipe.tags()[: decoding.tag_spans.offset], *(instead or pipe.labels)]


def _sides(pipe: CRFPipe, label: str, top: int) -> dict[str, list[dict[str, object]]]:
    """List the largest weights of features for a label, and against it."""

    def largest_of(sign: float) -> list[dict[str, object]]:
        def chosen(block: Block) -> NDArray[np.bool_]:
            return (sign * block.weights > 0) & (block.templates is not None) & (len(block.states) == 1)

        return [row._asdict() for row in largest(pipe, label, top, chosen)]

    return {"for": largest_of(1.0), "against": largest_of(-1.0)}


def _templates(pipe: CRFPipe) -> list[Settings]:
    """For each template, the numbers of its features and weights, and the sum of absolute weights; the largest sum first."""
    found = []
    for block in blocks(pipe):
        names, of_weight = block.templates or ([block.name], np.zeros(len(block.weights), dtype=np.int64))
        # A feature has a weight for each column: count its pair of template and row once
        used = np.unique(np.stack([of_weight, block.rows]), axis=1)[0]
        features = np.bincount(used, minlength=len(names)).tolist()
        counts = np.bincount(of_weight, minlength=len(names)).tolist()
        masses = np.bincount(of_weight, np.abs(block.weights), minlength=len(names)).tolist()
        for name, n_features, n_weights, mass in zip(names, features, counts, masses):
            if n_weights:
                row = {"template": name, "features": n_features, "weights": n_weights, "mass": mass}
                found.append({**row, "of": block.name})
    return sorted(found, key=lambda row: -row["mass"])


def _transitions(pipe: CRFPipe) -> dict[str, object]:
    """Weights of the transition from each tag (row) to each tag (column), and of the first and the last tag of a sequence; None
    for transitions that never occur."""
    members = members_of(pipe.model)
    if isinstance(members[0][0].attrs["node"], OfTexts):
        return {}  # of texts, whose weights are among the others
    explained = [model.attrs["node"].explained(model) for model, _ in members]
    possible = explained[0].node.possible(members[0][0])
    found = {}
    for name in ("transitions", "first", "last"):
        of_members = [share * own.weights[name] for (_, share), own in zip(members, explained)]
        listed = np.add.reduce(of_members).astype(object)
        listed[~possible[name]] = None
        found[name] = listed.tolist()
    return found
