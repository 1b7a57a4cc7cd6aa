"""The temperature by which `crf fit` divides the scores of a component."""

import copy
import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf import lite
from spacy_crf.arrays import named
from spacy_crf.cross_validation import fit
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.folds import Folds
from spacy_crf.migrate.lite import export_lite, write_lite
from spacy_crf.race import DEVIATION, USUAL_TEMPERATURE, Judged, Race, divide_scores
from tests import reference
from tests.cli.test_fit import TEXTS, config, read
from tests.components import ORDER
from tests.pipeline.test_crf_ner import train
from tests.util import entities, ner_examples, tag_examples

UNSEEN = [
    "[Ann](PER) met [Bob Ray](PER) in [Lima](GPE) .",
    "[Rome](PER) lives in [Kyiv](GPE) .",
    "nobody lives in [Ann](GPE) .",
    "[Eve](PER) left [Oslo](GPE) for [Bonn](GPE) .",
]
TAGGED = ["Ann/N left/V", "Rome/V is/V Lima/N", "Bob/N met/N", "she/N left/V Oslo/N"]
SETTINGS = {"folds": 4, "words": False, "l1": [0.0], "l2": [0.03]}


def trained(factory="crf_ner", **settings):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config=settings)
    if factory == "crf_tagger":
        examples = tag_examples(nlp)
    else:
        examples = ner_examples(nlp, TEXTS)
    for n, example in enumerate(examples):
        example.reference.spans["sc"] = list(example.reference.ents)
        example.reference.cats = {"A": float(n % 2), "B": float(1 - n % 2)}
    train(nlp, examples)
    return nlp, pipe


def scores_of(pipe, texts=("Ann Lee lives in Rome .", "Kyiv met Bob .")):
    return pipe.model.predict(DocBatch([Doc(pipe.vocab, words=text.split()) for text in texts]))


FACTORIES = {
    "crf_ner": {},
    "crf_ner of order 2": {"model": ORDER},
    "crf_tagger": {},
    "semicrf_ner": {},
    "crf_spancat": {},
    "crf_textcat": {},
    "crf_textcat of several": {"multilabel": True},
}


@pytest.mark.parametrize("case", FACTORIES)
def test_all_scores_of_any_component_are_divided(case):
    _, pipe = trained(case.split()[0], **FACTORIES[case])
    before = named(scores_of(pipe))
    divide_scores(pipe, 1.7)
    after = named(scores_of(pipe))
    assert any(np.abs(array[np.isfinite(array)]).max(initial=0.0) > 0.1 for array in before.values())
    for name, array in before.items():
        assert after[name] == pytest.approx(array / 1.7, abs=1e-5)


def test_probabilities_are_those_of_divided_scores_and_the_best_path_stays():
    nlp, pipe = trained()
    docs = [Doc(nlp.vocab, words=["Ann", "Ray", "in"]), Doc(nlp.vocab, words=["Rome"])]
    batch = DocBatch(docs)
    scores = pipe.model.predict(batch)
    divided = scores._replace(**{name: array / 1.7 for name, array in named(scores).items()})
    best = [entities(doc) for doc in nlp.pipe(doc.copy() for doc in docs)]
    divide_scores(pipe, 1.7)
    marginals = np.concatenate([pipe.marginals(doc)[0] for doc in docs])
    # The decoding forbids tags at the edges of sentences
    possible = marginals > 0.0
    expected = reference.expectations(divided, possible).emissions
    assert marginals == pytest.approx(expected, abs=1e-5)
    assert [entities(doc) for doc in nlp.pipe(docs)] == best


@pytest.mark.parametrize("case", ["crf_ner", "crf_spancat", "crf_tagger"])
def test_the_temperature_has_the_least_log_loss_of_labels_and_the_prior(case):
    nlp, pipe = trained(case)
    examples = tag_examples(nlp, TAGGED) if case == "crf_tagger" else ner_examples(nlp, UNSEEN)
    for example in examples:
        example.reference.spans["sc"] = list(example.reference.ents)
    before = pipe.training.frame().weights()

    def loss(temperature):
        pipe.training.frame().assign(before / temperature)
        pipe.clear_scores()
        truth = []
        for example in examples:
            doc = example.predicted
            doc = nlp(doc.copy())
            gold = {mention.place for mention in pipe.annotation.mentions(example)[0]}
            if case == "crf_tagger":
                found = {(token.idx, token.idx + len(token), token.tag_): token._.crf_prob for token in doc}
            elif case == "crf_ner":
                found = {(ent.start_char, ent.end_char, ent.label_): ent._.crf_prob for ent in doc.ents}
            else:
                group = doc.spans["sc"]
                places = [(span.start_char, span.end_char, span.label_) for span in group]
                found = dict(zip(places, group.attrs["scores"]))
                truth += [1e-3] * len(gold - found.keys())
            truth += [p if place in gold else 1 - p for place, p in found.items()]
        prior = (math.log(temperature / USUAL_TEMPERATURE) / DEVIATION) ** 2 / 2
        return prior - np.log(np.maximum(truth, 1e-3)).sum()

    settings = dict(pipe.cfg)
    pipe.cfg.update({"confidence": True, "threshold": 1e-3})
    grid = np.geomspace(1.0, 2.1, 60)
    by_grid = grid[np.argmin([loss(temperature) for temperature in grid])]
    pipe.cfg = settings
    pipe.training.frame().assign(before)
    pipe.clear_scores()
    race = Race.__new__(Race)
    race._folds = Folds(np.array([0, 1, 1, 0]), np.arange(4), "")
    pipes = [pipe, copy.deepcopy(pipe)]
    unseen = [[examples[0], examples[3]], examples[1:3]]
    temperature = race._divide_by_best(Judged(np.zeros((0, 3)), pipes=pipes), unseen)
    assert temperature == pytest.approx(by_grid, rel=0.02)
    # The components are divided by it
    for divided in pipes:
        assert divided.training.frame().weights() == pytest.approx(before / temperature, rel=1e-5)


def test_fit_divides_the_weights_that_it_finds_otherwise():
    plain, (uncalibrated,) = fit(config(), read, **SETTINGS, calibrate=False)
    nlp, (found,) = fit(config(), read, **SETTINGS)
    assert uncalibrated.temperature == 1.0 and found.temperature != 1.0
    assert uncalibrated.error_before == uncalibrated.error_after
    before, after = (each.get_pipe("crf_ner").training.frame().weights() for each in (plain, nlp))
    assert after == pytest.approx(before / found.temperature, rel=1e-6)
    assert ((before == 0.0) == (after == 0.0)).all()


def test_exports_have_the_same_probabilities(tmp_path):
    nlp, _ = fit(config(), read, **SETTINGS)
    pipe = nlp.get_pipe("crf_ner")
    pipe.cfg["confidence"] = True
    write_lite(export_lite(nlp), tmp_path / "model.npz", "npz")
    words = ["Ann", "Lee", "lives", "in", "Rome", "."]
    model = lite.load(tmp_path / "model.npz").components["crf_ner"]
    theirs = {tuple(entity[:3]): entity.prob for entity in model.entities(words)}
    doc = nlp(Doc(nlp.vocab, words=words))
    assert len(theirs) == 2
    assert theirs == pytest.approx({(e.start, e.end, e.label_): e._.crf_prob for e in doc.ents}, abs=1e-6)


def test_without_mentions_found_nothing_is_divided():
    def texts(nlp):
        words = [["a"], ["b"], ["c"], ["d"], ["e", "f"]]
        docs = [Doc(nlp.vocab, words=each) for each in words]
        docs[-1].set_ents([docs[-1].char_span(0, 1, label="PER")])
        return [Example(Doc(nlp.vocab, words=each), doc) for each, doc in zip(words, docs)]

    _, (found,) = fit(config(), texts, **SETTINGS)
    assert found.temperature == 1.0
