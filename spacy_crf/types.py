"""Named tuples of numpy arrays that pass between the layers.

Letters in shapes: T tokens (of all sequences of a batch, end to end), B sequences, S states, K longest segment,
A arcs, F feature rows. Scores that cross a layer are natural logarithms; ``-inf`` means forbidden. ``AXES`` names the axes of
their arrays, for functions that work with the scores of every structure (see ``arrays.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Protocol, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
TemplateRows = NDArray[np.int32]  # [M, T] feature row of each template at each token, -1 where it has none
Clamp = Bools  # [T, S] states still allowed at each token
Tokens = Union[slice, Ints]  # some tokens, in their order
Seed = Union[int, Sequence[int]]  # of numpy's random numbers; [seed, 0] is the same as the seed alone
SOFT_LABELS = "crf_soft"  # key of doc.spans with the labels of a teacher, see `losses.soft`
UNKNOWN_WORDS = "crf_unknown_words"  # key of doc.spans inside of which words may begin at each token, or go on
Settings = dict[str, Any]  # values by name, as in a config or in a saved file
GOES_ON = -2  # entry of a path of segments at the tokens of a segment after its first


class TokenFeatures(NamedTuple):
    """Known features of T tokens as compressed sparse rows: token t has ``rows[starts[t]:starts[t + 1]]``."""

    rows: NDArray[np.int32]  # [nnz] feature rows
    values: Optional[NDArray[np.float32]]  # [nnz], None where every value is 1
    starts: Ints  # [T + 1]


Self = TypeVar("Self")  # typing has it from Python 3.11 on


class ScoreArrays(Protocol):
    """Scores of a batch, whatever its structure: a named tuple of arrays. The first has a row for each token and a column for
    each state."""

    @property
    def AXES(self) -> Mapping[str, tuple[str, ...]]:
        """The axes of each array, by its name; an axis with a question mark may be missing."""
        ...

    @property
    def _fields(self) -> tuple[str, ...]: ...

    @property
    def starts(self) -> Any:
        """Where sequences begin and end: int64[B + 1]; None for a single sequence."""
        ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def _replace(self: Self, **fields: Any) -> Self: ...


class PathScores(ScoreArrays, Protocol):
    """Scores of paths of states: of chains, or of chains of segments."""

    @property
    def transitions(self) -> Floats:
        """Scores of pairs of neighbouring states: float64[S, S] or [T, S, S]."""
        ...

    @property
    def first(self) -> Floats:
        """Scores of states at the beginning of a sequence: float64[S]."""
        ...

    @property
    def last(self) -> Floats:
        """Scores of states at the end of a sequence: float64[S]."""
        ...


class ChainScores(NamedTuple):
    """Potentials of a batch of linear chains, laid end to end: sequence b is tokens ``starts[b]:starts[b + 1]``.

    ``transitions[i, j]`` is the score of state j directly after state i. With a third axis in front scores depend on
    the position: ``transitions[t]`` belongs to the step from t - 1 to t (unused where t opens a sequence).
    The same tuple holds the derivative of a loss with respect to each score.
    """

    emissions: Floats  # [T, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S] added to the first token of every sequence
    last: Floats  # [S] added to the last token of every sequence
    starts: Optional[Ints] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType(
        {
            "emissions": ("token", "state"),
            "transitions": ("token?", "state", "next state"),
            "first": ("state",),
            "last": ("state",),
        }
    )


class StateGraph(NamedTuple):
    """The states that may follow each state, where several states share the scores of one tag.

    Arc a leads from state ``source[a]`` to ``target[a]``; arcs are sorted by source, then by target. Scores of the
    graph itself – of rules, not of the model – are added to those of the tags; states with -inf in ``first`` or
    ``last`` don't begin or end a sequence.
    """

    source: NDArray[np.int32]  # [A]
    target: NDArray[np.int32]  # [A]
    scores: Floats  # [A]
    first: Floats  # [S]
    last: Floats  # [S]
    tag_of: NDArray[np.int32]  # [S]


def ranges(begin: Ints, end: Ints) -> Ints:
    """The numbers from each begin up to, not including, its end, one range behind the other."""
    lengths = end - begin
    after = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(begin - (after - lengths), lengths)


class SpanList(NamedTuple):
    """Some of the spans of a batch, by their first token and then by their length; each is listed once.

    The spans that begin at token t are ``starts[t]:starts[t + 1]``.
    """

    starts: Ints  # [T + 1]
    lengths: NDArray[np.int32]  # [N] in tokens, from 1 to K

    def numbers(self, tokens: Tokens) -> Tokens:
        """The numbers of the spans that begin at some tokens, a slice or int64[T']: a slice or int64[N']."""
        if isinstance(tokens, slice):
            return slice(int(self.starts[tokens.start]), int(self.starts[tokens.stop]))
        return ranges(self.starts[tokens], self.starts[tokens + 1])

    def among(self, tokens: Tokens, n_tokens: int) -> "SpanList":
        """The spans that begin at some tokens."""
        counts = np.diff(self.starts)[tokens]
        return SpanList(np.append(0, np.cumsum(counts)).astype(np.int64), self.lengths[self.numbers(tokens)])


class SegmentScores(NamedTuple):
    """Potentials of a batch of semi-Markov chains, laid end to end. The segment of state j over tokens b up to, not
    including, e has the score

        sum(tokens[b:e, j]) + begins[b, j] + ends[e - 1, j] + lengths[e - b - 1, j] + spans[n, j]

    where the last term is there only for spans that are listed, as number n. So the scores of all T·K·S segments take
    O(T·S + K·S + N·S) memory, and only what looks at a whole segment at once has to be listed. ``lengths`` is -inf
    beyond the longest segment of a state. Transitions, firsts and lasts are those of `ChainScores`, between neighbouring
    segments; with a third axis, ``transitions[t]`` belongs to the step into the segment that begins at t.
    """

    tokens: Floats  # [T, S]
    begins: Floats  # [T, S]
    ends: Floats  # [T, S]
    lengths: Floats  # [K, S]
    spans: Floats  # [N, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    listed: Optional[SpanList] = None  # the listed spans; None if there are none
    starts: Optional[Ints] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType(
        {
            "tokens": ("token", "state"),
            "begins": ("token", "state"),
            "ends": ("token", "state"),
            "lengths": ("length", "state"),
            "spans": ("span", "state"),
            "transitions": ("token?", "state", "next state"),
            "first": ("state",),
            "last": ("state",),
        }
    )


class SegmentClamp(NamedTuple):
    """Segments still allowed: all their tokens allow their state, and they begin and end where that is allowed."""

    states: Bools  # [T, S]
    may_begin: Bools  # [T] may a segment begin here? Ignored where a sequence begins
    must_begin: Bools  # [T]

    def __and__(self, other: "SegmentClamp") -> "SegmentClamp":
        """The clamp of the segments that both allow."""
        return SegmentClamp(
            states=self.states & other.states,
            may_begin=self.may_begin & other.may_begin,
            must_begin=self.must_begin | other.must_begin,
        )


ChainClamp = Union[Clamp, SegmentClamp]  # of a single chain


class SetClamp(NamedTuple):
    """The clamp of each chain of a set (`inference.chain_set`)."""

    chains: tuple[ChainClamp, ...]  # the clamp of each chain
    states_of: tuple[Ints, ...]  # the states of each chain, among S states

    def each(self) -> Iterator[ChainClamp]:
        """The clamp of each chain as one of all S states, of which those of other chains are forbidden."""
        size = 1 + max(int(states.max()) for states in self.states_of)
        for clamp, states in zip(self.chains, self.states_of):
            own = clamp.states if isinstance(clamp, SegmentClamp) else clamp
            every = np.zeros((len(own), size), dtype=bool)
            every[:, states] = own
            yield clamp._replace(states=every) if isinstance(clamp, SegmentClamp) else every

    @property
    def states(self) -> Bools:
        """The states that any chain allows: bool[T, S]."""
        return np.logical_or.reduce([getattr(clamp, "states", clamp) for clamp in self.each()])


AnyClamp = Union[ChainClamp, SetClamp]


class Path(NamedTuple):
    """One labelling for each sequence of a batch. Of segments it holds the state where one begins, and GOES_ON inside."""

    states: NDArray[np.int32]  # [T]
    scores: Floats  # [B] total score of each sequence's labelling


class SlotUses(NamedTuple):
    """The weights that each of T tokens uses, as positions in a vector of slots. Most features have weights for few columns and
    use single slots; a row with a slot for each of C columns is used whole.

    Token t uses the rows that begin at ``slots[bounds[2 * t]:bounds[2 * t + 1]]``, and the single
    ``slots[bounds[2 * t + 1]:bounds[2 * t + 2]]``.
    """

    slots: NDArray[np.integer]  # [N]
    columns: NDArray[np.int32]  # [N] of single slots, 0 for rows
    values: NDArray[np.float32]  # [N], empty where every value is 1
    bounds: Ints  # [2 T + 1]


class SegmentUses(NamedTuple):
    """The parts of a corpus that only chains of segments have: the annotated segments, and the weights that segments use.

    There are five kinds of features, each of S columns: at each of the T tokens of segments, at their first, at their last, at
    the N listed spans (see `SpanList`), and features of the first kind again at listed spans.
    """

    longest: int  # K
    path: NDArray[np.int32]  # [T] the annotated path, where there is a single one
    may_begin: Bools  # [T] see `SegmentClamp`
    must_begin: Bools  # [T]
    features: SlotUses  # of T tokens, T tokens, T tokens, N spans and N spans
    listed_starts: Ints  # [T + 1]
    listed_lengths: NDArray[np.int32]  # [N]
    length_start: int  # first slot of the lengths, K rows of S
    excluded: Bools  # [N, S] listed spans that the annotation excludes with a state; [0, S] if there are none


class ChainCorpus(NamedTuple):
    """A corpus of linear chains, or of chains of segments, for online learning. Its weights are one vector of M slots, see
    ``kernels/online``."""

    n_states: int  # S
    starts: Ints  # [B + 1]
    weights: Floats  # [B] factor of each sequence
    gold: NDArray[np.int32]  # [T] the annotated state, -1 where several are allowed
    is_known: Bools  # [B] does every token have a single state?
    clamp: Clamp  # [T, S], or [0, S] if all sequences are known
    states: SlotUses  # the features of states, S columns
    pairs: Optional[SlotUses]  # the features of pairs of states, S * S columns
    chain_start: int  # first slot of transitions, firsts and lasts
    learned: Bools  # [M] which slots are weights
    slot_of_weight: Ints  # [n] where each of the objective's weights is
    forbidden: Ints  # slots that hold -inf
    most_slots: int  # that a single sequence can use, counted with repetition
    segments: Optional[SegmentUses] = None  # None for linear chains
