"""Checkpoints that vLLM serves although a tensor is missing are refused by name."""

from __future__ import annotations

import json
import struct

import pytest

from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.weights import check_fused
from qserve.errors import BrokenCheckpoint
from tests.unit.engines.vllm.builders import DEMO, plan_of, spec_of

LAYER = "model.layers.2."
DENSE = [f"{LAYER}self_attn.{name}_proj.weight" for name in "qkvo"] + [
    f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up", "down")
]


def write(folder, names):
    header = json.dumps(
        {name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]} for i, name in enumerate(names)}
    )
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(2 * len(names)))
    return folder


@pytest.mark.parametrize("name", [name for name in DENSE if "o_proj" not in name and "down_proj" not in name])
def test_each_part_of_a_fused_matrix_is_missed(tmp_path, name):
    folder = write(tmp_path, [other for other in DENSE if other != name])
    with pytest.raises(BrokenCheckpoint, match=f"lacks {name}: vLLM would start and answer"):
        check_fused(folder)


def test_packed_weights_and_experts_too(tmp_path):
    names = [f"{LAYER}mlp.experts.7.gate_proj.qweight", f"{LAYER}self_attn.q_proj.weight_packed"]
    with pytest.raises(BrokenCheckpoint, match=r"up_proj.qweight.*k_proj.weight_packed.*v_proj.weight_packed"):
        check_fused(write(tmp_path, names))


def test_whole_checkpoints_pass(tmp_path):
    check_fused(DEMO)
    check_fused(tmp_path)  # no weights: random ones
    hybrid = [
        f"{LAYER}linear_attn.in_proj_qkv.weight",
        f"{LAYER}self_attn.k_proj.k_scale",
        f"{LAYER}self_attn.q_norm.weight",
    ]
    check_fused(write(tmp_path, [*DENSE, *hybrid]))


def test_the_command_refuses_it(tmp_path, parser):
    folder = write(tmp_path, DENSE[1:])
    with pytest.raises(BrokenCheckpoint, match=r"q_proj\.weight"):
        command(spec_of(plan_of(quant="bf16"), folder), parser, environ={})
