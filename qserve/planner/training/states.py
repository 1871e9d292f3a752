"""What a model holds for the whole run on one rank: weights, gradients, optimizer states, and how ZeRO divides them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qserve.core.tensors import Tensor
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.training_constants import (
    EIGHT_BIT_LEAST_ELEMENTS,
    EIGHT_BIT_STATE_BYTES,
    OPTIMIZERS,
    PRECISIONS,
    ZERO_BUCKET_ELEMENTS,
    ZERO_LIVE_ELEMENTS,
    ZERO_SUB_GROUP_ELEMENTS,
    Precision,
)
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["States", "master_bytes", "precision_of", "states_of"]


@dataclass(frozen=True)
class States:
    """Bytes of one model on one rank, and what it keeps on the host (all ranks together).

    `gathered_bytes`: layers that ZeRO-3 holds whole while it computes them, `gathered_high_bytes` with DeepSpeed's
    stage3_max_live_parameters. `buckets_bytes`: gradients on their way through NCCL. `step_bytes`: temporaries of
    the optimizer step, when no activations live.
    """

    weights_bytes: int
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    buckets_bytes: int = 0
    gathered_bytes: int = 0
    gathered_high_bytes: int = 0
    step_bytes: int = 0
    host_bytes: int = 0


def states_of(model: TrainedModel, request: TrainingRequest, num_ranks: int) -> States:
    """The states of `model` over `num_ranks` data-parallel ranks."""
    precision = PRECISIONS[request.precision]
    shards = num_ranks if request.sharding_stage == 3 else 1
    weights = _weights(model, request)
    gathered, gathered_high = _gathered(model, precision, request, weights)
    host = 0
    if request.offload_param != "none":
        host, weights = weights, 0
    if not model.trained_tensors:
        return States(_share(weights, shards), 0, 0, 0, gathered, gathered_high, 0, host)
    gradients = sum(
        tensor.num_elements * precision_of(tensor, model, request).gradient_bytes for tensor in model.trained_tensors
    )
    optimizer = sum(_optimizer_bytes(tensor, model, request) for tensor in model.trained_tensors)
    optimizer_share = _share(optimizer, num_ranks if request.sharding_stage >= 1 else 1)
    gradients_share = _share(gradients, num_ranks if request.sharding_stage >= 2 else 1)
    step = _step_bytes(model, request, num_ranks)
    if request.offload_optimizer != "none":
        # DeepSpeed copies each reduced bucket to the host, where CPUAdam also keeps fp32 gradients.
        host += optimizer + 4 * model.trainable
        optimizer_share = gradients_share = step = 0
    buckets = _buckets(model, precision, request, num_ranks)
    return States(
        _share(weights, shards), gradients_share, optimizer_share, buckets, gathered, gathered_high, step, host
    )


def _weights(model: TrainedModel, request: TrainingRequest) -> int:
    precision = PRECISIONS[request.precision]
    if model.tuning == "full":
        cast_bytes = 0 if request.fsdp else precision.cast_bytes  # FSDP casts a layer when it gathers it
        return model.parameters * (precision.weight_bytes + cast_bytes)
    added = [tensor for tensor in model.trained_tensors if model.tuning != "head"]
    return model.base_bytes(request.frozen_bytes) + sum(
        tensor.num_elements * precision_of(tensor, model, request).weight_bytes for tensor in added
    )


def precision_of(tensor: Tensor, model: TrainedModel, request: TrainingRequest) -> Precision:
    """Of a tensor that is trained.

    Adapters stay in fp32 where the base is 16 bit (PEFT's autocast_adapter_dtype), but 16 bit under DeepSpeed; over a
    base of bitsandbytes they are bf16, and what we train of a head is fp32 (process/trainers.py).
    """
    precision = PRECISIONS[request.precision]
    if request.precision == "mixed":
        return precision
    if model.has_16_bit_adapters and request.kbit_fp32 == "none" and tensor.role != "head":
        return PRECISIONS["pure"]
    return PRECISIONS["fp32"] if ".lora_" in tensor.name and request.precision == "pure" else precision


def _optimizer_bytes(tensor: Tensor, model: TrainedModel, request: TrainingRequest) -> int:
    precision, optimizer = precision_of(tensor, model, request), OPTIMIZERS[request.optimizer]
    master = master_bytes(precision, request) * tensor.num_elements
    if optimizer.factored and len(tensor.shape) == 2:
        return master + precision.state_bytes * sum(tensor.shape) * tensor.repeat
    # transformers tells bitsandbytes to keep the states of embeddings in 32 bit; those of small tensors it does itself.
    is_large = tensor.num_elements // tensor.repeat >= EIGHT_BIT_LEAST_ELEMENTS
    if optimizer.eight_bit and tensor.role != "embedding" and is_large:
        return master + math.ceil(optimizer.states * EIGHT_BIT_STATE_BYTES * tensor.num_elements)
    return master + optimizer.states * max(precision.state_bytes, 4 * optimizer.eight_bit) * tensor.num_elements


def master_bytes(precision: Precision, request: TrainingRequest) -> int:
    """ZeRO 1 and 2 keep a copy of a rank's share of the weights even where these are fp32 themselves."""
    return 4 if request.precision == "fp32" and request.zero_stage in (1, 2) else precision.master_bytes


def _step_bytes(model: TrainedModel, request: TrainingRequest, num_ranks: int) -> int:
    """fp32 gradients beside 16-bit ones, by way of a flat 16-bit copy, and the temporaries of a foreach optimizer.

    DeepSpeed steps the optimizer that the trainer hands to it, torch's own with transformers and accelerate. Stage 3
    takes a sub-group at a time and keeps the 16-bit gradients; 1 and 2 let them go before the optimizer's turn.
    """
    precision, optimizer = PRECISIONS[request.precision], OPTIMIZERS[request.optimizer]
    held = _share(model.trainable, num_ranks if request.sharding_stage >= 1 else 1)
    converted = min(held, ZERO_SUB_GROUP_ELEMENTS) if request.zero_stage == 3 else held
    copies = optimizer.step_copies
    if request.zero_stage:
        temporaries = precision.state_bytes * copies * converted
        if not precision.master_bytes:
            return temporaries
        freed = precision.gradient_bytes * converted if request.zero_stage < 3 else 0
        return max((4 + precision.gradient_bytes) * converted, 4 * converted + temporaries - freed)
    fp32_gradients = 4 * converted if precision.master_bytes else 0
    states = sum(
        tensor.num_elements * precision_of(tensor, model, request).state_bytes for tensor in model.trained_tensors
    )
    return fp32_gradients + copies * _share(states, num_ranks if request.fsdp else 1)


def _buckets(model: TrainedModel, precision: Precision, request: TrainingRequest, num_ranks: int) -> int:
    """DDP copies all gradients into its buckets; ZeRO has a flat one of fixed size, FSDP one of its largest group."""
    if request.fsdp:
        width = precision.gradient_bytes
        largest = max(model.layer_bytes(width), width * model.spec.vocab_size * model.spec.hidden_size)
        return min(largest, width * model.trainable)
    if request.zero_stage > 0:
        return ZERO_BUCKET_ELEMENTS * precision.gradient_bytes
    return model.trainable * precision.gradient_bytes if num_ranks > 1 else 0


def _gathered(
    model: TrainedModel, precision: Precision, request: TrainingRequest, weights_bytes: int
) -> tuple[int, int]:
    """Two layers (one at work, one prefetched) and the larger of embedding and lm_head; (expected, high)."""
    if request.sharding_stage != 3:
        return 0, 0
    width = precision.weight_bytes if model.tuning == "full" else request.frozen_bytes
    width = min(width, precision.cast_bytes or width) if request.fsdp else width
    edges = width * model.spec.vocab_size * model.spec.hidden_size
    needed = min(weights_bytes, 2 * model.layer_bytes(width) + edges)
    return needed, needed if request.fsdp else max(needed, min(weights_bytes, width * ZERO_LIVE_ELEMENTS))


def _share(num_bytes: int, shards: int) -> int:
    return -(-num_bytes // shards)
