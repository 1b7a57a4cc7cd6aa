"""Vectors of words as features: where they come from, what they add to scores, and that a model keeps them."""

import copy
import logging

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.util import registry
from spacy.vectors import Vectors
from spacy.vocab import Vocab

from spacy_crf.features.word_vectors import FloretSettings, WordVectors, make_vectors, read_vectors
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.objective import CorpusObjective
from tests.util import entities, ner_examples, plain, tag_examples

KNOWN = ["Ann", "Bob", "Lee", "New", "York", "Paris", "Rome", "Acme", "lives", "left", "in", "the", "a", "dog", "runs"]
TEMPLATES = ["vector[-2]", "vector[0]", "vector[1]"]
OFFSETS, WIDTH = [-2, 0, 1], 5
FACTORIES = ["crf_ner", "crf_tagger", "semicrf_ner"]
RANDOM = np.random.default_rng(0).normal(size=(len(KNOWN), WIDTH)).astype(np.float32)


def word_vectors(data=RANDOM, keys=KNOWN, **settings):
    return Vectors(data=data, keys=keys, **settings)


def floret_vectors(n_rows=50, **settings):
    data = np.random.default_rng(1).normal(size=(n_rows, WIDTH)).astype(np.float32)
    return Vectors(data=data, **{"mode": "floret", "minn": 2, "maxn": 3, "hash_count": 2, "hash_seed": 7, **settings})


def lexemes(*words):
    vocab = spacy.blank("en").vocab
    return [vocab[word] for word in words]


# ------------------------------------------------------------------------------------------------------------ the table


def test_words_are_looked_up_as_written_then_in_lower_case():
    vectors = word_vectors()
    vectors.add("alias", row=3)  # as `Vocab.prune_vectors` maps words to others
    found = make_vectors(vectors, None, 1.0, "test").of(lexemes("Ann", "ann", "THE", "nowhere", "alias"))
    expected = [RANDOM[KNOWN.index("Ann")], np.zeros(WIDTH), RANDOM[KNOWN.index("the")], np.zeros(WIDTH), RANDOM[3]]
    np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))


def test_words_may_have_another_key():
    found = make_vectors(word_vectors(keys=[*KNOWN[:-1], "xxxx"], attr="SHAPE"), None, 1.0, "test")
    np.testing.assert_array_equal(found.of(lexemes("runs", "Runs")), np.array([RANDOM[-1], np.zeros(WIDTH)]))


@pytest.mark.parametrize("dims", [None, 3])
def test_parts_of_words_give_the_vectors_of_spacy(dims):
    given, words = floret_vectors(), ("Ann", "ann", "unbelievable", "über")
    made = make_vectors(given, dims, 1.0, "test")
    expected = given.get_batch(words)
    if dims:
        axes = np.linalg.lstsq(given.data, made.data, rcond=None)[0]
        np.testing.assert_allclose(given.data @ axes, made.data, atol=1e-5)
        expected = expected @ axes
    np.testing.assert_allclose(made.of(lexemes(*words)), expected, atol=1e-5)


def test_reduced_vectors_are_those_of_the_singular_value_decomposition():
    """Of the rows that are used; other rows don't matter."""
    data = np.random.default_rng(2).normal(size=(20, 6)) * [1, 2, 3, 4, 5, 6]
    vectors = Vectors(data=np.vstack([data, 100 * np.ones((1, 6))]).astype(np.float32))
    for row in range(20):
        vectors.add(f"w{row}", row=row)
    reduced = make_vectors(vectors, 4, 1.0, "test").data[:20]
    left, values, _ = np.linalg.svd(data, full_matrices=False)
    expected = left[:, :4] * values[:4]
    np.testing.assert_allclose(np.abs(reduced), np.abs(expected), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(reduced @ reduced.T, expected @ expected.T, rtol=1e-3, atol=1e-3)


def test_vectors_come_back_and_are_told_apart():
    for given in (word_vectors(), floret_vectors()):
        made = make_vectors(given, 3, 2.0, "test").scaled(np.ones((2, 3), dtype=np.float32))
        again = WordVectors.from_dict(made.to_dict())
        assert made.to_dict() == again.to_dict() and copy.deepcopy(made) is made
        words = lexemes("Ann", "Rome", "other")
        np.testing.assert_array_equal(made.of(words), again.of(words))
        sources = {make_vectors(given, *settings, "test").source for settings in ((3, 2.0), (3, 1.0), (2, 2.0))}
        assert len(sources) == 3 and made.source in sources
    assert make_vectors(word_vectors(2 * RANDOM), 3, 2.0, "test").source != made.source


@pytest.mark.parametrize(
    "changed",
    [
        {"width": 0},
        {"width": 7},
        {"data": b""},
        {"data": np.full(WIDTH, np.nan, dtype="<f4").tobytes()},
        {"key": "tag"},
        {"parts": [2, 3, 9, 0, "<", ">"]},
        {"parts": [4, 3, 1, 0, "<", ">"]},
        {"parts": [2, 3, 1, 0, None, ">"]},
        {"length": 0.0},
        {"scale": 0.0},
        {"scale": float("inf")},
        {"keys": b""},
        {"keys": bytes(8 * len(KNOWN))},
        {"rows": np.full(len(KNOWN), len(KNOWN), dtype="<i4").tobytes()},
        {"rows": np.full(len(KNOWN), -1, dtype="<i4").tobytes()},
    ],
)
def test_vectors_of_damaged_models(changed):
    with pytest.raises(ValueError, match="CRF509: the table of vectors is of"):
        WordVectors.from_dict({**make_vectors(word_vectors(), None, 1.0, "test").to_dict(), **changed})


def test_the_scale_is_that_of_the_training_data():
    made = make_vectors(word_vectors(), None, 3.0, "test")
    words = made.of(lexemes("Ann", "Rome", "nowhere"))
    scaled = made.scaled(words)
    assert np.linalg.norm(scaled.of(lexemes("Ann", "Rome")), axis=1).mean() == pytest.approx(3.0, rel=1e-6)
    assert scaled.scaled(2 * words) is scaled
    assert made.scaled(np.zeros((1, WIDTH), dtype=np.float32)) is made


# -------------------------------------------------------------------------------------------------- where they come from


def vocab_with(vectors):
    vocab = Vocab()
    vocab.vectors = vectors
    return vocab


class TestVectors(spacy.vectors.BaseVectors):
    __test__ = False


@pytest.mark.parametrize(
    "vectors, reason",
    [
        (word_vectors(np.zeros((3, 2), dtype=np.float32), ["a", "b", "c"]), "all of them are zero"),
        (word_vectors(np.full((1, 2), np.inf, dtype=np.float32), ["a"]), "some are no finite numbers"),
        (word_vectors(np.ones((1, 2), dtype=np.float32), []), "there are none"),
        (word_vectors(np.ones((1, 2), dtype=np.float32), ["a"], attr="LEMMA"), "looked up by lemma"),
        (TestVectors(), "of the class TestVectors"),
    ],
)
def test_vectors_that_are_of_no_use(vectors, reason):
    with pytest.raises(ValueError, match=rf"CRF803: The vectors of the pipeline \(\[initialize\] vectors\) .*{reason}"):
        read_vectors(None, None, vocab_with(vectors), name="crf_ner")


@pytest.mark.parametrize(
    "given",
    [1, "", [], {"n": 3}, {"dims": 0}, {"dims": True}, {"dims": 2.5}, {"length": 0}, {"length": "1"}, {"path": ""}],
)
def test_settings_are_checked(given):
    with pytest.raises(ValueError, match=r"CRF020: \[initialize.components.crf_ner\]: vectors = "):
        read_vectors(given, None, vocab_with(word_vectors()), name="crf_ner")


def test_more_numbers_than_there_are():
    with pytest.raises(ValueError, match=r"CRF803: .* 5 numbers.*to 6"):
        read_vectors({"dims": 6}, None, vocab_with(word_vectors()), name="crf_ner")
    assert read_vectors({"dims": 5}, None, vocab_with(word_vectors()), name="crf_ner").width == 5


@pytest.mark.parametrize("vectors", [word_vectors(), floret_vectors()], ids=["words", "floret"])
def test_folders_and_pipelines(vectors, tmp_path):
    """Of vectors, of a vocab, of a pipeline."""
    nlp = spacy.blank("en")
    nlp.vocab.vectors = vectors
    nlp.to_disk(tmp_path / "pipeline")
    expected = read_vectors(None, None, nlp.vocab, name="crf_ner")
    for folder in ("pipeline", "pipeline/vocab"):
        found = read_vectors(str(tmp_path / folder), None, Vocab(), name="crf_ner")
        assert found.source == expected.source
        assert read_vectors(tmp_path / folder, expected, Vocab(), name="crf_ner") is expected
    with pytest.raises(ValueError, match=r"CRF701: .*nowhere: can't be read: .*spacy crf vectors"):
        read_vectors(str(tmp_path / "nowhere"), None, Vocab(), name="crf_ner")
    (tmp_path / "pipeline" / "vocab" / "vectors").write_bytes(b"no vectors")
    with pytest.raises(ValueError, match="CRF701: "):
        read_vectors(str(tmp_path / "pipeline"), None, Vocab(), name="crf_ner")


# ----------------------------------------------------------------------------------------------------------- components


WORDS = {word for example in ner_examples(spacy.blank("en")) for word in example.reference.text.split()}


def blank(factory="crf_ner", templates=TEMPLATES, vectors=None, *, hashed=False, items=None, loss=None, **emissions):
    nlp = spacy.blank("en")
    if vectors is not None:
        nlp.vocab.vectors = vectors
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", *templates], **(items or {})}
    model = {"emissions": {"features": features, **emissions}}
    if hashed:
        model["@architectures"] = "spacy_crf.LinearChain.v1"
        model["emissions"] |= {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": 256}
    if factory == "semicrf_ner":
        segments = {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.lower", "seg.length"]}
        model["segments"] = {"features": segments}
    nlp.add_pipe(factory, config={"model": model, **({"loss": loss} if loss else {})})
    return nlp


def examples_for(nlp):
    return tag_examples(nlp) if nlp.pipe_names == ["crf_tagger"] else ner_examples(nlp)


def optimizer_of(name="LBFGS", **settings):
    settings = {"l2": 0.01, "iterations_per_step": 30} if name == "LBFGS" and not settings else settings
    return registry.get("optimizers", name if "." in name else f"spacy_crf.{name}.v1")(**settings)


def train(nlp, optimizer=None, steps=1, examples=None, **initialize):
    examples = examples or examples_for(nlp)
    nlp.config["initialize"]["components"][nlp.pipe_names[0]] = initialize
    optimizer = optimizer or optimizer_of()
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp


def pipe_of(nlp):
    [(_, pipe)] = nlp.pipeline
    return pipe


def marginals(nlp, text="Rome left Ann and Nobody lives in Acme"):
    return pipe_of(nlp).marginals(nlp.make_doc(text))[0]


def set_random(pipe, seed=0):
    """Other weights than those that training found."""
    random, emissions = np.random.default_rng(seed), pipe.model.get_ref("emissions")
    for name in emissions.param_names:
        shape = emissions.get_param(name).shape
        emissions.set_param(name, random.normal(size=shape).astype(np.float32))
    pipe.clear_scores()
    return emissions


def expected_scores(emissions, docs):
    """Token by token: the weight of its word, and a product for each offset."""
    features, weights = emissions.attrs["features"], emissions.get_param("vectors").astype(np.float64)
    table, rows = features.states, {name: row for row, name in enumerate(features.states.index.names())}
    words = table.dense(emissions.get_param("states"))
    width, n_states = features.vectors.width, features.n_states
    matrices = features.tables["vectors"].dense(weights).reshape(len(OFFSETS), width, n_states)
    scores = []
    for doc in docs:
        vectors = features.vectors.of([token.lex for token in doc]).astype(np.float64)
        for n, token in enumerate(doc):
            row = rows.get(f"lower[0]={token.lower_}")
            score = np.zeros(n_states) if row is None else words[row].copy()
            for offset, matrix in zip(OFFSETS, matrices):
                if 0 <= n + offset < len(doc):
                    score += vectors[n + offset] @ matrix
            scores.append(score)
    return np.array(scores)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("vectors", [word_vectors(), floret_vectors()], ids=["words", "floret"])
def test_scores_are_those_of_every_way_to_them(factory, vectors):
    """In prediction, in training by gradients, and in passes over a corpus; of words that training never saw too."""
    nlp = train(blank(factory, vectors=vectors))
    pipe = pipe_of(nlp)
    emissions = set_random(pipe)
    docs = [example.predicted for example in examples_for(nlp)] + [Doc(nlp.vocab, words=["Rome", "unseen", "Lee"])]
    expected = expected_scores(emissions, docs)
    np.testing.assert_allclose(emissions.predict(docs).scores, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(emissions(docs, is_train=True)[0].scores, expected, rtol=1e-6, atol=1e-6)
    one_by_one = [emissions.predict([doc]).scores for doc in reversed(docs)][::-1]
    np.testing.assert_array_equal(np.concatenate(one_by_one), emissions.predict(docs).scores)


def objective_of(pipe, examples):
    blocks = [pipe.training.data(examples[:3]), pipe.training.data(examples[3:])]
    return CorpusObjective(pipe.model, LogLikelihood(), blocks)


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_gradient_of_the_objective(factory):
    """Against finite differences, and against backprop."""
    nlp = train(blank(factory, vectors=word_vectors()))
    pipe, examples = pipe_of(nlp), examples_for(nlp)
    set_random(pipe)
    objective = objective_of(pipe, examples)
    weights = objective.weights()
    value, gradient = objective.evaluate(weights)
    random = np.random.default_rng(1)
    for _ in range(5):
        direction = random.normal(size=len(weights))
        ahead, _ = objective.evaluate(weights + 1e-5 * direction)
        behind, _ = objective.evaluate(weights - 1e-5 * direction)
        assert (ahead - behind) / 2e-5 == pytest.approx(float(gradient @ direction), rel=1e-5, abs=1e-6)
    emissions = pipe.model.get_ref("emissions")
    scores, backprop = pipe.model([example.predicted for example in examples], is_train=True)
    loss, d_scores = pipe.get_loss(examples, scores)
    backprop(d_scores)
    assert loss == pytest.approx(value, rel=1e-5)
    of_layers, _ = objective.split(gradient)
    np.testing.assert_allclose(emissions.get_grad("vectors"), of_layers["vectors"], rtol=1e-3, atol=1e-4)


@registry.misc("test_vectors.items.v1")
def make_items():
    """The same numbers as features that a function gives."""
    made = make_vectors(word_vectors(), None, 1.0, "test")
    made = made.scaled(made.of([token.lex for token in Doc(spacy.blank("en").vocab, words=sorted(WORDS))]))

    def items(doc):
        found = made.of([token.lex for token in doc])
        return [{str(n): float(value) for n, value in enumerate(row)} for row in found]

    return items


OPTIMIZERS = [
    ("LBFGS", "LogLikelihood", {"l2": 0.1, "iterations_per_step": 20}),
    ("LBFGS", "SoftmaxMargin", {"l1": 0.1, "l2": 0.01, "iterations_per_step": 60}),
    ("Minibatch", "LogLikelihood", {}),
    ("SGD", "LogLikelihood", {"l2": 0.1}),
    ("AdaGrad", "MaxMargin", {"l2": 0.1}),
    ("AveragedPerceptron", "Perceptron", {}),
    ("PassiveAggressive", "MaxMargin", {}),
    ("AROW", "MaxMargin", {}),
    ("Adam.v1", "LogLikelihood", {"learn_rate": 0.01}),
]


@pytest.mark.parametrize("name, loss, settings", OPTIMIZERS, ids=[f"{row[0]}-{row[1]}" for row in OPTIMIZERS])
@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_every_optimizer_learns_as_from_the_same_numbers_of_a_function(factory, name, loss, settings):
    items = {"functions": {"v": {"@misc": "test_vectors.items.v1"}}}
    loss = {"@losses": f"spacy_crf.{loss}.v1"}
    nlp = blank(factory, vectors=word_vectors(), loss=loss, possible_states=True)
    other = blank(
        factory, [t.replace("vector", "fn:v") for t in TEMPLATES], items=items, loss=loss, possible_states=True
    )
    for each, initialize in ((nlp, {"vectors": {"length": 1.0}}), (other, {})):
        train(each, optimizer_of(name, **settings), steps=3, **initialize)
    assert np.abs(pipe_of(nlp).model.get_ref("emissions").get_param("vectors")).max() > 0.01
    np.testing.assert_allclose(marginals(nlp), marginals(other), atol=1e-3)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("vectors", [word_vectors(), floret_vectors()], ids=["words", "floret"])
def test_components_keep_their_vectors(factory, vectors, tmp_path):
    """On disk, as bytes, in copies, where they are sourced, and where the pipeline's own are gone; in other processes too."""
    nlp = train(blank(factory, vectors=vectors), vectors={"dims": 4})
    expected = marginals(nlp)
    nlp.vocab.reset_vectors()
    nlp.to_disk(tmp_path / "model")
    sourced = spacy.blank("en")
    sourced.vocab.vectors = nlp.vocab.vectors  # or spaCy warns
    sourced.add_pipe(factory, source=nlp)
    loaded = spacy.load(tmp_path / "model")
    for again in (loaded, blank(factory).from_bytes(nlp.to_bytes()), copy.deepcopy(nlp), sourced):
        np.testing.assert_array_equal(marginals(again), expected)
        assert pipe_of(again).to_bytes() == pipe_of(nlp).to_bytes()
    texts = ["Ann met Bob in Rome", "unseen words left New York"] * 5
    one, two = ([doc.to_json() for doc in loaded.pipe(texts, n_process=n, batch_size=2)] for n in (1, 2))
    assert one == two


def test_unseen_words_are_known_by_their_vectors():
    """Words that are used alike have vectors alike."""
    data = np.zeros((5, 2), dtype=np.float32)
    data[:3, 0], data[3:, 1] = 1, 1
    vectors = word_vectors(data, ["Paris", "Rome", "Oslo", "Bob", "Zoe"])
    nlp = train(blank(templates=["vector[0]"], vectors=vectors))
    assert [(ent.text, ent.label_) for ent in nlp("Zoe left Oslo .").ents] == [("Zoe", "PER"), ("Oslo", "GPE")]


def test_vectors_alone_are_enough():
    nlp = spacy.blank("en")
    nlp.vocab.vectors = floret_vectors(2000)
    features = {"@misc": "spacy_crf.features.v1", "templates": ["vector[-1..1]"]}
    nlp.add_pipe("crf_ner", config={"model": {"emissions": {"features": features}}})
    train(nlp, optimizer_of(l2=0.001, iterations_per_step=60))
    assert all(entities(nlp(plain(each.reference))) == entities(each.reference) for each in ner_examples(nlp))


def test_hashed_features_and_vectors(tmp_path):
    nlp = train(blank(hashed=True, vectors=word_vectors()))
    assert len(pipe_of(nlp).model.get_ref("emissions").get_param("vectors")) == len(OFFSETS) * WIDTH * 13
    nlp.to_disk(tmp_path)
    np.testing.assert_array_equal(marginals(spacy.load(tmp_path)), marginals(nlp))


def test_a_table_of_words_that_is_begun_anew():
    """Prediction and training with fewer words in memory than the texts have."""
    nlp = train(blank(vectors=word_vectors()))
    pipe, examples = pipe_of(nlp), ner_examples(nlp)
    expected, found = marginals(nlp), objective_of(pipe, examples).evaluate(pipe.training.frame().weights())
    pipe.clear_scores()
    reader = pipe.sparse_features.compiled.reader
    objective = CorpusObjective(pipe.model, LogLikelihood(), _with_small_tables(pipe, reader, examples))
    value, gradient = objective.evaluate(objective.weights())
    assert value == pytest.approx(found[0])
    np.testing.assert_allclose(gradient, found[1], atol=1e-8)
    marginals(nlp, "Ann")
    pipe.sparse_features.max_words = 1
    pipe.sparse_features.recompile()
    for _ in range(2):
        np.testing.assert_array_equal(marginals(nlp), expected)


def _with_small_tables(pipe, reader, examples):
    for example in examples:
        reader.max_words = 1
        yield pipe.training.data([example])


def test_zero_weights_are_left_out_when_saved():
    nlp = train(blank(vectors=word_vectors()), optimizer_of(l1=0.5, l2=0.0, iterations_per_step=50))
    pipe = pipe_of(nlp)
    pipe.training.prunes = True
    again = blank().from_bytes(nlp.to_bytes())
    kept = len(pipe_of(again).model.get_ref("emissions").get_param("vectors"))
    assert 0 < kept < len(pipe.model.get_ref("emissions").get_param("vectors"))
    np.testing.assert_array_equal(marginals(again), marginals(nlp))
    pipe_of(again).add_label("NEW")
    assert np.isfinite(marginals(again)).all()


# ---------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("factory", FACTORIES)
def test_templates_without_vectors(factory):
    """Refused where it begins; and a model that lost its vectors is, too."""
    nlp = blank(factory)
    with pytest.raises(ValueError, match=r"CRF800: .*'vector\[-2\]'.*\[initialize\] vectors"):
        nlp.initialize(lambda: examples_for(nlp))
    nlp = train(blank(factory, vectors=word_vectors()))
    pipe_of(nlp).sparse_features.vectors = None
    with pytest.raises(ValueError, match=r"CRF505: .*CRF800: .*train it again"):
        blank(factory).from_bytes(nlp.to_bytes())


def test_vectors_of_another_width():
    nlp = train(blank(vectors=word_vectors()))
    pipe_of(nlp).sparse_features.vectors = make_vectors(word_vectors(), 4, 1.0, "test")
    with pytest.raises(ValueError, match=r"CRF505: .*CRF509: numbers of vectors is 5 in the saved model, where 4"):
        blank().from_bytes(nlp.to_bytes())


def test_vectors_that_nobody_reads():
    nlp = blank(templates=["lower[-1]"], vectors=word_vectors())
    with pytest.raises(ValueError, match=r"CRF944: Component 'crf_ner'.*vector\[-1..1\]"):
        train(nlp, vectors={"dims": 2})
    train(nlp)
    assert pipe_of(nlp).sparse_features.vectors is None


@pytest.mark.parametrize("template", ["vector[0]|lower[0]", "vector[0]|vector[1]"])
def test_vectors_stand_alone(template):
    with pytest.raises(ValueError, match=rf"CRF121: .*'{template.replace('[', '.').replace('|', '.')}'"):
        blank(templates=[template])


def test_vectors_are_of_tokens():
    features = {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.first:vector"]}
    with pytest.raises(ValueError, match=r"CRF121: .*'seg.first:vector'"):
        spacy.blank("en").add_pipe("semicrf_ner", config={"model": {"segments": {"features": features}}})
    features = {"@misc": "spacy_crf.features.v1", "templates": ["vector[0]"], "transitions": ["vector[0]"]}
    with pytest.raises(ValueError, match=r"CRF121: .*'vector\[0\]'"):
        spacy.blank("en").add_pipe("crf_ner", config={"model": {"emissions": {"features": features}}})


def test_how_many_words_have_vectors_is_told(caplog):
    with caplog.at_level(logging.INFO):
        train(blank(vectors=word_vectors()))
    n = sum(word in KNOWN or word.lower() in KNOWN for word in WORDS)
    assert f"{n} of {len(WORDS)} words of the training data have a vector" in caplog.text
    for hashed in (False, True):
        caplog.clear()
        train(blank(vectors=word_vectors(keys=[f"w{n}" for n in range(len(KNOWN))]), hashed=hashed))
        assert f"CRFW940: crf_ner: none of the {len(WORDS)} words" in caplog.text


# --------------------------------------------------------------------------------------------------------------- going on


def test_beginning_anew_keeps_the_vectors(tmp_path, caplog):
    """Also where the pipeline that the config names is gone."""
    other = spacy.blank("en")
    other.vocab.vectors = word_vectors()
    other.to_disk(tmp_path / "other")
    nlp = train(blank(), vectors={"path": str(tmp_path / "other"), "dims": 3})
    expected, table = marginals(nlp), pipe_of(nlp).sparse_features.vectors
    (tmp_path / "other").rename(tmp_path / "elsewhere")
    for given in ({}, {"vectors": str(tmp_path / "other")}):
        with caplog.at_level(logging.INFO):
            train(nlp, **given)
        assert pipe_of(nlp).sparse_features.vectors is table
        np.testing.assert_allclose(marginals(nlp), expected, atol=1e-5)
    assert "the vectors are those of the model" in caplog.text


def test_starting_from_a_model_with_other_vectors(tmp_path):
    nlp = train(blank(vectors=word_vectors()))
    nlp.to_disk(tmp_path)
    for vectors in (None, word_vectors()):
        going_on = train(blank(vectors=vectors), start_from=str(tmp_path))
        np.testing.assert_allclose(marginals(going_on), marginals(nlp), atol=0.05)
    for vectors, given in ((floret_vectors(), {}), (word_vectors(), {"vectors": {"dims": 3}})):
        with pytest.raises(ValueError, match=r"CRF950: Component 'crf_ner'.*\[initialize\] vectors"):
            train(blank(vectors=vectors), start_from=str(tmp_path), **given)


def test_updates_bring_new_labels_and_words():
    nlp = train(blank(vectors=floret_vectors()))
    before = pipe_of(nlp).sparse_features.vectors
    new = ner_examples(nlp, ["[Quebec](RIVER) and [Oder](RIVER) ."])
    sgd = nlp.resume_training(sgd=optimizer_of(l2=0.1, iterations_per_step=30))
    nlp.update(new, sgd=sgd)
    assert entities(nlp(plain(new[0].reference))) == entities(new[0].reference)
    assert pipe_of(nlp).sparse_features.vectors is before
    assert len(pipe_of(nlp).model.get_ref("emissions").get_param("vectors")) == len(OFFSETS) * WIDTH * 17


def test_parts_are_those_of_floret():
    assert make_vectors(floret_vectors(), None, 1.0, "test").parts == FloretSettings(2, 3, 2, 7, "<", ">")


@pytest.mark.parametrize("hashed", [False, True])
def test_explanations_show_what_a_vector_says(hashed):
    """One row for a word at an offset, not for each number; together they are the score."""
    nlp = train(blank(vectors=word_vectors(), hashed=hashed))
    pipe, doc = pipe_of(nlp), nlp("Rome left Ann")
    found = pipe.explain(doc, Span(doc, 2, 3, label="PER"), kind="contrast")
    of_vectors = [row for row in found.rows if row.template.startswith("vector")]
    assert {(row.feature, row.token) for row in of_vectors} >= {("vector[0]", 2), ("vector[-2]", 2)}
    assert any(row.feature.startswith("vector[0]=#") for row in pipe.weights("PER")) or hashed
