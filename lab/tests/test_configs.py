"""Every config of the lab trains, and every name resolves."""

from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin, Token

from tests import test_configs

from .util import for_rows

LAB = Path(__file__).parents[1]
CONFIGS = {path.stem: path for path in sorted((LAB / "configs").glob("*.cfg"))}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """That of the plugin's tests, with a number for each token."""
    path = test_configs._write_corpus(tmp_path_factory.mktemp("corpus") / "tiny.spacy")
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
