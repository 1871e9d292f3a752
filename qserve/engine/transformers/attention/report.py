"""Which attention kernel runs, and why not flash-attn's where it is another."""

from __future__ import annotations

from typing import Any

import torch
from transformers.utils import is_flash_attn_2_available

from qserve.engine.transformers.attention.compiled_step import COMPILED, why_not_compiled
from qserve.engine.transformers.attention.packed import FLASH

__all__ = ["attention_report"]

_INSTALL = "pip install flash-attn --no-build-isolation"


def attention_report(model: Any, kernel: str) -> str:
    """One sentence about `kernel`, the batcher's: `flash_attention_2`, `compiled`, or `sdpa` with the reason."""
    if kernel == FLASH:
        return "flash-attn's kernels for sequences of different lengths"
    if kernel == COMPILED:
        return "kernels compiled for this CPU, which read keys in their pages: flash-attn has none for a CPU"
    sdpa = f"torch's SDPA, sequences of different lengths without padding: {_why_not_flash(model)}"
    slower = why_not_compiled(model)
    return f"{sdpa}; there would be faster kernels, but {slower}" if slower else sdpa


def _why_not_flash(model: Any) -> str:
    if model.device.type != "cuda":
        return "flash-attn has no kernels for a CPU"
    if model.dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn computes in 16 bit, and this model in {str(model.dtype).removeprefix('torch.')}"
    capability = torch.cuda.get_device_capability(model.device)
    if capability < (8, 0):
        return f"flash-attn needs compute capability 8.0, and this card has {capability[0]}.{capability[1]}"
    if not is_flash_attn_2_available():
        return f"flash-attn is not installed; where it is, it is taken ({_INSTALL})"
    return "flash-attn does not serve this kind of model here"
