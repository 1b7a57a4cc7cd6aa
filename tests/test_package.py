"""The picture of the layers stays true, and what every ``spacy.blank()`` imports stays light."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
import spacy

import spacy_crf
from spacy_crf.pipeline.factories import make_crf_ner, make_crf_tagger, make_crf_textcat, make_semicrf_ner
from tests.reference_pages import tomllib

PACKAGE = Path(spacy_crf.__file__).parent
ROOT = PACKAGE.parent
LAYERS = [
    ("errors", "blanks", "progress", "checks", "types", "schemes", "arrays", "lite"),
    ("kernels",),
    ("inference",),
    ("losses", "constraints"),
    ("whole_files",),
    ("features", "optimizers"),
    ("models",),
    ("pipeline",),
    ("clusters", "workers"),
    ("shards",),
    ("explain", "migrate", "sklearn", "sklearn_model"),
    ("report",),
    ("folds",),
    ("race",),
    ("cross_validation",),
    ("cli",),
]
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}
WITHOUT_SPACY = LAYER_OF["constraints"]
MODULES = sorted(
    path.relative_to(ROOT) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"
)


class Import(NamedTuple):
    module: str
    line: int
    when_loaded: bool  # not only when some function is called
    for_types: bool  # only while types are checked


def imports(source: str, module: str, is_package: bool) -> list[Import]:
    """All imports of a module, under their absolute names."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda)]
    later = {node for function in functions for node in ast.walk(function)}
    guards = [node for node in nodes if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    for_types = {node for guard in guards if guard.test.id == "TYPE_CHECKING" for node in ast.walk(guard)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            # `from .. import kernels` names a module, `from ..types import Floats` does not; the prefix tells the layer.
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [Import(name, node.lineno, node not in later, node in for_types) for name in names]
    return found


def layer_of(module: str) -> int:
    parts = module.split(".")
    return LAYER_OF[parts[1]] if len(parts) > 1 and parts[1] in LAYER_OF else -1  # -1: the version, which all may read


@cache
def imports_of(path: Path) -> list[Import]:
    parts = path.with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return imports((ROOT / path).read_text(encoding="utf8"), ".".join(parts[:-1] if is_package else parts), is_package)


def test_every_module_has_a_layer():
    assert {path.parts[1].removesuffix(".py") for path in MODULES} <= set(LAYER_OF)


def test_imports_go_to_the_left():
    wrong = []
    for path in MODULES:
        own = LAYER_OF[path.parts[1].removesuffix(".py")]
        allowed = range(-1, own + 1)
        ours = [i for i in imports_of(path) if i.module.split(".")[0] == "spacy_crf"]
        ours = [i for i in ours if not is_door(path, i)]
        wrong += [(str(path), i.line, i.module) for i in ours if layer_of(i.module) not in allowed]
    assert not wrong


def is_door(path: Path, found: Import) -> bool:
    """Whether a function of a component opens what is above components: users ask a component for explanations and weights, and
    that it learns and saves itself."""
    above = ["spacy_crf.explain."]
    if path.name == "pipe.py":
        above += [f"spacy_crf.pipeline.{name}." for name in ("initialization", "training", "saving")]
    return not found.when_loaded and path.parts[1] == "pipeline" and found.module.startswith(tuple(above))


def imported(name: str, graph: dict[str, set[str]]) -> bool:
    return any(name in others for others in graph.values())


def test_no_files_import_each_other():
    """Neither directly nor by others, not when some function is called, and not for annotations alone."""
    names = {path: ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in MODULES}
    graph = {}
    for path, name in names.items():
        wanted = {found.module for found in imports_of(path) if not is_door(path, found)}
        wanted |= {module.rpartition(".")[0] for module in wanted}
        graph[name] = (wanted & set(names.values())) - {name}
    while ends := [name for name, others in graph.items() if not others & graph.keys() or not imported(name, graph)]:
        for name in ends:
            del graph[name]
    assert not {name: sorted(others & graph.keys()) for name, others in graph.items()}


def test_numpy_and_numba_only_up_to_losses_and_constraints():
    known = {"spacy_crf", "numpy", "numba", "llvmlite", *sys.stdlib_module_names}  # llvmlite is of numba
    wrong = []
    for path in MODULES:
        if LAYER_OF[path.parts[1].removesuffix(".py")] <= WITHOUT_SPACY:
            others = [i for i in imports_of(path) if i.when_loaded and i.module.split(".")[0] not in known]
            wrong += [(str(path), i.line, i.module) for i in others]
    assert not wrong


def test_no_file_names_what_is_built_upon_this_package():
    """Other distributions come by their entry points, and can go without an edit here."""
    other = re.compile(
        r"\blab\b|spacy_crf_lab|spacy-crf-lab|crf_scorer|crf_smooth|FactorGraph|(Latent|Hidden|Gaussian)Chain|LabelGraph|LinkedTexts"
        r"|OpinionPool|OutputCodes|\bMEMM|\bMaxEnt\b|\bHMM|(Kernel|Boosted)Emissions|LaplaceProp|\b[GI]IS\b|FrankWolfe|\bSMO\b"
        r"|PseudoLikelihood|Piecewise|BeliefPropagation|Gibbs|TreeBoost|FeatureInduction|CuttingPlane|(Conjugate|Exponentiated)Gradient"
    )
    files = {path for folder in ("spacy_crf", "tests", "configs") for path in (ROOT / folder).rglob("*.*")}
    files = {path for path in files if path.suffix in (".py", ".cfg") and path != Path(__file__)}
    named = {path: other.findall(path.read_text(encoding="utf8")) for path in files}
    assert {path: names for path, names in named.items() if names} == {}


def test_no_answer_is_a_matter_of_time():
    """Clocks are for progress, and for when to write what is done: where answers are found none is read."""
    reading = {path for path in MODULES for found in imports_of(path) if found.module in ("time", "timeit", "datetime")}
    answering = [
        "kernels",
        "inference",
        "losses",
        "constraints",
        "features",
        "models",
        "pipeline",
        "explain",
    ]
    assert reading and not [path for path in reading if path.parts[1] in answering]


def test_the_tests_of_the_layers_would_see_a_wrong_import():
    source = "from ..pipeline.prediction import x\nfrom . import y\nfrom .. import cli\ndef f():\n    import scipy.optimize\n"
    assert imports(source, "spacy_crf.kernels.z", False) == [
        ("spacy_crf.pipeline.prediction.x", 1, True, False),
        ("spacy_crf.kernels.y", 2, True, False),
        ("spacy_crf.cli", 3, True, False),
        ("scipy.optimize", 5, False, False),
    ]
    assert (
        layer_of("spacy_crf.pipeline.prediction.x")
        > layer_of("spacy_crf.kernels.z")
        > layer_of("spacy_crf.__version__")
    )


def loaded_by(*steps: str) -> list[set[str]]:
    """Names of the modules that a fresh Python has after each step."""
    tell = "\nimport sys; print(' '.join(sys.modules))\n"
    command = [sys.executable, "-c", tell.join([*steps, ""])]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return [set(line.split()) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """What there is after the package, and so on in this order."""
    steps = {
        "package": "import spacy_crf",
        "spacy": "import spacy",
        "factories": "import spacy_crf.pipeline.factories",
        "blank": "spacy.blank('en')",
        "command line": "import spacy.cli; from spacy.util import registry; registry.cli.get_all()",
        "fit": "from spacy_crf.cli.group import import_commands; import_commands(['fit'])",
        "commands": "import_commands()",
    }
    return dict(zip(steps, loaded_by(*steps.values())))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "spacy_crf"}


FACTORIES = {"spacy_crf.pipeline", "spacy_crf.pipeline.factories"}


def test_blank_pipelines_load_next_to_nothing_of_ours(loaded):
    """What `spacy.blank()` loads on our behalf is what makes it slower: two small modules."""
    assert ours(loaded["blank"]) <= {"spacy_crf", *FACTORIES}
    assert "numba" not in loaded["blank"]


def test_factories_load_nothing_that_spacy_has_not(loaded):
    assert not loaded["factories"] - loaded["spacy"] - {"spacy_crf", *FACTORIES}


@pytest.mark.parametrize("make", [make_crf_ner, make_crf_tagger, make_semicrf_ner, make_crf_textcat])
def test_factories_say_what_their_parameters_are(make):
    names = [name for name in inspect.signature(make).parameters if name not in ("nlp", "name")]
    told = re.findall(r"^    (\w+) \([^)]+\): ", make.__doc__, re.MULTILINE)
    assert told == names


def test_the_command_line_of_spacy_loads_next_to_nothing_of_ours(loaded):
    """Until a command of ours is asked for: `spacy train` starts as early as without them."""
    assert ours(loaded["command line"]) - FACTORIES == {"spacy_crf", "spacy_crf.cli", "spacy_crf.cli.group"}


def test_commands_load_no_numba_before_they_run(loaded):
    assert "spacy_crf.cli.tune" in loaded["commands"] and "numba" not in loaded["commands"]
    assert not [name for name in loaded["commands"] if name.startswith("spacy_crf.kernels")]


def test_the_help_of_a_command_loads_little(loaded):
    """`spacy crf COMMAND --help` comes soon after `spacy --help`. The bounds may fall."""
    for step, most_of_ours, most_others in (("fit", 27, 8), ("commands", 54, 16)):
        added = loaded[step] - loaded["command line"]
        others = [name for name in added if not name.startswith("spacy_crf")]
        assert len(ours(added)) <= most_of_ours
        assert len(others) <= most_others


def test_prediction_loads_no_optimizer_but_the_default_no_commands_no_rules_and_no_compiler():
    made = "import spacy\nfor name in ('crf_ner', 'semicrf_ner'): spacy.blank('en').add_pipe(name)"
    code = """
import spacy
from spacy.training import Example
nlp = spacy.blank("en")
nlp.add_pipe("crf_ner")
nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("in Rome"), {"entities": [(3, 7, "GPE")]})])
nlp.from_bytes(nlp.to_bytes())
nlp("Rome")
"""
    loaded_by(code)  # which compiles what nobody has compiled
    components, everything = loaded_by(made, code)
    rules = ("spacy_crf.constraints", "scipy.optimize")
    assert not [name for name in components if name.startswith(rules)]
    assert "numba.np.linalg" not in everything
    of_default = {"spacy_crf.optimizers", "spacy_crf.optimizers.objective"}
    mine = ours(everything) - {"spacy_crf"}
    assert not {name.split(".")[1] for name in mine - of_default} & {"optimizers", "explain", "cli"}


def test_a_recognizer_that_was_added_has_loaded_what_predicts_alone():
    """What learns and saves is imported when a component does so. The bounds may fall."""
    from tests.test_size import n_statements

    [loaded] = loaded_by("import spacy; spacy.blank('en').add_pipe('crf_ner')")
    names = {path: ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in MODULES}
    mine = [path for path, name in names.items() if name in loaded]
    assert len(mine) <= 75
    assert sum(n_statements((ROOT / path).read_text(encoding="utf8")) for path in mine) <= 11_200
    above = ("initialization", "training", "saving", "corpora", "new_texts")
    assert not {f"spacy_crf.pipeline.{name}" for name in above} & loaded


def test_codes_are_unique_and_tell_errors_from_warnings():
    """Each code names one message. The source is asked, for of two equal names in a class the second one is all that is left."""
    classes = [
        node for node in ast.parse((PACKAGE / "errors.py").read_text(encoding="utf8")).body if hasattr(node, "name")
    ]
    codes = {
        of.name: [target.id for node in of.body if isinstance(node, ast.Assign) for target in node.targets]
        for of in classes
        if of.name in ("Errors", "Warnings")
    }
    assert [name for name in codes["Errors"] if not re.fullmatch(r"CRF\d{3}", name)] == []
    assert [name for name in codes["Warnings"] if not re.fullmatch(r"CRFW\d{3}", name)] == []
    every = codes["Errors"] + codes["Warnings"]
    assert len(every) == len(set(every)) > 100
    sources = [(ROOT / path).read_text(encoding="utf8") for path in MODULES]
    named = {name for source in sources for name in re.findall(r"\b(?:Errors|Warnings)\.(CRFW?\d+)", source)}
    assert named == set(every)


def test_public_names_are_there_and_load_nothing_before(loaded):
    assert set(spacy_crf.__all__) <= set(dir(spacy_crf))
    assert {getattr(spacy_crf, name).__name__ for name in spacy_crf.__all__ if name[0] != "_"} <= set(spacy_crf.__all__)
    assert ours(loaded["package"]) == {"spacy_crf"}
    assert not loaded["package"] & {"spacy", "numpy", "numba"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spacy_crf.nothing  # noqa: B018


def test_the_entry_for_spacys_universe_runs(capsys):
    entry = json.loads((ROOT / "docs" / "universe.json").read_text(encoding="utf8"))
    exec("\n".join(entry["code_example"]), {})
    assert "'Paris', 'GPE'" in capsys.readouterr().out


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger", "semicrf_ner", "crf_textcat"])
def test_components_say_what_they_are(factory):
    pipe = spacy.blank("en").add_pipe(factory, name="it")
    assert re.fullmatch(r"<\w+ 'it': \w+, labels \[\], not initialized>", repr(pipe))
    pipe.add_label("X")
    assert "labels ['X']" in repr(pipe)


def test_version_and_changelog_agree():
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.MULTILINE)
    assert spacy_crf.__version__ == metadata.version("spacy-crf")
    assert spacy_crf.__version__ in versions[:2]  # the first section may be of the version to come


# ------------------------------------------------------------------------------------------------------ what is built

BUILT_OF = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "configs", "projects", "spacy_crf")


def test_nothing_is_a_link_and_the_package_has_every_config():
    """Where a system has no symbolic links, git writes each as a small file with the name of what it points to."""
    folders = [ROOT / name for name in (".ci", "assets", "configs", "docs", "projects", "spacy_crf", "tests")]
    assert not [path for folder in folders for path in (*ROOT.glob("*.*"), *folder.rglob("*")) if path.is_symlink()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    for name in ("configs", "projects"):
        patterns = project["tool"]["setuptools"]["package-data"][f"spacy_crf.{name}"]
        files = [path for path in (ROOT / name).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert files and not [path for path in files if not any(path.match(pattern) for pattern in patterns)]


def run(*arguments, of):
    """RETURNS (str): What Python prints, with the packages of a folder before all others."""
    environment = {**os.environ, "PYTHONPATH": str(of)}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=of, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(root, names, folder):
    """Builds an sdist of what a clone without links has, and installs it by a wheel.

    RETURNS (tuple): The clone, and the folder with what is installed.
    """
    pytest.importorskip("setuptools", "77")
    pytest.importorskip("pip")
    clone, packed, installed = (folder / name for name in ("clone", "packed", "installed"))
    clone.mkdir()
    for path in (root / name for name in names):
        if path.is_dir():
            shutil.copytree(path, clone / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, clone)
    for link in [path for path in clone.rglob("*") if path.is_symlink()]:
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    run("-c", f"from setuptools import build_meta; build_meta.build_sdist({str(packed)!r})", of=clone)
    (archive,) = packed.iterdir()
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    run("-m", "pip", "install", "--quiet", *offline, "--target", installed, archive, of=folder)
    return clone, installed


def files(folder):
    every = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix() for path in every}


@pytest.mark.slow
def test_a_clone_without_links_builds_all_that_is_in_it(tmp_path):
    """What an sdist of the clone installs, by a wheel, has every file of the package and every config."""
    clone, installed = install(ROOT, BUILT_OF, tmp_path)
    assert files(installed / "spacy_crf") == files(PACKAGE) | {
        f"{folder}/{name}" for folder in ("configs", "projects") for name in files(ROOT / folder)
    }
    for folder in (clone, installed):
        assert "[components.crf_ner.model]" in run(
            "-m", "spacy", "crf", "init-config", "--component", "crf_ner", of=folder
        )
