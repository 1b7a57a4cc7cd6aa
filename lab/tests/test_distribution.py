"""What of the lab goes to PyPI is all of it."""

from importlib import metadata

import pytest

import spacy_crf_lab
from tests.test_package import files, install, run

from .test_configs import CONFIGS, LAB

BUILT_OF = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "configs", "spacy_crf_lab")


def test_versions_agree():
    """The lab may use every module of the plugin."""
    version = spacy_crf_lab.__version__
    assert version == metadata.version("spacy-crf-lab") == metadata.version("spacy-crf")
    assert f"spacy-crf[fuzzy]=={version}" in metadata.requires("spacy-crf-lab")


def test_the_license_is_that_of_the_plugin():
    assert (LAB / "LICENSE").read_bytes() == (LAB.parent / "LICENSE").read_bytes()


@pytest.mark.slow
def test_a_clone_without_links_builds_all_that_is_in_it(tmp_path):
    """As `tests.test_package` has it of the plugin."""
    clone, installed = install(LAB, BUILT_OF, tmp_path)
    package = installed / "spacy_crf_lab"
    assert files(package) == files(LAB / "spacy_crf_lab") | {f"configs/{path.name}" for path in CONFIGS.values()}
    assert (package / "py.typed").is_file()
    assert [*installed.glob("spacy_crf_lab-*.dist-info/licenses/LICENSE")]
    for folder in (clone, installed):
        made = run("-m", "spacy", "crf", "init-config", "--file", "crf_ner_graph", of=folder)
        assert '@architectures = "spacy_crf_lab.FactorGraph.v1"' in made
