"""The engine's share of a card, computed by the plan: of every card that the tables know."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.plan.train import command
from qserve.cli.train.flags import TrainFlags
from qserve.cli.train.machine import with_engine
from qserve.core.facts import load
from qserve.core.hardware import Device, Hardware, parse_gpu
from qserve.errors import UsageError
from qserve.planner.training import TrainingJob, TrainingPlan, TrainingRequest, VllmBeside, plan_training
from qserve.planner.training.card_memory import engine_need_bytes
from qserve.training.configuration.trl import beyond_trl, trl_configuration
from qserve.training.job import DataSource, TrainingRun
from qserve.units import GIB

COLOCATED = VllmBeside("colocated")
CARDS = sorted(load("gpus")["gpus"])
LORA = TrainingRequest(
    "grpo",
    micro_batch=8,
    max_length=2048,
    gradient_accumulation_steps=4,
    lora_rank=16,
    precision="amp",
    beta=0.04,
    tiled_loss=True,
    vllm=COLOCATED,
)


def planned(spec, gpu: str, request: TrainingRequest = LORA) -> TrainingPlan:
    return plan_training(spec, parse_gpu(gpu), request)


def test_every_card_gets_a_fraction_that_its_plan_agrees_with(spec_of) -> None:
    """Where the run fits, the engine has what it needs to start and the trainer what is left; nothing lies idle while
    rollouts wait.
    """
    spec, fitting = spec_of("Qwen/Qwen2.5-1.5B"), 0
    for card in CARDS:
        plan = planned(spec, card)
        vllm = plan.request.vllm
        assert vllm is not None and vllm.gpu_memory_utilization is not None
        assert 0 < vllm.gpu_memory_utilization <= 0.95, card
        total = plan.cards[0].total_bytes
        claim = round(vllm.gpu_memory_utilization * total)
        if not plan.fits:
            continue
        fitting += 1
        assert claim >= engine_need_bytes(spec, vllm, LORA.max_length), card
        assert max(plan.cards[0].phases.values()) <= total, card
        (told,) = [note for note in plan.notes if "computed" in note]
        found = re.search(r"cache of (\d+) of 32 rollouts of 2048 tokens", told)
        assert found is not None and 1 <= int(found[1]) <= 32, told
        if int(found[1]) < 32:  # what is left is less than a rollout and a hundredth of the card
            used = plan.cards[0].phases["rollout"] if vllm.sleep else max(plan.cards[0].phases.values())
            assert total - used < 0.011 * total, card
    assert fitting > len(CARDS) // 2


def test_a_large_card_holds_all_rollouts_and_no_more(spec_of) -> None:
    vllm = planned(spec_of("Qwen/Qwen2.5-1.5B"), "h100-80gb").request.vllm
    assert vllm is not None and not vllm.sleep
    assert vllm.gpu_memory_utilization is not None and vllm.gpu_memory_utilization < 0.2
    more = planned(spec_of("Qwen/Qwen2.5-1.5B"), "h100-80gb", replace(LORA, micro_batch=32)).request.vllm
    assert more is not None and (more.gpu_memory_utilization or 0) > vllm.gpu_memory_utilization


def test_it_sleeps_where_trainer_and_cache_do_not_fit_at_once(spec_of) -> None:
    """7B with LoRA in 16 bit beside an engine of its own: 15 GB of weights twice on a card of 40 GB."""
    plan = planned(spec_of("Qwen/Qwen2-7B"), "a100-40gb", replace(LORA, max_length=4096))
    assert plan.fits and plan.request.vllm is not None and plan.request.vllm.sleep
    assert any("sleeps while the trainer works" in note for note in plan.notes)


def test_where_nothing_fits_the_plan_says_what_is_missing(spec_of) -> None:
    for card, missing in (("rtx-3060", "needs at least 16.29 GiB for its weights"), ("rtx-3090", "more than it has")):
        plan = planned(spec_of("Qwen/Qwen2-7B"), card)
        assert not plan.fits and missing in (plan.why_not or ""), card


def test_a_fraction_that_was_named_stays(spec_of) -> None:
    named = replace(LORA, vllm=VllmBeside("colocated", 0.3))
    assert planned(spec_of("Qwen/Qwen2.5-1.5B"), "h100-80gb", named).request == named
    own = planned(spec_of("Qwen/Qwen2.5-1.5B"), "h100-80gb:2", replace(LORA, vllm=VllmBeside("separate")))
    assert own.request.vllm == VllmBeside("separate", 0.9)


def test_two_cards_may_share_an_engine(spec_of) -> None:
    engines = [VllmBeside("colocated", tensor_parallel_size=size) for size in (1, 2)]
    one, two = (planned(spec_of("Qwen/Qwen2-7B"), "h100-80gb:2", replace(LORA, vllm=engine)) for engine in engines)
    assert one.fits and two.fits
    first, second = ((plan.request.vllm or COLOCATED).gpu_memory_utilization for plan in (one, two))
    assert second is not None and first is not None and second < first, "half of the weights on each"


def test_the_command_says_no_fraction_that_nobody_named() -> None:
    words = "--method grpo --model Qwen/Qwen2.5-1.5B --lora-rank 16 --gpu h100-80gb --vllm colocated --json"
    told = json.loads(CliRunner().invoke(command, words.split()).stdout)
    assert told["training"]["vllm"]["gpu_memory_utilization"] < 0.3
    devices = parse_gpu("h100-80gb")
    spec_job = TrainingJob("m", None, "h100-80gb", devices, LORA)  # type: ignore[arg-type]
    assert "--gpu-memory-utilization" not in spec_job.command() and "--vllm colocated" in spec_job.command()
    assert shlex.split(spec_job.command())[:3] == ["qserve", "plan", "train"]


def run_of(request: TrainingRequest, **fields) -> TrainingRun:
    return TrainingRun(request, "/model", DataSource("d.jsonl"), Path("/out"), device="cuda", **fields)


def test_the_configuration_has_what_was_planned(spec_of) -> None:
    plan = planned(spec_of("Qwen/Qwen2-7B"), "a100-40gb", replace(LORA, max_length=4096))
    made = trl_configuration(run_of(plan.request), 100, 0)
    vllm = plan.request.vllm
    assert vllm is not None
    assert {name: value for name, value in made.items() if "vllm" in name} == {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": vllm.gpu_memory_utilization,
        "vllm_tensor_parallel_size": 1,
        "vllm_enable_sleep_mode": True,
        "vllm_max_model_length": 4096,
    }


def test_an_engine_on_cards_of_its_own_is_started_by_a_command_that_stands_beside() -> None:
    run = run_of(replace(LORA, vllm=VllmBeside("separate", 0.9, 2, 2)), num_processes=2)
    made = trl_configuration(run, 100, 0)
    assert {name: value for name, value in made.items() if "vllm" in name} == {"use_vllm": True, "vllm_mode": "server"}
    (note,) = beyond_trl(run)
    assert "CUDA_VISIBLE_DEVICES=2,3 trl vllm-serve --model /model --tensor-parallel-size 2" in note
    assert "--gpu-memory-utilization 0.9 --max-model-len 2048" in note


CARD = Hardware((Device("a card", "cuda", 80 * GIB),), 64 * GIB, 60 * GIB, 8)
CPU = Hardware((), 64 * GIB, 60 * GIB, 8)


@pytest.mark.parametrize(
    ("request_", "asked", "hardware", "installed", "expected"),
    [
        (replace(LORA, vllm=None), None, CARD, True, COLOCATED),
        (replace(LORA, vllm=None), None, CARD, False, None),
        (replace(LORA, vllm=None), None, CPU, True, None),
        (replace(LORA, vllm=None), "none", CARD, True, None),
        (replace(LORA, vllm=None, quant="int8"), None, CARD, True, None),
        (TrainingRequest("sft"), None, CARD, True, None),
        (LORA, "colocated", CARD, True, COLOCATED),
    ],
)
def test_rollouts_come_from_vllm_where_there_is_a_card(
    request_, asked, hardware, installed, expected, monkeypatch
) -> None:
    monkeypatch.setattr("qserve.cli.train.machine._has_vllm", lambda: installed)
    assert with_engine(request_, asked, hardware).vllm == expected


def test_an_engine_without_a_card_or_on_an_int8_base_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("qserve.cli.train.machine._has_vllm", lambda: True)
    with pytest.raises(UsageError, match="--vllm colocated needs a card, and this run has none"):
        with_engine(LORA, "colocated", CPU)
    with pytest.raises(UsageError, match="vLLM can't take a base in int8"):
        with_engine(replace(LORA, quant="int8"), "colocated", CARD)


def test_going_on_may_count_another_fraction(tmp_path: Path) -> None:
    """What others hold on the card may have changed meanwhile."""
    first, second = (run_of(replace(LORA, vllm=VllmBeside("colocated", share))) for share in (0.3, 0.4))
    assert second.changes_since(first) == []
    assert run_of(replace(LORA, vllm=None)).changes_since(first) == ["request"]


def test_a_step_holds_whole_groups_of_rollouts() -> None:
    """TRL refuses others, minutes later."""
    run = run_of(replace(LORA, micro_batch=3, gradient_accumulation_steps=1, vllm=None), num_processes=2)
    with pytest.raises(UsageError, match=r"a step has 6; .*--gradient-accumulation-steps 4,"):
        TrainFlags.check_rollouts(run)
    TrainFlags.check_rollouts(replace(run, num_generations=3))
