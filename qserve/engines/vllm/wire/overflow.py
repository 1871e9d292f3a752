"""What vLLM says of a request that does not fit its model."""

from __future__ import annotations

import re

from qserve.wire.overflow import Overflow

__all__ = ["overflow_of_vllm"]

# What vLLM 0.32 says of a length, in the order in which it looks.
_OF_VLLM = (
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens\. However, your prompt contains (?P<chars>\d+) characters "
        r"\(more than (?P<most_chars>\d+) characters, which is the upper bound for (?P<most_tokens>\d+) input tokens"
    ),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens\. However, your prompt contains (?P<at_least>at least )?"
        r"(?P<num_tokens>\d+) input tokens"
    ),
    re.compile(
        r"max_(?:completion_|output_)?tokens=(?P<max_tokens>\d+) cannot be greater than max_model_len=(?P<limit>\d+)"
    ),
    re.compile(r"prompt length (?P<num_tokens>\d+) exceeds the max_model_len (?P<limit>\d+)"),
    re.compile(r"Input length \((?P<num_tokens>\d+)\) exceeds model's maximum context length \((?P<limit>\d+)\)"),
    re.compile(
        r"prompt \(length (?P<num_tokens>\d+)\) (?:plus the number of requested output tokens \(at least 1\) )?"
        r"is longer than the maximum model length of (?P<limit>\d+)"
    ),
)


def overflow_of_vllm(message: str) -> Overflow | None:
    """What vLLM says does not fit; None: it speaks of something else."""
    found = next((found for pattern in _OF_VLLM if (found := pattern.search(message)) is not None), None)
    if found is None:
        return None
    said, limit = found.groupdict(), int(found["limit"])
    if "max_tokens" in said:
        return Overflow(limit, 0, int(said["max_tokens"]))
    if "chars" in said:
        at_least = -(-int(said["chars"]) * int(said["most_tokens"]) // int(said["most_chars"]))
        return Overflow(limit, at_least, known_by=f"it has {said['chars']} characters")
    return Overflow(
        limit, int(said["num_tokens"]), known_by="the engine counts no further" if said.get("at_least") else ""
    )
