"""What an evaluation during a run with a fused loss holds, where, and what is offered in its place."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from click.testing import CliRunner

from qserve.cli.plan.train import command
from qserve.core.hardware import parse_gpu
from qserve.planner.training import TrainingJob, TrainingRequest, plan_training, training_suggestions
from qserve.planner.training.training_request import Method
from qserve.units import GIB
from tests.unit.planner.training.conftest import load_spec as spec_for


def test_an_evaluation_has_all_logits_where_only_training_fuses_them() -> None:
    """ms-swift's example of Qwen2.5-3B states 35 GiB (tests/golden/training.csv)."""
    request = TrainingRequest("sft", max_length=8192, precision="pure", fused_loss=True, evaluation=True)
    spec, devices = spec_for("Qwen/Qwen2.5-3B"), parse_gpu("a100-80gb")
    card = plan_training(spec, devices, request).cards[0]
    assert card.phase == "evaluation"
    logits = next(term for term in card.terms if term.name == "logits")
    assert logits.num_bytes == 8192 * 151936 * 10
    assert card.used_bytes / GIB == pytest.approx(35, rel=0.03)
    without = plan_training(spec, devices, replace(request, evaluation=False)).cards[0]
    assert "evaluation" not in without.phases and without.used_bytes < card.used_bytes
    unfused = plan_training(spec, devices, replace(request, fused_loss=False)).cards[0]
    assert "evaluation" not in unfused.phases
    in_fp32 = plan_training(spec, devices, replace(request, precision="fp32")).cards[0]
    logits = next(t for t in (*in_fp32.terms, *in_fp32.other_terms) if t.name == "logits" and "unfused" in t.formula)
    assert logits.num_bytes == 8192 * 151936 * 8


@pytest.mark.parametrize("method", ["reward", "dpo", "ppo", "grpo"])
def test_only_a_loss_over_all_tokens_is_fused_in_training_alone(method: Method) -> None:
    request = TrainingRequest(method, max_length=8192, fused_loss=True, evaluation=True)
    card = plan_training(spec_for("Qwen/Qwen2.5-3B"), parse_gpu("b200"), request).cards[0]
    assert "evaluation" not in card.phases


@pytest.mark.parametrize(
    ("flags", "scores"),
    [
        ("--method sft", False),
        ("--method sft --trl 0.29", False),
        ("--method sft --trl 0.28.1", True),
        ("--method qlora --trl 0.24", True),
        ("--method sft --evaluation", True),
        ("--method lora --trl 0.28 --no-evaluation", False),
        ("--method dpo --trl 0.24", False),
    ],
)
def test_an_evaluation_is_planned_where_that_release_holds_its_logits(flags: str, scores: bool) -> None:
    line = f"Qwen/Qwen2.5-3B --fused-loss --gpu b200 --json {flags}"
    made = json.loads(CliRunner().invoke(command, line.split(), catch_exceptions=False).output)
    assert ("evaluation" in made["devices"][0]["phases"]) is scores
    assert not any("change nothing here" in note for note in made["notes"])


@pytest.mark.parametrize("flags", ["sft --evaluation", "lora --no-evaluation", "dpo --fused-loss --no-evaluation"])
def test_evaluation_says_where_it_changes_nothing(flags: str) -> None:
    line = f"Qwen/Qwen2.5-3B --gpu b200 --json --method {flags}"
    made = json.loads(CliRunner().invoke(command, line.split(), catch_exceptions=False).output)
    assert any("--evaluation and --no-evaluation change nothing here" in note for note in made["notes"])


def test_what_an_evaluation_holds_is_left_out_first() -> None:
    request = TrainingRequest("sft", max_length=32768, precision="pure", fused_loss=True, evaluation=True)
    spec, gpu = spec_for("Qwen/Qwen2.5-3B"), "memory=45GiB"
    job = TrainingJob("Qwen/Qwen2.5-3B", spec, gpu, parse_gpu(gpu), request)
    assert job.plan().cards[0].phase == "evaluation" and not job.plan().fits
    first, second = training_suggestions(job)[:2]
    assert first.change == "the loss in tiles, also of held-out rows"
    assert "--fused-loss" not in first.command and "evaluation" not in first.command
    assert second.change == "no evaluation during the run"
    assert "--fused-loss" in second.command and "--evaluation" not in second.command
    for one in (first, second):
        again = CliRunner().invoke(command, [*shlex.split(one.command)[3:], "--json"])
        assert json.loads(again.output)["fits"], one.command
