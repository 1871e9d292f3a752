"""Quantization schemes: bytes per weight, who runs them, how good they are; and what a checkpoint says of itself."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from qserve.core.module_names import matcher_of
from qserve.errors import UsageError

__all__ = ["FAMILIES", "SCHEMES", "CheckpointQuantization", "Scheme", "resolve_scheme"]


@dataclass(frozen=True)
class Scheme:
    """One way to store the linear weights; core/packing.py has the bytes. Everything else stays in 16 bit.

    `quality` orders schemes, higher is better: more bits first, then calibrated before merely rounded. `is_stored`:
    checkpoints come so; the others are made while loading only. Which engine runs which is the engines' to say.
    """

    name: str
    bits: int
    quality: int
    is_stored: bool = True


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp32", 32, 101),
        Scheme("bf16", 16, 100),
        Scheme("fp16", 16, 99),
        Scheme("fp8", 8, 90),
        Scheme("gptq-int8", 8, 88),
        Scheme("fp8_per_block", 8, 87, is_stored=False),
        Scheme("fp8_per_channel", 8, 87, is_stored=False),
        Scheme("fp8_per_tensor", 8, 86, is_stored=False),
        Scheme("mxfp8", 8, 86, is_stored=False),
        Scheme("w8a16", 8, 87),
        Scheme("w8a8", 8, 86),
        Scheme("int8_per_channel_weight_only", 8, 85, is_stored=False),
        Scheme("bnb-int8", 8, 84),
        Scheme("awq", 4, 70),
        Scheme("gptq-int4", 4, 68),
        Scheme("w4a16", 4, 67),
        Scheme("nvfp4", 4, 64),
        Scheme("bnb-nf4", 4, 60),
        Scheme("bnb-nf4-single", 4, 60),
        Scheme("mxfp4", 4, 58, is_stored=False),
        Scheme("bnb-fp4", 4, 58),
    )
}

# What --quant takes beside the exact schemes: best first.
FAMILIES: dict[str, tuple[str, ...]] = {
    "auto": ("bf16", "fp8", "gptq-int8", "bnb-int8", "awq", "gptq-int4", "bnb-nf4"),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "fp8": ("fp8",),
    "int8": ("gptq-int8", "w8a16", "w8a8", "int8_per_channel_weight_only", "bnb-int8"),
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
    near = difflib.get_close_matches(word, (*FAMILIES, *SCHEMES, *_SYNONYMS), n=1)
    raise UsageError(
        f"--quant {text[:80]!r} is not a quantization{f' (did you mean {near[0]}?)' if near else ''}; it takes "
        f"{' | '.join(FAMILIES)} or an exact scheme: {', '.join(name for name in SCHEMES if name not in FAMILIES)}"
    )


@dataclass(frozen=True)
class CheckpointQuantization:
    """How a checkpoint stores its weights: most of them in one way, by name some in another or in 16 bit.

    `group_size` is 0 where scales are per channel or tensor, `block` the edge of an fp8 block (0: none), `per_row` one
    scale a row. `skipped` are patterns of modules that stay in 16 bit (core/module_names.py), `overrides` patterns of
    those that are stored otherwise, `only` of those that this is about (empty: every other). `covers_every_linear`:
    lm_head, router, encoder and drafter too, where nothing skips them. `scale_dtype` is of bitsandbytes' 4-bit scales
    where they are not quantized themselves, `kv_cache_dtype` what the file asks of the cache. `in_panels`: as a CPU's
    products hold it (qserve/model/cpu/matrix.h), not as it is stored.
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
    per_row: bool = False
    overrides: tuple[tuple[tuple[str, ...], CheckpointQuantization], ...] = ()
    only: tuple[str, ...] = ()
    covers_every_linear: bool = False
    kv_cache_dtype: str | None = None
    in_panels: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether it depends on a module's name how it is stored."""
        return bool(self.skipped or self.overrides or self.only)

    @property
    def schemes(self) -> frozenset[str]:
        """Of all of its modules."""
        return frozenset({self.scheme, *(other.scheme for _, other in self.overrides)})

    def of_module(self, module: str, is_usual: bool = True) -> CheckpointQuantization | None:
        """How `module` is stored; None in 16 bit. One that is not usually quantized must be named to be."""
        if matcher_of(self.skipped).matches(module):
            return None
        for patterns, other in self.overrides:
            if matcher_of(patterns).matches(module):
                return other
        if self.only:
            return self if matcher_of(self.only).matches(module) else None
        return self if is_usual or self.covers_every_linear else None
