"""Words and their tags in lists, as data sets of Hugging Face have them: ``{"tokens": […], "ner_tags": […]}``."""

from collections.abc import Iterator
from typing import Any, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from .settings import Report, Settings
from .source import Item, Source
from .spans import is_unicode
from .tags import Row, tagged_docs

_WORDS = ("tokens", "words")
_ENTS = ("ner_tags", "ner", "tags", "labels")
_TAGS = ("pos_tags", "pos", "upos", "xpos")


def sniff(source: Source) -> bool:
    return source.is_json() and any(_key(item, _WORDS) and _key(item, _ENTS) for item in source.head_items())


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    """A sentence in each item. Tags that are numbers need the settings' ``tag_names``."""
    return tagged_docs(lambda: _sentences(source, settings), nlp.vocab, settings, report)


def _key(item: Any, known: tuple[str, ...]) -> Optional[str]:
    """The first key that holds a list of words, of tags or of their numbers."""
    lists = item.items() if isinstance(item, dict) else ()
    found = {key for key, value in lists if isinstance(value, list) and all(type(part) in (str, int) for part in value)}
    return next((key for key in known if key in found), None)


def _sentences(source: Source, settings: Settings) -> Iterator[list[Row]]:
    for place, value in source.items():
        item = (
            {key: part for key, part in value.items() if key not in settings.ignore} if isinstance(value, dict) else {}
        )
        words, ents, tags = (_key(item, known) for known in (_WORDS, _ENTS, _TAGS))
        if words is None or ents is None or not all(isinstance(word, str) for word in item[words]):
            reason = f'it has no list of words under "tokens", or none of tags under "ner_tags": {shown(value)}'
            raise ValueError(Errors.CRF701.format(place=place, reason=reason))
        if tags and not all(isinstance(tag, str) for tag in item[tags]):
            tags = None  # numbers without names: told below
        _check(Item(place, item), [key for key in (words, ents, tags) if key])
        names = [_named(tag, settings, place) for tag in item[ents]]
        of_tags = item[tags] if tags else [None] * len(names)
        rows = [Row(place, *row) for row in zip(item[words], names, of_tags)]
        if any(not row.word.strip() or not row.ent for row in rows):
            raise ValueError(Errors.CRF701.format(place=place, reason=f"a word or a tag is empty: {shown(value)}"))
        if not all(is_unicode(part or "") for row in rows for part in row):
            raise ValueError(
                Errors.CRF701.format(place=place, reason=f"a word or a tag is not valid Unicode: {shown(value)}")
            )
        yield rows


def _check(item: Item, used: list[str]) -> None:
    """RAISES (ValueError): If lists are of different lengths, or one that belongs to the words would be lost."""
    length = len(item.value[used[0]])
    for key in used[1:]:
        if len(item.value[key]) != length:
            reason = f'{length} words under "{used[0]}", but {len(item.value[key])} tags under "{key}"'
            raise ValueError(Errors.CRF701.format(place=item.place, reason=reason))
    for key, value in item.value.items():
        if key not in used and isinstance(value, list) and value and key.endswith(("tags", "labels", "ner")):
            known = ", ".join(used[1:])
            raise ValueError(Errors.CRF707.format(place=item.place, key=key, value=shown(value), known=known))


def _named(tag: Any, settings: Settings, place: str) -> str:
    if isinstance(tag, str):
        return tag
    if not 0 <= tag < len(settings.tag_names):
        raise ValueError(Errors.CRF870.format(place=place, tag=shown(tag), n=len(settings.tag_names)))
    return list(settings.tag_names)[tag]
