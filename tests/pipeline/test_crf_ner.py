"""The component as its users meet it: labels, training, prediction around what is there, bad input."""

import logging
import threading
from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.lookups import Lookups
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_crf.schemes import SCHEMES
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, plain, tag_examples


def train(nlp, examples, steps=2, **settings):
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(**{"l2": 0.01, "iterations_per_step": 30, **settings})
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        losses = nlp.update(examples, sgd=optimizer)
    return losses


def make(config=None, texts=NER_TEXTS, **settings):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=config or {})
    examples = ner_examples(nlp, texts)
    train(nlp, examples, **settings)
    return nlp, examples


@pytest.fixture(scope="module")
def trained():
    """Do not change: shared by the tests of this file."""
    return make()


def run(nlp, doc):
    return nlp.get_pipe("crf_ner")(doc)


def test_an_optimizer_that_the_config_does_not_name_gets_its_gradients(trained):
    """The config promises one that asks for the objective, and another one comes."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner", config={"optimizer": None})
    nlp.config["training"]["optimizer"] = {"@optimizers": "spacy_crf.LBFGS.v1"}
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    adam = registry.get("optimizers", "Adam.v1")(0.1)
    first = nlp.update(examples, sgd=False)["crf_ner"]
    assert first == 0.0  # nothing was computed that L-BFGS would throw away
    ner.finish_update(adam)
    before = ner.model.get_ref("emissions").get_param("states").copy()
    assert (before != 0).any()
    losses = [nlp.update(examples, sgd=adam)["crf_ner"] for _ in range(20)]
    assert losses[-1] < losses[0]


def test_memory_zones_free_words_that_the_component_still_knows(trained):
    """What a zone adds to the vocabulary is gone after it; the component's own table of words must not mind."""
    nlp, _ = trained
    texts = ["Zorkwood left Paris .", "Bob left Zorkwood ."]
    expected = [entities(nlp(text)) for text in texts]
    for _ in range(2):
        with nlp.memory_zone():
            assert [entities(doc) for doc in nlp.pipe(f"{text} {'Plimth' * n}" for n, text in enumerate(texts))]
        assert [entities(nlp(text)) for text in texts] == expected


@pytest.mark.parametrize("max_words", [1, 30, 500_000])
def test_memory_is_bounded_by_the_words_that_are_kept(trained, tmp_path, max_words):
    """Half a million words were kept whatever users said, and of each every attribute that templates read."""
    nlp, _ = trained
    texts = [f"Bob{n} left Paris{n % 7} ." for n in range(40)]
    expected = [nlp.get_pipe("crf_ner").marginals(nlp.make_doc(text))[0] for text in texts]
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path, config={"components": {"crf_ner": {"max_words": max_words}}})
    assert loaded.config["components"]["crf_ner"]["max_words"] == max_words
    ner, wrong = loaded.get_pipe("crf_ner"), []

    def work(part):
        for n in part:
            wrong.append(np.abs(ner.marginals(loaded.make_doc(texts[n]))[0] - expected[n]).max() > 0)

    threads = [threading.Thread(target=work, args=(range(k, 40, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 40 and not any(wrong)  # the table of one may be new while another still reads the old one
    assert [entities(doc) for doc in loaded.pipe(texts)] == [entities(doc) for doc in nlp.pipe(texts)]
    for text in texts:
        loaded(text)
    table = ner.sparse_features._scorer.reader.table
    assert table.size <= max_words + 20 and table.columns.shape[1] < len(table.attributes) / 8
    assert table._fresh[0] == table.size  # the other attributes are gone once their scores are known


def test_the_first_text_has_no_words():
    """Where templates look at no neighbours, the table of words is empty then."""
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    nlp, _ = make({"model": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}})
    nlp = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert not nlp("").ents and nlp("Bob left Paris .").ents


def test_the_scheme_can_be_left_to_the_training_data(tmp_path, caplog):
    """Few and short entities are encoded as BIO, many or long ones as BILUO; a saved model says what it was trained with."""
    nlp, examples = make({"scheme": "auto"})
    ner = nlp.get_pipe("crf_ner")
    assert {tag.partition("-")[0] for tag in ner.tags()} == {"O", "B", "I"} and "are encoded as BIO" in caplog.text
    expected = [entities(doc) for doc in nlp.pipe(plain(example.reference) for example in examples)]
    assert expected == [entities(example.reference) for example in examples]
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.get_pipe("crf_ner").tags() == ner.tags()
    assert [entities(doc) for doc in loaded.pipe(plain(example.reference) for example in examples)] == expected
    sourced = spacy.blank("en")
    sourced.add_pipe("crf_ner", source=loaded)
    assert sourced.get_pipe("crf_ner").tags() == ner.tags()
    long = Doc(nlp.vocab, words=["a"] * 4, ents=["B-X", "I-X", "I-X", "I-X"])
    nlp.initialize(lambda: [Example(plain(long), long)] * 20)
    assert "L-X" in ner.tags()
    ner.from_disk(tmp_path / "crf_ner")
    assert [entities(doc) for doc in nlp.pipe(plain(example.reference) for example in examples)] == expected
    nlp.initialize(lambda: [Example(plain(long), long)] * 20)
    ner.initialize(lambda: examples, start_from=tmp_path)
    assert {tag.partition("-")[0] for tag in ner.tags()} == {"O", "B", "I"}
    other = spacy.blank("en").add_pipe("crf_ner", config={"scheme": "BILUO"})
    with pytest.raises(ValueError, match="CRF510"):
        other.from_disk(tmp_path / "crf_ner")


def test_a_component_that_was_initialized_before_it_was_loaded_gets_labels(trained, tmp_path):
    """Gradients of the weights that it had before were left."""
    nlp, examples = trained
    nlp.to_disk(tmp_path)
    other = spacy.blank("en")
    ner = other.add_pipe("crf_ner")
    ner.initialize(lambda: ner_examples(other, NER_TEXTS[:1]))
    ner.from_disk(tmp_path / "crf_ner")
    ner.add_label("NEW")
    for example in examples:
        assert entities(ner(plain(example.reference))) == entities(example.reference)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_learns_its_training_data(scheme):
    nlp, examples = make({"scheme": scheme})
    for example in examples:
        assert entities(run(nlp, plain(example.reference))) == entities(example.reference)
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_labels_come_from_the_data(trained):
    nlp, _ = trained
    ner = nlp.get_pipe("crf_ner")
    assert ner.labels == ("GPE", "ORG", "PER")
    assert ner.label_data == ["GPE", "ORG", "PER"]
    assert nlp.pipe_labels["crf_ner"] == ["GPE", "ORG", "PER"]
    assert ner.tags()[:5] == ["O", "B-GPE", "I-GPE", "L-GPE", "U-GPE"]


def test_labels_may_be_given():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    ner.initialize(lambda: examples, nlp=nlp, labels=["PER", "odd label-with hyphen"])
    assert ner.labels == ("PER", "odd label-with hyphen")


@pytest.mark.parametrize("label", ["two words", "a-b", "B-x", "Ümlaut|[0]"])
def test_any_string_is_a_label(label):
    nlp, examples = make(texts=[f"[Ann Lee]({label}) met [Bob](PER) .", f"[Bob](PER) met [Ann Lee]({label}) ."])
    assert entities(run(nlp, plain(examples[0].reference))) == entities(examples[0].reference)


def test_every_token_gets_annotation(trained):
    nlp, _ = trained
    doc = run(nlp, Doc(nlp.vocab, words=["Nobody", "sleeps"]))
    assert doc.has_annotation("ENT_IOB", require_complete=True)
    assert [token.ent_iob_ for token in doc] == ["O", "O"]


def test_entities_already_there_are_kept(trained):
    nlp, _ = trained
    doc = ner_doc(nlp, "[Ann](GPE) [Lee lives](OTHER) in New York .")
    preset = Doc(nlp.vocab, words=[token.text for token in doc])
    preset.set_ents([Span(preset, 0, 1, "GPE", kb_id="Q7"), Span(preset, 1, 3, "OTHER")], default="missing")
    run(nlp, preset)
    assert entities(preset)[:2] == [(0, 1, "GPE"), (1, 3, "OTHER")]
    assert (4, 6, "GPE") in entities(preset)
    assert preset.ents[0].kb_id_ == "Q7"


def test_blocked_tokens_stay_outside(trained):
    nlp, _ = trained
    doc = Doc(nlp.vocab, words=["Ann", "Lee", "lives", "in", "New", "York", "."])
    doc.set_ents([], blocked=[doc[4:6]], default="missing")
    assert entities(run(nlp, doc)) == [(0, 2, "PER")]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_preset_entity_never_grows(scheme):
    nlp, _ = make({"scheme": scheme})
    doc = Doc(nlp.vocab, words=["In", "New", "York", "it", "rains", "."])
    doc.set_ents([Span(doc, 1, 2, "GPE")], default="missing")
    found = entities(run(nlp, doc))
    assert (1, 2, "GPE") in found


def test_entities_end_with_the_sentence(trained):
    nlp, _ = trained
    words = ["In", "New", "York", "it", "rains", "."]
    assert (1, 3, "GPE") in entities(run(nlp, Doc(nlp.vocab, words=words)))
    doc = Doc(nlp.vocab, words=words, sent_starts=[True, False, True, False, False, False])
    assert all(end <= 2 or start >= 2 for start, end, _ in entities(run(nlp, doc)))


def test_predictions_are_valid_for_any_weights():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    rng = np.random.default_rng(0)
    emissions = ner.model.get_ref("emissions")
    for _ in range(20):
        weights = rng.normal(scale=5, size=emissions.get_param("states").shape)
        emissions.set_param("states", weights.astype("float32"))
        for example in examples:
            prediction = ner.predict([plain(example.reference)])
            mask, tags = ner.annotation.mask(), prediction.tags
            assert mask.first[tags[0]] and mask.last[tags[-1]]
            assert all(mask.transitions[i, j] for i, j in pairwise(tags))


def test_batch_equals_one_by_one(trained):
    nlp, examples = trained
    docs = [plain(example.reference) for example in examples]
    together = [entities(doc) for doc in nlp.get_pipe("crf_ner").pipe(docs, batch_size=4)]
    assert together == [entities(run(nlp, plain(example.reference))) for example in examples]


def test_empty_and_odd_docs(trained):
    nlp, _ = trained
    ner = nlp.get_pipe("crf_ner")
    docs = [nlp.make_doc(text) for text in ["", " ", "\n\n \t", "x", "", "Ann Lee lives in New York .", "é́\u200b😀"]]
    done = list(ner.pipe(docs))
    assert entities(done[5]) == [(0, 2, "PER"), (4, 6, "GPE")]
    assert list(ner.pipe([])) == []
    ner.set_annotations([], ner.predict([]))


def test_two_processes(trained):
    nlp, examples = trained
    texts = [example.reference.text for example in examples] * 10
    one = [entities(doc) for doc in nlp.pipe(texts)]
    assert [entities(doc) for doc in nlp.pipe(texts, n_process=2, batch_size=7)] == one


def test_two_threads(trained):
    nlp, examples = trained
    texts = [f"{example.reference.text} number{n}" for n in range(40) for example in examples]
    expected = [entities(doc) for doc in nlp.pipe(texts)]
    results = {}

    def work(name):
        results[name] = [entities(nlp(text)) for text in texts]

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"a": expected, "b": expected}


def test_a_doc_of_many_tokens(trained):
    nlp, examples = trained
    words = [token.text for example in examples for token in example.reference]
    doc = run(nlp, Doc(nlp.vocab, words=(words * (200_000 // len(words) + 1))[:200_000]))
    assert len(doc.ents) > 20_000


def test_needs_training_first():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    with pytest.raises(ValueError, match="E143"):
        nlp("Ann")
    ner.add_label("PER")
    with pytest.raises(ValueError, match=r"CRF402.*'crf_ner' was not trained"):
        nlp("Ann")


def test_a_corpus_without_entities_says_so():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp, ["Nothing here .", "Nor here ."])
    with pytest.raises(ValueError, match=r"CRF403.*crf_ner"):
        nlp.initialize(lambda: examples)


def test_given_labels_make_do_without_entities():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp, ["Nothing here .", "Nor here ."])
    ner.initialize(lambda: examples, nlp=nlp, labels=["PER"])
    assert entities(run(nlp, plain(examples[0].reference))) == []


def test_label_in_dev_that_train_never_saw(trained):
    nlp, _ = trained
    scores = nlp.evaluate(ner_examples(nlp, ["[Ann Lee](PER) likes [jazz](MUSIC) ."]))
    assert scores["ents_per_type"]["MUSIC"]["f"] == 0.0
    assert scores["ents_per_type"]["PER"]["f"] == 1.0


def test_bad_labels():
    ner = spacy.blank("en").add_pipe("crf_ner")
    for label in ("", None, 3, "NE\ud800"):
        with pytest.raises(ValueError, match="CRF020"):
            ner.add_label(label)
    assert ner.add_label("X") == 1 and ner.add_label("X") == 0


def test_missing_annotation_is_a_wider_clamp():
    """Tokens that nobody annotated are free to become what the rest of the data says."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    partial = ner_doc(nlp, "[Ann Lee](PER) lives in New York .")
    partial.set_ents([partial.ents[0]], default="missing")
    unknown = Example(Doc(nlp.vocab, words=["Bob", "left", "Rome"]), Doc(nlp.vocab, words=["Bob", "left", "Rome"]))
    examples += [Example(plain(partial), partial), unknown]
    ner = nlp.get_pipe("crf_ner")
    nlp.initialize(lambda: examples)
    from spacy_crf.pipeline.annotation.entities import GoldReport

    clamp = ner.annotation.gold(examples[-2:], np.array([0, 7, 10]), GoldReport()).clamp
    assert clamp[:2].sum() == 2 and clamp[2:].all()
    train(nlp, examples)
    assert entities(run(nlp, plain(partial))) == [(0, 2, "PER"), (4, 6, "GPE")]


def test_misaligned_gold_is_reported_once(caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    for place in range(5):
        reference = ner_doc(
            nlp, f"Case {place} of [Ann](PER)-Lee and [Bob](PER) .".replace("[Ann](PER)-Lee", "[Ann](PER) Lee")
        )
        words = [token.text for token in reference]
        merged = Doc(nlp.vocab, words=[*words[:3], "Ann Lee", *words[5:]])
        examples.append(Example(merged, reference))
    with caplog.at_level("WARNING", logger="spacy.spacy_crf"):
        train(nlp, examples)
    [message] = [record.getMessage() for record in caplog.records if "align" in record.getMessage()]
    assert "5 gold entities do not align with the tokens" in message
    assert message.count("'Ann' (PER)") == 3


def test_gold_across_a_known_sentence_start_is_reported(caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    examples[0].predicted[1].is_sent_start = True
    with caplog.at_level("WARNING", logger="spacy.spacy_crf"):
        train(nlp, examples)
    assert any("1 gold entities cross the start of a sentence" in record.getMessage() for record in caplog.records)


def test_unknown_scheme():
    with pytest.raises(ValueError, match=r"CRF001.*BILOU"):
        spacy.blank("en").add_pipe("crf_ner", config={"scheme": "BILOU"})


def test_thinc_optimizers():
    for name in ("Adam.v1", "SGD.v1", "RAdam.v1"):
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"optimizer": None})
        examples = ner_examples(nlp)
        optimizer = registry.get("optimizers", name)(learn_rate=0.1)
        nlp.initialize(lambda examples=examples: examples, sgd=optimizer)
        first = nlp.update(examples, sgd=optimizer)["crf_ner"]
        for _ in range(40):
            losses = nlp.update(examples, sgd=optimizer)
        assert losses["crf_ner"] < 0.2 * first
        assert nlp.evaluate(examples)["ents_f"] > 0.9


def test_own_optimizer_beside_another_component():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"optimizer": {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.01}})
    nlp.add_pipe("tagger")
    examples = ner_examples(nlp)
    for example in examples:
        for token in example.reference:
            token.tag_ = "A" if token.is_title else "B"
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(3):
        losses = {}
        nlp.update(examples, sgd=optimizer, losses=losses)
    assert set(losses) == {"crf_ner", "tagger"}
    assert entities(run(nlp, plain(examples[0].reference))) == entities(examples[0].reference)


def test_lbfgs_refuses_other_components():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    nlp.add_pipe("tagger")
    examples = ner_examples(nlp)
    for example in examples:
        for token in example.reference:
            token.tag_ = "A"
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")()
    nlp.initialize(lambda: examples, sgd=optimizer)
    with pytest.raises(ValueError, match="CRF2"):
        nlp.update(examples, sgd=optimizer)


def test_loss_of_an_objective_step_is_reported(trained):
    nlp, examples = make(steps=1, iterations_per_step=2)
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01, iterations_per_step=3)
    losses = [nlp.update(examples, sgd=optimizer, losses={})["crf_ner"] for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_the_corpus_is_prepared_once_whatever_its_order():
    nlp, examples = make(steps=1)
    ner = nlp.get_pipe("crf_ner")
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01, iterations_per_step=1)
    nlp.update(examples, sgd=optimizer)
    prepared = ner.training.corpus
    nlp.update(examples[::-1], sgd=optimizer)
    assert ner.training.corpus is prepared
    examples[0].reference.set_ents([], default="outside")
    nlp.update(examples, sgd=optimizer)
    assert ner.training.corpus is not prepared


def test_new_label_on_a_trained_pipeline():
    nlp, examples = make()
    ner = nlp.get_pipe("crf_ner")
    before = [entities(run(nlp, plain(example.reference))) for example in examples]
    ner.add_label("MUSIC")
    assert [entities(run(nlp, plain(example.reference))) for example in examples] == before
    optimizer = nlp.resume_training(sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01))
    more = examples + ner_examples(nlp, ["In [Rome](GPE) [Bob](MUSIC) rains ."])
    for _ in range(5):
        nlp.update(more, sgd=optimizer)
    assert nlp.evaluate(more)["ents_f"] == 1.0
    assert [entities(run(nlp, plain(example.reference))) for example in more] == [
        entities(example.reference) for example in more
    ]


def test_select_pipes_and_analysis(trained):
    nlp, _ = trained
    with nlp.select_pipes(disable=["crf_ner"]):
        assert not nlp("Ann Lee lives here").ents
    analysis = nlp.analyze_pipes()
    assert analysis["summary"]["crf_ner"]["assigns"] == ["doc.ents", "token.ent_iob", "token.ent_type"]
    assert nlp.get_pipe_meta("crf_ner").default_score_weights["ents_f"] == 1.0


def test_missing_norms_are_told_as_of_other_components(caplog):
    nlp = spacy.blank("en")
    nlp.vocab.lookups = Lookups()
    nlp.add_pipe("crf_ner")
    with caplog.at_level(logging.DEBUG, logger="spacy"):
        nlp.initialize(lambda: ner_examples(nlp))
        assert "W033" in caplog.text
        caplog.clear()
        nlp.vocab.lookups.add_table("lexeme_norm", {"a": "A"})
        nlp.initialize(lambda: ner_examples(nlp))
        assert "W033" not in caplog.text


def test_excluding_the_component(trained, tmp_path):
    nlp, _ = trained
    nlp.to_disk(tmp_path)
    assert spacy.load(tmp_path, exclude=["crf_ner"]).pipe_names == []
    assert spacy.load(tmp_path, disable=["crf_ner"]).disabled == ["crf_ner"]


TOK2VEC = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 32,
    "depth": 2,
    "embed_size": 200,
    "window_size": 1,
    "maxout_pieces": 2,
    "subword_features": True,
}
NEURAL = {"emissions": None, "tok2vec": TOK2VEC}


def test_neural_emissions_begin_without_labels(caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": NEURAL})
    sgd = nlp.initialize()
    assert "CRFW412" in caplog.text and "0 labels" in caplog.text
    examples = ner_examples(nlp)
    assert not nlp(examples[0].reference.text).ents
    before = nlp.update(examples, sgd=sgd)["crf_ner"]
    for _ in range(10):
        after = nlp.update(examples, sgd=sgd)["crf_ner"]
    assert after < before and set(nlp.get_pipe("crf_ner").labels) == {"GPE", "ORG", "PER"}


def test_encoders_begin_anew():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner", config={"model": NEURAL})
    examples = ner_examples(nlp)
    for _ in range(2):
        sgd = nlp.initialize(lambda: examples)
        assert not ner.model.get_ref("encoder").get_ref("output").get_param("W").any()
        nlp.update(examples, sgd=sgd)
        assert ner.model.get_ref("encoder").get_ref("output").get_param("W").any()


def test_tok2vec_emissions_learn():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": NEURAL})
    examples = ner_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.01
    for _ in range(60):
        nlp.update(examples, sgd=optimizer)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    again = spacy.blank("en")
    again.add_pipe("crf_ner", config={"model": NEURAL})
    again.from_bytes(nlp.to_bytes())
    for example in examples:
        assert entities(run(again, plain(example.reference))) == entities(example.reference)
    lbfgs = registry.get("optimizers", "spacy_crf.LBFGS.v1")()
    with pytest.raises(ValueError, match=r"CRF347.*LBFGS"):
        nlp.update(examples, sgd=lbfgs)


@pytest.mark.parametrize("optimizer", ["Adam.v1", "RAdam.v1", "SGD.v1"])
@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_labels_are_added_to_a_trained_neural_component(factory, optimizer, tmp_path):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={"model": NEURAL})
    examples = ner_examples(nlp) if factory == "crf_ner" else tag_examples(nlp)
    nlp.initialize(lambda: examples)
    sgd = registry.get("optimizers", optimizer)(0.01)
    for _ in range(3):
        nlp.update(examples, sgd=sgd)
    nlp.to_disk(tmp_path)
    for pipeline in (nlp, spacy.load(tmp_path)):
        doc = examples[0].reference
        pipe = pipeline.get_pipe(factory)
        before, tags = pipe.model.predict([doc]).emissions, pipe.tags()
        pipe.add_label("NEW")
        after, more = pipe.model.predict([doc]).emissions, pipe.tags()
        assert more[: len(tags)] == tags
        np.testing.assert_array_equal(after, np.hstack([before, np.zeros((len(doc), len(more) - len(tags)))]))
        for _ in range(3):
            losses = pipeline.update(examples, sgd=sgd)
        assert np.isfinite(losses[factory])


def test_an_untrained_neural_component_says_nothing():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner", config={"model": NEURAL})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    assert [token.ent_iob_ for token in nlp("Ann Lee lives in New York .")] == ["O"] * 7
    ner.add_label("NEW")
    assert not nlp("Ann Lee").ents
