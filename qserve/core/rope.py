"""Rotary positions as config.json has them: how far they reach, and what every engine would fail at.

Keys are those of transformers 5 (`rope_parameters`) and of what came before it (`rope_scaling`, `type`); where both
stand there, transformers takes `rope_scaling`. Source: transformers 5.19 modeling_rope_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qserve.errors import BrokenCheckpoint

__all__ = ["Rope", "completed_rope", "read_rope", "rope_keys"]

# What a type can't do without; the others have defaults.
_NEEDED = {
    "default": (),
    "proportional": (),
    "mrope": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),
}
_FROM_ORIGINAL = ("yarn", "llama3", "longrope", "su")
_ORIGINAL = "original_max_position_embeddings"
_NUMBERS = (
    "factor",
    "rope_theta",
    "partial_rotary_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    _ORIGINAL,
)
_LISTS = ("short_factor", "long_factor")
_NULLABLE = ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")


@dataclass(frozen=True)
class Rope:
    """`positions` are max_position_embeddings, `original` those before they were stretched.

    `factor` is None where config.json says null: of yarn transformers then takes positions / original. `legacy` is the
    older key `type` where it stands beside another `rope_type`. `sections` are those of M-RoPE.
    """

    kind: str
    positions: int
    original: float
    factor: float | None = None
    legacy: str | None = None
    sections: tuple[int, ...] = ()

    @property
    def stretched(self) -> int:
        """Positions that the angles are made for: `original` · factor of yarn, positions · factor of linear."""
        if self.kind == "yarn":
            return int(self.original * (self.factor if self.factor is not None else self.positions / self.original))
        return int(self.positions * self.factor) if self.kind == "linear" and self.factor else self.positions

    def told(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` for an engine that fills in nothing: by transformers' names, and with what the type is made from."""
        kind = {"su": "longrope", "mrope": "default"}.get(self.kind, self.kind)
        original = {_ORIGINAL: int(self.original)} if self.kind in _FROM_ORIGINAL else {}
        return {**given, "rope_type": kind, **original}

    @property
    def cached(self) -> int:
        """Rows of vLLM's table of angles. Source: vllm 0.26 to 0.32 model_executor/layers/rotary_embedding."""
        if self.kind in ("longrope", "su"):
            return self.positions + int(self.original)
        return self.stretched

    @property
    def reach(self) -> int:
        """Positions that transformers computes the same angles for, whatever else is in the batch.

        Of dynamic and longrope the longest sequence of a batch decides over the angles of all, beyond these.
        """
        if self.kind == "yarn":
            return max(self.positions, self.stretched)
        if self.kind in ("longrope", "su"):
            return min(self.positions, int(self.original))
        return self.stretched


def rope_keys(text: Mapping[str, Any]) -> tuple[str, Any]:
    """The key under which a language model's config has its rope, and what stands there."""
    key = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
    return key, text.get(key) or {}


def read_rope(text: Mapping[str, Any], positions: int, rotary_dim: int | None, where: str) -> Rope:
    """Of a language model's config. Raises BrokenCheckpoint, by key, for what neither engine starts with."""
    key, given = rope_keys(text)
    if not isinstance(given, Mapping):
        raise BrokenCheckpoint(
            f"{where}: {key} is {given!r}; it must be an object, as {{'rope_type': 'yarn', 'factor': 4.0, …}}"
        )
    named = "rope_type" if "rope_type" in given or "type" not in given else "type"
    kind = given.get(named, "default")
    if not isinstance(kind, str) or kind not in _NEEDED:
        raise BrokenCheckpoint(f"{where}: {key}.{named} is {kind!r}; known are {', '.join(_NEEDED)}")
    if given and all(isinstance(value, Mapping) for value in given.values()):
        raise BrokenCheckpoint(
            f"{where}: {key} has an object per layer type ({', '.join(given)}); these models take one object"
        )
    missing = [name for name in _NEEDED[kind] if name not in given]
    if missing:
        raise BrokenCheckpoint(f"{where}: {key} is of {named} {kind} and lacks {', '.join(missing)}; write it in")
    _check_values(given, kind, f"{where}: {key}", rotary_dim)
    _check_number("rope_theta", text.get("rope_theta", 1.0), f"{where}: rope_theta", nullable=True)
    legacy = str(given["type"]) if "rope_type" in given and given.get("type", kind) != kind else None
    original = _original(text, given, kind, positions, where)
    sections = given.get("mrope_section") or ()
    return Rope(kind, positions, original, _factor(given), legacy, tuple(sections))


def _factor(given: Mapping[str, Any]) -> float | None:
    value = given.get("factor", 1.0)
    return None if value is None else float(value)


def _check_values(given: Mapping[str, Any], kind: str, where: str, rotary_dim: int | None) -> None:
    for name in set(_NUMBERS) & set(given):
        nullable = name in _NULLABLE and (name != "factor" or kind in ("yarn", "longrope", "su", "default"))
        _check_number(name, given[name], f"{where}.{name}", nullable=nullable)
    for name in set(_LISTS) & set(given):
        value = given[name]
        length = len(value) if rotary_dim is None and isinstance(value, list) else (rotary_dim or 0) // 2
        if not isinstance(value, list) or len(value) != length or not all(map(_is_number, value)):
            raise BrokenCheckpoint(f"{where}.{name} must be a list of {length} numbers, half the rotary width")
    sections = given.get("mrope_section")
    if sections is not None and not (isinstance(sections, list) and all(type(one) is int for one in sections)):
        raise BrokenCheckpoint(f"{where}.mrope_section is {sections!r}; it must be a list of whole numbers")


def _original(text: Mapping[str, Any], given: Mapping[str, Any], kind: str, positions: int, where: str) -> float:
    """Beside the rope it goes before the one inside, as transformers has it."""
    if kind not in _FROM_ORIGINAL:
        return float(positions)
    value = text.get(_ORIGINAL, given.get(_ORIGINAL, positions))
    _check_number(_ORIGINAL, value, f"{where}: {_ORIGINAL}", nullable=False)
    return float(value)


def _check_number(name: str, value: Any, where: str, *, nullable: bool) -> None:
    if value is None and nullable:
        return
    least = "0 on" if name in ("beta_slow", "attention_factor", "mscale", "mscale_all_dim") else "above 0"
    if not _is_number(value) or value < 0 or (value == 0 and least == "above 0"):
        quoted = ", without quotes" if isinstance(value, str) else ""
        raise BrokenCheckpoint(f"{where} is {value!r}; it must be a number {least}{quoted}")
    if name == "partial_rotary_factor" and value > 1:
        raise BrokenCheckpoint(f"{where} is {value!r}; it must be at most 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value and abs(value) != float("inf")


def completed_rope(text: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A language model's config with the keys of `over`, its rope whole under `rope_parameters`.

    An engine that is told of a rope takes it in place of config.json's own, base and sections of M-RoPE included: what
    `over` does not say of it is the checkpoint's.
    """
    both = {**text, **over}
    if not {"rope_parameters", "rope_scaling"} & set(over):
        return both
    (_, own), (_, given) = rope_keys(text), rope_keys(over)
    if not isinstance(own, Mapping) or not isinstance(given, Mapping):
        return both
    inherited = ("rope_theta", "partial_rotary_factor")
    rope = {**{name: text[name] for name in inherited if text.get(name) is not None}, **_of_one_name(own)}
    both.pop("rope_scaling", None)
    if _kind(given, _kind(rope)) != _kind(rope):
        kept = (*inherited, "mrope_section", "mrope_interleaved")
        rope = {name: rope[name] for name in kept if name in rope}
    return both | {"rope_parameters": {**rope, **_of_one_name(given)}}


def _kind(rope: Mapping[str, Any], default: Any = "default") -> Any:
    return rope.get("rope_type", rope.get("type", default))


def _of_one_name(rope: Mapping[str, Any]) -> dict[str, Any]:
    """With `rope_type` for the older `type`."""
    rest = {name: value for name, value in rope.items() if name != "type"}
    return {"rope_type": rope["type"], **rest} if "type" in rope and "rope_type" not in rope else dict(rope)
