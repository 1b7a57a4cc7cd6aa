"""What works where numba cannot be used, and what says why it does not."""

import json
import subprocess
import sys

import pytest

from spacy_crf.kernels import SUPPORTED
from spacy_crf.migrate.lite import export_lite, write_lite
from tests.pipeline.test_crf_ner import make
from tests.reference_pages import tomllib
from tests.test_package import ROOT

# Arguments: a saved pipeline, its export, a text file with annotation, and a folder to write to. Prints the message of each
# error, None where there is none
SCRIPT = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())

import spacy
from spacy.cli.info import info
from typer.testing import CliRunner
from spacy_crf import lite
from spacy_crf.cli import app
from spacy_crf.sklearn import CRF

pipeline, exported, texts, folder = sys.argv[1:]

def command(*arguments):
    done = CliRunner().invoke(app, arguments)
    if done.exit_code:
        raise SystemExit(" ".join(done.output.split()))

actions = {
    **{name: lambda name=name: spacy.blank("en").add_pipe(name) for name in %(factories)r},
    "load": lambda: spacy.load(pipeline),
    "show": lambda: command("show", pipeline, "in Rome"),
    "fit": lambda: command("fit", texts, "--output", f"{folder}/fitted"),
    "compile": lambda: command("compile", "crf_ner"),
    "sklearn": lambda: CRF().fit([[{"word": "a"}]], [["A"]]),
    "lite": lambda: lite.load(exported)("Ann Lee lives in New York."),
    "info": lambda: info(pipeline),
    "convert": lambda: command("convert", texts, "--output", folder),
    "data": lambda: command("data", texts),
    "init-config": lambda: command("init-config", "--component", "crf_ner", "-o", f"{folder}/crf_ner.cfg"),
}
messages = {}
for name, action in actions.items():
    try:
        action()
        messages[name] = None
    except (Exception, SystemExit) as error:
        messages[name] = str(error)
with open(f"{folder}/messages.json", "w") as file:
    json.dump(messages, file)
"""
FACTORIES = ["crf_ner", "crf_tagger", "semicrf_ner", "crf_spancat", "crf_textcat", "crf_candidates"]
WORKS = {"lite", "info", "convert", "data", "init-config"}


def test_what_needs_numba_says_what_works_without(tmp_path):
    nlp, *_ = make()
    nlp.to_disk(tmp_path / "pipeline")
    write_lite(export_lite(nlp), tmp_path / "exported.json", "json")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "in Rome", "spans": [{"start": 3, "end": 7, "label": "GPE"}]}\n', encoding="utf8")
    script = SCRIPT % {"factories": FACTORIES}
    arguments = [tmp_path / "pipeline", tmp_path / "exported.json", texts, tmp_path]
    subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=True, cwd=ROOT, capture_output=True)
    messages = json.loads((tmp_path / "messages.json").read_text(encoding="utf8"))
    assert {name for name, message in messages.items() if message is None} == WORKS
    for name in messages.keys() - WORKS:
        assert "CRF017: numba can't be used (No module named 'numba')" in messages[name]
        assert "without it are spacy_crf.lite" in messages[name]


NEW = "__version__ = '0.99.0'\nclass version_info:\n    short = (0, 99)\n"


@pytest.mark.parametrize(
    "source, reason",
    [
        ("raise ImportError('Numba needs NumPy 2.3 or less')", "Numba needs NumPy 2.3 or less"),
        ("raise OSError('libllvmlite.so: cannot open')", "libllvmlite.so: cannot open"),
        (NEW, "its version is 0.99.0"),
    ],
)
def test_numba_that_cannot_be_used_is_told_with_the_versions_that_can(tmp_path, source, reason):
    (tmp_path / "numba.py").write_text(source, encoding="utf8")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import spacy_crf.kernels"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: CRF017: numba can't be used ({reason})")
    assert "numba>=0.60,<0.69 is installed" in message


def test_the_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    (requirement,) = [text for text in project["dependencies"] if text.startswith("numba")]
    oldest, following = (".".join(map(str, version)) for version in SUPPORTED)
    assert requirement == f"numba>={oldest},<{following}"
