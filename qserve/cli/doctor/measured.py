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
from qserve.planner.speed.learned import Measured, ResidualKey, SpeedResidual, residual_of
from qserve.planner.speed.terms.cpu import CpuRates, assumed_rates
from qserve.planner.speed.terms.engine_costs import has_speed

if TYPE_CHECKING:
    from qserve.runs import RunStore

__all__ = ["measure_cpu", "measured_speed"]

_CPU_FILE = "cpu_rates.json"
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
    rates = json.loads(done.stdout)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    (state / _CPU_FILE).write_text(json.dumps({**rates, "cores": hardware.cpu_cores}))
    return CpuRates(rates["read_bytes_per_s"], rates["gemm_flop_per_s"], hardware.cpu_cores)


def measured_speed(
    state: Path, checkpoint: Checkpoint, hardware: Hardware, gpu: str | None, is_off: bool
) -> Measured:  # fmt: skip
    """The CPU's rates, measured or assumed, and the residuals of runs of this model on this machine.

    None of the latter with --no-learn, for cards that --gpu describes, and where the store can't be read.
    """
    known = Measured(cpu=_cpu_rates(state, hardware))
    if is_off or gpu not in (None, "none"):
        return known
    from qserve.runs import RunStore
    from qserve.runs.database import FILE_NAME

    if not (state / FILE_NAME).exists():
        return known

    try:
        return replace(known, residuals=tuple(_residuals(RunStore.open(state), checkpoint, hardware, known)))
    except QserveError as error:
        click.secho(f"· planned without the speed of earlier runs: {error}", err=True, fg="yellow")
        return known


def _cpu_rates(state: Path, hardware: Hardware) -> CpuRates:
    try:
        return CpuRates(**json.loads((state / _CPU_FILE).read_text()))
    except (OSError, TypeError, ValueError):
        return assumed_rates(hardware)


def _residuals(
    store: RunStore, checkpoint: Checkpoint, hardware: Hardware, known: Measured
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
            replica = replica_of(plan, checkpoint.spec, device, known)
            factors = residual_of(replica.steps, replica.limits, served)
            tried[key] += len(served) > 0
            if factors is not None:
                tried[key] = _MOST_TRIED
                yield SpeedResidual(key, factors, len(served), run.id)
