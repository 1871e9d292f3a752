"""A `TrainingRun` as accelerate's own configuration: `accelerate launch --config_file FILE`.

Pure: the fields are those that `accelerate config` 1.15 writes.
"""

from __future__ import annotations

from typing import Any

from qserve.training.job import TrainingRun

__all__ = ["DEEPSPEED_FILE", "accelerate_configuration", "cpu_environment"]

DEEPSPEED_FILE = "deepspeed.json"


def accelerate_configuration(run: TrainingRun) -> dict[str, Any]:
    """One process, DDP, FSDP2, or DeepSpeed by the request's ZeRO stage.

    `use_cpu` is false where processes on a CPU shard: with it accelerate 1.15 would start them by MPI, and its state
    would look for neither DeepSpeed nor FSDP. train.yaml says what they run on.
    """
    request = run.request
    made: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": _kind(run),
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no" if request.precision == "fp32" else "fp16" if request.base == "fp16" else "bf16",
        "num_machines": 1,
        "num_processes": run.num_processes,
        "use_cpu": run.device == "cpu" and not run.shards_on_cpu,
    }
    if run.device == "cuda":
        made["gpu_ids"] = ",".join(map(str, range(run.num_processes)))
    if request.fsdp:
        made["fsdp_config"] = _FSDP
    elif run.shards_on_cpu:
        del made["mixed_precision"]  # a DeepSpeed file speaks for itself
        made["deepspeed_config"] = {"deepspeed_config_file": str(run.folder / DEEPSPEED_FILE)}
        made["deepspeed_config"]["zero3_init_flag"] = request.zero_stage == 3
    elif request.zero_stage:
        made["deepspeed_config"] = _deepspeed(run)
    return made


def cpu_environment(run: TrainingRun) -> dict[str, str]:
    """What must be set beside the files where processes on a CPU shard: both libraries take a card that they see."""
    if not run.shards_on_cpu:
        return {}
    return {"CUDA_VISIBLE_DEVICES": "", **({"DS_ACCELERATOR": "cpu"} if run.request.zero_stage else {})}


def _kind(run: TrainingRun) -> str:
    if run.request.sharding_stage:
        return "FSDP" if run.request.fsdp else "DEEPSPEED"
    if run.num_processes > 1:
        return "MULTI_CPU" if run.device == "cpu" else "MULTI_GPU"
    return "NO"


_FSDP = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_reshard_after_forward": True,
    "fsdp_offload_params": False,
    "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_state_dict_type": "FULL_STATE_DICT",
}
"""Layer by layer; checkpoints hold whole tensors, so that what is saved is a model."""


def _deepspeed(run: TrainingRun) -> dict[str, Any]:
    request = run.request
    made: dict[str, Any] = {
        "zero_stage": request.zero_stage,
        "offload_optimizer_device": request.offload_optimizer,
        "gradient_accumulation_steps": request.gradient_accumulation_steps,
    }
    if request.zero_stage == 3:
        made |= {"offload_param_device": request.offload_param, "zero3_init_flag": True, "zero3_save_16bit_model": True}
    if "nvme" in (request.offload_optimizer, request.offload_param):
        folder = str(run.output / "nvme")
        made |= {"offload_optimizer_nvme_path": folder, "offload_param_nvme_path": folder}
    return made
