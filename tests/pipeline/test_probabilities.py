"""Components that say how sure they are: the methods, `span._.crf_prob`, the ways to decode, rules, saving."""

import copy
import logging
import math
from functools import cache

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span

from spacy_crf.optimizers.lbfgs import LBFGS
from tests.util import NER_TEXTS, entities, ner_examples, plain, tag_examples

OFTEN = [{"rule": "at_most", "label": "*", "n": 1}]


def trained(factory="crf_ner", iterations=6, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=config)
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.5, iterations_per_step=iterations))
    return nlp


def with_rules(rules, **settings):
    return {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": rules, **settings}}


@pytest.fixture(scope="module", params=["BILUO", "BIO", "IO", "IOB1"])
def nlp(request):
    return trained(scheme=request.param)


def key(spans):
    return tuple((span.start, span.end, span.label_) for span in spans)


def all_labellings(ner, doc):
    """Every labelling with its probability: there are not too many of three tokens."""
    return {key(spans): p for p, spans in ner.n_best(doc, 5000)}


@pytest.fixture
def doc(nlp):
    return Doc(nlp.vocab, words=["Bob", "left", "Rome"])


def test_all_answers_come_from_one_distribution(nlp, doc):
    ner = nlp.get_pipe("crf_ner")
    every = all_labellings(ner, doc)
    assert sum(every.values()) == pytest.approx(1.0)
    marginals, tags = ner.marginals(doc)
    assert tags == ner.tags() and marginals.shape == (3, len(tags))
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0)
    outside = sum(p for spans, p in every.items() if not any(start <= 0 < end for start, end, _ in spans))
    assert marginals[0, 0] == pytest.approx(outside)
    expected = {}
    for spans, p in every.items():
        for span in spans:
            expected[span] = expected.get(span, 0.0) + p
    found = ner.span_probabilities(doc, 0.0)
    assert {key([span])[0]: pytest.approx(p, abs=1e-12) for span, p in found} == expected
    probabilities = [p for _, p in found]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(ner.span_probabilities(doc, 0.1)) == sum(p >= 0.1 for p in expected.values())
    for spans in list(every)[:20]:
        as_spans = [Span(doc, start, end, label=label) for start, end, label in spans]
        assert math.exp(ner.log_probability(doc, as_spans)) == pytest.approx(every[spans])
    drawn = [key(spans) for spans in ner.sample(doc, 2000, seed=1)]
    best = max(every, key=every.get)
    assert drawn.count(best) / 2000 == pytest.approx(every[best], abs=0.05)
    assert drawn == [key(spans) for spans in ner.sample(doc, 2000, seed=1)]
    assert key(nlp.get_pipe("crf_ner")(plain(doc)).ents) == best
    assert not doc.ents


def test_sentences_are_independent(nlp):
    ner = nlp.get_pipe("crf_ner")
    words = ["Bob", "left", "Ann", "Lee"]
    doc = Doc(nlp.vocab, words=words, sent_starts=[True, False, True, False])
    first, second = Doc(nlp.vocab, words=words[:2]), Doc(nlp.vocab, words=words[2:])
    [(best, spans)], [(p, _)], [(q, _)] = (ner.n_best(part, 1) for part in (doc, first, second))
    assert best == pytest.approx(p * q)
    assert ner.log_probability(doc, spans) == pytest.approx(math.log(best))
    crossing = [Span(doc, 1, 3, label="PER")]
    assert ner.log_probability(doc, crossing) == -math.inf


def test_annotation_counts_when_asked_to(nlp, doc):
    ner = nlp.get_pipe("crf_ner")
    before = ner.span_probabilities(doc, 0.0)
    doc.ents = [Span(doc, 1, 2, label="ORG")]
    assert [p for _, p in ner.span_probabilities(doc, 0.0)] == [p for _, p in before]
    certain = {key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.5, keep_annotation=True)}
    assert certain[1, 2, "ORG"] == pytest.approx(1.0)


def test_impossible_and_empty(nlp, doc):
    ner = nlp.get_pipe("crf_ner")
    assert ner.log_probability(doc, [Span(doc, 0, 1, label="NEW")]) == -math.inf
    with pytest.raises(ValueError, match="CRF409"):
        ner.log_probability(doc, [Span(doc, 0, 2, label="PER"), Span(doc, 1, 3, label="PER")])
    empty = Doc(nlp.vocab)
    assert ner.span_probabilities(empty) == []
    assert ner.n_best(empty, 3) == [(1.0, [])]
    assert ner.log_probability(empty, []) == 0.0
    assert ner.marginals(empty)[0].shape == (0, len(ner.tags()))
    assert ner.sample(empty, 2, seed=0) == [[], []]


def foreign(doc):
    return Doc(doc.vocab, words=["Ann", "left", "Rome"])


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner", "crf_tagger"])
@pytest.mark.parametrize(
    "ask, says",
    [
        (lambda pipe, doc: pipe.marginals(doc.text), "CRF479.*'Bob left Rome '"),
        (lambda pipe, doc: pipe.marginals(None), "CRF479.*None"),
        (lambda pipe, doc: pipe.marginals([doc]), "CRF479"),
        (lambda pipe, doc: pipe.marginals(doc[:2]), "CRF479"),
        (lambda pipe, doc: pipe.span_probabilities(doc.text), "CRF479"),
        (lambda pipe, doc: pipe.span_probabilities(doc, "0.1"), "CRF020.*min_prob = '0.1'.*from 0 to 1"),
        (lambda pipe, doc: pipe.span_probabilities(doc, -0.1), "CRF020"),
        (lambda pipe, doc: pipe.span_probabilities(doc, math.nan), "CRF020"),
        (lambda pipe, doc: pipe.span_probabilities(doc, 2), "CRF020"),
        (lambda pipe, doc: pipe.n_best(doc.text, 1), "CRF479"),
        (lambda pipe, doc: pipe.n_best(doc, -1), "CRF020.*n = -1.*whole number"),
        (lambda pipe, doc: pipe.n_best(doc, 0), "CRF020.*from 1"),
        (lambda pipe, doc: pipe.n_best(doc, 2.0), "CRF020"),
        (lambda pipe, doc: pipe.n_best(doc, "2"), "CRF020"),
        (lambda pipe, doc: pipe.n_best(doc, True), "CRF020"),
        (lambda pipe, doc: pipe.sample(doc.text, 1, seed=0), "CRF479"),
        (lambda pipe, doc: pipe.sample(doc, -1, seed=0), "CRF020.*n = -1"),
        (lambda pipe, doc: pipe.sample(doc, 1, seed=-1), "CRF020.*seed = -1"),
        (lambda pipe, doc: pipe.sample(doc, 1, seed=10**9999), "CRF020.*seed"),
        (lambda pipe, doc: pipe.sample(doc, 1, seed=None), "CRF020.*seed = None"),
        (lambda pipe, doc: pipe.log_probability(doc.text, []), "CRF479"),
        (lambda pipe, doc: pipe.log_probability(doc, None), "CRF461.*None"),
        (lambda pipe, doc: pipe.log_probability(doc, doc[:1]), "CRF461"),
        (lambda pipe, doc: pipe.log_probability(doc, [(0, 1, "PER")]), "CRF461.*PER"),
        (lambda pipe, doc: pipe.log_probability(doc, [doc[1:1]]), "CRF461"),
        (lambda pipe, doc: pipe.log_probability(doc, [foreign(doc)[:1]]), "CRF462.*'Ann'.*'Bob left Rome"),
        (lambda pipe, doc: pipe.log_probability(doc, [doc[:2], doc[1:]]), "CRF409"),
    ],
)
def test_what_is_asked_is_checked(factory, ask, says):
    nlp = trained_once(factory)
    with pytest.raises(ValueError, match=says):
        ask(nlp.get_pipe(factory), Doc(nlp.vocab, words=["Bob", "left", "Rome"]))


@cache
def trained_once(factory):
    return trained(factory, iterations=2)


def test_none_and_numpy_numbers_are_possible_numbers(nlp, doc):
    ner = nlp.get_pipe("crf_ner")
    assert ner.sample(doc, 0, seed=0) == []
    assert len(ner.n_best(doc, np.int32(2))) == 2 and len(ner.sample(doc, np.int64(3), seed=np.uint8(1))) == 3
    assert ner.span_probabilities(doc, np.float32(1.0)) == []


def test_spans_of_another_doc_with_the_same_words_are_its_own(nlp, doc):
    ner = nlp.get_pipe("crf_ner")
    spans = [Span(doc, 0, 1, label="PER")]
    assert ner.log_probability(plain(doc), spans) == ner.log_probability(doc, spans)


def test_tags_have_probabilities_too():
    nlp = trained("crf_tagger", confidence=True)
    tagger = nlp.get_pipe("crf_tagger")
    doc = nlp("the old dog")
    marginals, tags = tagger.marginals(doc)
    for token in doc:
        assert token._.crf_prob == pytest.approx(marginals[token.i, tags.index(token.tag_)])
    best, spans = tagger.n_best(doc, 1)[0]
    assert [span.label_ for span in spans] == [token.tag_ for token in doc]
    assert doc[0:1]._.crf_prob is None
    assert "token._.crf_prob" in nlp.analyze_pipes()["summary"]["crf_tagger"]["assigns"]
    assert tagger.log_probability(doc, spans) == pytest.approx(math.log(best))
    assert tagger.log_probability(doc, spans[:-1]) == -math.inf
    tagger.cfg["min_prob"] = 1.0
    assert [token.tag_ for token in nlp("the old dog")] == ["", "", ""]


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_an_entity_that_a_later_component_relabels_has_no_probability(factory):
    """It kept that of the label that the CRF had found there, also in tables and after a DocBin."""
    nlp = trained(factory, iterations=2, confidence=True)
    before_ruler = nlp("Ann Lee lives in New York .")
    assert [ent.label_ for ent in before_ruler.ents] == ["PER", "GPE"]
    before = [ent._.crf_prob for ent in before_ruler.ents]
    nlp.add_pipe("entity_ruler", config={"overwrite_ents": True}).add_patterns(
        [{"label": "CUSTOMER", "pattern": "Ann Lee"}]
    )
    [doc] = DocBin(docs=[nlp("Ann Lee lives in New York .")], store_user_data=True).get_docs(nlp.vocab)
    read = Doc(nlp.vocab).from_json(before_ruler.to_json(underscore=["crf_prob"]))
    assert [ent._.crf_prob for ent in read.ents] == before
    for one in (doc, doc[0:7].as_doc(copy_user_data=True), doc.copy()):
        found = [(ent.label_, ent._.crf_prob) for ent in one.ents]
        assert found == [("CUSTOMER", None), ("GPE", before[1])]
        assert Span(one, 0, 2, "PER")._.crf_prob == before[0]
    # To the CRF the entity of the Doc is certain
    again = nlp.get_pipe(factory)(doc)
    assert [(ent.label_, ent._.crf_prob) for ent in again.ents] == [("CUSTOMER", 1.0), ("GPE", before[1])]
    doc.ents[0]._.crf_prob = 0.25
    assert doc.ents[0]._.crf_prob == 0.25 and Span(doc, 0, 2, "PER")._.crf_prob is None
    doc.user_data.pop(("._.", "crf_prob_label", 0, 7))  # as Docs of earlier versions are stored
    assert Span(doc, 0, 2, "PER")._.crf_prob == 0.25


def test_a_tag_that_a_later_component_replaces_has_no_probability():
    nlp = trained("crf_tagger", iterations=2, confidence=True)
    before = [token._.crf_prob for token in nlp("the old dog")]
    nlp.add_pipe("attribute_ruler").add([[{"LOWER": "old"}]], {"TAG": "JJR"})
    assert [token._.crf_prob for token in nlp("the old dog")] == [before[0], None, before[2]]


def test_an_entity_of_one_token_and_its_tag_have_probabilities_of_their_own():
    nlp = trained("crf_tagger", iterations=2, confidence=True)
    ner = trained(iterations=2, confidence=True, decode="spans", min_prob=0.1)
    tagged = [token._.crf_prob for token in nlp("Bob left Rome")]
    nlp.add_pipe("crf_ner", source=ner)
    doc = nlp("Bob left Rome")
    assert [token._.crf_prob for token in doc] == tagged and all(tagged)
    assert any(len(ent) == 1 for ent in doc.ents)
    assert all(ent._.crf_prob not in (None, *tagged) for ent in doc.ents)


@pytest.mark.parametrize("scheme", ["BILUO", "IOB1"])
def test_confidence_is_written_and_kept(scheme):
    nlp = trained(scheme=scheme, confidence=True)
    ner = nlp.get_pipe("crf_ner")
    docs = list(nlp.pipe(["Ann Lee lives in New York .", "", "Bob left Acme Corp for Paris"]))
    for doc in docs:
        sure = {key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.0)}
        for ent in doc.ents:
            assert ent._.crf_prob == pytest.approx(sure[key([ent])[0]])
    assert any(doc.ents for doc in docs)
    [doc] = DocBin(docs=docs[:1], store_user_data=True).get_docs(nlp.vocab)
    assert [ent._.crf_prob for ent in doc.ents] == [ent._.crf_prob for ent in docs[0].ents]
    scores = nlp.evaluate(ner_examples(nlp))
    assert len(scores["ents_calibration"]) == 10
    assert 0.0 <= scores["ents_calibration_error"] <= 1.0 and 0.0 <= scores["ents_brier"] <= 1.0


def test_unlikely_spans_are_dropped():
    nlp = trained()
    ner = nlp.get_pipe("crf_ner")
    text = "Bob left Acme Corp for New York with Carla Diaz"
    all_ents = nlp(text)
    probabilities = {key([span])[0]: p for span, p in ner.span_probabilities(all_ents, 0.0)}
    threshold = sorted(probabilities[span] for span in key(all_ents.ents))[1]
    threshold *= 1 - 1e-12  # the same sums in another order
    ner.cfg["min_prob"] = threshold  # as `spacy find-threshold` does
    kept = key(nlp(text).ents)
    assert kept == tuple(span for span in key(all_ents.ents) if probabilities[span] >= threshold)
    assert 0 < len(kept) < len(all_ents.ents)


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger", "semicrf_ner"])
@pytest.mark.parametrize(
    "setting, value",
    [("decode", "nonsense"), ("decode", None), ("min_prob", 1.5), ("min_prob", "much"), ("min_prob", {"*": -1.0})],
)
def test_settings_that_are_changed_later_are_checked(factory, setting, value):
    """An unknown way to decode was the best path, and a threshold above 1 left out everything."""
    nlp = copy.deepcopy(trained_once(factory))
    nlp.get_pipe(factory).cfg[setting] = value
    with pytest.raises(ValueError, match=rf"CRF020.*{setting}"):
        nlp("Bob left")
    if setting == "decode":
        with pytest.raises(ValueError, match=r"CRF020.*decode"):
            nlp.get_pipe(factory).marginals(nlp.make_doc("Bob left"))


def test_confidence_may_be_asked_for_later():
    nlp = copy.deepcopy(trained_once("crf_ner"))
    nlp.get_pipe("crf_ner").cfg["confidence"] = True
    doc = nlp("Bob left Acme Corp")
    assert doc.ents and all(0.0 < ent._.crf_prob <= 1.0 for ent in doc.ents)


def test_posterior_decoding_has_the_most_right_tags():
    nlp = trained(decode="posterior", iterations=2)
    ner = nlp.get_pipe("crf_ner")
    doc = Doc(nlp.vocab, words=["Bob", "Acme", "Rome"])
    marginals, _ = ner.marginals(doc)

    def expected_right(spans):
        numbers = ner.annotation.path(_segments(ner, spans), np.array([0, 3]))
        return marginals[np.arange(3), numbers].sum()

    best = max(expected_right(spans) for spans in all_labellings(ner, doc))
    assert expected_right(key(nlp.get_pipe("crf_ner")(plain(doc)).ents)) == pytest.approx(best)


def _segments(ner, spans):
    from spacy_crf.schemes import Segments

    columns = [(start, end, ner.labels.index(label)) for start, end, label in spans]
    return (
        Segments(*(np.array(column, dtype=np.int64) for column in zip(*columns)))
        if columns
        else Segments(*np.zeros((3, 0), dtype=np.int64))
    )


@pytest.mark.parametrize("min_prob", [0.05, 0.3, 0.5])
def test_decoding_by_spans_takes_the_set_that_is_worth_most(nlp, min_prob):
    nlp = trained(decode="spans", min_prob=min_prob, iterations=2, scheme=nlp.get_pipe("crf_ner").cfg["scheme"])
    ner = nlp.get_pipe("crf_ner")
    for words in (["Bob", "Acme", "Rome"], ["New", "York", "Paris"]):
        doc = Doc(nlp.vocab, words=words)
        probabilities = {key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.0)}

        def worth(spans, probabilities=probabilities):
            return sum(probabilities[span] - min_prob for span in spans)

        found = key(ner(plain(doc)).ents)
        assert worth(found) == pytest.approx(max(map(worth, all_labellings(ner, doc))), abs=1e-8)
        assert all(probabilities[span] >= min_prob for span in found)


def test_decoding_by_spans_trades_precision_for_recall():
    nlp = trained(confidence=True, iterations=2)
    ner = nlp.get_pipe("crf_ner")
    text = "Bob left Acme Corp for New York with Carla Diaz ."
    sizes = []
    for min_prob in (1.0, 0.5, 0.2, 0.05, 0.0):  # as `spacy find-threshold` does
        ner.cfg.update(decode="spans", min_prob=min_prob)
        doc = nlp(text)
        assert all(ent._.crf_prob >= min_prob for ent in doc.ents)
        exact = {key([span])[0]: p for span, p in ner.span_probabilities(nlp.make_doc(text), 0.0)}
        assert [ent._.crf_prob for ent in doc.ents] == [pytest.approx(exact[span]) for span in key(doc.ents)]
        sizes.append(sum(map(len, doc.ents)))
    assert sizes == sorted(sizes) and sizes[0] == 0 < sizes[1] < sizes[-1]


@pytest.mark.parametrize("decode", ["viterbi", "posterior", "spans"])
def test_labels_have_thresholds_of_their_own(decode):
    text = "Bob left Acme Corp for New York with Carla Diaz ."
    low = trained(decode=decode, min_prob={"*": 0.01}, iterations=2)
    exact = {key([span])[0]: p for span, p in low.get_pipe("crf_ner").span_probabilities(low.make_doc(text), 0.0)}
    labels = {label for _, _, label in key(low(text).ents)}
    ner = low.get_pipe("crf_ner")
    for label in sorted(labels):
        ner.cfg["min_prob"] = {label: 1.0, "*": 0.01}
        found = key(low(text).ents)
        assert found and label not in {name for _, _, name in found}
        ner.cfg["min_prob"] = {label: 0.01, "*": 1.0}
        found = key(low(text).ents)
        assert found and {name for _, _, name in found} == {label}
        assert all(exact[span] >= 0.01 for span in found)
    ner.cfg["min_prob"] = {"PERSON": 0.5}
    with pytest.raises(ValueError, match=r"CRF846.*PERSON.*PER"):
        low(text)


def test_finding_all_that_is_possible_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        spacy.blank("en").add_pipe("crf_ner", config={"decode": "spans"})
        assert "CRFW422" in caplog.text and "min_prob" in caplog.text
        caplog.clear()
        spacy.blank("en").add_pipe("crf_ner", config={"decode": "spans", "min_prob": 0.3})
        assert not caplog.text


@pytest.mark.parametrize(
    "settings", [{"decode": "best"}, {"min_prob": 1.5}, {"min_prob": -0.1}, {"min_prob": {"PER": 2}}]
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match="CRF020"):
        spacy.blank("en").add_pipe("crf_ner", config=settings)


# ------------------------------------------------------------------------------------------------------------ rules


@pytest.mark.parametrize("decode", ["viterbi", "posterior", "spans"])
def test_rules_hold_and_probabilities_know_them(decode):
    min_prob = 0.01 if decode == "spans" else 0.0
    nlp = trained(confidence=True, decode=decode, min_prob=min_prob, **with_rules(OFTEN))
    free = trained()
    ner = nlp.get_pipe("crf_ner")
    text = "Bob Ann Carla Paris Rome"
    assert len(free(text).ents) > len({ent.label_ for ent in free(text).ents})
    doc = nlp(text)
    labels = [ent.label_ for ent in doc.ents]
    assert labels and len(labels) == len(set(labels))
    every = all_labellings(free.get_pipe("crf_ner"), free.make_doc("Bob Paris Ann"))
    allowed = {s: p for s, p in every.items() if len({label for *_, label in s}) == len(s)}
    total = sum(allowed.values())
    ruled = all_labellings(ner, nlp.make_doc("Bob Paris Ann"))
    assert ruled == {spans: pytest.approx(p / total, rel=1e-6) for spans, p in allowed.items()}
    sure = {key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.0)}
    for ent in doc.ents:
        assert ent._.crf_prob == pytest.approx(sure[key([ent])[0]])


def test_rules_come_and_are_saved(tmp_path):
    nlp = trained()
    ner = nlp.get_pipe("crf_ner")
    text = "Bob Ann Carla Paris Rome"
    ner.add_rule({"rule": "never_on", "label": "PER", "phrases": ["Ann"]})
    assert not any("Ann" in ent.text and ent.label_ == "PER" for ent in nlp(text).ents)
    with pytest.raises(ValueError, match="CRF846"):
        ner.add_rule({"rule": "at_most", "label": "DATE", "n": 1})
    with pytest.raises(ValueError, match="CRF610"):
        ner.add_rule({"rule": "never_on", "label": "PER", "pattern": [{"NONSENSE": 1}]})
    assert len(ner.constraints.rules) == 1
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.get_pipe("crf_ner").constraints.tables == ner.constraints.tables
    assert entities(loaded(text)) == entities(nlp(text))
    again = spacy.blank("en")
    again.add_pipe("crf_ner")
    again.from_bytes(nlp.to_bytes())
    assert entities(again(text)) == entities(nlp(text))


def test_a_file_of_rules_need_not_come_along(tmp_path):
    path = tmp_path / "rules.jsonl"
    path.write_text('{"rule": "at_most", "label": "PER", "n": 1}\n')
    nlp = trained(constraints={"@misc": "spacy_crf.constraints.v1", "path": str(path)})
    nlp.to_disk(tmp_path / "model")
    path.unlink()
    loaded = spacy.load(tmp_path / "model")
    doc = loaded("Bob Ann Carla Paris Rome")
    assert [ent.label_ for ent in doc.ents].count("PER") <= 1
    with pytest.raises(ValueError, match="CRF701"):
        trained(constraints={"@misc": "spacy_crf.constraints.v1", "path": str(path)})("Bob")


def test_the_config_decides_about_its_rules(tmp_path):
    nlp = trained(**with_rules(OFTEN))
    nlp.get_pipe("crf_ner").add_rule({"rule": "forbid_pair", "labels": ["PER", "GPE"]})
    nlp.to_disk(tmp_path)
    stricter = [{"rule": "at_most", "label": "*", "n": 0}]
    loaded = spacy.load(tmp_path, config={"components.crf_ner.constraints.rules": stricter})
    assert [rule.kind for rule in loaded.get_pipe("crf_ner").constraints.rules] == ["at_most", "forbid_pair"]
    assert not loaded("Bob Ann Carla Paris Rome").ents


def test_registered_functions_are_rules():
    @spacy.registry.misc("test_no_tags_on_first_token")
    def allowed(doc):
        mask = np.ones((len(doc), 13), dtype=bool)
        mask[:1, 1:] = False
        return mask

    nlp = trained(**with_rules([{"rule": "custom", "function": "test_no_tags_on_first_token"}]))
    assert all(ent.start > 0 for ent in nlp("Bob Ann Carla").ents)

    @spacy.registry.misc("test_wrong_shape")
    def wrong(doc):
        return np.ones((len(doc), 2), dtype=bool)

    @spacy.registry.misc("test_maker")
    def make():
        return allowed

    @spacy.registry.misc("test_type_error")
    def fails(doc):
        return len(doc.text, doc)

    def initialize(function):
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config=with_rules([{"rule": "custom", "function": function}]))
        nlp.initialize(lambda: ner_examples(nlp))
        return nlp

    # Before training, and not after hours of it
    for function, message in (
        ("test_wrong_shape", "CRF612"),
        ("test_unknown", "CRF611"),
        ("test_maker", r"CRF907.*'test_maker' can't be called with a Doc: too many positional"),
        ("test_type_error", r"CRF908.*'test_type_error' failed.*TypeError: len"),
    ):
        with pytest.raises(ValueError, match=message):
            initialize(function)

    @spacy.registry.misc("test_reads_what_comes_later")
    def later(doc):
        assert doc.has_annotation("TAG")
        return allowed(doc)

    nlp = initialize("test_reads_what_comes_later")
    with pytest.raises(ValueError, match=r"CRF908.*AssertionError"):
        nlp("Bob Ann Carla")


def test_patterns_of_one_word_and_of_several():
    rules = [
        {"rule": "only_on", "label": "PER", "pattern": [{"IS_TITLE": True}]},
        {"rule": "never_on", "label": "*", "pattern": [{"LOWER": "new"}, {"LOWER": "york"}]},
        {"rule": "starts_with", "label": "ORG", "pattern": [{"LOWER": {"IN": ["acme", "blue"]}}]},
    ]
    nlp = trained(**with_rules(rules))
    doc = nlp("bob likes New York and Acme Corp")
    assert all(ent.text.istitle() for ent in doc.ents if ent.label_ == "PER")
    assert not any("York" in ent.text for ent in doc.ents)


def test_spans_can_be_blocked_and_forced(caplog):
    nlp = trained(confidence=True)
    doc = nlp.make_doc("Bob left Paris for Acme Corp")
    doc.spans["crf_blocked"] = [Span(doc, 0, 1), Span(doc, 2, 3, label="GPE")]
    doc.spans["crf_forced"] = [Span(doc, 3, 5, label="ORG")]
    nlp.get_pipe("crf_ner")(doc)
    found = entities(doc)
    assert (3, 5, "ORG") in found and not any(start <= 0 < end for start, end, _ in found)
    assert not any(start <= 2 < end and label == "GPE" for start, end, label in found)
    assert doc.ents[[key([ent])[0] for ent in doc.ents].index((3, 5, "ORG"))]._.crf_prob == pytest.approx(1.0)
    doc = nlp.make_doc("Bob left Paris")
    doc.spans["crf_forced"] = [Span(doc, 0, 2, label="ORG"), Span(doc, 1, 3, label="GPE"), Span(doc, 2, 3, label="X")]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp.get_pipe("crf_ner")(doc)
    assert (0, 2, "ORG") in entities(doc)
    assert len([record for record in caplog.records if "CRFW604" in record.message]) == 2


def test_what_can_not_be_kept_is_said(caplog):
    rules = [
        {"rule": "at_least", "label": "PER", "n": 3, "name": "crowd"},
        {"rule": "always_on", "label": "GPE", "phrases": ["Rome"], "name": "Rome is a place"},
    ]
    nlp = trained(**with_rules(rules))
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        doc = nlp("Bob in Rome")
    assert [ent.label_ for ent in doc.ents] == ["PER"] * 3
    [record] = [record.message for record in caplog.records if "CRFW601" in record.message]
    assert "Rome is a place" in record and "'Bob in Rome...'" in record


@pytest.mark.parametrize(
    "rule, message",
    [
        ({"rule": "at_most", "label": "DATE", "n": 1}, "CRF846"),
        ({"rule": "only_on", "label": "PER", "pattern": [{"NONSENSE": 1}]}, "CRF610"),
        ({"rule": "custom", "function": "test_nobody_registered"}, "CRF611"),
        ({"rule": "at_least", "label": "PER", "n": 2}, "CRF613"),
    ],
)
@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_rules_that_do_not_fit_are_refused_before_training(factory, rule, message):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=with_rules([{"rule": "at_most", "label": "PER", "n": 1}, rule]))
    with pytest.raises(ValueError, match=message):
        nlp.initialize(lambda: ner_examples(nlp))


@pytest.mark.parametrize("value", [{}, [1], "at_most", {"rules": []}])
@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger", "semicrf_ner"])
def test_constraints_are_a_block(factory, value):
    with pytest.raises(ValueError, match=rf"CRF020: Component '{factory}'.*spacy_crf.constraints.v1"):
        spacy.blank("en").add_pipe(factory, config={"constraints": value})


def test_patterns_that_can_not_match_are_refused():
    for pattern in ([{"ORTH": {"REGEX": "("}}], [{"_": {"nobody_set_it": 1}}]):
        with pytest.raises(ValueError, match="CRF610"):
            trained(**with_rules([{"rule": "only_on", "label": "PER", "pattern": pattern}]))
    nlp = trained(**with_rules([{"rule": "only_on", "label": "PER", "pattern": [{"POS": "PROPN"}], "name": "names"}]))
    with pytest.raises(ValueError, match=r"CRF623: Rule 'names'.*'Bob left...'.*E155"):
        nlp("Bob left")


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_a_program_out_of_time_names_the_document(factory, caplog):
    texts = [*NER_TEXTS, "[Paris](PER) met Bob in [Paris](GPE) ."] * 2
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=with_rules([{"rule": "same_text_same_label", "name": "one label"}], time_limit=1e-6))
    examples = ner_examples(nlp, texts)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=30))
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        doc = nlp("Paris met Bob in Paris . " * 6)
    [message] = [record.message for record in caplog.records if "CRFW60" in record.message]
    assert "1e-06 s" in message and "'Paris met Bob in Paris . " in message
    if "CRFW605" in message:  # no labelling was found in time: nobody claims that there is none
        assert "one label" in message
    else:
        assert "CRFW602" in message
        assert len({ent.label_ for ent in doc.ents if ent.text == "Paris"}) <= 1
    caplog.clear()
    nlp.get_pipe(factory).cfg["decode"] = "posterior"
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        posterior = nlp("Paris met Bob in Paris . " * 6)
    told = [record.message[:7] for record in caplog.records if "CRFW603" not in record.message]
    if "CRFW605" not in told:  # no time for the labelling with the most right tokens
        assert told == ["CRFW602", "CRFW602"]
        assert posterior.to_json()["ents"] == doc.to_json()["ents"]
