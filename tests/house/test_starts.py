"""The record of what tests start: kinds by command line, and whose processes they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from tests import starts

_VLLM = ("-m", "qserve.engines.vllm.launch.plugins.server_process", "vllm.entrypoints.launchers.api_server.entry")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("python", "/venv/bin/qserve", "up", "--model", "demo"), "qserve up"),
        (("python", "/venv/bin/qserve", "plan", "--model", "demo"), "other command"),
        (("python", *_VLLM, "--model", "demo"), "vLLM server"),
        (("python", "-I", "-S", "/p/guard.py", "python", *_VLLM), "other command"),
        (("VLLM::EngineCore",), "process of a vLLM server"),
        (("python", "-m", "accelerate.commands.launch", "-m", "qserve.training.process", "job"), "other command"),
        (("python", "-m", "qserve.training.process", "job"), "training"),
        (("/usr/lib/chromium/chromium", "--headless"), "browser"),
        (("/usr/lib/chromium/chromium", "--type=renderer"), "process of a browser"),
    ],
)
def test_a_command_line_tells_the_kind(words: tuple[str, ...], kind: str) -> None:
    assert starts.kind_of("\0".join((*words, "")).encode(), b"pytest\0") == kind


def test_each_module_that_a_kind_is_told_by_can_be_started() -> None:
    modules = [module for mark in starts.KIND_OF_MARK for module in re.findall(r"-m (qserve\.\S+)", mark)]
    assert modules and all(find_spec(f"{module}.__main__") for module in modules)


# Each says who it is, and waits to be ended.
_CHILD = """
import os, subprocess, sys
words = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()", "/qserve", "up"]
grandchild = subprocess.Popen(words, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(grandchild.stdout.readline().decode(), end="", flush=True)
os.read(0, 1)
os._exit(0)
"""


def test_a_process_belongs_to_the_file_of_the_test_that_started_its_parent() -> None:
    family = starts.Family(os.getpid())
    with subprocess.Popen([sys.executable, "-S", "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        family.look()
        family.look()
        kinds = [one.kind for one in family.starts() if one.file == "tests/house/test_starts.py"]
        assert sorted(kinds) == ["other command", "qserve up"], "each is met once"


def test_a_recorder_knows_what_has_ended_since() -> None:
    recorder = starts.Recorder()
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        time.sleep(3 * starts.INTERVAL_S)
        child.communicate(b"\n")
    assert "other command" in {one.kind for one in recorder.starts()}
