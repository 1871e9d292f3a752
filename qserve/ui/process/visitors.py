"""Isolates visitors: each reaches only its own streams and files.

Gradio knows sessions by a name that the page makes up, and gives what belongs to one to whoever names it; it gives any
file in its folder to whoever names that. Here the first visitor that uses a name owns it, and a file may be fetched by
the visitors that were told its path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qserve.gateway.auth import header
from qserve.gateway.limits import read_body
from qserve.gateway.web.access import VISITOR
from qserve.gateway.web.routes import SIGN_OUT
from qserve.gateway.web.session import SESSION_S
from qserve.ui.process.known_calls import MAX_BODY_BYTES, again
from qserve.ui.process.visitor_files import VisitorFiles
from qserve.wire.errors import ApiError
from qserve.worker.asgi import to_response

__all__ = ["Visitors"]

_log = logging.getLogger("qserve.ui")
_MOST_LOGGED_CHARS = 200
_OPEN = "/health"
_FILE = "/gradio_api/file="
_UPLOAD = "/gradio_api/upload"
_HEARTBEAT = "/gradio_api/heartbeat/"
_WITH_SESSION = frozenset({"/gradio_api/queue/join", "/gradio_api/cancel"})
_QUERY_NAMES = ("session_hash", "upload_id")
_TELLING = (b"application/json", b"text/event-stream", b"text/html")
# In JSON of Gradio's own: inside a string, what a model wrote above all, these quotes would be escaped.
_PATH = re.compile(rb'"path":\s?"((?:[^"\\]|\\.)+)"')
_UPLOADED = re.compile(rb'"((?:[^"\\]|\\.)+)"')
_MAX_VISITORS = 4096
_MAX_NAMES = 10_000
_BODY_IDLE_S = 30.0
_LEFT_S = 1800.0


@dataclass
class _Resources:
    """`num_open`: requests that are being answered, an open page's among them."""

    names: set[str] = field(default_factory=set)
    num_open: int = 0
    leaving: asyncio.TimerHandle | None = None
    ending: asyncio.TimerHandle | None = None


class Visitors:
    """ASGI middleware before Gradio. Every request but /health must carry the header of the `BrowserAccess`."""

    def __init__(self, app: ASGIApp, files: Path) -> None:
        """`files`: the folder below which Gradio keeps what was uploaded and made."""
        self._app = app
        self._files = VisitorFiles(files)
        self._resources: OrderedDict[str, _Resources] = OrderedDict()
        self._owners: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == _OPEN:
            await self._app(scope, receive, send)
            return
        try:
            visitor = header(scope, VISITOR).decode("latin-1")
            if not visitor:
                raise ApiError(401, "this is the web UI's process; ask the gateway instead", "unauthorized")
            if scope["path"] in _WITH_SESSION:
                body = await read_body(scope, receive, MAX_BODY_BYTES, _BODY_IDLE_S)
                receive = again(body, receive)
                self._claim(visitor, _session_of(body))
            self._check(visitor, scope)
            with self._present(visitor), self._space(visitor, scope):
                if scope["path"] == SIGN_OUT:
                    self._files.forget(visitor)
                    await Response(status_code=204)(scope, receive, send)
                    return
                # Compressed answers could not be listened to, and between processes of a machine they gain nothing.
                plain = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
                await _answered(self._app, {**scope, "headers": plain}, receive, self._listening(visitor, scope, send))
        except ApiError as error:
            await to_response(error)(scope, receive, send)

    @contextmanager
    def _present(self, visitor: str) -> Iterator[None]:
        """Files go when nothing was asked, and no page was open, for a while; their session is over after a day."""
        one, loop = self._of(visitor), asyncio.get_running_loop()
        one.num_open += 1
        one.ending = one.ending or loop.call_later(SESSION_S, self._files.forget, visitor)
        try:
            yield
        finally:
            one.num_open -= 1
            if one.leaving is not None:
                one.leaving.cancel()
            one.leaving = loop.call_later(_LEFT_S, self._leave, visitor)

    def _leave(self, visitor: str) -> None:
        one = self._resources.get(visitor)
        if one is None or not one.num_open:
            self._files.forget(visitor)

    def _space(self, visitor: str, scope: Scope) -> AbstractContextManager[None]:
        if scope["path"] != _UPLOAD:
            return nullcontext()
        length = header(scope, b"content-length")
        return self._files.uploading(visitor, int(length) if length.isdigit() else MAX_BODY_BYTES)

    def _check(self, visitor: str, scope: Scope) -> None:
        path: str = scope["path"]
        for name in _names(scope):
            self._claim(visitor, name)
        if path.startswith(_HEARTBEAT):
            self._claim(visitor, path.removeprefix(_HEARTBEAT))
        if path.startswith(_FILE) and not self._files.may_fetch(visitor, path.removeprefix(_FILE)):
            raise ApiError(403, "this file belongs to another visitor, or was removed", "not_yours")

    def _claim(self, visitor: str, name: str) -> None:
        """Take `name` for one's own, if it is nobody's."""
        if self._owners.setdefault(name, visitor) != visitor:
            raise ApiError(403, "this session is another visitor's", "not_yours")
        names = self._of(visitor).names
        if len(names) >= _MAX_NAMES:
            raise ApiError(429, "this browser opened too many pages; sign in again", "too_many_sessions")
        names.add(name)

    def _of(self, visitor: str) -> _Resources:
        resources = self._resources.setdefault(visitor, _Resources())
        self._resources.move_to_end(visitor)
        if len(self._resources) > _MAX_VISITORS:
            name, forgotten = self._resources.popitem(last=False)
            self._files.forget(name)
            for name in forgotten.names:
                self._owners.pop(name, None)
        return resources

    def _listening(self, visitor: str, scope: Scope, send: Send) -> Send:
        """Hears which files this visitor is told of. An event comes as one piece, and a whole answer too."""
        pattern = _UPLOADED if scope["path"] == _UPLOAD else _PATH
        is_telling = False

        async def send_and_listen(message: Message) -> None:
            nonlocal is_telling
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                is_telling = message["status"] == 200 and kind.startswith(_TELLING)
            elif is_telling:
                told = pattern.findall(message.get("body", b""))
                self._files.told(visitor, [json.loads(b'"%b"' % path) for path in told])
            await send(message)

        return send_and_listen


async def _answered(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call `app`; an error of its own is a 500 and ends there.

    Raised further after a whole answer, as Starlette does, it makes the server close a connection that the gateway has
    just put back for the next visitor's request.
    """
    is_begun = is_whole = False

    async def send_and_watch(message: Message) -> None:
        nonlocal is_begun, is_whole
        is_begun = True
        is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    try:
        await app(scope, receive, send_and_watch)
    except Exception:
        _log.exception("%s %s failed", scope["method"], scope["path"][:_MOST_LOGGED_CHARS])
        if is_begun and not is_whole:
            raise
        if not is_begun:
            error = ApiError(500, "the web interface failed on this request; its log has the cause", "ui_failed")
            await to_response(error)(scope, receive, send)


def _session_of(body: bytes) -> str:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    name = value.get("session_hash") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        raise ApiError(400, "the body must be a JSON object with a session_hash", "no_session")
    return name


def _names(scope: Scope) -> Iterator[str]:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    for field_name in _QUERY_NAMES:
        yield from query.get(field_name, ())
