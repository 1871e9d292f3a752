"""Cards that are planned for and that no engine of qserve runs on: configs/plan_only.toml.

A card there has a kind as torch names it (xpu, npu, mps), which is its row of [backends]: what serves a model on it,
and which shares of bandwidth and arithmetic a plan may count on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from qserve.core.facts import load
from qserve.errors import UsageError
from qserve.units import GIB, MIB

__all__ = [
    "PLAN_ONLY_KINDS",
    "Backend",
    "backend_of",
    "gpu_share_bytes",
    "peak_flop_per_s",
    "plan_only_rows",
    "refuse_without_ram",
    "usable_bytes",
]

PLAN_ONLY_KINDS = ("xpu", "npu", "mps")
"""Torch's names of devices that no engine of qserve computes on."""


@dataclass(frozen=True)
class Backend:
    """Cards of one kind.

    Attributes:
        kind: torch's name of such a device.
        maker: who makes them.
        tool: what is asked for those of this machine.
        serves: what would serve a model there, in words.
        shares: of the peak bandwidth that decoding reaches: least, planned, most.
        computed: of the peak arithmetic in 16 bit that the reading of a prompt reaches, likewise.
        source: where both were read.
    """

    kind: str
    maker: str
    tool: str
    serves: str
    shares: tuple[float, float, float]
    computed: tuple[float, float, float]
    source: str

    def why_no_engine(self, name: str) -> str:
        """Half a sentence: no engine of qserve runs on the card of that name, and what would serve there."""
        return f"no engine of qserve runs on {name}, where {self.serves} would serve the model"


@cache
def backend_of(kind: str) -> Backend:
    """The row of a kind. Raises KeyError for one that an engine of qserve runs on."""
    row = load("plan_only")["backends"][kind]
    low, usual, high = row["shares"]
    least, mean, most = row["computed"]
    return Backend(
        kind, row["maker"], row["tool"], row["serves"], (low, usual, high), (least, mean, most), row["source"]
    )


def plan_only_rows() -> dict[str, dict[str, Any]]:
    """Rows by key, with the fields of configs/gpus.toml; a chip that shares RAM has one for each size of it."""
    found: dict[str, dict[str, Any]] = {}
    for key, row in load("plan_only")["cards"].items():
        if "ram_gb" not in row:
            found[key] = row
        for size in row.get("ram_gb", ()):
            found |= {f"{_chip(row)}-{size}gb": _with_ram(row, size)}
    return found


def _with_ram(row: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The chip beside `size` GiB of RAM, which is what its maker calls GB."""
    total_mib = gpu_share_bytes(size * GIB) // MIB
    return {**row, "name": f"{row['name']} {size} GB", "aliases": [], "total_mib": total_mib}


def _chip(row: Mapping[str, Any]) -> str:
    """Of 'Apple M4 Max': m4-max."""
    return re.sub(r"\s+", "-", row["name"].removeprefix("Apple ").lower())


def gpu_share_bytes(ram_bytes: int) -> int:
    """What macOS lets the GPU take of so much RAM where nobody raised it (iogpu.wired_limit_mb is 0), in whole MiB."""
    row = load("plan_only")["backends"]["mps"]
    return int(ram_bytes * row["gpu_share"][ram_bytes >= row["from_gib"] * GIB]) // MIB * MIB


def usable_bytes(name: str, printed_bytes: int) -> int:
    """What an engine has of a card of that name whose tool prints so much: less by as much as of the table's card."""
    row = next((row for row in plan_only_rows().values() if row["name"] == name), {})
    held = row.get("printed_mib", 0) - row.get("total_mib", 0) if "printed_mib" in row else 0
    return max(0, printed_bytes - held * MIB)


def peak_flop_per_s(name: str) -> float:
    """Dense 16-bit FLOP/s of the card of that name; 0 where it is not known."""
    return _peaks().get(name, 0.0)


@cache
def _peaks() -> dict[str, float]:
    return {row["name"]: row["tflops"] * 1e12 for row in plan_only_rows().values()}


def refuse_without_ram(wanted: str) -> None:
    """Raises UsageError for a chip named without its RAM, or with a size that it was not sold with."""
    before, _, size = wanted.rpartition("-")
    chip = before if size.removesuffix("gb").removesuffix("gib").isdigit() else wanted
    sizes = sorted(_sizes(chip))
    if sizes:
        listed, last = ", ".join(map(str, sizes)), sizes[-1]
        raise UsageError(
            f"--gpu {wanted!r}: the GPU of this chip takes its memory from the machine's RAM, of which it has {listed} "
            f"GB; name it: --gpu {chip}-{last}gb. Another limit is described: "
            f"--gpu like={chip}-{last}gb,memory={last * 7 // 8}GiB"
        )


def _sizes(chip: str) -> Iterator[int]:
    rows = load("plan_only")["cards"].values()
    return (size for row in rows if "ram_gb" in row and _chip(row) == chip for size in row["ram_gb"])
