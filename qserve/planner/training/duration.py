"""How long a training run takes: operations over what the cards reach, and what crosses a bus. An estimate with a band.

The share of its peak that a card reaches and the time of a layer's launches are those of QwenLM's table of LoRA, Q-LoRA
and full training of Qwen 1.8B, 7B and 14B on an A100 (README.md of QwenLM/Qwen at 03cd81f, "Profiling of Memory and
Speed"), which tests/unit/planner/training/test_duration.py holds the estimates to.

A CPU's is rougher: a share of what its products reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qserve.core.hardware import Device
from qserve.planner.speed.terms.card import CardSpeed, card_of
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.operations import Operations
from qserve.planner.training.training_defaults import num_trainers
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["ASSUMED_CPU_FLOP_PER_S", "ASSUMED_ROWS", "Duration", "training_duration"]

ASSUMED_CPU_FLOP_PER_S = 200e9
"""Of all cores together, where nobody says what they are."""
ASSUMED_ROWS = 10_000
"""Where nobody says how many there are."""

_OF_PEAK = 0.45
"""Of a card's dense 16-bit peak, in long sequences; in fp32 (tf32) half the peak is there."""
_LAYER_S, _TRAINED_LAYER_S = 0.0045, 0.0105
"""Of a frozen layer's launches with adapters (of one that is trained), forward, again and backward: what short
sequences take however few tokens they have."""
_DEQUANTIZED_S = 0.025e-9
"""More for each 4-bit or 8-bit weight and micro-batch, which are dequantized in each pass."""
_CPU_ADAM_BYTES_PER_S = 40e9
"""What DeepSpeed's Adam reads and writes in RAM: 30 bytes a weight."""
_BUS_BYTES_PER_S = 20e9
"""PCIe 4.0 x16, as copies reach it."""
_OF_CPU = 0.3
"""Of what a CPU's products reach in 16 bit, where it has such: a run there is in fp32."""
_LOW, _HIGH = 0.6, 1.8
_LOW_ON_CPU, _HIGH_ON_CPU = 0.3, 3.0


@dataclass(frozen=True)
class Duration:
    """Of so many rows; `low_s` and `high_s` are the band."""

    num_rows: int
    expected_s: float
    low_s: float
    high_s: float


def training_duration(
    model: TrainedModel,
    operations: Operations | None,
    request: TrainingRequest,
    device: Device,
    num_devices: int,
    num_rows: int,
    cpu_flop_per_s: float = ASSUMED_CPU_FLOP_PER_S,
) -> Duration | None:
    """Of `num_rows` rows of `mean_length` (else of `max_length`) tokens, once; None where rollouts are generated."""
    if operations is None:
        return None
    ranks = num_trainers(request, num_devices)
    rows_a_step = request.micro_batch * request.gradient_accumulation_steps * ranks
    steps = math.ceil(num_rows / rows_a_step)
    micro_s = _micro_batch_s(model, operations, request, device, ranks, cpu_flop_per_s)
    seconds = steps * (request.gradient_accumulation_steps * micro_s + _step_s(model, request, ranks))
    low, high = (_LOW_ON_CPU, _HIGH_ON_CPU) if device.kind == "cpu" else (_LOW, _HIGH)
    return Duration(num_rows, seconds, low * seconds, high * seconds)


def _micro_batch_s(
    model: TrainedModel,
    operations: Operations,
    request: TrainingRequest,
    device: Device,
    ranks: int,
    cpu_flop_per_s: float,
) -> float:
    length = min(request.mean_length or request.max_length, request.max_length)
    done = operations.of(request.sequences * length, length)
    if request.gradient_checkpointing and request.tuning != "head":  # the forward pass once more
        done *= 4 / 3 if request.tuning == "full" else 3 / 2
    if device.kind == "cpu":
        return ranks * done / (_OF_CPU * cpu_flop_per_s)
    card = card_of(device)
    peak = card.peak("bf16") * (0.5 if request.precision == "fp32" else 1.0)
    layer_s = _TRAINED_LAYER_S if request.tuning == "full" else _LAYER_S
    seconds = max(done / (_OF_PEAK * peak), layer_s * model.spec.num_hidden_layers)
    if model.quantization is not None:
        seconds += _DEQUANTIZED_S * model.parameters
    return seconds + _gathered_s(model, request, card, ranks) + _offloaded_s(model, request)


def _gathered_s(model: TrainedModel, request: TrainingRequest, card: CardSpeed, ranks: int) -> float:
    """What ranks send each other in a micro-batch: half of an all-reduce for each gathering and each scattering."""
    if ranks == 1:
        return 0.0
    rate = 1e9 * card.link(ranks)[1]
    gathered = 3 * model.parameters if request.sharding_stage == 3 else 0
    scattered = model.trainable if request.sharding_stage >= 2 else 0
    reduced = model.trainable / request.gradient_accumulation_steps if request.sharding_stage < 2 else 0
    return 2 * (0.5 * (gathered + scattered) + reduced) / rate


def _offloaded_s(model: TrainedModel, request: TrainingRequest) -> float:
    """Weights that lie in RAM cross the bus in each of three passes."""
    return 3 * 2 * model.parameters / _BUS_BYTES_PER_S if request.offload_param != "none" else 0.0


def _step_s(model: TrainedModel, request: TrainingRequest, ranks: int) -> float:
    """Of an optimizer in RAM: gradients and weights cross the bus, and the CPU steps. A card's own is not counted."""
    if request.offload_optimizer == "none":
        return 0.0
    return model.trainable * (30 / _CPU_ADAM_BYTES_PER_S + 4 / (ranks * _BUS_BYTES_PER_S))
