"""`plan_service`: the one plan of a service, which `plan` prints, `up` serves, and `deploy` writes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import QserveError, UsageError
from qserve.planner.engine import option_value
from qserve.planner.fits import check_fits
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.estimate import replicas_of
from qserve.planner.speed.learned import NOTHING_MEASURED, Measured
from qserve.service.chat import checked_chat
from qserve.service.engine import ChosenEngine, choose_engine
from qserve.service.knowledge import Knowledge
from qserve.service.layout.for_load import cheapest_cards, plan_for_load
from qserve.service.layout.one_stream import with_one_stream
from qserve.service.layout.search import Layout
from qserve.service.machine import Machine
from qserve.service.quantization import weighed_by_speed
from qserve.service.replicas import ReplicaPlan, as_one, plan_replicas, spread
from qserve.service.request import ServiceRequest
from qserve.service.reward import RewardModel, find_reward_model, scoring_request, with_judge
from qserve.service.sharing import make_shared_plan, plan_both

__all__ = ["ModelPlan", "ServicePlan", "plan_service", "rank_cards"]

_REWARD_REPLICAS = "--reward-replicas"


@dataclass(frozen=True)
class ModelPlan:
    """One model of a service: `whole` is its plan over all replicas, `replicas` has one a server."""

    checkpoint: Checkpoint
    whole: Plan
    replicas: tuple[ReplicaPlan, ...]


@dataclass(frozen=True)
class ServicePlan:
    """What a service runs.

    Attributes:
        request: what was asked; of a judge with the chat model and the recipe that stand for it.
        hardware: the machine with the service's other processes on it.
        chat: the chat model; None without.
        reward: the reward model; None without.
        where: how the two share the machine, in words; "" for a single model.
        engine: why the chat model's engine was chosen.
        obstacle: why it can be planned and not served on this machine; "" where it can.
        measured: the measured speed of the machine.
        formats: what other formats of a CPU would give; "" where none was compared.
        reward_model: the checkpoint behind `reward`.
    """

    request: ServiceRequest
    hardware: Hardware
    chat: ModelPlan | None
    reward: ModelPlan | None
    where: str = ""
    engine: str = ""
    obstacle: str = ""
    measured: Measured = NOTHING_MEASURED
    formats: str = ""
    reward_model: RewardModel | None = None

    @property
    def models(self) -> tuple[ModelPlan, ...]:
        """Those that are there, the chat model first."""
        return tuple(one for one in (self.chat, self.reward) if one is not None)

    @property
    def fits(self) -> bool:
        """Whether all models do."""
        return all(one.whole.fits for one in self.models)

    def with_first(self, model: ModelPlan) -> ServicePlan:
        """With another plan of its first model, which has the suggestions and commands of the service."""
        return replace(self, chat=model) if self.chat is not None else replace(self, reward=model)

    def to_json(self) -> dict[str, Any]:
        """The first model's plan; beside a chat model the other's under "reward", and whether both fit."""
        first, *others = self.models
        beside = {"fits": self.fits, "reward": others[0].whole.to_json()} if others else {}
        return {**first.whole.to_json(), **beside}

    def check_fits(self) -> None:
        """Raises DoesNotFit for the first model that does not, with what would."""
        for one in (self.reward, self.chat):
            if one is not None:
                check_fits(one.whole)


def plan_service(
    request: ServiceRequest, machine: Machine, knowledge: Knowledge, folder: Path | None = None
) -> ServicePlan:
    """The plan of all models that are asked for, on one memory budget; its parts may not fit, and say so.

    `folder` takes the files that a service needs beside its checkpoints; None: they are made for the plan alone.
    Raises UsageError, ModelNotFound, BrokenCheckpoint or UnknownArchitecture for what can't be planned, DoesNotFit for
    replicas that do not fit; on a machine that serves, UsageError for what can't be served there.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="qserve-plan-") as temporary:
            return plan_service(request, machine, knowledge, Path(temporary))
    if request.model is None and request.reward is None:
        raise UsageError("no model is named; name a chat model, a reward model with --reward, or both")
    request = with_judge(request, folder)
    hardware = machine.with_service(request.has_ui, request.num_gateways)
    reward = find_reward_model(request, machine)
    if request.model is None:
        assert reward is not None, "one of the two was named"
        return _reward_alone(request, reward, machine, hardware)
    chat = checked_chat(request, machine)
    learned = replace(request.plan, learned=knowledge.memory())
    chosen = _engine(chat, hardware, learned, machine)
    measured = knowledge.speed(chat, hardware)
    weighed = weighed_by_speed(chat, hardware, chosen.request, measured)
    chat = replace(chat, messages=(*chat.messages, *filter(None, (weighed.why,))))
    speed = replace(request.speed, measured=measured)
    asked = replace(request, plan=weighed.request, speed=speed)
    if reward is None:
        planned = ServicePlan(request, hardware, _alone(asked, chat, hardware, learned), None)
    else:
        planned = _together(request, asked, chat, reward, machine, hardware)
    return replace(
        planned, engine=chosen.why, obstacle=chosen.obstacle, measured=measured, formats=weighed.figures,
        reward_model=reward,
    )  # fmt: skip


def rank_cards(request: ServiceRequest, machine: Machine, knowledge: Knowledge) -> list[tuple[str, int, Layout]]:
    """Cards and counts that carry the load of a chat model, cheapest first: (key, count, layout).

    Raises UsageError where no card with a price holds the model.
    """
    hardware, chat = machine.with_service(request.has_ui, request.num_gateways), checked_chat(request, machine)
    learned = replace(request.plan, learned=knowledge.memory())
    speed = replace(request.speed, measured=knowledge.speed(chat, hardware))
    return cheapest_cards(chat, hardware, learned, speed)


def _engine(chat: Checkpoint, hardware: Hardware, request: PlanRequest, machine: Machine) -> ChosenEngine:
    """Where it can't be served, the request stays as it was. Raises UsageError on a machine that serves."""
    try:
        chosen = choose_engine(chat, hardware, request, machine.packages)
    except QserveError:
        if machine.serves:
            raise
        return ChosenEngine(request)  # what is wrong with it, its plan says
    if chosen.obstacle and machine.serves:
        raise UsageError(chosen.obstacle)
    return replace(chosen, request=request) if chosen.obstacle else chosen


def _reward_alone(request: ServiceRequest, model: RewardModel, machine: Machine, hardware: Hardware) -> ServicePlan:
    assert request.reward is not None, "it is what is planned"
    fixed = scoring_request(request, model, machine, hardware)
    replicas = plan_replicas(model.planned, hardware, fixed, request.reward.replicas, _REWARD_REPLICAS)
    planned = ModelPlan(model.planned, as_one(replicas), tuple(replicas))
    return ServicePlan(request, hardware, None, planned, reward_model=model)


def _alone(asked: ServiceRequest, chat: Checkpoint, hardware: Hardware, suggested: PlanRequest) -> ModelPlan:
    """The chat model with the machine for itself: replicas as asked for, or the layout that suits the load.

    `suggested` is what suggestions change.
    """
    replicas, speed = asked.replicas, asked.speed
    is_apart = isinstance(replicas, int) and replicas <= len(hardware.devices)
    one_server = replicas in (None, 1) and not (option_value(asked.plan, "data_parallel_size") or 1) > 1
    if one_server or is_apart or (speed.load is not None and hardware.devices):
        whole = plan_for_load(chat, hardware, asked.plan, speed, suggested)
        servers = replicas_of(whole) if whole.speed else 1
        return ModelPlan(chat, whole, tuple(spread(whole, hardware, servers)))
    plans = plan_replicas(chat, hardware, asked.plan, replicas or 1)
    return _with_speed(chat, plans, hardware, speed.measured)


def _together(
    request: ServiceRequest, asked: ServiceRequest, chat: Checkpoint, reward: RewardModel, machine: Machine,
    hardware: Hardware,
) -> ServicePlan:  # fmt: skip
    """Both on one memory budget, or replicas of both."""
    assert request.reward is not None, "both are asked for"
    scoring = scoring_request(request, reward, machine, hardware)
    if request.replicas in (None, 1) and request.reward.replicas == 1:
        shared = make_shared_plan(chat, reward.planned, hardware, asked.plan, scoring)
        answering = [ReplicaPlan(shared.chat, shared.chat_cards)]
        scored, where = [ReplicaPlan(shared.reward, shared.reward_cards)], shared.where
    else:
        counts = (request.replicas or 1, request.reward.replicas)
        both = plan_both(chat, reward.planned, hardware, (asked.plan, scoring), counts)
        answering, scored, where = both.chat, both.reward, both.where
    return ServicePlan(
        request,
        hardware,
        _with_speed(chat, answering, hardware, asked.speed.measured),
        ModelPlan(reward.planned, as_one(scored), tuple(scored)),
        where,
    )


def _with_speed(
    chat: Checkpoint, replicas: Sequence[ReplicaPlan], hardware: Hardware, measured: Measured
) -> ModelPlan:  # fmt: skip
    """Each server with the speed of one stream on it, and all of them with one on each."""
    timed: list[ReplicaPlan] = []
    for one in replicas:
        same = next((other.plan for other, was in zip(timed, replicas, strict=False) if was.plan is one.plan), None)
        timed.append(replace(one, plan=same or with_one_stream(one.plan, chat, hardware, measured)))
    return ModelPlan(chat, with_one_stream(as_one(replicas), chat, hardware, measured), tuple(timed))
