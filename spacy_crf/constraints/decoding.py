"""The best labelling that keeps all rules.

The rules with a memory are added lazily: decode with the masks alone, add the automata of the rules that this labelling
breaks, decode again, until none is broken. That is exact, because the best labelling of a relaxation is the best of all
if it breaks nothing; and most documents need none. A best-first search comes before their product is built: where a rule is
broken by little it is done at once. What no automaton holds, or only too large a one, goes to a solver, again only where
it is broken.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.linear_chain import LinearChain
from ..inference.spans import SpanStates, segments_of
from ..inference.state_graph import join_sequences
from ..types import ChainScores, Clamp
from .rule_set import Facts, RuleSet, _ends
from .rules import Match


class Decoded(NamedTuple):
    """Labellings of a batch, and what could not be had."""

    tags: NDArray[np.int32]  # [T]
    relaxed: dict[int, list[str]]  # names of the rules that a document does not keep, by its number
    unfinished: list[int]  # documents for which the solver ran out of time
    solved: dict[int, list[str]]  # how documents were decoded that broke a rule at first: names of the rules added


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
) -> Decoded:
    """Best labellings of D documents.

    scores (ChainScores): Potentials, without the rules.
    doc_starts (int64[D + 1]): Where the documents start; each begins a sequence.
    facts (Facts): What patterns and functions say of the tokens.
    words (uint64[T]): The words, for rules about texts.
    spans (SpanStates): How tags spell spans.
    clamp (bool[T, S]): Tags still allowed, or None.
    RETURNS (Decoded)
    """
    path = LinearChain().viterbi(rules.apply(scores, facts), clamp=clamp)
    tags, n_docs = path.states, len(doc_starts) - 1
    opening, _ = _ends(scores, len(tags))
    first_sequence = np.searchsorted(scores.starts, doc_starts, side="left")
    impossible = np.zeros(n_docs, dtype=bool)
    for b in np.flatnonzero(path.scores == -np.inf):
        impossible[np.searchsorted(doc_starts, scores.starts[b], side="right") - 1] = True
    totals = rules.scores_of(np.maximum(tags, 0), opening, doc_starts)
    broken = impossible | (totals < 0.0).any(axis=1) | (len(rules.rewards) > 0)
    decoded = Decoded(tags, {}, [], {})

    def document(d: int) -> tuple[Document, slice]:
        tokens = slice(int(doc_starts[d]), int(doc_starts[d + 1]))
        starts = scores.starts[first_sequence[d] : first_sequence[d + 1] + 1]
        starts = np.unique(np.clip(starts, tokens.start, tokens.stop)) - tokens.start
        of_doc = scores._replace(
            emissions=scores.emissions[tokens],
            transitions=scores.transitions[tokens] if np.ndim(scores.transitions) == 3 else scores.transitions,
            starts=starts,
        )
        of_words = np.zeros(0, dtype=np.uint64) if words is None else words[tokens]
        of_facts = {place: _cut(fact, tokens) for place, fact in facts.items()}
        return Document(of_doc, None if clamp is None else clamp[tokens], of_facts, of_words, spans), tokens

    for d in range(n_docs):
        if doc_starts[d] == doc_starts[d + 1] or not (broken[d] or rules.global_):
            continue
        cut, tokens = document(d)
        if not broken[d] and not _clashes(rules, cut, tags[tokens]):
            continue
        answer = _Search(rules, cut).best()
        tags[tokens] = answer.tags
        if answer.relaxed:
            decoded.relaxed[d] = answer.relaxed
        if not answer.finished:
            decoded.unfinished.append(d)
        decoded.solved[d] = answer.added
    return decoded


def _cut(fact, tokens: slice):
    return Match(*(array[tokens] for array in fact)) if isinstance(fact, Match) else fact[tokens]


def _sentences(scores: ChainScores) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(scores.starts) - 1), np.diff(scores.starts))


def _clashes(rules: RuleSet, document: Document, tags: NDArray[np.int32]):
    if not rules.global_:
        return []
    opening, _ = _ends(document.scores, len(tags))
    segments = segments_of(tags, document.spans, opening)
    return rules.clashes(segments, document.words, _sentences(document.scores))


class _Answer(NamedTuple):
    tags: NDArray[np.int32]
    relaxed: list[str]
    finished: bool
    added: list[str]


class _Search:
    """The search for the best labelling of one document."""

    def __init__(self, rules: RuleSet, document: Document):
        self._rules = rules
        self._document = document
        self._finished = True
        self._added: list[str] = []

    def best(self) -> _Answer:
        """Where no labelling keeps all rules, the hard ones are taken up one by one, in their order, as long as there
        is one."""
        rules = self._rules.rules
        tags = self._solve([rule.place for rule in rules])
        if tags is not None:
            return _Answer(tags, [], self._finished, self._added)
        kept = [rule.place for rule in rules if not rule.hard]
        tags, relaxed = self._solve(kept), []
        if tags is None:  # the clamp alone is too much: whoever made it has looked at it, so only the scheme is left
            self._document = self._document._replace(clamp=None)
            tags = self._solve(kept)
        for rule in rules:
            if rule.hard:
                with_rule = self._solve([*kept, rule.place])
                if with_rule is None:
                    relaxed.append(rule.name)
                else:
                    tags = with_rule
                    kept.append(rule.place)
        return _Answer(tags, relaxed, self._finished, self._added)

    def _solve(self, kept: list[int]) -> Optional[NDArray[np.int32]]:
        """The best labelling under some rules, None if there is none."""
        rules, document = self._rules, self._document
        joined = join_sequences(rules.apply(document.scores, document.facts, set(kept)), document.clamp)
        opening, _ = _ends(document.scores, len(document.scores.emissions))
        whole = np.array([0, len(opening)])
        relevant = {n for n, (rule, _) in enumerate(rules.automata) if rule.place in kept}
        active = set(rules.rewards & relevant)
        texts: list = []  # (rule, text) of the texts that must have one label
        self._added = []
        while True:
            tags = self._decode(joined, frozenset(active), texts)
            if tags is None:
                return None
            tags = tags[joined.tokens]
            totals = rules.scores_of(tags, opening, whole)[0]
            broken = {n for n in relevant - active if totals[n] < 0.0}
            clashing = [
                (clash.rule, text)
                for clash in _clashes(rules, document, tags)
                if clash.rule.place in kept
                for text in clash.texts
                if (clash.rule, text) not in texts
            ]
            if not broken and not clashing:
                return tags
            active |= broken
            texts += clashing
            for rule in [rules.automata[n].rule for n in sorted(broken)] + [rule for rule, _ in clashing]:
                if rule.name not in self._added:
                    self._added.append(rule.name)

    def _decode(self, joined, active: frozenset[int], texts: list) -> Optional[NDArray[np.int32]]:
        if not texts:
            if active and not active & self._rules.rewards:
                found, tags = self._rules.best_first(joined, active)
                if found:
                    return tags
            chain = self._rules.graph(active) if active else LinearChain()
            if chain is not None:
                path = chain.viterbi(joined.scores, clamp=joined.clamp)
                return path.states if path.scores[0] > -np.inf else None
        from .integer_program import solve  # scipy

        automata = [self._rules.automata[n].automaton for n in sorted(active)]
        groups = [self._occurrences(rule, text, joined.tokens) for rule, text in texts]
        solution = solve(joined, self._rules.tags, automata, groups, time_limit=self._rules.constraints.time_limit)
        self._finished &= solution.finished
        return solution.tags

    def _occurrences(self, rule, text, places) -> list[tuple[int, int]]:
        """Where a text stands, as tokens of the joined chain."""
        scope, words = text[0], np.array(text[1:], dtype=np.uint64)
        of_document, sentences = self._document.words, _sentences(self._document.scores)
        found = []
        for begin in range(len(of_document) - len(words) + 1):
            end = begin + len(words)
            same = (of_document[begin:end] == words).all() and sentences[begin] == sentences[end - 1]
            if same and scope in (-1, sentences[begin]):
                found.append((int(places[begin]), int(places[end - 1]) + 1))
        return found
