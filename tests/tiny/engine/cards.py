"""Two cards that are not there: "cpu:0" and "cpu:1", whose tensors may not meet in an operation, as on real ones.

A tensor in RAM says "cpu" wherever it was sent, so what lies on which card is noted by its memory. What nobody sent
anywhere counts as at hand, for a card as well: a mistake that only such a tensor would make is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

__all__ = ["Cards"]

# Operations that move, or read into RAM.
_MOVES = ("aten._to_copy", "aten.copy_", "aten._local_scalar_dense", "aten.clone", "aten.equal")


class Cards(TorchDispatchMode):
    """Inside of `step`, an operation over tensors of both cards raises as it does on two of them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._lying: dict[int, int] = {}
        self._made: list[torch.Tensor] = []
        self.seen: set[int] = set()
        self.num_moved_indices = 0
        for module in model.modules():
            device = torch.device(getattr(getattr(module, "_hf_hook", None), "execution_device", None) or "cpu")
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                self.put(tensor, device)

    def put(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Note where a tensor lies for good."""
        if device.index is not None and tensor.device.type != "meta":
            self._lying[tensor.untyped_storage().data_ptr()] = device.index

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Which card `tensor` lies on; the first, where nobody has sent it anywhere."""
        return torch.device("cpu", self._card(tensor) or 0)

    @contextmanager
    def step(self) -> Iterator[None]:
        """What is made inside is forgotten at the end."""
        for_good = dict(self._lying)
        with self:
            yield
        self._lying = for_good
        self._made.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = {self._card(value) for value in tree_flatten((args, kwargs))[0]} - {None}
        if len(places) > 1 and not str(func).startswith(_MOVES):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found two: {func}")
        result = func(*args, **kwargs)
        device = kwargs.get("device")
        card = device.index if device is not None and device.index is not None else next(iter(places), None)
        self.seen |= places
        if str(func).startswith("aten._to_copy") and card not in places and args[0].dtype == torch.int64:
            self.num_moved_indices += 1
        for made in tree_flatten(result)[0]:
            if isinstance(made, torch.Tensor) and card is not None:
                self._made.append(made)  # or its memory would be another's next
                self._lying.setdefault(made.untyped_storage().data_ptr(), card)
        return result

    def _card(self, value: object) -> int | None:
        if not isinstance(value, torch.Tensor) or value.device.type == "meta" or not value.dim():
            return None
        return self._lying.get(value.untyped_storage().data_ptr())
