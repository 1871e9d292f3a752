"""Latency and load as HTML: what runs now, histograms with percentiles, and the plan's latency beside the measured."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from qserve.charts import spec
from qserve.charts.html import figure
from qserve.client.metrics import Histogram, Sample, histograms, total
from qserve.report.sections.latency import others_of
from qserve.ui.strings import heading, translate
from qserve.ui.views.durations import difference, duration, duration_of_ms
from qserve.ui.views.tables import table, tiles

__all__ = ["latency_view", "live_view", "planned_latency_view"]

_LATENCIES = {
    "ttft": ("qserve_gateway_time_to_first_token_seconds", "model"),
    "itl": ("qserve_gateway_inter_token_latency_seconds", "model"),
    "e2e": ("qserve_gateway_e2e_request_latency_seconds", "model"),
    "queue": ("qserve_gateway_queue_wait_seconds", "worker"),
}
_PERCENTILES = (0.5, 0.9, 0.99)


def live_view(samples: Sequence[Sample], earlier: Sequence[Sample], seconds: float, language: str) -> str:
    """What runs and waits now; rates since the earlier samples. `seconds` lie between the two; 0: none are earlier."""
    usage = [one for one in samples if one.name.endswith(("kv_cache_usage_ratio", "kv_cache_usage_perc"))]
    figures = [
        (f"{translate(language, 'memory.kv_use')} ({one.labels.get('worker', '')})", f"{100 * one.value:.1f} %")
        for one in usage
    ]
    for name in ("running", "waiting"):
        value = total(samples, f"qserve_gateway_requests_{name}")
        if value is not None:
            figures.append((translate(language, f"memory.{name}"), f"{value:.0f}"))
    rates = {
        "tokens_per_s": ("qserve_worker_generated_tokens_total", "vllm:generation_tokens_total"),
        "rewards_per_s": ("qserve_reward_texts_total",),
    }
    for key, names in rates.items():
        rate = _rate(samples, earlier, names, seconds)
        if rate is not None:
            figures.append((translate(language, f"memory.{key}"), f"{rate:.1f}"))
    return tiles(figures)


def latency_view(samples: Sequence[Sample], language: str) -> str:
    """A histogram for each kind of latency and model, and their percentiles in a table."""
    pictures, rows = [], []
    for key, (name, by) in _LATENCIES.items():
        for model, one in histograms(samples, name, by).items():
            if one.count:
                title = f"{translate(language, f'memory.{key}')} · {model}"
                edges, counts = one.trimmed()
                counted = translate(language, "score.num_tokens" if key == "itl" else "memory.count").lower()
                chart = spec.Histogram(tuple(map(duration, edges)), tuple(counts), "good")
                pictures.append(figure(title, chart, counted))
                rows.append((title, f"{one.count:,.0f}", *_figures(one)))
    if not rows:
        return f'<p class="qs-small">{translate(language, "memory.no_requests")}</p>'
    head = [
        translate(language, "memory.latency"),
        translate(language, "memory.count"),
        "p50",
        "p90",
        "p99",
        heading(language, "memory.mean"),
    ]
    return f'<div class="qs-grid">{"".join(pictures)}</div>{table(head, rows, numbers=(1, 2, 3, 4, 5))}'


def planned_latency_view(workers: Sequence[Mapping[str, Any]], language: str) -> str:
    """Of each worker whose latency was planned: planned mean with its band, measured mean and median."""
    latencies = [(worker, worker["latency"]) for worker in workers if worker.get("latency")]
    rows = [
        (
            f"{translate(language, f'memory.{key}')} · {', '.join(worker.get('models') or ())}",
            f"{latency['num_requests']:,}",
            f"{duration_of_ms(one['planned_mean'])} ({duration_of_ms(one['low'])} – {duration_of_ms(one['high'])})",
            duration_of_ms(one["measured_mean"]),
            duration_of_ms(one["measured_p50"]),
            difference(one["difference"]),
        )
        for worker, latency in latencies
        for key, one in (("ttft", latency["ttft_ms"]), ("tpot", latency.get("tpot_ms")))
        if one is not None
    ]
    if not rows:
        return ""
    keys = ("latency", "count", "planned_band", "measured_mean", "measured_p50", "difference")
    taken = max(others_of(latency) for _, latency in latencies)
    loaded = f" {translate(language, 'memory.others', percent=taken)}" if taken else ""
    source = html.escape(translate(language, "memory.planned_latency") + loaded)
    head = [heading(language, f"memory.{key}") for key in keys]
    return f'<p class="qs-small">{source}</p>{table(head, rows, numbers=(1, 2, 3, 4, 5))}'


def _rate(samples: Sequence[Sample], earlier: Sequence[Sample], names: Sequence[str], seconds: float) -> float | None:
    for name in names:
        now, before = total(samples, name), total(earlier, name)
        if now is not None:
            # A counter that fell belongs to a worker that was started anew.
            return max(0.0, now - before) / seconds if before is not None and seconds > 0 else 0.0
    return None


def _figures(one: Histogram) -> list[str]:
    return [*(_percentile(one, share) for share in _PERCENTILES), duration(one.sum_s / one.count)]


def _percentile(one: Histogram, share: float) -> str:
    """Interpolated, but where its bucket begins at zero or has no end: there a number would be invented."""
    low, high = one.percentile_range_s(share) or (0.0, 0.0)
    if math.isinf(high):
        return f"> {duration(low)}"
    return f"< {duration(high)}" if low == 0 else duration(one.percentile_s(share) or 0.0)
