"""What a model has learned: its weights with their names, as rows and as text."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from .. import checks
from ..models.sparse import SparseRole
from .explanation import aligned
from .reading import Feature, members_of, templates_of

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe


FRONT = "^"  # in n-grams of tags, what is in front of a sequence


class WeightRow(NamedTuple):
    """A weight.

    feature (str): With its values filled in; "transition", "first", "last" and "length=N" for what all tokens share.
    template (str), offset (Optional[int]): Of the feature, see `explanation.Row`.
    tags (Tuple[str, ...]): What it speaks for: a tag, the two of a transition, or those of an n-gram; of hidden states below a
        label that as well.
    weight (float): What was learned.
    count (Optional[int]): How often training met the feature, None where it does not say.
    """

    feature: str
    template: str
    offset: Optional[int]
    tags: tuple[str, ...]
    weight: float
    count: Optional[int]


class WeightRows(list[WeightRow]):
    """Weights, the largest first: a list, which is shown as a table."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return WeightRows(found) if isinstance(index, slice) else found

    def _cells(self) -> list[tuple[str, ...]]:
        """What is shown, with a line about the rest."""
        cells = [(f"{row.weight:+.4f}", " → ".join(row.tags), row.feature, _count(row)) for row in self[:_SHOWN]]
        return cells + ([("", "", f"{len(self) - _SHOWN:,} others", "")] if len(self) > _SHOWN else [])

    def __repr__(self) -> str:
        return aligned([_HEADS, *self._cells()])

    def _repr_html_(self) -> str:
        from .html import weights_table

        return weights_table(_HEADS, self._cells())


_SHOWN = 20
_HEADS = ("weight", "for", "feature", "count")


def _count(row: WeightRow) -> str:
    return "" if row.count is None else f"{row.count:,}"


class Block(NamedTuple):
    """The weights of one table, or of a parameter that all tokens share."""

    name: str
    weights: NDArray[np.float32]  # [W]
    states: tuple[NDArray[np.int64], ...]  # one or two of each weight: int64[W]
    rows: NDArray[np.int64]  # [W] features
    feature: Callable[[int], Feature]
    counts: Optional[NDArray[np.int64]]  # [F]
    templates: Optional[tuple[list[str], NDArray[np.int64]]]  # their names, and which one each weight has (int64[W])
    label_of: Optional[NDArray[np.int64]] = None  # [S] where they are of labels, not of states: the label of each state

    def row(self, n: int, tags: list[str]) -> WeightRow:
        row, names = int(self.rows[n]), tuple(tags[self._state(int(states[n]))] for states in self.states)
        count = None if self.counts is None else int(self.counts[row]) or None
        return WeightRow(*self.feature(row), names, float(self.weights[n]), count)

    def _state(self, number: int) -> int:
        """A state, or the first one of a label."""
        return number if self.label_of is None else int((self.label_of == number).argmax())

    def about(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which weights are about some states (bool[S]), or their labels: bool[W]."""
        if self.label_of is not None:
            wanted = np.bincount(self.label_of, wanted[: len(self.label_of)]) > 0
        return np.logical_or.reduce([wanted[states] for states in self.states])


def blocks(pipe: "CRFPipe") -> Iterator[Block]:
    """All weights that have names; those of an encoder have none. In a pool each counts as much as its member."""
    for model, share in members_of(pipe.model):
        architecture = model.attrs["role"]
        for layer in model.layers:
            if isinstance(layer.attrs["role"], SparseRole):
                for block in _blocks_of(layer, share):
                    yield block._replace(states=architecture.named_states(model, None, block.states))
        for name, mask in architecture.weighed(model).items():
            own = architecture.weight_blocks(model, name)
            if own is not None:
                yield from own
                continue
            places = np.nonzero(mask)
            weights = share * model.get_param(name)[mask]
            rows, states = (places[0], places[1:]) if name == "lengths" else (np.zeros_like(places[0]), places)
            states = architecture.named_states(model, name, states)
            yield Block(name, weights, states, rows, shared_feature(name), None, None)


def _blocks_of(layer: Model, share: float) -> Iterator[Block]:
    features = layer.attrs["role"].features(layer)
    for name, table in features.tables.items():
        rows, columns, index = table.rows_of_pairs(), table.pair_columns.astype(np.int64), table.index
        states = divmod(columns, features.n_states) if features.is_of_pairs(name) else (columns,)
        weights, templates = share * layer.get_param(name), templates_of(index, rows)
        yield Block(name, weights, tuple(states), rows, partial(Feature.of, index), table.counts, templates)


def shared_feature(name: str) -> Callable[[int], Feature]:
    if name == "lengths":
        return lambda row: Feature(f"length={row + 1}", name, None)
    return lambda row: Feature(name.removesuffix("s"), name, None)


def weights(pipe: "CRFPipe", label: Optional[str] = None, top: Optional[int] = None) -> list[WeightRow]:
    """See `CRFPipe.weights`."""
    return WeightRows(largest(pipe, label, top, lambda block: block.weights != 0.0))


def largest(
    pipe: "CRFPipe", label: Optional[str], top: Optional[int], chosen: Callable[[Block], NDArray[np.bool_]]
) -> list[WeightRow]:
    """The largest of the weights of a label that are chosen (bool[W] of each block)."""
    if top is not None:
        top = checks.count(pipe.owner, "top", top, least=0, most=checks.ANY)
    pipe.require_ready([])
    parts = [f"part {name}" for name in getattr(pipe.model.attrs["role"], "part_names", ())]
    wanted, names = _states_of(pipe, label), [*pipe.decoding.state_names(), FRONT, *parts]
    wanted = np.append(wanted, np.full(1 + len(parts), label is None))
    found = []
    for block in blocks(pipe):
        [some] = np.nonzero(block.about(wanted) & chosen(block))
        found += [(block, int(n)) for n in _largest(block.weights, some, top)]
    found.sort(key=lambda item: -abs(float(item[0].weights[item[1]])))
    labels = pipe.decoding.state_labels
    return [block.row(n, names if block.label_of is None else labels) for block, n in found[:top]]


def _largest(values: NDArray, some: NDArray[np.int64], top: Optional[int]) -> NDArray[np.int64]:
    if top is None or len(some) <= top:
        return some
    return some[np.argpartition(-np.abs(values[some]), top)[:top]]


def _states_of(pipe: "CRFPipe", label: Optional[str]) -> NDArray[np.bool_]:
    """Which states are of a label, are a tag or one of its states; all for None. RAISES (ValueError): CRF846 for others."""
    names, tags = pipe.decoding.state_names(), pipe.tags()
    if label is None:
        return np.ones(len(names), dtype=bool)
    if label in pipe.labels:
        return pipe.decoding.label_of_names == pipe.labels.index(label)
    if label not in (*names, *tags):
        checks.labels(pipe.owner, [label], [*pipe.labels, "O"])
    if label in names:
        return np.array([name == label for name in names])
    return pipe.decoding.tag_of == tags.index(label)


def dump(pipe: "CRFPipe") -> str:
    """See `CRFPipe.dump`."""
    lines = ["\t".join((" → ".join(row.tags), _escaped(row.feature), f"{row.weight:.9g}")) for row in weights(pipe)]
    return "\n".join([*lines, ""])


def _escaped(feature: str) -> str:
    """In one column of one line, whatever words there are."""
    for character, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        feature = feature.replace(character, written)
    return feature
