"""What is known of this machine's speed: its CPU's rates, and what earlier runs took."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.errors import QserveError, UsageError
from qserve.planner.plan import Plan
from qserve.planner.speed.estimate import key_of, replica_of
from qserve.planner.speed.learned import Measured, ServedRequest, SpeedResidual, residual_of
from qserve.planner.speed.terms.cpu import CpuRates, assumed_rates
from qserve.planner.speed.terms.engine_costs import has_speed

if TYPE_CHECKING:
    from qserve.runs import RunStore
    from qserve.runs.records import StoredRun

__all__ = ["measure_cpu", "measured_speed"]

_CPU_FILE = "cpu_rates.json"
_MOST_RUNS, _MOST_REQUESTS = 20, 400
_MOST_SECONDS = 120


def measure_cpu(state: Path, hardware: Hardware) -> CpuRates:
    """Measures the CPU in a process of its own and keeps the rates. Raises UsageError where torch is missing."""
    command = [sys.executable, "-m", "qserve.engine.cpu.measure"]
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
    """Oldest first, as far as the last runs go."""
    for run in reversed(store.runs(_MOST_RUNS)):
        for worker in run.workers:
            if not worker.plan.get("placement"):
                continue
            plan = Plan.from_json(dict(worker.plan))
            device = _device(plan, hardware)
            if plan.model.id != checkpoint.id or device is None or not has_speed(plan.engine):
                continue
            served = _served(store, run, worker.name)
            replica = replica_of(plan, checkpoint.spec, device, known)
            factors = residual_of(replica.steps, replica.limits, served)
            if factors is not None:
                yield SpeedResidual(key_of(plan), *factors, len(served), run.id)


def _device(plan: Plan, hardware: Hardware) -> Device | None:
    if plan.on_cpu:
        return hardware.cpu_device
    name = plan.devices[0].name if plan.devices else ""
    return next((device for device in hardware.devices if device.name == name), None)


def _served(store: RunStore, run: StoredRun, worker: str) -> list[ServedRequest]:
    """Answers that were streamed whole to their end."""
    return [
        ServedRequest(one.began_unix_s, one.prompt_tokens, one.completion_tokens, one.ttft_ms / 1000, one.e2e_ms / 1000)
        for one in store.requests(run, limit=_MOST_REQUESTS, worker=worker)
        if one.ttft_ms and one.prompt_tokens and one.completion_tokens and not one.error_code and not one.client_left
    ]
