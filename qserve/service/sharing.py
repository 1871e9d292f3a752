"""A chat model and its reward model on one memory budget: on one card, on several, or replicas of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.errors import UsageError
from qserve.planner.engine import SCORER
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.service.replicas import NumReplicas, ReplicaPlan, plan_replicas

__all__ = ["SharedPlan", "SharedReplicas", "make_shared_plan", "plan_both"]


@dataclass(frozen=True)
class SharedPlan:
    """Two workers: `chat` is planned on what `reward` leaves. `where` says in words how they share.

    `chat_cards` and `reward_cards` are those that each may see; without any it runs on the CPU.
    """

    chat: Plan
    reward: Plan
    where: str
    chat_cards: tuple[Device, ...] = ()
    reward_cards: tuple[Device, ...] = ()

    @property
    def fits(self) -> bool:
        return self.chat.fits and self.reward.fits


def make_shared_plan(
    chat: Checkpoint,
    reward: Checkpoint,
    hardware: Hardware,
    request: PlanRequest,
    reward_request: PlanRequest,
    named: str = "reward",
    *,
    computes: bool = True,
) -> SharedPlan:
    """The reward model gets what it needs (weights and one packed batch), the chat model the rest.

    On one card they share; with several, the reward model gets the last to itself where the chat model fits on the
    others. Where the card is too small for both, the reward model goes to the CPU; as it does where it is rules and
    judges, which compute nothing (`computes` False). An embedding model, which is `named` so, is planned as one.
    """
    if hardware.devices and not computes:
        return _reward_on_cpu(chat, reward, hardware, request, reward_request, named)
    attempts = [_beside(chat, reward, hardware, request, reward_request, named)]
    if len(hardware.devices) > 1:
        attempts.insert(0, _apart(chat, reward, hardware, request, reward_request, named))
    if hardware.devices:
        attempts.append(_reward_on_cpu(chat, reward, hardware, request, reward_request, named))
    return next((shared for shared in attempts if shared.fits), attempts[0])


def _scored(request: PlanRequest) -> PlanRequest:
    """qserve's own scorer, unless an engine was asked for."""
    return replace(request, engine=request.engine or SCORER)


def _beside(
    chat: Checkpoint,
    reward: Checkpoint,
    hardware: Hardware,
    request: PlanRequest,
    reward_request: PlanRequest,
    named: str,
) -> SharedPlan:
    own = replace(hardware, devices=hardware.devices[:1])
    reward_plan = make_plan(reward, own, _scored(reward_request))
    rest = _without(hardware, reward_plan.devices[0].held_bytes)
    place = hardware.devices[0].name if hardware.devices else "the CPU"
    where = f"chat and {named} share {place}"
    chat_plan = make_plan(chat, rest, request)
    return SharedPlan(chat_plan, _beside_chat(reward_plan, chat_plan), where, hardware.devices, own.devices)


def _apart(
    chat: Checkpoint,
    reward: Checkpoint,
    hardware: Hardware,
    request: PlanRequest,
    reward_request: PlanRequest,
    named: str,
) -> SharedPlan:
    last = replace(hardware, devices=hardware.devices[-1:])
    others = replace(hardware, devices=hardware.devices[:-1])
    reward_plan = make_plan(reward, last, _scored(reward_request))
    where = f"the {named} model has the last card to itself"
    return SharedPlan(make_plan(chat, others, request), reward_plan, where, others.devices, last.devices)


def _reward_on_cpu(
    chat: Checkpoint,
    reward: Checkpoint,
    hardware: Hardware,
    request: PlanRequest,
    reward_request: PlanRequest,
    named: str,
) -> SharedPlan:
    reward_plan = make_plan(reward, replace(hardware, devices=()), _scored(reward_request))
    where = f"the {named} model runs on the CPU"
    rest = _without(hardware, reward_plan.devices[0].held_bytes) if hardware.devices[0].shares_ram else hardware
    return SharedPlan(make_plan(chat, rest, request), reward_plan, where, hardware.devices)


def _beside_chat(reward: Plan, chat: Plan) -> Plan:
    """The reward model's plan with the chat model as the neighbour that it is: what its allocator may take ends there.

    Planned first, it knew of nobody else, and torch would have kept blocks that the chat model is entitled to.
    """
    if reward.on_cpu or not (reward.fits and chat.fits):
        return reward
    taken = chat.devices[0].held_bytes
    first = reward.devices[0]
    shared = replace(
        first, used_by_others_bytes=first.used_by_others_bytes + taken, free_bytes=max(0, first.free_bytes - taken)
    )
    return replace(reward, devices=(shared, *reward.devices[1:]))


def _without(hardware: Hardware, held_bytes: int) -> Hardware:
    """The machine as the second worker finds it: the first one is a neighbour that holds memory."""
    if not hardware.devices:
        return replace(hardware, ram_available_bytes=max(0, hardware.ram_available_bytes - held_bytes))
    first = hardware.devices[0]
    occupied = replace(first, used_by_others_bytes=first.used_by_others_bytes + held_bytes)
    return replace(hardware, devices=(occupied, *hardware.devices[1:]))


@dataclass(frozen=True)
class SharedReplicas:
    """Replicas of a chat model and of its reward model on one machine; `where` says in words how they share it."""

    chat: list[ReplicaPlan]
    reward: list[ReplicaPlan]
    where: str


def plan_both(
    chat: Checkpoint,
    reward: Checkpoint,
    hardware: Hardware,
    requests: tuple[PlanRequest, PlanRequest],
    counts: tuple[NumReplicas, int],
    role: str = "reward",
) -> SharedReplicas:
    """The reward model's replicas get what they need, the chat model's the rest; `requests` and `counts` in this order.

    With cards, each reward replica has one of the last to itself. Raises DoesNotFit or UsageError.
    """
    num_chat, num_reward = counts
    flag, named = f"--{role}-replicas", "embedding" if role == "embed" else role
    if hardware.devices:
        if len(hardware.devices) <= num_reward:
            raise UsageError(
                f"{flag} {num_reward} with a chat model takes {num_reward + 1} cards, and there are "
                f"{len(hardware.devices)}; lower {flag}, or leave both --replicas out to share a card"
            )
        last = replace(hardware, devices=hardware.devices[-num_reward:])
        rest = replace(hardware, devices=hardware.devices[:-num_reward])
        scored = plan_replicas(reward, last, requests[1], num_reward, flag)
        where = (
            f"the {named} model has the last {num_reward} cards"
            if num_reward > 1
            else f"the {named} model has the last card to itself"
        )
    else:
        scored = plan_replicas(reward, hardware, requests[1], num_reward, flag)
        held = sum(one.plan.devices[0].held_bytes for one in scored)
        rest = replace(hardware, ram_available_bytes=max(0, hardware.ram_available_bytes - held))
        where = f"chat and {named} share the CPU"
    answering = plan_replicas(chat, rest, requests[0], num_chat)
    if not hardware.devices:
        cores = max(1, hardware.cpu_cores // (len(answering) + len(scored)))
        answering, scored = ([replace(one, num_cores=cores) for one in both] for both in (answering, scored))
    return SharedReplicas(answering, scored, where)
