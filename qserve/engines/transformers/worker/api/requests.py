"""From the fields of a request to what the engine runs: sampling parameters, lengths that fit."""

from __future__ import annotations

from dataclasses import replace

from qserve.engines.transformers.worker.engine import Engine, Generation, seeded
from qserve.engines.transformers.worker.prompts.read_body import AnswerFields, ChatFields, CompletionFields, ReadBody
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.thought_budget import ThoughtBudget
from qserve.hub.token_rows import without_row
from qserve.wire.errors import ApiError

__all__ = ["chat_generations", "completion_max_tokens", "generations", "sampling_params"]

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions


def sampling_params(engine: Engine, request: AnswerFields) -> SamplingParams:
    """The request's own values over the model's defaults."""
    given = {
        name: value
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        )
        if (value := getattr(request, name)) is not None
    }
    if request.top_k is not None:
        given["top_k"] = max(0, request.top_k)
    bias = {int(key): value for key, value in request.logit_bias.items()}
    stop_ids = set(request.stop_token_ids)
    for name, ids in (("logit_bias", bias), ("stop_token_ids", stop_ids)):
        if (found := without_row(ids, engine.vocab_size, engine.tokenizer.convert_ids_to_tokens)) is not None:
            raise ApiError(400, f"'{name}' contains {found}", "invalid_value", name)
    if not request.ignore_eos:
        stop_ids |= engine.eos_token_ids
    return replace(
        engine.defaults,
        **given,
        logit_bias=bias,
        min_tokens=request.min_tokens,
        stop_token_ids=frozenset(stop_ids),
        num_logprobs=request.num_logprobs,
    )


def chat_generations(engine: Engine, body: ReadBody[ChatFields], grammar: AnswerGrammar | None) -> list[Generation]:
    """`n` generations from one conversation, which `body` holds in tokens."""
    request, prompt = body.fields, body.prompts[0].tolist()
    budget = _thought_budget(engine, request)
    params = replace(sampling_params(engine, request), thought_budget=budget, grammar=grammar)
    max_tokens = engine.check_length(len(prompt), request.max_tokens)
    _check_min_tokens(request, max_tokens)
    made = generations([prompt], params, max_tokens, request)
    if not engine.chat_format.has_special_tags:
        return made
    return [replace(one, skip_special_tokens=False) for one in made]  # the tags are read out of the text


def _thought_budget(engine: Engine, request: ChatFields) -> ThoughtBudget | None:
    """What the request says; 0 where it wants no thoughts of a model whose template has no switch."""
    tokens, chat = request.thinking_token_budget, engine.chat_format
    if tokens is not None and chat.think_ids is None:
        message = "'thinking_token_budget': this model's chat template does not support thinking; leave it out"
        raise ApiError(400, message, "unsupported_value", "thinking_token_budget")
    if tokens is None and request.refuses_thoughts and not chat.thinking.has_switch:
        tokens = 0
    return None if tokens is None or chat.think_ids is None else ThoughtBudget(tokens, *chat.think_ids)


def completion_max_tokens(engine: Engine, request: CompletionFields, prompt: list[int]) -> int:
    """Tokens to generate after `prompt`; 16 where the request does not say, fewer where the context ends before."""
    most = engine.check_length(len(prompt), request.max_tokens)
    most = most if request.max_tokens is not None else min(_DEFAULT_COMPLETION_TOKENS, most)
    _check_min_tokens(request, most)
    return most


def generations(
    prompts: list[list[int]], params: SamplingParams, max_tokens: int, request: AnswerFields
) -> list[Generation]:
    """`n` generations a prompt, in the order of the choices of the answer."""
    return [
        Generation(
            prompt,
            seeded(params, index),
            max_tokens,
            request.stop,
            request.include_stop_str_in_output,
            request.skip_special_tokens,
        )
        for prompt in prompts
        for index in range(request.n)
    ]


def _check_min_tokens(request: AnswerFields, max_tokens: int) -> None:
    if request.min_tokens > max_tokens:
        message = f"'min_tokens' is {request.min_tokens}, and the answer may have {max_tokens} tokens at most"
        raise ApiError(400, f"{message}; lower it, or raise max_tokens", "invalid_value", "min_tokens")
