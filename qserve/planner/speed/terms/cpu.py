"""A CPU as a card: the same arithmetic over what it reads and multiplies, measured by `qserve doctor --measure`."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.hardware import Device, Hardware
from qserve.planner.speed.terms.card import CardSpeed

__all__ = ["UNKNOWN_CPU", "CpuRates", "assumed_rates", "cpu_card"]

_FAST_FORMATS = ("bf16",)
# Of what bench/limits.py measures, by docs/results/throughput.md: a Qwen3-0.6B in bf16 on 2 cores, 1, 8 and 16 streams.
_KERNELS = {
    "gemm_bf16": (10.0, 0.52, 0.92, 1.2),
    "decode_bf16_128": (20.0, 0.43, 1.0, 0.0),
    "prefill_128": (50.0, 0.35, 0.4),
    "moe_bf16": (200.0, 0.4, 0.5, 0.95, 1.0),
    "state_decode": (50.0, 0.4),
    "state_prefill": (200.0, 0.0, 100.0),
}


@dataclass(frozen=True)
class CpuRates:
    """Bytes/s of reading memory in order, FLOP/s of a 16-bit (else 32-bit) product of 1024 rows; all cores together."""

    read_bytes_per_s: float
    gemm_flop_per_s: float
    cores: int = 2
    is_measured: bool = True


UNKNOWN_CPU = CpuRates(40e9, 400e9, 4, is_measured=False)


def assumed_rates(hardware: Hardware) -> CpuRates:
    """What a server CPU's cores do in the mean, for one that nobody measured."""
    cores = max(1, hardware.cpu_cores)
    per_core = 350e9 if any(name in hardware.cpu.formats for name in _FAST_FORMATS) else 60e9
    return CpuRates(min(18e9 * cores, 200e9), per_core * cores, cores, is_measured=False)


def cpu_card(device: Device, rates: CpuRates, kept_cores: int = 0) -> CardSpeed:
    """`kept_cores` are those that the engine's server has for itself."""
    share = max(1, rates.cores - kept_cores) / max(1, rates.cores)
    return CardSpeed(
        name=device.name,
        bandwidth=rates.read_bytes_per_s,
        peaks={"bf16": rates.gemm_flop_per_s * share},
        kernels=_KERNELS,
        like="" if rates.is_measured else "a server CPU",
        links={1: (0.0, 1.0)},
        interconnect="memory",
    )
