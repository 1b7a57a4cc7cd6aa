"""Rules beside ties between tokens: what a junction tree answers exactly, and what chains answer that know what ties say."""

from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from ...arrays import Joined
from ...constraints.budget import Budget
from ...constraints.decoding import Answer, Documents, Search, Tags
from ...constraints.rule_set import RuleSet
from ...types import ChainScores
from .elimination import Elimination
from .rules import RuledTies, joined


class TiedSearch:
    """The search for the best labelling of a document that breaks a rule. Which rules yield does not depend on ties: a search
    of chains says it. Its labelling is the answer where there are no ties, or no junction tree that has room for the automata.

    inference (Elimination): The junction tree, None if it is another inference that decodes.
    as_chains (Callable): Makes chains of scores with ties, given a clamp.
    document (Documents): With the scores of chains and ties.
    """

    def __init__(
        self,
        inference: Optional[Elimination],
        as_chains: Callable[[Any, Any], ChainScores],
        rules: RuleSet,
        document: Documents,
        budget: Budget,
    ):
        self._inference, self._rules, self._document = inference, rules, document
        chains = as_chains(document.scores, document.clamp)
        self._of_chains = Search(rules, document._replace(scores=chains), budget)
        self._tags: Optional[Tags] = None

    def begin_with(self, kept: frozenset[int], tags: Optional[Tags] = None) -> None:
        """Note the best labelling under the masks of some rules (int32[T], -1 for none), if it is known."""
        self._tags = tags

    def best(self) -> Answer:
        """Under all rules that can be kept, see `Search.best`."""
        answer = self._of_chains.best()
        relaxed = {rule.place for rule in answer.relaxed}
        return self._with_ties(answer, self._rules.places - relaxed)

    def under(self, kept: frozenset[int]) -> Answer:
        """Under rules, given by their places, that some labelling keeps."""
        return self._with_ties(self._of_chains.under(kept), kept)

    def _with_ties(self, answer: Answer, kept: frozenset[int]) -> Answer:
        if not len(self._document.scores.ties.source) or self._inference is None:
            return answer
        tags = self._solve(self._inference, kept)
        if tags is None:
            return answer._replace(approximate=True)
        return answer._replace(tags=tags, finished=answer.finished or not answer.relaxed)

    def _solve(self, inference: Elimination, kept: frozenset[int]) -> Optional[Tags]:
        """The best labelling under some rules, which there is; None if no clique holds their automata."""
        rules, (scores, clamp, facts, words) = self._rules, self._document
        of_doc = joined(rules.apply(scores, facts, kept), clamp)
        every = rules.binding(kept, len(of_doc.scores.emissions))
        active, tags = frozenset(n for n in every if rules.lifts(n)), self._tags
        while True:
            if tags is not None and not (tags == -1).any():
                [totals] = rules.totals(tags, scores.starts, np.array([0, len(tags)]))
                broken = {n for n in every if totals[n] < 0.0} - active
                if not broken and self._tags is not tags:
                    return tags if rules.keeps_texts(tags, scores.starts, words, kept) else None
                active |= broken
            structure = under(inference, rules, active, of_doc)
            if structure is None:
                return None
            tags = structure.viterbi(of_doc.scores, clamp=of_doc.clamp).states[of_doc.tokens]
            if (tags == -1).any():
                return None


def under(inference: Elimination, rules: RuleSet, automata: frozenset[int], of_doc: Joined) -> Optional[RuledTies]:
    """What answers for a joined document under some automata, None if their tables are too large."""
    graph = rules.graph(automata)
    structure = None if graph is None else RuledTies(inference, graph.graph)
    return structure if structure is not None and structure.fits(of_doc.scores, of_doc.clamp) else None
