"""Emissions by kernels: against the definitions of the kernels, conjunctions that are written out, and scikit-learn."""

import math
from itertools import combinations

import numpy as np
import pytest
import spacy
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from thinc.api import Adam

from spacy_crf.models.node import AnnotatedDocs
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf_lab import kernel_choice, kernel_emissions
from spacy_crf_lab.kernel_basis import KERNELS, Basis, HashedTokens, Kernel
from spacy_crf_lab.kernel_choice import AnnotatedTokens, import_vectors
from tests.util import check_copies, entities, ner_examples, plain, signatures, tag_examples

from .util import registered

ATOMS = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]}
STRUCTURES = ["LinearChain", "MaxEnt", "MEMM", "HigherOrder", "FactorGraph"]
OF_FEATURES = [name for name in KERNELS if name != "subtree"]
each_kernel = pytest.mark.parametrize("name", OF_FEATURES)


def emissions_of(features=ATOMS, **settings):
    return {"@architectures": "spacy_crf_lab.KernelEmissions.v1", "features": features, **settings}


def made(architecture="LinearChain", factory="crf_ner", of_pipe=None, **settings):
    nlp = spacy.blank("en")
    model = {"@architectures": registered(architecture), "emissions": emissions_of(**settings)}
    return nlp, nlp.add_pipe(factory, config={"model": model, **(of_pipe or {})})


def trained(*args, steps=4, l2=0.01, examples=ner_examples, **settings):
    nlp, pipe = made(*args, **settings)
    examples = examples(nlp)
    nlp.initialize(lambda: examples)
    for _ in range(steps):
        nlp.update(examples, sgd=LBFGS(l2=l2, iterations_per_step=10))
    return nlp, pipe


def layer_of(pipe):
    layer = pipe.model.get_ref("emissions")
    return layer, layer.attrs["kernel"]


def random_tokens(n, seed=0, values=True):
    """Tokens of a few of nine features; RETURNS: the tokens, and the same as a matrix."""
    rng = np.random.default_rng(seed)
    dense = (rng.random((n, 9)) < 0.4) * (rng.normal(size=(n, 9)) if values else 1.0)
    dense = dense.astype(np.float32)
    tokens, columns = np.nonzero(dense)
    starts = np.append(0, np.cumsum(np.bincount(tokens, minlength=n)))
    keys = np.random.default_rng(1).integers(1, 1 << 63, size=9).astype(np.uint64)
    return HashedTokens(keys[columns], dense[tokens, columns], starts), dense.astype(np.float64)


def value(kernel, x, z, gamma):
    """The definition of each kernel, in plain Python."""
    product = sum(a * b for a, b in zip(x, z))
    lengths = math.sqrt(sum(a * a for a in x)) * math.sqrt(sum(b * b for b in z))
    return {
        "linear": product,
        "poly": (product + kernel.offset) ** kernel.degree,
        "rbf": math.exp(-gamma * sum((a - b) ** 2 for a, b in zip(x, z))),
        "cosine": product / lengths if lengths else 0.0,
    }[kernel.name]


@each_kernel
@pytest.mark.parametrize("gamma", [None, 0.3])
def test_values_are_those_of_the_definitions(name, gamma):
    kernel = Kernel(name, 3, 0.5, gamma)
    (some, dense), (others, dense_others) = random_tokens(7), random_tokens(5, seed=2)
    basis = Basis((kernel,), some)
    found = basis.times(others, np.eye(7))
    used = gamma or 1.0 / (dense**2).sum(axis=1).mean()
    expected = [[value(kernel, x, z, used) for z in dense.tolist()] for x in dense_others.tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@each_kernel
def test_whitened_features_have_the_kernel_as_products(name):
    tokens, _ = random_tokens(40)
    basis = Basis((Kernel(name, 2, 1.0, None),), tokens).whiten()
    matrix = basis.matrix()
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix)[0] > -1e-9 * np.abs(matrix).max()  # positive
    features = basis.features(tokens)
    np.testing.assert_allclose(features @ features.T, matrix, atol=1e-4 * matrix.max())
    if name == "linear":  # nine features span all of them
        assert features.shape[1] == 9


def test_tokens_outside_of_the_basis_are_projected_on_its_span():
    """Nyström: with a basis that spans all features, the kernel of any two tokens is exact."""
    (some, _), (others, dense) = random_tokens(30), random_tokens(20, seed=5)
    features = Basis((Kernel("linear", 2, 1.0, None),), some).whiten().features(others)
    np.testing.assert_allclose(features @ features.T, dense @ dense.T, atol=1e-4)


def test_poly_is_the_product_of_conjunctions():
    """(<x, z> + c)² = <φ(x), φ(z)> of squares, of pairs with weight √2, of single features with weight √(2 c), and of c."""
    tokens, dense = random_tokens(30)
    c = 0.7
    pairs = [math.sqrt(2) * dense[:, i] * dense[:, j] for i, j in combinations(range(9), 2)]
    written = np.column_stack([dense**2, *pairs, math.sqrt(2 * c) * dense, np.full(30, c)])
    np.testing.assert_allclose(Basis((Kernel("poly", 2, c, None),), tokens).matrix(), written @ written.T, atol=1e-8)


def test_kernel_logistic_regression_is_that_of_scikit_learn():
    """MaxEnt over a kernel: the same objective as logistic regression on conjunctions, l2 included (representer theorem)."""
    l2 = 0.5
    nlp, tagger = made("MaxEnt", "crf_tagger", select="all", offset=1.0)
    examples = tag_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=l2, iterations_per_step=500, tolerance=1e-9))
    layer, kernel = layer_of(tagger)
    docs = [example.predicted for example in examples]
    tokens = kernel.read(docs)
    keys = np.unique(tokens.hashes)
    atoms = np.zeros((len(tokens.starts) - 1, len(keys)))
    rows = np.repeat(np.arange(len(atoms)), np.diff(tokens.starts))
    atoms[rows, np.searchsorted(keys, tokens.hashes)] = tokens.values
    pairs = [math.sqrt(2) * atoms[:, i] * atoms[:, j] for i, j in combinations(range(len(keys)), 2)]
    # The last column is the bias, whose square counts too
    written = np.column_stack([atoms**2, *pairs, math.sqrt(2) * atoms, np.ones(len(atoms)), np.ones(len(atoms))])
    gold = [tagger.tags().index(token.tag_) for example in examples for token in example.reference]
    rival = LogisticRegression(C=1 / (2 * l2), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(written, gold)
    scores = layer.predict(docs).scores
    ours, theirs = (array - array.mean(axis=1, keepdims=True) for array in (scores, written @ rival.coef_.T))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    # Representer: the solution is a sum over the basis, which training and prediction agree on
    in_training, _ = layer(docs, True)
    np.testing.assert_allclose(in_training.scores, scores, atol=1e-4)


XOR = ["a/SAME a/END", "b/SAME b/END", "a/OTHER b/END", "b/OTHER a/END"]


@pytest.mark.parametrize("name", ["linear", "poly", "rbf"])
def test_kernels_solve_exclusive_or(name):
    """Whether two words are equal is a matter of their pairs: no sum over single words says it."""
    features = {**ATOMS, "templates": ["lower[0]", "lower[1]"]}

    def examples(nlp):
        return tag_examples(nlp, XOR)

    nlp, _ = trained("MaxEnt", "crf_tagger", features=features, select="all", kernel=name, examples=examples, l2=1e-3)
    right = [token.tag_ == gold.tag_ for e in examples(nlp) for token, gold in zip(nlp(e.predicted), e.reference)]
    assert all(right) == (name != "linear")


@pytest.mark.parametrize("architecture", STRUCTURES)
@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_learns_saves_and_goes_on(architecture, factory, tmp_path):
    make = {"crf_ner": ner_examples, "crf_tagger": tag_examples}[factory]
    nlp, pipe = trained(architecture, factory, examples=make)
    score = {"crf_ner": "ents_f", "crf_tagger": "crf_tag_acc"}[factory]
    assert nlp.evaluate(make(nlp))[score] == 1.0
    others = made(architecture, factory)[0], trained(architecture, factory, examples=make, basis=5, steps=1)[0]
    loaded = check_copies(nlp, factory, make(nlp), others, tmp_path, rtol=1e-7, atol=1e-12)
    optimizer = nlp.resume_training()
    new = {"crf_ner": ["[May](DATE) came"], "crf_tagger": ["her/PRP$ way/NN"]}[factory]
    for _ in range(100):
        nlp.update([*make(nlp, new), *make(nlp)], sgd=optimizer)
    assert nlp.evaluate([*make(nlp, new), *make(nlp)])[score] == 1.0
    assert len(layer_of(pipe)[1].basis) == len(layer_of(loaded.get_pipe(factory))[1].basis)  # which stays


def test_in_two_processes():
    nlp, _ = trained()
    docs = [plain(example.reference) for example in ner_examples(nlp)]
    alone = [entities(doc) for doc in nlp.pipe(map(plain, docs))]
    assert [entities(doc) for doc in nlp.pipe(map(plain, docs), n_process=2)] == alone and any(alone)


def test_learns_by_gradients_too():
    nlp, _ = made()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    for _ in range(60):
        nlp.update(examples, sgd=Adam(0.02))
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_derivatives_are_differences():
    nlp, pipe = trained(steps=1)
    examples = ner_examples(nlp)
    objective = pipe.training.objective(LBFGS(), examples)
    weights = np.random.default_rng(0).normal(size=len(objective.weights()), scale=0.1)
    _, gradient = objective.evaluate(weights)
    for place in np.random.default_rng(1).choice(len(weights), 20, replace=False):
        ends = []
        for step in (1e-5, -1e-5):
            moved = weights.copy()
            moved[place] += step
            ends.append(objective.evaluate(moved)[0])
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-5)


def test_a_smaller_basis_is_drawn_by_its_seed():
    bases = [layer_of(trained(basis=10, seed=seed, steps=1)[1])[1].basis for seed in (3, 3, 4)]
    assert [len(basis) for basis in bases] == [10, 10, 10]
    first, same, other = (basis.tokens.fingerprints.tolist() for basis in bases)
    assert first == same != other
    assert len(set(first)) == 10  # tokens with different features


def annotated_tokens(n=14, seed=0):
    """Tokens of which some are equal, two of them with two possible states."""
    tokens, dense = random_tokens(n, seed=seed, values=False)
    allowed = np.random.default_rng(3).integers(3, size=n)[:, np.newaxis] == np.arange(3)
    allowed[:2, :2] = True
    factors = np.linspace(0.5, 2.0, n)
    batch = AnnotatedDocs([], allowed, np.arange(n + 1), np.zeros(n, dtype=bool), factors)
    annotated = AnnotatedTokens.read(lambda docs: tokens, [batch], 3)
    first = [int(np.flatnonzero(annotated.number == token)[0]) for token in range(annotated.tokens.n)]
    return annotated, dense[first]


def test_import_vectors_are_those_of_brute_force(monkeypatch):
    """Two batches of two tokens each. Between them the model learns what logistic regression on the kernel learns."""
    monkeypatch.setattr(kernel_choice, "_BATCH", 2)
    monkeypatch.setattr(kernel_choice, "_ITERATIONS", 200)
    annotated, dense = annotated_tokens()
    kernel = Kernel("poly", 2, 1.0, None)
    matrix = ((dense @ dense.T) + 1.0) ** 2
    chosen, functions = [], np.ones((len(dense), 1))  # the bias
    for _ in range(2):

        def loss(weights, functions=functions):
            weights = weights.reshape(-1, 3)
            scores = (functions @ weights)[annotated.number]
            gold = logsumexp(np.where(annotated.allowed, scores, -np.inf), axis=1)
            l2 = 0.02 * matrix.diagonal().mean()
            return annotated.factors @ (logsumexp(scores, axis=1) - gold) + l2 * (weights**2).sum()

        weights = minimize(loss, np.zeros(functions.shape[1] * 3), tol=1e-10).x.reshape(-1, 3)
        scores = functions @ weights
        slopes = np.zeros((len(dense), 3))
        for token, allowed, factor in zip(annotated.number, annotated.allowed, annotated.factors):
            residual = factor * (softmax(np.where(allowed, scores[token], -np.inf)) - softmax(scores[token]))
            slopes += np.outer(matrix[token], residual)
        for _ in range(2):
            gains = (slopes**2).sum(axis=1) / matrix.diagonal()
            best = max(set(range(len(dense))) - {*chosen}, key=gains.__getitem__)
            slopes -= np.outer(matrix[best] / matrix[best, best], slopes[best])
            chosen.append(best)
        root = np.linalg.cholesky(np.linalg.inv(matrix[np.ix_(chosen, chosen)]))
        functions = np.column_stack([np.ones(len(dense)), matrix[:, chosen] @ root])
    found = import_vectors((kernel,), annotated, 4, np.random.default_rng(0))
    assert [*map(set, (found[:2].tolist(), found[2:].tolist()))] == [set(chosen[:2]), set(chosen[2:])]


def test_import_vectors_from_random_pools_and_all_tokens(monkeypatch):
    annotated, _ = annotated_tokens(60)
    n = annotated.tokens.n
    monkeypatch.setattr(kernel_choice, "_BATCH", 3)
    monkeypatch.setattr(kernel_choice, "_POOL", 5)
    for count in (7, n):
        for name in OF_FEATURES:
            found = import_vectors((Kernel(name, 2, 1.0, None),), annotated, count, np.random.default_rng(0))
            assert len(set(found.tolist())) == count


@pytest.mark.parametrize("most", [5, 1000])
def test_a_model_of_drawn_tokens_sums_up_equal_ones(most, monkeypatch):
    """Residuals of different tokens are those of all their occurrences."""
    monkeypatch.setattr(kernel_choice, "_MOST", most)
    (tokens, _), rng = random_tokens(12, values=False), np.random.default_rng(0)
    number, allowed = rng.integers(12, size=80), np.eye(3, dtype=bool)[rng.integers(3, size=80)]
    allowed[::7, 0] = True
    every = AnnotatedTokens(tokens, number, allowed, rng.random(80))
    drawn = every.drawn(rng)
    assert drawn.tokens.n == min(most, 12)
    of_pairs = {(n, *row) for n, row in zip(drawn.number.tolist(), drawn.allowed.tolist())}
    assert len(drawn.number) == len(of_pairs) < 80
    models = [kernel_choice.LocalModel(annotated) for annotated in (every, drawn)]
    weights = rng.normal(size=3)
    for model in models:
        model.assign(weights)
    chosen = [tokens.fingerprints.tolist().index(token) for token in drawn.tokens.fingerprints.tolist()]
    np.testing.assert_allclose(models[1].residuals, models[0].residuals[chosen], atol=1e-12)
    if most == 1000:
        found, expected = (model.evaluate(weights) for model in models)
        assert found[0] == pytest.approx(expected[0])
        np.testing.assert_allclose(found[1], expected[1])


@pytest.mark.parametrize("architecture", [*STRUCTURES, "LatentChain"])
def test_a_greedy_basis(architecture):
    """Few import vectors do what many random tokens do, and tokens without annotation are none."""
    settings = {"basis": 12, "steps": 6} if architecture in STRUCTURES else {"basis": 12, "steps": 30}
    nlp, pipe = trained(architecture, "crf_tagger", examples=tag_examples, select="greedy", **settings)
    examples = tag_examples(nlp)
    assert nlp.evaluate(examples)["crf_tag_acc"] == 1.0
    basis = layer_of(pipe)[1].basis
    assert len(basis) == 12
    again = trained(architecture, "crf_tagger", examples=tag_examples, select="greedy", basis=12, steps=1)[1]
    np.testing.assert_array_equal(layer_of(again)[1].basis.tokens.hashes, basis.tokens.hashes)


def test_tokens_without_annotation_are_not_in_the_basis():
    nlp, pipe = made("MaxEnt", "crf_tagger", select="greedy", basis=8)
    examples = tag_examples(nlp)
    for example in examples[1:]:
        for token in example.reference:
            token.tag_ = ""
    nlp.initialize(lambda: examples)
    kernel = layer_of(pipe)[1]
    [annotated] = {len(examples[0].reference)}
    assert len(kernel.basis) == min(8, annotated)
    assert {*kernel.basis.tokens.fingerprints} <= {*kernel.read([examples[0].predicted]).fingerprints}


def test_features_that_a_token_has_twice_count_twice():
    def twice(doc):
        return [["x", "x"] for _ in doc]

    spacy.registry.misc("test_kernel.twice", func=lambda: twice)
    features = {**ATOMS, "templates": ["fn:twice[0]"], "functions": {"twice": {"@misc": "test_kernel.twice"}}}
    nlp, pipe = made(features=features, kernel="linear", select="all")
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    _, kernel = layer_of(pipe)
    assert kernel.read([examples[0].predicted]).squares.tolist() == [4.0] * len(examples[0].predicted)
    assert len(kernel.basis) == 1


def test_explanations_stop_at_the_kernel():
    nlp, pipe = trained()
    doc = nlp("Ann Lee left Rome")
    rows = pipe.explain(doc, doc.ents[0], kind="contrast").rows
    assert {row.template for row in rows} <= {"kernel", "transitions", "first", "last"}
    assert rows[0].template == rows[0].feature == "kernel"
    of_words = pipe.explain(doc, doc.ents[0], kind="words")
    assert {row.feature for row in of_words.rows} == {"Ann", "Lee", "left", "Rome"}
    assert not np.isclose(of_words.rows[0].contribution, 0.0)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kernel": "tree"}, "CRF020.*kernel = 'tree'"),
        ({"degree": 0}, "CRF020.*degree = 0"),
        ({"gamma": 0.0}, "CRF020.*gamma = 0.0"),
        ({"basis": 100_000}, "CRF020.*basis = 100000"),
        ({"select": "some"}, "CRF020.*select = 'some'"),
        ({"features": {**ATOMS, "templates": ["vector[0]"]}}, r"CRF020.*vector\[0\]"),
        ({"features": {**ATOMS, "transitions": ["lower[0]"]}}, r"CRF020.*lower\[0\]"),
    ],
)
def test_settings_that_are_not_possible(settings, message):
    with pytest.raises(ValueError, match=message):
        made(**settings)


@pytest.mark.parametrize("settings", [{}, {"select": "greedy", "basis": 30}])
def test_a_kernel_whose_matrix_is_not_positive_is_refused(settings):
    least = "" if settings else ".*-253"
    message = f"CRF620: KernelEmissions: the matrix of the kernel 'poly' is not positive{least}"
    with pytest.raises(ValueError, match=message):
        trained(offset=-3.0, degree=3, **settings)


def test_a_basis_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr(kernel_emissions, "_MOST", 20)
    with pytest.raises(ValueError, match=r"CRF621.*a basis of all 40 different tokens needs 0.0 GB.*at most 20"):
        trained(select="all", basis=20)


def test_optimizers_that_walk_are_refused():
    nlp, _ = made(of_pipe={"loss": {"@losses": "spacy_crf.Perceptron.v1"}})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF365.*AveragedPerceptron"):
        nlp.update(examples, sgd=AveragedPerceptron())


def test_a_model_of_another_kernel_is_refused():
    nlp, _ = trained()
    with pytest.raises(ValueError, match=r"CRF510.*compares"):
        made(degree=3)[0].from_bytes(nlp.to_bytes())


def test_segments_are_refused():
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy_crf.SemiMarkov.v1", "emissions": emissions_of()}
    with pytest.raises(ValueError, match=r"CRF020: SemiMarkov: emissions"):
        nlp.add_pipe("semicrf_ner", config={"model": model})


def test_labels_without_texts():
    nlp, pipe = made()
    pipe.add_label("PER")
    nlp.initialize()
    examples = ner_examples(nlp)
    for _ in range(4):
        nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=10))
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_the_kernel_is_compiled_once():
    trained(steps=1)
    trained(steps=1, kernel="rbf")
    from spacy_crf_lab.kernels import products

    assert set(signatures(products).values()) <= {1}
