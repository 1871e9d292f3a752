"""`qserve up`: one command from a checkpoint to a service."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from qserve.cli.options import hardware_of, plan_options, request_of
from qserve.core.checkpoint import Checkpoint
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.planner import Plan, make_plan
from qserve.units import MIB

__all__ = ["command"]

_SERVED_SCHEMES = ("bf16", "fp16", "fp32")


@click.command("up")
@click.option("--model", required=True, help="A folder, a hub id, an alias, or demo.")
@click.option("--served-model-name", multiple=True, help="A name that requests may use [the model's]. May be repeated.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; others than loopback need a key."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--api-key", multiple=True, envvar="QSERVE_API_KEY", help="Guards every route but /health. May be repeated."
)
@click.option("--cors-origin", multiple=True, help="A web origin that browsers may call from. May be repeated.")
@click.option(
    "--max-queue",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="Requests that may wait; more get 429.",
)
@click.option(
    "--max-body-mib", type=click.IntRange(min=1), default=16, show_default=True, help="Larger requests get 413."
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests may take to finish at the end.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Where logs are kept [~/.local/state/qserve].",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="warning",
    show_default=True,
    help="`info` prints a line a request.",
)
@plan_options
def command(
    model: str,
    served_model_name: tuple[str, ...],
    host: str,
    port: int,
    api_key: tuple[str, ...],
    cors_origin: tuple[str, ...],
    max_queue: int,
    max_body_mib: int,
    drain_timeout: float,
    state_dir: Path | None,
    log_level: str,
    gpu: str | None,
    **values: Any,
) -> None:
    """Plan, start, serve, measure.

    \b
    qserve up --model demo
    qserve up --model ./my-checkpoint --max-model-len 8192 --port 9000
    QSERVE_API_KEY=secret qserve up --model Qwen/Qwen3-0.6B --host 0.0.0.0

    Exit status: 0 stopped and every request answered, 1 requests cut off, 2 bad input, 3 does not fit, 4 port in use,
    5 the worker failed.
    """  # fmt: skip
    from qserve.gateway.settings import GatewaySettings
    from qserve.up import ports
    from qserve.up.screen import Screen

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    screen = Screen()
    ports.check_exposure(host, api_key)
    settings = GatewaySettings(
        keys=api_key,
        cors_origins=cors_origin,
        allowed_hosts=("localhost", "127.0.0.1", "[::1]", host) if not api_key else (),
        max_queue=max_queue,
        max_body_bytes=max_body_mib * MIB,
    )
    checkpoint = resolve(model)
    for message in checkpoint.messages:
        screen.note(message)
    plan = _checked_plan(checkpoint, gpu, values)
    checkpoint = _on_disk(checkpoint, screen)
    sys.exit(
        _run(
            checkpoint,
            plan,
            settings,
            screen,
            host,
            port,
            served_model_name or (checkpoint.id,),
            drain_timeout,
            state_dir,
        )
    )


def _checked_plan(checkpoint: Checkpoint, gpu: str | None, values: dict[str, Any]) -> Plan:
    """The plan, if it fits and this engine can put it into effect."""
    if gpu not in (None, "none"):
        raise UsageError(
            f"--gpu {gpu} describes cards for `qserve plan`; `qserve up` takes those of this machine. Leave it out, or "
            "write --gpu none to stay on the CPU"
        )
    if values.get("engine") == "vllm":
        raise UsageError("--engine vllm can be planned (`qserve plan`) but not served yet; leave --engine out")
    asked, known = values.get("max_model_len"), checkpoint.spec.max_position_embeddings
    if asked and asked > known:
        raise UsageError(
            f"--max-model-len {asked} is more than the {known} positions that {checkpoint.id} was made for "
            f"(max_position_embeddings in its config.json); beyond them its answers are noise. At most {known} works"
        )
    plan = make_plan(checkpoint, hardware_of(gpu), request_of({**values, "engine": "transformers"}))
    if not plan.fits:
        ways = "".join(f"\n  - {way.change} ({way.cost}): {way.command}" for way in plan.suggestions)
        raise DoesNotFit(f"{plan.why_not}" + (f". What would fit:{ways}" if ways else ""))
    if plan.quant.scheme not in _SERVED_SCHEMES:
        raise UsageError(
            f"--quant {plan.quant.scheme} can be planned (`qserve plan`) but not served yet; "
            f"what is served is {', '.join(_SERVED_SCHEMES)}"
        )
    return plan


def _on_disk(checkpoint: Checkpoint, screen: Any) -> Checkpoint:
    if checkpoint.folder is not None:
        return checkpoint
    from qserve.hub.download import download

    screen.note(f"fetching {checkpoint.id} from the hub into the local cache")
    return download(checkpoint)


def _run(
    checkpoint: Checkpoint, plan: Plan, settings: Any, screen: Any, host: str, port: int,
    names: tuple[str, ...], drain_timeout_s: float, state_dir: Path | None,
) -> int:  # fmt: skip
    import uvloop

    from qserve.up import UpOptions, serve

    state = state_dir or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "qserve"
    log_folder = state / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    options = UpOptions(host, port, settings, names, drain_timeout_s, log_folder)
    status: int = uvloop.run(serve(checkpoint, plan, options, screen))
    return status
