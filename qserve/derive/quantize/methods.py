"""`Method`: a row for each way of `qserve quantize --to`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METHODS", "Method"]

_ENVIRONMENT = "llm-compressor"


@dataclass(frozen=True)
class Method:
    """One way.

    Attributes:
        name: what --to takes.
        scheme: as which an engine reads the result (core/schemes.py).
        bits: of a weight.
        how: for people.
        is_calibrated: it is done on texts.
        siblings: schemes of published checkpoints that are as good or better, the best first.
        environment: that it runs in (`qserve env`); None: qserve's own.
        scale_bits: of what stands beside a group or a row of weights.
        dense_only: models with experts or linear attention were not tried with it.
    """

    name: str
    scheme: str
    bits: int
    how: str
    is_calibrated: bool
    siblings: tuple[str, ...]
    environment: str | None = _ENVIRONMENT
    scale_bits: int = 16
    dense_only: bool = False

    @property
    def in_groups(self) -> bool:
        """Whether columns get scales in groups."""
        return self.environment is not None and self.bits == 4


METHODS = {
    one.name: one
    for one in (
        Method(
            "w4a16",
            "w4a16",
            4,
            "4-bit integers in groups, symmetric, rounded by GPTQ",
            True,
            ("awq", "gptq-int4", "w4a16"),
        ),
        Method(
            "awq",
            "w4a16",
            4,
            "4-bit integers in groups with zero points, scaled by AWQ",
            True,
            ("awq", "w4a16"),
            scale_bits=20,
            dense_only=True,
        ),
        Method("fp8", "fp8", 8, "8-bit floats, a scale for each row; activations in fp8 by token", False, ("fp8",)),
        Method(
            "w8a8",
            "w8a8",
            8,
            "8-bit integers, a scale for each row, by SmoothQuant and GPTQ; activations in int8 by token",
            True,
            ("w8a8",),
        ),
        Method(
            "nf4",
            "bnb-nf4",
            4,
            "bitsandbytes' NF4 with double quantization",
            False,
            ("bnb-nf4",),
            environment=None,
            dense_only=True,
        ),
    )
}
