"""How the library is told to load a checkpoint that is stored quantized, and which packages it needs for that."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from qserve.core.nested import quantization_config
from qserve.core.schemes import SCHEMES
from qserve.errors import BrokenCheckpoint, MissingExtra, UsageError
from qserve.hub.folder import read_config
from qserve.model.fp8.loading import fp8_as_stored, is_held
from qserve.model.stored.layouts import ReadableLayers, why_not_readable
from qserve.model.stored.quantizer import as_stored
from qserve.packages import install_command
from qserve.planner.plan import Plan

__all__ = ["configured", "missing_packages", "own_quantization", "stored_arguments", "stored_config"]

# The library's packages for methods that are none of a scheme's own.
_OTHER_METHODS = {"torchao": ("torchao",), "auto-round": ("auto-round",)}
# What no package brings to the library: AUTO_QUANTIZER_MAPPING of transformers 5.19 has none for it.
_UNREAD_METHOD = "modelopt"


def stored_config(folder: Path) -> Mapping[str, Any] | None:
    """The `quantization_config` of a checkpoint folder."""
    return quantization_config(read_config(folder))


def missing_packages(quantization: Mapping[str, Any]) -> None:
    """Raises UsageError with the install command when a package is missing that this `quantization_config` needs."""
    method = str(quantization.get("quant_method", "")).lower()
    if method == "bitsandbytes" and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "this checkpoint is stored in bitsandbytes' format and")
    needed = _needed(method)
    missing = [name for one in needed if importlib.util.find_spec(name := one.replace("-", "_")) is None]
    if missing:
        unread = why_not_readable(quantization)
        without = f"; without it qserve reads such checkpoints on a CPU, but not this one: {unread}" if unread else ""
        raise UsageError(
            f"a checkpoint that is stored as {method} needs {' and '.join(missing)}, which is not installed. "
            f"Install it: {install_command(*needed)}{without}"
        )


def _needed(method: str) -> tuple[str, ...]:
    """Packages without which the library loads no checkpoint of this `quant_method`; none where it never does."""
    rows = (scheme for scheme in SCHEMES.values() if scheme.packages and method != _UNREAD_METHOD)
    by_row = (scheme.packages for scheme in rows if any(mark.method == method for mark in scheme.marks))
    return next(by_row, _OTHER_METHODS.get(method, ()))


def stored_arguments(folder: Path, plan: Plan) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a checkpoint that may be stored quantized.

    On a CPU layers are read as they are stored where they can be (layouts.py), and on a card those in fp8. Other
    formats of compressed-tensors have no kernels: left to itself the library unpacks them for good in the first
    request. They are unpacked while loading, and so is fp8 on cards that are too old or in forms that qserve does not
    read. Raises UsageError or MissingExtra for what can't be loaded here.
    """
    stored = stored_config(folder)
    if stored is None:
        return {}
    own = own_quantization(folder, plan)
    if own is not None:
        return {"config": configured(folder, own)}
    missing_packages(stored)
    method = str(stored.get("quant_method", "")).lower()
    # The library's own products by fp8 are a package's, and those of compressed-tensors unpack in the first request.
    if method in ("fp8", "compressed-tensors"):
        unpacked = {} if method == "fp8" else {"use_optimized_inference": False}
        return {"config": configured(folder, {**stored, "dequantize": True, **unpacked})}
    return {}


def own_quantization(folder: Path, plan: Plan) -> dict[str, Any] | None:
    """The `quantization_config` by which the layers of `folder` are read as they are stored; None where they are not.

    Raises BrokenCheckpoint where config.json says that weights are quantized and none is.
    """
    stored = stored_config(folder)
    if stored is None or why_not_readable(stored):
        return None
    if plan.placement.device_map == "cpu":  # what lies on disk comes through the library's hooks
        _check_any(folder, stored)
        return as_stored(folder, stored)
    return fp8_as_stored(folder, stored) if is_held(folder, stored) and _has_fp8_products(plan) else None


def _has_fp8_products(plan: Plan) -> bool:
    """Whether cards of the plan multiply by weights in fp8: as the planner has it (core/schemes.py: `packed_from`)."""
    least = SCHEMES["fp8"].packed_from
    return not plan.on_cpu and least is not None and torch.cuda.get_device_capability() >= least


def _check_any(folder: Path, stored: Mapping[str, Any]) -> None:
    """Raises BrokenCheckpoint where no tensor is quantized."""
    if not ReadableLayers.of(folder, stored).by_name:
        raise BrokenCheckpoint(
            f"{folder}: config.json says that weights are stored as {stored.get('quant_method')}, but no tensor of the "
            "checkpoint is: is quantization_config of another model?"
        )


def configured(folder: Path, quantization: Mapping[str, Any]) -> Any:
    """The library's config of `folder`, with another `quantization_config`."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.quantization_config = dict(quantization)
    return config
