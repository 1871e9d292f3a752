"""The copy of a head that a CPU's steps of few sequences read: where it is made, and what it takes."""

from __future__ import annotations

import pytest

from qserve.core.hardware import CpuFeatures
from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.plan.memory import shortlist_bytes
from qserve.hub.bundled import bundled_config

ICE_LAKE = frozenset({"avx512_vnni"})


def bytes_of(model: str, dtype: str, flags: frozenset[str]) -> int:
    return shortlist_bytes(ModelSpec.from_config(bundled_config(model) or {}, model), dtype, CpuFeatures("", flags))


def test_a_byte_a_weight_and_a_scale_a_token() -> None:
    assert bytes_of("Qwen/Qwen3-0.6B", "bfloat16", ICE_LAKE) == 151936 * (1024 + 4)


@pytest.mark.parametrize(
    ("dtype", "flags"), [("float32", ICE_LAKE), ("bfloat16", frozenset())], ids=["float32", "no products of ours"]
)
def test_none_where_the_products_are_not_ours(dtype: str, flags: frozenset[str]) -> None:
    assert bytes_of("Qwen/Qwen3-0.6B", dtype, flags) == 0
