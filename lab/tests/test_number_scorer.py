"""Numbers of tokens, sentences and texts: the Gaussian against dense linear algebra, and the component."""

import math
import threading
from pathlib import Path

import numpy as np
import pytest
import spacy
import srsly
from spacy.tokens import Doc, DocBin, Span, Token
from spacy.training import Example
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.tune import tune
from spacy_crf_lab.gaussian_chain import Gaussians, GaussianScores, Similar
from spacy_crf_lab.links import pass_links

GAUSSIANS = Gaussians()
LBFGS = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1}
NAMES = {Token: "level", Span: "tone", Doc: "price"}


def register():
    for holder, name in NAMES.items():
        holder.set_extension(name, default=None, force=True)


@pytest.fixture(autouse=True)
def extensions():
    """Each test has the extensions to itself."""
    register()
    yield
    for holder, name in NAMES.items():
        if holder.has_extension(name):
            holder.remove_extension(name)


# ------------------------------------------------------------------------------------------------------- the Gaussian


def drawn(seed, n=11, starts=(0, 4, 4, 8, 11), across=True):
    """Scores with ties of two kinds, some of them across sequences."""
    random, starts = np.random.default_rng(seed), np.array(starts)
    block = np.searchsorted(starts, np.arange(n), side="right")
    pairs = {(i, i + 1) for i in range(n - 1)} | {tuple(sorted(random.choice(n, 2, replace=False))) for _ in range(8)}
    pairs = sorted((p for p in pairs if across or block[p[0]] == block[p[1]]), key=lambda pair: pair[1])
    source, target = np.array(pairs, dtype=np.int64).T.copy()
    kind, similarity = random.integers(0, 2, len(source)), 2.0 * random.random(len(source))
    return GaussianScores(
        random.normal(size=(n, 1)), random.normal(size=3), Similar(source, target, kind, similarity), starts
    )


def dense(scores, clamp):
    """Log integral over the numbers that are not known, means and variances."""
    precision, *strengths = np.exp(scores.logs)
    f, n = scores.sums[:, 0] / math.sqrt(2.0 * precision), len(scores.sums)
    matrix, linear = 2.0 * precision * np.eye(n), 2.0 * precision * f
    for i, j, kind, similarity in zip(*scores.similar):
        matrix[[i, j], [i, j]] += 2.0 * strengths[kind] * similarity
        matrix[[i, j], [j, i]] -= 2.0 * strengths[kind] * similarity
    known, free = np.flatnonzero(~np.isnan(clamp)), np.flatnonzero(np.isnan(clamp))
    inner, given = matrix[np.ix_(free, free)], clamp[known]
    b = linear[free] - matrix[np.ix_(free, known)] @ given
    energy = precision * (f**2).sum() - linear[known] @ given + 0.5 * given @ matrix[np.ix_(known, known)] @ given
    mean, variance = clamp.copy(), np.zeros(n)
    mean[free], variance[free] = np.linalg.solve(inner, b), np.diag(np.linalg.inv(inner))
    log_z = 0.5 * (len(free) * math.log(2.0 * math.pi) - np.linalg.slogdet(inner)[1] + b @ mean[free]) - energy
    return log_z, mean, variance


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_sums_means_and_variances_are_those_of_dense_linear_algebra(seed, share):
    scores, random = drawn(seed), np.random.default_rng(seed)
    clamp = np.where(random.random(11) < share, random.normal(size=11), np.nan)
    found = GAUSSIANS.moments(scores, clamp)
    log_z, mean, variance = dense(scores, clamp)
    assert found.log_z.sum() == pytest.approx(log_z, abs=1e-8)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.variance, variance, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_derivatives_are_differences(seed):
    scores, random = drawn(seed), np.random.default_rng(seed)
    clamp = np.where(random.random(11) < 0.5, random.normal(size=11), np.nan)
    derivative = GAUSSIANS.moments(scores, clamp).derivative
    for name in ("sums", "logs"):
        for place in np.ndindex(getattr(scores, name).shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = getattr(scores, name).copy()
                moved[place] += step
                values.append(GAUSSIANS.log_partition(scores._replace(**{name: moved}), clamp=clamp).sum())
            assert getattr(derivative, name)[place] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-6)


def test_each_sequence_has_its_own_sum_and_weight():
    scores, clamp = drawn(0, across=False), np.full(11, np.nan)
    found, weights = GAUSSIANS.moments(scores, clamp), np.array([2.0, 1.0, 0.0, 0.5])
    parts = []
    for b, (begin, end) in enumerate(zip(scores.starts, scores.starts[1:])):
        some = (scores.similar.source >= begin) & (scores.similar.target < end)
        similar = Similar(*(column[some] for column in scores.similar))
        similar = similar._replace(source=similar.source - begin, target=similar.target - begin)
        part = GaussianScores(scores.sums[begin:end], scores.logs, similar, np.array([0, end - begin]))
        parts.append(GAUSSIANS.moments(part, clamp[begin:end]))
        assert found.log_z[b] == pytest.approx(parts[-1].log_z[0], abs=1e-10)
    weighted = GAUSSIANS.moments(scores, clamp, weights).derivative
    expected = sum(weight * part.derivative.logs for weight, part in zip(weights, parts))
    np.testing.assert_allclose(weighted.logs, expected, atol=1e-10)


def test_a_matrix_that_is_too_large_is_refused():
    n = 20_000
    similar = Similar(np.zeros(n - 1, np.int64), np.arange(1, n), np.zeros(n - 1, np.int64), np.ones(n - 1))
    scores = GaussianScores(np.zeros((n, 1)), np.zeros(2), similar, np.array([0, n]))
    with pytest.raises(ValueError, match=r"CRF651.*20,000 numbers"):
        GAUSSIANS.moments(scores)


# ------------------------------------------------------------------------------------------------------ the component


def config(unit, similar=None, attribute=None, templates=("lower[0]",), **settings):
    features = {"@misc": "spacy_crf.features.v1", "templates": list(templates)}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    model = {"@architectures": "spacy_crf_lab.GaussianChain.v1", "emissions": emissions, "similar": similar}
    attribute = attribute or {"token": "level", "sent": "tone", "doc": "price"}[unit]
    return {"attribute": attribute, "unit": unit, "model": model, "optimizer": LBFGS, **settings}


def smooth(nlp, n_docs, seed, tokens=30):
    """Docs whose numbers change slowly, and whose words say them with errors."""
    random, docs = np.random.default_rng(seed), []
    for _ in range(n_docs):
        level, words, levels = 2.0 * random.normal(), [], []
        for _ in range(tokens):
            level = 0.95 * level + 0.3 * random.normal()
            levels.append(10.0 + 3.0 * level)
            words.append(f"w{int(np.clip(np.round(3 * (level + random.normal())), -9, 9))}")
        doc = Doc(nlp.vocab, words=words)
        for token, number in zip(doc, levels):
            token._.level = number
        docs.append(doc)
    return docs


def examples_of(docs):
    return [
        Example(Doc(doc.vocab, words=[t.text for t in doc], spaces=[bool(t.whitespace_) for t in doc]), doc)
        for doc in docs
    ]


def trained(nlp, examples, settings, steps=5):
    pipe = nlp.add_pipe("crf_scorer", config=settings)
    nlp.initialize(lambda: examples)
    for _ in range(steps):
        nlp.update(examples)
    return pipe


def scored(nlp, examples):
    return nlp.evaluate([Example(example.predicted.copy(), example.reference) for example in examples])


@pytest.fixture(scope="module")
def chain():
    """A trained chain, and its texts for tests. Do not change."""
    register()
    nlp = spacy.blank("en")
    pipe = trained(nlp, examples_of(smooth(nlp, 100, 0)), config("token"))
    return nlp, pipe, smooth(nlp, 200, 1)


def test_a_smooth_chain_is_better_than_single_tokens_and_its_intervals_hold(chain):
    nlp, _, docs = chain
    found = scored(nlp, examples_of(docs))
    alone = spacy.blank("en")
    trained(alone, examples_of(smooth(alone, 100, 0)), config("token", similar=[]))
    pointwise = scored(alone, examples_of(docs))
    assert found["number_rmse"] < 0.7 * pointwise["number_rmse"]
    assert found["number_r2"] > 0.8 and found["number_correlation"] > 0.9
    assert found["number_mae"] < found["number_rmse"]
    assert found["number_coverage"] == pytest.approx(0.9, abs=0.02)
    assert pointwise["number_coverage"] == pytest.approx(0.9, abs=0.02)


def test_numbers_that_are_there_stay_and_tell_the_others(chain):
    nlp, pipe, docs = chain
    errors = []
    for doc in docs[:20]:
        [example] = examples_of([doc])
        for token in list(doc)[::2]:
            example.predicted[token.i]._.level = token._.level
        known = pipe.annotation.numbers([example.predicted])
        scores, measured = pipe.model.predict([example.predicted]), pipe.decoding.measured(known)
        _, mean, variance = dense(scores, measured)
        center, scale = pipe.model.attrs["center"], pipe.model.attrs["scale"]
        intervals = pipe.predict_interval(example.predicted, 0.5)
        found = nlp(example.predicted)
        assert [token._.level for token in list(found)[::2]] == [token._.level for token in list(doc)[::2]]
        np.testing.assert_allclose([t._.level for t in found], np.where(np.isnan(known), mean * scale + center, known))
        widths = [high - low for _, low, high in intervals]
        np.testing.assert_allclose(widths, 2 * 0.6744897501960817 * np.sqrt(variance) * scale, atol=1e-9)
        errors += [found[t.i]._.level - t._.level for t in list(doc)[1::2]]
    assert np.sqrt(np.mean(np.square(errors))) < 0.7 * scored(nlp, examples_of(docs))["number_rmse"]


def test_training_uses_texts_some_of_whose_numbers_are_known():
    nlp = spacy.blank("en")
    docs = smooth(nlp, 150, 0)
    for n, token in enumerate(token for doc in docs for token in doc):
        if n % 3:
            token._.level = None
    trained(nlp, examples_of(docs), config("token"))
    assert scored(nlp, examples_of(smooth(nlp, 100, 1)))["number_r2"] > 0.8


def test_saves_loads_and_works_in_processes_threads_and_with_empty_docs(chain, tmp_path):
    nlp, pipe, docs = chain
    texts = [" ".join(token.text for token in doc) for doc in docs[:10]] + ["", "w1"]
    expected = [[token._.level for token in doc] for doc in nlp.pipe(texts)]
    assert expected[-2] == [] and len(expected[-1]) == 1
    nlp.to_disk(tmp_path)
    Token.remove_extension("level")
    loaded = spacy.load(tmp_path)
    assert [[token._.level for token in doc] for doc in loaded.pipe(texts)] == expected
    assert [[token._.level for token in doc] for doc in loaded.pipe(texts, n_process=2, batch_size=4)] == expected
    again = spacy.blank("en")
    again.add_pipe("crf_scorer", config=config("token")).from_bytes(pipe.to_bytes())
    assert [[token._.level for token in doc] for doc in again.pipe(texts)] == expected
    answers = {}

    def ask(n):
        answers[n] = [[token._.level for token in doc] for doc in loaded.pipe(texts)]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {0: expected, 1: expected}


def test_weights_have_the_precision_and_the_strengths(chain):
    rows = {row.feature: row.weight for row in chain[1].weights()}
    assert {"log precision", "log strength of next"} < rows.keys() and "lower[0]=w0" in rows


def test_learns_by_gradients_too():
    nlp = spacy.blank("en")
    examples = examples_of(smooth(nlp, 60, 0))
    optimizer = {"@optimizers": "Adam.v1", "learn_rate": 0.05}
    trained(nlp, examples, config("token", optimizer=optimizer), steps=80)
    assert scored(nlp, examples)["number_r2"] > 0.7


def test_without_similar_numbers_it_is_ridge_regression():
    """With alpha = 2 · l2, and a constant feature whose weight is penalized too."""
    nlp, docs = spacy.blank("en"), smooth(spacy.blank("en"), 20, 0)
    optimizer = {**LBFGS, "l2": 5.0, "tolerance": 1e-9, "delta": 0.0}
    trained(nlp, examples_of(docs), config("token", similar=[], optimizer=optimizer), steps=20)
    tokens = [token for doc in docs for token in doc]
    words = sorted({token.lower_ for token in tokens})
    x = np.array([[*(float(token.lower_ == word) for word in words), 1.0] for token in tokens])
    y = np.array([token._.level for token in tokens])
    weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(len(x[0])), x.T @ (y - y.mean()))
    found = [token._.level for doc in nlp.pipe(e.predicted for e in examples_of(docs)) for token in doc]
    np.testing.assert_allclose(found, x @ weights + y.mean(), atol=1e-5)


def test_several_components_have_their_own_scores():
    nlp, docs = spacy.blank("en"), smooth(spacy.blank("en"), 20, 0)
    Token.set_extension("depth", default=None, force=True)
    for token in (token for doc in docs for token in doc):
        token._.depth = -2.0 * token._.level
    nlp.add_pipe("crf_scorer", name="depths", config=config("token", attribute="depth"))
    trained(nlp, examples_of(docs), config("token"))
    found = scored(nlp, examples_of(docs))
    assert found["number_rmse"] == found["level_rmse"] == pytest.approx(found["depth_rmse"] / 2.0)
    assert found["depth_coverage"] == pytest.approx(found["level_coverage"])


def test_a_lemma_may_be_in_a_text_often():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_scorer", config=config("token", similar=["same_lemma"]))
    doc = Doc(nlp.vocab, words=["a"] * 1500, lemmas=["a"] * 1500)
    assert len(pipe.model.get_ref("similar").predict([doc]).source) == 1499


def test_goes_on_with_new_texts(chain, tmp_path):
    chain[0].to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    pipe, optimizer = nlp.get_pipe("crf_scorer"), nlp.resume_training()
    before, examples = (pipe.model.attrs["center"], pipe.model.attrs["scale"]), examples_of(smooth(nlp, 20, 5))
    nlp.update(examples, sgd=optimizer)
    assert (pipe.model.attrs["center"], pipe.model.attrs["scale"]) == before
    assert scored(nlp, examples)["number_r2"] > 0.7


def test_sentences_have_numbers():
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    docs = []
    for n in range(40):
        doc = nlp.make_doc("Good day. Bad day. Good day. Good day." if n % 2 else "Bad day. Bad day.")
        nlp.get_pipe("sentencizer")(doc)
        for sent in doc.sents:
            sent._.tone = (1.0 if sent.text.startswith("Good") else -1.0) + 0.1 * (n % 3)
        docs.append(doc)
    pipe = nlp.add_pipe("crf_scorer", config=config("sent"))
    # As in `spacy train`: the Docs have no sentences before the sentencizer finds them
    nlp.initialize(lambda: [Example(nlp.make_doc(doc.text), doc) for doc in docs])
    nlp.update([Example(nlp.make_doc(doc.text), doc) for doc in docs], annotates=["sentencizer"])
    doc = nlp("Bad day. Good day.")
    bad, good = (sent._.tone for sent in doc.sents)
    assert bad == pytest.approx(-0.9, abs=0.2) and good == pytest.approx(1.1, abs=0.3)
    assert [part.text for part, *_ in pipe.predict_interval(doc)] == ["Bad day.", "Good day."]
    with pytest.raises(ValueError, match="CRF470"):
        pipe(nlp.make_doc("Bad day. Good day."))


def priced(nlp, n=60, seed=0):
    """Texts whose words hardly say their price; each is linked to the next, in groups of six with one price."""
    random, docs = np.random.default_rng(seed), []
    for n_doc in range(n):
        group = n_doc // 6
        price = 100.0 + 30.0 * np.random.default_rng(group + 1000 * seed).normal()
        doc = nlp.make_doc("dear thing" if price + 40.0 * random.normal() > 100.0 else "cheap thing")
        doc._.price, doc._.crf_id, doc._.crf_group = price, n_doc, group
        doc._.crf_links = [n_doc + 1] if n_doc % 6 < 5 else []
        docs.append(doc)
    return docs


def test_linked_texts_have_similar_numbers():
    nlp, found = spacy.blank("en"), {}
    docs, new = priced(nlp), priced(nlp, seed=1)
    for similar in ([], ["links"]):
        nlp = spacy.blank("en")
        trained(nlp, [*pass_links(examples_of(docs))], config("doc", similar=similar))
        plain = [*pass_links(examples_of(new))]
        predicted = list(nlp.pipe(example.predicted for example in plain))
        found[len(similar)] = np.sqrt(np.mean([(a._.price - b._.price) ** 2 for a, b in zip(predicted, new)]))
    assert found[1] < 0.9 * found[0]


def test_tokens_with_one_lemma_and_pairs_of_functions_are_similar():
    nlp = spacy.blank("en")
    doc = Doc(nlp.vocab, words=["a", "b", "a", "c"], lemmas=["x", "y", "x", "z"])

    @spacy.registry.misc("test_similar_numbers")
    def make():
        return lambda doc: [(3, 0, 2.0)]

    settings = config("token", similar=["same_lemma", "far"])
    settings["model"]["functions"] = {"far": {"@misc": "test_similar_numbers"}}
    pipe = nlp.add_pipe("crf_scorer", config=settings)
    similar = pipe.model.get_ref("similar").predict([doc, doc])
    assert [*zip(*(column.tolist() for column in similar))] == [
        (0, 2, 0, 1.0),
        (0, 3, 1, 2.0),
        (4, 6, 0, 1.0),
        (4, 7, 1, 2.0),
    ]
    assert "token.lemma" in nlp.analyze_pipes()["summary"]["crf_scorer"]["requires"]


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "pairs", [[(0, 1, -0.5)], [(0, 1, math.nan)], [(0, 0, 1.0)], [(0, 9, 1.0)], [(0, 0.5, 1.0)], 3 * [(0, 1)], None]
)
def test_similarities_that_are_none_are_refused(pairs):
    nlp = spacy.blank("en")

    @spacy.registry.misc("test_wrong_similar_numbers")
    def make():
        return lambda doc: pairs

    settings = config("token", similar=["far"])
    settings["model"]["functions"] = {"far": {"@misc": "test_wrong_similar_numbers"}}
    pipe = nlp.add_pipe("crf_scorer", config=settings)
    with pytest.raises(ValueError, match=r"CRF650.*far"):
        pipe.model.get_ref("similar").predict([nlp.make_doc("one two three")])


@pytest.mark.parametrize("value", [math.nan, math.inf, "3", True, 10**400, 1e300])
def test_values_that_are_no_numbers_are_refused(value):
    nlp = spacy.blank("en")
    docs = smooth(nlp, 2, 0)
    docs[0][3]._.level = value
    nlp.add_pipe("crf_scorer", config=config("token"))
    with pytest.raises(ValueError, match=r"CRF640.*token\._\.level"):
        nlp.initialize(lambda: examples_of(docs))


def test_numbers_that_are_all_equal_or_missing_are_refused():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_scorer", config=config("token"))
    docs = smooth(nlp, 2, 0)
    equal = ((number, rf"CRF652.*60 numbers.*from {number} to {number},") for number in (5.0, 0.1, 1e-320))
    for number, message in (*equal, (None, r"CRF403.*token\._\.level")):
        for token in (token for doc in docs for token in doc):
            token._.level = number
        with pytest.raises(ValueError, match=message):
            nlp.initialize(lambda: examples_of(docs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config("doc", similar=["next"]), "CRF020.*similar.*links"),
        (config("token", similar=["links"]), "CRF020.*similar.*same_lemma"),
        (config("token", similar=["next", "next"]), "CRF020.*similar"),
        (config("token", attribute="no name"), "CRF020.*attribute"),
        (config("word", attribute="level"), "CRF020.*unit"),
        (config("token", loss={"@losses": "spacy_crf.MaxMargin.v1"}), "CRF347.*MaxMargin"),
        (config("token", optimizer={"@optimizers": "spacy_crf.SGD.v1"}), "CRF365.*SGD"),
        (config("token", model={"@architectures": "spacy_crf.MaxEntText.v1"}), "CRF020.*model.*GaussianChain"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    if settings["model"]["@architectures"] == "spacy_crf.MaxEntText.v1":
        settings["model"]["emissions"] = config("token")["model"]["emissions"]
    with pytest.raises(ValueError, match=message):
        spacy.blank("en").add_pipe("crf_scorer", config=settings)


def test_extensions_that_cannot_be_set_are_refused():
    Token.set_extension("level", getter=len, force=True)
    with pytest.raises(ValueError, match=r"CRF020.*attribute.*level"):
        spacy.blank("en").add_pipe("crf_scorer", config=config("token"))
    assert not spacy.blank("en").pipe_names


@pytest.mark.parametrize("probability", [0.0, 1.0, math.nan, "0.9", None])
def test_intervals_of_no_probability_are_refused(chain, probability):
    nlp, pipe, _ = chain
    with pytest.raises(ValueError, match=r"CRF020.*probability"):
        pipe.predict_interval(nlp.make_doc("w1"), probability)


# ----------------------------------------------------------------------------------------------------------- commands


CONFIG = Path(__file__).parents[1] / "configs" / "crf_scorer.cfg"
COMMANDS_WITHOUT_NUMBERS = {
    "explain {folder}/model word": "CRF710",
    "threshold {folder}/model {folder}/prices.spacy": "CRF710",
    "demo {folder}/model": "CRF710",
    "annotate {folder}/model {folder}/prices.jsonl -o {folder}/new.jsonl": "CRF874",
    "fit {folder}/prices.spacy --config {config} --output {folder}/fitted": "CRF771",
    "evaluate {folder}/model {folder}/prices.spacy": "CRF710",
}


def test_tune_tries_settings_of_numbers(tmp_path):
    nlp = spacy.blank("en")
    for name, seed in (("train", 0), ("dev", 1)):
        DocBin(docs=smooth(nlp, 20, seed), store_user_data=True).to_disk(tmp_path / f"{name}.spacy")
    settings = {f"paths.{name}": str(tmp_path / f"{name}.spacy") for name in ("train", "dev")}
    settings["components.crf_scorer.attribute"] = "level"
    _, trials = tune(load_config(CONFIG, settings, interpolate=True), {"l2": [1.0, 1e6]})
    good, bad = sorted(trials, key=lambda trial: trial.candidate.settings)
    assert good.score > 0.7 and bad.score < 0.1


def test_numbers_are_converted_and_reported(tmp_path):
    rows = [
        {
            "text": f"a {'dear' if n % 2 else 'cheap'} thing {n}",
            "extensions": {"price": (10.0 if n % 2 else 1.0) + n % 3},
        }
        for n in range(20)
    ]
    srsly.write_jsonl(tmp_path / "prices.jsonl", rows)
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "prices.jsonl"), "-o", str(tmp_path / "prices.spacy")])
    assert result.exit_code == 0 and "20 documents with extensions" in result.output, result.output
    assert "no annotation" not in result.output
    nlp = spacy.blank("en")
    docs = [*DocBin().from_disk(tmp_path / "prices.spacy").get_docs(nlp.vocab)]
    assert [doc._.price for doc in docs] == [row["extensions"]["price"] for row in rows]
    trained(nlp, examples_of(docs), config("doc"))
    nlp.to_disk(tmp_path / "model")
    command = [
        "numbers",
        str(tmp_path / "model"),
        "--data",
        str(tmp_path / "prices.spacy"),
        "--output",
        str(tmp_path / "page.html"),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    result = CliRunner().invoke(app, ["numbers", str(tmp_path / "model"), "a dear thing"])
    assert f"price   {nlp('a dear thing')._.price:.6g}" in result.output
    for command, code in COMMANDS_WITHOUT_NUMBERS.items():
        words = command.format(folder=tmp_path, config=CONFIG).split()
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1 and code in result.output, result.output
    assert page.count("<circle") == 20 and "RMSE" in page and "<td>crf_scorer</td><td>20</td>" in page
    srsly.write_jsonl(tmp_path / "wrong.jsonl", [{"text": "a", "extensions": ["price"]}])
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "wrong.jsonl"), "-o", str(tmp_path / "wrong.spacy")])
    assert result.exit_code == 1 and "CRF701" in result.output and '"extensions"' in result.output
