"""Components whose tokens are tied: from clique templates to what is written."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import spacy
from scipy.optimize import minimize
from spacy.attrs import IDS
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from typer.testing import CliRunner

import spacy_crf.cli  # noqa: F401
from spacy_crf.explain.comparison import effects
from spacy_crf.features import doc_batch
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.features.gazetteers import Gazetteer
from spacy_crf.kernels.hashing import ABSENT
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf.report.suspects import judged_by
from spacy_crf_lab.ties import templates
from spacy_crf_lab.ties.decoding import bounds
from spacy_crf_lab.ties.factor_graph import BoundedLBFGS
from spacy_crf_lab.ties.features import TieFeatureSet, TieValues, tie_reader
from spacy_crf_lab.ties.groups import ATTRIBUTES, RepeatedWords
from tests.shards import test_shards
from tests.util import ner_examples

from .util import for_rows, registered

WORDS = ["Zorbel", "Quint", "Marla", "Tovin", "Pexa", "Lund"]
EMISSIONS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]},
}
TREE = {"@misc": "spacy_crf_lab.JunctionTree.v1"}
REPEATS = {"@misc": "spacy_crf_lab.RepeatedWords.v1", "features": ["bias", "sent_distance"]}


def graph(cliques=None, **settings):
    """The config of a model."""
    cliques = {"repeats": REPEATS} if cliques is None else cliques
    return {"@architectures": "spacy_crf_lab.FactorGraph.v1", "emissions": EMISSIONS, "cliques": cliques} | settings


def make_doc(vocab, sentences):
    words = [word for sentence in sentences for word in sentence.split()]
    starts = [n == 0 for sentence in sentences for n in range(len(sentence.split()))]
    return Doc(vocab, words=words, sent_starts=starts)


def name_docs(vocab, n, seed=0):
    """Names are told from places where they are first mentioned, and only there."""
    rng = random.Random(seed)
    for _ in range(n):
        word, label = rng.choice(WORDS), rng.choice(["PER", "LOC"])
        first = f"Mr {word} spoke ." if label == "PER" else f"in {word} yesterday ."
        doc = make_doc(vocab, [first, f"and {word} again ."])
        doc.ents = [Span(doc, 1, 2, label=label), Span(doc, 5, 6, label=label)]
        yield doc


def examples(vocab, docs):
    return [
        Example(Doc(vocab, words=[t.text for t in doc], sent_starts=[t.is_sent_start for t in doc]), doc)
        for doc in docs
    ]


def trained(model, factory="crf_ner", steps=3, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={"model": model, **config})
    data = examples(nlp.vocab, name_docs(nlp.vocab, 40))
    nlp.initialize(lambda: data)
    optimizer = LBFGS(l2=0.05)
    for _ in range(steps):
        nlp.update(data, sgd=optimizer)
    return nlp


@pytest.fixture(scope="module")
def nlp():
    """Do not change."""
    return trained(graph())


@pytest.fixture(scope="module")
def unseen(nlp):
    return examples(nlp.vocab, name_docs(nlp.vocab, 30, seed=1))


def f1(nlp, data):
    return nlp.evaluate(data)["ents_f"]


def test_what_one_sentence_says_is_known_to_others(nlp, unseen):
    chain = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS}
    assert f1(nlp, unseen) == 1.0
    assert f1(trained(chain), unseen) < 0.9


def test_optimizers_of_thinc_train_ties_too(unseen):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": graph()})
    data = examples(nlp.vocab, name_docs(nlp.vocab, 40))
    nlp.initialize(lambda: data)
    for _ in range(12):
        for begin in range(0, 40, 8):
            nlp.update(data[begin : begin + 8])
    assert f1(nlp, unseen) == 1.0


def test_saved_models_say_the_same(nlp, unseen, tmp_path):
    doc = unseen[0].predicted
    expected = nlp.get_pipe("crf_ner").marginals(doc)[0]
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    np.testing.assert_array_equal(loaded.get_pipe("crf_ner").marginals(doc)[0], expected)
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"model": graph({"others": REPEATS})})
    with pytest.raises(ValueError, match=r"CRF510.*cliques"):
        other.from_bytes(nlp.to_bytes())


def test_processes_say_the_same(nlp, unseen):
    docs = [example.predicted for example in unseen[:6]]
    here = [[(ent.start, ent.label_) for ent in doc.ents] for doc in nlp.pipe(doc.copy() for doc in docs)]
    there = nlp.pipe([doc.copy() for doc in docs], n_process=2, batch_size=2)
    assert [[(ent.start, ent.label_) for ent in doc.ents] for doc in there] == here


def test_docs_without_ties_are_those_of_the_chain(nlp):
    """The same weights in both, and no word that is there twice."""
    pipe = nlp.get_pipe("crf_ner")
    other = trained({"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS}, steps=1)
    chain = other.get_pipe("crf_ner")
    emissions = chain.model.get_ref("emissions")
    emissions.set_param("states", pipe.model.get_ref("emissions").get_param("states"))
    for name in ("transitions", "first", "last"):
        chain.model.set_param(name, pipe.model.get_param(name))
    doc = make_doc(nlp.vocab, ["Mr Marla spoke .", "and Quint again ."])
    for ask in (lambda p: p.marginals(doc)[0], lambda p: [prob for _, prob in p.span_probabilities(doc, 0.0)]):
        np.testing.assert_array_equal(ask(pipe), ask(chain))
    empty = Doc(nlp.vocab)
    assert pipe.marginals(empty)[0].shape[0] == 0
    assert len(pipe(empty)) == 0


def test_docs_are_read_once(nlp, monkeypatch):
    """What ties ask of words is known from the words before; reading each Doc again took as long as a third of its prediction."""
    pipe, read = nlp.get_pipe("crf_ner"), []
    for module in (doc_batch, templates):
        monkeypatch.setattr(
            module, "read_attributes", lambda *args, of=module.read_attributes: read.append(args) or of(*args)
        )
    for sentences in (["Mr Marla spoke .", "and Quint again ."], ["Mr Marla spoke .", "and Marla again ."]):
        read.clear()
        pipe.predict([make_doc(nlp.vocab, sentences)])
        assert len(read) == 1


@pytest.mark.parametrize("attr", [*ATTRIBUTES])
def test_templates_read_what_tokens_have(attr, monkeypatch):
    """Also with a new table of words, and as a copy."""
    monkeypatch.setattr(templates, "_MOST_WORDS", 3)
    vocab = spacy.blank("en").vocab
    of_tokens = ["pos", "ent_type"]
    repeats = RepeatedWords(
        attr, only=templates.FLAGS, features=["shape[0]", *(f"{name}[0]|bias" for name in of_tokens)]
    )
    names = [attr.lower(), *templates.FLAGS, "shape", *of_tokens]
    for words in (["Lund", "lund", "(", "€", "12"], ["of", "NASA", "http://a.org", "\n", "“"]):
        doc = Doc(vocab, words=words, pos=["X", "NUM", "", "X", ""], lemmas=["a", "a", "b", "c", ""])
        doc[1].norm_ = "else"
        doc.ents = [Span(doc, 1, 2, label="X")]
        known = doc.to_array([IDS[name.upper()] for name in names])
        for each in (repeats, copy.deepcopy(repeats)):
            np.testing.assert_array_equal(np.stack(each.read(DocBatch([doc]), names), axis=1), known)


def test_annotation_that_is_there_speaks_along_the_ties(nlp):
    pipe = nlp.get_pipe("crf_ner")
    doc = make_doc(nlp.vocab, ["said Lund quietly .", "and Lund again ."])
    doc.set_ents([Span(doc, 1, 2, label="LOC")], default="missing")
    assert [ent.label_ for ent in pipe(doc.copy()).ents] == ["LOC", "LOC"]
    doc.set_ents([Span(doc, 1, 2, label="PER")], default="missing")
    assert [ent.label_ for ent in pipe(doc.copy()).ents] == ["PER", "PER"]


@pytest.mark.parametrize("settings", [{"confidence": True}, {"min_prob": 0.5}, {"decode": "posterior"}])
def test_settings_of_prediction(settings, unseen):
    nlp = trained(graph(), steps=2, **settings)
    doc = nlp.get_pipe("crf_ner")(unseen[0].predicted.copy())
    assert [(ent.start, ent.label_) for ent in doc.ents] == [(e.start, e.label_) for e in unseen[0].reference.ents]
    if "confidence" in settings:
        assert all(0.5 < ent._.crf_prob <= 1.0 for ent in doc.ents)


def test_rules_hold_beside_ties(unseen):
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "PER", "n": 1}]}
    nlp = trained(graph(), steps=2, constraints=rules)
    docs = [nlp.get_pipe("crf_ner")(example.predicted.copy()) for example in unseen]
    counts = [sum(ent.label_ == "PER" for ent in doc.ents) for doc in docs]
    assert max(counts) == 1


# Rules beside ties, against the list of all labellings that a junction tree gives without rules

TIED_WORDS, TIED_STARTS = ["a", "b", "a", "c", "a"], [1, 0, 1, 0, 0]
_FORBIDDEN = float("inf")
TIED_RULES = {  # what each takes off a labelling of these words
    "cannot bind": ([{"rule": "at_most", "label": "X", "n": 50}], lambda tags: 0.0),
    "forbid_pair": (
        [{"rule": "forbid_pair", "labels": ["X", "Y"]}],
        lambda tags: _FORBIDDEN if _follows(tags, "X", "Y") else 0.0,
    ),
    "soft mask": (
        [{"rule": "forbid_pair", "labels": ["X", "Y"], "weight": 1.0}],
        lambda tags: 1.0 * _follows(tags, "X", "Y"),
    ),
    "never_on": (
        [{"rule": "never_on", "label": "Z", "phrases": ["a"]}],
        lambda tags: _FORBIDDEN if "Z" in (tags[0], tags[2], tags[4]) else 0.0,
    ),
    "at_most": ([{"rule": "at_most", "label": "X", "n": 1}], lambda tags: _FORBIDDEN if tags.count("X") > 1 else 0.0),
    "per sentence": (
        [{"rule": "at_most", "label": "Z", "n": 1, "per": "sentence"}],
        lambda tags: _FORBIDDEN if max(tags[:2].count("Z"), tags[2:].count("Z")) > 1 else 0.0,
    ),
    "together": (
        [
            {"rule": "at_most", "label": "X", "n": 1},
            {"rule": "forbid_pair", "labels": ["Y", "Z"]},
            {"rule": "at_least", "label": "Z", "n": 2},
        ],
        lambda tags: _FORBIDDEN if tags.count("X") > 1 or _follows(tags, "Y", "Z") or tags.count("Z") < 2 else 0.0,
    ),
    "soft": (
        [{"rule": "at_most", "label": "X", "n": 1, "weight": 1.5}],
        lambda tags: 1.5 * max(0, tags.count("X") - 1),
    ),
    "one yields": (
        [{"rule": "at_least", "label": "Z", "n": 9}, {"rule": "exactly", "label": "X", "n": 1}],
        lambda tags: _FORBIDDEN if tags.count("X") != 1 else 0.0,
    ),
}


def _follows(tags, first, second):
    return sum(tags[i] == first and tags[i + 1] == second for i in (0, 2, 3))


def tied_tagger(rules=None, inference=TREE, **settings):
    """A tagger with random weights whose equal words are all tied, also those of one sentence."""
    nlp = spacy.blank("en")
    cliques = {"words": {"@misc": "spacy_crf_lab.RepeatedWords.v1", "only": None, "edges": "all"}}
    config = {"model": graph(cliques, inference=inference, training_inference=TREE), **settings}
    if rules is not None:
        config["constraints"] = {"@misc": "spacy_crf.constraints.v1", "rules": rules}
    pipe, data = nlp.add_pipe("crf_tagger", config=config), []
    for words, tags in (("a b a b", "X Y Z X"), ("c c a b", "Z Y X Y")):
        doc = make_doc(nlp.vocab, [words])
        data.append(Example(doc.copy(), doc))
        for token, tag in zip(doc, tags.split()):
            token.tag_ = tag
    nlp.initialize(lambda: data)
    rng = np.random.default_rng(0)
    for node in pipe.model.walk():
        for name in node.param_names:
            if node.has_param(name):
                node.set_param(name, rng.normal(size=node.get_param(name).shape).astype("f"))
    pipe.model.get_ref("emissions").attrs["features"].clear_scores()
    return pipe, Doc(nlp.vocab, words=TIED_WORDS, sent_starts=TIED_STARTS)


@pytest.fixture(scope="module")
def all_labellings():
    """Probabilities and tags, best first, and the tags that are best for the chains."""
    pipe, doc = tied_tagger()
    found = pipe.n_best(doc, 3**5)
    assert len(found) == 3**5
    return np.array([p for p, _ in found]), [[span.label_ for span in spans] for _, spans in found]


@pytest.mark.parametrize("name", TIED_RULES)
def test_junction_trees_are_exact_under_rules(name, all_labellings, caplog):
    """All were asked of chains with the exact pairs of neighbours, also a rule that no labelling breaks."""
    rules, cost = TIED_RULES[name]
    probabilities, tags = all_labellings
    known = probabilities * np.exp([-cost(labelling) for labelling in tags])
    known /= known.sum()
    pipe, doc = tied_tagger(rules)
    assert [token.tag_ for token in pipe(doc.copy())] == tags[known.argmax()]
    expected = [[sum(known[[t[i] == label for t in tags]]) for label in pipe.labels] for i in range(len(doc))]
    np.testing.assert_allclose(pipe.marginals(doc)[0], expected, atol=1e-9)
    found = pipe.n_best(doc, 5)
    np.testing.assert_allclose([p for p, _ in found], np.sort(known)[::-1][:5])
    for p, spans in found[:2]:
        assert pipe.log_probability(doc, spans) == pytest.approx(np.log(p))
    drawn = [[span.label_ for span in spans] for spans in pipe.sample(doc, 20, 0)]
    assert all(known[tags.index(labelling)] > 0.0 for labelling in drawn)
    for span, p in pipe.span_probabilities(doc, 0.01):
        assert p == pytest.approx(expected[span.start][pipe.labels.index(span.label_)])
    assert "CRFW607" not in caplog.text


@pytest.mark.parametrize(
    "inference",
    [
        {"@misc": "spacy_crf_lab.BeliefPropagation.v1", "max_product": True},
        {"@misc": "spacy_crf_lab.Gibbs.v1"},
        {"@misc": "spacy_crf_lab.MeanField.v1"},
        {"@misc": "spacy_crf_lab.LinearProgram.v1"},
        {"@misc": "spacy_crf_lab.DualDecomposition.v1"},
    ],
)
def test_rules_that_cannot_bind_leave_labellings_as_they_are(inference):
    found = [
        [token.tag_ for token in pipe(doc)]
        for pipe, doc in (tied_tagger(rules, inference) for rules in (None, TIED_RULES["cannot bind"][0]))
    ]
    assert found[0] == found[1]


def test_rules_that_no_clique_holds_are_told_of_once_for_a_doc(all_labellings, caplog):
    """The automaton of one needs larger tables, and a rule about texts has none: chains answer."""
    tags = all_labellings[1]
    at_most = [{"rule": "at_most", "label": tags[0][0], "n": 1}]
    pipe, doc = tied_tagger(at_most, {**TREE, "max_table": 30}, confidence=True)
    found = pipe(doc.copy())
    assert sum(token.tag_ == tags[0][0] for token in found) <= 1
    assert caplog.text.count("CRFW607") == 1 and "'a b a c a...'" in caplog.text
    untied = Doc(doc.vocab, words=["a", "b", "c"])
    assert sum(token.tag_ == tags[0][0] for token in pipe(untied)) <= 1
    assert caplog.text.count("CRFW607") == 1
    pipe, doc = tied_tagger([{"rule": "same_text_same_label"}])
    found = [token.tag_ for token in pipe(doc.copy())]
    assert found[0] == found[2] == found[4]


def test_rules_too_large_for_automata_that_cannot_bind_are_not_told_of(caplog):
    """Probabilities were said to ignore a rule that no labelling of the Doc breaks."""
    pipe, doc = tied_tagger([{"rule": "at_most", "label": "*", "n": 50}])
    pipe.marginals(doc)
    assert "CRFW603" not in caplog.text
    pipe.marginals(Doc(doc.vocab, words=["a"] * 120))
    assert caplog.text.count("CRFW603") == 1


def test_rules_say_what_they_change_beside_ties(all_labellings):
    """The best labelling without rules was that of chains without ties."""
    probabilities, tags = all_labellings
    rules, cost = TIED_RULES["at_most"]
    pipe, doc = tied_tagger(rules)
    before, changes = effects(pipe, doc)
    assert [span.label_ for span in before] == tags[0]
    kept = [p for p, labelling in zip(probabilities, tags) if cost(labelling) == 0.0]
    assert sum(price for _, _, price in changes) == pytest.approx(np.log(probabilities[0] / kept[0]))


def test_probabilities_of_a_doc(nlp, unseen):
    pipe, example = nlp.get_pipe("crf_ner"), unseen[0]
    doc = example.predicted
    marginals, tags = pipe.marginals(doc)
    assert marginals.shape == (8, len(tags))
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0)
    found = pipe.span_probabilities(doc, 0.5)
    assert sorted((span.start, span.label_) for span, _ in found) == [
        (e.start, e.label_) for e in example.reference.ents
    ]
    assert -0.5 < pipe.log_probability(doc, example.reference.ents) <= 0.0
    for ask in (lambda: pipe.n_best(doc, 2), lambda: pipe.sample(doc, 2, 0)):
        with pytest.raises(ValueError, match=r"CRF366.*BeliefPropagation.*These do: .*spacy_crf_lab.Jun"):
            ask()


@pytest.mark.parametrize(
    "inference",
    [
        {"@misc": "spacy_crf_lab.BeliefPropagation.v1"},
        {"@misc": "spacy_crf_lab.BeliefPropagation.v1", "max_product": True},
        {"@misc": "spacy_crf_lab.MeanField.v1"},
        {"@misc": "spacy_crf_lab.Gibbs.v1"},
        {"@misc": "spacy_crf_lab.LinearProgram.v1"},
        {"@misc": "spacy_crf_lab.DualDecomposition.v1"},
    ],
)
def test_the_best_labelling_is_that_of_prediction(inference):
    """`n_best` refused it where the inference lists no other labellings. Then reports and explanations by words failed."""
    pipe, doc = tied_tagger(inference=inference)
    [(probability, spans)] = pipe.n_best(doc, 1)
    assert probability == pytest.approx(np.exp(pipe.log_probability(doc, spans)))
    assert pipe.explain(doc, spans[0], kind="words").rows
    labels = [span.label_ for span in spans]
    assert labels == [token.tag_ for token in pipe(doc.copy())]
    annotated = doc.copy()
    for token, label in zip(annotated, [*labels[:-1], next(each for each in pipe.labels if each != labels[-1])]):
        token.tag_ = label
    [suspect] = judged_by(pipe, [Example(doc, annotated)])
    assert [mention.label for mention in suspect.best] == labels and np.isfinite(suspect.log_ratio)


def test_exact_answers_of_a_doc(nlp, unseen):
    """A graph with the same weights that is asked exactly: its two sentences are tied once, so that belief propagation is too."""
    pipe = nlp.get_pipe("crf_ner")
    exact = spacy.blank("en").add_pipe("crf_ner", config={"model": graph(inference=TREE)})
    exact.from_bytes(pipe.to_bytes())
    for example in unseen[:3]:
        doc, gold = example.predicted, list(example.reference.ents)
        np.testing.assert_allclose(exact.marginals(doc)[0], pipe.marginals(doc)[0], atol=1e-4)
        assert exact.log_probability(doc, gold) == pytest.approx(pipe.log_probability(doc, gold), abs=1e-4)
        found = exact.n_best(doc, 3)
        assert [(e.start, e.label_) for e in found[0][1]] == [(e.start, e.label_) for e in gold]
        for probability, spans in found:
            assert np.log(probability) == pytest.approx(exact.log_probability(doc, spans))
        lower, upper = bounds(exact, doc)
        assert lower == upper
        spans = {(span.start, span.end, span.label_): p for span, p in exact.span_probabilities(doc, 0.001)}
        n, counts = 400, dict.fromkeys(spans, 0)
        for drawn in exact.sample(doc, n, seed=1):
            for span in drawn:
                key = (span.start, span.end, span.label_)
                counts[key] = counts.get(key, 0) + 1
        for key, p in spans.items():
            assert counts[key] / n == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / n) + 0.01)
        below, above = bounds(pipe, doc)
        assert below - 1e-9 <= lower <= above + 1e-6 < below + 2.0
    single = make_doc(nlp.vocab, ["Mr Lund spoke ."])
    assert len(pipe.n_best(single, 2)) == 2 and len(pipe.sample(single, 2, 0)) == 2  # no ties, no graph
    lower, upper = bounds(pipe, single)
    assert lower == upper


@pytest.mark.parametrize(
    "inference",
    [
        {"inference": TREE},
        {"inference": {"@misc": "spacy_crf_lab.BeliefPropagation.v1", "tree_reweighted": True}},
        {"inference": {"@misc": "spacy_crf_lab.MeanField.v1"}, "training_inference": TREE},
        {"inference": {"@misc": "spacy_crf_lab.BeliefPropagation.v1", "max_product": True}},
    ],
    ids=["tree", "reweighted", "mean field", "max product"],
)
def test_training_by_other_sums(inference, unseen):
    nlp = trained(graph(**inference), steps=2)
    assert f1(nlp, unseen[:10]) == 1.0
    assert nlp.get_pipe("crf_ner").marginals(unseen[0].predicted)[0].sum() == pytest.approx(8.0)


@pytest.mark.parametrize("step", ["gibbs", "metropolis"])
def test_walks_answer_what_is_asked_of_a_doc(nlp, unseen, step):
    """The same weights as those of belief propagation, which is exact here."""
    pipe, walks = nlp.get_pipe("crf_ner"), {"@misc": "spacy_crf_lab.Gibbs.v1", "step": step}
    config = {"model": graph(inference=walks), "loss": {"@losses": "spacy_crf_lab.SentenceLikelihood.v1"}}
    sampled = spacy.blank("en").add_pipe("crf_ner", config=config)
    sampled.from_bytes(pipe.to_bytes())
    for example in unseen[:3]:
        doc, gold = example.predicted, [(e.start, e.label_) for e in example.reference.ents]
        assert [(e.start, e.label_) for e in sampled(doc.copy()).ents] == gold
        np.testing.assert_allclose(sampled.marginals(doc)[0], pipe.marginals(doc)[0], atol=0.15)
        assert [(s.start, s.label_) for s, _ in sampled.span_probabilities(doc, 0.5)] == gold
        drawn = [sorted((s.start, s.label_) for s in spans) for spans in sampled.sample(doc, 20, seed=1)]
        assert sum(spans == gold for spans in drawn) > 10
        assert sampled.log_probability(doc, example.reference.ents) == pytest.approx(
            pipe.log_probability(doc, example.reference.ents), abs=0.1
        )
        with pytest.raises(ValueError, match=r"CRF366.*Gibbs.*beside the best.*JunctionTree"):
            sampled.n_best(doc, 2)


def test_taggers_have_ties():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger", config={"model": graph({"repeats": {**REPEATS, "only": None, "attr": "LOWER"}})})
    data = []
    for doc in name_docs(nlp.vocab, 30):
        words = [token.text for token in doc]
        tags = [doc.ents[0].label_ if word[0].isupper() and word != "Mr" else "X" for word in words]
        reference = Doc(nlp.vocab, words=words, tags=tags, sent_starts=[t.is_sent_start for t in doc])
        data += examples(nlp.vocab, [reference])
    nlp.initialize(lambda: data)
    optimizer = LBFGS(l2=0.05)
    for _ in range(3):
        nlp.update(data, sgd=optimizer)
    doc = pipe(make_doc(nlp.vocab, ["Mr Lund spoke .", "and Lund again ."]))
    assert [token.tag_ for token in doc] == ["X", "PER", "X", "X", "X", "PER", "X", "X"]
    # a token that takes no part is tied to nothing
    doc = make_doc(nlp.vocab, ["Mr Lund spoke .", "and Lund again .", "in Lund yesterday ."])
    doc.spans["crf_blocked"] = [Span(doc, 1, 2)]
    assert [pipe(doc)[n].tag_ for n in (1, 5, 9)] == ["", "LOC", "LOC"]


@pytest.mark.parametrize("loss", ["SentenceLikelihood", "BesagPseudoLikelihood", "Piecewise"])
def test_what_needs_no_inference_trains_ties(loss, unseen):
    nlp = trained(graph(), loss={"@losses": registered(loss)})
    assert f1(nlp, unseen) > (0.95 if loss == "Piecewise" else 0.999)


@pytest.mark.parametrize("loss", ["Perceptron", "MaxMargin"])
@pytest.mark.parametrize(
    "inference",
    [
        {"@misc": "spacy_crf_lab.BeliefPropagation.v1", "max_product": True},
        {"@misc": "spacy_crf_lab.Gibbs.v1"},
        {"@misc": "spacy_crf_lab.DualDecomposition.v1"},
    ],
    ids=["max product", "gibbs", "dual decomposition"],
)
def test_best_labellings_train_ties(loss, inference, unseen):
    """By thinc's Adam, as the losses are not smooth."""
    nlp = spacy.blank("en")
    config = {"model": graph(inference=inference), "loss": {"@losses": registered(loss)}}
    nlp.add_pipe("crf_ner", config=config)
    data = examples(nlp.vocab, name_docs(nlp.vocab, 40))
    nlp.initialize(lambda: data)
    for _ in range(8):
        for begin in range(0, 40, 8):
            nlp.update(data[begin : begin + 8])
    assert f1(nlp, unseen) > 0.95


@pytest.mark.parametrize("start, persistent, least", [("chain", True, 0.99), ("gold", False, 0.85)])
def test_samples_train_ties(start, persistent, least, unseen):
    """Another inference predicts. Contrastive divergence learns less of the ties at a time."""
    nlp = spacy.blank("en")
    loss = {"@losses": "spacy_crf_lab.SampledLikelihood.v1", "start": start, "persistent": persistent, "samples": 5}
    nlp.add_pipe(
        "crf_ner", config={"model": graph(training_inference={"@misc": "spacy_crf_lab.Gibbs.v1"}), "loss": loss}
    )
    data = examples(nlp.vocab, name_docs(nlp.vocab, 40))
    nlp.initialize(lambda: data)
    for _ in range(15):
        for begin in range(0, 40, 8):
            nlp.update(data[begin : begin + 8])
    assert f1(nlp, unseen) > least


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_samples_train_without_ties_too(factory):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={"loss": {"@losses": "spacy_crf_lab.SampledLikelihood.v1", "samples": 3}})
    data = examples(nlp.vocab, name_docs(nlp.vocab, 8))
    nlp.initialize(lambda: data)
    for _ in range(15):
        nlp.update(data)
    assert f1(nlp, data) > 0.6
    assert np.isfinite(nlp.update(data)[pipe.name])
    with pytest.raises(ValueError, match=r"CRF210.*LBFGS.*SampledLikelihood"):
        nlp.update(data, sgd=LBFGS())


def test_without_a_chain_the_scheme_still_holds(unseen):
    nlp = trained(graph(chain=False))
    model = nlp.get_pipe("crf_ner").model
    assert not model.get_param("transitions").any() and model.get_param("tables").any()
    assert f1(nlp, unseen) == 1.0


def test_labels_may_be_added(nlp, unseen):
    grown = spacy.blank("en")
    pipe = grown.add_pipe("crf_ner", config={"model": graph()})
    grown.from_bytes(nlp.to_bytes())
    before = pipe.span_probabilities(unseen[0].predicted, 0.5)
    pipe.add_label("ORG")
    assert pipe.model.get_param("tables").shape[1:] == (4, 4)
    after = pipe.span_probabilities(unseen[0].predicted, 0.3)
    assert [(s.start, s.label_) for s, _ in before] == [(s.start, s.label_) for s, _ in after]


def test_explanations_show_the_ties_that_spoke(nlp):
    pipe = nlp.get_pipe("crf_ner")
    doc = make_doc(nlp.vocab, ["in Lund yesterday .", "and Lund again ."])
    span = Span(doc, 5, 6, label="LOC")
    probability = {s.start: p for s, p in pipe.span_probabilities(doc, 0.5)}[5]
    for kind in ("contrast", "log_odds", "leave_out"):
        found = pipe.explain(doc, span, kind=kind)
        assert found.rows[0].feature == "repeats: bias, repeats: sent_distance=1: 'Lund' (1)", kind
        assert found.rows[0].contribution > 2.0
        assert found.totals["probability"] == pytest.approx(probability, abs=1e-3)
    found = pipe.explain(doc, span, kind="contrast")
    assert sum(row.contribution for row in found.rows) == pytest.approx(found.target)
    assert pipe.explain(doc, span, kind="words").rows[0].feature == "Lund"
    single = make_doc(nlp.vocab, ["in Lund yesterday ."])
    assert not [
        row
        for row in pipe.explain(single, Span(single, 1, 2, label="LOC"), kind="contrast").rows
        if "repeats" in row.feature
    ]
    with pytest.raises(ValueError, match=r"CRF840.*tie"):
        pipe.explain(doc, span, kind="texts", corpus=[], l2=0.1)


def test_weights_of_ties_have_labels(nlp):
    pipe = nlp.get_pipe("crf_ner")
    rows = {(row.feature, row.tags): row for row in pipe.weights()}
    row = rows["repeats: bias", ("PER", "PER")]
    assert row.weight > 0.5 and row.count == 40 and row.template == "repeats: bias"
    assert ("repeats: sent_distance=1", ("PER", "LOC")) in rows or ("repeats: sent_distance=1", ("LOC", "PER")) in rows
    assert all("PER" in row.tags for row in pipe.weights("PER") if row.feature.startswith("repeats"))
    assert "PER → PER\trepeats: bias\t" in pipe.dump()


@pytest.mark.parametrize("inference, told", [(None, True), (TREE, False)])
def test_calibration_says_where_probabilities_are_approximate(inference, told, nlp, unseen, tmp_path):
    other = spacy.blank("en")
    pipe = other.add_pipe("crf_ner", config={"model": graph(**({"inference": inference} if inference else {}))})
    pipe.from_bytes(nlp.get_pipe("crf_ner").to_bytes())
    other.to_disk(tmp_path / "model")
    DocBin(docs=[example.reference for example in unseen[:5]]).to_disk(tmp_path / "dev.spacy")
    result = CliRunner().invoke(
        app, ["crf", "evaluate", "--calibration", str(tmp_path / "model"), str(tmp_path / "dev.spacy")]
    )
    assert result.exit_code == 0, result.output
    assert ("approximate" in result.output) == told


# What does not go together


@pytest.mark.parametrize(
    "config, code",
    [
        ({"loss": {"@losses": "spacy_crf_lab.PseudoLikelihood.v1"}}, "CRF361.*LogLikelihood"),
        ({"model": graph(inference={"@misc": "spacy_crf_lab.MeanField.v1"})}, "CRF361.*Piecewise.*Perceptron.*BeliefPr.*Junc"),
        ({"model": graph(inference={"@misc": "spacy_crf_lab.Gibbs.v1"})}, "CRF361.*Gibbs.*Perceptron.*JunctionTree"),
        ({"loss": {"@losses": "spacy_crf_lab.SampledLikelihood.v1"}}, "CRF361.*SampledLikelihood.*Gibbs.*JunctionTree"),
        ({"model": graph(inference={**TREE, "drop": "mutual_information"})}, "CRF361.*SentenceLikelihood.*Perceptron"),
        ({"model": graph(training_inference=3)}, "CRF020.*training_inference"),
        ({"optimizer": {"@optimizers": "spacy_crf.AveragedPerceptron.v1"}, "loss": {"@losses": "spacy_crf.Perceptron.v1"}},
         "CRF365.*LBFGS"),
        ({"constraints": {"@misc": "spacy_crf.constraints.v1", "in_training": True, "rules": []}}, "CRF362"),
        ({"model": graph({"repeats": {"@misc": "spacy_crf.features.v1", "templates": ["bias"]}})}, "CRF020.*repeats"),
        ({"model": graph(inference={"@misc": "spacy_crf.features.v1", "templates": ["bias"]})}, "CRF020.*inference"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_when_the_config_is_read(config, code):
    with pytest.raises(ValueError, match=code):
        spacy.blank("en").add_pipe("crf_ner", config={"model": graph(), **config})


GROUPS = {**REPEATS, "associative": True, "edges": "group", "features": ["bias"]}


def of_groups(inference="GraphCut", loss="MaxMargin", **settings):
    """The config of a component that rewards mentions with one label."""
    model = graph({"repeats": GROUPS}, inference={"@misc": registered(inference)}, chain=False)
    return {"scheme": "IO", "model": model, "loss": {"@losses": registered(loss)}, **settings}


@pytest.mark.parametrize(
    "config, code",
    [
        ({"model": graph({"repeats": GROUPS})}, "CRF351.*BeliefPropagation.*cliques.repeats.*GraphCut"),
        ({"model": graph({"repeats": {**GROUPS, "associative": False}})}, 'CRF020.*edges.*"group"'),
        (of_groups(loss="SentenceLikelihood"), "CRF353.*SentenceLikelihood.*MaxMargin"),
        (of_groups(loss="LogLikelihood"), "CRF361.*GraphCut.*Perceptron"),
        ({"model": graph({"repeats": {**REPEATS, "associative": True}}),
          "optimizer": {"@optimizers": "spacy_crf_lab.ConjugateGradient.v1"}}, "CRF347.*associative.*BoundedLBFGS"),
        (of_groups(scheme="BILUO"), "CRF354.*DualDecomposition.*chain = false"),
    ],
)  # fmt: skip
def test_rewards_and_groups_that_do_not_fit_are_refused(config, code):
    """Before training; the last one when the labels are known."""
    nlp = spacy.blank("en")
    with pytest.raises(ValueError, match=code):
        nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf.LogLikelihood.v1"}, **config})
        nlp.initialize(lambda: examples(nlp.vocab, name_docs(nlp.vocab, 2)))


def grouped_docs(vocab, n, seed=0):
    """Three mentions of a name, of which the first one shows its label."""
    for doc in name_docs(vocab, n, seed):
        sentences = [sentence.text for sentence in doc.sents]
        found = make_doc(vocab, [*sentences, f"the {doc[1].text} was"])
        found.ents = [Span(found, i, i + 1, label=doc.ents[0].label_) for i in (1, 5, 9)]
        yield found


@pytest.mark.parametrize(
    "inference, loss", [("GraphCut", "MaxMargin"), ("GraphCut", "Perceptron"), ("LinearProgram", "MaxMargin")]
)
def test_groups_learn_rewards(inference, loss, tmp_path):
    nlp = spacy.blank("en")
    crf = nlp.add_pipe("crf_ner", config=of_groups(inference, loss))
    data = examples(nlp.vocab, grouped_docs(nlp.vocab, 40))
    nlp.initialize(lambda: data)
    for _ in range(12):
        for begin in range(0, 40, 8):
            nlp.update(data[begin : begin + 8])
    unseen = examples(nlp.vocab, grouped_docs(nlp.vocab, 30, seed=1))
    assert f1(nlp, unseen) == 1.0
    tables = crf.model.get_param("tables")
    assert tables.min() == 0.0 and np.count_nonzero(tables) <= 3 and tables[0, 1, 1] > 0.1
    docs = [example.predicted for example in unseen[:4]]
    docs += [Doc(nlp.vocab), Doc(nlp.vocab, words=["Lund"]), make_doc(nlp.vocab, ["Mr Lund spoke .", "and Lund ."])]
    here = [[(ent.start, ent.label_) for ent in doc.ents] for doc in nlp.pipe(doc.copy() for doc in docs)]
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    there = loaded.pipe([doc.copy() for doc in docs], n_process=2, batch_size=3)
    assert [[(ent.start, ent.label_) for ent in doc.ents] for doc in there] == here
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(
            lambda _: [[(ent.start, ent.label_) for ent in nlp(d.copy()).ents] for d in docs], range(2)
        ):
            assert found == here
    np.testing.assert_allclose(crf.marginals(docs[0])[0].sum(axis=1), 1.0)
    assert crf.span_probabilities(docs[0], 0.01)
    assert any(
        row.feature.startswith("repeats: bias")
        for row in crf.explain(docs[0], unseen[0].reference.ents[1], kind="contrast").rows
    )


def test_rewards_are_those_of_the_constrained_optimum():
    """A place's second mention is none, so that a weight for two places would be negative without its bound."""
    nlp = spacy.blank("en")
    settings = {"inference": TREE, "chain": False}
    config = {"model": graph({"repeats": {**REPEATS, "associative": True}}, **settings),
              "loss": {"@losses": "spacy_crf.LogLikelihood.v1"}, "scheme": "IO"}  # fmt: skip
    crf = nlp.add_pipe("crf_ner", config=config)
    docs = list(name_docs(nlp.vocab, 12))
    for doc in docs:
        doc.ents = [ent for ent in doc.ents if ent.label_ == "PER" or ent.start == 1]
    data = examples(nlp.vocab, docs)
    nlp.initialize(lambda: data)
    optimizer = BoundedLBFGS(l2=0.02, iterations_per_step=300, tolerance=1e-7, delta=0.0)
    objective = crf.training.objective(optimizer, data)
    is_bounded = optimizer.bounded(objective, objective.weights())
    bounds = [(0.0 if bounded else None, None) for bounded in is_bounded]

    def penalized(weights):
        value, gradient = objective.evaluate(weights)
        return value + 0.02 * weights @ weights, gradient + 0.04 * weights

    known = minimize(penalized, objective.weights(), jac=True, method="L-BFGS-B", bounds=bounds)
    assert optimizer.step(objective, key="crf_ner") == pytest.approx(known.fun, rel=1e-5)
    rewards = objective.weights()[is_bounded]
    assert rewards.min() == 0.0 and rewards.max() > 0.1
    np.testing.assert_allclose(rewards, known.x[is_bounded], atol=1e-2)


def test_segments_take_no_ties():
    with pytest.raises(ValueError, match="CRF020"):
        spacy.blank("en").add_pipe("semicrf_ner", config={"model": graph()})


def test_optimizers_that_walk_are_refused_where_they_are_given(nlp, unseen):
    with pytest.raises(ValueError, match="CRF365"):
        trained_by(AveragedPerceptron(), nlp, unseen)


def trained_by(optimizer, nlp, data):
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"model": graph(), "loss": {"@losses": "spacy_crf.Perceptron.v1"}})
    other.initialize(lambda: data)
    other.update(data, sgd=optimizer)


# Dependency arcs


def tree_doc(vocab, n=2, **annotation):
    """Agreement: what a verb is says what its subject is, wherever that stands."""
    verb, label = [("run", "PL"), ("runs", "SG")][n % 2]
    words = ["sheep", *["there"] * (n % 3), verb, "."]
    heads = [len(words) - 2] * len(words)
    deps = ["nsubj", *["advmod"] * (n % 3), "ROOT", "punct"]
    tags = [label, *["X"] * (n % 3), label, "X"]
    return Doc(
        vocab, words=words, **({"heads": heads, "deps": deps} if annotation.get("heads", True) else {}), tags=tags
    )


def trained_on_trees(**settings):
    nlp = spacy.blank("en")
    arcs = {"@misc": "spacy_crf_lab.DependencyArcs.v1", "features": ["dep[0]", "dep[0]|head_shape"]}
    emissions = {**EMISSIONS, "features": {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[0]"]}}
    model = {**graph({"syntax": arcs}, **settings), "emissions": emissions}
    nlp.add_pipe("crf_tagger", config={"model": model, "overwrite": True})
    data = []
    for n in range(12):
        reference = tree_doc(nlp.vocab, n)
        predicted = reference.copy()
        for token in predicted:
            token.tag_ = ""
        data.append(Example(predicted, reference))
    nlp.initialize(lambda: data)
    optimizer = LBFGS(l2=0.02)
    for _ in range(3):
        nlp.update(data, sgd=optimizer)
    return nlp


@pytest.mark.parametrize("settings", [{}, {"chain": False, "inference": TREE}], ids=["chain and tree", "tree"])
def test_heads_speak_to_their_dependents(settings, tmp_path):
    nlp = trained_on_trees(**settings)
    pipe = nlp.get_pipe("crf_tagger")
    assert {"token.head", "token.dep"} <= set(pipe.requires())
    for n in (2, 3, 5, 11):  # with more between than a chain sees
        doc = tree_doc(nlp.vocab, n)
        expected = [token.tag_ for token in doc]
        assert [token.tag_ for token in pipe(doc)] == expected
    known = [text for _, _, _, text, _ in pipe.model.get_ref("cliques").attrs["known"]]
    assert "dep[0]=nsubj" in known and "dep[0]|head_shape=nsubj|xxxx" in known
    nlp.to_disk(tmp_path)
    assert spacy.load(tmp_path).get_pipe("crf_tagger")(tree_doc(nlp.vocab, 5))[0].tag_ == "SG"


def test_docs_without_heads_are_refused():
    nlp = trained_on_trees()
    with pytest.raises(ValueError, match=r"CRF367.*annotating_components"):
        nlp(tree_doc(nlp.vocab, 2, heads=False).text)
    assert len(nlp("")) == 0


# Repeated words


def pairs_of(template, *texts):
    nlp = spacy.blank("en")
    found = template.find(DocBatch([make_doc(nlp.vocab, text.split(" / ")) for text in texts]))
    return sorted(zip(found.source.tolist(), found.target.tolist()))


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [(0, 2), (2, 5)]),
        ({"edges": "all"}, [(0, 2), (0, 5), (2, 5)]),
        ({"edges": "hub"}, [(0, 2), (0, 5)]),
        ({"attr": "LOWER", "only": None}, [(0, 2), (1, 3), (2, 4), (4, 5)]),
        ({"only": ["is_title", "is_upper"], "attr": "LOWER"}, [(0, 2), (2, 5)]),
        ({"max_edges": 1}, []),
        ({"attr": "SHAPE", "only": "is_title"}, [(0, 2), (2, 5)]),
    ],
)
def test_equal_words_are_tied(settings, expected, caplog):
    template = RepeatedWords(**settings)
    assert pairs_of(template, "Ann met Ann / met ann Ann", "Ann") == expected
    assert ("CRFW040" in caplog.text) == ("max_edges" in settings)


@pytest.mark.parametrize("edges", ["next", "all"])
def test_equal_words_of_any_texts(edges):
    """Against looking at all pairs, in Docs of any length."""
    vocab, rng = spacy.blank("en").vocab, random.Random(3)
    for _ in range(20):
        docs = [Doc(vocab, words=rng.choices("ABcDeFGh", k=rng.randint(0, 9))) for _ in range(4)]
        found = RepeatedWords(edges=edges).find(DocBatch(docs))
        expected, begin = [], 0
        for doc in docs:
            for token in doc:
                later = [other.i for other in doc[token.i + 1 :] if other.text == token.text and token.is_title]
                later = later[:1] if edges == "next" else later
                expected += [(begin + token.i, begin + other) for other in later]
            begin += len(doc)
        assert sorted(zip(found.source.tolist(), found.target.tolist())) == expected


def test_words_of_two_docs_are_not_tied():
    assert pairs_of(RepeatedWords(), "Ann Bob", "Bob Ann Bob") == [(2, 4)]
    assert pairs_of(RepeatedWords(), "") == []


def test_a_word_everywhere_is_no_end_of_it(caplog):
    nlp = spacy.blank("en")
    docs = DocBatch([Doc(nlp.vocab, words=["Ann"] * 100_000)])
    assert len(RepeatedWords(edges="all").find(docs).source) == 0
    assert "'Ann'" in caplog.text and "1000" in caplog.text


def test_features_of_ties():
    nlp = spacy.blank("en")
    docs = DocBatch([make_doc(nlp.vocab, ["Ann x", "y Ann", *["z"] * 4, "Ann Ann"])])
    template = RepeatedWords(features=["bias", "sent_distance", "shape[0]|other_is_title", "suffix5[0]"])
    pairs = template.find(docs)
    read = TieValues(tie_reader(TieFeatureSet({"ties": template}), {}, with_names=True), docs)
    values = read.of(template, pairs)
    assert values[:, 0].tolist() == [0, 0, 0] and values[:, 1].tolist() == [1, 5, 0]
    assert len(np.unique(values[:, 2])) == 1
    assert (values[:, 3] == ABSENT).all()  # the word has no five letters
    spelled = [read.name(template, feature, pairs, 1) for feature in range(3)]
    assert spelled == ["bias", "sent_distance=5", "shape[0]|other_is_title=Xxx|1"]


def test_features_of_ties_that_ask_gazetteers():
    """At Ann alone the first name is in the list by itself; Lee is in it as part of a name, and so once."""
    people = Gazetteer([(("Ann",), "FIRST"), (("Ann", "Lee"), "FULL")])
    docs = DocBatch([make_doc(spacy.blank("en").vocab, ["Ann Bob", "so Ann Lee", "and Lee Bob"])])
    template = RepeatedWords(features=["in:people", "in:people[0]", "other_in:people", "in:people|bias"])
    pairs = template.find(docs)
    assert sorted(zip(*map(np.ndarray.tolist, pairs))) == [(0, 3), (1, 7), (4, 6)]
    read = TieValues(tie_reader(TieFeatureSet({"ties": template}), {"people": people}, with_names=True), docs)
    found = {}
    for example, row in enumerate(read.of(template, pairs).tolist()):
        says = [read.name(template, n, pairs, example) if v != ABSENT else None for n, v in enumerate(row)]
        found[docs[0][int(pairs.source[example])].text] = says
    assert found == {
        "Ann": ["in:people=both", "in:people[0]=U-FIRST", "other_in:people=B-FULL", "in:people|bias=both"],
        "Bob": [None] * 4,
        "Lee": ["in:people=one", "in:people[0]=L-FULL", None, "in:people|bias=one"],
    }


def names_in_a_list(tmp_path, features=("in:names",), emissions=EMISSIONS, **settings):
    """Names that are in a list are names at the second place too, others are not."""
    path = tmp_path / "names.txt"
    path.write_text("\n".join(WORDS[::2]), encoding="utf8")
    nlp, docs = spacy.blank("en"), []
    cliques = {"repeats": {**REPEATS, "features": [*features]}}
    nlp.add_pipe("crf_ner", config={"model": graph(cliques, emissions=emissions), **settings})
    for number, word in enumerate(WORDS[:4] * 10):
        doc = make_doc(nlp.vocab, [f"Mr {word} spoke .", f"and {word} again ."])
        doc.ents = [Span(doc, 1, 2, label="PER"), *([Span(doc, 5, 6, label="PER")] if number % 2 == 0 else [])]
        docs.append(doc)
    nlp.config["initialize"]["components"]["crf_ner"] = {"gazetteers": {"names": str(path)}}
    return nlp, examples(nlp.vocab, docs)


def places(docs):
    return [[ent.start for ent in doc.ents] for doc in docs]


def test_gazetteers_of_ties_go_with_the_model(tmp_path):
    nlp, data = names_in_a_list(tmp_path)
    nlp.initialize(lambda: data)
    optimizer = LBFGS(l2=0.05)
    for _ in range(3):
        nlp.update(data, sgd=optimizer)
    (tmp_path / "names.txt").unlink()
    unseen = [make_doc(nlp.vocab, [f"Mr {word} spoke .", f"and {word} again ."]) for word in WORDS[4:]]
    nlp.to_disk(tmp_path / "model")
    loaded = spacy.load(tmp_path / "model")
    for each in (nlp, loaded):
        assert places(each.pipe([doc.copy() for doc in unseen])) == [[1, 5], [1]]
    assert places(loaded.pipe([doc.copy() for doc in unseen], n_process=2)) == [[1, 5], [1]]
    pipe = loaded.get_pipe("crf_ner")
    assert (
        pipe.explain(unseen[0], Span(unseen[0], 5, 6, label="PER"), kind="contrast")
        .rows[0]
        .feature.startswith("repeats: in:names=both: 'Pexa' (1)")
    )
    assert {row.feature for row in pipe.weights() if row.feature.startswith("repeats")} == {"repeats: in:names=both"}
    loaded.initialize(lambda: data)  # with the list of the model, whose file is gone
    assert len(pipe.model.get_ref("cliques").attrs["features"].gazetteers["names"].entries) == 3


def test_tokens_and_ties_share_a_gazetteer(tmp_path):
    """It is read once, and saved once."""
    emissions = {**EMISSIONS, "features": {**EMISSIONS["features"], "templates": ["lower[-1..1]", "in:names[0]"]}}
    nlp, data = names_in_a_list(tmp_path, emissions=emissions, second_stage={"folds": 2})
    nlp.initialize(lambda: data)
    nlp.to_disk(tmp_path / "model")
    for each in (nlp, spacy.load(tmp_path / "model")):
        model = each.get_pipe("crf_ner").model
        of_tokens, of_ties = (model.get_ref(name).attrs["features"].gazetteers for name in ("emissions", "cliques"))
        assert of_tokens["names"] is of_ties["names"]


def test_gazetteers_of_ties_need_no_features_of_tokens(tmp_path):
    """Beside a neural network, and given from Python."""
    width = {"width": 8, "depth": 1, "embed_size": 50, "window_size": 1, "maxout_pieces": 2}
    tok2vec = {
        "@architectures": "spacy.HashEmbedCNN.v2",
        **width,
        "subword_features": False,
        "pretrained_vectors": None,
    }
    emissions = {"@architectures": "spacy_crf.Tok2VecEmissions.v1", "tok2vec": tok2vec}
    nlp, data = names_in_a_list(tmp_path, emissions=emissions)
    pipe, files = nlp.get_pipe("crf_ner"), {"names": tmp_path / "names.txt"}
    pipe.initialize(lambda: data, nlp=nlp, gazetteers=files)
    nlp.update(data, sgd=nlp.create_optimizer())
    assert [entry[3] for entry in pipe.model.get_ref("cliques").attrs["known"]] == ["in:names=both"]
    again, _ = names_in_a_list(tmp_path, emissions=emissions)
    again.from_bytes(nlp.to_bytes())
    doc = data[0].predicted
    np.testing.assert_array_equal(again.get_pipe("crf_ner").marginals(doc)[0], pipe.marginals(doc)[0])


def test_gazetteers_that_ties_miss_are_named(tmp_path):
    nlp, data = names_in_a_list(tmp_path, ["in:name"])
    with pytest.raises(ValueError, match=r"CRF944.*names"):
        nlp.initialize(lambda: data)
    nlp, data = names_in_a_list(tmp_path, ["in:name", "in:names"])
    with pytest.raises(ValueError, match=r"CRF106.*'name', which is not there.*there: names"):
        nlp.initialize(lambda: data)
    nlp, data = names_in_a_list(tmp_path)
    nlp.initialize(lambda: data)
    nlp.get_pipe("crf_ner").model.get_ref("cliques").attrs["features"].gazetteers.clear()
    again, _ = names_in_a_list(tmp_path)
    with pytest.raises(ValueError, match=r"CRF106.*'names', which is not there"):
        again.from_bytes(nlp.to_bytes())


@pytest.mark.parametrize(
    "settings",
    [
        {"attr": "orth"},
        {"only": "is_big"},
        {"edges": "none"},
        {"features": ["shape"]},
        {"features": ["other_colour"]},
        {"features": [3]},
        {"features": ["in:"]},
        {"features": ["in:names[1]"]},
        {"features": ["other_bias"]},
        {"features": ["sent_distance[0]"]},
        {"features": "bias"},
        {"symmetric": 1},
        {"max_edges": 0},
    ],
)
def test_settings_of_repeated_words_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        RepeatedWords(**settings)


# ------------------------------------------------------------------------------------------------------------- shards


def read_named(nlp):
    """Texts with words that are there twice, among others."""
    return iter([*ner_examples(nlp), *examples(nlp.vocab, name_docs(nlp.vocab, 6))])


globals().update(
    for_rows(
        "config, read, in_files",
        {"ties": ({"model": graph()}, read_named, False)},
        test_shards.test_what_is_not_counted_in_parts_or_held_by_files,
    )
)
