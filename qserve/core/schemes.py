"""Quantization schemes, a row each; which engine runs one is in engines/*/plan/schemes.py."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from qserve.core.quantization.layouts import BNB_4BIT, COMPRESSED, FP8, GPTQ, ROW_SCALES, Part
from qserve.core.quantization.marks import Mark, compressed, packed
from qserve.core.quantization.scheme import Scheme
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.quantization.weight_format import (
    FP8_MARLIN,
    INT4_MARLIN,
    INT8_MARLIN,
    NATIVE_FP8,
    NATIVE_FP8_BLOCK,
    NF4,
    WeightFormat,
)
from qserve.errors import UsageError

__all__ = ["FAMILIES", "SCHEMES", "resolve_scheme"]

_GPTQ_PACKAGES, _COMPRESSED_PACKAGES, _BNB = ("gptqmodel", "optimum"), ("compressed-tensors",), ("bitsandbytes",)
# Source: bitsandbytes' installation guide of 0.50 (no Maxwell in its wheels from 0.48 on).
_LEAST_OF_BNB, _LEAST_OF_INT8 = (6, 0), (7, 5)
_WORDS = ("auto", "fp16", "bf16", "fp8", "int8", "4bit")
_BNB_8BIT = {"quant_method": "bitsandbytes", "load_in_8bit": True}
_BLOCKS_OF_128 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def _by_bnb(quant_type: str, is_double: bool) -> Mapping[str, Any]:
    four_bit = {"load_in_4bit": True, "bnb_4bit_quant_type": quant_type, "bnb_4bit_use_double_quant": is_double}
    return {"quant_method": "bitsandbytes", **four_bit}


def _marks_of_bnb(quant_type: str, **more: bool) -> tuple[Mark, ...]:
    return (Mark("bitsandbytes", {"load_in_8bit": False, "bnb_4bit_quant_type": quant_type, **more}, 64),)


# Of MLX, by mlx_lm.convert: codes, and a scale and a bias in 16 bit for each group of 64. llama.cpp's Q8_0 and Q4_0, a
# scale for 32, are as large.
_IN_GROUPS = (Part("weight", "U32", "weight"), Part("scales", "F16", "group", 16), Part("biases", "F16", "group", 16))

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp32", 32, 101, dtype="float32", unpacked=WeightFormat("fp32", 4.0, peak_factor=0.5), on_cpu="fp32"),
        Scheme("bf16", 16, 100, dtype="bfloat16", words=("auto", "bf16")),
        Scheme("fp16", 16, 99, dtype="float16", words=("fp16",)),
        Scheme(
            "fp8",
            8,
            90,
            parts=FP8,
            made=CheckpointQuantization("fp8", 8),
            words=("auto", "fp8"),
            marks=(
                Mark("fp8", symmetric=True),
                Mark("compressed-tensors", {"bits": 8, "type": "float"}),
                Mark("modelopt", {"quant_algo": "FP8_PB_WO.*|.*FP8_PB_WO"}, block=128, symmetric=True),
                Mark("modelopt", {"quant_algo": "FP8_PER_CHANNEL.*|.*FP8_PER_CHANNEL"}, symmetric=True, per_row=True),
                Mark("modelopt", {"quant_algo": "FP8.*"}, symmetric=True),
            ),
            config=_BLOCKS_OF_128,
            endings=(
                ("-FP8-(dynamic|static)", compressed(8, "float", strategy="channel")),
                ("-FP8(-block)?", _BLOCKS_OF_128),
            ),
            packed_from=(8, 0),
            in_panels=True,
            native=NATIVE_FP8_BLOCK,
            unpacked=FP8_MARLIN,
            pays_from=(8, 0),
            has_own_head=True,
        ),
        Scheme(
            "gptq-int8",
            8,
            88,
            parts=GPTQ,
            words=("auto", "int8"),
            marks=(Mark("gptq", {"bits": 8}, 128),),
            config=packed("gptq", 8, sym=True),
            endings=(
                ("-(AutoRound-INT8|int8-AutoRound)", packed("auto-round", 8)),
                ("-(GPTQ-Int8|int8|8bit)", packed("gptq", 8, sym=True)),
            ),
            packages=_GPTQ_PACKAGES,
            in_panels=True,
            rounded="when asked",
            unpacked=WeightFormat("int8 (Marlin)", 1.03, peak_factor=0.9),
            on_cpu="int8",
        ),
        Scheme(
            "fp8_per_block",
            8,
            87,
            is_stored=False,
            parts=FP8,
            made=CheckpointQuantization("fp8_per_block", 8, block=128),
            scales="one scale per block of 128 × 128",
            native=NATIVE_FP8_BLOCK,
            unpacked=FP8_MARLIN,
        ),
        Scheme(
            "fp8_per_channel",
            8,
            87,
            is_stored=False,
            parts=(Part("weight", "F8_E4M3", "weight", 8), ROW_SCALES),
            made=CheckpointQuantization("fp8_per_channel", 8),
            scales="one scale per row",
            native=NATIVE_FP8,
            unpacked=FP8_MARLIN,
        ),
        Scheme(
            "fp8_per_tensor",
            8,
            86,
            is_stored=False,
            parts=FP8,
            made=CheckpointQuantization("fp8_per_tensor", 8),
            scales="one scale per tensor",
            native=NATIVE_FP8,
            unpacked=FP8_MARLIN,
        ),
        Scheme(
            "mxfp8",
            8,
            86,
            is_stored=False,
            parts=(Part("weight", "F8_E4M3", "weight", 8), Part("weight_scale", "U8", "group", 8)),
            made=CheckpointQuantization("mxfp8", 8, 32),
            scales="one scale per 32 weights",
            native=WeightFormat("mxfp8", 1.03, "fp8", "fp8", "fp8"),
            unpacked=FP8_MARLIN,
        ),
        Scheme(
            "w8a16",
            8,
            87,
            parts=COMPRESSED,
            words=("int8",),
            marks=(Mark("compressed-tensors", {"bits": 8, "type": "int", "activations": False}),),
            endings=((r"[-.](quantized\.)?w8a16", compressed(8, "int")),),
            packages=_COMPRESSED_PACKAGES,
            packed_from=None,
            in_panels=True,
            rounded="when asked",
            unpacked=INT8_MARLIN,
            on_cpu="int8",
        ),
        Scheme(
            "w8a8",
            8,
            86,
            parts=COMPRESSED,
            words=("int8",),
            marks=(Mark("compressed-tensors", {"bits": 8, "type": "int", "activations": True}),),
            config=compressed(8, "int", activation_bits=8, ignore=None),
            endings=((r"[-.](quantized\.)?w8a8", compressed(8, "int", activation_bits=8)),),
            packages=_COMPRESSED_PACKAGES,
            packed_from=None,
            in_panels=True,
            rounded="by default",
            native=WeightFormat("int8", 1.0, "fp8", "fp8", "int8"),
            unpacked=FP8_MARLIN,
            on_cpu="int8",
        ),
        Scheme(
            "int8_per_channel_weight_only",
            8,
            85,
            is_stored=False,
            parts=(Part("weight", "I8", "weight", 8), ROW_SCALES),
            made=CheckpointQuantization("int8_per_channel_weight_only", 8, experts_only=True),
            scales="the experts only, everything else stays in 16 bit",
            words=("int8",),
            unpacked=INT8_MARLIN,
        ),
        Scheme(
            "bnb-int8",
            8,
            84,
            parts=(Part("weight", "I8", "weight", 8), Part("SCB", "F32", "row", 32)),
            made=CheckpointQuantization("bnb-int8", 8, symmetric=True),
            words=("auto", "int8"),
            synonyms=("llm.int8",),
            marks=(Mark("bitsandbytes", {"load_in_8bit": True}, symmetric=True),),
            config=_BNB_8BIT,
            endings=(("-bnb-8bit", _BNB_8BIT),),
            packages=_BNB,
            least_card=_LEAST_OF_INT8,
            rounded="by default",
            unpacked=WeightFormat("int8 (bitsandbytes)", 1.0, bandwidth_factor=0.6, peak_factor=0.5),
            on_cpu="int8",
        ),
        Scheme(
            "awq",
            4,
            70,
            parts=(
                Part("qweight", "I32", "weight", 4),
                Part("scales", "F16", "group", 16),
                Part("qzeros", "I32", "group", 4),
            ),
            words=("auto", "4bit"),
            synonyms=("awq-int4",),
            marks=(Mark("awq", group_size=128),),
            config=packed("awq", 4),
            endings=(("-AWQ(-(INT4|4bit))?", packed("awq", 4)),),
            packages=("gptqmodel",),
            in_panels=True,
            rounded="by default",
            unpacked=INT4_MARLIN,
            on_cpu="4bit",
        ),
        Scheme(
            "gptq-int4",
            4,
            68,
            parts=GPTQ,
            words=("auto", "4bit"),
            synonyms=("gptq",),
            marks=(Mark("gptq", {"bits": 4}, 128),),
            config=packed("gptq", 4, sym=True),
            endings=(
                ("-(AutoRound(-INT4)?|int4-AutoRound)", packed("auto-round", 4)),
                ("-(GPTQ(-Int4)?|int4|4bit)", packed("gptq", 4)),
            ),
            packages=_GPTQ_PACKAGES,
            in_panels=True,
            rounded="by default",
            unpacked=INT4_MARLIN,
            on_cpu="4bit",
        ),
        Scheme(
            "w4a16",
            4,
            67,
            parts=COMPRESSED,
            words=("4bit",),
            marks=(Mark("compressed-tensors", {"bits": 4, "type": "int"}),),
            endings=((r"[-.](quantized\.)?w4a16(-G128)?", compressed(4, "int", group_size=128)),),
            packages=_COMPRESSED_PACKAGES,
            packed_from=None,
            in_panels=True,
            rounded="by default",
            unpacked=INT4_MARLIN,
            on_cpu="4bit",
        ),
        Scheme(
            "nvfp4",
            4,
            64,
            parts=(
                Part("weight", "U8", "weight", 4),
                Part("weight_scale", "F8_E4M3", "group", 8),
                Part("weight_scale_2", "F32", "tensor", 64),  # and the activations'
            ),
            # W4A16_NVFP4 and NVFP4_AWQ store like NVFP4.
            marks=(
                Mark("compressed-tensors", {"bits": 4, "type": "float"}, 16),
                Mark("modelopt", {"quant_algo": "NVFP4.*|.*NVFP4"}, 16, symmetric=True),
            ),
            endings=(("-NVFP4(A16)?", compressed(4, "float", group_size=16)),),
            packages=_COMPRESSED_PACKAGES,
            packed_from=None,
            native=WeightFormat("nvfp4", 0.5625, "nvfp4", "nvfp4", "fp4"),
            unpacked=INT4_MARLIN,
        ),
        Scheme(
            "bnb-nf4",
            4,
            60,
            parts=BNB_4BIT,
            made=CheckpointQuantization("bnb-nf4", 4, 64, double_quant=True),
            words=("auto", "4bit"),
            synonyms=("nf4", "bnb-4bit", "bitsandbytes"),
            marks=_marks_of_bnb("(?!fp4$).*", bnb_4bit_use_double_quant=True),
            config=_by_bnb("nf4", True),
            endings=(("-(unsloth-)?bnb-4bit", _by_bnb("nf4", True)),),
            packages=_BNB,
            least_card=_LEAST_OF_BNB,
            rounded="by default",
            unpacked=NF4,
            on_cpu="4bit",
        ),
        Scheme(
            "bnb-nf4-single",
            4,
            60,
            parts=BNB_4BIT,
            made=CheckpointQuantization("bnb-nf4-single", 4, 64),
            marks=_marks_of_bnb("(?!fp4$).*", bnb_4bit_use_double_quant=False),
            config=_by_bnb("nf4", False),
            packages=_BNB,
            least_card=_LEAST_OF_BNB,
            rounded="by default",
            unpacked=NF4,
            on_cpu="4bit",
        ),
        Scheme(
            "mxfp4",
            4,
            58,
            is_stored=False,
            parts=(Part("weight", "U8", "weight", 4), Part("weight_scale", "U8", "group", 8)),
            made=CheckpointQuantization("mxfp4", 4, 32),
            scales="one scale per 32 weights",
            native=WeightFormat("mxfp4", 0.53, "nvfp4", "nvfp4", "fp4"),
            unpacked=INT4_MARLIN,
        ),
        Scheme(
            "bnb-fp4",
            4,
            58,
            parts=BNB_4BIT,
            made=CheckpointQuantization("bnb-fp4", 4, 64, double_quant=True),
            synonyms=("fp4",),
            marks=_marks_of_bnb("fp4"),
            config=_by_bnb("fp4", True),
            packages=_BNB,
            least_card=_LEAST_OF_BNB,
            rounded="by default",
            unpacked=NF4,
            on_cpu="4bit",
        ),
        Scheme(
            "mlx-8bit",
            8,
            83,
            is_stored=False,
            parts=_IN_GROUPS,
            made=CheckpointQuantization("mlx-8bit", 8, 64, covers_every_linear=True),
            words=("auto", "int8"),
            unpacked=WeightFormat("8 bit in groups", 1.0625),
        ),
        Scheme(
            "mlx-4bit",
            4,
            56,
            is_stored=False,
            parts=_IN_GROUPS,
            made=CheckpointQuantization("mlx-4bit", 4, 64, covers_every_linear=True),
            words=("auto", "4bit"),
            unpacked=WeightFormat("4 bit in groups", 0.5625),
        ),
        Scheme(
            "gptq-int3",
            3,
            40,
            parts=GPTQ,
            is_offered=False,
            marks=(Mark("gptq", {"bits": 3}, 128),),
            packages=_GPTQ_PACKAGES,
        ),
        Scheme(
            "gptq-int2",
            2,
            20,
            parts=GPTQ,
            is_offered=False,
            marks=(Mark("gptq", {"bits": 2}, 128),),
            packages=_GPTQ_PACKAGES,
        ),
    )
}

FAMILIES: dict[str, tuple[str, ...]] = {
    word: tuple(
        one.name for one in sorted(SCHEMES.values(), key=lambda one: one.quality, reverse=True) if word in one.words
    )
    for word in _WORDS
}
"""What --quant takes beside the exact schemes: best first."""
_SYNONYMS = {word: scheme.name for scheme in SCHEMES.values() for word in scheme.synonyms}
"""Words of other tools for the same things."""
_OFFERED = tuple(name for name, scheme in SCHEMES.items() if scheme.is_offered)


def resolve_scheme(text: str) -> tuple[str, ...]:
    """Schemes that --quant `text` allows, best first, in any case. Raises UsageError for a word that names none."""
    word = _SYNONYMS.get(text.lower(), text.lower())
    if word in FAMILIES:
        return FAMILIES[word]
    if word in _OFFERED:
        return (word,)
    near = difflib.get_close_matches(word, (*FAMILIES, *_OFFERED, *_SYNONYMS), n=1)
    raise UsageError(
        f"--quant {text[:80]!r} is not a quantization{f' (did you mean {near[0]}?)' if near else ''}; it takes "
        f"{' | '.join(FAMILIES)} or an exact scheme: {', '.join(name for name in _OFFERED if name not in FAMILIES)}"
    )
