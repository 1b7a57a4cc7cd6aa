"""What CRF++'s templates and Wapiti's patterns have in common: texts with places that are filled in from columns of words."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from .foreign import ForeignModel, Weighted
from .functions import Columns


class Place(NamedTuple):
    """What is filled in: the word of a column."""

    column: int
    offset: int  # from the token, or from where it is anchored
    anchor: str = "token"  # or "start", "end": the first token, or behind the last one
    change: Optional[Callable[[str], str]] = None  # what is made of the word


class Pattern(NamedTuple):
    form: str  # with %s for each place
    places: tuple[Place, ...]

    @property
    def is_constant(self) -> bool:
        return not self.places


class PatternSource:
    """Makes the names of features as the other program does: a source for ``fn:NAME[0]``.

    patterns (Sequence[Pattern]): Each gives a name at each token.
    columns (Sequence[str]): Attributes of tokens that the columns are.
    outside (Callable[[int], str]): What stands outside of a sequence, at -1, -2 … before and +1, +2 … behind it.
    """

    def __init__(self, patterns: Sequence[Pattern], columns: Sequence[str], outside: Callable[[int], str]):
        self._patterns = list(patterns)
        self._columns = Columns(columns)
        places = [place for pattern in patterns for place in pattern.places]
        self._reach = max([abs(place.offset) for place in places], default=0)
        self._before = [outside(n) for n in range(-self._reach, 0)]
        self._behind = [outside(n) for n in range(1, self._reach + 1)]
        self._outside = outside

    def __call__(self, doc: Doc) -> list[list[str]]:
        return [row for columns in self._columns.read(doc) for row in self._rows(columns)]

    def _rows(self, columns: list[list[str]]) -> list[list[str]]:
        """Of one sequence. All names of a pattern are made at once, which takes a third of the time."""
        size = len(columns[0]) if columns else 0
        padded = [[*self._before, *column, *self._behind] for column in columns]
        names = []
        for form, places in self._patterns:
            filled = [self._fill(place, columns[place.column], padded[place.column]) for place in places]
            names.append([*map(form.__mod__, zip(*filled))] if filled else [form % ()] * size)
        return [*map(list, zip(*names))] if names else [[] for _ in range(size)]

    def _fill(self, place: Place, column: list[str], padded: list[str]) -> Sequence[str]:
        size = len(column)
        if place.anchor == "token":
            begin = self._reach + place.offset
            words = padded[begin : begin + size]
            return words if place.change is None else [*map(place.change, words)]
        at = place.offset + (size if place.anchor == "end" else 0)
        word = column[at] if 0 <= at < size else self._outside(at if at < 0 else at - size + 1)
        return [word if place.change is None else place.change(word)] * size


def literal(text: str) -> str:
    """A text as it stands in a form."""
    return text.replace("%", "%%")


def for_config(text: str) -> str:
    """A pattern as configs keep it: they double a dollar each time they are written, so it is spelled %24."""
    return text.replace("%2", "%252").replace("$", "%24")


def from_config(text: str) -> str:
    """The way back."""
    return text.replace("%24", "$").replace("%252", "%2")


def needed_columns(patterns: Sequence[Pattern]) -> int:
    return max([place.column + 1 for pattern in patterns for place in pattern.places], default=0)


class Blocks(NamedTuple):
    """Where the weights of each of F features begin: for a label each, and for a pair of labels each; -1 where there are none."""

    of_labels: NDArray[np.int64]  # [F]
    of_pairs: NDArray[np.int64]  # [F]


def assemble(
    program: str,
    labels: list[str],
    names: list[str],
    blocks: Blocks,
    ids: NDArray[np.int64],
    weights: NDArray[np.float64],
    patterns: list[str],
    constants: set[str],
) -> ForeignModel:
    """A model of weights that are numbered through.

    ids (int64[W]), weights (float64[W]): The weights that are not 0.
    patterns (list[str]): As the program writes them. constants (set[str]): Features of pairs that every token but the first has:
        they are transitions.
    """
    size = len(labels)
    states = Weighted(names, *_in_blocks(blocks.of_labels, size, ids, weights))
    rows, columns, of_pairs = _in_blocks(blocks.of_pairs, size * size, ids, weights)
    always = np.array([name in constants for name in names], dtype=bool)[rows]
    transitions = np.bincount(columns[always], weights=of_pairs[always], minlength=size * size).reshape(size, size)
    pairs = Weighted(names, rows[~always], columns[~always], of_pairs[~always])
    return ForeignModel(program, labels, states, transitions, pairs, patterns)


def _in_blocks(
    starts: NDArray[np.int64], size: int, ids: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The weights in some blocks of a size: of which feature, where in its block, and what they are."""
    [owners] = np.nonzero(starts >= 0)
    if not len(owners):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    owners = owners[np.argsort(starts[owners], kind="stable")]
    at = np.searchsorted(starts[owners], ids, side="right") - 1
    inside = (at >= 0) & (ids - starts[owners][at] < size)
    rows = owners[at[inside]]
    return rows, ids[inside] - starts[rows], weights[inside]


def template_lines(text: str) -> list[str]:
    """Lines of a file of templates that are not empty."""
    return [line for line in re.split(r"\r?\n", text) if line.strip()]
