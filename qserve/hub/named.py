"""Plans a quantized checkpoint that can't be read, from its name: base model and quantization."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qserve.core.schemes import SCHEMES
from qserve.hub.bundled import bundled_config, known_ids

__all__ = ["base_of", "foreign_format", "named_config", "on_apple", "packed_word"]

# Formats that neither engine reads, and what does.
_FOREIGN = {
    "GGUF": "llama.cpp and Ollama",
    "exl2": "ExLlama",
    "exl3": "ExLlama",
    "MLX": "Apple's MLX",
    "ov": "OpenVINO",
}

_READ_ON_APPLE = ("GGUF", "MLX")
_BITS = re.compile(
    r"(?<![0-9a-z])(?:i?q|int)?(\d{1,2})(?:-?bit|_[0-9k]\w*)?(?![0-9a-z])|(?:bf|fp|f)(?P<float>16)", re.I
)
# What stands between the dashes of a packed checkpoint's name, behind the model's.
_WORD = re.compile(
    r"(?:awq|gptq|autoround|hqq|aqlm|quark|quip|eetq|bnb|bitsandbytes|nf4|w\d+a(?:fp)?\d+|"
    r"(?:nv|mx)?fp[468]|(?:mx)?int\d|u?i\d|\d+bits?|quantized)",
    re.IGNORECASE,
)
_FOUR, _EIGHT = (frozenset({"int4", "w4a16", "nvfp4"}), frozenset({"int8", "w8a16", "w8a8", "fp8"}))
_METHODS = frozenset({"awq", "gptq", "autoround", "bnb", "quantized"})
_ENDINGS = tuple(one for scheme in SCHEMES.values() for one in scheme.endings)
# Words that are all said, and the plain ending of a name that usually means the same packing; the first that fits.
_SAID = (
    ("nvfp4", "-NVFP4"),
    ("fp8", "-FP8"),
    ("w8a8", "-w8a8"),
    ("w8a16", "-w8a16"),
    ("bnb int8", "-bnb-8bit"),
    ("bnb", "-bnb-4bit"),
    ("awq int8", "-w8a16"),
    ("autoround int8", "-AutoRound-INT8"),
    ("int8", "-int8"),
    ("awq", "-AWQ"),
    ("autoround", "-AutoRound"),
    ("w4a16", "-w4a16"),
    ("gptq", "-GPTQ"),
    ("int4", "-int4"),
)


def named_config(model_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """(the base's hub id, a config) for `organisation/KnownModel-PACKING`; None where the name tells no such thing.

    The packing is what the ending usually means, not what the checkpoint says of itself: a plan from it is rougher.
    """
    name = model_id.partition("/")[2]
    for ending, packing in _ENDINGS:
        found = re.fullmatch(rf"(?P<base>.+?){ending}", name, re.IGNORECASE)
        base = _known(found["base"]) if found else None
        if base is not None:
            return base, {**(bundled_config(base) or {}), "quantization_config": packing}
    made_from, words = base_of(model_id), _words(model_id)
    meant = next((_usual(ending) for said, ending in _SAID if words.issuperset(said.split())), None)
    if made_from is None or meant is None or _is_of_unknown_bits(words):
        return None
    if meant["quant_method"] == "auto-round" and "bf16" in name.lower().split("-"):  # parts of it are named as 16 bit
        meant = {**meant, "quant_method": "gptq"}
    return made_from, {**(bundled_config(made_from) or {}), "quantization_config": meant}


def _usual(ending: str) -> Mapping[str, Any]:
    return next(packing for pattern, packing in _ENDINGS if re.fullmatch(pattern, ending, re.IGNORECASE))


def packed_word(model_id: str) -> str | None:
    """The part of somebody else's name that says how it is packed, as it is written there; None for 16 bit."""
    name = model_id.partition("/")[2]
    parts = re.split(r"[-_.]", name[len((base_of(model_id) or name).partition("/")[2]) :])
    return "-".join(part for part in parts if _WORD.fullmatch(part)) or None


def _words(model_id: str) -> frozenset[str]:
    """In small letters; bitsandbytes by its short name, bits as integers."""
    said = (packed_word(model_id) or "").lower()
    for word, plain in (("bitsandbytes", "bnb"), ("nf4", "bnb-int4"), ("4bit", "int4"), ("8bit", "int8")):
        said = said.replace(word, plain)
    return frozenset(said.split("-")) - {""}


def _is_of_unknown_bits(words: frozenset[str]) -> bool:
    """Whether the words say bits that no scheme has (6bit, MXFP4), or both 4 and 8."""
    return bool(words - _FOUR - _EIGHT - _METHODS) or bool(words & _FOUR and words & _EIGHT)


def foreign_format(model_id: str) -> tuple[str, str, str] | None:
    """(the format, what reads it, the base's hub id) of a known model in a format that neither engine reads."""
    organisation, _, name = model_id.partition("/")
    endings = {"MLX": ".*"} if organisation == "mlx-community" else {kind: rf".*-{kind}([-.].*)?" for kind in _FOREIGN}
    base = _longest_known(name)
    kind = next((kind for kind, ending in endings.items() if re.fullmatch(ending, name, re.IGNORECASE)), None)
    return None if base is None or kind is None else (kind, _FOREIGN[kind], base)


def on_apple(kind: str, model_id: str, base: str) -> str:
    """Half a sentence: how a checkpoint in such a format is planned on an Apple chip; empty where nothing there reads
    it.
    """
    if kind not in _READ_ON_APPLE:
        return ""
    return f"; on an Apple card: --model {base} --quant {_word_of(model_id, base)}"


def _word_of(model_id: str, base: str) -> str:
    """What --quant calls the bits of the name: Qwen3-8B-6bit is nearest to 8, most have 4."""
    rest = model_id.partition("/")[2][len(base.partition("/")[2]) :]
    bits = max((int(found[1] or found["float"]) for found in _BITS.finditer(rest)), default=4)
    return "4bit" if bits <= 5 else "int8" if bits <= 8 else "bf16"


def base_of(model_id: str) -> str | None:
    """The known model that somebody else's `organisation/KnownModel-anything` is made from, as far as its name tells.

    None for the model's own organisation: there an unknown name is a mistake.
    """
    organisation, _, name = model_id.partition("/")
    base = _longest_known(name)
    return None if base is None or base.partition("/")[0] == organisation else base


def _longest_known(name: str) -> str | None:
    """The known model whose name and a dash, dot or underscore begin `name`; the longest of several."""
    lower = name.lower()
    begun = [known for known in known_ids() if lower.startswith(tuple(f"{_own_name(known)}{sign}" for sign in "-_."))]
    return max(begun, key=len, default=None)


def _known(name: str) -> str | None:
    return next((known for known in known_ids() if _own_name(known) == name.lower()), None)


def _own_name(model_id: str) -> str:
    return model_id.partition("/")[2].lower()
