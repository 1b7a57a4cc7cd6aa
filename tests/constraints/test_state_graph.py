"""Tags times automaton states against enumeration of all labellings that the automaton accepts."""

import math

import numpy as np
import pytest

from spacy_crf.arrays import join_sequences, tags_of
from spacy_crf.constraints.automaton import (
    BREAK,
    Automaton,
    SpanTags,
    make_automaton,
    minimised,
    per_sentence,
    product,
    rule_graph,
)
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.schemes import SCHEMES, Segments
from tests import reference
from tests.inference.test_spans import as_dict, scheme_scores
from tests.random_rules import score_of


def random_automaton(n_events, *, seed, n_states=3):
    rng = np.random.default_rng(seed)
    following = rng.integers(-1, n_states, size=(n_states, n_events)).astype(np.int32)
    scores = rng.normal(size=(n_states, n_events))
    return Automaton(following, scores, np.array([0.0, 0.5, -np.inf])[rng.permutation(3)])


def span_tags(scheme, n_labels):
    return SpanTags(["AB"[n] for n in range(n_labels)], scheme.label_of_tag(n_labels), scheme.continues(n_labels))


def all_pairs(size):
    return np.ones((size + 1, size + 1), dtype=bool)


def accepted(scores, tags, automaton, clamp=None):
    """(score with the automaton's, path) of a single sequence, best first."""
    found = []
    for score, path in reference.paths(scores, 0, len(scores.emissions), clamp):
        path = np.array(path, dtype=np.int32)
        total = score + score_of(automaton, tags.events_of(path, np.arange(len(path)) == 0))
        if total > -math.inf:
            found.append((total, tuple(path.tolist())))
    return sorted(found, key=lambda item: -item[0])


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("spread", [1.0, 400.0])
@pytest.mark.parametrize("name", SCHEMES)
def test_graphs_match_enumeration(name, spread, per_position):
    scheme, n_labels = SCHEMES[name], 2 if name == "IO" else 1
    tags = span_tags(scheme, n_labels)
    for seed in range(4):
        scores, spans = scheme_scores(scheme, n_labels, [4], seed=seed, spread=spread, per_position=per_position)
        size = scores.emissions.shape[1]
        automaton = random_automaton(tags.n_events, seed=seed)
        structure = LinearChain().over(rule_graph(tags, automaton, all_pairs(size)))
        clamp = np.random.default_rng(seed).random((4, size)) < 0.85 if seed % 2 else None
        joined, joined_clamp, _ = join_sequences(scores, clamp)
        paths = accepted(scores, tags, automaton, clamp)
        log_z = reference.log_sum([score for score, _ in paths])
        assert structure.log_partition(joined, clamp=joined_clamp)[0] == pytest.approx(log_z, abs=1e-9)
        best = structure.viterbi(joined, clamp=joined_clamp)
        if not paths:
            assert best.scores[0] == -np.inf and (best.states == -1).all()
            assert (structure.sample(joined, 2, seed=0, clamp=joined_clamp) == -1).all()
            assert structure.n_best(joined, 2, clamp=joined_clamp) == [[]]
            continue
        assert best.scores[0] == pytest.approx(paths[0][0], abs=1e-9)
        assert tuple(best.states.tolist()) == paths[0][1]
        [n_best] = structure.n_best(joined, 5, clamp=joined_clamp)
        assert [tuple(path.tolist()) for _, path in n_best] == [path for _, path in paths[:5]]
        np.testing.assert_allclose([score for score, _ in n_best], [score for score, _ in paths[:5]], atol=1e-9)

        expected = {key: np.zeros_like(getattr(joined, key)) for key in ("emissions", "transitions", "first", "last")}
        in_spans = {}
        for score, path in paths:
            p = math.exp(score - log_z)
            for key, index in reference.uses(scores, 0, 4, path):
                expected[key][index] += p
            segments = scheme.decode(np.array(path, dtype=np.int32), np.array([0, 4]))
            for key in zip(*(column.tolist() for column in segments)):
                in_spans[key] = in_spans.get(key, 0.0) + p
        _, expectations = structure.expectations(joined, clamp=joined_clamp, weights=np.array([2.0]))
        for key, value in expected.items():
            np.testing.assert_allclose(getattr(expectations, key), 2 * value, atol=1e-9, err_msg=key)
        spans = spans._replace(continues=np.pad(spans.continues, (0, 1)))
        found = as_dict(structure.likely_spans(joined, spans, 0.0, clamp=joined_clamp))
        for key in in_spans.keys() | found.keys():
            assert found.get(key, 0.0) == pytest.approx(in_spans.get(key, 0.0), abs=1e-9)
        if in_spans:
            segments = Segments(*(np.array(column) for column in zip(*sorted(in_spans))))
            asked = structure.span_probabilities(joined, spans, segments, clamp=joined_clamp)
            np.testing.assert_allclose(asked, [in_spans[key] for key in sorted(in_spans)], atol=1e-9)
        if spread == 1.0:
            drawn = structure.sample(joined, 3000, seed=0, clamp=joined_clamp)
            frequencies = np.array([(drawn == np.array(path)).all(axis=1).mean() for _, path in paths])
            probabilities = np.exp(np.array([score for score, _ in paths]) - log_z)
            np.testing.assert_allclose(frequencies, probabilities, atol=0.04)
            assert frequencies.sum() == pytest.approx(1.0)
        if clamp is None:
            for score, path in paths[:3]:
                states = np.array(path, dtype=np.int32)
                assert structure.path_score(joined, states)[0] == pytest.approx(score, abs=1e-9)
                assert structure.log_probability(joined, states)[0] == pytest.approx(score - log_z, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_products_and_minimal_automata_score_the_same(seed):
    n_events = 4
    first, second = random_automaton(n_events, seed=seed), random_automaton(n_events, seed=seed + 100)
    both = product(first, second)
    small = minimised(both)
    assert small.n_states <= both.n_states
    rng = np.random.default_rng(seed)
    for _ in range(200):
        events = rng.integers(0, n_events, size=rng.integers(0, 6))
        expected = score_of(first, events) + score_of(second, events)
        assert score_of(both, events) == pytest.approx(expected)
        assert score_of(small, events) == pytest.approx(expected)
    assert (product(first, second, max_states=1) is None) == (both.n_states > 1)


def test_a_graph_without_states_has_no_path():
    nothing = np.full(3, -1, dtype=np.int32)
    assert tags_of(nothing, np.empty(0, dtype=np.int32)).tolist() == [-1, -1, -1]


def test_what_behaves_alike_is_merged():
    automaton = make_automaton(4, 3)
    automaton.next[:3, 2] += 1
    assert minimised(automaton).n_states == 1
    automaton.charge(3, 2, -np.inf)
    assert minimised(automaton).n_states == 4


def test_per_sentence_starts_anew():
    automaton = make_automaton(2, 4)
    automaton.next[:, 2] = 1, -1
    at_most_one = per_sentence(automaton)
    assert score_of(at_most_one, [2, 0, BREAK, 2]) == 0.0
    assert score_of(at_most_one, [2, 0, 2]) == -np.inf
