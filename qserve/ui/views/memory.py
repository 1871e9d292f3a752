"""The memory and latency page as HTML, from what the API told: pictures first, the numbers below them."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qserve.ui.client.exposition import Histogram, Sample, histograms, total
from qserve.ui.strings import say
from qserve.ui.views.charts import Bar, Part, histogram, stacked_bars, table, tiles
from qserve.units import format_bytes

__all__ = [
    "TERMS",
    "comparisons_view",
    "evals_view",
    "host_view",
    "latency_view",
    "live_view",
    "memory_view",
    "plan_bars",
    "planned_latency_view",
    "runs_view",
]

TERMS = ("weights", "kv_cache", "activations", "cuda_graphs", "runtime")
_LATENCIES = {
    "ttft": ("qserve_gateway_time_to_first_token_seconds", "model"),
    "itl": ("qserve_gateway_inter_token_latency_seconds", "model"),
    "e2e": ("qserve_gateway_e2e_request_latency_seconds", "model"),
    "queue": ("qserve_gateway_queue_wait_seconds", "worker"),
}
_PERCENTILES = (0.5, 0.9, 0.99)
_MOST_RUNS = 20


def memory_view(workers: Sequence[Mapping[str, Any]], language: str) -> str:
    """Planned against measured, a pair of bars a worker, and a row a term."""
    return "".join(_worker_view(worker, language) for worker in workers)


def host_view(host: Sequence[Mapping[str, Any]], language: str) -> str:
    """The service's processes without a model: a row each, planned beside measured; empty where none is told."""
    rows = []
    for one in host:
        held = one.get("resident_bytes")
        difference = f"{100 * one['difference']:+.1f} %" if held is not None else ""
        told = _size(held) if held is not None else say(language, "memory.not_running")
        rows.append((one["process"], _size(one["planned_bytes"]), told, difference, one["source"]))
    keys = ("beside", "planned", "measured", "difference", "source")
    return table([say(language, f"memory.{key}") for key in keys], rows, numbers=(1, 2, 3)) if rows else ""


def plan_bars(plan: Mapping[str, Any], language: str) -> str:
    """A bar a device over its whole memory."""
    bars = [
        Bar(
            str(device["name"]),
            (*_parts(device, language), _part("used_by_others", device.get("used_by_others_bytes") or 0, language)),
            float(device["total_bytes"] or 0) or None,
            say(
                language,
                "memory.of",
                used=format_bytes(sum(int(device.get(f"{term}_bytes") or 0) for term in TERMS)),
                total=format_bytes(int(device["total_bytes"] or 0)),
            ),
        )
        for device in plan["devices"]
    ]
    return stacked_bars(bars, _size)


def live_view(samples: Sequence[Sample], earlier: Sequence[Sample], seconds: float, language: str) -> str:
    """What runs and waits now; rates since the earlier samples. `seconds` lie between the two; 0: none are earlier."""
    usage = [one for one in samples if one.name.endswith(("kv_cache_usage_ratio", "kv_cache_usage_perc"))]
    figures = [
        (f"{say(language, 'memory.kv_use')} ({one.labels.get('worker', '')})", f"{100 * one.value:.1f} %")
        for one in usage
    ]
    for name in ("running", "waiting"):
        value = total(samples, f"qserve_gateway_requests_{name}")
        if value is not None:
            figures.append((say(language, f"memory.{name}"), f"{value:.0f}"))
    rates = {
        "tokens_per_s": ("qserve_worker_generated_tokens_total", "vllm:generation_tokens_total"),
        "rewards_per_s": ("qserve_reward_texts_total",),
    }
    for key, names in rates.items():
        rate = _rate(samples, earlier, names, seconds)
        if rate is not None:
            figures.append((say(language, f"memory.{key}"), f"{rate:.1f}"))
    return tiles(figures)


def latency_view(samples: Sequence[Sample], language: str) -> str:
    """A histogram for each kind of latency and model, and their percentiles in a table."""
    pictures, rows = [], []
    for key, (name, by) in _LATENCIES.items():
        for model, one in histograms(samples, name, by).items():
            if one.count:
                title = f"{say(language, f'memory.{key}')} · {model}"
                edges, counts = one.trimmed()
                pictures.append(histogram([_duration(edge) for edge in edges], counts, title))
                rows.append((title, f"{one.count:,.0f}", *_figures(one)))
    if not rows:
        return f'<p class="qs-small">{say(language, "memory.no_requests")}</p>'
    head = [
        say(language, "memory.latency"),
        say(language, "memory.count"),
        "p50",
        "p90",
        "p99",
        say(language, "memory.mean"),
    ]
    return f'<div class="qs-grid">{"".join(pictures)}</div>{table(head, rows, numbers=(1, 2, 3, 4, 5))}'


def planned_latency_view(workers: Sequence[Mapping[str, Any]], language: str) -> str:
    """Of each worker whose latency was planned: planned mean with its band, measured mean and median."""
    told = [(worker, worker["latency"]) for worker in workers if worker.get("latency")]
    rows = [
        (
            f"{say(language, f'memory.{key}')} · {', '.join(worker.get('models') or ())}",
            f"{latency['num_requests']:,}",
            f"{_ms(one['planned_mean'])} ({_ms(one['low'])} – {_ms(one['high'])})",
            _ms(one["measured_mean"]),
            _ms(one["measured_p50"]),
            f"{100 * one['difference']:+.1f} %",
        )
        for worker, latency in told
        for key, one in (("ttft", latency["ttft_ms"]), ("tpot", latency["tpot_ms"]))
    ]
    if not rows:
        return ""
    keys = ("latency", "count", "planned_band", "measured_mean", "measured_p50", "difference")
    source = html.escape(say(language, "memory.planned_latency"))
    head = [say(language, f"memory.{key}") for key in keys]
    return f'<p class="qs-small">{source}</p>{table(head, rows, numbers=(1, 2, 3, 4, 5))}'


def runs_view(runs: Sequence[Mapping[str, Any]], language: str) -> str:
    """The newest runs, one a row."""
    rows = [
        (
            run["id"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run["started_unix_s"])),
            _duration(float(run.get("duration_s") or 0)),
            run.get("state", ""),
            ", ".join(
                " ".join(str(part) for part in (*(worker.get("models") or ())[:1], worker.get("quant")) if part)
                for worker in run.get("workers") or ()
            ),
            f"{run.get('num_requests') or 0:,}",
            f"{run.get('num_errors') or 0:,}",
        )
        for run in list(runs)[:_MOST_RUNS]
    ]
    keys = ("run", "when", "duration", "status", "models", "count", "errors")
    return table([say(language, f"memory.{key}") for key in keys], rows, numbers=(2, 5, 6))


def evals_view(evals: Sequence[Mapping[str, Any]], language: str) -> str:
    """Results of evaluations in lm-eval's shape: one value a row."""
    rows = [
        (one.get("name") or "", task, metric, f"{value:.4f}")
        for one in evals
        for task, values in _results(one).items()
        for metric, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "stderr" not in metric
    ]
    keys = ("evals", "task", "metric", "value")
    return table([say(language, f"memory.{key}") for key in keys], rows, numbers=(3,)) if rows else ""


def comparisons_view(comparisons: Sequence[Mapping[str, Any]], language: str) -> str:
    """Quantizations side by side, as `qserve compare` kept them: accuracy, weights, speed, and its advice."""
    return "".join(_comparison(one.get("document") or {}, language) for one in comparisons)


def _comparison(document: Mapping[str, Any], language: str) -> str:
    rows = [
        (
            one["quant"],
            f"{one['accuracy']:.4f} ± {one['stderr']:.4f}",
            _size(one["weights_bytes"]),
            f"{(one.get('load') or {}).get('tokens_per_s') or 0:.1f}",
        )
        for one in document.get("candidates") or ()
    ]
    if not rows:
        return ""
    keys = ("memory.comparisons", "score.accuracy", "term.weights", "memory.tokens_per_s")
    advice = html.escape(str(document.get("advice") or ""))
    return f'{table([say(language, key) for key in keys], rows, numbers=(1, 2, 3))}<p class="qs-small">{advice}</p>'


def _results(one: Mapping[str, Any]) -> Mapping[str, Any]:
    document = one.get("document") or {}
    results = document.get("results") or (document.get("lm_eval") or {}).get("results") or {}
    return results if isinstance(results, Mapping) else {}


def _worker_view(worker: Mapping[str, Any], language: str) -> str:
    planned, measured = worker.get("planned") or {}, worker.get("memory") or {}
    devices = planned.get("devices") or []
    bars = [
        Bar(
            f"{device['name']} · {say(language, 'memory.planned')}",
            _parts(device, language),
            note=_size(sum(int(device.get(f"{term}_bytes") or 0) for term in TERMS)),
        )
        for device in devices
    ]
    if measured:
        bars.append(
            Bar(
                say(language, "memory.measured"),
                _parts(measured, language),
                note=_size(sum(int(measured.get(f"{term}_bytes") or 0) for term in TERMS)),
            )
        )
    name = ", ".join(worker.get("models") or ()) or str(worker.get("worker", ""))
    if worker.get("role", worker.get("worker")) != worker.get("worker"):
        name = f"{name} · {worker['worker']}"  # one of several replicas
    inside = stacked_bars(bars, _size) if bars else ""
    if worker.get("error"):
        why = say(language, "memory.failed", why=_sentence(worker["error"]))
        inside += f'<div class="qs-error">{html.escape(why)}</div>'
    inside += _terms_table(devices, measured, language)
    if phases := worker.get("start_phases_s"):
        told = " · ".join(f"{phase} {seconds:.1f} s" for phase, seconds in phases.items())
        inside += f'<p class="qs-small">{say(language, "memory.start")}: {html.escape(told)}</p>'
    return f'<section class="qs-worker"><h3>{html.escape(name)}</h3>{inside}</section>'


def _terms_table(devices: Sequence[Mapping[str, Any]], measured: Mapping[str, Any], language: str) -> str:
    rows = []
    sources = measured.get("sources") or {}
    for term in TERMS:
        planned = sum(int(device.get(f"{term}_bytes") or 0) for device in devices)
        held = measured.get(f"{term}_bytes")
        if planned or held:
            difference = f"{100 * (held - planned) / planned:+.1f} %" if held is not None and planned else ""
            told = _size(held) if held is not None else "—"
            rows.append(
                (say(language, f"term.{term}"), _size(planned), told, difference, sources.get(f"{term}_bytes", ""))
            )
    if measured.get("resident_bytes"):
        resident = _size(measured["resident_bytes"])
        rows.append((say(language, "term.resident"), "—", resident, "", sources.get("resident_bytes", "")))
    keys = ("term", "planned", "measured", "difference", "source")
    return table([say(language, f"memory.{key}") for key in keys], rows, numbers=(1, 2, 3)) if rows else ""


def _parts(held: Mapping[str, Any], language: str) -> tuple[Part, ...]:
    return tuple(_part(term, held.get(f"{term}_bytes") or 0, language) for term in TERMS)


def _part(term: str, num_bytes: float, language: str) -> Part:
    return Part(term.replace("_", "-"), say(language, f"term.{term}"), float(num_bytes))


def _rate(samples: Sequence[Sample], earlier: Sequence[Sample], names: Sequence[str], seconds: float) -> float | None:
    for name in names:
        now, before = total(samples, name), total(earlier, name)
        if now is not None:
            # A counter that fell belongs to a worker that was started anew.
            return max(0.0, now - before) / seconds if before is not None and seconds > 0 else 0.0
    return None


def _figures(one: Histogram) -> list[str]:
    return [*(_percentile(one, share) for share in _PERCENTILES), _duration(one.sum_s / one.count)]


def _percentile(one: Histogram, share: float) -> str:
    """Interpolated, but where its bucket begins at zero or has no end: there a number would be invented."""
    low, high = one.percentile_range_s(share) or (0.0, 0.0)
    if math.isinf(high):
        return f"> {_duration(low)}"
    return f"< {_duration(high)}" if low == 0 else _duration(one.percentile_s(share) or 0.0)


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "∞"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _ms(milliseconds: float) -> str:
    return _duration(milliseconds / 1000)


def _size(num_bytes: float) -> str:
    return format_bytes(int(num_bytes))


def _sentence(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
