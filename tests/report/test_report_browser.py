"""The report in a browser, as its reader has it: offline, by keyboard, in light and dark, without JavaScript."""

import pytest
from spacy.tokens import Doc
from spacy.vocab import Vocab

import spacy_crf
from spacy_crf.report.cases import judge
from spacy_crf.report.page import render
from tests.pipeline.test_probabilities import trained
from tests.util import NER_TEXTS, ner_examples


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with more mistakes than are shown at once."""
    nlp = trained(iterations=4)
    wrong = [text.replace("(PER)", "(ORG)") for text in NER_TEXTS]
    examples = ner_examples(nlp, [text for text in (*NER_TEXTS, *wrong) for _ in range(6)])
    (judged,) = judge(nlp, [nlp.get_pipe("crf_ner")], examples)
    assert len(judged.errors) > 25
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render("A report", [judged._replace(training=ner_examples(nlp))]), encoding="utf8")
    return path, judged


@pytest.fixture
def page(browser, report, request):
    """The report, once it has been seen to that nothing goes wrong or asks for the network."""
    context = browser.new_context(offline=True, **getattr(request, "param", {}))
    opened, requests, problems = context.new_page(), [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.goto(report[0].as_uri())
    yield opened
    assert requests == [report[0].as_uri()] and not problems
    context.close()


def shown(page):
    return page.get_by_role("list", name="Mistakes of crf_ner").get_by_role("listitem")


def test_mistakes_are_filtered_and_paged(page, report):
    errors = report[1].errors
    assert shown(page).count() == 25
    assert page.get_by_role("status").inner_text().strip() == f"1 to 25 of {len(errors)}"
    page.get_by_role("button", name="next").click()
    assert page.get_by_role("status").inner_text().strip() == f"26 to {min(50, len(errors))} of {len(errors)}"
    page.get_by_label("kind").select_option("wrong label")
    n = sum(case.kind == "label" for case in errors)
    assert page.get_by_role("status").inner_text().strip() == f"1 to {min(n, 25)} of {n}"
    page.get_by_role("searchbox", name="words").fill("carla")
    texts = shown(page).all_inner_texts()
    assert texts and all("Carla Diaz" in text and "annotated ORG" in text and "found PER" in text for text in texts)
    page.get_by_role("searchbox", name="words").fill("nowhere")
    assert shown(page).count() == 0 and page.get_by_role("status").inner_text().strip() == "none"


def test_mistakes_are_ordered(page):
    def probabilities():
        texts = shown(page).all_inner_texts()
        return [float(text.rsplit("(", 1)[1].split(" ")[0]) for text in texts if "under" not in text]

    page.get_by_label("kind").select_option("wrong label")
    sure = probabilities()
    assert sure == sorted(sure, reverse=True)
    page.get_by_label("order").select_option("the least sure first")
    assert probabilities() == sorted(probabilities())


def test_why_opens_in_place(page):
    first = shown(page).first
    assert not first.get_by_role("table").is_visible()
    first.get_by_text("why", exact=True).click()
    assert first.get_by_role("columnheader").all_inner_texts() == ["word", "for", "against"]
    assert first.get_by_role("row").count() > 1


def test_everything_is_reached_by_keyboard(page):
    page.get_by_label("kind").focus()
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.type("rome")
    assert all("Rome" in text for text in shown(page).all_inner_texts())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert shown(page).first.get_by_role("table").is_visible()


def test_the_page_has_its_landmarks(page):
    assert page.get_by_role("main").count() == 1
    headings = page.get_by_role("heading").all_inner_texts()
    assert headings[:3] == ["A report", "crf_ner", "Scores"]
    assert page.get_by_role("img", name="F1 by label").is_visible()


@pytest.mark.parametrize("page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_accessibility(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    shown(page).first.get_by_text("why", exact=True).click()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_javascript_the_figures_are_there(page):
    assert page.get_by_role("row", name="all").count() >= 1
    assert "python -m spacy crf evaluate" in page.content()


def test_it_prints(page):
    page.emulate_media(media="print")
    assert not page.get_by_role("button", name="next").is_visible()
    assert page.get_by_role("img", name="F1 by label").is_visible()


@pytest.mark.parametrize("page", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_on_a_phone_captions_are_whole_and_charts_can_be_read(page):
    """What is wider than the screen, tables, is scrolled by itself; the words above it are not."""
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for region in page.locator(".wide").all():
        region.evaluate("region => region.scrollTo(region.scrollWidth, 0)")
    edges = page.locator("caption").evaluate_all("all => all.map(each => each.getBoundingClientRect())")
    assert len(edges) >= 3 and all(edge["left"] >= 0 and edge["right"] <= 390 for edge in edges)
    texts = page.locator("svg text")
    edges = texts.evaluate_all("all => all.map(each => each.getBoundingClientRect())")
    assert len(edges) > 20 and all(edge["left"] >= 0 and edge["right"] <= 390 for edge in edges)
    pixels = (
        "all => all.map(each => each.ownerSVGElement.getScreenCTM().d * parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(texts.evaluate_all(pixels)) >= 11


def test_marked_texts_fit_small_screens(browser, tmp_path):
    """Marks broke in two."""
    doc = Doc(
        Vocab(), words=["Somebody", "met", "Zoe", "in", "Wolfsburg"] * 6, ents=["B-PERSON", *["O"] * 3, "B-CITY"] * 6
    )
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    (tmp_path / "page.html").write_text(spacy_crf.render(doc, page=True, title="Found"), encoding="utf8")
    opened.goto((tmp_path / "page.html").as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    for mark in opened.locator("mark").all():
        assert mark.evaluate("one => one.getClientRects().length") == 1
    opened.close()
