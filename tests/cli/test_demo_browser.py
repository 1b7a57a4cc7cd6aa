"""The page of ``crf demo`` in a browser: by mouse and by keyboard, in light and dark, and with markup in texts and labels."""

import json
import re

import pytest

from spacy_crf.cli.demo import Demo
from tests.cli.test_demo import BAD, TEXT, nlp, pipeline, serving

__all__ = ["nlp"]  # a fixture


@pytest.fixture
def demo(nlp, tmp_path):
    with serving(Demo(nlp, None, tmp_path / "saved.jsonl")) as opened:
        yield opened, tmp_path / "saved.jsonl"


@pytest.fixture
def page(browser, demo, request):
    """The page, once it has been seen to that nothing goes wrong, and nothing is asked of other hosts."""
    address = f"http://127.0.0.1:{demo[0].server_port}/"
    context = browser.new_context(**getattr(request, "param", {}))
    opened, requests, problems = context.new_page(), [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    # A refusal is an error on the console
    opened.on(
        "console", lambda said: problems.append(said.text) if said.type == "error" and "400" not in said.text else 0
    )
    opened.goto(address)
    opened.get_by_role("heading", name="Try pipeline").wait_for()
    yield opened
    assert all(url.startswith((address, "data:,")) for url in requests) and not problems
    context.close()


def find(page, text=TEXT):
    page.get_by_label("Text").fill(text)
    page.get_by_role("button", name="Find").click()
    page.get_by_role("heading", name="crf_ner").wait_for()


def marks(page):
    return [mark.get_attribute("aria-label") for mark in page.locator("mark").all()]


def saved(page, file):
    with page.expect_response("**/save"):  # the words "Saved to" may be those of an earlier one
        page.get_by_role("button", name="save").click()
    page.get_by_text("Saved to").wait_for()
    line = json.loads(file.read_text(encoding="utf8").splitlines()[-1])
    return [(line["text"][span["start"] : span["end"]], span["label"]) for span in line["spans"]]


def test_a_text_is_marked_explained_corrected_and_saved(page, demo):
    find(page)
    assert [re.sub(r"\d+\.\d %", "%", mark) for mark in marks(page)] == ["Ann Lee, PER %", "New York, GPE %"]
    assert page.locator(".context").inner_text() == TEXT
    assert "Ann Lee (PER); New York (GPE)" in page.get_by_role("listitem").first.inner_text()
    page.get_by_role("button", name="Ann Lee").click()
    page.get_by_role("heading", name="crf_ner: 'Ann Lee' as PER").wait_for()
    assert page.get_by_role("columnheader").all_inner_texts() == ["log-odds", "word"]
    assert "Lee" in page.get_by_role("table").inner_text()
    page.get_by_label("label of the chosen mark").fill("NICK")
    page.get_by_role("button", name="change").click()
    page.get_by_role("button", name="New York").click()
    page.get_by_role("button", name="remove").click()
    assert marks(page) == ["Ann Lee, NICK"]
    assert saved(page, demo[1]) == [("Ann Lee", "NICK")]
    page.get_by_role("button", name="save").click()  # which wrote the same line again
    page.get_by_text("Saved before").wait_for()
    assert len(demo[1].read_text(encoding="utf8").splitlines()) == 1
    page.get_by_role("button", name="use this").first.click()
    assert page.get_by_role("status").inner_text() == ""  # no longer "Saved to"
    assert saved(page, demo[1]) == [("Ann Lee", "PER"), ("New York", "GPE")]


def test_a_span_is_marked_anew_by_mouse(page, demo):
    find(page, "😀 Ann Lee lives in New York .")
    page.get_by_label("as", exact=True).fill("PLACE")
    # from within "in" to within "York"
    page.locator(".context").evaluate(
        """context => { const range = document.createRange(), texts = [];
        const walker = document.createTreeWalker(context, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) texts.push(walker.currentNode);
        const at = texts.findIndex(node => node.data.includes("lives"));
        range.setStart(texts[at], texts[at].data.indexOf("in") + 1);
        range.setEnd(texts[at + 1], texts[at + 1].data.indexOf("York") + 2);
        getSelection().removeAllRanges(); getSelection().addRange(range); }"""
    )
    page.locator(".context").dispatch_event("mouseup")
    assert page.get_by_label("words to mark").input_value() == "in New York"
    page.get_by_role("button", name="mark", exact=True).click()
    assert saved(page, demo[1])[-1] == ("in New York", "PLACE")


def test_everything_is_reached_by_keyboard(page, demo):
    page.get_by_label("Text").focus()
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    page.get_by_role("heading", name="crf_ner").wait_for()
    for key in ("Tab", "Tab", "Enter"):  # over "Find"
        page.keyboard.press(key)
    page.get_by_role("heading", name="crf_ner: 'Ann Lee' as PER").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Ann Lee, PER")
    page.get_by_label("words to mark").focus()
    page.keyboard.type("lives in")
    page.keyboard.press("Tab")
    page.keyboard.type("DOES")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.get_by_role("status").inner_text() == "Marked as DOES: lives in"
    assert saved(page, demo[1]) == [("Ann Lee", "PER"), ("lives in", "DOES"), ("New York", "GPE")]


def test_markup_in_texts_and_labels_is_text(page, demo):
    find(page, f"{BAD} Ann Lee <img src=x onerror='window.harmed = true'> .")
    assert BAD in page.locator(".context").inner_text()
    page.get_by_label("words to mark").fill("Ann Lee")
    page.get_by_label("as", exact=True).fill(BAD)
    page.get_by_role("button", name="mark", exact=True).click()
    page.get_by_role("button", name=f"Ann Lee, {BAD}").click()
    page.get_by_text("CRF846").wait_for()  # a label that the component does not have is not explained
    assert ("Ann Lee", BAD) in saved(page, demo[1])
    assert page.locator("main script, main img").count() == 0 and page.evaluate("window.harmed") is None


@pytest.mark.parametrize("page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_accessibility_in_light_and_dark(page, request):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    find(page)
    page.get_by_role("button", name="Ann Lee").click()
    page.get_by_role("table").wait_for()
    assert page.get_by_role("status").count() == 1 and page.locator("[aria-live=polite]").count() == 1
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = request.node.callspec.params["page"]["color_scheme"] == "dark"
    assert paper == ("rgb(20, 24, 31)" if is_dark else "rgb(255, 255, 255)")


def test_spans_that_overlap_and_small_screens(browser, tmp_path):
    file = tmp_path / "saved.jsonl"
    with serving(Demo(pipeline("crf_spancat"), None, file)) as server:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.get_by_role("heading", name="Try pipeline").wait_for()
        page.get_by_label("Text").fill(TEXT)
        page.get_by_role("button", name="Find").click()
        page.get_by_role("button", name="New, FIRST").click()
        page.get_by_role("heading", name="crf_spancat: 'New' as FIRST").wait_for()
        assert page.locator(".context").inner_text() == TEXT
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.get_by_role("button", name="remove").click()
        page.get_by_label("words to mark").fill("York")
        page.get_by_label("as", exact=True).fill("LAST")
        page.get_by_role("button", name="mark", exact=True).click()
        expected = [("Ann", "FIRST"), ("Ann Lee", "PER"), ("New York", "GPE"), ("York", "LAST")]
        assert sorted(saved(page, file)) == expected
        page.close()


def test_the_page_says_what_to_do_and_labels_differ_in_colour(page):
    page.get_by_label("Text").fill("  ")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("Type a text first.").wait_for()
    find(page)
    assert page.get_by_text("Choose a mark to see why. Select words").count() == 1
    colours = [mark.evaluate("one => getComputedStyle(one).borderBottomColor") for mark in page.locator("mark").all()]
    assert len({*colours}) == len(colours) == 2


def test_a_refusal_is_shown(page, nlp, monkeypatch):
    page.get_by_label("Text").fill("x" * 50)
    monkeypatch.setattr(nlp, "max_length", 10)
    page.get_by_role("button", name="Find").click()
    page.get_by_text("CRF878").wait_for()
