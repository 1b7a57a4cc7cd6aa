"""Every config of the lab trains, and every name resolves."""

import re
from pathlib import Path

import pytest
import spacy
from spacy.cli.package import get_third_party_dependencies
from spacy.tokens import DocBin, Token

from tests import test_configs
from tests.util import write_corpus

from .util import for_rows

LAB = Path(__file__).parents[1]
CONFIGS = {path.stem: path for path in sorted((LAB / "configs").glob("*.cfg"))}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The corpus of the plugin's tests, with a number for each token."""
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "tiny.spacy")
    if not Token.has_extension("crf_number"):
        Token.set_extension("crf_number", default=None)
    docs = [*DocBin().from_disk(path).get_docs(spacy.blank("en").vocab)]
    for doc in docs:
        for token in doc:
            token._.crf_number = float(len(token))
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


globals().update(
    for_rows(
        "path",
        CONFIGS,
        test_configs.test_trains_three_steps_and_predicts_the_same_after_loading,
        test_configs.test_config_is_complete,
        test_configs.test_debug_config,
    )
)


def test_entry_points_resolve():
    assert not test_configs.unresolved(LAB)


def test_packages_of_pipelines_require_the_lab():
    """What `spacy package` writes: names deep in a block of the model count."""
    kernels = {
        "@architectures": "spacy_crf_lab.KernelEmissions.v1",
        "features": {"@misc": "spacy_crf.ner_features.v1"},
    }
    sparse = {**kernels, "@architectures": "spacy_crf.SparseEmissions.v1"}
    for name, emissions in (("spacy_crf_lab.LatentChain.v1", sparse), ("spacy_crf.LinearChain.v1", kernels)):
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"model": {"@architectures": name, "emissions": emissions}})
        found = get_third_party_dependencies(nlp.config)
        assert {re.split("[^a-z-]", each)[0] for each in found} == {"spacy-crf", "spacy-crf-lab"}
