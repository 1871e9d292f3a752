"""What `qserve up` shows: plain lines in a pipe, commands that can be copied, never a key."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from qserve.detect import detect
from qserve.engines.transformers.kernels.refusals import COSTS, refusal
from qserve.hub import resolve
from qserve.hub.growth import Arrived
from qserve.planner import make_plan
from qserve.planner.request import PlanRequest
from qserve.supervisor.screen import ReadyWorker, Screen, ready_rows
from qserve.supervisor.screen.console import row_lines
from qserve.supervisor.this_machine import event_recorder
from qserve.units import GIB

MEMORY = {"weights_bytes": 4_000_000, "kv_cache_bytes": 2**28, "kv_cache_tokens": 65_536, "resident_bytes": 2**29}


def chat() -> ReadyWorker:
    plan = make_plan(resolve("Qwen/Qwen3-0.6B"), detect(), PlanRequest(engine="transformers", max_model_len=512))
    return ReadyWorker("chat", ("a", "b"), plan, MEMORY, {"loading weights": 1.23, "listening": 0.01})


def rows(*, has_key: bool, is_verbose: bool = False) -> list[tuple[str, str]]:
    return ready_rows("http://127.0.0.1:1", [chat()], has_key=has_key, logs=Path("/logs"), is_verbose=is_verbose)


def lines(rows: list[tuple[str, str]]) -> str:
    return "\n".join(text for _, text in rows)


def test_rows_name_url_model_memory_and_how_to_stop() -> None:
    shown = dict(rows(has_key=False))
    assert shown["API"].startswith("http://127.0.0.1:1/v1")
    assert "a, b" in shown["Model"]
    assert "memory 259.8 MiB (planned" in lines(rows(has_key=False))
    assert "Ctrl-C" in shown["Stop"]
    assert '"model": "a"' in shown["Try"]


def test_with_a_key_the_example_reads_it_from_the_environment() -> None:
    assert "$QSERVE_API_KEY" in dict(rows(has_key=True))["Try"]
    assert "authorization" not in dict(rows(has_key=False))["Try"]


def test_a_pipe_gets_plain_lines_and_none_is_wrapped(monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = io.StringIO()
    screen = Screen(Console(file=out, width=40, highlight=False, soft_wrap=True))
    screen.phase("chat: loading weights [/not markup]")
    screen.ready(rows(has_key=True))
    text = out.getvalue()
    assert "\x1b" not in text
    assert "loading weights [/not markup]" in text
    assert "memory 259.8 MiB (planned" in text, "narrower than the row, and yet one line"
    assert "Try     curl http://127.0.0.1:1/v1/chat/completions \\\n" in text


def test_what_the_start_was_spent_on_leaves_out_what_took_no_time() -> None:
    shown = rows(has_key=False, is_verbose=True)
    assert [text for _, text in shown if text.startswith("start")] == ["start: loading weights 1.23 s"]


def test_a_term_that_an_engine_does_not_tell_is_left_out() -> None:
    memory = {"kv_cache_bytes": 2**28, "kv_cache_tokens": 65_536, "weights_bytes": None}
    for is_verbose, told in ((False, "memory 256 MiB (planned"), (True, "weights              –")):
        worker = replace(chat(), memory=memory)
        shown = ready_rows("http://h", [worker], has_key=False, logs=Path("/logs"), is_verbose=is_verbose)
        assert told in lines(shown)


def test_a_reward_model_has_rows_of_its_own_and_an_example_where_it_is_alone() -> None:
    reward = replace(chat(), role="reward", names=("judge",))
    both = [name for name, _ in ready_rows("http://h", [chat(), reward], has_key=False, logs=Path("/logs"))]
    assert both.index("Model") < both.index("Reward")
    alone = dict(ready_rows("http://h", [reward], has_key=False, logs=Path("/logs")))
    assert "/v1/reward" in alone["Try"]


def test_processes_without_a_model_are_shown_planned_and_measured() -> None:
    processes = [
        {"process": "gateway", "planned_bytes": 74 * 2**20, "resident_bytes": 70 * 2**20},
        {"process": "web UI", "planned_bytes": 160 * 2**20, "resident_bytes": None},
    ]
    shown = dict(ready_rows("http://h", [chat()], processes, has_key=False, logs=Path("/logs"), is_verbose=True))
    assert shown["others"] == "gateway 70 MiB (planned 74 MiB) · web UI not started (planned 160 MiB)"


def test_a_row_without_a_text_is_its_name() -> None:
    assert row_lines("Model", "", 80) == ["Model"]
    assert row_lines("Try", "", 80) == ["Try"]


def test_a_note_cuts_no_path() -> None:
    out = io.StringIO()
    path = "/cache/huggingface/" + "models--Qwen--Qwen3-0.6B/" * 5
    Screen(Console(file=out, width=80, force_terminal=True, color_system=None)).note(
        f"kept in {path} since then\n\nend"
    )
    assert [line.strip() for line in out.getvalue().splitlines()] == ["kept in", path, "since then", "", "end"]


def test_a_long_phase_is_heard_of_again_in_a_pipe(monkeypatch) -> None:
    monkeypatch.setattr(Screen, "still_after_s", 0.02)
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, highlight=False))
    screen.phase("chat: making the KV cache")
    deadline = time.monotonic() + 60
    while out.getvalue().count("still chat: making the KV cache (for ") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    screen.end_progress()
    assert out.getvalue().count("still chat: making the KV cache (for ") >= 2


def test_what_is_waited_for_is_said_and_not_what_is_ready(monkeypatch) -> None:
    monkeypatch.setattr(Screen, "still_after_s", 0.02)
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, highlight=False))
    report = event_recorder(SimpleNamespace(event=lambda *_, **__: None), screen)
    report("chat", "phase", {"name": "loading weights"})
    report("reward", "phase", {"name": "ready"})
    deadline = time.monotonic() + 60
    while "still chat: loading weights (for " not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    screen.end_progress()
    assert "reward: ready" in out.getvalue() and "still reward" not in out.getvalue()
    assert "still chat: loading weights (for " in out.getvalue()


def test_a_restart_after_the_start_ends_with_its_worker(monkeypatch) -> None:
    monkeypatch.setattr(Screen, "still_after_s", 0.01)
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, highlight=False))
    report = event_recorder(SimpleNamespace(event=lambda *_, **__: None), screen)
    report("chat", "phase", {"name": "ready"})
    screen.ready(rows(has_key=False))
    report("chat", "phase", {"name": "loading weights"})
    report("chat", "phase", {"name": "ready"})
    before = out.getvalue()
    time.sleep(0.05)
    assert out.getvalue() == before and "chat: ready" in before.rpartition("Stop")[2]


def test_a_restart_that_failed_for_good_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Screen, "still_after_s", 0.01)
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, highlight=False))
    report = event_recorder(SimpleNamespace(event=lambda *_, **__: None), screen)
    for name in ("chat-0", "chat-1"):
        report(name, "phase", {"name": "ready"})
    screen.ready(rows(has_key=False))
    report("chat-1", "phase", {"name": "loading weights"})
    report("chat-0", "phase", {"name": "importing"})
    report("chat-0", "failed", {"reason": "no memory"})
    deadline = time.monotonic() + 60
    while "still chat-1: loading weights (for " not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    report("chat-1", "failed", {"reason": "no memory"})
    shown = out.getvalue()
    time.sleep(0.05)
    assert out.getvalue() == shown and "still chat-1: loading weights (for " in shown
    assert "chat-0: failed" in shown and shown.endswith("chat-1: failed\n")


def test_a_spinner_tells_how_long_a_phase_has_lasted(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")  # on a dumb terminal nothing spins
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, force_terminal=True))
    screen.phase("[loading]")
    screen.end_progress()
    assert "[loading]" in out.getvalue()


def test_a_reader_that_leaves_ends_the_words_and_not_the_service() -> None:
    """`qserve up … | head -1`."""
    code = (
        "import time\n"
        "from qserve.supervisor.screen import Screen\n"
        "screen = Screen()\n"
        "for n in range(200): screen.note('x' * 1000); time.sleep(0.002)\n"
        "import sys; print('still here', file=sys.stderr)\n"
    )
    command = f'{sys.executable} -c "$CODE" | head -1 > /dev/null'
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env={**os.environ, "CODE": code}, capture_output=True, text=True
    )
    assert ended.returncode == 0 and "still here" in ended.stderr and "the service continues" in ended.stderr


def test_replicas_share_what_holds_for_all_and_have_a_line_each() -> None:
    replicas = [replace(chat(), name=f"chat-{index}") for index in range(3)]
    shown = ready_rows("http://h", replicas, has_key=False, logs=Path("/logs"))
    names = [name for name, _ in shown]
    assert names.count("Model") == 1
    assert [name for name in names if name.startswith("chat")] == ["chat-0", "chat-1", "chat-2"]
    line = dict(shown)["chat-1"]
    assert "memory 259.8 MiB (planned" in line and "KV cache of 65,536 tokens" in line and "in 1.24 s" in line
    assert lines(shown).count("memory") == 3


def refused(kernel: str, reason: str) -> dict[str, object]:
    return {**MEMORY, "kernels": {"path": "dense layers", "refused": [asdict(refusal(kernel, reason))]}}


def test_a_kernel_that_a_card_refused_is_a_warning_of_two_lines_with_the_next_step() -> None:
    assert all(name != "Warn" for name, _ in rows(has_key=False))
    told = "AttributeError: 'dtype' object has no attribute 'type'"
    worker = replace(chat(), memory=refused("rotate_and_store", told))
    shown = ready_rows("http://h", [worker], has_key=False, logs=Path("/logs"))
    assert dict(shown)["Warn"] == (
        f"rotate_and_store refused ({told}): a decoding layer takes 38 launches, not 10; qserve doctor --kernels"
    )
    for kernel in COSTS:
        long = dict(
            ready_rows("http://h", [replace(chat(), memory=refused(kernel, "x" * 200))], has_key=False, logs=Path("/"))
        )["Warn"]
        assert len(long) <= 153 and "xxx…)" in long and COSTS[kernel] in long and long.endswith("doctor --kernels")


def test_replicas_warn_once_of_each_kernel() -> None:
    replicas = [
        replace(chat(), name=f"chat-{index}", memory=refused(kernel, "no"))
        for index, kernel in enumerate(("int8 product", "add_rms_norm", "int8 product"))
    ]
    shown = ready_rows("http://h", replicas, has_key=False, logs=Path("/logs"))
    assert [text.split(" refused")[0] for name, text in shown if name == "Warn"] == ["int8 product", "add_rms_norm"]


def test_progress_is_heard_of_at_once_and_then_now_and_then(monkeypatch) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, highlight=False))
    with screen.working("fetching a model"):
        for number in range(3):
            screen.progress("fetching a model", Arrived(number, 9, ""))
        monkeypatch.setattr(Screen, "progress_after_s", 0.0)
        screen._next_progress_s = 0.0
        screen.progress("fetching a model", Arrived(9, 9, "verifying"))
    told = [line.split("s  ", 1)[1] for line in out.getvalue().splitlines()]
    assert told == ["fetching a model", "fetching a model: 0 B of 9 B", "fetching a model: 9 B of 9 B · verifying"]


def test_a_download_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80, force_terminal=True, color_system=None))
    with screen.working("fetching a model"):
        screen.progress("fetching a model", Arrived(3 * GIB, 12 * GIB, "98 MiB/s · 2 min left"))
        assert screen._status is not None
        screen._status._live.refresh()
    assert "━━━╸━━━" in out.getvalue() and " 25 % · 3.00 GiB of 12.00 GiB · 98 MiB/s · 2 min left" in out.getvalue()
