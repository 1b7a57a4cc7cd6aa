"""The plugin's fuzzer with models, losses, optimizers, decoding and configs of the lab."""

import random
from pathlib import Path

import pytest
from spacy.util import load_config

from tests.pipeline import test_fuzz as of_plugin
from tests.pipeline.test_fuzz import draw, draw_texts, hold_all

LOSSES = [f"spacy_crf_lab.{name}.v1" for name in ("PseudoLikelihood", "BesagPseudoLikelihood", "Piecewise")]
OPTIMIZERS = {
    "spacy_crf_lab.ConjugateGradient.v1": {
        "l2": 1.0,
        "preconditioner": "diagonal",
        "mixed": True,
        "max_line_search": 20,
    },
    "spacy_crf_lab.Newton.v1": {"l2": 1.0, "tolerance": 1e-5, "period": 10, "delta": 1e-5, "max_line_search": 20},
    "spacy_crf_lab.GIS.v1": {"l2": 1.0, "tolerance": 1e-5, "period": 10, "delta": 1e-5},
    "spacy_crf_lab.IIS.v1": {"l2": 1.0, "masses": 2, "period": 10, "delta": 1e-5},
    "spacy_crf_lab.ExponentiatedGradient.v1": {"l2": 1.0, "rate": 1.0, "gap_tolerance": 1e-3, "seed": 0},
    "spacy_crf_lab.FrankWolfe.v1": {"l2": 1.0, "gap_tolerance": 1e-3, "seed": 0},
    "spacy_crf_lab.CuttingPlane.v1": {"l2": 1.0, "gap_tolerance": 1e-3, "planes": 9},
}
MARGIN = {f"spacy_crf_lab.{name}.v1" for name in ("ExponentiatedGradient", "FrankWolfe", "CuttingPlane")}
CONFIGS = [
    path
    for path in sorted((Path(__file__).parents[1] / "configs").glob("*.cfg"))
    if len(load_config(path)["components"]) == 1
]


def draw_model(seed):
    """Settings of the plugin, with a model of the lab where one fits, and maybe a loss of the lab."""
    drawn = draw(seed)
    component = drawn["component"]
    _draw_hidden(component, random.Random(f"hidden {seed}"))
    _draw_experts(component, random.Random(f"experts {seed}"))
    rng = random.Random(f"loss {seed}")
    if {"loss", "constraints", "second_stage"}.isdisjoint(component) and rng.random() < 0.5:
        component["loss"] = {"@losses": f"spacy_crf_lab.{rng.choice(['PseudoLikelihood', 'Piecewise'])}.v1"}
    return drawn


def _draw_hidden(component, rng):
    """Several states for each tag, where the architecture is the chain without an encoder."""
    model = component["model"]
    if (
        model["@architectures"] != "spacy_crf.LinearChain.v1"
        or "tok2vec" in model
        or "SoftLabels" in str(component.get("loss"))
    ):
        return
    if rng.random() < 0.5:
        labels = ["NN", "VB"] if component["factory"] == "crf_tagger" else ["PER", "O"]
        hidden = rng.choice([2, 3, {labels[0]: 2}, {labels[0]: 3, labels[1]: 2}])
        model.update({"@architectures": "spacy_crf_lab.LatentChain.v1", "hidden": hidden, "spread": 0.2, "seed": 1})
        model["restarts"] = rng.choice([1, 1, 2])
        component["decoder"] = rng.choice([component.get("decoder"), {"@misc": "spacy_crf_lab.labelling.v1"}])


def _draw_experts(component, rng):
    """A pool of chains in place of one, where the features are those that experts can share out."""
    model = component["model"]
    emissions = str(model.get("emissions"))
    is_chain = model["@architectures"] == "spacy_crf.LinearChain.v1" and "tok2vec" not in model
    if not is_chain or "Hashed" in emissions or "vector[" in emissions or "SoftLabels" in str(component.get("loss")):
        return
    if rng.random() < 0.5:
        in_training = component.get("constraints", {}).get("in_training")
        no_labels = component["factory"] == "crf_tagger" or in_training
        kinds = ["random", "positions"] if no_labels else ["random", "positions", "labels"]
        model.update({"@architectures": "spacy_crf_lab.OpinionPool.v1", "experts": rng.choice(kinds), "holdout": 0.4})
        model["weights"] = rng.choice(["likelihood", "likelihood", "equal"])
        if model["weights"] == "likelihood":
            component["optimizer"] = {"@optimizers": "spacy_crf_lab.PoolLBFGS.v1", "l2": 0.1, "iterations_per_step": 5}


def draw_model_of_texts(seed):
    drawn = draw_texts(2 * seed)  # those with a bag of words
    rng, component = random.Random(f"texts {seed}"), drawn["component"]
    if seed % 3 == 0:
        hidden, unit = rng.choice([1, 2, 3]), rng.choice(["token", "sent"])
        model = {"@architectures": "spacy_crf_lab.HiddenChain.v1", "hidden": hidden, "unit": unit}
        model |= {"shared": rng.random() < 0.5, "restarts": rng.choice([1, 2])}
    elif seed % 3 == 1:
        links = {"links": {"@misc": "spacy_crf_lab.LinkedDocuments.v1"}}
        model = {"@architectures": "spacy_crf_lab.LinkedTexts.v1", "cliques": links}
    else:
        pairs = {"labels": {"@misc": "spacy_crf_lab.Hierarchy.v1", "parents": {"TRAVEL": "WORK"}}}
        model = {"@architectures": "spacy_crf_lab.LabelGraph.v1", "cliques": pairs}
        component["multilabel"] = True
    component["model"] = {**model, "emissions": component["model"]["emissions"]}
    return drawn


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(6))
def test_everything_holds_of_settings_together(seed, tmp_path):
    hold_all(draw_model(seed), tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_everything_holds_of_settings_of_texts(seed, tmp_path):
    hold_all(draw_model_of_texts(seed), tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(4))
def test_configs_with_mistakes_work_or_say_what_is_wrong(seed, tmp_path, monkeypatch):
    for name, table in {"LOSSES": LOSSES, "OPTIMIZERS": OPTIMIZERS, "MARGIN": MARGIN, "CONFIGS": CONFIGS}.items():
        monkeypatch.setattr(of_plugin, name, table)
    of_plugin.test_configs_with_mistakes_work_or_say_what_is_wrong(seed, tmp_path)
