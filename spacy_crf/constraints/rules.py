"""The kinds of rules: which tags and neighbours each forbids, or which automaton accepts what keeps it."""

from typing import ClassVar

import numpy as np

from . import arguments
from .automaton import make_automaton
from .rule import NO_SPAN, Rule, Violations

START = "START"

# ------------------------------------------------------------------------------------------------------ neighbours


class ForbidPair(Rule):
    """The second label does not directly follow the first."""

    kind, local = "forbid_pair", True
    required: ClassVar = {"labels": arguments.pair}

    def names(self):
        return [name for name in self.arguments["labels"] if name != NO_SPAN]

    def violations(self, tags, found, opening, closing):
        before, after = self.arguments["labels"]
        pairs = self._is_label(tags, [before])[:, None] & self._is_label(tags, [after])[None, :]
        return Violations(transitions=pairs & ~tags.continues)


class AllowPairs(Rule):
    """Spans stand directly beside each other only in these pairs."""

    kind, local = "allow_pairs", True
    required: ClassVar = {"labels": arguments.pairs}

    def names(self):
        return {name for pair in self.arguments["labels"] for name in pair if name != NO_SPAN}

    def violations(self, tags, found, opening, closing):
        spans = tags.label_of >= 0
        pairs = spans[:, None] & spans[None, :] & ~tags.continues
        for before, after in self.arguments["labels"]:
            pairs &= ~(self._is_label(tags, [before])[:, None] & self._is_label(tags, [after])[None, :])
        return Violations(transitions=pairs)


class Follows(Rule):
    """A span is directly preceded by one of these labels, by O, or by the START of its sequence."""

    kind, local = "follows", True
    required: ClassVar = {"label": arguments.labels, "after": arguments.named_labels}

    def names(self):
        return [*super().names(), *(name for name in self.after if name not in (NO_SPAN, START))]

    def violations(self, tags, found, opening, closing):
        label = self._tags(tags)
        after = self._is_label(tags, [name for name in self.after if name != START])
        first = label if START not in self.after else np.zeros_like(label)
        return Violations(transitions=label[None, :] & ~after[:, None] & ~tags.continues, first=first)


# ---------------------------------------------------------------------------------------------------- what is where


class _OnPattern(Rule):
    """Base of the rules that look at the tokens."""

    local, reads_pattern = True, True
    required: ClassVar = {"label": arguments.labels}
    optional: ClassVar = {
        "pattern": (arguments.patterns, None),
        "phrases": (arguments.phrases, None),
        "attr": (arguments.text, "ORTH"),
    }

    def check(self):
        if (self.pattern is None) == (self.phrases is None):
            return "give it a 'pattern' or 'phrases', one of them"
        return None

    def _at_edges(self, tags, wrong, edges, always, steps):
        """Tags of the label that are edges of spans at wrong tokens: those that always are, or at the edge of a sequence, or
        beside another tag (steps)."""
        emissions = wrong[:, None] & self._tags(tags) & (always | edges[:, None])
        return Violations(emissions=emissions, steps=steps if steps[1].any() else None)


class _OnTokens(_OnPattern):
    """Base of the rules about each matched token, or each other token, by itself."""

    by_token = True
    at_matches: ClassVar[bool]  # whether matched tokens break the rule, or the others
    having_label: ClassVar[bool]  # by tags of the label, or by other tags

    def violations(self, tags, found, opening, closing):
        of_label = self._tags(tags)
        wrong_tags = of_label if self.having_label else ~of_label
        return Violations(tags_at=(found.covered if self.at_matches else ~found.covered, wrong_tags))


class OnlyOn(_OnTokens):
    """The label is given to matched tokens only."""

    kind, at_matches, having_label = "only_on", False, True


class AlwaysOn(_OnTokens):
    """Matched tokens have this label (one of these)."""

    kind, at_matches, having_label = "always_on", True, False


class NeverOn(_OnTokens):
    """Matched tokens do not have this label."""

    kind, at_matches, having_label = "never_on", True, True


class StartsWith(_OnPattern):
    """A span of the label begins where a match begins."""

    kind, segment_scores = "starts_with", "begins"

    def violations(self, tags, found, opening, closing):
        always = ~tags.continues.any(axis=0)  # tags that begin a span wherever they stand
        pairs = (self._tags(tags) & ~always)[None, :] & ~tags.continues
        return self._at_edges(tags, ~found.begins, opening, always, (~found.begins & ~opening, pairs))


class EndsWith(_OnPattern):
    """A span of the label ends where a match ends."""

    kind, segment_scores = "ends_with", "ends"

    def violations(self, tags, found, opening, closing):
        always = ~tags.continues.any(axis=1)  # tags that end a span wherever they stand
        pairs = (self._tags(tags) & ~always)[:, None] & ~tags.continues
        behind_wrong = np.append(False, ~found.ends)[: len(found.ends)]
        return self._at_edges(tags, ~found.ends, closing, always, (behind_wrong & ~opening, pairs))


class Custom(Rule):
    """A registered function says which tags each token may have (``@spacy.registry.misc``)."""

    kind, local, reads_tags = "custom", True, True
    required: ClassVar = {"function": arguments.text}

    def violations(self, tags, found, opening, closing):
        return Violations(emissions=~found)


# ------------------------------------------------------------------------------------------------- with a memory


class SpanOrder(Rule):
    """The labels appear in this order; each may appear several times or not at all."""

    kind = "order"
    required: ClassVar = {"labels": arguments.order}
    optional: ClassVar = {"per": (arguments.scope, "sentence")}

    def names(self):
        return self.arguments["labels"]

    def automata(self, tags, most):
        labels = self.labels(tags, "labels")
        automaton = make_automaton(len(labels), tags.n_events)  # state: the furthest label so far
        for rank, label in enumerate(labels):
            event = tags.begins(label)
            automaton.next[: rank + 1, event] = rank
            automaton.charge(slice(rank + 1, None), event, self.price)
        return self._in_scope([automaton])


class _Counted(Rule):
    """Base of the rules about how many spans of each label there are."""

    required: ClassVar = {"label": arguments.labels, "n": arguments.count}
    optional: ClassVar = {"per": (arguments.scope, "doc")}
    by_label: ClassVar = True
    at_most: ClassVar[bool] = False
    at_least: ClassVar[bool] = False

    @property
    def counts_to(self):
        return self.n

    def automata(self, tags, most):
        return self._in_scope([self._counter(tags, tags.begins(label), most) for label in self.labels(tags)])

    def _counter(self, tags, event, most):
        if self.n > most:  # so many there can't be
            automaton = make_automaton(1, tags.n_events)
            if self.at_least and not self.hard:
                automaton.scores[0, event] = -self.price
            automaton.last[0] = self.price * self.n if self.at_least else 0.0
            return automaton
        automaton = make_automaton(self.n + 1, tags.n_events)
        automaton.next[:-1, event] += 1
        if self.at_most:
            automaton.charge(self.n, event, self.price)
        if self.at_least:
            automaton.last[:-1] = self.price * np.arange(self.n, 0, -1)
        return automaton


class AtMost(_Counted):
    """There are at most n spans of the label."""

    kind, at_most = "at_most", True


class AtLeast(_Counted):
    """There are at least n spans of the label."""

    kind, at_least = "at_least", True


class Exactly(_Counted):
    """There are exactly n spans of the label."""

    kind, at_most, at_least = "exactly", True, True


class _Implication(Rule):
    required: ClassVar = {"if": arguments.named_labels, "then": arguments.named_labels}
    optional: ClassVar = {"per": (arguments.scope, "doc")}

    def names(self):
        return [*self.arguments["if"], *self.arguments["then"]]

    def check(self):
        if set(self.arguments["if"]) & set(self.arguments["then"]):
            return "'if' and 'then' name the same label"
        return None

    def _events(self, tags, argument):
        return [tags.begins(label) for label in self.labels(tags, argument)]


class Requires(_Implication):
    """Where one label occurs, another occurs too."""

    kind = "requires"

    def automata(self, tags, most):
        nothing, asked, given = range(3)
        automaton = make_automaton(3, tags.n_events)
        automaton.next[nothing, self._events(tags, "if")] = asked
        automaton.next[[[nothing], [asked]], self._events(tags, "then")] = given
        automaton.last[asked] = self.price
        return self._in_scope([automaton])


class Excludes(_Implication):
    """Where one label occurs, another does not."""

    kind = "excludes"

    def automata(self, tags, most):
        nothing, one, other, both = range(4)
        automaton = make_automaton(4, tags.n_events)
        for argument, state, against in (("if", one, other), ("then", other, one)):
            events = self._events(tags, argument)
            automaton.next[nothing, events] = state
            automaton.next[against, events] = both
            automaton.charge(against, events, self.price)
        return self._in_scope([automaton])


class Length(Rule):
    """Spans of the label have so many tokens."""

    kind, bounds_length, by_label = "length", True, True
    required: ClassVar = {"label": arguments.labels}
    optional: ClassVar = {"min": (arguments.count, 1), "max": (arguments.count, None)}

    def check(self):
        if self.max is not None and (self.max < self.min or self.max == 0):
            return f"no length is at least {self.min} and at most {self.max}"
        return "give it a 'min' or a 'max'" if self.min <= 1 and self.max is None else None

    @property
    def counts_to(self):
        return max(self.min, self.max or 0)

    def automata(self, tags, most):
        return [self._measure(tags, tags.begins(label), tags.inside(label), most) for label in self.labels(tags)]

    def broken_lengths(self, tags, longest):
        length = np.arange(1, longest + 1)
        wrong = (length < self.min) | (length > (longest if self.max is None else self.max))
        return wrong[:, None] & self._tags(tags)

    def _measure(self, tags, begins, inside, most):
        # State: tokens of the span so far, 0 outside; the last one stands for all lengths that need no distinction. A span that
        # would have to be longer than any is too short where it begins.
        shortest, longest = self.min, self.max if self.max is not None and self.max <= most else None
        if shortest > most:
            automaton = make_automaton(1, tags.n_events)
            automaton.charge(0, begins, self.price)
            return automaton
        size = 1 + max(shortest if longest is None else longest if self.hard else longest + 1, 1)
        automaton = make_automaton(size, tags.n_events)
        automaton.next[:], automaton.next[:, begins] = 0, 1
        automaton.next[1:, inside] = np.minimum(np.arange(2, size + 1), size - 1)
        automaton.charge(slice(1, shortest), np.arange(tags.n_events) != inside, self.price)
        automaton.last[1:shortest] = self.price
        if longest is not None:
            automaton.charge(longest, inside, self.price)
        return automaton


class SameTextSameLabel(Rule):
    """Spans with the same text have the same label."""

    kind, global_ = "same_text_same_label", True
    optional: ClassVar = {"per": (arguments.scope, "doc")}

    def check(self):
        return None if self.hard else "it can't have a weight"


RULES: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        *(ForbidPair, AllowPairs, Follows),
        *(OnlyOn, AlwaysOn, NeverOn, StartsWith, EndsWith, Custom),
        *(SpanOrder, AtMost, AtLeast, Exactly, Requires, Excludes, Length, SameTextSameLabel),
    )
}  # by their kinds
