"""Writes a checkpoint folder that transformers and vLLM load: bf16 weights, config, tokenizer, chat template."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from qserve.demo import chat_model_path
from qserve.demo.tokenizer import write_tokenizer

__all__ = ["save_chat_checkpoint"]

# What to_dict() adds and no reader of a causal language model needs.
_NOT_WRITTEN = {
    "_name_or_path",
    "chunk_size_feed_forward",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "sliding_window",
    "use_sliding_window",
}


def save_chat_checkpoint(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint into `folder`, file by file and each atomically: a reader sees an old file or a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        fresh = Path(name)
        _write(model, tokenizer, fresh)
        for file in sorted(fresh.iterdir()):
            file.replace(folder / file.name)


def _write(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    # The tied lm_head is stored once, as the embedding.
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes 0600, which the other users of a shared installation can't read.
    (folder / "model.safetensors").chmod(0o644)
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_WRITTEN}
    config |= {"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generation = {
        "bos_token_id": None,
        "do_sample": False,
        "eos_token_id": [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")],
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    write_tokenizer(tokenizer, folder)
    # The template is written by hand, not trained; it travels with every checkpoint.
    shutil.copyfile(chat_model_path() / "chat_template.jinja", folder / "chat_template.jinja")
