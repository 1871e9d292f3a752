"""What an allocator says when there is no more, on a card and on a CPU, and what a client is told of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qserve.model.failures import SequenceFailed

__all__ = ["OutOfMemory", "as_memory_error", "free_what_failed", "is_broken_device", "is_out_of_memory"]

# torch raises RuntimeError for a CPU ("DefaultCPUAllocator: can't allocate memory: you tried to allocate …"), oneDNN
# and cuBLAS for their scratch; only a card's own allocator has a class for it.
_PHRASES = ("you tried to allocate", "out of memory", "out_of_memory", "status_alloc_failed", "cannot allocate memory")


class OutOfMemory(SequenceFailed):
    """The machine had no memory for this sequence. It may be asked again when others have ended."""

    code = "out_of_memory"

    @classmethod
    def while_doing(cls, what: str, error: BaseException) -> OutOfMemory:
        """`what` was being done, for example `reading 512 tokens of its prompt`."""
        return cls(
            f"there was no memory left for this request while {what} ({_first_line(error)}). Ask for less (a shorter "
            "prompt or max_tokens), or serve with a lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, as opposed to a mistake in the program or a broken card."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in said for phrase in _PHRASES)


def is_broken_device(error: BaseException) -> bool:
    """Whether a card reported an error after which its context is of no use: only a new process helps."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


@contextmanager
def as_memory_error(what: str) -> Iterator[None]:
    """An allocator's complaint of whatever class leaves as a MemoryError that names `what` there was no room for."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryError(f"no memory for {what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def free_what_failed() -> None:
    """Give back what the failed step held. Call it outside the `except` block: the traceback keeps its tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
