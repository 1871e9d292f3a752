"""Middleware of every request: its id, its log line, and the shape of its errors."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qserve.gateway.http.bounded_http import ANSWERING, CONNECTION
from qserve.gateway.limits import ClientGone, ConnectedReceive
from qserve.gateway.respond import send_error
from qserve.gateway.routes import dialect_of, route_template
from qserve.gateway.run_history import RunHistory
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RECORD, RequestRecord, log_request
from qserve.gateway.telemetry.tracing import Traces
from qserve.wire.errors import ApiError, Dialect, internal_error

__all__ = ["ApiErrors", "RequestContext"]

_log = logging.getLogger("qserve.gateway")


class RequestContext:
    """Outermost: creates the record, sets the request id header; at the end counts, traces, logs and stores it."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, traces: Traces | None, runs: RunHistory) -> None:
        self._app = app
        self._metrics = metrics
        self._traces = traces
        self._runs = runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord.begin(scope, route_template(scope["path"]))
        if self._traces is not None:
            self._traces.begin(record)
        connection = scope.get(CONNECTION)
        if connection is not None:
            receive = ConnectedReceive(receive, connection, scope.pop(ANSWERING, None))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                request_id = record.request_id.encode()
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
                if dialect_of(record.route, scope["method"], scope["path"]) is Dialect.ANTHROPIC:
                    message["headers"].append((b"request-id", request_id))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._metrics.finish(record)
            if self._traces is not None:
                self._traces.end(record)
            log_request(record)
            self._runs.keep(record)


class ApiErrors:
    """Turns exceptions into errors of the API: never HTML or another framework's JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record: RequestRecord = scope[RECORD]
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            record.client_left = True
            record.status = record.status or 499
        except Exception as raised:
            error = _as_api_error(raised, record)
            record.error_code = error.code
            if record.status:  # too late for a status: cut the connection, so that the answer does not look complete
                raise
            await send_error(send, error, dialect_of(record.route, scope["method"], scope["path"]))


def _as_api_error(raised: Exception, record: RequestRecord) -> ApiError:
    if isinstance(raised, ApiError):
        return raised
    _log.error("request %s failed", record.request_id, exc_info=raised)
    return internal_error(f" under {record.request_id}")
