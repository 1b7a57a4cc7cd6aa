"""The pages under lab/docs/ and the lab's README are true, as those of the plugin."""

import re

import pytest

from tests import test_docs

from .reference_pages import LAB

PAGES = [LAB / "README.md", *sorted((LAB / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, few_texts, warm_environment, tmp_path, monkeypatch, capsys):
    test_docs.test_code_blocks_run(page, few_texts, warm_environment, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    test_docs.test_links_lead_somewhere(page)


def test_every_page_is_in_the_index():
    index = LAB / "docs" / "index.md"
    listed = re.findall(r"^\w+$", index.read_text(encoding="utf8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in (LAB / "docs").glob("*.md") if page != index)


def test_the_pages_have_few_words():
    assert sum(map(test_docs.n_words, (LAB / "docs").glob("*.md"))) <= 15_000
