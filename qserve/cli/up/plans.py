"""From the flags of `qserve up` to its planned workers, on this machine or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from qserve.cli.doctor.measured import measured_speed
from qserve.cli.learning import with_learned
from qserve.cli.options.deployment import deployment_of
from qserve.cli.options.load import speed_request_of
from qserve.cli.options.planning import request_of
from qserve.cli.reward.options import settings_of
from qserve.cli.up.checks import check_reads
from qserve.cli.up.cluster import Cluster
from qserve.cli.up.hosting import ModelsToServe, plan_models
from qserve.core.hardware import Hardware
from qserve.engine.vllm.counted_flags import with_counted_flags
from qserve.planner.request import PlanRequest
from qserve.supervisor import Hosted
from qserve.supervisor.screen import Screen
from qserve.units import GIB

__all__ = ["planned_hosts"]


def planned_hosts(
    values: dict[str, Any], hardware: Hardware, cluster: Cluster | None, state: Path, configs: Path, screen: Screen
) -> list[Hosted]:
    """What `hardware` hosts; with a `cluster`, what one of its nodes does, each of which counts as the one that this
    service runs on. `configs`: see `ModelsToServe`.

    Raises UsageError, ModelNotFound, BrokenCheckpoint or DoesNotFit, each with what would work.
    """
    gpu, wanted = values["gpu"], _wanted(values, configs)
    # Measurements of this machine do not hold for others.
    is_new = values["no_learn"] or cluster is not None
    request = with_counted_flags(request_of(values), values["engine_args"])
    request = with_learned(request, state, values["model"], gpu, is_off=is_new)
    known = partial(measured_speed, state, hardware=hardware, gpu=gpu, is_off=is_new)
    here = wanted if cluster is None else cluster.wanted(wanted)

    def planned(machine: Hardware, request: PlanRequest) -> list[Hosted]:
        speed = speed_request_of(values)
        hosted = plan_models(here, machine, request, values["reward_quant"], screen, known, speed)
        return [_as_asked(one, values) for one in hosted]

    hosted = planned(hardware, request) if cluster is None else cluster.planned(planned, hardware, request)
    check_reads(hosted[0], values["engine_args"], values["verify_quant"], screen)
    _warn_of_differences(hosted, screen)
    return hosted


def _wanted(values: dict[str, Any], configs: Path) -> ModelsToServe:
    return ModelsToServe(
        values["model"], values["served_model_name"], values["reward"], values["served_reward_name"],
        settings_of(values), values["load_format"], configs, values["reward_engine"], values["replicas"],
        values["reward_replicas"],
    )  # fmt: skip


def _as_asked(hosted: Hosted, values: dict[str, Any]) -> Hosted:
    """With the engine arguments that are not part of the plan."""
    hosted = replace(hosted, packed_cache_bytes=int(values["packed_cache_gib"] * GIB))
    if hosted.role != "chat":
        return hosted
    return replace(hosted, engine_args=values["engine_args"], verify_quant=values["verify_quant"])


def _warn_of_differences(hosted: Sequence[Hosted], screen: Screen) -> None:
    """Print where the plans differ from what --config expects."""
    deployment = deployment_of(click.get_current_context())
    plans = {one.role: one.plan for one in hosted}
    if deployment is None or "chat" not in plans:
        return
    for difference in deployment.expect.differences(plans["chat"], plans.get("reward")):
        screen.note(f"· {deployment.path.name}: {difference}")
