"""How much of a card the engine for rollouts gets: what those of a step need, as far as the trainer leaves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qserve.core.hardware import Device
from qserve.planner.memory.kv import kv_bytes_per_token
from qserve.planner.training.card_memory import engine_need_bytes, trainer_card
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.resident import Run, environment_terms, resident_terms
from qserve.planner.training.training_constants import ASLEEP
from qserve.planner.training.training_request import TrainingRequest
from qserve.units import format_bytes

__all__ = ["rollouts_at_once", "with_engine_share"]

_OWN_CARDS = 0.9
"""Of cards that only generate: vLLM's own default."""
_STEP = 0.01
_MOST = 0.95
# Where less of the cache than this would fit beside the trainer at work, the engine sleeps meanwhile.
_AWAKE_SHARE = 0.5


def rollouts_at_once(request: TrainingRequest) -> int:
    """Sequences that one colocated engine is given: TRL's max_num_seqs, of all its ranks and their accumulation."""
    assert request.vllm is not None
    return request.micro_batch * request.gradient_accumulation_steps * request.vllm.tensor_parallel_size


def with_engine_share(
    request: TrainingRequest, models: Sequence[TrainedModel], devices: Sequence[Device]
) -> tuple[TrainingRequest, str | None]:
    """(the request with a fraction where it names none, a sentence on it). `devices`: those that train.

    A fraction that was named stays as it is, and so does sleep. Where not even the least fits, it gets that least, and
    the plan says what is missing.
    """
    vllm = request.vllm
    if vllm is None or vllm.gpu_memory_utilization is not None:
        return request, None
    if vllm.mode == "separate":
        return replace(request, vllm=replace(vllm, gpu_memory_utilization=_OWN_CARDS)), None
    shares = [_share_of(request, models, len(devices), device) for device in set(devices)]
    sleep = any(one.sleep for one in shares)
    if sleep and not vllm.sleep:  # for one of them, so for all: what the others get then is counted anew
        asleep = replace(request, vllm=replace(vllm, sleep=True))
        shares = [_share_of(asleep, models, len(devices), device) for device in set(devices)]
    share = min(shares, key=lambda one: one.fraction)
    chosen = replace(vllm, gpu_memory_utilization=share.fraction, sleep=sleep)
    return replace(request, vllm=chosen), share.told(request)


@dataclass(frozen=True)
class _Share:
    """Of one device: `fraction` of it, which is `claim_bytes` and holds `num_at_once` rollouts of full length."""

    fraction: float
    sleep: bool
    claim_bytes: int
    num_at_once: int

    def told(self, request: TrainingRequest) -> str:
        wanted = rollouts_at_once(request)
        asleep = ", and sleeps while the trainer works" if self.sleep else ""
        return (
            f"the engine gets {format_bytes(self.claim_bytes)} of a card, its computed gpu_memory_utilization is "
            f"{self.fraction}: weights, and the cache of {self.num_at_once} of {wanted} rollouts of "
            f"{request.max_length} tokens at once{asleep}"
        )


def _share_of(request: TrainingRequest, models: Sequence[TrainedModel], num_ranks: int, device: Device) -> _Share:
    vllm = request.vllm
    assert vllm is not None
    alone = Run(replace(request, vllm=None), tuple(models), num_ranks)
    busy = max(trainer_card(alone, device).phases.values())
    resident = sum(term.num_bytes for term in (*resident_terms(alone), *environment_terms(alone, device)))
    spec = models[0].spec
    least = engine_need_bytes(spec, vllm, request.max_length)
    rollout = round(kv_bytes_per_token(spec, 2) * request.max_length / vllm.tensor_parallel_size)
    wanted = least + (rollouts_at_once(request) - 1) * rollout
    awake, asleep = device.total_bytes - busy, device.total_bytes - resident
    enough = least + _AWAKE_SHARE * (wanted - least)
    sleep = vllm.sleep or (awake < enough and awake < asleep and busy + ASLEEP.expected <= device.total_bytes)
    fraction = _fraction(wanted, asleep if sleep else awake, least, device.total_bytes)
    claim = round(fraction * device.total_bytes)
    num_at_once = min(rollouts_at_once(request), 1 + (claim - least) // max(1, rollout))
    return _Share(fraction, sleep, claim, max(0, num_at_once))


def _fraction(wanted: int, left: int, least: int, total: int) -> float:
    """In hundredths: what is wanted rounded up, else what is left rounded down, else the least rounded up."""
    steps = math.ceil(wanted / total / _STEP)
    if steps * _STEP * total > left:
        steps = math.floor(left / total / _STEP)
    if steps * _STEP * total < least:
        steps = math.ceil(least / total / _STEP)
    return round(min(_MOST, steps * _STEP), 2)
