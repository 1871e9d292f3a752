"""The record of one request, for its log line, metrics, traces and errors."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qserve.wire.worker_headers import DEADLINE, PRIORITY, PROBE

__all__ = ["RECORD", "RequestRecord", "log_request"]

RECORD = "qserve.record"
"""In a request's scope: its record."""

_access = logging.getLogger("qserve.access")
# What the web UI, load balancers and Prometheus ask every few seconds, and the channel that the pages' clicks come on:
# where it goes well, a line of each would hide the requests. POST /gradio_api/queue/join tells nothing that the request
# that it leads to does not tell.
POLLED = frozenset(
    (
        "/health",
        "/ready",
        "/metrics",
        "/v1/models",
        "/v1/qserve/trainings",
        "/gradio_api/app_id",
        "/gradio_api/heartbeat/{session}",
        "/gradio_api/queue/join",
        "/gradio_api/queue/data",
    )
)
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_CONTEXT_SHAPES = {
    b"traceparent": re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
    b"tracestate": re.compile(rb"[\x20-\x7e]{1,512}"),
}
# A process's ids are its own number and a count: as unique as random ones, and they sort.
_PROCESS = secrets.token_hex(6)
_count = itertools.count(1)
_PRIORITY, _BACKGROUND = PRIORITY.encode(), b"background"
_PROBE, _DEADLINE, _REQUEST_ID = PROBE.encode(), DEADLINE.encode(), b"x-request-id"
_READ = frozenset({_PRIORITY, _PROBE, _DEADLINE, _REQUEST_ID, *_CONTEXT_SHAPES})


@dataclass(slots=True)
class RequestRecord:
    """One request. Never holds content or keys.

    Attributes:
        route: the route's template (`/v1/models/{model}`), `unmatched` if there is none: never the client's own text.
        status: 0 until a status line went out; 499 if the client left first.
        error_code: the `code` of the error it ended with, also of one that went out inside a stream.
        phase: how far it got: `reading`, `queued`, `waiting` (for the first byte), `streaming`, `done`.
        client_left: the client closed the connection before its answer was complete.
        is_background: the client lets others go first (`x-qserve-priority: background`).
        is_probe: a command of qserve tests what the server can do (`x-qserve-probe: 1`).
        deadline_ms: the client's `x-qserve-deadline-ms`, unchecked; b"" if there is none.
        key: name of its key, if that has one.
        queue_wait_s: the wait for a slot at the worker; None while it has none.
        admitted_s: received to the end of that wait.
        first_byte_s: received to the first event sent (of a stream, the one that only names the role not counted), or
            to the answer's first byte; None before.
        e2e_s: received to the last byte of an answered generation; None of all others.
        num_prompt_tokens, num_generated_tokens: as the worker's `usage` told them; None where it did not.
        num_events: server-sent events with tokens; 0: no stream.
        is_in_one_piece: all tokens of a stream were sent at once, so that nothing is known of the time between them.
        num_retries: attempts after one that failed, of another worker or of the next life of the same.
        trace_headers: W3C's trace context for the worker, name and value: the client's, or that of a span of ours.
    """

    request_id: str
    method: str
    route: str
    started_s: float = field(default_factory=time.perf_counter)
    model: str = ""
    worker: str = ""
    status: int = 0
    error_code: str = ""
    phase: str = "reading"
    client_left: bool = False
    is_background: bool = False
    is_probe: bool = False
    deadline_ms: bytes = b""
    key: str = ""
    queue_wait_s: float | None = None
    admitted_s: float | None = None
    first_byte_s: float | None = None
    e2e_s: float | None = None
    num_prompt_tokens: int | None = None
    num_generated_tokens: int | None = None
    num_events: int = 0
    is_in_one_piece: bool = False
    num_retries: int = 0
    trace_headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def begin(cls, scope: Any, route: str) -> RequestRecord:
        """The record of this scope's request, which the scope has as `RECORD` from here on."""
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in _READ:
                given.setdefault(name, []).append(value)
        record = cls(
            _request_id(given.get(_REQUEST_ID, ())),
            scope["method"],
            route,
            is_background=_BACKGROUND in given.get(_PRIORITY, ()),
            is_probe=b"1" in given.get(_PROBE, ()),
            deadline_ms=b", ".join(given[_DEADLINE]) or b"0" if _DEADLINE in given else b"",
            trace_headers=_trace_context(given) if b"traceparent" in given else (),
        )
        scope[RECORD] = record
        return record

    @property
    def is_poll(self) -> bool:
        """A poll that went well. /ready answers 503, with the code of the reason, until all workers are ready."""
        if self.route == "/ready" and self.status == 503:
            return True
        return self.route in POLLED and not self.error_code and self.status < 400

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    @property
    def first_token_s(self) -> float | None:
        """From its slot to the first token of a stream; None where that was not seen apart from the others."""
        if not self.num_events or self.is_in_one_piece or self.first_byte_s is None or self.admitted_s is None:
            return None
        return self.first_byte_s - self.admitted_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token of a stream, as `vllm bench` has it: E2E less TTFT over all tokens but the first.

        Valid once it is over. Tokens are those of the usage; without it, events are counted instead.
        """
        if not self.num_events or self.first_byte_s is None or self.is_in_one_piece:
            return None
        num_tokens = self.num_generated_tokens or self.num_events
        return (self.elapsed_s - self.first_byte_s) / (num_tokens - 1) if num_tokens > 1 else None


def _request_id(given: Sequence[bytes]) -> str:
    """The client's request id if it is well-formed (it goes into logs and headers), else a new one."""
    for value in given:
        if _SANE_ID.fullmatch(value):
            return str(value, "ascii")
    return f"req-{_PROCESS}-{next(_count):06x}"


def _trace_context(given: Mapping[bytes, Sequence[bytes]]) -> tuple[tuple[str, str], ...]:
    """traceparent and tracestate as the client sent them; nothing where they are not well-formed."""
    sane = {name: [one for one in given.get(name, ()) if it.fullmatch(one)] for name, it in _CONTEXT_SHAPES.items()}
    if not sane[b"traceparent"]:
        return ()
    return tuple((name.decode(), values[-1].decode()) for name, values in sane.items() if values)


def log_request(record: RequestRecord) -> None:
    """One line per request on the logger `qserve.access`; the same fields as `extra={"request": …}`.

    A poll's line is one for debugging.
    """
    if not _access.isEnabledFor(logging.INFO):
        return
    level = logging.DEBUG if record.is_poll else logging.INFO
    if not _access.isEnabledFor(level):
        return
    fields = {
        "request_id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "ms": round(record.elapsed_s * 1000, 1),
        "model": record.model,
        "worker": record.worker,
        "key": record.key,
        "error": record.error_code,
    }
    line = " ".join(f"{name}={value}" for name, value in fields.items() if value != "")
    _access.log(level, line, extra={"request": fields})
