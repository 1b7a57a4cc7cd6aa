"""Finds phrases of a list in texts, and resolves overlaps.

The list is a table of hashes, one for each beginning of a phrase: the search reads on while some phrase begins with these words.
"""

import numpy as np

from . import kernel
from .hashing import ABSENT, find_slot, hash_runs
from .numerics import FIRST_HASH, NO_FEATURE, mix

BEGIN = 0
INSIDE = 1
LAST = 2
UNIT = 3


def hash_beginnings(words, starts):
    """Hash of each beginning of each phrase, up to and including each word: uint64[W].

    words (uint64[W]), starts (int64[N + 1]): The phrases, end to end.
    """
    hashes = np.empty(len(words), dtype=np.uint64)
    first_words = np.repeat(starts[:-1], np.diff(starts))
    hash_runs(words, first_words, np.arange(1, len(words) + 1), hashes)
    return hashes


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
    begins, lengths, match_labels = find_phrases(words, doc_starts, table, labels)
    if len(begins):
        # The longest phrase first; of equally long phrases, the first
        order = np.argsort((lengths.max() - lengths) * len(words) + begins)
        _write_positions(begins[order], lengths[order], match_labels[order], values, token_values)
    return token_values


@kernel(in_place=True)
def _write_positions(begins, lengths, match_labels, values, token_values):
    """Write the values of the tokens of phrases, see `positions_in_phrases`.

    begins, lengths, match_labels (int64[M]): The first token of each phrase, the number of its tokens, and its label; of
        phrases that overlap, the first counts.
    """
    for m in range(len(begins)):
        begin = begins[m]
        last = begin + lengths[m] - 1
        label = match_labels[m]
        # An overlapping phrase that was written before is at least as long, so it covers the first or the last token of this one
        if token_values[begin] != ABSENT or token_values[last] != ABSENT:
            continue
        if begin == last:
            token_values[begin] = values[label, UNIT]
            continue
        for t in range(begin + 1, last):
            token_values[t] = values[label, INSIDE]
        token_values[begin] = values[label, BEGIN]
        token_values[last] = values[label, LAST]


def find_phrases(words, doc_starts, table, labels):
    """All phrases in texts, also those that overlap.

    words (uint64[T]), doc_starts (int64[D + 1]), table (uint64[S], int32[S]), labels (int32[R]): As in `positions_in_phrases`.
    RETURNS (int64[M], int64[M], int64[M]): The first word of each phrase, the number of its words, and its label.
    """
    matches = np.empty((3, len(words)), dtype=np.int64)
    n_matches = _write_matches(words, doc_starts, table, labels, matches)
    if n_matches > len(words):  # a word may begin several phrases
        matches = np.empty((3, n_matches), dtype=np.int64)
        _write_matches(words, doc_starts, table, labels, matches)
    begins, lengths, match_labels = matches[:, :n_matches]
    return begins, lengths, match_labels


@kernel(in_place=True)
def _write_matches(words, doc_starts, table, labels, matches):
    """Write the phrases that `find_phrases` returns, as far as there is room in `matches` (int64[3, room]).

    RETURNS (int): How many there are.
    """
    slots, rows = table
    n_matches = 0
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
                if n_matches < matches.shape[1]:
                    matches[0, n_matches] = begin
                    matches[1, n_matches] = t + 1 - begin
                    matches[2, n_matches] = labels[row]
                n_matches += 1
    return n_matches
