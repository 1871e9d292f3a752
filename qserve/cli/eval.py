"""`qserve eval`: lm-eval against a running server, or one of its own; `qserve eval diff`: two results item by item."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from qserve.cli.own_server import own_server, up_arguments
from qserve.cli.progress import request_progress, resumable
from qserve.cli.show_eval import show_diff, show_result
from qserve.cli.state import state_folder
from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.evaluation.harness import Asked
    from qserve.evaluation.results import EvalResult
    from qserve.evaluation.server import ServedModel
    from qserve.evaluation.tasks import Tasks

__all__ = ["command"]

_URL = "http://127.0.0.1:8000"


class _WithDiff(click.Group):
    """`qserve eval` is a command of its own, `qserve eval diff A B` beside it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["diff"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return diff if cmd_name == "diff" else None


@click.group("eval", cls=_WithDiff, invoke_without_command=True)
@click.option("--url", help=f"A running server [{_URL}].")
@click.option("--api-key", envvar="QSERVE_API_KEY", default="", help="Its key, where it has one.")
@click.option("--served-model-name", help="Which of its models [the only one that generates].")
@click.option(
    "--model", help="In place of --url: serve this for the evaluation. A folder, a hub id, an alias, or demo."
)
@click.option("--quant", help="With --model: auto, fp16, bf16, fp8, int8, 4bit or a scheme [auto].")
@click.option("--up-args", default="", help='With --model: further flags of `qserve up`: "--engine vllm".')
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
def command(ctx: click.Context, /, **values: Any) -> None:
    """lm-eval against a server: accuracies with standard errors, and every answer kept.

    \b
    qserve eval --suite offline
    qserve eval --model ./my-checkpoint --quant 4bit --suite quick
    qserve eval --url http://127.0.0.1:9000 --tasks gsm8k,arc_challenge --limit 200
    qserve eval diff evals/bf16 evals/4bit

    An evaluation that was interrupted goes on where it stopped when the same command is given again.

    Exit status: 0, 2 where something can't be asked, 5 where the server did not start or stopped answering.
    """
    if ctx.invoked_subcommand is not None:
        return
    _check_which_server(values)
    asked = _asked(values)
    from qserve.evaluation.tasks import load_tasks

    tasks = load_tasks(asked.tasks)  # before a server is started for nothing
    console = Console(highlight=False, soft_wrap=True)
    with _server(console, values, tasks) as (url, api_key):
        _evaluate(console, url, api_key, asked, tasks, values)


def _check_which_server(values: dict[str, Any]) -> None:
    """Flags of one way to have a server are never silently ignored in the other."""
    if values["model"] is None:
        given = [name for name in ("quant", "up_args") if values[name]]
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is for a server of its own; name its model with --model (which of a "
                "running server's models to ask is --served-model-name)"
            )
    elif values["url"] is not None:
        raise UsageError("--url names a running server and --model one to start; give one of them")


@contextlib.contextmanager
def _server(console: Console, values: dict[str, Any], tasks: Tasks) -> Iterator[tuple[str, str]]:
    """Address and key: of the running server, or of one for the time of this command, planned for what is asked."""
    if values["model"] is None:
        yield values["url"] or _URL, values["api_key"]
        return
    arguments = ["--model", values["model"], *(["--quant", values["quant"]] if values["quant"] else [])]
    arguments += [] if tasks.only_generate else ["--prompt-logprobs"]
    log = state_folder(values["state_dir"]) / "eval-servers" / f"{time.strftime('%Y%m%d-%H%M%S')}.log"
    console.print(f"starting {values['model']}; its log: {log}")
    with own_server([*arguments, *up_arguments(values["up_args"])], log, values["state_dir"], "eval") as server:
        console.print(f"ready after {server.start_s:.1f} s")
        yield server.url, server.api_key


def _evaluate(console: Console, url: str, api_key: str, asked: Asked, tasks: Tasks, values: dict[str, Any]) -> None:
    from qserve.evaluation import harness, results, server

    state = state_folder(values["state_dir"])
    name, tokenizer = values["served_model_name"], values["tokenizer"]
    counts_tokens = not (asked.chat and tasks.only_generate)
    served = server.look_at(url, api_key, name, tokenizer, state / "tokenizers", values["max_length"], counts_tokens)
    console.print(f"{served.model} at {served.url} · {_what_runs(served)} · {served.concurrency} requests at once")
    if values["preflight"] and not tasks.only_generate:
        _preflight(console, served)
    cache = state / "eval-cache"
    if not values["resume"]:
        harness.forget_answers(cache, served, asked)
    num_kept = harness.kept_answers(cache, served, asked)
    if num_kept:
        console.print(f"going on: {num_kept:,} answers are there from an interrupted run (--no-resume asks anew)")
    began = time.monotonic()
    with request_progress() as progress, resumable(console):
        told = harness.evaluate(served, asked, cache, progress, tasks)
    result = results.EvalResult.of(served, asked, told, time.monotonic() - began, num_kept)
    folder = values["out"] or state / "evals" / f"{time.strftime('%Y%m%d-%H%M%S')}-{served.fingerprint()}"
    file = result.save(folder)
    harness.forget_answers(cache, served, asked)
    _keep_in_run(console, state, values["suite"] or ",".join(asked.tasks), result)
    show_result(console, result)
    console.print(f"kept in {file}")


def _keep_in_run(console: Console, state: Path, name: str, result: EvalResult) -> None:
    """Beside the run that was evaluated, if it is in the store of this state folder, and in any case in the store."""
    from qserve.runs import RunStore, StoreUnusable

    try:
        RunStore.open(state).add_eval(result.document(), name=name, run=result.about["run"])
    except StoreUnusable as error:
        console.print(f"the run store does not take the result ({error}); the file below holds it")


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

    console = Console(highlight=False, soft_wrap=True)
    for one in compare(EvalResult.load(first), EvalResult.load(second)):
        show_diff(console, one)


def _asked(values: dict[str, Any]) -> Asked:
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


def _preflight(console: Console, served: ServedModel) -> None:
    from qserve.evaluation.preflight import check

    worst = check(served)
    console.print(f"preflight: log-probabilities of its own answer agree to {worst:.4f}")


def _what_runs(served: ServedModel) -> str:
    run = served.run
    return (
        f"{run['engine']} {run['engine_version']}, {run['scheme']}, {run['dtype']}"
        if run
        else "not a qserve: engine unknown"
    )
