"""What a deployment's files say of the plan of its service: its models in a line each, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qserve.deploy.argv import local_path
from qserve.deploy.needs import Needs, Relays, needs_of
from qserve.hub.revisions import at_revision, split_revision
from qserve.planner.plan import Plan
from qserve.service.plan import ModelPlan, ServicePlan

__all__ = ["Planned", "pinned", "revision_of"]


@dataclass(frozen=True)
class Planned:
    """`lines` has one line a model, for the file's comment; `max_num_seqs`: concurrent requests of all replicas of the
    first model.
    """

    needs: Needs
    lines: tuple[str, ...]
    max_num_seqs: int

    @classmethod
    def of(cls, service: ServicePlan, relays: Relays) -> Planned:
        """`relays`: gateway processes on the same machine as the models. Raises DoesNotFit."""
        service.check_fits()
        plans = [one.plan for model in service.models for one in model.replicas]
        needs = needs_of(plans, _num_cards(service), _num_fetched(service), relays)
        first = service.models[0].replicas
        return cls(needs, tuple(map(_line, service.models)), sum(one.plan.workload.max_num_seqs for one in first))


def _num_cards(service: ServicePlan) -> int:
    """Cards of all models, those that models or replicas share once."""
    counts = [_of_model(model) for model in service.models]
    return sum(counts) if len(counts) == 1 or _are_apart(service) else counts[0]


def _of_model(model: ModelPlan) -> int:
    num_sharers = model.replicas[0].num_sharers
    return sum(0 if one.plan.on_cpu else len(one.plan.devices) for one in model.replicas) // num_sharers


def _are_apart(service: ServicePlan) -> bool:
    """Whether the reward or embedding model has cards of its own."""
    assert service.chat is not None and service.reward is not None, "there are two models"
    chat, reward = service.chat.replicas, service.reward.replicas
    if len(chat) > 1 or len(reward) > 1:
        return True
    return len(chat[0].cards) < len(service.hardware.devices) and not reward[0].plan.on_cpu


def _num_fetched(service: ServicePlan) -> int:
    """Parameters that the target has to download: none of a mounted folder, of a file, and of the demo."""
    request, model = service.request, service.reward_model
    reward = request.reward.checkpoint if request.reward is not None else None
    named = [request.model, reward if model is not None and model.computes else None]
    checkpoints = [None if one is None else one.checkpoint for one in (service.chat, service.reward)]
    return sum(
        0 if name == "demo" or local_path(name) is not None else checkpoint.parameters
        for name, checkpoint in zip(named, checkpoints, strict=True)
        if name is not None and checkpoint is not None
    )


def pinned(values: Mapping[str, Any], service: ServicePlan) -> dict[str, Any]:
    """Options of `up` with the commits of the hub that the plan was made of behind the models that it names.

    What was read from the cache or the hub is named by its id: short names that this machine's cache explains mean
    nothing where the files are used. A judge that --reward names is planned as the chat model.
    """
    roles = {"model": service.chat, service.role: service.chat if values.get("judge") else service.reward}
    changed = dict(values)
    for role, model in roles.items():
        name = values.get(role)
        if name is None or model is None or name == "demo" or local_path(name) is not None:
            continue
        if model.whole.model.revision is not None:
            asked = split_revision(str(name))[1]
            changed[role] = at_revision(model.whole.model.id, revision_of(model.whole) or asked)
    return changed


def revision_of(plan: Plan) -> str | None:
    """The commit of the files that are loaded; None where none is known, or a quantized sibling is loaded."""
    return plan.model.revision if plan.quant.checkpoint == plan.model.id else None


def _line(model: ModelPlan) -> str:
    plan = model.replicas[0].plan
    where = "the CPU" if plan.on_cpu else f"{len(plan.devices)} × {plan.devices[0].name}"
    limits = f"{plan.workload.max_model_len} tokens, {plan.workload.max_num_seqs} at once"
    count = f"{len(model.replicas)} replicas of " if len(model.replicas) > 1 else ""
    engine = f"{plan.engine} {plan.engine_version}"
    return f"{count}{plan.model.id}{_at(model)}, {engine}, {plan.quant.scheme}, {limits}, on {where}"


def _at(model: ModelPlan) -> str:
    """At which revision which files are served; nothing of a folder, a file and the demo, which have none."""
    plan = model.replicas[0].plan
    if plan.quant.checkpoint != plan.model.id:
        return f" as {plan.quant.checkpoint} at no fixed revision"
    if (commit := revision_of(plan)) is not None:
        return f" at revision {commit}"
    return "" if model.checkpoint.folder is not None else " at no fixed revision"
