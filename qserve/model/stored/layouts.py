"""Which tensors of a quantized checkpoint make which layer, and how they are read: from config.json and the headers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from qserve.core.tensors import Tensor
from qserve.hub.folder import read_tensors
from qserve.model.stored.codes import Codes, Parts, awq_codes, fp8_codes, gptq_codes, int8_codes, packed_codes

__all__ = ["ReadableLayers", "StoredLayer", "fp8_block", "why_not_readable"]

_READ_BITS = (4, 8)
_GPTQ_FORMATS = ("gptq", "gptq_v2")
_CT_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
# Ends of the names of a layer's tensors, by what tells that it is quantized.
_ENDS = {
    "qweight": ("qweight", "qzeros", "scales", "g_idx"),
    "weight_packed": ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
    "weight": ("weight", "weight_scale", "weight_scale_inv", "weight_zero_point"),
}
_CODED = ("I8", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class StoredLayer:
    """A linear layer in the file: headers of its tensors by the end of their names, and what makes codes of these."""

    parts: Mapping[str, Tensor]
    codes: Callable[[Parts], Codes]


def why_not_readable(stored: Mapping[str, Any]) -> str | None:
    """What keeps a checkpoint with this `quantization_config` from being read as it is stored: half a sentence."""
    method, bits = _method(stored), stored.get("bits", 4)
    if method == "gptq":
        written = stored.get("checkpoint_format", "gptq")
        if not _gptq_bits(stored) <= set(_READ_BITS) or written not in _GPTQ_FORMATS or stored.get("is_marlin_format"):
            seen = " and ".join(map(str, sorted(_gptq_bits(stored))))
            return f"it has {seen}-bit weights as {written}; qserve reads 4 and 8 bit as gptq and gptq_v2"
        return None
    if method == "awq":
        version, backend = str(stored.get("version", "gemm")).lower(), str(stored.get("backend", "autoawq")).lower()
        if bits != 4 or version != "gemm" or backend != "autoawq":
            return f"it has {bits}-bit weights of {backend}'s {version}; qserve reads 4 bit of autoawq's gemm"
        return None
    if method == "compressed-tensors":
        formats = _formats(stored)
        unread = sorted(formats - set(_CT_FORMATS))
        if unread or _odd_bits(stored):
            seen = ", ".join(unread or _odd_bits(stored))
            return f"it has {seen}; qserve reads {', '.join(_CT_FORMATS)} of 4 and 8 bit"
        return None
    return None if method == "fp8" else f"it is stored as {method}"


def _gptq_bits(stored: Mapping[str, Any]) -> set[int]:
    """Of all modules: GPTQModel's `dynamic` gives some of them others."""
    changes = [one for one in (stored.get("dynamic") or {}).values() if isinstance(one, Mapping)]
    return {int(one.get("bits", stored.get("bits", 4))) for one in (stored, *changes)}


def _formats(stored: Mapping[str, Any]) -> set[str]:
    """Of all groups, of which each may have its own."""
    whole = str(stored.get("format", "dense"))
    return {str(group.get("format") or whole) for group in _groups(stored)} or {whole}


def _odd_bits(stored: Mapping[str, Any]) -> list[str]:
    found = {int((group.get("weights") or {}).get("num_bits", 8)) for group in _groups(stored)}
    return [f"{bits} bit" for bits in sorted(found - set(_READ_BITS))]


def _groups(stored: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group for group in (stored.get("config_groups") or {}).values() if isinstance(group, Mapping)]


def _method(stored: Mapping[str, Any]) -> str:
    return str(stored.get("quant_method", "")).lower()


@dataclass(frozen=True)
class ReadableLayers:
    """The quantized linear layers of a folder, by the names that the file has for them."""

    by_name: Mapping[str, StoredLayer]

    @classmethod
    def of(cls, folder: Path, stored: Mapping[str, Any]) -> ReadableLayers:
        """Of a folder whose `quantization_config` is `stored`, for which there is no `why_not_readable`."""
        by_layer: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for tensor in read_tensors(folder) or ():
            layer, _, end = tensor.name.rpartition(".")
            by_layer[layer][end] = tensor
        found = {name: _layer(parts, stored) for name, parts in by_layer.items()}
        return cls({name: layer for name, layer in found.items() if layer is not None})

    def find(self, module: str) -> tuple[str, StoredLayer] | None:
        """The layer of a module and its name in the file, by that in the model, which may nest it otherwise."""
        return next(((name, self.by_name[name]) for name in _spellings(module) if name in self.by_name), None)


def _spellings(module: str) -> tuple[str, ...]:
    bare = module.removeprefix("model.").removeprefix("language_model.")
    return module, bare, f"model.{bare}", f"model.language_model.{bare}", f"language_model.model.{bare}"


def _layer(parts: Mapping[str, Tensor], stored: Mapping[str, Any]) -> StoredLayer | None:
    main = next((name for name in _ENDS if name in parts), None)
    if main is None or (main == "weight" and parts["weight"].dtype not in _CODED):
        return None
    own = {end: parts[end] for end in (*_ENDS[main], "bias") if end in parts}
    return StoredLayer(own, _reader(main, own, stored))


def _reader(main: str, parts: Mapping[str, Tensor], stored: Mapping[str, Any]) -> Callable[[Parts], Codes]:
    if main == "qweight" and _method(stored) == "awq":
        return awq_codes
    if main == "qweight":
        return partial(gptq_codes, has_low_zeros=stored.get("checkpoint_format", "gptq") == "gptq")
    if main == "weight_packed":
        return packed_codes
    return int8_codes if parts["weight"].dtype == "I8" else partial(fp8_codes, block=fp8_block(stored))


def fp8_block(stored: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a scale of an fp8 weight."""
    weights = [group.get("weights") or {} for group in _groups(stored)]
    found = [stored.get("weight_block_size"), *(one.get("block_structure") for one in weights)]
    sizes = next((size for size in found if isinstance(size, (list, tuple)) and len(size) == 2), None)
    return None if sizes is None else (int(sizes[0]), int(sizes[1]))
