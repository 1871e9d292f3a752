"""Prometheus metrics of the gateway. docs/api.md explains each; a test compares the two."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping

import psutil
from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics, generate_latest

from qserve.gateway.telemetry.instruments import Counter, Histogram, Instrument, Series
from qserve.gateway.telemetry.machine_memory import MachineMemory, MachineMemoryGauges
from qserve.gateway.telemetry.record import RequestRecord
from qserve.gateway.telemetry.worker_gauges import WorkerGauges, WorkerView

__all__ = ["GatewayMetrics"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter's time of birth doubles the text, and nobody reads it

_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ITL_BUCKETS_S = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_E2E_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
# The last match counts: Anthropic's streams also report usage at their beginning.
_USAGE = re.compile(rb'.*"usage"\s*:\s*\{(.*)', re.DOTALL)
# OpenAI's completions, and everybody else.
_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d+)')
# Of Anthropic's answers, beside the tokens of the prompt that were computed.
_CACHED_TOKENS = re.compile(rb'"cache_(?:creation|read)_input_tokens"\s*:\s*(\d+)')
_COMPLETION_TOKENS = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d+)')

_PHASES = ("reading", "queued", "waiting", "streaming")
_LATE = ("deadline_unreachable", "deadline_exceeded")
_QUEUE_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class GatewayMetrics:
    """One registry per gateway. Labels come from routes, served models and workers, never from a client's text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._instruments: dict[str, Instrument] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            made = self._instruments[name] = Counter(f"qserve_gateway_{name}", text, labels, self.registry)
            return made

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            made = self._instruments[name] = Histogram(f"qserve_gateway_{name}", text, labels, buckets, self.registry)
            return made

        self._requests = counter("requests", "Requests answered", "route", "model", "status")
        self._probes = counter("probes", "Requests by which commands of qserve test the server", "route", "status")
        self._errors = counter("errors", "Errors by their code, those inside streams included", "code")
        self._disconnects = counter("disconnects", "Clients that left before their answer was complete", "phase")
        for phase in _PHASES:
            self._disconnects.labels(phase)  # exposed as 0 from the start, so that rates work
        self._retries = counter(
            "retries", "Requests that another replica retried, by the replica that failed and why", "worker", "code"
        )
        self.continued = counter(
            "streams_continued", "Streams whose worker died and that another one continued", "model"
        )
        self._late = counter(
            "deadlines_missed", "Requests that a deadline kept out (deadline_unreachable) or ended", "model", "code"
        )
        self.stream_events = counter("stream_events", "Server-sent events relayed", "model")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens, from the usage that workers report", "model")
        self._generation_tokens = counter("generation_tokens", "Tokens generated, from the same usage", "model")
        self._key_requests = counter("key_requests", "Requests of keys with names", "key", "status")
        self._key_tokens = counter("key_tokens", "Tokens of keys with names, of prompts and generated", "key", "kind")
        self.queue_wait = histogram("queue_wait_seconds", "Wait for a slot at the worker", _QUEUE_BUCKETS_S, "worker")
        self.ttft = histogram(
            "time_to_first_token_seconds", "Streams: request received to first event sent", _TTFT_BUCKETS_S, "model"
        )
        self.itl = histogram("inter_token_latency_seconds", "Streams: time between two events", _ITL_BUCKETS_S, "model")
        self._tpot = histogram(
            "time_per_output_token_seconds",
            "Streams: E2E less the time to the first token, over the tokens after it",
            _ITL_BUCKETS_S,
            "model",
        )
        self._e2e = histogram(
            "e2e_request_latency_seconds",
            "Answered generations: request received to last byte sent",
            _E2E_BUCKETS_S,
            "model",
        )
        process = psutil.Process()
        self.journal_bytes: Callable[[], float] = lambda: 0
        self.background_bytes: Callable[[], float] = lambda: 0
        self.key_names: Callable[[], Iterable[str]] = lambda: ()
        """Keys with names, whose counts are exposed as 0 from the start, so that rates work."""
        self.num_processes: Callable[[], float] = lambda: 1
        self.resident_bytes: Callable[[], float] = lambda: process.memory_info().rss
        self._gauge(
            "resident_memory_bytes", "Resident memory of the gateway's processes", lambda: self.resident_bytes()
        )
        self._gauge("journal_bytes", "What streams keep to be continued elsewhere", lambda: self.journal_bytes())
        self._gauge("background_bytes", "What background responses hold in memory", lambda: self.background_bytes())
        self._gauge("processes", "Processes that relay requests (--gateway-processes)", lambda: self.num_processes())

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"qserve_gateway_{name}", text, registry=self.registry).set_function(read)

    def watch_workers(self, workers: Iterable[WorkerView]) -> None:
        """Adds gauges of each worker's state, load and memory."""
        watched = list(workers)
        self.registry.register(WorkerGauges(watched))
        self._probes.labels("/v1/chat/completions", "200")
        for worker in watched:
            self._retries.labels(worker.name, "worker_died")  # exposed as 0 from the start, so that rates work
            for model, code in itertools.product(worker.status.facts.names, _LATE):
                self._late.labels(model, code)
            if worker.status.facts.role == "chat":
                self.continued.labels(worker.status.facts.models[0])

    def watch_machine(self, memory: MachineMemory) -> None:
        """Adds gauges of the machine's free memory."""
        self.registry.register(MachineMemoryGauges(memory))

    def count_retry(self, worker: str, code: str) -> None:
        """Count a retry after a failure of `worker`."""
        self._retries.labels(worker, code).inc()

    def count_error(self, code: str) -> None:
        """One error, by its `code`."""
        self._errors.labels(code).inc()

    def count_usage(self, record: RequestRecord, answer: bytes) -> None:
        """Adds the tokens of `"usage": {…}`, if it is there. Inside a JSON string its quotes would be escaped."""
        usage = _USAGE.match(answer)
        if usage is None:
            return
        if found := _PROMPT_TOKENS.search(usage[1]):
            record.num_prompt_tokens = int(found[1]) + sum(map(int, _CACHED_TOKENS.findall(usage[1])))
            self._prompt_tokens.labels(record.model).inc(record.num_prompt_tokens)
        if found := _COMPLETION_TOKENS.search(usage[1]):
            record.num_generated_tokens = int(found[1])
            self._generation_tokens.labels(record.model).inc(record.num_generated_tokens)

    def count_tpot(self, record: RequestRecord) -> None:
        """A stream that came to its end."""
        if (tpot_s := record.tpot_s) is not None:
            self._tpot.labels(record.model).observe(tpot_s)

    def finish(self, record: RequestRecord) -> None:
        """Counts a request that is over."""
        if record.e2e_s is not None:
            self._e2e.labels(record.model).observe(record.e2e_s)
        if record.is_probe:
            self._probes.labels(record.route, str(record.status)).inc()
            return
        self._requests.labels(record.route, record.model, str(record.status)).inc()
        if record.key:
            self._count_key(record)
        if record.error_code:
            self.count_error(record.error_code)
        if record.error_code in _LATE:
            self._late.labels(record.model, record.error_code).inc()
        if record.client_left:
            self._disconnects.labels(record.phase).inc()

    def _expose_key(self, name: str) -> None:
        self._key_requests.labels(name, "200")
        for kind in ("prompt", "generated"):
            self._key_tokens.labels(name, kind)

    def _count_key(self, record: RequestRecord) -> None:
        self._key_requests.labels(record.key, str(record.status)).inc()
        self._key_tokens.labels(record.key, "prompt").inc(record.num_prompt_tokens or 0)
        self._key_tokens.labels(record.key, "generated").inc(record.num_generated_tokens or record.num_events)

    def counted(self) -> dict[str, Series]:
        """All counts as JSON, for the sum over several processes; without gauges."""
        return {name: one.series() for name, one in self._instruments.items()}

    def add(self, counted: Mapping[str, Series]) -> None:
        """Adds the counts of another process."""
        for name, series in counted.items():
            self._instruments[name].add(series)

    def exposition(self) -> bytes:
        """Prometheus text, version 0.0.4."""
        for name in self.key_names():
            self._expose_key(name)
        return generate_latest(self.registry)
