"""The plan's word on a rope is the engines': transformers builds and runs it, vLLM's own classes derive its length."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from qserve.core.hardware import Hardware
from qserve.detect import detect
from qserve.engines.vllm.plan.versions import TESTED_RELEASE
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.hub.resolve import resolve
from qserve.hub.served_folder import clean_folder
from qserve.planner import Plan, make_plan
from qserve.planner.engine import engine_named, plan_request
from tests.unit.core.ropes import BROKEN, MODEL, SERVED

CASES = {**SERVED, **{name: changed for name, (changed, _) in BROKEN.items()}}
VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
LONG = 600
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    root = tmp_path_factory.mktemp("ropes")

    def made(name: str) -> Path:
        path = root / re.sub(r"\W+", "-", name)
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps({**MODEL, **CASES[name]}))
        return path

    return made


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return detect()


def planned(engine: str, path: Path, hardware: Hardware, **options: Any) -> int | None:
    """Positions that a plan for the engine goes by; None where it refuses."""
    request = plan_request(engine=engine, **options)
    try:
        checkpoint = resolve(str(path))
        make_plan(checkpoint, hardware, request, with_suggestions=False)
    except (BrokenCheckpoint, UsageError):
        return None
    return engine_named(engine).planner.as_served(checkpoint, request).spec.max_position_embeddings


@torch.no_grad()
def runs(path: Path, length: int) -> bool:
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        model = AutoModelForCausalLM.from_config(config).eval()
        logits = model(torch.arange(length)[None] % MODEL["vocab_size"]).logits
    except Exception:
        return False
    return bool(torch.isfinite(logits).all())


# -2.0 is computed by transformers, into angles that turn the other way.
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"yarn with a negative factor"}))
def test_what_is_planned_for_transformers_runs_and_nothing_else(name: str, folder: Folder, hardware: Hardware) -> None:
    length = planned("transformers", folder(name), hardware)
    assert runs(folder(name), length or 64) == (length is not None)


@pytest.fixture(scope="module")
def on_vllm(folder: Folder, hardware: Hardware) -> dict[str, Any]:
    """By name, what vLLM derives; as `sent` with what the flag that a refusal recommends sends it."""
    cases: dict[str, Any] = {name: {"folder": str(folder(name))} for name in CASES}
    arguments = recommended("vllm", folder("none"), hardware).engine_args
    sent = json.loads(arguments[arguments.index("--hf-overrides") + 1])
    cases["sent"] = {"folder": str(folder("none")), "overrides": sent, "length": LONG}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tiny.planner.ropes_on_vllm"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@VLLM
@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_planned_for_vllm_is_what_it_derives(
    name: str, folder: Folder, hardware: Hardware, on_vllm: dict[str, Any]
) -> None:
    length, theirs = planned("vllm", folder(name), hardware, engine_version=TESTED_RELEASE), on_vllm[name]
    if "longrope" in name and length is not None:  # without --max-model-len vLLM takes the original length
        assert (length, theirs.get("error")) == (256, None)
    elif length is not None or theirs.get("cached"):
        assert length == min(theirs.get("derived", 0), theirs.get("cached", 0)), theirs


def recommended(engine: str, path: Path, hardware: Hardware) -> Plan:
    """By the flag that the refusal of a longer context names."""
    with pytest.raises(UsageError, match="256 positions") as refused:
        make_plan(resolve(str(path)), hardware, plan_request(engine=engine, max_model_len=LONG))
    flag, length = str(refused.value).split()[-2:]
    assert flag == "--context"
    return make_plan(resolve(str(path)), hardware, plan_request(engine=engine, context=int(length)))


def test_the_way_out_of_a_refusal_is_one_on_transformers(
    folder: Folder, hardware: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = recommended("transformers", folder("none"), hardware)
    served = clean_folder(folder("none"), plan.overrides)
    assert plan.workload.max_model_len == LONG
    assert runs(served, LONG)
    assert AutoConfig.from_pretrained(served).rope_parameters["factor"] * MODEL["max_position_embeddings"] >= LONG


@VLLM
def test_the_way_out_of_a_refusal_is_one_on_vllm(on_vllm: dict[str, Any]) -> None:
    sent = on_vllm["sent"]
    assert sent.get("derived") == LONG, sent
    assert sent["cached"] >= LONG
    assert sent["base"]["rope_theta"] == MODEL["rope_theta"]


@pytest.mark.parametrize(("release", "length"), [("0.26.0", 1024), ("0.29.0", 1024), ("0.30.0", 256), ("0.32.0", 256)])
def test_yarn_is_as_long_as_the_release_derives(release: str, length: int, folder: Folder, hardware: Hardware) -> None:
    name = "yarn in rope_scaling"
    assert planned("vllm", folder(name), hardware, engine_version=release) == length
