"""`qserve up`: one command from a checkpoint to a service."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from qserve.cli.doctor.measured import measured_speed
from qserve.cli.learning import with_learned
from qserve.cli.options.deployment import config_option, deployment_of
from qserve.cli.options.given import refuse_given
from qserve.cli.options.load import LOAD_FLAGS, load_options, speed_request_of
from qserve.cli.options.numbers import Count, FiniteRange
from qserve.cli.options.planning import hardware_of, plan_options, request_of
from qserve.cli.reward.options import REWARD_FLAGS, reward_options, settings_of
from qserve.cli.state import state_folder
from qserve.cli.up.cluster import CLUSTER_FLAGS, joined_cluster, ray_options
from qserve.cli.up.recording import recording_of
from qserve.engine.vllm.counted_flags import with_counted_flags
from qserve.errors import MissingExtra, UsageError
from qserve.packages import missing_to_serve, why_no_server
from qserve.planner.engine import SCORER, reward_engine_names
from qserve.planner.memory.host import with_host
from qserve.planner.request import PlanRequest
from qserve.units import GIB, MIB

if TYPE_CHECKING:
    from qserve.core.hardware import Hardware
    from qserve.supervisor import Hosted
    from qserve.supervisor.screen import Screen

__all__ = ["command"]

_REWARD_FLAGS = ("served_reward_name", "reward_quant", "reward_engine", "reward_replicas", *REWARD_FLAGS)
_CHAT_FLAGS = (
    "served_model_name", "load_format", "strict", "verify_quant", "engine_args", *LOAD_FLAGS,
    *PlanRequest.__dataclass_fields__,
)  # fmt: skip


@click.command("up")
@config_option
@click.option("--model", help="A folder, a hub id, an alias, or demo.")
@click.option("--reward", help="A trained reward model: a folder, a file with --base, a hub id, or demo.")
@click.option("--served-model-name", multiple=True, help="A name that requests may use [the model's]. May be repeated.")
@click.option("--served-reward-name", multiple=True, help="The same for the reward model.")
@click.option("--reward-quant", default="auto", show_default=True, help="--quant of the reward model's body.")
@click.option(
    "--reward-engine",
    type=click.Choice(sorted(reward_engine_names())),
    default=SCORER,
    show_default=True,
    help="What computes rewards: qserve's own scorer, or vLLM's pooling runner where the format allows.",
)
@click.option(
    "--reward-replicas",
    type=Count(min=1, max=1024),
    default=1,
    show_default=True,
    help="Servers of the reward model side by side, each on a card or a part of the CPU of its own.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; others than loopback need a key."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--api-key",
    multiple=True,
    envvar="QSERVE_API_KEY",
    help="Guards every route but /health. May be repeated; better kept in a file.",
)
@click.option(
    "--api-key-file",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file with such keys, one a line. May be repeated.",
)
@click.option(
    "--admin-key-file",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file with keys, one a line, that may also restart the workers: POST /v1/qserve/restart. May be repeated.",
)
@click.option(
    "--ui/--no-ui", default=None, help="Start the web UI at once, or not at all [when / is first opened in a browser]."
)
@click.option("--cors-origin", multiple=True, help="A web origin that browsers may call from. May be repeated.")
@click.option(
    "--gateway-processes",
    type=Count(min=1, max=64),
    default=1,
    show_default=True,
    help="Processes that relay requests behind the port, for more than one core of them.",
)
@click.option(
    "--max-queue",
    type=Count(min=0),
    default=256,
    show_default=True,
    help="Requests that may wait; more get 429.",
)
@click.option("--max-body-mib", type=Count(min=1), default=16, show_default=True, help="Larger requests get 413.")
@click.option(
    "--drain-timeout",
    type=FiniteRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests may take to finish at the end.",
)
@click.option(
    "--start-timeout",
    type=FiniteRange(min=1),
    help="Seconds that a start may show no progress, neither a line of log nor bytes read. Then its stacks are logged, "
    "and it is tried once more with what the cause suggests [120 to 1800, by phase].",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Where runs and logs are kept [~/.local/state/qserve].",
)
@click.option(
    "--keep-runs-days",
    type=FiniteRange(0, min_open=True),
    default=90.0,
    show_default=True,
    help="Runs that ended longer ago are forgotten, with their logs.",
)
@click.option(
    "--keep-runs-gib",
    type=FiniteRange(0.001),
    default=1.0,
    show_default=True,
    help="Above it the oldest runs' requests are forgotten first.",
)
@click.option(
    "--max-file-mib", type=Count(min=1), default=200, show_default=True, help="Of a file of requests: POST /v1/files."
)
@click.option(
    "--keep-files-days",
    type=FiniteRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Files and batches are forgotten after that.",
)
@click.option(
    "--keep-files-gib",
    type=FiniteRange(0.001),
    default=10.0,
    show_default=True,
    help="Of all files together; above it uploads are refused.",
)
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written when ready, for scripts: url, pid (JSON).")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="warning",
    show_default=True,
    help="`info` prints a line a request.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="`json`: one object a line on standard error, for log collectors; the screen's words, too.",
)
@click.option(
    "--otlp-traces-endpoint",
    help="Send a span per request to this OpenTelemetry collector: http://127.0.0.1:4318/v1/traces.",
)
@click.option("--engine-args", default="", help='Further flags of vLLM, as one string: "--seed 7 --enable-lora".')
@click.option(
    "--load-format",
    type=click.Choice(["auto", "dummy"]),
    default="auto",
    show_default=True,
    help="`dummy`: random weights from the config alone, to size a model that is not on disk.",
)
@click.option(
    "--strict", is_flag=True, help="End with status 5 where the chat model serves noise, in place of a warning."
)
@click.option("--verify-quant", is_flag=True, help="Measure what quantizing while loading costs (KL, top-1 agreement).")
@ray_options
@reward_options
@plan_options
@load_options
def command(
    model: str | None,
    reward: str | None,
    served_model_name: tuple[str, ...],
    served_reward_name: tuple[str, ...],
    reward_quant: str,
    reward_engine: str,
    reward_replicas: int,
    host: str,
    port: int,
    api_key: tuple[str, ...],
    api_key_file: tuple[Path, ...],
    admin_key_file: tuple[Path, ...],
    ui: bool | None,
    cors_origin: tuple[str, ...],
    gateway_processes: int,
    max_queue: int,
    max_body_mib: int,
    drain_timeout: float,
    start_timeout: float | None,
    state_dir: Path | None,
    keep_runs_days: float,
    keep_runs_gib: float,
    max_file_mib: int,
    keep_files_days: float,
    keep_files_gib: float,
    ready_file: Path | None,
    log_level: str,
    log_format: Literal["text", "json"],
    otlp_traces_endpoint: str | None,
    engine_args: str,
    load_format: Literal["auto", "dummy"],
    strict: bool,
    verify_quant: bool,
    gpu: str | None,
    **values: Any,
) -> None:
    """Plan, start, serve, measure.

    \b
    qserve up --model demo
    qserve up --model ./my-checkpoint --quant 4bit --max-model-len 8192 --port 9000
    qserve up --model Qwen/Qwen3-8B --reward ./my-reward-model
    qserve up --model demo --engine vllm --engine-args "--seed 7"
    qserve up --model Qwen/Qwen3-8B --replicas auto
    qserve up --model Qwen/Qwen3-32B --users 30 --ttft 2s --tpot 50ms
    qserve up --config qwen3-32b-1x24gb
    qserve up --model Qwen/Qwen3-8B --ray auto --min-replicas 1 --max-replicas 8
    qserve up --model Qwen/Qwen3-0.6B --host 0.0.0.0 --api-key-file ~/.qserve-key

    Exit status: 0 stopped and every request answered, 1 requests cut off, 2 bad input, 3 does not fit, 4 port in use,
    5 the worker failed.
    """  # fmt: skip
    _check_installed()
    import uvloop

    from qserve.batches import FileBounds
    from qserve.cli.up.hosting import Wanted, what_to_host
    from qserve.gateway.settings import GatewaySettings
    from qserve.gateway.telemetry.tracing import NoTraces, to_collector
    from qserve.supervisor import UpOptions, logs, ports, serve
    from qserve.supervisor.gateways.running import Processes
    from qserve.supervisor.keys import keys_in_use, keys_of_file
    from qserve.supervisor.web_ui import check_installed

    if gpu not in (None, "none"):
        raise UsageError(
            f"--gpu {gpu} describes cards for `qserve plan`; `qserve up` takes those of this machine. Leave it out, or "
            "write --gpu none to stay on the CPU"
        )

    _check_roles(model or (reward if values["judge"] else None), reward)
    if values["ray"] is None:
        refuse_given(CLUSTER_FLAGS, "for workers on a Ray cluster; add --ray auto or --ray HOST:PORT, or leave it out")
    else:
        loads = [name for name in LOAD_FLAGS if name != "replicas"]
        refuse_given(loads, "of a load, which one machine is planned for; with --ray say --replicas or --max-replicas")
    if ui:
        check_installed()
    screen = logs.set_up(log_level, log_format)
    api_key = keys_in_use(api_key, api_key_file)
    traces = to_collector(otlp_traces_endpoint) if otlp_traces_endpoint else NoTraces()
    ports.check_exposure(host, api_key)
    gateway = GatewaySettings(
        keys=api_key,
        admin_keys=tuple(key for file in admin_key_file for key in keys_of_file(file, "--admin-key-file")),
        cors_origins=cors_origin,
        allowed_hosts=("localhost", "127.0.0.1", "[::1]", host) if not api_key else (),
        max_queue=max_queue,
        max_body_bytes=max_body_mib * MIB,
    )
    bounds = FileBounds(max_file_mib * MIB, int(keep_files_gib * GIB), max(1, int(keep_files_days * 24 * 3600)))
    with (
        logs.failures_told(log_format),
        tempfile.TemporaryDirectory(prefix="qserve-config-") as configs,
        joined_cluster(values, gpu) as cluster,
    ):
        machine = hardware_of(gpu) if cluster is None else cluster.hardware
        run_folder = _run_folder(state_dir)
        hardware = with_host(machine, has_ui=ui is not False, num_gateways=gateway_processes)
        recording = recording_of(run_folder, hardware, keep_runs_days, keep_runs_gib)
        settings = settings_of(values)
        request = with_counted_flags(request_of(values), engine_args)
        # What was measured here says nothing about other machines.
        is_new = values["no_learn"] or cluster is not None
        request = with_learned(request, run_folder.parent.parent, model, gpu, is_off=is_new)
        known = partial(measured_speed, run_folder.parent.parent, hardware=hardware, gpu=gpu, is_off=is_new)
        wanted = Wanted(
            model,
            served_model_name,
            reward,
            served_reward_name,
            settings,
            load_format,
            Path(configs),
            reward_engine,
            values["replicas"],
            reward_replicas,
        )
        here = wanted if cluster is None else cluster.wanted(wanted)

        def planned(machine: Hardware, request: PlanRequest) -> list[Hosted]:
            hosted = what_to_host(here, machine, request, reward_quant, screen, known, speed_request_of(values))
            return [
                replace(one, engine_args=engine_args, verify_quant=verify_quant) if one.role == "chat" else one
                for one in hosted
            ]

        hosted = planned(hardware, request) if cluster is None else cluster.planned(planned, request)
        _check_reads(hosted[0], engine_args, verify_quant)
        _hold_against_file(hosted, screen)
        options = UpOptions(
            host, port, gateway, drain_timeout, run_folder, ready_file,
            Processes(gateway_processes, log_level, log_format, traces, otlp_traces_endpoint), ui, recording, strict,
            start_timeout, hardware.host, run_folder.parent.parent / "files", bounds,
        )  # fmt: skip
        if cluster is None:
            sys.exit(uvloop.run(serve(hosted, options, screen)))
        hosted = cluster.spread(hosted, reward_replicas, screen)
        sys.exit(uvloop.run(serve(hosted, options, screen, cluster.runner(hosted))))


def _check_installed() -> None:
    """The light installation plans and measures; what serving needs beside it is named before anything starts."""
    server = why_no_server()
    if server:
        raise UsageError(f"`qserve up` {server}")
    missing = missing_to_serve()
    if missing:
        raise MissingExtra(missing[0], "`qserve up`", *missing[1:])


def _check_roles(model: str | None, reward: str | None) -> None:
    """Refuse flags of a model that is not named."""
    if reward is None and model is not None:
        refuse_given(_REWARD_FLAGS, "for a reward model, and none is named; add --reward, or leave it out")
    if model is not None and reward is not None:
        why = "of a load, which layouts are chosen for where one model has the cards; leave it out"
        refuse_given([name for name in LOAD_FLAGS if name != "replicas"], why)
    if model is None and reward is not None:
        why = "for a chat model, and none is named; add --model, or leave it out"
        refuse_given(_CHAT_FLAGS, f"{why} (a reward model takes --reward-quant, --reward-engine, --max-length, …)")


def _hold_against_file(hosted: list[Hosted], screen: Screen) -> None:
    """Say what the file of --config expected and these plans do not come to."""
    deployment = deployment_of(click.get_current_context())
    plans = {one.role: one.plan for one in hosted}
    if deployment is None or "chat" not in plans:
        return
    for difference in deployment.expect.differences(plans["chat"], plans.get("reward")):
        screen.note(f"· {deployment.path.name}: {difference}")


def _check_reads(hosted: Hosted, engine_args: str, verify_quant: bool) -> None:
    """Refuse what the engine that serves has no use for."""
    plan = hosted.plan
    if (engine_args or verify_quant) and hosted.role != "chat":
        raise UsageError("--engine-args and --verify-quant are for a chat model; add --model, or leave them out")
    from qserve.engine.launch import engine_launch  # brings the schemas, which --help does not need

    launch = engine_launch(plan.engine) if hosted.role == "chat" else None
    if engine_args and launch and not launch.takes_engine_args:
        raise UsageError(f"--engine-args {engine_args!r} is for vLLM, and {plan.engine} serves here; add --engine vllm")
    if verify_quant and launch and not launch.verifies_quant:
        raise UsageError("--verify-quant compares inside the transformers engine; add --engine transformers")
    if verify_quant and not plan.quant.in_flight:
        raise UsageError(
            f"--verify-quant: {plan.quant.scheme} is loaded as it is stored, so there is nothing to compare with; "
            "it goes with --quant int8 or 4bit on a 16-bit checkpoint"
        )


def _run_folder(state_dir: Path | None) -> Path:
    return state_folder(state_dir) / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
