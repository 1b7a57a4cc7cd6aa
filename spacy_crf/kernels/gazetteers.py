"""Finds phrases of a list in texts, and resolves overlaps.

The list is a table of hashes, one for each beginning of a phrase: the search reads on while some phrase begins with these words.
"""

import numpy as np

from . import helper, kernel
from .hashing import ABSENT, find_slot
from .numerics import FIRST_HASH, NO_FEATURE, mix

BEGIN = 0
INSIDE = 1
LAST = 2
UNIT = 3


@kernel
def hash_beginnings(words, starts):
    """Hash of each beginning of each phrase, up to and including each word: uint64[W].

    words (uint64[W]), starts (int64[N + 1]): The phrases, end to end.
    """
    hashes = np.empty(len(words), dtype=np.uint64)
    for n in range(len(starts) - 1):
        hashed = FIRST_HASH
        for w in range(starts[n], starts[n + 1]):
            hashed = mix(hashed, words[w])
            hashes[w] = hashed
    return hashes


@kernel
def positions_in_phrases(words, doc_starts, table, labels, values):
    """Value of each token, by its position in the longest phrase that covers the token. Of overlapping phrases of equal length
    the first one counts.

    words (uint64[T]), doc_starts (int64[D + 1]): Words of the Docs, in the spelling of the phrases.
    table (uint64[S], int32[S]): Slots of beginnings, and their rows.
    labels (int32[R]): Label of the phrase that ends with the beginning of each row; -1 for no phrase.
    values (uint64[L, 4]): Values for BEGIN, INSIDE, LAST and UNIT, by label.
    RETURNS (uint64[T]): ABSENT outside of phrases.
    """
    covered = np.full(len(words), ABSENT, dtype=np.uint64)
    begins, lengths, found = _matches(words, doc_starts, table, labels)
    if not len(begins):
        return covered
    # The longest first; of equals, the first
    order = np.argsort((lengths.max() - lengths) * len(words) + begins)
    for m in order:
        begin = begins[m]
        last = begins[m] + lengths[m] - 1
        of_label = values[found[m]]
        # A phrase placed earlier is at least as long: this one lies inside it, or overlaps one of its ends
        if covered[begin] != ABSENT or covered[last] != ABSENT:
            continue
        if begin == last:
            covered[begin] = of_label[UNIT]
            continue
        covered[begin + 1 : last] = of_label[INSIDE]
        covered[begin] = of_label[BEGIN]
        covered[last] = of_label[LAST]
    return covered


@helper
def _matches(words, doc_starts, table, labels):
    """All phrases in the texts: first tokens, lengths and labels (int64[M] each)."""
    slots, rows = table
    matches = np.empty((64, 3), dtype=np.int64)
    size = 0
    for d in range(len(doc_starts) - 1):
        for begin in range(doc_starts[d], doc_starts[d + 1]):
            hashed = FIRST_HASH
            for t in range(begin, doc_starts[d + 1]):
                hashed = mix(hashed, words[t])
                # No phrase begins with these words: longer texts from here are no phrases either
                row = rows[find_slot(slots, hashed)] if hashed != NO_FEATURE else -1
                if row < 0:
                    break
                if labels[row] < 0:
                    continue
                # Twice the room, so that copying takes no more time than finding
                if size == len(matches):
                    wider = np.empty((2 * size, 3), dtype=np.int64)
                    wider[:size] = matches
                    matches = wider
                matches[size, 0] = begin
                matches[size, 1] = t + 1 - begin
                matches[size, 2] = labels[row]
                size += 1
    return matches[:size, 0], matches[:size, 1], matches[:size, 2]
