"""What breaks, breaks alone: a page says so in a sentence, and goes on when it is mended."""

from __future__ import annotations

import os
import signal

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import PATIENCE_MS

CHAT = "qserve.engines.transformers.worker"
UI = "qserve.ui"
expect.set_options(timeout=PATIENCE_MS)


def ask(page: Page, question: str) -> None:
    page.locator("#qs-question textarea").fill(question)
    page.locator("#qs-send").click()


def open_page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/")
    expect(page.locator("#qs-send")).to_be_visible()
    return page


def is_ready(context: BrowserContext, stack) -> bool:
    return context.request.get("/ready", headers={"authorization": f"Bearer {stack.key}"}).status == 200


def test_a_killed_chat_worker_is_told_in_a_sentence_and_comes_back(signed_in: BrowserContext, stack) -> None:
    page = open_page(signed_in)
    os.kill(stack.pid(CHAT), signal.SIGKILL)
    stack.until(lambda: not is_ready(signed_in, stack))
    ask(page, "What is 17 + 25?")
    told = page.locator("#qs-chat-error, .qs-error, .toast-body, [role=alert]").filter(has_text="demo")
    expect(told.first).to_be_visible()
    assert "Traceback" not in page.content()
    stack.until(lambda: is_ready(signed_in, stack))
    page.get_by_role("button", name="Try again").last.click()
    expect(page.get_by_text("42", exact=True).first).to_be_visible()
    expect(page.locator("#qs-bot-0 [data-testid=user]")).to_have_count(1)


def test_an_open_page_says_that_its_ui_is_gone(signed_in: BrowserContext) -> None:
    page = open_page(signed_in)
    page.route("**/gradio_api/app_id", lambda route: route.fulfill(status=503, body="{}"))
    told = page.get_by_role("alert").filter(has_text="is restarting")
    expect(told).to_be_visible()
    page.unroute("**/gradio_api/app_id")
    expect(told).to_have_count(0)
    page.route("**/gradio_api/app_id", lambda route: route.abort())
    told = page.get_by_role("alert").filter(has_text="No connection to qserve. Trying again…")
    expect(told).to_be_visible()
    page.unroute("**/gradio_api/app_id")
    expect(told).to_have_count(0)


def test_a_killed_ui_takes_nothing_with_it_and_its_page_goes_on(signed_in: BrowserContext, stack) -> None:
    page = open_page(signed_in)
    ask(page, "What is 17 + 25?")
    expect(page.get_by_text("42", exact=True).first).to_be_visible()
    page.evaluate("window.isTheOldPage = true")
    page.locator("#qs-question textarea").fill("What is 30 + 5?")
    first = stack.pid(UI)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    stack.until(lambda: signed_in.request.get("/gradio_api/app_id").status == 503)
    assert is_ready(signed_in, stack), "the models are not touched"
    seen = signed_in.request.get("/", headers={"accept": "text/html"})
    assert seen.status == 200 and "Traceback" not in seen.text()
    page.wait_for_function("!window.isTheOldPage")
    expect(page.get_by_role("log").first.get_by_text("17 + 25")).to_be_visible()
    expect(page.locator("#qs-question textarea")).to_have_value("What is 30 + 5?")  # nobody has sent it yet
    page.locator("#qs-send").click()
    expect(page.get_by_text("35", exact=True).first).to_be_visible()
    assert stack.pid(UI) not in (None, first)


def test_one_visitors_streams_are_closed_to_another(signed_in: BrowserContext, browser, stack) -> None:
    with signed_in.expect_event("request", lambda request: "/queue/data" in request.url) as asked:
        ask(open_page(signed_in), "What is 17 + 25?")
    other = browser.new_context(base_url=stack.url)
    stack.sign_in(other)
    answer = other.request.get(asked.value.url)
    assert (answer.status, answer.json()["error"]["code"]) == (403, "not_yours")
    other.close()
