"""The form's fields as flags, and what the planner says back."""

from __future__ import annotations

import pytest

from qserve.ui.client.planner import PlanQuestion, PlanRefused, ask_planner


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


def test_a_way_out_fills_the_form() -> None:
    command = (
        "qserve plan --model Q/m --gpu rtx-4090:4 --quant 4bit --max-model-len 32768 --enforce-eager --offload disk"
    )
    question = PlanQuestion.from_command(command)
    assert (question.model, question.gpu, question.quant, question.max_model_len) == (
        "Q/m",
        "rtx-4090:4",
        "4bit",
        32768,
    )
    assert question.other == ("--enforce-eager", "--offload=disk")
    assert sorted(question.plan_flags()) == sorted(PlanQuestion.from_command(question.command(False)).plan_flags())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("disk", "disk is not a flag"),
        ("--config /etc/shadow", "--config"),
        ("--device-map=x", "--device-map"),
        ("--trace /etc/shadow", "--trace"),
        ("--prices=/etc/shadow", "--prices"),
        ("'", "read"),
    ],
)
def test_other_flags_are_those_of_a_plan(text: str, said: str) -> None:
    with pytest.raises(PlanRefused, match=said):
        PlanQuestion.other_flags(text)


async def test_a_way_out_can_be_asked_for() -> None:
    asked = PlanQuestion("Qwen/Qwen3-32B", gpu="rtx-4090", quant="bf16", max_model_len=32768)
    plan = await ask_planner(asked)
    assert plan["fits"] is False and plan["suggestions"]
    for one in plan["suggestions"][:2]:
        assert (await ask_planner(PlanQuestion.from_command(one["command"])))["fits"], one["command"]


def test_a_flag_that_a_field_of_the_form_gives_is_not_given_twice() -> None:
    """The later of the two would win in silence, and the page would show another plan than its fields say."""
    form = PlanQuestion(model="demo", gpu="rtx-4090")
    assert form.with_other("--quant bf16").other == ("--quant=bf16",)
    with pytest.raises(PlanRefused, match="--gpu is given twice"):
        form.with_other("--concurrency 8 --gpu rtx-4090:4")
