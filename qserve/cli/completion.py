"""`qserve completion bash`: completion of commands, options and models, as click writes it for each shell.

click asks its own commands for completions, so this needs no other package.
"""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from qserve.cli.main import cli
from qserve.cli.options.command import Command

__all__ = ["command"]

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
# What click's own entry point asks for: `qserve.cli.main: main` calls it with this name.
_VARIABLE = "_QSERVE_COMPLETE"


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def command(shell: str) -> None:
    """Print the completion of commands, options and models for a shell.

    \b
    qserve completion bash >> ~/.bashrc
    qserve completion zsh  >> ~/.zshrc        after the line with compinit
    qserve completion fish > ~/.config/fish/completions/qserve.fish

    A new terminal completes with Tab: qserve pl, qserve up --qu, qserve up qwen3-.
    """
    script = _SHELLS[shell](cli, {}, "qserve", _VARIABLE)
    click.echo(script.source_template % script.source_vars())
