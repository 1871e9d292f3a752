"""The reward worker's own metrics, in Prometheus' text format. The gateway adds them to its /metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from qserve.reward.items import Score, ScorerStats
from qserve.reward.serving.report import LENGTHS, RecentRequests
from qserve.reward.serving.scorer import Scorer

if TYPE_CHECKING:
    from qserve.reward.recipe.without_model import NoModel

__all__ = ["RewardMetrics"]

_TEXTS_A_ROW = (1, 2, 4, 8, 16, 32, 64, 128)
# Rewards have no scale of their own: dense around zero, where most heads are, and far enough out to see one drift.
_REWARDS = (-30, -20, -10, -5, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 5, 10, 20, 30)
_LATENCIES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class RewardMetrics:
    """Requests as they are answered, and the scorer's books at the time of the scrape."""

    def __init__(self, scorer: Scorer | NoModel) -> None:
        self.recent = RecentRequests()
        self._registry = CollectorRegistry()
        self._latency = Histogram(
            "qserve_reward_latency_seconds",
            "From a request's last byte to its last score, by the tokens of its longest text (upper bound)",
            ("max_tokens",),
            buckets=_LATENCIES_S,
            registry=self._registry,
        )
        self._texts = Histogram(
            "qserve_reward_request_texts", "Texts of a request", buckets=_TEXTS_A_ROW, registry=self._registry
        )
        self._rewards = Histogram(
            "qserve_reward_score", "Rewards as the head gives them", buckets=_REWARDS, registry=self._registry
        )
        self._registry.register(_ScorerCollector(scorer))

    def observe(self, scores: Sequence[Score], latency_s: float) -> None:
        """One request that was answered."""
        longest = max(score.num_tokens for score in scores)
        bound = next((str(length) for length in LENGTHS if longest <= length), "more")
        self._latency.labels(bound).observe(latency_s)
        self._texts.observe(len(scores))
        for score in scores:
            if score.vector is None:
                self._rewards.observe(score.reward)
        self.recent.observe(scores, latency_s)

    def exposition(self) -> bytes:
        """The text of one scrape."""
        return generate_latest(self._registry)


class _ScorerCollector(Collector):
    def __init__(self, scorer: Scorer | NoModel) -> None:
        self._scorer = scorer

    def collect(self) -> list[Metric]:
        """The metric families."""
        stats = self._scorer.stats
        return [
            CounterMetricFamily("qserve_reward_texts", "Texts scored", stats.num_items),
            CounterMetricFamily("qserve_reward_tokens", "Tokens of texts scored", stats.num_tokens),
            CounterMetricFamily(
                "qserve_reward_computed_tokens",
                "Tokens that went through the model: padding counts, shared beginnings count once",
                stats.num_computed_tokens,
            ),
            CounterMetricFamily("qserve_reward_truncated_texts", "Texts that were cut off", stats.num_truncated),
            CounterMetricFamily(
                "qserve_reward_out_of_memory", "Rows that were split for lack of memory", stats.num_out_of_memory
            ),
            CounterMetricFamily("qserve_reward_busy_seconds", "Time in the model", stats.busy_s),
            GaugeMetricFamily(
                "qserve_reward_padding_ratio",
                "Share of padding in the computed tokens",
                stats.num_padding_tokens / max(1, stats.num_computed_tokens),
            ),
            _rows(stats),
        ]


def _rows(stats: ScorerStats) -> Metric:
    """Texts that were computed together: batch sizes."""
    counts = dict(stats.rows_of_items)
    buckets = [
        (str(bound), float(sum(rows for texts, rows in counts.items() if texts <= bound))) for bound in _TEXTS_A_ROW
    ]
    buckets.append(("+Inf", float(sum(counts.values()))))
    total = float(sum(texts * rows for texts, rows in counts.items()))
    return HistogramMetricFamily(
        "qserve_reward_row_texts", "Texts that were computed together", buckets=buckets, sum_value=total
    )
