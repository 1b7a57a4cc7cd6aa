"""``spacy crf vectors``: what it reads, writes and says."""

import json
import re
import sys

import numpy as np
import pytest
import spacy
from spacy.cli import app as spacy_app
from spacy.tokens import DocBin
from spacy.vectors import Mode
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.features.word_vectors import read_vectors
from tests.features.test_vectors import blank, floret_vectors, marginals, train

LINES = ["Ann lives in New York , near the sea .", "Bob left Paris for Rome , in the south ."] * 20
FEW = ["--dims", 8, "--rows", 500, "--epochs", 1]


def run(*args):
    return CliRunner().invoke(app, ["vectors", *map(str, args)])


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n\n", encoding="utf8")
    return path


def needs_floret():
    pytest.importorskip("floret", reason="pip install 'spacy-crf[vectors]' has not been run")


def test_vectors_of_texts(texts, tmp_path):
    """The same of lines, JSONL, .spacy, and of two files; [initialize] vectors takes them as they are."""
    needs_floret()
    output = tmp_path / "new" / "vectors"
    done = run(texts, "-o", output, *FEW)
    assert done.exit_code == 0 and "500 vectors of 8 numbers" in done.output, done.output
    nlp = spacy.load(output)
    assert nlp.vocab.vectors.mode == Mode.floret and not nlp.pipe_names
    assert "York" not in nlp.vocab.strings
    expected = read_vectors(str(output), None, nlp.vocab, name="crf_ner")
    assert expected.parts[:3] == (3, 5, 2) and np.abs(expected.data).max() > 0
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in LINES), encoding="utf8")
    DocBin(docs=map(nlp.make_doc, LINES)).to_disk(tmp_path / "texts.spacy")
    for n, half in enumerate((LINES[:15], LINES[15:])):
        (tmp_path / f"part{n}.txt").write_text("\n".join(half), encoding="utf8")
    for given in (["texts.jsonl"], ["texts.spacy"], ["part0.txt", "part1.txt"]):
        done = run(*(tmp_path / name for name in given), "-o", output, *FEW)
        assert done.exit_code == 0, done.output
        assert read_vectors(str(output), None, nlp.vocab, name="crf_ner").source == expected.source
    pipeline = blank()
    pipeline.config["initialize"]["vectors"] = str(output)
    assert marginals(train(pipeline), "unseen words in Rome").shape == (4, 13)


def test_options(texts, tmp_path):
    needs_floret()
    options = ["--shortest", 2, "--longest", 4, "--method", "skipgram", "--min-count", 1, "--threads", 2]
    done = run(texts, "-o", tmp_path / "out", *FEW, *options)
    assert done.exit_code == 0, done.output
    assert spacy.load(tmp_path / "out").vocab.vectors.minn == 2


@pytest.mark.parametrize("option", ["--dims", "--rows", "--epochs", "--longest", "--threads", "--min-count"])
def test_options_are_checked(texts, tmp_path, option):
    done = run(texts, "-o", tmp_path / "out", option, 0)
    assert done.exit_code == 2 and option in done.output


def test_the_longest_part_is_not_shorter_than_the_shortest(texts, tmp_path):
    done = run(texts, "-o", tmp_path / "out", "--shortest", 6)
    assert_told(done, "CRF020: spacy crf vectors: --shortest = 6 .*at most --longest, 5")


def assert_told(done, pattern):
    assert re.search(pattern, " ".join(done.output.split())), done.output


def test_without_words(tmp_path, texts):
    needs_floret()
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n", encoding="utf8")
    assert_told(run(empty, "-o", tmp_path / "out"), r"CRF948: .*empty.txt: there are no words")
    assert_told(
        run(texts, "-o", tmp_path / "out", "--min-count", 1000), r"CRF948: .*texts.txt: no word is there 1000 times"
    )


def test_without_the_extra(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "floret", None)
    assert_told(run(texts, "-o", tmp_path / "out"), r"CRF781: .*pip install 'spacy-crf\[vectors\]'")


def test_only_learning_takes_floret(tmp_path, monkeypatch):
    """A table that floret wrote, a header and a row for each bucket, is read where floret has no wheels."""
    monkeypatch.setitem(sys.modules, "floret", None)
    given = floret_vectors(30)
    rows = [f"{row} {' '.join(map(str, numbers))} " for row, numbers in enumerate(given.data.tolist())]
    header = f"30 {given.data.shape[1]} {given.minn} {given.maxn} {given.hash_count} {given.hash_seed} < >"
    (tmp_path / "vectors.floret").write_text("\n".join([header, *rows, ""]), encoding="utf8")
    table, output = tmp_path / "vectors.floret", tmp_path / "out"
    done = CliRunner().invoke(spacy_app, ["init", "vectors", "en", str(table), str(output), "--mode", "floret"])
    assert done.exit_code == 0, done.output
    vocab = spacy.blank("en").vocab
    words = [vocab[word] for word in ("Ann", "unbelievable", "über")]
    found = read_vectors(str(output), None, vocab, name="crf_ner").of(words)
    np.testing.assert_allclose(found, [given[word.text] for word in words], rtol=1e-6)


def test_files_that_do_not_go_together(texts, tmp_path):
    done = run(texts)
    assert done.exit_code == 2 and "Missing option '--output'" in done.output
    assert_told(run(texts, "-o", texts), "CRF706: .*texts.txt")
    assert_told(run(tmp_path / "nothing.txt", "-o", tmp_path / "out"), "CRF706: .*nothing.txt|CRF781")
    (tmp_path / "file").write_text("")
    assert_told(run(texts, "-o", tmp_path / "file"), "CRF706: .*file")
