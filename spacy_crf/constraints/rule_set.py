"""The rules of a component, compiled for its tags: masks for rules without a memory, automata for the others."""

from collections.abc import Callable, Hashable, Iterable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..arrays import Scores, ends, named
from ..errors import Errors
from ..inference.linear_chain import LinearChain
from ..inference.semi_markov import SemiMarkov
from ..inference.structure import Structure
from ..kernels.rules import run_automata
from ..schemes import SEGMENTS, Segments, TransitionMask
from ..types import GOES_ON, Bools, Floats, Ints
from .automaton import BREAK, Automaton, SpanTags, make_automaton, minimised, parted, product, rule_graph
from .rule import PatternMatches, Rule, Violations, WordKinds
from .settings import MOST_GRAPH_STATES, Constraints

Text = tuple[int, ...]  # the number of the sentence or document, then the words of a text

SHORT = 256  # tokens: rules are compiled for documents up to this length first, and again for longer ones
MOST_KEPT = 1_000  # cached results about sets of rules


class Cache(dict):
    """Cache of results. A full cache starts anew. Threads that share a cache may compute a result twice, which does no harm."""

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Find the result for a key, or compute it at first use.

        key (Hashable): The key.
        make (Callable): Computes the result.
        RETURNS: The result.
        """
        try:
            return self[key]
        except KeyError:
            result = make()
        if len(self) >= MOST_KEPT:
            self.clear()
        self[key] = result
        return result


class RuleAutomaton(NamedTuple):
    """One of the automata of a rule."""

    rule: Rule
    automaton: Automaton
    label: Optional[int]  # the label of the automaton, None for an automaton about all labels of the rule


class RuleSet:
    """Rules that apply together. For chains of segments, `segment_rules` makes them.

    constraints (Constraints): The rules and their settings.
    tags (SpanTags): The tags of the component.
    mask (TransitionMask): Transitions that the tag scheme allows.
    structure (Structure): Finds the best labellings under the rules without a memory; None for an exact search.
    in_lattice (bool): Whether a search in a lattice takes over where automata are too large for a graph of states. It searches
        linear chains and chains of segments.
    of_segments (bool): Whether states are whole segments. Rules about tokens, ends and lengths of spans are then masks, and
        automata read one event per segment.
    """

    def __init__(
        self,
        constraints: Constraints,
        tags: SpanTags,
        mask: TransitionMask,
        structure: Optional[Structure] = None,
        *,
        in_lattice: bool = True,
        of_segments: bool = False,
    ):
        self.in_lattice = in_lattice
        self.of_segments = of_segments
        self.structure = structure or LinearChain()
        self.constraints = constraints
        self.rules = constraints.rules
        self.tags = tags
        for rule in self.rules:
            checks.labels(f"Rule '{rule.name}'", rule.names(), tags.labels)
        self.local = [rule for rule in self.rules if rule.local or (self.of_segments and rule.bounds_length)]
        self.global_ = [rule for rule in self.rules if rule.global_]
        # By place of the rule: violations that do not depend on the tokens
        no_tokens = np.zeros(0, dtype=bool)
        self._static = {
            rule.place: rule.violations(tags, None, no_tokens, no_tokens)
            for rule in self.local
            if rule.local and not (rule.reads_pattern or rule.reads_tags)
        }
        # Which tag may follow which; row and column S are the beginnings and ends of sequences
        size = len(tags.label_of)
        self.allowed = np.ones((size + 1, size + 1), dtype=bool)
        self.allowed[:size, :size] = mask.transitions
        self.allowed[size, :size] = mask.first
        self.allowed[:size, size] = mask.last
        self.allowed[size, size] = False
        self._masks_of = Cache()
        self.warned: set[str] = set()  # names of rules that probabilities leave out, of which users were warned
        # By the length of the longest document: longer documents than SHORT may need larger automata, see `upto`
        self._by_tokens = {SHORT: self}
        self._compile(SHORT)
        self._check_consistency()

    def _compile(self, most: int) -> None:
        """Make the automata for documents of at most `most` tokens."""
        self._most = most
        # Properties that a copy of this object has cached for its former automata
        for derived in ("decodable_places", "fitting", "left_out"):
            self.__dict__.pop(derived, None)
        self.automata = []
        for rule in self.rules:
            if rule in self.local:
                continue
            labels = rule.labels(self.tags) if rule.by_label else [None]
            for automaton, label in zip(rule.automata(self.tags, most), labels):
                # To minimise an automaton that is much larger than max_states takes too long
                if automaton.n_states <= 2 * self.constraints.max_states:
                    automaton = minimised(automaton)
                self.automata.append(RuleAutomaton(rule, automaton, label))
        self.impossible = {n for n, (_, automaton, _) in enumerate(self.automata) if automaton.accepts_nothing}
        # Of each automaton: the scores that it gives to events in every state, and the rest, see `parted`
        self.parts = [parted(automaton) for _, automaton, _ in self.automata]
        self.cache = Cache()  # results about sets of automata
        self._lifts = Cache()  # by places of the rules, see `_lift`
        self._stack = stacked([rest for _, rest in self.parts], self.tags.n_events)

    def upto(self, tokens: int) -> "RuleSet":
        """The rules, compiled for longer documents if some rule has to count farther there.

        tokens (int): Tokens of the longest document.
        RETURNS (RuleSet): The rules for these documents.
        """
        most = SHORT
        while most < tokens and any(rule.counts_to > most for rule in self.rules):
            most += most // 2
        if most not in self._by_tokens:
            larger = copy(self)
            larger._compile(most)
            self._by_tokens[most] = larger
        return self._by_tokens[most]

    @cached_property
    def of_segments_too(self) -> "RuleSet":
        """These rules compiled for labellings that are sets of spans."""
        if self.of_segments:
            return self
        return segment_rules(self.constraints, list(self.tags.labels), in_lattice=self.in_lattice)

    def _check_consistency(self) -> None:
        """Check that some labelling keeps the hard rules, as far as their automata have a small product.

        RAISES (ValueError): CRF613 if no labelling of any text keeps them.
        """
        together = make_automaton(1, self.tags.n_events)
        for rule, automaton, _ in self.automata:
            # A soft rule forbids nothing, and an automaton that counts no further than _most is not the whole rule
            is_exact = rule.hard and rule.counts_to <= self._most
            larger = product(together, automaton, max_states=self.constraints.max_states) if is_exact else None
            if larger is None:  # the product is too large: leave this automaton out
                continue
            together = minimised(larger)
            if together.accepts_nothing:
                reason = "their conditions exclude each other"
                raise ValueError(Errors.CRF613.format(name=rule.name, reason=reason))
        allowed = self.allowed.copy()
        for rule in self.local:
            broken = self._static.get(rule.place, Violations())
            if rule.hard and broken.transitions is not None:
                allowed[:-1, :-1] &= ~broken.transitions
            if rule.hard and broken.first is not None:
                allowed[-1, :-1] &= ~broken.first
        if not len(rule_graph(self.tags, together, allowed).tag_of):
            reason = "what they ask for is not among the neighbours they allow"
            raise ValueError(Errors.CRF613.format(name=self.rules[-1].name, reason=reason))

    # ---------------------------------------------------------------------------------------------------- automata

    @property
    def places(self) -> frozenset[int]:
        """Places of all rules."""
        return frozenset(rule.place for rule in self.rules)

    @cached_property
    def decodable_places(self) -> frozenset[int]:
        """Places of the rules that affect `decodable`."""
        lifting = {rule.place for (rule, _, _), (lift, _) in zip(self.automata, self.parts) if lift.any()}
        return frozenset(lifting.union(rule.place for rule in self.local))

    def automata_of(self, kept: Iterable[int]) -> list[int]:
        """The numbers of the automata of some rules. kept (Iterable[int]): Places of the rules. RETURNS (List[int]): The
        automata."""
        return [n for n, (rule, _, _) in enumerate(self.automata) if rule.place in kept]

    def broken(self, totals: Floats, kept: Optional[Iterable[int]] = None) -> Bools:
        """Find the documents whose labelling breaks a rule with a memory.

        totals (float64[D, N]): Scores that the automata give to the labellings.
        kept (Iterable[int]): Places of the rules that apply, all of them by default.
        RETURNS (bool[D]): Whether each labelling breaks a rule.
        """
        automata = slice(None) if kept is None else self.automata_of(kept)
        return np.any(totals[:, automata] < 0.0, axis=1)

    def decodable(self, scores: Scores, facts: PatternMatches, kept: Optional[Iterable[int]] = None) -> Scores:
        """Apply the rules without a memory (`apply`), and add what automata give to an event whatever their state (`_lift`). What
        is left to the automata is at most 0, so that the new scores of a labelling are an upper bound.

        scores (Scores), facts (PatternMatches), kept (Iterable[int]): As in `apply`.
        RETURNS (Scores): New scores.
        """
        ruled = self.apply(scores, facts, kept)
        key = None if kept is None else frozenset(kept)
        # lift[i, j]: score of tag i before tag j; the last row: of tag j at the beginning
        lift = self._lifts.find(key, lambda: self._lift(key))
        if lift is None:
            return ruled
        return ruled._replace(transitions=ruled.transitions + lift[:-1, :-1], first=ruled.first + lift[-1, :-1])

    def _lift(self, kept: Optional[frozenset[int]]) -> Optional[Floats]:
        """The score that the automata of the kept rules add to each pair of tags, whatever the automata's state: float64[S + 1,
        S + 1]; None if they add nothing."""
        automata = range(len(self.automata)) if kept is None else self.automata_of(kept)
        # lift[e] = sum over automata of what each gives to event e in every state
        lift = sum((self.parts[n][0] for n in automata), np.zeros(self.tags.n_events))
        return lift[self.tags.events] if lift.any() else None

    def apply(self, scores: Scores, facts: PatternMatches, kept: Optional[Iterable[int]] = None) -> Scores:
        """Apply the rules without a memory.

        scores (Scores): Potentials of B sequences, which are not changed.
        facts (PatternMatches): Matches of patterns and functions in the tokens.
        kept (Iterable[int]): Places of the rules that apply, all of them by default.
        RETURNS (Scores): New scores: -inf where a hard rule is broken, lower by the price where a soft one is.
        """
        masks = self._masks(kept, facts.words)
        ruled = named(scores)
        token_scores = scores._fields[0]  # name of the scores [T, S] of single tokens
        n_tokens = len(ruled[token_scores])
        if masks.transitions is not None and masks.first is not None:
            ruled["transitions"] = ruled["transitions"] + masks.transitions
            ruled["first"] = ruled["first"] + masks.first
        if masks.words is not None and facts.words is not None:
            ruled[token_scores] = ruled[token_scores] + masks.words[facts.words.of_token]
        if masks.others:
            opening, closing = ends(scores.starts, n_tokens)
        for rule in masks.others:
            if rule.bounds_length:
                is_broken = rule.broken_lengths(self.tags, len(ruled["lengths"]))
                ruled["lengths"] = ruled["lengths"] + np.where(is_broken, rule.price, 0.0)
                continue
            violations = rule.violations(self.tags, facts[rule.place], opening, closing)
            if violations.on_tokens:
                name = rule.segment_scores if self.of_segments else token_scores
                # `add_price` writes in place: copy the caller's array, once
                if ruled[name] is getattr(scores, name):
                    ruled[name] = np.array(ruled[name])
                violations.add_price(ruled[name], rule.price)
            if violations.steps is not None:
                tokens, pairs = violations.steps
                if np.ndim(ruled["transitions"]) == 2:
                    ruled["transitions"] = np.repeat(ruled["transitions"][None], n_tokens, axis=0)
                is_broken = tokens[:, None, None] & pairs
                ruled["transitions"] = ruled["transitions"] + np.where(is_broken, rule.price, 0.0)
        return scores._replace(**ruled)

    def _masks(self, kept: Optional[Iterable[int]], words: Optional[WordKinds]) -> "_Masks":
        """The masks of the kept rules, from a cache unless the batch has words of a new kind."""
        key = None if kept is None else frozenset(kept)
        masks = self._masks_of.find(key, lambda: self._make_masks(key, words))
        # The masks of words depend on the kinds of words that were met so far; new kinds come with a new array
        matched = None if words is None else words.matched
        if masks.matched is not matched:
            masks = self._masks_of[key] = self._make_masks(key, words)
        return masks

    def _make_masks(self, kept: Optional[frozenset[int]], words: Optional[WordKinds]) -> "_Masks":
        """Add up the prices of the kept rules without a memory.

        kept (frozenset[int]): Places of the rules that apply, None for all.
        words (WordKinds): The kinds of words so far, whose prices are computed once for each kind; None without any.
        """
        size = len(self.tags.label_of)
        transitions = first = word_prices = None
        others = []
        for rule in self.local:
            if kept is not None and rule.place not in kept:
                continue
            if rule.place in self._static:
                violations = self._static[rule.place]
                if transitions is None or first is None:
                    transitions = np.zeros((size, size))
                    first = np.zeros(size)
                transitions[violations.transitions] += rule.price
                if violations.first is not None:
                    first[violations.first] += rule.price
            elif rule.by_token and words is not None and rule.place in words.places:
                n_kinds = len(words.matched)
                if word_prices is None:
                    word_prices = np.zeros((n_kinds, size))
                # As if each kind of word were one token, which is no end of a sequence
                kinds = PatternMatches(words=words._replace(of_token=np.arange(n_kinds)))
                no_ends = np.zeros(n_kinds, dtype=bool)
                violations = rule.violations(self.tags, kinds[rule.place], no_ends, no_ends)
                violations.add_price(word_prices, rule.price)
            else:
                others.append(rule)
        return _Masks(None if words is None else words.matched, transitions, first, word_prices, others)

    def binding(self, kept: Iterable[int], length: int) -> frozenset[int]:
        """Find the automata of the kept rules that a labelling of this length can break.

        kept (Iterable[int]): Places of the rules.
        length (int): Number of tokens and breaks in the labelling.
        RETURNS (frozenset[int]): The automata.
        """
        return frozenset(n for n in self.automata_of(kept) if self.automata[n].automaton.may_bind(length))

    def clashing(self, states, starts, doc_starts, words, rules: Iterable[Rule]) -> list[tuple[Rule, Text]]:
        """Find the texts whose spans have several labels, and thereby break a rule.

        states (int32[T]): The labelling.
        starts (int64[B + 1]), doc_starts (int64[D + 1]): Where sequences and documents start.
        words (uint64[T]): The words.
        rules (Iterable[Rule]): The rules about texts.
        RETURNS (List[Tuple[Rule, Text]]): Each rule with a text that breaks it. The scope of a text is the number of its
            sequence or document.
        """
        clashing = []
        for rule in rules:
            scope_starts = starts if rule.per == "sentence" else doc_starts
            scope = np.repeat(np.arange(len(scope_starts) - 1), np.diff(scope_starts))
            texts = differing_texts(self.segments(states, starts), words, scope)
            clashing += [(rule, text) for text in texts]
        return clashing

    def graph_size(self, automata: frozenset[int]) -> float:
        """Estimate the size of the graph of some automata.

        automata (frozenset[int]): The automata.
        RETURNS (float): At least its number of arcs; inf if the product may be too large.
        """
        # The product has at most so many states; an arc of segments may lead from any state to any other
        states = np.prod([float(self.automata[n].automaton.n_states) for n in automata])
        arcs = self.allowed.sum() * states ** (2 if self.of_segments else 1)
        return float(arcs) if states <= self.most_states else np.inf

    @property
    def asks(self) -> bool:
        """Whether hard rules may demand spans that are less probable than the least probability of their label."""
        return any(rule.hard and rule.asks for rule in self.rules)

    @property
    def most_states(self) -> int:
        """Largest number of states in a product of automata: `max_states`, or fewer if there are many tags."""
        return min(self.constraints.max_states, MOST_GRAPH_STATES // len(self.allowed))

    @property
    def most_searched(self) -> int:
        """Largest number of states in a product of automata for the search of a labelling: more than `most_states` where no
        search in a lattice takes over."""
        return self.most_states if self.in_lattice else MOST_GRAPH_STATES // len(self.allowed)

    def graph(self, automata: frozenset[int], limit: Optional[int] = None) -> Any:
        """Make the structure over the graph of some automata.

        automata (frozenset[int]): The automata.
        limit (int): Largest number of states of their product, `most_states` by default.
        RETURNS (Structure): The structure; None if the product has more states.
        """
        limit = self.most_states if limit is None else limit
        return self.cache.find(("graph", automata, limit), lambda: self._make_graph(automata, limit))

    def _make_graph(self, automata: frozenset[int], limit: int) -> Any:
        """Build the graph of states under these automata; None if it would have more than `limit` states."""
        together = make_automaton(1, self.tags.n_events)
        for n in sorted(automata):
            together = self._with(together, n, limit)
            if together is None:
                return None
        return self.structure.over(rule_graph(self.tags, together, self.allowed))

    # ---------------------------------------------------------------------------------------------------------- paths

    def totals(self, states: NDArray[np.int32], starts: Ints, doc_starts: Ints) -> Floats:
        """Score the labelling of each document by each automaton.

        states (int32[T]): The labelling; -1, for no label, counts as ``O``.
        starts (int64[B + 1]), doc_starts (int64[D + 1]): Where sequences and documents start.
        RETURNS (float64[D, N]): At most 0, -inf for forbidden labellings.
        """
        totals = np.zeros((len(doc_starts) - 1, len(self.automata)))
        if not len(self.automata):
            return totals
        # An automaton reads one event for each token, or for each segment
        begins = states != GOES_ON  # [T]
        event_starts = np.append(0, np.cumsum(begins))[doc_starts]  # [D + 1] where the events of documents start
        is_first_token, _ = ends(starts, len(states))
        opens = is_first_token[begins]  # whether an event is the first of its sequence
        events = self.tags.events_of(np.maximum(states[begins], 0), opens)
        # A break precedes each sequence that does not begin its document; the last documents may have no events
        first_events = event_starts[:-1]
        opens[first_events[first_events < len(events)]] = False
        [breaks] = np.nonzero(opens)
        if len(breaks):
            events = np.insert(events, breaks, BREAK)
            event_starts = event_starts + np.searchsorted(breaks, event_starts, side="left")
        run_automata(events, event_starts, *self._stack, totals)
        return totals

    def segments(self, states: NDArray[np.int32], starts: Ints) -> Segments:
        """List the spans of a path.

        states (int32[T]): The path.
        starts (int64[B + 1]): Where sequences start.
        RETURNS (Segments): The spans.
        """
        [tokens] = np.nonzero(states != GOES_ON)  # where tags, or segments, begin
        is_first_token, _ = ends(starts, len(states))
        begin, end, label = self.tags.segments_of(states[tokens], is_first_token[tokens])
        # From positions among these tokens to tokens
        return Segments(tokens[begin], np.append(tokens, len(states))[end], label)

    def _with(self, together: Automaton, n: int, limit: int) -> Optional[Automaton]:
        """The product of `together` and the automaton n; None if it has more states than the limit."""
        # Before minimisation the product may be much larger
        larger = product(together, self.automata[n].automaton, max_states=8 * limit)
        larger = None if larger is None else minimised(larger)
        return None if larger is None or larger.n_states > limit else larger

    @cached_property
    def fitting(self) -> frozenset[int]:
        """Automata that probabilities take into account: rule by rule, all automata of the rule, if their product with those of
        the earlier rules has at most `most_states` states. (With only some automata of a rule, probabilities would be neither
        with the rule nor without it.)
        """
        fitting: set[int] = set()
        together = make_automaton(1, self.tags.n_events)
        for rule in self.rules:
            larger: Optional[Automaton] = together
            for n in self.automata_of([rule.place]):
                larger = None if larger is None else self._with(larger, n, self.most_states)
            if larger is not None:
                fitting.update(self.automata_of([rule.place]))
                together = larger
        return frozenset(fitting)

    @cached_property
    def left_out(self) -> list[Rule]:
        """Rules that probabilities leave out, since their automata have too many states, see `fitting`."""
        places = {rule.place for n, (rule, _, _) in enumerate(self.automata) if n not in self.fitting}
        return [rule for rule in self.rules if rule.place in places]

    def enforcement(self) -> list[tuple[Rule, str, str]]:
        """Describe how each rule is enforced.

        RETURNS (List[Tuple[Rule, str, str]]): Each rule with the means, and whether probabilities take it into account, in words.
        """
        rows = []
        for rule in self.rules:
            if rule in self.local:
                rows.append((rule, "mask", "yes"))
                continue
            if rule.global_:
                rows.append((rule, "search, where it is broken", "no"))
                continue
            sizes = sorted(self.automata[n].automaton.n_states for n in self.automata_of([rule.place]))
            n_states = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
            means = (
                f"automaton of {n_states} states" if len(sizes) == 1 else f"{len(sizes)} automata of {n_states} states"
            )
            rows.append((rule, means, "no" if rule in self.left_out else "yes"))
        return rows


class _Masks(NamedTuple):
    """Scores that rules without a memory add to every batch; a field is None if it adds nothing."""

    matched: Optional[Bools]  # [K, N] kinds of words for which the masks were made
    transitions: Optional[Floats]  # [S, S]
    first: Optional[Floats]  # [S]
    words: Optional[Floats]  # [K, S] for each kind of word
    others: list[Rule]  # rules whose masks depend on the batch


def segment_rules(
    constraints: Constraints,
    labels: list[str],
    structure: Optional[Structure] = None,
    *,
    in_lattice: bool = True,
) -> RuleSet:
    """Compile the rules of a component whose states are ``O`` and the labels.

    constraints (Constraints): The rules and their settings.
    labels (List[str]): The labels.
    structure (Structure), in_lattice (bool): As in `RuleSet`.
    RETURNS (RuleSet): The rules.
    """
    size = 1 + len(labels)
    mask = SEGMENTS.transition_mask(len(labels))
    label_of_state = np.arange(size) - 1  # state 0 is O
    never_continues = np.zeros((size, size), bool)  # each state is a whole span
    tags = SpanTags(labels, label_of_state, never_continues)
    return RuleSet(constraints, tags, mask, structure or SemiMarkov(), in_lattice=in_lattice, of_segments=True)


def differing_texts(segments: Segments, words: NDArray[np.uint64], scope: Ints) -> list[Text]:
    """Find the texts whose spans have several labels.

    segments (Segments): The spans.
    words (uint64[T]): The words.
    scope (int64[T]): Scope of each token; a text has one label per scope.
    RETURNS (List[Text]): The texts.
    """
    begin, end, label = segments
    # One span has one label
    if len(begin) < 2:
        return []
    # Candidates agree in scope, length, first and last word, of which a hash is made; their texts may differ
    keys = np.zeros(len(begin), dtype=np.uint64)
    for column in (scope[begin].astype(np.uint64), (end - begin).astype(np.uint64), words[begin], words[end - 1]):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + column
    _, group = np.unique(keys, return_inverse=True)
    # A group has several labels if one of its spans differs from the label that is written last
    last_label = np.zeros(group.max() + 1, dtype=label.dtype)
    last_label[group] = label
    has_several = np.bincount(group, label != last_label[group]) > 0
    labels_of: dict[tuple, set[int]] = {}  # by text
    for n in np.flatnonzero(has_several[group]).tolist():
        text = (int(scope[begin[n]]), *words[begin[n] : end[n]].tolist())
        labels_of.setdefault(text, set()).add(int(label[n]))
    return [text for text, labels in labels_of.items() if len(labels) > 1]


def stacked(automata: list[Automaton], n_events: int):
    """Stack automata for `run_automata`.

    automata (List[Automaton]): The automata.
    n_events (int): E, for an empty list.
    RETURNS (int32[Q, E], float64[Q, E], float64[Q], int64[A + 1]): Next states, scores of steps and of ends of all Q states, and
        where the states of each automaton start.
    """
    following = [automaton.next for automaton in automata] or [np.zeros((0, n_events), dtype=np.int32)]
    scores = [automaton.scores for automaton in automata] or [np.zeros((0, n_events))]
    last = [automaton.last for automaton in automata] or [np.zeros(0)]
    offsets = np.cumsum([0] + [automaton.n_states for automaton in automata]).astype(np.int64)
    return np.concatenate(following), np.concatenate(scores), np.concatenate(last), offsets
