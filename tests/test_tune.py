"""The command that searches l1 and l2."""

from pathlib import Path

import pytest
import spacy
from spacy.cli import app
from spacy.tokens import DocBin
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli import tune as tune_command
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
    name, trials = tune(
        config, [0.0, 2.0], [0.01, 10.0], folds=folds, iterations=30, on_training=lambda: calls.append(1)
    )
    assert name == "crf_ner"
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


@pytest.mark.issue(19)
@pytest.mark.parametrize("folds", [1, 2])
def test_schemes_are_tried(paths, folds, monkeypatch):
    found = []
    walk = tune_command._walk

    def observed(pipe, *args):
        found.append(pipe.annotation.scheme.name)
        yield from walk(pipe, *args)

    monkeypatch.setattr(tune_command, "_walk", observed)
    _, trials = tune(
        load_config(CONFIG, overrides=paths), [0.0], [0.1, 1.0], schemes=["IO", "BIO"], folds=folds, iterations=20
    )
    assert found == ["IO"] * folds + ["BIO"] * folds
    assert [(trial.scheme, trial.l2) for trial in trials] == [
        ("IO", 0.1),
        ("IO", 1.0),
        ("BIO", 0.1),
        ("BIO", 1.0),
    ]
    assert trials[0].n_weights < trials[2].n_weights


@pytest.mark.issue(19)
def test_the_best_scheme_is_written(paths, tmp_path, monkeypatch):
    scores = {"BIO": 0.9, "BILUO": 0.8}
    walk = tune_command._walk

    def scored(pipe, *args):
        for setting, _, n_weights in walk(pipe, *args):
            yield setting, scores[pipe.annotation.scheme.name], n_weights

    monkeypatch.setattr(tune_command, "_walk", scored)
    overrides = [part for name, path in paths.items() for part in (f"--{name}", path)]
    arguments = [
        "crf",
        "tune",
        str(CONFIG),
        "--schemes",
        "BILUO, BIO",
        "--l2",
        "0.1",
        "--output",
        str(tmp_path / "b.cfg"),
    ]
    result = CliRunner().invoke(app, [*arguments, *overrides])
    assert result.exit_code == 0, result.output
    assert "BILUO" in result.output
    assert load_config(tmp_path / "b.cfg")["components"]["crf_ner"]["scheme"] == "BIO"


@pytest.mark.issue(19)
@pytest.mark.parametrize("config, scheme", [("crf_ner", "BIOO"), ("crf_tagger", "BIO"), ("semicrf_ner", "BIO")])
def test_schemes_that_there_are_not(paths, config, scheme):
    config = load_config(CONFIG.parent / f"{config}.cfg", overrides=paths)
    with pytest.raises(ValueError, match=f"CRF931.*{scheme}.*BILUO"):
        tune(config, [0.0], [0.1], schemes=[scheme])


def test_folds_know_nothing_of_what_they_hold_out(paths, monkeypatch):
    walk, folds = tune_command._walk, []

    def observed(pipe, learned, held_out, *args):
        names = set(pipe.sparse_features.states.index.names())
        folds.append((names, *[{token.lower_ for eg in part for token in eg.x} for part in (learned, held_out)]))
        yield from walk(pipe, learned, held_out, *args)
        assert set(pipe.sparse_features.states.index.names()) == names  # counted once

    monkeypatch.setattr(tune_command, "_walk", observed)
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    _, trials = tune(config, [0.0, 0.1], [0.1, 1.0], folds=3, iterations=5)
    assert len(folds) == 3 and len(trials) == 4
    for names, learned, held_out in folds:
        assert held_out - learned
        words = {name.removeprefix("lower[0]=") for name in names if name.startswith("lower[0]=") and "|" not in name}
        assert words == learned


def test_labels_and_counts_are_those_of_the_fold(tmp_path, paths, monkeypatch):
    """A label of one document and a word of two are met in some folds only."""
    found = []
    walk = tune_command._walk

    def observed(pipe, *args):
        found.append((pipe.labels, {name for name in pipe.sparse_features.states.index.names() if "runs" in name}))
        yield from walk(pipe, *args)

    monkeypatch.setattr(tune_command, "_walk", observed)
    nlp = spacy.blank("en")
    texts = ["[Bob](PER) runs .", "[Ann](PER) runs to [Rome](GPE) .", "[Ann](PER) saw [Bob](PER) ."]
    DocBin(docs=[ner_doc(nlp, text) for text in texts]).to_disk(tmp_path / "train.spacy")
    minimum = {"components.crf_ner.model.emissions.min_count": 2}
    tune(load_config(CONFIG, overrides={**paths, **minimum}), [0.0], [0.1], folds=3, iterations=5)
    assert [labels for labels, _ in found] == [("GPE", "PER"), ("PER",), ("GPE", "PER")]
    assert [bool(names) for _, names in found] == [False, False, True]


def test_earlier_components_annotate_and_are_left_as_they_are(tmp_path, paths):
    """Features of the tags of a sourced tagger, which stays as it was trained."""
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("attribute_ruler")
    ruler.add([[{"IS_TITLE": True}]], {"TAG": "NNP"})
    nlp.to_disk(tmp_path / "source")
    config = load_config(CONFIG, overrides=paths)
    config["nlp"]["pipeline"] = ["attribute_ruler", "crf_ner"]
    config["components"]["attribute_ruler"] = {"source": str(tmp_path / "source")}
    config["training"].update(frozen_components=["attribute_ruler"], annotating_components=["attribute_ruler"])
    features = {"@misc": "spacy_crf.features.v1", "templates": ["tag[0]"]}
    config["components"]["crf_ner"]["model"]["emissions"]["features"] = features
    _, [trial] = tune(config, [0.0], [0.01], folds=2, iterations=30)
    assert trial.score > 0.1  # 0 without tags: all words look alike then


@pytest.mark.issue(12)
@pytest.mark.parametrize("folds", [1, 2])
def test_what_initialize_is_given_counts(tmp_path, paths, folds, monkeypatch):
    found = []
    walk = tune_command._walk

    def observed(pipe, *args):
        names = pipe.sparse_features.states.index.names()
        found.append((pipe.labels, any(name.startswith("in:cities[0]=") for name in names)))
        yield from walk(pipe, *args)

    monkeypatch.setattr(tune_command, "_walk", observed)
    (tmp_path / "cities.txt").write_text("Rome\nNew York\n")
    config = load_config(CONFIG, overrides=paths)
    config["components"]["crf_ner"]["model"]["emissions"]["features"]["extra"] = ["in:cities[0]"]
    config["initialize"]["components"]["crf_ner"] = {
        "labels": ["ORG", "PER", "GPE", "NEW"],
        "gazetteers": {"cities": str(tmp_path / "cities.txt")},
    }
    tune(config, [0.0], [1.0], folds=folds, iterations=2)
    assert found == [(("ORG", "PER", "GPE", "NEW"), True)] * folds


def test_a_loss_that_has_no_gradient_is_refused(paths):
    config = load_config(CONFIG, overrides=paths)
    config["components"]["crf_ner"]["loss"] = {"@losses": "spacy_crf.MaxMargin.v1"}
    config["training"]["optimizer"] = {"@optimizers": "spacy_crf.FrankWolfe.v1"}
    with pytest.raises(ValueError, match="CRF210"):
        tune(config, [0.0], [1.0])


def test_scores_that_count_nothing_are_refused(paths):
    config = load_config(CONFIG, overrides=paths)
    config["training"]["score_weights"] = {"cats_macro_f": 1.0, "ents_f": None}
    with pytest.raises(ValueError, match=r"CRF722.*ents_f"):
        tune(config, [0.0], [1.0], iterations=2)


@pytest.mark.parametrize(
    "own, others, optimizer, block",
    [
        (None, [], "spacy_crf.LBFGS.v1", "training"),
        (None, [], "Adam.v1", "training"),
        ({"@optimizers": "spacy_crf.Minibatch.v1"}, [], "Adam.v1", "training"),
        (None, ["tagger"], "Adam.v1", "component"),
        ({"@optimizers": "spacy_crf.LBFGS.v1", "memory": 3}, ["tagger"], "Adam.v1", "component"),
        ({"@optimizers": "spacy_crf.SGD.v1"}, [], "Adam.v1", "component"),
    ],
)
def test_the_best_config_changes_the_optimizer_of_the_component(own, others, optimizer, block):
    config = load_config(CONFIG)
    config["nlp"]["pipeline"] = [*others, "crf_ner"]
    config["components"]["crf_ner"]["optimizer"] = own
    config["training"]["optimizer"] = {"@optimizers": optimizer}
    config["training"]["batcher"] = {"@batchers": "spacy.batch_by_words.v1", "size": 1000}
    tune_command._set_optimizer(config, "crf_ner", tune_command.Trial(0.1, 0.2, 1.0, 0.0, 5))
    blocks = {"training": config["training"]["optimizer"], "component": config["components"]["crf_ner"]["optimizer"]}
    changed = blocks.pop(block)
    assert changed["@optimizers"] == "spacy_crf.LBFGS.v1" and (changed["l1"], changed["l2"]) == (0.1, 0.2)
    assert changed.get("memory") == (own or {}).get("memory")
    assert blocks.popitem()[1] in (None, {"@optimizers": optimizer})
    full = config["training"]["batcher"]["@batchers"] == "spacy_crf.full_batch.v1"
    assert full == (block == "training" and optimizer == "Adam.v1")


@pytest.mark.parametrize(
    "option", [["--l2", "-1"], ["--l1", "much"], ["--folds", "0"], ["--folds", "1000"], ["--component", "x"]]
)
def test_what_makes_no_sense_is_told(paths, option):
    overrides = [part for name, path in paths.items() for part in (f"--{name}", path)]
    result = CliRunner().invoke(app, ["crf", "tune", str(CONFIG), *option, *overrides])
    assert result.exit_code == 1
    assert ("CRF710" if option[0] == "--component" else "CRF020") in result.output
