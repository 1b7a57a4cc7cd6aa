"""The tagger: every attribute it can write, around what is there, with features from earlier components."""

import re
from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from spacy.training import Example
from spacy.util import registry

from spacy_crf.models.objective import CorpusObjective
from tests.util import TAG_TEXTS, plain, tag_examples

TRANSITIONS = {
    "@misc": "spacy_crf.features.v1",
    "templates": ["bias"],
    "transitions": ["lower[0]"],
}


def train(nlp, examples, steps=2, **settings):
    settings = {"l2": 0.01, "iterations_per_step": 30, **settings}
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(**settings)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)


def make(config=None, attribute="tag_", texts=TAG_TEXTS):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config=config or {})
    examples = tag_examples(nlp, texts, attribute)
    train(nlp, examples)
    return nlp, examples


def run(nlp, doc):
    return nlp.get_pipe("crf_tagger")(doc)


def test_tags():
    nlp, examples = make()
    assert nlp.get_pipe("crf_tagger").labels == ("DT", "JJ", "NN", "RB", "VB")
    for example in examples:
        doc = run(nlp, plain(example.reference))
        assert [token.tag_ for token in doc] == [token.tag_ for token in example.reference]
    scores = nlp.evaluate(examples)
    assert scores["tag_acc"] == scores["crf_tag_acc"] == 1.0


def test_o_is_a_tag_like_others():
    nlp, examples = make(texts=[text.replace("/RB", "/O") for text in TAG_TEXTS])
    tagger = nlp.get_pipe("crf_tagger")
    assert tagger.labels == ("DT", "JJ", "NN", "O", "VB")
    assert tagger.training.data(examples).allowed.sum(axis=1).max() == 1
    for example in examples:
        assert [t.tag_ for t in run(nlp, plain(example.reference))] == [t.tag_ for t in example.reference]


def test_parts_of_speech():
    universal = {"/DT": "/DET", "/NN": "/NOUN", "/VB": "/VERB", "/RB": "/ADV", "/JJ": "/ADJ"}
    texts = [re.sub(r"/\w+", lambda match: universal[match[0]], text) for text in TAG_TEXTS]
    nlp, examples = make({"attribute": "pos"}, "pos_", texts)
    assert nlp.evaluate(examples)["pos_acc"] == 1.0
    assert [token.pos_ for token in run(nlp, plain(examples[0].reference))] == ["DET", "NOUN", "VERB"]
    with pytest.raises(ValueError, match=r"CRF020.*'NOPE'.*NOUN"):
        nlp.get_pipe("crf_tagger").add_label("NOPE")


def test_morphology():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"attribute": "morph"})
    examples = tag_examples(nlp)
    for example in examples:
        for token in example.reference:
            token.set_morph("Number=Plur" if token.text.endswith("s") else "Number=Sing|Case=Nom")
    train(nlp, examples)
    doc = run(nlp, plain(examples[2].reference))
    assert [str(token.morph) for token in doc] == ["Number=Plur", "Case=Nom|Number=Sing", "Case=Nom|Number=Sing"]
    assert nlp.evaluate(examples)["morph_acc"] == 1.0


def test_parts_of_speech_with_morphology():
    """Both are one label, as those of spaCy's morphologizer are; what a Doc has of them stays."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"attribute": "pos+morph"})
    examples = tag_examples(nlp)
    universal = {"DT": "DET", "NN": "NOUN", "VB": "VERB", "RB": "ADV", "JJ": "ADJ"}
    for example in examples:
        for token in example.reference:
            token.pos_ = universal[token.tag_]
            token.set_morph("Person=3|Number=Plur" if token.text.endswith("s") else None)
    train(nlp, examples)
    assert "Number=Plur|POS=NOUN|Person=3" in nlp.get_pipe("crf_tagger").labels
    doc = run(nlp, plain(examples[2].reference))
    reference = examples[2].reference
    assert [(t.pos_, str(t.morph)) for t in doc] == [(t.pos_, str(t.morph)) for t in reference]
    scores = nlp.evaluate(examples)
    assert scores["pos_acc"] == scores["morph_acc"] == scores["pos+morph_acc"] == scores["crf_tag_acc"] == 1.0
    doc = plain(reference)
    doc[1].pos_ = "PROPN"
    assert [t.pos_ for t in run(nlp, doc)][1] == "PROPN" and doc[1].morph.to_dict() == {}
    assert doc[0].pos_ == reference[0].pos_
    with pytest.raises(ValueError, match=r"CRF020.*'POS=NOPE'"):
        nlp.get_pipe("crf_tagger").add_label("POS=NOPE")
    with pytest.raises(ValueError, match=r"CRF020.*'Number=Sing\|POS=NOUN'"):
        nlp.get_pipe("crf_tagger").add_label("POS=NOUN|Number=Sing")


def test_extension():
    Token.set_extension("crf_kind", default=None, force=True)
    try:
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_tagger", config={"attribute": "crf_kind"})
        examples = tag_examples(nlp)
        for example in examples:
            for token in example.reference:
                token._.crf_kind = "plural" if token.text.endswith("s") else "other"
        train(nlp, examples)
        doc = run(nlp, plain(examples[2].reference))
        assert [token._.crf_kind for token in doc] == ["plural", "other", "other"]
        assert nlp.evaluate(examples)["crf_kind_acc"] == 1.0
    finally:
        Token.remove_extension("crf_kind")
    with pytest.raises(ValueError, match=r"CRF406.*'crf_kind'"):
        spacy.blank("en").add_pipe("crf_tagger", config={"attribute": "crf_kind"})


def test_values_already_there():
    nlp, examples = make()
    doc = plain(examples[0].reference)
    doc[1].tag_ = "VB"
    doc[2].tag_ = "ODD"
    assert [token.tag_ for token in run(nlp, doc)] == ["DT", "VB", "ODD"]
    again, _ = make({"overwrite": True})
    doc = plain(examples[0].reference)
    doc[1].tag_ = "VB"
    assert [token.tag_ for token in run(again, doc)] == ["DT", "NN", "VB"]


def test_missing_tags_are_free():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger")
    examples = tag_examples(nlp)
    examples[3].reference[2].tag_ = ""
    train(nlp, examples)
    doc = run(nlp, plain(examples[3].reference))
    assert [token.tag_ for token in doc] == ["DT", "JJ", "NN", "VB"]


def test_misaligned_tokens():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger")
    examples = tag_examples(nlp)
    reference = examples[0].reference
    examples.append(Example(Doc(nlp.vocab, words=["the dog", "barks"]), reference))
    examples.append(
        Example(Doc(nlp.vocab, words=["th", "e", "dog", "barks"], spaces=[False, True, True, False]), reference)
    )
    train(nlp, examples)
    assert nlp.evaluate(examples[:4])["tag_acc"] == 1.0
    doc = run(nlp, plain(examples[-1].predicted))
    assert [token.tag_ for token in doc] == ["DT", "DT", "NN", "VB"]


def test_transition_templates_learn_what_emissions_can_not():
    """The tag depends on the one before and on the word: words alone, or pairs of tags alone, don't tell."""
    texts = ["s/A x/B x/A x/B y/B x/A y/A", "s/A y/A x/B y/B x/A", "s/A x/B y/B y/B x/A y/A x/B"]
    nlp, examples = make({"model": {"emissions": {"features": TRANSITIONS}}}, texts=texts)
    assert nlp.evaluate(examples)["tag_acc"] == 1.0
    flat = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[0]"]}
    nlp_flat, examples = make({"model": {"emissions": {"features": flat}}}, texts=texts)
    assert nlp_flat.evaluate(examples)["tag_acc"] < 1.0
    again = spacy.blank("en")
    again.add_pipe("crf_tagger", config={"model": {"emissions": {"features": TRANSITIONS}}})
    again.from_bytes(nlp.to_bytes())
    assert again.evaluate(examples)["tag_acc"] == 1.0


def test_transition_templates_train_with_thinc_too():
    texts = ["s/A x/B x/A x/B y/B x/A y/A", "s/A y/A x/B y/B x/A", "s/A x/B y/B y/B x/A y/A x/B"]
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"optimizer": None, "model": {"emissions": {"features": TRANSITIONS}}})
    examples = tag_examples(nlp, texts)
    optimizer = registry.get("optimizers", "Adam.v1")(learn_rate=0.1)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(60):
        nlp.update(examples, sgd=optimizer)
    assert nlp.evaluate(examples)["tag_acc"] == 1.0


@pytest.mark.parametrize(
    "config", [{}, {"emissions": {"possible_states": True}}, {"emissions": {"features": TRANSITIONS}}]
)
def test_gradient_of_the_objective(config):
    """Finite differences through features, emissions, chain and loss."""
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger", config={"model": config})
    examples = tag_examples(nlp, TAG_TEXTS[:2])
    train(nlp, examples, steps=1, iterations_per_step=1)
    objective = tagger.training.corpus.objective
    rng = np.random.default_rng(0)
    weights = rng.normal(size=objective.weights().shape)
    value, gradient = objective.evaluate(weights)
    assert value > 0
    for _ in range(5):
        direction = rng.normal(size=weights.shape)
        ahead, behind = (objective.evaluate(weights + step * direction)[0] for step in (1e-5, -1e-5))
        assert (ahead - behind) / 2e-5 == pytest.approx(gradient @ direction, rel=1e-6)


def test_objective_agrees_with_the_model():
    """The two ways to loss and gradient: the objective over prepared features, and thinc's begin_update."""
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe(
        "crf_tagger", config={"model": {"emissions": {"features": {**TRANSITIONS, "templates": ["lower[-1..1]"]}}}}
    )
    examples = tag_examples(nlp)
    train(nlp, examples, steps=1, iterations_per_step=3)
    objective = CorpusObjective(tagger.model, tagger.loss, [tagger.training.data(examples)])
    value, gradient = objective.evaluate(objective.weights())
    scores, backprop = tagger.model.begin_update([example.predicted for example in examples])
    loss, d_scores = tagger.get_loss(examples, scores)
    for node in tagger.model.walk():
        for name in node.grad_names:
            node.set_grad(name, node.get_grad(name) * 0)
    backprop(d_scores)
    assert loss == pytest.approx(value, rel=1e-9)
    emissions, observed = tagger.model.get_ref("emissions"), tagger.model.attrs["observed"].astype(bool)
    chain = np.vstack([tagger.model.get_grad(name) for name in ("transitions", "first", "last")])[observed]
    found = np.concatenate([emissions.get_grad("states"), emissions.get_grad("transitions"), chain])
    assert found == pytest.approx(gradient, abs=1e-5)


def mister_corpus(nlp):
    examples = []
    for words in [["mister", "a", "b"], ["c", "mister", "d"], ["e", "f", "mister", "g"]]:
        doc = Doc(nlp.vocab, words=words)
        for i, token in enumerate(doc):
            token.tag_ = "NAME" if i and words[i - 1] == "mister" else "X"
        examples.append(Example(Doc(nlp.vocab, words=words), doc))
    return examples


def test_features_from_a_rule_based_component():
    """The output of an annotating component is a feature in training and in prediction."""
    features = {"@misc": "spacy_crf.features.v1", "templates": ["ent_type[-1]", "bias"]}
    config = {
        "nlp": {"lang": "en", "pipeline": ["entity_ruler", "crf_tagger"]},
        "components": {
            "entity_ruler": {"factory": "entity_ruler"},
            "crf_tagger": {"factory": "crf_tagger", "model": {"emissions": {"features": features}}},
        },
        "training": {"annotating_components": ["entity_ruler"]},
    }
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    nlp.get_pipe("entity_ruler").add_patterns([{"label": "CUE", "pattern": "mister"}])
    patterns = nlp.get_pipe("entity_ruler").patterns
    nlp.config["initialize"]["components"]["entity_ruler"] = {"patterns": patterns}
    examples = mister_corpus(nlp)
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.001)
    nlp.get_pipe("crf_tagger").initialize(lambda: examples, nlp=nlp)
    index = nlp.get_pipe("crf_tagger").model.get_ref("emissions").attrs["features"].states.index
    assert "ent_type[-1]=CUE" in index.names()
    for _ in range(5):
        nlp.update(examples, sgd=optimizer, annotates=["entity_ruler"])
    doc = nlp(Doc(nlp.vocab, words=["h", "mister", "unseen"]))
    assert [token.tag_ for token in doc] == ["X", "X", "NAME"]


def test_extensions_that_are_set_stay_as_they_are():
    """They became text: 3 was "3" afterwards, and an unlikely label left an empty string where nothing was."""
    Token.set_extension("crf_chunk", default=None, force=True)
    try:
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_tagger", config={"attribute": "crf_chunk", "min_prob": 0.9})
        reference = Doc(nlp.vocab, words=["a", "b", "c"])
        for token, label in zip(reference, ["A", "B", "A"]):
            token._.crf_chunk = label
        examples = [Example(plain(reference), reference)]
        nlp.initialize(lambda: examples)  # the weights are zero: no label is likely
        doc = plain(reference)
        value = doc[0]._.crf_chunk = [3]
        run(nlp, doc)
        assert doc[0]._.crf_chunk is value
        assert [token._.crf_chunk for token in doc[1:]] == [None, None]
    finally:
        Token.remove_extension("crf_chunk")


@Language.component("first_word_annotator")
def annotate_partly(doc):
    """The first word is the root of all, and an entity."""
    for token in doc:
        token.head = doc[0]
    doc.set_ents([Span(doc, 0, 1, "FIRST")], default="outside")
    return doc


def test_what_a_component_leaves_out_is_not_taken_from_the_gold_annotation():
    """It said that the first word is a root and the others no entities, both of which are written as 0."""
    nlp = spacy.blank("en")
    nlp.add_pipe("first_word_annotator")
    nlp.config["training"]["annotating_components"] = ["first_word_annotator"]
    features = {"@misc": "spacy_crf.features.v1", "templates": ["ent_type[0]", "ent_id[0]", "head[0]"]}
    tagger = nlp.add_pipe("crf_tagger", config={"model": {"emissions": {"features": features}}})
    [example, *_] = tag_examples(nlp)
    gold = example.reference
    gold.set_ents([Span(gold, 1, 2, "LAST", span_id="last")], default="outside")
    for token in gold:
        token.head = gold[2]
    nlp.initialize(lambda: [example])
    names = tagger.model.get_ref("emissions").attrs["features"].states.index.names()
    assert sorted(names) == ["ent_id[0]", "ent_type[0]", "ent_type[0]=FIRST", "head[0]=-1", "head[0]=-2", "head[0]=0"]


def test_features_from_a_component_trained_in_the_same_run():
    """While features are counted its tags are the gold ones; never those that the component itself writes."""
    nlp = spacy.blank("en")
    features = {"@misc": "spacy_crf.features.v1", "templates": ["tag[0]", "ent_type[0]", "bias"]}
    ner = nlp.add_pipe("crf_ner", config={"model": {"emissions": {"features": features}}})
    examples = tag_examples(nlp)
    for example in examples:
        reference = example.reference
        reference.set_ents([spacy.tokens.Span(reference, 0, 1, "START")], default="outside")
    nlp.initialize(lambda: examples)
    names = ner.model.get_ref("emissions").attrs["features"].states.index.names()
    assert {"tag[0]=DT", "tag[0]=NN"} <= set(names)
    assert "ent_type[0]=START" not in names
    assert not any(token.tag_ for example in examples for token in example.predicted)


def test_analyze_pipes_says_what_settings_make_of_a_component(tmp_path):
    """It was what the factory says, so `token.tag` where parts of speech are written, and nothing that templates read."""
    Token.set_extension("crf_chunk", default=None, force=True)
    Token.set_extension("crf_size", getter=len, force=True)

    def settings(*templates):
        return {"model": {"emissions": {"features": {"@misc": "spacy_crf.features.v1", "templates": list(templates)}}}}

    spans = {"@misc": "spacy_crf.segment_features.v1", "extra": ["seg.first:lemma", "seg.contains:ext:crf_chunk"]}
    try:
        nlp = spacy.blank("en")
        read = ["tag[0]", "norm[0]", "head[0]|sent_start[1]", "ext:crf_chunk[0]", "ext:crf_size[0]"]
        nlp.add_pipe("crf_tagger", "chunks", config={"attribute": "crf_chunk"})
        nlp.add_pipe("crf_tagger", "parts", config={"attribute": "pos", **settings(*read)})
        nlp.add_pipe("crf_ner", config={"confidence": True, **settings("pos[0]", "lower[0]")})
        nlp.add_pipe("semicrf_ner", config={"model": {"segments": {"features": spans}}})
        nlp.to_disk(tmp_path)
        for pipeline in (nlp, spacy.load(tmp_path)):
            analysis = pipeline.analyze_pipes()
            found = {name: (summary["assigns"], summary["requires"]) for name, summary in analysis["summary"].items()}
            entities = ["doc.ents", "token.ent_iob", "token.ent_type"]
            assert found == {
                "chunks": (["token._.crf_chunk"], []),
                "parts": (["token.pos"], ["token.tag", "token.head", "token.is_sent_start", "token._.crf_chunk"]),
                "crf_ner": ([*entities, "span._.crf_prob"], ["token.pos"]),
                "semicrf_ner": (entities, ["token.lemma", "token._.crf_chunk"]),
            }
            assert analysis["problems"]["parts"] == ["token.tag", "token.head", "token.is_sent_start"]
            assert analysis["problems"]["crf_ner"] == []
        other = spacy.blank("de")
        other.add_pipe("semicrf_ner", source=nlp)
        assert other.analyze_pipes()["summary"]["semicrf_ner"]["requires"] == ["token.lemma", "token._.crf_chunk"]
    finally:
        Token.remove_extension("crf_chunk")
        Token.remove_extension("crf_size")


@pytest.mark.parametrize("attribute", ["tag", "pos", "morph", "crf_test_label"])
def test_a_changed_value_is_seen_whatever_the_attribute(attribute):
    """Of pos, morph and extensions the prepared corpus looked at nothing: training went on with what they had been."""
    if not Token.has_extension("crf_test_label"):
        Token.set_extension("crf_test_label", default=None)
    values = {"pos": ("NOUN", "VERB"), "morph": ("Number=Sing", "Number=Plur")}.get(attribute, ("A", "B"))

    def put(token, value):
        if attribute == "crf_test_label":
            token._.crf_test_label = value
        elif attribute == "morph":
            token.set_morph(value)
        else:
            setattr(token, attribute + "_", value)

    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger", config={"attribute": attribute})
    gold = Doc(nlp.vocab, words=["so", "it", "goes"])
    for token, value in zip(gold, (*values, values[0])):
        put(token, value)
    examples = [Example(plain(gold), gold)]
    train(nlp, examples)
    before = tagger.training.corpus
    nlp.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")())
    assert tagger.training.corpus is before
    put(gold[2], values[1])
    nlp.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")())
    assert tagger.training.corpus is not before
    for _ in range(5):
        nlp.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01))
    assert tagger.predict([plain(gold)]).tags[2] == tagger.labels.index(values[1])
    Token.remove_extension("crf_test_label")


def test_a_label_stays_in_one_piece():
    """A tagger's tokens are its spans: at_most counts tokens, and no rule said that a field occurs once."""
    nlp, _ = make(texts=["a/X b/X c/Y", "c/Y a/Z", "b/Z a/X c/Y"])
    tagger, doc = nlp.get_pipe("crf_tagger"), Doc(nlp.vocab, words=["a", "c", "b", "c", "a"])

    def every():
        return {tuple(span.label_ for span in spans): p for p, spans in tagger.n_best(doc, 3**5)}

    free = every()
    tagger.add_rule({"rule": "in_one_piece", "label": "*"})
    kept = {labels: p for labels, p in free.items() if len({*labels}) == 1 + sum(a != b for a, b in pairwise(labels))}
    assert 0 < len(kept) < len(free) == 3**5
    expected = {labels: p / sum(kept.values()) for labels, p in kept.items()}
    assert every() == pytest.approx(expected, abs=1e-6)
    assert tuple(token.tag_ for token in nlp(doc.copy())) == max(kept, key=kept.get)


@pytest.mark.parametrize("label", ["x", "B=1|A=1"])
def test_a_label_of_morphology_is_spelled_as_tokens_spell_it(label):
    """Another order of its features was written as no morphology at all."""
    tagger = spacy.blank("en").add_pipe("crf_tagger", config={"attribute": "morph"})
    with pytest.raises(ValueError, match=f"CRF020.*{re.escape(label)}"):
        tagger.add_label(label)
    assert tagger.add_label("A=1|B=1") and tagger.labels == ("A=1|B=1",)
