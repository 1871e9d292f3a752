"""`qserve chat`: a chat in the terminal with a service that runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.cli.options.command import Command, model_options
from qserve.cli.options.url import ServerUrl

__all__ = ["chat_options", "chat_with", "command"]

Function = TypeVar("Function", bound=Callable[..., Any])
_OPTIONS = (
    click.argument("prompt", required=False, metavar="[PROMPT]"),
    click.option("--system", help="The system prompt."),
    click.option("--verbose", is_flag=True, help="Show the tokens/s of each answer."),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="QSERVE_STATE_DIR",
        help="Where runs and the history are kept [~/.local/state/qserve].",
    ),
)


def chat_options(function: Function) -> Function:
    """Adds the options that `qserve chat` and `qserve run` share."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("chat", cls=Command)
@model_options("The same as MODEL: a model that the service serves [its first].", is_loaded=False)
@chat_options
@click.option("--url", type=ServerUrl(), help="The service [the newest one that runs on this machine].")
@click.option("--api-key", envvar=["QSERVE_API_KEY", "OPENAI_API_KEY"], default="", help="API key of the service.")
def command(
    model: str | None,
    prompt: str | None,
    url: str | None,
    api_key: str,
    system: str | None,
    verbose: bool,
    state_dir: Path | None,
) -> None:
    """Chat in the terminal with a service that runs: `qserve up`, or any OpenAI-compatible server.

    With a PROMPT, or with text from a pipe, it prints one answer and exits.

    \b
    qserve chat
    qserve chat qwen3-8b "What is a KV cache?"
    git diff | qserve chat --system "Review this change."
    qserve chat --url http://gpu-box:8000 --api-key $KEY

    /help lists the commands: /clear, /system, /set temperature 0.7, /save, /load, /reward. Ctrl-C stops an answer, also
    on the server; Ctrl-D leaves. Exit status: 0, 1 no answer, 2 bad input or no service, 130 after Ctrl-C.
    """
    from qserve.cli.chat.find import find_partner

    chat_with(find_partner(url, api_key, model, state_dir), prompt, system, verbose, state_dir)


def chat_with(partner: Any, prompt: str | None, system: str | None, verbose: bool, state_dir: Path | None) -> None:
    """A chat on a terminal; one answer for a prompt or a pipe. Raises UsageError for an empty pipe, NoAnswer."""
    from qserve.cli.chat.conversation import Conversation
    from qserve.cli.chat.lines import history
    from qserve.cli.chat.screen import note
    from qserve.cli.chat.session import Session
    from qserve.errors import UsageError
    from qserve.state_folder import state_folder

    session = Session(partner, Conversation(partner.model, system), verbose)
    is_terminal = sys.stdin.isatty()
    if prompt is None and is_terminal:
        reward = f", rewards by {partner.reward}" if partner.reward else ""
        note(f"{partner.model} at {partner.url}{reward}\n/help lists the commands, Ctrl-D leaves")
        with history(state_folder(state_dir) / "chat_history"):
            session.talk()
        return
    piped = "" if is_terminal else sys.stdin.buffer.read().decode(errors="replace").strip()
    message = "\n\n".join(part for part in (prompt, piped) if part)
    if not message:
        raise UsageError("there is no prompt: write one after the model, or pipe a text into the command")
    session.answer_once(message)
