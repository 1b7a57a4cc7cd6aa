"""Saved components: the same after loading, never half of anything, and an error that names the file."""

import os
import pickle

import pytest
import spacy
from spacy.util import registry

from spacy_crf.pipeline import saving

from .util import NER_TEXTS, entities, ner_examples, plain, tag_examples

GAZETTEER = {"@misc": "spacy_crf.ner_features.v1", "extra": ["in:people[0]"]}


def make(config=None, **initialize):
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner", config=config or {})
    examples = ner_examples(nlp)
    ner.initialize(lambda: examples, nlp=nlp, **initialize)
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01, iterations_per_step=30)
    nlp.update(examples, sgd=optimizer)
    return nlp, examples


@pytest.fixture(scope="module")
def trained():
    return make()


def blank(config=None):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=config or {})
    return nlp


def predictions(nlp, examples):
    return [entities(nlp.get_pipe("crf_ner")(plain(example.reference))) for example in examples]


def test_bytes_and_disk(trained, tmp_path):
    nlp, examples = trained
    expected = predictions(nlp, examples)
    assert expected == [entities(example.reference) for example in examples]
    from_bytes = blank().from_bytes(nlp.to_bytes())
    nlp.to_disk(tmp_path / "model")
    from_disk = spacy.load(tmp_path / "model")
    for again in (from_bytes, from_disk):
        assert predictions(again, examples) == expected
        assert again.get_pipe("crf_ner").labels == nlp.get_pipe("crf_ner").labels
    ner = nlp.get_pipe("crf_ner")
    assert from_disk.get_pipe("crf_ner").to_bytes() == ner.to_bytes()
    assert sorted(os.listdir(tmp_path / "model" / "crf_ner")) == ["model"]


def test_training_goes_on_after_loading(trained, tmp_path):
    nlp, examples = trained
    again = blank().from_bytes(nlp.to_bytes())
    more = examples + ner_examples(again, ["[Bob](PER) likes [Rome](GPE) ."])
    optimizer = again.resume_training(sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01))
    for _ in range(3):
        again.update(more, sgd=optimizer)
    assert predictions(again, more) == [entities(example.reference) for example in more]


def test_gazetteers_are_saved_with_the_model(tmp_path):
    path = tmp_path / "people.txt"
    path.write_text("Ann Lee\nBob\nCarla Diaz\n", encoding="utf8")
    config = {"model": {"emissions": {"features": GAZETTEER}}}
    nlp, examples = make(config, gazetteers={"people": path})
    path.unlink()
    nlp.to_disk(tmp_path / "model")
    assert predictions(spacy.load(tmp_path / "model"), examples) == predictions(nlp, examples)


@pytest.mark.issue(12)
@pytest.mark.parametrize("given", ["as trained", "nothing", "by orth"])
def test_initializing_a_loaded_model_finds_its_gazetteers_in_it(tmp_path, given):
    """Its config names a file that need not be where the model is."""
    path = tmp_path / "people.txt"
    path.write_text("Ann Lee\nBob\nCarla Diaz\n", encoding="utf8")
    nlp, examples = make({"model": {"emissions": {"features": GAZETTEER}}}, gazetteers={"people": str(path)})
    nlp.to_disk(tmp_path / "model")
    path.unlink()
    loaded = spacy.load(tmp_path / "model")
    people = {"as trained": str(path), "by orth": {"path": str(path), "attr": "ORTH"}}
    settings = {} if given == "nothing" else {"gazetteers": {"people": people[given]}}
    loaded.config["initialize"]["components"]["crf_ner"] = settings
    loaded.initialize(lambda: examples)
    found = loaded.get_pipe("crf_ner").model.get_ref("emissions").attrs["features"].gazetteers["people"]
    assert found.entries == [(("Ann", "Lee"), ""), (("Bob",), ""), (("Carla", "Diaz"), "")]
    assert found.attr == ("ORTH" if given == "by orth" else "LOWER")


def test_missing_gazetteer_is_named(tmp_path):
    nlp = blank({"model": {"emissions": {"features": GAZETTEER}}})
    examples = ner_examples(nlp)
    ner = nlp.get_pipe("crf_ner")
    with pytest.raises(ValueError, match=r"CRF106.*'in:people\[0\]'.*'people'"):
        ner.initialize(lambda: examples, nlp=nlp)
    with pytest.raises(ValueError, match=r"CRF112.*'people'.*gone\.txt"):
        ner.initialize(lambda: examples, nlp=nlp, gazetteers={"people": tmp_path / "gone.txt"})
    with pytest.raises(ValueError, match=r"CRF404.*typo"):
        ner.initialize(lambda: examples, nlp=nlp, gazetteers={"typo": tmp_path / "gone.txt"})


def damaged(data):
    yield "header", b"", "CRF501"
    yield "foreign", b"PK\x03\x04 something else entirely", "CRF501"
    yield "short header", data[:12], "CRF501"
    yield "truncated", data[:-100], "CRF503"
    yield "half", data[: len(data) // 2], "CRF503"
    yield "one bit", data[:-50] + bytes([data[-50] ^ 1]) + data[-49:], "CRF503"
    for what, version in (("newer", saving.FORMAT_VERSION + 1), ("older", saving.FORMAT_VERSION - 1)):
        header = saving._HEADER.pack(version, 0, 0)
        yield what, data[: len(saving._MAGIC)] + header + data[len(saving._MAGIC) + len(header) :], "CRF502"


def test_damaged_files(trained, tmp_path):
    nlp, _ = trained
    nlp.to_disk(tmp_path)
    file = tmp_path / "crf_ner" / "model"
    whole = file.read_bytes()
    for what, data, code in damaged(whole):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=code) as error:
            spacy.load(tmp_path)
        assert str(file) in str(error.value), what
    file.unlink()
    with pytest.raises(ValueError, match="CRF506") as error:
        spacy.load(tmp_path)
    assert str(file) in str(error.value)


def test_a_failed_load_changes_nothing(trained):
    nlp, examples = trained
    ner = nlp.get_pipe("crf_ner")
    before, expected = ner.to_bytes(), predictions(nlp, examples)
    other = spacy.blank("en")
    other.add_pipe(
        "crf_ner",
        config={"model": {"emissions": {"features": {"@misc": "spacy_crf.features.v1", "templates": ["bias"]}}}},
    )
    other_examples = ner_examples(other, ["[Ann](X) x", "[Bob](Y) y"])
    other.initialize(lambda: other_examples)
    tagger = spacy.blank("en")
    tagger.add_pipe("crf_tagger")
    tag_data = tag_examples(tagger)
    tagger.initialize(lambda: tag_data)
    for data, code in [
        (other.get_pipe("crf_ner").to_bytes(), "CRF505.*templates"),
        (tagger.get_pipe("crf_tagger").to_bytes(), "CRF504.*CRFTagger.*CRFEntityRecognizer"),
        (before[:-1], "CRF503"),
    ]:
        with pytest.raises(ValueError, match=code):
            ner.from_bytes(data)
        assert ner.to_bytes() == before
        assert predictions(nlp, examples) == expected


def test_saving_over_a_model_leaves_a_whole_one(trained, tmp_path, monkeypatch):
    nlp, _ = trained
    ner = nlp.get_pipe("crf_ner")
    ner.to_disk(tmp_path)
    before = (tmp_path / "model").read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(saving.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        ner.to_disk(tmp_path)
    assert (tmp_path / "model").read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


def test_no_pickle_in_the_file(trained, monkeypatch):
    nlp, _ = trained
    data = nlp.to_bytes()

    def refuse(*args, **kwargs):
        raise AssertionError("pickle was called")

    for name in ("loads", "load", "dumps", "dump"):
        monkeypatch.setattr(pickle, name, refuse)
    assert blank().from_bytes(data).to_bytes() == data


def test_weights_are_small_on_disk(trained, tmp_path):
    """Four bytes per weight, and about as much again for everything else."""
    nlp, _ = trained
    features = nlp.get_pipe("crf_ner").model.get_ref("emissions").attrs["features"]
    size = len(nlp.get_pipe("crf_ner").to_bytes())
    assert size < 4 * features.states.n_weights + 16 * len(features.states.index) + 20_000


def test_docbin_keeps_nothing_of_ours(trained):
    """Predicted Docs are ordinary Docs."""
    from spacy.tokens import DocBin

    nlp, _ = trained
    docs = [nlp(text) for text in NER_TEXTS]
    again = list(DocBin().from_bytes(DocBin(docs=docs).to_bytes()).get_docs(nlp.vocab))
    assert [entities(doc) for doc in again] == [entities(doc) for doc in docs]
