"""What one service hands over to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qserve.supervisor.child import Descriptors
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.takeover.launched import Launched

__all__ = ["About", "Handed", "HandedWorker"]


@dataclass(frozen=True)
class About:
    """A service that another one may take over from.

    Attributes:
        address: what it listens at, as `socket.getsockname` gives it.
        run: the id of its run.
        launched: what its workers were started from.
        files: a digest of each folder of a checkpoint as it was then.
        why_not: why nobody can take over from it now; "": it is possible.

    """

    address: tuple[Any, ...]
    run: str
    launched: Launched
    files: Mapping[Path, str]
    why_not: str = ""

    def to_document(self) -> dict[str, Any]:
        """Of plain types, so that a service of another release can read it and tell in what it differs."""
        return {**asdict(self), "files": {str(folder): digest for folder, digest in self.files.items()}}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> About:
        """From `to_document`, of any release. Raises KeyError where address or run are missing."""
        told = document.get("launched", {})
        launched = Launched(**{one.name: told.get(one.name, {}) for one in fields(Launched)})
        files = {Path(folder): digest for folder, digest in document.get("files", {}).items()}
        return cls(tuple(document["address"]), document["run"], launched, files, document.get("why_not", ""))

    @property
    def port(self) -> int:
        """That it listens at."""
        return int(self.address[1])


@dataclass(frozen=True)
class HandedWorker:
    """A worker that runs.

    Attributes:
        deployment: what it was started from, with the plan that it runs by.
        facts: `WorkerFacts.to_json`, with its address and its key.
        log_file, log_span: where its output is, and from which byte to which that of its last start.

    """

    deployment: ModelDeployment
    facts: Mapping[str, Any]
    pid: int
    num_restarts: int
    phases_s: Mapping[str, float]
    log_file: Path
    log_span: tuple[int, int]


@dataclass(frozen=True)
class Handed:
    """All that is handed over. Descriptors travel beside it: listener, the folder's lock, then three of each worker.

    Attributes:
        folder: the private folder with the workers' sockets and keys.

    """

    folder: Path
    workers: tuple[HandedWorker, ...]

    def descriptors(self, received: list[int]) -> tuple[int, int, list[Descriptors]]:
        """Listener, lock, and those of each worker, in order."""
        listener, lock, *rest = received
        return listener, lock, [Descriptors(*rest[at : at + 3]) for at in range(0, len(rest), 3)]
