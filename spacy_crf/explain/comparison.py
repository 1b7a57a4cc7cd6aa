"""Compares two sets of labellings of a Doc: how much more probable one set is than the other, and which rules both can keep.

The sets are clamps that exclude each other, for the labellings that have a span and for those that lack it. Both probabilities
are then sums of positive numbers, so the complement of a nearly certain span is as exact as the span's probability. A labelling
of a chain lacks a span if no span begins at the span's first token, or that span breaks off at a later token, or it continues
behind the last token:

    Ann Lee as B-PER I-PER, not in front of I-PER:    ¬B-PER *      B-PER ¬I-PER      B-PER I-PER I-PER
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union, cast

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from .. import arrays
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..inference.structure import Structure, Work
from ..pipeline.annotation.cats import Cats
from ..pipeline.decoding import Parts, Rules
from ..pipeline.preset_annotation import restrict
from ..schemes import TransitionMask
from ..types import AnyClamp, Bools, Floats, PathScores, SegmentClamp
from .explanation import Explanation, Flip, Row, RuleEffect, SpanOf
from .reading import Reading

if TYPE_CHECKING:
    from ..constraints.rule import Rule
    from ..constraints.settings import Constraints
    from ..pipeline.decoding import Decoding
    from ..pipeline.prediction import CRFPipe


class NothingToCompare(ValueError):
    """Raised if no possible labelling has, or none lacks, the explained span or labelling."""


def nothing(pipe: "CRFPipe", *, has: bool) -> NothingToCompare:
    """Make the error CRF838: no possible labelling has, or none lacks, the explained span or labelling."""
    advice = "Look at the rules, at doc.spans['crf_blocked'] and doc.spans['crf_forced'], and at the longest segment"
    return NothingToCompare(
        Errors.CRF838.format(
            name=pipe.name, what="it", reason=f"no possible labelling {'has' if has else 'lacks'} it. {advice}"
        )
    )


class Sides(NamedTuple):
    """Clamps that exclude each other: for the labellings with the explained span, and for those without it."""

    having: list  # of clamps, all of one class
    lacking: list
    tokens: slice  # tokens that the clamps restrict; other tokens allow anything


class Likelihoods(NamedTuple):
    """The probabilities of the labellings of both sides."""

    works: list[Work]  # of each clamp
    log_z: Floats  # [N] log partition of each clamp
    n_having: int

    @property
    def odds(self) -> float:
        """Log-odds of the first side against the second."""
        having = self.log_z[: self.n_having]
        lacking = self.log_z[self.n_having :]
        return float(np.logaddexp.reduce(having) - np.logaddexp.reduce(lacking))

    def shares(self, *, of_having: float = 1.0, of_lacking: float = -1.0) -> Floats:
        """The share of each clamp in the probability of its side, times the factor of that side: float64[N]."""
        having = self.log_z[: self.n_having]
        lacking = self.log_z[self.n_having :]
        shares_of_having = np.exp(having - np.logaddexp.reduce(having))
        shares_of_lacking = np.exp(lacking - np.logaddexp.reduce(lacking))
        return np.concatenate([of_having * shares_of_having, of_lacking * shares_of_lacking])


class Comparison:
    """Compares two sides by the scores of a Doc, under the tag scheme, the preset annotation, and the rules that both can keep.

    pipe (CRFPipe): The component whose decision is explained.
    reading (Reading): The Doc and its scores.
    sides (Sides): The clamps of both sides.
    span (Tuple[int, int, str]): The explained span; None for the whole labelling.
    against (str): The second side in words; None for all other labellings.
    RAISES (NothingToCompare): CRF838 if one side has no labelling.
    """

    compares_labels = False  # whether the sides are labels of a text, not labellings of its tokens

    def __init__(
        self, pipe: "CRFPipe", reading: Reading, sides: Sides, span: Optional[SpanOf], against: Optional[str] = None
    ):
        docs = reading.docs
        self.pipe = pipe
        self.doc = docs[0]
        self.reading = reading
        self.sides = sides
        self.span = span
        self.against = against
        restricted = reading.scores  # under the preset annotation, and the rules without automata
        preset_clamp = None
        if not self.compares_labels:
            restricted, preset_clamp = preset_labellings(pipe, docs, reading.scores)
        self.ruled = None
        graph = None  # the structure under rules with automata
        rules = pipe.rules()
        if rules is not None:
            self.ruled = Ruled(pipe, rules, docs, restricted, preset_clamp)
            self.ruled.leave_out(sides.having, "forbids the span")
            self.ruled.leave_out(sides.lacking, "asks for the span")
            restricted = self.ruled.apply()
            graph = self.ruled.graph()
        # Rules with automata may connect the sequences of the Doc, which are joined then
        self._joins = graph is not None
        self._structure: Structure = graph or pipe.decoding.explained
        # Compare the sequences of these tokens, or all sequences, since rules may connect them
        starts = np.asarray(reading.scores.starts)
        first = np.searchsorted(starts, sides.tokens.start, side="right") - 1
        last = np.searchsorted(starts, sides.tokens.stop, side="left")
        self.tokens = slice(int(starts[first]), int(starts[last])) if self.ruled is None else slice(0, int(starts[-1]))
        self.scores = self.cut(reading.scores)
        # `measure` adds this to the scores, which may be those of a changed text
        self._restrictions = None
        if restricted is not reading.scores:
            self._restrictions = _difference(self.cut(restricted), self.scores)
        self._clamps = []
        for clamp in (*sides.having, *sides.lacking):
            clamp = clamp if preset_clamp is None else clamp & preset_clamp
            clamp = arrays.cut_clamp(clamp, self.tokens)
            self._clamps.append(arrays.join_sequences(self.scores, clamp).clamp if self._joins else clamp)

    def repeat(self, docs: DocBatch) -> "Comparison":
        """Compare the same sides for a Doc that has other words in the same places."""
        return type(self)(self.pipe, Reading(self.pipe, docs), self.sides, self.span, self.against)

    def cut(self, scores: PathScores) -> PathScores:
        """Cut the scores of the compared tokens out of the scores of the Doc."""
        return arrays.cut_document(scores, None, self.tokens)[0]

    def measure(self, scores: Optional[PathScores] = None) -> Likelihoods:
        """Compute the probabilities of both sides.

        scores (PathScores): Scores of the compared tokens, by default those of the Doc.
        RAISES (NothingToCompare): CRF838 if one side has no possible labelling.
        """
        scores = self.scores if scores is None else scores
        if self._restrictions is not None:
            scores = arrays.added(scores, self._restrictions)
        if self._joins:
            scores = arrays.join_sequences(scores).scores
        works = [self._structure.prepare(scores, clamp) for clamp in self._clamps]
        log_z = np.array([self._structure.log_partition(work).sum() for work in works])
        n_having = len(self.sides.having)
        possible = log_z > -np.inf
        if not possible[:n_having].any() or not possible[n_having:].any():
            raise nothing(self.pipe, has=not possible[:n_having].any())
        return Likelihoods(works, log_z, n_having)

    def uses(self, measured: Likelihoods, shares: Floats) -> PathScores:
        """Compute the expected uses of each score of the compared tokens: a sum over clamps, times `shares` (float64[N])."""
        parts = []
        for work, share in zip(measured.works, shares):
            if share:
                parts.append(self._structure.expectations(work, weights=np.full(work.n_sequences, share))[1])
        expected = reduce(arrays.added, parts)
        return arrays.split(arrays.join_sequences(self.scores), expected, self.scores) if self._joins else expected

    def extend_to_doc(self, uses: PathScores) -> PathScores:
        """Extend the uses of the compared tokens' scores to uses of all scores of the Doc; those of other tokens are 0."""
        scores = self.reading.scores
        # The uses may have transitions by token where the scores have one matrix for all tokens
        if arrays.axes(uses, "transitions")[0] == "token":
            shape = (len(scores[0]), *uses.transitions.shape[1:])
            scores = scores._replace(transitions=np.broadcast_to(0.0, shape))
        total = arrays.zeros(scores)
        arrays.add(total, uses, self.tokens)
        return total

    def best(self) -> tuple[NDArray[np.int32], NDArray[np.int32], float]:
        """Find the best labelling of each side, for the compared tokens, and the difference of their scores.

        RAISES (NothingToCompare): CRF838 if one side has no possible labelling.
        """
        if self.ruled is not None:
            ours = self.ruled.best(self.sides.having)
            theirs = self.ruled.best(self.sides.lacking)
            if ours is None or theirs is None:
                raise nothing(self.pipe, has=ours is None)
            return ours.path, theirs.path, theirs.cost - ours.cost
        paths = [self._structure.viterbi(work) for work in self.measure().works]
        scores = np.array([path.scores.sum() for path in paths])
        n_having = len(self.sides.having)
        with_span = int(scores[:n_having].argmax())
        without_span = n_having + int(scores[n_having:].argmax())
        return paths[with_span].states, paths[without_span].states, float(scores[with_span] - scores[without_span])

    def margin(self) -> float:
        """The score of the best labelling of the first side minus that of the other side's best one."""
        return self.best()[2]

    def probability(self, odds: float) -> dict[str, float]:
        """The log-odds; against everything else also the probability and its complement, since 1 - p is inexact near 1."""
        totals = {"log-odds": odds}
        if self.against is None:
            totals["probability"] = float(np.exp(-np.logaddexp(0.0, -odds)))
            totals["1 - probability"] = float(np.exp(-np.logaddexp(0.0, odds)))
        return totals

    def explanation(
        self,
        kind: str,
        target: float,
        base: float,
        rows: list[Row],
        totals: dict[str, float],
        *,
        labelling: Sequence[SpanOf] = (),
        rival: Sequence[SpanOf] = (),
        flips: Sequence[Flip] = (),
        additive: bool = True,
    ) -> Explanation:
        """Make the explanation of this comparison, with the effects of rules. The parameters are those of `Explanation`."""
        return Explanation(
            kind=kind,
            component=self.pipe.name,
            words=[token.text for token in self.doc],
            span=self.span,
            against=f"against {self.against or 'everything else'}",
            target=target,
            base=base,
            rows=rows,
            totals=totals,
            labelling=[*labelling],
            rival=[*rival],
            rules=[] if self.ruled is None else [*self.ruled.left_out, *self.ruled.effects()],
            flips=[*flips],
            additive=additive,
        )


class LabelComparison(Comparison):
    """Compares the labels of a text, each with its own clamp; if texts have several labels, a text with and without the label."""

    compares_labels = True

    def rival(self, measured: Likelihoods) -> int:
        """The number of the clamp of the most probable other label."""
        return 1 + int(measured.log_z[1:].argmax())

    def extend_to_doc(self, uses: PathScores) -> PathScores:
        """The uses themselves, since the text is compared as a whole."""
        return uses

    def spans(self, clamp: int) -> list[SpanOf]:
        """The label of the text under a clamp, as a span of all tokens."""
        annotation = cast(Cats, self.pipe.annotation)
        label = annotation.label_in([*self.sides.having, *self.sides.lacking][clamp])
        return [] if label is None else [(0, len(self.doc), label)]

    def margin(self) -> float:
        """The score of the label minus that of the most probable other label."""
        measured = self.measure()
        return float(measured.log_z[0] - measured.log_z[self.rival(measured)])


def preset_labellings(pipe: "CRFPipe", docs: DocBatch, scores: PathScores) -> tuple[PathScores, Optional[AnyClamp]]:
    """The scores and the clamp of the labellings that keep the Doc's preset annotation and have no white space at the edges of
    spans, as all probabilities of the component do. The clamp is None if there is no such annotation.

    RAISES (NothingToCompare): CRF838 if the annotation leaves tokens without any label.
    """
    restricted = restrict(pipe.parts(), docs, scores, None, by_steps)
    if restricted is None:
        _, scores_without_edges = by_steps(pipe.parts(), docs, scores)
        return scores_without_edges, None
    # Only some of the tokens have a label left, so no labelling of the Doc is possible
    if restricted.kept is not None:
        raise NothingToCompare(
            Errors.CRF838.format(
                name=pipe.name,
                what=f"'{docs[0].text[:40]}'",
                reason="doc.spans['crf_blocked'] leaves some of its tokens without any label",
            )
        )
    return restricted.scores, restricted.clamp


def _difference(scores: PathScores, others: PathScores) -> PathScores:
    """scores - others, where -inf counts as 0 in `others`; -inf where the scores are -inf."""
    differences = {}
    for name, array in arrays.named(scores).items():
        other = getattr(others, name)
        finite = np.where(other > -np.inf, other, 0.0)
        differences[name] = np.where(array > -np.inf, array - finite, -np.inf)
    return scores._replace(**differences)


# ------------------------------------------------------------------------------------------------------------- rules


class BestLabelling(NamedTuple):
    """The best of some labellings, and what it costs."""

    broken: "list[Rule]"  # the rules that it has to break
    cost: float  # the negative score by the model and soft rules
    path: NDArray[np.int32]  # [T] states


class Ruled:
    """The rules that both sides can keep. Rules that one side can't keep are left out, and listed.

    compiled (Rules): The rules of the component.
    scores (PathScores): Scores of a single Doc, under its preset annotation.
    clamp (AnyClamp): The labellings that the preset annotation allows; None for all.
    """

    def __init__(
        self,
        pipe: "CRFPipe",
        compiled: Rules,
        docs: DocBatch,
        scores: PathScores,
        clamp: Optional[AnyClamp],
    ):
        self._pipe = pipe
        self._docs = docs
        self._scores = scores
        self._clamp = clamp
        self._structure = pipe.decoding.explained
        self._rules = compiled.all.upto(len(docs[0]))
        self._facts = compiled.matcher(docs)
        self._places = self._rules.places
        self.left_out: list[RuleEffect] = []

    def leave_out(self, clamps: list, effect: str) -> None:
        """Leave out the rules that every labelling under these clamps breaks.

        effect (str): The reason in words, which the explanation shows for each of these rules.
        """
        best = self.best(clamps)
        if best is None:
            return
        for rule in best.broken:
            self._places -= {rule.place}
            self.left_out.append(RuleEffect(rule.name, rule.kind, None, effect))

    def best(self, clamps: list) -> Optional[BestLabelling]:
        """Find the best labelling that one of the clamps allows; None if there is none."""
        from ..constraints.decoding import Documents, KeptRules, decode

        # Without a choice, all rules are kept
        kept = None if self._places == self._rules.places else KeptRules(self._places, {})
        labellings = []
        for clamp in clamps:
            clamp = clamp if self._clamp is None else clamp & self._clamp
            is_possible = (self._structure.viterbi(self._scores, clamp=clamp).scores > -np.inf).all()
            if not is_possible:
                continue
            documents = Documents(self._scores, clamp, self._facts, self._docs.words)
            decoded = decode(self._rules, documents, self._docs.bounds, kept)
            score = float(self._structure.path_score(self._scores, decoded.tags).sum())
            # Soft rules lower the score; hard ones that are broken would make it -inf, and are counted below
            score += sum(cost for cost in self.costs(decoded.tags).values() if cost > -np.inf)
            broken = decoded.relaxed.get(0, [])  # of the only Doc
            labellings.append(BestLabelling(broken, -score, decoded.tags))
        return min(labellings, key=lambda labelling: (len(labelling.broken), labelling.cost), default=None)

    def costs(self, path: NDArray[np.int32]) -> dict[int, float]:
        """The term of each active rule in the score of a labelling, by the rule's place; -inf for a broken hard rule."""
        totals = self._rules.totals(path, self._scores.starts, self._docs.bounds)[0]
        costs = {}
        no_scores = arrays.zeros(self._scores)
        for place in self._places:
            # Rules without a memory, as scores of their own; automata add the other part
            prices = self._rules.decodable(no_scores, self._facts, [place])
            of_automata = totals[self._rules.automata_of([place])].sum()
            costs[place] = float(self._structure.path_score(prices, path).sum() + of_automata)
        return costs

    def rows(self, having: NDArray[np.int32], lacking: NDArray[np.int32]) -> list[Row]:
        """The contributions of soft rules to the score of the labelling `having` minus that of `lacking`."""
        ours = self.costs(having)
        theirs = self.costs(lacking)
        rows = []
        for rule in self._rules.rules:
            if not rule.hard and ours.get(rule.place, 0.0) != theirs.get(rule.place, 0.0):
                cost = ours[rule.place] - theirs[rule.place]
                rows.append(
                    Row(
                        feature=f"rule {rule.name}",
                        template=rule.kind,
                        offset=None,
                        token=None,
                        end=None,
                        tags=(),
                        value=1.0,
                        weight=cost,
                        use=1.0,
                        contribution=cost,
                    )
                )
        return rows

    def apply(self) -> PathScores:
        """The scores under the rules that need no automaton."""
        return self._rules.apply(self._scores, self._facts, self._places)

    def graph(self) -> Optional[Structure]:
        """The structure for inference under rules that automata represent in probabilities; None if there are no such rules."""
        automata = self._rules.fitting.intersection(self._rules.automata_of(self._places))
        return self._rules.graph(automata) if automata else None

    def effects(self) -> list[RuleEffect]:
        """The rules that change the best labelling."""
        _, changes = effects(self._pipe, self._docs[0])
        rule_effects = []
        for rule, spans, price in changes:
            places = [(span.start, span.end, span.label_) for span in spans]
            weight = None if rule.hard else rule.weight
            rule_effects.append(RuleEffect(rule.name, rule.kind, weight, "changes the labelling", price, places))
        return rule_effects


def effects(pipe: "CRFPipe", doc: Doc) -> "tuple[list[Span], list[tuple[Rule, list[Span], float]]]":
    """Find the best labelling without rules, then add the rules in their order.

    RETURNS (List[Span], List[Tuple[Rule, List[Span], float]]): The spans without rules; and for each rule that changes the spans,
        the rule, the spans under it and the rules before it, and its price: the log-odds that the labelling loses by the model.
    """
    from ..constraints.decoding import Documents

    # Callers have checked that there are rules
    compiled = cast(Rules, pipe.rules())
    constraints = cast("Constraints", pipe.constraints)
    docs = pipe.batch_class([doc])
    _, scores = by_steps(pipe.parts(), docs, pipe.model.predict(docs))
    facts = compiled.matcher(docs)
    structure = pipe.decoding.structure

    def best(enforced: "list[Rule]") -> tuple[list[Span], float]:
        """The spans of the best labelling under the enforced rules, and its score by the model."""
        rule_set = pipe.decoding.compile_rules(constraints.only(lambda rule: rule in enforced))
        decoded = pipe.decoding.decode(
            rule_set, Documents(scores, clamp=None, facts=facts, words=docs.words), docs.bounds
        )
        path = pipe.decoding.path(decoded.tags, scores.starts)
        work = structure.prepare(scores)
        # The partition function over a single labelling is its score
        score = float(structure.log_partition(work, clamp=pipe.decoding.only(structure, work, path)).sum())
        return pipe.spans_of(doc, pipe.decoding.segments(decoded.tags, scores.starts)), score

    without_rules, score_before = best([])
    spans_before = without_rules
    changes = []
    for n, rule in enumerate(compiled.all.rules, start=1):
        spans, score = best(compiled.all.rules[:n])
        if spans != spans_before:
            changes.append((rule, spans, score_before - score))
            spans_before = spans
            score_before = score
    return without_rules, changes


def by_steps(parts: Parts, docs: DocBatch, scores: Any, settled: Optional[Bools] = None) -> tuple[Parts, Any]:
    """Exclude the labellings that have white space at an edge of a span, as `without_edges` does for prediction. Explanations
    need the model's own states: this adds no states, and forbids transitions at single tokens, which takes much more memory.

    settled (bool[T]): Tokens whose label is known, and stays.
    """
    if parts.annotation.space_edges or not docs.is_space.any():
        return parts, scores
    blank = docs.is_space if settled is None else docs.is_space & ~settled
    return parts, parts.decoding.bridges.by_steps(scores, blank)


Allowed = dict[int, NDArray[np.bool_]]  # bool[S] states of some tokens


class SpanPlace:
    """A span in a sequence of T tokens: its tokens are ``begin:end``; its label is a number, -1 for ``O``."""

    def __init__(self, begin: int, end: int, label: int, starts: NDArray[np.int64]):
        self.begin = begin
        self.end = end
        self.label = label
        self.size = int(starts[-1])
        self.opens = begin in starts  # the span is at the start of a sequence
        self.closes = end in starts  # the span is at the end of a sequence
        self.tokens = range(begin, end)


def events_of(decoding: "Decoding") -> "Union[ChainEvents, SegmentEvents]":
    """Make the object that computes the clamps for a decoding."""
    return SegmentEvents(decoding) if decoding.labelled == "segments" else ChainEvents(decoding)


class ChainEvents:
    """Clamps of chains: bool[T, S]. An event restricts the states of some tokens; each becomes a clamp."""

    def __init__(self, decoding: "Decoding"):
        self._label_of = decoding.label_of_states
        continues = np.asarray(decoding.spans.continues)  # [S, S]; segments have none
        self._mask: TransitionMask = decoding.mask()
        # [S] states that can continue the span of the previous token, such as I-PER
        self._continues = continues.any(axis=0)
        # [S] states whose span the next token can continue, such as B-PER
        self._continued = continues.any(axis=1)

    def having(self, place: SpanPlace) -> list[NDArray[np.bool_]]:
        """Clamps of the labellings with the span; for ``O``, of the labellings in which all its tokens are outside."""
        if place.label < 0:
            return self._clamps(place, [dict.fromkeys(place.tokens, self._of_label(place))])
        events: list[Allowed] = []
        for so_far in self._upto(place, place.end):
            events += self._broken(place, place.end, so_far)
        return self._clamps(place, events)

    def lacking(self, place: SpanPlace) -> list[NDArray[np.bool_]]:
        """Clamps of the labellings without the span. If the place is labelled ``O``: of the labellings in which some token of the
        place is inside a span."""
        of_label = self._of_label(place)
        if place.label < 0:
            # The first token that is not outside decides: O O ¬O
            inside = [dict.fromkeys(range(place.begin, t), of_label) | {t: ~of_label} for t in place.tokens]
            return self._clamps(place, inside)
        # No span begins at the first token, since it has another label, or since it continues the span before it
        events: list[Allowed] = [{place.begin: ~of_label}]
        if not place.opens:
            before = of_label & self._continued
            events.append({place.begin - 1: before, place.begin: of_label & self._continues})
        # The span breaks off at a later token, or continues behind the last one
        for token in range(place.begin + 1, place.end):
            for so_far in self._upto(place, token):
                events += self._broken(place, token, so_far)
        if not place.closes:
            for so_far in self._upto(place, place.end):
                events.append(self._continued_at(place.end, so_far, of_label))
        return self._clamps(place, events)

    def _of_label(self, place: SpanPlace) -> NDArray[np.bool_]:
        return self._label_of == place.label

    def _upto(self, place: SpanPlace, token: int) -> list[Allowed]:
        """Events in which the span begins at its first token and continues up to, not including, the token."""
        of_label = self._of_label(place)
        begin = place.begin
        events: list[Allowed] = [{begin: of_label}]
        # A continuing tag begins a span only behind a tag that can't be continued
        if not place.opens:
            continuing = of_label & self._continues
            continued = of_label & self._continued
            events = [{begin: of_label & ~continuing}, {begin - 1: ~continued, begin: continuing}]
        for inside in range(begin + 1, token):
            events = [self._continued_at(inside, so_far, of_label) for so_far in events]
        return events

    def _continued_at(self, token: int, so_far: Allowed, of_label: NDArray[np.bool_]) -> Allowed:
        """The event `so_far` in which, in addition, the token continues the span of the previous token."""
        before = so_far[token - 1] & self._continued
        return so_far | {token - 1: before, token: of_label & self._continues}

    def _broken(self, place: SpanPlace, token: int, so_far: Allowed) -> list[Allowed]:
        """The event `so_far`, split into those in which, in addition, the token does not continue the span of the previous token:
        the previous state can't be continued, or it can be but the token's state does not continue it."""
        if token == place.end and place.closes:
            return [so_far]
        before = so_far[token - 1]
        continuing = self._of_label(place) & self._continues
        can_not = so_far | {token - 1: before & ~self._continued}
        does_not = so_far | {token - 1: before & self._continued, token: ~continuing}
        return [can_not, does_not]

    def _clamps(self, place: SpanPlace, events: list[Allowed]) -> list[NDArray[np.bool_]]:
        """Clamps of the events that are possible in the tag scheme."""
        clamps = []
        for event in events:
            steps = [(event[t], event[t + 1]) for t in event if t + 1 in event]
            has_steps = all(self._mask.transitions[np.ix_(before, after)].any() for before, after in steps)
            has_states = all(allowed.any() for allowed in event.values())
            if not has_steps or not has_states:
                continue
            clamp = np.ones((place.size, len(self._label_of)), dtype=bool)
            for token, allowed in event.items():
                clamp[token] = allowed
            clamps.append(clamp)
        return clamps


class SegmentEvents:
    """Clamps of segments: `SegmentClamp`."""

    def __init__(self, decoding: "Decoding"):
        self._n_states = len(decoding.label_of_states)
        self._longest = np.asarray(decoding.longest)  # [S] in tokens; chains have none

    def having(self, place: SpanPlace) -> list[SegmentClamp]:
        """Clamps of the labellings with the span; for ``O``, of the labellings in which all its tokens are outside."""
        if place.label < 0:
            outside = self._free(place)
            outside.states[place.begin : place.end] = np.arange(self._n_states) == 0
            return [outside]
        too_long = place.end - place.begin > self._longest[1 + place.label]
        return [] if too_long else [self._upto(place, place.end, {place.begin, place.end})]

    def lacking(self, place: SpanPlace) -> list[SegmentClamp]:
        """Clamps of the labellings without the span. If the place is labelled ``O``: of the labellings in which some token of the
        place is inside a span."""
        if place.label < 0:
            # The first token that is not outside decides: O O ¬O
            return [self._other(place, token, 0) for token in place.tokens]
        # A segment with another label begins at the first token, or no segment begins there
        clamps = [self._other(place, place.begin, 1 + place.label, begins=True)]
        if not place.opens:
            clamps.append(self._free(place))
            clamps[-1].may_begin[place.begin] = False
        # A segment with the label begins there; it ends inside the span, or continues behind it
        clamps += [self._upto(place, token, {place.begin, token}) for token in range(place.begin + 1, place.end)]
        if not place.closes:
            clamps.append(self._upto(place, place.end + 1, {place.begin}))
        return clamps

    def _free(self, place: SpanPlace) -> SegmentClamp:
        """A clamp that allows all labellings."""
        return SegmentClamp(
            states=np.ones((place.size, self._n_states), dtype=bool),
            may_begin=np.ones(place.size, dtype=bool),
            must_begin=np.zeros(place.size, dtype=bool),
        )

    def _upto(self, place: SpanPlace, end: int, begins: set[int]) -> SegmentClamp:
        """The clamp in which the tokens from the span's first one up to, not including, `end` are in one segment of the label.

        begins (set[int]): Tokens at which a segment begins.
        """
        clamp = self._free(place)
        clamp.states[place.begin : end] = np.arange(self._n_states) == 1 + place.label
        clamp.may_begin[place.begin + 1 : end] = False
        for token in begins - {place.size}:  # no segment begins at the end of the Doc
            clamp.must_begin[token] = True
        return clamp

    def _other(self, place: SpanPlace, token: int, state: int, *, begins: bool = False) -> SegmentClamp:
        """The clamp in which a token has another state than the given one, which the span's tokens before it have."""
        clamp = self._free(place)
        clamp.states[place.begin : token] = np.arange(self._n_states) == state
        clamp.states[token, state] = False
        clamp.must_begin[token] = begins
        return clamp
