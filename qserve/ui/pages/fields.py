"""Fields that may stay empty: Gradio's Number makes a 0 of nothing."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from qserve.ui.strings import STRINGS, marked, translate

__all__ = ["number_field", "number_of", "whole_number_of"]


def number_field(key: str, placeholder: str, elem_id: str) -> Any:
    """A field for a number whose label is the string `key`; empty, it shows `placeholder`."""
    return gr.Textbox(
        label=marked(key),
        placeholder=marked(placeholder),
        lines=1,
        max_lines=1,
        min_width=110,
        elem_id=elem_id,
        html_attributes=gr.InputHTMLAttributes(autocomplete="off", spellcheck=False),
    )


def number_of(text: str | None, key: str, language: str) -> float | None:
    """The number, None for an empty field. Raises gr.Error for anything else; its range is the API's to say."""
    if not text or not text.strip():
        return None
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        raise gr.Error(_refusal("field.no_number", text, key, language), print_exception=False) from None


def whole_number_of(text: str | None, key: str, language: str) -> int | None:
    """As `number_of`, for whole numbers; 32,768 and 32 768 are read, too."""
    if not text or not text.strip():
        return None
    try:
        return int(text.replace(",", "").replace(" ", "").replace("_", ""))
    except ValueError:
        raise gr.Error(_refusal("field.no_whole", text, key, language), print_exception=False) from None


def _refusal(key: str, text: str, field: str, language: str) -> str:
    assert field in STRINGS
    # What Gradio shows of an error is HTML.
    return escape(translate(language, key, field=translate(language, field), value=text.strip()))
