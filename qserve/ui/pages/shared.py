"""Objects that all pages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qserve.ui.client.api import Api

__all__ = ["PRIVATE", "Shared"]

# Of every event: no place in Gradio's own API, no veil over what is being redrawn.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class Shared:
    """The API, the component that holds the reader's language, and where the run's report is."""

    api: Api
    language: Any
    report_url: str = ""
