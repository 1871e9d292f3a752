"""Storage of a linear weight [out, in] by each scheme: packed tensor, scales and zero points, to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor, dtype_bytes

__all__ = ["is_packable", "pack", "packing_of"]

# Embeddings, lm_head, norms, routers, convolutions and encoders stay in 16 bit unless they are named; gates
# of residual streams in any case.
_PACKED_ROLES = ("linear", "expert")
_NAMED_ROLES = ("lm_head", "router", "linear_state", "vision", "audio", "mtp", "head")
_TABLE = "ngram_table"


def pack(tensors: Iterable[Tensor], quantization: CheckpointQuantization) -> Iterator[Tensor]:
    """The tensors of a 16-bit model as `quantization` stores them; those that it leaves alone come through."""
    for tensor in tensors:
        how = packing_of(tensor, quantization)
        if how is None:
            yield tensor
        else:
            yield from _pieces(tensor, how)


def packing_of(tensor: Tensor, quantization: CheckpointQuantization) -> CheckpointQuantization | None:
    """How `quantization` stores this tensor; None where it leaves it alone."""
    module = tensor.name.removesuffix(".weight")
    if tensor.role == _TABLE:
        found = quantization.of_table(module) if len(tensor.shape) == 2 else None
        return found if found is not None and found.scheme == "fp8" else None
    if not is_packable(tensor, quantization):
        return None
    is_usual = tensor.role in _PACKED_ROLES or (tensor.role == "mtp" and quantization.covers_drafter)
    return quantization.of_module(module, is_usual)


def is_packable(tensor: Tensor, quantization: CheckpointQuantization) -> bool:
    """Whether this may be stored quantized: the matrix of a linear layer, and with `experts_only` of an expert."""
    if len(tensor.shape) != 2 or tensor.role not in (*_PACKED_ROLES, *_NAMED_ROLES):
        return False
    if "pos_embed" in tensor.name or "hyper_connection" in tensor.name:  # of the encoder, and of an MTP head
        return False
    return tensor.role == "expert" or not quantization.experts_only


def _pieces(tensor: Tensor, quantization: CheckpointQuantization) -> Iterator[Tensor]:
    stem = tensor.name.removesuffix(".weight")
    rows, columns = tensor.shape
    layout = _one_scale if tensor.role == _TABLE else _panels if quantization.in_panels else _layout
    for suffix, dtype, nbytes in layout(rows, columns, quantization):
        elements = nbytes // dtype_bytes(dtype)
        yield Tensor(f"{stem}.{suffix}", dtype, (elements,), nbytes * tensor.repeat, tensor.repeat)


def _layout(rows: int, columns: int, quantization: CheckpointQuantization) -> list[tuple[str, str, int]]:
    """(suffix, dtype, bytes) of the tensors that replace one [rows, columns] weight.

    A weight with all that belongs to it takes, at group 128: AWQ and GPTQ 0.5 + 2.5/128 B, GPTQ-Int8 1 + 3/128,
    block fp8 1 + 4/128², mxfp8 1 + 1/32, mxfp4 0.5 + 1/32, nf4 0.5625 and with double quantization 0.516.
    """
    parts = (part for part in SCHEMES[quantization.scheme].parts if part.when(quantization))
    return [(part.suffix, part.dtype, part.num_bytes(rows, columns, quantization)) for part in parts]


def _one_scale(rows: int, columns: int, quantization: CheckpointQuantization) -> list[tuple[str, str, int]]:
    """A table of n-grams in 8 bit."""
    return [("weight", "F8_E4M3", rows * columns), ("weight_scale", "F32", 4)]


def _panels(rows: int, columns: int, quantization: CheckpointQuantization) -> list[tuple[str, str, int]]:
    """Codes, scales in fp32 for each row and group or block, and as many offsets where there are zero points."""
    step = quantization.group_size or quantization.block
    groups = rows * (-(-columns // step) if step else 1)
    codes = [("codes", "U8", rows * columns * quantization.bits // 8), ("scales", "F32", 4 * groups)]
    return codes if quantization.symmetric else [*codes, ("offset_scales", "F32", 4 * groups)]
