"""The transformers engine as the planner knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.wheels import LEAST_OF_OLD_TORCH, shown, too_old
from qserve.engines.transformers.plan.candidates import candidates
from qserve.engines.transformers.plan.constants import TESTED_RELEASE
from qserve.engines.transformers.plan.fit import fit
from qserve.engines.transformers.plan.notes import notes_on
from qserve.engines.transformers.plan.options import TransformersOptions
from qserve.engines.transformers.plan.releases import check_layers, check_release, check_rope
from qserve.engines.transformers.plan.schemes import has_kernels, loads, quantizes, runs_stored
from qserve.engines.transformers.plan.steps import card_steps
from qserve.engines.transformers.plan.suggestions import suggestions
from qserve.engines.transformers.plan.terms import CARD_TERMS, CPU_TERMS
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.changes import ChangeGroup
from qserve.planner.engine import EnginePlanner
from qserve.planner.options import EngineOptions
from qserve.planner.outcome import KEPT_FREE
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.simulated import Steps

__all__ = ["TransformersPlanner"]


@dataclass(frozen=True)
class TransformersPlanner(EnginePlanner):
    title: str = "the transformers engine"
    default_version: str = TESTED_RELEASE
    options: type[EngineOptions] | None = TransformersOptions
    term_names: tuple[str, ...] = (*dict.fromkeys(kind.name for kind in (*CARD_TERMS, *CPU_TERMS)), KEPT_FREE)
    reads_overrides: bool = True

    def supports(self, hardware: Hardware) -> bool:
        return hardware.plan_only is None

    def refuse(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
        check_release(request.engine_version or TESTED_RELEASE)
        check_rope(checkpoint.spec)
        check_layers(checkpoint.spec)
        old = too_old(hardware.devices, LEAST_OF_OLD_TORCH)
        if old is not None:
            raise UsageError(
                f"{old.name} has compute capability {shown(old.compute_capability)}, and no wheel of torch has "
                f"kernels below {shown(LEAST_OF_OLD_TORCH)}; --gpu none plans for the CPU"
            )

    def candidates(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
        return candidates(checkpoint, hardware, request)

    def fit(self, candidate: Candidate, cache_tokens: int) -> Plan:
        return fit(candidate, cache_tokens)

    def notes(self, candidate: Candidate, plan: Plan) -> Iterable[str]:
        return notes_on(candidate, plan)

    def suggestions(self, candidate: Candidate) -> Iterable[ChangeGroup]:
        return suggestions(candidate)

    def card_steps(self, plan: Plan, spec: ModelSpec, device: Device) -> Steps | None:
        return card_steps(plan, spec, device)

    def loads(self, scheme: str) -> bool:
        return loads(scheme)

    def runs_stored(self, scheme: str, device: Device, cpu: CpuFeatures) -> bool:
        return runs_stored(scheme, (device,))

    def quantizes(self, scheme: str, device: Device) -> bool:
        return quantizes(scheme, (device,)) and has_kernels(scheme, (device,))
