"""The reference pages name all that is registered. Where this fails: ``python -m spacy project run reference``."""

import inspect
from pathlib import Path

import pytest

from tests.reference_pages import (
    INNER,
    bases,
    commands,
    entry_points,
    messages,
    methods,
    pages,
    public_names,
    settings_of,
)

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {
    "reference_cli": [f"\n## `{name}" for name in commands()],
    "reference_settings": [f"\n**`{name}`** |" for _, name, _ in entry_points()],
    "reference_api": [
        *(f"\n## `{name}" for name, _ in public_names()),
        *(f"\n`{name}" for base in bases() for name in methods(base)),
    ],
    "reference_errors": [f"\n{code} |" for code in messages()],
}


@pytest.mark.parametrize("page", NAMES)
def test_nothing_is_missing(page):
    written = (DOCS / f"{page}.md").read_text(encoding="utf8")
    assert not [name for name in NAMES[page] if name not in written], "python -m spacy project run reference"


def test_pages_are_made_of_what_is_there():
    made = pages()
    assert all(name in made[page] for page, names in NAMES.items() for name in names)
    assert "- `--output`, `-o` (`-`): The file, - for the standard output.\n" in made["reference_cli"]
    assert "- `--component`: The component of the pipeline. One of crf_ner, crf_tagger," in made["reference_cli"]
    assert "\n`n_best(doc, n, *, keep_annotation=False)` | The most probable labellings." in made["reference_api"]
    assert "\n`longest_segment` (" in made["reference_settings"]
    assert len(messages()) > 100 and "CRF750" in messages() and "CRFW601" in messages()


def test_every_setting_is_explained():
    """In the docstring, or in that of a registered name that it refers to."""
    missing = [
        (name, setting.name) for _, name, place in entry_points() for setting in settings_of(place) if not setting.text
    ]
    assert missing == []


def test_what_the_page_of_the_interface_leaves_out_is_there():
    classes = [*bases(), *(each for _, each in public_names() if inspect.isclass(each))]
    assert [name for name in INNER if not any(hasattr(each, name) for each in classes)] == []
