"""Answers that attack their reader: kept in the browser, drawn by the real page, watched by a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import PATIENCE_MS, keep_conversation
from tests.browser.hostile_answers import CORPUS, EVIL

expect.set_options(timeout=PATIENCE_MS)
FORBIDDEN = (
    "form, input, textarea, select, dialog, iframe, object, embed, video, audio, style, link, meta, base, script"
)


@pytest.fixture(scope="module")
def seen(browser, stack) -> tuple[Page, list[str]]:
    """The page with one turn for each of the corpus, and every address that was asked for meanwhile."""
    context = browser.new_context(base_url=stack.url, locale="en-US", viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    stack.sign_in(context)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.goto("/")
    page.wait_for_selector("gradio-app button", state="visible")
    keep_conversation(page, [(name, [[answer]]) for name, answer in CORPUS.items()])
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(len(CORPUS))
    expect(page.locator("#qs-bot-0 .katex").first).to_be_attached()
    page.wait_for_timeout(500)  # what would be loaded would be asked for by now
    yield page, asked
    context.close()


def test_nothing_is_asked_of_anybody(seen: tuple[Page, list[str]], stack) -> None:
    _, asked = seen
    assert [url for url in asked if not url.startswith((stack.url, "data:", "blob:"))] == []
    assert EVIL not in "".join(asked)


def test_nothing_runs_and_nothing_can_be_filled_in(seen: tuple[Page, list[str]]) -> None:
    page, _ = seen
    assert page.evaluate("window.broken") is None
    messages = page.locator("#qs-bot-0 .message-content")
    assert messages.locator(FORBIDDEN).count() == 0
    assert messages.locator("button:not(.qs-copy):not(.qs-copy-code)").count() == 0
    assert messages.locator(".mermaid, .qs-gone, .qs-notice, [onerror], [onload]").count() == 0
    links = messages.locator("a").evaluate_all("all => all.map(a => [a.protocol, a.target, a.rel])")
    assert links and all(
        protocol in ("http:", "https:") and target == "_blank" and "noopener" in rel for protocol, target, rel in links
    )
    assert messages.locator("[style]:not(.katex *)").count() == 0, "only formulas are styled, by KaTeX"


def test_nothing_is_covered(seen: tuple[Page, list[str]]) -> None:
    """Each control is what lies at its own middle, wherever the conversation is scrolled to."""
    page, _ = seen
    page.locator("#qs-bot-0 [role=log]").evaluate("area => { area.qsFollows = false; }")
    covered = page.evaluate(
        """async () => {
            const area = document.querySelector("#qs-bot-0 [role=log]");
            const controls = ["#qs-send", "#qs-question textarea", "#qs-new", ".qs-theme", "#qs-model input"];
            const found = [];
            for (let top = 0; top <= area.scrollHeight; top += area.clientHeight / 2) {
                area.scrollTop = top;
                await new Promise(requestAnimationFrame);
                for (const name of controls) {
                    const control = document.querySelector(name), box = control.getBoundingClientRect();
                    const there = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
                    if (!control.contains(there) && !there?.contains(control)) found.push([top, name]);
                }
            }
            return found;
        }"""
    )
    assert covered == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0, "an answer widens the page"


def test_every_text_survives(seen: tuple[Page, list[str]]) -> None:
    page, _ = seen
    rows = page.locator("#qs-bot-0 .message-row.bot-row")
    shown = dict(zip(CORPUS, rows.evaluate_all("all => all.map(one => one.textContent)"), strict=True))
    assert [name for name, text in shown.items() if "SURVIVES" not in text] == []
    assert "if a<b and c>d: SURVIVES" in shown["comparison"]
    assert "a List<String> of Map<K, V> SURVIVES" in shown["generic"]
    assert "it costs $5 and SURVIVES $6" in shown["prices"]
    assert "%%%LATEX_BLOCK_0%%% SURVIVES" in shown["placeholder"]
    assert f"a chart ({EVIL})" in shown["markdown image"]
    assert 'style="position:fixed;inset:0;z-index:99999;background:red"' in shown["cover"]


def test_the_browser_is_told_to_load_nothing_from_elsewhere(signed_in: BrowserContext) -> None:
    headers = signed_in.request.get("/", headers={"accept": "text/html"}).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["img-src"] == "'self' data:"
    assert policy["default-src"] == "'self'" and policy["form-action"] == "'self'"
    assert headers["x-dns-prefetch-control"] == "off"
