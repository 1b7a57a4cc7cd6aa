"""Online optimizers: their losses and gradients against the batch objective, their solutions against L-BFGS, and each rule
against a textbook loop."""

import itertools
import math
import re

import numba
import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose, assert_array_equal
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_crf.features.segment_templates import SegmentFeatureSet
from spacy_crf.kernels.online import rules as kernels
from spacy_crf.kernels.online.work import make_room
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.online import EMPTY
from spacy_crf.optimizers.perceptron import (
    AROW,
    AveragedPerceptron,
    BatchPerceptron,
    PassiveAggressive,
)
from spacy_crf.optimizers.sgd import SGD, AdaGrad
from spacy_crf.pipeline.prepared import VIEWS

SENTENCES = [
    ("Ada Lovelace visited London in May", ["B-PER", "I-PER", "O", "B-LOC", "O", "O"]),
    ("Paris is larger than London", ["B-LOC", "O", "O", "O", "B-LOC"]),
    ("May met Ada in New York", ["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC"]),
    ("the city", ["O", "O"]),
    ("Grace Hopper left New York", ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]),
    ("Grace", ["B-PER"]),
]
TEMPLATES = ["orth[-1..1]", "shape[0]"]
# Of each of the places where segments have weights, and real-valued ones
SEGMENT_TEMPLATES = [
    "seg.length",
    "seg.lower",
    "seg.first:shape",
    "seg.after:lower",
    "seg.contains:shape",
    "seg.fn:size",
]
# Optimizer, its settings, and the loss to give it
OPTIMIZERS = {
    "SGD": (SGD, {"l2": 0.1}, LogLikelihood),
    "SGD, l1": (SGD, {"l1": 0.05, "l2": 0.05}, LogLikelihood),
    "SGD, max-margin": (SGD, {"l2": 0.1}, MaxMargin),
    "AdaGrad": (AdaGrad, {"l2": 0.1}, LogLikelihood),
    "AdaGrad, l1": (AdaGrad, {"l1": 0.05, "l2": 0.05}, SoftmaxMargin),
    "averaged perceptron": (AveragedPerceptron, {}, Perceptron),
    "batch perceptron": (BatchPerceptron, {}, Perceptron),
    "PA": (PassiveAggressive, {"type": 0}, Perceptron),
    "PA-I": (PassiveAggressive, {"type": 1, "error_sensitive": False}, MaxMargin),
    "PA-II": (PassiveAggressive, {"type": 2, "use_averages": False}, Perceptron),
    "AROW": (AROW, {}, Perceptron),
}
COMPONENTS = ("crf_ner", "semicrf_ner")
each_component = pytest.mark.parametrize("component", COMPONENTS)
each = pytest.mark.parametrize(
    "component,make,settings,loss",
    [
        pytest.param(component, *row, id=f"{component}, {name}")
        for component in COMPONENTS
        for name, row in OPTIMIZERS.items()
    ],
)


@registry.misc("test_online.segment_features")
def make_segment_features():
    return SegmentFeatureSet(SEGMENT_TEMPLATES, functions={"size": lambda span: len(span.text) / 10})


def make_pipe(loss, component="crf_ner", *, partial=False, pairs=False, weights=(), own=None):
    """A pipeline with the component, initialized with its examples."""
    nlp = spacy.blank("en")
    features = {"@misc": "spacy_crf.features.v1", "templates": TEMPLATES}
    if pairs:
        features["transitions"] = ["shape[0]", "orth[0]"]
    model = {"emissions": {"features": features}}
    if component == "semicrf_ner":
        model["segments"] = {
            "@architectures": "spacy_crf.SparseSegments.v1",
            "features": {"@misc": "test_online.segment_features"},
        }
        own = {"alternatives_spans_key": "maybe", "incorrect_spans_key": "wrong", **(own or {})}
    config = {"model": model, **(own or {})}
    pipe = nlp.add_pipe(component, config={"scheme": "BIO", **config} if component == "crf_ner" else config)
    examples = []
    for n, (text, tags) in enumerate(SENTENCES):
        words = text.split()
        gold = Doc(nlp.vocab, words=words, ents=tags)
        if partial:
            missing = [gold[i : i + 1] for i in range(len(words)) if i % 3 == n % 3]
            gold = Doc(nlp.vocab, words=words, ents=[tag.replace("I-", "B-") for tag in tags])
            gold.set_ents([], missing=missing, default="unmodified")
            wrong = [Span(gold, 0, 1, "PER"), Span(gold, 1, min(3, len(words)), "LOC")]
            gold.spans["wrong"] = [span for span in wrong if span not in gold.ents]
            gold.spans["maybe"] = [Span(gold, len(words) - 1, len(words), label) for label in ("PER", "O")]
        if n < len(weights):
            gold._.crf_weight = weights[n]
        examples.append(Example(Doc(nlp.vocab, words=words), gold))
    nlp.initialize(lambda: examples)
    pipe.loss = loss.bind(pipe.annotation.tag_labels())
    return nlp, pipe, examples


def objectives(pipe, examples):
    return [VIEWS[kind](pipe.model, pipe.loss, [pipe.training.data(examples)]) for kind in ("objective", "sequences")]


def loss_of(pipe, example):
    """The loss of one example as a function of the weights."""
    return VIEWS["objective"](pipe.model, pipe.loss, [pipe.training.data([example])]).evaluate


def walk(rule, corpus, order, slots, *settings, maximum=True, costs=None, memory=EMPTY):
    """Calls the kernel of the rules."""
    costs = np.zeros((0, 0)) if costs is None else costs
    settings = (*settings, 0.0, 0.0, 0.0, 0.0)[:4]
    room = make_room(corpus, maximum=maximum)
    run = kernels.RuleRun(order, costs, slots, rule, settings, 0.0, np.array([1.0, 0.0]), memory, EMPTY)
    return kernels.walk(*room, run)


LOSSES = [
    LogLikelihood(),
    SoftmaxMargin(),
    LogLikelihood(label_weights={"PER": 3.0}, cost={"LOC": {"O": 0.5}}),
    Perceptron(),
    MaxMargin(cost={"PER": {"O": 2.0}}),
]


@each_component
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_kernels_agree_with_the_batch_objective(component, loss, partial, pairs):
    _, pipe, examples = make_pipe(loss, component, partial=partial, pairs=pairs, weights=(1.0, 2.0, 0.5, 1.0, 0.0))
    batch, online = objectives(pipe, examples)
    corpus = online.corpus
    if corpus.segments is not None and not partial:
        uses, n_tokens, n_spans = corpus.segments, len(corpus.gold), len(corpus.segments.listed_lengths)
        bounds = np.cumsum([0, n_tokens, n_tokens, n_tokens, n_spans, n_spans])
        assert (np.diff(uses.features.bounds[2 * bounds]) > 0).all()
    if corpus.segments is not None and partial:
        assert corpus.segments.excluded.any()
    order = np.arange(len(corpus.starts) - 1)
    costs = loss.bind(pipe.annotation.tag_labels()).costs(corpus.n_states)
    given = {"maximum": not loss.smooth, "costs": costs}
    for size in (0.5, 60.0, 400.0):  # the larger ones leave the scaled domain
        weights = np.random.default_rng(5).normal(size=len(batch.weights())) * size
        value, gradient = batch.evaluate(weights)
        slots = np.zeros(len(corpus.learned))
        slots[corpus.slot_of_weight] = weights
        slots[corpus.forbidden] = -np.inf
        found = walk(kernels.NOTHING, corpus, order, slots, **given)
        assert_allclose(found[0], value, rtol=1e-9, atol=1e-9)
        # A tiny step of each sequence from the same weights: together the gradient
        moved = np.zeros_like(weights)
        eta = 1e-7
        for b in order:
            after = slots.copy()
            walk(kernels.SGD, corpus, order[b : b + 1], after, 0.0, eta, 1.0, **given)
            moved += (after[corpus.slot_of_weight] - weights) / -eta
            assert_array_equal(after[~corpus.learned], slots[~corpus.learned])
        assert_allclose(moved, gradient, atol=2e-6 * size)


@pytest.mark.jit
@each
def test_learns_its_examples(component, make, settings, loss):
    nlp, _pipe, examples = make_pipe(loss(), component)
    optimizer = make(epochs_per_step=10, **settings)
    for _ in range(6):
        nlp.update(examples, sgd=optimizer)
    with nlp.use_params(optimizer.averages or {}):
        scores = nlp.evaluate(examples)
    assert scores["ents_f"] == 1.0


@each
def test_one_seed_one_model_and_resuming_changes_nothing(component, make, settings, loss):
    results = []
    for resumes in (False, True):
        nlp, pipe, examples = make_pipe(loss(), component)
        optimizer = make(seed=3, **settings)
        for n in range(4):
            if resumes and n == 2:
                optimizer = make(seed=3, **settings).from_bytes(optimizer.to_bytes())
            nlp.update(examples, sgd=optimizer)
        results.append(objectives(pipe, examples)[0].weights())
    assert_array_equal(*results)
    assert np.abs(results[0]).sum() > 0


def test_saved_state_wants_the_same_settings():
    data = AROW(gamma=2.0).to_bytes()
    with pytest.raises(ValueError, match="CRF204"):
        AROW(gamma=1.0).from_bytes(data)


def test_strong_regularizers_with_few_sequences_turn_no_weights_round():
    """Rates were tried at which a single step shrinks weights to less than nothing: -inf became inf."""
    values = []
    for optimizer in (LBFGS(l2=10.0, iterations_per_step=100), SGD(l2=10.0, epochs_per_step=100)):
        nlp, pipe, examples = make_pipe(LogLikelihood())
        nlp.update(examples[:2], sgd=optimizer)
        batch, _ = objectives(pipe, examples[:2])
        weights = batch.weights()
        values.append(batch.evaluate(weights)[0] + 10.0 * weights @ weights)
    assert values[1] == pytest.approx(values[0], rel=0.02)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="400 passes as plain Python take minutes")
@each_component
@pytest.mark.parametrize("make", [SGD, AdaGrad])
@pytest.mark.parametrize("l1", [0.0, 0.1])
def test_stochastic_gradients_find_what_lbfgs_finds(component, make, l1):
    values = []
    for optimizer in (LBFGS(l1=l1, l2=0.2, iterations_per_step=200), make(l1=l1, l2=0.2, epochs_per_step=400)):
        nlp, pipe, examples = make_pipe(LogLikelihood(), component)
        nlp.update(examples, sgd=optimizer)
        batch, _ = objectives(pipe, examples)
        weights = batch.weights()
        values.append(batch.evaluate(weights)[0] + l1 * np.abs(weights).sum() + 0.2 * weights @ weights)
        zeros = int((weights == 0).sum())
    assert values[1] == pytest.approx(values[0], rel=0.02)
    assert (zeros > 1) == (l1 > 0)


@each_component
def test_perceptron_is_collins_and_its_averages_are_the_mean_of_all_weights(component):
    nlp, pipe, examples = make_pipe(Perceptron(), component)
    optimizer = AveragedPerceptron()
    batch, _ = objectives(pipe, examples)
    weights, seen = np.zeros(len(batch.weights())), [np.zeros(len(batch.weights()))]
    order = np.random.default_rng((0, 0)).permutation(len(examples))
    for b in order:  # the gradient of one sequence's loss
        weights = weights - loss_of(pipe, examples[b])(weights)[1]
        seen.append(weights)
    nlp.update(examples, sgd=optimizer)
    assert_array_equal(batch.weights(), weights)
    expected = batch.parameters(np.mean(seen, axis=0))
    assert optimizer.averages.keys() == expected.keys()
    for key, value in expected.items():
        assert_allclose(optimizer.averages[key], value, atol=1e-6)


@each_component
def test_batch_perceptron_applies_the_mean_update_of_a_pass(component):
    nlp, pipe, examples = make_pipe(Perceptron(), component)
    batch, _ = objectives(pipe, examples)
    zero = np.zeros(len(batch.weights()))
    parts = [loss_of(pipe, example)(zero)[1] for example in examples]
    expected = -np.sum(parts, axis=0) / sum(part.any() for part in parts)
    nlp.update(examples, sgd=BatchPerceptron())
    assert_allclose(batch.weights(), expected, atol=1e-6)


@each_component
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_passive_aggressive_is_crammers_rule(kind, component):
    _, pipe, examples = make_pipe(Perceptron(), component)
    batch, online = objectives(pipe, examples)
    corpus = online.corpus
    slots = np.zeros(len(corpus.learned))
    slots[corpus.forbidden] = -np.inf
    weights = np.zeros(len(batch.weights()))
    c = 0.05
    for b in range(len(examples)):
        loss, difference = loss_of(pipe, examples[b])(weights)
        square = difference @ difference
        if square:
            loss += 1.0
            tau = {0: loss / square, 1: min(c, loss / square), 2: loss / (square + 0.5 / c)}[kind]
            weights = weights - tau * difference
        drift = np.zeros_like(slots)
        walk(kernels.PASSIVE_AGGRESSIVE, corpus, np.array([b]), slots, float(kind), c, 0.0, memory=drift)
        assert_allclose(slots[corpus.slot_of_weight], weights, atol=1e-12)


@each_component
def test_arow_is_the_papers_rule(component):
    nlp, pipe, examples = make_pipe(Perceptron(), component)
    batch, online = objectives(pipe, examples)
    corpus = online.corpus
    slots = np.zeros(len(corpus.learned))
    slots[corpus.forbidden] = -np.inf
    variances = np.ones_like(slots)
    weights, variance = np.zeros(len(batch.weights())), np.ones(len(batch.weights()))
    for b in range(len(examples)):
        loss, difference = loss_of(pipe, examples[b])(weights)
        batch.assign(weights)
        words, gold = SENTENCES[b]
        found = nlp(Doc(nlp.vocab, words=words.split()))
        tags = [f"{token.ent_iob_}-{token.ent_type_}".rstrip("-") for token in found]
        n_wrong = sum(tag != right for tag, right in zip(tags, gold))
        if difference.any():
            alpha = (loss + n_wrong) / (variance @ difference**2 + 0.5)
            weights = weights - alpha * variance * difference
            variance = 1.0 / (1.0 / variance + difference**2 / 0.5)
        walk(kernels.AROW, corpus, np.array([b]), slots, 0.5, memory=variances)
        assert_allclose(slots[corpus.slot_of_weight], weights, atol=1e-6)
        assert_allclose(variances[corpus.slot_of_weight], variance, atol=1e-6)


@pytest.mark.parametrize("l2", [0.1, 1e-4, 1e-7, 1e-11, 1e-30, 0.0])
def test_adagrad_catches_up_as_if_it_had_regularized_every_weight_at_every_step(l2):
    """A power next to 1, less 1, has few digits, or none, by which it was divided."""
    weight, square, eta, l1 = 1.5, 4.0, 0.3, 0.08
    rate = eta / (1e-6 + math.sqrt(square))
    expected = weight
    for steps in range(1, 120):
        expected = max(0.0, expected - rate * l1) / (1.0 + 2.0 * rate * l2)
        one = np.array([weight])
        settings = (eta, 1e-6, l1, l2)
        kernels.catch_up_all(np.ones(1, bool), one, settings, float(steps), np.zeros(1), np.array([square]))
        assert one[0] == pytest.approx(expected, abs=1e-11)
    assert (expected == 0.0) == (l2 == 0.1)


@each_component
def test_documents_of_weight_zero_teach_nothing(component):
    weighted = make_pipe(Perceptron(), component, weights=(1.0, 0.0, 1.0, 1.0, 0.0))
    weighted[0].update(weighted[2], sgd=BatchPerceptron())
    nlp, pipe, examples = make_pipe(Perceptron(), component)
    nlp.update([example for n, example in enumerate(examples) if n not in (1, 4)], sgd=BatchPerceptron())
    assert_array_equal(objectives(weighted[1], examples)[0].weights(), objectives(pipe, examples)[0].weights())


@each_component
def test_a_component_with_its_own_averaging_optimizer_gets_the_averages(component):
    config = {
        "optimizer": {"@optimizers": "spacy_crf.AveragedPerceptron.v1"},
        "loss": {"@losses": "spacy_crf.Perceptron.v1"},
    }
    nlp, pipe, examples = make_pipe(Perceptron(), component, own=config)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    for (model_id, name), value in pipe.optimizer.averages.items():
        node = next(node for node in pipe.model.walk() if node.id == model_id)
        assert_array_equal(node.get_param(name), value)


# Bad input

BAD = [
    (SGD, {"l1": -1.0}),
    (SGD, {"l2": math.nan}),
    (SGD, {"calibration_eta": 0.0}),
    (AdaGrad, {"learn_rate": math.inf}),
    (AdaGrad, {"l2": -0.1}),
    (AveragedPerceptron, {"epochs_per_step": 0}),
    (AveragedPerceptron, {"seed": -1}),
    (PassiveAggressive, {"type": 3}),
    (PassiveAggressive, {"c": math.nan}),
    (AROW, {"variance": 0.0}),
    (AROW, {"gamma": -1.0}),
]


@pytest.mark.parametrize("make,settings", BAD)
def test_settings_that_make_no_sense_are_refused(make, settings):
    with pytest.raises(ValueError, match=f"CRF020.*{next(iter(settings))}"):
        make(**settings)


@pytest.mark.parametrize(
    "optimizer,loss",
    [
        ("spacy_crf.AveragedPerceptron.v1", "spacy_crf.LogLikelihood.v1"),
        ("spacy_crf.LBFGS.v1", "spacy_crf.MaxMargin.v1"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_when_the_config_is_read(optimizer, loss):
    config = {"optimizer": {"@optimizers": optimizer}, "loss": {"@losses": loss}}
    with pytest.raises(ValueError, match=r"CRF210.*Losses that fit it: spacy_crf\."):
        spacy.blank("en").add_pipe("crf_ner", config=config)
    # The same in [training.optimizer]: before features are counted
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": config["loss"]})
    nlp.config["training"] = {**nlp.config["training"], "optimizer": config["optimizer"]}
    with pytest.raises(ValueError, match="CRF210"):
        nlp.initialize(lambda: [Example(Doc(nlp.vocab, ["a"]), Doc(nlp.vocab, ["a"], ents=["B-X"]))])
    # And in Python, at the first step
    nlp, _, examples = make_pipe(registry.losses.get(loss)())
    with pytest.raises(ValueError, match="CRF210"):
        nlp.update(examples, sgd=registry.optimizers.get(optimizer)())


@each_component
@pytest.mark.parametrize("make", [SGD, AveragedPerceptron, AdaGrad])
def test_a_loss_that_is_not_finite_leaves_the_weights_as_they_were(make, component):
    loss = Perceptron if make is AveragedPerceptron else LogLikelihood
    nlp, pipe, examples = make_pipe(loss(), component)
    optimizer = make()
    nlp.update(examples, sgd=optimizer)
    batch, _ = objectives(pipe, examples)
    before = batch.weights()
    run = optimizer._runs[component]
    run.slots[pipe.training.corpus.objective.corpus.slot_of_weight[:40]] = math.nan
    with pytest.raises(ValueError, match=r"CRF206.*epoch 2, at a sequence of the document '\w+ "):
        nlp.update(examples, sgd=optimizer)
    assert_array_equal(batch.weights(), before)


@each_component
@pytest.mark.parametrize("eta", [1e30, 1e90])
def test_sgd_says_that_no_learning_rate_is_small_enough(eta, component):
    """The first one was taken then, and the step divided by zero."""
    nlp, _, examples = make_pipe(LogLikelihood(), component)
    with pytest.raises(ValueError, match=rf"CRF213: .*'{component}'.*calibration_eta = {re.escape(str(eta))}"):
        nlp.update(examples, sgd=SGD(calibration_eta=eta))


class FailsInTheSecondEpoch(AveragedPerceptron):
    def epoch(self, pass_, run, objective, seed, key):
        if run.iteration == 1:
            raise ValueError("not finite")
        return super().epoch(pass_, run, objective, seed, key)


def test_a_step_that_fails_changes_nothing():
    """A later step went on from the epochs that the model had not been given."""
    nlp, pipe, examples = make_pipe(Perceptron())
    optimizer = FailsInTheSecondEpoch(epochs_per_step=2)
    with pytest.raises(ValueError, match="not finite"):
        nlp.update(examples, sgd=optimizer)
    assert optimizer.iterations_made("crf_ner") == 0
    assert not objectives(pipe, examples)[0].weights().any()


@pytest.mark.parametrize("first", [1e-5, 1e3])
def test_trials_of_rates_go_on_until_they_find_the_best(first, caplog):
    """However far from it they begin."""
    rates = []
    for eta in (0.1, first):
        nlp, _, examples = make_pipe(LogLikelihood())
        with caplog.at_level("INFO", logger="spacy.spacy_crf"):
            nlp.update(examples, sgd=SGD(l2=0.1, calibration_eta=eta))
        rates.append(float(caplog.records[-1].message.rpartition(" ")[2]))
    assert 0.5 <= rates[1] / rates[0] <= 2.0


@each_component
def test_an_empty_batch_and_empty_documents_change_nothing(component):
    nlp, pipe, examples = make_pipe(Perceptron(), component)
    optimizer = AveragedPerceptron()
    nlp.update([], sgd=optimizer)
    nlp.update([Example(Doc(nlp.vocab), Doc(nlp.vocab))], sgd=optimizer)
    nlp.update([*examples, Example(Doc(nlp.vocab), Doc(nlp.vocab))], sgd=optimizer)
    assert all(map(np.isfinite, itertools.chain(objectives(pipe, examples)[0].weights())))
