"""The checkpoint that another is made from: found as every command finds a model, and fetched where it is not here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from qserve.core.checkpoint import Checkpoint
from qserve.errors import ModelNotFound
from qserve.hub.growth import Arrived
from qserve.hub.resolve import resolve
from qserve.hub.revisions import split_revision

__all__ = ["Source", "source_of"]


@dataclass(frozen=True)
class Source:
    """A checkpoint whose files are on this machine, all of them."""

    checkpoint: Checkpoint
    folder: Path

    @property
    def hub_id(self) -> str | None:
        """As the hub names it; None of a folder that is not from there."""
        is_of_hub = "/" in self.checkpoint.id and not Path(self.checkpoint.id).expanduser().is_dir()
        return self.checkpoint.id if is_of_hub else None

    @property
    def told(self) -> str:
        """With its revision, for a model card."""
        revision = self.checkpoint.revision
        return self.name if revision is None else f"{self.name} at {revision}"

    @property
    def name(self) -> str:
        """As the hub names it; of a folder its own name, since where it lies is nobody's business."""
        return self.hub_id or self.folder.resolve().name


def source_of(model: str, phase: Callable[[str], None], progress: Callable[[Arrived], None]) -> Source:
    """What `model` names, fetched where it is a model of the hub that is not on this machine.

    `phase` hears what is done, `progress` how far it is. Raises ModelNotFound, and UsageError for a disk without room.
    """
    found = resolve(model)
    if found.folder is not None:
        return Source(found, found.folder)
    from qserve.hub.download import fetch, listed  # imports the hub's library

    name, revision = split_revision(found.name)
    if "/" not in name:
        raise ModelNotFound(f"{name} has no weights on this machine")
    listed(name, revision).check_disk()
    phase(f"fetching {name}")
    folder = fetch(name, revision, progress)
    return Source(replace(resolve(found.name), id=found.id), folder)
