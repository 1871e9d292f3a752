"""Which quantizations the transformers engine loads, and which it makes of 16-bit weights while loading them."""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.core.quantization import SCHEMES, CheckpointQuantization
from qserve.planner.memory.held import READ_AS_STORED

__all__ = ["loads", "online_scheme", "pays", "quantizes"]

_STORED = (
    "fp32", "bf16", "fp16", "fp8", "gptq-int8", "bnb-int8", "awq", "gptq-int4", "bnb-nf4", "bnb-nf4-single", "bnb-fp4",
)  # fmt: skip

_IN_FLIGHT = {
    "bnb-int8": CheckpointQuantization("bnb-int8", 8),
    "bnb-nf4": CheckpointQuantization("bnb-nf4", 4, 64, double_quant=True),
    "bnb-nf4-single": CheckpointQuantization("bnb-nf4-single", 4, 64),
    "bnb-fp4": CheckpointQuantization("bnb-fp4", 4, 64, double_quant=True),
}


def loads(scheme: str) -> bool:
    """Whether a checkpoint that is stored so is worth taking in the place of the 16-bit one."""
    return scheme in _STORED


def quantizes(scheme: str) -> bool:
    """Whether it makes `scheme` while loading, wherever that is."""
    return SCHEMES[scheme].bits >= 16 or scheme in _IN_FLIGHT


def online_scheme(scheme: str) -> CheckpointQuantization | None:
    """What it makes of 16-bit weights; None of a scheme that it does not make."""
    return _IN_FLIGHT.get(scheme)


def pays(scheme: str, device: Device) -> bool:
    """Whether it has kernels there; on a CPU for a dense model's weights as they are stored, and for bitsandbytes'."""
    return device.kind != "cpu" or SCHEMES[scheme].bits >= 16 or scheme.startswith("bnb") or scheme in READ_AS_STORED
