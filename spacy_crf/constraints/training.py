"""The rules in training, and the spans known to be wrong: the sums and maxima of a batch whose labellings keep them.

A sequence whose own annotation breaks a rule is trained without that rule, since nothing could be learned from it otherwise.
"""

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..errors import Errors
from ..inference.linear_chain import LinearChain
from ..inference.state_graph import GraphChain
from ..schemes import NO_SEGMENTS, Segments
from ..types import ChainScores, Clamp, Floats
from .facts import Facts
from .incorrect_spans import Copies, Excluded, copy_tags
from .rule_set import RuleSet
from .rules import Rule
from .state_graph import copied

NOTHING = Excluded()


class Group(NamedTuple):
    """Documents that are trained under the same rules."""

    docs: NDArray[np.int64]  # [d] their numbers
    tokens: NDArray[np.int64]  # [n] places of their tokens
    sequences: NDArray[np.int64]  # [b] numbers of their sequences
    starts: NDArray[np.int64]  # [b + 1] of the sequences
    doc_starts: NDArray[np.int64]  # [d + 1]
    firsts: NDArray[np.int64]  # [d] place, in `sequences`, of the first one of each document
    kept: frozenset[int]  # places of the rules
    automata: frozenset[int]
    facts: Facts
    copies: Optional[Copies] = None  # of tags, for a document with spans known to be wrong


class RuledStructure:
    """Answers what losses ask of a `Structure`, under the rules: base for all structures. Values of a document whose sequences a
    rule ties together are those of its first sequence; the others have 0.

    structure (Structure): Answers the same without the rules.
    rules (RuleSet): The rules; there may be none.
    facts (Facts): What patterns and functions say of the tokens.
    clamp: What the annotation allows.
    starts (int64[B + 1]), doc_starts (int64[D + 1]): Where sequences and documents start.
    alone (bool[D]): Documents that can't be done together with others.
    RAISES (ValueError): CRF614 if the automata of all rules are too large together.
    """

    def __init__(
        self,
        structure: Any,
        rules: RuleSet,
        facts: Facts,
        clamp: Any,
        starts: NDArray[np.int64],
        doc_starts: NDArray[np.int64],
        alone: NDArray[np.bool_],
    ):
        if rules.left_out:
            limit, what = rules.constraints.max_states, "training under rules"
            raise ValueError(Errors.CRF614.format(name=rules.left_out[0][0].name, max_states=limit, what=what))
        self._structure = structure
        self.threads = structure.threads
        self._rules = rules
        self.broken: list[tuple[Rule, int]] = []  # rules, and the documents whose annotation breaks them
        n_docs = len(doc_starts) - 1
        lifted: list[set[int]] = [set() for _ in range(n_docs)]
        whole = _group(np.arange(n_docs), frozenset(), rules.fitting, facts, starts, doc_starts)
        nothing = self._free_scores(starts)
        for rule in rules.rules:
            if rule.hard and not rule.global_:
                for d in self._breaking(rule, whole, nothing, clamp):
                    lifted[d].add(rule.place)
                    self.broken.append((rule, int(d)))
        groups: dict[tuple[frozenset[int], int], list[int]] = {}
        for d in range(n_docs):
            if doc_starts[d] < doc_starts[d + 1]:
                kept = frozenset(rule.place for rule in rules.rules) - lifted[d]
                groups.setdefault((kept, d if alone[d] else -1), []).append(d)
        self._groups = []
        for (kept, _), docs in groups.items():
            automata = frozenset(rules.automata_of(kept))
            self._groups.append(_group(np.array(docs), kept, automata, facts, starts, doc_starts))

    def _breaking(self, rule: Rule, whole: Group, nothing: Any, clamp: Any) -> NDArray[np.int64]:
        """Documents none of whose annotated labellings keeps a rule."""
        automata = frozenset(n for n in whole.automata if self._rules.automata[n].rule is rule)
        group = whole._replace(kept=frozenset([rule.place]), automata=automata)
        values, _ = self._answer("viterbi_counts", group, nothing, clamp, np.ones(len(whole.sequences)))
        sequences = np.flatnonzero(values == -np.inf)
        return np.unique(np.searchsorted(whole.doc_starts, whole.starts[sequences], side="right") - 1)

    # What a structure adds

    def _free_scores(self, starts: NDArray[np.int64]) -> Any:
        """Scores that say only what the structure allows."""
        raise NotImplementedError

    def _under(self, group: Group) -> Any:
        """What answers for documents under the automata of a group."""
        return self._rules.graph(group.automata)

    # What they share

    @property
    def signature(self) -> bytes:
        """Equal for the same rules."""
        return repr(self._rules.constraints.tables).encode("utf8")

    exact = ambiguous = True
    wrong = NO_SEGMENTS  # for losses that leave out single segments of what a clamp allows

    @property
    def without_rules(self) -> Any:
        """What answers the same without the rules."""
        return self._structure

    def prepare(self, scores: Any) -> Any:
        """The scores as they are: each group is checked where it is asked about."""
        return scores

    def expectations(self, scores: Any, *, clamp: Any = None, weights: Optional[Floats] = None) -> tuple[Floats, Any]:
        """Log partitions under the rules, and the derivative of their weighted sum."""
        return self._add_up("expectations", scores, clamp, weights)

    def viterbi_counts(self, scores: Any, *, clamp: Any = None, weights: Optional[Floats] = None) -> tuple[Floats, Any]:
        """Scores of the best labellings that keep the rules, and what they use."""
        return self._add_up("viterbi_counts", scores, clamp, weights)

    def _add_up(self, question: str, scores: Any, clamp: Any, weights: Optional[Floats]) -> tuple[Floats, Any]:
        n_sequences = len(scores.starts) - 1
        weights = np.ones(n_sequences) if weights is None else weights
        values = np.zeros(n_sequences)
        total = arrays.zeros(scores)
        for group in self._groups:
            values[group.sequences], expected = self._answer(question, group, scores, clamp, weights)
            arrays.add(total, expected, group.tokens)
        return values, total

    def _answer(self, question: str, group: Group, scores: Any, clamp: Any, weights: Floats) -> tuple[Floats, Any]:
        """The values of a group's sequences, and their derivative. Scores, clamp and weights are those of all."""
        part = self._rules.apply(arrays.cut(scores, group.tokens, group.starts), group.facts, group.kept)
        return self._ask(question, group, part, arrays.cut_clamp(clamp, group.tokens), weights[group.sequences])

    def _ask(self, question: str, group: Group, scores: Any, clamp: Any, weights: Floats) -> tuple[Floats, Any]:
        """The same with what belongs to the group."""
        if not group.automata:
            return getattr(self._structure, question)(scores, clamp=clamp, weights=weights)
        joined = arrays.join_sequences(scores, clamp, group.doc_starts)
        values, ask = np.zeros(len(group.sequences)), getattr(self._under(group), question)
        values[group.firsts], expected = ask(joined.scores, clamp=joined.clamp, weights=weights[group.firsts])
        return values, arrays.split(joined, expected, scores)


class RuledChain(RuledStructure):
    """Linear chains, see `RuledStructure`. What is asked with a clamp – what the annotation allows – leaves out what is excluded
    too; without one, what is excluded has its costs.

    clamp (bool[T, S]): Tags that the annotation allows.
    """

    def __init__(
        self,
        rules: RuleSet,
        facts: Facts,
        clamp: Clamp,
        starts: NDArray[np.int64],
        doc_starts: NDArray[np.int64],
        *,
        excluded: Excluded = NOTHING,
        threads: int = 1,
    ):
        # Copies of tags differ, so a document with a wrong span is alone.
        self._excluded = excluded
        steps = excluded.steps[np.argsort(excluded.steps[:, 0], kind="stable")]
        of_doc = [np.searchsorted(tokens, doc_starts) for tokens in (excluded.wrong.start, steps[:, 0])]
        alone = (np.diff(of_doc) > 0).any(axis=0)
        super().__init__(LinearChain(threads=threads), rules, facts, clamp, starts, doc_starts, alone)
        for number, group in enumerate(self._groups):
            d = int(group.docs[0])
            if alone[d]:
                wrong, own = (slice(bounds[d], bounds[d + 1]) for bounds in of_doc)
                begin, end, label = (column[wrong] for column in excluded.wrong)
                of_document = excluded._replace(
                    wrong=Segments(begin - doc_starts[d], end - doc_starts[d], label),
                    steps=steps[own] - [doc_starts[d], 0, 0],
                )
                self._groups[number] = group._replace(copies=copy_tags(rules.tags, of_document, group.starts))

    def _free_scores(self, starts: NDArray[np.int64]) -> ChainScores:
        allowed = np.where(self._rules.allowed, 0.0, -np.inf)
        emissions = np.zeros((int(starts[-1]), len(allowed) - 1))
        return ChainScores(emissions, allowed[:-1, :-1], allowed[-1, :-1], allowed[:-1, -1], starts)

    def _ask(self, question: str, group: Group, scores: ChainScores, clamp: Optional[Clamp], weights: Floats):
        copies = group.copies
        costs = self._excluded.costs
        if copies is None or (clamp is None and (costs is None or not costs.any())):
            return super()._ask(question, group._replace(copies=None), scores, clamp, weights)
        widened, allowed = copies.widen(scores, clamp)
        values, expected = super()._ask(question, group, widened, allowed, weights)
        per_position = np.ndim(scores.transitions) == 3
        return values, copies.narrow(expected, len(scores.first), per_position=per_position)

    def _under(self, group: Group) -> GraphChain:
        chain = super()._under(group)
        if group.copies is None:
            return chain
        n_tags = len(self._rules.tags.label_of)
        return GraphChain(copied(chain.graph, np.append(group.copies.tag_of, n_tags)))

    @property
    def signature(self) -> bytes:
        """Equal for the same rules and wrong spans."""
        wrong, steps, _ = self._excluded
        return super().signature + np.concatenate(wrong).tobytes() + steps.tobytes()


def _group(docs, kept, automata, facts, starts, doc_starts) -> Group:
    tokens = arrays.ranges(doc_starts[docs], doc_starts[docs + 1])
    first = np.searchsorted(starts[:-1], doc_starts[docs], side="left")
    sequences = arrays.ranges(first, np.searchsorted(starts[:-1], doc_starts[docs + 1], side="left"))
    lengths = starts[sequences + 1] - starts[sequences]
    return Group(
        docs=docs,
        tokens=tokens,
        sequences=sequences,
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        doc_starts=np.concatenate([[0], np.cumsum(doc_starts[docs + 1] - doc_starts[docs])]).astype(np.int64),
        firsts=np.searchsorted(sequences, first),
        kept=kept,
        automata=automata,
        facts=facts.at(tokens),
    )
