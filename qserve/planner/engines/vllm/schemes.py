"""Which quantizations vLLM loads, which it makes of 16-bit weights while loading, and where it has kernels for them.

Follows vllm 0.32: config/quantization.py (_ONLINE_SHORTHANDS), layers/quantization/online/base.py and the kernel lists
of kernels/linear/__init__.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from qserve.core.hardware import CpuFeatures, Device
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization import SCHEMES, CheckpointQuantization
from qserve.planner.engines.vllm.versions import VllmVersion

__all__ = ["computes_in", "details", "loads", "online_scheme", "quantization_flag", "quantizes", "runs_stored"]

_STORED = (
    "fp32", "bf16", "fp16", "fp8", "gptq-int8", "w8a16", "w8a8", "bnb-int8", "awq", "gptq-int4", "w4a16", "nvfp4",
    "bnb-nf4", "bnb-nf4-single",
)  # fmt: skip
"""8-bit bitsandbytes comes through its plugin, which quantizes to 4 bit only."""

_BLOCK = 128
_IN_FLIGHT = {
    "fp8": CheckpointQuantization("fp8", 8),
    "fp8_per_tensor": CheckpointQuantization("fp8_per_tensor", 8),
    "fp8_per_channel": CheckpointQuantization("fp8_per_channel", 8),
    "fp8_per_block": CheckpointQuantization("fp8_per_block", 8, block=_BLOCK),
    "mxfp8": CheckpointQuantization("mxfp8", 8, 32),
    "mxfp4": CheckpointQuantization("mxfp4", 4, 32),
    "int8_per_channel_weight_only": CheckpointQuantization("int8_per_channel_weight_only", 8, experts_only=True),
    "bnb-nf4": CheckpointQuantization("bnb-nf4", 4, 64, double_quant=True),
}
_IN_FLIGHT_ON_CPU = ("bnb-nf4",)
_NAMED_ONLINE = (0, 28)
"""First release whose fp8_per_tensor quantizes while loading; before it, `fp8` does."""
_VERIFIED = (0, 32)
"""The release whose other online schemes were read in its source."""

_STORED_ON_CPU = ("fp32", "bf16", "fp16", "awq", "gptq-int4", "w4a16", "w8a8", "bnb-nf4", "bnb-nf4-single")
"""vLLM's CPU kernels: 4-bit weights (CPUWNA16), int8 with int8 activations, bitsandbytes' 4 bit through its plugin."""
_CPUWNA16 = ("awq", "gptq-int4", "w4a16")

_LEAST_CAPABILITY = {
    **dict.fromkeys(("awq", "fp8", "w8a8", "w8a16", "w4a16", "nvfp4"), (7, 5)),
    **dict.fromkeys(("bnb-nf4", "bnb-nf4-single", "bnb-int8"), (7, 0)),
}
"""get_min_capability of each method's config."""


def loads(scheme: str) -> bool:
    """Whether vLLM reads checkpoints that are stored so."""
    return scheme in _STORED


def quantizes(scheme: str, device: Device) -> bool:
    """Whether vLLM makes `scheme` while loading, on some card or on a CPU."""
    made = _IN_FLIGHT_ON_CPU if device.kind == "cpu" else tuple(_IN_FLIGHT)
    return SCHEMES[scheme].bits >= 16 or scheme in made


def quantization_flag(scheme: str) -> str:
    """vLLM's --quantization for a scheme that it makes while loading."""
    return "bitsandbytes" if scheme.startswith("bnb") else scheme


def runs_stored(scheme: str, device: Device, cpu: CpuFeatures) -> bool:
    """Whether vLLM has kernels on `device` for a checkpoint that is stored so."""
    if device.kind != "cpu":
        return _is_able(scheme, device)
    if scheme == "fp8":
        return "amx_tile" in cpu.flags
    return scheme in _STORED_ON_CPU and not (_is_x86(cpu) and _fails_on_x86(scheme, cpu))


def _fails_on_x86(scheme: str, cpu: CpuFeatures) -> bool:
    """For want of instructions. Source: vllm 0.32's wheel, whose `_C_AVX2` has no `cpu_gemm_wna16`.

    Its int8 is oneDNN's, which adds products of two bytes in 16 bits where there is no VNNI: what does not fit is cut
    off, and results of weights near 127 are up to half of the largest away from what they should be.
    """
    return (scheme in _CPUWNA16 and "avx512f" not in cpu.flags) or (scheme == "w8a8" and "int8" not in cpu.formats)


def _is_x86(cpu: CpuFeatures) -> bool:
    """All that can run torch at all have these instructions, and no other processor has."""
    return "sse2" in cpu.flags


def computes_in(scheme: str, dtype: str | None) -> bool:
    """vLLM's quantized kernels compute in 16 bit; only bitsandbytes takes fp32. Source: get_supported_act_dtypes."""
    return dtype not in ("float32", "float") or SCHEMES[scheme].bits >= 16 or scheme.startswith("bnb")


def online_scheme(
    scheme: str, spec: ModelSpec, devices: tuple[Device, ...], version: VllmVersion
) -> CheckpointQuantization | None:
    """What `scheme` becomes when vLLM quantizes while loading; None where it can't here.

    The result's own name is exact: `fp8` becomes vLLM's fp8_per_block or fp8_per_tensor.
    """
    if scheme not in _IN_FLIGHT:
        return None
    device, release = devices[0], version.release
    if device.kind == "cpu":
        return _IN_FLIGHT[scheme] if scheme in _IN_FLIGHT_ON_CPU else None
    if not _is_able("fp8" if scheme.startswith(("fp8", "mxfp")) else scheme, device):
        return None
    if scheme == "fp8":
        return _IN_FLIGHT[_best_fp8(spec, devices, release)]
    least = {"bnb-nf4": (0, 5), "fp8_per_tensor": _NAMED_ONLINE}.get(scheme, _VERIFIED)
    if release < least or (scheme == "int8_per_channel_weight_only" and spec.moe is None):
        return None
    if scheme == "fp8_per_block" and not _divides_into_blocks(spec, len(devices)):
        return None
    return _IN_FLIGHT[scheme]


def details(scheme: str, device: Device) -> Iterator[str]:
    """What is worth knowing of a scheme that is made while loading."""
    scales = {
        "fp8_per_block": "one scale per block of 128 × 128",
        "fp8_per_channel": "one scale per row",
        "fp8_per_tensor": "one scale per tensor",
        "mxfp8": "one scale per 32 weights",
        "mxfp4": "one scale per 32 weights",
        "int8_per_channel_weight_only": "the experts only, everything else stays in 16 bit",
    }
    if scheme in scales:
        yield scales[scheme]
    if scheme.startswith("fp8"):
        native = device.supports("fp8")
        yield "the card computes in fp8" if native else "the card has no fp8 arithmetic: it saves memory, not time"


def _is_able(scheme: str, device: Device) -> bool:
    """AMD cards have no compute capability, and are not held to one."""
    capability, least = device.compute_capability, _LEAST_CAPABILITY.get(scheme)
    return capability is None or least is None or capability >= least


def _best_fp8(spec: ModelSpec, devices: tuple[Device, ...], release: tuple[int, int, int]) -> str:
    """A scale per block of 128 × 128 is finer than one per tensor, where the card computes so and shards divide."""
    if release >= _VERIFIED and devices[0].supports("fp8") and _divides_into_blocks(spec, len(devices)):
        return "fp8_per_block"
    return "fp8_per_tensor" if release >= _NAMED_ONLINE else "fp8"


def _divides_into_blocks(spec: ModelSpec, ranks: int) -> bool:
    """vLLM refuses a shard whose edge is no multiple of the block."""
    moe = spec.moe
    inner = (spec.intermediate_size, moe.moe_intermediate_size) if moe else (spec.intermediate_size,)
    edges = (*inner, spec.num_attention_heads * spec.head_dim)
    return spec.hidden_size % _BLOCK == 0 and all(edge % (_BLOCK * ranks) == 0 for edge in edges)
