"""Access to the UI: recognizes its requests and checks them. All others go on to the API."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qserve.gateway.auth import SIGNED_IN, GuardedKeys, check_host, header, trust
from qserve.gateway.keys.book import KeyBook
from qserve.gateway.limits import read_body
from qserve.gateway.respond import send_body
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.record import RECORD
from qserve.gateway.web import pages
from qserve.gateway.web.origin import check_origin, comes_from_elsewhere
from qserve.gateway.web.routes import SIGN_IN, SIGN_OUT, START, can_be_a_file, ui_route
from qserve.gateway.web.session import Sessions, cookie_name, cookies, session_cookie
from qserve.wire.errors import ApiError

__all__ = ["VISITOR", "BrowserAccess", "hardened", "key_of_form"]

_FORGET_S = 5.0
VISITOR = b"x-qserve-visitor"
"""Header that identifies the visitor to the UI's process: a name for the session, never its token."""

# Default security headers; a page's own policy takes precedence.
_POLICY = (
    b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; font-src 'self' data:; worker-src 'self' blob:; frame-src 'none'; "
    b"object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: then forms would be sent with an Origin that says nothing.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Else browsers resolve the host of every link before a click.
    (b"x-dns-prefetch-control", b"off"),
)
_MAX_FORM_BYTES = 16 * 1024


class BrowserAccess:
    """ASGI middleware before the API. With keys it signs browsers in; without, it gives each an anonymous session."""

    def __init__(
        self,
        api: ASGIApp,
        ui: ASGIApp,
        settings: GatewaySettings,
        keys: GuardedKeys,
        sessions: Sessions | None = None,
        named: KeyBook | None = None,
    ) -> None:
        """`ui` gets allowed requests, with the header `VISITOR`; `api` gets all that are not the UI's. `named`: of
        `keys` those with names, of which one that is bounded opens no page: what pages ask counts for no key.
        """
        self._named = named
        self._api = api
        self._ui = ui
        self._settings = settings
        self._keys = keys
        self._sessions = sessions or Sessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = _name(scope)
        if not name and _is_report(scope):
            await self._report(scope, receive, send)
            return
        if not name:
            await self._api(scope, receive, send)
            return
        check_host(scope, self._settings.allowed_hosts)
        scope[RECORD].route = name
        await self._pass(scope, receive, hardened(send))

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = cookies(scope, cookie_name(scope))
        visitor = self._sessions.visitor(token) if token else None
        check_origin(scope, has_session=visitor is not None)
        if scope["path"] == SIGN_IN:
            await self._sign_in(scope, receive, send)
        elif scope["path"] == SIGN_OUT:
            self._sessions.end(token)
            if visitor is not None:
                await self._forget(scope, receive, visitor)
            await _go_to_start(send, session_cookie(scope, ""))
        elif visitor is not None and not can_be_a_file(scope["path"]):
            raise ApiError(404, "no file has a name as long as this path", "route_not_found")
        elif visitor is not None:
            trust(scope)
            await self._ui(_with_visitor(scope, visitor), receive, send)
        elif scope["path"] == START.path:
            await self._welcome(scope, receive, send)
        else:
            raise ApiError(401, "open the page of this server in a browser first, and sign in there", "not_signed_in")

    async def _forget(self, scope: Scope, receive: Receive, visitor: str) -> None:
        """Have the UI's process remove what `visitor` uploaded. One that does not run keeps nothing."""
        own = {**_with_visitor(scope, visitor), "raw_path": SIGN_OUT.encode(), "query_string": b""}
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_FORGET_S):
                await self._ui(own, receive, _nowhere)

    async def _report(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The report page: browsers may use their session instead of a key."""
        if not self._keys or header(scope, b"authorization"):
            await self._api(scope, receive, send)
            return
        check_host(scope, self._settings.allowed_hosts)
        token = cookies(scope, cookie_name(scope))
        if token and self._sessions.visitor(token) is not None:
            check_origin(scope, has_session=True)
            await self._api({**scope, SIGNED_IN: True}, receive, send)
        elif comes_from_elsewhere(scope):
            await pages.send_page(scope, hardened(send), pages.moment(scope))
        else:
            await pages.send_page(scope, hardened(send), pages.sign_in(scope))

    async def _welcome(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The first visit: the sign-in form if there are keys, else a new session."""
        if comes_from_elsewhere(scope):
            # After a link from another site, browsers do not send a SameSite=Strict cookie that may exist.
            await pages.send_page(scope, send, pages.moment(scope))
        elif self._keys:
            await pages.send_page(scope, send, pages.sign_in(scope))
        else:
            token = self._sessions.begin()
            visitor = self._sessions.visitor(token)
            assert visitor is not None, "it has just begun"
            send = _with_header(send, session_cookie(scope, token))
            await self._ui(_with_visitor(scope, visitor), receive, send)

    async def _sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, _MAX_FORM_BYTES, self._settings.body_idle_timeout_s)
        key = key_of_form(body)
        try:
            is_right = await self._keys.admit(scope, key)
        except ApiError:  # it has expired
            is_right = False
        entry = None if self._named is None else self._named.of_token(key)
        if is_right and entry is not None and entry.is_bounded:
            await pages.send_page(scope, send, pages.sign_in(scope, problem="bounded"))
        elif is_right:
            await _go_to_start(send, session_cookie(scope, self._sessions.begin()))
        else:
            await pages.send_page(scope, send, pages.sign_in(scope, problem="wrong"))


def _name(scope: Scope) -> str:
    """The template of the UI route of this request; "" if it is not the UI's."""
    if scope["type"] != "http":
        return ""
    method, path = scope["method"], scope["path"]
    if path in (SIGN_IN, SIGN_OUT):
        return path if method == "POST" else ""
    route = ui_route(method, path)
    if route is START and b"text/html" not in header(scope, b"accept"):
        return ""
    return route.path if route is not None else ""


def _is_report(scope: Scope) -> bool:
    """Whether a browser asks for a run's report."""
    path = scope.get("path", "")
    is_browser = scope["type"] == "http" and b"text/html" in header(scope, b"accept")
    return is_browser and scope["method"] == "GET" and (path == "/report" or path.startswith("/report/"))


def _with_visitor(scope: Scope, visitor: str) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != VISITOR]
    return {**scope, "headers": [*headers, (VISITOR, visitor.encode())]}


async def _go_to_start(send: Send, cookie: tuple[bytes, bytes]) -> None:
    await send_body(send, 303, b"", b"text/plain", [(b"location", START.path.encode()), cookie])


async def _nowhere(message: Message) -> None:
    """Nobody is told the answer."""


def _with_header(send: Send, header: tuple[bytes, bytes]) -> Send:
    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], header]
        await send(message)

    return send_with_header


def hardened(send: Send) -> Send:
    """Adds the security headers that an answer does not set itself."""

    async def send_hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            more = [*_HEADERS, (b"content-security-policy", _POLICY)]
            message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in own)]
        await send(message)

    return send_hardened


def key_of_form(body: bytes) -> bytes:
    """The submitted key; b"" if the form has none."""
    fields = parse_qs(body.decode("utf-8", "replace"))
    return fields.get("key", [""])[0].strip().encode("utf-8", "replace")
