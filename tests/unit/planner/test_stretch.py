"""--context: a length beyond the positions of a model, by YaRN, and what contradicts it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.versions import TESTED_RELEASE
from qserve.errors import UsageError
from qserve.planner.engine import engine_named, plan_request
from qserve.planner.request import PlanRequest
from qserve.planner.search.refusals import refuse_length
from qserve.planner.search.stretch import overrides_of, warning_of
from tests.unit.core.ropes import LLAMA3, MODEL, YARN
from tests.unit.planner.test_make_plan import plan_of


def checkpoint_of(**changed: Any) -> Checkpoint:
    config = {**MODEL, **changed}
    return Checkpoint("m", None, config, ModelSpec.from_config(config, "m"))


@pytest.mark.parametrize(("context", "factor"), [(256, None), (257, 1.5), (512, 2.0), (900, 4.0), (2048, 8.0)])
def test_as_many_positions_as_are_asked_for(context: int, factor: float | None) -> None:
    keys = overrides_of(checkpoint_of(), PlanRequest(context=context))
    assert keys.get("rope_parameters", {}).get("factor") == factor
    assert keys.get("max_position_embeddings", 256) >= context


def test_what_is_stretched_already_is_stretched_further() -> None:
    stretched = checkpoint_of(rope_scaling=YARN, max_position_embeddings=1024)
    assert overrides_of(stretched, PlanRequest(context=1024)) == {}
    assert overrides_of(stretched, PlanRequest(context=1500))["rope_parameters"]["factor"] == 6.0


# Of the second the newer releases of vLLM derive 256 positions, of the third every release.
REACHING: list[dict[str, Any]] = [{}, {"rope_scaling": YARN}, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}]


@pytest.mark.parametrize("release", ["0.26.0", "0.29.0", "0.30.0", TESTED_RELEASE, None])
@pytest.mark.parametrize("changed", REACHING)
def test_the_engine_has_what_was_asked_for(changed: dict[str, Any], release: str | None) -> None:
    """Whatever a release derives by itself of what config.json has."""
    engine = engine_named("transformers" if release is None else "vllm").planner
    served = engine.as_served(checkpoint_of(**changed), PlanRequest(context=1000, engine_version=release))
    assert served.spec.max_position_embeddings >= 1000


def test_positions_are_told_without_a_warning_where_the_rope_had_them() -> None:
    checkpoint, request = checkpoint_of(rope_scaling=YARN), PlanRequest(context=1000)
    keys = overrides_of(checkpoint, request)
    served = checkpoint.overridden(keys)
    assert keys["max_position_embeddings"] == 1024
    assert warning_of(checkpoint, served, keys) == ()


def test_a_flag_that_does_not_help_is_not_named() -> None:
    """vLLM goes by the smallest key that says a length, which no rope changes."""
    checkpoint, vllm = checkpoint_of(seq_length=128), engine_named("vllm")
    for given, flag in (({"max_model_len": 600}, "--max-model-len"), ({"context": 600}, "--context")):
        request = plan_request(engine="vllm", **given)
        with pytest.raises(UsageError, match=rf"^{flag} 600: m has 128 positions on vllm \S+; give that or less$"):
            refuse_length(vllm, vllm.planner.as_served(checkpoint, request), request)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "m has 256 positions, and YaRN stretches them to 2048 at most"),
        ({"rope_scaling": LLAMA3}, "m has 256 positions, by a rope of type llama3 that YaRN can't stretch"),
    ],
)
def test_what_is_out_of_reach_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"--context 2049: {why}"):
        overrides_of(checkpoint_of(**changed), PlanRequest(context=2049))


def test_a_context_is_the_length_of_a_request_too() -> None:
    assert PlanRequest(context=1000).max_model_len == 1000
    assert PlanRequest(context=1000).words() == ["--context", "1000"]
    shorter = PlanRequest(context=1000, max_model_len=500)
    assert (shorter.max_model_len, shorter.words()) == (500, ["--max-model-len", "500", "--context", "1000"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_model_len": 1001}, "--max-model-len 1001 is more than --context 1000"),
        ({"hf_overrides": "{}"}, "--context 1000 writes the keys of --hf-overrides itself"),
    ],
)
def test_what_contradicts_a_context_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_request(context=1000, **given)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_either_engine_is_told_and_the_cost_is_named(engine: str) -> None:
    plan = plan_of("Qwen/Qwen3-8B", "h100-sxm", engine=engine, context=65536)
    assert (plan.workload.max_model_len, plan.overrides["max_position_embeddings"]) == (65536, 65536)
    assert ("--hf-overrides" in plan.engine_args) == (engine == "vllm")
    (note,) = [note for note in plan.notes if "YaRN" in note]
    assert note.startswith("YaRN stretches 32,768 positions to 65,536, for short texts as well")
    usual = plan_of("Qwen/Qwen3-8B", "h100-sxm", engine=engine, context=32768)
    assert not usual.overrides and "overrides" not in usual.to_json()
    assert not any("YaRN" in note for note in usual.notes)


def test_ways_out_keep_the_flag() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "rtx-4090", context=131072)
    words = [shlex.split(way.command) for way in plan.suggestions]
    assert words and all("--context" in one and "--hf-overrides" not in one for one in words)
    (shorter,) = [one for one, way in zip(words, plan.suggestions, strict=True) if "max_model_len" in way.change]
    assert int(shorter[shorter.index("--context") + 1]) < 131072
    assert "--max-model-len" not in shorter


def test_a_length_that_is_too_long_names_the_flag() -> None:
    with pytest.raises(UsageError, match=r"40960 positions on .*stretch them by YaRN: --context 65536"):
        plan_of("Qwen/Qwen3-8B", "h100-sxm", max_model_len=65536)
    with pytest.raises(UsageError, match=r"give that or less$"):
        plan_of("Qwen/Qwen3-8B", "h100-sxm", max_model_len=1_000_000)


def test_a_changed_request_keeps_to_its_context() -> None:
    with pytest.raises(UsageError, match="is more than --context 1000"):
        replace(PlanRequest(context=1000), max_model_len=2000)
