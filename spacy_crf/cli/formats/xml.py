"""Reads XML whose elements are the parts of texts: that of parserator (usaddress, probablepeople) and of AnyStyle. Each child of
the root is a text, and its children are named by labels: ``<Name><GivenName>Ann</GivenName> <Surname>Lee</Surname></Name>``."""

from collections.abc import Iterator
from xml.etree import ElementTree

from spacy.language import Language
from spacy.tokens import Doc

from ...blanks import split_words
from ...pipeline.origins import set_origin
from .annotation import Span, make_doc
from .source import ReadSettings, Report, Source, unreadable

_OUTSIDE = "Null"  # parserator's label of words without label


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc for each text. Parts are joined by one space, and neighbouring ones with the same label are one span.

    RAISES (ValueError): CRF701 with the place, if the file is not XML, or a text is empty, or has parts within parts.
    """
    try:
        root = ElementTree.fromstring(source.text())
    except ElementTree.ParseError as error:
        raise unreadable(source.path, f"not XML: {error}") from error
    report.has_spans = True
    for n, element in enumerate(root, 1):
        place = f"{source.path}, text {n} <{element.tag}>"
        text, spans = _parts(element)
        if not text or any(len(part) for part in element):
            raise unreadable(
                place, "a text consists of words, and of elements whose names are labels and which hold words only"
            )
        doc = make_doc(nlp, text, spans, place=place, settings=settings, report=report)
        set_origin(doc, place)
        yield doc


def _parts(element: ElementTree.Element) -> tuple[str, list[Span]]:
    """The text of an element, joined by spaces, and the spans of its parts."""
    pieces = [("", element.text)]
    for part in element:
        pieces += [("" if part.tag == _OUTSIDE else part.tag, part.text), ("", part.tail)]
    text = ""
    spans = []
    for label, words in ((label, " ".join(split_words(words or ""))) for label, words in pieces):
        if not words:
            continue
        start = len(text) + bool(text)
        text = f"{text} {words}" if text else words
        if label:
            goes_on = bool(spans) and spans[-1].label == label and spans[-1].end == start - 1
            spans.append(Span(spans.pop().start if goes_on else start, len(text), label))
    return text, spans
