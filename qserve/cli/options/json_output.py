"""--json: one object on standard output, for programs; progress, notes and errors go to standard error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["add_json_flag", "print_json"]

Function = TypeVar("Function", bound=Callable[..., Any])


def add_json_flag(function: Function) -> Function:
    """Adds --json, as the keyword `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def print_json(value: Any) -> None:
    """The object, on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
