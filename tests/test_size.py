"""The package stays one that a person can know: how many lines, files and classes it has, and which files
know a structure by its name. `python -m tests.test_size` prints all of it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from .test_package import MODULES, PACKAGE, ROOT

pytestmark = pytest.mark.issue(34)

# What is there may shrink; who lets it grow says why in the commit that raises a bound.
MOST_LINES, MOST_FILES, MOST_CLASSES = 71_172, 343, 713
MOST_LINES_OF_CORE = 31_891
BESIDE_CORE = (
    "cli",
    "explain",
    "report",
    "migrate",
    "lab",
    "sklearn.py",
    "sklearn_model.py",
    "lite.py",
    "cross_validation.py",
)
# How many files name the scores of a structure that are neither its own nor those of all structures
STRUCTURES = {
    "SegmentScores": ("semi_markov", "segments", "segment_", "semicrf_ner", "log_space"),
    "HigherOrderScores": ("higher_order", "order", "hmm", "baum_welch"),
    "HiddenChain": ("hidden_chain",),
    "LatentChain": ("latent",),
    "TiedScores": ("ties", "tied", "graph", "lab"),
}
MOST_NAMING = {"SegmentScores": 4, "HigherOrderScores": 0, "HiddenChain": 2, "LatentChain": 1, "TiedScores": 0}


def sources() -> dict[Path, str]:
    return {path: (ROOT / path).read_text(encoding="utf8") for path in MODULES}


def lines_of_folders() -> Counter[str]:
    lines = Counter()
    for path, source in sources().items():
        lines[path.parts[1] if len(path.parts) > 2 else path.name] += source.count("\n")
    return lines


def n_classes() -> int:
    return sum(isinstance(node, ast.ClassDef) for source in sources().values() for node in ast.walk(ast.parse(source)))


def files_naming(structure: str) -> list[str]:
    """Files that know a structure's scores by name, without being about it."""
    name, own = re.compile(rf"\b{structure}\b"), STRUCTURES[structure]
    naming = [path for path, source in sources().items() if name.search(source) and path.name != "types.py"]
    return [str(path) for path in naming if not any(word in str(path.relative_to("spacy_crf")) for word in own)]


def test_lines_files_and_classes_are_bounded():
    lines = lines_of_folders()
    core = sum(n for name, n in lines.items() if name not in BESIDE_CORE)
    assert sum(lines.values()) <= MOST_LINES and core <= MOST_LINES_OF_CORE
    assert len(MODULES) <= MOST_FILES and n_classes() <= MOST_CLASSES


@pytest.mark.parametrize("structure", STRUCTURES)
def test_few_files_know_a_structure_by_name(structure):
    assert len(files_naming(structure)) <= MOST_NAMING[structure]


if __name__ == "__main__":
    for folder, n in lines_of_folders().most_common():
        print(f"{n:7,} {folder}")
    total = lines_of_folders()
    core = sum(n for name, n in total.items() if name not in BESIDE_CORE)
    print(
        f"{sum(total.values()):,} lines, {core:,} of them core, {len(MODULES)} files, {n_classes()} classes in {PACKAGE}"
    )
    for structure in STRUCTURES:
        print(f"{structure} is named by", *files_naming(structure))
