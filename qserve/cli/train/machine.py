"""A training request on this machine: its devices, what is installed, and who writes the rollouts."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from qserve.core.hardware import Device, Hardware
from qserve.errors import MissingExtra, UsageError
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.planner.training.command import is_without_master_copy
from qserve.planner.training.training_defaults import default_tiled_loss

__all__ = ["completed", "devices_of", "with_engine"]


def devices_of(hardware: Hardware, count: int | None) -> tuple[Device, ...]:
    """The cards that train and generate, or so many shares of the RAM, one a process.

    Raises UsageError where so many cards are not here.
    """
    if hardware.devices:
        if count is not None and count > len(hardware.devices):
            raise UsageError(f"--gpus is {count}, but this machine has {len(hardware.devices)}")
        return hardware.devices[:count]
    cpu, share = hardware.cpu_device, count or 1
    each = replace(cpu, total_bytes=cpu.total_bytes // share, used_by_others_bytes=cpu.used_by_others_bytes // share)
    return (each,) * share


def completed(request: TrainingRequest, hardware: Hardware, *, emit: str | None = None) -> TrainingRequest:
    """The request with what TRL does by itself, and what this machine has to do where the run is not another trainer's.

    Raises UsageError, or MissingExtra for ZeRO without DeepSpeed and 8-bit or 4-bit without bitsandbytes.
    """
    if emit is not None:
        return replace(request, tiled_loss=emit == "trl" and default_tiled_loss(request.method))
    _refuse_what_is_not_installed(request)
    if request.sharding_stage and not hardware.devices:
        _refuse_on_cpu(request)
    if request.base == "fp16" and request.precision != "fp32" and not hardware.devices:
        raise UsageError(
            "accelerate mixes fp16 only on cards, and this run has none; take --precision fp32 (not "
            f"{request.precision}), which computes in the base's own fp16, or --quant bf16"
        )
    if request.attention == "flash":
        _refuse_flash(request, hardware)
    if is_without_master_copy(request) and hardware.devices:
        raise UsageError(
            "--precision mixed is DeepSpeed's (16-bit weights with an fp32 master copy); add --zero 1, 2 or 3, or take "
            "--precision amp"
        )
    return replace(request, tiled_loss=default_tiled_loss(request.method))


def _refuse_flash(request: TrainingRequest, hardware: Hardware) -> None:
    """FlashAttention 2 computes on cards, in 16 bit; transformers takes it from either of two packages."""
    if not hardware.devices:
        raise UsageError("--attention flash needs a card; leave it out: sdpa takes as little memory on a CPU")
    if request.precision == "fp32":
        raise UsageError("--attention flash computes in 16 bit; take --precision amp, or --attention sdpa")
    if not any(importlib.util.find_spec(name) for name in ("flash_attn", "kernels")):
        raise MissingExtra("kernels", "--attention flash")


def _refuse_on_cpu(request: TrainingRequest) -> None:
    """What can't be sharded over processes on a CPU."""
    if request.precision != "fp32":
        raise UsageError(
            f"processes on a CPU can shard only in fp32, and --precision is {request.precision}; leave it out, or "
            "train "
            "without --zero and --fsdp"
        )
    if "nvme" in (request.offload_optimizer, request.offload_param):
        raise UsageError("offloading to NVMe is for cards; on a CPU take --offload-optimizer cpu, or leave it out")


def with_engine(request: TrainingRequest, engine: str | None, hardware: Hardware) -> TrainingRequest:
    """Rollouts by vLLM where there are a card and vLLM, by transformers elsewhere. `asked` is --vllm.

    Raises UsageError for an engine that can't run here.
    """
    if request.method != "grpo":
        return request
    if request.vllm is None:
        fits = engine is None and bool(hardware.devices) and _has_vllm() and request.base != "int8"
        return replace(request, vllm=VllmBeside("colocated")) if fits else request
    if not hardware.devices:
        raise UsageError(
            f"--vllm {engine} needs a card, and this run has none; leave it out: transformers generates the rollouts"
        )
    if request.base == "int8":
        raise UsageError("vLLM can't take a base in int8 from a trainer; take --quant 4bit or bf16, or --vllm none")
    return request


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def _refuse_what_is_not_installed(request: TrainingRequest) -> None:
    if request.zero_stage and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtra("deepspeed", f"--zero {request.zero_stage}")
    needs_bnb = request.optimizer == "adamw-8bit" or request.base in ("int8", "4bit")
    if needs_bnb and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "--optimizer adamw-8bit, --quant int8 and 4bit, --load-in-4bit and qlora")
