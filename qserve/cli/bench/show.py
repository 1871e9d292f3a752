"""The output of `qserve bench`: a progress line while it runs, then a table and a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from qserve.units import TOGETHER_MS

if TYPE_CHECKING:
    from qserve.bench.counting import Counter as TokenCounter
    from qserve.bench.metrics import Distribution, StageFigures
    from qserve.bench.result import BenchResult
    from qserve.bench.run import Running
    from qserve.bench.self_test import SelfTest
    from qserve.bench.target import Target
    from qserve.cli.bench.request import BenchFlags

__all__ = ["header", "progress_on", "show_result", "show_self_test"]

# Drawing takes 1 to 2 ms of the event loop that also takes the timestamps; at 2 Hz that is 0.4 % of its time.
_DRAW_EVERY_S = 0.5
_WIDE = 110
_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Above this share of a core the load generator may distort its own measurements.
_BUSY = 0.5
_LATE_MS = 5.0


def header(target: Target, flags: BenchFlags, counter: TokenCounter) -> str:
    """One line: the server, model, endpoint and prompts of the test."""
    if flags.dataset is not None:
        prompts = f"prompts of {flags.dataset}"
    else:
        lengths = f"{flags.input_len} + {flags.synthetic_len} tokens"
        prefix = f" after {flags.shared_prefix_len} shared ones" if flags.shared_prefix_len else ""
        prompts = f"{lengths}{prefix}"
    sign = "" if counter.is_exact else "about "
    engine = f" · {target.engine}" if target.engine else ""
    return f"{target.model} at {target.address.url}{engine} · {sign}{prompts}, counted by {counter.source}"


@contextlib.asynccontextmanager
async def progress_on(console: Console) -> AsyncIterator[Callable[[Running], None]]:
    """Returns `show(running)`, called at the start of each stage. Draws nothing without a terminal."""
    if not console.is_terminal:
        yield lambda running: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        line = bar.add_task("first requests", total=None, said="")
        current: list[Running] = []

        def draw() -> None:
            for running in current:
                latencies = _progress(running)
                bar.update(line, **latencies)
            bar.refresh()

        async def tick() -> None:
            while True:
                draw()
                await asyncio.sleep(_DRAW_EVERY_S)

        def show(running: Running) -> None:
            current[:] = [running]

        ticking = asyncio.create_task(tick())
        try:
            yield show
        finally:
            ticking.cancel()


def _progress(running: Running) -> dict[str, Any]:
    run, stage = running.run, running.run.stage
    records = run.records
    elapsed_s = max(1e-9, time.time() - run.began_unix_s)
    failed = sum(not record.is_complete for record in records)
    rate = sum(record.output_tokens or record.prompt_tokens for record in records) / elapsed_s
    last = next((record for record in reversed(records) if record.is_complete), None)
    words = [f"{len(records)}" + (f"/{stage.num_prompts}" if stage.num_prompts else "") + " done"]
    words += [f"{running.num_in_flight} running", f"{rate:,.0f} tokens/s"]
    if last is not None:
        first = f"TTFT {1e3 * last.ttft_s:,.0f} ms" if last.ttft_s is not None else f"E2E {1e3 * last.e2e_s:,.0f} ms"
        words.append(first)
    if failed:
        words.append(f"[red]{failed} failed[/red]")
    by_time = elapsed_s / stage.duration_s if stage.duration_s else 0.0
    by_number = len(records) / stage.num_prompts if stage.num_prompts else 0.0
    completed = 100 * min(1.0, max(by_time, by_number))
    return {"description": stage.name, "completed": completed, "total": 100, "said": " · ".join(words)}


def show_result(console: Console, result: BenchResult) -> None:
    """The table of stages; of a single one, its latencies in full."""
    figures = [one for one in result.figures if one.completed]
    if len(figures) == 1:
        _show_one(console, figures[0])
    elif figures:
        _show_stages(console, figures)
    else:
        console.print("No request was answered completely: there is nothing to show.", style="bold")
    if result.saturation is not None:
        console.print(result.saturation.sentence, style="bold", soft_wrap=True)
    _show_trouble(console, result.figures)
    for note in [*result.notes, *_remarks(result.figures)]:
        console.print(note, markup=False, soft_wrap=True)


def _show_one(console: Console, figures: StageFigures) -> None:
    table = _table(figures.stage.name, "mean", "p50", "p90", "p99", "max")
    for name, spread in _latencies(figures):
        if spread.num_values:
            values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.most)
            table.add_row(f"{name} ms", *(_ms(value) for value in values))
    console.print(table)
    words = [f"{figures.completed:,} requests in {figures.duration_s:.1f} s", f"{figures.request_throughput:.2f}/s"]
    if figures.total_output_tokens:
        words.append(f"{figures.output_throughput:,.1f} output tokens/s")
    if figures.total_texts > figures.completed:
        words.append(f"{figures.text_throughput:,.1f} texts/s")
    words.append(f"{figures.total_token_throughput:,.1f} tokens/s in total")
    if figures.request_goodput is not None:
        words.append(f"goodput {figures.request_goodput:.2f}/s")
    console.print(" · ".join(words), style="bold", soft_wrap=True)


def _show_stages(console: Console, figures: Sequence[StageFigures]) -> None:
    wide = console.width >= _WIDE
    shares = ("p50", "p90", "p99") if wide else ("p50", "p99")
    spreads = [
        name for name, _ in _latencies(figures[0]) if any(dict(_latencies(one))[name].num_values for one in figures)
    ]
    if not wide or len(spreads) > 3:
        spreads = [name for name in spreads if name != "ITL"]
    has_goodput = any(one.request_goodput is not None for one in figures)
    has_failed = any(one.failed for one in figures)
    columns = [f"{name} ms\n{' / '.join(shares)}" for name in spreads]
    has_texts = any(one.total_texts > one.completed for one in figures)
    unit = "output\ntokens/s" if figures[0].total_output_tokens else "tokens/s"
    table = _table(
        "load",
        "req/s",
        *(["texts/s"] if has_texts else []),
        unit,
        *columns,
        *(["good\nreq/s"] if has_goodput else []),
        *(["failed"] if has_failed else []),
    )
    best = max(one.rate for one in figures)
    for one in figures:
        rate = f"{one.rate:,.1f}" + (f" {_bar(one.rate / best)}" if wide and best else "")
        latencies = dict(_latencies(one))
        cells = [" / ".join(_ms(getattr(latencies[name], share)) for share in shares) for name in spreads]
        good = [] if not has_goodput else [f"{one.request_goodput or 0.0:.2f}"]
        failed = [] if not has_failed else [f"{one.failed:,}"]
        texts = [] if not has_texts else [f"{one.text_throughput:,.1f}"]
        table.add_row(one.stage.name, f"{one.request_throughput:.2f}", *texts, rate, *cells, *good, *failed)
    console.print(table)


def _show_trouble(console: Console, figures: Sequence[StageFigures]) -> None:
    """Failed requests by kind, with one error of each kind."""
    kinds: Counter[str] = Counter()
    sentences: dict[str, str] = {}
    for one in figures:
        kinds.update(one.errors)
        sentences.update(one.error_sentences)
    for kind, number in kinds.most_common():
        console.print(f"{number:,} failed, {kind}: {sentences[kind]}", style="red", markup=False, soft_wrap=True)


def _remarks(figures: Sequence[StageFigures]) -> list[str]:
    """Warnings about the measurement itself, below the table."""
    notes = []
    cut_off = [one for one in figures if one.num_cut_off]
    if cut_off:
        one = cut_off[-1]
        notes.append(f"Stopped at {one.stage.name}: {one.num_cut_off} requests were cut off and are not counted.")
    ahead = [one for one in figures if one.ttft.p50 - one.announced.p50 > max(2.0, 0.05 * one.ttft.p50)]
    if ahead:
        one = ahead[0]
        notes.append(
            f"The server sends the role before the first token ({one.stage.name}: {_ms(one.announced.p50)} ms, "
            f"the token after {_ms(one.ttft.p50)} ms). TTFT is the time to the token; vllm bench serve measures the "
            "time to the role."
        )
    together = [one for one in figures if one.total_output_tokens > one.completed and one.tpot.p50 < TOGETHER_MS]
    if together:
        notes.append(
            f"TPOT of {_ms(together[0].tpot.p50)} ms at {together[0].stage.name} is not a speed: the tokens of most "
            "answers arrived together. The server, or a proxy in front of it, buffers them; E2E is correct."
        )
    busy = [one for one in figures if one.completed and (one.cpu_share > _BUSY or one.lag.p99 > _LATE_MS)]
    if busy:
        one = max(busy, key=lambda worst: worst.cpu_share)
        notes.append(
            f"The load generator was busy at {one.stage.name}: {100 * one.cpu_share:.0f} % of a core, requests up to "
            f"{_ms(one.lag.p99)} ms late (p99). Latencies there may be partly its own."
        )
    return notes


def show_self_test(console: Console, tested: SelfTest) -> None:
    """Known latencies of the fake server beside the measured ones, and the cost of the load generator."""
    table = _table("load", "", "set ms", "measured ms", "error ms", "error", "")
    for check in tested.checks:
        verdict = "[green]ok[/green]" if check.is_good else "[red]off[/red]"
        figures = (
            f"{check.true_ms:.1f}",
            f"{check.seen_ms:.2f}",
            f"{check.error_ms:+.2f}",
            f"{100 * check.error:+.2f} %",
        )
        table.add_row(check.stage.name, check.name, *figures, verdict)
    console.print(table)
    cost = tested.cost
    console.print(
        f"The load generator needs {cost.paced_us:.0f} µs of CPU for a chunk that comes alone, "
        f"{cost.flooded_us:.1f} µs in a burst, and reads up to {cost.most_chunks_per_s:,.0f} chunks/s.",
        soft_wrap=True,
    )
    console.print(
        "Within 2 ms and 2 %."
        if tested.is_good
        else "Off by more than 2 ms or 2 %: is the machine busy with other work?",
        style="bold",
    )


def _latencies(figures: StageFigures) -> list[tuple[str, Distribution]]:
    return [("TTFT", figures.ttft), ("TPOT", figures.tpot), ("ITL", figures.itl), ("E2E", figures.e2el)]


def _table(first: str, *columns: str) -> Table:
    table = Table(first, box=None, pad_edge=False, padding=(0, 2))
    table.columns[0].no_wrap = True
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _ms(value: float) -> str:
    """Three significant digits: 1.23, 12.3, 123, 1,234."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bar(share: float) -> str:
    eighths = round(8 * _BAR * share)
    whole = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return whole.ljust(_BAR)
