"""What befalls a service: each fault strikes one worker of those that run, in turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from ray_nodes import RayNodes, ray_nodes
from replicas import Service

__all__ = ["DISK", "FAULTS", "NODE", "Fault", "NotHere", "Struck", "small_disk", "spare_nodes"]

_CGROUPS = Path("/sys/fs/cgroup")
_FEW_BYTES = 1 << 16
_SLOW_S, _STEP_S = 5.0, 0.05
_FULL_S = 5.0


class NotHere(Exception):
    """This machine, or what runs on it, does not allow the fault."""


@dataclass(frozen=True)
class Struck:
    """What a fault strikes: a service, and the Ray cluster that its workers are on, if any."""

    service: Service
    nodes: RayNodes | None = None


@dataclass(frozen=True)
class Fault:
    """`strike` it.

    Attributes:
        takes_down: a replica is not ready for a while, and the next fault waits until all are again.
    """

    title: str
    strike: Callable[[Struck], Awaitable[None]]
    takes_down: bool = True


DISK = "disk"
"""The state folder is on a small disk of its own then: `small_disk`."""

NODE = "node"
"""Each worker is on a node of its own then: `spare_nodes`."""

_turn = 0


def _worker(struck: Struck) -> psutil.Process:
    """One after the other; of vLLM the engine's process."""
    global _turn
    found = list(_workers(struck.service.process.pid))
    if not found:
        raise NotHere("no worker runs")
    _turn += 1
    return found[_turn % len(found)]


def _workers(pid: int) -> Iterator[psutil.Process]:
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = " ".join(one.cmdline())
            is_own = "qserve.engines.transformers.worker" in words and one.ppid() == pid and words.endswith(".json")
            if is_own or words.startswith("VLLM::EngineCore"):
                yield one


async def _kill(struck: Struck) -> None:
    _worker(struck).kill()


async def _stop(struck: Struck) -> None:
    _worker(struck).suspend()


async def _starve(struck: Struck) -> None:
    """Its next megabytes count in a group that may have few, and the kernel ends it."""
    root = _CGROUPS / "memory" if (_CGROUPS / "memory").is_dir() else _CGROUPS
    limit = "memory.limit_in_bytes" if root.name == "memory" else "memory.max"
    group = root / f"qserve-chaos-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
        (group / limit).write_text(str(_FEW_BYTES))
        (group / "cgroup.procs").write_text(str(_worker(struck).pid))
    except OSError as error:
        raise NotHere(f"groups of memory can't be made here ({error.strerror})") from error


async def _slow(struck: Struck) -> None:
    """It stands still for half of the time."""
    worker = _worker(struck)
    for _ in range(int(_SLOW_S / _STEP_S / 2)):
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.suspend()
            await asyncio.sleep(_STEP_S)
            worker.resume()
            await asyncio.sleep(_STEP_S)


async def _fill(struck: Struck) -> None:
    """The state folder, a file system of its own, has no byte left for a while."""
    filler = struck.service.folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    await asyncio.sleep(_FULL_S)
    filler.unlink()


@contextmanager
def small_disk() -> Iterator[Path]:
    """A folder on one of 64 MiB. Raises NotHere where it may not be mounted."""
    with tempfile.TemporaryDirectory(prefix="qserve-chaos-") as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True)
        if done.returncode:
            raise NotHere(f"no disk can be mounted ({done.stderr.decode().strip()})")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


async def _restart(struck: Struck) -> None:
    struck.service.process.send_signal(signal.SIGHUP)


async def _take_over(struck: Struck) -> None:
    await asyncio.to_thread(struck.service.take_over)


async def _lose_node(struck: Struck) -> None:
    """One that has a worker; there is another without one, and a new one joins after it."""
    nodes = struck.nodes
    assert nodes is not None
    victim = next((node for node in nodes.nodes if node is not nodes.head and node.workers()), None)
    if victim is None:
        raise NotHere("the only worker is on the head of the cluster")
    # Blocking calls, and clients run on this thread. A node ends with the thread that started it, and that one stays.
    await asyncio.to_thread(victim.kill)
    await asyncio.to_thread(nodes.add)


@contextmanager
def spare_nodes(replicas: int) -> Iterator[RayNodes]:
    """A cluster of a node for each replica, and one to spare."""
    with ray_nodes() as nodes:
        for _ in range(replicas):
            nodes.add()
        yield nodes


FAULTS: dict[str, Fault] = {
    "kill": Fault("kill -9", _kill),
    "stop": Fault("SIGSTOP", _stop),
    "memory": Fault("killed for memory, in a cgroup", _starve),
    DISK: Fault("disk full", _fill, takes_down=False),
    "slow": Fault("a worker at half speed", _slow, takes_down=False),
    "restart": Fault("rolling restart", _restart),
    "takeover": Fault("taken over by a new service", _take_over, takes_down=False),
    NODE: Fault("lost Ray node", _lose_node),
}
"""By name."""
