"""The reference pages name all that is registered. Where this fails: ``python -m spacy project run reference``."""

import re
from pathlib import Path

import pytest

from .reference_pages import bases, commands, entry_points, messages, methods, pages, parameters, public_names

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {
    "reference_registry": [f"| `{name}` |" for _, name, _ in entry_points()],
    "reference_cli": [f"\n## `{name}" for name in commands()],
    "reference_settings": [f"\n## `{name}`\n" for _, name, _ in entry_points()],
    "reference_api": [
        *(f"\n## `{name}" for name, _ in public_names()),
        *(f"\n### `{name}" for base in bases() for name in methods(base)),
    ],
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
    assert "- `--component`, `-c`: The component of the pipeline. One of crf_ner, crf_tagger," in made["reference_cli"]
    assert "- `doc` (`Doc`): The text.\n- `n` (`int`): Most labellings.\n" in made["reference_api"]
    assert "- `longest_segment` (" in made["reference_settings"]
    assert len(messages()) > 100 and "CRF750" in messages() and "CRFW601" in messages()


def test_every_setting_is_explained():
    """In the docstring, or in that of a registered name that it refers to."""
    sections = re.findall(r"\n## `(.*?)`\n(.*?)(?=\n## |$)", pages()["reference_settings"], re.DOTALL)
    told = dict(sections)
    missing = []
    for name, settings in parameters().items():
        where = " ".join(
            [told[name], *(told.get(other, "") for other in re.findall(r"`(spacy_crf\.[\w.]+)`", told[name]))]
        )
        missing += [(name, each) for each in settings if f"`{each}`" not in where and "See `CRFPipe." not in where]
    assert not missing
