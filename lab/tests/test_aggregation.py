"""Several annotations of the same texts: what the model makes of them, and the command."""

import random
import re

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.util import filter_spans
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.types import SOFT_LABELS
from spacy_crf_lab.aggregation import aggregate, votes

RIGHT = {"a": 0.7, "b": 0.75, "c": 0.8, "d": 0.9, "e": 0.95}
WORDS = {"PER": ["Ann", "Bob", "Eve", "Lee"], "GPE": ["Rome", "York", "Bonn", "Kiel"]}
OTHER = ["the", "a", "of", "in", "and", "saw", "went", "to", "met", "was", "old", "new", "big", "there"]


def texts(n=150, sees=0.6, seed=0):
    """Docs with the truth in doc.ents, and the spans of annotators, each of whom sees a part of the texts."""
    rng, nlp, docs = random.Random(seed), spacy.blank("en"), []
    for _ in range(n):
        words, ents = [], []
        for _ in range(rng.randint(2, 5)):
            words += rng.sample(OTHER, rng.randint(1, 4))
            label, begin = rng.choice([*WORDS]), len(words)
            words += rng.sample(WORDS[label], rng.randint(1, 2))
            ents.append((begin, len(words), label))
        doc = Doc(nlp.vocab, words=words)
        doc.ents = [Span(doc, *ent) for ent in ents]
        for name, right in RIGHT.items():
            if rng.random() < sees:
                said = [ent if rng.random() < right else mistaken(*ent, len(doc), rng) for ent in ents]
                doc.spans[name] = filter_spans(Span(doc, *ent) for ent in said if ent is not None)
        docs.append(doc)
    return nlp, docs


def mistaken(begin, end, label, n, rng):
    """Nothing, another label, or another end."""
    other = "GPE" if label == "PER" else "PER"
    return rng.choice([None, (begin, end, other), (begin, min(n, end + 1), label), (max(0, begin - 1), end, label)])


def f1(docs, found):
    gold = [{(ent.start, ent.end, ent.label_) for ent in doc.ents} for doc in docs]
    return 200 * sum(len(a & b) for a, b in zip(gold, found)) / sum(len(a) + len(b) for a, b in zip(gold, found))


def majority(doc):
    """Spans on which more than half of those agree who have seen the text."""
    groups = [{(span.start, span.end, span.label_) for span in group} for group in doc.spans.values()]
    return {span for group in groups for span in group if 2 * sum(span in each for each in groups) > len(groups)}


def prepared(docs, keys=tuple(RIGHT)):
    labels = [*WORDS]
    ids, starts = {}, np.append(0, np.cumsum([*map(len, docs)]))
    words = np.array([ids.setdefault(token.text, len(ids)) for doc in docs for token in doc], dtype=np.int64)
    return votes(docs, keys, labels), words, starts, len(labels)


def test_votes():
    _, [doc] = texts(1)
    doc = Doc(doc.vocab, words=["Ann", "Lee", "saw", "Rome"])
    doc.spans["x"] = [Span(doc, 0, 2, "PER"), Span(doc, 1, 2, "GPE"), Span(doc, 3, 4, "OTHER")]
    doc.spans["y"] = []
    empty = Doc(doc.vocab)
    np.testing.assert_array_equal(
        votes([doc, empty, doc], ["x", "y", "z"], [*WORDS]), [[1, 2, 0, 0] * 2, [0] * 8, [-1] * 8]
    )


@pytest.mark.parametrize("sees", [0.6, 1.0])
def test_better_than_a_majority_and_knows_who_is_reliable(sees, tmp_path):
    nlp, docs = texts(sees=sees)
    DocBin(docs=docs).to_disk(tmp_path / "all.spacy")
    code, output = run(tmp_path / "all.spacy", "-o", tmp_path / "one.spacy", "--spans-key", ",".join(RIGHT))
    assert code == 0, output
    found = [{(e.start, e.end, e.label_) for e in doc.ents} for doc in read(tmp_path / "one.spacy", nlp)]
    best = f1(docs, [*map(majority, docs)])
    assert f1(docs, found) >= (best + 3.0 if sees < 1.0 else best)
    shown = {line.split()[1]: float(line.split()[-3]) for line in output.splitlines() if line.startswith("│")}
    assert [*shown] == [*RIGHT] and shown["a"] < shown["c"] < shown["e"]
    for name, estimated in shown.items():
        said = [{(s.start, s.end, s.label_) for s in doc.spans[name]} for doc in docs if name in doc.spans]
        assert estimated == pytest.approx(f1([doc for doc in docs if name in doc.spans], said), abs=12.0)


def test_the_log_likelihood_never_falls():
    said, words, starts, n_labels = prepared(texts(40)[1])
    logged = []
    aggregate(said, words, starts, n_labels, iterations=15, say=lambda _, value: logged.append(value))
    assert len(logged) == 15 and logged[-1] > logged[0]


def test_what_stays_open(tmp_path):
    nlp, docs = texts(30)
    unseen, empty = Doc(nlp.vocab, words=["Ann", "Lee"]), Doc(nlp.vocab)
    DocBin(docs=[*docs, unseen, empty]).to_disk(tmp_path / "all.spacy")
    keys = ("--spans-key", ",".join(RIGHT))
    assert run(tmp_path / "all.spacy", "-o", tmp_path / "sure.spacy", *keys, "--min-prob", "0.99")[0] == 0
    *sure, last, nothing = read(tmp_path / "sure.spacy", nlp)
    assert not last.has_annotation("ENT_IOB") and not len(nothing)
    assert any(token.ent_iob_ == "" for doc in sure for token in doc)
    assert min(ent._.crf_prob for doc in sure for ent in doc.ents) >= 0.99
    assert run(tmp_path / "all.spacy", "-o", tmp_path / "soft.spacy", *keys, "--soft")[0] == 0
    *soft, last, _ = read(tmp_path / "soft.spacy", nlp)
    assert SOFT_LABELS not in last.spans and not any(doc.ents for doc in soft)
    scores = [score for doc in soft for score in doc.spans[SOFT_LABELS].attrs["scores"]]
    assert 0.0 < min(scores) < 0.5 < max(scores) <= 1.0
    ner = nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf.SoftLabels.v1"}})
    examples = [spacy.training.Example(Doc(nlp.vocab, words=[t.text for t in doc]), doc) for doc in soft]
    nlp.initialize(lambda: examples)
    assert sorted(ner.labels) == sorted(WORDS) and nlp.update(examples)["crf_ner"] > 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--spans-key", "a"],
            "CRF020: spacy crf aggregate: --spans-key = 'a' is not possible: it must be two or more",
        ),
        (["--spans-key", "a,z"], "CRF020.*--spans-key = 'z'.*a key of doc.spans in .*a, b"),
        (["--spans-key", "a,b", "--min-prob", "0.3"], "CRF020.*--min-prob = 0.3.*from 0.5 to 1"),
        (["--spans-key", "a,b", "--labels", "PERS"], "CRF846: --labels: no label is named 'PERS'.*PER"),
        (["--spans-key", "a,b", "--iterations", "-1"], "CRF020.*--iterations"),
    ],
)
def test_options_that_are_not_possible(options, message, tmp_path):
    DocBin(docs=texts(5, sees=1.0)[1]).to_disk(tmp_path / "all.spacy")
    code, output = run(tmp_path / "all.spacy", "-o", tmp_path / "one.spacy", *options)
    assert code == 1 and re.search(message, " ".join(output.split())), output
    assert not (tmp_path / "one.spacy").exists()


def test_the_texts_are_not_written_over(tmp_path):
    DocBin(docs=texts(5, sees=1.0)[1]).to_disk(tmp_path / "all.spacy")
    code, output = run(tmp_path / "all.spacy", "-o", tmp_path / "all.spacy", "--spans-key", "a,b")
    assert code == 1 and "CRF730" in output


def test_lists_that_are_all_empty(tmp_path):
    doc = Doc(spacy.blank("en").vocab, words=["Ann"])
    doc.spans["a"] = doc.spans["b"] = []
    DocBin(docs=[doc]).to_disk(tmp_path / "all.spacy")
    code, output = run(tmp_path / "all.spacy", "-o", tmp_path / "one.spacy", "--spans-key", "a,b")
    assert code == 1 and "all of these lists are empty" in " ".join(output.split())


def run(*arguments):
    result = CliRunner().invoke(app, ["aggregate", *map(str, arguments)])
    return result.exit_code, result.output


def read(path, nlp):
    return list(DocBin().from_disk(path).get_docs(nlp.vocab))
