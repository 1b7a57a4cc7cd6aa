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
    """The S states of a chain and C bridges, as S + C states: each bridge stands behind the state that it copies."""

    graph: Optional[StateGraph]  # None without any bridge: the states are those of the chain
    at_blank: Bools  # [S + C] states that blank tokens may have
    elsewhere: Bools  # [S + C] states that other tokens may have
    n_states: int  # S

    @classmethod
    def of(cls, mask: TransitionMask, spans: SpanStates) -> "Bridges":
        """Find the states that blank tokens may have, and the states that need bridges for blank tokens.

        mask (TransitionMask): Transitions that the tag scheme allows.
        spans (SpanStates): How states encode spans; None as `continues` for segments, each of which is a span.
        """
        label_of = spans.label_of[:-1]  # [S] -1 for none
        has_label = label_of >= 0
        size = len(label_of)
        if spans.continues is None:
            return cls(None, ~has_label, np.ones(size, dtype=bool), size)
        continues = spans.continues & mask.transitions  # [S, S] transitions within a span
        leaves = mask.transitions & ~continues
        may_open = mask.first | leaves.any(axis=0)  # [S] whether a span may begin with the state
        may_close = mask.last | leaves.any(axis=1)  # [S] whether a span may end with the state
        is_inner = has_label & ~(may_open | may_close)  # as I-PER of BILUO, which may stand at a blank token
        may_continue = has_label & continues.any(axis=0)
        # If a label has no inner state, each of its states that may continue a span gets a bridge
        has_bridge = may_continue & ~np.isin(label_of, label_of[is_inner])
        at_blank = ~has_label | is_inner
        if not has_bridge.any():
            return cls(None, at_blank, np.ones(size, dtype=bool), size)
        n_copies = 1 + has_bridge.astype(np.int64)  # the state itself, and its bridge behind it
        tag_of = np.repeat(np.arange(size), n_copies)  # [S + C]
        is_bridge = np.zeros(len(tag_of), dtype=bool)
        is_bridge[np.cumsum(n_copies)[has_bridge] - 1] = True
        # A bridge has the transitions of its state within a span, and no others
        touches_bridge = is_bridge[:, np.newaxis] | is_bridge
        pairs = np.ix_(tag_of, tag_of)
        allowed = np.where(touches_bridge, continues[pairs], mask.transitions[pairs])  # [S + C, S + C]
        source, target = np.nonzero(allowed)
        at_ends = np.where(is_bridge, -np.inf, 0.0)  # no sequence begins or ends with a bridge
        graph = StateGraph(
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            scores=np.zeros(len(source)),
            first=at_ends,
            last=at_ends,
            tag_of=tag_of.astype(np.int32),
        )
        return cls(graph, at_blank[tag_of] | is_bridge, ~is_bridge, size)

    @property
    def tag_of(self) -> Ints:
        """For each state, the state of the chain whose scores it has: int64[S + C]."""
        return np.arange(self.n_states) if self.graph is None else self.graph.tag_of.astype(np.int64)

    def masked(self) -> "Bridges":
        """A variant without bridges, for scores that cannot be copied. Spans then cross blank tokens only by states such as I-PER
        of BILUO.
        """
        if self.graph is None:
            return self
        is_original = np.append(True, np.diff(self.graph.tag_of) > 0)  # [S + C] a state of the chain, not a bridge
        at_blank = self.at_blank & self.elsewhere
        return Bridges(None, at_blank[is_original], np.ones(self.n_states, dtype=bool), self.n_states)

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
        # Every kind of chain has the scores of states at tokens as its first field
        emissions = scores[0]
        if self.graph is not None:
            shared = [name for name in arrays.named(scores) if name != scores._fields[0]]
            scores = scores._replace(**arrays.expand(scores, self.graph, shared))
            emissions = emissions.take(self.graph.tag_of, axis=1)
        # Row 0 for tokens that are no white space, row 1 for blank tokens
        penalties = np.where(np.stack([self.elsewhere, self.at_blank]), 0.0, -np.inf)  # [2, S + C]
        emissions = emissions + penalties.take(blank.astype(np.int64), axis=0)
        return scores._replace(**{scores._fields[0]: emissions})

    def by_steps(self, scores: ChainScores, blank: Bools) -> ChainScores:
        """The scores of the chain's states, without bridges, with -inf for the labellings that `widened` excludes. Transitions
        depend on the token, which takes much memory.

        scores (ChainScores): Potentials of the chain.
        blank (bool[T]): The tokens that are white space.
        """
        if self.graph is None:
            return self.widened(scores, blank)
        size = len(self.at_blank)
        arcs = np.zeros((size, size), dtype=bool)
        arcs[self.graph.source, self.graph.target] = True
        # [T, S] the bridge of each state at blank tokens, the state itself elsewhere
        variants = self._variants_at(blank)
        opens, closes = arrays.ends(scores.starts, len(blank))
        inner = ~(opens | closes)[:, np.newaxis]
        possible = self.at_blank[variants] | ~blank[:, np.newaxis]
        possible &= (self.graph.first[variants] > -np.inf) | inner  # `last` forbids the same states as `first`
        steps = np.array(np.broadcast_to(scores.transitions, (*variants.shape, self.n_states)))  # [T, S, S]
        may_follow = arcs[variants[:-1, :, np.newaxis], variants[1:, np.newaxis]]  # [T - 1, S, S]
        steps[1:][~may_follow] = -np.inf
        return scores._replace(emissions=np.where(possible, scores.emissions, -np.inf), transitions=steps)

    def _variants_at(self, blank: Bools) -> Ints:
        """The number, among all S + C states, of each state of the chain at each token: int64[T, S]. At a blank token it is the
        number of the bridge, if the state has one.
        """
        states = np.arange(self.n_states)
        tag_of = self.tag_of
        original = np.searchsorted(tag_of, states)
        bridge = np.searchsorted(tag_of, states, side="right") - 1
        return np.where(blank[:, np.newaxis], bridge, original)

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
        number = self._variants_at(blank)[np.arange(len(states)), states]
        return np.where(states >= 0, number, states).astype(np.int32)

    def narrowed(self, expected: ChainScores, blank: Bools) -> ChainScores:
        """The derivative with respect to the scores of the chain.

        expected (ChainScores): The derivative with respect to the scores of all states.
        blank (bool[T]): The tokens that are white space.
        """
        if self.graph is None:
            return expected
        # A bridge has the scores of the state that it copies, so their derivatives add up; other tokens use no bridges
        bridges = np.flatnonzero(~self.elsewhere)
        emissions = np.take(expected.emissions, np.flatnonzero(self.elsewhere), axis=1)
        emissions[np.ix_(blank, self.graph.tag_of[bridges])] += expected.emissions[np.ix_(blank, bridges)]
        # `contract` need not add up emissions again
        no_emissions = np.zeros((0, len(self.at_blank)))
        contracted = arrays.contract(expected._replace(emissions=no_emissions), self.graph, self.n_states)
        return contracted._replace(emissions=emissions)


class BridgedStructure:
    """A chain in training whose spans neither begin nor end with white space. It translates the questions of losses, which are
    about the states of the chain, to a structure over these states and bridges.

    structure (Structure): The structure over the states of `bridges`, perhaps with the rules of a batch.
    bridges (Bridges): The bridges of the chain.
    blank (bool[T]): The tokens of the batch that are white space.

    The questions are those of `Structure`; scores, clamps and derivatives are those of the chain.
    """

    def __init__(self, structure: Structure, bridges: Bridges, blank: Bools):
        self.structure = structure
        self.bridges = bridges
        self._blank = blank
        self.answers = structure.answers
        self.threads = structure.threads

    @property
    def masks_alone(self) -> bool:
        """Whether this structure only masks states, and has neither bridges nor rules."""
        return self.bridges.graph is None and isinstance(self.structure, Structure)

    def of_states(self, states: Ints) -> "BridgedStructure":
        """The structure of a chain with other states, if this structure only masks states.

        states (int64[N]): For each state of the other chain, the state of this chain that it equals.
        """
        masks = Bridges(None, self.bridges.at_blank[states], self.bridges.elsewhere[states], len(states))
        return BridgedStructure(self.structure, masks, self._blank)

    @property
    def signature(self) -> bytes:
        """Bytes that are equal for equal structures and equal white space."""
        return self.structure.signature + self._blank.tobytes()

    def only_path(self, clamp: ChainClamp) -> Optional[States]:
        """The labelling that `clamp` allows; None if it allows none or several."""
        return self.structure.only_path(clamp)

    def prepare(self, scores: Potentials, *, annotated: Optional[ChainClamp] = None) -> Work:
        """Widen scores to all states, and check them.

        scores (ChainScores or SegmentScores): Potentials of B sequences.
        annotated (ChainClamp): What the annotation allows.
        """
        return self.structure.prepare(
            self.bridges.widened(scores, self._blank), annotated=self.bridges.clamp(annotated)
        )

    def expectations(
        self, work: Work, *, clamp: Optional[ChainClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """Log partitions, and expected uses of the scores of the chain, as `Structure.expectations`.

        work (Work): The result of `prepare`.
        clamp (ChainClamp): What is still allowed, by state of the chain.
        weights (float64[B]): Factor of each sequence, 1 by default.
        """
        values, expected = self.structure.expectations(work, clamp=self.bridges.clamp(clamp), weights=weights)
        return values, self.bridges.narrowed(expected, self._blank)

    def viterbi_counts(
        self, work: Work, *, clamp: Optional[ChainClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """Best scores, and the uses of the scores of the chain by the best paths, as `Structure.viterbi_counts`.

        work (Work): The result of `prepare`.
        clamp (ChainClamp): What is still allowed, by state of the chain.
        weights (float64[B]): Factor of each sequence, 1 by default.
        """
        values, used = self.structure.viterbi_counts(work, clamp=self.bridges.clamp(clamp), weights=weights)
        return values, self.bridges.narrowed(used, self._blank)

    def path_score(self, work: Work, states: States) -> Floats:
        """The scores by `work` of one labelling for each sequence, `states` (int32[T]): float64[B]."""
        return self.structure.path_score(work, self.bridges.path(states, self._blank))

    def path_expectations(self, work: Work, states: States, *, weights: Floats, out: ChainScores) -> ChainScores:
        """Add to `out` the uses of the scores of the chain by one labelling for each sequence, `states` (int32[T]), times
        `weights` (float64[B]).
        """
        path = self.bridges.path(states, self._blank)
        used = self.structure.path_expectations(work, path, weights=weights)
        arrays.add(out, self.bridges.narrowed(used, self._blank), slice(0, len(states)))
        return out

    def differentiate_path(self, work: Work, states: States, weights: Floats) -> tuple[Floats, Floats, ChainScores]:
        """Log partitions, scores of one labelling for each sequence (`states`, int32[T]), and the derivative of sum_b
        `weights`[b] · (log_z[b] - score of the labelling of sequence b).
        """
        path = self.bridges.path(states, self._blank)
        log_z, path_scores, derivative = self.structure.differentiate_path(work, path, weights)
        return log_z, path_scores, self.bridges.narrowed(derivative, self._blank)
