"""Several attributes: what they are called, and what each counts in the one number that trainers ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qserve.errors import UsageError

__all__ = ["label_names", "label_weights", "parse_weights"]


def label_names(config: Mapping[str, Any], num_labels: int) -> tuple[str, ...]:
    """The names of config.json's `id2label`; LABEL_0 … where it names none, as transformers calls them."""
    named = config.get("id2label")
    named = named if isinstance(named, Mapping) else {}
    return tuple(str(named.get(str(index), f"LABEL_{index}")) for index in range(num_labels))


def parse_weights(text: str, flag: str = "--weights") -> dict[str, float]:
    """`helpfulness=0.7,verbosity=-0.3`. Raises UsageError for what is no such list."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            weights[""] = math.nan
        if not name.strip() or not all(map(math.isfinite, weights.values())):
            raise UsageError(f"{flag} {text!r}: {part!r} is not NAME=NUMBER; write for example helpful=0.7,long=-0.3")
    return weights


def label_weights(
    names: Sequence[str], asked: str | None, config: Mapping[str, Any]
) -> tuple[tuple[float, ...], str | None]:
    """(a weight per label, a note for the user). The user's weights; else config.json's `reward_weights`, by name or in
    order; else every label counts the same.

    Labels that the user leaves out count nothing. Raises UsageError for names that are no labels.
    """
    held = config.get("reward_weights")
    if asked is not None:
        return _by_name(names, parse_weights(asked), f"--weights {asked!r}"), None
    if isinstance(held, Mapping):
        return _by_name(names, {str(name): float(value) for name, value in held.items()}, "config.json"), None
    if isinstance(held, list) and len(held) == len(names):
        return tuple(map(float, held)), None
    note = (
        f"the {len(names)} labels ({', '.join(names)}) have no weights, so the reward is their mean; set weights, for "
        f"example --weights {names[0]}=1,{names[1]}=0.5"
    )
    return tuple(1 / len(names) for _ in names), note


def _by_name(names: Sequence[str], weights: Mapping[str, float], where: str) -> tuple[float, ...]:
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise UsageError(
            f"{where} gives a weight to {unknown[0]!r}, which is not a label of the model; it has {', '.join(names)}"
        )
    return tuple(weights.get(name, 0.0) for name in names)
