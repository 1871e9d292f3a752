"""A `TrainingRun` as the configuration of TRL's command line: `trl sft|reward|dpo|grpo --config FILE`.

Pure: field names and meanings are those of trl 1.16 (SFTConfig, RewardConfig, DPOConfig, GRPOConfig, ModelConfig) and
transformers 5.19 (TrainingArguments); tests/tiny/training parses what stands here with TRL's own parser.
"""

from __future__ import annotations

import shlex
from typing import Any

from qserve.planner.training.training_constants import OPTIMIZERS
from qserve.planner.training.training_defaults import default_epochs, default_learning_rate
from qserve.training.configuration.rewards import reward_names
from qserve.training.job import TrainingRun

__all__ = ["ATTENTIONS", "beyond_trl", "engine_command", "epochs", "learning_rate", "num_steps", "trl_configuration"]

# transformers' names, and those of ms-swift and OpenRLHF; "flash" is FlashAttention 2.
ATTENTIONS = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
_TARGETS = {
    "all-linear": ["all-linear"],
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qkv": ["q_proj", "k_proj", "v_proj"],
}
_LOGS = 1
_DEFAULT_STEPS = 200


def trl_configuration(run: TrainingRun, num_train: int, num_eval: int) -> dict[str, Any]:
    """What `trl` reads. `num_train` and `num_eval` are rows."""
    return {
        **_model(run),
        **_data(run, num_eval),
        **_batch(run),
        **_optimizer(run),
        **_schedule(run, num_train, num_eval),
        **_METHODS[run.trainer](run),
    }


def beyond_trl(run: TrainingRun) -> list[str]:
    """What this run does that TRL's command line has no field for; written above the configuration."""
    notes = []
    if run.request.freeze_base:
        notes.append("the base is frozen and only `score` is trained: trl's own script would train all weights")
    if run.label_smoothing and run.trainer == "reward":
        notes.append(f"label smoothing {run.label_smoothing:g} needs qserve: trl's own loss of pairs has none")
    if run.data.labels:
        how = "cross-entropy" if run.request.step_labels else "mean squared error"
        notes.append(f"scores of {', '.join(run.data.labels)} are learned by {how}: trl's own script takes pairs")
    if run.request.vllm is not None and run.request.vllm.mode == "separate":
        notes.append(f"start the engine first, on separate cards: {engine_command(run)}")
    return notes


def engine_command(run: TrainingRun) -> str:
    """TRL's own server for rollouts, on the cards that the plan leaves to it: the last ones."""
    vllm = run.request.vllm
    assert vllm is not None
    cards = ",".join(str(run.num_processes + index) for index in range(vllm.num_gpus))
    size = f"--tensor-parallel-size {vllm.tensor_parallel_size}"
    size += f" --data-parallel-size {vllm.num_gpus // vllm.tensor_parallel_size}"
    limits = f"--gpu-memory-utilization {vllm.fraction} --max-model-len {run.request.max_length}"
    return f"CUDA_VISIBLE_DEVICES={cards} trl vllm-serve --model {shlex.quote(run.model)} {size} {limits}"


def _model(run: TrainingRun) -> dict[str, Any]:
    request = run.request
    made: dict[str, Any] = {
        "model_name_or_path": run.model,
        "dtype": _dtype(run),
        "attn_implementation": ATTENTIONS[request.attention],
    }
    if request.tuning in ("lora", "qlora"):
        made |= {
            "use_peft": True,
            "lora_r": request.rank,
            "lora_alpha": 2 * request.rank,
            "lora_dropout": 0.0,
            "lora_target_modules": _TARGETS[request.lora_targets],
            "lora_task_type": "SEQ_CLS" if run.trainer == "reward" else "CAUSAL_LM",
        }
        saved = ["score"] if run.trainer == "reward" else []
        saved += ["embed_tokens", "lm_head"] if request.train_embeddings else []
        made |= {"lora_modules_to_save": saved} if saved else {}
    if request.tuning == "qlora":
        made |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    if request.base == "int8":
        made["load_in_8bit"] = True
    return made


def _dtype(run: TrainingRun) -> str:
    """Of the weights as they are loaded; a trained head and adapters are in fp32 whatever it says."""
    precision = run.request.precision
    if run.request.base in ("bf16", "fp16"):
        return "float16" if run.request.base == "fp16" else "bfloat16"
    if precision == "fp32" or (precision == "amp" and run.request.tuning == "full"):
        return "float32"
    return "bfloat16"


def _data(run: TrainingRun, num_eval: int) -> dict[str, Any]:
    made = {
        "dataset_name": str(run.data_folder),
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "dataloader_num_workers": run.num_workers,
    }
    if run.num_workers:
        made |= {"dataloader_prefetch_factor": 2, "dataloader_persistent_workers": True}
    return made


def _batch(run: TrainingRun) -> dict[str, Any]:
    request = run.request
    return {
        "per_device_train_batch_size": request.micro_batch,
        "per_device_eval_batch_size": request.micro_batch,
        "gradient_accumulation_steps": request.gradient_accumulation_steps,
        # Where it checkpoints, transformers makes the embedding's output need a gradient: all of a frozen base would
        # have a backward pass, for nothing.
        "gradient_checkpointing": request.gradient_checkpointing and request.tuning != "head",
        "bf16": request.precision != "fp32" and request.base != "fp16",
        **({"fp16": True} if request.precision != "fp32" and request.base == "fp16" else {}),
        **_device(run),
    }


def _device(run: TrainingRun) -> dict[str, Any]:
    """accelerate's state looks for DeepSpeed only where no CPU is asked for, and counts ranks of a named backend."""
    if not run.shards_on_cpu:
        return {"use_cpu": run.device == "cpu"}
    return {"use_cpu": run.request.fsdp, "ddp_backend": "gloo", "dataloader_pin_memory": False}


def learning_rate(run: TrainingRun) -> float:
    """As it was decided at the start of the run."""
    return run.schedule.learning_rate or default_learning_rate(run.request)


def _optimizer(run: TrainingRun) -> dict[str, Any]:
    return {
        "optim": OPTIMIZERS[run.request.optimizer].flag,
        "learning_rate": learning_rate(run),
        "lr_scheduler_type": "cosine",
        "warmup_steps": run.schedule.warmup_steps,
        "seed": run.seed,
    }


def _schedule(run: TrainingRun, num_train: int, num_eval: int) -> dict[str, Any]:
    schedule = run.schedule
    steps = num_steps(run, num_train)
    every = max(1, min(_DEFAULT_STEPS, steps // 10))
    eval_steps = schedule.eval_steps or every
    save_steps = schedule.save_steps or eval_steps
    made: dict[str, Any] = {
        "output_dir": str(run.output),
        "num_train_epochs": epochs(run, num_train),
        "max_steps": schedule.max_steps or -1,
        "logging_steps": _LOGS,
        "logging_first_step": True,
        "save_strategy": "steps",
        "save_steps": save_steps,
        "save_total_limit": schedule.save_total_limit,
        "report_to": "none",
        "disable_tqdm": True,
    }
    if num_eval:
        made |= {"eval_strategy": "steps", "eval_steps": eval_steps}
    if num_eval and run.trainer == "reward" and schedule.patience is not None:
        # transformers asks that saves fall on evaluations
        made["save_steps"] = eval_steps
        best = "eval_loss" if run.data.labels else "eval_accuracy"
        made |= {"load_best_model_at_end": True, "metric_for_best_model": best}
        made["greater_is_better"] = best == "eval_accuracy"
    return made


def num_steps(run: TrainingRun, num_train: int) -> int:
    """Optimizer steps of the whole run."""
    if run.schedule.max_steps:
        return run.schedule.max_steps
    return max(1, round(epochs(run, num_train) * num_train / _rows_a_step(run)))


def epochs(run: TrainingRun, num_train: int) -> float:
    """As they were asked for, else by the number of rows."""
    return run.schedule.epochs or default_epochs(num_train, _rows_a_step(run))


def _rows_a_step(run: TrainingRun) -> int:
    return run.request.micro_batch * run.request.gradient_accumulation_steps * run.num_processes


def _sft(run: TrainingRun) -> dict[str, Any]:
    return {"max_length": run.request.max_length, "packing": run.packing}


def _reward(run: TrainingRun) -> dict[str, Any]:
    made: dict[str, Any] = {"max_length": run.request.max_length}
    if run.center_rewards is not None:
        made["center_rewards_coefficient"] = run.center_rewards
    return made


def _dpo(run: TrainingRun) -> dict[str, Any]:
    made = {"max_length": run.request.max_length, "beta": run.request.beta}
    return {**made, "label_smoothing": run.label_smoothing} if run.label_smoothing else made


def _grpo(run: TrainingRun) -> dict[str, Any]:
    request = run.request
    made: dict[str, Any] = {
        "beta": request.beta,
        "num_generations": run.num_generations,
        "max_completion_length": request.completion_length or request.max_length // 2,
        "reward_weights": [one.weight for one in run.rewards],
        "log_completions": False,
        "reward_funcs": reward_names(run),
    }
    if request.vllm is not None:
        made |= {"use_vllm": True, "vllm_mode": "colocate" if request.vllm.mode == "colocated" else "server"}
    if request.vllm is not None and request.vllm.mode == "colocated":
        made |= {
            "vllm_gpu_memory_utilization": request.vllm.fraction,
            "vllm_tensor_parallel_size": request.vllm.tensor_parallel_size,
            "vllm_enable_sleep_mode": request.vllm.sleep,
            "vllm_max_model_length": request.max_length,
        }
    return made


_METHODS = {"sft": _sft, "reward": _reward, "dpo": _dpo, "grpo": _grpo}
