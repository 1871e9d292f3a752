"""What a run measured of a term, and what that corrects in the next plan. Pure data; `calibrate.py` has the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CalibratedTerm", "Correction", "Residual"]

CalibratedTerm = Literal["weights", "activations", "cuda_graphs", "runtime", "kv_cache_tokens"]


@dataclass(frozen=True)
class Residual:
    """One term of one run. `planned` and `measured` are bytes of one device, or tokens of the whole KV cache.

    `shape` and `step` are a plan's own; `run` is the id of the run that measured it, at `unix_s`.
    """

    engine: str
    engine_version: str
    device: str
    on_cpu: bool
    shape: str
    step: str
    term: CalibratedTerm
    planned: int
    measured: int
    run: str
    unix_s: float = 0.0


@dataclass(frozen=True)
class Correction:
    """What was done to a term of a plan: from `planned` to `measured`, because of `run`."""

    term: CalibratedTerm
    planned: int
    measured: int
    run: str

    @property
    def difference(self) -> int:
        return self.measured - self.planned

    def moved(self, num_bytes: int) -> int:
        """`num_bytes` of the term as the measurement has it; never below nothing."""
        return max(0, num_bytes + self.difference)

    @property
    def source(self) -> str:
        return f"measured by run {self.run}"
