"""Options that `plan` and `up` share, made from the fields of the request and of each engine's options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from qserve.cli.options.completions import complete_gpu
from qserve.cli.options.numbers import Count, FiniteRange
from qserve.engines.transformers.plan.device_map import Mode
from qserve.engines.transformers.plan.module_map import ModuleMap
from qserve.errors import UsageError
from qserve.planner.engine import engine_named, engine_names
from qserve.planner.options import Kind, Option
from qserve.service import request as service
from qserve.units import parse_bytes
from qserve.yaml_errors import yaml_problem

__all__ = ["SIZE", "is_plan_option", "plan_option", "plan_options"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Bytes(click.ParamType):  # type: ignore[type-arg]
    """A size in memory: 23.6GiB, 512MiB, plain bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


SIZE = _Bytes()
"""The type of an option that takes a size in memory."""


class _EngineName(click.ParamType):  # type: ignore[type-arg]
    """An engine that is registered."""

    name = "engine"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(engine_names())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return engine_named(str(value)).name
        except UsageError:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, engine_names()))}.", param, ctx)


class _DeviceMap(click.ParamType):  # type: ignore[type-arg]
    """auto, balanced, sequential, or the path of a JSON or YAML file."""

    name = "auto|balanced|sequential|FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, ModuleMap) or value in get_args(Mode):
            return value
        try:
            return _module_map(Path(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _module_map(path: Path) -> ModuleMap:
    import yaml  # JSON is YAML as well

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        words = ", ".join(get_args(Mode))
        raise UsageError(
            f"--device-map {path}: {reason}; it takes {words}, or a JSON or YAML file of modules and devices"
        ) from error
    except yaml.YAMLError as error:
        raise UsageError(f"--device-map {path}: is neither JSON nor YAML: {yaml_problem(error)}") from error
    return ModuleMap.parse(data, str(path))


_TYPES: dict[Kind, Any] = {
    "text": str,
    "names": str,
    "count": Count(min=1),
    "number": Count(min=0),
    "share": FiniteRange(0, 1, min_open=True),
    "bytes": SIZE,
    "engine": _EngineName(),
    "device map": _DeviceMap(),
}

_NO_LEARN = click.option(
    "--no-learn",
    is_flag=True,
    envvar="QSERVE_NO_LEARN",
    help="Plan without what earlier runs on this machine measured (qserve runs residuals).",
)
_GPU = click.option(
    "--gpu",
    shell_complete=complete_gpu,
    help="Cards to plan for, in place of this machine's: rtx-4090:2, or memory=23.6GiB,sm=128; none: the CPU.",
)


def plan_options(function: Function) -> Function:
    """Adds every option of a `PlanRequest` and of each engine, --gpu and --no-learn."""
    for decorate in reversed([_GPU, *map(_click_option, service.plan_options()), _NO_LEARN]):
        function = decorate(function)
    return function


def plan_option(name: str) -> Callable[[Function], Function]:
    """A single option of a plan by field name, for commands that load a model and need few of them."""
    return _click_option(next(one for one in service.plan_options() if one.name == name))


def is_plan_option(name: str) -> bool:
    """Whether a parameter of a command is an option of a `PlanRequest` or of an engine."""
    return any(one.name == name for one in service.plan_options())


def _click_option(one: Option) -> Callable[[Function], Function]:
    if one.kind == "flag":
        return click.option(one.flag, is_flag=True, help=one.help)
    if one.kind == "switch":
        return click.option(f"{one.flag}/--no-{one.flag[2:]}", default=None, help=one.help)
    kind = click.Choice(one.choices) if one.kind == "choice" else _TYPES[one.kind]
    shown = isinstance(one.default, str)
    return click.option(one.flag, type=kind, default=one.default, show_default=shown, help=one.help)
