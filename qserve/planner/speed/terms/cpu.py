"""A CPU as a card: the same arithmetic over what it reads and multiplies, measured by `qserve doctor --measure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qserve.core.facts import load
from qserve.core.hardware import Device, Hardware
from qserve.planner.speed.terms.card import CardSpeed, Row
from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = ["UNKNOWN_CPU", "CpuRates", "assumed_rates", "cpu_card"]

_FAST_FORMATS = ("bf16",)
_BYTES_PER_WEIGHT = 2
_STEEPEST = 60
"""Of the q-norms that are tried on a row of measured products, in tenths."""


@dataclass(frozen=True)
class CpuRates:
    """Bytes/s of reading memory in order, FLOP/s of a 16-bit (else 32-bit) product of 1024 rows; all cores together.

    `linear_ps` are (rows, picoseconds a weight) of linear layers as the engine runs them, weights larger than caches.
    `fewer` is the same of all cores but one, which an engine leaves to its server. `at_unix_s`: when it was measured.
    """

    read_bytes_per_s: float
    gemm_flop_per_s: float
    cores: int = 2
    is_measured: bool = True
    linear_ps: tuple[tuple[int, float], ...] = ()
    fewer: CpuRates | None = None
    at_unix_s: float = 0.0

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CpuRates:
        """Of what `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        fewer, linear = told.get("fewer"), told.get("linear_ps") or {}
        return cls(
            float(told["read_bytes_per_s"]),
            float(told["gemm_flop_per_s"]),
            int(told["cores"]),
            linear_ps=tuple(sorted((int(rows), float(ps)) for rows, ps in linear.items())),
            fewer=cls.from_json(fewer) if fewer else None,
            at_unix_s=float(told.get("at_unix_s", 0.0)),
        )

    def to_json(self) -> dict[str, Any]:
        """JSON's types alone."""
        return {
            "read_bytes_per_s": self.read_bytes_per_s,
            "gemm_flop_per_s": self.gemm_flop_per_s,
            "cores": self.cores,
            "linear_ps": {str(rows): ps for rows, ps in self.linear_ps},
            "fewer": self.fewer.to_json() if self.fewer else None,
            "at_unix_s": self.at_unix_s,
        }

    def without(self, cores: int) -> CpuRates:
        """What is left when an engine keeps so many cores for its server: measured, else memory whole and a share of
        the products."""
        if not cores or self.cores <= cores:
            return self
        if self.fewer is not None and self.fewer.cores == self.cores - cores:
            return self.fewer
        share = (self.cores - cores) / self.cores
        return replace(self, gemm_flop_per_s=self.gemm_flop_per_s * share, linear_ps=())


UNKNOWN_CPU = CpuRates(40e9, 400e9, 4, is_measured=False)


def assumed_rates(hardware: Hardware) -> CpuRates:
    """What a server CPU's cores do in the mean, for one that nobody measured."""
    cores = max(1, hardware.cpu_cores)
    per_core = 350e9 if any(name in hardware.cpu.formats for name in _FAST_FORMATS) else 60e9
    return CpuRates(min(18e9 * cores, 200e9), per_core * cores, cores, is_measured=False)


def cpu_card(device: Device, rates: CpuRates, costs: EngineCosts) -> CardSpeed:
    """The cores that the engine computes on; its kernels are rows of configs/speed.toml, its products as measured."""
    left = rates.without(costs.kept_cores)
    kernels = {name: tuple(map(float, row)) for name, row in load("speed")["cpu_kernels"][costs.era].items()}
    if left.linear_ps:
        kernels["gemm_bf16"] = _gemm_row(left)
    return CardSpeed(
        name=device.name,
        bandwidth=left.read_bytes_per_s,
        peaks={"bf16": left.gemm_flop_per_s},
        kernels=kernels,
        like="" if rates.is_measured else "a server CPU",
        links={1: (0.0, 1.0)},
        interconnect="memory",
    )


def _gemm_row(rates: CpuRates) -> Row:
    """Floor, shares of bandwidth and peak, and q, through the fewest and the most rows; q by those between them."""
    return min((_row_of(rates, tenths / 10) for tenths in range(10, _STEEPEST + 1)), key=lambda row: _off(rates, row))


def _row_of(rates: CpuRates, q: float) -> Row:
    (few, short), (many, long) = rates.linear_ps[0], rates.linear_ps[-1]
    each = float((max(long**q - short**q, 0.0) / (many**q - few**q)) ** (1 / q)) if many > few else 0.0
    read = float(max(short**q - (few * each) ** q, (0.1 * short) ** q) ** (1 / q))
    bandwidth_share = _BYTES_PER_WEIGHT / (read * 1e-12 * rates.read_bytes_per_s)
    peak_share = 2 / (max(each, 1e-3) * 1e-12 * rates.gemm_flop_per_s)
    return (0.0, bandwidth_share, peak_share, q)


def _off(rates: CpuRates, row: Row) -> float:
    """How far the form is from what was measured, squared and summed."""
    _, bandwidth_share, peak_share, q = row
    read = _BYTES_PER_WEIGHT / (rates.read_bytes_per_s * bandwidth_share) * 1e12
    each = 2 / (rates.gemm_flop_per_s * peak_share) * 1e12
    return float(sum((((read**q + (rows * each) ** q) ** (1 / q)) / ps - 1) ** 2 for rows, ps in rates.linear_ps))
