"""The reward worker's report since its start: latency by length, throughput, batch sizes, padding."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qserve.reward.items import Score

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import ScorerStats

__all__ = ["LENGTHS", "RecentRequests", "report_of"]

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Upper bounds, in tokens, of the classes that latencies are told by."""
_KEPT = 10_000


class RecentRequests:
    """Latencies of the last requests, by the tokens of their longest text. Bounded, so exact percentiles are cheap."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def observe(self, scores: Sequence[Score], latency_s: float) -> None:
        """One request that was answered."""
        self._kept.append((max(score.num_tokens for score in scores), latency_s))

    def by_length(self) -> list[dict[str, Any]]:
        """Percentiles in milliseconds for each class of length that was seen, shortest first, and for `all`."""
        classes: dict[int, list[float]] = {}
        for num_tokens, latency_s in self._kept:
            classes.setdefault(bisect.bisect_left(LENGTHS, num_tokens), []).append(latency_s)
        every = [latency_s for _, latency_s in self._kept]
        return [
            *(
                {"max_tokens": LENGTHS[index] if index < len(LENGTHS) else None, **_percentiles(classes[index])}
                for index in sorted(classes)
            ),
            *([{"max_tokens": "all", **_percentiles(every)}] if every else []),
        ]


def report_of(stats: ScorerStats, recent: RecentRequests) -> dict[str, Any]:
    """The document of the worker's GET /v1/qserve/report.

    Rates are over the time that the model was busy, so an idle server does not look slow. A pair is two texts.
    `shared_share` is the share of the texts' tokens that was not computed again because texts began alike.
    """
    busy_s = max(stats.busy_s, 1e-9)
    computed = max(1, stats.num_computed_tokens)
    useful = stats.num_computed_tokens - stats.num_padding_tokens
    return {
        "texts": stats.num_items,
        "tokens": stats.num_tokens,
        "truncated_texts": stats.num_truncated,
        "rows_split_for_want_of_memory": stats.num_out_of_memory,
        "busy_s": round(stats.busy_s, 3),
        "tokens_per_s": round(stats.num_tokens / busy_s, 1),
        "texts_per_s": round(stats.num_items / busy_s, 2),
        "pairs_per_s": round(stats.num_items / 2 / busy_s, 2),
        "padding_share": round(stats.num_padding_tokens / computed, 4),
        "shared_share": round(max(0.0, 1 - useful / max(1, stats.num_tokens)), 4),
        "texts_a_row": {str(texts): rows for texts, rows in sorted(stats.rows_of_items.items())},
        "latency_ms": recent.by_length(),
        "sources": {
            "latency_ms": f"from a request's last byte to its last score, in the worker; the last {_KEPT} requests",
            "rates": "over the time in the model, since the start",
        },
    }


def _percentiles(latencies_s: list[float]) -> dict[str, Any]:
    """Nearest-rank percentiles, as `vllm bench` users read them."""
    ranked = sorted(latencies_s)

    def at(share: float) -> float:
        return round(1e3 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 3)

    return {"requests": len(ranked), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99)}
