"""`qserve compare`: one model at several quantizations, side by side."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.compare.show import show_candidates
from qserve.cli.eval.request import check_thinking
from qserve.cli.options.command import Command, model_options, reward_revision_option
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.options.numbers import Count
from qserve.cli.options.planning import plan_option
from qserve.cli.progress import progress_line, resumable
from qserve.cli.writable import check_folder_writable
from qserve.core.schemes import resolve_scheme
from qserve.errors import UnusableResult, UsageError
from qserve.library.flags import names_in
from qserve.library.own_server import rounding_arguments, up_arguments
from qserve.service.load import price_file
from qserve.state_folder import state_folder
from qserve.terminal.console import console_of

if TYPE_CHECKING:
    from qserve.evaluation.comparison.questions import Questions

__all__ = ["command"]

# The share of a task's items; `qserve eval` takes the same by default (--max-truncated).
_MOST_UNSCORABLE = 0.02
# What a server needs to be asked for log-probabilities of choices, and no other client of it.
_FOR_QUESTIONS = "--prompt-logprobs"


@click.command("compare", cls=Command)
@model_options()
@click.option("--reward", help="Instead of --model, a trained reward model: a folder, a hub id, or demo.")
@reward_revision_option
@click.option(
    "--quants", default="bf16,int8,4bit", show_default=True, help="Quantizations to compare; the first is the baseline."
)
@click.option(
    "--made",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Also a checkpoint made of --model: a folder of qserve quantize. May be repeated.",
)
@click.option(
    "--suite", help="Tasks for --model: name or file of a suite [thinking where the model thinks, else offline]."
)
@click.option(
    "--thinking",
    type=click.Choice(["on", "off", "auto"]),
    default="auto",
    help="For suites of chats: whether the model thinks first [auto: its template's default].",
)
@click.option(
    "--preferences",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Pairs for --reward, in JSON lines [the demo's held-out ones].",
)
@click.option("--limit", type=Count(min=1), help="Items per task [all].")
@click.option("--seed", type=Count(), default=1234, show_default=True, help="Random seed.")
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="USD per hour and card, as TOML, for the cost of a right answer [configs/prices.toml].",
)
@plan_option("cpu_activations")
@click.option("--up-args", default="", help='Further flags of `qserve up`, for every quantization: "--engine vllm".')
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the results; an existing one is resumed [named after model and suite].",
)
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]")
@add_json_flag
def command(
    model: str | None,
    reward: str | None,
    quants: str,
    made: tuple[Path, ...],
    suite: str | None,
    thinking: str,
    preferences: Path | None,
    limit: int | None,
    seed: int,
    prices: Path | None,
    cpu_activations: str,
    up_args: str,
    out: Path | None,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Compare quantizations of one model: accuracy, memory and latency.

    Each quantization is planned, started, measured under a fixed load and evaluated on the same items, one after the
    other; finished ones are not repeated. Prints a table and a recommendation, and writes a chart.

    \b
    qserve compare demo --quants bf16,int8,4bit --suite offline
    qserve compare ./my-checkpoint --suite quick --limit 200
    qserve compare ./my-checkpoint --quants bf16 --made ./my-w4a16
    qserve compare --reward ./my-reward-model --preferences pairs.jsonl

    Exit status: 0, 2 bad input, 3 a quantization does not fit, 5 a server did not start or stopped answering, 6 too
    many items can't be scored, 130 after Ctrl-C.
    """
    more = [*rounding_arguments(cpu_activations), *up_arguments(up_args)]
    serve = _model_arguments(model, reward, more)
    stored = _made_arguments(made, reward, more)
    names = (*names_in(quants), *stored)
    if len(names) < 2:
        raise UsageError(f"--quants {quants!r} is fewer than two quantizations; write for example --quants bf16,4bit")
    if len(set(names)) < len(names):
        raise UsageError(f"two of {', '.join(names)} have one name; rename a folder of --made")
    for name in names_in(quants):
        resolve_scheme(name)  # all of them, before any is measured
    table = None if prices is None else price_file(prices)
    from qserve.cli.compare.measured import write_measured
    from qserve.cli.compare.steps import Comparing

    state = state_folder(state_dir)
    check_folder_writable(state)
    load_questions, title, settings = _questions(model, reward, suite, thinking, preferences, limit, seed)
    with progress_line() as line, resumable():
        line.phase("loading tasks")
        questions = load_questions()
        folder = out or state / "compare" / _folder_name(model or f"reward-{reward}", title)
        comparing = Comparing(names, serve, questions, folder, state_dir, line, stored)
        comparing.check({**settings, "up": [*serve, up_args], **({"made": stored} if stored else {})})
        comparing.measure()
    done = comparing.finished(f"{model or reward} on {title}", table)
    done.keep(state)
    for file in write_measured(done, {path.resolve().name: path for path in made}):
        click.echo(f"{file} has the figures", err=True)
    if as_json:
        print_json({**done.document, "folder": str(folder)})
    else:
        console = console_of()
        show_candidates(console, done.title, done.candidates)
        console.print(f"Chart   {done.chart}\nFigures {done.figures}", soft_wrap=True)
        if done.recommended is not None:
            words = [word for word in comparing.arguments(done.recommended) if word != _FOR_QUESTIONS]
            console.print(f"Next    qserve up {shlex.join(words)}", soft_wrap=True)
    unscorable = done.unscorable(_MOST_UNSCORABLE)
    if unscorable:
        raise UnusableResult(
            f"{'; '.join(unscorable)}. The comparison is kept, but its figures can't be trusted: the right answer of "
            "an item must be one of its choices, and the server must accept each item"
        )


def _model_arguments(model: str | None, reward: str | None, more: list[str]) -> list[str]:
    """The arguments of `qserve up` except for the quantization, which is appended."""
    if (model is None) == (reward is None):
        raise UsageError("name what to compare: a model, qserve compare MODEL, or a reward model with --reward")
    if reward is not None:
        return ["--reward", reward, *more, "--reward-quant"]
    return ["--model", str(model), _FOR_QUESTIONS, *more, "--quant"]


def _made_arguments(made: tuple[Path, ...], reward: str | None, more: list[str]) -> dict[str, list[str]]:
    """The arguments of `qserve up` for each folder, by its name."""
    if made and reward is not None:
        raise UsageError("--made is for --model; compare reward models by --quants")
    if missing := next((path for path in made if not path.is_dir()), None):
        raise UsageError(f"--made {missing} is no folder; qserve quantize makes one")
    return {path.resolve().name: ["--model", str(path), _FOR_QUESTIONS, *more] for path in made}


def _questions(
    model: str | None,
    reward: str | None,
    suite: str | None,
    thinking: str,
    preferences: Path | None,
    limit: int | None,
    seed: int,
) -> tuple[Callable[[], Questions], str, dict[str, Any]]:
    """What loads the questions, their title, and the settings that distinguish them from other comparisons."""
    from qserve.evaluation.comparison.questions import ChatQuestions, RewardQuestions

    if reward is not None:
        from qserve.evaluation.preferences import demo_preferences, read_preferences
        from qserve.rows.fields import told_unread

        if suite is not None:
            raise UsageError("--suite is for --model; a reward model is evaluated on --preferences, a file of pairs")
        file = preferences or demo_preferences()
        unread: Counter[str] = Counter()
        records = tuple(read_preferences(file, limit, unread))
        if (note := told_unread(unread)) is not None:
            click.echo(f"note: {note}", err=True)
        questions = RewardQuestions(file.stem, records)
        return lambda: questions, file.stem, {"file": str(file.resolve()), "limit": limit}
    if preferences is not None:
        raise UsageError("--preferences is for --reward; a model that generates is evaluated on --suite")
    from qserve.evaluation import suites
    from qserve.evaluation.request import EvalRequest
    from qserve.evaluation.tasks import check_lm_eval, load_tasks

    check_lm_eval()
    # Long reasoning shows the loss by quantization first; perplexity and multiple choice hardly do.
    chosen = suites.load(suite or ("thinking" if _thinks(str(model)) else "offline"))
    request = EvalRequest(chosen.tasks, limit or chosen.limit, chosen.num_fewshot, chosen.chat, seed, thinking=thinking)
    settings = {"tasks": list(request.tasks), "limit": request.limit, "seed": seed, "thinking": thinking}

    def load() -> Questions:
        tasks = load_tasks(request.tasks)  # seconds
        check_thinking(str(model), request, tasks)
        return ChatQuestions(request, tasks)

    return load, chosen.name, settings


def _thinks(model: str) -> bool:
    """Whether the model thinks by default, by its chat template; False if the checkpoint is not on this machine."""
    from qserve.hub.chat_template import read_template, thinking_template
    from qserve.hub.resolve import resolve

    folder = resolve(model).folder
    return folder is not None and thinking_template(read_template(folder)).on_by_default


def _folder_name(model: str, title: str) -> str:
    return f"{model.strip('./').replace('/', '--')}-{title}"
