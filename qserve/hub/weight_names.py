"""Which files of a checkpoint are its weights, by their names alone.

model.safetensors.index.json   the shards that it names
model.safetensors              else that one
*.safetensors                  else all of them that are no adapter, no other format's and no variant
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ADAPTER", "HEADS", "INDEX", "PICKLED", "WHOLE", "are_weights", "loaded_names"]

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
WHOLE = (INDEX, _SINGLE, *PICKLED)
"""Any of them is a whole model."""
ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_KINDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# What a trainer leaves beside a model.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
HEADS = ("value_head", "v_head", "reward_head")
"""How the files of a reward model's head begin, beside its body."""


def loaded_names(names: Sequence[str], shards: Sequence[str]) -> list[str]:
    """The safetensors files that an engine loads of a folder with `names`; `shards`: what its index names, if any."""
    if INDEX in names:
        return list(shards)
    if _SINGLE in names:
        return [_SINGLE]
    found = [name for name in names if name.endswith(".safetensors")]
    own = [name for name in found if not name.startswith(("adapter_model", "consolidated", *HEADS))]
    parts = [name for name in own if name.startswith("model-")]
    return parts or own


def are_weights(name: str) -> bool:
    """Whether a file looks like a model's weights, or an adapter's; the head of a reward model is neither."""
    if name in ADAPTER:
        return True
    is_head = name.startswith(HEADS)
    return name.endswith(_KINDS) and not is_head and not any(word in name for word in _NO_WEIGHTS)
