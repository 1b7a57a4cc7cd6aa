"""A structure that the package does not know: a chain whose states are pairs of tags, as somebody may add it from outside.

All that a component does with it follows from the tag of each state: training, rules, probabilities, labellings, saving.
"""

import itertools

import numpy as np
import pytest
import spacy
from spacy.util import registry

from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.structure import build
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.util import entities, ner_examples, plain, tag_examples


class PairsNode(ChainNode):
    """State (b, a) is tag b behind tag a; a is the number of tags where b is the first one of its sequence."""

    traits = ChainNode.traits._replace(names_states=False)  # annotation names tags

    def tag_of(self, model, labels):
        return np.repeat(np.arange(len(labels)), len(labels) + 1)

    def possible(self, model):
        tag_of, size = model.attrs["tag_of"], 1 + model.attrs["tag_of"].max(initial=-1)
        before = np.arange(len(tag_of)) % (size + 1)
        transitions, first, last = model.attrs["allowed"]
        fits = {"transitions": before == tag_of[:, np.newaxis], "first": before == size, "last": True}
        return {"transitions": transitions & fits["transitions"], "first": first & fits["first"], "last": last}


@registry.architectures("tests.TagPairs.v1")
def tag_pairs(emissions):
    return build("tag_pairs", PairsNode(), {"emissions": emissions}, possible_transitions=True)


MODEL = {
    "@architectures": "tests.TagPairs.v1",
    "emissions": {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]},
    },
}


def blank(factory, **config):
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe(factory, config={"model": MODEL, **config})


def trained(factory="crf_ner", *, l2=0.05, **config):
    nlp, pipe = blank(factory, **config)
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer, losses = LBFGS(l2=l2, iterations_per_step=10), []
    for _ in range(5):
        losses.append(nlp.update(examples, sgd=optimizer)[pipe.name])
    assert losses[-1] < losses[0]
    return nlp, pipe, examples


def test_it_learns_entities():
    nlp, ner, examples = trained(scheme="BIO")
    assert ner.decoding.n_states == len(ner.tags()) * (len(ner.tags()) + 1)
    for example in examples:
        assert entities(nlp(plain(example.reference))) == entities(example.reference)


def test_it_learns_tags():
    nlp, _, examples = trained("crf_tagger")
    for example in examples:
        assert [t.tag_ for t in nlp(plain(example.reference))] == [t.tag_ for t in example.reference]


def test_probabilities_are_those_of_all_labellings():
    nlp, tagger, _ = trained("crf_tagger", l2=1.0)
    doc, tags = spacy.tokens.Doc(nlp.vocab, words=["the", "cat", "bark"]), tagger.tags()
    every = {}
    for path in itertools.product(range(len(tags)), repeat=len(doc)):
        spans = [spacy.tokens.Span(doc, t, t + 1, label=tags[tag]) for t, tag in enumerate(path)]
        every[path] = np.exp(tagger.log_probability(doc, spans))
    assert sum(every.values()) == pytest.approx(1.0)
    marginals, _ = tagger.marginals(doc)
    for t, tag in itertools.product(range(len(doc)), range(len(tags))):
        assert marginals[t, tag] == pytest.approx(sum(p for path, p in every.items() if path[t] == tag))
    found = tagger.n_best(doc, 4)
    np.testing.assert_allclose([p for p, _ in found], sorted(every.values(), reverse=True)[:4])
    for probability, spans in found:
        assert probability == pytest.approx(every[tuple(tags.index(span.label_) for span in spans)])


def test_rules_hold_in_training_and_prediction():
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "PER", "n": 1}]}
    nlp, ner, examples = trained(scheme="BIO", constraints=rules, confidence=True)
    for example in examples:
        doc = nlp(plain(example.reference))
        assert sum(ent.label_ == "PER" for ent in doc.ents) <= 1
        for ent in doc.ents:
            assert 0.0 < ent._.crf_prob <= 1.0
    ner.cfg["decode"] = "posterior"
    assert [entities(nlp(plain(example.reference))) for example in examples]


def test_it_is_saved(tmp_path):
    nlp, _, examples = trained(scheme="BIO")
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    for example in examples:
        assert entities(loaded(plain(example.reference))) == entities(nlp(plain(example.reference)))
