"""Batch optimizers: OPTIMIZERS × PROBLEMS, with closed forms, textbook loops and scipy as oracles."""

import itertools
import logging
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from spacy.schemas import ConfigSchemaTraining
from spacy.util import registry
from thinc.api import Config, Optimizer

from spacy_crf.optimizers.batch import BLOCK, Position, add_scaled, dot, norm
from spacy_crf.optimizers.lbfgs import GROWTH, LBFGS, CurvaturePairs
from spacy_crf.optimizers.line_search import SUFFICIENT_DECREASE, RayPoint, backtracking, strong_wolfe
from spacy_crf.optimizers.perceptron import AROW
from spacy_crf.optimizers.sgd import SGD

EXACT = {"l2": 0.0, "tolerance": 1e-9, "delta": 0.0, "iterations_per_step": 5000}


class Function:
    """An objective made of a function from weights to (value, gradient)."""

    def __init__(self, function, start, signature=("data", 1), dtype=np.float64):
        self.function = function
        self.model = np.asarray(start, dtype=dtype)
        self.signature = signature
        self.evaluations = 0

    def weights(self):
        return self.model.astype(np.float64)

    def evaluate(self, weights):
        self.evaluations += 1
        value, gradient = self.function(weights)
        return float(value), np.array(gradient, dtype=np.float64)

    def evaluate_loss(self, weights, *, loss):
        """The diagonal of the second derivatives, or for many weights something else that is positive."""
        if len(weights) > 100:
            return 0.0, 1.0 + np.arange(len(weights)) % 3
        steps = 1e-4 * np.eye(len(weights))
        pairs = [[self.function(weights + sign * step)[1] for sign in (1, -1)] for step in steps]
        return 0.0, np.array([(up - down)[n] / 2e-4 for n, (up, down) in enumerate(pairs)])

    def assign(self, weights):
        self.model = weights.astype(self.model.dtype)


def quadratic(n=20, condition=100.0):
    """½ w·A·w − b·w with a random symmetric A of the given condition."""
    rng = np.random.default_rng(n)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    matrix = basis * np.geomspace(1.0, condition, n) @ basis.T
    b = rng.normal(size=n)
    return lambda w: (0.5 * w @ matrix @ w - b @ w, matrix @ w - b)


def rosenbrock(w):
    x, y = w[:-1], w[1:]
    gradient = np.zeros_like(w)
    gradient[:-1] = -400.0 * x * (y - x**2) - 2.0 * (1.0 - x)
    gradient[1:] += 200.0 * (y - x**2)
    return np.sum(100.0 * (y - x**2) ** 2 + (1.0 - x) ** 2), gradient


def logistic(n=30, examples=120):
    """Logistic regression on features of very different scale."""
    rng = np.random.default_rng(n)
    features = rng.normal(size=(examples, n)) * np.geomspace(1.0, 0.1, n)
    side = rng.choice([-1.0, 1.0], size=examples)

    def function(w):
        margin = side * (features @ w)
        return np.logaddexp(0.0, -margin).sum(), -features.T @ (side / (1.0 + np.exp(margin)))

    return function


def enumerated_crf(tokens=4, states=3, symbols=5, sentences=12):
    """Log-likelihood of a linear chain by scoring every path; w is emissions [symbols, states], then transitions."""
    rng = np.random.default_rng(0)
    paths = list(itertools.product(range(states), repeat=tokens))
    counts, gold = [], []
    for _ in range(sentences):
        words = rng.integers(symbols, size=tokens)
        table = np.zeros((len(paths), symbols * states + states * states))
        for row, path in zip(table, paths):
            for word, state in zip(words, path):
                row[word * states + state] += 1.0
            for i, j in itertools.pairwise(path):
                row[symbols * states + i * states + j] += 1.0
        counts.append(table)
        gold.append(table[rng.integers(len(paths))])

    def function(w):
        value, gradient = 0.0, np.zeros_like(w)
        for table, own in zip(counts, gold):
            scores = table @ w
            log_z = scores.max() + np.log(np.exp(scores - scores.max()).sum())
            value += log_z - own @ w
            gradient += np.exp(scores - log_z) @ table - own
        return value, gradient

    return function


PROBLEMS = {  # function, start, l2 that gives it one minimum
    "quadratic": (quadratic(), np.zeros(20), 0.0),
    "ill-conditioned quadratic": (quadratic(condition=1e4), np.ones(20), 0.0),
    "rosenbrock": (rosenbrock, np.array([-1.2, 1.0]), 0.0),
    "rosenbrock 20": (rosenbrock, np.tile([-1.2, 1.0], 10), 0.0),
    "logistic": (logistic(), np.zeros(30), 0.05),
    "crf": (enumerated_crf(), np.zeros(24), 0.3),
}
OPTIMIZERS = {
    "L-BFGS": LBFGS,
    "L-BFGS, memory 1": partial(LBFGS, memory=1),
    "OWL-QN": partial(LBFGS, l1=0.2),
}
SMOOTH = {name: make for name, make in OPTIMIZERS.items() if name != "OWL-QN"}


def each(table):
    return pytest.mark.parametrize("make", table.values(), ids=table.keys())


each_problem = pytest.mark.parametrize("function,start,l2", PROBLEMS.values(), ids=PROBLEMS.keys())


def penalised(function, l2, l1=0.0):
    def total(w):
        value, gradient = function(w)
        return value + l2 * w @ w + l1 * np.abs(w).sum(), gradient + 2.0 * l2 * w

    return total


# What they find


@each(SMOOTH)
@each_problem
def test_finds_the_minimum_scipy_finds(make, function, start, l2):
    optimize = pytest.importorskip("scipy.optimize")
    options = {"maxcor": 20, "ftol": 0.0, "gtol": 1e-10, "maxiter": 10000, "maxfun": 20000}
    expected = optimize.minimize(penalised(function, l2), start, jac=True, method="L-BFGS-B", options=options)
    objective = Function(function, start)
    value = make(**{**EXACT, "l2": l2}).step(objective, key="crf")
    if len(start) == 20 and function is rosenbrock:  # which has a second minimum
        expected = optimize.minimize(function, objective.model, jac=True, method="L-BFGS-B", options=options)
    assert_allclose(value, expected.fun, rtol=1e-9, atol=1e-12)
    assert_allclose(objective.model, expected.x, rtol=1e-4, atol=1e-5)


@each(SMOOTH)
def test_solves_a_linear_system(make):
    function, start, _ = PROBLEMS["quadratic"]
    hessian = np.stack([function(row)[1] - function(start)[1] for row in np.eye(len(start))])
    objective = Function(function, start)
    make(**EXACT).step(objective, key="crf")
    assert_allclose(objective.model, np.linalg.solve(hessian, -function(start)[1]), atol=1e-7)


@each(SMOOTH)
def test_l2_multiplies_the_square_without_a_half(make):
    objective = Function(lambda w: (np.sum((w - 1.0) ** 2), 2.0 * (w - 1.0)), np.zeros(3))
    value = make(**{**EXACT, "l2": 3.0}).step(objective, key="crf")
    assert_allclose(objective.model, 1.0 / 4.0, atol=1e-9)  # argmin of (w - 1)² + 3 w²
    assert_allclose(value, 3 * (0.75**2 + 3.0 * 0.25**2))


@pytest.mark.parametrize("l1", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("problem", ["quadratic", "logistic", "crf"])
def test_owl_qn_finds_what_proximal_gradient_finds(problem, l1):
    function, start, _ = PROBLEMS[problem]
    l2 = 0.05
    smooth = penalised(function, l2)
    rate = 1.0 / np.linalg.norm(np.stack([smooth(row)[1] - smooth(0 * row)[1] for row in np.eye(len(start))]), 2) / 4.0
    expected = start.copy()
    for _ in range(6000):
        moved = expected - rate * smooth(expected)[1]
        before, expected = expected, np.sign(moved) * np.maximum(np.abs(moved) - rate * l1, 0.0)
        if np.abs(expected - before).max() < 1e-12:
            break
    objective = Function(function, start)
    value = LBFGS(**{**EXACT, "l1": l1, "l2": l2}).step(objective, key="crf")
    assert_allclose(value, penalised(function, l2, l1)(expected)[0], rtol=1e-9)
    assert_allclose(objective.model, expected, atol=1e-5)
    assert_array_equal(objective.model == 0, expected == 0)  # zeros are exact


def test_owl_qn_leaves_all_weights_at_zero_under_a_heavy_l1():
    function, start, _ = PROBLEMS["crf"]
    optimizer = LBFGS(l1=1.0 + np.abs(function(start)[1]).max())
    objective = Function(function, start)
    optimizer.step(objective, key="crf")
    assert not objective.model.any()
    assert "gradient" in optimizer.stop_reason("crf")


@pytest.mark.parametrize("frequencies", [None, np.arange(8.0)])
def test_two_loop_recursion_is_the_bfgs_matrix(frequencies):
    # Nocedal & Wright, eq. 7.16 and 7.20: H <- V' H V + rho s s' with V = I - rho y s'
    rng = np.random.default_rng(3)
    memory, reach = CurvaturePairs(4), np.eye(8)
    if frequencies is not None:
        memory.prepare(SimpleNamespace(frequencies=frequencies), "crf")
        reach = np.diag((1 + frequencies) ** -0.3)
        assert_allclose(memory.propose(np.ones(8))[0], -np.diag(reach))
    matrix = np.diag(rng.uniform(1.0, 9.0, size=8))
    before = Position(np.zeros(8), 0.0, np.zeros(8))
    pairs = []
    for _ in range(6):
        weights = rng.normal(size=8)
        after = Position(weights, 0.0, matrix @ weights)
        memory.learn(before, after, 1.0)
        pairs.append((after.weights - before.weights, after.gradient - before.gradient))
        before = after
    s, y = pairs[-1]
    inverse = reach * (s @ y) / (y @ reach @ y)
    for s, y in pairs[-4:]:
        v = np.eye(8) - np.outer(y, s) / (s @ y)
        inverse = v.T @ inverse @ v + np.outer(s, s) / (s @ y)
    gradient = rng.normal(size=8)
    direction, step = memory.propose(gradient)
    assert_allclose(direction, -inverse @ gradient)
    assert step == 1.0


@pytest.mark.parametrize("l1", [0.0, 0.01])
def test_frequencies_save_iterations(l1):
    """Features of very different frequency, as words are."""
    rng = np.random.default_rng(0)
    chances = np.geomspace(0.9, 0.005, 60)
    data, truth = (rng.random((600, 60)) < chances).astype(float), rng.normal(size=60)
    answers = np.sign(data @ truth + rng.normal(size=600))

    def logistic(weights):
        margins = answers * (data @ weights)
        return np.logaddexp(0, -margins).sum(), -data.T @ (answers / (1 + np.exp(margins)))

    def iterations(frequencies, goal):
        objective, values = Function(logistic, np.zeros(60)), []
        objective.frequencies = frequencies
        optimizer = LBFGS(l1=l1, l2=0.01, iterations_per_step=200, tolerance=0, delta=0)
        optimizer.on_iteration = lambda progress: values.append(progress.objective)
        optimum = optimizer.step(objective, key="x")
        return next((n for n, value in enumerate(values) if value <= goal * 1.001), None), optimum

    _, goal = iterations(None, 0.0)
    with_frequencies, optimum = iterations(data.sum(axis=0), goal)
    assert optimum == pytest.approx(goal, rel=1e-9)
    assert with_frequencies < iterations(None, goal)[0]


# What they cost


@each_problem
def test_lbfgs_needs_no_more_evaluations_than_scipy(function, start, l2):
    optimize = pytest.importorskip("scipy.optimize")
    options = {"maxcor": 6, "ftol": 1e-14, "gtol": 1e-9, "maxiter": 10000, "maxfun": 20000}

    def recording(values):
        def recorded(w):
            value, gradient = function(w)
            values.append(value + l2 * w @ w)
            return value, gradient

        return recorded

    ours, theirs = [], []
    total = penalised(recording(theirs), l2)
    goal = optimize.minimize(total, start, jac=True, method="L-BFGS-B", options=options).fun
    goal += 1e-7 * max(abs(goal), 1e-3)
    LBFGS(**{**EXACT, "l2": l2}).step(Function(recording(ours), start), key="crf")
    until_goal = [1 + next(n for n, value in enumerate(values) if value <= goal) for values in (ours, theirs)]
    assert until_goal[0] <= 1.1 * until_goal[1] + 1


@each(OPTIMIZERS)
def test_every_evaluation_is_accounted_for(make):
    function, start, _ = PROBLEMS["crf"]
    optimizer = make(l2=0.1, iterations_per_step=3, max_iterations=6, tolerance=0.0, delta=0.0)
    heard = []
    optimizer.on_iteration = heard.append
    objective = Function(function, start)
    while optimizer.stop_reason("crf") is None:
        optimizer.step(objective, key="crf")
    assert [progress.iteration for progress in heard] == list(range(1, 7))
    assert objective.evaluations == 1 + sum(progress.evaluations for progress in heard)
    values = [progress.objective for progress in heard]
    assert values == sorted(values, reverse=True)


def test_lbfgs_evaluates_once_an_iteration():
    function, start, _ = PROBLEMS["crf"]
    optimizer = LBFGS(l2=0.1)
    heard = []
    optimizer.on_iteration = heard.append
    optimizer.step(Function(function, start), key="crf")
    assert [progress.evaluations for progress in heard[2:]] == [1] * 8


def test_owl_qn_needs_the_evaluations_of_a_quasi_newton_method():
    # Held to the signs of steepest descent in every weight, as in the paper, it takes more than 3000.
    optimizer = LBFGS(l1=0.2, **EXACT)
    objective = Function(rosenbrock, np.tile([-1.2, 1.0], 10))
    optimizer.step(objective, key="crf")
    assert objective.evaluations < 400


def test_owl_qn_is_held_to_steepest_descent_far_from_the_minimum():
    # It takes 100 where only weights at zero are held to it.
    function, start, l2 = PROBLEMS["crf"]
    objective = Function(function, start)
    LBFGS(**{**EXACT, "l1": 0.2, "l2": l2}).step(objective, key="crf")
    assert objective.evaluations < 70


def test_owl_qn_tries_no_step_much_longer_than_the_last_move(monkeypatch):
    moves, tried = [0.0], []

    def search(phi, start, step, **settings):
        point, evaluations = backtracking(phi, start, step, **settings)
        weights = point.where.weights
        if moves[-1]:
            tried.append(norm(phi(step).where.weights - before[-1]) / moves[-1])
        moves.append(norm(weights - before[-1]))
        before.append(weights)
        return point, evaluations

    function, start, l2 = PROBLEMS["crf"]
    before = [np.array(start)]
    monkeypatch.setattr("spacy_crf.optimizers.lbfgs.backtracking", search)
    LBFGS(**{**EXACT, "l1": 0.2, "l2": l2, "max_iterations": 8}).step(Function(function, start), key="crf")
    assert len(tried) == 7
    assert max(tried) <= GROWTH + 1e-9


# Steps


@each(OPTIMIZERS)
def test_fifty_steps_of_one_iteration_are_one_step_of_fifty(make):
    settings = {"l2": 0.0, "tolerance": 0.0, "delta": 0.0}
    single, whole = (Function(rosenbrock, np.tile([-1.2, 1.0], 10)) for _ in range(2))
    optimizer = make(**settings, iterations_per_step=1)
    for done in range(50):
        assert optimizer.iterations_made("crf") == done
        value = optimizer.step(single, key="crf")
    assert value == make(**settings, iterations_per_step=50).step(whole, key="crf")
    assert_array_equal(single.model, whole.model)
    assert single.evaluations == whole.evaluations


@each(OPTIMIZERS)
@pytest.mark.parametrize("n,steps", [(10, 10), (40_000, 3)])
def test_resumes_from_bytes_as_if_never_interrupted(make, n, steps):
    # 40 000 weights: enough for numpy to add up in blocks and threads
    last = 2 * steps - 1
    make = partial(make, l2=0.0, iterations_per_step=2, tolerance=0.0, delta=0.0, max_iterations=last)
    start = np.tile([-1.2, 1.0], n // 2)
    steady, moved = (Function(rosenbrock, start, dtype=np.float32) for _ in range(2))
    one, other = make(), make()
    for _ in range(steps):
        assert one.step(steady, key="crf") == other.step(moved, key="crf")
        other = make().from_bytes(other.to_bytes())
        moved = Function(rosenbrock, moved.model, signature=moved.signature, dtype=np.float32)
        assert_array_equal(steady.model, moved.model)
        assert one.stop_reason("crf") == other.stop_reason("crf")
    assert one.stop_reason("crf") == f"max_iterations = {last} reached"
    assert one.to_bytes() == other.to_bytes()


def test_state_is_refused_by_another_optimizer_or_other_settings():
    optimizer = LBFGS(l2=0.5)
    for other in (
        LBFGS(l2=0.25),
        LBFGS(l1=0.1, l2=0.5),
        LBFGS(l2=0.5, memory=7),
    ):
        with pytest.raises(ValueError, match="CRF204"):
            other.from_bytes(optimizer.to_bytes())
    LBFGS(l2=0.5, max_iterations=3, iterations_per_step=2).from_bytes(optimizer.to_bytes())


@each(OPTIMIZERS)
def test_two_keys_do_not_disturb_each_other(make):
    tasks = {"ner": PROBLEMS["crf"], "tagger": PROBLEMS["logistic"]}

    def trained(optimizers):
        objectives = {key: Function(function, start) for key, (function, start, _) in tasks.items()}
        for _ in range(6):
            for key, objective in objectives.items():
                optimizers[key].step(objective, key=key)
        return objectives

    make = partial(make, l2=0.1, iterations_per_step=2)
    shared = make()
    together = trained({"ner": shared, "tagger": shared})
    apart = trained({"ner": make(), "tagger": make()})
    for key in tasks:
        assert_array_equal(together[key].model, apart[key].model)
        assert together[key].evaluations == apart[key].evaluations


@each(OPTIMIZERS)
@pytest.mark.parametrize("change", ["data", "weights", "layout"])
def test_starts_over_when_the_objective_is_another(make, change, caplog):
    make = partial(make, l2=0.1, iterations_per_step=3)
    function, start, _ = PROBLEMS["crf"]
    optimizer, objective = make(), Function(function, start)
    optimizer.step(objective, key="crf")
    if change == "data":
        objective.signature = ("data", 2)
    elif change == "weights":
        objective.model = objective.model + 0.5
    else:
        objective = Function(quadratic(7), np.zeros(7), signature=("data", 2))
    fresh = Function(objective.function, objective.model)
    value = make().step(fresh, key="crf")
    assert optimizer.step(objective, key="crf") == value
    assert_array_equal(objective.model, fresh.model)
    objective.signature = ("data", 3)
    optimizer.step(objective, key="crf")
    assert sum("CRFW201" in record.message for record in caplog.records) == 1


@each(OPTIMIZERS)
def test_a_model_that_rounds_to_float32_does_not_hold_it_up(make):
    function, start, _ = PROBLEMS["crf"]
    make = partial(make, l2=0.1, iterations_per_step=1, tolerance=1e-9, delta=0.0)
    exact, rounded = Function(function, start), Function(function, start, dtype=np.float32)
    one, other = make(), make()
    for _ in range(30):
        assert one.step(exact, key="crf") == other.step(rounded, key="crf")
    assert_array_equal(exact.model.astype(np.float32), rounded.model)


@each(OPTIMIZERS)
def test_an_objective_that_is_only_as_exact_as_float32_comes_to_an_end(make):
    function, start, _ = PROBLEMS["crf"]

    def coarse(w):
        value, gradient = function(w.astype(np.float32).astype(np.float64))
        return np.float32(value), gradient.astype(np.float32)

    optimizer = make(**{**EXACT, "l2": 0.1})
    objective, exact = Function(coarse, start), Function(function, start)
    value = optimizer.step(objective, key="crf")
    assert optimizer.stop_reason("crf") is not None
    assert objective.evaluations < 1000
    assert_allclose(value, make(**{**EXACT, "l2": 0.1}).step(exact, key="crf"), rtol=1e-5)


# What can go wrong


@each(OPTIMIZERS)
@pytest.mark.parametrize("wall", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["value", "gradient"])
def test_backs_off_from_where_the_objective_is_not_finite(make, wall, where):
    def barrier(w):
        # Σ w − 0.01·log w: the minimum at 0.01, near the wall at 0, is overrun by the first steps
        with np.errstate(invalid="ignore", divide="ignore"):
            value, gradient = np.sum(w - 0.01 * np.log(w)), 1.0 - 0.01 / w
        if (w <= 0).any():
            value, gradient = (wall, gradient) if where == "value" else (-1e9, np.full_like(w, wall))
        return value, gradient

    optimizer = make(**EXACT)
    objective = Function(barrier, np.array([3.0, 1.0, 0.5]))
    optimizer.step(objective, key="crf")
    l1 = getattr(optimizer, "l1", 0.0)
    assert_allclose(objective.model, 0.01 / (1.0 + l1), rtol=1e-5)


@each(OPTIMIZERS)
@pytest.mark.parametrize("value,slope", [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_an_objective_not_finite_at_the_start_is_an_error(make, value, slope):
    optimizer = make()
    objective = Function(lambda w: (value, np.full_like(w, slope)), np.arange(3.0))
    with pytest.raises(ValueError, match=r"CRF203.*'crf'"):
        optimizer.step(objective, key="crf")
    assert_array_equal(objective.model, np.arange(3.0))
    objective.function = quadratic(3)  # repaired, it goes on
    optimizer.step(objective, key="crf")


@each(OPTIMIZERS)
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("evaluation", [2, 3, 7, 12])
def test_the_best_weights_survive_an_interruption(make, interruption, evaluation):
    function, start, _ = PROBLEMS["rosenbrock 20"]
    best, pending = [math.inf], [interruption]

    def interrupted(w):
        if objective.evaluations == evaluation and pending:
            raise pending.pop()
        value, gradient = function(w)
        return value, gradient

    objective = Function(interrupted, start)
    optimizer = make(**EXACT)
    optimizer.on_iteration = lambda progress: best.append(progress.objective)
    with pytest.raises(interruption):
        optimizer.step(objective, key="crf")
    l1 = getattr(optimizer, "l1", 0.0)
    at_start = penalised(function, 0.0, l1)(start)[0]
    assert penalised(function, 0.0, l1)(objective.model)[0] == min([at_start, *best])
    value = optimizer.step(objective, key="crf")  # carries on with what it has learned
    assert_allclose(value, make(**EXACT).step(Function(function, start), key="crf"), rtol=1e-6, atol=1e-9)


@each(OPTIMIZERS)
def test_a_wrong_gradient_ends_in_a_failed_line_search(make):
    objective = Function(lambda w: (w @ w, -2.0 * w), np.ones(3))
    optimizer = make(l2=0.0, max_line_search=7)
    optimizer.step(objective, key="crf")
    assert "line search" in optimizer.stop_reason("crf")
    assert objective.evaluations == 1 + 7
    assert_array_equal(objective.model, np.ones(3))


def test_a_failed_line_search_first_tries_steepest_descent():
    function, start, _ = PROBLEMS["quadratic"]
    objective = Function(function, start)
    optimizer = LBFGS(**{**EXACT, "iterations_per_step": 5, "max_line_search": 4})
    optimizer.step(objective, key="crf")
    failing = range(objective.evaluations + 1, objective.evaluations + 5)
    objective.function = lambda w: (math.inf, w) if objective.evaluations in failing else function(w)
    optimizer.on_iteration = lambda progress: heard.append(progress)
    heard = []
    optimizer.step(objective, key="crf")
    assert heard[0].evaluations > 4
    assert len(heard) == 5
    assert optimizer.stop_reason("crf") is None


BAD_SETTINGS = [
    *itertools.product([LBFGS], ["l1"], [-1.0, math.nan, math.inf, "1"]),
    *itertools.product([LBFGS], ["memory"], [0, -3, 2.5]),
    *itertools.product([LBFGS], ["l2", "tolerance", "delta"], [-0.5, math.nan, math.inf, None]),
    *itertools.product([LBFGS], ["iterations_per_step", "period", "max_iterations", "max_line_search"], [0, -1, 1.5]),
]


@pytest.mark.parametrize("make,name,value", BAD_SETTINGS)
def test_impossible_settings_are_refused(make, name, value):
    with pytest.raises(ValueError, match=f"CRF020: {make.__name__}: {name} = {value!r}"):
        make(**{name: value})


@each(OPTIMIZERS)
def test_a_component_without_an_objective_is_told_what_to_do(make):
    with pytest.raises(ValueError, match=r"CRF202.*\(7, 'W'\).*components\.NAME\.optimizer"):
        make()((7, "W"), np.zeros(3, dtype="f"), np.zeros(3, dtype="f"))


# When they stop


STOPS = {
    "tolerance": ({"tolerance": 1e-3, "delta": 0.0}, "the gradient norm"),
    "delta": ({"tolerance": 0.0, "delta": 1e-3, "period": 4}, "the last 4 iterations"),
    "max_iterations": ({"tolerance": 0.0, "delta": 0.0, "max_iterations": 7}, "max_iterations = 7"),
}


@each(OPTIMIZERS)
@pytest.mark.parametrize("settings,reason", STOPS.values(), ids=STOPS.keys())
def test_says_once_why_it_stopped(make, settings, reason, caplog):
    function, start, _ = PROBLEMS["crf"]
    optimizer = make(**settings, l2=0.1, iterations_per_step=4)
    objective = Function(function, start)
    values = [optimizer.step(objective, key="my_crf") for _ in range(60)]
    assert reason in optimizer.stop_reason("my_crf")
    lines = [record for record in caplog.records if "stopped" in record.message]
    assert len(lines) == 1 and lines[0].levelno == logging.INFO
    assert "my_crf" in lines[0].message and optimizer.stop_reason("my_crf") in lines[0].message
    assert values[-1] == values[-2] == min(values)
    evaluations = objective.evaluations
    assert optimizer.step(objective, key="my_crf") == values[-1]
    assert objective.evaluations == evaluations


@each(OPTIMIZERS)
def test_stop_rules_hold_where_they_say(make):
    function, start, _ = PROBLEMS["crf"]
    optimizer = make(tolerance=0.0, delta=1e-3, period=4, l2=0.1, iterations_per_step=100)
    values = [penalised(function, 0.1)(start)[0]]
    optimizer.on_iteration = lambda progress: values.append(progress.objective)
    optimizer.step(Function(function, start), key="crf")
    improved = [(old - new) / new for old, new in zip(values, values[4:])]
    assert improved[-1] <= 1e-3 < min(improved[:-1])


def test_spacy_shows_the_stop_reason_to_someone_who_set_no_log_level():
    # `spacy train` leaves the "spacy" logger as it is; only its handler decides where lines go.
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.levelno, record.getMessage()))
    spacy_logger = logging.getLogger("spacy")
    assert spacy_logger.getEffectiveLevel() > logging.INFO
    spacy_logger.addHandler(handler)
    try:
        LBFGS(iterations_per_step=100).step(Function(quadratic(5), np.zeros(5)), key="crf_ner")
    finally:
        spacy_logger.removeHandler(handler)
    assert [level for level, _ in lines] == [logging.INFO]  # and no line per iteration
    assert lines[0][1].startswith("crf_ner: LBFGS stopped after")


def test_each_iteration_is_logged_for_developers(caplog):
    caplog.set_level(logging.DEBUG, logger="spacy.spacy_crf")
    LBFGS(l2=0.1, max_iterations=3).step(Function(*PROBLEMS["crf"][:2]), key="crf")
    lines = [record.message for record in caplog.records if record.levelno == logging.DEBUG]
    assert [line.split(" objective")[0] for line in lines] == [f"crf: iteration {i}" for i in (1, 2, 3)]


@each(OPTIMIZERS)
@pytest.mark.parametrize("start", [np.zeros(0), np.zeros(4)], ids=["no weights", "at the minimum"])
def test_nothing_to_do(make, start):
    optimizer = make()
    objective = Function(lambda w: (w @ w, 2.0 * w), start)
    assert optimizer.step(objective, key="crf") == 0.0
    assert objective.evaluations == 1
    assert optimizer.stop_reason("crf") is not None


# In spaCy


@pytest.mark.parametrize("make", [LBFGS])
def test_the_training_config_accepts_it(make):
    name = f"spacy_crf_test.{make.__name__}.v1"
    registry.optimizers(name, func=make)
    config = Config({"optimizer": {"@optimizers": name, "l2": 2, "max_iterations": None}})
    optimizer = registry.resolve(config)["optimizer"]
    field = ConfigSchemaTraining.model_fields["optimizer"]
    assert field.annotation is Optimizer and isinstance(optimizer, Optimizer)
    assert optimizer.averages is None
    optimizer.step_schedules()
    assert optimizer.learn_rate == 1.0


# The line searches


waves = st.tuples(st.floats(0.0, 2.0), st.floats(0.1, 8.0), st.floats(0.0, 6.3))  # height, frequency, phase


@given(
    bowl=st.floats(1e-3, 1e3),
    drift=st.floats(-10.0, 10.0),
    waves=st.lists(waves, max_size=3),
    first=st.floats(1e-4, 1e4),
    curvature=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_the_step_satisfies_the_strong_wolfe_conditions(bowl, drift, waves, first, curvature):
    def phi(a):
        value = 0.5 * bowl * a * a - drift * a + sum(h * math.sin(f * a + p) for h, f, p in waves)
        return RayPoint(a, value, bowl * a - drift + sum(h * f * math.cos(f * a + p) for h, f, p in waves))

    start = phi(0.0)
    assume(start.slope < -1e-3)
    point, evaluations = strong_wolfe(phi, start, first, curvature=curvature, max_evaluations=100)
    assert point == phi(point.step)
    assert point.value <= start.value + SUFFICIENT_DECREASE * point.step * start.slope
    assert abs(point.slope) <= curvature * abs(start.slope)
    assert evaluations <= 60


def test_a_search_out_of_evaluations_returns_the_lowest_point():
    tried = []

    def phi(a):
        tried.append(RayPoint(a, -math.log1p(a), -1.0 / (1.0 + a), where=f"at {a}"))  # ever falling
        return tried[-1]

    point, evaluations = strong_wolfe(phi, RayPoint(0.0, 0.0, -1.0), 1e-6, curvature=0.01, max_evaluations=3)
    assert evaluations == len(tried) == 3
    assert point == min(tried, key=lambda point: point.value)


@pytest.mark.parametrize("search", [partial(strong_wolfe, curvature=0.5), backtracking])
def test_a_search_finds_nothing_on_a_rise(search):
    point, evaluations = search(lambda a: RayPoint(a, a, -1.0), RayPoint(0.0, 0.0, -1.0), 1.0, max_evaluations=9)
    assert (point, evaluations) == (None, 9)


@given(edge=st.floats(1e-6, 10.0), first=st.floats(1e-3, 100.0))
def test_searches_back_off_from_infinity(edge, first):
    def phi(a):
        return RayPoint(a, math.inf, math.nan) if a >= edge else RayPoint(a, -a, -1.0)

    for search in (partial(strong_wolfe, curvature=0.5), backtracking):
        point, _ = search(phi, RayPoint(0.0, 0.0, -1.0), first, max_evaluations=40)
        assert 0.0 < point.step < edge


def test_backtracking_from_far_takes_few_evaluations():
    """Halves alone take thirteen to come back from a step that is 4,000 times too long."""

    def phi(a):
        return RayPoint(a, (a / 1e-3 - 1.0) ** 2, -2e3)

    point, evaluations = backtracking(phi, RayPoint(0.0, 1.0, -2e3), 4.0, max_evaluations=20)
    assert point.value < 1.0
    assert evaluations <= 6


@pytest.mark.parametrize("n", [0, 1, BLOCK, 2 * BLOCK + 3])
def test_vectors_are_walked_to_their_end(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n))
    assert_allclose(dot(a, b), a @ b, atol=1e-9)
    assert_allclose(norm(a), math.sqrt(a @ a))
    expected = a + 2.0 * b
    add_scaled(a, 2.0, b)
    assert_array_equal(a, expected)


def test_numbers_that_overflow_are_refused_or_taken():
    with pytest.raises(ValueError, match=r"CRF020: AROW: gamma = 1e-320"):
        AROW(gamma=1e-320)
    for value in (True, "1", 10**400, 1e308):
        with pytest.raises(ValueError, match=r"CRF020: SGD: l2 = "):
            SGD(l2=value)
    assert SGD(l2=2**63).l2 == float(2**63)
