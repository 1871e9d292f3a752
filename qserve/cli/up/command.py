"""`qserve up`: one command from a checkpoint to a service."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qserve.cli.options.command import Command
from qserve.cli.options.deployment import config_option, many_models
from qserve.cli.options.load import load_options
from qserve.cli.options.planning import plan_options
from qserve.cli.reward.options import reward_options
from qserve.cli.up.checks import check_flags, check_packages
from qserve.cli.up.cluster import joined_cluster, ray_options
from qserve.cli.up.options import service_options
from qserve.errors import UsageError
from qserve.state_folder import state_folder

__all__ = ["command"]


@click.command("up", cls=Command)
@config_option
@service_options
@ray_options
@reward_options
@plan_options
@load_options
def command(**values: Any) -> None:
    """Plan, start and serve models behind one port.

    \b
    qserve up demo
    qserve up ./my-checkpoint --quant 4bit --max-model-len 8192
    qserve up Qwen/Qwen3-8B --reward ./my-reward-model
    qserve up Qwen/Qwen3-0.6B --embed Qwen/Qwen3-Embedding-0.6B
    qserve up demo --engine vllm --engine-args "--seed 7"
    qserve up Qwen/Qwen3-8B --replicas auto
    qserve up Qwen/Qwen3-32B --users 30 --ttft 2s --tpot 50ms
    qserve up --config qwen3-32b-1x24gb
    qserve up Qwen/Qwen3-8B --ray auto --min-replicas 1 --max-replicas 8
    qserve up Qwen/Qwen3-0.6B --host 0.0.0.0 --api-key-file ~/.qserve-key

    Exit status: 0 stopped and every request answered, 1 requests cut off, 2 bad input, 3 does not fit, 4 port in use,
    5 the worker failed.
    """
    check_packages()
    with _starting(values["log_format"]):
        import uvloop

        from qserve.cli.options.knowledge import knowledge_of
        from qserve.cli.up.plans import planned_hosts, planned_nodes, planned_residents
        from qserve.cli.up.settings import ServerFlags
        from qserve.service.machine import Machine
        from qserve.service.request import ServiceRequest
        from qserve.supervisor import logs, serve
        from qserve.supervisor.web_ui import check_installed

    check_flags(values)
    server = ServerFlags.of(values)
    if server.ui:
        check_installed()
    screen = logs.set_up(server.log_level, server.log_format, is_verbose=server.verbose)
    gateway, processes, run_folder = server.gateway(), server.processes(), _run_folder(server.state_dir)
    with (
        logs.logged_failures(server.log_format),
        tempfile.TemporaryDirectory(prefix="qserve-config-") as configs,
        joined_cluster(values) as cluster,
    ):
        many = many_models(values)
        request = ServiceRequest.from_flags(values)
        if many is None and request.model is None and request.reward is None:
            raise UsageError(
                "no model is named; write it after the command, qserve up Qwen/Qwen3-8B, or name a reward model with "
                "--reward, or an embedding model with --embed"
            )
        machine = Machine.named(values["gpu"], serves=True) if cluster is None else Machine.node(cluster.hardware)
        hardware = machine.with_service(request.has_ui, request.num_gateways, request.min_free_bytes)
        options = server.options(gateway, processes, hardware, run_folder, values)
        if options.taking is not None:  # its workers run, by its plans
            sys.exit(uvloop.run(serve((), options, screen)))
        if many is not None:
            with screen.working("planning"):
                knowledge = knowledge_of(values, machine)
                deployments, residents = planned_residents(many, machine, knowledge, Path(configs), screen)
            waits = replace(options.gateway, load_wait_s=residents.wait_s)
            sys.exit(uvloop.run(serve(deployments, replace(options, residents=residents, gateway=waits), screen)))
        with screen.working("planning"):
            if cluster is None:
                deployments = planned_hosts(request, machine, knowledge_of(values, machine), Path(configs), screen)
            else:
                deployments = planned_nodes(request, cluster, Path(configs), screen)
        if cluster is None:
            sys.exit(uvloop.run(serve(deployments, options, screen)))
        deployments = cluster.spread(deployments, request.num_rewards, screen)
        sys.exit(uvloop.run(serve(deployments, options, screen, cluster.runner(deployments))))


def _starting(log_format: str) -> AbstractContextManager[object]:
    """A line on a terminal while the modules of a service are loaded: it takes a second, and more on a busy machine."""
    if log_format != "text" or not sys.stdout.isatty():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console().status("starting")


def _run_folder(state_dir: Path | None) -> Path:
    return state_folder(state_dir) / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
