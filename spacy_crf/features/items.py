"""Items: any number of features per token or span, from registered functions and custom extensions."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, Optional, Protocol, SupportsFloat, TypeVar, cast, runtime_checkable

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.tokens import Doc

from ..arrays import grown, ranges
from ..errors import Errors, function_failed, is_coded, shown

_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = (int, float, np.integer, np.floating, np.bool_)

Source = Callable[[Doc], Iterable[object]]  # makes the items of each token
WordSource = Callable[[str], object]  # makes the items, or the text, of a word
Value = TypeVar("Value")
Name = TypeVar("Name", str, int)  # the name of an item, or its hash


class Functions(dict[str, Callable]):
    """Registered functions by name; immutable. Copies share the functions. Other processes receive the code of the functions,
    since they cannot import a function that another function has made, as registered functions often are."""

    def __deepcopy__(self, memo: dict) -> "Functions":
        return self

    def __reduce__(self):
        return _unpickled_functions, (srsly.pickle_dumps(dict(self)),)


def _unpickled_functions(data: bytes) -> Functions:
    return Functions(cast(dict[str, Callable], srsly.pickle_loads(data)))


class Items(NamedTuple):
    """Any number of features for each of T tokens: token t has the items ``starts[t]:starts[t + 1]``."""

    hashes: NDArray[np.uint64]  # [N] hashes of the items' names
    values: NDArray[np.float32]  # [N]
    starts: NDArray[np.int64]  # [T + 1]


def is_item(attribute: str) -> bool:
    """Whether a token can have any number of values of an attribute."""
    return attribute.startswith(("fn:", "word:", "ext:"))


def extension_items(extension: str) -> Source:
    """Source of items from a custom extension: strings, booleans and integers are categories, floats numbers, None is no item.

    RAISES (ValueError): CRF130 for anything else.
    """

    def read(doc: Doc) -> list[object]:
        rows: list[object] = []
        for token in doc:
            value = token._.get(extension)
            if value is None:
                rows.append([])
            elif isinstance(value, (float, np.floating)):
                rows.append({"": value})
            elif isinstance(value, (str, bool, int, np.bool_, np.integer)):
                rows.append([str(value)])
            else:
                raise ValueError(
                    Errors.CRF130.format(
                        name=extension, value=shown(value), token=token.i, text=token.text, start=doc.text[:40]
                    )
                )
        return rows

    return read


@runtime_checkable
class ItemReader(Protocol):
    """A source that reads hashed items from a whole batch of Docs."""

    def __call__(self, doc: Doc, /) -> Iterable[object]: ...

    def read_items(self, docs: list[Doc], names: Optional[dict[int, str]]) -> Items:
        """Read the items of Docs. names (dict[int, str]): Receives the text of each hash, or None."""
        ...


class NotAnItem(Exception):
    """A value cannot be a feature. The arguments are the value, and True if it is a number that float32 can't hold."""


class _Cache(dict[str, Value]):
    """Values that are computed once for each key."""

    def __init__(self, make: Callable[[str], Value]):
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> Value:
        value = self[key] = self._make(key)
        return value


class ItemNames(Generic[Name]):
    """The names of items, or the hashes of these names. Each is made once, since most names recur.

    plain: By key, ``key``. strings: By key and value, ``key:value``. nested: By key, the names ``key:…`` of a nested dict.

    make (Callable): Returns the name itself or its hash.
    prefix (str): The beginning of the names.
    """

    def __init__(self, make: Callable[[str], Name], prefix: str = ""):
        self.plain = _Cache(lambda key: make(prefix + key))
        self.strings = _Cache(lambda key: _Cache(lambda value: make(f"{prefix}{key}:{value}")))
        self.nested = _Cache(lambda key: ItemNames(make, f"{prefix}{key}:"))


class ItemHashes(ItemNames[int]):
    """Hashes of the names of a source's items, kept from batch to batch.

    source (str): Where the items come from, for messages.
    names (Dict[int, str]): Receives the name of each hash. None to forget the names.
    size (int): Number of names met.
    """

    def __init__(self, source: str, names: Optional[dict[int, str]] = None):
        self.size = 0
        self._source = source
        self._names = names
        super().__init__(self._hash)

    def _hash(self, name: str) -> int:
        """Hash a new name, and count it. Its text is recorded if names are kept."""
        self.size += 1
        hashed = hash_item(self._source, name)
        if self._names is not None:
            self._names[hashed] = name
        return hashed


class ItemList:
    """Collects the items of one token after the other.

    source (str): Where the items come from, for messages.
    hashes (ItemHashes): Hashes of names met before, if the names are not needed. Items of value 0, which add nothing to any
        score, are then dropped. None to collect `names`, and keep the items of value 0.
    """

    def __init__(self, source: str, hashes: Optional[ItemHashes] = None):
        self.names: dict[int, str] = {}  # text of each hash
        self._keeps_zeros = hashes is None
        self._hash_of = ItemHashes(source, self.names) if hashes is None else hashes
        self._hashes: list[int] = []
        self._values: list[float] = []
        self._starts = [0]

    def add(self, returned: object) -> None:
        """Add the items that a source returned for the next token, in any form that `named_numbers` reads.

        RAISES (NotAnItem): For a value that can't be used.
        """
        items = _read(returned, self._hash_of, self._keeps_zeros)
        if items is None:
            raise NotAnItem(returned, False)
        hashes, numbers = items
        # Numbers that float32 can't hold are infinite here; a sum of others does not overflow
        if not math.isfinite(sum(numbers)):
            raise NotAnItem(_not_held(returned), True)
        self._hashes.extend(hashes)
        self._values.extend(numbers)
        self._starts.append(len(self._values))

    @property
    def items(self) -> Items:
        """All items that were added."""
        return Items(
            hashes=np.array(self._hashes, dtype=np.uint64),
            values=np.array(self._values, dtype=np.float32),
            starts=np.array(self._starts, dtype=np.int64),
        )


class WordItems:
    """Items that a function makes of words. The function is called once for each word; words are numbered in the order in which
    they are added. Other threads may read while words are added.

    name (str): Where the items come from, for messages.
    function (Callable): Returns for a word what `named_numbers` reads; or a single string or number, or None.
    n_padding (int): How many numbers, from 0 on, stand for no word and have no items.
    names (dict[int, str]): Receives the text of each hash. None to forget the names.
    """

    def __init__(self, name: str, function: WordSource, n_padding: int, names: Optional[dict[int, str]]):
        self._name = name
        self._function = function
        self._names = names
        self._hash_of = None if names is not None else ItemHashes(name)
        # Items of V words, with room for more
        self._size = n_padding
        self._starts = np.zeros(n_padding + 1, dtype=np.int64)  # [V + 1]
        self._hashes = np.zeros(0, dtype=np.uint64)  # [N]
        self._values = np.zeros(0, dtype=np.float32)  # [N]

    def make(self, words: list[str]) -> Items:
        """Call the function on words. RAISES (ValueError): CRF111 and CRF131 for what is no item."""
        collected = ItemList(self._name, self._hash_of)
        for word in words:
            try:
                returned = self._function(word)
            except Exception as error:  # whatever users' functions raise
                raise function_failed(self._name, f"the word {shown(word)}", error) from error
            if returned is None:
                returned = []
            elif isinstance(returned, (str, *_NUMBERS)):
                returned = [returned]
            try:
                collected.add(returned)
            except NotAnItem as error:
                raise ValueError(
                    Errors.CRF111.format(
                        where=f"The feature function '{self._name}', for the word '{word}'", value=shown(error.args[0])
                    )
                ) from None
        if self._names is not None:
            self._names.update(collected.names)
        return collected.items

    def add(self, items: Items) -> None:
        """Add the items of the next words."""
        n_items = int(self._starts[self._size])
        new_n_items = n_items + len(items.hashes)
        new_size = self._size + len(items.starts) - 1
        if new_n_items > len(self._hashes):
            self._hashes = grown(self._hashes, n_items, new_n_items)
            self._values = grown(self._values, n_items, len(self._hashes))
        if new_size >= len(self._starts):
            self._starts = grown(self._starts, self._size + 1, new_size + 1)
        self._hashes[n_items:new_n_items] = items.hashes
        self._values[n_items:new_n_items] = items.values
        self._starts[self._size : new_size + 1] = n_items + items.starts
        self._size = new_size

    def of(self, numbers: NDArray[np.integer]) -> Items:
        """The items of words, by their numbers."""
        # Word n has the items first[n] to behind[n] - 1
        first = self._starts[numbers]
        behind = self._starts[numbers + 1]
        positions = ranges(first, behind)
        return Items(self._hashes[positions], self._values[positions], np.append(0, np.cumsum(behind - first)))


def read_items(
    name: str, source: Source, docs: list[Doc], names: Optional[dict[int, str]], hashes: Optional[ItemHashes] = None
) -> Items:
    """Call a source on each Doc, and lay its items end to end.

    For each token, the source returns a list of strings, a list of numbers, or a dict as for CRFsuite; or, for the whole Doc, an
    array of numbers with one row per token.
    names (dict[int, str]): Receives the text of each hash. None to forget the names.
    hashes (ItemHashes): The hashes of earlier batches, used if names are forgotten.
    RAISES (ValueError): CRF109 for a number that is not finite, CRF110, CRF111 and CRF131 for anything else.
    """
    if isinstance(source, ItemReader):
        return source.read_items(docs, names)
    collected = ItemList(name, hashes if names is None else None)
    for doc in docs:
        try:
            returned = source(doc)
        except Exception as error:  # whatever users' functions raise
            if is_coded(error):
                raise
            raise function_failed(name, f"the text '{doc.text[:40]}...'", error) from error
        try:
            rows = returned.tolist() if isinstance(returned, np.ndarray) else list(returned)
            n_rows = len(rows)
        except TypeError:  # not iterable
            n_rows = -1
        if n_rows != len(doc):
            raise ValueError(
                Errors.CRF110.format(
                    name=name,
                    got=type(returned).__name__ if n_rows < 0 else n_rows,
                    expected=len(doc),
                    start=doc.text[:40],
                )
            )
        for i, row in enumerate(rows):
            try:
                collected.add(row)
            except NotAnItem as error:
                value, is_number = error.args
                if is_number:
                    raise ValueError(
                        Errors.CRF109.format(
                            source=name, value=shown(value), token=i, text=doc[i].text, start=doc.text[:40]
                        )
                    ) from None
                raise ValueError(
                    Errors.CRF111.format(where=f"The feature function '{name}', for a token", value=shown(value))
                ) from None
    if names is not None:
        names.update(collected.names)
    return collected.items


def named_numbers(returned: object) -> Optional[tuple[list[str], list[float]]]:
    """Names and values of the items that a function returned for one token or span. Strings are names with value 1, the names of
    numbers are their positions, and dicts are read as in CRFsuite's Python packages: numbers and booleans under their key,
    strings as ``key:string``.

    RETURNS (tuple[list[str], list[float]]): None for anything else. Numbers that float32 can't hold are infinite.
    """
    return _read(returned, ItemNames(str), keeps_zeros=True)


def _read(returned: object, item_names: ItemNames[Name], keeps_zeros: bool) -> Optional[tuple[list[Name], list[float]]]:
    """The items that a function returned, as `named_numbers` reads them.

    item_names (ItemNames): Makes the names, or hashes of names, that are returned with the values.
    keeps_zeros (bool): Whether the items of a dict that have the value 0 are read.
    """
    # A row of an array of numbers is read as a list
    if isinstance(returned, np.ndarray) and returned.ndim == 1:
        returned = returned.tolist()
    if isinstance(returned, dict):
        names: list[Name] = []
        numbers: list[float] = []
        try:
            return (names, numbers) if _add_named(returned, item_names, names, numbers, keeps_zeros) else None
        except RecursionError:  # a dict that contains itself
            return None
    if isinstance(returned, (list, tuple, set, frozenset)):
        if all(isinstance(item, str) for item in returned):
            return [item_names.plain[item] for item in _in_order(returned)], [1.0] * len(returned)
        if isinstance(returned, (set, frozenset)):
            return None  # numbers are named by their positions, which sets do not have
        if not all(isinstance(v, _NUMBERS) and not isinstance(v, (bool, np.bool_)) for v in returned):
            return None
        return [item_names.plain[str(n)] for n in range(len(returned))], [_as_float(value) for value in returned]
    return None


def _add_named(
    items: dict, item_names: ItemNames[Name], names: list[Name], numbers: list[float], keeps_zeros: bool
) -> bool:
    """Add the items of a dict to `names` and `numbers`: a number or a boolean under its key, a string as ``key:string``, and the
    items of nested dicts and lists of strings as ``key:…``.

    RETURNS (bool): False if the dict contains anything else.
    """
    for key, value in items.items():
        if type(key) is not str:
            key = str(key)
        if isinstance(value, str):
            names.append(item_names.strings[key][str(value)])
            numbers.append(1.0)
        elif isinstance(value, _NUMBERS):
            if keeps_zeros or value != 0:
                names.append(item_names.plain[key])
                numbers.append(1.0 if value is True else _as_float(value))
        elif isinstance(value, dict):
            if not _add_named(value, item_names.nested[key], names, numbers, keeps_zeros):
                return False
        elif isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in value):
            names_of_key = item_names.strings[key]
            names.extend(names_of_key[item] for item in _in_order(value))
            numbers.extend([1.0] * len(value))
        else:
            return False
    return True


def _in_order(strings: Iterable[str]) -> list[str]:
    """A list of the strings. The order of a set differs from process to process, so sets are sorted."""
    return sorted(strings) if isinstance(strings, (set, frozenset)) else list(strings)


def _as_float(number: SupportsFloat) -> float:
    """A number as float, infinite if float32 can't hold it."""
    try:
        value = float(number)
    except OverflowError:  # an integer with more than 308 digits
        value = math.inf
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value


def _not_held(returned: Any) -> object:
    """The first number that float32 can't hold in what a function returned: a list, an array, or a dict, which may be nested."""
    for value in returned.values() if isinstance(returned, dict) else returned:
        number = _not_held(value) if isinstance(value, dict) else value
        if isinstance(number, _NUMBERS) and not math.isfinite(_as_float(number)):
            return number
    return None


def hash_item(source: str, text: str, hash_text: Callable[[str], int] = hash_string) -> int:
    """Hash of a name. RAISES (ValueError): CRF131 for text that cannot be encoded."""
    try:
        return hash_text(text)
    except UnicodeEncodeError as error:
        raise ValueError(Errors.CRF131.format(source=source, value=shown(text), reason=error.reason)) from error
