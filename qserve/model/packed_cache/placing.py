"""transformers' hook for packed weights: it puts finished layers in place before the rest of a checkpoint is loaded.

The library then finds no tensor wanted of what is packed already, and reads none: norms, biases of norms and the
embedding are all that comes from the checkpoint's own files.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from qserve.model.stored.hook import LayersHook

__all__ = ["Misplaced", "placed", "placing"]

_METHOD = "qserve-packed"
_layers_by_token: dict[str, Mapping[str, nn.Module]] = {}


class Misplaced(Exception):
    """Why layers do not go into a model: half a sentence."""


@contextlib.contextmanager
def placing(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, Any]]:
    """The `quantization_config` by which the library, meanwhile, loads a model around `layers`."""
    token = uuid.uuid4().hex
    _layers_by_token[token] = layers
    try:
        yield {"quant_method": _METHOD, "token": token}
    finally:
        del _layers_by_token[token]


def placed(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Put `layers` in the place of the modules of their names. Raises Misplaced."""
    for name, layer in layers.items():
        try:
            model.set_submodule(name, layer, strict=True)
        except (AttributeError, ValueError) as error:
            raise Misplaced(f"the model has no {name}") from error


@register_quantization_config(_METHOD)
class _PackedConfig(QuantizationConfigMixin):  # type: ignore[misc]
    def __init__(self, token: str, quant_method: str = _METHOD) -> None:
        self.quant_method, self.token = quant_method, token
        self.dequantize = True  # the library forgets the quantization after loading: the layers compute by themselves


@register_quantizer(_METHOD)
class _PackedQuantizer(LayersHook):
    """See `HfQuantizer`."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        placed(model, _layers_by_token[self.quantization_config.token])
        model._keys_to_ignore_on_load_unexpected = {".*"}  # what is packed already
