"""What the model learns of its tool is what the chat template writes; what is held out is never trained."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from qserve.demo.calling import CALCULATOR, Calling, call_of, held_out_callings, sample_calling
from qserve.demo.tasks import is_held_out
from tests.unit.demo.test_conversations import rendered


def messages_of(one: Calling) -> list[dict[str, Any]]:
    system = [] if one.system is None else [{"role": "system", "content": one.system}]
    messages = [*system, {"role": "user", "content": one.question}]
    if one.result is None:
        return messages
    function = {"name": "calculator", "arguments": json.dumps({"expression": one.expression})}
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return [*messages, call, {"role": "tool", "content": one.result}]


@pytest.mark.parametrize("kind", ["call", "result", "none"])
def test_what_is_trained_is_what_the_template_writes(kind: str) -> None:
    rng = Random(1)
    for one in [sample_calling(rng, kind=kind) for _ in range(100)]:
        thinking = {"enable_thinking": False} if one.empty_think else {}
        prompt = rendered(messages_of(one), tools=[CALCULATOR], add_generation_prompt=True, **thinking)
        *before, (answer, is_learned) = one.pieces()
        assert "".join(text for text, _ in before) == prompt
        assert is_learned and answer.endswith("<|im_end|>")


def test_a_call_is_json_between_its_tags() -> None:
    begin, body, end = call_of("12*34").split("\n")
    assert (begin, end) == ("<tool_call>", "</tool_call>")
    assert json.loads(body) == {"name": "calculator", "arguments": {"expression": "12*34"}}


def test_what_is_held_out_is_never_trained() -> None:
    rng = Random(2)
    assert not any(is_held_out("calculator", sample_calling(rng, kind="call").expression) for _ in range(300))
    assert all(is_held_out("calculator", one.expression) for one in held_out_callings("call", 100, seed=3))


def test_results_are_right() -> None:
    rng = Random(3)
    for one in [sample_calling(rng, kind="result") for _ in range(200)]:
        assert one.result is not None and float(one.result) == pytest.approx(eval(one.expression), abs=6e-4)
