"""The server that an evaluation asks: one that runs, or one that is started for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from qserve.cli.eval.request import EvalFlags, check_thinking
from qserve.cli.progress import ProgressLine
from qserve.errors import UsageError
from qserve.library.own_server import own_server, rounding_arguments, up_arguments
from qserve.state_folder import state_folder

if TYPE_CHECKING:
    from qserve.evaluation.request import EvalRequest
    from qserve.evaluation.tasks import Tasks

__all__ = ["URL", "check_which_server", "server_to_ask"]

URL = "http://127.0.0.1:8000"
"""Where a running server is looked for if none is named."""


def check_which_server(flags: EvalFlags) -> None:
    """Refuse flags of a temporary server together with those of a running one."""
    if flags.model is None:
        server_flags = [*rounding_arguments(flags.cpu_activations)[:1]]
        server_flags += [f"--{name.replace('_', '-')}" for name in ("quant", "up_args") if getattr(flags, name)]
        if server_flags:
            raise UsageError(
                f"{server_flags[0]} is for a server that this command starts; name its model with --model "
                "(--served-model-name chooses a model of a running server)"
            )
    elif flags.url is not None:
        raise UsageError("--url names a running server and --model one to start; give one of them")
    elif flags.served_model_name is not None:
        raise UsageError("--served-model-name is for a running server; the server that --model starts has one model")


@contextlib.contextmanager
def server_to_ask(
    line: ProgressLine, flags: EvalFlags, request: EvalRequest, tasks: Tasks
) -> Iterator[tuple[str, str]]:
    """Address and key of the running server, or of a temporary one that is planned for these tasks."""
    if flags.model is None:
        yield flags.url or URL, flags.api_key
        return
    arguments = ["--model", flags.model, *(["--quant", flags.quant] if flags.quant else [])]
    arguments += rounding_arguments(flags.cpu_activations)
    arguments += [] if tasks.only_generate else ["--prompt-logprobs"]
    arguments += up_arguments(flags.up_args)
    line.phase(f"planning {flags.model}")
    from qserve.cli.up.check_start import check_start

    check_start(arguments, flags.state_dir)
    check_thinking(flags.model, request, tasks)
    log = state_folder(flags.state_dir) / "eval-servers" / f"{time.strftime('%Y%m%d-%H%M%S')}.log"
    line.phase(f"starting {flags.model}")
    with own_server(arguments, log, flags.state_dir, "eval") as server:
        click.echo(f"{flags.model}: ready after {server.start_s:.1f} s (log: {log})", err=True)
        yield server.url, server.api_key
        line.phase(f"stopping {flags.model}")
