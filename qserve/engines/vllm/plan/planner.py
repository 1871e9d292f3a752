"""vLLM as the planner knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.engines.vllm.plan.candidates import candidates
from qserve.engines.vllm.plan.context import context_length
from qserve.engines.vllm.plan.counted_flags import template_flag, with_counted_flags
from qserve.engines.vllm.plan.defaults import replayed_tokens, unbounded
from qserve.engines.vllm.plan.fit import fit
from qserve.engines.vllm.plan.flags import engine_args
from qserve.engines.vllm.plan.notes import explanations_of, notes_on
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.refusals import refuse, why_no_kernels
from qserve.engines.vllm.plan.schemes import loads, quantizes, runs_stored
from qserve.engines.vllm.plan.suggestions import suggestions
from qserve.engines.vllm.plan.terms import CARD_TERMS, CPU_TERMS
from qserve.engines.vllm.plan.versions import TESTED_RELEASE, VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.changes import ChangeGroup
from qserve.planner.engine import EnginePlanner
from qserve.planner.options import EngineOptions
from qserve.planner.outcome import KEPT_FREE
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.search.stretch import overrides_of

__all__ = ["VllmPlanner"]

_SCORING_STEPS = 8
"""Steps whose keys the cache holds for a reward model: of texts that run, and of prompts that answers share."""


@dataclass(frozen=True)
class VllmPlanner(EnginePlanner):
    title: str = "vLLM"
    default_version: str = TESTED_RELEASE
    options: type[EngineOptions] | None = VllmOptions
    term_names: tuple[str, ...] = (*dict.fromkeys(kind.name for kind in (*CARD_TERMS, *CPU_TERMS)), KEPT_FREE)
    profiles_memory: bool = True
    reads_overrides: bool = True

    def supports(self, hardware: Hardware) -> bool:
        return bool(hardware.devices) and hardware.plan_only is None

    def why_no_kernels(self, devices: Sequence[Device], release: str | None) -> str | None:
        return why_no_kernels(devices, release or TESTED_RELEASE)

    def with_engine_args(self, request: PlanRequest, engine_args: str) -> PlanRequest:
        return with_counted_flags(request, engine_args)

    def chat_template_in(self, engine_args: Sequence[str]) -> str | None:
        return template_flag(engine_args)

    def refuse(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
        refuse(checkpoint, hardware, request)

    def as_served(self, checkpoint: Checkpoint, request: PlanRequest) -> Checkpoint:
        served = checkpoint.overridden(overrides_of(checkpoint, request))
        length = context_length(served, VllmVersion.parse(request.engine_version or TESTED_RELEASE))
        return replace(served, spec=replace(served.spec, max_position_embeddings=length))

    def candidates(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
        return candidates(checkpoint, hardware, request)

    def fit(self, candidate: Candidate, cache_tokens: int) -> Plan:
        return fit(candidate, cache_tokens)

    def replayed_tokens(self, plan: Plan, device: Device) -> int | None:
        return replayed_tokens(plan, device)

    def unbounded(self, plan: Plan, device: Device, request: PlanRequest) -> Plan:
        return unbounded(plan, device, request)

    def flags(self, candidate: Candidate, plan: Plan) -> tuple[str, ...]:
        return engine_args(candidate, plan)

    def notes(self, candidate: Candidate, plan: Plan) -> Iterable[str]:
        return notes_on(candidate, plan)

    def explanations(self, candidate: Candidate, plan: Plan) -> Iterable[str]:
        return explanations_of(candidate, plan)

    def suggestions(self, candidate: Candidate) -> Iterable[ChangeGroup]:
        return suggestions(candidate)

    def on_other_cards(self, request: PlanRequest) -> PlanRequest:
        options = request.of(VllmOptions)
        return request.with_options(replace(options, tensor_parallel_size=None, pipeline_parallel_size=None))

    def for_scoring(self, request: PlanRequest, hardware: Hardware) -> PlanRequest:
        """Compiling takes a minute on a CPU and gains nothing on texts that are read once, each of another length."""
        return request.with_options(replace(request.of(VllmOptions), enforce_eager=not hardware.devices))

    def with_scoring_cache(self, request: PlanRequest, planned: Callable[[PlanRequest], Plan]) -> PlanRequest:
        """A few steps are enough, where the plan of a chat model takes all it can get."""
        plan = planned(request)
        tokens = _SCORING_STEPS * max(plan.workload.max_model_len, plan.workload.max_num_batched_tokens)
        enough_bytes = tokens * plan.model.kv_bytes_per_token
        return replace(request, kv_cache_memory_bytes=enough_bytes) if plan.kv_cache_tokens > tokens else request

    def loads(self, scheme: str) -> bool:
        return loads(scheme)

    def runs_stored(self, scheme: str, device: Device, cpu: CpuFeatures) -> bool:
        return runs_stored(scheme, device, cpu)

    def quantizes(self, scheme: str, device: Device) -> bool:
        return quantizes(scheme, device)
