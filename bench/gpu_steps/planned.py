"""What the plan says of a row: speed by the planner's steps, and bytes by term."""

from __future__ import annotations

from typing import Any

from qserve.core.hardware import Hardware
from qserve.core.model_spec import ModelSpec
from qserve.planner import Plan
from qserve.planner.speed.estimate import Replica, device_of, replica_of
from qserve.planner.speed.load import Load

__all__ = ["PlannedSpeed", "planned_terms"]


class PlannedSpeed:
    """Of one server of `plan` on `hardware`."""

    def __init__(self, plan: Plan, spec: ModelSpec, hardware: Hardware) -> None:
        device = device_of(plan, hardware)
        assert device is not None, "the plan is of this machine"
        self._replica: Replica = replica_of(plan, spec, device)

    def step_ms(self, streams: int, context_tokens: float) -> float:
        """A step that takes one token of each stream."""
        return 1000 * self._replica.steps.decode_s(streams, context_tokens)

    def first_tokens_ms(self, prompts: int, prompt_tokens: int) -> float:
        """Until the last of so many prompts, sent at once, has its first token."""
        load = Load(prompt_tokens, 2, burst=prompts, num_prompts=prompts, jitter=0.0)
        return self._replica.run(load).ttft_ms.p99

    def closed_loop(self, streams: int, prompt_tokens: int, new_tokens: int, num_prompts: int) -> dict[str, float]:
        """TTFT, TPOT and tokens a second of `streams` requests that follow one another."""
        load = Load(prompt_tokens, new_tokens, concurrency=streams, num_prompts=num_prompts)
        figures = self._replica.run(load)
        return {
            "ttft_ms": figures.ttft_ms.mean,
            "tpot_ms": figures.tpot_ms.mean,
            "output_tokens_per_s": figures.output_tokens_per_s,
        }


def planned_terms(plan: Plan) -> dict[str, Any]:
    """Bytes by term on the first device, and tokens of KV cache."""
    device = plan.devices[0]
    return {
        "weights_bytes": device.weights_bytes,
        "kv_cache_bytes": device.kv_cache_bytes,
        "activations_bytes": device.activations_bytes,
        "cuda_graphs_bytes": device.cuda_graphs_bytes,
        "runtime_bytes": device.runtime_bytes,
        "kv_cache_tokens": plan.kv_cache_tokens,
    }
