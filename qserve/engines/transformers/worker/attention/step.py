"""What all layers of one step read: made once a step, and once more for every other device.

Where layers lie on several devices or are offloaded, accelerate's hooks copy each argument of each layer: lists are new
in every layer, and tensors too on all devices but the first. So the arguments that describe a step are left out of what
the hooks send (`keep_arguments`), are recognised by identity (`IdentityCache`), and each device gets one copy
(`PerDevice.on`), which no host waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

import torch

__all__ = ["STEP_ARGUMENTS", "IdentityCache", "PerDevice", "keep_arguments"]

STEP_ARGUMENTS = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "read_index",
    "write_index",
    "position_ids",
    "logits_indices",
    "logits_processor_args",
    "page_step",
)
"""Of a packed forward: where sequences begin and end, where their keys are; and what no layer reads
(positions arrive as `position_embeddings`)."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class PerDevice:
    """Base of what layers share; every field is a tensor, a plain value, another of these, or a tuple of them."""

    _copies: dict[torch.device, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def on(self, device: torch.device) -> Self:
        """Itself with its tensors on `device`: copied at the first call for it, without waiting for the copy."""
        if device not in self._copies:
            values = {one.name: _brought(getattr(self, one.name), device) for one in fields(self) if not one.kw_only}
            self._copies[device] = type(self)(**values)
        copied: Self = self._copies[device]
        return copied


def _brought(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_brought(one, device) for one in value)
    if isinstance(value, PerDevice):
        return value.on(device)
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


class IdentityCache:
    """What was made of the last few objects. The library makes new ones for each step and hands them to all layers."""

    def __init__(self, num_kept: int) -> None:
        self._made: deque[tuple[tuple[object, ...], Any]] = deque(maxlen=num_kept)

    def of(self, sources: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """What `make` returned when these very objects were first seen."""
        for known, made in self._made:
            if len(known) == len(sources) and all(a is b for a, b in zip(known, sources, strict=True)):
                return made  # type: ignore[no-any-return]  # made by the same function
        self._made.append((sources, make()))
        return self._made[-1][1]  # type: ignore[no-any-return]


def keep_arguments(model: Any) -> None:
    """From now on accelerate's hooks on the layers of `model` hand `STEP_ARGUMENTS` on as they are."""
    for module in model.get_decoder().layers.modules():
        hook: Any = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):  # one, or accelerate's sequence of several
            if hasattr(one, "skip_keys"):
                kept = [one.skip_keys] if isinstance(one.skip_keys, str) else one.skip_keys or ()
                one.skip_keys = list(dict.fromkeys((*kept, *STEP_ARGUMENTS)))
