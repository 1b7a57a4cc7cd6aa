"""Rules about segments: each against its definition over all segmentations of tiny texts, and as users of `semicrf_ner` meet
them."""

import logging
import math
from itertools import pairwise

import numba
import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.arrays import cut_document, join_sequences
from spacy_crf.constraints import solver
from spacy_crf.constraints.rule import PatternMatches
from spacy_crf.constraints.rule_set import segment_rules
from spacy_crf.constraints.rules import RULES
from spacy_crf.constraints.settings import constraints
from spacy_crf.inference.semi_markov import SemiMarkov
from spacy_crf.inference.structure import SpanStates
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.schemes import Segments
from spacy_crf.types import GOES_ON, SegmentClamp
from tests import reference
from tests.cli.test_rules import run
from tests.constraints.test_constraints import LABELS, TABLE, WORDS, A, B, count, decode, facts_of, order_broken, price
from tests.constraints.test_constraints import Span as PlainSpan
from tests.inference.test_semi_markov import random_scores
from tests.util import entities, ner_examples

DOC = np.array([0, 5])


def make_rules(tables, labels=LABELS, **settings):
    return segment_rules(constraints(tables, **settings), labels)


def make_scores(lengths, seed, **settings):
    """Scores as the model gives them: O is one token long, and labels have a longest segment."""
    scores = random_scores(lengths, 3, seed=seed, spread=1.0, **settings)
    scores.lengths[1:, 0] = -np.inf
    scores.lengths[2:, 2] = -np.inf
    return scores


def segmentations(scores, breaks, clamp=None):
    """(score, path, spans) of all segmentations of a document, best first: the score less the price of what is broken."""
    found = [(0.0, (), [])]
    for number, (begin, end) in enumerate(reference.segment_sequences(scores)):
        found = [
            (
                before + score,
                (*path, *segments),
                [*spans, *(PlainSpan(b, e, s - 1, number, b == begin) for b, e, s in segments if s > 0)],
            )
            for before, path, spans in found
            for score, segments in reference.segment_paths(scores, begin, end, clamp)
        ]
    priced = [(score + breaks(path, spans), path, spans) for score, path, spans in found]
    return sorted((item for item in priced if item[0] > -math.inf), key=lambda item: -item[0])


def as_path(segments, tokens):
    path = np.full(tokens, GOES_ON)
    for begin, _, state in segments:
        path[begin] = state
    return path.tolist()


def assert_the_same_distribution(rules, scores, facts, expected, clamp=None):
    """Sums, marginals, n best and samples of the graph against a list of all segmentations."""
    size, tokens = scores.tokens.shape[1], len(scores.tokens)
    structure = rules.graph(rules.fitting)
    joined, allowed, places = join_sequences(rules.apply(scores, facts), clamp)
    log_z = reference.log_sum([score for score, _, _ in expected])
    assert structure.log_partition(joined, clamp=allowed)[0] == pytest.approx(log_z, abs=1e-9)
    [best] = structure.n_best(joined, 4, clamp=allowed)
    assert [path[places].tolist() for _, path in best] == [as_path(segments, tokens) for _, segments, _ in expected[:4]]
    in_tokens, in_segments = np.zeros((tokens, size)), {}
    for score, segments, _ in expected:
        p = math.exp(score - log_z)
        for segment in segments:
            begin, end, state = segment
            in_tokens[begin:end, state] += p
            in_segments[segment] = in_segments.get(segment, 0.0) + p
    marginals = structure.marginals(joined, clamp=allowed)[places, :size]
    np.testing.assert_allclose(marginals, in_tokens, atol=1e-9)
    if in_segments:
        begin, end, state = (np.array(column) for column in zip(*sorted(in_segments)))
        asked = Segments(places[begin], places[end - 1] + 1, state)
        found = structure.span_probabilities(joined, SpanStates.even(None, 0), asked, clamp=allowed)
        np.testing.assert_allclose(found, [in_segments[key] for key in sorted(in_segments)], atol=1e-9)
    drawn = structure.sample(joined, 300, seed=1, clamp=allowed)[:, places]
    possible = {tuple(as_path(segments, tokens)) for _, segments, _ in expected}
    assert {tuple(path) for path in drawn.tolist()} <= possible


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_rules_mean_what_they_say(number):
    table, times = TABLE[number]
    same_text = table["rule"] == "same_text_same_label"
    for weight in (None,) if same_text or table["rule"] == "custom" else (None, 0.7, -0.4):
        rules = make_rules([table if weight is None else {**table, "weight": weight}])
        [rule] = rules.rules
        scores = make_scores([2, 3], seed=number, per_position=number % 2 == 1)
        facts = facts_of(rules, 3)

        def breaks(path, spans, rule=rule, facts=facts):
            if rule.kind == "custom":
                return 0.0 if all(facts[0][b:e, state].all() for b, e, state in path) else -math.inf
            return price(rule, times(spans))

        expected = segmentations(scores, breaks)
        decoded = decode(rules, scores, DOC, facts, WORDS)
        if not expected:
            assert decoded.relaxed == {0: [rule]}
            continue
        assert not decoded.relaxed
        assert decoded.tags.tolist() == as_path(expected[0][1], 5)
        if not same_text:
            assert_the_same_distribution(rules, scores, facts, expected)


def test_every_rule_is_in_the_table():
    assert {table["rule"] for table, _ in TABLE} == set(RULES)


TOGETHER = [
    {"rule": "at_most", "label": "*", "n": 1},
    {"rule": "requires", "if": "B", "then": "A"},
    {"rule": "length", "label": "A", "max": 2},
    {"rule": "order", "labels": ["B", "A"], "per": "doc", "weight": 0.5},
    {"rule": "forbid_pair", "labels": ["A", "O"], "weight": 0.3},
]


def together_broken(rules, lengths):
    def breaks(path, spans):
        after_a = sum((c[2], d[2]) == (1, 0) and d[0] not in np.cumsum(lengths) for c, d in pairwise(path))
        times = [
            sum(max(0, count(spans, label) - 1) for label in (A, B)),
            int(count(spans, B) > 0 and count(spans, A) == 0),
            sum(c.label == A and c.end - c.begin > 2 for c in spans),
            order_broken(spans),
            after_a,
        ]
        return sum(price(rule, n) for rule, n in zip(rules.rules, times))

    return breaks


@pytest.mark.parametrize("way", ["search", "automata", "lattice"])
@pytest.mark.parametrize("lengths", [[2, 3], [5], [1, 0, 3, 1]], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_rules_together_and_a_clamp(seed, lengths, way, monkeypatch):
    rules = make_rules(TOGETHER, max_states=1 if way == "lattice" else 200)
    if way != "search":
        monkeypatch.setattr(solver, "MOST_PREFIXES", 1)
    scores = make_scores(lengths, seed, per_position=seed > 1)
    rng = np.random.default_rng(seed)
    clamp = SegmentClamp(rng.random((5, 3)) < 0.9, rng.random(5) < 0.9, rng.random(5) < 0.1) if seed % 2 else None
    if clamp is not None:
        clamp.states[:, 0] = True
        clamp.may_begin[clamp.must_begin] = True
    expected = segmentations(scores, together_broken(rules, lengths), clamp)
    decoded = decode(rules, scores, DOC, PatternMatches(), clamp=clamp)
    assert bool(decoded.relaxed) == (not expected)
    if not expected:  # as in some hunts
        return
    assert decoded.tags.tolist() == as_path(expected[0][1], 5)
    if way == "automata":
        assert_the_same_distribution(rules, scores, PatternMatches(), expected, clamp)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the 4000 best of 30 states take minutes in plain Python")
@pytest.mark.parametrize("way", ["search", "lattice"])
@pytest.mark.parametrize("seed", range(2))
def test_each_of_29_labels_once(seed, way, monkeypatch):
    """The product of these automata has 2^29 states; the first of the n best that keeps the rules is the answer."""
    labels = [f"L{n}" for n in range(29)]
    rules = make_rules([{"rule": "at_most", "label": label, "n": 1} for label in labels], labels)
    if way == "lattice":
        monkeypatch.setattr(solver, "MOST_PREFIXES", 1)
    scores = random_scores([6, 5], 30, seed=seed, spread=1.5)
    scores.tokens[:, :6] += 4.0  # so that they are wanted more than once
    scores.lengths[1:, 0] = -np.inf
    decoded = decode(rules, scores, np.array([0, 11]), PatternMatches())
    assert len(decoded.added_rules.get(0, [])) >= 2 or seed > 1  # in hunts fewer may be wanted twice
    joined = join_sequences(scores)
    [best] = SemiMarkov().n_best(joined.scores, 4000)
    paths = (path[joined.tokens] for _, path in best)

    def keeps_the_rules(path):
        return np.bincount(path[path > 0]).max(initial=0) <= 1

    assert keeps_the_rules(decoded.tags)
    expected = next(filter(keeps_the_rules, paths), decoded.tags)  # in some hunts it is none of the 4,000
    assert decoded.tags.tolist() == expected.tolist()


def test_texts_in_a_batch():
    rules = make_rules([{"rule": "at_most", "label": "*", "n": 2}, {"rule": "same_text_same_label"}])
    lengths = [4, 3, 0, 5, 2]
    scores, words = make_scores(lengths, 4), np.arange(14, dtype=np.uint64) % 3
    together = decode(rules, scores, np.array([0, 7, 7, 14]), PatternMatches(), words)
    assert any("same_text_same_label" in name for names in together.added_rules.values() for name in names)
    for tokens in (slice(0, 7), slice(7, 14)):
        alone, _ = cut_document(scores, None, tokens)
        found = decode(rules, alone, np.array([0, 7]), PatternMatches(), words[tokens])
        assert found.tags.tolist() == together.tags[tokens].tolist()


def test_a_batch_is_decoded_document_by_document():
    rules = make_rules([{"rule": "exactly", "label": "*", "n": 1}, {"rule": "order", "labels": ["B", "A"]}])
    scores = make_scores([4, 3, 0, 5, 2], 4)
    doc_starts = np.array([0, 7, 7, 14])
    together = decode(rules, scores, doc_starts, PatternMatches())
    assert not together.relaxed and together.added_rules
    for tokens, starts in ((slice(0, 7), [0, 4, 7]), (slice(7, 14), [0, 5, 7])):
        alone, _ = cut_document(scores, None, tokens)
        assert alone.starts.tolist() == starts
        assert decode(rules, alone, np.array([0, 7]), PatternMatches()).tags.tolist() == together.tags[tokens].tolist()


def test_later_rules_yield():
    tables = [
        {"rule": "at_least", "label": "A", "n": 2, "name": "two"},
        {"rule": "at_least", "label": "B", "n": 2, "name": "too many for three tokens"},
        {"rule": "at_most", "label": "A", "n": 2, "name": "no more"},
    ]
    decoded = decode(make_rules(tables), make_scores([3], 0), np.array([0, 3]), PatternMatches())
    assert [rule.name for rule in decoded.relaxed[0]] == ["too many for three tokens"]
    assert decoded.tags.tolist().count(1) == 2


def test_labels_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="CRF846"):
        make_rules([{"rule": "at_most", "label": "DATE", "n": 1}])


# ------------------------------------------------------------------------------------------------------- the component


def trained(iterations=6, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe("semicrf_ner", config=config)
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.5, iterations_per_step=iterations))
    return nlp


def with_rules(rules, **settings):
    return {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": rules, **settings}}


def key(spans):
    return tuple((span.start, span.end, span.label_) for span in spans)


def all_labellings(ner, doc, **settings):
    """Every labelling with its probability."""
    return {key(spans): p for p, spans in ner.n_best(doc, 5000, **settings)}


@pytest.fixture(scope="module")
def free():
    """Without rules. Do not change."""
    return trained()


ONCE = {"rule": "at_most", "label": "*", "n": 1}
SOFT = {"rule": "requires", "if": "PER", "then": "GPE", "weight": 0.8}
SHORT = {"rule": "length", "label": "ORG", "max": 1}
APART = {"rule": "forbid_pair", "labels": ["PER", "PER"]}
PER_SENTENCE = {"rule": "at_most", "label": "*", "n": 1, "per": "sentence"}


def odds(tables, spans, starts):
    """What some of the rules above make of a labelling: a factor of its probability."""
    sentences = np.searchsorted(starts, [begin for begin, _, _ in spans], side="right")
    labels = [label for *_, label in spans]
    factor = 1.0
    for table in tables:
        if table is ONCE:
            factor *= len(set(labels)) == len(labels)
        elif table is PER_SENTENCE:
            factor *= len(set(zip(sentences, labels))) == len(labels)
        elif table is SHORT:
            factor *= all(end - begin <= 1 for begin, end, label in spans if label == "ORG")
        elif table is APART:
            touching = [
                (a, b) for (a, b), s in zip(pairwise(spans), pairwise(sentences)) if a[1] == b[0] and s[0] == s[1]
            ]
            factor *= all((a[2], b[2]) != ("PER", "PER") for a, b in touching)
        elif table is SOFT and "PER" in labels and "GPE" not in labels:
            factor *= math.exp(-table["weight"])
    return factor


@pytest.mark.jit
@pytest.mark.parametrize("tables", [[ONCE], [SHORT, APART], [ONCE, SOFT, SHORT], [PER_SENTENCE, APART]])
def test_all_answers_come_from_one_distribution(tables, free):
    nlp = trained(confidence=True, **with_rules(tables))
    ner = nlp.get_pipe("semicrf_ner")
    doc = Doc(nlp.vocab, words=["Bob", "Acme", "left", "Ann"], sent_starts=[True, False, False, True])
    before = all_labellings(free.get_pipe("semicrf_ner"), doc)
    assert sum(before.values()) == pytest.approx(1.0)
    expected = {spans: p * odds(tables, spans, [0, 3]) for spans, p in before.items()}
    total = sum(expected.values())
    expected = {spans: p / total for spans, p in expected.items() if p > 0.0}
    assert all_labellings(ner, doc) == {spans: pytest.approx(p, rel=1e-6) for spans, p in expected.items()}

    in_spans, in_tokens = {}, np.zeros((len(doc), 4))
    for spans, p in expected.items():
        in_tokens[:, 0] += p
        for begin, end, label in spans:
            in_spans[begin, end, label] = in_spans.get((begin, end, label), 0.0) + p
            in_tokens[begin:end, 0] -= p
            in_tokens[begin:end, 1 + ner.labels.index(label)] += p
    found = {key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.0)}
    assert {span: p for span, p in found.items() if p > 0} == {
        s: pytest.approx(p, abs=1e-9) for s, p in in_spans.items()
    }
    likely = {key([span])[0] for span, _ in ner.span_probabilities(doc, 0.1)}
    assert likely == {span for span, p in in_spans.items() if p >= 0.1}
    # A span is as likely as itself, however its probability is rounded
    surest = max(in_spans, key=in_spans.get)
    assert surest in {key([span])[0] for span, _ in ner.span_probabilities(doc, in_spans[surest])}
    marginals, names = ner.marginals(doc)
    assert names == ["O", *ner.labels]
    np.testing.assert_allclose(marginals, in_tokens, atol=1e-6)
    for spans in [*before][::7]:  # from likely ones to unlikely ones
        as_spans = [Span(doc, *ends, label=label) for *ends, label in spans]
        expected_log = math.log(expected[spans]) if spans in expected else -math.inf
        assert ner.log_probability(doc, as_spans) == pytest.approx(expected_log, abs=1e-6)
    drawn = [key(spans) for spans in ner.sample(doc, 1000, seed=1)]
    best = max(expected, key=expected.get)
    assert set(drawn) <= set(expected)
    assert drawn.count(best) / 1000 == pytest.approx(expected[best], abs=0.05)
    ents = ner(doc.copy()).ents
    assert key(ents) == best
    assert all(ent._.crf_prob == pytest.approx(in_spans[key([ent])[0]]) for ent in ents)


def test_annotation_counts_when_asked_to(free):
    ner = free.get_pipe("semicrf_ner")
    doc = free.make_doc("Bob left Rome")
    before = all_labellings(ner, doc)
    doc.set_ents([Span(doc, 1, 2, label="ORG")], default="missing")
    assert all_labellings(ner, doc) == before
    kept = {spans: p for spans, p in before.items() if (1, 2, "ORG") in spans}
    total = sum(kept.values())
    asked = all_labellings(ner, doc, keep_annotation=True)
    assert asked == {spans: pytest.approx(p / total, rel=1e-6) for spans, p in kept.items()}
    certain = {key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.5, keep_annotation=True)}
    assert certain[1, 2, "ORG"] == pytest.approx(1.0)
    marginals, names = ner.marginals(doc, keep_annotation=True)
    assert marginals[1, names.index("ORG")] == pytest.approx(1.0)
    for spans in [*before][::7]:  # from likely ones to unlikely ones
        as_spans = [Span(doc, *ends, label=label) for *ends, label in spans]
        expected = math.log(kept[spans] / total) if spans in kept else -math.inf
        assert ner.log_probability(doc, as_spans, keep_annotation=True) == pytest.approx(expected, abs=1e-6)
    assert all((1, 2, "ORG") in key(spans) for spans in ner.sample(doc, 20, seed=0, keep_annotation=True))


@pytest.mark.parametrize("rules", [[], [ONCE]])
def test_spans_can_be_blocked_and_forced(rules, caplog):
    nlp = trained(confidence=True, **with_rules(rules))
    ner = nlp.get_pipe("semicrf_ner")
    doc = nlp.make_doc("Bob left Paris for Acme Corp")
    doc.spans["crf_blocked"] = [Span(doc, 0, 1), Span(doc, 2, 3, label="GPE")]
    doc.spans["crf_forced"] = [Span(doc, 3, 5, label="ORG")]
    ner(doc)
    found = entities(doc)
    assert (3, 5, "ORG") in found and not any(start <= 0 < end for start, end, _ in found)
    assert not any(start <= 2 < end and label == "GPE" for start, end, label in found)
    assert next(ent for ent in doc.ents if ent.start == 3)._.crf_prob == pytest.approx(1.0)
    doc = nlp.make_doc("Bob left Paris")
    doc.spans["crf_forced"] = [
        Span(doc, 0, 2, label="PER"), Span(doc, 1, 3, label="GPE"), Span(doc, 2, 3, label="X"), Span(doc, 0, 3, label="GPE")
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        ner(doc)
    assert (0, 2, "PER") in entities(doc)
    told = [record.message for record in caplog.records if "CRFW604" in record.message]
    assert len(told) == 3 and "the longest segment of its label has 2 tokens" in told[2]


def test_forced_spans_yield_to_annotation(free, caplog):
    """What is present comes first, and is one segment."""
    ner = free.get_pipe("semicrf_ner")
    words = ["Ann", "Lee", "saw", "New", "York"]
    for start, end, forced in ((0, 2, (1, 3)), (1, 3, (0, 2)), (0, 2, (0, 2)), (2, 4, (3, 5)), (0, 2, (2, 4))):
        doc = Doc(free.vocab, words=words)
        doc.set_ents([Span(doc, start, end, label="PER")], default="missing")
        doc.spans["crf_forced"] = [Span(doc, *forced, label="ORG")]
        caplog.clear()
        every = all_labellings(ner, doc, keep_annotation=True)
        assert every and all((start, end, "PER") in spans for spans in every)
        assert all((*forced, "ORG") in spans for spans in every) == (forced == (2, 4))
        assert ("an entity is there already" in caplog.text) == (forced != (2, 4))
        assert sum(every.values()) == pytest.approx(1.0)


def test_unlikely_spans_are_dropped():
    nlp = trained()
    ner = nlp.get_pipe("semicrf_ner")
    text = "Bob left Acme Corp for New York with Carla Diaz"
    before = nlp(text)
    probabilities = {key([span])[0]: p for span, p in ner.span_probabilities(before, 0.0)}
    threshold = sum(sorted(probabilities[span] for span in key(before.ents))[:2]) / 2
    ner.cfg["min_prob"] = threshold  # as `spacy find-threshold` does
    kept = key(nlp(text).ents)
    assert kept == tuple(span for span in key(before.ents) if probabilities[span] >= threshold)
    assert 0 < len(kept) < len(before.ents)
    assert ner.cfg["confidence"] is False


@pytest.mark.parametrize("rules", [[], [ONCE]])
def test_posterior_decoding_has_the_most_right_tokens(rules):
    nlp = trained(decode="posterior", iterations=2, **with_rules(rules))
    ner = nlp.get_pipe("semicrf_ner")
    doc = nlp.make_doc("Bob Acme Rome")
    marginals, names = ner.marginals(doc)

    def expected_right(spans):
        states = np.zeros(3, dtype=int)
        for begin, end, label in spans:
            states[begin:end] = names.index(label)
        return marginals[np.arange(3), states].sum()

    best = max(expected_right(spans) for spans in all_labellings(ner, doc))
    assert expected_right(key(ner(doc).ents)) == pytest.approx(best)


@pytest.mark.jit
@pytest.mark.parametrize("rules", [[], [{**ONCE, "label": "PER"}]])
@pytest.mark.parametrize("begins", [-2.0, 2.0])
def test_posterior_decoding_cuts_where_it_is_likely(rules, begins):
    """As many tokens are right either way, and rounding decided: another batch, another answer."""
    ner = trained(decode="posterior", iterations=2, **with_rules(rules)).get_pipe("semicrf_ner")
    org, longest = 1 + ner.labels.index("ORG"), ner.model.attrs["longest"]
    for seed in range(10):
        for node in ner.model.walk():
            for name in node.param_names:
                node.get_param(name)[:] = 0.0
        tokens = np.random.default_rng(seed).uniform(3.0, 4.0, size=6)
        predict = ner.model.predict

        def scores(docs, predict=predict, tokens=tokens):
            found = predict(docs)
            found.tokens[:, org], found.begins[:, org] = tokens[: len(found.tokens)], begins
            return found

        ner.model.predict = scores
        doc = ner(Doc(ner.vocab, words=["a", "b", "c", "d", "e", "f"]))
        ner.model.predict = predict
        lengths = {end - begin for begin, end, _ in key(doc.ents)}
        assert lengths == ({1} if begins > 0 else {int(longest[org])})


def test_patterns_and_functions():
    @spacy.registry.misc("test_segments_not_first")
    def allowed(doc):
        mask = np.ones((len(doc), 4), dtype=bool)
        mask[:1, 1:] = False
        return mask

    title, acme = [{"IS_TITLE": True}], [{"LOWER": {"IN": ["acme", "blue"]}}]
    rules = [
        {"rule": "only_on", "label": "PER", "pattern": title},
        {"rule": "never_on", "label": "*", "pattern": [{"LOWER": "new"}, {"LOWER": "york"}]},
        {"rule": "starts_with", "label": "ORG", "pattern": acme},
        {"rule": "ends_with", "label": "GPE", "phrases": ["Rome", "York"]},
        {"rule": "always_on", "label": ["ORG", "GPE"], "phrases": ["Diaz"]},
        {"rule": "follows", "label": "PER", "after": ["O", "START"]},
        {"rule": "custom", "function": "test_segments_not_first"},
    ]
    nlp = trained(**with_rules(rules))
    ner = nlp.get_pipe("semicrf_ner")
    doc = nlp.make_doc("Bob likes New York and Acme Diaz")
    drawn = ner.sample(doc, 300, seed=2)
    for spans in [ner(doc.copy()).ents, *drawn]:
        for span in spans:
            assert span.start > 0 and "York" not in span.text
            assert span.label_ != "PER" or span.text.istitle()
            assert span.label_ != "ORG" or span[0].lower_ == "acme"
            assert span.label_ != "GPE" or span[-1].text in ("Rome", "York")
            assert span.label_ != "PER" or not any(other.end == span.start for other in spans)
        assert any(span.start <= 6 < span.end and span.label_ in ("ORG", "GPE") for span in spans)


def test_rules_come_and_are_saved(tmp_path):
    nlp = trained(**with_rules([ONCE], max_states=8))
    ner = nlp.get_pipe("semicrf_ner")
    text = "Bob Ann Carla Paris Rome"
    ner.add_rule({"rule": "never_on", "label": "PER", "phrases": ["Ann"]})
    assert not any("Ann" in ent.text and ent.label_ == "PER" for ent in nlp(text).ents)
    for table, code in (
        ({"rule": "at_most", "label": "DATE", "n": 1}, "CRF846"),
        ({"rule": "at_most", "label": "*", "n": 0, "name": "none", "max": 1}, "CRF605"),
    ):
        with pytest.raises(ValueError, match=code):
            ner.add_rule(table)
    assert len(ner.constraints.rules) == 2
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.get_pipe("semicrf_ner").constraints.tables == ner.constraints.tables
    assert entities(loaded(text)) == entities(nlp(text))
    again = spacy.blank("en")
    again.add_pipe("semicrf_ner")
    again.from_bytes(nlp.to_bytes())
    assert entities(again(text)) == entities(nlp(text))


@pytest.mark.parametrize(
    "config, code",
    [
        ({"decode": "best"}, "CRF020"),
        ({"min_prob": 1.5}, "CRF020"),
    ],
)
def test_bad_settings_are_refused(config, code):
    with pytest.raises(ValueError, match=code):
        spacy.blank("en").add_pipe("semicrf_ner", config=config)


def test_probabilities_say_which_rule_they_leave_out(caplog):
    rules = [ONCE, {"rule": "order", "labels": ["PER", "GPE"], "name": "order"}, {"rule": "same_text_same_label"}]
    nlp = trained(confidence=True, **with_rules(rules, max_states=8))
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        doc = nlp("Bob Ann Rome Bob Carla Paris Rome")
        nlp("Bob")
    told = [record.message for record in caplog.records if "CRFW603" in record.message]
    assert len(told) == 2 and "order" in told[0] and "more than 8 states" in told[0] and "same_text" in told[1]
    labels = [ent.label_ for ent in doc.ents]
    assert len(set(labels)) == len(labels) and labels.index("PER") < labels.index("GPE")


def test_probabilities_know_a_rule_for_all_of_its_labels_or_for_none(caplog, tmp_path):
    """They knew it for as many labels as fitted, which took seconds and gigabytes where there were thirty labels."""
    rules = [{**ONCE, "name": "once"}, {**ONCE, "label": "PER", "name": "person"}]
    nlp = trained(confidence=True, **with_rules(rules, max_states=5))
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        nlp("Bob")
    [told] = [record.message for record in caplog.records if "CRFW603" in record.message]
    assert "keeps the rules once, but" in told
    nlp.to_disk(tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        loaded = spacy.load(tmp_path)
        loaded("Bob")  # a warning at each load says nothing new
        assert "CRFW603" not in caplog.text
        loaded.get_pipe("semicrf_ner").add_rule({**ONCE, "name": "again"})
        loaded("Bob")
        assert "rules once, again, but" in caplog.text
    rows = run("inspect", tmp_path).output.replace("│", " ").splitlines()
    assert [row.split()[-1] for row in rows if " at_most " in row] == ["no", "yes"]


def test_what_can_not_be_kept_is_said(caplog):
    rules = [
        {"rule": "at_least", "label": "PER", "n": 3, "name": "crowd"},
        {"rule": "always_on", "label": "GPE", "phrases": ["Rome"], "name": "Rome is a place"},
    ]
    nlp = trained(confidence=True, **with_rules(rules))
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        docs = list(nlp.pipe(["Bob in Rome", "Bob and Ann and Carla in Rome", ""]))
    assert [ent.label_ for ent in docs[0].ents] == ["PER"] * 3
    assert [ent.label_ for ent in docs[1].ents].count("PER") == 3 and docs[1].ents[-1].label_ == "GPE"
    [record] = [record.message for record in caplog.records if "CRFW601" in record.message]
    assert "Rome is a place" in record and "'Bob in Rome...'" in record
    assert all(ent._.crf_prob > 0.0 for doc in docs for ent in doc.ents)


def test_rules_can_be_looked_at(tmp_path):
    nlp = trained(**with_rules([{**ONCE, "name": "once"}, {**SHORT, "name": "short"}]))
    nlp.to_disk(tmp_path)
    result = run("explain", "--kind", "rules", tmp_path, "Bob left Ann for Acme Corp")
    assert result.exit_code == 0, result.output
    for text in ("automata of 2 states", "mask", "without rules: ", "once: "):
        assert text in result.output


def test_confidence_is_judged():
    nlp = trained(confidence=True)
    scores = nlp.evaluate(ner_examples(nlp))
    assert len(scores["ents_calibration"]) == 10 and 0.0 <= scores["ents_brier"] <= 1.0
