"""What a layout costs: per hour, per million tokens, per user and month; and the energy behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from qserve.core.facts import load as load_table
from qserve.core.hardware import Device
from qserve.planner.speed.estimate import SpeedEstimate
from qserve.planner.speed.terms.card import card_of

__all__ = ["HOURS_A_MONTH", "Price", "hourly_price", "hourly_price_of", "price_of", "price_table"]

HOURS_A_MONTH = 730
_BUSY_POWER_SHARE = 0.8
"""Of the board's limit that a serving card draws; the limit where the machine is compute-bound all the time."""


@dataclass(frozen=True)
class Price:
    """USD and kWh at the load. None where no hourly price of the card is known."""

    per_hour: float | None
    per_million_input_tokens: float | None
    per_million_output_tokens: float | None
    per_month: float | None
    per_user_and_month: float | None
    kwh_per_million_output_tokens: float | None

    def to_json(self) -> dict[str, float | None]:
        """The fields of an alternative."""
        return {f"price_{name}": None if value is None else round(value, 4) for name, value in vars(self).items()}


def hourly_price(device: Device, prices: dict[str, Any] | None = None) -> float | None:
    """USD an hour of one card: from the user's table, else configs/prices.toml."""
    return hourly_price_of(device.known_as, prices)


def hourly_price_of(name: str, prices: dict[str, Any] | None = None) -> float | None:
    """The same of the card that calls itself `name`."""
    table = prices if prices is not None else load_table("prices")["cards"]
    row = table.get(_key(name), table.get(name))
    value = row.get("usd_per_hour") if isinstance(row, dict) else row
    return None if value is None else float(value)


def price_of(device: Device, cards: int, speed: SpeedEstimate, prices: dict[str, Any] | None = None) -> Price:
    """The price of `cards` cards that answer `speed`.

    Input and output share an hour's price by the time that goes into prompts and into answers.
    """
    card_price, figures, load = hourly_price(device, prices), speed.figures, speed.load
    per_hour = None if card_price is None else card_price * cards
    users = load.users
    share = min(max(figures.prefill_share, 0.0), 1.0)
    output = figures.output_tokens_per_s * 3600 / 1e6
    power_w = card_of(device).power_w * cards * _BUSY_POWER_SHARE
    is_priced = per_hour is not None and output > 0
    return Price(
        per_hour=per_hour,
        per_million_input_tokens=per_hour * share / (output * load.input_tokens / load.output_tokens)
        if is_priced and per_hour is not None
        else None,
        per_million_output_tokens=per_hour * (1 - share) / output if is_priced and per_hour is not None else None,
        per_month=None if per_hour is None else per_hour * HOURS_A_MONTH,
        per_user_and_month=per_hour * HOURS_A_MONTH / users if per_hour is not None and users else None,
        kwh_per_million_output_tokens=power_w / 1000 / output if power_w and output > 0 else None,
    )


@cache
def _key(name: str) -> str:
    return next((key for key, row in load_table("gpus")["gpus"].items() if row["name"] == name), "")


def price_table(prices: dict[str, Any] | None = None) -> dict[str, Any]:
    """USD an hour by card: the user's, else configs/prices.toml."""
    return prices if prices is not None else dict(load_table("prices")["cards"])
