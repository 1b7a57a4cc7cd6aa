"""Installs configs/ and projects/ as spacy_crf/configs and spacy_crf/projects, which pyproject.toml has no setting for."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["spacy_crf*"]), "spacy_crf.configs", "spacy_crf.projects"],
    package_dir={"spacy_crf.configs": "configs", "spacy_crf.projects": "projects"},
)
