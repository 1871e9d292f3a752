"""Which attention kernels are tried: a function of card, packages and shapes, as a table."""

from __future__ import annotations

import pytest

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

HUB = "kernels"


@pytest.mark.parametrize(
    ("capability", "packages", "tried"),
    [
        ((8, 0), [], [TORCH_VARLEN]),
        ((8, 0), ["triton"], [TRITON_PAGED, TORCH_VARLEN]),
        ((8, 9), ["triton", "flash-attn"], [TRITON_PAGED, TORCH_VARLEN, FLASH_2]),
        ((8, 9), ["triton", "flash-attn", HUB], [TRITON_PAGED, TORCH_VARLEN, FLASH_2, HUB_FLASH_2]),
        ((8, 9), ["flash-attn-3"], [TORCH_VARLEN]),  # is for Hopper
        ((9, 0), ["triton"], [TRITON_PAGED, TORCH_VARLEN]),
        ((9, 0), ["triton", "flash-attn-3"], [FLASH_3, TRITON_PAGED, TORCH_VARLEN]),
        ((9, 0), ["triton", HUB], [HUB_FLASH_3, HUB_VLLM_FLASH_3, TRITON_PAGED, TORCH_VARLEN, HUB_FLASH_2]),
        (
            (9, 0),
            ["flash-attn-3", "flash-attn", HUB, "triton"],
            [FLASH_3, HUB_FLASH_3, HUB_VLLM_FLASH_3, TRITON_PAGED, TORCH_VARLEN, FLASH_2, HUB_FLASH_2],
        ),
        ((10, 0), [HUB], [TORCH_VARLEN, HUB_FLASH_2]),
        ((12, 0), ["triton", "flash-attn"], [TRITON_PAGED, TORCH_VARLEN, FLASH_2]),
        ((7, 5), ["flash-attn", "flash-attn-3", HUB, "triton"], [TRITON_PAGED]),
        ((7, 5), ["flash-attn", "flash-attn-3", HUB], []),
        (None, ["triton"], []),
        (None, ["flash-attn", HUB], []),
    ],
)
def test_what_is_tried_on_a_card(capability: tuple[int, int] | None, packages: list[str], tried: list[str]) -> None:
    found = kernel_candidates(capability, packages)
    assert list(found.names) == tried
    assert not set(found.names) & set(found.passed_over)
    assert all(found.passed_over.values())


@pytest.mark.parametrize(
    ("capability", "dtype", "head_size", "reason"),
    [
        (None, "bfloat16", 128, "flash-attn has no kernels for a CPU"),
        ((9, 0), "float32", 128, "flash-attn computes in 16 bit, and this model in float32"),
        ((7, 5), "float16", 128, "flash-attn needs compute capability 8.0, and this card has 7.5"),
        ((9, 0), "bfloat16", 512, "flash-attn takes heads of 256 at most, and this model's are 512"),
    ],
)
def test_where_flash_attn_is_not_tried(
    capability: tuple[int, int] | None, dtype: str, head_size: int, reason: str
) -> None:
    """Ours is for all cards, dtypes and heads."""
    found = kernel_candidates(capability, ["flash-attn", HUB, "triton"], dtype, head_size)
    assert found.names == (() if capability is None else (TRITON_PAGED,))
    assert found.passed_over == {"flash-attn": reason}
