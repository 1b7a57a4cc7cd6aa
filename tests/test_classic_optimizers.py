"""Newton, preconditioned conjugate gradients, iterative scaling and cutting planes, on the components: L-BFGS finds the same."""

from functools import partial

import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose
from spacy.training import Example

from spacy_crf.lab.newton import Newton
from spacy_crf.losses.clamped import LogLikelihood, SoftmaxMargin
from spacy_crf.losses.uses import Variances
from spacy_crf.optimizers.lbfgs import LBFGS, ConjugateGradient

from .test_online import make_pipe, objectives
from .test_shards import Here, by, trained
from .test_shards import make as make_shards
from .util import ner_examples, tag_examples

L2 = 0.1
SETTINGS = {"l2": L2, "tolerance": 1e-7, "delta": 0.0, "iterations_per_step": 2000}
SMOOTH = {
    "Newton": Newton,
    "preconditioned": partial(ConjugateGradient, preconditioner="diagonal"),
    "mixed": partial(ConjugateGradient, preconditioner="diagonal", mixed=True),
}
TEXTS = ["a fine day", "a bad day", "what a fine fine film", "bad bad film", "fine"]


def text_examples(nlp):
    return [
        Example.from_dict(nlp.make_doc(text), {"cats": {"good": float("fine" in text), "bad": float("bad" in text)}})
        for text in TEXTS
    ]


FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["lower[-1..1]", "shape[0]"]}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}
CLIQUES = {"words": {"@misc": "spacy_crf.RepeatedWords.v1"}}
PIPES = {
    "chain": ("crf_ner", {}, ner_examples),
    "segments": ("semicrf_ner", {}, ner_examples),
    "second order": (
        "crf_tagger",
        {"model": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 2, "emissions": EMISSIONS}},
        tag_examples,
    ),
    "graph": (
        "crf_ner",
        {"model": {"@architectures": "spacy_crf.FactorGraph.v1", "emissions": EMISSIONS, "cliques": CLIQUES}},
        ner_examples,
    ),
    "texts": ("crf_textcat", {}, text_examples),
}


def minimum(structure, optimizer, **loss):
    """The objective of a component where the optimizer stops, and its weights."""
    component, config, read = PIPES[structure]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(component, config={**config, **loss})
    examples = read(nlp)
    nlp.initialize(lambda: examples, sgd=optimizer)
    value = nlp.update(examples, sgd=optimizer)[component]
    assert optimizer.stop_reason(component) is not None
    return value, pipe.training.frame().weights()


@pytest.mark.issue(39)
@pytest.mark.parametrize("structure", PIPES)
@pytest.mark.parametrize("make", SMOOTH.values(), ids=SMOOTH)
def test_smooth_ones_find_what_lbfgs_finds(structure, make):
    expected, weights = minimum(structure, LBFGS(**SETTINGS))
    value, found = minimum(structure, make(**SETTINGS))
    assert value == pytest.approx(expected, rel=1e-5)
    assert_allclose(found, weights, atol=1e-3)


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("loss", [LogLikelihood(), SoftmaxMargin()])
def test_variances_are_close_to_the_second_derivatives(component, loss):
    _, pipe, examples = make_pipe(LogLikelihood(), component)
    objective, _ = objectives(pipe, examples)
    weights = np.random.default_rng(0).normal(scale=0.3, size=len(objective.weights()))
    value, found = objective.ask(Variances(), weights)
    rows = 1e-4 * np.eye(len(weights))
    near = [objective.evaluate(weights + row)[1] - objective.evaluate(weights - row)[1] for row in rows]
    exact = np.diag(near) / 2e-4
    assert np.isfinite(value) and (found >= 0).all()
    assert np.corrcoef(found, exact)[0, 1] > 0.85


def test_mixed_needs_a_preconditioner():
    with pytest.raises(ValueError, match="CRF020: ConjugateGradient: mixed = True"):
        ConjugateGradient(mixed=True)
    with pytest.raises(ValueError, match="CRF020: ConjugateGradient: preconditioner = 'full'"):
        ConjugateGradient(preconditioner="full")


def test_shards_have_no_preconditioner(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    optimizer = {"@optimizers": "spacy_crf.ConjugateGradient.v1", "preconditioner": "diagonal"}
    nlp, sgd = make_shards(tmp_path, optimizer)
    with pytest.raises(ValueError, match=r"CRF347: ConjugateGradient can't train the shards of 'crf_ner'"):
        trained(nlp, sgd)
    optimizer = {"@optimizers": "spacy_crf.Newton.v1"}  # it does without
    trained(*make_shards(tmp_path, optimizer), steps=1)
