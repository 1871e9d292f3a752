"""Experts of a CPU made int8 or 4 bit while the library loads, a layer at a time: in 16 bit they may exceed the RAM.

The library sets a layer's experts as two parameters. When both are there they are quantized, and the module that holds
them is replaced: the next layer is read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import core_model_loading

from qserve.model.cpu.experts import Quantize, quantized_experts_from
from qserve.model.quantize import expert_quantizer
from qserve.planner.plan import Plan

__all__ = ["quantizing_experts"]


@contextmanager
def quantizing_experts(plan: Plan) -> Iterator[None]:
    """Within it, models that load become what `plan` says of their experts, where a CPU computes them in bf16."""
    quantize = expert_quantizer(plan)
    # A private name: in a release without it experts are quantized all the same, after all of them were read.
    library = getattr(core_model_loading, "set_param_for_module", None)
    if quantize is None or library is None or not plan.on_cpu or plan.dtype != "bfloat16":
        yield
        return

    def set_and_quantize(model: Any, target_name: str, *rest: Any, **named: Any) -> None:
        library(model, target_name, *rest, **named)
        _quantize_if_complete(model, target_name.rpartition(".")[0], quantize)

    core_model_loading.set_param_for_module = set_and_quantize
    try:
        yield
    finally:
        core_model_loading.set_param_for_module = library


def _quantize_if_complete(model: nn.Module, path: str, quantize: Quantize) -> None:
    if not path.endswith("experts"):
        return
    module = model.get_submodule(path)
    if any(parameter.device.type != "cpu" for parameter in module.parameters()):
        return  # what is not read yet lies on "meta"
    made = quantized_experts_from(module, quantize)
    if made is not None:
        model.set_submodule(path, made)
