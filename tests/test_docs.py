"""The pages under docs/ and the README are true: their code blocks are run, and what they print is what they say.

The blocks of a page run one after the other, in a folder with ``configs`` and some texts of ``assets``: ``python`` blocks in
one namespace, ``bash`` blocks of docs/ as scripts; of ``ini`` blocks, which are parts of configs, every registered name resolves.
Comments right below a line that begins with ``print(`` are what it prints; ``...`` in them stands for anything. Blocks that
import another tool than the package needs (`OTHERS`) are run where it is installed.
"""

import ast
import configparser
import re
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import srsly
from spacy.lang.en import English
from spacy.util import registry

from spacy_crf.errors import quietly
from tests.reference_pages import entry_points

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
]
NOTEBOOK = ROOT / "docs" / "first_look.ipynb"
OTHERS = ("duckdb", "pandas", "polars", "presidio_analyzer", "spacy_streamlit")
# Most words in the parts of the site that docs/index.md lists: a user in a hurry reads few of them
WORDS = {"Use it": 26_000, "Reference": 20_000, "Measured": 8_000}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_OF_ALL_TEXTS = ("training",)  # pages that say how good a model is


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, few_texts, warm_environment, tmp_path, monkeypatch, capsys):
    assets = ROOT / "assets" if page.stem in _OF_ALL_TEXTS else few_texts
    for folder in (assets, ROOT / "configs"):
        (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    namespace, missing = {}, []
    for language, block in _BLOCK.findall(page.read_text(encoding="utf8")):
        others = [name for name in OTHERS if f"import {name}\n" in block or f"from {name} " in block]
        missing += [name for name in others if find_spec(name) is None]
        if set(missing) & set(others):
            continue
        if language == "python":
            capsys.readouterr()
            exec(compile(block, page.name, "exec"), namespace)
            _compare(_promised(block), capsys.readouterr().out.splitlines())
        elif language == "ini":
            _check_config(block)
        elif language == "bash" and page.stem != "README":  # the README's set up environments and train for minutes
            _run_script(block, tmp_path, warm_environment)
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed; the other blocks have run")


def test_every_page_is_in_the_index():
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert sorted(name for part in _parts().values() for name in part) == sorted(pages)


def test_the_parts_of_the_site_have_few_pages_and_words():
    assert len(_parts()["Use it"]) <= 18
    for part, most in WORDS.items():
        pages = [ROOT / "docs" / f"{name}.md" for name in _parts()[part]]
        assert sum(map(n_words, pages)) <= most, part


def test_what_a_config_may_name_is_little_enough_to_know_and_is_on_a_written_page():
    pages = [page.read_text(encoding="utf8") for page in PAGES if not page.stem.startswith("reference_")]
    written = set(re.findall(r"\w[\w.]*\w", "\n".join(pages)))
    names = [name for _, name, _ in entry_points()]
    assert len(names) <= 75
    assert [name for name in names if name not in written] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    broken = []
    for link in _LINK.findall(_prose(page)):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and not (target.exists() and (not heading or heading in _headings(target))):
            broken.append(link)
    assert not broken


def test_the_notebook_prints_what_it_shows_and_draws_where_it_has_pictures(special_words, monkeypatch, capsys):
    """As plain Python, in which `render` returns the HTML that it shows in a notebook."""
    cells = srsly.read_json(NOTEBOOK)["cells"]
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert all((NOTEBOOK.parent / link).exists() for link in _LINK.findall(prose))
    monkeypatch.setattr(English.Defaults, "tokenizer_exceptions", special_words)
    monkeypatch.chdir(NOTEBOOK.parent)
    namespace, code = {}, [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    for cell in code:
        body, last = ast.parse("".join(cell["source"])).body, None
        if isinstance(body[-1], ast.Expr):
            last = body.pop()
        capsys.readouterr()
        with quietly():  # gives the log its level back
            exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), namespace)
            drawn = last and eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), namespace)
        stored = "".join("".join(output.get("text", [])) for output in cell["outputs"])
        printed = capsys.readouterr().out
        assert _NUMBER.sub("#", printed) == _NUMBER.sub("#", stored)
        # The scores of another processor's arithmetic may round to another digit
        numbers = [[*map(float, _NUMBER.findall(text))] for text in (printed, stored)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.021)
        kinds = {kind for output in cell["outputs"] for kind in output.get("data", {})}
        is_html = hasattr(drawn, "_repr_html_") or (type(drawn) is str and drawn.startswith("<div"))
        assert ("image/svg+xml" in kinds) == hasattr(drawn, "_repr_svg_") and ("text/html" in kinds) == is_html


def n_words(page: Path) -> int:
    """With those of code; a lone sign, such as the bar between the cells of a table, is none."""
    return len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf8")))


def _parts() -> dict[str, list[str]]:
    """Names of the pages by the captions of the index."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf8")
    trees = re.findall(r"^:caption: ([^\n]+)\n:maxdepth: 1\n\n(.*?)^```$", index, re.MULTILINE | re.DOTALL)
    return {caption: [name for name in names.split() if "/" not in name] for caption, names in trees}


def _prose(page: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf8"), flags=re.M | re.S))


@cache
def _headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf8"), flags=re.M | re.S)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def _promised(block: str) -> list[str]:
    """The comments below lines that print."""
    promised, printed = [], False
    for line in block.splitlines():
        if printed and line.startswith("# "):
            promised.append(line[2:])
        else:
            printed = line.startswith("print(")
    return promised


def _compare(promised: list[str], printed: list[str]) -> None:
    if not promised:
        return
    assert len(promised) == len(printed), "\n".join(printed)
    for expected, line in zip(promised, printed):
        pattern = ".*".join(map(re.escape, expected.split("...")))
        assert re.fullmatch(pattern, line), f"the page says\n{expected}\nand it prints\n{line}"


def _check_config(block: str) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(block)
    for section in parser.sections():
        for key, value in parser.items(section):
            value = srsly.json_loads(value) if not value.startswith("$") else value
            assert not key.startswith("@") or registry.has(key[1:], value), f"[{section}] {key} = {value}"


def _run_script(block: str, folder: Path, warm_environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=warm_environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
