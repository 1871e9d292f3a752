"""Importing Gradio without what nobody here needs of it: half the seconds before the first page, and 27 MB less.

Each time it is imported it writes a type stub for every one of its components, and it takes the MCP server along where
that package happens to be installed (vLLM brings it).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["lean_import"]

_MCP = "mcp"


@contextmanager
def lean_import() -> Iterator[None]:
    """`with lean_import(): import gradio`. Everything is as it was afterwards."""
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
