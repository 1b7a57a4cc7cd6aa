"""No entity, segment or span begins or ends with white space: in decoding, probabilities, training, samples and exports alike."""

import functools
import itertools
import logging
import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf import lite
from spacy_crf.constraints.settings import constraints
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron
from spacy_crf.migrate.foreign import ForeignModel, Weighted
from spacy_crf.migrate.lite import export_lite, write_lite
from spacy_crf.migrate.native import native_of
from spacy_crf.migrate.pipeline import build_pipeline, weights_of
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline import promises
from spacy_crf.pipeline.prediction import predict
from spacy_crf.pipeline.thresholds import measure
from spacy_crf.report.cases import judge
from spacy_crf.report.suspects import judged_by
from tests import reference
from tests.components import CHAINS, LABELS, SEGMENTS, component, every_way, make_doc, random_annotation, random_scores
from tests.pipeline.test_components import Annotation, kinds
from tests.pipeline.test_crf_spancat import blank as blank_spancat
from tests.random_rules import KINDS, random_rule, times_broken
from tests.util import entities, set_constraints

WORDS = ["aa", "bb", " ", "\n\n"]
LENGTHS = ([4], [5], [3, 1], [1, 2, 2])
HELD = set(KINDS) - {"same_text_same_label"}  # which no automaton holds


def fits(kind, spans, words):
    """Whether spans have no white space at their edges; chains of higher order without a tag for it have none inside either."""
    model, scheme = kind
    edges = [words[t].isspace() for begin, end, _ in spans for t in (begin, end - 1)]
    inside = [words[t].isspace() for begin, end, _ in spans for t in range(begin, end)]
    return not any(inside if model == "order 2" and scheme != "BILUO" else edges)


class Problem:
    """A tiny text with white space, its random scores, and all of its labellings."""

    def __init__(self, kind, rng, monkeypatch, rules=()):
        self.pipe = component(kind)
        set_constraints(self.pipe, constraints(list(rules)) if rules else None)
        self.lengths = LENGTHS[rng.integers(len(LENGTHS))]
        self.words = rng.choice(WORDS, size=sum(self.lengths)).tolist()
        self.doc = make_doc(self.pipe, self.lengths, self.words)
        self.scores = random_scores(self.pipe, self.lengths, rng)
        every = every_way(self.pipe, self.scores)
        self.ways = [way for way in every if fits(kind, way.spans, self.words)]
        self.n_excluded = len(every) - len(self.ways)
        monkeypatch.setattr(self.pipe, "require_ready", DocBatch.of)
        monkeypatch.setattr(self.pipe.model, "predict", lambda docs: self.scores)

    def chances(self):
        """The probability of each labelling, by its spans."""
        log_z = reference.log_sum([way.score for way in self.ways])
        found = {}
        for score, spans in self.ways:
            found[spans] = found.get(spans, 0.0) + math.exp(score - log_z)
        return found


@kinds(*CHAINS, SEGMENTS)
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_the_labellings_without_white_space_at_edges(kind, seed, monkeypatch):
    """A quarter of the entities of texts with line breaks began or ended with one."""
    problem = Problem(kind, np.random.default_rng(seed), monkeypatch)
    pipe, doc, chances = problem.pipe, problem.doc, problem.chances()
    of_spans = {}
    for spans, chance in chances.items():
        for span in spans:
            of_spans[span] = of_spans.get(span, 0.0) + chance
    found = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 1e-9)}
    assert found == pytest.approx({span: p for span, p in of_spans.items() if p >= 1e-9}, abs=1e-9)
    if kind != SEGMENTS:
        marginals, tags = pipe.marginals(doc)
        inside = np.zeros((len(doc), len(LABELS)))
        for (begin, end, label), p in of_spans.items():
            inside[begin:end, LABELS.index(label)] += p
        of_labels = [marginals[:, [tag.endswith(f"-{label}") for tag in tags]].sum(axis=1) for label in LABELS]
        assert np.allclose(np.stack(of_labels, axis=1), inside, atol=1e-9)
    best = pipe.n_best(doc, 12)
    assert [p for p, _ in best] == pytest.approx(sorted(chances.values(), reverse=True)[:12], abs=1e-9)
    for p, spans in best:
        assert p == pytest.approx(chances[tuple((span.start, span.end, span.label_) for span in spans)], abs=1e-9)
        assert pipe.log_probability(doc, spans) == pytest.approx(math.log(p), abs=1e-7)
    for spans in pipe.sample(doc, 20, 0):
        assert tuple((span.start, span.end, span.label_) for span in spans) in chances


@kinds(*CHAINS, SEGMENTS)
@pytest.mark.parametrize("seed", range(2))
def test_rules_choose_among_them(kind, seed, monkeypatch):
    rng = np.random.default_rng((1, seed))
    rules = [
        {**random_rule(rng, LABELS, ["aa", "bb"], kinds=HELD), "weight": weight}
        for weight in (0.7, None)[: 1 + seed % 2]
    ]
    rules = [{key: value for key, value in rule.items() if value is not None} for rule in rules]
    try:
        problem = Problem(kind, rng, monkeypatch, rules)
    except ValueError:  # the rules exclude each other
        return
    pipe = problem.pipe
    sentences = np.repeat(np.arange(len(problem.lengths)), problem.lengths).tolist()
    worth = {}
    for score, spans in problem.ways:
        times = [times_broken(rule, spans, problem.words, sentences, LABELS) for rule in rules]
        if not any(n for n, rule in zip(times, rules) if "weight" not in rule):
            cost = sum(n * rule.get("weight", 0.0) for n, rule in zip(times, rules))
            worth.setdefault(spans, []).append(score - cost)
    pipe.cfg["decode"], pipe.cfg["min_prob"] = "viterbi", 0.0
    try:
        found = predict(pipe.parts(), DocBatch([problem.doc]), problem.scores)
    finally:
        pipe.cfg["decode"], pipe.cfg["min_prob"] = "spans", 0.05
    segments = pipe.decoding.segments(found.tags, found.starts)
    spans = tuple((b, e, LABELS[n]) for b, e, n in zip(*(column.tolist() for column in segments)))
    assert fits(kind, spans, problem.words)
    if worth:
        assert max(worth[spans]) == pytest.approx(max(map(max, worth.values())), abs=1e-9)


@kinds(*(kind for kind in CHAINS if kind[0] != "order 2"))
@pytest.mark.parametrize("seed", range(3))
def test_training_sums_over_the_same_labellings(kind, seed, monkeypatch):
    rng = np.random.default_rng((2, seed))
    problem = Problem(kind, rng, monkeypatch)
    pipe, loss = problem.pipe, (LogLikelihood(), Perceptron(), MaxMargin())[seed % 3]
    known = random_annotation(rng, problem.lengths)
    if seed % 3 < 2:  # complete, which has a single path
        known = Annotation(
            known.spans, sorted({*range(len(problem.doc))} - {t for b, e, _ in known.spans for t in range(b, e)})
        )
    spans = [span for span in known.spans if fits(kind, [span], problem.words)]
    known = Annotation(spans, known.outside)
    pipe.loss = loss.bind(pipe.decoding.state_labels)
    gold = known.write(make_doc(pipe, problem.lengths, problem.words))
    batch = pipe.training.data([Example(make_doc(pipe, problem.lengths, problem.words), gold)])
    losses, derivative, impossible = pipe.loss(
        batch.structure or pipe.decoding.structure, problem.scores, batch.allowed
    )
    value = max if not loss.smooth else lambda scores: reference.log_sum(list(scores))
    kept = [way for way in problem.ways if known.allows(way)]
    assert not impossible.any()
    if not loss.margin:
        expected = value([way.score for way in problem.ways]) - value([way.score for way in kept])
        assert losses.sum() == pytest.approx(expected, abs=1e-8)
    assert derivative[0].shape == problem.scores[0].shape
    step = 1e-6  # a derivative
    for _ in range(4):
        t, state = rng.integers(len(problem.doc)), rng.integers(problem.scores[0].shape[1])
        moved = [np.array(problem.scores[0]) for _ in range(2)]
        moved[0][t, state] += step
        moved[1][t, state] -= step
        above, below = (
            pipe.loss(
                batch.structure or pipe.decoding.structure,
                problem.scores._replace(**{problem.scores._fields[0]: array}),
                batch.allowed,
            )[0].sum()
            for array in moved
        )
        assert derivative[0][t, state] == pytest.approx((above - below) / (2 * step), abs=1e-5)


# ------------------------------------------------------------------------------------------- pipelines with random weights

NAMES = ["Ann", "Lee", "met", "Rome"]
BLANK = [" ", "\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\t"]
RULES = (
    [],
    [
        {"rule": "at_most", "label": "PER", "n": 1},
        {"rule": "starts_with", "label": "LOC", "pattern": [[{"IS_TITLE": True}], [{"IS_SPACE": True}]], "weight": 0.5},
        {"rule": "requires", "if": ["LOC"], "then": ["PER"]},
    ],
)
SCHEMES, DECODES, GROUPS = (
    ("IO", "BIO", "IOB1", "BILUO"),
    ("viterbi", "posterior", "spans"),
    ("label", "nested", "outer"),
)
CONFIGS = [
    *itertools.product(["crf_ner"], SCHEMES, DECODES),
    *itertools.product(["semicrf_ner"], [None], DECODES),
    *itertools.product(["crf_spancat"], [*SCHEMES, None], GROUPS),
]


def gold_spans(doc):
    found = [Span(doc, 0, 3, "PER"), Span(doc, 3, 6, "LOC"), Span(doc, 6, 7, "PER")]
    return found, [*found, Span(doc, 0, 1, "LOC"), Span(doc, 1, 2, "PER")]


@functools.cache
def pipeline(factory, scheme, groups=None):
    """A pipeline whose weights are drawn at random."""
    if factory == "crf_spancat":
        config = {} if scheme is None else {"scheme": scheme}
        nlp, pipe = blank_spancat("segments" if scheme is None else "chain", groups=groups, **config)
    else:
        nlp = spacy.blank("en")
        pipe = nlp.add_pipe(factory, config={} if scheme is None else {"scheme": scheme})
    gold = Doc(nlp.vocab, words=[*NAMES, *NAMES[:3]])
    gold.ents, gold.spans["sc"] = gold_spans(gold)
    nlp.initialize(lambda: [Example(Doc(nlp.vocab, words=[token.text for token in gold]), gold)])
    rng = np.random.default_rng(0)
    for node in pipe.model.walk():
        for name in filter(node.has_param, node.param_names):
            node.set_param(name, rng.normal(0.0, 2.0, node.get_param(name).shape).astype(np.float32))
    pipe.clear_scores()
    nlp.add_pipe("crf_candidates", first=True, config={"component": factory, "min_prob": 0.05})
    return nlp, pipe


def random_docs(nlp, rng, n):
    for _ in range(n):
        size = int(rng.integers(1, 13))
        words = [str(rng.choice(BLANK if rng.random() < 0.45 else NAMES)) for _ in range(size)]
        yield Doc(nlp.vocab, words=words, sent_starts=[t == 0 or rng.random() < 0.1 for t in range(size)])


@pytest.mark.parametrize("rules", RULES, ids=["free", "rules"])
@pytest.mark.parametrize("factory, scheme, how", CONFIGS, ids=lambda each: str(each))
@pytest.mark.parametrize("seed", range(1))
def test_no_span_of_any_component_has_white_space_at_an_edge(factory, scheme, how, rules, seed):
    """Of 381 entities on texts with line breaks, 90 began or ended with one."""
    is_set = factory == "crf_spancat"
    nlp, pipe = pipeline(factory, scheme, how if is_set else None)
    rng = np.random.default_rng((seed, len(rules), *map(ord, f"{scheme}{how}")))
    set_constraints(pipe, constraints(rules) if rules and how != "label" else None)
    if is_set:
        pipe.cfg["threshold"] = float(rng.choice([0.1, 0.3, 0.6]))
    else:
        pipe.cfg.update(decode=how, min_prob=0.2 if how == "spans" else 0.0)
    n_spans = 0
    logging.disable(logging.WARNING)  # of rules that no labelling of a text can keep
    try:
        docs = [*nlp.pipe(random_docs(nlp, rng, 12))]
        found = [[*doc.spans["sc"]] if is_set else [*doc.ents] for doc in docs]
        found += [[*doc.spans["crf_candidates"]] for doc in docs]
        for doc in docs[:3]:
            bare = Doc(nlp.vocab, words=[token.text for token in doc])
            found += [[span for span, _ in pipe.span_probabilities(bare, 1e-4)], *pipe.sample(bare, 3, seed)]
            found += [spans for _, spans in pipe.n_best(bare, 3)]
    finally:
        logging.disable(logging.NOTSET)
    for span in itertools.chain(*found):
        assert not span[0].is_space and not span[-1].is_space, (span.doc, span)
        n_spans += 1
    assert n_spans or seed


# ------------------------------------------------------------------------------------------------------------ annotation


def marked(nlp, words, spans):
    doc = Doc(nlp.vocab, words=words)
    doc.ents = [Span(doc, *span) for span in spans]
    doc.spans["sc"] = [Span(doc, *span) for span in spans]
    return doc


@pytest.mark.parametrize("factory, scheme", [*itertools.product(["crf_ner"], SCHEMES), ("semicrf_ner", None)])
def test_names_across_line_breaks_are_learned(factory, scheme):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={} if scheme is None else {"scheme": scheme})
    words = ["\n", "Ann", "\n", "Lee", "\n", "met", "Bo", "\n\n", "in", "Rome", "\n"]
    gold = marked(nlp, words, [(1, 4, "PER"), (6, 7, "PER"), (9, 10, "LOC")])
    examples = [Example(Doc(nlp.vocab, words=words), gold)]
    optimizer = LBFGS(l2=0.01, iterations_per_step=20)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    assert entities(nlp(Doc(nlp.vocab, words=words))) == [(1, 4, "PER"), (6, 7, "PER"), (9, 10, "LOC")]


def test_training_of_segments_leaves_white_space_to_decoding():
    """Segments with white space at an edge are wrong answers to learn from: without them F1 on raw texts was lower."""
    nlp, pipe = pipeline("semicrf_ner", None)
    words = ["Ann", "\n", "Lee", "\n", "met"]
    example = Example(Doc(nlp.vocab, words=words), marked(nlp, words, [(0, 3, "PER")]))
    assert pipe.training.data([example]).structure is None


@kinds(*(kind for kind in CHAINS if kind[0] == "order 2"))
def test_chains_of_higher_order_learn_names_across_line_breaks(kind):
    """The labelling with such a name was impossible in training, so the whole text taught nothing."""
    pipe = component(kind)
    words = ["aa", "\n", "bb"]
    gold = make_doc(pipe, [3], words)
    gold.ents = [Span(gold, 0, 3, "A")]
    batch = pipe.training.data([Example(make_doc(pipe, [3], words), gold)])
    assert batch.structure is None


def arrays_in(found):
    return [array for part in found for array in arrays_in(part)] if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner", "crf_spancat"])
def test_gold_spans_are_trimmed_and_counted(factory, caplog):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={"incorrect_spans_key": "wrong", "alternatives_spans_key": "also"})
    words = ["\n", "Ann", "\n", "Lee", " ", "met", "\n\n", "Bo", "in", "Rome"]
    gold = marked(nlp, words, [(0, 5, "PER"), (6, 7, "PER"), (9, 10, "LOC")])
    gold.spans["also"] = [Span(gold, 6, 8, "PER")]
    gold.spans["wrong"] = [Span(gold, 8, 9, "LOC"), Span(gold, 4, 6, "LOC")]
    clean = marked(nlp, words, [(1, 4, "PER"), (9, 10, "LOC")])
    clean.spans["also"] = [Span(clean, 7, 8, "PER")]
    clean.spans["wrong"] = [Span(clean, 8, 9, "LOC")]
    batches = []
    for doc in (gold, clean):
        examples = [Example(Doc(nlp.vocab, words=words), doc)]
        if doc is gold:
            nlp.initialize(lambda examples=examples: examples)
        batches.append(pipe.training.data(examples))
    ours, theirs = batches
    for one, other in ((ours.allowed, theirs.allowed), (ours.excluded, theirs.excluded), (ours.unset, theirs.unset)):
        assert all(map(np.array_equal, arrays_in(one), arrays_in(other)))
    said = [record.message for record in caplog.records if "CRFW405" in record.message]
    for n, what in ((1, "begin or end with white space, which was trimmed"), (1, "are white space alone")):
        assert any(what in message and f" {n} " in message for message in said), said
    assert any("'also'] begin or end with white space, which was trimmed" in message for message in said), said
    assert any("'wrong'] begin or end with white space, as no span does" in message for message in said), said


@pytest.mark.parametrize("factory, scheme", [("crf_ner", "BIO"), ("semicrf_ner", None), ("crf_spancat", "BILUO")])
def test_tools_compare_with_gold_spans_as_they_are_learned(factory, scheme, caplog):
    """Reports and thresholds counted a gold span with a line break at its end as missed, and its text as a suspect."""
    nlp, pipe = pipeline(factory, scheme, "label" if factory == "crf_spancat" else None)
    set_constraints(pipe, None)
    pipe.cfg.update({"threshold": 0.3} if factory == "crf_spancat" else {"decode": "viterbi", "min_prob": 0.0})
    pipe.warned.clear()
    words = ["\n", "Ann", "\n", "Lee", " ", "met", "\n\n", "Rome", "\n"]
    edges = [(0, 5, "PER"), (6, 7, "PER"), (7, 9, "LOC")]
    figures = []
    for spans in (edges, [(1, 4, "PER"), (7, 8, "LOC")]):
        example = Example(Doc(nlp.vocab, words=words), marked(nlp, words, spans))
        [judged] = judge(nlp, [pipe], [example])
        points = measure(pipe, [example], [0.01, 0.2])
        of_promise = [tuple(map(np.ndarray.tolist, text)) for text in promises.judge(pipe, [example])]
        suspects = [(found.log_ratio, found.gold, found.best) for found in judged_by(pipe, [example])]
        figures.append((judged.cases, points, of_promise, suspects))
    assert figures[0] == figures[1]
    [said] = [record.message for record in caplog.records if "CRFW901" in record.message]
    assert "3 of 3 annotated spans begin or end with white space" in said


def test_segments_are_as_long_as_trimmed_gold_spans():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("semicrf_ner")
    words = ["\n", "Ann", "\n", "\n", "\n", "met", "Bo"]
    gold = marked(nlp, words, [(0, 5, "PER"), (6, 7, "LOC")])
    nlp.initialize(lambda: [Example(Doc(nlp.vocab, words=words), gold)])
    assert pipe.decoding.longest[1:].tolist() == [1, 1]


@pytest.mark.parametrize("scheme", ["IO", "BIO", "IOB1", "BILUO", None])
def test_annotation_that_is_present_stays(scheme):
    nlp, pipe = pipeline("crf_ner" if scheme else "semicrf_ner", scheme)
    set_constraints(pipe, None)
    pipe.cfg.update(decode="viterbi", min_prob=0.0)
    words = ["Ann", "\n", "Lee", "\n", "met", "\n", "Rome", " ", "Lee"]
    for key in ("ents", "crf_forced"):
        doc = Doc(nlp.vocab, words=words)
        span = Span(doc, 3, 6, "LOC")
        if key == "ents":
            doc.set_ents([span], default="missing")
        else:
            doc.spans[key] = [span]
        found = entities(nlp(doc))
        assert (3, 6, "LOC") in found
        others = [span for span in found if span != (3, 6, "LOC")]
        assert not any(words[t].isspace() for begin, end, _ in others for t in (begin, end - 1))


@pytest.mark.parametrize("scheme", ["IO", "BIO", "IOB1", "BILUO", None])
@pytest.mark.parametrize("decode", ["viterbi", "spans"])
@pytest.mark.parametrize("rules", [[], [{"rule": "at_most", "label": "PER", "n": 1}]], ids=["free", "rules"])
def test_exports_for_numpy_hold_it(scheme, decode, rules, tmp_path):
    nlp, pipe = pipeline("crf_ner" if scheme else "semicrf_ner", scheme)
    set_constraints(pipe, constraints(rules) if rules else None)
    pipe.cfg.update(decode=decode, min_prob=0.2 if decode == "spans" else 0.0, confidence=True)
    write_lite(export_lite(nlp, [pipe.name]), tmp_path / "model.json", "json")
    [model] = lite.load(tmp_path / "model.json").components.values()
    pipe.cfg["confidence"] = False
    docs = [
        Doc(nlp.vocab, words=[token.text for token in doc]) for doc in random_docs(nlp, np.random.default_rng(7), 25)
    ]
    texts = [[token.text for token in doc] for doc in docs]
    n_spans = 0
    for doc, found in zip(docs, model.entities_all(texts)):
        assert [span[:3] for span in found] == entities(nlp(doc))
        n_spans += len(found)
    assert n_spans
    for text in texts[:4]:
        bare = Doc(nlp.vocab, words=text)
        assert [p for p, _ in model.n_best(text, 3)] == pytest.approx([p for p, _ in pipe.n_best(bare, 3)], abs=1e-5)


def test_exports_to_other_programs_say_that_they_do_not_hold_it(caplog):
    nlp, pipe = pipeline("crf_ner", "BIO")
    set_constraints(pipe, None)
    pipe.cfg.update(decode="viterbi", min_prob=0.0)
    weights_of(nlp)
    assert "CRFW900: crf_ner: CRFsuite does not know that no entity begins or ends with white space" in caplog.text


def test_imported_models_keep_the_answers_of_their_program(tmp_path):
    model = ForeignModel("crfpp", ["O", "PER"], Weighted.none(), np.array([[0.0, 0.0], [0.0, 5.0]]))
    native = native_of(model, ["U0:%x[0,0]"], [], ["orth"])
    nlp = build_pipeline(model, {}, native=native, entities=True)
    words = ["Ann", "\n"]
    assert entities(nlp(Doc(nlp.vocab, words=words))) == [(0, 2, "PER")]
    nlp.to_disk(tmp_path)
    assert entities(spacy.load(tmp_path)(Doc(nlp.vocab, words=words))) == [(0, 2, "PER")]


@pytest.mark.parametrize("scheme", ["IO", "BIO", "IOB1", "BILUO"])
def test_explanations_ask_about_the_same_labellings(scheme):
    nlp, pipe = pipeline("crf_ner", scheme)
    set_constraints(pipe, None)
    pipe.cfg.update(decode="viterbi", min_prob=0.0)
    doc = Doc(nlp.vocab, words=["Ann", "\n", "Lee", "\n", "met", "Rome", "\n"])
    for span, p in pipe.span_probabilities(doc, 0.001):
        assert pipe.explain(doc, span, kind="log_odds").totals["probability"] == pytest.approx(p, abs=1e-5)
