"""Components with random scores against every labelling of tiny texts, enumerated: what each of them decodes and learns."""

import math

import numpy as np
import pytest

from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.pipeline.probabilities import predict

from . import reference
from .components import (
    CHAINS,
    SEGMENTS,
    component,
    every_way,
    make_doc,
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
