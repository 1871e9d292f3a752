"""Resources of a service, from its plans: cards, RAM, shared memory, cores, disk. Pure arithmetic.

Memory on cards is the planner's, term by term. Of RAM a plan on a CPU has its terms too; what a worker on a card keeps
in RAM is no term of any plan, and stands here as an upper figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qserve.planner.memory.host import GATEWAY, LARGE_BODIES
from qserve.planner.plan import Plan
from qserve.units import GIB

__all__ = ["Needs", "Relays", "needs_of"]

# docs/bench.md has the gateway below 120 MB, and 160 MB with 4,000 streams; the web UI beside it takes 0.3 GiB.
_GATEWAY_BYTES = GIB
# vLLM's API server and engine core: 0.85 GB each where they were measured, on a CPU.
_ENGINE_BYTES = 2 * GIB
# A rank on a card: libraries of CUDA, pinned buffers, compilation of kernels. A judgement: no card was measured.
_RANK_BYTES = 6 * GIB
# NCCL and vLLM's message queue between ranks: vLLM's own guide for Kubernetes gives 2 GiB; more ranks, more rings.
_SHM_BYTES = 2 * GIB
_SHM_OF_RANK_BYTES = 2 * GIB
# vLLM asleep at level 1 has the weights of every rank in RAM. Source: vllm 0.32 device_allocator/cumem.py.
_SLEEPS = "--enable-sleep-mode"
# What loading reads stays in the page cache and counts until somebody needs it: the limit leaves space for some.
_LIMIT_FACTOR = 1.5
# Compiled kernels, the run store (--keep-runs-gib) and a second version of the weights' metadata.
_STATE_BYTES = 20 * GIB
_BYTES_OF_PARAMETER = 2


@dataclass(frozen=True)
class Relays:
    """What gateway processes (`--gateway-processes`) take beside the one that supervises, which `needs_of` counts."""

    num_cores: int
    memory_bytes: int

    @classmethod
    def of(cls, num_processes: int) -> Relays:
        """Each may fill a core, and has its own readers of large bodies. One relays in the supervisor itself."""
        if num_processes == 1:
            return cls(0, 0)
        return cls(num_processes, num_processes * (GATEWAY.high_bytes + LARGE_BODIES.high_bytes))


@dataclass(frozen=True)
class Needs:
    """`memory_bytes` is expected and `memory_limit_bytes` the most; both hold `shm_bytes`, which is RAM as well.

    `disk_bytes`: state, caches and, where they are fetched, weights. `card_name` is the driver's; "" without cards.
    """

    num_cards: int
    card_name: str
    memory_bytes: int
    memory_limit_bytes: int
    shm_bytes: int
    num_cores: int
    disk_bytes: int


_NO_RELAYS = Relays(0, 0)


def needs_of(plans: Sequence[Plan], num_cards: int, fetched_parameters: int, relays: Relays = _NO_RELAYS) -> Needs:
    """Of one service that runs all of `plans`, a replica each; `fetched_parameters` are those that it downloads.

    `num_cards`: replicas may share them.
    """
    num_ranks = sum(_num_ranks(plan) for plan in plans)
    shm = _SHM_BYTES + (_SHM_OF_RANK_BYTES * num_ranks if num_ranks > 1 else 0)
    memory = _whole_gib(_GATEWAY_BYTES + relays.memory_bytes + shm + sum(_ram_of(plan) for plan in plans))
    return Needs(
        num_cards,
        next((plan.devices[0].name for plan in plans if not plan.on_cpu), ""),
        memory,
        _whole_gib(_LIMIT_FACTOR * memory),
        shm,
        # The API server and the engine core each keep a core busy, and so does every rank.
        2 + num_ranks + relays.num_cores,
        _whole_gib(_STATE_BYTES + 1.1 * _BYTES_OF_PARAMETER * fetched_parameters),
    )


def _num_ranks(plan: Plan) -> int:
    return 0 if plan.on_cpu else len(plan.devices)


def _ram_of(plan: Plan) -> int:
    if not plan.on_cpu:
        asleep = sum(device.weights_bytes for device in plan.devices) if _SLEEPS in plan.engine_args else 0
        beside = sum(plan.placement.offloaded_bytes.values())
        return _ENGINE_BYTES + _RANK_BYTES * len(plan.devices) + beside + asleep
    return sum(device.total_bytes - device.used_by_others_bytes - device.free_bytes for device in plan.devices)


def _whole_gib(num_bytes: float) -> int:
    return math.ceil(num_bytes / GIB) * GIB
