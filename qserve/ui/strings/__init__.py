"""Every string of the pages, in English and 简体中文: a file for each page, a row for each string.

Gradio's labels are translated in the browser (`marked`); what this process writes itself, by `translate`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio as gr

__all__ = ["LANGUAGES", "STRINGS", "heading", "i18n", "marked", "translate"]

LANGUAGES = {"en": "English", "zh-CN": "简体中文"}
_PREFIX = "qs."

STRINGS: dict[str, tuple[str, str]] = {
    key: row
    for module in pkgutil.iter_modules(__path__)
    if not module.ispkg
    for key, row in importlib.import_module(f"{__name__}.{module.name}").STRINGS.items()
}


@cache
def i18n() -> gr.I18n:
    """As Gradio has them. Imported here: it takes seconds, and `translate` needs none of it."""
    import gradio as gr

    return gr.I18n(
        **{
            language: {_PREFIX + key: row[column] for key, row in STRINGS.items()}
            for column, language in enumerate(LANGUAGES)
        }
    )


def marked(key: str) -> Any:
    """A label that the browser translates. Raises KeyError for a key that no row has."""
    STRINGS[key]
    return i18n()(_PREFIX + key)


def translate(language: str, key: str, **values: Any) -> str:
    """The string in one language, English where the language is none of ours."""
    languages = list(LANGUAGES)
    return STRINGS[key][languages.index(language) if language in languages else 0].format(**values)


def heading(language: str, key: str) -> str:
    """The string as the head of a column."""
    text = translate(language, key)
    return text[:1].upper() + text[1:]
