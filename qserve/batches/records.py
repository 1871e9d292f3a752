"""Records of files and batches, and their objects in OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ENDED", "TIMES", "LineError", "StoredBatch", "StoredFile"]

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""Statuses that nothing follows."""
TIMES = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at")


@dataclass(frozen=True)
class StoredFile:
    """A row of `file`. Times are Unix seconds; `owner` is the digest of a key, "" where there are no keys."""

    id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int

    def document(self) -> dict[str, Any]:
        """As `GET /v1/files/{file_id}` shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True)
class LineError:
    """What is wrong with an input file; `line` counts from 1, None where it is about the whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def document(self) -> dict[str, Any]:
        """As a batch shows it."""
        return {"code": self.code, "line": self.line, "message": self.message, "param": self.param}


@dataclass(frozen=True)
class StoredBatch:
    """A row of `batch`.

    Attributes:
        served: names of the models of the service that took it, until it is known whose model its lines ask for.
        model: that its lines ask for; "" until they were checked.
        times: `in_progress_at` and its like, Unix seconds.
        output_file_id, error_file_id: where its results go; shown once something stands there.
        output_keep_s: how long its results are kept; None: as long as other files.
        errors: why it failed.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    output_file_id: str
    error_file_id: str
    served: tuple[str, ...] = ()
    model: str = ""
    num_total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    output_keep_s: int | None = None
    times: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None
    errors: tuple[LineError, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status in ENDED

    def document(self) -> dict[str, Any]:
        """As `GET /v1/batches/{batch_id}` shows it."""
        listed = {"object": "list", "data": [error.document() for error in self.errors]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model or None,
            "errors": listed if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if self.has_ended and self.num_completed else None,
            "error_file_id": self.error_file_id if self.has_ended and self.num_failed else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{name: self.times.get(name) for name in TIMES},
            "request_counts": {"total": self.num_total, "completed": self.num_completed, "failed": self.num_failed},
            "metadata": dict(self.metadata) if self.metadata is not None else None,
        }
