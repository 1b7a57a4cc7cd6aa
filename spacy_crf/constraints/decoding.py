"""Finds the best labelling that keeps all rules.

Rules with a memory are added lazily: decode with the masks alone, add the automata of the rules that this labelling breaks,
decode again, until no rule is broken. That is exact, because the best labelling of a relaxation is the best of all if it breaks
no rule; and most documents need no automata. Sentences that break a rule about sentences are decoded by themselves. The added
automata are solved together (`solver`). The time limit bounds the whole search: it is a `Budget` of work, from which each step
subtracts its time on a usual machine. When the budget is spent, the best labelling
found so far is the result.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, Optional

import numpy as np

from ..inference.structure import Structure
from ..types import Ints
from .budget import CALL, READ, Budget, seconds_of_decoding
from .rule import Documents, Rule
from .rule_set import RuleSet, Text
from .solver import GraphSolver, LatticeSolver, Tags

_MOST = 0.8  # share of the budget for finding a labelling that keeps all rules
_FIRST_SHARE = 0.6  # share of the remaining budget for each search while automata are missing
_ONE_BY_ONE = 0.7  # share of the budget that must be left for adding automata one at a time


class Decoded(NamedTuple):
    """Best labellings of a batch, the rules that they break, and the documents whose labelling is not proved to be the best."""

    tags: Tags  # [T]
    relaxed: dict[int, list[Rule]]  # rules that a document does not keep, by number of the document
    unfinished: list[int]  # documents whose budget was spent
    added_rules: dict[int, list[str]]  # names of the rules that were added for documents that broke a rule at first
    unsearchable: list[int]  # documents with rules for which there is no search

    def take(self, d: int, tokens: slice, answer: "Answer") -> None:
        """Take the result of the search for a document.

        d (int): Number of the document.
        tokens (slice): Its tokens.
        answer (Answer): The result.
        """
        if answer.tags is not None:
            self.tags[tokens] = answer.tags
        if answer.relaxed:
            self.relaxed[d] = answer.relaxed
        if not answer.finished:
            self.unfinished.append(d)
        if answer.unsearchable:
            self.unsearchable.append(d)
        self.added_rules[d] = answer.added


class KeptRules(NamedTuple):
    """Places of the rules that apply, decided once for all questions about a batch of documents."""

    places: frozenset[int]
    instead: Mapping[int, frozenset[int]]  # different places for some documents


def decode(rules: RuleSet, documents: Documents, doc_starts: Ints, kept: Optional[KeptRules] = None) -> Decoded:
    """Find the best labellings of D documents.

    rules (RuleSet): The rules.
    documents (Documents): The documents; each one begins with a new sequence.
    doc_starts (int64[D + 1]): Where the documents start.
    kept (KeptRules): The rules to apply; by default all rules that can be kept, tried in their order.
    RETURNS (Decoded): The labellings, and what is known about each.
    """
    rules = rules.upto(int(np.diff(doc_starts).max(initial=0)))
    decoded, breaking = decode_by_masks(rules.structure, rules, documents, doc_starts, kept)
    tags = decoded.tags
    places = rules.places if kept is None else kept.places
    for d in breaking:
        tokens = slice(int(doc_starts[d]), int(doc_starts[d + 1]))
        # Rules for documents of this length, so that the result does not depend on the other documents
        doc_rules = rules.upto(tokens.stop - tokens.start)
        search = RuleSearch(doc_rules, documents.at(tokens), Budget(rules.constraints.time_limit))
        if kept is None or d not in kept.instead:
            # The labelling under the masks is known already, unless they were made for longer documents
            search.begin_with(places, tags[tokens].copy() if doc_rules is rules else None)
        answer = search.best() if kept is None else search.under(kept.instead.get(d, kept.places))
        decoded.take(d, tokens, answer)
    return decoded


def decode_by_masks(
    structure: Structure, rules: RuleSet, documents: Documents, doc_starts: Ints, kept: Optional[KeptRules]
) -> tuple[Decoded, list[int]]:
    """Find the best labellings under the masks alone.

    structure (Structure): Finds the labellings.
    rules (RuleSet), documents (Documents), doc_starts (int64[D + 1]), kept (KeptRules): As in `decode`.
    RETURNS (Decoded, List[int]): The labellings, and the documents whose labelling breaks another rule.
    """
    scores, clamp, facts, words = documents
    places = None if kept is None else kept.places
    tags, best = structure.viterbi(rules.decodable(scores, facts, places), clamp=clamp)
    broken = np.zeros(len(doc_starts) - 1, dtype=bool)
    # Documents with a sequence that has no labelling under the masks
    unlabelled_starts = scores.starts[:-1][best == -np.inf]
    broken[np.searchsorted(doc_starts, unlabelled_starts, side="right") - 1] = True
    if rules.automata:
        broken |= rules.broken(rules.totals(tags, scores.starts, doc_starts), places)
    for rule, (scope, *_) in rules.clashing(tags, scores.starts, doc_starts, words, rules.global_):
        begin = scores.starts[scope] if rule.per == "sentence" else doc_starts[scope]
        broken[np.searchsorted(doc_starts, begin, side="right") - 1] = True
    if kept is not None:
        broken[list(kept.instead)] = True
    [breaking] = np.nonzero(broken & (np.diff(doc_starts) > 0))  # an empty document has one labelling
    return Decoded(tags, relaxed={}, unfinished=[], added_rules={}, unsearchable=[]), breaking.tolist()


class Answer(NamedTuple):
    """The result of the search for the best labelling of a document."""

    tags: Optional[Tags]  # None if the budget was spent before a labelling was found
    relaxed: list[Rule]  # rules that the labelling does not keep
    finished: bool  # whether the labelling is proved to be the best
    added: list[str]  # names of the rules whose automata were added
    unsearchable: bool = False  # whether there was no search for some of the rules


class RuleSearch:
    """Searches for the best labelling of one document under rules.

    rules (RuleSet): The rules.
    document (Documents): The document.
    budget (Budget): Work that the search may take.
    of_sentence (bool): Whether the document is a sentence, so that only rules about sentences apply.
    """

    def __init__(self, rules: RuleSet, document: Documents, budget: Budget, *, of_sentence: bool = False):
        self.rules = rules
        self.document = document
        self.budget = budget
        self._of_sentence = of_sentence
        self._starts = document.scores.starts
        self._decoded: dict[frozenset[int], Tags] = {}  # by places of the rules: best labelling, -1 for none
        self._finished = True
        self._added: list[str] = []
        self.unsearchable = False  # whether there was no search for some of the rules

    def begin_with(self, kept: frozenset[int], tags: Optional[Tags] = None) -> None:
        """Store the best labelling under the masks of some rules.

        kept (frozenset[int]): Places of the rules.
        tags (int32[T]): The labelling, -1 for none; None to compute it.
        """
        if tags is None:
            scores, clamp, facts, _ = self.document
            tags = self.rules.structure.viterbi(self.rules.decodable(scores, facts, kept), clamp=clamp).states
        self._decoded[kept & self.rules.decodable_places] = tags

    def best(self) -> Answer:
        """Find the best labelling. If no labelling keeps all rules, the search adds the hard rules one by one in their order, and
        drops each rule that leaves no labelling."""
        rules = self.rules
        under_all = self._solve(rules.places, self.budget.part(_MOST))
        if under_all is not None:
            return Answer(under_all, relaxed=[], finished=self._finished, added=self._added)
        # No labelling keeps all rules: start from the soft ones, which forbid no labelling
        kept = soft = frozenset(rule.place for rule in rules.rules if not rule.hard)
        found_under = rules.decodable_places  # places of the rules under which `tags` is the best labelling
        tags = self._viterbi(rules.places)
        if (tags == -1).any():
            found_under = soft
            tags = self._viterbi(soft)
        fulfilled = self._fulfilled(tags, found_under)
        relaxed = []
        for rule in rules.rules:
            # A rule that the labelling keeps by itself needs no search
            if rule.hard and rule.place not in fulfilled:
                better = self._solve(kept | {rule.place}, self.budget.part(0.5))
                if better is None:
                    relaxed.append(rule)
                    continue
                tags = better
                found_under = kept | {rule.place}
                fulfilled = self._fulfilled(tags, found_under) | found_under
            kept |= {rule.place}
        # Search again if the last labelling was found under rules that were dropped, or breaks rules that are kept
        if not found_under <= kept <= fulfilled:
            better = self._solve(kept, self.budget)
            self._finished &= better is not None  # a labelling exists, so None means that the budget was spent
            tags = tags if better is None else better
        return Answer(tags, relaxed, finished=self._finished, added=self._added, unsearchable=self.unsearchable)

    def under(self, kept: frozenset[int]) -> Answer:
        """Find the best labelling that keeps all of the given rules.

        kept (frozenset[int]): Places of the rules.
        RETURNS (Answer): The labelling; its tags are None if none was found.
        """
        tags = self._solve(kept, self.budget)
        return Answer(tags, relaxed=[], finished=self._finished and tags is not None, added=self._added)

    def _solve(self, kept: frozenset[int], budget: Budget) -> Optional[Tags]:
        """Search for the best labelling under the kept rules, adding the automata that it breaks until it breaks none. Sets
        `_finished`, `_added` and `unsearchable`, which the answer repeats.

        RETURNS (int32[T] or None): The labelling; None if there is none, or the search ran out of budget.
        """
        rules = self.rules
        automata = [n for n in rules.automata_of(kept) if not self._of_sentence or rules.automata[n].rule.in_sentence]
        if not rules.impossible.isdisjoint(automata):
            return None
        if budget.left <= 0.0 and kept & rules.decodable_places not in self._decoded:
            self._finished = False
            return None
        tags = self._viterbi(kept)
        if (tags == -1).any():
            return None
        kept_by_sentences: set[int] = set()  # automata under which each sentence was searched
        finished = True  # whether the labelling is proved to be the best
        self._added = []
        if len(self._starts) > 2:
            tags, finished = self._with_sentences(kept, tags, budget)
            kept_by_sentences = {n for n in automata if rules.automata[n].rule.in_sentence}
        make_solver = LatticeSolver if rules.in_lattice else GraphSolver
        solver = make_solver(rules, self.document, kept)
        active = set()  # automata that were added
        texts = []  # texts that must have one label, each with its rule
        while tags is not None:
            broken, clashing = self._broken(tags, automata, kept)
            broken = broken - active - kept_by_sentences
            clashing = [item for item in clashing if item not in texts]
            if not broken and not clashing:
                # The labelling breaks no rule: spend the rest of the budget on a proof
                if not finished and active:
                    tags, finished = self._better(solver, tags, automata, kept)
                break
            if budget.left <= 0.0:
                tags = None
                finished = False
                break
            # One by one as long as there is time; near its end all at once, since each search costs a share of it
            active |= set(broken if budget.share_left > _ONE_BY_ONE else automata)
            texts += clashing
            names = [rules.automata[n].rule.name for n in sorted(broken)] + [rule.name for rule, _ in clashing]
            self._added += [name for name in dict.fromkeys(names) if name not in self._added]
            kept_by_sentences.clear()  # from here on the search decodes the whole document
            search_budget = budget.part(_FIRST_SHARE) if len(active) < len(automata) else budget
            tags, finished = solver.solve(frozenset(active), texts, search_budget)
            self.unsearchable |= solver.is_too_large
        self._finished &= finished
        return tags

    def _better(self, solver: GraphSolver, tags: Tags, automata: list[int], kept: frozenset[int]) -> tuple[Tags, bool]:
        """Continue a search whose labelling is not proved to be the best.

        RETURNS (int32[T], bool): A better labelling that keeps all rules, or else `tags`; and whether it is proved to be best.
        """
        better, finished = solver.resume(self.budget)
        if better is None:
            return tags, False
        broken, clashing = self._broken(better, automata, kept)
        # The solver's own automata have their say in its search: only other broken ones count
        return (tags, False) if broken - solver.active or clashing else (better, finished)

    def _viterbi(self, kept: frozenset[int]) -> Tags:
        """The best labelling under the masks of the kept rules (int32[T]), -1 in sequences without a labelling."""
        kept = kept & self.rules.decodable_places
        if kept not in self._decoded:
            self.begin_with(kept)  # stores the labelling in `_decoded`
            self.budget.spend(CALL + self.recursion)  # the time of one call and one recursion
        return self._decoded[kept]

    @cached_property
    def recursion(self) -> float:
        """Estimated seconds of one recursion over the document."""
        return seconds_of_decoding(self.document.scores, len(self.rules.tags.label_of))

    def _with_sentences(self, kept: frozenset[int], tags: Tags, budget: Budget) -> tuple[Optional[Tags], bool]:
        """Decode separately each sentence that breaks a rule about sentences.

        RETURNS (int32[T] or None, bool): The labelling of the document, None if a sentence has none; and whether that is proved.
        """
        starts = self._starts
        tags = tags.copy()
        # Each sentence as if it were a document
        totals = self.rules.totals(tags, starts, starts)
        kept_in_sentences = kept & frozenset(rule.place for rule in self.rules.rules if rule.in_sentence)
        broken = self.rules.broken(totals, kept_in_sentences)
        for _, (sentence, *_) in self._clashing(tags, kept_in_sentences):
            broken[sentence] = True
        finished = True
        sentences = np.flatnonzero(broken).tolist()
        for n, b in enumerate(sentences):
            tokens = slice(int(starts[b]), int(starts[b + 1]))
            # Twice an equal share: many sentences take less than theirs
            sentence_budget = budget.part(2.0 / (1 + len(sentences) - n))
            search = RuleSearch(self.rules, self.document.at(tokens), sentence_budget, of_sentence=True)
            search.begin_with(kept, tags[tokens].copy())
            sentence_tags = search._solve(kept, sentence_budget)
            self.unsearchable |= search.unsearchable
            self._added += [name for name in search._added if name not in self._added]
            if sentence_tags is None:
                return None, search._finished
            tags[tokens] = sentence_tags
            finished &= search._finished
        return tags, finished

    def _broken(
        self, tags: Tags, automata: list[int], kept: frozenset[int]
    ) -> tuple[set[int], list[tuple[Rule, Text]]]:
        """The automata that lower the score of a labelling, and the texts to which it gives several labels."""
        [totals] = self.rules.totals(tags, self._starts, np.array([0, len(tags)]))
        clashing = self._clashing(tags, kept)
        self.budget.spend(CALL + READ * len(tags) * (1 + len(automata)))
        return {n for n in automata if totals[n] < 0.0}, clashing

    def _clashing(self, tags: Tags, kept: frozenset[int]) -> list[tuple[Rule, Text]]:
        """Pairs of a kept rule and a text of spans (their words) to which the labelling gives several labels, though the rule
        wants a single label."""
        rules = [rule for rule in self.rules.global_ if rule.place in kept]
        if self._of_sentence:
            rules = [rule for rule in rules if rule.in_sentence]
        return self.rules.clashing(tags, self._starts, np.array([0, len(tags)]), self.document.words, rules)

    def _fulfilled(self, tags: Tags, found_under: frozenset[int]) -> frozenset[int]:
        """Places of the rules that a labelling keeps.

        found_under (frozenset[int]): Places of the rules under which the labelling was found: it keeps their masks.
        """
        rules = self.rules
        document = self.document
        broken, clashing = self._broken(tags, list(range(len(rules.automata))), rules.places)
        breaks = {rules.automata[n].rule.place for n in broken} | {rule.place for rule, _ in clashing}
        fulfilled = {rule.place for rule in rules.rules if rule not in rules.local and rule.place not in breaks}
        for rule in rules.local:
            if rule.place in found_under:
                fulfilled.add(rule.place)
            elif self.budget.left > 0.0:  # otherwise the rule is dropped
                masked = rules.apply(document.scores, document.facts, {rule.place})
                if (rules.structure.path_score(masked, tags) > -np.inf).all():
                    fulfilled.add(rule.place)
                self.budget.spend(CALL + self.recursion)
        return frozenset(fulfilled)
