"""The plan page in a browser: the planner's own answer as a picture, and the line to copy."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def page(page: Page) -> Page:
    page.get_by_role("tab", name="Plan").click()
    expect(page.locator("#qs-plan-button")).to_be_visible()
    return page


def choose(page: Page, field: str, value: str) -> None:
    page.locator(f"#qs-plan-{field} input").fill(value)
    page.locator(f"#qs-plan-{field} input").press("Enter")


def test_what_fits_is_drawn_with_its_command(page: Page) -> None:
    choose(page, "quant", "4bit")
    page.locator("#qs-plan-button").click()
    plan = page.locator("#qs-plan")
    expect(plan.locator(".qs-verdict.qs-yes")).to_contain_text("It fits")
    expect(plan.get_by_text(re.compile(r"Speed at concurrency 1: 1000 \+ 300 tokens"))).to_be_visible()
    first = plan.locator(".qs-tiles").last.locator("div").first
    expect(first.locator("b")).to_have_text(re.compile(r"^[\d.,]+ ms$"))
    expect(first.locator("span")).to_have_text(re.compile(r"^TTFT \(.* – .*\)$"))
    expect(plan.locator(".qs-notes")).to_contain_text("this card was not measured")
    expect(plan.locator(".bar-track")).to_have_attribute("aria-label", re.compile("NVIDIA GeForce RTX 4090: weights"))
    command = "qserve up --model Qwen/Qwen3-32B --quant 4bit"
    expect(plan.locator(".qs-command code").last).to_have_text(command)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    plan.locator(".qs-copy-text").last.click()
    expect(plan.locator(".qs-copy-text").last).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == command


def test_what_does_not_fit_comes_with_ways_out(page: Page) -> None:
    choose(page, "quant", "bf16")
    page.locator("#qs-plan-context input").fill("32,768")
    page.locator("#qs-plan-button").click()
    expect(page.locator("#qs-plan .qs-verdict.qs-no")).to_contain_text("It does not fit")
    expect(page.locator("#qs-plan .qs-suggestions li").first).to_contain_text("qserve")
    expect(page.locator("#qs-plan .beyond")).to_have_count(1)
    cards = page.locator("#qs-plan .qs-suggestions li").filter(has_text="× NVIDIA")
    cards.locator(".qs-apply").click()
    expect(page.locator("#qs-plan .qs-verdict.qs-yes")).to_be_visible()
    expect(page.locator("#qs-plan-gpu input")).to_have_value(re.compile(r"rtx-4090:\d"))


def test_the_planners_refusal_is_a_sentence(page: Page) -> None:
    page.locator("#qs-plan-context input").fill("9999999")
    page.locator("#qs-plan-button").click()
    failure = page.locator("#qs-plan .qs-error")
    expect(failure).to_contain_text("--max-model-len 9999999")
    expect(failure).not_to_contain_text("Traceback")


def test_the_list_of_a_field_closes_when_the_focus_moves_on(page: Page) -> None:
    """Gradio leaves it open over the fields below, where it takes their clicks."""
    page.locator("#qs-plan-model input").click()
    options = page.locator("#qs-plan-model li[role=option]:visible")
    expect(options).not_to_have_count(0)
    page.keyboard.type("Own-8B")
    page.locator("#qs-plan-other textarea").focus()
    expect(options).to_have_count(0)
    page.locator("#qs-plan-other textarea").click()


def test_layouts_of_a_load_are_drawn_for_a_screen_and_for_a_phone(page: Page) -> None:
    choose(page, "gpu", "h100:4")
    page.locator("#qs-plan-other textarea, #qs-plan-other input").first.fill("--rps 6 --ttft 1s")
    page.locator("#qs-plan-button").click()
    plan = page.locator("#qs-plan")
    expect(plan.get_by_text("Speed at 6 requests/s: 1000 + 300 tokens")).to_be_visible()
    chart, bar = plan.locator(".chart").first, plan.locator(".bar-track").first
    for width, shown, hidden in ((1280, "wide", "narrow"), (820, "narrow", "wide"), (390, "narrow", "wide")):
        page.set_viewport_size({"width": width, "height": 900})
        expect(plan.locator(f".scatter .{shown}")).to_be_visible()
        expect(plan.locator(f".scatter .{hidden}")).to_be_hidden()
        its, whole = (one.evaluate("one => one.getBoundingClientRect().width") for one in (bar, chart))
        assert its == whole, "in a column a bar is below its label"
