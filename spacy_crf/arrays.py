"""The algebra of scores, clamps and derivatives by the names of their axes, whatever the structure.

Scores are named tuples that name the axes of their arrays in ``AXES``, see ``types.py``; the first array has a row for each token
and a column for each state. Rows by token, and by listed span, belong to sequences; all sequences share the other arrays. A clamp
is an array of rows by token, or a named tuple of such arrays.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, NoReturn, Optional, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .errors import Errors
from .types import (
    AnyClamp,
    Bools,
    Clamp,
    Floats,
    Ints,
    PathScores,
    ScoreArrays,
    SegmentClamp,
    SetClamp,
    SpanList,
    StateGraph,
    Tokens,
)
from .types import ranges as ranges

Arrays = TypeVar("Arrays", bound=ScoreArrays)
Scores = TypeVar("Scores", bound=PathScores)
Result = TypeVar("Result")
OF_SEQUENCES = ("token", "span")


def axes(scores: ScoreArrays, name: str) -> tuple[str, ...]:
    """The names of the axes of an array; an axis with a question mark may be missing."""
    names = scores.AXES[name]
    if not names[0].endswith("?"):
        return names
    return ("token", *names[1:]) if np.ndim(getattr(scores, name)) == len(names) else names[1:]


def named(scores: ScoreArrays) -> dict[str, Floats]:
    """The arrays by name, without the places of sequences and spans."""
    return {name: getattr(scores, name) for name in scores.AXES}


def is_shared(scores: ScoreArrays, name: str) -> bool:
    """Whether all sequences share an array, which then has no rows by token or span."""
    return axes(scores, name)[0] not in OF_SEQUENCES


def per_position(scores: PathScores) -> bool:
    """Whether transitions depend on the token."""
    return np.ndim(scores.transitions) == 3


class LatestResults(Generic[Result]):
    """The latest results of functions of arrays, as successive batches have the same transitions. Callers must not write to them.

    most (int): Number of results that are kept: a set of more chains computes each result anew.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self.clear()

    def of(self, make: Callable[..., Result], *given: NDArray) -> Result:
        """The result of `make` for these arrays: computed now, unless it is one of the latest."""
        # Comparison by numpy took as long as decoding a sentence
        key = tuple([array.tobytes() for array in given])
        for known_key, result in self._latest:
            if known_key == key:
                return result
        result = make(*[array.copy() for array in given])
        self._latest = ((key, result), *self._latest[: self._most - 1])
        return result

    def clear(self) -> None:
        """Forget the latest results."""
        # Replaced as a whole: threads may be reading
        self._latest: tuple[tuple[tuple[bytes, ...], Result], ...] = ()


# --------------------------------------------------------------------------------------------------------------- checks


def contiguous(array: ArrayLike, dtype: DTypeLike) -> NDArray:
    """An array for kernels: contiguous, and writable (a read-only array has another type in numba)."""
    array = np.ascontiguousarray(array, dtype=dtype)
    return array if array.flags.writeable else array.copy()


def conform(scores: Arrays) -> Arrays:
    """Scores with contiguous arrays of float64 and with starts. Values are not checked. RAISES (ValueError): CRF011 for arrays
    that do not agree in their axes.
    """
    kind: Any = type(scores)
    arrays = [contiguous(array, np.float64) for array in scores[: len(kind.AXES)]]
    _check_shapes(kind, tuple([array.shape for array in arrays]))
    starts = contiguous([0, len(arrays[0])] if scores.starts is None else scores.starts, np.int64)
    return kind(*arrays, *scores[len(arrays) : -1], starts)


# Checking the shapes of a sentence took as long as decoding it
@lru_cache(maxsize=1024)
def _check_shapes(kind: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Check that all arrays have the axes that their class names, and that each axis has the same size in all arrays.

    kind (type): The class of the scores.
    shapes (tuple): The shape of each array, in the order of `kind.AXES`.
    RAISES (ValueError): CRF011 for the first array that does not fit to those in front of it.
    """
    sizes: dict[str, int] = {}  # of the axes, by the first array that has them
    for (name, axis_names), shape in zip(kind.AXES.items(), shapes):
        if axis_names[0].endswith("?"):  # arrays may have this axis or lack it
            axis_names = axis_names[1:] if len(shape) == len(axis_names) - 1 else (axis_names[0][:-1], *axis_names[1:])
        axes = [axis.removeprefix("next ") for axis in axis_names]  # "next state" is as long as "state"
        if len(shape) == len(axes):
            for axis, size in zip(axes, shape):
                sizes.setdefault(axis, size)
        expected = tuple(sizes.get(axis, 0) for axis in axes)
        if shape != expected or (axes[0] == "length" and shape[0] == 0):
            meaning = f"{expected} ([{', '.join(axes)}]{', at least one length' if axes[0] == 'length' else ''})"
            raise ValueError(Errors.CRF011.format(what=name, shape=shape, expected=meaning))


def refuse(scores: ScoreArrays) -> NoReturn:
    """Raise CRF010 for the score that is not possible, or CRF012 for the starts."""
    for name, array in named(scores).items():
        if not array.max(initial=-np.inf) < np.inf:
            # The first score that is NaN or inf: `<` is false for both
            index = np.unravel_index(np.argmin(array < np.inf), array.shape)
            raise ValueError(
                Errors.CRF010.format(
                    what=name,
                    where=", ".join(f"{axis} {i}" for axis, i in zip(axes(scores, name), index)),
                    value=array[index],
                )
            )
    raise ValueError(Errors.CRF012.format(starts=scores.starts, tokens=len(scores[0])))


def of_file(
    what: str,
    array: Any,
    dtype: DTypeLike,
    shape: tuple[Optional[int], ...],
    *,
    finite: bool = True,
    copied: bool = True,
) -> NDArray:
    """An array that was read from a file, for kernels, which trust types and shapes.

    what (str): Name of the array, for messages.
    array (Any): The value that was read.
    dtype (DTypeLike), shape (tuple): The type and the shape that kernels expect; None for an axis of any size.
    finite (bool): Whether the numbers must be finite.
    copied (bool): Whether to return a writable copy.
    RAISES (ValueError): Without a code, since callers name the file.
    """
    found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    fits = isinstance(array, np.ndarray) and array.dtype == np.dtype(dtype) and array.ndim == len(shape)
    if not fits or any(size not in (None, given) for size, given in zip(shape, array.shape)):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{what} is {found}, where {np.dtype(dtype)} ({sizes}) is needed")
    if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what} has numbers that are not finite")
    return array.copy() if copied else array


def expect_starts(what: str, starts: Ints, n_rows: int) -> None:
    """RAISES (ValueError): Without a code, if these are no starts of compressed rows with so many entries."""
    if not len(starts) or starts[0] != 0 or starts[-1] != n_rows or (np.diff(starts) < 0).any():
        raise ValueError(f"{what} do not rise from 0 to {n_rows}")


def expect_below(what: str, numbers: NDArray, size: int, *, least: int = 0) -> None:
    """RAISES (ValueError): Without a code, if numbers by which kernels index are not among `least` to size - 1."""
    if len(numbers) and not least <= numbers.min() <= numbers.max() < size:
        raise ValueError(f"{what} are not all among {least} to {size - 1}")


def check_shape(what: str, array: ArrayLike, shape: tuple[int, ...], meaning: str) -> None:
    """RAISES (ValueError): CRF011 unless an array has this shape; `meaning` names the axes."""
    if np.shape(array) != shape:
        raise ValueError(Errors.CRF011.format(what=what, shape=np.shape(array), expected=f"{shape} ({meaning})"))


def check_clamp(clamp: Union[Clamp, SegmentClamp], n_tokens: int, n_states: int) -> Union[Clamp, SegmentClamp]:
    """A clamp for kernels. RAISES (ValueError): CRF011 for a wrong shape."""
    if not isinstance(clamp, SegmentClamp):
        check_shape("clamp", clamp, (n_tokens, n_states), "one bool per token and state")
        return contiguous(clamp, np.bool_)
    check_shape("clamp.states", clamp.states, (n_tokens, n_states), "one bool per token and state")
    for name, array in zip(clamp._fields[1:], clamp[1:]):
        check_shape(f"clamp.{name}", array, (n_tokens,), "one bool per token")
    return SegmentClamp(*(contiguous(array, np.bool_) for array in clamp))


# ------------------------------------------------------------------------------------------------------ parts and sums


def cut(scores: Arrays, tokens: Tokens, starts: Ints) -> Arrays:
    """The scores of some tokens, with what they list of these, such as spans.

    starts (int64[b + 1]): Where sequences start among these tokens, which may lack some tokens of their former sequences.
    """
    rows = _rows(scores, tokens)
    by_row = [name for name in scores.AXES if not is_shared(scores, name)]
    parts: dict[str, Floats] = {name: getattr(scores, name)[rows[axes(scores, name)[0]]] for name in by_row}
    return scores._replace(**parts, **_cut_lists(scores, tokens), starts=starts)


def _cut_lists(scores: ScoreArrays, tokens: Tokens) -> dict[str, SpanList]:
    """The lists of `scores`, such as spans, cut down to some tokens: by the name of the field, for `_replace`."""
    # The fields behind those of arrays: lists, and others
    fields = zip(scores._fields[len(scores.AXES) :], scores[len(scores.AXES) :])
    n_tokens = len(scores[0])
    return {name: field.among(tokens, n_tokens) for name, field in fields if hasattr(field, "among")}


def cut_document(scores: Arrays, clamp: Optional[AnyClamp], tokens: slice) -> tuple[Arrays, Optional[AnyClamp]]:
    """The scores and the clamp of one document of a batch, without empty sequences."""
    first, last = np.searchsorted(scores.starts, [tokens.start, tokens.stop], side="left")
    starts = np.unique(np.clip(scores.starts[first : last + 1], tokens.start, tokens.stop)) - tokens.start
    return cut(scores, tokens, starts), cut_clamp(clamp, tokens)


def cut_clamp(clamp: Optional[AnyClamp], tokens: Tokens) -> Any:
    """The clamp of some tokens; None stays None."""
    if clamp is None:
        return None
    if isinstance(clamp, np.ndarray):
        return clamp[tokens]
    return clamp._make(array[tokens] for array in clamp)


def states_of(clamp: AnyClamp) -> Bools:
    """The states that a clamp allows at each token: bool[T, S]."""
    return clamp.states if isinstance(clamp, (SegmentClamp, SetClamp)) else clamp


def each_chain(clamp: AnyClamp) -> Iterator[Any]:
    """The clamp itself, or for a set of chains the clamp of each, over all states."""
    yield from clamp.each() if isinstance(clamp, SetClamp) else (clamp,)


def zeros(scores: Arrays) -> Arrays:
    """A derivative of zeros in the shape of the scores."""
    return scores._replace(**{name: np.zeros(np.shape(array)) for name, array in named(scores).items()})


def part_of(total: Arrays, tokens: slice) -> Arrays:
    """Arrays for the derivative of some sequences: views of their rows, and new zeros for shared arrays."""
    rows = _rows(total, tokens)
    parts = {
        name: np.zeros(array.shape) if is_shared(total, name) else array[rows[axes(total, name)[0]]]
        for name, array in named(total).items()
    }
    return total._replace(**parts, **_cut_lists(total, tokens))


def add_shared(total: ScoreArrays, part: ScoreArrays) -> None:
    """Add the shared arrays of a part that `part_of` made."""
    for name, array in named(total).items():
        if is_shared(total, name):
            array += getattr(part, name)


def add(total: ScoreArrays, part: ScoreArrays, tokens: Tokens) -> None:
    """Add the derivative of the sequences with these tokens to the derivative of all. Arrays by token are summed if the total has
    only their sum."""
    rows = _rows(total, tokens)
    for name, array in named(total).items():
        of_part = getattr(part, name)
        if is_shared(total, name):
            array += of_part.sum(axis=0) if of_part.ndim > array.ndim else of_part
        else:
            array[rows[axes(total, name)[0]]] += of_part


def add_repeated(total: ScoreArrays, part: ScoreArrays, tokens: Ints) -> None:
    """Add the scores of a `part` to the scores of its `tokens`, which may occur several times, as `add` does for different
    tokens. Scores that all tokens share are added once, and the firsts and lasts of sequences are left out."""
    rows = _rows(total, tokens)  # by the name of the axis
    for name, array in named(total).items():
        if not is_shared(total, name):
            np.add.at(array, rows[axes(total, name)[0]], getattr(part, name))
        elif name not in ("first", "last"):
            array += getattr(part, name)


def added(scores: Arrays, others: Arrays) -> Arrays:
    """scores + others, array by array."""
    return scores._replace(**{name: array + getattr(others, name) for name, array in named(scores).items()})


def subtract(scores: ScoreArrays, others: ScoreArrays) -> None:
    """scores -= others, array by array."""
    for name, array in named(scores).items():
        array -= getattr(others, name)


def ends(starts: Optional[Ints], n_tokens: int) -> tuple[Bools, Bools]:
    """Which tokens open and which close a sequence: bool[T] each. Without starts there is one sequence."""
    starts = np.array([0, n_tokens]) if starts is None else starts
    filled = starts[:-1] < starts[1:]
    opens = np.zeros(n_tokens, dtype=bool)
    closes = np.zeros(n_tokens, dtype=bool)
    opens[starts[:-1][filled]] = True
    closes[starts[1:][filled] - 1] = True
    return opens, closes


def grown(array: NDArray, used: int, size: int) -> NDArray:
    """A new array with room for more rows; other threads may still be reading the old one."""
    larger = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    larger[:used] = array[:used]
    return larger


def spread(rows: NDArray, places: Ints, size: int, fill: float = 0.0) -> NDArray:
    """An array of `size` rows: the given rows at their places, the fill value elsewhere."""
    every = np.full((size, *rows.shape[1:]), fill, dtype=rows.dtype)
    every[places] = rows
    return every


def _rows(scores: ScoreArrays, tokens: Tokens) -> dict[str, Any]:
    """The rows of some tokens by the name of the axis."""
    listed = getattr(scores, "listed", None)
    return {"token": tokens, "span": slice(0, 0) if listed is None else listed.numbers(tokens)}


# ----------------------------------------------------------------------------------------------- documents as sequences


class Joined(NamedTuple):
    """The sequences of each document joined to one sequence, with a break between two of them: a token with its own state."""

    scores: Any  # of S + 1 states, in the class of the scores that were joined
    clamp: Any  # of the class of the clamp that was joined, None for none
    tokens: Ints  # [T] places of the tokens


def join_sequences(
    scores: PathScores, clamp: Optional[Union[Clamp, SegmentClamp]] = None, doc_starts: Optional[Ints] = None
) -> Joined:
    """Join the sequences of each document to one sequence, which has the same labellings with the same scores.

    The scores of `first` and `last` become transitions from and to the break, state S, which no token has (and which no segment
    crosses).

    scores (PathScores): Potentials of sequences.
    clamp (Clamp or SegmentClamp): What is still allowed, or None.
    doc_starts (int64[D + 1]): Where documents start; by default there is one document.
    """
    n_tokens, size = np.shape(scores[0])
    starts = np.array([0, n_tokens]) if scores.starts is None else np.asarray(scores.starts)
    doc_starts = np.array([0, n_tokens]) if doc_starts is None else doc_starts
    # A break comes before each sequence that does not begin its document, except empty sequences
    openings = np.unique(starts[:-1][starts[:-1] < starts[1:]])  # tokens that begin sequences
    behind_breaks = openings[~np.isin(openings, doc_starts)]  # [C] tokens
    # Places in the joined sequences, where tokens are shifted by the number of breaks before them
    places = np.arange(n_tokens) + np.searchsorted(behind_breaks, np.arange(n_tokens), side="right")  # [T]
    breaks = behind_breaks + np.arange(len(behind_breaks))  # [C]
    length = n_tokens + len(breaks)
    joined: dict[str, Floats] = {}
    for number, (name, array) in enumerate(named(scores).items()):
        kinds = axes(scores, name)  # of the axes of this array
        # -inf forbids breaks to begin or end a document, to follow each other or to be longer than one token, and other tokens to
        # have their state. Other scores of a break are 0
        is_zero = kinds[0] == "span" or (kinds == ("token", "state") and number > 0)
        shape = [length if kind == "token" else n + kind.endswith("state") for kind, n in zip(kinds, array.shape)]
        joined[name] = np.full(shape, 0.0 if is_zero else -np.inf)
        inside = [places if kind == "token" else slice(n) for kind, n in zip(kinds, array.shape)]
        joined[name][tuple(inside)] = array
        if number == 0:  # emissions, or the scores of beginning a segment
            joined[name][breaks, size] = 0.0
        elif kinds[0] == "length":  # a break is one token long
            joined[name][0, size] = 0.0
    joined["transitions"][..., :size, size] = scores.last
    joined["transitions"][..., size, :size] = scores.first
    joined_starts = (doc_starts + np.searchsorted(behind_breaks, doc_starts, side="left")).astype(np.int64)
    listed = getattr(scores, "listed", None)
    joined_listed: dict[str, SpanList] = {}
    if listed is not None:
        # Breaks begin no listed spans
        counts = np.zeros(length, dtype=np.int64)
        counts[places] = np.diff(listed.starts)
        joined_listed["listed"] = SpanList(np.append(0, np.cumsum(counts)).astype(np.int64), listed.lengths)
    return Joined(
        scores=scores._replace(**joined, **joined_listed, starts=joined_starts),
        clamp=_join_clamp(clamp, size, length, places, breaks),
        tokens=places,
    )


def _join_clamp(
    clamp: Optional[Union[Clamp, SegmentClamp]], size: int, length: int, places: Ints, breaks: Ints
) -> Optional[Union[Clamp, SegmentClamp]]:
    """The clamp of joined sequences of `length` tokens: breaks have the state `size` alone, and tokens (at `places`) do not have
    it."""
    if clamp is None:
        return None
    states = np.zeros((length, size + 1), dtype=bool)
    states[places, :size] = states_of(clamp)
    states[breaks, size] = True
    if not isinstance(clamp, SegmentClamp):
        return states
    may_begin = np.ones(length, dtype=bool)
    must_begin = np.ones(length, dtype=bool)
    may_begin[places] = clamp.may_begin
    must_begin[places] = clamp.must_begin
    may_begin[breaks + 1] = True  # as wherever a sequence begins
    return SegmentClamp(states, may_begin, must_begin)


def split(joined: Joined, expected: PathScores, scores: Scores) -> Scores:
    """Turn the derivative with respect to joined scores into the derivative with respect to the original scores.

    joined (Joined): The joined scores, from `join_sequences`.
    expected (PathScores): The derivative with respect to them.
    scores (PathScores): The original scores.
    """
    size = np.shape(scores[0])[1]
    # Without the rows and columns of breaks
    original = {"token": joined.tokens, "state": slice(size), "next state": slice(size)}
    parts = {}
    for name, array in named(expected).items():
        index = [original.get(axis, slice(None)) for axis in axes(expected, name)]
        parts[name] = array[tuple(index)]
    # Transitions from and to a break have the scores of first and last states
    transitions = expected.transitions.reshape(-1, size + 1, size + 1).sum(axis=0)
    parts["first"] = parts["first"] + transitions[size, :size]
    parts["last"] = parts["last"] + transitions[:size, size]
    return scores._replace(**{name: np.ascontiguousarray(array) for name, array in parts.items()})


# ----------------------------------------------------------------------------------------------------- states for tags


def expand(scores: ScoreArrays, graph: StateGraph, names: Sequence[str]) -> dict[str, Floats]:
    """Arrays of scores for the states of a graph, by name: each state has the scores of its tag, plus those of the graph.

    scores (ScoreArrays): The scores of tags.
    graph (StateGraph): The graph; transitions that are not among its arcs are impossible.
    names (Sequence[str]): The arrays to expand.
    """
    tag_of = graph.tag_of
    expanded: dict[str, Floats] = {}
    for name in names:
        array = getattr(scores, name)
        last_axis = axes(scores, name)[-1]
        if last_axis == "next state":  # transitions
            expanded[name] = np.full((*array.shape[:-2], len(tag_of), len(tag_of)), -np.inf)
            scores_of_arcs = array[..., tag_of[graph.source], tag_of[graph.target]]
            expanded[name][..., graph.source, graph.target] = scores_of_arcs + graph.scores
        elif last_axis == "state":
            expanded[name] = np.ascontiguousarray(array[..., tag_of])
        else:
            expanded[name] = array
        if name in ("first", "last"):
            expanded[name] += getattr(graph, name)
    return expanded


def contract(expected: Arrays, graph: StateGraph, n_tags: int) -> Arrays:
    """Turn a derivative with respect to scores of states into the derivative with respect to the scores of tags, which `expand`
    gave to the states: sums over the states of each tag.

    expected (PathScores): The derivative with respect to scores of states; its arrays without a state axis stay as they are.
    """
    contracted = {}
    for name, array in named(expected).items():
        last_axis = axes(expected, name)[-1]
        if last_axis == "next state":
            # The derivative of a pair of tags is the sum over the arcs between their states
            pairs = graph.tag_of[graph.source].astype(np.int64) * n_tags + graph.tag_of[graph.target]
            arcs = array[..., graph.source, graph.target]
            contracted[name] = by_tag(arcs, pairs, n_tags**2).reshape(*array.shape[:-2], n_tags, n_tags)
        elif last_axis == "state":
            contracted[name] = by_tag(array, graph.tag_of, n_tags)
    return expected._replace(**contracted)


def by_tag(columns: Floats, tag_of: NDArray[np.integer], n_tags: int) -> Floats:
    """Sums of the columns of each tag: float64[..., n_tags] from float64[..., S]; 0 for tags without a state."""
    if columns.ndim == 1:
        return np.bincount(tag_of, columns, minlength=n_tags).astype(np.float64, copy=False)
    # Columns of one tag side by side, so that one pass sums them
    order = np.argsort(tag_of, kind="stable")
    tags, first = np.unique(tag_of[order], return_index=True)
    summed = np.zeros((*columns.shape[:-1], n_tags))
    summed[..., tags] = np.add.reduceat(columns[..., order], first, axis=-1)
    return summed


def expand_clamp(clamp: Union[Clamp, SegmentClamp], tag_of: NDArray[np.int32]) -> Union[Clamp, SegmentClamp]:
    """The clamp of states for a clamp of tags: a state is allowed where its tag is."""
    states = np.ascontiguousarray(states_of(clamp)[:, tag_of])
    return clamp._replace(states=states) if isinstance(clamp, SegmentClamp) else states


def tags_of(path: NDArray[np.int32], tag_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """The path of tags for a path of states; negative entries (no path, or inside a segment) stay."""
    tags = path.astype(np.int32)
    is_state = path >= 0
    tags[is_state] = tag_of[path[is_state]]
    return tags


def part_of_graph(graph: StateGraph, kept: Bools) -> StateGraph:
    """The graph of some of its states (bool[S])."""
    number = np.cumsum(kept) - 1
    arcs = kept[graph.source] & kept[graph.target]
    source = number[graph.source[arcs]].astype(np.int32)
    target = number[graph.target[arcs]].astype(np.int32)
    return StateGraph(source, target, graph.scores[arcs], graph.first[kept], graph.last[kept], graph.tag_of[kept])
