"""The rules in training, and the spans known to be wrong: the sums and maxima of a batch whose labellings keep them.

A sequence whose own annotation breaks a rule is trained without that rule, since nothing could be learned from it otherwise.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..inference.linear_chain import LinearChain
from ..inference.state_graph import GraphChain, join_sequences, split_expectations
from ..schemes import NO_SEGMENTS, Segments
from ..types import ChainScores, Clamp, Floats, Path
from .incorrect_spans import Copies, copy_tags
from .rule_set import Facts, RuleSet
from .rules import Match, Rule
from .state_graph import copied

States = NDArray[np.int32]


class _Group(NamedTuple):
    """Documents that are trained under the same rules."""

    tokens: NDArray[np.int64]  # [n] places of their tokens
    sequences: NDArray[np.int64]  # [b] numbers of their sequences
    starts: NDArray[np.int64]  # [b + 1] of the sequences
    doc_starts: NDArray[np.int64]  # [d + 1]
    firsts: NDArray[np.int64]  # [d] place, in `sequences`, of the first one of each document
    kept: frozenset[int]  # places of the rules
    automata: frozenset[int]
    facts: Facts
    copies: Optional[Copies] = None  # of tags, for a document with spans known to be wrong


class RuledChain:
    """Answers what losses ask of a `Structure`, under the rules. Values of a document whose sequences a rule ties together are
    those of its first sequence; the others have 0.

    What is asked with a clamp – what the annotation allows – leaves out the labellings with a wrong span too.

    rules (RuleSet): The rules; there may be none.
    facts (Facts): What patterns and functions say of the tokens.
    clamp (bool[T, S]): Tags that the annotation allows.
    starts (int64[B + 1]), doc_starts (int64[D + 1]): Where sequences and documents start.
    wrong (Segments): Spans known to be wrong, by their first token; none crosses the start of a sequence.
    RAISES (ValueError): CRF614 if the automata of all rules are too large together.
    """

    def __init__(
        self,
        rules: RuleSet,
        facts: Facts,
        clamp: Clamp,
        starts: NDArray[np.int64],
        doc_starts: NDArray[np.int64],
        *,
        wrong: Segments = NO_SEGMENTS,
        threads: int = 1,
    ):
        fitting, left_out = rules.fitting()
        if left_out:
            limit = rules.constraints.max_states
            what = "training under rules"
            raise ValueError(Errors.CRF614.format(name=left_out[0].name, max_states=limit, what=what))
        self._rules = rules
        self._chain = LinearChain(threads=threads)
        self.broken: list[tuple[Rule, int]] = []  # rules, and the documents whose annotation breaks them
        n_docs = len(doc_starts) - 1
        lifted: list[set[int]] = [set() for _ in range(n_docs)]
        whole = self._group(np.arange(n_docs), frozenset(), fitting, facts, starts, doc_starts)
        nothing = _zeros(clamp.shape, rules, starts)
        for rule in rules.rules:
            if rule.hard and not rule.global_:
                for d in self._breaking(rule, whole, nothing, clamp):
                    lifted[d].add(rule.place)
                    self.broken.append((rule, int(d)))
        # Documents under the same rules are done together; copies of tags differ, so a document with a wrong span is alone.
        self._wrong = wrong
        of_doc = np.searchsorted(self._wrong.start, doc_starts)
        groups: dict[tuple[frozenset[int], int], list[int]] = {}
        for d in range(n_docs):
            if doc_starts[d] < doc_starts[d + 1]:
                kept = frozenset(rule.place for rule in rules.rules) - lifted[d]
                groups.setdefault((kept, d if of_doc[d] < of_doc[d + 1] else -1), []).append(d)
        self._groups = []
        for (kept, d), docs in groups.items():
            automata = frozenset(n for n in fitting if rules.automata[n].rule.place in kept)
            group = self._group(np.array(docs), kept, automata, facts, starts, doc_starts)
            if d >= 0:
                begin, end, label = (column[of_doc[d] : of_doc[d + 1]] for column in self._wrong)
                of_document = Segments(begin - doc_starts[d], end - doc_starts[d], label)
                group = group._replace(copies=copy_tags(rules.tags, of_document, group.starts))
            self._groups.append(group)

    def _breaking(self, rule: Rule, whole: _Group, nothing: ChainScores, clamp: Clamp) -> NDArray[np.int64]:
        """Documents none of whose annotated labellings keeps a rule, but that have one without it."""
        automata = frozenset(n for n in whole.automata if self._rules.automata[n].rule is rule)
        with_rule = self._group_scores(whole._replace(kept=frozenset([rule.place]), automata=automata), nothing)
        joined = join_sequences(with_rule, clamp[whole.tokens], whole.doc_starts)
        chain = self._rules.graph(automata) if automata else self._chain
        [impossible] = np.nonzero(chain.viterbi(joined.scores, clamp=joined.clamp).scores == -np.inf)
        return impossible

    def _group(self, docs, kept, automata, facts, starts, doc_starts) -> _Group:
        tokens = _ranges(doc_starts[docs], doc_starts[docs + 1])
        first = np.searchsorted(starts[:-1], doc_starts[docs], side="left")
        sequences = _ranges(first, np.searchsorted(starts[:-1], doc_starts[docs + 1], side="left"))
        lengths = starts[sequences + 1] - starts[sequences]
        return _Group(
            tokens=tokens,
            sequences=sequences,
            starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            doc_starts=np.concatenate([[0], np.cumsum(doc_starts[docs + 1] - doc_starts[docs])]).astype(np.int64),
            firsts=np.searchsorted(sequences, first),
            kept=kept,
            automata=automata,
            facts={place: _pick(fact, tokens) for place, fact in facts.items()},
        )

    def _group_scores(self, group: _Group, scores: ChainScores) -> ChainScores:
        part = scores._replace(
            emissions=scores.emissions[group.tokens],
            transitions=scores.transitions[group.tokens] if np.ndim(scores.transitions) == 3 else scores.transitions,
            starts=group.starts,
        )
        return self._rules.apply(part, group.facts, group.kept)

    @property
    def signature(self) -> bytes:
        """Equal for the same rules and wrong spans."""
        return repr(self._rules.constraints.tables).encode("utf8") + np.concatenate(self._wrong).tobytes()

    # ------------------------------------------------------------------------------------- what losses ask for

    @property
    def threads(self) -> int:
        return self._chain.threads

    def expectations(
        self, scores: ChainScores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """Log partitions under the rules, and the derivative of their weighted sum."""
        return self._add_up("expectations", scores, clamp, weights)

    def viterbi_counts(
        self, scores: ChainScores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """Scores of the best labellings that keep the rules, and what they use."""
        return self._add_up("viterbi_counts", scores, clamp, weights)

    def _add_up(self, question: str, scores: ChainScores, clamp, weights) -> tuple[Floats, ChainScores]:
        n_sequences = len(scores.starts) - 1
        weights = np.ones(n_sequences) if weights is None else weights
        values = np.zeros(n_sequences)
        total = scores._replace(
            **{name: np.zeros_like(getattr(scores, name)) for name in ("emissions", "transitions", "first", "last")}
        )
        for group in self._groups:
            part = self._group_scores(group, scores)
            of_clamp = None if clamp is None else clamp[group.tokens]
            of_weights = weights[group.sequences]
            copies = None if clamp is None else group.copies
            if copies is not None:
                part, of_clamp = copies.widen(part, of_clamp)
            if group.automata:
                chain = self._rules.graph(group.automata)
                if copies is not None:
                    chain = GraphChain(copied(chain.graph, np.append(copies.tag_of, len(scores.first))))
                joined = join_sequences(part, of_clamp, group.doc_starts)
                value, expected = getattr(chain, question)(
                    joined.scores, clamp=joined.clamp, weights=of_weights[group.firsts]
                )
                values[group.sequences[group.firsts]] = value
                expected = split_expectations(joined, expected, group.starts)
            else:
                value, expected = getattr(self._chain, question)(part, clamp=of_clamp, weights=of_weights)
                values[group.sequences] = value
            if copies is not None:
                expected = copies.narrow(expected, len(scores.first), per_position=total.transitions.ndim == 3)
            total.emissions[group.tokens] = expected.emissions
            if total.transitions.ndim == 3:
                total.transitions[group.tokens] = expected.transitions
            else:
                summed = expected.transitions
                total.transitions[:] += summed.sum(axis=0) if summed.ndim == 3 else summed
            total.first[:] += expected.first
            total.last[:] += expected.last
        return values, total

    def path_score(self, scores: ChainScores, states: States) -> Floats:
        """Scores of labellings, -inf for those that break a rule."""
        return self.viterbi_counts(scores, clamp=states[:, np.newaxis] == np.arange(len(scores.first)))[0]

    def only_path(self, clamp: Clamp) -> Optional[States]:
        """None: a clamp is always asked for its sums, since the rules have a say in them."""
        return None

    def viterbi(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Path:
        """Best labellings that keep the rules."""
        states = np.full(len(scores.emissions), -1, dtype=np.int32)
        values, used = self.viterbi_counts(scores, clamp=clamp)
        chosen = used.emissions.argmax(axis=1)
        taken = used.emissions.max(axis=1, initial=0.0) > 0.0
        states[taken] = chosen[taken]
        return Path(states, values)


def _zeros(shape: tuple[int, int], rules: RuleSet, starts: NDArray[np.int64]) -> ChainScores:
    """Scores that say only what the tag scheme allows."""
    allowed = np.where(rules.allowed, 0.0, -np.inf)
    return ChainScores(np.zeros(shape), allowed[:-1, :-1], allowed[-1, :-1], allowed[:-1, -1], starts)


def _ranges(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    parts = [np.arange(b, e) for b, e in zip(begin.tolist(), end.tolist())]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _pick(fact, tokens: NDArray[np.int64]):
    return Match(*(array[tokens] for array in fact)) if isinstance(fact, Match) else fact[tokens]
