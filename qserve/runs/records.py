"""What is read from the store: frozen, with units in the names, and each with the JSON that the API answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "Histogram",
    "MemorySample",
    "Percentiles",
    "RequestGroup",
    "RequestSummary",
    "RunState",
    "SeriesPoint",
    "StoredDocument",
    "StoredEvent",
    "StoredRequest",
    "StoredRun",
    "StoredTraining",
    "StoredWorker",
    "Traffic",
    "WorkerTraffic",
]

RunState = Literal["running", "ended", "died"]
"""`died`: its process is gone without having said so (killed, power cut)."""


class _Json:
    """`to_json()`: the fields as plain dicts, lists, numbers and strings."""

    def to_json(self) -> dict[str, Any]:
        """One JSON object with the fields' names."""
        plain: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}


@dataclass(frozen=True)
class StoredWorker(_Json):
    """One worker of a run.

    Attributes:
        name: its role, `chat` or `reward`.
        models: names that it answered to.
        plan: the plan it ran by, as `Plan.to_json` writes it (`Plan.from_json` reads it); the last one of `plans`.
        plans: every plan in the order of the starts, with `unix_s`; more than one where the engine's own numbers
            refused the first.
        start_phases_s: seconds per phase of the first start that came to be ready, in order; empty where none did.
        num_restarts: how often it had to be started again.
    """

    name: str
    models: tuple[str, ...]
    plan: Mapping[str, Any]
    plans: tuple[Mapping[str, Any], ...] = ()
    start_phases_s: Mapping[str, float] = field(default_factory=dict)
    num_restarts: int = 0


@dataclass(frozen=True)
class StoredRun(_Json):
    """One `qserve up`.

    Attributes:
        id: `20261121-224000-4711`, local time and process id; names its folder of logs, too.
        last_seen_unix_s: when it last wrote; of a run that died the best guess at its end.
        ended_unix_s: None while it runs, and of a run that died.
        exit_status: of the command; None while it runs, and of a run that died.
        command: the command line, with keys and tokens replaced by `***`.
        versions: of qserve, Python, torch, the engines, the driver, …
        hardware: `Hardware` as JSON: host, cards, memory.
        folder: where the workers' logs are.
        url: where it answered.
        num_requests: requests that were kept, those that failed included.
        num_errors: those that ended with an error's code.
        num_lost: requests that could not be kept (full disk, locked store).
        workers: with their plans and starts.
        started_by: `bench`, `compare` or `eval` where that command started it for itself, `train` of a training run,
            else "".
    """

    id: str
    started_unix_s: float
    last_seen_unix_s: float
    ended_unix_s: float | None
    exit_status: int | None
    state: RunState
    command: tuple[str, ...]
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    folder: Path
    url: str | None
    num_requests: int
    num_errors: int
    num_lost: int
    workers: tuple[StoredWorker, ...]
    started_by: str = ""

    @property
    def duration_s(self) -> float:
        """From its start to its end, or to when it was last seen."""
        return max(0.0, (self.ended_unix_s or self.last_seen_unix_s) - self.started_unix_s)


@dataclass(frozen=True)
class StoredTraining(_Json):
    """One `qserve train` of the list: `name` is its method and model, `updated_unix_s` changes with what is kept of it.

    The whole of it is among the run's own `trainings`.
    """

    id: str
    name: str
    state: RunState
    exit_status: int | None
    started_unix_s: float
    updated_unix_s: float


@dataclass(frozen=True)
class MemorySample(_Json):
    """What one worker held at one time.

    Attributes:
        moment: `ready` (once it answered, before any request), `serving` (while it ran), `end` (before it was ended).
        terms: bytes and tokens per term (`weights_bytes`, `kv_cache_bytes`, `kv_cache_tokens`, `activations_bytes`,
            `cuda_graphs_bytes`, `runtime_bytes`, `resident_bytes`, …); a term that nobody measured is missing.
        document: of `ready` and `end` the whole of GET /v1/qserve/memory with `sources`; of others empty.
    """

    unix_s: float
    worker: str
    moment: str
    terms: Mapping[str, float]
    document: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredEvent(_Json):
    """What happened: `phase`, `ready`, `work`, or a fault; figures in `details`. Worker "": of the service."""

    unix_s: float
    worker: str
    event: str
    details: Mapping[str, Any]

    @property
    def is_fault(self) -> bool:
        """Whether something went wrong; `failed` for good."""
        return self.event in ("down", "restart", "retry", "lost", "failed", "memory_low", "memory_end")


@dataclass(frozen=True)
class StoredRequest(_Json):
    """One request; no content of it is kept.

    Attributes:
        began_unix_s: when it arrived.
        queued_ms: wait for a place at the worker; None where it did not come so far.
        ttft_ms: arrival to the first event of the answer; None where it was no stream.
        tpot_ms: (E2E − TTFT) / (tokens − 1), tokens as the worker told them, else events; None where it was no stream,
            or all tokens were sent at once.
        e2e_ms: arrival to the last byte.
        prompt_tokens, completion_tokens: as the worker's usage told them.
        num_events: server-sent events with tokens; 0: the answer came whole.
        status: 499 where the client left before there was one.
        error_code: empty where it went well.
    """

    request_id: str
    began_unix_s: float
    queued_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float
    prompt_tokens: int | None
    completion_tokens: int | None
    num_events: int
    method: str
    route: str
    model: str
    worker: str
    status: int
    error_code: str
    is_background: bool
    client_left: bool


@dataclass(frozen=True)
class Percentiles(_Json):
    """Of `count` values, in ms. Between two of them as numpy's default has it, on a straight line."""

    count: int
    mean: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class RequestGroup(_Json):
    """Requests that went one way: `worker` and `model` are empty where none was reached."""

    route: str
    model: str
    worker: str
    num_requests: int
    num_errors: int


@dataclass(frozen=True)
class RequestSummary(_Json):
    """Requests together. Latencies are of those that succeeded.

    Attributes:
        first_unix_s, last_unix_s: first arrival and last end; None without requests.
        errors: how many, by the error's code.
        latency_ms: Percentiles of `queued`, `ttft`, `tpot`, `e2e`; one that no request had is missing.
    """

    num_requests: int
    num_errors: int
    num_client_left: int
    first_unix_s: float | None
    last_unix_s: float | None
    prompt_tokens: int
    completion_tokens: int
    statuses: Mapping[int, int]
    errors: Mapping[str, int]
    latency_ms: Mapping[str, Percentiles]


@dataclass(frozen=True)
class SeriesPoint(_Json):
    """Requests that arrived in the `bucket_s` seconds from `unix_s` on. Medians are of those that succeeded."""

    unix_s: float
    num_requests: int
    num_errors: int
    prompt_tokens: int
    completion_tokens: int
    ttft_p50_ms: float | None
    tpot_p50_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None


@dataclass(frozen=True)
class Histogram(_Json):
    """`counts` of values in equal bins of `bin_ms`, from 0 to the 99th percentile; `num_beyond` lie above."""

    bin_ms: float
    counts: tuple[int, ...]
    num_beyond: int


@dataclass(frozen=True)
class WorkerTraffic(_Json):
    """Requests that went to one worker (`worker` is empty for those that reached none).

    Attributes:
        bucket_s: seconds of a point of `series`; those without requests are left out.
        summary: its `first_unix_s` is rounded down to such a bucket.
        histograms: of `queued`, `ttft`, `tpot`, `e2e`, of requests that succeeded; one that none had is missing.
    """

    worker: str
    bucket_s: int
    summary: RequestSummary
    series: tuple[SeriesPoint, ...]
    histograms: Mapping[str, Histogram]


@dataclass(frozen=True)
class Traffic(_Json):
    """Every request of a run: by route, and by the worker that it went to."""

    groups: tuple[RequestGroup, ...]
    workers: tuple[WorkerTraffic, ...]


@dataclass(frozen=True)
class StoredDocument(_Json):
    """A result that another command kept: an evaluation, a load test, a comparison, a training run.

    `run` is the id of the run that it is about, None where there is none; `document` is what the command stored.
    """

    number: int
    kind: Literal["eval", "bench", "comparison", "train"]
    unix_s: float
    run: str | None
    name: str
    document: Mapping[str, Any]
