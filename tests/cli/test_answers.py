"""``spacy crf distil`` with answers from files, several teachers, scores of entities, and doubts."""

import json
import re

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Span

from spacy_crf.cli.distil import SoftLabel, agreed, certain
from tests.cli.test_distil import read, run, soft


@Language.component("test_answers_scored")
def score(doc):
    """Entities with scores, as wrappers of other libraries set them."""
    doc.ents = [Span(doc, t.i, t.i + 1, label="PER") for t in doc if t.is_title]
    for ent in doc.ents:
        ent._.test_answers_score = {"Ann": 0.9, "Bad": 1.5}.get(ent.text, 0.4)
    return doc


@pytest.fixture(autouse=True, scope="module")
def extension():
    Span.set_extension("test_answers_score", default=None)
    yield
    Span.remove_extension("test_answers_score")


@pytest.fixture
def scored(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("test_answers_scored")
    nlp.to_disk(tmp_path / "scored")
    return tmp_path / "scored"


def write(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf8")
    return path


def labels_of(path):
    return [soft(doc) for doc in read(path, spacy.blank("en"))]


def test_answers_by_offset_and_by_words(tmp_path):
    text = "Ann met Bob Lee, and Ann met Anna."
    answers = [
        {"text": text, "entities": [{"start": 8, "end": 15, "label": "PER", "score": 0.75, "text": "Bob Lee"}]},
        {"text": text + " ", "entities": [{"start": 0, "end": 3, "entity_group": "PER", "word": "ann"}]},
        {"text": "Ann again. " + text, "entities": [{"text": "Ann", "label": "PER"}], "unsure": ["Bob Lee"]},
        {"text": "Then " + text, "entities": [{"text": "Ann", "label": "PER"}, {"text": "Ann", "label": "DOG"}]},
        {"text": "Also " + text, "entities": [[13, 16, "PER"]], "unsure": [{"start": 5, "end": 8}, {"text": "Anna"}]},
        {"text": "Rome-based", "entities": [{"start": 0, "end": 6, "label": "GPE"}]},
        {"text": " ", "entities": []},
    ]
    done = run(write(tmp_path / "answers.jsonl", *answers), "-o", tmp_path / "soft.spacy")
    assert done.exit_code == 0 and "6 texts" in done.output and "answers in" in done.output, done.output
    assert labels_of(tmp_path / "soft.spacy") == [
        [("Bob Lee", "PER", 0.75)],
        [("Ann", "PER", 1.0)],
        # listed once, and there three times: the others are left open
        [("Ann", "PER", 1.0), ("Ann", "", 1.0), ("Bob Lee", "", 1.0), ("Ann", "", 1.0)],
        [("Ann", "PER", 1.0), ("Ann", "DOG", 1.0)],
        [("Ann", "", 1.0), ("Bob", "PER", 1.0), ("Anna", "", 1.0)],
        [("Rome-based", "", 1.0)],
    ]


def test_scores_of_entities_and_doubts(scored, tmp_path):
    (tmp_path / "raw.txt").write_text("Ann met Bob .\nnobody came .", encoding="utf8")
    options = ("--score-extension", "test_answers_score")
    done = run(scored, tmp_path / "raw.txt", "-o", tmp_path / "soft.spacy", *options)
    assert done.exit_code == 0 and "span._.test_answers_score" in done.output, done.output
    assert labels_of(tmp_path / "soft.spacy") == [[("Ann", "PER", 0.9), ("Bob", "PER", 0.4)], []]
    done = run(scored, tmp_path / "raw.txt", "-o", tmp_path / "soft.spacy", *options, "--min-score", "0.5")
    assert labels_of(tmp_path / "soft.spacy") == [[("Ann", "PER", 0.9), ("Bob", "", 1.0)], []]
    (tmp_path / "raw.txt").write_text("Bad was here", encoding="utf8")
    done = run(scored, tmp_path / "raw.txt", "-o", tmp_path / "new.spacy", *options)
    said = " ".join(done.output.split())
    assert done.exit_code == 1 and "CRF787" in said and "line 1" in said and "= 1.5" in said, done.output


def test_several_teachers(scored, tmp_path):
    texts = ["Ann met Bob .", "nobody came .", "Ann left"]
    raw = write(tmp_path / "raw.jsonl", *({"text": text} for text in texts))
    entities = [[("Ann", "PER")], [("nobody", "PER")], [("Ann", "DOG")]]
    answers = [
        {"text": text, "entities": [{"text": words, "label": label} for words, label in found]}
        for text, found in zip(texts, entities)
    ]
    answers = write(tmp_path / "answers.jsonl", *answers)
    options = ("-o", tmp_path / "soft.spacy", "--score-extension", "test_answers_score")
    done = run(scored, raw, "--teacher", answers, *options)
    assert done.exit_code == 0, done.output
    agree = [("Ann", "PER", 0.95), ("Bob", "PER", 0.2)]
    assert labels_of(tmp_path / "soft.spacy") == [agree, [("nobody", "", 1.0)], [("Ann", "", 1.0)]]
    done = run(answers, raw, "--teacher", scored, *options, "--max-disagreement", "0.4")
    assert done.exit_code == 0 and "since the teachers differ: 1 text" in done.output, done.output
    assert labels_of(tmp_path / "soft.spacy") == [agree, [("nobody", "", 1.0)]]


def parts(*found):
    return [SoftLabel(*part) for part in found]


def test_what_is_certain():
    found = parts((0, 2, "A", 0.9), (1, 4, "B", 0.3), (5, 6, "A", 0.02), (6, 7, "C", 1.0))
    assert certain(found, 0.05, 0.0, None) == [(0, 2, "A", 0.9), (1, 4, "B", 0.3), (6, 7, "C", 1.0)]
    doubted = [(2, 3, "", 1.0), (3, 4, "", 1.0)]
    assert certain(found, 0.05, 0.5, ["A", "B"]) == [(0, 2, "A", 0.9), *doubted]


def test_what_teachers_agree_about():
    one = parts((0, 2, "A", 0.9), (3, 4, "B", 0.4))
    other = parts((0, 2, "A", 0.7), (4, 5, "", 1.0), (3, 4, "B", 0.6))
    soft, share = agreed([one, other], 6)
    assert soft == [(0, 2, "A", pytest.approx(0.8)), (3, 4, "", 1.0)] and share == pytest.approx(1 / 6)
    unsure = parts((0, 1, "", 1.0))
    assert agreed([unsure, unsure], 1) == ([(0, 1, "", 1.0)], 0.0)
    assert agreed([unsure, parts((0, 1, "A", 0.9))], 1) == ([(0, 1, "A", 0.9)], 0.0)
    assert agreed([[], []], 0) == ([], 0.0)


@pytest.mark.parametrize(
    "answer, options, said",
    [
        ({"entities": [{"text": "Eve", "label": "PER"}]}, (), "CRF701:.*line 2: .*'Eve' does not occur"),
        ({"entities": [{"text": "", "label": "PER"}]}, (), "CRF701:.*line 2"),
        ({"entities": [{"text": 1, "label": "PER"}]}, (), "CRF701:.*line 2"),
        ({"entities": [{"start": 0, "end": 99, "label": "PER"}]}, (), "CRF701:.*line 2.*within the 7 characters"),
        ({"entities": [{"start": 0, "end": 3, "label": "PER", "text": "Bob"}]}, (), "CRF871:.*line 2"),
        ({"entities": [{"text": "Ann"}]}, (), 'CRF701:.*line 2.*"label"'),
        ({"entities": [{"text": "Ann", "label": "P", "score": 1.1}]}, (), "CRF701:.*line 2.*is 1.1, and needs to be"),
        ({"entities": [{"text": "Ann", "label": "P", "score": True}]}, (), "CRF701:.*line 2.*from 0 to 1"),
        ({"entities": [{"text": "Ann", "label": "P", "score": "hi"}]}, (), "CRF701:.*line 2.*from 0 to 1"),
        ({"entities": [{"text": "Ann", "label": "PERSON"}]}, ("--labels", "PER,GPE"), "CRF846:.*line 2.*'PERSON'"),
        ({"entities": ["Ann"]}, (), "CRF701:.*line 2"),
        ({"entities": None}, (), 'CRF701:.*line 2.*"entities"'),
        ({}, (), 'CRF701:.*line 2.*"entities"'),
        ({"entities": [], "unsure": "Ann"}, (), 'CRF701:.*line 2.*"unsure"'),
        ({"entities": [], "unsure": ["Eve"]}, (), "CRF701:.*line 2.*'Eve' does not occur"),
        ({"entities": [], "unsure": [7]}, (), "CRF701:.*line 2"),
        ({"entities": []}, ("--min-score", "2"), "CRF020:.*--min-score"),
        ({"entities": []}, ("--max-disagreement", "-1"), "CRF020:.*--max-disagreement"),
        ({"entities": []}, ("--lang", "nowhere"), "CRF020:.*--lang"),
    ],
)
def test_wrong_answers(answer, options, said, tmp_path):
    path = write(tmp_path / "answers.jsonl", {"text": "Bob", "entities": []}, {"text": "Ann Lee", **answer})
    done = run(path, "-o", tmp_path / "soft.spacy", *options)
    found = " ".join(done.output.split())

    assert done.exit_code == 1 and re.search(said, found), done.output
    assert not (tmp_path / "soft.spacy").exists()


def test_what_does_not_go_together(scored, tmp_path):
    raw = write(tmp_path / "raw.jsonl", {"text": "Ann"}, {"text": "Bob"})
    answers = write(tmp_path / "answers.jsonl", {"text": "Ann", "entities": []})
    options = ("-o", tmp_path / "soft.spacy")
    for arguments, code in {
        (answers, raw): "CRF787: .*line 2.*has no answer for the text 'Bob",
        (scored, "--score-extension", "test_answers_score"): "CRF788.*needs TEXTS",
        (scored, raw, "--score-extension", "nothing"): "CRF020: .*'nothing'.*Span.set_extension",
        (tmp_path / "nowhere.jsonl",): "CRF706|CRF701",
    }.items():
        done = run(*arguments, *options)

        assert done.exit_code == 1 and re.search(code, " ".join(done.output.split())), done.output
    done = run(answers, "-o", answers)
    assert done.exit_code == 1 and "CRF730" in done.output
