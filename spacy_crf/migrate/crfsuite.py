"""Reads and writes models of CRFsuite (python-crfsuite, sklearn-crfsuite).

A file has a header and chunks: features with weights, labels, attributes, and the list of features for each label and attribute.
Labels and attributes are constant databases: hash tables map texts to numbers, and a list maps numbers to texts.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..whole_files import write_whole
from .foreign import ForeignModel, Octets, Weighted, as_text

MAGIC = b"lCRF"
_HEADER = struct.Struct("<4sI4s9I")
_VERSION = 100
_CHUNK = struct.Struct("<4sII")  # name, size, number of entries
_FEATURE = np.dtype([("type", "<u4"), ("source", "<u4"), ("target", "<u4"), ("weight", "<f8")])
# Types of features: the source is an attribute or a label, the target a label
_STATE = 0
_TRANSITION = 1
# Name, size, flags, byte order, number of texts, and the byte where the list of their places begins
_DATABASE = struct.Struct("<4s5I")
_ORDER = 0x62445371  # as a machine with this order of bytes writes it
_TABLES = 256  # hash tables of a database
_TEXT = struct.Struct("<II")  # number and length of a text, including a final 0
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def read_crfsuite(data: bytes, source: str) -> ForeignModel:
    """Read a model from the bytes of its file.

    source (str): Name of the file, for messages.
    RAISES (ValueError): CRF855 for a pickle; CRF854 with the place, if the file is damaged or not a model of CRFsuite.
    """
    if data.startswith(_PICKLES):
        raise ValueError(Errors.CRF855.format(source=source))
    octets = Octets(data, source, "a model of CRFsuite")
    if data[:4] != MAGIC:
        octets.refuse("byte 0", f"it begins with {data[:4]!r}, not with {MAGIC!r}")
    header = octets.fields(_HEADER.format, 0, "the header")
    _, size, kind, version, _, n_labels, n_attributes, features_at, labels_at, attributes_at, *_ = header
    if kind != b"FOMC" or version != _VERSION:
        octets.refuse("the header, byte 8", f"{kind!r} of version {version} is not known, only b'FOMC' of {_VERSION}")
    if size > len(octets):
        octets.refuse("the header, byte 4", f"{size} bytes are announced, and there are {len(octets)}: it is cut off")
    labels = _read_texts(octets, labels_at, n_labels, "the labels")
    attributes = _read_texts(octets, attributes_at, n_attributes, "the attributes")
    octets.check_labels(labels)
    features = _read_features(octets, features_at)
    states = features[features["type"] == _STATE]
    steps = features[features["type"] == _TRANSITION]
    for of_type, sources, what in ((states, attributes, "attributes"), (steps, labels, "labels")):
        for field, texts in (("source", sources), ("target", labels)):
            largest = of_type[field].max(initial=0)
            if len(of_type) and largest >= len(texts):
                octets.refuse("the features", f"one names number {largest} of {len(texts)} {what}")
    transitions = np.zeros((len(labels), len(labels)))
    transitions[steps["source"], steps["target"]] = steps["weight"]
    rows = states["source"].astype(np.int64)
    columns = states["target"].astype(np.int64)
    return ForeignModel("crfsuite", labels, Weighted(attributes, rows, columns, states["weight"].copy()), transitions)


def _read_features(octets: Octets, at: int) -> NDArray:
    """Read the chunk of features from a place on: an array of `_FEATURE`."""
    name, _, n = octets.fields(_CHUNK.format, at, "the features")
    if name != b"FEAT":
        octets.refuse(f"the features, byte {at}", f"{name!r} stands where b'FEAT' belongs")
    features = octets.numbers(at + _CHUNK.size, _FEATURE, n, "the features")
    if n and features["type"].max() > _TRANSITION:
        octets.refuse("the features", f"one is of the unknown type {features['type'].max()}")
    if not np.isfinite(features["weight"]).all():
        octets.refuse("the features", "a weight is not a finite number")
    return features


def _read_texts(octets: Octets, at: int, n: int, what: str) -> list[str]:
    """Read the `n` texts of a database in the order of their numbers.

    at (int): The first byte of the database. The places in it count from there.
    what (str): Name of the texts, for messages.
    """
    name, _, _, order, size, list_at = octets.fields(_DATABASE.format, at, what)
    if name != b"CQDB" or order != _ORDER:
        reason = "this is no database of texts, or one of a machine with another order of bytes"
        octets.refuse(f"{what}, byte {at}", reason)
    if size != n:
        octets.refuse(f"{what}, byte {at}", f"{size} are listed, and the header announces {n}")
    texts = []
    for number, place in enumerate(octets.numbers(at + list_at, "<u4", n, what).tolist()):
        stored_number, length = octets.fields(_TEXT.format, at + place, f"{what}, number {number}")
        text = octets.part(at + place + _TEXT.size, length, f"{what}, number {number}")
        if stored_number != number or not text.endswith(b"\0"):
            octets.refuse(f"{what}, number {number}, byte {at + place}", "this is not the text of that number")
        texts.append(as_text(text[:-1]))
    return texts


# ---------------------------------------------------------------------------------------------------------- writing


def write_crfsuite(model: ForeignModel, path: Path) -> None:
    """Write a model for CRFsuite to a file. Weights that are 0 are left out, as CRFsuite itself does."""
    states = model.states
    transitions = model.transitions
    is_used = states.weights != 0
    # Attributes without weights are left out, and the others numbered anew
    rows_used, attribute_of = np.unique(states.rows[is_used], return_inverse=True)
    attributes = [states.names[row] for row in rows_used.tolist()]
    before, after = np.nonzero(transitions)
    features = np.zeros(len(attribute_of) + len(before), dtype=_FEATURE)
    of_states = features[: len(attribute_of)]
    of_states["source"] = attribute_of
    of_states["target"] = states.columns[is_used]
    of_states["weight"] = states.weights[is_used]
    of_steps = features[len(attribute_of) :]
    of_steps["type"] = _TRANSITION
    of_steps["source"] = before
    of_steps["target"] = after
    of_steps["weight"] = transitions[before, after]
    chunks = [_CHUNK.pack(b"FEAT", _CHUNK.size + features.nbytes, len(features)) + features.tobytes()]
    chunks += [_database(model.labels), _database(attributes)]
    # Two chunks list the features of each label and attribute. They have places in the file, and thus need their own first byte.
    # CRFsuite has two more labels, outside the sequence, which have no features here
    of_labels = _features_by_source(before, len(attribute_of), len(model.labels) + 2)
    chunks.append(_references(b"LFRF", of_labels, _starts(chunks)[-1], n_used=len(model.labels)))
    of_attributes = _features_by_source(attribute_of, 0, len(attributes))
    chunks.append(_references(b"AFRF", of_attributes, _starts(chunks)[-1], n_used=len(attributes)))
    *starts, size = _starts(chunks)
    header = _HEADER.pack(MAGIC, size, b"FOMC", _VERSION, 0, len(model.labels), len(attributes), *starts)
    write_whole(path, header + b"".join(map(_padded, chunks)))


def _padded(chunk: bytes) -> bytes:
    """The chunk, filled up with zeros to a multiple of four bytes."""
    return chunk + bytes(-len(chunk) % 4)


def _starts(chunks: Sequence[bytes]) -> list[int]:
    """The first byte of each chunk in the file, and the byte behind the last chunk."""
    return [_HEADER.size, *(_HEADER.size + np.cumsum([len(_padded(chunk)) for chunk in chunks])).tolist()]


def _features_by_source(sources: NDArray[np.int64], first: int, n: int) -> list[NDArray[np.int64]]:
    """List the numbers of the features of each of `n` sources. The features are numbered from `first` on; `sources` has the
    source of each."""
    order = np.argsort(sources, kind="stable")
    return np.split(first + order, np.searchsorted(sources[order], np.arange(1, n))) if n else []


def _references(name: bytes, lists: list[NDArray[np.int64]], at: int, *, n_used: int) -> bytes:
    """Make the chunk with the features of each label or attribute.

    lists (list[int64[N]]): The numbers of the features.
    at (int): First byte of the chunk.
    n_used (int): Number of the lists to write; the others get the place 0, for none.
    """
    data = [np.append(len(numbers), numbers).astype("<u4").tobytes() for numbers in lists[:n_used]]
    # The lists begin behind the table of their places
    begin = at + _CHUNK.size + 4 * len(lists)
    offsets = np.zeros(len(lists), dtype="<u4")
    offsets[:n_used] = begin + np.cumsum([0, *map(len, data)])[:-1]
    body = offsets.tobytes() + b"".join(data)
    return _CHUNK.pack(name, _CHUNK.size + len(body), len(lists)) + body


def _database(texts: Sequence[str]) -> bytes:
    """Make a database of texts: places of the hash tables, the texts, the hash tables, and the places of the texts. A place is
    the first byte, counted from the beginning of the database."""
    place = _DATABASE.size + 8 * _TABLES  # of the next text or table
    places = []  # of the texts
    entries = []
    pairs_of_tables = [[] for _ in range(_TABLES)]  # hash and place of the texts in each table
    for number, text in enumerate(texts):
        octets = text.encode("utf8") + b"\0"
        hashed = _jenkins(octets)
        pairs_of_tables[hashed % _TABLES].append((hashed, place))
        entries.append(_TEXT.pack(number, len(octets)) + octets)
        places.append(place)
        place += len(entries[-1])
    references = []  # place and size of each table
    tables = []
    for pairs in pairs_of_tables:
        references.append((place if pairs else 0, 2 * len(pairs)))
        tables.append(_hash_table(pairs))
        place += len(tables[-1])
    body = np.array(references, dtype="<u4").tobytes() + b"".join([*entries, *tables])
    body += np.array(places, dtype="<u4").tobytes()
    return _DATABASE.pack(b"CQDB", _DATABASE.size + len(body), 0, _ORDER, len(texts), place) + body


def _hash_table(pairs: list[tuple[int, int]]) -> bytes:
    """Make a hash table of pairs of hash and place; no place is 0. Half of its buckets stay free."""
    buckets = np.zeros((2 * len(pairs), 2), dtype="<u4")
    for hashed, place in pairs:
        n = (hashed >> 8) % len(buckets)
        while buckets[n, 1]:  # open addressing: the next free bucket
            n = (n + 1) % len(buckets)
        buckets[n] = hashed, place
    return buckets.tobytes()


def _jenkins(octets: bytes) -> int:
    """Compute Bob Jenkins' hash for look-ups (lookup3.c, 2006) of a sequence of bytes, with the initial value 0."""
    most = 0xFFFFFFFF  # numbers wrap around at 32 bits
    a = b = c = (0xDEADBEEF + len(octets)) & most
    last = (len(octets) - 1) // 12 * 12  # beginning of the last block
    words = struct.unpack(f"<{last // 4 + 3}I", octets + bytes(last + 12 - len(octets)))
    for n in range(0, len(words) - 3, 3):
        a = (a + words[n]) & most
        b = (b + words[n + 1]) & most
        c = (c + words[n + 2]) & most
        # Each round mixes one of the three numbers; then they change places, and after six rounds they are back
        for bits in (4, 6, 8, 16, 19, 4):
            a = ((a - c) & most) ^ _turned(c, bits)
            c = (c + b) & most
            a, b, c = b, c, a
    a, b, c = ((value + word) & most for value, word in zip((a, b, c), words[-3:]))
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _turned(b, bits)) & most
        a, b, c = b, c, a
    return b


def _turned(value: int, bits: int) -> int:
    """Rotate a value of 32 bits to the left."""
    return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF
