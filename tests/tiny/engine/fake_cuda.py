"""What stands for torch.cuda and for Triton's launches where there is no card: what they are asked for is noted."""

from __future__ import annotations

import importlib.util
import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from qserve.engines.transformers.worker.decoding import forward

__all__ = ["in_place_of_cuda", "where"]

_ROOT = f"{Path(__file__).parents[3]}/"  # a clone may lie in a folder of any name
_NOTED = re.compile(rf"({re.escape(_ROOT)}qserve/(?!.*lazy_pools)|/(?:transformers|accelerate|bitsandbytes)/)[^:]*$")
_GIB = 1024**3
_GRAPH = inspect.signature(torch.cuda.graph)
_GENERATOR = torch.Generator


def where() -> str:
    """The innermost line that is being run of ours or of a library's, torch's own left out."""
    for frame in reversed(traceback.extract_stack()):
        if found := _NOTED.search(frame.filename):
            return f"{found[0].removeprefix(_ROOT).lstrip('/')}:{frame.lineno} {frame.line}"
    return "a test"


@contextmanager
def in_place_of_cuda(card: Any) -> Iterator[None]:
    """Within it, the part of torch.cuda that we and the library use speaks of `card`."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self._before: set[int] = set()

        def record(self, stream: Any = None) -> None:
            self._before = set(card.in_flight)

        def synchronize(self) -> None:
            card.wait("an event")
            card.in_flight -= self._before

    class Stream:
        def __init__(self, device: Any = None) -> None:
            pass

        def wait_event(self, event: Event) -> None:
            pass

        def synchronize(self) -> None:
            card.wait("a stream")

    class Graph:
        def replay(self) -> None:
            card.num_replayed += 1

    def graph(*args: Any, **kwargs: Any) -> Any:
        _GRAPH.bind(*args, **kwargs)
        return card.capture()

    current = Stream()
    # Where it is available fake tensors compute constants on the card; whether it is may be asked of `device_count`.
    stands_for = {
        "is_available": lambda: False,
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": Graph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
        "current_stream": lambda device=None: current,
        "stream": lambda stream: nullcontext(),
        "device_of": card.guard,
        "set_device": lambda device: None,
        "init": lambda: None,
        "device_count": lambda: 1,
        "synchronize": lambda device=None: card.wait("the card"),
        "empty_cache": lambda: None,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_properties": lambda device=None: SimpleNamespace(multi_processor_count=132),
        "mem_get_info": lambda device=None: (70 * _GIB, 80 * _GIB),
        "memory_reserved": lambda device=None: _GIB,
        "memory_allocated": lambda device=None: _GIB,
        "memory_stats": lambda device=None: {},
    }
    with ExitStack() as stack:
        for name, one in stands_for.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, one))
        stack.enter_context(mock.patch.object(torch.accelerator, "empty_host_cache", card.unpin_all))
        stack.enter_context(mock.patch.object(torch, "get_device_module", lambda device=None: torch.cuda))
        stack.enter_context(mock.patch.object(torch, "Generator", lambda device=None: _GENERATOR()))
        stack.enter_context(mock.patch.object(forward, "_pools", []))
        if importlib.util.find_spec("triton") is not None:
            from triton.backends.nvidia.compiler import CUDAOptions
            from triton.runtime.jit import JITFunction

            launch = _launching(card, frozenset(CUDAOptions.__dataclass_fields__))
            stack.enter_context(mock.patch.object(JITFunction, "run", launch))
        yield


def _launching(card: Any, options: frozenset[str]) -> Any:
    """What takes the place of a launch of one of Triton's kernels; `options` are those that its compiler knows."""

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """Its arguments are those that it names; tensors lie on the card, as does the launch.

        They lie end to end, but those whose rows' distance the kernel is told.
        """
        constants = {name: one for name, one in kwargs.items() if name not in options}
        kernel.signature.bind(*args, **constants)
        assert all(part > 0 for part in grid)
        assert card.num_guards, f"{kernel.fn.__name__} is launched on whatever card is the current one"
        for name, one in zip(kernel.arg_names, args, strict=False):
            if isinstance(one, torch.Tensor):
                row = one[0] if f"{name}_stride" in kernel.arg_names else one
                assert one.device.type == "cuda" and row.is_contiguous(), f"{kernel.fn.__name__}: {one}"
        card.launched.append(kernel.fn.__name__)

    return launch
