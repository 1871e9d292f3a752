"""The UI as one ASGI application: Gradio at `/`, and `/health` for whoever watches it."""

from __future__ import annotations

import os

from starlette.types import ASGIApp

from qserve.errors import MissingExtra
from qserve.ui.settings import UISettings

__all__ = ["build_app"]


def build_app(settings: UISettings) -> ASGIApp:
    """The application. It must be served with its lifespan on: Gradio starts its queue there.

    Raises MissingExtra without Gradio.
    """
    # Before the import: Gradio reads them then. It must call nobody but the API.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio
    except ImportError as error:
        raise MissingExtra("gradio", "ui", "the web UI") from error
    from fastapi import FastAPI

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/health", lambda: {"status": "ok"})
    with gradio.Blocks(title="qserve", analytics_enabled=False) as page:
        gradio.Markdown("# qserve")
    gradio.mount_gradio_app(
        app,
        page,
        path="/",
        root_path=settings.root_path or None,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
    )
    return app
