"""A Ray cluster of several nodes on this machine, each a `ray start --block` of its own; for tests, too.

Nothing of it depends on Ray's usual ports, on /dev/shm or on the network, and nothing outlives this process: the
kernel ends each `ray start` with it, and Ray ends what that started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

__all__ = ["RayNode", "RayNodes", "ray_nodes"]

_RAY = str(Path(sys.executable).with_name("ray"))
_START_S = 120.0
_END_S = 30.0
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "OMP_NUM_THREADS": "1",
}
# Has the kernel end what follows with the thread that started it (1: PR_SET_PDEATHSIG).
_WITH_US = (
    "import ctypes, os, sys",
    f"ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)})",
    "os.execv(sys.argv[1], sys.argv[1:])",
)


class RayNode:
    """One node: its `ray start`, and all that comes of it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def family(self) -> list[psutil.Process]:
        """Every process of the node."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def workers(self) -> list[psutil.Process]:
        """Workers of qserve on it."""
        found = []
        for one in self.family():
            with contextlib.suppress(psutil.Error):
                if "qserve.engines.transformers.worker" in one.cmdline():
                    found.append(one)
        return found

    def kill(self) -> list[psutil.Process]:
        """As if its machine lost power, but actors and workers have to end by themselves; returns all processes."""
        family = self.family()
        for one in family:
            with contextlib.suppress(psutil.Error):
                if one.pid == self.process.pid or one.name() == "raylet":
                    one.kill()
        self.process.wait(_END_S)
        return family

    def end(self) -> None:
        """At once: asked politely, `ray stop` takes its time, and there is nothing to keep."""
        family = self.family()
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.process.wait(_END_S)
        psutil.wait_procs(family, timeout=_END_S)


class RayNodes:
    """The nodes of one cluster. Use `ray_nodes`."""

    def __init__(self, folder: Path) -> None:
        """Starts the head, with one CPU to give away."""
        self._folder = folder
        self._port = _free_port()
        self.nodes: list[RayNode] = []
        self.address = f"127.0.0.1:{self._port}"
        self.head = self._start(
            "--head",
            f"--port={self._port}",
            f"--ray-client-server-port={_free_port()}",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
        )

    def add(self) -> RayNode:
        """A further node, with one CPU to give away; it ends with the thread that calls this."""
        return self._start(f"--address={self.address}")

    def end(self) -> None:
        """All of them."""
        for node in reversed(self.nodes):
            node.end()

    def _start(self, *arguments: str) -> RayNode:
        log = self._folder / f"node-{len(self.nodes)}.log"
        command = [
            sys.executable,
            "-I",
            "-c",
            "; ".join(_WITH_US),
            _RAY,
            "start",
            "--block",
            "--num-cpus=1",
            "--node-ip-address=127.0.0.1",
            "--object-store-memory=80000000",
            f"--plasma-directory={self._folder}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--include-log-monitor=false",
            "--disable-usage-stats",
            f"--dashboard-agent-listen-port={_free_port()}",
            *arguments,
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = RayNode(process, log)
        self.nodes.append(node)
        deadline_s = time.monotonic() + _START_S
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, f"ray start ended with {process.poll()}: {log.read_text()}"
            assert time.monotonic() < deadline_s, f"ray start did not come up: {log.read_text()}"
            time.sleep(0.1)
        return node


@contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """A cluster with its head alone; gone afterwards, with its files."""
    # Ray's sockets lie in it, and their paths have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="qr", dir="/tmp"))
    nodes: RayNodes | None = None
    try:
        nodes = RayNodes(folder)
        yield nodes
    finally:
        if nodes is not None:
            nodes.end()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
