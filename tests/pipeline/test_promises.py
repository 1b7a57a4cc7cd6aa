"""`crf threshold --recall` and ``crf_candidates``: a threshold that keeps a promise, and the spans that it is about."""

import itertools
import math

import numpy as np
import pytest
import spacy
from scipy.stats import binom
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from spacy_crf.pipeline.promises import (
    GRID,
    MOST_OF_TEXT,
    JudgedText,
    Promise,
    judge,
    min_prob_of,
    p_values,
    promise_precision,
    promise_recall,
    promises,
)
from tests.cli.test_commands import run
from tests.pipeline import test_crf_spancat
from tests.pipeline.test_probabilities import key, trained, with_rules
from tests.util import NER_TEXTS, ner_doc, ner_examples, tag_examples

ONCE = with_rules([{"rule": "at_most", "label": "*", "n": 1}])
BLOCK = 'factory = "crf_candidates" component = "crf_ner"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("promises")
    nlp = trained()
    nlp.to_disk(folder / "model")
    for name, texts in {"dev": 10 * NER_TEXTS, "small": NER_TEXTS, "empty": ["Nobody was there ."]}.items():
        DocBin(docs=[ner_doc(nlp, text) for text in texts]).to_disk(folder / f"{name}.spacy")
    return folder


@pytest.mark.parametrize("risk", [0.1, 0.3])
def test_p_values_are_those_of_a_valid_test(risk):
    """By enumeration of all results of some texts whose mean loss is the risk."""
    n_texts = 10
    losses = np.array([*itertools.product((0.0, 1.0), repeat=n_texts)]).T  # [N, 2 ** N]
    p = p_values(losses, np.ones_like(losses), risk, alpha=0.2)
    n_wrong = losses.sum(axis=0)
    chance = risk**n_wrong * (1 - risk) ** (n_texts - n_wrong)
    assert all(chance[p <= level].sum() <= level + 1e-12 for level in np.unique(p))
    assert p.max() == 1.0 and p.min() == p[0] >= binom.cdf(0, n_texts, risk)
    assert p[0] == pytest.approx((1 + 0.9 * risk / (1 - risk)) ** -n_texts, rel=0.02)


def test_p_values_are_the_formula():
    rng = np.random.default_rng(3)
    losses, weights, risk, alpha = rng.random((40, 3)) ** 3, rng.random((40, 3)), 0.3, 0.05
    order = np.random.default_rng(0).permutation(np.arange(40))
    for column, p in enumerate(p_values(losses, weights, risk, alpha)):
        wealth, most, squares = 1.0, 1.0, risk * (1 - risk)
        for n, text in enumerate(order, start=1):
            excess = weights[text, column] * (losses[text, column] - risk)
            bet = math.sqrt(2 * math.log(1 / alpha) / (40 * squares / n))
            wealth *= 1 - min(bet, 0.9 / (1 - risk)) * excess
            most, squares = max(most, wealth), squares + excess**2
        assert p == pytest.approx(1 / most)


def drawn(rng, n_texts, together):
    """Texts of 0 to 4 entities with uniform probabilities, so that the recall with threshold t is 1 - t. A span is right as
    often as its probability says.

    together (bool): Whether the entities of a text are all found or all missed.
    """
    texts = []
    for n in rng.integers(0, MOST_OF_TEXT + 1, n_texts):
        gold = np.full(n, rng.random()) if together else rng.random(n)
        found = np.sort(rng.random(6))
        none = np.zeros(n, dtype=np.int64), np.zeros(6, dtype=np.int64)
        texts.append(JudgedText(gold, none[0], found, none[1], rng.random(6) < found))
    return texts


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("recall", [0.7, 0.9])
def test_promised_recall_is_kept(recall, together):
    rng, alpha, draws = np.random.default_rng(int(10 * recall)), 0.2, 150
    reached = np.array([1 - promise_recall("x", drawn(rng, 200, together), recall, alpha) for _ in range(draws)])
    assert (reached < recall).mean() <= alpha + 2 * math.sqrt(alpha * (1 - alpha) / draws)
    assert reached.mean() <= recall + (0.09 if together else 0.05)
    assert len(set(reached)) > 3


def test_promised_precision_is_kept():
    """With uniform, calibrated probabilities, a share of (1 + t) / 2 of the spans above t is right."""
    rng, alpha, precision, draws = np.random.default_rng(0), 0.2, 0.8, 100
    reached = np.array(
        [(1 + promise_precision("x", drawn(rng, 300, False), precision, alpha)) / 2 for _ in range(draws)]
    )
    assert (reached < precision).mean() <= alpha + 2 * math.sqrt(alpha * (1 - alpha) / draws)
    assert reached.mean() <= precision + 0.08


def test_texts_that_prove_nothing_are_an_error():
    sure = JudgedText(np.ones(2), np.zeros(2), np.ones(2), np.zeros(2), np.ones(2, dtype=bool))
    with pytest.raises(ValueError, match=r"CRF424: x: 60 entities in 30 texts are too few.* recall of 0\.98") as error:
        promise_recall("x", 30 * [sure], 0.98, 0.05)
    needed = int(str(error.value).split("about ")[1].split()[0])
    with pytest.raises(ValueError, match="CRF424"):
        promise_recall("x", (needed // 2 - 5) * [sure], 0.98, 0.05)
    assert promise_recall("x", (needed // 2 + 5) * [sure], 0.98, 0.05) == GRID[-1]
    never = sure._replace(gold=np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"CRF425.*0\.5000 on these texts, and 500 of 1,000 entities"):
        promise_recall("x", 500 * [never], 0.98, 0.05)
    with pytest.raises(ValueError, match=r"CRF424: x: 60 spans in 30 texts"):
        promise_precision("x", 30 * [sure], 0.98, 0.05)
    wrong = sure._replace(right=np.zeros(2, dtype=bool))
    with pytest.raises(ValueError, match=r"CRF426.*0\.0000 is annotated"):
        promise_precision("x", 600 * [wrong], 0.98, 0.05)
    with pytest.raises(ValueError, match=r"CRF424: x: 0 entities in 0 texts"):
        promise_recall("x", 30 * [sure._replace(gold=np.zeros(0))], 0.98, 0.05)


@pytest.mark.parametrize(
    "factory, config", [("crf_ner", {}), ("crf_ner", ONCE), ("semicrf_ner", {}), ("crf_tagger", {})]
)
def test_judged_are_the_probabilities_of_the_annotation(factory, config):
    nlp = trained(factory, iterations=2, **config)
    pipe = nlp.get_pipe(factory)
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    for example, text in zip(examples, judge(pipe, examples)):
        likely = {key([span])[0]: p for span, p in pipe.span_probabilities(example.predicted, GRID[0])}
        gold = key(example.reference.ents)
        if factory == "crf_tagger":
            gold = [(token.i, token.i + 1, token.tag_) for token in example.reference]
        np.testing.assert_allclose(text.gold, [likely[span] for span in gold])
        assert len(text.found) == len(likely) and text.right.sum() == len(gold)
        assert [pipe.labels[n] for n in text.gold_label] == [label for *_, label in gold]
        np.testing.assert_allclose(np.sort(text.found[text.right]), np.sort(text.gold))


def test_spans_that_overlap_are_judged_too():
    nlp, pipe, examples = test_crf_spancat.trained(iterations=5)
    for example, text in zip(examples, judge(pipe, examples)):
        likely = {key([span])[0]: p for span, p in pipe.span_probabilities(example.predicted, GRID[0])}
        np.testing.assert_allclose(text.gold, [likely[span] for span in key(example.reference.spans["sc"])])
        assert len(text.found) == len(likely)
    make = nlp.add_pipe("crf_candidates", first=True, config={"component": "crf_spancat", "min_prob": 0.01})
    doc = nlp(examples[0].text)
    assert set(key(doc.spans["sc"])) < set(key(doc.spans["crf_candidates"]))
    make.spans_key = "sc"
    with pytest.raises(ValueError, match=r"CRF427.*'sc'.*writes"):
        nlp(examples[0].text)


def test_a_candidate_on_several_levels_has_one_probability():
    nlp, pipe, examples = test_crf_spancat.trained(groups="nested", iterations=3)
    nlp.add_pipe("crf_candidates", config={"component": "crf_spancat", "min_prob": 0.01})
    doc = nlp(examples[1].predicted.copy())
    group, likely = doc.spans["crf_candidates"], pipe.span_probabilities(doc, 0.01)
    assert len(set(key(group))) == len(group) == len(likely)
    found = dict(zip(key(group), group.attrs["scores"]))
    assert found == {key([span])[0]: pytest.approx(p, abs=1e-6) for span, p in likely}


def test_unknown_entities_are_missed_and_unknown_tokens_left_out():
    nlp = trained(iterations=2)
    words = ["Bob", "left", "Acme", "Corp", "for", "New", "York"]
    gold = Doc(nlp.vocab, words=words)
    gold.set_ents([Span(gold, 0, 1, "PER"), Span(gold, 2, 4, "GAME")], missing=[gold[5:7]], default="outside")
    [text] = judge(nlp.get_pipe("crf_ner"), [Example(Doc(nlp.vocab, words=words), gold)])
    assert text.gold.tolist() == [pytest.approx(text.gold[0]), 0.0] and text.gold_label[1] == -1
    likely = nlp.get_pipe("crf_ner").span_probabilities(nlp.make_doc(" ".join(words)), GRID[0])
    assert len(text.found) == sum(span.end <= 5 for span, _ in likely)
    merged = Example(Doc(nlp.vocab, words=["Bob left", "Acme", "Corp", "for", "New", "York"]), gold)
    assert judge(nlp.get_pipe("crf_ner"), [merged])[0].gold[0] == 0.0


def test_candidates_are_all_likely_spans(folder, tmp_path):
    nlp = spacy.load(folder / "model")
    table = {"PER": 0.1, "*": 0.02}
    nlp.add_pipe("crf_candidates", before="crf_ner", config={"min_prob": table, "spans_key": "redact"})
    nlp.to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    text = "Ann Lee left Rome for Acme Corp"
    likely = nlp.get_pipe("crf_ner").span_probabilities(nlp.make_doc(text), 0.02)
    expected = {key([span])[0]: p for span, p in likely if p >= table.get(span.label_, table["*"])}
    for doc in (nlp(text), *nlp.pipe([text])):
        group = doc.spans["redact"]
        assert dict(zip(key(group), group.attrs["scores"].tolist())) == pytest.approx(expected)
        assert len(expected) > len(doc.ents) > 0
    assert len(nlp("").spans["redact"]) == 0
    assert nlp.analyze_pipes()["summary"]["crf_candidates"]["assigns"] == ["doc.spans"]


@pytest.mark.parametrize(
    "factory, config", [("crf_ner", {}), ("crf_ner", ONCE), ("semicrf_ner", {}), ("crf_tagger", {})]
)
def test_candidates_of_many_texts_are_those_of_each(factory, config):
    nlp = trained(factory, iterations=2, **config)
    pipe = nlp.get_pipe(factory)
    nlp.add_pipe("crf_candidates", first=True, config={"component": factory, "min_prob": 0.05})
    texts = ["Bob left Rome", "", "the dog", "Ann Lee lives in New York"]
    blocked = [nlp.make_doc(text) for text in texts]
    blocked[0].spans["crf_blocked"] = [Span(blocked[0], 0, 1)]
    for docs in ([nlp.make_doc(text) for text in texts], blocked):
        likely = [{key([span])[0]: p for span, p in pipe.span_probabilities(doc, 0.05)} for doc in docs]
        for doc, expected in zip(nlp.pipe(docs), likely):
            group = doc.spans["crf_candidates"]
            assert dict(zip(key(group), group.attrs["scores"].tolist())) == pytest.approx(expected)
            assert key(group) == tuple(sorted(key(group), key=lambda span: span[:2]))


@pytest.mark.parametrize(
    "config, code",
    [
        ({"component": "ner"}, "CRF710.*named 'ner'"),
        ({"component": "crf_textcat"}, "CRF710"),
        ({"spans_key": "crf_blocked"}, "CRF427"),
        ({"spans_key": "wrong"}, "CRF427.*'wrong'.*'crf_ner' reads or writes"),
        ({"min_prob": {"CITY": 0.5}}, "CRF846.*'CITY'"),
        ({"spans_key": ""}, "CRF020.*spans_key"),
        ({"min_prob": 2.0}, "CRF020.*min_prob"),
    ],
)
def test_impossible_candidates_are_an_error(config, code):
    nlp = trained(iterations=1, incorrect_spans_key="wrong")
    nlp.add_pipe("crf_textcat")
    with pytest.raises(ValueError, match=code):
        nlp.add_pipe("crf_candidates", first=True, config=config)(nlp.make_doc("Bob left"))


def test_the_command_promises_and_saves(folder, tmp_path):
    options = ("--recall", "0.7", "--alpha", "0.1", "--spans-key", "redact", "--output", tmp_path)
    for model in (folder / "model", tmp_path):  # the second time, the component is there already
        code, output = run("threshold", model, folder / "dev.spacy", *options)
        assert code == 0 and "With probability 0.9, the recall on new texts like these is at least 0.7" in output
        assert BLOCK in output and 'spans_key = "redact"' in output
    nlp = spacy.load(tmp_path)
    assert nlp.pipe_names == ["crf_candidates", "crf_ner"]
    examples = ner_examples(nlp)
    docs = [nlp(example.text) for example in examples]
    found = [set(key(doc.spans["redact"])) for doc in docs]
    gold = [set(key(example.reference.ents)) for example in examples]
    assert sum(len(a & b) for a, b in zip(found, gold)) >= 0.7 * sum(map(len, gold))
    per_label = ("--precision", "0.5", "--per-label", "--alpha", "0.3")
    code, output = run("threshold", folder / "model", folder / "dev.spacy", *per_label)
    assert code == 0 and "the precision of each label" in output and "[components.crf_candidates.min_prob]" in output


@pytest.mark.parametrize(
    "options, message",
    [
        (("--recall", "1.0"), "CRF020: threshold: --recall = 1.0"),
        (("--precision", "0"), "CRF020: threshold: --precision"),
        (("--recall", "0.9", "--alpha", "1.0"), "CRF020: threshold: --alpha"),
        (("--recall", "0.9", "--alpha", "nan"), "CRF020: threshold: --alpha"),
        (("--recall", "0.9", "--precision", "0.9"), "left out with --recall"),
        (("--alpha", "0.1"), "CRF020: threshold: --alpha"),
        (("--spans-key", "redact"), "CRF020: threshold: --spans-key"),
        (("--recall", "0.9", "--expected"), "CRF020: threshold: --expected"),
        (("--recall", "0.9", "--spans-key", ""), "CRF020: threshold: --spans-key"),
        (("--recall", "0.9", "--spans-key", "crf_forced"), "CRF427"),
        (("--recall", "0.98"), "CRF424: Component 'crf_ner': 12 entities in 5 texts are too few"),
        (("--recall", "0.98", "--per-label"), "CRF424: Component 'crf_ner', GPE: 4 entities"),
    ],
)
def test_impossible_promises_are_an_error(folder, options, message):
    code, output = run("threshold", folder / "model", folder / "small.spacy", *options)
    assert code == 1 and message in output


def test_labels_without_a_promise_get_the_most_careful_threshold():
    one, other = (Promise(label, p, 10, 1.0, 1.0, 1.0) for label, p in (("PER", 0.2), ("ORG", 0.5)))
    assert min_prob_of([one, other], "recall") == {"PER": 0.2, "ORG": 0.5, "*": 0.2}
    assert min_prob_of([one, other], "precision") == {"PER": 0.2, "ORG": 0.5, "*": 0.5}
    assert min_prob_of([one._replace(label=None)], "recall") == 0.2


def test_texts_without_entities_promise_nothing(folder):
    code, output = run("threshold", folder / "model", folder / "empty.spacy", "--recall", "0.5")
    assert code == 1 and "CRF424" in output and "0 entities in 0 texts" in output
    nlp = spacy.load(folder / "model")
    texts = judge(nlp.get_pipe("crf_ner"), [Example(nlp.make_doc("Bob"), ner_doc(nlp, "Bob"))])
    with pytest.raises(ValueError, match="CRF424"):
        promises(nlp.get_pipe("crf_ner"), texts, 0.5, 0.1, per_label=True)
