"""Components with random scores against every labelling of tiny texts, enumerated: what each of them decodes and learns."""

import math

import numpy as np
import pytest
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example

from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.losses.soft import SoftLabels
from spacy_crf.pipeline.probabilities import predict

from . import reference
from .components import (
    CHAINS,
    SEGMENTS,
    Annotation,
    component,
    every_way,
    make_doc,
    random_annotation,
    random_scores,
)


def kinds(*found):
    return pytest.mark.parametrize("kind", found, ids=lambda kind: "-".join(filter(None, kind)))


# ------------------------------------------------------------------------------------------------------ choosing spans


@pytest.mark.issue(33)
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
            tags, probabilities = predict(pipe, docs, scores, None, None, np.full(2, price))
            chosen = pipe.decoding.segments(tags, scores.starts)
            found = [(b, e, pipe.labels[label]) for b, e, label in zip(*(column.tolist() for column in chosen))]
            assert probabilities == pytest.approx([chances[span] for span in found], abs=1e-9)
            best = max(sum(chances[span] - price for span in way.spans) for way in every)
            assert sum(chances[span] - price for span in found) == pytest.approx(best, abs=1e-7)


# --------------------------------------------------------------------------------------------------------- soft labels


def soften(doc, spans, open_tokens):
    """Certain soft labels, and tokens of which they say nothing."""
    told = [Span(doc, *span) for span in spans] + [Span(doc, t, t + 1, label="") for t in open_tokens]
    scores = [1.0] * len(spans) + [0.0] * len(open_tokens)
    doc.spans["crf_soft"] = SpanGroup(doc, spans=told, attrs={"scores": scores})
    return doc


@pytest.mark.issue(33)
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
