"""Rules in training: the same Z as in decoding, with its derivative, and gold that breaks a rule."""

import logging
import math

import numpy as np
import pytest
import spacy
from spacy.training import Example

from spacy_crf.constraints import rule_set
from spacy_crf.constraints.rule import PatternMatches
from spacy_crf.constraints.settings import constraints
from spacy_crf.constraints.training import RuledChain
from spacy_crf.losses.clamped import LogLikelihood, Perceptron
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.schemes import SCHEMES
from tests import reference
from tests.components import SEGMENTS, Annotation, component, make_doc, random_scores
from tests.constraints.test_constraints import (
    TOGETHER,
    A,
    B,
    count,
    facts_of,
    labellings,
    make_rules,
    order_broken,
    price,
)
from tests.inference.test_spans import scheme_scores
from tests.pipeline.test_probabilities import trained, with_rules
from tests.util import ner_examples, set_constraints


def breaks_of(rules):
    def breaks(tags, found):
        times = [
            sum(max(0, count(found, label) - 1) for label in (A, B)),
            int(count(found, B) > 0 and count(found, A) == 0),
            sum(c.label == A and c.end - c.begin > 2 for c in found),
            order_broken(found),
        ]
        return sum(price(rule, n) for rule, n in zip(rules.rules, times))

    return breaks


@pytest.mark.parametrize("name", ["BIO", "IOB1"])
@pytest.mark.parametrize("loss", [LogLikelihood, Perceptron])
def test_the_loss_is_that_of_the_labellings_that_keep_the_rules(name, loss):
    scheme = SCHEMES[name]
    rules = make_rules(TOGETHER, scheme)
    scores, _ = scheme_scores(scheme, 2, [2, 3], seed=2)
    every = labellings(scores, scheme, breaks_of(rules))
    gold_score, gold, _ = every[4]
    clamp = np.array(gold)[:, None] == np.arange(scores.emissions.shape[1])
    chain = RuledChain(rules, PatternMatches(), clamp, scores.starts, np.array([0, 5]))
    assert not chain.broken
    losses, gradient, impossible = loss()(chain, scores, clamp)
    values = [score for score, _, _ in every]
    best = reference.log_sum(values) if loss is LogLikelihood else values[0]
    assert losses.sum() == pytest.approx(best - gold_score)
    assert not impossible.any()
    rng = np.random.default_rng(0)
    for key in ("emissions", "transitions", "first", "last"):  # finite differences in a random direction
        direction = rng.normal(size=getattr(scores, key).shape)

        def value(step, key=key, direction=direction):
            moved = scores._replace(**{key: getattr(scores, key) + step * direction})
            return loss()(chain, moved, clamp)[0].sum()

        slope = (value(1e-6) - value(-1e-6)) / 2e-6
        assert (getattr(gradient, key) * direction).sum() == pytest.approx(slope, abs=1e-5)


def test_gold_that_breaks_a_rule_is_trained_without_it():
    scheme = SCHEMES["BIO"]
    rules = make_rules(
        [{"rule": "at_most", "label": "A", "n": 0}, {"rule": "only_on", "label": "B", "phrases": "x"}], scheme
    )
    scores, _ = scheme_scores(scheme, 2, [2, 3], seed=0)
    tags = np.array([1, 0, 0, 0, 3])  # A breaks the first rule; B stands on a covered token
    clamp = tags[:, None] == np.arange(5)
    facts = facts_of(rules, 5)
    chain = RuledChain(rules, facts, clamp, scores.starts, np.array([0, 2, 5]))
    assert [(rule.kind, d) for rule, d, _ in chain.broken] == [("at_most", 0)]
    losses, _, impossible = LogLikelihood()(chain, scores, clamp)
    assert (losses > 0).all() and not impossible.any()


def test_components_train_under_rules(caplog):
    rules = [
        {"rule": "at_most", "label": "PER", "n": 1, "name": "one person"},
        {"rule": "forbid_pair", "labels": ["PER", "GPE"]},
    ]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp = trained(iterations=15, **with_rules(rules, in_training=True))
    [record] = [record.message for record in caplog.records]
    assert "1 gold annotations break the rule 'one person'" in record and "Acme Corp hired" in record
    for example in ner_examples(nlp):
        found = [(ent.start, ent.end, ent.label_) for ent in nlp(example.text).ents]
        gold = [(ent.start, ent.end, ent.label_) for ent in example.reference.ents]
        assert found == gold or "hired" in example.text
    assert math.isfinite(nlp.get_pipe("crf_ner").log_probability(nlp.make_doc("Bob left"), []))
    with pytest.raises(ValueError, match=r"CRF614.*'1: at_most'"):
        trained(**with_rules([{"rule": "at_most", "label": "*", "n": 9}], in_training=True, max_states=5))


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_what_training_can_not_keep_is_said(factory, caplog):
    """It did nothing, and said nothing."""
    tables = [{"rule": "at_most", "label": "ORG", "n": 2}, {"rule": "same_text_same_label", "name": "one label"}]
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=with_rules(tables, in_training=True))
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for _ in range(2):
            nlp.update(examples, sgd=LBFGS(iterations_per_step=2))
    [record] = [record.message for record in caplog.records if "CRFW610" in record.message]
    assert "one label" in record and "at_most" not in record


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_a_rule_that_comes_between_two_steps_holds_in_the_next(factory):
    """The corpus that was prepared for the first one went on without it."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config=with_rules([{"rule": "at_most", "label": "GPE", "n": 3}], in_training=True))
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    sgd = LBFGS(l2=0.01, iterations_per_step=3)
    nlp.update(examples, sgd=sgd)
    prepared = pipe.training.corpus
    nlp.update(examples, sgd=sgd)
    assert pipe.training.corpus is prepared
    pipe.add_rule({"rule": "never_on", "label": "*", "phrases": ["lives", "rains", "from"]})
    nlp.update(examples, sgd=sgd)
    assert pipe.training.corpus is not prepared
    now, before = pipe.training.corpus.objective, prepared.objective
    assert now.evaluate(now.weights())[0] < before.evaluate(before.weights())[0]


# Of "bb", of which nothing is known, one rule wants what the other forbids
CLASHING = [
    {"rule": "at_most", "label": "A", "n": 5},
    {"rule": "at_least", "label": "B", "n": 1, "name": "one B"},
    {"rule": "never_on", "label": "B", "phrases": ["bb"], "name": "no bb"},
]


def loss_under(pipe, tables, scores, known, **settings):
    pipe.loss = LogLikelihood()
    set_constraints(pipe, constraints(tables, in_training=True, **settings))
    lengths, words = np.diff(scores.starts).tolist(), ["aa", "bb", "cc"][: int(scores.starts[-1])]
    gold = known.write(make_doc(pipe, lengths, words))
    return pipe.training.loss_of([Example(make_doc(pipe, lengths, words), gold)], scores)[0]


@pytest.mark.parametrize("kind", [("chain", "BIO"), ("order 2", "BIO"), SEGMENTS], ids=lambda kind: kind[0])
def test_of_rules_that_the_annotation_can_not_keep_together_the_later_one_yields(kind, caplog):
    """The text was dropped, and doc.spans blamed for it."""
    pipe = component(kind)
    pipe.warned.clear()
    scores, known = random_scores(pipe, [2], np.random.default_rng(0)), Annotation([], [0])
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        loss = loss_under(pipe, CLASHING, scores, known)
    [record] = [record.message for record in caplog.records]
    assert "1 gold annotations can't keep the rule 'no bb' together with 'one B', and are trained without it" in record
    assert loss == pytest.approx(loss_under(pipe, CLASHING[:2], scores, known)) and loss > 0


def test_rules_that_are_too_large_without_one_that_yields_are_refused():
    """An AttributeError: all of them together were small, since the one that the annotation breaks leaves few labellings."""
    pipe = component(("chain", "BIO"))
    tables = [
        {"rule": "at_most", "label": label, "n": n, "name": f"{n} {label}"}
        for label, n in (("A", 0), ("A", 9), ("B", 9))
    ]
    scores, known = random_scores(pipe, [2], np.random.default_rng(0)), Annotation([(0, 1, "A")], [])
    with pytest.raises(ValueError, match=r"CRF614.*'9 B'.*larger than 15 states"):
        loss_under(pipe, tables, scores, known, max_states=15)


@pytest.mark.parametrize("kind", [("chain", "BIO"), SEGMENTS], ids=lambda kind: kind[0])
def test_rules_count_as_far_as_texts_are_long(kind, monkeypatch):
    """Training knew them for texts of 256 tokens: of longer ones it said that they break what asks for more."""
    monkeypatch.setattr(rule_set, "SHORT", 2)
    pipe, every = component(kind), Annotation([(t, t + 1, "A") for t in range(3)], [])
    scores = random_scores(pipe, [3], np.random.default_rng(0))
    loss = loss_under(pipe, [{"rule": "exactly", "label": "A", "n": 3}], scores, every)
    assert loss == pytest.approx(0.0)  # no other labelling has three
