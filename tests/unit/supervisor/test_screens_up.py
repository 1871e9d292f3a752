"""The screens of `qserve up` at 80 columns: no word is cut, and the next step is on each."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qserve.core.hardware import Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.supervisor.sanity.check import Sanity
from qserve.supervisor.screen import ReadyWorker, Screen, ready_rows
from qserve.units import GIB, MIB
from tests.golden.screens import WIDTH, check_screen

URL = "http://127.0.0.1:8000"
LOGS = Path("/home/you/.local/state/qserve/runs/20261122-150343-10311")
PROCESSES = (
    {"process": "gateway", "planned_bytes": 70 * MIB, "resident_bytes": 64 * MIB},
    {"process": "web UI", "planned_bytes": 208 * MIB, "resident_bytes": None},
)
PHASES = {"importing torch and transformers": 6.2, "loading weights": 0.6, "warming up": 0.4, "listening": 0.04}


def plan_of(model: str, gpu: str | None = None, **wanted: Any) -> Plan:
    machine = Hardware(parse_gpu(gpu) if gpu else (), 64 * GIB, 60 * GIB, 8)
    plan = make_plan(resolve(model), machine, plan_request(**wanted))
    return replace(plan, engine_version="1.2.3")  # not that of this machine


def held(plan: Plan, share: float, tokens: int) -> dict[str, Any]:
    """Memory as measured: this share of what was planned."""
    terms = ("weights", "kv_cache", "activations", "cuda_graphs")
    planned = {f"{name}_bytes": sum(getattr(one, f"{name}_bytes") for one in plan.devices) for name in terms}
    measured = {name: round(share * num_bytes) for name, num_bytes in planned.items()}
    return {**measured, "kv_cache_tokens": tokens, "resident_bytes": 512 * MIB}


def demo() -> ReadyWorker:
    plan = plan_of("demo", engine="transformers")
    losses = {"English": 10.37, "Chinese": 11.17, "numbers": 4.53}
    memory = held(plan, 0.9, plan.kv_cache_tokens)
    return ReadyWorker("chat", ("demo",), plan, memory, PHASES, sanity=Sanity(1280, losses), name="chat")


def reward() -> ReadyWorker:
    plan = plan_of("demo", engine="transformers")
    return ReadyWorker("reward", ("demo-reward",), plan, held(plan, 0.1, 0), PHASES, name="reward")


def large(name: str = "chat") -> ReadyWorker:
    """32B in 4 bits on a card that it just fits."""
    plan = plan_of("Qwen/Qwen3-32B", "rtx-4090", engine="vllm", quant="4bit")
    memory = held(plan, 1.02, 8_000)
    return ReadyWorker(
        "chat", ("Qwen/Qwen3-32B",), plan, memory, PHASES, sanity=Sanity(151_936, {"English": 2.5}), name=name
    )


def noise() -> ReadyWorker:
    return replace(large(), sanity=Sanity(151_936, {"English": 12.1, "Chinese": 12.6, "numbers": 11.4}))


SCREENS = {
    "chat": ([demo()], {}),
    "chat-and-reward": ([demo(), reward()], {}),
    "reward": ([reward()], {"has_key": True}),
    "vllm": ([large()], {"has_key": True, "has_ui": False}),
    "replicas": ([large("chat-0"), large("chat-1")], {}),
    "noise": ([noise()], {}),
    "verbose": ([demo(), reward()], {"is_verbose": True}),
}


def rows_of(name: str) -> list[tuple[str, str]]:
    workers, options = SCREENS[name]
    return ready_rows(URL, workers, PROCESSES, **{"has_key": False, "has_ui": True, "logs": LOGS, **options})


@pytest.mark.parametrize("name", SCREENS)
def test_the_summary(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    out = io.StringIO()
    screen = Screen(Console(file=out, width=WIDTH, highlight=False, soft_wrap=True))
    screen.ready(rows_of(name))
    check_screen(f"up-{name}", re.sub(r"after [\d.]+ s", "after 8.0 s", out.getvalue()))


@pytest.mark.parametrize("name", SCREENS)
def test_its_command_is_one_for_a_shell(name: str) -> None:
    command = dict(rows_of(name))["Try"]
    words = shlex.split(command)
    parsed = subprocess.run(["bash", "-n", "-c", command], check=True)
    assert parsed.returncode == 0 and words[0] == "curl" and words[1].startswith(URL)


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_row_is_cut_between_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    screen = Screen(Console(file=out, width=width, highlight=False, soft_wrap=True))
    text = "engine: transformers 1.2.3 (without a card it starts in seconds; --engine vllm takes longer) · more · parts"
    screen.note(text)
    screen.row("Note", text)
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    words = re.findall(r"[^ ·\n]+", out.getvalue())
    assert [word for word in words if word != "Note"] == 2 * re.findall(r"[^ ·]+", text)
