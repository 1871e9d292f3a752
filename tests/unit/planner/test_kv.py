"""KV pages against start-up logs of vLLM, to the block."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner.memory.kv import (
    KvLayout,
    StateOptions,
    kv_bytes_per_token,
    kv_element_bytes,
    kv_layout,
    state_bytes,
)
from qserve.units import GIB


def spec_of(model: str) -> ModelSpec:
    return ModelSpec.from_config(bundled_config(model) or {}, model)


@pytest.mark.parametrize(
    ("model", "tokens_bytes"),
    [
        ("Qwen/Qwen2.5-7B", 57344),
        ("Qwen/Qwen3-0.6B", 114688),
        ("Qwen/Qwen3-32B", 262144),
        ("Qwen/Qwen3-30B-A3B", 98304),
        ("Qwen/Qwen3.5-27B", 65536),
        ("Qwen/Qwen3.6-35B-A3B", 20480),
        ("Qwen/Qwen3.8-Flash-Next", 12 * (2 * 2 * 256 * 2 + 128 * 2 // 4)),  # a key of the index for 4 tokens
    ],
)
def test_bytes_per_token(model: str, tokens_bytes: int) -> None:
    assert kv_bytes_per_token(spec_of(model), 2) == tokens_bytes


def test_heads_split_over_ranks_and_replicate_when_they_run_out() -> None:
    spec = spec_of("Qwen/Qwen3-30B-A3B")  # 4 KV heads
    per_rank = [kv_bytes_per_token(spec, 2, ranks) for ranks in (1, 2, 4, 8)]
    assert per_rank == [98304, 49152, 24576, 24576]


# Blocks, concurrency and logged tokens of seven logs; KV bytes as the log states them.
LOGS = [
    # model, element bytes, TP, align, speculative, KV GiB, length, block tokens, concurrency
    ("Qwen/Qwen3.6-35B-A3B", 1, 1, True, 0, 5.98, 131072, 2096, 4.33),
    ("Qwen/Qwen3.6-27B", 1, 2, True, 3, 11.08, 262144, 1600, 2.38),
    ("Qwen/Qwen3.8-27B", 1, 2, True, 0, 4.99, 131072, 1568, 2.31),
    ("Qwen/Qwen3.5-4B", 2, 1, False, 0, 12.85, 1024, 528, 159.40),
    ("Qwen/Qwen3.8-27B", 2, 1, True, 0, 18.61, 262144, 784, 1.14),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2, 2, False, 0, 47878721024 / GIB, 262144, 544, 14.77),
]


@pytest.mark.parametrize(
    ("model", "element", "ranks", "align", "drafts", "gib", "length", "block", "concurrency"), LOGS
)
def test_hybrid_pages(
    model: str,
    element: int,
    ranks: int,
    align: bool,
    drafts: int,
    gib: float,
    length: int,
    block: int,
    concurrency: float,
) -> None:
    options = StateOptions(align=align, num_speculative_tokens=drafts)
    layout = kv_layout(spec_of(model), element, options, ranks)
    assert layout.block_tokens == block
    assert layout.max_concurrency(int(gib * GIB), length) == pytest.approx(concurrency, rel=0.01)


FLASH = "Qwen/Qwen3.8-Flash-Next"


@pytest.mark.parametrize(
    ("ranks", "align", "drafts", "block", "state_blocks"),
    [
        (1, True, 2, 1600, 4 * (1 + 1 + 2) + 1),  # vllm#54458 and vllm#54426
        # "kv cache group sizes 4 x 262144, 4, 400": public repository index, repository not recorded, id 71464252074
        (8, False, 0, 400, 4 + 1),
    ],
)
def test_states_of_tables_and_open_keys_have_blocks_of_their_own(
    ranks: int, align: bool, drafts: int, block: int, state_blocks: int
) -> None:
    """Three groups of linear layers, one of tables, the open keys, and attention with the keys of its index."""
    layout = kv_layout(spec_of(FLASH), 2, StateOptions(align=align, num_speculative_tokens=drafts), ranks)
    assert (layout.block_tokens, layout.state_blocks, layout.num_groups) == (block, state_blocks, 3 + 1 + 1 + 1)


@pytest.mark.parametrize(
    ("text", "block_bytes"),
    [
        ({"ple_layer_ids": None}, 784 * 25_344),
        ({"indexer_head_dim": 256}, 784 * (24_576 + 12 * 128)),
        ({"indexer_compress_ratio": 16}, 784 * (24_576 + 12 * 16)),
    ],
)
def test_keys_of_an_index_lie_beside_the_page_of_their_layer(text: dict[str, Any], block_bytes: int) -> None:
    config = bundled_config(FLASH) or {}
    spec = ModelSpec.from_config({**config, "text_config": {**config["text_config"], **text}}, FLASH)
    layout = kv_layout(spec, 2, StateOptions(align=True))
    assert (layout.block_tokens, layout.block_bytes) == (784 * 2, 2 * block_bytes)


def test_scales_of_a_quantized_cache_make_pages_larger() -> None:
    # noonghunna/club-3090: int8_per_token_head, MTP of 4, two cards: block 1584, page 1,647,360 over 17 layers
    options = StateOptions(dtype="float16", align=True, num_speculative_tokens=4)
    layout = kv_layout(spec_of("Qwen/Qwen3.6-27B"), 1, options, 2, scale_bytes=4)
    assert (layout.block_tokens, layout.block_bytes) == (1584, 17 * 1_647_360)


def test_sixteen_bit_states_halve_the_block() -> None:
    whole = kv_layout(spec_of("Qwen/Qwen3.8-27B"), 1, StateOptions())
    half = kv_layout(spec_of("Qwen/Qwen3.8-27B"), 1, StateOptions(state_dtype="bfloat16"))
    assert (whole.block_tokens, half.block_tokens) == (1568, 800)


def test_qwen3_next_keeps_its_state_in_16_bit_as_the_config_is_silent() -> None:
    linear = spec_of("Qwen/Qwen3-Next-80B-A3B-Instruct").linear_attention
    assert linear is not None
    assert state_bytes(linear, "bfloat16", None, 0) == 49152 + 1048576


def test_a_window_bounds_what_a_sequence_keeps() -> None:
    mistral = {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    }
    layout = kv_layout(ModelSpec.from_config(mistral), 2, StateOptions(), step_tokens=2048)
    assert layout.blocks_per_sequence(1600) == 100
    assert layout.blocks_per_sequence(32768) == layout.blocks_per_sequence(8192) == 384 + 1
    assert layout.max_tokens_of_one_sequence(385 * layout.block_bytes) > 32768
    assert layout.max_tokens_of_one_sequence(384 * layout.block_bytes) == 384 * 16


def test_dense_blocks_floor() -> None:
    layout = KvLayout(16, 100)
    assert layout.num_blocks(250) == 2
    assert layout.blocks_per_sequence(17) == 2
    assert layout.max_tokens_of_one_sequence(250) == 32


def test_a_cache_in_nvfp4_has_four_bits_and_a_byte_of_scale_for_sixteen_elements() -> None:
    """vLLM's `nvfp4_kv_cache_full_dim`: head_size // 2 + head_size // 16."""
    spec = spec_of("Qwen/Qwen3-32B")  # 64 layers, 8 KV heads of 128
    assert kv_bytes_per_token(spec, kv_element_bytes("nvfp4", "bfloat16")) == 2 * 64 * 8 * (128 // 2 + 128 // 16)
