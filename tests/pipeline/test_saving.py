"""Saved components: the same after loading, never half of anything, and an error that names the file."""

import copy
import io
import os
import pickle
import re
import shutil
import tracemalloc
import zlib
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
import spacy
import srsly
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from spacy_crf import whole_files
from spacy_crf.cli.shared import save_pipeline
from spacy_crf.features.feature_index import FeatureIndex
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline import saving, training
from tests.util import NER_TEXTS, entities, ner_examples, plain, tag_examples

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


def test_the_model_may_be_excluded(trained, tmp_path):
    """There is nothing else, as of spaCy's components: what is excluded is neither written nor read."""
    nlp, _ = trained
    pipe, others = nlp.get_pipe("crf_ner"), blank().get_pipe("crf_ner")
    pipe.to_disk(tmp_path / "none", exclude=["model"])
    assert not (tmp_path / "none").exists() and pipe.to_bytes(exclude=["vocab", "model"]) == b""
    pipe.to_disk(tmp_path / "all", exclude=["vocab"])
    labels = others.labels
    others.from_disk(tmp_path / "all", exclude=["model"]).from_bytes(pipe.to_bytes(), exclude=["model"])
    assert others.labels == labels != pipe.labels
    assert others.from_disk(tmp_path / "all").labels == pipe.labels


@pytest.mark.parametrize("data", ["text", None, 1, ["a"]])
def test_what_is_no_bytes_is_no_model(trained, data):
    with pytest.raises(ValueError, match="CRF501"):
        blank().get_pipe("crf_ner").from_bytes(data)


@pytest.mark.parametrize("docs", [["abc"], [None], "abc", None, 1])
def test_what_is_no_doc_is_not_labelled(trained, docs):
    pipe = trained[0].get_pipe("crf_ner")
    with pytest.raises(ValueError, match="CRF479"):
        list(pipe.pipe(docs))
    for method in (pipe.score, lambda examples: pipe.get_loss(examples, None)):
        with pytest.raises(TypeError):
            method(docs)


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
    with pytest.raises(ValueError, match=r"CRF701.*'people'.*gone\.txt"):
        ner.initialize(lambda: examples, nlp=nlp, gazetteers={"people": tmp_path / "gone.txt"})
    with pytest.raises(ValueError, match=r"CRF944.*typo"):
        ner.initialize(lambda: examples, nlp=nlp, gazetteers={"typo": tmp_path / "gone.txt"})


def damaged(data):
    yield "header", b"", "CRF501"
    yield "foreign", b"PK\x03\x04 something else entirely", "CRF501"
    yield "short header", data[:12], "CRF501"
    yield "truncated", data[:-100], "CRF508"
    yield "half", data[: len(data) // 2], "CRF508"
    yield "one bit", data[:-50] + bytes([data[-50] ^ 1]) + data[-49:], "CRF508"
    for what, version in (("newer", saving.FORMAT.version + 1), ("older", saving.FORMAT.version - 1)):
        header = whole_files.HEADER.pack(version, 0, 0)
        yield what, data[: len(saving.FORMAT.magic)] + header + data[len(saving.FORMAT.magic) + len(header) :], "CRF502"


@pytest.mark.parametrize("n_hashes, n_zeros", [(0, 0), (1, 0), (0, 100_000), (50_000, 0), (50_000, 100_000)])
def test_what_hardly_shrinks_takes_no_more_room_than_it_has(n_hashes, n_zeros):
    form = whole_files.FileFormat("numbers", b"numbers\n", 1)
    content = np.random.default_rng(0).bytes(n_hashes) + b"\0" * n_zeros
    data = whole_files.seal(form, content)
    assert (
        whole_files.unseal(form, data, "data")
        == zlib.decompress(data[len(form.magic) + whole_files.HEADER.size :])
        == content
    )
    assert len(data) < 1.001 * n_hashes + 0.04 * n_zeros + (1 << 15) * (n_hashes > 0 < n_zeros) + 50
    with pytest.raises(ValueError, match="CRF508"):
        whole_files.unseal(form, data[:-1], "data")


@pytest.mark.parametrize("sizes", [[], [0], [1 << 15], [3, 1 << 16, 5, 1 << 15, 70_000]])
def test_parts_are_sealed_as_a_whole_is(sizes):
    form, random = whole_files.FileFormat("numbers", b"numbers\n", 1), np.random.default_rng(0)
    parts, file = [random.bytes(size) for size in sizes], io.BytesIO(b"before")
    file.seek(6)
    whole_files.seal_into(file, form, iter(parts))
    assert file.getvalue()[:6] == b"before"
    assert whole_files.unseal(form, file.getvalue()[6:], "data") == b"".join(parts)


@pytest.mark.parametrize("n", [0, 1, 20, 100, 70_000])
def test_parts_are_packed_as_a_whole_is(n):
    values = {str(number): number for number in range(n)}, ["a"] * n, b"b" * n, "c" * n, np.arange(float(n)), None
    for value in (*values, values, {"all": [values, {}, (), -1.5, True]}):
        assert b"".join(whole_files.packed(value)) == srsly.msgpack_dumps(value)
    parts = [b"b" * (n + 65536), b"c"]
    assert b"".join(whole_files.packed_bytes(parts)) == srsly.msgpack_dumps(b"".join(parts))


def test_counts_that_became_others_are_saved():
    """What is kept of them from one checkpoint to the next is no longer right."""
    nlp = blank()
    nlp.initialize(lambda: ner_examples(nlp))
    table = nlp.get_pipe("crf_ner").sparse_features.states
    table.to_dict()
    table.counts = table.counts + 1
    assert type(table).from_dict(table.to_dict()).counts.tolist() == table.counts.tolist()


def test_saved_models_do_not_read_templates_without_features(tmp_path):
    templates = ["lower[0]", "shape[0]", "lower[5]|lower[0]", "suffix9[0]"]
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1"}
    emissions["features"] = {"@misc": "spacy_crf.features.v1", "templates": templates, "padding": False}
    nlp = blank({"model": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l1=0.5, iterations_per_step=50))
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    found = predictions(loaded, examples)
    assert found == predictions(nlp, examples) and any(found)
    layer = loaded.get_pipe("crf_ner").model.layers[0].attrs["features"]
    used = {name.partition("=")[0] for name in layer.states.index.names()}
    scorer = layer._scorer._token_scorers["states"]
    assert {*map(str, [*scorer._looked_up.templates, *scorer._of_lexemes.templates])} == used < {*templates}


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
    with pytest.raises(ValueError, match="CRF701") as error:
        spacy.load(tmp_path)
    assert str(file) in str(error.value)


def crafted(form, pieces):
    """A file that is whole, and as small as zlib can make it."""
    compress = zlib.compressobj(9)
    content = b"".join([*map(compress.compress, pieces), compress.flush()])
    header = whole_files.HEADER.pack(form.version, zlib.crc32(content), len(content))
    return form.magic + header + content


HOSTILE = {
    "zeros": [bytes(1 << 20)] * 8,
    "lists": [b"\xdc\x20\x00", (b"\xdc\x00\x40" + b"\x90" * 64) * 0x2000],
    "tables": [b"\xdc\x20\x00", (b"\x9f" + b"\x80" * 15) * 0x2000],
    "texts": [b"\xdc\x20\x00", (b"\xdc\x00\x40" + b"\xa2ab" * 64) * 0x2000],
    "claims": [b"\xdd\x7f\xff\xff\xff" * 500, bytes(1 << 19)],
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_small_files_do_not_fill_the_memory(trained, content, monkeypatch):
    """A file of 4.5 MB once took 2.3 GB, and one of 300 kB 4.6 GB, before it was refused."""
    data, ner = crafted(saving.FORMAT, content), trained[0].get_pipe("crf_ner")
    monkeypatch.setattr(whole_files, "ALWAYS_ROOM", 1 << 20)
    assert len(data) < 20_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="CRF508"):
            ner.from_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_what_is_compressed_inside_of_a_file_shares_its_room(trained):
    table = trained[0].get_pipe("crf_ner").sparse_features.states.index
    strings = zlib.compress(b'["' + b"a" * (1 << 24) + b'"]')
    with (
        whole_files.unpacking(b"small"),
        pytest.raises(ValueError, match=r"CRF511.*takes more than 16,777,216 bytes.*50 times"),
    ):
        FeatureIndex.from_dict({**table.to_dict(), "strings": strings})
    data = crafted(saving.FORMAT, [bytes(1 << 24), b"0"])
    inner = whole_files.unpacking(bytes(1 << 20))  # a first stage, say
    with whole_files.unpacking(b"small"), inner, pytest.raises(ValueError, match=r"CRF508.*16,777,216 bytes"):
        whole_files.unseal(saving.FORMAT, data, "data")


@pytest.mark.parametrize(
    "content", [bytes(1 << 25), srsly.msgpack_dumps([[[str(n)], ""] for n in range(10**5, 2 * 10**5)])]
)
def test_what_is_written_can_be_read(content):
    """However much of it is the same."""
    data = whole_files.seal(saving.FORMAT, content)
    with whole_files.unpacking(data):
        assert whole_files.unseal(saving.FORMAT, data, "data") == content
        assert content[0] == 0 or whole_files.unpacked(content) == srsly.msgpack_loads(content)


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
        (before[:-1], "CRF508"),
    ]:
        with pytest.raises(ValueError, match=code):
            ner.from_bytes(data)
        assert ner.to_bytes() == before
        assert predictions(nlp, examples) == expected


def test_a_component_that_is_no_name_is_refused(trained):
    """It was compared with one, and numpy said that the truth of an array is ambiguous: found by --hunt."""
    ner = trained[0].get_pipe("crf_ner")
    content = srsly.msgpack_loads(whole_files.unseal(saving.FORMAT, ner.to_bytes(), "data"))
    data = whole_files.seal(saving.FORMAT, srsly.msgpack_dumps({**content, "component": np.zeros(3)}))
    with pytest.raises(ValueError, match="CRF504"):
        ner.from_bytes(data)


def test_saving_over_a_model_leaves_a_whole_one(trained, tmp_path, monkeypatch):
    nlp, _ = trained
    ner = nlp.get_pipe("crf_ner")
    ner.to_disk(tmp_path)
    before = (tmp_path / "model").read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(whole_files.os, "fsync", fail)
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


# ------------------------------------------------------------------------------------- models and configs that differ


def _sparse(*templates, **features):
    return {"emissions": {"features": {"@misc": "spacy_crf.features.v1", "templates": list(templates), **features}}}


def _hashed(rows):
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "bias"]}
    emissions = {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": rows, "features": features}
    return {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}


def _neural(width):
    encoder = {"@architectures": "spacy.HashEmbedCNN.v2", "pretrained_vectors": None, "width": width, "depth": 1}
    encoder |= {"embed_size": 50, "window_size": 1, "maxout_pieces": 2, "subword_features": True}
    return {"emissions": None, "tok2vec": encoder}


def _matching(is_title):
    features = {"extra": ["seg.matches:x"], "patterns": {"x": [{"IS_TITLE": is_title}]}}
    return {"segments": {"features": features}}


# name: factory, settings, and what an error names where only this differs from the one before
VARIANTS = {
    "plain": ("crf_ner", {}, None),
    "fewer labels": ("crf_ner", {}, None),
    "BIO": ("crf_ner", {"scheme": "BIO"}, "scheme"),
    "IOB1": ("crf_ner", {"scheme": "IOB1"}, "scheme"),
    "templates": ("crf_ner", {"scheme": "IOB1", "model": _sparse("lower[0]", "bias")}, "templates"),
    "no padding": ("crf_ner", {"scheme": "IOB1", "model": _sparse("lower[0]", "bias", padding=False)}, "no padding"),
    "hashed": ("crf_ner", {"scheme": "IOB1", "model": _hashed(1024)}, "hashed_emissions"),
    "more rows": ("crf_ner", {"scheme": "IOB1", "model": _hashed(2048)}, "rows = 1024"),
    "neural": ("crf_ner", {"scheme": "IOB1", "model": _neural(16)}, "tok2vec_emissions"),
    "wider": ("crf_ner", {"scheme": "IOB1", "model": _neural(24)}, "dimension"),
    "segments": ("semicrf_ner", {}, "CRFEntityRecognizer"),
    "longest": ("semicrf_ner", {"model": {"longest_segment": 4}}, "longest_segment"),
    "matches": ("semicrf_ner", {"model": _matching(True)}, "longest_segment"),
    "does not match": ("semicrf_ner", {"model": _matching(False)}, "patterns"),
    "tags": ("crf_tagger", {}, "SemiCRFEntityRecognizer"),
    "parts of speech": ("crf_tagger", {"attribute": "pos"}, "attribute"),
}


def _variant(name):
    factory, config, _ = VARIANTS[name]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, name="it", config=config)
    if factory != "crf_tagger":
        examples = ner_examples(nlp, NER_TEXTS[:2] if name == "fewer labels" else NER_TEXTS)
    elif config:
        examples = tag_examples(nlp, ["the/DET dog/NOUN barks/VERB", "cats/NOUN sleep/VERB"], "pos_")
    else:
        examples = tag_examples(nlp)
    pipe.initialize(lambda: examples, nlp=nlp)
    name = "Adam.v1" if "tok2vec" in str(config) else "spacy_crf.LBFGS.v1"
    optimizer = registry.get("optimizers", name)()
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    return nlp


def _says(nlp):
    docs = [plain(example.reference) for example in (*ner_examples(nlp), *tag_examples(nlp))]
    return [(entities(doc), [(token.tag_, token.pos_) for token in doc]) for doc in nlp.pipe(docs)]


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Folders of pipelines, and what they say."""
    folder, saved = tmp_path_factory.mktemp("variants"), {}
    for name in VARIANTS:
        nlp = _variant(name)
        nlp.to_disk(folder / name)
        saved[name] = (folder / name, _says(nlp))
    return saved


@pytest.mark.parametrize(("before", "name"), [pair for pair in pairwise(VARIANTS) if VARIANTS[pair[1]][2]])
def test_what_weights_mean_is_refused_where_the_config_differs(before, name, variants):
    """BIO as IOB1 gave wrong entities silently, other pairs failed in the middle of predicting."""
    factory, config, named = VARIANTS[name]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, name="it", config=config)
    fresh = pipe.to_bytes()
    code = "CRF504" if VARIANTS[before][0] != factory else "CRF505.*'it'"
    with pytest.raises(ValueError, match=f"(?s){code}.*{named}.*(Load it with its own config|factory)"):
        pipe.from_disk(variants[before][0] / "it")
    assert pipe.to_bytes() == fresh and not pipe.is_initialized
    trained = spacy.load(variants[name][0])
    with pytest.raises(ValueError, match=code):
        trained.get_pipe("it").from_disk(variants[before][0] / "it")
    assert _says(trained) == variants[name][1]
    if factory != "crf_tagger":  # and is as good as new
        pipe.initialize(lambda: ner_examples(nlp), nlp=nlp)
        assert pipe.labels == ("GPE", "ORG", "PER")


def test_files_of_two_models_are_one_model_or_refused(variants, tmp_path):
    """As a process that is killed while it saves over another model leaves them: the config is new, the weights are old."""
    right, names = 0, ("plain", "fewer labels", "BIO", "IOB1", "templates", "hashed", "neural", "segments", "tags")
    for old, new in permutations(names, 2):
        folder = tmp_path / f"{old} {new}"
        shutil.copytree(variants[old][0], folder)
        for file in ("meta.json", "config.cfg"):
            shutil.copy(variants[new][0] / file, folder / file)
        try:
            nlp = spacy.load(folder)
        except ValueError as error:
            assert str(error).startswith(("CRF504", "CRF505"))
        else:
            assert _says(nlp) == variants[old][1]
            right += 1
    assert right == 2  # with other labels


def test_how_to_predict_and_to_train_comes_from_the_config(trained):
    """What does not change the meaning of weights may change; min_count and possible_states of the config were ignored."""
    nlp, examples = trained
    spans = {"alternatives_spans_key": "maybe", "incorrect_spans_key": "not"}
    model = {"possible_transitions": False, "emissions": {"min_count": 2, "possible_states": True}}
    config = {"confidence": True, "decode": "posterior", "min_prob": 0.01, "max_words": 99, "model": model, **spans}
    ner = blank(config).from_bytes(nlp.to_bytes()).get_pipe("crf_ner")
    del config["model"]
    known = {
        "scheme": "BILUO",
        "labels": ["GPE", "ORG", "PER"],
        "left_out": [],
        "space_edges": False,
    }
    assert ner.cfg == {**config, **known} and {features.max_words for features in ner.feature_stores} == {99}
    emissions = ner.model.get_ref("emissions").attrs
    assert (emissions["min_count"], emissions["possible_states"]) == (2, True)
    assert not ner.model.attrs["possible_transitions"]
    doc = ner(plain(examples[0].reference))
    assert all(ent._.crf_prob > 0.5 for ent in doc.ents) and doc.ents
    tagger = spacy.blank("en").add_pipe("crf_tagger", config={"overwrite": True})
    other = spacy.blank("en").add_pipe("crf_tagger")
    assert tagger.from_bytes(other.to_bytes()).cfg["overwrite"]


def test_broken_rules_leave_the_component_as_it_was(trained):
    nlp, _ = trained
    other = blank().from_bytes(nlp.to_bytes())
    other.get_pipe("crf_ner").add_rule({"rule": "at_most", "label": "PER", "n": 1})
    other.get_pipe("crf_ner").constraints.rules[0].table["n"] = -1
    data = other.get_pipe("crf_ner").to_bytes()
    ner = nlp.get_pipe("crf_ner")
    before = ner.to_bytes()
    with pytest.raises(ValueError, match=r"CRF505.*CRF020.*-1"):
        ner.from_bytes(data)
    assert ner.to_bytes() == before and ner.constraints is None
    fresh = blank().get_pipe("crf_ner")
    with pytest.raises(ValueError, match=r"CRF505.*CRF020.*-1"):
        fresh.from_bytes(data)
    assert fresh.labels == () and not fresh.is_initialized


def test_dollars_are_not_doubled_by_the_config(tmp_path):
    """spaCy writes `$` as `$$`, and reads it back so: rules meant something else, and patterns of segments were refused."""
    rules = [
        {"rule": "always_on", "label": "ORG", "phrases": ["$"]},
        {"rule": "never_on", "label": "PER", "pattern": [[{"TEXT": {"REGEX": "^A\\w+$"}}]]},
        {"rule": "never_on", "label": "GPE", "phrases": ["$$"]},
    ]
    model = {"segments": {"features": {"extra": ["seg.matches:x"], "patterns": {"x": [{"TEXT": "$"}]}}}}
    constraints = {"@misc": "spacy_crf.constraints.v1", "rules": rules}
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("semicrf_ner", config={"model": model, "constraints": constraints})
    pipe.initialize(lambda: ner_examples(nlp), nlp=nlp)
    pipe.add_rule({"rule": "never_on", "label": "ORG", "phrases": ["US$"]})
    tables, docs = pipe.constraints.tables, [Doc(nlp.vocab, words=["Ann", "paid", "$", "."])]
    for folder in (tmp_path / "once", tmp_path / "twice"):
        nlp.to_disk(folder)
        nlp = spacy.load(folder)
        pipe = nlp.get_pipe("semicrf_ner")
        assert pipe.constraints.tables == tables
        assert pipe.model.get_ref("segments").attrs["segment_features"].feature_set.patterns["x"] == [[{"TEXT": "$"}]]
        assert (2, 3, "ORG") in entities(nlp(plain(docs[0])))
    # The config has the last word about rules that are others
    config = (folder / "config.cfg").read_text().replace("$$$$$$$$", "Yen").replace("$$$$", "Euro")
    (folder / "config.cfg").write_text(config.replace('"TEXT": "Euro"', '"TEXT": "$"'))
    phrases = [rule.get("phrases") for rule in spacy.load(folder).get_pipe("semicrf_ner").constraints.tables]
    assert phrases == [["Euro"], None, ["Yen"], ["US$"]]


LEFT = "0123456789abcdef" * 2


def test_what_a_killed_process_left_is_removed_at_the_next_save(trained, tmp_path):
    """49 of 120 kills once left a `.model-*` that nobody removed; who is alive, and has begun later, is left alone."""
    nlp, _ = trained
    folder = tmp_path / "model" / "crf_ner"
    folder.mkdir(parents=True)
    names = [f".model-{LEFT}", f".model-{LEFT[::-1]}", f".other-{LEFT}", ".model-mine"]
    for name in names:
        (folder / name).write_bytes(b"half")
    for name in (names[0], *names[2:]):
        os.utime(folder / name, (0, 0))
    nlp.to_disk(tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == {"model", *names[1:]}
    assert spacy.load(tmp_path / "model").pipe_names == ["crf_ner"]
    (tmp_path / f".whole-{LEFT}").mkdir()
    (tmp_path / f".whole-{LEFT}" / "config.cfg").write_text("half")
    os.utime(tmp_path / f".whole-{LEFT}", (0, 0))
    save_pipeline(nlp, tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "whole"}


def test_a_process_killed_while_it_replaces_a_pipeline_leaves_no_mixture(trained, tmp_path, monkeypatch):
    """New settings of decoding with old weights were loaded without a word, and gave other entities than both pipelines."""
    old, examples = trained
    new, _ = make({"decode": "spans", "min_prob": 0.7})
    replace, n_files = Path.replace, 0
    while n_files < 40:
        folder = tmp_path / f"{n_files}"
        old.to_disk(folder)
        left = list(range(n_files))

        def replaced(self, target, left=left, folder=folder):
            if Path(target).is_relative_to(folder):
                if not left:
                    raise KeyboardInterrupt
                left.pop()
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", replaced)
        try:
            save_pipeline(new, folder)
        except KeyboardInterrupt:
            with pytest.raises(ValueError, match=rf"CRF927.*{re.escape(str(folder))}"):
                spacy.load(folder)
            n_files += 1
            continue
        finally:
            monkeypatch.undo()
        break
    assert n_files > 8 and spacy.load(folder).get_pipe("crf_ner").cfg["decode"] == "spans"
    for save in (lambda: save_pipeline(old, tmp_path / "3"), lambda: old.to_disk(tmp_path / "3")):
        (tmp_path / "3" / saving.REPLACING).touch()
        save()
        assert predictions(spacy.load(tmp_path / "3"), examples) == predictions(old, examples)


def test_settings_of_another_config_are_told_and_used(trained, tmp_path, caplog):
    """A component warns if config.cfg was edited or left by a killed process, not if spacy.load is given settings."""

    def warned():
        return [record for record in caplog.records if record.levelname == "WARNING"]

    folder = tmp_path / "model"
    trained[0].to_disk(folder)
    change = {"components": {"crf_ner": {"decode": "spans", "min_prob": [["PER", 0.7]]}}}
    assert spacy.load(folder, config=change).get_pipe("crf_ner").cfg["decode"] == "spans"
    assert not warned()
    config = folder / "config.cfg"
    text = (
        config.read_text().replace('decode = "viterbi"', 'decode = "spans"').replace("min_prob = 0.0", "min_prob = 0.7")
    )
    config.write_text(text)
    again = spacy.load(folder)
    assert again.get_pipe("crf_ner").cfg["min_prob"] == 0.7
    [record] = warned()
    expected = "decode = 'spans' (saved: 'viterbi'), min_prob = 0.7 (saved: 0.0)"
    assert record.getMessage().startswith("CRFW925") and expected in record.getMessage()
    assert f"spacy.load({str(folder)!r}).to_disk({str(folder)!r})" in record.getMessage()
    caplog.clear()
    again.to_disk(folder)
    assert spacy.load(folder) and not warned()
    for pairs in ([["PER", 0.7]], [["US%24", 0.7], ["PER", 0.2]]):  # the config has pairs, and the component a table
        pair = blank({"decode": "spans", "min_prob": pairs})
        pair.from_bytes(again.to_bytes()).to_disk(tmp_path / "pairs")
        loaded = spacy.blank("en").from_config(pair.config)
        loaded.get_pipe("crf_ner").from_disk(tmp_path / "pairs" / "crf_ner")
        assert not warned()
    config.write_text(f"{text}\n[x]\ntag:A = 1\ntag:B = 1\n")  # as version 0.21 saved tables by label
    assert blank({"decode": "spans", "min_prob": 0.7}).get_pipe("crf_ner").from_disk(folder / "crf_ner").labels
    copy = spacy.blank("en")
    copy.add_pipe("crf_ner", source=again, name="other")
    copy.to_disk(tmp_path / "sourced")
    assert spacy.load(tmp_path / "sourced") and not warned()


def test_a_component_that_is_not_of_its_config_is_told(trained, tmp_path):
    """spaCy writes the config, then the components: whoever is stopped there leaves the old ones, or none."""
    trained[0].to_disk(tmp_path / "old")
    make({"scheme": "BIO"})[0].to_disk(tmp_path / "new")
    for n in range(3):
        left = tmp_path / str(n)
        shutil.copytree(tmp_path / "old", left)
        shutil.copy(tmp_path / "new" / "config.cfg", left)
        (left / "crf_ner" / f".model-{LEFT}").write_bytes((tmp_path / "new" / "crf_ner" / "model").read_bytes()[:999])
        if n == 2:
            shutil.copy(tmp_path / "new" / "crf_ner" / "model", left / "crf_ner")
            assert spacy.load(left).get_pipe("crf_ner").cfg["scheme"] == "BIO"
            continue
        if n == 1:
            (left / "crf_ner" / "model").unlink()
        with pytest.raises(ValueError, match=["CRF505.*crf_ner.*BILUO.*BIO", "CRF701.*model"][n]):
            spacy.load(left)


def test_the_texts_that_a_component_has_learned_from_are_known(tmp_path):
    """The model card said of any texts that the model had not learned from them."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    assert ner.training.learned.count(examples) is None
    nlp.initialize(lambda: examples[:4])
    nlp.update(examples[:4], sgd=LBFGS(l2=0.1))
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    for pipe in (ner, loaded.get_pipe("crf_ner"), copy.deepcopy(loaded).get_pipe("crf_ner")):
        assert pipe.training.learned.count(examples) == 4
        assert pipe.training.learned.count(examples[4:]) == 0
    other = [Example.from_dict(nlp.make_doc("Ann Lee lives in New York."), {"entities": []})]  # other white space
    assert ner.training.learned.count(other) == 1
    loaded.update(ner_examples(loaded)[4:5], sgd=loaded.resume_training(sgd=LBFGS(l2=0.1)))
    again = spacy.blank("en").from_config(loaded.config).from_bytes(loaded.to_bytes()).get_pipe("crf_ner")
    assert again.training.learned.count(examples) == 5
    nlp.initialize(lambda: examples[4:])
    assert ner.training.learned.count(examples) == 2


def test_of_very_many_texts_the_smallest_hashes_are_kept(monkeypatch):
    monkeypatch.setattr(training, "MOST_LEARNED", 100)
    nlp = spacy.blank("en")
    texts = [Example.from_dict(nlp.make_doc(f"text {n}"), {}) for n in range(1200)]
    learned = training.LearnedTexts(is_known=True)
    learned.add(texts[:600])
    learned.add(texts[200:600])
    for known in (learned, training.LearnedTexts.unpacked(learned.packed())):
        assert len(known.packed()) == 800
        assert known.count(texts[:600]) == 600 and known.count(texts[600:]) == 0
        assert 400 < known.count(texts) < 800
    for damaged in (None, b"1234567", "text", 3):
        assert training.LearnedTexts.unpacked(damaged).count(texts) is None
