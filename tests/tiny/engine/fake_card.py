"""A card that is not there: torch's fake tensors, which have shapes, dtypes and devices and no values.

What a real card refuses raises here as well: tensors of different devices in an operation, and in a capture whatever
the host would have to wait for or bring. What makes the host wait for a card is noted (`FakeCard.waits`); where its
value is needed to go on, and the host did not write it itself, `Waited` is raised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qserve.engines.transformers.worker.sampling import adjust
from tests.tiny.engine.fake_cuda import in_place_of_cuda, where

__all__ = ["FakeCard", "Waited", "fake_card"]

# Read what an operation on a card has computed, or have a shape that depends on it.
_READS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive")
# bitsandbytes' own word on its shape compares it with a list, and refuses every call; its kernel for cards does not.
_BROKEN = "bitsandbytes.dequantize_4bit.out"
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear")
_SHAPE_ONLY = ("device", "lift_fresh", "sym_size", "sym_stride", "sym_numel", "is_pinned")


class Waited(Exception):
    """The host would wait for a value that only a card has, or in a capture for anything at all."""


@dataclass
class FakeCard:
    """What was asked of it.

    Attributes:
        capability: of the card.
        waits: what the host waited for, and at which line.
        launched: Triton's kernels, by name.
        captured: of each capture, the storages that it writes to.
        num_replayed: graphs.
        num_guards: that are entered, so that what is launched goes to this card.
    """

    capability: tuple[int, int] = (9, 0)
    waits: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    captured: list[set[int]] = field(default_factory=list)
    num_replayed: int = 0
    num_guards: int = 0
    capturing: set[int] | None = None
    # Storages, by what tells them apart: that a card sees in RAM, and that it is about to write to there.
    pinned: dict[int, Any] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    known: dict[tuple[int, int, tuple[int, ...]], Any] = field(default_factory=dict)  # what the host has sent

    def wait(self, what: str) -> None:
        """Note that the host waits. Raises Waited in a capture."""
        self.waits.append(f"{what} {where()}")
        if self.capturing is not None:
            raise Waited(f"in a capture: {self.waits[-1]}")

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its memory is one that a card sees."""
        storage = tensor.untyped_storage()
        self.pinned[storage._cdata] = storage
        return tensor

    def unpin_all(self) -> None:
        """What torch keeps of pinned memory goes back to the system."""
        self.pinned.clear()

    def know(self, tensor: torch.Tensor, values: Any) -> None:
        """The host has written these. Kept with its storage, since another could get its name."""
        self.known[_place(tensor)] = tensor.untyped_storage(), values

    def read(self, name: str, tensor: torch.Tensor) -> Any:
        """What the host has sent itself, or zeros."""
        if tensor.device.type == "cuda":
            self.wait(name)
        elif tensor.untyped_storage()._cdata in self.in_flight:
            raise Waited(f"read before it has come: {where()}")
        zeros = _zeros(tuple(tensor.shape), 0.0 if tensor.is_floating_point() else 0)
        _, values = self.known.get(_place(tensor), (None, zeros))
        while name == "item" and isinstance(values, list):
            (values,) = values
        return values

    @contextmanager
    def guard(self, tensor: torch.Tensor) -> Iterator[None]:
        """The card of `tensor` is the current one."""
        self.num_guards += tensor.device.type == "cuda"
        try:
            yield
        finally:
            self.num_guards -= tensor.device.type == "cuda"

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Within it nothing may be waited for or brought from RAM."""
        self.capturing = set()
        try:
            yield
            self.captured.append(self.capturing)
        finally:
            self.capturing = None


@contextmanager
def fake_card(capability: tuple[int, int] = (9, 0)) -> Iterator[FakeCard]:
    """Within it, in this thread, `cuda` is a card of this compute capability, and every tensor that is made is fake."""
    card = FakeCard(capability)
    with ExitStack() as stack:
        stack.enter_context(_device_guard())
        stack.enter_context(in_place_of_cuda(card))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(mock.patch.object(FakeTensor, "tolist", lambda tensor: card.read("tolist", tensor)))
        stack.enter_context(_Operations(card))
        stack.enter_context(_Calls(card))
        adjust._added_by_byte.cache_clear()
        stack.callback(adjust._added_by_byte.cache_clear)  # of tensors that nobody else can use
        yield card


@contextmanager
def _device_guard() -> Iterator[None]:
    """`tensor[index]` asks for the guard of a card: torch's CPU build has none, and that of its CUDA build asks for a
    driver, which is not there. That of meta tensors does nothing.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 15).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # c10::DeviceType
    own = guards[cuda]
    guards[cuda] = guards[meta]
    try:
        yield
    finally:
        guards[cuda] = own


class _Operations(TorchDispatchMode):
    """What arrives at a device."""

    def __init__(self, card: FakeCard) -> None:
        super().__init__()
        self._card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if torch.is_inference_mode_enabled() and func.namespace != "prim":
            with self:  # operations arrive whole, and are made of those that are looked at
                if (made := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return made
        if name not in _SHAPE_ONLY:
            self._look_at(func, name, args, kwargs)
        if str(func) == _BROKEN:
            return None
        try:
            result = func(*args, **kwargs)
        except DynamicOutputShapeException as error:
            raise Waited(f"a shape that depends on values: {func} {where()}") from error
        if name == "empty" and kwargs.get("pin_memory"):
            self._card.pin(result)
        self._note_copy(name, args, result)
        return result

    def _look_at(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        card, tensors = self._card, [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        on_card = [one for one in tensors if one.device.type == "cuda"]
        if name in ("_to_copy", "copy_"):
            self._look_at_copy(name, args, kwargs)
            return
        if name in _PRODUCTS and len({one.dtype for one in tensors}) > 1:
            raise RuntimeError(f"{func} of {', '.join(str(one.dtype) for one in tensors)}")  # meta tensors let it pass
        self._refuse_fp8(name, args)
        if on_card and name in _READS:
            card.wait(str(func))
            raise Waited(card.waits[-1])
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):
            for one in args[1]:
                if one is not None and one.dtype in (torch.bool, torch.uint8) and one.device.type == "cuda":
                    card.wait(f"{func} by a mask")
        if on_card and len(on_card) < len(tensors):
            # Numbers in RAM are read there by operations that go by elements; others have them brought.
            if torch.Tag.pointwise not in func.tags and name != "fill_":
                card.wait(f"{func} with a tensor in RAM")
            elif card.capturing is not None:
                card.wait(f"{func} with a number in RAM")
        if card.capturing is not None:
            self._note_written(func, args)

    def _refuse_fp8(self, name: str, args: Any) -> None:
        """As torch does for a card that lacks it (aten/src/ATen/native/cuda/ScaledBlas.cpp)."""
        if name.startswith("_scaled_mm") and self._card.capability < (8, 9):
            raise RuntimeError(
                "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9"
            )
        if name == "_scaled_mm_v2" and self._card.capability[0] != 9:
            raise NotImplementedError("DeepSeek style (1x128, 128x128) scaling only supported in CUDA for SM90")

    def _look_at_copy(self, name: str, args: Any, kwargs: Any) -> None:
        source = args[1] if name == "copy_" else args[0]
        target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
        blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if {target.type, source.device.type} != {"cpu", "cuda"}:
            if self._card.capturing is not None and name == "copy_":
                self._card.capturing.add(args[0].untyped_storage()._cdata)
            return
        host = source if source.device.type == "cpu" else args[0]  # of a `_to_copy` to RAM none is there yet
        is_pinned = host.device.type == "cpu" and host.untyped_storage()._cdata in self._card.pinned
        if blocks or not is_pinned or self._card.capturing is not None:
            kind = "blocking" if blocks else "of pageable memory" if not is_pinned else "asynchronous"
            self._card.wait(f"a copy, {kind}, from {source.device.type} to {target.type}")
        elif target.type == "cpu":
            self._card.in_flight.add(host.untyped_storage()._cdata)

    def _note_written(self, func: Any, args: Any) -> None:
        assert self._card.capturing is not None
        for one, argument in zip(args, func._schema.arguments, strict=False):
            if isinstance(one, torch.Tensor) and argument.alias_info is not None and argument.alias_info.is_write:
                self._card.capturing.add(one.untyped_storage()._cdata)

    def _note_copy(self, name: str, args: Any, result: Any) -> None:
        """A copy of what the host knows, it knows."""
        if name in ("_to_copy", "copy_", "lift_fresh", "detach", "clone"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], result)
            if isinstance(source, FakeTensor) and (known := self._card.known.get(_place(source))) is not None:
                self._card.know(target, known[1])


class _Calls(TorchFunctionMode):
    """What makes tensors of numbers, and numbers of tensors."""

    def __init__(self, card: FakeCard) -> None:
        super().__init__()
        self._card = card

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and isinstance(args[0], (list, tuple)):
            return self._tensor(args[0], **kwargs)
        if func is torch.frombuffer:
            return torch.empty(len(args[0]) // kwargs["dtype"].itemsize, dtype=kwargs["dtype"])
        if func is torch.Tensor.pin_memory:
            return self._card.pin(args[0].clone())
        if func is torch.Tensor.data_ptr:
            return args[0].untyped_storage()._cdata
        if func is torch.Tensor.to:  # the guard of meta tensors would say that "cuda" without a number is theirs
            args = tuple(_with_number(one) for one in args)
            kwargs = {name: _with_number(one) for name, one in kwargs.items()}
        if func is torch.Tensor.item:
            return self._card.read("item", args[0])
        if func is torch.Tensor.__bool__ and args[0].device.type == "cuda":
            self._card.wait("bool")
            return True
        return func(*args, **kwargs)

    def _tensor(self, values: Any, *, pin_memory: bool = False, device: Any = None, **kwargs: Any) -> Any:
        made = torch.tensor(values, **kwargs)
        self._card.know(made, values)
        if pin_memory:
            self._card.pin(made)
        return made if device is None else made.to(_with_number(device))


def _with_number(value: Any) -> Any:
    is_bare = isinstance(value, (str, torch.device)) and str(value) == "cuda"
    return torch.device("cuda", 0) if is_bare else value


def _place(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape)


def _zeros(shape: tuple[int, ...], zero: float) -> Any:
    return [_zeros(shape[1:], zero) for _ in range(shape[0])] if shape else zero
