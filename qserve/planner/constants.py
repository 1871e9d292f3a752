"""Every measured constant of the planner, in one place, with the version and the card it was measured on.

What is not here is arithmetic on the model's dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import GIB, MIB

__all__ = ["PYTHON_TRANSFORMERS_CPU", "TRANSFORMERS_VERSION", "VLLM_VERSION", "Constant"]


@dataclass(frozen=True)
class Constant:
    """A measured figure with its band and where it comes from."""

    num_bytes: int
    low_bytes: int
    high_bytes: int
    source: str


VLLM_VERSION = "0.32.0"
TRANSFORMERS_VERSION = "5.19.0"

PYTHON_TRANSFORMERS_CPU = Constant(
    700 * MIB,
    500 * MIB,
    1 * GIB,
    "resident memory of a worker process with torch 2.13 CPU and transformers 5.19 before the model is loaded",
)
