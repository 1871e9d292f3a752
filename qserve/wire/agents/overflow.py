"""What does not fit a model, in the words by which clients know it.

Frameworks and agents match text: litellm's `context_window_fallbacks` and opencode look for "This model's maximum
context length is", Claude Code, inspect and langchain for "prompt is too long: N tokens > M maximum". Claude Code
lowers `max_tokens` by itself where it reads "input length and `max_tokens` exceed context limit: N + M > L".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Overflow", "overflow_of_vllm"]


@dataclass(frozen=True)
class Overflow:
    """What was asked for, and the model's `limit` in tokens.

    Attributes:
        limit: tokens that the model takes, prompt and answer together.
        num_tokens: those of the prompt; 0 where they were not counted.
        max_tokens: what the request asks for behind the prompt; None: it does not matter.
        known_by: why `num_tokens` is a lower bound; "" where it is the number itself.
        what: what has these tokens.
    """

    limit: int
    num_tokens: int
    max_tokens: int | None = None
    known_by: str = ""
    what: str = "prompt"

    def for_openai(self) -> str:
        """The sentences that OpenAI's clients know."""
        return f"This model's maximum context length is {self.limit} tokens. However, {self._requested()}"

    def for_anthropic(self) -> str:
        """The same for Anthropic's."""
        answer, why = self._answer(), f" (at least: {self.known_by})" if self.known_by else ""
        said = f"prompt is too long: {self.num_tokens + answer} tokens > {self.limit} maximum{why}"
        if not answer:
            return said
        counted = "max_tokens included" if self.num_tokens else "of max_tokens alone (the prompt is not counted yet)"
        parts = f"{self.num_tokens} + {answer} > {self.limit}"
        return (
            f"{said}, {counted}: input length and `max_tokens` exceed context limit: {parts}, decrease input length or "
            "`max_tokens` and try again"
        )

    def _answer(self) -> int:
        """Tokens behind the prompt that are the ones too many; a prompt that is too long by itself has none."""
        return 0 if self.num_tokens > self.limit else self.max_tokens or 1

    def _requested(self) -> str:
        answer = self._answer()
        if not answer:
            least, why = ("at least ", f" ({self.known_by})") if self.known_by else ("", "")
            return f"your {self.what} has {least}{self.num_tokens} tokens{why}"
        if not self.num_tokens:
            return f"you requested {answer} tokens in the completion alone (max_tokens)"
        parts = f"{self.num_tokens} in the {self.what}, {answer} in the completion (max_tokens)"
        return f"you requested {self.num_tokens + answer} tokens: {parts}"


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
