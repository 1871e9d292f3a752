"""Checkpoints that store some modules otherwise: dimensions against the bytes that their files hold."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.dimensions import num_parameters, tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.module_names import matcher_of
from qserve.core.quantization_config import read_quantization
from qserve.errors import UnknownArchitecture

H, INNER, LAYERS, VOCAB, Q, KV = 256, 512, 4, 1000, 256, 128
DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": H,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
LINEARS = {
    "self_attn.q_proj": (Q, H),
    "self_attn.k_proj": (KV, H),
    "self_attn.v_proj": (KV, H),
    "self_attn.o_proj": (H, Q),
    "mlp.gate_proj": (INNER, H),
    "mlp.up_proj": (INNER, H),
    "mlp.down_proj": (H, INNER),
}
# Norms of every layer (two of the hidden size, q and k norm), the last one, embedding and lm_head.
IN_16_BIT = 2 * (LAYERS * (2 * H + 2 * 64) + H + 2 * VOCAB * H)

NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
W8 = {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


def total(quantization_config, **changes):
    spec = ModelSpec.from_config({**DENSE, **changes, "quantization_config": quantization_config}, "m")
    return sum(tensor.nbytes for tensor in tensors_of(spec))


def by_file(how):
    """Bytes of a header that holds each linear layer as `how(layer, name)` says: a byte function of its shape."""
    return IN_16_BIT + sum(how(i, name)(*shape) for i in range(LAYERS) for name, shape in LINEARS.items())


def bf16(rows, columns):
    return 2 * rows * columns


def nvfp4(rows, columns):
    return rows * columns // 2 + rows * columns // 16 + 8


def w4(rows, columns):
    return rows * columns // 2 + 2 * rows * columns // 128


def w8(rows, columns):
    return rows * columns + 2 * rows * columns // 32


def fp8_rows(rows, columns):
    return rows * columns + 2 * rows


def groups(*pairs, ignore=("lm_head",), **more):
    named = {
        f"group_{index}": {"targets": targets, "weights": weights} for index, (targets, weights) in enumerate(pairs)
    }
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore), **more}


@pytest.mark.parametrize(
    ("config", "how"),
    [
        (groups((["Linear"], NVFP4)), lambda i, name: nvfp4),
        (
            groups((["Linear"], NVFP4), ignore=["lm_head", "model.layers.0.mlp.down_proj", "re:.*self_attn.*"]),
            lambda i, name: bf16 if "attn" in name or (i, name) == (0, "mlp.down_proj") else nvfp4,
        ),
        (groups((["re:.*mlp.*"], W4), (["Linear"], FP8)), lambda i, name: w4 if "mlp" in name else fp8_rows),
        (
            groups((["re:.*layers\\.[0-1]\\..*"], W8), (["re:.*layers\\.2\\..*"], W4)),
            lambda i, name: w8 if i < 2 else w4 if i == 2 else bf16,
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.1.*", "*o_proj"]},
            lambda i, name: bf16 if i == 1 or "o_proj" in name else nvfp4,
        ),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
            lambda i, name: nvfp4,
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.language_model.layers.0.self_attn.q_proj": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
                    "model.language_model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                    "model.language_model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                },
            },
            lambda i, name: {
                (0, "self_attn.q_proj"): fp8_rows,
                (0, "mlp.up_proj"): nvfp4,
                (1, "mlp.up_proj"): nvfp4,
            }.get((i, name), bf16),
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.mlp.gate_proj", "mlp.gate", "lm_head"]},
            lambda i, name: bf16 if (i, name) == (3, "mlp.gate_proj") else lambda rows, columns: rows * columns + 4,
        ),
    ],
)
def test_dimensions_come_to_the_bytes_of_the_file(config, how):
    assert total(config) == by_file(how)


def test_auto_round_stores_as_gptq_does_but_for_modules_of_its_own_bits():
    def gptq(bits):
        return lambda rows, columns: (
            (rows * columns + rows * columns // 128) * bits // 8 + (2 * rows * columns // 128 + 4 * columns)
        )

    config = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "packing_format": "auto_round:auto_gptq",
        "block_name_to_quantize": "model.language_model.layers",
        "extra_config": {
            "model.layers.2.self_attn.q_proj": {"bits": 16},
            ".*down_proj.*": {"bits": 8},
            "o_proj": {"bits": 16},
        },
    }
    assert total(config) == by_file(
        lambda i, name: (
            bf16 if (i, name) == (2, "self_attn.q_proj") or "o_proj" in name else gptq(8 if "down" in name else 4)
        )
    )


def test_gptqmodels_dynamic_rules():
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "dynamic": {"-:.*self_attn": {}}}
    plain = {**config, "dynamic": {}}
    attention = sum(rows * columns for name, (rows, columns) in LINEARS.items() if "attn" in name)
    assert total(config) > total(plain) + LAYERS * attention


def test_a_rule_of_gptqmodel_about_the_head_holds_where_the_config_has_one():
    """Qwen3.5's own files name a head that is in 16 bit."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "dynamic": {"-:.*mtp.*": {}}}
    for rule in ("lm_head", "+:.*lm_head$"):
        named = {**config, "dynamic": {rule: {}, "model.embed_tokens": {}, **config["dynamic"]}}
        assert total(named) == total(config)
        assert total({**named, "lm_head": False}) == total(config)
        assert total({**named, "lm_head": True}) < total(config)


def test_lm_head_is_quantized_where_nothing_leaves_it_out():
    difference = total(groups((["Linear"], NVFP4))) - total(groups((["Linear"], NVFP4), ignore=[]))
    assert difference == bf16(VOCAB, H) - nvfp4(VOCAB, H)


def test_mixed_or_not_the_parameters_are_the_models():
    config = groups((["re:.*mlp.*"], W4), (["Linear"], FP8))
    mixed = ModelSpec.from_config({**DENSE, "quantization_config": config}, "m")
    assert num_parameters(mixed) == num_parameters(ModelSpec.from_config(DENSE, "m"))


def test_layers_of_a_hybrid_are_those_that_have_the_module():
    """Of 8 layers 3 and 7 have full attention: leaving layer 3 alone leaves one q_proj in 16 bit, not a quarter."""
    hybrid = {
        **DENSE,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    }
    whole = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
    part = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head", "model.language_model.layers.3.self_attn.q_proj"],
    }
    spec = ModelSpec.from_config(hybrid, "m")
    tensors = {
        name: sum(t.nbytes for t in tensors_of(ModelSpec.from_config({**hybrid, "quantization_config": config}, "m")))
        for name, config in (("whole", whole), ("part", part))
    }
    elements = 2 * spec.num_attention_heads * spec.head_dim * H  # gated: twice as many rows
    assert tensors["part"] - tensors["whole"] == elements - 4


def test_the_cache_that_a_checkpoint_asks_for():
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    assert read_quantization(groups((["Linear"], NVFP4), kv_cache_scheme=scheme), "m").kv_cache_dtype == "fp8"
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": scheme}
    assert read_quantization(modelopt, "m").kv_cache_dtype == "fp8"
    legacy = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    assert read_quantization(legacy, "m").kv_cache_dtype == "fp8"
    assert read_quantization({**modelopt, "kv_cache_scheme": None}, "m").kv_cache_dtype is None


@pytest.mark.parametrize(
    ("pattern", "module", "is_match"),
    [
        ("mlp.gate", "model.layers.0.mlp.gate", True),
        ("mlp.gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.11.mlp.up_proj", False),
        ("visual", "visual.blocks.0.attn.qkv", True),
        ("model.visual.*", "visual.blocks.0.attn.qkv", True),
        ("model.language_model.layers.2.mlp*", "model.layers.2.mlp.up_proj", True),
        ("re:.*lm_head", "lm_head", True),
        ("re:lm_head", "model.lm_head_of_sorts", False),
        ("re:(", "model.layers.0.mlp.up_proj", False),
    ],
)
def test_patterns(pattern, module, is_match):
    assert matcher_of((pattern,)).matches(module) == is_match


@pytest.mark.parametrize(
    ("config", "scheme", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4.0}, "gptq-int4", 4),
        ({"quant_method": "gptq", "bits": "8"}, "gptq-int8", 8),
        ({"quant_method": "fp8", "bits": None}, "fp8", 8),
        ({"quant_method": "fp8", "bits": 4, "dynamic": True}, "fp8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bits": None}, "bnb-nf4-single", 4),
    ],
)
def test_bits_are_a_number_however_they_are_written(config, scheme, bits):
    found = read_quantization(config, "m")
    assert (found.scheme, found.bits) == (scheme, bits)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "exl3"},
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        {"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"},
        {"quant_method": "modelopt", "quant_algo": "MXFP8"},
        groups((["Linear"], {"num_bits": 3, "type": "int"})),
    ],
)
def test_what_is_not_known_is_named(config):
    with pytest.raises(UnknownArchitecture, match="unknown to qserve"):
        read_quantization(config, "m")
