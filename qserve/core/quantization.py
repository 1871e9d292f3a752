"""Quantization schemes: bytes per weight, who runs them, how good they are; and what a checkpoint says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qserve.errors import UnknownArchitecture, UsageError

__all__ = ["FAMILIES", "SCHEMES", "CheckpointQuantization", "Scheme", "resolve_scheme"]

Engine = Literal["vllm", "transformers"]


@dataclass(frozen=True)
class Scheme:
    """One way to store the linear weights; core/packing.py has the bytes. Everything else stays in 16 bit.

    `quality` orders schemes, higher is better: more bits first, then calibrated before merely rounded. `engines` run
    a checkpoint stored so, `in_flight` quantize a 16-bit one while loading; `vllm_method` is then vLLM's
    --quantization.
    """

    name: str
    bits: int
    quality: int
    engines: tuple[Engine, ...]
    in_flight: tuple[Engine, ...] = ()
    vllm_method: str | None = None


_BOTH: tuple[Engine, ...] = ("vllm", "transformers")

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp32", 32, 101, _BOTH, _BOTH),
        Scheme("bf16", 16, 100, _BOTH, _BOTH),
        Scheme("fp16", 16, 99, _BOTH, _BOTH),
        Scheme("fp8", 8, 90, _BOTH, ("vllm",), "fp8"),
        Scheme("gptq-int8", 8, 88, _BOTH),
        Scheme("fp8_per_block", 8, 87, (), ("vllm",), "fp8_per_block"),
        Scheme("fp8_per_channel", 8, 87, (), ("vllm",), "fp8_per_channel"),
        Scheme("fp8_per_tensor", 8, 86, (), ("vllm",), "fp8_per_tensor"),
        Scheme("mxfp8", 8, 86, (), ("vllm",), "mxfp8"),
        Scheme("w8a8", 8, 86, ("vllm",)),
        Scheme("int8_per_channel_weight_only", 8, 85, (), ("vllm",), "int8_per_channel_weight_only"),
        # vLLM reads 8-bit bitsandbytes checkpoints through its plugin, and quantizes to 4 bit only.
        Scheme("bnb-int8", 8, 84, _BOTH, ("transformers",)),
        Scheme("awq", 4, 70, _BOTH),
        Scheme("gptq-int4", 4, 68, _BOTH),
        Scheme("w4a16", 4, 67, ("vllm",)),
        Scheme("nvfp4", 4, 64, ("vllm",)),
        Scheme("bnb-nf4", 4, 60, _BOTH, _BOTH, "bitsandbytes"),
        Scheme("bnb-nf4-single", 4, 60, _BOTH, ("transformers",), "bitsandbytes"),
        Scheme("mxfp4", 4, 58, (), ("vllm",), "mxfp4"),
        Scheme("bnb-fp4", 4, 58, ("transformers",), ("transformers",)),
    )
}

# What --quant takes beside the exact schemes: best first.
FAMILIES: dict[str, tuple[str, ...]] = {
    "auto": ("bf16", "fp8", "gptq-int8", "bnb-int8", "awq", "gptq-int4", "bnb-nf4"),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "fp8": ("fp8",),
    "int8": ("gptq-int8", "w8a8", "int8_per_channel_weight_only", "bnb-int8"),
    "4bit": ("awq", "gptq-int4", "w4a16", "bnb-nf4"),
}


# Words of other tools for the same things.
_SYNONYMS = {
    "nf4": "bnb-nf4", "bnb-4bit": "bnb-nf4", "bitsandbytes": "bnb-nf4", "fp4": "bnb-fp4", "llm.int8": "bnb-int8",
    "gptq": "gptq-int4", "awq-int4": "awq",
}  # fmt: skip


def resolve_scheme(text: str) -> tuple[str, ...]:
    """Schemes that --quant `text` allows, best first, in any case. Raises UsageError for a word that names none."""
    word = _SYNONYMS.get(text.lower(), text.lower())
    if word in FAMILIES:
        return FAMILIES[word]
    if word in SCHEMES:
        return (word,)
    raise UsageError(
        f"--quant {text!r} is no quantization; it takes {' | '.join(FAMILIES)} or an exact scheme: "
        f"{', '.join(name for name in SCHEMES if name not in FAMILIES)}"
    )


@dataclass(frozen=True)
class CheckpointQuantization:
    """The `quantization_config` of a checkpoint that is stored quantized.

    `group_size` is 0 where scales are per channel or tensor, `block` the edge of an fp8 block (0: none).
    `skipped` are name parts of linear layers that stay in 16 bit. `scale_dtype` is of bitsandbytes' 4-bit scales where
    they are not quantized themselves.
    """

    scheme: str
    bits: int
    group_size: int = 0
    block: int = 0
    symmetric: bool = False
    double_quant: bool = False
    skipped: tuple[str, ...] = ()
    experts_only: bool = False
    scale_dtype: Literal["F32", "BF16"] = "F32"

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, where: str) -> CheckpointQuantization | None:
        """What a checkpoint says of itself; None for a 16-bit one. Raises UnknownArchitecture for unknown methods."""
        if not config:
            return None
        method = str(config.get("quant_method", "")).lower()
        skipped = tuple(
            config.get("modules_to_not_convert") or config.get("ignore") or config.get("llm_int8_skip_modules") or ()
        )
        if method in ("awq", "gptq"):
            bits, group = int(config.get("bits", 4)), int(config.get("group_size", 128))
            name = "awq" if method == "awq" else f"gptq-int{bits}"
            symmetric = bool(config.get("sym", False))
            return cls(name, bits, max(group, 0), symmetric=symmetric, skipped=skipped)
        if method == "fp8":
            block = config.get("weight_block_size") or (0,)
            return cls("fp8", 8, block=int(block[0]), symmetric=True, skipped=skipped)
        if method == "bitsandbytes":
            if config.get("load_in_8bit"):
                return cls("bnb-int8", 8, symmetric=True, skipped=skipped)
            double = bool(config.get("bnb_4bit_use_double_quant", False))
            name = "bnb-nf4" if double else "bnb-nf4-single"
            name = "bnb-fp4" if config.get("bnb_4bit_quant_type", "nf4") == "fp4" else name
            return cls(name, 4, 64, double_quant=double, skipped=skipped)
        if method in ("compressed-tensors", "modelopt"):
            return cls._from_groups(config, method, skipped, where)
        raise UnknownArchitecture(
            f"{where}: quantization method {method!r} is unknown to qserve; known are awq, gptq, fp8, bitsandbytes, "
            "compressed-tensors, modelopt"
        )

    @classmethod
    def _from_groups(
        cls, config: Mapping[str, Any], method: str, skipped: tuple[str, ...], where: str
    ) -> CheckpointQuantization:
        groups = config.get("config_groups") or {}
        first: Mapping[str, Any] = next(iter(groups.values()), {})
        weights = first.get("weights") or {}
        bits, kind = int(weights.get("num_bits", 8)), weights.get("type", "int")
        if method == "modelopt" and "FP4" in str(config.get("quant_algo", "")).upper():
            bits, kind = 4, "float"
        group = int(weights.get("group_size") or 0)
        name = {(4, "int"): "w4a16", (4, "float"): "nvfp4", (8, "float"): "fp8", (8, "int"): "w8a8"}.get((bits, kind))
        if name is None:
            raise UnknownArchitecture(f"{where}: {method} with {bits}-bit {kind} weights is unknown to qserve")
        if (bits, kind) == (8, "int") and not first.get("input_activations"):
            group = group if group > 0 else 0
        return cls(name, bits, max(group, 0), symmetric=bool(weights.get("symmetric", True)), skipped=skipped)
