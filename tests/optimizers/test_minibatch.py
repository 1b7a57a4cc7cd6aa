"""Which optimizer trains: the default learns by minibatches, and steps aside where somebody has chosen."""

import logging

import pytest
import spacy
from spacy import registry

from tests.benchmarks import minibatches
from tests.util import ner_examples, tag_examples

COMPONENTS = ["crf_ner", "crf_tagger", "semicrf_ner"]


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    folder = tmp_path_factory.mktemp("news")
    minibatches.convert(folder)
    return folder


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
def test_the_usual_loop_learns(component, news):
    assert max(minibatches.usual_loop(component, news, epochs=2)) >= 0.7


def test_what_init_config_writes_learns(news):
    assert max(minibatches.usual_config("crf_ner", news, epochs=2)) >= 0.7


def updated(component, sgd, **settings):
    """A component after an update, and whether the optimizer was asked."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(component, config=settings)
    examples = tag_examples(nlp) if component == "crf_tagger" else ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=sgd)
    return pipe, bool(sgd.mom1 or getattr(sgd, "_runs", None))


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("name", ["spacy_crf.LBFGS.v1", "spacy_crf.SGD.v1"])
def test_the_default_steps_aside_for_optimizers_of_this_package(component, name):
    pipe, asked = updated(component, registry.get("optimizers", name)())
    assert asked and not pipe.optimizer.mom1


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_default_learns_where_the_pipeline_has_one_of_thincs(component):
    pipe, asked = updated(component, registry.get("optimizers", "Adam.v1")(learn_rate=0.01))
    assert not asked and pipe.optimizer.mom1


@pytest.mark.parametrize("component", COMPONENTS)
def test_null_takes_what_is_given(component):
    _, asked = updated(component, registry.get("optimizers", "Adam.v1")(learn_rate=0.01), optimizer=None)
    assert asked


def test_neural_emissions_learn_by_what_the_pipeline_learns_by():
    tok2vec = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 8, "depth": 1, "embed_size": 10, "window_size": 1}
    tok2vec |= {"maxout_pieces": 1, "subword_features": False, "pretrained_vectors": None}
    model = {"emissions": None, "tok2vec": tok2vec}
    _, asked = updated("crf_ner", registry.get("optimizers", "Adam.v1")(learn_rate=0.01), model=model)
    assert asked


def test_an_optimizer_of_the_components_own_is_kept():
    own = {"@optimizers": "spacy_crf.SGD.v1"}
    pipe, asked = updated("crf_ner", registry.get("optimizers", "spacy_crf.LBFGS.v1")(), optimizer=own)
    assert not asked and pipe.weights()


def test_it_is_said_once_which_optimizer_trains(caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf.training"):
        nlp.update(examples, sgd=sgd)
        nlp.update(examples, sgd=sgd)
    assert [record.message for record in caplog.records if "learns by its own Minibatch" in record.message]
    assert sum("learns by" in record.message for record in caplog.records) == 1


def test_an_interrupt_says_what_is_kept(caplog):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    sgd = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.1)

    def interrupt(progress):
        if progress.iteration == 3:
            raise KeyboardInterrupt

    sgd.on_iteration = interrupt
    nlp.initialize(lambda: examples, sgd=sgd)
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf.training"), pytest.raises(KeyboardInterrupt):
        nlp.update(examples, sgd=sgd)
    assert "crf_ner: interrupted" in caplog.text
    assert pipe.model.get_ref("emissions").get_param("states").any()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), "fast"])
def test_a_learning_rate_is_a_positive_number(rate):
    with pytest.raises(ValueError, match="CRF020"):
        registry.get("optimizers", "spacy_crf.Minibatch.v1")(learn_rate=rate)
