"""Which quantizations the transformers engine loads, and which it makes of 16-bit weights while loading them."""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.core.wheels import too_old

__all__ = ["has_kernels", "holds_fp8", "loads", "online_scheme", "pays", "quantizes", "runs_stored"]

_LOADED = frozenset(
    {"fp32", "bf16", "fp16", "fp8", "gptq-int8", "bnb-int8", "awq", "gptq-int4", "bnb-nf4", "bnb-nf4-single", "bnb-fp4"}
)
_MADE = frozenset({"bnb-int8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4"})
# On cards that hold it; asked for by the one name or the other, it has a scale a row (model/fp8/).
_MADE_FP8 = "fp8_per_channel"
_FP8 = frozenset({"fp8", _MADE_FP8})
_ON_CARDS_ONLY = frozenset({"gptq-int3", "gptq-int2"})


def loads(scheme: str) -> bool:
    """Whether a checkpoint that is stored so is worth taking in the place of the 16-bit one."""
    return scheme in _LOADED


def runs_stored(scheme: str, devices: tuple[Device, ...]) -> bool:
    """Whether it runs a checkpoint that is stored so on these cards, or on the CPU."""
    on_cpu = any(device.kind == "cpu" for device in devices)
    return has_kernels(scheme, devices) and not (on_cpu and scheme in _ON_CARDS_ONLY)


def has_kernels(scheme: str, devices: tuple[Device, ...]) -> bool:
    """Whether the wheels that compute it run on every card."""
    return too_old(devices, SCHEMES[scheme].least_card) is None


def quantizes(scheme: str, devices: tuple[Device, ...]) -> bool:
    """Whether it makes `scheme` while loading there."""
    return SCHEMES[scheme].bits >= 16 or online_scheme(scheme, devices) is not None


def online_scheme(scheme: str, devices: tuple[Device, ...]) -> CheckpointQuantization | None:
    """What it makes of 16-bit weights on `devices`; None of a scheme that it does not make."""
    if holds_fp8(scheme, devices):
        return SCHEMES[_MADE_FP8].made
    return SCHEMES[scheme].made if scheme in _MADE else None


def holds_fp8(scheme: str, devices: tuple[Device, ...]) -> bool:
    """Whether `scheme` is one in fp8 that every card multiplies by as it is held (model/fp8/)."""
    least = SCHEMES["fp8"].packed_from
    if scheme not in _FP8 or least is None:
        return False
    return all((device.compute_capability or (0, 0)) >= least for device in devices)


def pays(scheme: str, device: Device) -> bool:
    """Whether it has kernels there; on a CPU for a dense model's weights as they are stored, and for bitsandbytes'."""
    row = SCHEMES[scheme]
    return device.kind != "cpu" or row.bits >= 16 or row.by_bitsandbytes or row.in_panels
