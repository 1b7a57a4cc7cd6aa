"""The reference pages name all that is registered. Where this fails: ``python -m spacy project run reference``."""

from pathlib import Path

import pytest

from .reference_pages import commands, entry_points, messages, pages

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {
    "reference_registry": [f"| `{name}` |" for group, name, _ in entry_points() if group != "spacy_cli"],
    "reference_cli": [f"\n## `{name}" for name in commands()],
    "reference_errors": [f"| {code} |" for code in messages()],
}


@pytest.mark.parametrize("page", NAMES)
def test_nothing_is_missing(page):
    written = (DOCS / f"{page}.md").read_text(encoding="utf8")
    assert not [name for name in NAMES[page] if name not in written], "python -m spacy project run reference"


def test_pages_are_made_of_what_is_there():
    made = pages()
    assert all(name in made[page] for page, names in NAMES.items() for name in names)
    assert "- `--output`, `-o` (`-`): The file, - for the standard output.\n" in made["reference_cli"]
    assert "- `--component`, `-c`: What the pipeline consists of. One of crf_ner, crf_tagger," in made["reference_cli"]
    assert len(messages()) > 100 and "CRF750" in messages() and "CRFW601" in messages()
