"""verl 0.9.1: `python -m verl.trainer.main_ppo key=value …`, over FSDP. It shards like ZeRO-3 whatever the stage is."""

from __future__ import annotations

from qserve.training.configuration.trl import learning_rate
from qserve.training.job import TrainingRun

__all__ = ["verl_words"]


def verl_words(run: TrainingRun) -> list[str]:
    """Its data is Parquet with a column of messages, `prompt`."""
    settings = {**_data(run), **_actor(run), **_rollout(run), **_algorithm(run)}
    return ["python", "-m", "verl.trainer.main_ppo", *(f"{name}={value}" for name, value in settings.items())]


def _data(run: TrainingRun) -> dict[str, object]:
    completion = run.request.completion_length or run.request.max_length // 2
    return {
        "data.train_files": run.data.path,
        "data.val_files": run.data.eval_path or run.data.path,
        "data.prompt_key": "prompt",
        "data.max_prompt_length": run.request.max_length - completion,
        "data.max_response_length": completion,
        "data.train_batch_size": _batch(run),
    }


def _batch(run: TrainingRun) -> int:
    return run.request.micro_batch * run.request.gradient_accumulation_steps * run.num_processes


def _actor(run: TrainingRun) -> dict[str, object]:
    request = run.request
    made: dict[str, object] = {
        "actor_rollout_ref.model.path": run.model,
        "actor_rollout_ref.model.enable_gradient_checkpointing": request.gradient_checkpointing,
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.optim.lr": learning_rate(run),
        "actor_rollout_ref.actor.ppo_mini_batch_size": _batch(run),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": request.micro_batch,
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": request.offload_optimizer == "cpu",
        "actor_rollout_ref.actor.fsdp_config.param_offload": request.offload_param == "cpu",
        "actor_rollout_ref.actor.use_kl_loss": run.method == "grpo" and request.beta > 0,
        "actor_rollout_ref.actor.kl_loss_coef": request.beta,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": request.micro_batch,
    }
    if request.tuning == "lora":
        made |= {
            "actor_rollout_ref.model.lora_rank": request.rank,
            "actor_rollout_ref.model.lora_alpha": 2 * request.rank,
        }
    return made


def _rollout(run: TrainingRun) -> dict[str, object]:
    """verl's engine shares the trainer's cards, and sleeps while they train (free_cache_engine)."""
    vllm = run.request.vllm
    made: dict[str, object] = {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": run.num_generations if run.method == "grpo" else 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": run.request.micro_batch,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": vllm.tensor_parallel_size if vllm else 1,
    }
    if vllm is not None:
        made |= {
            "actor_rollout_ref.rollout.gpu_memory_utilization": vllm.gpu_memory_utilization,
            "actor_rollout_ref.rollout.free_cache_engine": vllm.sleep,
        }
    return made


def _algorithm(run: TrainingRun) -> dict[str, object]:
    made: dict[str, object] = {
        "algorithm.adv_estimator": "gae" if run.method == "ppo" else "grpo",
        "trainer.n_gpus_per_node": run.num_processes,
        "trainer.nnodes": 1,
        "trainer.total_epochs": f"{run.schedule.epochs or 1:g}",
        "trainer.default_local_dir": run.output,
    }
    if run.method == "ppo":
        made |= {
            "critic.model.path": run.model,
            "critic.ppo_micro_batch_size_per_gpu": run.request.micro_batch,
            "algorithm.use_kl_in_reward": run.request.beta > 0,
            "algorithm.kl_ctrl.kl_coef": run.request.beta,
        }
    if run.rewards:
        made |= {"reward.reward_model.enable": True, "reward.reward_model.model_path": run.rewards[0].target}
    return made
