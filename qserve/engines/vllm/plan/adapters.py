"""LoRA adapters in a vLLM plan: their buffers on each stage, and what can't be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.layouts import stage_layers
from qserve.engines.vllm.plan.memory.lora import (
    AdaptedModule,
    Adapters,
    adapted_modules,
    adapter_step_bytes,
    module_bytes,
)
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.errors import UsageError
from qserve.planner.setup import Setup
from qserve.units import MIB, format_bytes

__all__ = ["adapter_notes", "adapter_sizes", "refuse_adapters", "stage_adapters", "step_adapters"]

_FIRST, _LAST = ("embed_tokens",), ("lm_head", "score")
_MOST_VOCABULARY = 258048  # vllm lora/layers/logits_processor.py


def stage_adapters(setup: Setup, stage: int) -> int:
    """Bytes of the adapters' buffers on one rank of a pipeline stage; 0 without --enable-lora."""
    return sum(size for _, size in adapter_sizes(setup, stage))


def step_adapters(setup: Setup, num_tokens: int) -> int:
    """What adapters add to the activation peak of a step of `num_tokens`."""
    adapters, card = setup.request.of(VllmOptions).adapters, setup.devices[0]
    if adapters is None:
        return 0
    is_hopper = (card.compute_capability or (9, 0)) >= (9, 0) and not setup.on_cpu
    return adapter_step_bytes(setup.spec, adapters, _version(setup), num_tokens, is_hopper)


def adapter_notes(setup: Setup) -> Iterator[str]:
    """That the room is taken before any adapter is loaded, and what the embeddings have of it."""
    adapters = setup.request.of(VllmOptions).adapters
    if adapters is None:
        return
    sizes = list(adapter_sizes(setup, 0))
    total = sum(size for _, size in sizes)
    yield (
        f"--enable-lora keeps {format_bytes(total)} a rank for {adapters.max_loras} adapters of rank "
        f"{adapters.max_rank}, loaded or not; a lower --max-lora-rank saves most"
    )
    embedded = sum(size for module, size in sizes if module.name in (*_FIRST, *_LAST))
    if 4 * embedded >= total and not adapters.targets:
        yield (
            f"{format_bytes(embedded)} of that are for embed_tokens and lm_head, which few adapters train; "
            "--lora-target-modules with the other names leaves them out"
        )


def refuse_adapters(spec: ModelSpec, adapters: Adapters, version: VllmVersion, tensor_parallel_size: int) -> None:
    """Raises UsageError for adapters that vLLM would refuse at start-up."""
    modules = adapted_modules(spec, replace(adapters, targets=()), version, tensor_parallel_size)
    named = set(adapters.targets)
    if named and not adapted_modules(spec, adapters, version, tensor_parallel_size):
        raise UsageError(
            f"--lora-target-modules {','.join(adapters.targets)}: {spec.id} has no such module; it has "
            f"{', '.join(dict.fromkeys(module.name for module in modules))}"
        )
    if adapters.fully_sharded and adapters.max_rank % tensor_parallel_size:
        raise UsageError(
            f"--fully-sharded-loras: a rank of {adapters.max_rank} does not divide by {tensor_parallel_size} cards; "
            "leave it out"
        )
    if spec.vocab_size > _MOST_VOCABULARY and any(module.name == "lm_head" for module in modules):
        raise UsageError(f"--enable-lora: vLLM adapts an lm_head of {_MOST_VOCABULARY} entries at most")


def adapter_sizes(setup: Setup, stage: int) -> Iterator[tuple[AdaptedModule, int]]:
    """Each module of a stage with the bytes of its buffers on one rank."""
    adapters, ranks, version = setup.request.of(VllmOptions).adapters, setup.tensor_parallel_size, _version(setup)
    if adapters is None:
        return
    most = 20 * MIB if version.limits_block_splits else None
    for module in adapted_modules(setup.spec, adapters, version, ranks):
        part = _on_stage(setup, module, stage)
        if part.count:
            yield part, module_bytes(part, adapters, setup.dtype, ranks, not setup.on_cpu, most)


def _on_stage(setup: Setup, module: AdaptedModule, stage: int) -> AdaptedModule:
    """The module's layers that lie on the stage."""
    layers = stage_layers(setup.spec, setup.pipeline_parallel_size)
    if module.name in _FIRST:
        return module if stage == 0 else replace(module, count=0)
    if module.name in _LAST:
        return module if stage == len(layers) - 1 else replace(module, count=0)
    return replace(module, count=round(module.count * layers[stage] / setup.spec.num_hidden_layers))


def _version(setup: Setup) -> VllmVersion:
    return VllmVersion.parse(setup.engine_version)
