"""Several labels of a text: sums over a graph of labels against enumeration, the estimators of graphs against scikit-learn, and
the component."""

import itertools
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import spacy
import srsly
from sklearn.covariance import graphical_lasso as sklearn_lasso
from sklearn.linear_model import LogisticRegression
from spacy.tokens import DocBin
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.inference.independent_labels import IndependentLabels, LabelSetScores
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.pipeline.thresholds import measure
from spacy_crf.report import suspects
from spacy_crf.report.cases import judge
from spacy_crf.report.page import render
from spacy_crf_lab import charts
from spacy_crf_lab.gaussian_graph import graphical_lasso, partial_correlations
from spacy_crf_lab.label_cliques import Annotated, Hierarchy, LabelTree, LearnedGraph
from spacy_crf_lab.label_sums import LabelGraphs, LabelScores
from spacy_crf_lab.ties.belief_propagation import BeliefPropagation
from spacy_crf_lab.ties.junction_tree import JunctionTree
from tests.pipeline.test_independent_labels import LABELS, LBFGS, TEXTS, WORDS, examples_of
from tests.structures import assert_derivative

from .util import registered

EXACT = LabelGraphs()
GRAPHS = {
    "no edges": (4, []),
    "one label": (1, []),
    "chain": (5, [(0, 1), (1, 2), (3, 2), (3, 4)]),
    "two parts": (6, [(4, 0), (2, 5), (5, 1)]),
    "circle": (6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]),
    "all pairs": (6, [*itertools.combinations(range(6), 2)]),
    "grid": (9, [(n, n + 1) for n in range(8) if n % 3 < 2] + [(n, n + 3) for n in range(6)]),
}


def random_scores(graph, texts=4, seed=0, scale=1.0, implies=()):
    n_labels, edges = GRAPHS[graph]
    random = np.random.default_rng(seed)
    labels = scale * random.normal(size=(texts, 2 * n_labels))
    pairs = scale * random.normal(size=len(edges))
    of_pairs = np.array([n in implies for n in range(len(edges))], dtype=bool)
    return LabelScores(labels, pairs, np.array(edges, np.int64).reshape(-1, 2), of_pairs, np.arange(texts + 1))


def random_clamp(scores, seed=1):
    """Texts without annotation, partly annotated, fully annotated, and one that can have no labelling."""
    random, (texts, size) = np.random.default_rng(seed), scores.labels.shape
    clamp = np.ones((texts, size), dtype=bool)
    present = random.random((texts, size // 2)) < 0.5
    known = random.random((texts, size // 2)) < np.array([0.0, 0.5, 1.0, 0.5])[:texts, np.newaxis]
    clamp[:, : size // 2] = present | ~known
    clamp[:, size // 2 :] = ~present | ~known
    clamp[3, [0, size // 2]] = False
    return clamp


def enumerated(scores, text, allowed):
    """The score of every labelling of a text that is possible."""
    n, found = scores.labels.shape[1] // 2, {}
    for y in itertools.product((0, 1), repeat=n):
        if all(allowed[j if y[j] else n + j] for j in range(n)):
            pairs = [*zip(scores.pairs, scores.edges, scores.implies)]
            if not any(implied and y[j] > y[k] for _, (j, k), implied in pairs):
                own = sum(scores.labels[text, j if y[j] else n + j] for j in range(n))
                found[y] = own + sum(weight for weight, (j, k), _ in pairs if y[j] and y[k])
    return found


@pytest.mark.parametrize("structure", [EXACT, LabelGraphs(JunctionTree())], ids=["elimination", "JunctionTree"])
@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("graph", GRAPHS)
def test_sums_and_maxima_are_those_of_enumeration(graph, scale, structure):
    implies = (0, 2) if structure is EXACT else ()
    scores = random_scores(graph, scale=scale, implies=implies)
    n = scores.labels.shape[1] // 2
    for clamp in (None, random_clamp(scores)):
        log_z, best = structure.log_partition(scores, clamp=clamp), structure.viterbi(scores, clamp=clamp)
        marginals = structure.marginals(scores, clamp=clamp)
        for text in range(4):
            allowed = np.ones(2 * n, dtype=bool) if clamp is None else clamp[text]
            found = enumerated(scores, text, allowed)
            if not found:
                assert log_z[text] == best.scores[text] == -np.inf
                assert (best.states[text] == -1).all() and not marginals[text].any()
                continue
            expected = np.logaddexp.reduce([*found.values()])
            assert log_z[text] == pytest.approx(expected, abs=1e-9 * scale)
            assert best.scores[text] == pytest.approx(max(found.values()), abs=1e-9 * scale)
            assert found[tuple(best.states[text].tolist())] == pytest.approx(max(found.values()), abs=1e-9 * scale)
            for j in range(n):
                having = sum(math.exp(value - expected) for y, value in found.items() if y[j])
                assert marginals[text, j] == pytest.approx(having, abs=1e-9)


@pytest.mark.parametrize("loss", [LogLikelihood(), SoftmaxMargin(), MaxMargin(), Perceptron()], ids=repr)
@pytest.mark.parametrize("graph", ["two parts", "circle"])
def test_gradients_are_finite_differences(loss, graph):
    scores = random_scores(graph, implies=(1,))
    clamp, weights = random_clamp(scores), np.array([1.0, 2.0, 0.5, 3.0])
    losses, d_scores, impossible = loss(EXACT, scores, clamp, weights=weights)
    assert impossible[3] and (losses[~impossible] >= 0).all()
    assert_derivative(lambda moved: loss(EXACT, moved, clamp, weights=weights)[0].sum(), scores, d_scores)


@pytest.mark.parametrize("loss", [LogLikelihood(), SoftmaxMargin(), MaxMargin(), Perceptron()], ids=repr)
def test_without_edges_labels_are_independent(loss):
    """As in the plugin's own model of several labels."""
    scores = random_scores("no edges")
    clamp, plain = random_clamp(scores), LabelSetScores(scores.labels, scores.starts)
    for mine, theirs in zip(loss(EXACT, scores, clamp), loss(IndependentLabels(), plain, clamp)):
        if isinstance(mine, LabelScores):
            mine, theirs = mine.labels, theirs.labels
        np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=1e-12)
    for clamped in (None, clamp):
        (states, best), (others, other_best) = (
            structure.viterbi(given, clamp=clamped)
            for structure, given in ((EXACT, scores), (IndependentLabels(), plain))
        )
        np.testing.assert_array_equal(states, others)
        np.testing.assert_allclose(best, other_best, atol=1e-12)


def test_belief_propagation_is_exact_on_trees_and_close_on_circles():
    for graph, distance in (("two parts", 1e-4), ("circle", 0.05)):
        scores = random_scores(graph)
        found = LabelGraphs(BeliefPropagation(iterations=100)).marginals(scores)
        np.testing.assert_allclose(found, EXACT.marginals(scores), atol=distance)


def test_twenty_labels_that_all_depend_on_each_other():
    """Weights of a rank-one form have sums over the number of present labels."""
    n, weight = 20, 0.1
    edges = np.array([*itertools.combinations(range(n), 2)])
    scores = LabelScores(
        np.concatenate([np.full((1, n), -0.5), np.zeros((1, n))], axis=1), np.full(len(edges), weight), edges,
        np.zeros(len(edges), bool), np.arange(2),
    )  # fmt: skip
    terms = [math.log(math.comb(n, k)) - 0.5 * k + weight * k * (k - 1) / 2 for k in range(n + 1)]
    assert EXACT.log_partition(scores)[0] == pytest.approx(np.logaddexp.reduce(terms))


def test_texts_one_by_one_are_those_of_a_batch():
    scores = random_scores("grid", texts=3)
    each = [EXACT.marginals(scores._replace(labels=row[np.newaxis], starts=np.arange(2))) for row in scores.labels]
    np.testing.assert_array_equal(np.concatenate(each), EXACT.marginals(scores))
    assert EXACT.marginals(scores._replace(labels=scores.labels[:0], starts=np.arange(1))).shape == (0, 18)


@pytest.mark.parametrize("name", ["labels", "pairs"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_no_numbers(name, value):
    scores = random_scores("circle")
    getattr(scores, name).flat[1] = value
    with pytest.raises(ValueError, match="CRF010"):
        EXACT.log_partition(scores)


# -------------------------------------------------------------------------------------------------------- estimators


def annotated(present):
    clamp = np.concatenate([present, ~present], axis=1)
    return Annotated.of([(clamp, None)], tuple(f"L{n}" for n in range(present.shape[1])), "test")


def drawn(rows=5000, seed=0):
    """Rows of a known Ising model with 10 labels: a circle with two chords, drawn from all 1,024 labellings."""
    random = np.random.default_rng(seed)
    edges = [(n, (n + 1) % 10) for n in range(10)] + [(0, 5), (2, 7)]
    pairs = random.choice([-1.5, 1.5], size=len(edges))
    states = np.array([*itertools.product((0, 1), repeat=10)], dtype=np.float64)
    coupled = np.zeros((10, 10))
    for (j, k), weight in zip(edges, pairs):
        coupled[j, k] = weight
    # Centred, so that labels are present in about half of the rows
    bias = -0.5 * (coupled + coupled.T).sum(axis=1)
    scores = states @ bias + np.einsum("ri,ij,rj->r", states, coupled, states)
    shares = np.exp(scores - np.logaddexp.reduce(scores))
    return states[random.choice(1024, size=rows, p=shares)] == 1, {frozenset(edge) for edge in edges}


@pytest.mark.parametrize("rule", ["and", "or"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_known_graph_is_found(seed, rule):
    present, edges = drawn(seed=seed)
    found = {frozenset(pair) for pair, _ in LearnedGraph(rule=rule, l1=0.1).pairs(annotated(present))}
    assert 2 * len(found & edges) / (len(found) + len(edges)) >= 0.95


def test_nodewise_regressions_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    base = random.random((600, 3)) < 0.3
    present = np.concatenate(
        [base, (base[:, :1] & (random.random((600, 2)) < 0.7)) | (random.random((600, 2)) < 0.1)], 1
    )
    known, l1 = annotated(present), 0.03
    found, deviations = known.nodewise(l1), present.std(axis=0)
    for j in range(5):
        others = np.delete(np.arange(5), j)
        model = LogisticRegression(
            C=1 / (600 * l1 * deviations[j]), l1_ratio=1.0, solver="saga", tol=1e-9, max_iter=20_000
        )
        model.fit(present[:, others] / deviations[others], present[:, j])
        np.testing.assert_allclose(found[j, others], model.coef_[0] / deviations[others], atol=1e-4)
        assert found[j, j] == 0.0
    assert (found != 0.0).sum() < 20  # the penalty leaves some out


def test_the_graphical_lasso_is_that_of_scikit_learn():
    known = annotated(drawn(500)[0])
    for l1 in (0.02, 0.1, 0.3):
        found = graphical_lasso(known.correlation, l1)
        theirs = sklearn_lasso(known.correlation, alpha=l1, tol=1e-8, enet_tol=1e-8, max_iter=1000)[1]
        np.testing.assert_allclose(found, theirs, atol=1e-4)
        expected = -theirs[0, 1] / math.sqrt(theirs[0, 0] * theirs[1, 1])
        assert partial_correlations(found)[0, 1] == pytest.approx(expected, abs=1e-4)


def test_the_tree_of_labels_has_most_mutual_information():
    """By trying all trees of five labels (Prüfer codes)."""
    present = drawn(300)[0][:, :5]
    information = annotated(present).mutual_information()
    for j, k in itertools.combinations(range(5), 2):
        counts = np.array([[(present[:, j] == a) & (present[:, k] == b) for b in (0, 1)] for a in (0, 1)]).mean(axis=2)
        expected = (counts * np.log(counts / np.outer(counts.sum(axis=1), counts.sum(axis=0)))).sum()
        assert information[j, k] == pytest.approx(expected)
    totals = []
    for code in itertools.product(range(5), repeat=3):
        degree, total = [1 + code.count(n) for n in range(5)], 0.0
        for n in code:
            leaf = degree.index(1)
            total += information[leaf, n]
            degree[leaf], degree[n] = 0, degree[n] - 1
        first, second = (n for n in range(5) if degree[n] == 1)
        totals.append(total + information[first, second])
    found = [pair for pair, _ in LabelTree().pairs(annotated(present))]
    assert len(found) == 4 and sum(information[pair] for pair in found) == pytest.approx(max(totals))


def test_most_pairs_of_a_label():
    present = np.random.default_rng(0).random((400, 1)) < 0.5
    present = present ^ (np.random.default_rng(1).random((400, 6)) < 0.1)
    pairs = [pair for pair, _ in LearnedGraph(max_degree=2, l1=0.01).pairs(annotated(present))]
    assert pairs and np.bincount(np.ravel(pairs)).max() == 2


@pytest.mark.parametrize("method", ["nodewise", "graphical_lasso", "chow_liu"])
def test_labels_that_all_texts_have_or_none_get_no_pairs(method, caplog):
    present = drawn(200)[0]
    present[:, 3], present[:, 4] = True, False
    known = annotated(present)
    messages = [record.message for record in caplog.records if "CRFW480" in record.message]
    assert len(messages) == 2 and "has L4" in messages[0] and "lacks L3" in messages[1]
    assert not {3, 4} & {label for pair, _ in LearnedGraph(method=method).pairs(known) for label in pair}


def test_hierarchies():
    assert [*Hierarchy(parents={"L1": "L0"}, implied=True).pairs(annotated(drawn(10)[0]))] == [((1, 0), True)]
    with pytest.raises(ValueError, match=r"CRF484.*A > B > A"):
        Hierarchy(parents={"C": "A", "A": "B", "B": "A"})
    with pytest.raises(ValueError, match=r"CRF846.*X"):
        Hierarchy(parents={"A": "X"}).check(("A", "B"), "name")
    with pytest.raises(ValueError, match="CRF020"):
        Hierarchy(parents={"A": 3})


# --------------------------------------------------------------------------------------------------------- component

LEARNED = {"labels": {"@misc": "spacy_crf_lab.LearnedGraph.v1", "l1": 0.01}}
CLIQUES = {
    "independent": {},
    "learned": LEARNED,
    "tree": {"labels": {"@misc": "spacy_crf_lab.LabelTree.v1"}},
    "hierarchy": {"labels": {"@misc": "spacy_crf_lab.Hierarchy.v1", "parents": {"COMEDY": "ROMANCE"}, "implied": True}},
}


def blank(cliques="learned", inference=None, strength=0.3, **config):
    layer = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": WORDS, "possible_states": True}
    model = {
        "@architectures": "spacy_crf_lab.LabelGraph.v1",
        "emissions": layer,
        "inference": inference,
        "strength": strength,
    }
    model["cliques"] = CLIQUES[cliques] if isinstance(cliques, str) else cliques
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_textcat", config={"multilabel": True, "model": model, "optimizer": LBFGS, **config})
    return nlp


def trained(cliques="learned", texts=TEXTS, steps=6, **settings):
    nlp = blank(cliques, **settings)
    pipe, examples = nlp.get_pipe("crf_textcat"), [*examples_of(nlp, texts)]
    nlp.initialize(lambda: examples)
    for _ in range(steps):
        pipe.update(examples, sgd=pipe.optimizer)
    return nlp


@pytest.fixture(scope="module", params=CLIQUES)
def model(request):
    """A trained pipeline of each kind. Do not change."""
    return trained(request.param)


def test_learns_its_texts(model):
    pipe = model.get_pipe("crf_textcat")
    for text, labels in TEXTS:
        doc = model(text)
        assert sorted(pipe.labels_of(doc)) == labels.split() and pipe.best_labels(doc) == labels.split()
        assert set(doc.cats) == set(LABELS) and all(0.0 <= value <= 1.0 for value in doc.cats.values())
    scores = model.evaluate([*examples_of(model)])
    assert scores["cats_micro_f"] == 1.0 and scores["cats_score_desc"] == "macro AUC"


def test_saved_models_say_the_same(model, tmp_path):
    texts = [text for text, _ in TEXTS] + ["", "words never met", "love"]
    before = [doc.cats for doc in model.pipe(texts)]
    model.to_disk(tmp_path)
    assert [doc.cats for doc in spacy.load(tmp_path).pipe(texts)] == before
    again = spacy.util.load_model_from_config(model.config).from_bytes(model.to_bytes())
    assert [doc.cats for doc in again.pipe(texts)] == before
    assert [doc.cats for doc in model.pipe(texts, n_process=2, batch_size=4)] == before
    with pytest.raises(ValueError, match=r"CRF505.*cliques"):
        blank({"labels": {"@misc": "spacy_crf_lab.LearnedGraph.v1", "l1": 0.5}}).from_bytes(model.to_bytes())


def test_a_child_implies_its_parent():
    nlp = trained("hierarchy")
    pipe, scores = nlp.get_pipe("crf_textcat"), nlp.get_pipe("crf_textcat").model.predict([nlp.make_doc("a comedy")])
    alone = np.array([[True, False, True, False, True, True]])  # COMEDY without ROMANCE
    assert pipe.decoding.structure.log_partition(scores, clamp=alone)[0] == -np.inf
    assert nlp("a comedy").cats["ROMANCE"] >= nlp("a comedy").cats["COMEDY"]


def test_labels_that_are_not_annotated_are_free():
    """Labels whose value is missing in a text count neither as present nor as absent."""
    more = [("sing a song", {"WAR": 0.0}), ("hum", {})]
    nlp = trained("learned", [*TEXTS, *more])
    pipe = nlp.get_pipe("crf_textcat")
    partial, silent = examples_of(nlp, more)
    assert pipe.get_loss([silent], pipe.model.predict([silent.predicted]))[0] == 0.0
    loss, _ = pipe.get_loss([partial], pipe.model.predict([partial.predicted]))
    assert loss == pytest.approx(-math.log(1 - nlp("sing a song").cats["WAR"]))


def test_thresholds_of_labels():
    nlp = trained("learned", threshold={"WAR": 0.999999, "*": 0.0})
    pipe, doc = nlp.get_pipe("crf_textcat"), nlp("a war film")
    assert set(pipe.labels_of(doc)) == {"COMEDY", "ROMANCE"}
    scores = nlp.evaluate([*examples_of(nlp)])["cats_f_per_type"]
    assert scores["WAR"]["r"] == 0.0 and scores["COMEDY"]["r"] == 1.0 and scores["COMEDY"]["p"] < 1.0
    assert pipe.score([Example(doc, example.reference) for example in examples_of(nlp, TEXTS[1:2])], threshold=0.5)[
        "cats_f_per_type"
    ]["WAR"]["r"] == 1.0  # fmt: skip
    with pytest.raises(ValueError, match=r"CRF846.*threshold.*PEACE"):
        trained("learned", threshold={"PEACE": 0.5})


def test_confidence_is_the_probability_of_the_set_of_labels():
    nlp = trained("learned", confidence=True)
    doc = nlp("love in battle")
    pipe, clamp = nlp.get_pipe("crf_textcat"), np.array([[False, True, True, True, False, False]])
    scores = pipe.model.predict([doc])
    found = enumerated(scores, 0, np.ones(6, dtype=bool))
    assert doc._.crf_prob == pytest.approx(math.exp(found[0, 1, 1] - np.logaddexp.reduce([*found.values()])))
    assert pipe.decoding.structure.log_partition(scores, clamp=clamp)[0] == pytest.approx(found[0, 1, 1])


def test_evidence_and_explanations():
    nlp = trained("learned", explain=True)
    pipe, doc = nlp.get_pipe("crf_textcat"), nlp("love in battle")
    odds = math.log(doc.cats["WAR"] / (1 - doc.cats["WAR"]))
    for span, evidence in pipe.evidence(doc, "WAR"):
        rest = nlp(" ".join(token.text for token in doc if token.i != span.start)).cats["WAR"]
        assert evidence == pytest.approx(odds - math.log(rest / (1 - rest)), abs=1e-5)
    assert doc._.crf_evidence["label"] == max(doc.cats, key=doc.cats.get)
    for kind in ("contrast", "log_odds", "words"):
        why = pipe.explain(doc, "WAR", kind=kind)
        assert why.totals["log-odds"] == pytest.approx(odds, abs=1e-6)
        assert kind == "words" or abs(why.check) < 1e-6
        assert why.target == pytest.approx(odds, abs=1e-6)  # a contrast sums over the other labels, too
    for options, message in (
        ({"kind": "leave_out"}, "CRF838.*leave_out"),
        ({"kind": "texts"}, "CRF840.*depend on each other"),
        ({"against": "COMEDY"}, "CRF838.*do not exclude"),
    ):
        with pytest.raises(ValueError, match=message):
            pipe.explain(doc, "WAR", **options)
    assert any(row.template == "pairs" for row in pipe.weights("WAR"))


def test_without_cliques_it_is_the_model_of_the_plugin():
    """The same weights after training, and the same probabilities."""
    independent, layer = trained("independent"), blank().config["components"]["crf_textcat"]["model"]["emissions"]
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy_crf.MaxEntText.v1", "emissions": layer}
    pipe = nlp.add_pipe("crf_textcat", config={"multilabel": True, "model": model, "optimizer": LBFGS})
    examples = [*examples_of(nlp)]
    nlp.initialize(lambda: examples)
    for _ in range(6):
        pipe.update(examples, sgd=pipe.optimizer)
    for text in ("love and war", "a funny film", ""):
        assert nlp(text).cats == pytest.approx(independent(text).cats, abs=1e-9)


def test_pairs_of_little_strength_are_as_good_as_none():
    """The objective penalizes their weights, so that labels come close to independent ones."""
    weak, strong = (trained("tree", steps=20, strength=strength).get_pipe("crf_textcat") for strength in (0.001, 1.0))
    independent = trained("independent", steps=20).get_pipe("crf_textcat")
    for text in ("love and war", "a funny film"):
        docs = [pipe.probabilities(spacy.blank("en")(text)) for pipe in (weak, independent, strong)]
        assert docs[0] == pytest.approx(docs[1], abs=1e-3) and docs[2] != pytest.approx(docs[1], abs=1e-2)
    largest = {
        pipe: max(abs(row.weight) for row in pipe.weights() if row.template == "pairs") for pipe in (weak, strong)
    }
    assert largest[weak] < 1e-3 < 0.5 < largest[strong]


def test_a_new_label_has_no_pairs_and_is_learned():
    nlp = trained("learned")
    pipe = nlp.get_pipe("crf_textcat")
    assert pipe.add_label("SONG") == 1 and nlp("love").cats["SONG"] == 0.5
    more = [
        (text, {**{label: float(label in labels.split()) for label in LABELS}, "SONG": 0.0}) for text, labels in TEXTS
    ]
    examples = [*examples_of(nlp, [*more, ("sing", {"SONG": 1.0, **dict.fromkeys(LABELS, 0.0)})])]
    for _ in range(6):
        nlp.update(examples)
    assert pipe.labels_of(nlp("sing")) == ["SONG"] and "SONG" not in pipe.labels_of(nlp("a war film"))


def test_belief_propagation_that_does_not_converge_says_so_once(caplog):
    """The flag was hidden by a method of the same name, so that no belief propagation ever said it."""
    learned = {"labels": {**LEARNED["labels"], "rule": "or"}}
    once = {"@misc": "spacy_crf_lab.BeliefPropagation.v1", "iterations": 1}
    nlp = trained(learned, [*coupled_texts(60, 0)], steps=2, inference=once)
    for _ in range(2):
        nlp("w1_2 w2_3")
    assert caplog.text.count("CRFW041") == 1 and "BeliefPropagation" in caplog.text


@pytest.mark.parametrize("inference", ["BeliefPropagation", "JunctionTree"])
def test_inference_of_graphs(inference):
    nlp = trained("learned", inference={"@misc": registered(inference)})
    exact = trained("learned")
    for text, _ in TEXTS:
        assert nlp(text).cats == pytest.approx(exact(text).cats, abs=0.05)


@pytest.mark.parametrize(
    "optimizer", ["spacy_crf_lab.ConjugateGradient.v1", "spacy_crf.Minibatch.v1", "Adam.v1", "spacy_crf_lab.Newton.v1"]
)
def test_optimizers(optimizer):
    rate = {"l2": 0.02} if optimizer.endswith(("Gradient.v1", "Newton.v1")) else {"learn_rate": 0.1}
    nlp = trained("learned", steps=40, optimizer={"@optimizers": optimizer, **rate})
    pipe = nlp.get_pipe("crf_textcat")
    assert [sorted(pipe.labels_of(nlp(text))) for text, _ in TEXTS] == [labels.split() for _, labels in TEXTS]


@pytest.mark.parametrize("loss", ["SoftmaxMargin", "MaxMargin", "Perceptron"])
def test_losses(loss):
    optimizer = {"@optimizers": "Adam.v1", "learn_rate": 0.1}
    nlp = trained("learned", steps=40, optimizer=optimizer, loss={"@losses": registered(loss)})
    pipe = nlp.get_pipe("crf_textcat")
    assert [pipe.best_labels(nlp(text)) for text, _ in TEXTS] == [labels.split() for _, labels in TEXTS]


@pytest.mark.parametrize(
    "config, message",
    [
        ({"multilabel": False}, "CRF480.*label_graph gives a text several labels"),
        ({"exclusive_classes": True}, "CRF020.*exclusive_classes.*false"),
        ({"threshold": 2.0}, "CRF020.*threshold"),
        ({"loss": {"@losses": "spacy_crf.LogLikelihood.v1", "label_weights": {"WAR": 2.0}}}, "CRF482.*label_weights"),
        ({"loss": {"@losses": "spacy_crf_lab.PseudoLikelihood.v1"}}, "CRF347.*PseudoLikelihood"),
        ({"inference": {"@misc": "spacy_crf_lab.MeanField.v1"}}, "CRF482.*MeanField"),
        ({"optimizer": {"@optimizers": "spacy_crf.SGD.v1"}}, "CRF365.*label_graph"),
        ({"cliques": "hierarchy", "inference": {"@misc": "spacy_crf_lab.JunctionTree.v1"}}, "CRF020.*implied"),
        ({"cliques": {"labels": 3}}, "CRF020.*cliques"),
    ],
)
def test_settings_that_are_not_possible(config, message):
    with pytest.raises(ValueError, match=message):
        blank(**config)


def test_a_model_of_one_label_is_refused():
    with pytest.raises(ValueError, match=r"CRF480.*hidden_chain gives a text one label"):
        emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": WORDS}
        model = {"@architectures": "spacy_crf_lab.HiddenChain.v1", "emissions": emissions}
        spacy.blank("en").add_pipe("crf_textcat", config={"multilabel": True, "model": model})


def test_texts_without_full_annotation_teach_no_graph():
    with pytest.raises(ValueError, match="CRF483"):
        trained("learned", [("love", {"ROMANCE": 1.0}), ("war", {"WAR": 1.0})])


def test_a_graph_that_is_too_wide(caplog):
    random = np.random.default_rng(0)
    labels = [f"L{n}" for n in range(24)]
    texts = [(f"w{n}", dict(zip(labels, map(float, random.random(24) < 0.5)))) for n in range(60)]
    wide = {"labels": {"@misc": "spacy_crf_lab.LearnedGraph.v1", "l1": 0.001, "max_degree": 30, "rule": "or"}}
    with pytest.raises(ValueError, match=r"CRF481.*BeliefPropagation"):
        trained(wide, texts, steps=0)
    trained(wide, texts, steps=0, inference={"@misc": "spacy_crf_lab.BeliefPropagation.v1"})


def coupled_texts(n, seed):
    """Texts with words of their labels, each of which is rare. Eight labels, each like the one before it; some have no word."""
    random = np.random.default_rng(seed)
    for _ in range(n):
        y = [random.random() < 0.5]
        while len(y) < 8:
            y.append(y[-1] == (random.random() < 0.9))
        words = [f"w{j}_{random.integers(30)}" for j in range(8) if y[j] and random.random() < 0.6]
        yield " ".join(words), {f"L{j}": float(present) for j, present in enumerate(y)}


def test_labels_that_depend_on_each_other_gain_by_a_graph():
    train_texts, test_texts = [*coupled_texts(300, 0)], [*coupled_texts(500, 1)]
    found = {}
    for cliques in ("independent", "tree", "learned"):
        nlp = trained(cliques, train_texts, steps=8)
        pipe, examples = nlp.get_pipe("crf_textcat"), [*examples_of(nlp, test_texts)]
        right = [pipe.best_labels(eg.predicted) == [k for k, v in eg.reference.cats.items() if v] for eg in examples]
        found[cliques] = 100 * nlp.evaluate(examples)["cats_micro_f"], 100 * np.mean(right)
    for cliques in ("tree", "learned"):
        assert found[cliques][0] >= found["independent"][0] + 0.5
        assert found[cliques][1] >= found["independent"][1] + 1.0


def test_docs_in_a_bin_and_two_threads(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    nlp = trained("learned")
    texts = [text for text, _ in TEXTS] * 40
    before = [doc.cats for doc in nlp.pipe(texts)]
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: [doc.cats for doc in nlp.pipe(texts)], range(4)):
            assert found == before
    DocBin(docs=[nlp(texts[0])]).to_disk(tmp_path / "docs.spacy")
    [doc] = DocBin().from_disk(tmp_path / "docs.spacy").get_docs(nlp.vocab)
    assert doc.cats == before[0]


def test_thresholds_are_fitted(tmp_path):
    """`crf threshold` finds one threshold for all labels, one for each label, and one that promises recall."""
    texts = [*coupled_texts(200, 0)]
    nlp = trained("tree", texts, steps=3)
    nlp.to_disk(tmp_path / "model")
    docs = [example.reference for example in examples_of(nlp, coupled_texts(300, 2))]
    DocBin(docs=docs).to_disk(tmp_path / "new.spacy")
    examples = [Example(nlp.make_doc(doc.text), doc) for doc in docs]
    pipe = nlp.get_pipe("crf_textcat")
    points = measure(pipe, examples, [0.3, 0.5])
    for point in points:
        scores = nlp.get_pipe("crf_textcat").score(
            [Example(nlp(doc.text), doc) for doc in docs], threshold=point.min_prob
        )
        assert point.f() == pytest.approx(scores["cats_micro_f"]) and point.recall == pytest.approx(
            scores["cats_micro_r"]
        )
        assert point.all["gold"] == sum(value for doc in docs for value in doc.cats.values())
    found = {}
    for name, options in {"all": [], "each": ["--per-label"], "promise": ["--recall", "0.9"]}.items():
        command = ["threshold", str(tmp_path / "model"), str(tmp_path / "new.spacy"), *options]
        result = CliRunner().invoke(app, [*command, "--output", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        found[name] = spacy.load(tmp_path / name).get_pipe("crf_textcat").cfg["threshold"]
    assert 0.0 < found["all"] < 1.0 and set(found["each"]) == {*pipe.labels, "*"}
    [reached] = measure(pipe, examples, [found["promise"]])
    assert reached.recall >= 0.9 and found["promise"] < 0.5
    spacy.registry.get("callbacks", "spacy_crf.fit_min_prob.v1")(tmp_path / "new.spacy", per_label=True)(nlp)
    assert nlp.config["components"]["crf_textcat"]["threshold"] == pipe.cfg["threshold"] == found["each"]


def test_crf_graph_prints_and_draws_the_pairs_of_labels(tmp_path):
    rows = [
        {"text": f"text {n}", "cats": [f"L{j}" for j in np.flatnonzero(row)]} for n, row in enumerate(drawn(400)[0])
    ]
    srsly.write_jsonl(tmp_path / "new.jsonl", rows)
    for name in ("page.html", "graph.svg"):
        result = CliRunner().invoke(app, ["graph", str(tmp_path / "new.jsonl"), "--output", str(tmp_path / name)])
        assert result.exit_code == 0 and "10 labels, 400 texts" in result.output, result.output
    result = CliRunner().invoke(app, ["graph", str(tmp_path / "new.jsonl"), "--method", "graphical_lasso", "--json"])
    edges, present = srsly.json_loads(result.output), drawn(400)[0]
    for edge in edges:
        j, k = (int(edge[name][1:]) for name in ("first", "second"))
        assert edge["texts"] == (present[:, j] & present[:, k]).sum() and edge["weight"] == edge["partial"]
        assert edge["correlation"] == pytest.approx(np.corrcoef(present[:, j], present[:, k])[0, 1])
    page, chart = ((tmp_path / name).read_text() for name in ("page.html", "graph.svg"))
    n_lines = chart.count('class="line"') + chart.count('class="diagonal"')
    assert chart.count("<circle") == 10 and n_lines == page.count("<tr>") - 1 > 5
    assert all(f"<td>L{j}</td>" in page and f">L{j}</text>" in page for j in range(10))
    ElementTree.fromstring(chart)
    (tmp_path / "none.jsonl").write_text('{"text": "a b", "spans": [{"start": 0, "end": 1, "label": "A"}]}\n')
    result = CliRunner().invoke(app, ["graph", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 1 and "CRF485" in result.output


@pytest.mark.parametrize("threshold", [0.5, {"WAR": 0.01, "*": 0.9}])
def test_several_labels_of_texts(threshold):
    nlp = trained("learned", steps=1, threshold=threshold)
    pipe = nlp.get_pipe("crf_textcat")
    texts = [*TEXTS, ("love", "WAR"), ("the war", {"WAR": 0.0})]
    examples = [*examples_of(nlp, texts)]
    (judged,) = judge(nlp, [pipe], examples)
    found = {(case.doc, case.found.label) for case in judged.cases if case.found}
    known = [example.reference.cats for example in examples]
    assert found == {
        (n, label)
        for n, example in enumerate(examples)
        for label in pipe.labels_of(example.predicted)
        if label in known[n]
    }
    gold = {(n, label) for n, cats in enumerate(known) for label, value in cats.items() if value}
    assert gold == {(case.doc, case.gold.label) for case in judged.cases if case.gold}
    kinds = {case.kind for case in judged.cases}
    assert {"right", "spurious"} <= kinds <= {"right", "missed", "spurious"}
    html = render("texts", [judged])
    for suspect in suspects.judged_by(pipe, judged.examples):
        assert suspect.log_ratio > 0.0
        # Whole sets: only labels that differ were shown, so a text with another label seemed to have none
        gold, best = (
            ", ".join(mention.label for mention in side) or "nothing" for side in (suspect.gold, suspect.best)
        )
        assert f"annotated: {gold}; more probable" in html and f": {best} " in html.replace("<", " <")


def test_graphs_of_labels_fit_small_screens(browser, tmp_path):
    """The table of a graph was 537 wide."""
    edge = ("LABEL_WITH_A_LONG_NAME", "ANOTHER_WITH_A_LONG_NAME", 1.0)
    columns = ("label", "label", "texts", "weight", "correlation", "partial")
    row = (*edge[:2], "1,000", "1.000", "0.100", "0.100")
    page = charts.table_page("Graph", "1 pair", charts.label_graph([edge]), columns, [row])
    (tmp_path / "page.html").write_text(page, encoding="utf8")
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    opened.goto((tmp_path / "page.html").as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    opened.close()
