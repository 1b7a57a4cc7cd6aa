"""What the rules of a component have to do with a decision."""

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from .. import arrays
from ..features.doc_batch import DocBatch
from .explanation import Row, RuleEffect

if TYPE_CHECKING:
    from ..constraints.rule import Rule
    from ..pipeline.prediction import CRFPipe


class Best(NamedTuple):
    """The best labelling of a kind."""

    path: NDArray[np.int32]
    score: float  # that the model gives it, and soft rules
    relaxed: "list[Rule]"


class Ruled:
    """The rules that both kinds of labellings can keep; those that one of them can't are left out of account, and named.

    scores: Of a single Doc, under what it settles. clamp: And what is still allowed, or None.
    """

    def __init__(self, pipe: "CRFPipe", docs: DocBatch, scores: Any, clamp: Any):
        compiled = pipe.rules()
        self._pipe, self._docs, self._scores, self._clamp = pipe, docs, scores, clamp
        self._rules, self._facts = compiled.all.upto(len(docs[0])), compiled.matcher(docs)
        self._places = self._rules.places
        self._no_scores = arrays.zeros(scores)
        self.left_out: list[RuleEffect] = []

    def leave_out(self, clamps: list[Any], effect: str) -> None:
        """Leaves out the rules that no labelling under some clamps keeps.

        effect (str): What they do to these labellings.
        """
        best = self.best(clamps)
        for rule in best.relaxed if best else ():
            self._places -= {rule.place}
            self.left_out.append(RuleEffect(rule.name, rule.kind, None, effect))

    def best(self, clamps: list[Any]) -> Optional[Best]:
        """The best labelling that one of some clamps allows, and how the rules are kept by it; None if there is none."""
        from ..constraints.decoding import Documents, KeptRules, decode

        kept = None if self._places == self._rules.places else KeptRules(self._places, {})
        found = []
        for clamp in clamps:
            clamp = clamp if self._clamp is None else clamp & self._clamp
            if not (self._structure.viterbi(self._scores, clamp=clamp).scores > -np.inf).all():
                continue
            documents = Documents(self._scores, clamp, self._facts, self._docs.words)
            decoded = decode(self._rules, documents, self._docs.bounds, kept)
            score = float(self._structure.path_score(self._scores, decoded.tags).sum())
            score += sum(cost for cost in self.costs(decoded.tags).values() if cost > -np.inf)
            found.append(Best(decoded.tags, score, decoded.relaxed.get(0, [])))
        return min(found, key=lambda best: (len(best.relaxed), -best.score), default=None)

    def costs(self, path: NDArray[np.int32]) -> dict[int, float]:
        """What each rule that holds takes off a labelling, by its place."""
        totals, costs = self._rules.totals(path, self._scores.starts, self._docs.bounds)[0], {}
        for place in self._places:
            prices = self._rules.decodable(self._no_scores, self._facts, [place])
            of_automata = totals[self._rules.automata_of([place])].sum()
            costs[place] = float(self._structure.path_score(prices, path).sum() + of_automata)
        return costs

    def rows(self, having: NDArray[np.int32], lacking: NDArray[np.int32]) -> list[Row]:
        """What soft rules add to the difference of the scores of two labellings."""
        ours, theirs, rows = self.costs(having), self.costs(lacking), []
        for rule in self._rules.rules:
            if not rule.hard and ours.get(rule.place, 0.0) != theirs.get(rule.place, 0.0):
                cost = ours[rule.place] - theirs[rule.place]
                rows.append(Row(f"rule {rule.name}", rule.kind, None, None, None, (), 1.0, cost, 1.0, cost))
        return rows

    def apply(self) -> Any:
        """The scores with the rules that have no memory."""
        return self._rules.apply(self._scores, self._facts, self._places)

    def graph(self) -> Any:
        """What answers for the others, as far as probabilities know them; None if there are none."""
        automata = self._rules.fitting.intersection(self._rules.automata_of(self._places))
        return self._rules.graph(automata) if automata else None

    def effects(self) -> list[RuleEffect]:
        """Which of all rules change the best labelling."""
        _, changes = effects(self._pipe, self._docs[0])
        return [
            RuleEffect(rule.name, rule.kind, None if rule.hard else rule.weight, "changes the labelling", price,
                       [(span.start, span.end, span.label_) for span in spans])
            for rule, spans, price in changes
        ]  # fmt: skip

    @property
    def _structure(self) -> Any:
        return self._pipe.decoding.explained


class Effect(NamedTuple):
    """What a rule changes."""

    rule: "Rule"
    spans: list[Span]  # that it leaves
    price: float  # how much worse the model finds them than those before, in log-odds


def effects(pipe: "CRFPipe", doc: Doc) -> tuple[list[Span], list[Effect]]:
    """The best labelling without rules, and what it becomes as the rules are added in their order.

    RETURNS (List[Span], List[Effect]): The spans without rules, and each rule that changed them.
    """
    from ..constraints.decoding import Documents

    compiled = pipe.rules()
    docs = DocBatch([doc])
    scores = pipe.model.predict(docs)
    facts = compiled.matcher(docs)
    every, structure = compiled.all.rules, pipe.decoding.structure

    def best(rules: "list[Rule]") -> tuple[list[Span], float]:
        some = pipe.decoding.compile_rules(pipe.constraints.only(rules.__contains__))
        found = pipe.decoding.decode(some, Documents(scores, None, facts, docs.words), docs.bounds)
        path = pipe.decoding.path(found.tags, scores.starts)
        work = structure.prepare(scores)
        score = float(structure.log_partition(work, clamp=pipe.decoding.only(structure, work, path)).sum())
        return pipe.spans_of(doc, pipe.decoding.segments(found.tags, scores.starts)), score

    before, score = best([])
    now, changes = before, []
    for n, rule in enumerate(every, start=1):
        spans, less = best(every[:n])
        if spans != now:
            changes.append(Effect(rule, spans, score - less))
            now, score = spans, less
    return before, changes
