"""Refuses by name the files that `convert` does not read, which would otherwise be taken for columns or tables."""

import re
from pathlib import Path
from statistics import mode
from typing import NamedTuple

from ...blanks import split_columns
from ...errors import Errors
from .columns import is_tag
from .source import Source

_HEAD_BYTES = 512
_FEWEST_LIKE_COLUMNS = 0.8  # share of lines with the usual number of columns, in a file of columns


class Refused(NamedTuple):
    """A format, what begins its files, and what to do with them."""

    title: str
    begins: bytes
    advice: str


_TABLE = "Save the sheet as CSV (UTF-8)"
_TEXT = "Save the texts as lines or JSONL and annotate them, or export the annotation as JSONL"
_UNPACK = "Unpack it, and convert what is in it"
# What is in a zip file decides between these, by name
_IN_ZIP = {".xlsx": ("an Excel file", _TABLE), ".ods": ("a spreadsheet", _TABLE)}
_IN_ZIP |= dict.fromkeys((".docx", ".odt", ".pptx"), ("a document of an office program", _TEXT))
_BINARY = (
    Refused("a zip archive", b"PK\x03\x04", _UNPACK),
    Refused("a gzip archive", b"\x1f\x8b", _UNPACK),
    Refused("an old Excel or Word file", b"\xd0\xcf\x11\xe0", "Save it as CSV (UTF-8) or as text"),
    Refused("a PDF", b"%PDF", _TEXT),
    Refused("an RTF document", rb"{\rtf", _TEXT),
    Refused("a Parquet file", b"PAR1", "Write it as JSONL: pandas' to_json(orient='records', lines=True)"),
    Refused("an Arrow file", b"ARROW1", "Write it as JSONL: Dataset.to_json of Hugging Face"),
    Refused("a SQLite database", b"SQLite format 3", "Export its annotation as JSONL, as `prodigy db-out` does"),
)
_PATTERNS = (
    ("WebAnno TSV 3 (INCEpTION)", r"#FORMAT=WebAnno TSV", "Export it as CoNLL 2002, or as CoNLL-U"),
    ("PubTator", r"\d+\|t\|", "Convert it to brat's standoff or to JSONL with offsets into the joined text"),
    ("UIMA's XMI", r"(<\?xml[^>]*>\s*)?<xmi:XMI", "Export it as CoNLL 2002"),
    ("GATE's XML", r"(<\?xml[^>]*>\s*)?<GateDocument", "Export it as JSONL with spans"),
    (
        "BioC XML",
        r"(<\?xml[^>]*>\s*)?(<!DOCTYPE collection[^>]*>\s*)?<collection>\s*<source>",
        "Convert it to brat's standoff",
    ),
    ("HTML", r"(?i)<!doctype html|<html", _TEXT),
    (
        "Rasa's YAML",
        r"version:.*\s+nlu:|nlu:\s",
        "Convert it: `rasa data convert nlu -f json`, and write its examples as JSONL",
    ),
    ("Rasa's Markdown", r"## (intent|synonym|lookup|regex):", "Convert it: `rasa data convert nlu -f json`"),
)
# A key of a JSON object, or a path of keys
_JSON = (
    (("rasa_nlu_data",), "Rasa's JSON", 'Write the list under "common_examples" as JSONL'),
    (("documents", "passages"), "BioC JSON", "Convert it to brat's standoff"),
)


def refuse_binary(path: Path) -> None:
    """RAISES (ValueError): CRF756 with the name of the format, if the file is no text."""
    # The beginning of a file says more than its name: exports are often renamed
    head = _head(path)
    for known in _BINARY:
        if head.startswith(known.begins):
            title, advice = _IN_ZIP.get(path.suffix.lower(), (known.title, known.advice))
            raise _refusal(path, title, advice)


def refuse(source: Source) -> None:
    """RAISES (ValueError): CRF756 with the name of the format, if it is known and not read."""
    if source.path.is_dir():
        return
    refuse_binary(source.path)
    head = _head(source.path)
    text = head.decode(source.encoding, "ignore").lstrip("\ufeff \t\r\n")
    for title, pattern, advice in _PATTERNS:
        if re.match(pattern, text):
            raise _refusal(source.path, title, advice)
    if text.startswith("{") and source.is_json():
        for keys, title, advice in _JSON:
            if keys[0] in text and _has(next(iter(source.head_items()), None), keys):
                raise _refusal(source.path, title, advice)


def refuse_running_text(source: Source) -> None:
    """RAISES (ValueError): CRF757 if the lines of a file have as many words as they please, and no tags at their ends."""
    rows = [split_columns(line) for line in source.head_lines() if not line.startswith("#")]
    if not rows or any(is_tag(row[-1].strip()) for row in rows):
        return
    widths = [len(row) for row in rows]
    usual = mode(widths)
    n_usual = widths.count(usual)
    if n_usual < _FEWEST_LIKE_COLUMNS * len(rows):
        n, other = next((n, width) for n, width in enumerate(widths, start=1) if width != widths[0])
        raise ValueError(Errors.CRF757.format(path=source.path, first=widths[0], n=n, other=other))


def _has(value: object, keys: tuple[str, ...]) -> bool:
    for key in keys:
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _refusal(path: Path, title: str, advice: str) -> ValueError:
    return ValueError(Errors.CRF756.format(path=path, title=title, advice=advice))
