"""The worker's own counters, in Prometheus' text format. The gateway adds them to its /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qserve.engines.transformers.worker.engine import Engine

__all__ = ["exposition"]


class _EngineCollector(Collector):
    """Reads the engine's own books at the time of the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> list[Metric]:
        """The metric families."""
        engine, load = self._engine, self._engine.batcher.load()
        return [
            CounterMetricFamily("qserve_worker_prompt_tokens", "Prompt tokens taken in", engine.num_prompt_tokens),
            CounterMetricFamily(
                "qserve_worker_cached_prompt_tokens", "Of them, those that were in the KV cache", load.num_shared_tokens
            ),
            CounterMetricFamily("qserve_worker_generated_tokens", "Tokens generated", engine.num_generated_tokens),
            GaugeMetricFamily("qserve_worker_sequences_running", "Sequences that generate", load.num_running),
            GaugeMetricFamily("qserve_worker_sequences_waiting", "Sequences that wait", load.num_waiting),
            GaugeMetricFamily("qserve_worker_kv_cache_usage_ratio", "Share of the KV pool in use", load.kv_cache_usage),
        ]


def exposition(engine: Engine) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine))
    return generate_latest(registry)
