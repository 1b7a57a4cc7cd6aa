"""Finds best labellings under automata for the search in `constraints.decoding`: by a best-first search if few prefixes suffice,
by the graph of all automaton states if it is small, else by a program (`program`)."""

from functools import cached_property
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ... import arrays
from ...arrays import Joined
from ...kernels.best_first import EventAutomata, best_first
from ..decoding import CALL, READ, Budget, GraphSolver, RuleSearch, Tags, graph_seconds
from ..rule import Rule
from ..rule_set import Cache, RuleSet, Text, stacked
from .lattice import Lattice
from .lattice_automata import LatticeAutomaton, SegmentTextAutomaton, TextAutomaton
from .program import Program

_FEW_TOKENS = 1_000  # longest documents for which a best-first search is tried
_MOST_PREFIXES = 4_000  # the best-first search gives up after so many prefixes
_BEST_FIRST = 1e-3  # seconds that a best-first search takes on a usual machine
_GRAPH_SHARE = 0.4  # the graph is preferred to a program if it takes at most this share of the remaining time


class Programs:
    """Searches for labellings that keep rules whose automata don't fit into a graph of states (``spacy_crf.rule_programs.v1``).
    Components look it up by this name; no config needs to name it.

    rules (RuleSet): The compiled rules.
    """

    def __init__(self, rules: RuleSet):
        self._rules = rules
        self._stacks = Cache()

    @cached_property
    def automata(self) -> list[LatticeAutomaton]:
        """The automata of the rules."""
        return [LatticeAutomaton(rest, self._rules.tags) for _, rest in self._rules.parts]

    def lattice(self, joined: Joined) -> Lattice:
        """Make the lattice of a document."""
        return Lattice(self._log_potentials(joined), self._rules.tags.events, self._rules.tags.n_events)

    def best_first(self, joined: Joined, automata: frozenset[int]) -> tuple[bool, Optional[NDArray[np.int32]]]:
        """Search for the best labelling of a document under automata among few prefixes.

        RETURNS (bool, int32[T] or None): Whether the search finished, and the labelling, None if there is none.
        """
        parts, tags = self._rules.parts, self._rules.tags
        stack = self._stacks.find(automata, lambda: stacked([parts[n][1] for n in sorted(automata)], tags.n_events))
        log_potentials = self._log_potentials(joined)
        path = np.empty(len(log_potentials.opening), dtype=np.int32)
        found = best_first(log_potentials, EventAutomata(tags.events, *stack), _MOST_PREFIXES, path)
        return found >= 0, path if found > 0 else None

    def _log_potentials(self, joined: Joined) -> Any:
        work: Any = self._rules.structure.prepare(joined.scores, joined.clamp)
        return work.log_potentials

    def solver(self, search: RuleSearch, kept: frozenset[int]) -> "ProgramSolver":
        """Make a solver for the document of a search, under the masks of some rules, given by their places."""
        return ProgramSolver(self, search, kept)


class ProgramSolver(GraphSolver):
    def __init__(self, programs: Programs, search: RuleSearch, kept: frozenset[int]):
        super().__init__(search, kept)
        self._programs = programs

    def solve(
        self, active: frozenset[int], texts: list[tuple[Rule, Text]], budget: Budget
    ) -> tuple[Optional[Tags], bool]:
        search, n_tokens = self._search, len(self._search.document.scores[0])
        if not texts and n_tokens <= _FEW_TOKENS:
            found, path = self._programs.best_first(self._joined, active)
            budget.spend(search.recursion + _BEST_FIRST)
            if found:
                return None if path is None else path[self._joined.tokens], True
        in_graph = graph_seconds(search.rules.graph_size(active), n_tokens)
        if not texts and in_graph <= _GRAPH_SHARE * budget.left and search.rules.graph(active) is not None:
            return super().solve(active, texts, budget)
        if search.recursion > budget.left:
            return None, False
        lattice = self._lattice
        automata: list[Any] = [self._programs.automata[n] for n in sorted(active)]
        of_text = SegmentTextAutomaton if search.rules.of_segments else TextAutomaton
        for rule, text in texts:
            automata.append(of_text(search.rules.tags, self._occurrences(rule, text), lattice.tokens))
        self.active, self._program = active, Program(lattice, automata)
        budget.spend(CALL + READ * n_tokens * len(texts))
        return self.go_on(budget)

    def go_on(self, budget: Budget) -> tuple[Optional[Tags], bool]:
        path, finished = self._program.solve(budget)
        return None if path is None else path[self._joined.tokens], finished

    @cached_property
    def _joined(self) -> Joined:
        scores, clamp, facts, _ = self._search.document
        return arrays.join_sequences(self._search.rules.decodable(scores, facts, self._kept), clamp)

    @cached_property
    def _lattice(self) -> Lattice:
        made = self._programs.lattice(self._joined)
        self._search.budget.spend(CALL + 2 * self._search.recursion)
        return made

    def _occurrences(self, rule: Rule, text: Text) -> list[tuple[int, int]]:
        """Places of a text, as token ranges of the joined sequence."""
        scope, *wanted = text
        words: Any = self._search.document.words
        starts = self._search.document.scores.starts
        sentences = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        last = len(wanted) - 1
        begins = np.flatnonzero(words[: len(words) - last] == np.uint64(wanted[0]))
        for offset, word in enumerate(wanted[1:], start=1):
            begins = begins[words[begins + offset] == np.uint64(word)]
        begins = begins[sentences[begins] == sentences[begins + last]]
        begins = begins[sentences[begins] == scope] if rule.per == "sentence" else begins
        places = self._joined.tokens
        return list(zip(places[begins].tolist(), (places[begins + last] + 1).tolist()))
