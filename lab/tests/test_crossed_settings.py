"""`tests.pipeline.test_crossed_settings` with models, losses and decoding of the lab."""

import random

import pytest

from tests.pipeline.test_crossed_settings import draw, draw_texts, hold_all


def draw_model(seed):
    """Settings of the plugin, with a model of the lab where one fits, and maybe a loss of the lab."""
    factory, config, initialize = draw(seed)
    _draw_hidden(factory, config, random.Random(f"hidden {seed}"))
    _draw_experts(factory, config, random.Random(f"experts {seed}"))
    rng = random.Random(f"loss {seed}")
    if {"loss", "constraints", "second_stage"}.isdisjoint(config) and rng.random() < 0.5:
        config["loss"] = {"@losses": f"spacy_crf_lab.{rng.choice(['PseudoLikelihood', 'Piecewise'])}.v1"}
    return factory, config, initialize


def _draw_hidden(factory, config, rng):
    """Several states for each tag, where the architecture is the chain without an encoder."""
    model = config["model"]
    if (
        model["@architectures"] != "spacy_crf.LinearChain.v1"
        or "tok2vec" in model
        or "SoftLabels" in str(config.get("loss"))
    ):
        return
    if rng.random() < 0.5:
        labels = ["NN", "VB"] if factory == "crf_tagger" else ["PER", "O"]
        hidden = rng.choice([2, 3, {labels[0]: 2}, {labels[0]: 3, labels[1]: 2}])
        model.update({"@architectures": "spacy_crf_lab.LatentChain.v1", "hidden": hidden, "spread": 0.2, "seed": 1})
        model["restarts"] = rng.choice([1, 1, 2])
        config["decoder"] = rng.choice([config.get("decoder"), {"@misc": "spacy_crf_lab.labelling.v1"}])


def _draw_experts(factory, config, rng):
    """A pool of chains in place of one, where the features are those that experts can share out."""
    model = config["model"]
    emissions = str(model.get("emissions"))
    is_chain = model["@architectures"] == "spacy_crf.LinearChain.v1" and "tok2vec" not in model
    if not is_chain or "Hashed" in emissions or "vector[" in emissions or "SoftLabels" in str(config.get("loss")):
        return
    if rng.random() < 0.5:
        in_training = config.get("constraints", {}).get("in_training")
        kinds = ["random", "positions"] if factory == "crf_tagger" or in_training else ["random", "positions", "labels"]
        model.update({"@architectures": "spacy_crf_lab.OpinionPool.v1", "experts": rng.choice(kinds), "holdout": 0.4})
        model["weights"] = rng.choice(["likelihood", "likelihood", "equal"])


def draw_model_of_texts(seed):
    factory, config, initialize = draw_texts(2 * seed)  # those with a bag of words
    rng, emissions = random.Random(f"texts {seed}"), {"emissions": config["model"]["emissions"]}
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
        config = {**config, "multilabel": True}
    return factory, {**config, "model": {**model, **emissions}}, initialize


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(6))
def test_everything_holds_of_settings_together(seed, tmp_path):
    hold_all(draw_model(seed), tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_everything_holds_of_settings_of_texts(seed, tmp_path):
    hold_all(draw_model_of_texts(seed), tmp_path)
