"""Encoders from ONNX files: their vectors, a CRF on them, what is saved of them, and files that don't fit."""

import copy
import sys

import numpy as np
import pytest
import spacy
from spacy import registry
from spacy.tokens import Doc

import spacy_crf.models.corpus
from spacy_crf.models.onnx_encoder import OnnxEncoder, OnnxTok2Vec
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.onnx_files import CLS, PIECES, SEP, vectors_of_pieces, write_encoder
from tests.util import entities, ner_examples, plain

pytest.importorskip("onnxruntime", reason="pip install 'spacy-crf[onnx]' has not been run")
pytest.importorskip("tokenizers", reason="pip install 'spacy-crf[onnx]' has not been run")

WIDTH = 16


@pytest.fixture
def path(tmp_path):
    return write_encoder(tmp_path / "encoder", WIDTH)


def _encoder(path, **settings):
    encoder = {"@architectures": "spacy_crf.OnnxTok2Vec.v1", "path": str(path), **settings}
    chain = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": None, "joint": {"mode": "frozen"}}
    return {"model": {**chain, "tok2vec": encoder}}


def _trained(config, steps=1):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=config)
    nlp.config["training"] = {"optimizer": {"@optimizers": "spacy_crf.LBFGS.v1"}}
    examples, optimizer = ner_examples(nlp), LBFGS(l2=0.01)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, examples


def _says(nlp, examples):
    return [entities(doc) for doc in nlp.pipe([plain(example.reference) for example in examples])]


def _expected(doc, output, pooling, window=512, overlap=0):
    """Token by token, from the vectors of characters in each window of a text."""
    table, pieces, owners = vectors_of_pieces(WIDTH), [], []
    for token in doc:
        for place, character in enumerate(token.text if not token.is_space else ""):
            starts_word = place == 0 and (token.i == 0 or doc[token.i - 1].whitespace_ or doc[token.i - 1].is_space)
            pieces.append(PIECES.index(character if starts_word else f"##{character}"))
            owners.append(token.i)
    found, room = np.zeros((len(pieces), WIDTH)), window - 2
    for begin in range(0, len(pieces), room - overlap):
        ids = pieces[begin : begin + room]
        vectors = table[[CLS, *ids, SEP]]
        vectors = (np.cumsum(vectors, axis=0) if output == "sums" else vectors)[1:-1]
        own = overlap // 2 if begin else 0  # what it shares with the window before is halved
        found[begin + own : begin + len(ids)] = vectors[own:]
        if begin + len(ids) == len(pieces):
            break
    pool = {"first": lambda v: v[0], "last": lambda v: v[-1], "mean": lambda v: v.mean(axis=0)}
    pool["max"] = lambda v: v.max(axis=0)
    owners = np.array(owners, dtype=int)
    return [pool[pooling](found[owners == t.i]) if t.i in owners else np.zeros(WIDTH) for t in doc]


# ----------------------------------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max"])
@pytest.mark.parametrize("window, overlap", [(512, 128), (9, 0), (10, 4), (12, 3), (4, 1)])
def test_vectors_of_tokens(path, pooling, window, overlap):
    nlp = spacy.blank("en")
    model = OnnxTok2Vec(path, layers=["sums"], pooling=pooling, window=window, overlap=overlap)
    model.initialize()
    texts = ["Ann  doesn't\nlive (yet) in U.K. towns", "", " \n ", "a", "b c" * 9]
    docs = [nlp.make_doc(text) for text in texts]
    together = model.predict(docs)
    for doc, vectors in zip(docs, together):
        expected = np.reshape(_expected(doc, "sums", pooling, window, overlap), (len(doc), WIDTH))
        np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(model.predict([doc])[0], vectors, rtol=1e-5, atol=1e-5)
    assert model.predict([]) == []


def test_large_batches_run_in_parts(path, monkeypatch):
    nlp, model = spacy.blank("en"), OnnxTok2Vec(path)
    docs = [nlp.make_doc("word " * n) for n in (3, 40, 1, 12, 7)]
    model.initialize()
    whole = model.predict(docs)
    monkeypatch.setattr("spacy_crf.models.onnx_encoder._BATCH", 100)
    for one, other in zip(whole, model.predict(docs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_several_layers(path):
    doc = spacy.blank("en")("Ann Lee")
    vectors = {}
    for name, settings in {
        "pieces": {"layers": ["pieces"]},
        "by default": {},
        "by number": {"layers": [0]},
        "sums": {"layers": ["sums"]},
        "mean": {"layers": ["pieces", 1]},
        "concat": {"layers": ["pieces", "sums"], "merge": "concat"},
        "wide": {"layers": [-2]},
    }.items():
        model = OnnxTok2Vec(path, **settings)
        model.initialize()
        [vectors[name]] = model.predict([doc])
        assert vectors[name].shape == (2, model.get_dim("nO"))
    for name in ("by default", "by number"):
        np.testing.assert_array_equal(vectors[name], vectors["pieces"])
    np.testing.assert_allclose(vectors["mean"], (vectors["pieces"] + vectors["sums"]) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(vectors["concat"], np.hstack([vectors["pieces"], vectors["sums"]]), rtol=1e-5)
    np.testing.assert_allclose(vectors["concat"], vectors["wide"], rtol=1e-5)


# ----------------------------------------------------------------------------------------------------- a CRF on them


def test_a_crf_learns_in_one_pass_over_the_texts(path, tmp_path, monkeypatch):
    encoded, vectors = [], OnnxEncoder.vectors
    monkeypatch.setattr(OnnxEncoder, "vectors", lambda self, docs: encoded.extend(docs) or vectors(self, docs))
    nlp, examples = _trained(_encoder(path), steps=3)
    assert len(encoded) == len(examples) + 1  # the shortest text is predicted, too
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.to_disk(tmp_path / "model")
    again = spacy.load(tmp_path / "model")
    assert _says(again, examples) == _says(nlp, examples)
    assert _says(spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes()), examples) == _says(nlp, examples)
    assert [entities(doc) for doc in nlp.pipe([plain(e.reference) for e in examples], n_process=2)] == _says(
        copy.deepcopy(nlp), examples
    )


def test_vectors_of_large_corpora_are_in_a_file(path, monkeypatch):
    nlp, _ = _trained(_encoder(path))
    weights = nlp.get_pipe("crf_ner").model.get_ref("encoder").get_ref("output").get_param("W")
    monkeypatch.setattr(spacy_crf.models.corpus, "block_tokens", lambda *_: 8)
    again, _ = _trained(_encoder(path))
    found = again.get_pipe("crf_ner").model.get_ref("encoder").get_ref("output").get_param("W")
    np.testing.assert_allclose(found, weights, rtol=1e-3, atol=1e-4)


def test_several_components_share_it_and_others_learn_beside_it(path, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": _encoder(path)["model"]["tok2vec"]})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
    chain = {"@architectures": "spacy_crf.LinearChain.v1", "tok2vec": listener, "hidden_width": 8}
    nlp.add_pipe("crf_ner", config={"model": chain})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener}})
    examples = ner_examples(nlp)
    for example in examples:
        for token in example.reference:
            token.tag_ = "X"
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.02
    for _ in range(30):
        nlp.update(examples, sgd=sgd)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.to_disk(tmp_path / "model")
    assert _says(spacy.load(tmp_path / "model"), examples) == _says(nlp, examples)


# ------------------------------------------------------------------------------------------------------- what doesn't fit


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"layers": ["hidden"]}, r"CRF966.*model.onnx.*'hidden'.*pieces, sums, wide, flat"),
        ({"layers": [4]}, r"CRF966.*the output 4, and the file has the 4 outputs"),
        ({"layers": ["flat"]}, r"CRF966.*'flat' has the shape.*Name another"),
        ({"layers": ["pieces", "wide"]}, r"CRF966.*widths 16, 32. Set merge"),
        ({"layers": []}, r"CRF020.*layers = \[\]"),
        ({"layers": [True]}, r"CRF020.*layers"),
        ({"pooling": "sum"}, r"CRF020.*pooling.*'first', 'last', 'mean', 'max'"),
        ({"merge": "sum"}, r"CRF020.*merge"),
        ({"window": 1}, r"CRF020.*window"),
        ({"overlap": 511}, r"CRF020.*overlap"),
        ({"overlap": 510}, r"CRF020.*overlap = 510.*less than 510"),
        ({"path": ""}, r"CRF020.*path"),
        ({"path": "nowhere.onnx"}, r"CRF966.*nowhere.onnx.*No such file.*name its path"),
        ({"tokenizer": "nowhere.json"}, r"CRF966.*nowhere.json.*No such file"),
        ({"tokenizer": 1}, r"CRF020.*tokenizer"),
    ],
)
def test_wrong_settings(path, settings, said):
    with pytest.raises(ValueError, match=said):
        OnnxTok2Vec(**{"path": path, **settings}).initialize()


def test_wrong_files(path, tmp_path):
    (tmp_path / "text.onnx").write_text("none")
    with pytest.raises(ValueError, match=r"CRF966.*text.onnx.*onnxruntime can't read it"):
        OnnxTok2Vec(tmp_path / "text.onnx", path.with_name("tokenizer.json")).initialize()
    with pytest.raises(ValueError, match=r"CRF966.*text.onnx.*tokenizers can't read it"):
        OnnxTok2Vec(path, tmp_path / "text.onnx").initialize()
    with pytest.raises(ValueError, match=r"CRF966.*its inputs are pixels, attention_mask, and need"):
        OnnxTok2Vec(write_encoder(tmp_path / "images", input_name="pixels")).initialize()


def test_ids_beyond_the_table(path, tmp_path):
    """A tokenizer of another encoder."""
    tokenizer = path.with_name("tokenizer.json")
    tokenizer.write_text(tokenizer.read_text().replace('"##a": 108', '"##a": 9999'))
    model = OnnxTok2Vec(path)
    model.initialize()
    with pytest.raises(ValueError, match=r"CRF966.*onnxruntime:.*lower window"):
        model.predict([spacy.blank("en")("Saab")])


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers"])
def test_without_the_packages(path, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"CRF781: spacy_crf.OnnxTok2Vec.v1 needs {package}.*spacy-crf\[onnx\]"):
        OnnxTok2Vec(path).initialize()


def test_files_of_a_saved_model(path, tmp_path):
    nlp, examples = _trained(_encoder(path))
    nlp.to_disk(tmp_path / "model")
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(ValueError, match=r"CRF505.*CRF966.*model.onnx.*No such file.*name its path in the config"):
        spacy.load(tmp_path / "model")
    write_encoder(path.parent, 2 * WIDTH)
    with pytest.raises(ValueError, match=r"CRF966.*model.onnx.*another file \(sha256 .*Put that file there"):
        spacy.load(tmp_path / "model")
    elsewhere = tmp_path / "elsewhere.onnx"
    elsewhere.write_bytes(data)
    of_file = {"path": str(elsewhere), "tokenizer": str(path.with_name("tokenizer.json"))}
    again = spacy.load(tmp_path / "model", config={"components": {"crf_ner": {"model": {"tok2vec": of_file}}}})
    assert _says(again, examples) == _says(nlp, examples)
    other = {**of_file, "layers": ["sums"]}
    with pytest.raises(ValueError, match=r"CRF510: tok2vec.layers = \[0\] in the saved model, but \['sums'\]"):
        spacy.load(tmp_path / "model", config={"components": {"crf_ner": {"model": {"tok2vec": other}}}})


def test_an_untrained_pipeline_is_saved(path, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=_encoder(path))
    nlp.to_disk(tmp_path / "model")
    assert spacy.load(tmp_path / "model").pipe_names == ["crf_ner"]


def test_it_is_registered_and_needs_no_file_before_it_runs():
    made = registry.get("architectures", "spacy_crf.OnnxTok2Vec.v1")("nowhere.onnx")
    assert made.has_dim("nO") is None
    with pytest.raises(ValueError, match="CRF966"):
        made.predict([Doc(spacy.blank("en").vocab, words=["a"])])
