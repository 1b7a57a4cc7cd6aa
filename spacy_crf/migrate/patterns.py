"""Lines of CRF++'s templates and Wapiti's patterns: texts with places that words of columns fill."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ..errors import Errors
from .foreign import ForeignModel, Weighted
from .functions import Columns


class Place(NamedTuple):
    """A place in a pattern, which the word of a column fills."""

    column: int
    offset: int  # from the anchor
    anchor: str = (
        "token"  # the token itself; "start": the first token of the sentence, "end": the place behind its last token
    )
    change: Optional[Callable[[str], str]] = None  # makes the text that fills the place of the word


class Pattern(NamedTuple):
    """A line that makes names of features."""

    form: str  # with %s for each place
    places: tuple[Place, ...]

    @property
    def is_constant(self) -> bool:
        return not self.places


class PatternSource:
    """Makes the names of features as the other program does: a source for ``fn:NAME[0]``.

    lines (Sequence[str]): Lines as configs keep them. Each makes one name at each token.
    compile_line (Callable[[str], Pattern]): Compiles a line as the program writes it.
    columns (Sequence[str]): Attributes of tokens that the columns are.
    outside (Callable[[int], str]): The text of positions outside a sequence, at -1, -2 … before and +1, +2 … behind it.
    RAISES (ValueError): CRF864 if a line reads more columns.
    """

    def __init__(
        self,
        lines: Sequence[str],
        compile_line: Callable[[str], Pattern],
        columns: Sequence[str],
        outside: Callable[[int], str],
    ):
        self._patterns = patterns = [compile_line(from_config(line)) for line in lines]
        self._columns = Columns(columns)
        needed = max([place.column + 1 for pattern in patterns for place in pattern.places], default=0)
        if needed > len(columns):
            raise ValueError(Errors.CRF864.format(needed=needed, given=", ".join(columns) or "none"))
        places = [place for pattern in patterns for place in pattern.places]
        self._reach = max([abs(place.offset) for place in places], default=0)
        self._before = [outside(n) for n in range(-self._reach, 0)]
        self._behind = [outside(n) for n in range(1, self._reach + 1)]
        self._outside = outside

    def __call__(self, doc: Doc) -> list[list[str]]:
        return [row for columns in self._columns.read(doc) for row in self._rows(columns)]

    def _rows(self, columns: list[list[str]]) -> list[list[str]]:
        """The names at the tokens of one sequence. A pattern makes all of its names at once: a third of the time."""
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


def compile_form(
    line: str, command: "re.Pattern[str]", place: Callable[["re.Match[str]"], Place], known: str
) -> Pattern:
    """Compile a line with commands such as ``%x[-1,0]``.

    command (re.Pattern): Matches a command.
    place (Callable): Makes the place of a matched command.
    known (str): The commands, for messages.
    RAISES (ValueError): CRF856 for any other "%".
    """
    form, at, places = "", 0, []
    for match in [*command.finditer(line), None]:
        between = line[at : match.start() if match else len(line)]
        if "%" in between:
            raise ValueError(Errors.CRF856.format(template=line, reason=f"'%' begins only {known}, not {between!r}"))
        form += between
        if match:
            form, at, places = form + "%s", match.end(), [*places, place(match)]
    return Pattern(form, tuple(places))


def for_config(text: str) -> str:
    """Escape a pattern for a config, which doubles a dollar each time it is written: the dollar is spelled %24."""
    return text.replace("%2", "%252").replace("$", "%24")


def from_config(text: str) -> str:
    """Undo `for_config`."""
    return text.replace("%24", "$").replace("%252", "%2")


class Blocks(NamedTuple):
    """The number of the first weight of each of F features: of its weights by label, and of those by pair of labels; -1 if it has
    none."""

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
    """Make a model of weights that are numbered from 0 on.

    names (list[str]): F features. blocks (Blocks): Which weights belong to each.
    ids (int64[W]), weights (float64[W]): Numbers and values of the weights that are not 0.
    patterns (list[str]): Lines as the program writes them.
    constants (set[str]): Features of pairs that every token but the first has: their weights are transitions.
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
    """The weights that are in some blocks of a size.

    RETURNS (int64[V], int64[V], float64[V]): Feature, place in the block, and value of each.
    """
    [owners] = np.nonzero(starts >= 0)
    if not len(owners):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    owners = owners[np.argsort(starts[owners], kind="stable")]
    at = np.searchsorted(starts[owners], ids, side="right") - 1
    inside = (at >= 0) & (ids - starts[owners][at] < size)
    rows = owners[at[inside]]
    return rows, ids[inside] - starts[rows], weights[inside]


def template_lines(text: str) -> list[str]:
    """The lines of a file of templates, without empty ones."""
    return [line for line in re.split(r"\r?\n", text) if line.strip()]
