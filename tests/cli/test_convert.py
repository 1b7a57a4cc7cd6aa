"""``python -m spacy crf convert``: what it reads, what it refuses, and that nothing is lost without a word."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Corpus, iob_to_biluo
from thinc.api import Adam
from typer.testing import CliRunner

from spacy_crf import whole_files
from spacy_crf.cli import app
from spacy_crf.cli.formats import ReadSettings, Report
from spacy_crf.cli.texts import items_of_line, read_docs, read_examples
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.annotation.spans import with_levels
from tests.util import entities


@pytest.fixture
def jsonl(tmp_path):
    def write(*items):
        path = tmp_path / "items.jsonl"
        lines = [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in items]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
        return path

    return write


@pytest.fixture
def columns(tmp_path):
    def write(text):
        path = tmp_path / "tokens.conll"
        path.write_text(text, encoding="utf8", newline="")
        return path

    return write


def item(text, *spans, **others):
    return {"text": text, "spans": [dict(zip(("start", "end", "label"), span)) for span in spans], **others}


def convert(path, *, report=None, **settings):
    return read_docs(path, spacy.blank("en"), ReadSettings(**{"without_spans": True, **settings}), report=report)


def test_texts_of_spacy_files_that_are_too_long(tmp_path):
    """Such a text stopped commands with spaCy's E088, which names no file."""
    nlp = spacy.blank("en")
    DocBin(docs=[nlp("Ann ran"), nlp("so long " * 6)]).to_disk(tmp_path / "a.spacy")
    nlp.max_length = 40
    for read in (read_docs, read_examples):
        with pytest.raises(ValueError, match=r"CRF878.*a\.spacy, document 2: the text has \d\d characters"):
            read(tmp_path / "a.spacy", nlp)


def run(*args):
    result = CliRunner().invoke(app, ["convert", *(str(arg) for arg in args)])
    return result.exit_code, " ".join(result.output.split())


# ----------------------------------------------------------------------------------------------------------- JSONL


def test_jsonl(jsonl):
    path = jsonl(
        item("Ann lives in New York.", (13, 21, "GPE"), (0, 3, "PER"), meta={"source": "me"}, answer="accept"),
        "",
        item("Nobody."),
        {"text": ""},
        item("naïve café 😀 Zoë", (13, 16, "PER")),
    )
    docs = convert(path)
    assert [entities(doc) for doc in docs] == [[(0, 1, "PER"), (3, 5, "GPE")], [], [], [(3, 4, "PER")]]
    assert [token.ent_iob_ for token in docs[1]] == ["O", "O"]  # known to be outside, not missing


def test_a_separator_within_a_text_ends_no_line(jsonl):
    assert [doc.text for doc in convert(jsonl(item("one\u2028two\x85three")))] == ["one\u2028two\x85three"]


def test_lines_of_raw_texts_keep_all_but_blanks_at_their_ends():
    """Paragraphs of Japanese and Chinese texts begin with an ideographic space, which moved all offsets."""
    [item] = items_of_line(" \u3000Ann\u00a0 \r\n", "here")
    assert item.value == {"text": "\u3000Ann\u00a0"}
    assert items_of_line(" \t\n", "here") == []


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n')
    assert [doc.text for doc in convert(path)] == ["one", "two"]


def test_misaligned_spans_are_missing_annotation_and_reported(jsonl):
    report = Report()
    [doc] = convert(
        jsonl(item("Annabel met Bob in Rome", (0, 3, "PER"), (12, 15, "PER"), (17, 23, "GPE"))), report=report
    )
    assert entities(doc) == [(2, 3, "PER")]
    assert [token.ent_iob_ for token in doc] == ["", "O", "B", "", ""]
    assert [place.partition(", ")[2] for place in report.misaligned] == [
        "line 1, 0-3 'Ann' (PER)",
        "line 1, 17-23 'n Rome' (GPE)",
    ]


def test_a_misaligned_span_leaves_its_neighbour_alone(jsonl):
    [doc] = convert(jsonl(item("Bob's Annabel", (0, 4, "PER"), (6, 13, "PER"))))
    assert entities(doc) == [(2, 3, "PER")]


def test_white_space_at_the_ends_of_spans_is_left_out(jsonl):
    report = Report()
    [doc] = convert(jsonl(item("met  Ann \n in Rome ", (4, 10, "PER"), (14, 19, "GPE"))), report=report)
    assert [span.text for span in doc.ents] == ["Ann", "Rome"]
    assert [place.partition(", ")[2] for place in report.trimmed] == [
        "line 1, 4-10 ' Ann \n' (PER)",
        "line 1, 14-19 'Rome ' (GPE)",
    ]
    assert not report.misaligned


def test_of_spans_that_overlap_the_longest_is_kept_and_the_others_told(jsonl, tmp_path):
    path = jsonl(item("New York City Halls", (0, 8, "GPE"), (4, 13, "GPE"), (9, 19, "FAC"), (9, 19, "ORG")))
    report = Report()
    [doc] = convert(path, report=report, overlaps="longest")
    assert [(span.text, span.label_) for span in doc.ents] == [("New York", "GPE"), ("City Halls", "FAC")]
    assert [place.partition(", ")[2] for place in report.overlapping] == [
        "line 1, 9-19 'City Halls' (ORG) within 9-19 'City Halls' (FAC)",
        "line 1, 4-13 'York City' (GPE) within 9-19 'City Halls' (FAC)",
    ]
    code, output = run(path, "-o", tmp_path / "out.spacy")
    assert code == 0 and "2 entities" in output and "2 spans overlap" in output
    code, output = run(path, "-o", tmp_path / "out.spacy", "--overlaps", "error")
    assert code == 1 and "CRF702" in output


def test_a_span_between_tokens_is_reported(jsonl):
    report = Report()
    [doc] = convert(jsonl(item("Bob ran", (3, 4, "PER"))), report=report)
    assert [token.ent_iob_ for token in doc] == ["O", "O"]
    assert len(report.misaligned) == 1


def test_the_command_reports_the_first_three_places(jsonl, tmp_path):
    path = jsonl(*[item(f"Annabel{n}", (0, 3, "PER")) for n in range(5)])
    code, output = run(path, "-o", tmp_path / "out.spacy", "--without-spans")
    assert code == 0
    assert "5 spans do not align" in output
    assert [f"line {n}" in output for n in range(1, 6)] == [True, True, True, False, False]


def test_rejected_items_are_left_out_and_reported(jsonl, tmp_path):
    path = jsonl(item("one"), item("two", answer="reject"), item("three", answer="ignore"))
    code, output = run(path, "-o", tmp_path / "out.spacy", "--without-spans")
    assert code == 0
    assert "1 document" in output
    assert "2 texts not accepted" in output


@pytest.mark.parametrize(
    "bad, says",
    [
        ('{"text": "one"', "not JSON"),
        ("[]", 'no "text"'),
        ('{"spans": []}', 'no "text"'),
        ('{"text": 1}', 'no "text"'),
        ('{"text": "one", "spans": {}}', "not a list"),
        (item("one", (0, 4, "X")), "within the 3 characters"),
        (item("one", (2, 2, "X")), '"start" < "end"'),
        (item("one", (-1, 2, "X")), '"start" < "end"'),
        (item("one", ("0", 2, "X")), '"start" < "end"'),
        (item("one", (0, 3)), 'a "label"'),
        (item("one", (0, 3, "")), 'a "label"'),
        ({"text": "one", "spans": [[0, 3]]}, '"start" < "end"'),
        ({"text": "one", "spans": [[0, 3, "X", "Q1"]]}, '"start" < "end"'),
        ({"text": "one", "spans": [[False, True, "X"]]}, '"start" < "end"'),
        ({"text": "one", "label": ["B-X", "O"]}, '"start" < "end"'),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_lines_are_named(jsonl, bad, says):
    path = jsonl(item("good"), bad)
    with pytest.raises(ValueError) as error:
        convert(path)
    assert f"CRF701: {path}, line 2" in str(error.value)
    assert says in str(error.value)


@pytest.mark.parametrize("second", [(2, 7, "B"), (0, 3, "B"), (0, 3, "A"), (1, 2, "B")])
def test_overlapping_spans_are_both_named(jsonl, second):
    path = jsonl(item("one two", second, (0, 3, "A")))
    with pytest.raises(ValueError, match=r"CRF702.*line 1") as error:
        convert(path)
    assert "'one' (A)" in str(error.value)
    assert f"({second[2]})" in str(error.value)


@pytest.mark.parametrize("mark", [{"_is_binary": True}, {"_view_id": "ner"}])
def test_answers_to_single_spans_say_nothing_of_the_rest(jsonl, tmp_path, mark):
    """As `ner.teach` of Prodigy asks. The rest of the text was taken to be outside, and what was rejected was lost."""
    asked = item("Ann met Bob", (0, 3, "PER"), **mark)
    path = jsonl({**asked, "answer": "accept"}, {**asked, "answer": "reject"}, {**asked, "answer": "ignore"})
    accepted, rejected = convert(path)
    assert [token.ent_iob_ for token in accepted] == ["B", "", ""]
    assert [token.ent_iob_ for token in rejected] == ["", "", ""]
    assert [(span.start, span.end, span.label_) for span in rejected.spans["incorrect_spans"]] == [(0, 1, "PER")]
    code, output = run(path, "-o", tmp_path / "out.spacy")
    assert (
        code == 0 and "1 entity, 1 span annotated as wrong" in output and "2 answers are about a single span" in output
    )
    only_rejected = jsonl({**asked, "answer": "reject"})
    assert run(only_rejected, "-o", tmp_path / "out.spacy")[0] == 0
    [doc] = DocBin().from_disk(tmp_path / "out.spacy").get_docs(spacy.blank("en").vocab)
    assert len(doc.spans["incorrect_spans"]) == 1


def test_not_utf8(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(ValueError, match="line 2: can't be read: it is not UTF-8"):
        convert(path)


@pytest.mark.parametrize(
    "line",
    [
        {"text": "Ann ran", "label": [[0, 3, "PER"]]},  # doccano
        {"id": 7, "text": "Ann ran", "labels": [[0, 3, "PER"]], "Comments": []},
        {
            "text": "Ann ran",
            "entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}],
            "relations": [],
        },
        {"text": "Ann ran", "entities": [[0, 3, "PER"]], "meta": {"page": 3, "offsets": [1, 2]}},  # spaCy
        ["Ann ran", {"entities": [[0, 3, "PER"]]}],
        {  # Prodigy
            "text": "Ann ran",
            "tokens": [{"text": "Ann", "start": 0, "end": 3, "id": 0, "ws": True}],
            "spans": [{"start": 0, "end": 3, "token_start": 0, "token_end": 0, "label": "PER"}],
            "label": "PER",
            "options": [{"id": "PER", "text": "person"}],
            "_input_hash": 1,
            "answer": "accept",
        },
        {"text": "Ann ran", "spans": [{"start": 0, "end": 3, "label": "PER"}], "entities": [], "label": None},
    ],
)
def test_spans_are_found_where_tools_write_them(jsonl, line):
    [doc] = convert(jsonl(line))
    assert entities(doc) == [(0, 1, "PER")]


UNKNOWN = [
    ("ents", [{"start": 0, "end": 3, "label": "PER"}]),
    ("annotations", {"entities": [[0, 3, "PER"]]}),
    ("result", [{"value": {"start": 0, "end": 3, "labels": ["PER"]}}]),
    ("mine", [[0, 3, "PER"]]),
    ("gold", ["B-PER", "O"]),
    ("relations", [{"from_id": 1, "to_id": 2, "type": "knows"}]),
]


@pytest.mark.parametrize("key, value", UNKNOWN)
def test_annotation_that_is_not_understood_is_an_error(jsonl, tmp_path, key, value):
    path = jsonl(item("one"), {**item("Ann ran", (0, 3, "PER")), key: value})
    with pytest.raises(ValueError, match=f"CRF707.*line 2: '{key}'.*--ignore {key}"):
        convert(path)
    assert [len(doc.ents) for doc in convert(path, ignore=[key])] == [0, 1]
    code, output = run(path, "-o", tmp_path / "out.spacy", "--ignore", key)
    assert code == 0 and "1 entity" in output


def test_labels_of_texts(jsonl, tmp_path):
    """Of entities a text with labels alone says nothing."""
    lines = [
        {"text": "Ann ran", "cats": {"SPORT": 1, "NEWS": False}},
        {**item("Bob", (0, 3, "PER")), "cats": {"NEWS": True}},
    ]
    path = jsonl(*lines, {"text": "no label", "cats": {}})
    docs = convert(path)
    assert [doc.cats for doc in docs] == [{"SPORT": 1.0, "NEWS": 0.0}, {"NEWS": 1.0}, {}]
    assert [doc.has_annotation("ENT_IOB") for doc in docs[:2]] == [False, True]
    code, output = run(path, "-o", tmp_path / "out.spacy")
    assert code == 0 and "2 documents with labels" in " ".join(output.split())
    for wrong in ({"SPORT": 0.5}, {"SPORT": "yes"}, [["SPORT", 1]], {"": 1}, {"SPORT": [1]}):
        with pytest.raises(ValueError, match=r"CRF880.*line 1.*labels of a text"):
            convert(jsonl({"text": "Ann ran", "cats": wrong}))


ONE_LABEL = "text,label\nplay some jazz,MUSIC\nis there rain,WEATHER\nplay it,MUSIC\nmore snow here,WEATHER\n"
SEVERAL = '{"text": "play some jazz", "label": ["MUSIC", "LOUD"]}\n{"text": "is there rain", "label": ["WEATHER"]}\n'


@pytest.mark.parametrize("factory", ["crf_textcat", "textcat", "textcat_multilabel"])
def test_labels_of_texts_are_trained_with_as_they_are_converted(tmp_path, factory):
    name, text, says = (
        ("a.jsonl", SEVERAL, "some with several labels")
        if "multi" in factory
        else ("a.csv", ONE_LABEL, "one label each")
    )
    (tmp_path / name).write_text(text)
    code, output = run(tmp_path / name, "-o", tmp_path / "out.spacy")
    assert code == 0 and "documents with labels (doc.cats; " in output and says in output
    nlp = spacy.blank("en")
    nlp.add_pipe(factory)
    examples = list(Corpus(tmp_path / "out.spacy")(nlp))
    optimizer = LBFGS(l2=0.01) if factory == "crf_textcat" else Adam(0.01)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    for example in examples:
        annotated, found = example.reference.cats, nlp(example.reference.text).cats
        assert found.keys() == annotated.keys()
        if factory == "crf_textcat":
            assert {label: round(share) for label, share in found.items()} == annotated


def test_a_folder_of_brat(tmp_path):
    """One file of all its texts, beside those of other formats."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, label in (("a", "PER"), ("b", "ORG")):
        (folder / f"{name}.txt").write_text("Ann ran")
        (folder / f"{name}.ann").write_text(f"T1\t{label} 0 3\tAnn\nR1\tmet Arg1:T1 Arg2:T1\n")
    (folder / "c.conll").write_text("Bob B-PER\nran O\n")
    code, output = run(folder, "-o", tmp_path / "out")
    assert code == 0 and "brat's standoff" in output and "2 documents, 2 entities" in output
    assert "2 relations can't be kept in doc.ents, and are left out" in output and "line 2" in output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["c.spacy", "corpus.spacy"]
    assert len(read_examples(folder, spacy.blank("en"))) == 2  # as the commands take it that want annotated texts
    told = CliRunner().invoke(app, ["data", str(folder)])
    assert told.exit_code == 0 and "2 documents" in told.output and "2 relations" in told.output
    (folder / "b.txt").unlink()
    code, output = run(folder, "-o", tmp_path / "out")
    assert code == 1 and "CRF701" in output and "b.txt is missing" in output


def test_one_key_counts(jsonl):
    both = {"text": "Ann ran", "spans": [{"start": 0, "end": 3, "label": "PER"}], "entities": [[0, 3, "ORG"]]}
    with pytest.raises(ValueError, match=r"CRF714.*line 1: 'spans' and 'entities'.*--ignore entities"):
        convert(jsonl(both))
    assert entities(convert(jsonl(both), ignore=["entities"])[0]) == [(0, 1, "PER")]


# --------------------------------------------------------------------------------------------------------- columns


LINES = ["-DOCSTART-|O", "", "Ann|B-PER", "Lee|I-PER", "Bob|B-PER", "#|O", "", "", "Hi|-", "!|O"]


@pytest.mark.parametrize("separator", ["\t", " ", "   "])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_columns(columns, separator, newline):
    docs = convert(columns(newline.join(LINES).replace("|", separator)))
    assert [entities(doc) for doc in docs] == [[(0, 2, "PER"), (2, 3, "PER")], []]
    assert [token.text for token in docs[0]] == ["Ann", "Lee", "Bob", "#"]
    assert [token.ent_iob_ for token in docs[1]] == ["", "O"]


@pytest.mark.parametrize("comment", ["# id 7", "# a longer comment", "#"])
def test_comments(columns, comment):
    assert [doc.text for doc in convert(columns(f"# sent_id = 1\nAnn\tB-PER\n{comment} \nran\tO\n"))] == ["Ann ran "]


def test_words_may_hold_spaces_between_tabs(columns):
    [doc] = convert(columns("10 000\tB-N\n\u00a0\tO\n"))
    assert [token.text for token in doc] == ["10 000", "\u00a0"]


def test_tag_column_beside_entities(columns):
    [doc] = convert(columns("Ann NNP B-PER\nran VBD O\n"), tag_column="2")
    assert [token.tag_ for token in doc] == ["NNP", "VBD"]
    assert entities(doc) == [(0, 1, "PER")]


def test_tag_column_alone(columns):
    [doc] = convert(columns("Ann NNP\nran VBD\n"), tag_column="2")
    assert [token.tag_ for token in doc] == ["NNP", "VBD"]
    assert not doc.has_annotation("ENT_IOB")


@pytest.mark.parametrize(
    "lines, says",
    [
        ("Ann B-PER\nran\n", "CRF703.*line 2: has 1 columns, but 2, as in the lines before"),
        ("Ann B-PER\nran VBD O\n", "CRF703.*line 2: has 3 columns"),
        ("Ann\n", "CRF703.*line 1: has 1 columns, but at least 2"),
        ("Ann B-PER\nran VBD\n", "CRF704.*line 2: 'VBD' is not an entity tag"),
        ("Ann B-PER\nran B-\n", "CRF704.*line 2: 'B-'"),
        ("Ann B-PER\n\u3000\nran O\n", "CRF703.*line 2: has 1 columns"),
        ("Ann B-PER\nran O\rBob B-PER\n", "CRF701.*line 2: .*a carriage return"),
        ("Ann B_PER\nLee I_PER\nRome LOC\nran O\n", "CRF740.*line 1: .*'B_PER', 'I_PER'.*--scheme bare"),
        ("Ann B_PER\nran O\n", "CRF740.*line 1: .*'B_PER'.*--scheme bare"),
        ("1 Ann B-PER\n2 ran O\n\n1 Bob B-PER\n", "CRF741.*tokens.conll: .*--word-column 2"),
        ("It O +\nis O +\n", "CRF867.*line 1: '[+]'.*--label-column"),
        ("Ann\tB-PER\n\tO\n", "CRF701.*line 2: .*the word is empty"),
    ],
)
def test_bad_columns_are_named(columns, lines, says):
    with pytest.raises(ValueError, match=says):
        convert(columns(lines))


# --------------------------------------------------------------------------------------------------------- command


def test_a_folder(jsonl, columns, tmp_path):
    jsonl(item("Ann", (0, 3, "PER")))
    columns("Bob B-PER\nran O\n")
    (tmp_path / "notes.txt").write_text("not data")
    code, output = run(tmp_path, "-o", tmp_path / "out")
    assert code == 0
    assert "1 document, 1 entity" in output
    assert "1 file of" in output and "not read because of the name: notes.txt" in output  # nothing was said of it
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["items.spacy", "tokens.spacy"]
    [doc] = DocBin().from_disk(tmp_path / "out" / "tokens.spacy").get_docs(spacy.blank("en").vocab)
    assert entities(doc) == [(0, 1, "PER")]


def test_broken_spans_are_told_line_by_line(jsonl, tmp_path):
    path = jsonl(item("Ann", (0, 9, "X")), item("Bob", (2, 1, "X")), item("Zoë", (0, 3, "X")))
    result = CliRunner().invoke(app, ["convert", str(path), "-o", str(tmp_path / "o.spacy")])
    lines = result.output.splitlines()
    assert result.exit_code == 1 and not (tmp_path / "o.spacy").exists()
    assert len([line for line in lines if line.startswith("  CRF701: ")]) == 2
    code, output = run(path, "-o", tmp_path / "o.spacy", "--skip-broken")
    assert code == 0 and "3 documents, 1 entity" in output and "2 spans can't be read" in output
    code, output = run(path, "-o", tmp_path / "o.spacy", "--offsets", "utf9")
    assert code == 1 and "CRF020" in output and "'utf16', 'crlf', 'bom'" in output


def test_errors_are_told_briefly(columns, tmp_path):
    code, output = run(columns("Ann X\n"), "-o", tmp_path / "out.spacy")
    assert code == 1
    assert "CRF867" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out.spacy").exists()


@pytest.mark.parametrize("name, text", [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.conll", ""), ("a.conll", "# note\n")])
def test_a_file_without_texts_is_an_error(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    code, output = run(tmp_path / name, "-o", tmp_path / "out.spacy")
    assert code == 1 and "CRF708" in output
    assert not (tmp_path / "out.spacy").exists()


def test_nothing_accepted_is_an_error(jsonl, tmp_path):
    code, output = run(jsonl(item("one", answer="reject")), "-o", tmp_path / "out.spacy")
    assert code == 1 and "CRF708" in output


DOCCANO = [{"id": n, "text": text, "label": [], "Comments": []} for n, text in enumerate(["Ann ran", "Bob left"])]


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.jsonl", "".join(f"{json.dumps(line)}\n" for line in DOCCANO)),
        ("a.json", json.dumps([{"text": "Ann ran", "spans": []}])),
        ("a.conll", "Ann O\nran O\n"),
        ("a.jsonl", json.dumps(item("Annabel ran", (0, 3, "PER"))) + "\n"),
    ],
)
def test_a_file_in_which_nothing_is_annotated_is_an_error(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    code, output = run(tmp_path / name, "-o", tmp_path / "out.spacy")
    assert code == 1 and "CRF865" in output
    assert not (tmp_path / "out.spacy").exists()
    code, output = run(tmp_path / name, "-o", tmp_path / "out.spacy", "--without-spans")
    assert code == 0 and " 0 entities" in output


def test_texts_without_any_annotation_are_told(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "one"}]')
    code, output = run(tmp_path / "a.json", "-o", tmp_path / "out.spacy")
    assert code == 0 and "has no annotation" in output


def test_nothing_is_written_twice(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "a.conll").write_text("two O\n")
    code, output = run(tmp_path, "-o", tmp_path / "out")
    assert code == 1 and "CRF713" in output
    assert not (tmp_path / "out").exists()


def test_a_folder_without_data(tmp_path):
    code, output = run(tmp_path, "-o", tmp_path / "out")
    assert code == 1
    assert "CRF700" in output


def test_a_full_disk_is_told_with_the_file(columns, tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole_files.os, "fsync", full)
    for target in [tmp_path / "out.spacy", *filter(Path.exists, [Path("/dev/full")])]:
        code, output = run(columns("Ann B-PER\nran O\n"), "-o", target)
        assert code == 1 and f"CRF706: {target} can't" in output and "No space left on device (make room" in output
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.conll"]


def test_a_folder_is_not_converted_to_a_file(columns, tmp_path):
    columns("Ann B-PER\n")
    (tmp_path / "out.spacy").write_bytes(b"mine")
    code, output = run(tmp_path, "-o", tmp_path / "out.spacy")
    assert code == 1 and "CRF716" in output and "Name a folder" in output
    assert (tmp_path / "out.spacy").read_bytes() == b"mine"


def test_other_commands_say_whose_options_are_named(columns):
    result = CliRunner().invoke(app, ["data", str(columns("Ann X\n"))])
    output = " ".join(result.output.split())
    assert result.exit_code == 1 and "add --scheme bare" in output and "`spacy crf convert` has these" in output


# ----------------------------------------------------------------------------------------------- spans that overlap


def spans_of(doc, key="sc"):
    return [(span.text, span.label_) for span in doc.spans[key]]


NESTED = ((0, 18, "ORG"), (14, 18, "LOC"))


@pytest.mark.parametrize(
    "value",
    [
        item("University of Oslo", *NESTED, NESTED[1], (2, 7, "CUT")),
        {"text": "University of Oslo", "label": [list(span) for span in (*NESTED, (2, 7, "CUT"))]},  # doccano
        {
            "data": {"text": "University of Oslo"},
            "annotations": [
                {
                    "result": [
                        {
                            "type": "labels",
                            "from_name": "label",
                            "to_name": "text",
                            "value": {"start": start, "end": end, "labels": [label]},
                        }
                        for start, end, label in (*NESTED, (2, 7, "CUT"))
                    ]
                }
            ],
        },
    ],
)
def test_all_spans_go_to_a_group(value, jsonl):
    report = Report()
    [doc] = convert(jsonl(value), spans_key="sc", report=report)
    assert spans_of(doc) == [("University of Oslo", "ORG"), ("Oslo", "LOC")] and not doc.ents
    assert not doc.has_annotation("ENT_IOB") and not report.overlapping
    assert len(report.unaligned) == 1 and "CUT" in report.unaligned[0]
    [flat] = convert(jsonl(value), overlaps="longest")
    assert len(flat.ents) == 1 and not flat.spans


def test_overlapping_spans_of_brat_go_to_a_group(tmp_path):
    (tmp_path / "a.txt").write_text("University of Oslo\n", encoding="utf8")
    (tmp_path / "a.ann").write_text("T1\tORG 0 18\tUniversity of Oslo\nT2\tLOC 14 18\tOslo\n", encoding="utf8")
    [doc] = convert(tmp_path, spans_key="other")
    assert spans_of(doc, "other") == [("University of Oslo", "ORG"), ("Oslo", "LOC")]


def test_several_columns_of_tags_go_to_a_group(columns, tmp_path):
    """As in GermEval 2014: number, word, outer and inner tag."""
    path = columns("1\tUniversity\tB-ORG\tO\n2\tof\tI-ORG\tO\n3\tOslo\tI-ORG\tB-LOC\n4\twon\tO\tO\n\n1\tHa\tO\tO\n")
    first, second = convert(path, word_column="2", label_column="3, 4", spans_key="sc")
    assert spans_of(first) == [("University of Oslo", "ORG"), ("Oslo", "LOC")]
    assert spans_of(second) == [] and "sc" in second.spans and not first.ents
    outer, _ = convert(path, word_column="2", label_column="3", spans_key="sc")
    assert spans_of(outer) == [("University of Oslo", "ORG")]
    for wrong in ("3,x", "3,", "0,3"):
        with pytest.raises(ValueError, match=f"CRF868: --label-column {wrong}: .*numbers from 1"):
            convert(path, word_column="2", label_column=wrong, spans_key="sc")
    with pytest.raises(ValueError, match=r"CRF868: --label-column 3,4: .*with --spans-key several"):
        convert(path, word_column="2", label_column="3,4")
    output = tmp_path / "found.spacy"
    args = ["convert", path, "-o", output, "--word-column", 2, "--label-column", "3,4", "--spans-key", "sc"]
    result = CliRunner().invoke(app, list(map(str, args)))
    assert result.exit_code == 0 and "2 documents, 2 spans" in result.output
    [first, _] = DocBin().from_disk(output).get_docs(spacy.blank("en").vocab)
    assert spans_of(first) == [("University of Oslo", "ORG"), ("Oslo", "LOC")]


def test_columns_with_a_label_in_common_go_to_a_group(columns):
    """Two levels as in GermEval 2014, behind comments, numbers and words; the last column shares its label with the third."""
    text = "# n-tv, 2010\n1\tOslo\tB-LOC\tO\n2\tUni\tO\tO\n\n# n-tv\n1\tUni\tB-ORG\tO\n2\tOslo\tI-ORG\tB-LOC\n"
    report = Report()
    first, second = convert(columns(text), word_column="2", spans_key="sc", report=report)
    assert spans_of(first) == [("Oslo", "LOC")] and spans_of(second) == [("Uni Oslo", "ORG"), ("Oslo", "LOC")]
    assert report.tag_columns == ["3", "4"] and report.columns == ["1"]
    flat, last = convert(columns(text), word_column="2", report=report)
    assert not flat.ents and entities(last) == [(1, 2, "LOC")] and report.tag_columns == ["4"]


def test_columns_without_a_label_in_common_are_other_annotation(columns, tmp_path):
    """CoNLL-2003: word, part of speech, chunk, entity."""
    path = columns("EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n")
    report = Report()
    [doc] = convert(path, spans_key="sc", report=report)
    assert spans_of(doc) == [("EU", "ORG"), ("German", "MISC")] and report.columns == ["2", "3"]
    both = ["--label-column", "3,4", "--spans-key", "sc"]
    code, output = run(path, "-o", tmp_path / "a.spacy", *both)
    assert code == 0 and "1 document, 5 spans" in output and "tags in columns 3, 4" in output


WORDS = list("abcdef")
PLACES = st.tuples(st.integers(0, 5), st.integers(1, 6), st.sampled_from(["PER", "ORG"])).filter(
    lambda it: it[0] < it[1]
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(PLACES, max_size=6), in_biluo=st.booleans())
def test_nested_spans_written_level_by_level_are_read_again(columns, places, in_biluo):
    """Each level is a column. The first text has one label on all levels, as large files do."""
    vocab = spacy.blank("en").vocab
    doc = Doc(vocab, words=WORDS)
    leveled = with_levels(Span(doc, begin, end, label=label) for begin, end, label in places)
    tags_of_levels = []
    for n in range(1 + max((level for _, level in leveled), default=0)):
        doc.ents = [span for span, level in leveled if level == n]
        tags = [f"{token.ent_iob_}-{token.ent_type_}".strip("-") for token in doc]
        tags_of_levels.append(iob_to_biluo(["B-PER", *tags]) if in_biluo else ["B-PER", *tags])
    first, *rows = ("\t".join(row) for row in zip(["Ann", *WORDS], *tags_of_levels))
    report = Report()
    _, read = convert(columns("\n".join([first, "", *rows])), spans_key="sc", report=report)
    assert {(span.start, span.end, span.label_) for span in read.spans["sc"]} == {*places}
    assert len(report.tag_columns) == len(tags_of_levels)


def test_an_answer_about_single_spans_has_no_group(jsonl):
    with pytest.raises(ValueError, match=r"CRF701.*without --spans-key"):
        convert(jsonl(item("Ann ran", (0, 3, "PER"), _view_id="ner", answer="accept")), spans_key="sc")


def test_files_of_words_need_no_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sudachipy", None)
    words, texts = tmp_path / "a.conll", tmp_path / "a.jsonl"
    words.write_text("東京\tB-GPE\nへ\tO\n", encoding="utf8")
    texts.write_text('{"text": "東京へ", "spans": []}\n', encoding="utf8")
    result = CliRunner().invoke(app, ["convert", str(words), "-o", str(tmp_path / "a.spacy"), "--lang", "ja"])
    assert result.exit_code == 0, result.output
    (doc,) = DocBin().from_disk(tmp_path / "a.spacy").get_docs(spacy.blank("xx").vocab)
    assert doc.text == "東京へ" and [ent.label_ for ent in doc.ents] == ["GPE"]
    result = CliRunner().invoke(app, ["convert", str(texts), "-o", str(tmp_path / "b.spacy"), "--lang", "ja"])
    assert result.exit_code == 1 and "CRF986" in result.output and not (tmp_path / "b.spacy").exists()
