"""What processes hold of the RAM, by the kernel's own count, and what a plan says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.detect import nvml
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.supervisor.memory.held import held_bytes, planned_bytes
from qserve.units import GIB, MIB

HOLDS = "held = bytearray(b'1') * (100 << 20); print('up', flush=True); input()"


def test_a_real_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    held = held_bytes([process.pid], shares_gpu=False)
    process.communicate(b"\n")
    assert 100 * MIB < held < 130 * MIB
    assert held_bytes([process.pid], shares_gpu=False) == 0, "it has ended"


def test_files_are_not_counted_and_the_drivers_account_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = "VmRSS:\t9000 kB\nRssAnon:\t  1000 kB\nRssFile:\t7000 kB\nRssShmem:\t1000 kB\nVmSwap:\t  48 kB\n"
    for pid in ("7", "8"):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(status)
    monkeypatch.setattr(nvml, "bytes_by_process", lambda: {8: 3 * GIB, os.getpid(): GIB})
    assert held_bytes([7, 8], shares_gpu=False, root=tmp_path) == 2 * 2048 * 1024
    assert held_bytes([7, 8], shares_gpu=True, root=tmp_path) == 2 * 2048 * 1024 + 3 * GIB


def test_what_is_planned_of_the_ram() -> None:
    on_cpu = make_plan(resolve("demo"), Hardware((), 16 * GIB, 12 * GIB, 4), PlanRequest())
    (device,) = on_cpu.devices
    assert (
        planned_bytes(on_cpu, shares_gpu=False) == device.total_bytes - device.free_bytes - device.used_by_others_bytes
    )
    card = make_plan(resolve("demo"), Hardware(parse_gpu("rtx-4090"), 16 * GIB, 12 * GIB, 4), PlanRequest())
    assert planned_bytes(card, shares_gpu=False) == 0
    assert planned_bytes(card, shares_gpu=True) > 0
    offloading = replace(card, placement=replace(card.placement, offloaded_bytes={"cpu": 5, "disk": 7}))
    assert planned_bytes(offloading, shares_gpu=False) == 5
