"""From the plan of a service to the models that its workers serve, with the folders of their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from qserve.hub.cache import commit_of
from qserve.planner.plan import Plan
from qserve.planner.speed.estimate import device_of, replica_of
from qserve.planner.speed.terms.engine_costs import has_speed
from qserve.service.plan import ModelPlan, ServicePlan
from qserve.service.weights import config_only, folder_of, whole_reward
from qserve.supervisor import ModelDeployment
from qserve.supervisor.screen import Screen

__all__ = ["hosted_models"]


def hosted_models(service: ServicePlan, configs: Path, screen: Screen) -> list[ModelDeployment]:
    """A model for each worker. Weights that are not here are downloaded; `configs` takes the config of random ones.

    Raises DoesNotFit for a plan that does not fit, BrokenCheckpoint for a folder without weights.
    """
    service.check_fits()
    _tell_findings(service, screen)
    deployments: list[ModelDeployment] = []
    if service.chat is not None:
        deployments += _replicas(_chat(service, service.chat, configs, screen), service.chat, bool(service.where))
        deployments = [_with_latency(one, service) for one in deployments]
    if service.reward is not None:
        deployments += _replicas(_reward(service, service.reward, screen), service.reward, bool(service.where))
    for line in _choices(service):
        screen.note(line)
    return deployments


def _tell_findings(service: ServicePlan, screen: Screen) -> None:
    """What was found odd in the checkpoints, and how two models share the machine."""
    for note in (
        *(service.reward_model.notes if service.reward_model is not None else ()),
        *(service.chat.checkpoint.messages if service.chat is not None else ()),
        *filter(None, (service.where,)),
    ):
        screen.note(note)


def _choices(service: ServicePlan) -> Iterator[str]:
    """What was chosen for the chat model, and why."""
    if service.chat is None:
        return
    plan = service.chat.replicas[0].plan
    yield f"engine: {plan.engine} {plan.engine_version} ({service.engine})"
    yield f"weights: {plan.quant.scheme} ({plan.quant.reason})"
    if plan.cpu_activations == "int8":
        yield "activations: rounded to 8 bits in groups of 64 (--cpu-activations exact leaves them in 16)"
    yield from (f"· {note}" for note in plan.notes if note not in service.chat.checkpoint.messages)


def _replicas(one: ModelDeployment, model: ModelPlan, is_shared: bool) -> Iterator[ModelDeployment]:
    """A copy of `one` for each server. A single one that shares the machine with nothing may see all cards."""
    num_replicas = len(model.replicas)
    for index, each in enumerate(model.replicas):
        cards = each.cards if is_shared or num_replicas > 1 else None
        yield replace(
            one,
            plan=_at_commit(each.plan, one.folder),
            cards=cards,
            num_cores=each.num_cores,
            index=index,
            num_replicas=num_replicas,
        )


def _at_commit(plan: Plan, folder: Path) -> Plan:
    """The plan with the commit that is served, which a plan of bundled dimensions can't know before it is fetched."""
    commit = commit_of(folder)
    if commit is None or plan.quant.checkpoint != plan.model.id:
        return plan
    return replace(plan, model=replace(plan.model, revision=commit))


def _with_latency(deployment: ModelDeployment, service: ServicePlan) -> ModelDeployment:
    """With its planned steps, for the comparison of planned and measured latency."""
    assert service.chat is not None, "it is a replica of it"
    device = device_of(deployment.plan, service.hardware)
    if device is None or not has_speed(deployment.plan.engine):
        return deployment
    return replace(
        deployment, speed=replica_of(deployment.plan, service.chat.checkpoint.spec, device, service.measured)
    )


def _chat(service: ServicePlan, chat: ModelPlan, configs: Path, screen: Screen) -> ModelDeployment:
    request, first = service.request, chat.replicas[0]
    is_dummy = request.load_format == "dummy"
    folder = config_only(chat.checkpoint, configs) if is_dummy else folder_of(chat.checkpoint, first.plan, screen)
    return ModelDeployment(
        "chat",
        folder,
        tuple(dict.fromkeys(request.names)) or (chat.checkpoint.id,),
        first.plan,
        engine_args=request.engine_args,
        load_format=request.load_format,
        verify_quant=request.verify_quant,
        packed_cache_bytes=request.packed_cache_bytes,
    )


def _reward(service: ServicePlan, reward: ModelPlan, screen: Screen) -> ModelDeployment:
    """Of a reward or an embedding model. `demo` names a chat model and a reward model; behind one port they need names
    of their own.
    """
    asked, model = service.request.reward, service.reward_model
    assert asked is not None and model is not None and model.trained is not None, "it is served"
    trained = whole_reward(asked, model.trained, screen)
    names = asked.names or ("demo-reward" if trained.id == "demo" else trained.id,)
    recipe = str(trained.recipe) if trained.recipe is not None else asked.settings.recipe
    return ModelDeployment(
        asked.role,
        trained.path,
        names,
        reward.replicas[0].plan,
        packed_cache_bytes=service.request.packed_cache_bytes,
        reward=replace(asked.settings, recipe=recipe),
        tokenizer=trained.tokenizer,
    )
