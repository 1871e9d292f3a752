"""What an engine keeps in memory of a quantized model on a device; not always what is stored, or asked for.

Sources: transformers 5.19, quantizers/quantizer_finegrained_fp8.py and quantizer_compressed_tensors.py; bitsandbytes
0.50; qserve/model/cpu/linear.py and stored/linear.py; vLLM's bitsandbytes_loader.py, _dequantize_dq (vllm#19742).
"""

from __future__ import annotations

from dataclasses import replace

from qserve.core.dimensions import tensors_of
from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor

__all__ = [
    "quantizes_experts",
    "resident_in_16_bit",
    "resident_quantization",
    "resident_tensors",
    "single_scales",
    "with_single_scales",
    "without_mapped_embedding",
]

_SIXTEEN_BIT = ("BF16", "F16", "bfloat16", "float16")
_PANEL = 32  # outputs that lie together (model/cpu/matrix.h)


def resident_in_16_bit(quantization: CheckpointQuantization, device: Device) -> bool:
    """Whether weights that are stored quantized are made 16 bit again on `device`."""
    least = SCHEMES[quantization.scheme].packed_from
    return least is None or (device.compute_capability or (0, 0)) < least


def resident_tensors(spec: ModelSpec, tensors: tuple[Tensor, ...], device: Device, dtype: str) -> tuple[Tensor, ...]:
    """The tensors that lie in memory after loading a checkpoint that stores `tensors`, to compute in `dtype`."""
    stored = spec.quantization
    if stored is None:
        return tensors
    if device.kind == "cpu" and all(SCHEMES[name].in_panels for name in stored.schemes):
        held = _in_panels(stored, spec) if dtype == "bfloat16" else None
        return tensors_of(replace(spec, quantization=held))
    if resident_in_16_bit(stored, device):
        return tensors_of(replace(spec, quantization=None))
    held = resident_quantization(stored, dtype, device)
    return tensors if held == stored else tensors_of(replace(spec, quantization=held))


def without_mapped_embedding(
    spec: ModelSpec, held: tuple[Tensor, ...], stored: tuple[Tensor, ...], dtype: str
) -> tuple[Tensor, ...]:
    """`held` less an embedding that a CPU's worker reads row by row in its file (model/stored/embedding.py).

    One that the head shares is the head's; one that is `stored` in more than 16 bit is cast, and a copy.
    """
    if spec.tie_word_embeddings or spec.head.kind == "score" or dtype != "bfloat16":
        return held
    if any(one.role == "embedding" and one.dtype not in _SIXTEEN_BIT for one in stored):
        return held
    return tuple(one for one in held if one.role != "embedding")


def _in_panels(stored: CheckpointQuantization, spec: ModelSpec) -> CheckpointQuantization:
    """Experts whose outputs are no whole panels are unpacked (model/stored/experts.py)."""
    overrides = tuple((patterns, replace(other, in_panels=True)) for patterns, other in stored.overrides)
    moe = spec.moe
    takes_experts = moe is None or (moe.moe_intermediate_size % _PANEL == 0 and spec.hidden_size % _PANEL == 0)
    skipped = stored.skipped if takes_experts else (*stored.skipped, ".experts.")
    return replace(stored, in_panels=True, overrides=overrides, skipped=skipped)


def quantizes_experts(spec: ModelSpec, dtype: str, device: Device) -> bool:
    """Whether experts become int8 or 4 bit while loading: on a CPU, of whole blocks (model/cpu/quantized_loading.py).

    Elsewhere the library joins a layer's in one parameter, which bitsandbytes leaves in 16 bit (bitsandbytes#1849).
    """
    moe, block = spec.moe, 64
    if moe is None or device.kind != "cpu" or dtype != "bfloat16":
        return False
    return moe.moe_intermediate_size % block == 0 and spec.hidden_size % block == 0


def resident_quantization(quantization: CheckpointQuantization, dtype: str, device: Device) -> CheckpointQuantization:
    """What is kept beside the packed weights: for a CPU's 4-bit products, scales in fp32, not quantized again."""
    compiled = device.kind == "cpu" and dtype == "bfloat16"
    return single_scales(quantization) if compiled else quantization


def single_scales(quantization: CheckpointQuantization) -> CheckpointQuantization:
    """As vLLM holds bitsandbytes' 4 bit: it undoes the double quantization while loading, 0.5625 B a weight."""
    return replace(quantization, double_quant=False) if quantization.double_quant else quantization


def with_single_scales(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same for stored tensors: each 8-bit absmax in fp32, without the scales that it had itself."""
    kept = (tensor for tensor in tensors if "nested_" not in tensor.name)
    return tuple(
        replace(tensor, dtype="F32", nbytes=4 * tensor.nbytes)
        if tensor.name.endswith("absmax") and tensor.dtype == "U8"
        else tensor
        for tensor in kept
    )
