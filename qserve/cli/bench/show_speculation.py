"""The output of `qserve bench --compare-spec`: a table that fits 80 columns, the verdict, and the next command."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from qserve.bench.speculation import LoadKey, Setting
from qserve.cli.bench.speculation import Compared
from qserve.terminal.console import Hanging

__all__ = ["show_speculation"]


def show_speculation(console: Console, compared: Compared) -> None:
    """A row for each load and setting: tokens a second and the gain, what was accepted, and tokens a step."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("prompt", "streams"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("drafts", no_wrap=True)
    for name in ("tokens/s", "gain", "accepted", "a step", "TPOT ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for key in compared.plain.loads:
        length = "file" if key.input_len is None else f"{key.input_len:,}"
        head = (length, str(key.streams))
        for one in (compared.plain, *compared.others):
            table.add_row(*head, *_cells(one, compared.plain, key))
            head = ("", "")
    console.print(table)
    for sentence in (*compared.verdict.sentences, *(f"not tried, {why}" for why in compared.skipped)):
        console.print(Hanging(sentence, ""))
    if compared.is_synthetic:
        note = "What is accepted depends on the text: these are random words. --dataset FILE measures with your own"
        console.print(Hanging(note))
    console.print(f"Next    {compared.next_command}", markup=False, soft_wrap=True)


def _cells(setting: Setting, plain: Setting, key: LoadKey) -> tuple[str, ...]:
    one, gain = setting.loads[key], setting.gains(plain).get(key)
    accepted, a_step = one.acceptance, one.tokens_per_step
    return (
        setting.name,
        _rate(one.tokens_per_s),
        "" if gain is None or setting is plain else f"{100 * (gain - 1):+.0f} %",
        "" if accepted is None else f"{100 * accepted:.0f} %",
        "" if a_step is None else f"{a_step:.2f}",
        "" if one.tpot_ms is None else f"{one.tpot_ms:.1f}",
    )


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.1f}"
