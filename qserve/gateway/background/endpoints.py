"""The routes of background responses. A client sees only what was made with its own key."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from qserve.gateway.auth import owner_of, peer_of, share_of
from qserve.gateway.background.growing import fields_of
from qserve.gateway.background.runs import Asker, Runs
from qserve.gateway.batches.service import IN_BATCH
from qserve.gateway.bodies import Body
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.relay.cancel_scope import CancelScope
from qserve.gateway.relay.exchange import start_of_stream
from qserve.gateway.respond import send_body, send_json
from qserve.gateway.routes import Route
from qserve.gateway.telemetry.record import RECORD, RequestRecord
from qserve.wire.errors import ApiError, Dialect
from qserve.wire.worker_headers import DEADLINE, PRIORITY

__all__ = ["BackgroundEndpoints"]

_NAME = b'"background"'
_ONE = "/v1/responses/{response_id}"
_PARAMETERS = ("starting_after", "stream", "include_obfuscation")
_NUMBER = re.compile(r"\d{1,9}")
_WAITS = b": the response is not over\n\n"


class BackgroundEndpoints:
    """`runs` is set before the first request."""

    runs: Runs

    def __init__(self, stall_timeout_s: float) -> None:
        """`stall_timeout_s`: a client that reads nothing for so long counts as disconnected."""
        self._stall_timeout_s = stall_timeout_s

    def of(self, route: Route) -> Endpoint:
        """The endpoint of a route of `RESPONSE_ROUTES`."""
        return {("GET", _ONE): self.response, ("DELETE", _ONE): self.delete, ("POST", f"{_ONE}/cancel"): self.cancel}[
            route.method, route.path
        ]

    async def create(self, scope: Scope, receive: Receive, send: Send, body: Body) -> bool:
        """POST /v1/responses; whether its body asks for the background."""
        if _NAME not in body.data:  # in a string its quotes would be escaped
            return False
        try:
            fields = fields_of(body.data)
        except msgspec.MsgspecError:
            return False  # refused where all bodies are checked
        if fields.get("background") != msgspec.Raw(b"true"):
            return False
        if fields.get("store") == msgspec.Raw(b"false"):
            message = "'background' needs 'store': the response is kept until it is asked for; leave 'store' out"
            raise ApiError(400, message, "invalid_value", "store")
        if IN_BATCH in scope:
            message = "'background' must be false in a batch, whose answers are kept in a file"
            raise ApiError(400, message, "invalid_value", "background")
        record: RequestRecord = scope[RECORD]
        record.route = _ONE  # the request that computes it is one of its own, with a record of its own
        data = body.data
        body.drop()
        document = await self.runs.create(_asker(scope, record), data)
        if fields.get("stream") == msgspec.Raw(b"true"):
            response_id = msgspec.json.decode(document)["id"]
            await self._stream(receive, send, response_id, owner_of(scope), -1)
        else:
            await send_body(send, 200, document.encode())
        return True

    async def response(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/responses/{response_id}: the object, or with `stream=true` its events."""
        response_id, owner = scope["path_params"]["response_id"], owner_of(scope)
        after = _start_of(scope)
        document = await self.runs.document(response_id, owner)
        if after is None:
            await send_body(send, 200, document.encode())
        else:
            await self._stream(receive, send, response_id, owner, after)

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/responses/{response_id}/cancel."""
        document = await self.runs.cancel(scope["path_params"]["response_id"], owner_of(scope))
        await send_body(send, 200, document.encode())

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE /v1/responses/{response_id}."""
        response_id = scope["path_params"]["response_id"]
        await self.runs.delete(response_id, owner_of(scope))
        await send_json(send, 200, {"id": response_id, "object": "response", "deleted": True})

    async def _stream(self, receive: Receive, send: Send, response_id: str, owner: str, after: int) -> None:
        """The events after number `after`, then live ones to the end."""
        await send(start_of_stream(b"text/event-stream; charset=utf-8"))
        is_last = False
        async with CancelScope(receive, None, self._stall_timeout_s) as end:
            while not is_last:
                try:
                    text, after, is_last = await self.runs.events(response_id, owner, after)
                except ApiError as error:  # it was deleted, or had to make room
                    text, is_last = error.event(Dialect.RESPONSES).decode(), True
                end.sending_since_s = time.perf_counter()
                piece = text.encode() or (b"" if is_last else _WAITS)
                await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
                end.sending_since_s = 0.0


def _asker(scope: Scope, record: RequestRecord) -> Asker:
    headers = [("x-request-id", record.request_id), *record.trace_headers]
    if record.is_background:
        headers.append((PRIORITY, "background"))
    if record.deadline_ms:
        headers.append((DEADLINE, record.deadline_ms.decode("latin-1")))
    return Asker(owner_of(scope), share_of(scope), peer_of(scope), headers)


def _start_of(scope: Scope) -> int | None:
    """The number after which a stream begins, -1 for the first event; None: the object is asked for.

    Raises ApiError 400 for another query.
    """
    query: Any = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    for name in query.keys() - set(_PARAMETERS):
        message = f"{name[:100]!r} is not a parameter of this query; allowed are {', '.join(_PARAMETERS)}"
        raise ApiError(400, message, "unsupported_field", name[:100])
    stream, after = query.get("stream", "false"), query.get("starting_after")
    if stream not in ("true", "false"):
        raise ApiError(400, "'stream' must be true or false", "invalid_value", "stream")
    if after is not None and (stream == "false" or _NUMBER.fullmatch(after) is None):
        message = "'starting_after' must be the sequence_number of an event, and needs stream=true"
        raise ApiError(400, message, "invalid_value", "starting_after")
    if stream == "false":
        return None
    return -1 if after is None else int(after)
