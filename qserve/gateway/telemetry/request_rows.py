"""Converts a finished request to a row of the run store."""

from __future__ import annotations

import time

from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.gateway.telemetry.record import RequestRecord
from qserve.runs.writer import RequestLabel, RequestRow

__all__ = ["row_of"]

_RELAYED = frozenset(route.path for route in ROUTES if isinstance(route, RelayedRoute))
_UNKNOWN_CLIENT = (401, 403)


def row_of(record: RequestRecord) -> RequestRow | None:
    """The row; None for requests that are not stored: routes of the gateway itself, refused clients, and probes."""
    if record.route not in _RELAYED or record.status in _UNKNOWN_CLIENT or record.is_probe:
        return None
    elapsed_s = record.elapsed_s
    return RequestRow(
        RequestLabel(
            record.method,
            record.route,
            record.model,
            record.worker,
            record.status,
            record.error_code,
            record.is_background,
            record.client_left,
        ),
        int((time.time() - elapsed_s) * 1000),
        int(elapsed_s * 1e6),
        None if record.queue_wait_s is None else int(record.queue_wait_s * 1e6),
        _ttft_us(record, elapsed_s),
        record.num_prompt_tokens,
        record.num_generated_tokens,
        record.num_events,
        record.request_id,
        record.key or None,
    )


def _ttft_us(record: RequestRecord, elapsed_s: float) -> int | None:
    """Of a stream; all of the time where its tokens were sent at once: `ttft == e2e` says that there is no TPOT."""
    if record.first_byte_s is None or not record.num_events:
        return None
    return int((elapsed_s if record.is_in_one_piece else record.first_byte_s) * 1e6)
