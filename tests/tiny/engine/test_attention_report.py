"""The sentence about attention: which kernel, and what stands in flash-attn's way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qserve.engine.transformers.attention import report as module
from qserve.engine.transformers.attention.packed import FLASH


def model_on(device: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    return SimpleNamespace(device=torch.device(device), dtype=dtype, get_decoder=lambda: torch.nn.Identity())


def test_a_cpu() -> None:
    assert module.attention_report(model_on("cpu"), "sdpa").endswith("flash-attn has no kernels for a CPU")


@pytest.mark.parametrize(
    ("dtype", "capability", "installed", "reason"),
    [
        (torch.float32, (9, 0), True, "flash-attn computes in 16 bit, and this model in float32"),
        (torch.float16, (7, 5), True, "flash-attn needs compute capability 8.0, and this card has 7.5"),
        (torch.bfloat16, (9, 0), False, "flash-attn is not installed; where it is, it is taken (pip install"),
    ],
)
def test_a_card(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], installed: bool, reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(module, "is_flash_attn_2_available", lambda: installed)
    assert reason in module.attention_report(model_on("cuda:0", dtype), "sdpa")
    assert module.attention_report(model_on("cuda:0", dtype), FLASH).startswith("flash-attn's kernels")
