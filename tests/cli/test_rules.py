"""`crf evaluate --calibration` and `crf explain --kind rules`, as they are typed."""

import xml.etree.ElementTree as ET

import spacy
from spacy.cli._util import app
from spacy.tokens import DocBin
from typer.testing import CliRunner

import spacy_crf.cli  # noqa: F401
from tests.pipeline.test_probabilities import trained, with_rules
from tests.util import ner_examples


def run(*arguments):
    return CliRunner().invoke(app, ["crf", *map(str, arguments)], env={"COLUMNS": "200"})


def test_calibration_is_printed(tmp_path):
    nlp = trained()
    nlp.to_disk(tmp_path / "model")
    DocBin(docs=[example.reference for example in ner_examples(nlp)]).to_disk(tmp_path / "dev.spacy")
    result = run("evaluate", "--calibration", tmp_path / "model", tmp_path / "dev.spacy")
    assert result.exit_code == 0, result.output
    assert "0.9 to 1.0" in result.output and "calibration error" in result.output
    assert "approximate" not in result.output
    drawn = run(
        "evaluate", "--calibration", tmp_path / "model", tmp_path / "dev.spacy", "-o", tmp_path / "calibration.svg"
    )
    assert drawn.exit_code == 0 and "calibration.svg" in drawn.output
    root = ET.fromstring((tmp_path / "calibration.svg").read_text())
    rows = [line for line in result.output.splitlines() if " to " in line and "%" in line]
    assert len(root.findall("{*}circle")) == len(rows) > 0
    nlp.add_pipe("crf_ner", "other", source=nlp)
    nlp.to_disk(tmp_path / "both")
    both = run("evaluate", "--calibration", tmp_path / "both", tmp_path / "dev.spacy", "-o", tmp_path / "both.svg")
    assert both.exit_code == 1 and "CRF746" in both.output and not (tmp_path / "both.svg").exists()
    spacy.blank("en").to_disk(tmp_path / "blank")
    result = run("evaluate", "--calibration", tmp_path / "blank", tmp_path / "dev.spacy")
    assert result.exit_code == 1 and "CRF710" in result.output and "doc.cats" in result.output


def test_rules_and_their_effects_are_printed(tmp_path):
    nlp = trained(**with_rules([{"rule": "at_most", "label": "*", "n": 1, "name": "once"}]))
    nlp.to_disk(tmp_path / "model")
    result = run("explain", "--kind", "rules", tmp_path / "model", "Bob Ann Carla Paris Rome")
    assert result.exit_code == 0, result.output
    assert "once" in result.output and "automata of 2 states" in result.output
    assert "without rules:" in result.output and "once:" in result.output
    trained().to_disk(tmp_path / "plain")
    assert "CRF710" in run("explain", "--kind", "rules", tmp_path / "plain", "Bob").output
