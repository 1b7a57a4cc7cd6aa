"""Commands for pipelines that have nothing but a trained tokenizer: what they show, and what they refuse."""

import json

import pytest
import spacy
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli.demo import Demo
from tests.pipeline.test_tokenizer import references, trained
from tests.test_configs import ROOT


def run(*arguments):
    result = CliRunner().invoke(app, ["crf", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segmentation")
    nlp = trained(sentences=True)
    nlp.to_disk(folder / "model")
    DocBin(docs=references(nlp.vocab, times=1)).to_disk(folder / "right.spacy")
    wrong = Doc(nlp.vocab, words=["abc", "a", "b", ".", "cd"], spaces=[False] * 5, sent_starts=[1, -1, -1, 1, -1])
    DocBin(docs=[wrong]).to_disk(folder / "wrong.spacy")
    return folder


def test_evaluate(folder):
    code, output = run("evaluate", folder / "model", folder / "right.spacy")
    assert code == 0 and output.count("100.0") > 10 and output.count("No mistakes") == 2
    code, output = run("evaluate", folder / "model", folder / "wrong.spacy")
    assert code == 0 and "wrong boundary" in output and "ab (word)" in output and "abcab. (sentence)" in output
    code, output = run("evaluate", folder / "model", folder / "wrong.spacy", "--json")
    found = json.loads(output[output.index("{") :])
    assert found["words"]["scores"]["all"]["right"] == 3 and found["sentences"]["scores"]["all"]["right"] == 0
    assert {error["kind"] for error in found["words"]["errors"]} == {"boundary", "missed"}
    page = folder / "page.html"
    code, output = run(
        "evaluate", folder / "model", folder / "wrong.spacy", "-o", page, "--train", folder / "right.spacy"
    )
    assert code == 0, output
    assert "<h2" in page.read_text(encoding="utf8") and "sentences" in page.read_text(encoding="utf8")


def test_texts_that_fit_held_out_and_the_model_card(folder):
    held_out = folder / "held_out"
    held_out.mkdir()
    for name, file in (("predicted", "right"), ("annotated", "right")):
        (held_out / f"{name}.spacy").write_bytes((folder / f"{file}.spacy").read_bytes())
    (held_out / "suspects.jsonl").touch()
    code, output = run("evaluate", folder / "model", held_out, "-o", folder / "held_out.html")
    assert code == 0, output
    code, output = run("card", folder / "model", folder / "right.spacy", "-o", folder / "carded")
    assert code == 0, output
    meta = json.loads((folder / "carded" / "meta.json").read_text(encoding="utf8"))
    assert "What `words` finds" in meta["notes"] and meta["performance"]["token_f"] == 1.0


def test_show_and_explain(folder):
    _, output = run("show", folder / "model", "abcab.cd")
    assert "abc | ab | . cd" in output
    _, output = run("explain", folder / "model", "ab.cd", "--json")
    tokens = json.loads(output[output.index("[{") :])
    assert [token["token"] for token in tokens] == ["ab", ".", "cd"]
    code, output = run("explain", folder / "model", "ab.cd")
    assert code == 0 and "weights" in output


def test_demo(folder):
    nlp = spacy.load(folder / "model")
    demo = Demo(nlp)
    words, sentences = demo.answer(demo.find, {"text": "abcab. cd", "n": 2})["components"]
    assert [span[:2] for span in words["spans"]] == [[0, 3], [3, 5], [5, 6], [7, 9]]
    assert [span[:2] for span in sentences["spans"]] == [[0, 6], [7, 9]]
    assert len(words["best"]) == 2 and words["best"][0][0] > words["best"][1][0]
    why = demo.answer(demo.why, {"text": "abcab. cd", "component": "words", "span": [3, 5, "word"]})
    assert why["rows"] and "'ab'" in why["lines"][0]
    for span in ([1, 2, "word"], None, []):
        with pytest.raises(ValueError, match="CRF976"):
            demo.answer(demo.why, {"text": "abcab.", "component": "sentences", "span": span})
    for text in ("", "  "):
        words, sentences = demo.answer(demo.find, {"text": text})["components"]
        assert words["spans"] == sentences["spans"] == []
    with pytest.raises(ValueError, match="CRF711"):
        Demo(nlp, file=folder / "corrected.jsonl")


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "model"],
        ["threshold", "model", "right.spacy"],
        ["evaluate", "model", "right.spacy", "--calibration"],
        ["update", "model", "right.spacy", "-o", "updated"],
        ["evaluate", "model", "right.spacy", "--component", "crf_ner"],
    ],
)
def test_commands_about_components_say_what_to_use(folder, arguments, monkeypatch):
    monkeypatch.chdir(folder)
    code, output = run(*arguments)
    assert code == 1 and "CRF711" in output and "crf evaluate" in output


@pytest.fixture
def behind(folder, tmp_path):
    """Files of texts with entities, and a config of a component behind the tokenizer."""
    nlp = spacy.blank("xx")
    docs = references(nlp.vocab, times=2)
    for doc in docs:
        doc.ents = [Span(doc, token.i, token.i + 1, "X") for token in doc if token.text == "abc"]
    DocBin(docs=docs).to_disk(tmp_path / "ents.spacy")
    config = load_config(ROOT / "configs" / "crf_ner.cfg")
    config["nlp"] |= {"lang": "xx", "tokenizer": {"@tokenizers": "spacy_crf.Tokenizer.v1", "sentences": True}}
    config["initialize"]["tokenizer"] = {"min_count": 1}
    return config, tmp_path / "ents.spacy", tmp_path / "behind.cfg"


def test_tune_a_component_behind_the_tokenizer(behind):
    config, texts, file = behind
    config.to_disk(file)
    code, output = run("tune", texts, "--config", file, "--dev", texts, "--try", "l2=0.1", "--iterations", 20)
    assert code == 0 and "1.0000" in output, output


def test_fit_takes_over_a_trained_tokenizer(folder, behind, tmp_path):
    config, texts, file = behind
    config["initialize"]["tokenizer"] = {}
    config["initialize"]["before_init"] = {
        "@callbacks": "spacy.copy_from_base_model.v1",
        "tokenizer": str(folder / "model"),
    }
    config.to_disk(file)
    arguments = [
        "fit",
        texts,
        "--config",
        file,
        "--folds",
        2,
        "--l1",
        0.01,
        "--l2",
        0.1,
        "--output",
        tmp_path / "fitted",
    ]
    code, output = run(*arguments)
    assert code == 0 and "tokenizer: F1" not in output, output
    fitted = spacy.load(tmp_path / "fitted")
    assert fitted.tokenizer.to_bytes() == spacy.load(folder / "model").tokenizer.to_bytes()
    assert [ent.text for ent in fitted("ababccd").ents] == ["abc"]


def test_curve_and_tune(folder):
    files = [
        folder / "right.spacy",
        "--config",
        ROOT / "configs" / "crf_tokenizer.cfg",
        "--dev",
        folder / "right.spacy",
    ]
    code, output = run("curve", *files, "--shares", "50,100", "--initialize.tokenizer.min_count", 1)
    assert code == 0 and "100 %" in output, output
    code, output = run("tune", *files)
    assert code == 1 and "CRF711" in output and "crf fit" in output
