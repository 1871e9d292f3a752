"""`Service`: what a manifest describes, whatever its format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from qserve.deploy.characters import check_host, check_text, check_words
from qserve.deploy.needs import Needs
from qserve.errors import UsageError

__all__ = ["HOME", "MODELS", "PORT_INSIDE", "Mount", "Service"]

# As the Dockerfile has them: the user's home, which is a volume, and the port that its health check asks.
HOME = "/var/lib/qserve"
MODELS = "/models"
PORT_INSIDE = 8000
# RFC 1123: Kubernetes takes nothing else, and the names of compose projects are narrower still.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
# Between the last answer and the end of the processes: vLLM's may take that long to leave.
_ENDING_S = 30


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine that the service reads, and where a container sees it."""

    host: str
    inside: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.host).name


@dataclass(frozen=True)
class Service:
    """One `qserve up`.

    Attributes:
        name: of the unit, the project or the Kubernetes objects.
        words: the flags of `qserve up`, keys and address aside; they name mounted paths as the service sees them.
        needs: memory, cards and disk, from the plan.
        plan_lines: the plan for people, a line each.
        command: the call of `qserve deploy` that made it.
        host: where it listens, or is published.
        key_file, admin_key_file: keys on this machine, where such files were named.
    """

    name: str
    words: tuple[str, ...]
    needs: Needs
    plan_lines: tuple[str, ...]
    command: str
    host: str = "127.0.0.1"
    port: int = PORT_INSIDE
    drain_timeout_s: float = 30.0
    mounts: tuple[Mount, ...] = ()
    key_file: str | None = None
    admin_key_file: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a name that no format takes, and for characters that no file may hold."""
        if _NAME.fullmatch(self.name) is None:
            raise UsageError(
                f"--name {self.name!r} is not a name for a unit or a Kubernetes object: a to z, digits and dashes, at "
                "most 40 characters, a letter first; for example qserve-32b"
            )
        check_words(self.words)
        check_host(self.host)
        keys = {"--api-key-file": self.key_file, "--admin-key-file": self.admin_key_file}
        named = {flag: file for flag, file in keys.items() if file is not None}
        named |= {f"the path {mount.host!r}": mount.host for mount in self.mounts}
        for what, text in (named | {"the call": self.command}).items():
            check_text(what, text)
        for line in self.plan_lines:
            check_text("the plan's summary", line)

    @property
    def stop_timeout_s(self) -> int:
        """How long it may take to stop: running requests finish, then the engine ends."""
        return int(self.drain_timeout_s) + _ENDING_S

    @property
    def header(self) -> tuple[str, ...]:
        """The first lines of every file: what wrote it, and what it runs."""
        return (f"Written by: {self.command}", *(f"Planned: {line}" for line in self.plan_lines))
