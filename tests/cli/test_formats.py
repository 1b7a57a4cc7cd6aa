"""Every format that `convert` reads: told by its contents, read as it was meant, and whatever is wrong with a file is told with
its place."""

import copy
import json
import math
import os
import random
import re
import warnings
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training import docs_to_json

import spacy_crf
from spacy_crf.cli.formats import FORMATS, ReadSettings, Report, Source, read, sniff
from spacy_crf.cli.formats.columns import SCHEMES
from spacy_crf.pipeline.corpora import doc_bin
from tests.util import entities

NLP = spacy.blank("en")

# Ann Lee met Bob in New York .      (0-7 PER, 12-15 PER, 19-27 GPE)
# Nobody came .
# Zoë left Acme and Bob .            (0-3 PER, 9-13 ORG, 18-21 PER)
TEXTS = ["Ann Lee met Bob in New York .", "Nobody came .", "Zoë left Acme and Bob ."]
SPANS = [[(0, 7, "PER"), (12, 15, "PER"), (19, 27, "GPE")], [], [(0, 3, "PER"), (9, 13, "ORG"), (18, 21, "PER")]]
EXPECTED = [[(0, 2, "PER"), (3, 4, "PER"), (5, 7, "GPE")], [], [(0, 1, "PER"), (2, 3, "ORG"), (4, 5, "PER")]]
TAGS = [
    ["NNP", "NNP", "VBD", "NNP", "IN", "NNP", "NNP", "."],
    ["NN", "VBD", "."],
    ["NNP", "VBD", "NNP", "CC", "NNP", "."],
]
# By scheme, the tags of the sentences between two bars
ENTS = {
    "BIO": "B-PER I-PER O B-PER O B-GPE I-GPE O | O O O | B-PER O B-ORG O B-PER O",
    "IOB1": "I-PER I-PER O I-PER O I-GPE I-GPE O | O O O | I-PER O I-ORG O I-PER O",
    "BILUO": "B-PER L-PER O U-PER O B-GPE L-GPE O | O O O | U-PER O U-ORG O U-PER O",
    "BIOES": "B-PER E-PER O S-PER O B-GPE E-GPE O | O O O | S-PER O S-ORG O S-PER O",
    "BMES": "B-PER E-PER O S-PER O B-GPE E-GPE O | O O O | S-PER O S-ORG O S-PER O",
    "bare": "PER PER O PER O GPE GPE O | O O O | PER O ORG O PER O",
}
ENTS = {scheme: [sentence.split() for sentence in tags.split("|")] for scheme, tags in ENTS.items()}


def lines(items):
    return "".join(f"{json.dumps(item, ensure_ascii=False)}\n" for item in items)


def prodigy():
    for n, (text, spans) in enumerate(zip(TEXTS, SPANS)):
        spans = [{"start": s, "end": e, "token_start": 0, "token_end": 0, "label": label} for s, e, label in spans]
        tokens = [{"text": word, "start": 0, "end": 1, "id": i, "ws": True} for i, word in enumerate(text.split())]
        yield {"text": text, "_input_hash": n, "_task_hash": n, "tokens": tokens, "spans": spans, "answer": "accept"}


def label_studio(skipped=False):
    for n, (text, spans) in enumerate(zip(TEXTS, SPANS)):
        result = [
            {
                "value": {"start": s, "end": e, "text": text[s:e], "labels": [label]},
                "id": "x",
                "from_name": "label",
                "to_name": "text",
                "type": "labels",
                "origin": "manual",
            }
            for s, e, label in spans
        ]
        annotations = [{"id": n, "completed_by": 1, "result": result, "was_cancelled": skipped, "ground_truth": False}]
        yield {"id": n, "annotations": annotations, "predictions": [], "data": {"text": text, "url": "x"}, "meta": {}}


def label_studio_min():
    for n, (text, spans) in enumerate(zip(TEXTS, SPANS)):
        found = [{"start": s, "end": e, "text": text[s:e], "labels": [label]} for s, e, label in spans]
        yield {"text": text, "id": n, "label": found, "annotator": 1, "annotation_id": n, "lead_time": 1.5}


def spacy_2():
    docs = []
    for text, spans in zip(TEXTS, EXPECTED):
        doc = spacy.tokens.Doc(NLP.vocab, words=text.split(), sent_starts=[1] + [-1] * text.count(" "))
        doc.ents = [spacy.tokens.Span(doc, *span) for span in spans]
        docs.append(doc)
    return [docs_to_json(docs)]


def dataturks():
    """Its ends are the last letters."""
    for text, spans in zip(TEXTS, SPANS):
        points = [([label], {"start": s, "end": e - 1, "text": text[s:e]}) for s, e, label in spans]
        yield {
            "content": text,
            "annotation": [{"label": label, "points": [at]} for label, at in points],
            "extras": None,
        }


def argilla():
    for text, spans in zip(TEXTS, SPANS):
        found = [[label, s, e] for s, e, label in spans]
        yield {"text": text, "tokens": text.split(), "prediction": None, "annotation": found, "metadata": {"n": 1}}


def hugging_face():
    for text, spans in zip(TEXTS, SPANS):
        found = [
            {"entity_group": x, "score": 0.9, "word": text[s:e].lower(), "start": s, "end": e} for s, e, x in spans
        ]
        yield {"text": text, "entities": found}


def azure():
    """An offset and a length, in UTF-16 units if somebody says so."""
    for text, spans in zip(TEXTS, SPANS):
        found = [{"text": text[s:e], "category": x, "offset": s, "length": e - s, "score": 1.0} for s, e, x in spans]
        yield {"id": "1", "text": text, "entities": found}


def camel_case():
    for text, spans in zip(TEXTS, SPANS):
        found = [{"BeginOffset": s, "EndOffset": e, "Type": x, "Text": text[s:e]} for s, e, x in spans]
        yield {"text": text, "spans": found}


def doc_to_json():
    for text, spans in zip(TEXTS, SPANS):
        doc = NLP(text)
        doc.set_ents([doc.char_span(*span) for span in spans], default="outside")
        yield doc.to_json()


def words_and_spans(words, key, behind):
    for text, spans in zip(TEXTS, EXPECTED):
        found = [[b, e - behind, x] if behind else {"type": x, "start": b, "end": e} for b, e, x in spans]
        yield {words: text.split(), key: found}


def columns(scheme="BIO", separator="\t", tags=False):
    rows = (
        "".join(
            f"{separator.join((word, *([tag] if tags else []), ent))}\n" for word, tag, ent in zip(text.split(), t, e)
        )
        for text, t, e in zip(TEXTS, TAGS, ENTS[scheme])
    )
    return "-DOCSTART- -X- O\n\n".replace(" ", separator) + "\n".join(rows)


def conllu():
    found = []
    for n, (text, tags, ents) in enumerate(zip(TEXTS, TAGS, ENTS["BIO"])):
        found += ["# newdoc id = a"] * (n in (0, 2)) + [f"# sent_id = {n}", f"# text = {text}"]
        for i, (word, tag, ent) in enumerate(zip(text.split(), tags, ents), start=1):
            misc = "_" if ent == "O" else f"Lang=en|NER={ent}"
            head, dep = ("0", "root") if i == 1 else ("1", "dep")
            found.append("\t".join((str(i), word, word.lower(), "X", tag, "Number=Sing", head, dep, "_", misc)))
        found.append("")
    return "\n".join(found) + "\n"


def table(separator=",", sentence="Sentence #"):
    found = [separator.join((sentence, "Word", "POS", "Tag"))]
    for n, (text, tags, ents) in enumerate(zip(TEXTS, TAGS, ENTS["BIO"]), start=1):
        for i, (word, tag, ent) in enumerate(zip(text.split(), tags, ents)):
            number = f"Sentence: {n}" if i == 0 or sentence != "Sentence #" else ""
            found.append(separator.join((number, word, tag, ent)))
    return "\n".join(found) + "\n"


# name: the file's name, its contents, the format that it is told to be
XML = """<?xml version="1.0" encoding="utf-8"?>
<texts>
  <text><PER>Ann</PER> <PER>Lee</PER> met
    <PER>Bob</PER> in <GPE> New  York</GPE> .</text>
  <text><Null>Nobody</Null> <Null>came</Null> .</text>
  <text><PER>Zoë</PER> left <ORG>Acme</ORG> and <PER>Bob</PER> .</text>
</texts>
"""
FILES = {
    "prodigy": ("a.jsonl", lines(prodigy()), "prodigy"),
    "doccano": (
        "a.jsonl",
        lines({"id": 1, "text": text, "label": spans, "Comments": []} for text, spans in zip(TEXTS, SPANS)),
        "doccano",
    ),
    "doccano, relations": (
        "a.jsonl",
        lines(
            {
                "id": 1,
                "text": text,
                "entities": [{"id": 1, "label": label, "start_offset": s, "end_offset": e} for s, e, label in spans],
                "relations": [],
            }
            for text, spans in zip(TEXTS, SPANS)
        ),
        "doccano",
    ),
    "label studio": ("a.json", json.dumps(list(label_studio()), ensure_ascii=False), "labelstudio"),
    "label studio, written out": ("a.json", json.dumps(list(label_studio()), indent=2), "labelstudio"),
    "label studio, min": ("a.json", json.dumps(list(label_studio_min())), "labelstudio"),
    "pairs": ("a.json", json.dumps([[t, {"entities": s}] for t, s in zip(TEXTS, SPANS)]), "texts"),
    "pairs in lines": ("a.jsonl", lines([t, {"entities": s}] for t, s in zip(TEXTS, SPANS)), "texts"),
    "pairs in Python": (
        "train.py",
        "import spacy\n\nTRAIN_DATA = [\n"
        + "".join(f"    ({t!r}, {{'entities': {s!r}}}),\n" for t, s in zip(TEXTS, SPANS))
        + "]\n",
        "texts",
    ),
    "pairs with spans": ("a.json", json.dumps([list(pair) for pair in zip(TEXTS, SPANS)]), "texts"),
    "pairs with spans in Python": ("train.py", f"TRAIN_DATA = {[*zip(TEXTS, SPANS)]!r}\n", "texts"),
    "NER Annotator": (
        "a.json",
        json.dumps(
            {"classes": ["PER"], "annotations": [*([f"{t}\r", {"entities": s}] for t, s in zip(TEXTS, SPANS)), None]}
        ),
        "texts",
    ),
    "DataTurks": ("a.jsonl", lines(dataturks()), "texts"),
    "Argilla": ("a.jsonl", lines(argilla()), "texts"),
    "Hugging Face's pipeline": ("a.jsonl", lines(hugging_face()), "texts"),
    "Azure": ("a.jsonl", lines(azure()), "texts"),
    "camel case": ("a.jsonl", lines(camel_case()), "prodigy"),
    "Doc.to_json": ("a.json", json.dumps(list(doc_to_json())), "doc"),
    "GLiNER": ("a.json", json.dumps(list(words_and_spans("tokenized_text", "ner", 1))), "word_spans"),
    "SpERT": ("a.json", json.dumps(list(words_and_spans("tokens", "entities", 0))), "word_spans"),
    "lists in a table": (
        "a.csv",
        "id,tokens,ner_tags\n"
        + "".join(f'{n},"{t.split()}","{e}"\n' for n, (t, e) in enumerate(zip(TEXTS, ENTS["BIO"]))),
        "table",
    ),
    "a sentence and lists in a table": (
        "a.csv",
        "Sentence #,Sentence,POS,Tag\n"
        + "".join(f'Sentence: 1,{t},"{g}","{e}"\n' for t, g, e in zip(TEXTS, TAGS, ENTS["BIO"])),
        "table",
    ),
    "spaCy 2": ("a.json", json.dumps(spacy_2()), "spacy2"),
    "tokens": (
        "a.jsonl",
        lines({"id": "1", "tokens": t.split(), "ner_tags": e} for t, e in zip(TEXTS, ENTS["BIO"])),
        "tokens",
    ),
    "columns": ("a.conll", columns(), "conll"),
    "columns, spaces": ("a.txt", columns(separator=" "), "conll"),
    "words": (
        "a.iob",
        "".join(f"{' '.join(map('|'.join, zip(t.split(), e)))}\n" for t, e in zip(TEXTS, ENTS["BIO"])),
        "words",
    ),
    "words, tags": (
        "a.txt",
        "".join(f"{' '.join(map('|'.join, zip(t.split(), g, e)))}\n" for t, g, e in zip(TEXTS, TAGS, ENTS["BIO"])),
        "words",
    ),
    "xml": ("a.xml", XML, "xml"),
    "conllu": ("a.conllu", conllu(), "conllu"),
    "table": ("a.csv", table(), "table"),
    "table, tabs": ("a.tsv", table("\t", "sentence_id"), "table"),
    "table, semicolons": ("a.txt", table(";", "sent_id"), "table"),
}


# Of whole texts, as tools write their labels: each has one of two
LABELS = ["GOOD", "BAD", "GOOD"]


def choice(**others):
    options = [{"id": label, "text": label.lower()} for label in ("GOOD", "BAD")]
    for n, (text, label) in enumerate(zip(TEXTS, LABELS)):
        asked = {"text": text, "_input_hash": n, "_task_hash": n, "options": options, "_view_id": "choice"}
        yield asked | {"accept": [label], "answer": "accept", "config": {"choice_style": "single"}} | others


def label_studio_choices():
    for n, (text, label) in enumerate(zip(TEXTS, LABELS)):
        result = {"value": {"choices": [label]}, "id": "x", "from_name": "mood", "to_name": "text", "type": "choices"}
        annotations = [{"id": n, "completed_by": 1, "result": [result], "was_cancelled": False}]
        yield {"id": n, "annotations": annotations, "data": {"text": text, "url": "x"}}


def label_studio_min_choices():
    """Its data stand before its number, and what annotators made stands behind it."""
    for n, (text, label) in enumerate(zip(TEXTS, LABELS)):
        made = {"annotator": 1, "annotation_id": n, "created_at": "2024-01-01", "updated_at": "2024-01-01"}
        yield {"review": text, "id": n, "mood": label, **made, "lead_time": 1.5}


def labelled_table(separator=",", names=("text", "label"), quote="", label=str):
    rows = (separator.join((f"{quote}{t}{quote}", label(c))) for t, c in zip(TEXTS, LABELS))
    return "\n".join((separator.join(names), *rows)) + "\n"


LABELLED = {
    "doccano, labels": (
        "a.jsonl",
        lines({"id": n, "text": t, "label": [c], "Comments": []} for n, (t, c) in enumerate(zip(TEXTS, LABELS))),
        "doccano",
    ),
    "doccano, labels and spans": (
        "a.jsonl",
        lines({"id": 1, "text": t, "cats": [c], "entities": s} for t, c, s in zip(TEXTS, LABELS, SPANS)),
        "texts",
    ),
    "text and label": ("a.jsonl", lines({"text": t, "label": c} for t, c in zip(TEXTS, LABELS)), "texts"),
    "text and label, list": ("a.json", json.dumps([{"text": t, "label": c} for t, c in zip(TEXTS, LABELS)]), "texts"),
    "text and cats": (
        "a.jsonl",
        lines({"text": t, "cats": {name: name == c for name in ("GOOD", "BAD")}} for t, c in zip(TEXTS, LABELS)),
        "texts",
    ),
    "prodigy, choice": ("a.jsonl", lines(choice()), "prodigy"),
    "label studio, choices": ("a.json", json.dumps(list(label_studio_choices())), "labelstudio"),
    "label studio, min choices": ("a.json", json.dumps(list(label_studio_min_choices())), "labelstudio"),
    "labelled table": ("a.csv", labelled_table(quote='"'), "table"),
    "labelled table, tabs": ("a.tsv", labelled_table("\t", ("sentence", "category")), "table"),
    "labelled table, lists": ("a.csv", labelled_table(label=lambda label: f"['{label}']"), "table"),
}
BRAT = (
    "T1\tPER 0 7\tAnn Lee\nT2\tPER 12 15\tBob\nR1\tmet Arg1:T1 Arg2:T2\nA1\tSure R1\n*\tEquiv T1 T2\n"
    "T3\tGPE 19 22;23 27\tNew York\n#1\tAnnotatorNotes T1\tis it?\n"
    "T4\tPER 44 47\tZoë\nT5\tORG 53 57\tAcme\nT6\tPER 62 65\tBob\nT7\tGROUP 44 47;62 65\tZoë Bob\nE1\tORG:T5 Who:T4\n"
)
EVERY = FILES | LABELLED | {"brat": ("a.ann", BRAT, "brat")}


@pytest.fixture
def write(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf8", newline="")  # brat's

    def write(name, text):
        if isinstance(text, bytes):
            (tmp_path / name).write_bytes(text)
        else:
            (tmp_path / name).write_text(text, encoding="utf8", newline="")
        return Source(tmp_path / name)

    return write


def docs_of(source, report=None, **settings):
    return list(read(source, NLP, ReadSettings(**settings), report or Report()))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_told_by_its_contents_and_read(write, name):
    path, text, format_ = FILES[name]
    source, report = write(path, text), Report()
    assert sniff(source) == format_
    docs = docs_of(source, report)
    assert [entities(doc) for doc in docs] == EXPECTED
    assert [doc.text.split() for doc in docs] == [text.split() for text in TEXTS]
    assert (report.documents, report.spans, report.format) == (3, 6, format_)
    places = (report.trimmed, report.overlapping, report.misaligned, report.rejected, report.unread)
    assert not any(places)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["windows", "mark", "no last line end"])
def test_ends_of_lines_and_byte_order_marks(write, name, change):
    path, text, _ = FILES[name]
    changed = {
        "windows": text.replace("\n", "\r\n"),
        "mark": "\ufeff" + text,
        "no last line end": text.rstrip("\n"),
    }
    assert [entities(doc) for doc in docs_of(write(path, changed[change]))] == EXPECTED


def test_every_format_is_in_the_table():
    of_words = {"places", "spaced", "boundaries"}
    assert {format_ for _, _, format_ in EVERY.values()} == set(FORMATS) - {"spacy", *of_words}


def test_spacy_files(tmp_path, write):
    docs = docs_of(write("a.conll", columns()))
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    source = Source(tmp_path / "a.spacy")
    assert sniff(source) == "spacy"
    assert [entities(doc) for doc in docs_of(source)] == EXPECTED


# --------------------------------------------------------------------------------------------------- labels of texts


@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_texts_become_cats(write, name):
    """They were refused, as spans that were none."""
    path, text, format_ = LABELLED[name]
    source, report = write(path, text), Report()
    docs = docs_of(source, report)
    assert report.format == format_ and (report.labelled, report.exclusive) == (3, True)
    assert [doc.text.strip() for doc in docs] == TEXTS
    assert [doc.cats for doc in docs] == [{"GOOD": float(c == "GOOD"), "BAD": float(c == "BAD")} for c in LABELS]
    has_spans = name == "doccano, labels and spans"
    assert [entities(doc) for doc in docs] == (EXPECTED if has_spans else [[]] * 3)
    assert {doc.has_annotation("ENT_IOB") for doc in docs} == {has_spans}  # of entities nothing is said


SEVERAL = [["A", "B"], ["B"], []]


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.jsonl", lines({"text": t, "label": c} for t, c in zip(TEXTS, SEVERAL))),
        ("a.jsonl", lines({**task, "accept": c} for task, c in zip(choice(options=["A", "B"]), SEVERAL))),
        ("a.csv", "text,label\n" + "".join(f"{t},{c}\n" for t, c in zip(TEXTS, ("A#B", "B", "")))),
        ("a.csv", "text,label\n" + "".join(f'{t},"{{""choices"": {c}}}"\n' for t, c in zip(TEXTS, SEVERAL))),
    ],
)
def test_texts_with_several_labels(write, name, text):
    """A text without a label has none of them; where each other text has one it is not annotated."""
    report = Report()
    docs = docs_of(write(name, text), report)
    assert [doc.cats for doc in docs] == [{"A": 1, "B": 1}, {"A": 0, "B": 1}, {"A": 0, "B": 0}]
    assert not report.exclusive and not report.unlabelled
    one = lines({"text": t, "label": c} for t, c in zip(TEXTS, [["A"], ["B"], []]))
    report = Report()
    docs = docs_of(write("a.jsonl", one), report)
    assert [doc.cats for doc in docs] == [{"A": 1, "B": 0}, {"A": 0, "B": 1}, {}]
    assert report.exclusive and [place.partition(", ")[2] for place in report.unlabelled] == ["line 3"]


def test_answers_of_prodigy_about_one_label(write):
    """Of other labels nothing is said. What was asked about spans names no label of the text."""
    asked = [
        {"text": "so it is", "label": "A", "spans": [], "_input_hash": 1, "answer": answer}
        for answer in ("accept", "reject")
    ]
    report = Report()
    docs = docs_of(write("a.jsonl", lines([*asked, {**asked[0], "answer": "ignore"}])), report)
    assert [doc.cats for doc in docs] == [{"A": 1.0}, {"A": 0.0}] and len(report.rejected) == 1
    span = {"start": 0, "end": 2, "label": "A"}
    [doc] = docs_of(write("a.jsonl", lines([{**asked[0], "spans": [span]}])))
    assert not doc.cats and entities(doc) == [(0, 1, "A")]


def test_keys_and_numbers_of_labels(write):
    text = lines({"body": t, "intent": n} for n, t in enumerate(TEXTS[:2]))
    docs = docs_of(write("a.jsonl", text), word_column="body", label_column="intent", tag_names=["NO", "YES"])
    assert [doc.cats for doc in docs] == [{"NO": 1, "YES": 0}, {"NO": 0, "YES": 1}]
    docs = docs_of(write("a.jsonl", text), word_column="body", label_column="intent")
    assert [doc.cats for doc in docs] == [{"0": 1, "1": 0}, {"0": 0, "1": 1}]
    table = labelled_table(";", ("body", "intent"))
    assert docs_of(write("a.csv", table), word_column="body", label_column="2")[0].cats == {"GOOD": 1, "BAD": 0}
    tasks = json.dumps([{"review": "so it is", "url": "x", "id": 1, "mood": "A", "annotator": 1}])
    [doc] = docs_of(write("a.json", tasks), word_column="review")
    assert (doc.text, doc.cats) == ("so it is", {"A": 1})


LABEL_FAULTS = [
    ("doccano, labels", '["BAD"]', '["BAD", [0, 3]]', r"CRF880.*line 2: \['BAD', \[0, 3\]\]"),
    (
        "doccano, labels",
        '"label": ["BAD"]',
        '"label": ["BAD"], "labels": ["GOOD"]',
        "CRF714.*line 2: 'label' and 'labels'",
    ),
    ("text and label", '"BAD"', "true", "CRF880.*line 2: True"),
    ("text and label", '"BAD"', '["BAD", null]', "CRF880.*line 2: .*'BAD', None"),
    ("text and label", '"BAD"', '"\\ud800"', r"CRF880.*line 2: '\\ud800'"),
    ("text and label", '"text": "Nob', '"txt": "Nob', 'CRF701.*line 2: .*no "text"'),
    ("text and cats", '"BAD": true', '"BAD": 0.5', "CRF880.*line 2"),
    ("prodigy, choice", '"accept": ["BAD"]', '"accept": [["BAD"]]', "CRF880.*line 2"),
    ("label studio, choices", '"choices": ["BAD"]', '"choices": [{}]', "CRF880.*item 2"),
    ("label studio, choices", '"choices": ["BAD"]', '"start": 0, "choices": ["BAD"]', "CRF707.*item 2: 'choices'"),
    ("label studio, choices", '"mood"', '"kind"', "CRF714.*item 2: 'kind' and 'mood'.*--ignore mood"),
    ("label studio, min choices", '"mood"', '"kind"', "CRF714.*item 2: 'kind' and 'mood'.*--ignore mood"),
    ("labelled table", ",BAD", "", "CRF703.*line 3: has 1 columns, but 2, as in the header"),
    ("labelled table", '."', ".", "CRF701.*line 2: .*not CSV"),
    ("labelled table", ",BAD", ',"[{""start"": 0}]"', "CRF880.*line 3"),
    ("labelled table", "text,label", "body,label", "CRF869.*line 1: .*--label-column"),
]


@pytest.mark.parametrize(
    "name, old, new, says", LABEL_FAULTS, ids=[f"{fault[0]}: {fault[2][:20]!r}" for fault in LABEL_FAULTS]
)
def test_labels_with_one_fault(write, name, old, new, says):
    path, text, _ = LABELLED[name]
    with pytest.raises(ValueError, match=f"CRF.*{re.escape(path)}, line") as error:
        docs_of(write(path, change(text, old, new)))
    assert re.search(says, str(error.value)), error.value


# ------------------------------------------------------------------------------------------------------------- brat


@pytest.mark.parametrize("given", ["a.ann", "a.txt", "."])
def test_standoff_of_brat(write, tmp_path, given):
    """What spans with a label can't hold is counted, and where spans in several parts are nothing is known."""
    write("a.ann", BRAT)
    source, report = Source(tmp_path / given), Report()
    assert sniff(source) == "brat"
    [doc] = docs_of(source, report)
    assert doc.text == "\n".join(TEXTS) + "\n"
    assert [(span.text, span.label_) for span in doc.ents] == [
        (text[s:e], label) for text, spans in zip(TEXTS, SPANS) for s, e, label in spans
    ]
    kept = {kind: [place.partition("line ")[2] for place in places] for kind, places in report.unkept.items()}
    assert kept == {
        "relations": ["3", "5"],
        "attributes": ["4"],
        "notes": ["7"],
        "spans in several parts": ["11"],
        "events": ["12"],
    }


def test_parts_of_a_span_are_missing_annotation(write):
    [doc] = docs_of(write("a.ann", "T1\tPER 0 3;12 15\tAnn Bob\nT2\tPER 12 15\tBob\n"))
    assert [token.ent_iob_ for token in doc[:5]] == ["", "O", "O", "B", "O"]


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("T1\t", "T2\t", "CRF701.*line 2: .*T2 is also used at .*line 1"),
        ("T1\t", "X1\t", "CRF701.*line 1: .*not begin with an identifier"),
        ("PER 0 7", "PER 0,7", "CRF701.*line 1: .*offsets"),
        ("PER 0 7", "PER 7 0", 'CRF701.*line 1: .*"start" < "end"'),
        ("PER 0 7", f"PER 0 {'9' * 5000}", "CRF701.*line 1: .*within the 68 characters"),
        ("0 7\tAnn", "1 7\tAnn", "CRF871.*line 1"),
    ],
)
def test_standoff_with_one_fault(write, tmp_path, old, new, says):
    with pytest.raises(ValueError, match=says):
        docs_of(write("a.ann", change(BRAT, old, new)))
    write("b.ann", BRAT)
    with pytest.raises(ValueError, match=r"CRF701.*b\.ann.*b\.txt is missing"):
        docs_of(Source(tmp_path / "b.ann"))


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("</PER> met", "</PER met", r"CRF701.*a\.xml: .*not XML: .*line 3"),
        ("<Null>Nobody</Null> <Null>came</Null> .", " ", "CRF701.*text 2 <text>: .*consists of words"),
        ("<ORG>Acme", "<ORG><b>Ac</b>me", r"CRF701.*text 3 <text>: .*hold words only"),
    ],
)
def test_xml_with_one_fault(write, old, new, says):
    with pytest.raises(ValueError, match=says):
        docs_of(write("a.xml", change(XML, old, new)))


# --------------------------------------------------------------------------------------------------- tags and columns


def test_columns_can_be_cut_again(write):
    """By the tokenizer that the pipeline has; what is missing stays missing."""
    text = "Dr. O\nLee's B-PER\n12kg, -\n(Rome) B-GPE\nBay I-GPE\n\n"
    report = Report()
    [doc] = docs_of(write("a.conll", text), report, retokenize=True)
    assert [token.text for token in doc] == [token.text for token in NLP("Dr. Lee's 12kg, (Rome) Bay")]
    assert [span.text for span in doc.ents] == ["Lee's", "(Rome) Bay"]
    assert [token.text for token in doc if not token.ent_iob_] == ["12", "kg", ","]
    assert not doc.has_unknown_spaces and not report.misaligned
    [doc] = docs_of(write("a.conll", text), retokenize=True, spans_key="sc")
    assert [(span.text, span.label_) for span in doc.spans["sc"]] == [("Lee's", "PER"), ("(Rome) Bay", "GPE")]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_are_told_by_the_tags(write, scheme):
    report = Report()
    docs = docs_of(write("a.conll", columns(scheme)), report)
    assert [entities(doc) for doc in docs] == EXPECTED
    assert report.scheme == ("BIOES" if scheme == "BMES" else scheme)  # which differ in the middle only


def test_the_middle_of_bmes(write):
    report = Report()
    [doc] = docs_of(write("a.conll", "New B-X\nYork M-X\nCity E-X\nAnn S-Y\n"), report)
    assert (entities(doc), report.scheme) == ([(0, 3, "X"), (3, 4, "Y")], "BMES")


def test_spans_that_touch(write):
    assert entities(docs_of(write("a.conll", "Ann I-X\nBob B-X\nin O\n"))[0]) == [(0, 1, "X"), (1, 2, "X")]
    assert entities(docs_of(write("a.conll", "Ann I-X\nBob I-Y\nin O\n"))[0]) == [(0, 1, "X"), (1, 2, "Y")]
    assert entities(docs_of(write("a.conll", "Ann X\nBob Y\nin O\n"))[0]) == [(0, 1, "X"), (1, 2, "Y")]


def test_tags_that_continue_nothing_begin_entities(write):
    """As conlleval and `spacy convert` read them. Such files could be read with no scheme at all."""
    text = "Ada B-PER\nNox I-PER\nran O\n\n520 I-PRO\n. O\n\nBo B-PER\nRome I-LOC\n"
    expected = [[(0, 2, "PER")], [(0, 1, "PRO")], [(0, 1, "PER"), (1, 2, "LOC")]]
    for scheme, lines in ((None, [5, 9]), ("BIO", [5, 9]), ("IOB1", [1, 8])):
        report = Report()
        assert [entities(doc) for doc in docs_of(write("a.conll", text), report, scheme=scheme)] == expected
        assert [int(place.partition("line ")[2].partition(",")[0]) for place in report.repaired] == lines


@pytest.mark.parametrize("form", ["{0}_{1}", "{0}:{1}", "{1}-{0}", "{1}_{0}", "{1}|{0}"])
@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BILUO", "BIOES"])
def test_tags_that_are_spelled_otherwise(write, form, scheme):
    """They were labels, B_PER and I_PER, without a word."""
    spelled = [["O" if tag == "O" else form.format(*tag.split("-")) for tag in tags] for tags in ENTS[scheme]]
    text = "\n".join("".join(map("{}\t{}\n".format, t.split(), e)) for t, e in zip(TEXTS, spelled))
    report = Report()
    if scheme == "IOB1":  # only I-: no letter says that it is one
        with pytest.raises(ValueError, match=r"CRF740.*line 1: "):
            docs_of(write("a.conll", text))
    named = scheme if scheme == "IOB1" else None
    assert [entities(doc) for doc in docs_of(write("a.conll", text), report, scheme=named)] == EXPECTED
    assert (report.scheme, report.spelling) == (scheme, spelled[0][0])
    docs = docs_of(write("a.conll", text), scheme="bare")
    assert {ent.label_ for doc in docs for ent in doc.ents} == {tag for tags in spelled for tag in tags} - {"O"}


def test_labels_that_look_like_tags_of_one_letter(write):
    report = Report()
    [doc] = docs_of(write("a.conll", "it O\nis B_cell\nor T_cell\n@ e-mail\n"), report)
    assert [ent.label_ for ent in doc.ents] == ["B_cell", "T_cell", "e-mail"] and not report.spelling


def test_comments_are_told_from_tokens(write):
    """Comments with as many words as the file has columns were read as tokens, and `#` with a tab was never a comment."""
    url = "#\thttp://a.b/X [2009-10-17]\n"
    files = [
        ("# id = a-1\n# text = Ann ran\n1\tAnn\tB-PER\t-\tx\n2\tran\tO\t-\tx\n", "2", ["Ann", "ran"]),
        ("# id 1\nAnn NNP B-PER\nran VBD O\n", "1", ["Ann", "ran"]),
        (f"{url}1\tAnn\tB-PER\tO\n2\t#\tO\tO\n", "2", ["Ann", "#"]),
        ("#begin document (a b c d)\n1 Ann B-PER\n2 #1 O\n#end document\n", "2", ["Ann", "#1"]),
        ("#\tX\tO\n#a\tX\tO\n# X\tb\tO\n", "1", ["#", "#a", "# X"]),
    ]
    for text, word, expected in files:
        docs = docs_of(write("a.tsv", text), without_spans=True, word_column=word, label_column="3", format="conll")
        assert [token.text for doc in docs for token in doc] == expected
    report = Report()
    [doc] = docs_of(write("a.conll", "the DT\n# #\n500 CD\n# SYM\n"), report, tag_column="2")
    assert [token.tag_ for token in doc] == ["DT", "#", "CD", "SYM"] and not report.comments
    [doc] = docs_of(write("a.conll", "Ann B-PER\n# id\nran O\n"), report)
    assert len(report.comments) == 1
    docs = docs_of(write("a.conll", "# newdoc 1\nAnn N B-PER\n\n# newdoc 2\nBob N B-PER\n"), n_sents=0)
    assert [doc.text for doc in docs] == ["Ann ", "Bob "]


@pytest.mark.parametrize("name", ["columns", "columns, spaces", "conllu", "words", "table"])
def test_lines_that_end_with_carriage_returns(write, name):
    """All behind the first of them were lost."""
    path, text, _ = FILES[name]
    assert [entities(doc) for doc in docs_of(write(path, text.replace("\n", "\r")))] == EXPECTED


@pytest.mark.parametrize("name", ["columns", "columns, spaces", "words", "tokens", "table", "conllu"])
def test_other_white_space_is_part_of_words(write, name):
    path, text, _ = FILES[name]
    odd = "10\u00a0000\u2028\x85\u3000"
    docs = docs_of(write(path, text.replace("Acme", odd).replace("left", "\u3000")))
    assert [token.text for token in docs[2]][1:3] == ["\u3000", odd]
    path, text, _ = FILES["xml"]
    assert "<ORG>" in text and "10\u00a0000" in docs_of(write(path, text.replace("Acme", "10\u00a0000")))[2].text


def test_readers_of_lines_split_at_blanks_alone():
    """A reader that splits lines at any white space changes the words of people's files."""
    folder = Path(spacy_crf.__file__).parent
    files = [
        path for path in (folder / "cli" / "formats").glob("*.py") if path.stem not in ("annotation", "offsets")
    ]  # which compare
    files += [folder / "cli" / "migrate.py", folder / "migrate" / "checking.py", folder / "features" / "clusters.py"]
    files += [folder / "pipeline" / "mentions.py", folder / "report" / "suspects.py"]
    wrong = re.compile(r"\b(?!on_)\w+(\(.*\))?\.(split|splitlines|isspace)\(\)")
    assert not [(path.name, found[0]) for path in files for found in wrong.finditer(path.read_text(encoding="utf8"))]


def test_byte_order_marks_of_joined_files(write):
    docs = docs_of(write("a.conll", "\ufeffAnn\tB-PER\n\n\ufeffBob\tB-PER\n"))
    assert [doc[0].text for doc in docs] == ["Ann", "Bob"]


MISC = [("B-PER", {}), ("Tag=B-PER", {}), ("NER=PER", {}), ("Kind=B-PER", {"label_column": "Kind"}), ("x=y|B-PER", {})]


@pytest.mark.parametrize("misc, settings", MISC)
def test_entity_tags_of_conllu(write, misc, settings):
    """Only NER=, NE= and Name= were read; others were lost without a word."""
    rows = [("Ann", misc), ("ran", "_"), ("off", misc.replace("B-PER", "O") if "B-PER" in misc else "_")]
    text = "".join(f"{n}\t{w}\t_\tX\t_\t_\t_\t_\t_\t{m}\n" for n, (w, m) in enumerate(rows, 1))
    [doc] = docs_of(write("a.conllu", text), **settings)
    assert entities(doc) == [(0, 1, "PER")]


@pytest.mark.parametrize(
    "misc, says",
    [
        ("Entity=(1-person-1", "CRF742.*'Entity='"),
        ("Kind=B-PER", "CRF742.*'Kind='"),
        ("NER=B-PER|B-PER", "CRF714.*'NER' and tags without a key.*--ignore NER"),
        ("Tag=B-PER|Tag2=B-X", "CRF742"),
    ],
)
def test_annotation_of_conllu_that_would_be_lost(write, misc, says):
    source = write(
        "a.conllu",
        f"1\tAnn\t_\tX\t_\t_\t_\t_\t_\t{misc}\n2\tran\t_\tX\t_\t_\t_\t_\t_\tGloss=E-mail\n"
        "3\toff\t_\tX\t_\t_\t_\t_\t_\tGloss=aus\n",
    )
    with pytest.raises(ValueError, match=rf"{says}"):
        docs_of(source)
    with pytest.raises(ValueError, match=r"CRF868: --label-column Nothing: "):
        docs_of(source, label_column="Nothing")
    docs_of(source, ignore=["entity", "kind", "ner", "", "tag", "tag2"])


def test_empty_texts_have_no_tags(write):
    report = Report()
    docs_of(write("a.jsonl", lines([{"text": "Ann", "spans": [[0, 3, "PER"]]}, {"text": "", "spans": []}])), report)
    assert (report.documents, report.tagged) == (2, 0)
    doc_bin([spacy.tokens.Doc(NLP.vocab)]).to_disk(write("a.spacy", b"").path)
    assert docs_of(Source(write("b", b"").path.with_name("a.spacy")), without_spans=False)  # of nothing nothing is lost


@pytest.mark.parametrize(
    "tags, says",
    [
        ("B-X O U-X", "line 2: 'O' can't follow 'B-X' in the scheme BILUO"),
        ("U-X L-X O", "line 2: 'L-X' can't follow 'U-X'"),
        ("B-X L-Y O", "line 2: 'L-Y' can't follow 'B-X'"),
        ("U-X O B-X", "line 3: 'the end' can't follow 'B-X'"),
        ("S-X O I-X", "line 3: 'I-X' can't follow 'O' in the scheme BIOES"),
        ("S-X U-X O", "line 1: 'S-X' is not an entity tag"),
        ("B-X I-X PER", "line 3: 'PER' is not an entity tag"),
        ("B I O", "line 1: 'B' names no kind of entity"),
        ("O I O", "line 2: 'I' names no kind of entity.*I-LABEL"),
        ("NNP VB NN", "line 1: 'NNP' has no prefix"),
        ("(X * *) (Y) *", r"line 1: '\(X' is a bracket"),
    ],
)
def test_tags_of_no_scheme(write, tags, says):
    text = "".join(f"word {tag}\n" for tag in tags.split())
    with pytest.raises(ValueError, match=rf"CRF\d+: .*a\.conll, ({says})"):
        docs_of(write("a.conll", text))


def test_a_scheme_can_be_named(write):
    text = "Ann PER\nLee PER\nRome GPE\n"
    assert entities(docs_of(write("a.conll", text), scheme="bare")[0]) == [(0, 2, "PER"), (2, 3, "GPE")]
    with pytest.raises(ValueError, match=r"CRF704.*line 1: 'PER'"):
        docs_of(write("a.conll", text), scheme="BIO")
    with pytest.raises(ValueError, match=r"CRF744.*line 1: 'B' names no kind"):
        docs_of(write("a.conll", "Ann B\nLee I\nran O\n"), scheme="BIO")


@pytest.mark.parametrize(
    "name, content, option",
    [
        ("a.conllu", "1\tAnn\t_\tPROPN\tNNP\t_\t0\troot\t_\tNER=B-PER\n", "word_column"),
        ("a.conllu", "1\tAnn\t_\tPROPN\tNNP\t_\t0\troot\t_\tNER=B-PER\n", "tag_column"),
        ("a.jsonl", lines([{"tokens": ["Ann"], "ner_tags": ["B-PER"]}]), "label_column"),
        ("a.jsonl", lines([{"text": "Ann", "spans": [[0, 3, "PER"]]}]), "tag_column"),
        ("a.xml", "<a><PER>Ann</PER> ran</a>", "word_column"),
    ],
)
def test_columns_that_a_format_does_not_have(write, name, content, option):
    """The option was ignored without a word, and the annotation that it asked for was missing."""
    asked = f"--{option.replace('_', '-')} 2"
    with pytest.raises(ValueError, match=rf"CRF747: .*{name} is read as .*{asked} means nothing"):
        docs_of(write(name, content), **{option: "2"})


def test_columns_can_be_named(write):
    text = "1 Ann NNP B-PER x\n2 ran VBD O x\n"
    [doc] = docs_of(write("a.conll", text), word_column="2", tag_column="3", label_column="4")
    assert ([token.text for token in doc], [token.tag_ for token in doc]) == (["Ann", "ran"], ["NNP", "VBD"])
    assert entities(doc) == [(0, 1, "PER")]
    for column in ("0", "word", "-1"):
        with pytest.raises(ValueError, match="CRF868: --word-column"):
            docs_of(write("a.conll", text), word_column=column)
    text = "n,w,Part,e\n1,Ann,NNP,B-PER\n2,ran,VBD,O\n"
    with pytest.raises(ValueError, match=r"CRF869.*line 1: .* n, w, Part, e"):
        docs_of(write("a.csv", text))
    [doc] = docs_of(write("a.csv", text), word_column="w", tag_column="Part", label_column="4")
    assert (entities(doc), doc[1].tag_) == ([(0, 1, "PER")], "VBD")
    with pytest.raises(ValueError, match=r"CRF868: --word-column W: .*n, w, Part, e"):
        docs_of(write("a.csv", text), word_column="W")


@pytest.mark.parametrize("name, documents", [("columns", [2, 1]), ("conllu", [2, 1]), ("table", [3])])
def test_sentences_of_a_doc(write, name, documents):
    path, text, _ = FILES[name]
    if name == "columns":  # a document of two sentences, and one more
        first, _, last = text.rpartition("\n\n")
        text = f"{first}\n\n-DOCSTART-\tO\tO\n\n{last}"
    for n, expected in ((1, [1, 1, 1]), (0, documents), (2, [2, 1])):
        docs = docs_of(write(path, text), n_sents=n)
        assert [len(list(doc.sents)) if n != 1 else 1 for doc in docs] == expected
        assert sum(len(doc.ents) for doc in docs) == 6
    whole = docs_of(write(path, text), n_sents=0)
    assert [token.is_sent_start for token in whole[0]].count(True) == documents[0]


def test_parts_of_speech_and_morphology(write):
    docs = docs_of(write("a.conllu", conllu()))
    assert [[token.tag_ for token in doc] for doc in docs] == TAGS
    assert {str(token.morph) for doc in docs for token in doc} == {"Number=Sing"}
    assert docs[0][1].lemma_ == "lee" and docs[0][1].head.text == "Ann" and docs[0][0].dep_ == "ROOT"
    for name in ("table", "words, tags"):
        path, text, _ = FILES[name]
        assert [[token.tag_ for token in doc] for doc in docs_of(write(path, text))] == TAGS
    docs = docs_of(write("a.conll", columns(tags=True)), tag_column="2")
    assert [[token.tag_ for token in doc] for doc in docs] == TAGS


def test_contractions_and_spaces_of_conllu(write):
    text = """# text = Im Haus.
1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tIn\tin\tADP\t_\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\t_\tCase=Dat\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No
3.1\tleer\t_\t_\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_
"""
    [doc] = docs_of(write("a.conllu", text))
    assert doc.text == "Indem Haus. "
    assert [token.tag_ for token in doc] == ["ADP", "DET", "NOUN", "PUNCT"]
    assert not doc.has_annotation("ENT_IOB")


def test_a_contraction_ends_with_its_sentence(write):
    """The words of the next sentence once lost their spaces."""
    row = "{}\t{}\t_\t_\t_\t_\t_\t_\t_\t_\n".format
    text = row("1-2", "Im") + row(1, "In") + row(2, "dem") + "\n" + row(1, "Da") + row(2, "ist") + row(3, "er")
    assert [doc.text for doc in docs_of(write("a.conllu", text), n_sents=1)] == ["Indem ", "Da ist er "]


def test_labels_of_conllu_are_kept_whole(write):
    """Not cut after their capitals."""
    [doc] = docs_of(write("a.conllu", "1\tAnn\t_\t_\t_\t_\t_\t_\t_\tname=B-Person2\n"))
    assert doc.ents[0].label_ == "Person2"


def test_quotes_in_tables(write):
    text = 'word,tag\n\'\',O\n"""",O\n"1,000",B-N\n'
    assert [token.text for token in docs_of(write("a.csv", text))[0]] == ["''", '"', "1,000"]
    text = 'word\ttag\n"\tO\nAnn\tB-PER\n""""\tO\n"\tO\n'
    assert [token.text for token in docs_of(write("a.tsv", text))[0]] == ['"', "Ann", '"', '"']


def test_numbers_of_tags(write):
    text = lines([{"tokens": ["Ann", "Lee", "ran"], "ner_tags": [1, 2, 0]}])
    with pytest.raises(ValueError, match=r"CRF870.*line 1: tag or label 1 .*--tag-names"):
        docs_of(write("a.jsonl", text))
    with pytest.raises(ValueError, match=r"CRF870.*line 1: tag or label 2 "):
        docs_of(write("a.jsonl", text), tag_names=["O", "B-PER"])
    [doc] = docs_of(write("a.jsonl", text), tag_names=["O", "B-PER", "I-PER"])
    assert entities(doc) == [(0, 2, "PER")]


@pytest.mark.parametrize("key", ["pos_tags", "pos"])
def test_lists_of_words_may_have_tags_of_speech_only(write, key):
    [doc] = docs_of(write("a.jsonl", lines([{"tokens": ["dogs", "bark"], key: ["NNS", ""]}])))
    assert [token.tag_ for token in doc] == ["NNS", ""] and not doc.has_annotation("ENT_IOB")
    with pytest.raises(ValueError, match=r'CRF701.*"pos_tags"'):  # numbers without names
        docs_of(write("b.jsonl", lines([{"tokens": ["dogs", "bark"], key: [1, 2]}])))


def test_spans_of_a_text_are_read_beside_tags_of_speech(write):
    item = {"text": "Ann ran", "tokens": ["Ann", "ran"], "pos_tags": ["NNP", "VBD"]}
    [doc] = docs_of(write("a.jsonl", lines([{**item, "spans": [[0, 3, "PER"]]}])))
    assert entities(doc) == [(0, 1, "PER")]


def test_encodings(tmp_path):
    (tmp_path / "a.conll").write_text(columns(), encoding="latin-1")
    assert [entities(doc) for doc in docs_of(Source(tmp_path / "a.conll", "latin-1"))] == EXPECTED
    with pytest.raises(ValueError, match=r"CRF701.*line 16: .*not UTF-8"):
        docs_of(Source(tmp_path / "a.conll"))
    for encoding in ("klingon", "base64", "undefined"):
        with pytest.raises(ValueError, match=rf"CRF872.*'{encoding}'.*such as utf-8"):
            Source(tmp_path / "a.conll", encoding)


@pytest.mark.parametrize("name", ["columns", "pairs", "labelled table", "text and label"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_named_and_read(write, name, encoding):
    """It was "not UTF-8 (invalid start byte)", and could not be read at all."""
    path, text, format_ = EVERY[name]
    source = write(path, ("\ufeff" if encoding[-2:] in ("le", "be") else "").encode(encoding) + text.encode(encoding))
    with pytest.raises(ValueError, match=r"CRF701.*line 1: .*not UTF-8.*--encoding utf-16"):
        docs_of(source)
    source, report = Source(source.path, encoding), Report()
    assert len(docs_of(source, report)) == 3 and report.format == format_
    cut = Source(write(path, text.encode(encoding)[:-1]).path, encoding)
    with pytest.raises(ValueError, match=rf"CRF701.*{re.escape(path)}, line \d+: .*not {encoding.upper()}"):
        docs_of(cut)


def test_utf_16_without_its_mark_is_named(write):
    with pytest.raises(ValueError, match=r"CRF701.*line 1: .*every second byte is 0.*--encoding utf-16"):
        docs_of(write("a.conll", columns().encode("utf-16-le")))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_huge_integers(write, name):
    """A raw error of Python's where a file was looked at for what it is."""
    text = json.dumps({"text": "Ann", "spans": [], "meta": 7}).replace("7", "7" * 5000)
    for content in (text + "\n", f"[\n{text}\n]"):
        line = 2 if content[0] == "[" else 1
        with pytest.raises(ValueError, match=rf"CRF701.*line {line}.*: .*an integer has more than 4,300 digits"):
            docs_of(write(name, content))


def test_texts_that_are_too_long(write, monkeypatch):
    monkeypatch.setattr(NLP, "max_length", 40)
    long = "so long " * 6
    for name, text, where in (
        ("a.jsonl", lines([{"text": "Ann", "spans": [[0, 3, "PER"]]}, {"text": long, "spans": []}]), "line 2"),
        ("a.csv", f"text,label\nI ran,A\n{long},B\n", "line 3"),
        ("a.json", json.dumps(spacy_2()).replace("Nobody", "Nobody" * 9), "document 2"),
    ):
        with pytest.raises(ValueError, match=rf"CRF878.*{name}, {where}: the text has \d\d characters, .* 40 at most"):
            docs_of(write(name, text))
    assert (
        len(docs_of(write("a.conll", "long O\n" * 30), without_spans=True)[0]) == 30
    )  # words, which nobody reads again


def test_what_annotators_did_not_accept(write):
    items = list(prodigy())
    items[1]["answer"], items[2]["answer"] = "ignore", "reject"
    report = Report()
    assert len(docs_of(write("a.jsonl", lines(items)), report)) == 1
    assert [place.partition(", ")[2] for place in report.rejected] == ["line 2 ('ignore')", "line 3 ('reject')"]
    with pytest.raises(ValueError, match="CRF708"):
        docs_of(write("a.json", json.dumps(list(label_studio(skipped=True)))))
    tasks = list(label_studio())
    tasks[0]["annotations"] += [{"result": [], "ground_truth": True}]
    tasks[1]["annotations"] = []
    report = Report()
    assert [len(doc.ents) for doc in docs_of(write("a.json", json.dumps(tasks)), report)] == [0, 3]
    assert len(report.unread) == len(report.rejected) == 1


def test_what_is_not_read_is_told(write):
    report = Report()
    docs_of(write("a.conll", "Ann NNP B-NP B-PER\nran VBD B-VP O\n"), report, tag_column="2")
    assert report.columns == ["3"]
    docs_of(write("a.csv", ",word,lemma,tag\n0,Ann,Ann,B-PER\n"), report)
    assert report.columns == ["1", "lemma"]
    report = Report()
    docs_of(write("a.conll", "Ann B-PER\n" * 5001), report)
    assert [place.partition(", ")[2] for place in report.long] == ["document 1: 5,001 tokens"]


def test_white_space_behind_a_tag_is_no_label(write):
    [doc] = docs_of(write("a.conll", "Ann\tB-PER \nLee\tI-PER\n"))
    assert entities(doc) == [(0, 2, "PER")]


@pytest.mark.parametrize("key", ["heads", "deps", "pos", "morphs", "lemmas"])
def test_other_annotation_of_spacy_2_is_an_error(write, key):
    source = write("train.py", f"TRAIN_DATA = [('Ann ran', {{'{key}': ['a', 'b']}})]\n")
    with pytest.raises(ValueError, match=f"CRF707.*line 1, item 1: '{key}'"):
        docs_of(source)


# --------------------------------------------------------------------------------------- files with one fault each


def change(text, old, new):
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1)


# Of which file, what is replaced by what, and what is said of it – or the number of spans that are left where the report tells
FAULTS = [
    ("prodigy", '"start": 12', '"start": 120', r"CRF701.*line 1: .*\"start\" < \"end\""),
    ("prodigy", '"end": 15', '"end": 14', ["misaligned"]),
    ("prodigy", '"end": 15', '"end": 16', ["trimmed"]),
    ("prodigy", '"start": 12', '"start": 4', "CRF702.*line 1: two spans overlap"),
    ("prodigy", '"spans"', '"ents"', r"CRF707.*line 1: 'ents'"),
    ("prodigy", '"text": "Zoë', '"texte": "Zoë', 'CRF701.*line 3: .*it has no "text"'),
    ("prodigy", '"label": "PER"', '"label": ""', "CRF701.*line 1"),
    ("prodigy", ', "answer": "accept"}\n', "\n", "CRF701.*line 1: .*not JSON"),
    ("doccano", '"label": [[0, 7', '"label": [["0", 7', "CRF701.*line 1"),
    ("doccano", '"label": [[0, 3', '"label": [], "label": [[0, 3', "CRF701.*line 3: .*'label' stands twice"),
    ("doccano", '"Comments": []', '"tags": ["B-PER"]', r"CRF707.*line 1: 'tags'"),
    ("doccano, relations", '"start_offset": 19', '"start_offset": 20', ["misaligned"]),
    (
        "doccano, relations",
        '"relations": []',
        '"relations": [{"from_id": 1, "to_id": 2}]',
        "CRF707.*line 1: 'relations'",
    ),
    ("label studio", '"start": 19', '"start": 15', "CRF871.*line 1, item 1: .*'New York'.*' in New York'"),
    ("label studio", '"labels": ["ORG"]', '"choices": ["ORG"]', 'CRF701.*item 3: .*no "labels"'),
    ("label studio", '"type": "labels"', '"type": "relation"', "CRF707.*item 1: 'relation'"),
    ("label studio", '"data": {"text": "Nob', '"data": {"a": "b", "c": "Nob', "CRF701.*item 2: .*several texts"),
    ("label studio, written out", '"result": [', '"result": {', "CRF701.*line 9, item 1: .*not JSON"),
    ("label studio, min", '"label": [{', '"label2": [], "label": [{', "CRF714.*item 1"),
    ("pairs", "], [", " [", r"CRF701.*line 1.*not JSON"),
    (
        "pairs in Python",
        "'entities': [(0, 3",
        "'entities': [(f(0), 3",
        "CRF701.*line 6, item 3: .*not a Python literal",
    ),
    ("pairs in Python", "TRAIN_DATA = [", "TRAIN_DATA = [(", "CRF701.*line .*not Python"),
    ("spaCy 2", '"ner": "L-PER"', '"ner": "X-PER"', "CRF701.*item 1, paragraph 1: .*E068"),
    ("spaCy 2", '"orth": "Nobody"', '"word": "Nobody"', "CRF701.*item 1, paragraph 2: .*'orth'"),
    ("tokens", '"Lee", ', "", r'CRF701.*line 1: .*7 words under "tokens", but 8 tags under "ner_tags"'),
    ("tokens", '"I-PER"', '"I-GPE"', ["repaired"]),
    ("tokens", '"id": "1"', '"chunk_tags": ["B-NP"]', "CRF707.*line 1: 'chunk_tags'"),
    ("columns", "Nobody\tO", "Nobody O", []),
    ("columns", "Nobody\tO", "Nobody\t", "CRF701.*line 12: .*the tag is empty"),
    ("columns", "I-GPE", "I-GEP", ["repaired"]),
    ("columns", "B-ORG", "ORG", "CRF704.*line 18: 'ORG'"),
    ("words", "Nobody|O", "NobodyO", "CRF701.*line 2: .*'NobodyO'"),
    ("words, tags", "Nobody|NN|O", "Nobody|O", "CRF701.*line 2: .*'Nobody.O'"),
    ("conllu", "\tBob\tbob", "\tBob", "CRF703.*line 7: has 9 columns"),
    (
        "conllu",
        "2\tLee\tlee\tX\tNNP\tNumber=Sing\t1\tdep\t_\tLang=en|NER=I-PER\n",
        "",
        "CRF701.*line 5: .*a line is missing",
    ),
    ("conllu", "Number=Sing\t1", "Number=Sing\t77", "CRF701.*line 5: .*'77' is not a word"),
    ("table", ",Lee,NNP,I-PER", ",Lee,I-PER", "CRF703.*line 3: has 3 columns, but 4"),
    ("table", ",Lee,NNP,I-PER", ',"Lee,NNP,I-PER', "CRF701.*line 3: "),
    ("table", "Word", "Mot", "CRF869.*line 1"),
    ("table, tabs", "1\tLee", "1\t", "CRF701.*line 3: .*the word is empty"),
]


@pytest.mark.parametrize("name, old, new, says", FAULTS, ids=[f"{name}: {new[:20]!r}" for name, _, new, _ in FAULTS])
def test_files_with_one_fault(write, name, old, new, says):
    """A coded message with file and line; or all but what the report tells is read."""
    path, text, _ = FILES[name]
    source, report = write(path, change(text, old, new)), Report()
    if isinstance(says, str):
        with pytest.raises(ValueError, match=f"CRF.*{re.escape(path)}, line") as error:
            docs_of(source, report)
        assert re.search(says, str(error.value)), error.value
    else:
        docs = docs_of(source, report)
        lost = len(report.misaligned) + len(report.overlapping)
        assert [len(getattr(report, told)) for told in says] == [1] * len(says)
        assert sum(len(doc.ents) for doc in docs) == 6 - lost + len(report.repaired)


@pytest.mark.parametrize("name", EVERY)
def test_damaged_files_are_read_or_refused_with_a_code(write, name):
    """Cut anywhere, or with characters or lines lost, doubled or swapped: never an error without a code."""
    path, text, _ = EVERY[name]
    rng = random.Random(0)
    for _ in range(40):
        at, end = sorted(rng.choices(range(len(text)), k=2))
        rows = text.splitlines(keepends=True)
        row = rng.randrange(len(rows))
        damaged = rng.choice(
            [
                text[:at],
                text[:at] + text[at + 1 :],
                text[:at] + text[at] + text[at:],
                text[:at] + rng.choice('\t\n ,"|[]{}#-\\é\0') + text[at + 1 :],
                text[:at] + text[end:],
                "".join(rows[:row] + rows[row + 1 :]),
                "".join(rows[: row + 1] + rows[row:]),
            ]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                docs_of(write(path, damaged))
            except ValueError as error:
                assert re.match(r"CRF\d{3}: ", str(error)), (damaged, error)


# In place of a value of JSON, or of what is between separators
ODD_VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    math.nan,
    10**30,
    10**4200,
    "",
    "x",
    "\ud800",
    "B-PER",
    "a\nb",
    [],
    {},
    [[]],
    ["x"],
    [None],
]
ODD_VALUES += [["\ud800"], [[0, 1, "X"]], {"x": 1}, {"": 1}, {"text": "a"}, [{"start": 0, "end": 1, "label": "X"}]]
ODD_KEYS = [
    "spans",
    "label",
    "labels",
    "cats",
    "accept",
    "entities",
    "tokens",
    "annotations",
    "data",
    "id",
    "options",
    "answer",
]
ODD_TEXTS = [
    "",
    "9" * 5000,
    "\0",
    "\r",
    '"',
    "²",
    "٣",
    "1-2-3",
    "1-",
    "-",
    "[",
    "{",
    "#",
    "O",
    "B-",
    "\x85",
    "\u2028",
    "0 1;5",
    "T1",
]


def places(value):
    """The containers and keys of all values within one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield value, key
        yield from places(part)


def mutated(path, text, rng):
    """A file with one odd value, or key, or part of a line."""
    if path.endswith((".json", ".jsonl")):
        values = [json.loads(text)] if path == "a.json" else [json.loads(line) for line in text.splitlines()]
        container, key = rng.choice([*places(values)])
        odd = rng.choice(ODD_KEYS)
        if isinstance(container, dict) and rng.random() < 0.3:
            container[odd] = container.pop(key)
        else:
            container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
        return json.dumps(values[0]) if path == "a.json" else "".join(f"{json.dumps(value)}\n" for value in values)
    parts = re.split(r"([\t,;| \n])", text)
    at = rng.randrange(len(parts))
    return "".join((*parts[:at], rng.choice(ODD_TEXTS), *parts[at + 1 :]))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", range(1))
def test_odd_values_are_read_or_refused_with_a_code(write, name, seed):
    """Of 7,600 such files 221 ended in a raw error: halves of characters, thousands of digits, 1-2-3 as a word's number."""
    path, text, _ = EVERY[name]
    rng = random.Random(f"{name} {seed}")
    for _ in range(3 if name == "spaCy 2" else 12):  # whose own reading is slow
        content = mutated(path, text, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                doc_bin(docs_of(write(path, content))).to_bytes()
            except Exception as error:
                assert type(error) is ValueError and re.match(r"CRF\d{3}: ", str(error)), (content, error)


HIDDEN = ["kept", "gold", "spans_2", "annotations", "ents", "result", "x"]


def hidden_or_shifted(values, rng):
    """One key renamed, or one value of another type or moved, so that no annotation is gone, but some of it is elsewhere."""
    container, key = rng.choice([*places(values)])
    value = container[key]
    if isinstance(container, dict) and rng.random() < 0.5:
        container[rng.choice(HIDDEN)] = container.pop(key)
    elif type(value) is int:
        container[key] = rng.choice([str(value), value + 1, -value - 1, value + 1000, float(value), [value]])
    elif isinstance(value, list):
        container[key] = rng.choice([{"x": value}, [value], json.dumps(value)])
    elif isinstance(value, str) and key not in ("text", "content") and len(value) < 20:
        container[key] = rng.choice([[value], {"x": value}])


@pytest.mark.parametrize("name", [name for name, (path, *_) in FILES.items() if path.endswith((".json", ".jsonl"))])
@pytest.mark.parametrize("seed", range(1))
def test_annotation_elsewhere_is_read_counted_or_refused(write, name, seed):
    """The key "annotation" was dropped without a word. Of three texts with six spans, all are read, or counted as left out."""
    path, text, _ = FILES[name]
    rng = random.Random(f"{name} {seed}")
    for _ in range(4 if name == "spaCy 2" else 25):
        is_one = path == "a.json"
        values = json.loads(text) if is_one else [json.loads(line) for line in text.splitlines()]
        hidden_or_shifted(values, rng)
        content = json.dumps(values) if is_one else lines(values)
        report = Report()
        try:
            docs = docs_of(write(path, content), report, skip_broken=rng.random() < 0.5)
        except ValueError as error:
            assert re.match(r"CRF\d{3}: ", str(error)), (content, error)
            continue
        assert len(docs) + len(report.rejected) == 3, content
        n_left_out = len(report.misaligned) + len(report.overlapping) + 3 * len(report.rejected)
        n_spans = sum(len(doc.ents) for doc in docs) + n_left_out
        assert n_spans >= 6 or report.broken or report.unlabelled, content


@pytest.mark.parametrize("name", EVERY)
def test_files_that_are_taken_for_others(write, name):
    path, text, _ = EVERY[name]
    source = write(path, text)
    for format_ in FORMATS:
        try:
            docs_of(source, format=format_)
        except ValueError as error:
            assert re.match(r"CRF\d{3}: ", str(error)), (format_, error)


# ------------------------------------------------------------------------------------------ offsets, and broken spans

EMOJI = "\U0001f600"
# text, spans with words in characters, what the program counts
COUNTED = {
    "utf16": (f"{EMOJI} Ann {EMOJI}{EMOJI} met Bob", [(2, 5, "PER"), (13, 16, "PER")], ["utf16"]),
    "crlf": ("Ann\r\nmet\r\nBob", [(0, 3, "PER"), (10, 13, "PER")], ["crlf"]),
    "both": (f"{EMOJI}{EMOJI}\r\nAnn met Bob", [(4, 7, "PER"), (12, 15, "PER")], ["utf16", "crlf"]),
    "neither": (f"{EMOJI}\r\nAnn met Bob", [(3, 6, "PER"), (11, 14, "PER")], []),
}


def counted(text, offset, habits):
    """The offset that a program writes which counts UTF-16 units, or CR LF as one."""
    before = text[:offset]
    n = len(before)
    if "utf16" in habits:
        n += before.count(EMOJI)
    if "crlf" in habits:
        n -= before.count("\r\n")
    return n


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("with_words", [True, False], ids=["words", "option"])
def test_offsets_of_programs_that_count_otherwise(write, name, with_words):
    """They were refused, or read at other words. The words of spans show how they are counted, or an option says it."""
    text, spans, habits = COUNTED[name]
    written = []
    for start, end, label in spans:
        span = {"start": counted(text, start, habits), "end": counted(text, end, habits), "label": label}
        written.append(span | ({"text": text[start:end]} if with_words else {}))
    source, report = write("a.jsonl", lines([{"text": text, "spans": written}])), Report()
    [doc] = docs_of(source, report, offsets=() if with_words else habits)
    assert [span.text for span in doc.ents] == ["Ann", "Bob"]
    assert report.offsets == habits


def test_a_byte_order_mark_that_is_counted(write, tmp_path):
    (tmp_path / "a.txt").write_bytes("Ann Lee met Bob".encode("utf-8-sig"))
    report = Report()
    [doc] = docs_of(write("a.ann", "T1\tPER 1 8\tAnn Lee\nT2\tPER 13 16\tBob\n"), report)
    assert [span.text for span in doc.ents] == ["Ann Lee", "Bob"] and report.offsets == ["bom"]


def test_a_broken_span_does_not_hide_how_offsets_count(write):
    """One span with other words, in a text in which all programs count alike, made all other spans of the file broken."""
    items = [
        {"text": "\U0001f600 Ann ran", "spans": [{"start": 3, "end": 6, "label": "PER", "text": "Ann"}]},
        {"text": "Bob ran", "spans": [{"start": 4, "end": 7, "label": "PER", "text": "Bob"}]},
    ]
    report = Report()
    docs = docs_of(write("a.jsonl", lines(items)), report, skip_broken=True)
    assert report.offsets == ["utf16"] and len(report.broken) == 1
    assert [[span.text for span in doc.ents] for doc in docs] == [["Ann"], []]


def test_wrong_offsets_name_the_likely_cause(write):
    text = "List:\r\nFour Pines\r\nOak Inn"
    source = write("a.jsonl", lines([{"text": text, "label": [[17, 24, "ORG"], [0, 4, "X"]]}]))
    report = Report()
    docs_of(source, report)
    assert report.misaligned[0].endswith("'Oak I' (ORG) – 'Oak Inn' with --offsets crlf")
    words = lines([{"text": text, "spans": [{"start": 1, "end": 3, "text": "ist", "label": "X"}]}])
    with pytest.raises(ValueError, match="CRF871"):
        docs_of(write("b.jsonl", words))
    beyond = lines([{"text": f"{EMOJI}{EMOJI} a b", "label": [[7, 8, "X"]]}])
    with pytest.raises(ValueError, match=r"CRF701.*does the file count UTF-16 units.*--offsets utf16"):
        docs_of(write("c.jsonl", beyond))


BROKEN = [
    {"text": "Ann ran", "label": [[0, 30, "PER"], [0, 3, "PER"]]},
    {"text": "Bob sat", "label": [[0, 3, "PER"]]},
    {"text": "Zoë sat", "label": [[5, 4, "PER"]]},
]


def test_broken_spans_are_listed_at_once(write):
    """Each run told of one only."""
    items = [*BROKEN, *({"text": "Ann ran", "label": [[n, 99, "X"]]} for n in range(30))]
    with pytest.raises(ValueError, match=r"CRF755.*32 spans") as error:
        docs_of(write("a.jsonl", lines(items)))
    said = str(error.value)
    assert said.count("CRF701") == 20 and "line 1:" in said and "line 3:" in said and "and 12 more" in said
    assert "--skip-broken" in said


def test_broken_spans_can_be_missing_annotation(write):
    """Where they are is not known, so no other token of the text counts as outside."""
    source, report = write("a.jsonl", lines(BROKEN)), Report()
    docs = docs_of(source, report, skip_broken=True)
    assert [[token.ent_iob_ for token in doc] for doc in docs] == [["B", ""], ["B", "O"], ["", ""]]
    assert len(report.broken) == 2
    groups = docs_of(source, skip_broken=True, spans_key="sc")
    assert ["sc" in doc.spans for doc in groups] == [False, True, False]  # a missing group is a text without annotation


# ---------------------------------------------------------------------------------------------- what is refused by name

REFUSED = {
    "WebAnno TSV 3": ("a.tsv", "#FORMAT=WebAnno TSV 3.3\n#T_SP=x|y\n\n\n#Text=Ann ran\n1-1\t0-3\tAnn\tPER[1]\n"),
    "PubTator": ("a.txt", "100|t|Nab1 gene.\n100|a|We saw.\n100\t0\t4\tNab1\tGene\t12\n"),
    "Rasa's JSON": ("a.json", '{"rasa_nlu_data": {"common_examples": [{"text": "hi", "intent": "greet"}]}}'),
    "Rasa's YAML": ("nlu.yml", 'version: "3.1"\nnlu:\n- intent: greet\n  examples: |\n    - hi\n'),
    "Rasa's Markdown": ("nlu.md", "## intent:greet\n- hi [Ann](name)\n"),
    "BioC JSON": ("a.json", '{"source": "x", "documents": [{"id": "1", "passages": []}]}'),
    "BioC XML": ("a.xml", "<?xml version='1.0'?><collection><source>x</source><document/></collection>"),
    "UIMA's XMI": ("a.xmi", '<?xml version="1.0"?><xmi:XMI xmlns:xmi="x"></xmi:XMI>'),
    "an Excel file": ("a.xlsx", b"PK\x03\x04\x14\x00\xff\xfe"),
    "a document of an office program": ("a.docx", b"PK\x03\x04\x14\x00\xff\xfe"),
    "a zip archive": ("a.zip", b"PK\x03\x04\x14\x00\xff\xfe"),
    "an old Excel or Word file": ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    "a PDF": ("a.pdf", b"%PDF-1.4\n%\xe2\xe3"),
    "HTML": ("a.html", "<!DOCTYPE html>\n<html><body>Ann</body></html>"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_formats_that_are_not_read_are_named(write, name):
    """They were said to lack columns."""
    path, content = REFUSED[name]
    with pytest.raises(ValueError, match=rf"CRF756: .*{re.escape(path)} is {re.escape(name)}"):
        docs_of(write(path, content))


def test_arrays_of_numpy_in_tables(write):
    """Tables that pandas writes from arrays have no commas: Python joined their strings to one word with one tag."""
    sentence = """word,tags\n"['Ann' 'd\\'Or'\n 'ran']","['B-PER' 'I-PER'\n 'O']"\n"""
    [doc] = docs_of(write("a.csv", sentence))
    assert [token.text for token in doc] == ["Ann", "d'Or", "ran"] and entities(doc) == [(0, 2, "PER")]
    numbers = write("b.csv", """word,tags\n"['Ann' 'ran']",[1 0]\n""")
    assert entities(docs_of(numbers, tag_names=["O", "B-PER"])[0]) == [(0, 1, "PER")]
    with pytest.raises(ValueError, match=r"CRF870.*line 2: tag or label 1"):
        docs_of(numbers)
    [doc] = docs_of(write("c.csv", """text,labels\nAnn ran,"['a' 'b']"\n"""))
    assert doc.cats == {"a": 1.0, "b": 1.0}


def test_pipes_are_named(tmp_path):
    """Formats are found by a look at the beginning of a file, and of a pipe that part was lost without a word."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"CRF749: .*pipe is a pipe or a device"):
        Source(tmp_path / "pipe")


def test_running_text_is_named(write):
    with pytest.raises(ValueError, match=r"CRF757.*running text.*3 words, and line 2 has\s+4"):
        docs_of(write("plain.txt", "Ann Lee ran.\nBob stayed at home.\n\nNobody came.\n"))
    with pytest.raises(ValueError, match=r"CRF703.*line 4"):  # columns with a wrong line
        docs_of(write("a.conll", "Ann NNP\nran VBD\nto TO\nNew York NNP\n. PUNCT\n" + "x NN\n" * 5))


def test_spans_beside_lists_of_tags_are_not_lost(write):
    """They were, without a word."""
    item = {"tokens": ["Ann", "ran"], "ner_tags": ["B-PER", "O"], "entities": [{"start": 0, "end": 1, "type": "PER"}]}
    with pytest.raises(ValueError, match=r"CRF707.*'entities'"):
        docs_of(write("a.jsonl", lines([item])))


def test_a_doc_of_json_keeps_all_that_it_holds(write):
    doc = NLP("Ann Lee ran")
    doc.spans["sc"] = [doc.char_span(0, 7, "PER"), doc.char_span(0, 3, "FIRST")]
    doc[2].tag_ = "VBD"
    doc.cats = {"A": 1.0, "B": 0.0}
    report = Report()
    [read_again] = docs_of(write("a.json", json.dumps([doc.to_json()])), report)
    assert [(span.text, span.label_) for span in read_again.spans["sc"]] == [("Ann Lee", "PER"), ("Ann", "FIRST")]
    assert read_again[2].tag_ == "VBD" and read_again.cats == doc.cats and report.groups == {"sc": 2}


def test_parts_of_words_are_no_entities(write):
    """Without an aggregation strategy, Hugging Face's pipeline writes a tag for each part of a word."""
    spans = [{"entity": "B-PER", "index": 1, "word": "An", "start": 0, "end": 2}]
    with pytest.raises(ValueError, match=r"CRF701.*aggregation_strategy"):
        docs_of(write("a.jsonl", lines([{"text": "Ann ran", "entities": spans}])))


def test_a_text_that_is_not_annotated_yet_is_missing_annotation(write):
    """Argilla and DataTurks write null."""
    report = Report()
    items = [{"text": "Ann ran", "annotation": [["PER", 0, 3]]}, {"text": "Bob sat", "annotation": None}]
    one, two = docs_of(write("a.jsonl", lines(items)), report)
    assert entities(one) == [(0, 1, "PER")] and [token.ent_iob for token in two] == [0, 0]
    assert len(report.unlabelled) == 1
