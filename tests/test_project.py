"""``project.yml``: the newcomer's way through, and ``python -m spacy crf show``, its last step."""

import shutil
import subprocess
from pathlib import Path

import pytest
import spacy
from typer.testing import CliRunner
from weasel.util import load_project_config

from spacy_crf.cli import app

ROOT = Path(__file__).parents[1]
PROJECT = load_project_config(ROOT)
COMMANDS = {command["name"]: command for command in PROJECT["commands"]}


def show(*args, stdin=None):
    result = CliRunner().invoke(app, ["show", *(str(arg) for arg in args)], input=stdin)
    return result.exit_code, result.output


@pytest.fixture
def model(tmp_path):
    """A pipeline that finds one name, by a rule."""
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PER", "pattern": "Ann Lee"}])
    nlp.to_disk(tmp_path / "model")
    return tmp_path / "model"


def test_workflows_name_commands():
    assert {step for steps in PROJECT["workflows"].values() for step in steps} <= set(COMMANDS)


def test_inputs_are_in_the_repository_or_made_before():
    made = set()
    for name in PROJECT["workflows"]["all"]:
        for dependency in COMMANDS[name]["deps"]:
            assert dependency in made or (ROOT / dependency).exists()
        made.update(COMMANDS[name].get("outputs", []))


@pytest.mark.parametrize("name", ["test", "test-nojit"])
def test_test_commands_name_files(name):
    files = [word for line in COMMANDS[name]["script"] for word in line.split() if word.endswith(".py")]
    assert all((ROOT / file).is_file() for file in files)


def test_run_all(warm_environment, tmp_path):
    """In a fresh copy and without a network, as a newcomer does."""
    for name in ("assets", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "project.yml", tmp_path)
    offline = dict.fromkeys(["http_proxy", "https_proxy", "all_proxy"], "http://127.0.0.1:9")  # nobody listens there
    command = ["python", "-m", "spacy", "project", "run", "all", str(tmp_path)]
    environment = {**warm_environment, **offline}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    scores = [float(line.split()[-1]) for line in result.stdout.splitlines() if line.startswith("NER F")]
    news, addresses = scores
    assert news > 75
    assert addresses > 90
    assert "stopped after" in result.stdout + result.stderr  # why L-BFGS stopped
    shown = [line.split() for line in result.stdout.partition(" show ")[2].splitlines()]
    [(_, label, probability)] = [columns for columns in shown if columns[:1] == ["97703"]]
    assert label == "ZIP"
    assert probability.endswith("%")
    for name in ("news", "addresses"):
        assert spacy.load(tmp_path / "training" / name / "model-best").pipe_names == ["crf_ner"]


def test_show_prints_entities(model):
    code, output = show(model, "Ann  Lee\nsat.", "Ann Lee left.", "Nobody.")
    assert code == 0
    assert [line.split() for line in output.splitlines() if line.startswith("  ")] == [
        ["nothing", "found"],
        ["Ann", "Lee", "PER"],
        ["nothing", "found"],
    ]


def test_show_reads_lines_and_writes_html(model, tmp_path):
    code, output = show(model, "-o", tmp_path / "new" / "out.html", stdin="Ann Lee left.\n\n<b>\n")
    assert code == 0
    assert ["Ann", "Lee", "PER"] in [line.split() for line in output.splitlines()]
    html = (tmp_path / "new" / "out.html").read_text(encoding="utf8")
    assert "<mark" in html
    assert "&lt;b&gt;" in html


def test_show_prints_tags_where_there_are_no_entities(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("attribute_ruler").add([[{"LOWER": "ann"}]], {"TAG": "NNP"})
    nlp.to_disk(tmp_path)
    _, output = show(tmp_path, "Ann left.")
    assert [line.split() for line in output.splitlines() if line.startswith("  ")] == [["Ann", "NNP"]]


def test_show_tells_what_is_wrong_with_a_model(tmp_path):
    code, output = show(tmp_path / "nothing", "text")
    assert code == 1
    assert "E050" in output
    assert "Traceback" not in output
