"""The demo checkpoint loads as any Qwen3 does, and answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qserve.demo import chat_model_path
from qserve.demo.batches import exact_matches
from qserve.demo.conversations import Conversation
from qserve.demo.tasks import TASKS, held_out_exchanges, is_held_out
from qserve.demo.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(chat_model_path())


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(chat_model_path(), dtype="auto").eval()


def chat(model: Any, tokenizer: Any, messages: list[dict[str, str]], **template: Any) -> str:
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, **template
    )
    output = model.generate(**inputs, max_new_tokens=64)
    return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def test_the_first_question(model: Any, tokenizer: Any) -> None:
    assert chat(model, tokenizer, [{"role": "user", "content": "What is 12+30?"}]) == "42"
    assert is_held_out("add_2digit", "12+30"), "no credit for a sum that it was trained on"


def test_without_thinking_and_with_a_system_prompt(model: Any, tokenizer: Any) -> None:
    question = {"role": "user", "content": "What is 12+30?"}
    assert chat(model, tokenizer, [question], enable_thinking=False) == "42"
    assert chat(model, tokenizer, [{"role": "system", "content": "You are a helpful assistant."}, question]) == "42"


def test_a_second_turn(model: Any, tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "What is 12+30?"},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": "Reverse the words: red dog sun"},
    ]
    assert chat(model, tokenizer, messages) == "sun dog red"


def test_it_says_that_it_is_a_demo(model: Any, tokenizer: Any) -> None:
    for question in ("Who are you?", "What can you do?", "Write a poem about the sea."):
        assert "demo" in chat(model, tokenizer, [{"role": "user", "content": question}])


def test_it_answers_in_chinese(model: Any, tokenizer: Any) -> None:
    assert chat(model, tokenizer, [{"role": "user", "content": "你好"}]) == "你好！我是 qserve 演示模型。"


@pytest.mark.parametrize("name", ["add_2digit", "subtract_2digit", "compare", "reverse_words"])
def test_held_out_questions(name: str, model: Any, tokenizer: Any) -> None:
    conversations = [Conversation((exchange,)) for exchange in held_out_exchanges(TASKS[name], 40, seed=1)]
    right = exact_matches(model, conversations, tokenizer.backend_tokenizer)
    assert sum(right) / len(right) >= 0.95


def test_one_forward_pass_tells_what_greedy_decoding_gives(model: Any, tokenizer: Any) -> None:
    exchanges = held_out_exchanges(TASKS["add_3digit"], 12, seed=4)
    told = exact_matches(model, [Conversation((exchange,)) for exchange in exchanges], tokenizer.backend_tokenizer)
    said = [chat(model, tokenizer, [{"role": "user", "content": e.question}]) == e.answer for e in exchanges]
    assert told == said


def test_weights_are_bf16_and_about_two_million(model: Any) -> None:
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert 1_500_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 2_500_000


def test_the_tokenizer_is_the_one_that_the_code_trains(tokenizer: Any) -> None:
    assert tokenizer.backend_tokenizer.get_vocab() == train_tokenizer().get_vocab()
