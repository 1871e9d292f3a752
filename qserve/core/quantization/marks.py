"""How a scheme is told from a checkpoint's `quantization_config`, and what such a config usually looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Mark", "compressed", "packed"]

# What quantizers leave in 16 bits: routers, linear attention, the image encoder, the MTP head, lm_head. Source: the
# `ignore` lists of RedHatAI's and NVIDIA's recipes, of which the weights in public start-up logs are the proof.
_LEFT_OUT = ("lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*linear_attn.*", "re:.*visual.*", "re:mtp.*")


@dataclass(frozen=True)
class Mark:
    """A config of `quant_method` `method` that `says` these values means the scheme.

    True and False are compared as truth values, texts as patterns of the whole value in any case. Keys are as
    quantization_config.py puts them: of compressed-tensors those of a group. The other fields hold where the config
    itself says nothing of them (as `CheckpointQuantization` has them).
    """

    method: str
    says: Mapping[str, Any] = field(default_factory=dict)
    group_size: int = 0
    block: int = 0
    symmetric: bool = False
    per_row: bool = False

    def matches(self, method: str, config: Mapping[str, Any]) -> bool:
        """Whether a config of `method` says all that."""
        return method == self.method and all(_is(config.get(key), wanted) for key, wanted in self.says.items())


def _is(seen: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool):
        return bool(seen) == wanted
    return re.fullmatch(str(wanted), str(seen), re.IGNORECASE) is not None


def packed(method: str, bits: int, **more: Any) -> Mapping[str, Any]:
    """A config of AWQ or GPTQ in groups of 128."""
    return {"quant_method": method, "bits": bits, "group_size": 128, **more}


def compressed(
    bits: int, kind: str, *, activation_bits: int = 16, ignore: tuple[str, ...] | None = _LEFT_OUT, **weights: Any
) -> Mapping[str, Any]:
    """A config of compressed-tensors with one group; without the key `ignore` where that is None."""
    group: dict[str, Any] = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **weights}}
    if activation_bits < 16:
        group["input_activations"] = {"num_bits": activation_bits}
    left_out = {} if ignore is None else {"ignore": list(ignore)}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **left_out}
