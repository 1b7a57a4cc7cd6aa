"""What training is told beside the annotation: alternatives, incorrect spans, weights, a model to start from, pruning."""

import logging

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron

from .util import NER_TEXTS, ner_examples, tag_examples


def make(scheme="BILUO", **config):
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe("crf_ner", config={"scheme": scheme, **config})


def clamp_of(pipe, example):
    annotated = pipe._annotated([example])
    tags = np.array(pipe.tags())
    return [set(tags[row].tolist()) for row in annotated.allowed]


def unset(nlp, words):
    return Doc(nlp.vocab, words=words)


def test_alternatives_are_all_that_is_allowed_where_annotation_is_missing():
    nlp, pipe = make(alternatives_spans_key="maybe")
    for label in ("GPE", "PER"):
        pipe.add_label(label)
    gold = unset(nlp, ["Paris", "Hilton", "spoke"])
    gold.spans["maybe"] = [Span(gold, 0, 2, "PER"), Span(gold, 0, 1, "GPE"), Span(gold, 1, 2, "O")]
    allowed = clamp_of(pipe, Example(unset(nlp, ["Paris", "Hilton", "spoke"]), gold))
    assert allowed[:2] == [{"B-PER", "U-GPE"}, {"L-PER", "O"}]
    assert allowed[2] == set(pipe.tags())


def test_alternatives_stand_beside_annotation():
    nlp, pipe = make(alternatives_spans_key="maybe")
    pipe.add_label("PER")
    gold = Doc(nlp.vocab, words=["May", "left"], ents=["O", "O"])
    gold.spans["maybe"] = [Span(gold, 0, 1, "PER")]
    assert clamp_of(pipe, Example(unset(nlp, ["May", "left"]), gold)) == [{"O", "U-PER"}, {"O"}]


@pytest.mark.parametrize("scheme,forbidden", [("BILUO", {2: "L-PER"}), ("BIO", {1: "B-PER"}), ("IO", {1: "I-PER"})])
def test_incorrect_spans_narrow_what_is_open(scheme, forbidden):
    nlp, pipe = make(scheme, incorrect_spans_key="wrong")
    pipe.add_label("PER")
    words = ["in", "New", "York"]
    gold = unset(nlp, words)
    gold.spans["wrong"] = [Span(gold, 1, 3, "PER")]
    allowed = clamp_of(pipe, Example(unset(nlp, words), gold))
    for token, tags in enumerate(allowed):
        assert set(pipe.tags()) - tags == {forbidden[token]} if token in forbidden else not set(pipe.tags()) - tags


def test_incorrect_spans_are_not_predicted_after_training():
    nlp, _pipe = make(incorrect_spans_key="wrong")
    examples = ner_examples(nlp)
    for _n in range(3):
        gold = unset(nlp, ["Carla", "likes", "Bob"])
        gold.spans["wrong"] = [Span(gold, 2, 3, "PER")]
        examples.append(Example(unset(nlp, ["Carla", "likes", "Bob"]), gold))
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=60))
    assert not [
        ent for ent in nlp(unset(nlp, ["Carla", "likes", "Bob"])).ents if ent.text == "Bob" and ent.label_ == "PER"
    ]
    assert next(ent.text for ent in nlp(examples[1].reference.copy()).ents) == "Bob"


def test_spans_of_labels_nobody_knows_are_reported(caplog):
    nlp, _pipe = make(alternatives_spans_key="maybe")
    examples = ner_examples(nlp)
    examples[0].reference.spans["maybe"] = [Span(examples[0].reference, 0, 1, "XYZ")]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp.initialize(lambda: examples)
    assert "a label the component does not know" in caplog.text


def test_tagger_alternatives():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger", config={"alternatives_spans_key": "maybe", "incorrect_spans_key": "wrong"})
    for label in ("NN", "VB", "DT"):
        pipe.add_label(label)
    gold = unset(nlp, ["the", "run"])
    gold.spans["maybe"] = [Span(gold, 1, 2, "NN"), Span(gold, 1, 2, "VB")]
    gold.spans["wrong"] = [Span(gold, 0, 1, "VB")]
    assert clamp_of(pipe, Example(unset(nlp, ["the", "run"]), gold)) == [{"NN", "DT"}, {"NN", "VB"}]


def test_document_weights_multiply_the_loss():
    losses = []
    for weight in (1.0, 2.0):
        nlp, pipe = make()
        examples = ner_examples(nlp)
        for example in examples:
            example.reference._.crf_weight = weight
        nlp.initialize(lambda examples=examples: examples)
        scores, _ = pipe.model.begin_update([example.predicted for example in examples])
        losses.append(pipe.get_loss(examples, scores)[0])
    assert losses[1] == pytest.approx(2 * losses[0])


@pytest.mark.parametrize("weight", [-1.0, float("nan"), "heavy"])
def test_weights_that_make_no_sense_are_refused(weight):
    nlp, _pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    examples[2].reference._.crf_weight = weight
    with pytest.raises(ValueError, match=r"CRF430.*Nobody was there"):
        nlp.update(examples, sgd=LBFGS())


def test_a_changed_weight_is_noticed_between_steps():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(iterations_per_step=1)
    nlp.update(examples, sgd=optimizer)
    before = pipe._corpus
    nlp.update(examples, sgd=optimizer)
    assert pipe._corpus is before
    examples[0].reference._.crf_weight = 3.0
    nlp.update(examples, sgd=optimizer)
    assert pipe._corpus is not before


def test_initialize_starts_from_a_saved_model(tmp_path):
    nlp, pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(iterations_per_step=30))
    nlp.to_disk(tmp_path / "model")
    before = [[(ent.text, ent.label_) for ent in nlp(e.predicted.copy()).ents] for e in examples]
    for source in (tmp_path / "model", tmp_path / "model" / "crf_ner"):
        other, warm = make()
        new = ner_examples(other, [*NER_TEXTS, "[Tuesday](DATE) was fine ."])
        other.config["initialize"]["components"] = {"crf_ner": {"start_from": str(source)}}
        other.initialize(lambda new=new: new)
        assert warm.labels == (*pipe.labels, "DATE")
        again = [[(ent.text, ent.label_) for ent in other(e.predicted.copy()).ents] for e in new[:-1]]
        assert again == before
        features = warm.model.get_ref("emissions").attrs["features"]
        assert len(features.states.index) > len(pipe.model.get_ref("emissions").attrs["features"].states.index)


def test_zero_weights_are_left_out_of_the_saved_model(tmp_path, caplog):
    nlp, pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l1=0.5, l2=0.01, iterations_per_step=50))
    weights = pipe.model.get_ref("emissions").get_param("states")
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf.training"):
        nlp.to_disk(tmp_path)
    n_zero = int((weights == 0).sum())
    assert n_zero > 0 and f"{n_zero} weights that are zero" in caplog.text
    assert len(pipe.model.get_ref("emissions").get_param("states")) == len(weights)  # training may go on
    loaded = spacy.load(tmp_path)
    kept = loaded.get_pipe("crf_ner").model.get_ref("emissions")
    assert len(kept.get_param("states")) == len(weights) - n_zero
    assert (np.diff(kept.attrs["features"].states.pair_starts) > 0).all()
    for example in examples:
        one, other = nlp(example.predicted.copy()), loaded(Doc(loaded.vocab, words=[t.text for t in example.predicted]))
        assert [(e.start, e.end, e.label_) for e in one.ents] == [(e.start, e.end, e.label_) for e in other.ents]


def test_a_corpus_without_any_annotation_is_refused():
    nlp, pipe = make()
    examples = [Example(unset(nlp, ["a", "b"]), unset(nlp, ["a", "b"]))]
    with pytest.raises(ValueError, match="CRF403"):
        nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match="CRF431"):
        pipe.initialize(lambda: examples, labels=["PER"])


def test_a_loss_that_is_not_finite_names_the_batch():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    node = pipe.model.get_ref("emissions")
    nlp.update(examples, sgd=optimizer)
    node.get_param("states")[:] = np.nan
    with pytest.raises(ValueError, match=r"CRF010|CRF314"):
        nlp.update(examples, sgd=optimizer)


def test_partial_tags_train_with_online_rules_too():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger", config={"loss": {"@losses": "spacy_crf.Perceptron.v1"}})
    examples = tag_examples(nlp)
    examples[0].reference[1].tag_ = ""
    nlp.initialize(lambda: examples)
    optimizer = AveragedPerceptron(epochs_per_step=20)
    nlp.update(examples, sgd=optimizer)
    with nlp.use_params(optimizer.averages):
        assert nlp.evaluate(examples)["tag_acc"] == 1.0
    assert pipe.labels
