"""A run as TRL's and accelerate's YAML, as JSON and back, and what of it a run that goes on may change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from qserve.errors import UsageError
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.training.configuration.accelerate import accelerate_configuration
from qserve.training.configuration.files import command_without_qserve, write_configuration
from qserve.training.configuration.trl import num_steps, trl_configuration
from qserve.training.data.prepare import PreparedData
from qserve.training.job import DataSource, RewardSource, Schedule, TrainingRun

DATA = PreparedData(1000, 900, 100, 0, ("prompt", "chosen", "rejected"), "0" * 64)


def run_of(method: str, output: Path = Path("/out"), **fields) -> TrainingRun:
    of_run = {name: fields.pop(name) for name in tuple(fields) if name in TrainingRun.__dataclass_fields__}
    return TrainingRun(TrainingRequest(method, **fields), "/model", DataSource("pairs.jsonl"), output, **of_run)


def configured(method: str, **fields) -> dict:
    return trl_configuration(run_of(method, **fields), DATA.num_train, DATA.num_eval)


@pytest.mark.parametrize(
    ("tuning", "precision", "dtype", "bf16"),
    [
        ({}, "amp", "float32", True),
        ({}, "fp32", "float32", False),
        ({}, "pure", "bfloat16", True),
        ({"zero_stage": 2}, "mixed", "bfloat16", True),
        ({"lora_rank": 8}, "amp", "bfloat16", True),
        ({"freeze_base": True}, "amp", "bfloat16", True),
        ({"lora_rank": 8}, "fp32", "float32", False),
    ],
)
def test_weights_are_loaded_as_the_plan_counts_them(tuning, precision, dtype, bf16):
    made = configured("reward", precision=precision, **tuning)
    assert (made["dtype"], made["bf16"]) == (dtype, bf16)


@pytest.mark.parametrize(
    ("quant", "precision", "told"),
    [
        ("fp16", "amp", {"dtype": "float16", "bf16": False, "fp16": True}),
        ("fp16", "fp32", {"dtype": "float16", "bf16": False, "fp16": None}),
        ("bf16", "fp32", {"dtype": "bfloat16", "bf16": False, "fp16": None}),
        ("int8", "amp", {"dtype": "bfloat16", "bf16": True, "load_in_8bit": True, "load_in_4bit": None}),
        ("4bit", "amp", {"dtype": "bfloat16", "load_in_8bit": None, "load_in_4bit": True}),
    ],
)
def test_a_frozen_base_is_loaded_as_it_was_named(quant, precision, told):
    made = configured("lora", precision=precision, quant=quant)
    assert {name: made.get(name) for name in told} == told


def test_a_head_alone_has_no_activations_to_recompute():
    """With them transformers would run a backward pass through all of the frozen base."""
    assert configured("reward", freeze_base=True)["gradient_checkpointing"] is False
    assert configured("reward")["gradient_checkpointing"] is True


def test_adapters_of_a_reward_model_save_its_head():
    made = configured("reward", lora_rank=16)
    assert made["lora_modules_to_save"] == ["score"]
    assert made["lora_task_type"] == "SEQ_CLS"
    assert configured("lora", lora_rank=16)["lora_task_type"] == "CAUSAL_LM"
    assert configured("dpo", load_in_4bit=True)["load_in_4bit"] is True


def test_an_engine_gets_the_fraction_that_was_planned():
    made = configured("grpo", lora_rank=8, vllm=VllmBeside("colocated", 0.35, sleep=True))
    assert made["vllm_gpu_memory_utilization"] == 0.35
    assert (made["vllm_mode"], made["vllm_enable_sleep_mode"]) == ("colocate", True)


def test_steps_follow_from_rows_batch_and_ranks():
    run = run_of("sft", micro_batch=4, gradient_accumulation_steps=2, num_processes=3, schedule=Schedule(epochs=2))
    assert num_steps(run, 2400) == 200
    made = trl_configuration(run, 2400, 10)
    assert (made["eval_steps"], made["save_steps"], made["max_steps"]) == (20, 20, -1)
    assert num_steps(replace(run, schedule=Schedule(max_steps=7)), 2400) == 7


def test_early_stopping_saves_where_it_evaluates():
    made = configured("reward", schedule=Schedule(max_steps=100, eval_steps=20, save_steps=7, patience=2))
    assert made["save_steps"] == made["eval_steps"] == 20
    assert made["metric_for_best_model"] == "eval_accuracy"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "NO"),
        ({"num_processes": 2}, "MULTI_CPU"),
        ({"num_processes": 2, "device": "cuda"}, "MULTI_GPU"),
        ({"num_processes": 4, "device": "cuda", "zero_stage": 3}, "DEEPSPEED"),
        ({"num_processes": 2, "zero_stage": 1}, "DEEPSPEED"),
        ({"num_processes": 2, "fsdp": True}, "FSDP"),
        ({"num_processes": 2, "device": "cuda", "fsdp": True}, "FSDP"),
    ],
)
def test_accelerate_starts_what_was_planned(fields, kind):
    made = accelerate_configuration(run_of("sft", **fields))
    assert made["distributed_type"] == kind
    assert made["num_processes"] == fields.get("num_processes", 1)
    assert ("deepspeed_config" in made) == (kind == "DEEPSPEED")
    assert ("fsdp_config" in made) == (kind == "FSDP")


@pytest.mark.parametrize("fields", [{"zero_stage": 2}, {"fsdp": True}])
def test_processes_on_a_cpu_shard_over_gloo(fields):
    """accelerate looks for DeepSpeed only where no CPU is asked for, and starts what asks for one by MPI."""
    run = run_of("reward", num_processes=2, precision="fp32", **fields)
    assert accelerate_configuration(run)["use_cpu"] is False
    made = trl_configuration(run, DATA.num_train, DATA.num_eval)
    assert (made["ddp_backend"], made["dataloader_pin_memory"]) == ("gloo", False)
    assert made["use_cpu"] is run.request.fsdp


def test_deepspeed_on_a_cpu_has_a_file_of_its_own(tmp_path):
    run = run_of("reward", tmp_path, num_processes=2, precision="fp32", zero_stage=3, offload_optimizer="cpu")
    _, accelerate = write_configuration(run, DATA)
    (file, starts_sharded) = yaml.safe_load(accelerate.read_text())["deepspeed_config"].values()
    made = json.loads(Path(file).read_text())
    assert starts_sharded
    assert made["zero_optimization"]["stage"] == 3
    assert made["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert made["zero_force_ds_cpu_optimizer"] is False  # torch's: DeepSpeed's own would be compiled


def test_the_command_without_qserve_runs_on_a_cpu_too():
    assert command_without_qserve(run_of("sft", num_processes=2)) == (
        "torchrun --standalone --nproc-per-node 2 -m trl.scripts.sft --config /out/run/train.yaml"
    )
    sharded = command_without_qserve(run_of("sft", num_processes=2, zero_stage=1))
    assert sharded.startswith("CUDA_VISIBLE_DEVICES= DS_ACCELERATOR=cpu trl sft --config /out/run/train.yaml")


def test_fsdp_on_a_cpu_has_a_script_of_its_own(tmp_path):
    run = run_of("reward", tmp_path, num_processes=2, precision="fp32", fsdp=True)
    trl, _ = write_configuration(run, DATA)
    script = tmp_path / "run" / "fsdp_on_cpu.py"
    assert f"{script} --config {trl}" in trl.read_text().splitlines()[0]
    assert "from trl.scripts.reward import" in script.read_text()
    on_cards = run_of("reward", tmp_path / "cards", num_processes=2, device="cuda", fsdp=True)
    trl, _ = write_configuration(on_cards, DATA)
    assert trl.read_text().startswith("# Without qserve: trl reward --config")


def test_offload_to_disk_has_a_place():
    run = run_of("sft", device="cuda", zero_stage=3, offload_optimizer="nvme", offload_param="cpu")
    made = accelerate_configuration(run)["deepspeed_config"]
    assert made["offload_optimizer_nvme_path"] == "/out/nvme"
    assert made["offload_param_device"] == "cpu"


def test_the_files_are_yaml_with_the_command_that_runs_them(tmp_path):
    run = run_of("reward", tmp_path, freeze_base=True)
    trl, accelerate = write_configuration(run, DATA)
    text = trl.read_text()
    assert text.startswith(f"# Without qserve: trl reward --config {trl} --accelerate_config {accelerate}\n")
    assert "trl's own script would train all weights" in text.splitlines()[1]
    assert yaml.safe_load(text)["model_name_or_path"] == "/model"


def test_a_run_is_read_as_it_was_written(tmp_path):
    vllm = VllmBeside("separate", num_gpus=2)
    run = run_of("grpo", tmp_path, vllm=vllm, rewards=(RewardSource("http://127.0.0.1:8000", 0.5),), seed=3)
    assert TrainingRun.read(run.write()) == run
    with pytest.raises(UsageError, match="not a job of qserve train"):
        TrainingRun.read(tmp_path / "other.json")


def test_a_run_that_goes_on_may_be_longer_and_no_other():
    run = run_of("reward", schedule=Schedule(max_steps=10))
    assert replace(run, schedule=Schedule(max_steps=20)).changes_since(run) == []
    assert replace(run, seed=1).changes_since(run) == ["seed"]
    assert replace(run, schedule=Schedule(learning_rate=1e-3)).changes_since(run) == ["learning_rate"]
