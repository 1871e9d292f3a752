"""Replicas of a chat model beside replicas of its reward model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.planner.replicas.plans import NumReplicas, ReplicaPlan, plan_replicas
from qserve.planner.request import PlanRequest
from qserve.planner.share import num_held_bytes

__all__ = ["SharedReplicas", "plan_both"]


@dataclass(frozen=True)
class SharedReplicas:
    """Replicas of a chat model and of its reward model on one machine; `where` says in words how they share it."""

    chat: list[ReplicaPlan]
    reward: list[ReplicaPlan]
    where: str


def plan_both(
    chat: Checkpoint, reward: Checkpoint, hardware: Hardware, requests: tuple[PlanRequest, PlanRequest],
    counts: tuple[NumReplicas, int],
) -> SharedReplicas:  # fmt: skip
    """The reward model's replicas get what they need, the chat model's the rest; `requests` and `counts` in this order.

    With cards, each reward replica has one of the last to itself. Raises DoesNotFit or UsageError.
    """
    num_chat, num_reward = counts
    if hardware.devices:
        if len(hardware.devices) <= num_reward:
            raise UsageError(
                f"--reward-replicas {num_reward} with a chat model takes {num_reward + 1} cards, and there are "
                f"{len(hardware.devices)}; lower --reward-replicas, or leave both --replicas out to share a card"
            )
        last = replace(hardware, devices=hardware.devices[-num_reward:])
        rest = replace(hardware, devices=hardware.devices[:-num_reward])
        scored = plan_replicas(reward, last, requests[1], num_reward, "--reward-replicas")
        where = (
            f"the reward model has the last {num_reward} cards"
            if num_reward > 1
            else "the reward model has the last card to itself"
        )
    else:
        scored = plan_replicas(reward, hardware, requests[1], num_reward, "--reward-replicas")
        held = sum(num_held_bytes(one.plan) for one in scored)
        rest = replace(hardware, ram_available_bytes=max(0, hardware.ram_available_bytes - held))
        where = "chat and reward share the CPU"
    answering = plan_replicas(chat, rest, requests[0], num_chat)
    if not hardware.devices:
        cores = max(1, hardware.cpu_cores // (len(answering) + len(scored)))
        answering, scored = ([replace(one, num_cores=cores) for one in both] for both in (answering, scored))
    return SharedReplicas(answering, scored, where)
