"""What is known of one way to store linear weights: the fields of a row of core/schemes.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qserve.core.quantization.layouts import Part
from qserve.core.quantization.marks import Mark
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.quantization.weight_format import BF16, WeightFormat

__all__ = ["Scheme"]

Capability = tuple[int, int]


@dataclass(frozen=True)
class Scheme:
    """One way to store the linear weights; everything else stays in 16 bit. Who runs it is for the engines to say.

    What it is:

    - `quality` orders schemes, higher is better: more bits first, then calibrated before merely rounded.
    - `dtype` is torch's name of what is not quantized.
    - `parts` are the tensors that replace a weight.
    - `made` is what an engine makes of 16-bit weights while loading, and `scales` what is worth knowing of that.

    How it is asked for, and told:

    - `words` of --quant may choose it, `synonyms` are other tools' names of it, and `is_offered` is whether --quant
      takes its own; others are met in checkpoints only.
    - `is_stored`: checkpoints come so; the others are made while loading only.
    - `marks` are how a `quantization_config` says it, `config` is the one of official checkpoints, and `endings` are
      patterns of the ends of repositories' names, each with the config that such a checkpoint usually has.

    How transformers holds and computes it:

    - `packages` are what that needs, beside torch; source: transformers 5.19, quantizers/*.py (validate_environment).
    - `least_card` is the compute capability that their wheels begin at.
    - `packed_from` is the one from which a card computes with the packed weights: before it, on a CPU, and with None
      everywhere, they are made 16 bit while loading. `in_panels`: a CPU's products take them as they are stored.
    - `rounded`: when these products round activations to 8 bits (engines/transformers/plan/activations.py).

    What it costs:

    - `native` is how cards with its arithmetic compute it, `unpacked` how all others do.
    - `on_cpu` names the products that are measured of it on a CPU (planner/speed/terms/cpu.py).
    - `pays_from` is the compute capability at which others begin to gain by it.

    `has_own_head`: checkpoints carry an lm_head even where the model ties it.
    """

    name: str
    bits: int
    quality: int
    dtype: str = ""
    parts: tuple[Part, ...] = ()
    made: CheckpointQuantization | None = None
    scales: str = ""
    words: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    is_offered: bool = True
    is_stored: bool = True
    marks: tuple[Mark, ...] = ()
    config: Mapping[str, Any] | None = None
    endings: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    packages: tuple[str, ...] = ()
    least_card: Capability = (0, 0)
    packed_from: Capability | None = (0, 0)
    in_panels: bool = False
    rounded: Literal["by default", "when asked", "never"] = "never"
    native: WeightFormat | None = None
    unpacked: WeightFormat = BF16
    on_cpu: str = ""
    pays_from: Capability = (0, 0)
    has_own_head: bool = False

    @property
    def by_bitsandbytes(self) -> bool:
        """Whether bitsandbytes holds and computes it."""
        return "bitsandbytes" in self.packages
