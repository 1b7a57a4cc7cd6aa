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

from typing import NamedTuple, Optional, TypeVar

import numpy as np

from .. import arrays
from ..kernels.spans import SpanStates
from ..schemes import TransitionMask
from ..types import Bools, ChainClamp, ChainScores, Floats, Ints, SegmentScores, StateGraph
from .structure import States, Structure, Work

Potentials = TypeVar("Potentials", ChainScores, SegmentScores)


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
        continues = spans.continues & mask.transitions  # [S, S]
        leaves = mask.transitions & ~continues
        opens = mask.first | leaves.any(axis=0)  # [S] whether a span may begin with the state
        closes = mask.last | leaves.any(axis=1)
        crosses = has_label & ~(opens | closes)  # as I-PER of BILUO, which may stand at a blank token
        goes_on = has_label & continues.any(axis=0)
        # Where a label has no state that only goes on, each state that may go on gets a copy that must
        copied = goes_on & ~np.isin(label_of, label_of[crosses])
        at_blank = ~has_label | crosses
        if not copied.any():
            return cls(None, at_blank, np.ones(size, dtype=bool), size)
        n_copies = 1 + copied.astype(np.int64)
        tag_of = np.repeat(np.arange(size), n_copies)  # [S + C]
        is_bridge = np.zeros(len(tag_of), dtype=bool)
        is_bridge[np.cumsum(n_copies)[copied] - 1] = True
        either = is_bridge[:, np.newaxis] | is_bridge
        pairs = np.ix_(tag_of, tag_of)
        allowed = np.where(either, continues[pairs], mask.transitions[pairs])  # [S + C, S + C]
        source, target = np.nonzero(allowed)
        ends = np.where(is_bridge, -np.inf, 0.0)
        graph = StateGraph(
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            scores=np.zeros(len(source)),
            first=ends,
            last=ends,
            tag_of=tag_of.astype(np.int32),
        )
        return cls(graph, at_blank[tag_of] | is_bridge, ~is_bridge, size)

    @property
    def tag_of(self) -> Ints:
        """The state of the chain that each state has the scores of: int64[S + C]."""
        return np.arange(self.n_states) if self.graph is None else self.graph.tag_of.astype(np.int64)

    def masked(self) -> "Bridges":
        """Without copies, for scores that cannot be copied: spans do not cross blank tokens unless a state of their own does."""
        if self.graph is None:
            return self
        is_own = np.append(True, np.diff(self.graph.tag_of) > 0)  # [S + C] the state itself, not its copy
        at_blank = self.at_blank & self.elsewhere
        return Bridges(None, at_blank[is_own], np.ones(self.n_states, dtype=bool), self.n_states)

    def widened(self, scores: Potentials, blank: Bools) -> Potentials:
        """The scores of all states, -inf where a token is blank and its state would open or close a span.

        scores (ChainScores or SegmentScores): Potentials of the chain.
        blank (bool[T]): The tokens that are white space.
        """
        if isinstance(scores, SegmentScores):
            # A segment is a span: it neither begins nor ends at a blank token, but may contain one
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
        allowed = np.stack(
            [self.elsewhere, self.at_blank]
        )  # [2, S + C] of tokens that are no white space, and that are
        penalties = np.where(allowed, 0.0, -np.inf)
        emissions = emissions + penalties.take(blank.astype(np.int64), axis=0)
        return scores._replace(**{scores._fields[0]: emissions})

    def by_steps(self, scores: ChainScores, blank: Bools) -> ChainScores:
        """The scores of the chain's own states, -inf for the same labellings as `widened`. Transitions depend on the position,
        which takes much memory.

        scores (ChainScores): Potentials of the chain.
        blank (bool[T]): The tokens that are white space.
        """
        if self.graph is None:
            return self.widened(scores, blank)
        size = len(self.at_blank)
        arcs = np.zeros((size, size), dtype=bool)
        arcs[self.graph.source, self.graph.target] = True
        at = self._at(blank)  # [T, S]
        opens, closes = arrays.ends(scores.starts, len(blank))
        inner = ~(opens | closes)[:, np.newaxis]
        possible = self.at_blank[at] | ~blank[:, np.newaxis]
        possible &= (self.graph.first[at] > -np.inf) | inner  # `last` forbids the same states as `first`
        steps = np.array(np.broadcast_to(scores.transitions, (*at.shape, self.n_states)))  # [T, S, S]
        may_follow = arcs[at[:-1, :, np.newaxis], at[1:, np.newaxis]]  # [T - 1, S, S]
        steps[1:][~may_follow] = -np.inf
        return scores._replace(emissions=np.where(possible, scores.emissions, -np.inf), transitions=steps)

    def _at(self, blank: Bools) -> Ints:
        """The state that stands for each state of the chain at each token: int64[T, S]."""
        states = np.arange(self.n_states)
        tag_of = self.tag_of
        own = np.searchsorted(tag_of, states)
        bridge = np.searchsorted(tag_of, states, side="right") - 1
        return np.where(blank[:, np.newaxis], bridge, own)

    def clamp(self, clamp: Optional[ChainClamp]) -> Optional[ChainClamp]:
        """The clamp of all states.

        clamp (ChainClamp): What is still allowed, by state of the chain; None stays None.
        """
        return clamp if clamp is None or self.graph is None else arrays.expand_clamp(clamp, self.graph.tag_of)

    def path(self, states: States, blank: Bools) -> States:
        """The path of a labelling, with bridges at blank tokens: int32[T].

        states (int32[T]): The labelling, -1 for none.
        blank (bool[T]): The tokens that are white space.
        """
        if self.graph is None:
            return states
        number = self._at(blank)[np.arange(len(states)), states]
        return np.where(states >= 0, number, states).astype(np.int32)

    def narrowed(self, expected: ChainScores, blank: Bools) -> ChainScores:
        """The derivative with respect to the scores of the chain.

        expected (ChainScores): The derivative with respect to the scores of all states.
        blank (bool[T]): The tokens that are white space.
        """
        if self.graph is None:
            return expected
        # A bridge has the scores of the state that it copies: derivatives add up
        bridges = np.flatnonzero(~self.elsewhere)
        emissions = np.take(expected.emissions, np.flatnonzero(self.elsewhere), axis=1)
        emissions[np.ix_(blank, self.graph.tag_of[bridges])] += expected.emissions[np.ix_(blank, bridges)]
        shared = expected._replace(emissions=np.zeros((0, len(self.at_blank))))
        return arrays.contract(shared, self.graph, self.n_states)._replace(emissions=emissions)


class BridgedStructure:
    """A chain in training whose spans neither begin nor end with white space. Losses ask it in the states of the chain,
    by scores that they prepare.

    structure (Structure): The structure that it asks, over the states of `bridges`, perhaps with the rules of a batch.
    bridges (Bridges): The bridges of the chain.
    blank (bool[T]): The tokens of the batch that are white space.

    The questions are those of `Structure`; scores, clamps and derivatives are those of the chain.
    """

    def __init__(self, structure: Structure, bridges: Bridges, blank: Bools):
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
        """The structure over some of the states, or over states that copy others, if it has masks alone.

        states (int64[N]): The states of the chain.
        """
        masks = Bridges(None, self.bridges.at_blank[states], self.bridges.elsewhere[states], len(states))
        return BridgedStructure(self.of, masks, self._blank)

    @property
    def signature(self) -> bytes:
        """Equal for equal structures and equal white space."""
        return self.of.signature + self._blank.tobytes()

    def only_path(self, clamp: ChainClamp) -> Optional[States]:
        """See `Structure.only_path`: the only labelling that `clamp` allows."""
        return self.of.only_path(clamp)

    def prepare(self, scores: Potentials, *, annotated: Optional[ChainClamp] = None) -> Work:
        """See `Structure.prepare`: the widened `scores`, checked; `annotated` is what the annotation allows."""
        return self.of.prepare(self.bridges.widened(scores, self._blank), annotated=self.bridges.clamp(annotated))

    def expectations(
        self, work: Work, *, clamp: Optional[ChainClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """See `Structure.expectations`; `work`, `clamp` and `weights` (float64[B]) are those of the batch."""
        values, expected = self.of.expectations(work, clamp=self.bridges.clamp(clamp), weights=weights)
        return values, self.bridges.narrowed(expected, self._blank)

    def viterbi_counts(
        self, work: Work, *, clamp: Optional[ChainClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """See `Structure.viterbi_counts`; `work`, `clamp` and `weights` (float64[B]) are those of the batch."""
        values, used = self.of.viterbi_counts(work, clamp=self.bridges.clamp(clamp), weights=weights)
        return values, self.bridges.narrowed(used, self._blank)

    def path_score(self, work: Work, states: States) -> Floats:
        """See `Structure.path_score`: scores by `work` of one labelling for each sequence, `states` (int32[T])."""
        return self.of.path_score(work, self.bridges.path(states, self._blank))

    def path_expectations(self, work: Work, states: States, *, weights: Floats, out: ChainScores) -> ChainScores:
        """See `Structure.path_expectations`: adds the uses by `states` (int32[T]), times `weights` (float64[B]), to `out`; `work`
        has the potentials."""
        path = self.bridges.path(states, self._blank)
        used = self.of.path_expectations(work, path, weights=weights)
        arrays.add(out, self.bridges.narrowed(used, self._blank), slice(0, len(states)))
        return out

    def differentiate_path(self, work: Work, states: States, weights: Floats) -> tuple[Floats, Floats, ChainScores]:
        """See `Structure.differentiate_path`, for `work`, `states` (int32[T]) and `weights` (float64[B])."""
        path = self.bridges.path(states, self._blank)
        log_z, reached, derivative = self.of.differentiate_path(work, path, weights)
        return log_z, reached, self.bridges.narrowed(derivative, self._blank)
