"""Cards that the published wheels hold kernels for, by compute capability: the least one that runs.

Sources: PyTorch's RELEASE.md and its release scripts (pytorch#172352: Volta left the builds for CUDA 12.8 with 2.11;
pytorch#157517: those for CUDA 12.8 began at 7.0, those for 12.9 and 13 at 7.5, those for 12.6 at 5.0). Those of
bitsandbytes are in the rows of core/schemes.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from qserve.core.hardware import Device
from qserve.core.release import parse_release

__all__ = ["LEAST_OF_OLD_TORCH", "TESTED_TORCH", "least_of_torch", "shown", "too_old"]

Capability = tuple[int, int]

TESTED_TORCH = "2.13.0"
"""The torch that plans assume where no other is installed."""

LEAST_OF_OLD_TORCH: Capability = (5, 0)
"""Of the builds for CUDA 12.6, which PyTorch publishes beside the default ones up to 2.14."""
_OLD_BUILDS = ("+cu118", "+cu121", "+cu124", "+cu126")


def least_of_torch(version: str) -> Capability:
    """Of a torch as its package says it: "2.13.0" (the default build), "2.13.0+cu126"."""
    if version.endswith(_OLD_BUILDS):
        return LEAST_OF_OLD_TORCH
    is_newer = parse_release(version) >= (2, 11) or version.endswith(("+cu129", "+cu130", "+cu132"))
    return (7, 5) if is_newer else (7, 0)


def too_old(devices: Iterable[Device], least: Capability) -> Device | None:
    """The first card without kernels; one whose capability is not known is taken to have them."""
    return next((one for one in devices if one.compute_capability is not None and one.compute_capability < least), None)


def shown(capability: Capability | None) -> str:
    """As NVIDIA writes it: 7.5."""
    return ".".join(map(str, capability or ()))
