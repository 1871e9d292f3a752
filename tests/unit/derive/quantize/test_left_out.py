"""What stays in 16 bit: heads, routers, what linear attention keeps, encoders and drafting heads."""

from __future__ import annotations

import pytest

from qserve.core.quantization.module_names import matcher_of
from qserve.core.tensors import Tensor
from qserve.derive.quantize.left_out import group_size_of, is_quantized, left_out_of
from qserve.errors import UsageError

LAYER = "model.layers.3"
DENSE = {
    "model.embed_tokens.weight": (1000, 256),
    f"{LAYER}.self_attn.q_proj.weight": (256, 256),
    f"{LAYER}.self_attn.q_norm.weight": (64,),
    f"{LAYER}.mlp.down_proj.weight": (256, 512),
    "lm_head.weight": (1000, 256),
}
SPARSE = {
    f"{LAYER}.mlp.gate.weight": (8, 256),
    f"{LAYER}.mlp.experts.5.gate_proj.weight": (128, 256),
    f"{LAYER}.mlp.shared_expert.up_proj.weight": (128, 256),
    f"{LAYER}.mlp.shared_expert_gate.weight": (1, 256),
}
HYBRID = {
    f"{LAYER}.linear_attn.in_proj_qkv.weight": (512, 256),
    f"{LAYER}.linear_attn.in_proj_qkvz.weight": (512, 256),
    f"{LAYER}.linear_attn.in_proj_a.weight": (4, 256),
    f"{LAYER}.linear_attn.in_proj_b.weight": (4, 256),
    f"{LAYER}.linear_attn.in_proj_ba.weight": (8, 256),
    f"{LAYER}.linear_attn.conv1d.weight": (512, 1, 4),
    f"{LAYER}.linear_attn.out_proj.weight": (256, 256),
    "mtp.layers.0.mlp.up_proj.weight": (512, 256),
    "model.visual.blocks.0.attn.qkv.weight": (96, 32),
}
ALL = {**DENSE, **SPARSE, **HYBRID}
IN_BOTH = {
    f"{LAYER}.self_attn.q_proj.weight",
    f"{LAYER}.mlp.down_proj.weight",
    f"{LAYER}.mlp.experts.5.gate_proj.weight",
    f"{LAYER}.mlp.shared_expert.up_proj.weight",
}
OF_STATES = {f"{LAYER}.linear_attn.{name}.weight" for name in ("in_proj_qkv", "in_proj_qkvz", "out_proj")}


def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, "BF16", shape, 0)


@pytest.mark.parametrize(("bits", "quantized"), [(4, IN_BOTH), (8, IN_BOTH | OF_STATES)])
def test_the_list_and_the_plan_say_the_same(bits: int, quantized: set[str]) -> None:
    assert {name for name, shape in ALL.items() if is_quantized(tensor(name, shape), bits)} == quantized
    ignored = matcher_of(tuple(one.pattern for one in left_out_of(ALL, bits)))
    linear = {name for name, shape in ALL.items() if len(shape) > 1 and "embed" not in name}
    assert {name for name in linear if not ignored.matches(name.removesuffix(".weight"))} == quantized


def test_a_list_names_only_what_a_model_has() -> None:
    assert [one.pattern for one in left_out_of(DENSE, 4)] == ["lm_head"]
    assert [one.name for one in left_out_of(DENSE | SPARSE, 8)] == ["lm_head", "mlp.gate", "shared_expert_gate"]
    assert [one.name for one in left_out_of((), 4)] == ["lm_head"]


@pytest.mark.parametrize(("columns", "size"), [((256, 512), 128), ((192, 512), 64), ((96, 512), 32)])
def test_groups_are_the_largest_that_divide(columns: tuple[int, int], size: int) -> None:
    tensors = [tensor(f"{LAYER}.mlp.up_proj.weight", (8, width)) for width in columns]
    assert group_size_of(tensors, None, 4) == size
    assert group_size_of(tensors, 32, 4) == 32


def test_groups_that_do_not_divide_are_refused() -> None:
    tensors = [tensor(f"{LAYER}.mlp.up_proj.weight", (8, 192))]
    with pytest.raises(UsageError, match=r"--group-size 128: weights have 192 columns; .* are 64, 32"):
        group_size_of(tensors, 128, 4)
    with pytest.raises(UsageError, match="200 columns, which no group of 128, 64 or 32 divides; --to fp8"):
        group_size_of([tensor(f"{LAYER}.mlp.up_proj.weight", (8, 200))], None, 4)
