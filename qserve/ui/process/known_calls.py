"""Refuses calls that Gradio's queue would fail at: it looks a function up by whatever number a body names."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qserve.gateway.limits import read_body
from qserve.units import MIB
from qserve.wire.errors import ApiError
from qserve.worker.asgi import to_response

__all__ = ["MAX_BODY_BYTES", "KnownCalls", "again"]

MAX_BODY_BYTES = 64 * MIB
_BODY_IDLE_S = 30.0
_DATA = "/gradio_api/queue/data"
# As the page makes them, and as the gateway takes them in a path.
_Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
# What Gradio says of a session that it does not know, after it has failed at it: the page then begins a new one.
_UNKNOWN = (
    b'data: {"msg":"unexpected_error","event_id":null,"message":"404: Not Found","session_not_found":true,'
    b'"success":false}\n\n'
)


class _Join(msgspec.Struct):
    session_hash: _Name
    data: list[Any]
    fn_index: int
    event_id: str | None = None
    event_data: Any = None
    trigger_id: int | None = None
    simple_format: bool = False
    batched: Literal[False] | None = None  # no function here takes several calls at once


class _Cancel(msgspec.Struct):
    session_hash: _Name
    fn_index: int
    event_id: str


class _Reset(msgspec.Struct):
    event_id: str


_BODIES: dict[str, type[_Join] | type[_Cancel] | type[_Reset]] = {
    "/gradio_api/queue/join": _Join,
    "/gradio_api/cancel": _Cancel,
    "/gradio_api/reset": _Reset,
}


class KnownCalls:
    """ASGI middleware directly before Gradio."""

    def __init__(self, app: ASGIApp, blocks: Any) -> None:
        """`blocks`: with their queue made."""
        self._app = app
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _BODIES.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        try:
            if kind is not None:
                body = await read_body(scope, receive, MAX_BODY_BYTES, _BODY_IDLE_S)
                self._check(_parsed(body, kind))
                receive = again(body, receive)
            elif scope["type"] == "http" and scope["path"] == _DATA and not self._is_known(scope):
                headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": _UNKNOWN})
                return
        except ApiError as error:
            await to_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, call: _Join | _Cancel | _Reset) -> None:
        if isinstance(call, _Reset):
            return
        function = self._blocks.fns.get(call.fn_index)
        if function is None:
            message = f"'fn_index' is {str(call.fn_index)[:20]}, and this page has no such function; load it again"
            raise ApiError(400, message, "invalid_value", "fn_index")
        if isinstance(call, _Join) and len(call.data) < len(function.inputs):
            message = f"'data' has {len(call.data)} values; this function takes {len(function.inputs)}"
            raise ApiError(400, message, "invalid_value", "data")

    def _is_known(self, scope: Scope) -> bool:
        names = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("session_hash", [])
        if len(names) != 1 or not names[0]:
            raise ApiError(400, "'session_hash' is needed, once", "no_session", "session_hash")
        return names[0] in self._blocks._queue.pending_messages_per_session


def _parsed(body: bytes, kind: type[_Join] | type[_Cancel] | type[_Reset]) -> _Join | _Cancel | _Reset:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        raise ApiError(400, said, "invalid_value", place.strip("`.") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {str(error)[:200]}", "invalid_json") from None


def again(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what else comes."""
    is_told = False

    async def receive_again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
