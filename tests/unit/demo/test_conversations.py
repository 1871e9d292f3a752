"""Training text is what the chat template writes."""

from __future__ import annotations

from random import Random
from typing import Any

import jinja2
import jinja2.sandbox

from qserve.demo import chat_model_path
from qserve.demo.conversations import Conversation, chat_prompt, sample_conversation

# As transformers renders a chat template.
ENVIRONMENT = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
TEMPLATE = ENVIRONMENT.from_string((chat_model_path() / "chat_template.jinja").read_text())


def rendered(messages: list[dict[str, Any]], **variables: Any) -> str:
    return TEMPLATE.render(messages=messages, **variables)


def messages_of(conversation: Conversation, *, with_last_answer: bool) -> list[dict[str, Any]]:
    messages = [] if conversation.system is None else [{"role": "system", "content": conversation.system}]
    for exchange in conversation.exchanges:
        messages.append({"role": "user", "content": exchange.question})
        messages.append({"role": "assistant", "content": exchange.answer})
    return messages if with_last_answer else messages[:-1]


def test_conversations_are_what_the_template_writes() -> None:
    rng = Random(0)
    for conversation in [sample_conversation(rng) for _ in range(200)]:
        pieces = conversation.pieces()
        prompt = "".join(text for text, _ in pieces[:-1])
        thinking = {"enable_thinking": False} if conversation.empty_think else {}
        messages = messages_of(conversation, with_last_answer=False)
        assert prompt == rendered(messages, add_generation_prompt=True, **thinking)
        if not conversation.empty_think:
            whole = "".join(text for text, _ in pieces) + "\n"
            assert whole == rendered(messages_of(conversation, with_last_answer=True))


def test_only_answers_are_learned() -> None:
    rng = Random(0)
    for conversation in [sample_conversation(rng) for _ in range(200)]:
        spoken = [text for text, learned in conversation.pieces() if learned]
        assert spoken == [f"{exchange.answer}<|im_end|>" for exchange in conversation.exchanges]


def test_chat_prompt_is_the_template() -> None:
    assert chat_prompt("What is 12+30?") == rendered(
        [{"role": "user", "content": "What is 12+30?"}], add_generation_prompt=True
    )


def test_template_knows_tools() -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    call = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    text = rendered(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "noon"},
        ],
        tools=[tool],
        add_generation_prompt=True,
    )
    assert text.startswith("<|im_start|>system\nBe brief.\n\nTools:\nclock()<|im_end|>\n")
    assert '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call><|im_end|>\n' in text
    assert text.endswith("<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_template_drops_old_thoughts() -> None:
    text = rendered(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}]
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
