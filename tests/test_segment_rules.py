"""Rules about segments: each against its definition over all segmentations of tiny texts, and as users of `semicrf_ner` meet
them."""

import math
from itertools import pairwise

import numpy as np
import pytest

from spacy_crf.constraints.rules import RULES, constraints
from spacy_crf.constraints.segments import SegmentRules, decode
from spacy_crf.inference.segment_graph import by_label, cut_segments, expand, join_segment_sequences, labels_of
from spacy_crf.inference.semi_markov import Segments, SemiMarkov
from spacy_crf.types import GOES_ON, SegmentClamp

from . import reference
from .test_constraints import LABELS, TABLE, A, B, Span, count, facts_of, order_broken, price
from .test_semi_markov import random_scores

DOC = np.array([0, 5])
HELD = [(table, times) for table, times in TABLE if table["rule"] != "same_text_same_label"]


def make_rules(tables, labels=LABELS, **settings):
    return SegmentRules(constraints(tables, **settings), labels)


def make_scores(lengths, seed, **settings):
    """Scores as the model gives them: O is one token long, and labels have a longest segment."""
    scores = random_scores(lengths, 3, seed=seed, spread=1.0, **settings)
    scores.lengths[1:, 0] = -np.inf
    scores.lengths[2:, 2] = -np.inf
    return scores


def segmentations(scores, breaks, clamp=None):
    """(score, path, spans) of all segmentations of a document, best first: the score less the price of what is broken."""
    found = [(0.0, (), [])]
    for number, (begin, end) in enumerate(reference.segment_sequences(scores)):
        found = [
            (
                before + score,
                (*path, *segments),
                [*spans, *(Span(b, e, s - 1, number, b == begin) for b, e, s in segments if s > 0)],
            )
            for before, path, spans in found
            for score, segments in reference.segment_paths(scores, begin, end, clamp)
        ]
    priced = [(score + breaks(path, spans), path, spans) for score, path, spans in found]
    return sorted((item for item in priced if item[0] > -math.inf), key=lambda item: -item[0])


def as_path(segments, tokens):
    path = np.full(tokens, GOES_ON)
    for begin, _, state in segments:
        path[begin] = state
    return path.tolist()


def assert_the_same_distribution(rules, scores, facts, expected, clamp=None):
    """Sums, marginals, n best and samples of the expanded chain against a list of all segmentations."""
    semi, size, tokens = SemiMarkov(), scores.tokens.shape[1], len(scores.tokens)
    graph = rules.graph(rules.fitting()[0])
    chain = expand(join_segment_sequences(rules.apply(scores, facts), clamp), graph)
    log_z = reference.log_sum([score for score, _, _ in expected])
    assert semi.log_partition(chain.scores, clamp=chain.clamp)[0] == pytest.approx(log_z, abs=1e-9)
    [best] = semi.n_best(chain.scores, 4, clamp=chain.clamp)
    folded = [labels_of(path, graph.tag_of)[chain.tokens].tolist() for _, path in best]
    assert folded == [as_path(segments, tokens) for _, segments, _ in expected[:4]]
    in_tokens, in_segments = np.zeros((tokens, size)), {}
    for score, segments, _ in expected:
        p = math.exp(score - log_z)
        for segment in segments:
            begin, end, state = segment
            in_tokens[begin:end, state] += p
            in_segments[segment] = in_segments.get(segment, 0.0) + p
    marginals = semi.marginals(chain.scores, clamp=chain.clamp)[chain.tokens]
    np.testing.assert_allclose(by_label(marginals, graph.tag_of, size), in_tokens, atol=1e-9)
    for (begin, end, state), p in in_segments.items():
        states = np.flatnonzero(graph.tag_of == state)
        begins, ends = np.full(len(states), chain.tokens[begin]), np.full(len(states), chain.tokens[end - 1] + 1)
        found = semi.segment_probabilities(chain.scores, Segments(begins, ends, states), clamp=chain.clamp)
        assert found.sum() == pytest.approx(p, abs=1e-9)
    drawn = labels_of(semi.sample(chain.scores, 300, seed=1, clamp=chain.clamp), graph.tag_of)[:, chain.tokens]
    possible = {tuple(as_path(segments, tokens)) for _, segments, _ in expected}
    assert {tuple(path) for path in drawn.tolist()} <= possible


@pytest.mark.parametrize("number", range(len(HELD)))
def test_rules_mean_what_they_say(number):
    table, times = HELD[number]
    for weight in (None,) if table["rule"] == "custom" else (None, 0.7, -0.4):
        rules = make_rules([table if weight is None else {**table, "weight": weight}])
        [rule] = rules.rules
        scores = make_scores([2, 3], seed=number, per_position=number % 2 == 1)
        facts = facts_of(rules, 3)

        def breaks(path, spans, rule=rule, facts=facts):
            if rule.kind == "custom":
                return 0.0 if all(facts[0][b:e, state].all() for b, e, state in path) else -math.inf
            return price(rule, times(spans))

        expected = segmentations(scores, breaks)
        decoded = decode(rules, scores, DOC, facts)
        if not expected:
            assert decoded.relaxed == {0: [rule.name]}
            continue
        assert not decoded.relaxed
        assert decoded.tags.tolist() == as_path(expected[0][1], 5)
        assert_the_same_distribution(rules, scores, facts, expected)


def test_every_rule_but_one_is_held():
    assert {table["rule"] for table, _ in HELD} == set(RULES) - {"same_text_same_label"}


TOGETHER = [
    {"rule": "at_most", "label": "*", "n": 1},
    {"rule": "requires", "if": "B", "then": "A"},
    {"rule": "length", "label": "A", "max": 2},
    {"rule": "order", "labels": ["B", "A"], "per": "doc", "weight": 0.5},
    {"rule": "forbid_pair", "labels": ["A", "O"], "weight": 0.3},
]


def together_broken(rules):
    def breaks(path, spans):
        after_a = sum((c[2], d[2]) == (1, 0) and d[0] != 2 for c, d in pairwise(path))
        times = [
            sum(max(0, count(spans, label) - 1) for label in (A, B)),
            int(count(spans, B) > 0 and count(spans, A) == 0),
            sum(c.label == A and c.end - c.begin > 2 for c in spans),
            order_broken(spans),
            after_a,
        ]
        return sum(price(rule, n) for rule, n in zip(rules.rules, times))

    return breaks


@pytest.mark.parametrize("seed", range(6))
def test_rules_together_and_a_clamp(seed):
    rules = make_rules(TOGETHER)
    scores = make_scores([2, 3], seed)
    rng = np.random.default_rng(seed)
    clamp = SegmentClamp(rng.random((5, 3)) < 0.9, rng.random(5) < 0.9, rng.random(5) < 0.1) if seed % 2 else None
    if clamp is not None:
        clamp.states[:, 0] = True
        clamp.may_begin[clamp.must_begin] = True
    expected = segmentations(scores, together_broken(rules), clamp)
    decoded = decode(rules, scores, DOC, {}, clamp=clamp)
    assert not decoded.relaxed and expected
    assert decoded.tags.tolist() == as_path(expected[0][1], 5)
    assert_the_same_distribution(rules, scores, {}, expected, clamp)


def test_a_batch_is_decoded_document_by_document():
    rules = make_rules([{"rule": "exactly", "label": "*", "n": 1}, {"rule": "order", "labels": ["B", "A"]}])
    scores = make_scores([4, 3, 0, 5, 2], 4)
    doc_starts = np.array([0, 7, 7, 14])
    together = decode(rules, scores, doc_starts, {})
    assert not together.relaxed and together.solved
    for tokens, starts in ((slice(0, 7), [0, 4, 7]), (slice(7, 14), [0, 5, 7])):
        alone, _ = cut_segments(scores, None, tokens)
        assert alone.starts.tolist() == starts
        assert decode(rules, alone, np.array([0, 7]), {}).tags.tolist() == together.tags[tokens].tolist()


def test_later_rules_yield():
    tables = [
        {"rule": "at_least", "label": "A", "n": 2, "name": "two"},
        {"rule": "at_least", "label": "B", "n": 2, "name": "too many for three tokens"},
        {"rule": "at_most", "label": "A", "n": 2, "name": "no more"},
    ]
    decoded = decode(make_rules(tables), make_scores([3], 0), np.array([0, 3]), {})
    assert decoded.relaxed == {0: ["too many for three tokens"]}
    assert decoded.tags.tolist().count(1) == 2


@pytest.mark.parametrize(
    "tables, settings, message",
    [
        ([{"rule": "same_text_same_label"}], {}, "CRF617.*same_text_same_label"),
        (
            [{"rule": "at_most", "label": "*", "n": 3, "name": "few"}],
            {"max_states": 5},
            "CRF617.*'few'.*max_states = 5",
        ),
        ([{"rule": "at_most", "label": "A", "n": 1}], {"in_training": True}, "CRF618"),
        ([{"rule": "at_most", "label": "DATE", "n": 1}], {}, "CRF609"),
    ],
)
def test_what_segments_can_not_keep_is_refused(tables, settings, message):
    with pytest.raises(ValueError, match=message):
        make_rules(tables, **settings)
