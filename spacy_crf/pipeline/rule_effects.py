"""Which rule changes what in a text."""

from typing import NamedTuple

from spacy.tokens import Doc, Span

from ..constraints.decoding import Documents
from ..constraints.rule import Rule
from ..features.doc_batch import DocBatch
from .crf_pipe import CRFPipe


class Effect(NamedTuple):
    """What a rule changes."""

    rule: Rule
    spans: list[Span]  # that it leaves
    price: float  # how much worse the model finds them than those before, in log-odds


def effects(pipe: CRFPipe, doc: Doc) -> tuple[list[Span], list[Effect]]:
    """The best labelling without rules, and what it becomes as the rules are added in their order.

    RETURNS (List[Span], List[Effect]): The spans without rules, and each rule that changed them.
    """
    compiled = pipe.rules()
    docs = DocBatch([doc])
    scores = pipe.model.predict(docs)
    facts = compiled.matcher(docs)
    every, structure = compiled.all.rules, pipe.decoding.structure

    def best(rules: list[Rule]) -> tuple[list[Span], float]:
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
