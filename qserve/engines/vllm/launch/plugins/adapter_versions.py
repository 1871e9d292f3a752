"""Has vLLM's server take each load of a LoRA adapter as another one, under the same name.

vLLM 0.32 loads an adapter again in the place of the old one (`load_inplace`): it keeps its number, so that requests
that run go on with other weights than they began with; it reads the files again in every later step; and cached keys
of prompts, which are found by the adapter's name and path, stay those of the old weights. And two adapters of one name
count as one where the adapters of a step are collected, so that a number alone does not part them.

On a CPU, moreover, rows of the base model in a step with adapters are computed with the last adapter's weights: their
index is -1, which is the last place of an array (vllm#48421). And log-probabilities of a prompt end the engine: its
rows are multiplied by the adapters of the step's sequences, though hardly any adapter has weights for the head.

Here each load has a number and a path of its own: a folder of links to the files, which is removed when no request
uses it any more. The name moves to it once it is in the engine, from one request to the next.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import weakref
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from qserve.engines.vllm.launch.plugins.on_import import when_imported

__all__ = ["VARIABLE", "part_versions"]

VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""In the environment of a server that may load adapters: vLLM's own."""

_REQUEST, _SERVING = "vllm.lora.request", "vllm.entrypoints.openai.models.serving"
_PRODUCTS, _WRAPPER = "vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu"
# A step that runs may still want it when its last client has left.
_KEPT_S = 60.0


def part_versions() -> None:
    """Before vLLM is imported, in each of its processes."""
    when_imported(_REQUEST, _compare_numbers)
    when_imported(_SERVING, _number_loads)
    when_imported(_PRODUCTS, _leave_base_rows)
    when_imported(_WRAPPER, _leave_unadapted_heads)


def _compare_numbers(module: ModuleType) -> None:
    def is_same(self: Any, other: Any) -> bool:
        return isinstance(other, module.LoRARequest) and self.lora_int_id == other.lora_int_id

    module.LoRARequest.__eq__ = is_same
    module.LoRARequest.__hash__ = lambda self: hash(self.lora_int_id)


def _leave_base_rows(module: ModuleType) -> None:
    shrink = module.bgmv_shrink

    def bgmv_shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
        """The first of two products: what is zero here adds zero to the row, whatever the second multiplies it by."""
        shrink(inputs, weights, output, indices, scaling)
        output.masked_fill_((indices < 0)[:, None], 0.0)

    module.bgmv_shrink = bgmv_shrink  # type: ignore[attr-defined]


def _leave_unadapted_heads(module: ModuleType) -> None:
    add = module.PunicaWrapperCPU.add_lora_logits

    def add_lora_logits(self: Any, y: Any, x: Any, a: Any, b: Any, scale: float, **kwargs: Any) -> Any:
        """Nothing is added where no loaded adapter has weights for the head."""
        return add(self, y, x, a, b, scale, **kwargs) if b.any() else None

    module.PunicaWrapperCPU.add_lora_logits = add_lora_logits


def _number_loads(module: ModuleType) -> None:
    from vllm.lora.request import LoRARequest

    class Version(LoRARequest, weakref=True):  # type: ignore[misc,call-arg]  # vLLM is untyped here
        """One load. Who answers a request holds it."""

    models, numbers = module.OpenAIServingModels, itertools.count(1)
    load_new, unload = models.load_lora_adapter, models.unload_lora_adapter

    async def load_lora_adapter(self: Any, request: Any, base_model_name: str | None = None) -> Any:
        if not request.load_inplace:
            return await load_new(self, request, base_model_name)
        name, number = request.lora_name, next(numbers)
        if self.is_base_model(name):
            return await load_new(self, request, base_model_name)  # which refuses it
        apart = f"{name}\t{number}"  # names are printable
        links = await asyncio.to_thread(_linked, Path(request.lora_path), number)
        fresh = request.model_copy(update={"lora_name": apart, "lora_path": str(links), "load_inplace": False})
        answer = await load_new(self, fresh, base_model_name)
        loaded = self.lora_requests.pop(apart, None)
        self.lora_resolver_lock.pop(apart, None)
        if loaded is None:
            shutil.rmtree(links, ignore_errors=True)
            return answer
        version = Version(name, loaded.lora_int_id, loaded.lora_path, loaded.base_model_name)
        _remove_after(version, links)
        self.lora_requests[name] = version
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload_lora_adapter(self: Any, request: Any) -> Any:
        answer = await unload(self, request)
        self.lora_resolver_lock.pop(request.lora_name, None)
        return answer

    models.load_lora_adapter, models.unload_lora_adapter = load_lora_adapter, unload_lora_adapter


def _linked(folder: Path, number: int) -> Path:
    """A folder of links beside `folder`, whose files nobody writes to. Those of servers that have ended go."""
    for left in folder.parent.glob("served-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)
    links = folder.parent / f"served-{os.getpid()}-{number}"
    links.mkdir(mode=0o700)
    for file in folder.iterdir():
        os.link(file, links / file.name)
    return links


def _remove_after(version: Any, folder: Path) -> None:
    """When no request has it, and a while has passed."""
    loop, remove_folder = asyncio.get_running_loop(), partial(shutil.rmtree, folder, ignore_errors=True)

    def remove() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: loop.call_later(_KEPT_S, remove_folder))

    weakref.finalize(version, remove).atexit = False
