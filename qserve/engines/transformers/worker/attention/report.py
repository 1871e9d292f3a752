"""Which attention kernel runs, and why not another."""

from __future__ import annotations

from typing import Any

from qserve.engines.transformers.kernels.attention_kernels import (
    FLASH_2,
    FLASH_3,
    HUB_FLASH_2,
    HUB_FLASH_3,
    HUB_VLLM_FLASH_3,
    TORCH_VARLEN,
    TRITON_PAGED,
)
from qserve.engines.transformers.worker.attention import compiled_rows, compiled_step
from qserve.engines.transformers.worker.attention.compiled_step import COMPILED

__all__ = ["attention_report"]

_IN_PLACE = {
    FLASH_3: "flash-attn 3, paged",
    FLASH_2: "flash-attn 2, paged",
    HUB_FLASH_3: "flash-attn 3 of Hugging Face's hub, paged",
    HUB_VLLM_FLASH_3: "vLLM's flash-attn 3 of Hugging Face's hub, paged",
    HUB_FLASH_2: "flash-attn 2 of Hugging Face's hub, paged",
    TORCH_VARLEN: "torch's own flash-attention, paged",
    TRITON_PAGED: "qserve's own kernel, paged",
}


def attention_report(model: Any, kernel: str, passed_over: dict[str, str] | None = None) -> str:
    """One sentence about `kernel`, the batcher's; `passed_over`: why others were not taken."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in (passed_over or {}).items())
    decode, _, prompts = kernel.partition("+")
    if decode in _IN_PLACE:
        others = f"; prompts: {_IN_PLACE[prompts]}" if prompts else ""
        return f"{_IN_PLACE[decode]}{others}{f' ({reasons})' if reasons else ''}"
    if kernel == COMPILED:
        return "qserve's paged kernels for this CPU, since flash-attn has none"
    sdpa = "torch's SDPA, sequences of different lengths without padding"
    why_not = reasons.removeprefix("flash-attn: ") or "no paged kernel supports this model"
    slower = compiled_step.why_not_compiled(model) or compiled_rows.why_not_compiled(model)
    return f"{sdpa}: {why_not}; faster kernels exist, but {slower}" if slower else f"{sdpa}: {why_not}"
