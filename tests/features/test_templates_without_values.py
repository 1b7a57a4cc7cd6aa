"""Templates that read what no Doc has."""

import logging

import pytest
import spacy
from spacy.tokens import Token

from tests.util import ner_examples, tag_examples

SEGMENTS = {"features": {"@misc": "spacy_crf.segment_features.v1", "extra": ["seg.first:lemma"]}}


@pytest.fixture
def extensions():
    given = {
        "set": {"default": None},
        "unset": {"default": None},
        "default": {"default": "x"},
        "getter": {"getter": len},
    }
    for name, settings in given.items():
        Token.set_extension(f"unread_{name}", **settings)
    yield
    for name in given:
        Token.remove_extension(f"unread_{name}")


def warned(factory, extra, caplog, model=None, change=lambda example: None):
    """What the component says of these templates when it is initialized."""
    nlp = spacy.blank("en")
    preset = "tagger" if factory == "crf_tagger" else "ner"
    features = {"@misc": f"spacy_crf.{preset}_features.v1", "extra": extra}
    nlp.add_pipe(factory, config={"model": {"emissions": {"features": features}, **(model or {})}})
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    for example in examples:
        change(example)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        nlp.initialize(lambda: examples)
    return [message for message in caplog.messages if "CRFW885" in message]


def set_tags(example):
    for token in example.reference:
        token.tag_ = "X"


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger", "semicrf_ner"])
def test_templates_that_find_nothing_are_told(factory, caplog):
    names = "dep, ent_id, ent_kb_id, head, lemma, morph, pos"
    extra = [
        "lemma[-1..0]",
        "pos[0]",
        "morph[0]",
        "dep[0]",
        "head[0]",
        "ent_id[0]",
        "ent_kb_id[0]",
        "norm[0]",
        "spacy[0]",
    ]
    [message] = warned(factory, extra, caplog)
    assert f"{factory} reads {names}, which none of " in message
    assert not warned(factory, ["norm[0]", "lang[0]", "lower[0]"], caplog)


def test_what_the_gold_docs_have_is_there(caplog):
    assert not warned("crf_ner", ["tag[0]"], caplog, change=set_tags)
    assert "reads tag," in warned("crf_ner", ["tag[0]"], caplog)[0]
    assert "reads lemma," in warned("semicrf_ner", [], caplog, model={"segments": SEGMENTS})[0]


def test_extensions_that_nobody_set_are_told(extensions, caplog):
    def set_one(example):
        example.predicted[0]._.unread_set = "yes"

    extra = [f"ext:unread_{name}[0]" for name in ("set", "default", "getter")]
    assert not warned("crf_ner", extra, caplog, change=set_one)
    assert "reads ext:unread_set," in warned("crf_ner", extra, caplog)[0]
    [message] = warned("crf_ner", [*extra, "ext:unread_unset[0]"], caplog, change=set_one)
    assert "reads ext:unread_unset," in message
