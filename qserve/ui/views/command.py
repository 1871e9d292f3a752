"""A command line as HTML: to copy, or to put into the form of the plan page."""

from __future__ import annotations

import html

from qserve.ui.strings import translate

__all__ = ["command_view"]


def command_view(line: str, language: str, is_applicable: bool = False) -> str:
    """`line` with a button to copy it. Each word is an element: browsers would break a line within `--flag`."""
    escaped, copy = html.escape(line), translate(language, "chat.copy")
    words = " ".join(f"<span>{html.escape(word)}</span>" for word in line.split(" "))
    apply = (
        f'<button type="button" class="qs-apply" data-command="{escaped}">{translate(language, "plan.apply")}</button>'
    )
    return (
        f'<div class="qs-command"><code>{words}</code>{apply if is_applicable else ""}'
        f'<button type="button" class="qs-copy-text" data-text="{escaped}">{copy}</button></div>'
    )
