"""The planned run as other trainers' commands: values follow the plan; scripts/emitted_flags.py holds the names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.training.emit import FRAMEWORKS, emitted
from qserve.training.job import DataSource, RewardSource, Schedule, TrainingRun


def run_of(method: str, **fields) -> TrainingRun:
    of_run = {name: fields.pop(name) for name in tuple(fields) if name in TrainingRun.__dataclass_fields__}
    request = TrainingRequest(method, precision="mixed", **fields)
    return TrainingRun(request, "/policy", DataSource("data.parquet"), Path("/out"), num_processes=4, **of_run)


def flags(run: TrainingRun, framework: str) -> dict[str, str]:
    words = shlex.split(emitted(run, framework).replace("\\\n", " "))
    if framework == "verl":
        return dict(word.split("=", 1) for word in words[3:])
    return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


ROLLOUTS = {
    "micro_batch": 2,
    "gradient_accumulation_steps": 8,
    "zero_stage": 3,
    "max_length": 1024,
    "completion_length": 768,
}


@pytest.mark.parametrize(
    ("framework", "flag"),
    [
        ("ms-swift", "--vllm_gpu_memory_utilization"),
        ("openrlhf", "--vllm.gpu_memory_utilization"),
        ("verl", "actor_rollout_ref.rollout.gpu_memory_utilization"),
    ],
)
def test_an_engine_gets_the_planned_fraction(framework: str, flag: str) -> None:
    run = run_of("grpo", vllm=VllmBeside("colocated", 0.35, sleep=True), **ROLLOUTS)
    assert flags(run, framework)[flag] == "0.35"


def test_the_batch_is_kept_whatever_each_trainer_counts() -> None:
    run = run_of("grpo", **ROLLOUTS)
    assert flags(run, "openrlhf")["--train.batch_size"] == "64"  # of all cards
    assert flags(run, "verl")["data.train_batch_size"] == "64"
    swift = flags(run, "ms-swift")  # of one
    assert (swift["--per_device_train_batch_size"], swift["--gradient_accumulation_steps"]) == ("2", "8")
    assert swift["--deepspeed"] == "zero3"
    assert emitted(run, "ms-swift").startswith("NPROC_PER_NODE=4 swift rlhf")


def test_prompt_and_completion_share_the_length() -> None:
    run = run_of("grpo", **ROLLOUTS)
    made = flags(run, "verl")
    assert (made["data.max_prompt_length"], made["data.max_response_length"]) == ("256", "768")


def test_ppo_names_all_four_models() -> None:
    run = run_of("ppo", rewards=(RewardSource("/reward"),), **ROLLOUTS)
    made = flags(run, "openrlhf")
    assert made["--critic.model_name_or_path"] == made["--actor.model_name_or_path"] == "/policy"
    assert made["--reward.model_name_or_path"] == "/reward"
    assert made["--ref.num_gpus_per_node"] == "4"
    assert flags(run, "verl")["reward.reward_model.model_path"] == "/reward"


def test_a_served_reward_is_asked_where_it_is_served() -> None:
    run = run_of("ppo", rewards=(RewardSource("http://127.0.0.1:8000/"),), **ROLLOUTS)
    assert flags(run, "openrlhf")["--reward.remote_url"] == "http://127.0.0.1:8000/get_reward"


@pytest.mark.parametrize(("framework", "method"), [("trl", "ppo"), ("ms-swift", "ppo"), ("verl", "reward")])
def test_a_method_that_a_trainer_lacks_is_refused(framework: str, method: str) -> None:
    assert framework in FRAMEWORKS
    with pytest.raises(UsageError):
        emitted(run_of(method), framework)


def test_a_quantized_base_is_written_or_refused() -> None:
    run = run_of("lora", quant="int8")
    swift = flags(run, "ms-swift")
    assert (swift["--quant_method"], swift["--quant_bits"], swift["--torch_dtype"]) == ("bnb", "8", "bfloat16")
    assert flags(run_of("lora", quant="fp16"), "ms-swift")["--torch_dtype"] == "float16"
    with pytest.raises(UsageError, match="base in int8; leave --quant int8 out"):
        emitted(run, "openrlhf")


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"lora_rank": 8, "lora_targets": "qkv"}, "--lora-targets"),
        ({"optimizer": "lion"}, "--optimizer"),
        ({"freeze_base": True}, "--freeze-base"),
        ({"center_rewards": 0.01}, "--center-rewards"),
        ({"schedule": Schedule(max_steps=7)}, "--max-steps"),
    ],
)
@pytest.mark.parametrize("framework", ["ms-swift", "openrlhf"])
def test_a_flag_that_is_not_written_is_refused_by_name(framework: str, fields: dict, flag: str) -> None:
    with pytest.raises(UsageError, match=f"does not write {flag} for {framework}"):
        emitted(run_of("reward", **fields), framework)


@pytest.mark.parametrize(
    ("fields", "flag"), [({"freeze_base": True}, "freeze-base"), ({"label_smoothing": 0.1}, "label-smoothing")]
)
def test_what_trls_own_script_would_not_do_is_refused(fields: dict, flag: str) -> None:
    with pytest.raises(UsageError, match=f"no --{flag}, which only qserve has"):
        emitted(run_of("reward", **fields), "trl")
    assert emitted(run_of("dpo", label_smoothing=0.1), "trl")


HOST = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("framework", "rewards", "told"),
    [
        ("ms-swift", (RewardSource(HOST),), "docs/trainers.md has one"),
        ("verl", (RewardSource(HOST),), "docs/trainers.md has one"),
        ("openrlhf", (RewardSource(HOST, 0.5),), "one reward without a weight"),
        ("verl", (RewardSource("/a"), RewardSource("/b")), "one reward without a weight"),
    ],
)
def test_a_reward_that_a_trainer_can_not_name_is_refused(framework: str, rewards: tuple, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        emitted(run_of("grpo", rewards=rewards, **ROLLOUTS), framework)


def test_a_recipe_is_served_for_other_trainers(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("parts:\n  - {name: digits, rule: regex, pattern: '[0-9]'}\n")
    with pytest.raises(UsageError, match=f"qserve up --reward {rules}"):
        emitted(run_of("grpo", rewards=(RewardSource(str(rules)),), **ROLLOUTS), "openrlhf")


def test_several_rewards_keep_their_weights_where_a_trainer_has_them() -> None:
    run = run_of("grpo", rewards=(RewardSource("/a", 0.5), RewardSource("/b")), **ROLLOUTS)
    words = emitted(run, "ms-swift").replace("\\\n", " ").split()
    assert words[words.index("--reward_model") + 1 :][:2] == ["/a", "/b"]
    assert words[words.index("--reward_weights") + 1 :][:2] == ["0.5", "1"]


def test_every_trainer_is_told_rate_and_length() -> None:
    run = run_of("grpo", schedule=Schedule(learning_rate=3e-6, epochs=2), **ROLLOUTS)
    assert flags(run, "verl")["actor_rollout_ref.actor.optim.lr"] == "3e-06"
    assert flags(run, "openrlhf")["--actor.adam.lr"] == "3e-06"
    assert flags(run_of("ppo", **ROLLOUTS), "openrlhf")["--actor.adam.lr"] == "1e-06"  # by default as GRPO's
    assert flags(run, "openrlhf")["--train.num_episodes"] == flags(run, "ms-swift")["--num_train_epochs"] == "2"


def test_flash_attention_is_named_as_each_trainer_names_it() -> None:
    run = run_of("sft", attention="flash")
    assert flags(run, "ms-swift")["--attn_impl"] == "flash_attention_2"
    assert flags(run, "openrlhf")["--ds.attn_implementation"] == "flash_attention_2"
