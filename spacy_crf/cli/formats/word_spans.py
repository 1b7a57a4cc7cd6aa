"""Reads JSON of words with spans of words: GLiNER's ``{"tokenized_text": […], "ner": [[0, 1, "PER"]]}``, with inclusive ends, and
SpERT's ``{"tokens": […], "entities": [{"type": "PER", "start": 0, "end": 2}]}``."""

from collections.abc import Iterator
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...blanks import is_blank
from ...errors import Errors, shown
from ...pipeline.origins import set_origin
from .annotation import GivenSpan, Span, annotated, holds_annotation, is_label, is_unicode, make_doc
from .columns import spaces_between
from .source import ReadSettings, Report, Source, unreadable


class _Keys(NamedTuple):
    words: str
    spans: str
    behind: int  # how far the word behind a span is from its "end"


_KEYS = (_Keys("tokenized_text", "ner", 1), _Keys("tokens", "entities", 0))


def sniff(source: Source) -> bool:
    """Whether items have words and spans of words."""
    return any(map(_keys_of, source.head_objects()))


def _keys_of(item: object) -> Optional[_Keys]:
    if not isinstance(item, dict) or "text" in item or any(key.endswith("tags") for key in item):
        return None
    return next(
        (keys for keys in _KEYS if _is_words(item.get(keys.words)) and isinstance(item.get(keys.spans), list)), None
    )


def _is_words(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc from each item. With `retokenize` in the settings, the tokenizer cuts the words again, joined by spaces.

    RAISES (ValueError): CRF701 with the place, if an item has no words with spans; CRF707 if it has other annotation.
    """
    for place, value in source.items():
        item = (
            {key: part for key, part in value.items() if key not in settings.ignore}
            if isinstance(value, dict)
            else value
        )
        keys = _keys_of(item)
        if keys is None:
            known = " or ".join(f'"{each.words}" with "{each.spans}"' for each in _KEYS)
            raise unreadable(place, f"it has no words with spans ({known}): {shown(value)}")
        words = item[keys.words]
        if not all(is_unicode(word) and not is_blank(word) for word in words):
            raise unreadable(place, f"a word is empty or not valid Unicode: {shown(value)}")
        for key, part in item.items():
            if key not in (keys.words, keys.spans) and part and (key == "relations" or holds_annotation(part)):
                raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(part), known=keys.spans))
        report.has_spans = True
        doc = Doc(nlp.vocab, words=words, spaces=spaces_between(words, nlp.lang))
        spans, is_complete = _spans(item[keys.spans], keys, doc, place, report)
        common = {"is_complete": is_complete, "place": place, "settings": settings, "report": report}
        if settings.retokenize:
            doc = make_doc(nlp, doc.text.rstrip(), spans, **common)
        else:
            doc = annotated(doc, doc.text, spans, **common)
        set_origin(doc, place, item.get("id"))
        yield doc


def _spans(values: list[object], keys: _Keys, doc: Doc, place: str, report: Report) -> tuple[list[Span], bool]:
    """The spans as characters, and whether none of them is broken."""
    found: list[Span] = []
    is_complete = True
    for value in values:
        start, end, label, _ = GivenSpan.of(value)
        are_words = type(start) is int and type(end) is int and 0 <= start < end + keys.behind <= len(doc)
        # Offsets count words; the rest of the code reads characters
        if are_words and isinstance(label, str) and is_label(label):
            of_words = doc[start : end + keys.behind]
            found.append(Span(of_words.start_char, of_words.end_char, label))
            continue
        reason = f"a span needs its first and last word, within {len(doc)} words, and a label, not {shown(value)}"
        report.broken.append(str(unreadable(place, reason)))
        is_complete = False
    return found, is_complete
