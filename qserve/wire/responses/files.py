"""Files and batches."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

__all__ = ["Batch", "BatchList", "DeletedFile", "File", "FileList"]


class File(BaseModel):
    """`status` stands here for clients that read it; it is always `processed`."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: str | None


class FileList(BaseModel):
    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchError(BaseModel):
    """`line` counts from 1."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"]
    data: list[BatchError]


class BatchCounts(BaseModel):
    """Requests."""

    total: int
    completed: int
    failed: int


class Batch(BaseModel):
    """Times are Unix seconds; of `…_at` those stand that have come. Results are files once it has ended."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
