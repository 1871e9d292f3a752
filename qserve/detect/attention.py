"""Which attention kernels the own engine will try on a card, in their order; the worker tries them at start."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["attention_kernels"]

_LEAST = (8, 0)
_HOPPER = 9


def attention_kernels(capability: tuple[int, int] | None, versions: Mapping[str, str]) -> str:
    """For a card of this compute capability, with these packages installed: a sentence for people."""
    if capability is None or capability < _LEAST:
        return "torch's SDPA over gathered keys: kernels that read keys in their pages need compute capability 8.0"
    kernels = ["torch's own flash-attention"]
    if capability[0] == _HOPPER and "flash-attn-3" in versions:
        kernels.insert(0, f"flash-attn 3 ({versions['flash-attn-3']})")
    if "flash-attn" in versions:
        kernels.append(f"flash-attn 2 ({versions['flash-attn']})")
    return (
        f"{', then '.join(kernels)}, then torch's SDPA over gathered keys: the first that agrees with SDPA when the "
        "worker starts"
    )
