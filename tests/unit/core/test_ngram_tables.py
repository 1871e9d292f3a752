"""Tables of n-grams: their rows by the published model, how they are stored, and configs that make no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.core.ngram_tables import NgramTables
from qserve.core.quantization_config import read_quantization
from qserve.errors import BrokenCheckpoint
from qserve.hub.bundled import bundled_config

FLASH = "Qwen/Qwen3.8-Flash-Next"


def config_of(model: str = FLASH, **text: Any) -> dict[str, Any]:
    config = bundled_config(model)
    assert config is not None
    return {**config, "text_config": {**config["text_config"], **text}}


def spec_of(**text: Any) -> ModelSpec:
    return ModelSpec.from_config(config_of(**text), FLASH)


def test_the_published_table_has_its_rows() -> None:
    """ngram_embedding.weight is [320001536, 160] in the checkpoint's index, of 51,200,245,760 parameters."""
    tables = spec_of().ngrams
    assert tables is not None and tables.layers == (1,)
    assert (tables.rows, tables.head_dim, tables.num_heads) == ((320_001_536,), 160, 16)


def test_primes_go_on_from_table_to_table() -> None:
    tables = NgramTables((0, 4), 8, 4, ngram_size=2, heads_per_ngram=2, least_rows=100, divisor=1)
    assert tables.rows == (101 + 103, 107 + 109)
    assert NgramTables((0,), 8, 4, 2, 2, least_rows=0, divisor=128).rows == (128,), "2 + 3, up to the divisor"


@pytest.mark.parametrize("least", [2, 90, 2_047, 7_900, 25_326_001 - 40])
def test_primes_are_those_of_a_sieve(least: int) -> None:
    """2047 and 25,326,001 are composite and look prime to the first witnesses."""
    rows = NgramTables((0,), 16, 4, 2, 16, least_rows=least, divisor=1).rows[0]
    found, number = [], least
    while len(found) < 16:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            found.append(number)
        number += 1
    assert rows == sum(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"ple_layer_ids": [4]}, "layers of linear attention"),
        ({"ple_layer_ids": [0]}, "numbers from 1 to 48"),
        ({"ple_layer_ids": [True]}, "numbers from 1 to 48"),
        ({"ple_layer_ids": "2"}, "ple_layer_ids is 2"),
        ({"ple_embed_dim": 2561}, "must divide by the 16 hashes"),
        ({"heads_per_ngram": 10_000}, "8192 at most"),
        ({"ngram_size": 1}, "ngram_size"),
        ({"ngram_vocab_size_base": -1}, "ngram_vocab_size_base"),
    ],
)
def test_a_table_that_cannot_be_is_refused(text: dict[str, Any], said: str) -> None:
    with pytest.raises(BrokenCheckpoint, match=said):
        spec_of(**text)


def test_a_model_of_the_family_may_have_none() -> None:
    assert spec_of(ple_layer_ids=[]).ngrams is None
    assert spec_of(ple_layer_ids=None).ngrams is None


def test_the_fp8_sibling_has_its_published_size() -> None:
    """185,502,232,570 bytes of tensors: scales of blocks there in 16 bit, here in 32; 280 bytes are no weights."""
    config = bundled_config(f"{FLASH}-FP8")
    assert config is not None
    tensors = tensors_of(ModelSpec.from_config(config, f"{FLASH}-FP8"))
    scales = sum(tensor.nbytes for tensor in tensors if "weight_scale" in tensor.name)
    assert sum(tensor.nbytes for tensor in tensors) - scales // 2 + 280 == 185_502_232_570


FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
MIXED = {**NVFP4, "quant_algo": "MIXED_PRECISION", "quantized_layers": {"ngram_embedding": {"quant_algo": "FP8"}}}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("quantization", "in_8_bit"),
    [
        (FP8_BLOCKS, True),
        ({**FP8_BLOCKS, "ignored_layers": ["ple"]}, False),
        (MIXED, True),
        ({**NVFP4, "quant_algo": "FP8"}, False),
        (NVFP4, False),
        (AWQ, False),
    ],
)
def test_a_table_is_in_8_bit_where_the_format_is_for_it(quantization: dict[str, Any], in_8_bit: bool) -> None:
    """What is about linear layers leaves an embedding in 16 bit."""
    spec = ModelSpec.from_config({**config_of(), "quantization_config": quantization}, FLASH)
    stored = [tensor for tensor in tensors_of(spec) if tensor.name.endswith("ngram_embedding.weight")]
    assert sum(tensor.nbytes for tensor in stored) == 51_200_245_760 * (1 if in_8_bit else 2)


def test_gates_of_streams_stay_in_16_bit() -> None:
    """Those of an MTP head that is stored in 8 bit, too."""
    quantization = {**FP8_BLOCKS, "modules_to_not_convert": ["mtp.fc"]}
    spec = ModelSpec.from_config({**config_of(), "quantization_config": quantization}, FLASH)
    assert any(t.role == "mtp" and t.dtype.startswith("F8") for t in tensors_of(spec))
    gates = [tensor for tensor in tensors_of(spec) if "hyper_connection" in tensor.name]
    assert gates and {tensor.dtype for tensor in gates} <= {"bfloat16", "float32"}


@pytest.mark.parametrize("named", [["mtp.fc"], ["model.mtp.fc"]])
def test_a_list_that_names_parts_of_the_drafter_is_about_all_of_it(named: list[str]) -> None:
    config = {**FP8_BLOCKS, "modules_to_not_convert": named}
    found, silent = (read_quantization(one, FLASH) for one in (config, FP8_BLOCKS))
    assert found is not None and silent is not None and (found.covers_drafter, silent.covers_drafter) == (True, False)


def test_what_most_engines_do_not_serve_is_named() -> None:
    assert spec_of(ple_layer_ids=None).rare_parts == ("an index of sparse attention", "residual streams")
    assert spec_of().rare_parts == ("an index of sparse attention", "tables of n-grams", "residual streams")
