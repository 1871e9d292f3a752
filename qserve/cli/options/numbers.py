"""Numbers that options take, with bounds beyond which none of them means anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["LARGEST", "Count", "FiniteRange", "number_option"]

# Nothing is counted beyond: the arithmetic after it would take minutes, or print lines of digits.
LARGEST = 2**31 - 1
_SHOWN_CHARS = 40
Function = TypeVar("Function", bound=Callable[..., Any])


class Count(click.IntRange):
    """click's IntRange, where no upper bound is given with one that every option has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if abs(number) > LARGEST:
            self.fail(f"{str(value)[:_SHOWN_CHARS]!r} is too large: at most {LARGEST:,}.", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """click's FloatRange lets `nan` through every bound, and `inf` and 1e300 where there is no upper one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        if abs(number) > LARGEST:
            self.fail(f"{str(value)[:_SHOWN_CHARS]!r} is too large: at most {LARGEST:,}.", param, ctx)
        return number


def number_option(flag: str, kind: click.ParamType, default: float, text: str) -> Callable[[Function], Function]:  # type: ignore[type-arg]
    """An option for a number that has a default, which its help shows."""
    return click.option(flag, type=kind, default=default, show_default=True, help=text)
