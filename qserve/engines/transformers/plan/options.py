"""The options that only the transformers engine reads: where layers may lie, and what a CPU rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from qserve.engines.transformers.plan.activations import CpuActivations
from qserve.engines.transformers.plan.device_map import Mode, Place
from qserve.engines.transformers.plan.module_map import ModuleMap, parse_limits
from qserve.planner.options import EngineOptions, option

__all__ = ["Offload", "TransformersOptions"]

Offload = Literal["none", "cpu", "disk"]


@dataclass(frozen=True)
class TransformersOptions(EngineOptions):
    """`offload` allows layers in RAM, or in RAM and on disk. `device_map` says how layers are placed, or where each is.

    `max_memory` is what may be taken of each device in all, "0=20GiB,cpu=64GiB": cards it does not name stay free.
    `cpu_activations`: see `activations.py`.
    """

    engine: ClassVar[str] = "transformers"

    offload: Offload = option(
        "choice",
        "Let the transformers engine put layers in RAM, or in RAM and on disk.",
        "none",
        choices=("none", "cpu", "disk"),
    )
    device_map: Mode | ModuleMap | None = option(
        "device map",
        "How the transformers engine places layers on devices: auto, balanced, sequential, or a JSON or YAML file of "
        "modules and devices.",
    )
    max_memory: str | None = option(
        "text", "Memory that the transformers engine may use per device: 0=20GiB,1=20GiB,cpu=64GiB [all that is free]."
    )

    cpu_activations: CpuActivations = option(
        "choice",
        "On a CPU, activations with weights of 4 and 8 bits: int8 rounds them in groups of 64 (prompts and batches "
        "are faster), exact leaves them in 16 bit [int8 where the weights lose more].",
        "auto",
        choices=("auto", "exact", "int8"),
    )

    def __post_init__(self) -> None:
        """Raises UsageError for limits that can't be read."""
        if self.max_memory is not None:
            parse_limits(self.max_memory)

    @property
    def memory_limits(self) -> dict[Place, int] | None:
        """Bytes that --max-memory allows on each place that it names."""
        return None if self.max_memory is None else parse_limits(self.max_memory)

    def offloads_to(self, place: Literal["cpu", "disk"]) -> bool:
        """Whether layers may lie there: by --offload, or because a map or a limit names it."""
        by_flag = self.offload == "disk" or (self.offload == "cpu" and place == "cpu")
        by_limit = place in (self.memory_limits or {})
        by_map = isinstance(self.device_map, ModuleMap) and place in dict(self.device_map.places).values()
        return by_flag or by_limit or by_map
