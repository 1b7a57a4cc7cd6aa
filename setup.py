"""What pyproject.toml cannot say: the files of configs/ and projects/ go into the package, as spacy_crf/configs and so on."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["spacy_crf*"]), "spacy_crf.configs", "spacy_crf.projects"],
    package_dir={"spacy_crf.configs": "configs", "spacy_crf.projects": "projects"},
)
