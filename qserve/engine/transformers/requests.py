"""From a validated request to what the engine runs: prompts in tokens, sampling parameters, lengths that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qserve.engine.prompts.template import RESERVED_NAMES, ChatTemplate, TemplateRefused
from qserve.engine.transformers.engine import Engine, Generation, seeded
from qserve.engine.transformers.sampling import SamplingParams
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest, ChatMessage, CompletionRequest, SamplingFields

__all__ = ["chat_generations", "chat_prompt", "completion_prompts", "generations", "sampling_params"]

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions


def sampling_params(engine: Engine, request: SamplingFields, num_logprobs: int | None) -> SamplingParams:
    """The request's own values over the model's defaults."""
    given = {
        name: value
        for name in (
            "temperature", "top_p", "min_p", "seed",
            "presence_penalty", "frequency_penalty", "repetition_penalty",
        )
        if (value := getattr(request, name)) is not None
    }  # fmt: skip
    if request.top_k is not None:
        given["top_k"] = max(0, request.top_k)
    bias = {int(key): value for key, value in (request.logit_bias or {}).items()}
    stop_ids = set(request.stop_token_ids or ())
    for name, ids in (("logit_bias", bias), ("stop_token_ids", stop_ids)):
        _check_ids(engine, name, max(ids, default=0))
    if not request.ignore_eos:
        stop_ids |= engine.eos_token_ids
    return replace(
        engine.defaults,
        **given,
        logit_bias=bias,
        min_tokens=request.min_tokens,
        stop_token_ids=frozenset(stop_ids),
        num_logprobs=num_logprobs,
    )


def chat_prompt(
    engine: Engine,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    template_kwargs: dict[str, Any] | None = None,
) -> list[int]:
    """The conversation through the model's chat template. A template's own complaint is a 400."""
    if not engine.tokenizer.chat_template:
        raise ApiError(
            400,
            "this model has no chat template; use /v1/completions with a plain prompt",
            "no_chat_template",
            "messages",
        )
    clash = RESERVED_NAMES & set(template_kwargs or ())
    if clash:
        raise ApiError(
            400,
            f"'chat_template_kwargs' may not set {', '.join(sorted(clash))}",
            "invalid_value",
            "chat_template_kwargs",
        )
    template = ChatTemplate(engine.tokenizer.get_chat_template(), engine.tokenizer.special_tokens_map)
    try:
        text = template.render(
            [{"role": message.role, "content": message.text()} for message in messages],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=template_kwargs,
        )
    except TemplateRefused as error:
        raise ApiError(
            400, f"the chat template refuses these messages: {error}", "chat_template", "messages"
        ) from error
    ids: list[int] = engine.tokenizer.encode(text, add_special_tokens=False)
    return ids


def chat_generations(engine: Engine, request: ChatCompletionRequest) -> list[Generation]:
    """`n` generations from one conversation."""
    prompt = chat_prompt(
        engine,
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template_kwargs=request.chat_template_kwargs,
    )
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    params = sampling_params(engine, request, num_logprobs)
    max_tokens = engine.check_length(len(prompt), request.max_completion_tokens or request.max_tokens)
    return generations([prompt], params, max_tokens, request)


def completion_prompts(engine: Engine, request: CompletionRequest) -> list[list[int]]:
    """The prompts in tokens; token arrays stay as they are, text gets no BOS that the tokenizer does not add itself."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [engine.tokenizer.encode(prompt)]
    if isinstance(prompt[0], int):
        prompts: list[list[int]] = [prompt]
    elif isinstance(prompt[0], str):
        return [engine.tokenizer.encode(text) for text in prompt]
    else:
        prompts = prompt
    for ids in prompts:
        _check_ids(engine, "prompt", max(ids))
    return prompts


def completion_max_tokens(engine: Engine, request: CompletionRequest, prompt: list[int]) -> int:
    """Tokens to generate after `prompt`; 16 where the request does not say, fewer where the context ends before."""
    if request.max_tokens is not None:
        return engine.check_length(len(prompt), request.max_tokens)
    return min(_DEFAULT_COMPLETION_TOKENS, engine.check_length(len(prompt), None))


def generations(
    prompts: list[list[int]], params: SamplingParams, max_tokens: int, request: SamplingFields
) -> list[Generation]:
    """`n` generations a prompt, in the order of the choices of the answer."""
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    return [
        Generation(
            prompt,
            seeded(params, index),
            max_tokens,
            stops,
            request.include_stop_str_in_output,
            request.skip_special_tokens,
        )
        for prompt in prompts
        for index in range(request.n)
    ]


def _check_ids(engine: Engine, field: str, largest: int) -> None:
    if largest >= engine.vocab_size:
        raise ApiError(
            400,
            f"'{field}' holds token id {largest}; this model's ids end at {engine.vocab_size - 1}",
            "invalid_value",
            field,
        )
