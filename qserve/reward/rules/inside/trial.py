"""Tries what a sandbox must refuse, before anything of a model runs in one like it."""

from __future__ import annotations

import os
import time
from _thread import start_new_thread

__all__ = ["main"]


def main(most_threads: int, verdict_fd: int) -> None:
    """Write what is not refused, separated by commas, and a full stop."""
    loose = [name for name, attempt in _ATTEMPTS.items() if _is_possible(attempt)]
    if _num_threads(most_threads + 1) > most_threads:
        loose.append("threads without number")
    os.write(verdict_fd, (", ".join(loose) + ".").encode())
    os._exit(0)


def _is_possible(attempt: object) -> bool:
    try:
        attempt()  # type: ignore[operator]
    except OSError:
        return False
    return True


def _num_threads(most: int) -> int:
    for number in range(most):
        try:
            start_new_thread(time.sleep, (10,))
        except RuntimeError:
            return number
    return most


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _user() -> None:
    if os.getuid() == 0:
        return
    os.setresuid(0, 0, 0)


def _socket() -> None:
    import _socket

    _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)


def _write() -> None:
    os.close(os.open("/tried", os.O_CREAT | os.O_WRONLY))


_ATTEMPTS = {"new processes": _fork, "the user root": _user, "sockets": _socket, "files to write": _write}
