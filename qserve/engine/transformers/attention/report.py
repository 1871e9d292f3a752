"""Which attention kernel runs, and why not another."""

from __future__ import annotations

from typing import Any

from qserve.core.cards.attention_kernels import (
    FLASH_2,
    FLASH_3,
    HUB_FLASH_2,
    HUB_FLASH_3,
    HUB_VLLM_FLASH_3,
    TORCH_VARLEN,
)
from qserve.engine.transformers.attention import compiled_rows, compiled_step
from qserve.engine.transformers.attention.compiled_step import COMPILED

__all__ = ["attention_report"]

_IN_PLACE = {
    FLASH_3: "flash-attn 3, which reads keys in their pages",
    FLASH_2: "flash-attn 2, which reads keys in their pages",
    HUB_FLASH_3: "flash-attn 3 of Hugging Face's hub, which reads keys in their pages",
    HUB_VLLM_FLASH_3: "vLLM's flash-attn 3 of Hugging Face's hub, which reads keys in their pages",
    HUB_FLASH_2: "flash-attn 2 of Hugging Face's hub, which reads keys in their pages",
    TORCH_VARLEN: "torch's own flash-attention, which reads keys in their pages",
}


def attention_report(model: Any, kernel: str, passed_over: dict[str, str] | None = None) -> str:
    """One sentence about `kernel`, the batcher's; `passed_over`: why others were not taken."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in (passed_over or {}).items())
    if kernel in _IN_PLACE:
        return f"{_IN_PLACE[kernel]}{f' ({reasons})' if reasons else ''}"
    if kernel == COMPILED:
        return "kernels compiled for this CPU, which read keys in their pages: flash-attn has none for a CPU"
    sdpa = "torch's SDPA, sequences of different lengths without padding"
    why_not = reasons.removeprefix("flash-attn: ") or "no kernel reads the keys of this model in their pages"
    slower = compiled_step.why_not_compiled(model) or compiled_rows.why_not_compiled(model)
    return f"{sdpa}: {why_not}; there would be faster kernels, but {slower}" if slower else f"{sdpa}: {why_not}"
