"""How many tokens an answer may have: room for the thought and for the answer after it, within the server's length."""

from __future__ import annotations

from qserve.evaluation.answers.thinking import Thinking
from qserve.evaluation.request import EvalRequest

__all__ = ["CHAT_ANSWER_TOKENS", "THOUGHT_TOKENS", "token_limit"]

# What Qwen's model cards recommend as output length for most queries (Qwen3, Qwen3.5).
THOUGHT_TOKENS = 32_768
# For chat tasks without a limit of their own; lm-eval's 256 cut off an ordinary chain of thought.
CHAT_ANSWER_TOKENS = 2048
# lm-eval's default, for tasks that are no chat: their answers end at a stop string.
_PLAIN_ANSWER_TOKENS = 256


def token_limit(
    request: EvalRequest, thinking: Thinking, task_limit: int | None, prompt_bytes: int, max_model_len: int
) -> int | None:
    """Tokens to ask for; None: what the server has left after the prompt.

    Args:
        request: `max_gen_toks` goes before everything else.
        thinking: a thought comes before the answer.
        task_limit: the task's own `max_gen_toks`, for the answer.
        prompt_bytes: of the prompt with its template; it has no more tokens than bytes.
        max_model_len: prompt and answer together; 0 where the server does not say.
    """
    if request.max_gen_toks is not None:
        return request.max_gen_toks
    wanted = task_limit or (CHAT_ANSWER_TOKENS if request.chat else _PLAIN_ANSWER_TOKENS)
    if thinking.on:
        wanted += request.thinking_budget or THOUGHT_TOKENS
    return wanted if not max_model_len or wanted + prompt_bytes <= max_model_len else None
