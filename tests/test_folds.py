"""Folds hold together what belongs together, and are as large as each other."""

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_crf.folds import draw_folds
from spacy_crf.pipeline.corpora import set_origin

NLP = spacy.blank("en")
RNG = np.random.default_rng(0)


def word(generator=RNG):
    return "".join(generator.choice([*"abcdefghij"], size=8))


def text(n_words=12):
    return NLP.make_doc(" ".join(word() for _ in range(n_words)))


def are_together(folds, texts):
    return len(set(folds.fold_of[texts].tolist())) == 1


def test_texts_that_share_nothing_are_divided_evenly_and_at_random():
    docs = [text() for _ in range(103)]
    folds, other = draw_folds(docs, 5), draw_folds(docs, 5, seed=1)
    assert sorted(np.bincount(folds.fold_of).tolist()) == [20, 20, 21, 21, 21]
    assert folds.reason == "" and len(set(folds.group_of.tolist())) == 103
    assert (folds.fold_of != other.fold_of).any()
    assert (folds.fold_of == draw_folds(docs, 5).fold_of).all()


def test_texts_that_repeat_others_are_held_out_with_them():
    docs = [text() for _ in range(60)]
    docs[7] = NLP.make_doc("On 12 May 2020 all left.")
    docs[31] = NLP.make_doc("on 17 May 1999 ALL left.")
    shared = " ".join(word() for _ in range(8))
    docs[3] = NLP.make_doc(f"{word()} {shared} .")
    docs[44] = NLP.make_doc(f"{shared}, {word()}")
    for seed in range(5):
        folds = draw_folds(docs, 5, seed)
        assert are_together(folds, [7, 31]) and are_together(folds, [3, 44])
    assert len(set(folds.group_of.tolist())) == 58
    assert folds.reason == "4 texts that 8 words in a row, or all words, repeat"


def test_words_that_many_texts_repeat_link_none():
    """A heading of all forms would leave a single group."""
    heading = " ".join(word() for _ in range(8))
    docs = [NLP.make_doc(f"{heading} {word()} {word()} {word()}") for _ in range(40)]
    assert draw_folds(docs, 4).reason == ""


def test_texts_of_a_file_are_held_out_together():
    docs = [text() for _ in range(60)]
    for n, doc in enumerate(docs):
        set_origin(doc, f"report_{n // 4}.conll, line {10 * n}")
    folds = draw_folds(docs, 3)
    assert all(are_together(folds, [*range(n, n + 4)]) for n in range(0, 60, 4))
    assert folds.reason == "texts of each of 15 documents"
    # A corpus in a few files is not a corpus of a few documents
    for n, doc in enumerate(docs):
        set_origin(doc, f"part_{n // 15}.conll, line {10 * n}")
    assert draw_folds(docs, 3).reason == ""


def test_neighbours_that_share_rare_words_are_held_out_together():
    """Sentences of one article, in the order of the file; in another order nothing shows that they belong together."""
    docs = []
    for _ in range(20):
        names = [word() for _ in range(4)]
        docs += [NLP.make_doc(" ".join([*RNG.choice(names, 2), *(word() for _ in range(6))])) for _ in range(10)]
    folds = draw_folds(docs, 5)
    size = int(np.bincount(folds.group_of)[0])
    assert size >= 8 and all(are_together(folds, [*range(n, n + size)]) for n in range(0, 192, size))
    assert "neighbours" in folds.reason and np.bincount(folds.fold_of).min() > 20
    mixed = [docs[n] for n in np.random.default_rng(3).permutation(200)]
    assert "neighbours" not in draw_folds(mixed, 5).reason


@pytest.mark.parametrize("n, folds", [(2, 2), (3, 2), (5, 5)])
def test_few_texts_leave_no_fold_empty(n, folds):
    for docs in ([NLP.make_doc("the same words")] * n, [Doc(NLP.vocab)] * n, [text() for _ in range(n)]):
        assert np.bincount(draw_folds(docs, folds).fold_of, minlength=folds).min() > 0
