"""What is asked of speed: a load, latency targets, replicas, prices; and what is known of the machine."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.encodings import read_text
from qserve.errors import UsageError
from qserve.planner.speed.calibration import NOTHING_MEASURED, Measured
from qserve.planner.speed.figures import NO_TARGETS, Targets
from qserve.planner.speed.load import THINK_S, Arrival, Load, read_trace

__all__ = ["NO_LOAD", "SpeedRequest", "price_file", "speed_request_of"]


@dataclass(frozen=True)
class SpeedRequest:
    """`load` None: one stream, on the layout that memory chose.

    `prices` is the user's table of USD an hour by card, None: configs/prices.toml. A plan of a service adds `replicas`,
    the number that is fixed, and what this machine has `measured`.
    """

    load: Load | None = None
    targets: Targets = NO_TARGETS
    replicas: int | None = None
    prices: dict[str, Any] | None = None
    measured: Measured = NOTHING_MEASURED

    @property
    def named_load(self) -> Load:
        """The load, or one stream for every replica."""
        return self.load or Load(concurrency=self.replicas or 1)


NO_LOAD = SpeedRequest()


def speed_request_of(values: Mapping[str, Any]) -> SpeedRequest:
    """The load and targets among a command's keyword arguments; `load` is None if none was named.

    Raises UsageError for two loads at once, and for targets without a load.
    """
    named = {name: values[name] for name in ("concurrency", "burst", "rps", "users") if values.get(name)}
    lengths = {name: values[name] for name in ("input_tokens", "output_tokens") if values.get(name)}
    targets = Targets(values.get("ttft"), values.get("tpot"))
    prices = price_file(Path(values["prices"])) if values.get("prices") else None
    if not (named or lengths or values.get("trace") or targets):
        return SpeedRequest(prices=prices)
    if values.get("think_time") and "users" not in named:
        raise UsageError("--think-time is for --users; give their number, or leave it out")
    trace = _trace(Path(values["trace"])) if values.get("trace") else ()
    if trace:
        count = len(trace)
        mean = {name: sum(getattr(one, name) for one in trace) // count for name in ("input_tokens", "output_tokens")}
        lengths = {name: max(1, value) for name, value in mean.items()}
    load = Load(
        **lengths,
        **named,
        trace=trace,
        num_prompts=values.get("num_prompts"),
        prefix_share=values.get("prefix_share") or 0.0,
        think_s=values.get("think_time") or THINK_S,
    )
    return SpeedRequest(load, targets, prices=prices)


def _trace(path: Path) -> tuple[Arrival, ...]:
    return read_trace(read_text(path, "a file of JSON lines", f"--trace {path}"), str(path))


def price_file(path: Path) -> dict[str, Any]:
    """The table of a --prices file: USD an hour by card. Raises UsageError if it is not such a file."""
    try:
        cards = tomllib.loads(read_text(path, "a TOML file", f"--prices {path}")).get("cards")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--prices {path} is not valid TOML: {error}") from None
    if not isinstance(cards, dict) or not cards:
        raise UsageError(f"--prices {path} has no table [cards]; write for example: [cards] rtx-4090 = 0.35")
    for key, row in cards.items():
        price = row.get("usd_per_hour") if isinstance(row, dict) else row
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not price > 0:
            raise UsageError(f"--prices {path}: {key} = {row!r}; a price is USD an hour above 0")
    return cards
