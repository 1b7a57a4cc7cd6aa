"""Attributes that the rest of a Doc gives a word, against a plain Python reading."""

import random
from collections import Counter

import pytest
import spacy
from spacy.tokens import Doc

from spacy_crf.features.doc_batch import DOCUMENT_ATTRIBUTES
from spacy_crf.features.extractor import FeatureSet
from spacy_crf.features.segment_templates import SegmentFeatureSet
from tests.features.test_features import freeze

TEMPLATES = [f"{name}[0]" for name in DOCUMENT_ATTRIBUTES]


def read(docs, templates=TEMPLATES, padding=False):
    return freeze(FeatureSet(templates, padding=padding), docs)[2]


def expected(doc):
    """What the templates find at each token."""
    begins = [t.i == 0 or t.is_sent_start is True or doc[t.i - 1].text in ".!?:" for t in doc]
    for token in doc:
        same = [t for t in doc if t.lower == token.lower]
        evidence = [t for t in same if not begins[t.i]] or same
        if len(same) == 1:
            yield []
            continue
        title = any(t.is_title for t in evidence if t.i != token.i)
        [(shape, _)] = Counter(t.shape_ for t in evidence).most_common(1)  # of equals the first
        form = max(evidence, key=lambda t: sum(map(str.isupper, t.text)))
        values = {"cased_form": form.text, "majority_shape": shape, "title_elsewhere": int(title)}
        yield [f"doc:{name}[0]={value}" for name, value in values.items()]


@pytest.mark.parametrize("seed", range(20))
def test_against_python(seed):
    rng = random.Random(seed)
    nlp = spacy.blank("en")
    words = ["the", "The", "THE", "eu", "EU", "Eu", "iPhone", "IPHONE", ".", "!", "x", "mars", "Mars", "ich", "Ich"]
    docs = []
    for length in (0, 1, 2, 7, 30, 0, 60):
        doc = Doc(nlp.vocab, words=rng.choices(words, k=length))
        for token in doc:
            token.is_sent_start = rng.choice([True, None, None, None])
        docs.append(doc)
    assert read(docs) == [features for doc in docs for features in expected(doc)]


def test_joined_and_padded():
    doc = Doc(spacy.blank("en").vocab, words=["Mars", "is", "where", "Mars", "is"])
    names = read([doc], ["doc:cased_form[-1]|lower[0]", "doc:title_elsewhere[1]"], padding=True)
    assert names[0] == ["doc:cased_form[-1]|lower[0]=<BOS1>|mars", "doc:title_elsewhere[1]=0"]
    assert names[3] == ["doc:title_elsewhere[1]=0"]  # nothing of "where", which stands once
    assert names[4] == ["doc:cased_form[-1]|lower[0]=Mars|is", "doc:title_elsewhere[1]=<EOS1>"]


def test_segments_read_them_too():
    feature_set = SegmentFeatureSet(["seg.first:doc:cased_form", "seg.contains:doc:title_elsewhere"])
    assert feature_set.reader({}).document_attributes == ["doc:cased_form", "doc:title_elsewhere"]


def test_unknown_ones_are_named():
    with pytest.raises(ValueError, match=r"CRF106: .* the attribute 'doc:shape'.*did you mean 'shape'"):
        FeatureSet(["doc:shape[0]"])
