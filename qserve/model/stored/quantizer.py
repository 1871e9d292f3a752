"""transformers' hook for stored formats: it puts our layers in place before weights are loaded, and is gone after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from qserve.model.stored.experts import stored_experts_in
from qserve.model.stored.hook import LayersHook
from qserve.model.stored.layouts import ReadableLayers
from qserve.model.stored.linear import StoredLinear

__all__ = ["as_stored"]

_METHOD = "qserve-stored"


def as_stored(folder: Path, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` by which the library loads the layers of `folder` as they are stored."""
    return {"quant_method": _METHOD, "folder": str(folder), "stored": dict(stored)}


@register_quantization_config(_METHOD)
class _StoredConfig(QuantizationConfigMixin):  # type: ignore[misc]
    def __init__(self, folder: str, stored: Mapping[str, Any], quant_method: str = _METHOD) -> None:
        self.quant_method, self.folder, self.stored = quant_method, folder, stored
        self.dequantize = True  # the library forgets the quantization after loading: what is left computes by itself


@register_quantizer(_METHOD)
class _StoredQuantizer(LayersHook):
    """See `HfQuantizer`."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        folder = Path(self.quantization_config.folder)
        layers = ReadableLayers.of(folder, self.quantization_config.stored)
        for name, module in list(model.named_modules()):
            if type(module) is nn.Linear and (found := layers.find(name)) is not None:
                model.set_submodule(name, StoredLinear(module, name, found[1]))
        experts = stored_experts_in(model, layers, folder)
        for name, stored in experts.items():
            model.set_submodule(name, stored)
        if experts:  # read from the files by themselves
            ignored = model._keys_to_ignore_on_load_unexpected or ()
            model._keys_to_ignore_on_load_unexpected = {*ignored, r"\.experts\."}
