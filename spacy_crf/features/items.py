"""Items: any number of features per token or span, from registered functions and custom extensions."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.strings import hash_string
from spacy.tokens import Doc

from ..errors import Errors, shown

_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = (int, float, np.integer, np.floating, np.bool_)

Source = Callable[[Doc], Any]


class Functions(dict[str, Callable]):
    """Registered functions by name, never changed. Copies share them; other processes get them by value where they can't import
    them, for a registered function is often made by another one."""

    def __deepcopy__(self, memo: dict) -> "Functions":
        return self

    def __reduce__(self):
        return _unpickled_functions, (srsly.pickle_dumps(dict(self)),)


def _unpickled_functions(data: bytes) -> Functions:
    return Functions(srsly.pickle_loads(data))


class Items(NamedTuple):
    """Any number of features per token, from functions and extensions: token t has ``starts[t]:starts[t + 1]``."""

    hashes: NDArray[np.uint64]  # [N] of the item's name
    values: NDArray[np.float32]  # [N]
    starts: NDArray[np.int64]  # [T + 1]


def extension_items(extension: str) -> Source:
    """Items of a custom extension: strings, booleans and integers are categories, floats real values; None is left out.

    RAISES (ValueError): CRF130 for anything else.
    """

    def read(doc: Doc):
        rows = []
        for token in doc:
            value = token._.get(extension)
            if value is None:
                rows.append([])
            elif isinstance(value, (float, np.floating)):
                rows.append({"": value})
            elif isinstance(value, (str, bool, int, np.bool_, np.integer)):
                rows.append([str(value)])
            else:
                place = {"token": token.i, "text": token.text, "start": doc.text[:40]}
                raise ValueError(Errors.CRF130.format(name=extension, value=shown(value), **place))
        return rows

    return read


class ItemReader:
    """A source that reads a batch of Docs to hashed items itself."""

    def __call__(self, doc: Doc) -> Any:
        """What other sources give of one Doc, where it can give that too."""
        raise NotImplementedError

    def read(self, docs: list[Doc], names: Optional[dict[int, str]]) -> Items:
        """names (dict[int, str]): Where to add the text of each hash, if it is wanted."""
        raise NotImplementedError


class NotAnItem(Exception):
    """A value that is no feature of a token."""

    def __init__(self, value: Any):
        super().__init__(value)
        self.value = value


class NotFinite(NotAnItem):
    """A number that is none, or that float32 can't hold."""


class _Remembered(dict):
    """What is made of each key, once."""

    def __init__(self, make: Callable[[str], Any]):
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> Any:
        made = self[key] = self._make(key)
        return made


class Names:
    """What stands for the names of items: each is spelled once, for most come again and again.

    make (Callable): Gives what stands for a name.
    prefix (str): What the names begin with.
    """

    def __init__(self, make: Callable[[str], Any], prefix: str = ""):
        self.plain = _Remembered(lambda key: make(prefix + key))
        self.strings = _Remembered(lambda key: _Remembered(lambda value: make(f"{prefix}{key}:{value}")))
        self.below = _Remembered(lambda key: Names(make, f"{prefix}{key}:"))


class KnownHashes(Names):
    """Hashes of names that are remembered from one batch to the next, of a source."""

    def __init__(self, source: str):
        self.size = 0
        self._source = source
        super().__init__(self._hash)

    def _hash(self, name: str) -> int:
        self.size += 1
        return hash_item(self._source, name)


class ItemList:
    """Items of one token after the other.

    source (str): Where they come from, for messages.
    known (KnownHashes): Where nobody wants the names; items that are 0 are then left out, for they add nothing to any score.
    """

    def __init__(self, source: str, known: Optional[KnownHashes] = None):
        self.names: dict[int, str] = {}  # the text of each hash
        self._source = source
        self._keeps_zeros = known is None
        self._known = Names(self._hash) if known is None else known
        self._hashes: list[int] = []
        self._values: list[float] = []
        self._ends = [0]

    def _hash(self, name: str) -> int:
        hashed = hash_item(self._source, name)
        self.names[hashed] = name
        return hashed

    def add(self, given: Any) -> None:
        """Those of the next token: see `named_numbers`.

        RAISES (NotAnItem, NotFinite): If they can't be used.
        """
        found = _read(given, self._known, self._keeps_zeros)
        if found is None:
            raise NotAnItem(given)
        hashes, numbers = found
        if not math.isfinite(sum(numbers)):  # of float32 numbers: no sum of these overflows
            raise NotFinite(next(number for number in numbers if not math.isfinite(number)))
        self._hashes.extend(hashes)
        self._values.extend(numbers)
        self._ends.append(len(self._values))

    @property
    def items(self) -> Items:
        """All of them."""
        hashes, values = np.array(self._hashes, dtype=np.uint64), np.array(self._values, dtype=np.float32)
        return Items(hashes, values, np.array(self._ends, dtype=np.int64))


def read_items(
    name: str, source: Source, docs: list[Doc], names: Optional[dict[int, str]], known: Optional[KnownHashes] = None
) -> Items:
    """Calls a source on each Doc and lays its items end to end.

    The source gives per token a list of strings, a list of numbers, or a dict as CRFsuite takes them; or, for the whole Doc, an
    array of numbers with one row per token.
    names (dict[int, str]): Where to add the text of each hash, if it is wanted. Otherwise hashes that are known already help.
    RAISES (ValueError): CRF109 for a number that is not finite, CRF110, CRF111 and CRF131 for anything else.
    """
    if isinstance(source, ItemReader):
        return source.read(docs, names)
    listed = ItemList(name, known if names is None else None)
    for doc in docs:
        given = source(doc)
        try:
            rows = given.tolist() if isinstance(given, np.ndarray) else list(given)
            n_rows = len(rows)
        except TypeError:
            n_rows = -1
        if n_rows != len(doc):
            got = type(given).__name__ if n_rows < 0 else n_rows
            raise ValueError(Errors.CRF110.format(name=name, got=got, expected=len(doc), start=doc.text[:40]))
        for i, row in enumerate(rows):
            try:
                listed.add(row)
            except NotFinite as error:
                place = {"token": i, "text": doc[i].text, "start": doc.text[:40]}
                raise ValueError(Errors.CRF109.format(source=name, value=error.value, **place)) from None
            except NotAnItem as error:
                raise ValueError(
                    Errors.CRF111.format(where=f"The feature function '{name}', for a token", value=shown(error.value))
                ) from None
    if names is not None:
        names.update(listed.names)
    return listed.items


def named_numbers(given: Any) -> Optional[tuple[list[str], list[float]]]:
    """What a function gave for one token or span: names and their values. Strings are names of value 1, numbers have their
    places for a name, and a dict is read as CRFsuite's Python packages read it, see `_add_named`.

    RETURNS (tuple[list[str], list[float]]): None if it is none of these; numbers that float32 can't hold are infinite.
    """
    return _read(given, Names(str), keeps_zeros=True)


def _read(given: Any, known: Names, keeps_zeros: bool) -> Optional[tuple[list[Any], list[float]]]:
    """`named_numbers`, with what stands for the names in their place."""
    if isinstance(given, np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if isinstance(given, dict):
        names: list[Any] = []
        numbers: list[float] = []
        try:
            return (names, numbers) if _add_named(given, known, names, numbers, keeps_zeros) else None
        except RecursionError:  # a dict that holds itself
            return None
    if isinstance(given, (list, tuple, set, frozenset)):
        if all(isinstance(item, str) for item in given):
            return [known.plain[item] for item in _in_order(given)], [1.0] * len(given)
        if isinstance(given, (set, frozenset)):
            return None  # without an order
        if not all(isinstance(v, _NUMBERS) and not isinstance(v, (bool, np.bool_)) for v in given):
            return None
        return [known.plain[str(n)] for n in range(len(given))], [_as_float(value) for value in given]
    return None


def _add_named(given: dict, known: Names, names: list[Any], numbers: list[float], keeps_zeros: bool) -> bool:
    """Adds the items of a dict: a number or a boolean under its key, a string as ``key:string``, and what other dicts and lists
    of strings hold as ``key:…`` too.

    RETURNS (bool): Whether there was nothing else.
    """
    for key, value in given.items():
        if type(key) is not str:
            key = str(key)
        if type(value) is str:
            names.append(known.strings[key][value])
            numbers.append(1.0)
        elif isinstance(value, _NUMBERS):
            if value is True:
                names.append(known.plain[key])
                numbers.append(1.0)
            elif keeps_zeros or value != 0:
                names.append(known.plain[key])
                numbers.append(_as_float(value))
        elif isinstance(value, dict):
            if not _add_named(value, known.below[key], names, numbers, keeps_zeros):
                return False
        elif isinstance(value, str):
            names.append(known.strings[key][str(value)])
            numbers.append(1.0)
        elif isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in value):
            of_key = known.strings[key]
            names.extend(of_key[item] for item in _in_order(value))
            numbers.extend([1.0] * len(value))
        else:
            return False
    return True


def _in_order(strings: Iterable[str]) -> list[str]:
    return sorted(strings) if isinstance(strings, (set, frozenset)) else list(strings)


def _as_float(number: Any) -> float:
    try:
        value = float(number)
    except OverflowError:  # an integer of more than 308 digits
        value = math.inf
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value


def hash_item(source: str, text: str) -> int:
    """RAISES (ValueError): CRF131 for text that is no Unicode."""
    try:
        return hash_string(text)
    except UnicodeEncodeError as error:
        raise ValueError(Errors.CRF131.format(source=source, value=shown(text), reason=error.reason)) from error
