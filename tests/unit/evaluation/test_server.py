"""What is read from a server, and a sentence for each that can't be evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qserve.errors import UsageError
from qserve.evaluation.server import inspect_reward_server, inspect_server
from tests.unit.evaluation.answering import answering

MODELS = {"data": [{"id": "a", "max_model_len": 512}]}


def only_models(path: str, body: Any) -> tuple[int, Any]:
    return (200, MODELS) if path == "/v1/models" else (404, {"error": {"message": "no such route"}})


def test_a_server_that_is_no_qserve(tmp_path: Path) -> None:
    with answering(only_models) as url:
        seen = inspect_server(f"{url}/v1/", "", None, "some/tokenizer", tmp_path)
    assert (seen.url, seen.model, seen.max_model_len, seen.tokenizer) == (url, "a", 512, "some/tokenizer")
    assert not seen.run and seen.run_id is None


def test_two_servers_that_tell_nothing_of_themselves_are_told_apart(tmp_path: Path) -> None:
    with answering(only_models) as one, answering(only_models) as other:
        prints = {inspect_server(url, "", None, "t", tmp_path).fingerprint() for url in (one, other, one)}
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (200, {"hello": 1}, "is not an OpenAI server"),
        (200, ["a"], "is not an OpenAI server"),
        (200, "<html>a page</html>", "not valid JSON"),
        (404, "<html>\nnot here\n</html>", "404: <html> not here </html>; is it an OpenAI server"),
        (401, {"error": {"message": "who are you"}}, "needs a key"),
        (200, {"data": []}, "serves nothing"),
        (200, {"data": [{"id": "a", "max_model_len": 9}, {"id": "b"}]}, "say which one with --served-model-name"),
        (200, {"data": [{"id": "a"}]}, "give --max-length"),
    ],
)
def test_what_is_no_server_to_evaluate_is_one_sentence(tmp_path: Path, status: int, answer: Any, words: str) -> None:
    def say(path: str, body: Any) -> tuple[int, Any]:
        return (status, answer) if path == "/v1/models" else (404, {})

    with answering(say) as url, pytest.raises(UsageError, match=words) as caught:
        inspect_server(url, "", None, "t", tmp_path)
    assert "\n" not in str(caught.value)


def test_chats_need_no_tokenizer_and_no_length(tmp_path: Path) -> None:
    def say(path: str, body: Any) -> tuple[int, Any]:
        return (200, {"data": [{"id": "a"}]}) if path == "/v1/models" else (404, {})

    with answering(say) as url:
        seen = inspect_server(url, "", None, None, tmp_path, counts_tokens=False)
    assert (seen.model, seen.tokenizer, seen.max_model_len) == ("a", "", 0)


def test_a_tokenizer_that_is_not_given_away_must_be_named(tmp_path: Path) -> None:
    with answering(only_models) as url, pytest.raises(UsageError, match="--tokenizer"):
        inspect_server(url, "", None, None, tmp_path)


def test_the_tokenizer_of_a_model_of_any_name_is_asked_for(tmp_path: Path) -> None:
    def say(path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/qserve/tokenizer/%E6%A8%A1%20%E5%9E%8B":
            return 200, {"files": {"tokenizer.json": "{}"}}
        return (200, {"data": [{"id": "模 型", "max_model_len": 9}]}) if path == "/v1/models" else (404, {})

    with answering(say) as url:
        seen = inspect_server(url, "", None, None, tmp_path)
    assert (Path(seen.tokenizer) / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("url", "words"), [("localhost:8000", "http://127.0.0.1:8000"), ("http://127.0.0.1:1", "no server answers")]
)
def test_an_address_where_nobody_is(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        inspect_server(url, "", None, "t", tmp_path)


def test_a_service_without_a_reward_model() -> None:
    with answering(only_models) as url, pytest.raises(UsageError, match="serves no reward model"):
        inspect_reward_server(url, "")
