"""Which quantizations vLLM loads, which it makes of 16-bit weights while loading, and where it has kernels for them.

Follows vllm 0.32: config/quantization.py (_ONLINE_SHORTHANDS), layers/quantization/online/base.py and the kernel lists
of kernels/linear/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qserve.core.hardware import CpuFeatures, Device
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.engines.vllm.plan.versions import VllmVersion

__all__ = ["computes_in", "details", "loads", "online_scheme", "quantization_flag", "quantizes", "runs_stored"]

_BLOCK = 128
_NAMED_ONLINE = (0, 28)
"""First release whose fp8_per_tensor quantizes while loading; before it, `fp8` does."""
_VERIFIED = (0, 32)
"""The release whose other online schemes were read in its source."""


def _is_x86(cpu: CpuFeatures) -> bool:
    """All that can run torch at all have these instructions, and no other processor has."""
    return "sse2" in cpu.flags


def _any_cpu(cpu: CpuFeatures) -> bool:
    return True


def _no_cpu(cpu: CpuFeatures) -> bool:
    return False


def _cpu_with_avx512(cpu: CpuFeatures) -> bool:
    """CPUWNA16's kernels: vllm 0.32's wheel has no `cpu_gemm_wna16` in its `_C_AVX2`."""
    return not _is_x86(cpu) or "avx512f" in cpu.flags


def _cpu_with_int8(cpu: CpuFeatures) -> bool:
    """oneDNN's int8, which adds products of two bytes in 16 bits where there is no VNNI.

    What does not fit is cut off there, and results of weights near 127 are up to half of the largest away from what
    they should be.
    """
    return not _is_x86(cpu) or "int8" in cpu.formats


def _cpu_with_amx(cpu: CpuFeatures) -> bool:
    return "amx_tile" in cpu.flags


@dataclass(frozen=True)
class _Kernels:
    """For checkpoints of a scheme: from which compute capability on, and on which CPUs.

    `least` is get_min_capability of each method's config; None: any card.
    """

    least: tuple[int, int] | None = None
    on_cpu: Callable[[CpuFeatures], bool] = _no_cpu


# Bitsandbytes comes through its plugin, which quantizes to 4 bit only.
_STORED = {
    "fp32": _Kernels(on_cpu=_any_cpu),
    "bf16": _Kernels(on_cpu=_any_cpu),
    "fp16": _Kernels(on_cpu=_any_cpu),
    "fp8": _Kernels((7, 5), _cpu_with_amx),
    "gptq-int8": _Kernels(),
    "w8a16": _Kernels((7, 5)),
    "w8a8": _Kernels((7, 5), _cpu_with_int8),
    "bnb-int8": _Kernels((7, 0)),
    "awq": _Kernels((7, 5), _cpu_with_avx512),
    "gptq-int4": _Kernels(on_cpu=_cpu_with_avx512),
    "w4a16": _Kernels((7, 5), _cpu_with_avx512),
    "nvfp4": _Kernels((7, 5)),
    "bnb-nf4": _Kernels((7, 0), _any_cpu),
    "bnb-nf4-single": _Kernels((7, 0), _any_cpu),
}
_MADE = {
    "fp8": (0,),
    "fp8_per_tensor": _NAMED_ONLINE,
    "fp8_per_channel": _VERIFIED,
    "fp8_per_block": _VERIFIED,
    "mxfp8": _VERIFIED,
    "mxfp4": _VERIFIED,
    "int8_per_channel_weight_only": _VERIFIED,
    "bnb-nf4": (0, 5),
}
"""What it makes of 16-bit weights while loading, and from which release on."""
_MADE_ON_CPU = frozenset({"bnb-nf4"})


def loads(scheme: str) -> bool:
    """Whether vLLM reads checkpoints that are stored so."""
    return scheme in _STORED


def quantizes(scheme: str, device: Device) -> bool:
    """Whether vLLM makes `scheme` while loading, on some card or on a CPU."""
    return SCHEMES[scheme].bits >= 16 or scheme in (_MADE_ON_CPU if device.kind == "cpu" else _MADE)


def quantization_flag(scheme: str) -> str:
    """vLLM's --quantization for a scheme that it makes while loading."""
    return "bitsandbytes" if SCHEMES[scheme].by_bitsandbytes else scheme


def runs_stored(scheme: str, device: Device, cpu: CpuFeatures) -> bool:
    """Whether vLLM has kernels on `device` for a checkpoint that is stored so."""
    return _STORED.get(scheme, _Kernels()).on_cpu(cpu) if device.kind == "cpu" else _is_able(scheme, device)


def computes_in(scheme: str, dtype: str | None) -> bool:
    """vLLM's quantized kernels compute in 16 bit; only bitsandbytes takes fp32. Source: get_supported_act_dtypes."""
    return dtype not in ("float32", "float") or SCHEMES[scheme].bits >= 16 or SCHEMES[scheme].by_bitsandbytes


def online_scheme(
    scheme: str, spec: ModelSpec, devices: tuple[Device, ...], version: VllmVersion
) -> CheckpointQuantization | None:
    """What `scheme` becomes when vLLM quantizes while loading; None where it can't here.

    The result's own name is exact: `fp8` becomes vLLM's fp8_per_block or fp8_per_tensor.
    """
    if scheme not in _MADE:
        return None
    device, release = devices[0], version.release
    if device.kind == "cpu":
        return SCHEMES[scheme].made if scheme in _MADE_ON_CPU else None
    if not _is_able("fp8" if scheme.startswith(("fp8", "mxfp")) else scheme, device):
        return None
    if scheme == "fp8":
        return SCHEMES[_best_fp8(spec, devices, release)].made
    if release < _MADE[scheme] or (scheme == "int8_per_channel_weight_only" and spec.moe is None):
        return None
    if scheme == "fp8_per_block" and not _divides_into_blocks(spec, len(devices)):
        return None
    return SCHEMES[scheme].made


def details(scheme: str, device: Device) -> Iterator[str]:
    """What is worth knowing of a scheme that is made while loading."""
    if SCHEMES[scheme].scales:
        yield SCHEMES[scheme].scales
    if scheme.startswith("fp8"):
        native = device.supports("fp8")
        yield "the card computes in fp8" if native else "the card has no fp8 arithmetic: it saves memory, not time"


def _is_able(scheme: str, device: Device) -> bool:
    """AMD cards have no compute capability, and are not held to one."""
    capability, least = device.compute_capability, _STORED.get(scheme, _Kernels()).least
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
