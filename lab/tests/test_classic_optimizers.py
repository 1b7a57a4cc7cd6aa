"""Newton, preconditioned conjugate gradients, iterative scaling and cutting planes, on the components: L-BFGS finds the same."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose
from spacy.training import Example
from spacy.util import registry

from spacy_crf.kernels.online import rules as kernels
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.conjugate_gradient import ConjugateGradient
from spacy_crf_lab.cutting_plane import CuttingPlane
from spacy_crf_lab.dual import FrankWolfe
from spacy_crf_lab.iterative_scaling import GIS, IIS, solve, split
from spacy_crf_lab.laplace_propagation import Curvature
from spacy_crf_lab.newton import Newton
from spacy_crf_lab.simplex import mixture
from spacy_crf_lab.smo import SMO
from spacy_crf_lab.uses import Observed, Variances
from tests.optimizers.test_online import make_pipe, objectives, walk
from tests.shards.test_shards import Here, by, trained
from tests.shards.test_shards import make as make_shards
from tests.util import ner_examples, tag_examples

from .test_dual import make_corpus, primal_at, read_sequences
from .util import registered

L2 = 0.1
SETTINGS = {"l2": L2, "tolerance": 1e-7, "delta": 0.0, "iterations_per_step": 2000}
SMOOTH = {
    "Newton": Newton,
    "preconditioned": partial(ConjugateGradient, preconditioner="diagonal"),
    "mixed": partial(ConjugateGradient, preconditioner="diagonal", mixed=True),
}
TEXTS = ["a fine day", "a bad day", "what a fine fine film", "bad bad film", "fine"]


def text_examples(nlp):
    return [
        Example.from_dict(nlp.make_doc(text), {"cats": {"good": float("fine" in text), "bad": float("bad" in text)}})
        for text in TEXTS
    ]


FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["lower[-1..1]", "shape[0]"]}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}
WORDS = {**EMISSIONS, "features": {"@misc": "spacy_crf.text_features.v1"}}
CLIQUES = {"words": {"@misc": "spacy_crf_lab.RepeatedWords.v1"}}
PIPES = {
    "chain": ("crf_ner", {}, ner_examples),
    "segments": ("semicrf_ner", {}, ner_examples),
    "second order": (
        "crf_tagger",
        {"model": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 2, "keep": None, "emissions": EMISSIONS}},
        tag_examples,
    ),
    "graph": (
        "crf_ner",
        {"model": {"@architectures": "spacy_crf_lab.FactorGraph.v1", "emissions": EMISSIONS, "cliques": CLIQUES}},
        ner_examples,
    ),
    "texts": (
        "crf_textcat",
        {"model": {"@architectures": "spacy_crf.MaxEntText.v1", "emissions": WORDS}},
        text_examples,
    ),
}


def minimum(structure, optimizer, **loss):
    """The objective of a component where the optimizer stops, and its weights."""
    component, config, read = PIPES[structure]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(component, config={**config, **loss})
    examples = read(nlp)
    nlp.initialize(lambda: examples, sgd=optimizer)
    value = nlp.update(examples, sgd=optimizer)[component]
    assert optimizer.stop_reason(component) is not None
    return value, pipe.training.frame().weights()


@pytest.mark.parametrize("structure", PIPES)
@pytest.mark.parametrize("make", SMOOTH.values(), ids=SMOOTH)
def test_smooth_ones_find_what_lbfgs_finds(structure, make):
    expected, weights = minimum(structure, LBFGS(**SETTINGS))
    value, found = minimum(structure, make(**SETTINGS))
    assert value == pytest.approx(expected, rel=1e-5)
    assert_allclose(found, weights, atol=1e-3)


@registry.misc("test_classic.below_zero")
def make_numbers():
    return lambda word: {"length": 1.0 - len(word)}


SCALING = {"GIS": GIS, "IIS": IIS, "IIS, all masses": partial(IIS, masses=64)}
FEW = {"model": {"emissions": {"features": FEATURES}}}
each_scaling = pytest.mark.parametrize("make", SCALING.values(), ids=SCALING)


@each_scaling
@pytest.mark.parametrize(
    "structure,loss",
    [("chain", "SoftmaxMargin"), *((name, "LogLikelihood") for name in ("chain", "segments", "second order", "texts"))],
)
def test_iterative_scaling_only_descends_and_finds_what_lbfgs_finds(structure, make, loss):
    told = {"loss": {"@losses": registered(loss)}, **(FEW if structure in ("chain", "segments") else {})}
    settings = {**SETTINGS, "l2": 3.0}  # with less it takes thousands of iterations
    expected, _ = minimum(structure, LBFGS(**settings), **told)
    optimizer, values = make(**{**settings, "tolerance": 1e-3}), []
    optimizer.on_iteration = lambda progress: values.append(progress.objective)
    value, _ = minimum(structure, optimizer, **told)
    assert value == pytest.approx(expected, rel=1e-5)
    assert (np.diff(values) < 0).all()


@each_scaling
def test_iterative_scaling_resumes_as_if_never_interrupted(make):
    make = partial(make, l2=L2, iterations_per_step=3)
    pipes = [make_pipe(LogLikelihood()) for _ in range(2)]
    steady, moved = (objectives(pipe, examples)[0] for _, pipe, examples in pipes)
    one, other = make(), make()
    for _ in range(4):
        assert one.step(steady, key="crf") == other.step(moved, key="crf")
        other = make().from_bytes(other.to_bytes())
    assert one.to_bytes() == other.to_bytes()


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
def test_masses_are_those_of_the_heaviest_labellings(component):
    _, pipe, examples, sequences = make_corpus(component)
    pipe.loss = LogLikelihood().bind(pipe.annotation.tag_labels())
    objective, _ = objectives(pipe, examples)
    optimizer = IIS(masses=64)
    optimizer.step(objective, key="crf")
    memory = optimizer._runs["crf"].memory
    shares = np.stack([some for [some] in memory.shares])
    assert_allclose(shares.sum(axis=0), 1.0)
    for sequence, alone, mass in zip(sequences, np.eye(len(sequences)), memory.masses @ shares):
        if sequence.weight:
            gold = objective.evaluate_loss(objective.weights(), loss=Observed([]), factors=[alone])[1] / sequence.weight
            assert mass == pytest.approx(gold.sum() + sequence.differences.sum(axis=1).max())


def test_few_masses_bound_those_of_all_sequences():
    of_sequences = [np.array([3.0, 1.0, 4.0]), np.zeros(0), np.array([1.0, 5.0, 9.0, 2.0])]
    for most in (1, 2, 3, 64):
        masses, shares = split(of_sequences, most)
        assert len(masses) == min(most, 6) and masses[0] == 9.0
        for d in (-0.3, 0.2):
            bound = sum(np.exp(mass * d) * np.concatenate(some) for mass, some in zip(masses, shares))
            if most > 1 or d > 0:
                assert (bound >= np.exp(d * np.concatenate(of_sequences)) - 1e-12).all()


def test_solve_finds_the_root_of_each_weight():
    rng = np.random.default_rng(0)
    expected, masses = rng.exponential(size=(3, 200)), np.array([9.0, 4.0, 0.5])
    expected[:, :20], expected[0, 20:40] = 0.0, 0.0
    pull = -rng.exponential(size=200) * 10.0 ** rng.integers(-6, 6, size=200)
    for slope in (0.2, rng.uniform(0.01, 9.0, size=200)):
        d = solve(expected, masses, pull, slope)
        terms = expected * np.exp(np.minimum(masses[:, np.newaxis] * d, 700.0))
        assert_allclose(terms.sum(axis=0) + pull + slope * d, 0.0, atol=1e-9 * np.abs(pull).max())


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
@each_scaling
def test_iterative_scaling_refuses_negative_values_and_partial_annotation(component, make):
    _, pipe, examples = make_pipe(LogLikelihood(), component, partial=True)
    with pytest.raises(ValueError, match=r"CRF347.*not annotated completely"):
        make().step(objectives(pipe, examples)[0], key=component)
    nlp = spacy.blank("en")
    features = {
        "@misc": "spacy_crf.features.v1",
        "templates": ["lower[0]", "word:size[0]"],
        "functions": {"size": {"@misc": "test_classic.below_zero"}},
    }
    nlp.add_pipe("crf_ner", config={"model": {"emissions": {"features": features}}})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples, sgd=make())
    with pytest.raises(
        ValueError, match=r"CRF347: \w+ can't train the features of 'crf_ner': there are negative values, such as -5"
    ):
        nlp.update(examples, sgd=make())


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("loss", [LogLikelihood(), SoftmaxMargin()])
def test_variances_are_close_to_the_second_derivatives(component, loss):
    _, pipe, examples = make_pipe(LogLikelihood(), component)
    objective, _ = objectives(pipe, examples)
    weights = np.random.default_rng(0).normal(scale=0.3, size=len(objective.weights()))
    value, found = objective.evaluate_loss(weights, loss=Variances())
    rows = 1e-4 * np.eye(len(weights))
    near = [objective.evaluate(weights + row)[1] - objective.evaluate(weights - row)[1] for row in rows]
    exact = np.diag(near) / 2e-4
    assert np.isfinite(value) and (found >= 0).all()
    assert np.corrcoef(found, exact)[0, 1] > 0.85


@pytest.mark.parametrize("loss", [Variances(), Curvature()])
@pytest.mark.parametrize("structure", PIPES)
def test_a_text_of_weight_2_varies_as_the_text_twice(structure, loss):
    """Probabilities were multiplied by the weight of the text before they were squared: trees took other steps."""
    component, config, read = PIPES[structure]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(component, config=config)
    first, *rest = read(nlp)
    nlp.initialize(lambda: [first, *rest])
    objective, _ = objectives(pipe, [first, first, *rest])
    weights = np.random.default_rng(0).normal(scale=0.3, size=len(objective.weights()))
    _, twice = objective.evaluate_loss(weights, loss=loss)
    first.reference._.crf_weight = 2.0
    weighted, _ = objectives(pipe, [first, *rest])
    assert_allclose(weighted.evaluate_loss(weights, loss=loss)[1], twice, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("planes", [4, 100])
def test_cutting_planes_close_the_gap_at_the_minimum_of_the_enumeration(component, planes):
    _, pipe, examples, sequences = make_corpus(component)
    objective, _ = objectives(pipe, examples)
    optimizer = CuttingPlane(l2=0.2, gap_tolerance=1e-4 if planes > 4 else 0.02, planes=planes)
    bounds = []
    while optimizer.stop_reason("crf") is None:
        value = optimizer.step(objective, key="crf")
        run = optimizer._runs["crf"]
        assert value == pytest.approx(primal_at(sequences, run.weights))
        assert len(run.memory.slopes) <= planes
        bounds.append(run.memory.bound)
    assert_allclose(objective.weights(), run.weights, rtol=1e-6)
    assert (np.diff(bounds) > -1e-9).all()
    if planes > 4:
        frank_wolfe = FrankWolfe(l2=0.2, gap_tolerance=0.01, epochs_per_step=500)
        _, online = objectives(pipe, examples)
        online.assign(np.zeros(len(run.weights)))
        other = frank_wolfe.step(online, key="crf")
        assert bounds[-1] <= other and other - frank_wolfe.duality_gap("crf") <= value


def test_cutting_planes_resume_as_if_never_interrupted():
    pipes = [make_pipe(MaxMargin()) for _ in range(2)]
    steady, moved = (objectives(pipe, examples)[0] for _, pipe, examples in pipes)
    make = partial(CuttingPlane, l2=L2, iterations_per_step=3, planes=5)
    one, other = make(), make()
    for _ in range(6):
        assert one.step(steady, key="crf") == other.step(moved, key="crf")
        other = make().from_bytes(other.to_bytes())
    assert one.to_bytes() == other.to_bytes()


def test_cutting_planes_need_complete_annotation_in_this_process(tmp_path, monkeypatch):
    _, pipe, examples = make_pipe(MaxMargin(), partial=True)
    with pytest.raises(ValueError, match=r"CRF347: CuttingPlane can't train 'crf': some sequences are not annotated"):
        CuttingPlane().step(objectives(pipe, examples)[0], key="crf")
    by(monkeypatch, Here(1))
    loss = {"@losses": "spacy_crf.MaxMargin.v1"}
    nlp, sgd = make_shards(tmp_path, {"@optimizers": "spacy_crf_lab.CuttingPlane.v1"}, loss=loss)
    with pytest.raises(ValueError, match=r"CRF347.*shards"):
        trained(nlp, sgd)


@pytest.mark.parametrize("n,rank", [(1, 1), (5, 2), (30, 4), (30, 40)])
def test_mixture_is_the_maximum_over_the_simplex(n, rank):
    rng = np.random.default_rng(n + rank)
    slopes, offsets = rng.normal(size=(n, rank)), rng.normal(size=n)
    slopes[n // 2 :], offsets[n // 2 :] = slopes[: n - n // 2], offsets[: n - n // 2]  # each twice
    x = mixture(slopes @ slopes.T, offsets, np.ones(n))
    assert x.min() >= 0 and x.sum() == pytest.approx(1.0)
    gradient = offsets - slopes @ (slopes.T @ x)
    assert gradient.max() == pytest.approx(gradient @ x, abs=1e-7)  # no vertex is better: the maximum


def test_smo_keeps_a_flow_and_closes_the_gap_that_frank_wolfe_leaves():
    nlp, pipe, examples, sequences = make_corpus("crf_ner")
    optimizer = SMO(l2=0.2, gap_tolerance=1e-8, epochs_per_step=10)
    duals = []
    while optimizer.stop_reason("crf_ner") is None:
        value = nlp.update(examples, sgd=optimizer)["crf_ner"]
        _, online = objectives(pipe, examples)
        corpus, run = online.corpus, optimizer._runs["crf_ner"]
        weights = run.slots[corpus.slot_of_weight]
        assert value == pytest.approx(primal_at(sequences, weights))
        duals.append(value - optimizer.duality_gap("crf_ner"))
        counts, arcs, masses = (run.arrays[name] for name in ("counts", "arcs", "masses"))
        used = np.zeros(len(weights))
        for b, sequence in enumerate(sequences):
            begin, end = corpus.starts[b : b + 2]
            if sequence.weight == 0.0:
                continue
            steps = np.zeros((end - begin, corpus.n_states, corpus.n_states))
            for t in range(begin, end):
                some = arcs[t, : counts[t]]
                steps[t - begin, some // corpus.n_states, some % corpus.n_states] = masses[t, : counts[t]]
            assert_allclose(steps.sum(axis=(1, 2)), sequence.weight)
            assert_allclose(steps[1:].sum(axis=2), steps[:-1].sum(axis=1), atol=1e-9)
            # A labelling with its probability as a Markov chain
            for labelling, difference in zip(sequence.labellings, sequence.differences):
                mass = steps[0, 0, labelling[0]]
                for t, (i, j) in enumerate(pairwise(labelling), 1):
                    mass *= steps[t, i, j] / steps[t, i].sum() if steps[t, i, j] else 0.0
                used += mass * difference
        assert_allclose(weights, -used / 0.4, atol=1e-8)
    assert (np.diff(duals) > -1e-9).all()
    assert 0 <= optimizer.duality_gap("crf_ner") <= 1e-8 * value
    frank_wolfe = FrankWolfe(l2=0.2, gap_tolerance=1e-8, epochs_per_step=10 * len(duals))
    nlp, _, examples, _ = make_corpus("crf_ner")
    value = nlp.update(examples, sgd=frank_wolfe)["crf_ner"]
    assert frank_wolfe.duality_gap("crf_ner") > 1e-5 * value


def test_smo_makes_room_for_more_arcs(monkeypatch):
    found = []
    for room in (1, 40):
        monkeypatch.setattr("spacy_crf_lab.smo._ROOM", room)
        nlp, _, examples = make_pipe(MaxMargin())
        optimizer = SMO(l2=L2, epochs_per_step=3)
        found.append([nlp.update(examples, sgd=optimizer)["crf_ner"] for _ in range(3)])
    assert found[0] == found[1]


def test_smo_resumes_as_if_never_interrupted():
    (one_nlp, _, examples), (other_nlp, _, others) = (make_pipe(MaxMargin()) for _ in range(2))
    one, other = SMO(l2=L2), SMO(l2=L2)
    for _ in range(4):
        assert one_nlp.update(examples, sgd=one) == other_nlp.update(others, sgd=other)
        other = SMO(l2=L2).from_bytes(other.to_bytes())
    assert one.to_bytes() == other.to_bytes()


def test_smo_trains_complete_linear_chains():
    nlp, _, examples = make_pipe(MaxMargin(), partial=True)
    with pytest.raises(ValueError, match=r"CRF347.*not annotated completely"):
        nlp.update(examples, sgd=SMO())
    nlp, _, examples = make_pipe(MaxMargin(), "semicrf_ner")
    with pytest.raises(ValueError, match=r"CRF347.*made for linear chains. Take FrankWolfe"):
        nlp.update(examples, sgd=SMO())


def test_perceptron_makes_no_more_updates_than_novikoffs_bound():
    """Collins 2002, theorem 1: at most (R / margin)² updates, in any order, if some weights separate all with this margin."""
    _, pipe, examples = make_pipe(Perceptron())
    sequences = read_sequences(pipe, examples[1:], np.zeros((len(pipe.tags()),) * 2))
    _, online = objectives(pipe, examples[1:])
    corpus, most, margins = online.corpus, 0, []
    wrong = np.concatenate([each.differences for each in sequences])
    wrong = wrong[wrong.any(axis=1)]
    radius = np.linalg.norm(wrong, axis=1).max()
    for seed in range(5):
        slots = np.where(np.isin(np.arange(len(corpus.learned)), corpus.forbidden), -np.inf, 0.0)
        updates, before = 0, -1
        while updates > before:  # until a pass makes no mistake
            before = updates
            for b in np.random.default_rng(seed).permutation(len(sequences)):
                old = slots.copy()
                walk(kernels.PERCEPTRON, corpus, np.array([b]), slots, 1.0, memory=np.zeros(len(slots)))
                updates += not np.array_equal(old, slots)
        weights = slots[corpus.slot_of_weight]
        margins.append(-(wrong @ weights).max() / np.linalg.norm(weights))
        most = max(most, updates)
    assert max(margins) > 0.0
    assert 0 < most <= (radius / max(margins)) ** 2


def test_mixed_needs_a_preconditioner():
    with pytest.raises(ValueError, match="CRF020: ConjugateGradient: mixed = True"):
        ConjugateGradient(mixed=True)
    with pytest.raises(ValueError, match="CRF020: ConjugateGradient: preconditioner = 'full'"):
        ConjugateGradient(preconditioner="full")


def test_shards_have_no_preconditioner(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    optimizer = {"@optimizers": "spacy_crf_lab.ConjugateGradient.v1", "preconditioner": "diagonal"}
    nlp, sgd = make_shards(tmp_path, optimizer)
    with pytest.raises(ValueError, match=r"CRF347: ConjugateGradient can't train the shards of 'crf_ner'"):
        trained(nlp, sgd)
    optimizer = {"@optimizers": "spacy_crf_lab.Newton.v1"}  # it does without
    trained(*make_shards(tmp_path, optimizer), steps=1)


@pytest.mark.parametrize("make", [GIS, IIS, Newton, ConjugateGradient])
def test_training_that_goes_on_ends_where_lbfgs_ends(make):
    """The objective is one of distances from the earlier weights, and its cost of these is not part of the loss."""
    values = []
    for goes_on in (partial(LBFGS, delta=1e-7), partial(make, delta=1e-7)):
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={**FEW, "optimizer": None})
        examples = ner_examples(nlp)
        nlp.initialize(lambda examples=examples: examples[:4], sgd=LBFGS(l2=L2))
        nlp.update(examples[:4], sgd=LBFGS(l2=L2, iterations_per_step=30))
        sgd = nlp.resume_training(sgd=goes_on(l2=3.0, iterations_per_step=3000))
        values.append(nlp.update(examples[3:], sgd=sgd)["crf_ner"])
        assert sgd.stop_reason("crf_ner") is not None
    assert values[1] == pytest.approx(values[0], rel=1e-5)
