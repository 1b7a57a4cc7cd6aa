"""Spans that neither begin nor end with white space, in chains of tokens.

White space inside a span stays possible: a span that reaches a blank token has to go on behind it. BILUO has a tag that says so,
I-PER, which never opens and never closes a span; there a mask of tags at blank tokens is enough. In other schemes such a tag may
also be the first or the last of its span. There it gets a copy, a *bridge*, for blank tokens alone:

    tokens         Ada  \\n  Nox  \\n  left
    tags  (BIO)    B    I'  I    O   O       I' follows tags of its span only, and only tags of its span follow it
                   B    O   O    O   O
                   B    I'  ✗                no span goes on behind I'
                   O    ✗                    B and I are forbidden at blank tokens, and I' opens nothing

Each labelling without white space at the edges of its spans is still one path, with the same score; the others have none.
"""

from typing import Any, NamedTuple, Optional

import numpy as np

from .. import arrays
from ..kernels.spans import SpanStates
from ..schemes import TransitionMask
from ..types import Bools, ChainScores, Floats, Ints, SegmentScores, StateGraph
from .structure import Structure


class Bridges(NamedTuple):
    """The S states of a chain and C bridges, as S + C states, of which each bridge stands behind the state it copies."""

    graph: Optional[StateGraph]  # None without any bridge: the states are those of the chain
    at_blank: Bools  # [S + C] states that blank tokens may have
    elsewhere: Bools  # [S + C] states that other tokens may have
    n_states: int  # S

    @classmethod
    def of(cls, mask: TransitionMask, spans: SpanStates) -> "Bridges":
        """The bridges of a chain.

        mask (TransitionMask): Transitions that the tag scheme allows.
        spans (SpanStates): How states encode spans; None as `continues` for segments, each of which is a span.
        """
        label_of = spans.label_of[:-1]
        has_label = label_of >= 0
        size = len(label_of)
        if spans.continues is None:
            return cls(None, ~has_label, np.ones(size, dtype=bool), size)
        continues = spans.continues & mask.transitions
        leaves = mask.transitions & ~continues
        crosses = has_label & ~(mask.first | mask.last | leaves.any(axis=0) | leaves.any(axis=1))
        goes_on = has_label & continues.any(axis=0)
        copied = goes_on & ~np.isin(label_of, label_of[crosses])
        at_blank = ~has_label | crosses
        if not copied.any():
            return cls(None, at_blank, np.ones(size, dtype=bool), size)
        n_copies = 1 + copied.astype(np.int64)
        tag_of = np.repeat(np.arange(size), n_copies)
        is_bridge = np.zeros(len(tag_of), dtype=bool)
        is_bridge[np.cumsum(n_copies)[copied] - 1] = True
        either = is_bridge[:, np.newaxis] | is_bridge
        pairs = np.ix_(tag_of, tag_of)
        source, target = np.nonzero(np.where(either, continues[pairs], mask.transitions[pairs]))
        ends = np.where(is_bridge, -np.inf, 0.0)
        arcs = source.astype(np.int32), target.astype(np.int32), np.zeros(len(source))
        graph = StateGraph(*arcs, ends, ends, tag_of.astype(np.int32))
        return cls(graph, at_blank[tag_of] | is_bridge, ~is_bridge, size)

    @property
    def tag_of(self) -> Ints:
        """The state of the chain that each state has the scores of: int64[S + C]."""
        return np.arange(self.n_states) if self.graph is None else self.graph.tag_of.astype(np.int64)

    def masked(self) -> "Bridges":
        """Without copies, for scores that cannot be copied: spans do not cross blank tokens unless a state of their own does."""
        if self.graph is None:
            return self
        own = np.append(True, np.diff(self.graph.tag_of) > 0)
        is_bridge = self.at_blank & ~self.elsewhere
        return Bridges(None, (self.at_blank & ~is_bridge)[own], np.ones(self.n_states, dtype=bool), self.n_states)

    def widened(self, scores: Any, blank: Bools) -> Any:
        """The scores of all states, -inf where a token is blank (bool[T]) and its state would open or close a span."""
        if isinstance(scores, SegmentScores):
            forbidden = np.ix_(blank, ~self.at_blank)
            begins = scores.begins.copy()
            ends = scores.ends.copy()
            begins[forbidden] = ends[forbidden] = -np.inf
            return scores._replace(begins=begins, ends=ends)
        emissions = scores[0]
        if self.graph is not None:
            shared = [name for name in arrays.named(scores) if name != scores._fields[0]]
            scores = scores._replace(**arrays.expand(scores, self.graph, shared))
            emissions = emissions.take(self.graph.tag_of, axis=1)
        allowed = np.stack([self.elsewhere, self.at_blank])
        penalties = np.where(
            allowed, 0.0, -np.inf
        )  # [2, S + C] of tokens that are no white space, and of those that are
        emissions = emissions + penalties.take(blank.astype(np.int64), axis=0)
        return scores._replace(**{scores._fields[0]: emissions})

    def by_steps(self, scores: ChainScores, blank: Bools) -> ChainScores:
        """The scores of the chain's own states, -inf for the same labellings: its transitions depend on the position, which takes
        much memory."""
        if self.graph is None:
            return self.widened(scores, blank)
        size = len(self.at_blank)
        arcs = np.zeros((size, size), dtype=bool)
        arcs[self.graph.source, self.graph.target] = True
        at = self._at(blank)  # [T, S]
        opens, closes = arrays.ends(scores.starts, len(blank))
        possible = self.at_blank[at] | ~blank[:, np.newaxis]
        possible &= (self.graph.first[at] > -np.inf) | ~(opens | closes)[:, np.newaxis]  # as `last`
        steps = np.array(np.broadcast_to(scores.transitions, (*at.shape, self.n_states)))
        steps[1:][~arcs[at[:-1, :, np.newaxis], at[1:, np.newaxis]]] = -np.inf
        return scores._replace(emissions=np.where(possible, scores.emissions, -np.inf), transitions=steps)

    def _at(self, blank: Bools) -> Ints:
        """The state that stands for each state of the chain at each token: int64[T, S]."""
        states = np.arange(self.n_states)
        tag_of = self.tag_of
        own = np.searchsorted(tag_of, states)
        bridge = np.searchsorted(tag_of, states, side="right") - 1
        return np.where(blank[:, np.newaxis], bridge, own)

    def clamp(self, clamp: Any) -> Any:
        """The clamp of all states, from that of the states of the chain."""
        return clamp if clamp is None or self.graph is None else arrays.expand_clamp(clamp, self.graph.tag_of)

    def path(self, states: Ints, blank: Bools) -> Ints:
        """The path of a labelling, which has bridges at blank tokens: int32[T]."""
        if self.graph is None:
            return states
        number = self._at(blank)[np.arange(len(states)), states]
        path: Any = np.where(states >= 0, number, states).astype(np.int32)
        return path

    def narrowed(self, expected: ChainScores, blank: Bools) -> ChainScores:
        """The derivative by the scores of the chain, from that by the scores of all states."""
        if self.graph is None:
            return expected
        bridges = np.flatnonzero(~self.elsewhere)
        emissions = np.take(expected.emissions, np.flatnonzero(self.elsewhere), axis=1)
        emissions[np.ix_(blank, self.graph.tag_of[bridges])] += expected.emissions[np.ix_(blank, bridges)]
        shared = expected._replace(emissions=np.zeros((0, len(self.at_blank))))
        return arrays.contract(shared, self.graph, self.n_states)._replace(emissions=emissions)


class BridgedStructure:
    """A chain in training whose spans neither begin nor end with white space. Losses ask it in the states of the chain,
    by scores that they prepare.

    structure: The structure that it asks, over the states of `bridges`.
    bridges (Bridges): Of the chain. blank (bool[T]): The tokens of the batch that are white space.
    """

    def __init__(self, structure: Any, bridges: Bridges, blank: Bools):
        self.of = structure
        self.bridges = bridges
        self._blank = blank
        self.answers = structure.answers
        self.threads = structure.threads

    @property
    def masks_alone(self) -> bool:
        """Whether it only masks states of a structure without rules."""
        return self.bridges.graph is None and isinstance(self.of, Structure)

    def of_states(self, states: Ints) -> "BridgedStructure":
        """The structure over some of the states (int64[N]), or over states that copy others, if it has masks alone."""
        masks = self.bridges.at_blank[states], self.bridges.elsewhere[states]
        return BridgedStructure(self.of, Bridges(None, *masks, len(states)), self._blank)

    @property
    def signature(self) -> bytes:
        """Equal for equal structures and equal white space."""
        return self.of.signature + self._blank.tobytes()

    def only_path(self, clamp: Any) -> Any:
        return self.of.only_path(clamp)

    def prepare(self, scores: Any, *, annotated: Any = None) -> Any:
        return self.of.prepare(self.bridges.widened(scores, self._blank), annotated=self.bridges.clamp(annotated))

    def expectations(self, work: Any, *, clamp: Any = None, weights: Optional[Floats] = None) -> tuple[Floats, Any]:
        values, expected = self.of.expectations(work, clamp=self.bridges.clamp(clamp), weights=weights)
        return values, self.bridges.narrowed(expected, self._blank)

    def viterbi_counts(self, work: Any, *, clamp: Any = None, weights: Optional[Floats] = None) -> tuple[Floats, Any]:
        values, used = self.of.viterbi_counts(work, clamp=self.bridges.clamp(clamp), weights=weights)
        return values, self.bridges.narrowed(used, self._blank)

    def path_score(self, work: Any, states: Ints) -> Floats:
        return self.of.path_score(work, self.bridges.path(states, self._blank))

    def path_expectations(self, work: Any, states: Ints, *, weights: Floats, out: Any) -> Any:
        path = self.bridges.path(states, self._blank)
        used = self.of.path_expectations(work, path, weights=weights)
        arrays.add(out, self.bridges.narrowed(used, self._blank), slice(0, len(states)))
        return out

    def differentiate_path(self, work: Any, states: Ints, weights: Floats) -> tuple[Floats, Floats, Any]:
        path = self.bridges.path(states, self._blank)
        log_z, reached, derivative = self.of.differentiate_path(work, path, weights)
        return log_z, reached, self.bridges.narrowed(derivative, self._blank)
