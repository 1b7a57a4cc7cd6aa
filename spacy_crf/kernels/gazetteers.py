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
    the first counts.

    words (uint64[T]), doc_starts (int64[D + 1]): Words of the Docs, in the spelling of the phrases.
    table (uint64[S], int32[S]): Slots of beginnings, and their rows.
    labels (int32[R]): Label of the phrase that ends with the beginning of each row; -1 for no phrase.
    values (uint64[L, 4]): Values for BEGIN, INSIDE, LAST and UNIT, by label.
    RETURNS (uint64[T]): ABSENT outside of phrases.
    """
    token_values = np.full(len(words), ABSENT, dtype=np.uint64)
    begins, lengths, match_labels = _matches(words, doc_starts, table, labels)
    if not len(begins):
        return token_values
    # The longest phrase first; of equally long phrases, the first
    order = np.argsort((lengths.max() - lengths) * len(words) + begins)
    for m in order:
        begin = begins[m]
        last = begins[m] + lengths[m] - 1
        label_values = values[match_labels[m]]
        # An overlapping phrase that was written before is at least as long, so it covers the first or the last token of this one
        if token_values[begin] != ABSENT or token_values[last] != ABSENT:
            continue
        if begin == last:
            token_values[begin] = label_values[UNIT]
            continue
        token_values[begin + 1 : last] = label_values[INSIDE]
        token_values[begin] = label_values[BEGIN]
        token_values[last] = label_values[LAST]
    return token_values


@kernel
def find_phrases(words, doc_starts, table, labels):
    """All phrases in texts, also those that overlap.

    words (uint64[T]), doc_starts (int64[D + 1]), table (uint64[S], int32[S]), labels (int32[R]): As in `positions_in_phrases`.
    RETURNS (int64[M], int64[M], int64[M]): The first word of each phrase, the number of its words, and its label.
    """
    return _matches(words, doc_starts, table, labels)


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
                    larger = np.empty((2 * size, 3), dtype=np.int64)
                    larger[:size] = matches
                    matches = larger
                matches[size, 0] = begin
                matches[size, 1] = t + 1 - begin
                matches[size, 2] = labels[row]
                size += 1
    return matches[:size, 0], matches[:size, 1], matches[:size, 2]
