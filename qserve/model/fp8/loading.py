"""transformers' hooks for weights in fp8 on a card: they put our layers in place, and the library's loader fills them.

Of a checkpoint in fp8 each tensor goes to the device as the file has it. Of one in 16 bit each weight becomes fp8 on
the device as soon as it is there, with a scale a row, and is let go before the next is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import QuantizationConfigMixin

from qserve.errors import BrokenCheckpoint, UsageError
from qserve.model.cpu.experts import are_computed_as_ours
from qserve.model.fp8.experts import Fp8Experts
from qserve.model.fp8.linear import MADE_SCALE, Fp8Linear
from qserve.model.fp8.weight import CODES, quantized_rows
from qserve.model.stored.experts import are_experts, expert_layers
from qserve.model.stored.hook import LayersHook
from qserve.model.stored.layouts import ReadableLayers, StoredLayer, fp8_block, why_not_readable

__all__ = ["fp8_as_stored", "fp8_in_flight", "is_held"]

_STORED, _IN_FLIGHT = "qserve-fp8", "qserve-fp8-in-flight"
_SCALES = ("weight_scale_inv", "weight_scale")
_STORED_CODES = "F8_E4M3"


def is_held(folder: Path, stored: Mapping[str, Any]) -> bool:
    """Whether all that `folder` has quantized, as its `quantization_config` `stored` says, are weights in fp8."""
    if why_not_readable(stored):
        return False
    layers = ReadableLayers.of(folder, stored).by_name.values()
    return bool(layers) and all(_scale_of(layer) is not None for layer in layers)


def _scale_of(layer: StoredLayer) -> str | None:
    """The name of its scales; None of a layer that is stored otherwise."""
    if "weight" not in layer.parts or layer.parts["weight"].dtype != _STORED_CODES:
        return None
    return next((name for name in _SCALES if name in layer.parts), None)


def fp8_as_stored(folder: Path, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` by which the library loads what `folder` has in fp8 as it is stored."""
    return {"quant_method": _STORED, "folder": str(folder), "stored": dict(stored)}


def fp8_in_flight(kept: tuple[str, ...]) -> Any:
    """The `quantization_config` by which linear layers but `kept`, and experts, become fp8 while they are loaded."""
    return _InFlightConfig(list(kept))


@register_quantization_config(_STORED)
class _StoredConfig(QuantizationConfigMixin):  # type: ignore[misc]
    def __init__(self, folder: str, stored: Mapping[str, Any], quant_method: str = _STORED) -> None:
        self.quant_method, self.folder, self.stored = quant_method, folder, stored


@register_quantizer(_STORED)
class _StoredQuantizer(LayersHook):
    """See `HfQuantizer`."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        stored = self.quantization_config.stored
        layers = ReadableLayers.of(Path(self.quantization_config.folder), stored)
        block = fp8_block(stored)
        for name, module in list(model.named_modules()):
            if type(module) is nn.Linear and (found := layers.find(name)) is not None:
                model.set_submodule(name, _linear(module, *found, block))
        for name, (experts, known) in expert_layers(model, layers).items():
            model.set_submodule(name, _experts(name, experts, known, block))

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        """Scales of experts come joined, in the file's dtype; products take float32."""
        for module in model.modules():
            if isinstance(module, (Fp8Linear, Fp8Experts)):
                for name, scales in module.named_parameters(recurse=False):
                    if "_scale" in name and scales.device.type != "meta":
                        scales.data = scales.data.float()


def _linear(module: nn.Linear, name: str, layer: StoredLayer, block: tuple[int, int] | None) -> Fp8Linear:
    shape, scale = layer.parts["weight"].shape, _scale_of(layer)
    assert scale is not None, f"{name} is no weight in fp8"
    if shape != (module.out_features, module.in_features):
        raise BrokenCheckpoint(
            f"{name} is stored with {list(shape)} weights, but config.json calls for "
            f"{[module.out_features, module.in_features]}: is it of another model?"
        )
    return Fp8Linear(module, scale, layer.parts[scale].shape, block)


def _experts(
    name: str, experts: Any, layers: Mapping[str, tuple[str, StoredLayer]], block: tuple[int, int] | None
) -> Fp8Experts:
    """All experts are stored as the first is: the library joins them as it joins their weights."""
    if not are_computed_as_ours(experts):
        raise UsageError(f"{name} has experts of a form that qserve does not compute in fp8; name the 16-bit model")
    gate, down = (layers[f"0.{projection}"][1] for projection in ("gate_proj", "down_proj"))
    scale = _scale_of(gate)
    assert scale is not None, f"{name} has no weights in fp8"
    inner, hidden = experts.intermediate_dim, experts.hidden_dim
    if gate.parts["weight"].shape != (inner, hidden):
        raise BrokenCheckpoint(
            f"{name} is stored with experts of {list(gate.parts['weight'].shape)}, but config.json calls for "
            f"{[inner, hidden]}: is it of another model?"
        )
    end = scale.removeprefix("weight")
    return Fp8Experts(experts, end, gate.parts[scale].shape, down.parts[scale].shape, block)


@register_quantization_config(_IN_FLIGHT)
class _InFlightConfig(QuantizationConfigMixin):  # type: ignore[misc]
    def __init__(self, kept: list[str], quant_method: str = _IN_FLIGHT) -> None:
        self.quant_method, self.kept = quant_method, kept


@register_quantizer(_IN_FLIGHT)
class _InFlightQuantizer(LayersHook):
    """See `HfQuantizer`."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        kept = [*self.quantization_config.kept, *(getattr(model, "_keep_in_fp32_modules", None) or ())]
        for name, module in list(model.named_modules()):
            if type(module) is nn.Linear and should_convert_module(name, kept):
                made: nn.Module = Fp8Linear(module, MADE_SCALE, (module.out_features, 1), None)
            elif are_experts(module) and are_computed_as_ours(module):
                shapes = (module.intermediate_dim, 1), (module.hidden_dim, 1)
                made = Fp8Experts(module, MADE_SCALE.removeprefix("weight"), *shapes, None)
            else:
                continue
            for part, weight in list(module.named_parameters(recurse=False)):
                if part != "bias":  # read in its own dtype: the loader would round it to that of the codes
                    made.register_parameter(part, _unread(weight))
            model.set_submodule(name, made)

    def param_element_size(self, model: Any, param_name: str, param: torch.Tensor) -> float:
        if self.param_needs_quantization(model, param_name):
            return CODES.itemsize
        return float(super().param_element_size(model, param_name, param))

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        path, _, name = param_name.rpartition(".")
        return isinstance(model.get_submodule(path), (Fp8Linear, Fp8Experts)) and name != "bias"

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantize()


def _unread(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)


class _Quantize(ConversionOps):  # type: ignore[misc]
    """A weight in 16 bit to its codes and scales."""

    @torch.no_grad()
    def convert(self, input_dict: dict[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        """See `ConversionOps`: one tensor, or a list of it."""
        made = {}
        for name, value in input_dict.items():
            made[name], made[f"{name}_scale"] = quantized_rows(value[0] if isinstance(value, list) else value)
        return made
