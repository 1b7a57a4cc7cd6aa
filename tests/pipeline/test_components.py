"""Components of the table. With random scores: what each of them decodes and learns, against every labelling of tiny texts,
enumerated. With random weights: what a Doc gets does not depend on the other Docs of its batch."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example

from spacy_crf import arrays
from spacy_crf.constraints.settings import constraints
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.losses.clamped import LogLikelihood, Perceptron
from spacy_crf.losses.soft import SoftLabels
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.prediction import question_about
from spacy_crf.pipeline.probabilities import predict
from tests import reference
from tests.components import (
    CHAINS,
    LABELS,
    PIPELINES,
    RULES,
    SEGMENTS,
    TAGGER,
    TRAINED,
    Annotation,
    component,
    every_way,
    make_doc,
    random_annotation,
    random_scores,
)
from tests.random_rules import KINDS, random_rule, times_broken
from tests.structures import starts_of
from tests.util import draws, set_constraints


def kinds(*found):
    return pytest.mark.parametrize("kind", found, ids=lambda kind: "-".join(filter(None, kind)))


# ------------------------------------------------------------------------------------------------------ choosing spans


@kinds(*CHAINS, SEGMENTS)
def test_the_spans_that_are_chosen_are_worth_most(kind):
    """Touching spans of one label, which IO can't write, were chosen together where tags have hidden states."""
    rng, lengths = np.random.default_rng(1), [3, 1]
    pipe = component(kind)
    pipe.constraints = None
    docs = DocBatch.of([make_doc(pipe, lengths)])
    for _ in range(4):
        scores = random_scores(pipe, lengths, rng)
        every = every_way(pipe, scores)
        log_z = reference.log_sum([way.score for way in every])
        chances = {}
        for score, spans in every:
            for span in spans:
                chances[span] = chances.get(span, 0.0) + math.exp(score - log_z)
        for price in (0.05, 0.2):
            tags, certainties = predict(question_about(pipe.parts(), docs, scores), np.full(2, price))
            chosen = pipe.decoding.segments(tags, scores.starts)
            found = [(b, e, pipe.labels[label]) for b, e, label in zip(*(column.tolist() for column in chosen))]
            assert certainties["crf_prob"] == pytest.approx([chances[span] for span in found], abs=1e-9)
            best = max(sum(chances[span] - price for span in way.spans) for way in every)
            assert sum(chances[span] - price for span in found) == pytest.approx(best, abs=1e-7)


# --------------------------------------------------------------------------------------------------------- soft labels


def soften(doc, spans, open_tokens):
    """Certain soft labels, and tokens of which they say nothing."""
    told = [Span(doc, *span) for span in spans] + [Span(doc, t, t + 1, label="") for t in open_tokens]
    scores = [1.0] * len(spans) + [0.0] * len(open_tokens)
    doc.spans["crf_soft"] = SpanGroup(doc, spans=told, attrs={"scores": scores})
    return doc


@kinds(("chain", "IO"), ("chain", "BIO"), ("chain", "BILUO"), SEGMENTS)
def test_certain_soft_labels_are_annotation_beside_tokens_that_are_open(kind):
    """In front of a span IO let open tokens have its label, which made another span of it."""
    rng, lengths = np.random.default_rng(0), [4, 1]
    pipe = component(kind)
    pipe.constraints = None
    for _ in range(6):
        scores, known = random_scores(pipe, lengths, rng), random_annotation(rng, lengths)
        every = every_way(pipe, scores)
        kept = [way.score for way in every if known.allows(way)]
        expected = reference.log_sum([way.score for way in every]) - reference.log_sum(kept)
        pipe.loss = LogLikelihood()
        assert loss_of(pipe, known.write(make_doc(pipe, lengths)), scores) == pytest.approx(expected)
        pipe.loss = SoftLabels()
        certain = {t for begin, end, _ in known.spans for t in range(begin, end)}.union(known.outside)
        for chance in (0.5, 1.0):  # some of it as soft labels, and all of it
            soft = [span for span in known.spans if rng.random() < chance]
            hard = Annotation(sorted({*known.spans} - {*soft}), [t for t in known.outside if rng.random() >= chance])
            doc = soften(hard.write(make_doc(pipe, lengths)), soft, sorted(set(range(5)) - certain))
            assert loss_of(pipe, doc, scores) == pytest.approx(expected)


def loss_of(pipe, gold, scores):
    predicted = Doc(
        gold.vocab, words=[token.text for token in gold], sent_starts=[token.is_sent_start for token in gold]
    )
    return pipe.training.loss_of([Example(predicted, gold)], scores)[0]


# --------------------------------------------------------------------------------------------------- rules in training


HELD = set(KINDS) - {"same_text_same_label"}  # which no automaton holds


class Text(NamedTuple):
    lengths: list[int]  # of its sequences
    words: list[str]
    known: Annotation
    wrong: set[tuple[int, int, str]]  # spans that it does not have
    example: Example

    def allows(self, way):
        return self.known.allows(way) and self.wrong.isdisjoint(way.spans)

    def times_broken(self, rule, spans):
        sentences = np.repeat(np.arange(len(self.lengths)), self.lengths).tolist()
        return times_broken(rule.table, spans, self.words, sentences, LABELS)


def random_text(pipe, rng, *, of_tokens):
    lengths = [[3], [2, 1], [1, 2, 1]][rng.integers(3)]
    words, known = rng.choice(["aa", "bb", "cc"], size=sum(lengths)).tolist(), random_annotation(rng, lengths)
    begin = int(rng.integers(len(words)))
    wrong = {(begin, begin + 1, str(rng.choice(LABELS)))} if rng.random() < 0.5 else set()
    gold = make_doc(pipe, lengths, words)
    if of_tokens:
        of_token = [(t, t + 1, label) for begin, end, label in known.spans for t in range(begin, end)]
        known = Annotation(of_token, [])
        for t, _, label in of_token:
            gold[t].tag_ = label
    else:
        known.write(gold)
    wrong -= set(known.spans)
    gold.spans["wrong"] = [Span(gold, *span) for span in wrong]
    return Text(lengths, words, known, wrong, Example(make_doc(pipe, lengths, words), gold))


class Ruled:
    """The labellings of a text, and the rules that its annotation can keep, in their order."""

    def __init__(self, text, every, rules):
        self.every, self.annotated = every, [way for way in every if text.allows(way)]
        spans = {way.spans for way in every}
        self.times = {(rule.place, found): text.times_broken(rule, found) for rule in rules for found in spans}
        self.kept = []
        for rule in rules:
            if not rule.hard or self.keeping(self.annotated, [*self.kept, rule]):
                self.kept.append(rule)

    def keeping(self, ways, rules):
        hard = [rule.place for rule in rules if rule.hard]
        return [way for way in ways if not any(self.times[place, way.spans] for place in hard)]

    def loss(self, value):
        return self._value(value, self.every) - self._value(value, self.annotated)

    def _value(self, value, ways):
        soft = [rule for rule in self.kept if not rule.hard]
        return value(
            way.score - sum(rule.weight * self.times[rule.place, way.spans] for rule in soft)
            for way in self.keeping(ways, self.kept)
        )


def check_rules_in_training(kind, rng, loss):
    """RETURNS (int): How many rules yield; None where the rules are refused."""
    tables = [random_rule(rng, LABELS, ["aa", "bb", "cc"], kinds=HELD) for _ in range(rng.integers(1, 5))]
    pipe = component(kind)
    pipe.loss = loss
    set_constraints(pipe, constraints(tables, in_training=True, max_states=int(rng.choice([5, 20, 200]))))
    texts = [random_text(pipe, rng, of_tokens=kind == TAGGER) for _ in range(2)]
    try:
        batch = pipe.training.data([text.example for text in texts])
    except ValueError as error:
        assert any(
            code in str(error) for code in ("CRF613", "CRF614")
        )  # they exclude each other, or are too large together
        return None
    lengths = [text.lengths for text in texts]
    scores = random_scores(pipe, [n for of_text in lengths for n in of_text], rng)
    losses, _, impossible = pipe.loss(batch.structure, scores, batch.allowed)
    firsts = np.append(0, np.cumsum([len(of_text) for of_text in lengths]))
    for d, text in enumerate(texts):
        sequences = slice(firsts[d], firsts[d + 1])
        tokens = slice(*scores.starts[firsts[d : d + 2]])
        every = every_way(pipe, arrays.cut(scores, tokens, starts_of(text.lengths)))
        ruled = Ruled(text, every, pipe.constraints.rules)
        lifted = {rule.place: beside for rule, of_doc, beside in batch.structure.broken if of_doc == d}
        if not ruled.annotated:  # whatever the rules
            assert impossible[sequences].any() and not lifted
            continue
        assert lifted.keys() == {rule.place for rule in pipe.constraints.rules if rule not in ruled.kept}
        for place, beside in lifted.items():  # what is named is why, and no more than that
            [rule] = [rule for rule in pipe.constraints.rules if rule.place == place]
            assert not ruled.keeping(ruled.annotated, [rule, *beside])
            assert len(beside) < 2 or all(ruled.keeping(ruled.annotated, [rule, one]) for one in beside)
        value = max if isinstance(loss, Perceptron) else lambda scores: reference.log_sum(list(scores))
        assert not impossible[sequences].any()
        assert losses[sequences].sum() == pytest.approx(ruled.loss(value), abs=1e-8)
    return len(batch.structure.broken)


@kinds(*CHAINS, SEGMENTS, TAGGER)
@pytest.mark.parametrize("seed", range(2))
def test_the_loss_is_that_of_the_labellings_that_keep_the_rules_of_each_text(kind, seed):
    """Of rules that its annotation can't keep, alone or together, the later ones yield: texts were dropped, and chains of higher
    order failed with an AttributeError."""
    check_rules_in_training(kind, np.random.default_rng(seed), [LogLikelihood(), Perceptron()][seed % 2])


# ------------------------------------------------------------------------------------------------------------- batches

WORDS = ["aa", "bb", "cc", "Dd", "5", ".", " ", "\n"]


@cache
def make(name):
    """A pipeline with random weights."""
    factory, settings, rules = PIPELINES[name]
    nlp = spacy.blank("en")
    settings = {**settings, **({"confidence": True} if factory.endswith(("ner", "tagger", "senter")) else {})}
    if rules is not None:
        settings["constraints"] = {"@misc": "spacy_crf.constraints.v1", "rules": RULES[rules]}
    pipe = nlp.add_pipe(factory, config=settings)
    examples = [_example(nlp, n) for n in range(3)]
    nlp.initialize(lambda: examples)
    if settings["model"] in TRAINED:
        nlp.update(examples, sgd=LBFGS(l2=0.5, iterations_per_step=2))
        return nlp, pipe
    rng = np.random.default_rng(len(name))
    for node in pipe.model.walk():
        for param in node.param_names:
            if node.has_param(param):
                shape = node.get_param(param).shape
                node.set_param(param, rng.normal(0.0, 1.2, shape).astype(node.get_param(param).dtype))
        if "features" in node.attrs:
            node.attrs["features"].clear_scores()
    return nlp, pipe


def _example(nlp, n):
    words = ["aa", "bb", "cc", "Dd"]
    gold = Doc(nlp.vocab, words=words)
    gold.ents = [Span(gold, n, n + 2, LABELS[n % 2])] if n < 3 else []
    for token in gold:
        token.tag_ = LABELS[(n + token.i) % 2]
        token.is_sent_start = token.i in (0, n)
    gold.spans["sc"] = [Span(gold, 0, 3, "A"), Span(gold, 1, 2, "B"), Span(gold, 1, 3, "A"), Span(gold, 3, 4, "B")]
    gold.cats = {"A": float(n % 2), "B": float(n % 2 == 0)}
    return Example(Doc(nlp.vocab, words=words), gold)


def draw_doc(rng, nlp, factory):
    """A Doc with any of what a Doc may bring."""
    n = int(rng.integers(0, 7))
    starts = [True if t == 0 or rng.random() < 0.2 else [None, False][rng.integers(2)] for t in range(n)]
    doc = Doc(nlp.vocab, words=rng.choice(WORDS, n).tolist(), sent_starts=starts)
    if not n or rng.random() < 0.4:
        return doc

    def spans(labels):
        begins = rng.integers(0, n, rng.integers(0, 3)).tolist()
        return [Span(doc, b, min(n, b + int(rng.integers(1, 3))), str(rng.choice(labels))) for b in begins]

    for key, labels in (("crf_blocked", ["", *LABELS]), ("crf_forced", LABELS)):
        if rng.random() < 0.4:
            doc.spans[key] = spans(labels)
    if rng.random() < 0.3:
        doc.set_ents(spacy.util.filter_spans(spans(LABELS)), default=str(rng.choice(["missing", "outside"])))
    if rng.random() < 0.3:
        doc[int(rng.integers(n))].tag_ = "A"
    doc.spans["sc"] = spans(LABELS) if rng.random() < 0.3 else []
    return doc


def draw_docs(rng, nlp, name):
    """Docs, and how many of them, the first, depend on no others."""
    docs = [draw_doc(rng, nlp, PIPELINES[name][0]) for _ in range(int(rng.integers(2, 7)))]
    return docs, len(docs)


def found(doc):
    """What is decided, and its probabilities."""
    decided = (
        [(ent.start, ent.end, ent.label_) for ent in doc.ents],
        [(token.tag_, token.is_sent_start) for token in doc],
        [],
    )
    numbers = [ent._.crf_prob or 0.0 for ent in doc.ents] + [token._.crf_prob or 0.0 for token in doc]
    group = doc.spans.get("sc", [])
    decided[2].extend((span.start, span.end, span.label_) for span in group)
    numbers += [*map(float, getattr(group, "attrs", {}).get("scores", ()))]
    numbers += [doc.cats[label] for label in sorted(doc.cats)]
    return decided, numbers


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [*PIPELINES])
@given(seed=st.integers(0, 10**9))
@draws(3)
def test_a_doc_alone_and_in_any_batch(name, seed):
    """A single Doc with ``crf_blocked`` changed the scores, and the spans, of all nested sets of its batch."""
    nlp, pipe = make(name)
    rng = np.random.default_rng(seed)
    docs, n_alone = draw_docs(rng, nlp, name)
    alone = [found(pipe(doc.copy())) for doc in docs[:n_alone]]
    order = rng.permutation(len(docs)).tolist()
    for size in (len(docs), 2):
        together = dict(zip(order, pipe.pipe([docs[n].copy() for n in order], batch_size=size)))
        for n, (decided, numbers) in enumerate(alone):
            of_batch = found(together[n])
            assert of_batch[0] == decided, docs[n]
            np.testing.assert_allclose(of_batch[1], numbers, rtol=0.0, atol=1e-9)
