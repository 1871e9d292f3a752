"""What a batcher is: the part of the engine that runs many sequences through the model at once.

There is one per way of keeping a cache. `paged` drives transformers' continuous batching; models that it refuses, the
hybrids, go to `rows.batcher`, behind the same four verbs: submit, cancel, exclusive, load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from qserve.engines.transformers.worker.batching.step_path import StepPath
from qserve.engines.transformers.worker.batching.turns import NO_CLIENT, Turn
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.failures import SequenceFailed

if TYPE_CHECKING:
    import torch

__all__ = [
    "BatchLimits",
    "Batcher",
    "BatcherLoad",
    "Deliveries",
    "GraphMemory",
    "Sequence",
    "failure_of",
    "undelivered_of",
]

_log = logging.getLogger("qserve.worker")


@dataclass(eq=False)
class Sequence:
    """A prompt that is being continued.

    `outbox` receives one `TokenChoice` a token, on the event loop; a `SequenceFailed` ends it early. After `max_tokens`
    tokens, or a token of `stop_token_ids`, nothing more comes.

    `sampled_ids` are the tokens so far, and `num_shared_failures` counts failed steps in which it was one of several;
    `undelivered` was drawn last and is not in the outbox yet; of one that `is_complete` nothing more is to come.
    All belong to the generating thread.

    `turn` is whose it is, where sequences wait for each other; keys of prompts are shared with those of the same
    `cache_salt` alone, and `num_cached_tokens` of this prompt were there when it began.
    """

    request_id: str
    prompt_ids: list[int]
    max_tokens: int
    stop_token_ids: frozenset[int]
    sampler: SequenceSampler
    turn: Turn = NO_CLIENT
    cache_salt: str = ""
    num_cached_tokens: int = 0
    sampled_ids: list[int] = field(default_factory=list)
    num_shared_failures: int = 0
    has_failed: bool = False
    is_complete: bool = False
    undelivered: TokenChoice | SequenceFailed | None = None
    outbox: asyncio.Queue[TokenChoice | SequenceFailed] = field(default_factory=asyncio.Queue)

    @property
    def num_tokens(self) -> int:
        """Of the prompt, and drawn."""
        return len(self.prompt_ids) + len(self.sampled_ids)

    def note(self, item: TokenChoice | SequenceFailed) -> None:
        """What was drawn for it, or that this has failed."""
        self.undelivered = item
        if not isinstance(item, TokenChoice):
            self.has_failed = self.is_complete = True
            return
        self.sampled_ids.append(item.token_id)
        self.is_complete = len(self.sampled_ids) >= self.max_tokens or item.token_id in self.stop_token_ids

    def __deepcopy__(self, memo: dict[int, object]) -> Sequence:
        """Itself. When the KV pool is full, transformers starts a request anew from a deep copy of its arguments; the
        sampler must go on where it was, and somebody waits at this outbox.
        """
        return self


def failure_of(sequence: Sequence, error: BaseException) -> SequenceFailed:
    """What the client of a sequence is told that an exception has ended; the log gets the rest, with its id."""
    if isinstance(error, SequenceFailed):
        return error
    _log.error("request %s failed", sequence.request_id, exc_info=error)
    return SequenceFailed(
        f"the worker failed on this request ({type(error).__name__}); its log says why, under {sequence.request_id}"
    )


Deliveries = list[tuple[Sequence, TokenChoice | SequenceFailed]]
"""What a step yields."""


def undelivered_of(sequences: Iterable[Sequence]) -> Deliveries:
    """What a failed step has drawn and not handed over: it is not drawn again."""
    return [(one, one.undelivered) for one in sequences if one.undelivered is not None]


@dataclass(frozen=True)
class BatcherLoad:
    """Right now: sequences that generate, sequences that wait, and how much of the KV pool is taken (0 to 1).

    `num_shared_tokens`: prompt tokens that were in the cache already, ever.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_shared_tokens: int = 0


@dataclass(frozen=True)
class BatchLimits:
    """What a batcher may hold and compute at once.

    Attributes:
        kv_cache_tokens: size of the KV pool; floored to whole pages.
        max_num_seqs: sequences that share a step.
        max_num_batched_tokens: tokens of prompts in a step; longer prompts are split.
        captures: whether decoding steps may be captured on a card: graphs take memory that the plan has counted.
        max_model_len: tokens of the longest sequence; None: as many as the pool has.
    """

    kv_cache_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    captures: bool = True
    max_model_len: int | None = None


@dataclass(frozen=True)
class GraphMemory:
    """What captures took of a card, and the part of it that torch's allocator does not know of."""

    num_bytes: int = 0
    outside_bytes: int = 0

    @classmethod
    def since(cls, before: tuple[int, int], now: tuple[int, int]) -> GraphMemory:
        """Between two readings of (free bytes, allocator's bytes); nothing where others freed more meanwhile."""
        taken = max(0, before[0] - now[0])
        return cls(taken, max(0, taken - max(0, now[1] - before[1])))

    def __add__(self, other: GraphMemory) -> GraphMemory:
        return GraphMemory(self.num_bytes + other.num_bytes, self.outside_bytes + other.outside_bytes)


class Batcher(Protocol):
    """Thread-safe for its caller: all verbs may be called from the event loop while a thread of its own generates."""

    kv_cache_bytes: int
    kv_cache_tokens: int
    attention: str
    """Whose kernel: `sdpa`, `compiled`, or one of `attention.kernels`."""
    passed_over: dict[str, str]
    """Why others were not taken, by name."""

    @property
    def graph_memory(self) -> GraphMemory:
        """What captured steps hold of a card so far."""

    @property
    def step_path(self) -> StepPath:
        """How decoding steps run now, and which kernels the card refused; `code_path` tells all of it."""

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Start generating. `on_death` is called, from the generating thread, when it can't go on."""

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Tokens arrive in its outbox."""

    def cancel(self, sequence: Sequence) -> None:
        """Stop a sequence that nobody waits for. Harmless for one that has ended."""

    def exclusive(self) -> AbstractContextManager[None]:
        """The model to oneself between two steps, from another thread: for prompt log-probabilities."""

    def load(self) -> BatcherLoad:
        """How busy it is."""

    def cache_tensors(self) -> Iterable[torch.Tensor]:
        """What keys, values and states lie in, once it has started."""
