"""What does not fit a model, in the words by which clients know it.

Frameworks and agents match text: litellm's `context_window_fallbacks` and opencode look for "This model's maximum
context length is", Claude Code, inspect and langchain for "prompt is too long: N tokens > M maximum". Claude Code
lowers `max_tokens` by itself where it reads "input length and `max_tokens` exceed context limit: N + M > L".
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Overflow"]


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
