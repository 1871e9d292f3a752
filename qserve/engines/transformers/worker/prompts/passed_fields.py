"""From a checked request to what the worker needs of it; its texts and what nobody uses are left out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from qserve.engines.transformers.worker.prompts.read_body import AnswerFields, ChatFields, CompletionFields
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, SamplingFields
from qserve.wire.tools import NamedTool

__all__ = ["chat_fields", "completion_fields"]

_SAME = frozenset(one.name for one in fields(AnswerFields)) & SamplingFields.model_fields.keys()


def chat_fields(request: ChatCompletionRequest) -> ChatFields:
    """Of a chat."""
    return ChatFields(
        **_shared(request),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        num_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        offered_tools={tool.function.name: tool.function.parameters or {} for tool in request.offered_tools},
        names_tool=isinstance(request.tool_choice, NamedTool),
        refuses_thoughts=request.reasoning_effort == "none",
        include_reasoning=request.include_reasoning,
        thinking_token_budget=request.thinking_token_budget,
    )


def completion_fields(request: CompletionRequest) -> CompletionFields:
    """Of a completion."""
    return CompletionFields(
        **_shared(request), max_tokens=request.max_tokens, num_logprobs=request.logprobs, echo=request.echo
    )


def _shared(request: SamplingFields) -> dict[str, Any]:
    options, stop = request.stream_options, request.stop
    return {name: getattr(request, name) for name in _SAME} | {
        "include_usage": options is not None and options.include_usage,
        "continuous_usage_stats": options is not None and options.continuous_usage_stats,
        "return_token_ids": bool(request.return_token_ids),
        "logit_bias": request.logit_bias or {},
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
    }
