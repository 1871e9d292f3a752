"""Of a repository the files that are loaded are fetched, and no second set of weights."""

from __future__ import annotations

import pytest

from qserve.hub.wanted import wanted_names

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
BESIDE = ["config.json", "generation_config.json", "tokenizer.json", "merges.txt", "chat_template.jinja"]


@pytest.mark.parametrize(
    ("weights", "others"),
    [
        ([INDEX, *SHARDS], ["consolidated.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json"]),
        ([INDEX, *SHARDS], ["model-00003-of-00003.safetensors", "original/consolidated.00.pth", "onnx/model.json"]),
        ([INDEX, *SHARDS], ["adapter_config.json", "adapter_model.safetensors", "qwen-q4_k_m.gguf"]),
        ([INDEX, *SHARDS, "value_head.safetensors"], ["training_args.bin", "optimizer.pt"]),
        (["model.safetensors"], ["model.fp16.safetensors", "pytorch_model.bin", "checkpoint-100/config.json"]),
        (["model.safetensors", "modules.json", "1_Pooling/config.json"], ["openvino/openvino_config.json"]),
        (["model.safetensors", "tokenizer.model", "qwen.tiktoken"], ["modeling_qwen.py", "README.md"]),
        (["weights.safetensors"], ["pytorch_model.bin"]),
        (["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"], ["tf_model.h5", "training_args.bin"]),
        (["adapter_config.json", "adapter_model.safetensors"], ["optimizer.pt"]),
        (["adapter_config.json", "adapter_model.bin"], ["training_args.bin"]),
        ([], ["flax_model.msgpack"]),
    ],
    ids=lambda names: " ".join(names)[:60],
)
def test_one_set_of_weights_with_what_belongs_to_it(weights: list[str], others: list[str]) -> None:
    names = sorted([*BESIDE, *weights, *others])
    assert wanted_names(names, SHARDS if INDEX in names else []) == sorted([*BESIDE, *weights])
