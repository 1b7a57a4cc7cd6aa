"""Texts with their words: with places, between spaces, or with single known boundaries."""

import json

import pytest
import spacy

from spacy_crf.cli.formats import ReadSettings, Report, Source, read, sniff
from spacy_crf.types import UNKNOWN_WORDS

NLP = spacy.blank("xx")


def docs_of(path, text, report=None, **settings):
    path.write_text(text, encoding="utf8")
    return list(read(Source(path), NLP, ReadSettings(without_spans=True, **settings), report or Report()))


def sentences(doc):
    return [[token.text for token in sent] for sent in doc.sents] if doc.has_annotation("SENT_START") else None


@pytest.mark.parametrize(
    "item, words, sents",
    [
        ({"words": [[0, 2], [2, 4]]}, ["ab", "cd", "ef"], None),  # what is between words is a word too
        ({"tokens": ["ab", "cd", "ef"], "sents": [[0, 4], [6, 8]]}, ["ab", "cd", "ef"], [["ab", "cd", " "], ["ef"]]),
        ({"sents": [[0, 4], [6, 8]], "id": "x"}, ["abcd", "ef"], [["abcd", " "], ["ef"]]),
    ],
)
def test_places_of_words_and_sentences(tmp_path, item, words, sents):
    report = Report()
    text = "abcd  ef"
    [doc] = docs_of(tmp_path / "a.jsonl", json.dumps({"text": text, **item}), report)
    assert report.format == "places" and report.segmented == 1
    assert doc.text == text and [token.text for token in doc if not token.is_space] == words
    if sents is None:
        assert not doc.has_annotation("SENT_START")
    else:
        assert sentences(doc) == sents


@pytest.mark.parametrize(
    "words",
    [["ab", "ef", "cd"], ["ab", "xy"], [[0, 2], [1, 4]], [[0, 9]], [[2, 2]], [[0.0, 2]], [""], "ab"],
)
def test_words_that_are_not_in_the_text_in_this_order(tmp_path, words):
    with pytest.raises(ValueError, match=r'CRF701: .*line 2, "words"(, number \d)?'):
        docs_of(
            tmp_path / "a.jsonl", '{"text": "ab", "words": ["ab"]}\n' + json.dumps({"text": "abcdef", "words": words})
        )


@pytest.mark.parametrize("starts, n_inside", [([0, 6], 0), ([0, 4], 0), ([0, 1], 1), ([1, 7], 1)])
def test_sentences_that_begin_inside_of_words_are_reported(tmp_path, capsys, starts, n_inside):
    report = Report()
    item = {"text": "abcd  ef", "words": ["abcd", "ef"], "sents": [[start, start + 1] for start in starts]}
    [doc] = docs_of(tmp_path / "a.jsonl", json.dumps(item), report)
    assert len(report.inside) == n_inside
    report.print_warnings()
    assert ("inside of a word" in capsys.readouterr().out) == bool(n_inside)
    assert [token.text for token in doc if token.is_sent_start and not token.is_space][-1] == "ef"


def conllu(*sentences):
    """A file of sentences: the line of the text, and words that no space follows."""
    lines = []
    for text, words in sentences:
        lines += [text, *(f"{n}\t{word}" + "\t_" * 7 + "\tSpaceAfter=No" for n, word in enumerate(words, 1)), ""]
    return "\n".join(lines)


def test_texts_of_conllu_that_are_not_those_of_the_words(tmp_path, capsys):
    report = Report()
    text = conllu(
        ("# text = abc", ["ab", "c"]), ("# text = ab c", ["ab", "c"]), ("# text =", ["ab"]), ("# newpar", ["c"])
    )
    docs = docs_of(tmp_path / "a.conllu", text, report)
    assert [doc.text for doc in docs] == ["abc", "abc", "ab", "c"]
    assert len(report.other_texts) == 1 and "line 6" in report.other_texts[0]
    report.print_warnings()
    assert "# text" in capsys.readouterr().out
    contraction = "# text = du\n1-2\tdu" + "\t_" * 8 + "\n1\tde" + "\t_" * 8 + "\n2\tle" + "\t_" * 8 + "\n"
    docs_of(tmp_path / "a.conllu", contraction, report)
    assert len(report.other_texts) == 1


def test_sentences_of_conllu(tmp_path):
    text = conllu(("#", ["ab", "c"]), ("#", ["d", "e"]))
    [doc] = docs_of(tmp_path / "a.conllu", text, n_sents=2)
    assert [token.is_sent_start for token in doc] == [True, False, True, False]
    one, _ = docs_of(tmp_path / "a.conllu", text)  # a single sentence says little of where sentences begin
    assert one[1].is_sent_start is None


def test_words_between_spaces(tmp_path):
    one, two, three = docs_of(tmp_path / "a.txt", "ab cd\n\nef  gh\nij\n", format="spaced")
    assert [doc.text for doc in (one, two, three)] == ["abcd", "efgh", "ij"]
    [doc] = docs_of(tmp_path / "a.txt", "ab cd\nef\n", format="spaced", n_sents=2)
    assert sentences(doc) == [["ab", "cd"], ["ef"]]


def test_known_boundaries(tmp_path):
    [doc] = docs_of(tmp_path / "a.txt", "a-b|c d?e|\\|-f\n\n", format="boundaries")
    assert [token.text for token in doc] == ["ab", "c", "d", "e", "|f"]
    assert [(span.start, span.end) for span in doc.spans[UNKNOWN_WORDS]] == [(1, 4)]
    with pytest.raises(ValueError, match=r"CRF701: .*line 1.*'bc'"):
        docs_of(tmp_path / "a.txt", "a|bc\n", format="boundaries")


def test_no_annotated_text_is_taken_for_words(tmp_path):
    for item in ({"text": "ab", "words": "ab"}, {"text": "ab", "tokens": ["ab"], "ner": []}):
        (tmp_path / "a.jsonl").write_text(json.dumps(item), encoding="utf8")
        assert sniff(Source(tmp_path / "a.jsonl")) != "places"
