"""Files of the UI's visitors: bounded for each and for all, and gone when a visitor signs out or leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qserve.units import GIB, MIB, format_bytes
from qserve.wire.errors import ApiError

__all__ = ["VisitorFiles"]

_MOST_BYTES = 256 * MIB
"""Of one visitor; the oldest go first."""
_MOST_BYTES_OF_ALL = 2 * GIB
_MOST_FILES = 1000
_BLOCK_BYTES = 4096


class VisitorFiles:
    """What Gradio keeps below `folder`, by the visitors that were told of it. Equal uploads have one path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._files: dict[str, dict[str, int]] = defaultdict(dict)  # paths in their order, with bytes
        self._coming: dict[str, int] = defaultdict(int)

    def may_fetch(self, visitor: str, path: str) -> bool:
        """Whether `visitor` was told of this path, and it is one of ours."""
        return path in self._files.get(visitor, ()) and self._is_ours(path)

    @contextmanager
    def uploading(self, visitor: str, num_bytes: int) -> Iterator[None]:
        """Space for an upload, while it comes. Raises ApiError 413 or 507 where there is none."""
        others = self._coming[visitor]
        if others + num_bytes > _MOST_BYTES:
            message = f"uploads may take {format_bytes(_MOST_BYTES)} at once; send fewer"
            raise ApiError(413, message, "body_too_large")
        self._drop_oldest(visitor, others + num_bytes)
        held = sum(sum(files.values()) for files in self._files.values()) + sum(self._coming.values())
        if held + num_bytes > _MOST_BYTES_OF_ALL:
            raise ApiError(
                507,
                f"files of all visitors take {format_bytes(held)} here, of {format_bytes(_MOST_BYTES_OF_ALL)} allowed; "
                "files of visitors who have left are removed within the hour",
                "storage_full",
            )
        self._coming[visitor] += num_bytes
        try:
            yield
        finally:
            self._coming[visitor] -= num_bytes
            if not self._coming[visitor]:
                del self._coming[visitor]

    def told(self, visitor: str, paths: Iterable[str]) -> None:
        """`visitor` was told of these; beyond the bounds the oldest go."""
        for path in paths:
            self._files[visitor][path] = self._num_bytes(path)
        self._drop_oldest(visitor, 0)

    def forget(self, visitor: str) -> None:
        """Remove all that `visitor` has."""
        for path in self._files.pop(visitor, {}):
            self._remove(path)

    def _drop_oldest(self, visitor: str, coming: int) -> None:
        files = self._files.get(visitor, {})
        while files and (sum(files.values()) + coming > _MOST_BYTES or len(files) > _MOST_FILES):
            path = next(iter(files))
            del files[path]
            self._remove(path)

    def _remove(self, path: str) -> None:
        """Unless another visitor has it, too."""
        if not self._is_ours(path) or any(path in files for files in self._files.values()):
            return
        with suppress(OSError):
            Path(path).unlink()
            Path(path).parent.rmdir()  # Gradio makes one for each; others may be in it

    def _num_bytes(self, path: str) -> int:
        with suppress(OSError, ValueError):
            if self._is_ours(path):
                return max(Path(path).stat().st_size, _BLOCK_BYTES)
        return 0

    def _is_ours(self, path: str) -> bool:
        try:
            return Path(path).resolve().is_relative_to(self._folder)
        except (OSError, ValueError):
            return False
