"""Modules by pattern, as quantized checkpoints name what they leave alone: exactly, by their end, by glob or regex."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

__all__ = ["ModuleMatcher", "matcher_of"]

_EVERY_LINEAR = "Linear"  # the class, in compressed-tensors' targets


@dataclass(frozen=True)
class ModuleMatcher:
    """`names` match a run of whole parts of a module's name, `regexes` its beginning."""

    names: frozenset[str]
    regexes: tuple[re.Pattern[str], ...]
    is_every_linear: bool = False

    def matches(self, module: str) -> bool:
        """Whether a pattern means this module, by any of the names that checkpoints have for it."""
        if not self.names and not self.regexes:
            return self.is_every_linear
        return self.is_every_linear or any(self._matches(name) for name in _spellings(module))

    def _matches(self, name: str) -> bool:
        is_named = bool(self.names) and not self.names.isdisjoint(_runs(name))
        return is_named or any(regex.match(name) for regex in self.regexes)


@lru_cache(maxsize=256)
def matcher_of(patterns: tuple[str, ...]) -> ModuleMatcher:
    """What `patterns` match: "re:…" from the beginning, globs as a whole, anything else by whole parts of the name.

    A regex that can't be read matches nothing: the engine will say so.
    """
    names = {one.strip(".") for one in patterns if not _is_regex(one) and not _is_glob(one)}
    written = [one[3:] if _is_regex(one) else translate(one) for one in patterns if _is_regex(one) or _is_glob(one)]
    regexes = tuple(found for found in map(_compiled, written) if found is not None)
    return ModuleMatcher(frozenset(names - {_EVERY_LINEAR}), regexes, _EVERY_LINEAR in patterns)


def _is_regex(pattern: str) -> bool:
    return pattern.startswith("re:")


def _is_glob(pattern: str) -> bool:
    return not _is_regex(pattern) and any(sign in pattern for sign in "*?[")


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _runs(name: str) -> Iterator[str]:
    """Every run of whole parts: of 'a.b.c' a, a.b, a.b.c, b, b.c, c."""
    parts = name.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


def _spellings(module: str) -> tuple[str, ...]:
    """The name itself, and those of models that nest the language model or the encoder."""
    if module.startswith("model."):
        rest = module.removeprefix("model.")
        return module, f"model.language_model.{rest}", f"language_model.model.{rest}"
    return (module, f"model.{module}") if module.startswith("visual.") else (module, f"language_model.{module}")
