"""A Qwen3 checkpoint as GGUF in bf16, with no vocabulary: for llama.cpp's own benchmarks, which draw tokens at random.

PYTHON_WITH_GGUF write_gguf.py CHECKPOINT OUT.gguf      # pip install gguf numpy
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy

LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors_of(folder: Path) -> Iterator[tuple[str, numpy.ndarray]]:
    """Names and bf16 values, as uint16."""
    for file in sorted(folder.glob("*.safetensors")):
        raw = numpy.memmap(file, dtype=numpy.uint8, mode="r")
        length = int(raw[:8].view(numpy.uint64)[0])
        for name, entry in json.loads(bytes(raw[8 : 8 + length])).items():
            if name != "__metadata__":
                assert entry["dtype"] == "BF16", entry
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                yield name, raw[begin:end].view(numpy.uint16).reshape(entry["shape"])


def name_of(name: str) -> str:
    """llama.cpp's name of a tensor."""
    stem = name.removesuffix(".weight")
    if stem in OTHERS:
        return f"{OTHERS[stem]}.weight"
    number, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{number}.{LAYER[part]}.weight"


def main() -> None:
    """Command line."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(32768)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    for name, values in tensors_of(folder):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if values.ndim == 1:
            writer.add_tensor(name_of(name), (values.astype(numpy.uint32) << 16).view(numpy.float32))
        else:
            writer.add_tensor(name_of(name), values.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
