"""Features as 64-bit hashes, and the open-addressing table that maps each hash to its row.

A template is a list of parts (column, offset); a feature of a token is the template's hash mixed with the values of its parts.
Columns come in two matrices: columns of the lexeme (looked up by its number) and columns of the token. Templates read them at P
positions: the tokens, and some before and behind each sequence, which have lexemes of their own: number ``k - 1`` at k tokens
before the sequence, ``reach + k - 1`` at k tokens behind it.
"""

import numpy as np

from . import helper, kernel
from .numerics import FIRST_HASH, NO_FEATURE, mix

# Value of a column at a token without one, so that no template makes a feature. As a number it is -2**63, which no attribute has;
# a string has this hash with probability 2**-64. (-1 is the head of a token whose head is the token before.)
ABSENT = np.uint64(1 << 63)

WORD_END = np.uint64(0x110000)  # is no character


@kernel
def mix_all(hashes, values):
    """Mix each value into its hash (both uint64[N]) by ``mix``, in place; an absent value leaves NO_FEATURE."""
    for n in range(len(hashes)):
        if values[n] == ABSENT or hashes[n] == NO_FEATURE:
            hashes[n] = NO_FEATURE
        else:
            hashes[n] = mix(hashes[n], values[n])


@kernel
def hash_rows(values):
    """One hash for each row of ``values`` (uint64[T, C]), never NO_FEATURE: uint64[T]."""
    hashes = np.empty(len(values), dtype=np.uint64)
    for t in range(len(values)):
        hashed = FIRST_HASH
        for c in range(values.shape[1]):
            hashed = mix(hashed, values[t, c])
        hashes[t] = max(hashed, np.uint64(1))
    return hashes


@kernel
def hash_affixes(points, ends, sizes):
    """Hash of the first or last characters of words; ABSENT for shorter words.

    points (uint32[N]): Code points of the words, end to end.
    ends (int64[V]): Where each word ends.
    sizes (int64[A]): Number of characters, negative for the last characters.
    RETURNS (uint64[V, A])
    """
    hashes = np.empty((len(ends), len(sizes)), dtype=np.uint64)
    begin = 0
    for v in range(len(ends)):
        for a in range(len(sizes)):
            size = abs(sizes[a])
            hashes[v, a] = ABSENT
            if size <= ends[v] - begin:
                first = begin if sizes[a] > 0 else ends[v] - size
                hashed = FIRST_HASH
                for n in range(first, first + size):
                    hashed = mix(hashed, np.uint64(points[n]))
                hashes[v, a] = hashed
        begin = ends[v]
    return hashes


@kernel
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
    begin = 0
    for v in range(len(ends)):
        length = ends[v] - begin
        n_runs = length + 3 - size
        n_distinct = 0
        for slot in range(min(n_runs, slots)):
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
    return hashes, firsts


@kernel
def sequence_starts(sent_start, doc_starts):
    """Bounds of the sequences of a batch: ends of Docs and known sentence starts.

    sent_start (uint64[T]): spaCy's SENT_START values: 1 where a sentence is known to start. doc_starts (int64[D + 1])
    RETURNS (int64[B + 1])
    """
    n_tokens = len(sent_start)
    opens = np.empty(n_tokens + 1, dtype=np.bool_)
    for t in range(n_tokens):
        opens[t] = sent_start[t] == 1
    for start in doc_starts:
        opens[start] = True  # an empty Doc begins where the next Doc does; the last empty Doc begins behind all tokens
    return opens.nonzero()[0]


@kernel
def place(numbers, starts, reach):
    """Write the numbers of tokens at all positions: the tokens, and ``reach`` positions before and behind each sequence.

    numbers (int32[T]): Number of each token.
    starts (int64[B + 1]): Where sequences begin.
    RETURNS (placed int32[T + 2 * reach * B], positions int64[T]): The numbers, with sequence b from ``starts[b] + 2 * reach * b``
        on; and the position of each token.
    """
    placed = np.empty(len(numbers) + 2 * reach * (len(starts) - 1), dtype=np.int32)
    positions = np.empty(len(numbers), dtype=np.int64)
    for b in range(len(starts) - 1):
        # Sequence b is shifted by the positions around it and around the sequences before it
        first = starts[b] + (2 * b + 1) * reach
        behind = starts[b + 1] + (2 * b + 1) * reach
        for distance in range(reach):
            placed[first - 1 - distance] = distance
            placed[behind + distance] = reach + distance
        for t in range(starts[b], starts[b + 1]):
            positions[t] = t + (2 * b + 1) * reach
            placed[positions[t]] = numbers[t]
    return placed, positions


@kernel
def read_columns(lexemes, lexeme_columns, token_columns, chosen):
    """Values of chosen columns at all positions.

    lexemes (int32[P]): Number of the lexeme at each position, from `place`.
    lexeme_columns (uint64[V, C1]), token_columns (uint64[P, C2]): Columns by lexeme, and by position.
    chosen (int64[C]): The columns: numbers below C1 are columns of the lexeme, others of the token.
    RETURNS (uint64[C, P])
    """
    n_lexeme_columns = lexeme_columns.shape[1]
    values = np.empty((len(chosen), len(lexemes)), dtype=np.uint64)
    for c in range(len(chosen)):
        column = chosen[c]
        if column < n_lexeme_columns:
            for p in range(len(lexemes)):
                values[c, p] = lexeme_columns[lexemes[p], column]
        else:
            for p in range(len(lexemes)):
                values[c, p] = token_columns[p, column - n_lexeme_columns]
    return values


@kernel
def hash_features(values, reach, seeds, part_starts, part_columns, part_offsets):
    """Hash of every template at every position, part by part for all positions: token by token took six times as long.

    values (uint64[C, P]): From `read_columns`.
    seeds (uint64[M]): The templates' own hashes; template m has parts ``part_starts[m]:part_starts[m + 1]``.
    part_columns (int64[N]), part_offsets (int64[N]): The column that each part reads, and how far away, at most ``reach``
        positions.
    RETURNS (uint64[M, P]): NO_FEATURE where a part is absent; values at positions outside a sequence are meaningless.
    """
    n_inner = max(0, values.shape[1] - 2 * reach)
    hashes = np.zeros((len(seeds), values.shape[1]), dtype=np.uint64)
    for m in range(len(seeds)):
        target = hashes[m, reach : reach + n_inner]
        target[:] = seeds[m]
        for part in range(part_starts[m], part_starts[m + 1]):
            first = reach + part_offsets[part]
            source = values[part_columns[part], first : first + n_inner]
            # Without branches, so that LLVM vectorises: a hash becomes NO_FEATURE once and stays so
            for n in range(n_inner):
                mixed = mix(target[n], source[n])
                target[n] = NO_FEATURE if (source[n] == ABSENT) | (target[n] == NO_FEATURE) else mixed
    return hashes


@helper
def find_slot(keys, key):
    """The slot of a key, or the free slot for it (linear probing; the size is a power of two, 0 marks a free slot)."""
    mask = np.uint64(len(keys) - 1)
    one = np.uint64(1)
    slot = key & mask
    while keys[slot] != NO_FEATURE and keys[slot] != key:
        slot = (slot + one) & mask
    return slot


@kernel
def make_sieve(keys):
    """Make a sieve, a set of 16 bits or more per key in which each of the keys (uint64[N]) sets one bit: uint64[M]."""
    size = 1
    while 4 * size < len(keys):
        size *= 2
    bits = np.zeros(size, dtype=np.uint64)
    for key in keys:
        # Other bits of the key than those that choose its slot
        bits[(key >> np.uint64(38)) & np.uint64(size - 1)] |= np.uint64(1) << (key >> np.uint64(32) & np.uint64(63))
    return bits


@helper
def passes(bits, key):
    """Whether a sieve lets a key pass: all keys from which the sieve was made pass, and few others."""
    word = bits[(key >> np.uint64(38)) & np.uint64(len(bits) - 1)]
    return (word >> (key >> np.uint64(32) & np.uint64(63))) & np.uint64(1) != 0


@kernel
def insert(slots, rows, keys, first_row):
    """Insert new keys into a table that has room for them; their rows begin with ``first_row``.

    The kernel writes the row before its key, so a thread that looks up the key meanwhile finds both or nothing.
    """
    for n in range(len(keys)):
        slot = find_slot(slots, keys[n])
        # First the row, then the key
        rows[slot] = first_row + n
        slots[slot] = keys[n]


@kernel
def look_up(slots, rows, keys, found):
    """Write the row of each key into ``found`` (int32[N]), -1 for unknown keys. RETURNS (int): The number of unknown keys."""
    missing = 0
    for n in range(len(keys)):
        found[n] = -1
        if keys[n] != NO_FEATURE:
            found[n] = rows[find_slot(slots, keys[n])]
        if found[n] < 0:
            missing += 1
    return missing


@helper
def sift(hashes, positions, asked, table, keys, tokens, rows, size):
    """Append the known features of selected tokens to the ``size`` features found earlier.

    hashes (uint64[P]): The features at all positions.
    positions (int64[T]): The positions of the tokens.
    asked (int32[N]): The selected tokens.
    table: A sieve (uint64[L]), slots (uint64[M]) and rows (int32[M]).
    keys (uint64[N + 1]): Is overwritten.
    tokens, rows (int32[at least size + N + 1]): Receive the token and the row of each feature.
    RETURNS (int): The new size.

    Branch predictors cannot predict which features are known. So a sieve without branches comes first, and only the features that
    pass are looked up, nearly all of which are known: this takes half of the time.
    """
    sieve, slots, rows_of_slots = table
    first = size
    passed = 0
    for n in range(len(asked)):
        key = hashes[positions[asked[n]]]
        keys[passed] = key
        tokens[first + passed] = asked[n]
        # The next key overwrites one that does not pass
        passed += passes(sieve, key) & (key != NO_FEATURE)
    for n in range(passed):
        row = rows_of_slots[find_slot(slots, keys[n])]
        tokens[size] = tokens[first + n]
        rows[size] = row
        # Likewise: what is not known is overwritten
        size += row >= 0
    return size


@kernel
def find_known(hashes, positions, table):
    """The known features of all tokens, template by template.

    hashes (uint64[M, P]): From `hash_features`, positions (int64[T]), table: As in `sift`.
    RETURNS (tokens int32[F], rows int32[F])
    """
    # with a literal, numba would compile a second variant of `sift`
    n_tokens = len(positions)
    size = np.int64(0)
    tokens = np.empty(len(hashes) * n_tokens + 1, dtype=np.int32)
    rows = np.empty(len(hashes) * n_tokens + 1, dtype=np.int32)
    asked = np.empty(n_tokens, dtype=np.int32)
    keys = np.empty(n_tokens + 1, dtype=np.uint64)
    for t in range(n_tokens):
        asked[t] = t
    for m in range(len(hashes)):
        size = sift(hashes[m], positions, asked, table, keys, tokens, rows, size)
    return tokens[:size], rows[:size]


@kernel
def count(slots, rows, keys, n_rows, counts, new_keys, new_at):
    """Count keys in a table that has room for all of them, and give each new key the next row.

    counts (int32[R]): Count of each row; R is at least ``n_rows`` plus the number of new keys.
    new_keys (uint64[N]), new_at (int64[N]): Receive the new keys, and where they were first met.
    RETURNS (int): Rows in use.
    """
    first_row = n_rows
    for n in range(len(keys)):
        if keys[n] == NO_FEATURE:
            continue
        slot = find_slot(slots, keys[n])
        if rows[slot] < 0:
            slots[slot] = keys[n]
            rows[slot] = n_rows
            new_keys[n_rows - first_row] = keys[n]
            new_at[n_rows - first_row] = n
            n_rows += 1
        counts[rows[slot]] += 1
    return n_rows


@kernel
def mark_pairs(rows, starts, columns, column_starts, seen):
    """Mark the pairs of a feature and a column that occur together at some token.

    rows (int32[nnz]), starts (int64[T + 1]): Features of each token.
    columns (int32[N]), column_starts (int64[T + 1]): Columns of each token.
    seen (uint64[F, W]): Receives one bit per column.
    """
    for t in range(len(starts) - 1):
        for c in range(column_starts[t], column_starts[t + 1]):
            word = columns[c] >> 6
            bit = np.uint64(1) << np.uint64(columns[c] & 63)
            for n in range(starts[t], starts[t + 1]):
                seen[rows[n], word] |= bit


@kernel
def list_pairs(seen, n_columns):
    """The pairs marked in ``seen`` (uint64[F, W]).

    RETURNS (int64[F + 1], int32[N]): The columns of each feature in rising order, as compressed rows.
    """
    starts = np.zeros(len(seen) + 1, dtype=np.int64)
    # First the number of columns of each feature, then the columns
    for fill in range(2):
        columns = np.empty(starts[len(seen)] if fill else 0, dtype=np.int32)
        at = 0
        for f in range(len(seen)):
            for column in range(n_columns):
                if (seen[f, column >> 6] >> np.uint64(column & 63)) & np.uint64(1):
                    if fill:
                        columns[at] = column
                    at += 1
            starts[f + 1] = at
    return starts, columns
