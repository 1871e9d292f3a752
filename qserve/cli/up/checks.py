"""Checks of `qserve up` before and after planning: missing packages, flags without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qserve.cli.options.given_flags import refuse_flags
from qserve.cli.up.cluster import CLUSTER_FLAGS
from qserve.errors import MissingExtra, UsageError
from qserve.packages import missing_to_serve, why_no_server
from qserve.service.chat import check_template_to_serve
from qserve.service.request import LOAD_OPTIONS, misplaced_options

if TYPE_CHECKING:
    from qserve.supervisor import ModelDeployment
    from qserve.supervisor.screen import Screen

__all__ = ["check_flags", "check_packages", "check_reads", "check_roles"]


def check_packages(command: str = "qserve up") -> None:
    """Refuse a light installation for `command`, with the one that installs what serving needs."""
    server = why_no_server()
    if server:
        raise UsageError(f"`{command}` {server}")
    missing = missing_to_serve()
    if missing:
        raise MissingExtra(missing[0], f"`{command}`", *missing[1:])


def check_flags(values: dict[str, Any]) -> None:
    """Refuse described cards, and flags of a model, cluster or load that was not named."""
    if values["gpu"] not in (None, "none"):
        raise UsageError(
            f"--gpu {values['gpu']} describes cards for `qserve plan`; `qserve up` takes those of this machine. Leave "
            "it out, or write --gpu none to stay on the CPU"
        )
    check_roles(values)
    if values["ray"] is None:
        refuse_flags(CLUSTER_FLAGS, "for workers on a Ray cluster; add --ray auto or --ray HOST:PORT, or leave it out")
    else:
        refuse_flags(("takeover",), "for workers of this machine; with --ray stop the old service first")
        refuse_flags(LOAD_OPTIONS, "for a load on one machine; with --ray give --replicas or --max-replicas")


def check_roles(values: dict[str, Any]) -> None:
    """Refuse flags of a model that was not named, and a load on two models at once."""
    for names, why in misplaced_options(values["model"], values["reward"], values["judge"], values["embed"]):
        refuse_flags(names, why)


def check_reads(deployment: ModelDeployment, screen: Screen) -> None:
    """Refuse flags that the serving engine does not read, and a chat template that it can't render by."""
    plan, engine_args, verify_quant = deployment.plan, deployment.engine_args, deployment.verify_quant
    note = check_template_to_serve(deployment.folder, engine_args) if deployment.role == "chat" else None
    if note is not None and note not in plan.notes:  # of weights that were downloaded since it was planned
        screen.note(note)
    from qserve.worker.launch import engine_launch  # imports the schemas, which --help does not need

    launch = engine_launch(plan.engine) if deployment.role == "chat" else None
    if engine_args and launch and not launch.takes_engine_args:
        raise UsageError(f"--engine-args {engine_args!r} is for vLLM, and {plan.engine} serves here; add --engine vllm")
    if verify_quant and launch and not launch.verifies_quant:
        raise UsageError("--verify-quant compares inside the transformers engine; add --engine transformers")
    if verify_quant and not plan.quant.in_flight:
        raise UsageError(
            f"--verify-quant: {plan.quant.scheme} is loaded as it is stored, so there is nothing to compare with; "
            "use it with --quant int8 or 4bit on a 16-bit checkpoint"
        )
