"""The command that searches settings of optimizers, and tag schemes."""

import re
from pathlib import Path

import pytest
import spacy
from spacy.cli import app
from spacy.tokens import DocBin
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli import tune as tune_command
from spacy_crf.cli.tune import Candidate, tune
from spacy_crf.folds import draw_folds
from tests.util import NER_TEXTS, ner_doc

CONFIG = Path(__file__).parents[2] / "configs" / "crf_ner.cfg"
LBFGS = "spacy_crf.LBFGS.v1"


@pytest.fixture
def folds_seen(monkeypatch):
    """The folds that `tune` makes, each when its first training begins."""
    seen, trained = [], tune_command._Fold.train

    def observed(fold, optimizers, iterations):
        if fold not in seen:
            seen.append(fold)
        return trained(fold, optimizers, iterations)

    monkeypatch.setattr(tune_command._Fold, "train", observed)
    return seen


def run(paths, *options):
    overrides = [part for name, path in paths.items() for part in (f"--{name}", path)]
    return CliRunner().invoke(app, ["crf", "tune", "--config", str(CONFIG), *map(str, options), *overrides])


def settings(trials):
    return [dict(trial.candidate.settings) for trial in trials]


@pytest.mark.parametrize("folds", [1, 3])
def test_trials_in_the_order_of_the_values(paths, folds):
    calls = []
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    values = {"l1": [0.0, 2.0], "l2": [0.01, 10.0]}
    name, trials = tune(config, values, folds=folds, iterations=30, on_progress=lambda *done: calls.append(done))
    assert name == "crf_ner"
    assert settings(trials) == [{"l1": l1, "l2": l2} for l1 in values["l1"] for l2 in values["l2"]]
    assert calls[0] == (0, 4 * folds) and calls[-1] == (4 * folds, 4 * folds)
    assert trials[3].n_weights < trials[0].n_weights
    if folds == 1:  # dev is train here
        assert trials[0].score == 1.0


def test_the_command_writes_the_best_config(paths, tmp_path):
    result = run(paths, "--try", "l2=0.05,100", "--iterations", 30, "--output", tmp_path / "best.cfg")
    assert result.exit_code == 0, result.output
    assert "score" in result.output
    assert load_config(tmp_path / "best.cfg")["training"]["optimizer"]["l2"] == 0.05


def test_an_optimizer_tries_its_own_values_unless_others_are_given(paths):
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    _, trials = tune(config, {"learn_rate": [0.5]}, optimizers=["SGD", "spacy_crf.AdaGrad.v1"], iterations=2)
    tried = [trial.candidate.optimizer.split(".")[1] for trial in trials]
    assert tried == ["SGD"] * 6 + ["AdaGrad"]
    assert settings(trials) == [*({"l2": l2} for l2 in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)), {"learn_rate": 0.5}]


def registered_optimizers():
    return tune_command._optimizers().items()


@pytest.mark.parametrize("names", [["LBFGS", "SGD"], ["SGD", "LBFGS"]])
def test_optimizers_with_other_variables_start_from_the_same_weights(paths, names):
    """L-BFGS takes weights that training cannot distinguish as one variable, and SGD each weight."""
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    values = {"l2": [0.1, 1.0]}
    together = tune(config, values, optimizers=names, iterations=3)[1]
    alone = [trial for name in names for trial in tune(config, values, optimizers=[name], iterations=3)[1]]
    assert [(trial.score, trial.n_weights) for trial in together] == [(trial.score, trial.n_weights) for trial in alone]


@pytest.mark.parametrize("name, optimizer", registered_optimizers())
def test_what_optimizers_try_are_settings_that_they_take(name, optimizer):
    for setting, values in optimizer.tried().items():
        for value in values:
            assert getattr(optimizer(**{setting: value}), setting) == value


@pytest.mark.parametrize("optimizer, loss", [("AROW", "MaxMargin"), ("AveragedPerceptron", "Perceptron")])
def test_other_optimizers_are_tuned_with_the_losses_that_fit(paths, optimizer, loss):
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    config["components"]["crf_ner"]["loss"] = {"@losses": f"spacy_crf.{loss}.v1"}
    _, trials = tune(config, optimizers=[optimizer], iterations=10)
    assert len(trials) == len({trial.candidate for trial in trials}) and max(trials, key=lambda t: t.score).score == 1.0


def test_a_training_without_a_better_score_ends(paths, monkeypatch, folds_seen):
    scores = iter([0.1, 0.3, 0.2, 0.3, 0.1, *[0.4] * 100])
    monkeypatch.setattr(tune_command._Fold, "_score", lambda fold: next(scores))
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    _, [trial] = tune(config, {"l2": [0.1]}, optimizers=["SGD"], iterations=100)
    assert trial.score == 0.3 and next(scores) == 0.4  # three evaluations after the best


@pytest.mark.usefixtures("workers_start_early")
@pytest.mark.parametrize("optimizer", ["SGD", "LBFGS"])
def test_processes_find_the_same_and_import_the_code_of_the_user(paths, tmp_path, optimizer):
    code = tmp_path / "mine.py"
    lines = [
        "import spacy",
        "from spacy_crf.features.presets import features",
        "spacy.registry.misc('mine.v1')(lambda: features(templates=['shape[0]', 'lower[-1..1]']))",
    ]
    code.write_text("\n".join(lines), encoding="utf8")
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    config["components"]["crf_ner"]["model"]["emissions"]["features"] = {"@misc": "mine.v1"}
    tune_command.import_code(code)
    values = {"l1": [0.0, 0.1], "l2": [0.1, 1.0]}
    options = {"optimizers": [optimizer], "folds": 2, "iterations": 5, "code": code}
    found = [tune(config, values, workers=workers, **options)[1] for workers in (1, 2)]
    one, two = ([trial._replace(seconds=0.0) for trial in trials] for trials in found)
    assert len(one) == 4 and one == two


@pytest.mark.parametrize("folds", [1, 2])
def test_schemes_are_tried(paths, folds, folds_seen):
    config = load_config(CONFIG, overrides=paths)
    _, trials = tune(config, {"l2": [0.1, 1.0]}, schemes=["IO", "BIO"], folds=folds, iterations=20)
    assert [(fold.scheme, fold.number) for fold in folds_seen] == [
        (scheme, n) for scheme in ("IO", "BIO") for n in range(folds)
    ]
    assert [trial.candidate.scheme for trial in trials] == ["IO", "IO", "BIO", "BIO"]
    assert settings(trials) == [{"l2": 0.1}, {"l2": 1.0}] * 2
    assert trials[0].n_weights < trials[2].n_weights


def test_the_best_scheme_is_written(paths, tmp_path, monkeypatch):
    scores = {"BIO": 0.9, "BILUO": 0.8}
    monkeypatch.setattr(tune_command._Fold, "_score", lambda fold: scores[fold.scheme])
    result = run(paths, "--schemes", "BILUO, BIO", "--try", "l2=0.1", "--output", tmp_path / "b.cfg")
    assert result.exit_code == 0, result.output
    assert "BILUO" in result.output
    assert load_config(tmp_path / "b.cfg")["components"]["crf_ner"]["scheme"] == "BIO"


@pytest.mark.parametrize("config, scheme", [("crf_ner", "BIOO"), ("crf_tagger", "BIO"), ("semicrf_ner", "BIO")])
def test_schemes_that_there_are_not(paths, config, scheme):
    config = load_config(CONFIG.parent / f"{config}.cfg", overrides=paths)
    with pytest.raises(ValueError, match=f"CRF931.*{scheme}.*BILUO"):
        tune(config, schemes=[scheme])


def words_of(names):
    return {name.removeprefix("lower[0]=") for name in names if name.startswith("lower[0]=") and "|" not in name}


def feature_names(fold):
    return set(fold._pipe.sparse_features.states.index.names())


def test_folds_know_nothing_of_what_they_hold_out(paths, folds_seen):
    config = load_config(CONFIG, overrides=paths, interpolate=True)
    _, trials = tune(config, {"l1": [0.0, 0.1], "l2": [0.1, 1.0]}, folds=3, iterations=5)
    assert len(folds_seen) == 3 and len(trials) == 4
    for fold in folds_seen:
        sides = fold._learned, fold._held_out
        learned, held_out = ({token.lower_ for example in side for token in example.x} for side in sides)
        assert held_out - learned
        assert words_of(feature_names(fold)) == learned


def test_labels_and_counts_are_those_of_the_fold(tmp_path, paths, folds_seen):
    """A label of one document and a word of two are met in some folds only."""
    nlp = spacy.blank("en")
    texts = ["[Bob](PER) runs .", "[Ann](PER) runs to [Rome](GPE) .", "[Ann](PER) saw [Bob](PER) ."]
    DocBin(docs=[ner_doc(nlp, text) for text in texts]).to_disk(tmp_path / "train.spacy")
    minimum = {"components.crf_ner.model.emissions.min_count": 2}
    tune(load_config(CONFIG, overrides={**paths, **minimum}), {"l2": [0.1]}, folds=3, iterations=5)
    found = [(fold._pipe.labels, any("runs" in name for name in feature_names(fold))) for fold in folds_seen]
    assert sorted(found) == [(("GPE", "PER"), False), (("GPE", "PER"), True), (("PER",), False)]


def test_folds_are_those_of_fit(paths, folds_seen):
    tune(load_config(CONFIG, overrides=paths), {"l2": [1.0]}, folds=3, iterations=1)
    of_texts = draw_folds([ner_doc(spacy.blank("en"), text) for text in NER_TEXTS], 3).fold_of
    for n, fold in enumerate(folds_seen):
        held_out = [example.reference.text for example in fold._held_out]
        texts = [ner_doc(spacy.blank("en"), text).text for text in NER_TEXTS]
        assert held_out == [text for text, held_by in zip(texts, of_texts) if held_by == n]


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
    _, [trial] = tune(config, {"l2": [0.01]}, folds=2, iterations=30)
    assert trial.score > 0.1  # 0 without tags: all words look alike then


@pytest.mark.parametrize("folds", [1, 2])
def test_what_initialize_is_given_counts(tmp_path, paths, folds, folds_seen):
    (tmp_path / "cities.txt").write_text("Rome\nNew York\n")
    config = load_config(CONFIG, overrides=paths)
    config["components"]["crf_ner"]["model"]["emissions"]["features"]["extra"] = ["in:cities[0]"]
    config["initialize"]["components"]["crf_ner"] = {
        "labels": ["ORG", "PER", "GPE", "NEW"],
        "gazetteers": {"cities": str(tmp_path / "cities.txt")},
    }
    tune(config, {"l2": [1.0]}, folds=folds, iterations=2)
    assert [fold._pipe.labels for fold in folds_seen] == [("ORG", "PER", "GPE", "NEW")] * folds
    assert all(any(name.startswith("in:cities[0]=") for name in feature_names(fold)) for fold in folds_seen)


def test_optimizers_that_do_not_fit_the_loss_are_refused_before_any_training(paths, folds_seen):
    config = load_config(CONFIG, overrides=paths)
    with pytest.raises(ValueError, match="CRF210"):
        tune(config, optimizers=["LBFGS", "AveragedPerceptron"])
    assert not folds_seen


def test_scores_that_count_nothing_are_refused(paths):
    config = load_config(CONFIG, overrides=paths)
    config["training"]["score_weights"] = {"cats_macro_f": 1.0, "ents_f": None}
    with pytest.raises(ValueError, match=r"CRF722.*ents_f"):
        tune(config, {"l2": [1.0]}, iterations=2)


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
    tune_command.use(config, "crf_ner", Candidate(None, LBFGS, (("l1", 0.1), ("l2", 0.2))))
    blocks = {"training": config["training"]["optimizer"], "component": config["components"]["crf_ner"]["optimizer"]}
    changed = blocks.pop(block)
    assert changed["@optimizers"] == "spacy_crf.LBFGS.v1" and (changed["l1"], changed["l2"]) == (0.1, 0.2)
    assert changed.get("memory") == (own or {}).get("memory")
    assert blocks.popitem()[1] in (None, {"@optimizers": optimizer})
    full = config["training"]["batcher"]["@batchers"] == "spacy_crf.full_batch.v1"
    assert full == (block == "training" and optimizer == "Adam.v1")


@pytest.mark.parametrize(
    "option, says",
    [
        (["--try", "l2=-1"], "CRF020.*LBFGS.*l2"),
        (["--try", "l1=much"], "CRF020.*l1=much.*l2=0.1,1"),
        (["--try", "l1="], "CRF020.*l1="),
        (["--try", "0.1"], "CRF020.*0.1"),
        (["--try", "rate=1"], "CRF020.*rate.*max_line_search"),
        (["--optimizer", "Adam"], "CRF020.*Adam.*AROW"),
        (["--folds", "0"], "CRF020"),
        (["--folds", "1000"], "CRF020"),
        (["--iterations", "0"], "CRF020"),
        (["--component", "x"], "CRF710"),
    ],
)
def test_what_makes_no_sense_is_told(paths, option, says):
    result = run(paths, *option)
    assert result.exit_code == 1
    assert re.search(says, " ".join(result.output.split()))
