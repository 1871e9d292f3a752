"""Traces by the real OpenTelemetry SDK: a span per request, child of the client's and parent of the worker's."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import sys
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qserve.errors import MissingExtra, UsageError
from qserve.gateway.telemetry.record import RequestRecord
from qserve.gateway.telemetry.tracing import OpenTelemetry, to_collector

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=x"}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = OpenTelemetry(provider)
    yield traces
    traces.close()


async def _span(exporter, stack, body, path="/v1/chat/completions", headers=CONTEXT):
    """The span of one request, and its answer's status."""
    async with stack.http.post(f"{stack.url}{path}", json=body, headers=headers) as response:
        await response.read()
    async with asyncio.timeout(60):  # it ends in the gateway after the client has read the last byte
        while not exporter.get_finished_spans():
            await asyncio.sleep(0.005)
    (span,) = exporter.get_finished_spans()
    return span, response.status


async def test_a_streams_span_has_queue_first_byte_and_end(running, request_chat, exporter, traces):
    body = request_chat(chunks=4, ttft_ms=40, itl_ms=5, stream_options={"include_usage": True})
    async with running(traces=traces) as stack:
        span, _ = await _span(exporter, stack, body)
        seen = (await stack.debug())["last_headers"]
    assert span.name == "POST /v1/chat/completions"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    times = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert [event.name for event in span.events] == ["queued", "admitted", "first_byte"]
    assert times == sorted(times)
    told = span.attributes
    assert (told["http.route"], told["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert (told["gen_ai.request.model"], told["gen_ai.usage.output_tokens"]) == ("fake", 4)
    assert told["gen_ai.latency.time_to_first_token"] >= 0.04
    assert told["gen_ai.latency.e2e"] > told["gen_ai.latency.time_to_first_token"]
    assert seen["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01", "the worker's parent is our span"
    assert seen["tracestate"] == "vendor=x"


async def test_a_fault_of_ours_is_one_of_the_span_and_a_clients_is_not(running, request_chat, exporter, traces):
    async with running(traces=traces) as stack:
        span, status = await _span(exporter, stack, {**request_chat(), "nonsense": 1})
        assert (status, span.status.is_ok, span.attributes["http.response.status_code"]) == (400, True, 400)
        exporter.clear()
        span, status = await _span(exporter, stack, request_chat(stream=False, fault="html"))
    assert (status, span.status.is_ok, span.attributes["error.type"]) == (502, False, "worker_error")


@pytest.mark.parametrize("bad", ["", "00-xyz", f"00-{TRACE}-{PARENT}-01\tx", f"00-{'0' * 32}-{PARENT}-01"])
async def test_a_context_that_is_none_begins_a_trace_of_its_own(running, request_chat, exporter, traces, bad):
    async with running(traces=traces) as stack:
        span, status = await _span(exporter, stack, request_chat(stream=False), headers={"traceparent": bad})
    assert status == 200
    assert span.parent is None
    assert f"{span.context.trace_id:032x}" != TRACE


async def test_what_is_polled_has_no_span(running, exporter, traces):
    async with running(traces=traces) as stack:
        for path in ("/health", "/ready", "/metrics"):
            async with stack.http.get(stack.url + path) as response:
                assert response.status == 200
    assert not exporter.get_finished_spans()


async def test_without_a_collector_the_context_is_handed_on_as_it_came(running, request_chat):
    async with running() as stack:
        async with stack.http.post(
            f"{stack.url}/v1/chat/completions", json=request_chat(stream=False), headers=CONTEXT
        ) as response:
            assert response.status == 200
        assert CONTEXT.items() <= (await stack.debug())["last_headers"].items()
        async with stack.http.post(
            f"{stack.url}/v1/chat/completions", json=request_chat(stream=False), headers={"traceparent": "nonsense"}
        ):
            assert "traceparent" not in (await stack.debug())["last_headers"]


def test_spans_reach_the_collector_at_the_latest_when_the_service_ends():
    received = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        listening = threading.Thread(target=server.serve_forever)
        listening.start()
        traces = to_collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        scope = {"method": "POST", "headers": [(b"traceparent", CONTEXT["traceparent"].encode())]}
        record = RequestRecord.begin(scope, "/v1/chat/completions")
        traces.begin(record)
        traces.end(record)
        traces.close()
        server.shutdown()
        listening.join()
    ((path, body),) = received
    assert path == "/v1/traces"
    (spans,) = ExportTraceServiceRequest.FromString(gunzipped(body)).resource_spans
    assert {"service.name", "service.version"} <= {one.key for one in spans.resource.attributes}
    (span,) = spans.scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("POST /v1/chat/completions", TRACE)


def gunzipped(body):
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def test_a_collector_is_named_by_its_whole_address():
    with pytest.raises(UsageError, match=r"--otlp-traces-endpoint collector:4317 is not an address; write it whole"):
        to_collector("collector:4317")


def test_without_the_extra_a_sentence_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match=r'pip install "opentelemetry-sdk'):
        to_collector("http://127.0.0.1:4318/v1/traces")
