"""The UI as one ASGI application: Gradio at `/`, and `/health` for whoever watches it."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qserve.errors import MissingExtra
from qserve.ui.settings import UISettings

__all__ = ["PollingOnDemand", "build_app", "lean_import"]

_MOST_UPLOADED = "64mb"
_MCP = "mcp"
_HEAD = b"<head>"
_IDLE_S = 0.1
_BUSY_S = 0.005
_BUSY_FOR_S = 10.0
_PROGRESS_S = 0.5  # nothing here uses Gradio's progress bars
_PRESENCE = ("/gradio_api/app_id", b"active")


def build_app(settings: UISettings) -> ASGIApp:
    """The application. It must be served with its lifespan on: Gradio starts its queue there.

    Raises MissingExtra without Gradio.
    """
    # Before the import: Gradio reads it then. It must call nobody but the API.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        with lean_import():
            import gradio as gr
    except ImportError as error:
        raise MissingExtra("gradio", "the web UI") from error
    from fastapi import FastAPI

    from qserve.ui import theme
    from qserve.ui.pages.frame import build_blocks
    from qserve.ui.process.known_calls import KnownCalls
    from qserve.ui.strings import i18n

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/health", lambda: {"status": "ok"})
    blocks = build_blocks(settings)
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        root_path=settings.root_path or None,
        theme=theme.theme(),
        css=theme.css(),
        i18n=i18n(),
        max_file_size=_MOST_UPLOADED,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        show_error=True,
    )
    return _WithHead(PollingOnDemand(KnownCalls(app, blocks), blocks), theme.head())


@contextmanager
def lean_import() -> Iterator[None]:
    """`with lean_import(): import gradio`: half the seconds before the first page, and 27 MB less. Everything is as
    before afterwards.

    Each time Gradio is imported it writes a type stub for every one of its components, and it takes the MCP server
    along where that package happens to be installed (vLLM brings it).
    """
    getfile, mcp = inspect.getfile, sys.modules.get(_MCP)

    def unless_gradios(thing: Any) -> str:
        # A component of no file is one whose stub Gradio leaves out (component_meta.py: create_or_modify_pyi).
        if str(getattr(thing, "__module__", "")).startswith("gradio."):
            raise OSError("no stubs")
        return getfile(thing)

    inspect.getfile = unless_gradios  # type: ignore[assignment]
    if mcp is None:
        sys.modules[_MCP] = None  # type: ignore[assignment]  # an ImportError for whoever asks, which Gradio expects
    try:
        yield
    finally:
        inspect.getfile = getfile
        if mcp is None:
            del sys.modules[_MCP]


class _WithHead:
    """ASGI middleware that puts `inserted` at the beginning of the page's head, before Gradio's own scripts:
    Gradio adds its `head` after those have run.
    """

    def __init__(self, app: ASGIApp, inserted: str) -> None:
        self._app = app
        self._inserted = _HEAD + inserted.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def send_with_head(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                page = body.replace(_HEAD, self._inserted, 1)
                headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
                await send({**start, "headers": [*headers, (b"content-length", str(len(page)).encode())]})
                await send({"type": "http.response.body", "body": page})

        # Unpacked: nothing can be put into a compressed page.
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        await self._app({**scope, "headers": headers}, receive, send_with_head)


class PollingOnDemand:
    """ASGI middleware: the queue is polled fast for some seconds after somebody was seen at a page, else slowly.

    The page says that somebody types or points before there is anything to do (`static/reconnect.js`), so a click waits
    for no slow poll. Gradio's own rate, a thousand times a second, takes 3 % of a core while idle. Gradio 6.31 has no
    option for it; its `Queue` reads these two attributes anew before every sleep. They are touched here and nowhere
    else, and a test holds that the tested release has them.
    """

    def __init__(self, app: ASGIApp, blocks: Any) -> None:
        """`blocks`: with their queue made."""
        self._app = app
        self._queue = blocks._queue
        self._slow_down: asyncio.TimerHandle | None = None
        self._queue.progress_update_sleep_when_free = _PROGRESS_S
        self._queue.sleep_when_free = _IDLE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"], scope["query_string"]) == _PRESENCE:
            self._hurry()
        await self._app(scope, receive, send)

    def _hurry(self) -> None:
        if self._slow_down is not None:
            self._slow_down.cancel()
        self._queue.sleep_when_free = _BUSY_S
        self._slow_down = asyncio.get_running_loop().call_later(_BUSY_FOR_S, self._rest)

    def _rest(self) -> None:
        self._queue.sleep_when_free = _IDLE_S
