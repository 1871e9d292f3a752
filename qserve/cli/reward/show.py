"""What `score` and `eval-reward` print at their end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from qserve.cli.command_line import shell_text
from qserve.terminal.console import Hanging, Items, console_of
from qserve.units import format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from qserve.reward.evaluation.accuracy import Accuracy, PreferenceReport
    from qserve.reward.evaluation.calibration import Calibration
    from qserve.reward.evaluation.length_bias import LengthBias

__all__ = ["show_against", "show_attributes", "show_next", "show_preferences", "show_quality", "show_score"]


def show_score(document: Mapping[str, Any], flags: Sequence[str]) -> None:
    """On standard error: rows may go to standard output. `flags`: what makes another command ask the same rewards."""
    console = console_of(stderr=True)
    for marker, items in _score_lines(document):
        console.print(Items(items, marker))
    if document["has_preferences"]:
        _show_command(console, "Next   ", ["eval-reward", document["file"], *flags])


def _show_command(console: Console, marker: str, words: Sequence[str]) -> None:
    """In one line, however long: it can be copied."""
    console.print(f"{marker}{shell_text(['qserve', *words])}", soft_wrap=True, markup=False)


def _score_lines(document: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    scored, before = document["num_rows"] - document["num_failed_rows"], document["num_kept_rows"]
    earlier = [f"{before:,} of them in an earlier run"] if before else []
    yield "Scored ", [f"{scored:,} of {document['num_rows']:,} rows", *earlier]
    yield (
        "Time   ",
        [
            format_seconds(document["duration_s"]),
            f"{format_count(document['num_texts'])} texts",
            f"{format_count(document['num_tokens'])} tokens",
            f"{format_rate(document['tokens_per_s'])} tokens/s",
        ],
    )
    if document["num_truncated"]:
        yield "Cut    ", [f"{document['num_truncated']:,} texts were longer than the limit (--truncate)"]
    yield "Model  ", [document["model"], *_how(document["meta"])]
    if document["output"]:
        yield "Rows   ", [document["output"]]


def _how(meta: Mapping[str, Any]) -> list[str]:
    """Without what is empty, and hashes: --json has them."""
    shown = [f"{name} {meta[name]}" for name in ("pooling", "dtype", "quant", "max_length") if meta.get(name)]
    weights = meta.get("weights") or {}
    parts = [f"weights {', '.join(f'{name} {weight:g}' for name, weight in weights.items())}"] if weights else []
    return [*([meta["format"]] if "format" in meta else []), *(one for one in shown if one != "quant none"), *parts]


def show_preferences(report: PreferenceReport, name: str, file: str) -> None:
    """Accuracy, by subset where there are several, and the margins."""
    from qserve.reward.evaluation.accuracy import histogram

    console, overall = console_of(), report.overall
    what = "comparisons" if report.shape == "rm-bench" else "preferences"
    console.print(f"[bold]{name} on {file}[/bold]", soft_wrap=True)
    right = f"{_percent(overall.accuracy)} right ({overall.num_right:,} of {overall.num_asked:,} {what})"
    guessing = f"guessing gets {_percent(report.chance)}"
    console.print(Items([right, f"95 % interval {_interval(overall)}", guessing], "  "))
    if overall.num_tied:
        ties = "ties (equal texts or equal rewards), which count" if overall.num_tied > 1 else "tie, which counts"
        console.print(Items([f"{overall.num_tied:,} {ties} as not right"], "  "))
    if len(report.subsets) > 1 or report.levels:
        console.print()
        console.print(_subsets(report))
    if len(report.subsets) > 1:
        console.print(f"  mean over subsets {_percent(report.mean_of_subsets)}")
    console.print("\n[bold]Margins[/bold]  lowest chosen reward minus highest rejected one")
    for line in histogram(report.margins):
        console.print(line, markup=False, soft_wrap=True)


def _subsets(report: PreferenceReport) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in ("", "right", "of", "ties", "accuracy", "95 % interval", "margin"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.columns[0].overflow = "fold"
    for row in (*report.subsets, *report.levels):
        counts = (f"{row.num_right:,}", f"{row.num_asked:,}", f"{row.num_tied:,}")
        table.add_row(row.name, *counts, _percent(row.accuracy), _interval(row), f"{row.mean_margin:.3g}")
    return table


def show_attributes(each: Sequence[Accuracy]) -> None:
    """What each attribute alone would get right."""
    console = console_of()
    if each:
        console.print("\n[bold]Each attribute alone[/bold]")
    for one in each:
        about = [f"right {_percent(one.accuracy)} ({_interval(one)})", f"{one.num_tied:,} ties"]
        console.print(Items([f"{one.name}: {about[0]}", about[1], f"mean margin {one.mean_margin:.3f}"], "  "))


def show_quality(sure: Calibration, bias: LengthBias) -> None:
    """Calibration, and length bias."""
    console = console_of()
    console.print(
        f"\n[bold]Calibration[/bold]  how often it is right, by how sure it is\n"
        f"  expected error {sure.error:.3f}, log loss {sure.log_loss:.3f}"
    )
    for one in sure.bins:
        console.print(
            f"  {100 * one.low:.0f} to {100 * one.high:.0f} % sure: right {_percent(one.accuracy)} of {one.count:,}"
        )
    correlation = "none" if math.isnan(bias.correlation) else f"{bias.correlation:.3f}"
    console.print(
        f"\n[bold]Length bias[/bold]  rank correlation of reward and tokens {correlation}\n"
        f"  right where the chosen answer is longer: {_share(bias.accuracy_longer, bias.num_longer)}\n"
        f"  right where it is shorter: {_share(bias.accuracy_shorter, bias.num_shorter)}"
    )


def show_against(against: Mapping[str, Any]) -> None:
    """How far a second model agrees."""
    correlation = against["rank_correlation"]
    items = (
        f"{_percent(against['decided_alike'])} of preferences decided alike",
        f"rank correlation {'none' if correlation is None else f'{correlation:.3f}'}",
        f"its accuracy {_percent(against['accuracy'])}",
    )
    console = console_of()
    console.print(f"\n[bold]Against {against['url']}[/bold]", soft_wrap=True)
    console.print(Items(items, "  "))


def show_next(report: PreferenceReport, flags: Sequence[str], to_serve: Sequence[str] | None) -> None:
    """What to do with such a model; `flags` name it for `reward check`, `to_serve` for `up` (None: it is served)."""
    console = console_of()
    console.print()
    if report.overall.low <= report.chance:
        console.print(
            Hanging(
                f"Not shown to be better than guessing: the 95 % interval begins at {_percent(report.overall.low)}, "
                f"and guessing gets {_percent(report.chance)}. Check that training used the same chat template, then "
                "train on more pairs.",
                "Warning  ",
                style="yellow",
            )
        )
        _show_command(console, "Next     ", ["reward", "check", *flags])
    elif to_serve is not None:
        _show_command(console, "Next     ", ["up", *to_serve])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _interval(one: Accuracy) -> str:
    return f"{100 * one.low:.1f} – {100 * one.high:.1f} %"


def _share(share: float | None, count: int) -> str:
    return f"{_percent(share)} of {count:,}" if share is not None else "there is none"
