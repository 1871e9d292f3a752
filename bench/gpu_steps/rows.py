"""Rows of bench/gpu.py: a line of each for the screen, and a verdict over all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.gpu_steps.order import GROUPS

__all__ = ["Result", "Row", "is_well", "off_by", "rows_in", "sentence", "what_of"]

_GIB = 1024**3
_UNITS = {"_bytes": (_GIB, "GiB"), "_ms": (1, "ms"), "ms_per_step": (1, "ms a step"), "_s": (1, "s")}

Result = dict[str, Any]
"""What the JSON file holds: rows by group, beside versions, card and limits."""
Row = dict[str, Any]
"""`planned` and `measured` figures by name, `ok`, and what was `skipped` or an `error`."""


def rows_in(result: Result) -> Iterator[Row]:
    """All of them, in the order of their groups."""
    for group in ("machine", *GROUPS):
        yield from result.get(group, ())


def is_well(result: Result) -> bool:
    """Whether nothing that was tried is wrong. What was skipped is neither."""
    return not any(row.get("ok") is False for row in rows_in(result))


def sentence(row: Row) -> str:
    """One line: what it is, what was planned, what was measured."""
    what = what_of(row)
    reason = row.get("skipped") or row.get("error")
    if reason:
        return f"{what}: {'FAILED: ' if row.get('error') else 'skipped: '}{reason}"
    parts = [*_pairs(row.get("planned", {}), row.get("measured", {})), *_others(row)]
    parts += [] if row.get("ok") is not False else ["NOT AS IT SHOULD BE"]
    return f"{what}: {' · '.join(parts)} ({row.get('seconds', 0):.1f} s)"


def what_of(row: Row) -> str:
    """What was measured, of which model, in which scheme, on which engine."""
    names = ("what", "kernel", "model", "reward", "scheme", "engine")
    return ", ".join(dict.fromkeys(str(row[name]).removeprefix("Qwen/") for name in names if row.get(name)))


def _pairs(planned: Row, measured: Row) -> Iterator[str]:
    for name, value in measured.items():
        if not isinstance(value, int | float) or value is True:
            continue
        wanted = planned.get(name)
        if wanted:
            said, off = f"{_short(name, wanted)} planned, {_short(name, value)}", off_by(wanted, value)
            yield f"{name.replace('_', ' ')} {said} ({off})"
        else:
            yield f"{name.replace('_', ' ')} {_short(name, value)}"


def _others(row: Row) -> Iterator[str]:
    for one in row.get("at", ()):
        yield f"{one['way']} × {one['rows']}: {one['us']:.1f} µs, {one['GB_per_s']:.0f} GB/s{_wrong(one)}"
    for one in row.get("kernels", ())[:3]:
        yield f"{one['name'][:40]} {one['us']:.0f} µs in {one['calls']} calls"
    for role, worker in row.get("workers", {}).items():
        yield f"{role}: " + ", ".join(_pairs(worker["planned"], worker["measured"]))
    for name in ("ready_s", "load_s", "mean_kl", "moved_bytes_per_s", "batcher", "places", "pinned"):
        if name in row:
            yield f"{name.replace('_', ' ')} {_short(name, row[name])}"
    path = row.get("path") or {}
    if path:
        refused = "; ".join(f"{one['kernel']} REFUSED: {one['reason']}" for one in path.get("refused", ()))
        ran = f"{path.get('batcher')}, {path.get('path')}, attention {path.get('attention')}"
        yield f"{ran}, {refused}" if refused else ran


def _wrong(one: Row) -> str:
    return "" if one["right"] else f", WRONG by {one['off_by']:.2g}"


def _short(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if name.endswith("_per_s") and value >= 1e9:
        return f"{value / 1e9:.4g} G" if value < 1e12 else f"{value / 1e12:.4g} T"
    divisor, unit = next((rule for end, rule in _UNITS.items() if name.endswith(end)), (1, ""))
    if name.endswith("_per_s"):
        unit = ""
    return f"{value / divisor:.4g} {unit}".rstrip()


def off_by(planned: float, measured: float) -> str:
    """Measured over planned, less one, in percent."""
    return f"{100 * (measured / planned - 1):+.0f} %"
