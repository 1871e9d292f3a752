"""A checkpoint that asks for a KV cache in fp8: planned so where vLLM takes it so."""

from __future__ import annotations

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner import make_plan, plan_request
from qserve.units import GIB

SCHEME = {"num_bits": 8, "type": "float", "dynamic": False}


def plan_of(gpu, scheme, **fixed):
    quantization = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "kv_cache_scheme": scheme}
    config = {**bundled_config("Qwen/Qwen3-8B"), "quantization_config": quantization}
    checkpoint = Checkpoint("m", None, config, ModelSpec.from_config(config, "m"))
    machine = Hardware(parse_gpu(gpu), 64 * GIB, 64 * GIB, 16)
    return make_plan(checkpoint, machine, plan_request(engine="vllm", max_num_seqs=32, **fixed))


def test_its_cache_holds_twice_the_tokens():
    plain, stored = plan_of("rtx-5090", None), plan_of("rtx-5090", SCHEME)
    assert (plain.kv_cache_dtype, stored.kv_cache_dtype) == ("auto", "fp8")
    assert stored.kv_cache_tokens / plain.kv_cache_tokens == pytest.approx(2, rel=0.02)
    assert stored.engine_args[stored.engine_args.index("--kv-cache-dtype") + 1] == "fp8"
    assert any("asks for a KV cache in fp8" in note for note in stored.notes)


def test_the_user_and_the_card_come_first():
    assert plan_of("rtx-5090", SCHEME, kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"
    assert plan_of("t4", SCHEME).kv_cache_dtype == "auto"
