"""``spacy crf clusters``: what it reads, writes and says, and that it goes on where it was stopped."""

import json
import random

import numpy as np
import pytest
import spacy
from spacy.tokens import DocBin
from spacy.vectors import Vectors
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli import clusters as command
from spacy_crf.clusters.brown import Brown
from spacy_crf.features.clusters import Clusters, read_file
from tests.clusters.test_brown import random_lines
from tests.features.test_clusters import vectors_of_groups


def run(*args):
    return CliRunner().invoke(app, ["clusters", *map(str, args)])


@pytest.fixture
def lines():
    return random_lines(5, n_words=300, n_lines=900)


@pytest.fixture
def texts(tmp_path, lines):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(lines) + "\n\n", encoding="utf8")
    return path


def clusters_of(path):
    return Clusters(read_file(path))


def test_brown_clusters_of_texts(texts, lines, tmp_path):
    """The same of lines, JSONL, .spacy, and of two files."""
    output = tmp_path / "new" / "clusters.bin"
    done = run(texts, "-o", output, "--method", "brown", "--clusters", 20, "--min-count", 2, "--digits")
    assert done.exit_code == 0 and "words in 20 clusters" in done.output, done.output
    assert [path.name for path in output.parent.iterdir()] == ["clusters.bin"]
    expected = clusters_of(output)
    assert len(expected.paths) == 20 and not expected.digits
    nlp = spacy.blank("en")
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf8")
    DocBin(docs=map(nlp.make_doc, lines)).to_disk(tmp_path / "texts.spacy")
    for n, half in enumerate((lines[:400], lines[400:])):
        (tmp_path / f"part{n}.txt").write_text("\n".join(half), encoding="utf8")
    for given in (["texts.jsonl"], ["texts.spacy"], ["part0.txt", "part1.txt"]):
        done = run(*(tmp_path / name for name in given), "-o", output, "--clusters", 20, "--min-count", 2, "--digits")
        assert done.exit_code == 0 and clusters_of(output) == expected, done.output


def test_words_that_differ_in_digits_or_case(tmp_path):
    (tmp_path / "texts.txt").write_text("In 1999 Ann ran\nIN 2000 ann ran\n", encoding="utf8")
    for options, words in ([], 6), (["--digits"], 7), (["--lower"], 4), (["--lower", "--digits"], 5):
        done = run(tmp_path / "texts.txt", "-o", tmp_path / "out", "--clusters", 2, "--min-count", 1, *options)
        found = clusters_of(tmp_path / "out")
        assert done.exit_code == 0 and len(found) == words and found.digits == ("--digits" not in options)


def test_going_on_where_it_was_stopped(texts, tmp_path, monkeypatch):
    output = tmp_path / "clusters.bin"
    checkpoint = tmp_path / "clusters.bin.checkpoint"
    args = (texts, "-o", output, "--clusters", 20, "--min-count", 1, "--digits")
    assert run(*args).exit_code == 0
    expected = clusters_of(output)
    output.unlink()
    run_brown, steps = Brown.run, []

    def stopped(brown, on_step):
        def on(brown):
            on_step(brown)
            steps.append(brown.done)
            if len(steps) == 2:
                raise KeyboardInterrupt

        return run_brown(brown, on)

    monkeypatch.setattr(Brown, "run", stopped)
    done = run(*args)
    assert done.exit_code != 0 and "the same command goes on" in done.output
    assert checkpoint.is_file() and not output.exists()
    done = run(*args)
    assert done.exit_code == 0 and f"Goes on from {checkpoint}: {steps[1]} of" in " ".join(done.output.split()), (
        done.output
    )
    assert clusters_of(output) == expected and not checkpoint.exists()
    assert steps == sorted(set(steps))  # no word twice
    # One that belongs to something else, or is damaged
    steps.clear()
    assert run(*args).exit_code != 0
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    assert "CRF951" in run(*args).output
    steps.clear()
    checkpoint.unlink()
    assert run(*args).exit_code != 0
    done = run(texts, "-o", output, "--clusters", 19, "--min-count", 1, "--digits")
    assert done.exit_code == 0 and "Begun anew" in done.output and len(clusters_of(output).paths) == 19


def test_it_saves_as_time_goes_by(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SAVE_SECONDS", 0.0)
    sizes = []

    def write(path, data):
        sizes.append(len(data))
        assert path.name == "clusters.bin.checkpoint"

    monkeypatch.setattr(command, "write_whole", write)
    assert run(texts, "-o", tmp_path / "clusters.bin", "--clusters", 20, "--digits").exit_code == 0
    assert len(sizes) > 2


def test_clusters_of_vectors(tmp_path):
    nlp = spacy.blank("xx")
    words = [f"w{n}" for n in range(24)]
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=vectors_of_groups(), keys=words)
    nlp.to_disk(tmp_path / "pipeline")
    nlp.vocab.vectors.to_disk(tmp_path / "vectors")
    for source in ("pipeline", "vectors", "pipeline/vocab"):
        output = tmp_path / "clusters.bin"
        done = run("--from-vectors", tmp_path / source, "-o", output, "--clusters", 4, "--method", "kmeans")
        assert done.exit_code == 0 and "24 words in 4 clusters" in done.output, done.output
        hashes = np.array([nlp.vocab.strings[word] for word in words], dtype=np.uint64)
        of = clusters_of(output).of(words, hashes, hashes).reshape(4, 6)
        assert (of == of[:, :1]).all() and len(set(of[:, 0].tolist())) == 4


def test_mistakes(texts, tmp_path):
    out, empty = tmp_path / "out", tmp_path / "empty.txt"
    empty.write_text("\n \n", encoding="utf8")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"words": 1}\n', encoding="utf8")
    (tmp_path / "half.jsonl").write_text('{"text": "a \\ud800"}\n', encoding="utf8")
    (tmp_path / "not.jsonl").write_text("a\n", encoding="utf8")
    (tmp_path / "bad.spacy").write_bytes(b"x")
    spacy.blank("en").to_disk(tmp_path / "blank")
    for args, message in (
        (["-o", out], "CRF952"),
        ([texts, "-o", texts], "CRF730"),
        ([texts, "-o", out, "--from-vectors", tmp_path / "blank"], "CRF952"),
        ([texts, "-o", out, "--method", "kmeans"], "CRF952"),
        ([texts, "-o", out, "--method", "random"], "CRF020: spacy crf clusters: --method"),
        ([texts, "-o", out, "--clusters", 1], "CRF020: spacy crf clusters: --clusters"),
        ([texts, "-o", out, "--clusters", 20_000], "CRF020: spacy crf clusters: --clusters"),
        ([texts, "-o", out, "--clusters", 400, "--min-count", 1], "CRF948: Can't make 400 clusters"),
        ([texts, "-o", out, "--min-count", 0], "CRF020: spacy crf clusters: --min-count"),
        ([texts, "-o", out, "--lang", "nope"], "CRF020: crf: --lang = 'nope'"),
        ([texts, "-o", tmp_path], "CRF706"),
        ([tmp_path / "gone.txt", "-o", out], "CRF706"),
        ([empty, "-o", out], "CRF948"),
        ([tmp_path / "bad.jsonl", "-o", out], "CRF709"),
        ([tmp_path / "half.jsonl", "-o", out], "CRF701"),
        ([tmp_path / "not.jsonl", "-o", out], "CRF701"),
        ([tmp_path / "bad.spacy", "-o", out], "CRF701"),
        (["--from-vectors", tmp_path / "gone", "-o", out], "CRF715"),
        (["--from-vectors", tmp_path / "blank", "-o", out], "CRF948"),
    ):
        done = run(*args)
        assert done.exit_code == 1 and message in done.output, (args, done.output, done.exception)
        assert not out.exists()


def test_one_order_of_words_whatever_the_files_order(tmp_path):
    """Ties in frequency are broken by the words, so that texts in another order give the same clusters."""
    lines = random_lines(2, n_words=40, n_lines=300)
    found = []
    for seed in range(2):
        random.Random(seed).shuffle(lines)
        (tmp_path / "texts.txt").write_text("\n".join(lines), encoding="utf8")
        assert run(tmp_path / "texts.txt", "-o", tmp_path / "out", "--clusters", 8, "--digits").exit_code == 0
        found.append(clusters_of(tmp_path / "out"))
    assert found[0] == found[1]


def test_clusters_by_exchange(texts, tmp_path):
    """No tree, the same each time, and letters count where they are asked for."""
    outputs = [tmp_path / f"{n}.bin" for n in range(3)]
    for output, letters in zip(outputs, (0, 0, 5)):
        done = run(
            texts,
            "-o",
            output,
            "--method",
            "clark",
            "--clusters",
            20,
            "--min-count",
            2,
            "--digits",
            "--letters",
            letters,
        )
        assert done.exit_code == 0 and " words in " in done.output, done.output
    one, again, other = map(clusters_of, outputs)
    assert one == again != other and not one.is_tree
    for args, said in (
        (["--method", "clark", "--letters", -1], "CRF020"),
        (["--method", "brown", "--letters", 1], "given with --method clark alone"),
        (["--method", "clark", "--from-vectors", "x"], "CRF952"),
        (["--method", "clark", "--clusters", 400, "--min-count", 1], "CRF948: Can't make 400 clusters"),
    ):
        done = run(texts, "-o", tmp_path / "out.bin", *args)
        assert done.exit_code == 1 and said in " ".join(done.output.split()), done.output
