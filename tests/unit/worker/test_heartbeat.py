"""A worker's beats as its supervisor reads them."""

from __future__ import annotations

import stat
from pathlib import Path

from qserve.worker.heartbeat import Heartbeat, Progress, heartbeat_file, read_heartbeat


def test_a_beat_is_seen_by_whoever_reads_the_file(tmp_path: Path) -> None:
    file = heartbeat_file(tmp_path / "chat.sock")
    beats = Heartbeat(file)
    assert read_heartbeat(file) == Progress(0, 0)
    beats.beat(3)
    beats.beat()
    assert read_heartbeat(file) == Progress(2, 3)


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    file = heartbeat_file(tmp_path / "chat.sock")
    Heartbeat(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_worker_without_beats_has_no_progress(tmp_path: Path) -> None:
    file = tmp_path / "chat.beat"
    assert read_heartbeat(file) is None
    file.write_bytes(b"half")
    assert read_heartbeat(file) is None
