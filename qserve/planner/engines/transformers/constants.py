"""What was measured of the transformers engine, with the version it was measured on."""

from __future__ import annotations

from qserve.planner.constants import Constant
from qserve.units import GIB, MIB

__all__ = ["PYTHON_CPU", "TESTED_RELEASE"]

TESTED_RELEASE = "5.19.0"

PYTHON_CPU = Constant(
    700 * MIB,
    500 * MIB,
    1 * GIB,
    "resident memory of a worker process with torch 2.13 CPU and transformers 5.19 before the model is loaded",
)
