"""The rules of a component, compiled against its tags: masks for rules without a memory, automata for the others."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import Joined
from ..errors import Errors
from ..inference.state_graph import GraphChain
from ..kernels import linear_chain as chain_kernels
from ..kernels.automata import run_automata
from ..kernels.best_first import Automata, best_first
from ..kernels.prices import add_prices
from ..schemes import TransitionMask
from ..types import ChainScores, Floats, StateGraph
from .automaton import Automaton, SpanTags, make_automaton, minimised, product
from .facts import Facts, WordKinds
from .rules import Broken, Constraints, Rule
from .state_graph import rule_graph

# Prefixes after which best-first search gives up: first a cheap try, then a long one
_MOST_PREFIXES = (4_000, 250_000)


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


class Clash(NamedTuple):
    """Spans of one text with several labels."""

    rule: Rule
    texts: list[tuple[int, ...]]  # the words of each such text


class CompiledRules:
    """Rules that are enforced together, whatever the structure: base of `RuleSet` (chains) and `SegmentRules`.

    constraints (Constraints): The rules, and how they are enforced.
    tags (SpanTags): The tags of the component.
    mask (TransitionMask): What its tag scheme allows.
    """

    def __init__(self, constraints: Constraints, tags: SpanTags, mask: TransitionMask):
        self.constraints = constraints
        self.rules = constraints.rules
        self.tags = tags
        for rule in self.rules:
            for label in rule.names():
                if label not in tags.labels:
                    known = ", ".join(tags.labels)
                    raise ValueError(Errors.CRF609.format(name=rule.name, label=label, known=known))
        self.local = [rule for rule in self.rules if self.is_local(rule)]
        self.global_ = [rule for rule in self.rules if rule.global_]
        self.automata = [
            RuleAutomaton(rule, minimised(automaton), label)
            for rule in self.rules
            if rule not in self.local
            for automaton, label in zip(rule.automata(tags), rule.labels(tags) if rule.by_label else [None])
        ]
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
        self._graphs: dict[frozenset[int], Any] = {}
        self._stacks: dict[frozenset[int], tuple] = {}
        self._stack = _stacked([automaton for _, automaton, _ in self.automata], tags.n_events)
        self.told = False  # whether it was said which rules probabilities leave out
        self._check_consistency()

    def _check_consistency(self) -> None:
        """RAISES (ValueError): CRF613 if no labelling of any text keeps the hard rules."""
        together = make_automaton(1, self.tags.n_events, [])
        for rule, automaton, _ in self.automata:
            larger = product(together, automaton, max_states=self.constraints.max_states) if rule.hard else None
            if larger is None:
                continue
            together = minimised(larger)
            if not (together.last > -np.inf).any():
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

    @staticmethod
    def is_local(rule: Rule) -> bool:
        """Whether a mask holds the rule."""
        return rule.local

    def _broken(self, rule: Rule, facts: Facts, opening: NDArray[np.bool_], closing: NDArray[np.bool_]) -> Broken:
        if rule.place in self._static:
            return self._static[rule.place]
        return rule.broken(self.tags, facts[rule.place], opening, closing)

    # ---------------------------------------------------------------------------------------------------- automata

    def scores_of(self, tags: NDArray[np.int32], opening: NDArray[np.bool_], doc_starts: NDArray[np.int64]) -> Floats:
        """What each automaton says of each document's labelling: float64[D, N].

        opening (bool[T]): First tokens of sequences.
        """
        totals = np.zeros((len(doc_starts) - 1, len(self.automata)))
        if len(self.automata):
            events, starts = self._events(tags, opening, doc_starts)
            run_automata(events, starts, *self._stack, totals)
        return totals

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

    @cached_property
    def rewards(self) -> frozenset[int]:
        """Automata that may add to a score, and so can't be left out until they are broken."""
        return frozenset(n for n, (_, automaton, _) in enumerate(self.automata) if not automaton.is_lazy)

    def automata_of(self, kept: Iterable[int]) -> list[int]:
        """The automata of some rules, which are given by their places."""
        return [n for n, (rule, _, _) in enumerate(self.automata) if rule.place in kept]

    def broken(self, totals: Floats, kept: Optional[Iterable[int]] = None) -> NDArray[np.bool_]:
        """Documents whose labelling breaks a rule with a memory, or might get a reward of one: bool[D].

        totals (float64[D, N]): What the automata say of it.
        kept (Iterable[int]): Places of the rules that hold, all of them by default.
        """
        automata = list(range(len(self.automata))) if kept is None else self.automata_of(kept)
        return (totals[:, automata] < 0.0).any(axis=1) | (not self.rewards.isdisjoint(automata))

    def graph(self, automata: frozenset[int]) -> Any:
        """Inference under some of the automata, None if their product has more than max_states states."""
        if automata not in self._graphs:
            if len(self._graphs) >= 256:
                self._graphs.clear()
            together = self._product(sorted(automata))
            graph = None if together is None else rule_graph(self.tags, together, self.allowed)
            self._graphs[automata] = None if graph is None else self._inference(graph)
        return self._graphs[automata]

    def _inference(self, graph: StateGraph) -> Any:
        """What answers questions about the paths of a graph."""
        raise NotImplementedError

    def best_first(self, joined: Any, automata: frozenset[int]) -> tuple[bool, Optional[NDArray[np.int32]]]:
        """Best labelling of a joined document under automata that never reward.

        RETURNS (bool, int32[T] or None): Whether the search came to an end, and the labelling, None if there is none.
        """
        if automata not in self._stacks:
            if len(self._stacks) >= 4096:
                self._stacks.clear()
            chosen = [self.automata[n].automaton for n in sorted(automata)]
            self._stacks[automata] = _stacked(chosen, self.tags.n_events)
        for most in _MOST_PREFIXES:
            found, path = self._search(joined, self._stacks[automata], most)
            if found >= 0:
                return True, path if found > 0 else None
        return False, None

    def _search(self, joined: Any, stack: tuple, most: int) -> tuple[int, NDArray[np.int32]]:
        """RETURNS (int, int32[T]): 1 if a best-first search of so many prefixes found a labelling, 0 if there is none, -1 if
        they were too few; and the labelling."""
        raise NotImplementedError

    def _product(self, automata: Iterable[int]) -> Optional[Automaton]:
        together = make_automaton(1, self.tags.n_events, [])
        for n in automata:
            together = self._with(together, n)
            if together is None:
                return None
        return together

    def _with(self, together: Automaton, n: int) -> Optional[Automaton]:
        """An automaton with one more, None if that has more than max_states states."""
        # The product may be much larger before it is minimised.
        limit = self.constraints.max_states
        larger = product(together, self.automata[n].automaton, max_states=8 * limit)
        larger = None if larger is None else minimised(larger)
        return None if larger is None or larger.n_states > limit else larger

    @cached_property
    def fitting(self) -> frozenset[int]:
        """As many automata as fit into max_states together, in the order of the rules: those that probabilities know."""
        fitting, together = [], make_automaton(1, self.tags.n_events, [])
        for n in range(len(self.automata)):
            larger = self._with(together, n)
            if larger is not None:
                fitting.append(n)
                together = larger
        return frozenset(fitting)

    @property
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

    # ------------------------------------------------------------------------------------------------------- texts

    def clashes(self, segments, words: NDArray[np.uint64], sentence_of: NDArray[np.int64]) -> list[Clash]:
        """Rules about texts that a document's labelling breaks.

        segments (Segments): Its spans.
        words (uint64[T]): Its words.
        sentence_of (int64[T]): The number of each token's sequence.
        """
        found = []
        for rule in self.global_:
            labels: dict[tuple, set[int]] = {}
            for begin, end, label in zip(*(column.tolist() for column in segments)):
                scope = int(sentence_of[begin]) if rule.per == "sentence" else -1
                labels.setdefault((scope, *words[begin:end].tolist()), set()).add(label)
            texts = [text for text, of_text in labels.items() if len(of_text) > 1]
            if texts:
                found.append(Clash(rule, texts))
        return found


class _Masks(NamedTuple):
    """What rules without a memory add to scores, as far as it is the same from batch to batch; None for nothing."""

    matched: Optional[NDArray[np.bool_]]  # which kinds of words there were
    transitions: Optional[Floats]  # [S, S]
    first: Optional[Floats]  # [S]
    words: Optional[Floats]  # [K, S] for each kind of word
    others: list[Rule]  # that look at each batch


class RuleSet(CompiledRules):
    """The rules of a chain, see `CompiledRules`."""

    def __init__(self, constraints: Constraints, tags: SpanTags, mask: TransitionMask):
        super().__init__(constraints, tags, mask)
        self._masks_of: dict[Optional[frozenset[int]], _Masks] = {}

    def apply(self, scores: ChainScores, facts: Facts, kept: Optional[Iterable[int]] = None) -> ChainScores:
        """Scores with the rules about tokens and neighbours: -inf where a hard one is broken, less where a soft one is.

        scores (ChainScores): Potentials of B sequences; they stay as they are.
        facts (Facts): What patterns and functions say of the tokens.
        kept (Iterable[int]): Places of the rules that hold, all of them by default.
        """
        masks = self._masks(kept, facts.words)
        emissions, transitions, first = scores.emissions, scores.transitions, scores.first
        if masks.transitions is not None:
            transitions, first = transitions + masks.transitions, first + masks.first
        if masks.words is not None:
            emissions = np.ascontiguousarray(emissions, dtype=np.float64)
            emissions = add_prices(emissions, masks.words, facts.words.of_token)
        if masks.others:
            opening, closing = ends(scores.starts, len(emissions))
        for rule in masks.others:
            broken = rule.broken(self.tags, facts[rule.place], opening, closing)
            if broken.on_tokens:
                emissions = emissions.copy() if emissions is scores.emissions else emissions
                broken.add_price(emissions, rule.price)
            for tokens, pairs in broken.steps:
                if np.ndim(transitions) == 2:
                    transitions = np.repeat(transitions[None], len(emissions), axis=0)
                transitions = transitions + np.where(tokens[:, None, None] & pairs, rule.price, 0.0)
        return scores._replace(emissions=emissions, transitions=transitions, first=first)

    def _masks(self, kept: Optional[Iterable[int]], words: Optional[WordKinds]) -> "_Masks":
        """The rules that hold; made once, and again when words of a new kind were met."""
        key = None if kept is None else frozenset(kept)
        masks = self._masks_of.get(key)
        matched = None if words is None else words.matched
        if masks is None or masks.matched is not matched:
            if len(self._masks_of) >= 256:
                self._masks_of.clear()
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
                rule.broken(self.tags, Facts(words=kinds)[rule.place], nowhere, nowhere).add_price(prices, rule.price)
            else:
                others.append(rule)
        return _Masks(None if words is None else words.matched, transitions, first, prices, others)

    def _search(self, joined: Joined, stack: tuple, most: int) -> tuple[int, NDArray[np.int32]]:
        emissions, transitions = joined.scores.emissions, joined.scores.transitions
        if joined.clamp is not None:
            emissions = np.where(joined.clamp, emissions, -np.inf)
        tags = np.empty(len(emissions), dtype=np.int32)
        scores = chain_kernels.Scores(
            emissions,
            transitions if transitions.ndim == 3 else transitions[np.newaxis],
            joined.scores.first,
            joined.scores.last,
            np.array([0, len(emissions)]),
        )
        found = best_first(scores, Automata(self.tags.events, *stack), most, tags)
        return found, tags

    def _inference(self, graph: StateGraph) -> GraphChain:
        return GraphChain(graph)


def _all_but(labels: list[str]) -> str:
    return f"partly, not of {', '.join(labels)}"


def ends(starts: Optional[NDArray[np.int64]], tokens: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """First and last tokens of sequences: bool[T] each."""
    starts = np.array([0, tokens]) if starts is None else starts
    filled = starts[:-1] < starts[1:]
    opening, closing = np.zeros((2, tokens), dtype=bool)
    opening[starts[:-1][filled]] = True
    closing[starts[1:][filled] - 1] = True
    return opening, closing


def _stacked(automata: list[Automaton], n_events: int):
    """Automata one below the other, as the kernel wants them."""
    following = [automaton.next for automaton in automata] or [np.zeros((0, n_events), dtype=np.int32)]
    scores = [automaton.scores for automaton in automata] or [np.zeros((0, n_events))]
    last = [automaton.last for automaton in automata] or [np.zeros(0)]
    offsets = np.cumsum([0] + [automaton.n_states for automaton in automata]).astype(np.int64)
    return np.concatenate(following), np.concatenate(scores), np.concatenate(last), offsets
