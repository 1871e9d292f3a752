"""Buffers of LoRA adapters on a rank of a stage, which load with the weights and are logged among them."""

from __future__ import annotations

from qserve.engines.vllm.plan.adapters import adapter_sizes, stage_adapters
from qserve.engines.vllm.plan.memory.lora import Adapters
from qserve.engines.vllm.plan.sizing import Sizing
from qserve.planner.term import TermKind
from qserve.units import MIB, format_bytes

__all__ = ["AdapterBuffers"]


class AdapterBuffers(TermKind[Sizing]):
    name, column = "LoRA adapters", "weights"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        return stage_adapters(sizes.setup, stage)

    def formula(self, sizes: Sizing, stage: int) -> str:
        adapters = sizes.options.adapters or Adapters()
        parts = ", ".join(f"{module.name} {format_bytes(size)}" for module, size in adapter_sizes(sizes.setup, stage))
        is_whole = sizes.setup.tensor_parallel_size > 1 and not adapters.fully_sharded
        return (
            f"{adapters.max_loras} adapters × rank {adapters.max_rank} × (inputs + outputs) of every part of: {parts}"
            + ("; what the layer does not split over ranks is whole on each" if is_whole else "")
        )

    def source(self, sizes: Sizing) -> str:
        return "vLLM 0.32, lora/layers/*.py: create_lora_weights"

    def band(self, sizes: Sizing, num_bytes: int) -> tuple[int, int]:
        return int(num_bytes * 0.98), int(num_bytes * 1.02) + MIB
