"""OpenRLHF 0.11.2: `deepspeed --module openrlhf.cli.train_{sft,rm,dpo}` and, for rollouts, train_ppo_ray."""

from __future__ import annotations

from qserve.training.configuration.trl import ATTENTIONS, learning_rate
from qserve.training.job import TrainingRun

__all__ = ["openrlhf_words"]


def openrlhf_words(run: TrainingRun) -> list[str]:
    """Its batch is that of all cards together."""
    return _rollouts(run) if run.method in ("grpo", "ppo") else _supervised(run)


def _common(run: TrainingRun, model: str) -> list[str]:
    request = run.request
    words = ["--ckpt.output_dir", str(run.output), "--ds.zero_stage", str(request.zero_stage)]
    words += ["--ds.param_dtype", "bf16", "--ds.attn_implementation", ATTENTIONS[request.attention]]
    words += ["--ds.adam_offload"] if request.offload_optimizer == "cpu" else []
    words += [f"--{model}.gradient_checkpointing_enable"] if request.gradient_checkpointing else []
    words += ["--ds.load_in_4bit"] if request.tuning == "qlora" else []
    if request.tuning in ("lora", "qlora"):
        words += ["--ds.lora.rank", str(request.rank), "--ds.lora.alpha", str(2 * request.rank)]
        words += ["--ds.lora.target_modules", "all-linear"]
    words += ["--train.micro_batch_size", str(request.micro_batch), "--train.batch_size", str(_batch(run))]
    return [
        *words,
        "--train.seed",
        str(run.seed),
        "--data.max_len",
        str(request.max_length),
        "--data.apply_chat_template",
    ]


def _batch(run: TrainingRun) -> int:
    return run.request.micro_batch * run.request.gradient_accumulation_steps * run.num_processes


def _supervised(run: TrainingRun) -> list[str]:
    name = {"sft": "sft", "reward": "rm", "dpo": "dpo"}[run.trainer]
    words = ["deepspeed", "--module", f"openrlhf.cli.train_{name}", "--model.model_name_or_path", run.model]
    words += [
        "--data.dataset",
        run.data.path,
        "--adam.lr",
        str(learning_rate(run)),
        "--train.max_epochs",
        f"{run.schedule.epochs or 1:g}",
    ]
    if run.trainer == "sft":
        words += ["--data.input_key", "prompt", "--data.output_key", "completion"]
    else:
        words += ["--data.prompt_key", "prompt", "--data.chosen_key", "chosen", "--data.rejected_key", "rejected"]
    words += ["--model.beta", str(run.request.beta)] if run.trainer == "dpo" else []
    return words + _common(run, "model")


def _rollouts(run: TrainingRun) -> list[str]:
    request, vllm, ranks = run.request, run.request.vllm, str(run.num_processes)
    is_ppo = run.method == "ppo"
    words = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--actor.model_name_or_path", run.model]
    words += ["--data.prompt_dataset", run.data.path, "--data.input_key", "prompt"]
    words += ["--algo.advantage.estimator", "gae" if is_ppo else "group_norm", "--algo.kl.init_coef", str(request.beta)]
    words += ["--actor.adam.lr", str(learning_rate(run)), "--train.num_episodes", f"{run.schedule.epochs or 1:g}"]
    words += ["--rollout.n_samples_per_prompt", "1" if is_ppo else str(run.num_generations)]
    words += ["--rollout.batch_size", str(_batch(run)), "--rollout.max_new_tokens"]
    words += [str(request.completion_length or request.max_length // 2)]
    for role in ("actor", "ref", *(("critic",) if is_ppo else ())):
        words += [f"--{role}.num_nodes", "1", f"--{role}.num_gpus_per_node", ranks]
    words += ["--critic.model_name_or_path", run.model] if is_ppo else []
    words += _reward(run, ranks)
    if vllm is not None:
        engines = run.num_processes // vllm.tensor_parallel_size if vllm.mode == "colocated" else vllm.num_gpus
        words += ["--vllm.num_engines", str(max(1, engines)), "--vllm.tensor_parallel_size"]
        words += [str(vllm.tensor_parallel_size), "--vllm.gpu_memory_utilization", str(vllm.gpu_memory_utilization)]
        words += ["--train.colocate_all"] if vllm.mode == "colocated" else ["--train.colocate_actor_ref"]
        words += ["--vllm.enable_sleep"] if vllm.sleep else []
    return words + _common(run, "actor")


def _reward(run: TrainingRun, ranks: str) -> list[str]:
    named = run.rewards[0].target if run.rewards else run.model
    if named.startswith(("http://", "https://")):
        return ["--reward.remote_url", f"{named.rstrip('/')}/get_reward"]
    return ["--reward.model_name_or_path", named, "--reward.num_nodes", "1", "--reward.num_gpus_per_node", ranks]
