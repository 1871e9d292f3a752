"""From the body of a request to the prompts in tokens, once: parsed, checked, rendered, tokenized."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from qserve.engine.prompts.special_tokens import HiddenTokens, strings_in
from qserve.engine.prompts.template import RESERVED_NAMES, ChatTemplate, TemplateRefused
from qserve.engine.prompts.tokenize import PromptTokenizer
from qserve.wire.errors import ApiError
from qserve.wire.openai import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

__all__ = ["BodyReader", "PromptBody"]


@dataclass(frozen=True)
class PromptBody:
    """What is left of a body: its request without the texts, as JSON, and their ids; or the answer itself."""

    request: bytes = b""
    prompts: list[array[int]] = field(default_factory=list)
    answer: bytes = b""


class BodyReader:
    """Reads bodies for one model. All errors are ApiErrors, 400."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        label: Callable[[int], str],
        decode: Callable[[list[int]], str],
        *,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        """`label` names a token in `token_strs`, `decode` writes ids as text."""
        self._tokenizer = tokenizer
        self._template = template
        self._label = label
        self._decode = decode
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size

    def chat(self, body: bytes) -> PromptBody:
        """POST /v1/chat/completions."""
        request = ChatCompletionRequest.parse(body)
        ids = self._conversation(
            request.messages,
            request.chat_template_kwargs,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            split_special_tokens=request.split_special_tokens,
        )
        last = request.messages[-1].role
        rest = _without(request, "messages", "chat_template_kwargs") | {"messages": [{"role": last, "content": ""}]}
        return PromptBody(json.dumps(rest).encode(), [array("i", ids)])

    def completion(self, body: bytes) -> PromptBody:
        """POST /v1/completions: text gets no BOS that the tokenizer does not add itself, token ids stay as they are."""
        request = CompletionRequest.parse(body)
        given: list[Any] = request.prompt if isinstance(request.prompt, list) else [request.prompt]
        if isinstance(given[0], int):
            given = [given]
        prompts = []
        for prompt in given:
            self._tokenizer.check_size(prompt)
            ids = self._tokenizer.prompt_ids(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
            if max(ids, default=0) >= self._vocab_size:
                raise self._unknown_id("prompt", max(ids))
            prompts.append(array("i", ids))
        return PromptBody(json.dumps(_without(request, "prompt") | {"prompt": ""}).encode(), prompts)

    def tokenize(self, body: bytes) -> PromptBody:
        """POST /tokenize."""
        request = TokenizeRequest.parse(body)
        if request.messages is None:
            assert request.prompt is not None, "one of the two is there"
            ids = self._tokenizer.ids(request.prompt, add_special_tokens=request.add_special_tokens)
        else:
            ids = self._conversation(
                request.messages,
                request.chat_template_kwargs,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=False,
                split_special_tokens=request.split_special_tokens,
            )
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self._max_model_len, "tokens": ids}
        if request.return_token_strs:
            answer["token_strs"] = [self._label(token_id) for token_id in ids]
        return PromptBody(answer=json.dumps(answer, ensure_ascii=False).encode(errors="replace"))

    def detokenize(self, body: bytes) -> PromptBody:
        """POST /detokenize."""
        tokens = DetokenizeRequest.parse(body).tokens
        if max(tokens, default=0) >= self._vocab_size:
            raise ApiError(400, f"this model's ids end at {self._vocab_size - 1}", "invalid_value", "tokens")
        answer = {"prompt": self._decode(tokens)}
        return PromptBody(answer=json.dumps(answer, ensure_ascii=False).encode(errors="replace"))

    def _conversation(
        self,
        messages: list[ChatMessage],
        variables: dict[str, Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        split_special_tokens: bool,
    ) -> list[int]:
        """The conversation through the model's chat template. A template's own complaint is a 400."""
        if self._template is None:
            raise ApiError(
                400,
                "this model has no chat template; use /v1/completions with a plain prompt",
                "no_chat_template",
                "messages",
            )
        clash = RESERVED_NAMES & set(variables or ())
        if clash:
            names = ", ".join(sorted(clash))
            raise ApiError(400, f"'chat_template_kwargs' may not set {names}", "invalid_value", "chat_template_kwargs")
        conversation = [{"role": message.role, "content": message.text()} for message in messages]
        variables = variables or {}
        special = self._tokenizer.special
        hidden = HiddenTokens()
        if split_special_tokens:
            hidden = special.hide(strings_in([conversation, variables]), self._template.source)
        if hidden:
            conversation, variables = special.hidden_in([conversation, variables], hidden)
        try:
            text = self._template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
            )
        except TemplateRefused as error:
            why = hidden.reveal(str(error))
            raise ApiError(
                400, f"the chat template refuses these messages: {why}", "chat_template", "messages"
            ) from error
        return self._tokenizer.conversation_ids(text, hidden)

    def _unknown_id(self, name: str, largest: int) -> ApiError:
        return ApiError(
            400,
            f"'{name}' holds token id {largest}; this model's ids end at {self._vocab_size - 1}",
            "invalid_value",
            name,
        )


def _without(request: BaseModel, *names: str) -> dict[str, Any]:
    """What the worker needs of it: a few hundred bytes, since `user` and `metadata` are used by nobody."""
    return request.model_dump(mode="json", exclude={*names, "user", "metadata"}, exclude_none=True)
