"""Attributes of a word from the rest of its Doc: its other forms, which differ from the word in case only, and the labels that a
first labelling gives to the word, or to an entity, elsewhere."""

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
    """Values for each token from the tokens of its Doc that are equal in lower case: whether another token is in title case, the
    most frequent shape, and the form with the most capitals; of equal candidates the first wins.

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
                tokens = np.sort(begin + order[bounds[g] : bounds[g + 1]])
                _fill_values(tokens, forms, begins, values)
    return values


@helper
def _grouped(keys):
    """Sort keys (uint64[N]).

    RETURNS (int64[N], int64[M + 1]): The positions of the keys, equal keys side by side; and where each of the M distinct keys
        begins in this order, and the last one ends.
    """
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
def _fill_values(tokens, forms, begins, values):
    """Write the values of the tokens (int64[N]) of one word, which are in order, see `document_values`."""
    all_begin = True
    for t in tokens:
        all_begin = all_begin and begins[t]
    n_titles = 0
    n_shapes = 0
    form = -1  # token with the most capitals
    shapes = np.empty(MOST_SHAPES, dtype=np.uint64)
    counts = np.zeros(MOST_SHAPES, dtype=np.int64)
    for t in tokens:
        if begins[t] and not all_begin:
            continue
        n_titles += forms.is_title[t] == 1
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
        # Another token is in title case if more tokens were counted than this token itself
        is_counted = forms.is_title[t] == 1 and (all_begin or not begins[t])
        values[t, 0] = n_titles > is_counted
        values[t, 1] = shape
        values[t, 2] = forms.orth[form]


class FirstLabels(NamedTuple):
    """The words of T tokens, and the N spans of their first labelling, from left to right."""

    lower: NDArray[np.uint64]  # [T]
    begins: Bools  # [T + 1] where a sequence begins
    start: Ints  # [N]
    end: Ints  # [N]
    label: Ints  # [N] from 0 to n_labels - 1


@kernel
def majorities(first, doc_starts, n_labels, entities):
    """For each token, the majority label of the other tokens with its word, of the other entities with its entity's words, and of
    the longer entities that contain these words. Of equally frequent labels the first wins; `n_labels`, which stands for no
    entity, comes last.

    first (FirstLabels): The words and their first labelling.
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
            _fill_entity_values(first, slice(begin, end), tokens, label, n_labels, values)
        begin = end
    return values


@helper
def _fill_entity_values(first, spans, tokens, label, n_labels, values):
    """Write the majorities of entities for a Doc that has at least one entity.

    spans (slice), tokens (slice): The entities and the tokens of the Doc.
    label (int64[T]): Label of each token, `n_labels` outside of entities.
    """
    starts = first.start[spans]
    ends = first.end[spans]
    labels = first.label[spans]
    texts = np.empty(len(starts), dtype=np.uint64)
    for n in range(len(starts)):
        texts[n] = FIRST_HASH
        for t in range(starts[n], ends[n]):
            texts[n] = mix(texts[n], first.lower[t])
    # Majorities at entities, and of the longer entities that contain a single word outside of entities
    parts, part_labels = _parts(first.lower, starts, ends, labels)
    parts, majority_around = _most_of_each(parts, part_labels, n_labels)
    majority_elsewhere = _most_of_others(texts, labels, n_labels)
    for n in range(len(starts)):
        values[starts[n] : ends[n], 1] = majority_elsewhere[n]
        values[starts[n] : ends[n], 2] = _at(texts[n], parts, majority_around)
    for t in range(tokens.start, tokens.stop):
        if label[t] == n_labels:
            values[t, 2] = _at(mix(FIRST_HASH, first.lower[t]), parts, majority_around)
    # Texts of entities that recur outside of entities, the longest first
    texts, majority = _most_of_each(texts, labels, n_labels)
    first_words, _ = _most_of_each(first.lower[starts], labels, n_labels)
    t = tokens.start
    while t < tokens.stop:
        length = 0
        # Few words begin an entity: only there is a text looked up
        if label[t] == n_labels and _at(first.lower[t], first_words, majority) != NO_LABEL:
            length, majority_label = _longest(first, t, tokens.stop, label, n_labels, texts, majority)
            values[t : t + length, 1] = majority_label
        t += max(length, 1)


@helper
def _parts(lower, starts, ends, labels):
    """The hashes of all runs of words inside entities that are shorter than the entity (uint64[M]), and the label of the entity
    that contains each run (int64[M])."""
    size = 0
    for n in range(len(starts)):
        length = ends[n] - starts[n]
        if length <= MOST_WORDS:
            size += length * (length + 1) // 2 - 1
    parts = np.empty(size, dtype=np.uint64)
    part_labels = np.empty(size, dtype=np.int64)
    size = 0
    for n in range(len(starts)):
        length = ends[n] - starts[n]
        # All runs shorter than the entity, from each of its words
        for begin in range(starts[n], ends[n] if length <= MOST_WORDS else starts[n]):
            text = FIRST_HASH
            for t in range(begin, min(ends[n], begin + length - 1)):
                text = mix(text, lower[t])
                parts[size] = text
                part_labels[size] = labels[n]
                size += 1
    return parts, part_labels


@helper
def _longest(first, begin, stop, label, n_labels, texts, most):
    """The longest text of an entity that occurs outside of entities from the token `begin` on.

    texts (uint64[M]), most (int64[M]): Hashes of the texts of entities in order, and their majority labels.
    RETURNS (int, int): Its length and majority label; 0 and NO_LABEL for none.
    """
    text = FIRST_HASH
    length = 0
    longest_label = NO_LABEL
    for t in range(begin, min(stop, begin + MOST_WORDS)):
        if label[t] != n_labels or (t > begin and first.begins[t]):
            break
        text = mix(text, first.lower[t])
        text_label = _at(text, texts, most)
        if text_label != NO_LABEL:
            length = t + 1 - begin
            longest_label = text_label
    return length, longest_label


@helper
def _most_of_others(keys, labels, n_labels):
    """For each of N keys, the majority label of the other positions with an equal key: int64[N], NO_LABEL without such."""
    most = np.full(len(keys), NO_LABEL)
    order, bounds = _grouped(keys)
    counts = np.zeros(n_labels, dtype=np.int64)
    most_without = np.empty(n_labels, dtype=np.int64)  # the majority if a position with the label is left out
    for g in range(len(bounds) - 1):
        positions = order[bounds[g] : bounds[g + 1]]
        if len(positions) > 1:
            counts[:] = 0
            most_without[:] = NO_LABEL
            for n in positions:
                counts[labels[n]] += 1
            for n in positions:
                label = labels[n]
                if most_without[label] == NO_LABEL:
                    counts[label] -= 1
                    most_without[label] = counts.argmax()
                    counts[label] += 1
                most[n] = most_without[label]
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
    """The value of a key among sorted keys, NO_LABEL for an unknown key."""
    position = np.searchsorted(keys, key)
    return values[position] if position < len(keys) and keys[position] == key else NO_LABEL
