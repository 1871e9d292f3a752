"""`qserve compare`: one model at several quantizations, side by side."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from qserve.cli.compare.show import picture_of, show_candidates
from qserve.cli.options.command import Command, model_options
from qserve.cli.options.load import price_file
from qserve.cli.options.numbers import Count
from qserve.cli.options.planning import plan_option
from qserve.cli.own_server import own_server, rounding_arguments, up_arguments
from qserve.cli.progress import request_progress, resumable
from qserve.cli.state import state_folder
from qserve.errors import UnusableResult, UsageError

if TYPE_CHECKING:
    from qserve.evaluation.comparison.questions import Questions

__all__ = ["command"]

# The share of a task's items; `qserve eval` takes the same by default (--max-truncated).
_MOST_UNSCORABLE = 0.02


@click.command("compare", cls=Command)
@model_options()
@click.option("--reward", help="Instead of --model, a trained reward model: a folder, a hub id, or demo.")
@click.option(
    "--quants", default="bf16,int8,4bit", show_default=True, help="Quantizations to compare; the first is the baseline."
)
@click.option(
    "--suite",
    help="Tasks for --model: name or file of a suite [thinking where the model thinks, else offline].",
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
def command(
    model: str | None, reward: str | None, quants: str, suite: str | None, thinking: str, preferences: Path | None,
    limit: int | None, seed: int, prices: Path | None, cpu_activations: str, up_args: str, out: Path | None,
    state_dir: Path | None,
) -> None:  # fmt: skip
    """Compare quantizations of one model: accuracy, memory and latency.

    Each quantization is planned, started, measured under a fixed load and evaluated on the same items, one after the
    other; finished ones are not repeated. Prints a table and a recommendation, and writes a chart.

    \b
    qserve compare demo --quants bf16,int8,4bit --suite offline
    qserve compare ./my-checkpoint --suite quick --limit 200
    qserve compare --reward ./my-reward-model --preferences pairs.jsonl

    Exit status: 0, 2 bad input, 5 a server did not start or stopped answering, 6 too many items can't be scored.
    """
    names = tuple(dict.fromkeys(word.strip() for word in quants.split(",") if word.strip()))
    if len(names) < 2:
        raise UsageError(f"--quants {quants!r} is fewer than two quantizations; write for example --quants bf16,4bit")
    serve = _model_arguments(model, reward, [*rounding_arguments(cpu_activations), *up_arguments(up_args)])
    table = None if prices is None else price_file(prices)
    questions, title, settings = _questions(model, reward, suite, thinking, preferences, limit, seed)
    state, console = state_folder(state_dir), Console(highlight=False, soft_wrap=True)
    folder = out or state / "compare" / _folder_name(model or f"reward-{reward}", title)
    with resumable(console):
        for name in names:
            _measure(console, questions, name, serve, {**settings, "up": [*serve, up_args]}, folder / name, state_dir)
    document, unscorable = _finish(console, f"{model or reward} on {title}", folder, names, table)
    _keep_in_store(console, state, ", ".join(names), document)
    if unscorable:
        raise UnusableResult(
            f"the comparison is kept, but not to be used: {'; '.join(unscorable)}. A gold must be one of its item's "
            "choices, and the server must take each item"
        )


def _model_arguments(model: str | None, reward: str | None, more: list[str]) -> list[str]:
    """The arguments of `qserve up` except for the quantization, which is appended."""
    if (model is None) == (reward is None):
        raise UsageError("name what to compare: a model, qserve compare MODEL, or a reward model with --reward")
    if reward is not None:
        return ["--reward", reward, *more, "--reward-quant"]
    return ["--model", str(model), "--prompt-logprobs", *more, "--quant"]


def _questions(
    model: str | None,
    reward: str | None,
    suite: str | None,
    thinking: str,
    preferences: Path | None,
    limit: int | None,
    seed: int,
) -> tuple[Questions, str, dict[str, Any]]:
    """The questions, their title, and the settings that distinguish them from other comparisons."""
    from qserve.evaluation.comparison.questions import ChatQuestions, RewardQuestions

    if reward is not None:
        from qserve.evaluation.preferences import demo_preferences, read_preferences
        from qserve.rows.fields import told_unread

        if suite is not None:
            raise UsageError("--suite is for --model; a reward model is asked --preferences, a file of pairs")
        file = preferences or demo_preferences()
        unread: Counter[str] = Counter()
        records = tuple(read_preferences(file, limit, unread))
        if (note := told_unread(unread)) is not None:
            click.echo(f"note: {note}", err=True)
        return RewardQuestions(file.stem, records), file.stem, {"file": str(file.resolve()), "limit": limit}
    if preferences is not None:
        raise UsageError("--preferences is for --reward; a model that generates is asked --suite")
    from qserve.evaluation import suites
    from qserve.evaluation.request import EvalRequest
    from qserve.evaluation.tasks import load_tasks

    # Long reasoning shows the loss by quantization first; perplexity and multiple choice hardly do.
    chosen = suites.load(suite or ("thinking" if _thinks(str(model)) else "offline"))
    request = EvalRequest(chosen.tasks, limit or chosen.limit, chosen.num_fewshot, chosen.chat, seed, thinking=thinking)
    settings = {"tasks": list(request.tasks), "limit": request.limit, "seed": seed, "thinking": thinking}
    return ChatQuestions(request, load_tasks(request.tasks)), chosen.name, settings


def _thinks(model: str) -> bool:
    """Whether the model thinks by default, by its chat template; False if the checkpoint is not on this machine."""
    from qserve.hub.chat_template import read_template, thinking_template
    from qserve.hub.resolve import resolve

    folder = resolve(model).folder
    return folder is not None and thinking_template(read_template(folder)).on_by_default


def _folder_name(model: str, title: str) -> str:
    return f"{model.strip('./').replace('/', '--')}-{title}"


def _measure(
    console: Console, questions: Questions, quant: str, serve: list[str], settings: dict[str, Any], folder: Path,
    state_dir: Path | None,
) -> None:  # fmt: skip
    from qserve.evaluation.comparison import compare

    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder, settings)
    if compare.is_complete(folder):
        console.print(f"{quant}: measured before; --out names another folder to measure anew")
        return
    console.print(f"{quant}: starting")
    with own_server([*serve, quant], folder / "up.log", state_dir, "compare") as server:
        console.print(f"{quant}: ready after {server.start_s:.1f} s; measuring")
        with request_progress() as progress:
            compare.measure(questions, quant, (server.url, server.api_key), folder, server.start_s, progress)


def _check_same(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse to resume a folder that was made with other settings."""
    file = folder / "asked.json"
    if file.is_file() and json.loads(file.read_text()) != settings:
        raise UsageError(f"{folder} holds another comparison ({file.read_text()}); name another folder with --out")
    file.write_text(json.dumps(settings))


def _finish(
    console: Console, title: str, folder: Path, names: tuple[str, ...], prices: dict[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """Print the comparison and write its files; returns it as JSON, and what makes it unusable."""
    from qserve.evaluation.comparison.compare import advice, candidates_of, summary_of, unscorable_in

    candidates = candidates_of([folder / name for name in names], prices)
    show_candidates(console, candidates)
    recommendation = advice(candidates)
    console.print(recommendation, style="bold")
    picture, file = folder / "pareto.svg", folder / "comparison.json"
    picture.write_text(picture_of(title, candidates))
    document = {"title": title, "advice": recommendation, "candidates": [summary_of(one) for one in candidates]}
    file.write_text(json.dumps(document, indent=1, ensure_ascii=False))
    console.print(f"picture: {picture}\nfigures: {file}\nall of it: {folder}")
    return document, unscorable_in(candidates, _MOST_UNSCORABLE)


def _keep_in_store(console: Console, state: Path, name: str, document: dict[str, Any]) -> None:
    from qserve.runs import RunStore, StoreUnusable

    try:
        RunStore.open(state).add_comparison(document, name=name)
    except StoreUnusable as error:
        console.print(f"the run store does not take the comparison ({error}); the folder holds it")
