"""Texts as code points: grapheme clusters, runs, n-grams of characters and of runs, and the scores of boundaries.

Texts are laid end to end. ``text_starts`` (int64[B + 1]) are where they begin. A boundary at code point t lies before it.

An n-gram of items i, ..., i + n - 1 (characters, or runs of characters) has one row of weights for each boundary j that has it in
its window of w items on either side: i + n - w <= j <= i + w. So a single look-up serves 2 w - n + 1 boundaries.
"""

import numpy as np

from . import helper, kernel
from .hashing import find_slot
from .numerics import FIRST_HASH, NO_FEATURE, mix

LONGEST_NGRAM = 3
WINDOW = 3  # items on either side of a boundary that are features of it

# Kinds of code points
SPACE = 0
WORD = 1  # a letter, mark or digit
OTHER = 2

# What stands before a unit
NOTHING = 0
BLANK = 1
BEGINNING = 2

# What the rules of grapheme clusters distinguish. From NON_JOINER on: what continues any cluster
RETURN = 1
LINE_FEED = 2
CONTROL = 3
LEADING = 4  # Hangul: a leading consonant, a vowel, a trailing consonant, and syllables without and with a trailing one
VOWEL = 5
TRAILING = 6
OPEN_SYLLABLE = 7
CLOSED_SYLLABLE = 8
PREPENDED = 9
SPACING_MARK = 10
INDICATOR = 11  # half of a flag
PICTOGRAPH = 12
CONSONANT = 13  # of a script that writes conjuncts
LONE_LINKER = 14  # joins the next consonant, but begins a cluster of its own
NON_JOINER = 15
LINKER = 16  # of a consonant with the next one
MARK = 17
JOINER = 18

# What stands before a run
_TOUCHES = np.uint64(1)
_SPACE_BEFORE = np.uint64(2)
_LINE_BEFORE = np.uint64(3)
_PARAGRAPH_BEFORE = np.uint64(4)
_NEW_LINE = 10
_LONGEST_SHAPE = 6  # changes of class in the shape of a run


@helper
def _joins(before, now):
    """Whether a character always continues the cluster of the one before, by their properties."""
    if before == RETURN and now == LINE_FEED:
        return True
    if RETURN <= before <= CONTROL or RETURN <= now <= CONTROL:
        return False
    if now >= NON_JOINER or now == SPACING_MARK or before == PREPENDED:
        return True
    if before == LEADING:
        return now in (LEADING, VOWEL, OPEN_SYLLABLE, CLOSED_SYLLABLE)
    if before in (VOWEL, OPEN_SYLLABLE):
        return now in (VOWEL, TRAILING)
    return before in (TRAILING, CLOSED_SYLLABLE) and now == TRAILING


@kernel
def cluster_starts(points, text_starts, properties):
    """Mark where grapheme clusters begin (Unicode Standard Annex 29).

    points (uint32[T]), text_starts (int64[B + 1]): The texts.
    properties (uint8[N]): Property of each code point.
    RETURNS (bool[T])
    """
    begins = np.ones(len(points), dtype=np.bool_)
    for b in range(len(text_starts) - 1):
        before = np.uint8(0)
        is_linked = False  # a linker stands before, perhaps with marks behind it
        is_pictograph = False  # a pictograph stands before, perhaps with marks behind it
        is_joined = False  # a pictograph, marks and a joiner stand before
        is_half_flag = False
        for t in range(text_starts[b], text_starts[b + 1]):
            now = properties[points[t]]
            continues = (
                is_linked and now == CONSONANT
            )  # GB9c: since Unicode 18 no consonant has to stand before the linker
            continues |= is_joined and now == PICTOGRAPH  # GB11
            continues |= is_half_flag and now == INDICATOR  # GB12, GB13
            begins[t] = t == text_starts[b] or not (continues or _joins(before, now))
            is_linked = now in (LINKER, LONE_LINKER) or (is_linked and now >= MARK)
            is_joined = is_pictograph and now == JOINER
            is_pictograph = now == PICTOGRAPH or (is_pictograph and NON_JOINER <= now <= MARK)
            is_half_flag = now == INDICATOR and not is_half_flag
            before = now
    return begins


@kernel
def find_units(points, text_starts, begins, kinds, joins_words):
    """Find the smallest units that a text may be cut into: clusters that are no white space.

    begins (bool[T]): From `cluster_starts`.
    kinds (uint8[N]): Kind of each code point.
    joins_words (bool): Whether neighbouring letters, marks and digits are one unit.
    RETURNS (units int64[U], ends int64[U], starts int64[B + 1], gaps uint8[U]): Where units begin and end; the first unit of each
        text; and what stands before each unit: NOTHING (another unit), BLANK (white space), or BEGINNING (of the text, perhaps
        with white space).
    """
    units = np.empty(len(points), dtype=np.int64)
    ends = np.empty(len(points), dtype=np.int64)
    gaps = np.empty(len(points), dtype=np.uint8)
    starts = np.zeros(len(text_starts), dtype=np.int64)
    n = 0
    for b in range(len(text_starts) - 1):
        gap = BEGINNING
        before = SPACE
        t = text_starts[b]
        while t < text_starts[b + 1]:
            behind = t + 1
            while behind < text_starts[b + 1] and not begins[behind]:
                behind += 1
            kind = kinds[points[t]]
            if kind == SPACE and behind > t + 1 and kinds[points[t + 1]] != SPACE:
                kind = OTHER  # white space with a mark, which has to stay visible
            if kind == SPACE:
                gap = max(gap, BLANK)
            else:
                if not (joins_words and kind == WORD and before == WORD):
                    units[n] = t
                    gaps[n] = gap
                    n += 1
                    gap = NOTHING
                ends[n - 1] = behind
            before = kind
            t = behind
        starts[b + 1] = n
    return units[:n].copy(), ends[:n].copy(), starts, gaps[:n].copy()


@kernel
def find_runs(points, text_starts, kinds, classes):
    """Runs of letters, marks and digits, and runs of one other character; white space is left out.

    points (uint32[T]), text_starts (int64[B + 1]): The texts. kinds (uint8[N]), classes (uint16[N]): Of each code point.
    RETURNS (places int64[R], starts int64[B + 1], runs uint64[R], shapes uint64[R]): Where runs begin; the first run of each
        text; the hash of the characters of each run; and of their classes, of repeated ones the first, with what stands before.
    """
    places = np.empty(len(points), dtype=np.int64)
    runs = np.empty(len(points), dtype=np.uint64)
    shapes = np.empty(len(points), dtype=np.uint64)
    starts = np.zeros(len(text_starts), dtype=np.int64)
    n = np.int64(0)
    for b in range(len(text_starts) - 1):
        t = text_starts[b]
        end = text_starts[b + 1]
        gap = _PARAGRAPH_BEFORE
        while t < end:
            kind = kinds[points[t]]
            if kind == SPACE:
                if points[t] == _NEW_LINE:
                    gap = _PARAGRAPH_BEFORE if gap >= _LINE_BEFORE else _LINE_BEFORE
                else:
                    gap = max(gap, _SPACE_BEFORE)
                t += 1
                continue
            first = t
            run = FIRST_HASH
            shape = mix(FIRST_HASH, gap)
            changes = 0
            latest = np.uint16(0)
            while t < end and kinds[points[t]] == kind and (kind == WORD or points[t] == points[first]):
                run = mix(run, np.uint64(points[t]))
                if classes[points[t]] != latest and changes < _LONGEST_SHAPE:
                    latest = classes[points[t]]
                    shape = mix(shape, np.uint64(latest))
                    changes += 1
                t += 1
            places[n] = first
            runs[n] = run
            shapes[n] = mix(shape, np.uint64(min(t - first, 2)))
            n += 1
            gap = _TOUCHES
        starts[b + 1] = n
    return places[:n].copy(), starts, runs[:n].copy(), shapes[:n].copy()


@kernel
def hash_ngrams(codes, starts, seeds):
    """Hashes of the n-grams of items.

    codes (uint64[N]): Code of each item.
    starts (int64[Q + 1]): Where sequences of items begin.
    seeds (uint64[Q]): Of each sequence the number that distinguishes its kind of items.
    RETURNS (uint64[LONGEST_NGRAM, N]): By n - 1 and first item; NO_FEATURE for n-grams that exceed the sequence.
    """
    hashes = np.full((LONGEST_NGRAM, len(codes)), NO_FEATURE, dtype=np.uint64)
    for q in range(len(seeds)):
        for i in range(starts[q], starts[q + 1]):
            hashed = seeds[q]
            for n in range(min(LONGEST_NGRAM, starts[q + 1] - i)):
                hashed = mix(hashed, codes[i + n])
                hashes[n, i] = max(hashed, np.uint64(1))
    return hashes


@kernel
def add_windows(rows, starts, weights, sums, is_gradient):
    """Add the weights of n-grams to the sums of the boundaries that have them in their windows; or, transposed,
    the derivatives of these sums to those of the weights.

    rows (int32[LONGEST_NGRAM, N]): The first row of the weights of each n-gram, -1 for unknown ones.
    starts (int64[Q + 1]): Where sequences of items begin.
    weights (float64[R, C]): The weights, or their derivatives, which change if `is_gradient`.
    sums (float64[N, C]): The sums for the boundaries before items, which change unless `is_gradient`; or their derivatives.
    is_gradient (bool): Whether to add to the derivatives of weights.
    """
    n_columns = weights.shape[1]
    flat_weights = weights.reshape(-1)
    flat_sums = sums.reshape(-1)
    for q in range(len(starts) - 1):
        for i in range(starts[q], starts[q + 1]):
            for k in range(LONGEST_NGRAM):
                if rows[k, i] >= 0:
                    lowest = i + k + 1 - WINDOW
                    first = max(lowest, starts[q])
                    # The rows of neighbouring boundaries are one run of numbers
                    size = (min(i + WINDOW + 1, starts[q + 1]) - first) * n_columns
                    weight = (rows[k, i] + first - lowest) * n_columns
                    target = first * n_columns
                    if is_gradient:
                        for c in range(size):
                            flat_weights[weight + c] += flat_sums[target + c]
                    else:
                        for c in range(size):
                            flat_sums[target + c] += flat_weights[weight + c]


@kernel
def mark_words(points, text_starts, lengths, table, longest, marks):
    """Mark where words of a lexicon begin, end and go on. Of several words that begin at one place, each counts.

    points (uint32[T]), text_starts (int64[B + 1]): The texts.
    lengths (int32[P]): By row of the table of beginnings of words: the length of the word that ends there, 0 for none.
    table: Slots (uint64[S]) and rows (int32[S]) of the beginnings of words.
    longest (int): Words as long as this or longer share their marks.
    marks (uint32[T]): Receives bits for words that begin here, that ended before this character, and that go on here: the bits
        0 to longest - 1, longest to 2 longest - 1, and 2 longest to 3 longest - 1, by the length of the words.
    """
    slots, rows = table
    for b in range(len(text_starts) - 1):
        for begin in range(text_starts[b], text_starts[b + 1]):
            hashed = FIRST_HASH
            for t in range(begin, text_starts[b + 1]):
                hashed = mix(hashed, np.uint64(points[t]))
                row = rows[find_slot(slots, hashed)] if hashed != NO_FEATURE else np.int32(-1)
                if row < 0:  # no word begins like this
                    break
                if lengths[row] == 0:
                    continue
                column = min(lengths[row], longest) - 1
                bit = np.uint32(1) << np.uint32(column)
                marks[begin] |= bit
                if t + 1 < text_starts[b + 1]:
                    marks[t + 1] |= bit << np.uint32(longest)
                for inner in range(begin + 1, t + 1):
                    marks[inner] |= bit << np.uint32(2 * longest)


@kernel
def add_marks(marks, weights, sums, is_gradient):
    """Add the weights of marks to the sums of units; or, if `is_gradient`, the derivatives of the sums to those of the weights.

    marks (uint32[U]): Of each unit, a bit for each mark.
    weights (float64[M, C]): The weights of each mark, or their derivatives.
    sums (float64[U, C]): The sums, or their derivatives.
    """
    for u in range(len(marks)):
        rest = marks[u]
        m = 0
        while rest:
            if rest & 1:
                for c in range(sums.shape[1]):
                    if is_gradient:
                        weights[m, c] += sums[u, c]
                    else:
                        sums[u, c] += weights[m, c]
            rest >>= 1
            m += 1
