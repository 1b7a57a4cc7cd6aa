"""The semi-Markov component as its users meet it."""

import itertools

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import registry

from spacy_crf.features import doc_batch
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.semi_markov import longest_of
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.annotation.entities import GoldReport
from tests.pipeline.test_crf_ner import train
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, plain

EVERY_PLACE = ["seg.length", "seg.lower", "seg.first:lower", "seg.after:lower", "seg.contains:shape", "seg.count:lower"]


def make(config=None, texts=NER_TEXTS, gazetteers=None, **settings):
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("semicrf_ner", config=config or {})
    examples = ner_examples(nlp, texts)
    if gazetteers:
        nlp.config["initialize"]["components"]["semicrf_ner"] = {"gazetteers": gazetteers}
    train(nlp, examples, **settings)
    return nlp, ner, examples


def segments(*templates, **settings):
    features = {"@misc": "spacy_crf.segment_features.v1", "templates": [*templates], **settings}
    return {"model": {"segments": {"features": features}}}


@pytest.fixture(scope="module")
def trained():
    """Do not change: shared by the tests of this file."""
    return make()


@pytest.mark.parametrize(
    "config",
    [
        {},
        segments(*EVERY_PLACE),
        segments("seg.length"),
        segments(),
        segments("seg.matches:name", patterns={"name": [{"IS_TITLE": True}, {"IS_TITLE": True}]}),
        {"model": {"longest_segment": {"PER": 2, "ORG": 3}}},
        {"confidence": True},
    ],
)
def test_learns_its_training_data(config):
    nlp, _, examples = make(config)
    for example in examples:
        assert entities(nlp(plain(example.reference))) == entities(example.reference)
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_goes_to_disk_and_bytes_and_back(tmp_path):
    places = tmp_path / "places.txt"
    places.write_text("Paris\nNew York\nRome\n")
    config = segments(*EVERY_PLACE, "seg.in:places", "seg.near:places")
    nlp, _, examples = make(config, gazetteers={"places": str(places)})
    expected = [entities(nlp(plain(example.reference))) for example in examples]
    assert expected == [entities(example.reference) for example in examples]
    nlp.to_disk(tmp_path / "model")
    places.unlink()
    other = spacy.blank("en")
    other.add_pipe("semicrf_ner", config=config)
    for loaded in (spacy.load(tmp_path / "model"), other.from_bytes(nlp.to_bytes())):
        assert [entities(loaded(plain(example.reference))) for example in examples] == expected
        scores, again = (
            pipe.get_pipe("semicrf_ner").span_probabilities(pipe.make_doc("Ann Lee saw New York"))
            for pipe in (nlp, loaded)
        )
        assert [probability for _, probability in again] == pytest.approx([probability for _, probability in scores])


def test_the_objective_has_the_gradient_of_its_value():
    _, ner, examples = make(segments(*EVERY_PLACE), steps=1)
    unsure = ner_doc(ner_examples_vocab(examples), "[Ann Lee](PER) met Bob in Paris .")
    unsure.set_ents([unsure.ents[0]], default="missing")
    objective = CorpusObjective(
        ner.model, LogLikelihood(), [ner.training.data([*examples, Example(plain(unsure), unsure)])]
    )
    rng = np.random.default_rng(0)
    weights = rng.normal(scale=0.3, size=len(objective.weights()))
    _, gradient = objective.evaluate(weights)
    step = 1e-5
    for n in rng.choice(len(weights), 60, replace=False):
        moved = weights.copy()
        moved[n] += step
        above = objective.evaluate(moved)[0]
        moved[n] -= 2 * step
        assert gradient[n] == pytest.approx((above - objective.evaluate(moved)[0]) / (2 * step), abs=1e-5)
    objective.assign(weights)
    np.testing.assert_allclose(objective.weights(), weights, rtol=1e-6)


def ner_examples_vocab(examples):
    nlp = spacy.blank("en")
    nlp.vocab = examples[0].reference.vocab
    return nlp


def test_backprop_agrees_with_the_objective():
    """Two ways to the same numbers: thinc's forward and backward pass, and the fused objective."""
    _, ner, examples = make(segments(*EVERY_PLACE), steps=1, iterations_per_step=3)
    scores, backprop = ner.model.begin_update([example.predicted for example in examples])
    loss, d_scores = ner.get_loss(examples, scores)
    backprop(d_scores)
    objective = CorpusObjective(ner.model, LogLikelihood(), [ner.training.data(examples)])
    value, gradient = objective.evaluate(objective.weights())
    assert loss == pytest.approx(value, rel=1e-6)
    emissions, spans = ner.model.get_ref("emissions"), ner.model.get_ref("segments")
    parts = [emissions.get_grad("states")] + [spans.get_grad(place) for place in ("begins", "ends", "tokens", "spans")]
    masks = ner.model.attrs["node"].weighed(ner.model)
    parts += [ner.model.get_grad(name)[mask] for name, mask in masks.items()]
    np.testing.assert_allclose(np.concatenate(parts), gradient, atol=1e-4)


@pytest.mark.parametrize("name", ["Adam.v1", "SGD.v1"])
def test_thinc_optimizers(name):
    nlp = spacy.blank("en")
    nlp.add_pipe("semicrf_ner", config={"optimizer": None})
    examples = ner_examples(nlp)
    optimizer = registry.get("optimizers", name)(learn_rate=0.1)
    nlp.initialize(lambda: examples, sgd=optimizer)
    first = nlp.update(examples, sgd=optimizer)["semicrf_ner"]
    for _ in range(40):
        losses = nlp.update(examples, sgd=optimizer)
    assert losses["semicrf_ner"] < 0.2 * first
    assert nlp.evaluate(examples)["ents_f"] > 0.9


def test_longest_segments_are_those_of_the_data(trained):
    _, ner, _ = trained
    assert ner.labels == ("GPE", "ORG", "PER")
    assert ner.model.attrs["longest"].tolist() == [1, 2, 3, 2]


@pytest.mark.parametrize(
    "setting, expected",
    [
        (None, [1, 5, 2, 5]),
        (4, [1, 4, 4, 4]),
        (0.5, [1, 2, 2, 2]),
        ({"A": 3}, [1, 3, 2, 3]),
        ({"C": 9}, [1, 5, 2, 9]),
        (1.0, [1, 5, 2, 5]),  # a quantile
        (1, [1, 1, 1, 1]),
    ],
)
def test_longest_segment_settings(setting, expected):
    assert longest_of(setting, ["A", "B", "C"], {"A": [1, 2, 5], "B": [2], "C": []}).tolist() == expected


@pytest.mark.parametrize("value", [0, -1, 0.0, 2.5, 8.0, "8", True, 10**9, {"PER": 0}])
def test_impossible_longest_segments_are_refused(value):
    with pytest.raises(Exception, match=r"CRF020|longest_segment"):
        spacy.blank("en").add_pipe("semicrf_ner", config={"model": {"longest_segment": value}})


def test_longest_segments_of_unknown_labels_are_refused():
    with pytest.raises(ValueError, match=r"CRF846.*'PERS'.*GPE, ORG, PER"):
        make({"model": {"longest_segment": {"PERS": 3}}})


def test_longest_segment_beyond_the_doc():
    nlp, ner, examples = make({"model": {"longest_segment": 50}})
    assert entities(nlp(plain(examples[0].reference))) == entities(examples[0].reference)
    assert len(ner.span_probabilities(nlp.make_doc("Ann"), min_prob=0.0)) == 3


def test_gold_beyond_the_limit_is_reported_and_cut_up(caplog):
    texts = [*NER_TEXTS, "[The Very Long Name Of It](ORG) is here ."]
    with caplog.at_level("WARNING", logger="spacy.spacy_crf"):
        nlp, ner, examples = make({"model": {"longest_segment": 3}}, texts)
    [message] = [record.getMessage() for record in caplog.records if "longer than" in record.getMessage()]
    assert "1 gold entities" in message and "'The Very Long Name Of It...' (ORG, 6 tokens)" in message
    clamp = ner.training.supervise([examples[-1]], np.array([0, 9]), GoldReport()).clamp
    path = ner.model.attrs["node"].structure.only_path(clamp)
    assert path.tolist() == [2, -2, -2, 2, -2, -2, 0, 0, 0]
    assert entities(nlp(plain(examples[-1].reference))) == [(0, 3, "ORG"), (3, 6, "ORG")]


def test_entities_already_there_are_kept(trained):
    nlp, _, _ = trained
    doc = Doc(nlp.vocab, words=["Ann", "Lee", "lives", "in", "New", "York", "."])
    doc.set_ents([Span(doc, 0, 1, "GPE", kb_id="Q7"), Span(doc, 1, 3, "OTHER")], default="missing")
    nlp.get_pipe("semicrf_ner")(doc)
    assert entities(doc) == [(0, 1, "GPE"), (1, 3, "OTHER"), (4, 6, "GPE")]
    assert doc.ents[0].kb_id_ == "Q7"


def test_presets_longer_than_the_limit_are_kept(trained):
    nlp, _, _ = trained
    doc = Doc(nlp.vocab, words=["Ann", "Lee", "Bob", "Paris", "Acme", "lives", "in", "New", "York", "."])
    doc.set_ents([Span(doc, 0, 5, "GPE")], default="missing")
    nlp.get_pipe("semicrf_ner")(doc)
    assert entities(doc) == [(0, 5, "GPE"), (7, 9, "GPE")]


def test_blocked_tokens_stay_outside(trained):
    nlp, _, _ = trained
    doc = Doc(nlp.vocab, words=["Ann", "Lee", "lives", "in", "New", "York", "."])
    doc.set_ents([], blocked=[doc[4:6]], default="missing")
    nlp.get_pipe("semicrf_ner")(doc)
    assert entities(doc) == [(0, 2, "PER")]


def test_entities_end_with_the_sentence(trained):
    nlp, _, _ = trained
    words = ["In", "New", "York", "it", "rains", "."]
    doc = Doc(nlp.vocab, words=words, sent_starts=[True, False, True, False, False, False])
    assert all(end <= 2 or start >= 2 for start, end, _ in entities(nlp.get_pipe("semicrf_ner")(doc)))


def test_missing_annotation_allows_any_segment():
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("semicrf_ner")
    examples = ner_examples(nlp)
    partial = ner_doc(nlp, "[Ann Lee](PER) lives in New York .")
    partial.set_ents([partial.ents[0]], default="missing")
    examples.append(Example(plain(partial), partial))
    train(nlp, examples)
    clamp = ner.training.supervise(examples[-1:], np.array([0, 7]), GoldReport()).clamp
    assert clamp.states[2:].all() and clamp.must_begin.tolist() == [True, False, True, *[False] * 4]
    assert entities(nlp(plain(partial))) == [(0, 2, "PER"), (4, 6, "GPE")]


def test_empty_and_odd_docs(trained):
    nlp, ner, _ = trained
    docs = [nlp.make_doc(text) for text in ["", " ", "\n\n \t", "x", "", "Ann Lee lives in New York .", "é́\u200b😀"]]
    done = list(ner.pipe(docs))
    assert entities(done[5]) == [(0, 2, "PER"), (4, 6, "GPE")]
    empty = nlp.make_doc("")
    assert ner.marginals(empty)[0].shape == (0, 4)
    assert ner.span_probabilities(empty) == [] and ner.n_best(empty, 2) == [(1.0, [])]
    assert ner.log_probability(empty, []) == 0.0 and ner.sample(empty, 2, seed=0) == [[], []]


def test_batch_equals_one_by_one(trained):
    _nlp, ner, examples = trained
    together = [entities(doc) for doc in ner.pipe([plain(eg.reference) for eg in examples], batch_size=4)]
    assert together == [entities(ner(plain(eg.reference))) for eg in examples]


def test_two_processes(trained):
    nlp, _, examples = trained
    texts = [example.reference.text for example in examples] * 5
    one = [entities(doc) for doc in nlp.pipe(texts)]
    assert [entities(doc) for doc in nlp.pipe(texts, n_process=2, batch_size=7)] == one


def test_new_label_on_a_trained_pipeline():
    nlp, ner, examples = make()
    before = [entities(nlp(plain(example.reference))) for example in examples]
    ner.add_label("MUSIC")
    assert [entities(nlp(plain(example.reference))) for example in examples] == before
    more = examples + ner_examples(nlp, ["In [Rome](GPE) [Bob](MUSIC) rains ."])
    optimizer = nlp.resume_training(sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01))
    for _ in range(5):
        nlp.update(more, sgd=optimizer)
    assert nlp.evaluate(more)["ents_f"] == 1.0


def test_starting_from_a_trained_component_keeps_what_was_learned(tmp_path):
    nlp, ner, examples = make()
    nlp.to_disk(tmp_path)
    before = ner.span_probabilities(nlp.make_doc("Ann Lee saw Paris"))
    longer = ner_examples(nlp, ["[One Two Three Four](ORG) left ."])
    ner.initialize(lambda: examples + longer, nlp=nlp, start_from=tmp_path)
    assert ner.model.attrs["longest"].tolist() == [1, 2, 4, 2]
    after = {str(span) + span.label_: p for span, p in ner.span_probabilities(nlp.make_doc("Ann Lee saw Paris"))}
    assert after["Ann LeePER"] == pytest.approx(before[0][1], abs=0.1)
    ner.initialize(lambda: longer, nlp=nlp)  # begins anew
    assert ner.model.attrs["longest"].tolist() == [1, 4, 4, 4]


# ------------------------------------------------------------------------------------------------------- probabilities


def every_labelling(doc, labels, longest):
    """All lists of entities of a short Doc."""

    def rest(begin):
        if begin == len(doc):
            yield []
            return
        for tail in rest(begin + 1):
            yield tail
        for label, limit in zip(labels, longest):
            for end in range(begin + 1, min(begin + limit, len(doc)) + 1):
                for tail in rest(end):
                    yield [Span(doc, begin, end, label=label), *tail]

    return list(rest(0))


def key(spans):
    return tuple((span.start, span.end, span.label_) for span in spans)


def test_probabilities_match_enumeration(trained):
    nlp, ner, _ = make(steps=1, iterations_per_step=4)
    doc = nlp.make_doc("Bob saw New York")
    labellings = every_labelling(doc, ner.labels, ner.model.attrs["longest"][1:])
    probability = {key(spans): np.exp(ner.log_probability(doc, spans)) for spans in labellings}
    assert len(probability) == len(labellings)
    assert sum(probability.values()) == pytest.approx(1.0, abs=1e-6)

    best = ner.n_best(doc, 5)
    assert [p for p, _ in best] == pytest.approx(sorted(probability.values(), reverse=True)[:5], abs=1e-9)
    assert all(probability[key(spans)] == pytest.approx(p, abs=1e-9) for p, spans in best)

    expected = {}
    for spans, p in probability.items():
        for span in spans:
            expected[span] = expected.get(span, 0.0) + p
    found = ner.span_probabilities(doc, min_prob=0.05)
    assert {key([span])[0]: p for span, p in found} == pytest.approx(
        {span: p for span, p in expected.items() if p >= 0.05}, abs=1e-6
    )
    assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)

    marginals, names = ner.marginals(doc)
    assert names == ["O", "GPE", "ORG", "PER"]
    of_label = np.zeros((len(doc), 4))
    for (start, end, label), p in expected.items():
        of_label[start:end, names.index(label)] += p
    np.testing.assert_allclose(marginals[:, 1:], of_label[:, 1:], atol=1e-6)

    drawn = [key(spans) for spans in ner.sample(doc, 2000, seed=3)]
    assert drawn == [key(spans) for spans in ner.sample(doc, 2000, seed=3)]
    assert drawn.count(key(best[0][1])) / 2000 == pytest.approx(best[0][0], abs=0.05)


def test_n_best_of_several_sentences(trained):
    nlp, ner, _ = trained
    words = ["Bob", "saw", "Rome", ".", "Ann", "Lee", "left", "."]
    doc = Doc(nlp.vocab, words=words, sent_starts=[n in (0, 4) for n in range(len(words))])
    halves = [ner.n_best(Doc(nlp.vocab, words=part), 4) for part in (words[:4], words[4:])]
    products = sorted((a * b for (a, _), (b, _) in itertools.product(*halves)), reverse=True)[:4]
    assert [p for p, _ in ner.n_best(doc, 4)] == pytest.approx(products)


def test_confidence_is_the_probability_of_the_entity():
    nlp, ner, _ = make({"confidence": True}, steps=1, iterations_per_step=6)
    text = "Ann Lee saw New York"
    doc = nlp(text)
    exact = {key([span])[0]: p for span, p in ner.span_probabilities(nlp.make_doc(text), min_prob=0.0)}
    assert doc.ents and all(ent._.crf_prob == pytest.approx(exact[key([ent])[0]]) for ent in doc.ents)
    [again] = DocBin(store_user_data=True, docs=[doc]).get_docs(nlp.vocab)
    assert [ent._.crf_prob for ent in again.ents] == [ent._.crf_prob for ent in doc.ents]


def test_labellings_that_are_not_possible(trained):
    nlp, ner, _ = trained
    doc = nlp.make_doc("Bob Lee saw New York")
    assert ner.log_probability(doc, [Span(doc, 0, 3, label="PER")]) == -np.inf  # longer than any
    with pytest.raises(ValueError, match=r"CRF409.*'Bob Lee' \(PER, tokens 0 to 2\).*'Lee saw' \(GPE, tokens 1 to 3\)"):
        ner.log_probability(doc, [Span(doc, 1, 3, label="GPE"), Span(doc, 0, 2, label="PER")])
    assert ner.log_probability(doc, [Span(doc, 0, 1, label="MUSIC")]) == -np.inf
    across = Doc(nlp.vocab, words=["In", "New", "York"], sent_starts=[True, False, True])
    assert ner.log_probability(across, [Span(across, 1, 3, label="GPE")]) == -np.inf


@registry.misc("test_semicrf_ner.loudness")
def make_loudness():
    return lambda span: [float(span.doc.user_data.get("loud", 0.0))]


def test_features_of_functions_are_read_again_at_each_step():
    functions = {"loudness": {"@misc": "test_semicrf_ner.loudness"}}
    nlp, ner, examples = make(segments("seg.fn:loudness", functions=functions), steps=1)
    optimizer = LBFGS(iterations_per_step=1)
    nlp.update(examples, sgd=optimizer)
    before = ner.training.corpus.objective.signature
    nlp.update(examples, sgd=optimizer)
    assert ner.training.corpus.objective.signature == before
    for example in examples:
        example.predicted.user_data["loud"] = 5.0
    nlp.update(examples, sgd=optimizer)
    assert ner.training.corpus.objective.signature != before


def test_gazetteers_nobody_reads_are_refused(tmp_path):
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("semicrf_ner")
    with pytest.raises(ValueError, match=r"CRF944.*towns"):
        ner.initialize(lambda: ner_examples(nlp), nlp=nlp, gazetteers={"towns": tmp_path / "towns.txt"})


def test_a_doc_of_many_tokens(trained):
    nlp, ner, examples = trained
    words = [token.text for example in examples for token in example.reference] * 400
    assert len(ner(Doc(nlp.vocab, words=words)).ents) > 3000


def test_weights_that_are_zero_are_not_saved(tmp_path):
    nlp = spacy.blank("en")
    pipe, examples = nlp.add_pipe("semicrf_ner"), ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l1=0.3, l2=0.01, iterations_per_step=50))
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    for ref, store in (("emissions", "features"), ("segments", "segment_features")):
        trained, kept = (component.model.get_ref(ref) for component in (pipe, loaded.get_pipe("semicrf_ner")))
        for name, rows in kept.attrs[store].tables.items():
            weights = trained.get_param(name)
            assert len(kept.get_param(name)) == rows.n_weights == np.count_nonzero(weights)
            assert (np.diff(rows.pair_starts) > 0).all()
            assert len(trained.get_param(name)) == trained.attrs[store].tables[name].n_weights  # training may go on
    assert any((pipe.model.get_ref("segments").get_param(name) == 0).any() for name in ("begins", "spans"))
    for example in examples:
        words = [token.text for token in example.reference]
        assert entities(loaded(Doc(loaded.vocab, words=words))) == entities(nlp(plain(example.reference)))


def test_prediction_scores_what_training_scores():
    """With features of every place, of one word and of several: and again after an optimizer changed the weights in place."""
    templates = ["seg.first:lower[-2..1]", "seg.last:shape[0]", "seg.contains:lower", "seg.count:is_title", "seg.text"]
    templates += [
        "seg.first:lower[0]|seg.first:lower[1]",
        "seg.before:lower",
        "seg.after:shape",
        "seg.length",
        "seg.shape",
    ]
    features = {"@misc": "spacy_crf.segment_features.v1", "extra": templates}
    segments = {"@architectures": "spacy_crf.SparseSegments.v1", "features": features}
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("semicrf_ner", config={"model": {"segments": segments}, "optimizer": None})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    docs = [plain(example.reference) for example in examples]
    for _ in range(3):
        predicted = pipe.model.predict(docs)
        trained, _ = pipe.model.begin_update(docs)
        for name, array in zip(type(trained).AXES, trained):
            np.testing.assert_allclose(getattr(predicted, name), array, atol=1e-5, err_msg=name)
        nlp.update(examples, sgd=registry.get("optimizers", "Adam.v1")(0.1))
    assert np.abs(predicted.begins).max() > 0.05


def test_docs_are_read_once_for_a_prediction(trained, monkeypatch):
    """By the features of tokens and of segments together."""
    nlp, ner, _ = trained
    read = []
    monkeypatch.setattr(
        doc_batch, "read_attributes", lambda *args, of=doc_batch.read_attributes: read.append(args) or of(*args)
    )
    ner.predict([nlp.make_doc("Ann Lee left Rome")])
    assert len(read) == 1
