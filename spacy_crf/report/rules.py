"""What each rule of a component does to its mistakes."""

from collections.abc import Sequence
from typing import NamedTuple

from spacy.tokens import Span

from ..pipeline.rule_effects import effects
from .cases import Judged

MOST = 1000  # texts that are looked at


class RuleEffect(NamedTuple):
    rule: str
    weight: str
    changed: int  # texts
    mended: int  # mentions of the annotation that it brought
    broken: int  # and that it took away


def rule_effects(judged: Judged) -> list[RuleEffect]:
    """In how many texts a rule changes the labelling that those before it left, and what of the annotation comes and goes with
    that. Of the first `MOST` texts."""
    pipe = judged.pipe
    if pipe.rules() is None:
        return []
    counts = {rule.name: [0, 0, 0] for rule in pipe.rules().all.rules}
    for example in judged.examples[:MOST]:
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
