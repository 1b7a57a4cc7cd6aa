"""The baselines, and output codes, as components: what users ask of a chain, they answer as well. A new baseline is one row."""

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.sgd import SGD
from tests.util import TAG_TEXTS, entities, ner_examples, plain, tag_examples

from .util import registered

EMISSIONS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]},
}
BASELINES = {
    "MaxEnt": {"@architectures": "spacy_crf_lab.MaxEnt.v1", "emissions": EMISSIONS},
    "MEMM": {"@architectures": "spacy_crf_lab.MEMM.v1", "emissions": EMISSIONS},
    "MEMM of order 2": {"@architectures": "spacy_crf_lab.MEMM.v1", "emissions": EMISSIONS, "order": 2},
    "codes": {"@architectures": "spacy_crf_lab.OutputCodes.v1", "emissions": EMISSIONS},
    "codes in a cascade": {"@architectures": "spacy_crf_lab.OutputCodes.v1", "emissions": EMISSIONS, "cascade": True},
}
FACTORIES = ("crf_ner", "crf_tagger")
each = pytest.mark.parametrize("name", BASELINES)
in_both = pytest.mark.parametrize("factory", FACTORIES)


def trained(name, factory="crf_ner", steps=6, l2=0.1, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={"model": BASELINES[name], **config})
    examples = examples_of(nlp, factory)
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(l2=l2, iterations_per_step=5)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp


def examples_of(nlp, factory):
    return tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)


def found(doc):
    return [*entities(doc), *(token.tag_ for token in doc)]


@each
@in_both
def test_learns_saves_and_goes_on(name, factory, tmp_path):
    nlp = trained(name, factory)
    examples = examples_of(nlp, factory)
    score = {"crf_ner": "ents_f", "crf_tagger": "crf_tag_acc"}[factory]
    assert nlp.evaluate(examples)[score] == 1.0
    nlp.to_disk(tmp_path)
    docs = [plain(example.reference) for example in examples] + [Doc(nlp.vocab)]
    before = [found(nlp(plain(doc))) for doc in docs]
    for loaded in (spacy.load(tmp_path), trained(name, factory, steps=0).from_bytes(nlp.to_bytes())):
        assert [found(doc) for doc in loaded.pipe(map(plain, docs))] == before
        for doc in docs:
            np.testing.assert_array_equal(*[p.get_pipe(factory).marginals(doc)[0] for p in (nlp, loaded)])
    assert [found(doc) for doc in nlp.pipe(map(plain, docs), n_process=2)] == before
    optimizer = nlp.resume_training()  # by gradients of batches, from the weights that L-BFGS found
    new = tag_examples(nlp, ["her/PRP$ way/NN"]) if factory == "crf_tagger" else ner_examples(nlp, ["[May](DATE) came"])
    for _ in range(40):
        nlp.update([*new, *examples], sgd=optimizer)
    assert nlp.evaluate([*new, *examples])[score] == 1.0


@each
def test_probabilities_agree(name):
    nlp = trained(name, steps=1, confidence=True)
    ner, doc = nlp.get_pipe("crf_ner"), Doc(nlp.vocab, words=["Bob", "left", "New", "York"])
    best = ner.n_best(doc, 5)
    assert [p for p, _ in best] == sorted((p for p, _ in best), reverse=True)
    for p, spans in best:
        assert np.exp(ner.log_probability(doc, spans)) == pytest.approx(p)
    every = ner.n_best(doc, 100_000)
    assert sum(p for p, _ in every) == pytest.approx(1.0)
    of_spans = {}
    for p, spans in every:
        for span in spans:
            of_spans[span.start, span.end, span.label_] = of_spans.get((span.start, span.end, span.label_), 0.0) + p
    for span, p in ner.span_probabilities(doc, 1e-4):
        assert p == pytest.approx(of_spans[span.start, span.end, span.label_])
    predicted = nlp(plain(doc))
    assert [ent._.crf_prob for ent in predicted.ents] == pytest.approx([of_spans[ent] for ent in entities(predicted)])
    drawn = [[*map(str, spans)] for spans in ner.sample(doc, 500, seed=1)]
    assert drawn.count([*map(str, best[0][1])]) / 500 == pytest.approx(best[0][0], abs=0.1)


@each
def test_rules_hold(name):
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "*", "n": 1}]}
    nlp = trained(name, constraints=rules)
    for text in ("Ann Lee met Bob in Rome", "Paris , New York and Rome"):
        doc = nlp(text)
        labels = [ent.label_ for ent in doc.ents]
        assert labels and len(set(labels)) == len(labels)
        assert nlp.get_pipe("crf_ner").marginals(plain(doc))[0].sum(axis=1) == pytest.approx(1.0)


@each
@pytest.mark.parametrize("scheme", ["IO", "BIO", "IOB1", "BILUO"])
@pytest.mark.parametrize("partial", [False, True])
def test_schemes_and_partial_annotation(name, scheme, partial):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": BASELINES[name], "scheme": scheme})
    examples = ner_examples(nlp)
    for example in examples if partial else ():
        ents = [ent for ent in example.reference.ents if ent.label_ != "ORG"]
        example.reference.set_ents(ents, default="missing")
    nlp.initialize(lambda: examples)
    optimizer, losses = LBFGS(l2=0.01, iterations_per_step=5), []
    if partial and scheme == "IOB1" and "codes" in name:
        with pytest.raises(ValueError, match="CRF638"):
            nlp.update(examples, sgd=optimizer)
        return
    for _ in range(5):
        losses.append(nlp.update(examples, sgd=optimizer)["crf_ner"])
    assert np.isfinite(losses).all() and losses[-1] < losses[0] and min(losses) > 0.0
    assert [ent for ent in nlp("Carla Diaz left Paris").ents if ent.label_ in ("PER", "GPE")]


@each
@pytest.mark.parametrize("kind", ["contrast", "log_odds", "leave_out", "words"])
def test_explanations_add_up(name, kind):
    nlp = trained(name)
    ner, doc = nlp.get_pipe("crf_ner"), nlp("Bob left New York")
    if ner.model.attrs["node"].traits.unexplained:
        with pytest.raises(ValueError, match=r"CRF838.*order 1"):
            ner.explain(doc, doc.ents[-1], kind=kind)
        return
    explanation = ner.explain(doc, doc.ents[-1], kind=kind)
    assert explanation.rows and explanation.target > 0.0
    if explanation.additive:
        assert explanation.check == pytest.approx(0.0, abs=1e-5)


def test_shares_of_training_texts():
    nlp = trained("MaxEnt", l2=0.3, steps=20)
    ner, examples, doc = nlp.get_pipe("crf_ner"), ner_examples(nlp), nlp("Bob left New York")
    found = ner.explain(doc, doc.ents[-1], kind="texts", corpus=examples, l2=0.3)
    assert found.rows and found.check == pytest.approx(0.0, abs=0.01 * found.target)
    nlp = trained("MEMM")
    with pytest.raises(ValueError, match=r"CRF840.*normalizers"):
        nlp.get_pipe("crf_ner").explain(nlp("Bob left"), kind="texts", corpus=examples, l2=0.1)


@each
def test_rules_and_wrong_spans_in_training(name):
    rules = {
        "@misc": "spacy_crf.constraints.v1",
        "in_training": True,
        "rules": [{"rule": "length", "label": "*", "max": 2}],
    }
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": BASELINES[name], "constraints": rules, "incorrect_spans_key": "wrong"})
    examples = ner_examples(nlp)
    for example in examples[:2]:  # tokens without annotation, some of which are known to be no PER
        doc = example.reference
        wrong = [Span(doc, 0, 2, label="PER"), Span(doc, 0, 1, label="PER")]
        doc.set_ents([], missing=[doc[:2]], default="unmodified")
        doc.spans["wrong"] = wrong
    nlp.initialize(lambda: examples)
    optimizer, losses = LBFGS(l2=0.1, iterations_per_step=5), []
    if "codes" in name:
        with pytest.raises(ValueError, match="CRF638"):
            nlp.update(examples, sgd=optimizer)
        return
    for _ in range(6):
        losses.append(nlp.update(examples, sgd=optimizer)["crf_ner"])
    assert losses[-1] < losses[0]
    ner = nlp.get_pipe("crf_ner")
    found = {
        (span.start, span.end, span.label_): p for span, p in ner.span_probabilities(plain(examples[0].reference), 0)
    }
    assert max(p for (start, end, label), p in found.items() if (start, label) == (0, "PER") and end < 3) < 0.2


@each
def test_losses_and_optimizers_that_do_not_fit_are_refused(name):
    nlp = spacy.blank("en")
    for loss in ("PseudoLikelihood", "BesagPseudoLikelihood", "Piecewise", "SoftLabels", "SampledLikelihood"):
        with pytest.raises(ValueError, match=rf"CRF347: {loss} can't train .*LogLikelihood"):
            nlp.add_pipe("crf_tagger", config={"model": BASELINES[name], "loss": {"@losses": registered(loss)}})
    with pytest.raises(ValueError, match=r"CRF365.*SGD.*LBFGS"):
        nlp.add_pipe("crf_tagger", config={"model": BASELINES[name], "optimizer": {"@optimizers": "spacy_crf.SGD.v1"}})
    nlp.add_pipe("crf_tagger", config={"model": BASELINES[name]})
    examples = tag_examples(nlp, TAG_TEXTS)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match="CRF365"):
        nlp.update(examples, sgd=SGD())
