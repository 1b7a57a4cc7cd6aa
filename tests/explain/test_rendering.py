"""`spacy_crf.render`, `crf show --html`, and what spaCy's own commands make of our components."""

import re
import sys
from types import ModuleType

import pytest
import spacy
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

import spacy_crf
import spacy_crf.cli  # as spaCy's command line does
from tests.pipeline.test_probabilities import trained
from tests.test_configs import ROOT
from tests.util import ner_examples, tag_examples

NLP = spacy.blank("en")


@pytest.fixture
def doc():
    doc = Doc(NLP.vocab, words=["Ann", "met", "<b>", "&", "Zoë"])
    doc.ents = [Span(doc, 0, 1, "PERSON"), Span(doc, 2, 3, "<X>"), Span(doc, 4, 5, "PERSON")]
    doc.ents[0]._.crf_prob, doc.ents[1]._.crf_prob = 0.5, 1.0
    return doc


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def faint(html):
    return [float(value) for value in re.findall(r"gradient\(rgba\(255, 255, 255, ([0-9.]+)\)", html)]


def test_marks_are_as_strong_as_they_are_probable(doc):
    html = spacy_crf.render(doc)
    assert faint(html) == [0.45, 0.0, 0.0]  # the last without a probability
    assert re.findall(r"(\w+;?) (\d+%)</span>", html) == [("PERSON", "50%"), ("gt;", "100%")]
    assert 'title="PERSON, probability 0.5000"' in html and 'title="PERSON"' in html
    assert "background: linear-gradient(rgba(255, 255, 255, 0.45), rgba(255, 255, 255, 0.45)), #aa9cfc" in html


def test_all_that_comes_from_texts_is_escaped(doc):
    doc.user_data["title"] = "<script>"
    doc.ents = [Span(doc, 0, 1, '"><script>', kb_id="<Q>")]
    html = spacy_crf.render([doc, doc], page=True, options={"kb_url_template": 'https://x/{}"'})
    assert "<script>" not in html and "<b>" not in html and "<Q>" not in html and '}"' not in html
    assert html.count("&lt;script&gt;") == 6
    assert "http" not in html.replace("https://x/&lt;Q&gt;&quot;", "")  # nothing from elsewhere
    assert '<meta charset="utf-8">' in html and "Zoë" in html
    assert "<title>Found in texts</title>" in html and "<h1>Found in texts</h1>" in html
    assert html.count("color-scheme: light dark") == 1  # white on white is not read, nor is a lamp at night


def test_options_are_those_of_displacy(doc):
    html = spacy_crf.render(doc, options={"ents": ["<X>"], "colors": {"<X>": "teal"}})
    assert html.count("<mark") == 1 and "), teal" in html and "Ann met" in html


def test_tags_where_there_are_no_entities():
    html = spacy_crf.render(Doc(NLP.vocab, words=["the", "dog"], tags=["DT", "NN"]))
    assert re.findall(r">(\w+)</span>", html) == ["DT", "NN"]
    assert "<mark" not in spacy_crf.render(Doc(NLP.vocab, words=["the"]))  # and without a warning
    assert "<mark" not in spacy_crf.render(Doc(NLP.vocab))


def test_notebooks(doc, monkeypatch):
    shown = []
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    display = ModuleType("IPython.display")
    display.HTML, display.display = str, shown.append
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert spacy_crf.render(doc, jupyter=True) is None
    assert len(shown) == 1 and faint(shown[0]) == [0.45, 0.0, 0.0]


def test_names_of_the_package():
    assert spacy_crf.render and spacy_crf.__version__
    with pytest.raises(AttributeError, match="no attribute 'rendre'"):
        spacy_crf.rendre  # noqa: B018


# --------------------------------------------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pipelines of entities and of tags, and data of both. Do not change."""
    folder = tmp_path_factory.mktemp("marks")
    nlp = trained()
    nlp.to_disk(folder / "ner")
    DocBin(docs=[example.reference for example in ner_examples(nlp)]).to_disk(folder / "ner.spacy")
    nlp = spacy.blank("en")
    tagger, examples = nlp.add_pipe("crf_tagger"), tag_examples(nlp)
    tagger.initialize(lambda: examples, nlp=nlp)
    nlp.to_disk(folder / "tagger")
    DocBin(docs=[example.reference for example in examples]).to_disk(folder / "tagger.spacy")
    DocBin(docs=[nlp.make_doc("xyz")]).to_disk(folder / "none.spacy")
    return folder


def test_show_writes_probabilities(folder, tmp_path):
    code, output = run("crf", "show", folder / "ner", "Bob left Rome .", "-o", tmp_path / "a.html")
    html = (tmp_path / "a.html").read_text(encoding="utf8")
    assert code == 0 and html.count("<mark") == 2 and all(0 < value < 0.9 for value in faint(html)), output


@pytest.mark.parametrize("name, mark", [("ner", "PER"), ("tagger", "DT")])
def test_spacy_evaluate_draws_what_our_components_find(folder, tmp_path, name, mark):
    """It said that it had written files, and wrote none."""
    code, output = run("evaluate", folder / name, folder / f"{name}.spacy", "--displacy-path", tmp_path)
    html = (tmp_path / "entities.html").read_text(encoding="utf8")
    assert code == 0 and mark in html and "<h2" in html, output


@pytest.mark.filterwarnings("ignore:.*W006")
def test_spacy_evaluate_says_when_there_is_nothing_to_draw(folder, tmp_path):
    code, output = run("evaluate", folder / "ner", folder / "none.spacy", "--displacy-path", tmp_path)
    assert code == 0 and "Nothing was drawn" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["crf_ner", "crf_ner_sgd", "crf_ner_perceptron", "crf_tagger", "semicrf_ner"])
def test_spacy_debug_model_reads_the_configs(folder, name):
    """It makes the optimizer before variables such as ${system.seed} are filled in."""
    component = name if name in ("crf_tagger", "semicrf_ner") else "crf_ner"
    data = folder / ("tagger.spacy" if component == "crf_tagger" else "ner.spacy")
    paths = [part for corpus in ("train", "dev") for part in (f"--paths.{corpus}", data)]
    code, output = run("debug", "model", ROOT / "configs" / f"{name}.cfg", component, "-P1", "-DIM", "-ATTR", *paths)
    assert code == 0 and "model looks good" in output, output
    assert " object at 0x" not in output
