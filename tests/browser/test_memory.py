"""The memory and latency page in a browser: what the API tells, as pictures and in numbers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def page(page: Page, stack) -> Page:
    """Opened after one answer was streamed."""
    headers = {"authorization": f"Bearer {stack.key}"}
    asked = {"model": "demo", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "stream": True}
    assert page.context.request.post("/v1/chat/completions", headers=headers, data=asked).ok
    page.get_by_role("tab", name="Memory").click()
    expect(page.locator("#qs-memory .qs-worker")).to_have_count(2)
    return page


def test_planned_and_measured_stand_beside_each_other(page: Page, stack) -> None:
    told = page.context.request.get("/v1/qserve/memory", headers={"authorization": f"Bearer {stack.key}"}).json()
    chat = next(one for one in told["data"] if one["worker"] == "chat")
    first = page.locator("#qs-memory .qs-worker").first
    expect(first.locator("h3")).to_have_text("demo")
    bars = first.locator(".bar-track")
    expect(bars).to_have_count(2)
    expect(bars.nth(0)).to_have_attribute("aria-label", re.compile("planned: weights .* KV cache .* runtime"))
    expect(bars.nth(1)).to_have_attribute("aria-label", re.compile("measured: weights .* KV cache"))
    styles = [str(bars.nth(0).locator("i").nth(index).get_attribute("style")) for index in range(4)]
    widths = [float(style.rpartition("width:")[2].removesuffix("%")) for style in styles]
    device = chat["planned"]["devices"][0]
    terms = [device[f"{term}_bytes"] for term in ("weights", "kv_cache", "activations", "runtime")]
    # The longer of the two bars is as wide as the page.
    shares = [100 * width / sum(widths) for width in widths]
    assert shares == pytest.approx([100 * term / sum(terms) for term in terms], abs=0.02)
    row = first.locator("tbody tr").filter(has_text="KV cache").locator("td")
    assert row.nth(1).inner_text() == "128 MiB" and row.nth(2).inner_text() == "128.1 MiB"
    assert row.nth(4).inner_text() == chat["memory"]["sources"]["kv_cache_bytes"]


def test_latencies_are_drawn_with_their_percentiles_and_live_figures_follow(page: Page) -> None:
    first = page.locator("#qs-latency figure.chart").first
    expect(first.locator("figcaption")).to_have_text("Time to first token · demo requests")
    expect(first.locator("rect").first).to_be_attached()
    assert first.locator(".ys").evaluate("one => one.offsetWidth") < 40, "four in a row: as wide as its numbers"
    measured = page.locator("#qs-latency table").last  # planned ones stand above, once enough answers were streamed
    row = measured.locator("tbody tr").filter(has_text="Time to first token").locator("td")
    assert int(row.nth(1).inner_text().replace(",", "")) >= 1
    assert all(re.fullmatch(r"([<>] )?[\d.]+ m?s", row.nth(column).inner_text()) for column in range(2, 6))
    expect(page.locator("#qs-live")).to_contain_text("KV cache in use (chat)")
    with page.expect_request(lambda request: "queue/join" in request.url):
        pass  # nobody clicked: the timer asked
    page.locator("#qs-follow input").uncheck()
    page.get_by_role("tab", name="Plan").click()
    expect(page.locator("#qs-plan-button")).to_be_visible()


def test_runs_are_listed_and_the_report_is_a_click_away(page: Page, stack) -> None:
    page.locator("#qs-runs-part > button").click()
    expect(page.locator("#qs-runs tbody tr").first).to_contain_text(stack.run_folder.name)
    with page.context.expect_page() as opened:
        page.locator("#qs-report").click()
    expect(opened.value.get_by_role("heading", level=1)).to_have_text("demo and demo-reward")
