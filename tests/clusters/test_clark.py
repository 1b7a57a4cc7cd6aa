"""Clusters by exchange are those of a plain program that computes the log-likelihood of every way to move a word."""

import math
from collections import Counter

import numpy as np
import pytest

from spacy_crf.clusters import clark
from spacy_crf.clusters.clark import cluster, letter_pairs, letter_scores
from spacy_crf.features.clusters import Clusters
from tests.clusters.test_brown import random_lines, text_of


def log_likelihood(bigrams, of_word):
    """Ney, Essen & Kneser 1994, eq. 14."""

    def total(counts):
        return sum(n * math.log(n) for n in counts.values() if n)

    pairs, first, second = Counter(), Counter(), Counter()
    for (left, right), count in bigrams.items():
        pairs[of_word[left], of_word[right]] += count
        first[of_word[left]] += count
        second[of_word[right]] += count
    return total(pairs) - total(first) - total(second)


def pairs_of(text):
    starts, words, counts = text.bigrams[:3]
    return {
        (left, int(words[n])): int(counts[n])
        for left in range(len(text.words))
        for n in range(starts[left], starts[left + 1])
    }


def plain(text, n, weight, passes):
    """Clark clusters by a plain program that computes the gain of every move anew."""
    bigrams, of_word = pairs_of(text), [min(word, n - 1) for word in range(len(text.words))]
    starts, letters = letter_pairs(text.words)
    for _ in range(passes):
        classes = clark.classes_of(text, np.array(of_word), n)
        scores, moved = letter_scores(starts, letters, classes), 0
        for word in range(len(of_word)):
            own, values = of_word[word], []
            for c in range(n):
                of_word[word] = c
                value = weight * scores[letters[starts[word] : starts[word + 1]], c].sum()
                values.append(value + log_likelihood(bigrams, of_word))
            best = max(range(n), key=lambda c: (round(values[c], 7), c == own, -c))
            of_word[word], moved = best, moved + (best != own)
        if moved <= 0.001 * len(of_word):
            break
    return [f"c{c}" for c in of_word]


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("seed, n", [(0, 2), (1, 4), (2, 9)])
def test_clusters_are_those_of_the_plain_way(seed, n, weight):
    text = text_of(random_lines(seed))
    found = cluster(text, n, "the test", letters=weight)
    assert [found.paths[number] for number in found.numbers] == plain(text, n, weight, clark.PASSES)


def test_each_pass_raises_the_log_likelihood(monkeypatch):
    text = text_of(random_lines(3, n_words=100, n_lines=400))
    before = -math.inf
    for passes in (1, 2, 3, 20):
        monkeypatch.setattr(clark, "PASSES", passes)
        found = cluster(text, 8, "the test")
        after = log_likelihood(pairs_of(text), found.numbers.tolist())
        assert after >= before - 1e-6
        before = after


def test_words_of_one_use_are_in_one_cluster():
    """Determiners, nouns and verbs, which no word tells by its letters; and no beginning of a name is read."""
    nouns, verbs = ["dog", "cat", "bird", "fox"], ["runs", "eats", "sees", "hides"]
    lines = [f"{the} {noun} {verb} ." for the in ("the", "a") for noun in nouns for verb in verbs]
    text = text_of(lines)
    found = cluster(text, 4, "the test")
    of = {word: int(number) for word, number in zip(text.words, found.numbers)}
    assert len({of[word] for word in nouns}) == 1 and len({of[word] for word in verbs}) == 1
    assert of["dog"] != of["runs"] and not Clusters(found).is_tree


def test_letters_are_more_probable_where_they_count():
    text = text_of(random_lines(4, n_words=60, n_lines=300))
    starts, letters = letter_pairs(text.words)

    def of_letters(weight):
        numbers = cluster(text, 6, "the test", letters=weight).numbers.astype(np.int64)
        scores = letter_scores(starts, letters, clark.classes_of(text, numbers, 6))
        return scores[letters, np.repeat(numbers, np.diff(starts))].sum()

    assert of_letters(20.0) > of_letters(0.0)


def test_more_clusters_than_words():
    with pytest.raises(ValueError, match=r"CRF948: Can't make 10 clusters from texts.txt: it has 9 words"):
        cluster(text_of(random_lines(0)), 10, "texts.txt")
