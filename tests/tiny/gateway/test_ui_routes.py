"""Every route that Gradio has is either one that a page needs, on the gateway's list, or closed to everybody."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from qserve.gateway.web.routes import UI_ROUTES, ui_route

pytestmark = pytest.mark.skipif(find_spec("gradio") is None, reason="Gradio is not installed: run make setup")

# In a process of its own: Gradio leaves event loops behind.
WALK = """
import json
from qserve.ui.process.app import build_app
from qserve.ui.settings import UISettings

def walk(app, seen):
    if app is None or id(app) in seen:
        return
    seen.add(id(app))
    for route in getattr(app, "routes", ()):
        for method in getattr(route, "methods", None) or ():
            yield method, route.path
        yield from walk(getattr(route, "app", None), seen)
    yield from walk(getattr(app, "_app", None), seen)

print(json.dumps(list(walk(build_app(UISettings()), set()))))
"""


@pytest.fixture(scope="module")
def gradios(tmp_path_factory):
    """(method, path template) of all routes of the UI's application."""
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(tmp_path_factory.mktemp("files"))}
    done = subprocess.run([sys.executable, "-c", WALK], env=environment, capture_output=True, text=True, check=True)
    return {(method, path) for method, path in json.loads(done.stdout)} - {("GET", "/health"), ("HEAD", "/")}


def _example(template: str) -> str:
    """A path under the template."""
    return re.sub(r"{\w+(:path)?}", lambda found: "a/b.js" if found[1] else "abc", template)


def test_there_are_many(gradios):
    assert len(gradios) > 60, "the walk found them"
    assert ("GET", "/gradio_api/file={path_or_url:path}") in gradios


def test_what_passes_is_what_the_list_says(gradios):
    passing = {(ui_route(method, _example(path)), method) for method, path in gradios}
    named = {(route.method, route.path) for route, _ in passing if route is not None}
    assert named == {(route.method, route.path) for route in UI_ROUTES}, "the list has routes that Gradio has not"
    open_templates = {path for method, path in gradios if ui_route(method, _example(path))}
    assert open_templates == {
        "/",
        "/assets/{path:path}",
        "/static/{path:path}",
        "/theme.css",
        "/gradio_api/theme.css",
        "/favicon.ico",
        "/manifest.json",
        "/gradio_api/app_id",
        "/gradio_api/heartbeat/{session_hash}",
        "/gradio_api/queue/join",
        "/gradio_api/queue/data",
        "/gradio_api/cancel",
        "/gradio_api/reset",
        "/gradio_api/upload",
        "/gradio_api/upload_progress",
        "/gradio_api/file={path_or_url:path}",
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/info"),
        ("GET", "/config"),
        ("GET", "/gradio_api/openapi.json"),
        ("POST", "/login"),
        ("GET", "/gradio_api/startup-events"),
        ("GET", "/gradio_api/proxy=https://x.hf.space/"),
        ("GET", "/monitoring"),
        ("GET", "/gradio_api/file/etc/passwd"),
        ("POST", "/gradio_api/run/predict"),
        ("GET", "/gradio_api/deep_link"),
        ("POST", "/gradio_api/call/predict"),
        ("POST", "/gradio_api/component_server"),
        ("GET", "/gradio_api/token"),
        ("POST", "/gradio_api/vibe-edit"),
        ("POST", "/gradio_api/process_recording"),
        ("GET", "/gradio_api/dev/reload"),
        ("GET", "/gradio_api/queue/status"),
        ("GET", "/gradio_api/run-history/buckets"),
        ("GET", "/svelte/x"),
        ("GET", "/gradio_api/stream/a/b/1/playlist-file"),
        ("POST", "/gradio_api/stream/a"),
    ],
)
def test_what_would_be_a_hole_is_closed(method, path):
    assert ui_route(method, path) is None
