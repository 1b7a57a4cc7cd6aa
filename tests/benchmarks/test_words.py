"""What the benchmark of words and sentences counts, without its data."""

from collections import Counter

import pytest
import spacy

pytest.importorskip("pycrfsuite", reason="the benchmarks need the extra 'dev'")

from tests.benchmarks import words

LAW = words.Text(
    "Art. 5 gilt.  Es\ngilt.", [(0, 4), (5, 6), (7, 11), (11, 12), (14, 16), (17, 21), (21, 22)], [(0, 12), (14, 22)]
)


def test_spans_are_compared_without_white_space():
    assert words.trimmed(LAW.text, [(0, 5), (12, 14), (13, 17)]) == [(0, 4), (14, 16)]
    counts = Counter()
    words.count(counts, LAW, words.Found(None, [(0, 14), (14, 17), (17, 22)]))
    assert words.f1(counts, "words") is None
    assert words.f1(counts, "sentences") == pytest.approx(200 * 1 / 5)


def test_gold_docs_have_the_text():
    doc = words.with_words(spacy.blank("de"), LAW)
    assert doc.text == LAW.text
    assert [token.text for token in doc if not token.is_space] == ["Art.", "5", "gilt", ".", "Es", "gilt", "."]
    assert [sentence.text.strip() for sentence in doc.sents] == ["Art. 5 gilt.", "Es\ngilt."]


@pytest.mark.parametrize("program", ["spaCy", "sentencizer", "senter", "crf_senter", "Tokenizer", "CRFsuite"])
def test_programs_learn_and_find(program):
    data = words.TextSet("de", "words", "sents")
    learned = words.PROGRAMS[program](data, [LAW] * 3, 0.0)
    [found] = [learned.read(each) for each in learned.find([LAW.text])]
    pieces = found.words or found.sentences
    assert pieces[0][0] == 0 and pieces[-1][1] == len(LAW.text)
