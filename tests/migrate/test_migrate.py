"""Models of other programs against these programs, and files that are broken."""

import pickle
import random
import struct

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.migrate.checking import compare, crfsuite_rival, scorer_of
from spacy_crf.migrate.crfsuite import read_crfsuite, write_crfsuite
from spacy_crf.migrate.foreign import ForeignModel, Weighted
from spacy_crf.migrate.functions import FILE_NAME, find_function, register_features
from spacy_crf.migrate.pipeline import build_pipeline, features_of, weights_of
from tests.util import TAG_TEXTS, ner_examples, set_constraints, tag_examples

WORDS = ["the", "The", "dog", "barks", "é", "新", "x", "cats"]


def word_features(words):
    """As users of sklearn-crfsuite write them."""
    return [
        {"w": word, "title": word.istitle(), "n": len(word) / 2, "next": {"w": words[t + 1 : t + 2]}}
        for t, word in enumerate(words)
    ]


def random_words(n, seed=0):
    rng = random.Random(seed)
    return [[rng.choice(WORDS) for _ in range(rng.randint(1, 8))] for _ in range(n)]


@pytest.fixture(scope="module")
def crfsuite_file(tmp_path_factory):
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    trainer = pycrfsuite.Trainer(verbose=False, params={"c1": 0.01, "c2": 0.01, "max_iterations": 30})
    rng = random.Random(1)
    for words in random_words(30, 1):
        trainer.append(word_features(words), [rng.choice(["A", "B-ü", "C"]) for _ in words])
    path = tmp_path_factory.mktemp("crfsuite") / "model.crfsuite"
    trainer.train(str(path))
    return path


@pytest.fixture(scope="module")
def crfsuite_model(crfsuite_file):
    return read_crfsuite(crfsuite_file.read_bytes(), crfsuite_file.name)


@pytest.fixture(scope="module")
def tagger(crfsuite_file):
    import pycrfsuite

    tagger = pycrfsuite.Tagger()
    tagger.open(str(crfsuite_file))
    return tagger


@pytest.fixture(scope="module")
def imported(crfsuite_model):
    register_features("tests.word_features", word_features, columns=["orth"])
    return build_pipeline(crfsuite_model, {"imported": {"@misc": "tests.word_features"}}, reads=["orth"])


def test_crfsuite_files_are_read(crfsuite_model, tagger):
    info = tagger.info()
    states = crfsuite_model.states
    assert crfsuite_model.labels == tagger.labels()
    found = {
        (states.names[row], crfsuite_model.labels[column]): weight
        for row, column, weight in zip(states.rows, states.columns, states.weights)
    }
    assert found == pytest.approx(info.state_features, abs=1e-6)
    labels = crfsuite_model.labels
    steps = {
        (labels[i], labels[j]): crfsuite_model.transitions[i, j] for i, j in np.argwhere(crfsuite_model.transitions)
    }
    assert steps == pytest.approx(info.transitions, abs=1e-6)


def test_imported_from_crfsuite_gives_its_labels_and_probabilities(imported, crfsuite_model, crfsuite_file, tagger):
    docs = [Doc(imported.vocab, words=words) for words in random_words(60, 2)]
    found = compare(imported, crfsuite_model, docs, crfsuite_rival(crfsuite_file))
    assert (found.sequences, found.different) == (60, 0)
    crf = imported.get_pipe("crf_tagger")
    for doc in docs[:10]:
        marginals, tags = crf.marginals(doc)
        tagger.set(word_features([token.text for token in doc]))
        assert marginals == pytest.approx(
            np.array([[tagger.marginal(tag, t) for tag in tags] for t in range(len(doc))]), abs=1e-5
        )


def test_imported_pipelines_are_saved_and_loaded(imported, tmp_path):
    imported.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    for words in random_words(10, 3):
        one, other = (nlp(Doc(nlp.vocab, words=words)) for nlp in (imported, again))
        assert [token.tag_ for token in one] == [token.tag_ for token in other]


def test_a_doc_of_several_sentences_is_several_sequences(imported):
    one, other = random_words(2, 4)
    doc = Doc(
        imported.vocab,
        words=one + other,
        sent_starts=[True] + [False] * (len(one) - 1) + [True] + [False] * (len(other) - 1),
    )
    expected = [token.tag_ for words in (one, other) for token in imported(Doc(imported.vocab, words=words))]
    assert [token.tag_ for token in imported(doc)] == expected


def test_a_comparison_tells_what_differs(imported, crfsuite_model):
    docs = [Doc(imported.vocab, words=words) for words in random_words(5, 5)]
    found = compare(imported, crfsuite_model, docs, lambda doc, rows: ["A"] * len(doc))
    assert found.different > 0 and found.ties == 0 and found.largest_gap > 1e-5
    assert not found.is_same


def test_scores_are_sums_of_weights(crfsuite_model, tagger):
    words = random_words(1, 6)[0]
    rows, score = word_features(words), scorer_of(crfsuite_model)
    one, other = tagger.tag(rows), ["C"] * len(words)
    gap = np.log(tagger.probability(one)) - np.log(tagger.probability(other))
    assert score(rows, None, one) - score(rows, None, other) == pytest.approx(gap, abs=1e-9)


# ---------------------------------------------------------------------------------------------------------- writing


def test_crfsuite_reads_what_is_written(crfsuite_model, tagger, tmp_path):
    import pycrfsuite

    write_crfsuite(crfsuite_model, tmp_path / "again")
    again = pycrfsuite.Tagger()
    again.open(str(tmp_path / "again"))
    assert again.labels() == tagger.labels()
    for words in random_words(20, 7):
        rows = word_features(words)
        assert again.tag(rows) == tagger.tag(rows)
        assert again.probability(again.tag(rows)) == pytest.approx(tagger.probability(tagger.tag(rows)), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 300, 5000])
def test_any_number_of_attributes_is_found(n, tmp_path):
    """Names of all lengths, also those that hashing takes twelve bytes at a time."""
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    rng = np.random.default_rng(n)
    names = [f"{k}{'é' * (k % 15)}" for k in range(n)]
    weights = Weighted(names, np.arange(n), rng.integers(2, size=n), rng.normal(size=n))
    write_crfsuite(ForeignModel("test", ["A", "B"], weights, np.array([[0.0, 1.0], [-1.0, 0.5]])), tmp_path / "model")
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "model"))
    for k in range(0, n, max(1, n // 50)):
        tagger.set([[names[k]]])
        weight = weights.weights[k] * (1 if weights.columns[k] == 0 else -1)
        assert tagger.marginal("A", 0) == pytest.approx(1 / (1 + np.exp(-weight)))
    again = read_crfsuite((tmp_path / "model").read_bytes(), "model")
    assert again.states.names == names


@pytest.fixture(scope="module")
def trained():
    nlp = spacy.blank("en")
    templates = ["lower[-1..1]", "suffix2[0]", "bias"]
    block = {"@misc": "spacy_crf.features.v1", "templates": templates}
    nlp.add_pipe("crf_tagger", config={"model": {"emissions": {"features": block}}})
    examples = tag_examples(nlp)
    optimizer = registry.optimizers.get("spacy_crf.LBFGS.v1")(l2=0.1, iterations_per_step=20)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=optimizer)
    return nlp


def test_exported_to_crfsuite(trained, tmp_path):
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    write_crfsuite(weights_of(trained), tmp_path / "model")
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "model"))
    texts = [*(text.replace("/", " ").split()[::2] for text in TAG_TEXTS), ["a", "bark"], ["loudly"]]
    docs = [Doc(trained.vocab, words=words) for words in texts]
    for doc, rows in zip(docs, features_of(trained, docs), strict=True):
        marginals, tags = trained.get_pipe("crf_tagger").marginals(doc)
        tagger.set(rows)
        expected = [[tagger.marginal(tag, t) for tag in tags] for t in range(len(doc))]
        assert marginals == pytest.approx(np.array(expected), abs=1e-5)
        assert tagger.tag(rows) == [token.tag_ for token in trained(doc)]


@pytest.mark.parametrize("scheme", ["BIO", "BILUO"])
def test_a_default_model_of_entities_is_exported(scheme, tmp_path):
    """Its scheme forbids transitions, and the command only said "Export one without"."""
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    nlp = spacy.blank("en")
    crf, examples = nlp.add_pipe("crf_ner", config={"scheme": scheme}), ner_examples(nlp)
    optimizer = registry.optimizers.get("spacy_crf.LBFGS.v1")(l2=1.0, iterations_per_step=2)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=optimizer)
    write_crfsuite(weights_of(nlp), tmp_path / "model")
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "model"))
    rng, seen = random.Random(0), [token.text for example in examples for token in example.reference]
    docs = [Doc(nlp.vocab, words=rng.choices(seen, k=rng.randint(1, 6))) for _ in range(20)]
    for doc, rows in zip(docs, features_of(nlp, docs), strict=True):
        marginals, tags = crf.marginals(doc)
        tagger.set(rows)
        expected = [[tagger.marginal(tag, t) for tag in tags] for t in range(len(doc))]
        assert marginals == pytest.approx(np.array(expected), abs=1e-5)


def test_what_was_imported_is_exported_as_it_was(imported, crfsuite_model, tmp_path):
    again = weights_of(imported)
    assert again.labels == crfsuite_model.labels
    used = sorted({crfsuite_model.states.names[row] for row in crfsuite_model.states.rows})
    assert sorted(again.states.names) == used
    assert again.n_weights == crfsuite_model.n_weights


def test_what_crfsuite_has_not_is_not_exported(trained):
    blank = spacy.blank("en")
    with pytest.raises(ValueError, match=r"CRF710.*none"):
        weights_of(blank)
    ner = spacy.blank("en")
    ner.add_pipe("crf_ner")
    with pytest.raises(ValueError, match="CRF710"):
        weights_of(ner)
    crf = trained.get_pipe("crf_tagger")
    crf.add_rule({"rule": "forbid_pair", "labels": ["DT", "VB"]})
    try:
        with pytest.raises(ValueError, match=r"CRF858.*rules.*\[components.crf_tagger.constraints\]"):
            weights_of(trained)
    finally:
        set_constraints(crf, None)


# ----------------------------------------------------------------------------------------------------- broken files


def test_pickles_are_not_read():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ValueError, match=r"CRF855: model\.pkl is a pickle"):
            read_crfsuite(pickle.dumps({"a": 1}, protocol=protocol), "model.pkl")


def refused(data):
    """Whether a file is refused with a code; any other error is a mistake."""
    try:
        read_crfsuite(data, "broken")
    except ValueError as error:
        assert str(error).startswith("CRF854: broken can't be read as a model of CRFsuite: "), error
        return True
    return False


def test_cut_off_files_are_refused(crfsuite_file):
    data = crfsuite_file.read_bytes()
    assert not refused(data)
    for size in [*range(0, 60), *range(60, len(data) - 4, 97)]:
        assert refused(data[:size])


def test_random_bytes_are_refused_or_read(crfsuite_file):
    data, rng = crfsuite_file.read_bytes(), random.Random(0)
    for _ in range(400):
        broken = bytearray(data)
        at = rng.choice([rng.randrange(60), rng.randrange(len(data))])
        broken[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 2**31, 2**32 - 1, len(data), rng.randrange(2**32)]))
        refused(bytes(broken[: len(data)]))


def test_huge_counts_take_no_memory(crfsuite_file):
    data = crfsuite_file.read_bytes()
    for at in (20, 24):  # labels, attributes
        assert refused(data[:at] + struct.pack("<I", 2**32 - 1) + data[at + 4 :])


# ------------------------------------------------------------------------------------------------------ the commands


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def test_import_and_export_commands(crfsuite_file, tagger, tmp_path, monkeypatch):
    (tmp_path / "my_features.py").write_text("from tests.migrate.test_migrate import word_features\n", encoding="utf8")
    monkeypatch.syspath_prepend(tmp_path)
    words = random_words(20, 8)
    (tmp_path / "data.conll").write_text("".join("\n".join(sequence) + "\n\n" for sequence in words), encoding="utf8")
    settings = ["--columns", "orth", "--features", "my_features:word_features", "--check", tmp_path / "data.conll"]
    code, output = run("import", crfsuite_file, "--from", "crfsuite", "--output", tmp_path / "model", *settings)
    assert code == 0, output
    assert "20 sequences" in output and "same labels" in output
    nlp = spacy.load(tmp_path / "model")  # the function is known in this process
    doc = nlp(Doc(nlp.vocab, words=words[0]))
    assert [token.tag_ for token in doc] == tagger.tag(word_features(words[0]))
    assert 'register_features("my_features.word_features"' in (tmp_path / "model" / FILE_NAME).read_text(
        encoding="utf8"
    )
    code, output = run("export", tmp_path / "model", tmp_path / "again", "--code", tmp_path / "model" / FILE_NAME)
    assert code == 0, output
    assert read_crfsuite((tmp_path / "again").read_bytes(), "again").labels == tagger.labels()


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--from", "crfsuite"], "CRF861"),
        (["--from", "mallet"], "CRF020"),
        (["--from", "crfsuite", "--features", "nowhere:nothing"], "CRF859"),
        (["--from", "crfsuite", "--features", "math:pi"], "CRF859"),
        (["--from", "crfsuite", "--features", "math:sqrt", "--columns", "orth,nothing"], "CRF868"),
    ],
)
def test_what_import_can_not_do_is_told(crfsuite_file, tmp_path, arguments, code):
    status, output = run("import", crfsuite_file, "--output", tmp_path / "model", *arguments)
    assert status == 1
    assert code in output


def test_functions_are_found_by_their_path():
    name, function = find_function("os.path:basename")
    assert (name, function("a/b")) == ("os.path.basename", "b")
