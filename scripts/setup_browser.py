"""Finds a browser for tests/browser, or gets one, and axe-core for its accessibility tests.

    .venv/bin/python scripts/setup_browser.py .venv

The system's Chromium or Chrome; else Debian's package where we are root and apt is there; else Playwright's own
download. FOLDER/browser then holds its path, or the reason why there is none, which the tests tell. Nothing here fails
the set-up: everything but tests/browser works without a browser.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# No sandbox: its user namespaces are not to be had in containers, and the tests open our own pages only. The others
# keep it from talking to its maker.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
NONE = "none: "
_LONGEST_S = 300
_AXE = Path(__file__).parents[1] / "tests" / "browser"


def of_the_system() -> str | None:
    """A browser that is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def of_debian() -> str | None:
    """Debian's package. Ubuntu's of that name is a note that points to its store; `works` finds that out."""
    if os.geteuid() or shutil.which("apt-get") is None:
        return None
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=2"]
    install = [*apt, "install", "-y", "--no-install-recommends", "chromium"]
    # The lists of packages may be missing, or too old to fetch from.
    if not _runs(install) and not (_runs([*apt, "update"]) and _runs(install)):
        return None
    return of_the_system()


def of_playwright() -> str | None:
    """Playwright's own. The libraries that it needs must be there already."""
    if not _runs([sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]):
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


def works(path: str) -> bool:
    """Whether it starts and shows a page."""
    from playwright.sync_api import Error, sync_playwright

    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
            browser.new_page().goto("about:blank")
            browser.close()
    except Error as error:
        print(f"{path} does not start: {error.message}")
        return False
    return True


def _runs(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, env=environment, timeout=_LONGEST_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error)
        return False


def _get_axe() -> None:
    if shutil.which("npm") is None or not _runs(
        ["npm", "ci", "--prefix", str(_AXE), "--ignore-scripts", "--no-audit", "--no-fund"]
    ):
        print("axe-core is not there: npm is missing or did not get it; the accessibility tests will say so")


def main() -> None:
    """Everything that the tools say goes to standard output; the result is the file."""
    kinds: tuple[Callable[[], str | None], ...] = (of_the_system, of_debian, of_playwright)
    found = next((path for kind in kinds if (path := kind()) and works(path)), None)
    why = f"{NONE}no Chromium or Chrome is installed, and neither apt nor Playwright could get one"
    Path(sys.argv[1], "browser").write_text(found or why)
    _get_axe()


if __name__ == "__main__":
    main()
