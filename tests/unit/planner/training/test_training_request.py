"""What a training request refuses, and what its command line repeats."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.plan.train import command
from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner.training import TrainingRequest, VllmBeside, plan_training
from qserve.planner.training.command import command_line, with_count
from qserve.units import GIB


def spec_for(model_id: str) -> ModelSpec:
    config = bundled_config(model_id)
    assert config is not None
    return ModelSpec.from_config(config, model_id)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "kto"}, "--method is 'kto'; it takes sft"),
        ({"method": "sft", "micro_batch": 0}, "--micro-batch is 0"),
        ({"method": "sft", "zero_stage": 4}, "--zero is 4"),
        ({"method": "sft", "optimizer": "adam"}, "adamw-8bit"),
        ({"method": "sft", "offload_param": "cpu"}, "add --zero 3"),
        ({"method": "sft", "offload_optimizer": "cpu"}, "add --zero 1, 2 or 3"),
        ({"method": "sft", "freeze_base": True}, "reward head only"),
        ({"method": "sft", "quant": "int8"}, "add --lora-rank 16"),
        ({"method": "reward", "freeze_base": True, "quant": "int8"}, "add --lora-rank 16"),
        ({"method": "qlora", "quant": "int8"}, "are nf4"),
        ({"method": "lora", "quant": "awq"}, "--quant is 'awq'; it takes bf16, fp16, int8, 4bit"),
        ({"method": "sft", "vllm": VllmBeside("colocated")}, "use ppo or grpo"),
        ({"method": "grpo", "vllm": VllmBeside("colocated", 1.5)}, "share of the card"),
        ({"method": "grpo", "max_length": 512, "completion_length": 1024}, "from 1 to --max-length 512"),
    ],
)
def test_a_contradiction_is_refused_with_the_way_out(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TrainingRequest(**fields)


@pytest.mark.parametrize(
    ("request_", "extra"),
    [
        (TrainingRequest("sft"), ""),
        (TrainingRequest("lora", micro_batch=4, gradient_checkpointing=False), "--no-gradient-checkpointing"),
        (TrainingRequest("grpo", vllm=VllmBeside("separate", 0.8, 2, 2)), "--vllm-gpus 2"),
        (TrainingRequest("reward", freeze_base=True, zero_stage=3, offload_param="nvme"), "--offload-param nvme"),
        (TrainingRequest("qlora", zero_stage=3, fused_loss=True), "--fused-loss"),
        (TrainingRequest("reward", lora_rank=8, quant="int8"), "--quant int8"),
    ],
)
def test_the_command_line_gives_the_request_back(request_: TrainingRequest, extra: str) -> None:
    line = command_line("Qwen/Qwen3-8B", "h100:8", request_)
    assert extra in line
    words = shlex.split(line)
    assert words[:3] == ["qserve", "plan", "train"]
    result = CliRunner().invoke(command, [*words[3:], "--json"])
    training = json.loads(result.stdout)["training"]
    assert (
        TrainingRequest(
            **{
                name: (VllmBeside(**value) if name == "vllm" and value else value)
                for name, value in training.items()
                if name not in ("tuning", "tokens")
            }
        )
        == request_
    )


def test_cards_are_counted_as_they_were_written() -> None:
    assert with_count("rtx-4090", 2) == "rtx-4090:2"
    assert with_count("rtx-4090:4", 8) == "rtx-4090:8"
    assert with_count("memory=24GiB,count=2,sm=82", 4) == "memory=24GiB,sm=82,count=4"
    assert with_count("count=2,memory=24GiB", 4) == "memory=24GiB,count=4"


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, words)
    return result.exit_code, result.stdout


def test_the_exit_status_says_whether_it_fits() -> None:
    base = ("--method", "lora", "--model", "Qwen/Qwen3-8B", "--gpu")
    assert _run(*base, "rtx-4090")[0] == 0
    status, text = _run(*base, "rtx-3060")
    assert status == 3
    assert "does not fit" in text
    assert text.count("qserve plan train --method") >= 3


def test_explain_prints_formula_and_source() -> None:
    _, text = _run("--method", "reward", "--model", "Qwen/Qwen2.5-3B", "--gpu", "h100:4", "--zero", "3", "--explain")
    for said in ("3.09 B trained × (4 B fp32 master", "arxiv.org/abs/1910.02054", "largest optimizer", "16 · hid"):
        assert said in " ".join(text.split())


def test_explain_answers_the_traps_with_the_run_s_own_numbers() -> None:
    words = "--method grpo --model Qwen/Qwen2-7B --lora-rank 8 --gpu rtx-3090:4 --zero 2 --vllm colocated --explain"
    _, text = _run(*words.split())
    for said in (
        "not half of",
        "bf16 avoids overflows; it saves no memory",
        "from_pretrained takes no such option",
        "3584 of 7.62 billion",
        "8 bytes a parameter; mixed precision adds 4",
        "empty_cache() lowers what the driver reports",
        "rank 8 is 20.2 M parameters",
        "takes it from a trainer",
        "share of the whole card, not of what is free",
    ):
        assert said in " ".join(text.split())


def test_offloading_more_than_this_machine_has_is_no_plan() -> None:
    spec = spec_for("Qwen/Qwen3-32B")
    request = TrainingRequest("sft", zero_stage=3, offload_optimizer="cpu", offload_param="cpu")
    devices = parse_gpu("h100:2")
    assert plan_training(spec, devices, request).fits  # of described cards' host nothing is known
    plan = plan_training(spec, devices, request, ram_bytes=64 * GIB)
    assert not plan.fits
    assert plan.why_not is not None
    assert "64.00 GiB of RAM" in plan.why_not
    nvme = replace(request, offload_optimizer="nvme", offload_param="nvme")
    assert plan_training(spec, devices, nvme, ram_bytes=64 * GIB).fits


def test_json_is_one_object_with_the_account() -> None:
    status, text = _run(
        "--method", "grpo", "--model", "Qwen/Qwen2-7B", "--gpu", "rtx-3090:4", "--vllm", "colocated", "--json"
    )
    plan = json.loads(text)
    assert status == 3
    assert {"model", "training", "devices", "fits", "why_not", "short_bytes", "dominant", "suggestions"} <= set(plan)
    card = plan["devices"][0]
    assert sum(term["num_bytes"] for term in card["terms"]) + card["free_bytes"] == card["total_bytes"]


def test_experts_stay_in_16_bit_under_qlora() -> None:
    """3.02 of 30.53 billion parameters are no experts: a card that serves them all in 4 bit does not train them."""
    status, text = _run("--method", "qlora", "--model", "Qwen/Qwen3-30B-A3B", "--gpu", "rtx-4090", "--json")
    plan = json.loads(text)
    weights = next(term["num_bytes"] for term in plan["devices"][0]["terms"] if term["name"].startswith("weights"))
    assert status == 3 and 54 * GIB < weights < 57 * GIB
    assert any("bitsandbytes#1849" in note for note in plan["notes"])


def test_packed_weights_are_not_trained_but_carry_adapters() -> None:
    spec, cards = spec_for("Qwen/Qwen3-8B-AWQ"), parse_gpu("h100")
    with pytest.raises(UsageError, match="stored as awq, and packed weights can't be trained"):
        plan_training(spec, cards, TrainingRequest("sft"))
    assert _run("--method", "lora", "--model", "Qwen/Qwen3-8B-AWQ", "--gpu", "h100")[0] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--method qlora", "bitsandbytes packs 16-bit weights alone"),
        ("--method lora --quant int8", "bitsandbytes packs 16-bit weights alone"),
        ("--method dpo --lora-rank 8 --load-in-4bit", "bitsandbytes packs 16-bit weights alone"),
        ("--method sft", "packed weights can't be trained"),
        ("--method lora", ""),
        ("--method lora --quant bf16", ""),
        ("--method reward --freeze-base", ""),
    ],
)
def test_a_base_that_is_packed_in_an_unknown_way_is_not_packed_again(
    monkeypatch: pytest.MonkeyPatch, flags: str, said: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = CliRunner().invoke(command, shlex.split(f"--model someone/Qwen3-8B-MXFP4 --gpu h100 {flags}"))
    if said:
        assert f"someone/Qwen3-8B-MXFP4 is packed by its name (MXFP4), and {said}" in str(done.exception)
    else:
        assert done.exit_code == 0, done.output


def test_a_base_that_is_packed_in_an_unknown_way_has_no_qlora_as_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def changes(model: str) -> list[str]:
        status, text = _run("--method", "lora", "--model", model, "--gpu", "rtx-4070", "--json")
        assert status == 3
        return [one["change"] for one in json.loads(text)["suggestions"]]

    assert "QLoRA of rank 16" in changes("someone/Qwen3-8B-abliterated")
    assert changes("someone/Qwen3-8B-MXFP4")
    assert not any("QLoRA" in one for one in changes("someone/Qwen3-8B-MXFP4"))


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "5.66 GiB (every linear layer packed) to 7.74 GiB"),
        ("unsloth/Qwen3-8B-bnb-4bit", "taken for Qwen/Qwen3-8B with every linear layer packed"),
        ("unsloth/Qwen3.6-27B-NVFP4", "its revisions have weights of 21.02 GiB"),
    ],
)
def test_a_base_that_is_a_guess_says_so(monkeypatch: pytest.MonkeyPatch, model: str, weights: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, text = _run("--method", "lora", "--model", model, "--gpu", "h100", "--json")
    assert status == 0
    assert weights in json.loads(text)["notes"][0]


def test_what_no_trainer_was_read_for_is_refused() -> None:
    flash, cards = spec_for("Qwen/Qwen3.8-Flash-Next"), parse_gpu("h200:8")
    with pytest.raises(UsageError, match="index of sparse attention, tables of n-grams, residual streams, whose train"):
        plan_training(flash, cards, TrainingRequest("lora"))
    with pytest.raises(UsageError, match="whose training is not planned"):
        plan_training(spec_for("Qwen/Qwen3-0.6B"), cards, TrainingRequest("ppo"), reward=flash)


def test_an_adapter_has_a_rank_of_one_or_more() -> None:
    """0 was taken for the default of 8."""
    done = CliRunner().invoke(command, shlex.split("--model Qwen/Qwen3-4B --method lora --lora-rank 0 --gpu rtx-4090"))
    assert done.exit_code == 2
    assert "'--lora-rank': 0 is not in the range" in done.output


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "sft"}, "and this run quantizes none; add --quant 4bit"),
        ({"method": "lora", "quant": "bf16"}, "bf16 is not"),
        ({"method": "qlora", "zero_stage": 2}, "--kbit-fp32 with --zero 2"),
        ({"method": "qlora", "kbit_fp32": "some"}, "it takes none, norms, all"),
    ],
)
def test_only_a_base_of_bitsandbytes_is_left_in_fp32(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TrainingRequest(**{"kbit_fp32": "all", **fields})


def test_a_16_bit_model_has_nothing_that_was_left_in_fp32() -> None:
    request = TrainingRequest("lora", kbit_fp32="norms")
    with pytest.raises(UsageError, match=r"is for a base of bitsandbytes, and Qwen/Qwen2\.5-7B is 16 bit"):
        plan_training(spec_for("Qwen/Qwen2.5-7B"), parse_gpu("a100-80gb"), request)


def _planned(*flags: str) -> dict[str, Any]:
    line = ["Qwen/Qwen2.5-7B", "--method", "qlora", "--gpu", "a100-80gb", "--json", *flags]
    return json.loads(CliRunner().invoke(command, line, catch_exceptions=False).output)


def test_a_release_of_trl_has_its_own_defaults() -> None:
    now, then = _planned(), _planned("--trl", "0.24.0")
    assert now["training"]["kbit_fp32"] == "none" and now["training"]["tiled_loss"]
    assert then["training"]["kbit_fp32"] == "norms" and not then["training"]["tiled_loss"]
    assert then["devices"][0]["used_bytes"] > now["devices"][0]["used_bytes"]
    assert now["trl"] == "1.16" and then["trl"] == "0.24.0"
    assert "`qserve train` runs TRL 1.16: --trl 0.24.0 plans another trainer's run" in then["notes"]
    assert _planned("--trl", "0.24.0", "--kbit-fp32", "none")["training"]["kbit_fp32"] == "none"
    refused = CliRunner().invoke(command, ["Qwen/Qwen2.5-7B", "--method", "qlora", "--trl", "newest"])
    assert "'newest' is not a release; write for example 1.16 or 0.24.0" in refused.output


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--method sft --trl 1.6", "--trl 1.6"),
        ("--method sft --no-tiled-loss", "--no-tiled-loss"),
        ("--method sft --trl 1.6 --no-tiled-loss", "--no-tiled-loss"),
        ("--method sft --trl 1.7", ""),
        ("--method reward --trl 0.24", ""),
        ("--method qlora --trl 1.16 --kbit-fp32 norms", "--kbit-fp32 norms"),
        ("--method qlora --trl 0.24 --kbit-fp32 norms", "--trl 0.24"),
        ("--method sft --trl 0.24 --fused-loss", "--fused-loss"),
        ("--method sft --trl 0.24 --tiled-loss", ""),
    ],
)
def test_why_no_run_names_a_flag_that_was_given(flags: str, named: str) -> None:
    line = f"Qwen/Qwen2.5-3B --gpu b200 --json {flags}"
    made = json.loads(CliRunner().invoke(command, line.split(), catch_exceptions=False).stdout)
    why = [note for note in made["notes"] if "another trainer's run" in note]
    assert ("next_command" in made) is (not named)
    assert len(why) == bool(named) and all(f"{named} plans" in note for note in why)
    assert all(flag in flags for note in why for flag in re.findall(r"--[a-z0-9-]+", note))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--method qlora --trl 0.24", True),
        ("--method dpo --lora-rank 8 --trl 0.26.2", True),
        ("--method lora --trl 0.27", False),
        ("--method lora", False),
        ("--method sft --trl 0.24", False),
    ],
)
def test_experts_of_transformers_4_are_told_of(flags: str, said: bool) -> None:
    line = f"Qwen/Qwen3-30B-A3B --gpu b300 --json {flags}"
    made = json.loads(CliRunner().invoke(command, line.split(), catch_exceptions=False).stdout)
    assert any("ran on transformers 4, which has the matrices of each expert apart" in n for n in made["notes"]) is said
