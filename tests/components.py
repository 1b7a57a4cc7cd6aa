"""The table of components: a new model, scheme or setting is one row.

Components of `component` have random scores, and are compared with every labelling of a tiny text; pipelines of `PIPELINES` have
random weights, and are compared with themselves.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.inference.pruned_lattice import HigherOrderScores, Orders, key_of
from spacy_crf.models.node import gives
from spacy_crf.types import GOES_ON, ChainScores, SegmentScores
from tests.models.test_neural import ENCODER
from tests.structures import chain_ways, higher_order_ways, segment_ways, starts_of

FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[0]", "lower[-1]"]}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES, "possible_states": True}
OF_TEXTS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.text_features.v1"},
    "min_count": 1,
}
_SEGMENTS = {
    "@architectures": "spacy_crf.SparseSegments.v1",
    "features": {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.lower", "seg.length"]},
}
CHAIN = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS}
SEMI = {
    "@architectures": "spacy_crf.SemiMarkov.v1",
    "emissions": EMISSIONS,
    "segments": _SEGMENTS,
    "longest_segment": 3,
}
ORDER = {"@architectures": "spacy_crf.HigherOrder.v1", "emissions": EMISSIONS}
BAG = {"@architectures": "spacy_crf.MaxEntText.v1", "emissions": OF_TEXTS}
OUTER = {
    **CHAIN,
    "emissions": {**EMISSIONS, "features": {**FEATURES, "templates": [*FEATURES["templates"], "outer[0]"]}},
}
NEURAL = {**CHAIN, "emissions": None, "tok2vec": ENCODER}
MODELS = {"chain": CHAIN, "order 2": ORDER}  # with every scheme
SCHEMES = ("IO", "BIO", "IOB1", "BILUO")
CHAINS = list(itertools.product(MODELS, SCHEMES))
SEGMENTS = ("segments", None)
TAGGER = ("tagger", None)
LABELS = ["A", "B"]
LONGEST = 3
# Which of them hold depends on the Doc
RULES = {
    "counts": [{"rule": "at_most", "label": "A", "n": 1}, {"rule": "at_least", "label": "B", "n": 1}],
    "masks": [
        {"rule": "never_on", "label": "*", "phrases": ["aa"]},
        {"rule": "always_on", "label": "A", "phrases": ["Dd"]},
        {"rule": "length", "label": "B", "max": 1},
    ],
    "texts": [{"rule": "same_text_same_label"}, {"rule": "requires", "if": ["A"], "then": ["B"], "per": "sentence"}],
    "soft": [{"rule": "exactly", "label": "A", "n": 2, "weight": 0.7}, {"rule": "excludes", "if": "A", "then": "B"}],
}
RULES["chains"] = [RULES["counts"][0], RULES["masks"][0], {**RULES["counts"][1], "label": "A"}]

# Factory, settings, and rules
PIPELINES = {
    "ner": ("crf_ner", {"model": CHAIN, "scheme": "BIO"}, None),
    "ner, IO, spans": ("crf_ner", {"model": CHAIN, "scheme": "IO", "decode": "spans", "min_prob": 0.3}, None),
    "ner, BILUO, posterior": ("crf_ner", {"model": CHAIN, "scheme": "BILUO", "decode": "posterior"}, None),
    "ner, order": ("crf_ner", {"model": ORDER, "scheme": "BIO"}, None),
    "ner, encoder": ("crf_ner", {"model": NEURAL, "scheme": "BIO"}, "masks"),
    "tagger": ("crf_tagger", {"model": CHAIN}, None),
    "tagger, rules": ("crf_tagger", {"model": CHAIN}, "counts"),
    "tagger, spans": ("crf_tagger", {"model": CHAIN, "decode": "spans", "min_prob": 0.4}, "texts"),
    "senter": ("crf_senter", {"model": CHAIN}, None),
    "senter, rules": ("crf_senter", {"model": CHAIN, "overwrite": True}, "sentences"),
    "senter, spans": ("crf_senter", {"model": CHAIN, "decode": "spans", "min_prob": 0.4}, None),
    "segments": ("semicrf_ner", {"model": SEMI}, None),
    "segments, rules": ("semicrf_ner", {"model": SEMI, "decode": "spans", "min_prob": 0.2}, "counts"),
    "spans": ("crf_spancat", {"model": CHAIN, "scheme": "BIO"}, None),
    "spans, low": ("crf_spancat", {"model": CHAIN, "groups": [LABELS], "threshold": 0.1}, None),
    "spans, levels": ("crf_spancat", {"model": CHAIN, "groups": "auto", "nested": True}, None),
    "spans, levels, low": ("crf_spancat", {"model": CHAIN, "groups": "auto", "nested": True, "threshold": 0.15}, None),
    "spans, levels, rules": ("crf_spancat", {"model": CHAIN, "groups": "auto", "nested": True}, "chains"),
    "spans, outer": ("crf_spancat", {"model": OUTER, "groups": "auto", "nested": True, "threshold": 0.3}, None),
    "spans, segments": ("crf_spancat", {"model": SEMI, "groups": "auto", "nested": True, "threshold": 0.2}, None),
    "texts": ("crf_textcat", {"model": BAG}, None),
    **{f"ner, {name}": ("crf_ner", {"model": CHAIN, "scheme": "BIO"}, name) for name in RULES},
    "ner, counts, spans": ("crf_ner", {"model": CHAIN, "scheme": "BIO", "decode": "spans", "min_prob": 0.4}, "counts"),
}
RULES["sentences"] = [
    {"rule": "never_after", "label": "S", "phrases": ["aa"]},
    {"rule": "at_most", "label": "S", "n": 2, "weight": 1.0},
]
TRAINED = [ORDER]  # whose training finds the thresholds by which chains are pruned; others have random weights

NLP = spacy.blank("xx")  # whose tokenizer, which rules about phrases make anew, is made soonest


@functools.cache
def component(kind):
    """A component that knows its labels, for all tests: each sets what it needs.

    kind (tuple): The model and the scheme.
    """
    model, scheme = kind
    factory = {"segments": "semicrf_ner", "tagger": "crf_tagger"}.get(model, "crf_ner")
    config = {} if scheme is None else {"scheme": scheme, "model": MODELS[model]}
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
