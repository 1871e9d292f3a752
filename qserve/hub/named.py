"""Plans a quantized checkpoint that can't be read, from its name: base model and quantization."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qserve.core.schemes import SCHEMES
from qserve.hub.bundled import bundled_config, known_ids

__all__ = ["base_of", "foreign_format", "named_config", "on_apple"]

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


def named_config(model_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """(the base's hub id, a config) for `organisation/KnownModel-PACKING`; None where the name tells no such thing.

    The packing is what the ending usually means, not what the checkpoint says of itself: a plan from it is rougher.
    """
    name = model_id.partition("/")[2]
    for ending, packing in (one for scheme in SCHEMES.values() for one in scheme.endings):
        found = re.fullmatch(rf"(?P<base>.+?){ending}", name, re.IGNORECASE)
        base = _known(found["base"]) if found else None
        if base is not None:
            return base, {**(bundled_config(base) or {}), "quantization_config": packing}
    return None


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
    """The known model whose name and a dash begin `name`; the longest of several."""
    begun = [known for known in known_ids() if name.lower().startswith(f"{known.partition('/')[2].lower()}-")]
    return max(begun, key=len, default=None)


def _known(name: str) -> str | None:
    return next((known for known in known_ids() if known.partition("/")[2].lower() == name.lower()), None)
