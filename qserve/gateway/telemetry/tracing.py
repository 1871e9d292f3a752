"""Optional traces: a span for each request, between the client's and the worker's by W3C's trace context.

Without them the client's context is forwarded (`record.py`), so that an engine that traces joins its trace.
OpenTelemetry is imported here alone, and only when a collector was named (`--otlp-traces-endpoint`).
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from qserve.errors import MissingExtra, UsageError
from qserve.gateway.telemetry.record import RequestRecord
from qserve.version import __version__

__all__ = ["OpenTelemetry", "Traces", "to_collector"]

# Polled routes would dominate the traces.
_UNTRACED = frozenset({"/health", "/ready", "/metrics", "/version"})
# The library's default of 10 s would delay the stop if the collector is gone.
_COLLECTOR_TIMEOUT_S = 3.0
_TIMEOUT_VARIABLES = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_NS_PER_S = 1_000_000_000


class Traces(Protocol):
    """Receives the begin and end of each request."""

    def begin(self, record: RequestRecord) -> None:
        """A request arrived, with the client's `trace_headers`. Those that it sets instead go to the worker."""

    def end(self, record: RequestRecord) -> None:
        """The request is over."""

    def close(self) -> None:
        """Sends pending spans."""


class OpenTelemetry:
    """A server span for each request, child of the client's; the queue's end and the first byte are events on it.

    Attributes are OpenTelemetry's own (`http.*`, `gen_ai.*`; for latencies the names that vLLM's spans have), and
    `qserve.*` for the rest. No content and no key goes into a span.
    """

    def __init__(self, provider: Any) -> None:
        """`provider`: a `TracerProvider` of opentelemetry-sdk."""
        self._api = importlib.import_module("opentelemetry.trace")
        propagation = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._context = propagation.TraceContextTextMapPropagator()
        self._provider = provider
        self._tracer = provider.get_tracer("qserve.gateway", __version__)
        self._spans: dict[int, tuple[Any, int]] = {}

    def begin(self, record: RequestRecord) -> None:
        if record.route in _UNTRACED:
            return
        began_ns = time.time_ns()
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            context=self._context.extract(dict(record.trace_headers)),
            kind=self._api.SpanKind.SERVER,
            start_time=began_ns,
        )
        headers: dict[str, str] = {}
        self._context.inject(headers, self._api.set_span_in_context(span))
        record.trace_headers = tuple(headers.items())
        self._spans[id(record)] = span, began_ns

    def end(self, record: RequestRecord) -> None:
        span, began_ns = self._spans.pop(id(record), (None, 0))
        if span is None:
            return
        span.set_attributes(_attributes(record))
        for name, seconds in _moments(record).items():
            span.add_event(name, timestamp=began_ns + int(seconds * _NS_PER_S))
        if record.error_code and record.status not in range(400, 500):  # client errors do not mark the span as failed
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, record.error_code))
        span.end(began_ns + int(record.elapsed_s * _NS_PER_S))

    def close(self) -> None:
        self._provider.shutdown()


def to_collector(endpoint: str) -> OpenTelemetry:
    """Traces that go to the collector at `endpoint` by OTLP over HTTP, in the background.

    Resource and sampling follow OpenTelemetry's own variables (OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, …).
    Raises UsageError for what is not an address, MissingExtra without the packages.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(
            f"--otlp-traces-endpoint {endpoint} is not an address; write it whole, as http://127.0.0.1:4318/v1/traces"
        )
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        package = (error.name or "opentelemetry").partition(".")[0]
        raise MissingExtra(package, "--otlp-traces-endpoint") from error
    about = resources.Resource.create({"service.name": "qserve", "service.version": __version__})
    provider = sdk.TracerProvider(resource=about)
    has_own_timeout = any(name in os.environ for name in _TIMEOUT_VARIABLES)
    exporter = otlp.OTLPSpanExporter(endpoint=endpoint, timeout=None if has_own_timeout else _COLLECTOR_TIMEOUT_S)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return OpenTelemetry(provider)


def _moments(record: RequestRecord) -> Mapping[str, float]:
    """Events of the span, in seconds after the request arrived."""
    wait_s = record.queue_wait_s or 0.0
    moments = {
        "queued": None if record.admitted_s is None else record.admitted_s - wait_s,
        "admitted": record.admitted_s,
        "first_byte": record.first_byte_s,
    }
    return {name: seconds for name, seconds in moments.items() if seconds is not None}


def _attributes(record: RequestRecord) -> dict[str, Any]:
    attributes = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status or None,
        "error.type": record.error_code or None,
        "gen_ai.request.model": record.model or None,
        "gen_ai.request.id": record.request_id,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_generated_tokens,
        "gen_ai.latency.time_in_queue": record.queue_wait_s,
        "gen_ai.latency.time_to_first_token": record.first_byte_s,
        "gen_ai.latency.e2e": record.elapsed_s,
        "qserve.worker": record.worker or None,
        "qserve.phase": record.phase,
        "qserve.client_left": record.client_left or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}
