"""The page of ``crf export --to page`` in a browser: offline, from a file, on a phone, in light and dark, by keyboard."""

import json
import re

import pytest
import spacy
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf import lite
from spacy_crf.cli import app
from spacy_crf.migrate.lite import export_lite
from spacy_crf.migrate.page import render_page
from tests.test_lite import make, templates

TEXT = 'Ann Lee left Paris for <b>New York</b>. Bob met "Acme Corp" 🙂!'
SCREENS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pipeline, its page, and its export for Python."""
    folder = tmp_path_factory.mktemp("page")
    nlp = make("crf_ner")
    nlp.add_pipe("sentencizer", first=True)
    nlp.to_disk(folder / "model")
    for output in ("page.html", "model.json"):
        result = CliRunner().invoke(app, ["export", str(folder / "model"), str(folder / output)])
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(params=SCREENS)
def page(browser, folder, request):
    """The page, once it has been seen to that nothing goes wrong or asks for the network."""
    context = browser.new_context(offline=True, **SCREENS[request.param])
    opened, requests, problems = context.new_page(), [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    address = (folder / "page.html").as_uri()
    opened.goto(address)
    yield opened
    assert all(url.startswith(("data:", "file:")) for url in requests) and not problems
    context.close()


def marks(page):
    return [(mark.inner_text(), mark.get_attribute("data-label")) for mark in page.locator("mark").all()]


def test_entities_appear_as_one_types(page, folder):
    page.get_by_label("Text").press_sequentially(TEXT)
    # The page answers a moment behind the typing: its answer holds the text that it is about
    page.wait_for_function(
        "text => JSON.parse(document.querySelector('pre')?.textContent || '{}').text === text", arg=TEXT
    )
    parsed = lite.load(folder / "model.json")(TEXT)
    expected = [(span.text, f"{span.label} {100 * span.prob:.1f} %") for span in parsed.entities]
    assert len(expected) >= 4 and marks(page) == expected
    shown = page.locator("mark").first.evaluate("mark => getComputedStyle(mark, '::after').content")
    assert shown == f'" {expected[0][1]}"'
    rows = page.get_by_role("region", name="Table: Entities").get_by_role("row").all_inner_texts()
    found = sorted(tuple(re.split(r"\s*\t\s*", row)) for row in rows[1:])
    assert found == sorted((e.label, e.text, f"{100 * e.prob:.1f} %") for e in parsed.entities)
    assert page.get_by_role("listitem").all_inner_texts() == [TEXT[s.start : s.end] for s in parsed.sentences]
    page.get_by_role("status").get_by_text(f"{len(expected)} entities, {len(parsed.sentences)} sentences").wait_for()
    page.get_by_label("Text").fill("")
    page.locator("mark").first.wait_for(state="detached")


def test_it_is_as_wide_as_the_screen_and_accessible(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.get_by_label("Text").fill(TEXT + " " + 300 * "x")
    page.get_by_role("heading", name="Entities").wait_for()
    page.get_by_text("The answer as JSON").click()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_it_is_read_by_keyboard(page):
    page.keyboard.press("Tab")
    page.keyboard.type("Ann Lee left")
    page.get_by_role("heading", name="Entities").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Table: Entities"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert json.loads(page.get_by_role("region", name="JSON").inner_text())["entities"][0]["text"] == "Ann Lee"


ANSWER_TIME = """(text) => new Promise((resolve) => {
    const field = document.getElementById("text");
    const found = document.getElementById("found");
    field.value = text;
    const begin = performance.now();
    new MutationObserver(() => resolve(performance.now() - begin)).observe(found, { childList: true });
    field.dispatchEvent(new Event("input"));
})"""


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_answers_are_there_at_once(page):
    """Within 50 ms for 40 words; the bound here is looser, for busy machines."""
    page.get_by_role("status").get_by_text("Loading").wait_for(state="detached")
    times = [page.evaluate(ANSWER_TIME, f"{n} Ann Lee left Paris for New York. " * 5) for n in range(9)]
    assert sorted(times)[4] < 250


# -------------------------------------------------------------------------------------------- what a page can't hold


def test_pages_without_words_are_refused():
    nlp = make("crf_ner", templates("lower[0]", "tag[0]"))
    with pytest.raises(ValueError, match="CRF791: Component 'crf_ner' has the columns orth, tag in place of texts"):
        render_page(export_lite(nlp, columns=["orth", "tag"]), "x")
    content = export_lite(make("crf_ner"), tokenizer=False)
    with pytest.raises(ValueError, match=r"CRF791: .*'tokenizer' has been left out.*without --words"):
        render_page(content, "x")


def test_patterns_that_javascript_lacks_are_refused():
    content = export_lite(make("crf_ner"))
    missing = {"untranslated": "infix", "why": "it has GROUPREF"}
    content["tokenizer"]["patterns_js"]["infix"] = missing
    trained = {"kind": "characters", "patterns_js": {"never_split": [missing]}, "language_rules": None}
    trained_on_rules = {**trained, "patterns_js": {"never_split": []}, "language_rules": content["tokenizer"]}
    for tokenizer in (content["tokenizer"], trained, trained_on_rules):
        with pytest.raises(ValueError, match=r"CRF791: .*the pattern '(infix|never_split)'.* \(it has GROUPREF\)"):
            render_page({**content, "tokenizer": tokenizer}, "x")


ORDERED = {"1": 1, "10": 2, "5": 20}


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_labels_that_are_numbers_keep_their_order(page, tmp_path):
    """JavaScript's objects list them by their size, and the page said that the first one was the best."""
    nlp = spacy.blank("en")
    examples = []
    for label, n in ORDERED.items():
        for _ in range(n):
            examples.append(Example.from_dict(nlp.make_doc(f"stars {label}"), {"cats": {label: 1.0}}))
    path = tmp_path / "page.html"
    path.write_text(render_page(export_lite(make("crf_textcat", {}, examples)), "ratings"), encoding="utf8")
    page.goto(path.as_uri())
    page.get_by_label("Text").fill("stars")
    rows = page.get_by_role("region", name="Table: Labels of the text").get_by_role("rowheader")
    rows.first.wait_for()
    assert rows.first.inner_text() == "5"
    page.get_by_role("status").get_by_text("5 ").wait_for()
