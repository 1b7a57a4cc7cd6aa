"""The estimator against CRFsuite, and in scikit-learn's hands."""

import copy
import importlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_predict

from spacy_crf.sklearn import CRF

WORDS = ["the", "dog", "barks", "A", "cat", "sleeps", "Dogs", "bark", "3", "old"]
LABELS = ["DT", "NN", "VB"]
TOGETHER = {"epsilon": 1e-9, "delta": 0.0, "max_iterations": 400}  # until they converge


def features(words, t):
    word = words[t]
    own = {"bias": 1.0, "word": word.lower(), "title": word.istitle(), "digit": word.isdigit(), "length": len(word) / 4}
    own["ends"] = [word[-1:], word[-2:]]
    if t > 0:
        own["before"] = {"word": words[t - 1], "upper": words[t - 1].isupper()}
    else:
        own["BOS"] = True
    return own


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X, y = [], []
    for length in [4, 1, 7, 3, 3, 9, 2, 5, 0, 6, 8, 4]:
        words = [WORDS[n] for n in rng.integers(len(WORDS), size=length)]
        X.append([features(words, t) for t in range(length)])
        y.append([LABELS[(len(word) + int(rng.integers(2))) % 3] for word in words])
    return X, y


@pytest.fixture(scope="module")
def fitted(data):
    return CRF(c1=0.05, c2=0.1, max_iterations=30).fit(*data)


def crfsuite(X, y, folder, **params):
    """RETURNS: Its tagger, its objective at the end, and how many features it made."""
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    trainer = pycrfsuite.Trainer(verbose=False, params=params)
    for rows, labels in zip(X, y):
        trainer.append(rows, labels)
    trainer.train(str(folder / "model"))
    tagger = pycrfsuite.Tagger()
    tagger.open(str(folder / "model"))
    return tagger, trainer.logparser.last_iteration["loss"], trainer.logparser.featgen_num_features


SETTINGS = [
    {"c2": 0.1},
    {"c1": 0.2, "c2": 0.05},
    {"c2": 0.1, "all_possible_states": True, "all_possible_transitions": True},
    {"c2": 0.1, "min_freq": 3},
]
THEIRS = {
    "min_freq": "feature.minfreq",
    "all_possible_states": "feature.possible_states",
    "all_possible_transitions": "feature.possible_transitions",
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_learns_what_crfsuite_learns(data, settings, tmp_path):
    """Same features, same objective, same labels, same probabilities."""
    X, y = data
    theirs = {THEIRS.get(name, name): value for name, value in settings.items()}
    tagger, objective, _ = crfsuite(X, y, tmp_path, **theirs, **TOGETHER)
    crf = CRF(**settings, **TOGETHER).fit(X, y)
    assert crf.objective_ == pytest.approx(objective, rel=1e-4)
    info = tagger.info()
    if "c1" not in settings:
        assert crf.state_features_.keys() == info.state_features.keys()
        assert crf.transition_features_.keys() == info.transitions.keys()
    for pair, weight in info.state_features.items():
        assert crf.state_features_.get(pair, 0.0) == pytest.approx(weight, abs=0.02)
    assert crf.classes_ == tagger.labels()
    assert [list(labels) for labels in crf.predict(X)] == [tagger.tag(rows) for rows in X]
    for rows, marginals in zip(X, crf.predict_marginals(X)):
        tagger.set(rows)
        for t, of_token in enumerate(marginals):
            assert of_token == pytest.approx({label: tagger.marginal(label, t) for label in crf.classes_}, abs=0.01)


def test_sequences_of_strings(data):
    _, y = data
    X = [[["a", f"at {t}"] for t in range(len(labels))] for labels in y]
    crf = CRF(c2=0.01, max_iterations=20).fit(X, y)
    assert set(crf.attributes_) == {"a", *(f"at {t}" for t in range(9))}
    assert crf.predict_single(X[0]) == crf.predict(X)[0]


def test_one_is_as_all(data, fitted):
    X, y = data
    found = fitted.predict(X)
    assert found.shape == (len(X),)
    assert [len(labels) for labels in found] == [*map(len, X)]
    assert [fitted.predict_single(rows) for rows in X] == found.tolist()
    for one, other in zip(fitted.predict_marginals_single(X[0]), fitted.predict_marginals(X)[0], strict=True):
        assert one == pytest.approx(other)
    right = [a == b for gold, labels in zip(y, found) for a, b in zip(gold, labels)]
    assert fitted.score(X, y) == pytest.approx(np.mean(right))
    assert len(fitted.predict([])) == 0
    assert fitted.predict_single([]) == []


def test_equal_lengths_stay_sequences(fitted, data):
    rows = data[0][0]
    assert fitted.predict([rows, rows]).shape == (2,)


def test_clone_forgets_what_was_learned(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError, match="CRF851"):
        again.predict([])


@pytest.mark.parametrize("search", [GridSearchCV, RandomizedSearchCV])
def test_searches(data, search):
    more = {"n_iter": 2} if search is RandomizedSearchCV else {}
    found = search(CRF(max_iterations=5), {"c1": [0.0, 0.1], "c2": [0.1]}, cv=2, **more).fit(*data)
    assert found.best_params_["c2"] == 0.1
    assert len(found.predict(data[0])) == len(data[0])


def test_cross_val_predict(data):
    X, y = data
    found = cross_val_predict(CRF(max_iterations=5), X, y, cv=3)
    assert [len(labels) for labels in found] == [*map(len, y)]


def test_saved_and_loaded(data, fitted, tmp_path):
    path = tmp_path / "crf"
    fitted.save(path)
    for again in (CRF.load(path), pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert again.get_params() == fitted.get_params()
        assert again.state_features_ == fitted.state_features_
        assert (again.objective_, again.n_iter_) == (fitted.objective_, fitted.n_iter_)
        assert again.predict(data[0]).tolist() == fitted.predict(data[0]).tolist()
    assert pickle.loads(pickle.dumps(CRF(c1=0.5))).c1 == 0.5


def test_damaged_files_are_told(fitted, tmp_path):
    path = tmp_path / "crf"
    fitted.save(path)
    data = path.read_bytes()
    for broken, code in ((b"", "CRF501"), (b"pickle" + data, "CRF501"), (data[:-9], "CRF508"), (data + b"x", "CRF508")):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=code):
            CRF.load(path)


WRONG = [
    ([[{"a": None}]], [["x"]], r"CRF111: X\[0\]\[0\]: {'a': None}"),
    ([[["a"]], [["a"], {"n": float("nan")}]], [["x"], ["x", "x"]], r"CRF111: X\[1\]\[1\]: nan"),
    ([["a"]], [["x"]], r"CRF111: X\[0\]\[0\]: 'a'"),
    ([[["\ud800"]]], [["x"]], "CRF131"),
    ([[["a"]]], [["x"], ["y"]], "CRF853.*1 sequences, y has 2"),
    ([[["a"]]], [["x", "y"]], "CRF853.*sequence 0 has 1 tokens in X and 2 labels"),
    ([[["a"]]], [[3]], "CRF853.*label 3"),
    ([[{"a": 1e308}]], [["x"]], r"CRF111: X\[0\]\[0\]: 1e\+308 is not a feature.*at most 3.4e38"),
    ([[{"a": {"b": 10**400}}]], [["x"]], r"CRF111: X\[0\]\[0\]: 1000"),
    ([[["a"]], [["b"]]], [1, 2], r"CRF853.*y\[0\] is 1\."),  # a label for each sequence, as of classifiers
    ([[["a"]]], ["x"], r"CRF853.*y\[0\] is 'x'\."),
    ([[["a"]]], 1.5, r"CRF853.*y is 1.5\."),
    (None, [["x"]], r"CRF853.*X is None\."),
    ([[["a"]], None], [["x"], ["x"]], r"CRF853.*X\[1\] is None\."),
    ([[]], [[]], "CRF853.*no token"),
    ([], [], "CRF853.*no token"),
]


def test_what_is_scored_goes_together():
    """Sequences without labels were left out without a word."""
    X, y = [[["a"]], [["b"], ["a"]]], [["x"], ["y", "x"]]
    fitted = CRF(max_iterations=2).fit(X, y)
    for labels, message in ((y[:1], "2 sequences, y has 1"), ([["x"], ["y"]], "sequence 1 has 2 tokens")):
        with pytest.raises(ValueError, match=f"CRF853.*{message}"):
            fitted.score(X, labels)


@pytest.mark.parametrize("X, y, message", WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named(X, y, message):
    with pytest.raises(ValueError, match=message):
        CRF().fit(X, y)


@pytest.mark.parametrize("X", [None, 3, "text", [None], [3], ["text"], {"a": 1}, np.array([1.0]), object()])
def test_what_is_no_sequence_is_named_in_each_method(fitted, X):
    for method in (fitted.predict, fitted.predict_marginals, lambda X: fitted.score(X, [["x"]])):
        with pytest.raises(ValueError, match=r"CRF853.*X(\[0\])? is"):
            method(X)
    for method in (fitted.predict_single, fitted.predict_marginals_single, fitted.tag_rows):
        with pytest.raises(ValueError, match=r"CRF853|CRF111"):
            method(X)


@pytest.mark.parametrize(
    "params", [{"algorithm": "ap"}, {"c1": -1}, {"c2": "1"}, {"max_iterations": 0}, {"min_freq": None}], ids=str
)
def test_parameters_are_checked(params):
    [name] = params
    with pytest.raises(ValueError, match=f"CRF020: CRF: {name}"):
        CRF(**params).fit([[["a"]]], [["x"]])


def test_without_scikit_learn_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "spacy_crf.sklearn")
    with pytest.raises(ImportError, match="CRF781") as error:
        importlib.import_module("spacy_crf.sklearn")
    assert "pip install 'spacy-crf[sklearn]'" in str(error.value)


def test_import_is_light():
    """Importing the module imports nothing slow but scikit-learn; the rest waits until a CRF is first trained or used."""
    heavy = "{'spacy', 'thinc', 'numba', 'srsly'} & sys.modules.keys()"
    command = f"import sys, spacy_crf.sklearn as s; assert not {heavy}; s.CRF(c1=0.5).get_params(); assert not {heavy}"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_rows_of_columns():
    rows = [[["the", "DT"], ["kestrel", "NN"]], [["a", "DT"], ["heron", "NN"]]]
    crf = CRF(max_iterations=20).fit(rows, [["B", "I"], ["B", "I"]])
    assert crf.tag_rows([["the", "DT"], ["heron", "NN"]]) == ["B", "I"]
