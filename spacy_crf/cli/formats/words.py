"""Words with their tags behind them, as ``Ann|B-PER ran|O``: a sentence on each line."""

from collections.abc import Iterator
from typing import Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors
from .settings import Report, Settings
from .source import Source
from .tags import Row, is_tag, tagged_docs


def sniff(source: Source) -> bool:
    if source.is_json():
        return False
    lines = [line for line in source.head_lines() if not _begins_document(line)]
    parts = [part for line in lines for part in line.split()]
    return bool(parts) and all("|" in part for part in lines[0].split()) and _share(parts) > 0.9


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    """``word|tag``, or ``word|part of speech|tag``. The last is the entity tag."""
    return tagged_docs(lambda: _sentences(source), nlp.vocab, settings, report)


def _share(parts: list[str]) -> float:
    return sum("|" in part and len(part.rpartition("|")[2]) > 0 for part in parts) / len(parts)


def _begins_document(line: str) -> bool:
    return line.startswith("-DOCSTART-")


def _sentences(source: Source) -> Iterator[Optional[list[Row]]]:
    width = None
    for place, line in source.lines():
        if _begins_document(line):
            yield None
            continue
        rows = []
        for part in line.split():
            width = width or (3 if part.count("|") == 2 and is_tag(part.rpartition("|")[2]) else 2)
            cells = part.rsplit("|", width - 1)
            if len(cells) != width or not cells[0] or not cells[-1]:
                reason = (
                    f"'{part}' is not {'word|tag' if width == 2 else 'word|part of speech|tag'}, as the words before"
                )
                raise ValueError(Errors.CRF701.format(place=place, reason=reason))
            rows.append(Row(place, cells[0], cells[-1], cells[1] if width == 3 else None))
        if rows:
            yield rows
