"""The form's fields as flags, and what the planner says back."""

from __future__ import annotations

import pytest

from qserve.ui.planning import PlanQuestion, PlanRefused, ask_planner


def test_only_what_was_asked_for_becomes_a_flag() -> None:
    question = PlanQuestion("m", gpu="rtx-4090:2", quant="auto", max_model_len=4096)
    assert question.plan_flags() == ["--model=m", "--max-model-len=4096", "--gpu=rtx-4090:2"]


def test_the_line_to_copy_is_quoted_and_starts_what_fits_here() -> None:
    assert PlanQuestion("m; rm -rf /", quant="4bit").command(True) == "qserve up --model 'm; rm -rf /' --quant 4bit"
    assert PlanQuestion("m", gpu="a100").command(True) == "qserve plan --model m --gpu a100"
    assert PlanQuestion("m").command(False) == "qserve plan --model m"


async def test_a_value_is_never_taken_for_a_flag() -> None:
    with pytest.raises(PlanRefused, match="--help"):
        await ask_planner(PlanQuestion("--help"))


async def test_what_does_not_fit_is_a_plan_too() -> None:
    plan = await ask_planner(PlanQuestion("Qwen/Qwen3-32B", gpu="rtx-4090", quant="bf16"))
    assert plan["fits"] is False and plan["suggestions"]
