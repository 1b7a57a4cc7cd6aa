"""The lab does not grow unnoticed."""

from pathlib import Path

from tests.test_size import n_statements

SOURCES = sorted((Path(__file__).parents[1] / "spacy_crf_lab").rglob("*.py"))
MOST_STATEMENTS = 13_550  # who lets it grow says why in the commit that raises the bound


def test_statements_are_bounded():
    assert sum(n_statements(path.read_text(encoding="utf8")) for path in SOURCES) <= MOST_STATEMENTS
