"""The rules that users write, and what each of them means: which single steps it forbids, or which automaton keeps it.

A rule is a plain table: ``{"rule": "at_most", "label": "ZIP", "n": 1}``. Every rule may have a ``name``, for messages, and a
``weight``: without one it is hard, with one each place where it is broken costs that much in log-odds (a negative weight is
a bonus). ``label`` is one label, a list of labels, or "*" for all of them; rules about how often or how long say it of
each label by itself.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import Errors
from ..types import Floats
from .automaton import Automaton, SpanTags, make_automaton, per_sentence

Table = dict[str, Any]
RULES: dict[str, type["Rule"]] = {}  # by their kinds: the classes below that have one
NO_SPAN, START = "O", "START"
_LARGEST_WEIGHT = 1e9  # log-odds: sums of such prices stay numbers
_DEEPEST = 20  # of tables inside of tables


class Steps(NamedTuple):
    """Pairs of tags that break a rule at some tokens only."""

    tokens: NDArray[np.bool_]  # [T] where the second tag stands
    pairs: NDArray[np.bool_]  # [S, S]


class Broken(NamedTuple):
    """What breaks a rule about tokens and neighbours; None for nothing."""

    emissions: Optional[NDArray[np.bool_]] = None  # [T, S]
    transitions: Optional[NDArray[np.bool_]] = None  # [S, S]
    first: Optional[NDArray[np.bool_]] = None  # [S]
    steps: Sequence[Steps] = ()
    # bool[T] and bool[S]: these tags at these tokens, in place of emissions, of which they are a small part
    tags_at: Optional[tuple[NDArray[np.bool_], NDArray[np.bool_]]] = None

    @property
    def on_tokens(self) -> bool:
        return self.emissions is not None or self.tags_at is not None

    def add_price(self, scores: Floats, price: float) -> None:
        """Adds the price to the scores of states at tokens (float64[T, S]) where the rule is broken, in place."""
        if self.emissions is not None:
            scores[self.emissions] += price
        if self.tags_at is not None:
            tokens, tags = map(np.flatnonzero, self.tags_at)
            scores[tokens[:, np.newaxis], tags] += price


@dataclass
class Rule:
    """Base of the rules.

    table: What the user wrote; it is saved with the model.
    place (int): Place in the list of rules.
    weight (Optional[float]): What it costs to break the rule once; None if it must not be broken.
    """

    table: Table
    place: int
    name: str
    weight: Optional[float]
    arguments: dict[str, Any] = field(repr=False)

    kind: ClassVar[str] = ""
    required: ClassVar[dict[str, Callable]] = {}
    optional: ClassVar[dict[str, tuple[Callable, Any]]] = {}  # reader and default

    def __init_subclass__(cls) -> None:
        if cls.kind:
            RULES[cls.kind] = cls

    @property
    def hard(self) -> bool:
        return self.weight is None

    @property
    def price(self) -> float:
        """Score of breaking the rule once."""
        return -np.inf if self.weight is None else -self.weight

    def __getattr__(self, name: str) -> Any:
        arguments = self.__dict__.get("arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(name)

    # What a rule says of itself; each overrides what applies.

    def check(self) -> Optional[str]:
        """What is wrong about the arguments together."""
        return None

    def names(self) -> Iterable[str]:
        """All labels that the rule names."""
        return [] if self.arguments.get("label") in (None, "*") else self.label

    reads_pattern: ClassVar[bool] = False  # needs a Match
    reads_tags: ClassVar[bool] = False  # needs what a registered function allows: bool[T, S]
    local: ClassVar[bool] = False  # forbids tokens and steps, without a memory
    by_token: ClassVar[bool] = False  # of tokens, each by itself: what the pattern says of a token is all it asks for
    global_: ClassVar[bool] = False  # no small automaton holds it
    by_label: ClassVar[bool] = False  # says it of each label by itself: one automaton for each
    segment_scores: ClassVar[str] = "tokens"  # what its mask is for, of a segment: "tokens", "begins" or "ends"
    bounds_length: ClassVar[bool] = False  # forbids some lengths of segments, see `broken_lengths`

    def broken(self, tags: SpanTags, found: Any, opening: NDArray[np.bool_], closing: NDArray[np.bool_]) -> Broken:
        """What breaks the rule (for local rules).

        found: The Match, or the allowed tags.
        opening, closing (bool[T]): First and last tokens of sequences.
        """
        raise NotImplementedError

    @property
    def in_sentence(self) -> bool:
        """Whether what it says of a sentence does not depend on the others."""
        return self.arguments.get("per") == "sentence" or self.bounds_length

    @property
    def counts_to(self) -> int:
        """The largest number that its automata count to."""
        return 0

    def automata(self, tags: SpanTags, most: int) -> list[Automaton]:
        """Automata that together accept what keeps the rule (for rules with a memory).

        most (int): Tokens of the longest document that they are for: what only longer ones can reach they don't count.
        """
        return []

    def broken_lengths(self, tags: SpanTags, longest: int) -> NDArray[np.bool_]:
        """Lengths of segments that break the rule (for rules that bound it): bool[longest, S]."""
        raise NotImplementedError

    def labels(self, tags: SpanTags, argument: str = "label") -> list[int]:
        value = self.arguments[argument]
        return list(range(len(tags.labels))) if value == "*" else [tags.labels.index(name) for name in value]

    def _tags(self, tags: SpanTags) -> NDArray[np.bool_]:
        """bool[S]: tags of the labels that it is about."""
        chosen = np.zeros(len(tags.labels) + 1, dtype=bool)
        chosen[self.labels(tags)] = True
        return chosen[tags.label_of]  # the last is for -1, no label

    def _is_label(self, tags: SpanTags, names: Iterable[str]) -> NDArray[np.bool_]:
        """bool[S]: tags of the named labels; O stands for tags outside of all spans."""
        numbers = [-1 if name == NO_SPAN else tags.labels.index(name) for name in names]
        return np.isin(tags.label_of, numbers)

    def _in_scope(self, automata: list[Automaton]) -> list[Automaton]:
        return [per_sentence(automaton) if self.per == "sentence" else automaton for automaton in automata]


# ------------------------------------------------------------------------------------------------- reading arguments


class _Refused(Exception):
    """What a reader of arguments wants instead."""


def _is_list(value, is_item):
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_item, value))


def _is_name(value):
    return isinstance(value, str) and value != ""


def _text(value):
    if not _is_name(value):
        raise _Refused("text")
    return value


def _labels(value):
    """One label or several: a list; "*" stays."""
    if value == "*":
        return value
    names = [value] if isinstance(value, str) else value
    if not _is_list(names, _is_name):
        raise _Refused('a label, a list of labels, or "*"')
    return list(names)


def _named_labels(value):
    names = _labels(value)
    if names == "*":
        raise _Refused("a label or a list of labels")
    return names


def _pair(value):
    if not _is_list(value, _is_name) or len(value) != 2:
        raise _Refused("two labels")
    return list(value)


def _pairs(value):
    if not _is_list(value, lambda pair: True):
        raise _Refused("a list of pairs of labels")
    return [_pair(pair) for pair in value]


def _order(value):
    names = _named_labels(value)
    if len(names) < 2 or len(set(names)) < len(names):
        raise _Refused("two different labels or more")
    return names


def _count(value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Refused("a whole number, at least 0")
    return value


def _scope(value):
    if value not in ("doc", "sentence"):
        raise _Refused("'doc' or 'sentence'")
    return value


def _pattern(value):
    patterns = [value] if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict) else value
    if not _is_list(patterns, lambda pattern: _is_list(pattern, lambda token: isinstance(token, dict))):
        raise _Refused("a Matcher pattern (a list of token tables), or a list of such patterns")
    return [list(pattern) for pattern in patterns]


def _phrases(value):
    phrases = [value] if isinstance(value, str) else value
    if not _is_list(phrases, _is_name):
        raise _Refused("a list of texts")
    return list(phrases)


# ------------------------------------------------------------------------------------------------------ neighbours


class ForbidPair(Rule):
    """The second label does not directly follow the first."""

    kind, local = "forbid_pair", True
    required: ClassVar = {"labels": _pair}

    def names(self):
        return [name for name in self.arguments["labels"] if name != NO_SPAN]

    def broken(self, tags, found, opening, closing):
        before, after = self.arguments["labels"]
        pairs = self._is_label(tags, [before])[:, None] & self._is_label(tags, [after])[None, :]
        return Broken(transitions=pairs & ~tags.continues)


class AllowPairs(Rule):
    """Spans stand directly beside each other only in these pairs."""

    kind, local = "allow_pairs", True
    required: ClassVar = {"labels": _pairs}

    def names(self):
        return {name for pair in self.arguments["labels"] for name in pair if name != NO_SPAN}

    def broken(self, tags, found, opening, closing):
        spans = tags.label_of >= 0
        pairs = spans[:, None] & spans[None, :] & ~tags.continues
        for before, after in self.arguments["labels"]:
            pairs &= ~(self._is_label(tags, [before])[:, None] & self._is_label(tags, [after])[None, :])
        return Broken(transitions=pairs)


class Follows(Rule):
    """A span is directly preceded by one of these labels, by O, or by the START of its sequence."""

    kind, local = "follows", True
    required: ClassVar = {"label": _labels, "after": _named_labels}

    def names(self):
        return [*super().names(), *(name for name in self.after if name not in (NO_SPAN, START))]

    def broken(self, tags, found, opening, closing):
        label = self._tags(tags)
        after = self._is_label(tags, [name for name in self.after if name != START])
        first = label if START not in self.after else np.zeros_like(label)
        return Broken(transitions=label[None, :] & ~after[:, None] & ~tags.continues, first=first)


# ---------------------------------------------------------------------------------------------------- what is where


class _OnPattern(Rule):
    """Base of the rules that look at the tokens."""

    local, reads_pattern = True, True
    required: ClassVar = {"label": _labels}
    optional: ClassVar = {"pattern": (_pattern, None), "phrases": (_phrases, None), "attr": (_text, "ORTH")}

    def check(self):
        if (self.pattern is None) == (self.phrases is None):
            return "give it a 'pattern' or 'phrases', one of them"
        return None


class OnlyOn(_OnPattern):
    """The label is given to matched tokens only."""

    kind, by_token = "only_on", True

    def broken(self, tags, found, opening, closing):
        return Broken(tags_at=(~found.covered, self._tags(tags)))


class AlwaysOn(_OnPattern):
    """Matched tokens have this label (one of these)."""

    kind, by_token = "always_on", True

    def broken(self, tags, found, opening, closing):
        return Broken(tags_at=(found.covered, ~self._tags(tags)))


class NeverOn(_OnPattern):
    """Matched tokens do not have this label."""

    kind, by_token = "never_on", True

    def broken(self, tags, found, opening, closing):
        return Broken(tags_at=(found.covered, self._tags(tags)))


class StartsWith(_OnPattern):
    """A span of the label begins where a match begins."""

    kind, segment_scores = "starts_with", "begins"

    def broken(self, tags, found, opening, closing):
        wrong, label = ~found.begins, self._tags(tags)
        always = label & ~tags.continues.any(axis=0)  # tags that begin a span wherever they stand
        emissions = wrong[:, None] & (always | (label & opening[:, None]))
        pairs = (label & ~always)[None, :] & ~tags.continues
        return Broken(emissions=emissions, steps=[Steps(wrong & ~opening, pairs)] if pairs.any() else ())


class EndsWith(_OnPattern):
    """A span of the label ends where a match ends."""

    kind, segment_scores = "ends_with", "ends"

    def broken(self, tags, found, opening, closing):
        wrong, label = ~found.ends, self._tags(tags)
        always = label & ~tags.continues.any(axis=1)  # tags that end a span wherever they stand
        emissions = wrong[:, None] & (always | (label & closing[:, None]))
        pairs = (label & ~always)[:, None] & ~tags.continues
        behind_wrong = np.zeros_like(wrong)
        behind_wrong[1:] = wrong[:-1]
        return Broken(emissions=emissions, steps=[Steps(behind_wrong & ~opening, pairs)] if pairs.any() else ())


class Custom(Rule):
    """A registered function says which tags each token may have (``@spacy.registry.misc``)."""

    kind, local, reads_tags = "custom", True, True
    required: ClassVar = {"function": _text}

    def broken(self, tags, found, opening, closing):
        return Broken(emissions=~found)


# ------------------------------------------------------------------------------------------------- with a memory


class Order(Rule):
    """The labels appear in this order; each may appear several times or not at all."""

    kind = "order"
    required: ClassVar = {"labels": _order}
    optional: ClassVar = {"per": (_scope, "sentence")}

    def names(self):
        return self.arguments["labels"]

    def automata(self, tags, most):
        labels = self.labels(tags, "labels")
        steps, prices = [], []
        for state in range(len(labels)):  # the furthest label so far
            for rank, label in enumerate(labels):
                event = tags.begins(label)
                if rank >= state:
                    steps.append((state, event, rank))
                elif self.hard:
                    steps.append((state, event, -1))
                else:
                    prices.append((state, event, self.price))
        return self._in_scope([make_automaton(len(labels), tags.n_events, steps, prices=prices)])


class _Counted(Rule):
    """Base of the rules about how many spans of each label there are."""

    required: ClassVar = {"label": _labels, "n": _count}
    optional: ClassVar = {"per": (_scope, "doc")}
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
            priced = self.at_least and not self.hard
            automaton = make_automaton(1, tags.n_events, [], prices=[(0, event, -self.price)] if priced else ())
            automaton.last[0] = self.price * self.n if self.at_least else 0.0
            return automaton
        automaton = make_automaton(self.n + 1, tags.n_events, [])
        automaton.next[:-1, event] += 1
        if self.at_most and self.hard:
            automaton.next[self.n, event] = -1
        elif self.at_most:
            automaton.scores[self.n, event] = self.price
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
    required: ClassVar = {"if": _named_labels, "then": _named_labels}
    optional: ClassVar = {"per": (_scope, "doc")}

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
        steps = [(nothing, event, asked) for event in self._events(tags, "if")]
        steps += [(state, event, given) for state in (nothing, asked) for event in self._events(tags, "then")]
        automaton = make_automaton(3, tags.n_events, steps)
        automaton.last[asked] = self.price
        return self._in_scope([automaton])


class Excludes(_Implication):
    """Where one label occurs, another does not."""

    kind = "excludes"

    def automata(self, tags, most):
        nothing, one, other, both = range(4)
        steps, prices = [], []
        for argument, state, against in (("if", one, other), ("then", other, one)):
            for event in self._events(tags, argument):
                steps.append((nothing, event, state))
                steps.append((against, event, -1 if self.hard else both))
                if not self.hard:
                    prices.append((against, event, self.price))
        return self._in_scope([make_automaton(4, tags.n_events, steps, prices=prices)])


class Length(Rule):
    """Spans of the label have so many tokens."""

    kind, bounds_length, by_label = "length", True, True
    required: ClassVar = {"label": _labels}
    optional: ClassVar = {"min": (_count, 1), "max": (_count, None)}

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
            step = [(0, begins, -1)] if self.hard else []
            return make_automaton(1, tags.n_events, step, prices=[] if self.hard else [(0, begins, self.price)])
        size = 1 + max(shortest if longest is None else longest if self.hard else longest + 1, 1)
        automaton = make_automaton(size, tags.n_events, [])
        automaton.next[:], automaton.next[:, begins] = 0, 1
        automaton.next[1:, inside] = np.minimum(np.arange(2, size + 1), size - 1)
        ends = np.arange(tags.n_events) != inside
        if self.hard:
            automaton.next[1:shortest, ends] = -1
        else:
            automaton.scores[1:shortest, ends] = self.price
        automaton.last[1:shortest] = self.price
        if longest is not None and self.hard:
            automaton.next[longest, inside] = -1
        elif longest is not None:
            automaton.scores[longest, inside] = self.price
        return automaton


class SameTextSameLabel(Rule):
    """Spans with the same text have the same label."""

    kind, global_ = "same_text_same_label", True
    optional: ClassVar = {"per": (_scope, "doc")}

    def check(self):
        return None if self.hard else "it can't have a weight"


# ------------------------------------------------------------------------------------------------- reading rules


def read_rule(table: Table, place: int = 0) -> Rule:
    """A rule from the table that a user wrote.

    place (int): Its place in the list of rules, from 0.
    RAISES (ValueError): With what is wrong about it, and what would be right.
    """
    if not isinstance(table, dict) or not isinstance(table.get("rule"), str):
        raise ValueError(Errors.CRF601.format(place=place + 1, rule=table))
    reason = _not_plain(table)
    if reason:
        raise ValueError(Errors.CRF621.format(place=place + 1, rule=table, reason=reason))
    kind = RULES.get(table["rule"])
    if kind is None:
        raise ValueError(Errors.CRF602.format(place=place + 1, rule=table["rule"], known=", ".join(RULES)))
    name = table.get("name", f"{place + 1}: {table['rule']}")
    if not isinstance(name, str) or not name:
        raise ValueError(Errors.CRF604.format(name=place + 1, argument="name", value=name, wanted="text"))
    readers = {**kind.required, **{argument: reader for argument, (reader, _) in kind.optional.items()}}
    unknown = [argument for argument in table if argument not in readers and argument not in ("rule", "name", "weight")]
    missing = [argument for argument in kind.required if table.get(argument) is None]
    if unknown or missing:
        problem = f"unknown: {', '.join(map(str, unknown))}" if unknown else f"missing: {', '.join(missing)}"
        known = ", ".join([*readers, "name", "weight"])
        raise ValueError(Errors.CRF603.format(name=name, problem=problem, known=known))
    weight = table.get("weight")
    if weight is not None and (
        isinstance(weight, bool) or not isinstance(weight, (int, float)) or not abs(weight) <= _LARGEST_WEIGHT
    ):
        wanted = f"a number from {-_LARGEST_WEIGHT:g} to {_LARGEST_WEIGHT:g}; leave it out for a rule that must not be broken"
        raise ValueError(Errors.CRF604.format(name=name, argument="weight", value=weight, wanted=wanted))
    arguments = {argument: default for argument, (_, default) in kind.optional.items()}
    for argument, reader in readers.items():
        if table.get(argument) is not None:
            try:
                arguments[argument] = reader(table[argument])
            except _Refused as wanted:
                value = table[argument]
                raise ValueError(
                    Errors.CRF604.format(name=name, argument=argument, value=value, wanted=wanted)
                ) from None
    rule = kind(dict(table), place, name, None if weight is None else float(weight), arguments)
    problem = rule.check()
    if problem:
        raise ValueError(Errors.CRF605.format(name=name, problem=problem))
    return rule


def _not_plain(value: Any, depth: int = 0) -> Optional[str]:
    """Why a value can't be saved as part of a rule, None if it can."""
    if depth > _DEEPEST:
        return "it is nested too deeply"
    if value is None or isinstance(value, (bool, float)):
        return None
    if isinstance(value, int):
        return None if abs(value) < 2**63 else f"{value} is too large"
    if isinstance(value, str):
        is_text = value.isascii() or value == value.encode("utf8", "ignore").decode("utf8")
        return None if is_text else f"{value!r} is no text that can be written"
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        parts = [*value, *value.values()]
        if wrong:
            return f"the key {wrong[0]!r} is no text"
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        return f"{value!r} is no number, text, list or table"
    return next(filter(None, (_not_plain(part, depth + 1) for part in parts)), None)


def read_jsonl(path: Union[str, Path]) -> list[Table]:
    """Rules from a file with one JSON table per line.

    RAISES (ValueError): With the line that is none.
    """
    path, tables = Path(path), []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(Errors.CRF606.format(path=path, reason=error)) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            table = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(Errors.CRF607.format(path=path, line=number, reason=error)) from error
        if not isinstance(table, dict):
            raise ValueError(Errors.CRF607.format(path=path, line=number, reason="it is not a table"))
        tables.append(table)
    return tables


@dataclass
class Constraints:
    """Rules with the settings that say how they are enforced, as the config gives them.

    missing (Optional[Path]): A file of rules that is not there. A loaded component has its rules with it, so this is a mistake
        only for one that needs them.
    """

    rules: list[Rule]
    in_training: bool = False
    max_states: int = 200
    time_limit: float = 1.0
    missing: Optional[Path] = None

    def add(self, table: Table) -> Rule:
        rule = read_rule(table, len(self.rules))
        self.rules.append(rule)
        return rule

    @property
    def tables(self) -> list[Table]:
        return [rule.table for rule in self.rules]

    def replaced(self, tables: list[Table]) -> "Constraints":
        """The same settings with other rules."""
        rules = [read_rule(table, place) for place, table in enumerate(tables)]
        return replace(self, rules=rules, missing=None)

    def only(self, wanted: Callable[[Rule], bool]) -> "Constraints":
        """The same settings with some of the rules, which keep their places."""
        return replace(self, rules=[rule for rule in self.rules if wanted(rule)])

    def require_file(self) -> None:
        """RAISES (ValueError): CRF606 if a file of rules is missing."""
        if self.missing is not None:
            raise ValueError(Errors.CRF606.format(path=self.missing, reason="there is no such file"))


def constraints(
    rules: Optional[list[Table]] = None,
    path: Optional[str] = None,
    in_training: bool = False,
    max_states: int = 200,
    time_limit: float = 1.0,
) -> Constraints:
    """Rules that labellings keep (``spacy_crf.constraints.v1``).

    rules (List[Dict]): The rules, the most important first: where no labelling keeps them all, the later ones yield.
    path (str): A JSONL file with more rules.
    in_training (bool): Whether they hold in training too.
    max_states (int): States of the largest automaton that is made of several rules; beyond, a program takes over.
    time_limit (float): Seconds that one document may take beyond what it takes without the rules.
    """
    max_states = checks.count("constraints", "max_states", max_states)
    time_limit = checks.positive("constraints", "time_limit", time_limit)
    rules = checks.listed("constraints", "rules", rules, "tables")
    checks.expect(path is None or isinstance(path, (str, Path)), "constraints", "path", path, "the path of a file")
    missing = Path(path) if path and not Path(path).exists() else None
    tables = [*rules, *(read_jsonl(path) if path and missing is None else [])]
    read = [read_rule(table, place) for place, table in enumerate(tables)]
    return Constraints(read, in_training, max_states, time_limit, missing)
