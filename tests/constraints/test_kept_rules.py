"""Whatever is asked of a Doc, the same rules are kept: all answers against a list of all labellings."""

import itertools
import logging
import math
import threading
import time
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.constraints import rule_set
from spacy_crf.constraints.settings import constraints
from spacy_crf.inference.span_choice import LEAST
from spacy_crf.models.weights import Weights
from spacy_crf.schemes import Segments
from tests.constraints import test_segment_rules
from tests.pipeline import test_probabilities
from tests.pipeline.test_probabilities import key
from tests.random_rules import random_rule, times_broken
from tests.util import set_constraints, tag_examples

WORDS = ["aa", "Bob", "New", "York"]
COMPONENTS = [("crf_ner", scheme) for scheme in ("BILUO", "BIO", "IO", "IOB1")]
COMPONENTS += [("crf_tagger", None), ("semicrf_ner", None)]
SETTINGS = [1, 2, 5, 200]  # of max_states


def make(factory, scheme):
    if factory == "semicrf_ner":
        return test_segment_rules.trained(iterations=2)
    return test_probabilities.trained(factory, 2, **({} if scheme is None else {"scheme": scheme}))


@pytest.fixture(scope="module", params=COMPONENTS, ids=lambda pair: "-".join(filter(None, pair)))
def nlp(request):
    """A component whose rules each test sets anew."""
    return make(*request.param)


def set_rules(pipe, tables, **settings):
    set_constraints(pipe, constraints(tables, **settings))
    return pipe.constraints.rules


def make_doc(nlp, words, starts):
    return Doc(nlp.vocab, words=words, sent_starts=starts)


def every_labelling(pipe, doc):
    set_constraints(pipe, None)
    return {key(spans): math.log(p) for p, spans in pipe.n_best(doc, 5000) if p > 0.0}


class Expected:
    """What the rules make of a list of labellings."""

    def __init__(self, labellings, rules, doc, labels):
        words, labels = [token.text for token in doc], list(labels)
        sentences = np.cumsum([token.is_sent_start for token in doc]).tolist()
        self.scores, self.rules = labellings, rules
        self.times = {
            (rule.place, label): {
                spans: times_broken(_of(rule, label), spans, words, sentences, labels) for spans in labellings
            }
            for rule in rules
            for label in [None, *labels]
            if label is None or rule.by_label
        }
        self.kept = []
        left = set(labellings)
        for rule in rules:  # in their order, those that can be kept with the ones before
            if rule.hard:
                keeping = {spans for spans in left if not self.times[rule.place, None][spans]}
                if keeping:
                    self.kept.append(rule)
                    left = keeping
        self.possible = left

    def scored(self, parts):
        """Scores of the labellings that keep some of the rules, or parts of them, as (rule, label)."""
        scores = {}
        for spans, score in self.scores.items():
            times = [(rule, self.times[rule.place, label][spans]) for rule, label in parts]
            if not any(n for rule, n in times if rule.hard and rule in self.kept):
                scores[spans] = score - sum(rule.weight * n for rule, n in times if not rule.hard)
        return scores


def _of(rule, label):
    return rule.table if label is None else {**rule.table, "label": label}


def known_parts(pipe, rules):
    """What probabilities know: masks, and the automata that fit together."""
    compiled = pipe.rules().all
    parts = [(rule, None) for rule in compiled.local]
    for n in compiled.fitting:
        rule, _, label = compiled.automata[n]
        parts.append((rule, None if label is None else pipe.labels[label]))
    return parts


def distribution(scores):
    largest = max(scores.values())
    total = sum(math.exp(score - largest) for score in scores.values())
    return {spans: math.exp(score - largest) / total for spans, score in scores.items()}


def of_spans(probabilities):
    summed = {}
    for spans, p in probabilities.items():
        for span in spans:
            summed[span] = summed.get(span, 0.0) + p
    return summed


@pytest.mark.parametrize("seed", range(20))
def test_all_answers_keep_the_same_rules(nlp, seed, caplog):
    [(_, pipe)] = nlp.pipeline
    rng = np.random.default_rng(seed)
    words = rng.choice(WORDS, size=3).tolist()
    doc = make_doc(nlp, words, [True, bool(rng.random() < 0.3), bool(rng.random() < 0.3)])
    labellings = every_labelling(pipe, doc)
    tables = [random_rule(rng, pipe.labels, words) for _ in range(rng.integers(1, 5))]
    try:
        rules = set_rules(pipe, tables, max_states=SETTINGS[seed % 4], time_limit=20.0)
        pipe.rules()
    except ValueError as error:  # they contradict each other for every text
        assert "CRF613" in str(error)
        return
    expected = Expected(labellings, rules, doc, pipe.labels)
    parts = known_parts(pipe, rules)
    known = distribution(expected.scored(parts))
    in_spans = of_spans(known)

    found, told = {}, {}
    for decode in ("viterbi", "posterior"):
        pipe.cfg["decode"] = decode
        for confidence in (False, True):
            pipe.cfg["confidence"] = confidence
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
                predicted = pipe(doc.copy())
            told[decode, confidence] = [r.message for r in caplog.records if "CRFW601" in r.message]
            found[decode, confidence] = spans = _spans_of(predicted)
            assert spans in expected.possible
            if confidence:
                for span in spans:
                    p = _probability(predicted, *span)
                    assert p == pytest.approx(in_spans[span], abs=1e-6)
        assert found[decode, True] == found[decode, False]
    yielding = [rule.name for rule in rules if rule.hard and rule not in expected.kept]
    assert all(bool(yielding) == bool(messages) for messages in told.values())
    assert all(name in messages[0] for messages in told.values() for name in yielding)

    check_best_spans(pipe, doc, expected, in_spans, float(rng.choice([0.05, 0.4, 0.9])))

    best = expected.scored([(rule, None) for rule in rules])
    assert best[found["viterbi", True]] == pytest.approx(max(best.values()), abs=1e-6)
    right = _expected_right(pipe, doc, labellings, known)
    most = max(right[spans] for spans in expected.possible)
    assert right[found["posterior", True]] == pytest.approx(most, abs=1e-6)

    as_spans = {spans: [_span(doc, span) for span in spans] for spans in labellings}
    for spans in found.values():
        assert pipe.log_probability(doc, as_spans[spans]) == pytest.approx(math.log(known[spans]), abs=1e-6)
    likely = {key([span])[0]: p for span, p in pipe.span_probabilities(doc, 0.0)}
    assert {span: p for span, p in likely.items() if p > 0} == {
        s: pytest.approx(p, abs=1e-6) for s, p in in_spans.items()
    }
    n_best = pipe.n_best(doc, 5000)
    assert {key(spans): p for p, spans in n_best} == {s: pytest.approx(p, abs=1e-6) for s, p in known.items()}
    assert {key(spans) for spans in pipe.sample(doc, 20, seed=0)} <= set(known)
    np.testing.assert_allclose(pipe.marginals(doc)[0].sum(axis=1), 1.0)
    knows_all = len(pipe.rules().all.automata) == len(pipe.rules().all.fitting) and not pipe.rules().all.global_
    if knows_all:
        assert known[found["viterbi", True]] == pytest.approx(n_best[0][0])


def check_best_spans(pipe, doc, expected, probabilities, min_prob):
    """The set that is worth most keeps the rules also where these ask for spans that are less probable than min_prob."""

    def worth(spans):
        return sum(probabilities[span] - min_prob for span in spans)

    pipe.cfg.update(decode="spans", min_prob=min_prob)
    found = _spans_of(pipe(doc.copy()))
    pipe.cfg.update(decode="viterbi", min_prob=0.0)
    words, sentences = [token.text for token in doc], np.cumsum([token.is_sent_start for token in doc]).tolist()
    assert not any(times_broken(rule.table, found, words, sentences, pipe.labels) for rule in expected.kept)
    if pipe.annotation.spans_are_tokens:  # some tokens may get no label
        return
    known = [spans for spans in expected.possible if all(probabilities.get(span, 0.0) > LEAST for span in spans)]
    assert found in expected.possible
    if known:
        assert worth(found) == pytest.approx(max(map(worth, known)), abs=1e-6)


def _probability(doc, begin, end, label):
    """Probability of an entity, or of the label of a token."""
    is_entity = any((ent.start, ent.end, ent.label_) == (begin, end, label) for ent in doc.ents)
    return (Span(doc, begin, end, label) if is_entity else doc[begin])._.crf_prob


def _spans_of(doc):
    if doc.ents:
        return key(doc.ents)
    return tuple((token.i, token.i + 1, token.tag_) for token in doc if token.tag_)


def _span(doc, span):
    begin, end, label = span
    return Span(doc, begin, end, label=label)


def _expected_right(pipe, doc, labellings, known):
    """The expected number of tokens whose tag is right, of each labelling."""
    tags = {spans: _tags_of(pipe, doc, spans) for spans in labellings}
    marginals = np.zeros((len(doc), 1 + max(row.max() for row in tags.values())))
    for spans, p in known.items():
        marginals[np.arange(len(doc)), tags[spans]] += p
    return {spans: marginals[np.arange(len(doc)), row].sum() for spans, row in tags.items()}


def _tags_of(pipe, doc, spans):
    numbers = [(begin, end, pipe.labels.index(label)) for begin, end, label in spans]
    if pipe.name == "semicrf_ner":  # its states are the labels, whatever begins where
        tags = np.zeros(len(doc), dtype=int)
        for begin, end, label in numbers:
            tags[begin:end] = label + 1
        return tags
    segments = Segments(*np.array(numbers, dtype=np.int64).reshape(-1, 3).T)
    starts = [*(token.i for token in doc if token.is_sent_start), len(doc)]
    return pipe.annotation.path(segments, np.array(starts))


ONE_OF_TWO = [{"rule": "exactly", "label": "GPE", "n": 1}, {"rule": "never_on", "label": "*", "phrases": ["aa"]}]
THREE = [{"rule": "exactly", "label": "GPE", "n": 3}, {"rule": "never_on", "label": "*", "phrases": ["aa"]}]


@pytest.mark.parametrize("decode", ["viterbi", "posterior"])
@pytest.mark.parametrize("tables, max_states, n", [(ONE_OF_TWO, 200, 1), (THREE, 2, 3)])
def test_a_mask_that_yields_holds_nowhere(nlp, tables, max_states, n, decode):
    """The labelling with the most right tokens was sought under the mask that had yielded, and broke the first rule; where the
    rules were too many for probabilities, these kept the mask and called the prediction impossible."""
    [(name, pipe)] = nlp.pipeline
    if name == "crf_tagger":
        tables = [{**tables[0], "label": "NN"}, {**tables[1], "label": ["NN"]}]
    set_rules(pipe, tables, max_states=max_states)
    pipe.cfg.update(decode=decode, confidence=True)
    doc = pipe(make_doc(nlp, ["aa", "left", "aa"], None) if n == 1 else make_doc(nlp, ["aa", "aa", "aa"], [True] * 3))
    spans = [span for span in _spans_of(doc) if span[2] in ("GPE", "NN")]
    assert len(spans) == n
    likely = {key([span])[0]: p for span, p in pipe.span_probabilities(doc, 0.0)}
    for begin, end, label in spans:
        assert 0.0 < _probability(doc, begin, end, label) == pytest.approx(likely[begin, end, label])
    assert math.isfinite(pipe.log_probability(doc, [_span(doc, span) for span in _spans_of(doc)]))


# What a search finds in the time that it has is no matter of what else the machine does


SEVERAL = [
    {"rule": "same_text_same_label"},
    {"rule": "exactly", "label": "GPE", "n": 7},
    {"rule": "at_most", "label": "PER", "n": 3},
    {"rule": "order", "labels": ["GPE", "PER"], "weight": 1.5},
    {"rule": "requires", "if": "PER", "then": "GPE"},
]
BUSY = {
    "quiet": lambda patch: nullcontext(),
    "slow clocks": lambda patch: _slow_clocks(patch),
    "busy thread": lambda patch: _busy_thread(),
}


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("time_limit", [0.02, 0.2])
def test_answers_do_not_depend_on_the_hour(factory, time_limit, caplog):
    """A search stopped by the clock gave other entities, and kept other rules, from call to call."""
    pipe = make(factory, None if factory == "semicrf_ner" else "BILUO").get_pipe(factory)
    set_rules(pipe, SEVERAL, time_limit=time_limit)
    pipe.cfg["confidence"] = True
    words = np.random.default_rng(0).choice(WORDS, size=300).tolist()
    found = {}
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for way, begin in BUSY.items():
            caplog.clear()
            with pytest.MonkeyPatch.context() as patch, begin(patch):
                doc = pipe(Doc(pipe.vocab, words=words))
            told = [record.message for record in caplog.records if "time_limit" in record.message]
            found[way] = told, [(*span, doc[span[0] : span[1]]._.crf_prob) for span in key(doc.ents)]
    assert found["quiet"][0] or time_limit > 0.1  # the limit matters
    assert found["slow clocks"] == found["busy thread"] == found["quiet"]


def _slow_clocks(patch):
    """Every look at a clock of any kind takes seconds."""
    now = itertools.count(step=7.3)
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        patch.setattr(time, name, lambda: next(now))
    return nullcontext()


@contextmanager
def _busy_thread():
    done = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize("seed, time_limit", [(0, 0.01), (1, 0.03)])
def test_answers_do_not_depend_on_other_texts(seed, time_limit):
    """Automata that count were those of the longest Doc of a batch, and took more of the limit than a shorter one's."""
    pipe = make("crf_ner", "BILUO").get_pipe("crf_ner")
    tables = [{"rule": "at_least", "label": "GPE", "n": 290}, *SEVERAL, {"rule": "at_most", "label": "ORG", "n": 400}]
    set_rules(pipe, tables, time_limit=time_limit)
    rng = np.random.default_rng(seed)
    short, long = (rng.choice(WORDS, size=n).tolist() for n in (120, 500))
    alone, beside = Doc(pipe.vocab, words=short), Doc(pipe.vocab, words=short)
    pipe(alone)
    for _ in pipe.pipe([Doc(pipe.vocab, words=long), beside], batch_size=2):
        pass
    assert key(beside.ents) == key(alone.ents)


SPARSE = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "possible_states": True,
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["orth[0]"]},
}
WITHOUT_LATTICE = {
    "order 2": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 2, "keep": None, "emissions": SPARSE},
    "order 3": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 3, "keep": None, "emissions": SPARSE},
}
AT_MOST = [{"rule": "at_most", "label": label, "n": 2} for label in ("DT", "NN", "VB")]


def tagger_of(model):
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger", config={"model": model})
    nlp.initialize(lambda: tag_examples(nlp))
    rng = np.random.default_rng(1)
    weights = Weights(tagger.model)
    weights.assign(rng.normal(size=len(weights.weights())))
    tagger.clear_scores()
    return nlp, tagger


@pytest.mark.parametrize("model", WITHOUT_LATTICE.values(), ids=WITHOUT_LATTICE)
@pytest.mark.parametrize("rules", [[{"rule": "in_one_piece", "label": "NN"}], AT_MOST], ids=["in one piece", "at most"])
def test_rules_beyond_max_states_are_kept_without_a_lattice(model, rules, caplog):
    """They were broken, and a warning spoke of 30 seconds after a tenth of one."""
    nlp, tagger = tagger_of(model)
    rng = np.random.default_rng(0)
    texts = [rng.choice(["the", "dog", "barks", "a"], size=6).tolist() for _ in range(10)]

    def found():
        return [[token.tag_ for token in tagger(Doc(nlp.vocab, words=words))] for words in texts]

    set_rules(tagger, rules, max_states=512)
    kept = found()
    set_rules(tagger, rules, max_states=1)
    assert found() == kept and "CRFW6" not in caplog.text
    set_constraints(tagger, None)
    assert found() != kept


@pytest.mark.parametrize("model", WITHOUT_LATTICE.values(), ids=WITHOUT_LATTICE)
def test_rules_without_any_search_are_named(model, monkeypatch, caplog):
    monkeypatch.setattr(rule_set, "MOST_GRAPH_STATES", 5 * 4)  # states of automata times tags
    nlp, tagger = tagger_of(model)
    set_rules(tagger, AT_MOST)
    for words in itertools.product(["the", "dog", "barks"], repeat=5):
        tagger(Doc(nlp.vocab, words=words))
    assert "CRFW920" in caplog.text and "at_most" in caplog.text and "CRFW605" not in caplog.text
