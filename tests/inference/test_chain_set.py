"""Sets of chains: losses against all combinations of the chains' labellings, enumerated in plain Python."""

import itertools

import numpy as np
import pytest

from spacy_crf import arrays
from spacy_crf.inference.chain_set import ChainSet, evaluate
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.corpus import PackedClamp
from spacy_crf.types import SetClamp
from tests.losses.test_losses import LOSSES, mistakes
from tests.structures import STRUCTURES, Enumerated, Problem, clamp_of, either, is_allowed, random_problem

# State 0 belongs to both chains
STATES_OF = (np.array([0, 2, 3]), np.array([0, 1]))
LENGTHS = [2, 0, 1, 3]
kinds = pytest.mark.parametrize("kind", ["chain", "segments"])


def chains(kind, partial=True):
    """Scores of a set, and the problem of each chain: its scores, and what its annotation allows."""
    row, rng, problems = STRUCTURES[kind], np.random.default_rng(5), []
    structure, scores, _ = random_problem(row, LENGTHS, 4, seed=3)
    for states in STATES_OF:
        found = {name: array[..., states] for name, array in arrays.named(scores).items()}
        own = scores._replace(**{**found, "transitions": scores.transitions[np.ix_(states, states)]})
        problem = Problem(structure, own, None)
        chosen = [ways[rng.integers(len(ways))].states for ways in Enumerated(row, problem).ways]
        path = np.array([state for of_sequence in chosen for state in of_sequence], dtype=np.int32)
        clamp = structure.only(structure.prepare(own), path)
        if partial:
            clamp = either(clamp, clamp_of(own, lambda n, chance: rng.random(n) > 0.6))
        problems.append(problem._replace(clamp=clamp))
    return scores, problems


def of_set(problems):
    structures, clamps = [each.structure for each in problems], [each.clamp for each in problems]
    return ChainSet(structures, STATES_OF), SetClamp(tuple(clamps), STATES_OF)


@kinds
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("loss, value", [pytest.param(*pair, id=name) for name, pair in LOSSES.items()])
def test_losses_are_those_of_all_combinations_of_labellings(kind, partial, loss, value):
    scores, problems = chains(kind, partial)
    structure, clamp = of_set(problems)
    weights, expected = np.array([1.0, 3.0, 0.5, 2.0]), []
    every = [Enumerated(STRUCTURES[kind], problem._replace(clamp=None)) for problem in problems]
    for b, (begin, _) in enumerate(every[0].ends):
        scored, allowed = [], []
        for labellings in itertools.product(*(of_chain.ways[b] for of_chain in every)):
            pairs = [(problem.clamp, one) for problem, one in zip(problems, labellings)]
            wrong = sum(mistakes(of_chain, begin, one.states) for of_chain, one in pairs)
            scored.append((sum(one.score for one in labellings), wrong))
            if all(is_allowed(of_chain, begin, one.states) for of_chain, one in pairs):
                allowed.append(scored[-1])
        expected.append(value(scored) - value(allowed))
    bound = loss().bind("OABC")
    losses, d_scores, impossible = evaluate(bound, structure, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, weights * expected, atol=1e-9)
    assert not impossible.any()
    rng = np.random.default_rng(2)
    for name, array in arrays.named(scores).items():
        direction = rng.normal(size=array.shape)
        above, below = (
            evaluate(bound, structure, scores._replace(**{name: array + way * direction}), clamp, weights=weights)[0]
            for way in (1e-5, -1e-5)
        )
        derivative = (above - below).sum() / 2e-5
        assert (getattr(d_scores, name) * direction).sum() == pytest.approx(derivative, abs=1e-6), name


def test_settings_by_label_are_those_of_the_labels_of_a_chain():
    loss = LogLikelihood(label_weights={"A": 2.0, "C": 3.0}, cost={"A": {"B": 1.0}, "O": {"A": 4.0, "B": 5.0}})
    own = loss.bind("OABC").among(np.array([0, 1]))
    assert own.label_weights == {"A": 2.0} and own.cost == {"A": {}, "O": {"A": 4.0}}
    own.check_labels()


@kinds
def test_an_impossible_chain_is_reported_and_teaches_nothing(kind):
    scores, problems = chains(kind, partial=False)
    structure, clamp = of_set(problems)
    before, d_before, _ = evaluate(LogLikelihood().bind("OABC"), structure, scores, clamp)
    arrays.states_of(clamp.chains[1])[0] = False
    losses, d_scores, impossible = evaluate(LogLikelihood().bind("OABC"), structure, scores, clamp)
    assert impossible.tolist() == [True, False, False, False]
    assert losses[0] < before[0] and (d_scores[0][:2, 1] == 0.0).all()
    np.testing.assert_allclose(losses[1:], before[1:], atol=1e-12)
    np.testing.assert_allclose(d_scores[0][2:], d_before[0][2:], atol=1e-12)


@kinds
def test_clamps_of_sets_are_packed_and_united(kind):
    _, clamp = of_set(chains(kind)[1])
    kept = PackedClamp.of(clamp).unpacked()
    for one, other in zip(clamp.chains, kept.chains):
        for array, packed in zip(one if kind == "segments" else [one], other if kind == "segments" else [other]):
            np.testing.assert_array_equal(array, packed)
    own = [arrays.states_of(of_chain) for of_chain in clamp.chains]
    assert (arrays.states_of(clamp)[:, 0] == (own[0][:, 0] | own[1][:, 0])).all()
    assert (arrays.states_of(clamp)[:, 1:] == np.column_stack([own[1][:, 1], own[0][:, 1:]])).all()
