"""A worker as the gateway and the supervisor see it: its facts, its status, its load.

A worker is a process of its own that speaks HTTP on a unix socket or on a TCP port, under an internal key:

    GET  /health                 200 once it can answer
    GET  /metrics                Prometheus text
    GET  /v1/models, /v1/qserve/memory
    POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize

Errors have OpenAI's shape (`qserve.wire.errors`); a request ends when its client goes away, and nothing else with it.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_type_hints

from qserve.wire.engine_fields import EngineFields, fields_of
from qserve.wire.prompt_size import ContextLimits
from qserve.worker.address import TcpAddress, UnixAddress

__all__ = ["TcpAddress", "TurnCounts", "UnixAddress", "WorkerFacts", "WorkerLoad", "WorkerState", "WorkerStatus"]


class WorkerState(enum.StrEnum):
    """Written by the supervisor, read by the gateway: only READY gets requests (`WorkerStatus.refusal` apart).

    IDLE: it does not run, and is started when the load wants it. UNLOADING: it finishes its requests and ends, to make
    room for another model.
    """

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    UNLOADING = "unloading"
    FAILED = "failed"
    IDLE = "idle"


_COMES_BACK = frozenset({WorkerState.STARTING, WorkerState.RESTARTING, WorkerState.UNLOADING, WorkerState.IDLE})


@dataclass(frozen=True)
class WorkerFacts:
    """What is known of a worker since its last start. Another start may replace it by another.

    Attributes:
        name: of this worker among all of the service, `chat`, or `chat-1` where there are several; labels its metrics.
        models: names it answers to; the first is the canonical one.
        address: another one after a restart, where somebody else runs it.
        max_num_seqs: sequences it runs at once; the gateway lets that many through and queues the rest.
        max_model_len: prompt and answer together, in tokens.
        role: what it is for, `chat`, `reward` or `embed`. "": as its name.
        group: workers of one group serve the same model. "": as its role.
        wire: its engine's wire format, as `qserve.planner.engine.Engine.wire` names it; "": qserve's own.
        engine: its name, for people.
        adapters: further model names that the engine lists, LoRA adapters over `models[0]`.
        max_loras: adapters that it has room for, those given at its start among them; 0: it loads none later.
        max_lora_rank: the largest rank of one.
        request_fields: what the engine's requests may hold; None until it was asked, and where qserve's own
            schemas say it.
        schema_library: what holds an engine's answers to JSON schemas, `xgrammar` or `guidance`; "": schemas go to the
            engine as they came.
        thinks_in_text: answers may begin with a thought between tags, before a structure as well.
        takes_one_system: its chat template takes one system turn, at the beginning.
        plan: what was planned for it, shown beside the measured memory.
        has_report: it has a GET /v1/qserve/report of its own.
        tokenizer: folder with the tokenizer's files, for clients that count tokens; None: not to be given away.
        max_prompt_bytes: UTF-8 bytes above which no prompt can fit `max_model_len`; None: not known.
        max_positions: the largest max_model_len that the model was made for; None: not known.
        most_stretched: the largest --context that YaRN stretches it to; None: not known.
        vocab_size: token ids of requests end before it; None: not known.
        loads_on_demand: it comes into memory when it is asked for, and leaves it for others; requests wait meanwhile.
    """

    name: str
    models: tuple[str, ...]
    address: UnixAddress | TcpAddress
    key: str = field(repr=False)
    max_num_seqs: int
    max_model_len: int
    role: str = ""
    group: str = ""
    wire: str = ""
    engine: str = "transformers"
    adapters: tuple[str, ...] = ()
    max_loras: int = 0
    max_lora_rank: int = 0
    request_fields: EngineFields | None = field(default=None, repr=False)
    schema_library: str = ""
    thinks_in_text: bool = False
    takes_one_system: bool = False
    plan: Mapping[str, Any] | None = field(default=None, repr=False)
    has_report: bool = False
    tokenizer: Path | None = None
    max_prompt_bytes: int | None = None
    max_positions: int | None = None
    most_stretched: int | None = None
    vocab_size: int | None = None
    loads_on_demand: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", self.role or self.name)
        object.__setattr__(self, "group", self.group or self.role)

    @cached_property
    def shares_places(self) -> bool:
        """Whether it runs the sequences of all its requests in turns of their clients, whatever is sent to it."""
        return self.role == "chat" and not self.wire

    @cached_property
    def context(self) -> ContextLimits:
        """What a single request may hold."""
        return ContextLimits(self.max_model_len, self.max_prompt_bytes, self.max_positions, self.most_stretched)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every model name that a request for it may hold."""
        return (*self.models, *self.adapters)

    def to_json(self) -> dict[str, Any]:
        """For another process: every field by its name, as JSON."""
        return {name: write(getattr(self, name)) for name, (write, _) in _converters().items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WorkerFacts:
        """From `to_json`."""
        return cls(**{name: read(document[name]) for name, (_, read) in _converters().items()})


@dataclass(slots=True)
class WorkerLoad:
    """What a worker has to do. Written by the gateway, read by the supervisor.

    Attributes:
        num_awaited: requests for which the gateway waits for the worker's next bytes now.
        num_pieces: pieces of answers that came from the worker, ever.
        num_requests: requests that were given to the worker and are not over.
        num_outstanding_tokens: that it has yet to read and write, of `num_outstanding_requests`, those that wait in its
            queue among them.
        num_prefix_blocks: blocks of prompts that it is known to have in its prefix cache.
        num_matched_tokens: prompt tokens that should have been in that cache, ever.
        num_wanting: requests that wait for it to be loaded, and are not among `num_outstanding_requests`.
    """

    num_awaited: int = 0
    num_pieces: int = 0
    num_requests: int = 0
    num_outstanding_tokens: int = 0
    num_outstanding_requests: int = 0
    num_prefix_blocks: int = 0
    num_matched_tokens: int = 0
    num_wanting: int = 0


@dataclass(slots=True)
class TurnCounts:
    """Of a model that takes turns in memory: how often it was loaded, how long the last load took, how long it was
    there with requests, and how long requests waited for it until they had it, in seconds.
    """

    num_loads: int = 0
    load_s: float = 0.0
    served_s: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True)
class WorkerStatus:
    """How a worker is: one per worker, written by the supervisor and read by the gateway.

    Attributes:
        facts: those of its last start, or as planned before the first; replaced as a whole.
        detail: why it is not ready, for people; goes into the 503 that a client gets.
        refusal: why a ready worker takes no new requests now, for people; "": it does.
        num_restarts: how often it had to be started again.
        outside_deaths: of its lives, by `num_restarts`, those that someone ended from outside: no request did.
        start_phases_s: what the last start was spent on, in seconds.
        memory: tells what it holds in memory; None: its own GET /v1/qserve/memory does.
        latency: tells its requests' planned latency beside the measured one; None where nothing is planned.
        load: what the gateway writes back.
        turns: of a model that is loaded on demand; None: it is always there, or another process counts.
    """

    facts: WorkerFacts
    state: WorkerState = WorkerState.STARTING
    detail: str = "the worker is starting"
    refusal: str = ""
    num_restarts: int = 0
    outside_deaths: set[int] = field(default_factory=set, repr=False)
    start_phases_s: Mapping[str, float] = field(default_factory=dict, repr=False)
    memory: Callable[[], Awaitable[Mapping[str, Any]]] | None = field(default=None, repr=False)
    latency: Callable[[], Awaitable[Mapping[str, Any]]] | None = field(default=None, repr=False)
    load: WorkerLoad = field(default_factory=WorkerLoad, repr=False)
    turns: TurnCounts | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether it takes no requests now, and those for it wait until it is loaded."""
        return self.facts.loads_on_demand and self.state in _COMES_BACK

    @property
    def name(self) -> str:
        """Of its facts; it never changes."""
        return self.facts.name

    @property
    def role(self) -> str:
        """Of its facts; it never changes."""
        return self.facts.role

    @property
    def group(self) -> str:
        """Of its facts; it never changes."""
        return self.facts.group


_Converter = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""To JSON, and from it."""


def _same(value: Any) -> Any:
    return value


def _written_address(address: UnixAddress | TcpAddress) -> str | list[Any]:
    return str(address.path) if isinstance(address, UnixAddress) else [address.host, address.port]


def _read_address(written: str | list[Any]) -> UnixAddress | TcpAddress:
    return UnixAddress(Path(written)) if isinstance(written, str) else TcpAddress(*written)


# Of the types of `WorkerFacts` that JSON does not have; the others go as they are.
_CONVERTERS: Mapping[Any, _Converter] = {
    tuple[str, ...]: (list, tuple),
    UnixAddress | TcpAddress: (_written_address, _read_address),
    EngineFields | None: (lambda given: given and given.document, lambda written: written and fields_of(written)),
    Path | None: (lambda given: given and str(given), lambda written: written and Path(written)),
}


@cache
def _converters() -> Mapping[str, _Converter]:
    """By the name of the field."""
    types = get_type_hints(WorkerFacts)
    return {one.name: _CONVERTERS.get(types[one.name], (_same, _same)) for one in fields(WorkerFacts)}
