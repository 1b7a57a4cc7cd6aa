"""Training under rules, and without spans known to be wrong: sums and maxima over the remaining labellings of a batch.

A document whose own annotation breaks a rule is trained without that rule, since nothing could be learned from it otherwise. If
partial annotation can keep each of several rules, but not all together, the later rules are dropped, as in prediction.

"These tokens are no PER" excludes the labellings with precisely that span and label, and no others: a longer, a shorter or
another span of PER stays possible. No mask of single tokens expresses that, so tags get a memory: a span of PER that begins where
a wrong one begins is written in copies of the tags of PER, from which it can't end where the wrong one ends. Each labelling
is still one path, with the same score.

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
        """Ask whether excluded spans and steps have an effect: a clamp makes them impossible; without a clamp they have costs.

        clamp (Clamp or SegmentClamp): The labellings still allowed, or None.
        RETURNS (bool): Whether some labellings cost more, or are impossible.
        """
        return clamp is not None or (self.costs is not None and bool(self.costs.any()))


class TagCopies(NamedTuple):
    """The S tags of some sequences and C copies of tags, as S + C states."""

    tag_of: Ints  # [S + C]
    label_of: Ints  # [S + C] label of each state
    copy_of: Ints  # [S + C] number of the copy, 0 for the tags themselves
    goes_on: Bools  # [S + C, S + C] whether the second state continues the span of the first one
    opened: Ints  # [T, S + C] copy that a span of the state's label is on if it begins at the token
    kept: Ints  # [T, S + C] copy that a span is on at the token if it was in the state before
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
        # transitions[t, i, j] = transitions[t, tag of i, tag of j], -inf if j is not on the copy that the span is on at t,
        #     + prices[i] if a wrong span in i ends in front of t, + prices[j] if (i, j) is an excluded step at t
        begins = self.opened == self.copy_of  # [T, S + C] whether a span may begin in the state
        continues = self.kept[:, :, None] == self.copy_of  # [T, S + C, S + C] whether j may continue the span of i
        of_tags = np.asarray(scores.transitions)[..., tags[:, None], tags]
        transitions = np.where(np.where(self.goes_on, continues, begins[:, None, :]), of_tags, -np.inf)
        transitions += np.where(~self.goes_on & ~self.may_end[:-1, :, None], prices[:, None], 0.0)
        for token, label, goes_on in self.excluded.steps.tolist():
            transitions[token] += np.where((self.goes_on == goes_on) & (self.label_of == label), prices, 0.0)
        starts = self.starts[np.append(True, self.starts[1:] > self.starts[:-1])]  # without empty sequences
        emissions = np.ascontiguousarray(scores.emissions[:, tags])
        emissions[starts[1:] - 1] += np.where(self.may_end[starts[1:]], 0.0, prices)
        possible = np.ones(begins.shape, dtype=bool)
        possible[starts[:-1]] = begins[starts[:-1]]
        widened: Any = scores._replace(
            emissions=emissions, transitions=transitions, first=scores.first[tags], last=scores.last[tags]
        )
        if hasattr(widened, "orders"):  # n-grams are of tags; pruned labellings might include the annotation
            widened = widened._replace(orders=widened.orders._replace(digit_of=tags, keep=None))
        return widened, possible if clamp is None else possible & clamp[:, tags]

    def narrow(self, expected: ChainScores, n_tags: int, *, per_position: bool) -> ChainScores:
        """Sum derivatives of states up to derivatives of tags: expected[tag] = sum of expected[state] over the states of the tag.

        expected (ChainScores): Derivatives with respect to the scores of S + C states.
        n_tags (int): S.
        per_position (bool): Whether the transitions of the tags depend on the token.
        RETURNS (ChainScores): Derivatives with respect to the scores of S tags.
        """
        # expected[tag] = sum of expected[state] over the states of the tag
        of_tag = (self.tag_of[:, None] == np.arange(n_tags)).astype(np.float64)  # [S + C, S]
        transitions = expected.transitions if per_position else expected.transitions.sum(axis=0)
        return expected._replace(
            emissions=expected.emissions @ of_tag,
            transitions=of_tag.T @ transitions @ of_tag,
            first=expected.first @ of_tag,
            last=expected.last @ of_tag,
        )


def copy_tags(tags: SpanTags, excluded: Excluded, starts: Ints) -> TagCopies:
    """Make the copies of tags that the wrong spans of some sequences need.

    tags (SpanTags): How tags encode spans.
    excluded (Excluded): The wrong spans, and the steps.
    starts (int64[B + 1]): Where the sequences start.
    RETURNS (TagCopies): The tags and their copies.
    """
    # Wrong spans that begin at the same token with the same label share a copy: they differ in where they may not end
    ends: dict[tuple[int, int], list[int]] = {}  # ends of the wrong spans, by first token and label
    for begin, end, label in np.column_stack(excluded.wrong).tolist():
        ends.setdefault((begin, label), []).append(end)
    # Overlapping spans of one label that begin at different tokens need a copy each; others share one.
    free_at: dict[int, list[int]] = {}  # by label, the token from which on each copy is free
    numbers: dict[tuple[int, int], int] = {}  # number of the copy for the wrong spans, by first token and label
    for (begin, label), of_span in sorted(ends.items()):
        until = free_at.setdefault(label, [])
        copy = next((n for n, end in enumerate(until) if end <= begin), len(until))
        until[copy : copy + 1] = [max(of_span)]
        numbers[begin, label] = copy + 1
    # Tags in front, then the copies by label and number
    tags_of_copies = [np.arange(len(tags.label_of))]
    copies = [np.zeros(len(tags.label_of), dtype=np.int64)]
    for label, until in free_at.items():
        of_label = np.flatnonzero(tags.label_of == label)
        tags_of_copies.append(np.tile(of_label, len(until)))
        copies.append(np.repeat(1 + np.arange(len(until)), len(of_label)))
    tag_of = np.concatenate(tags_of_copies)  # [S + C]
    copy_of = np.concatenate(copies)  # [S + C]
    label_of = tags.label_of[tag_of]  # [S + C]
    opened = np.zeros((int(starts[-1]), len(tag_of)), dtype=np.int64)
    kept = np.zeros_like(opened)
    may_end = np.ones((len(opened) + 1, len(tag_of)), dtype=bool)
    for (begin, label), of_span in ends.items():
        copy = numbers[begin, label]
        on_copy = (label_of == label) & (copy_of == copy)
        opened[begin, label_of == label] = copy
        kept[begin + 1 : max(of_span), on_copy] = copy
        may_end[np.ix_(of_span, on_copy)] = False
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
    beside: Sequence[Rule]  # rules with which the annotation cannot keep this one; none if it breaks the rule by itself


class RuleGroup(NamedTuple):
    """Documents that are trained under the same rules."""

    docs: Ints  # [d] numbers of the documents
    tokens: Ints  # [n] places of their tokens
    sequences: Ints  # [b] numbers of the sequences
    starts: Ints  # [b + 1] where the sequences start
    doc_starts: Ints  # [d + 1]
    firsts: Ints  # [d] place in `sequences` of the first sequence of each document
    kept: frozenset[int]  # places of the rules
    automata: frozenset[int]
    facts: PatternMatches
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
        self._groups = self._grouped(facts, starts, doc_starts, [])
        self.broken = self._find_broken(facts, starts, doc_starts)
        if self.broken:
            self._groups = self._grouped(facts, starts, doc_starts, self.broken)

    def _grouped(
        self, facts: PatternMatches, starts: Ints, doc_starts: Ints, yielding: list[YieldingRule]
    ) -> list[RuleGroup]:
        """Group the documents that are trained under the same rules; a document with copies of tags is a group of its own."""
        # Documents with the same rules are evaluated together
        without: dict[int, set[int]] = {}
        for rule, d, _ in yielding:
            without.setdefault(d, set()).add(rule.place)
        groups: dict[tuple[frozenset[int], int], list[int]] = {}
        for d in np.flatnonzero(np.diff(doc_starts)).tolist():
            kept = self._rules.places - without.get(d, set())
            is_alone = self._copied_in(doc_starts[d : d + 2]) is not None
            groups.setdefault((kept, d if is_alone else -1), []).append(d)
        found = []
        for (kept, alone), docs in groups.items():
            automata = frozenset(self._rules.automata_of(kept))
            group = _group(np.array(docs), kept, automata, facts, starts, doc_starts)
            own = self._copied_in(doc_starts[alone : alone + 2]) if alone >= 0 else None
            if own is not None:
                group = group._replace(copies=copy_tags(self._rules.tags, own, group.starts))
            found.append(group)
        return found

    def _find_broken(self, facts: PatternMatches, starts: Ints, doc_starts: Ints) -> list[YieldingRule]:
        """Find the rules that each document is trained without. A document without any labelling breaks none."""
        hard = [rule for rule in self._rules.rules if rule.hard and not rule.global_]
        found: list[YieldingRule] = []
        if not hard:
            return found
        # With scores of 0 the best labelling has -inf exactly if no annotated labelling keeps the rules
        nothing = self._free_scores(starts)
        for group in self._groups:
            docs = self._impossible(group, nothing, self._rules.rules)
            if len(docs) < len(group.docs):
                group = _group(docs, frozenset(), frozenset(), facts, starts, doc_starts)
            if len(docs):
                impossible = partial(self._impossible, group, nothing)
                found += _yielding(np.setdiff1d(docs, impossible([])), hard, impossible)
        return found

    def _impossible(self, group: RuleGroup, nothing: PathScores, rules: Sequence[Rule]) -> Ints:
        """Documents of a group without an annotated labelling that keeps all of some rules."""
        kept = frozenset(rule.place for rule in rules)
        group = group._replace(kept=kept, automata=frozenset(self._rules.automata_of(kept)))
        # A group of documents that is impossible together is searched rule by rule
        values, _ = self._answer("viterbi_counts", group, nothing, self._clamp, np.ones(len(nothing.starts) - 1))
        sequences = np.flatnonzero(values == -np.inf)
        return group.docs[np.unique(np.searchsorted(group.doc_starts, group.starts[sequences], side="right") - 1)]

    def _refuse(self, rule: Rule) -> NoReturn:
        raise ValueError(
            Errors.CRF614.format(name=rule.name, limit=self._rules.most_states, what="training under rules")
        )

    # Methods that each structure adds

    def _free_scores(self, starts: Ints) -> PathScores:
        """Scores that are 0 for every labelling of the structure, and -inf elsewhere."""
        raise NotImplementedError

    def _copied_in(self, bounds: Ints) -> Optional[Excluded]:
        """Excluded spans and steps of a document that needs copies of tags; None for other documents."""
        return None

    # Methods common to all structures

    @property
    def signature(self) -> bytes:
        """Equal for equal rules, excluded spans and steps."""
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
        """The sums of a question over all groups."""
        n_sequences = len(scores.starts) - 1
        weights = np.ones(n_sequences) if weights is None else weights
        values = np.zeros(n_sequences)
        total = arrays.zeros(scores)
        for group in self._groups:
            values[group.sequences], expected = self._answer(question, group, scores, clamp, weights)
            arrays.add(total, expected, group.tokens)
        return values, total

    def _answer(self, question: str, group: RuleGroup, scores: Any, clamp: Any, weights: Floats) -> tuple[Floats, Any]:
        """Evaluate a question for a group, from the scores, clamp and weights of all sequences."""
        part = self._rules.apply(arrays.cut(scores, group.tokens, group.starts), group.facts, group.kept)
        return self._ask(question, group, part, arrays.cut_clamp(clamp, group.tokens), weights[group.sequences])

    def _ask(self, question: str, group: RuleGroup, scores: Any, clamp: Any, weights: Floats) -> tuple[Floats, Any]:
        """Evaluate a question for a group, from the scores, clamp and weights of the group's sequences."""
        annotated = None if group.copies is not None else arrays.cut_clamp(self._clamp, group.tokens)
        if not group.automata:
            return _asked(self.without_rules, question, scores, annotated, clamp, weights)
        joined = arrays.join_sequences(scores, clamp, group.doc_starts)
        graph = self._rules.graph(group.automata)
        if graph is None:  # with a rule that this annotation breaks, the product was smaller
            self._refuse(self._rules.automata[max(group.automata)].rule)
        if group.copies is not None:
            tag_of = np.append(group.copies.tag_of, len(self._rules.tags.label_of))
            graph = graph.over(copied(graph.graph, tag_of))
        else:
            annotated = arrays.join_sequences(scores, annotated, group.doc_starts).clamp
        of_docs, expected = _asked(graph, question, joined.scores, annotated, joined.clamp, weights[group.firsts])
        values = np.zeros(len(group.sequences))
        values[group.firsts] = of_docs
        return values, arrays.split(joined, expected, scores)


def _asked(
    structure: Structure,
    question: str,
    scores: Any,
    annotated: Optional[SomeClamp],
    clamp: Optional[SomeClamp],
    weights: Floats,
) -> tuple[Floats, Any]:
    """Evaluate a question. annotated: Clamp of the annotation, which pruning keeps; None if nothing is pruned."""
    if annotated is not None:
        scores = structure.prepare(scores, annotated=annotated)
    return getattr(structure, question)(scores, clamp=clamp, weights=weights)


class RuledChain(RuledStructure):
    """Linear chains, see `RuledStructure`: tags that are part of wrong spans have copies."""

    def _free_scores(self, starts: Ints) -> ChainScores:
        allowed = np.where(self._rules.allowed, 0.0, -np.inf)
        return ChainScores(
            emissions=np.zeros((int(starts[-1]), len(allowed) - 1)),
            transitions=allowed[:-1, :-1],
            first=allowed[-1, :-1],
            last=allowed[:-1, -1],
            starts=starts,
        )

    def _copied_in(self, bounds: Ints) -> Optional[Excluded]:
        first, last = bounds
        (begin, end, label), steps, _ = self._excluded
        # Spans and steps of the document, counted from its first token
        steps = steps[(steps[:, 0] >= first) & (steps[:, 0] < last)] - [first, 0, 0]
        of_doc = slice(*np.searchsorted(begin, bounds))
        wrong = Segments(begin[of_doc] - first, end[of_doc] - first, label[of_doc])
        return self._excluded._replace(wrong=wrong, steps=steps) if len(wrong.start) or len(steps) else None

    def _ask(self, question: str, group: RuleGroup, scores: ChainScores, clamp: Optional[Clamp], weights: Floats):
        copies = group.copies
        if copies is None or not self._excluded.costs_more(clamp):
            return super()._ask(question, group._replace(copies=None), scores, clamp, weights)
        widened, allowed = copies.widen(scores, clamp)
        values, expected = super()._ask(question, group, widened, allowed, weights)
        return values, copies.narrow(expected, len(scores.first), per_position=np.ndim(scores.transitions) == 3)


class RuledSegments(RuledStructure):
    """Semi-Markov chains, see `RuledStructure`. A span that is wrong with some label is a listed segment with score -inf for this
    label."""

    @property
    def wrong(self) -> Segments:
        """Segments that it excludes, though the clamp allows them."""
        return self._excluded.wrong

    def _free_scores(self, starts: Ints) -> SegmentScores:
        longest: Any = self._longest  # int32[S]: only chains have none
        size = len(longest)
        of_tokens = np.zeros((int(starts[-1]), size))
        return SegmentScores(
            tokens=of_tokens,
            begins=of_tokens,
            ends=of_tokens,
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
        wrong, _, costs = self._excluded
        if not len(wrong.start) or not self._excluded.costs_more(clamp):
            return super()._answer(question, group, scores, clamp, weights)
        # A wrong span is listed, so that it has a score of its own, spans[n, state]
        listing, own, numbers = with_listed(scores, wrong.start, wrong.end)
        price = -np.inf if clamp is not None or costs is None else costs[1 + wrong.label]
        listing.spans[numbers, 1 + wrong.label] += price
        values, expected = super()._answer(question, group, listing, clamp, weights)
        total = arrays.zeros(listing)
        arrays.add(total, expected, group.tokens)
        total = total._replace(spans=total.spans[own], listed=scores.listed)
        return values, arrays.cut(total, group.tokens, group.starts)


def _yielding(docs: Ints, rules: list[Rule], impossible: Callable[[Sequence[Rule]], Ints]) -> list[YieldingRule]:
    """Find the rules, in their order, that documents cannot keep together with the earlier rules that they keep.

    impossible (Callable): Returns the documents that cannot keep all of some rules.
    """
    found = []
    groups: list[tuple[list[Rule], Ints]] = [([], docs)]  # the rules kept so far, and the documents that keep them
    for rule in rules:
        # Each group is split into documents that keep the rule and documents that cannot
        split = []
        for kept, of_group in groups:
            if not len(of_group):
                continue
            without = np.intersect1d(of_group, impossible([*kept, rule]))
            conflicts = _conflicts(kept, rule, impossible) if len(without) else {}
            found += [YieldingRule(rule, d, conflicts.get(d, kept)) for d in without.tolist()]
            split.append(([*kept, rule], np.setdiff1d(of_group, without)))
            split.append((kept, without))
        groups = split
    return found


def _conflicts(kept: list[Rule], rule: Rule, impossible: Callable[[Sequence[Rule]], Ints]) -> dict[int, list[Rule]]:
    """By document, the first kept rule that a rule conflicts with; an empty list if the document breaks the rule by itself."""
    conflicts: dict[int, list[Rule]] = {d: [] for d in impossible([rule]).tolist()}
    for beside in kept:
        for d in impossible([beside, rule]).tolist():
            conflicts.setdefault(d, [beside])
    return conflicts


def _group(
    docs: Ints,
    kept: frozenset[int],
    automata: frozenset[int],
    facts: PatternMatches,
    starts: Ints,
    doc_starts: Ints,
) -> RuleGroup:
    """Make a group of documents, from the facts, sequences and documents of the whole batch."""
    begin = doc_starts[docs]  # [d]
    end = doc_starts[docs + 1]  # [d]
    tokens = arrays.ranges(begin, end)
    first = np.searchsorted(starts[:-1], begin)
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
