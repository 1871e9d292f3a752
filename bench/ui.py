"""What the web UI costs: time until the page is usable, what it adds to the first token, and its memory.

    python bench/ui.py [--repeats 10]

Starts `qserve up --model demo --reward demo` and drives a headless chromium over it. The first token's delay is from
Enter to the first letter on the page, less what the API alone takes for the same question in the same minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.setup_browser import FLAGS, of_the_system

QUESTION = "Count from 1 to 30"
# In the page, so that nothing of the driver is in the figure: from the key to the first letter of an answer.
STOPWATCH = """() => new Promise((done) => {
    const box = document.querySelector("#qs-question textarea");
    const words = () => [...document.querySelectorAll("#qs-bot-0 [data-testid=bot] p")];
    const answers = () => words().filter((one) => one.textContent).length;
    const before = answers(), began = performance.now();
    new MutationObserver((_, watch) => {
        if (answers() > before) { watch.disconnect(); done(performance.now() - began); }
    }).observe(document.querySelector("#qs-bot-0"), { childList: true, subtree: true, characterData: true });
    document.querySelector("#qs-send").click();
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        ready = Path(folder, "ready.json")
        command = ["up", "--model", "demo", "--reward", "demo", "--port", "0", "--state-dir", folder]
        process = subprocess.Popen(
            [sys.executable, "-m", "qserve", *command, "--ready-file", str(ready)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )
        try:
            while not ready.exists():
                assert process.poll() is None, "qserve up ended"
                time.sleep(0.2)
            url = json.loads(ready.read_text())["url"]
            browser = playwright.chromium.launch(executable_path=of_the_system(), args=list(FLAGS))
            measure(browser, url, process.pid, repeats)
            browser.close()
        finally:
            process.terminate()
            process.wait(60)


def measure(browser: Browser, url: str, pid: int, repeats: int) -> None:
    first, page = opened(browser, url)
    print(f"first visit, the UI's process started by it: usable after {first:.1f} s")
    print(f"resident memory of the UI's process: {ui_memory(pid) / 1e6:.0f} MB")
    page.close()
    times = [opened(browser, url)[0] for _ in range(repeats)]
    print(
        f"opened again, nothing cached: {statistics.median(times):.2f} s median, {max(times):.2f} s worst of {repeats}"
    )
    _, page = opened(browser, url)
    added, alone, shown = [], [], []
    for _ in range(repeats):
        direct = api_ttft_ms(url)
        page.locator("#qs-question textarea").fill(QUESTION)
        seen = page.evaluate(STOPWATCH)
        page.wait_for_selector("#qs-send", state="visible")
        page.wait_for_function("document.querySelectorAll('.qs-writing').length === 0")
        page.locator("#qs-new").click()
        page.wait_for_function("document.querySelectorAll('#qs-bot-0 [data-testid=bot]').length === 0")
        alone.append(direct)
        shown.append(seen)
        added.append(seen - direct)
    print(
        f"first token: API {statistics.median(alone):.0f} ms, on the page {statistics.median(shown):.0f} ms, "
        f"added {statistics.median(added):.0f} ms median, {max(added):.0f} ms worst of {repeats}"
    )
    print(f"resident memory after {2 * repeats} visits and answers: {ui_memory(pid) / 1e6:.0f} MB")


def opened(browser: Browser, url: str) -> tuple[float, Page]:
    """Seconds until a question can be asked and the model's name is there, in a fresh profile."""
    page = browser.new_context(base_url=url, locale="en-US").new_page()
    page.set_default_timeout(120_000)
    began = time.perf_counter()
    page.goto("/")
    page.wait_for_function("document.querySelector('#qs-model input')?.value === 'demo'")
    return time.perf_counter() - began, page


def api_ttft_ms(url: str) -> float:
    """The same question asked of the API: from the request to the first piece of text."""
    body = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began, first = time.perf_counter(), 0.0
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not first and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                first = 1000 * (time.perf_counter() - began)
    return first


def ui_memory(pid: int) -> int:
    """Resident bytes of `python -m qserve.ui`."""
    (ui,) = [one for one in psutil.Process(pid).children(recursive=True) if "qserve.ui" in one.cmdline()]
    return ui.memory_info().rss


if __name__ == "__main__":
    main()
