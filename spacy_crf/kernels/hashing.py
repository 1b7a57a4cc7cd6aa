"""Features as 64-bit hashes, and the open-addressing table that gives each hash its row.

A template is a list of parts (column, offset); a feature of a token is the template's hash mixed with the values of its parts.
Columns come in two matrices: those of the lexeme (looked up by its number) and those of the token. They are read at P positions:
those of the tokens, and some before and behind each sequence, which have lexemes of their own: number ``k - 1`` for k tokens
before the sequence, ``reach + k - 1`` for k tokens behind it.
"""

import numpy as np

from . import helper, kernel
from .numerics import FIRST_HASH, NO_FEATURE, mix

# Value of a column where the token has none, so that no template finds anything. As a number it is -2**63, which no attribute
# has; of strings, one in 2**64 has it for a hash. (-1 is the head of a token whose head stands before it.)
ABSENT = np.uint64(1 << 63)

WORD_END = np.uint64(0x110000)  # of no character


@kernel
def mix_all(hashes, values):
    """``mix`` of each value into its hash (both uint64[N]), in place; an absent value leaves NO_FEATURE."""
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
    """Hash of the first (size > 0) or last (size < 0) characters of words; ABSENT for shorter words.

    points (uint32[N]): Code points of the words, end to end, ends (int64[V]): where each word ends, sizes (int64[A])
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

    points (uint32[N]): Code points of the words, end to end, ends (int64[V]): where each word ends, slots (int): The most runs of
    a word; of a longer one, half of them are its first ones, half its last.
    RETURNS (hashes uint64[V, slots], first int64[V, slots]): ABSENT where there are no more; and where each run begins, counted
    from the mark.
    """
    hashes, firsts = np.empty((len(ends), slots), dtype=np.uint64), np.empty((len(ends), slots), dtype=np.int64)
    begin = 0
    for v in range(len(ends)):
        length = ends[v] - begin
        n_runs = length + 3 - size
        found = 0
        for slot in range(min(n_runs, slots)):
            first = slot if slot < slots // 2 or n_runs <= slots else n_runs - slots + slot
            hashed = FIRST_HASH
            for n in range(first - 1, first - 1 + size):
                hashed = mix(hashed, np.uint64(points[begin + n]) if 0 <= n < length else WORD_END)
            is_new = True
            for other in range(found):
                is_new = is_new and hashes[v, other] != hashed
            if is_new:
                hashes[v, found], firsts[v, found] = hashed, first
                found += 1
        for slot in range(found, slots):
            hashes[v, slot], firsts[v, slot] = ABSENT, 0
        begin = ends[v]
    return hashes, firsts


@kernel
def sequence_starts(sent_start, doc_starts):
    """Where the sequences of a batch begin and end: at the Docs' ends and at known sentence starts.

    sent_start (uint64[T]): spaCy's SENT_START values: 1 where a sentence is known to start. doc_starts (int64[D + 1])
    RETURNS (int64[B + 1])
    """
    n_tokens = len(sent_start)
    opens = np.empty(n_tokens + 1, dtype=np.bool_)
    for t in range(n_tokens):
        opens[t] = sent_start[t] == 1
    for start in doc_starts:
        opens[start] = True  # an empty Doc begins where the next one does, and the last ends behind all tokens
    return opens.nonzero()[0]


@kernel
def place(numbers, starts, reach):
    """Numbers at all positions of sequences: at their tokens, and at ``reach`` positions before and behind each sequence.

    numbers (int32[T]): Of the tokens.
    starts (int64[B + 1]): Where sequences begin.
    RETURNS (placed int32[T + 2 * reach * B], positions int64[T]): The numbers, those of sequence b from
        ``starts[b] + 2 * reach * b`` on; and the position of each token.
    """
    placed = np.empty(len(numbers) + 2 * reach * (len(starts) - 1), dtype=np.int32)
    positions = np.empty(len(numbers), dtype=np.int64)
    for b in range(len(starts) - 1):
        first, behind = starts[b] + (2 * b + 1) * reach, starts[b + 1] + (2 * b + 1) * reach
        for distance in range(reach):
            placed[first - 1 - distance] = distance
            placed[behind + distance] = reach + distance
        for t in range(starts[b], starts[b + 1]):
            positions[t] = t + (2 * b + 1) * reach
            placed[positions[t]] = numbers[t]
    return placed, positions


@kernel
def read_columns(lexemes, lexeme_columns, token_columns, chosen):
    """Some columns at all positions.

    lexemes (int32[P]): From `place`, lexeme_columns (uint64[V, C1]), token_columns (uint64[P, C2])
    chosen (int64[C]): Below C1 columns of the lexeme, else of the token.
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
    """Hash of every template at every position, in whole vectors: token by token took six times as long.

    values (uint64[C, P]): From `read_columns`.
    seeds (uint64[M]): The templates' own hashes; template m has parts ``part_starts[m]:part_starts[m + 1]``.
    part_columns (int64[N]), part_offsets (int64[N]): The column that each part reads, and how far away, at most ``reach``
        positions.
    RETURNS (uint64[M, P]): NO_FEATURE where a part is absent, and at positions outside a sequence no hash of anything.
    """
    n_inner = max(0, values.shape[1] - 2 * reach)
    hashes = np.zeros((len(seeds), values.shape[1]), dtype=np.uint64)
    for m in range(len(seeds)):
        target = hashes[m, reach : reach + n_inner]
        target[:] = seeds[m]
        for part in range(part_starts[m], part_starts[m + 1]):
            first = reach + part_offsets[part]
            source = values[part_columns[part], first : first + n_inner]
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
    """16 bits for each key (uint64[N]), of which one is set: uint64[M]."""
    size = 1
    while 4 * size < len(keys):
        size *= 2
    bits = np.zeros(size, dtype=np.uint64)
    for key in keys:
        bits[(key >> np.uint64(38)) & np.uint64(size - 1)] |= np.uint64(1) << (key >> np.uint64(32) & np.uint64(63))
    return bits


@helper
def passes(bits, key):
    """Whether the sieve lets a key pass: every key that it was made of, and few others."""
    word = bits[(key >> np.uint64(38)) & np.uint64(len(bits) - 1)]
    return (word >> (key >> np.uint64(32) & np.uint64(63))) & np.uint64(1) != 0


@kernel
def insert(slots, rows, keys, first_row):
    """Put new keys into a table with room for them; their rows begin with ``first_row``.

    The row is written before its key, so that a thread that looks the key up meanwhile finds both or nothing.
    """
    for n in range(len(keys)):
        slot = find_slot(slots, keys[n])
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
    """Append the known features of some tokens to the ``size`` features that were found before.

    hashes (uint64[P]): The features at all positions.
    positions (int64[T]): The positions of the tokens.
    asked (int32[N]): The tokens.
    table: A sieve (uint64[L]), slots (uint64[M]) and rows (int32[M]).
    keys (uint64[N + 1]): Is overwritten.
    tokens, rows (int32[at least size + N + 1]): Receive what is found.
    RETURNS (int): The new size.

    No branch predictor knows which features are known. So all are sieved without a branch first, and only those that pass are
    looked up, nearly all of which are known: in half of the time.
    """
    sieve, slots, rows_of_slots = table
    first, passed = size, 0
    for n in range(len(asked)):
        key = hashes[positions[asked[n]]]
        keys[passed] = key
        tokens[first + passed] = asked[n]
        passed += passes(sieve, key) & (key != NO_FEATURE)
    for n in range(passed):
        row = rows_of_slots[find_slot(slots, keys[n])]
        tokens[size] = tokens[first + n]
        rows[size] = row
        size += row >= 0
    return size


@kernel
def find_known(hashes, positions, table):
    """The known features of all tokens, template by template.

    hashes (uint64[M, P]): From `hash_features`, positions (int64[T]), table: As in `sift`.
    RETURNS (tokens int32[F], rows int32[F])
    """
    n_tokens, size = len(positions), np.int64(0)  # of a literal `sift` would have a variant
    tokens = np.empty(len(hashes) * n_tokens + 1, dtype=np.int32)
    rows = np.empty(len(hashes) * n_tokens + 1, dtype=np.int32)
    asked, keys = np.empty(n_tokens, dtype=np.int32), np.empty(n_tokens + 1, dtype=np.uint64)
    for t in range(n_tokens):
        asked[t] = t
    for m in range(len(hashes)):
        size = sift(hashes[m], positions, asked, table, keys, tokens, rows, size)
    return tokens[:size], rows[:size]


@kernel
def count(slots, rows, keys, n_rows, counts, new_keys, new_at):
    """Count keys, and give each new one the next row, in a table with room for all of them.

    counts (int32[R]): Of each row, for R at least ``n_rows`` and the number of new keys.
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
    """Mark the pairs of a feature and a column that meet at some token.

    rows (int32[nnz]), starts (int64[T + 1]): Features of each token.
    columns (int32[N]), column_starts (int64[T + 1]): Columns of each token.
    seen (uint64[F, W]): Receives one bit per column.
    """
    for t in range(len(starts) - 1):
        for c in range(column_starts[t], column_starts[t + 1]):
            word, bit = columns[c] >> 6, np.uint64(1) << np.uint64(columns[c] & 63)
            for n in range(starts[t], starts[t + 1]):
                seen[rows[n], word] |= bit


@kernel
def list_pairs(seen, n_columns):
    """The pairs marked in ``seen`` (uint64[F, W]).

    RETURNS (int64[F + 1], int32[N]): The columns of each feature in rising order, as compressed rows.
    """
    starts = np.zeros(len(seen) + 1, dtype=np.int64)
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
