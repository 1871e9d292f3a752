"""Planning for echo: the weights as they are stored, and a cache for one sequence after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.workload import Workload
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.engine import EnginePlanner
from qserve.planner.options import EngineOptions, option
from qserve.planner.outcome import accepted, refused
from qserve.planner.plan import DevicePlan, Placement, Plan, QuantChoice
from qserve.planner.request import PlanRequest
from qserve.planner.term import Term

__all__ = ["EchoOptions", "EchoPlanner"]

_RUNTIME_BYTES = 64 << 20


@dataclass(frozen=True)
class EchoOptions(EngineOptions):
    engine: ClassVar[str] = "echo"

    shout: bool = option("flag", "Answer in capitals.", False, sent_as="--shout")


@dataclass(frozen=True)
class EchoPlanner(EnginePlanner):
    title: str = "echo"
    default_version: str = "1.0"
    options: type[EngineOptions] | None = EchoOptions
    term_names: tuple[str, ...] = ("weights", "KV cache", "Python")

    def refuse(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
        if request.prompt_logprobs:
            raise UsageError("--prompt-logprobs: echo has no log-probabilities; leave it out")

    def candidates(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
        yield Candidate(
            checkpoint=checkpoint,
            hardware=hardware,
            request=request,
            engine="echo",
            engine_version=request.engine_version or self.default_version,
            quant=QuantChoice("bf16", checkpoint.id, reason="as it was trained"),
            spec=checkpoint.spec,
            tensors=checkpoint.counted_tensors,
            in_flight=None,
            dtype="bfloat16",
            devices=(hardware.devices or (hardware.cpu_device,))[:1],
        )

    def fit(self, candidate: Candidate, cache_tokens: int) -> Plan:
        length = candidate.request.max_model_len or min(cache_tokens, candidate.spec.max_position_embeddings)
        device, token_bytes = candidate.devices[0], 2 * candidate.spec.hidden_size
        weights, cache = sum(tensor.nbytes for tensor in candidate.tensors), length * token_bytes
        terms = (
            Term("weights", weights, "the tensors", "safetensors headers", weights, weights, "weights"),
            Term("KV cache", cache, f"{length} × {token_bytes} B", "echo", cache, cache, "kv_cache", is_charged=False),
            Term("Python", _RUNTIME_BYTES, "one process", "measured", _RUNTIME_BYTES, _RUNTIME_BYTES, "runtime"),
        )
        devices = (DevicePlan.of(device, terms),)
        placement = Placement(device_map="cpu" if candidate.on_cpu else "cuda:0", kv_cache_memory_bytes=cache)
        workload = Workload(length, candidate.request.max_num_seqs or 8, length, length)
        plan = accepted(candidate, workload, placement, devices, length, 1.0)
        free = devices[0].free_bytes
        return plan if free >= 0 else refused(plan, -free, cache, cache + free)

    def flags(self, candidate: Candidate, plan: Plan) -> tuple[str, ...]:
        return ("--shout",) if candidate.request.of(EchoOptions).shout else ()
