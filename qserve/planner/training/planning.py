"""From a request to a `TrainingPlan`: place, add up, judge, and look for suggestions."""

from __future__ import annotations

from collections.abc import Sequence

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError
from qserve.planner.training.card_memory import Run, engine_card, engine_need_bytes, host_bytes, trainer_card
from qserve.planner.training.duration import ASSUMED_CPU_FLOP_PER_S, ASSUMED_ROWS, training_duration
from qserve.planner.training.models import cast_of
from qserve.planner.training.operations import training_operations
from qserve.planner.training.rollouts import with_engine_share
from qserve.planner.training.training_plan import CardMemory, TrainingPlan
from qserve.planner.training.training_request import TrainingRequest
from qserve.planner.training.traps import PER_TOKEN, notes_on, traps_of
from qserve.units import format_bytes

__all__ = ["plan_training", "refuse_packed_by_name"]


def plan_training(
    spec: ModelSpec,
    devices: Sequence[Device],
    request: TrainingRequest,
    reward: ModelSpec | None = None,
    ram_bytes: int | None = None,
    num_rows: int = ASSUMED_ROWS,
    cpu_flop_per_s: float | None = None,
) -> TrainingPlan:
    """The plan of `request` on `devices`, without suggestions (see suggest.training_suggestions).

    `reward` is the reward model of ppo or grpo (None: ppo's is of the policy's size, grpo has none). `ram_bytes`
    bounds what may be offloaded to RAM (None: unknown, not checked). `num_rows`: how many rows it is to take once.
    `cpu_flop_per_s`: of a CPU, what all of its cores multiply at.
    Raises UsageError where the cards do not suffice for the layout that is asked for.
    """
    _refuse_plan_only(devices)
    for one in filter(None, (spec, reward)):
        _refuse_rare_parts(one)
    _refuse_packed_weights(spec, request)
    trainers, engines = _divide(devices, request)
    cast = cast_of(spec, request, reward)
    request, share_told = with_engine_share(request, cast, trainers)
    run = Run(request, cast, len(trainers))
    by_kind = {device: trainer_card(run, device) for device in set(trainers)}
    cards = [by_kind[device] for device in trainers]
    if request.vllm is not None:
        cards += [engine_card(run, request.vllm, spec, device) for device in engines]
    host = 0 if trainers[0].kind == "cpu" else host_bytes(run)  # a CPU's processes are in the RAM themselves
    why_not = (
        _engine_trouble(spec, request, engines or trainers)
        or _trainer_trouble(cards)
        or _ram_trouble(request, host, ram_bytes)
    )
    worst = min(cards[: len(trainers)], key=lambda card: card.free_bytes)
    policy, operations = run.models[0], training_operations(run.models, request)
    return TrainingPlan(
        model_id=spec.id,
        parameters=policy.parameters,
        trainable=policy.trainable,
        request=request,
        cards=tuple(cards),
        host_bytes=host,
        fits=why_not is None,
        why_not=why_not,
        dominant=max((term for term in worst.terms if term.name != "others"), key=lambda term: term.num_bytes).name,
        notes=(*((share_told,) if share_told else ()), *notes_on(run, tuple(cards), devices)),
        traps=traps_of(run, worst),
        operations=operations,
        duration=training_duration(
            policy, operations, request, trainers[0], len(devices), num_rows, cpu_flop_per_s or ASSUMED_CPU_FLOP_PER_S
        ),
    )


def _refuse_plan_only(devices: Sequence[Device]) -> None:
    """No trainer that is planned runs on these cards, and their constants are CUDA's."""
    device = next((one for one in devices if one.is_plan_only), None)
    if device is not None:
        raise UsageError(
            f"training is not planned on {device.name}: what a trainer holds there is not known, and `qserve train` "
            "does not run there; name an NVIDIA or AMD card, or --gpu none for the CPU"
        )


def _refuse_rare_parts(spec: ModelSpec) -> None:
    """No memory of their gradients and activations was measured or read from a trainer."""
    if spec.rare_parts:
        raise UsageError(
            f"{spec.id} has {', '.join(spec.rare_parts)}, whose training is not planned; fine-tune a model without, "
            "for example Qwen/Qwen3.6-35B-A3B"
        )


def _refuse_packed_weights(spec: ModelSpec, request: TrainingRequest) -> None:
    """Source: transformers 5.19 Trainer, validate_quantization_for_training."""
    if spec.quantization is not None and request.tuning == "full":
        raise UsageError(
            f"{spec.id} is stored as {spec.quantization.scheme}, and packed weights can't be trained; name the 16-bit "
            "model, or train adapters: --lora-rank 16"
        )
    if request.kbit_fp32 != "none" and not cast_of(spec, request)[0].has_16_bit_adapters:
        stored = spec.quantization.scheme if spec.quantization is not None else "16 bit"
        raise UsageError(
            f"--kbit-fp32 is for a base of bitsandbytes, and {spec.id} is {stored}; add --quant 4bit or int8, or leave "
            "--kbit-fp32 out"
        )
    if spec.quantization is not None and request.quant is not None:
        raise UsageError(
            f"{spec.id} is stored as {spec.quantization.scheme} already; leave --quant out, or name the 16-bit model"
        )


def refuse_packed_by_name(model_id: str, word: str, request: TrainingRequest) -> None:
    """Raises UsageError where weights that are packed by the model's name would be trained, or packed again."""
    packed = f"{model_id} is packed by its name ({word}), and"
    if request.tuning == "full":
        raise UsageError(
            f"{packed} packed weights can't be trained; name the 16-bit model, or train adapters: --lora-rank 16"
        )
    if request.base in ("4bit", "int8"):
        raise UsageError(
            f"{packed} bitsandbytes packs 16-bit weights alone; name the 16-bit model, or train adapters on what is "
            "stored: lora, or --lora-rank 16, without --quant and --load-in-4bit"
        )


def _divide(devices: Sequence[Device], request: TrainingRequest) -> tuple[Sequence[Device], Sequence[Device]]:
    """(cards that train, cards that only generate)."""
    if not devices:
        raise UsageError(
            "there is no accelerator to train on; describe one with --gpu, for example --gpu rtx-4090:2, or plan for "
            "the CPU: --gpu none"
        )
    vllm = request.vllm
    if vllm is None or vllm.mode == "colocated":
        if vllm is not None and len(devices) % vllm.tensor_parallel_size:
            raise UsageError(
                f"--vllm-tensor-parallel-size is {vllm.tensor_parallel_size}, but must divide the {len(devices)} cards"
            )
        return devices, ()
    if vllm.num_gpus >= len(devices):
        raise UsageError(
            f"--vllm separate takes {vllm.num_gpus} of {len(devices)} cards for the engine and leaves none to train "
            "on; name more cards with --gpu NAME:COUNT, or use --vllm colocated"
        )
    return devices[: -vllm.num_gpus], devices[-vllm.num_gpus :]


def _engine_trouble(spec: ModelSpec, request: TrainingRequest, devices: Sequence[Device]) -> str | None:
    vllm = request.vllm
    if vllm is None:
        return None
    need = engine_need_bytes(spec, vllm, request.max_length)
    claim = min(round(vllm.fraction * device.total_bytes) for device in devices)
    if claim >= need:
        return None
    return (
        f"the engine claims {format_bytes(claim)} of a card (gpu_memory_utilization {vllm.gpu_memory_utilization}), "
        f"but needs at least {format_bytes(need)} for its weights, one sequence of {request.max_length} tokens and its "
        "own overhead"
    )


def _trainer_trouble(cards: Sequence[CardMemory]) -> str | None:
    card = min(cards, key=lambda card: card.free_bytes)
    if card.free_bytes >= 0:
        return None
    largest = max(card.terms, key=lambda term: term.num_bytes)
    fixed = sum(term.num_bytes for term in card.terms if term.name not in PER_TOKEN)
    text = (
        f"{card.name} has {format_bytes(card.total_bytes)} and needs {format_bytes(card.used_bytes)} in the "
        f"{card.phase} phase, {format_bytes(-card.free_bytes)} more than it has. Largest: {largest.name}, "
        f"{format_bytes(largest.num_bytes)}"
    )
    if fixed > card.total_bytes:
        text += f". {format_bytes(fixed)} do not depend on the batch: no micro-batch and no length can help"
    return text


def _ram_trouble(request: TrainingRequest, needed_bytes: int, ram_bytes: int | None) -> str | None:
    """Checked where all that is offloaded goes to RAM."""
    to_ram = "nvme" not in (request.offload_optimizer, request.offload_param)
    if ram_bytes is None or not to_ram or needed_bytes <= ram_bytes:
        return None
    return (
        f"offloading needs {format_bytes(needed_bytes)}, but {format_bytes(ram_bytes)} of RAM are available; "
        "--offload-optimizer nvme and --offload-param nvme put it on disk"
    )
