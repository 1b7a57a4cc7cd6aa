"""``crf_textcat``: one label for each text."""

import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
import spacy
import srsly
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from spacy.vectors import Vectors
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.features.doc_batch import UnitRows

CONFIG = Path(__file__).parents[2] / "configs" / "crf_textcat.cfg"
TEXTS = [
    ("play some jazz", "PLAY"),
    ("play the new record", "PLAY"),
    ("put the record on", "PLAY"),
    ("book a table for two", "BOOK"),
    ("reserve a table at the new place", "BOOK"),
    ("rain or sun on monday", "WEATHER"),
    ("is there rain", "WEATHER"),
]
WORDS = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
MODELS = {
    "bag": {"@architectures": "spacy_crf.MaxEntText.v1"},
    "counts": {"@architectures": "spacy_crf.NaiveBayes.v1"},
}
LBFGS = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.02}


def blank(model="bag", features=None, emissions=None, **config):
    """A pipeline with the component, and what finds sentences in front of it."""
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", **(emissions or {})}
    emissions["features"] = features or {"@misc": "spacy_crf.text_features.v1"}
    settings = MODELS[model] if isinstance(model, str) else model
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("crf_textcat", config={"model": {**settings, "emissions": emissions}, "optimizer": LBFGS, **config})
    return nlp


def examples_of(nlp, texts=TEXTS):
    """Examples whose predicted Docs have sentences, as with annotating_components."""
    found = []
    for text, cats in texts:
        reference = nlp.make_doc(text)
        reference.cats = cats if isinstance(cats, dict) else {cats: 1.0}
        found.append(Example(nlp.get_pipe("sentencizer")(nlp.make_doc(text)), reference))
    return found


def trained(model="bag", texts=TEXTS, steps=4, **settings):
    nlp = blank(model, **settings)
    pipe, examples = nlp.get_pipe("crf_textcat"), examples_of(nlp, texts)
    pipe.initialize(lambda: examples, nlp=nlp)
    for _ in range(steps):
        pipe.update(examples, sgd=pipe.optimizer)
    return nlp


def label(doc):
    return max(doc.cats, key=doc.cats.get)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """A trained pipeline of each kind. Do not change."""
    return trained(request.param)


def test_learns_its_texts_and_gives_probabilities(model):
    docs = list(model.pipe([text for text, _ in TEXTS] + [""]))
    assert [label(doc) for doc in docs[:-1]] == [cats for _, cats in TEXTS]
    for doc in docs:
        assert math.isclose(sum(doc.cats.values()), 1.0) and set(doc.cats) == {"PLAY", "BOOK", "WEATHER"}
    for doc in docs[:-1]:
        assert model(doc.text).cats == pytest.approx(doc.cats, abs=1e-12)


def test_saved_models_say_the_same(model, tmp_path):
    texts = [text for text, _ in TEXTS] + ["", "words never met", "play a table . rain on it ."]
    before = [doc.cats for doc in model.pipe(texts)]
    model.to_disk(tmp_path)
    assert [doc.cats for doc in spacy.load(tmp_path).pipe(texts)] == before
    again = spacy.util.load_model_from_config(model.config).from_bytes(model.to_bytes())
    assert [doc.cats for doc in again.pipe(texts)] == before
    assert [doc.cats for doc in model.pipe(texts, n_process=2, batch_size=4)] == before
    other = spacy.blank("en")
    other.add_pipe("sentencizer")
    other.add_pipe("crf_textcat", source=model)
    assert [doc.cats for doc in other.pipe(texts)] == before


def test_naive_bayes_is_that_of_scikit_learn():
    nlp = trained("counts", features=WORDS, steps=0)
    texts, labels = zip(*TEXTS)
    counts = CountVectorizer(token_pattern=r"\S+")
    n = np.bincount([sorted(set(labels)).index(each) for each in labels])
    theirs = MultinomialNB(alpha=1.0, class_prior=(n + 1) / (n + 1).sum()).fit(counts.fit_transform(texts), labels)
    new = ["play a table on monday", "is there a new place on the record", "nothing known"]
    for doc, row in zip(nlp.pipe(new), theirs.predict_proba(counts.transform(new))):
        assert [doc.cats[name] for name in theirs.classes_] == pytest.approx(row, rel=1e-5)


def test_naive_bayes_says_once_that_it_has_nothing_to_learn(caplog):
    nlp = trained("counts")
    assert ["CRFW465" in record.message for record in caplog.records].count(True) == 1
    before = nlp("play jazz").cats
    nlp.update(examples_of(nlp), losses={})
    assert nlp("play jazz").cats == before


def test_how_much_a_text_counts():
    texts = [("x", "A"), ("x", "B")]
    nlp = blank()
    pipe, examples = nlp.get_pipe("crf_textcat"), examples_of(nlp, texts)
    examples[0].reference._.crf_weight = 3.0
    pipe.initialize(lambda: examples, nlp=nlp)
    pipe.update(examples, sgd=pipe.optimizer)
    assert 0.7 < nlp("x").cats["A"] < 0.76


def test_a_frozen_component_stays_as_it_is():
    nlp = trained("bag")
    before = nlp.get_pipe("crf_textcat").to_bytes()
    nlp.update(examples_of(nlp, [("play some jazz", "BOOK")]), exclude=["crf_textcat"])
    assert nlp.get_pipe("crf_textcat").to_bytes() == before


# ----------------------------------------------------------------------------------------- what speaks for the label


def test_evidence_of_a_bag_is_what_is_lost_without_a_word():
    nlp = trained("bag", features=WORDS)
    doc = nlp("play a table on monday")
    odds = {name: math.log(p / (1 - p)) for name, p in doc.cats.items()}
    for name in doc.cats:
        for span, evidence in nlp.get_pipe("crf_textcat").evidence(doc, name):
            rest = nlp(" ".join(token.text for token in doc if token.i != span.start)).cats[name]
            assert evidence == pytest.approx(odds[name] - math.log(rest / (1 - rest)), abs=1e-5)
    with pytest.raises(ValueError, match=r"CRF846.*named 'SONG'\."):
        nlp.get_pipe("crf_textcat").evidence(doc, "SONG")


@pytest.mark.parametrize("kind", MODELS)
def test_explain_tells_each_doc(kind, tmp_path):
    nlp = trained(kind, explain=True)
    texts = ["book a table . play some jazz", "", "rain"]
    docs = [*nlp.pipe(texts)]
    for doc in docs:
        told = doc._.crf_evidence
        units = [(token.i, token.i + 1) for token in doc]
        assert told["label"] == label(doc) and [*map(tuple, told["units"].tolist())] == units
        found = nlp.get_pipe("crf_textcat").evidence(doc)
        assert [(span.start, span.end) for span, _ in found] == units
        assert [value for _, value in found] == pytest.approx(told["evidence"])
        assert [*told] == ["label", "units", "evidence"]
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "docs.spacy")
    saved = DocBin().from_disk(tmp_path / "docs.spacy").get_docs(nlp.vocab)
    for again in (saved, nlp.pipe(texts, n_process=2)):
        for one, other in zip(again, docs):
            for name, value in other._.crf_evidence.items():
                np.testing.assert_array_equal(one._.crf_evidence[name], value)
    assert "doc._.crf_evidence" in nlp.analyze_pipes()["summary"]["crf_textcat"]["assigns"]


def test_a_text_knows_the_probability_of_its_label(tmp_path):
    nlp = trained("bag")
    assert nlp("play some jazz")._.crf_prob is None
    nlp.get_pipe("crf_textcat").cfg["confidence"] = True
    doc = nlp("play some jazz")
    assert doc._.crf_prob == max(doc.cats.values())
    assert "doc._.crf_prob" in nlp.get_pipe("crf_textcat").assigns()


def test_the_probability_of_a_text_goes_with_its_label():
    """It stayed with labels that a later component had written; labels of others do not concern it."""
    nlp = trained("bag")
    nlp.get_pipe("crf_textcat").cfg["confidence"] = True
    doc = nlp("play some jazz")
    probability = doc._.crf_prob
    doc.cats["SPORT"] = 1.0
    [saved] = DocBin(docs=[doc], store_user_data=True).get_docs(nlp.vocab)
    read = Doc(nlp.vocab).from_json(doc.to_json(underscore=["crf_prob"]))
    assert [doc._.crf_prob, saved._.crf_prob, read._.crf_prob] == [probability] * 3
    doc.cats.update({"PLAY": 0.0, "BOOK": 1.0})
    assert doc._.crf_prob is None
    doc._.crf_prob = 0.5
    assert doc._.crf_prob == 0.5
    assert nlp(doc)._.crf_prob == probability


def test_an_explanation_may_be_asked_for_later():
    nlp = trained("bag")
    nlp.get_pipe("crf_textcat").cfg["explain"] = True
    assert nlp("play some jazz")._.crf_evidence["label"] == "PLAY"


def test_texts_without_tokens_have_no_reasons_in_vectors():
    """Found by settings drawn at random: the vectors of no words had no shape."""
    nlp = blank("bag", features={**WORDS, "templates": ["lower[0]", "vector[0]"]})
    nlp.vocab.vectors = Vectors(data=np.eye(2, dtype=np.float32), keys=["play", "book"], strings=nlp.vocab.strings)
    pipe = nlp.get_pipe("crf_textcat")
    pipe.initialize(lambda: examples_of(nlp), nlp=nlp)
    pipe.update(examples_of(nlp), sgd=pipe.optimizer)
    assert pipe.evidence(nlp("")) == [] and len(pipe.evidence(nlp("play book"))) == 2


def test_the_word_that_decides_speaks_most_for_the_label():
    nlp = trained("bag")
    evidence = nlp.get_pipe("crf_textcat").evidence(nlp("is there rain on the record"), "WEATHER")
    assert max(evidence, key=lambda item: item[1])[0].text in ("rain", "there", "is")


@pytest.mark.parametrize("kind", MODELS)
def test_inspect_and_weights(kind, tmp_path):
    nlp = trained(kind)
    pipe = nlp.get_pipe("crf_textcat")
    assert {row.tags for row in pipe.weights("PLAY")} == {("PLAY",)}
    assert len(pipe.dump().splitlines()) == len(pipe.weights())
    nlp.to_disk(tmp_path)
    for options in ([], ["--json"]):
        result = CliRunner().invoke(app, ["inspect", str(tmp_path), *options])
        assert result.exit_code == 0 and "lower[0]" in result.output


def test_show_prints_the_labels_of_texts(model, tmp_path):
    """The most probable first, of a pipeline that finds nothing else."""
    model.to_disk(tmp_path)
    result = CliRunner().invoke(app, ["show", str(tmp_path), "play some jazz", "is there rain"])
    assert result.exit_code == 0, result.output
    for text in ("play some jazz", "is there rain"):
        printed = result.output.partition(text)[2].split()
        cats = sorted(model(text).cats.items(), key=lambda item: -item[1])
        assert printed[:6] == [word for name, share in cats for word in (name, f"{share:.0%}")]


def test_update_teaches_new_texts(tmp_path):
    """Words that were not met and a label that was not there; what was learned stays."""
    trained("bag").to_disk(tmp_path / "model")
    new = [("sing a song", "PLAY"), ("tell me what happened today", "NEWS")]
    for name, texts in (("new", new), ("dev", [*TEXTS, *new])):
        lines = [srsly.json_dumps({"text": text, "cats": {cats: 1}}) for text, cats in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf8")
    model, data, dev, after = (str(tmp_path / name) for name in ("model", "new.jsonl", "dev.jsonl", "after"))
    result = CliRunner().invoke(app, ["update", model, data, "--dev", dev, "--output", after])
    assert result.exit_code == 0, result.output
    before, now = map(float, re.search(r"cats_score\W+([\d.]+)\W+([\d.]+)", result.output).groups())
    assert before < now == 100.0
    nlp = spacy.load(after)
    assert [label(nlp(text)) for text, _ in [*TEXTS, *new]] == [cats for _, cats in [*TEXTS, *new]]


# ------------------------------------------------------------------------------------------------------- annotation


def test_missing_and_partial_annotation():
    """A text without cats teaches nothing; one that says what a text is not rules that out."""
    more = [("sing a song", {"BOOK": 0.0, "WEATHER": 0.0}), ("hum", {})]
    nlp = trained("bag", [*TEXTS, *more], steps=6)
    assert label(nlp("sing a song")) == "PLAY" and nlp("sing a song").cats["PLAY"] > 0.5
    pipe = nlp.get_pipe("crf_textcat")
    [silent] = examples_of(nlp, more[1:])
    assert pipe.get_loss([silent], pipe.model.predict([silent.predicted]))[0] == 0.0
    [partial] = examples_of(nlp, more[:1])
    cats = nlp("sing a song").cats
    loss, _ = pipe.get_loss([partial], pipe.model.predict([partial.predicted]))
    assert loss == pytest.approx(-math.log(1 - cats["BOOK"] - cats["WEATHER"]))


@pytest.mark.parametrize(
    "cats, code",
    [({"A": 1.0, "B": 1.0}, "CRF465.*A, B"), ({"A": 0.5}, "CRF466.*0.5"), ({"A": math.nan}, "CRF466.*nan")],
)
def test_cats_that_are_not_exclusive(cats, code):
    nlp = blank()
    with pytest.raises(ValueError, match=code):
        nlp.initialize(lambda: examples_of(nlp, [("x", "A"), ("y", "B"), ("z", cats)]))
    assert not nlp.get_pipe("crf_textcat").labels


@pytest.mark.parametrize("texts", [[("x", "A"), ("y", "A")], [("x", {})]])
def test_fewer_than_two_labels(texts):
    nlp = blank()
    with pytest.raises(ValueError, match=r"CRF469|CRF403"):
        nlp.initialize(lambda: examples_of(nlp, texts))


@pytest.mark.parametrize(
    "config, code",
    [
        ({"exclusive_classes": False}, "CRF020.*exclusive_classes.*multilabel"),
        ({"model": MODELS["counts"], "multilabel": True}, "CRF480.*naive_bayes.*MaxEntText"),
        ({"multilabel": True, "loss": {"@losses": "spacy_crf.MaxMargin.v1", "label_weights": {"A": 2.0}}}, "CRF482"),
        ({"threshold": {"PLAY": 0.5}}, "CRF020.*threshold.*multilabel"),
        ({"threshold": 2.0}, "CRF020.*threshold"),
        ({"loss": 0.5}, r"CRF020.*loss = 0\.5"),
        ({"model": {**MODELS["counts"], "alpha": 0.0}}, "CRF020.*alpha"),
        ({"features": {**WORDS, "transitions": ["lower[0]"]}}, "CRF020.*transitions"),
        ({"model": {"@architectures": "spacy_crf.LinearChain.v1"}}, "CRF020.*architecture of texts"),
    ],
)
def test_settings_that_are_not_possible(config, code):
    config = dict(config)
    with pytest.raises(ValueError, match=code):
        blank(config.pop("model", "bag"), config.pop("features", None), **config)


def test_models_of_texts_are_not_for_tokens():
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": WORDS}
    with pytest.raises(ValueError, match=r"CRF020.*LinearChain"):
        spacy.blank("en").add_pipe("crf_ner", config={"model": {**MODELS["bag"], "emissions": emissions}})


def test_long_texts():
    nlp = trained("bag")
    doc = Doc(nlp.vocab, words=["play", "."] * 50_000)
    nlp.get_pipe("crf_textcat")(doc)
    assert label(doc) == "PLAY" and math.isclose(sum(doc.cats.values()), 1.0)


# ---------------------------------------------------------------------------------------------- the contract of textcat


def test_spacy_train(tmp_path):
    docs = [example.reference for example in examples_of(blank(), TEXTS)]
    DocBin(docs=docs).to_disk(tmp_path / "texts.spacy")
    paths = {f"paths.{name}": str(tmp_path / "texts.spacy") for name in ("train", "dev")}
    config = load_config(CONFIG, overrides={**paths, "training.max_steps": 3})
    _, saved = train(init_nlp(config), tmp_path, stdout=io.StringIO(), stderr=io.StringIO())
    scores = spacy.load(saved).evaluate(examples_of(blank(), TEXTS))
    assert scores["cats_score"] == 1.0 and scores["cats_score_desc"] == "macro F"


def test_labels_are_added_and_learned():
    nlp = trained("bag")
    pipe = nlp.get_pipe("crf_textcat")
    assert (pipe.add_label("NEWS"), pipe.add_label("NEWS"), pipe.labels[-1]) == (1, 0, "NEWS")
    assert set(nlp("play jazz").cats) == {"PLAY", "BOOK", "WEATHER", "NEWS"}
    more = examples_of(nlp, [*TEXTS, ("tell me what happened today", "NEWS")])
    for _ in range(5):
        nlp.update(more)
    assert label(nlp("tell me what happened today")) == "NEWS" and label(nlp("play some jazz")) == "PLAY"


def test_positive_label():
    nlp, texts = blank(), [("x", "A"), ("y", "B")]
    pipe = nlp.get_pipe("crf_textcat")
    pipe.initialize(lambda: examples_of(nlp, texts), nlp=nlp, positive_label="A")
    for _ in range(3):
        pipe.update(examples_of(nlp, texts), sgd=pipe.optimizer)
    assert nlp.evaluate(examples_of(nlp, texts))["cats_score_desc"] == "F (A)"
    with pytest.raises(ValueError, match=r"CRF020.*C"):
        pipe.initialize(lambda: examples_of(nlp, texts), nlp=nlp, positive_label="C")
    assert pipe.cfg["positive_label"] == "A"


OPTIMIZERS = [
    "spacy_crf.LBFGS.v1",
    "spacy_crf.Minibatch.v1",
    "Adam.v1",
    "SGD.v1",
    "spacy_crf.SGD.v1",
    "spacy_crf.AdaGrad.v1",
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    rate = {"learn_rate": 0.1} if not optimizer.startswith("spacy_crf") else {}
    nlp = blank("bag", optimizer={"@optimizers": optimizer, **rate})
    pipe, examples = nlp.get_pipe("crf_textcat"), examples_of(nlp)
    pipe.initialize(lambda: examples, nlp=nlp)
    for _ in range(40):
        pipe.update(examples, sgd=pipe.optimizer)
    assert [label(nlp(text)) for text, _ in TEXTS] == [cats for _, cats in TEXTS]


@pytest.mark.parametrize("loss", ["SoftmaxMargin", "MaxMargin", "Perceptron"])
def test_every_loss_learns_labels_of_texts(loss):
    minibatch = {"@optimizers": "spacy_crf.Minibatch.v1", "learn_rate": 0.1}
    nlp = trained("bag", steps=25, optimizer=minibatch, loss={"@losses": f"spacy_crf.{loss}.v1"})
    assert [label(nlp(text)) for text, _ in TEXTS] == [cats for _, cats in TEXTS]


@pytest.mark.parametrize("unit", ["token", "sent", "text"])
def test_empty_texts_in_batches_with_as_many_texts_as_tokens(unit):
    """The scores of tokens were taken for those of texts: a text of two words beside an empty one got a wrong label."""
    texts = np.array([0, 2, 2])
    rows = UnitRows.of(unit, texts, texts)
    expected = [[3.0], [0.0]] if unit == "text" else [[3.0]] if unit == "sent" else [[1.0], [2.0]]
    assert rows.total(np.array([[1.0], [2.0]])).tolist() == expected
