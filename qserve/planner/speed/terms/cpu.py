"""A CPU as a card: the same arithmetic over what it reads and multiplies, measured by `qserve doctor --measure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qserve.core.facts import load
from qserve.core.hardware import Device, Hardware
from qserve.core.quantization.weight_format import BF16, WeightFormat
from qserve.core.schemes import SCHEMES
from qserve.planner.speed.terms.card import UNFUSED, CardSpeed, Row
from qserve.planner.speed.terms.engine_costs import EngineCosts
from qserve.planner.speed.terms.formats import weight_format

__all__ = ["LARGE_WEIGHTS", "SMALL_WEIGHTS", "UNKNOWN_CPU", "CpuRates", "assumed_rates", "cpu_card", "cpu_format"]

_FAST_FORMATS = ("bf16",)
# FLOP/s of a core by what it has, in fp32 where it has no bf16. Measured at 128 rows of [2048, 1024]: 146e9 on an Ice
# Lake (docs/results/log/cpu.md), 77e9 by AVX2 on an EPYC that others kept busy (bench/kernels.py). Others never were.
_FLOP_PER_S = (({"avx512_vnni"}, 140e9), ({"avx2", "fma"}, 75e9))
_UNKNOWN_FLOP_PER_S, _BF16_FLOP_PER_S = 60e9, 350e9
_CODED = {
    "int8": WeightFormat("int8", 1.0, gemm="int8"),
    "4bit": WeightFormat("4 bit", 0.5625, gemm="4bit"),
    "int8-exact": WeightFormat("int8, exact activations", 1.0, gemm="int8"),
    "4bit-exact": WeightFormat("4 bit, exact activations", 0.5625, gemm="4bit"),
    "fp32": WeightFormat("fp32", 4.0, peak_factor=0.5),
}
_STEEPEST = 60
"""Of the q-norms that are tried on a row of measured products, in tenths."""


Products = tuple[tuple[int, float], ...]
"""(rows, picoseconds a weight)."""
Measurements = tuple[tuple[int, Products], ...]
"""(weights of a matrix, its products), in order of size."""
SMALL_WEIGHTS = 3 << 20
LARGE_WEIGHTS = 1 << 24
"""Of the matrices that are timed: what begins and ends a product costs a small one more a weight."""
_LARGE = "-large"
"""Ends the name of what `coded_ps` holds of large matrices."""


@dataclass(frozen=True)
class CpuRates:
    """Bytes/s of reading memory in order, FLOP/s of a 16-bit (else 32-bit) product of 1024 rows; all cores together.

    `linear_ps` are (rows, picoseconds a weight) of linear layers as the engine runs them, together larger than caches,
    of SMALL_WEIGHTS each; `large_ps` of LARGE_WEIGHTS each, empty where that was not timed.
    `coded_ps` the same of weights in int8 and in 4 bit, where the engine has products of its own for them: `int8` and
    `4bit` as it multiplies by default, `int8-exact` and `4bit-exact` with activations in 16 bit, where that is another
    product; `fp32` where oneDNN multiplies no bf16, so that engines may compute in 32 bit; of large matrices under the
    name with `-large` behind it.
    `unfused_ps`: norms and gates of prompts where each is several operations of torch, (rows, picoseconds for each byte
    that those of one token read and write); empty where that was not timed.
    `is_compiled`: our engine's layers run in C from one product to the next on this CPU, which costs less beside them.
    `fewer` is the same of all cores but one, which an engine leaves to its server. `at_unix_s`: when it was measured.
    """

    read_bytes_per_s: float
    gemm_flop_per_s: float
    cores: int = 2
    is_measured: bool = True
    linear_ps: Products = ()
    large_ps: Products = ()
    coded_ps: tuple[tuple[str, Products], ...] = ()
    is_compiled: bool = True
    fewer: CpuRates | None = None
    at_unix_s: float = 0.0
    unfused_ps: Products = ()

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> CpuRates:
        """Of what `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        fewer, coded = row.get("fewer"), row.get("coded_ps") or {}
        return cls(
            float(row["read_bytes_per_s"]),
            float(row["gemm_flop_per_s"]),
            int(row["cores"]),
            linear_ps=_products(row.get("linear_ps") or {}),
            large_ps=_products(row.get("large_ps") or {}),
            coded_ps=tuple(sorted((name, _products(one)) for name, one in coded.items())),
            is_compiled=bool(row.get("is_compiled", True)),
            fewer=cls.from_json(fewer) if fewer else None,
            at_unix_s=float(row.get("at_unix_s", 0.0)),
            unfused_ps=_products(row.get("unfused_ps") or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """JSON's types alone."""
        return {
            "read_bytes_per_s": self.read_bytes_per_s,
            "gemm_flop_per_s": self.gemm_flop_per_s,
            "cores": self.cores,
            "linear_ps": {str(rows): ps for rows, ps in self.linear_ps},
            "large_ps": {str(rows): ps for rows, ps in self.large_ps},
            "coded_ps": {name: {str(rows): ps for rows, ps in one} for name, one in self.coded_ps},
            "is_compiled": self.is_compiled,
            "fewer": self.fewer.to_json() if self.fewer else None,
            "at_unix_s": self.at_unix_s,
            "unfused_ps": {str(rows): ps for rows, ps in self.unfused_ps},
        }

    def without(self, cores: int) -> CpuRates:
        """What is left when an engine keeps so many cores for its server: measured, else memory whole and a share of
        the products."""
        if not cores or self.cores <= cores:
            return self
        if self.fewer is not None and self.fewer.cores == self.cores - cores:
            return self.fewer
        share = (self.cores - cores) / self.cores
        return replace(
            self, gemm_flop_per_s=self.gemm_flop_per_s * share, linear_ps=(), large_ps=(), coded_ps=(), unfused_ps=()
        )


UNKNOWN_CPU = CpuRates(40e9, 400e9, 4, is_measured=False)


def assumed_rates(hardware: Hardware) -> CpuRates:
    """What a server CPU's cores do in the mean, for one that nobody measured."""
    cores = max(1, hardware.cpu_cores)
    by_flags = (rate for flags, rate in _FLOP_PER_S if flags <= hardware.cpu.flags)
    has_bf16 = any(name in hardware.cpu.formats for name in _FAST_FORMATS)
    per_core = _BF16_FLOP_PER_S if has_bf16 else next(by_flags, _UNKNOWN_FLOP_PER_S)
    return CpuRates(min(18e9 * cores, 200e9), per_core * cores, cores, is_measured=False)


def cpu_card(device: Device, rates: CpuRates, costs: EngineCosts) -> CardSpeed:
    """The cores that the engine computes on; its kernels are rows of configs/speed.toml, its products as measured."""
    left = rates.without(costs.kept_cores)
    kernels = {name: tuple(map(float, row)) for name, row in load("speed")["cpu_kernels"][costs.era].items()}
    coded = dict(left.coded_ps)
    measured = {
        one.name: _measurements(coded[name], coded.get(name + _LARGE, ()))
        for name, one in _CODED.items()
        if name in coded
    }
    if left.linear_ps:
        measured[BF16.name] = _measurements(left.linear_ps, left.large_ps)
        if left.unfused_ps:
            measured[UNFUSED] = _measurements(left.unfused_ps, ())
        kernels["gemm_bf16"] = _gemm_row(left, left.linear_ps, 2.0)  # of formats that it borrows
    return CardSpeed(
        name=device.name,
        bandwidth=left.read_bytes_per_s,
        peaks={"bf16": left.gemm_flop_per_s},
        kernels=kernels,
        like="" if rates.is_measured else "a server CPU",
        links={1: (0.0, 1.0)},
        interconnect="memory",
        products=measured,
    )


def cpu_format(scheme: str, rates: CpuRates, costs: EngineCosts, *, is_exact: bool = False) -> WeightFormat:
    """How `scheme` runs on this CPU: int8 and 4 bit by products that were measured, else as `weight_format` has it.

    `is_exact`: activations stay in 16 bit, which takes other instructions, where these were measured.
    """
    name = SCHEMES[scheme].on_cpu
    measured = dict(rates.without(costs.kept_cores).coded_ps)
    if is_exact and f"{name}-exact" in measured:
        return _CODED[f"{name}-exact"]
    is_assumed = not rates.is_measured and f"gemm_{name}" in load("speed")["cpu_kernels"][costs.era]
    return _CODED[name] if name in measured or is_assumed else weight_format(scheme, ())


def _measurements(small: Products, large: Products) -> Measurements:
    return ((SMALL_WEIGHTS, small), *([(LARGE_WEIGHTS, large)] if large else []))


def _products(measured: Mapping[str, float]) -> Products:
    return tuple(sorted((int(rows), float(ps)) for rows, ps in measured.items()))


def _gemm_row(rates: CpuRates, products: Products, nbytes: float) -> Row:
    """Floor, shares of bandwidth and peak, and q, through the fewest and the most rows; q by those between them."""
    tried = ((tenths / 10, *_through_ends(products, tenths / 10)) for tenths in range(10, _STEEPEST + 1))
    q, read, each = min(tried, key=lambda one: _off(products, *one))
    bandwidth_share = nbytes / (read * 1e-12 * rates.read_bytes_per_s)
    return (0.0, bandwidth_share, 2 / (each * 1e-12 * rates.gemm_flop_per_s), q)


def _through_ends(products: Products, q: float) -> tuple[float, float]:
    """Picoseconds a weight for reading it, and for each row that it is multiplied with."""
    (few, short), (many, long) = products[0], products[-1]
    each = float((max(long**q - short**q, 0.0) / (many**q - few**q)) ** (1 / q)) if many > few else 0.0
    read = float(max(short**q - (few * each) ** q, (0.1 * short) ** q) ** (1 / q))
    return read, max(each, 1e-3)


def _off(products: Products, q: float, read: float, each: float) -> float:
    """How far the form is from what was measured, squared and summed."""
    return float(sum((((read**q + (rows * each) ** q) ** (1 / q)) / ps - 1) ** 2 for rows, ps in products))
