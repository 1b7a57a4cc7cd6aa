"""Several labels of a text, independent of each other: sums against enumeration, and the component."""

import io
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import spacy
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from spacy_crf.inference.independent_labels import IndependentLabels, LabelSetScores
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from tests.structures import assert_derivative

STRUCTURE = IndependentLabels()
CONFIG = Path(__file__).parents[2] / "configs" / "crf_textcat_multilabel.cfg"
TEXTS = [
    ("a comedy of love", "COMEDY ROMANCE"),
    ("a war film", "WAR"),
    ("funny love", "COMEDY ROMANCE"),
    ("love in battle", "ROMANCE WAR"),
    ("about nothing", ""),
]
LABELS = ("COMEDY", "ROMANCE", "WAR")
WORDS = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
LBFGS = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.02}


def random_scores(n_labels=4, scale=1.0):
    labels = scale * np.random.default_rng(0).normal(size=(4, 2 * n_labels))
    return LabelSetScores(labels, np.arange(5))


def random_clamp(scores):
    """Texts without annotation, partly annotated, fully annotated, and one that can have no labelling."""
    random, n = np.random.default_rng(1), scores.labels.shape[1] // 2
    present = random.random((4, n)) < 0.5
    known = random.random((4, n)) < np.array([0.0, 0.5, 1.0, 0.5])[:, np.newaxis]
    clamp = np.hstack([present | ~known, ~present | ~known])
    clamp[3, [0, n]] = False
    return clamp


def enumerated(row, allowed):
    """The score of every set of labels of a text that is possible."""
    n, found = len(row) // 2, {}
    for y in product((0, 1), repeat=n):
        places = [j if y[j] else n + j for j in range(n)]
        if all(allowed[place] for place in places):
            found[y] = sum(row[place] for place in places)
    return found


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("n_labels", [1, 2, 6])
def test_sums_and_maxima_are_those_of_enumeration(n_labels, scale):
    scores = random_scores(n_labels, scale)
    for clamp in (None, random_clamp(scores)):
        log_z, best = STRUCTURE.log_partition(scores, clamp=clamp), STRUCTURE.viterbi(scores, clamp=clamp)
        marginals = STRUCTURE.marginals(scores, clamp=clamp)
        for text, row in enumerate(scores.labels):
            found = enumerated(row, np.ones(len(row), dtype=bool) if clamp is None else clamp[text])
            if not found:
                assert log_z[text] == best.scores[text] == -np.inf
                assert (best.states[text] == -1).all() and not marginals[text].any()
                continue
            expected = np.logaddexp.reduce([*found.values()])
            assert log_z[text] == pytest.approx(expected, abs=1e-9 * scale)
            assert best.scores[text] == pytest.approx(max(found.values()), abs=1e-9 * scale)
            assert found[tuple(best.states[text].tolist())] == pytest.approx(max(found.values()), abs=1e-9 * scale)
            for j in range(n_labels):
                having = sum(math.exp(value - expected) for y, value in found.items() if y[j])
                assert marginals[text, [j, n_labels + j]] == pytest.approx([having, 1.0 - having], abs=1e-9)


@pytest.mark.parametrize("loss", [LogLikelihood(), SoftmaxMargin(), MaxMargin(), Perceptron()], ids=repr)
def test_gradients_are_finite_differences(loss):
    scores = random_scores()
    clamp, weights = random_clamp(scores), np.array([1.0, 2.0, 0.5, 3.0])
    losses, d_scores, impossible = loss(STRUCTURE, scores, clamp, weights=weights)
    assert impossible.tolist() == [False, False, False, True] and (losses >= 0).all()
    assert_derivative(lambda moved: loss(STRUCTURE, moved, clamp, weights=weights)[0].sum(), scores, d_scores)


def test_no_texts_and_scores_that_are_no_numbers():
    scores = random_scores()
    assert STRUCTURE.marginals(scores._replace(labels=scores.labels[:0], starts=np.arange(1))).shape == (0, 8)
    scores.labels[1, 2] = np.nan
    with pytest.raises(ValueError, match="CRF010"):
        STRUCTURE.log_partition(scores)


# --------------------------------------------------------------------------------------------------------- component


def blank(**config):
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": WORDS, "possible_states": True}
    model = {"@architectures": "spacy_crf.MaxEntText.v1", "emissions": emissions}
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_textcat", config={"multilabel": True, "optimizer": LBFGS, "model": model, **config})
    return nlp


def examples_of(nlp, texts=TEXTS):
    for text, labels in texts:
        cats = labels if isinstance(labels, dict) else {label: float(label in labels.split()) for label in LABELS}
        yield Example.from_dict(nlp.make_doc(text), {"cats": cats})


def trained(texts=TEXTS, steps=6, **settings):
    nlp = blank(**settings)
    pipe, examples = nlp.get_pipe("crf_textcat"), [*examples_of(nlp, texts)]
    nlp.initialize(lambda: examples)
    for _ in range(steps):
        pipe.update(examples, sgd=pipe.optimizer)
    return nlp


@pytest.mark.parametrize("loss", ["LogLikelihood", "SoftmaxMargin", "MaxMargin", "Perceptron"])
@pytest.mark.parametrize("optimizer", ["LBFGS", "Minibatch"])
def test_learns_its_texts(optimizer, loss):
    settings = {"loss": {"@losses": f"spacy_crf.{loss}.v1"}, "optimizer": LBFGS}
    if optimizer == "Minibatch":
        settings["optimizer"] = {"@optimizers": "spacy_crf.Minibatch.v1", "learn_rate": 0.1}
    if optimizer == "LBFGS" and loss in ("MaxMargin", "Perceptron"):
        with pytest.raises(ValueError, match="CRF210"):
            trained(**settings)
        return
    nlp = trained(steps=30 if optimizer == "Minibatch" else 6, **settings)
    pipe = nlp.get_pipe("crf_textcat")
    for text, labels in TEXTS:
        doc = nlp(text)
        assert sorted(pipe.labels_of(doc)) == labels.split() == pipe.best_labels(doc)
        assert set(doc.cats) == set(LABELS) and all(0.0 <= value <= 1.0 for value in doc.cats.values())
    scores = nlp.evaluate([*examples_of(nlp)])
    assert scores["cats_micro_f"] == 1.0 and scores["cats_score_desc"] == "macro AUC"


def test_nothing_but_multilabel_has_to_be_set():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_textcat", config={"multilabel": True, "optimizer": LBFGS})
    examples = [*examples_of(nlp)]
    nlp.initialize(lambda: examples)
    for _ in range(6):
        nlp.update(examples)
    assert [sorted(pipe.labels_of(nlp(text))) for text, _ in TEXTS] == [labels.split() for _, labels in TEXTS]


def test_each_label_is_a_logistic_regression():
    """The weights of scikit-learn, whose C is 1 / (2 l2), and which penalizes the bias with liblinear alone."""
    exact = {**LBFGS, "tolerance": 1e-12, "period": 50, "delta": 1e-14}
    texts = TEXTS[:-1]
    nlp = trained(texts, steps=30, optimizer=exact)
    counts = CountVectorizer(token_pattern=r"\S+")
    found = counts.fit_transform([text for text, _ in texts])
    new = ["love and war", "a funny film", ""]
    for label in LABELS:
        regression = LogisticRegression(C=1 / (2 * LBFGS["l2"]), solver="liblinear", tol=1e-10, max_iter=10_000)
        regression.fit(found, [label in labels.split() for _, labels in texts])
        theirs = regression.predict_proba(counts.transform(new))[:, 1]
        assert [nlp(text).cats[label] for text in new] == pytest.approx(theirs, abs=1e-4)


def test_saved_models_say_the_same(tmp_path):
    nlp, texts = trained(), [text for text, _ in TEXTS] + ["", "words never met", "love"]
    before = [doc.cats for doc in nlp.pipe(texts)]
    nlp.to_disk(tmp_path)
    assert [doc.cats for doc in spacy.load(tmp_path).pipe(texts)] == before
    again = spacy.util.load_model_from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert [doc.cats for doc in again.pipe(texts)] == before
    assert [doc.cats for doc in nlp.pipe(texts, n_process=2, batch_size=4)] == before


def test_labels_that_are_not_annotated_are_free():
    """Labels whose value is missing in a text count neither as present nor as absent."""
    more = [("sing a song", {"WAR": 0.0}), ("hum", {})]
    nlp = trained([*TEXTS, *more])
    pipe = nlp.get_pipe("crf_textcat")
    partial, silent = examples_of(nlp, more)
    assert pipe.get_loss([silent], pipe.model.predict([silent.predicted]))[0] == 0.0
    loss, _ = pipe.get_loss([partial], pipe.model.predict([partial.predicted]))
    assert loss == pytest.approx(-math.log(1 - nlp("sing a song").cats["WAR"]))


def test_thresholds_confidence_and_new_labels():
    nlp = trained(threshold={"WAR": 0.999999, "*": 0.0}, confidence=True)
    pipe, doc = nlp.get_pipe("crf_textcat"), nlp("a war film")
    assert set(pipe.labels_of(doc)) == {"COMEDY", "ROMANCE"}
    assert doc._.crf_prob == pytest.approx(doc.cats["COMEDY"] * doc.cats["ROMANCE"] * (1 - doc.cats["WAR"]))
    scores = nlp.evaluate([*examples_of(nlp)])["cats_f_per_type"]
    assert scores["WAR"]["r"] == 0.0 and scores["COMEDY"]["r"] == 1.0
    with pytest.raises(ValueError, match=r"CRF846.*threshold.*PEACE"):
        trained(threshold={"PEACE": 0.5})
    assert pipe.add_label("SONG") == 1 and nlp("love").cats["SONG"] == 0.5
    none = dict.fromkeys(LABELS, 0.0)
    more = [(text, {**none, **dict.fromkeys(labels.split(), 1.0), "SONG": 0.0}) for text, labels in TEXTS]
    examples = [*examples_of(nlp, [*more, ("sing", {**none, "SONG": 1.0})])]
    for _ in range(6):
        nlp.update(examples)
    assert nlp("sing").cats["SONG"] > 0.5 > nlp("a war film").cats["SONG"]


def test_evidence_and_explanations():
    nlp = trained(explain=True)
    pipe, doc = nlp.get_pipe("crf_textcat"), nlp("love in battle")
    odds = math.log(doc.cats["WAR"] / (1 - doc.cats["WAR"]))
    for span, evidence in pipe.evidence(doc, "WAR"):
        rest = nlp(" ".join(token.text for token in doc if token.i != span.start)).cats["WAR"]
        assert evidence == pytest.approx(odds - math.log(rest / (1 - rest)), abs=1e-5)
    assert doc._.crf_evidence["label"] == max(doc.cats, key=doc.cats.get)
    for kind in ("contrast", "log_odds", "words"):
        why = pipe.explain(doc, "WAR", kind=kind)
        assert why.target == pytest.approx(odds, abs=1e-6) == why.totals["log-odds"]
        assert kind == "words" or abs(why.check) < 1e-6
        assert kind == "words" or {row.tags for row in why.rows} == {("WAR",)}  # other labels say nothing about it
    for options, message in (
        ({"kind": "leave_out"}, "CRF838.*leave_out"),
        ({"kind": "texts"}, "CRF840.*do not exclude"),
        ({"against": "COMEDY"}, "CRF838.*do not exclude"),
    ):
        with pytest.raises(ValueError, match=message):
            pipe.explain(doc, "WAR", **options)
    assert {row.tags for row in pipe.weights("WAR")} == {("WAR",)}


def test_optimizers_that_learn_from_one_text_after_the_other():
    with pytest.raises(ValueError, match=r"CRF365.*max_ent_text"):
        blank(optimizer={"@optimizers": "spacy_crf.SGD.v1"})


def test_spacy_train(tmp_path):
    docs = [example.reference for example in examples_of(blank(), 3 * TEXTS)]
    DocBin(docs=docs).to_disk(tmp_path / "texts.spacy")
    paths = {f"paths.{name}": str(tmp_path / "texts.spacy") for name in ("train", "dev")}
    config = load_config(CONFIG, overrides={**paths, "training.max_steps": 3})
    _, saved = train(init_nlp(config), tmp_path, stdout=io.StringIO(), stderr=io.StringIO())
    assert spacy.load(saved).evaluate([*examples_of(blank())])["cats_micro_f"] > 0.9
