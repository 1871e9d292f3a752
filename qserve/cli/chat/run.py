"""`qserve run MODEL`: a chat with a model, in a service that runs already or in one for the time of the chat."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from qserve.cli.chat.command import chat_options, chat_with
from qserve.cli.options.command import Command, needed_model
from qserve.cli.up.checks import check_packages
from qserve.cli.up.passed_on import passed_options

__all__ = ["command"]

# Options of `up` that --help repeats, and those that a service for one chat decides by itself.
_SHOWN = ("model", "revision", "config", "quant", "max_model_len", "reward", "engine")
_LEFT_OUT = (
    "host",
    "port",
    "api_key",
    "api_key_file",
    "admin_key_file",
    "keys",
    "cors_origin",
    "ready_file",
    "ui",
    "state_dir",
    "verbose",
)
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


@click.command("run", cls=Command)
@chat_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str | None,
    prompt: str | None,
    system: str | None,
    verbose: bool,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Chat with a model in the terminal. If no service here serves it, one is started, and ends with the chat.

    Takes the options of `qserve up` that are about the model; with any of them a new service is always started.
    A service that stays, for other programs and the web UI, is `qserve up MODEL`.

    \b
    qserve run demo
    qserve run qwen3-8b --quant 4bit
    qserve run demo "What is 12+30?"

    /help lists the commands of the chat. Exit status: 0, 1 no answer, 2 bad input, 3 the model does not fit, 5 the
    service did not start, 130 after Ctrl-C.
    """
    from qserve.cli.chat.find import Partner, find_partner
    from qserve.hub import resolve

    words = _words(ctx, values)
    partner = None if words else _running(needed_model(model, "qserve run qwen3-8b"), state_dir)
    if partner is not None:
        chat_with(partner, prompt, system, verbose, state_dir)
        return
    check_packages("qserve run")
    if model is not None:
        resolve(model)  # a slip in the name is told at once
    from qserve.cli.chat.screen import note
    from qserve.cli.progress import progress_line
    from qserve.library.own_server import own_server
    from qserve.state_folder import state_folder

    named = [] if model is None else ["--model", model]
    log = state_folder(state_dir) / "run" / f"{time.strftime('%Y%m%d-%H%M%S')}.log"
    note(f"starting {model or 'the service'}; its log: {log}")
    with contextlib.ExitStack() as until_the_end:
        with progress_line() as line:
            server = until_the_end.enter_context(
                own_server(
                    [*named, *words, "--no-ui"],
                    log,
                    state_dir,
                    "run",
                    lambda said: line.phase(" ".join(said.split()) or "starting", is_short=True),
                )
            )
        found: Partner = find_partner(server.url, server.api_key, None, state_dir)
        chat_with(found, prompt, system, verbose, state_dir)


command.params[:0] = passed_options(_SHOWN, _LEFT_OUT)  # MODEL comes before PROMPT


def _words(ctx: click.Context, values: dict[str, Any]) -> list[str]:
    """The flags for `qserve up`, without the model."""
    from qserve.deploy.argv import words_of

    given = {name: value for name, value in values.items() if ctx.get_parameter_source(name) in _GIVEN}
    return words_of(ctx.command.params, given)


def _running(model: str, state_dir: Path | None) -> Any:
    """The model in a service that runs; None if no service has it."""
    from qserve.cli.chat.find import find_partner, running_urls
    from qserve.errors import UsageError

    for url in running_urls(state_dir):
        try:
            return find_partner(url, os.environ.get("QSERVE_API_KEY", ""), model, state_dir)
        except UsageError:
            continue
    return None
