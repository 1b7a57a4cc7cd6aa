"""Soft labels: the loss by its definition over all labellings of tiny texts, what is read of Docs, and training with them."""

import itertools
import logging
import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.training import Example
from thinc.api import SGD, Adam

from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.losses.soft import SoftLabels
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import ChainScores, SegmentScores
from tests import reference
from tests.structures import fill_with, is_allowed
from tests.util import entities, ner_examples, plain, tag_examples

WORDS = ["v", "w", "x", "y", "z"]
SOFT = {"@losses": "spacy_crf.SoftLabels.v1"}
OVERLAPPING = [(0, 2, "A", 0.5), (1, 2, "B", 0.2), (2, 4, "B", 0.4), (3, 5, "A", 0.25), (2, 3, "A", 0.125)]
# Soft labels (None for none), annotated entities, and tokens outside of any; the rest is missing
TEXTS = {
    "all soft": (OVERLAPPING, [], []),
    "no span": ([], [], []),
    "certain": ([(0, 2, "A", 1.0), (2, 3, "A", 1.0), (4, 5, "B", 1.0)], [], []),
    "beside annotation": ([(0, 2, "A", 0.5), (3, 4, "B", 0.5)], [(2, 3, "A")], [4]),
    "beside nothing": ([(0, 1, "A", 0.5), (1, 2, "B", 0.25), (2, 3, "", 0.0), (4, 5, "B", 0.25)], [], []),
    "around both": ([(0, 2, "A", 0.5), (1, 2, "B", 0.25), (2, 4, "", 1.0), (4, 5, "B", 0.25)], [], [3]),
    "between what is open": (
        [(0, 1, "", 0.0), (1, 3, "A", 0.5), (1, 2, "B", 0.25), (3, 4, "", 0.0), (4, 5, "B", 0.5)],
        [],
        [],
    ),
    "annotated": (None, [(1, 3, "B")], [0]),
    "missing": (None, [], []),
}
KINDS = ["BILUO", "BIO", "IO", "segments"]
kinds = pytest.mark.parametrize("kind", KINDS)
texts = pytest.mark.parametrize("text", TEXTS)


def make(kind="BIO", labels=("A", "B"), **config):
    nlp = spacy.blank("en")
    is_chain = kind != "segments"
    settings = {"scheme": kind} if is_chain else {}
    pipe = nlp.add_pipe("crf_ner" if is_chain else "semicrf_ner", config={"loss": SOFT, **settings, **config})
    for label in labels:
        pipe.add_label(label)
    if not is_chain:
        pipe.model.attrs["longest"] = np.array([1, *([3] * len(labels))], dtype=np.int32)
    return nlp, pipe


def soften(doc, spans, key="crf_soft"):
    """spans: (begin, end, label, score) each."""
    found = [Span(doc, begin, end, label=label) for begin, end, label, _ in spans]
    doc.spans[key] = SpanGroup(doc, spans=found, attrs={"scores": [score for *_, score in spans]})
    return doc


def annotated(nlp, soft, ents=(), outside=(), words=WORDS, **predicted):
    gold = Doc(nlp.vocab, words=words)
    gold.set_ents([Span(gold, *ent) for ent in ents], outside=[gold[t : t + 1] for t in outside], default="missing")
    if soft is not None:
        soften(gold, soft)
    return Example(Doc(nlp.vocab, words=predicted.pop("predicted", words), **predicted), gold)


def random_scores(pipe, n_tokens, seed=0, *, per_position=False):
    """That the scheme allows."""
    fill, size = fill_with(np.random.default_rng(seed)), len(pipe.annotation.tags())
    shape = (n_tokens, size, size) if per_position else (size, size)
    transitions, first, last = fill(shape), fill((size,)), fill((size,))
    if isinstance(pipe.decoding.structure, type(make("IO")[1].decoding.structure)):
        mask = pipe.annotation.mask()
        ends = (np.where(allowed, of, -np.inf) for allowed, of in zip(mask, (transitions, first, last)))
        return ChainScores(fill((n_tokens, size)), *ends)
    lengths = np.where(np.arange(1, 4)[:, None] <= pipe.model.attrs["longest"], fill((3, size)), -np.inf)
    spans = np.zeros((0, size))
    return SegmentScores(*(fill((n_tokens, size)) for _ in range(3)), lengths, spans, transitions, first, last)


# ------------------------------------------------------------------------------------------------------ the definition


def segmentations(spans, begin, end):
    """All ways to cover tokens with soft spans and single tokens outside, each with its probability: that of the next piece given
    that one begins there."""
    spans = [span for span in spans if span[2] and begin <= span[0] and span[1] <= end]
    outside = {t: 1.0 - sum(s for b, e, _, s in spans if b <= t < e) for t in range(begin, end)}

    def go_on(at):
        if at == end:
            yield 1.0, ()
            return
        pieces = [span for span in spans if span[0] == at] + [(at, at + 1, None, outside[at])]
        total = sum(weight for *_, weight in pieces)
        for b, e, label, weight in pieces:
            for probability, others in go_on(e) if weight > 1e-12 else ():
                yield weight / total * probability, ((b, e, label), *others)

    return list(go_on(begin))


def encoded(pieces, kind):
    """The states of some pieces, by token: what stands in a path."""
    letters = {"BIO": "BIII", "IO": "IIII"}
    for begin, end, label in pieces:
        n, number = end - begin, -1 if label is None else "AB".index(label)
        for t in range(n):
            if kind == "segments":
                yield begin + t, 1 + number if t == 0 else -2
            elif label is None:
                yield begin + t, 0
            else:
                letter = letters[kind][t] if kind in letters else "U" if n == 1 else "B" + "I" * (n - 2) + "L"
                letter = letter if len(letter) == 1 else letter[t]
                prefixes = {"BIO": "BI", "IO": "I", "BILUO": "BILU"}[kind]
                yield begin + t, 1 + number * len(prefixes) + prefixes.index(letter)


def all_ways(kind, scores):
    n_tokens = len(scores[0])
    if kind != "segments":
        return [(score, path) for score, path in reference.paths(scores, 0, n_tokens)]
    found = []
    for score, segments in reference.segment_paths(scores, 0, n_tokens):
        path = [-2] * n_tokens
        for begin, _, state in segments:
            path[begin] = state
        found.append((score, tuple(path)))
    return found


def soft_tokens(soft, ents, outside):
    if soft is None:
        return []
    taken = {t for b, e, _ in ents for t in range(b, e)} | set(outside)
    free = {t for b, e, label, _ in soft if not label for t in range(b, e)}
    return [t for t in range(len(WORDS)) if t not in taken | free]


def runs_of(tokens):
    for begin in tokens:
        if begin - 1 not in tokens:
            yield begin, next(t for t in range(begin, len(WORDS) + 1) if t not in tokens)


def expected_loss(pipe, kind, scores, clamp, text):
    """log Z - sum_z q(z) · log Z(z)"""
    soft = text[0]
    runs = list(runs_of(soft_tokens(*text)))
    ways = all_ways(kind, scores)
    loss = reference.log_sum([score for score, _ in ways])
    continues = pipe.decoding.spans.continues
    for choice in itertools.product(*(segmentations(soft, *run) for run in runs)):
        pieces = [piece for _, some in choice for piece in some]
        states = dict(encoded(pieces, kind))

        def agrees(path, states=states):
            at_edges = [run[1] for run in runs if run[1] < len(path)]
            in_front = [run[0] for run in runs if run[0] > 0]
            if kind == "segments" and any(path[t] == -2 for t in at_edges):
                return False
            if kind != "segments" and any(continues[path[t - 1], path[t]] and clamp[t].all() for t in at_edges):
                return False
            if kind != "segments" and any(continues[path[t - 1], path[t]] and clamp[t - 1].all() for t in in_front):
                return False
            free = tuple(path[t] if t not in states else -9 for t in range(len(path)))
            if any(path[t] != state for t, state in states.items()):
                return False
            every = np.ones_like(clamp.states if kind == "segments" else clamp)
            every[[t for t in range(len(path)) if t not in states]] = False
            if kind != "segments":
                return all(clamp[t, state] for t, state in enumerate(free) if state != -9)
            relaxed = clamp._replace(states=clamp.states | every)
            begins = [t for t in states if states[t] != -2]
            relaxed.must_begin[[t for t in states if t not in begins]] = False
            relaxed.may_begin[list(states)] = True
            return is_allowed(relaxed, 0, path)

        probability = math.prod(p for p, _ in choice)
        loss -= probability * reference.log_sum([score for score, path in ways if agrees(path)])
    return loss


@kinds
@texts
def test_the_loss_is_its_definition(kind, text):
    nlp, pipe = make(kind)
    batch = pipe.training.data([annotated(nlp, *TEXTS[text])])
    scores = random_scores(pipe, len(WORDS))
    told = {} if batch.soft is None else {"soft": batch.soft}
    loss, _, impossible = pipe.loss(pipe.decoding.structure, scores, batch.allowed, **told)
    clamp = batch.allowed
    expected = expected_loss(pipe, kind, scores, clamp, TEXTS[text])
    assert not impossible.any()
    np.testing.assert_allclose(loss, [expected], atol=1e-9)
    if text == "missing":
        assert loss[0] == pytest.approx(0.0, abs=1e-12)


@kinds
@pytest.mark.parametrize("text", ["all soft", "beside annotation", "around both"])
@pytest.mark.parametrize("per_position", [False, True])
def test_gradients_match_finite_differences(kind, text, per_position):
    """Of two sequences, one of which has no soft labels."""
    nlp, pipe = make(kind, loss={**SOFT, "weight": 0.5})
    batch = pipe.training.data([annotated(nlp, *TEXTS[text]), annotated(nlp, None, [(1, 3, "A")])])
    scores = random_scores(pipe, 2 * len(WORDS), seed=3, per_position=per_position)
    scores = scores._replace(starts=batch.starts)
    told = {"weights": np.array([2.0, 0.5])} | ({} if batch.soft is None else {"soft": batch.soft})

    def loss(scores):
        return pipe.loss(pipe.decoding.structure, scores, batch.allowed, **told)[0].sum()

    d_scores = pipe.loss(pipe.decoding.structure, scores, batch.allowed, **told)[1]
    direction = random_scores(pipe, 2 * len(WORDS), seed=4, per_position=per_position)
    moved, total = [], 0.0
    for step in (1e-5, -1e-5):
        changed = {}
        for name in type(scores).AXES:
            along = np.where(np.isfinite(getattr(direction, name)), getattr(direction, name), 0.0)
            changed[name] = getattr(scores, name) + step * along
            total += (getattr(d_scores, name) * along).sum() / 2
        moved.append(loss(scores._replace(**changed)))
    assert total == pytest.approx((moved[0] - moved[1]) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("kind", ["BILUO", "BIO", "IO", "segments", "tagger"])
def test_certain_labels_are_annotation(kind):
    """With probabilities of 0 and 1 it is the log-likelihood of the annotation."""
    if kind == "tagger":
        nlp = spacy.blank("en")
        pipe = nlp.add_pipe("crf_tagger", config={"loss": SOFT})
        examples = tag_examples(nlp)
    else:
        nlp, pipe = make(kind, ("PER", "GPE", "ORG"))
        examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    soft = []
    for example in examples:
        spans = [(ent.start, ent.end, ent.label_, 1.0) for ent in example.reference.ents]
        if kind == "tagger":
            spans = [(token.i, token.i + 1, token.tag_, 1.0) for token in example.reference]
        soft.append(Example(plain(example.predicted), soften(plain(example.reference), spans)))
    batches = pipe.training.data(examples), pipe.training.data(soft)
    scores = pipe.model.predict([example.predicted for example in examples])
    fill = fill_with(np.random.default_rng(1))
    scores = scores._replace(**{scores._fields[0]: fill(scores[0].shape)})
    losses = [
        loss(pipe.decoding.structure, scores, batch.allowed, **told)[:2]
        for loss, batch, told in ((LogLikelihood(), batches[0], {}), (pipe.loss, batches[1], {"soft": batches[1].soft}))
    ]
    np.testing.assert_allclose(losses[0][0], losses[1][0], atol=1e-9)
    for name in type(scores).AXES:
        np.testing.assert_allclose(getattr(losses[0][1], name), getattr(losses[1][1], name), atol=1e-9, err_msg=name)


@kinds
def test_of_what_a_model_says_itself_nothing_is_left_to_learn_but_transitions(kind):
    """Its own probabilities of spans are, as soft labels, its marginals."""
    nlp, pipe = make(kind, ("PER", "GPE", "ORG"))
    examples = ner_examples(nlp)
    optimizer = LBFGS(l2=0.5)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    doc = plain(examples[0].reference)
    marginals, _ = pipe.marginals(doc)
    told = [(span.start, span.end, span.label_, p) for span, p in pipe.span_probabilities(doc, 0.0)]
    assert 0.01 < max(p for *_, p in told) < 0.99
    batch = pipe.training.data([Example(plain(doc), soften(plain(doc), told))])
    begin, end, state, weight = batch.soft.pieces
    found = np.zeros((len(doc), len(pipe.decoding.label_of_states)))
    for t in range(len(doc)):
        at = (begin <= t) & (t < end)
        np.add.at(found[t], state[at], weight[at])
    np.testing.assert_allclose(found, marginals, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- what is read


def loss_of(pipe, example):
    batch = pipe.training.data([example])
    scores = random_scores(pipe, len(example.predicted))
    return pipe.loss(pipe.decoding.structure, scores, batch.allowed, soft=batch.soft)[0][0]


def test_soft_labels_survive_docbin_and_other_tokens():
    nlp, pipe = make()
    example = annotated(nlp, OVERLAPPING)
    expected = loss_of(pipe, example)
    [loaded] = DocBin().from_bytes(DocBin(docs=[example.reference]).to_bytes()).get_docs(nlp.vocab)
    assert loss_of(pipe, Example(plain(loaded), loaded)) == pytest.approx(expected, abs=1e-6)
    # Words joined: what does not align any more tells nothing of its tokens
    joined = Example(
        Doc(nlp.vocab, words=["v", "wx", "y", "z"], spaces=[True] * 4),
        Doc(nlp.vocab, words=["v", "w", "x", "y", "z"], spaces=[True, False, True, True, True]),
    )
    soften(joined.reference, [(0, 1, "A", 0.5), (1, 2, "B", 0.5), (3, 5, "A", 0.5)])
    batch = pipe.training.data([joined])
    assert sorted(batch.soft.pieces.begin.tolist()) == [0, 0, 2, 2, 3, 3]
    assert batch.unset.tolist() == [False, True, False, False]


def test_what_contradicts_itself_is_scaled_down_and_told(caplog):
    nlp, pipe = make("BIO", ("A",))
    soft = [(0, 2, "A", 0.8), (1, 3, "A", 0.8), (3, 5, "A", 0.5)]
    example = annotated(nlp, soft, [(4, 5, "A")])
    with caplog.at_level(logging.WARNING, "spacy.spacy_crf"):
        nlp.initialize(lambda: [example])
    assert "1 tokens have spans in doc.spans['crf_soft'] whose scores add up to more than 1" in caplog.text
    assert "1 spans in doc.spans['crf_soft'] touch tokens that are annotated" in caplog.text
    begin, _, state, weight = pipe.training.data([example]).soft.pieces
    at_second = weight[(begin == 1) & (state > 0)]
    assert at_second.tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    "attrs, code",
    [
        ({}, "CRF825: .* 2 spans have no scores"),
        ({"scores": [0.5]}, r"CRF825: .* 2 spans have scores of shape \(1,\)"),
        ({"scores": [0.5, 1.5]}, r"CRF825: .* 'x' \(B\) .* 1.5"),
        ({"scores": [0.5, -0.1]}, "CRF825"),
        ({"scores": [0.5, math.nan]}, "CRF825"),
        ({"scores": [0.5, "0.5"]}, "CRF825"),
    ],
)
def test_scores_have_to_be_probabilities(attrs, code):
    nlp, pipe = make()
    example = annotated(nlp, [])
    doc = example.reference
    doc.spans["crf_soft"] = SpanGroup(doc, spans=[Span(doc, 0, 2, "A"), Span(doc, 2, 3, "B")], attrs=attrs)
    with pytest.raises(ValueError, match=code):
        pipe.training.data([example])


def test_unknown_labels_and_what_can_not_be_are_refused():
    nlp, pipe = make()
    with pytest.raises(ValueError, match=r"CRF846: .*'crf_ner'.* named 'C'. Labels: A, B"):
        pipe.training.data([annotated(nlp, [(0, 1, "C", 0.5)])])
    nlp, pipe = make("IOB1")
    with pytest.raises(ValueError, match="CRF828"):
        pipe.training.data([annotated(nlp, OVERLAPPING)])
    with pytest.raises(ValueError, match="CRF347"):
        make(constraints={"@misc": "spacy_crf.constraints.v1", "rules": [], "in_training": True})
    for settings in ({"weight": 0.0}, {"spans_key": ""}):
        with pytest.raises(ValueError, match="CRF020"):
            SoftLabels(**settings)


def test_other_losses_say_that_they_do_not_look(caplog):
    nlp, _ = make(loss={"@losses": "spacy_crf.LogLikelihood.v1"})
    with caplog.at_level(logging.WARNING, "spacy.spacy_crf"):
        nlp.initialize(lambda: [annotated(nlp, OVERLAPPING, [(0, 1, "A")])])
    assert "CRFW825" in caplog.text


# -------------------------------------------------------------------------------------------------------------- training


def soft_examples(nlp, p=0.9):
    """As a teacher sees the texts: each entity with a probability, and less probably the one without its first token."""
    found = []
    for example in ner_examples(nlp):
        spans = []
        for ent in example.reference.ents:
            spans.append((ent.start, ent.end, ent.label_, p))
            spans += [(ent.start + 1, ent.end, ent.label_, 0.9 - p + 0.05)] if len(ent) > 1 else []
        found.append(Example(plain(example.predicted), soften(plain(example.reference), spans)))
    return found


@pytest.mark.parametrize(
    "optimizer, steps",
    [(LBFGS(l2=0.01), 8), (LBFGS(l1=0.05, l2=0.01), 8), (Adam(0.1), 30), (SGD(0.3), 50)],
    ids=["L-BFGS", "OWL-QN", "Adam", "SGD"],
)
@pytest.mark.parametrize("kind", ["BILUO", "segments"])
def test_a_student_learns_what_its_teacher_says(kind, optimizer, steps):
    """From soft labels alone: labels, features and lengths of segments come from them too."""
    nlp, pipe = make(kind, ())
    examples = soft_examples(nlp)
    nlp.initialize(lambda: examples, sgd=optimizer)
    assert pipe.labels == ("GPE", "ORG", "PER")
    if kind == "segments":
        assert pipe.model.attrs["longest"].tolist() == [1, 2, 3, 2]
    for _ in range(steps):
        losses = nlp.update([Example(plain(eg.predicted), eg.reference) for eg in examples], sgd=optimizer)
    assert math.isfinite(losses[pipe.name])
    right = [
        entities(nlp(plain(eg.predicted))) == entities(gold.reference) for eg, gold in zip(examples, ner_examples(nlp))
    ]
    assert all(right), losses
    found = {span.text: p for span, p in pipe.span_probabilities(plain(examples[0].predicted), 0.02)}
    if steps < 20:
        assert found["New York"] == pytest.approx(0.9, abs=0.1) and "York" in found


def test_a_tagger_learns_from_probabilities_of_labels():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger", config={"loss": SOFT})
    examples = tag_examples(nlp)
    for example in examples:
        doc = example.reference
        told = [(t.i, t.i + 1, t.tag_, 0.6) for t in doc] + [(t.i, t.i + 1, "XX", 0.2) for t in doc]
        soften(doc, told)
        for token in doc:
            token.tag_ = ""
    optimizer = LBFGS(l2=0.001)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(5):
        nlp.update(examples, sgd=optimizer)
    marginals, tags = pipe.marginals(plain(examples[0].predicted))
    assert [tags[n] for n in marginals.argmax(axis=1)] == ["DT", "NN", "VB"]
    assert marginals[:, tags.index("XX")] == pytest.approx([0.25] * 3, abs=0.05)  # what was left out is shared out


def test_online_rules_say_that_they_can_not():
    make(optimizer={"@optimizers": "spacy_crf.LBFGS.v1"})
    with pytest.raises(ValueError, match=r"CRF210.*SoftLabels"):
        make(optimizer={"@optimizers": "spacy_crf.SGD.v1"})


def test_changed_scores_are_another_batch():
    """L-BFGS keeps a batch as long as it says the same."""
    nlp, pipe = make("BIO", ())
    examples, optimizer = soft_examples(nlp), LBFGS(l2=0.01)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    kept = pipe.training.corpus
    nlp.update(examples, sgd=optimizer)
    assert pipe.training.corpus is kept
    group = examples[0].reference.spans["crf_soft"]
    group.attrs["scores"] = [0.1 for _ in group]
    assert not kept.holds(examples)


def test_a_pool_learns_from_soft_labels():
    """Its members, and what each is worth."""
    nlp, pipe = make(
        "BIO",
        (),
        model={
            "@architectures": "spacy_crf.LinearChain.v1",
            "emissions": {
                "@architectures": "spacy_crf.SparseEmissions.v1",
                "features": {"@misc": "spacy_crf.ner_features.v1"},
            },
            "tok2vec": {
                "@architectures": "spacy.HashEmbedCNN.v2",
                "width": 8,
                "depth": 1,
                "embed_size": 50,
                "window_size": 1,
                "maxout_pieces": 2,
                "subword_features": True,
                "pretrained_vectors": None,
            },
            "joint": {"mode": "pool", "held_out": 0.4},
        },
    )
    examples = soft_examples(nlp)
    nlp.initialize(lambda: examples, sgd=Adam(0.01))
    before = pipe.model.get_param("shares").copy()
    first = nlp.update(examples, sgd=Adam(0.01))[pipe.name]
    for _ in range(10):
        last = nlp.update(examples, sgd=Adam(0.01))[pipe.name]
    assert last < 0.8 * first and (pipe.model.get_param("shares") != before).all()


def test_texts_without_words_have_no_soft_labels():
    nlp, pipe = make()
    empty = soften(Doc(nlp.vocab), [])
    for examples in ([Example(Doc(nlp.vocab), empty)], [annotated(nlp, OVERLAPPING), Example(Doc(nlp.vocab), empty)]):
        batch = pipe.training.data(examples)
        scores = random_scores(pipe, len(batch.unset))._replace(starts=batch.starts)
        losses, _, impossible = pipe.loss(pipe.decoding.structure, scores, batch.allowed, soft=batch.soft)
        assert len(losses) == len(examples) - 1 and np.isfinite(losses).all() and not impossible.any()
