"""Relays browsers to the UI's process, and shows a status page while it does not run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from qserve.gateway.auth import header
from qserve.gateway.bodies import Bodies, Body
from qserve.gateway.relay.cancel_scope import CancelScope, WorkerGivenUp
from qserve.gateway.relay.client import ConnectionBroke, Reply, Unreachable
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.respond import send_body
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.record import RECORD, RequestRecord
from qserve.gateway.web import pages
from qserve.gateway.web.routes import START
from qserve.gateway.web.session import is_https
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerState, WorkerStatus

__all__ = ["UiEndpoint", "UiRelay"]

# The only request headers that reach the UI's process: above all, no cookies.
_PASSED_IN = (
    b"accept",
    b"accept-language",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"range",
    b"user-agent",
    b"x-qserve-visitor",
)
_PASSED_OUT = (
    b"accept-ranges",
    b"cache-control",
    b"content-disposition",
    b"content-length",
    b"content-range",
    b"content-type",
    b"etag",
    b"last-modified",
)
# The names of these files hold their hashes.
_FOR_EVER = (b"cache-control", b"private, max-age=31536000, immutable")
_WAIT_FOR = b"starting"
_LONGEST_WAIT_S = 25.0
_LOOK_S = 0.05


@dataclass
class UiEndpoint:
    """The web UI's process, written by the supervisor and read by the gateway.

    Attributes:
        worker: its address, key and state; the supervisor writes the state.
        api_key: the key with which its process calls the API.
        install: the command that installs missing packages; "" if there are none.
        wanted: set by the gateway on the first visit; the supervisor then starts the process.
    """

    worker: WorkerStatus
    api_key: str = field(repr=False)
    install: str = ""
    wanted: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


class UiRelay:
    """ASGI app behind `BrowserAccess`: relays to the UI's process, and has it started on the first visit."""

    def __init__(self, endpoint: UiEndpoint, settings: GatewaySettings, bodies: Bodies) -> None:
        self.upstream = Upstream(endpoint.worker, settings)
        self._endpoint = endpoint
        self._settings = settings
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["path"] == START.path
        if is_page and scope["query_string"] == _WAIT_FOR:
            await self._wait()
        if is_page and (page := self._page_instead(scope)) is not None:
            await pages.send_page(scope, send, page)
        elif is_page and scope["query_string"] == _WAIT_FOR:
            await send_body(send, 303, b"", b"text/plain", [(b"location", START.path.encode())])
        else:
            await self._relay(scope, receive, send)

    async def _wait(self) -> None:
        """Waits until the process is ready, so that the page "starting" reloads without delay.

        The browser shows that page until this request is answered.
        """
        deadline_s = time.perf_counter() + _LONGEST_WAIT_S
        while self._is_coming and time.perf_counter() < deadline_s:
            await asyncio.sleep(_LOOK_S)

    @property
    def _is_coming(self) -> bool:
        return self._endpoint.worker.state in (WorkerState.STARTING, WorkerState.RESTARTING)

    def _page_instead(self, scope: Scope) -> pages.Page | None:
        """The status page while the UI does not run. The first request starts the UI."""
        if self._endpoint.install:
            return pages.missing(scope, self._endpoint.install)
        worker = self._endpoint.worker
        next_path = f"{START.path}?{_WAIT_FOR.decode()}"
        if worker.state is WorkerState.STARTING:
            self._endpoint.wanted.set()
            return pages.starting(scope, next_path)
        if worker.state is WorkerState.RESTARTING:
            return pages.starting(scope, next_path, worker.detail)
        if worker.state is WorkerState.FAILED:
            self._endpoint.wanted.set()
            return pages.failed(scope, worker.detail)
        return pages.stopping(scope) if worker.state is WorkerState.DRAINING else None

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope[RECORD]
        record.worker = self.upstream.name
        self.upstream.check_ready()
        async with self._bodies.read(scope, receive) as body:
            await self._relay_body(scope, receive, send, body)

    async def _relay_body(self, scope: Scope, receive: Receive, send: Send, body: Body) -> None:
        record: RequestRecord = scope[RECORD]
        try:
            async with CancelScope(receive, self.upstream.down, self._settings.client_stall_timeout_s) as end:
                await self._forward(scope, body, send, end)
        except (WorkerGivenUp, Unreachable, ConnectionBroke) as error:
            gone = _gone(str(error) or self._endpoint.worker.detail)
            if record.phase != "streaming":
                raise gone from error
            # The page notices the end of its stream and checks whether the UI was restarted.
            record.error_code = gone.code
            await send({"type": "http.response.body", "body": b""})

    async def _forward(self, scope: Scope, body: Body, send: Send, end: CancelScope) -> None:
        path = scope["raw_path"].decode("latin-1") + _query(scope)
        # HEAD is relayed as GET without the body: the client expects a body.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        kind = header(scope, b"content-type").decode("latin-1")
        request = self.upstream.client.request(
            method, path, scope[RECORD].request_id, body, _passed_in(scope), content_type=kind
        )
        async with request as reply:
            await send({"type": "http.response.start", "status": reply.status, "headers": _passed_out(scope, reply)})
            if reply.content_type == b"text/event-stream":
                scope[RECORD].phase = "streaming"
            while scope["method"] != "HEAD" and (chunk := await reply.read_some()):
                end.sending_since_s = time.perf_counter()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                end.sending_since_s = 0.0
        scope[RECORD].phase = "done"
        await send({"type": "http.response.body", "body": b""})


def _query(scope: Scope) -> str:
    """The allowed query string. Gradio's own parameters could load another visitor's saved state, or a page."""
    query: str = scope["query_string"].decode("latin-1")
    if scope["path"] == START.path and parse_qs(query).keys() & {"deep_link", "page"}:
        raise ApiError(404, "there is no such page here", "route_not_found")
    return f"?{query}" if query else ""


def _passed_in(scope: Scope) -> list[tuple[str, str]]:
    passed = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"] if name in _PASSED_IN]
    # Gradio builds the page's base URL from these.
    passed.append(("x-forwarded-host", header(scope, b"host").decode("latin-1")))
    if is_https(scope):
        passed.append(("x-forwarded-proto", "https"))
    return passed


def _passed_out(scope: Scope, reply: Reply) -> list[tuple[bytes, bytes]]:
    passed = [(name, value) for name, value in reply.headers.items() if name in _PASSED_OUT]
    if reply.content_type == b"text/event-stream":
        passed.append((b"x-accel-buffering", b"no"))
    if scope["path"].startswith("/assets/") and reply.status == 200:
        return [*(pair for pair in passed if pair[0] != b"cache-control"), _FOR_EVER]
    if scope["path"] == START.path:
        passed.append((b"cache-control", b"no-store"))
    return passed


def _gone(why: str) -> ApiError:
    return ApiError(
        503, f"the web interface does not answer ({why}); it is being restarted", "ui_gone", retry_after_s=2
    )
