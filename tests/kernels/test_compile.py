"""``python -m spacy crf compile``: whatever a training with a shipped config and its predictions call is there afterwards."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import spacy
import srsly
from numba.core.caching import _CacheLocator
from numba.core.dispatcher import Dispatcher
from spacy.tokens import DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf import kernels as package
from spacy_crf.cli import app
from spacy_crf.cli.configs import PRESETS
from spacy_crf.kernels import linear_chain
from spacy_crf.kernels.announcing import announcer
from spacy_crf.kernels.compiling import PREDICTION, TRAINING, listed_kernels
from tests.kernels.signatures import described
from tests.test_configs import ROOT

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
COMPONENTS = [
    pytest.param(component, marks=[] if component == "crf_textcat" else [pytest.mark.slow]) for component in PRESETS
]


def kernels():
    """By module and name."""
    modules = {
        name: module for name, module in sys.modules.items() if ".kernels." in name and name.startswith("spacy_crf")
    }
    return {
        f"{name.partition('.kernels.')[2]}.{value.py_func.__name__}": value
        for name, module in modules.items()
        for value in vars(module).values()
        if isinstance(value, Dispatcher) and value.py_func.__module__ == name
    }


def used_by(function, *arguments):
    """The kernels that a function calls, with their names and the types of what they are given."""
    for kernel in kernels().values():  # as in a new process
        kernel._reset_overloads()
        kernel.overloads.clear()
    function(*arguments)
    return {(name, kernel, signature) for name, kernel in kernels().items() for signature in kernel.overloads}


def compile_ahead(*components):
    result = CliRunner().invoke(app, ["compile", *components])
    assert result.exit_code == 0, result.output
    assert all(f"{component}: " in result.output for component in components)


def train_and_ask(component, folder):
    """With what `compile` knows nothing of: other texts, longer ones, many labels."""
    nlp, docs = spacy.blank("en"), []
    for n, item in enumerate(srsly.read_jsonl(ROOT / "assets" / "news" / "dev.jsonl")):
        doc = nlp.make_doc(item["text"])
        doc.set_ents([doc.char_span(span["start"], span["end"], span["label"]) for span in item["spans"]])
        doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
        for token in doc:
            token.tag_ = token.shape_
            token.is_sent_start = token.i == 0
        doc.cats = {label: float(k == n % 3) for k, label in enumerate("ABC")}
        docs.append(doc)
    texts = str(folder / "texts.spacy")
    DocBin(docs=docs, store_user_data=True).to_disk(texts)
    few = {"paths.train": texts, "paths.dev": texts, "training.optimizer.max_iterations": 3}
    config = load_config(ROOT / "configs" / f"{component}.cfg", overrides=few)
    train(init_nlp(config), folder, stdout=io.StringIO(), stderr=io.StringIO())
    ask(folder)


def ask(folder):
    nlp = spacy.load(folder / "model-best")
    list(nlp.pipe(["Nobody was there.", "", "Ann Lee lives in New York, and Bob in Paris."] * 200))
    nlp("yes")


@pytest.mark.parametrize("component", COMPONENTS)
def test_nothing_is_left_to_compile_for_training_and_prediction(component, tmp_path):
    ahead = used_by(compile_ahead, component)
    before = announcer.compiled
    trained = used_by(train_and_ask, component, tmp_path)
    assert announcer.compiled == before
    assert not trained - ahead
    structure = structure_of(component, tmp_path)
    assert listed(TRAINING, structure) == as_listed(trained)
    assert listed(PREDICTION, structure) == as_listed(used_by(ask, tmp_path))


def structure_of(component, folder):
    """The name of the structure whose kernels a trained component calls."""
    pipe = spacy.load(folder / "model-best").get_pipe(component)
    return pipe.kernels_of or pipe.model.name


def listed(phase, structure):
    """Names and arguments of the kernels that the list has for a phase."""
    return {(row.kernel, row.types()) for row in listed_kernels() if (phase, structure) in row.calls()}


def as_listed(used):
    return {(f"kernels.{name}", signature) for name, _, signature in used}


def test_types_are_described_as_they_are_read():
    for row in listed_kernels():
        assert [*map(described, row.types())] == row.arguments


_FRESH = """
import sys
from pathlib import Path
from tests.kernels.test_compile import announcer, app, train_and_ask
app(["compile", "crf_textcat"], standalone_mode=False)
train_and_ask("crf_textcat", Path(sys.argv[1]))
print(announcer.compiled)
"""


def test_another_process_finds_in_a_folder_what_was_compiled_into_it(tmp_path):
    """Kernels of one module are compiled into a folder that has all others from here, where tests have compiled them."""
    used = used_by(compile_ahead, "crf_textcat")
    left_out = linear_chain.path_score.stats.cache_path
    home = Path(left_out).parent
    name = _CacheLocator.get_suitable_cache_subpath(package.__file__)  # of the folder in NUMBA_CACHE_DIR
    for kernel in kernels().values():
        folder = Path(kernel.stats.cache_path)
        if folder.parent == home and folder.is_dir() and str(folder) != left_out:
            shutil.copytree(folder, tmp_path / "kernels" / name / folder.name, dirs_exist_ok=True)

    def run(*arguments):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    n_left_out = sum(name.startswith("linear_chain.") for name, *_ in used)
    assert 0 < n_left_out < len(used)
    told = run("-m", "spacy", "crf", "compile", "crf_textcat", "--jobs", "2")
    assert f"crf_textcat: {n_left_out} kernels compiled" in " ".join(told.split())
    assert str(tmp_path) in "".join(told.split())
    told = run("-c", _FRESH, str(tmp_path))
    assert "crf_textcat: everything is compiled already" in " ".join(told.split())
    assert str(tmp_path) in "".join(told.split()) and told.split()[-1] == "0"


def test_a_component_that_there_is_not_is_refused():
    result = CliRunner().invoke(app, ["compile", "ner"])
    assert result.exit_code == 2 and "crf_ner" in result.output
