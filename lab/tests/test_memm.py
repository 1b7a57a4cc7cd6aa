"""Maximum entropy Markov models: against enumeration and finite differences, and the label bias of the sources."""

import itertools
import math

import numpy as np
import pytest
import spacy
from scipy.optimize import minimize

from spacy_crf import arrays
from spacy_crf.inference.higher_order import HigherOrder
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.losses.clamped import LogLikelihood, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import ChainScores
from spacy_crf_lab.memm import LocalChain, LocalPairs
from tests.constraints import test_kept_rules
from tests.structures import STRUCTURES, Row, assert_derivative, higher_order, random_problem, scheme_chain
from tests.util import tag_examples

from .test_baselines import EMISSIONS
from .util import for_rows


def pairs_under_scheme(*args):
    """Trigrams under a tag scheme: some contexts are impossible."""
    found = scheme_chain(*args).scores
    grams = higher_order(args[0], found.emissions.shape[1], *args[2:4]).scores
    problem = higher_order(args[0], found.emissions.shape[1], *args[2:4])
    return problem._replace(scores=grams._replace(transitions=found.transitions, first=found.first, last=found.last))


# What training reads, and the structure for what it gives
ORDERS = {
    "order 1": (STRUCTURES["chain"], LocalChain(), LinearChain()),
    "scheme": (STRUCTURES["scheme"], LocalChain(), LinearChain()),
    "order 2": (STRUCTURES["order 2"], LocalPairs(), HigherOrder()),
    "order 2, scheme": (Row(pairs_under_scheme, STRUCTURES["order 2"].ways), LocalPairs(), HigherOrder()),
}
each = pytest.mark.parametrize("row, local, structure", ORDERS.values(), ids=ORDERS)
by_position = pytest.mark.parametrize("per_position", [False, True])
SPREADS = pytest.mark.parametrize(
    "spread", [2.0, 300.0]
)  # with the larger one exponentials are too small for their sums
LENGTHS = [4, 0, 1, 3, 2]


def problem(row, per_position=False, spread=2.0, size=2):
    return random_problem(row, LENGTHS, size, seed=3, per_position=per_position, spread=spread).scores


def choices(row, local, scores):
    """The log probability of every labelling of each sequence by the definition: choice after choice, as dictionaries."""
    size, found = scores.emissions.shape[1], []
    for begin, end in itertools.pairwise(scores.starts.tolist()):
        ways, behind = {}, []  # per token, the score of each path up to it
        for t in range(begin, end):
            prefix = arrays.cut(scores, slice(begin, t + 1), np.array([0, t + 1 - begin]))
            prefix = prefix if t == end - 1 else prefix._replace(last=np.zeros(size))
            behind.append({way.states: way.score for way in row.ways(None, prefix, 0, t + 1 - begin)})

        def follow(t, path, log_p, ways=ways, behind=behind):
            if t == len(behind):
                ways[path] = log_p
                return
            scored = np.array([behind[t].get((*path, v), -math.inf) for v in range(size)])
            if scored.max() == -math.inf:
                return
            log_z = scored.max() + math.log(np.exp(scored - scored.max()).sum())
            for v in np.flatnonzero(scored > -math.inf).tolist():
                follow(t + 1, (*path, v), log_p + float(scored[v] - log_z))

        follow(0, (), 0.0)
        found.append(ways)
    return found


@each
@by_position
@SPREADS
def test_predicts_the_product_of_its_choices(row, local, structure, per_position, spread):
    scores = problem(row, per_position, spread)
    normalised = local.normalised(scores)
    for b, ways in enumerate(choices(row, local, scores)):
        tokens = slice(scores.starts[b], scores.starts[b + 1])
        only = arrays.cut(normalised, tokens, np.array([0, tokens.stop - tokens.start]))
        for path, log_p in ways.items():
            found = structure.path_score(only, np.array(path, dtype=np.int32))
            np.testing.assert_allclose(found, log_p, rtol=1e-12, atol=1e-12 * spread)
        assert sum(map(math.exp, ways.values())) == pytest.approx(1.0)


@each
@by_position
def test_log_partition_is_zero(row, local, structure, per_position):
    scores = random_problem(row, [30, 1, 0, 12], 3, seed=5, per_position=per_position).scores
    np.testing.assert_allclose(structure.log_partition(local.normalised(scores)), 0.0, atol=1e-12)


@each
@by_position
@pytest.mark.parametrize("loss", [LogLikelihood(), LogLikelihood(label_weights={"B": 2.0}), SoftmaxMargin()], ids=repr)
@pytest.mark.parametrize("kind", ["full", "partial"])
def test_losses_and_gradients(row, local, structure, per_position, loss, kind):
    scores, rng = problem(row, per_position), np.random.default_rng(0)
    size = scores.emissions.shape[1]
    loss = loss.bind([*"AB", *("B" * (size - 2))])
    path = structure.viterbi(scores).states
    clamp = np.eye(size, dtype=bool)[path]
    if kind == "partial":
        clamp |= rng.random(clamp.shape) < 0.5
    weights = rng.uniform(0.5, 2.0, size=len(LENGTHS))
    costly = loss._with_costs(scores, clamp) if loss.costs(size).size else scores
    expected = []
    for b, ways in enumerate(choices(row, local, costly)):
        allowed = [
            log_p
            for states, log_p in ways.items()
            if all(clamp[scores.starts[b] + t, state] for t, state in enumerate(states))
        ]
        expected.append(-math.log(sum(map(math.exp, allowed))))
    losses, derivative, impossible = loss(local, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, weights * expected, atol=1e-10)
    assert not impossible.any()
    for name, array in arrays.named(scores).items():
        assert getattr(derivative, name).shape == array.shape
    assert_derivative(lambda moved: loss(local, moved, clamp, weights=weights)[0].sum(), scores, derivative)


@each
def test_full_annotation_is_partial_annotation_that_leaves_one(row, local, structure):
    """By the choices along the path, and by sums over the chain."""
    scores = problem(row, spread=300.0)
    path = structure.viterbi(scores).states
    clamp = np.eye(scores.emissions.shape[1], dtype=bool)[path]
    losses, derivative, _ = LogLikelihood()(local, scores, clamp)
    log_z, uses = local.expectations(scores, clamp=clamp)
    np.testing.assert_allclose(-losses, log_z, rtol=1e-12, atol=1e-10)
    for name in arrays.named(scores):
        np.testing.assert_allclose(getattr(derivative, name), -getattr(uses, name), atol=1e-10)


@each
def test_nothing_and_impossible_annotation(row, local, structure):
    scores = problem(row)
    path = structure.viterbi(scores).states
    clamp = np.eye(scores.emissions.shape[1], dtype=bool)[path]
    scores.emissions[0, path[0]] = -np.inf
    losses, derivative, impossible = LogLikelihood()(local, scores, clamp)
    assert impossible.tolist() == [True, *[False] * 4] and losses[0] == 0.0
    assert all(np.isfinite(array).all() for array in arrays.named(derivative).values())
    assert not derivative.emissions[:4].any()


# ----------------------------------------------------------------------------------------------------- label bias


def test_label_bias():
    """Bottou 1991, figure of Lafferty, McCallum & Pereira 2001: states of "rib" and of "rob" have one successor each."""
    arcs = {(0, 1): "i", (1, 2): "b", (3, 4): "o", (4, 5): "b"}
    symbols, paths = "riob", {"rib": [0, 1, 2], "rob": [3, 4, 5]}
    transitions = np.full((6, 6), -np.inf)
    transitions[tuple(np.transpose([*arcs]))] = 0.0
    first = np.where(np.isin(np.arange(6), [0, 3]), 0.0, -np.inf)
    training = ["rib"] * 6 + ["rob"] * 5

    def scores(weights, words):
        rows = [symbols.index(symbol) for word in words for symbol in word]
        emissions = weights.reshape(4, 6)[rows]
        return rows, ChainScores(emissions, transitions, first, np.zeros(6), 3 * np.arange(len(words) + 1))

    def accuracy(structure, decoded):
        gold = np.eye(6, dtype=bool)[[state for word in training for state in paths[word]]]

        def loss(weights):
            rows, batch = scores(weights, training)
            losses, derivative, _ = LogLikelihood()(structure, batch, gold)
            uses = np.zeros((4, 6))
            np.add.at(uses, rows, derivative.emissions)
            return losses.sum() + 0.01 * weights @ weights, uses.ravel() + 0.02 * weights

        weights = minimize(loss, np.zeros(24), jac=True, method="L-BFGS-B").x
        found = LinearChain().viterbi(decoded(scores(weights, [*paths])[1])).states.reshape(2, 3).tolist()
        return np.mean([path == paths[word] for path, word in zip(found, paths)])

    assert accuracy(LocalChain(), LocalChain().normalised) <= 0.55
    assert accuracy(LinearChain(), lambda batch: batch) == 1.0


def of_a_trigram(l2, iterations):
    """The largest weight of the trigrams, and the probability of C after A B, which training met once."""
    nlp = spacy.blank("en")
    emissions = {**EMISSIONS, "features": {"@misc": "spacy_crf.features.v1", "templates": ["bias"]}}
    model = {"@architectures": "spacy_crf_lab.MEMM.v1", "emissions": emissions, "order": 2}
    nlp.add_pipe("crf_tagger", config={"model": model})
    examples = tag_examples(nlp, ["x/A x/B x/C", "x/B x/A x/C", "x/A x/A x/B", "x/C x/B x/A"])
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(l2=l2, iterations_per_step=iterations, max_iterations=iterations, tolerance=1e-12, delta=0.0)
    nlp.update(examples, sgd=optimizer)
    model = nlp.get_pipe("crf_tagger").model
    after_a_b = np.array([[True, False, False], [False, True, False], [True, True, True]])
    marginals = HigherOrder().marginals(model.predict([examples[0].predicted]), clamp=after_a_b)
    return float(model.get_param("grams").max()), marginals[2, 2]


def test_weight_of_a_trigram_that_was_met_once():
    """Without a regularizer it grows for ever, and the probability of its last tag approaches 1; with one it is finite."""
    (few, p_few), (many, p_many) = (of_a_trigram(0.0, n) for n in (5, 60))
    assert many > few + 2.0 and p_few < p_many and p_many == pytest.approx(1.0, abs=1e-4)
    held, longer = (of_a_trigram(0.5, n)[0] for n in (30, 60))
    assert held == pytest.approx(longer, rel=1e-4) and 0.0 < held < 1.0


globals().update(
    for_rows(
        "model",
        {"MEMM": {"@architectures": "spacy_crf_lab.MEMM.v1", "order": 2, "emissions": test_kept_rules.SPARSE}},
        test_kept_rules.test_rules_beyond_max_states_are_kept_without_a_lattice,
        test_kept_rules.test_rules_without_any_search_are_named,
    )
)
