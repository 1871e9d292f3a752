"""The `quantization_config` of a checkpoint: all guessing at the keys of foreign quantizers is in this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qserve.core.quantization import CheckpointQuantization
from qserve.errors import UnknownArchitecture

__all__ = ["read_quantization"]

_Config = Mapping[str, Any]
_KNOWN = "awq, gptq, auto-round, fp8, bitsandbytes, compressed-tensors, modelopt"
_GROUPED = {(4, "int"): "w4a16", (4, "float"): "nvfp4", (8, "float"): "fp8", (8, "int"): "w8a16"}
_MODELOPT = {
    "NVFP4": CheckpointQuantization("nvfp4", 4, 16, symmetric=True),
    "FP8_PB_WO": CheckpointQuantization("fp8", 8, block=128, symmetric=True),
    "FP8_PER_CHANNEL": CheckpointQuantization("fp8", 8, symmetric=True, per_row=True),
    "FP8": CheckpointQuantization("fp8", 8, symmetric=True),
}
"""By the beginning or the end of quant_algo, the most particular first: W4A16_NVFP4 and NVFP4_AWQ store like NVFP4."""


def read_quantization(config: _Config | None, where: str) -> CheckpointQuantization | None:
    """What a checkpoint says of itself; None for a 16-bit one. Raises UnknownArchitecture for unknown methods."""
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower().replace("_", "-")
    if method in ("awq", "gptq"):
        return _packed_int(config, method)
    if method in ("auto-round", "autoround", "intel/auto-round", "inc"):
        return _auto_round(config)
    if method == "fp8":
        block = config.get("weight_block_size") or (0,)
        return CheckpointQuantization("fp8", 8, block=int(block[0]), symmetric=True, skipped=_skipped(config))
    if method == "bitsandbytes":
        return _bitsandbytes(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config, where)
    if method.startswith("modelopt"):
        return _modelopt(config, where)
    raise UnknownArchitecture(f"{where}: quantization method {method!r} is unknown to qserve; known are {_KNOWN}")


def _skipped(config: _Config) -> tuple[str, ...]:
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
    found = next((config[key] for key in keys if config.get(key)), ())
    return tuple(str(name) for name in found)


def _packed_int(config: _Config, method: str) -> CheckpointQuantization:
    """AWQ and GPTQ. GPTQModel's `dynamic` leaves modules out ("-:regex") or stores them otherwise ("+:regex")."""
    bits, group = int(config.get("bits", 4)), int(config.get("group_size", 128))
    name = "awq" if method == "awq" else f"gptq-int{bits}"
    whole = CheckpointQuantization(name, bits, max(group, 0), symmetric=bool(config.get("sym", False)))
    dynamic: _Config = config.get("dynamic") or {}
    left_out = tuple(f"re:{pattern[2:]}" for pattern in dynamic if pattern.startswith("-:"))
    others = tuple(
        ((f"re:{pattern.removeprefix('+:')}",), _with_bits(whole, changes))
        for pattern, changes in dynamic.items()
        if not pattern.startswith("-:")
    )
    return replace(whole, skipped=(*_skipped(config), *left_out), overrides=others)


def _with_bits(whole: CheckpointQuantization, changes: _Config) -> CheckpointQuantization:
    bits, group = int(changes.get("bits", whole.bits)), int(changes.get("group_size", whole.group_size))
    name = f"gptq-int{bits}" if whole.scheme.startswith("gptq") else whole.scheme
    return replace(whole, scheme=name, bits=bits, group_size=max(group, 0))


def _auto_round(config: _Config) -> CheckpointQuantization:
    """AutoRound stores as AWQ or GPTQ do; `extra_config` has modules of other bits, 16 for those left alone.

    Keys with signs of a regex are searched for, others are names or their ends. Source: vllm quantization/inc.
    """
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    whole = replace(_packed_int(config, "awq" if "awq" in packing else "gptq"), skipped=())
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names") or ()
    names = blocks.split(",") if isinstance(blocks, str) else [str(name) for name in blocks]
    left_out, others = list(_skipped(config)), []
    for key, changes in (config.get("extra_config") or {}).items():
        pattern = f"re:.*(?:{key})" if any(sign in str(key) for sign in "*+?^$()[]{}|\\") else str(key)
        if int(changes.get("bits", whole.bits)) >= 16:
            left_out.append(pattern)
        else:
            others.append(((pattern,), _with_bits(whole, changes)))
    return replace(whole, skipped=tuple(left_out), overrides=tuple(others), only=tuple(names))


def _bitsandbytes(config: _Config) -> CheckpointQuantization:
    if config.get("load_in_8bit"):
        return CheckpointQuantization("bnb-int8", 8, symmetric=True, skipped=_skipped(config))
    double = bool(config.get("bnb_4bit_use_double_quant", False))
    name = "bnb-nf4" if double else "bnb-nf4-single"
    name = "bnb-fp4" if config.get("bnb_4bit_quant_type", "nf4") == "fp4" else name
    return CheckpointQuantization(name, 4, 64, double_quant=double, skipped=_skipped(config))


def _compressed_tensors(config: _Config, where: str) -> CheckpointQuantization:
    """Groups of modules, each stored in its own way; the one whose target is the class Linear has the rest."""
    groups = [group for group in (config.get("config_groups") or {}).values() if isinstance(group, Mapping)]
    read = [(_targets(group), _group(group, where)) for group in groups] or [(("Linear",), _group({}, where))]
    rest = next((index for index, (targets, _) in enumerate(read) if "Linear" in targets), 0)
    targets, whole = read[rest]
    return replace(
        whole,
        skipped=_skipped(config),
        overrides=tuple(pair for index, pair in enumerate(read) if index != rest),
        only=() if "Linear" in targets else targets,
        covers_every_linear="ignore" in config,
        kv_cache_dtype="fp8" if config.get("kv_cache_scheme") else None,
    )


def _targets(group: _Config) -> tuple[str, ...]:
    return tuple(str(target) for target in group.get("targets") or ("Linear",))


def _group(group: _Config, where: str) -> CheckpointQuantization:
    weights: _Config = group.get("weights") or {}
    bits, kind = int(weights.get("num_bits", 8)), str(weights.get("type", "int"))
    name = _GROUPED.get((bits, kind))
    if name == "w8a16" and group.get("input_activations") is not None:
        name = "w8a8"  # without them its activations are not quantized: only the weights are
    if name is None:
        raise UnknownArchitecture(
            f"{where}: compressed-tensors with {bits}-bit {kind} weights is unknown to qserve; give the folder of the "
            "checkpoint to count its files, or another checkpoint of the model"
        )
    block = weights.get("block_structure") if weights.get("strategy") == "block" else None
    return CheckpointQuantization(
        name,
        bits,
        max(int(weights.get("group_size") or 0), 0),
        block=int(block[0]) if isinstance(block, list) and block else 0,
        symmetric=bool(weights.get("symmetric", True)),
        per_row=weights.get("strategy") == "channel",
    )


def _modelopt(config: _Config, where: str) -> CheckpointQuantization:
    """One algorithm for every linear layer that is not left out, or (MIXED_PRECISION) a list of layers for each."""
    inner = config.get("quantization")
    config = {**config, **inner} if isinstance(inner, Mapping) else config
    cache = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    is_fp8 = cache.get("num_bits") == 8 if isinstance(cache, Mapping) else str(cache).upper() == "FP8"
    listed: _Config = config.get("quantized_layers") or {}
    by_algo: dict[str, list[str]] = {}
    for layer, how in listed.items():
        by_algo.setdefault(str(how.get("quant_algo", "")), []).append(layer)
    found = [(tuple(layers), _algo(algo, where)) for algo, layers in by_algo.items()]
    if found:
        found.sort(key=lambda pair: len(pair[0]), reverse=True)
        (only, whole), others = found[0], tuple(found[1:])
    else:
        only, whole, others = (), _algo(str(config.get("quant_algo") or _first_algo(config)), where), ()
    return replace(
        whole,
        skipped=_skipped(config),
        overrides=others,
        only=only,
        covers_every_linear=not found and any(key in config for key in ("ignore", "exclude_modules")),
        kv_cache_dtype="fp8" if is_fp8 else None,
    )


def _first_algo(config: _Config) -> str:
    """By the first group, where quant_algo is not given."""
    groups = [group for group in (config.get("config_groups") or {}).values() if isinstance(group, Mapping)]
    bits = int((groups[0].get("weights") or {}).get("num_bits", 8)) if groups else 8
    return "NVFP4" if bits == 4 else "FP8"


def _algo(name: str, where: str) -> CheckpointQuantization:
    wanted = name.upper()
    found = next((how for key, how in _MODELOPT.items() if wanted.startswith(key) or wanted.endswith(key)), None)
    if found is None:
        raise UnknownArchitecture(
            f"{where}: modelopt's {name!r} is unknown to qserve; known are NVFP4, W4A16_NVFP4, FP8, FP8_PB_WO, "
            "FP8_PER_CHANNEL_PER_TOKEN and MIXED_PRECISION of them"
        )
    return found
