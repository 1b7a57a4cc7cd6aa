"""Every optimizer and every loss trains three steps under `spacy train`'s own loop, as a change to a config."""

from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from .util import NER_TEXTS, ner_doc

CONFIGS = Path(__file__).parents[1] / "configs"
# Optimizer, its settings, loss, and whether three steps are enough
VARIATIONS = [
    ("spacy_crf.LBFGS.v1", {"l1": 0.1}, "spacy_crf.LogLikelihood.v1", True),
    ("spacy_crf.LBFGS.v1", {}, "spacy_crf.SoftmaxMargin.v1", True),
    ("spacy_crf.SGD.v1", {"l1": 0.01}, "spacy_crf.SoftmaxMargin.v1", False),
    ("spacy_crf.AdaGrad.v1", {}, "spacy_crf.LogLikelihood.v1", False),
    ("spacy_crf.AveragedPerceptron.v1", {}, "spacy_crf.Perceptron.v1", True),
    ("spacy_crf.BatchPerceptron.v1", {}, "spacy_crf.MaxMargin.v1", False),
    ("spacy_crf.PassiveAggressive.v1", {"type": 2}, "spacy_crf.Perceptron.v1", True),
    ("spacy_crf.AROW.v1", {}, "spacy_crf.MaxMargin.v1", True),
    ("Adam.v1", {}, "spacy_crf.LogLikelihood.v1", False),
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
    config["training"]["optimizer"] = {"@optimizers": optimizer, **settings}
    config["training"]["max_steps"] = 3
    if optimizer == "Adam.v1":  # it learns from one batch after the other
        config["training"]["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
        config["training"]["max_epochs"] = 0
    config["components"][component]["loss"] = {"@losses": loss}
    pipeline = init_nlp(config.interpolate())
    (tmp_path / "out").mkdir()
    train(pipeline, tmp_path / "out", use_gpu=-1)
    return spacy.load(tmp_path / "out" / "model-last")


@pytest.mark.parametrize("optimizer, settings, loss, enough", VARIATIONS)
def test_trains_three_steps(optimizer, settings, loss, enough, tmp_path):
    trained = train_three_steps("crf_ner", optimizer, settings, loss, tmp_path)
    assert isinstance(trained("Ann Lee lives in New York .").ents, tuple)
    if enough:
        assert [ent.label_ for ent in trained("Bob left Paris for Acme Corp .").ents] == ["PER", "GPE", "ORG"]
