"""`QuantizeSpec`: what the process that quantizes is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["QuantizeSpec"]


@dataclass(frozen=True)
class QuantizeSpec:
    """The fields of the JSON file that `in_environment.py` reads.

    Attributes:
        method: of `METHODS`.
        model: the folder that is quantized.
        out: the folder that is written.
        class_name: transformers' class of the model.
        ignore: modules that stay in 16 bit.
        group_size: columns that share a scale; 0: whole rows do.
        texts: a file of rows; None: it is not calibrated.
        max_length: tokens of a row.
        num_samples: rows at most.
        seed: draws the rows.
        device: cpu or cuda.
        is_dense: neither experts nor linear attention.
    """

    method: str
    model: str
    out: str
    class_name: str
    ignore: tuple[str, ...]
    group_size: int
    texts: str | None
    max_length: int
    num_samples: int
    seed: int
    device: str
    is_dense: bool

    def write(self, file: Path) -> None:
        """As the process reads it."""
        file.write_text(json.dumps(asdict(self), indent=1))
