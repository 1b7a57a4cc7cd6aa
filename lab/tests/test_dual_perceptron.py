"""The dual perceptron: with a linear kernel against the perceptron of features, step for step."""

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf_lab import dual_perceptron
from spacy_crf_lab.dual_perceptron import DualPerceptron
from tests.util import entities, ner_examples, plain, tag_examples

from .test_kernel_emissions import ATOMS, XOR, layer_of, made

PERCEPTRON = {"loss": {"@losses": "spacy_crf.Perceptron.v1"}}
MARGIN = {"loss": {"@losses": "spacy_crf.MaxMargin.v1"}}


def primal(of_pipe):
    nlp = spacy.blank("en")
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": ATOMS, "possible_states": True}
    model = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}
    return nlp, nlp.add_pipe("crf_ner", config={"model": model, **of_pipe})


@pytest.mark.parametrize("of_pipe", [PERCEPTRON, MARGIN])
@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("most", [0, 5000])
def test_a_linear_kernel_makes_it_the_perceptron(of_pipe, averages, most, monkeypatch):
    monkeypatch.setattr(dual_perceptron, "_MATRIX", most)
    pairs = []
    for (nlp, pipe), optimizer in (
        (primal(of_pipe), AveragedPerceptron(use_averages=averages, seed=3)),
        (made(kernel="linear", of_pipe=of_pipe), DualPerceptron(use_averages=averages, seed=3)),
    ):
        examples = ner_examples(nlp)
        nlp.initialize(lambda examples=examples: examples)
        docs, steps = [example.predicted for example in examples], []
        for _ in range(6):
            loss = nlp.update(examples, sgd=optimizer)["crf_ner"]
            scores = [pipe.model.predict(docs)]
            if averages:
                with nlp.use_params(optimizer.averages):
                    pipe.clear_scores()
                    scores.append(pipe.model.predict(docs))
                pipe.clear_scores()
            steps.append((loss, scores))
        pairs.append(steps)
    assert pairs[0][0][0] > 0.0
    for (loss, scores), (other_loss, other_scores) in zip(*pairs):
        assert loss == other_loss
        for one, other in zip(scores, other_scores):
            for name in ("emissions", "transitions", "first", "last"):
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
        np.testing.assert_array_equal(scores[0].emissions, other_scores[0].emissions)  # whole numbers


def trained(*args, steps=10, examples=ner_examples, budget=0, **settings):
    nlp, pipe = made(*args, of_pipe=PERCEPTRON, **settings)
    examples = examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = DualPerceptron(budget=budget)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, pipe, optimizer


def test_the_tokens_of_mistakes_are_the_basis(tmp_path):
    nlp, pipe, _ = trained()
    examples = ner_examples(nlp)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    layer, kernel = layer_of(pipe)
    assert layer.get_ref("output").get_param("W").shape == (len(pipe.tags()), len(kernel.basis))
    assert 0 < len(kernel.basis) < 40
    nlp.to_disk(tmp_path)
    docs = [plain(example.reference) for example in examples] + [Doc(nlp.vocab), Doc(nlp.vocab, words=["Bob"])]
    before = [entities(nlp(plain(doc))) for doc in docs]
    assert [entities(doc) for doc in spacy.load(tmp_path).pipe(map(plain, docs))] == before
    assert [entities(doc) for doc in nlp.pipe(map(plain, docs), n_process=2)] == before


@pytest.mark.parametrize("name", ["linear", "poly", "rbf"])
def test_kernels_solve_exclusive_or(name):
    features = {**ATOMS, "templates": ["lower[0]", "lower[1]"]}
    nlp, _, _ = trained(
        "MaxEnt", "crf_tagger", features=features, kernel=name, steps=40, examples=lambda nlp: tag_examples(nlp, XOR)
    )
    right = [
        token.tag_ == gold.tag_ for e in tag_examples(nlp, XOR) for token, gold in zip(nlp(e.predicted), e.reference)
    ]
    assert all(right) == (name != "linear")


def test_a_budget_bounds_the_basis():
    _, pipe, optimizer = trained(budget=15)
    counters = optimizer._runs["crf_ner"].values["counters"]
    assert 0 < np.count_nonzero(counters.any(axis=1)) <= 15
    assert len(layer_of(pipe)[1].basis) <= 15
    with pytest.raises(ValueError, match=r"CRF020: DualPerceptron: budget = 2 .*number of tags of 'crf_ner', 13"):
        trained(budget=2)


def test_training_resumes():
    nlp, pipe, optimizer = trained(steps=2)
    data = b"".join(optimizer.checkpoint("crf_ner"))
    other_nlp, other_pipe, _ = trained(steps=0)
    examples, other = ner_examples(nlp), DualPerceptron()
    theirs = ner_examples(other_nlp)
    objective = other_pipe.training.objective(other, theirs)
    assert other.resume(objective, data, key="crf_ner") == 2
    nlp.update(examples, sgd=optimizer)
    other_nlp.update(theirs, sgd=other)
    docs = [example.predicted for example in examples]
    np.testing.assert_array_equal(*[p.model.predict(docs).emissions for p in (pipe, other_pipe)])


def test_other_texts_begin_anew(caplog):
    nlp, _, optimizer = trained(steps=1)
    nlp.update(ner_examples(nlp)[:3], sgd=optimizer)
    assert "CRFW620" in caplog.text


def test_other_optimizers_have_to_read_the_texts_again():
    nlp, pipe = made(of_pipe={"loss": {"@losses": "spacy_crf.MaxMargin.v1"}})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=DualPerceptron())
    objective = pipe.training.corpus.objective
    with pytest.raises(ValueError, match="CRF622"):
        objective.evaluate(np.zeros(objective.layout[0]))


def test_models_without_a_kernel_are_refused():
    nlp, _ = primal(PERCEPTRON)
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF347.*DualPerceptron.*the model of 'crf_ner'"):
        nlp.update(examples, sgd=DualPerceptron())
    nlp, _ = made()
    with pytest.raises(ValueError, match="CRF210"):
        nlp.initialize(lambda: examples, sgd=DualPerceptron())
        nlp.update(ner_examples(nlp), sgd=DualPerceptron())
