"""One evaluation: the server looked at, its answers asked for, and the result kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qserve.cli.eval.request import EvalFlags
from qserve.cli.eval.show import show_preview
from qserve.cli.progress import ProgressLine, resumable
from qserve.state_folder import state_folder

if TYPE_CHECKING:
    from qserve.evaluation.answers.thinking import Thinking
    from qserve.evaluation.environment import LmEvalLog
    from qserve.evaluation.request import EvalRequest
    from qserve.evaluation.results import EvalResult
    from qserve.evaluation.server import ServedModel
    from qserve.evaluation.tasks import Tasks

__all__ = ["evaluated"]


def evaluated(
    line: ProgressLine, url: str, api_key: str, request: EvalRequest, tasks: Tasks, flags: EvalFlags
) -> tuple[EvalResult, Path, LmEvalLog]:
    """The result, its file, and what lm-eval said."""
    from qserve.evaluation import harness, results, server
    from qserve.evaluation.answers import cache as answers
    from qserve.evaluation.answers.thinking_mode import thinking_mode
    from qserve.evaluation.environment import LmEvalLog

    line.phase(f"asking {url}")
    state = state_folder(flags.state_dir)
    served = server.inspect_server(
        url,
        api_key,
        flags.served_model_name,
        flags.tokenizer,
        state / "tokenizers",
        flags.max_length,
        counts_tokens=not (request.chat and tasks.only_generate),
    )
    thinking, notes = thinking_mode(served, request, tasks)
    for note in (f"{served.model} at {served.url} · {_run_text(served)}", *notes):
        click.echo(note, err=True)
    if flags.preflight:
        line.phase("checking the server")
        _preflight(served, request, tasks, thinking)
    cache = state / "eval-cache"
    if not flags.resume:
        answers.forget_answers(cache, served, request)
    num_kept = answers.kept_answers(cache, served, request)
    if num_kept:
        kept = f"Continuing: {num_kept:,} answers are kept from the interrupted run (--no-resume starts over)"
        click.echo(kept, err=True)
    folder = flags.out or state / "evals" / f"{time.strftime('%Y%m%d-%H%M%S')}-{served.fingerprint()}"
    began, log = time.monotonic(), LmEvalLog(folder / "lm-eval.log")
    line.phase("answers")
    with resumable():
        outcome = harness.evaluate(served, request, cache, line.count, tasks, thinking, log)
    result = results.EvalResult.of(served, request, outcome, time.monotonic() - began, num_kept, notes)
    file = result.save(folder)
    answers.forget_answers(cache, served, request)
    _keep_in_run(state, flags.suite or ",".join(request.tasks), result)
    return result, file, log


def _keep_in_run(state: Path, name: str, result: EvalResult) -> None:
    """Add the result to the run store, and to the evaluated run if that is in the same store."""
    from qserve.runs import RunStore, StoreUnusable

    try:
        RunStore.open(state).add_eval(result.document(), name=name, run=result.about["run"])
    except StoreUnusable as error:
        click.echo(f"note: the result is not in the run store ({error}); its file is complete", err=True)


def _preflight(served: ServedModel, request: EvalRequest, tasks: Tasks, thinking: Thinking) -> None:
    from qserve.evaluation import preview
    from qserve.evaluation.preflight import check

    if request.thinking_budget is not None:
        preview.check_budget(served, request.thinking_budget)
    if any(not spec.only_generates for spec in tasks.specs):
        click.echo(f"Server check passed: log-probabilities agree to {check(served):.4f}", err=True)
    for one in preview.previews(served, request, tasks, thinking):
        show_preview(one)


def _run_text(served: ServedModel) -> str:
    run = served.run
    return f"{run['engine']} {run['engine_version']}, {run['scheme']}, {run['dtype']}" if run else "engine unknown"
