"""Why a component makes its mistakes: the features that speak for them, and the rules."""

from collections.abc import Sequence
from typing import NamedTuple

from spacy.tokens import Span

from ..explain.comparison import NothingToCompare, effects
from .cases import Case, Judged, certainty

MOST_EXPLAINED = 200  # mistakes: the most certain ones are explained
TOP = 6  # features of each

Reason = tuple[str, str, float]  # feature, its words, what it adds


def reasons(judged: Judged, most: int = MOST_EXPLAINED) -> dict[int, list[Reason]]:
    """Explain the most certain mistakes: features for the found mention against the annotated one, or against all others if
    nothing is annotated; for a missed mention, features for and against it.

    RETURNS (dict[int, list[Reason]]): Reasons by the number of the mistake.
    """
    numbered = sorted(enumerate(judged.errors), key=lambda item: -certainty(item[1]))[:most]
    return {number: found for number, case in numbered if (found := _reasons(judged, case))}


def _reasons(judged: Judged, case: Case) -> list[Reason]:
    doc = judged.examples[case.doc].predicted
    spans = [
        doc.char_span(mention.start, mention.end, label=mention.label)
        for mention in (case.found, case.gold)
        if mention is not None and mention.label in judged.pipe.labels
    ]
    if not spans or None in spans:
        return []  # the annotation has another tokenization
    try:
        explanation = judged.pipe.explain(doc, *spans)
    except NothingToCompare:  # such as an entity that crosses sentences
        return []
    rows = explanation.table(TOP)[:TOP]
    return [(feature, words, float(contribution)) for contribution, feature, words, _ in rows]


MOST_TEXTS = 1000  # texts for the effects of rules


class RuleEffect(NamedTuple):
    rule: str
    weight: str
    changed: int  # texts
    mended: int  # annotated mentions that the rule adds
    broken: int  # annotated mentions that the rule removes


def rule_effects(judged: Judged) -> list[RuleEffect]:
    """Effects of each rule on the first `MOST_TEXTS` texts: in how many it changes the labelling under the rules before it, and
    how many annotated mentions it adds and removes."""
    pipe = judged.pipe
    if pipe.rules() is None:
        return []
    counts = {rule.name: [0, 0, 0] for rule in pipe.rules().all.rules}
    for example in judged.examples[:MOST_TEXTS]:
        if not len(example.predicted):
            continue
        gold = {mention.place for mention in pipe.annotation.mentions(example)[0]}
        before, changes = effects(pipe, example.predicted)
        right = _right(before, gold)
        for change in changes:
            now = _right(change.spans, gold)
            for n, amount in enumerate((1, len(now - right), len(right - now))):
                counts[change.rule.name][n] += amount
            right = now
    weights = {rule.name: "hard" if rule.hard else f"{rule.weight:g}" for rule in pipe.rules().all.rules}
    return [RuleEffect(name, weights[name], *numbers) for name, numbers in counts.items()]


def _right(spans: Sequence[Span], gold: set[tuple[int, int, str]]) -> set[tuple[int, int, str]]:
    return {(span.start_char, span.end_char, span.label_) for span in spans} & gold
