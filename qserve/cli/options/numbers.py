"""Number types of options, with upper bounds beyond which no value makes sense."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["LARGEST", "Count", "FiniteRange", "Release", "number_option"]

# Larger numbers would make the arithmetic take minutes, or print lines of digits.
LARGEST = 2**31 - 1
_SHOWN_CHARS = 40
Function = TypeVar("Function", bound=Callable[..., Any])


class Count(click.IntRange):
    """click's IntRange with a common upper bound where none is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if abs(number) > LARGEST:
            self.fail(f"{str(value)[:_SHOWN_CHARS]!r} is too large: at most {LARGEST:,}.", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """click's FloatRange without `nan`, `inf` and huge values, which it lets through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        if abs(number) > LARGEST:
            self.fail(f"{str(value)[:_SHOWN_CHARS]!r} is too large: at most {LARGEST:,}.", param, ctx)
        return number


class Release(click.ParamType):  # type: ignore[type-arg]
    """A library's release as numbers: 1.16, 0.24.0."""

    name = "release"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        text = str(value).strip().removeprefix("v")
        if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", text) is None:
            self.fail(f"{str(value)[:_SHOWN_CHARS]!r} is not a release; write for example 1.16 or 0.24.0", param, ctx)
        return tuple(int(part) for part in text.split("."))


def number_option(flag: str, kind: click.ParamType, default: float, text: str) -> Callable[[Function], Function]:  # type: ignore[type-arg]
    """An option for a number that has a default, which its help shows."""
    return click.option(flag, type=kind, default=default, show_default=True, help=text)
