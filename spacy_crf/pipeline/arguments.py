"""What users pass to methods: checked once, before anything is computed."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from spacy.tokens import Doc, Span
from spacy.util import registry

from ..errors import Errors, shown
from ..features.doc_batch import DocBatch


def only_docs(name: str, docs: Iterable[Doc]) -> Iterator[Doc]:
    """What is to be labelled. RAISES (ValueError): CRF479 if something in it is no Doc."""
    if not isinstance(docs, Iterable):
        raise ValueError(Errors.CRF479.format(name=name, value=shown(docs)))
    for doc in docs:
        if not isinstance(doc, Doc):
            raise ValueError(Errors.CRF479.format(name=name, value=shown(doc)))
        yield doc


def doc_batch(name: str, docs: Iterable[Doc]) -> DocBatch:
    """The same at once."""
    return docs if isinstance(docs, DocBatch) else DocBatch(only_docs(name, docs))


def check_doc(name: str, doc: Any) -> None:
    """RAISES (ValueError): CRF460 if it is no Doc."""
    if not isinstance(doc, Doc):
        raise ValueError(Errors.CRF460.format(name=name, value=shown(doc)))


def check_knows_states(name: str, kind: str, given: Any) -> None:
    """For a component whose tags have hidden states.

    name (str): Of the component. kind (str): "loss" or "optimizer".
    RAISES (ValueError): CRF347 for a loss, CRF348 for an optimizer that has to know the state of each token.
    """
    if getattr(given, "names_states", False):
        known = getattr(registry, {"loss": "losses", "optimizer": "optimizers"}[kind]).get_all()
        ours = {key: each for key, each in sorted(known.items()) if key.startswith("spacy_crf.")}
        fitting = ", ".join(key for key, each in ours.items() if not getattr(each, "names_states", False))
        message = Errors.CRF347 if kind == "loss" else Errors.CRF348
        raise ValueError(message.format(name=name, fitting=fitting, **{kind: type(given).__name__}))


def labelling(name: str, doc: Doc, spans: Iterable[Span]) -> list[tuple[int, int, str]]:
    """First token, the one behind the last, and label of spans that are to be one labelling of a Doc, in their order.

    spans (Iterable[Span]): Of this Doc, or of another one with the same words.
    RAISES (ValueError): If they overlap, or are no spans of it.
    """
    found = []
    if not isinstance(spans, Iterable) or isinstance(spans, (Doc, Span)):
        raise ValueError(Errors.CRF461.format(name=name, value=shown(spans)))
    for span in spans:
        if not isinstance(span, Span) or not len(span):
            raise ValueError(Errors.CRF461.format(name=name, value=shown(span)))
        if span.doc is not doc and [token.text for token in span.doc] != [token.text for token in doc]:
            raise ValueError(
                Errors.CRF462.format(name=name, span=span.text, other=span.doc.text[:40], doc=doc.text[:40])
            )
        found.append((span.start, span.end, span.label_))
    found.sort()
    for one, other in pairwise(found):
        if other[0] < one[1]:
            one, other = (
                f"'{doc[start:end].text}' ({label}, tokens {start} to {end})" for start, end, label in (one, other)
            )
            raise ValueError(Errors.CRF409.format(name=name, one=one, other=other))
    return found
