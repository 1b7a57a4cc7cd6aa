"""Gazetteers: named lists of phrases, for features of tokens. (Features of whole spans are in ``phrases``.)

The value of a token is its position in the longest match that covers it (``B``, ``I``, ``L`` or ``U``), followed by the label of
the entry if the list has labels. Tokens outside every match have no value. If a phrase has several labels, the first in the list
counts.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Optional, Union, cast

import numpy as np
from numpy.typing import NDArray
from spacy.lang.lex_attrs import word_shape
from spacy.strings import get_string_id, hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.tokens import Doc

from .. import checks
from ..errors import Errors, Warnings, announcements
from ..kernels.gazetteers import hash_beginnings, positions_in_phrases
from ..types import Settings
from ..whole_files import Saved
from .feature_index import HashTable
from .packaged_lists import Package, find_list

logger = logging.getLogger("spacy.spacy_crf")

# Spelling of the words of phrases and texts for comparison, by token attribute
SPELLINGS: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "ORTH": str, "SHAPE": word_shape}
SHORT = 1000  # phrases
_NO_LABEL = ""
_POSITIONS = "BILU"

GazetteerFile = Union[str, Path, Settings]


class Gazetteer:
    """Phrases under an optional label.

    entries: Words and label of each phrase; duplicates are kept once.
    attr: The token attribute by which phrases and texts are compared, one of `SPELLINGS`.
    scan: Whether the search for the nearest phrase compares a span with all phrases; by default it does for short lists.
    """

    def __init__(
        self, entries: Iterable[tuple[tuple[str, ...], str]], *, attr: str = "LOWER", scan: Optional[bool] = None
    ):
        self.entries = list(dict.fromkeys(entries))
        self.attr = attr
        self.scan = len(self.entries) <= SHORT if scan is None else scan
        self._labels = list(dict.fromkeys(label for _, label in self.entries))

    @property
    def attribute(self) -> str:
        """The attribute of lexemes by which phrases and texts are compared."""
        return self.attr.lower()

    @property
    def value_names(self) -> dict[int, str]:
        """The text of each value that `find` returns, by its hash."""
        return {hash_string(text): text for text in self._values()}

    def _values(self) -> list[str]:
        """The text of each value, such as ``B-PER``, or ``B`` without a label: [labels * positions]."""
        pairs = product(self._labels, _POSITIONS)
        return [f"{position}-{label}" if label else position for label, position in pairs]

    def find(self, words: NDArray[np.uint64], doc_starts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The value of each token of a batch.

        words (uint64[T]): The `attribute` of each token.
        doc_starts (int64[D + 1]): Where Docs begin.
        RETURNS (uint64[T]): Hashes, ABSENT outside the matches.
        """
        return positions_in_phrases(words, doc_starts, *self._beginnings)

    @cached_property
    def _beginnings(self) -> tuple[tuple[NDArray, NDArray], NDArray[np.int32], NDArray[np.uint64]]:
        """Arguments of `positions_in_phrases`: a table of the R beginnings of phrases ("New", "New York" …), the label of each
        beginning (int32[R], -1 if it is no whole phrase), and the values of each label (uint64[L, 4])."""
        spell = SPELLINGS[self.attr]
        # Long lists repeat most of their words
        hash_of = cache(lambda word: get_string_id(spell(word)))
        entries = [(words, label) for words, label in self.entries if words]
        words_in_a_row = chain.from_iterable(words for words, _ in entries)
        hashes = np.fromiter(map(hash_of, words_in_a_row), dtype=np.uint64)
        starts = np.cumsum([0, *(len(words) for words, _ in entries)], dtype=np.int64)
        keys, rows = np.unique(hash_beginnings(hashes, starts), return_inverse=True)
        phrase_rows = rows[starts[1:] - 1].tolist()  # a phrase is its beginning with all its words
        labels = np.full(len(keys), -1, dtype=np.int32)
        number_of = {label: n for n, label in enumerate(self._labels)}
        # Backwards, so that the first label of a phrase is written last
        for (_, label), row in zip(reversed(entries), reversed(phrase_rows)):
            labels[row] = number_of[label]
        values = np.array([hash_string(text) for text in self._values()], dtype=np.uint64)
        return HashTable(keys).arrays, labels, values.reshape(-1, len(_POSITIONS))

    def __deepcopy__(self, memo: dict) -> "Gazetteer":
        return self  # nothing changes it

    def __getstate__(self) -> Saved:
        return {name: value for name, value in self.__dict__.items() if name != "_beginnings"}

    def to_dict(self) -> Saved:
        """Plain values for msgpack."""
        entries = [[list(words), label] for words, label in self.entries]
        return {"attr": self.attr, "scan": self.scan, "entries": entries}

    @classmethod
    def from_dict(cls, data: Saved) -> "Gazetteer":
        """The gazetteer that `to_dict` saved. RAISES (ValueError): CRF509 for a damaged gazetteer."""
        entries = [(tuple(words), label) for words, label in data["entries"]]
        attr = data["attr"]
        scan = data["scan"]
        types = set(map(type, chain.from_iterable((*words, label) for words, label in entries)))
        has_words = all(words and all(words) for words, _ in entries)
        if not types <= {str} or not has_words or attr not in [*SPELLINGS] or not isinstance(scan, bool):
            raise ValueError(
                Errors.CRF509.format(
                    what="a gazetteer",
                    found=f"of {', '.join(sorted(t.__name__ for t in types))} by {attr!r}",
                    expected="a list of phrases",
                )
            )
        return cls(entries, attr=attr, scan=scan)


def read_gazetteers(
    files: Mapping[str, GazetteerFile],
    tokenizer: Callable[[str], Doc],
    known: Mapping[str, Gazetteer],
    *,
    owner: str,
    lang: str = "en",
) -> dict[str, Gazetteer]:
    """Read the gazetteers that a config names. The model keeps a gazetteer whose file or package is missing.

    files: By name: a path, or "PACKAGE/LIST" (`packaged_lists`), or a table with either as `path` and, to replace the model's or
        the default values, `attr` and `scan`.
    known: The gazetteers of the model.
    owner: The component, for messages.
    lang: The language of lists in packages.
    RETURNS (Dict[str, Gazetteer]): The gazetteers of the model and of the files.
    RAISES (ValueError): CRF701 for a file or package that can't be read, CRF020 for other settings.
    """
    gazetteers = dict(known)
    possible = {
        "path": checks.is_path,
        "attr": [*SPELLINGS].__contains__,
        "scan": lambda value: isinstance(value, bool),
    }
    must = f"the path of a file, or a table with 'path', 'attr' (what to compare words by: {', '.join(SPELLINGS)}) and 'scan'"
    for name, file in files.items():
        settings = checks.path_and_settings("[initialize.components.NAME.gazetteers]", name, file, possible, must)
        path = Path(settings.pop("path"))
        found = find_list(path.as_posix())
        is_there = path.exists() if found is None else found[0].installed is not None
        if name in known and not is_there:
            announcements.info("%s: the gazetteer '%s' is the one in the model: there is no %s", owner, name, path)
            current = known[name]
            settings = {"attr": current.attr, "scan": current.scan, **settings}
            gazetteers[name] = Gazetteer(current.entries, **settings)
        elif found is None:
            gazetteers[name] = Gazetteer(read_entries(name, path, tokenizer), **settings)
        else:
            gazetteers[name] = _read_packaged(path.as_posix(), tokenizer, lang, **settings)
    return gazetteers


# Long lists take seconds to tokenize, and `crf fit` initializes several components with the same ones
@lru_cache(maxsize=16)
def _read_packaged(
    source: str, tokenizer: Callable[[str], Doc], lang: str, attr: str = "LOWER", scan: Optional[bool] = None
) -> Gazetteer:
    """Read a list of an installed package, "PACKAGE/LIST", with the settings `attr` and `scan` of the gazetteer.

    RAISES (ValueError): CRF701 if the package can't be read.
    """
    package, list_name = cast(tuple[Package, str], find_list(source))
    try:
        phrases = package.phrases(list_name, lang)
    except Exception as error:
        # Another version of the package may have other functions
        place = f"The gazetteer '{source}' (pip install {package.name})"
        raise ValueError(Errors.CRF701.format(place=place, reason=error)) from error
    return Gazetteer(_tokenized([(phrase, _NO_LABEL) for phrase in phrases], tokenizer), attr=attr, scan=scan)


def read_entries(name: str, path: Path, tokenizer: Callable[[str], Doc]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Read a list of phrases: a text file with one phrase per line, or JSONL with one string or object per line. An object has
    its phrase under ``pattern`` (as in spaCy's EntityRuler) or ``text``, and optionally a ``label``.

    RAISES (ValueError): CRF701; the message names the file, the line and the reason.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(Errors.CRF701.format(place=f"The gazetteer '{name}' ({path})", reason=error)) from error
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(_entry(line) if path.suffix in (".jsonl", ".json") else (line.strip(), _NO_LABEL))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                Errors.CRF701.format(place=f"Line {number} of the gazetteer '{name}' ({path})", reason=error)
            ) from error
    if not entries:
        logger.warning(Warnings.CRFW130.format(name=name, path=path))
    return _tokenized(entries, tokenizer)


def _tokenized(
    entries: list[tuple[str, str]], tokenizer: Callable[[str], Doc]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Split the phrases of `entries`, pairs of a phrase and a label, into words."""

    # Tokenizers treat each chunk between blanks separately; long lists repeat most of their words
    @cache
    def tokens_of(chunk: str) -> tuple[str, ...]:
        return tuple(token.text for token in tokenizer(chunk))

    def words_of(text: str) -> tuple[str, ...]:
        return tuple(chain.from_iterable(map(tokens_of, text.split())))

    return ((words_of(text), label) for text, label in entries)


def _entry(line: str) -> tuple[str, str]:
    """The phrase and the label of a line of JSON. RAISES (ValueError): The message gives the reason."""
    item = json.loads(line)
    if not isinstance(item, dict):
        item = {"text": item}
    text = item.get("pattern", item.get("text"))
    label = item.get("label", _NO_LABEL)
    if not isinstance(text, str) or not isinstance(label, str) or not text.strip():
        possible = "an object with a phrase under 'pattern' or 'text' and, perhaps, a string under 'label'"
        raise ValueError(f"expected a phrase, or {possible}")
    (text + label).encode("utf8")  # JSON may spell half of a surrogate pair
    return text, label
