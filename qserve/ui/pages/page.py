"""What a page is to the frame around the pages."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages.shared import Shared

__all__ = ["Page", "Update"]

Update = dict[Any, Any]
"""New values or properties of components, as Gradio's functions return them."""


class Page(Protocol):
    """A page, drawn inside of its tab. What has a default may be left as it is.

    To add one: its class in a module of this folder, a row in `table.py`, and its strings in a file of `ui/strings/`.
    """

    name: ClassVar[str]
    """The id of its tab, whose title is the string `tab.NAME`."""
    on_open: tuple[Any, list[Any], list[Any]] | None = None
    """(function, inputs, outputs): what is drawn again when its tab is opened."""
    timer: Any = None
    """A gr.Timer by which the page follows something; it is stopped when another tab is opened."""

    def __init__(self, shared: Shared) -> None:
        """Draws the components inside of the current tab and connects their events."""

    @staticmethod
    def can_be_filled(served: ServedModels) -> bool:
        """Whether the server has what the page shows; its tab is hidden otherwise."""
        return True

    @property
    def outputs(self) -> list[Any]:
        """Components that `show` updates."""
        return []

    def show(self, served: ServedModels) -> Update:
        """Updates for what is served now."""
        return {}
