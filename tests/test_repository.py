"""The files for people from outside are true: forms and workflows are YAML, and what they run is there."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import srsly

from tests.reference_pages import tomllib

ROOT = Path(__file__).parents[1]
WORKFLOW, HOOKS = ROOT / ".github" / "workflows" / "tests.yml", ROOT / ".pre-commit-config.yaml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir())
CITATION = ROOT / "CITATION.cff"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINTERS = {re.split(r"\W", line)[0] for line in EXTRAS["lint"]}
LINT = [
    line
    for command in srsly.read_yaml(ROOT / "project.yml")["commands"]
    if command["name"] == "lint"
    for line in command["script"]
]


def commands(path: Path) -> list[str]:
    """The lines that a workflow or a hook runs, and those in backquotes in a form or in comments."""
    text = path.read_text(encoding="utf8")
    return re.findall(r"^ *(?:- )?(?:run|entry): (.+)$", text, re.MULTILINE) + re.findall(
        r"`((?:python|bash) .+?)`", text
    )


@pytest.mark.parametrize("path", [WORKFLOW, HOOKS, CITATION, *FORMS], ids=lambda path: path.name)
def test_files_are_yaml_and_their_commands_exist(path):
    assert isinstance(srsly.read_yaml(path), dict)
    for command in commands(path):
        words = command.split()
        if words[0] == "bash":
            assert (ROOT / words[1]).is_file(), command
        else:
            assert words[:2] == ["python", "-m"] and (find_spec(words[2]) or words[2] in LINTERS), command
        for names in re.findall(r"\.\[(.*?)\]", command):
            assert set(names.split(",")) <= set(EXTRAS), command


def test_the_workflow_tests_every_version_that_is_claimed_and_runs_all_checks_on_one():
    jobs = srsly.read_yaml(WORKFLOW)["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    claimed = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert matrix["python"] == claimed and PROJECT["requires-python"] == f">={claimed[0]}"
    [left_out] = matrix["exclude"]
    steps = jobs["everything"]["steps"]
    assert left_out == {"os": jobs["everything"]["runs-on"], "python": steps[1]["with"]["python-version"]}
    assert steps[-1]["run"] == "bash .ci/run"


def test_hooks_are_what_lint_checks():
    hooks = [hook["entry"].removesuffix(" --fix") for repo in srsly.read_yaml(HOOKS)["repos"] for hook in repo["hooks"]]
    assert hooks and all(any(line.startswith(hook) for line in LINT) for hook in hooks)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_are_of_the_shape_that_github_reads(path):
    form = srsly.read_yaml(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels"}
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[\w-]+", name) for name in ids)
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes") and field["attributes"]["label"]


def test_the_citation_has_what_the_format_wants():
    citation = srsly.read_yaml(CITATION)
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["authors"] == PROJECT["authors"] and citation["license"] == PROJECT["license"]
