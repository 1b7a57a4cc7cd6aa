"""Rules in the training of segments: the same Z as in decoding, with its derivative, and gold that breaks a rule."""

import logging
import math
from functools import partial

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.constraints.rule import PatternMatches
from spacy_crf.constraints.training import RuledSegments
from spacy_crf.losses.clamped import LogLikelihood, Perceptron, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import GOES_ON, SegmentClamp
from tests import reference
from tests.constraints.test_constraints import facts_of
from tests.constraints.test_segment_rules import (
    TOGETHER,
    make_rules,
    make_scores,
    segmentations,
    together_broken,
    trained,
    with_rules,
)
from tests.util import entities, ner_examples

LONGEST = np.array([1, 3, 2])
FIELDS = ("tokens", "begins", "ends", "lengths", "spans", "transitions", "first", "last")


def only(path):
    """The clamp that leaves one path."""
    begins = path != GOES_ON
    first = np.maximum.accumulate(np.where(begins, np.arange(len(path)), 0))
    return SegmentClamp(path[first][:, None] == np.arange(3), begins, begins)


def path_from(segments, tokens=5):
    path = np.full(tokens, GOES_ON, dtype=np.int32)
    for begin, _, state in segments:
        path[begin] = state
    return path


def assert_gradient(loss, structure, scores, clamp, gradient):
    """It is the finite difference along a random direction of all scores."""
    rng = np.random.default_rng(0)
    directions = {name: rng.normal(size=getattr(scores, name).shape) for name in FIELDS}

    def value(step):
        with np.errstate(invalid="ignore"):
            moved = {name: getattr(scores, name) + step * direction for name, direction in directions.items()}
        return loss(structure, scores._replace(**moved), clamp)[0].sum()

    along = sum((getattr(gradient, name) * direction).sum() for name, direction in directions.items())
    assert along == pytest.approx((value(1e-6) - value(-1e-6)) / 2e-6, abs=1e-5)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("lengths", [[2, 3], [5], [1, 0, 3, 1]], ids=str)
@pytest.mark.parametrize("loss", [LogLikelihood, Perceptron])
def test_the_loss_is_that_of_the_segmentations_that_keep_the_rules(lengths, loss, per_position):
    rules = make_rules(TOGETHER)
    scores = make_scores(lengths, 2, per_position=per_position)
    every = segmentations(scores, together_broken(rules, lengths))
    gold_score, gold, _ = every[4]
    clamp = only(path_from(gold))
    structure = RuledSegments(rules, PatternMatches(), clamp, scores.starts, np.array([0, 5]), LONGEST)
    assert not structure.broken
    losses, gradient, impossible = loss()(structure, scores, clamp)
    values = [score for score, _, _ in every]
    best = reference.log_sum(values) if loss is LogLikelihood else values[0]
    assert losses.sum() == pytest.approx(best - gold_score)
    assert not impossible.any()
    best, used = structure.viterbi_counts(scores)
    assert best.sum() == pytest.approx(every[0][0])
    assert np.flatnonzero(used.begins.any(axis=1)).tolist() == [begin for begin, _, _ in every[0][1]]
    assert_gradient(loss(), structure, scores, clamp, gradient)


def test_documents_are_trained_each_under_its_rules():
    """Gold that breaks a rule leaves that rule out, for its document only; all is as if each document were alone."""
    tables = [{"rule": "at_most", "label": "A", "n": 1}, {"rule": "only_on", "label": "B", "phrases": "x"}]
    rules = make_rules(tables)
    scores = make_scores([2, 3, 0, 4, 1], 3)
    path = np.array([1, 1, 0, 2, 0, 0, 1, GOES_ON, 0, 0])  # A twice in the first document
    facts = facts_of(rules, 3).at(np.tile(np.arange(5), 2))
    facts[1].covered[3] = True
    clamp, doc_starts = only(path), np.array([0, 5, 5, 10])
    structure = RuledSegments(rules, facts, clamp, scores.starts, doc_starts, LONGEST)
    assert [(rule.kind, d) for rule, d, _ in structure.broken] == [("at_most", 0)]
    weights = np.array([1.0, 1.0, 1.0, 0.5, 0.5])
    losses, gradient, impossible = SoftmaxMargin()(structure, scores, clamp, weights=weights)
    assert losses.sum() > 0 and not impossible.any()
    assert_gradient(partial(SoftmaxMargin(), weights=weights), structure, scores, clamp, gradient)


RULES = [
    {"rule": "at_most", "label": "PER", "n": 1, "name": "one person"},
    {"rule": "forbid_pair", "labels": ["PER", "GPE"]},
    {"rule": "length", "label": "PER", "max": 1, "name": "short"},
]


def test_components_train_under_rules(caplog):
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp = trained(iterations=15, **with_rules(RULES[:2], in_training=True))
    [record] = [record.message for record in caplog.records]
    assert "1 gold annotations break the rule 'one person'" in record and "Acme Corp hired" in record
    for example in ner_examples(nlp):
        gold = [(ent.start, ent.end, ent.label_) for ent in example.reference.ents]
        assert entities(nlp(example.text)) == gold or "hired" in example.text
    ner = nlp.get_pipe("semicrf_ner")
    assert math.isfinite(ner.log_probability(nlp.make_doc("Bob left"), []))
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        trained(**with_rules(RULES, in_training=True))
    assert any("3 gold annotations break the rule 'short'" in record.message for record in caplog.records)
    with pytest.raises(ValueError, match=r"CRF614.*'1: at_most'"):
        trained(**with_rules([{"rule": "at_most", "label": "*", "n": 9}], in_training=True, max_states=5))


def test_the_objective_is_the_probability_under_the_rules():
    """What L-BFGS minimises is minus the log probability that the component itself gives to the annotation."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("semicrf_ner", config=with_rules(RULES[:2], in_training=True))
    examples = [eg for eg in ner_examples(nlp) if "hired" not in eg.text]
    nlp.initialize(lambda: examples)
    losses = {}
    nlp.update(examples, sgd=LBFGS(l2=0.0, iterations_per_step=3), losses=losses)
    log_probabilities = []
    for example in examples:
        doc = Doc(nlp.vocab, words=[token.text for token in example.reference])
        spans = [Span(doc, ent.start, ent.end, label=ent.label) for ent in example.reference.ents]
        log_probabilities.append(ner.log_probability(doc, spans))
    assert losses["semicrf_ner"] == pytest.approx(-sum(log_probabilities), rel=1e-4)
