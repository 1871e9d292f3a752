"""Which engine `qserve up` takes, and why: over described cards and packages, nothing installed or started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import Hardware
from qserve.detect.packages import Packages
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan, plan_request
from qserve.planner.fits import check_fits
from qserve.service.engine import choose_engine
from qserve.service.machine import hardware_of

CUDA = Packages({"vllm": "0.32.0", "vllm-bnb-plugin": "0.0.3", "torch": "2.13.0", "bitsandbytes": "0.50.2"})
CARD = hardware_of("rtx-4090")
NO_CARD: Hardware = replace(CARD, devices=())


def chosen(model: str, hardware: Hardware = CARD, packages: Packages = CUDA, **asked: object) -> tuple[str, str]:
    found = choose_engine(resolve(model), hardware, plan_request(**asked), packages)  # type: ignore[arg-type]
    if found.obstacle:
        raise UsageError(found.obstacle)
    assert found.request.engine is not None
    return found.request.engine, found.why


def test_a_card_and_vllm_make_vllm() -> None:
    assert chosen("Qwen/Qwen3-8B")[0] == "vllm"


def test_it_is_planned_for_the_release_that_is_installed() -> None:
    older = Packages({**CUDA.versions, "vllm": "0.29.1"})
    found = choose_engine(resolve("Qwen/Qwen3-8B"), CARD, PlanRequest(), older)
    assert found.request.engine_version == "0.29.1"


def test_without_a_card_transformers_starts_faster() -> None:
    engine, reason = chosen("demo", NO_CARD)
    assert engine == "transformers"
    assert "--engine vllm" in reason


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"quant": "bnb-int8"}, "bnb-int8"),  # LLM.int8
        ({"quant": "int8"}, "int8"),  # vLLM has no int8 of its own for dense 16-bit weights
        ({"offload": "cpu"}, "RAM"),
    ],
)
def test_what_vllm_cannot_do_goes_to_transformers_with_the_reason(asked: dict[str, object], word: str) -> None:
    engine, reason = chosen("Qwen/Qwen3-8B", **asked)
    assert engine == "transformers"
    assert word in reason


def test_without_vllm_or_with_a_release_that_is_not_driven() -> None:
    assert "not installed" in chosen("Qwen/Qwen3-8B", packages=Packages({"torch": "2.13.0"}))[1]
    assert "0.12" in chosen("Qwen/Qwen3-8B", packages=Packages({**CUDA.versions, "vllm": "0.12.0"}))[1]


def test_a_missing_plugin_is_a_reason_with_its_command() -> None:
    bare = Packages({name: version for name, version in CUDA.versions.items() if name != "vllm-bnb-plugin"})
    engine, reason = chosen("Qwen/Qwen3-8B", packages=bare, quant="bnb-nf4")
    assert engine == "transformers"
    assert "pip install" in reason


def test_engine_vllm_is_taken_at_its_word_or_refused() -> None:
    assert chosen("Qwen/Qwen3-8B", engine="vllm") == ("vllm", "--engine vllm")
    with pytest.raises(UsageError, match="--engine vllm"):
        chosen("Qwen/Qwen3-8B", engine="vllm", offload="cpu")
    with pytest.raises(UsageError, match="int8"):
        chosen("Qwen/Qwen3-8B", engine="vllm", quant="int8")


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(UsageError, match="40960"):
        chosen("Qwen/Qwen3-8B", max_model_len=100_000)


def test_what_does_not_fit_names_ways_out() -> None:
    plan = make_plan(resolve("Qwen/Qwen3-32B"), CARD, PlanRequest(quant="bf16"))
    with pytest.raises(DoesNotFit, match="What would fit"):
        check_fits(plan)
