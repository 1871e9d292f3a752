"""What a worker is, as the gateway and the supervisor see it.

A worker is a process of its own that speaks HTTP on a unix socket or on loopback, under an internal key:

    GET  /health                 200 once it can answer
    GET  /metrics                Prometheus text
    GET  /v1/models, /v1/qserve/memory
    POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize

Errors have OpenAI's shape (`qserve.wire.errors`); a request ends when its client goes away, and nothing else with it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["TcpAddress", "UnixAddress", "WorkerEndpoint", "WorkerState"]


class WorkerState(enum.StrEnum):
    """Written by the supervisor, read by the gateway: only READY gets requests."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True)
class UnixAddress:
    """A unix socket. Its folder is private to the user who started qserve."""

    path: Path


@dataclass(frozen=True)
class TcpAddress:
    """A loopback port, for engines that can't listen on a socket."""

    host: str
    port: int


@dataclass
class WorkerEndpoint:
    """How to reach a worker, and how it is. Mutable on purpose: one per worker, shared by supervisor and gateway.

    Attributes:
        name: the worker's role, `chat` or `reward`; labels its metrics.
        models: names it answers to; the first is the canonical one.
        max_num_seqs: sequences it runs at once; the gateway lets that many through and queues the rest.
        max_model_len: prompt and answer together, in tokens.
        detail: why it is not ready, for people; goes into the 503 that a client gets.
    """

    name: str
    models: tuple[str, ...]
    address: UnixAddress | TcpAddress
    key: str = field(repr=False)
    max_num_seqs: int
    max_model_len: int
    state: WorkerState = WorkerState.STARTING
    detail: str = "the worker is starting"
