"""Keys come from files, and nobody else learns them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.supervisor.keys import VARIABLE, keys_in_use, keys_of_file


def _file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "key"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_one_key_a_line(tmp_path: Path) -> None:
    assert keys_of_file(_file(tmp_path, "# alice\nsk-1\n\n  sk-2  \n")) == ("sk-1", "sk-2")


@pytest.mark.parametrize("text", ["", "\n\n", "# only words\n"])
def test_a_file_without_a_key_is_an_error_and_not_an_open_door(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="has no key"):
        keys_of_file(_file(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        keys_of_file(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        keys_of_file(tmp_path / "binary")


def test_a_file_that_everybody_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        keys_of_file(_file(tmp_path, "sk-1", 0o644))
    assert "chmod 600" in caplog.text


def test_the_variable_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sk-1")
    assert keys_in_use(["sk-1"], [_file(tmp_path, "sk-2\nsk-1")]) == ("sk-1", "sk-2")
    assert VARIABLE not in os.environ


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc")
@pytest.mark.parametrize("arguments", [["--api-key", "sk-hidden"], ["--api-key=sk-hidden", "--port", "80"]])
def test_the_process_list_does_not_show_it(arguments: list[str]) -> None:
    code = (
        "from qserve.supervisor.keys import *; keys_in_use(['sk-hidden'], []); print(open('/proc/self/cmdline').read())"
    )
    shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout
    assert "hidden" not in shown.partition("-c\0")[2].partition("\0")[2] and "*********" in shown
