"""--device-map: a word, or a file of modules and devices as accelerate writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from qserve.engines.transformers.plan.device_map import Mode
from qserve.engines.transformers.plan.module_map import ModuleMap
from qserve.errors import UsageError
from qserve.yaml_errors import yaml_problem

__all__ = ["DeviceMapParam"]


class DeviceMapParam(click.ParamType):  # type: ignore[type-arg]
    """auto, balanced, sequential, or the path of a JSON or YAML file."""

    name = "auto|balanced|sequential|FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, ModuleMap) or value in get_args(Mode):
            return value
        try:
            return _read(Path(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _read(path: Path) -> ModuleMap:
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
