"""What vLLM itself derives from configs, without a start: reads {name: {"folder", "overrides", "length"}}, writes
{name: {"derived", "cached"} or {"error"}}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}

import torch
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope


def derived(case: dict[str, Any]) -> dict[str, Any]:
    """The context that the release derives, and rows of its table of angles."""
    try:
        config = ModelConfig(
            model=case["folder"],
            skip_tokenizer_init=True,
            dtype="float32",
            hf_overrides=case.get("overrides") or {},
            max_model_len=case.get("length"),
        )
        text = config.hf_text_config
        whole = VllmConfig()
        whole.model_config = config
        with set_current_vllm_config(whole):
            rope = get_rope(
                text.head_dim, text.max_position_embeddings, rope_parameters=text.rope_parameters, dtype=torch.float32
            )
        table = getattr(rope, "cos_sin_cache", None)
        table = rope.long_short_cos_sin_cache if table is None else table
        return {"derived": int(config.max_model_len), "cached": table.shape[0], "base": text.rope_parameters}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps({name: derived(case) for name, case in json.load(sys.stdin).items()}))
