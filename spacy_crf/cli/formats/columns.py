"""Columns, as shared tasks write them: a token on each line, an empty line between sentences."""

import re
from collections.abc import Iterator
from typing import Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors
from .settings import Report, Settings
from .source import Source
from .tags import Row, is_tag, tagged_docs


def sniff(source: Source) -> bool:
    return not source.is_json()


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    """The word is in the first column and the entity tag in the last, unless the settings say otherwise. The line
    ``-DOCSTART-`` begins a document."""
    return tagged_docs(lambda: _sentences(source, settings, report), nlp.vocab, settings, report)


def _sentences(source: Source, settings: Settings, report: Report) -> Iterator[Optional[list[Row]]]:
    word, label, tag = (_number(settings, name) for name in ("word_column", "label_column", "tag_column"))
    least, width = max(2, word or 0, label or 0, tag or 0), None
    rows: list[Row] = []
    for place, line in source.lines():
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or cells[0] == "-DOCSTART-":
            if rows:
                yield rows
            if line.strip():
                yield None
            rows = []
            continue
        if line.startswith("# ") and not is_tag(cells[-1]) and len(cells) != width:
            continue  # a comment
        expected = (
            f"at least {least} (the word first, the tag last)" if width is None else f"{width}, as in the lines before,"
        )
        if len(cells) < least or len(cells) != (width or len(cells)):
            raise ValueError(Errors.CRF703.format(place=place, got=len(cells), expected=expected))
        if width is None:
            width = len(cells)
            read_from = {word or 1, label or width, tag}
            report.columns = [str(n) for n in range(1, width + 1) if n not in read_from]
        row = Row(
            place,
            cells[(word or 1) - 1],
            cells[(label or width) - 1].strip() if label or tag != width else None,
            cells[tag - 1] if tag else None,
        )
        if not row.word or row.ent == "":
            what = "word" if not row.word else "tag"
            raise ValueError(Errors.CRF701.format(place=place, reason=f"the {what} is empty"))
        rows.append(row)
    if rows:
        yield rows


def _number(settings: Settings, name: str) -> Optional[int]:
    """A column, counted from 1."""
    value = getattr(settings, name)
    if value is None:
        return None
    if not re.fullmatch("[1-9][0-9]{0,5}", value):
        raise ValueError(Errors.CRF868.format(option=name.replace("_", "-"), value=value, known="numbers from 1"))
    return int(value)
