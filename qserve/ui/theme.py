"""The theme of the pages: light and dark, system fonts, no external resources."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from qserve.charts.html import stylesheet
from qserve.ui.strings import LANGUAGES, STRINGS

__all__ = ["css", "head", "theme"]

_STATIC = Path(__file__).parent / "static"
_WORDS = ("chat.", "page.", "failure.unreachable")
# After page.js, which they build on.
_SCRIPTS = ("conversations.js", "follow.js", "accessibility.js", "dropdowns.js", "reconnect.js")
_SANS = ("system-ui", "-apple-system", "Segoe UI", "Noto Sans", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono")


def theme() -> Any:
    """Slate and teal; buttons and text hold 4.5:1 contrast in both schemes."""
    made = gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.slate,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=[gr.themes.Font(name) for name in (*_SANS, "sans-serif")],
        font_mono=[gr.themes.Font(name) for name in (*_MONO, "monospace")],
    )
    return made.set(
        body_background_fill="#f8fafc",
        body_background_fill_dark="#0b1220",
        body_text_color="#1e293b",
        body_text_color_dark="#e2e8f0",
        body_text_color_subdued="#526072",
        body_text_color_subdued_dark="#9fb0c5",
        block_background_fill="#ffffff",
        block_background_fill_dark="#131c2e",
        block_border_color="#e2e8f0",
        block_border_color_dark="#25324a",
        block_label_text_color="#475569",
        block_label_text_color_dark="#a9b8cc",
        block_info_text_color="#526072",
        block_info_text_color_dark="#9fb0c5",
        block_title_text_weight="500",
        input_background_fill="#ffffff",
        input_background_fill_dark="#0f1829",
        input_border_width="1px",
        input_border_color="#cbd5e1",
        input_border_color_dark="#33435f",
        input_placeholder_color="#64748b",
        input_placeholder_color_dark="#8798b0",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_dark="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_background_fill_hover_dark="#0d6a63",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        button_secondary_background_fill="#f1f5f9",
        button_secondary_background_fill_dark="#1d2940",
        button_secondary_background_fill_hover="#e2e8f0",
        button_secondary_background_fill_hover_dark="#27354f",
        button_secondary_text_color="#1e293b",
        button_secondary_text_color_dark="#e2e8f0",
        color_accent_soft="#ccfbf1",
        color_accent_soft_dark="#12403d",
        link_text_color="#0f766e",
        link_text_color_dark="#5eead4",
        shadow_drop="none",
    )


def css() -> str:
    """The stylesheet of the pages."""
    return _read("style.css")


def head() -> str:
    """What the head of the page begins with: the stylesheet of charts, and a script with the words that it shows.

    Gradio rewrites the stylesheet that it is given, and drops container queries: charts have theirs from here.
    """
    words = {
        language: {key: row[column] for key, row in STRINGS.items() if key.startswith(_WORDS)}
        for column, language in enumerate(LANGUAGES)
    }
    page = _read("page.js").replace("__STRINGS__", json.dumps(words, ensure_ascii=False).replace("<", "\\u003c"))
    script = page + "".join(_read(name) for name in _SCRIPTS)
    return f"<style>{stylesheet()}</style><script>{script}</script>"


@cache
def _read(name: str) -> str:
    return (_STATIC / name).read_text()
