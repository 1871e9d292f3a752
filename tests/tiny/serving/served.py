"""A real `qserve up` process, and what a test wants to know of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests import costs
from tests.processes import words

QSERVE = Path(sys.executable).with_name("qserve")
START_LIMIT_S = 500
"""Bounds in these tests keep a broken promise from hanging the suite; none of them is a measurement."""


@dataclass
class Service:
    """`qserve up` as a child process, with a state folder and a temporary folder of its own."""

    arguments: tuple[str, ...]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = (str(QSERVE),)
    process: subprocess.Popen[str] = field(init=False, repr=False)
    lines: list[str] = field(default_factory=list, repr=False)
    url: str = ""

    def __post_init__(self) -> None:
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "state"
        command = [*self.program, "up", *self.arguments]
        if "--port" not in self.arguments:
            command += ["--port", "0"]
        if "--state-dir" not in self.arguments:
            command += ["--state-dir", str(self.state)]
        environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._began_s = time.monotonic()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def log(self) -> str:
        """What the worker wrote."""
        return "".join(path.read_text() for path in self.state.rglob("chat.log"))

    def until_said(self, pattern: str, limit_s: float = START_LIMIT_S) -> str:
        """The first line of the output that matches."""

        def found() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        def seen() -> bool:
            assert found() or self.process.poll() is None, f"qserve up ended with {self.process.poll()}: {self.output}"
            return found() is not None

        until(seen, limit_s, lambda: f"{pattern!r} in {self.output!r}")
        line = found()
        assert line is not None
        return line

    def until_ready(self, limit_s: float = START_LIMIT_S) -> Service:
        """Ends what is not ready by then: nobody would."""
        try:
            line = self.until_said(r"^API ", limit_s)
        except BaseException:
            self.end(signal.SIGKILL)
            raise
        costs.ready_s.append(time.monotonic() - self._began_s)
        match = re.search(r"http://\S+(?=/v1)", line)
        assert match, line
        self.url = match[0]
        return self

    def worker(self) -> psutil.Process | None:
        """The engine's process; None while there is none."""
        children = psutil.Process(self.process.pid).children()
        return next(
            (child for child in children if "qserve.engines.transformers.worker" in " ".join(words(child))), None
        )

    def get(self, path: str) -> httpx.Response:
        """Plain HTTP. `verify`: reading certificates for each request took most of the time of those that poll."""
        return httpx.get(f"{self.url}{path}", timeout=30, verify=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json={"model": "demo", **body}, timeout=120, verify=False)

    def gauge(self, name: str) -> float:
        """The sum of a metric's samples."""
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.get("/metrics").text.splitlines()
            if re.match(rf"{name}[{{ ]", line)
        ]
        assert values, f"no metric {name}"
        return sum(values)

    def num_running(self) -> float:
        """Sequences that the engine holds, by its own books."""
        return self.gauge("qserve_worker_sequences_running") + self.gauge("qserve_worker_sequences_waiting")

    def is_ready(self) -> bool:
        return self.get("/ready").status_code == 200

    def end(self, number: signal.Signals = signal.SIGTERM, limit_s: float = 60) -> int:
        """Sends a signal, waits for the end, and checks that nothing is left; the exit status."""
        family = self._family()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended(family, limit_s)

    def end_as_told(self) -> int:
        """As `end`, of a service whose worker may have been killed: the status is that of what it says last."""
        status = self.end()
        has_cut_off = re.search(r"^stopped; .* cut off because a worker ended$", self.output, re.MULTILINE)
        assert status == (1 if has_cut_off else 0), self.output
        return status

    def ended(self, family: list[psutil.Process] | None = None, limit_s: float = 60) -> int:
        """Waits for the end, and checks that no process, socket or file with a key is left; the exit status."""
        family = self._family() if family is None else family
        status = self.process.wait(limit_s)
        self._reader.join(limit_s)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, f"left behind: {alive}"
        if status >= 0:
            assert not list(self.temporary.glob("qserve-*")), "the private folder with the worker's key is left behind"
        return status

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def until(holds: Callable[[], bool], limit_s: float, otherwise: str | Callable[[], str]) -> float:
    """Waits until `holds()`; the seconds that it took. Fails with `otherwise` at the limit."""
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > limit_s:
            raise AssertionError(
                f"not within {limit_s:g} s: {otherwise if isinstance(otherwise, str) else otherwise()}"
            )
        time.sleep(0.02)
    return time.monotonic() - started


def run(*arguments: str, folder: Path, **environment: str) -> tuple[int, str]:
    """`qserve up` that is expected to end by itself: status and output."""
    service = Service(arguments, folder, environment)
    try:
        return service.ended(limit_s=START_LIMIT_S), service.output
    finally:
        service.process.kill()
