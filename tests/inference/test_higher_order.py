"""Chains of higher order: exact against order 1 and enumeration, what is left out, and in components."""

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry

from spacy_crf.inference import pruned_lattice as order_lattice
from spacy_crf.inference.higher_order import HigherOrder
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.pruned_lattice import HigherOrderScores, Orders
from spacy_crf.kernels import higher_order as kernels
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.models.higher_order import TagParts, _renumbered, _seen_keys, key_of
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.structures import STRUCTURES, Enumerated, Problem, assert_derivative, assert_scores_close, random_problem
from tests.util import NER_TEXTS, TAG_TEXTS, entities, ner_examples, plain, signatures, tag_examples


def pruned(scores, keep, **changes):
    return scores._replace(orders=scores.orders._replace(keep=keep, **changes))


def gold(problem, rng):
    size = problem.scores.emissions.shape[1]
    return np.eye(size, dtype=bool)[rng.integers(0, size, len(problem.scores.emissions))]


@pytest.fixture(autouse=True)
def many_tags(monkeypatch):
    """A handful of tags stand for hundreds: their emissions leave some out."""
    monkeypatch.setattr(order_lattice, "ALL_STATES", 0)


# Inference


@pytest.mark.parametrize("per_position", [False, True])
def test_order_1_is_the_linear_chain(per_position):
    chain = random_problem(STRUCTURES["scheme"], [9, 0, 1, 5], 2, per_position=per_position)
    rng, higher = np.random.default_rng(0), HigherOrder()
    weights = np.array([1.0, 0.0, 2.0, 0.5])
    clamp = rng.random(chain.scores.emissions.shape) < 0.9
    for allowed in (None, clamp):
        log_z, expected = chain.structure.expectations(chain.scores, clamp=allowed, weights=weights)
        found_log_z, found = higher.expectations(chain.scores, clamp=allowed, weights=weights)
        np.testing.assert_allclose(found_log_z, log_z, rtol=1e-10, atol=1e-10)
        assert_scores_close(found, expected, atol=1e-10)
        for one, other in zip(
            higher.viterbi(chain.scores, clamp=allowed), LinearChain().viterbi(chain.scores, clamp=allowed)
        ):
            np.testing.assert_allclose(one, other)


def test_what_is_left_out_has_no_probability():
    """Sums and maxima are those of the labellings that are left, at each level fewer; the best by its emissions always stays."""
    problem = random_problem(STRUCTURES["order 2"], [6, 1, 0, 8], 5, seed=3)
    exact = problem.structure.log_partition(problem.scores)
    before = exact
    for keep in (4.0, 2.0, 1.0):
        scores = pruned(problem.scores, keep)
        log_z = problem.structure.log_partition(scores)
        assert (log_z <= exact + 1e-9).all() and np.isfinite(log_z).all() and log_z.sum() <= before.sum()
        marginals = problem.structure.marginals(scores)
        assert (marginals > 0).sum() <= (keep + 1) * len(marginals)
        np.testing.assert_allclose(marginals.sum(axis=1), 1.0)
        before = log_z
    thresholds = np.array([0.2, 0.01])
    work = problem.structure.prepare(pruned(problem.scores, 4.0, thresholds=thresholds))
    chances = np.exp(problem.scores.emissions)
    chances /= chances.sum(axis=1, keepdims=True)
    kept = np.zeros(chances.shape, dtype=bool)
    kept[work.lattice.tokens, work.lattice.level.symbol] = True
    assert not (kept & (chances <= 0.2) & (chances < chances.max(axis=1, keepdims=True))).any()


def test_few_tags_are_left_out_in_pairs_alone(monkeypatch):
    """Order 1 is exact; of order 2 pairs are left out, by the sums of order 1."""
    monkeypatch.setattr(order_lattice, "ALL_STATES", 5)
    lengths = [6, 1, 0, 8]
    chain = random_problem(STRUCTURES["chain"], lengths, 5, seed=3).scores
    orders = Orders(1, np.empty(0, dtype=np.int64), 5, keep=1.0)
    scores = HigherOrderScores(*chain[:4], np.empty(0), orders, chain.starts)
    expected = LinearChain().log_partition(chain)
    np.testing.assert_allclose(HigherOrder().log_partition(scores), expected, rtol=1e-10)
    pairs = random_problem(STRUCTURES["order 2"], lengths, 5, seed=3)
    exact = pairs.structure.log_partition(pairs.scores)
    few = pairs.structure.log_partition(pruned(pairs.scores, 4.0))
    assert np.all(few <= exact + 1e-9) and np.all(few[[0, 3]] < exact[[0, 3]]) and np.all(few > -np.inf)


def test_a_scheme_leaves_a_way_through():
    """Where the likely tags can't follow one another, less likely ones are looked at."""
    problem = random_problem(STRUCTURES["scheme"], [7, 4], 2, spread=4.0)
    none = np.zeros(0, dtype=np.int64)
    orders = Orders(2, none, problem.scores.emissions.shape[1], keep=1.0, thresholds=np.array([0.9, 0.9]))
    scores = HigherOrderScores(*problem.scores[:4], np.zeros(0), orders, problem.scores.starts)
    path = HigherOrder().viterbi(scores)
    assert np.isfinite(path.scores).all()
    np.testing.assert_allclose(LinearChain().path_score(problem.scores, path.states), path.scores)
    only = path.states[:, np.newaxis] == np.arange(orders.size)
    np.testing.assert_allclose(HigherOrder().log_partition(scores, clamp=only), path.scores)


@pytest.mark.parametrize(
    "loss", [LogLikelihood(), SoftmaxMargin(), Perceptron(), MaxMargin()], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize("name", ["order 2", "order 3"])
def test_losses_of_what_is_left(loss, name):
    """The annotation is among what is left (early update): no loss lies below 0, and derivatives are those of the loss."""
    problem = random_problem(STRUCTURES[name], [6, 1, 0, 5, 4], 5, seed=2)
    rng = np.random.default_rng(4)
    for keep, clamp in [
        (1.0, gold(problem, rng)),
        (2.5, gold(problem, rng)),
        (2.0, gold(problem, rng) | (rng.random((16, 5)) < 0.3)),
    ]:
        scores = pruned(problem.scores, keep)
        losses, d_scores, impossible = loss(problem.structure, scores, clamp)
        assert (losses >= 0.0).all() and not impossible.any()
        if not loss.smooth:
            continue
        structure = problem.structure.with_cache()  # differences are those of one function
        assert loss(structure, scores, clamp)[0].sum() == pytest.approx(losses.sum())
        assert_derivative(
            lambda moved, clamp=clamp, structure=structure: loss(structure, moved, clamp)[0].sum(),
            scores,
            d_scores,
            directions=1,
        )


def test_early_update_stays_at_the_level_before():
    """Without its annotation a lattice is of no use: the loss is that of the order where it was there."""
    problem = random_problem(STRUCTURES["order 2"], [4], 3, seed=5)
    emissions = np.zeros((4, 3))
    emissions[:, 0] = 9.0
    clamp = np.eye(3, dtype=bool)[[1, 1, 1, 1]]
    scores = pruned(problem.scores._replace(emissions=emissions), 1.0)
    losses, d_scores, _ = LogLikelihood()(problem.structure, scores, clamp)
    assert losses[0] == pytest.approx(4 * (9.0 + np.log1p(2 * np.exp(-9.0))))  # tokens by themselves
    assert not d_scores.transitions.any() and not d_scores.grams.any() and d_scores.emissions.any()
    assert (d_scores.orders.measured[:1] > 0).all()


def test_too_many_pairs_are_refused():
    size = 40
    scores = HigherOrderScores(
        np.zeros((9, size)), np.zeros((size, size)), np.zeros(size), np.zeros(size), np.zeros(0),
        Orders(1, np.zeros(0, dtype=np.int64), size),
    )  # fmt: skip
    assert HigherOrder().log_partition(scores)[0] == pytest.approx(9 * np.log(size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spacy_crf.inference.pruned_lattice._MOST_ARCS", 1000)
        with pytest.raises(ValueError, match=r"CRF030.*9 tokens.*40 possible tags.*12800.*keep"):
            HigherOrder().log_partition(scores)


def test_keys_of_more_tags_are_in_the_same_order():
    allowed = np.eye(3, dtype=bool)[[0, 1, 2, 1, 0, 2, 2]]
    allowed[3] = True  # annotation leaves it open
    keys = np.unique(_seen_keys(3, allowed, np.array([0, 0, 4, 7])))
    known = [(3, 0, 1), (0, 1, 2), (3, 0, 1, 2), (3, 0, 2), (0, 2, 2), (3, 0, 2, 2)]
    assert keys.tolist() == sorted(key_of(gram, 3) for gram in known)
    more = [key_of(tuple(9 if tag == 3 else tag for tag in gram), 9) for gram in known]
    renumbered = _renumbered(keys, 3, 9)
    assert sorted(more) == renumbered.tolist()


# Components


def pipeline(factory, steps=6, optimizer=None, **model):
    nlp, preset = spacy.blank("en"), "ner" if factory == "crf_ner" else "tagger"
    emissions = {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": f"spacy_crf.{preset}_features.v1"},
    }
    settings = {"@architectures": "spacy_crf.HigherOrder.v1", "emissions": emissions, **model}
    config = {"model": settings, "confidence": True}
    nlp.add_pipe(factory, config=config)
    examples = ner_examples(nlp, NER_TEXTS) if factory == "crf_ner" else tag_examples(nlp, TAG_TEXTS)
    optimizer = optimizer or LBFGS(l2=0.01, iterations_per_step=10)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, examples


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
@pytest.mark.parametrize(("order", "keep"), [(0, None), (1, 3.0), (2, None), (3, 4.0)])
def test_components_learn_what_they_are_shown(factory, order, keep, tmp_path):
    nlp, examples = pipeline(factory, 10, order=order, keep=keep)
    pipe = nlp.get_pipe(factory)
    name = "ents_f" if factory == "crf_ner" else "crf_tag_acc"
    assert nlp.evaluate(examples)[name] > 0.95
    assert (pipe.model.attrs["thresholds"] is not None) == (keep is not None)
    nlp.to_disk(tmp_path / "model")
    loaded = spacy.load(tmp_path / "model").get_pipe(factory)
    texts = [plain(example.reference) for example in examples]
    for doc in texts[:3]:
        best, *_ = pipe.n_best(doc, 3)
        assert best[0] == pytest.approx(loaded.n_best(doc, 3)[0][0], abs=1e-6)
        np.testing.assert_array_equal(pipe.marginals(doc)[0], loaded.marginals(doc)[0])
        np.testing.assert_allclose(pipe.marginals(doc)[0].sum(axis=1), 1.0)
        assert np.exp(pipe.log_probability(doc, best[1])) == pytest.approx(best[0])
        found = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
        for span in best[1]:
            assert found[span.start, span.end, span.label_] >= best[0] - 1e-9
        assert len(pipe.sample(doc, 4, seed=1)) == 4
    assert signatures(kernels).get("next_level", 0) <= 1  # not once more for what was loaded


@pytest.mark.parametrize("label_parts", [None, "scheme"])
def test_objectives_of_what_is_left_have_their_gradient(label_parts):
    """From one renewal to the next the same labellings are summed over, whatever the weights."""
    optimizer = LBFGS(l2=0.01, iterations_per_step=2)
    nlp, examples = pipeline("crf_tagger", 6, optimizer, order=2, keep=1.5, label_parts=label_parts)
    objective = nlp.get_pipe("crf_tagger").training.objective(optimizer, examples)
    rng, weights = np.random.default_rng(0), objective.weights()
    for _ in range(3):  # the second and third time what was left before stays
        assert objective.renew()
        objective.evaluate(weights)
        weights = weights + 0.3 * rng.normal(size=len(weights))
        _, gradient = objective.evaluate(weights)
        direction = rng.normal(size=len(weights))
        above, below = (objective.evaluate(weights + step * direction)[0] for step in (1e-5, -1e-5))
        assert gradient @ direction == pytest.approx((above - below) / 2e-5, rel=1e-5)


def test_gradients_of_batches_learn_too():
    """With any optimizer of thinc's; and what is learned of thresholds goes with the model."""
    optimizer = registry.get("optimizers", "Adam.v1")(0.02)
    nlp, examples = pipeline("crf_tagger", 60, optimizer, order=2, keep=2.0)
    assert nlp.evaluate(examples)["crf_tag_acc"] > 0.9
    least = nlp.get_pipe("crf_tagger").model.attrs["thresholds"]["least"]
    assert len(least) == 2 and all(0.0 < value <= 1.0 for value in least)


def test_rules_and_order():
    nlp, examples = pipeline("crf_ner", order=2, keep=None)
    text = next(plain(example.reference) for example in examples if len(example.reference.ents) > 1)
    pipe = nlp.get_pipe("crf_ner")
    [first, *_] = pipe(plain(text)).ents
    pipe.add_rule({"rule": "at_most", "label": first.label_, "n": 0, "per": "sentence"})
    doc = pipe(plain(text))
    assert first.label_ not in {span.label_ for span in doc.ents}
    assert all(span.label_ != first.label_ or p < 1e-9 for span, p in pipe.span_probabilities(plain(text), 0.0))


def test_new_labels_keep_what_was_learned():
    nlp, examples = pipeline("crf_ner", order=2, keep=None)
    pipe, doc = nlp.get_pipe("crf_ner"), plain(examples[0].reference)
    before = entities(pipe(plain(doc)))
    weights = pipe.model.get_param("grams").copy()
    pipe.add_label("NEW")
    np.testing.assert_array_equal(pipe.model.get_param("grams"), weights)
    assert entities(pipe(plain(doc))) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 0.5}, r"CRF020.*keep = 0.5"),
        ({"order": 4}, r"CRF020.*order = 4.*0 to 3"),
        ({"order": -1}, r"CRF020.*order = -1"),
        ({"transitions_from": "all"}, r"CRF020.*transitions_from = 'all'.*'seen', 'possible'"),
    ],
)
def test_settings_that_can_not_be(settings, message):
    with pytest.raises(ValueError, match=message):
        pipeline("crf_tagger", 0, **settings)


def test_what_needs_a_chain_of_order_1():
    """Is refused before anything is learned: no other answer in its place."""
    sgd = registry.get("optimizers", "spacy_crf.SGD.v1")()
    with pytest.raises(ValueError, match=r"CRF365.*'crf_ner': SGD.*LBFGS"):
        pipeline("crf_ner", 1, sgd)
    nlp, _ = pipeline("crf_ner", 0)
    rule = {"rule": "same_text_same_label"}
    with pytest.raises(ValueError, match=r"CRF034.*same_text_same_label"):
        nlp.get_pipe("crf_ner").add_rule(rule)
    settings = {"model": nlp.config["components"]["crf_ner"]["model"]}
    config = {**settings, "loss": {"@losses": "spacy_crf.SoftLabels.v1"}}
    with pytest.raises(ValueError, match=r"CRF347.*SoftLabels.*'crf_ner'.*LogLikelihood"):
        spacy.blank("en").add_pipe("crf_ner", config=config)


def test_weights_of_n_grams_are_told():
    nlp, examples = pipeline("crf_tagger", order=2)
    pipe = nlp.get_pipe("crf_tagger")
    rows = [row for row in pipe.weights() if row.template == "n-gram"]
    assert ("^", "DT", "NN") in [row.tags for row in rows] and ("DT", "NN", "VB") in [row.tags for row in rows]
    assert sorted(row.weight for row in rows) == sorted(
        weight for weight in pipe.model.get_param("grams").tolist() if weight
    )
    assert all("VB" in row.tags for row in pipe.weights("VB"))
    with pytest.raises(ValueError, match=r"CRF838.*crf_tagger.*weights"):
        pipe.explain(examples[0].reference, kind="contrast")


def test_possible_n_grams(monkeypatch):
    nlp, _ = pipeline("crf_tagger", 1, order=2, transitions_from="possible")
    n = len(nlp.get_pipe("crf_tagger").labels)
    assert nlp.get_pipe("crf_tagger").model.get_param("grams").size == (n + 1) * n * n
    monkeypatch.setattr("spacy_crf.models.higher_order._MOST_GRAMS", 50)
    with pytest.raises(ValueError, match=r"CRF321.*n-grams of 3 tags.*'seen'"):
        pipeline("crf_tagger", 1, order=2, transitions_from="possible")


def test_texts_of_any_length():
    """Without tokens, with one label, with one token, and long ones."""
    nlp, _ = pipeline("crf_tagger", order=3, keep=2.0)
    docs = [nlp.make_doc(text) for text in ("", "dogs", "the dog barks . " * 3000)]
    found = [len(doc) for doc in nlp.pipe(docs)]
    assert found == [0, 1, 12000] and all(token.tag_ for doc in docs for token in doc)


def test_a_text_as_long_as_a_book():
    """Of 100,000 tokens, as one sequence."""
    nlp, _ = pipeline("crf_tagger", order=2, keep=2.0)
    doc = nlp.get_pipe("crf_tagger")(Doc(nlp.vocab, ["the", "dog", "barks", "."] * 25_000))
    assert len(doc) == 100_000 and all(token.tag_ for token in doc)


def test_two_processes():
    nlp, examples = pipeline("crf_ner", order=2, keep=2.0)
    texts = [example.reference.text for example in examples] * 5
    one = [entities(doc) for doc in nlp.pipe(texts)]
    assert any(one) and [entities(doc) for doc in nlp.pipe(texts, n_process=2, batch_size=7)] == one


def test_more_tags_than_n_grams_have_numbers_for(monkeypatch):
    """Are refused when they become known, by training data or one by one; and then nothing has changed."""
    nlp, examples = pipeline("crf_tagger", order=2)
    pipe, doc = nlp.get_pipe("crf_tagger"), plain(examples[0].reference)
    labels, before = pipe.labels, pipe.marginals(doc)[0]
    monkeypatch.setattr("spacy_crf.models.higher_order._MOST_TAGS", len(labels))
    with pytest.raises(ValueError, match=r"CRF322.*order = 2 with 6 tags.*at most 5 tags.*order = 1"):
        pipe.add_label("NEW")
    assert pipe.labels == labels
    np.testing.assert_array_equal(pipe.marginals(doc)[0], before)
    monkeypatch.setattr("spacy_crf.models.higher_order._MOST_TAGS", len(labels) - 1)
    with pytest.raises(ValueError, match=r"CRF322.*order = 2 with 5 tags"):
        pipeline("crf_tagger", 0, order=2)
    assert len(pipeline("crf_tagger", 0, order=1)[0].get_pipe("crf_tagger").labels) == len(labels)


def test_one_label():
    nlp = spacy.blank("en")
    emissions = {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": "spacy_crf.tagger_features.v1"},
    }
    model = {"@architectures": "spacy_crf.HigherOrder.v1", "order": 3, "emissions": emissions}
    nlp.add_pipe("crf_tagger", config={"model": model})
    examples = tag_examples(nlp, ["a/X b/X", "c/X"])
    nlp.initialize(lambda: examples)
    nlp.update(examples)
    assert [token.tag_ for token in nlp("a b c d")] == ["X"] * 4


def test_enumerated_problem_is_used():
    """The rows of the table are of n-grams that there are."""
    problem = random_problem(STRUCTURES["order 3"], [4], 2)
    known = Enumerated(STRUCTURES["order 3"], Problem(problem.structure, problem.scores, None))
    assert known.expectations().grams.max() > 0.05


# Labels of parts


def test_labels_share_the_weights_of_their_parts():
    parts = TagParts.of(["POS=X|A=1", "POS=X", "O", "POS=X|A=1|B=2"], "morph")
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, parts.n_columns))
    names = [["POS=X", "A=1"], ["POS=X"], ["O"], ["POS=X", "A=1", "B=2"]]
    # tag by tag, its own column and those of new parts
    places = {"POS=X": 1, "A=1": 2, "O": 5, "B=2": 7}
    own = [0, 3, 4, 6]
    expected = np.array([[row[o] + sum(row[places[p]] for p in of) for o, of in zip(own, names)] for row in scores])
    np.testing.assert_allclose(parts.sums(scores), expected)
    derivative, direction = rng.normal(size=(5, 4)), rng.normal(size=scores.shape)
    assert (parts.spread(derivative) * direction).sum() == pytest.approx((derivative * parts.sums(direction)).sum())
    allowed = parts.allowed(np.eye(4, dtype=bool)[[3, 1]])
    assert [np.flatnonzero(row).tolist() for row in allowed] == [[1, 2, 6, 7], [1, 3]]
    assert TagParts.of(["B-PER", "L-PER", "O"], "scheme").names == [["B", "PER"], ["L", "PER"], ["O"]]
    more = TagParts.of([*["POS=X|A=1", "POS=X", "O", "POS=X|A=1|B=2"], "POS=Y|B=2"], "morph")
    assert more.tag_columns[:4].tolist() == parts.tag_columns.tolist()  # those that were there stay where they are


@pytest.mark.parametrize(("factory", "label_parts"), [("crf_ner", "scheme"), ("crf_tagger", "morph")])
def test_components_with_parts(factory, label_parts, tmp_path):
    nlp, examples = pipeline(factory, 10, order=1, keep=None, label_parts=label_parts)
    pipe = nlp.get_pipe(factory)
    assert nlp.evaluate(examples)["ents_f" if factory == "crf_ner" else "crf_tag_acc"] > 0.95
    nlp.to_disk(tmp_path / "model")
    doc = plain(examples[0].reference)
    np.testing.assert_array_equal(
        spacy.load(tmp_path / "model").get_pipe(factory).marginals(doc)[0], pipe.marginals(doc)[0]
    )
    named = {tag for row in pipe.weights() for tag in row.tags}
    assert ({"part B", "part PER", "B-PER"} if factory == "crf_ner" else {"part DT", "DT"}) <= named
    before = pipe.marginals(doc)[0]
    pipe.add_label("NEW")
    after = pipe.marginals(doc)[0][:, : before.shape[1]]
    assert (after.argmax(axis=1) == before.argmax(axis=1)).all()


def test_parts_that_can_not_be():
    with pytest.raises(ValueError, match=r"CRF020.*label_parts = 'syllables'.*'morph', 'scheme'"):
        pipeline("crf_tagger", 0, label_parts="syllables")
    with pytest.raises(ValueError, match=r"CRF327.*7.*'NN'"):
        TagParts.of(["NN"], lambda tag: 7)


def test_chain_scores_are_those_of_order_1():
    """What a path of them uses ended in an AttributeError."""
    chain, scores, _ = random_problem(STRUCTURES["chain"], [3, 0, 2])
    structure, weights = HigherOrder(), np.array([1.0, 2.0, -0.5])
    for question in ("viterbi_counts", "expectations"):
        (values, used), (expected, uses) = (
            getattr(asked, question)(scores, weights=weights) for asked in (structure, chain)
        )
        np.testing.assert_allclose(values, expected)
        assert_scores_close(used, uses)
    states = chain.viterbi(scores).states
    assert_scores_close(structure.path_expectations(scores, states), chain.path_expectations(scores, states))
