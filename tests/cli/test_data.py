"""``python -m spacy crf data``: each count against texts that have one of what is counted."""

import json

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.data import describe, inconsistent, overlap
from spacy_crf.cli.formats import ReadSettings
from spacy_crf.cli.texts import read_docs
from spacy_crf.pipeline.corpora import doc_bin

NLP = spacy.blank("en")


def doc_of(words, *spans, sent_starts=None, tags=None):
    doc = Doc(NLP.vocab, words=words.split(), sent_starts=sent_starts, tags=tags)
    doc.set_ents([Span(doc, *span) for span in spans])
    return doc


def run(*args):
    result = CliRunner().invoke(app, ["data", *map(str, args)])
    return result.exit_code, result.output


def test_labels_and_lengths():
    docs = [doc_of("Ann Lee met Bob", (0, 2, "PER"), (3, 4, "PER")), doc_of("Bob ran", (0, 1, "PER")), doc_of("no")]
    found = describe(docs, NLP)
    assert (found.documents, found.tokens, found.spans, found.without_spans) == (3, 7, 3, 1)
    assert found.labels["PER"] == {"spans": 3, "strings": 2, "lengths": {2: 1, 1: 2}}


def test_spans_that_the_tokenizer_does_not_cut_out():
    doc = Doc(NLP.vocab, words=["Annabel", "ran"], spaces=[False, False])  # Annabelran
    doc.ents = [Span(doc, 0, 1, "PER")]
    assert describe([doc, doc_of("Ann ran", (0, 1, "PER"))], NLP).misaligned == ["Annabel (PER)"]


def test_spans_that_touch_cross_or_have_no_letters():
    docs = [
        doc_of("Ann Bob", (0, 1, "PER"), (1, 2, "PER")),
        doc_of("Ann Rome", (0, 1, "PER"), (1, 2, "GPE")),
        doc_of("in York . Hi", (1, 4, "GPE"), sent_starts=[1, -1, -1, 1]),
        doc_of("! ?", (0, 2, "X")),
    ]
    found = describe(docs, NLP)
    assert (found.touching, found.crossing, found.odd) == (1, ["York . Hi (GPE)"], ["! ? (X)"])


def test_missing_annotation_is_counted():
    doc = doc_of("Ann ran far", tags=["NNP", "", "RB"])
    doc.set_ents([], outside=[doc[0:1]], default="missing")
    found = describe([doc], NLP)
    assert (found.unannotated_tokens, found.untagged_tokens, found.tags) == (2, 1, {"NNP": 1, "RB": 1})


def test_labels_that_look_like_tags_are_told(files, tmp_path):
    """B_PER and I_PER were entities of one token each, and nothing said so."""
    docs = [doc_of("Ann Lee met Bob", (0, 1, "B_PER"), (1, 2, "I_PER"), (3, 4, "B_PER"))]
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    assert "2 labels like tags of tokens" in " ".join(run(tmp_path / "a.spacy")[1].split())
    assert "look like tags" not in run(files / "train.jsonl")[1]


def test_labels_of_texts_are_counted():
    docs = [doc_of(words) for words in ("play it", "play on", "book it", "play it", "who", "maybe", "so so")]
    cats = [
        {"PLAY": 1.0, "BOOK": 0.0},
        {"PLAY": 1.0},
        {"BOOK": 1.0},
        {"BOOK": 1.0},
        {"PLAY": 0.0},
        {},
        {"A": 1.0, "B": 1.0},
    ]
    for doc, of_doc in zip(docs, cats):
        doc.cats = of_doc
    docs[1].cats = {"PLAY": 1.0, "PAY": 0.4}
    found = describe(docs, NLP)
    assert found.cats == {"PLAY": 2, "BOOK": 2, "A": 1, "B": 1, "PAY": 0} and found.without_cats == 2
    assert (found.several_cats, found.uncertain_cats) == (["so so (A, B)"], ["play on (PAY 0.4)"])
    assert (found.repeated, found.repeated_otherwise) == (1, ["play it"])
    common = overlap(docs[:2], docs[2:5])
    assert (common["only_in_dev"], common["only_in_train"]) == (["BOOK"], ["PLAY"])


def test_labels_of_texts_are_shown(tmp_path):
    """A corpus of crf_textcat was shown as one without annotation."""
    items = [{"text": "play it", "cats": {"PLAY": 1}}, {"text": "book it", "cats": {"BOOK": 1}}]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))
    (tmp_path / "dev.jsonl").write_text(f"{json.dumps(items[0])}\n")
    code, output = run(tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl")
    output = " ".join(output.split())
    assert code == 0 and "labels of texts" in output and " 0 entities" not in output, output
    assert "2 labels with fewer than 50 texts: PLAY (1); BOOK (1)" in output
    assert "1 label in train only, not scored: BOOK" in output


def test_tags_of_dev_alone():
    """Which no tagger can find."""
    common = overlap([doc_of("Ann ran", tags=["NNP", "VBD"])], [doc_of("ran far", tags=["VBD", "RB"])])
    assert (common["only_in_dev"], common["only_in_train"]) == (["RB"], ["NNP"])


def test_repeated_texts():
    docs = [doc_of("Ann ran", (0, 1, "PER")), doc_of("Ann ran", (0, 1, "PER")), doc_of("Ann ran"), doc_of("other")]
    found = describe(docs, NLP)
    assert (found.repeated, found.repeated_otherwise) == (2, ["Ann ran"])


def test_the_same_words_annotated_in_several_ways():
    docs = [
        doc_of("Paris in Paris", (0, 1, "PER"), (2, 3, "GPE")),
        doc_of("Paris", (0, 1, "GPE")),
        doc_of("Paris , Rome"),
        doc_of("New York Times", (0, 3, "ORG")),  # New York within it is no contradiction
        doc_of("New York", (0, 2, "GPE")),
        doc_of("Rome Rome", (0, 1, "GPE")),
        doc_of("Ann", (0, 1, "PER")),
    ]
    missing = doc_of("Ann")
    missing.set_ents([], default="missing")
    found = inconsistent([*docs, missing])
    assert [(one.text, one.labels, one.unlabelled, one.doubtful) for one in found] == [
        ("Paris", {"GPE": 2, "PER": 1}, 1, 2),
        ("Rome", {"GPE": 1}, 2, 1),
    ]


def test_train_and_dev():
    train = [doc_of("Ann ran", (0, 1, "PER")), doc_of("in Rome", (1, 2, "GPE"))]
    dev = [
        doc_of("Ann ran", (0, 1, "PER")),
        doc_of("Ann met Bob", (0, 1, "PER"), (2, 3, "PER")),
        doc_of("x", (0, 1, "X")),
    ]
    found = overlap(train, dev)
    assert (found["documents"], found["only_in_dev"], found["only_in_train"]) == (["Ann ran"], ["X"], ["GPE"])
    assert found["unseen"] == {"PER": 1 / 3, "X": 1.0}


@pytest.fixture
def files(tmp_path):
    texts = [
        ("Ann met Paris", [[0, 3, "PER"], [8, 13, "per"]]),
        ("Paris and Annabel", [[0, 5, "GPE"], [10, 13, "PER"]]),
    ]
    train = [{"id": name, "text": text, "label": spans} for name, (text, spans) in zip((71, "b"), texts)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in train))
    (tmp_path / "dev.conll").write_text("Ann\tB-PER\nmet\tO\nParis\tB-LOC\n")
    return tmp_path


def test_the_command(files):
    code, output = run(files / "train.jsonl", "--dev", files / "dev.conll")
    output = " ".join(output.split())
    assert code == 0, output
    for told in (
        "doccano's JSONL: 2 documents",
        "1 span does not align",
        "1 group of labels that differ in case or white space only: PER = per",
        "labels with fewer than 50 spans",
        "1 document of dev also in train",
        "1 label in dev only",
        "Annotated in several ways: 1 string",
    ):
        assert told in output, (told, output)


def test_json(files):
    code, output = run(files / "train.jsonl", "--dev", files / "dev.conll", "--json")
    found = json.loads(output)
    assert code == 0 and set(found) == {"findings", "train", "dev", "overlap"}
    assert found["train"]["labels"]["PER"]["spans"] == 1 and len(found["train"]["unread"]["misaligned"]) == 1
    [paris] = found["train"]["inconsistent"]
    places = paris.pop("places")
    assert paris == {"text": "Paris", "labels": {"per": 1, "GPE": 1}, "unlabelled": 0}
    assert places == [
        {"label": "per", "start": 8, "place": f"{files / 'train.jsonl'}, line 1", "id": 71},
        {"label": "GPE", "start": 0, "place": f"{files / 'train.jsonl'}, line 2", "id": "b"},
    ]
    assert found["train"]["misaligned"] == [] and "line 2, 10-13" in found["train"]["unread"]["misaligned"][0]
    assert found["overlap"]["only_in_dev"] == ["LOC"]


def test_what_cannot_be_read(files):
    (files / "bad.jsonl").write_text("{")
    (files / "empty").mkdir()
    for path, says in ((files / "bad.jsonl", "CRF701"), (files / "empty", "CRF708")):
        code, output = run(path)
        assert code == 1 and says in output


def test_groups_of_spans_and_numbers_are_counted(tmp_path):
    """`crf data` said of files with groups of spans or numbers that they have no entities."""
    items = [
        {"text": "Ann Lee ran", "spans": [[0, 7, "PER"], [0, 3, "FIRST"]]},
        {"text": "Bob ran", "spans": [[0, 3, "PER"]]},
    ]
    (tmp_path / "spans.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))
    docs = read_docs(tmp_path / "spans.jsonl", NLP, ReadSettings(spans_key="sc"))
    doc_bin(docs).to_disk(tmp_path / "spans.spacy")
    code, output = run(tmp_path / "spans.spacy")
    assert code == 0 and "spans in doc.spans['sc']" in output and "0 entities" not in output
    found = describe(docs, NLP)
    assert found.groups["sc"]["PER"] == {"spans": 2, "strings": 2, "lengths": {2: 1, 1: 1}}
    prices = [{"text": "Ann ran", "extensions": {"price": n}} for n in (1, 2.5)]
    (tmp_path / "prices.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in prices))
    code, output = run(tmp_path / "prices.jsonl")
    assert code == 0 and "price" in output and "1.75" in output and "0 entities" not in output
    assert ".spacy files: 2 documents" in run(tmp_path)[1]
