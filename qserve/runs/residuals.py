"""Residuals of a worker: measured beside planned terms, which correct the next plan (`planner/calibration.py`).

Only a figure that means what the plan's term means is taken, and only in the direction that it proves:

    weights          summed up by the engine: exact
    CUDA graphs      vLLM's own account of its capturing: exact; of transformers what the card had less of after it,
                     which may only raise the term, since other processes may have given some back meanwhile
    activations      vLLM's profile of a whole step: exact; else the highest seen so far, which may only raise the term,
                     since a step that nobody asked for yet may need more
    runtime          the process before loading and what loading left (transformers): exact. Of vLLM only where the
                     whole holds more than all terms together: that much is missing in the plan
    KV cache tokens  what the engine made of the bytes it was given: exact
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from qserve.planner.calibration import CalibratedTerm, Residual
from qserve.planner.engine import engine_named
from qserve.planner.plan import Plan
from qserve.planner.term import COLUMNS

__all__ = ["residuals_in", "residuals_of"]

_COLUMNS = "engine, engine_version, device, on_cpu, shape, step, term, planned, measured, run_id, unix_s"


def residuals_of(plan: Plan, document: Mapping[str, Any], run: str) -> tuple[Residual, ...]:
    """What `document` (GET /v1/qserve/memory) says of `plan`, per device; empty for a plan that no planner made."""
    if not plan.shape or not plan.devices:
        return ()
    device, on_cpu = plan.devices[0].name, plan.on_cpu
    made = {one.term: one.difference for one in plan.corrections}
    terms = ((term, _uncorrected(plan, term, made), measured) for term, measured in _measured(plan, document).items())
    return tuple(
        Residual(plan.engine, plan.engine_version, device, on_cpu, plan.shape, plan.step, term, planned, measured, run)
        for term, planned, measured in terms
    )


def residuals_in(connection: sqlite3.Connection) -> tuple[Residual, ...]:
    """All that are stored, oldest first."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM residual ORDER BY unix_s")  # noqa: S608
    return tuple(Residual(*(*row[:3], bool(row[3]), *row[4:])) for row in rows)


def _uncorrected(plan: Plan, term: CalibratedTerm, made: Mapping[CalibratedTerm, int]) -> int:
    """As the planner counted it before anything was learned: else every run would take the last one's lesson back."""
    if term == "kv_cache_tokens":
        done = next((one for one in plan.corrections if one.term == term), None)
        return plan.kv_cache_tokens * done.planned // done.measured if done else plan.kv_cache_tokens
    return _planned(plan, term) // len(plan.devices) - made.get(term, 0)


def _measured(plan: Plan, document: Mapping[str, Any]) -> dict[CalibratedTerm, int]:
    found: dict[CalibratedTerm, int] = dict(_terms(plan, document))
    if document.get("kv_cache_tokens") and plan.kv_cache_tokens:
        found["kv_cache_tokens"] = int(document["kv_cache_tokens"])
    missing = _missing(plan, document)
    if missing > 0 and "runtime" not in found:
        found["runtime"] = (_planned(plan, "runtime") + missing) // len(plan.devices)
    return found


def _terms(plan: Plan, document: Mapping[str, Any]) -> Iterator[tuple[CalibratedTerm, int]]:
    count = len(plan.devices)
    exact: tuple[CalibratedTerm, ...] = ("weights", "runtime")
    for term in exact:
        if document.get(f"{term}_bytes"):
            yield term, document[f"{term}_bytes"] // count
    at_least: tuple[CalibratedTerm, ...] = ("activations", "cuda_graphs")
    for term in at_least:
        measured = document.get(f"{term}_bytes")
        if measured and (_profiles_memory(plan) or measured > _planned(plan, term)):
            yield term, measured // count


def _missing(plan: Plan, document: Mapping[str, Any]) -> int:
    """Bytes that the engine's processes hold beyond all terms of the plan; 0 where that can't be told."""
    if not _profiles_memory(plan):
        return 0
    on_devices = sum(each["bytes"] for each in document.get("devices", document.get("device_bytes")) or ())
    held = on_devices or (document.get("resident_bytes") or 0 if plan.on_cpu else 0)
    return max(0, held - sum(_planned(plan, term) for term in COLUMNS)) if held else 0


def _profiles_memory(plan: Plan) -> bool:
    return engine_named(plan.engine).planner.profiles_memory


def _planned(plan: Plan, term: str) -> int:
    """Over all devices."""
    return sum(int(getattr(each, f"{term}_bytes")) for each in plan.devices)
