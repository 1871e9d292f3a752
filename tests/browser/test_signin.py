"""The key is asked for once, in the browser's language; nothing is shown before, and nothing can be forged after."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, Page, expect


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def usable(page: Page) -> None:
    page.wait_for_selector("gradio-app button", state="visible")


def test_the_right_key_opens_the_page_and_is_kept_nowhere(visitor: BrowserContext, stack) -> None:
    page = visitor.new_page()
    page.goto("/")
    sign_in(page, stack.key)
    usable(page)
    (cookie,) = visitor.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie["expires"] > 0
    assert stack.key not in cookie["value"]
    assert stack.key not in page.content()
    assert stack.key not in page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    page.reload()
    usable(page)
    logs = "".join(file.read_text() for file in stack.run_folder.iterdir() if file.is_file())
    assert stack.key not in logs and cookie["value"] not in logs


def test_a_wrong_key_is_told_and_the_form_stays(visitor: BrowserContext, stack) -> None:
    page = visitor.new_page()
    page.goto("/")
    sign_in(page, "sk-guess")
    expect(page.get_by_role("alert")).to_have_text("This key is not valid on this server.")
    expect(page.get_by_label("API key")).to_be_focused()
    assert not visitor.cookies()
    assert "sk-guess" not in page.content()
    sign_in(page, stack.key)
    usable(page)


def test_the_page_speaks_the_browsers_language(browser, stack) -> None:
    context = browser.new_context(base_url=stack.url, locale="zh-CN")
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_role("heading", name="登录")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "zh"
    context.close()


@pytest.mark.parametrize(
    "path",
    ["/theme.css", "/assets/x.js", "/gradio_api/app_id", "/gradio_api/queue/data?session_hash=x", "/gradio_api/info"],
)
def test_nothing_of_the_page_is_shown_before(visitor: BrowserContext, path: str) -> None:
    answer = visitor.request.get(path)
    assert answer.status == 401
    assert answer.headers["content-type"] == "application/json"


def test_after_signing_out_the_cookie_opens_nothing(signed_in: BrowserContext, stack) -> None:
    (cookie,) = signed_in.cookies()
    assert signed_in.request.get("/gradio_api/app_id").status == 200
    signed_in.request.post("/sign-out", headers={"origin": stack.url}, max_redirects=0)
    assert not signed_in.cookies()
    stolen = {"cookie": f"{cookie['name']}={cookie['value']}"}
    assert signed_in.request.get("/gradio_api/app_id", headers=stolen).status == 401


@pytest.fixture
def trap(profile: BrowserContext, stack) -> Page:
    """A signed-in browser on a page of another site, for a browser that is; its HTML is for the test to write."""
    stack.sign_in(profile)
    page = profile.new_page()
    elsewhere = stack.url.replace("127.0.0.1", "localhost")
    html = (
        f'<form method="post" action="{stack.url}/sign-out"><button>win</button></form><a href="{stack.url}/">open</a>'
    )
    page.route(f"{elsewhere}/trap", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"{elsewhere}/trap")
    return page


def test_the_page_offers_to_sign_out(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


def test_another_sites_page_can_do_nothing_with_the_session(trap: Page, stack) -> None:
    with trap.expect_response(f"{stack.url}/sign-out") as answer:
        trap.get_by_role("button").click()
    assert answer.value.status == 403
    assert trap.context.request.get("/gradio_api/app_id").status == 200, "still signed in"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {},
    ],
)
def test_a_forged_post_is_refused(signed_in: BrowserContext, headers: dict[str, str]) -> None:
    answer = signed_in.request.post("/gradio_api/queue/join", data={"data": []}, headers=headers)
    assert answer.status == 403
    assert answer.json()["error"]["code"] == "cross_site"


def test_a_link_from_elsewhere_finds_the_session(trap: Page, stack) -> None:
    """The browser keeps a strict cookie to itself after such a link; the page asks again from its own side."""
    trap.get_by_role("link").click()
    usable(trap)
    assert trap.url.startswith(f"{stack.url}/")


def test_the_report_of_the_run_opens_for_who_has_signed_in(visitor: BrowserContext, stack) -> None:
    page = visitor.new_page()
    answer = page.goto("/report")
    assert answer is not None and answer.status == 401
    stack.sign_in(visitor)
    answer = page.goto("/report")
    assert answer is not None and answer.status == 200
    assert page.get_by_role("heading", level=1).text_content() == "demo and demo-reward"
