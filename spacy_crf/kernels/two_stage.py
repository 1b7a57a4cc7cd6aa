"""Which label a word, or an entity, has elsewhere in its Doc by a first labelling."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import helper, kernel
from .numerics import FIRST_HASH, mix

NO_LABEL = -1  # where there is nothing elsewhere
MOST_WORDS = 8  # of the entities in which others are looked for, and that are looked for outside of entities


class FirstLabels(NamedTuple):
    """What T tokens are, and the N spans of their first labelling, in their order."""

    lower: NDArray[np.uint64]  # [T]
    begins: NDArray[np.bool_]  # [T + 1] where a sequence begins
    start: NDArray[np.int64]  # [N]
    end: NDArray[np.int64]  # [N]
    label: NDArray[np.int64]  # [N] from 0 to n_labels - 1


@kernel
def majorities(first, doc_starts, n_labels, entities):
    """For each token the label that most others have of the same word, that most others have of the same entity, and that most
    longer entities have which contain this one. Of equals the first; outside of entities is the last, `n_labels`.

    doc_starts (int64[D + 1]), entities (bool): Whether the last two are asked for.
    RETURNS (int64[T, 3]): NO_LABEL where there are no others.
    """
    values = np.full((len(first.lower), 3), NO_LABEL)
    label = np.full(len(first.lower), n_labels)
    for n in range(len(first.start)):
        label[first.start[n] : first.end[n]] = first.label[n]
    begin = 0
    for d in range(len(doc_starts) - 1):
        tokens = slice(doc_starts[d], doc_starts[d + 1])
        values[tokens, 0] = _most_of_others(first.lower[tokens], label[tokens], n_labels + 1)
        end = begin
        while entities and end < len(first.start) and first.start[end] < doc_starts[d + 1]:
            end += 1
        if begin < end:
            _of_entities(first, slice(begin, end), tokens, label, n_labels, values)
        begin = end
    return values


@helper
def _of_entities(first, spans, tokens, label, n_labels, values):
    """Those of a Doc that has any."""
    starts, ends, labels = first.start[spans], first.end[spans], first.label[spans]
    texts = np.empty(len(starts), dtype=np.uint64)
    for n in range(len(starts)):
        texts[n] = FIRST_HASH
        for t in range(starts[n], ends[n]):
            texts[n] = mix(texts[n], first.lower[t])
    parts, of_parts = _parts(first.lower, starts, ends, labels)
    parts, most_around = _most_of_each(parts, of_parts, n_labels)
    same = _most_of_others(texts, labels, n_labels)
    for n in range(len(starts)):
        values[starts[n] : ends[n], 1] = same[n]
        values[starts[n] : ends[n], 2] = _at(texts[n], parts, most_around)
    for t in range(tokens.start, tokens.stop):
        if label[t] == n_labels:
            values[t, 2] = _at(mix(FIRST_HASH, first.lower[t]), parts, most_around)
    texts, most = _most_of_each(texts, labels, n_labels)
    first_words, _ = _most_of_each(first.lower[starts], labels, n_labels)
    t = tokens.start
    while t < tokens.stop:
        length = 0
        if label[t] == n_labels and _at(first.lower[t], first_words, most) != NO_LABEL:
            length, found = _longest(first, t, tokens.stop, label, n_labels, texts, most)
            values[t : t + length, 1] = found
        t += max(length, 1)


@helper
def _parts(lower, starts, ends, labels):
    """All runs of words inside of longer entities (uint64[M]), and the labels of these (int64[M])."""
    size = 0
    for n in range(len(starts)):
        length = ends[n] - starts[n]
        if length <= MOST_WORDS:
            size += length * (length + 1) // 2 - 1
    parts, of_parts = np.empty(size, dtype=np.uint64), np.empty(size, dtype=np.int64)
    size = 0
    for n in range(len(starts)):
        length = ends[n] - starts[n]
        for begin in range(starts[n], ends[n] if length <= MOST_WORDS else starts[n]):
            text = FIRST_HASH
            for t in range(begin, min(ends[n], begin + length - 1)):
                text = mix(text, lower[t])
                parts[size], of_parts[size] = text, labels[n]
                size += 1
    return parts, of_parts


@helper
def _longest(first, begin, stop, label, n_labels, texts, most):
    """The longest entity of the Doc that stands at some token too, outside of all entities: its length, 0 for none, and its
    label."""
    text, length, found = FIRST_HASH, 0, NO_LABEL
    for t in range(begin, min(stop, begin + MOST_WORDS)):
        if label[t] != n_labels or (t > begin and first.begins[t]):
            break
        text = mix(text, first.lower[t])
        here = _at(text, texts, most)
        if here != NO_LABEL:
            length, found = t + 1 - begin, here
    return length, found


@helper
def _most_of_others(keys, labels, n_labels):
    """For each of N keys, the label that most others have which are equal: int64[N]."""
    most = np.full(len(keys), NO_LABEL)
    order = np.argsort(keys)
    counts, without = np.zeros(n_labels, dtype=np.int64), np.empty(n_labels, dtype=np.int64)
    first = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and keys[order[last]] == keys[order[first]]:
            last += 1
        if last > first + 1:
            counts[:] = 0
            without[:] = NO_LABEL
            for n in order[first:last]:
                counts[labels[n]] += 1
            for n in order[first:last]:
                own = labels[n]
                if without[own] == NO_LABEL:
                    counts[own] -= 1
                    without[own] = counts.argmax()
                    counts[own] += 1
                most[n] = without[own]
        first = last
    return most


@helper
def _most_of_each(keys, labels, n_labels):
    """The keys, each once and in order (uint64[M]), and the label that most of each have (int64[M])."""
    order = np.argsort(keys)
    each, most = np.empty(len(keys), dtype=np.uint64), np.empty(len(keys), dtype=np.int64)
    counts = np.zeros(n_labels, dtype=np.int64)
    size, first = 0, 0
    while first < len(order):
        last = first
        counts[:] = 0
        while last < len(order) and keys[order[last]] == keys[order[first]]:
            counts[labels[order[last]]] += 1
            last += 1
        each[size], most[size] = keys[order[first]], counts.argmax()
        size += 1
        first = last
    return each[:size], most[:size]


@helper
def _at(key, keys, values):
    """The value of a key, NO_LABEL if it is not there."""
    place = np.searchsorted(keys, key)
    return values[place] if place < len(keys) and keys[place] == key else NO_LABEL
