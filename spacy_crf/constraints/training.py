"""Training under rules, and without spans known to be wrong: sums and maxima over the remaining labellings of a batch.

A document whose own annotation breaks a rule is trained without that rule, since nothing could be learned from it otherwise. If
partial annotation can keep each of several rules, but not all together, the later rules are dropped, as in prediction.

"These tokens are no PER" excludes the labellings with precisely that span and label, and no others: a longer, a shorter or
another span of PER stays possible. No mask of single tokens expresses that, so tags get a memory: a span of PER that begins where
a wrong span begins is written in copies of the tags of PER, from which it can't end where the wrong span ends. Each labelling
is still one path, and its score does not change.

    tokens          in  New  York  City
    New York        O   B'   L'    ✗       nothing may follow L' here
    New York City   O   B'   I'    L       behind the end of the wrong span the copy is left
    York City       O   O    B     L       nothing wrong begins at York
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Optional, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..errors import Errors
from ..inference.semi_markov import with_listed
from ..inference.structure import Structure
from ..schemes import NO_SEGMENTS, NO_STEPS, Segments
from ..types import Bools, ChainScores, Clamp, Floats, Ints, PathScores, SegmentClamp, SegmentScores
from .automaton import SpanTags, copied
from .rule import PatternMatches, Rule
from .rule_set import RuleSet

SomeClamp = Union[Clamp, SegmentClamp]
Scores = TypeVar("Scores", bound=PathScores)


class Excluded(NamedTuple):
    """Spans and steps that the annotation rules out and no clamp can exclude."""

    wrong: Segments = NO_SEGMENTS  # spans, by their first token; none crosses the start of a sequence
    steps: Ints = NO_STEPS  # steps between tags, see `Scheme.encode_clamp`
    # [S] cost of an excluded span, by its last state, and of an excluded step, by its second state
    costs: Optional[Floats] = None

    def costs_more(self, clamp: Optional[SomeClamp]) -> bool:
        """Whether excluded spans and steps have an effect: under a clamp they are impossible; without one they have costs.

        clamp (Clamp or SegmentClamp): The labellings still allowed, or None.
        """
        return clamp is not None or (self.costs is not None and bool(self.costs.any()))


class TagCopies(NamedTuple):
    """The S tags of B sequences of T tokens, and C copies of tags, as S + C states. The copies of a label's tags are numbered."""

    tag_of: Ints  # [S + C] tag of each state
    label_of: Ints  # [S + C] label of each state
    copy_of: Ints  # [S + C] number of the copy to which the state belongs, 0 for the tags themselves
    goes_on: Bools  # [S + C, S + C] whether the second state continues the span of the first state
    # [T, S + C] number of the copy in which a span of the state's label is written if it begins at the token
    opened: Ints
    # [T, S + C] number of the copy in which a span is written at the token if it was in the state before
    kept: Ints
    may_end: Bools  # [T + 1, S + C] whether a span in the state may end before the token
    excluded: Excluded
    starts: Ints  # [B + 1] where the sequences start

    def widen(self, scores: ChainScores, clamp: Optional[Clamp]) -> tuple[ChainScores, Clamp]:
        """Make the scores and the clamp of the states from those of the tags. Under a clamp, excluded spans and steps are
        impossible; without one, their costs are added to the scores.

        scores (ChainScores): Scores of S tags.
        clamp (bool[T, S]): Tags still allowed, or None.
        RETURNS (ChainScores, bool[T, S + C]): Scores of S + C states, and the states still allowed.
        """
        tags = self.tag_of
        prices = np.full(len(tags), -np.inf)  # [S + C]
        if clamp is None and self.excluded.costs is not None:
            prices = self.excluded.costs[tags]
        # transitions[t, i, j] = transitions[t, tag of i, tag of j], -inf if j is not in the copy in which the span is at t,
        #     + prices[i] if a wrong span in i ends in front of t, + prices[j] if (i, j) is an excluded step at t
        may_begin = self.opened == self.copy_of  # [T, S + C] whether a span may begin in the state
        may_continue = self.kept[:, :, None] == self.copy_of  # [T, S + C, S + C] whether j may continue the span of i
        is_allowed = np.where(self.goes_on, may_continue, may_begin[:, None, :])
        tag_transitions = np.asarray(scores.transitions)[..., tags[:, None], tags]
        transitions = np.where(is_allowed, tag_transitions, -np.inf)
        ends_wrong_span = ~self.goes_on & ~self.may_end[:-1, :, None]
        transitions += np.where(ends_wrong_span, prices[:, None], 0.0)
        for token, label, goes_on in self.excluded.steps.tolist():
            is_step = (self.goes_on == goes_on) & (self.label_of == label)
            transitions[token] += np.where(is_step, prices, 0.0)
        # No transition leads from the last token of a sequence to an end, or from a start to its first token
        starts = self.starts[np.append(True, self.starts[1:] > self.starts[:-1])]  # without empty sequences
        emissions = np.ascontiguousarray(scores.emissions[:, tags])
        emissions[starts[1:] - 1] += np.where(self.may_end[starts[1:]], 0.0, prices)
        possible = np.ones(may_begin.shape, dtype=bool)
        possible[starts[:-1]] = may_begin[starts[:-1]]
        widened: Any = scores._replace(
            emissions=emissions, transitions=transitions, first=scores.first[tags], last=scores.last[tags]
        )
        if hasattr(widened, "orders"):
            # digit_of: n-grams are looked up by the tags of the states, since n-grams of states have no weights.
            # keep=None: nothing is pruned, since pruning does not know copies, and could drop the annotated labelling
            widened = widened._replace(orders=widened.orders._replace(digit_of=tags, keep=None))
        return widened, possible if clamp is None else possible & clamp[:, tags]

    def narrow(self, expected: ChainScores, n_tags: int, *, per_position: bool) -> ChainScores:
        """Sum derivatives of states up to derivatives of tags: expected[tag] = sum of expected[state] over the states of the tag.

        expected (ChainScores): Derivatives with respect to the scores of S + C states.
        n_tags (int): S.
        per_position (bool): Whether the transitions of the tags depend on the token.
        RETURNS (ChainScores): Derivatives with respect to the scores of S tags.
        """
        is_of_tag = (self.tag_of[:, None] == np.arange(n_tags)).astype(np.float64)  # [S + C, S]
        transitions = expected.transitions if per_position else expected.transitions.sum(axis=0)
        return expected._replace(
            emissions=expected.emissions @ is_of_tag,
            transitions=is_of_tag.T @ transitions @ is_of_tag,
            first=expected.first @ is_of_tag,
            last=expected.last @ is_of_tag,
        )


def copy_tags(tags: SpanTags, excluded: Excluded, starts: Ints) -> TagCopies:
    """Make the copies of tags that the wrong spans of some sequences need.

    tags (SpanTags): How tags encode spans.
    excluded (Excluded): The wrong spans, and the steps.
    starts (int64[B + 1]): Where the sequences start.
    RETURNS (TagCopies): The tags and their copies.
    """
    # Wrong spans that begin at one token with one label share a copy: they differ in where they may not end
    wrong_ends: dict[tuple[int, int], list[int]] = {}  # ends of the wrong spans, by first token and label
    for begin, end, label in np.column_stack(excluded.wrong).tolist():
        wrong_ends.setdefault((begin, label), []).append(end)
    # Overlapping spans of one label that begin at different tokens need a copy each; others share a copy
    free_at: dict[int, list[int]] = {}  # by label: the token from which on each of its copies is free
    copy_for: dict[tuple[int, int], int] = {}  # number of the copy for the wrong spans, by first token and label
    for (begin, label), ends in sorted(wrong_ends.items()):
        copies_free_at = free_at.setdefault(label, [])
        copy = next((n for n, token in enumerate(copies_free_at) if token <= begin), len(copies_free_at))
        copies_free_at[copy : copy + 1] = [max(ends)]  # replaces, or appends a new copy
        copy_for[begin, label] = copy + 1
    # Tags in front, then the copies by label and number
    tag_blocks = [np.arange(len(tags.label_of))]
    copy_blocks = [np.zeros(len(tags.label_of), dtype=np.int64)]
    for label, copies_free_at in free_at.items():
        label_tags = np.flatnonzero(tags.label_of == label)
        n_copies = len(copies_free_at)
        tag_blocks.append(np.tile(label_tags, n_copies))
        copy_blocks.append(np.repeat(1 + np.arange(n_copies), len(label_tags)))
    tag_of = np.concatenate(tag_blocks)  # [S + C]
    copy_of = np.concatenate(copy_blocks)  # [S + C]
    label_of = tags.label_of[tag_of]  # [S + C]
    opened = np.zeros((int(starts[-1]), len(tag_of)), dtype=np.int64)
    kept = np.zeros_like(opened)
    may_end = np.ones((len(opened) + 1, len(tag_of)), dtype=bool)
    for (begin, label), ends in wrong_ends.items():
        copy = copy_for[begin, label]
        is_in_copy = (label_of == label) & (copy_of == copy)
        opened[begin, label_of == label] = copy
        # Behind the last wrong end, the span leaves the copy
        kept[begin + 1 : max(ends), is_in_copy] = copy
        may_end[np.ix_(ends, is_in_copy)] = False
    return TagCopies(
        tag_of=tag_of,
        label_of=label_of,
        copy_of=copy_of,
        goes_on=tags.continues[np.ix_(tag_of, tag_of)],
        opened=opened,
        kept=kept,
        may_end=may_end,
        excluded=excluded,
        starts=starts,
    )


NOTHING = Excluded()


class YieldingRule(NamedTuple):
    """A rule that a document is trained without."""

    rule: Rule
    doc: int
    beside: Sequence[Rule]  # rules with which the annotation cannot keep `rule`; none if it breaks `rule` by itself


class RuleGroup(NamedTuple):
    """Documents of a batch that are trained under one set of rules."""

    docs: Ints  # [d] numbers of the documents
    tokens: Ints  # [n] positions of their tokens in the batch
    sequences: Ints  # [b] numbers of the sequences
    starts: Ints  # [b + 1] where the sequences start in the group
    doc_starts: Ints  # [d + 1] where the documents start in the group
    firsts: Ints  # [d] position in `sequences` of the first sequence of each document
    kept: frozenset[int]  # places of the rules
    automata: frozenset[int]  # numbers of the automata of these rules
    facts: PatternMatches  # matches of patterns in the tokens of the group
    copies: Optional[TagCopies] = None  # copies of tags, for a document with spans known to be wrong


class RuledStructure:
    """Base of the structures that replace the model's own in losses when training has rules or wrong spans.

    If a rule ties the sequences of a document together, its first sequence has the value of the document, and the others have 0.
    With a clamp (the annotation) excluded spans and steps are impossible; without one they have their costs.

    rules (RuleSet): The rules; there may be none.
    facts (PatternMatches): Matches of patterns and functions in the documents.
    clamp: The labellings that the annotation allows.
    starts (int64[B + 1]), doc_starts (int64[D + 1]): Where sequences and documents start.
    longest (int32[S]): Tokens of the longest segment of each state, for chains of segments.
    excluded (Excluded): Spans and steps that are known to be wrong. No span is longer than the longest segment.
    RAISES (ValueError): CRF614 if the automata of all rules are too large together.
    """

    answers = frozenset(["exact"])

    def __init__(
        self,
        rules: RuleSet,
        facts: PatternMatches,
        clamp: Optional[SomeClamp],
        starts: Ints,
        doc_starts: Ints,
        longest: Optional[NDArray[np.int32]] = None,
        *,
        excluded: Excluded = NOTHING,
        threads: int = 1,
    ):
        self._rules = rules
        self._longest = longest
        self._excluded = excluded
        self._clamp = clamp
        if rules.left_out:
            self._refuse(rules.left_out[0])
        self.without_rules = type(rules.structure)(threads=threads)
        self.threads = threads
        # Under all rules first, to find the documents whose annotation breaks some; then each document has the rules it can keep
        self._groups = self._grouped(facts, starts, doc_starts, [])
        self.broken = self._find_broken(facts, starts, doc_starts)
        if self.broken:
            self._groups = self._grouped(facts, starts, doc_starts, self.broken)

    def _grouped(
        self, facts: PatternMatches, starts: Ints, doc_starts: Ints, yielding: list[YieldingRule]
    ) -> list[RuleGroup]:
        """Group the documents that are trained under the same rules; a document with copies of tags is a group of its own."""
        yielding_places: dict[int, set[int]] = {}  # by document
        for rule, doc, _ in yielding:
            yielding_places.setdefault(doc, set()).add(rule.place)
        excluded_of: dict[int, Excluded] = {}  # by document
        # By the rules that apply; a document with copies of tags has a key of its own, with its number in place of -1
        docs_of: dict[tuple[frozenset[int], int], list[int]] = {}
        for doc in np.flatnonzero(np.diff(doc_starts)).tolist():
            kept = self._rules.places - yielding_places.get(doc, set())
            excluded = self._excluded_in(doc_starts[doc : doc + 2])
            if excluded is not None:
                excluded_of[doc] = excluded
            docs_of.setdefault((kept, -1 if excluded is None else doc), []).append(doc)
        groups = []
        for (kept, doc_with_copies), docs in docs_of.items():
            automata = frozenset(self._rules.automata_of(kept))
            group = _group(np.array(docs), kept, automata, facts, starts, doc_starts)
            if doc_with_copies in excluded_of:
                group = group._replace(copies=copy_tags(self._rules.tags, excluded_of[doc_with_copies], group.starts))
            groups.append(group)
        return groups

    def _find_broken(self, facts: PatternMatches, starts: Ints, doc_starts: Ints) -> list[YieldingRule]:
        """Find the rules that each document is trained without. A document that has no labelling even without rules keeps them
        all."""
        hard = [rule for rule in self._rules.rules if rule.hard and not rule.global_]
        yielding: list[YieldingRule] = []
        if not hard:
            return yielding
        # With scores of 0 the best labelling has -inf exactly if no annotated labelling keeps the rules
        free_scores = self._free_scores(starts)
        for group in self._groups:
            docs = self._impossible(group, free_scores, self._rules.rules)
            if len(docs) < len(group.docs):
                # Only the documents that break rules are searched rule by rule
                group = _group(docs, frozenset(), frozenset(), facts, starts, doc_starts)
            if len(docs):
                impossible = partial(self._impossible, group, free_scores)
                possible_docs = np.setdiff1d(docs, impossible([]))
                yielding += _yielding(possible_docs, hard, impossible)
        return yielding

    def _impossible(self, group: RuleGroup, free_scores: PathScores, rules: Sequence[Rule]) -> Ints:
        """The documents of a group (int64[N]) that have no annotated labelling that keeps all of these rules."""
        kept = frozenset(rule.place for rule in rules)
        group = group._replace(kept=kept, automata=frozenset(self._rules.automata_of(kept)))
        weights = np.ones(len(free_scores.starts) - 1)
        values, _ = self._answer("viterbi_counts", group, free_scores, self._clamp, weights)
        sequences = np.flatnonzero(values == -np.inf)
        docs = np.searchsorted(group.doc_starts, group.starts[sequences], side="right") - 1
        return group.docs[np.unique(docs)]

    def _refuse(self, rule: Rule) -> NoReturn:
        raise ValueError(
            Errors.CRF614.format(name=rule.name, limit=self._rules.most_states, what="training under rules")
        )

    # Methods that each structure adds

    def _free_scores(self, starts: Ints) -> PathScores:
        """Scores that are 0 for every labelling of the structure, and -inf elsewhere."""
        raise NotImplementedError

    def _excluded_in(self, bounds: Ints) -> Optional[Excluded]:
        """The excluded spans and steps of a document, for which it needs copies of tags; None for documents that need none.

        bounds (int64[2]): Where the document begins and ends.
        """
        return None

    # Methods common to all structures

    @property
    def signature(self) -> bytes:
        """The rules, excluded spans and steps as bytes: they are equal if these bytes are."""
        tables = repr(self._rules.constraints.tables).encode("utf8")
        return tables + np.concatenate(self._excluded.wrong).tobytes() + self._excluded.steps.tobytes()

    def prepare(self, scores: Scores, *, annotated: object = None) -> Scores:
        """Return the scores unchanged: each group is checked when it is evaluated, and keeps its annotation.

        scores (PathScores): Scores of a batch.
        annotated: Not used.
        RETURNS (PathScores): The scores.
        """
        return scores

    def expectations(
        self, scores: Scores, *, clamp: Optional[SomeClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores]:
        """Sum over the labellings that keep the rules.

        scores (PathScores): Scores of B sequences.
        clamp (Clamp or SegmentClamp): The labellings still allowed, or None.
        weights (float64[B]): Weight of each sequence, 1 by default.
        RETURNS (float64[B], PathScores): Log partitions, and the derivative of their weighted sum.
        """
        return self._add_up("expectations", scores, clamp, weights)

    def viterbi_counts(
        self, scores: Scores, *, clamp: Optional[SomeClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores]:
        """Find the best of the labellings that keep the rules.

        scores (PathScores), clamp (Clamp or SegmentClamp), weights (float64[B]): As of `expectations`.
        RETURNS (float64[B], PathScores): Scores of the best labellings, and the weighted use of each score by them.
        """
        return self._add_up("viterbi_counts", scores, clamp, weights)

    def _add_up(
        self, question: str, scores: Scores, clamp: Optional[SomeClamp], weights: Optional[Floats]
    ) -> tuple[Floats, Scores]:
        """Ask all groups a question, the name of a method of `Structure`, and put their answers together."""
        n_sequences = len(scores.starts) - 1
        weights = np.ones(n_sequences) if weights is None else weights
        values = np.zeros(n_sequences)
        total = arrays.zeros(scores)
        for group in self._groups:
            values[group.sequences], expected = self._answer(question, group, scores, clamp, weights)
            arrays.add(total, expected, group.tokens)
        return values, total

    def _answer(self, question: str, group: RuleGroup, scores: Any, clamp: Any, weights: Floats) -> tuple[Floats, Any]:
        """Answer a question for a group, from the scores, clamp and weights of all sequences of the batch."""
        group_scores = arrays.cut(scores, group.tokens, group.starts)
        ruled_scores = self._rules.apply(group_scores, group.facts, group.kept)
        group_clamp = arrays.cut_clamp(clamp, group.tokens)
        return self._ask(question, group, ruled_scores, group_clamp, weights[group.sequences])

    def _ask(self, question: str, group: RuleGroup, scores: Any, clamp: Any, weights: Floats) -> tuple[Floats, Any]:
        """Answer a question for a group under its automata, from the scores, clamp and weights of the group's sequences."""
        # `annotated` is the clamp that pruning must keep. Pruning does not know copies of tags: with them, nothing is pruned
        annotated = None if group.copies is not None else arrays.cut_clamp(self._clamp, group.tokens)
        if not group.automata:
            return _asked(self.without_rules, question, scores, annotated, clamp, weights)
        joined = arrays.join_sequences(scores, clamp, group.doc_starts)
        graph = self._rules.graph(group.automata)
        # The product of all automata had room, but it may grow where a rule that the annotation breaks is dropped
        if graph is None:
            self._refuse(self._rules.automata[max(group.automata)].rule)
        if group.copies is not None:
            the_break = len(self._rules.tags.label_of)  # the tag between joined sequences, which has no copies
            graph = graph.over(copied(graph.graph, np.append(group.copies.tag_of, the_break)))
        else:
            annotated = arrays.join_sequences(scores, annotated, group.doc_starts).clamp
        doc_values, expected = _asked(graph, question, joined.scores, annotated, joined.clamp, weights[group.firsts])
        values = np.zeros(len(group.sequences))
        values[group.firsts] = doc_values
        return values, arrays.split(joined, expected, scores)


def _asked(
    structure: Structure,
    question: str,
    scores: Any,
    annotated: Optional[SomeClamp],
    clamp: Optional[SomeClamp],
    weights: Floats,
) -> tuple[Floats, Any]:
    """Call the method `question` of a structure.

    annotated: Clamp of the annotation, which pruning keeps; None to prune nothing.
    """
    if annotated is not None:
        scores = structure.prepare(scores, annotated=annotated)
    return getattr(structure, question)(scores, clamp=clamp, weights=weights)


class RuledChain(RuledStructure):
    """Linear chains under rules and without wrong spans. Tags that may be part of wrong spans have copies."""

    def _free_scores(self, starts: Ints) -> ChainScores:
        allowed = np.where(self._rules.allowed, 0.0, -np.inf)
        return ChainScores(
            emissions=np.zeros((int(starts[-1]), len(allowed) - 1)),
            transitions=allowed[:-1, :-1],
            first=allowed[-1, :-1],
            last=allowed[:-1, -1],
            starts=starts,
        )

    def _excluded_in(self, bounds: Ints) -> Optional[Excluded]:
        """The wrong spans and steps of the document with the tokens between these bounds, by its own tokens; None without any."""
        doc_begin, doc_end = bounds
        (begin, end, label), steps, _ = self._excluded
        # Spans and steps of the document, counted from its first token
        is_inside = (steps[:, 0] >= doc_begin) & (steps[:, 0] < doc_end)
        steps_inside = steps[is_inside] - [doc_begin, 0, 0]
        spans = slice(*np.searchsorted(begin, bounds))
        wrong = Segments(begin[spans] - doc_begin, end[spans] - doc_begin, label[spans])
        return (
            self._excluded._replace(wrong=wrong, steps=steps_inside) if len(wrong.start) or len(steps_inside) else None
        )

    def _ask(self, question: str, group: RuleGroup, scores: ChainScores, clamp: Optional[Clamp], weights: Floats):
        copies = group.copies
        if copies is None or not self._excluded.costs_more(clamp):
            return super()._ask(question, group._replace(copies=None), scores, clamp, weights)
        widened, allowed = copies.widen(scores, clamp)
        values, expected = super()._ask(question, group, widened, allowed, weights)
        return values, copies.narrow(expected, len(scores.first), per_position=np.ndim(scores.transitions) == 3)


class RuledSegments(RuledStructure):
    """Semi-Markov chains under rules and without wrong spans. A wrong span is a listed segment, whose label gets the score -inf,
    or its cost."""

    @property
    def wrong(self) -> Segments:
        """The segments that are excluded, though the clamp allows them."""
        return self._excluded.wrong

    def _free_scores(self, starts: Ints) -> SegmentScores:
        longest: Any = self._longest  # int32[S]: only chains have none
        size = len(longest)
        token_zeros = np.zeros((int(starts[-1]), size))
        return SegmentScores(
            tokens=token_zeros,
            begins=token_zeros,
            ends=token_zeros,
            lengths=np.where(np.arange(1, longest.max() + 1)[:, None] <= longest, 0.0, -np.inf),
            spans=np.zeros((0, size)),
            transitions=np.zeros((size, size)),
            first=np.zeros(size),
            last=np.zeros(size),
            starts=starts,
        )

    def _answer(
        self, question: str, group: RuleGroup, scores: SegmentScores, clamp: Optional[SegmentClamp], weights: Floats
    ) -> tuple[Floats, SegmentScores]:
        """As `RuledStructure._answer`; wrong spans are impossible under a clamp, and have costs without one."""
        wrong, _, costs = self._excluded
        if not len(wrong.start) or not self._excluded.costs_more(clamp):
            return super()._answer(question, group, scores, clamp, weights)
        # A wrong span is listed, so that it has a score of its own, spans[n, state]
        with_wrong, was_listed, numbers = with_listed(scores, wrong.start, wrong.end)
        states = 1 + wrong.label  # state 0 is O
        price = -np.inf if clamp is not None or costs is None else costs[states]
        with_wrong.spans[numbers, states] += price
        values, expected = super()._answer(question, group, with_wrong, clamp, weights)
        # Of the derivatives, leave out those of spans that the model has not listed
        total = arrays.zeros(with_wrong)
        arrays.add(total, expected, group.tokens)
        total = total._replace(spans=total.spans[was_listed], listed=scores.listed)
        return values, arrays.cut(total, group.tokens, group.starts)


def _yielding(docs: Ints, rules: list[Rule], impossible: Callable[[Sequence[Rule]], Ints]) -> list[YieldingRule]:
    """Find the rules that documents cannot keep: each rule is added in turn, and yields if a document cannot keep it together
    with the earlier rules that the document keeps.

    impossible (Callable): Returns the documents that cannot keep all of the given rules.
    """
    yielding = []
    groups: list[tuple[list[Rule], Ints]] = [([], docs)]  # the rules kept so far, and the documents that keep them
    for rule in rules:
        # Each group is split into documents that keep the rule and documents that cannot
        split = []
        for kept, group_docs in groups:
            if not len(group_docs):
                continue
            unable = np.intersect1d(group_docs, impossible([*kept, rule]))
            conflicts = _conflicts(kept, rule, impossible) if len(unable) else {}
            # Without a single rule that conflicts, all kept rules do so together
            yielding += [YieldingRule(rule, doc, conflicts.get(doc, kept)) for doc in unable.tolist()]
            split.append(([*kept, rule], np.setdiff1d(group_docs, unable)))
            split.append((kept, unable))
        groups = split
    return yielding


def _conflicts(kept: list[Rule], rule: Rule, impossible: Callable[[Sequence[Rule]], Ints]) -> dict[int, list[Rule]]:
    """By document, the first kept rule that conflicts with a rule; an empty list if the document breaks the rule by itself."""
    conflicts: dict[int, list[Rule]] = {doc: [] for doc in impossible([rule]).tolist()}
    for beside in kept:
        for doc in impossible([beside, rule]).tolist():
            conflicts.setdefault(doc, [beside])
    return conflicts


def _group(
    docs: Ints,
    kept: frozenset[int],
    automata: frozenset[int],
    facts: PatternMatches,
    starts: Ints,
    doc_starts: Ints,
) -> RuleGroup:
    """Make a group of documents.

    docs (int64[d]): Numbers of the documents.
    kept (frozenset[int]), automata (frozenset[int]): Places of the rules that apply, and their automata.
    facts (PatternMatches), starts (int64[B + 1]), doc_starts (int64[D + 1]): Of the whole batch.
    """
    begin = doc_starts[docs]  # [d]
    end = doc_starts[docs + 1]  # [d]
    tokens = arrays.ranges(begin, end)
    first = np.searchsorted(starts[:-1], begin)  # [d] sequence
    sequences = arrays.ranges(first, np.searchsorted(starts[:-1], end))
    return RuleGroup(
        docs=docs,
        tokens=tokens,
        sequences=sequences,
        starts=np.cumsum(np.append(0, starts[sequences + 1] - starts[sequences])),
        doc_starts=np.cumsum(np.append(0, end - begin)),
        firsts=np.searchsorted(sequences, first),
        kept=kept,
        automata=automata,
        facts=facts.at(tokens),
    )
