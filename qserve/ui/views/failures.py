"""What failed as HTML: a sentence in the reader's language, the server's own words, and buttons that try again."""

from __future__ import annotations

import html

from qserve.ui.client.api import ApiFailure
from qserve.ui.client.served_models import ServedModels
from qserve.ui.strings import translate
from qserve.ui.strings.failures import failure_key
from qserve.ui.strings.sentences import said, shown

__all__ = ["failure_sentence", "failure_view", "refusal_view", "told_waiting"]

# The client's own: what happened is all that there is to say.
_OWN = frozenset({"unreachable", "broken", "timeout", "no_json"})
# What passes by itself: the server's words are for those who run it.
_PASSING = frozenset({429, 502, 503})


def failure_sentence(failure: ApiFailure, language: str) -> tuple[str, str]:
    """What failed, and the server's own words where they say more; "" where they don't."""
    key = failure_key(failure.code, failure.status)
    ours = translate(language, key, param=failure.param or "?")
    if failure.code in _OWN:
        return ours, ""
    theirs = said(language, str(failure)) if failure.status not in _PASSING else None
    return (theirs, "") if theirs is not None else (ours, str(failure))


def failure_view(failure: ApiFailure, language: str, *, tries_again: bool = False, buttons: str = "") -> str:
    """An alert. `tries_again`: the page asks again by itself."""
    if tries_again and failure.code in _OWN:
        return _alert(translate(language, "failure.unreachable.trying"), "", "", language)
    return _alert(*failure_sentence(failure, language), buttons, language)


def refusal_view(why: str, language: str, key: str) -> str:
    """An alert about what this process refuses: `why` where it is known in the language, else the string `key`."""
    known = said(language, why)
    return _alert(known, "", "", language) if known is not None else _alert(translate(language, key), why, "", language)


def told_waiting(served: ServedModels, language: str, joint: str = "; ") -> str:
    """Of each worker that takes no requests yet, its name and what it is doing."""
    return joint.join(
        f"{name}: {(said(language, detail) if detail else None) or shown(language, state)}"
        for name, state, detail in served.waiting
    )


def _alert(sentence: str, original: str, buttons: str, language: str) -> str:
    told = (
        f'<details class="qs-original"><summary>{translate(language, "failure.original")}</summary>'
        f'<span lang="en">{html.escape(original)}</span></details>'
        if original
        else ""
    )
    return f'<div class="qs-error" role="alert">{html.escape(sentence)}{told}{buttons}</div>'
