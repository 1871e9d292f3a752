"""Memory and work of the workers, planned beside measured."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, JsonValue

__all__ = ["HostProcessMemory", "MemoryList", "ReportList"]


class WorkerMemory(BaseModel):
    """`planned` is the plan's account, `memory` what was measured; `error` says why nothing was."""

    worker: str
    state: str
    planned: JsonValue = None
    memory: JsonValue = None
    error: str | None = None


class HostProcessMemory(BaseModel):
    """A process of the service that holds no model. `resident_bytes` is null of one that does not run now."""

    process: str
    planned_bytes: int
    low_bytes: int
    high_bytes: int
    planned_by: str
    resident_bytes: int | None
    difference: float | None
    source: str


class MemoryList(BaseModel):
    object: Literal["list"]
    data: list[WorkerMemory]
    host: list[HostProcessMemory]


class WorkerReport(WorkerMemory):
    """`work` is what a reward model's worker tells of its scoring: latency by length, rates, batch sizes, padding.

    `latency` holds of a chat model TTFT and TPOT as planned for the requests that came, beside what they took.
    """

    models: list[str]
    start_phases_s: dict[str, float]
    num_restarts: int
    work: JsonValue = None
    latency: JsonValue = None


class ReportList(BaseModel):
    object: Literal["list"]
    version: str
    run: str | None
    data: list[WorkerReport]
    host: list[HostProcessMemory]
