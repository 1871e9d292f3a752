"""ZeRO and FSDP over processes on a CPU, and shards as the tensors that a rank holds of them."""

from __future__ import annotations

from typing import Any

import torch

from qserve.training.job import TrainingRun

__all__ = ["elements", "held_part", "prepare_sharding", "shard_on_cpu"]


def prepare_sharding(run: TrainingRun) -> None:
    """To be called before the configuration is parsed, which joins the group of processes.

    DeepSpeed compiles collectives over shared memory where it first joins a group on a CPU, a minute or two, and uses
    them for inference alone.
    """
    if run.shards_on_cpu and run.request.zero_stage:
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__ = {}
    elif not run.request.zero_stage:
        _leave_deepspeed_out()


def _leave_deepspeed_out() -> None:
    """Where it is installed accelerate imports it when a model is unwrapped, for runs that have nothing of it too."""
    from accelerate.utils import other

    other.is_deepspeed_available = lambda: False


def shard_on_cpu(run: TrainingRun) -> None:
    """To be called once the configuration is parsed and before a trainer is made.

    accelerate 1.15 turns each of its distributed types into FSDP but MULTI_CPU (AcceleratorState), though nothing of
    FSDP2 asks for a card. The type is read for that alone, and is FSDP from then on.
    """
    if run.shards_on_cpu and run.request.fsdp:
        from accelerate.state import DistributedType, PartialState

        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU


def held_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds: the local shard of FSDP2's DTensor and of ZeRO-3's parameter, any other tensor itself."""
    if hasattr(tensor, "to_local"):
        local: torch.Tensor = tensor.to_local()
        return local
    shard: Any = getattr(tensor, "ds_tensor", None)
    return tensor if shard is None or tensor.numel() else shard


def elements(parameter: torch.Tensor) -> int:
    """Of the whole parameter; ZeRO-3 leaves an empty tensor in place of a shard."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
