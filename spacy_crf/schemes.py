"""Tag schemes: from labels to tags and back, and which tag may follow which.

A scheme gives every label the same boundary prefixes. Tag 0 is ``O``; label ``l`` (from 0) with prefix ``p`` is tag
``1 + l * len(prefixes) + p``. All functions work on whole arrays of tokens laid end to end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arrays import ends
from .errors import Errors
from .types import Bools, Clamp, Ints, SegmentClamp

# spaCy's codes for ``ent_iob``
MISSING = 0
INSIDE = 1
OUTSIDE = 2
BEGIN = 3


class TransitionMask(NamedTuple):
    """Whether a tag may follow a tag, stand at the first token, and stand at the last token."""

    transitions: Bools  # [S, S]
    first: Bools  # [S]
    last: Bools  # [S]


class Segments(NamedTuple):
    """N spans in the tokens of a batch, whose texts are laid end to end: tokens ``start[n]`` up to, not including, ``end[n]``."""

    start: Ints  # [N]
    end: Ints  # [N]
    label: Ints  # [N] indices of labels

    def only(self, which: NDArray) -> "Segments":
        """Some of the segments; `which` is a mask (bool[N]) or their numbers (int64[M])."""
        return Segments(self.start[which], self.end[which], self.label[which])

    @classmethod
    def join(cls, parts: Sequence["Segments"]) -> "Segments":
        """The segments of several lists (at least one), one list behind the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts)))

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int, int]]) -> "Segments":
        """Segments from the start, end and label of each."""
        table = np.array(list(rows), dtype=np.int64).reshape(-1, 3)
        start, end, label = np.ascontiguousarray(table.T)
        return cls(start, end, label)

    @classmethod
    def of_tokens(cls, label: Ints, goes_on: Bools) -> "Segments":
        """Segments of labelled tokens.

        label (int64[T]): -1 for none. goes_on (bool[T]): Tokens that continue the span before.
        """
        begins = (label >= 0) & ~goes_on
        ends = label >= 0
        ends[:-1] &= ~goes_on[1:]
        return cls(np.flatnonzero(begins), np.flatnonzero(ends) + 1, label[begins])

    @classmethod
    def of_states(cls, states: NDArray, label: NDArray, continues: Bools, opening: Bools) -> "Segments":
        """Segments of a labelling: the states (int32[T]), and the label of each, -1 for none.

        continues (bool[S, S]): Whether a state continues the span of the state before.
        opening (bool[T]): Where sequences begin.
        """
        goes_on = np.zeros(len(states), dtype=bool)
        goes_on[1:] = continues[states[:-1], states[1:]] & ~opening[1:] & (label[1:] >= 0) & (label[:-1] >= 0)
        return cls.of_tokens(label, goes_on)


NO_SEGMENTS = Segments(*np.zeros((3, 0), dtype=np.int64))
NO_STEPS = np.zeros((0, 3), dtype=np.int64)  # see `Scheme.encode_clamp`


@dataclass(frozen=True)
class Scheme:
    """One way to write labelled spans as one tag per token.

    prefixes: Boundary prefixes in the order of the tags of one label.
    opens, closes: Prefixes that always begin a span, and prefixes that always end one.
    """

    name: str
    prefixes: str
    opens: str
    closes: str

    def tags(self, labels: list[str]) -> list[str]:
        """Names of all tags: ``O``, then the tags of each label."""
        return ["O"] + [f"{prefix}-{label}" for label, prefix in product(labels, self.prefixes)]

    def transition_mask(self, n_labels: int) -> TransitionMask:
        """Which sequences of the ``S = 1 + n_labels * len(prefixes)`` tags are valid."""
        label, prefix = self._label_and_prefix(n_labels)
        size = len(label)
        outside = label < 0
        opens = self._has(prefix, self.opens)
        closes = self._has(prefix, self.closes)
        inside = self._has(prefix, "IL")
        same = label[:, None] == label[None, :]
        if self.name == "IO":
            everything = np.ones(size, dtype=bool)
            return TransitionMask(np.ones((size, size), dtype=bool), everything, everything)
        if self.name == "IOB1":
            # B only separates adjacent spans of one label
            allowed = ~opens[None, :] | (same & ~outside[:, None])
            return TransitionMask(allowed, ~opens, np.ones(size, dtype=bool))
        # A span continues exactly where the next tag says so: I-x and L-x need B-x or I-x before them, and in BILUO B-x and I-x
        # need them behind.
        goes_on = ~outside & ~closes
        continues = same & goes_on[:, None] & inside[None, :]
        if self.closes:
            allowed = np.where(goes_on[:, None], continues, ~inside[None, :])
            return TransitionMask(allowed, ~inside, ~goes_on)
        return TransitionMask(continues | ~inside[None, :], ~inside, np.ones(size, dtype=bool))

    def continues(self, n_labels: int) -> Bools:
        """Whether a tag (column) directly after another (row) continues its span: bool[S, S]."""
        label, prefix = self._label_and_prefix(n_labels)
        goes_on = (label >= 0) & ~self._has(prefix, self.closes)
        return (label[:, None] == label[None, :]) & goes_on[:, None] & ~self._has(prefix, self.opens)[None, :]

    def encode(self, iob: NDArray, label: NDArray, starts: NDArray) -> NDArray[np.int32]:
        """Tags of annotated tokens.

        iob (int[T]): spaCy's ``ent_iob`` codes; a sequence never opens with INSIDE.
        label (int[T]): Label of each entity token, anything elsewhere.
        starts (int64[B + 1]): Where the sequences begin and end.
        RETURNS (int32[T]): Tags; -1 where the annotation is missing.
        """
        entity = (iob == BEGIN) | (iob == INSIDE)
        opening, closing = ends(starts, len(iob))
        # Whether the next token continues the entity; the slice is for no tokens at all
        goes_on = np.append(iob[1:] == INSIDE, False)[: len(iob)] & ~closing
        begins = iob == BEGIN
        if self.name == "IOB1":  # B only separates adjacent spans of one label
            begins[1:] &= entity[:-1] & (label[1:] == label[:-1])
            begins &= ~opening
        first = "B" if "B" in self.prefixes else "I"
        prefix = np.where(begins, self.prefixes.index(first), self.prefixes.index("I"))
        if self.closes:
            closing_prefix = np.where(begins, self.prefixes.index("U"), self.prefixes.index("L"))
            prefix = np.where(goes_on, prefix, closing_prefix)
        tags = np.where(entity, 1 + label * len(self.prefixes) + prefix, 0)
        return np.where(iob == MISSING, -1, tags).astype(np.int32)

    def clamp(self, iob: NDArray, label: NDArray, starts: NDArray, n_labels: int) -> Clamp:
        """Tags that the annotation allows, in the scheme in which it is read (see `reading`): the annotated tag; and all tags
        where annotation is missing, except tags that would extend an annotated entity before them. Arguments: see `encode`.

        RETURNS (bool[T, S'])
        """
        scheme = self.reading
        tags = scheme.encode(iob, label, starts)
        width = len(scheme.prefixes)
        allowed = np.zeros((len(tags), 1 + n_labels * width), dtype=bool)
        known = tags >= 0
        allowed[known, tags[known]] = True
        allowed[~known] = True
        if not scheme.closes:  # otherwise the last tag of an entity says that it ends there
            opens, _ = ends(starts, len(iob))
            # Tokens of entities before missing annotation
            last_known = np.flatnonzero((tags[:-1] > 0) & ~known[1:] & ~opens[1:])
            allowed[last_known + 1, 1 + label[last_known] * width + scheme.prefixes.index("I")] = False
        return allowed

    @property
    def reading(self) -> "Scheme":
        """The scheme in which partial annotation is read: this one, or BIO if tags do not show whether a span begins."""
        return self if self.tags_tell_iob else SCHEMES["BIO"]

    def encode_clamp(self, allowed: Clamp, starts: NDArray) -> tuple[Clamp, Ints]:
        """Translate the tags that annotation allows from the scheme in which it is read.

        IO and IOB1 use one tag for the begin of a span and for its inside; the token before decides. Where only one of the two
        is allowed, a transition may have to be forbidden. (IO reads adjacent annotated spans of one label as one.)

        allowed (bool[T, S']): Tags of the other scheme.
        RETURNS (bool[T, S], int64[N, 3]): The tags; and forbidden transitions: token, label, and 1 for transitions that continue
            a span of the label or 0 for those that begin one.
        """
        if self.reading is self:
            return allowed, NO_STEPS
        opening = ends(starts, len(allowed))[0][:, np.newaxis]
        outside = allowed[:, :1]
        begins = allowed[:, 1::2]
        goes_on = allowed[:, 2::2]
        while True:  # a tag that continues nothing would be read as a begin
            before = np.roll(begins | goes_on, 1, axis=0) & ~opening
            if not (goes_on & ~before).any():
                break
            goes_on = goes_on & before
        may = begins | goes_on  # [T, L] the token may have the label
        surely = may & (may.sum(axis=1, keepdims=True) == 1) & ~outside  # the token has the label
        surely_before = np.roll(surely, 1, axis=0) & ~opening
        # Where the token before may have the label too: spans that must not continue there, and spans that must continue
        apart = before & begins & ~goes_on
        joined = before & goes_on & ~begins
        # After a token that surely has the label, the tag would surely continue its span, so the tag is forbidden, not the step
        inside = may & ~(apart & surely_before)
        apart &= ~surely_before
        if self.name == "IO":
            # A token that surely has the label keeps its tag. Where a span must begin there, the token before must lose the tag
            inside |= surely
            inside[:-1] &= ~(apart & surely)[1:]
            apart &= ~surely
        encoded = np.zeros((len(allowed), 1 + may.shape[1] * len(self.prefixes)), dtype=bool)
        encoded[:, :1] = outside
        encoded[:, 1 + self.prefixes.index("I") :: len(self.prefixes)] = inside
        if self.name == "IOB1":
            encoded[:, 1 + self.prefixes.index("B") :: len(self.prefixes)] = begins & before
        steps = [np.pad(np.argwhere(apart), ((0, 0), (0, 1)), constant_values=1)]
        steps += [np.pad(np.argwhere(joined & ~surely_before), ((0, 0), (0, 1)))]
        return encoded, np.concatenate(steps)

    def decode(self, tags: NDArray, starts: NDArray) -> Segments:
        """Spans of valid tag sequences."""
        width = len(self.prefixes)
        entity = tags > 0
        label = np.where(entity, (tags - 1) // width, -1)
        prefix = np.where(entity, (tags - 1) % width, -1)
        begins = entity & self._has(prefix, self.opens)
        begins[1:] |= entity[1:] & ((label[1:] != label[:-1]) | self._has(prefix[:-1], self.closes))
        begins |= entity & ends(starts, len(tags))[0]
        return Segments.of_tokens(label, entity & ~begins)

    def iob(self, tags: NDArray, starts: NDArray) -> NDArray[np.uint64]:
        """spaCy's ``ent_iob`` codes (never MISSING) of valid tag sequences."""
        codes = np.where(tags > 0, INSIDE, OUTSIDE).astype(np.uint64)
        codes[self.decode(tags, starts).start] = BEGIN
        return codes

    @property
    def tags_tell_iob(self) -> bool:
        """Whether each tag of a valid sequence shows by itself whether a span begins."""
        return self.name in ("BIO", "BILUO")

    def iob_of_tag(self, n_labels: int) -> NDArray[np.uint64]:
        """``ent_iob`` code of each tag, as far as the tag shows it: uint64[S]."""
        label, prefix = self._label_and_prefix(n_labels)
        return np.where(label < 0, OUTSIDE, np.where(self._has(prefix, self.opens), BEGIN, INSIDE)).astype(np.uint64)

    def label_of_tag(self, n_labels: int) -> Ints:
        """Index of the label of each tag, -1 for ``O``."""
        return self._label_and_prefix(n_labels)[0]

    def _label_and_prefix(self, n_labels):
        width = len(self.prefixes)
        tags = np.arange(1 + n_labels * width)
        return np.where(tags > 0, (tags - 1) // width, -1), np.where(tags > 0, (tags - 1) % width, -1)

    def _has(self, prefix, letters):
        return np.array([*(own in letters for own in self.prefixes), False])[prefix]  # the last entry is for prefix -1


class SegmentScheme(Scheme):
    """The scheme of semi-Markov chains: states are ``O``, one token long, and the labels, and a clamp has the places where
    segments begin. Where tags are needed, it is BIO."""

    def tags(self, labels: list[str]) -> list[str]:
        """Names of the states: ``O``, then the labels."""
        return ["O", *labels]

    def transition_mask(self, n_labels: int) -> TransitionMask:
        """Any segment may follow any other."""
        everything = np.ones((1 + n_labels, 1 + n_labels), dtype=bool)
        return TransitionMask(everything, everything[0], everything[0])

    def clamp(self, iob: NDArray, label: NDArray, starts: NDArray, n_labels: int) -> SegmentClamp:
        """Segments that the annotation allows: each annotated entity is one segment; any segments are allowed where annotation is
        missing.
        """
        known = iob != MISSING
        entity = (iob == BEGIN) | (iob == INSIDE)
        states = np.ones((len(iob), 1 + n_labels), dtype=bool)
        states[known] = False
        states[known, np.where(entity, 1 + label, 0)[known]] = True
        inside = iob == INSIDE
        must_begin = known & ~inside
        must_begin[1:] |= known[:-1] & ~inside[1:]  # an entity ends with its last token
        must_begin |= ends(starts, len(iob))[0]
        return SegmentClamp(states, ~inside, must_begin)

    def states_to_tags(self, states: NDArray[np.int32]) -> NDArray[np.int32]:
        """BIO tags of a path of segments (int32[T])."""
        begins = states >= 0
        last = np.maximum.accumulate(np.where(begins, np.arange(len(states)), 0)) if len(states) else states
        state = states[last] if len(states) else states
        tags = 1 + 2 * (state - 1) + np.where(begins, self.prefixes.index("B"), self.prefixes.index("I"))
        return np.where(state > 0, tags, 0).astype(np.int32)


SEGMENTS = SegmentScheme("BIO", prefixes="BI", opens="B", closes="")

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("IO", prefixes="I", opens="", closes=""),
        Scheme("BIO", prefixes="BI", opens="B", closes=""),
        Scheme("IOB1", prefixes="BI", opens="B", closes=""),
        Scheme("BILUO", prefixes="BILU", opens="BU", closes="LU"),
    )
}


# Where BIO does better than BILUO, by F1 on the training data of eight sets (`tests.benchmarks.feature_search`): wnut17
# (330 spans a label, of 1.6 tokens) +1.3, snips (200, 1.8) +0.5, mit (750, 1.7) +0.6, (1,150) +0.8, (1,730; on dev) +0.5; but
# ingredients (1,760, 1.8) -0.1, jnlpba (840, 2.1) -1.8, (1,660) -1.2, (9,350; on dev) -0.8, conll2000 (1,630, 1.7) -0.3, (3,270)
# -0.4, cora (150, 4.2) -0.2. usaddress (300, 1.2) shows no difference.
# spans of a label, and tokens of a span
MANY_SPANS = 2000
SHORT_SPANS = 2.0


def choose_scheme(n_labels: int, lengths: Sequence[int]) -> str:
    """Choose "BIO" or "BILUO" by the number of labels and the tokens of each annotated span. Four tags for a label describe the
    ends of spans better than two, but each is learned from fewer tokens: two are better where labels have few and short spans.
    """
    is_short = len(lengths) > 0 and sum(lengths) < SHORT_SPANS * len(lengths)
    return "BIO" if is_short and len(lengths) < MANY_SPANS * n_labels else "BILUO"


def get_scheme(name: str) -> Scheme:
    """The scheme with this name. RAISES (ValueError): CRF001, with the known schemes."""
    if not isinstance(name, str) or name not in SCHEMES:
        raise ValueError(Errors.CRF001.format(scheme=name, known=", ".join([*SCHEMES, "auto"])))
    return SCHEMES[name]
