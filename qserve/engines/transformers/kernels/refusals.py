"""A kernel of ours that a card refused: which one, why, and what that costs. For worker, screen and `qserve doctor`.

The worker tries each kernel at start. One that does not compile, or says something else than torch, is replaced by
torch's operations: answers stay right and take longer. `COSTS` says how much, from counts (docs/results/gpu.md).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from qserve.core.facts import load
from qserve.engines.transformers.kernels.quantized_products import LIBRARY_ROWS, ROW_TILES, read_bytes

__all__ = [
    "CAPTURE",
    "COSTS",
    "FOUR_BIT_PRODUCT",
    "FP8_EXPERTS",
    "INT8_PRODUCT",
    "LAYER_LAUNCHES",
    "OPERATIONS",
    "PAGED_ATTENTION",
    "TEXT_ATTENTION",
    "TOP_P_DRAW",
    "Refusal",
    "layer_launches_without",
    "log_refusal",
    "product_name",
    "refusal",
]

CAPTURE = "CUDA graph capture"
INT8_PRODUCT = "int8 product"
FOUR_BIT_PRODUCT = "4-bit product"
FP8_EXPERTS = "fp8 experts"
PAGED_ATTENTION = "paged attention"
TEXT_ATTENTION = "attention over texts"
TOP_P_DRAW = "top-p draw"

LAYER_LAUNCHES = int(load("speed")["transformers"]["launches"]["dense_layer"])
"""Kernels of a dense layer in a decoding step where all of ours run."""

OPERATIONS = {"add_rms_norm": (2, 9), "rotate_and_store": (1, 29), "silu_and_multiply": (1, 2)}
"""How often a layer has an operation, and how many kernels torch launches for it (decoding/operations.py: PLAIN)."""

_NEXT_STEP = "qserve doctor --kernels"
_MOST_CHARACTERS = 2 * 80 - len("Warn   ")
_MANY = ROW_TILES[-1] + 1


@dataclass(frozen=True)
class Refusal:
    """`kernel` is a name of `COSTS`; `reason` is the last line of what the compiler said; `cost` is for the user."""

    kernel: str
    reason: str
    cost: str

    @classmethod
    def from_json(cls, document: Mapping[str, str]) -> Refusal:
        """What `asdict` made; another release's may have more in it."""
        return cls(document["kernel"], document["reason"], document["cost"])

    def __str__(self) -> str:
        return f"{self.kernel} is refused on this card ({self.reason}): {self.cost}"

    @property
    def warning(self) -> str:
        """For a screen: two lines of 80 columns at most, with the next step; a long reason is cut."""
        room = _MOST_CHARACTERS - len(f"{self.kernel} refused (): {self.cost}; {_NEXT_STEP}")
        reason = self.reason if len(self.reason) <= room else f"{self.reason[: room - 1]}…"
        return f"{self.kernel} refused ({reason}): {self.cost}; {_NEXT_STEP}"


def refusal(kernel: str, reason: str) -> Refusal:
    """Of a kernel named in `COSTS`."""
    return Refusal(kernel, reason, COSTS[kernel])


def log_refusal(log: logging.Logger, refused: Refusal) -> None:
    """One warning; with the whole exception where one is being handled: a compiler's output has many lines."""
    log.warning("%s", refused, exc_info=sys.exc_info()[0] is not None)


def product_name(kind: str) -> str:
    """The kernel that multiplies by weights of `kind`: int8, nf4 or fp4."""
    return INT8_PRODUCT if kind == "int8" else FOUR_BIT_PRODUCT


def layer_launches_without(operation: str) -> int:
    """Kernels of a layer where torch's small operations take the place of one of `OPERATIONS`."""
    times, num_small = OPERATIONS[operation]
    return LAYER_LAUNCHES + times * (num_small - 1)


def _times_the_bytes(bits: int) -> int:
    """Bytes that a product unpacked by pieces moves, over the bytes of the weight as it is held."""
    return read_bytes(bits, 8, _MANY) // read_bytes(bits, 8, 1)


COSTS = {
    **{
        name: f"a decoding layer takes {layer_launches_without(name)} launches, not {LAYER_LAUNCHES}"
        for name in OPERATIONS
    },
    # A captured step is one launch; without, each layer has LAYER_LAUNCHES, and the host launches more slowly than a
    # card computes for few rows.
    CAPTURE: "roughly half the tokens/s of one stream",
    INT8_PRODUCT: f"steps of up to {ROW_TILES[-1]} rows move {_times_the_bytes(8)} times the bytes of weights",
    FOUR_BIT_PRODUCT: f"steps of {LIBRARY_ROWS + 1} to {ROW_TILES[-1]} rows move {_times_the_bytes(4)} times the bytes "
    "of weights",
    # model/fp8/experts.py: by_loop
    FP8_EXPERTS: "a layer's experts are computed one by one, after a wait for the card",
    PAGED_ATTENTION: "each step first copies the keys of all rows, and is not captured",
    # reward/scoring/attention.py: a call and a copy of what it says.
    TEXT_ATTENTION: "a layer takes two launches for each text to score",
    TOP_P_DRAW: "top-p without top-k sorts the whole vocabulary in each step",
}
"""What a refusal costs, by kernel, in words that leave the screen room for the reason. The plan's speed has none."""
