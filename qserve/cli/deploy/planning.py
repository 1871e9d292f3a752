"""Plans of a service that will run on another machine: fetches only headers, does not inspect this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qserve.cli.options.load import speed_request_of
from qserve.cli.options.planning import hardware_of, request_of
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.deploy.needs import Needs, Relays, needs_of
from qserve.deploy.words import local_path
from qserve.engine.vllm.counted_flags import with_counted_flags
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest
from qserve.planner.engine import with_same_rounding
from qserve.planner.fits import check_fits
from qserve.planner.replicas import ReplicaPlan, plan_both, plan_replicas
from qserve.planner.share import make_shared_plan
from qserve.planner.speed.served_replicas import plan_served

__all__ = ["Planned", "planned_service"]


@dataclass(frozen=True)
class Planned:
    """The models of a service, chat before reward, each with the plans of its replicas."""

    models: tuple[tuple[Plan, ...], ...]
    needs: Needs

    @property
    def lines(self) -> tuple[str, ...]:
        """One line per model, for the file's comment."""
        return tuple(map(_line, self.models))

    @property
    def max_num_seqs(self) -> int:
        """Concurrent requests of all replicas of the first model."""
        return sum(plan.workload.max_num_seqs for plan in self.models[0])


def planned_service(values: dict[str, Any], gpu: str | None, relays: Relays) -> Planned:
    """The plan on the cards that `gpu` names; None: assume the target has this machine's.

    `relays`: gateway processes on the same machine as the models.
    Raises UsageError, ModelNotFound, BrokenCheckpoint or DoesNotFit, each with what would work.
    """
    model, reward = values.get("model"), values.get("reward")
    if model is None and reward is None:
        raise UsageError("there is nothing to deploy; give --config FILE (as for `qserve up`), --model, or --reward")
    if model is None and values.get("judge"):  # a judge generates its verdicts: it is served as a chat model
        model, reward = reward, None
    hardware = hardware_of(gpu)
    request = with_counted_flags(request_of(values), values.get("engine_args") or "")
    if reward is not None:
        return _with_reward(model, reward, hardware, request, values, relays)
    chat = resolve(str(model))
    replicas = plan_served(chat, hardware, request, values.get("replicas"), speed_request_of(values))
    return _planned([replicas], _fetched(str(model), chat), relays)


def _with_reward(
    model: str | None, reward: str, hardware: Hardware, request: PlanRequest, values: dict[str, Any], relays: Relays
) -> Planned:
    from qserve.reward.find import planned_reward  # imports YAML and Jinja

    scored = planned_reward(reward)
    scoring = PlanRequest(
        quant=values["reward_quant"], engine=values["reward_engine"], max_model_len=values["max_length"]
    )  # fmt: skip
    scoring = with_same_rounding(scoring, request)
    num_chat, num_reward = values.get("replicas") or 1, values["reward_replicas"]
    if model is None:
        replicas = plan_replicas(scored, hardware, scoring, num_reward, "--reward-replicas")
        return _planned([replicas], _fetched(reward, scored), relays)
    chat = resolve(model)
    fetched = _fetched(model, chat) + _fetched(reward, scored)
    if (num_chat, num_reward) != (1, 1):
        both = plan_both(chat, scored, hardware, (request, scoring), (num_chat, num_reward))
        return _planned([both.chat, both.reward], fetched, relays)
    shared = make_shared_plan(chat, scored, hardware, request, scoring)
    plans = (check_fits(shared.chat), check_fits(shared.reward))
    is_apart = len(shared.chat_cards) < len(hardware.devices) and not shared.reward.on_cpu
    num_cards = _num_cards(shared.chat) + (_num_cards(shared.reward) if is_apart else 0)
    return Planned(tuple((plan,) for plan in plans), needs_of(plans, num_cards, fetched, relays))


def _planned(models: Sequence[Sequence[ReplicaPlan]], fetched: int, relays: Relays) -> Planned:
    plans = [one.plan for replicas in models for one in replicas]
    num_cards = sum(
        sum(_num_cards(one.plan) for one in replicas) // replicas[0].num_sharers for replicas in models
    )  # fmt: skip
    return Planned(
        tuple(tuple(one.plan for one in replicas) for replicas in models), needs_of(plans, num_cards, fetched, relays)
    )


def _num_cards(plan: Plan) -> int:
    return 0 if plan.on_cpu else len(plan.devices)


def _fetched(named: str, checkpoint: Checkpoint) -> int:
    """Parameters that the target has to download: 0 for a mounted folder and for the demo."""
    return 0 if named == "demo" or local_path(named) is not None else checkpoint.parameters


def _line(replicas: Sequence[Plan]) -> str:
    plan = replicas[0]
    where = "the CPU" if plan.on_cpu else f"{len(plan.devices)} × {plan.devices[0].name}"
    limits = f"{plan.workload.max_model_len} tokens, {plan.workload.max_num_seqs} at once"
    count = f"{len(replicas)} replicas of " if len(replicas) > 1 else ""
    return f"{count}{plan.model.id}, {plan.engine} {plan.engine_version}, {plan.quant.scheme}, {limits}, on {where}"
