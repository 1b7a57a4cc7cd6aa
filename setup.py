"""What pyproject.toml cannot say: the files of configs/ go into the package, as spacy_crf/configs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["spacy_crf*"]), "spacy_crf.configs"],
    package_dir={"spacy_crf.configs": "configs"},
)
