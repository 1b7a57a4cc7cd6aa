"""Which rule changes what in a text."""

from spacy.tokens import Doc, Span

from ..constraints.automaton import SpanTags
from ..constraints.decoding import decode
from ..constraints.rule_set import RuleSet
from ..constraints.rules import Rule
from ..features.columns import doc_bounds
from .chain_pipe import ChainPipe, words_of


def effects(pipe: ChainPipe, doc: Doc) -> tuple[list[Span], list[tuple[Rule, list[Span]]]]:
    """The best labelling without rules, and what it becomes as the rules are added in their order.

    RETURNS (List[Span], List[Tuple[Rule, List[Span]]]): The spans without rules, and for each rule that changed them the spans it
        left.
    """
    compiled = pipe.rules()
    scores = pipe.model.predict([doc])
    facts = compiled.matcher([doc])
    every: RuleSet = compiled.all
    tags: SpanTags = every.tags

    def best(rules: list[Rule]) -> list[Span]:
        some = RuleSet(pipe.constraints.only(rules.__contains__), tags, pipe.transition_mask())
        found = decode(some, scores, doc_bounds([doc]), facts, words_of([doc]), pipe.span_states())
        return pipe._spans(doc, pipe.segments(found.tags, scores.starts))

    before = now = best([])
    changes = []
    for n, rule in enumerate(every.rules, start=1):
        spans = best(every.rules[:n])
        if spans != now:
            changes.append((rule, spans))
            now = spans
    return before, changes
