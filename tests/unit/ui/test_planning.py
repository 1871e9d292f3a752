"""The form's fields as flags, and what the planner says back."""

from __future__ import annotations

import pytest

from qserve.ui.client.planner import PlanQuestion, PlanRefused, ask_planner
from qserve.ui.views.plan import plan_view


def test_only_what_was_asked_for_becomes_a_flag() -> None:
    question = PlanQuestion("m", gpu="rtx-4090:2", quant="auto", max_model_len=4096)
    assert question.plan_flags() == ["--model=m", "--max-model-len=4096", "--gpu=rtx-4090:2"]


def test_the_line_to_copy_is_quoted() -> None:
    assert PlanQuestion("m; rm -rf /", quant="4bit").command() == "qserve plan --model 'm; rm -rf /' --quant 4bit"
    assert PlanQuestion("m", gpu="a100").command() == "qserve plan --model m --gpu a100"


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
    assert sorted(question.plan_flags()) == sorted(PlanQuestion.from_command(question.command()).plan_flags())


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


async def test_what_fits_comes_with_the_command_that_serves_it() -> None:
    from qserve.ui.pages.plan import _planned  # not above: Gradio takes seconds in every process that collects

    page = await _planned("en", "Qwen/Qwen3-0.6B; rm", "none", 1, "auto", "4096", "", "auto", "", "")
    assert "qs-error" in page
    page = await _planned("en", "Qwen/Qwen3-0.6B", "none", 1, "auto", "4096", "", "auto", "", "")
    assert "<h3>Serve it</h3>" in page and "qserve up --model Qwen/Qwen3-0.6B" in page
    page = await _planned("zh-CN", "Qwen/Qwen3-0.6B", "rtx-4090", 1, "auto", "", "", "auto", "", "")
    assert "在有 NVIDIA GeForce RTX 4090 的机器上启动服务" in page


async def test_a_plan_that_is_too_slow_says_so_and_shows_how_fast_others_are() -> None:
    plan = await ask_planner(PlanQuestion("Qwen/Qwen3-32B", gpu="rtx-4090", quant="bf16", engine="transformers"))
    refused = plan_view(plan, "en").partition("What would fit")[2]
    assert "tokens/s" in refused and "too slow to chat" in refused
    *_, offloaded = plan["suggestions"]
    slow = plan_view(await ask_planner(PlanQuestion.from_command(offloaded["command"])), "en")
    assert "qs-slow" in slow and "It fits, but is too slow to chat" in slow and "What would be faster" in slow
