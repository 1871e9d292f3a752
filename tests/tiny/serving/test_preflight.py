"""Servers that would be scored at chance are refused, each with what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.demo import chat_model_path
from qserve.errors import UsageError
from qserve.evaluation.preflight import check
from qserve.evaluation.server import ServedModel
from tests.unit.evaluation.answering import answering


def honest(body: Any) -> dict[str, Any]:
    """A server whose every token has the log-probability -0.5, and that answers with the text ` fox`."""
    prompt, asked = body["prompt"], body["max_tokens"]
    told = [None, *[-0.5] * (len(prompt) - 1)] if body.get("echo") else []
    logprobs = [*told, *[-0.5] * asked]
    return {"text": " fox", "logprobs": {"token_logprobs": logprobs, "top_logprobs": [{}] * len(logprobs)}}


def without_logprobs(body: Any) -> dict[str, Any]:
    return {"text": " fox", "logprobs": None}


def without_echo(body: Any) -> dict[str, Any]:
    return honest({**body, "echo": False})


def with_a_token_of_its_own(body: Any) -> dict[str, Any]:
    return honest({**body, "prompt": [0, *body["prompt"]]})


def with_a_first_logprob(body: Any) -> dict[str, Any]:
    choice = honest(body)
    choice["logprobs"]["token_logprobs"][0] = -0.5
    return choice


def one_position_off(body: Any) -> dict[str, Any]:
    choice = honest(body)
    if body.get("echo"):
        choice["logprobs"]["token_logprobs"][1:] = [-3.0] * (len(choice["logprobs"]["token_logprobs"]) - 1)
    return choice


def checked(answer: Any) -> float:
    def say(path: str, body: Any) -> tuple[int, Any]:
        return 200, answer if isinstance(answer, dict) else {"choices": [answer(body)]}

    with answering(say) as url:
        return check(ServedModel(url, "", "m", 512, str(chat_model_path()), 8, {}))


def test_an_honest_server_passes() -> None:
    assert checked(honest) == 0.0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (without_logprobs, "without log-probabilities"),
        (without_echo, "ignores `echo`"),
        (with_a_token_of_its_own, "or adds tokens"),
        (with_a_first_logprob, "first token"),
        (one_position_off, "differ by up to 2.50"),
        ({"hello": 1}, "no `choices`"),
    ],
)
def test_a_server_that_cannot_be_evaluated_is_refused(answer: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        checked(answer)
    assert "--no-preflight" in str(caught.value)
