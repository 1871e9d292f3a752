"""Known but unsupported fields, each with the reason and the engine that supports it, if any."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED", "SERVED_BY_VLLM"]

REFUSED: Mapping[str, str] = {
    "functions": "deprecated by OpenAI; use 'tools'",
    "function_call": "deprecated by OpenAI; use 'tool_choice'",
    "suffix": "Qwen chat models do not fill in the middle through this field",
    "modalities": "only text is served",
    "audio": "only text is served",
    "prediction": "predicted outputs are not served",
    "verbosity": "no Qwen model has such a switch; ask for short answers in a message",
    "web_search_options": "there is no web search",
}
"""By name, on every route whose schema has no such field."""

_ELSEWHERE = "the transformers engine has no such field; vLLM does (--engine vllm)"

SERVED_BY_VLLM: Mapping[str, str] = dict.fromkeys(
    (
        "add_special_tokens",
        "allowed_token_ids",
        "bad_words",
        "chat_template",
        "documents",
        "length_penalty",
        "logprob_token_ids",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "prompt_embeds",
        "repetition_detection",
        "return_tokens_as_token_ids",
        "spaces_between_special_tokens",
        "stream_interval",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_beam_search",
        "vllm_xargs",
    ),
    _ELSEWHERE,
)
"""Of completions: what vLLM 0.32 reads and the transformers engine does not."""
