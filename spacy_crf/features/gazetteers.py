"""Gazetteers: named lists of phrases, found with spaCy's PhraseMatcher.

The value at a token is its position in the longest match that covers it (``B``, ``I``, ``L`` or ``U``), behind it the
label of the entry where the list has labels. Tokens outside every match have no value.
"""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.matcher import PhraseMatcher
from spacy.strings import hash_string
from spacy.tokens import Doc
from spacy.util import filter_spans
from spacy.vocab import Vocab

from ..errors import Errors
from ..kernels.hashing import ABSENT

_NO_LABEL = ""


class Gazetteer:
    """Phrases under an optional label, compared by one token attribute (LOWER unless told otherwise).

    entries: Words and label of each phrase; duplicates are kept once.
    """

    def __init__(self, entries: Iterable[tuple[tuple[str, ...], str]], *, attr: str = "LOWER"):
        self.entries = list(dict.fromkeys(entries))
        self.attr = attr
        self._matcher: Optional[PhraseMatcher] = None
        labels = {label for _, label in self.entries}
        self._hashes = {
            (position, label): np.uint64(hash_string(_value_name(position, label)))
            for position in "BILU"
            for label in labels
        }

    @property
    def value_names(self) -> dict[int, str]:
        """Names of the values by their hash."""
        return {int(hashed): _value_name(*key) for key, hashed in self._hashes.items()}

    def __call__(self, doc: Doc) -> NDArray[np.uint64]:
        """RETURNS (uint64[T]): Hash of each token's value, ABSENT outside the matches."""
        if self._matcher is None or self._matcher.vocab is not doc.vocab:
            self._matcher = self._compile(doc.vocab)
        values = np.full(len(doc), ABSENT, dtype=np.uint64)
        for span in filter_spans(self._matcher(doc, as_spans=True)):
            label = "" if span.label_ == _UNLABELLED else span.label_
            for i in range(span.start, span.end):
                position = "U" if len(span) == 1 else "B" if i == span.start else "L" if i == span.end - 1 else "I"
                values[i] = self._hashes[position, label]
        return values

    def _compile(self, vocab: Vocab) -> PhraseMatcher:
        matcher = PhraseMatcher(vocab, attr=self.attr)
        by_label: dict[str, list[Doc]] = {}
        for words, label in self.entries:
            by_label.setdefault(label, []).append(Doc(vocab, words=list(words)))
        for label, docs in by_label.items():
            matcher.add(label or _UNLABELLED, docs)
        return matcher

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_matcher": None}

    def to_dict(self) -> dict[str, Any]:
        return {"attr": self.attr, "entries": [[list(words), label] for words, label in self.entries]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Gazetteer":
        return cls(((tuple(words), label) for words, label in data["entries"]), attr=data["attr"])


_UNLABELLED = "spacy_crf_unlabelled"


def _value_name(position: str, label: str) -> str:
    return f"{position}-{label}" if label else position


def read_gazetteer(
    name: str, path: Union[str, Path], tokenizer: Callable[[str], Doc], *, attr: str = "LOWER"
) -> Gazetteer:
    """Reads a list of phrases: a text file with one phrase a line, or JSONL with one string or one object a line, whose
    phrase is under ``pattern`` (as in spaCy's EntityRuler) or ``text``, and whose ``label`` may be left out.

    RAISES (ValueError): CRF112 or CRF113 with the file, the line and what is wrong.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(Errors.CRF112.format(name=name, path=path, reason=error)) from error
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(_entry(line) if path.suffix in (".jsonl", ".json") else (line.strip(), _NO_LABEL))
        except ValueError as error:
            raise ValueError(Errors.CRF113.format(line=number, name=name, path=path, reason=error)) from error

    # A tokenizer cuts what stands between blanks on its own; long lists repeat most of their words.
    @cache
    def words_of(chunk: str) -> tuple[str, ...]:
        return tuple(token.text for token in tokenizer(chunk))

    tokenized = ((tuple(word for chunk in text.split() for word in words_of(chunk)), label) for text, label in entries)
    return Gazetteer(((words, label) for words, label in tokenized if words), attr=attr)


def _entry(line: str) -> tuple[str, str]:
    item = json.loads(line)
    if isinstance(item, str):
        return item, _NO_LABEL
    if isinstance(item, dict):
        text, label = item.get("pattern", item.get("text")), item.get("label", _NO_LABEL)
        if isinstance(text, str) and isinstance(label, str):
            return text, label
    raise ValueError("expected a string, or an object with a string under 'pattern' or 'text'")
