"""Allowed routes of the UI. Gradio has some eighty routes; only these are needed by its pages.

Not here, for example: files by any path, uploads that nobody signed in for, its API and the documents of it, run
history, deep links, recordings, monitoring, proxying, and editing the program from the browser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SIGN_IN", "SIGN_OUT", "START", "UI_ROUTES", "UiRoute", "can_be_a_file", "ui_route"]

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
_MOST_PATH_CHARS = 1024
_MOST_NAME_BYTES = 255


@dataclass(frozen=True)
class UiRoute:
    """A route of the UI.

    Attributes:
        method: GET or POST; GET answers HEAD as well.
        path: a name in braces matches one segment; `{path}` at the end matches the rest.
        purpose: why the browser needs it.
    """

    method: str
    path: str
    purpose: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The regular expression that the whole path must match."""
        begin, brace, rest = self.path.partition("{")
        value = ".+" if rest == "path}" else "[A-Za-z0-9_-]{1,64}"
        return re.compile(re.escape(begin) + (value if brace else ""))


START = UiRoute("GET", "/", "the page, for browsers: a client that does not ask for HTML gets the API's 404")

UI_ROUTES: tuple[UiRoute, ...] = (
    START,
    UiRoute("GET", "/assets/{path}", "the page's scripts and styles"),
    UiRoute("GET", "/static/{path}", "fonts and images"),
    UiRoute("GET", "/theme.css", "colours"),
    UiRoute("GET", "/gradio_api/theme.css", "the same"),
    UiRoute("GET", "/favicon.ico", "the icon of the tab"),
    UiRoute("GET", "/manifest.json", "named by the page"),
    UiRoute("GET", "/gradio_api/app_id", "whether the UI was restarted since the page was loaded"),
    UiRoute("GET", "/gradio_api/heartbeat/{session}", "an open connection: the page is still there"),
    UiRoute("POST", "/gradio_api/queue/join", "something was clicked"),
    UiRoute("GET", "/gradio_api/queue/data", "its results, as a stream of events"),
    UiRoute("POST", "/gradio_api/cancel", "stop"),
    UiRoute("POST", "/gradio_api/reset", "stop"),
    UiRoute("POST", "/gradio_api/upload", "a file to score"),
    UiRoute("GET", "/gradio_api/upload_progress", "the progress of an upload"),
    UiRoute("GET", "/gradio_api/file={path}", "a file that was made for, or uploaded by, the same visitor"),
)

_PATTERNS = [(route, route.pattern) for route in UI_ROUTES]


def ui_route(method: str, path: str) -> UiRoute | None:
    """The route of a request; None if it is not the UI's."""
    method = "GET" if method == "HEAD" else method
    for route, pattern in _PATTERNS:
        if route.method == method and pattern.fullmatch(path):
            return route
    return None


def can_be_a_file(path: str) -> bool:
    """Whether all names are short enough for a file system: Gradio fails on longer ones."""
    return len(path) <= _MOST_PATH_CHARS and all(len(part.encode()) <= _MOST_NAME_BYTES for part in path.split("/"))
