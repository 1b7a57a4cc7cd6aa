"""Features as 64-bit hashes, and the open-addressing table that maps each hash to its row.

A template is a list of parts (column, offset); a feature of a token is the template's hash mixed with the values of its parts.
Columns come in two matrices: columns of the lexeme (looked up by its number) and columns of the token. Templates read them at P
positions: the tokens, and some before and behind each sequence, which have lexemes of their own: number ``k - 1`` at k tokens
before the sequence, ``reach + k - 1`` at k tokens behind it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Ints
from . import helper, kernel
from .numerics import FIRST_HASH, NO_FEATURE, mix

# Value of a column at a token without one, so that no template makes a feature. As a number it is -2**63, which no attribute has;
# a string has this hash with probability 2**-64. (-1 is the head of a token whose head is the token before.)
ABSENT = np.uint64(1 << 63)

WORD_END = np.uint64(0x110000)  # is no character

_CHUNK = 1 << 16  # keys that are inserted at a time, which bounds memory
# Arguments of kernels for no templates
_NO_HASHES = np.zeros(0, dtype=np.uint64)
_NO_PARTS = np.zeros(0, dtype=np.int64)


@kernel(in_place=True)
def mix_all(hashes, values):
    """Mix each value into its hash (both uint64[N]) by ``mix``, in place; an absent value leaves NO_FEATURE."""
    for n in range(len(hashes)):
        if values[n] == ABSENT or hashes[n] == NO_FEATURE:
            hashes[n] = NO_FEATURE
        else:
            hashes[n] = mix(hashes[n], values[n])


@kernel(in_place=True)
def hash_runs(values, begins, ends, hashes):
    """Hash runs of values: the values begins[n] to ends[n] - 1 (int64[N] each) of `values` (uint64[V]).

    hashes (uint64[N]): Receives the hash of each run.
    """
    for n in range(len(begins)):
        hashed = FIRST_HASH
        for v in range(begins[n], ends[n]):
            hashed = mix(hashed, values[v])
        hashes[n] = hashed


def hash_rows(values):
    """One hash for each row of ``values`` (uint64[T, C]), never NO_FEATURE: uint64[T]."""
    n_rows, width = values.shape
    begins = np.arange(n_rows) * width
    hashes = np.empty(n_rows, dtype=np.uint64)
    hash_runs(values.ravel(), begins, begins + width, hashes)
    return np.maximum(hashes, np.uint64(1))


def hash_affixes(points, ends, sizes):
    """Hash of the first or last characters of words; ABSENT for shorter words.

    points (uint32[N]): Code points of the words, end to end.
    ends (int64[V]): Where each word ends.
    sizes (int64[A]): Number of characters, negative for the last characters.
    RETURNS (uint64[V, A])
    """
    lengths = np.diff(ends, prepend=0)[:, np.newaxis]
    behind = ends[:, np.newaxis]
    is_long_enough = np.abs(sizes) <= lengths  # [V, A]
    begins = np.where(sizes > 0, behind - lengths, behind + sizes)
    affix_ends = np.where(is_long_enough, begins + np.abs(sizes), begins)
    hashes = np.empty(begins.shape, dtype=np.uint64)
    hash_runs(points.astype(np.uint64), begins.ravel(), affix_ends.ravel(), hashes.ravel())
    return np.where(is_long_enough, hashes, ABSENT)


def hash_ngrams(points, ends, size, slots):
    """Hashes of the runs of ``size`` characters of words, each once, with a mark before and behind the word.

    points (uint32[N]): Code points of the words, end to end.
    ends (int64[V]): Where each word ends.
    slots (int): Most runs per word. Of a word with more, half of the runs come from its beginning, half from its end.
    RETURNS (hashes uint64[V, slots], first int64[V, slots]): Hashes, ABSENT in unused slots; and where each run begins, counted
        from the mark.
    """
    hashes = np.empty((len(ends), slots), dtype=np.uint64)
    firsts = np.empty((len(ends), slots), dtype=np.int64)
    _write_ngrams(points, ends, size, hashes, firsts)
    return hashes, firsts


@kernel(in_place=True)
def _write_ngrams(points, ends, size, hashes, firsts):
    """Write what `hash_ngrams` returns. (NumPy took ten times as long.)"""
    slots = hashes.shape[1]
    begin = 0
    for v in range(len(ends)):
        length = ends[v] - begin
        n_runs = length + 3 - size
        n_distinct = 0
        for slot in range(n_runs if n_runs < slots else slots):
            # Of too many runs the first half, then the last half
            first = slot if slot < slots // 2 or n_runs <= slots else n_runs - slots + slot
            hashed = FIRST_HASH
            for n in range(first - 1, first - 1 + size):
                hashed = mix(hashed, np.uint64(points[begin + n]) if 0 <= n < length else WORD_END)
            is_new = True
            for other in range(n_distinct):
                is_new = is_new and hashes[v, other] != hashed
            if is_new:
                hashes[v, n_distinct] = hashed
                firsts[v, n_distinct] = first
                n_distinct += 1
        for slot in range(n_distinct, slots):
            hashes[v, slot] = ABSENT
            firsts[v, slot] = 0
        begin = ends[v]


def place(numbers, starts, reach):
    """Write the numbers of tokens at all positions: the tokens, and ``reach`` positions before and behind each sequence.

    numbers (int32[T]): Number of each token.
    starts (int64[B + 1]): Where sequences begin.
    RETURNS (placed int32[T + 2 * reach * B], positions int64[T]): The numbers, with sequence b from ``starts[b] + 2 * reach * b``
        on; and the position of each token.
    """
    placed = np.empty(len(numbers) + 2 * reach * (len(starts) - 1), dtype=np.int32)
    positions = np.empty(len(numbers), dtype=np.int64)
    _place(numbers, starts, reach, placed, positions)
    return placed, positions


@kernel(in_place=True)
def _place(numbers, starts, reach, placed, positions):
    """Write what `place` returns."""
    for b in range(len(starts) - 1):
        # Sequence b is shifted by the positions around it and around the sequences before it
        shift = (2 * b + 1) * reach
        for distance in range(reach):
            placed[starts[b] + shift - 1 - distance] = distance
            placed[starts[b + 1] + shift + distance] = reach + distance
        for t in range(starts[b], starts[b + 1]):
            positions[t] = t + shift
            placed[t + shift] = numbers[t]


class ColumnsRead(NamedTuple):
    """The columns that templates read at P positions."""

    lexemes: NDArray[np.int32]  # [P] number of the lexeme at each position, see `place`
    lexeme_columns: NDArray[np.uint64]  # [V, C1] columns of lexemes
    token_columns: NDArray[np.uint64]  # [P, C2] columns of positions
    chosen: Ints  # [C] the columns to read: numbers below C1 are columns of the lexeme, others of the position


def read_columns(read):
    """Values of the chosen columns (ColumnsRead) at all positions: uint64[C, P]."""
    values, _ = _read_and_hash(read, 0, _NO_HASHES, _NO_PARTS, _NO_PARTS, _NO_PARTS)
    return values


def hash_features(read, reach, seeds, part_starts, part_columns, part_offsets):
    """Hash of every template at every position.

    read (ColumnsRead): The columns.
    reach (int): How far away parts read at most.
    seeds (uint64[M]): The templates' own hashes; template m has parts ``part_starts[m]:part_starts[m + 1]``.
    part_columns (int64[N]), part_offsets (int64[N]): The chosen column that each part reads, and how far away.
    RETURNS (uint64[M, P]): NO_FEATURE where a part is absent; hashes at positions outside a sequence are meaningless.
    """
    _, hashes = _read_and_hash(read, reach, seeds, part_starts, part_columns, part_offsets)
    return hashes


def _read_and_hash(read, reach, seeds, *parts):
    """Values of columns and hashes of templates, see `read_columns` and `hash_features`: in one kernel, since a call takes as
    long as a short text."""
    n_positions = len(read.token_columns)
    values = np.empty((len(read.chosen), n_positions), dtype=np.uint64)
    hashes = np.empty((len(seeds), n_positions), dtype=np.uint64)
    _write_hashes(tuple(read), reach, seeds, *parts, values, hashes)
    return values, hashes


@kernel(in_place=True)
def _write_hashes(read, reach, seeds, part_starts, part_columns, part_offsets, values, hashes):
    """Write what `_read_and_hash` returns, part by part for all positions: token by token took six times as long."""
    lexemes, lexeme_columns, token_columns, chosen = read
    n_lexeme_columns = lexeme_columns.shape[1]
    n_positions = values.shape[1]
    for c in range(len(chosen)):
        column = chosen[c]
        if column < n_lexeme_columns:
            for p in range(n_positions):
                values[c, p] = lexeme_columns[lexemes[p], column]
        else:
            for p in range(n_positions):
                values[c, p] = token_columns[p, column - n_lexeme_columns]
    behind = n_positions - reach
    for m in range(len(seeds)):
        target = hashes[m, reach:behind]
        for n in range(len(target)):
            target[n] = seeds[m]
        for part in range(part_starts[m], part_starts[m + 1]):
            offset = part_offsets[part]
            source = values[part_columns[part], reach + offset : behind + offset]
            # Without branches, so that LLVM vectorises: a hash becomes NO_FEATURE once and stays so
            for n in range(len(target)):
                mixed = mix(target[n], source[n])
                target[n] = NO_FEATURE if (source[n] == ABSENT) | (target[n] == NO_FEATURE) else mixed


@helper(in_place=True)
def find_slot(keys, key):
    """The slot of a key, or the free slot for it (linear probing; the size is a power of two, 0 marks a free slot)."""
    mask = np.uint64(len(keys) - 1)
    one = np.uint64(1)
    slot = key & mask
    while keys[slot] != NO_FEATURE and keys[slot] != key:
        slot = (slot + one) & mask
    return slot


def make_sieve(keys):
    """Make a sieve, a set of 16 bits or more per key in which each of the keys (uint64[N]) sets one bit: uint64[M]. All keys from
    which the sieve was made pass it (see `sift`), and few others."""
    size = 1
    while 4 * size < len(keys):
        size *= 2
    bits = np.zeros(size, dtype=np.uint64)
    # Other bits of the key than those that choose its slot
    words = (keys >> np.uint64(38)) & np.uint64(size - 1)
    np.bitwise_or.at(bits, words.astype(np.int64), np.uint64(1) << (keys >> np.uint64(32) & np.uint64(63)))
    return bits


@kernel(in_place=True)
def find_rows(slots, rows, keys, n_rows, found, new):
    """Find keys in a table, and give new keys the next rows if asked to.

    A row is written before its key, so a thread that looks up the key meanwhile finds both or nothing.

    slots (uint64[S]), rows (int32[S]): The table.
    keys (uint64[N]): The keys.
    n_rows (int): Number of rows in use.
    found (int32[N]): Receives the row of each key, -1 for unknown keys and NO_FEATURE.
    new (int64[N] or int64[0]): Receives where each new key first occurs; if it is empty, no key is given a row.
    RETURNS (int): Number of new keys that got a row, or of keys without a row if none is given.
    """
    n_new = 0
    n_missing = 0
    for n in range(len(keys)):
        row = -1
        if keys[n] != NO_FEATURE:
            slot = find_slot(slots, keys[n])
            row = rows[slot]
            if row < 0 and len(new) > 0:
                row = n_rows + n_new
                rows[slot] = row
                slots[slot] = keys[n]
                new[n_new] = n
                n_new += 1
        n_missing += row < 0
        found[n] = row
    return n_new if len(new) > 0 else n_missing


def insert(slots, rows, keys, first_row):
    """Insert new keys, all different, into a table that has room for them; their rows begin with ``first_row``."""
    for begin in range(0, len(keys), _CHUNK):
        chunk = keys[begin : begin + _CHUNK]
        places = np.empty(len(chunk), dtype=np.int64)
        find_rows(slots, rows, chunk, first_row + begin, np.empty(len(chunk), dtype=np.int32), places)


@kernel(in_place=True)
def sift(hashes, positions, table, keys, numbers, rows, size):
    """Append the known features at N positions, template by template, to the ``size`` features found earlier.

    hashes (uint64[M, P]): The features at all positions.
    positions (int64[N]): The positions.
    table: A sieve (uint64[L]), slots (uint64[S]) and rows (int32[S]).
    keys (uint64[at least N + 1]): Is overwritten.
    numbers, rows (int32[at least size + M * N + 1]): Receive the number of the position, from 0 to N - 1, and the row of each
        feature.
    RETURNS (int): The new size.

    Branch predictors cannot predict which features are known. So a sieve without branches comes first, and only the features that
    pass are looked up, nearly all of which are known: this takes half of the time.
    """
    sieve, slots, rows_of_slots = table
    mask = np.uint64(len(sieve) - 1)
    for m in range(len(hashes)):
        hashes_of_template = hashes[m]
        first = size
        passed = 0
        for n in range(len(positions)):
            key = hashes_of_template[positions[n]]
            keys[passed] = key
            numbers[first + passed] = n
            bit = sieve[(key >> np.uint64(38)) & mask] >> (key >> np.uint64(32) & np.uint64(63))
            # The next key overwrites one that does not pass
            passed += (bit & np.uint64(1) != 0) & (key != NO_FEATURE)
        for n in range(passed):
            row = rows_of_slots[find_slot(slots, keys[n])]
            numbers[size] = numbers[first + n]
            rows[size] = row
            # Likewise: what is not known is overwritten
            size += row >= 0
    return size


def find_known(hashes, positions, table):
    """The known features of all tokens, template by template.

    hashes (uint64[M, P]): From `hash_features`, positions (int64[T]), table: As in `sift`.
    RETURNS (tokens int32[F], rows int32[F])
    """
    tokens, rows = np.empty((2, hashes.shape[0] * len(positions) + 1), dtype=np.int32)
    keys = np.empty(len(positions) + 1, dtype=np.uint64)
    size = sift(hashes, positions, table, keys, tokens, rows, 0)
    return tokens[:size], rows[:size]
