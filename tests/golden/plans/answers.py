"""Asking: a command line in this process, on a machine that is always the same; and the file of kept answers."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from qserve.cli.main import main
from qserve.core.hardware import CpuFeatures, Hardware
from qserve.planner.calibration import Residual
from qserve.units import GIB

__all__ = ["KEPT", "LEARNED", "Answer", "answer", "is_as_kept", "keep", "kept", "machine"]

LEARNED = "learned: "
"""Before a command line: planned again with what a first plan's own run is said to have measured, 3 % more of each."""

KEPT = Path(__file__).parent / "answers.json.xz"
Answer = dict[str, Any]
"""`status`, `plan` (the JSON, None where there is none) and `error` (what standard error says)."""

_CPU = CpuFeatures("a CPU of 16 cores", frozenset({"avx512_bf16", "avx512_vnni"}))
_MACHINE = Hardware((), 128 * GIB, 112 * GIB, 16, _CPU, disk_free_bytes=500 * GIB)


def answer(line: str) -> Answer:
    """What `qserve <line> --json` answers on the kept machine. Call it inside `machine()`."""
    if not line.startswith(LEARNED):
        return _run(line)
    line = line.removeprefix(LEARNED)
    residuals = _residuals(_run(line)["plan"])

    with mock.patch("qserve.service.knowledge.Knowledge.memory", lambda self: residuals):
        return _run(line)


def _run(line: str) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    arguments = ["qserve", *shlex.split(line), "--json"]
    with mock.patch("sys.argv", arguments), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            status = stop.code
    text = out.getvalue()
    return {"status": status, "plan": _memory_of(text), "error": err.getvalue()}


def _memory_of(text: str) -> dict[str, Any] | None:
    """The plan without its speed, which has golden figures of its own."""
    plan: dict[str, Any] | None = json.loads(text) if text else None
    return None if plan is None else {name: value for name, value in plan.items() if name != "speed"}


def _residuals(plan: dict[str, Any]) -> tuple[Residual, ...]:
    device = plan["devices"][0]
    planned = {
        **{name: device[f"{name}_bytes"] for name in ("weights", "activations", "cuda_graphs", "runtime")},
        "kv_cache_tokens": plan["kv_cache_tokens"],
    }
    held = (plan["engine"], plan["engine_version"], device["name"], plan["on_cpu"], plan["shape"], plan["step"])
    return tuple(
        Residual(*held, term, num, num * 103 // 100, "r1")  # type: ignore[arg-type]
        for term, num in planned.items()
    )


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """No network, no cache, nothing learned, and always the same RAM, CPU and disk."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": folder, "QSERVE_NO_LEARN": "1", "COLUMNS": "100"}
        with mock.patch.dict(os.environ, variables), mock.patch("qserve.detect.detect", lambda **_: replace(_MACHINE)):
            os.environ.pop("QSERVE_CONFIGS", None)
            yield


def is_as_kept(was: Any, now: Any) -> bool:
    """Whether all that was kept is there today, unchanged. A field that is new is no difference."""
    if isinstance(was, dict) and isinstance(now, dict):
        return all(key in now and is_as_kept(value, now[key]) for key, value in was.items())
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(is_as_kept, was, now))
    return bool(was == now)


def kept() -> dict[str, Answer]:
    """The answers of the file, by command line."""
    answers: dict[str, Answer] = json.loads(lzma.decompress(KEPT.read_bytes()))
    for one in answers.values():
        (one["plan"] or {}).pop("speed", None)
    return answers


def keep(answers: dict[str, Answer]) -> None:
    """Writes the file: small, as plans resemble each other."""
    text = json.dumps(answers, indent=0, ensure_ascii=False)
    KEPT.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
