"""The command that serves a plan."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from qserve.core.hardware import Hardware
from qserve.planner.plan import Plan

__all__ = ["OF_PLAN_ALONE", "Flags", "command_of", "machine_of", "with_serving_command", "words_of"]

Flags = Mapping[str, str | None]
"""Flags with their values; None: a switch."""

OF_PLAN_ALONE = frozenset({"--gpu", "--json", "--explain", "--prices", "--monthly"})


def command_of(name: str, flags: Flags) -> str:
    """`qserve <name>` with the flags, as a shell takes it."""
    return shlex.join(["qserve", name, *words_of(flags)])


def words_of(flags: Flags) -> list[str]:
    """Each flag, and its value behind it."""
    return [word for flag, value in flags.items() for word in (flag, value) if word is not None]


def with_serving_command(plan: Plan, flags: Flags, gpu: str | None, hardware: Hardware) -> Plan:
    """The plan with the command that serves it, where it fits."""
    if not plan.fits:
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
