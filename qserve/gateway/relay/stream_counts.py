"""What a stream that passes by shows of its answer: events with tokens, and the times between them."""

from __future__ import annotations

import time

from qserve.gateway.relay.events import count_announcements, count_closings, count_events, count_named
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RequestRecord

__all__ = ["StreamCounts"]


class StreamCounts:
    """Counts events and their times; keeps the last two pieces, which hold the usage if requested."""

    __slots__ = (
        "_before_last",
        "_itl",
        "_last",
        "_last_s",
        "_metrics",
        "_num_events",
        "_num_pieces",
        "_num_tokenless",
        "_num_told",
        "_record",
    )

    def __init__(self, metrics: GatewayMetrics, record: RequestRecord) -> None:
        self._metrics = metrics
        self._record = record
        self._itl = metrics.itl.labels(record.model)
        self._num_events = self._num_tokenless = self._num_pieces = self._num_told = 0
        self._last_s = 0.0
        self._last = self._before_last = b""

    @property
    def end(self) -> bytes:
        """The last two."""
        return self._before_last + self._last

    def add(self, events: bytes) -> None:
        """Count events that were just sent; several at once share the time since the ones before."""
        now_s = time.perf_counter()
        count, num_tokenless = count_events(events), count_named(events)
        self._num_events += count
        self._before_last, self._last = self._last, events
        if not self._last_s:
            num_tokenless += count_announcements(events)
        self._num_tokenless += num_tokenless
        if self._last_s:
            if count:
                self._itl.observe((now_s - self._last_s) / count, count)
                if self._num_pieces < 2:  # more is not asked
                    self._num_pieces += count > num_tokenless + count_closings(events)
        elif count > num_tokenless:
            self._num_pieces += 1
            self._record.first_byte_s = self._record.elapsed_s
            self._metrics.ttft.labels(self._record.model).observe(self._record.first_byte_s)
        else:
            return
        self._last_s = now_s

    def finish(self) -> None:
        """The stream is over, or broke and may be continued."""
        num_others = self._num_tokenless + count_closings(self.end)
        self._record.num_events = max(self._num_events - num_others, min(self._num_events, 1))
        self._record.is_in_one_piece = self._num_pieces < 2
        self._metrics.stream_events.labels(self._record.model).inc(self._num_events - self._num_told)
        self._num_told = self._num_events
