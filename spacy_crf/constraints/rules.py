"""The kinds of rules: each defines the tags and neighbours that it forbids, or an automaton that accepts what keeps it."""

from itertools import chain
from typing import ClassVar

import numpy as np

from . import arguments
from .automaton import BREAK, make_automaton
from .rule import NO_SPAN, Rule, Violations

START = "START"

# ------------------------------------------------------------------------------------------------------ neighbours


class ForbidPair(Rule):
    """The second label never directly follows the first."""

    local = True
    required: ClassVar = {"labels": arguments.pair}

    @property
    def asks(self):
        """Whether one of the labels is ``O``: a span beside the other label then keeps the rule."""
        return NO_SPAN in self.arguments["labels"]

    def names(self):
        """The two labels, without ``O``."""
        return [name for name in self.arguments["labels"] if name != NO_SPAN]

    def violations(self, tags, found, opening, closing):
        """transitions[i, j]: i is a tag of the first label, j begins the second one."""
        before, after = self.arguments["labels"]
        pairs = self._is_label(tags, [before])[:, None] & self._is_label(tags, [after])[None, :]
        return Violations(transitions=pairs & ~tags.continues)


class AllowPairs(Rule):
    """Only these pairs of labels may stand directly beside each other."""

    local = True
    required: ClassVar = {"labels": arguments.pairs}

    def names(self):
        """The labels in all pairs, without ``O``."""
        return set(chain.from_iterable(self.arguments["labels"])) - {NO_SPAN}

    def violations(self, tags, found, opening, closing):
        """transitions[i, j]: j begins a span directly behind a span of i, and their pair is not among the allowed ones."""
        spans = tags.label_of >= 0
        pairs = spans[:, None] & spans[None, :] & ~tags.continues
        for before, after in self.arguments["labels"]:
            pairs &= ~(self._is_label(tags, [before])[:, None] & self._is_label(tags, [after])[None, :])
        return Violations(transitions=pairs)


class Follows(Rule):
    """A span must directly follow one of these labels, O, or the START of its sequence."""

    local = True
    required: ClassVar = {"label": arguments.labels, "after": arguments.named_labels}

    @property
    def asks(self):
        """Whether the label needs a span in front of it."""
        return NO_SPAN not in self.after

    def names(self):
        """The labels on both sides, without ``O`` and START."""
        return [*super().names(), *(name for name in self.after if name not in (NO_SPAN, START))]

    def violations(self, tags, found, opening, closing):
        """transitions[i, j]: j begins the label, and i is none of the labels in `after`; first[j]: START is none of them."""
        label = self._tags(tags)
        after = self._is_label(tags, [name for name in self.after if name != START])
        return Violations(
            transitions=label[None, :] & ~after[:, None] & ~tags.continues,
            first=label if START not in self.after else np.zeros_like(label),
        )


# --------------------------------------------------------------------------------------------------- rules about tokens


class _OnPattern(Rule):
    """Base of the rules that depend on the tokens."""

    local = True
    reads_pattern = True
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


class OnTokens(_OnPattern):
    """``only_on``: only matched tokens may have the label. ``always_on``: matched tokens must have the label (or one of these).
    ``never_on``: matched tokens must not have it."""

    by_token = True

    def violations(self, tags, found, opening, closing):
        """tags_at: (tokens, tags) that exclude each other."""
        is_of_label = self._tags(tags)
        tokens = ~found.covered if self.kind == "only_on" else found.covered
        return Violations(tags_at=(tokens, ~is_of_label if self.kind == "always_on" else is_of_label))


class AfterTokens(_OnPattern):
    """``only_after``: a token with the label directly follows a match, or begins its sequence. ``always_after``: the token behind
    a match must have the label (or one of these). ``never_after``: it must not have it."""

    def violations(self, tags, found, opening, closing):
        """tags_at: (tokens, tags) that exclude each other."""
        is_of_label = self._tags(tags)
        follows = np.append(False, found.ends)[: len(opening)] & ~opening  # [T] tokens behind a match
        tokens = ~follows & ~opening if self.kind == "only_after" else follows
        return Violations(tags_at=(tokens, ~is_of_label if self.kind == "always_after" else is_of_label))


class AtEdges(_OnPattern):
    """``starts_with``: spans of the label begin where a match begins. ``ends_with``: they end where a match ends."""

    @property
    def segment_scores(self):
        """The scores of segments that the rule changes: those of their first tokens, or of their last ones."""
        return "begins" if self.kind == "starts_with" else "ends"

    def violations(self, tags, found, opening, closing):
        """emissions[t, j]: no match begins (ends) at t, and either j always begins (ends) a span, or t is the first (last) token
        of a sequence. steps: pairs of tags between which a span begins (ends), at the tokens where no match does.
        """
        is_of_label = self._tags(tags)
        at_start = self.kind == "starts_with"
        unmatched = ~found.begins if at_start else ~found.ends  # [T] where no match begins (ends)
        edges = opening if at_start else closing  # [T]
        always = ~tags.continues.any(axis=0 if at_start else 1)  # tags that always begin, or end, a span
        sometimes = is_of_label & ~always  # tags that begin, or end, a span only beside some tags
        pairs = (sometimes[None, :] if at_start else sometimes[:, None]) & ~tags.continues
        # Steps are placed at their second tag; a span ends at the first tag of a pair
        second = unmatched if at_start else np.append(False, unmatched)[: len(unmatched)]
        return Violations(
            emissions=unmatched[:, None] & is_of_label & (always | edges[:, None]),
            steps=(second & ~opening, pairs) if pairs.any() else None,
        )


class Custom(Rule):
    """A registered function (``@spacy.registry.misc``) returns the tags that each token may have."""

    local = True
    reads_tags = True
    required: ClassVar = {"function": arguments.text}

    def violations(self, tags, found, opening, closing):
        """emissions[t, j]: the function does not allow tag j at token t."""
        return Violations(emissions=~found)


# ------------------------------------------------------------------------------------------------- with a memory


class SpanOrder(Rule):
    """The labels appear in this order; each may appear several times or not at all."""

    required: ClassVar = {"labels": arguments.order}
    optional: ClassVar = {"per": (arguments.scope, "sentence")}

    def automata(self, tags, most):
        """One automaton, whose state is the label that comes last in the order among those that have occurred."""
        labels = self.labels(tags, "labels")
        automaton = make_automaton(len(labels), tags.n_events)  # state: the furthest label so far
        for rank, label in enumerate(labels):
            event = tags.begins(label)
            automaton.next[: rank + 1, event] = rank
            automaton.charge(slice(rank + 1, None), event, self.price)
        return self._in_scope([automaton])


class Counted(Rule):
    """There are ``at_most``, ``at_least`` or ``exactly`` n spans of the label."""

    required: ClassVar = {"label": arguments.labels, "n": arguments.count}
    optional: ClassVar = {"per": (arguments.scope, "doc")}
    by_label: ClassVar = True

    @property
    def counts_to(self):
        """The number of spans in the rule."""
        return self.n

    def automata(self, tags, most):
        """A counter of spans for each label."""
        return self._in_scope([self._counter(tags, tags.begins(label), most) for label in self.labels(tags)])

    def _counter(self, tags, event, most):
        """An automaton that counts an event, and charges the price for each event above or below n, as the kind of rule says."""
        bounded_above = self.kind != "at_least"
        bounded_below = self.kind != "at_most"
        if self.n > most:
            # A document cannot have so many spans: a single state pays for n, and each span pays one back
            automaton = make_automaton(1, tags.n_events)
            if bounded_below and not self.hard:
                automaton.scores[0, event] = -self.price
            automaton.last[0] = self.price * self.n if bounded_below else 0.0
            return automaton
        # State: number of events so far, n and more
        automaton = make_automaton(self.n + 1, tags.n_events)
        automaton.next[:-1, event] += 1
        if bounded_above:
            automaton.charge(self.n, event, self.price)
        if bounded_below:
            automaton.last[:-1] = self.price * np.arange(self.n, 0, -1)
        return automaton


class InOnePiece(Rule):
    """The tokens of a label stand side by side, without others between them. Spans that touch are one piece."""

    required: ClassVar = {"label": arguments.labels}
    optional: ClassVar = {"per": (arguments.scope, "doc")}
    by_label: ClassVar = True

    def automata(self, tags, most):
        """For each label an automaton with three states: before, within and behind the piece."""
        return self._in_scope([self._piece(tags, label) for label in self.labels(tags)])

    def _piece(self, tags, label):
        """An automaton that charges the price where a token of the label is behind the piece."""
        _, within, behind = range(3)  # state 0 is before the piece
        events = [tags.begins(label), tags.inside(label)]
        automaton = make_automaton(3, tags.n_events)
        # Any event ends the piece, but a break between sentences does not, nor do the label's own events
        automaton.next[within] = behind
        automaton.next[within, BREAK] = within
        automaton.next[:, events] = within
        automaton.charge(behind, events, self.price)
        return automaton


class Implication(Rule):
    """If a label of ``if`` occurs, a label of ``then`` must occur too (``requires``), or must not (``excludes``)."""

    required: ClassVar = {"if": arguments.named_labels, "then": arguments.named_labels}
    optional: ClassVar = {"per": (arguments.scope, "doc")}

    def check(self):
        """Refuse a label that is both in `if` and in `then`."""
        if set(self.arguments["if"]) & set(self.arguments["then"]):
            return "'if' and 'then' name the same label"
        return None

    def automata(self, tags, most):
        """One automaton, which notes that a label of either side has occurred."""
        ifs = [tags.begins(label) for label in self.labels(tags, "if")]
        thens = [tags.begins(label) for label in self.labels(tags, "then")]
        make = self._requires if self.kind == "requires" else self._excludes
        return self._in_scope([make(tags.n_events, ifs, thens)])

    def _requires(self, n_events, ifs, thens):
        """An automaton that charges the price at the end if a label of `if` has occurred and no label of `then`."""
        neither, only_if, has_then = range(3)
        automaton = make_automaton(3, n_events)
        automaton.next[neither, ifs] = only_if
        automaton.next[[[neither], [only_if]], thens] = has_then
        automaton.last[only_if] = self.price
        return automaton

    def _excludes(self, n_events, ifs, thens):
        """An automaton that charges the price once, where a label of one side occurs after a label of the other side."""
        neither, only_if, only_then, both = range(4)
        automaton = make_automaton(4, n_events)
        for events, same_side, other_side in ((ifs, only_if, only_then), (thens, only_then, only_if)):
            automaton.next[neither, events] = same_side
            automaton.next[other_side, events] = both
            automaton.charge(other_side, events, self.price)
        return automaton


class Length(Rule):
    """Spans of the label have at least ``min`` and at most ``max`` tokens."""

    bounds_length = True
    by_label = True
    required: ClassVar = {"label": arguments.labels}
    optional: ClassVar = {"min": (arguments.count, 1), "max": (arguments.count, None)}

    def check(self):
        """Refuse a rule that nothing or everything keeps."""
        if self.max is not None and (self.max < self.min or self.max == 0):
            return f"no length is at least {self.min} and at most {self.max}"
        return "give it a 'min' or a 'max'" if self.min <= 1 and self.max is None else None

    @property
    def counts_to(self):
        """The largest length that needs a state of its own."""
        return max(self.min, self.max or 0)

    def automata(self, tags, most):
        """A counter of the tokens of a span for each label."""
        return [self._measure(tags, tags.begins(label), tags.inside(label), most) for label in self.labels(tags)]

    def broken_lengths(self, tags, longest):
        """broken[n, j]: j is a state of the label, and n + 1 is less than `min`, or more than `max`."""
        length = np.arange(1, longest + 1)
        is_broken = length < self.min
        if self.max is not None:
            is_broken |= length > self.max
        return is_broken[:, None] & self._tags(tags)

    def _measure(self, tags, begins, inside, most):
        """An automaton that counts the tokens of a span, and charges the price for a span that is too short or too long.

        begins (int), inside (int): The events of the label.
        """
        shortest = self.min
        longest = self.max if self.max is not None and self.max <= most else None
        # A span that would need more tokens than a document has is charged where it begins
        if shortest > most:
            automaton = make_automaton(1, tags.n_events)
            automaton.charge(0, begins, self.price)
            return automaton
        # State: number of tokens of the span so far, 0 outside; the last state stands for all lengths that need no distinction
        if longest is None:
            last_state = max(shortest, 1)
        elif self.hard:
            last_state = max(longest, 1)  # no token may follow there
        else:
            last_state = max(longest + 1, 1)  # the price was paid
        size = 1 + last_state
        automaton = make_automaton(size, tags.n_events)
        automaton.next[:] = 0
        automaton.next[:, begins] = 1
        automaton.next[1:, inside] = np.minimum(np.arange(2, size + 1), size - 1)
        automaton.charge(slice(1, shortest), np.arange(tags.n_events) != inside, self.price)
        automaton.last[1:shortest] = self.price
        if longest is not None:
            automaton.charge(longest, inside, self.price)
        return automaton


class SameTextSameLabel(Rule):
    """Spans with the same text have the same label."""

    global_ = True
    optional: ClassVar = {"per": (arguments.scope, "doc")}

    def check(self):
        """Refuse a weight: texts have no automaton that could count violations."""
        return None if self.hard else "it can't have a weight"


RULES: dict[str, type[Rule]] = {
    **{"forbid_pair": ForbidPair, "allow_pairs": AllowPairs, "follows": Follows},
    **dict.fromkeys(("only_on", "always_on", "never_on"), OnTokens),
    **dict.fromkeys(("only_after", "always_after", "never_after"), AfterTokens),
    **dict.fromkeys(("starts_with", "ends_with"), AtEdges),
    **{"custom": Custom, "order": SpanOrder},
    **dict.fromkeys(("at_most", "at_least", "exactly"), Counted),
    **dict.fromkeys(("requires", "excludes"), Implication),
    **{"in_one_piece": InOnePiece, "length": Length, "same_text_same_label": SameTextSameLabel},
}
