"""The UI as one ASGI application: Gradio at `/`, and `/health` for whoever watches it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from qserve.errors import MissingExtra
from qserve.ui.process.lean_import import lean_import
from qserve.ui.settings import UISettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["build_app"]

_MOST_UPLOADED = "64mb"


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
    from qserve.ui.process.head_script import HeadScript
    from qserve.ui.process.known_calls import KnownCalls
    from qserve.ui.process.queue_polling import PollingOnDemand
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
    return HeadScript(PollingOnDemand(KnownCalls(app, blocks), blocks), theme.script())
