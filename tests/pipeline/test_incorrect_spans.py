"""Spans known to be wrong: what is left are exactly the labellings without them, alone and beside rules."""

import functools

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.constraints.rule import PatternMatches
from spacy_crf.constraints.training import Excluded, RuledChain
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.schemes import SCHEMES, Segments
from tests import reference
from tests.constraints.test_constraints import LABELS, TOGETHER, labellings, make_rules
from tests.constraints.test_rules_in_training import breaks_of
from tests.inference.test_spans import scheme_scores
from tests.util import ner_examples, plain

DOC = np.array([0, 5])  # one document of two sentences, of 2 and 3 tokens
WRONG = {
    "one token": [(3, 4, 0)],
    "two tokens": [(0, 2, 1)],
    "to the end": [(3, 5, 0), (4, 5, 1)],
    "whole sentences": [(0, 2, 1), (2, 5, 1)],
    "one beginning": [(2, 3, 0), (2, 4, 0)],
    "one end": [(2, 5, 1), (3, 5, 1), (4, 5, 1)],
    "labels on one span": [(2, 4, 0), (2, 4, 1)],
    "one after the other": [(2, 3, 1), (3, 4, 1), (4, 5, 1)],
    "everything": [(b, e, x) for b in range(5) for e in range(b + 1, 6) for x in (0, 1) if e <= 2 or b >= 2],
}


def segments(spans):
    return Segments(*(np.array(column, dtype=np.int64) for column in zip(*sorted(spans))))


def partial(scores):
    """An annotation that leaves nearly all open."""
    clamp = np.ones(scores.emissions.shape, dtype=bool)
    clamp[0, 1] = False
    return clamp


@functools.cache
def given(name, with_rules, per_position):
    """RETURNS: A scheme, rules and scores, and all labellings, with and without an annotation."""
    scheme = SCHEMES[name]
    rules = make_rules(TOGETHER if with_rules else [], scheme)
    scores, _ = scheme_scores(scheme, 2, [2, 3], seed=1, spread=1.0, per_position=per_position)
    breaks = breaks_of(rules) if with_rules else lambda tags, found: 0.0
    free = labellings(scores, scheme, breaks)
    return rules, scores, labellings(scores, scheme, breaks, clamp=partial(scores)), free


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("with_rules", [False, True], ids=["alone", "with rules"])
@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_left_are_the_labellings_without_them(name, with_rules, wrong):
    rules, scores, every, free = given(name, with_rules, len(wrong) % 2 == 0)
    clamp = partial(scores)
    left = [
        (score, tags) for score, tags, found in every if not {(s.begin, s.end, s.label) for s in found} & set(wrong)
    ]
    assert 0 < len(left) < len(every)
    chain = RuledChain(rules, PatternMatches(), clamp, scores.starts, DOC, excluded=Excluded(segments(wrong)))
    log_z, expected = chain.expectations(scores, clamp=clamp)
    total = reference.log_sum([score for score, _ in left])
    assert log_z.sum() == pytest.approx(total, abs=1e-9)
    marginals = np.zeros_like(scores.emissions)
    for score, tags in left:
        marginals[np.arange(5), tags] += np.exp(score - total)
    np.testing.assert_allclose(expected.emissions, marginals, atol=1e-9)
    best, used = chain.viterbi_counts(scores, clamp=clamp)
    assert best.sum() == pytest.approx(left[0][0])
    assert tuple(used.emissions.argmax(axis=1).tolist()) == left[0][1]
    # Without a clamp nothing is said of the annotation.
    assert chain.expectations(scores)[0].sum() == pytest.approx(reference.log_sum([score for score, _, _ in free]))


@pytest.mark.parametrize("wrong", [WRONG["one token"], WRONG["one end"], WRONG["whole sentences"]])
@pytest.mark.parametrize("loss", [MaxMargin(), SoftmaxMargin(), MaxMargin(cost={"O": {"A": 0.25}})], ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_wrong_span_costs_what_a_wrong_token_costs(name, loss, wrong):
    """Whatever its length and the scheme."""
    scheme = SCHEMES[name]
    rules, size = make_rules([], scheme), len(scheme.tags(LABELS))
    loss = loss.bind(["O", *(label for label in LABELS for _ in scheme.prefixes)])
    scores, _ = scheme_scores(scheme, 2, [2, 3], seed=4, spread=1.0)
    clamp = partial(scores)
    clamp[1:3, 0] = False  # in some entity
    costs = loss.least_costs(size)
    chain = RuledChain(
        rules, PatternMatches(), clamp, scores.starts, DOC, excluded=Excluded(segments(wrong), costs=costs)
    )
    every = labellings(scores, scheme, lambda tags, found: 0.0)
    found_of = [{(s.begin, s.end, s.label) for s in found} & set(wrong) for _, _, found in every]
    table = loss.costs(size)

    def cost(tags, found):
        of_tokens = [0.0 if clamp[t, tag] else table[clamp[t], tag].min() for t, tag in enumerate(tags)]
        return sum(of_tokens) + sum(costs[tags[end - 1]] for _, end, _ in found)

    augmented = [score + cost(tags, found) for (score, tags, _), found in zip(every, found_of)]
    right = [
        score
        for (score, tags, _), found in zip(every, found_of)
        if not found and all(clamp[t, tag] for t, tag in enumerate(tags))
    ]
    together = reference.log_sum if loss.smooth else max
    losses, _, impossible = loss(chain, scores, clamp)
    assert not impossible.any() and (costs[1:] > 0.0).all()
    assert losses.sum() == pytest.approx(together(augmented) - together(right), abs=1e-9)


@pytest.mark.parametrize("loss", [LogLikelihood, Perceptron, MaxMargin, SoftmaxMargin])
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("tables", [[], TOGETHER], ids=["alone", "with rules"])
def test_gradients_match_finite_differences(loss, per_position, tables):
    scheme = SCHEMES["BILUO"]
    rules = make_rules(tables, scheme)
    scores, _ = scheme_scores(scheme, 2, [2, 3, 4], seed=3, per_position=per_position)
    clamp = partial(scores)
    doc_starts = np.array([0, 5, 9])
    costs = loss().least_costs(scores.emissions.shape[1])
    steps = np.array([[1, 0, 1], [3, 1, 0], [7, 1, 1]])  # nor do some spans go on or begin there
    excluded = Excluded(segments(WRONG["one end"]), steps, costs)
    chain = RuledChain(rules, PatternMatches(), clamp, scores.starts, doc_starts, excluded=excluded)
    weights = np.array([2.0, 2.0, 0.5])
    _, gradient, impossible = loss()(chain, scores, clamp, weights=weights)
    assert not impossible.any()
    rng = np.random.default_rng(0)
    for key in ("emissions", "transitions", "first", "last"):
        direction = rng.normal(size=getattr(scores, key).shape)

        def value(step, key=key, direction=direction):
            moved = scores._replace(**{key: getattr(scores, key) + step * direction})
            return loss()(chain, moved, clamp, weights=weights)[0].sum()

        slope = (value(1e-6) - value(-1e-6)) / 2e-6
        assert (getattr(gradient, key) * direction).sum() == pytest.approx(slope, abs=1e-5)


def test_many_spans_of_one_label_share_copies():
    scheme = SCHEMES["BILUO"]
    rules = make_rules([], scheme)
    scores, _ = scheme_scores(scheme, 2, [40], seed=0)
    clamp = np.ones(scores.emissions.shape, dtype=bool)
    spans = [(t, t + 3, 0) for t in range(0, 36, 3)]
    chain = RuledChain(
        rules, PatternMatches(), clamp, scores.starts, np.array([0, 40]), excluded=Excluded(segments(spans))
    )
    [group] = chain._groups
    assert len(group.copies.tag_of) == scores.emissions.shape[1] + 4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_annotated_tokens_of_a_wrong_span_of_o_stay_outside(scheme):
    """docs/annotation.md said "none of these tokens is outside", but annotation says more."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner", config={"scheme": scheme, "incorrect_spans_key": "wrong"})
    nlp.initialize(lambda: ner_examples(nlp))
    reference_doc = Doc(nlp.vocab, words=["a", "b", "c"])
    reference_doc.set_ents([], outside=[reference_doc[0:1]], default="missing")
    reference_doc.spans["wrong"] = [Span(reference_doc, 0, 3, "O")]
    data = ner.training.data([Example(plain(reference_doc), reference_doc)])
    is_outside = np.array([tag == "O" for tag in ner.tags()])
    assert (data.allowed[0] == is_outside).all()
    assert (~data.allowed[1:, is_outside]).all() and data.allowed[1:].any(axis=1).all()
