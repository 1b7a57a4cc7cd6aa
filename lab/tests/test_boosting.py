"""Boosted trees: growth against a search in plain Python, derivatives against differences, and the component around them."""

import io
import math
from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from thinc.api import Adam

from spacy_crf.features.feature_index import FeatureIndex
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import TokenFeatures
from spacy_crf_lab import trees
from spacy_crf_lab.kernels import boosting
from spacy_crf_lab.tree_boost import TreeBoost
from spacy_crf_lab.tree_growth import Growth, Postings, grow
from spacy_crf_lab.trees import CompiledForest, Forest
from tests.test_package import ROOT
from tests.util import check_copies, entities, ner_examples, plain, signatures, tag_examples

from .util import registered

ATOMS = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]}
ARCHITECTURES = ["LinearChain", "MaxEnt", "MEMM", "HigherOrder", "FactorGraph"]


def emissions_of(features=ATOMS, min_count=1):
    return {"@architectures": "spacy_crf_lab.BoostedEmissions.v1", "features": features, "min_count": min_count}


def made(architecture="LinearChain", factory="crf_ner", of_pipe=None, **settings):
    nlp = spacy.blank("en")
    model = {"@architectures": registered(architecture), "emissions": emissions_of(**settings)}
    return nlp, nlp.add_pipe(factory, config={"model": model, **(of_pipe or {})})


def trained(*args, steps=4, examples=ner_examples, optimizer=None, **settings):
    nlp, pipe = made(*args, **settings)
    examples = examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = optimizer or TreeBoost(rounds_per_step=10, leaves=8, shrinkage=0.3)
    losses = [nlp.update(examples, sgd=optimizer)[pipe.name] for _ in range(steps)]
    return nlp, pipe, losses


def boosted(pipe):
    return pipe.model.get_ref("emissions").attrs["boosted"]


def corpus_of(objective):
    return objective.parts[-1][0]


def tokens_at_random(seed, n=40, n_features=6, numeric=True):
    """RETURNS: features by template, further ones with values, and the value of each feature (-inf for none) by token."""
    rng = np.random.default_rng(seed)
    by_template = np.where(rng.random((2, n)) < 0.8, rng.integers([[0], [3]], [[3], [6]], (2, n)), -1).astype(np.int32)
    table = np.full((n, n_features + 2), -np.inf)
    for column in by_template:
        table[np.flatnonzero(column >= 0), column[column >= 0]] = 1.0
    rows, values, starts = [], [], [0]
    for t in range(n if numeric else 0):
        for _ in range(rng.integers(0, 4)):
            rows.append(int(rng.integers(n_features, n_features + 2)))
            values.append(float(rng.choice([-1.5, 0.0, 0.25, 2.0])))
            table[t, rows[-1]] = max(table[t, rows[-1]], values[-1])
        starts.append(len(rows))
    starts = np.array(starts if numeric else np.zeros(n + 1), dtype=np.int64)
    items = TokenFeatures(np.array(rows, np.int32), np.array(values, np.float32), starts)
    return by_template, items, table


def quality(derivatives, tokens, l2):
    g, h = derivatives[tokens].astype(np.float64).sum(axis=0).reshape(2, -1)
    return float((g * g / (h + l2)).sum())


def best_split(table, derivatives, tokens, l2):
    """The gain of the best question, by trying all of them."""
    best = 0.0
    for feature in range(table.shape[1]):
        for threshold in {-math.inf, *table[tokens, feature].tolist()}:
            yes = tokens[table[tokens, feature] > threshold]
            no = np.setdiff1d(tokens, yes)
            both = quality(derivatives, yes, l2) + quality(derivatives, no, l2)
            best = max(best, both - quality(derivatives, tokens, l2))
    return best


def walk(forest, values, tree=0):
    """The leaf that a token reaches, question by question."""
    node = forest.roots[tree]
    while forest.feature[node] >= 0:
        node = forest.yes[node] if values[forest.feature[node]] > forest.threshold[node] else node + 1
    return int((forest.feature[:node] < 0).sum())


def derivatives_at_random(rng, n, n_states):
    probabilities = rng.dirichlet(np.ones(n_states), n)
    gold = np.eye(n_states)[rng.integers(0, n_states, n)]
    both = np.hstack([gold - probabilities, probabilities * (1 - probabilities)])
    return both.astype(np.float32)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threads", [1, 3])
def test_each_split_is_the_best_one(seed, threads):
    by_template, items, table = tokens_at_random(seed)
    postings = Postings.of([(by_template, items)], table.shape[1])
    rng = np.random.default_rng(seed)
    derivatives, counts = derivatives_at_random(rng, 40, 3), rng.random(40) < 0.8
    settings = Growth(leaves=2, shrinkage=0.3, l2=0.5, min_gain=0.0)
    _, leaf_of = grow(postings, derivatives, counts, settings, threads)
    every = np.flatnonzero(counts)
    found = sum(quality(derivatives, np.flatnonzero(counts & (leaf_of == leaf)), 0.5) for leaf in range(2))
    gain = best_split(table, derivatives, every, 0.5)
    assert found - quality(derivatives, every, 0.5) == pytest.approx(gain, rel=1e-6) and gain > 0.0
    tree, leaf_of = grow(postings, derivatives, counts, settings._replace(leaves=7), threads)
    assert (tree.roots == 0).all() and len(tree.values) == 7
    tree.check(table.shape[1], 3)
    for t in range(40):
        assert walk(tree, table[t]) == leaf_of[t]
    for leaf, value in enumerate(tree.values):  # Newton steps
        g, h = derivatives[leaf_of == leaf].astype(np.float64).sum(axis=0).reshape(2, -1)
        np.testing.assert_allclose(value, 0.3 * np.clip(g / (h + 0.5), -4, 4), rtol=1e-5, atol=1e-7)
    none, _ = grow(postings, derivatives, counts, settings._replace(min_gain=1.01 * gain), threads)
    assert len(none.values) == 1
    some, _ = grow(postings, derivatives, counts, settings._replace(min_gain=0.99 * gain), threads)
    assert len(some.values) == 2


def test_a_tree_may_have_64_leaves():
    """One bit for each leaf: the last one has the highest bit of a number."""
    n, one = 64, np.zeros(1, np.int32)
    rows = np.arange(n, dtype=np.int32)[np.newaxis]
    items = TokenFeatures(one[:0], None, np.zeros(n + 1, np.int64))
    derivatives = np.hstack([np.arange(n)[:, np.newaxis], np.ones((n, 1))]).astype(np.float32)
    settings = Growth(trees.MOST_LEAVES, 1.0, 1e-9, 0.0)
    tree, leaf_of = grow(Postings.of([(rows, items)], n), derivatives, np.ones(n, bool), settings, 1)
    assert sorted(leaf_of) == [*range(64)]
    compiled = CompiledForest(tree.plus(tree))
    leaves = compiled.leaves(places(compiled, n)[rows], items)
    assert leaves.T.tolist() == [leaf_of.tolist(), (leaf_of + 64).tolist()]


def places(compiled, n_features):
    """The place of each feature among those for which trees ask; -1 for others, and for -1, no feature."""
    place = np.full(n_features + 1, -1, dtype=np.int32)
    place[compiled.rows] = np.arange(len(compiled.rows))
    return place


@pytest.mark.parametrize("seed", range(4))
def test_leaves_are_looked_up_as_by_questions(seed):
    by_template, items, table = tokens_at_random(seed)
    rng, forest = np.random.default_rng(seed), Forest.none(3)
    postings = Postings.of([(by_template, items)], table.shape[1])
    for leaves in (5, 1, 9):
        settings = Growth(leaves, 0.3, 0.5, 0.0)
        forest = forest.plus(grow(postings, derivatives_at_random(rng, 40, 3), np.ones(40, bool), settings, 1)[0])
    forest.check(table.shape[1], 3)
    compiled = CompiledForest(forest)
    place = places(compiled, table.shape[1])
    found = compiled.leaves(place[by_template], items._replace(rows=place[items.rows]))
    assert found.tolist() == [[walk(forest, table[t], tree) for tree in range(3)] for t in range(40)]


def test_features_with_many_values_have_few_cuts():
    values = np.random.default_rng(0).permutation(1000).astype(np.float32)
    items = TokenFeatures(np.zeros(1000, np.int32), values, np.arange(1001))
    postings = Postings.of([(np.zeros((0, 1000), np.int32), items)], 1)
    assert len(postings.ends) == 32 and postings.thresholds[-1] == -np.inf
    for cut, threshold in enumerate(postings.thresholds):
        np.testing.assert_array_equal(np.sort(postings.tokens_of(cut)), np.flatnonzero(values > threshold))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("loss", ["LogLikelihood", "SoftmaxMargin"])
def test_residuals_are_negative_derivatives(architecture, loss):
    nlp, pipe, _ = trained(architecture, steps=1, of_pipe={"loss": {"@losses": registered(loss)}})
    examples = ner_examples(nlp)
    objective = pipe.training.objective(TreeBoost(), examples)
    corpus, weights = corpus_of(objective), objective.weights()
    objective.evaluate(weights)
    np.testing.assert_allclose(corpus.scores, boosted(pipe).scores([e.predicted for e in examples]), atol=1e-12)
    derivatives, scores = corpus.derivatives.copy(), corpus.scores.copy()
    if loss == "LogLikelihood" and architecture == "MaxEnt":  # 1[y_t = y] - P(y_t = y)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        np.testing.assert_allclose((derivatives < 0).sum(axis=1), 1)
        np.testing.assert_allclose(derivatives + (derivatives < 0), odds / odds.sum(axis=1, keepdims=True), atol=1e-9)
    for t, k in zip(*(np.random.default_rng(0).integers(0, size, 12) for size in scores.shape)):
        ends = []
        for step in (1e-5, -1e-5):
            corpus.scores = scores.copy()
            corpus.scores[t, k] += step
            ends.append(objective.evaluate(weights)[0])
        assert derivatives[t, k] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-5)


def test_one_leaf_is_the_newton_step_of_an_intercept():
    l2 = 0.7
    optimizer = TreeBoost(rounds_per_step=1, leaves=1, subsample=1.0, shrinkage=0.5, l2=l2)
    _, pipe, _ = trained("MaxEnt", "crf_tagger", steps=1, examples=tag_examples, optimizer=optimizer)
    tags, size = pipe.tags(), len(pipe.tags())
    gold = [token.tag_ for example in tag_examples(spacy.blank("en")) for token in example.reference]
    curvature = len(gold) * (1 / size) * (1 - 1 / size)
    expected = [0.5 * (gold.count(tag) - len(gold) / size) / (curvature + l2) for tag in tags]
    np.testing.assert_allclose(boosted(pipe).forest.values, [expected], rtol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shrinkage, l2, subsample", [(0.3, 1.0, 0.5), (0.3, 0.01, 1.0), (1.0, 0.001, 1.0)])
def test_the_loss_never_rises(architecture, shrinkage, l2, subsample):
    """With steps that are too long, it does not rise because of the halving."""
    optimizer = TreeBoost(rounds_per_step=1, shrinkage=shrinkage, l2=l2, subsample=subsample)
    _, _, losses = trained(architecture, steps=25, optimizer=optimizer)
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(losses))
    assert losses[-1] < 0.25 * losses[0]


def test_shorter_steps_lower_the_loss_without_halving(monkeypatch):
    from spacy_crf_lab import tree_boost

    monkeypatch.setattr(tree_boost, "_HALVINGS", 1)
    optimizer = TreeBoost(rounds_per_step=50, shrinkage=0.3)
    _, pipe, _ = trained(steps=1, optimizer=optimizer)
    assert optimizer.stop_reason(pipe.name) is None and optimizer.iterations_made(pipe.name) == 50


def test_a_loss_that_falls_no_more_ends_the_training():
    """A single tag is certain from the beginning."""
    optimizer = TreeBoost()
    nlp, tagger, losses = trained(
        "MaxEnt", "crf_tagger", examples=lambda nlp: tag_examples(nlp, ["a/X b/X"]), optimizer=optimizer, steps=2
    )
    assert losses == [0.0, 0.0] and not len(boosted(tagger).forest.roots)
    assert optimizer.stop_reason(tagger.name) == "round 1 found no tree that lowers the loss"
    assert [token.tag_ for token in nlp("a b")] == ["X", "X"]


XOR = [f"{a}/{'SAME' if a == b else 'OTHER'} {b}/END" for a in "ab" for b in "ab" for _ in range(3)]


@pytest.mark.parametrize("leaves", [2, 4])
def test_depth_2_solves_exclusive_or(leaves):
    """Whether two words are equal is a matter of both: sums of stumps do not say it, as sums of features do not."""
    features = {**ATOMS, "templates": ["lower[0]", "lower[1]"]}
    optimizer = TreeBoost(rounds_per_step=60, leaves=leaves)
    nlp, _, _ = trained(
        "MaxEnt",
        "crf_tagger",
        features=features,
        optimizer=optimizer,
        steps=1,
        examples=lambda nlp: tag_examples(nlp, XOR),
    )
    right = [
        token.tag_ == gold.tag_ for e in tag_examples(nlp, XOR) for token, gold in zip(nlp(e.predicted), e.reference)
    ]
    assert all(right) == (leaves == 4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_learns_and_saves(architecture, factory, tmp_path):
    make = {"crf_ner": ner_examples, "crf_tagger": tag_examples}[factory]
    nlp, pipe, _ = trained(architecture, factory, examples=make)
    score = {"crf_ner": "ents_f", "crf_tagger": "crf_tag_acc"}[factory]
    assert nlp.evaluate(make(nlp))[score] == 1.0
    others = made(architecture, factory)[0], trained(architecture, factory, examples=make, steps=1)[0]
    check_copies(nlp, factory, make(nlp), others, tmp_path)
    n_trees, examples = len(boosted(pipe).forest.roots), make(nlp)
    nlp.initialize(lambda: examples)  # from scratch
    nlp.update(examples, sgd=TreeBoost(rounds_per_step=3))
    assert (n_trees, len(boosted(pipe).forest.roots)) == (40, 3)


def test_learns_from_a_config_and_evaluates_after_each_step(tmp_path):
    examples = ner_examples(spacy.blank("en"))
    DocBin(docs=(example.reference for example in examples)).to_disk(tmp_path / "texts.spacy")
    paths = {f"paths.{part}": str(tmp_path / "texts.spacy") for part in ("train", "dev")}
    config = load_config(ROOT / "configs" / "crf_ner.cfg", overrides=paths)
    config["components"]["crf_ner"]["model"]["emissions"] = emissions_of()
    config["training"]["optimizer"] = {"@optimizers": "spacy_crf_lab.TreeBoost.v1", "rounds_per_step": 10, "leaves": 8}
    config["training"]["patience"] = 3
    output = tmp_path / "trained"
    output.mkdir()
    nlp, best = train(init_nlp(config), output, stdout=io.StringIO(), stderr=io.StringIO())
    assert spacy.load(best).evaluate(ner_examples(nlp))["ents_f"] == 1.0
    best, last = (spacy.load(output / name).get_pipe("crf_ner") for name in ("model-best", "model-last"))
    n_best, n_last = (len(boosted(pipe).forest.roots) for pipe in (best, last))
    assert 0 < n_best <= n_last and n_best % 10 == n_last % 10 == 0


def test_in_two_processes():
    nlp, _, _ = trained()
    docs = [plain(example.reference) for example in ner_examples(nlp)]
    alone = [entities(doc) for doc in nlp.pipe(map(plain, docs))]
    assert [entities(doc) for doc in nlp.pipe(map(plain, docs), n_process=2)] == alone and any(alone)


def test_new_texts_get_trees_on_top():
    """The trees of the first texts stay, with new labels and features, and training goes on with the scores that they give."""
    nlp, pipe, _ = trained(steps=1)
    before = boosted(pipe).forest
    optimizer = TreeBoost(rounds_per_step=40)
    examples = [*ner_examples(nlp, ["[May](DATE) came", "they came in [May](DATE) ."]), *ner_examples(nlp)]
    pipe.training.new_features = set()
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    forest = boosted(pipe).forest
    assert len(forest.roots) == 10 + 80 and forest.values.shape[1] == len(pipe.tags())
    np.testing.assert_array_equal(forest.values[: len(before.values), : before.values.shape[1]], before.values)
    assert nlp.evaluate(examples)["ents_f"] == 1.0


@pytest.mark.parametrize("unset", [False, True])
def test_partial_annotation_teaches_what_it_says(unset):
    nlp, pipe = made("MaxEnt", "crf_tagger")
    examples = tag_examples(nlp)
    for example in examples:
        example.reference[0].tag_ = "" if unset else example.reference[0].tag_
    nlp.initialize(lambda: examples)
    objective = pipe.training.objective(TreeBoost(), examples)
    objective.evaluate(objective.weights())
    corpus = corpus_of(objective)
    first = corpus.starts[0][:-1]
    assert (corpus.derivatives[first] == 0.0).all() == unset
    assert (corpus.derivatives != 0.0).any()


def test_training_resumes():
    settings = {"rounds_per_step": 5, "leaves": 4}
    optimizer = TreeBoost(**settings)
    nlp, pipe, _ = trained(steps=2, optimizer=optimizer)
    data = b"".join(optimizer.checkpoint("crf_ner"))
    other_nlp, other_pipe = made()
    theirs = ner_examples(other_nlp)
    other_nlp.initialize(lambda: theirs)
    other = TreeBoost(**settings)
    assert other.resume(other_pipe.training.objective(other, theirs), data, key="crf_ner") == 10
    examples = ner_examples(nlp)
    nlp.update(examples, sgd=optimizer)
    other_nlp.update(theirs, sgd=other)
    for one, two in zip(boosted(pipe).forest, boosted(other_pipe).forest):
        np.testing.assert_array_equal(one, two)
    with pytest.raises(ValueError, match="CRF204"):
        TreeBoost(leaves=5).resume(None, data, key="crf_ner")


def test_numbers_are_split_at_thresholds():
    def lengths(doc):
        return [{"n": float(len(token))} for token in doc]

    spacy.registry.misc("test_boosting.lengths", func=lambda: lengths)
    features = {**ATOMS, "templates": ["fn:n[0]"], "functions": {"n": {"@misc": "test_boosting.lengths"}}}
    texts = ["a/S bbbb/L cc/M", "aaaa/L b/S ccc/M", "d/S ddd/M dddd/L", "e/S ee/M fffff/L"]
    nlp, tagger, _ = trained(
        "MaxEnt", "crf_tagger", features=features, examples=lambda nlp: tag_examples(nlp, texts), steps=2
    )
    assert [token.tag_ for token in nlp(Doc(nlp.vocab, words=["x", "xx", "xxx", "xxxxxxxx"]))] == ["S", "M", "M", "L"]
    paths = {row.feature for row in tagger.weights("M") if row.template == "trees"}
    assert "fn:n[0]=n > 1.5 and not fn:n[0]=n > 3.5" in paths or "not fn:n[0]=n > 3.5 and fn:n[0]=n > 1.5" in paths


def test_explanations_name_the_paths_of_the_trees():
    nlp, pipe, _ = trained()
    doc = nlp("Ann Lee left Rome")
    for kind in ("contrast", "log_odds"):
        explanation = pipe.explain(doc, doc.ents[0], kind=kind)
        assert explanation.check == pytest.approx(0.0, abs=1e-6)
        of_trees = [row for row in explanation.rows if row.template == "trees"]
        assert any("lower[0]=ann" in row.feature and " and " in row.feature and row.token == 0 for row in of_trees)
        pairs = [(row.feature, row.token, row.tags) for row in of_trees]
        assert len(set(pairs)) == len(pairs)
    [emissions] = [pipe.model.layers[0].predict([doc]).scores]
    tags, values = pipe.tags(), {}
    for row in pipe.weights():
        if row.template == "trees":
            values[row.feature, row.tags[0]] = row.weight
    score = sum(
        value
        for (path, tag), value in values.items()
        if tag == "B-PER" and all((question in holds(doc, 0)) != negated for question, negated in questions(path))
    )
    assert score == pytest.approx(emissions[0, tags.index("B-PER")], abs=1e-5)
    for kind in ("leave_out", "words"):
        rows = pipe.explain(doc, doc.ents[0], kind=kind).rows
        assert rows and not np.isclose(rows[0].contribution, 0.0)
    with pytest.raises(ValueError, match=r"CRF840.*scores other than those of sparse features"):
        pipe.explain(doc, doc.ents[0], kind="texts", corpus=ner_examples(nlp))


def questions(path):
    for part in path.split(" and "):
        if part != trees.EVERYWHERE:
            yield part.removeprefix("not "), part.startswith("not ")


def holds(doc, at):
    words = ["<BOS1>", *(token.lower_ for token in doc), "<EOS1>"]
    return {"bias", *(f"lower[{o}]={words[at + 1 + o]}" for o in (-1, 0, 1)), f"shape[0]={doc[at].shape_}"}


def test_the_overview_counts_the_trees():
    from spacy_crf.explain.weights import overview

    _, pipe, _ = trained()
    found = overview(pipe)
    assert [row["template"] for row in found["templates"]].count("trees") == 1
    assert all("=" in side["for"][0]["feature"] for side in found["top"].values())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"min_count": 0}, "CRF020.*min_count = 0"),
        ({"features": {**ATOMS, "templates": ["vector[0]"]}}, r"CRF020.*vector\[0\]"),
        ({"features": {**ATOMS, "transitions": ["lower[0]"]}}, r"CRF020.*lower\[0\]"),
    ],
)
def test_settings_that_are_not_possible(settings, message):
    with pytest.raises(ValueError, match=message):
        made(**settings)


@pytest.mark.parametrize(
    "settings", [{"leaves": 65}, {"l2": 0.0}, {"shrinkage": 1.5}, {"subsample": 0.0}, {"rounds_per_step": 0}]
)
def test_settings_of_the_optimizer_that_are_not_possible(settings):
    [(name, value)] = settings.items()
    with pytest.raises(ValueError, match=rf"CRF020: TreeBoost: {name} = {value}"):
        TreeBoost(**settings)


def test_features_that_are_too_rare_are_named():
    with pytest.raises(ValueError, match="CRF114"):
        trained(min_count=10_000)


def test_trees_and_their_optimizer_belong_together():
    nlp, _ = made()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    for optimizer, name in ((LBFGS(), "LBFGS"), (Adam(0.01), "Minibatch")):
        with pytest.raises(ValueError, match=rf"CRF347: {name} can't train the model of 'crf_ner'.*TreeBoost"):
            nlp.update(examples, sgd=optimizer)
    other = spacy.blank("en")
    other.add_pipe("crf_ner")
    examples = ner_examples(other)
    other.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF347: TreeBoost can't train the model of 'crf_ner'.*LBFGS"):
        other.update(examples, sgd=TreeBoost())


def test_models_that_trees_do_not_fit_are_refused():
    nlp, _, _ = trained()
    nlp.resume_training()
    with pytest.raises(ValueError, match=r"CRF347.*all texts, in a training from the beginning"):
        nlp.update(ner_examples(nlp)[:2], sgd=TreeBoost())
    with pytest.raises(ValueError, match="CRF210"):
        trained(of_pipe={"loss": {"@losses": "spacy_crf.Perceptron.v1"}})
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy_crf.SemiMarkov.v1", "emissions": emissions_of()}
    with pytest.raises(ValueError, match=r"CRF020: SemiMarkov: emissions"):
        nlp.add_pipe("semicrf_ner", config={"model": model})
    model = {"@architectures": "spacy_crf_lab.LatentChain.v1", "emissions": emissions_of()}
    nlp.add_pipe("crf_ner", config={"model": model})
    examples = ner_examples(nlp)
    with pytest.raises(ValueError, match=r"CRF625.*hidden"):
        nlp.initialize(lambda: examples)


FOREST = Forest(
    np.array([0, 3], np.int32),
    np.array([0, -1, -1, -1], np.int32),
    np.array([-np.inf, -np.inf, -np.inf, -np.inf], np.float32),
    np.array([2, -1, -1, -1], np.int32),
    np.zeros((3, 2), np.float32),
)


@pytest.mark.parametrize(
    "changed",
    [
        {"roots": np.array([0, 2], np.int32)},
        {"feature": np.array([5, -1, -1, -1], np.int32)},
        {"feature": np.array([0, -1, 0, -1], np.int32)},
        {"yes": np.array([1, -1, -1, -1], np.int32)},
        {"yes": np.array([0, -1, -1, -1], np.int32)},
        {"yes": np.array([9, -1, -1, -1], np.int32)},
        {"threshold": np.array([np.nan, 0, 0, 0], np.float32)},
        {"values": np.full((3, 2), np.inf, np.float32)},
        {"values": np.zeros((3, 3), np.float32)},
        {"values": [0.0]},
    ],
)
def test_broken_trees_are_refused(changed):
    FOREST.check(5, 2)
    with pytest.raises(ValueError, match="CRF509"):
        FOREST._replace(**changed).check(5, 2)


def test_paths_of_trees_without_a_split():
    assert FOREST._replace(feature=np.full(4, -1, np.int32)).paths(FeatureIndex.empty())[3] == trees.EVERYWHERE


def test_labels_without_texts():
    nlp, pipe = made()
    pipe.add_label("PER")
    nlp.initialize()
    examples = ner_examples(nlp)
    optimizer = TreeBoost(rounds_per_step=40)
    nlp.update(examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_the_kernels_are_compiled_once():
    trained(steps=1)
    trained("MaxEnt", "crf_tagger", examples=tag_examples, steps=1)
    assert set(signatures(boosting).values()) <= {1}
