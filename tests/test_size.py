"""The package stays one that a person can know: how many statements, files and classes it has, and which files
know a structure by its name. `python -m tests.test_size` prints all of it.

Statements are counted, not lines: what is packed into fewer lines is not easier to know."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.reference_pages import tomllib
from tests.test_package import MODULES, PACKAGE, ROOT

# What is there may shrink; who lets it grow says why in the commit that raises a bound.
MOST_STATEMENTS = 41_573
MOST_STATEMENTS_OF_CORE = 27_857
MOST_FILES = 258
MOST_CLASSES = 595
MOST_ENTRY_POINTS = 51
MOST_ANY = 559  # how often `Any` is written
BESIDE_CORE = (
    "cli",
    "explain",
    "report",
    "migrate",
    "sklearn.py",
    "sklearn_model.py",
    "lite",
    "cross_validation.py",
    "race.py",
    "folds.py",
)
# How many files name the scores of a structure that are neither its own nor those of all structures
STRUCTURES = {
    "SegmentScores": ("semi_markov", "segments", "segment_", "semicrf_ner", "log_space"),
    "HigherOrderScores": ("higher_order", "order", "pruned_lattice"),
}
MOST_NAMING = {"SegmentScores": 5, "HigherOrderScores": 1}


@cache
def sources() -> dict[Path, str]:
    return {path: (ROOT / path).read_text(encoding="utf8") for path in MODULES}


def statements_of_folders() -> Counter[str]:
    statements = Counter()
    for path, source in sources().items():
        folder = path.parts[1] if len(path.parts) > 2 else path.name
        statements[folder] += n_statements(source)
    return statements


def n_statements(source: str) -> int:
    """Statements without docstrings; `a, b = x, y` counts as the two that it is."""
    n = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        if isinstance(node, ast.stmt):
            n += 1
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and isinstance(node.targets[0], ast.Tuple)
        ):
            n += len(node.targets[0].elts) - 1
    return n


def n_classes() -> int:
    return sum(isinstance(node, ast.ClassDef) for source in sources().values() for node in ast.walk(ast.parse(source)))


def n_entry_points() -> int:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["entry-points"]
    return sum(map(len, groups.values()))


def n_any() -> int:
    return sum(len(re.findall(r"\bAny\b", source)) for source in sources().values())


def files_naming(structure: str) -> list[str]:
    """Files that know a structure's scores by name, without being about it."""
    name, own = re.compile(rf"\b{structure}\b"), STRUCTURES[structure]
    naming = [path for path, source in sources().items() if name.search(source) and path.name != "types.py"]
    return [str(path) for path in naming if not any(word in str(path.relative_to("spacy_crf")) for word in own)]


def test_statements_files_and_classes_are_bounded():
    statements = statements_of_folders()
    assert sum(statements.values()) <= MOST_STATEMENTS
    assert n_in_core(statements) <= MOST_STATEMENTS_OF_CORE
    assert len(MODULES) <= MOST_FILES
    assert n_classes() <= MOST_CLASSES
    assert n_entry_points() <= MOST_ENTRY_POINTS
    assert n_any() <= MOST_ANY


def test_packed_statements_are_counted_one_by_one():
    assert n_statements('"""What it is."""\na, b = x, y\nbegin, end = span') == 3
    assert n_statements("def f():\n    'What it does.'\n    return 1") == 2


def n_in_core(statements: Counter[str]) -> int:
    return sum(n for name, n in statements.items() if name not in BESIDE_CORE)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_few_files_know_a_structure_by_name(structure):
    assert len(files_naming(structure)) <= MOST_NAMING[structure]


if __name__ == "__main__":
    per_folder = statements_of_folders()
    for folder, n in per_folder.most_common():
        print(f"{n:7,} {folder}")
    total = sum(per_folder.values())
    print(
        f"{total:,} statements, {n_in_core(per_folder):,} of them core, {len(MODULES)} files, {n_classes()} classes in {PACKAGE}"
    )
    print(f"{n_entry_points()} entry points, `Any` {n_any():,} times")
    for structure in STRUCTURES:
        print(f"{structure} is named by", *files_naming(structure))
