"""`qserve stop`: a model of a running service out of memory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from qserve.cli.options.command import Command
from qserve.cli.options.running import asked, server_options
from qserve.cli.ps import STATES

__all__ = ["command"]


@click.command("stop", cls=Command)
@click.argument("model")
@server_options
def command(model: str, url: str | None, api_key: str, state_dir: Path | None) -> None:
    """Take a model of a running service out of memory, once its requests are answered.

    The next request for it loads it again. With keys it takes one of --admin-key-file.

    \b
    qserve stop Qwen/Qwen3-8B
    """
    path = f"/v1/qserve/models/{quote(model)}/unload"
    told = asked(url, state_dir, api_key, "POST", path)
    click.echo(f"{model} is {STATES.get(told['state'], told['state'])}; the next request for it loads it")
