"""``spacy_crf_lab.LinkedTexts.v1``: labels of texts that link to each other."""

import itertools
import logging
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import spacy
import srsly
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline import training
from spacy_crf_lab.linked_corpus import LinkedCorpus
from spacy_crf_lab.linked_texts import predict_together
from spacy_crf_lab.links import pass_links
from spacy_crf_lab.ties.documents import CoCited, Collection, LinkedDocuments
from tests.pipeline.test_crf_textcat import CONFIG, WORDS
from tests.pipeline.test_crf_textcat import LBFGS as OWN

from .util import registered

EXACT = {"@misc": "spacy_crf_lab.JunctionTree.v1"}
LINKS = {"links": {"@misc": "spacy_crf_lab.LinkedDocuments.v1"}}
NOTHING = "the of some"


def model_of(cliques=LINKS, **settings):
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": WORDS}
    return {
        "@architectures": "spacy_crf_lab.LinkedTexts.v1",
        "emissions": emissions,
        "cliques": cliques,
        **settings,
    }


def blank(**settings):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_textcat", config={"model": model_of(**settings), "optimizer": OWN})
    return nlp


def make(nlp, text, name=None, links=None, group="all", label=None):
    doc = nlp.make_doc(text)
    doc._.crf_id, doc._.crf_links, doc._.crf_group = name, links, group
    doc.cats = {} if label is None else {label: 1.0}
    return doc


def citations(nlp, n, seed, *, homophily=0.9, group="all"):
    """Docs of two labels, of which words tell little, with links that mostly lead to Docs of the same label."""
    rng = np.random.default_rng(seed)
    labels, words = rng.permutation(np.arange(n) % 2), [["apple", "pear", "plum"], ["boat", "ship", "raft"]]
    docs = []
    for d, label in enumerate(labels.tolist()):
        word = str(rng.choice(words[label if rng.random() < 0.7 else 1 - label]))
        wanted = np.where(rng.random(2) < homophily, label, 1 - label)
        links = [int(rng.choice(np.flatnonzero((labels == each) & (np.arange(n) != d)))) for each in wanted]
        docs.append(make(nlp, f"{NOTHING} {word}", d, links, group, "FRUIT" if label == 0 else "SHIP"))
    return docs


def examples_of(nlp, docs):
    return [*pass_links(Example(nlp.make_doc(doc.text), doc) for doc in docs)]


def learn(nlp, docs, steps=3):
    examples = examples_of(nlp, docs)
    nlp.initialize(lambda: examples)
    for _ in range(steps):
        nlp.update(examples, sgd=LBFGS(l2=0.1))
    return nlp


@pytest.fixture(scope="module")
def nlp():
    """A trained pipeline. Do not change."""
    nlp = blank()
    return learn(nlp, citations(nlp, 80, 0))


def unlabelled(nlp, docs, group="new"):
    return [make(nlp, doc.text, doc._.crf_id, doc._.crf_links, group) for doc in docs]


def probabilities(nlp, docs):
    return np.array([[doc.cats["FRUIT"], doc.cats["SHIP"]] for doc in nlp.pipe(docs)])


def test_probabilities_are_those_of_all_labellings():
    nlp = blank(inference=EXACT, training_inference=EXACT)
    learn(nlp, citations(nlp, 12, 1))
    docs = unlabelled(nlp, citations(nlp, 5, 2))
    cat = nlp.get_pipe("crf_textcat")
    scores = cat.model.predict(DocBatch(docs))
    table = scores.ties.sums(scores.tables)[0]
    assert abs(table).max() > 0.1 and len(scores.ties.source) >= 5
    total = np.zeros((5, 2))
    for labels in itertools.product(range(2), repeat=5):
        score = sum(scores.emissions[d, y] + scores.first[y] for d, y in enumerate(labels))
        score += sum(table[labels[u], labels[v]] for u, v in zip(scores.ties.source, scores.ties.target))
        total[range(5), labels] += math.exp(score)
    expected = total / total.sum(axis=1, keepdims=True)
    assert cat.predict(docs).probabilities == pytest.approx(expected, abs=1e-6)


def test_links_help_where_words_do_not(nlp):
    gold = citations(nlp, 200, 5)
    right = {}
    for group in ("new", None):
        found = probabilities(nlp, unlabelled(nlp, gold, group))
        right[group] = np.mean([max(doc.cats) == ("FRUIT", "SHIP")[best] for doc, best in zip(gold, found.argmax(1))])
    assert right["new"] > right[None] + 0.03


def test_groups_do_not_know_of_each_other(nlp):
    first, second = unlabelled(nlp, citations(nlp, 9, 3)), unlabelled(nlp, citations(nlp, 7, 4), 2)
    together = probabilities(nlp, [doc for pair in itertools.zip_longest(first, second) for doc in pair if doc])
    apart = probabilities(nlp, unlabelled(nlp, first)), probabilities(nlp, unlabelled(nlp, second))
    assert together[:14:2] == pytest.approx(apart[0][:7], abs=1e-6)
    assert together[1:14:2] == pytest.approx(apart[1], abs=1e-6)
    alone = np.concatenate([probabilities(nlp, [doc]) for doc in unlabelled(nlp, first, None)])
    assert probabilities(nlp, unlabelled(nlp, first, None)) == pytest.approx(alone, abs=1e-12)
    assert abs(alone - apart[0]).max() > 0.05


def test_predict_together_needs_no_group(nlp):
    cat, docs = nlp.get_pipe("crf_textcat"), citations(nlp, 9, 3)
    one = unlabelled(nlp, docs, None)
    cat.set_annotations(one, predict_together(cat, one))
    expected = probabilities(nlp, unlabelled(nlp, docs))
    assert np.array([[*doc.cats.values()] for doc in one]) == pytest.approx(expected, abs=1e-12)


def test_pipes_keep_large_groups_in_one_batch(nlp):
    """A batch has at most 256 Docs otherwise."""
    cat, docs = nlp.get_pipe("crf_textcat"), citations(nlp, 600, 6)
    expected = predict_together(cat, unlabelled(nlp, docs)).probabilities
    stream = [*unlabelled(nlp, docs[:9], None), *unlabelled(nlp, docs, 1), *unlabelled(nlp, docs, 2)]
    found = [doc.cats["FRUIT"] for doc in nlp.pipe(stream, batch_size=20)]
    assert found[9:609] == found[609:] == expected[:, 0].tolist()


@pytest.mark.parametrize("limit", [1, 40])
def test_training_does_not_depend_on_blocks(monkeypatch, limit):
    nlp = blank(training_inference=EXACT)
    docs = [doc for group in range(4) for doc in citations(nlp, 8, group, group=group)]
    examples = examples_of(nlp, docs)
    examples = [examples[n] for n in np.random.default_rng(0).permutation(len(examples))]
    nlp.initialize(lambda: examples)
    cat = nlp.get_pipe("crf_textcat")
    weights = np.random.default_rng(1).normal(size=len(cat.training.objective(LBFGS(), examples).weights()))
    expected = cat.training.objective(LBFGS(), examples).evaluate(weights)
    monkeypatch.setattr(training, "block_tokens", lambda _: limit)
    objective = cat.training.objective(LBFGS(), examples)
    assert objective.n_batches > 1
    value, gradient = objective.evaluate(weights)
    assert value == pytest.approx(expected[0], rel=1e-6)
    assert np.sort(gradient) == pytest.approx(np.sort(expected[1]), rel=1e-5, abs=1e-5)


def test_gradients_are_those_of_the_objective():
    nlp = blank(training_inference=EXACT)
    examples = examples_of(nlp, citations(nlp, 8, 1))
    nlp.initialize(lambda: examples)
    objective = nlp.get_pipe("crf_textcat").training.objective(LBFGS(), examples)
    rng = np.random.default_rng(2)
    weights, along = rng.normal(size=(2, len(objective.weights())))
    value, gradient = objective.evaluate(weights)
    up, down = (objective.evaluate(weights + step * along)[0] for step in (1e-3, -1e-3))
    assert gradient @ along == pytest.approx((up - down) / 2e-3, rel=1e-3)
    assert value > 0.0


def test_saved_and_parallel_pipelines_say_the_same(nlp, tmp_path):
    docs = citations(nlp, 9, 3)
    expected = probabilities(nlp, unlabelled(nlp, docs))
    nlp.to_disk(tmp_path)
    assert (probabilities(spacy.load(tmp_path), unlabelled(nlp, docs)) == expected).all()
    again = spacy.util.load_model_from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert (probabilities(again, unlabelled(nlp, docs)) == expected).all()
    several = nlp.pipe(unlabelled(nlp, docs), n_process=2, batch_size=9)
    assert np.array([[doc.cats["FRUIT"], doc.cats["SHIP"]] for doc in several]) == pytest.approx(expected, abs=1e-12)
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda _: probabilities(nlp, unlabelled(nlp, docs)), range(6))]
    assert all((each == expected).all() for each in found)


def test_empty_docs_hear_of_their_neighbours(nlp):
    docs = [make(nlp, "apple", 1), make(nlp, "", 2, [1]), make(nlp, "", 3), make(nlp, "")]
    _, linked, unlinked, unnamed = probabilities(nlp, docs)
    assert linked[0] > unlinked[0] and unlinked == pytest.approx(unnamed)
    assert not len(predict_together(nlp.get_pipe("crf_textcat"), []).probabilities)


def test_evidence_counts_words_beside_links(nlp):
    cat, docs = nlp.get_pipe("crf_textcat"), [make(nlp, f"{NOTHING} apple", 1), make(nlp, "ship", 2, [1])]
    evidence = {span.text: value for span, value in cat.evidence(docs[0], "FRUIT")}
    assert max(evidence, key=evidence.get) == "apple" and evidence["apple"] > 0.05
    reasons = cat.model.attrs["node"].reasons
    alone, linked = (reasons(cat.model, DocBatch(some)) for some in (docs[:1], docs))
    of_one = alone.of_units(np.array([0]))["evidence"]
    # With two labels, the words' share of the log-odds does not depend on what links say
    assert linked.of_units(np.array([0, 1]))["evidence"][:4] == pytest.approx(of_one, abs=1e-6)
    assert abs(linked.scores[0] - alone.scores[0]).max() > 0.01
    assert abs(cat.explain(docs[0], "FRUIT", kind="contrast").check) < 1e-6


def test_other_methods_predict():
    for inference in ("Gibbs", "BeliefPropagation", "JunctionTree"):
        nlp = blank(inference={"@misc": registered(inference)})
        learn(nlp, citations(nlp, 12, 0), steps=1)
        assert probabilities(nlp, unlabelled(nlp, citations(nlp, 6, 1))).sum(axis=1) == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------------- templates


def tied(template, docs):
    found = template.find(DocBatch(docs))
    return list(zip(found.source.tolist(), found.target.tolist()))


def test_templates_tie_docs(nlp):
    docs = [
        make(nlp, "a", "a", ["b", "c", "c"]),
        make(nlp, "b", "b", ["a", "b"]),
        make(nlp, "c", "c", None),
        make(nlp, "d", 4, ("x", "b")),
        make(nlp, "e", None, {"x"}),
        make(nlp, "f", "b", ["a"], group="other"),
        make(nlp, "g", "g", ["a"], group=None),
    ]
    assert tied(LinkedDocuments(), docs) == [(0, 1), (0, 2), (1, 3)]
    assert tied(LinkedDocuments(symmetric=False), docs) == [(0, 1), (0, 2), (1, 0), (3, 1)]
    assert tied(CoCited(), docs) == [(0, 1), (1, 2)]
    assert tied(CoCited(by="citing"), docs) == [(0, 1), (0, 3), (1, 3), (3, 4)]
    docs = [docs[0], docs[6]]
    batch = Collection(docs)
    assert LinkedDocuments().find(batch).source.tolist() == [0] and tied(LinkedDocuments(), docs) == []


def test_unknown_links_are_ignored_and_counted_once(nlp, caplog):
    template, docs = LinkedDocuments(), [make(nlp, "one", 1, [2, 7, "9"]), make(nlp, "two", 2, [8])]
    with caplog.at_level(logging.WARNING):
        assert [tied(template, docs) for _ in range(2)] == [[(0, 1)]] * 2
    [record] = [record for record in caplog.messages if "CRFW491" in record]
    assert "3 of 4 links" in record and "7" in record


def test_groups_that_are_too_large_are_not_tied(nlp, caplog):
    docs = [make(nlp, "x", n, ["all"]) for n in range(5)]
    assert len(tied(CoCited(by="citing", max_edges=10), docs)) == 10
    with caplog.at_level(logging.WARNING):
        assert tied(CoCited(by="citing", max_edges=9), docs) == []
    assert "CRFW492" in caplog.text


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"links": "b"}, "CRF492.*crf_links"),
        ({"links": [1.5]}, "CRF492.*crf_links"),
        ({"links": [None]}, "CRF492.*crf_links"),
        ({"name": True}, "CRF492.*crf_id"),
        ({"group": 0.5}, "CRF492.*crf_group"),
        ({"name": "b"}, "CRF493.*'b'"),
    ],
)
def test_wrong_links_are_refused(nlp, wrong, error):
    docs = [make(nlp, "b", "b"), make(nlp, "a", **{"name": "a", **wrong})]
    with pytest.raises(ValueError, match=error):
        nlp.get_pipe("crf_textcat").predict(docs)


def test_templates_of_tokens_and_documents_are_not_mixed():
    with pytest.raises(ValueError, match=r"CRF020.*ties documents"):
        blank(cliques={"repeats": {"@misc": "spacy_crf_lab.RepeatedWords.v1"}})
    with pytest.raises(ValueError, match=r"CRF020.*ties tokens"):
        spacy.blank("en").add_pipe(
            "crf_ner",
            config={"model": {**model_of(), "@architectures": "spacy_crf_lab.FactorGraph.v1"}},
        )
    with pytest.raises(ValueError, match=r"CRF020.*bias"):
        blank(cliques={"links": {**LINKS["links"], "features": ["shape[0]"]}})


# -------------------------------------------------------------------------------------------------------- commands


def test_converted_files_train_with_a_config(tmp_path):
    nlp = spacy.blank("en")
    rows = [
        {
            "text": doc.text,
            "label": max(doc.cats),
            "extensions": {"crf_id": doc._.crf_id, "crf_links": doc._.crf_links, "crf_group": "g"},
        }
        for doc in citations(nlp, 30, 0)
    ]
    srsly.write_jsonl(tmp_path / "train.jsonl", rows)
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "train.jsonl"), "-o", str(tmp_path / "train.spacy")])
    assert done.exit_code == 0, done.output
    docs = [*DocBin().from_disk(tmp_path / "train.spacy").get_docs(nlp.vocab)]
    assert [(doc._.crf_id, list(doc._.crf_links), doc._.crf_group) for doc in docs] == [
        tuple(row["extensions"].values()) for row in rows
    ]
    paths = {f"paths.{part}": str(tmp_path / "train.spacy") for part in ("train", "dev")}
    config = load_config(CONFIG, overrides={**paths, "training.max_steps": 3}, interpolate=False)
    config["components"]["crf_textcat"]["model"] = model_of()
    for corpus in config["corpora"].values():
        corpus["@readers"] = "spacy_crf_lab.LinkedCorpus.v1"
    trained = init_nlp(config)
    (tmp_path / "model").mkdir()
    train(trained, tmp_path / "model")
    trained = spacy.load(tmp_path / "model" / "model-last")
    assert trained.get_pipe("crf_textcat").model.get_ref("cliques").attrs["known"][0][-1] >= 20
    # The reader of configs gives predicted Docs the links of the annotated ones
    examples = [*LinkedCorpus(tmp_path / "train.spacy")(trained)]
    with_links = trained.evaluate(examples)["cats_macro_f"]
    for example in examples:
        example.predicted._.crf_links = None
    assert with_links != trained.evaluate(examples)["cats_macro_f"]
