"""The real stack (demo chat and reward models, gateway, UI) under a key, and a real browser.

One stack and one browser for all files, ended with the last of them (tests/shared.py): a browser that is driven keeps
an event loop running in its thread, which asyncio's own tests in other folders would stumble over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

from scripts.setup_browser import FLAGS, NONE, of_the_system

KEY = "sk-browser-7d21"
PATIENCE_MS = 90_000
"""What takes a moment here may take a minute on a busy machine."""


@dataclass
class Stack:
    """A running `qserve up`."""

    url: str
    key: str
    run_folder: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    def pid(self, module: str) -> int | None:
        """The process id of `python -m MODULE`, a worker; None while there is none."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if module in child.cmdline():
                    return child.pid
            except psutil.Error:  # it ended between being listed and being asked
                continue
        return None

    def sign_in(self, context: BrowserContext) -> None:
        """Gives a browser's profile the cookie of a new session."""
        form, headers = {"key": self.key}, {"origin": self.url}
        answer = context.request.post("/sign-in", form=form, headers=headers, max_redirects=0)
        assert answer.status == 303, answer.text()

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits; the bound keeps a broken promise from hanging the test."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not holds():
            assert time.monotonic() < deadline, "it did not come about"
            assert self.process.poll() is None, "qserve up ended"
            time.sleep(0.05)


@pytest.fixture(scope="session")
def browser_path() -> str:
    """As `make setup` found it, or else as it lies here; without one everything that asks for it is skipped."""
    told = Path(sys.prefix, "browser")
    path = told.read_text().strip() if told.exists() else of_the_system() or f"{NONE}make setup looks for one"
    if path.startswith(NONE):
        pytest.skip(f"no browser: {path.removeprefix(NONE)}")
    return path


@pytest.fixture(scope="session")
def stack(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("browser-stack")
    ready = folder / "ready.json"
    command = [
        str(Path(sys.executable).with_name("qserve")),
        "up",
        "--model",
        "demo",
        "--reward",
        "demo",
        "--port",
        "0",
        "--state-dir",
        str(folder),
        "--ready-file",
        str(ready),
    ]
    with (folder / "up.log").open("wb") as log:
        environment = {**os.environ, "QSERVE_API_KEY": KEY, "OMP_NUM_THREADS": "2"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    deadline = time.monotonic() + 300
    try:
        while not ready.exists():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "up.log").read_text()
            time.sleep(0.1)
        told = json.loads(ready.read_text())
        yield Stack(told["url"], KEY, Path(told["run_folder"]), process)
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture(scope="session")
def browser(browser_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Profile:
    """A browser's profile, and a tab of it that stays open; `forget` leaves but what the network cache holds."""

    context: BrowserContext
    blank: Page
    url: str

    def forget(self) -> None:
        for page in self.context.pages:
            if page is not self.blank:
                page.close()
        self.context.clear_cookies()
        self.context.clear_permissions()
        session = self.context.new_cdp_session(self.blank)
        for origin in (self.url, self.url.replace("127.0.0.1", "localhost")):
            session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        session.detach()


@pytest.fixture(scope="session")
def kept_profile(stack: Stack, browser: Browser) -> Iterator[Profile]:
    """For all tests: a new one compiles the page's scripts anew, for a second each time."""
    context = browser.new_context(base_url=stack.url, locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    context.set_default_navigation_timeout(PATIENCE_MS)
    yield Profile(context, context.new_page(), stack.url)
    context.close()


@pytest.fixture
def profile(kept_profile: Profile) -> Iterator[BrowserContext]:
    """A browser profile that knows nothing of what was done in it before."""
    yield kept_profile.context
    kept_profile.forget()


@pytest.fixture
def visitor(stack: Stack, profile: BrowserContext) -> Iterator[BrowserContext]:
    """The same, but what its pages ask for, they ask of the stack: a request to elsewhere fails the test."""
    foreign: list[str] = []
    own = urlsplit(stack.url).netloc

    def look(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and parts.netloc != own:
            foreign.append(request.url)

    profile.on("request", look)
    yield profile
    profile.remove_listener("request", look)
    assert not foreign, "requests that left for elsewhere"


@pytest.fixture
def signed_in(visitor: BrowserContext, stack: Stack) -> BrowserContext:
    """The same, with the session's cookie."""
    stack.sign_in(visitor)
    return visitor


@pytest.fixture
def page(signed_in: BrowserContext) -> Page:
    """The UI, loaded."""
    page = signed_in.new_page()
    page.goto("/")
    page.wait_for_selector("gradio-app button", state="visible")
    return page


def conversation_of(turns: Sequence[tuple[str, list[list[str]]]], id_: str = "0123456789ab") -> dict[str, Any]:
    """A conversation as the browser keeps it: of each turn the question, and the answers of each side."""

    def answers(texts: list[str]) -> list[dict[str, str]]:
        return [{"content": text, "finish_reason": "stop"} for text in texts]

    kept = [{"question": question, "sides": [answers(side) for side in sides]} for question, sides in turns]
    return {"version": 1, "title": turns[0][0], "id": id_, "created": 1.7e9, "system": "", "turns": kept}


def keep_conversation(page: Page, turns: Sequence[tuple[str, list[list[str]]]]) -> None:
    """As if it had been led in this tab, which is loaded anew with it."""
    page.evaluate(
        """kept => {
            localStorage.setItem("qserve.chat." + kept.id, JSON.stringify(kept));
            sessionStorage.setItem("qserve.current", kept.id);
        }""",
        conversation_of(turns),
    )
    page.reload()
    page.wait_for_selector("#qs-bot-0 [data-testid=user]")
