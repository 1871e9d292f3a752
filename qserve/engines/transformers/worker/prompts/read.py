"""From the body of a request to the prompts in tokens, once: parsed, checked, rendered, tokenized."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from qserve.engines.transformers.worker.prompts.passed_fields import chat_fields, completion_fields
from qserve.engines.transformers.worker.prompts.read_body import ChatFields, CompletionFields, ReadBody
from qserve.engines.transformers.worker.prompts.thought_start import ThoughtStart, thought_start
from qserve.engines.transformers.worker.prompts.tokenize import PromptTokenizer
from qserve.grammar.spec import GrammarSpec
from qserve.hub.chat_template import ToolFormat, tool_format
from qserve.hub.token_rows import without_row
from qserve.prompts.special_tokens import HiddenTokens, strings_in
from qserve.prompts.template import RESERVED_NAMES, ChatTemplate, TemplateRefused
from qserve.wire.dialects.messages import CountTokensRequest, MessagesRequest
from qserve.wire.dialects.responses import InputTokensRequest, ResponsesRequest
from qserve.wire.errors import ApiError
from qserve.wire.messages import ConversationMessage
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from qserve.wire.structured import StructuredOutputs
from qserve.wire.tools import as_json, callable_tools
from qserve.wire.validation import from_validation

__all__ = ["BodyReader"]


class BodyReader:
    """Reads bodies for one model. All errors are ApiErrors, 400."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        tool_template: ChatTemplate | None,
        piece: Callable[[int], str | None],
        decode: Callable[[list[int]], str],
        *,
        max_model_len: int,
        vocab_size: int,
        named_templates: tuple[str, ...] = (),
    ) -> None:
        """`piece` is a token's entry in the vocabulary, `decode` writes ids as text.

        `tool_template` renders conversations with tools, `template` all others.
        """
        self._tokenizer = tokenizer
        self._template = template
        self._tool_template = tool_template
        self._piece = piece
        self._decode = decode
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._named_templates = named_templates

    def chat(self, body: bytes) -> ReadBody[ChatFields]:
        """POST /v1/chat/completions."""
        return self._chat(ChatCompletionRequest.parse(body))

    def messages(self, body: bytes) -> ReadBody[ChatFields]:
        """POST /v1/messages."""
        return self._translated(MessagesRequest.parse(body))

    def responses(self, body: bytes) -> ReadBody[ChatFields]:
        """POST /v1/responses."""
        request = ResponsesRequest.parse(body)
        return self._translated(request, request.larks)

    def count_tokens(self, body: bytes) -> bytes:
        """POST /v1/messages/count_tokens."""
        (ids,) = self._chat(_chat_of(CountTokensRequest.parse(body).to_chat())).prompts
        return json.dumps({"input_tokens": len(ids)}).encode()

    def input_tokens(self, body: bytes) -> bytes:
        """POST /v1/responses/input_tokens."""
        (ids,) = self._chat(_chat_of(InputTokensRequest.parse(body).to_chat())).prompts
        return json.dumps({"object": "response.input_tokens", "input_tokens": len(ids)}).encode()

    def _translated(
        self, request: MessagesRequest | ResponsesRequest, larks: Mapping[str, str] | None = None
    ) -> ReadBody[ChatFields]:
        return replace(self._chat(_chat_of(request.to_chat()), larks or {}), echo=request.echo())

    def _chat(self, request: ChatCompletionRequest, larks: Mapping[str, str] | None = None) -> ReadBody[ChatFields]:
        """`larks`: the grammars of custom tools, by their names."""
        ids, thought = self._conversation(
            request.messages,
            self._variables(request),
            tools=as_json(request.offered_tools),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            split_special_tokens=request.split_special_tokens,
        )
        self._check_ids(ids, "messages")
        grammar = self._grammar(request, larks or {})
        return ReadBody(chat_fields(request), (array("i", ids),), grammar, thought)

    def _variables(self, request: ChatCompletionRequest) -> dict[str, Any]:
        """Of the template: `reasoning_effort` turns the switch, as in vLLM, unless the request turns it itself."""
        given = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            given.setdefault("reasoning_effort", request.reasoning_effort)
            given.setdefault("enable_thinking", request.reasoning_effort != "none")
        return given

    def _grammar(self, request: ChatCompletionRequest, larks: Mapping[str, str]) -> GrammarSpec | None:
        answer = None
        if request.structure is not None and not request.must_call:
            answer = _structured(request.structure, request.structure_param)
        tools = request.offered_tools
        if not tools:
            return answer
        from qserve.grammar.tool_calls import answer_or_calls, tool_call_grammar

        written = self._tool_format()
        is_parallel = request.parallel_tool_calls is not False
        if answer is not None:
            allowed = callable_tools(tools, request.tool_choice)
            return answer_or_calls(answer, allowed, written, is_parallel=is_parallel, larks=larks)
        return tool_call_grammar(tools, request.tool_choice, written, is_parallel=is_parallel, larks=larks)

    def _tool_format(self) -> ToolFormat:
        written = tool_format(self._tool_template.source) if self._tool_template is not None else None
        if written is None:
            raise ApiError(
                400, "this model's chat template does not support tools; leave 'tools' out", "no_tools", "tools"
            )
        return written

    def completion(self, body: bytes) -> ReadBody[CompletionFields]:
        """POST /v1/completions: text gets no BOS that the tokenizer does not add itself, token ids stay as they are."""
        request = CompletionRequest.parse(body)
        given: list[Any] = request.prompt if isinstance(request.prompt, list) else [request.prompt]
        if isinstance(given[0], int):
            given = [given]
        prompts = []
        for prompt in given:
            self._tokenizer.check_size(prompt)
            ids = self._tokenizer.prompt_ids(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
            self._check_ids(ids, "prompt")
            prompts.append(array("i", ids))
        grammar = None if request.structure is None else _structured(request.structure, request.structure_param)
        return ReadBody(completion_fields(request), tuple(prompts), grammar)

    def tokenize(self, body: bytes) -> bytes:
        """POST /tokenize."""
        request = TokenizeRequest.parse(body)
        if request.messages is None:
            assert request.prompt is not None, "one of the two is there"
            ids = self._tokenizer.ids(request.prompt, add_special_tokens=request.add_special_tokens)
        else:
            if request.tools:
                self._tool_format()
            ids, _ = self._conversation(
                request.messages,
                request.chat_template_kwargs,
                tools=as_json(request.tools or ()),
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                split_special_tokens=request.split_special_tokens,
            )
        strings = [self._piece(token_id) for token_id in ids] if request.return_token_strs else None
        answer = {"count": len(ids), "max_model_len": self._max_model_len, "tokens": ids, "token_strs": strings}
        return json.dumps(answer, ensure_ascii=False).encode(errors="replace")

    def detokenize(self, body: bytes) -> bytes:
        """POST /detokenize."""
        tokens = DetokenizeRequest.parse(body).tokens
        if max(tokens, default=0) >= self._vocab_size:
            raise ApiError(400, f"this model's ids end at {self._vocab_size - 1}", "invalid_value", "tokens")
        answer = {"prompt": self._decode(tokens)}
        return json.dumps(answer, ensure_ascii=False).encode(errors="replace")

    def _conversation(
        self,
        messages: list[ConversationMessage],
        variables: dict[str, Any] | None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool,
        continue_final_message: bool,
        split_special_tokens: bool,
    ) -> tuple[list[int], ThoughtStart]:
        """The conversation through the model's chat template. A template's own complaint is a 400."""
        template = self._tool_template if tools else self._template
        if template is None:
            raise ApiError(
                400,
                f"this model has {self._which_templates()}; use /v1/completions with a plain prompt",
                "no_chat_template",
                "messages",
            )
        clash = RESERVED_NAMES & set(variables or ())
        if clash:
            names = ", ".join(sorted(clash))
            raise ApiError(400, f"'chat_template_kwargs' may not set {names}", "invalid_value", "chat_template_kwargs")
        conversation = [message.for_template() for message in messages]
        variables = variables or {}
        special = self._tokenizer.special
        hidden = HiddenTokens()
        if split_special_tokens:
            hidden = special.hide(strings_in([conversation, variables, tools]), template.source)
        if hidden:
            conversation, variables, tools = special.hidden_in([conversation, variables, tools], hidden)
        try:
            text = template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
                tools=tools,
            )
        except TemplateRefused as error:
            why = hidden.reveal(str(error))
            raise ApiError(
                400, f"the chat template refuses these messages: {why}", "chat_template", "messages"
            ) from error
        ids = self._tokenizer.conversation_ids(text, hidden)
        return ids, thought_start(conversation[-1]["content"] if continue_final_message else text)

    def _which_templates(self) -> str:
        names = ", ".join(self._named_templates)
        return f"the chat templates {names}, and none of them is called default" if names else "no chat template"

    def _check_ids(self, ids: Sequence[int], name: str) -> None:
        """Raises ApiError 400 for the first token that the model has no row for."""
        if (found := without_row(ids, self._vocab_size, self._piece)) is not None:
            raise ApiError(400, f"'{name}' contains {found}", "invalid_value", name)


def _chat_of(fields: dict[str, Any]) -> ChatCompletionRequest:
    """What is wrong with a translated request is said in a chat's words: most of its names are the same."""
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error, fields) from None


def _structured(structure: StructuredOutputs, param: str) -> GrammarSpec:
    # Imported when it is first wanted: the library takes 10 MB.
    from qserve.grammar.structured import structured_grammar

    return GrammarSpec(structured_grammar(structure, param), param=param)
