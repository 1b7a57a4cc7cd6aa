"""Clamps, excluding each other, for the labellings that have a span and for the labellings that lack it.

Both probabilities are then sums of positive numbers, so the complement of a nearly certain span is as exact as the span's
probability. A labelling of a chain lacks a span if no span begins at the span's first token, or that span breaks off at a later
token, or it continues behind the last token:

    Ann Lee as B-PER I-PER, not in front of I-PER:    ¬B-PER *      B-PER ¬I-PER      B-PER I-PER I-PER
"""

from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ..schemes import TransitionMask
from ..types import SegmentClamp

if TYPE_CHECKING:
    from ..pipeline.decoding import Decoding

Allowed = dict[int, NDArray[np.bool_]]  # bool[S] states of some tokens


class SpanPlace:
    """A span in a sequence of T tokens: its tokens are ``begin:end``; its label is a number, -1 for ``O``."""

    def __init__(self, begin: int, end: int, label: int, starts: NDArray[np.int64]):
        self.begin = begin
        self.end = end
        self.label = label
        self.size = int(starts[-1])
        self.opens = begin in starts
        self.closes = end in starts
        self.tokens = range(begin, end)


def events_of(decoding: "Decoding") -> "Union[ChainEvents, SegmentEvents]":
    """Make the object that computes the clamps for a decoding."""
    return SegmentEvents(decoding) if decoding.labelled == "segments" else ChainEvents(decoding)


class ChainEvents:
    """Clamps of chains: bool[T, S]."""

    def __init__(self, decoding: "Decoding"):
        self._label_of = decoding.label_of_states
        continues: Any = decoding.spans.continues  # tags have it, segments do not
        self._mask: TransitionMask = decoding.mask()
        self._continues = continues.any(axis=0)
        self._continued = continues.any(axis=1)

    def having(self, place: SpanPlace) -> list[NDArray[np.bool_]]:
        """Clamps of the labellings with the span; for ``O``, of the labellings in which all its tokens are outside."""
        if place.label < 0:
            return self._clamps(place, [dict.fromkeys(place.tokens, self._of_label(place))])
        whole = self._upto(place, place.end)
        return self._clamps(place, [ended for so_far in whole for ended in self._broken(place, place.end, so_far)])

    def lacking(self, place: SpanPlace) -> list[NDArray[np.bool_]]:
        """Clamps of the other labellings."""
        of_label = self._of_label(place)
        if place.label < 0:
            inside = [dict.fromkeys(range(place.begin, t), of_label) | {t: ~of_label} for t in place.tokens]
            return self._clamps(place, inside)
        events: list[Allowed] = [{place.begin: ~of_label}]
        if not place.opens:
            before = of_label & self._continued
            events.append({place.begin - 1: before, place.begin: of_label & self._continues})
        for token in range(place.begin + 1, place.end):
            events += [e for so_far in self._upto(place, token) for e in self._broken(place, token, so_far)]
        if not place.closes:
            events += [e for so_far in self._upto(place, place.end) for e in self._joined(so_far, place.end, of_label)]
        return self._clamps(place, events)

    def _of_label(self, place: SpanPlace) -> NDArray[np.bool_]:
        return self._label_of == place.label

    def _upto(self, place: SpanPlace, token: int) -> list[Allowed]:
        """Events in which the span begins at its first token and continues up to, not including, this token."""
        of_label = self._of_label(place)
        begin = place.begin
        starts: list[Allowed] = [{begin: of_label}]
        if not place.opens:  # a continuing tag begins a span only behind a tag that can't be continued
            goes_on = of_label & self._continues
            continued = of_label & self._continued
            starts = [{begin: of_label & ~goes_on}, {begin - 1: ~continued, begin: goes_on}]
        for at in range(begin + 1, token):
            starts = [going for so_far in starts for going in self._joined(so_far, at, of_label)]
        return starts

    def _joined(self, so_far: Allowed, token: int, of_label: NDArray[np.bool_]) -> list[Allowed]:
        """Events in which, in addition, the token continues the span of the previous token."""
        before = so_far[token - 1] & self._continued
        return [so_far | {token - 1: before, token: of_label & self._continues}]

    def _broken(self, place: SpanPlace, token: int, so_far: Allowed) -> list[Allowed]:
        """Events in which, in addition, the token does not continue the span of the previous token."""
        if token == place.end and place.closes:
            return [so_far]
        before = so_far[token - 1]
        goes_on = self._of_label(place) & self._continues
        cut = so_far | {token - 1: before & ~self._continued}
        return [cut, so_far | {token - 1: before & self._continued, token: ~goes_on}]

    def _clamps(self, place: SpanPlace, events: list[Allowed]) -> list[NDArray[np.bool_]]:
        """Clamps of the events that are possible in the tag scheme."""
        clamps = []
        for event in filter(self._is_possible, events):
            clamp = np.ones((place.size, len(self._label_of)), dtype=bool)
            for token, allowed in event.items():
                clamp[token] = allowed
            clamps.append(clamp)
        return clamps

    def _is_possible(self, event: Allowed) -> bool:
        steps = ((event[t], event[t + 1]) for t in event if t + 1 in event)
        follows = all(self._mask.transitions[np.ix_(before, after)].any() for before, after in steps)
        return follows and all(allowed.any() for allowed in event.values())


class SegmentEvents:
    """Clamps of segments: `SegmentClamp`."""

    def __init__(self, decoding: "Decoding"):
        self._n_states = len(decoding.label_of_states)
        self._longest: Any = decoding.longest

    def having(self, place: SpanPlace) -> list[SegmentClamp]:
        if place.label < 0:
            return [self._upto(place, place.begin, set(), 0, place.end)]
        too_long = place.end - place.begin > self._longest[1 + place.label]
        return [] if too_long else [self._upto(place, place.end, {place.begin, place.end})]

    def lacking(self, place: SpanPlace) -> list[SegmentClamp]:
        if place.label < 0:
            return [self._other(place, token, 0) for token in place.tokens]
        clamps = [self._other(place, place.begin, 1 + place.label, begins=True)]
        if not place.opens:
            clamps.append(self._free(place))
            clamps[-1].may_begin[place.begin] = False
        clamps += [self._upto(place, token, {place.begin, token}) for token in range(place.begin + 1, place.end)]
        if not place.closes:
            clamps.append(self._upto(place, place.end + 1, {place.begin}))
        return clamps

    def _free(self, place: SpanPlace) -> SegmentClamp:
        return SegmentClamp(
            states=np.ones((place.size, self._n_states), dtype=bool),
            may_begin=np.ones(place.size, dtype=bool),
            must_begin=np.zeros(place.size, dtype=bool),
        )

    def _upto(
        self, place: SpanPlace, end: int, begins: set[int], state: Optional[int] = None, upto: Optional[int] = None
    ) -> SegmentClamp:
        """Clamp with a segment from the first token up to, not including, `end`; or with tokens of a state."""
        clamp = self._free(place)
        upto = end if upto is None else upto
        clamp.states[place.begin : upto] = np.arange(self._n_states) == (1 + place.label if state is None else state)
        clamp.may_begin[place.begin + 1 : end] = False
        for token in begins - {place.size}:
            clamp.must_begin[token] = True
        return clamp

    def _other(self, place: SpanPlace, token: int, state: int, *, begins: bool = False) -> SegmentClamp:
        """Clamp with another state at a token, after tokens with the given state."""
        clamp = self._free(place)
        clamp.states[place.begin : token] = np.arange(self._n_states) == state
        clamp.states[token, state] = False
        clamp.must_begin[token] = begins
        return clamp
