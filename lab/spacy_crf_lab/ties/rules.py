"""Rules in models with ties. A junction tree is exact for the labellings that the automata of rules allow; dual decomposition
finds the best of them, or one whose distance from the best is known. If the tables of a junction tree have no room, or another
method decodes, the search falls back to chains whose scores include the ties.

The sequences of the Doc are joined to one (`arrays.join_sequences`). Its states are those of the graph: tags with the states of
the automata. Ties depend on the tags only. States that no labelling reaches at a token are removed, so that tables stay small.
"""

from functools import cached_property
from typing import Any, Optional

import numpy as np

from spacy_crf import arrays
from spacy_crf.arrays import Joined
from spacy_crf.constraints.budget import Budget
from spacy_crf.constraints.decoding import Answer, RuleSearch
from spacy_crf.constraints.rule import Documents
from spacy_crf.constraints.rule_set import RuleSet
from spacy_crf.constraints.solver import Tags
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import LikelySpans, ScoresOrWork, SpanStates
from spacy_crf.schemes import Segments
from spacy_crf.types import ChainScores, Clamp, Floats, StateGraph

from .method import Inference
from .scores import TiedScores, TiedWork
from .structure import TiedChains


class RuledWork(TiedWork):
    """Checked scores without states that no labelling reaches."""

    @cached_property
    def possible(self) -> ChainScores:
        """The chains without the states that no labelling reaches."""
        return _reachable(self.scores.chains, self.clamp)


class RuledTies(TiedChains):
    """Implements `Structure` for the ``TiedScores`` of a joined Doc, over a graph with at most one path for each labelling."""

    work = RuledWork

    def __init__(self, inference: Inference, graph: StateGraph, *, threads: int = 1):
        super().__init__(inference, threads=threads)
        self.graph = graph
        self._expansions = arrays.LatestResults()

    def fits(self, scores: ScoresOrWork, clamp: Optional[Clamp]) -> bool:
        """Whether all tables are small enough."""
        tied: Any = self.prepare(scores, clamp).tied
        return self.inference.fits(tied)

    # Of a chain of the graph's states with the exact pairs of neighbours

    def weigh_spans(self, work: RuledWork, spans: SpanStates, segments: Segments) -> Floats:
        """Probabilities of spans (float64[N]), by a chain with the exact pairs of neighbours."""
        chain, spans = self._as_chain(work, spans)
        return LinearChain().span_probabilities(chain, spans, segments)

    def list_spans(self, work: RuledWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        """Probable spans, by a chain with the exact pairs of neighbours."""
        chain, spans = self._as_chain(work, spans)
        return LinearChain().likely_spans(chain, spans, min_prob)

    def _as_chain(self, work: Any, spans: SpanStates) -> tuple[ChainScores, SpanStates]:
        """The scores as independent chains, and how their states spell spans."""
        return self.inference.as_chains(work.tied), work.whole.expansion.spans(spans)


def joined(scores: TiedScores, clamp: Optional[Clamp]) -> Joined:
    """Join the sequences of a Doc, with their ties, to one."""
    scores, clamp, places = arrays.join_sequences(scores, clamp)
    moved = {name: places[getattr(scores.ties, name)].astype(np.int32) for name in ("source", "target", "members")}
    ties = scores.ties._replace(**moved)
    return Joined(scores._replace(ties=ties, label_of=np.append(scores.label_of, 0)), clamp, places)


def _reachable(scores: ChainScores, clamp: Optional[Clamp]) -> ChainScores:
    """Set the scores of states that no labelling reaches to -inf, for a single sequence."""
    emissions = scores.emissions if clamp is None else np.where(clamp, scores.emissions, -np.inf)
    reached = emissions > -np.inf
    steps = np.asarray(scores.transitions) > -np.inf
    steps = np.broadcast_to(steps, (len(emissions), *steps.shape[-2:]))
    reached[:1] &= scores.first > -np.inf
    reached[-1:] &= scores.last > -np.inf
    for t in range(1, len(reached)):
        reached[t] &= steps[t][reached[t - 1]].any(axis=0)
    for t in range(len(reached) - 2, -1, -1):
        reached[t] &= steps[t + 1][:, reached[t + 1]].any(axis=1)
    return scores._replace(emissions=np.where(reached, emissions, -np.inf))


def search(
    inference: Optional[Inference],
    rules: RuleSet,
    document: Documents,
    chains: Documents,
    begin: Optional[Tags],
    kept: Optional[frozenset[int]],
) -> tuple[Answer, bool]:
    """Search for the best labelling of a document that breaks a rule. A search in chains, without ties, decides which rules
    yield. Its labelling is the result if there are no ties, or no inference has room for the automata; then it is not finished.

    inference (Inference): An inference for joined documents, None if another inference decodes.
    chains (Documents): The document, with the scores of chains in place of scores with ties.
    begin (int32[T]): The best labelling under the masks of the rules; None if it is not known.
    kept (frozenset[int]): The rules, by their places, if some labelling keeps them; None for all that can be kept.
    RETURNS (Answer, bool): The labelling, and whether no table has room.
    """
    of_chains = RuleSearch(rules, chains, Budget(rules.constraints.time_limit))
    answer = of_chains.best() if kept is None else of_chains.under(kept)
    if document.scores.ties.is_empty or inference is None:
        return answer, False
    places = rules.places - {rule.place for rule in answer.relaxed} if kept is None else kept
    tags = _search_under(inference, rules, document, begin, places)
    if tags is None:
        return answer._replace(finished=False), True
    return answer._replace(tags=tags, finished=answer.finished or not answer.relaxed), False


def _search_under(
    inference: Inference, rules: RuleSet, document: Documents, begin: Optional[Tags], kept: frozenset[int]
) -> Optional[Tags]:
    """Find the best labelling under some rules; None if no table has room for their automata."""
    scores, clamp, facts, words = document
    of_doc = joined(rules.apply(scores, facts, kept), clamp)
    every = rules.binding(kept, len(of_doc.scores.emissions))
    active = frozenset(n for n in every if rules.parts[n][0].any())  # those that give an event a score in every state
    tags = begin
    while True:
        if tags is not None and not (tags == -1).any():
            [totals] = rules.totals(tags, scores.starts, np.array([0, len(tags)]))
            # Automata join only when the labelling breaks their rule: tables stay small
            broken = {n for n in every if totals[n] < 0.0} - active
            if not broken and begin is not tags:
                asked = [rule for rule in rules.global_ if rule.place in kept]
                clashing = rules.clashing(tags, scores.starts, np.array([0, len(tags)]), words, asked)
                return None if clashing else tags
            active |= broken
        structure = under(inference, rules, active, of_doc)
        if structure is None:
            return None
        tags = structure.viterbi(of_doc.scores, clamp=of_doc.clamp).states[of_doc.tokens]
        if (tags == -1).any():
            return None


def under(inference: Inference, rules: RuleSet, automata: frozenset[int], of_doc: Joined) -> Optional[RuledTies]:
    """Inference for a joined document under some automata, None if its tables are too large."""
    graph = rules.graph(automata)
    structure = None if graph is None else RuledTies(inference, graph.graph)
    return structure if structure is not None and structure.fits(of_doc.scores, of_doc.clamp) else None
