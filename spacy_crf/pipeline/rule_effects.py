"""Which rule changes what in a text."""

from spacy.tokens import Doc, Span

from ..constraints.decoding import Documents
from ..constraints.rules import Rule
from ..features.doc_batch import DocBatch
from .crf_pipe import CRFPipe


def effects(pipe: CRFPipe, doc: Doc) -> tuple[list[Span], list[tuple[Rule, list[Span]]]]:
    """The best labelling without rules, and what it becomes as the rules are added in their order.

    RETURNS (List[Span], List[Tuple[Rule, List[Span]]]): The spans without rules, and for each rule that changed them the spans it
        left.
    """
    compiled = pipe.rules()
    docs = DocBatch([doc])
    scores = pipe.model.predict(docs)
    facts = compiled.matcher(docs)
    every = compiled.all.rules

    def best(rules: list[Rule]) -> list[Span]:
        some = pipe.decoding.compile_rules(pipe.constraints.only(rules.__contains__))
        found = pipe.decoding.decode(some, Documents(scores, None, facts, docs.words), docs.bounds)
        return pipe.spans_of(doc, pipe.decoding.segments(found.tags, scores.starts))

    before = now = best([])
    changes = []
    for n, rule in enumerate(every, start=1):
        spans = best(every[:n])
        if spans != now:
            changes.append((rule, spans))
            now = spans
    return before, changes
