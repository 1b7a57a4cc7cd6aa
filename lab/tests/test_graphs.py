"""Chains with ties between them: every method against enumeration."""

import numpy as np
import pytest
from numba import config
from scipy.special import logsumexp
from scipy.stats import chi2

from spacy_crf import arrays
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron
from spacy_crf_lab.kernels import junction_tree as junction_tree_kernels
from spacy_crf_lab.kernels import trees as tree_kernels
from spacy_crf_lab.local_losses import BesagPseudoLikelihood, Piecewise, PseudoLikelihood, SampledLikelihood
from spacy_crf_lab.ties import belief_propagation, blocks, losses, sequences
from spacy_crf_lab.ties.belief_propagation import BeliefPropagation
from spacy_crf_lab.ties.dual_decomposition import DualDecomposition
from spacy_crf_lab.ties.gibbs import Gibbs
from spacy_crf_lab.ties.junction_tree import JunctionTree
from spacy_crf_lab.ties.losses import SentenceLikelihood
from spacy_crf_lab.ties.mean_field import MeanField
from spacy_crf_lab.ties.scores import TiedScores, Ties
from spacy_crf_lab.ties.structure import TiedChains
from tests.structures import assert_derivative, assert_scores_close
from tests.util import signatures

from .graphs import EnumeratedGraph, random_graph, random_ties

LENGTHS = ([2, 3], [1, 1, 1, 1], [3, 0, 2, 1], [4], [2, 2, 2])
PRECISE = BeliefPropagation(iterations=200, tolerance=1e-13)


REWEIGHTED = BeliefPropagation(iterations=500, damping=0.3, tolerance=1e-13, tree_reweighted=True)
MEAN_FIELD = MeanField(iterations=2000, tolerance=1e-13)


def _has_ties_inside(scores):
    ends = np.searchsorted(scores.starts, scores.ties[:2], side="right")
    return (ends[0] == ends[1]).any()


def problems(n, seed=0, **settings):
    """Random graphs, some of them with transitions by token, and some with a clamp."""
    rng = np.random.default_rng(seed)
    for number in range(n):
        lengths = LENGTHS[number % len(LENGTHS)]
        pairs = random_ties(lengths, rng, n_ties=int(rng.integers(0, 5)), tree=settings.get("tree", False))
        size, by_token = int(rng.integers(1, 4)), number % 3 == 0
        scores = random_graph(lengths, size, pairs, rng, per_position=by_token, forbidden=0.15 * (number % 2))
        yield scores, rng.random(scores.emissions.shape) < 0.8 if number % 4 == 1 else None


def test_belief_propagation_is_exact_without_cycles():
    structure = TiedChains(PRECISE)
    for scores, clamp in problems(60, tree=True):
        known = EnumeratedGraph(scores, clamp)
        log_z, expected = structure.expectations(scores, clamp=clamp)
        assert structure.log_partition(scores, clamp=clamp).sum() == pytest.approx(known.log_z, abs=1e-9)
        if known.ways:
            assert log_z.sum() == pytest.approx(known.log_z, abs=1e-9)
            assert_scores_close(expected, known.expectations())


@pytest.mark.parametrize("spread", [1.0, 40.0, 400.0])
def test_messages_of_hundreds_of_strong_ties_are_exact(spread):
    """A word with 300 ties: what they say together is beyond the numbers of a float."""
    rng, n = np.random.default_rng(18), 301
    scores = random_graph([1] * n, 3, [(0, t) for t in range(1, n)], rng, labels=3, features=1, spread=spread)
    scores = scores._replace(label_of=np.arange(3), emissions=scores.emissions + (np.arange(n) == 0)[:, np.newaxis])
    scores.ties.symmetric[:] = False
    own = scores.emissions + scores.first + scores.last
    said = logsumexp(own[1:, np.newaxis] + scores.ties.sums(scores.tables)[scores.ties.kind], axis=2)
    of_hub = own[0] + said.sum(axis=0)
    log_z, expected = TiedChains(PRECISE).expectations(scores)
    np.testing.assert_allclose(log_z.sum(), logsumexp(of_hub), rtol=1e-9)
    np.testing.assert_allclose(expected.emissions[0], np.exp(of_hub - logsumexp(of_hub)), atol=1e-8)
    np.testing.assert_allclose(expected.tables.sum(), n - 1)


@pytest.mark.parametrize("seed", range(1))
def test_junction_trees_are_exact(seed):
    """On any graph: sums, derivatives, the best labellings, samples, and chains with the same neighbours."""
    structure, random = TiedChains(JunctionTree()), 0
    for number, (scores, clamp) in enumerate(problems(200, seed=(8, seed))):
        known = EnumeratedGraph(scores, clamp)
        log_z, expected = structure.expectations(scores, clamp=clamp)
        assert structure.log_partition(scores, clamp=clamp).sum() == pytest.approx(known.log_z, abs=1e-9)
        if not known.ways:
            assert structure.n_best_of_all(scores, 2, clamp=clamp) == []
            continue
        assert log_z.sum() == pytest.approx(known.log_z, abs=1e-9)
        assert structure.bounds(scores, clamp=clamp) == pytest.approx((known.log_z, known.log_z))
        assert_scores_close(expected, known.expectations())
        path = structure.viterbi(scores, clamp=clamp)
        assert path.scores.sum() == pytest.approx(known.ways[0][0])
        assert structure.path_score(scores, path.states).sum() == pytest.approx(known.ways[0][0])
        if number % 4 == 0:
            found = structure.n_best_of_all(scores, 7, clamp=clamp)
            np.testing.assert_allclose([score for score, _ in found], [score for score, *_ in known.ways[:7]])
            assert len({tuple(states) for _, states in found}) == len(found)
            chains = structure.as_chains(scores, clamp=clamp)
            of_chains = LinearChain().marginals(chains, clamp=clamp)
            np.testing.assert_allclose(of_chains, known.marginals, atol=1e-9)
        if number % 10 == 7:
            random += _check_samples(structure, scores, clamp, known)
    assert random >= 8


def _check_samples(structure, scores, clamp, known):
    n = 3000
    drawn = structure.sample(scores, n, seed=3, clamp=clamp)
    np.testing.assert_array_equal(drawn, structure.sample(scores, n, seed=3, clamp=clamp))
    counts = {tuple(states): count for states, count in zip(*_distinct(drawn))}
    probability = {states: np.exp(score - known.log_z) for score, states, _ in known.ways}
    assert set(counts) <= set(probability)
    for states, p in probability.items():
        assert counts.get(states, 0) / n == pytest.approx(p, abs=4.5 * np.sqrt(p * (1 - p) / n) + 1e-3)
    return True


@pytest.mark.parametrize(
    "inference", [JunctionTree(), Gibbs(), MeanField()], ids=lambda inference: type(inference).__name__
)
def test_what_ties_leave_alone_is_drawn_by_itself(inference):
    """Both were drawn by the same random numbers."""
    rng, n = np.random.default_rng(0), 4000
    scores = random_graph([1, 1, 1, 1], 2, [(0, 1)], rng)
    drawn = TiedChains(inference).sample(scores, n, seed=0)
    of_two = np.corrcoef(drawn.T)[:2, 2:]
    assert abs(of_two).max() < 4.5 / np.sqrt(n)


def _distinct(drawn):
    states, counts = np.unique(drawn, axis=0, return_counts=True)
    return states.tolist(), counts.tolist()


@pytest.mark.parametrize("seed", range(1))
def test_bounds_lie_around_the_log_partition(seed):
    structure, apart = TiedChains(PRECISE), []
    for scores, clamp in problems(40, seed=(10, seed)):
        known = EnumeratedGraph(scores, clamp)
        lower, upper = structure.bounds(scores, clamp=clamp)
        if not known.ways:
            assert lower == upper == -np.inf
            continue
        assert lower - 1e-9 <= known.log_z <= upper + 1e-6
        mean_field = TiedChains(MeanField(iterations=200, tolerance=1e-10))
        assert mean_field.log_partition(scores, clamp=clamp).sum() == pytest.approx(lower, abs=1e-6)
        reweighted = TiedChains(BeliefPropagation(iterations=500, damping=0.3, tolerance=1e-9, tree_reweighted=True))
        assert reweighted.log_partition(scores, clamp=clamp).sum() == pytest.approx(upper, abs=1e-4)
        if len(scores.ties.source):
            apart.append(upper - lower)
    assert 0.0 < np.median(apart) < 2.0


def test_four_students():
    """Koller & Friedman 2009, example 4.1: a cycle of four variables with two values each, Z = 7,201,840."""
    factors = [[30, 5, 1, 10], [100, 1, 1, 100], [1, 100, 100, 1], [100, 1, 1, 100]]
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 0]], dtype=np.int32)
    scores = TiedScores(
        np.zeros((4, 2)),
        np.zeros((2, 2)),
        np.zeros(2),
        np.zeros(2),
        np.log(np.array(factors, dtype=np.float64).reshape(4, 2, 2)),
        np.arange(2),
        Ties(*edges.T.copy(), *np.arange(4, dtype=np.int32)[np.newaxis], np.arange(4, dtype=np.int32)[:, np.newaxis],
             np.zeros(4, dtype=bool)),
        np.arange(5),
    )  # fmt: skip
    structure = TiedChains(JunctionTree())
    assert np.exp(structure.log_partition(scores)).round(4).tolist()[0] == 7_201_840
    for states, probability in (((0, 0, 0, 0), 0.04), ((0, 1, 1, 0), 0.69), ((1, 0, 0, 1), 0.14)):
        score = structure.path_score(scores, np.array(states, dtype=np.int32)).sum()
        assert np.exp(score) / 7_201_840 == pytest.approx(probability, abs=0.005)


def _unlikeness(drawn, known):
    """How improbable it is that labellings (int32[N, T]) were drawn from these: a p-value (chi squared, rare ones together)."""
    counts = {tuple(states): count for states, count in zip(*_distinct(drawn))}
    assert set(counts) <= {states for _, states, _ in known.ways}
    expected = np.array([len(drawn) * np.exp(score - known.log_z) for score, *_ in known.ways])
    found = np.array([counts.get(states, 0) for _, states, _ in known.ways], dtype=np.float64)
    rare = expected < 5.0
    cells = [np.append(values[~rare], values[rare].sum()) for values in (found, expected)]
    kept = cells[1] > 0.5
    found, expected = (values[kept] for values in cells)
    return chi2.sf(((found - expected) ** 2 / expected).sum(), max(1, len(found) - 1))


@pytest.mark.parametrize("step, thinning", [("gibbs", 15), ("metropolis", 40)])
def test_walks_come_by_labellings_as_often_as_they_are_probable(step, thinning):
    """Also where a tie joins two tokens of one sequence, and where transitions depend on the token."""
    n, structure = (60 if config.DISABLE_JIT else 1200), TiedChains(Gibbs(thinning=thinning, step=step))
    asked, p_values = 0, []
    for scores, clamp in problems(16, seed=12):
        known = EnumeratedGraph(scores, clamp)
        drawn = structure.sample(scores, n, seed=1, clamp=clamp)
        if not known.ways:
            assert (drawn == -1).any()
        elif len(scores.ties.source):
            p_values.append(_unlikeness(drawn, known))
            asked += _has_ties_inside(scores)
    assert asked > 2 and len(p_values) > 7
    assert min(p_values) > 0.05 / len(p_values)


def test_what_walks_count_and_weigh_is_near_the_truth():
    structure = TiedChains(Gibbs(samples=500 if config.DISABLE_JIT else 4000))
    for number, (scores, clamp) in enumerate(problems(8, seed=13)):
        known = EnumeratedGraph(scores, clamp)
        log_z, expected = structure.expectations(scores, clamp=clamp)
        assert log_z.sum() == pytest.approx(known.log_z, abs=0.1)
        if not known.ways:
            continue
        truth = known.expectations()
        for name in ("emissions", "transitions", "first", "last", "tables"):
            np.testing.assert_allclose(
                getattr(expected, name), getattr(truth, name), atol=0.25 if config.DISABLE_JIT else 0.12, err_msg=name
            )
        of_chains = LinearChain().marginals(structure.as_chains(scores, clamp=clamp), clamp=clamp)
        tied = np.unique(scores.ties[:2])
        labels = scores.label_of[:, np.newaxis] == np.arange(2)
        np.testing.assert_allclose((of_chains @ labels)[tied], (known.marginals @ labels)[tied], atol=0.06)
        weights = np.zeros(len(log_z))
        assert not structure.expectations(scores, clamp=clamp, weights=weights)[1].emissions.any(), number


def test_marginals_are_counted_without_weighing(monkeypatch):
    """Log partitions of walks take draws of their own."""
    structure = TiedChains(Gibbs(samples=20))
    scores = random_graph([2, 2], 2, [(0, 2)], np.random.default_rng(22))
    _, expected = structure.expectations(scores)
    monkeypatch.setattr(Gibbs, "log_partition", None)
    np.testing.assert_allclose(structure.marginals(scores), expected.emissions)


@pytest.mark.parametrize("annealing", [0, 50])
def test_walks_that_grow_cold_find_the_best_labelling(annealing):
    structure, exact, best = TiedChains(Gibbs(annealing=annealing)), TiedChains(JunctionTree()), []
    for scores, clamp in problems(40, seed=14, spread=2.0):
        found, known = (asked.viterbi(scores, clamp=clamp).scores.sum() for asked in (structure, exact))
        assert found <= known + 1e-9
        best.append(known == -np.inf or found >= known - 1e-9)
    assert np.mean(best) == 1.0 if annealing else np.mean(best) > 0.5


def test_one_seed_is_one_walk():
    """With any number of threads, whatever the order of the ties, and whatever is asked about beside."""
    rng = np.random.default_rng(15)
    first = random_graph([2, 3, 1], 3, [(0, 2), (1, 4), (0, 4)], rng)
    structure, other = TiedChains(Gibbs(samples=50)), TiedChains(Gibbs(samples=50, seed=1))
    alone = structure.marginals(first)
    assert abs(alone - other.marginals(first)).max() > 0.0
    backwards = {name: getattr(first.ties, name)[::-1] for name in ("source", "target", "kind")}
    turned = first._replace(ties=first.ties._replace(**backwards))
    twice = first._replace(
        emissions=np.concatenate([first.emissions] * 2),
        starts=np.append(first.starts, first.starts[1:] + 6),
        ties=first.ties._replace(
            source=np.append(first.ties.source, first.ties.source + 6),
            target=np.append(first.ties.target, first.ties.target + 6),
            kind=np.tile(first.ties.kind, 2),
        ),
    )
    for threads in (1, 2):
        of_threads = structure.with_threads(threads)
        np.testing.assert_array_equal(of_threads.marginals(turned), alone)
        np.testing.assert_array_equal(of_threads.marginals(twice), np.concatenate([alone, alone]))
    drawn = structure.sample(twice, 40, seed=2)
    np.testing.assert_array_equal(drawn, structure.with_threads(2).sample(twice, 40, seed=2))
    assert (drawn[:, :6] != drawn[:, 6:]).any()  # what is not tied is drawn independently


def test_walks_that_stay_where_they_are_are_counted():
    """Two tokens that go together in two ways, each of which is likely."""
    rng = np.random.default_rng(16)
    scores = random_graph([1, 1], 2, [(0, 1)], rng)._replace(emissions=np.zeros((2, 2)))
    for strength, unsettled in ((0.5, 0), (4.5, 1)):
        tables = np.tile(strength * np.eye(2), (3, 1, 1))
        inference = Gibbs()
        TiedChains(inference).marginals(scores._replace(tables=tables, first=np.zeros(2), last=np.zeros(2)))
        assert (inference.n_asked, inference.n_unconverged) == (1, unsettled)


def test_max_product_is_exact_without_cycles():
    """Also where several labellings are best: ends of ties that repel each other are decided one after the other."""
    structure = TiedChains(PRECISE)
    for number, (scores, clamp) in enumerate(problems(40, seed=18, tree=True)):
        if number % 3 == 0:
            scores = scores._replace(
                emissions=np.zeros(scores.emissions.shape),
                transitions=np.where(scores.transitions > -np.inf, 0.0, -np.inf),
                tables=np.tile(-np.eye(2), (3, 1, 1)),
                first=0.0 * scores.first,
                last=0.0 * scores.last,
            )
        known, found = EnumeratedGraph(scores, clamp), structure.viterbi(scores, clamp=clamp)
        best = known.ways[0][0] if known.ways else -np.inf
        assert found.scores.sum() == pytest.approx(best, abs=1e-9)
        assert structure.path_score(scores, found.states).sum() == pytest.approx(best, abs=1e-9)


def test_max_product_is_nearly_always_right_where_there_are_cycles():
    exact, right, of_sums = TiedChains(JunctionTree()), [], []
    for scores, clamp in problems(120, seed=19):
        scores = scores._replace(tables=2.0 * scores.tables)
        known = exact.viterbi(scores, clamp=clamp).scores.sum()
        structure = TiedChains(BeliefPropagation())
        found = structure.viterbi(scores, clamp=clamp)
        assert found.scores.sum() <= known + 1e-9
        right.append(found.scores.sum() >= known - 1e-9)
        of_chains = LinearChain().viterbi(structure.as_chains(scores, clamp=clamp), clamp=clamp).states
        of_sums.append(structure.path_score(scores, of_chains).sum() >= known - 1e-9)
    assert np.mean(right) > 0.98 > 0.96 > np.mean(of_sums)


@pytest.mark.parametrize("is_open", [False, True])
def test_nothing_is_learned_from_labellings_that_are_worse_than_the_annotation(is_open):
    """Of the best labellings of the chains alone, some are: losses below 0 drew weights away from what was right."""
    poor, exact, spared = TiedChains(BeliefPropagation(iterations=0)), TiedChains(JunctionTree()), 0
    for scores, _ in problems(20, seed=20):
        scores = scores._replace(transitions=np.where(scores.transitions > -np.inf, scores.transitions, -1.0))
        gold, found = exact.viterbi(scores), poor.viterbi(scores)
        clamp = gold.states[:, np.newaxis] == np.arange(scores.emissions.shape[1])
        if is_open:
            clamp[0] = True
        losses, derivative, _ = Perceptron()(poor, scores, clamp)
        assert (losses >= 0.0).all()
        if (
            not is_open
            and gold.scores.sum() > found.scores.sum() + 1e-6
            and len(np.unique(poor.prepare(scores).first_of)) == 1
        ):
            spared += 1
            assert not losses.any() and not any(getattr(derivative, name).any() for name in derivative.AXES)
    assert is_open or spared > 1


@pytest.mark.parametrize("loss", [Perceptron(), MaxMargin()], ids=["perceptron", "max margin"])
def test_losses_of_best_labellings_are_those_of_enumeration(loss):
    structure, right = TiedChains(BeliefPropagation()), []
    for scores, _ in problems(30, seed=21):
        rng = np.random.default_rng(len(right))
        scores = scores._replace(transitions=np.where(scores.transitions > -np.inf, scores.transitions, -1.0))
        gold = rng.integers(0, scores.emissions.shape[1], size=len(scores.emissions))
        clamp = gold[:, np.newaxis] == np.arange(scores.emissions.shape[1])
        costly = scores._replace(emissions=scores.emissions + loss.margin * ~clamp)
        known = EnumeratedGraph(costly).ways[0][0] - EnumeratedGraph(scores, clamp).ways[0][0]
        right.append(loss(structure, scores, clamp)[0].sum() == pytest.approx(known, abs=1e-9))
    assert np.mean(right) > 0.95


def _with_gold(n, seed):
    """Scores with a labelling that is possible, and its clamp."""
    for number, (scores, _) in enumerate(problems(n, seed=seed)):
        rng = np.random.default_rng(number)
        scores = scores._replace(transitions=np.where(scores.transitions > -np.inf, scores.transitions, -1.0))
        gold = rng.integers(0, scores.emissions.shape[1], size=len(scores.emissions))
        yield scores, gold, gold[:, np.newaxis] == np.arange(scores.emissions.shape[1]), rng


def _check_derivative(loss, structure, scores, clamp, weights):
    _, derivative, _ = loss(structure, scores, clamp, weights=weights)
    names = ("emissions", "transitions", "first", "tables")
    assert_derivative(lambda moved: loss(structure, moved, clamp, weights=weights)[0].sum(), scores, derivative, names)


def test_tokens_given_all_others():
    """Besag's pseudo-likelihood against enumeration of each token."""
    structure, loss = TiedChains(BeliefPropagation()), BesagPseudoLikelihood()
    for scores, gold, clamp, rng in _with_gold(8, seed=22):
        expected = 0.0
        for t in range(len(gold)):
            others = clamp.copy()
            others[t] = True
            expected += EnumeratedGraph(scores, others).log_z - EnumeratedGraph(scores, clamp).log_z
        assert loss(structure, scores, clamp)[0].sum() == pytest.approx(expected)
        clamp[rng.random(len(clamp)) < 0.2] = True
        _check_derivative(loss, structure, scores, clamp, rng.random(len(scores.starts) - 1))


def test_marginals_of_tokens_are_refused_with_ties():
    scores, _, clamp, _ = next(_with_gold(1, seed=24))
    with pytest.raises(ValueError, match=r"CRF347.*PseudoLikelihood.*Sentence"):
        PseudoLikelihood()(TiedChains(BeliefPropagation()), scores, clamp)


def test_ties_are_pieces_of_their_own():
    structure, loss = TiedChains(BeliefPropagation()), Piecewise()
    for scores, _, clamp, rng in _with_gold(8, seed=23):
        expected = loss(LinearChain(), scores.chains, clamp)[0].sum()
        tables, label_of = scores.ties.sums(scores.tables), scores.label_of
        for u, v, kind in zip(scores.ties.source, scores.ties.target, scores.ties.kind):
            of_gold = tables[kind][label_of[clamp[u].argmax()], label_of[clamp[v].argmax()]]
            expected += np.log(np.exp(tables[kind]).sum()) - of_gold
        known = EnumeratedGraph(scores)
        found = loss(structure, scores, clamp)[0].sum()
        assert found == pytest.approx(expected)
        assert found >= known.log_z - EnumeratedGraph(scores, clamp).log_z  # an upper bound
        clamp[rng.random(len(clamp)) < 0.2] = True
        _check_derivative(loss, structure, scores, clamp, rng.random(len(scores.starts) - 1))


@pytest.mark.parametrize("is_open", [False, True])
def test_derivatives_by_samples_are_right_on_average(is_open):
    """Of chains, of graphs that are drawn from exactly, and of walks that go on."""
    n = 200 if config.DISABLE_JIT else 1200
    for scores, _, clamp, rng in _with_gold(2, seed=25):
        if is_open:
            clamp[rng.random(len(clamp)) < 0.5] = True
        weights = rng.random(len(scores.starts) - 1)
        exact = TiedChains(JunctionTree())
        _, expected, _ = LogLikelihood()(exact, scores, clamp, weights=weights)
        _, of_chain, _ = LogLikelihood()(LinearChain(), scores.chains, clamp, weights=weights)
        walks = TiedChains(Gibbs())
        for structure, asked, truth, loss in (
            (LinearChain(), scores.chains, of_chain, SampledLikelihood(samples=n)),
            (exact, scores, expected, SampledLikelihood(samples=n)),
            (walks, scores, expected, SampledLikelihood(samples=n, steps=20, persistent=False)),
            (walks, scores, expected, SampledLikelihood(samples=n // 20, steps=5)),
        ):
            found = [loss(structure, asked, clamp, weights=weights)[1] for _ in range(max(1, n // loss.samples))]
            for name in truth.AXES:
                mean = np.mean([getattr(each, name) for each in found], axis=0)
                np.testing.assert_allclose(mean, getattr(truth, name), atol=6.0 / np.sqrt(n), err_msg=name)


def test_walks_go_on_where_they_were():
    """Contrastive divergence stays near the annotation, of which ties that are strong let no walk go at once."""
    scores = random_graph([1, 1], 2, [(0, 1)], np.random.default_rng(26))
    zeros = np.zeros(2)
    scores = scores._replace(
        emissions=np.zeros((2, 2)), first=zeros, last=zeros, tables=np.tile(np.diag([1.2, 1.2]), (3, 1, 1))
    )
    clamp, structure = np.array([[True, False], [True, False]]), TiedChains(Gibbs())
    moved = []
    for persistent in (True, False):
        loss = SampledLikelihood(samples=50, steps=1, persistent=persistent, start="gold")
        found = [loss(structure, scores, clamp)[1].emissions[0, 0] for _ in range(60)]
        moved.append(np.mean(found[30:]))
    assert moved[0] == pytest.approx(-0.5, abs=0.12) and moved[1] > -0.3
    one, other = (SampledLikelihood(seed=seed)(structure, scores, clamp)[1].tables for seed in (0, 0))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("settings", [{"samples": 0}, {"steps": 0}, {"persistent": 1}, {"start": "end"}, {"seed": -1}])
def test_settings_of_samples_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        SampledLikelihood(**settings)


def test_tables_over_the_limit_are_refused():
    rng = np.random.default_rng(9)
    pairs = [(u, v) for u in range(5) for v in range(u)]
    scores = random_graph([1] * 5, 3, pairs, rng)
    assert TiedChains(JunctionTree(max_table=243)).log_partition(scores)[0] > -np.inf
    with pytest.raises(ValueError, match=r"CRF042.*243"):
        TiedChains(JunctionTree(max_table=242)).log_partition(scores)


def trees(n, seed):
    """Graphs without chains whose ties form trees, each tie with its source above or below; and clamps."""
    rng = np.random.default_rng(seed)
    for number in range(n):
        lengths = LENGTHS[number % len(LENGTHS)]
        pairs = [(v, int(rng.integers(0, v))) for v in range(1, sum(lengths)) if rng.random() < 0.85]
        pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in pairs]
        size = int(rng.integers(1, 4))
        labels = size if number % 2 else 2
        scores = random_graph(lengths, size, pairs, rng, labels=labels, spread=2.0)
        clamp = rng.random(scores.emissions.shape) < 0.8 if number % 4 == 1 else None
        yield scores._replace(transitions=np.zeros((size, size))), clamp


def test_variables_are_eliminated_by_min_fill():
    """Against sets in Python; and where a table would be too large it ends there."""
    rng = np.random.default_rng(21)
    for _ in range(60):
        n = int(rng.integers(1, 12))
        ends = np.array([pair for pair in rng.integers(0, n, size=(int(rng.integers(0, 25)), 2)) if pair[0] != pair[1]])
        source, target = ends.reshape(-1, 2).T.copy().astype(np.int64)
        sizes = rng.integers(1, 4, size=n)
        found, largest = junction_tree_kernels.order(source, target, sizes, 1 << 40)
        neighbours = [{int(u + v) - w for u, v in zip(source, target) if w in (u, v)} for w in range(n)]
        left, tables = set(range(n)), []
        for step, v in enumerate(found.variables.tolist()):
            costs = {u: _lacking(neighbours, u) for u in left}
            assert costs[v] == min(costs.values())
            size_of = {u: np.prod(sizes[list(neighbours[u])]) for u in left if costs[u] == costs[v]}
            assert size_of[v] == min(size_of.values())
            rest = found.rest[found.starts[step] : found.starts[step + 1]].tolist()
            assert set(rest) == neighbours[v]
            assert rest == sorted(rest, key=lambda u: -found.place[u])
            tables.append(size_of[v] * sizes[v])
            left.remove(v)
            for u in rest:
                neighbours[u] = (neighbours[u] | set(rest)) - {u, v}
        assert largest == max(tables)
        assert junction_tree_kernels.order(source, target, sizes, tables[0] - 1)[1] == tables[0]


def _lacking(neighbours, v):
    return sum(b not in neighbours[a] for a in neighbours[v] for b in neighbours[v] if a < b)


@pytest.mark.parametrize("seed", range(1))
def test_trees_take_two_passes(seed):
    """Without any of the tables that eliminating would need."""
    structure = TiedChains(JunctionTree(max_table=1))
    for scores, clamp in trees(40, seed=(12, seed)):
        known = EnumeratedGraph(scores, clamp)
        if not known.ways:
            continue
        weights = np.full(len(scores.starts) - 1, 0.5)
        log_z, expected = structure.expectations(scores, clamp=clamp, weights=weights)
        assert log_z.sum() == pytest.approx(known.log_z, abs=1e-9)
        assert structure.log_partition(scores, clamp=clamp).sum() == pytest.approx(known.log_z, abs=1e-9)
        every = known.expectations()._replace(transitions=2.0 * expected.transitions)  # nothing is said of them
        halves = {name: 0.5 * array for name, array in arrays.named(every).items()}
        assert_scores_close(expected, every._replace(**halves))
        path = structure.viterbi(scores, clamp=clamp)
        assert path.scores.sum() == pytest.approx(known.ways[0][0])
        assert structure.path_score(scores, path.states).sum() == pytest.approx(known.ways[0][0])
    assert signatures(tree_kernels).get("grow", 0) <= 1


def test_trees_whose_numbers_are_too_small():
    """Scores, tables and products that the linear domain has no numbers for; and trees beside a cycle."""
    structure, rng = TiedChains(JunctionTree()), np.random.default_rng(13)
    cycle = random_graph([1, 1, 3], 2, [(0, 1), (1, 2), (0, 2)], np.random.default_rng(14))
    TiedChains(JunctionTree()).expectations(cycle)  # has transitions, so that no trees are looked for
    pairs = [(0, 1), (2, 0), (0, 3), (0, 4), (5, 6), (6, 7), (5, 7)]
    for of_tokens, of_ties in ((1.0, 1.0), (400.0, 1.0), (1.0, 250.0), (90.0, 90.0), (140.0, 0.1)):
        scores = random_graph([5, 3], 2, pairs, rng, spread=of_ties)
        scores = scores._replace(emissions=of_tokens * scores.emissions, transitions=np.zeros((2, 2)))
        known = EnumeratedGraph(scores)
        log_z, expected = structure.expectations(scores)
        assert log_z.sum() == pytest.approx(known.log_z, rel=1e-12)
        assert_scores_close(expected, known.expectations()._replace(transitions=expected.transitions))
        assert structure.viterbi(scores).scores.sum() == pytest.approx(known.ways[0][0])
    assert signatures(junction_tree_kernels).get("derive", 0) <= 1
    star = random_graph([1] * 9, 2, [(0, t) for t in range(1, 9)], rng)
    far = np.array([[60.0, 0.0], [0.0, 60.0]])  # eight children that agree, against their parent
    star = star._replace(tables=np.stack([far] * 3), transitions=np.zeros((2, 2)))
    star.emissions[1:, 0], star.emissions[0] = 70.0, (0.0, 280.0)
    known = EnumeratedGraph(star)
    log_z, expected = structure.expectations(star)
    assert log_z.sum() == pytest.approx(known.log_z, rel=1e-12)
    np.testing.assert_allclose(expected.emissions, known.marginals, atol=1e-9)


def test_what_the_ends_of_ties_say_of_each_other():
    """Mutual information, where belief propagation is exact."""
    for scores, _ in problems(12, seed=14, tree=True):
        known, work = EnumeratedGraph(scores), TiedChains(PRECISE).prepare(scores)
        if not known.ways or work.tied is None:
            continue
        found = PRECISE.information(work.tied)
        tokens, label_of = work.tied_tokens, np.asarray(scores.label_of)
        for u, v, information in zip(tokens[work.tied.source], tokens[work.tied.target], found):
            pairs = np.zeros(scores.tables.shape[1:])
            for score, states, _ in known.ways:
                pairs[label_of[states[u]], label_of[states[v]]] += np.exp(score - known.log_z)
            apart = pairs.sum(axis=1, keepdims=True) * pairs.sum(axis=0)
            some = pairs > 0.0
            assert information == pytest.approx((pairs[some] * np.log(pairs[some] / apart[some])).sum(), abs=1e-9)


def test_the_best_subgraph_is_what_tables_have_room_for(caplog):
    """A ring of four and one more, whose weakest tie is left out; with room enough, none."""
    rng = np.random.default_rng(15)
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)]
    scores = random_graph([1] * 5, 2, pairs, rng, features=5)
    rows, strong = np.arange(5, dtype=np.int32)[:, np.newaxis], np.array([[1.5, 0.0], [0.0, 1.0]])
    ties = scores.ties._replace(kind=np.arange(5, dtype=np.int32), rows=rows, symmetric=np.zeros(5, dtype=bool))
    tables = np.stack([strong, strong, 0.05 * strong, strong, 0.01 * strong])
    scores = scores._replace(ties=ties, tables=tables)
    whole, parted = JunctionTree(max_table=8, drop="mutual_information"), JunctionTree(4, "mutual_information")
    log_z = EnumeratedGraph(scores).log_z
    assert TiedChains(whole).log_partition(scores).sum() == pytest.approx(log_z, abs=1e-9)
    assert whole.n_dropped == 0 and "CRFW371" not in caplog.text
    # The weakest one of all is no part of the ring, but says least
    left = EnumeratedGraph(scores._replace(ties=ties.among(np.arange(5), 5)._replace(
        **{name: getattr(ties, name)[[0, 1, 3]] for name in ("source", "target", "kind")})))  # fmt: skip
    structure = TiedChains(parted)
    assert structure.log_partition(scores).sum() == pytest.approx(left.log_z, abs=1e-9)
    np.testing.assert_allclose(structure.marginals(scores), left.marginals, atol=1e-9)
    assert (parted.n_dropped, parted.n_ties) == (4, 10)
    structure.viterbi(scores)
    assert len(structure.sample(scores, 3, seed=0)) == 3 and len(structure.n_best_of_all(scores, 3)) == 3
    assert caplog.text.count("CRFW371") == 1 and "2 of 5 ties" in caplog.text
    lower, upper = structure.bounds(scores)
    assert lower < log_z < upper
    assert "log_partition" not in parted.answers and not parted.exact
    with pytest.raises(ValueError, match=r"CRF042"):
        TiedChains(JunctionTree(1, "mutual_information")).log_partition(scores._replace(transitions=np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"CRF020.*drop"):
        JunctionTree(drop="some")


@pytest.mark.parametrize("seed", range(1))
def test_labellings_are_scored_as_they_are(seed):
    structure = TiedChains(PRECISE)
    for scores, _ in problems(20, seed=(1, seed)):
        known = EnumeratedGraph(scores)
        for score, states, used in known.ways[:3]:
            path = np.array(states, dtype=np.int32)
            assert structure.path_score(scores, path).sum() == pytest.approx(score)
            uses = structure.path_expectations(scores, path, weights=np.full(len(scores.starts) - 1, 2.0))
            tables = np.zeros(scores.tables.shape)
            for index in used:
                tables[index] += 2.0
            np.testing.assert_allclose(uses.tables, tables)
            only = structure.only(structure.prepare(scores), path)
            assert structure.log_partition(scores, clamp=only).sum() == pytest.approx(score)
            assert structure.only_path(only).tolist() == list(states)
        found = structure.viterbi(scores)
        assert found.scores.sum() == pytest.approx(structure.path_score(scores, found.states).sum())


@pytest.mark.parametrize("inference", [PRECISE, REWEIGHTED, MEAN_FIELD], ids=repr)
def test_derivatives_are_those_of_the_approximation(inference):
    """Where there are cycles too: what has settled gives the derivatives of its log partition."""
    structure = TiedChains(inference)
    for number, (scores, _) in enumerate(problems(10, seed=2)):
        if inference is MEAN_FIELD and _has_ties_inside(scores):
            continue  # which it does not do best
        weights = np.linspace(0.5, 2.0, len(scores.starts) - 1)
        _, expected = structure.expectations(scores, weights=weights)
        assert_derivative(
            lambda moved, weights=weights: (structure.log_partition(moved) * weights).sum(),
            scores,
            expected,
            ("emissions", "tables", "first"),
            seed=number,
            tolerance=2e-6,
        )


@pytest.mark.parametrize("seed", range(1))
def test_the_likelihood_of_sentences_given_the_others(seed):
    """Against enumeration of each sentence, the labels at the other ends of its ties fixed; and its derivative by differences."""
    structure, loss = TiedChains(BeliefPropagation()), SentenceLikelihood()
    for number, (scores, _) in enumerate(problems(8, seed=(11, seed))):
        rng = np.random.default_rng(number)
        scores = scores._replace(transitions=np.where(scores.transitions > -np.inf, scores.transitions, -1.0))
        gold = rng.integers(0, scores.emissions.shape[1], size=len(scores.emissions))
        clamp = gold[:, np.newaxis] == np.arange(scores.emissions.shape[1])
        losses, derivative, _ = loss(structure, scores, clamp)
        expected = 0.0
        for begin, end in zip(scores.starts, scores.starts[1:]):
            expected += _given_the_others(scores, clamp, int(begin), int(end))
        assert losses.sum() == pytest.approx(expected)
        clamp[rng.random(len(clamp)) < 0.2] = True
        losses, derivative, _ = loss(structure, scores, clamp)
        assert_derivative(
            lambda moved, clamp=clamp: loss(structure, moved, clamp)[0].sum(),
            scores,
            derivative,
            ("emissions", "tables"),
        )


def _given_the_others(scores, clamp, begin, end):
    """Negative log probability of one sentence."""
    return _with_others(scores, clamp, begin, end).log_z - EnumeratedGraph(scores, clamp).log_z


def _with_others(scores, clamp, begin, end):
    """The labellings of one sentence, the others as a clamp says."""
    others = clamp.copy()
    others[begin:end] = True
    return EnumeratedGraph(scores, others)


# Ties that join tokens of one sentence, by what methods and losses promise of them

INSIDE = {
    "BeliefPropagation": BeliefPropagation(),
    "max_product": BeliefPropagation(max_product=True),
    "reweighted": REWEIGHTED,
    "MeanField": MeanField(),
    "Gibbs": Gibbs(),
    "annealing": Gibbs(annealing=0),
    "JunctionTree": JunctionTree(),
    "DualDecomposition": DualDecomposition(),
}


def _tied_inside(n, *, labels=3, spread=2.0):
    """Sentences with ties inside them and between them."""
    rng = np.random.default_rng(27)
    for number in range(n):
        lengths = ([4], [3, 2], [5], [2, 4])[number % 4]
        pairs = [(0, 2 - (lengths[0] < 3)), *random_ties(lengths, rng, n_ties=3)]
        yield random_graph(lengths, 3, pairs, rng, labels=labels, spread=spread, per_position=number % 3 == 0)


@pytest.mark.parametrize("inference", ["max_product", "annealing", "Gibbs", "JunctionTree", "DualDecomposition"])
def test_no_other_labelling_of_a_sentence_is_better(inference):
    """With ties inside it 5 of 40 could be bettered."""
    structure = TiedChains(INSIDE[inference])
    for scores in _tied_inside(8):
        path = structure.viterbi(scores)
        found, of_path = path.scores.sum(), path.states[:, np.newaxis] == np.arange(3)
        for begin, end in zip(scores.starts, scores.starts[1:]):
            assert found == pytest.approx(_with_others(scores, of_path, begin, end).ways[0][0])
        if inference == "JunctionTree" or len(scores.starts) == 2:
            assert found == pytest.approx(EnumeratedGraph(scores).ways[0][0])


@pytest.mark.parametrize("inference", INSIDE)
def test_log_partitions_with_ties_inside_sentences(inference):
    structure = TiedChains(INSIDE[inference])
    for scores in _tied_inside(8, spread=1.0):
        apart = structure.log_partition(scores).sum() - EnumeratedGraph(scores).log_z
        if inference == "JunctionTree":
            assert apart == pytest.approx(0.0, abs=1e-9)
        elif inference == "Gibbs":
            assert abs(apart) < 0.5
        elif inference in ("reweighted", "MeanField"):
            assert apart * (1 if inference == "reweighted" else -1) > -1e-6


@pytest.mark.parametrize("loss", [SentenceLikelihood(), BesagPseudoLikelihood(), Piecewise(), LogLikelihood()])
def test_losses_of_ties_inside_sentences(loss):
    """The likelihood of a sentence given the others was off by up to 4 nats, as each end was told the label of the other."""
    structure = TiedChains(JunctionTree())
    for number, scores in enumerate(_tied_inside(4)):
        rng = np.random.default_rng(number)
        clamp = rng.integers(0, 3, size=len(scores.emissions))[:, np.newaxis] == np.arange(3)
        parts = [(0, len(clamp))]
        if isinstance(loss, SentenceLikelihood):
            parts = list(zip(scores.starts, scores.starts[1:]))
        elif isinstance(loss, BesagPseudoLikelihood):
            parts = [(t, t + 1) for t in range(len(clamp))]
        known = sum(_given_the_others(scores, clamp, begin, end) for begin, end in parts)
        found = loss(structure, scores, clamp)[0].sum()
        assert found >= known - 1e-9 if isinstance(loss, Piecewise) else found == pytest.approx(known)
        clamp[rng.random(len(clamp)) < 0.3] = True
        _check_derivative(loss, structure, scores, clamp, rng.random(len(scores.starts) - 1))


@pytest.mark.parametrize("spread", [1.0, 400.0])
def test_sums_along_single_sequences(spread):
    """Equal to eliminating one token after the other, also where scores are beyond the numbers of a float."""
    rng, exact = np.random.default_rng(30), JunctionTree()
    for number in range(12):
        pairs = [(0, 3), (4, 1), (1, 5), (2, 4)][: 1 + number % 4]
        scores = random_graph(
            [6, 6], 3, [*pairs, *((u + 6, v + 6) for u, v in pairs[:1])], rng, per_position=number % 3 == 0
        )
        arrays_of = {name: spread * array for name, array in arrays.named(scores).items()}
        problem = TiedChains(exact).prepare(scores._replace(**arrays_of)).tied
        weights = np.array([0.5, 2.0])
        found = exact.expectations(problem, weights)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequences, "_MOST", 0.0)
            known = exact.expectations(problem, weights)
        np.testing.assert_allclose(found.log_z, known.log_z, rtol=1e-10)
        np.testing.assert_allclose(exact.log_partition(problem), known.log_z, rtol=1e-10)
        np.testing.assert_allclose(found.tables, known.tables, atol=1e-7)
        assert_scores_close(found.chains, known.chains)


def test_the_reweighted_bound_is_convex_with_ties_inside_sentences():
    """It lay above the chord, as a maximum was taken off a maximum."""
    structure = TiedChains(REWEIGHTED)
    for number in range(40):
        rng = np.random.default_rng(number)
        lengths, pairs = ([4], [(0, 3)]) if number % 8 else ([4, 2], [(0, 3), (1, 4), (2, 5)])
        scores = random_graph(lengths, 2, pairs, rng, features=2)
        scores.ties.symmetric[:] = False
        ends = rng.normal(scale=3.0, size=(2, *scores.tables.shape))
        one, other, middle = (
            structure.log_partition(scores._replace(tables=share * ends[0] + (1.0 - share) * ends[1])).sum()
            for share in (1.0, 0.0, 0.5)
        )
        assert middle <= (one + other) / 2.0 + 1e-6


def test_sentences_too_wide_for_a_junction_tree_are_told_of(monkeypatch, caplog):
    """Nothing is exact there, and the best labelling that was found and the loss are approximate."""
    narrow = JunctionTree(max_table=26)
    for module in (blocks, losses):
        monkeypatch.setattr(module, "SENTENCES", narrow)
    monkeypatch.setattr(blocks, "_announced", set())
    rng, pairs = np.random.default_rng(29), [(u, v) for u in range(5) for v in range(u)]
    wide, gold = random_graph([5, 1], 3, pairs, rng, labels=3), np.ones(6, dtype=np.int32)
    clamp, loss = gold[:, np.newaxis] == np.arange(3), SentenceLikelihood()
    for _ in range(2):
        structure = TiedChains(BeliefPropagation(max_product=True))
        assert structure.viterbi(wide).scores[0] >= structure.path_score(wide, gold)[0]
        found, known = loss(structure, wide, clamp)[0][0], _given_the_others(wide, clamp, 0, 5)
        assert found != pytest.approx(known)
    assert caplog.text.count("CRFW042") == 2
    assert "a best labelling" in caplog.text and "SentenceLikelihood" in caplog.text and "1 of 1 sent" in caplog.text


def test_beliefs_are_close_where_there_are_cycles():
    structure, apart, misses = TiedChains(PRECISE), LinearChain(), []
    for scores, _ in problems(30, seed=3):
        known = EnumeratedGraph(scores)
        if known.ways and len(scores.ties.source):
            found = structure.marginals(scores), apart.marginals(scores.chains)
            misses.append([abs(marginals - known.marginals).mean() for marginals in found])
    of_beliefs, of_chains = np.mean(misses, axis=0)
    assert 1e-4 < of_beliefs < 0.2 * of_chains


def test_without_ties_it_is_the_chain_bit_by_bit():
    rng = np.random.default_rng(4)
    scores = random_graph([3, 0, 5, 2], 4, [], rng)
    clamp = rng.random(scores.emissions.shape) < 0.9
    structure, chain = TiedChains(PRECISE), LinearChain()
    for allowed in (None, clamp):
        log_z, expected = structure.expectations(scores, clamp=allowed, weights=np.arange(4.0))
        of_chain, expected_of_chain = chain.expectations(scores.chains, clamp=allowed, weights=np.arange(4.0))
        np.testing.assert_array_equal(log_z, of_chain)
        for name in ("emissions", "transitions", "first", "last"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(expected_of_chain, name))
        for found, known in zip(structure.viterbi(scores, clamp=allowed), chain.viterbi(scores.chains, clamp=allowed)):
            np.testing.assert_array_equal(found, known)
    # and the sequences beside those that are tied
    tied = random_graph([3, 0, 5, 2], 4, [(0, 8)], rng)
    apart = arrays.cut(tied.chains, np.arange(3, 8), np.array([0, 0, 5]))
    marginals = structure.marginals(tied)
    np.testing.assert_array_equal(marginals[3:8], chain.marginals(apart))


def test_a_batch_is_one_by_one_whatever_the_order():
    rng = np.random.default_rng(5)
    first = random_graph([2, 3, 1], 3, [(0, 2), (1, 4), (0, 4)], rng)
    second = random_graph([2, 2], 3, [(0, 3), (1, 2)], rng)._replace(
        transitions=first.transitions, first=first.first, last=first.last, tables=first.tables, label_of=first.label_of
    )
    second = second._replace(ties=second.ties._replace(rows=first.ties.rows, symmetric=first.ties.symmetric))
    structure = TiedChains(BeliefPropagation())
    alone = [structure.marginals(scores) for scores in (first, second)]
    for a, b, order in ((first, second, (0, 1)), (second, first, (1, 0))):
        n = len(a.emissions)
        ends = [np.append(of_a, of_b + n) for of_a, of_b in zip(a.ties[:2], b.ties[:2])]
        turned = rng.permutation(len(ends[0]))  # ties in any order
        kind = np.append(a.ties.kind, b.ties.kind)
        both = a._replace(
            emissions=np.concatenate([a.emissions, b.emissions]),
            starts=np.append(a.starts, b.starts[1:] + n),
            ties=a.ties._replace(source=ends[0][turned], target=ends[1][turned], kind=kind[turned]),
        )
        expected = np.concatenate([alone[number] for number in order])
        for threads in (1, 2):
            np.testing.assert_array_equal(structure.with_threads(threads).marginals(both), expected)


def test_messages_that_do_not_settle_are_counted():
    rng = np.random.default_rng(6)
    scores = random_graph([1, 1, 1], 2, [(0, 1), (1, 2), (2, 0)], rng, spread=6.0)
    hasty = BeliefPropagation(iterations=1, tolerance=1e-12)
    TiedChains(hasty).marginals(scores)
    assert (hasty.n_asked, hasty.n_unconverged) == (1, 1)
    none = BeliefPropagation(iterations=0)
    np.testing.assert_allclose(TiedChains(none).marginals(scores), LinearChain().marginals(scores.chains))
    assert none.n_unconverged == 0


def test_chains_that_are_told_nothing_new_are_not_asked_again(monkeypatch):
    """A cycle that takes long to settle, and many others that don't: where all were asked each time, it took 10 iterations."""
    rng, asked = np.random.default_rng(17), []
    pairs = [(0, 2), (3, 4), (1, 5), *((t, t + 2) for t in range(4, 98, 2))]
    scores = random_graph([2] * 50, 2, pairs, rng, features=2)
    kind = np.append(np.zeros(3), np.ones(47)).astype(np.int32)
    ties = scores.ties._replace(kind=kind, rows=np.array([[0], [1]], dtype=np.int32))
    scores = scores._replace(
        tables=np.array([4.0 * np.eye(2), 0.02 * np.eye(2)]),
        transitions=4.0 * np.eye(2),
        label_of=np.arange(2),
        ties=ties,
    )
    marginals = belief_propagation._marginals
    monkeypatch.setattr(
        belief_propagation,
        "_marginals",
        lambda chains, rows: asked.append(len(chains.emissions)) or marginals(chains, rows),
    )
    inference = BeliefPropagation(iterations=5)
    found = TiedChains(inference).marginals(scores)
    assert inference.n_unconverged == 0
    assert len(asked) > 5 and sum(asked) < 400
    np.testing.assert_allclose(found, TiedChains(PRECISE).marginals(scores), atol=1e-4)


def test_ties_that_are_none_are_refused():
    rng = np.random.default_rng(7)
    scores = random_graph([2, 2], 2, [(0, 3)], rng)
    structure, ties = TiedChains(PRECISE), scores.ties
    wrong = np.array([4], dtype=np.int32)
    for changed in ({"source": wrong}, {"target": ties.source}, {"kind": wrong}, {"rows": ties.rows + 1}):
        with pytest.raises(ValueError, match="CRF040"):
            structure.log_partition(scores._replace(ties=ties._replace(**changed)))
    for label_of in (np.array([0, 2]), np.array([0])):
        with pytest.raises(ValueError, match="CRF040"):
            structure.log_partition(scores._replace(label_of=label_of))


@pytest.mark.parametrize(
    "settings",
    [{"samples": 0}, {"burn_in": -1}, {"thinning": 0}, {"annealing": -1}, {"step": "slice"}, {"seed": "one"}],
)
def test_settings_of_walks_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        Gibbs(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"iterations": -1},
        {"damping": 1.0},
        {"tolerance": 0.0},
        {"iterations": 2.5},
        {"damping": "much"},
        {"max_product": 1},
    ],
)
def test_settings_of_belief_propagation_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        BeliefPropagation(**settings)
