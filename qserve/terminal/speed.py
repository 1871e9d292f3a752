"""Terminal output of a plan's speed: latencies and rates with their bands, and a table of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from qserve.planner.plan import Suggestion
from qserve.service.layout.search import Layout
from qserve.terminal.bars import next_step, suggestion_list
from qserve.terminal.console import Hanging, console_of
from qserve.units import format_count, format_ms, format_rate

__all__ = ["show_cheapest", "show_speed"]

_MOST_ROWS = 8
_WIDE = 100
_IN_BAND_ONLY = "on average"
_BEHIND = "falls behind"
_TRADE_OFF = "best trade-off between one user's speed and the cards' throughput"
_OF_A_LOAD = "--users 20 plans the speed for 20 people"
_LEGEND_OF = {
    _BEHIND: "requests pile up: most of an answer's time is waiting",
    _IN_BAND_ONLY: "the targets are kept on average, not at the slow end of the estimate",
}


def show_speed(
    speed: dict[str, Any],
    explain: bool = False,
    console: Console | None = None,
    monthly: bool = False,
    takes_load: bool = True,
) -> None:
    """Print the figures of `Plan.speed` and the layouts that were simulated.

    `takes_load`: a load may be named; the last line tells how where none was, and the plan fits.
    """
    console = console or console_of()
    title = "Speed if it fitted" if speed.get("if_fitted") else "Speed"
    console.print(Hanging(f"{title}, {_load(speed['load'])}", "", "bold"))
    if speed["requests_per_s"]["value"]:
        console.print(_figures(speed, monthly))
    if speed.get("suggestions"):
        heading = f"What would {'keep the targets' if speed.get('targets') else 'help'}:"
        ways = [Suggestion(**way) for way in speed["suggestions"]]
        console.print(suggestion_list(heading, ways), soft_wrap=True)
    if speed["alternatives"]:
        is_assumed = speed["load"]["assumed"]
        console.print(_alternatives(speed["alternatives"], monthly, bool(speed.get("targets")), is_assumed))
        if len(speed["alternatives"]) > 1:
            console.print(Text(f" · = {_TRADE_OFF}", style="dim"))
    asks_load = speed["load"]["assumed"] and takes_load and not speed.get("if_fitted")
    notes = [*speed["notes"], *([_OF_A_LOAD] if asks_load else [])]
    for note in notes:
        console.print(Hanging(note, style="dim"))
    if explain and speed.get("explained"):
        console.print(Text("What its steps take:", style="bold"))
        for line in speed["explained"]:
            console.print(Hanging(line))


def show_cheapest(
    found: list[tuple[str, int, Layout]],
    first: str,
    console: Console | None = None,
    monthly: bool = False,
    explain: bool = False,
) -> None:
    """The ranking of --gpu any: layouts that carry the load first, cheapest first. `first` plans the first of them."""
    console = console or console_of()
    best = found[0][2]
    load = _load(best.speed.to_json()["load"])
    heading = f"{best.plan.model.id}, {load}: cheapest cards that keep up, then the rest"
    console.print(Hanging(heading, "", "bold"))
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")  # keeps a row within 80 columns
    price_of = "$/month" if monthly else "$/h"
    # Of so many users tokens/s are the same on every card that keeps up.
    of_users = monthly and any(one.price.per_user_and_month for _, _, one in found)
    rate = "$/user" if of_users else "tok/s"
    is_wide = console.width >= _WIDE  # else without the price of prompts
    prices = ("$/M in", "$/M out") if is_wide else ("$/M out",)
    for name in ("cards", "layout", "TTFT", "TPOT", rate, price_of, *prices, ""):
        side: Literal["left", "right"] = "left" if name in ("cards", "layout", "") else "right"
        table.add_column(name if is_wide else name.replace(" ", "\n"), justify=side, no_wrap=True)
    for key, count, layout in found:
        figures, price = layout.speed.figures, layout.price
        table.add_row(
            f"{count} × {key}",
            layout.name.replace(", 1 × TP", ", TP"),
            format_ms(figures.ttft_ms.mean),
            format_ms(figures.tpot_ms.mean),
            _dollars(price.per_user_and_month) if of_users else format_rate(figures.output_tokens_per_s),
            _dollars(price.per_month if monthly else price.per_hour),
            *([_dollars(price.per_million_input_tokens)] if is_wide else []),
            _dollars(price.per_million_output_tokens),
            _verdict(layout),
        )
    console.print(table)
    columns, tokens = ("in, out", "prompt and answer") if is_wide else ("out", "answer")
    legend = {"TP 2": "one server on 2 cards", f"$/M {columns}": f"price of a million {tokens} tokens"}
    legend |= {
        word: _LEGEND_OF[word] for word in dict.fromkeys(_verdict(layout) for *_, layout in found) if word in _LEGEND_OF
    }
    for word, meaning in legend.items():
        console.print(Hanging(f"{word} = {meaning}", "", "dim"))
    if explain:
        console.print(Text("What the steps of each take:", style="bold"))
        for key, count, layout in found:
            console.print(Hanging(f"{count} × {key}, {layout.name}: {'; '.join(_of_card(layout))}"))
    console.print(next_step("Plan the first of them:", first), soft_wrap=True)


def _of_card(layout: Layout) -> Iterator[str]:
    """The steps, and whose kernels they are."""
    step, prompt, *_ = layout.speed.explained
    yield from (step, prompt)
    like = layout.speed.replica.card.like
    yield f"estimated by the kernels of {like}" if like else "by this card's own kernels"


def _verdict(layout: Layout) -> str:
    if not layout.keeps_up:
        return _BEHIND
    if layout.kept >= 0.9:
        return "" if layout.kept_surely >= 0.9 else _IN_BAND_ONLY
    return f"{100 * layout.kept:.0f} % in time"


def _load(load: dict[str, Any]) -> str:
    lengths = f"{format_count(load['input'])} tokens in, {format_count(load['output'])} out"
    if load["assumed"]:
        servers = load["concurrency"]
        what = "one request at a time" if servers == 1 else f"one request at a time on each of {servers} servers"
        return f"{what} ({lengths})"
    if "rps" in load:
        return f"{load['rps']:g} requests/s ({lengths})"
    name = next(key for key in ("users", "burst", "trace", "concurrency") if key in load)
    words = {"users": "users", "burst": "requests at once", "trace": "requests of a trace", "concurrency": "streams"}
    return f"{format_count(load[name])} {words[name]} ({lengths})"


def _figures(speed: dict[str, Any], monthly: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    is_spread = speed["load"].get("concurrency") != 1
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2e_ms")):
        one = speed[key]
        band = f"{format_ms(one['low'])} to {format_ms(one['high'])}"
        spread = _percentiles(one) if is_spread else ""
        grid.add_row(Text(name, style="bold"), f"{format_ms(one['mean'])} mean", Text(f"({band})", style="dim"), spread)
    tokens, requests, most = speed["output_tokens_per_s"], speed["requests_per_s"], speed["max_rps"]
    grid.add_row(
        Text("rate", style="bold"),
        f"{format_rate(tokens['value'])} tokens/s",
        Text(f"({format_rate(tokens['low'])} to {format_rate(tokens['high'])})", style="dim"),
        f"{_two(requests['value'])} requests/s",
    )
    if most:
        grid.add_row(
            Text("at most", style="bold"),
            f"{_two(most['value'])} requests/s",
            Text(f"({_two(most['low'])} to {_two(most['high'])})", style="dim"),
            "within the targets" if speed.get("targets") else "",
        )
    targets = speed.get("targets")
    if targets:
        style = "green" if targets["met"] else "red"
        grid.add_row(Text("targets", style="bold"), Text(f"{100 * targets['kept_share']:.0f} % in time", style=style))
    if speed.get("price_per_hour") is not None:
        price = f"${speed['price_per_month']:.0f} a month" if monthly else f"${speed['price_per_hour']:.2f} an hour"
        user = speed.get("price_per_user_and_month")
        each = f"${user:.2f} a user and month" if user else ""
        grid.add_row(Text("price", style="bold"), price, "", each)
        for text, side in (("prompt", "input"), ("answer", "output")):
            grid.add_row(
                "", f"${_dollars(speed[f'price_per_million_{side}_tokens'])}", "", f"per million {text} tokens"
            )
    energy = speed.get("price_kwh_per_million_output_tokens")
    if energy:
        # At the cards' power limit, which they seldom reach.
        grid.add_row(Text("energy", style="bold"), f"≤ {_dollars(energy)} kWh", "", "per million answer tokens")
    return grid


def _alternatives(rows: list[dict[str, Any]], monthly: bool, with_targets: bool, is_assumed: bool) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("layout", no_wrap=True)
    in_time = ("in time",) if with_targets else ()
    rate = "max req/s" if is_assumed else "req/s"
    for name in ("cards", "TTFT", "TPOT", "tokens/s", rate, *in_time, "$ a month" if monthly else "$/h"):
        table.add_column(name, justify="right")
    for row in _in_order(rows)[:_MOST_ROWS]:
        price = row["price_per_month"] if monthly else row["price_per_hour"]
        table.add_row(
            row["layout"] + (" ·" if row["pareto"] else ""),
            f"{row['cards']}",
            format_ms(row["ttft_ms"]),
            format_ms(row["tpot_ms"]),
            format_rate(row["output_tokens_per_s"]),
            _two((row["max_rps"] if is_assumed else row["requests_per_s"]) or 0.0),
            *([f"{100 * row['kept_share']:.0f} %"] if with_targets else []),
            _dollars(price),
            style="bold" if row["chosen"] else "",
        )
    return table


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chosen one, its quantization on other numbers of cards, what nothing beats, the rest by time to an answer."""
    chosen = next((row for row in rows if row["chosen"]), rows[0])
    alike = {row["cards"]: row for row in reversed(rows) if row["quant"] == chosen["quant"]}
    alike.pop(chosen["cards"], None)
    kept = [id(row) for row in alike.values()]
    return sorted(rows, key=lambda row: (not row["chosen"], id(row) not in kept, not row["pareto"]))


def _percentiles(one: dict[str, Any]) -> str:
    """With one unit for all where it is the same: a row must fit 80 columns."""
    texts = {key: format_ms(one[key]) for key in ("p50", "p90", "p99")}
    unit = texts["p99"].partition(" ")[2]
    short = {key: text.removesuffix(f" {unit}") if key != "p99" else text for key, text in texts.items()}
    return ", ".join(f"{key} {text}" for key, text in short.items())


def _two(per_second: float) -> str:
    """Requests a second: 85, 21.3, 0.51, 0.0021."""
    return (
        f"{per_second:.1f}" if per_second >= 10 else f"{per_second:.2f}" if per_second >= 0.1 else f"{per_second:.2g}"
    )


def _dollars(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
