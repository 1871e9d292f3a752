"""Which attention kernels the own engine will try, in their order; the worker tries those of a card at start."""

from __future__ import annotations

from collections.abc import Mapping

from qserve.engines.transformers.kernels.attention_kernels import (
    FLASH_2,
    FLASH_3,
    HUB_FLASH_2,
    HUB_FLASH_3,
    HUB_VLLM_FLASH_3,
    TORCH_VARLEN,
    TRITON_PAGED,
    kernel_candidates,
)
from qserve.packages import install_command

__all__ = ["attention_kernels", "attention_on_a_cpu", "attention_remedy"]

_GATHERED = "torch's SDPA over gathered keys"
_TITLES = {
    FLASH_3: "flash-attn 3",
    HUB_FLASH_3: "flash-attn 3 of the hub",
    HUB_VLLM_FLASH_3: "vLLM's flash-attn 3 of the hub",
    TORCH_VARLEN: "torch's own flash-attention",
    TRITON_PAGED: "qserve's own kernel for decoding",
    FLASH_2: "flash-attn 2",
    HUB_FLASH_2: "flash-attn 2 of the hub",
}
_PACKAGES = {
    FLASH_3: "flash-attn-3",
    FLASH_2: "flash-attn",
    HUB_FLASH_3: "kernels",
    HUB_VLLM_FLASH_3: "kernels",
    HUB_FLASH_2: "kernels",
}


def attention_kernels(capability: tuple[int, int] | None, versions: Mapping[str, str]) -> str:
    """For a card of this compute capability, with these packages installed: a sentence for people."""
    found = kernel_candidates(capability or (0, 0), versions)
    if not found.names:
        reasons = (reason for name, reason in found.passed_over.items() if name == TRITON_PAGED or capability)
        return f"{_GATHERED}: {'; '.join(reasons)}"
    tried = ", then ".join(_title(name, versions) for name in found.names)
    return f"{tried}, then {_GATHERED}: the first that agrees with SDPA when the worker starts"


def attention_on_a_cpu(has_compiler: bool) -> str:
    """On a machine without a card: a sentence for people. The worker names what it took, of one model."""
    if not has_compiler:
        return "torch's SDPA, which is slower: qserve's kernels need a C compiler"
    return "qserve's kernels for this CPU in bf16; torch's SDPA in float32 and float16"


def attention_remedy(capability: tuple[int, int] | None, versions: Mapping[str, str]) -> str:
    """What would bring a faster kernel than those that are there; empty where there is none."""
    found = kernel_candidates(capability or (0, 0), versions)
    lacks_flash_3 = FLASH_3 in found.passed_over and HUB_FLASH_3 in found.passed_over
    return f"flash-attn 3, built for this card and torch: {install_command('kernels')}" if lacks_flash_3 else ""


def _title(name: str, versions: Mapping[str, str]) -> str:
    package = _PACKAGES.get(name)
    return f"{_TITLES[name]} ({versions[package]})" if package else _TITLES[name]
