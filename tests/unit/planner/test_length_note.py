"""What a plan says of a max_model_len below the model's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import Head
from qserve.hub import resolve
from qserve.planner import make_plan
from qserve.planner.request import PlanRequest
from qserve.units import GIB


@pytest.mark.parametrize(("kind", "why"), [("lm", "no more fits"), ("score", "--max-model-len sets more")])
def test_the_reason_is_the_true_one(kind: str, why: str) -> None:
    found = resolve("Qwen/Qwen2.5-3B")
    if kind == "score":
        found = replace(found, spec=replace(found.spec, head=Head("score", 1)), tensors=None)
    gpu = "memory=7.6GiB,sm=30" if kind == "lm" else "a100-40gb"
    hardware = Hardware(parse_gpu(gpu), 64 * GIB, 60 * GIB, 8)
    plan = make_plan(found, hardware, PlanRequest(engine="transformers", quant="bf16"))
    assert plan.fits
    assert [note for note in plan.notes if note.startswith("max_model_len is") and note.endswith(why)]
