"""Corpora that are never in memory as a whole: features that share rows, or are counted in a first pass."""

import logging

import pytest
import spacy
from spacy.util import registry

from tests.util import NER_TEXTS, entities, ner_examples, plain

FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["lower[-1..1]", "shape[0]"]}


def make(emissions, loss="LogLikelihood"):
    nlp = spacy.blank("en")
    emissions = {"@architectures": f"spacy_crf.{emissions.pop('name')}.v1", "features": FEATURES, **emissions}
    config = {"model": {"emissions": emissions}, "loss": {"@losses": f"spacy_crf.{loss}.v1"}}
    nlp.add_pipe("crf_ner", config=config)
    return nlp


def optimizer(name, **settings):
    return registry.get("optimizers", f"spacy_crf.{name}.v1")(**settings)


def found(nlp, examples):
    return [entities(doc) for doc in nlp.pipe(plain(example.reference) for example in examples)]


def test_rows_of_their_own_are_as_good_as_counted_features():
    """So many rows that nothing is shared: the same model as with a weight for every pair."""
    values = []
    for emissions in (
        {"name": "HashedEmissions", "rows": 1 << 14},
        {"name": "SparseEmissions", "possible_states": True},
    ):
        nlp = make(emissions)
        examples = ner_examples(nlp)
        nlp.initialize(lambda examples=examples: examples)
        values.append(nlp.update(examples, sgd=optimizer("LBFGS", l2=0.1, iterations_per_step=100))["crf_ner"])
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize("rows", [16, 1 << 12])
def test_collisions_are_reported(rows, caplog):
    nlp = make({"name": "HashedEmissions", "rows": rows})
    examples = ner_examples(nlp)
    with caplog.at_level(logging.INFO, "spacy.spacy_crf.training"):
        nlp.initialize(lambda: examples)
    [message] = [record.getMessage() for record in caplog.records if "share their row" in record.getMessage()]
    n_features, n_shared, n_used, n_rows = (int(word) for word in message.split() if word.isdigit())
    assert n_rows == rows and n_used <= min(rows, n_features)
    expected = {n: sum(row == n for row in rows_of(nlp, examples, rows)) for n in range(rows)}
    assert n_shared == sum(count for count in expected.values() if count > 1)
    assert n_used == sum(count > 0 for count in expected.values())


def rows_of(nlp, examples, n_rows):
    """The row of each different feature, one by one."""
    features = nlp.get_pipe("crf_ner").model.get_ref("emissions").attrs["features"]
    hashes = (
        features.compiled.templates["states"]
        .hash(features.compiled.reader.read([example.predicted for example in examples]))
        .hashes
    )
    return [int(key) % n_rows for key in {int(key) for key in hashes.ravel()} if key]


def test_few_rows_still_learn_and_are_saved():
    nlp = make({"name": "HashedEmissions", "rows": 256})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    sgd = optimizer("LBFGS", l1=0.01, l2=0.01, iterations_per_step=50)
    nlp.update(examples, sgd=sgd)
    assert found(nlp, examples) == [entities(example.reference) for example in examples]
    again = make({"name": "HashedEmissions", "rows": 256}).from_bytes(nlp.to_bytes())
    assert found(again, examples) == found(nlp, examples)
    rows = [pipe.get_pipe("crf_ner").model.get_ref("emissions").attrs["features"].states for pipe in (nlp, again)]
    assert len(rows[1].index) == 256
    assert rows[1].n_weights < rows[0].n_weights  # those that l1 has set to zero are not saved


def test_new_labels_find_room():
    nlp = make({"name": "HashedEmissions", "rows": 256})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=optimizer("LBFGS", l2=0.01, iterations_per_step=50))
    before = found(nlp, examples)
    nlp.get_pipe("crf_ner").add_label("DATE")
    assert found(nlp, examples) == before
    nlp.update(examples, sgd=optimizer("LBFGS", l2=0.01, iterations_per_step=5))
    assert found(nlp, examples) == before


@pytest.mark.parametrize(
    "emissions", [{"name": "HashedEmissions", "rows": 1 << 12}, {"name": "SparseEmissions"}], ids=lambda e: e["name"]
)
@pytest.mark.parametrize(
    "name, settings",
    [("AveragedPerceptron", {}), ("SGD", {"l2": 0.01, "sequences": 6}), ("AdaGrad", {"l2": 0.01, "sequences": 6})],
)
def test_batch_after_batch_without_ever_seeing_them_together(emissions, name, settings):
    nlp = make(dict(emissions), "Perceptron" if name == "AveragedPerceptron" else "LogLikelihood")
    examples = ner_examples(nlp)
    sgd = optimizer(name, **settings)
    nlp.get_pipe("crf_ner").initialize(lambda: examples[:1], nlp=nlp, corpus=lambda nlp: iter(examples))
    for _ in range(30):
        for begin in range(0, len(examples), 2):
            nlp.update(examples[begin : begin + 2], sgd=sgd)
    assert found(nlp, examples) == [entities(example.reference) for example in examples]


def test_labels_and_features_of_the_whole_corpus_are_counted():
    nlp = make({"name": "SparseEmissions"})
    examples = ner_examples(nlp)
    ner = nlp.get_pipe("crf_ner")
    ner.initialize(lambda: examples[:1], nlp=nlp)
    few = len(ner.model.get_ref("emissions").attrs["features"].states.index)
    nlp = make({"name": "SparseEmissions"})
    ner = nlp.get_pipe("crf_ner")
    ner.initialize(lambda: examples[:1], nlp=nlp, corpus=lambda nlp: iter(examples))
    assert ner.labels == ("GPE", "ORG", "PER")
    assert len(ner.model.get_ref("emissions").attrs["features"].states.index) > 2 * few


def test_a_stream_without_its_corpus_is_warned_of(caplog):
    nlp = make({"name": "SparseEmissions"})
    nlp.config["training"]["max_epochs"] = -1
    nlp.initialize(lambda: ner_examples(nlp, NER_TEXTS))
    assert any("CRFW401" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("rows", [0, 3, -4, 1 << 31])
def test_rows_are_a_power_of_two(rows):
    with pytest.raises(ValueError, match=r"CRF020: HashedEmissions: rows = "):
        make({"name": "HashedEmissions", "rows": rows})


def test_a_corpus_is_refused_without_the_pipeline_for_which_it_reads():
    nlp = make({"name": "SparseEmissions"})
    with pytest.raises(ValueError, match=r"nlp = None .* the pipeline for which corpus reads"):
        nlp.get_pipe("crf_ner").initialize(lambda: [], corpus=lambda nlp: iter(ner_examples(nlp)))
