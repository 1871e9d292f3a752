"""Ropes as configs in the wild have them, and each way in which they are broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "dtype": "float32",
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def without(rope: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {name: value for name, value in rope.items() if name not in keys}


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 128,
    "factor": 2.0,
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _yarn(**changed: Any) -> dict[str, Any]:
    return {"rope_scaling": {**YARN, **changed}}


SERVED: dict[str, dict[str, Any]] = {
    "none": {},
    "yarn in rope_scaling": {"rope_scaling": YARN},
    "yarn in rope_parameters": {"rope_parameters": {**YARN, "rope_theta": 10000.0}},
    "yarn by type": {"rope_scaling": {"type": "yarn", **without(YARN, "rope_type")}},
    "yarn by both names": _yarn(type="yarn"),
    "yarn with positions that are stretched already": {"rope_scaling": YARN, "max_position_embeddings": 1024},
    "yarn with more positions than it stretches to": {"rope_scaling": YARN, "max_position_embeddings": 4096},
    "yarn without original": {"rope_scaling": without(YARN, "original_max_position_embeddings")},
    "yarn with original beside it": {
        "rope_scaling": without(YARN, "original_max_position_embeddings"),
        "original_max_position_embeddings": 128,
    },
    "yarn with a whole factor": _yarn(factor=4),
    "yarn with a fraction": _yarn(original_max_position_embeddings=256.0),
    "yarn with a foreign key": _yarn(foo=1),
    "yarn with a null factor": _yarn(factor=None),
    "yarn with another type beside it": _yarn(type="linear"),
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "linear that shortens": {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "longrope": {"rope_scaling": LONGROPE},
    "longrope without factor": {"rope_scaling": without(LONGROPE, "factor")},
    "su": {"rope_scaling": {**LONGROPE, "rope_type": "su"}},
    "llama3": {"rope_scaling": LLAMA3},
    "ntk": {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}},
    "mrope without sections": {"rope_scaling": {"type": "mrope"}},
    "default with a factor": {"rope_scaling": {"rope_type": "default", "factor": 2.0}},
    "a factor alone": {"rope_scaling": {"factor": 2.0}},
    "an empty rope": {"rope_scaling": {}},
    "both keys": {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "a shorter seq_length": {"seq_length": 100},
}
"""Each is served by one engine at least."""

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "yarn without factor": ({"rope_scaling": without(YARN, "factor")}, "rope_scaling is of rope_type yarn.*factor"),
    "yarn with a factor in quotes": (_yarn(factor="4.0"), r"rope_scaling\.factor is '4\.0'.*without quotes"),
    "yarn with a list for a factor": (_yarn(factor=[4.0]), r"rope_scaling\.factor is \[4\.0\]"),
    "yarn with a factor of 0": (_yarn(factor=0), r"rope_scaling\.factor is 0"),
    "yarn with a negative factor": (_yarn(factor=-2.0), r"rope_scaling\.factor is -2\.0"),
    "yarn with original in quotes": (_yarn(original_max_position_embeddings="256"), "original_max.* is '256'"),
    "yarn with a null original": (_yarn(original_max_position_embeddings=None), "original_max.* is None"),
    "yarn with original 0": (_yarn(original_max_position_embeddings=0), "original_max.* is 0"),
    "yarn with a beta in quotes": (_yarn(beta_fast="32"), r"rope_scaling\.beta_fast is '32'"),
    "linear without factor": ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters is of .*linear.*factor"),
    "linear with a null factor": ({"rope_scaling": {"type": "linear", "factor": None}}, "factor is None"),
    "dynamic without factor": ({"rope_scaling": {"type": "dynamic", "alpha": 2.0}}, "of type dynamic and lacks factor"),
    "dynamic with a factor in quotes": ({"rope_scaling": {"type": "dynamic", "factor": "2"}}, "factor is '2'"),
    "longrope without short_factor": ({"rope_scaling": without(LONGROPE, "short_factor")}, "lacks short_factor"),
    "longrope of another width": ({"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 3}}, "list of 8 numbers"),
    "llama3 without low_freq_factor": ({"rope_scaling": without(LLAMA3, "low_freq_factor")}, "lacks low_freq_factor"),
    "llama3 with a factor in quotes": ({"rope_scaling": {**LLAMA3, "factor": "8"}}, "factor is '8'"),
    "an unknown type": ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, r"rope_scaling\.rope_type is 'foo'"),
    "an unknown older type": ({"rope_scaling": {"type": "foo", "factor": 2.0}}, r"rope_scaling\.type is 'foo'"),
    "a type in capitals": ({"rope_scaling": {"rope_type": "YaRN", "factor": 2.0}}, "is 'YaRN'; known are"),
    "a null type": ({"rope_scaling": {"rope_type": None, "factor": 2.0}}, "rope_type is None"),
    "a number for a type": ({"rope_scaling": {"rope_type": 3, "factor": 2.0}}, "rope_type is 3"),
    "a list": ({"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
    "a text": ({"rope_parameters": "yarn"}, "rope_parameters is 'yarn'"),
    "an object per layer type": ({"rope_parameters": {"full_attention": YARN}}, "an object per layer type"),
    "a base in quotes": ({"rope_theta": "1e4"}, "rope_theta is '1e4'"),
    "positions in quotes": ({"max_position_embeddings": "256"}, "max_position_embeddings is '256'"),
}
"""With what the message says. No engine starts with them."""
