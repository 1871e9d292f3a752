"""Planning for cards that no engine of qserve runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.engines.plan_only.plan.candidates import candidates, quantizes, runs_stored
from qserve.engines.plan_only.plan.fit import fit
from qserve.engines.plan_only.plan.notes import notes_on
from qserve.engines.plan_only.plan.steps import BandwidthSteps
from qserve.engines.plan_only.plan.terms import TERMS
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.engine import EnginePlanner
from qserve.planner.outcome import KEPT_FREE
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.simulated import Steps

__all__ = ["PlanOnlyPlanner"]

_IN_SIXTEEN_BIT = ("bfloat16", "bf16", "float16", "fp16", "half")


@dataclass(frozen=True)
class PlanOnlyPlanner(EnginePlanner):
    title: str = "cards that are planned for only"
    default_version: str = ""
    options: None = None
    term_names: tuple[str, ...] = (*(kind.name for kind in TERMS), KEPT_FREE)
    reads_overrides: bool = True

    def supports(self, hardware: Hardware) -> bool:
        return hardware.plan_only is not None

    def refuse(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
        device = hardware.plan_only
        if device is None:
            raise UsageError("plan-only is for cards that no engine of qserve runs on; leave --engine out")
        if any(one.kind != device.kind for one in hardware.devices):
            raise UsageError(f"{device.name} stands beside cards of another maker, which share no model with it")
        if device.shares_ram and len(hardware.devices) > 1:
            raise UsageError(f"{len(hardware.devices)} × {device.name}: such a machine has one; leave the count out")
        if request.engine_version is not None:
            raise UsageError(
                f"--engine-version {request.engine_version}: on {device.name} no release of an engine is planned for; "
                "leave it out"
            )
        if checkpoint.spec.head.kind != "lm":
            raise UsageError(f"{checkpoint.id} scores, and on {device.name} only models that write text are planned")
        if request.dtype not in (None, "auto", *_IN_SIXTEEN_BIT):
            either = "float16 or bfloat16" if device.supports("bf16") else "float16"
            raise UsageError(
                f"--dtype {request.dtype}: on {device.name} models are planned in 16 bit only; take {either}, or leave "
                "it out"
            )
        if request.dtype in ("bfloat16", "bf16") and not device.supports("bf16"):
            raise UsageError(f"--dtype {request.dtype}: {device.name} has no bf16; take float16, or leave it out")

    def candidates(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
        return candidates(checkpoint, hardware, request)

    def fit(self, candidate: Candidate, cache_tokens: int) -> Plan:
        return fit(candidate, cache_tokens)

    def notes(self, candidate: Candidate, plan: Plan) -> Iterable[str]:
        return notes_on(candidate, plan)

    def card_steps(self, plan: Plan, spec: ModelSpec, device: Device) -> Steps | None:
        return BandwidthSteps.of(plan, spec, device)

    def runs_stored(self, scheme: str, device: Device, cpu: CpuFeatures) -> bool:
        return runs_stored(scheme, device)

    def quantizes(self, scheme: str, device: Device) -> bool:
        return quantizes(scheme, device)
