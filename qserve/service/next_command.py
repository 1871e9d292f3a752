"""The command that serves a plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from qserve.core.hardware import Hardware
from qserve.core.model_parts import has_heads_of_own_code
from qserve.planner.plan import Plan

__all__ = ["OF_PLAN_ALONE", "Flags", "command_of", "flags_in", "machine_of", "with_serving_command", "words_of"]

Flags = Mapping[str, str | tuple[str, ...] | None]
"""Flags with their values; None: a switch; several values: the flag stands before each."""

OF_PLAN_ALONE = frozenset({"--gpu", "--json", "--explain", "--prices", "--monthly"})


def command_of(name: str, flags: Flags) -> str:
    """`qserve <name>` with the flags, as a shell takes it."""
    return shlex.join(["qserve", name, *words_of(flags)])


def words_of(flags: Flags) -> list[str]:
    """Each flag, and its value behind it."""
    pairs = [(flag, one) for flag, value in flags.items() for one in (value if isinstance(value, tuple) else (value,))]
    return [word for pair in pairs for word in pair if word is not None]


def flags_in(pairs: Iterable[tuple[str, str | None]]) -> Flags:
    """Those that stand in `pairs`, in their order; of a flag that stands there several times all values."""
    several: dict[str, list[str]] = {}
    for flag, value in pairs:
        several.setdefault(flag, []).extend(() if value is None else (value,))
    return {flag: tuple(found) if len(found) > 1 else next(iter(found), None) for flag, found in several.items()}


def with_serving_command(plan: Plan, flags: Flags, gpu: str | None, hardware: Hardware) -> Plan:
    """The plan with the command that serves it, where it fits and an engine of qserve runs there."""
    if not plan.fits or hardware.plan_only is not None or has_heads_of_own_code(plan.model.architecture):
        return plan
    served = {flag: value for flag, value in flags.items() if flag not in OF_PLAN_ALONE}
    if gpu == "none":
        served["--gpu"] = "none"
    return replace(plan, next_command=command_of("up", served), machine=machine_of(gpu, hardware))


def machine_of(gpu: str | None, hardware: Hardware) -> str:
    """The cards on which what was planned for `--gpu` is to be called; empty: here."""
    return "" if gpu in (None, "none") else _named_cards(hardware)


def _named_cards(hardware: Hardware) -> str:
    """4 × NVIDIA H100 80GB HBM3; a single card without its number."""
    groups = [(name, len(list(same))) for name, same in groupby(card.name for card in hardware.devices)]
    return " and ".join(name if count == 1 and len(groups) == 1 else f"{count} × {name}" for name, count in groups)
