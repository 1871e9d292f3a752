"""ms-swift 4.6: `swift sft` and `swift rlhf`. Its fields are dataclasses over transformers' TrainingArguments."""

from __future__ import annotations

from qserve.training.configuration.trl import ATTENTIONS, learning_rate
from qserve.training.job import TrainingRun

__all__ = ["swift_words"]

_OFFLOADED = {2: "zero2_offload", 3: "zero3_offload"}


def swift_words(run: TrainingRun) -> list[str]:
    """`NPROC_PER_NODE=N swift …`: of a separate engine the trainer's processes alone."""
    request = run.request
    is_tuned_whole = request.tuning == "full"
    words = [f"NPROC_PER_NODE={run.num_processes}"] if run.num_processes > 1 else []
    words += ["swift", "sft" if run.trainer == "sft" else "rlhf"]
    if run.trainer != "sft":
        words += ["--rlhf_type", {"reward": "rm"}.get(run.trainer, run.trainer)]
    words += ["--model", run.model, "--dataset", run.data.path, "--output_dir", str(run.output)]
    words += ["--tuner_type", "full" if is_tuned_whole else "lora"]
    if not is_tuned_whole:
        words += ["--lora_rank", str(request.rank), "--lora_alpha", str(2 * request.rank)]
    if request.base == "4bit":
        words += ["--quant_method", "bnb", "--quant_bits", "4", "--bnb_4bit_compute_dtype", "bfloat16"]
    if request.base == "int8":
        words += ["--quant_method", "bnb", "--quant_bits", "8"]
    words += [
        "--torch_dtype",
        _dtype(run),
        "--attn_impl",
        ATTENTIONS[request.attention],
        "--max_length",
        str(request.max_length),
        "--per_device_train_batch_size",
        str(request.micro_batch),
        "--gradient_accumulation_steps",
        str(request.gradient_accumulation_steps),
        "--gradient_checkpointing",
        str(request.gradient_checkpointing).lower(),
        "--learning_rate",
        str(learning_rate(run)),
        "--num_train_epochs",
        f"{run.schedule.epochs or 1:g}",
        "--seed",
        str(run.seed),
    ]
    if request.zero_stage:
        offloads = "cpu" in (request.offload_optimizer, request.offload_param)
        words += [
            "--deepspeed",
            _OFFLOADED.get(request.zero_stage, "zero1") if offloads else f"zero{request.zero_stage}",
        ]
    return words + (_grpo(run) if run.trainer == "grpo" else [])


def _dtype(run: TrainingRun) -> str:
    request = run.request
    if request.tuning == "full" and request.precision in ("fp32", "amp"):
        return "float32"
    return "float16" if request.base == "fp16" else "bfloat16"


def _grpo(run: TrainingRun) -> list[str]:
    request, vllm = run.request, run.request.vllm
    words = ["--num_generations", str(run.num_generations), "--beta", str(request.beta)]
    words += ["--max_completion_length", str(request.completion_length or request.max_length // 2)]
    if run.rewards:
        words += ["--reward_model", *(one.target for one in run.rewards)]
        words += ["--reward_weights", *(f"{one.weight:g}" for one in run.rewards)]
    if vllm is None:
        return words
    words += ["--use_vllm", "true", "--vllm_mode", "colocate" if vllm.mode == "colocated" else "server"]
    if vllm.mode == "separate":
        return [*words, "--vllm_server_host", "127.0.0.1", "--vllm_server_port", "8000"]
    words += ["--vllm_gpu_memory_utilization", str(vllm.gpu_memory_utilization)]
    words += ["--vllm_tensor_parallel_size", str(vllm.tensor_parallel_size), "--vllm_max_model_len"]
    return [*words, str(request.max_length), "--sleep_level", "1" if vllm.sleep else "0"]
