"""`qserve eval`: lm-eval against a running or temporary server; `qserve eval diff`: two results item by item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.eval.request import EvalFlags, check_samples, eval_request
from qserve.cli.eval.run import evaluated
from qserve.cli.eval.server import URL, check_which_server, server_to_ask
from qserve.cli.eval.show import show_diff, show_result, show_warnings
from qserve.cli.options.command import Command, CommandGroup, model_options
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.options.numbers import Count
from qserve.cli.options.planning import plan_option
from qserve.cli.options.url import ServerUrl
from qserve.cli.progress import progress_line
from qserve.cli.writable import check_folder_writable
from qserve.errors import UnusableResult
from qserve.state_folder import state_folder
from qserve.terminal.console import console_of

if TYPE_CHECKING:
    from qserve.evaluation.results import EvalResult

__all__ = ["command"]

_ABOUT = ("model", "url", "run", "engine", "engine_version", "scheme", "dtype", "kv_cache_dtype", "devices", "seed")


class _WithDiff(CommandGroup):
    """A group that is a command itself (`qserve eval`), with the subcommand `qserve eval diff A B`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["diff"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return diff if cmd_name == "diff" else None


@click.group("eval", cls=_WithDiff, invoke_without_command=True)
@click.option("--url", type=ServerUrl(), help=f"A running server [{URL}].")
@click.option("--api-key", envvar="QSERVE_API_KEY", default="", help="API key of the server.")
@click.option("--served-model-name", help="Model to evaluate [the only chat model].")
@model_options("Instead of --url: serve this model for the evaluation. A folder, a hub id, a short name, or demo.")
@click.option("--quant", help="With --model: auto, fp16, bf16, fp8, int8, 4bit or a scheme [auto].")
@plan_option("cpu_activations")
@click.option("--up-args", default="", help='With --model: further flags of `qserve up`: "--engine vllm".')
@click.option(
    "--tasks",
    help="lm-eval's task names, your YAML files or folders of them, texts (.txt, .md, .json, "
    ".jsonl) to measure perplexity on; with commas between.",
)
@click.option(
    "--include-path",
    multiple=True,
    help="A folder with your own tasks, which --tasks then takes by name; may be repeated.",
)
@click.option("--suite", help="A list of tasks, by name or file: offline, quick, quality, math, chinese, long.")
@click.option("--limit", type=Count(min=1), help="Items per task [all].")
@click.option("--num-fewshot", type=Count(min=0), help="Examples before each question [the task's own].")
@click.option("--chat", is_flag=True, help="Use the model's chat template.")
@click.option(
    "--thinking",
    type=click.Choice(["on", "off", "auto"]),
    help="With --chat: whether the model thinks before it answers, by its template's own switch [auto: its default].",
)
@click.option(
    "--max-gen-toks",
    type=Count(min=1),
    help="Tokens of an answer, its thought included [thinking: 32768 and the task's own; else the task's own].",
)
@click.option("--thinking-budget", type=Count(min=1), help="Tokens after which the engine ends a thought, if it can.")
@click.option(
    "--gen-kwargs", help="Sampling parameters that override a task's own: temperature=0.6,top_p=0.95, or JSON."
)
@click.option(
    "--num-samples",
    type=click.IntRange(min=1, max=1024),
    default=1,
    show_default=True,
    help="Answers per generated item, for avg@k, pass@k and maj@k.",
)
@click.option(
    "--max-truncated",
    type=click.FloatRange(0, 100),
    default=2.0,
    show_default=True,
    help="Percent of a task's answers that may be cut off, empty or null, and of its items that can't be scored; above "
    "it the result is unusable.",
)
@click.option("--seed", type=Count(), default=1234, show_default=True, help="Random seed.")
@click.option("--tokenizer", help="Folder or hub id [the server's own].")
@click.option("--max-length", type=Count(min=2), help="For servers that do not report max_model_len.")
@click.option(
    "--background/--no-background",
    default=None,
    help="Let the server answer its users first. [on, but for the server of --model, which has none]",
)
@click.option("--preflight/--no-preflight", default=True, help="Check first whether the server can be evaluated. [on]")
@click.option("--resume/--no-resume", default=True, help="Reuse the answers of an interrupted run. [on]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the result [below --state-dir].")
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]")
@add_json_flag
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> None:
    """Run lm-eval against a server: accuracies with standard errors; every answer is kept.

    \b
    qserve eval --suite offline
    qserve eval ./my-checkpoint --quant 4bit --suite quick
    qserve eval --url http://127.0.0.1:9000 --tasks gsm8k --limit 200
    qserve eval --tasks aime24 --chat --thinking on --num-samples 4
    qserve eval --tasks ./my-task.yaml --chat
    qserve eval --tasks ./my-text.txt
    qserve eval diff evals/bf16 evals/4bit

    The same command resumes an interrupted evaluation where it stopped.

    Exit status: 0, 2 bad input, 3 --model does not fit, 5 the server did not start or stopped answering, 6 more answers
    or items than --max-truncated could not be scored, 130 after Ctrl-C.
    """
    if ctx.invoked_subcommand is not None:
        return
    flags = EvalFlags(**values)
    check_which_server(flags)
    request = eval_request(flags)
    state = state_folder(flags.state_dir)
    for folder in (state, *filter(None, [flags.out])):
        check_folder_writable(folder)
    from qserve.evaluation.tasks import check_lm_eval, load_tasks
    from qserve.evaluation.tokenizer import load_tokenizer

    check_lm_eval()
    with progress_line() as line:
        line.phase("loading tasks")
        tasks = load_tasks(request.tasks, request.include_path)
        check_samples(request, tasks)
        if flags.tokenizer:
            load_tokenizer(flags.tokenizer)
        with server_to_ask(line, flags, request, tasks) as (url, api_key):
            result, file, log = evaluated(line, url, api_key, request, tasks, flags)
    if flags.as_json:
        print_json({**_result_json(result, log.warnings), "file": str(file)})
    else:
        console = console_of()
        show_result(console, result)
        show_warnings(console, log.warnings)
        console.print(f"Result  {file}\nNext    qserve eval diff {file.parent} OTHER", markup=False, soft_wrap=True)
    unusable = result.unusable(flags.max_truncated / 100)
    if unusable:
        raise UnusableResult(
            f"{'; '.join(unusable)}: more than --max-truncated {flags.max_truncated:g}. The result is kept, but "
            "its figures can't be trusted. --max-gen-toks gives answers more room, --thinking off leaves thoughts out; "
            "the right answer of an item must be one of its choices"
        )


@click.command("diff", cls=Command, short_help="Compare two results item by item.")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@add_json_flag
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two results item by item.

    p is that of the exact McNemar test: below 0.05 the difference is hardly chance.

    \b
    qserve eval diff evals/bf16 evals/4bit
    """
    from qserve.evaluation.comparison.diff import compare
    from qserve.evaluation.results import EvalResult

    diffs = compare(EvalResult.load(first), EvalResult.load(second))
    if as_json:
        print_json({"first": str(first), "second": str(second), "tasks": [asdict(one) for one in diffs]})
    else:
        show_diff(console_of(), diffs)


def _result_json(result: EvalResult, warnings: Mapping[str, int]) -> dict[str, Any]:
    """All figures of a result; its answers are in its file. `warnings`: lm-eval's, and how often each came."""
    about = result.about
    return {
        **{name: about.get(name) for name in _ABOUT},
        "began_unix_s": round(about["unix_s"] - about["seconds"], 3),
        "duration_s": about["seconds"],
        "num_answers_kept": about["num_answers_kept"],
        "notes": about["notes"],
        "scores": [asdict(score) for score in result.scores()],
        "outcomes": {task: asdict(counts) for task, counts in result.outcomes().items()},
        "unscorable": {task: asdict(items) for task, items in result.unscorable().items()},
        "warnings": dict(warnings),
    }
