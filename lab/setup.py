"""Installs configs/ as spacy_crf_lab/configs, which pyproject.toml has no setting for."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["spacy_crf_lab*"]), "spacy_crf_lab.configs"],
    package_dir={"spacy_crf_lab.configs": "configs"},
)
