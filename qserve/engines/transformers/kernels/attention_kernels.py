"""Which attention kernels are tried on a card, in their order, and why others are not: for the worker and `doctor`.

A function of the card, of the packages that are there, and of what the kernel meets in a layer. The worker tries each
at start (engines/transformers/worker/attention/kernels.py): whether it is right on this card, only the card can tell.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = [
    "FLASH_2",
    "FLASH_3",
    "HUB_FLASH_2",
    "HUB_FLASH_3",
    "HUB_VLLM_FLASH_3",
    "TORCH_VARLEN",
    "TRITON_PAGED",
    "Candidates",
    "kernel_candidates",
]

FLASH_3 = "flash_attention_3"
FLASH_2 = "flash_attention_2"
TORCH_VARLEN = "torch_varlen"
HUB_FLASH_3 = "kernels-community/flash-attn3"
HUB_VLLM_FLASH_3 = "kernels-community/vllm-flash-attn3"
HUB_FLASH_2 = "kernels-community/flash-attn2"
TRITON_PAGED = "triton_paged"
"""This project's own (`attention/triton_decode.py`), for steps of decoding: prompts take another beside it."""

_LEAST = (8, 0)
_HOPPER = 9
_LARGEST_HEAD = 256
"""Of flash-attn 2 and 3 and of torch's own, which is flash-attn 2."""
_DTYPES = ("float16", "bfloat16")
_WHEELS = "github.com/Dao-AILab/flash-attention/releases has wheels that are built; pip builds it for an hour"


@dataclass(frozen=True)
class Candidates:
    """`names` are tried in this order; `passed_over` says of others why not, by name."""

    names: tuple[str, ...]
    passed_over: dict[str, str]


def kernel_candidates(
    capability: tuple[int, int] | None, packages: Collection[str], dtype: str = "bfloat16", head_size: int = 128
) -> Candidates:
    """For a card of this compute capability (None: a CPU) where `packages` (distributions) are installed.

    On Hopper the newest of flash-attn's kind first, which is built for it; elsewhere, and where none is installed,
    our own, then torch's own, which needs no package.
    """
    if capability is None:
        return Candidates((), {"flash-attn": "flash-attn has no kernels for a CPU"})
    names: list[str] = []
    passed_over: dict[str, str] = {}
    reason = _why_no_flash(capability, dtype, head_size)
    if capability[0] == _HOPPER and not reason:
        _offer(FLASH_3, "flash-attn-3" in packages, f"flash-attn 3 is not installed; {_WHEELS}", names, passed_over)
        for name in (HUB_FLASH_3, HUB_VLLM_FLASH_3):
            _offer(name, "kernels" in packages, "the package kernels is not installed", names, passed_over)
    _offer(
        TRITON_PAGED, "triton" in packages, "Triton is not installed, which torch brings on Linux", names, passed_over
    )
    if reason:
        return Candidates(tuple(names), {**passed_over, "flash-attn": reason})
    names.append(TORCH_VARLEN)
    missing = f"flash-attn is not installed; once installed, it is used. {_WHEELS}"
    _offer(FLASH_2, "flash-attn" in packages, missing, names, passed_over)
    _offer(HUB_FLASH_2, "kernels" in packages, "the package kernels is not installed", names, passed_over)
    return Candidates(tuple(names), passed_over)


def _why_no_flash(capability: tuple[int, int], dtype: str, head_size: int) -> str:
    """Why no kernel of flash-attn's kind is for this; empty where some are."""
    if dtype not in _DTYPES:
        return f"flash-attn computes in 16 bit, and this model in {dtype}"
    if capability < _LEAST:
        return f"flash-attn needs compute capability 8.0, and this card has {'.'.join(map(str, capability))}"
    if head_size > _LARGEST_HEAD:
        return f"flash-attn takes heads of {_LARGEST_HEAD} at most, and this model's are {head_size}"
    return ""


def _offer(name: str, is_there: bool, why_not: str, names: list[str], passed_over: dict[str, str]) -> None:
    if is_there:
        names.append(name)
    else:
        passed_over[name] = why_not
