"""`qserve`: one module per command, imported only when it is called, so that --help stays instant."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from qserve.cli.interrupted import INTERRUPTED
from qserve.cli.usage_errors import sentence_of, sentence_of_os_error, shortened
from qserve.errors import MissingExtra, QserveError, UsageError
from qserve.packages import needed_with, package_of, why_no_server
from qserve.version import __version__

__all__ = ["cli", "main"]

# Name and first line of help, below a heading: here, so that `qserve --help` imports none of them.
_SECTIONS = {
    "Serve a model": {
        "plan": "Compute memory and speed before anything is downloaded.",
        "pull": "Fetch a model from the hub: what its plan loads, resumed and verified.",
        "up": "Start a service: OpenAI's API and a web UI behind one port.",
        "serve": "The same as up.",
        "run": "Start a model and chat with it in the terminal.",
        "chat": "Chat in the terminal with a service that runs.",
        "ui": "Open the web UI for a service that runs.",
        "ps": "Models of a service that runs: in memory, loading, waiting.",
        "stop": "Take a model of a service that runs out of memory.",
        "keys": "API keys with names: models, limits, priority, use.",
        "batch": "Answer a file of requests in the background.",
        "deploy": "Write files for compose, systemd, Kubernetes or KubeRay.",
    },
    "Measure it": {
        "bench": "Load test: TTFT, TPOT, throughput, saturation.",
        "eval": "Accuracy on tasks of lm-eval.",
        "compare": "Accuracy, memory and speed of several quantizations.",
    },
    "Train and score": {
        "train": "Train with TRL: SFT, LoRA, QLoRA, reward models, DPO, GRPO.",
        "score": "Score a file of prompts and answers with a reward model.",
        "eval-reward": "Accuracy of a reward model on preference data.",
        "reward": "Compare rewards with those of plain transformers.",
        "quantize": "Quantize a checkpoint, calibrated: w4a16, awq, fp8, w8a8, nf4.",
        "merge": "Merge a LoRA adapter into its base model.",
    },
    "Look things up": {
        "doctor": "What this machine can run, and how to install the rest.",
        "models": "Known models, their sizes and short names.",
        "runs": "List, show, compare or delete recorded runs.",
        "report": "A run's memory and latency, planned and measured.",
        "env": "Environments of tools that want other package versions.",
        "completion": "Completion of commands and models for bash, zsh or fish.",
    },
}
COMMANDS = {name: text for section in _SECTIONS.values() for name, text in section.items()}
# Commands whose module has another name.
_MODULES = {"eval-reward": "reward.eval_reward", "run": "chat.run", "score": "reward.score", "serve": "up.command"}
_FILES = ("completion", "deploy", "env", "keys", "merge", "models", "ps", "pull", "quantize", "stop", "ui")
# Of an error message, in characters: a value that is repeated in it may be of any length.
_LONGEST = 1600


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = _MODULES.get(cmd_name) or (cmd_name if cmd_name in _FILES else f"{cmd_name}.command")
        command: click.Command = importlib.import_module(f"qserve.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands; click's own would import every one of them for its help."""
        return [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="qserve")
def cli() -> None:
    """Plan, serve and measure Qwen models up to 32B.

    \b
    qserve plan Qwen/Qwen3-32B --gpu rtx-4090    does it fit, and how fast is it?
    qserve run demo                              chat in this terminal
    qserve up ./my-checkpoint --port 8000        serve OpenAI's API and a web UI
    qserve up --help                             options of a command
    """


def main() -> NoReturn:
    """Run the command line; a user's mistake prints one message and no traceback."""
    try:
        cli.main(prog_name="qserve", standalone_mode=False)
    except QserveError as error:
        _print_error(shortened(str(error), _LONGEST) if isinstance(error, UsageError) else str(error))
        sys.exit(error.exit_status)
    except ModuleNotFoundError as error:
        package, server = package_of(error.name), why_no_server()
        if server is not None and (error.name or "").startswith("qserve."):
            _print_error(f"`{_command_path()}` {server}")
            sys.exit(UsageError.exit_status)
        if package is None:  # a bug of ours: with its traceback
            raise
        first, *others = needed_with(package)
        _print_error(str(MissingExtra(first, f"`{_command_path()}`", *others)))
        sys.exit(MissingExtra.exit_status)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _print_error(sentence_of(error))
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except OSError as error:
        if error.filename is None:  # not about a file of the user's: a bug of ours, with its traceback
            raise
        _print_error(sentence_of_os_error(error))
        sys.exit(UsageError.exit_status)
    sys.exit(0)


def _command_path() -> str:
    """The command that was called, without options: `qserve reward check`."""
    names = itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
    return " ".join(("qserve", *(name for name in names if name.isidentifier() or name in COMMANDS)))


def _print_error(sentence: str) -> None:
    click.secho(f"qserve: {sentence}", err=True, fg="red")
