"""Checkpoints that somebody quantized already: which packages transformers needs for each format."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from qserve.errors import MissingExtra, UsageError
from qserve.hub.folder import read_config
from qserve.packages import install_command
from qserve.planner.plan import Plan

__all__ = ["missing_packages", "stored_arguments", "stored_config"]

_FP8_CAPABILITY = (8, 9)
# By `quant_method`: importable names, and the command that installs them beside the versions qserve is pinned to.
_NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "awq": (("gptqmodel",), install_command("gptqmodel")),
    "gptq": (("gptqmodel", "optimum"), install_command("gptqmodel", "optimum")),
    "compressed-tensors": (("compressed_tensors",), install_command("compressed-tensors>=0.15")),
    "torchao": (("torchao",), install_command("torchao")),
    "auto-round": (("auto_round",), install_command("auto-round")),
}


def stored_config(folder: Path) -> Mapping[str, Any] | None:
    """The `quantization_config` of a checkpoint folder; multimodal configs nest it in `text_config`."""
    config = read_config(folder)
    found = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    return found if isinstance(found, Mapping) else None


def missing_packages(quantization: Mapping[str, Any]) -> None:
    """Raises UsageError with the install command when a package is missing that this `quantization_config` needs."""
    method = str(quantization.get("quant_method", "")).lower()
    if method == "bitsandbytes" and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "this checkpoint is stored in bitsandbytes' format and")
    names, command = _NEEDS.get(method, ((), ""))
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"a checkpoint that is stored as {method} needs {' and '.join(missing)}, which is not installed. "
            f"Install it: {command}"
        )


def stored_arguments(folder: Path, plan: Plan) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a checkpoint that may be stored quantized.

    Formats of compressed-tensors have no kernels here: left to itself the library unpacks them for good in the first
    request. They are unpacked while loading, but for fp8 on a card that computes in it.
    """
    stored = stored_config(folder)
    method = str((stored or {}).get("quant_method", "")).lower()
    if stored is not None and method == "fp8" and importlib.util.find_spec("kernels") is None:
        return {"config": _configured(folder, {**stored, "dequantize": True})}  # else the first forward fails
    if stored is None or method != "compressed-tensors":
        return {}
    on_card = torch.cuda.is_available() and plan.placement.device_map != "cpu"
    has_fp8 = plan.quant.scheme == "fp8" and on_card and torch.cuda.get_device_capability() >= _FP8_CAPABILITY
    changed = {**stored, "dequantize": not has_fp8, "use_optimized_inference": has_fp8}
    return {"config": _configured(folder, changed)}


def _configured(folder: Path, quantization: Mapping[str, Any]) -> Any:
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.quantization_config = dict(quantization)
    return config
