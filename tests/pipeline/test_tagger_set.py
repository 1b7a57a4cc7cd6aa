"""``crf_tagger`` with several attributes: a chain for each, which read features once."""

import copy
import itertools
import json
import logging
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span, Token
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.migrate.pipeline import weights_of
from spacy_crf.optimizers.lbfgs import LBFGS
from tests import reference
from tests.util import plain, tag_examples

BOTH = ["tag", "morph"]
FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "suffix1[0]"]}
MODEL = {"emissions": {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}}


def examples_of(nlp, *, partial=False):
    """With a tag and a morphology; partial: only one of them at some tokens."""
    examples = tag_examples(nlp)
    for n, token in enumerate(token for example in examples for token in example.reference):
        token.set_morph("Number=Plur" if token.text.endswith("s") else "Case=Nom|Number=Sing")
        if partial and n % 4 == 0:
            token.tag_ = ""
        if partial and n % 4 == 2:
            token.set_morph(None)
    return examples


def blank(attribute=BOTH, **config):
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe("crf_tagger", config={"attribute": attribute, "model": MODEL, **config})


def trained(attribute=BOTH, *, l2=0.1, iterations=100, partial=False, **config):
    nlp, pipe = blank(attribute, **config)
    examples = examples_of(nlp, partial=partial)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=l2, iterations_per_step=iterations))
    return nlp, pipe, examples


def found(doc):
    return [(token.tag_, str(token.morph)) for token in doc]


def test_it_writes_and_scores_both(tmp_path):
    nlp, pipe, examples = trained(l2=0.01)
    assert [chain.labels[0].partition(":")[0] for chain in pipe.chains] == BOTH
    for example in examples:
        assert found(nlp(plain(example.reference))) == found(example.reference)
    scores = nlp.evaluate(examples)
    assert scores["tag_acc"] == scores["morph_acc"] == scores["crf_tag_acc"] == 1.0
    assert nlp.analyze_pipes()["summary"]["crf_tagger"]["assigns"] == ["token.tag", "token.morph"]
    nlp.to_disk(tmp_path)
    texts = [" ".join(token.text for token in example.reference) for example in examples]
    expected = [found(doc) for doc in nlp.pipe(texts)]
    for other in (spacy.load(tmp_path), copy.deepcopy(nlp), pickle.loads(pickle.dumps(nlp))):
        assert [found(doc) for doc in other.pipe(texts)] == expected
    assert [found(doc) for doc in nlp.pipe(texts, n_process=2)] == expected
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda text: found(nlp(text)), texts * 5)] == expected * 5
    assert found(nlp("")) == [] == found(nlp(Doc(nlp.vocab)))
    assert found(nlp(Doc(spacy.blank("en").vocab, words=["the", "dogs"]))) == found(nlp("the dogs"))


def test_one_attribute_in_a_list_is_that_attribute():
    (_, one, _), (_, other, _) = trained(["tag"]), trained("tag")
    assert one.cfg["attribute"] == "tag" and one.to_bytes() == other.to_bytes()


@pytest.mark.parametrize("partial", [False, True])
def test_it_learns_what_two_taggers_learn(partial):
    """The weights of separate taggers, and their number."""
    _, pipe, examples = trained(partial=partial)
    doc, n_weights = plain(examples[0].reference), 0
    for attribute in BOTH:
        _, alone, _ = trained(attribute, partial=partial)
        expected, tags = alone.marginals(doc)
        marginals, names = pipe.chain(attribute).marginals(doc)
        assert names == [f"{attribute}:{tag}" for tag in tags]
        np.testing.assert_allclose(marginals, expected, atol=1e-4)
        n_weights += alone.sparse_features.states.n_weights
    assert pipe.sparse_features.states.n_weights == n_weights


def ways_of(pipe, chain, doc):
    """The probability of every labelling of a chain: (labels), in plain Python."""
    scores, states = pipe.model.predict([doc]), [pipe.labels.index(label) for label in chain.labels]
    cut = {name: getattr(scores, name)[..., states] for name in type(scores).AXES}
    scores = scores._replace(**{**cut, "transitions": scores.transitions[np.ix_(states, states)]})
    ways = {tuple(chain.labels[state] for state in path): score for score, path in reference.paths(scores, 0, len(doc))}
    log_z = reference.log_sum([*ways.values()])
    return {labels: math.exp(score - log_z) for labels, score in ways.items()}


def labels_of(spans, doc):
    """By attribute, the label of each token."""
    rows = [[span.label_ for span in spans if span.start == n] for n in range(len(doc))]
    return tuple(zip(*rows))


def test_answers_are_those_of_all_combinations_of_labellings():
    nlp, pipe, _ = trained(l2=2.0, iterations=3, confidence=True)
    doc = Doc(nlp.vocab, words=["the", "dogs"])
    of_chains = [ways_of(pipe, chain, doc) for chain in pipe.chains]
    every = {way: math.prod(of[part] for of, part in zip(of_chains, way)) for way in itertools.product(*of_chains)}
    assert sum(every.values()) == pytest.approx(1.0)
    for p, spans in pipe.n_best(doc, 5):
        assert every[labels_of(spans, doc)] == pytest.approx(p, abs=1e-9)
    np.testing.assert_allclose([p for p, _ in pipe.n_best(doc, 5)], sorted(every.values())[:-6:-1], atol=1e-9)
    for way, probability in [*every.items()][::7]:
        spans = [Span(doc, n, n + 1, label=label) for labels in way for n, label in enumerate(labels)]
        assert pipe.log_probability(doc, spans) == pytest.approx(math.log(probability), abs=1e-9)
    assert pipe.log_probability(doc, [Span(doc, 0, 1, label="tag:NONE")]) == -np.inf
    of_label = {}
    for way, probability in every.items():
        for labels in way:
            for n, label in enumerate(labels):
                of_label[n, label] = of_label.get((n, label), 0.0) + probability
    answers = {(span.start, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
    assert answers.keys() == of_label.keys()
    for place, probability in of_label.items():
        assert answers[place] == pytest.approx(probability, abs=1e-9)
    marginals, names = pipe.marginals(doc)
    assert marginals[1, names.index("tag:NN")] == pytest.approx(of_label[1, "tag:NN"], abs=1e-9)
    drawn = pipe.sample(doc, 1000, seed=1)
    share = sum(labels_of(spans, doc)[0][0] == "tag:DT" for spans in drawn) / len(drawn)
    assert share == pytest.approx(of_label[0, "tag:DT"], abs=0.05)
    for token in nlp(doc):  # the probability that both labels are right
        labels = f"tag:{token.tag_}", f"morph:{token.morph}"
        assert token._.crf_prob == pytest.approx(math.prod(of_label[token.i, label] for label in labels), abs=1e-9)


@pytest.mark.parametrize("decode", ["posterior", "spans"])
def test_it_decodes_as_its_chains_do(decode):
    how = {"decode": decode, "min_prob": 0.3, "confidence": True}
    nlp, pipe, examples = trained(l2=1.0, **how)
    expected = [plain(example.reference) for example in examples]
    for attribute in BOTH:
        other, _, _ = trained(attribute, l2=1.0, **how)
        expected = [*other.pipe(expected)]
    docs = [*nlp.pipe(plain(example.reference) for example in examples)]
    assert [*map(found, docs)] == [*map(found, expected)]
    scores = nlp.evaluate(examples)
    assert scores["tags_calibration_error"] < 1.0
    pipe.cfg["min_prob"] = {"tag:NN": 1.0, "*": 0.0}
    assert not any(tag == "NN" for doc in map(nlp, map(plain, docs)) for tag, _ in found(doc))
    pipe.cfg["min_prob"] = {"NN": 1.0}
    with pytest.raises(ValueError, match=r"CRF846.*'NN'"):
        nlp("the dog")


def test_calibration_judges_all_labels_of_a_token():
    nlp, pipe, examples = trained(confidence=True)
    reference = examples[0].reference
    doc = nlp(plain(reference))
    reference[0].tag_ = "JJ"
    reference[1].tag_ = ""
    decisions = pipe.annotation.decisions(Example(doc, reference))
    assert decisions == [(doc[0]._.crf_prob, False), (doc[2]._.crf_prob, True)]
    doc[0].tag_ = "JJ"  # by another component
    assert doc[0]._.crf_prob is None


def test_values_already_there():
    nlp, _, examples = trained(confidence=True)
    doc = plain(examples[0].reference)
    doc[0].tag_, doc[1].tag_ = "ODD", "VB"
    doc[1].set_morph("Case=Gen")
    nlp(doc)
    assert [tag for tag, _ in found(doc)] == ["ODD", "VB", "VB"]
    assert [morph for _, morph in found(doc)] == ["Case=Nom|Number=Sing", "Case=Gen", "Number=Plur"]
    probabilities = [token._.crf_prob for token in doc]
    assert probabilities[1] == 1.0 and max(probabilities[0], probabilities[2]) < 1.0
    assert [token._.crf_prob for token in nlp(doc)] == probabilities
    nlp, _, _ = trained(overwrite=True, l2=0.01)
    assert found(nlp(doc)) == found(examples[0].reference)


def test_negated_alternative_and_wrong_labels_are_those_of_their_attribute():
    nlp, pipe = blank(alternatives_spans_key="maybe", incorrect_spans_key="wrong")
    examples = examples_of(nlp)
    doc = examples[0].reference
    doc[0].tag_ = "!NN"
    doc[2].set_morph(None)
    doc.spans["maybe"] = [Span(doc, 1, 2, label="tag:VB"), Span(doc, 2, 3, label="morph:Number=Plur")]
    doc.spans["wrong"] = [Span(doc, 0, 1, label="tag:VB")]
    nlp.initialize(lambda: examples)
    data = pipe.training.data(examples[:1])
    allowed = [
        [*map(dict(enumerate(chain.labels)).get, np.flatnonzero(row))]
        for chain, of in zip(pipe.chains, data.allowed.chains)
        for row in of
    ]
    tags, morphs = allowed[:3], allowed[3:]
    assert tags == [["tag:DT", "tag:JJ", "tag:RB"], ["tag:NN", "tag:VB"], ["tag:VB"]]
    assert morphs == [["morph:Case=Nom|Number=Sing"]] * 2 + [["morph:Number=Plur"]]
    doc.spans["maybe"] = [Span(doc, 1, 2, label="VB")]
    with pytest.raises(ValueError, match=r"CRF020.*'VB'.*'tag:…', 'morph:…'"):
        nlp.update(examples, sgd=LBFGS())


def test_forced_and_blocked_spans_go_to_their_chains(caplog):
    nlp, _, _ = trained()
    doc = nlp.make_doc("the dogs")
    doc.spans["crf_forced"] = [Span(doc, 0, 1, label="tag:VB"), Span(doc, 1, 2, label="morph:Case=Nom|Number=Sing")]
    doc.spans["crf_blocked"] = [Span(doc, 1, 2, label="tag:NN")]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp(doc)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert doc[0].tag_ == "VB" and doc[1].tag_ != "NN" and "Sing" in str(doc[1].morph)


def test_rules_hold_in_the_chain_of_their_labels():
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "tag:DT", "n": 0}]}
    nlp, pipe, examples = trained(constraints=rules)
    assert all(tag != "DT" for tag, _ in found(nlp(plain(examples[0].reference))))
    assert pipe.chain("tag").rules() is not None and pipe.chain("morph").rules() is None
    with pytest.raises(ValueError, match="CRF616"):
        pipe.add_rule({"rule": "requires", "if": ["tag:NN"], "then": ["morph:Number=Plur"]})
    with pytest.raises(ValueError, match=r"CRF846.*'NN'"):
        pipe.add_rule({"rule": "at_most", "label": "NN", "n": 1})


def test_an_explanation_is_of_the_chain_of_its_label():
    _, pipe, examples = trained()
    doc = plain(examples[0].reference)
    assert "as morph:Number=Plur" in str(pipe.explain(doc, Span(doc, 2, 3, label="morph:Number=Plur")))
    assert "as tag:DT" in str(pipe.explain(doc, Span(doc, 0, 1, label="tag:DT"), against="tag:NN"))
    with pytest.raises(ValueError, match="CRF020"):
        pipe.explain(doc)


def test_it_is_not_exported():
    """Other programs hold one chain."""
    nlp, _, _ = trained()
    with pytest.raises(ValueError, match="CRF710"):
        weights_of(nlp)


def test_other_attributes_and_later_labels():
    """Labels that later texts bring are not beside the others of their attribute."""
    Token.set_extension("crf_kind", default=None, force=True)
    try:
        nlp, pipe = blank(["pos+morph", "crf_kind"])
        examples = examples_of(nlp)
        for token in (token for example in examples for token in example.reference):
            token.pos_, token._.crf_kind = ("VERB" if token.tag_ == "VB" else "X"), f"kind:{len(token)}"
        nlp.initialize(lambda: examples[:2])
        for _ in range(2):
            nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=50))
        assert not all(np.all(np.diff(chain.states) == 1) for chain in pipe.chains)
        scores = nlp.evaluate(examples)
        assert {scores[name] for name in ("pos_acc", "morph_acc", "pos+morph_acc", "crf_kind_acc")} == {1.0}
        assert all(isinstance(token._.crf_kind, str) for token in nlp("the dogs"))
        other, _ = blank(["pos+morph", "crf_kind"])
        assert [found(doc) for doc in other.from_bytes(nlp.to_bytes()).pipe(["the dogs"])] == [found(nlp("the dogs"))]
        with pytest.raises(ValueError, match="CRF510: attribute"):
            blank(["crf_kind", "pos+morph"])[1].from_bytes(pipe.to_bytes())
    finally:
        Token.remove_extension("crf_kind")
    with pytest.raises(ValueError, match="CRF504"):
        blank("tag")[1].from_bytes(pipe.to_bytes())


@pytest.mark.parametrize(
    "config, code",
    [
        ({"attribute": []}, "CRF020.*list of attributes"),
        ({"attribute": ["tag", "tag"]}, "CRF020.*not tag twice"),
        ({"attribute": ["pos", "pos+morph"]}, "CRF020.*not pos twice"),
        ({"attribute": ["tag", "nope"]}, "CRF406.*'nope'"),
        ({"attribute": ["tag", ""]}, "CRF020"),
        ({"model": {"@architectures": "spacy_crf.HigherOrder.v1", **MODEL}}, "CRF020.*a LinearChain"),
        ({"loss": {"@losses": "spacy_crf.SoftLabels.v1"}}, "CRF347"),
        ({"second_stage": {"folds": 2, "features": ["token_majority"]}}, "CRF020.*second_stage"),
    ],
)
def test_impossible_settings(config, code):
    with pytest.raises(ValueError, match=code):
        spacy.blank("en").add_pipe("crf_tagger", config={"attribute": BOTH, **config})


def test_impossible_names_labels_and_optimizers():
    Token.set_extension("a:b", default=None, force=True)
    with pytest.raises(ValueError, match=r"CRF020.*colons"):
        blank(["tag", "a:b"])
    Token.remove_extension("a:b")
    nlp, pipe = blank()
    for label in ("NN", "tag:", "morph:Number=Sing|Case=Nom"):
        with pytest.raises(ValueError, match="CRF020"):
            pipe.add_label(label)
    with pytest.raises(ValueError, match=r"CRF407.*morph"):
        nlp.initialize(lambda: tag_examples(nlp))
    perceptron = spacy.registry.get("optimizers", "spacy_crf.AveragedPerceptron.v1")()
    nlp, _ = blank(loss={"@losses": "spacy_crf.Perceptron.v1"})
    examples = examples_of(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match="CRF347"):
        nlp.update(examples, sgd=perceptron)


def test_commands(tmp_path):
    nlp, pipe, examples = trained(l2=0.3)
    nlp.to_disk(tmp_path / "model")
    dev = tmp_path / "dev.spacy"
    DocBin(docs=[example.reference for example in examples]).to_disk(dev)

    def run(command, *args):
        result = CliRunner().invoke(app, [command, str(tmp_path / "model"), *map(str, args)])
        assert result.exit_code == 0, result.output
        return result.output

    run("evaluate", dev, "-o", tmp_path / "report.html")
    assert "tag:NN" in (tmp_path / "report.html").read_text(encoding="utf8")
    assert "min_prob" in run("threshold", dev, "-o", tmp_path / "changed")
    assert spacy.load(tmp_path / "changed").get_pipe("crf_tagger").cfg["decode"] == "spans"
    assert "9" in run("evaluate", dev, "--calibration")
    assert "as tag:NN" in run("explain", "the dog barks", "--span", "1:2:tag:NN")
    labels = spacy.blank("en").add_pipe("crf_tagger", config={"attribute": BOTH})
    labels.initialize(lambda: examples, labels=json.loads(json.dumps(pipe.label_data)))
    assert labels.labels == pipe.labels
