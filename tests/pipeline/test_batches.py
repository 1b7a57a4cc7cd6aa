"""What a Doc gets does not depend on the other Docs of its batch, whatever these bring: annotation, rules that only they break,
sentences, white space, nothing at all."""

from functools import cache

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from tests.models.test_neural import ENCODER
from tests.util import draws

WORDS = ["aa", "bb", "cc", "Dd", "5", ".", " ", "\n"]
LABELS = ["A", "B"]
FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[0]", "lower[-1]"]}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES, "possible_states": True}
OF_TEXTS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.text_features.v1"},
    "min_count": 1,
}
SEGMENTS = {
    "@architectures": "spacy_crf.SparseSegments.v1",
    "features": {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.lower", "seg.length"]},
}
CHAIN = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS}
SEMI = {
    "@architectures": "spacy_crf.SemiMarkov.v1",
    "emissions": EMISSIONS,
    "segments": SEGMENTS,
    "longest_segment": 3,
}
ORDER = {"@architectures": "spacy_crf.HigherOrder.v1", "emissions": EMISSIONS}
BAG = {"@architectures": "spacy_crf.MaxEntText.v1", "emissions": OF_TEXTS}
OUTER = {
    **CHAIN,
    "emissions": {**EMISSIONS, "features": {**FEATURES, "templates": [*FEATURES["templates"], "outer[0]"]}},
}
NEURAL = {**CHAIN, "emissions": None, "tok2vec": ENCODER}

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
TRAINED = [ORDER]  # whose training finds the thresholds by which chains are pruned; others have random weights


@cache
def make(name):
    """A pipeline with random weights."""
    factory, settings, rules = PIPELINES[name]
    nlp = spacy.blank("en")
    settings = {**settings, **({"confidence": True} if factory.endswith(("ner", "tagger")) else {})}
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
            node.attrs["features"].forget_scores()
    return nlp, pipe


def _example(nlp, n):
    words = ["aa", "bb", "cc", "Dd"]
    gold = Doc(nlp.vocab, words=words)
    gold.ents = [Span(gold, n, n + 2, LABELS[n % 2])] if n < 3 else []
    for token in gold:
        token.tag_ = LABELS[(n + token.i) % 2]
    gold.spans["sc"] = [Span(gold, 0, 3, "A"), Span(gold, 1, 2, "B"), Span(gold, 1, 3, "A"), Span(gold, 3, 4, "B")]
    gold.cats = {"A": float(n % 2), "B": float(n % 2 == 0)}
    return Example(Doc(nlp.vocab, words=words), gold)


def draw_doc(rng, nlp, factory):
    """A Doc with any of what a Doc may bring."""
    n = int(rng.integers(0, 7))
    starts = [t == 0 or rng.random() < 0.2 for t in range(n)]
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
    decided = [(ent.start, ent.end, ent.label_) for ent in doc.ents], [token.tag_ for token in doc], []
    numbers = [ent._.crf_prob or 0.0 for ent in doc.ents] + [token._.crf_prob or 0.0 for token in doc]
    group = doc.spans.get("sc", [])
    decided[2].extend((span.start, span.end, span.label_) for span in group)
    numbers += [*map(float, getattr(group, "attrs", {}).get("scores", ()))]
    numbers += [doc.cats[label] for label in sorted(doc.cats)]
    return decided, numbers


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [*PIPELINES])
@given(seed=st.integers(0, 10**9))
@draws(4)
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
