"""The private folder: nobody else's, gone afterwards, and never too deep for a socket."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from qserve.supervisor.private import PrivateFolder, private_folder
from qserve.supervisor.takeover.messages import SOCKET


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_closed_to_others_and_goes_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="t") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        with private_folder() as folder:
            assert folder.path.parent == Path(short)
            assert folder.path.stat().st_mode & 0o077 == 0
        assert not folder.path.exists()


def test_one_that_was_given_away_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="t") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        with private_folder() as folder:
            taken = PrivateFolder(folder.path, os.dup(folder.lock))
            folder.is_given = True
        os.utime(taken.path / "owner.lock", (time.time() - 60, time.time() - 60))
        with taken.kept(), private_folder():
            assert taken.path.exists(), "its lock went with the one that gave it away"
        assert not taken.path.exists()


def test_a_socket_fits_however_deep_the_temporary_folder_is(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = temporary / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with private_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder.path / "reward.sock"))


def test_every_socket_has_a_place_however_long_the_temporary_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in range(len(str(tmp_path)) + 2, 110):
        temporary = tmp_path / ("t" * (length - len(str(tmp_path)) - 1))
        temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        with private_folder() as folder:
            for name in (SOCKET, "reward.sock", "reward-100.sock"):
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(folder.path / name))


def test_what_was_left_behind_is_removed_and_what_is_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="t") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        abandoned = Path(short) / "qserve-left"
        abandoned.mkdir()
        lock = abandoned / "owner.lock"
        lock.touch()
        with private_folder() as used:
            assert abandoned.exists(), "somebody may be about to lock it"
            os.utime(lock, (time.time() - 60, time.time() - 60))
            os.utime(used.path / "owner.lock", (time.time() - 60, time.time() - 60))
            with private_folder():
                assert not abandoned.exists()
                assert used.path.exists()
