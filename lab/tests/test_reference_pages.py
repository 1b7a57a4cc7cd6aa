"""The reference page names all that the lab registers. Where this fails: ``python -m spacy project run reference``."""

from spacy_crf_lab.errors import Errors, Warnings
from tests.reference_pages import commands, entry_points, messages

from .reference_pages import LAB, page


def test_nothing_is_missing():
    written = (LAB / "docs" / "reference.md").read_text(encoding="utf8")
    wanted = [f"\n**`{name}`** |" for _, name, _ in entry_points(LAB)]
    wanted += [f"## `{name}" for name in commands("spacy_crf_lab")]
    wanted += [f"\n{code} |" for code in messages(Errors, Warnings)]
    assert wanted and not [text for text in wanted if text not in written], "python -m spacy project run reference"
    assert not [text for text in wanted if text not in page()]
