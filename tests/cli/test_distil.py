"""``spacy crf distil``: a teacher, raw texts, and a student that learns from what the one says of the others."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.cli.train import train
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.distil import Teacher, distil, find_teacher
from spacy_crf.cli.formats.source import Item
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.util import entities, ner_examples, plain, tag_examples

RAW = ["Ann Lee left Rome .", "Nobody runs Acme Corp from New York .", "", "It rains in Paris ."]
CONFIG = Path(__file__).parents[2] / "configs" / "crf_ner.cfg"


def run(*args, **kwargs):
    return CliRunner().invoke(app, ["distil", *map(str, args)], **kwargs)


@pytest.fixture(scope="session")
def teacher():
    nlp = spacy.blank("en")
    nlp.tokenizer = spacy.tokenizer.Tokenizer(nlp.vocab)
    nlp.add_pipe("crf_ner")
    examples, optimizer = ner_examples(nlp), LBFGS(l2=0.05)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "meta": 1}) for text in RAW) + "\n\n", encoding="utf8")
    return path


def read(path, nlp):
    return list(DocBin().from_disk(path).get_docs(nlp.vocab))


def soft(doc):
    group = doc.spans["crf_soft"]
    return [(span.text, span.label_, round(p, 4)) for span, p in zip(group, group.attrs["scores"])]


def expected(nlp, text, min_prob=0.05):
    """By what the component itself says."""
    doc = nlp.make_doc(text)
    found = nlp.get_pipe("crf_ner").span_probabilities(doc, min_prob)
    return sorted((span.start, span.end, span.label_, span.text, round(p, 4)) for span, p in found)


def test_probabilities_of_a_component(teacher, texts, tmp_path):
    teacher.to_disk(tmp_path / "teacher")
    done = run(tmp_path / "teacher", texts, "--output", tmp_path / "new" / "corpus.spacy")
    assert done.exit_code == 0 and "3 texts" in done.output and "probabilities of crf_ner" in done.output, done.output
    docs = read(tmp_path / "new" / "corpus.spacy", teacher)
    assert [doc.text for doc in docs] == [text for text in RAW if text]
    for doc in docs:
        assert soft(doc) == [(text, label, p) for *_, label, text, p in expected(teacher, doc.text)]
        assert not doc.ents and not doc.has_annotation("ENT_IOB") and list(doc.spans) == ["crf_soft"]
    some = run(tmp_path / "teacher", texts, "-o", tmp_path / "some.spacy", "--labels", "PER, GPE", "--min-prob", "0.3")
    assert some.exit_code == 0, some.output
    found = [part for doc in read(tmp_path / "some.spacy", teacher) for part in soft(doc)]
    assert found and all(label in ("PER", "GPE") and p >= 0.3 for _, label, p in found)


def test_from_the_standard_input_and_lines(teacher, texts, tmp_path, monkeypatch):
    teacher.to_disk(tmp_path / "teacher")
    monkeypatch.setattr("spacy_crf.cli.distil.load_pipeline", lambda *_: teacher)
    (tmp_path / "raw.txt").write_text("\n".join(RAW), encoding="utf8")
    found = []
    for number, source in enumerate([texts, tmp_path / "raw.txt", "-"]):
        done = run("teacher", source, "-o", tmp_path / f"{number}.spacy", input=texts.read_bytes())
        assert done.exit_code == 0, done.output
        found.append([(doc.text, soft(doc)) for doc in read(tmp_path / f"{number}.spacy", teacher)])
    assert found[0] == found[1] == found[2]
    assert teacher.pipe_names == ["crf_ner"]  # as it was


def test_in_several_processes(teacher):
    texts = [Item(f"line {n}", teacher.make_doc(text)) for n, text in enumerate(RAW)]
    one, two = ([soft(doc) for doc in distil(find_teacher(teacher), texts, n_process=n)] for n in (1, 2))
    assert one == two


def test_earlier_components_count_and_later_ones_do_not(teacher):
    nlp = spacy.blank("en")
    nlp.tokenizer = spacy.tokenizer.Tokenizer(nlp.vocab)
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "WEATHER", "pattern": "rains"}, {"label": "PER", "pattern": "Nobody"}])
    nlp.add_pipe("crf_ner", source=teacher)
    nlp.add_pipe("merge_entities")
    found = find_teacher(nlp)
    assert found == Teacher(nlp, "crf_ner", None)
    raw = [Item("", nlp.make_doc(text)) for text in ("It rains in Paris .", "Nobody rains .")]
    first, second = distil(found, raw)
    assert ("rains", "WEATHER", 1.0) in soft(first) and len(first) == 5
    assert soft(second)[:2] == [("Nobody", "PER", 1.0), ("rains", "WEATHER", 1.0)]


def test_a_tagger_says_how_probable_each_label_is():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger")
    examples = tag_examples(nlp)
    nlp.initialize(lambda: examples, sgd=LBFGS(l2=0.1))
    nlp.update(examples, sgd=LBFGS(l2=0.1))
    doc = plain(examples[0].predicted)
    [made] = distil(find_teacher(nlp), [Item("", doc)], min_prob=0.0)
    marginals, tags = pipe.marginals(doc)
    group = made.spans["crf_soft"]
    found = np.zeros_like(marginals)
    for span, p in zip(group, group.attrs["scores"]):
        found[span.start, tags.index(span.label_)] = p
    np.testing.assert_allclose(found, marginals)


def test_a_tagger_of_several_attributes_is_no_teacher():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"attribute": ["tag", "pos"]})
    with pytest.raises(ValueError, match=r"CRF827.*tag, pos"):
        find_teacher(nlp)


@Language.component("test_distil_spans")
def make_spans(doc):
    """As GLiNER's and language models' pipelines write them."""
    spans = [Span(doc, t, t + 1, label="A") for t in range(min(2, len(doc)))]
    doc.spans["mine"] = SpanGroup(
        doc, spans=spans, attrs={"scores": np.array([0.75, 0.01], dtype=np.float32)[: len(spans)]}
    )
    return doc


@Language.component("test_distil_breaks")
def breaks(doc):
    if "Acme" in doc.text:
        raise RuntimeError("no such thing")
    return doc


def test_spans_with_scores_and_entities_of_any_pipeline():
    nlp = spacy.blank("en")
    nlp.add_pipe("test_distil_spans")
    with pytest.raises(ValueError, match=r"CRF710: There is no component to learn from.* test_distil_spans"):
        find_teacher(nlp)
    raw = [Item("", nlp.make_doc("Ann Lee"))]
    [made] = distil(find_teacher(nlp, spans_key="mine"), raw)
    assert soft(made) == [("Ann", "A", 0.75)]
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PER", "pattern": "Ann Lee"}])
    [made] = distil(find_teacher(nlp), raw)
    assert soft(made) == [("Ann Lee", "PER", 1.0)]


def test_spancat_teaches_with_its_scores():
    nlp = spacy.blank("en")
    examples = ner_examples(nlp)
    for example in examples:
        example.reference.spans["sc"] = list(example.reference.ents)
    nlp.add_pipe("spancat", config={"threshold": 0.0})
    nlp.initialize(lambda: examples)
    found = find_teacher(nlp)
    assert found == Teacher(nlp, None, "sc")
    doc = plain(examples[0].predicted)
    [made] = distil(found, [Item("", doc)], min_prob=0.0)
    scores = nlp(doc).spans["sc"].attrs["scores"]
    assert len(scores) and sorted(made.spans["crf_soft"].attrs["scores"]) == pytest.approx(sorted(scores))


@pytest.mark.parametrize("n_process", [1, 2])
def test_what_goes_wrong_names_the_line(teacher, tmp_path, monkeypatch, n_process):
    nlp = spacy.blank("en")
    nlp.add_pipe("test_distil_breaks")
    nlp.add_pipe("crf_ner", source=teacher)
    monkeypatch.setattr("spacy_crf.cli.distil.load_pipeline", lambda *_: nlp)
    raw, output = tmp_path / "raw.txt", tmp_path / "corpus.spacy"
    raw.write_text("\n".join(RAW), encoding="utf8")
    output.write_bytes(b"before")
    done = run("teacher", raw, "-o", output, "--n-process", n_process)
    assert done.exit_code == 1 and output.read_bytes() == b"before"
    said = " ".join(done.output.split())
    assert "CRF787" in said and "line 2" in said and "'test_distil_breaks': no such thing" in said, done.output


def test_broken_json_is_no_text_wherever_it_stands(teacher, tmp_path, monkeypatch):
    """From the standard input, and in a file of another name, a line that was cut off was annotated as it is."""
    monkeypatch.setattr("spacy_crf.cli.distil.load_pipeline", lambda *_: teacher)
    raw = '{"text": "Ann Lee"}\n{"text": "Bob'
    (tmp_path / "raw.txt").write_text(raw, encoding="utf8")
    for source, place in ((tmp_path / "raw.txt", "raw.txt, line 2"), ("-", "the standard input, line 2")):
        done = run("teacher", source, "-o", tmp_path / "corpus.spacy", input=raw)
        assert done.exit_code == 1 and re.search(f"CRF701:.*{place}", " ".join(done.output.split())), done.output


@pytest.mark.parametrize(
    "lines, options, code",
    [
        ([b'{"text": "a"}', b"{"], (), "CRF701"),
        ([b'{"text": "a"}', b'{"words": 1}'], (), "CRF709"),
        ([b'{"text": "\xff"}'], (), "CRF701"),
        ([b""], (), "CRF833"),
        ([b'{"text": "a"}'], ("--labels", "PER,NOBODY"), "CRF846"),
        ([b'{"text": "a"}'], ("--component", "ner"), "CRF710"),
        ([b'{"text": "a"}'], ("--min-prob", "2"), "CRF020"),
        ([b'{"text": "a"}'], ("--n-process", "0"), "CRF020"),
    ],
)
def test_bad_input(teacher, tmp_path, monkeypatch, lines, options, code):
    monkeypatch.setattr("spacy_crf.cli.distil.load_pipeline", lambda *_: teacher)
    (tmp_path / "raw.jsonl").write_bytes(b"\n".join(lines))
    done = run("teacher", tmp_path / "raw.jsonl", "-o", tmp_path / "corpus.spacy", *options)
    assert done.exit_code == 1 and code in done.output, done.output
    if code in ("CRF701", "CRF709"):
        assert f"line {len(lines)}" in " ".join(done.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["raw.jsonl"]
    assert teacher.pipe_names == ["crf_ner"]


def test_teacher_to_student(teacher, texts, tmp_path):
    """All the way: the student has never seen an annotated text, and finds what its teacher finds."""
    teacher.to_disk(tmp_path / "teacher")
    raw = [plain(example.reference).text for example in ner_examples(teacher)]
    texts.write_text("\n".join(json.dumps({"text": text.strip()}) for text in raw), encoding="utf8")
    corpus = tmp_path / "corpus.spacy"
    done = run(tmp_path / "teacher", texts, "-o", corpus)
    assert done.exit_code == 0, done.output
    DocBin(docs=[example.reference for example in ner_examples(teacher)]).to_disk(tmp_path / "dev.spacy")
    config = load_config(CONFIG)
    config["components"]["crf_ner"]["loss"] = {"@losses": "spacy_crf.SoftLabels.v1"}
    config.to_disk(tmp_path / "student.cfg")
    paths = {"paths.train": str(corpus), "paths.dev": str(tmp_path / "dev.spacy")}
    train(tmp_path / "student.cfg", tmp_path / "student", overrides=paths)
    student = spacy.load(tmp_path / "student" / "model-best")
    for text in raw:
        words = Doc(student.vocab, words=text.split())
        assert entities(student(words)) == entities(teacher(Doc(teacher.vocab, words=text.split())))
