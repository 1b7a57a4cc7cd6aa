"""Mention replacement: copies of texts with other entities."""

import pytest
import spacy
from spacy import registry
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from tests.test_configs import ROOT
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples

MENTIONS = {"PER": {"Ann Lee", "Bob", "Carla Diaz"}, "GPE": {"New York", "Paris", "Rome"}}
MENTIONS["ORG"] = {"Acme Corp", "Blue Sky Ltd"}


@pytest.fixture
def path(tmp_path):
    nlp = spacy.blank("en")
    DocBin(docs=[ner_doc(nlp, text) for text in NER_TEXTS]).to_disk(tmp_path / "train.spacy")
    return tmp_path / "train.spacy"


def _made(path, nlp, example, **settings):
    first, *others = registry.get("augmenters", "spacy_crf.mentions.v1")(path, **settings)(nlp, example)
    assert first is example
    return [other.reference for other in others]


def _between(doc):
    """The text with labels in place of entities."""
    parts, at = [], 0
    for ent in doc.ents:
        parts += [doc[at : ent.start].text_with_ws, ent.label_, ent[-1].whitespace_]
        at = ent.end
    return "".join([*parts, doc[at:].text])


def test_entities_are_redrawn_and_all_else_stays(path):
    nlp = spacy.blank("en")
    for example in ner_examples(nlp):
        made = _made(path, nlp, example, copies=5)
        assert 0 < len(made) <= 5 if example.reference.ents else not made
        for doc in made:
            assert _between(doc) == _between(example.reference) and doc.text != example.reference.text
            assert all(ent.text in MENTIONS[ent.label_] for ent in doc.ents)


def test_the_seed_and_the_text_say_what_is_drawn(path):
    nlp = spacy.blank("en")
    first, *_, last = ner_examples(nlp)
    augmenter = registry.get("augmenters", "spacy_crf.mentions.v1")(path)
    drawn = [[eg.text for eg in augmenter(nlp, example)] for example in (first, last, first, last)]
    assert drawn[:2] == drawn[2:] and drawn[0] != drawn[1]
    texts = {tuple(doc.text for doc in _made(path, nlp, last, seed=seed)) for seed in range(5)}
    assert len(texts) > 1


def test_mentions_of_a_gazetteer(path, tmp_path):
    nlp = spacy.blank("en")
    (tmp_path / "people.txt").write_text("Zoe\r\n\n Max van Moor\n", encoding="utf-8-sig")
    settings = {"gazetteers": {"PER": str(tmp_path / "people.txt")}, "copies": 40}
    shares = {}
    for share in (0.0, 0.5, 1.0):
        made = _made(path, nlp, ner_examples(nlp)[0], gazetteer_share=share, **settings)
        people = [ent.text in ("Zoe", "Max van Moor") for doc in made for ent in doc.ents if ent.label_ == "PER"]
        shares[share] = sum(people) / len(people)
    assert shares[0.0] == 0.0 and 0.2 < shares[0.5] < 0.8 and shares[1.0] == 1.0
    assert {len(ent) for doc in made for ent in doc.ents if ent.label_ == "PER"} == {1, 3}


def test_other_annotation_of_a_text(path):
    nlp = spacy.blank("en")
    words, spaces = ["Bob", "left", ".", "Ann", "?"], [True, False, True, False, False]
    gold = Doc(
        nlp.vocab, words=words, spaces=spaces, tags=["NNP", "VBD", ".", "NNP", "."], sent_starts=[1, -1, -1, 1, -1]
    )
    gold.set_ents([Span(gold, 0, 1, "PER")], missing=[gold[3:4]], default="outside")
    gold._.crf_weight = 2.0
    example = Example(nlp.make_doc(gold.text), gold)
    [doc] = [doc for doc in _made(path, nlp, example, copies=9) if doc[0].text == "Ann"][:1]
    assert [token.tag_ for token in doc] == ["", "", "VBD", ".", "NNP", "."]
    assert [token.ent_iob_ for token in doc] == ["B", "I", "O", "O", "", "O"]
    assert [token.is_sent_start for token in doc] == [True, False, False, False, True, False]
    assert doc.text == "Ann Lee left. Ann?" and doc._.crf_weight == 2.0
    gold.spans["wrong"] = [gold[3:4]]
    assert not _made(path, nlp, example)


def test_a_config_trains_with_it(path, tmp_path):
    (tmp_path / "people.txt").write_text("Zoe\nMax\n", encoding="utf8")
    config = load_config(ROOT / "configs" / "crf_ner.cfg", {"paths.train": str(path), "paths.dev": str(path)})
    augmenter = {"@augmenters": "spacy_crf.mentions.v1", "path": "${paths.train}", "copies": 3}
    config["corpora"]["train"]["augmenter"] = {**augmenter, "gazetteers": {"PER": str(tmp_path / "people.txt")}}
    nlp = init_nlp(config)
    train(nlp)
    assert [entities(nlp(text))[:1] for text in ("Zoe lives in Rome .", "Max left Paris .")] == [[(0, 1, "PER")]] * 2


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"path": "nowhere.spacy"}, "CRF701.*nowhere.spacy"),
        ({"path": ""}, "CRF020.*path"),
        ({"copies": 0}, "CRF020.*copies = 0"),
        ({"gazetteer_share": 1.5}, "CRF020.*gazetteer_share"),
        ({"seed": -1}, "CRF020.*seed"),
        ({"gazetteers": ["people.txt"]}, "CRF020.*gazetteers"),
        ({"gazetteers": {"NAME:PER": "empty.txt"}}, r'CRF925.*\[\["NAME:PER", "empty.txt"\]\]'),
        ({"gazetteers": [["NAME:PER", "empty.txt"]]}, "CRF846.*'NAME:PER'"),
        ({"gazetteers": {"PER": "nowhere.txt"}}, "CRF701.*nowhere.txt.*No such file"),
        ({"gazetteers": {"PER": "empty.txt"}}, "CRF701.*empty.txt.*no mentions"),
        ({"gazetteers": {"PRE": "empty.txt"}}, "CRF846.*gazetteers.*'PRE'.*did you mean 'PER'"),
        ({"path": "none.spacy"}, "CRF708.*none.spacy"),
        ({"path": "broken.spacy"}, "CRF701.*broken.spacy"),
    ],
)
def test_wrong_settings(path, settings, said, monkeypatch):
    monkeypatch.chdir(path.parent)
    for name in ("empty.txt", "broken.spacy"):
        (path.parent / name).write_text("\n")
    nlp = spacy.blank("en")
    DocBin(docs=[nlp("a b")]).to_disk("none.spacy")
    with pytest.raises(ValueError, match=said):
        _made(**{"path": path, "nlp": nlp, "example": ner_examples(nlp)[0], **settings})
