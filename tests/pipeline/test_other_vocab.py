"""Docs whose vocabulary is not the component's, as those of a `DocBin` that was read with another pipeline's: hashes of
labels that it did not know ended in E018, E084 or E109, in prediction, in scores and in training; morphology was empty."""

import pytest
import spacy
from spacy.tokens import Doc, Span, Token
from spacy.training import Example

from spacy_crf.checks import ANY, count

WORDS = ["Ann", "met", "Bob"]
LABELS = {
    "entities": ("PER", "ALIEN"),
    "tag": ("NAME", "ALIEN"),
    "pos": ("PROPN", "VERB"),
    "morph": ("Number=Sing", "Tense=Past"),
    "pos+morph": ("Number=Sing|POS=PROPN", "POS=VERB|Tense=Past"),
    "other_vocab": ("NAME", "ALIEN"),
}
FACTORIES = [("crf_ner", "entities"), ("semicrf_ner", "entities"), *(("crf_tagger", name) for name in list(LABELS)[1:])]


def elsewhere() -> Doc:
    return Doc(spacy.blank("en").vocab, words=WORDS)


def annotated(attribute: str) -> Doc:
    doc = elsewhere()
    name, other = LABELS[attribute]
    if attribute == "entities":
        doc.ents = [Span(doc, 0, 1, label=name), Span(doc, 1, 2, label=other), Span(doc, 2, 3, label=name)]
    for token in doc:
        label = name if token.is_title else other
        parts = dict(part.split("=") for part in label.split("|") if "=" in part)
        if attribute == "tag":
            token.tag_ = label
        elif attribute == "other_vocab":
            token._.other_vocab = label
        elif attribute != "entities":
            token.pos_ = parts.pop("POS", "" if attribute == "morph" else label)
            token.set_morph(parts or None)
    return doc


def says(doc: Doc) -> list[tuple]:
    return [(t.ent_iob_, t.ent_type_, t.tag_, t.pos_, str(t.morph), t._.other_vocab) for t in doc]


@pytest.fixture
def extension():
    Token.set_extension("other_vocab", default=None, force=True)
    yield
    Token.remove_extension("other_vocab")


def component(factory: str, attribute: str, labels=None):
    nlp = spacy.blank("en")
    config = {} if attribute == "entities" else {"attribute": attribute}
    pipe = nlp.add_pipe(factory, config={**config, "confidence": True})
    examples = [Example(nlp.make_doc(" ".join(WORDS)), annotated(attribute))]
    pipe.initialize(lambda: examples, nlp=nlp, labels=labels)
    for _ in range(10):
        nlp.update(examples, sgd=nlp.create_optimizer())
    return nlp, examples


def best_score(nlp, *examples) -> float:
    """Of entities, tags, parts of speech, morphology or an extension."""
    scores = nlp.evaluate(examples)
    return max(scores[key] for key in scores if key.endswith(("ents_f", "_acc")) and scores[key] and key != "token_acc")


@pytest.mark.parametrize(("factory", "attribute"), FACTORIES)
def test_predicted_docs_know_the_labels(extension, factory, attribute):
    nlp, _ = component(factory, attribute)
    expected = says(nlp(" ".join(WORDS)))
    doc = nlp(elsewhere())
    assert says(doc) == expected == says(annotated(attribute))
    assert [ent.label_ for ent in doc.ents] == [token.ent_type_ for token in doc if token.ent_type]
    assert best_score(nlp, Example(elsewhere(), annotated(attribute))) == 1.0


@pytest.mark.parametrize(("factory", "attribute"), FACTORIES)
def test_gold_labels_that_the_component_does_not_know(extension, factory, attribute):
    name = LABELS[attribute][0]
    nlp, examples = component(factory, attribute, labels=[name])
    assert nlp.get_pipe(factory).labels == (name,)
    assert 0.0 < best_score(nlp, *examples) < 1.0


def test_a_number_that_is_too_large_is_told_the_largest():
    """A seed of 2**70 had to be "a whole number, at least 0", which it is."""
    with pytest.raises(ValueError, match=r"CRF020: .*from 0 to 9223372036854775807"):
        count("Component 'x'", "seed", 2**70, least=0, most=ANY)
