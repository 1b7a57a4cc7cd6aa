"""``crf_spancat``: spans that overlap, by several chains over the same tokens."""

import itertools
import json
import logging
import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.explain.reading import Reading
from spacy_crf.explain.weights import state_names
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.models.chain_set import ChainSet
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.annotation.spans import Spans, groups_of
from spacy_crf.pipeline.saving import zero_gradients
from spacy_crf.report.cases import Judged, rule_effects
from spacy_crf.schemes import NO_SEGMENTS, get_scheme
from tests import reference
from tests.explain.test_explain import enumerated, odds
from tests.structures import segment_ways
from tests.util import plain

TEXTS = [
    ("the University of Berlin opened", [(1, 4, "ORG"), (3, 4, "LOC")]),
    ("she left Berlin for the University of Oslo", [(2, 3, "LOC"), (5, 8, "ORG"), (7, 8, "LOC")]),
    ("Nobody came .", []),
    ("Ann Lee met Bob of the University of Oslo", [(0, 2, "PER"), (3, 4, "PER"), (6, 9, "ORG"), (8, 9, "LOC")]),
]
FLAT = [(text, [span for span in spans if span[2] != "ORG"]) for text, spans in TEXTS]
FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "is_title[0]"]}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}
MODELS = {
    "chain": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS},
    "segments": {
        "@architectures": "spacy_crf.SemiMarkov.v1",
        "emissions": EMISSIONS,
        "segments": {"@architectures": "spacy_crf.SparseSegments.v1"},
        "longest_segment": 3,
        "possible_transitions": True,
    },
}
kinds = pytest.mark.parametrize("kind", MODELS)
GROUPS = ["label", [["PER", "LOC"]], "nested", "outer"]


def make_doc(vocab, text, spans, key="sc"):
    doc = Doc(vocab, words=text.split())
    if spans is not None:
        doc.spans[key] = [Span(doc, *span[:2], label=span[2]) for span in spans]
    return doc


def examples_of(nlp, texts=TEXTS, key="sc"):
    return [Example(plain(doc), doc) for doc in (make_doc(nlp.vocab, *text, key) for text in texts)]


def blank(kind="chain", **config):
    nlp = spacy.blank("en")
    model = MODELS[kind]
    if config.get("groups") == "outer":  # inner levels read the outermost spans
        model = json.loads(json.dumps(model))
        model["emissions"]["features"]["templates"] += ["outer[0]", "outer[-1]|lower[0]"]
    if config.get("groups") in ("nested", "outer"):  # all labels on levels
        config.update(groups="auto", nested=True)
    scheme = {} if kind == "segments" else {"scheme": "BIO"}
    return nlp, nlp.add_pipe("crf_spancat", config={"model": model, **scheme, **config})


def trained(kind="chain", *, texts=TEXTS, l2=0.01, steps=1, iterations=20, **config):
    nlp, pipe = blank(kind, **config)
    examples = examples_of(nlp, texts, pipe.cfg["spans_key"])
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(l2=l2, iterations_per_step=iterations)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, pipe, examples


def found(doc, key="sc"):
    return [(span.start, span.end, span.label_) for span in doc.spans[key]]


@kinds
def test_a_set_is_named_or_not(kind):
    named = {"@architectures": "spacy_crf.ChainSet.v1", "inner": {**MODELS[kind], "possible_transitions": True}}
    (_, pipe, _), (_, other, _) = trained(kind), trained(kind, model=named)
    assert (pipe.training.frame().weights() == other.training.frame().weights()).all()
    with pytest.raises(ValueError, match="CRF020"):
        ChainSet(None)


@kinds
@pytest.mark.parametrize("groups", GROUPS)
def test_it_learns_and_is_saved(kind, groups, tmp_path):
    nlp, pipe, examples = trained(kind, groups=groups)
    assert len(pipe.chains) == (3 if groups == "label" else 2)
    assert nlp.evaluate(examples)["spans_sc_f"] == 1.0
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    for example in examples:
        doc, other = nlp(plain(example.reference)), loaded(plain(example.reference))
        assert found(doc) == found(other) == found(example.reference)
        np.testing.assert_array_equal(doc.spans["sc"].attrs["scores"], other.spans["sc"].attrs["scores"])
    assert found(nlp("")) == [] == found(nlp(Doc(nlp.vocab)))
    [copy] = DocBin(store_user_data=True, docs=[doc]).get_docs(nlp.vocab)
    np.testing.assert_array_equal(copy.spans["sc"].attrs["scores"], doc.spans["sc"].attrs["scores"])


def ways_of(pipe, chain, doc):
    """All labellings of a Doc by a chain: their spans and scores, in plain Python."""
    scores = pipe.model.predict([doc])
    names = state_names(pipe.decoding)
    level = f"/{chain.annotation.level + 1}" if chain.annotation.level else ""
    own = {"O", *(f"{prefix}{label}{level}" for prefix in ("B-", "I-", "") for label in chain.labels)}
    states = [n for n, name in enumerate(names) if name in own]
    assert states == chain.states.tolist()
    cut = {name: getattr(scores, name)[..., states] for name in type(scores).AXES}
    scores = scores._replace(**{**cut, "transitions": scores.transitions[np.ix_(states, states)]})
    own, ways = [names[state].partition("/")[0] for state in states], {}
    if hasattr(scores, "emissions"):
        for score, path in reference.paths(scores, 0, len(doc)):
            tags, spans = [own[state] for state in path], []
            for t, tag in enumerate(tags):
                if tag[0] == "B":
                    end = next((e for e in range(t + 1, len(tags)) if tags[e][0] != "I"), len(tags))
                    spans.append((t, end, tag[2:]))
            ways[tuple(spans)] = score
    else:
        for way in segment_ways(None, scores, 0, len(doc)):
            begins = [t for t, state in enumerate(way.states) if state >= 0]
            ends = zip(begins, [*begins[1:], len(doc)])
            spans = [(b, e, own[way.states[b]]) for b, e in ends if own[way.states[b]] != "O"]
            ways[tuple(spans)] = way.score
    return ways


def every_labelling(pipe, doc, keeps=lambda spans: True):
    """The probability of all combinations of labellings of the chains, from their scores."""
    parts = []
    for chain in pipe.chains:
        ways = {spans: score for spans, score in ways_of(pipe, chain, doc).items() if keeps(spans)}
        log_z = reference.log_sum(list(ways.values()))
        parts.append({spans: math.exp(score - log_z) for spans, score in ways.items()})
    combined = itertools.product(*(part.items() for part in parts))
    return {tuple(spans for spans, _ in way): math.prod(p for _, p in way) for way in combined}


def places(spans):
    return tuple(sorted((span.start, span.end, span.label_) for span in spans))


def on_their_levels(pipe, spans):
    """The spans of each chain, where a longer span of its group sends a span to the next level."""
    found = []
    for chain in pipe.chains:
        own = [span for span in spans if span[2] in chain.labels]
        levels, taken = {}, []
        for begin, end, label in sorted(own, key=lambda span: (span[0] - span[1], span)):
            level = next(
                n for n in itertools.count() if not any(b < end and begin < e for b, e, at in taken if at == n)
            )
            levels[begin, end, label] = level
            taken.append((begin, end, level))
        found.append(tuple(span for span in own if levels[span] == chain.annotation.level))
    return tuple(found)


def best_sets(pipe, doc, probable, threshold):
    """The spans of the most valuable set of each chain, among the probable ones."""
    found = set()
    for chain in pipe.chains:
        ways = ways_of(pipe, chain, doc)
        log_z = reference.log_sum(list(ways.values()))
        gains = dict.fromkeys(itertools.chain(*ways), -1 + (1 - threshold) ** (1 / chain.annotation.n_levels))
        for spans, score in ways.items():
            for span in spans:
                gains[span] += math.exp(score - log_z)
        possible = (spans for spans in ways if probable.keys() >= {*spans})
        found |= {*max(possible, key=lambda spans: sum(gains[span] for span in spans))}
    return found


@kinds
@pytest.mark.parametrize("groups", GROUPS)
def test_answers_are_those_of_all_combinations_of_labellings(kind, groups):
    _, pipe, _ = trained(kind, groups=groups, l2=2.0, iterations=3)
    doc = Doc(pipe.vocab, words=["Ann", "of", "Oslo"])
    every = every_labelling(pipe, doc)
    assert sum(every.values()) == pytest.approx(1.0)
    expected = {}
    for parts, probability in every.items():
        for span in set(itertools.chain(*parts)):
            expected[span] = expected.get(span, 0.0) + probability
    answers = {places([span])[0]: probability for span, probability in pipe.span_probabilities(doc, 0.0)}
    assert answers.keys() == expected.keys()
    for span, probability in expected.items():
        assert answers[span] == pytest.approx(probability, abs=1e-9)
    best = pipe.n_best(doc, 5)
    np.testing.assert_allclose([p for p, _ in best], sorted(every.values())[:-6:-1], atol=1e-9)
    for probability, spans in best:
        assert any(
            abs(p - probability) <= 1e-9 and tuple(sorted(itertools.chain(*parts))) == places(spans)
            for parts, p in every.items()
        )
    for parts, probability in list(every.items())[:200:5]:
        spans = sorted(set(itertools.chain(*parts)))
        if on_their_levels(pipe, spans) == parts:
            given = [Span(doc, begin, end, label=label) for begin, end, label in spans]
            assert pipe.log_probability(doc, given) == pytest.approx(math.log(probability), abs=1e-9)
    marginals, tags = pipe.marginals(doc)
    assert marginals.shape == (3, len(tags))
    np.testing.assert_allclose(marginals.sum(axis=1), len(pipe.chains), atol=1e-9)
    for threshold in (0.5, 0.3, 0.1):
        pipe.cfg["threshold"] = threshold
        doc = pipe(doc)
        scores = dict(zip(found(doc), doc.spans["sc"].attrs["scores"]))
        probable = {span: probability for span, probability in expected.items() if probability >= threshold}
        assert scores.items() <= {span: pytest.approx(p, abs=1e-9) for span, p in probable.items()}.items()
        assert scores.keys() == best_sets(pipe, doc, probable, threshold)
    drawn = [places(spans) for spans in pipe.sample(doc, 800, seed=1)]
    for span, probability in expected.items():
        share = sum(span in spans for spans in drawn) / len(drawn)
        assert share == pytest.approx(probability, abs=0.05)


@kinds
def test_rules_hold_in_the_chain_of_their_labels(kind):
    rules = [
        {"rule": "at_most", "label": ["LOC", "PER"], "n": 0, "per": "doc"},
        {"rule": "length", "label": "*", "max": 1},
    ]
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": rules}
    nlp, pipe, examples = trained(kind, l2=2.0, iterations=3, constraints=rules)
    doc = Doc(nlp.vocab, words=["Ann", "of", "Oslo"])

    def keeps(spans):
        return all(end - begin == 1 and label == "ORG" for begin, end, label in spans)

    every, likely = every_labelling(pipe, doc, keeps), dict(pipe.span_probabilities(doc, 0.0))
    found_in = {places([span])[0] for span, p in likely.items() if p > 0}
    assert found_in == {span for parts in every for span in itertools.chain(*parts)}
    for span, probability in likely.items():
        expected = sum(p for parts, p in every.items() if places([span])[0] in itertools.chain(*parts))
        assert probability == pytest.approx(expected, abs=1e-9)
    pipe.cfg["threshold"] = 0.0
    assert keeps(found(nlp(examples[0].reference)))


def test_rules_of_training_hold_in_each_chain():
    rules = {
        "@misc": "spacy_crf.constraints.v1",
        "in_training": True,
        "rules": [{"rule": "at_least", "label": "ORG", "n": 1, "per": "doc"}],
    }
    nlp, pipe, examples = trained(texts=[TEXTS[0], TEXTS[1], TEXTS[3]], constraints=rules)
    assert nlp.evaluate(examples)["spans_sc_f"] == 1.0
    assert pipe.chain("ORG").rules() is not None and pipe.chain("LOC").rules() is None


def test_rules_about_several_chains_are_refused():
    nlp, pipe, _ = trained()
    with pytest.raises(ValueError, match="CRF616"):
        pipe.add_rule({"rule": "requires", "if": ["PER"], "then": ["ORG"]})
    with pytest.raises(ValueError, match="CRF616"):
        pipe.add_rule({"rule": "always_on", "label": "*", "pattern": [{"LOWER": "oslo"}]})
    with pytest.raises(ValueError, match="CRF846"):
        pipe.add_rule({"rule": "at_most", "label": "NONE", "n": 1})
    assert found(nlp("Ann left Oslo"))
    pipe.add_rule({"rule": "never_on", "label": ["LOC", "PER"], "pattern": [{"LOWER": "oslo"}]})
    assert all(label != "LOC" for *_, label in found(nlp("Ann left Oslo")))
    assert pipe.to_bytes() == blank()[1].from_bytes(pipe.to_bytes()).to_bytes()
    _, grouped, _ = trained(groups=[["PER", "ORG"]])
    grouped.add_rule({"rule": "requires", "if": ["PER"], "then": ["ORG"]})


def test_labels_that_never_overlap_share_a_chain():
    _, pipe, _ = trained(groups="auto")
    assert [set(chain.labels) for chain in pipe.chains] == [{"LOC", "PER"}, {"ORG"}]
    loaded = blank(groups="auto")[1].from_bytes(pipe.to_bytes())
    assert loaded.annotation.chains == pipe.annotation.chains
    with pytest.raises(ValueError, match="CRF510: groups"):
        blank(groups="label")[1].from_bytes(pipe.to_bytes())
    _, pipe, _ = trained(groups="auto", texts=FLAT)
    assert len(pipe.chains) == 1
    pipe.add_label("NEW")
    assert [set(chain.labels) for chain in pipe.chains] == [{"LOC", "PER"}, {"NEW"}]


@kinds
def test_flat_spans_in_one_chain_are_those_of_a_recognizer(kind):
    """One chain is the structure itself: the same weights as of the component for entities."""
    nlp, pipe, _ = trained(kind, groups="auto", texts=FLAT)
    other = spacy.blank("en")
    scheme = {} if kind == "segments" else {"scheme": "BIO"}
    ner = other.add_pipe("semicrf_ner" if kind == "segments" else "crf_ner", config={"model": MODELS[kind], **scheme})
    flat = examples_of(other, FLAT)
    for example in flat:
        example.reference.set_ents(list(example.reference.spans["sc"]))
    other.initialize(lambda: flat)
    other.update(flat, sgd=LBFGS(l2=0.01, iterations_per_step=20))
    assert pipe.dump() == ner.dump()
    ner.cfg["confidence"] = True
    for example in flat:
        doc, own = other(plain(example.reference)), nlp(plain(example.reference))
        assert [(ent.start, ent.end, ent.label_) for ent in doc.ents] == found(own)
        np.testing.assert_allclose([ent._.crf_prob for ent in doc.ents], own.spans["sc"].attrs["scores"], atol=1e-9)


@kinds
def test_later_texts_bring_labels_and_features(kind):
    _, before, examples = trained(kind)
    nlp, pipe = blank(kind)
    pipe.from_bytes(before.to_bytes())
    more = examples_of(nlp, [("Acme of Oslo fell", [(0, 3, "FIRM"), (2, 3, "LOC")])])
    optimizer = LBFGS(l2=0.001, iterations_per_step=20)
    for _ in range(2):
        nlp.update(more, sgd=optimizer)
    assert pipe.labels == ("LOC", "ORG", "PER", "FIRM") and len(pipe.chains) == 4
    assert found(nlp(plain(more[0].reference))) == [(0, 3, "FIRM"), (2, 3, "LOC")]
    assert nlp.evaluate(examples)["spans_sc_f"] > 0.8


@pytest.mark.parametrize("optimizer", ["Adam.v1", None])
def test_it_learns_by_gradients(optimizer):
    nlp, _, examples = trained(steps=0)
    sgd = (
        None if optimizer is None else spacy.registry.resolve({"x": {"@optimizers": optimizer, "learn_rate": 0.1}})["x"]
    )
    losses = [nlp.update(examples, sgd=sgd or nlp.create_optimizer())["crf_spancat"] for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]


def test_most_probable_labels_of_the_same_tokens():
    nlp, pipe, _ = trained(texts=[(text, [*spans, *((b, e, "NAME") for b, e, _ in spans)]) for text, spans in FLAT])
    doc = nlp("Ann Lee met Bob")
    assert len(found(doc)) >= 4
    scores = dict(zip(found(doc), doc.spans["sc"].attrs["scores"]))
    pipe.cfg["max_positive"] = 1
    doc = nlp("Ann Lee met Bob")
    assert [place[:2] for place in found(doc)] == [(0, 2), (3, 4)]
    for begin, end, label in found(doc):
        assert scores[begin, end, label] == max(p for place, p in scores.items() if place[:2] == (begin, end))


def test_thresholds_by_label():
    nlp, pipe, _ = trained()
    pipe.cfg["threshold"] = {"PER": 1.0, "*": 0.5}
    assert found(nlp("Ann Lee met Bob of the University of Oslo")) == [(6, 9, "ORG"), (8, 9, "LOC")]
    pipe.cfg["threshold"] = {"NONE": 0.5}
    with pytest.raises(ValueError, match="CRF846"):
        nlp("Ann")


NESTED = [("University of New York", [(0, 4, "ORG"), (0, 1, "ORG"), (2, 4, "LOC"), (2, 4, "LOC")])]


def test_spans_that_one_chain_cannot_hold_are_counted(caplog):
    texts = NESTED
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp, _, _ = trained(texts=texts)
    [message] = [record.getMessage() for record in caplog.records]
    assert "1 spans in doc.spans['sc'] overlap others of their chain" in message and "'University' (ORG)" in message
    assert found(nlp("University of New York")) == [(0, 4, "ORG"), (2, 4, "LOC")]


@pytest.mark.parametrize("groups", ["label", "auto", [["ORG", "LOC"]]])
def test_levels_hold_what_one_chain_cannot(groups, caplog):
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp, pipe, _ = trained(texts=[*NESTED, *TEXTS], groups=groups, nested=True)
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
    every = [(0, 1, "ORG"), (0, 4, "ORG"), (2, 4, "LOC")]
    assert found(nlp("University of New York")) == every
    levels = {"ORG": 2} if groups == "label" else {"LOC": 2, "ORG": 2, **({"PER": 2} if groups == "auto" else {})}
    assert pipe.cfg["levels"] == levels
    loaded = blank(groups=groups, nested=True)[1].from_bytes(pipe.to_bytes())
    assert found(loaded(nlp.make_doc("University of New York"))) == every
    doc = nlp.make_doc("University of New York")
    exact = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
    for span, p in pipe.span_probabilities(doc, 0.5):  # also what a level adds on which the span is less probable
        assert p == pytest.approx(exact[span.start, span.end, span.label_], abs=1e-9)
    before = len(pipe.chains)
    pipe.add_label("NEW")
    assert len(pipe.chains) == before + 1 and len(pipe.chain("NEW").labels) == 1


@pytest.mark.parametrize("threshold", [0.55, 0.45, 0.3, 0.15])
def test_each_level_holds_its_best_set_of_the_spans_that_are_probable_on_any(threshold):
    """A span with 0.4 on each of two levels, 0.64 on any, was not written at 0.45. Later, a level took what others had left: of
    two labels that exclude each other, both."""
    _, pipe, _ = trained(groups="nested", iterations=1, threshold=threshold)
    emissions = pipe.model.get_ref("emissions")
    for seed in range(6):
        weights = np.random.default_rng(seed).normal(size=emissions.get_param("states").shape)
        emissions.set_param("states", weights.astype(np.float32))
        emissions.attrs["features"].clear_scores()
        doc = Doc(pipe.vocab, words=["Ann", "of", "Oslo"])
        probable = {places([span])[0]: p for span, p in pipe.span_probabilities(doc, threshold)}
        expected = {span: probable[span] for span in best_sets(pipe, doc, probable, threshold)}
        doc = pipe(doc)
        assert dict(zip(found(doc), doc.spans["sc"].attrs["scores"])) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("groups", ["label", "nested"])
@pytest.mark.parametrize("kind", ["at_least", "exactly"])
def test_a_rule_is_kept_by_spans_below_the_threshold(kind, groups):
    """The set that kept the rule was cut by the threshold afterwards, without a warning."""
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": kind, "label": "ORG", "n": 1}]}
    _, pipe, _ = trained(groups=groups, iterations=1, l2=10.0, constraints=rules, threshold=0.95)
    doc = pipe(Doc(pipe.vocab, words=["Ann", "of", "Oslo"]))
    likely = [(span, p) for span, p in pipe.span_probabilities(Doc(pipe.vocab, words=["Ann", "of", "Oslo"]), 0.0)]
    [(span, p)] = [item for item in likely if item[0].label_ == "ORG"][:1]
    assert p < 0.95 and found(doc) == [*places([span])]
    assert doc.spans["sc"].attrs["scores"].tolist() == [pytest.approx(p, abs=1e-9)]


def test_texts_without_the_key_are_not_annotated(caplog):
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp, _, _ = trained(texts=[*TEXTS, ("Bob met Ann Lee", None)])
    assert "1 texts have no doc.spans['sc'], and count as not annotated" in caplog.text
    assert (2, 4, "PER") in found(nlp("Bob met Ann Lee"))


def test_a_missing_key_is_an_error_that_names_those_there_are():
    nlp, _ = blank(spans_key="other")
    examples = examples_of(nlp)
    with pytest.raises(ValueError, match=r"CRF404.*'other'.*'sc'"):
        nlp.initialize(lambda: examples)


def test_spans_without_alignment_and_across_sentences_count_as_missing(caplog):
    nlp, pipe = blank()
    docs = [make_doc(nlp.vocab, *text) for text in TEXTS]
    predicted = [plain(doc) for doc in docs]
    predicted[0] = Doc(nlp.vocab, words=["the", "Univer", "sity", "of", "Berlin", "opened"], spaces=[1, 0, 1, 1, 1, 0])
    docs[0] = Doc(nlp.vocab, words=["the", "University", "of", "Berlin", "opened"], spaces=[1, 1, 1, 1, 0])
    docs[0].spans["sc"] = [Span(docs[0], 1, 4, label="ORG"), Span(docs[0], 3, 4, label="LOC")]
    predicted[1] = Doc(nlp.vocab, words=[token.text for token in docs[1]], sent_starts=[1, 0, 0, 0, 0, 0, 1, 0])
    predicted[2] = Doc(nlp.vocab, words=["Nobodycame", "."], spaces=[0, 0])
    docs[2] = Doc(nlp.vocab, words=["Nobody", "came", "."], spaces=[0, 0, 0])
    docs[2].spans["sc"] = [Span(docs[2], 0, 1, label="PER")]
    examples = [Example(*pair) for pair in zip(predicted, docs)]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp.initialize(lambda: examples)
    assert "1 spans in doc.spans['sc'] cross the start of a sentence" in caplog.text
    assert "1 spans in doc.spans['sc'] do not align with the tokens" in caplog.text
    batch = pipe.training.data(examples)
    [loc, org, per] = batch.allowed.chains
    assert (loc.sum(axis=1) == 1).all()
    assert org[1:5].argmax(axis=1).tolist() == [1, 2, 2, 2]  # of the predicted tokens
    assert (org[11:14].sum(axis=1) > 1).all() and (org[:11].sum(axis=1) == 1).all()
    assert per[14].all() and (per[:14].sum(axis=1) == 1).all()


def test_wrong_and_possible_spans_are_those_of_their_chain():
    nlp, pipe = blank(alternatives_spans_key="maybe", incorrect_spans_key="wrong")
    doc = make_doc(nlp.vocab, *TEXTS[0])
    doc.spans["maybe"], doc.spans["wrong"] = [Span(doc, 0, 1, label="LOC")], [Span(doc, 1, 2, label="ORG")]
    examples = [*examples_of(nlp), Example(plain(doc), doc)]
    nlp.initialize(lambda: examples)
    loc, org, _ = pipe.training.data(examples[-1:]).allowed.chains
    assert loc[0].tolist() == [True, True, False] and (org.sum(axis=1) == 1).all()
    doc.spans["wrong"] = [Span(doc, 1, 4, label="ORG")]
    with pytest.raises(ValueError, match="CRF441"):
        nlp.update(examples[-1:], sgd=LBFGS())


def test_forced_and_blocked_spans_go_to_their_chains(caplog):
    nlp, _, _ = trained()
    doc = nlp.make_doc("Ann Lee met Bob")
    doc.spans["crf_forced"] = [Span(doc, 2, 4, label="ORG"), Span(doc, 0, 1, label="LOC")]
    doc.spans["crf_blocked"] = [Span(doc, 0, 2, label="PER")]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        places = found(nlp(doc))
    assert {(0, 1, "LOC"), (2, 4, "ORG")} <= set(places) and (0, 2, "PER") not in places
    assert "CRFW604" not in caplog.text


FORCED = {  # spans that are forced, spans that are blocked, and those of the forced ones that can hold
    "nested": ([(0, 3, "ORG"), (1, 2, "LOC")], [], [(0, 3, "ORG"), (1, 2, "LOC")]),
    "inner first": ([(1, 2, "LOC"), (0, 3, "ORG")], [], [(0, 3, "ORG"), (1, 2, "LOC")]),
    "the same tokens": ([(1, 3, "LOC"), (1, 3, "PER")], [], [(1, 3, "LOC"), (1, 3, "PER")]),
    "crossing": ([(0, 2, "LOC"), (1, 3, "LOC")], [], [(0, 2, "LOC"), (1, 3, "LOC")]),
    "a third level": ([(1, 2, "LOC"), (1, 3, "PER"), (0, 3, "ORG")], [], [(1, 3, "PER"), (1, 2, "LOC")]),
    "blocked beside": ([(0, 3, "ORG"), (1, 2, "LOC")], [(0, 3, "PER")], [(0, 3, "ORG"), (1, 2, "LOC")]),
    "the outer one blocked": ([(0, 3, "ORG"), (1, 2, "LOC")], [(2, 3, "ORG")], [(1, 2, "LOC")]),
    "all blocked": ([(0, 3, "ORG"), (2, 4, "LOC")], [(3, 4, "")], [(0, 3, "ORG")]),
}


@pytest.mark.parametrize("threshold", [0.1, 1.0])
@pytest.mark.parametrize("groups", ["nested", "outer", "rules"])
@kinds
def test_each_forced_span_is_on_the_level_where_training_would_have_it(kind, groups, threshold, caplog):
    """Each was forced on every level, where spans that overlap can't both hold; a forced inner span removed the outer one."""
    rules = [{"rule": "at_most", "label": ["LOC"], "n": 1}, {"rule": "at_least", "label": ["ORG"], "n": 1}]
    ruled = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": rules}} if groups == "rules" else {}
    nlp, pipe, _ = trained(
        kind, groups="nested" if groups == "rules" else groups, l2=2.0, iterations=3, threshold=threshold, **ruled
    )
    pipe.cfg["threshold"] = threshold
    docs = {}
    for name, (forced, blocked, _) in FORCED.items():
        doc = Doc(nlp.vocab, words=["Ann", "of", "Oslo", "met"])
        doc.spans["crf_forced"] = [Span(doc, begin, end, label=label) for begin, end, label in forced]
        doc.spans["crf_blocked"] = [Span(doc, begin, end, label=label) for begin, end, label in blocked]
        docs[name] = doc
    alone = {}
    for name, (forced, blocked, held) in FORCED.items():
        caplog.clear()
        doc = nlp(docs[name].copy())
        assert caplog.text.count("CRFW604") == len(forced) - len(held), name
        alone[name] = dict(zip(found(doc), doc.spans["sc"].attrs["scores"].tolist()))
        assert {span: alone[name].get(span) for span in held} == pytest.approx(dict.fromkeys(held, 1.0)), name
        for begin, end, label in alone[name]:
            assert not any(b < end and begin < e and of in ("", label) for b, e, of in blocked), name
        likely = {places([span])[0]: p for span, p in pipe.span_probabilities(docs[name], 0.0)}
        for span in held:
            assert likely[span] == pytest.approx(1.0), name
        given = [Span(doc, begin, end, label=label) for begin, end, label in held]
        assert groups == "rules" or pipe.log_probability(docs[name], given) > -np.inf, name
    for name, doc in zip(docs, nlp.pipe([doc.copy() for doc in docs.values()])):
        together = dict(zip(found(doc), doc.spans["sc"].attrs["scores"].tolist()))
        assert together == pytest.approx(alone[name]), name


@pytest.mark.parametrize(
    "config, code",
    [
        ({"groups": [["A", "B"], ["C", "A"]]}, "CRF020.*two places, as A"),
        ({"groups": "all"}, "CRF020"),
        ({"groups": [["A"], [""]]}, "CRF020"),
        ({"spans_key": ""}, "CRF020"),
        ({"threshold": 1.5}, "CRF020"),
        ({"max_positive": 0}, "CRF020"),
        ({"incorrect_spans_key": "sc"}, "CRF020"),
        ({"alternatives_spans_key": "sc"}, "CRF020"),
        ({"model": {"@architectures": "spacy_crf.HigherOrder.v1", "emissions": EMISSIONS}}, "CRF020"),
        ({"loss": {"@losses": "spacy_crf.SoftLabels.v1"}}, "CRF347"),
    ],
)
def test_impossible_settings(config, code):
    with pytest.raises(ValueError, match=code):
        spacy.blank("en").add_pipe("crf_spancat", config=config)


def test_optimizers_that_walk_along_a_chain_are_refused():
    nlp, _, examples = trained(steps=0, loss={"@losses": "spacy_crf.Perceptron.v1"})
    perceptron = {"x": {"@optimizers": "spacy_crf.AveragedPerceptron.v1"}}
    with pytest.raises(ValueError, match="CRF347"):
        nlp.update(examples, sgd=spacy.registry.resolve(perceptron)["x"])
    nlp, _, examples = trained(steps=0, groups="auto", texts=FLAT, loss={"@losses": "spacy_crf.Perceptron.v1"})
    nlp.update(examples, sgd=spacy.registry.resolve(perceptron)["x"])


def test_an_explanation_is_of_the_chain_of_its_label():
    _, pipe, examples = trained()
    doc = examples[3].reference
    explanation = pipe.explain(doc, doc[6:9])
    assert "as ORG" in str(explanation)
    whole, alone = pipe.n_best(doc, 1)[0][1], pipe.chain("ORG").n_best(doc, 2)
    assert len(whole) == 4 and len(alone[0][1]) == 1
    with pytest.raises(ValueError, match="CRF020"):
        pipe.explain(doc)


@kinds
@pytest.mark.parametrize("groups", GROUPS)
def test_explanations_add_up(kind, groups):
    """0.16.0 took the weights of transitions from other chains."""
    _, pipe, examples = trained(kind, groups=groups, l2=0.1, iterations=200)
    doc = examples[3].reference
    of_label = [chain for chain in pipe.chains if "LOC" in chain.labels]
    for span in (doc[8:9], doc[6:9], doc[4:5]):
        for chain in of_label:
            labelled = Span(doc, span.start, span.end, label="LOC")
            for how in ("contrast", "log_odds"):
                assert chain.explain(doc, labelled, kind=how).check == pytest.approx(0.0, abs=1e-6)
    for chain in of_label:
        found = chain.explain(doc, Span(doc, 6, 9, label="LOC"), kind="texts", corpus=examples, l2=0.1, effect=1)
        assert found.check == pytest.approx(0.0, abs=0.05) and len(found.rows) > 1


@kinds
@pytest.mark.parametrize("groups", GROUPS)
def test_transitions_and_ends_that_are_left_out(kind, groups):
    """0.20.0 took those of other chains, and failed."""
    nlp, pipe, _ = trained(kind, groups=groups)
    doc = nlp.make_doc("of Oslo opened")
    for chain in pipe.chains:
        place = 0, 2, chain.labels[0]
        scores = Reading(chain, DocBatch([doc])).scores
        rows = {
            (row.feature, row.token): row.contribution
            for row in chain.explain(doc, Span(doc, *place), kind="leave_out").rows
        }
        before = odds(enumerated(chain, doc, scores), place)[0]
        for name, row in (("first", ("first", 0)), ("last", ("last", 2))):
            without = np.where(getattr(scores, name) > -np.inf, 0.0, -np.inf)
            expected = before - odds(enumerated(chain, doc, scores._replace(**{name: without})), place)[0]
            assert rows.get(row, 0.0) == pytest.approx(expected, rel=1e-5, abs=1e-7)
        steps = np.array(np.broadcast_to(scores.transitions, (3, *scores.transitions.shape[-2:])))
        steps[1] = np.where(steps[1] > -np.inf, 0.0, -np.inf)
        expected = before - odds(enumerated(chain, doc, scores._replace(transitions=steps)), place)[0]
        assert rows.get(("transition", 1), 0.0) == pytest.approx(expected, rel=1e-5, abs=1e-7)


INNER = [
    ("the University of the Oslo region opened", [(1, 6, "ORG"), (4, 6, "LOC"), (4, 5, "LOC")]),
    ("she left Oslo for the University of Oslo", [(2, 3, "LOC"), (5, 8, "ORG"), (7, 8, "LOC")]),
    ("Ann came", []),
]


@pytest.mark.parametrize("possible", [False, True])
def test_features_of_outer_spans_weigh_inner_states_alone(possible):
    nlp, pipe = blank(groups="outer")
    pipe.model.get_ref("emissions").attrs["possible_states"] = possible
    examples = examples_of(nlp, INNER)
    nlp.initialize(lambda: examples)
    pipe.add_label("FIRM")
    table, states = pipe.sparse_features.tables["inner"], state_names(pipe.decoding)
    assert {states[n].partition("/")[2] for n in table.pair_columns} == {"2", "3"}
    assert {"outer[0]=ORG", "outer[-1]|lower[0]=ORG|oslo"} <= {*table.index.names()}


@kinds
def test_inner_levels_read_annotation_in_training_and_the_best_spans_in_prediction(kind):
    nlp, pipe, examples = trained(kind, texts=INNER, groups="outer")
    learned, slots = pipe.training.docs_of(examples), pipe.annotation.slots
    spans = {(b, e, slots[n].label) for b, e, n in zip(*learned.labelling.spans)}
    assert spans == {(1, 6, "ORG"), (9, 10, "LOC"), (12, 15, "ORG")}
    by_gold = pipe.model.predict(learned)[0]
    np.testing.assert_allclose(pipe.model.begin_update(learned)[0][0], by_gold, atol=1e-5)

    texts = [*INNER, ("Bob saw Oslo and Ann at the University", [])]
    docs = DocBatch([plain(make_doc(nlp.vocab, *text)) for text in texts])
    labelling, outer = pipe.sparse_features.first_stage(docs), pipe.chains[0]
    best = [(begin, span) for doc, begin in zip(docs, docs.bounds) for span in outer.n_best(doc, 1)[0][1]]
    expected = {(begin + span.start, begin + span.end, span.label_) for begin, span in best}
    assert {(b, e, slots[n].label) for b, e, n in zip(*labelling.spans)} == expected != spans
    scores = pipe.model.predict(docs)[0]
    docs.labelling = labelling
    np.testing.assert_array_equal(pipe.model.predict(docs)[0], scores)
    docs.labelling = labelling._replace(spans=NO_SEGMENTS)
    without, inner = pipe.model.predict(docs)[0], pipe.model.attrs["inner"]
    np.testing.assert_array_equal(without[:, ~inner], scores[:, ~inner])
    assert (without[:, inner] != scores[:, inner]).any()


@kinds
def test_the_gradient_of_features_of_outer_spans(kind):
    """Finite differences of the objective, and the gradient by thinc's begin_update."""
    _, pipe, examples = trained(kind, texts=INNER, groups="outer", iterations=2)
    objective = CorpusObjective(pipe.model, pipe.loss, [pipe.training.data(examples)])
    rng, weights = np.random.default_rng(0), objective.weights()
    value, gradient = objective.evaluate(weights)
    for _ in range(5):
        direction = rng.normal(size=weights.shape)
        ahead, behind = (objective.evaluate(weights + step * direction)[0] for step in (1e-5, -1e-5))
        assert (ahead - behind) / 2e-5 == pytest.approx(gradient @ direction, rel=1e-5)
    zero_gradients(pipe.model)
    scores, backprop = pipe.model.begin_update(pipe.training.docs_of(examples))
    loss, d_scores = pipe.get_loss(examples, scores)
    backprop(d_scores)
    assert loss == pytest.approx(value, rel=1e-5)
    of_inner = dict(zip((block.name for block in objective._blocks), np.split(gradient, objective._starts[1:-1])))[
        "inner"
    ]
    np.testing.assert_allclose(pipe.model.get_ref("emissions").get_grad("inner"), of_inner, atol=1e-4)


def test_an_explanation_names_features_of_outer_spans():
    """Of several levels the one where the span is most probable is explained."""
    _, pipe, examples = trained(texts=INNER, groups="outer")
    doc = plain(examples[1].reference)
    outer, inner = (pipe.chain_for(doc, Span(doc, *place, label="LOC")) for place in ((2, 3), (7, 8)))
    assert [outer, inner] == pipe.chains[:2]
    explanation = pipe.explain(doc, Span(doc, 7, 8, label="LOC"), kind="contrast")
    assert "outer[0]=ORG" in str(explanation)
    assert explanation.check == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    "factory, config, code",
    [
        ("crf_ner", {}, "CRF812"),
        ("crf_spancat", {"nested": False}, "CRF812"),
        ("crf_spancat", {"nested": True, "transitions": ["outer[0]"]}, "CRF121.*outer"),
        ("crf_spancat", {"nested": True, "emissions": "spacy_crf.HashedEmissions.v1"}, "CRF020.*outer"),
        ("crf_spancat", {"nested": True, "segment": ["seg.first:outer"]}, "CRF121.*outer"),
    ],
)
def test_who_can_read_outer_spans(factory, config, code):
    features = {**FEATURES, "templates": ["outer[0]"], "transitions": config.get("transitions", [])}
    layer = {"@architectures": config.get("emissions", "spacy_crf.SparseEmissions.v1"), "features": features}
    model = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": layer}
    if "segment" in config:
        of_segments = {"@misc": "spacy_crf.segment_features.v1", "templates": config["segment"]}
        segments = {"@architectures": "spacy_crf.SparseSegments.v1", "features": of_segments}
        model = {**MODELS["segments"], "emissions": layer, "segments": segments}
    nested = {"nested": config["nested"]} if factory == "crf_spancat" else {}
    with pytest.raises(ValueError, match=code):
        spacy.blank("en").add_pipe(factory, config={"model": model, **nested})


def test_rules_of_chains_are_shown_and_their_effects_reported(tmp_path):
    rules = [{"rule": "at_most", "label": "PER", "n": 1}, {"rule": "length", "label": "ORG", "max": 2}]
    nlp, pipe, examples = trained(constraints={"@misc": "spacy_crf.constraints.v1", "rules": rules})
    nlp.to_disk(tmp_path)
    result = CliRunner().invoke(app, ["explain", "--kind", "rules", str(tmp_path), TEXTS[3][0]])
    assert result.exit_code == 0, result.output
    assert "crf_spancat: PER" in result.output and "at_most" in result.output and "length" in result.output
    assert "LOC" not in result.output.split("\n")[0] and "crf_spancat: LOC" not in result.output
    effects = {row["rule"]: row for row in rule_effects(Judged(pipe, examples, [], []))}
    assert len(effects) == 2 and all(row["changed"] >= 1 for row in effects.values())
    with pytest.raises(ValueError, match=r"CRF408.*3 chains"):
        pipe.distribution(examples[0].reference)


def test_groups_are_few():
    annotation = Spans(get_scheme("BIO"), "sc").bind("x", spacy.blank("en").vocab, "ABCD")
    texts = [("a b c", [(0, 3, "A"), (1, 2, "B")]), ("a b c", [(0, 2, "B"), (1, 3, "C")]), ("a", [(0, 1, "D")])]
    docs = [make_doc(annotation.vocab, *text) for text in texts]
    assert sorted(groups_of(docs, annotation)) == [["A", "C"], ["B", "D"]]


def test_the_component_without_labels_finds_nothing():
    nlp, _ = blank()
    nlp.initialize()
    doc = nlp("Ann left")
    assert found(doc) == [] and len(doc.spans["sc"].attrs["scores"]) == 0


def test_commands(tmp_path):
    """annotate writes the groups, threshold sets the threshold, report and calibrate read them."""
    nlp, _, examples = trained()
    nlp.to_disk(tmp_path / "model")
    dev, raw = tmp_path / "dev.spacy", tmp_path / "raw.txt"
    DocBin(docs=[example.reference for example in examples]).to_disk(dev)
    raw.write_text("\n".join(text for text, _ in TEXTS), encoding="utf8")

    def run(command, *args):
        result = CliRunner().invoke(app, [command, str(tmp_path / "model"), *map(str, args)])
        assert result.exit_code == 0, result.output
        return result.output

    run("annotate", raw, "-o", tmp_path / "found.jsonl", "--format", "spans")
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text(encoding="utf8").splitlines()]
    doc = nlp(TEXTS[3][0])
    assert [(span["start"], span["label"]) for span in lines[3]["spans"]] == [
        (span.start_char, span.label_) for span in doc.spans["sc"]
    ]
    scores = doc.spans["sc"].attrs["scores"]
    np.testing.assert_allclose([span["prob"] for span in lines[3]["spans"]], scores, atol=1e-6)
    run("annotate", raw, "-o", tmp_path / "found.spacy", "--format", "spacy", "--min-prob", float(np.median(scores)))
    *_, kept = DocBin().from_disk(tmp_path / "found.spacy").get_docs(nlp.vocab)
    assert 0 < len(kept.spans["sc"]) == len(kept.spans["sc"].attrs["scores"]) < len(scores)
    result = CliRunner().invoke(
        app, ["annotate", *map(str, (tmp_path / "model", raw, "-o", tmp_path / "x")), "--format", "conll"]
    )
    assert "CRF883" in result.output
    assert "threshold = 0.5" in run("threshold", dev, "-o", tmp_path / "changed")
    assert spacy.load(tmp_path / "changed").get_pipe("crf_spancat").cfg["threshold"] == 0.5
    assert "9" in run("evaluate", dev, "--calibration")
    run("evaluate", dev, "-o", tmp_path / "report.html")
    assert "as ORG" in run("explain", TEXTS[0][0])
    assert "probability 0.0" in run("explain", "Nothing is there")  # why the likeliest span is not found
