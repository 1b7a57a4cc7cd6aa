"""Pages of the documentation site in a browser: offline, on a screen and on a phone."""

from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "site"
SCREENS = {"screen": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
pytestmark = pytest.mark.skipif(not SITE.exists(), reason="the site is not built: python -m spacy project run site")


@pytest.fixture(params=SCREENS)
def page(browser, request):
    """An empty one, once it has been seen to that nothing goes wrong or asks for the network."""
    context = browser.new_context(offline=True, viewport=SCREENS[request.param])
    opened, requests, problems = context.new_page(), [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("requestfailed", lambda request: problems.append(f"{request.url} failed"))
    yield opened
    assert requests and all(url.startswith(("file:", "data:")) for url in requests) and not problems
    context.close()


def is_as_wide_as_the_screen(page):
    """What is wider than a phone, such as tables, is scrolled by itself."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_first_page_shows_what_there_is(page):
    page.goto((SITE / "index.html").as_uri())
    assert page.get_by_role("heading", level=1).first.inner_text().startswith("spacy_crf")
    [picture] = page.get_by_role("img", name="The beginning of a report").all()
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    assert is_as_wide_as_the_screen(page)


def test_the_first_page_leads_to_the_first_steps(page):
    page.goto((SITE / "index.html").as_uri())
    page.get_by_role("main").get_by_role("link", name="start in five minutes").first.click()
    page.wait_for_url("**/start.html")
    assert page.get_by_role("heading", level=1).inner_text().startswith("Start in five minutes")
    assert any("spacy train" in text for text in page.locator("pre").all_inner_texts())
    assert is_as_wide_as_the_screen(page)


@pytest.mark.parametrize("name", ["index", "start", "choose"])
def test_commands_are_whole(page, name):
    page.goto((SITE / f"{name}.html").as_uri())
    commands = page.locator(".highlight-bash pre")
    assert commands.count() and commands.evaluate_all("all => all.every(each => each.scrollWidth <= each.clientWidth)")
