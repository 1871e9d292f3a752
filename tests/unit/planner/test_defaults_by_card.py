"""What follows the card where nobody named it: sequences and steps of the transformers engine, what is held back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.engines.vllm.plan.candidates import candidates
from qserve.engines.vllm.plan.terms.safety_margin import SafetyMargin
from qserve.engines.vllm.plan.trial import Trial
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.planner.term import TermKind
from qserve.supervisor.screen import ReadyWorker, ready_rows
from qserve.units import GIB


def plan_of(gpu: str, model: str, **fixed: Any) -> Plan:
    machine = Hardware(parse_gpu(gpu), 512 * GIB, 500 * GIB, 64)
    return make_plan(resolve(model), machine, plan_request(**fixed))


def margin_bytes(plan: Plan) -> int:
    return sum(term.num_bytes for device in plan.devices for term in device.terms if term.name == "held back")


@pytest.mark.parametrize(
    ("gpu", "seqs", "tokens"), [("rtx-4090", 16, 2048), ("l40s", 32, 4096), ("h100-sxm", 64, 4096), ("h200", 64, 4096)]
)
def test_sequences_and_steps_of_the_transformers_engine_follow_the_card(gpu: str, seqs: int, tokens: int) -> None:
    limits = plan_of(gpu, "Qwen/Qwen3-8B", engine="transformers", quant="bf16").workload
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (seqs, tokens)


def test_a_large_card_has_a_larger_pool() -> None:
    """16 sequences and 65,536 tokens were the most on any card."""
    plan = plan_of("h200", "Qwen/Qwen3-8B", engine="transformers", quant="bf16")
    assert plan.kv_cache_tokens >= 4 * 65_536


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_where_logs_held_more_the_lower_band_is_started() -> None:
    plan = plan_of("rtx-5090", "RedHatAI/Qwen3.6-35B-A3B-NVFP4", max_num_seqs=4)
    taken = plan_of("rtx-5090", "RedHatAI/Qwen3.6-35B-A3B-NVFP4", max_num_seqs=4, gpu_memory_utilization=0.92)
    assert 0.4 * GIB < margin_bytes(plan) < 2 * GIB
    assert margin_bytes(taken) == 0
    assert taken.placement.kv_cache_memory_bytes - plan.placement.kv_cache_memory_bytes >= 0.9 * margin_bytes(plan)
    (note,) = [note for note in plan.notes if "safety margin" in note]
    assert re.fullmatch(r"58\d MiB kept as a safety margin", note), note


def test_nothing_is_held_back_where_bands_are_narrow_beside_the_cache() -> None:
    assert margin_bytes(plan_of("rtx-4090", "Qwen/Qwen3-8B")) == 0
    assert margin_bytes(plan_of("h100-sxm:2", "Qwen/Qwen3-32B")) == 0


class _Term(TermKind[Any]):
    """A term of so many bytes, whose band is `width` wide and reaches half of that above."""

    name, column = "a term", "runtime"

    def __init__(self, num_bytes: int, width: int) -> None:
        self._num_bytes, self._width = num_bytes, width

    def num_bytes(self, sizes: Any, stage: int) -> int:
        return self._num_bytes

    def formula(self, sizes: Any, stage: int) -> str:
        return ""

    def source(self, sizes: Any) -> str:
        return ""

    def band(self, sizes: Any, num_bytes: int) -> tuple[int, int]:
        return num_bytes - self._width // 2, num_bytes + self._width // 2


def sized(gpu: str, **fixed: Any) -> Trial:
    machine = Hardware(parse_gpu(gpu), 512 * GIB, 500 * GIB, 64)
    candidate = next(candidates(resolve("Qwen/Qwen3-8B"), machine, plan_request(engine="vllm", **fixed)))
    return Trial(candidate, (10 * GIB,), 16, 2048, 0.9, 4096)


@pytest.mark.parametrize(
    ("gpu", "width_gib", "held_gib"),
    [
        ("memory=24GiB", 2.0, 0.0),  # 21.6 GiB, less 10 of weights and 1 of the term: a cache of 10.6
        ("memory=24GiB", 2.2, 1.1),
        ("memory=13GiB", 0.2, 0.1),
        ("memory=80GiB", 1.9, 0.0),
        ("memory=80GiB", 2.1, 1.05),  # no fifth of the cache, but more than the share leaves free
    ],
)
def test_what_is_wide_beside_the_cache_is_started_at_its_high_end(gpu: str, width_gib: float, held_gib: float) -> None:
    held = SafetyMargin((_Term(GIB, int(width_gib * GIB)),))
    sizes = sized(gpu)
    assert held.num_bytes(sizes, 0) / GIB == pytest.approx(held_gib, abs=0.001)
    assert held.num_bytes(replace(sizes, keeps_margin=False), 0) == 0
    assert held.num_bytes(replace(sized(gpu, gpu_memory_utilization=0.9)), 0) == 0


def test_a_model_that_fits_only_with_the_expected_terms_is_planned_so_and_says_it() -> None:
    tight = plan_of("rtx-4090", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", max_num_seqs=32)
    assert tight.fits and margin_bytes(tight) == 0
    (note,) = [note for note in tight.notes if "safety margin" in note]
    assert note.startswith("No room for a safety margin")
    assert "--max-model-len" in note


def test_the_ready_screen_says_what_is_kept_as_a_margin_and_why() -> None:
    plan = plan_of("rtx-5090", "RedHatAI/Qwen3.6-35B-A3B-NVFP4", max_num_seqs=4)
    summary, reason = [row for _, row in rows_of(plan) if "margin" in row]
    assert re.fullmatch(r"[\d.]+ [GM]iB of each card kept as a safety margin", summary), summary
    assert re.fullmatch(r"safety margin: .*non-torch up to [\d.]+ [GM]iB.*", reason), reason
    assert not [row for _, row in rows_of(plan_of("h100-sxm", "Qwen/Qwen3-8B")) if "margin" in row]


def rows_of(plan: Plan) -> list[tuple[str, str]]:
    return ready_rows("u", [shown(plan)], has_key=False, logs=Path("/logs"), is_verbose=True)


def shown(plan: Plan) -> ReadyWorker:
    return ReadyWorker("chat", ("a",), plan, {"weights_bytes": GIB}, {})
