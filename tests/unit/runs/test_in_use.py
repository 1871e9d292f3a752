"""Which running services use a model: by the plans of their workers, and by their command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.runs import StoredRun, StoredWorker
from qserve.runs.in_use import runs_using
from tests.unit.runs.kept import stored

MAIN, OTHER = "a" * 40, "b" * 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return replace(stored(tmp_path_factory.mktemp("store"), 1).run(), state="running")


def uses(run: StoredRun, model: str = "Qwen/Qwen3-8B", **changed: Any) -> bool:
    return bool(runs_using([replace(run, **changed)], model, {MAIN}))


def worker(model: str, checkpoint: str | None = None, revision: str | None = None) -> StoredWorker:
    plan = {"model": {"id": model, "revision": revision}, "quant": {"checkpoint": checkpoint or model}}
    return StoredWorker("chat", ("any",), plan)


@pytest.mark.parametrize(
    ("one", "is_used"),
    [
        (worker("Qwen/Qwen3-8B", revision=MAIN), True),
        (worker("qwen/qwen3-8b"), True),
        (worker("Qwen/Qwen3-8B", revision=OTHER), False),
        (worker("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-AWQ", MAIN), False),
        (worker("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B", OTHER), True),
        (worker("/cache/models--Qwen--Qwen3-8B/snapshots/1"), True),
        (worker("/cache/models--Qwen--Qwen3-8B-AWQ/snapshots/1"), False),
        (worker("demo"), False),
    ],
)
def test_what_a_worker_loaded_is_used(run: StoredRun, one: StoredWorker, is_used: bool) -> None:
    """Also where the command names the model that a sibling is loaded for."""
    command = ("qserve", "up", "--model", one.plan["model"]["id"])
    assert uses(run, workers=(one,), command=command) == is_used
    assert not uses(run, workers=(one,), state="ended"), "it is over"


@pytest.mark.parametrize(
    ("word", "is_used"),
    [
        ("Qwen/Qwen3-8B", True),
        ("qwen3-8b@v1", True),
        ("--model=qwen3:8b", True),
        ('--speculative-config {"model": "Qwen/Qwen3-8B", "num_speculative_tokens": 3}', True),
        ("/cache/models--Qwen--Qwen3-8B/snapshots/1", True),
        ("Qwen/Qwen3-8B-AWQ", False),
        ("me/Qwen/Qwen3-8B", False),
        ("qwen3-8b-awq", False),
    ],
)
def test_what_the_command_names_beside_is_used(run: StoredRun, word: str, is_used: bool) -> None:
    assert uses(run, workers=(worker("demo"),), command=("qserve", "up", "demo", word)) == is_used
