"""What stands against the transformers engine on this machine: packages that a quantization needs."""

from __future__ import annotations

from qserve.core.hardware import Hardware
from qserve.core.schemes import SCHEMES
from qserve.core.wheels import least_of_torch, shown, too_old
from qserve.detect.compiler import INSTALL_COMPILER, compiler_command
from qserve.detect.engine_checks import EngineChecks
from qserve.detect.packages import Packages
from qserve.engines.transformers.plan.packages import lacking
from qserve.engines.transformers.plan.schemes import runs_stored
from qserve.packages import SERVE_PACKAGES, install_command
from qserve.planner.plan import Plan

__all__ = ["TransformersChecks"]

_NEEDED = {"torch", "transformers", "accelerate"}


class TransformersChecks(EngineChecks):
    """See `EngineChecks`."""

    def installed(self, packages: Packages) -> str:
        versions = packages.versions
        return f"{versions.get('transformers', 'not installed')}, torch {versions.get('torch', 'not installed')}"

    def why_not_installed(self, hardware: Hardware, packages: Packages) -> str | None:
        if not set(packages.versions) >= _NEEDED:
            return install_command(*SERVE_PACKAGES)
        return _why_no_kernels(hardware, packages.versions["torch"])

    def why_not_served(self, plan: Plan, packages: Packages) -> str | None:
        scheme = plan.quant.scheme
        if plan.on_cpu and SCHEMES[scheme].in_panels:
            return _why_not_compiled()
        missing = _missing(scheme, packages)
        return f"{scheme} on the transformers engine needs {install_command(*missing)}" if missing else None

    def why_not_stored(self, scheme: str, hardware: Hardware, packages: Packages) -> str | None:
        row = SCHEMES[scheme]
        if not hardware.devices and row.in_panels:
            return _why_not_compiled()
        if not runs_stored(scheme, hardware.devices or (hardware.cpu_device,)):
            return "no kernels for this card" if hardware.devices else "no kernels for this CPU"
        if hardware.devices and row.packed_from is not None and _capability(hardware) < row.packed_from:
            return f"needs a card of compute capability {shown(row.packed_from)}"
        missing = _missing(scheme, packages)
        return install_command(*missing) if missing else None


def _missing(scheme: str, packages: Packages) -> tuple[str, ...]:
    return lacking(scheme, Hardware((), 0, 0, 0, packages=frozenset(packages.versions)))


def _why_no_kernels(hardware: Hardware, torch: str) -> str | None:
    """Of a build for cards; one for the CPU has its own message."""
    least = (0, 0) if torch.endswith("+cpu") else least_of_torch(torch)
    old = too_old(hardware.devices, least)
    if old is None:
        return None
    return (
        f"{old.name} has compute capability {shown(old.compute_capability)}, and torch {torch} has kernels from "
        f"{shown(least)} on; its build for CUDA 12.6 (index cu126) has them, and --gpu none stays on the CPU"
    )


def _why_not_compiled() -> str | None:
    return (
        None
        if compiler_command()
        else f"matrix products on a CPU are compiled, and there is no C compiler; {INSTALL_COMPILER}"
    )


def _capability(hardware: Hardware) -> tuple[int, int]:
    return min((device.compute_capability or (0, 0) for device in hardware.devices), default=(0, 0))
