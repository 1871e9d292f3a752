"""The `quantization_config` of a checkpoint: all guessing at the keys of foreign quantizers is in this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.errors import UnknownArchitecture

__all__ = ["read_quantization"]

_Config = Mapping[str, Any]
_AUTO_ROUND = ("auto-round", "autoround", "intel/auto-round", "inc")
_BITS_OF_INTEGERS = 4
"""Of AWQ and GPTQ, where a config does not say it."""
_OF_ONE_FORMAT, _OF_INTEGERS = ("fp8", "bitsandbytes"), ("bits", "group_size", "sym", "per_row", "dynamic")
"""Methods that do not read these keys, whatever their config holds."""
_METHODS = tuple(dict.fromkeys(mark.method for scheme in SCHEMES.values() for mark in scheme.marks))


def read_quantization(config: _Config | None, where: str) -> CheckpointQuantization | None:
    """What a checkpoint says of itself; None for a 16-bit one. Raises UnknownArchitecture for unknown methods."""
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower().replace("_", "-")
    if method in _AUTO_ROUND:
        return _auto_round(config, where)
    if method == "compressed-tensors":
        return _compressed_tensors(config, where)
    if method.startswith("modelopt"):
        return _modelopt(config, where)
    if method in _OF_ONE_FORMAT:
        said = {key: value for key, value in config.items() if key not in _OF_INTEGERS}
        skipped = _skipped(config)
        return replace(
            _stored(method, said, where),
            skipped=skipped,
            # A list that names some modules of the MTP head is about all of them.
            covers_drafter=any("mtp" in name.split(".") for name in skipped),
            # Source: vllm 0.32 models/qwen4_exp/common/ngram_embedding.py, from_quant_config.
            covers_tables=method == "fp8",
        )
    if method in _METHODS:
        return _with_dynamic(config, method, where)
    if not method and {"bits", "group_size"} <= set(config):  # as mlx_lm.convert writes it
        raise UnknownArchitecture(
            f"{where} is packed for Apple's MLX, which neither engine reads; take the 16-bit model, on an Apple card "
            f"with --quant {'4bit' if config['bits'] in (2, 3, 4, 5) else 'int8'}"
        )
    known = ", ".join(sorted((*_METHODS, _AUTO_ROUND[0])))
    raise UnknownArchitecture(f"{where}: quantization method {method!r} is unknown to qserve; known are {known}")


def _stored(method: str, config: _Config, where: str, said: str = "") -> CheckpointQuantization:
    """By the row of the scheme that `config` means. `said`: of its weights, for the error."""
    found = ((one, mark) for one in SCHEMES.values() for mark in one.marks if mark.matches(method, config))
    scheme, mark = next(found, (None, None))
    if scheme is None or mark is None:
        seen = said or f"{config.get('bits')}-bit weights"
        raise UnknownArchitecture(
            f"{where}: {method} with {seen} is unknown to qserve; give another checkpoint of the model"
        )
    block = config.get("weight_block_size") or (mark.block,)
    group = config.get("group_size")
    return CheckpointQuantization(
        scheme.name,
        int(config.get("bits") or scheme.bits),
        max(int(mark.group_size if group is None else group), 0),
        block=int(block[0]),
        symmetric=bool(config.get("sym", mark.symmetric)),
        double_quant=scheme.bits == 4 and bool(config.get("bnb_4bit_use_double_quant")),
        per_row=bool(config.get("per_row", mark.per_row)),
    )


def _skipped(config: _Config) -> tuple[str, ...]:
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
    found = next((config[key] for key in keys if config.get(key)), ())
    return tuple(str(name) for name in found)


def _with_dynamic(config: _Config, method: str, where: str) -> CheckpointQuantization:
    """GPTQModel's `dynamic` leaves modules out ("-:regex") or stores them otherwise ("+:regex").

    A rule about the head is one for where the config has `lm_head`: Qwen's own files name a head that is in 16 bit.
    Source: vllm 0.32 quantization/utils/gptq_utils.py, get_linear_quant_method.
    """
    whole = _of_integers(config, method, where)
    dynamic: _Config = config.get("dynamic") or {}
    left_out = tuple(f"re:{pattern[2:]}" for pattern in dynamic if pattern.startswith("-:"))
    others = tuple(
        ((f"re:{pattern.removeprefix('+:')}",), _changed(config, method, changes, where))
        for pattern, changes in dynamic.items()
        if not pattern.startswith("-:")
    )
    head = ("lm_head",) if others and not config.get("lm_head") else ()
    return replace(whole, skipped=(*_skipped(config), *left_out, *head), overrides=others)


def _of_integers(config: _Config, method: str, where: str) -> CheckpointQuantization:
    bits = {"bits": int(config.get("bits", _BITS_OF_INTEGERS))} if method in ("awq", "gptq") else {}
    return _stored(method, {**config, **bits}, where)


def _changed(config: _Config, method: str, changes: _Config, where: str) -> CheckpointQuantization:
    kept = {key: changes[key] for key in ("bits", "group_size") if key in changes}
    return _of_integers({**config, **kept}, method, where)


def _auto_round(config: _Config, where: str) -> CheckpointQuantization:
    """AutoRound stores as AWQ or GPTQ do; `extra_config` has modules of other bits, 16 for those left alone.

    Keys with signs of a regex are searched for, others are names or their ends. Source: vllm quantization/inc.
    """
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    method = "awq" if "awq" in packing else "gptq"
    whole = _with_dynamic(config, method, where)
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names") or ()
    names = blocks.split(",") if isinstance(blocks, str) else [str(name) for name in blocks]
    left_out, others = list(_skipped(config)), []
    for key, changes in (config.get("extra_config") or {}).items():
        pattern = f"re:.*(?:{key})" if any(sign in str(key) for sign in "*+?^$()[]{}|\\") else str(key)
        if int(changes.get("bits", whole.bits)) >= 16:
            left_out.append(pattern)
        else:
            others.append(((pattern,), _changed(config, method, changes, where)))
    return replace(whole, skipped=tuple(left_out), overrides=tuple(others), only=tuple(names))


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
    """Without quantized `input_activations` only the weights are in 8 bit."""
    weights: _Config = group.get("weights") or {}
    bits, kind = int(weights.get("num_bits", 8)), str(weights.get("type", "int"))
    block = weights.get("block_structure") if weights.get("strategy") == "block" else None
    config = {
        "bits": bits,
        "type": kind,
        "activations": group.get("input_activations") is not None,
        "group_size": weights.get("group_size"),
        "weight_block_size": block if isinstance(block, list) else None,
        "sym": weights.get("symmetric", True),
        "per_row": weights.get("strategy") == "channel",
    }
    return _stored("compressed-tensors", config, where, f"{bits}-bit {kind} weights")


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
    return _stored("modelopt", {"quant_algo": name}, where, repr(name))
