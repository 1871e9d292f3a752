"""Two ways to take a service's memory: a memory cgroup of its own with ballast in it, or files in its place."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from qserve.detect.free_memory import read_free_memory
from qserve.units import GIB, MIB
from tests.tiny.serving.served import QSERVE, until

__all__ = ["LIMIT", "Cgroup", "Files", "Memory", "cgroups_can_be_made"]

LIMIT = 2 * GIB
# Each line on its standard input is what it is to hold, in chunks of 4 MiB that it touches.
_CHUNK = 4 * MIB
_BALLAST = f"""
import mmap, sys
held = []
print("up", flush=True)
for line in sys.stdin:
    wanted = int(line)
    for one in held[wanted:]:
        one.close()
    del held[wanted:]
    while len(held) < wanted:
        held.append(mmap.mmap(-1, {_CHUNK}))
        held[-1].write(b"1" * {_CHUNK})
    print("held", flush=True)
"""
_MOUNT = Path("/sys/fs/cgroup")


class Memory(Protocol):
    """A memory of `LIMIT` that a service runs in."""

    program: tuple[str, ...]

    def leave_free(self, num_bytes: int) -> None:
        """Take what is more than that."""

    def num_killed_by_kernel(self) -> int:
        """Processes in it that the kernel has ended for lack of memory."""

    def close(self) -> None: ...


class Files:
    """What the service reads of /proc and cgroups is written by the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        code = (
            "from functools import partial; from pathlib import Path; import qserve.supervisor.memory.watch as watch; "
            f"watch.read_free_memory = partial(watch.read_free_memory, Path({str(folder)!r})); "
            "from qserve.cli.main import cli; cli(prog_name='qserve')"
        )
        self.program = (sys.executable, "-c", code)
        self._write("proc/meminfo", f"MemTotal: {64 * GIB >> 10} kB\nMemAvailable: {60 * GIB >> 10} kB\n")
        self._write("proc/self/cgroup", "0::/job\n")
        self._write("sys/fs/cgroup/job/memory.max", f"{LIMIT}\n")
        self.leave_free(LIMIT)

    def leave_free(self, num_bytes: int) -> None:
        self._write("sys/fs/cgroup/job/memory.current", f"{LIMIT - num_bytes}\n")

    def num_killed_by_kernel(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(text)
        part.replace(path)  # it is read meanwhile


class Cgroup:
    """A memory cgroup (v1 or v2) with the service and a process of ballast in it."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for a root of links, by which the memory is read as from inside."""
        self._cgroup = _made(f"qserve-test-{os.getpid()}")
        is_v1 = (self._cgroup / "memory.limit_in_bytes").exists()
        (self._cgroup / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(LIMIT))
        self._kills = self._cgroup / ("memory.oom_control" if is_v1 else "memory.events")
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/cgroup").write_text(f"{'5:memory' if is_v1 else '0:'}:/{self._cgroup.name}\n")
        (folder / "proc/meminfo").symlink_to("/proc/meminfo")
        (folder / "sys/fs").mkdir(parents=True)
        (folder / "sys/fs/cgroup").symlink_to(_MOUNT)
        self._root = folder
        enter = f"echo $$ > {self._cgroup}/cgroup.procs && exec"
        self.program = ("/bin/sh", "-c", f'{enter} {QSERVE} "$@"', "sh")
        self._ballast = subprocess.Popen(
            ["/bin/sh", "-c", f'{enter} "$@"', "sh", sys.executable, "-c", _BALLAST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._num_chunks = 0
        self._answer()

    def leave_free(self, num_bytes: int) -> None:
        """What page cache and the service take meanwhile is made up for."""
        for _ in range(20):
            more = (self.free_bytes() - num_bytes) // _CHUNK
            if abs(more) <= 4 or (more < 0 and not self._num_chunks):
                return
            self._num_chunks = max(0, self._num_chunks + more)
            assert self._ballast.stdin is not None
            self._ballast.stdin.write(f"{self._num_chunks}\n")
            self._ballast.stdin.flush()
            self._answer()
        raise AssertionError(f"{self.free_bytes() // MIB} MiB are free and not {num_bytes // MIB}")

    def free_bytes(self) -> int:
        return read_free_memory(self._root).pools[1].available_bytes

    def num_killed_by_kernel(self) -> int:
        lines = self._kills.read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))

    def close(self) -> None:
        self._ballast.communicate(timeout=60)
        until(self._is_removed, 60, "the cgroup is busy")

    def _is_removed(self) -> bool:
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()
        return not self._cgroup.exists()

    def _answer(self) -> None:
        assert self._ballast.stdout is not None
        assert self._ballast.stdout.readline(), "the ballast was ended"


def cgroups_can_be_made() -> bool:
    """Whether this user may make a memory cgroup here."""
    try:
        _made(f"qserve-test-{os.getpid()}-tried").rmdir()
    except OSError:
        return False
    return True


def _made(name: str) -> Path:
    """A new one at the top: of v1 where its controller is mounted. Raises OSError."""
    folder = (_MOUNT / "memory" if (_MOUNT / "memory/memory.limit_in_bytes").exists() else _MOUNT) / name
    folder.mkdir()
    if not any((folder / limit).exists() for limit in ("memory.limit_in_bytes", "memory.max")):
        folder.rmdir()
        raise OSError(f"{folder} has no memory controller")
    return folder
