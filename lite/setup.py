"""Copies the package from the plugin's folder spacy_crf/lite, which is beside this one in the repository. A source distribution
holds the copy."""

import shutil
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "spacy_crf" / "lite"
PACKAGE = HERE / "spacy_crf_lite"

if SOURCE.is_dir():
    shutil.rmtree(PACKAGE, ignore_errors=True)
    shutil.copytree(SOURCE, PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (PACKAGE / "py.typed").touch()
setup()
