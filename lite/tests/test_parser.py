"""Exports of small pipelines are parsed as spaCy parsed them. Neither spaCy nor the plugin is needed; make_fixtures.py makes the
files."""

import gzip
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import spacy_crf_lite as lite

HERE = Path(__file__).parent
NAMES = ["set", "segments", "sentencizer", "characters"]


def read(name):
    return json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))


def assert_equal(parsed, answer):
    found = json.loads(json.dumps(parsed.to_json()))
    assert [[token["start"], token["text"]] for token in found["tokens"]] == answer["tokens"]
    assert [[token.get("tag", ""), token.get("pos", "")] for token in found["tokens"]] == answer["tags"]
    assert [[sentence["start"], sentence["end"]] for sentence in found["sentences"]] == answer["sentences"]
    assert found["cats"] == pytest.approx(answer["cats"], abs=1e-6)
    assert found["spans"].keys() == answer["spans"].keys()
    lists = [(found["entities"], answer["entities"])]
    lists += [(found["spans"][key], answer["spans"][key]) for key in found["spans"]]
    for spans, expected in lists:
        assert [[span["start"], span["end"], span["label"]] for span in spans] == [span[:3] for span in expected]
        assert [span["prob"] for span in spans] == pytest.approx([span[3] for span in expected], abs=1e-6)
        assert all(span["text"] == found["text"][span["start"] : span["end"]] for span in spans)


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_parsed_as_by_spacy(name):
    parse = lite.load(HERE / f"{name}.json.gz")
    answers = read(f"{name}_answers")
    for answer, together in zip(answers, parse.batch(answer["text"] for answer in answers)):
        assert_equal(together, answer)
        assert_equal(parse(answer["text"]), answer)
        assert [token.text for token in parse.words(answer["words"]).tokens] == answer["words"]
    texts = [answer["text"] for answer in answers] * 5
    with ThreadPoolExecutor(4) as threads:
        for parsed, answer in zip(threads.map(parse, texts), answers * 5):
            assert_equal(parsed, answer)


def test_bad_input_is_told(tmp_path):
    parse = lite.load(HERE / "segments.json.gz")
    with pytest.raises(lite.LiteError, match="Row 2 is 0 columns"):
        parse.words([["Ann"], []])
    with pytest.raises(lite.LiteError, match="Row 2 is None"):
        parse.words(["Ann", None])
    for text in (None, 5, [5], [["Ann"], 5], [[5]]):
        with pytest.raises(lite.LiteError, match=r"this is|Row"):
            parse.words(text)
    for method, text in ((parse.batch, "Ann left"), (parse.batch, None), (parse.words, "Ann left")):
        with pytest.raises(lite.LiteError, match=r"Take parse\(text\)"):
            method(text)
    with pytest.raises(lite.LiteError, match="n_best gives 0"):
        parse.components["semicrf_ner"].n_best(["Ann"], 0)
    content = read("segments")
    content["components"] *= 2
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(lite.LiteError, match="two components"):
        lite.load(tmp_path / "model.json")
    (tmp_path / "model.json").write_text('{"format": "spacy_crf.lite", "version": 3}')
    with pytest.raises(lite.LiteError, match="version 3"):
        lite.load(tmp_path / "model.json")


def test_nothing_else_is_imported():
    assert not {"spacy", "thinc", "numba", "spacy_crf"} & set(sys.modules)
