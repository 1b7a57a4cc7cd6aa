"""The best labelling that keeps all rules.

The rules with a memory are added lazily: decode with the masks alone, add the automata of the rules that this labelling
breaks, decode again, until none is broken. That is exact, because the best labelling of a relaxation is the best of all
if it breaks nothing; and most documents need none. A best-first search comes before their product is built: where a rule is
broken by little it is done at once. What no automaton holds, or only too large a one, goes to a solver, again only where
it is broken.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import Joined, cut_document, join_sequences
from ..inference.linear_chain import LinearChain
from ..inference.spans import segments_of
from ..inference.state_graph import GraphChain
from ..inference.structure import SpanStates
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats
from .automaton import Automaton
from .facts import Facts
from .integer_program import Solution, solve
from .rule_set import CompiledRules, RuleSet, ends
from .rules import Rule

_LEAST = 0.01  # of the time limit, for the solver to look at a document at all


class Decoded(NamedTuple):
    """Labellings of a batch, and what could not be had."""

    tags: NDArray[np.int32]  # [T]
    relaxed: dict[int, list[Rule]]  # the rules that a document does not keep, by its number
    unfinished: list[int]  # documents for which the solver ran out of time
    solved: dict[int, list[str]]  # how documents were decoded that broke a rule at first: names of the rules added


class Kept(NamedTuple):
    """Which rules hold, by their places: decided once for all that is asked of a document."""

    places: frozenset[int]
    instead: Mapping[int, frozenset[int]]  # for some documents others


class Document(NamedTuple):
    """One document of a batch: scores without the rules, and what the rules need to know."""

    scores: ChainScores
    clamp: Optional[Clamp]
    facts: Facts
    words: NDArray[np.uint64]  # [T]
    spans: SpanStates


def decode(
    rules: RuleSet,
    scores: ChainScores,
    doc_starts: NDArray[np.int64],
    facts: Facts,
    words: Optional[NDArray[np.uint64]],
    spans: SpanStates,
    *,
    clamp: Optional[Clamp] = None,
    kept: Optional[Kept] = None,
) -> Decoded:
    """Best labellings of D documents.

    scores (ChainScores): Potentials, without the rules.
    doc_starts (int64[D + 1]): Where the documents start; each begins a sequence.
    facts (Facts): What patterns and functions say of the tokens.
    words (uint64[T]): The words, for rules about texts.
    spans (SpanStates): How tags spell spans.
    clamp (bool[T, S]): Tags still allowed, or None.
    kept (Kept): The rules that hold; by default all that can be kept, in their order.
    RETURNS (Decoded)
    """
    path = LinearChain().viterbi(rules.apply(scores, facts, None if kept is None else kept.places), clamp=clamp)
    tags = path.states
    broken = documents_without(path.scores, scores.starts, doc_starts)
    if rules.automata:
        opening, _ = ends(scores.starts, len(tags))
        totals = rules.scores_of(np.maximum(tags, 0), opening, doc_starts)
        broken |= rules.broken(totals, None if kept is None else kept.places)

    def search(tokens: slice) -> ChainSearch:
        of_doc, of_clamp = cut_document(scores, clamp, tokens)
        document = Document(of_doc, of_clamp, facts.at(tokens), cut_words(words, tokens), spans)
        return ChainSearch(rules, document)

    return search_where_broken(rules, tags, doc_starts, broken, search, kept)


def search_where_broken(
    rules: CompiledRules,
    tags: NDArray[np.int32],
    doc_starts: NDArray[np.int64],
    broken: NDArray[np.bool_],
    search: "Callable[[slice], Search]",
    kept: Optional[Kept],
) -> Decoded:
    """The labellings of D documents, those that break a rule replaced by the best that keep all.

    tags (int32[T]): The labellings; they are changed in place.
    broken (bool[D]): Documents that break a rule other than those about texts.
    search (Callable): The search for the document that has these tokens.
    kept (Kept): The rules that hold, None if that is to be found out.
    """
    decoded = Decoded(tags, {}, [], {})
    if kept is not None:
        broken[list(kept.instead)] = True
    for d in range(len(doc_starts) - 1) if rules.global_ else np.flatnonzero(broken).tolist():
        tokens = slice(int(doc_starts[d]), int(doc_starts[d + 1]))
        if tokens.start == tokens.stop:
            continue
        of_doc = search(tokens)
        if not broken[d] and not of_doc.clashing(tags[tokens]):
            continue
        answer = of_doc.best() if kept is None else of_doc.under(kept.instead.get(d, kept.places))
        if answer.tags is not None:
            tags[tokens] = answer.tags
        if answer.relaxed:
            decoded.relaxed[d] = answer.relaxed
        if not answer.finished:
            decoded.unfinished.append(d)
        decoded.solved[d] = answer.added
    return decoded


def documents_without(scores: Floats, starts: NDArray[np.int64], doc_starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Documents with a sequence that has no labelling: bool[D].

    scores (float64[B]): Of the best labellings, -inf where there is none.
    """
    without = np.zeros(len(doc_starts) - 1, dtype=bool)
    for b in np.flatnonzero(scores == -np.inf):
        without[np.searchsorted(doc_starts, starts[b], side="right") - 1] = True
    return without


def cut_words(words: Optional[NDArray[np.uint64]], tokens: slice) -> NDArray[np.uint64]:
    return np.zeros(0, dtype=np.uint64) if words is None else words[tokens]


class Answer(NamedTuple):
    tags: Optional[NDArray[np.int32]]  # None if there was no time to find any
    relaxed: list[Rule]
    finished: bool
    added: list[str]


class Search:
    """The search for the best labelling of one document: base for all structures.

    rules (CompiledRules): The rules.
    document: Its scores, clamp, facts and words.
    """

    def __init__(self, rules: CompiledRules, document: Any):
        self._rules = rules
        self._document = document
        self._finished = True
        self._added: list[str] = []
        self._seconds = rules.constraints.time_limit  # that are left to the solver
        self._share = 1.0  # of them, that it may take at once

    # What a structure adds

    def _masked(self, kept: set[int]) -> Any:
        """The document as a single sequence under the masks of some rules: scores, clamp and the places of its tokens."""
        raise NotImplementedError

    def _viterbi(self, masked: Any, graph: Any) -> Optional[tuple[NDArray[np.int32], float]]:
        """The best labelling under the graph of some automata (None for none) and its score, None if it is too large."""
        raise NotImplementedError

    def _program(
        self, masked: Any, automata: list[Automaton], occurrences: list[list[tuple[int, int]]], seconds: float
    ) -> Solution:
        """The best labelling under automata, in which those spans of a list of occurrences that are taken have one label, or
        what the solver knows of it after so many seconds."""
        raise NotImplementedError

    def _totals(self, tags: NDArray[np.int32]) -> Floats:
        """What each automaton says of a labelling: float64[N]."""
        raise NotImplementedError

    def _segments(self, tags: NDArray[np.int32]) -> Segments:
        """The spans of a labelling."""
        raise NotImplementedError

    # What they share

    def best(self) -> Answer:
        """Where no labelling keeps all rules, the hard ones are taken up one by one, in their order, as long as there
        is one."""
        rules = self._rules.rules
        tags = self._solve([rule.place for rule in rules])
        if tags is not None:
            return Answer(tags, [], self._finished, self._added)
        # The solver gets its time once more, for all rules together.
        self._seconds, self._share = self._rules.constraints.time_limit, 0.5
        kept = [rule.place for rule in rules if not rule.hard]
        tags, relaxed = self._solve(kept), []
        if tags is None:  # the clamp alone is too much: whoever made it has looked at it, so only the scheme is left
            self._lift_clamp()
            tags = self._solve(kept)
        for rule in rules:
            if rule.hard:
                with_rule = self._solve([*kept, rule.place])
                if with_rule is None:
                    relaxed.append(rule)
                else:
                    tags = with_rule
                    kept.append(rule.place)
        return Answer(tags, relaxed, self._finished, self._added)

    def under(self, kept: frozenset[int]) -> Answer:
        """The best labelling under rules, given by their places, that some labelling keeps."""
        tags = self._solve(sorted(kept))
        return Answer(tags, [], self._finished and tags is not None, self._added)

    def _solve(self, kept: list[int]) -> Optional[NDArray[np.int32]]:
        """The best labelling under some rules, None if there is none."""
        rules = self._rules
        masked = self._masked(set(kept))
        relevant = set(rules.automata_of(kept))
        active = set(rules.rewards & relevant)
        texts: list = []  # (rule, text) of the texts that must have one label
        self._added = []
        while True:
            tags = self._decode(masked, frozenset(active), texts)
            if tags is None:
                return None
            totals = self._totals(tags)
            broken = {n for n in relevant - active if totals[n] < 0.0}
            clashing = [item for item in self.clashing(tags) if item[0].place in kept and item not in texts]
            if not broken and not clashing:
                return tags
            active |= broken
            texts += clashing
            for rule in [rules.automata[n].rule for n in sorted(broken)] + [rule for rule, _ in clashing]:
                if rule.name not in self._added:
                    self._added.append(rule.name)

    def _decode(self, masked: Any, active: frozenset[int], texts: list) -> Optional[NDArray[np.int32]]:
        """The best labelling under some automata in which some texts have one label, None if there is none."""
        tags = self._decode_joined(masked, active, texts)
        return None if tags is None else tags[masked.tokens]

    def _decode_joined(self, masked: Any, active: frozenset[int], texts: list) -> Optional[NDArray[np.int32]]:
        if not texts:
            if active and not active & self._rules.rewards:
                found, tags = self._rules.best_first(masked, active)
                if found:
                    return tags
            graph = self._rules.graph(active) if active else None
            best = self._viterbi(masked, graph) if graph is not None or not active else None
            if best is not None:
                tags, score = best
                return tags if score > -np.inf else None
        automata = [self._rules.automata[n].automaton for n in sorted(active)]
        occurrences = [self._occurrences(*text, masked.tokens) for text in texts]
        began = time.perf_counter()
        solution = self._program(
            masked, automata, occurrences, max(self._share * self._seconds, _LEAST * self._rules.constraints.time_limit)
        )
        self._seconds -= time.perf_counter() - began
        self._finished &= solution.finished
        return solution.tags

    def _lift_clamp(self) -> None:
        """Goes on without the clamp."""
        self._document = self._document._replace(clamp=None)

    def clashing(self, tags: NDArray[np.int32]) -> list[tuple[Rule, tuple[int, ...]]]:
        """Rules about texts that a labelling breaks, each with a text."""
        if not self._rules.global_:
            return []
        clashes = self._rules.clashes(self._segments(tags), self._document.words, self._sentences)
        return [(clash.rule, text) for clash in clashes for text in clash.texts]

    @property
    def _sentences(self) -> NDArray[np.int64]:
        starts = self._document.scores.starts
        return np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def _occurrences(self, rule: Rule, text: tuple[int, ...], places: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Where a text stands, as tokens of the joined sequence."""
        scope, words = text[0], np.array(text[1:], dtype=np.uint64)
        of_document, sentences = self._document.words, self._sentences
        found = []
        for begin in range(len(of_document) - len(words) + 1):
            end = begin + len(words)
            same = (of_document[begin:end] == words).all() and sentences[begin] == sentences[end - 1]
            if same and scope in (-1, sentences[begin]):
                found.append((int(places[begin]), int(places[end - 1]) + 1))
        return found


class ChainSearch(Search):
    """The search for the best labelling of a document that is a chain."""

    def _masked(self, kept: set[int]) -> Joined:
        document = self._document
        return join_sequences(self._rules.apply(document.scores, document.facts, kept), document.clamp)

    def _viterbi(self, masked: Joined, graph: Optional[GraphChain]) -> tuple[NDArray[np.int32], float]:
        path = (graph or LinearChain()).viterbi(masked.scores, clamp=masked.clamp)
        return path.states, float(path.scores[0])

    def _program(self, masked: Joined, automata, occurrences, seconds: float) -> Solution:
        return solve(masked, self._rules.tags, automata, occurrences, time_limit=seconds)

    def _totals(self, tags: NDArray[np.int32]) -> Floats:
        opening, _ = ends(self._document.scores.starts, len(tags))
        return self._rules.scores_of(tags, opening, np.array([0, len(tags)]))[0]

    def _segments(self, tags: NDArray[np.int32]) -> Segments:
        opening, _ = ends(self._document.scores.starts, len(tags))
        return segments_of(tags, self._document.spans, opening)
