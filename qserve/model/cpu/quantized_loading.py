"""Layers and experts of a CPU made int8 or 4 bit while the library loads: in 16 bit they may exceed the RAM.

The library sets a layer's weight, and a layer's experts as two parameters. When all is there that a module has, it is
quantized, and the module that holds it is replaced: the next is read afterwards. Linear layers are told apart before
by transformers' hook for quantized formats, by the rule that it has for bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import core_model_loading
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import QuantizationConfigMixin

from qserve.model.cpu.experts import Quantize, quantized_experts_from
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.stored.hook import LayersHook

__all__ = ["ToQuantize", "in_flight", "quantized_from", "quantizing"]

_METHOD = "qserve-in-flight"


class ToQuantize(nn.Linear):
    """A layer in 16 bit that is quantized as soon as it is there."""


def in_flight(kept: tuple[str, ...]) -> Any:
    """The `quantization_config` by which the library marks linear layers but `kept` as `ToQuantize`."""
    return _InFlightConfig(list(kept))


@contextmanager
def quantizing(quantize: Quantize | None, *, experts: bool) -> Iterator[None]:
    """Within it, layers that load become what `quantize` makes of them, `experts` too; None: nothing does."""
    # A private name: in a release without it they are quantized all the same, after all of them were read.
    library = getattr(core_model_loading, "set_param_for_module", None)
    if quantize is None or library is None:
        yield
        return

    def set_and_quantize(model: Any, target_name: str, *rest: Any, **named: Any) -> None:
        library(model, target_name, *rest, **named)
        path = target_name.rpartition(".")[0]
        module = model.get_submodule(path)
        if any(parameter.device.type != "cpu" for parameter in module.parameters()):
            return  # what is not read yet lies on "meta"
        made: nn.Module | None = None
        if isinstance(module, ToQuantize):
            made = quantized_from(module, quantize)
        elif experts and path.endswith("experts"):
            made = quantized_experts_from(module, quantize)
        if made is not None:
            model.set_submodule(path, made)

    core_model_loading.set_param_for_module = set_and_quantize
    try:
        yield
    finally:
        core_model_loading.set_param_for_module = library


@torch.no_grad()
def quantized_from(linear: ToQuantize, quantize: Quantize) -> CompiledLinear | None:
    """The layer on our products; None for a shape that these do not take."""
    matrix = quantize(linear.weight.data)
    return None if matrix is None else CompiledLinear(matrix.with_bias(linear.bias))


@register_quantization_config(_METHOD)
class _InFlightConfig(QuantizationConfigMixin):  # type: ignore[misc]
    def __init__(self, kept: list[str], quant_method: str = _METHOD) -> None:
        self.quant_method, self.kept = quant_method, kept


@register_quantizer(_METHOD)
class _InFlightQuantizer(LayersHook):
    """See `HfQuantizer`."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        kept = [*self.quantization_config.kept, *(getattr(model, "_keep_in_fp32_modules", None) or ())]
        for name, module in model.named_modules():
            if type(module) is nn.Linear and should_convert_module(name, kept):
                module.__class__ = ToQuantize

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        self.remove_quantization_config(model)  # the layers compute by themselves
