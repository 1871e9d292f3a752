"""Has vLLM's server refuse ids that the model's embedding has no rows for.

vLLM 0.32 takes every id that the tokenizer knows (`BaseRenderer.validate_token_ids`; some models of images have more
of them than rows), and such an id ends the engine, with everybody's requests. Only servers of checkpoints that have
such tokens are changed, in four places where vLLM itself checks or gathers ids.
"""

from __future__ import annotations

from typing import Any

__all__ = ["VARIABLE", "refuse_rowless_ids"]

VARIABLE = "QSERVE_TOKEN_ROWS"
"""In the environment of such a server: the number of rows."""


def refuse_rowless_ids(num_rows: int) -> None:
    """Before the server is imported."""
    from vllm.renderers.base import BaseRenderer
    from vllm.renderers.params import TokenizeParams
    from vllm.sampling_params import SamplingParams

    finish = TokenizeParams.apply_post_tokenization
    validate, add_words = BaseRenderer.validate_token_ids, SamplingParams.update_from_tokenizer
    add_ends = SamplingParams.update_from_generation_config

    def apply_post_tokenization(self: Any, tokenizer: Any, prompt: Any) -> Any:
        """Before a stream has begun with a status of 200."""
        finished = finish(self, tokenizer, prompt)
        _check(finished.get("prompt_token_ids"), num_rows, tokenizer, "the prompt", None)
        return finished

    def validate_token_ids(self: Any, token_ids: Any, *, parameter: str | None = None) -> None:
        validate(self, token_ids, parameter=parameter)
        _check(token_ids, num_rows, self.tokenizer, "the prompt", parameter)

    def update_from_generation_config(self: Any, *args: Any, **kwargs: Any) -> None:
        add_ends(self, *args, **kwargs)
        # An end that is never drawn. With `min_tokens` the others are forbidden by their places among the logits.
        self._all_stop_token_ids = {one for one in self._all_stop_token_ids if one < num_rows}

    def update_from_tokenizer(self: Any, tokenizer: Any) -> None:
        add_words(self, tokenizer)
        for ids in self._bad_words_token_ids or ():
            _check(ids, num_rows, tokenizer, "'bad_words'", "bad_words")

    TokenizeParams.apply_post_tokenization = apply_post_tokenization
    BaseRenderer.validate_token_ids = validate_token_ids
    SamplingParams.update_from_generation_config = update_from_generation_config
    SamplingParams.update_from_tokenizer = update_from_tokenizer


def _check(token_ids: Any, num_rows: int, tokenizer: Any, where: str, parameter: str | None) -> None:
    from vllm.exceptions import VLLMValidationError

    token_id = next((one for one in token_ids or () if one >= num_rows), None)
    if token_id is None:
        return
    text = None if tokenizer is None else tokenizer.convert_ids_to_tokens(token_id)
    named = f"the token id {token_id}" if text is None else f"the token {text!r} (id {token_id})"
    raise VLLMValidationError(
        f"{where} contains {named}, which has no row in this model's embedding: its ids end at {num_rows - 1}",
        parameter=parameter,
    )
