"""A card as the speed arithmetic sees it: bandwidth, peaks, links, and the kernel rows of it or of its nearest kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from qserve.core.facts import load
from qserve.core.hardware import Device, known_gpus

__all__ = ["UNFUSED", "CardSpeed", "card_of"]

Row = tuple[float, ...]
UNFUSED = "unfused"
"""Norms and gates that are several operations each: a row of an engine's kernels, and of what was measured."""

# Where a format has no row on a card: the one whose kernel is nearest to it.
_NEAREST_ROW = {
    "gemm_fp8": "gemm_bf16",
    "gemm_nvfp4": "gemm_fp8",
    "moe_fp8": "moe_bf16",
    "moe_fp8_block": "moe_fp8",
    "moe_nvfp4": "moe_fp8",
    "moe_int4": "moe_bf16",
}
# Dense TFLOP/s in 16 bit per SM, by compute capability: (data centre and workstation, GeForce with 32-bit sums).
# Source: NVIDIA's data sheets of A100, A40, RTX 3090, L40S, RTX 4090, H100, B200, RTX PRO 6000, RTX 5090; T4; V100;
# B300: configs/speed.toml.
_TFLOPS_PER_SM = {
    (7, 0): (1.4, 1.4),
    (7, 5): (1.62, 0.8),
    (8, 0): (2.89, 2.89),
    (8, 6): (1.78, 0.87),
    (8, 7): (2.5, 2.5),
    (8, 9): (2.55, 1.29),
    (9, 0): (7.49, 7.49),
    (10, 0): (15.2, 15.2),
    (10, 3): (15.2, 15.2),
    (11, 0): (12.5, 12.5),
    (12, 0): (2.49, 1.23),
    (12, 1): (2.6, 2.6),
}
_FP4_BANDWIDTH = 0.8
"""Of a card's bandwidth, that products of FP4 weights reach at most."""
_HALF_PEAK, _HALF_ATTENTION = 0.9, 0.8
"""Of their peak in 16 and 8 bit, that products and attention reach at most on GeForce cards."""
_LIKE = {7: "a100-80gb", 8: "l40s", 9: "h100-sxm", 10: "b200", 11: "rtx-pro-6000", 12: "rtx-pro-6000"}


@dataclass(frozen=True)
class CardSpeed:
    """`bandwidth` in bytes/s, `peaks` in dense FLOP/s by format (bf16, fp8, int8, fp4).

    `kernels` are rows of configs/speed_kernels.toml; `like` is the card they were measured on where it is another.
    `products` are what was measured of linear layers on this machine, by the format's name: (weights of a matrix, its
    (rows, picoseconds a weight)), in order of size.
    `links` are (t0_us, GB/s) of an all-reduce by number of cards. `power_w` is the board's limit, 0 where unknown.
    """

    name: str
    bandwidth: float
    peaks: Mapping[str, float]
    kernels: Mapping[str, Row]
    like: str = ""
    links: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    power_w: float = 0.0
    interconnect: str = "pcie4"
    products: Mapping[str, tuple[tuple[int, tuple[tuple[int, float], ...]], ...]] = field(default_factory=dict)
    is_hopper: bool = False
    """Compute capability 9.0 and later, where kernels written for Ampere reach less."""

    def peak(self, number_format: str) -> float:
        """Dense FLOP/s in the format, or in 16 bit where the card has no arithmetic of its own for it."""
        return self.peaks.get(number_format) or self.peaks["bf16"]

    def kernel(self, name: str) -> Row:
        """The row of a kernel, or of the nearest one. Raises KeyError for one that nobody measured."""
        while name not in self.kernels:
            if name in _NEAREST_ROW:
                name = _NEAREST_ROW[name]
            else:
                name = name.replace("_fp8_", "_bf16_").replace("_64", "_128").replace("_256", "_128")
                if name not in self.kernels:
                    raise KeyError(name)
        return self.kernels[name]

    def link(self, ranks: int) -> tuple[float, float]:
        """(t0_us, GB/s) of an all-reduce; of a number between the measured ones the next larger."""
        known = [count for count in sorted(self.links) if count >= ranks] or [max(self.links)]
        return self.links[known[0]]


def card_of(device: Device, key: str | None = None) -> CardSpeed:
    """What is known of a device; one that is in no table is of the generation that its compute capability says.

    `key` is its row in configs/speed.toml where its name tells none.
    """
    return _card(key or _keys_by_name().get(device.known_as, ""), device)


@cache
def _keys_by_name() -> dict[str, str]:
    return {row["name"]: key for key, row in load("gpus")["gpus"].items()}


@cache
def _card(key: str, device: Device) -> CardSpeed:
    row: dict[str, Any] = load("speed")["cards"].get(key, {})
    tables = load("speed_kernels")
    capability = device.compute_capability or (8, 0)
    like = key if key in tables else row.get("like", _LIKE.get(capability[0], "l40s"))
    interconnect = row.get("interconnect", "pcie4" if capability < (10, 0) else "pcie5")
    kernels = {name: tuple(values[:-1]) for name, values in {**tables["h100-sxm"], **tables[like]}.items()}
    bandwidth = row.get("bandwidth_gb_per_s", 0) * 1e9 or device.bandwidth_bytes_per_s or 500e9
    if "gemm_nvfp4" in kernels:
        lent = 1.0 if like == key else (known_gpus()[like].bandwidth_bytes_per_s or bandwidth) / bandwidth
        kernels["gemm_nvfp4"] = _fp4_in_graphs(kernels["gemm_nvfp4"], kernels["gemm_bf16"], lent)
    if "GeForce" in device.known_as:
        kernels |= _at_half_peak(kernels)
    return CardSpeed(
        name=device.known_as,
        bandwidth=bandwidth,
        peaks=_peaks(row, device, capability),
        kernels=kernels,
        like="" if like == key else like,
        links=_links(interconnect, tables[like] if like == key or interconnect == "nvlink" else {}),
        power_w=row.get("power_w", 0.0),
        interconnect=interconnect,
        is_hopper=capability >= (9, 0),
    )


def _fp4_in_graphs(row: Row, bf16: Row, lent: float) -> Row:
    """A product of FP4 weights inside CUDA graphs, on a card whose bandwidth is 1 / `lent` of the measured one's.

    The tables time two launches from Python, quantizing the activations and the product; graphs leave the floors of two
    kernels. At few rows the time of a tile's loop bounds the product, not the card's bandwidth (FlashInfer #3026: the
    same shapes on SM120 and SM121), so that what a second carries is lent, not the share.
    """
    return (min(row[0], 2 * bf16[0]), max(row[1], min(_FP4_BANDWIDTH, row[1] * lent)) if lent > 1 else row[1], *row[2:])


def _at_half_peak(kernels: Mapping[str, Row]) -> dict[str, Row]:
    """Rows of a workstation's card on a GeForce of its generation, whose 16 and 8 bit arithmetic runs at half the rate.

    What bounds the former below its peak (power, caches, the softmax between two products) allows as many FLOP on the
    latter, so that the share is twice as large, up to what any card reaches.
    """
    products = {name: row for name, row in kernels.items() if name.startswith("gemm_") and "nvfp4" not in name}
    attention = {name: row for name, row in kernels.items() if name.startswith("prefill_")}
    return {
        **{name: (*row[:2], max(row[2], min(_HALF_PEAK, 2 * row[2])), *row[3:]) for name, row in products.items()},
        **{name: (row[0], max(row[1], min(_HALF_ATTENTION, 2 * row[1])), *row[2:]) for name, row in attention.items()},
    }


def _peaks(row: Mapping[str, Any], device: Device, capability: tuple[int, int]) -> dict[str, float]:
    per_sm = _TFLOPS_PER_SM.get(capability, _TFLOPS_PER_SM[8, 6])
    sixteen = row.get("tflops") or per_sm["GeForce" in device.known_as] * (device.sm_count or 80)
    # GeForce halves 16 and 8 bit with 32-bit sums, not 4 bit: RTX 5090 209.5, 419 and 1,676 (NVIDIA's Blackwell paper).
    factors = {"bf16": 1, "fp8": 2, "int8": 2, "fp4": 8 if "GeForce" in device.known_as else 4}
    return {
        name: row.get(f"tflops_{name}", sixteen * factor) * 1e12
        for name, factor in factors.items()
        if name == "bf16" or device.supports(name)
    }


def _links(interconnect: str, rows: Mapping[str, list[float]]) -> dict[int, tuple[float, float]]:
    measured = {int(name[7:]): (row[0], row[1]) for name, row in rows.items() if name.startswith("reduce_")}
    usual = load("speed")["links"].get(interconnect, {})
    return measured or {int(count): (values[0], values[1]) for count, values in usual.items()}
