"""What is known of this machine's speed: its CPU's rates, and what earlier runs took."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import QserveError, UsageError
from qserve.planner.plan import Plan
from qserve.planner.speed.estimate import device_of, key_of, replica_of
from qserve.planner.speed.learned import Measured, ResidualKey, SpeedResidual
from qserve.planner.speed.residual import residual_of
from qserve.planner.speed.served import ServedRequest, loads_of
from qserve.planner.speed.terms.cpu import CpuRates, assumed_rates
from qserve.planner.speed.terms.engine_costs import has_speed

if TYPE_CHECKING:
    from qserve.runs import RunStore

__all__ = ["keep_rates", "kept_rates", "measure_cpu", "measured_speed", "rates_at"]

_CPU_FILE = "cpu_rates.json"
_MOST_KEPT = 60
_MOST_RUNS, _MOST_REQUESTS = 20, 240
_MOST_TRIED = 3
"""Runs of one kind of server that are looked at for something to learn: each takes a fifth of a second."""
_MOST_SECONDS = 120


def measure_cpu(state: Path, hardware: Hardware) -> CpuRates:
    """Measures the CPU in a process of its own and keeps the rates. Raises UsageError where torch is missing."""
    command = [sys.executable, "-m", "qserve.engine.cpu_rates"]
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


def measured_speed(
    state: Path, checkpoint: Checkpoint, hardware: Hardware, gpu: str | None, is_off: bool
) -> Measured:  # fmt: skip
    """The CPU's rates, measured or assumed, and the residuals of runs of this model on this machine.

    None of the latter with --no-learn, for cards that --gpu describes, and where the store can't be read.
    """
    rates = kept_rates(state) or [assumed_rates(hardware)]
    known = Measured(cpu=rates[-1])
    if is_off or gpu not in (None, "none"):
        return known
    from qserve.runs import RunStore
    from qserve.runs.database import FILE_NAME

    if not (state / FILE_NAME).exists():
        return known

    try:
        return replace(known, residuals=tuple(_residuals(RunStore.open(state), checkpoint, hardware, rates)))
    except QserveError as error:
        click.secho(f"· planned without the speed of earlier runs: {error}", err=True, fg="yellow")
        return known


def _residuals(
    store: RunStore, checkpoint: Checkpoint, hardware: Hardware, rates: list[CpuRates]
) -> Iterator[SpeedResidual]:  # fmt: skip
    """Of each kind of server the newest run that teaches anything, as far as the last runs go."""
    from qserve.runs.served import served_requests

    tried: Counter[ResidualKey] = Counter()
    for run in store.runs(_MOST_RUNS):
        for worker in run.workers:
            if not worker.plan.get("placement"):
                continue
            plan = Plan.from_json(dict(worker.plan))
            device = device_of(plan, hardware)
            if plan.model.id != checkpoint.id or device is None or not has_speed(plan.engine):
                continue
            key = key_of(plan)
            if tried[key] >= _MOST_TRIED:
                continue
            served = served_requests(store, run, worker.name, _MOST_REQUESTS)
            replicas = {
                now: replica_of(plan, checkpoint.spec, device, Measured(cpu=now))
                for now in (rates_at(part, rates) for part in loads_of(served))
            }
            parts = [(replicas[rates_at(part, rates)].steps, part) for part in loads_of(served)]
            factors = residual_of(parts, next(iter(replicas.values())).limits) if parts else None
            tried[key] += len(served) > 0
            if factors is not None:
                tried[key] = _MOST_TRIED
                yield SpeedResidual(key, factors, len(served), run.id)


def rates_at(part: list[ServedRequest], rates: list[CpuRates]) -> CpuRates:
    """What the CPU could do at the time: the measurement nearest to the middle of these requests."""
    middle = (part[0].at_s + part[-1].ends_s) / 2
    return min(rates, key=lambda one: abs(one.at_unix_s - middle))
