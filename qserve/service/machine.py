"""The machine that a service is planned for: this one, one with described cards, or a node of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qserve.core.hardware import Hardware
from qserve.core.plan_only import backend_of
from qserve.errors import UsageError
from qserve.planner.memory.host import with_host

if TYPE_CHECKING:
    from qserve.detect.packages import Packages

__all__ = ["Machine", "hardware_of", "refuse_to_serve"]


@dataclass(frozen=True)
class Machine:
    """Where a service runs.

    Attributes:
        hardware: its cards, RAM and cores.
        packages: what is installed there; None: not known, every engine is taken to be there.
        is_here: earlier runs of this machine measured it.
        serves: the service is started on it. What can be planned but not served is an error then; else a sentence.
        is_driver: the gateway is a driver of a Ray cluster.
    """

    hardware: Hardware
    packages: Packages | None = None
    is_here: bool = False
    serves: bool = False
    is_driver: bool = False

    @classmethod
    def named(cls, gpu: str | None, *, serves: bool = False) -> Machine:
        """This machine; with `gpu` the described cards in the place of its own (`none`: it stays on its CPU)."""
        hardware = hardware_of(gpu)
        is_here = gpu in (None, "none")
        packages = _installed() if serves or (is_here and hardware.packages is not None) else None
        return cls(hardware, packages, is_here, serves)

    @classmethod
    def node(cls, hardware: Hardware) -> Machine:
        """A node of a Ray cluster, on which the driver's packages are installed as well."""
        return cls(hardware, _installed(), serves=True, is_driver=True)

    def with_service(self, has_ui: bool, num_gateways: int, min_free_bytes: int | None = None) -> Hardware:
        """The hardware with the RAM that the service's other processes hold, and what stays free of it.

        `qserve.planner.memory.host`, `qserve.planner.memory.reserve`.
        """
        return with_host(self.hardware, has_ui, num_gateways, self.is_driver, min_free_bytes)


def _installed() -> Packages:
    from qserve.detect.packages import Packages  # takes a tenth of a plan's time

    return Packages.installed()


def refuse_to_serve(hardware: Hardware) -> None:
    """Raises UsageError where the machine has a card that no engine of qserve runs on."""
    device = hardware.plan_only
    if device is not None:
        raise UsageError(
            f"{backend_of(device.kind).why_no_engine(device.name)}; `qserve plan` says what fits there, and --gpu none "
            "serves on the CPU"
        )


def hardware_of(gpu: str | None) -> Hardware:
    """This machine; with `gpu`, the described cards instead of its own (`none`: no card)."""
    from qserve.core.hardware import parse_gpu
    from qserve.detect import detect

    if gpu is None:
        return detect()
    if gpu == "none":
        return replace(detect(), devices=(), notes=())
    return replace(detect(is_described=True), devices=parse_gpu(gpu), notes=(), packages=None)
