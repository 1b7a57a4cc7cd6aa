"""Attributes of a word from the rest of its Doc: its other forms, which differ from it in case only, and the labels that a first
labelling gives to the word, or to an entity, elsewhere."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Bools, Ints
from . import helper, kernel
from .hashing import ABSENT
from .numerics import FIRST_HASH, mix

MOST_SHAPES = 16  # different shapes of one word that are counted; more are rare
NO_LABEL = -1  # for a word or an entity that occurs once in its Doc
MOST_WORDS = 8  # longest entity, in words, that is searched for others and looked up outside of entities


class FormColumns(NamedTuple):
    """Attributes of T tokens."""

    lower: NDArray[np.uint64]  # [T]
    shape: NDArray[np.uint64]  # [T]
    orth: NDArray[np.uint64]  # [T]
    is_title: NDArray[np.uint64]  # [T] 0 or 1
    capitals: NDArray[np.uint64]  # [T] how many


@kernel
def document_values(forms, doc_starts, begins):
    """Values for each token from the tokens of the same lower-case word in its Doc: whether another token is in title case, the
    most frequent shape, and the form with the most capitals; the first of equals wins.

    forms (FormColumns): Attributes of the tokens.
    doc_starts (int64[D + 1]): Where Docs begin.
    begins (bool[T + 1]): Where a sentence begins; such tokens do not count, unless all tokens of the word begin a sentence.
    RETURNS (uint64[T, 3]): ABSENT for words that occur once in the Doc.
    """
    values = np.full((len(forms.lower), 3), ABSENT, dtype=np.uint64)
    for d in range(len(doc_starts) - 1):
        begin = doc_starts[d]
        end = doc_starts[d + 1]
        order, bounds = _grouped(forms.lower[begin:end])
        for g in range(len(bounds) - 1):
            if bounds[g + 1] > bounds[g] + 1:
                _of_word(np.sort(begin + order[bounds[g] : bounds[g + 1]]), forms, begins, values)
    return values


@helper
def _grouped(keys):
    """The places of keys (uint64[N]), equal keys side by side (int64[N]), and where each key begins and the last one ends
    (int64[M + 1])."""
    order = np.argsort(keys)  # a stable sort takes three times as long
    bounds = np.empty(len(keys) + 1, dtype=np.int64)
    size = 0
    for n in range(len(keys)):
        if n == 0 or keys[order[n]] != keys[order[n - 1]]:
            bounds[size] = n
            size += 1
    bounds[size] = len(keys)
    return order, bounds[: size + 1]


@helper
def _of_word(tokens, forms, begins, values):
    """Fill in the values of one word, whose tokens (int64[N]) are in order."""
    all_begin = True
    for t in tokens:
        all_begin = all_begin and begins[t]
    titles = 0
    n_shapes = 0
    form = -1
    shapes = np.empty(MOST_SHAPES, dtype=np.uint64)
    counts = np.zeros(MOST_SHAPES, dtype=np.int64)
    for t in tokens:
        if begins[t] and not all_begin:
            continue
        titles += forms.is_title[t] == 1
        if form < 0 or forms.capitals[t] > forms.capitals[form]:
            form = t
        n = 0
        while n < n_shapes and shapes[n] != forms.shape[t]:
            n += 1
        if n < MOST_SHAPES:
            shapes[n] = forms.shape[t]
            counts[n] += 1
            n_shapes = max(n_shapes, n + 1)
    shape = shapes[counts.argmax()]
    for t in tokens:
        # Another token in title case: more of them than this token itself
        own = forms.is_title[t] == 1 and (all_begin or not begins[t])
        values[t, 0] = titles > own
        values[t, 1] = shape
        values[t, 2] = forms.orth[form]


class FirstLabels(NamedTuple):
    """The words of T tokens, and the N spans of their first labelling, in their order."""

    lower: NDArray[np.uint64]  # [T]
    begins: Bools  # [T + 1] where a sequence begins
    start: Ints  # [N]
    end: Ints  # [N]
    label: Ints  # [N] from 0 to n_labels - 1


@kernel
def majorities(first, doc_starts, n_labels, entities):
    """For each token, the majority label of the other tokens with the same word, of the other entities with the same words, and
    of the longer entities that contain these words. The first of equals wins; `n_labels`, which stands for no entity, comes last.

    doc_starts (int64[D + 1]): Where Docs begin.
    entities (bool): Whether to compute the two majorities of entities.
    RETURNS (int64[T, 3]): NO_LABEL where there is no other token or entity.
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
    """Fill in the majorities of entities for a Doc that has at least one entity."""
    starts = first.start[spans]
    ends = first.end[spans]
    labels = first.label[spans]
    texts = np.empty(len(starts), dtype=np.uint64)
    for n in range(len(starts)):
        texts[n] = FIRST_HASH
        for t in range(starts[n], ends[n]):
            texts[n] = mix(texts[n], first.lower[t])
    # Three majorities: of the parts of longer entities, of equal entities, and of words outside of entities
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
    """All shorter runs of words within entities (uint64[M]), and the label of the entity of each run (int64[M])."""
    size = 0
    for n in range(len(starts)):
        length = ends[n] - starts[n]
        if length <= MOST_WORDS:
            size += length * (length + 1) // 2 - 1
    parts = np.empty(size, dtype=np.uint64)
    of_parts = np.empty(size, dtype=np.int64)
    size = 0
    for n in range(len(starts)):
        length = ends[n] - starts[n]
        # All runs shorter than the entity, from each of its words
        for begin in range(starts[n], ends[n] if length <= MOST_WORDS else starts[n]):
            text = FIRST_HASH
            for t in range(begin, min(ends[n], begin + length - 1)):
                text = mix(text, lower[t])
                parts[size] = text
                of_parts[size] = labels[n]
                size += 1
    return parts, of_parts


@helper
def _longest(first, begin, stop, label, n_labels, texts, most):
    """Length, 0 for none, and label of the longest text of an entity that begins at a token outside of all entities."""
    text = FIRST_HASH
    length = 0
    found = NO_LABEL
    for t in range(begin, min(stop, begin + MOST_WORDS)):
        if label[t] != n_labels or (t > begin and first.begins[t]):
            break
        text = mix(text, first.lower[t])
        here = _at(text, texts, most)
        if here != NO_LABEL:
            length = t + 1 - begin
            found = here
    return length, found


@helper
def _most_of_others(keys, labels, n_labels):
    """For each of N keys, the majority label of the other places with the same key: int64[N]."""
    most = np.full(len(keys), NO_LABEL)
    order, bounds = _grouped(keys)
    counts = np.zeros(n_labels, dtype=np.int64)
    without = np.empty(n_labels, dtype=np.int64)
    for g in range(len(bounds) - 1):
        places = order[bounds[g] : bounds[g + 1]]
        if len(places) > 1:
            counts[:] = 0
            without[:] = NO_LABEL
            for n in places:
                counts[labels[n]] += 1
            for n in places:
                own = labels[n]
                if without[own] == NO_LABEL:
                    # The majority without this token; equal for all tokens with its label
                    counts[own] -= 1
                    without[own] = counts.argmax()
                    counts[own] += 1
                most[n] = without[own]
    return most


@helper
def _most_of_each(keys, labels, n_labels):
    """The distinct keys in order (uint64[M]), and the majority label of each (int64[M])."""
    order, bounds = _grouped(keys)
    most = np.empty(len(bounds) - 1, dtype=np.int64)
    counts = np.zeros(n_labels, dtype=np.int64)
    for g in range(len(most)):
        counts[:] = 0
        for n in order[bounds[g] : bounds[g + 1]]:
            counts[labels[n]] += 1
        most[g] = counts.argmax()
    return keys[order[bounds[:-1]]], most


@helper
def _at(key, keys, values):
    """The value of a key, NO_LABEL for an unknown key."""
    place = np.searchsorted(keys, key)
    return values[place] if place < len(keys) and keys[place] == key else NO_LABEL
