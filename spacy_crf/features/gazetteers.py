"""Gazetteers: named lists of phrases, found with spaCy's PhraseMatcher. (Whole spans look theirs up in ``phrases``.)

The value at a token is its position in the longest match that covers it (``B``, ``I``, ``L`` or ``U``), behind it the
label of the entry where the list has labels. Tokens outside every match have no value.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.lang.lex_attrs import word_shape
from spacy.matcher import PhraseMatcher
from spacy.strings import hash_string
from spacy.tokens import Doc
from spacy.util import filter_spans
from spacy.vocab import Vocab

from ..errors import Errors, Warnings, announcements, shown
from ..kernels.hashing import ABSENT

logger = logging.getLogger("spacy.spacy_crf")

# How the words of phrases and texts are spelled where they are compared
SPELLINGS: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "ORTH": str, "SHAPE": word_shape}
SHORT = 1000  # phrases
_NO_LABEL = ""

GazetteerFile = Union[str, Path, dict[str, Any]]


class Gazetteer:
    """Phrases under an optional label.

    entries: Words and label of each phrase; duplicates are kept once.
    attr: The token attribute that phrases and texts are compared by, one of `SPELLINGS`.
    scan: Whether spans are compared with all phrases where the nearest is asked for; by default in a short list.
    """

    def __init__(
        self, entries: Iterable[tuple[tuple[str, ...], str]], *, attr: str = "LOWER", scan: Optional[bool] = None
    ):
        self.entries = list(dict.fromkeys(entries))
        self.attr = attr
        self.scan = len(self.entries) <= SHORT if scan is None else scan
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
        return {
            "attr": self.attr,
            "scan": self.scan,
            "entries": [[list(words), label] for words, label in self.entries],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Gazetteer":
        """RAISES (ValueError): CRF509 for what no gazetteer is."""
        entries = [(tuple(words), label) for words, label in data["entries"]]
        # Without scan: the model has learned from lists that were not scanned
        attr, scan = data["attr"], data.get("scan", False)
        types = set(map(type, chain.from_iterable((*words, label) for words, label in entries)))
        whole = all(words and all(words) for words, _ in entries)
        if not types <= {str} or not whole or attr not in [*SPELLINGS] or not isinstance(scan, bool):
            found = f"of {', '.join(sorted(t.__name__ for t in types))} by {attr!r}"
            raise ValueError(Errors.CRF509.format(what="a gazetteer", found=found, expected="a list of phrases"))
        return cls(entries, attr=attr, scan=scan)


_UNLABELLED = "spacy_crf_unlabelled"


def _value_name(position: str, label: str) -> str:
    return f"{position}-{label}" if label else position


def read_gazetteers(
    files: Mapping[str, GazetteerFile], tokenizer: Callable[[str], Doc], known: Mapping[str, Gazetteer], *, owner: str
) -> dict[str, Gazetteer]:
    """The gazetteers that a config names, beside those that a model brought along. A file that is not there is no error where the
    model has the gazetteer.

    files: By name a path, or a table with `path` and, if they are not to be as in the model or by default, `attr` and `scan`.
    known: The gazetteers of the model.
    owner: The component, for messages.
    RAISES (ValueError): CRF112 or CRF113 for a file that can't be read, CRF132 for other settings.
    """
    read = dict(known)
    for name, given in files.items():
        path, settings = _settings(name, given)
        if name in known and not path.exists():
            announcements.info("%s: the gazetteer '%s' is the one in the model: there is no file %s", owner, name, path)
            old = known[name]
            read[name] = Gazetteer(old.entries, **{"attr": old.attr, "scan": old.scan, **settings})
        else:
            read[name] = Gazetteer(read_entries(name, path, tokenizer), **settings)
    return read


def _settings(name: str, given: Any) -> tuple[Path, dict[str, Any]]:
    """The path, and what else a table says. RAISES (ValueError): CRF132."""
    settings = dict(given) if isinstance(given, dict) else {"path": given}
    path = settings.pop("path", None)
    checks = {"attr": [*SPELLINGS].__contains__, "scan": lambda value: isinstance(value, bool)}
    if not isinstance(path, (str, Path)) or not all(key in checks and checks[key](settings[key]) for key in settings):
        raise ValueError(Errors.CRF132.format(name=name, value=shown(given), known=", ".join(SPELLINGS)))
    return Path(path), settings


def read_entries(name: str, path: Path, tokenizer: Callable[[str], Doc]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Reads a list of phrases: a text file with one phrase a line, or JSONL with one string or one object a line, whose
    phrase is under ``pattern`` (as in spaCy's EntityRuler) or ``text``, and whose ``label`` may be left out.

    RAISES (ValueError): CRF112 or CRF113 with the file, the line and what is wrong.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(Errors.CRF112.format(name=name, path=path, reason=error)) from error
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(_entry(line) if path.suffix in (".jsonl", ".json") else (line.strip(), _NO_LABEL))
        except (ValueError, RecursionError) as error:
            raise ValueError(Errors.CRF113.format(line=number, name=name, path=path, reason=error)) from error
    if not entries:
        logger.warning(Warnings.CRFW130.format(name=name, path=path))

    # A tokenizer cuts what stands between blanks on its own; long lists repeat most of their words.
    @cache
    def words_of(chunk: str) -> tuple[str, ...]:
        return tuple(token.text for token in tokenizer(chunk))

    return ((tuple(word for chunk in text.split() for word in words_of(chunk)), label) for text, label in entries)


def _entry(line: str) -> tuple[str, str]:
    """RAISES (ValueError): With what is wrong."""
    item = json.loads(line)
    if not isinstance(item, dict):
        item = {"text": item}
    text, label = item.get("pattern", item.get("text")), item.get("label", _NO_LABEL)
    if not isinstance(text, str) or not isinstance(label, str) or not text.strip():
        raise ValueError(
            "expected a phrase, or an object with a phrase under 'pattern' or 'text' and, perhaps, a string under 'label'"
        )
    (text + label).encode("utf8")  # JSON may spell half of a surrogate pair
    return text, label
