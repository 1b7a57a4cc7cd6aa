"""Alternatives and spans known to be wrong, for segments: each against its definition over all segmentations of tiny texts."""

import math
from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_crf.constraints.rule import PatternMatches
from spacy_crf.constraints.training import Excluded, RuledSegments
from spacy_crf.inference.semi_markov import SemiMarkov
from spacy_crf.losses.clamped import LogLikelihood, Perceptron, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf.optimizers.sgd import SGD
from spacy_crf.schemes import Segments
from spacy_crf.types import SegmentClamp, SegmentScores
from tests import reference
from tests.constraints.test_segment_rules import TOGETHER, make_rules, make_scores, segmentations, together_broken
from tests.constraints.test_segment_rules_in_training import assert_gradient
from tests.util import entities, ner_examples, plain

LONGEST = {"A": 3, "B": 2}
WORDS = ["v", "w", "x", "y", "z"]


def make(labels=LONGEST, **config):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(
        "semicrf_ner", config={"alternatives_spans_key": "maybe", "incorrect_spans_key": "wrong", **config}
    )
    for label in labels:
        pipe.add_label(label)
    pipe.model.attrs["longest"] = np.array([1, *labels.values()], dtype=np.int32)
    return nlp, pipe


def annotated(nlp, *, ents=(), outside=(), maybe=(), wrong=(), words=WORDS, sentences=None):
    gold = Doc(nlp.vocab, words=words, sent_starts=sentences)
    gold.set_ents([Span(gold, *ent) for ent in ents], outside=[gold[t : t + 1] for t in outside], default="missing")
    gold.spans["maybe"] = [Span(gold, *span) for span in maybe]
    gold.spans["wrong"] = [Span(gold, *span) for span in wrong]
    return Example(Doc(nlp.vocab, words=words, sent_starts=sentences), gold)


def what_is_left(pipe, example):
    """The segmentations that annotation leaves, as sets of (begin, end, label)."""
    batch = pipe.training.data([example])
    n, size = batch.allowed.states.shape
    lengths = np.where(np.arange(1, 4)[:, None] <= pipe.model.attrs["longest"], 0.0, -np.inf)
    zeros = np.zeros((n, size))
    scores = SegmentScores(
        zeros,
        zeros,
        zeros,
        lengths,
        np.zeros((0, size)),
        np.zeros((size, size)),
        *np.zeros((2, size)),
        None,
        batch.starts,
    )
    excluded = {(int(b), int(e), int(label) + 1) for b, e, label in zip(*batch.excluded)}
    found = [()]
    for begin, end in reference.segment_sequences(scores):
        of_sequence = [path for _, path in reference.segment_paths(scores, begin, end, batch.allowed)]
        found = [(*before, *path) for before in found for path in of_sequence if not set(path) & excluded]
    structure = batch.structure or SemiMarkov()
    log_z, _ = structure.expectations(scores, clamp=batch.allowed)
    assert log_z.sum() == pytest.approx(math.log(len(found)) if found else -math.inf)
    names = ["O", *pipe.labels]
    return [{(b, e, names[state]) for b, e, state in path} for path in found]


def by_definition(pipe, example):
    """The same from the definition: where there are alternatives, segments are alternatives or annotated; elsewhere they are
    annotated, or lie on tokens without annotation. What is wrong is left out, but for what has no other beside it."""
    gold = example.reference
    maybe = {(s.start, s.end, s.label_) for s in gold.spans["maybe"] if s.label_ not in ("", "O")}
    maybe |= {(t, t + 1, "O") for s in gold.spans["maybe"] if s.label_ in ("", "O") for t in range(s.start, s.end)}
    wrong = {(s.start, s.end, s.label_) for s in gold.spans["wrong"] if s.label_ != "O"}
    wrong |= {(t, t + 1, "O") for s in gold.spans["wrong"] if s.label_ == "O" for t in range(s.start, s.end)}
    known = {(ent.start, ent.end, ent.label_) for ent in gold.ents}
    known |= {(t.i, t.i + 1, "O") for t in gold if t.ent_iob_ == "O"}
    touched = {t for begin, end, _ in maybe for t in range(begin, end)}
    silent = {t.i for t in gold if not t.ent_iob}

    def is_right(segment):
        tokens = set(range(*segment[:2]))
        if segment in known | maybe:
            others = [other for other in known | maybe if other != segment and tokens & set(range(*other[:2]))]
            return segment not in wrong or not others
        return not tokens & touched and tokens <= silent and segment not in wrong

    names = ["O", *pipe.labels]
    longest = {"O": 1, **dict(zip(pipe.labels, pipe.model.attrs["longest"][1:].tolist()))}
    bounds = [*(t.i for t in gold if t.is_sent_start or t.i == 0), len(gold)]
    found = [()]
    for begin, end in pairwise(bounds):
        paths = [
            [(b, e, names[state]) for b, e, state in path]
            for path in reference.segmentations(begin, end, 3, len(names))
        ]
        right = [path for path in paths if all(is_right(s) and s[1] - s[0] <= longest[s[2]] for s in path)]
        found = [(*before, *path) for before in found for path in right]
    return [set(path) for path in found]


CASES = {
    "all that is allowed": {"maybe": [(0, 2, "A"), (0, 1, "B"), (1, 2, "O")]},
    "beside annotation": {"ents": [(1, 3, "A")], "outside": [0, 3], "maybe": [(1, 2, "B"), (2, 3, "B"), (3, 4, "A")]},
    "overlapping": {"maybe": [(0, 3, "A"), (1, 3, "A"), (0, 1, "A"), (3, 4, "B"), (2, 4, "B"), (0, 2, "B")]},
    "no way": {"maybe": [(0, 2, "A"), (1, 3, "B")]},
    "in the middle of an entity": {"ents": [(0, 3, "A")], "maybe": [(1, 2, "B")]},
    "wrong": {"wrong": [(1, 3, "A"), (1, 2, "B")]},
    "everything is wrong": {"wrong": [(b, e, x) for b in range(5) for e in range(b + 1, 6) for x in "AB"]},
    "an alternative is wrong": {"maybe": [(0, 2, "A"), (0, 2, "B")], "wrong": [(0, 2, "A"), (2, 3, "A")]},
    "beside what is annotated": {"ents": [(0, 2, "A")], "wrong": [(0, 1, "A"), (1, 3, "A"), (2, 3, "O")]},
    "not outside": {"outside": [0], "maybe": [(1, 2, "O")], "wrong": [(0, 5, "O"), (3, 4, "A")]},
    "two sentences": {
        "sentences": [True, False, True, False, False],
        "maybe": [(0, 2, "A"), (0, 2, "B")],
        "wrong": [(1, 3, "A"), (2, 4, "A")],
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_left_is_what_the_definition_says(case):
    nlp, pipe = make()
    example = annotated(nlp, **case)
    expected = by_definition(pipe, example)
    found = what_is_left(pipe, example)
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))
    assert (len(found) == 0) == (case is CASES["no way"])


def test_what_is_left_of_random_annotation():
    nlp, pipe = make()
    rng = np.random.default_rng(0)

    def spans(n, labels):
        begins = rng.integers(0, 5, n)
        lengths = rng.integers(1, 3, n)
        return [(int(b), int(min(b + k, 5)), str(x)) for b, k, x in zip(begins, lengths, rng.choice(labels, n))]

    for _ in range(60):
        [ent] = spans(1, ["A", "B"])
        outside = [t for t in range(5) if rng.random() < 0.3 and not ent[0] <= t < ent[1]]
        example = annotated(
            nlp,
            ents=[ent] if rng.random() < 0.5 else [],
            outside=outside,
            maybe=spans(rng.integers(0, 6), ["A", "B", "O"]),
            wrong=[span for span in spans(rng.integers(0, 4), ["A", "B", "O"]) if span != ent],
        )
        expected = by_definition(pipe, example)
        assert sorted(map(sorted, what_is_left(pipe, example))) == sorted(map(sorted, expected))


def partial(lengths):
    clamp = SegmentClamp(np.ones((5, 3), dtype=bool), np.ones(5, dtype=bool), np.zeros(5, dtype=bool))
    clamp.states[0, 1] = False
    clamp.may_begin[4] = False
    return clamp


WRONG = [(1, 2, 0), (2, 4, 0), (2, 4, 1), (4, 5, 1)]


def without_wrong(every):
    wrong = {(begin, end, label + 1) for begin, end, label in WRONG}
    return [item for item in every if not wrong & set(item[1])]


@pytest.mark.parametrize("tables", [[], TOGETHER], ids=["alone", "with rules"])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("lengths", [[2, 3], [5], [1, 0, 3, 1]], ids=str)
def test_sums_and_maxima_are_those_of_the_segmentations_without_them(lengths, listed, tables):
    rules = make_rules(tables)
    scores = make_scores(lengths, 4, per_position=listed)
    if not listed:
        scores = scores._replace(listed=None, spans=np.zeros((0, 3)))
    clamp, doc_starts = partial(lengths), np.array([0, 5])
    breaks = together_broken(rules, lengths) if tables else lambda path, spans: 0.0
    every = segmentations(scores, breaks, clamp)
    left = without_wrong(every)
    assert 0 < len(left) < len(every)
    wrong = Segments(*np.array(WRONG, dtype=np.int64).T)
    longest = np.array([1, 3, 2])
    structure = RuledSegments(
        rules, PatternMatches(), clamp, scores.starts, doc_starts, longest, excluded=Excluded(wrong)
    )
    log_z, expected = structure.expectations(scores, clamp=clamp)
    total = reference.log_sum([score for score, _, _ in left])
    assert log_z.sum() == pytest.approx(total, abs=1e-9)
    marginals, of_spans = np.zeros_like(scores.tokens), np.zeros_like(scores.spans)
    for score, path, _ in left:
        for begin, end, state in path:
            marginals[begin:end, state] += math.exp(score - total)
            number = reference.listed_number(scores, begin, end)
            if number is not None:
                of_spans[number, state] += math.exp(score - total)
    np.testing.assert_allclose(expected.tokens, marginals, atol=1e-9)
    np.testing.assert_allclose(expected.spans, of_spans, atol=1e-9)
    best, used = structure.viterbi_counts(scores, clamp=clamp)
    assert best.sum() == pytest.approx(left[0][0])
    assert used.begins.sum() == len(left[0][1])
    # Without a clamp nothing is said of the annotation
    free = segmentations(scores, breaks)
    assert structure.expectations(scores)[0].sum() == pytest.approx(reference.log_sum([score for score, _, _ in free]))
    # … but what is wrong may cost something
    costs = np.array([0.0, 1.5, 0.5])
    structure = RuledSegments(
        rules, PatternMatches(), clamp, scores.starts, doc_starts, longest, excluded=Excluded(wrong, costs=costs)
    )
    of_wrong = [sum(costs[state] for b, e, state in path if (b, e, state - 1) in WRONG) for _, path, _ in free]
    total = reference.log_sum([score + cost for (score, _, _), cost in zip(free, of_wrong)])
    assert structure.expectations(scores)[0].sum() == pytest.approx(total)
    assert structure.expectations(scores, clamp=clamp)[0].sum() == pytest.approx(log_z.sum())
    for loss in (LogLikelihood(), Perceptron(), SoftmaxMargin()):
        _, gradient, impossible = loss(structure, scores, clamp)
        assert not impossible.any()
        assert_gradient(loss, structure, scores, clamp, gradient)


def learn(optimizer, loss, extra, steps=1, **config):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(
        "semicrf_ner",
        config={"alternatives_spans_key": "maybe", "incorrect_spans_key": "wrong", "loss": {"@losses": loss}, **config},
    )
    examples = [*ner_examples(nlp), *extra(nlp)]
    nlp.initialize(lambda: examples)
    if isinstance(optimizer, str):
        optimizer = registry.optimizers.get(optimizer)(0.05)
    for _n in range(steps):
        nlp.update(examples, sgd=optimizer)
    with nlp.use_params(optimizer.averages or {}):
        found = [nlp(plain(example.reference)) for example in examples]
    return pipe, [entities(doc) for doc in found]


RULES = {
    "@misc": "spacy_crf.constraints.v1",
    "rules": [{"rule": "at_most", "label": "ORG", "n": 1}],
    "in_training": True,
}
LEARNERS = {
    "lbfgs": (lambda: LBFGS(l2=0.01, iterations_per_step=60), "spacy_crf.LogLikelihood.v1", 1, {}),
    "lbfgs and rules": (
        lambda: LBFGS(l2=0.01, iterations_per_step=60),
        "spacy_crf.LogLikelihood.v1",
        1,
        {"constraints": RULES},
    ),
    "adam": (lambda: "Adam.v1", "spacy_crf.LogLikelihood.v1", 60, {}),
    "sgd": (lambda: SGD(l2=0.01, epochs_per_step=60), "spacy_crf.LogLikelihood.v1", 1, {}),
    "perceptron": (lambda: AveragedPerceptron(epochs_per_step=40), "spacy_crf.Perceptron.v1", 1, {}),
}


@pytest.mark.parametrize("make_optimizer, loss, steps, config", LEARNERS.values(), ids=LEARNERS.keys())
def test_every_optimizer_learns_from_them(make_optimizer, loss, steps, config):
    def extra(nlp):
        words = ["In", "New", "York", "City", "it", "rains", "."]
        for _ in range(3):
            yield annotated(nlp, wrong=[(1, 3, "GPE"), (2, 4, "GPE"), (1, 2, "GPE")], words=words)
        words = ["Dan", "Poe", "lives", "in", "Rome", "."]
        maybe = [(0, 2, "PER"), (0, 2, "ORG")]
        yield annotated(nlp, outside=[2, 3, 5], ents=[(4, 5, "GPE")], maybe=maybe, words=words)

    _, found = learn(make_optimizer(), loss, extra, steps, **config)
    assert found[0] == [(0, 2, "PER"), (4, 6, "GPE")]  # New York, where it is right
    assert not set(found[-2]) & {(1, 3, "GPE"), (2, 4, "GPE"), (1, 2, "GPE")}
    assert found[-1] in ([(0, 2, label), (4, 5, "GPE")] for label in ("PER", "ORG"))


def test_segments_of_alternatives_have_features_and_lengths():
    """A label that only alternatives know learns of whole segments too, and may be as long as they are."""
    words = ["Dan", "van", "der", "Poe", "left"]

    def extra(nlp):
        yield annotated(nlp, maybe=[(0, 4, "PER"), (0, 4, "ORG"), (4, 5, "")], words=words)

    pipe, found = learn(LBFGS(l2=0.01, iterations_per_step=60), "spacy_crf.LogLikelihood.v1", extra)
    assert pipe.model.attrs["longest"].tolist() == [1, 2, 4, 4]
    assert found[-1] in ([(0, 4, "PER")], [(0, 4, "ORG")])
    features = pipe.model.get_ref("segments").attrs["segment_features"].tables["spans"]
    assert "seg.lower=dan van der poe" in features.index.names()


def test_what_can_not_be_is_reported(caplog):
    nlp, pipe = make(model={"longest_segment": {"A": 2, "B": 2}}, labels={})
    cases = {
        "have a label the component does not know": {"maybe": [(0, 1, "C")]},
        "longer than the longest segment": {"maybe": [(0, 5, "A")]},
        "cross the start of a sentence": {"maybe": [(1, 3, "A")], "sentences": [True, False, True, False, False]},
        "are all that is left of their tokens": {"outside": [0], "wrong": [(0, 1, "O")]},
        "have no label": {"wrong": [(0, 2, "")]},
    }
    examples = [annotated(nlp, **case) for case in cases.values()]
    pipe.initialize(lambda: examples, labels=["A", "B"])
    for message in cases:
        assert message in caplog.text
    pieces = {(0, 2, "A"), (2, 4, "A"), (4, 5, "A")}
    assert what_is_left(pipe, examples[1]) == [pieces]


def test_changed_spans_are_noticed_between_steps():
    nlp, pipe = make({}, model={"longest_segment": 3})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(iterations_per_step=1)
    nlp.update(examples, sgd=optimizer)
    before = pipe.training.corpus
    nlp.update(examples, sgd=optimizer)
    assert pipe.training.corpus is before
    examples[0].reference.spans["wrong"] = [Span(examples[0].reference, 1, 3, "PER")]
    nlp.update(examples, sgd=optimizer)
    assert pipe.training.corpus is not before
