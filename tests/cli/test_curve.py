"""``python -m spacy crf curve``: parts within each other, trained as `spacy train` does it."""

import json
import xml.etree.ElementTree as ET

import pytest
from spacy.cli._util import app
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from typer.testing import CliRunner

import spacy_crf.cli  # noqa: F401
from spacy_crf.cli import train as command
from spacy_crf.report import charts
from tests.pipeline.test_probabilities import trained
from tests.test_configs import ROOT
from tests.util import NER_TEXTS, ner_examples

CONFIG = ROOT / "configs" / "crf_ner.cfg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curve")
    docs = [example.reference for example in ner_examples(trained(), NER_TEXTS)]
    DocBin(docs=docs).to_disk(folder / "train.spacy")
    DocBin(docs=docs).to_disk(folder / "dev.spacy")
    return folder


@pytest.fixture
def overrides(folder):
    return [f"--paths.{name}={folder / f'{name}.spacy'}" for name in ("train", "dev")] + [
        "--training.optimizer.max_iterations=4"
    ]


def run(*arguments):
    result = CliRunner().invoke(app, ["crf", "curve", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result


def test_all_texts_reach_what_spacy_train_reaches(folder, overrides, tmp_path):
    code, result = run("--config", CONFIG, "--shares", "50,100", "-o", tmp_path / "curve.svg", "--json", *overrides)
    assert code == 0, result.output
    half, whole = json.loads(result.stdout)
    n = len(NER_TEXTS)
    assert (half["texts"], whole["texts"]) == (round(n / 2), n) and half["tokens"] < whole["tokens"]
    settings = dict(option.removeprefix("--").split("=") for option in overrides)
    settings["training.optimizer.max_iterations"] = 4
    nlp = init_nlp(load_config(CONFIG, overrides=settings, interpolate=False))
    train(nlp, tmp_path)
    performance = json.loads((tmp_path / "model-best" / "meta.json").read_text())["performance"]
    assert whole["score"] == performance["ents_f"]
    root = ET.fromstring((tmp_path / "curve.svg").read_text())
    points = [[float(point.get(name)) for name in ("cx", "cy", "r")] for point in root.findall("{*}circle")]
    left, top, width, height = map(float, root.get("viewBox").split())
    assert len(points) == 2
    assert all(left <= x - r < x + r <= left + width and top <= y - r < y + r <= top + height for x, y, r in points)


def test_counts_of_texts_are_written_out():
    """As 13,784 and not as 1.38e+04."""
    drawn = charts.learning_curve([(1_378, 0.5), (13_784, 0.9)])
    assert ">13,784<" in drawn and ">6,892<" in drawn


def test_parts_are_within_each_other(overrides, monkeypatch):
    taken = []

    def keep(config, name, docs, share):
        taken.append([doc.text for doc in docs])
        return command.CurvePoint(share, len(docs), 1, 0.5, {}, 0.0)

    monkeypatch.setattr(command, "_train_share", keep)
    for shares in ("1,50,100", "50"):
        assert run("--config", CONFIG, "--shares", shares, *overrides)[0] == 0
    assert len(taken[0]) == 1 and set(taken[0]) < set(taken[1]) < set(taken[2])
    assert taken[2] == [example.reference.text for example in ner_examples(trained(), NER_TEXTS)]
    assert taken[3] == taken[1]


def test_the_table(folder, overrides, monkeypatch):
    points = iter([command.CurvePoint(10, 1, 9, 0.5, {}, 1.0), command.CurvePoint(100, 10, 90, 0.75, {}, 2.0)])
    monkeypatch.setattr(command, "_train_share", lambda *args: next(points))
    code, result = run("--config", CONFIG, "--shares", "10,100", *overrides)
    assert code == 0 and "75.00" in result.output and "+25.00" in result.output


@pytest.mark.parametrize(
    "options, says",
    [
        (["--shares", "0,50"], "CRF020"),
        (["--shares", "half"], "CRF020"),
        (["--shares", "50,101"], "CRF020"),
        (["--training.train_corpus=corpora.none"], "CRF876"),
        (["--paths.train=nothing.spacy"], "CRF706"),
    ],
)
def test_what_cannot_be_done(overrides, options, says):
    code, result = run("--config", CONFIG, *overrides, *options)
    assert code == 1 and says in result.output
