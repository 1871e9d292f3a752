"""A context beyond a model's positions, started as the worker starts: transformers' own angles for the same rope."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.engines.transformers.worker.__main__ import _start_engine
from qserve.hub import resolve
from qserve.planner import make_plan
from qserve.planner.engine import plan_request
from qserve.worker.process import WorkerSpec


def angles_of(model: torch.nn.Module) -> tuple[list[float], float]:
    """Of its rotary positions: frequencies, and what scales their products."""
    (rotary,) = [part for name, part in model.named_modules() if name.endswith("rotary_emb")]
    return rotary.inv_freq.tolist(), rotary.attention_scaling


async def test_the_worker_serves_the_stretched_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = chat_model_path()
    request = plan_request(engine="transformers", dtype="float32", context=4096, max_num_seqs=2)
    plan = make_plan(resolve(str(folder)), replace(detect(), devices=()), request)
    written = Path(shutil.copytree(folder, tmp_path / "written"))
    config = json.loads((folder / "config.json").read_text())
    (written / "config.json").write_text(json.dumps({**config, **plan.overrides}))
    own, stretched = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (folder, written))
    spec = WorkerSpec(folder, ("m",), plan, tmp_path / "chat.sock", "key")
    engine = await _start_engine(WorkerSpec.from_json(spec.to_json()))
    try:
        assert (engine.max_positions, engine.max_model_len) == (4096, 4096)
        assert engine.limits.most_stretched == 8 * 2048
        served = angles_of(engine.loaded.model)
    finally:
        engine.stop()
    assert served == angles_of(stretched) != angles_of(own)
