"""Models that are planned without a network: each of them, by its id alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command as plan_command
from qserve.core import facts
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import Head
from qserve.errors import ModelNotFound
from qserve.hub import resolve
from qserve.hub.bundled import known_ids
from qserve.planner import PlanRequest, make_plan
from qserve.service.reward import as_scorer
from qserve.units import GIB

LARGE = Hardware(parse_gpu("h200:8"), 1024 * GIB, 1024 * GIB, 64, disk_free_bytes=4096 * GIB)
HEADS = {
    "Qwen/Qwen2.5-Math-PRM-7B": Head("score", 2, hidden_layers=1),
    "Qwen/Qwen2.5-Math-7B-PRM800K": Head("score", 2, hidden_layers=1),
    "Qwen/Qwen2.5-Math-PRM-72B": Head("score", 2, hidden_layers=1),
    "Qwen/Qwen2.5-Math-RM-72B": Head("score", 1, hidden_layers=1),
    "Skywork/Skywork-Reward-V2-Qwen3-0.6B": Head("score", 1),
    "Skywork/Skywork-Reward-V2-Qwen3-1.7B": Head("score", 1),
    "Skywork/Skywork-Reward-V2-Qwen3-4B": Head("score", 1),
    "Skywork/Skywork-Reward-V2-Qwen3-8B": Head("score", 1),
    "Qwen/WorldPM-72B": Head("score", 1, hidden_layers=1),
    "Qwen/WorldPM-72B-HelpSteer2": Head("score", 1, hidden_layers=1),
    "Qwen/WorldPM-72B-RLHFLow": Head("score", 1, hidden_layers=1),
    "Qwen/WorldPM-72B-UltraFeedback": Head("score", 1, hidden_layers=1),
    "Qwen/Qwen3Guard-Stream-0.6B": Head("score", 23, guard_size=512),
    "Qwen/Qwen3Guard-Stream-4B": Head("score", 23, guard_size=512),
    "Qwen/Qwen3Guard-Stream-8B": Head("score", 23, guard_size=512),
}


@pytest.fixture(autouse=True)
def _without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("model", known_ids())
def test_each_is_planned_by_its_id(model: str) -> None:
    checkpoint = resolve(model)
    assert (checkpoint.id, checkpoint.folder) == (model, None)
    # What vLLM's engine does not compute: tests/unit/engines/vllm/plan/test_refusals.py.
    engine = "transformers" if "dual_chunk_attention_config" in checkpoint.config else None
    plan = make_plan(checkpoint, LARGE, PlanRequest(engine=engine))
    assert plan.fits, plan.why_not
    assert plan.workload.max_model_len <= checkpoint.spec.max_position_embeddings


def test_reward_models_keep_their_heads() -> None:
    """Of all in the table, those named above and no others have one."""
    heads = {model: head for model in known_ids() if (head := resolve(model).spec.head).kind == "score"}
    assert heads == HEADS
    for model in heads:
        checkpoint = resolve(model)
        assert as_scorer(checkpoint) is checkpoint


def test_heads_that_only_code_of_the_checkpoint_computes_are_planned_and_not_served() -> None:
    base = ["--gpu", "h100", "--reward", "Qwen/Qwen3Guard-Stream-8B", "--json"]
    done = CliRunner().invoke(plan_command, base)
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert plan["fits"] and "next_command" not in plan
    assert any(note.startswith("Planned only: its heads are computed by Python code") for note in plan["notes"])
    other = json.loads(CliRunner().invoke(plan_command, [*base[:3], "Qwen/WorldPM-72B", "--json"]).stdout)
    assert other["next_command"] == "qserve up --reward Qwen/WorldPM-72B"


def test_a_variant_differs_from_its_row() -> None:
    table = facts.load("models")
    for model, row in table["variants"].items():
        config = table["models"].get(row["same_as"]) or table["variants"][row["same_as"]]
        repeated = {key for key, value in row.items() if key != "same_as" and config.get(key) == value}
        assert not repeated, f"{model} repeats {repeated} of {row['same_as']}"


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("Qwen/Qwen2.5-Math-PRM-8B", "Qwen/Qwen2.5-Math-PRM-7B"),
        ("Skywork/Skywork-Reward-V2-Qwen3-3B", "Skywork/Skywork-Reward-V2-Qwen3-"),
        ("Qwen/Qwen3-Embedding-7B", "Qwen/Qwen3-Embedding-"),
        ("Qwen/Qwen3Guard-Stream-3B", "Qwen/Qwen3Guard-Stream-"),
        ("Qwen/Qwen3.8-35B-A3B", "Qwen/Qwen3.5-35B-A3B"),
    ],
)
def test_an_unknown_id_is_told_those_like_it(model: str, meant: str) -> None:
    with pytest.raises(ModelNotFound, match="did you mean") as refused:
        resolve(model)
    assert meant in str(refused.value)
