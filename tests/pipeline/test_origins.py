"""A text keeps the place in its file and its id, from `convert` to the mistakes of a model: to mend 15 labels one had to search
their words in four exports."""

import json

import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus as SpacyCorpus

from spacy_crf.cli.formats import ReadSettings, Report, Source, read
from spacy_crf.pipeline.corpora import Corpus, doc_bin, docs_in, named_origin, origin_of, set_origin
from tests.cli.test_formats import label_studio, lines, prodigy

NLP = spacy.blank("en")
# By format: the file, its contents, and place and id of the last of its texts
FILES = {
    "doccano": ("a.jsonl", lines([{"id": 1201, "text": "Ann ran", "label": [[0, 3, "PER"]]}]), "line 1", 1201),
    "prodigy": ("a.jsonl", lines(prodigy()), "line 3", 2),
    "meta": ("a.jsonl", lines([{"text": "Ann", "label": "A", "meta": {"id": "x1"}, "_task_hash": 5}]), "line 1", "x1"),
    "label studio": ("a.json", json.dumps(list(label_studio())), "line 1, item 3", 2),
    "columns": ("a.conll", "Ann\tB-PER\nran\tO\n\nBob\tB-PER\n", "line 4", None),
    "conllu": ("a.conllu", "# x\n1\tAnn\t_\tX\t_\t_\t_\t_\t_\tNER=B-PER\n\n", "line 2", None),
    "table": ("a.csv", "id,text,label\n7,where is it,TRACK\n8,play a song,PLAY\n", "line 3", "8"),
    "words and spans": (
        "a.jsonl",
        lines([{"tokenized_text": ["Ann"], "ner": [[0, 0, "PER"]], "id": "g"}]),
        "line 1",
        "g",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_text_knows_its_place_and_its_id(tmp_path, name):
    path, content, place, id_ = FILES[name]
    (tmp_path / path).write_text(content, encoding="utf8")
    *_, doc = read(Source(tmp_path / path), NLP, ReadSettings(), Report())
    expected = {"place": f"{tmp_path / path}, {place}"} | ({} if id_ is None else {"id": id_})
    assert origin_of(doc) == expected
    # A DocBin of spaCy that stores user data keeps it
    stored = DocBin().from_bytes(DocBin(docs=[doc], store_user_data=True).to_bytes())
    assert [copied._.crf_source for copied in stored.get_docs(NLP.vocab)] == [expected]
    # A file of Docs keeps what they know
    doc_bin([doc]).to_disk(tmp_path / "a.spacy")
    [again] = read(Source(tmp_path / "a.spacy"), NLP, ReadSettings(without_spans=True), Report())
    assert origin_of(again) == expected
    [example] = Corpus(tmp_path / "a.spacy")(NLP)
    assert example.reference._.crf_source == expected


def test_odd_ids_and_places():
    for id_, kept in ((2**70, str(2**70)), ("\ud800", "?"), (True, None), ([1], None), ("", None)):
        doc = NLP("Ann")
        set_origin(doc, "a\udcff.txt, line 1", id_)
        assert origin_of(doc).get("id") == kept
        doc.to_bytes()
    assert named_origin(NLP("Ann")) == ""
    assert origin_of(Doc(NLP.vocab, user_data={("._.", "crf_source", None, None): 1})) == {}


def test_places_do_not_slow_down_readers_of_spacy():
    """Its DocBin needs 0.4 ms for the user data of a Doc, 20 times as long as for the rest: places are not in it."""
    doc = NLP("Ann ran")
    set_origin(doc, "a.txt, line 1")
    stored = doc_bin([doc])
    assert stored.user_data == [None]
    merged = DocBin().from_bytes(doc_bin([NLP("Bob")]).to_bytes())
    merged.merge(DocBin().from_bytes(stored.to_bytes()))
    assert [named_origin(each) for each in docs_in(merged, NLP.vocab)] == ["", "a.txt, line 1"]


def test_user_data_is_read_at_once_as_spacy_reads_it(tmp_path):
    """spaCy decodes the user data of each Doc alone, which took ten times as long as the rest of a sentence."""
    docs = [NLP("Ann ran"), NLP(""), NLP("Bob"), NLP("Zoë sat")]
    docs[0].user_data["y"] = "a.txt"
    docs[2].user_data["x"] = (1, [2.5, None])
    for stored in (
        doc_bin(docs),
        doc_bin(docs[1:2]),
        doc_bin([]),
        DocBin(docs=docs),
        DocBin(docs=docs, store_user_data=True),
    ):
        data = stored.to_bytes()
        theirs = [doc.to_bytes() for doc in DocBin().from_bytes(data).get_docs(NLP.vocab)]
        assert [doc.to_bytes() for doc in docs_in(DocBin().from_bytes(data), NLP.vocab)] == theirs
    doc_bin(docs).to_disk(tmp_path / "a.spacy")
    for limit in (0, 1, 2):
        ours, theirs = (
            [(example.reference.text, example.reference.user_data) for example in reader(tmp_path, limit=limit)(NLP)]
            for reader in (Corpus, SpacyCorpus)
        )
        assert ours == theirs and len(ours) == (limit or 3)
