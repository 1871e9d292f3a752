"""Memory as HTML, planned beside measured: bars first, the numbers below them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from qserve.charts.html import draw
from qserve.charts.spec import TERM_COLOURS, Bar, Segment, StackedBars
from qserve.planner.term import COLUMNS
from qserve.ui.client.api import ApiFailure
from qserve.ui.strings import heading, translate
from qserve.ui.strings.sentences import shown
from qserve.ui.views.durations import difference
from qserve.ui.views.failures import failure_view
from qserve.ui.views.tables import table
from qserve.units import format_bytes

__all__ = ["host_view", "memory_view", "plan_bars"]


def memory_view(workers: Sequence[Mapping[str, Any]], language: str) -> str:
    """Planned against measured, a pair of bars a worker, and a row a term."""
    return "".join(_worker_view(worker, language) for worker in workers)


def host_view(host: Sequence[Mapping[str, Any]], language: str) -> str:
    """The service's processes without a model: a row each, planned beside measured; empty where none is told."""
    rows = []
    for one in host:
        held = one.get("resident_bytes")
        differing = difference(one["difference"]) if held is not None else ""
        measured = _size(held) if held is not None else translate(language, "memory.not_running")
        name, source = (shown(language, one[key]) for key in ("process", "source"))
        rows.append((name, _size(one["planned_bytes"]), measured, differing, source))
    keys = ("beside", "planned", "measured", "difference", "source")
    return table([heading(language, f"memory.{key}") for key in keys], rows, numbers=(1, 2, 3)) if rows else ""


def plan_bars(plan: Mapping[str, Any], language: str) -> str:
    """A bar a device over its whole memory; one for all that are planned alike."""
    groups = [(device, len(list(alike))) for device, alike in groupby(plan["devices"])]
    bars = [
        Bar(
            f"{count} × {device['name']}, {translate(language, 'plan.each')}" if count > 1 else str(device["name"]),
            (*_parts(device, language), _part("used_by_others", device.get("used_by_others_bytes") or 0, language)),
            translate(
                language,
                "memory.of",
                used=format_bytes(sum(int(device.get(f"{term}_bytes") or 0) for term in COLUMNS)),
                total=format_bytes(int(device["total_bytes"] or 0)),
            ),
            float(device["total_bytes"] or 0) or None,
        )
        for device, count in groups
    ]
    return draw(StackedBars(tuple(bars)))


def _worker_view(worker: Mapping[str, Any], language: str) -> str:
    planned, measured = worker.get("planned") or {}, worker.get("memory") or {}
    devices = planned.get("devices") or []
    bars = [
        Bar(
            f"{device['name']} · {translate(language, 'memory.planned')}",
            _parts(device, language),
            _size(sum(int(device.get(f"{term}_bytes") or 0) for term in COLUMNS)),
        )
        for device in devices
    ]
    if measured:
        bars.append(
            Bar(
                translate(language, "memory.measured"),
                _parts(measured, language),
                _size(sum(int(measured.get(f"{term}_bytes") or 0) for term in COLUMNS)),
            )
        )
    name = ", ".join(worker.get("models") or ()) or str(worker.get("worker", ""))
    if worker.get("role", worker.get("worker")) != worker.get("worker"):
        name = f"{name} · {worker['worker']}"  # one of several replicas
    inside = draw(StackedBars(tuple(bars))) if bars else ""
    if worker.get("error"):
        inside += failure_view(_failure(worker["error"]), language)
    inside += _terms_table(devices, measured, language)
    if phases := worker.get("start_phases_s"):
        start_phases = " · ".join(f"{shown(language, phase)} {seconds:.1f} s" for phase, seconds in phases.items())
        inside += f'<p class="qs-small">{translate(language, "memory.start")}: {html.escape(start_phases)}</p>'
    return f'<section class="qs-worker"><h3>{html.escape(name)}</h3>{inside}</section>'


def _terms_table(devices: Sequence[Mapping[str, Any]], measured: Mapping[str, Any], language: str) -> str:
    rows = []
    sources = measured.get("sources") or {}
    for term in COLUMNS:
        planned = sum(int(device.get(f"{term}_bytes") or 0) for device in devices)
        held = measured.get(f"{term}_bytes")
        if planned or held:
            differing = difference((held - planned) / planned) if held is not None and planned else ""
            measured_size = _size(held) if held is not None else "—"
            rows.append(
                (
                    translate(language, f"term.{term}"),
                    _size(planned),
                    measured_size,
                    differing,
                    shown(language, sources.get(f"{term}_bytes", "")),
                )
            )
    if measured.get("resident_bytes"):
        resident = _size(measured["resident_bytes"])
        source = shown(language, sources.get("resident_bytes", ""))
        rows.append((translate(language, "term.resident"), "—", resident, "", source))
    keys = ("term", "planned", "measured", "difference", "source")
    return table([heading(language, f"memory.{key}") for key in keys], rows, numbers=(1, 2, 3)) if rows else ""


def _parts(held: Mapping[str, Any], language: str) -> tuple[Segment, ...]:
    return tuple(_part(term, held.get(f"{term}_bytes") or 0, language) for term in COLUMNS)


def _part(term: str, num_bytes: float, language: str) -> Segment:
    return Segment(translate(language, f"term.{term}"), float(num_bytes), _size(num_bytes), TERM_COLOURS[term])


def _size(num_bytes: float) -> str:
    return format_bytes(int(num_bytes))


def _failure(error: Any) -> ApiFailure:
    """Why a worker could not be asked, as the gateway tells it."""
    told = error if isinstance(error, Mapping) else {"message": error}
    return ApiFailure(str(told.get("message", error)), code=str(told.get("code") or "worker_unreachable"))
