"""``python -m spacy crf annotate``: what it writes is read back, and what was stopped goes on."""

import errno
import json
import os
import re
from io import FileIO

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import DocBin, Span
from typer.testing import CliRunner

from spacy_crf import whole_files
from spacy_crf.cli import annotate as command
from spacy_crf.cli import app
from spacy_crf.cli.annotate import AnnotateOptions, Annotator, annotate_file
from spacy_crf.cli.formats import ReadSettings
from spacy_crf.cli.formats.writers import WRITERS, check_spans
from spacy_crf.cli.formats.writers import Annotated as Found
from spacy_crf.cli.texts import read_docs
from spacy_crf.workers import work_folder
from spacy_crf.workers.work_folder import LocalFiles, Lock, check_ours
from tests.pipeline.test_probabilities import trained
from tests.util import draws, tag_examples

TEXTS = ["Ann Lee lives in New York.", "Bob left Rome .", "Nobody came.", 'He said\n"Zoë 😀" to Bob Lee'] * 2
BLANK = spacy.blank("en")


@pytest.fixture(scope="module")
def nlp():
    return trained()


@pytest.fixture(scope="module")
def folder(nlp, tmp_path_factory):
    """With the pipeline and texts. Do not change."""
    folder = tmp_path_factory.mktemp("annotate")
    nlp.to_disk(folder / "model")
    items = [json.dumps({"text": text, "meta": {"n": n}}) for n, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(f"{item}\n" for item in items))
    return folder


def run(*args, stdin=None):
    result = CliRunner().invoke(app, ["annotate", *map(str, args)], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def spans_of(docs):
    """Without white space, which columns do not tell."""
    found = []
    for doc in docs:
        words = [token.text for token in doc if not token.is_space]
        spans = [([token.text for token in span if not token.is_space], span.label_) for span in doc.ents]
        found.append((words, spans))
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_read_back(nlp, folder, tmp_path, name):
    code, output = run(folder / "model", folder / "texts.jsonl", "-o", tmp_path / f"out.{name}", "--format", name)
    assert code == 0, output
    assert "8 texts" in output
    source = tmp_path / f"out.{name}"
    if name == "spacy":
        docs = list(DocBin().from_disk(source).get_docs(BLANK.vocab))
    else:
        docs = read_docs(source, BLANK, ReadSettings(predictions=True, n_sents=0))
    expected = spans_of(nlp.pipe(TEXTS))
    assert any(spans for _, spans in expected) and spans_of(docs) == expected
    assert [path.name for path in tmp_path.iterdir()] == [f"out.{name}"]


words = st.sampled_from(
    ["Ann", "Zoë", "😀", "#", "-", "O", '"', "''", "|", ",", "B-PER", "\\", "&", "日本", "\u200b", "[", "{"]
)
spaces = st.sampled_from([" ", "", "  ", "\n", "\t", "\u2028", "\x85", "\r\n", "\xa0"])


@draws(30)
@given(st.lists(st.tuples(words, spaces, st.sampled_from(["O", "B", "I"])), min_size=1, max_size=8))
def test_whatever_is_written_is_read_back(folder, parts):
    doc = BLANK.make_doc("".join(word + space for word, space, _ in parts))
    tags = [tag for (*_, tag), _ in zip(parts * len(doc), doc)]
    spans, start = [], 0
    for i, token in enumerate(doc):  # neither begins nor ends with white space
        if tags[i] == "B" and not token.is_space:
            end = i + 1
            while end < len(doc) and tags[end] == "I" and not doc[end].is_space:
                end += 1
            if i >= start:
                spans.append(Span(doc, i, end, "X"))
                start = end
    doc.set_ents(spans)
    for name, writer in WRITERS.items():
        path = folder / f"any.{name}"
        with path.open("wb") as file:
            writer.join([writer.render(Found(doc, {}, [(span, 1.0) for span in doc.ents], []))], file, BLANK.vocab)
        if all(token.is_space for token in doc) and name == "conll":
            continue  # which knows no white space
        [read] = read_docs(path, BLANK, ReadSettings(predictions=True, n_sents=0, without_spans=True, scheme="BIO"))
        assert spans_of([read]) == spans_of([doc]), name


def test_what_came_with_the_texts_is_kept(folder, tmp_path):
    run(folder / "model", folder / "texts.jsonl", "-o", tmp_path / "out.jsonl")
    items = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [item["meta"]["n"] for item in items] == list(range(8))
    assert [item["meta"]["place"] for item in items] == [f"{folder / 'texts.jsonl'}, line {n}" for n in range(1, 9)]
    assert all(0 < span["prob"] <= 1 for item in items for span in item["spans"])


def test_the_least_certain_come_first(nlp, folder, tmp_path):
    ner = nlp.get_pipe("crf_ner")
    code, output = run(folder / "model", folder / "texts.jsonl", "-o", tmp_path / "out.jsonl", "--sort", "uncertainty")
    assert code == 0, output
    found = [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    doubt = {text: 1 - ner.marginals(nlp.make_doc(text))[0].max(axis=1).mean() for text in TEXTS}
    assert sorted(found) == sorted(TEXTS)
    assert [doubt[text] for text in found] == sorted(doubt[text] for text in found)[::-1]


def test_less_probable_spans_are_left_out(nlp, folder, tmp_path):
    """In formats that tell of tokens their tokens are missing annotation, not outside."""
    docs = list(nlp.pipe(TEXTS))
    probabilities = sorted(span._.crf_prob for doc in docs for span in doc.ents) if docs[0].ents[0]._.crf_prob else []
    limit = 0.9 if not probabilities else probabilities[len(probabilities) // 2]
    for name in ("doccano", "conll", "spacy"):
        target = tmp_path / f"out.{name}"
        code, output = run(
            folder / "model", folder / "texts.jsonl", "-o", target, "--format", name, "--min-prob", limit
        )
        assert code == 0 and "less probable ones left out" in output, output
    [doccano, conll, of_spacy] = [read_docs(tmp_path / f"out.{name}", BLANK) for name in ("doccano", "conll", "spacy")]
    n = sum(len(doc.ents) for doc in doccano)
    assert 0 < n < sum(len(doc.ents) for doc in docs)
    assert sum(len(doc.ents) for doc in conll) == sum(len(doc.ents) for doc in of_spacy) == n
    missing = [
        sum(token.ent_iob == 0 for doc in made for token in doc if not token.is_space) for made in (conll, of_spacy)
    ]
    assert missing[0] == missing[1] > 0


def annotate(folder, target, options, *, stops_after=None, texts="texts.jsonl"):
    """In batches of two texts. RETURNS (list[str]): The texts that were annotated, until the command was stopped."""
    seen, records = [], Annotator.records

    def watched(self, items, *args):
        for item in items:
            if len(seen) == stops_after:
                raise KeyboardInterrupt
            seen.append(item.value["text"])
            yield from records(self, [item], *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "TEXTS", 2)
        patched.setattr(Annotator, "records", watched)
        try:
            found = annotate_file(
                AnnotateOptions(str(folder / "model"), None, str(target), *options), folder / texts, lambda *_: None
            )
            assert found["texts"] == len((folder / texts).read_text().splitlines())
        except KeyboardInterrupt:
            assert stops_after is not None and not target.exists()
    return seen


@pytest.mark.parametrize("name", ["prodigy", "labelstudio", "spacy"])
@pytest.mark.parametrize("sort", [None, "uncertainty"])
def test_what_was_stopped_goes_on(nlp, folder, tmp_path, name, sort):
    options, target = (name, sort), tmp_path / "out"
    annotate(folder, tmp_path / "whole", options)
    assert annotate(folder, target, options, stops_after=5) == TEXTS[:5]
    assert len(list((tmp_path / "out.part").glob("part-*"))) == 2
    assert annotate(folder, target, options) == TEXTS[4:]
    assert not (tmp_path / "out.part").exists()
    if name == "spacy":
        one, other = (list(DocBin().from_disk(tmp_path / path).get_docs(nlp.vocab)) for path in ("whole", "out"))
        assert spans_of(one) == spans_of(other)
    else:
        assert target.read_bytes() == (tmp_path / "whole").read_bytes()


def test_work_goes_on_with_the_same_only(folder, tmp_path):
    options, target = ("prodigy",), tmp_path / "out"
    annotate(folder, target, options, stops_after=0)
    assert not (tmp_path / "out.part").exists()  # nothing was done
    annotate(folder, target, options, stops_after=2)
    with pytest.raises(ValueError, match=r"CRF786.*options"):
        annotate(folder, target, ("doccano",))
    part = tmp_path / "out.part"
    (folder / "others.jsonl").write_text((folder / "texts.jsonl").read_text().replace("Bob left Rome", "Bob left"))
    manifest = part / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace("texts.jsonl", "others.jsonl"))
    with pytest.raises(ValueError, match=r"CRF786.*the texts from .*line 1 on are others"):
        annotate(folder, target, options, texts="others.jsonl")
    manifest.write_text("{")
    with pytest.raises(ValueError, match=r"CRF786.*manifest"):
        annotate(folder, target, options)


def _entry(**changes):
    entry = {
        "file": "part-00000.jsonl",
        "bytes": None,
        "checksum": 0,
        "texts": 1,
        "spans": 0,
        "doubtful": 0,
        "errors": [],
    }
    return {name: value for name, value in {**entry, **changes}.items() if value != "left out"}


PREPARED = {
    "another folder": [0, _entry(file="{victim}")],
    "the folder above": [0, _entry(file="../victim.jsonl")],
    "the manifest": [0, _entry(file="manifest.jsonl", bytes=10**9)],
    "another number": [1, _entry(bytes=24)],
    "no number": ["0", _entry(bytes=24)],
    "negative": [0, _entry(bytes=24, texts=-1)],
    "no counts": [0, _entry(bytes=24, spans="left out")],
    "counts of text": [0, _entry(bytes=24, spans="3")],
    "no errors": [0, _entry(bytes=24, errors=[1])],
    "no entry": [0, 3],
    "no file": [0, {"texts": 1}],
    "no name": [0, _entry(file=["x"])],
    "no pair": 0,
    "no key": [[], _entry(bytes=24)],
}


@pytest.mark.parametrize("name", PREPARED)
def test_a_prepared_manifest_leads_to_no_other_file(name, folder, tmp_path):
    """A manifest that names a file elsewhere had this file copied into the output, and deleted; others were raw KeyErrors."""
    target, victim = tmp_path / "out", tmp_path / "victim.jsonl"
    victim.write_text('[0.5, "secret"]\n')
    annotate(folder, target, ("prodigy",), stops_after=2)
    manifest = tmp_path / "out.part" / "manifest.jsonl"
    head = manifest.read_text().splitlines()[0]
    manifest.write_text(f"{head}\n{json.dumps(PREPARED[name])}\n".replace("{victim}", str(victim)))
    try:
        annotate(folder, target, ("prodigy",))
    except ValueError as error:
        assert str(error).startswith("CRF786")
    else:
        assert "secret" not in target.read_text()
    assert victim.read_text() == '[0.5, "secret"]\n'


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners on this system")
def test_links_and_what_others_have_prepared_is_not_taken(folder, tmp_path, monkeypatch):
    """The file `lock` was opened through links and emptied."""
    target, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("precious")
    for name in ("lock", "manifest.jsonl", "part-00000.jsonl"):
        part = tmp_path / "out.part"
        part.mkdir()
        (part / name).symlink_to(victim)
        with pytest.raises(ValueError, match=rf"CRF981.*{name} is a link"):
            annotate(folder, target, ("prodigy",))
        (part / name).unlink()
        part.rmdir()
    os.mkfifo(tmp_path / "lock")
    for path, reason in ((tmp_path / "link", "a link"), (tmp_path / "lock", "not a regular file")):
        if reason == "a link":
            path.symlink_to(victim)
            with pytest.raises(ValueError, match=f"CRF981.*{reason}"):
                Lock(path)
            path.unlink()
        with pytest.raises(ValueError, match="CRF981"):
            check_ours(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "out.part").symlink_to(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"CRF981.*not a folder"):
        annotate(folder, target, ("prodigy",))
    (tmp_path / "out.part").unlink()
    annotate(folder, target, ("prodigy",), stops_after=2)
    monkeypatch.setattr(work_folder, "_owner_of_new_files", lambda folder: os.getuid() + 1)
    with pytest.raises(ValueError, match=r"CRF981.*of another user"):
        annotate(folder, target, ("prodigy",))
    assert victim.read_text() == "precious"


def test_a_folder_with_other_files_keeps_them(folder, tmp_path):
    """It was refused, and then deleted with all that was in it."""
    kept = tmp_path / "out.part" / "precious.txt"
    kept.parent.mkdir()
    kept.write_text("precious")
    with pytest.raises(ValueError, match=r"CRF786.*other files"):
        annotate(folder, tmp_path / "out", ("prodigy",))
    assert kept.read_text() == "precious"


def test_a_damaged_part_is_told(folder, tmp_path):
    annotate(folder, tmp_path / "out", ("prodigy",), stops_after=2)
    part = tmp_path / "out.part" / "part-00000.jsonl"
    part.write_bytes(b"[" + b"x" * (part.stat().st_size - 1))
    with pytest.raises(ValueError, match=r"CRF786.*part-00000.jsonl"):
        annotate(folder, tmp_path / "out", ("prodigy",))


def test_standard_input_and_output(folder, tmp_path):
    stdin = 'Bob left Rome .\n{"text": "Nobody came.", "id": 7}\n'
    for options in ([], ["--sort", "uncertainty"]):
        result = CliRunner().invoke(app, ["annotate", str(folder / "model"), "-", *options], input=stdin)
        items = [json.loads(line) for line in result.stdout.splitlines()]  # and nothing else
        assert sorted(item["text"] for item in items) == ["Bob left Rome .", "Nobody came."]
        assert {item.get("id") for item in items} == {None, 7}
    code, output = run(folder / "model", "-", "-o", tmp_path / "out.jsonl", stdin=stdin)
    assert code == 0 and "2 texts" in output


BAD = {
    "annotated": ('{"text": "Ann", "label": [[0, 3, "PER"]]}\n', "CRF873: .*texts.jsonl, line 1: 'label'"),
    "no text": ('{"text": "Ann"}\n{"texte": "Bob"}\n', "CRF709: .*texts.jsonl, line 2"),
    "no JSON": ('{"text": "Ann"}\n{"text": \n', "CRF701: .*texts.jsonl, line 2"),
    "empty": ("", "CRF784"),
}


@pytest.mark.parametrize("kind", BAD)
def test_texts_that_cannot_be_annotated(folder, tmp_path, kind):
    text, says = BAD[kind]
    (tmp_path / "texts.jsonl").write_text(text)
    code, output = run(folder / "model", tmp_path / "texts.jsonl", "-o", tmp_path / "out.jsonl")
    assert code == 1 and re.search(says, output), output
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "name, content, title",
    [("texts.xlsx", b"PK\x03\x04\x14\xff", "an Excel file"), ("texts.txt", b"%PDF-1.4\n%\xe2\xe3", "a PDF")],
)
def test_files_that_are_no_texts_are_named(folder, tmp_path, name, content, title):
    """They were told to name another encoding, which this command does not take."""
    (tmp_path / name).write_bytes(content)
    code, output = run(folder / "model", tmp_path / name, "-o", tmp_path / "out.jsonl")
    assert code == 1 and re.search(rf"CRF756: .*{name} is {title}", output), output


def test_tags_are_written_as_columns_or_docs(tmp_path):
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger")
    examples = tag_examples(nlp)
    tagger.initialize(lambda: examples, nlp=nlp)
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("the dog barks\n")
    with pytest.raises(ValueError, match=r"CRF874: .*'prodigy'.*conll or spacy"):
        annotate(tmp_path, tmp_path / "out", ("prodigy",), texts="texts.txt")
    assert not (tmp_path / "out.part").exists()  # nothing is in it
    annotate(tmp_path, tmp_path / "out.conll", ("conll",), texts="texts.txt")
    [doc] = read_docs(tmp_path / "out.conll", BLANK, ReadSettings(tag_column="2"))
    assert [token.tag_ for token in doc] == [token.tag_ for token in nlp("the dog barks")]


def test_labels_of_texts_are_not_lost_in_columns():
    """They were written as columns without any annotation."""
    doc = BLANK("where is my order")
    doc.cats = {"TRACK": 0.9}
    check_spans("spans", doc)
    check_spans("spacy", doc)
    for name in ("conll", "prodigy"):
        with pytest.raises(ValueError, match=f"CRF874: .*'{name}'.*labels of texts as spans or spacy"):
            check_spans(name, doc)


def test_a_full_disk_is_told_with_the_file_and_work_goes_on(folder, tmp_path, monkeypatch):
    """It was told without one, by the journal as by the output; what a killed process left beside that is removed."""
    texts, output = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    texts.write_text("Ann ran.\n" * 3, encoding="utf8")
    left = tmp_path / f".out.jsonl-{'0' * 32}"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullFile(FileIO):
        write = full

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "open", lambda self, path, mode: FullFile(path, mode))
        code, said = run(folder / "model", texts, "-o", output)
        assert code == 1 and re.search(rf"CRF475: .*{output}.part/.*No space left", said), said
    with monkeypatch.context() as patched:
        patched.setattr(whole_files.os, "fsync", full)
        code, said = run(folder / "model", texts, "-o", output)
        assert code == 1 and "CRF706" in said and "can't be read or written: No space left on device (make room" in said
    assert run(folder / "model", texts, "-o", output)[0] == 0
    assert len(output.read_text(encoding="utf8").splitlines()) == 3
    assert not left.exists()


def test_a_text_that_is_too_long_is_named(tmp_path):
    """spaCy's E088 names neither file nor line."""
    spacy.blank("en").to_disk(tmp_path / "model")
    long = "".join(f"{json.dumps({'text': text})}\n" for text in ("Ann ran", "so long " * 130_000))
    (tmp_path / "texts.jsonl").write_text(long)
    code, output = run(tmp_path / "model", tmp_path / "texts.jsonl", "-o", tmp_path / "out.jsonl", "--format", "spacy")
    assert code == 1 and "CRF878" in output and "texts.jsonl, line 2: the text has 1,040,000 characters" in output
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "model")], input=long)
    assert shown.exit_code == 1 and "the standard input, line 2: the text has 1,040,000 characters" in shown.output
