"""A corpus that is read when the component is initialized: whatever the batch, every step is about all of it."""

import gc
import logging
import weakref
from itertools import islice

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from spacy.util import registry

from spacy_crf.pipeline.corpora import clock
from spacy_crf.pipeline.prepared import PreparedBatch
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, plain, tag_examples

EXAMPLES = {"crf_ner": ner_examples, "crf_tagger": tag_examples, "semicrf_ner": ner_examples}
LBFGS = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1, "iterations_per_step": 4}
OWLQN = {**LBFGS, "l1": 0.05}
PERCEPTRON = {"@optimizers": "spacy_crf.AveragedPerceptron.v1"}


def make(factory="crf_ner", optimizer=LBFGS, *, streamed=True, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=config)
    nlp.config["training"]["max_epochs"] = -1 if streamed else 0
    nlp.config["training"]["optimizer"] = dict(optimizer)
    return nlp, registry.resolve({"optimizer": optimizer})["optimizer"]


def initialize(nlp, read, name="crf_ner"):
    """As `spacy train` does it: the components themselves are shown the beginning only."""
    nlp.config["initialize"]["components"] = {name: {"corpus": {"@readers": "tests.reader"}}}
    registry.readers("tests.reader", func=lambda: read)
    nlp.initialize(lambda: islice(read(nlp), 2))
    return nlp.get_pipe(name)


def weights(nlp):
    [(_, pipe)] = [(name, pipe) for name, pipe in nlp.pipeline if hasattr(pipe, "model")]
    return {(node.name, name): node.get_param(name) for node in pipe.model.walk() for name in node.param_names}


def assert_same_weights(nlp, other):
    ours, theirs = weights(nlp), weights(other)
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert np.array_equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("factory", EXAMPLES)
@pytest.mark.parametrize("settings", [LBFGS, OWLQN], ids=["LBFGS", "OWLQN"])
def test_the_same_model_as_from_batches_of_the_whole_corpus(factory, settings):
    nlp, sgd = make(factory, settings, streamed=False)
    examples = EXAMPLES[factory](nlp)
    nlp.initialize(lambda: examples)
    expected = [nlp.update(examples, sgd=sgd)[factory] for _ in range(3)]
    lean, sgd = make(factory, settings)
    initialize(lean, lambda nlp: iter(EXAMPLES[factory](nlp)), factory)
    assert [lean.update(ner_examples(lean)[n : n + 1], sgd=sgd)[factory] for n in range(3)] == expected
    assert expected[2] < expected[0]
    assert_same_weights(lean, nlp)


@pytest.mark.parametrize("blocks", [1, 3])
def test_blocks_are_no_part_of_the_answer(blocks, monkeypatch):
    """Read three by three the corpus is the same function of the weights."""
    monkeypatch.setattr("spacy_crf.models.corpus._BLOCK", 7 if blocks == 3 else 1 << 13)
    nlp, _ = make()
    ner = initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    objective = ner.training.corpus.objective
    assert (objective.n_batches == 1) == (blocks == 1)
    value, gradient = objective.evaluate(np.linspace(-1, 1, len(objective.weights())))
    whole = PreparedBatch(ner, ner_examples(nlp), "objective").objective
    assert value == pytest.approx(whole.evaluate(np.linspace(-1, 1, len(objective.weights())))[0], rel=1e-12)
    assert np.isfinite(gradient).all()


RULES = {
    "@misc": "spacy_crf.constraints.v1",
    "in_training": True,
    "rules": [{"rule": "at_most", "label": "PER", "n": 2}],
}


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_rules_hold_in_training(factory):
    nlp, sgd = make(factory, streamed=False, constraints=RULES)
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    expected = [nlp.update(examples, sgd=sgd)[factory] for _ in range(2)]
    lean, sgd = make(factory, constraints=RULES)
    initialize(lean, lambda nlp: iter(ner_examples(nlp)), factory)
    assert [lean.update(examples[:1], sgd=sgd)[factory] for _ in range(2)] == expected
    assert_same_weights(lean, nlp)


@pytest.mark.parametrize("factory, config", [*((name, {}) for name in EXAMPLES), ("crf_ner", {"constraints": RULES})])
def test_no_doc_is_kept(factory, config):
    class Mark:
        pass

    marks = weakref.WeakSet()

    def read(nlp):
        for example in EXAMPLES[factory](nlp):
            for doc in (example.predicted, example.reference):
                doc.user_data["mark"] = mark = Mark()
                marks.add(mark)
            yield example

    nlp, sgd = make(factory, **config)
    initialize(nlp, read, factory)
    gc.collect()
    assert not marks
    nlp.update(EXAMPLES[factory](nlp)[:1], sgd=sgd)
    assert not marks


def test_an_optimizer_of_its_own():
    nlp, sgd = make(optimizer={"@optimizers": "Adam.v1"})
    nlp.replace_pipe("crf_ner", "crf_ner", config={"optimizer": LBFGS})
    ner = initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    assert ner.training.has_read_corpus
    for _ in range(10):
        nlp.update(ner_examples(nlp)[:1], sgd=sgd)
    examples = ner_examples(nlp)
    found = [entities(doc) for doc in nlp.pipe(plain(example.reference) for example in examples)]
    assert found == [entities(example.reference) for example in examples]


@pytest.mark.parametrize("settings, streamed", [(PERCEPTRON, True), (LBFGS, False), ({"@optimizers": "Adam.v1"}, True)])
def test_batches_are_the_data_of_others(settings, streamed):
    """Of optimizers that learn from batch after batch, and where spaCy holds the corpus."""
    loss = (
        {"@losses": "spacy_crf.Perceptron.v1"} if settings is PERCEPTRON else {"@losses": "spacy_crf.LogLikelihood.v1"}
    )
    nlp, sgd = make(optimizer=settings, streamed=streamed, loss=loss)
    ner = initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    assert ner.training.corpus is None
    nlp.update(ner_examples(nlp)[:1], sgd=sgd)
    assert not ner.training.has_read_corpus


def test_a_loaded_component_has_read_nothing(caplog):
    """Its batches are data, each for itself, and it goes on from what it has learned."""
    caplog.set_level("INFO", logger="spacy.spacy_crf.training")
    nlp, sgd = make()
    initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    nlp.update(ner_examples(nlp)[:1], sgd=sgd)
    loaded, sgd = make()
    loaded.from_bytes(nlp.to_bytes())
    examples = ner_examples(loaded)
    for n in range(2):
        loaded.update(examples[n : n + 1], sgd=sgd)
    assert not loaded.get_pipe("crf_ner").training.has_read_corpus
    [said] = [record.getMessage() for record in caplog.records if "continues from a model of" in record.getMessage()]
    assert "with 1 new one;" in said


def test_a_trained_component_goes_on_by_start_from(tmp_path):
    nlp, sgd = make()
    initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    for _ in range(2):
        value = nlp.update(ner_examples(nlp)[:1], sgd=sgd)["crf_ner"]
    nlp.to_disk(tmp_path)
    again, sgd = make()
    examples = ner_examples(again)
    ner = again.get_pipe("crf_ner")
    ner.initialize(lambda: examples[:1], nlp=again, start_from=tmp_path, corpus=lambda nlp: iter(examples))
    assert_same_weights(again, nlp)
    assert again.update(examples[:1], sgd=sgd)["crf_ner"] < value


def test_a_stream_that_is_named_nowhere_is_warned_of(caplog):
    nlp, _ = make()
    nlp.initialize(lambda: ner_examples(nlp))
    assert any("CRFW404" in record.getMessage() and "LBFGS" in record.getMessage() for record in caplog.records)


def test_labels_come_before_the_corpus_is_read():
    nlp, sgd = make()
    ner = initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    ner.add_label("DATE")
    with pytest.raises(ValueError, match="CRF411"):
        nlp.update(ner_examples(nlp)[:1], sgd=sgd)


@Language.component("upper_is_nnp")
def upper_is_nnp(doc):
    for token in doc:
        token.tag_ = "NNP" if token.is_title else "X"
    return doc


def tagged_pipeline(*, streamed):
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "tag[-1..1]"]}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    nlp, sgd = make(streamed=streamed, model={"emissions": emissions})
    return nlp, sgd


def test_features_see_what_ready_components_annotate():
    """As with batches, which `nlp.update` annotates."""
    nlp, sgd = tagged_pipeline(streamed=False)
    nlp.add_pipe("upper_is_nnp", first=True)
    nlp.config["training"]["annotating_components"] = ["upper_is_nnp"]
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    expected = nlp.update(examples, sgd=sgd, annotates=["upper_is_nnp"])
    lean, sgd = tagged_pipeline(streamed=True)
    lean.add_pipe("upper_is_nnp", first=True)
    lean.config["training"]["annotating_components"] = ["upper_is_nnp"]
    same = ner_examples(lean)  # by a reader that gives the same objects each time
    initialize(lean, lambda nlp: iter(same))
    assert lean.update(same[:1], sgd=sgd, annotates=["upper_is_nnp"]) == expected
    names = lean.get_pipe("crf_ner").model.get_ref("emissions").attrs["features"].states.index.names()
    assert "tag[0]=NNP" in names
    assert not any(token.tag for example in same for token in example.predicted)


def test_components_that_learn_in_the_same_run_can_not_annotate():
    nlp, _ = tagged_pipeline(streamed=True)
    nlp.add_pipe("tagger", first=True)
    nlp.config["training"]["annotating_components"] = ["tagger"]

    def read(nlp):
        for text in NER_TEXTS:
            doc = ner_doc(nlp, text)
            for token in doc:
                token.tag_ = "X"
            yield Example(plain(doc), doc)

    with pytest.raises(ValueError, match=r"CRF410.*'tagger'"):
        initialize(nlp, read)


def test_says_what_steps_are_about(caplog):
    nlp, _ = make()
    with caplog.at_level(logging.INFO, "spacy.spacy_crf.training"):
        initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    assert any("every step is about" in record.getMessage() for record in caplog.records)


def test_the_clock_reads_one_example_and_lets_go():
    closed = []

    def read():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    corpus = read()
    batches = clock()(corpus)
    assert [next(batches) for _ in range(3)] == [[0]] * 3
    assert closed
    assert list(clock()(iter([]))) == []


def test_frequencies_are_those_of_the_texts():
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features, "possible_states": True}
    nlp, _ = make(model={"emissions": emissions})
    ner = initialize(nlp, lambda nlp: iter(ner_examples(nlp)))
    objective, texts = ner.training.corpus.objective, [example.predicted for example in ner_examples(nlp)]
    words = [token.lower_ for doc in texts for token in doc]
    names = ner.sparse_features.states.index.names()
    of_words = [words.count(name.removeprefix("lower[0]=")) for name in names]
    frequencies = objective.frequencies
    n_states = objective.n_states
    assert frequencies[: len(names) * n_states].tolist() == np.repeat(of_words, n_states).tolist()
    assert set(frequencies[len(names) * n_states :]) == {len(words), len(texts)}  # transitions; first and last tags
