"""The rules of a component, compiled against its tags: masks for rules without a memory, automata for the others."""

from collections.abc import Callable, Iterable
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..arrays import ends, named
from ..errors import Errors
from ..inference.linear_chain import LinearChain
from ..inference.semi_markov import SemiMarkov
from ..inference.structure import Structure
from ..kernels.rules import add_prices, run_automata
from ..schemes import SEGMENTS, Segments, TransitionMask
from ..types import GOES_ON, Floats
from .automaton import Automaton, SpanTags, make_automaton, minimised, parted, product
from .cache import Cache
from .pattern_matches import PatternMatches, WordKinds
from .rule import Broken, Rule
from .settings import MOST_GRAPH_STATES, Constraints
from .state_graph import rule_graph

MakePrograms = Callable[["RuleSet"], Any]  # see `lab.programs`

_SHORT = 256  # tokens of documents for which rules are compiled at first; for longer ones again, if they count further
MOST_KEPT = 1_000  # sets of rules for which something is kept


class RuleAutomaton(NamedTuple):
    """One of the automata of a rule."""

    rule: Rule
    automaton: Automaton
    label: Optional[int]  # the label it is about, None for one that is about all that the rule names


class Enforced(NamedTuple):
    """How a rule is enforced, in words."""

    rule: Rule
    how: str
    known: str  # to probabilities


class RuleSet:
    """Rules that are enforced together, of a chain; of a chain of segments see `SegmentRules`.

    constraints (Constraints): The rules, and how they are enforced.
    tags (SpanTags): The tags of the component.
    mask (TransitionMask): What its tag scheme allows.
    structure (Structure): Finds the best labellings under the rules without a memory, exactly if it is None.
    make_programs (Callable): Makes what brings the `solver` of automata that fit into no graph of states, if there is any.
    """

    structure: Structure = LinearChain()
    of_segments: ClassVar[bool] = False

    def __init__(
        self,
        constraints: Constraints,
        tags: SpanTags,
        mask: TransitionMask,
        structure: Optional[Structure] = None,
        make_programs: Optional[MakePrograms] = None,
    ):
        self._make_programs = make_programs
        self.structure = structure or self.structure
        self.constraints = constraints
        self.rules = constraints.rules
        self.tags = tags
        for rule in self.rules:
            checks.labels(f"Rule '{rule.name}'", rule.names(), tags.labels)
        self.local = [rule for rule in self.rules if rule.local or (self.of_segments and rule.bounds_length)]
        self.global_ = [rule for rule in self.rules if rule.global_]
        nothing = np.zeros(0, dtype=bool)
        self._static = {
            rule.place: rule.broken(tags, None, nothing, nothing)
            for rule in self.local
            if rule.local and not (rule.reads_pattern or rule.reads_tags)
        }
        size = len(tags.label_of)
        self.allowed = np.ones((size + 1, size + 1), dtype=bool)
        self.allowed[:size, :size] = mask.transitions
        self.allowed[size, :size] = mask.first
        self.allowed[:size, size] = mask.last
        self.allowed[size, size] = False
        self._masks_of = Cache(MOST_KEPT)
        self.told: set[str] = set()  # what was said about rules that probabilities leave out
        self._by_tokens = {_SHORT: self}
        self._compile(_SHORT)
        self._check_consistency()

    def _compile(self, most: int) -> None:
        """Makes the automata, for documents of at most so many tokens."""
        self._most = most
        for derived in ("decodable_places", "fitting", "left_out"):
            self.__dict__.pop(derived, None)
        self.automata = [
            RuleAutomaton(rule, self._smallest(automaton), label)
            for rule in self.rules
            if rule not in self.local
            for automaton, label in zip(rule.automata(self.tags, most), self._labels_of(rule))
        ]
        self.impossible = {n for n, (_, automaton, _) in enumerate(self.automata) if automaton.accepts_nothing}
        self.parts = [parted(automaton) for _, automaton, _ in self.automata]
        self._graphs, self._lifts = Cache(MOST_KEPT), Cache(MOST_KEPT)
        self._stack = stacked([rest for _, rest in self.parts], self.tags.n_events)
        self.programs = None if self._make_programs is None else self._make_programs(self)

    def _smallest(self, automaton: Automaton) -> Automaton:
        """Larger ones than fit into max_states are taken as they are."""
        return minimised(automaton) if automaton.n_states <= 2 * self.constraints.max_states else automaton

    def _labels_of(self, rule: Rule) -> list[Optional[int]]:
        return rule.labels(self.tags) if rule.by_label else [None]

    def upto(self, tokens: int) -> "RuleSet":
        """The same rules for documents of at most so many tokens."""
        most = _SHORT
        while most < tokens and any(rule.counts_to > most for rule in self.rules):
            most += most // 2
        if most not in self._by_tokens:
            larger = copy(self)
            larger._compile(most)
            self._by_tokens[most] = larger
        return self._by_tokens[most]

    @cached_property
    def of_segments_too(self) -> "SegmentRules":
        """The same rules, of labellings that are sets of spans."""
        return SegmentRules(self.constraints, list(self.tags.labels), make_programs=self._make_programs)

    def _check_consistency(self) -> None:
        """RAISES (ValueError): CRF613 if no labelling of any text keeps the hard rules."""
        together = make_automaton(1, self.tags.n_events, [])
        for rule, automaton, _ in self.automata:
            is_exact = rule.hard and rule.counts_to <= self._most
            larger = product(together, automaton, max_states=self.constraints.max_states) if is_exact else None
            if larger is None:
                continue
            together = minimised(larger)
            if together.accepts_nothing:
                reason = "their conditions exclude each other"
                raise ValueError(Errors.CRF613.format(name=rule.name, reason=reason))
        allowed = self.allowed.copy()
        for rule in self.local:
            broken = self._static.get(rule.place, Broken())
            if rule.hard and broken.transitions is not None:
                allowed[:-1, :-1] &= ~broken.transitions
            if rule.hard and broken.first is not None:
                allowed[-1, :-1] &= ~broken.first
        if not len(rule_graph(self.tags, together, allowed).tag_of):
            reason = "what they ask for is not among the neighbours they allow"
            raise ValueError(Errors.CRF613.format(name=self.rules[-1].name, reason=reason))

    # ---------------------------------------------------------------------------------------------------- automata

    def _events(self, tags, opening, doc_starts):
        """With a break in front of each sequence that does not begin its document."""
        events = self.tags.events_of(tags, opening)
        breaks = opening.copy()
        breaks[doc_starts[:-1][doc_starts[:-1] < len(tags)]] = False
        [inside] = np.nonzero(breaks)
        if not len(inside):
            return events, doc_starts
        break_event = self.tags.events[0, -1]
        return np.insert(events, inside, break_event), doc_starts + np.searchsorted(inside, doc_starts, side="left")

    @property
    def places(self) -> frozenset[int]:
        return frozenset(rule.place for rule in self.rules)

    @cached_property
    def decodable_places(self) -> frozenset[int]:
        """The rules that have a say in `decodable`."""
        lifting = {rule.place for (rule, _, _), (always, _) in zip(self.automata, self.parts) if always.any()}
        return lifting.union(rule.place for rule in self.local)

    def automata_of(self, kept: Iterable[int]) -> list[int]:
        """The automata of some rules, which are given by their places."""
        return [n for n, (rule, _, _) in enumerate(self.automata) if rule.place in kept]

    def broken(self, totals: Floats, kept: Optional[Iterable[int]] = None) -> NDArray[np.bool_]:
        """Documents whose labelling breaks a rule with a memory: bool[D].

        totals (float64[D, N]): What the automata take off it.
        kept (Iterable[int]): Places of the rules that hold, all of them by default.
        """
        automata = slice(None) if kept is None else self.automata_of(kept)
        return (totals[:, automata] < 0.0).any(axis=1)

    def decodable(self, scores: Any, facts: PatternMatches, kept: Optional[Iterable[int]] = None) -> Any:
        """Scores with the rules that have no memory (`apply`), and with what the others say of an event whatever was before: what
        they say beside it only takes something off."""
        ruled = self.apply(scores, facts, kept)
        key = None if kept is None else frozenset(kept)
        lift = self._lifts.find(key, lambda: self._lift(key))
        if lift is None:
            return ruled
        return ruled._replace(transitions=ruled.transitions + lift[:-1, :-1], first=ruled.first + lift[-1, :-1])

    def _lift(self, kept: Optional[frozenset[int]]) -> Optional[Floats]:
        automata = range(len(self.automata)) if kept is None else self.automata_of(kept)
        lift = sum((self.parts[n][0] for n in automata), np.zeros(self.tags.n_events))
        return lift[self.tags.events] if lift.any() else None

    def apply(self, scores: Any, facts: PatternMatches, kept: Optional[Iterable[int]] = None) -> Any:
        """Scores with the rules without a memory: -inf where a hard one is broken, less where a soft one is.

        scores: Potentials of B sequences; they stay as they are.
        facts (PatternMatches): What patterns and functions say of the tokens.
        kept (Iterable[int]): Places of the rules that hold, all of them by default.
        """
        masks, priced, of_tokens = self._masks(kept, facts.words), named(scores), scores._fields[0]
        n_tokens = len(priced[of_tokens])
        if masks.transitions is not None:
            priced["transitions"] = priced["transitions"] + masks.transitions
            priced["first"] = priced["first"] + masks.first
        if masks.words is not None:
            array = np.ascontiguousarray(priced[of_tokens], dtype=np.float64)
            priced[of_tokens] = add_prices(array, masks.words, facts.words.of_token)
        if masks.others:
            opening, closing = ends(scores.starts, n_tokens)
        for rule in masks.others:
            if rule.bounds_length:
                wrong = rule.broken_lengths(self.tags, len(scores.lengths))
                priced["lengths"] = priced["lengths"] + np.where(wrong, rule.price, 0.0)
                continue
            broken = rule.broken(self.tags, facts[rule.place], opening, closing)
            if broken.on_tokens:
                name = rule.segment_scores if self.of_segments else of_tokens
                priced[name] = np.array(priced[name]) if priced[name] is getattr(scores, name) else priced[name]
                broken.add_price(priced[name], rule.price)
            for tokens, pairs in broken.steps:
                if np.ndim(priced["transitions"]) == 2:
                    priced["transitions"] = np.repeat(priced["transitions"][None], n_tokens, axis=0)
                priced["transitions"] = priced["transitions"] + np.where(tokens[:, None, None] & pairs, rule.price, 0.0)
        return scores._replace(**priced)

    def _masks(self, kept: Optional[Iterable[int]], words: Optional[WordKinds]) -> "_Masks":
        """The rules that hold; made once, and again when words of a new kind were met."""
        key = None if kept is None else frozenset(kept)
        masks = self._masks_of.find(key, lambda: self._make_masks(key, words))
        if masks.matched is not (None if words is None else words.matched):
            masks = self._masks_of[key] = self._make_masks(key, words)
        return masks

    def _make_masks(self, kept: Optional[frozenset[int]], words: Optional[WordKinds]) -> "_Masks":
        size = len(self.tags.label_of)
        transitions = first = prices = None
        others = []
        for rule in self.local:
            if kept is not None and rule.place not in kept:
                continue
            if rule.place in self._static:
                broken = self._static[rule.place]
                if transitions is None:
                    transitions, first = np.zeros((size, size)), np.zeros(size)
                transitions[broken.transitions] += rule.price
                if broken.first is not None:
                    first[broken.first] += rule.price
            elif rule.by_token and words is not None and rule.place in words.places:
                prices = np.zeros((len(words.matched), size)) if prices is None else prices
                kinds = words._replace(of_token=np.arange(len(words.matched)))
                nowhere = np.zeros(len(words.matched), dtype=bool)
                rule.broken(self.tags, PatternMatches(words=kinds)[rule.place], nowhere, nowhere).add_price(
                    prices, rule.price
                )
            else:
                others.append(rule)
        return _Masks(None if words is None else words.matched, transitions, first, prices, others)

    def binding(self, kept: Iterable[int], length: int) -> frozenset[int]:
        """The automata of some rules, given by their places, that may break a labelling of so many tokens and breaks."""
        return frozenset(n for n in self.automata_of(kept) if self.automata[n].automaton.may_bind(length))

    def lifts(self, n: int) -> bool:
        """Whether an automaton says something of an event whatever was before."""
        return bool(self.parts[n][0].any())

    def keeps_texts(self, states, starts, words, kept: Iterable[int]) -> bool:
        """Whether a labelling (int32[T]) of one document keeps the rules about texts among some, given by their places."""
        rules = [rule for rule in self.global_ if rule.place in kept]
        for rule in rules:
            of_scope = starts if rule.per == "sentence" else np.array([0, len(states)])
            scope = np.repeat(np.arange(len(of_scope) - 1), np.diff(of_scope))
            if differing_texts(self.segments(states, starts), words, scope):
                return False
        return True

    def graph_size(self, automata: frozenset[int]) -> float:
        """About how many arcs the graph of some automata has at most, inf if they may be too large together."""
        states = np.prod([float(self.automata[n].automaton.n_states) for n in automata])
        arcs = self.allowed.sum() * states ** (2 if self.of_segments else 1)
        return float(arcs) if states <= self.most_states else np.inf

    @property
    def most_states(self) -> int:
        """States of the largest automaton of several rules: `max_states`, or fewer where there are many tags."""
        return min(self.constraints.max_states, MOST_GRAPH_STATES // len(self.allowed))

    def graph(self, automata: frozenset[int]) -> Any:
        """Inference under some of the automata, None if their product has more than `most_states`."""
        return self._graphs.find(automata, lambda: self._make_graph(automata))

    def _make_graph(self, automata: frozenset[int]) -> Any:
        together = self._product(sorted(automata))
        return None if together is None else self.structure.over(rule_graph(self.tags, together, self.allowed))

    # ---------------------------------------------------------------------------------------------------------- paths

    def totals(self, states: NDArray[np.int32], starts: NDArray[np.int64], doc_starts: NDArray[np.int64]) -> Floats:
        """What each automaton takes off each document's labelling: float64[D, N], -inf where it forbids it.

        states (int32[T]): The path; -1 for none, which counts as ``O``.
        starts (int64[B + 1]): Where sequences start.
        """
        totals = np.zeros((len(doc_starts) - 1, len(self.automata)))
        if len(self.automata):
            begins, (opening, _) = states != GOES_ON, ends(starts, len(states))
            of_docs = np.append(0, np.cumsum(begins))[doc_starts]
            events, of_docs = self._events(np.maximum(states[begins], 0), opening[begins], of_docs)
            run_automata(events, of_docs, *self._stack, totals)
        return totals

    def segments(self, states: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        """The spans of a path."""
        [begins] = np.nonzero(states != GOES_ON)
        begin, end, label = self.tags.segments_of(states[begins], ends(starts, len(states))[0][begins])
        return Segments(begins[begin], np.append(begins, len(states))[end], label)

    # ------------------------------------------------------------------------------------------------ several automata

    def _product(self, automata: Iterable[int]) -> Optional[Automaton]:
        together = make_automaton(1, self.tags.n_events, [])
        for n in automata:
            together = self._with(together, n)
            if together is None:
                return None
        return together

    def _with(self, together: Automaton, n: int) -> Optional[Automaton]:
        """An automaton with one more, None if that has more than `most_states`."""
        # The product may be much larger before it is minimised.
        limit = self.most_states
        larger = product(together, self.automata[n].automaton, max_states=8 * limit)
        larger = None if larger is None else minimised(larger)
        return None if larger is None or larger.n_states > limit else larger

    @cached_property
    def fitting(self) -> frozenset[int]:
        """As many automata as fit into `most_states` together, in the order of the rules: those that probabilities know."""
        fitting, together = [], make_automaton(1, self.tags.n_events, [])
        for n in range(len(self.automata)):
            larger = self._with(together, n)
            if larger is not None:
                fitting.append(n)
                together = larger
        return frozenset(fitting)

    @cached_property
    def left_out(self) -> list[tuple[Rule, list[str]]]:
        """The rules that do not fit, each with the labels about which that is so (none if the rule is a whole)."""
        found: dict[int, tuple[Rule, list[str]]] = {}
        for n, (rule, _, label) in enumerate(self.automata):
            if n not in self.fitting:
                _, labels = found.setdefault(rule.place, (rule, []))
                labels += [] if label is None else [self.tags.labels[label]]
        return list(found.values())

    def enforcement(self) -> list[Enforced]:
        """How each rule is enforced, and whether probabilities know it."""
        left_out = {rule.place: labels for rule, labels in self.left_out}
        said = []
        for rule in self.rules:
            sizes = sorted(self.automata[n].automaton.n_states for n in self.automata_of([rule.place]))
            if rule in self.local:
                said.append(Enforced(rule, "mask", "yes"))
            elif rule.global_:
                said.append(Enforced(rule, "program, where it is broken", "no"))
            else:
                span = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
                how = f"automaton of {span} states" if len(sizes) == 1 else f"{len(sizes)} automata of {span} states"
                labels = left_out.get(rule.place)
                known = "yes" if labels is None else "no" if len(labels) in (0, len(sizes)) else _all_but(labels)
                said.append(Enforced(rule, how, known))
        return said


class _Masks(NamedTuple):
    """What rules without a memory add to scores, as far as it is the same from batch to batch; None for nothing."""

    matched: Optional[NDArray[np.bool_]]  # which kinds of words there were
    transitions: Optional[Floats]  # [S, S]
    first: Optional[Floats]  # [S]
    words: Optional[Floats]  # [K, S] for each kind of word
    others: list[Rule]  # that look at each batch


class SegmentRules(RuleSet):
    """The rules of a component whose states are ``O`` and the labels. Every segment begins a new span, so none ever continues,
    and automata read one event per segment. Rules about tokens, ends and lengths of spans are masks.

    constraints (Constraints): The rules, and how they are enforced.
    labels (list[str]): The labels.
    structure (Structure), make_programs (Callable): As of `RuleSet`.
    """

    structure = SemiMarkov()
    of_segments = True

    @property
    def of_segments_too(self) -> "SegmentRules":
        return self

    def __init__(
        self,
        constraints: Constraints,
        labels: list[str],
        structure: Optional[Structure] = None,
        make_programs: Optional[MakePrograms] = None,
    ):
        size = 1 + len(labels)
        tags = SpanTags(labels, np.arange(size) - 1, np.zeros((size, size), dtype=bool))
        super().__init__(constraints, tags, SEGMENTS.transition_mask(len(labels)), structure, make_programs)


def differing_texts(segments: Segments, words: NDArray[np.uint64], scope: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Texts whose spans have several labels: their scope, and the words.

    words (uint64[T]): The words. scope (int64[T]): Spans with the same number are to have the same label.
    """
    begin, end, label = segments
    if len(begin) < 2:
        return []
    # Spans with the same first and last word may have the same text; so may some others, by chance.
    likeness = np.zeros(len(begin), dtype=np.uint64)
    for column in (scope[begin].astype(np.uint64), (end - begin).astype(np.uint64), words[begin], words[end - 1]):
        likeness = likeness * np.uint64(0x9E3779B97F4A7C15) + column
    _, group = np.unique(likeness, return_inverse=True)
    one_label = np.zeros(group.max() + 1, dtype=label.dtype)
    one_label[group] = label
    suspicious = np.bincount(group, label != one_label[group]) > 0
    labels: dict[tuple, set[int]] = {}
    for n in np.flatnonzero(suspicious[group]).tolist():
        text = (int(scope[begin[n]]), *words[begin[n] : end[n]].tolist())
        labels.setdefault(text, set()).add(int(label[n]))
    return [text for text, of_text in labels.items() if len(of_text) > 1]


def _all_but(labels: list[str]) -> str:
    return f"partly, not of {', '.join(labels)}"


def stacked(automata: list[Automaton], n_events: int):
    """Automata one below the other, as the kernel wants them."""
    following = [automaton.next for automaton in automata] or [np.zeros((0, n_events), dtype=np.int32)]
    scores = [automaton.scores for automaton in automata] or [np.zeros((0, n_events))]
    last = [automaton.last for automaton in automata] or [np.zeros(0)]
    offsets = np.cumsum([0] + [automaton.n_states for automaton in automata]).astype(np.int64)
    return np.concatenate(following), np.concatenate(scores), np.concatenate(last), offsets
