"""The report in a browser: it fits, on a phone too; light, dark and on paper; nothing is fetched; axe finds nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from qserve.report import to_html
from tests.unit.report.made_up import a_full_report

LAYOUT = Path(__file__).with_name("layout.js")
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
RULES = "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'best-practice']}"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(to_html(a_full_report()))
    return path


@pytest.fixture(scope="module")
def shown(browser: Browser, file: Path) -> Iterator[Page]:
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.goto(f"file://{file}")
    yield page
    assert asked == [f"file://{file}"], "it asks for nothing but itself"
    context.close()


@pytest.mark.parametrize("width", [340, 390, 768, 1280])
def test_it_fits_and_nothing_covers_anything(shown: Page, width: int) -> None:
    """No element leaves the page, no label of a chart lies over another, no row is tall and empty."""
    shown.set_viewport_size({"width": width, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate(LAYOUT.read_text()) == {"outside": [], "covered": [], "white": []}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(shown: Page, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core: npm is missing, or could not get it; make setup tries to")
    shown.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    shown.evaluate(AXE.read_text())
    found = shown.evaluate(f"axe.run(document, {RULES})")["violations"]
    assert not [(one["id"], one["help"], json.dumps(one["nodes"])[:400]) for one in found]


def test_dark_is_dark_and_light_is_light(shown: Page) -> None:
    def brightness(scheme: str) -> int:
        shown.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        colour = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    assert brightness("dark") < 150 < 700 < brightness("light")


def test_on_paper_it_is_light_and_what_only_a_screen_can_use_is_gone(shown: Page) -> None:
    shown.emulate_media(media="print", color_scheme="dark")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.locator("nav").is_visible()
    shown.set_viewport_size({"width": 702, "height": 1000})  # A4 less its margins
    assert shown.evaluate("document.documentElement.scrollWidth") <= 702, "paper does not scroll"
    assert shown.pdf(format="A4").startswith(b"%PDF")
    shown.emulate_media(media="screen")
