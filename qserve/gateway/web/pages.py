"""Static pages around the UI: sign-in, starting, stopping, failed, not installed. No scripts, no foreign content."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Literal

from starlette.types import Scope, Send

from qserve.gateway.respond import send_body
from qserve.gateway.web.routes import SIGN_IN
from qserve.gateway.web.texts import TEXTS, language

__all__ = ["Page", "failed", "missing", "moment", "send_page", "sign_in", "starting", "stopping"]

_TEMPLATE = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
_STYLE = _TEMPLATE.partition("<style>")[2].partition("</style>")[0]
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
).encode()


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        status: the HTTP status.
        title: as text.
        body: as HTML.
        next_path: where the browser is redirected; "" stays.
    """

    status: int
    title: str
    body: str
    next_path: str = ""


def sign_in(scope: Scope, *, problem: Literal["wrong", "bounded"] | None = None) -> Page:
    """The sign-in form, with status 401. `problem`: with the key that was sent."""
    text = TEXTS[language(scope)]
    told = "" if problem is None else f'<p class="bad" role="alert" id="problem">{escape(text[problem])}</p>'
    described = "" if problem is None else ' aria-describedby="problem" aria-invalid="true"'
    body = (
        f'<p>{escape(text["ask"])}</p>{told}<form method="post" action="{SIGN_IN}"><label for="key">'
        f'{escape(text["key"])}</label><input id="key" name="key" type="password" required autofocus '
        f'autocomplete="current-password" maxlength="4096"{described}><button type="submit">'
        f"{escape(text['sign_in'])}</button></form>"
    )
    return Page(401, text["sign_in"], body)


def starting(scope: Scope, next_path: str, detail: str = "") -> Page:
    """The UI is starting, for the first time or (with a `detail`) again."""
    text = TEXTS[language(scope)]
    title, sentence = (text["again"], text["again_text"]) if detail else (text["starting"], text["starting_text"])
    # 200: browsers would log an error otherwise.
    return Page(200, title, f'<p role="status">{escape(sentence.format(detail=detail))}</p>', next_path)


def failed(scope: Scope, detail: str) -> Page:
    """The UI failed to start, with the reason."""
    text = TEXTS[language(scope)]
    return Page(503, text["failed"], f"<p>{escape(text['failed_text'])}</p><code>{escape(detail)}</code>")


def missing(scope: Scope, command: str) -> Page:
    """Packages of the UI are not installed."""
    text = TEXTS[language(scope)]
    return Page(501, text["missing"], f"<p>{escape(text['missing_text'])}</p><code>{escape(command)}</code>")


def stopping(scope: Scope) -> Page:
    """The service is stopping."""
    text = TEXTS[language(scope)]
    return Page(503, text["stopping"], f"<p>{escape(text['stopping_text'])}</p>")


def moment(scope: Scope) -> Page:
    """Reloads at once from our own page, so that the browser sends its strict cookie."""
    return Page(200, TEXTS[language(scope)]["moment"], "", "/")


async def send_page(scope: Scope, send: Send, page: Page, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send the page."""
    refresh = f'<meta http-equiv="refresh" content="0;url={page.next_path}">\n' if page.next_path else ""
    text = Template(_TEMPLATE).substitute(
        lang=language(scope), title=escape(page.title), body=page.body, refresh=refresh
    )
    extra = [(b"cache-control", b"no-store"), (b"content-security-policy", _POLICY), *headers]
    body = b"" if scope["method"] == "HEAD" else text.encode()
    await send_body(send, page.status, body, b"text/html; charset=utf-8", extra)
