"""Starts Python in a sandbox of bubblewrap: the command, and the kinds of sandbox that machines make."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import marshal
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qserve.reward.rules.seccomp import filter_of
from qserve.reward.rules.syscalls import NUMBERS

__all__ = ["NoSandbox", "Sandbox", "sandbox_of"]

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin")
_PACKAGE = "qserve.reward.rules.inside"
_COMMON = ("known", "kinds", "codec", "peer")
_MODULES = {
    "program": (*_COMMON, "theirs", "program"),
    "tester": (*_COMMON, "proxy", "errors", "tester"),
    "trial": ("trial",),
}
_NOBODY = 65_534
# Above what machines give to people and services; one for each sandbox, so that the kernel counts its threads alone.
_FIRST_UID = 0x7000_0000
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class NoSandbox(Exception):
    """Why none can be made, in words."""


@dataclass(frozen=True)
class Sandbox:
    """One kind of it.

    Attributes:
        flags: of bubblewrap, for its namespaces.
        user: whom bubblewrap itself runs as; None: this process's user.
        has_own_user: the interpreter takes on a user that is nobody else's before it reads what it is to run.
    """

    flags: tuple[str, ...]
    user: int | None = None
    has_own_user: bool = False

    def start(
        self,
        side: str,
        limits: dict[str, int],
        arguments: tuple[Any, ...],
        *,
        fds: tuple[int, ...],
        keeps_errors: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Run `main` of the module `side` of `inside`, which keeps `fds`. Nothing of it is read but what it writes
        there; `keeps_errors`: and its standard error."""
        uid = _next_user() if self.has_own_user else 0
        given = marshal.dumps((uid, limits, _code(side), arguments))
        who: dict[str, Any] = {}
        if self.user is not None:
            who = {"user": self.user, "group": self.user, "extra_groups": []}
        with _sealed(given) as stdin, _sealed(filter_of(platform.machine())) as rules:
            command = [
                "bwrap",
                *self.flags,
                *_view(),
                "--seccomp",
                str(rules),
                _python(),
                "-I",
                "-S",
                "-c",
                _bootstrap(),
            ]
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                pass_fds=(*fds, rules),
                **who,
                stderr=subprocess.PIPE if keeps_errors else subprocess.DEVNULL,
            )


def sandbox_of(loose: Callable[[Sandbox], str]) -> Sandbox:
    """The first kind that this machine makes and of which `loose` says nothing. Raises NoSandbox for none."""
    if shutil.which("bwrap") is None:
        raise NoSandbox("bubblewrap is not installed (apt install bubblewrap)")
    if platform.machine() not in NUMBERS:
        raise NoSandbox(f"its filter of system calls supports {' and '.join(NUMBERS)} only, not {platform.machine()}")
    why: list[str] = []
    for sandbox in _kinds():
        try:
            found = loose(sandbox)
        except NoSandbox as error:
            why.append(f"bubblewrap can't make a sandbox on this machine ({error})")
            continue
        if not found:
            return sandbox
        why.append(f"a sandbox on this machine does not refuse {found}")
    raise NoSandbox("; ".join(dict.fromkeys(why)))


def _kinds() -> Iterator[Sandbox]:
    """The best first. User namespaces are refused inside by the filter as well, where bubblewrap is older than 0.8."""
    as_user = ("--unshare-all", "--unshare-user", "--cap-drop", "ALL")
    if os.geteuid() == 0:
        # The kernel counts no tasks of root's, and in a user namespace that root makes everybody is root outside.
        apart = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
        yield Sandbox(
            (*apart, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"), has_own_user=True
        )
    user = _NOBODY if os.geteuid() == 0 else None
    yield Sandbox((*as_user, "--disable-userns"), user)
    yield Sandbox(as_user, user)


def _view() -> Iterator[str]:
    """What a sandbox sees, and what it ends with."""
    seen = [folder for folder in _SYSTEM if Path(folder).exists()]
    prefix = str(Path(sys.base_prefix).resolve())
    if not any(Path(prefix).is_relative_to(folder) for folder in seen):
        seen.append(prefix)
    # glibc else reserves 64 MiB of addresses for each thread, and the limit of memory is one of addresses.
    yield from ("--die-with-parent", "--new-session", "--clearenv", "--setenv", "MALLOC_ARENA_MAX", "1")
    for folder in (*reversed(Path(seen[-1]).parents[:-1]), "/dev"):  # readable for the sandbox's user as well
        yield from ("--perms", "0755", "--dir", str(folder))
    for folder in seen:
        yield from ("--ro-bind", folder, folder)
    yield from ("--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/", "--chdir", "/")


def _python() -> str:
    """The interpreter itself: a virtual environment's is a link to it, and its packages are nobody's business here."""
    return str(Path(sys.executable).resolve())


@cache
def _bootstrap() -> str:
    return _file("bootstrap").read_text()


@cache
def _code(side: str) -> tuple[tuple[str, Any], ...]:
    """The modules that a side needs, in the order of their imports, and `module`, the last, under its full name."""
    return tuple(
        (f"{_PACKAGE}.{name}", compile(_file(name).read_text(), name, "exec", dont_inherit=True))
        for name in _MODULES[side]
    )


def _file(name: str) -> Path:
    return Path(__file__).with_name("inside") / f"{name}.py"


def _next_user() -> int:
    return _FIRST_UID + (os.getpid() << 8) + next(_numbers) % 256


@contextlib.contextmanager
def _sealed(data: bytes) -> Iterator[int]:
    """A file in memory that nobody can change or make grow, whoever holds it."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


_numbers = itertools.count()
