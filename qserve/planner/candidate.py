"""One candidate: engine, quantization and layout of a model, before it is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.tensors import Tensor
from qserve.planner.plan import QuantChoice
from qserve.planner.request import PlanRequest

__all__ = ["Candidate"]


@dataclass(frozen=True)
class Candidate:
    """Engine, quantization and layout of one candidate.

    `spec` and `tensors` are those of the checkpoint that is loaded (a sibling's, where one is taken);
    `in_flight` is the quantization applied while loading. `devices` are the ranks' cards, or the CPU alone.
    `parallelism` and `step_options` say in words what a measurement depends on beside the model and a step's sizes.
    """

    checkpoint: Checkpoint
    hardware: Hardware
    request: PlanRequest
    engine: str
    engine_version: str
    quant: QuantChoice
    spec: ModelSpec
    tensors: tuple[Tensor, ...]
    in_flight: CheckpointQuantization | None
    dtype: str
    devices: tuple[Device, ...]
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    parallelism: str = ""
    step_options: tuple[str, ...] = ()
    cpu_activations: Literal["exact", "int8"] = "exact"

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def on_cpu(self) -> bool:
        return self.devices[0].kind == "cpu"
