"""Every optimizer and every loss trains three steps under `spacy train`'s own loop, as a change to a config."""

import logging
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from .util import NER_TEXTS, ner_doc, ner_examples

CONFIGS = Path(__file__).parents[1] / "configs"
VARIATIONS = [
    ("LBFGS", {"l1": 0.1}, "LogLikelihood"),
    ("LBFGS", {}, "SoftmaxMargin"),
    ("LBFGS", {}, "PseudoLikelihood"),
    ("LBFGS", {}, "BesagPseudoLikelihood"),
    ("ConjugateGradient", {}, "Piecewise"),
    ("ConjugateGradient", {"preconditioner": "diagonal", "mixed": True}, "LogLikelihood"),
    ("Newton", {}, "PseudoLikelihood"),
    ("LaplacePropagation", {}, "LogLikelihood"),
    ("LaplacePropagation", {"method": "diagonal_laplace"}, "LogLikelihood"),
    ("GIS", {}, "LogLikelihood"),
    ("IIS", {"masses": 3}, "SoftmaxMargin"),
    ("SGD", {"l1": 0.01}, "SoftmaxMargin"),
    ("AdaGrad", {}, "LogLikelihood"),
    ("AveragedPerceptron", {}, "Perceptron"),
    ("BatchPerceptron", {}, "MaxMargin"),
    ("PassiveAggressive", {"type": 2}, "Perceptron"),
    ("AROW", {}, "MaxMargin"),
    ("ExponentiatedGradient", {}, "MaxMargin"),
    ("FrankWolfe", {}, "MaxMargin"),
    ("SMO", {}, "MaxMargin"),
    ("CuttingPlane", {}, "MaxMargin"),
    ("Adam", {}, "PseudoLikelihood"),
]


def train_three_steps(component, optimizer, settings, loss, tmp_path):
    nlp = spacy.blank("en")
    corpus = tmp_path / "tiny.spacy"
    DocBin(docs=[ner_doc(nlp, text) for text in NER_TEXTS]).to_disk(corpus)
    config = load_config(
        CONFIGS / f"{component}.cfg",
        overrides={"paths.train": str(corpus), "paths.dev": str(corpus)},
        interpolate=False,
    )
    name = "Adam.v1" if optimizer == "Adam" else f"spacy_crf.{optimizer}.v1"
    config["training"]["optimizer"] = {"@optimizers": name, **settings}
    config["training"]["max_steps"] = 3
    if optimizer == "Adam":  # it learns from one batch after the other
        config["training"]["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
        config["training"]["max_epochs"] = 0
    config["components"][component]["loss"] = {"@losses": f"spacy_crf.{loss}.v1"}
    pipeline = init_nlp(config.interpolate())
    (tmp_path / "out").mkdir()
    train(pipeline, tmp_path / "out", use_gpu=-1)
    return spacy.load(tmp_path / "out" / "model-last")


@pytest.mark.parametrize("optimizer,settings,loss", VARIATIONS)
def test_trains_three_steps(optimizer, settings, loss, tmp_path):
    trained = train_three_steps("crf_ner", optimizer, settings, loss, tmp_path)
    assert isinstance(trained("Ann Lee lives in New York .").ents, tuple)
    if loss != "BesagPseudoLikelihood" and optimizer in (
        "LBFGS",
        "ConjugateGradient",
        "Newton",
        "AveragedPerceptron",
        "PassiveAggressive",
        "AROW",
    ):
        assert [ent.label_ for ent in trained("Bob left Paris for Acme Corp .").ents] == ["PER", "GPE", "ORG"]


@pytest.mark.parametrize("loss", ["PseudoLikelihood", "BesagPseudoLikelihood", "Piecewise"])
def test_segments_train_three_steps(loss, tmp_path):
    trained = train_three_steps("semicrf_ner", "LBFGS", {}, loss, tmp_path)
    assert [ent.label_ for ent in trained("Bob left Paris for Acme Corp .").ents] == ["PER", "GPE", "ORG"]


@pytest.mark.parametrize("optimizer", ["FrankWolfe", "ExponentiatedGradient", "SMO", "CuttingPlane"])
def test_users_read_the_duality_gap_where_it_ended(optimizer, caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf.MaxMargin.v1"}})
    examples = ner_examples(nlp)
    sgd = spacy.registry.optimizers.get(f"spacy_crf.{optimizer}.v1")(l2=1.0, gap_tolerance=0.2)
    nlp.initialize(lambda: examples, sgd=sgd)
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf.training"):
        while sgd.stop_reason("crf_ner") is None:
            nlp.update(examples, sgd=sgd)
        nlp.update(examples, sgd=sgd)  # says no more
    [said] = [r.message for r in caplog.records if "gap" in r.message and r.name == "spacy.spacy_crf.training"]
    assert f"gap {sgd.duality_gap('crf_ner'):.6f} is within gap_tolerance = 0.2" in said


def test_exponentiated_gradients_find_their_way_from_a_first_step_too_far():
    """A first step whatever the dual says put all mass at wrong labellings; rates then fell to 0, and 0 times -inf was NaN."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf.MaxMargin.v1"}})
    examples = ner_examples(nlp)
    sgd = spacy.registry.optimizers.get("spacy_crf_lab.ExponentiatedGradient.v1")(l2=0.1, epochs_per_step=100)
    nlp.initialize(lambda: examples, sgd=sgd)
    gaps = []
    for _n in range(2):
        nlp.update(examples, sgd=sgd)
        gaps.append(sgd.duality_gap("crf_ner"))
    assert gaps[1] < gaps[0] < 1.0
