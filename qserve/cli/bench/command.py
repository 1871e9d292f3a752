"""`qserve bench`: a load test of any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.cli.bench.request import BenchFlags, Inputs, client_of, inputs_of, load_plan_of, source_of
from qserve.cli.interrupted import INTERRUPTED
from qserve.cli.options.command import Command
from qserve.cli.options.given_flags import refuse_flags
from qserve.cli.options.numbers import LARGEST, Count, FiniteRange
from qserve.cli.options.url import ServerUrl
from qserve.cli.writable import check_file_writable
from qserve.errors import QserveError
from qserve.state_folder import state_folder

if TYPE_CHECKING:
    from rich.console import Console

    from qserve.bench.counting import Counter
    from qserve.bench.result import BenchResult
    from qserve.bench.session import LoadPlan, Session

__all__ = ["command"]

_T = TypeVar("_T")
_NO_LOAD = ("api_key", "output", "csv_file", "as_json")


class _Numbers(click.ParamType[Any]):
    """`1,8,32`: positive numbers with commas between them."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self._kind(word) for word in str(value).split(",") if word.strip())
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number <= LARGEST for number in numbers):
            self.fail(f"{value!r}: write positive numbers with commas between them, as 1,8,32", param, ctx)
        return numbers


class _Burstiness(FiniteRange):
    """The shape of the gamma distribution of pauses, at least 0.01; `inf`: constant pauses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return math.inf if str(value).strip().lower() == "inf" else super().convert(value, param, ctx)


@click.command("bench", cls=Command)
@click.argument("more_limits", nargs=-1, metavar="")
@click.option("--url", type=ServerUrl(), default="http://127.0.0.1:8000", show_default=True, help="The server to test.")
@click.option("--api-key", envvar=["QSERVE_API_KEY", "OPENAI_API_KEY"], default="", help="API key of the server.")
@click.option("--model", "--served-model-name", "model", help="Model to test [the only one].")
@click.option(
    "--endpoint",
    type=click.Choice(["chat", "completions", "reward", "classify"]),
    default="chat",
    show_default=True,
    help="Kind of requests; reward is POST /v1/reward, classify vLLM's.",
)
@click.option("--concurrency", type=_Numbers(int), help="Closed loop: concurrent requests, one stage per number. [8]")
@click.option("--request-rate", type=_Numbers(float), help="Open loop: requests per second, one stage per number.")
@click.option(
    "--burstiness",
    type=_Burstiness(min=0.01),
    default=1.0,
    show_default=True,
    help="Open loop: 1 Poisson, below in bursts, above more even, inf constant.",
)
@click.option("--burst-size", type=Count(min=1), default=1, show_default=True, help="Requests that arrive together.")
@click.option("--sweep", is_flag=True, help="Closed loops of 1, 2, 4, … until the throughput saturates.")
@click.option("--max-concurrency", type=Count(min=1), default=256, show_default=True, help="Last stage of a sweep.")
@click.option("--num-prompts", type=Count(min=1), help="Requests per stage [4 per stream, 30 s of an open loop].")
@click.option("--duration", type=FiniteRange(min=0, min_open=True), help="Seconds per stage [sweep: 15].")
@click.option("--input-len", type=Count(min=1), default=256, show_default=True, help="Tokens of a prompt.")
@click.option("--output-len", type=Count(min=1), help="Tokens to generate, or of an answer to score. [128]")
@click.option(
    "--range-ratio",
    type=FiniteRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Lengths vary by up to this share.",
)
@click.option("--shared-prefix-len", type=Count(min=0), default=0, help="Tokens of a prefix shared by all prompts.")
@click.option("--dataset", type=click.Path(path_type=Path), help="Prompts from ShareGPT-shaped JSON or JSON lines.")
@click.option("--best-of", type=Count(min=1), help="Answers per reward request. [1]")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder of a tokenizer [the server's own].")
@click.option("--num-warmups", type=Count(min=0), default=2, show_default=True, help="Requests before the first stage.")
@click.option("--seed", type=Count(), default=0, show_default=True, help="Random seed of prompts and arrivals.")
@click.option("--goodput", multiple=True, help="Latency limits of good requests, in ms: ttft:200 tpot:50 e2el:3000.")
@click.option("--ignore-eos/--no-ignore-eos", default=None, help="Answers of exactly --output-len. [on if synthetic]")
@click.option("--temperature", type=FiniteRange(min=0), default=0.0, show_default=True, help="Sampling temperature.")
@click.option("--extra-body", default="{}", help="Further fields of each request, as a JSON object.")
@click.option("--stream/--no-stream", default=True, help="Stream the answers. [on]")
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that a request may take.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the result, as JSON [below --state-dir].",
)
@click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="File for single requests, as CSV."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, without single requests.")
@click.option(
    "--compare-spec",
    is_flag=True,
    help="Serve --model without drafts and with each way to draft, and say where they pay.",
)
@click.option(
    "--spec-tokens", type=Count(min=1), default=3, show_default=True, help="Tokens drafted at once (--compare-spec)."
)
@click.option("--up-args", default="", help='Further flags of `qserve up` (--compare-spec): "--max-model-len 8192".')
@click.option(
    "--self-test", is_flag=True, help="Measure a fake server of known latencies, and the load generator's own cost."
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Where results are kept [~/.local/state/qserve].",
)
def command(
    self_test: bool, compare_spec: bool, spec_tokens: int, up_args: str, state_dir: Path | None, **values: Any
) -> None:
    """Load test of any OpenAI-compatible server: TTFT, TPOT, ITL, E2E as `vllm bench serve` defines them.

    \b
    qserve bench --concurrency 1,8,32
    qserve bench --sweep --input-len 512 --output-len 128
    qserve bench --request-rate 2,4,8 --goodput ttft:200 tpot:50
    qserve bench --endpoint reward --best-of 8 --concurrency 4
    qserve bench --dataset sharegpt.json --num-prompts 200 --csv requests.csv
    qserve bench --compare-spec --model Qwen/Qwen3-8B --dataset sharegpt.json

    Ctrl-C ends the load and prints what was measured so far. Exit status: 0, 1 nothing was measured or the server
    stopped answering, 2 bad input or a server that can't be measured, 130 after Ctrl-C.
    """
    if self_test:
        sys.exit(0 if _self_test() else 1)
    flags = BenchFlags(**values)
    state = state_folder(state_dir)
    output = flags.output or _own_file(state)
    if compare_spec:
        _compare(flags, spec_tokens, up_args, state_dir, output)
        return
    refuse_flags(("spec_tokens", "up_args"), "for --compare-spec, which starts servers; add it, or leave them out")
    plan = load_plan_of(flags)
    from qserve.cli.bench.show import show_result
    from qserve.terminal.console import console_of

    for file in (output, flags.csv_file):
        if file is not None:
            check_file_writable(file)
    inputs = inputs_of(flags)
    console = console_of(stderr=flags.as_json)
    result, status = _measured(plan, inputs, flags, console)
    result.save(output)
    if flags.csv_file is not None:
        result.save_csv(flags.csv_file)
    if flags.as_json:
        click.echo(json.dumps(result.to_json(with_requests=False), indent=1, ensure_ascii=False))
    else:
        show_result(console, result)
    kept = _keep(result, state, output)
    console.print(f"Result  {output}{kept}", soft_wrap=True)
    sys.exit(status)


def _compare(flags: BenchFlags, tokens: int, up_args: str, state_dir: Path | None, output: Path) -> None:
    """Measures each way to draft, and prints what came of it."""
    from qserve.cli.bench.show_speculation import show_speculation
    from qserve.cli.bench.speculation import compare_speculation, written
    from qserve.terminal.console import console_of

    check_file_writable(output)
    compared = compare_speculation(flags, flags.model, tokens, up_args, state_dir)
    written(compared, output)
    if flags.as_json:
        click.echo(json.dumps(compared.to_json(), indent=1, ensure_ascii=False))
        return
    console = console_of()
    show_speculation(console, compared)
    console.print(f"Result  {output}", soft_wrap=True)


def _own_file(state: Path) -> Path:
    """A result file named by time and process id, so that two tests of one second do not overwrite each other."""
    return state / "bench" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"


def _measured(plan: LoadPlan, inputs: Inputs, flags: BenchFlags, console: Console) -> tuple[BenchResult, int]:
    """Run the load test; returns the result and the exit status."""
    from qserve.bench.connection import Address
    from qserve.bench.counting import counter_of
    from qserve.bench.result import BenchResult
    from qserve.bench.saturation import saturation_of
    from qserve.bench.session import run_session
    from qserve.bench.target import inspect_target
    from qserve.cli.bench.show import header, progress_on

    address = Address.of(flags.url)
    target = inspect_target(address, flags.api_key, flags.model, flags.scores, flags.stream)
    counter = inputs.counter or counter_of(address, flags.api_key, target.model, None)
    client = client_of(target, flags, inputs.extra, counter)
    stopped: list[bool] = []

    async def run() -> Session:
        stop = _stop_at_signals(stopped)
        async with progress_on(console) as show:
            return await run_session(client, plan, source, stop, show)

    with contextlib.closing(counter):
        source = source_of(flags, inputs.entries, counter)
        console.print(header(target, flags, counter), soft_wrap=True)
        session = _on_uvloop(run())
    saturation = saturation_of(session.figures, "tokens/s" if flags.scores else "output tokens/s")
    cpu_s = sum(run.cpu_s for run in session.runs)
    result = BenchResult(
        began_unix_s=session.began_unix_s,
        server={"url": address.url, "model": target.model, "engine": target.engine, "run": target.run_id},
        load=_load_settings(flags, counter, session),
        runs=session.runs,
        figures=session.figures,
        saturation=saturation,
        generator={"cpu_s": cpu_s, "num_chunks": float(sum(one.num_chunks for one in session.figures))},
        notes=[*session.notes, *([session.gone] if session.gone else [])],
    )
    if stopped:
        return result, INTERRUPTED
    return result, int(bool(session.gone) or not any(one.completed for one in session.figures))


def _load_settings(flags: BenchFlags, counter: Counter, session: Session) -> dict[str, Any]:
    """The settings of the load for the result file, without the key."""
    kept = {name: value for name, value in vars(flags).items() if name not in _NO_LOAD}
    paths = {name: str(value) for name, value in kept.items() if isinstance(value, Path)}
    first = session.first
    return {
        **kept,
        **paths,
        "tokens_counted_by": counter.source,
        "tokens_are_exact": counter.is_exact,
        "first_request_prompt_tokens": 0 if first is None else first.prompt_tokens,
    }


def _keep(result: BenchResult, state: Path, output: Path) -> str:
    """Add the result to the run of the tested server if it is in this run store, and print where it is."""
    run_id = result.server["run"]
    if not run_id:
        return ""
    import logging

    from qserve.runs import RunStore

    document = {**result.to_json(with_requests=False), "file": str(output.absolute())}
    try:
        store = RunStore.open(state)
        if store.find(run_id) is None:
            return ""  # another machine's, or below another --state-dir
        store.add_bench(document, name=", ".join(one.stage.name for one in result.figures), run=run_id)
    except QserveError as error:
        logging.getLogger("qserve.bench").warning("not kept in the run store: %s", error)
        return ""
    return f"\nRun     qserve runs show {run_id}"


def _self_test() -> bool:
    from qserve.bench.self_test import run_self_test
    from qserve.cli.bench.show import progress_on, show_self_test
    from qserve.terminal.console import console_of

    console = console_of()

    async def run() -> Any:
        stop = _stop_at_signals([])
        async with progress_on(console) as show:
            return await run_self_test(stop, show)

    tested = _on_uvloop(run())
    show_self_test(console, tested)
    return bool(tested.is_good)


def _stop_at_signals(stopped: list[bool]) -> asyncio.Event:
    """The first Ctrl-C ends the load; the second one everything."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stopped.append(True)
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
            loop.add_signal_handler(number, end)
    return stop


def _on_uvloop(work: Coroutine[Any, Any, _T]) -> _T:
    make: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        make = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)
