"""Find the best labelling of a document under automata, in the graph of all their states, or in a lattice."""

from functools import cached_property
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..arrays import Joined
from ..kernels.best_first import EventAutomata, best_first
from ..kernels.log_space import LogPotentials
from .budget import CALL, READ, Budget, seconds_of_decoding, seconds_of_graph
from .lattice import Lattice
from .lattice_automata import LatticeAutomaton, SegmentTextAutomaton, TextAutomaton
from .lattice_search import LatticeSearch
from .rule import Documents, Rule
from .rule_set import RuleSet, Text, stacked

Tags = NDArray[np.int32]

MOST_TOKENS = 1_000  # of a document for which a best-first search is tried
MOST_PREFIXES = 4_000  # the best-first search gives up after so many prefixes
_BEST_FIRST = 1e-3  # seconds that a best-first search takes on a usual machine
GRAPH_SHARE = 0.4  # the graph is preferred to the lattice if it takes at most this share of the remaining budget


class GraphSolver:
    """Finds the best labelling of a document in the graph of all states of the automata, if the graph is not too large.

    rules (RuleSet): The rules.
    document (Documents): The document.
    kept (frozenset[int]): Places of the rules whose masks apply.
    """

    active: frozenset[int] = frozenset()  # automata of the latest search, which `resume` continues
    is_too_large = False  # whether some automata were too large

    def __init__(self, rules: RuleSet, document: Documents, kept: frozenset[int]):
        self._rules = rules
        self._document = document
        self._kept = kept
        self._n_tokens = len(document.scores[0])

    def solve(
        self, active: frozenset[int], texts: list[tuple[Rule, Text]], budget: Budget
    ) -> tuple[Optional[Tags], bool]:
        """Find the best labelling that some automata accept, and that gives some texts one label each. Sets `is_too_large`.

        active (frozenset[int]): The automata.
        texts (List[Tuple[Rule, Text]]): The texts, each with its rule. A graph has no room for these.
        budget (Budget): Work that the search may take.
        RETURNS (int32[T] or None, bool): The labelling, None if none exists or none was found; and whether the result is proved.
        """
        graph = None if texts else self._rules.graph(active, self._rules.most_searched)
        if graph is None:
            self.is_too_large = True
            return None, False
        scores, clamp, facts, _ = self._document
        joined = arrays.join_sequences(self._rules.apply(scores, facts, self._kept), clamp)
        path = graph.viterbi(joined.scores, clamp=joined.clamp)
        budget.spend(CALL + seconds_of_graph(len(graph.graph.source), self._n_tokens))
        return path.states[joined.tokens] if path.scores[0] > -np.inf else None, True

    def resume(self, budget: Budget) -> tuple[Optional[Tags], bool]:
        """Continue the search if `solve` returned a labelling without proof that it is the best. A search in a graph proves each
        of its labellings, so this class has nothing to continue.

        budget (Budget): Work that the search may take.
        RETURNS (int32[T] or None, bool): As of `solve`.
        """
        raise NotImplementedError


class LatticeSolver(GraphSolver):
    """Finds the best labelling of a document by a best-first search, if few prefixes suffice, else in the graph of all states, if
    that is small, else by a search in the lattice (`lattice_search`)."""

    _search: LatticeSearch  # the latest one
    _lattice: Optional[Lattice] = None

    def solve(
        self, active: frozenset[int], texts: list[tuple[Rule, Text]], budget: Budget
    ) -> tuple[Optional[Tags], bool]:
        """Find the best labelling that the automata `active` accept, and that gives each of the `texts` one label: by a
        best-first search if few prefixes suffice, in the graph if the budget has room for it, else in the lattice."""
        rules = self._rules
        if not texts and self._n_tokens <= MOST_TOKENS:
            is_finished, path = self._best_first(active)
            budget.spend(self._recursion + _BEST_FIRST)
            if is_finished:
                return None if path is None else path[self._joined.tokens], True
        graph_seconds = seconds_of_graph(rules.graph_size(active), self._n_tokens)
        if not texts and graph_seconds <= GRAPH_SHARE * budget.left and rules.graph(active) is not None:
            return super().solve(active, texts, budget)
        if self._recursion > budget.left:
            return None, False
        if self._lattice is None:
            self._lattice = Lattice(self._log_potentials, rules.tags.events, rules.tags.n_events)
            budget.spend(CALL + 2 * self._recursion)
        automata: list[Any] = [lattice_automata(rules)[n] for n in sorted(active)]
        make_automaton = SegmentTextAutomaton if rules.of_segments else TextAutomaton
        for rule, text in texts:
            automata.append(make_automaton(rules.tags, self._occurrences(rule, text), self._lattice.tokens))
        self.active = active
        self._search = LatticeSearch(self._lattice, automata)
        budget.spend(CALL + READ * self._n_tokens * len(texts))
        return self.resume(budget)

    def resume(self, budget: Budget) -> tuple[Optional[Tags], bool]:
        """Continue the search in the lattice with a new `budget`.

        RETURNS (int32[T] or None, bool): The best labelling found, None if none was found; and whether it is proved to be best.
        """
        path, is_proved = self._search.solve(budget)
        return None if path is None else path[self._joined.tokens], is_proved

    def _best_first(self, active: frozenset[int]) -> tuple[bool, Optional[NDArray[np.int32]]]:
        """Search for the best labelling under automata among few prefixes.

        RETURNS (bool, int32[T] or None): Whether the search finished, and the labelling, None if there is none.
        """
        automata = [self._rules.parts[n][1] for n in sorted(active)]  # without scores that they add in every state
        tags = self._rules.tags
        stack = self._rules.cache.find(("stack", active), lambda: stacked(automata, tags.n_events))
        path = np.empty(len(self._log_potentials.opening), dtype=np.int32)
        # 1 if it was found, 0 if there is none, -1 if few prefixes did not suffice
        outcome = best_first(self._log_potentials, EventAutomata(tags.events, *stack), MOST_PREFIXES, path)
        return outcome >= 0, path if outcome > 0 else None

    @cached_property
    def _recursion(self) -> float:
        """Estimated seconds of one recursion over the document."""
        return seconds_of_decoding(self._document.scores, len(self._rules.tags.label_of))

    @cached_property
    def _joined(self) -> Joined:
        """The document as one sequence with breaks between its sentences, under the masks of the kept rules."""
        scores, clamp, facts, _ = self._document
        return arrays.join_sequences(self._rules.decodable(scores, facts, self._kept), clamp)

    @cached_property
    def _log_potentials(self) -> LogPotentials:
        """The scores of the joined document as a chain of segments."""
        work: Any = self._rules.structure.prepare(self._joined.scores, self._joined.clamp)
        return work.log_potentials

    def _occurrences(self, rule: Rule, text: Text) -> list[tuple[int, int]]:
        """Where a text occurs in its scope: begin and end in the joined sequence."""
        scope, *text_words = text
        words: Any = self._document.words
        starts = self._document.scores.starts
        sentence_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        last = len(text_words) - 1
        # Candidates by the first word, of which each further word leaves fewer
        begins = np.flatnonzero(words[: len(words) - last] == np.uint64(text_words[0]))
        for offset, word in enumerate(text_words[1:], start=1):
            begins = begins[words[begins + offset] == np.uint64(word)]
        begins = begins[sentence_of[begins] == sentence_of[begins + last]]
        if rule.per == "sentence":
            begins = begins[sentence_of[begins] == scope]
        positions = self._joined.tokens
        return list(zip(positions[begins].tolist(), (positions[begins + last] + 1).tolist()))


def lattice_automata(rules: RuleSet) -> list[LatticeAutomaton]:
    """Make the automata of rules for the search in a lattice, once.

    rules (RuleSet): The rules.
    RETURNS (List[LatticeAutomaton]): One for each automaton of the rules.
    """
    return rules.cache.find("lattice", lambda: [LatticeAutomaton(rest, rules.tags) for _, rest in rules.parts])
