"""Weights that training can't tell apart are one variable: the same minimization in fewer of them."""

from collections import defaultdict

import numpy as np
import pytest
import spacy
from spacy.util import registry

from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.objective import CorpusObjective, TiedObjective
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.util import NER_TEXTS, ner_examples, tag_examples

TAG_FEATURES = {
    "@misc": "spacy_crf.features.v1",
    "templates": ["lower[-1..1]", "suffix3[0]", "lower[-1]|lower[0]"],
    "transitions": ["lower[0]"],
}
CASES = {
    "crf_ner": (ner_examples, {}),
    "crf_tagger": (tag_examples, {"model": {"emissions": {"features": TAG_FEATURES, "possible_states": True}}}),
    "semicrf_ner": (ner_examples, {}),
}


def _number_of_letters(doc):
    return [{"letters": len(token), token.lower_: 1.0, "twice": token.i} for token in doc]


@registry.misc("tests.letters")
def _letters():
    return _number_of_letters


WITH_ITEMS = {
    "@misc": "spacy_crf.features.v1",
    "templates": ["fn:letters[0]", "lower[0]"],
    "functions": {"letters": {"@misc": "tests.letters"}},
}


def make(factory, **config):
    read, settings = CASES[factory]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={**settings, **config})
    examples = read(nlp)
    nlp.initialize(lambda: examples)
    return pipe, [pipe.training.data(examples)]


def both(factory, **config):
    pipe, corpus = make(factory, **config)
    return (
        pipe,
        CorpusObjective(pipe.model, LogLikelihood(), corpus),
        TiedObjective(pipe.model, LogLikelihood(), corpus),
    )


def spread(pipe, tied, variables):
    """The weights of the model that variables stand for, without its rounding to float32."""
    tied.assign(variables)
    return CorpusObjective(pipe.model, LogLikelihood(), []).weights()


@pytest.mark.parametrize("factory", CASES)
def test_it_is_the_same_function(factory):
    pipe, free, tied = both(factory)
    rng = np.random.default_rng(0)
    assert len(tied.weights()) < len(free.weights())
    variables, direction = rng.normal(size=(2, len(tied.weights()))).astype(np.float32).astype(np.float64)
    weights, along = spread(pipe, tied, variables), spread(pipe, tied, direction)
    value, gradient = tied.evaluate(variables)
    expected, of_weights = free.evaluate(weights)
    assert value == pytest.approx(expected, rel=1e-6)
    # Lengths and angles are those of all weights
    assert gradient @ direction == pytest.approx(of_weights @ along, rel=1e-5)
    assert gradient @ gradient == pytest.approx(of_weights @ of_weights, rel=1e-5)
    assert variables @ direction == pytest.approx(weights @ along, rel=1e-5, abs=1e-5)
    assert np.sqrt(tied.copies) @ np.abs(variables) == pytest.approx(np.abs(weights).sum(), rel=1e-6)
    assert tied.copies.sum() == len(weights)
    step = 1e-5
    ahead, behind = (tied.evaluate(variables + sign * step * direction)[0] for sign in (1, -1))
    assert (ahead - behind) / (2 * step) == pytest.approx(gradient @ direction, rel=1e-5)


def test_those_are_tied_that_always_stand_together():
    """By what each feature's tokens are, in plain Python."""
    pipe, free, tied = both("crf_ner")
    features = free.features[0]
    docs = [example.predicted for example in ner_examples(spacy.blank("en"))]
    rows, _, starts = features.look_up(docs).features["states"]
    tokens = defaultdict(list)
    for token in range(len(starts) - 1):
        for row in rows[starts[token] : starts[token + 1]].tolist():
            tokens[row].append(token)
    table = features.states
    pairs = zip(table.rows_of_pairs().tolist(), table.pair_columns.tolist())
    different = {(column, *tokens[row]) for row, column in pairs}
    shared = sum(int(mask.sum()) for mask in pipe.model.attrs["node"].weighed(pipe.model).values())
    assert len(tied.weights()) == len(different) + shared


@pytest.mark.parametrize("factory", CASES)
@pytest.mark.parametrize("l1", [0.0, 0.02])
def test_optimizers_go_the_same_way(factory, l1):
    found = []
    for view in (CorpusObjective, TiedObjective):
        pipe, corpus = make(factory)
        objective, optimizer = view(pipe.model, LogLikelihood(), corpus), LBFGS(l1=l1, l2=0.1, iterations_per_step=4)
        values = [optimizer.step(objective, key="") for _ in range(3)]
        found.append((values, CorpusObjective(pipe.model, LogLikelihood(), []).weights()))
    (values, weights), (of_tied, weights_of_tied) = found
    assert of_tied == pytest.approx(values, rel=1e-9)
    assert weights_of_tied == pytest.approx(weights, abs=1e-5)
    assert (l1 > 0) == (np.count_nonzero(weights_of_tied) < len(weights))


def test_features_with_values():
    """Numbers make features differ that stand at the same tokens."""
    pipe, free, tied = both("crf_ner", model={"emissions": {"features": WITH_ITEMS}})
    variables = np.random.default_rng(1).normal(size=len(tied.weights()))
    value, gradient = tied.evaluate(variables)
    expected, of_weights = free.evaluate(spread(pipe, tied, variables))
    assert value == pytest.approx(expected, rel=1e-5)
    assert gradient @ gradient == pytest.approx(of_weights @ of_weights, rel=1e-4)
    assert len(variables) < len(of_weights)


def test_weights_that_differ_are_not_tied():
    """Of a model that is trained further without what it learned from."""
    pipe, corpus = make("crf_ner")
    emissions = pipe.model.get_ref("emissions")
    weights = np.arange(len(emissions.get_param("states")), dtype=np.float32)
    emissions.set_param("states", weights)
    tied = TiedObjective(pipe.model, LogLikelihood(), corpus)
    assert (tied.copies == 1).all()
    tied.assign(tied.weights())
    assert np.array_equal(emissions.get_param("states"), weights)


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_bits_are_the_same_for_any_number_of_threads(factory, monkeypatch):
    monkeypatch.setattr("spacy_crf.models.corpus._BLOCK", 7)
    nlp = spacy.blank("en")
    ner = nlp.add_pipe(factory)
    examples = ner_examples(nlp, NER_TEXTS * 2)
    nlp.initialize(lambda: examples)
    found = set()
    for number in ("1", "2", "3", "9"):
        monkeypatch.setenv("SPACY_CRF_THREADS", number)
        blocks = ner.training.blocks(examples)
        tied = TiedObjective(ner.model, ner.loss, (ner.training.data(block) for block in blocks))
        value, gradient = tied.evaluate(np.linspace(-1, 1, len(tied.weights())))
        found.add((tied.signature, value, gradient.tobytes(), tied.copies.tobytes()))
    assert len(found) == 1
