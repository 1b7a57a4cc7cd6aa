"""The command that searches l1 and l2."""

from pathlib import Path

import pytest
import spacy
from spacy.cli import app
from spacy.tokens import DocBin
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli.tune import tune

from .util import NER_TEXTS, ner_doc

CONFIG = Path(__file__).parents[1] / "configs" / "crf_ner.cfg"


@pytest.fixture
def paths(tmp_path):
    nlp = spacy.blank("en")
    for name in ("train", "dev"):
        DocBin(docs=[ner_doc(nlp, text) for text in NER_TEXTS]).to_disk(tmp_path / f"{name}.spacy")
    return {f"paths.{name}": str(tmp_path / f"{name}.spacy") for name in ("train", "dev")}


@pytest.mark.parametrize("folds", [1, 3])
def test_trials_in_the_order_of_the_values(paths, folds):
    calls = []
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    trials = tune(config, [0.0, 2.0], [0.01, 10.0], folds=folds, iterations=30, on_training=lambda: calls.append(1))
    assert [trial[:2] for trial in trials] == [(0.0, 0.01), (0.0, 10.0), (2.0, 0.01), (2.0, 10.0)]
    assert len(calls) == 4 * folds
    assert trials[3].n_weights < trials[0].n_weights
    if folds == 1:  # dev is train here
        assert trials[0].score == 1.0


def test_the_command_writes_the_best_config(paths, tmp_path):
    overrides = [part for name, path in paths.items() for part in (f"--{name}", path)]
    best = tmp_path / "best.cfg"
    arguments = [
        "crf",
        "tune",
        str(CONFIG),
        "--l2",
        "0.05,100",
        "--iterations",
        "30",
        "--output",
        str(best),
        *overrides,
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "score" in result.output
    assert load_config(best)["training"]["optimizer"]["l2"] == 0.05


@pytest.mark.parametrize(
    "option", [["--l2", "-1"], ["--l1", "much"], ["--folds", "0"], ["--folds", "1000"], ["--component", "x"]]
)
def test_what_makes_no_sense_is_told(paths, option):
    overrides = [part for name, path in paths.items() for part in (f"--{name}", path)]
    result = CliRunner().invoke(app, ["crf", "tune", str(CONFIG), *option, *overrides])
    assert result.exit_code == 1
    assert "CRF72" in result.output
