"""What does not fit a model, in the words by which clients know it.

Frameworks and agents match text: litellm's `context_window_fallbacks` and opencode look for "This model's maximum
context length is", Claude Code, inspect and langchain for "prompt is too long: N tokens > M maximum". Claude Code
lowers `max_tokens` by itself where it reads "input length and `max_tokens` exceed context limit: N + M > L".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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


_CUT = "the engine counts no further"


def _of_characters(found: re.Match[str]) -> Overflow:
    limit, chars, most_chars, most_tokens = map(int, found.groups())
    at_least = -(-chars * most_tokens // most_chars)
    return Overflow(limit, at_least, known_by=f"it has {chars} characters")


# What vLLM 0.32 says of a length, in the order in which it looks.
_OF_VLLM: Mapping[re.Pattern[str], Callable[[re.Match[str]], Overflow]] = {
    re.compile(
        r"maximum context length is (\d+) tokens\. However, your prompt contains (\d+) characters \(more than (\d+) "
        r"characters, which is the upper bound for (\d+) input tokens"
    ): _of_characters,
    re.compile(
        r"maximum context length is (\d+) tokens\. However, your prompt contains (at least )?(\d+) input tokens"
    ): lambda found: Overflow(int(found[1]), int(found[3]), known_by=_CUT if found[2] else ""),
    re.compile(r"max_(?:completion_|output_)?tokens=(\d+) cannot be greater than max_model_len=(\d+)"): lambda found: (
        Overflow(int(found[2]), 0, int(found[1]))
    ),
    re.compile(r"prompt length (\d+) exceeds the max_model_len (\d+)"): lambda found: Overflow(
        int(found[2]), int(found[1])
    ),
    re.compile(r"Input length \((\d+)\) exceeds model's maximum context length \((\d+)\)"): lambda found: Overflow(
        int(found[2]), int(found[1])
    ),
    re.compile(r"prompt \(length (\d+)\) is longer than the maximum model length of (\d+)"): lambda found: Overflow(
        int(found[2]), int(found[1])
    ),
    re.compile(
        r"prompt \(length (\d+)\) plus the number of requested output tokens \(at least 1\) is longer than the maximum "
        r"model length of (\d+)"
    ): lambda found: Overflow(int(found[2]), int(found[1])),
}


def overflow_of_vllm(message: str) -> Overflow | None:
    """What vLLM says does not fit; None: it speaks of something else."""
    for pattern, read in _OF_VLLM.items():
        if (found := pattern.search(message)) is not None:
            return read(found)
    return None
