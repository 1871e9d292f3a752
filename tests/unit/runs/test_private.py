"""What is kept of runs is for their user only."""

from __future__ import annotations

import io
import stat
from pathlib import Path

from qserve.runs.private import make_private, open_private


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_and_one_that_was_open_before(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "runs"
    make_private(folder)
    assert _mode(folder) == 0o700
    folder.chmod(0o755)
    make_private(folder)
    assert _mode(folder) == 0o700


def test_a_file_of_an_older_release_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "chat.log"
    file.touch(0o644)
    io.FileIO(file, "a", opener=open_private).close()
    assert _mode(file) == 0o600
    io.FileIO(tmp_path / "new.log", "a", opener=open_private).close()
    assert _mode(tmp_path / "new.log") == 0o600
