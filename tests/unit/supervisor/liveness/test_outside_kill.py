"""Whom a SIGKILL came from, by what the kernel counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.supervisor.liveness.outside_kill import MemoryKills

CALM = "some avg10=0.20 avg60=0.10 avg300=0.05 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
SHORT = CALM.replace("avg10=0.20", "avg10=34.10")


@pytest.mark.parametrize(
    ("before", "after", "stalls", "returncode", "is_outside"),
    [
        ("oom_kill 3", "oom_kill 3", CALM, -9, True),
        ("oom_kill 3", "oom_kill 3", None, -9, True),
        ("oom_kill 3", "oom_kill 4", CALM, -9, False),  # the kernel
        ("oom_kill 3", "oom_kill 3", SHORT, -9, False),  # earlyoom, systemd-oomd
        ("oom_kill 3", "oom_kill 3", CALM, -11, False),  # its own fault
        ("oom_kill 3", "oom_kill 3", CALM, 1, False),
        ("nr_dirty 3", "nr_dirty 3", CALM, -9, False),  # a kernel that counts none
        ("oom_kill x", "oom_kill x", CALM, -9, False),
    ],
)
def test_who_killed(
    tmp_path: Path, before: str, after: str, stalls: str | None, returncode: int, is_outside: bool
) -> None:
    vmstat, pressure = tmp_path / "vmstat", tmp_path / "memory"
    vmstat.write_text(f"nr_free_pages 1\n{before}\n")
    kills = MemoryKills.until_now(vmstat)
    vmstat.write_text(f"nr_free_pages 2\n{after}\n")
    if stalls is not None:
        pressure.write_text(stalls)
    assert kills.rule_out(returncode, vmstat, pressure) is is_outside


def test_where_the_kernel_says_nothing_nobody_is_cleared(tmp_path: Path) -> None:
    assert not MemoryKills.until_now(tmp_path / "none").rule_out(-9, tmp_path / "none", tmp_path / "none")
