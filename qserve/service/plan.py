"""`plan_service`: the one plan of a service, which `plan` prints, `up` serves, and `deploy` writes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import DoesNotFit, QserveError, UsageError
from qserve.planner.engine import option_value
from qserve.planner.fits import check_fits
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.calibration import NOTHING_MEASURED, Measured
from qserve.planner.speed.estimate import replicas_of
from qserve.service.chat import checked_chat
from qserve.service.engine import ChosenEngine, choose_engine
from qserve.service.guess import between, of_lighter
from qserve.service.knowledge import Knowledge
from qserve.service.layout.for_load import cheapest_cards, plan_for_load
from qserve.service.layout.one_stream import with_one_stream
from qserve.service.layout.search import Layout
from qserve.service.load import SpeedRequest
from qserve.service.machine import Machine, refuse_to_serve
from qserve.service.models import Models
from qserve.service.quantization import weighed_by_speed
from qserve.service.replicas import NumReplicas, ReplicaPlan, as_one, plan_replicas, spread
from qserve.service.request import ServiceRequest
from qserve.service.reward import RewardModel, scoring_request, with_judge
from qserve.service.sharing import make_shared_plan, plan_both

__all__ = ["ModelPlan", "ServicePlan", "plan_service", "rank_cards"]

_NOTHING = ServiceRequest(None)


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
        hardware: the machine with the service's other processes on it.
        chat: the chat model; None without.
        reward: the reward or embedding model; None without.
        where: how the two share the machine, in words; "" for a single model.
        request: what was asked; of a judge with the chat model and the recipe that stand for it.
        engine: why the chat model's engine was chosen.
        passed_over: why the preferred engine was not; "" where it was.
        obstacle: why it can be planned and not served on this machine; "" where it can.
        measured: the measured speed of the machine.
        formats: what other formats of a CPU would give; "" where none was compared.
        reward_model: the checkpoint behind `reward`.
    """

    hardware: Hardware
    chat: ModelPlan | None
    reward: ModelPlan | None
    where: str = ""
    request: ServiceRequest = _NOTHING
    engine: str = ""
    passed_over: str = ""
    obstacle: str = ""
    measured: Measured = NOTHING_MEASURED
    formats: str = ""
    reward_model: RewardModel | None = None

    @property
    def models(self) -> tuple[ModelPlan, ...]:
        """Those that are there, the chat model first."""
        return tuple(one for one in (self.chat, self.reward) if one is not None)

    @property
    def role(self) -> Literal["reward", "embed"]:
        """Of the model that `reward` is."""
        return "reward" if self.request.reward is None else self.request.reward.role

    @property
    def fits(self) -> bool:
        """Whether all models do."""
        return all(one.whole.fits for one in self.models)

    def with_first(self, model: ModelPlan) -> ServicePlan:
        """With another plan of its first model, which has the suggestions and commands of the service."""
        return replace(self, chat=model) if self.chat is not None else replace(self, reward=model)

    def to_json(self) -> dict[str, Any]:
        """The first model's plan; beside a chat model the other's under its role, and whether both fit."""
        first, *others = self.models
        beside = {"fits": self.fits, self.role: others[0].whole.to_json()} if others else {}
        return {**first.whole.to_json(), **beside}

    def check_fits(self) -> None:
        """Raises DoesNotFit with what would fit, of the chat model last."""
        for one in (self.reward, self.chat):
            if one is not None:
                check_fits(one.whole)


@dataclass(frozen=True)
class _Chat:
    """A chat model as it is planned: with the engine, the quantization and the measurements that the request leaves
    open. `suggested` is the request that suggestions change.
    """

    checkpoint: Checkpoint
    hardware: Hardware
    plan: PlanRequest
    suggested: PlanRequest
    replicas: NumReplicas | None
    speed: SpeedRequest
    engine: ChosenEngine
    formats: str


@dataclass(frozen=True)
class _Reward:
    """A reward or embedding model as it is planned. `computes`: it needs more than a process."""

    checkpoint: Checkpoint
    plan: PlanRequest
    replicas: int
    computes: bool
    role: Literal["reward", "embed"]

    @property
    def named(self) -> str:
        """What it is called where it shares the machine."""
        return "embedding" if self.role == "embed" else self.role


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
        raise UsageError(
            "no model is named; name a chat model, a reward model with --reward, an embedding model "
            "with --embed, or a chat model and one of these"
        )
    if machine.serves:
        refuse_to_serve(machine.hardware)
    request = with_judge(request, folder)
    models = Models.read(request, machine)
    return _of_both_layouts(models, partial(_planned, request=request, machine=machine, knowledge=knowledge))


def _of_both_layouts(models: Models, planned: Callable[[Models], ServicePlan]) -> ServicePlan:
    """The plan, of a chat model whose packing is a guess between the layouts that its name can mean."""
    try:
        service = planned(models)
    except DoesNotFit as refused:  # of replicas, which have no plan that is short
        return _of_lighter_replicas(models, planned, refused)
    if models.chat is None or models.chat.lighter is None or service.chat is None:
        return service
    lighter = planned(replace(models, chat=models.chat.lighter))
    (heavy, *_), (light, *_) = service.models, lighter.models
    plan = between(heavy.whole, light.whole, (models.chat.layout, models.chat.lighter.layout))
    rests_on, first = (lighter, light) if plan.may_fit else (service, heavy)
    return rests_on.with_first(replace(first, whole=plan))


def _of_lighter_replicas(models: Models, planned: Callable[[Models], ServicePlan], refused: DoesNotFit) -> ServicePlan:
    """What may fit where the larger weights were `refused`, which is raised where the smaller do not fit either."""
    if models.chat is None or models.chat.lighter is None:
        raise refused
    try:
        service = planned(replace(models, chat=models.chat.lighter))
        service.check_fits()
    except DoesNotFit:
        raise refused from None
    (first, *_) = service.models
    return service.with_first(replace(first, whole=of_lighter(models.chat, first.whole, refused.short_bytes)))


def _planned(models: Models, request: ServiceRequest, machine: Machine, knowledge: Knowledge) -> ServicePlan:
    hardware = machine.with_service(request.has_ui, request.num_gateways, request.min_free_bytes)
    chat = None if models.chat is None else _chat(models.chat, request, machine, hardware, knowledge)
    reward = None if models.reward is None else _reward(models.reward, request, machine, hardware)
    placed = replace(_placed(chat, reward, hardware), request=request, reward_model=models.reward)
    if chat is None:
        return placed
    return replace(
        placed,
        engine=chat.engine.why,
        passed_over=chat.engine.passed_over,
        obstacle=chat.engine.obstacle,
        measured=chat.speed.measured,
        formats=chat.formats,
    )


def _placed(chat: _Chat | None, reward: _Reward | None, hardware: Hardware) -> ServicePlan:
    """Where the models go: one alone on the machine, or both on one memory budget."""
    if chat is None:
        assert reward is not None, "one of the two was named"
        replicas = plan_replicas(reward.checkpoint, hardware, reward.plan, reward.replicas, f"--{reward.role}-replicas")
        return ServicePlan(hardware, None, _model(reward.checkpoint, replicas))
    if reward is None:
        return ServicePlan(hardware, _alone(chat), None)
    if chat.replicas in (None, 1) and reward.replicas == 1:
        shared = make_shared_plan(
            chat.checkpoint, reward.checkpoint, hardware, chat.plan, reward.plan, reward.named, computes=reward.computes
        )
        answering = [ReplicaPlan(shared.chat, shared.chat_cards)]
        scored, where = [ReplicaPlan(shared.reward, shared.reward_cards)], shared.where
    else:
        counts = (chat.replicas or 1, reward.replicas)
        both = plan_both(chat.checkpoint, reward.checkpoint, hardware, (chat.plan, reward.plan), counts, reward.role)
        answering, scored, where = both.chat, both.reward, both.where
    return ServicePlan(hardware, _with_speed(chat, answering), _model(reward.checkpoint, scored), where)


def _reward(model: RewardModel, request: ServiceRequest, machine: Machine, hardware: Hardware) -> _Reward:
    assert request.reward is not None, "the model is what it names"
    scoring = scoring_request(request, model, machine, hardware)
    return _Reward(model.planned, scoring, request.reward.replicas, model.computes, request.reward.role)


def _chat(
    checkpoint: Checkpoint, request: ServiceRequest, machine: Machine, hardware: Hardware, knowledge: Knowledge
) -> _Chat:
    """The engine that is installed, then the quantization that a CPU is fast in."""
    learned = replace(request.plan, learned=knowledge.memory())
    engine = _engine(checkpoint, hardware, learned, machine)
    measured = knowledge.speed(checkpoint, hardware)
    weighed = weighed_by_speed(checkpoint, hardware, engine.request, measured)
    checkpoint = replace(checkpoint, messages=(*checkpoint.messages, *filter(None, (weighed.why,))))
    speed = _speed(request, measured)
    return _Chat(checkpoint, hardware, weighed.request, learned, request.replicas, speed, engine, weighed.figures)


def rank_cards(request: ServiceRequest, machine: Machine, knowledge: Knowledge) -> list[tuple[str, int, Layout]]:
    """Cards and counts that carry the load of a chat model, cheapest first: (key, count, layout).

    Runs on the cards that are here correct none of them. Raises UsageError where no card with a price holds the model.
    """
    hardware, chat = (
        machine.with_service(request.has_ui, request.num_gateways, request.min_free_bytes),
        checked_chat(request, machine),
    )
    measured = replace(knowledge, learns=False).speed(chat, hardware)
    return cheapest_cards(chat, hardware, request.plan, _speed(request, measured))


def _speed(request: ServiceRequest, measured: Measured) -> SpeedRequest:
    return replace(
        request.speed, measured=measured, replicas=request.replicas if isinstance(request.replicas, int) else None
    )


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


def _alone(chat: _Chat) -> ModelPlan:
    """With the machine for itself: replicas as asked for, or the layout that suits the load."""
    replicas, load, hardware = chat.replicas, chat.speed.load, chat.hardware
    one_server = replicas in (None, 1) and not (option_value(chat.plan, "data_parallel_size") or 1) > 1
    if one_server or (load is not None and hardware.devices):
        return _for_load(chat)
    if isinstance(replicas, int) and replicas <= len(hardware.devices):
        with suppress(UsageError):  # their speed can't be planned: of the engine, or of the load that is assumed
            return _for_load(chat)
    return _with_speed(chat, plan_replicas(chat.checkpoint, hardware, chat.plan, replicas or 1))


def _for_load(chat: _Chat) -> ModelPlan:
    """Raises UsageError where no layout of as many replicas can be simulated."""
    whole = plan_for_load(chat.checkpoint, chat.hardware, chat.plan, chat.speed, chat.suggested)
    return ModelPlan(chat.checkpoint, whole, tuple(spread(whole, chat.hardware, replicas_of(whole))))


def _model(checkpoint: Checkpoint, replicas: Sequence[ReplicaPlan]) -> ModelPlan:
    return ModelPlan(checkpoint, as_one(replicas), tuple(replicas))


def _with_speed(chat: _Chat, replicas: Sequence[ReplicaPlan]) -> ModelPlan:
    """Each server with the speed of one stream on it, and all of them with one on each."""
    timed: list[ReplicaPlan] = []
    for one in replicas:
        same = next((other.plan for other, was in zip(timed, replicas, strict=False) if was.plan is one.plan), None)
        plan = same or with_one_stream(one.plan, chat.checkpoint, chat.hardware, chat.plan, chat.speed.measured)
        timed.append(replace(one, plan=plan))
    whole = with_one_stream(as_one(replicas), chat.checkpoint, chat.hardware, chat.plan, chat.speed.measured)
    return ModelPlan(chat.checkpoint, whole, tuple(timed))
