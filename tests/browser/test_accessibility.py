"""axe-core finds nothing serious or critical: on the four pages, light and dark, and on the pages around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.conftest import keep_conversation

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
SHOWN = (
    "<think>first this</think># Title\n\n```python\ndef f(a):  # why\n    return a + 1, 'x'\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n![chart](http://elsewhere.example/a.png), $x^2$, "
    "[a link](http://elsewhere.example)\n\n> quote"
)
TABS = ("Chat", "Score", "Memory & latency", "Plan")


def serious(page: Page) -> list[str]:
    """What axe-core holds against the page as it is shown: rule, and the elements."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {json.dumps(node['target'])} {node['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.fixture(autouse=True, scope="module")
def _axe() -> None:
    if not AXE.exists():
        pytest.skip("no axe-core: npm is missing, or could not get it; make setup tries to")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_four_pages(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"/?__theme={scheme}")
    page.wait_for_selector("gradio-app button", state="visible")
    keep_conversation(page, [("Show me", [[SHOWN, "another"]])])
    found = []
    for name in TABS:
        page.get_by_role("tab", name=name, exact=True).click()
        page.get_by_role("tabpanel").locator("visible=true").first.wait_for()
        page.wait_for_timeout(500)  # colours fade in
        found += [f"{name}: {one}" for one in serious(page)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sign_in_page(visitor: BrowserContext, stack, scheme: str) -> None:
    page = visitor.new_page()
    page.emulate_media(color_scheme=scheme)
    page.goto("/")
    page.get_by_label("API key").fill("sk-wrong")
    page.get_by_role("button").click()
    page.get_by_role("alert").wait_for()
    stack.sign_in(visitor)  # the right key: wrong ones before it are forgiven, and slow nobody down
    assert not serious(page)
