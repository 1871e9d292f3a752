"""`qserve compare`: one model at several quantizations, side by side."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from qserve.cli.state import state_folder
from qserve.errors import UsageError, WorkerFailed
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.evaluation.compare import Candidate

__all__ = ["command"]

_POLL_S = 0.1


@click.command("compare")
@click.option("--model", required=True, help="A folder, a hub id, an alias, or demo.")
@click.option(
    "--quants", default="bf16,int8,4bit", show_default=True, help="What to compare; the first is the measure."
)
@click.option("--suite", default="offline", show_default=True, help="Tasks, by the name or the file of a suite.")
@click.option("--limit", type=click.IntRange(min=1), help="Items a task [all].")
@click.option("--seed", type=int, default=1234, show_default=True)
@click.option("--up-args", default="", help="Further flags of `qserve up`, for every quantization.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; one that exists is gone on with [by the names].")
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]")
def command(
    model: str, quants: str, suite: str, limit: int | None, seed: int, up_args: str, out: Path | None,
    state_dir: Path | None,
) -> None:  # fmt: skip
    """What is lost at 4 bit, and what is gained?

    Each quantization is planned, started, measured under a fixed load and evaluated on the same items, one after the
    other; what is finished is not done again.

    \b
    qserve compare --model demo --quants bf16,int8,4bit --suite offline
    qserve compare --model ./my-checkpoint --suite quick --limit 200

    Exit status: 0, 2 bad input, 5 a server did not start.
    """
    from qserve.evaluation import compare, suites
    from qserve.evaluation.harness import Asked

    names = tuple(dict.fromkeys(word.strip() for word in quants.split(",") if word.strip()))
    if len(names) < 2:
        raise UsageError(f"--quants {quants!r} names {len(names)}; it takes two or more, with commas between them")
    chosen = suites.load(suite)
    asked = Asked(chosen.tasks, limit or chosen.limit, chosen.num_fewshot, chosen.chat, seed)
    console = Console(highlight=False, soft_wrap=True)
    folder = out or state_folder(state_dir) / "compare" / f"{model.strip('./').replace('/', '--')}-{chosen.name}"
    for name in names:
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        _check_same(
            own, {"model": model, "tasks": list(asked.tasks), "limit": asked.limit, "seed": seed, "up": up_args}
        )
        if compare.is_complete(own):
            console.print(f"{name}: done before")
            continue
        with _served(model, name, up_args, own, console) as (url, start_s):
            compare.measure(name, url, "", asked, own, start_s, lambda answered, wanted: None)
    candidates = compare.candidates_of([folder / name for name in names])
    _show(console, candidates)
    console.print(compare.advice(candidates), style="bold")
    picture = folder / "pareto.svg"
    picture.write_text(_picture(model, chosen.name, candidates))
    console.print(f"picture: {picture}\nall of it: {folder}")


def _check_same(folder: Path, asked: dict[str, object]) -> None:
    """A folder is only gone on with for the same question."""
    file = folder / "asked.json"
    if file.is_file() and json.loads(file.read_text()) != asked:
        raise UsageError(f"{folder} holds another comparison ({file.read_text()}); name another folder with --out")
    file.write_text(json.dumps(asked))


@contextlib.contextmanager
def _served(model: str, quant: str, up_args: str, folder: Path, console: Console) -> Iterator[tuple[str, float]]:
    """`qserve up` as a user would start it: its URL, and the seconds until it was ready."""
    import shlex

    with tempfile.TemporaryDirectory(prefix="qserve-compare-") as private, (folder / "up.log").open("w") as log:
        ready = Path(private) / "ready.json"
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "qserve", "up", "--model", model, "--quant", quant, "--port", "0",
             "--ready-file", str(ready), "--state-dir", str(folder), *shlex.split(up_args)],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            console.print(f"{quant}: starting")
            while not ready.is_file():
                if process.poll() is not None:
                    raise WorkerFailed(f"{quant}: {_last_words(folder / 'up.log')}")
                time.sleep(_POLL_S)
            start_s = time.monotonic() - began
            console.print(f"{quant}: ready after {start_s:.1f} s; measuring")
            yield json.loads(ready.read_text())["url"], start_s
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("qserve: ")), lines[-1] if lines else "nothing")
    return f"`qserve up` did not start: {said.removeprefix('qserve: ')}"


def _show(console: Console, candidates: list[Candidate]) -> None:
    from qserve.evaluation.compare import main_score

    rows: dict[str, list[str]] = {
        "weights": [format_bytes(one.held_bytes) for one in candidates],
        "resident": [format_bytes(one.memory.get("resident_bytes") or 0) for one in candidates],
        "start": [f"{one.start_s:.1f} s" for one in candidates],
        "TTFT": [f"{one.load.ttft_ms:.1f} ms" for one in candidates],
        "TPOT": [f"{one.load.tpot_ms:.2f} ms" for one in candidates],
        "output": [f"{one.load.output_tokens_per_s:.1f} tokens/s" for one in candidates],
        **{
            task: [f"{main_score(one.result)[task]:.4f}" for one in candidates]
            for task in main_score(candidates[0].result)
        },
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("", no_wrap=True)
    for one in candidates:
        table.add_column(one.quant, justify="right", no_wrap=True)
    for name, figures in rows.items():
        table.add_row(name, *figures)
    console.print(table)
    for one in candidates[1:]:
        for task in one.diffs:
            better = sum(flip.is_better for flip in task.flips)
            pair, worse = f"{one.quant} against {candidates[0].quant}", len(task.flips) - better
            flipped = f"{len(task.flips)} of {task.num_items} flipped ({better} better, {worse} worse)"
            console.print(f"{pair}, {task.task}: {flipped}, p = {task.p_value:.3f}")


def _picture(model: str, suite: str, candidates: list[Candidate]) -> str:
    from qserve.evaluation.picture import Point, pareto_svg

    points = []
    for one in candidates:
        scores = [score for score in one.result.scores() if score.metric in ("acc", "exact_match", "acc_norm")]
        stderr = math.sqrt(sum((score.stderr or 0.0) ** 2 for score in scores)) / max(1, len(scores))
        points.append(Point(one.quant, one.held_bytes, one.accuracy, stderr, one.load.output_tokens_per_s))
    return pareto_svg(points, f"{model} on {suite}: accuracy over memory")
