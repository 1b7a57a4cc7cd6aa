"""Reads CoNLL-U: words with tags, morphology, lemmas and heads in ten columns."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, counted
from .columns import find_scheme, in_bio, in_groups, is_tag
from .source import ReadSettings, Report, Source, unreadable

_WIDTH = 10
_ID = re.compile(r"[0-9]{1,9}([-.][0-9]{1,9})?")  # a word, the words of a contraction, or an empty node
_ENTITY_KEYS = ("ner", "ne", "name")  # keys in the last column: NER=B-PER


class Word(NamedTuple):
    place: str
    cells: list[str]
    space: bool
    ent: Optional[str]  # the entity tag


def sniff(source: Source) -> bool:
    rows = [line.split("\t") for line in source.head_lines() if not line.startswith("#")]
    return bool(rows) and len(rows[0]) == _WIDTH and _ID.fullmatch(rows[0][0]) is not None


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read sentences. Keeps the words of contractions (1-2), and skips empty nodes (1.1). The line ``# newdoc`` begins a
    document."""
    if any(word.ent for sentence in _sentences(source) for word in sentence or ()):
        report.has_spans = True
        report.scheme = settings.scheme or find_scheme(_sentences(source, "O"))
    for group in in_groups(_sentences(source, "O"), settings.n_sents):
        docs = [_make_doc(sentence, nlp, report.scheme) for sentence in group]
        yield docs[0] if len(docs) == 1 else Doc.from_docs(docs, ensure_whitespace=False)


def _sentences(source: Source, outside: Optional[str] = None) -> Iterator[Optional[list[Word]]]:
    """Yield the words of each sentence, and None at the end of each document.

    outside (str): The entity tag of words without one.
    """
    words: list[Word] = []
    contraction: Optional[tuple[int, bool]] = None  # its last word, and whether a space follows it
    for place, line in source.lines():
        if not line.strip() or line.startswith("#"):
            if words:
                yield words
            if line.replace(" ", "").startswith("#newdoc"):
                yield None
            words = []
            continue
        cells = line.split("\t")
        if len(cells) != _WIDTH:
            raise ValueError(Errors.CRF703.format(place=place, got=len(cells), expected=f"{_WIDTH}, as CoNLL-U has,"))
        if _ID.fullmatch(cells[0]) is None:
            raise unreadable(place, f"'{cells[0]}' is not the number of a word")
        space = "SpaceAfter=No" not in cells[9].split("|")
        if "-" in cells[0]:
            contraction = int(cells[0].partition("-")[2]), space
            continue
        if "." in cells[0]:
            continue
        number = int(cells[0])
        if number != len(words) + 1:
            at = f"it is word {len(words) + 1} of its sentence but has the number {number}"
            raise unreadable(place, f"{at}: a line is missing")
        if contraction and number <= contraction[0]:
            space = number == contraction[0] and contraction[1]
        else:
            contraction = None
        if not cells[1].strip():
            raise unreadable(place, "the word is empty")
        pairs = (part.partition("=") for part in cells[9].split("|"))
        tags = (value for key, _, value in pairs if key.lower() in _ENTITY_KEYS and is_tag(value))
        words.append(Word(place, cells, space, next(tags, outside)))
    if words:
        yield words


def _make_doc(words: list[Word], nlp: Language, scheme: str) -> Doc:
    columns = [["" if cell == "_" else cell for cell in column] for column in zip(*(word.cells for word in words))]
    _, _, lemmas, pos, tags, morphs, heads, deps, _, _ = columns
    annotation: dict[str, Any] = {"lemmas": lemmas, "pos": pos, "tags": tags, "morphs": morphs}
    if not any(tags):
        annotation["tags"] = pos
    if any(heads) and any(deps):
        annotation["heads"] = []
        for n, word in enumerate(words):
            head = word.cells[6]
            if head not in ("0", "_") and (not head.isdecimal() or len(head) > 9 or not 0 < int(head) <= len(words)):
                has = counted(len(words), "word")
                raise unreadable(word.place, f"its head '{head}' is not a word of its sentence, which has {has}")
            annotation["heads"].append(n if head in ("0", "_") else int(head) - 1)
        annotation["deps"] = ["ROOT" if dep.lower() == "root" else dep for dep in deps]
    annotation = {name: values for name, values in annotation.items() if any(values) or name == "heads"}
    if scheme:
        annotation["ents"] = in_bio(words, scheme)
    forms = [word.cells[1] for word in words]
    try:
        return Doc(nlp.vocab, words=forms, spaces=[word.space for word in words], **annotation)
    except (ValueError, KeyError) as error:
        raise unreadable(words[0].place, f"spaCy says: {error}") from None
