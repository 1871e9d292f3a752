"""Dimensions against files that compressed-tensors itself wrote: some modules otherwise, some left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.hub.folder import read_config, read_tensors

PROJECTIONS = "re:.*self_attn.(q|k|v|o)_proj"


@pytest.mark.filterwarnings("default::DeprecationWarning")  # what it imports of torch is deprecated
@pytest.mark.parametrize(
    ("presets", "ignore"),
    [
        ({"W4A16": "Linear"}, ["lm_head", "re:.*layers.1.*"]),
        (
            {"W8A16": "re:.*mlp.(gate|up|down)_proj", "FP8_DYNAMIC": PROJECTIONS},
            ["lm_head", "model.layers.0.mlp.up_proj"],
        ),
    ],
)
def test_a_file_of_the_library_has_the_bytes_that_its_config_says(
    presets: dict[str, str], ignore: list[str], tmp_path: Path
) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme

    config = transformers.Qwen3Config(
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=512,
        vocab_size=500,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    groups = {name.lower(): preset_name_to_scheme(name, targets=[target]) for name, target in presets.items()}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=ignore))
    _freeze(model)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(tmp_path)

    spec = ModelSpec.from_config(read_config(tmp_path), "file")
    stored = sum(tensor.nbytes for tensor in read_tensors(tmp_path) or ())
    assert sum(tensor.nbytes for tensor in tensors_of(spec)) == pytest.approx(stored, rel=0.001)
    assert spec.quantization is not None and spec.quantization.is_mixed


def _freeze(model: torch.nn.Module) -> None:
    """Scales of one in place of calibrated ones: as large, and what the library wants before it packs."""
    from compressed_tensors.quantization import QuantizationStatus

    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name.endswith("scale"):
                parameter.data.fill_(1.0)
        if hasattr(module, "quantization_status"):
            module.quantization_status = QuantizationStatus.FROZEN
