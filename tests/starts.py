"""What the tests start: engines, services, browsers and trainings, counted by a process of its own beside the run.

It reads /proc twice a second, so it misses commands that end sooner; no engine does. A process belongs to the test file
that started it, which pytest writes into the environment (PYTEST_CURRENT_TEST).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["INTERVAL_S", "KINDS", "KIND_OF_MARK", "Family", "Recorder", "Start", "kind_of"]

INTERVAL_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TEST = b"PYTEST_CURRENT_TEST="

# The first mark that the command line holds, with a space around each word, names the kind.
KIND_OF_MARK = {
    # Their words name what they start.
    "/guard.py ": "other command",
    " -m accelerate.commands.launch ": "other command",
    " -m torch.distributed.run ": "other command",
    " vllm.entrypoints.launchers.api_server.entry ": "vLLM server",
    "VLLM::": "process of a vLLM server",
    " -m qserve.engines.transformers.worker ": "transformers worker",
    " -m qserve.reward ": "reward worker",
    " -m qserve.ui ": "web UI",
    "/qserve up ": "qserve up",
    " -m qserve up ": "qserve up",
    " -m qserve.training.process ": "training",
    " --type=": "process of a browser",
    "chrom": "browser",
    "raylet": "Ray",
}
_FORK, _OTHER = "fork of a process above", "other command"
KINDS = (*dict.fromkeys(KIND_OF_MARK.values()), _FORK)


@dataclass
class Start:
    """One process that a test started, itself or by another one: its kind, its test file, its own processor seconds."""

    kind: str
    file: str
    cpu_s: float = 0.0


@dataclass
class _Seen:
    command: bytes
    start: Start


class Recorder:
    """The counting process, from its start until `starts`."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", __file__, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def starts(self) -> list[Start]:
        """End the counting: all that was started below this process."""
        return [Start(**fields) for fields in json.loads(self._process.communicate()[0] or "[]")]


def kind_of(command: bytes, parent_command: bytes) -> str:
    """Of a command line as /proc has it, words ended by zero bytes."""
    if command == parent_command:
        return _FORK
    words = " " + command.replace(b"\0", b" ").decode(errors="replace") + " "
    return next((kind for mark, kind in KIND_OF_MARK.items() if mark in words), _OTHER)


class Family:
    """The processes below the process `root`, also those whose parent has ended since."""

    def __init__(self, root: int) -> None:
        self._ours = {root, os.getpid()}
        self._root = root
        self._seen: dict[tuple[int, str], _Seen] = {}

    def look(self) -> None:
        """Meet new processes, and read the clocks of those that are known."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        processes = {pid: stat for pid in pids if (stat := _stat(pid))}
        alive = {pid: self._seen[pid, stat[19]] for pid, stat in processes.items() if (pid, stat[19]) in self._seen}
        for pid, stat in sorted(processes.items(), key=lambda item: int(item[1][19])):
            parent = int(stat[1])
            if pid in self._ours or not (pid in alive or parent in alive or parent == self._root):
                continue
            one = alive.get(pid) or self._met(pid, stat[19], alive.get(parent))
            alive[pid] = one
            one.start.cpu_s = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
            if one.start.kind in (_FORK, _OTHER):  # or not yet the program that it becomes, or without its title
                one.command = _read(pid, "cmdline") or one.command
                above = alive[parent].command if parent in alive else _read(parent, "cmdline")
                one.start.kind = kind_of(one.command, above)
                one.start.file = _file_of(pid) or one.start.file

    def _met(self, pid: int, began: str, parent: _Seen | None) -> _Seen:
        self._seen[pid, began] = one = _Seen(b"", Start(_FORK, parent.start.file if parent else ""))
        return one

    def starts(self) -> list[Start]:
        return [one.start for one in self._seen.values()]


def _stat(pid: int) -> list[str]:
    """The fields behind the name, from the state on; none of a process that has ended."""
    return _read(pid, "stat").decode(errors="replace").rpartition(") ")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _file_of(pid: int) -> str:
    found = next((line for line in _read(pid, "environ").split(b"\0") if line.startswith(_TEST)), b"")
    return found.removeprefix(_TEST).partition(b"::")[0].decode(errors="replace")


def _main() -> None:
    family = Family(int(sys.argv[1]))
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        family.look()
    print(json.dumps([asdict(start) for start in family.starts()]))


if __name__ == "__main__":
    _main()
