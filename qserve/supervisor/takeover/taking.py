"""The new service's side of a takeover: it finds the old one, compares, takes port and workers, and sends it away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qserve.errors import PortInUse, UsageError, WorkerFailed
from qserve.supervisor import ports
from qserve.supervisor.child import Descriptors
from qserve.supervisor.private import PrivateFolder, private_folders
from qserve.supervisor.takeover.handed import About, Handed
from qserve.supervisor.takeover.launched import Launched, differences, files_of
from qserve.supervisor.takeover.messages import SOCKET, peer_of, receive, send

__all__ = ["Taking", "advised"]

_ANSWER_S = 10.0
# While the old service stops to watch its workers; one that is being measured answers within seconds.
_TAKE_S = 60.0
_RESTART = "a restart is needed: stop the old service, then start this one without --takeover"


class Taking:
    """A service that is about to be taken over from. Closed before `leave`, it goes on as if nothing had happened."""

    def __init__(self, connection: socket.socket, about: About, pid: int) -> None:
        """Use `find`."""
        self._connection = connection
        self._process = os.pidfd_open(pid)
        self.about = about
        self.pid = pid
        self.has_left = False
        """Port and workers are this process's."""

    @classmethod
    def find(cls, host: str, port: int, launched: Launched) -> Taking:
        """The service of this user that listens at `host` and `port`, found to be one that can be taken over from.

        Raises UsageError with the reason where there is none, or where its workers are not those of `launched`.
        """
        if not hasattr(os, "pidfd_open"):
            raise UsageError("--takeover needs Linux: elsewhere a worker that another service started can't be watched")
        if not port:
            raise UsageError("--takeover with --port 0: name the port of the service that runs")
        found = [one for one in _services() if one.about.port == port]
        for one in found[1:]:
            one.close()
        if not found:
            raise UsageError(
                f"--takeover: no service of yours listens on port {port} (as far as the temporary folder of this "
                "process, TMPDIR, tells). Start it without --takeover, or name the port with --port"
            )
        try:
            found[0]._check(host, launched)
        except BaseException:
            found[0].close()
            raise
        return found[0]

    def take(self) -> tuple[Handed, socket.socket, PrivateFolder, list[Descriptors]]:
        """Port, folder and workers, which the old service no longer watches. Waits. Raises WorkerFailed."""
        self._connection.settimeout(_TAKE_S)
        answer, received = self._asked("take")
        if not isinstance(answer, Handed):
            why = About.from_document(answer).why_not
            raise WorkerFailed(f"--takeover: the service on port {self.about.port} can't be taken over from: {why}")
        listener, lock, ends = answer.descriptors(received)
        return answer, socket.socket(fileno=listener), PrivateFolder(answer.folder, lock, is_given=True), ends

    def leave(self) -> None:
        """Have it accept no more, finish what it has, and end. Waits. Raises WorkerFailed where it is gone."""
        self._asked("leave")
        self.has_left = True

    async def gone(self) -> None:
        """Returns when the old process has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process)

    def close(self) -> None:
        """Without `leave` before, the old service goes on."""
        self._connection.close()
        os.close(self._process)

    def _asked(self, what: str) -> tuple[Any, list[int]]:
        try:
            send(self._connection, what)
            return receive(self._connection)
        except OSError as error:
            raise WorkerFailed(
                f"--takeover: the service on port {self.about.port} (process {self.pid}) does not answer: {error}"
            ) from error

    def _check(self, host: str, launched: Launched) -> None:
        about, place = self.about, f"the service on port {self.about.port} (process {self.pid})"
        if about.why_not:
            raise UsageError(f"--takeover: {place} can't be taken over from: {about.why_not}")
        if self.pid == 1:
            raise UsageError(f"--takeover: {place} is the first of its container, which ends with it; {_RESTART}")
        if ports.address_of(host, about.port)[0] != about.address[0]:
            raise UsageError(f"--takeover: {place} listens on {about.address[0]}, and --host is {host}; give the same")
        lines = [*differences(about.launched, launched), *_changed_files(about)]
        if lines:
            told = "\n".join(f"· {line}" for line in lines)
            raise UsageError(
                f"--takeover: {place} started its workers otherwise than this one would; {_RESTART}\n{told}"
            )


def advised(error: PortInUse, port: int) -> PortInUse:
    """The error with --takeover as a way out, where a service of this user has the port."""
    if not hasattr(os, "pidfd_open"):
        return error
    for one in _services():
        one.close()
        if one.about.port == port:
            return PortInUse(
                f"port {port} is taken by your own qserve (process {one.pid}, run {one.about.run}). --takeover takes "
                "its port and its workers over without a lost request; --port 0 starts another one on any free port"
            )
    return error


def _services() -> Iterator[Taking]:
    for folder in private_folders():
        with contextlib.suppress(OSError, KeyError):
            if (found := _asked_at(folder / SOCKET)) is not None:
                yield found


def _asked_at(path: Path) -> Taking | None:
    if not path.exists():
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(str(path))
        pid, uid = peer_of(connection)
        if uid == os.getuid():
            send(connection, "about")
            document, _ = receive(connection)
            if isinstance(document, dict):
                return Taking(connection, About.from_document(document), pid)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def _changed_files(about: About) -> Iterator[str]:
    for folder, digest in about.files.items():
        try:
            is_same = files_of(folder) == digest
        except OSError:
            is_same = False
        if not is_same:
            yield f"files in {folder} were changed since its workers loaded them"
