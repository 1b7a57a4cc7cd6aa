"""Every optimizer and every loss trains three steps under `spacy train`'s own loop, as a change to a config."""

from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from .util import NER_TEXTS, ner_doc

CONFIG = Path(__file__).parents[1] / "configs" / "crf_ner.cfg"
VARIATIONS = [
    ("LBFGS", {"l1": 0.1}, "LogLikelihood"),
    ("LBFGS", {}, "SoftmaxMargin"),
    ("LBFGS", {}, "PseudoLikelihood"),
    ("LBFGS", {}, "BesagPseudoLikelihood"),
    ("ConjugateGradient", {}, "Piecewise"),
    ("SGD", {"l1": 0.01}, "SoftmaxMargin"),
    ("AdaGrad", {}, "LogLikelihood"),
    ("AveragedPerceptron", {}, "Perceptron"),
    ("VotedPerceptron", {}, "MaxMargin"),
    ("PassiveAggressive", {"type": 2}, "Perceptron"),
    ("AROW", {}, "MaxMargin"),
    ("ExponentiatedGradient", {}, "MaxMargin"),
    ("FrankWolfe", {}, "MaxMargin"),
    ("Adam", {}, "PseudoLikelihood"),
]


@pytest.mark.parametrize("optimizer,settings,loss", VARIATIONS)
def test_trains_three_steps(optimizer, settings, loss, tmp_path):
    nlp = spacy.blank("en")
    corpus = tmp_path / "tiny.spacy"
    DocBin(docs=[ner_doc(nlp, text) for text in NER_TEXTS]).to_disk(corpus)
    config = load_config(CONFIG, overrides={"paths.train": str(corpus), "paths.dev": str(corpus)}, interpolate=False)
    name = "Adam.v1" if optimizer == "Adam" else f"spacy_crf.{optimizer}.v1"
    config["training"]["optimizer"] = {"@optimizers": name, **settings}
    config["training"]["max_steps"] = 3
    config["components"]["crf_ner"]["loss"] = {"@losses": f"spacy_crf.{loss}.v1"}
    pipeline = init_nlp(config.interpolate())
    (tmp_path / "out").mkdir()
    train(pipeline, tmp_path / "out", use_gpu=-1)
    trained = spacy.load(tmp_path / "out" / "model-last")
    assert isinstance(trained("Ann Lee lives in New York .").ents, tuple)
    if loss != "BesagPseudoLikelihood" and optimizer in (
        "LBFGS",
        "ConjugateGradient",
        "AveragedPerceptron",
        "PassiveAggressive",
        "AROW",
    ):
        assert [ent.label_ for ent in trained("Bob left Paris for Acme Corp .").ents] == ["PER", "GPE", "ORG"]
