"""What is known of this machine's speed: its CPU's rates, and what earlier runs took."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.planner.speed.calibration import Measured, ResidualKey, SpeedResidual
from qserve.planner.speed.estimate import device_of, key_of, replica_of
from qserve.planner.speed.terms.cpu import CpuRates, assumed_rates
from qserve.planner.speed.terms.engine_costs import has_speed

if TYPE_CHECKING:
    from qserve.planner.speed.served import ServedRequest
    from qserve.runs import RunStore

__all__ = ["SAME_WEATHER_S", "keep_rates", "kept_rates", "measure_cpu", "measured_speed", "rates_at", "rates_near"]

_CPU_FILE = "cpu_rates.json"
_MOST_KEPT = 60
_MOST_RUNS, _MOST_REQUESTS = 20, 240
_MOST_TRIED = 3
"""Runs of one kind of server that are looked at for something to learn: each takes a fifth of a second."""
_MOST_SECONDS = 120
SAME_WEATHER_S = 300
"""Measurements that are no further apart are of one machine in one state: what they differ by is the probe's."""
_QUIET = 0.1
"""Of the processors, that other programs may take in a run that teaches before others do."""


def measure_cpu(state: Path, hardware: Hardware) -> CpuRates:
    """Measures the CPU in a process of its own and keeps the rates. Raises UsageError where torch is missing."""
    command = [sys.executable, "-m", "qserve.engines.transformers.cpu_rates"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason was given"]
        raise UsageError(f"--measure: the CPU could not be measured ({reason[0]}); it needs torch")
    rates = CpuRates.from_json(json.loads(done.stdout))
    keep_rates(state, rates)
    return rates


def keep_rates(state: Path, rates: CpuRates) -> None:
    """Adds them to the measurements of before: a run is held against the one nearest to it in time."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = [*kept_rates(state), rates][-_MOST_KEPT:]
    (state / _CPU_FILE).write_text(json.dumps([one.to_json() for one in kept]))


def kept_rates(state: Path) -> list[CpuRates]:
    """What was measured of this CPU, the last one last; empty where it never was, or the file can't be read."""
    try:
        return [CpuRates.from_json(one) for one in json.loads((state / _CPU_FILE).read_text())]
    except (OSError, TypeError, KeyError, ValueError, AttributeError):
        return []


def measured_speed(state: Path | None, checkpoint: Checkpoint, hardware: Hardware, *, learns: bool) -> Measured:
    """The CPU's rates, measured or assumed; with `learns` the residuals of runs of this model on this machine as well.

    `state` None: nothing was measured. Raises StoreUnusable where the store can't be read.
    """
    rates = (kept_rates(state) if state is not None else []) or [assumed_rates(hardware)]
    known = Measured(cpu=rates_near(rates[-1].at_unix_s, rates))
    if state is None or not learns:
        return known
    from qserve.runs import RunStore

    store = RunStore.open_existing(state)
    return replace(known, residuals=tuple(_residuals(store, checkpoint, hardware, rates))) if store else known


def _residuals(
    store: RunStore, checkpoint: Checkpoint, hardware: Hardware, rates: list[CpuRates]
) -> Iterator[SpeedResidual]:
    """Of each kind of server the newest run that teaches anything and was not disturbed, as far as the last runs go;
    where each was disturbed, the one that was the least."""
    for key, taught in _candidates(store, checkpoint, hardware).items():
        from qserve.planner.speed.calibrate import residual_of  # here: a plan without runs has no use for statistics
        from qserve.planner.speed.served import loads_of

        for run, plan, device, served, others in sorted(taught, key=lambda one: (one[-1] > _QUIET) * one[-1]):
            weather = [rates_at(part, rates) for part in loads_of(served)]
            replicas = {now: replica_of(plan, checkpoint.spec, device, Measured(cpu=now)) for now in weather}
            parts = [(replicas[now].steps, part) for now, part in zip(weather, loads_of(served), strict=True)]
            factors = residual_of(parts, replicas[weather[0]].limits, others) if parts else None
            if factors is not None:
                yield SpeedResidual(key, factors, len(served), run, others)
                break


Candidate = tuple[str, Plan, Device, list["ServedRequest"], float]
"""A run's id, what it served by, its requests, and the share of the processors that other programs took."""


def _candidates(store: RunStore, checkpoint: Checkpoint, hardware: Hardware) -> dict[ResidualKey, list[Candidate]]:
    """By kind of server its last runs that answered something, newest first."""
    from qserve.runs.served import others_share, served_requests

    found: dict[ResidualKey, list[Candidate]] = defaultdict(list)
    for run in store.runs(_MOST_RUNS):
        for worker in run.workers:
            if not worker.plan.get("placement"):
                continue
            plan = Plan.from_json(dict(worker.plan))
            device, key = device_of(plan, hardware), key_of(plan)
            if plan.model.id != checkpoint.id or device is None or not has_speed(plan.engine):
                continue
            if len(found[key]) < _MOST_TRIED and (served := served_requests(store, run, worker.name, _MOST_REQUESTS)):
                others = others_share(store, run, worker.name) if plan.on_cpu else 0.0
                found[key].append((run.id, plan, device, served, others))
    return found


def rates_at(part: list[ServedRequest], rates: list[CpuRates]) -> CpuRates:
    """What the CPU could do while these requests were answered."""
    return rates_near((part[0].at_s + part[-1].ends_s) / 2, rates)


def rates_near(unix_s: float, rates: list[CpuRates]) -> CpuRates:
    """The middle of what was measured around that time, else what was measured nearest to it."""
    near = [one for one in rates if abs(one.at_unix_s - unix_s) <= SAME_WEATHER_S]
    if len(near) > 1:
        from qserve.planner.speed.terms.cpu_middle import middle_of

        return middle_of(near)
    return near[0] if near else min(rates, key=lambda one: abs(one.at_unix_s - unix_s))
