"""The table of components whose answers are compared with every labelling of a tiny text: a new model or scheme is one row."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.inference.pruned_lattice import HigherOrderScores, Orders, key_of
from spacy_crf.models.node import gives
from spacy_crf.types import GOES_ON, ChainScores, SegmentScores
from tests.structures import chain_ways, higher_order_ways, segment_ways, starts_of

EMISSIONS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["orth[0]"]},
}
MODELS = {
    "chain": {"@architectures": "spacy_crf.LinearChain.v1"},
    "order 2": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 2},
}
SCHEMES = ("IO", "BIO", "IOB1", "BILUO")
CHAINS = list(itertools.product(MODELS, SCHEMES))
SEGMENTS = ("segments", None)
TAGGER = ("tagger", None)
LABELS, LONGEST = ("A", "B"), 3
NLP = spacy.blank("xx")  # whose tokenizer, which rules about phrases make anew, is made soonest


@functools.cache
def component(kind):
    """A component that knows its labels, for all tests: each sets what it needs.

    kind (tuple): The model and the scheme.
    """
    model, scheme = kind
    factory = {"segments": "semicrf_ner", "tagger": "crf_tagger"}.get(model, "crf_ner")
    config = {} if scheme is None else {"scheme": scheme, "model": {**MODELS[model], "emissions": EMISSIONS}}
    pipe = NLP.create_pipe(
        factory, config={"decode": "spans", "min_prob": 0.05, "incorrect_spans_key": "wrong", **config}
    )
    for label in LABELS:
        pipe.add_label(label)
    if model == "segments":
        pipe.model.attrs["longest"] = np.array([1, *[LONGEST] * len(LABELS)], dtype=np.int32)
    return pipe


def random_scores(pipe, lengths, rng):
    """Of sequences of these lengths, as the component's model gives them; -inf is what its scheme forbids."""
    decoding, tokens, starts = pipe.decoding, sum(lengths), starts_of(lengths)
    mask = decoding.mask()
    size = len(mask.first)
    transitions, first, last = (np.where(may, rng.normal(size=may.shape), -np.inf) for may in mask)
    by_token = rng.normal(size=(3, tokens, size))
    if gives(pipe.model) is SegmentScores:
        spans = np.zeros((0, size))
        long = np.arange(LONGEST)[:, np.newaxis] >= decoding.longest
        lengths_of = np.where(long, -np.inf, rng.normal(size=long.shape))
        return SegmentScores(*by_token, lengths_of, spans, transitions, first, last, None, starts)
    scores = ChainScores(by_token[0], transitions, first, last, starts)
    if gives(pipe.model) is not HigherOrderScores:
        return scores
    grams = [gram for gram in itertools.product(range(size + 1), range(size), range(size)) if rng.random() < 0.5]
    keys = np.array(sorted(key_of(gram, size) for gram in grams), dtype=np.int64)
    return HigherOrderScores(*scores[:4], rng.normal(size=len(keys)), Orders(2, keys, size), starts)


class Way(NamedTuple):
    score: float
    spans: tuple[tuple[int, int, str], ...]  # of a tagger: tokens


def every_way(pipe, scores):
    """All paths of a text, one of which is one of each of its sequences."""
    ways_of = {SegmentScores: segment_ways, HigherOrderScores: higher_order_ways}.get(gives(pipe.model), chain_ways)
    names, decoding = pipe.tags(), pipe.decoding
    tags = [names[tag] for tag in decoding.tag_of]
    every = [Way(0.0, ())]
    for begin, end in itertools.pairwise(scores.starts.tolist()):
        found = [
            (way.score, tuple((b + begin, e + begin, label) for b, e, label in spans_of(way.states, tags)))
            for way in ways_of(None, scores, begin, end)
        ]
        every = [Way(before + score, spans + more) for before, spans in every for score, more in found]
    return every


def spans_of(states, tags):
    """The spans that the states of a sequence spell, by the tag of each state: those of a tagger are its tokens."""
    found, open_label = [], None
    for t, state in enumerate(states):
        if state == GOES_ON:
            found[-1][1] = t + 1
            continue
        prefix, _, label = tags[state].rpartition("-")
        if tags[state] == "O":
            open_label = None
        elif prefix in ("I", "L") and open_label == label:
            found[-1][1] = t + 1
        else:
            found.append([t, t + 1, label])
        if tags[state] != "O":
            open_label = label if prefix in ("B", "I") else None
    return [tuple(span) for span in found]


class Annotation(NamedTuple):
    """Of a text: some spans, some tokens outside of any; nothing is known of the rest."""

    spans: list[tuple[int, int, str]]
    outside: list[int]

    def allows(self, way):
        inside = {t for begin, end, _ in way.spans for t in range(begin, end)}
        return set(self.spans) <= set(way.spans) and inside.isdisjoint(self.outside)

    def write(self, doc):
        """On the Doc, which has no other annotation."""
        spans = [Span(doc, *span) for span in self.spans]
        doc.set_ents(spans, outside=[doc[t : t + 1] for t in self.outside], default="missing")
        return doc


def random_annotation(rng, lengths):
    """In which no two spans of one label touch, which the scheme IO can't tell from one."""
    spans, outside = [], []
    for begin, end in itertools.pairwise(starts_of(lengths).tolist()):
        t = begin
        while t < end:
            what, label = rng.integers(4), str(rng.choice(LABELS))
            until = min(end, t + int(rng.integers(1, 3)))
            touches = bool(spans) and spans[-1][1:] == (t, label) and t > begin
            if what == 0 and not touches:
                spans.append((t, until, label))
                t = until
                continue
            outside += [t] if what == 1 else []
            t += 1
    return Annotation(spans, outside)


def make_doc(pipe, lengths, words=None):
    """Of sequences of these lengths."""
    words = [f"w{t}" for t in range(sum(lengths))] if words is None else words
    first = set(starts_of(lengths).tolist())
    return Doc(pipe.vocab, words=words, sent_starts=[t in first for t in range(len(words))])
