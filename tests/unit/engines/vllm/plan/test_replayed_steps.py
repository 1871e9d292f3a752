"""Which steps of a prompt are replayed from CUDA graphs follows from the flags that vLLM is given."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.defaults import replayed_tokens
from qserve.hub import resolve
from qserve.planner.engine import engine_named, plan_request
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.estimate import estimate_speed
from qserve.planner.speed.load import Load
from qserve.service.machine import hardware_of

FITS, FITS_NOT = "rtx-4090", "like=rtx-4090,memory=1GiB"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def planned(gpu: str, **options: Any) -> tuple[Plan, ModelSpec]:
    request: PlanRequest = plan_request(quant="bf16", max_model_len=2048, **options)
    checkpoint, hardware = resolve("Qwen/Qwen3-0.6B"), hardware_of(gpu)
    plan = make_plan(checkpoint, hardware, request, with_suggestions=False)
    if not plan.fits:
        plan = engine_named("vllm").planner.unbounded(plan, hardware.devices[0], request)
    return plan, checkpoint.spec


def first_token_ms(gpu: str, tokens: int, **options: Any) -> float:
    plan, spec = planned(gpu, **options)
    return estimate_speed(plan, spec, parse_gpu(gpu)[0], Load(tokens, 2, jitter=0.0)).figures.ttft_ms.mean


@pytest.mark.parametrize("gpu", [FITS, FITS_NOT])
@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({}, 512),
        ({"max_num_seqs": 16}, 32),
        ({"max_num_seqs": 1}, 2),
        ({"max_num_seqs": 16, "max_cudagraph_capture_size": 256}, 256),
        ({"max_cudagraph_capture_size": 64}, 64),
        ({"max_cudagraph_capture_size": 1024}, 1024),
        ({"enforce_eager": True}, 0),
    ],
)
def test_a_prompt_is_replayed_up_to_the_largest_graph(gpu: str, options: dict[str, Any], largest: int) -> None:
    plan, _ = planned(gpu, **options)
    assert plan.fits == (gpu == FITS)
    assert replayed_tokens(plan, parse_gpu(gpu)[0]) == largest
    for tokens in (24, 200, 500):
        slower = first_token_ms(gpu, tokens, **options) - first_token_ms(gpu, tokens)
        assert (slower > 1.0) is (tokens > largest), (tokens, slower)


def test_drafts_take_places_of_a_graph() -> None:
    plan, _ = planned(FITS, max_num_seqs=16)
    drafted = (*plan.engine_args, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}')
    assert replayed_tokens(Plan(**{**vars(plan), "engine_args": drafted}), parse_gpu(FITS)[0]) == 128
