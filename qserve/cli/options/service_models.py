"""`models:` in a file of settings: the models of one service, of which as many are in memory as the plan has room for.

Each entry names one model with its own options and how long it stays; `residency:` has what holds for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.planner.residency.schedule import Rules
from qserve.reward.settings import FLAGS
from qserve.service.request import LOAD_OPTIONS, ServiceRequest, misplaced_options, plan_options
from qserve.service.residents import Keeping, ResidentRequest, ResidentsRequest
from qserve.units import parse_bytes

__all__ = ["ENTRY_OPTIONS", "KEEPING", "RESIDENCY", "ModelEntry", "entries_of", "residents_of"]

_NAMES = ("model", "reward", "embed")
ENTRY_OPTIONS = frozenset(
    {
        *_NAMES,
        *("revision", "served_model_name", "engine_args", "load_format", "verify_quant"),
        *("reward_revision", "served_reward_name", "reward_quant", "reward_engine"),
        *("embed_revision", "served_embed_name", "embed_quant"),
        *(flag for flag in FLAGS if flag != "judge"),
        *(one.name for one in plan_options()),
    }
)
"""Options that an entry may have; the others hold for the whole service."""
KEEPING = ("pin", "ttl", "priority", "preload")
RESIDENCY = ("window", "wait", "memory")
# None of them makes sense where models come and go.
_NOT_BESIDE = (*_NAMES, *("judge", "replicas", "reward_replicas", "embed_replicas", "ray", "takeover"), *LOAD_OPTIONS)
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class ModelEntry:
    """One of `models:`; `options` by option name, converted, and `keeping`, as it was read."""

    options: Mapping[str, Any]
    keeping: Keeping = field(default_factory=Keeping)


def entries_of(path: Path, read: Any, converted: Callable[[str, str, Any], Any]) -> tuple[ModelEntry, ...]:
    """The entries of a list. `converted(where, key, value)` gives an option's value, or raises UsageError.

    Raises UsageError for what is no list of models.
    """
    if not isinstance(read, list) or not read or not all(isinstance(one, dict) for one in read):
        raise UsageError(f"{path}: models takes a list, one entry a model: `- model: Qwen/Qwen3-0.6B`")
    return tuple(_entry(path, f"models[{at}]", one, converted) for at, one in enumerate(read))


def _entry(path: Path, where: str, read: Mapping[Any, Any], converted: Callable[[str, str, Any], Any]) -> ModelEntry:
    keys = {str(key): value for key, value in read.items()}
    named = [key for key in _NAMES if key in keys]
    if len(named) != 1:
        raise UsageError(
            f"{path}: {where} names {' and '.join(named) or 'no model'}; an entry is one model, under model:, reward: "
            "or embed:"
        )
    for key in keys:
        if key not in ENTRY_OPTIONS and key not in KEEPING:
            known = ", ".join(sorted({*ENTRY_OPTIONS, *KEEPING}))
            raise UsageError(f"{path}: {where} has {key}, which is no setting of one model; those are {known}")
    options = {key: converted(where, key, value) for key, value in keys.items() if key not in KEEPING}
    for strange, why in misplaced_options(options.get("model"), options.get("reward"), None, options.get("embed")):
        if found := [key for key in strange if key in options]:
            raise UsageError(f"{path}: {where}: {', '.join(found)}: {why}")
    return ModelEntry(options, _keeping(f"{path}: {where}", keys))


def _keeping(where: str, keys: Mapping[str, Any]) -> Keeping:
    priority = keys.get("priority", 1)
    if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 < priority <= 1000:
        raise UsageError(f"{where}: priority is {priority!r}, but takes a number above 0, at most 1000; 1 is usual")
    is_pinned, preload = _switch(where, "pin", keys, False), _switch(where, "preload", keys, True)
    ttl_s = _seconds(where, "ttl", keys["ttl"]) if "ttl" in keys else None
    if is_pinned and ttl_s is not None:
        raise UsageError(f"{where}: pin keeps the model for ever, and ttl lets it go after {ttl_s:g} s; leave one out")
    return Keeping(is_pinned, ttl_s, float(priority), preload or is_pinned)


def _switch(where: str, key: str, keys: Mapping[str, Any], default: bool) -> bool:
    value = keys.get(key, default)
    if not isinstance(value, bool):
        raise UsageError(f"{where}: {key} is {value!r}, but takes true or false")
    return value


def _seconds(where: str, key: str, value: Any) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value))
    if found is None or isinstance(value, bool):
        raise UsageError(f"{where}: {key} is {value!r}, but takes a time: 300, 90s, 10m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def residents_of(
    entries: Sequence[ModelEntry], residency: Any, values: Mapping[str, Any], path: Path
) -> ResidentsRequest:
    """What is asked for all of them. `values` are those of the command, which hold where an entry says nothing.

    Raises UsageError for options of the command that name a model or a load, and for an unknown key of `residency`.
    """
    beside = [key for key in _NOT_BESIDE if values.get(key) not in (None, False, (), 1)]
    if beside:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in beside)
        raise UsageError(f"{path} names the models of this service (models:), and {flags} does not go with that")
    if not isinstance(residency, dict) or (strange := [key for key in residency if key not in RESIDENCY]):
        what = "no block of settings" if not isinstance(residency, dict) else f"{strange[0]}"
        raise UsageError(f"{path}: residency has {what}; it takes {', '.join(RESIDENCY)}")
    where = f"{path}: residency"
    times = {key: _seconds(where, key, value) for key, value in residency.items() if key != "memory"}
    memory = parse_bytes(str(residency["memory"])) if "memory" in residency else None
    plain = {**values, **dict.fromkeys(_NAMES)}
    models = tuple(ResidentRequest(ServiceRequest.from_flags({**plain, **one.options}), one.keeping) for one in entries)
    return ResidentsRequest(models, Rules(times.get("window")), times.get("wait", ResidentsRequest.wait_s), memory)
