"""What a process that trains does not import."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.training.job import DataSource, TrainingRun
from qserve.training.process.unused_packages import leave_out_unused
from qserve.worker import unused_packages


@pytest.mark.parametrize(
    ("vllm", "left_out"), [(None, {"sklearn", "vllm"}), (VllmBeside("colocated", 0.3), {"sklearn"})]
)
def test_vllm_stays_where_it_writes_the_rollouts(
    vllm: VllmBeside | None, left_out: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: dict[str, object] = {}
    monkeypatch.setattr(unused_packages, "sys", SimpleNamespace(modules=imported))
    request = TrainingRequest("grpo", vllm=vllm)
    leave_out_unused(TrainingRun(request, "/policy", DataSource("prompts.jsonl"), tmp_path).write())
    assert {name for name, module in imported.items() if module is None} == left_out
