"""What training is told beside the annotation: alternatives, incorrect spans, weights, a model to start from, pruning."""

import logging

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf.types import ChainScores

from .util import NER_TEXTS, ner_examples, tag_examples


def make(scheme="BILUO", **config):
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe("crf_ner", config={"scheme": scheme, "optimizer": None, **config})


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


def narrowed(scheme, wrong, ents=()):
    """How many labellings of four words the annotation allows, how many there are, and what the loss is given."""
    nlp, pipe = make(scheme, incorrect_spans_key="wrong")
    for label in ("PER", "GPE"):
        pipe.add_label(label)
    words = ["in", "New", "York", "City"]
    gold = unset(nlp, words)
    gold.set_ents([Span(gold, *ent) for ent in ents], default="missing")
    gold.spans["wrong"] = [Span(gold, *span) for span in wrong]
    annotated = pipe._annotated([Example(unset(nlp, words), gold)])
    mask = pipe.transition_mask()
    zeros = (np.where(allowed, 0.0, -np.inf) for allowed in mask)
    scores = ChainScores(np.zeros((4, len(mask.first))), *zeros, annotated.starts)
    structure = annotated.structure or LinearChain()
    n_allowed = np.exp(structure.expectations(scores, clamp=annotated.allowed)[0])
    return round(float(n_allowed[0])), round(float(np.exp(LinearChain().log_partition(scores)[0]))), annotated


@pytest.mark.parametrize("scheme", ["BILUO", "BIO", "IO", "IOB1"])
def test_incorrect_spans_take_what_has_precisely_them(scheme):
    left, every, _ = narrowed(scheme, [(1, 3, "PER")])
    # What is taken: New York is PER, and the token on each side O, PER or GPE – with IO, PER there would be the same span
    assert every - left == (4 if scheme == "IO" else 9)
    left, every, annotated = narrowed(scheme, [(1, 2, "PER")])
    assert left < every
    assert (annotated.structure is None) == (scheme == "BILUO")  # U-PER says it


def test_incorrect_spans_beside_annotation():
    left, _, annotated = narrowed("BILUO", [(1, 3, "PER")], ents=[(1, 3, "PER")])
    assert annotated.structure is None and left == 9  # the annotation holds
    left, _, annotated = narrowed("BILUO", [(1, 3, "PER"), (0, 2, "PER")], ents=[(1, 3, "GPE")])
    assert annotated.structure is None and left == 9  # nothing to say
    left, _, _ = narrowed("BIO", [(1, 3, "PER")], ents=[(3, 4, "GPE")])
    assert left == narrowed("BIO", [], ents=[(3, 4, "GPE")])[0] - 3


@pytest.mark.parametrize("optimizer", [LBFGS(iterations_per_step=2), "Adam.v1"])
def test_annotation_that_leaves_no_labelling_is_told_once(optimizer, caplog):
    nlp, _pipe = make("BIO", incorrect_spans_key="wrong", alternatives_spans_key="maybe")
    examples = ner_examples(nlp)
    words = ["Carla", "Diaz", "left"]
    gold = unset(nlp, words)
    gold.spans["maybe"] = [Span(gold, *span) for span in ((0, 2, "PER"), (1, 2, "GPE"), (2, 3, "O"))]
    gold.spans["wrong"] = [Span(gold, *span) for span in ((0, 2, "PER"), (0, 1, "PER"))]
    examples.append(Example(unset(nlp, words), gold))
    if isinstance(optimizer, str):
        optimizer = spacy.registry.optimizers.get(optimizer)()
    nlp.initialize(lambda: examples, sgd=optimizer)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for _n in range(2):
            nlp.update(examples, sgd=optimizer)
    assert len([record for record in caplog.records if "CRF403: crf_ner: 1 sequences" in record.message]) == 1


def test_incorrect_spans_of_no_label_or_another_components_say_nothing():
    left, every, _ = narrowed("BILUO", [(1, 3, ""), (1, 3, "DATE")])
    assert left == every


@pytest.mark.parametrize(
    "settings, optimizer, who",
    [
        ({"loss": {"@losses": "spacy_crf.Perceptron.v1"}}, AveragedPerceptron(epochs_per_step=1), "Optimizers that"),
        ({"loss": {"@losses": "spacy_crf.PseudoLikelihood.v1"}}, LBFGS(iterations_per_step=1), "PseudoLikelihood"),
    ],
)
def test_who_can_not_use_incorrect_spans_says_so_once(settings, optimizer, who, caplog):
    nlp, _pipe = make(incorrect_spans_key="wrong", **settings)
    examples = ner_examples(nlp)
    gold = unset(nlp, ["Carla", "Diaz", "likes", "Bob"])
    gold.spans["wrong"] = [Span(gold, 0, 2, "PER")]
    examples.append(Example(unset(nlp, ["Carla", "Diaz", "likes", "Bob"]), gold))
    nlp.initialize(lambda: examples)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for _n in range(2):
            nlp.update(examples, sgd=optimizer)
    [message] = [record.message for record in caplog.records if "CRF402" in record.message]
    assert who in message and "doc.spans['wrong']" in message


RULES = [{"rule": "at_most", "label": "ORG", "n": 1}]
IN_TRAINING = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": RULES, "in_training": True}}


@pytest.mark.parametrize("scheme", ["BILUO", "BIO"])
@pytest.mark.parametrize("settings", [{}, IN_TRAINING], ids=["alone", "with rules"])
def test_a_wrong_span_leaves_the_longer_one(scheme, settings):
    """As in spaCy's `ner`: the whole span with its label is wrong, not what begins or ends as it does."""
    nlp, pipe = make(scheme, incorrect_spans_key="wrong", **settings)
    examples = ner_examples(
        nlp, [*NER_TEXTS, "In [Salt Lake City](GPE) it snows .", "In [Mexico City](GPE) it rains ."]
    )
    words = ["In", "New", "York", "City", "it", "rains", "."]
    for _n in range(3):
        gold = unset(nlp, words)
        gold.spans["wrong"] = [Span(gold, *ends, "GPE") for ends in ((1, 3), (1, 2), (2, 4))]
        examples.append(Example(unset(nlp, words), gold))
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=80))
    likely = pipe.span_probabilities(unset(nlp, words), 0.0)
    probability = {(span.start, span.end): p for span, p in likely if span.label_ == "GPE"}
    assert max(probability[ends] for ends in ((1, 3), (1, 2), (2, 4))) < 0.05
    assert probability[1, 4] > 0.5
    assert next(ent.text for ent in nlp(examples[4].reference.copy()).ents) == "New York"


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
    nlp, pipe = make(alternatives_spans_key="maybe")
    examples = ner_examples(nlp)
    examples[0].reference.spans["maybe"] = [Span(examples[0].reference, 0, 1, "XYZ")]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        pipe.initialize(lambda: examples, labels=["GPE", "ORG", "PER"])
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
    nlp, _ = make()
    examples = [Example(unset(nlp, ["a", "b"]), unset(nlp, ["a", "b"]))]
    with pytest.raises(ValueError, match="CRF403"):
        nlp.initialize(lambda: examples)


def test_a_loss_that_is_not_finite_names_the_batch():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    node = pipe.model.get_ref("emissions")
    nlp.update(examples, sgd=optimizer)
    node.get_param("states")[:] = np.nan
    with pytest.raises(ValueError, match=r"CRF314.*'Ann Lee lives"):
        nlp.update(examples, sgd=optimizer)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_step_to_weights_that_are_not_finite_is_not_taken():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    optimizer = spacy.registry.optimizers.get("SGD.v1")(1e38, grad_clip=0.0)
    nlp.initialize(lambda: examples, sgd=optimizer)
    with pytest.raises(ValueError, match=r"CRF315.*'Ann Lee lives"):
        for _n in range(3):
            nlp.update(examples, sgd=optimizer)
    for node in pipe.model.walk():
        assert all(np.isfinite(node.get_param(name)).all() for name in node.param_names)


def test_losses_that_do_not_ask_the_rules_are_refused_when_the_component_is_made():
    piecewise = {"loss": {"@losses": "spacy_crf.Piecewise.v1"}}
    with pytest.raises(ValueError, match=r"CRF619.*Piecewise"):
        make(**piecewise, **IN_TRAINING)


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
