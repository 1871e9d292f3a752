"""`qserve eval`: lm-eval against a running server; `qserve eval diff`: two results item by item."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from qserve.cli.state import state_folder
from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.evaluation.diff import TaskDiff
    from qserve.evaluation.results import EvalResult
    from qserve.evaluation.server import ServedModel

__all__ = ["command"]

_MOST_FLIPS_SHOWN = 10
_LARGE = 1000


class _WithDiff(click.Group):
    """`qserve eval` is a command of its own, `qserve eval diff A B` beside it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["diff"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return diff if cmd_name == "diff" else None


@click.group("eval", cls=_WithDiff, invoke_without_command=True)
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server to evaluate.")
@click.option("--api-key", envvar="QSERVE_API_KEY", default="", help="Its key, where it has one.")
@click.option("--served-model-name", help="Which of its models [the only one that generates].")
@click.option("--tasks", help="lm-eval's task names, with commas between them.")
@click.option("--suite", help="A list of tasks by its name or its file: offline, quick, quality, math, chinese, long.")
@click.option("--limit", type=click.IntRange(min=1), help="Items a task [all].")
@click.option("--num-fewshot", type=click.IntRange(min=0), help="Examples before each question [the task's own].")
@click.option("--chat", is_flag=True, help="Through the model's chat template.")
@click.option("--seed", type=int, default=1234, show_default=True, help="Of everything that is drawn.")
@click.option("--tokenizer", help="Folder or hub id [the server's own].")
@click.option("--max-length", type=click.IntRange(min=2), help="For servers that do not tell their max_model_len.")
@click.option("--background", is_flag=True, help="Let the server answer its users first.")
@click.option("--preflight/--no-preflight", default=True, help="First see whether the server can be evaluated. [on]")
@click.option("--resume/--no-resume", default=True, help="Take answers over that an interrupted run left behind. [on]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the result [below --state-dir].")
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    url: str,
    api_key: str,
    served_model_name: str | None,
    tokenizer: str | None,
    max_length: int | None,
    preflight: bool,
    resume: bool,
    out: Path | None,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """lm-eval against a running server: accuracies with standard errors, and every answer kept.

    \b
    qserve eval --suite offline
    qserve eval --url http://127.0.0.1:9000 --tasks gsm8k,arc_challenge --limit 200
    qserve eval diff runs/bf16 runs/4bit

    Exit status: 0, or 2 where something can't be asked.
    """
    if ctx.invoked_subcommand is not None:
        return
    from qserve.evaluation import harness, results, server

    asked = _asked(values)
    state = state_folder(state_dir)
    console = Console(highlight=False, soft_wrap=True)
    served = server.look_at(url, api_key, served_model_name, tokenizer, state / "tokenizers", max_length)
    console.print(f"{served.model} at {served.url} · {_what_runs(served)} · {served.concurrency} requests at once")
    if preflight:
        _preflight(console, served, asked)
    began = time.monotonic()
    with _progress() as progress:
        told = harness.evaluate(served, asked, state / "eval-cache" if resume else None, progress)
    result = results.EvalResult.of(served, asked, told, time.monotonic() - began)
    folder = out or state / "evals" / f"{time.strftime('%Y%m%d-%H%M%S')}-{served.fingerprint()}"
    file = result.save(folder)
    _show(console, result)
    console.print(f"kept in {file}", soft_wrap=True)


@click.command("diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def diff(first: Path, second: Path) -> None:
    """What changed between two results, item by item; McNemar's exact test says whether it can be chance.

    \b
    qserve eval diff evals/bf16 evals/4bit
    """
    from qserve.evaluation.diff import compare
    from qserve.evaluation.results import EvalResult

    console = Console(highlight=False)
    for one in compare(EvalResult.load(first), EvalResult.load(second)):
        _show_diff(console, one)


def _asked(values: dict[str, Any]) -> Any:
    """What the flags ask for: a suite, tasks, or both; flags win over the suite."""
    from qserve.evaluation import suites
    from qserve.evaluation.harness import Asked

    tasks = tuple(word.strip() for word in (values["tasks"] or "").split(",") if word.strip())
    suite = suites.load(values["suite"]) if values["suite"] else None
    if not tasks and suite is None:
        raise UsageError(
            f"--tasks or --suite says what to ask: lm-eval's task names, or one of {', '.join(suites.suites())} "
            "(offline needs no network)"
        )
    return Asked(
        tasks=tuple(dict.fromkeys((*tasks, *(suite.tasks if suite else ())))),
        limit=values["limit"] or (suite.limit if suite else None),
        num_fewshot=suite.num_fewshot if suite and values["num_fewshot"] is None else values["num_fewshot"],
        chat=values["chat"] or bool(suite and suite.chat),
        seed=values["seed"],
        background=values["background"],
    )


def _preflight(console: Console, served: ServedModel, asked: Any) -> None:
    """Tasks that only generate need no log-probabilities."""
    from qserve.evaluation.harness import kinds_of_tasks, task_manager
    from qserve.evaluation.preflight import check

    if kinds_of_tasks(task_manager(asked.tasks), asked.tasks) == {"generate_until"}:
        return
    worst = check(served)
    console.print(f"preflight: log-probabilities of its own answer agree to {worst:.4f}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import Progress

    with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
        line = bar.add_task("asking", total=None)
        yield lambda answered, wanted: bar.update(line, completed=answered, total=wanted)


def _what_runs(served: ServedModel) -> str:
    run = served.run
    return (
        f"{run['engine']} {run['engine_version']}, {run['scheme']}, {run['dtype']}"
        if run
        else "not a qserve: engine unknown"
    )


def _show(console: Console, result: EvalResult) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("task", "metric"):
        table.add_column(name, no_wrap=True, overflow="ignore")
    for name in ("value", "± stderr", "items", "shots"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in result.scores():
        stderr = "" if score.stderr is None else f"{score.stderr:.4f}"
        better = "" if score.higher_is_better else " ↓"
        items, shots = f"{score.num_items:,}", str(score.num_fewshot)
        table.add_row(score.task, score.metric + better, _figure(score.value), stderr, items, shots)
    console.print(table)
    console.print(f"{result.about['seconds']:.1f} s; ↓: lower is better")


def _figure(value: float) -> str:
    """Shares with four decimals; a perplexity may be of any size."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4g}"


def _show_diff(console: Console, diff: TaskDiff) -> None:
    better = sum(flip.is_better for flip in diff.flips)
    drift = diff.largest_logprob_difference
    console.print(
        f"[bold]{diff.task}[/bold]  {diff.metric} {diff.before:.4f} → {diff.after:.4f} on {diff.num_items:,} items · "
        f"{len(diff.flips)} flipped ({better} better, {len(diff.flips) - better} worse) · p = {diff.p_value:.3f}"
        + (f" · log-likelihoods differ by up to {drift:.4g}" if drift is not None else "")
    )
    for flip in diff.flips[:_MOST_FLIPS_SHOWN]:
        sign = "better" if flip.is_better else "worse "
        console.print(
            f"  {sign} item {flip.doc_id}: {flip.before!r} → {flip.after!r} (right: {flip.target!r})", markup=False
        )
    if len(diff.flips) > _MOST_FLIPS_SHOWN:
        console.print(f"  … and {len(diff.flips) - _MOST_FLIPS_SHOWN} more")
