"""lite.js against `spacy_crf.lite`: ``python -m tests.benchmarks.lite_js MODEL TEXTS``. Needs Node; the page also Chromium.

MODEL is a pipeline, TEXTS a file with a text on each line, such as those of the folder `plain` of the data.
"""

import json
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

import spacy
import typer

from spacy_crf import lite
from spacy_crf.migrate.lite import export_lite, write_lite
from spacy_crf.migrate.page import render_page
from tests.migrate.test_lite_js import answers, assert_close
from tests.migrate.test_page_browser import ANSWER_TIME

from .measure import show

_WORDS = 40  # of the text that a page answers


def n_different(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> int:
    """The number of answers that differ in a label, a place, or a probability by 1e-9."""
    n = 0
    for our_answer, their_answer in zip(ours, theirs, strict=True):
        try:
            assert_close(our_answer, their_answer)
        except AssertionError:
            n += 1
    return n


def answer_time(page_path: Path, text: str) -> float:
    """The median milliseconds from a text to the entities in a page."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(page_path.as_uri())
        page.get_by_role("status").get_by_text("Loading").wait_for(state="detached")
        times = [page.evaluate(ANSWER_TIME, f"{n} {text}") for n in range(21)]
        browser.close()
    return sorted(times)[10]


def main(model: Path, texts: Path, limit: int = 20_000) -> None:
    """limit: The number of texts."""
    lines = texts.read_text(encoding="utf8").splitlines()[:limit]
    nlp = spacy.load(model)
    content = export_lite(nlp)
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        write_lite(content, path, "json")
        ours = [parsed.to_json() for parsed in lite.load(path).batch(lines)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        theirs = answers(texts={"content": json.loads(path.read_text(encoding="utf8")), "texts": lines})["texts"]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rows.append([f"other answers than Python's, of {len(lines):,}", n_different(ours, theirs), "", "0"])
        rows.append(["texts a second of CPU, with the start of Node", f"{len(lines) / seconds:,.0f}", "", ""])
        page_path = Path(folder) / "page.html"
        page_path.write_text(render_page(content, model.name), encoding="utf8")
        rows.append(["page", f"{page_path.stat().st_size / 1e6:.2f}", "MB", "3"])
        words = " ".join(lines).split(" ")[:_WORDS]
        rows.append([f"{_WORDS} words in Chromium", f"{answer_time(page_path, ' '.join(words)):.0f}", "ms", "50"])
    show(f"{model.name}, {texts.name}", ["", "measured", "", "must"], rows)


if __name__ == "__main__":
    typer.run(main)
