"""The pictures of the web UI in docs/images, taken again from a running service by a real browser.

    python scripts/pictures.py            # all pages; desktop and phone, light and dark
    python scripts/pictures.py chat plan  # some of them

Starts `qserve up` with the demo's chat and reward model under a key, asks a few questions so that there is latency to
show, and takes each page at 1280 and 390 pixels. For the Train page a run of GRPO goes on meanwhile, whose rewards are
asked of that service.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.setup_browser import FLAGS, of_the_system

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
PAIRS = ROOT / "evals/qserve_demo/preferences.jsonl"
KEY = "sk-pictures"
SIZES = {"": 1280, "-narrow": 390}
HEIGHT = 800
PATIENCE_MS = 90_000
TRAINED_STEPS = 199
"""Of the run on the Train page, which is ended once it has its pictures."""
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def serving(folder: str) -> Iterator[str]:
    """The URL of a service of its own, whose runs are kept in `folder`."""
    ready = Path(folder, "ready.json")
    command = [sys.executable, "-m", "qserve", "up", "--model", "demo", "--reward", "demo", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--state-dir", folder, "--ready-file", str(ready)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "QSERVE_API_KEY": KEY},
    )
    try:
        until_s = time.monotonic() + 300
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError("qserve up does not start; `qserve up --model demo --reward demo` says why")
            time.sleep(0.2)
        yield str(json.loads(ready.read_text())["url"])
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def training(folder: str, url: str) -> Iterator[None]:
    """`qserve train grpo` over questions of the demo, in the service's store."""
    prompts, rules = Path(folder, "prompts.jsonl"), Path(folder, "rules.yaml")
    pairs = map(json.loads, PAIRS.read_text().splitlines())
    prompts.write_text("".join(json.dumps({"prompt": pair["prompt"]}) + "\n" for pair in pairs))
    rules.write_text("parts:\n  - {name: digits, rule: regex, pattern: '[0-9]'}\n")
    command = [
        sys.executable,
        "-m",
        "qserve",
        "train",
        "grpo",
        "--model",
        "demo",
        "--data",
        str(prompts),
        "--gpu",
        "none",
    ]
    command += ["--reward", url, "--reward", f"0.5={rules}", "--micro-batch", "8", "--max-steps", str(TRAINED_STEPS)]
    command += ["--completion-length", "12", "--max-length", "160", "--beta", "0", "--learning-rate", "1e-4"]
    command += ["--eval-steps", "20", "--save-steps", "1000", "--eval-share", "0.02", "--state-dir", folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "QSERVE_API_KEY": KEY})
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def chat(page: Page) -> None:
    """Four answers to one question, ranked; half are wrong, and the reward model finds the right one."""
    page.locator("#qs-settings > button").click()
    for field, value in (("temperature", "1.2"), ("seed", "1")):
        page.locator(f"#qs-{field} input").fill(value)
        page.locator(f"#qs-{field} input").press("Tab")
    page.locator("#qs-settings > button").click()
    page.locator("#qs-best-of input[type=number]").fill("4")
    page.locator("#qs-best-of input[type=number]").press("Tab")
    page.locator("#qs-question textarea").fill("What is 667 + 731?")
    page.locator("#qs-question textarea").press("Enter")
    expect(page.locator("#qs-bot-0 details.qs-other")).to_have_count(2)


def score(page: Page) -> None:
    """Two answers, and a file of pairs."""
    page.locator("#qs-score-prompt textarea").fill("What is 17 + 25?")
    for number, answer in enumerate(("42", "41"), start=1):
        page.locator(f"#qs-answer-{number} textarea").fill(answer)
    page.locator("#qs-score").click()
    expect(page.locator("#qs-score-result table")).to_be_visible()
    if not page.locator("#qs-score-run").is_visible():
        page.get_by_text("Score a file", exact=True).first.click()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pairs.jsonl")
        file.write_text("".join(PAIRS.read_text().splitlines(keepends=True)[:70]))
        page.locator("#qs-file input[type=file]").set_input_files(file)
        expect(page.locator("#qs-file")).to_contain_text(file.suffix)
        page.locator("#qs-score-run").click()
        expect(page.locator("#qs-file-result figure.chart rect").first).to_be_attached()


def memory(page: Page) -> None:
    """After what the other pages asked."""
    expect(page.locator(".chart:visible").first).to_be_visible()


def plan(page: Page) -> None:
    """A model that is too large, and what would help."""
    for field, value in (("model", "Qwen/Qwen3-32B"), ("gpu", "rtx-4090")):
        page.locator(f"#qs-plan-{field} input").fill(value)
        page.locator(f"#qs-plan-{field} input").press("Enter")
    page.locator("#qs-plan-context input").fill("32768")
    page.locator("#qs-plan-button").click()
    expect(page.locator("#qs-plan .qs-verdict.qs-no")).to_be_visible()


def train(page: Page) -> None:
    """A run that has come some way."""
    expect(page.locator("#qs-train-head")).to_contain_text(re.compile(rf"(1[2-9]|[2-9]\d|1\d\d) / {TRAINED_STEPS}"))
    expect(page.locator("#qs-train-rollouts td").first).to_be_visible()


PAGES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "chat": ("Chat", chat),
    "score": ("Score", score),
    "plan": ("Plan", plan),
    "memory": ("Memory & latency", memory),
    "train": ("Train", train),
}


def sign_in(context: BrowserContext, url: str) -> None:
    """Gives the profile the cookie of a session."""
    answer = context.request.post("/sign-in", form={"key": KEY}, headers={"origin": url}, max_redirects=0)
    if answer.status != 303:
        raise RuntimeError(f"no session: {answer.status} {answer.text()[:200]}")


def take(context: BrowserContext, name: str, suffix: str, width: int) -> None:
    """Both schemes of one page; the chat as the screen shows it, other pages whole."""
    tab, prepare = PAGES[name]
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": HEIGHT})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.goto("/?__theme=light")
    page.get_by_role("tab", name=tab).click()
    prepare(page)
    for scheme in ("", "-dark"):
        page.mouse.move(0, 0)
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(1000)  # colours fade
        page.screenshot(path=IMAGES / f"ui-{name}{suffix}{scheme}.png", full_page=name != "chat")
        page.locator(".qs-theme").first.click()
    page.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)} [all]")
    names = parser.parse_args().pages or list(PAGES)
    if unknown := set(names) - set(PAGES):
        parser.error(f"no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = stack.enter_context(serving(folder))
        if "train" in names:
            stack.enter_context(training(folder, url))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=of_the_system(), args=list(FLAGS))
        context = browser.new_context(base_url=url, locale="en-US")
        context.set_default_timeout(PATIENCE_MS)
        sign_in(context, url)
        for name in names:
            for suffix, width in SIZES.items():
                take(context, name, suffix, width)
                print(IMAGES / f"ui-{name}{suffix}.png", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
