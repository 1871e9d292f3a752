"""What is left of a body once it was read: checked fields without texts, and prompts in tokens.

The process that reads bodies makes it and the worker takes it as it is: nothing of it is checked again.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from qserve.engines.transformers.worker.prompts.thought_start import ThoughtStart
from qserve.grammar.spec import GrammarSpec

__all__ = ["AnswerFields", "ChatFields", "CompletionFields", "ReadBody"]


@dataclass(frozen=True, kw_only=True)
class AnswerFields:
    """What chats and completions ask of an answer; each as in `wire.openai.SamplingFields`, where it has that name.

    Attributes:
        max_tokens: of the answer; None: as many as fit.
        num_logprobs: None for none at all, 0 for the chosen token's, N for the N likeliest beside it.
    """

    model: str
    n: int
    stream: bool
    include_usage: bool
    continuous_usage_stats: bool
    cache_salt: str | None
    return_token_ids: bool
    prompt_logprobs: int | None
    num_logprobs: int | None
    max_tokens: int | None
    min_tokens: int
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float]
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    include_stop_str_in_output: bool
    ignore_eos: bool
    skip_special_tokens: bool


@dataclass(frozen=True, kw_only=True)
class ChatFields(AnswerFields):
    """Of a chat, whichever API it came by.

    Attributes:
        offered_tools: the parameters of each tool that the answer may call, a JSON schema, by its name.
        names_tool: one of them must be called, and no other.
        refuses_thoughts: the request wants none.
    """

    offered_tools: Mapping[str, dict[str, Any]]
    names_tool: bool
    refuses_thoughts: bool
    include_reasoning: bool
    thinking_token_budget: int | None


@dataclass(frozen=True, kw_only=True)
class CompletionFields(AnswerFields):
    """Of a completion."""

    echo: bool


Fields = TypeVar("Fields", bound=AnswerFields)


@dataclass(frozen=True)
class ReadBody(Generic[Fields]):
    """One request.

    Attributes:
        prompts: their tokens; a chat has one.
        grammar: what the answer must follow.
        thought: where it begins.
        echo: what it says of its request.
    """

    fields: Fields
    prompts: tuple[array[int], ...]
    grammar: GrammarSpec | None = None
    thought: ThoughtStart = "unknown"
    echo: Mapping[str, Any] = field(default_factory=dict)

    def to_frame(self) -> tuple[dict[str, Any], list[bytes]]:
        """For another process (`qserve.worker.framed_process`)."""
        head = {
            "fields": self.fields,
            "grammar": self.grammar,
            "thought": self.thought,
            "echo": self.echo,
            "lengths": [len(ids) for ids in self.prompts],
        }
        return msgspec.to_builtins(head), [ids.tobytes() for ids in self.prompts]

    @classmethod
    def from_frame(cls, kind: type[Fields], head: Mapping[str, Any], data: bytes) -> ReadBody[Fields]:
        """What `to_frame` made of a request with such fields."""
        prompts: list[array[int]] = []
        start = 0
        for length in head["lengths"]:
            prompts.append(array("i"))
            prompts[-1].frombytes(data[start : start + 4 * length])
            start += 4 * length
        fields = msgspec.convert(head["fields"], kind)
        grammar = msgspec.convert(head["grammar"], GrammarSpec | None)
        return cls(fields, tuple(prompts), grammar, head["thought"], head["echo"])


assert array("i").itemsize == 4, "ids travel as 32-bit integers"
