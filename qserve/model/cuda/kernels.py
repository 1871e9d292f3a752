"""Every Triton kernel of this project, with the launches that serving makes of it.

A kernel is made by `card_kernel`, which lists it: so all can be compiled for cards that are not there (`ahead.py`), at
the sizes that known models have, and a new one can't be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from qserve.core.model_spec import ModelSpec

__all__ = ["KERNELS", "CardKernel", "Launch", "Sizes", "card_kernel", "launches_of", "recording"]


@dataclass(frozen=True)
class Sizes:
    """What decides how a kernel is compiled: a model's dimensions, the dtype it computes in, and the card's size."""

    spec: ModelSpec
    dtype: torch.dtype
    multi_processors: int


Calls = Callable[[Sizes], Iterable[Callable[[], object]]]
"""Calls of the functions that launch a kernel, as a service of these sizes makes them, with tensors on `meta`."""


@dataclass(frozen=True)
class Launch:
    """One launch of `kernel`: its arguments by name, compile-time ones among them, and options such as `num_warps`."""

    kernel: CardKernel
    arguments: dict[str, Any]
    options: dict[str, int]


@dataclass(frozen=True, eq=False)
class CardKernel:
    """A function in Triton's language. `kernel[grid](…)` launches it, as Triton's own does."""

    name: str
    function: Any = field(repr=False)
    calls: Calls = field(repr=False)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        recorded = _recorded.get()
        if recorded is None:
            launch: Callable[..., object] = self.function[grid]
            return launch
        return lambda *arguments, **named: recorded.append(self._launch(arguments, named))

    def _launch(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Launch:
        given = {**dict(zip(self.function.arg_names, arguments, strict=False)), **named}
        options = {name: given.pop(name) for name in list(given) if name not in self.function.arg_names}
        return Launch(self, given, options)


KERNELS: dict[str, CardKernel] = {}
"""By name; those of a module once it is imported."""

_recorded: ContextVar[list[Launch] | None] = ContextVar("recorded launches", default=None)


def card_kernel(calls: Calls, any_number: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], CardKernel]:
    """Compile a function by Triton, and list it with the `calls` that a service makes of it.

    `any_number`: arguments that change from step to step, and pointers into the middle of a tensor. Without this Triton
    compiles anew, in the middle of serving, when such a number is first one, or such an address first divided by 16.
    """

    def register(function: Callable[..., None]) -> CardKernel:
        name = function.__name__.strip("_")
        kernel = CardKernel(name, triton.jit(function, do_not_specialize=any_number), calls)
        KERNELS[name] = kernel
        return kernel

    return register


def launches_of(kernel: CardKernel, sizes: Sizes) -> Iterator[Launch]:
    """The launches that a service of `sizes` makes of `kernel`. Nothing runs."""
    with recording() as recorded:
        for call in kernel.calls(sizes):
            call()
    yield from (launch for launch in recorded if launch.kernel is kernel)


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Launches are listed in its place, and none runs."""
    recorded: list[Launch] = []
    token = _recorded.set(recorded)
    try:
        yield recorded
    finally:
        _recorded.reset(token)
