"""``crf_smooth``: labels of equal texts that fit together, after spaCy's `ner` and after components of this package."""

import itertools
import random

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import fix_random_seed

from spacy_crf.checks import in_config
from spacy_crf_lab.smoothing import Smoothing
from spacy_crf_lab.ties.belief_propagation import BeliefPropagation
from spacy_crf_lab.ties.graph_cut import GraphCut
from spacy_crf_lab.ties.groups import RepeatedWords
from spacy_crf_lab.ties.junction_tree import JunctionTree
from tests.pipeline import test_tables_by_label

SMOOTH = {"@misc": "spacy_crf_lab.smooth.v1"}
NAMES = ["Lund", "Berg", "Falk", "Holm", "Sand", "Kling"]


def pipeline(before=None, **settings):
    """A pipeline with the step; `before` is the component to smooth, by default a stub that changes nothing."""
    nlp = before or spacy.blank("en")
    component = nlp.pipe_names[-1] if nlp.pipe_names else "ner"
    nlp.add_pipe("crf_smooth", config={"component": component, "smoothing": {**SMOOTH, **settings}})
    return nlp


def make(nlp, text, *ents, **attributes):
    """A Doc with entities (start, end, label)."""
    doc = Doc(nlp.vocab, words=text.split())
    doc.ents = [Span(doc, *ent, **attributes) for ent in ents]
    return doc


def labelled(doc):
    return [(ent.text, ent.label_) for ent in doc.ents]


LUNDS = "Lund spoke . Lund left . Then Lund slept . Lund !"


@pytest.mark.parametrize(
    "settings, ents, expected",
    [
        ({"strength": 1.5}, [(0, 1, "PER"), (3, 4, "LOC"), (7, 8, "PER"), (10, 11, "PER")], ["PER"] * 4),
        ({"strength": 0.9}, [(0, 1, "PER"), (3, 4, "LOC"), (7, 8, "PER"), (10, 11, "PER")], ["PER", "LOC", "PER", "PER"]),
        ({"strength": 1.5}, [(0, 1, "PER"), (7, 8, "PER"), (10, 11, "PER")], ["PER"] * 4),
        ({"strength": {"PER": 1.5}}, [(0, 1, "PER")], ["PER"]),
        ({"strength": {"PER": 3.0}}, [(0, 1, "PER")], ["PER"] * 4),
        ({"strength": {"O": 2.5, "*": 1.0}}, [(3, 4, "PER")], []),
        ({"strength": 1.5, "price": 4.0}, [(0, 1, "PER"), (3, 4, "LOC"), (7, 8, "PER")], ["PER", "LOC", "PER"]),
    ],
)  # fmt: skip
def test_labels_of_equal_texts(settings, ents, expected):
    nlp = pipeline(**settings)
    assert [ent.label_ for ent in nlp(make(nlp, LUNDS, *ents)).ents] == expected


def test_labels_against_enumeration():
    rng = np.random.default_rng(0)
    for number in range(40):
        nlp = pipeline()
        words = [NAMES[n] for n in rng.integers(0, 3, size=7)]
        given = [("", "PER", "LOC")[n] for n in rng.integers(0, 3, size=7)]
        ents = [(n, n + 1, label) for n, label in enumerate(given) if label]
        entities = {words[n] for n, label in enumerate(given) if label}
        smoothing = Smoothing(price=1.0, strength={"PER": 0.7, "LOC": 0.4, "O": 0.3}, inference=JunctionTree())
        nlp.get_pipe("crf_smooth").smoothing = (
            smoothing if number % 2 else Smoothing(price=1.0, strength=smoothing.strength)
        )
        found = [token.ent_type_ for token in nlp(make(nlp, " ".join(words), *ents))]
        known = sorted({"", *(label for label in given if label)})

        def score(labels, words=words, given=given, entities=entities):
            total = -1.0 * sum(a != b for a, b in zip(labels, given))
            for word in entities:
                of_word = [label for other, label in zip(words, labels) if other == word]
                total += sum({"PER": 0.7, "LOC": 0.4, "": 0.3}[a] for a, b in itertools.pairwise(of_word) if a == b)
            return total

        free = [known if word in entities else [""] for word in words]
        assert score(found) == pytest.approx(max(score(labels) for labels in itertools.product(*free)))


def test_docs_without_ties_stay_bit_for_bit():
    nlp = pipeline()
    docs = [
        Doc(nlp.vocab),
        Doc(nlp.vocab, words=["Lund"]),
        make(nlp, "Lund spoke"),
        make(nlp, "Lund spoke to Berg", (0, 1, "PER"), (3, 4, "LOC"), kb_id="Q1", span_id="7"),
    ]
    for doc in docs:
        before = doc.to_bytes()
        assert nlp(doc).to_bytes() == before
    assert [len(doc) for doc in nlp.pipe(docs)] == [0, 1, 2, 4]


def test_entities_keep_what_they_have():
    nlp = pipeline(strength=1.5)
    doc = make(nlp, LUNDS, (0, 1, "PER"), (7, 8, "PER"), (10, 11, "PER"), kb_id="Q1", span_id="7")
    doc.set_ents([Span(doc, 3, 4, label="LOC", kb_id="Q2")], default="unmodified")
    assert [(ent.label_, ent.kb_id_, ent.id_) for ent in nlp(doc).ents] == [
        ("PER", "Q1", "7"), ("PER", "", ""), ("PER", "Q1", "7"), ("PER", "Q1", "7"),
    ]  # fmt: skip


def test_longer_entities_and_blocked_tokens_are_not_touched():
    nlp = pipeline(strength={"*": 9.0, "O": 0.0})
    text = "Lund University . Lund . Lund . New Lund University"
    doc = make(nlp, text, (0, 2, "ORG"), (3, 4, "PER"))
    doc.set_ents([], blocked=[doc[5:6]], default="unmodified")
    assert labelled(nlp(doc)) == [("Lund University", "ORG"), ("Lund", "PER"), ("Lund University", "ORG")]
    assert doc[5].ent_iob_ == "B" and not doc[5].ent_type


@pytest.mark.parametrize("inference", [BeliefPropagation(), GraphCut(), None], ids=["beliefs", "cut", "dual"])
def test_ties_of_templates(inference):
    """Words in common tie places of other texts."""
    cliques = {"words": RepeatedWords(only=None)}
    nlp = spacy.blank("en")
    for cliques_of, expected in ((None, ["PER", "LOC"]), (cliques, ["PER", "PER"])):
        smoothing = Smoothing(strength={"PER": 3.0}, cliques=cliques_of, inference=inference)
        step = pipeline().get_pipe("crf_smooth")
        step.smoothing = smoothing
        doc = step(make(nlp, "Ann Lund spoke . Lund left", (0, 2, "PER"), (4, 5, "LOC")))
        assert [ent.label_ for ent in doc.ents] == expected


@pytest.fixture(scope="module")
def data():
    rng = random.Random(0)
    found = []
    for _ in range(60):
        word, label = rng.choice(NAMES), rng.choice(["PER", "LOC"])
        found.append((f"Mr {word} spoke ." if label == "PER" else f"in {word} yesterday .", (1, 2, label)))
    return found


def trained(factory, data):
    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe(factory)
    examples = []
    for text, ent in data:
        examples.append(Example(Doc(nlp.vocab, words=text.split()), make(nlp, text, ent)))
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(40 if factory == "ner" else 8):
        nlp.update(examples, sgd=optimizer if factory == "ner" else None)
    return nlp


@pytest.fixture(scope="module")
def ner(data):
    return trained("ner", data)


@pytest.mark.parametrize("scores", ["beam", "labels"])
def test_after_the_ner_of_spacy(scores, ner, tmp_path):
    """A name without a clue gets the label of places with one."""
    text = "Mr Lund spoke . Mr Lund spoke . Mr Lund spoke . and Lund ."
    alone = [ent.label_ for ent in ner(Doc(ner.vocab, words=text.split())).ents]
    nlp = spacy.blank("en")
    nlp.add_pipe("ner", source=ner)
    nlp = pipeline(nlp, scores=scores, strength=4.0, price=3.0)
    docs = [Doc(nlp.vocab, words=words.split()) for words in (text, "in Berg yesterday .", "")]
    found = [labelled(nlp(doc.copy())) for doc in docs]
    assert found[0] == [("Lund", "PER")] * 4 and alone[:3] == ["PER"] * 3
    assert found[1] == [("Berg", "LOC")]
    nlp.to_disk(tmp_path)
    for loaded in (spacy.load(tmp_path), spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())):
        assert [labelled(loaded(doc.copy())) for doc in docs] == found
        assert loaded.get_pipe("crf_smooth").smoothing.strength == 4.0
    assert [labelled(doc) for doc in nlp.pipe([doc.copy() for doc in docs], n_process=2)] == found


def test_a_beam_leaves_the_doc_alone(ner):
    """Parses begin without the entities that are there, in a copy."""
    nlp = spacy.blank("en")
    nlp.add_pipe("ner", source=ner)
    nlp = pipeline(nlp, scores="beam", strength=0.0)
    doc = ner(Doc(ner.vocab, words=["Mr", "Lund", "spoke", ".", "in", "Lund", "yesterday", "."]))
    before = labelled(doc)
    step = nlp.get_pipe("crf_smooth")
    [likely] = step._probabilities([doc])
    assert labelled(doc) == before
    assert likely[1, 2, "PER"] > 0.5 > likely.get((1, 2, "LOC"), 0.0)
    assert all(0.0 <= p <= 1.0 + 1e-6 for p in likely.values())


def test_after_a_component_of_this_package(data):
    nlp = pipeline(trained("crf_ner", data), scores="probabilities", strength=2.0, price=5.0)
    doc = nlp(Doc(nlp.vocab, words=["Mr", "Lund", "spoke", ".", "Mr", "Lund", "spoke", "and", "Lund"]))
    assert labelled(doc) == [("Lund", "PER")] * 3


@pytest.mark.parametrize("scores, component", [("beam", "crf_ner"), ("probabilities", "ner"), ("beam", "nothing")])
def test_components_that_do_not_fit(scores, component):
    nlp = spacy.blank("en")
    for name in ("ner", "crf_ner"):
        nlp.add_pipe(name)
    nlp.add_pipe("crf_smooth", config={"component": component, "smoothing": {**SMOOTH, "scores": scores}})
    doc = make(nlp, "Lund and Lund", (0, 1, "PER"))
    with pytest.raises(ValueError, match=f"CRF710.*{component}"):
        nlp.get_pipe("crf_smooth")(doc)


@pytest.mark.parametrize(
    "settings",
    [
        {"scores": "votes"},
        {"price": 0.0},
        {"strength": -1.0},
        {"strength": {"PER": "much"}},
        {"cliques": {"words": 3}},
        {"cliques": {"words": RepeatedWords(edges="group", associative=True)}},
        {"inference": "GraphCut"},
    ],
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=f"CRF020.*{next(iter(settings))}"):
        Smoothing(**settings)
    with pytest.raises(ValueError, match=r"CRF020.*smoothing"):
        spacy.blank("en").add_pipe("crf_smooth", config={"smoothing": {"@misc": "spacy_crf_lab.MeanField.v1"}})


def test_strengths_of_every_label_are_the_same_after_loading(tmp_path):
    table = dict.fromkeys(filter(None, test_tables_by_label.HOSTILE), 0.5)
    nlp = pipeline(strength=in_config(table))
    for number in range(3):  # spaCy writes some characters twice at each save
        assert nlp.get_pipe("crf_smooth").smoothing.strength == table
        nlp.to_disk(tmp_path / f"{number}")
        nlp = spacy.load(tmp_path / f"{number}")
