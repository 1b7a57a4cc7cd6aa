"""Feature induction: gains against their formula in plain Python, rounds, and models that are saved."""

import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.sgd import SGD
from spacy_crf_lab import feature_gains
from spacy_crf_lab.conjugate_gradient import ConjugateGradient
from spacy_crf_lab.feature_gains import gains, uncertain_tokens
from spacy_crf_lab.feature_induction import Candidates, Chosen, FeatureInduction, parts_of, single_weights
from spacy_crf_lab.feature_pairs import pairs
from tests import reference
from tests.util import NER_TEXTS, entities, ner_examples, plain, tag_examples

from .util import registered

PAIRS = {"@misc": "spacy_crf_lab.feature_pairs.v1", "templates": ["lower[-1..1]", "shape[0]", "suffix2[0]"]}
# The first tag is a matter of two words together, of none alone
XOR = ["a/X a/Z", "b/X b/Z", "a/Y b/Z", "b/Y a/Z"]
XOR_PAIRS = {**PAIRS, "templates": ["lower[0]", "lower[1]"]}


@spacy.registry.misc("test_feature_induction.numbers.v1")
def make_numbers():
    return lambda doc: [[0.5 * len(token.text), -1.0] for token in doc]


def made(
    features=PAIRS, factory="crf_ner", *, architecture="LinearChain", examples=ner_examples, of_model=(), **of_pipe
):
    nlp = spacy.blank("en")
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    model = {"@architectures": registered(architecture), "emissions": emissions, **dict(of_model)}
    pipe = nlp.add_pipe(factory, config={"model": model, **of_pipe})
    found = examples(nlp)
    nlp.initialize(lambda: found)
    return nlp, pipe, found


def trained(optimizer, *args, steps=1, **settings):
    nlp, pipe, examples = made(*args, **settings)
    losses = [nlp.update(examples, sgd=optimizer)[pipe.name] for _ in range(steps)]
    return nlp, pipe, examples, losses


def objective_of(pipe, examples):
    return pipe.training.objective(FeatureInduction(), examples)


def weights_of(pipe):
    return pipe.model.layers[0].get_param("states")


# ------------------------------------------------------------------------------------------------------------ gains


def gain_of(terms, value, l1=0.0, l2=0.0):
    """terms: factor, expected, observed, value of the feature at each token"""
    total = -l1 * abs(value) - l2 * value * value
    for factor, p, gold, x in terms:
        total += factor * (gold * x * value - math.log(1 - p + p * math.exp(x * value)))
    return total


def best_gain(terms, l1, l2):
    """The maximum of a concave function, by ternary search."""
    low, high = -30.0, 30.0
    for _ in range(200):
        third = (high - low) / 3
        if gain_of(terms, low + third, l1, l2) < gain_of(terms, high - third, l1, l2):
            low += third
        else:
            high -= third
    return gain_of(terms, low, l1, l2)


FUNCTION = {"functions": {"numbers": {"@misc": "test_feature_induction.numbers.v1"}}}
NUMBERS = {**PAIRS, **FUNCTION, "templates": ["lower[0]", "ngrams2[0]", "fn:numbers[0]"]}


SHORT_TEXTS = ["[Ann](PER) in [Rome](GPE) .", "[Bob](PER) left", "Nobody left Rome .", "in [Rome](GPE)"]


def partly_annotated(nlp):
    examples = ner_examples(nlp, SHORT_TEXTS)
    examples[0].reference._.crf_weight = 2.5
    examples[2].reference.set_ents([], missing=[examples[2].reference[0:2]], default="outside")
    return examples


@pytest.mark.parametrize("features", [PAIRS, NUMBERS])
@pytest.mark.parametrize("l1, l2", [(0.0, 1.0), (0.3, 0.5)])
def test_gains_are_those_of_the_formula(features, l1, l2, monkeypatch):
    monkeypatch.setattr(feature_gains, "_STEPS", 30)
    monkeypatch.setattr(feature_gains, "_CERTAIN", 0.0)
    _, pipe, examples = made(features, examples=partly_annotated, scheme="IO")
    objective = objective_of(pipe, examples)
    known = Candidates(objective)
    weights = np.random.default_rng(0).normal(scale=0.5, size=len(objective.copies))
    everything = np.ones(len(weights), dtype=bool)
    Chosen(objective, known.whole, everything).assign(weights)
    pipe.clear_scores()
    uncertain = uncertain_tokens(known.whole, known.layer, weights)
    wanted = np.random.default_rng(1).random(len(known.weights)) < 0.7
    found, values = gains(known.tokens, uncertain, wanted, l1=l1, l2=l2)
    assert not found[~wanted].any() and not values[~wanted].any()

    docs = [example.predicted for example in examples]
    scores, (clamp, factors, _) = pipe.model.predict(docs), known.whole.annotation(0)
    expected, observed = (reference.expectations(scores, allowed).emissions for allowed in (None, clamp))
    assert known.whole.n_batches == 1 and (clamp.sum(axis=1) > 1).any()
    layer, table = pipe.model.layers[0].attrs["features"], known.tokens.table
    rows, numbers, starts = layer.look_up(docs).features["states"]
    tokens = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    factor = np.repeat(factors, [len(doc) for doc in docs])
    assert set(factors) == {1.0, 2.5}
    for place in np.flatnonzero(wanted):
        column = table.pair_columns[place]
        having = np.flatnonzero(rows == known.feature[place])
        terms = [
            (factor[t], expected[t, column], observed[t, column], 1.0 if numbers is None else float(numbers[n]))
            for n, t in zip(having, tokens[having])
        ]
        assert found[place] == pytest.approx(gain_of(terms, values[place], l1, l2), abs=1e-5)
        assert found[place] == pytest.approx(best_gain(terms, l1, l2), abs=1e-4)
    assert found.max() > 0.5


def test_three_steps_find_most_of_a_gain():
    _, pipe, examples = made()
    objective = objective_of(pipe, examples)
    known = Candidates(objective)
    uncertain = uncertain_tokens(known.whole, known.layer, np.zeros(len(objective.copies)))
    wanted = np.ones(len(known.weights), dtype=bool)
    few, _ = gains(known.tokens, uncertain, wanted, l2=0.1)
    feature_gains._STEPS, before = 40, feature_gains._STEPS
    try:
        many, _ = gains(known.tokens, uncertain, wanted, l2=0.1)
    finally:
        feature_gains._STEPS = before
    best = many > 0.1
    assert best.any() and (few[best] > 0.9 * many[best]).all() and (few <= many + 1e-9).all()


def test_tokens_that_are_right_are_left_out():
    optimizer = FeatureInduction(inner=LBFGS(l2=0.001))
    _, pipe, examples, _ = trained(optimizer, steps=6)
    objective = objective_of(pipe, examples)
    known, weights = Candidates(objective), single_weights(objective)
    assert sum(len(some.tokens) for some in uncertain_tokens(known.whole, known.layer, weights)) == 0
    weights = np.zeros(len(weights))
    assert sum(len(some.tokens) for some in uncertain_tokens(known.whole, known.layer, weights)) == sum(
        len(example.predicted) for example in examples
    )


def test_some_weights_alone_have_the_same_objective():
    _, pipe, examples = made(scheme="BILUO")  # has states that no annotation distinguishes
    objective = objective_of(pipe, examples)
    rng = np.random.default_rng(0)
    whole = objective.restricted(np.ones(len(objective.copies), dtype=bool))
    known = Candidates(objective)
    chosen = np.ones(len(objective.copies), dtype=bool)
    chosen[known.weights] = rng.random(len(known.weights)) < 0.3
    weights = np.where(chosen, rng.normal(size=len(chosen)), 0.0)
    roots = np.sqrt(objective.copies)
    value, gradient = whole.restricted(chosen).evaluate(weights[chosen])
    of_all, slopes = objective.evaluate(weights / roots)
    assert value == pytest.approx(of_all, rel=1e-12)
    np.testing.assert_allclose(gradient, (slopes / roots)[chosen], atol=1e-10)


def test_the_parts_of_conjunctions():
    _, pipe, _ = made({**PAIRS, "templates": ["bias", "lower[0]", "shape[0]", "lower[-1]|suffix2[0]"]})
    index = pipe.model.layers[0].attrs["features"].states.index
    found = dict(zip(index.names(), [[index.name(n) for n in row if n >= 0] for row in parts_of(index.feature_names)]))
    assert found["bias"] == found["shape[0]=Xxx"] == []
    assert found["lower[0]|shape[0]=ann|Xxx"] == ["lower[0]=ann", "shape[0]=Xxx"]
    assert found["lower[-1]|suffix2[0]=ann|ee"] == []
    assert found["shape[0]|lower[-1]|suffix2[0]=Xxx|ann|ee"] == ["shape[0]=Xxx"]


# ----------------------------------------------------------------------------------------------------------- rounds


@pytest.mark.parametrize("inner", [LBFGS(l2=0.1), LBFGS(l1=0.1, l2=0.1), ConjugateGradient(l2=0.1)])
def test_each_round_lowers_the_objective(inner, caplog):
    caplog.set_level("INFO")
    optimizer = FeatureInduction(per_round=4, iterations=15, min_gain=0.1, inner=inner)
    nlp, pipe, examples, losses = trained(optimizer, steps=100)
    n = losses.index(losses[-1]) + 1  # steps until training has ended
    assert 5 < n < 60 and (np.diff(losses[:n]) < 0.0).all()
    assert optimizer.stop_reason("crf_ner") is not None
    run = optimizer._runs["crf_ner"]
    assert nlp.evaluate(examples)["ents_f"] > 0.9
    assert 10 < np.count_nonzero(weights_of(pipe)) <= run.chosen.sum() < 150
    [text] = [record.message for record in caplog.records if "has grown to" in record.message]
    listed = text[text.index("[") :]
    used = {name.partition("=")[0] for name in names_with_weights(pipe)}
    assert used <= set(spacy.util.srsly.json_loads(listed))
    assert len(caplog.records) > n and "round 1 adds 4 weights to 0" in caplog.text


def names_with_weights(pipe):
    table = pipe.model.layers[0].attrs["features"].states
    rows = table.rows_of_pairs()[weights_of(pipe) != 0.0]
    return [table.index.name(row) for row in np.unique(rows)]


@pytest.mark.parametrize("architecture", ["MaxEnt", "LinearChain"])
def test_round_two_finds_exclusive_or(architecture):
    def examples(nlp):
        return tag_examples(nlp, XOR)

    settings = {"architecture": architecture, "factory": "crf_tagger", "features": XOR_PAIRS, "examples": examples}
    inner = LBFGS(l2=0.001)
    for conjunctions in (True, False):
        optimizer = FeatureInduction(inner=inner, iterations=30, conjunctions=conjunctions)
        nlp, pipe, found, _ = trained(optimizer, steps=2, **settings)
        right = [token.tag_ == gold.tag_ for e in found for token, gold in zip(nlp(e.predicted), e.reference)]
        assert all(right) == conjunctions
        assert any(name.startswith("lower[0]|lower[1]=") for name in names_with_weights(pipe)) == conjunctions


def test_models_of_segments_grow_too():
    nlp = spacy.blank("en")
    nlp.add_pipe("semicrf_ner")
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = FeatureInduction(per_round=5, inner=LBFGS(l2=0.1))
    losses = [nlp.update(examples, sgd=optimizer)["semicrf_ner"] for _ in range(4)]
    assert (np.diff(losses) < 0.0).all()
    assert 5 < optimizer._runs["semicrf_ner"].chosen[optimizer._runs["semicrf_ner"].candidates.weights].sum() <= 20
    assert nlp.evaluate(examples)["ents_f"] > 0.5


@pytest.mark.parametrize("architecture, of_model", [("MEMM", {}), ("FactorGraph", {}), ("HigherOrder", {"keep": None})])
def test_other_structures_grow_too(architecture, of_model):
    optimizer = FeatureInduction(per_round=10, inner=LBFGS(l2=0.1))
    losses = trained(optimizer, steps=3, architecture=architecture, of_model=of_model)[3]
    assert (np.diff(losses) < 0.0).all()


def test_conjunctions_are_built_of_the_pool():
    optimizer = FeatureInduction(per_round=3, pool=2, inner=LBFGS(l2=0.1))
    _, pipe, _, _ = trained(optimizer, steps=1)
    assert not any("|" in name for name in names_with_weights(pipe))
    run = optimizer._runs["crf_ner"]
    best = {run.candidates.names.of(row) for row in np.argsort(-run.worth, kind="stable")[:2]}
    allowed = {run.candidates.names.of(row) for row in np.flatnonzero(optimizer._allowed(run))}
    run.iteration = 2
    more = {run.candidates.names.of(row) for row in np.flatnonzero(optimizer._allowed(run))} - allowed
    assert more and len(best) == 2
    for name in more:
        templates, _, values = name.partition("=")
        parts = {f"{part}={value}" for part, value in zip(templates.split("|"), values.split("|"))}
        assert parts & best


def test_features_of_the_same_tokens_get_one_weight():
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "orth[0]", "norm[0]"]}
    optimizer = FeatureInduction(conjunctions=False, inner=LBFGS(l2=0.1))
    texts = [text.lower() for text in NER_TEXTS]
    _, pipe, _, _ = trained(optimizer, features=features, examples=lambda nlp: ner_examples(nlp, texts))
    assert {name.partition("[")[0] for name in names_with_weights(pipe)} == {"lower"}


def test_there_may_be_a_largest_number_of_weights():
    optimizer = FeatureInduction(per_round=4, max_weights=10, inner=LBFGS(l2=0.1))
    _, pipe, _, losses = trained(optimizer, steps=30)
    assert np.count_nonzero(weights_of(pipe)) == 10 and losses[-1] < losses[2]
    assert optimizer.stop_reason("crf_ner") is not None


def test_little_gains_end_growth(tmp_path):
    optimizer = FeatureInduction(min_gain=1e6)
    nlp, pipe, examples, _ = trained(optimizer, steps=30)
    nlp.to_disk(tmp_path)
    assert spacy.load(tmp_path)(plain(examples[0].reference)).has_annotation("ENT_IOB")
    assert not weights_of(pipe).any() and optimizer.stop_reason("crf_ner") is not None
    assert optimizer.iterations_made("crf_ner") < 30


def test_training_resumes():
    settings = {"per_round": 4, "inner": LBFGS(l2=0.1), "max_weights": 8}
    for steps in (1, 3):  # while the model grows, and afterwards
        optimizer, other = FeatureInduction(**settings), FeatureInduction(**settings)
        nlp, pipe, examples, _ = trained(optimizer, steps=steps)
        data = b"".join(optimizer.checkpoint("crf_ner"))
        _, other_pipe, theirs = made()
        objective = other_pipe.training.objective(other, theirs)
        assert other.resume(objective, data, key="crf_ner") == steps
        np.testing.assert_array_equal(weights_of(pipe), weights_of(other_pipe))
        assert nlp.update(examples, sgd=optimizer)["crf_ner"] == other.step(objective, key="crf_ner")
        np.testing.assert_array_equal(weights_of(pipe), weights_of(other_pipe))
    with pytest.raises(ValueError, match="CRF204"):
        FeatureInduction(per_round=5).from_bytes(data)


def test_other_texts_keep_the_weights_that_are_there():
    optimizer = FeatureInduction(per_round=4, inner=LBFGS(l2=0.1))
    nlp, pipe, examples, _ = trained(optimizer, steps=3)
    before = set(names_with_weights(pipe))
    nlp.update(examples[:5], sgd=optimizer)
    assert optimizer.iterations_made("crf_ner") == 1
    assert len(set(names_with_weights(pipe)) & before) > 0.7 * len(before)


# ----------------------------------------------------------------------------------------------------- saved models


def test_saved_models_read_the_templates_that_they_have(tmp_path):
    optimizer = FeatureInduction(per_round=10, inner=LBFGS(l2=0.1), max_weights=30)
    nlp, pipe, examples, _ = trained(optimizer, steps=8)
    docs = [plain(example.reference) for example in examples] + [Doc(nlp.vocab), Doc(nlp.vocab, words=["Bob"])]
    before = [entities(nlp(plain(doc))) for doc in docs]
    assert sum(map(len, before)) > 5
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert [entities(doc) for doc in loaded.pipe(map(plain, docs))] == before
    table = loaded.get_pipe("crf_ner").model.layers[0].attrs["features"].states
    assert table.n_weights == np.count_nonzero(weights_of(pipe)) <= 30
    used = {name.partition("=")[0] for name in table.index.names()}
    assert {*table.index.templates} == used
    scorer = loaded.get_pipe("crf_ner").model.layers[0].attrs["features"]._scorer._token_scorers["states"]
    read = [*map(str, scorer._looked_up.templates), *map(str, scorer._of_lexemes.templates)]
    assert set(read) == used and len(used) < len(pipe.model.layers[0].attrs["features"].feature_set.templates)
    assert [entities(doc) for doc in nlp.pipe(map(plain, docs), n_process=2)] == before


def test_pairs_of_templates():
    found = pairs(
        ["bias", "lower[-1..0]", "lower[-1]|lower[0]", "ngrams3[0]", "word:f[0]", "vector[0]", "if:is_title[0]"]
    )
    assert found == [
        "lower[-1]|lower[0]",
        "lower[-1]|lower[0]",
        "lower[-1]|ngrams3[0]",
        "lower[-1]|word:f[0]",
        "lower[-1]|if:is_title[0]",
        "lower[0]|lower[-1]",
        "lower[0]|ngrams3[0]",
        "lower[0]|word:f[0]",
        "lower[0]|if:is_title[0]",
        "lower[-1]|lower[0]|ngrams3[0]",
        "lower[-1]|lower[0]|word:f[0]",
        "lower[-1]|lower[0]|if:is_title[0]",
        "ngrams3[0]|if:is_title[0]",
        "word:f[0]|if:is_title[0]",
    ]
    assert pairs(["lower[0]"]) == []


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "settings",
    [{"per_round": 0}, {"pool": 1.5}, {"conjunctions": 1}, {"min_gain": -1.0}, {"inner": SGD()}, {"max_weights": 0}],
)
def test_settings_are_checked(settings):
    [name] = settings
    with pytest.raises(ValueError, match=f"CRF020: FeatureInduction: {name} = "):
        FeatureInduction(**settings)


def test_models_that_do_not_fit_are_refused(tmp_path):
    nlp, _, examples = made({"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]})
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    with pytest.raises(ValueError, match=r"CRF347: FeatureInduction .*'crf_ner' from earlier training"):
        loaded.update(ner_examples(loaded), sgd=FeatureInduction())
    nlp = spacy.blank("en")
    emissions = {"@architectures": "spacy_crf.HashedEmissions.v1", "features": PAIRS, "rows": 64}
    nlp.add_pipe("crf_ner", config={"model": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF347: FeatureInduction can't train the model of 'crf_ner'"):
        nlp.update(examples, sgd=FeatureInduction())
    with pytest.raises(ValueError, match=r"CRF347.*the pruned labellings of 'crf_ner'.*keep = null"):
        trained(FeatureInduction(), architecture="HigherOrder")
    with pytest.raises(ValueError, match=r"CRF347.*the hidden states of 'crf_ner'"):
        trained(FeatureInduction(), architecture="LatentChain")
    with pytest.raises(ValueError, match=r"CRF210.*FeatureInduction.*MaxMargin"):
        trained(FeatureInduction(), loss={"@losses": "spacy_crf.MaxMargin.v1"})


def test_missing_conjunctions_are_told(caplog):
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "shape[0]"]}
    trained(FeatureInduction(), features=features)
    assert caplog.text.count("CRFW630") == 1
    caplog.clear()
    trained(FeatureInduction(conjunctions=False), features=features)
    trained(FeatureInduction())
    assert "CRFW630" not in caplog.text
